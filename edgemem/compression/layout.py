"""Cuts a text into turns, sentences and units: words, and spans that are never cut inside.

Text in a language that `language/` does not know is cut at its sentence marks and spaces.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from edgemem.inputs import utf8
from edgemem.kernels import BoolArray, FloatArray, IntArray
from edgemem.language import HEAD, KEYWORD, NAME, NEGATION, UNCUT, sentence_starts

__all__ = ["Layout", "estimated_tokens", "lay_out", "masks"]


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
