"""A context in, the part of it that fits a budget out: `compress_prompt`, and `compress` without
models.

Below them, in the order they are used: what a token is worth (`Scores`, S_final), what a sentence
has to do with a question (`relevance`), and which units are kept (`select`, `within`).
Source: CoreMem 3.3; the names are LLMLingua's.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from edgemem.compression.layout import Layout, lay_out, masks
from edgemem.errors import InputError, ModelError
from edgemem.language import STOP_WORDS, asks, content_words, same_word, words

if TYPE_CHECKING:
    from edgemem.compression.sensitivity import Scorer
    from edgemem.runtime.embedder import Embedder
    from edgemem.runtime.engine import Engine

__all__ = [
    "Compressed",
    "Scores",
    "Selection",
    "Span",
    "Tokenize",
    "budget_of",
    "compress",
    "compress_prompt",
    "final_scores",
    "fisher",
    "join",
    "joined",
    "pool",
    "relevance",
    "select",
    "self_information",
    "sentence_means",
    "sentence_texts",
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

# Chosen by the answers' words that were kept, on LoCoMo's eight conversations (bench/LOG.md).
_SENTENCE, _TURN = 1.5, 0.5  # of cosines
_ASKED, _ASKED_OF_TURN = 0.3, 0.5  # of the shares of the question's words
_NEW = 0.25  # of the logarithm of how many other words there are
_ASKS = 0.1  # what a sentence loses that is itself a question


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
                if embedder is None:
                    from edgemem.runtime.embedder import Embedder

                    embedder = Embedder.load()
                near = partial(relevance, question=question, embedder=embedder)
        found = compress(texts, scores, tokenizer, budget, tokens=tokens, relevance=near, keep=keep)
    return replace(found, seconds=time.perf_counter() - started)


def compress(
    texts: Sequence[str],
    scores: Scores,
    tokenizer: Tokenize,
    budget: int,
    *,
    tokens: IntArray | None = None,
    relevance: Callable[[Layout], FloatArray] | None = None,
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


def _spans(layout: Layout, kept: BoolArray, starts: IntArray) -> tuple[Span, ...]:
    """Runs of kept units, each as characters of its text."""
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
    """offsets: (n, 2) int64 characters [start, end) of tokens of a text, in order. values: (n,)
    float32 >= 0, what each is worth. method: how they were made."""

    offsets: IntArray
    values: FloatArray
    method: str

    @classmethod
    def none(cls) -> Scores:
        """Of no token."""
        return cls(np.empty((0, 2), np.int64), np.empty(0, np.float32), "none")


def fisher(scorer: Scorer, engine: Engine, text: str) -> Scores:
    """S(x_i) of each token of a text, exact. engine: of the same model, for its tokens. Errors
    as `Scorer.sensitivity` and `Engine.tokenize`; a text without tokens has none."""
    tokens = engine.tokenize(text)
    if not tokens:
        return Scores.none()
    return Scores(engine.token_offsets(text), scorer.sensitivity(tokens).scores, "fisher")


def self_information(engine: Engine, text: str) -> Scores:
    """-log p of each token, given those before it, in nats (SelectiveContext). Errors as
    `Engine.tokenize`."""
    return Scores(engine.token_offsets(text), -engine.text_log_probs(text), "self_information")


def joined(parts: Sequence[tuple[int, Scores]]) -> Scores:
    """The scores of a text of which parts were scored, such as turns when they were stored.

    parts: where each part begins in the text, ascending, and its scores. What stands between the
    parts has no score.
    """
    if not parts:
        return Scores.none()
    return Scores(
        np.concatenate([start + s.offsets for start, s in parts]),
        np.concatenate([s.values for _, s in parts]),
        parts[0][1].method,
    )


def final_scores(layout: Layout, scores: Scores, *, decay: bool = True) -> FloatArray:
    """S_final of eq. 4 for each unit of a layout: (u,) float32. Without scores all units have 1.

    Pooled over five tokens within a turn, times the masks, averaged over a unit's tokens, times the
    turn's decay. decay: M_decay; what a question asks for may be of any age.
    Source: CoreMem eq. 4 and Algorithm 2, lines 10 and 11; departs from them in the edges of the
    pooling, and in whole words.
    """
    n_units = len(layout.starts)
    if not len(scores.values) or not n_units:
        return np.ones(n_units, np.float32)
    unit = layout.unit_of(scores.offsets[:, 1])
    turn = layout.turn[layout.sentence]
    smooth = pool(scores.values, turn[unit]) * masks(layout.text, scores.offsets)
    final = unit_means(smooth, unit, n_units)
    return final * turn_decay(layout.turn)[layout.sentence] if decay else final


def relevance(
    layout: Layout,
    question: str,
    embedder: Embedder | None = None,
    *,
    turns: FloatArray | None = None,
) -> FloatArray:
    """(s,) float32, larger is nearer to the question, and has more to say about it.

    The cosine of a sentence (of it and who says it) counts most, that of its turn's nearest
    sentence a third of it; then the shares of the question's words that both have, and the
    logarithm of the words that the sentence has beside them: "Yes, me too!" is near to much and
    tells nothing.
    turns: (t,) cosines of whole turns, where they are known (a search computed them); no text is
    then embedded, and they stand for those of the sentences as well. Without embedder and turns,
    words alone decide.
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
    if turns is not None:
        score += (_SENTENCE + _TURN) * turns[turn]
    elif embedder is not None and bodies:
        shown = [f"{speakers[t]} {b}" for t, b in zip(turn.tolist(), bodies, strict=True)]
        vectors = embedder.embed([question, *shown])
        cosines = vectors[1:] @ vectors[0]
        best = np.full(len(speakers), -1.0, np.float32)
        np.maximum.at(best, turn, cosines)
        score += _SENTENCE * cosines + _TURN * best[turn]
    return score.astype(np.float32)


def sentence_texts(layout: Layout) -> tuple[list[str], list[str]]:
    """Of each sentence its text without the head, and of each turn who speaks: "Ana:"."""
    n_turns = int(layout.turn.max(initial=-1)) + 1
    bodies, speakers = [""] * len(layout.turn), [""] * n_turns
    for head in (True, False):
        at = np.flatnonzero(layout.head == head)
        number = layout.turn[layout.sentence[at]] if head else layout.sentence[at]
        first = np.flatnonzero(np.diff(number, prepend=-1))
        last = np.append(first[1:], len(at)) - 1
        for n, a, b, z in zip(
            number[first].tolist(),
            layout.starts[at[first]].tolist(),
            layout.ends[at[last]].tolist() if len(at) else [],
            layout.starts[at[last]].tolist() if len(at) else [],
            strict=True,
        ):
            if head:
                speakers[n] = layout.text[z:b]  # without the date
            else:
                bodies[n] = layout.text[a:b]
    return bodies, speakers


def _shares(asked: list[str], said: list[set[str]]) -> NDArray[np.float64]:
    """Which share of the words, or other forms of them, each of some sets of words has."""
    if not asked:
        return np.zeros(len(said))
    # Forms of a word begin alike, which is quickly seen.
    starts = {w[:3] for w in asked}
    near = [o for o in set().union(*said) if o[:3] in starts]
    forms = [{o for o in near if o[:3] == w[:3] and same_word(w, (o,))} for w in asked]
    return np.array([sum(not f.isdisjoint(s) for f in forms) for s in said]) / len(asked)


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
