"""Cuts a context down to the part that fits a token budget: `compress_prompt`, or `compress`.

First a text is cut into turns, sentences and units (`lay_out`): words, and spans that are never cut
inside. Text in a language that `language/` does not know is cut at its sentence marks and spaces.
Below the two, in the order they are used: the scores of tokens (`Scores`) and units (S_final), the
relevance of sentences to a question (`relevance`), and which units are kept (`select`,
`fit_to_budget`).
Source: CoreMem 3.3; the names are LLMLingua's.
"""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from edgemem.errors import InputError, ModelError
from edgemem.inputs import utf8
from edgemem.kernels import BoolArray, DoubleArray, FloatArray, IntArray
from edgemem.language import (
    HEAD,
    KEYWORD,
    NAME,
    NEGATION,
    STOP_WORDS,
    UNCUT,
    asks,
    content_words,
    same_word,
    sentence_starts,
    words,
)

if TYPE_CHECKING:
    from edgemem.runtime.embedder import Embedder
    from edgemem.runtime.engine import Engine

__all__ = ["Compressed", "Layout", "Scores", "Span", "Tokenize", "compress"]
__all__ += ["compress_prompt", "estimated_tokens", "fdtd", "lay_out", "masks"]

# Spans that are never cut inside: each pattern, and a string without which it cannot match.
_WHOLE = (
    ("`", re.compile(r"```.*?```|`[^`\n]+`", re.S)),
    ("://", re.compile(r"\b[a-z][a-z0-9+.-]{0,30}://\S+", re.I)),
    ("www.", re.compile(r"\bwww\.\S+")),
    ("", re.compile(r"\d(?<!\d\d)\d{3}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?")),
    *(("", pattern) for pattern in UNCUT),
)
_WORD = re.compile(r"\S+")
_OF_CHAR = np.ones(129, np.float32)  # mask by ASCII code; the last is of any other character
for _marks, _value in (("\n", 1.5), (".?!", 1.4), ("0123456789", 1.4), (":", 1.3)):
    _OF_CHAR[[ord(mark) for mark in _marks]] = _value
_KEYWORD_MASK, _NAME_MASK = 1.2, 1.3
_MOST_NO_JSON = 64  # brackets that turn out to begin no JSON, after which no more are tried


@dataclass(frozen=True, slots=True)
class Layout:
    """A text in units, which are kept or dropped whole: words, and spans never cut inside.

    starts, ends: (u,) characters [start, end) of each unit, ascending, without the spaces between.
    sentence: (u,) number of the unit's sentence. turn: (s,) number of the sentence's turn. head:
    (u,) whether the unit stands before a turn's words (a date, a speaker); it is kept with any of
    them. fixed: (u,) whether it is always kept with its sentence: a negation or a word beside one.
    """

    text: str
    starts: IntArray
    ends: IntArray
    sentence: IntArray
    turn: IntArray
    head: BoolArray
    fixed: BoolArray

    def unit_of(self, ends: IntArray) -> IntArray:
        """The unit that contains the character before each position, or else the next unit.

        So the line end before a turn belongs to that turn.
        """
        unit = np.maximum(np.searchsorted(self.starts, ends, "left") - 1, 0)
        if len(self.ends):
            unit = np.minimum(unit + (ends > self.ends[unit]), len(self.ends) - 1)
        return unit

    def units_over(self, spans: Iterable[tuple[int, int]]) -> BoolArray:
        """(u,) bool, which units have a character in one of the spans."""
        return _over(self.starts, self.ends, list(spans))


def lay_out(text: str, *, whole: Sequence[tuple[int, int]] = ()) -> Layout:
    """Cut a text into turns (its lines), sentences and units.

    whole: character spans [start, end) that are not to be cut inside, in addition to those found
    here: code, URLs, JSON, dates, numbers with their units.
    """
    found = [m.span() for mark, p in _WHOLE if mark in text for m in p.finditer(text)]
    spans = _merged([*found, *_json_spans(text), *whole])
    words = np.array([m.span() for m in _WORD.finditer(text)], np.int64).reshape(-1, 2)
    at = np.array(spans, np.int64).reshape(-1, 2)
    first = np.searchsorted(words[:, 1], at[:, 0], "right")
    last = np.searchsorted(words[:, 0], at[:, 1], "left")
    inside = _ranges(first + 1, last, len(words))  # words that continue the span of the word before
    begins = np.flatnonzero(~inside)
    starts = words[begins, 0]
    ends = words[np.append(begins[1:], len(words)) - 1, 1] if len(words) else starts

    new_turn = _begun_at(starts, ends, [m.end() for m in re.finditer("\n", text)])
    new_sentence = new_turn | _begun_at(starts, ends, sentence_starts(text))
    sentence = np.cumsum(new_sentence, dtype=np.int64)
    turn = np.cumsum(new_turn, dtype=np.int64)[np.flatnonzero(np.diff(sentence, prepend=-1))]

    opening = [*starts[:1].tolist(), *starts[new_turn].tolist()]
    heads = [m.span() for at in opening if (m := HEAD.match(text, at))]
    negated = _over(starts, ends, [m.span() for m in NEGATION.finditer(text)])
    fixed = negated.copy()
    fixed[1:] |= negated[:-1]
    fixed[:-1] |= negated[1:]
    return Layout(text, starts, ends, sentence, turn, _over(starts, ends, heads), fixed)


def masks(text: str, offsets: IntArray) -> FloatArray:
    """max(M_syntax, M_content) of eq. 4 for each token: (n,) float32, 1.0 where nothing applies.

    offsets: (n, 2) characters [start, end) of each token. Keywords 1.2, structural punctuation 1.3
    (a colon) to 1.5 (a newline), digits 1.4, names 1.3: a capitalised word that begins no sentence.
    Source: CoreMem 3.3. It refers to lists in its Appendix E, which has none; these are our own.
    """
    codes = np.frombuffer(f"{text} ".encode("utf-32-le", "surrogatepass"), "<u4")
    of_char = _OF_CHAR[np.minimum(codes, 128)]
    lower = text.lower()
    if len(lower) != len(text):
        lower = text  # lower() made two characters of an İ
    keywords = [m.span() for m in KEYWORD.finditer(lower)]
    # A word after ": " begins what a speaker says, so its capital letter does not make it a name.
    names = [m.span() for m in NAME.finditer(text) if text[m.start() - 2 : m.start()] != ": "]
    for spans, value in ((keywords, _KEYWORD_MASK), (names, _NAME_MASK)):
        at = np.array(spans, np.int64).reshape(-1, 2)
        inside = _ranges(at[:, 0], at[:, 1], len(of_char))
        np.maximum(of_char, value, out=of_char, where=inside)
    if not len(offsets):
        return np.ones(0, np.float32)
    return np.maximum.reduceat(of_char, offsets.reshape(-1))[::2]


def _over(starts: IntArray, ends: IntArray, spans: Sequence[tuple[int, int]]) -> BoolArray:
    at = np.asarray(spans, np.int64).reshape(-1, 2)
    first = np.searchsorted(ends, at[:, 0], "right")
    return _ranges(first, np.searchsorted(starts, at[:, 1], "left"), len(starts))


def _ranges(first: IntArray, last: IntArray, n: int) -> BoolArray:
    """Which of n positions lie in one of the ranges [first, last)."""
    some = first < last
    steps = np.bincount(first[some], minlength=n + 1) - np.bincount(last[some], minlength=n + 1)
    return np.cumsum(steps)[:n] > 0


def _begun_at(starts: IntArray, ends: IntArray, places: Sequence[int]) -> BoolArray:
    """Which units are the first at or after one of the places; places inside a unit are ignored.

    The first unit never is one.
    """
    at = np.asarray(places, np.int64)
    following = np.searchsorted(starts, at, "left")
    before = ends[following - 1] if len(ends) else at
    begun = np.zeros(len(starts) + 1, bool)
    begun[following[(following > 0) & (before <= at)]] = True
    return begun[:-1]


def _merged(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    out: list[tuple[int, int]] = []
    for start, end in sorted(spans):
        if out and start < out[-1][1]:
            out[-1] = out[-1][0], max(end, out[-1][1])
        elif end > start:
            out.append((start, end))
    return out


def _json_spans(text: str) -> list[tuple[int, int]]:
    """Spans of JSON objects and lists. A bracketed date or word does not parse as JSON."""
    found, at, failed = [], 0, 0
    decoder = json.JSONDecoder()
    opening = re.compile(r"[{\[](?=\s*[\[{\"\-\dtfn\]}])")
    while failed < _MOST_NO_JSON and (match := opening.search(text, at)):
        try:
            _, end = decoder.raw_decode(text, match.start())
        except (ValueError, RecursionError):
            failed, at = failed + 1, match.end()
        else:
            found.append((match.start(), end))
            at = end
    return found


_TOKEN = re.compile(r" ?[A-Za-z]{1,4}| ?\S|\s")


def estimated_tokens(text: str) -> IntArray:
    """An upper estimate of a text's tokens without a tokenizer: (n, 2) characters of each token.

    Counts a token for every four ASCII letters of a word (or fewer at its end), for each digit,
    mark and line end, and for each UTF-8 byte of any other character. One space belongs to what
    follows it. Ordinary text takes fewer tokens with SmolLM2, Gemma 3 and BERT; text that is mostly
    rare words, such as identifiers, may take more. Raises InputError on half of a surrogate pair.
    """
    utf8(text)
    spans = np.array([m.span() for m in _TOKEN.finditer(text)], np.int64).reshape(-1, 2)
    if text.isascii():
        return spans
    return np.repeat(spans, [len(text[end - 1].encode()) for end in spans[:, 1].tolist()], axis=0)


# -- what is kept ----------------------------------------------------------------------------------

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
