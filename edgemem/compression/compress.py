"""A context in, the part of it that fits a budget out: `compress_prompt`, and `compress` without
models.

Knows scores, relevance and selection; knows no memories. The names are LLMLingua's.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from edgemem.compression.layout import Layout, lay_out
from edgemem.compression.relevance import relevance
from edgemem.compression.scores import Scores, final_scores, fisher, self_information
from edgemem.compression.selection import Tokenize, select, within
from edgemem.errors import InputError, ModelError

if TYPE_CHECKING:
    from edgemem.runtime.embedder import Embedder
    from edgemem.runtime.engine import Engine

__all__ = ["Compressed", "Span", "budget_of", "compress", "compress_prompt"]


@dataclass(frozen=True, slots=True)
class Span:
    """Characters [start, end) of one of the given texts. source: its number, from 0."""

    source: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Compressed:
    """A compressed context and what it took.

    origin_tokens, compressed_tokens: as the receiving model counts them. ratio: origin over
    compressed, as LLMLingua has it: 2.0 is half; rate is its inverse. spans: which characters were
    kept, in order. method: where the tokens' scores came from ("none": all fits, or the question
    alone decided).
    """

    compressed_prompt: str
    origin_tokens: int
    compressed_tokens: int
    spans: tuple[Span, ...]
    method: str
    seconds: float

    @property
    def ratio(self) -> float:
        return self.origin_tokens / max(1, self.compressed_tokens) if self.origin_tokens else 1.0

    @property
    def rate(self) -> float:
        return self.compressed_tokens / self.origin_tokens if self.origin_tokens else 1.0

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it; each span is [source, start, end]."""
        return {
            "compressed_prompt": self.compressed_prompt,
            "origin_tokens": self.origin_tokens,
            "compressed_tokens": self.compressed_tokens,
            "ratio": self.ratio,
            "rate": self.rate,
            "spans": [[s.source, s.start, s.end] for s in self.spans],
            "method": self.method,
            "seconds": self.seconds,
        }


def compress_prompt(
    context: str | Sequence[str],
    question: str = "",
    *,
    target_token: int | None = None,
    rate: float | None = None,
    keep: Sequence[str | Span] = (),
    engine: Engine | None = None,
    embedder: Embedder | None = None,
    scorer: Callable[[str], Scores] | None = None,
    exact: bool = False,
    tokenizer: Tokenize | None = None,
) -> Compressed:
    """The part of a context that tells most, in its order, within a budget of tokens.

    context: a text, or texts such as memories; each line of one is a turn. question: what the
    context is to answer; sentences near to it are kept first. Give one of target_token, the most
    tokens of the result, and rate, their share of the context's, above 0 and at most 1. keep: texts
    that survive wherever they stand, or spans. engine, embedder: None loads the default ones for
    this call alone. scorer: what tokens are worth. None: where there is a question, its nearness
    alone decides, which keeps as much and takes a twentieth of the time (bench/LOG.md); without
    one, or with `exact`, the exact Fisher score under the engine's model, or -log p where its
    gradient is not known here. tokenizer: how the receiving model cuts a text
    (runtime/embedder.py); None is the engine's way.
    Raises InputError on a bad budget, a `keep` that is not there or exceeds the budget, or half of
    a surrogate pair; ModelNotFound, ModelError.
    """
    started = time.perf_counter()
    texts = [context] if isinstance(context, str) else list(context)
    joined = "\n".join(texts)
    exact = exact or not question.strip()
    with ExitStack() as loaded:
        if engine is None and (tokenizer is None or (scorer is None and exact)):
            from edgemem.runtime.engine import Engine

            engine = loaded.enter_context(Engine.load())
        if tokenizer is None:
            assert engine is not None
            tokenizer = engine.token_offsets
        tokens = tokenizer(joined)
        budget = budget_of(target_token, rate, len(tokens))
        scores, near = Scores.none(), None
        if len(tokens) > budget:
            if scorer is not None:
                scores = scorer(joined)
            elif exact:
                assert engine is not None
                scores = _exact(engine, joined)
            if question.strip():
                near = _nearness(question, embedder)
        found = compress(texts, scores, tokenizer, budget, tokens=tokens, relevance=near, keep=keep)
    return replace(found, seconds=time.perf_counter() - started)


def compress(
    texts: Sequence[str],
    scores: Scores,
    tokenizer: Tokenize,
    budget: int,
    *,
    tokens: NDArray[np.int64] | None = None,
    relevance: Callable[[Layout], NDArray[np.float32]] | None = None,
    keep: Sequence[str | Span] = (),
    prune: float = 0.0,
) -> Compressed:
    """`compress_prompt` without models: scores are given, and nothing is embedded.

    texts: they are joined by line ends; scores: of the tokens of that. tokens: what `tokenizer`
    says of it, if that is known. relevance: gives (s,) of a layout's sentences. relevance, prune:
    see `select`.
    Raises InputError as `compress_prompt`.
    """
    started = time.perf_counter()
    text = "\n".join(texts)
    tokens = tokenizer(text) if tokens is None else tokens
    starts = np.cumsum([0, *(len(t) + 1 for t in texts)])
    wanted = _wanted(text, texts, starts, keep)
    if len(tokens) <= budget:
        spans = tuple(Span(i, 0, len(t)) for i, t in enumerate(texts) if t)
        spent = time.perf_counter() - started
        return Compressed(text, len(tokens), len(tokens), spans, "none", spent)
    layout = lay_out(text, whole=wanted)
    costs = np.bincount(layout.unit_of(tokens[:, 1]), minlength=len(layout.starts))
    worth = final_scores(layout, scores, decay=relevance is None)
    near = None if relevance is None else relevance(layout)
    kept = layout.units_over(wanted)
    found = within(
        layout,
        tokenizer,
        budget,
        lambda aim: select(layout, worth, costs, aim, relevance=near, keep=kept, prune=prune),
    )
    return Compressed(
        found.text,
        len(tokens),
        found.tokens,
        _spans(layout, found.kept, starts),
        scores.method,
        time.perf_counter() - started,
    )


def _exact(engine: Engine, text: str) -> Scores:
    from edgemem.compression.sensitivity import Scorer

    try:
        scorer = Scorer.load(engine.path)
    except ModelError:  # a family without a gradient here: the engine has read the file itself
        return self_information(engine, text)
    with scorer:
        return fisher(scorer, engine, text)


def _nearness(question: str, embedder: Embedder | None) -> Callable[[Layout], NDArray[np.float32]]:
    if embedder is None:
        from edgemem.runtime.embedder import Embedder

        embedder = Embedder.load()
    return lambda layout: relevance(layout, question, embedder)


def budget_of(target_token: int | None, rate: float | None, tokens: int) -> int:
    """Tokens that may be kept of so many. Raises InputError unless one of the two is given."""
    if (target_token is None) == (rate is None):
        raise InputError(
            f"target_token is {target_token} and rate is {rate}; give one of the two: the most "
            "tokens of the result, or their share of the context's"
        )
    if rate is not None:
        if not 0 < rate <= 1:
            raise InputError(f"rate is {rate}; it must be above 0 and at most 1, such as 0.5")
        return math.floor(rate * tokens)
    assert target_token is not None
    if target_token < 1:
        raise InputError(f"target_token is {target_token}; it must be at least 1")
    return target_token


def _wanted(
    text: str, texts: Sequence[str], starts: NDArray[np.int64], keep: Sequence[str | Span]
) -> list[tuple[int, int]]:
    """The spans of the joined text that must survive."""
    found = []
    for item in keep:
        if isinstance(item, Span):
            if not (0 <= item.source < len(texts)) or not (
                0 <= item.start < item.end <= len(texts[item.source])
            ):
                raise InputError(
                    f"keep has {item}, which is no part of the {len(texts)} texts given; give "
                    "0 <= start < end within one of them"
                )
            base = int(starts[item.source])
            found.append((base + item.start, base + item.end))
            continue
        places = [m.span() for m in _words(item).finditer(text)] if item.strip() else []
        if not places:
            raise InputError(
                f"keep has {item!r:.80}, which the context does not say; give its words"
            )
        found += places
    return found


def _words(item: str) -> re.Pattern[str]:
    """A text as whole words: "Mel" is not in "Melanie"."""
    before = r"(?<!\w)" if item[0].isalnum() else ""
    after = r"(?!\w)" if item[-1].isalnum() else ""
    return re.compile(f"{before}{re.escape(item)}{after}")


def _spans(layout: Layout, kept: NDArray[np.bool_], starts: NDArray[np.int64]) -> tuple[Span, ...]:
    """Runs of kept units as characters of the text that each is of."""
    at = np.flatnonzero(kept)
    if not len(at):
        return ()
    source = np.searchsorted(starts, layout.starts[at], "right") - 1
    new = (np.diff(at, prepend=-2) != 1) | (np.diff(source, prepend=-1) != 0)
    first = np.flatnonzero(new)
    last = np.append(first[1:], len(at)) - 1
    base = starts[source[first]]
    rows = (source[first], layout.starts[at[first]] - base, layout.ends[at[last]] - base)
    return tuple(Span(*row) for row in zip(*(r.tolist() for r in rows), strict=True))
