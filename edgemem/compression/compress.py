"""Cuts a context down to the part that fits a token budget: `compress_prompt`, or `compress`.

Below them, in the order they are used: the scores of tokens (`Scores`) and units (S_final), the
relevance of sentences to a question (`relevance`), and which units are kept (`select`,
`fit_to_budget`).
Source: CoreMem 3.3; the names are LLMLingua's.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from edgemem.compression.layout import Layout, lay_out, masks
from edgemem.errors import InputError, ModelError
from edgemem.kernels import BoolArray, DoubleArray, FloatArray, IntArray
from edgemem.language import STOP_WORDS, asks, content_words, same_word, words

if TYPE_CHECKING:
    from edgemem.runtime.embedder import Embedder
    from edgemem.runtime.engine import Engine

__all__ = ["Compressed", "Scores", "Span", "Tokenize", "compress", "compress_prompt", "fdtd"]


Tokenize = Callable[[str], IntArray]
"""(n, 2) characters [start, end) of each token of a text, in order, without BOS."""

KERNEL = 5
ENDS = 3  # tokens at either end of a sentence that are never pruned
SHORT = 8  # a sentence of at most so many tokens is not pruned at all
SQUEEZED = 0.5  # share of a sentence's middle that must fit, or else the sentence is left out

# The weights in `relevance`, chosen by how many words of the answers were kept, on LoCoMo's eight
# conversations (bench/LOG.md).
_SENTENCE, _TURN = 1.5, 0.5  # of cosines
_ASKED, _ASKED_OF_TURN = 0.3, 0.5  # of the shares of the question's words
_NEW = 0.25  # of the logarithm of how many other words there are
_ASKS = 0.1  # subtracted if the sentence is a question itself


@dataclass(frozen=True, slots=True)
class Span:
    """Characters [start, end) of one of the given texts. source: the text's number, from 0."""

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
        spans = [[s.source, s.start, s.end] for s in self.spans]
        return {**asdict(self), "spans": spans, "ratio": self.ratio, "rate": self.rate}


def compress_prompt(
    context: str | Sequence[str],
    question: str = "",
    *,
    target_token: int | None = None,
    rate: float | None = None,
    keep: Sequence[str | Span] = (),
    engine: Engine | None = None,
    embedder: Embedder | None = None,
    tokenizer: Tokenize | None = None,
) -> Compressed:
    """The most informative part of a context, in its order, within a token budget.

    context: a text, or texts such as memories; each line of a text is a turn. question: what the
    context is to answer; sentences near to it are kept first. Give either target_token, the most
    tokens of the result, or rate, the share of the context's tokens, above 0 and at most 1. keep:
    texts that are kept wherever they occur, or spans. engine, embedder: None loads the default ones
    for this call alone. With a question the relevance to it alone decides; without one, `fdtd`
    scores the tokens under the engine's model. tokenizer: the receiving model's
    (runtime/embedder.py); None is the engine's.
    Raises InputError on a bad budget, a `keep` that the context lacks or that exceeds the budget,
    or half of a surrogate pair; ModelNotFound or ModelError from the models.
    """
    asked = bool(question.strip())
    with ExitStack() as loaded:
        if engine is None and (tokenizer is None or not asked):
            from edgemem.runtime.engine import Engine

            engine = loaded.enter_context(Engine.load())
        if tokenizer is None:
            assert engine is not None
            tokenizer = engine.token_offsets

        def near(layout: Layout) -> FloatArray:
            from edgemem.runtime.embedder import Embedder

            return relevance(layout, question, embedder or Embedder.load())

        return compress(
            [context] if isinstance(context, str) else list(context),
            tokenizer,
            target_token=target_token,
            rate=rate,
            scorer=None if asked or engine is None else partial(fdtd, engine),
            relevance=near if asked else None,
            keep=keep,
        )


def compress(
    texts: Sequence[str],
    tokenizer: Tokenize,
    *,
    target_token: int | None = None,
    rate: float | None = None,
    scorer: Callable[[str], Scores] | None = None,
    relevance: Callable[[Layout], FloatArray] | None = None,
    keep: Sequence[str | Span] = (),
) -> Compressed:
    """`compress_prompt` of texts, which are joined by line ends, without loading a model.

    scorer: scores the tokens of the joined text; None: all are equal. relevance: returns (s,), of
    each sentence of a layout; see `select`. Neither is called if everything fits. Raises InputError
    as `compress_prompt`.
    """
    started = time.perf_counter()
    text = "\n".join(texts)
    tokens = tokenizer(text)
    budget = budget_of(target_token, rate, len(tokens))
    starts = np.cumsum([0, *(len(t) + 1 for t in texts)])
    wanted = _spans_to_keep(text, texts, starts, keep)
    spans = tuple(Span(i, 0, len(t)) for i, t in enumerate(texts) if t)
    shorter, left, method = text, len(tokens), "none"
    if len(tokens) > budget:
        scores = None if scorer is None else scorer(text)
        method = "none" if scores is None else scores.method
        layout = lay_out(text, whole=wanted)
        costs = np.bincount(layout.unit_of(tokens[:, 1]), minlength=len(layout.starts))
        choose = partial(
            select,
            layout,
            final_scores(layout, scores),
            costs,
            relevance=None if relevance is None else relevance(layout),
            keep=layout.units_over(wanted),
        )
        units, shorter, left = fit_to_budget(layout, tokenizer, budget, choose)
        spans = _spans(layout, units, starts)
    return Compressed(shorter, len(tokens), left, spans, method, time.perf_counter() - started)


def budget_of(target_token: int | None, rate: float | None, tokens: int) -> int:
    """How many of `tokens` may be kept. Raises InputError unless exactly one limit is given."""
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


def _spans_to_keep(
    text: str, texts: Sequence[str], starts: IntArray, keep: Sequence[str | Span]
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
        before, after = (r"\b" if item[i : i + 1 or None].isalnum() else "" for i in (0, -1))
        whole_words = re.finditer(f"{before}{re.escape(item)}{after}", text)
        places = [m.span() for m in whole_words] if item.strip() else []
        if not places:
            raise InputError(
                f"keep has {item!r:.80}, which the context does not say; give its words"
            )
        found += places
    return found


def _spans(layout: Layout, kept: BoolArray, starts: IntArray) -> tuple[Span, ...]:
    """The runs of kept units, each as a span of its text."""
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


@dataclass(frozen=True, slots=True)
class Scores:
    """The scores of a text's tokens, and how they were computed (`method`).

    offsets: (n, 2) int64 characters [start, end) of each token, in order. values: (n,) float32,
    >= 0.
    """

    offsets: IntArray
    values: FloatArray
    method: str


def fdtd(engine: Engine, text: str, question: str = "") -> Scores:
    """The Fisher score S(x_i) of each token of a text, CoreMem eq. 3, under the engine's model.

    question: the loss is that of the question after the text; without one, that of the text itself.
    The model's file is mapped a second time for this call. If the gradient of its architecture is
    not known here, the scores are -log p. Errors as `fisher`.
    """
    from edgemem.compression.fisher import Model, fisher

    try:
        model = Model(engine.path)
    except ModelError:  # an unsupported architecture: the engine has read the file, so it is whole
        return self_information(engine, text)
    with model:
        worth = fisher(model, engine, text, question)
    return Scores(engine.token_offsets(text), worth, "fisher")


def self_information(engine: Engine, text: str) -> Scores:
    """-log p of each token, given those before it, in nats (SelectiveContext). Errors as
    `Engine.tokenize`."""
    return Scores(engine.token_offsets(text), -engine.text_log_probs(text), "self_information")


def final_scores(layout: Layout, scores: Scores | None) -> FloatArray:
    """S_final of eq. 4 for each unit of a layout: (u,) float32. Without scores all units have 1.

    Token scores are pooled over five tokens, multiplied by the masks, and averaged over each unit.
    Source: CoreMem eq. 4 and Algorithm 2, lines 10 and 11; departs from them by scoring whole
    words, and by leaving out M_decay, because a question may ask for something of any age.
    """
    if scores is None or not len(scores.values) or not len(layout.starts):
        return np.ones(len(layout.starts), np.float32)
    smooth = avg_pool(scores.values) * masks(layout.text, scores.offsets)
    return group_means(smooth, layout.unit_of(scores.offsets[:, 1]), len(layout.starts))


def relevance(layout: Layout, question: str, embedder: Embedder) -> FloatArray:
    """The relevance of each sentence to a question: (s,) float32, larger is more relevant.

    The cosine of the sentence (with its speaker) counts most, and the best cosine in its turn a
    third as much. Then come the shares of the question's words that the sentence and its turn have,
    and the logarithm of how many other words the sentence has: "Yes, me too!" is near to much and
    tells nothing. A sentence that is a question itself loses a little.
    """
    bodies, speakers = sentence_texts(layout)
    turn = layout.turn
    asked = list(dict.fromkeys(content_words(question)))
    said = [set(words(body)) for body in bodies]
    in_turn = [set(words(speaker)) for speaker in speakers]
    for t, found in zip(turn.tolist(), said, strict=True):
        in_turn[t] |= found
    new = [len(found - STOP_WORDS - {*asked}) for found in said]
    score = _ASKED * _shares(asked, said) + _ASKED_OF_TURN * _shares(asked, in_turn)[turn]
    score += _NEW * np.log1p(new) - _ASKS * np.array(list(map(asks, bodies)))
    if bodies:
        shown = [f"{speakers[t]} {b}" for t, b in zip(turn.tolist(), bodies, strict=True)]
        vectors = embedder.embed([question, *shown])
        cosines = vectors[1:] @ vectors[0]
        best = np.full(len(speakers), -1.0, np.float32)
        np.maximum.at(best, turn, cosines)
        score += _SENTENCE * cosines + _TURN * best[turn]
    return score.astype(np.float32)


def sentence_texts(layout: Layout) -> tuple[list[str], list[str]]:
    """Each sentence's text without the head, and the last unit of each turn's head, as "Ana:"."""
    n_turns = int(layout.turn.max(initial=-1)) + 1
    bodies, speakers = [""] * len(layout.turn), [""] * n_turns
    begins: dict[int, int] = {}
    units = zip(layout.starts, layout.ends, layout.sentence, layout.head, strict=True)
    for start, end, sentence, head in units:
        if head:
            # The last unit of a head is kept, since a date comes before the speaker.
            speakers[layout.turn[sentence]] = layout.text[start:end]
        else:
            bodies[sentence] = layout.text[begins.setdefault(sentence, start) : end]
    return bodies, speakers


def _shares(asked: list[str], said: list[set[str]]) -> DoubleArray:
    """The share of the words `asked`, or other forms of them, that each set of `said` has."""
    if not asked:
        return np.zeros(len(said))
    # Forms of a word begin alike, which is quick to check.
    starts = {w[:3] for w in asked}
    near = [o for o in set().union(*said) if o[:3] in starts]
    forms = [{o for o in near if o[:3] == w[:3] and same_word(w, (o,))} for w in asked]
    return np.array([sum(not f.isdisjoint(s) for f in forms) for s in said]) / len(asked)


def avg_pool(scores: FloatArray) -> FloatArray:
    """AvgPool1D of Algorithm 2, kernel 5: (n,) float32.

    At the ends, the mean is of the existing neighbours, without padding (the paper leaves it open).
    """
    kernel, n = np.ones(KERNEL, np.float32), len(scores)
    sums, counts = (np.convolve(x, kernel)[KERNEL // 2 :][:n] for x in (scores, np.ones(n)))
    return (sums / counts).astype(np.float32)


def group_means(
    values: FloatArray, group: IntArray, n: int, weights: IntArray | None = None
) -> FloatArray:
    """The weighted mean of each of n groups of values: (n,) float32, 0 where a group has none."""
    weights = np.ones(len(values), np.int64) if weights is None else weights
    sums = np.bincount(group, weights=values * weights, minlength=n)
    counts = np.bincount(group, weights=weights, minlength=n)
    return (sums / np.maximum(counts, 1)).astype(np.float32)


def select(
    layout: Layout,
    scores: FloatArray,
    costs: IntArray,
    budget: int,
    *,
    relevance: FloatArray | None = None,
    keep: BoolArray | None = None,
) -> BoolArray:
    """Which units to keep so that their costs sum to at most the budget: (u,) bool.

    scores: (u,) S_final of each unit. costs: (u,) tokens of each. relevance: (s,) of each sentence,
    larger is more relevant; it then orders the sentences, and scores only order the units inside
    them. keep: (u,) units that are kept whatever they cost, together with the heads of their turns.

    Sentences are taken greedily, by relevance or else by their mean score. A sentence that does not
    fit loses the units of its middle with the lowest scores. If it would lose more than half of its
    middle, the sentence is left out. Source: CoreMem 3.3; departs from it in that a sentence that
    fits is never pruned, so no gap needs filling.
    """
    sentence, head, n_sentences = layout.sentence, layout.head, len(layout.turn)
    if not n_sentences:
        return np.zeros(0, bool)
    kept = np.zeros(len(scores), bool) if keep is None else keep.copy()
    turn_of_unit, turns = layout.turn[sentence], layout.turn.tolist()
    opened = np.zeros(turns[-1] + 1, bool)
    opened[turn_of_unit[kept]] = True
    kept |= head & opened[turn_of_unit]

    body = ~head
    missing, protected = body & ~kept, _protected(layout, costs) | kept
    priority = relevance
    if priority is None:
        priority = group_means(scores, sentence, n_sentences, costs * body)

    def cost_by(group: IntArray, units: BoolArray) -> list[int]:
        by_group: list[int] = np.bincount(group, weights=costs * units).astype(int).tolist()
        return by_group

    head_costs = cost_by(turn_of_unit, head)
    full_costs = cost_by(sentence, missing)
    least_costs = cost_by(sentence, protected & missing)
    bounds = np.searchsorted(sentence, np.arange(n_sentences + 1)).tolist()
    left = budget - int(costs[kept].sum())
    taken_whole = np.zeros(n_sentences, bool)
    for s in np.argsort(-priority, kind="stable").tolist():
        turn = turns[s]
        room = left if opened[turn] else left - head_costs[turn]
        if full_costs[s] <= room:
            taken_whole[s] = True
            left = room - full_costs[s]
        elif room >= least_costs[s] + SQUEEZED * (full_costs[s] - least_costs[s]):
            part = slice(bounds[s], bounds[s + 1])
            middle = bounds[s] + np.flatnonzero((missing & ~protected)[part])
            middle = middle[np.argsort(-scores[middle], kind="stable")]
            middle = middle[np.cumsum(costs[middle]) <= room - least_costs[s]]
            kept[part] |= (body & protected)[part]
            kept[middle] = True
            left = room - least_costs[s] - int(costs[middle].sum())
        else:
            continue
        opened[turn] = True
    return kept | (body & taken_whole[sentence]) | (head & opened[turn_of_unit])


def fit_to_budget(
    layout: Layout, tokenize: Tokenize, budget: int, choose: Callable[[int], BoolArray]
) -> tuple[BoolArray, str, int]:
    """Lowers b from the budget until the joined text of `choose(b)` fits the budget.

    Returns the units that `choose(b)` keeps, their text and its number of tokens. Tokens merge and
    split where words were cut out, so the units' costs only estimate the text's. budget: tokens as
    `tokenize` counts them. Raises InputError if `choose(0)`, which keeps only the spans that must
    survive, is too long.
    """
    aim = budget
    while True:
        kept = choose(aim)
        text = join(layout, kept)
        tokens = len(tokenize(text))
        if tokens <= budget:
            return kept, text, tokens
        if aim <= 0:
            raise InputError(
                f"what is to be kept takes {tokens} tokens, and the budget is {budget}; give a "
                "larger budget, or keep less"
            )
        aim -= max(1, aim * (tokens - budget) // tokens)


def join(layout: Layout, kept: BoolArray) -> str:
    """The text of the kept units, in order.

    Neighbours keep the text between them; a gap becomes a space or, between turns, a line end.
    """
    pieces: list[str] = []
    turn, last = layout.turn[layout.sentence], -1
    for unit in np.flatnonzero(kept).tolist():
        if unit == last + 1 and pieces:
            pieces.append(layout.text[layout.ends[last] : layout.starts[unit]])
        elif pieces:
            pieces.append(" " if turn[unit] == turn[last] else "\n")
        pieces.append(layout.text[layout.starts[unit] : layout.ends[unit]])
        last = unit
    return "".join(pieces)


def _protected(layout: Layout, costs: IntArray) -> BoolArray:
    """Units that are never pruned from a sentence: its ends, negations, all of a short one."""
    of, inside = layout.sentence, np.where(layout.head, 0, costs)
    before = np.cumsum(inside) - inside
    from_start = before - before[np.searchsorted(of, of)]
    length = np.bincount(of, weights=inside)[of]
    to_end = length - from_start - inside
    protected: BoolArray = (length <= SHORT) | (from_start < ENDS) | (to_end < ENDS) | layout.fixed
    return protected
