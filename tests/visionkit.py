"""Tiny vision models of random weights: a language model's GGUF and its projector's.

Three forms of what libmtmd reads: "internvl" (parts of a large image, each as wide as long),
"qwen2vl" (one part of any size, positions in two dimensions) and "gemma3" (image tokens that see
each other in both directions, a sliding window).
"""

import numpy as np
from familykit import CHATML, HEAD_DIM, write_family
from ggufkit import Setting, write_gguf

DIM, HEADS, FFN, LAYERS = 32, 2, 48, 2  # of the vision encoder
IMAGE, PATCH = 32, 4  # pixels on a side
OF = {"internvl": "qwen2", "qwen2vl": "qwen2vl", "gemma3": "gemma3"}  # the language model
TEXT_DIM = 64  # of familykit's language models


def write_vision(folder, form, *, width=TEXT_DIM, seed=7, **more):
    """Both files of a form. width: of the projector's embeddings. more: settings in place of
    its own."""
    family = OF[form]
    extra: dict[str, Setting] = {}
    if form == "qwen2vl":
        quarter = HEAD_DIM // 8
        extra["qwen2vl.rope.dimension_sections"] = [quarter, 2 * quarter, 2 * quarter, 0]
    model = write_family(folder, family, template=None if form == "gemma3" else CHATML, more=extra)
    return model, write_projector(folder / f"mmproj-{form}.gguf", form, width, seed, **more)


def write_projector(file, form, width=TEXT_DIM, seed=7, **more):
    rng = np.random.default_rng(seed)

    def of(*shape):
        return (rng.standard_normal(shape) / 3).astype(np.float32)

    def norm(name, size):
        return {f"{name}.weight": 1 + of(size), f"{name}.bias": of(size)}

    def linear(name, out, into):
        return {f"{name}.weight": of(out, into), f"{name}.bias": of(out)}

    patches = (IMAGE // PATCH) ** 2
    tensors = {"v.patch_embd.weight": of(DIM, 3, PATCH, PATCH)}
    if form == "qwen2vl":
        tensors["v.patch_embd.weight.1"] = of(DIM, 3, PATCH, PATCH)
    else:
        tensors["v.patch_embd.bias"] = of(DIM)
        tensors["v.position_embd.weight"] = of(patches + (form == "internvl"), DIM)
    if form == "internvl":
        tensors["v.class_embd"] = of(DIM)
    for n in range(LAYERS):
        tensors |= norm(f"v.blk.{n}.ln1", DIM) | norm(f"v.blk.{n}.ln2", DIM)
        for name in ("q", "k", "v", "out"):
            tensors |= linear(f"v.blk.{n}.attn_{name}", DIM, DIM)
        tensors |= linear(f"v.blk.{n}.ffn_up", FFN, DIM) | linear(f"v.blk.{n}.ffn_down", DIM, FFN)
    settings: dict[str, Setting] = {
        "general.architecture": "clip",
        "clip.has_vision_encoder": True,
        "clip.projector_type": {"qwen2vl": "qwen2vl_merger"}.get(form, form),
        "clip.vision.embedding_length": DIM,
        "clip.vision.attention.head_count": HEADS,
        "clip.vision.feed_forward_length": FFN,
        "clip.vision.block_count": LAYERS,
        "clip.vision.projection_dim": width,
        "clip.vision.attention.layer_norm_epsilon": 1e-6,
        "clip.vision.image_size": IMAGE,
        "clip.vision.patch_size": PATCH,
        "clip.vision.image_mean": [0.5, 0.5, 0.5],
        "clip.vision.image_std": [0.5, 0.5, 0.5],
        "clip.use_gelu": True,
    }
    four = 4 * DIM  # of two patches by two, which become one token
    if form == "internvl":
        tensors |= norm("mm.model.mlp.0", four) | linear("mm.model.mlp.1", FFN, four)
        tensors |= linear("mm.model.mlp.3", width, FFN)
        settings["clip.vision.projector.scale_factor"] = 2
    elif form == "qwen2vl":
        tensors |= norm("v.post_ln", DIM) | linear("mm.0", FFN, four) | linear("mm.2", width, FFN)
    else:
        tensors |= norm("v.post_ln", DIM)
        tensors["mm.input_projection.weight"] = of(DIM, width)
        tensors["mm.soft_emb_norm.weight"] = 1 + of(DIM)
        settings["clip.vision.projector.scale_factor"] = 2
    return write_gguf(file, settings | more, tensors)


def picture(seed, height=IMAGE, width=IMAGE):
    """An image of coloured stripes, (height, width, 3)."""
    rng = np.random.default_rng(seed)
    rows = rng.integers(0, 256, (1 + height // 8, 1 + width // 8, 3), np.uint8)
    return np.ascontiguousarray(rows.repeat(8, 0).repeat(8, 1)[:height, :width])
