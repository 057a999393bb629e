"""Private parts of texts to placeholders, and back.

Knows `patterns` and a list of names; must not know where the texts or names come from. The same
value has the same placeholder in all texts of one call (`[PERSON_1]`), so that the reader can tell
people apart; in the next call the numbers start anew, so that calls cannot be joined by them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from edgemem.cloud import patterns
from edgemem.cloud.patterns import KINDS, Span

__all__ = ["Redacted", "redact"]

_PLACEHOLDER = re.compile(rf"\[\s?({'|'.join(KINDS)})[\s_-]?(\d{{1,4}})\s?\]", re.I)
_BARE = re.compile(rf"\b({'|'.join(KINDS)})_(\d{{1,4}})\b")


@dataclass(frozen=True, slots=True)
class Redacted:
    """Texts that may be sent. values: what each placeholder stands for; it stays here."""

    texts: tuple[str, ...]
    values: Mapping[str, str]

    def restore(self, text: str) -> str:
        """A text with the values put back, also where brackets or case were changed on the way.
        Placeholders that were not given out stay as they are."""

        def value(found: re.Match[str]) -> str:
            return self.values.get(f"[{found[1].upper()}_{int(found[2])}]", found[0])

        return _BARE.sub(value, _PLACEHOLDER.sub(value, text))


def redact(texts: Sequence[str], names: Iterable[str] = ()) -> Redacted:
    """Replace all that is private in texts of one call.

    names: of people, whole ("Ana Lima") or in part. A first or last name that belongs to one of
    them alone gets that person's placeholder, and comes back as the whole name. Capitals do not
    matter, but in names that are words, too ("Rose").
    """
    people = _People(names)
    given: dict[tuple[str, str], str] = {}
    values: dict[str, str] = {}
    used = {m[0].upper() for text in texts for m in _PLACEHOLDER.finditer(text)}
    out: list[str] = []
    for text in texts:
        parts: list[str] = []
        at = 0
        for span in _merged(text, [*patterns.find(text), *people.find(text)]):
            value = text[span.start : span.end]
            whole = people.whole(value) if span.kind == "PERSON" else value
            key = (span.kind, _same(whole))
            if key not in given:
                given[key] = _next(span.kind, {*used, *values})
                values[given[key]] = whole
            parts += [text[at : span.start], given[key]]
            at = span.end
        out.append("".join([*parts, text[at:]]))
    return Redacted(tuple(out), values)


def _next(kind: str, taken: set[str]) -> str:
    number = 1
    while f"[{kind}_{number}]" in taken:
        number += 1
    return f"[{kind}_{number}]"


def _same(value: str) -> str:
    return " ".join(value.casefold().split())


def _merged(text: str, spans: Iterable[Span]) -> list[Span]:
    """Spans that do not overlap: those that do are one, of the first of their kinds."""
    out: list[Span] = []
    for span in sorted(spans):
        if out and span.start < out[-1].end:
            last = out.pop()
            kind = min(last.kind, span.kind, key=KINDS.index)
            span = Span(last.start, max(last.end, span.end), kind)
        out.append(span)
    return [s for s in out if text[s.start : s.end].strip()]


# Names that are words, so that only a capital tells.
_WORDS = frozenset(
    """april august autumn bill carol chance chase dale dawn dean drew earl eve faith frank gene
    glen grace grant guy hope iris ivy jack jade jasmine jay joy june lance lily mark may mason
    melody miles misty noel olive pat peg penny ray rich rob rose ruby rusty sage sandy sky
    skip stew sue summer ted tom van victor violet wade will winter al art buck buddy cliff
    clay dot gay gale ginger hazel heath holly honey hunter jean jewel major max mercy nick
    norm opal page pearl pierce prince rock rod rowan sally sean star sterling storm tiffany
    trip wren in so mai my no an do thu long hung anh an li don""".split()
)


# After a known first name, a word with a capital is taken for the last name.
_SURNAME = re.compile(
    r"(?: (?:de|da|del|la|van|von|der|den|bin|al|el))* (?!(?:I|On|In|At|And|But|The|Monday|Tuesday|"
    r"Wednesday|Thursday|Friday|Saturday|Sunday)\b)[^\W\d_a-zà-öø-ÿ][^\W\d_]+(?:['’-][^\W\d_]+)*"
)


class _People:
    """Names as one pattern."""

    def __init__(self, names: Iterable[str]) -> None:
        wholes = {" ".join(name.split()) for name in names}
        wholes = {w for w in wholes if any(c.isalpha() for c in w) and len(w) > 1}
        owners: dict[str, set[str]] = {}
        for whole in wholes:
            for part in {whole, *whole.split()}:
                if len(part) > 1 and part[0].isalpha():
                    owners.setdefault(part.casefold(), set()).add(whole)
        self._whole: dict[str, str] = {}
        for part, of in owners.items():
            longer = {whole for whole in of if whole.casefold() != part}
            if len(longer) == 1:
                self._whole[part] = longer.pop()
            else:  # nobody's longer name, or that of several people
                self._whole[part] = next((w for w in of if w.casefold() == part), part.title())
        self._pattern = _pattern(self._whole)

    def find(self, text: str) -> list[Span]:
        if self._pattern is None:
            return []
        found = []
        for match in self._pattern.finditer(text):
            said = match.group()
            if said.casefold() in _WORDS and not said[0].isupper():
                continue
            end = match.end()
            if said[0].isupper() and (surname := _SURNAME.match(text, end)):
                end = surname.end()
            found.append(Span(match.start(), end, "PERSON"))
        return found

    def whole(self, said: str) -> str:
        return self._whole.get(" ".join(said.casefold().split()), said)


def _pattern(parts: Iterable[str]) -> re.Pattern[str] | None:
    longest_first = sorted(parts, key=lambda part: (-len(part), part))
    if not longest_first:
        return None
    forms = "|".join(r"\s+".join(map(re.escape, part.split())) for part in longest_first)
    return re.compile(rf"(?<![^\W_])(?:{forms})(?![^\W_])", re.I)
