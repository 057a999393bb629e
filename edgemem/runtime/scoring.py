"""How likely given text is to a loaded model, and where its tokens lie in the text.

Reads what an Engine holds and decodes with logits for many tokens at once. Knows tokens; generates
nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from edgemem.errors import ContextOverflow, ModelError

if TYPE_CHECKING:
    from edgemem.runtime.engine import Engine

__all__ = ["log_probs", "offsets", "text_log_probs"]

ROWS = 64  # of logits kept at once: 12 MB for SmolLM2, 67 MB for Gemma 3's vocabulary of 262,144
OVERLAP = 64  # tokens that a window shows before those it scores, where a text exceeds the window
_STAGE = "scoring"  # whose prefix is kept: texts that begin alike follow each other


def log_probs(engine: Engine, tokens: list[int], start: int) -> NDArray[np.float32]:
    """log p of tokens[start:], each given those before it: (n - start,) float32, natural log.

    start: at least 1, since nothing tells the first token. Waits for a running generation.
    Raises ContextOverflow when the tokens exceed n_ctx, ValueError on a start outside them,
    ModelError when the engine is closed or gives no numbers.
    """
    if not 1 <= start <= len(tokens):
        raise ValueError(f"start is {start}; it must be 1 to the number of tokens, {len(tokens)}")
    if len(tokens) > engine.n_ctx:
        raise ContextOverflow(
            f"the text has {len(tokens)} tokens, but n_ctx is {engine.n_ctx}; score a shorter one, "
            "or load the model with a larger n_ctx",
            prompt_tokens=len(tokens),
            n_ctx=engine.n_ctx,
        )
    found = np.empty(len(tokens) - start, np.float32)
    with engine._mine():
        keyed = list(zip(tokens, engine._adapters.sets(_STAGE, tokens), strict=True))
        cached = engine._prefixes.enter(_STAGE, keyed[:start])
        engine._prefixes.decode(keyed[cached:start])
        if start < len(tokens):
            found[0] = _log_p(engine, -1, tokens[start])
        for at in range(start, len(tokens) - 1, ROWS):
            part = keyed[at : min(at + ROWS, len(tokens) - 1)]
            engine._prefixes.decode(part, every=True)
            for i in range(len(part)):
                found[at + i + 1 - start] = _log_p(engine, i, tokens[at + i + 1])
    return found


def text_log_probs(engine: Engine, text: str) -> NDArray[np.float32]:
    """log p of each token of a text, the first after BOS: (n,) float32, natural log.

    A text longer than n_ctx is scored in windows that overlap by 64 tokens. Errors as `log_probs`.
    """
    tokens, bos = engine.tokenize(text), engine._vocabulary.bos
    found = np.empty(len(tokens), np.float32)
    start = 0
    while start < len(tokens):
        first = max(0, start - OVERLAP)
        end = min(len(tokens), first + engine.n_ctx - 1)
        found[start:end] = log_probs(engine, [bos, *tokens[first:end]], 1 + start - first)
        start = end
    return found


def offsets(engine: Engine, text: str) -> NDArray[np.int64]:
    """(n, 2) characters [start, end) of each of the model's tokens of a text, in order.

    A token that holds a part of a character spans all of it. Errors as `Engine.tokenize`.
    """
    tokens = np.asarray(engine.tokenize(text), np.int64)
    data = text.encode()
    sizes = engine._vocabulary.piece_bytes(tokens)
    ends = np.cumsum(sizes)
    # Some models put a space before any text, which no character of it stands for.
    ends -= int(len(ends) > 0 and ends[-1] == len(data) + 1)
    starts = ends - sizes
    if len(ends) and ends[-1] != len(data):
        starts, ends = _found(engine, tokens, data)
    spans = np.clip(np.stack([starts, ends], axis=1), 0, len(data))
    if text.isascii():
        return spans
    is_start = (np.frombuffer(data, np.uint8) & 0xC0) != 0x80
    chars = np.concatenate([[0], np.cumsum(is_start)])  # that begin before each byte
    begun = np.append(is_start, True)
    spans[:, 0] = chars[spans[:, 0]] - ~begun[spans[:, 0]]
    spans[:, 1] = chars[spans[:, 1]]
    return spans


def _found(
    engine: Engine, tokens: NDArray[np.int64], data: bytes
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Where each token's bytes are, one after the other.

    llama.cpp leaves out a byte that a vocabulary has no token for, such as 0xF1 with SmolLM2.
    """
    spans, at = np.empty((len(tokens), 2), np.int64), 0
    for i, token in enumerate(tokens.tolist()):
        piece = engine._vocabulary.piece(token)
        start = max(data.find(piece, at), at)
        at = min(start + len(piece), len(data))
        spans[i] = start, at
    return spans[:, 0], spans[:, 1]


def _log_p(engine: Engine, row: int, token: int) -> float:
    pointer = engine._lib.llama_get_logits_ith(engine._context, row)
    logits = np.ctypeslib.as_array(pointer, shape=(engine._vocabulary.size,))
    top = float(logits.max())
    if not np.isfinite(top):
        raise ModelError(
            f"{engine.path.name} gave no numbers to score a token by (the best is {top}); the file "
            "is damaged, or this machine computes it wrongly: check it with `edgemem models verify`"
        )
    return float(logits[token]) - top - float(np.log(np.exp(logits - top).sum()))
