"""The phrases that training conversations are made of, and how one is filled in.

Knows the files in `edgemem/data/talk/` and their small grammar; knows nobody who talks.

lists.txt: `name: value, value`. talk.txt: `name phrase | phrase`. topics_*.txt: a topic begins with
`= name kind key [family]` and has lines of `code phrase | phrase`; a part follows ` => `:

    s say; f the same as a third-person fact; q question => answer; w "when did ...?"; y a question
    to be answered by yes; b question about the value before the present one; l question whose
    answer is all values => one of them; c "how many ...?"; i inference => answer;
    + detail said => fact => the topic's fact with it => question? answer; - ended: said => fact;
    ! changed to key2: said => fact; r what a listener says; p photo

A code (or a name in talk.txt) that begins with "v" is for validation, all others for training, so
that validation has no phrase that training saw. Of a list of eight values or more, every fourth
is validation's.

In a phrase {S}, {S's}, {O} (as an object), {my}, {me} and {they} are the person meant, [I|you|she]
the verb in its form for them ([I and you|she] if two are given), {when} a past and {soon} a coming
date, {a role} a value with its article, any other {name} a value of the list of that name, {name2}
another one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Literal, cast

__all__ = [
    "SPLITS",
    "Phrases",
    "Split",
    "Topic",
    "Voice",
    "fill",
    "first_person",
    "phrases",
    "second_person",
    "slots",
]

Kind = Literal["one", "many", "event", "plan"]
Split = Literal["train", "valid"]
SPLITS: tuple[Split, ...] = ("train", "valid")

_SLOT = re.compile(r"\{([^{}]+)\}")
_FORM = re.compile(r"\[([^\[\]|]+)\|([^\[\]|]+)(?:\|([^\[\]|]+))?\]")
_VOICE = frozenset(("S", "S's", "O", "my", "me", "they"))
_HELD_OUT_FROM, _HELD_OUT_EVERY = 8, 4


@dataclass(frozen=True, slots=True)
class Voice:
    """A person as a phrase names them. form: 0 for "I", 1 for "you", 2 for anybody else."""

    subject: str
    possessive: str
    my: str
    me: str
    they: str
    form: Literal[0, 1, 2]


@dataclass(frozen=True)
class Topic:
    """Something people talk about. lines: for each code its alternatives, each a tuple of parts.

    kind: "one" value at a time, "many" side by side, an "event" or a "plan", both with a date.
    key: the slot that tells two of a kind apart. Topics of one family answer the same questions.
    """

    name: str
    kind: Kind
    key: str
    family: str
    lines: Mapping[str, Sequence[tuple[str, ...]]]

    def of(self, code: str) -> Sequence[tuple[str, ...]]:
        """The alternatives of a code; none if the topic lacks it."""
        return self.lines.get(code, ())


@dataclass(frozen=True)
class Phrases:
    """All that one split may say. lists: values; talk: what is said around facts, by name.

    proper: words that keep their capital within a sentence.
    """

    lists: Mapping[str, Sequence[str]]
    talk: Mapping[str, Sequence[str]]
    topics: Sequence[Topic]
    proper: frozenset[str]


@cache
def phrases(split: Split) -> Phrases:
    """The phrases and values of one split."""
    lists, talk, people = _read("lists.txt"), _read("talk.txt"), _read("people.txt")
    values: dict[str, Sequence[str]] = {}
    for line in (*lists, *people):
        name, _, rest = line.partition(": ")
        every = [v.strip() for v in rest.split(", ")]
        values[name] = _share(every, split)
    said: dict[str, Sequence[str]] = {}
    for line in talk:
        name, rest = line.split(" ", 1)
        if name.startswith("v") == (split == "valid"):
            said[name.removeprefix("v")] = rest.split(" | ")
    proper = {v.split()[0] for every in values.values() for v in every if v[0].isupper()}
    return Phrases(values, said, _topics(split), frozenset(proper | {"I"}))


def slots(phrase: str) -> set[str]:
    """The names of a phrase's slots, but for the person."""
    return {_named(s) for s in _SLOT.findall(phrase)} - _VOICE


def fill(phrase: str, values: Mapping[str, str], voice: Voice | None = None) -> str:
    """A phrase with its slots filled in. Raises KeyError on one that has no value."""

    def value(match: re.Match[str]) -> str:
        name = match[1]
        if voice is not None and name in _VOICE:
            return {
                "S": voice.subject,
                "S's": voice.possessive,
                "O": voice.me if voice.form == 0 else voice.subject,
                "my": voice.my,
                "me": voice.me,
                "they": voice.they,
            }[name]
        text = values[_named(name)]
        return f"{_article(text)} {text}" if name.startswith("a ") else text

    if voice is not None:
        if voice.form == 2 and voice.they != "they":
            phrase = _named_once(phrase)
        phrase = _FORM.sub(lambda m: _form(m, voice.form), phrase)
    while "{" in phrase:  # a value may have slots itself
        phrase = _SLOT.sub(value, phrase)
    return re.sub(r" (?=[,.!?:])", "", " ".join(phrase.split()))


def first_person() -> Voice:
    """The speaker, of themselves."""
    return Voice("I", "my", "my", "me", "I", 0)


def second_person() -> Voice:
    """The one spoken to."""
    return Voice("you", "your", "your", "you", "you", 1)


def _named_once(phrase: str) -> str:
    """A phrase that names somebody and then says she or he: "Ana sang until she was tired"."""
    head, person, tail = phrase.partition("{S")
    if not person:
        return phrase
    for named, pronoun in (("{S}", "{they}"), ("{S's}", "{my}")):
        tail = tail.replace(named, pronoun)
    return head + person + tail


def _named(slot: str) -> str:
    return slot.removeprefix("a ")


def _form(match: re.Match[str], form: int) -> str:
    first, second, third = match.groups()
    return (first, second, third)[form] if third is not None else (first, first, second)[form]


def _article(text: str) -> str:
    return "an" if text[:1].lower() in "aeiou" else "a"


def _share(values: list[str], split: Split) -> list[str]:
    if len(values) < _HELD_OUT_FROM:
        return values
    held_out = split == "valid"
    return [v for i, v in enumerate(values) if (i % _HELD_OUT_EVERY == 0) == held_out]


def _read(name: str) -> list[str]:
    text = (resources.files("edgemem") / "data" / "talk" / name).read_text(encoding="utf-8")
    return [line for line in text.splitlines() if line and not line.startswith("#")]


def _topics(split: Split) -> list[Topic]:
    found: list[Topic] = []
    folder = resources.files("edgemem") / "data" / "talk"
    names = sorted(f.name for f in folder.iterdir() if f.name.startswith("topics_"))
    lines: dict[str, list[tuple[str, ...]]] = {}
    for file in names:
        for line in _read(file):
            code, rest = line.split(" ", 1)
            if code == "=":
                name, kind, key, *family = rest.split()
                lines = {}
                found.append(Topic(name, cast(Kind, kind), key, (family or [name])[0], lines))
            elif code.startswith("v") == (split == "valid"):
                code = code.removeprefix("v")
                whole = code in "+-!"  # one alternative a line, whose parts have alternatives
                for text in [rest] if whole else rest.split(" | "):
                    lines.setdefault(code, []).append(tuple(text.split(" => ")))
    return found
