"""What a GGUF says of its transformer: the Llama family, Qwen 2, 2.5 and 3, and Gemma 3.

Knows the settings and tensor names of these and refuses any other, because a term that is left out
would give wrong numbers instead of an error. Knows no arithmetic beyond the angles of RoPE.
Source: llama.cpp's graphs of the same architectures.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgemem.errors import ModelError
from edgemem.kernels.layers import EVERY_KEY, GELU, SILU
from edgemem.runtime.tensors import Tensors

__all__ = ["FAMILIES", "Shape", "shape_of"]

_BASE = frozenset(
    f"{name}.weight"
    for name in (
        "attn_norm", "attn_q", "attn_k", "attn_v", "attn_output",
        "ffn_norm", "ffn_gate", "ffn_up", "ffn_down",
    )
)  # fmt: skip
_BIAS = frozenset(f"attn_{name}.bias" for name in "qkv")
_QK_NORM = frozenset(f"attn_{name}_norm.weight" for name in "qk")
_POST_NORM = frozenset({"post_attention_norm.weight", "post_ffw_norm.weight"})
FAMILIES = {
    "llama": _BASE,
    "qwen2": _BASE | _BIAS,
    "qwen3": _BASE | _QK_NORM,
    "gemma3": _BASE | _QK_NORM | _POST_NORM,
}
"""The tensors of a layer, by architecture."""
_GEMMA_27B_LAYERS = 62


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Sizes and constants of a model.

    adjacent: RoPE turns the numbers 2i and 2i + 1 of a head, otherwise i and i + head_dim / 2.
    windows: how many keys a position of each layer sees, itself included. angles: of each layer,
    (head_dim / 2,) float64, radians a position. tensors: the names that a layer has.
    """

    architecture: str
    layers: int
    dim: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocabulary: int
    n_ctx: int
    eps: float
    attention_scale: float
    embedding_scale: float
    activation: int
    adjacent: bool
    tied: bool
    windows: tuple[int, ...]
    angles: tuple[NDArray[np.float64], ...]
    tensors: frozenset[str]


class _Settings:
    """The numbers of a file's architecture, by the end of their keys."""

    def __init__(self, file: Tensors) -> None:
        self.file = file
        self.architecture = str(file.settings.get("general.architecture"))

    def __call__(self, key: str, otherwise: float | None = None) -> float:
        key = f"{self.architecture}.{key}"
        value = self.file.settings.get(key, otherwise)
        if isinstance(value, str) or value is None or not 0 <= value < 2**31:
            raise _refusal(self.file, f"its {key} is {value!r}")
        return value

    def size(self, key: str, otherwise: float | None = None) -> int:
        value = int(self(key, otherwise))
        if value < 1:
            raise _refusal(self.file, f"its {self.architecture}.{key} is {value}")
        return value


def shape_of(file: Tensors) -> Shape:
    """Raises ModelError, saying why, if the gradient of such a model is not known here."""
    settings = _Settings(file)
    architecture = settings.architecture
    if architecture not in FAMILIES:
        raise _refusal(file, f"its architecture is {architecture}")
    gemma = architecture == "gemma3"
    layers, dim = settings.size("block_count"), settings.size("embedding_length")
    heads = settings.size("attention.head_count")
    kv_heads = settings.size("attention.head_count_kv", heads)
    head_dim = settings.size("attention.key_length", dim // heads)
    by_dim = gemma and layers == _GEMMA_27B_LAYERS
    shape = Shape(
        architecture=architecture,
        layers=layers,
        dim=dim,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        ffn=settings.size("feed_forward_length"),
        vocabulary=file.shapes.get("token_embd.weight", (0, 0))[0],
        n_ctx=settings.size("context_length"),
        eps=settings("attention.layer_norm_rms_epsilon"),
        attention_scale=1 / math.sqrt(dim / heads if by_dim else head_dim),
        embedding_scale=math.sqrt(dim) if gemma else 1.0,
        activation=GELU if gemma else SILU,
        adjacent=architecture == "llama",
        tied="output.weight" not in file.shapes,
        windows=_windows(settings, layers),
        angles=_angles(settings, layers, head_dim),
        tensors=FAMILIES[architecture],
    )
    _check(settings, shape)
    return shape


def _windows(settings: _Settings, layers: int) -> tuple[int, ...]:
    if settings.architecture != "gemma3":
        if settings("attention.sliding_window", 0):
            raise _refusal(settings.file, "it has sliding windows")
        return (EVERY_KEY,) * layers
    window = settings.size("attention.sliding_window")
    return tuple(EVERY_KEY if _is_global(layer) else window for layer in range(layers))


def _is_global(layer: int) -> bool:
    """Whether a layer of Gemma 3 sees everything: each sixth does."""
    return layer % 6 == 5


def _angles(settings: _Settings, layers: int, head_dim: int) -> tuple[NDArray[np.float64], ...]:
    file = settings.file
    if settings.size("rope.dimension_count", head_dim) != head_dim or head_dim % 2:
        raise _refusal(file, "RoPE turns a part of each head only")
    kind = file.settings.get(f"{settings.architecture}.rope.scaling.type", "none")
    factor = settings("rope.scaling.factor", 1) or 1
    if kind not in ("none", "linear"):
        raise _refusal(file, f"its RoPE is scaled by {kind}")
    powers = -np.arange(0, head_dim, 2) / head_dim
    everywhere = settings("rope.freq_base", 10_000) ** powers
    if kind == "linear":
        everywhere = everywhere / factor
    if "rope_freqs.weight" in file.shapes:  # Llama 3.1's
        divisors = np.empty(file.shapes["rope_freqs.weight"], np.float32)
        file.read("rope_freqs.weight", divisors)
        if divisors.shape != (1, head_dim // 2):
            raise _refusal(file, f"its rope_freqs.weight has shape {divisors.shape}")
        everywhere = everywhere / divisors[0]
    if settings.architecture != "gemma3":
        return (everywhere,) * layers
    nearby = settings("rope.freq_base_swa", 10_000) ** powers
    return tuple(everywhere if _is_global(layer) else nearby for layer in range(layers))


def _check(settings: _Settings, shape: Shape) -> None:
    """Refuse what these sizes do not explain: other tensors, other shapes, experts, soft caps."""
    file, s = settings.file, shape
    for key in (
        "expert_count", "attn_logit_softcapping", "final_logit_softcapping", "logit_scale",
        "embedding_scale", "residual_scale", "attention.scale",
    ):  # fmt: skip
        if settings(key, 0):
            raise _refusal(file, f"it has {s.architecture}.{key}")
    if settings("attention.value_length", s.head_dim) != s.head_dim or s.heads % s.kv_heads:
        raise _refusal(file, "its heads are of several sizes")
    queries, keys = s.heads * s.head_dim, s.kv_heads * s.head_dim
    sizes = {
        "attn_q": (queries, s.dim), "attn_k": (keys, s.dim), "attn_v": (keys, s.dim),
        "attn_output": (s.dim, queries), "ffn_down": (s.dim, s.ffn),
        "ffn_gate": (s.ffn, s.dim), "ffn_up": (s.ffn, s.dim),
        "attn_q_norm": (1, s.head_dim), "attn_k_norm": (1, s.head_dim),
        "attn_q.bias": (1, queries), "attn_k.bias": (1, keys), "attn_v.bias": (1, keys),
    }  # fmt: skip
    expected = {
        f"blk.{layer}.{name}": sizes.get(name.removesuffix(".weight"), (1, s.dim))
        for layer in range(s.layers)
        for name in s.tensors
    }
    expected["token_embd.weight"] = (s.vocabulary, s.dim)
    expected["output_norm.weight"] = (1, s.dim)
    if not s.tied:
        expected["output.weight"] = (s.vocabulary, s.dim)
    found = {name: size for name, size in file.shapes.items() if name != "rope_freqs.weight"}
    if odd := sorted(k for k in expected | found if expected.get(k) != found.get(k)):
        name = odd[0]
        raise _refusal(
            file,
            f"its tensor {name} is {found.get(name, 'missing')}, not {expected.get(name, 'known')}",
        )


def _refusal(file: Tensors, why: str) -> ModelError:
    return ModelError(
        f"the gradient of {file.path.name} cannot be computed: {why}; allowed are plain models of "
        f"the architectures {', '.join(FAMILIES)}. Use `self_information` (−log p) for it"
    )
