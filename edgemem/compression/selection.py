"""Which words of a text to keep within a budget of tokens, by scores.

Pure functions over arrays. Knows units, sentences and turns (layout.py), scores and token counts;
knows no model, no question and no tokenizer but the function that is given.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgemem.compression.layout import Layout
from edgemem.errors import InputError

__all__ = [
    "Selection",
    "Tokenize",
    "join",
    "pool",
    "select",
    "sentence_means",
    "turn_decay",
    "unit_means",
    "within",
]

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float32]
BoolArray = NDArray[np.bool_]

Tokenize = Callable[[str], IntArray]
"""(n, 2) characters [start, end) of each token of a text, in order, without BOS."""

KERNEL = 5
ENDS = 3  # tokens at either end of a sentence that are never pruned
SHORT = 8  # tokens of a sentence that is not pruned at all
GAP = 3  # units
SQUEEZED = 0.5  # share of a sentence's middle that must fit, or else it is left out
OLDEST = 0.6  # M_decay of the oldest turn; the most recent has 1.0


@dataclass(frozen=True, slots=True)
class Selection:
    """kept: (u,) which units. text: what is kept, joined. tokens: its length."""

    kept: BoolArray
    text: str
    tokens: int


def pool(scores: FloatArray, segment: IntArray) -> FloatArray:
    """AvgPool1D of Algorithm 2, kernel 5, within segments.

    scores: (n,) float32; segment: (n,) ascending numbers. At the edges of a segment the mean is of
    the neighbours that there are: nothing is padded (the paper leaves that open). O(n).
    """
    n, half = len(scores), KERNEL // 2
    first = np.searchsorted(segment, segment, "left")
    last = np.searchsorted(segment, segment, "right")
    at = np.arange(n)
    start, end = np.maximum(at - half, first), np.minimum(at + half + 1, last)
    sums = np.concatenate([[0.0], np.cumsum(scores, dtype=np.float64)])
    means: FloatArray = ((sums[end] - sums[start]) / np.maximum(end - start, 1)).astype(np.float32)
    return means


def turn_decay(turn: IntArray) -> FloatArray:
    """M_decay of eq. 4: from 0.6 for turn 0 to 1.0 for the last; 1.0 for a single one."""
    last = int(turn.max(initial=0))
    if last == 0:
        return np.ones(len(turn), np.float32)
    decay: FloatArray = (OLDEST + (1 - OLDEST) * turn / last).astype(np.float32)
    return decay


def unit_means(scores: FloatArray, unit: IntArray, n_units: int) -> FloatArray:
    """Mean score of each unit's tokens: (n_units,) float32, 0 where a unit has none."""
    counts = np.bincount(unit, minlength=n_units)
    sums = np.bincount(unit, weights=scores, minlength=n_units)
    return (sums / np.maximum(counts, 1)).astype(np.float32)


def sentence_means(layout: Layout, scores: FloatArray, weights: IntArray) -> FloatArray:
    """Mean score of each sentence's units, by weights such as their tokens: (s,) float32."""
    n = len(layout.turn)
    sums = np.bincount(layout.sentence, weights=scores * weights, minlength=n)
    counts = np.bincount(layout.sentence, weights=weights, minlength=n)
    return (sums / np.maximum(counts, 1)).astype(np.float32)


def select(
    layout: Layout,
    scores: FloatArray,
    costs: IntArray,
    budget: int,
    *,
    relevance: FloatArray | None = None,
    prune: float = 0.0,
    keep: BoolArray | None = None,
) -> BoolArray:
    """Which units to keep so that their costs sum to at most the budget: (u,) bool.

    scores: (u,) S_final of each unit. costs: (u,) tokens of each. relevance: (s,) of each sentence,
    larger is nearer to a question; it then orders the sentences, and scores only the words inside
    them. prune: share of a long sentence's middle, in tokens, that it loses from the start, lowest
    scores first. keep: units that survive whatever they cost, with what stands before their turn.

    Sentences are taken greedily, by relevance or else by the mean score of what is left of them.
    One that does not fit whole loses more of its middle, but at most half, or else it is left out.
    Gaps of at most 3 units between kept ones are filled with what is left of the budget, the
    highest scores first.
    Source: CoreMem 3.3; departs from its Algorithm 2, whose filled gaps exceed the budget.
    """
    sentence, head = layout.sentence, layout.head
    n_sentences = len(layout.turn)
    if not n_sentences:
        return np.zeros(0, bool)
    kept = np.zeros(len(scores), bool) if keep is None else keep.copy()
    turn_of_unit = layout.turn[sentence]
    open_turn = np.zeros(int(layout.turn[-1]) + 1, bool)
    open_turn[turn_of_unit[kept]] = True
    kept |= head & open_turn[turn_of_unit]
    head_cost = np.bincount(turn_of_unit, weights=costs * head, minlength=len(open_turn))

    body = ~head
    safe = _protected(layout, costs) | kept
    dropped = _lowest(sentence, scores, costs, body & ~safe, prune, n_sentences)
    stay = body & ~dropped
    near = sentence_means(layout, scores, costs * stay) if relevance is None else relevance
    order = np.argsort(-near, kind="stable")

    bounds = np.searchsorted(sentence, np.arange(n_sentences + 1)).tolist()
    missing = body & ~kept
    whole_cost = np.bincount(sentence, weights=costs * (stay & missing), minlength=n_sentences)
    least_cost = np.bincount(sentence, weights=costs * (safe & missing), minlength=n_sentences)
    wholes, leasts = whole_cost.astype(int).tolist(), least_cost.astype(int).tolist()
    heads, turns = head_cost.astype(int).tolist(), layout.turn.tolist()
    opened = open_turn.tolist()
    left = budget - int(costs[kept].sum())
    whole = np.zeros(n_sentences, bool)
    for s in order.tolist():
        room = left - (0 if opened[turns[s]] else heads[turns[s]])
        if wholes[s] <= room:
            whole[s] = True
            left = room - wholes[s]
        elif room >= leasts[s] + SQUEEZED * (wholes[s] - leasts[s]):
            part = slice(bounds[s], bounds[s + 1])
            chosen = _fitting(scores[part], costs[part], safe[part] & body[part], stay[part], room)
            kept[part] |= chosen
            left = room - int((costs[part] * (chosen & missing[part])).sum())
        else:
            continue
        opened[turns[s]] = True
    kept |= (stay & whole[sentence]) | (head & np.array(opened)[turn_of_unit])
    return _gaps_filled(kept, body, sentence, scores, costs, left)


def within(
    layout: Layout,
    tokenize: Tokenize,
    budget: int,
    choose: Callable[[int], BoolArray],
) -> Selection:
    """The first of `choose(b)`, b from the budget down, whose joined text fits the budget.

    Tokens merge and split where words were cut out, so costs of units only estimate those of the
    text. budget: tokens as `tokenize` counts them. Raises InputError if what `choose(0)` keeps, the
    spans that must survive, is too long.
    """
    aim = budget
    while True:
        kept = choose(aim)
        text = join(layout, kept)
        tokens = len(tokenize(text))
        if tokens <= budget:
            return Selection(kept, text, tokens)
        if aim <= 0:
            raise InputError(
                f"what is to be kept takes {tokens} tokens, and the budget is {budget}; give a "
                "larger budget, or keep less"
            )
        aim -= max(1, aim * (tokens - budget) // tokens)


def join(layout: Layout, kept: BoolArray) -> str:
    """The kept units in order: as they stood where neighbours are kept, else a space or, between
    turns, a line's end."""
    at = np.flatnonzero(kept)
    if not len(at):
        return ""
    turn = layout.turn[layout.sentence[at]]
    runs = np.flatnonzero(np.diff(at, prepend=-2) != 1)
    ends = np.append(runs[1:], len(at)) - 1
    pieces: list[str] = []
    text, before = layout.text, -1
    for a, b, first, last in zip(
        layout.starts[at[runs]].tolist(),
        layout.ends[at[ends]].tolist(),
        turn[runs].tolist(),
        turn[ends].tolist(),
        strict=True,
    ):
        if pieces:
            pieces.append(" " if first == before else "\n")
        pieces.append(text[a:b])
        before = last
    return "".join(pieces)


def _protected(layout: Layout, costs: IntArray) -> BoolArray:
    """Units that a kept sentence keeps: its ends, negations, and all of a short one."""
    body_costs = np.where(layout.head, 0, costs)
    after = np.cumsum(body_costs)
    before = after - body_costs
    starts = np.flatnonzero(np.diff(layout.sentence, prepend=-1))
    ends = np.append(starts[1:], len(costs)) - 1
    length = after[ends] - before[starts]
    from_start = before - before[starts][layout.sentence]
    to_end = after[ends][layout.sentence] - after
    short = (length <= SHORT)[layout.sentence]
    protected: BoolArray = short | (from_start < ENDS) | (to_end < ENDS) | layout.fixed
    return protected


def _lowest(
    sentence: IntArray,
    scores: FloatArray,
    costs: IntArray,
    middle: BoolArray,
    share: float,
    n_sentences: int,
) -> BoolArray:
    """Of each sentence's middle the lowest scores, at most a share of its tokens."""
    dropped = np.zeros(len(scores), bool)
    at = np.flatnonzero(middle)
    if share <= 0 or not len(at):
        return dropped
    at = at[np.lexsort((scores[at], sentence[at]))]
    of = sentence[at]
    running = np.cumsum(costs[at])
    total = np.bincount(of, weights=costs[at], minlength=n_sentences)
    base = np.concatenate([[0.0], np.cumsum(total)])[of]
    dropped[at] = running - base <= share * total[of]
    return dropped


def _fitting(
    scores: FloatArray, costs: IntArray, safe: BoolArray, stay: BoolArray, room: int
) -> BoolArray:
    """What must stay of a sentence and the best of the rest that fits: (units of it,) bool."""
    chosen = safe.copy()
    rest = np.flatnonzero(stay & ~safe)
    rest = rest[np.argsort(-scores[rest], kind="stable")]
    fits = np.cumsum(costs[rest]) <= room - int(costs[safe].sum())
    chosen[rest[fits]] = True
    return chosen


def _gaps_filled(
    kept: BoolArray,
    body: BoolArray,
    sentence: IntArray,
    scores: FloatArray,
    costs: IntArray,
    left: int,
) -> BoolArray:
    """With units of short gaps inside sentences taken back, the best gap first, while they fit."""
    at = np.flatnonzero(kept)
    if left <= 0 or len(at) < 2:
        return kept
    gap = np.diff(at) - 1
    here = np.flatnonzero((gap > 0) & (gap <= GAP) & (sentence[at[1:]] == sentence[at[:-1]]))
    spans = [(int(at[i]) + 1, int(at[i + 1])) for i in here.tolist()]
    spans.sort(key=lambda span: (-float(scores[slice(*span)].mean()), span))
    for start, end in spans:
        cost = int(costs[start:end].sum())
        if cost <= left and body[start:end].all():
            kept[start:end] = True
            left -= cost
    return kept
