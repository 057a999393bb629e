"""Fisher sensitivities against torch's autograd on the same weights, where torch is installed.

    python -m tests.test_fisher_torch

writes the numbers that tests/test_fisher.py compares ours with; here they are torch's own.
"""

import numpy as np
import pytest

from edgemem.compression.fisher import FAMILIES
from edgemem.runtime import models
from tests.ggufkit import tiny
from tests.test_fisher import FIXTURES, TOKENS, rank_correlation

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

TEXT = (
    "Ana: I moved to Oslo in March, and the new job at the harbour starts on Monday.\n"
    "Ben: Did you find a flat? You wanted one with a balcony, not the basement again.\n"
    "Ana: Not yet. I looked at 3 of them, but the rent is 14,500 a month, which is too much."
)


def by_torch(model, tokens):
    """−log p of each token but the first, and S of all, for the mean loss."""
    ids = torch.tensor(tokens)[None]
    h = model.get_input_embeddings()(ids).detach().requires_grad_(True)
    logits = model(inputs_embeds=h).logits[0]
    losses = torch.nn.functional.cross_entropy(logits[:-1], ids[0, 1:], reduction="none")
    losses.mean().backward()
    return losses.detach().numpy(), (h.grad * h).norm(dim=-1)[0].detach().numpy()


NAMES = {
    "attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}  # fmt: skip


def tiny_in_torch(architecture):
    """The model of ggufkit's file, built by transformers from the same tensors."""
    settings, tensors = tiny(architecture)
    value = {key.removeprefix(f"{architecture}."): v for key, v in settings.items()}
    common = dict(
        vocab_size=len(tensors["token_embd.weight"]),
        hidden_size=value["embedding_length"],
        intermediate_size=value["feed_forward_length"],
        num_hidden_layers=value["block_count"],
        num_attention_heads=value["attention.head_count"],
        num_key_value_heads=value["attention.head_count_kv"],
        head_dim=value["attention.key_length"],
        rms_norm_eps=value["attention.layer_norm_rms_epsilon"],
        max_position_embeddings=value["context_length"],
        rope_theta=value["rope.freq_base"],
        tie_word_embeddings=True,
        attn_implementation="eager",
    )
    kind = {"llama": "Llama", "qwen2": "Qwen2", "qwen3": "Qwen3"}[architecture]
    config = getattr(transformers, f"{kind}Config")(**common)
    model = getattr(transformers, f"{kind}ForCausalLM")(config).eval()
    state = {}
    for name, tensor in tensors.items():
        if architecture == "llama" and name.endswith(("attn_q.weight", "attn_k.weight")):
            # llama.cpp turns neighbours, transformers the halves of a head.
            head = tensor.reshape(-1, value["attention.key_length"] // 2, 2, tensor.shape[1])
            tensor = head.transpose(0, 2, 1, 3).reshape(tensor.shape)
        if name.startswith("blk."):
            _, layer, part, kind_of = name.split(".")
            name = f"model.layers.{layer}.{NAMES[part]}.{kind_of}"
        else:
            name = {
                "token_embd.weight": "model.embed_tokens.weight",
                "output_norm.weight": "model.norm.weight",
            }[name]
        state[name] = torch.tensor(np.ascontiguousarray(tensor))
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert set(missing) <= {"lm_head.weight"} and not unexpected
    model.tie_weights()
    return model


@pytest.mark.parametrize("architecture", FAMILIES)
def test_the_kept_numbers_of_every_family_are_those_of_autograd(architecture):
    losses, scores = by_torch(tiny_in_torch(architecture), TOKENS.tolist())
    with np.load(FIXTURES / "sensitivity-tiny.npz") as kept:
        np.testing.assert_array_equal(kept["tokens"], TOKENS)
        np.testing.assert_allclose(kept[f"{architecture}_loss"], losses, atol=1e-5)
        np.testing.assert_allclose(kept[f"{architecture}_scores"], scores, rtol=1e-3, atol=1e-7)


def bundled_in_torch():
    pytest.importorskip("accelerate")
    file = models.find(models.DEFAULT_LLM)
    return transformers.AutoModelForCausalLM.from_pretrained(
        str(file.parent), gguf_file=file.name, dtype=torch.float32, attn_implementation="eager"
    ).eval()


@pytest.mark.models
@pytest.mark.slow
def test_the_kept_numbers_of_the_bundled_model_are_those_of_autograd():
    with np.load(FIXTURES / "sensitivity-smollm2.npz") as kept:
        losses, scores = by_torch(bundled_in_torch(), kept["tokens"].tolist())
        np.testing.assert_allclose(kept["loss"], losses, atol=1e-3)
        assert rank_correlation(kept["scores"][1:-1], scores[1:-1]) >= 0.999


def write_kept(folder):
    from edgemem.runtime.engine import Engine

    kept = {"tokens": TOKENS}
    for architecture in FAMILIES:
        losses, scores = by_torch(tiny_in_torch(architecture), TOKENS.tolist())
        kept |= {f"{architecture}_loss": losses, f"{architecture}_scores": scores}
    np.savez_compressed(folder / "sensitivity-tiny.npz", **kept)
    with Engine.load() as engine:
        tokens = engine.tokenize(TEXT)
    losses, scores = by_torch(bundled_in_torch(), tokens)
    np.savez_compressed(
        folder / "sensitivity-smollm2.npz", tokens=tokens, loss=losses, scores=scores
    )


if __name__ == "__main__":
    write_kept(FIXTURES)
