"""What memories tell about a question, within a budget of tokens: context for a model of your own.

A look-up and a selection: no text is embedded, and no model is asked. Which turns matter is what
the search found out, which sentences of them the question's words say, and which words of these
the sensitivities that `ahead.py` stored, where it has come so far.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from edgemem.compression.compress import (
    Compressed,
    Scores,
    Span,
    budget_of,
    compress,
    joined,
    relevance,
)
from edgemem.compression.layout import estimated_tokens
from edgemem.pipeline.recall import evidence_of
from edgemem.results import Evidence, Hit
from edgemem.stages.evidence import head

if TYPE_CHECKING:
    from edgemem.memory import Memory

__all__ = ["Condensed", "condense"]

_OTHER_SPACE = re.compile(r"[^\S ]")


@dataclass(frozen=True, slots=True)
class Condensed:
    """A context and where it is from: hits[span.source] is the memory of each of its spans."""

    context: Compressed
    hits: tuple[Hit, ...]


def condense(
    memory: Memory,
    question: str,
    hits: Sequence[Hit],
    *,
    target_token: int | None = None,
    rate: float | None = None,
    keep: Sequence[str | Span] = (),
    tokenizer: Callable[[str], NDArray[np.int64]] = estimated_tokens,
) -> Condensed:
    """What hits of a search say that tells most about a question, oldest first, a line for each.

    Give one of target_token and rate; keep, tokenizer: see `compress_prompt`, but that an upper
    estimate counts the tokens by default. Left out is what `recall` leaves out. Raises InputError
    as `compress_prompt`, StoreError.
    """
    started = time.perf_counter()
    found = evidence_of(memory, question, hits, most=len(hits))
    found.sort(key=lambda evidence: evidence.when or "")
    sources = tuple(evidence.source for evidence in found if evidence.source is not None)
    heads = [head(evidence) for evidence in found]
    # Each space for itself, so that the stored places of tokens stay right.
    bodies = [_OTHER_SPACE.sub(" ", evidence.text) for evidence in found]
    lines = [head + body for head, body in zip(heads, bodies, strict=True)]
    tokens = tokenizer("\n".join(lines))
    near = np.array([hit.score for hit in sources], np.float32)
    context = compress(
        lines,
        _stored_scores(memory, found, heads, lines),
        tokenizer,
        budget_of(target_token, rate, len(tokens)),
        tokens=tokens,
        relevance=lambda layout: relevance(layout, question, turns=near),
        keep=keep,
    )
    return Condensed(replace(context, seconds=time.perf_counter() - started), sources)


def _stored_scores(
    memory: Memory, found: Sequence[Evidence], heads: Sequence[str], lines: Sequence[str]
) -> Scores:
    """The scores of the lines' tokens, as far as they were made ahead of time."""
    stored = memory.store.sensitivities([e.turn for e in found if e.turn is not None])
    parts, start = [], 0
    for evidence, before, line in zip(found, heads, lines, strict=True):
        known = stored.get(evidence.turn or "")
        if known is not None and known.offsets[:, 1].max(initial=0) <= len(evidence.text):
            offsets = known.offsets.astype(np.int64)
            parts.append((start + len(before), Scores(offsets, known.values, "fisher")))
        start += len(line) + 1
    return joined(parts)
