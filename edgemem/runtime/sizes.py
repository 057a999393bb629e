"""What models will take in memory, told from their files before they are loaded.

Knows GGUF headers and file sizes; loads nothing. Bytes are those of resident memory on Linux
x86-64, without a GPU: what is mapped and read, or written to. tests/test_budget.py holds the
figures to what was measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from edgemem.budget import Choice
from edgemem.errors import ModelError
from edgemem.runtime.gguf import Header, read_header, read_only
from edgemem.runtime.llama import N_BATCH

__all__ = ["compressor_bytes", "embedder_bytes", "engine_bytes"]

STAGES = 3  # with a long prompt of their own: extraction, update, generation or reply
_F16, _F32 = 2, 4
# Of llama.cpp's tables: SmolLM2 (49,152 tokens, merges) 16.1 MB, Gemma 3 (262,144, none) 41.5 MB.
_TOKEN_BYTES, _MERGE_BYTES = 160, 170
# onnxruntime unpacks int8 weights to float32 and keeps its own code and threads beside them.
_UNPACKED, _SESSION_BYTES = 4, 20_000_000
# A pass keeps about eight arrays of each token's state in every layer (measured: 7.3).
_KEPT_STATES = 8


def engine_bytes(file: Path, choice: Choice) -> dict[str, int]:
    """weights, tokenizer, kv, compute and prefixes of a GGUF model under a choice of n_ctx and
    prefix_bytes.

    compute: what a prompt as long as the window touches of llama.cpp's buffer: twice the attention
    scores of a batch, and its feed-forward states. prefixes: at most. Models whose layers keep no
    KV, or a window of it only, take less. Raises ModelError on a file that is no GGUF.
    """
    header = _header(file)
    layers = _number(header, "block_count")
    heads = _number(header, "attention.head_count")
    width = _number(header, "embedding_length")
    kv_heads = _numbers(header, "attention.head_count_kv", heads)
    per_head = width // max(1, heads)
    keys = _number(header, "attention.key_length", per_head)
    values = _number(header, "attention.value_length", per_head)
    n_ctx = -(-choice.n_ctx // 256) * 256  # as llama.cpp rounds it
    all_kv_heads = sum(kv_heads) if len(kv_heads) == layers else layers * max(kv_heads)
    kv = all_kv_heads * (keys + values) * _F16 * n_ctx
    batch = min(N_BATCH, n_ctx)
    states = 3 * (_number(header, "feed_forward_length") + width)
    tokens = header.tensors["token_embd.weight"].shape[-1]
    merges = tokens if "tokenizer.ggml.merges" in header.values else 0
    return {
        "weights": file.stat().st_size,
        "tokenizer": tokens * _TOKEN_BYTES + merges * _MERGE_BYTES,
        "kv": kv,
        "compute": batch * _F32 * (2 * heads * n_ctx + states) + tokens * _F32,
        "prefixes": min(choice.prefix_bytes, STAGES * kv),
    }


def embedder_bytes(file: Path) -> int:
    """Of an embedder with int8 weights, such as the bundled one; others take less."""
    return file.stat().st_size * _UNPACKED + _SESSION_BYTES


def compressor_bytes(file: Path, tokens: int) -> int:
    """Of the model mapped once more, and a pass over so many tokens. Raises ModelError."""
    header = _header(file)
    states = _number(header, "block_count") * _number(header, "embedding_length")
    return file.stat().st_size + _KEPT_STATES * states * _F32 * tokens


def _header(file: Path) -> Header:
    try:
        header = read_header(read_only(file))
        if "token_embd.weight" not in header.tensors:
            raise ValueError("it has no token_embd.weight")
        for name in ("block_count", "embedding_length", "attention.head_count"):
            _number(header, name)
        return header
    except (ValueError, KeyError, TypeError) as exc:
        raise ModelError(
            f"what {file} will take in memory cannot be told from its header ({exc}); check it "
            "with `edgemem models verify`, or load it without a memory limit"
        ) from exc


def _number(header: Header, name: str, default: int | None = None) -> int:
    return max(_numbers(header, name, default))


def _numbers(header: Header, name: str, default: int | None = None) -> tuple[int, ...]:
    """A value of the architecture's own; some have one for each layer. Raises ValueError."""
    values: Mapping[str, object] = {key: entry.value for key, entry in header.values.items()}
    value = values.get(f"{values.get('general.architecture')}.{name}", default)
    numbers = value if isinstance(value, tuple) else (value,)
    if not numbers or not all(type(n) is int and 0 <= n < 2**31 for n in numbers):
        raise ValueError(f"its {name} is {value!r}")
    return tuple(n for n in numbers if isinstance(n, int))
