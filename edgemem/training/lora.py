"""A frozen base model in torch with low-rank adapters, and the loss of packed rows.

The base comes from a GGUF alone: its dequantised weights.

Source: LoRA, W x + (alpha / r) B A x, B starting at zero; MemLoRA, appendix B. Has a linear layer
of its own instead of peft's for two reasons: torch's dropout is slow on a CPU, and here frozen
weights and activations stay in one lower precision while A and B are float32.
"""

from __future__ import annotations

import os
from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np

from edgemem.config import require
from edgemem.errors import ConfigError, ModelError
from edgemem.training.examples import Row

__all__ = ["ALL_LINEAR", "QV", "add_lora", "load_base", "logits", "loss_sum"]

QV = ("q_proj", "v_proj")
ALL_LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
_ATTENTION = "edgemem_packed"


def load_base(file: Path, *, precision: str = "auto") -> Any:
    """The causal language model of a GGUF, frozen, as a transformers module in training mode.

    precision: of weights, products and the activations between them: "float32", "bfloat16", or
    "auto": bfloat16 where the processor multiplies in it (a GPU, AMX, AVX512-BF16), else float32.
    The residual stream and norms are float32 in both. MemLoRA trains in BF16 too.
    Raises ConfigError without the extra `train`, ModelError when the file cannot be loaded.
    """
    # torch's threads should sleep while they wait, not spin: see runtime/llama.py.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    require("train")
    import torch
    import transformers

    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = _dtype(torch, precision, device)
    transformers.AttentionInterface.register(_ATTENTION, _attention)
    transformers.AttentionMaskInterface.register(_ATTENTION, lambda *_, **__: None)
    try:
        with redirect_stderr(StringIO()):  # transformers' own progress bars
            model = transformers.AutoModelForCausalLM.from_pretrained(
                str(file.parent),
                gguf_file=file.name,
                dtype=torch.float32,
                attn_implementation=_ATTENTION,
            )
    except (ImportError, OSError, ValueError, RuntimeError, KeyError, NotImplementedError) as exc:
        raise ModelError(
            f"{file} cannot be loaded for training ({exc}); give a GGUF of an architecture that "
            "transformers reads, such as llama, qwen2, qwen3 or gemma3"
        ) from exc
    model.requires_grad_(False)
    for module in model.modules():
        if isinstance(module, torch.nn.Linear):
            # A new parameter: the head may share its old one with the embedding, kept in float32.
            module.weight = torch.nn.Parameter(module.weight.to(dtype), requires_grad=False)
            module.forward = _forward_of(torch, module)
    return model.to(device).train()


def _dtype(torch: Any, precision: str, device: str) -> Any:
    if precision == "auto":
        fast = device == "cuda" or torch.cpu._is_avx512_bf16_supported()
        precision = "bfloat16" if fast else "float32"
    if precision not in ("bfloat16", "float32"):
        raise ConfigError(f"precision is {precision!r}; allowed: auto, bfloat16, float32")
    return getattr(torch, precision)


def add_lora(
    model: Any, targets: tuple[str, ...], *, rank: int, alpha: float, dropout: float, seed: int
) -> dict[str, Any]:
    """Give the linear layers with these names an adapter that changes nothing yet.

    Returns its parameters, by transformers' layer names with ".lora_A" or ".lora_B" added.

    A: (rank, in), initialised uniformly as torch's linear layers are; B: (out, rank), zero; both
    float32. dropout: chance that a value of an adapter's input is left out, in steps of 1/256.
    """
    import torch

    generator = torch.Generator().manual_seed(seed)
    tensors: dict[str, Any] = {}
    for name, module in model.named_modules():
        if name.rpartition(".")[2] not in targets or not isinstance(module, torch.nn.Linear):
            continue
        bound = module.in_features**-0.5  # kaiming_uniform_(a=sqrt(5)), as in the LoRA paper's code
        a = torch.rand(rank, module.in_features, generator=generator) * 2 * bound - bound
        b = torch.zeros(module.out_features, rank)
        for part, values in (("lora_A", a), ("lora_B", b)):
            tensors[f"{name}.{part}"] = torch.nn.Parameter(values.to(module.weight.device))
            module.register_parameter(part, tensors[f"{name}.{part}"])
        module.lora_scale, module.lora_dropout = alpha / rank, dropout
    return tensors


def logits(model: Any, row: Row) -> Any:
    """A row's logits, (predictors, vocabulary) float32, with gradients."""
    import torch

    device = model.device
    ids = torch.tensor([row.ids], device=device)
    embeddings = model.get_input_embeddings()(ids.clamp(min=0))
    if row.seen:
        of_images = torch.from_numpy(np.stack([row.seen[i] for i in row.ids if i < 0]))
        embeddings[ids < 0] = of_images.to(embeddings)
    found = model(
        inputs_embeds=embeddings,
        position_ids=torch.tensor([row.positions], device=device),
        logits_to_keep=torch.tensor(row.predictors, device=device),
        use_cache=False,
        packing=(row.lengths, _masks(torch, row.lengths, device)),
    )
    return found.logits[0].float()


def loss_sum(model: Any, row: Row) -> Any:
    """Sum of the cross-entropies of a row's labels, a scalar tensor with gradients."""
    import torch

    found = logits(model, row)
    labels = torch.tensor(row.labels, device=found.device)
    return torch.nn.functional.cross_entropy(found, labels, reduction="sum")


def _masks(torch: Any, lengths: list[int], device: Any) -> list[Any]:
    """For each example (own, shared + own) booleans: which tokens a token sees."""
    shared = lengths[0]
    return [
        torch.ones(own, shared + own, dtype=torch.bool, device=device).tril(shared)
        for own in lengths[1:]
    ]


def _attention(
    module: Any, query: Any, key: Any, value: Any, attention_mask: Any, *,
    scaling: float, packing: tuple[list[int], list[Any]], softcap: float | None = None,
    sliding_window: int | None = None, **_: Any,
) -> tuple[Any, None]:  # fmt: skip
    """transformers' attention seam. query: (1, heads, tokens, d); (1, tokens, heads, d) out."""
    import torch

    lengths, masks = packing
    longest = lengths[0] + max(lengths[1:])
    if softcap is not None or longest > (sliding_window or longest):
        raise ModelError(
            f"this base caps attention (at {softcap}) or limits it to {sliding_window} tokens, and "
            f"an example has {longest}; train on another base, or on shorter examples"
        )
    attend = torch.nn.functional.scaled_dot_product_attention
    # On a CPU the backward pass of attention is much slower in bfloat16 than in float32.
    dtype = value.dtype if value.is_cuda else torch.float32
    parts = [t.to(dtype).split(lengths, 2) for t in (query, key, value)]
    (q0, *qs), (k0, *ks), (v0, *vs) = parts
    out = []
    if lengths[0]:
        out.append(attend(q0, k0, v0, is_causal=True, scale=scaling, enable_gqa=True))
    for q, k, v, mask in zip(qs, ks, vs, masks, strict=True):
        k, v = torch.cat((k0, k), 2), torch.cat((v0, v), 2)
        out.append(attend(q, k, v, attn_mask=mask, scale=scaling, enable_gqa=True))
    return torch.cat(out, 2).transpose(1, 2), None


def _forward_of(torch: Any, module: Any) -> Any:
    """A frozen linear layer's forward, in its weight's precision, with its adapter if any."""
    linear = torch.nn.functional.linear

    def forward(x: Any) -> Any:
        weight = module.weight
        x = x.to(weight.dtype)
        y = linear(x, weight)
        if module.bias is not None:
            y = y + module.bias
        if not hasattr(module, "lora_A"):
            return y
        scale = module.lora_scale
        if module.training and (dropped := round(module.lora_dropout * 256)):
            x = x * _kept(torch, x, dropped)
            scale *= 256 / (256 - dropped)
        low = linear(x, module.lora_A.to(x.dtype))
        return y + linear(low, (module.lora_B * scale).to(x.dtype))

    return forward


def _kept(torch: Any, x: Any, dropped: int) -> Any:
    """A mask of x's shape and type: each value is 0 with a chance of dropped / 256, else 1.

    It uses random bytes, eight to a draw: torch's own dropout draws a float for each value.
    """
    draws = torch.empty((x.numel() + 7) // 8, dtype=torch.int64, device=x.device)
    draws.random_(-(2**63), None)
    return (draws.view(torch.uint8)[: x.numel()].view(x.shape) >= dropped).to(x.dtype)
