"""What memories tell about a question, within a budget of tokens: context for a model of your own.

A selection: no text is embedded, and no model is asked. Which turns matter is what the search found
out, and which sentences of them the question's words say.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from edgemem.compression.compress import Compressed, Span, compress, relevance
from edgemem.compression.layout import estimated_tokens
from edgemem.pipeline.recall import evidence_of
from edgemem.results import Hit
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
    found = evidence_of(memory, question, hits, most=len(hits))
    found.sort(key=lambda evidence: evidence.when or "")
    sources = tuple(evidence.source for evidence in found if evidence.source is not None)
    lines = [head(evidence) + _OTHER_SPACE.sub(" ", evidence.text) for evidence in found]
    near = np.array([hit.score for hit in sources], np.float32)
    context = compress(
        lines,
        tokenizer,
        target_token=target_token,
        rate=rate,
        relevance=lambda layout: relevance(layout, question, turns=near),
        keep=keep,
    )
    return Condensed(context, sources)
