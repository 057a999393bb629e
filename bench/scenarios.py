"""Invented conversations with questions about them, and the check of an answer.

Knows the files of `bench/scenarios/`; knows no memory and no model. A file is one scenario:

    {"name", "frozen": bool, "user_id", "sessions": [{"date", "messages": [{"role", "content"}]}],
     "now": when the questions are asked, "questions": [{"kind", "ask", "before": [text],
     "must": [pattern], "must_not": [pattern]}]}

Dates are ISO-8601. `before`: earlier messages of the same chat. An answer is right if every pattern
of `must` is found in it and no pattern of `must_not`. A pattern is a case-insensitive regular
expression or `{"of": [pattern], "least": n}`. Half of the scenarios are `frozen`: nothing is tuned
on them and nobody reads them, so no error here quotes a file.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from edgemem.results import to_utc

FOLDER = Path(__file__).parent / "scenarios"
KINDS = (
    "recall",
    "before",
    "now",
    "when",
    "advice",
    "write",
    "summary",
    "unknown",
    "general",
    "follow-up",
    "identity",
)


@dataclass(frozen=True, slots=True)
class Pattern:
    """A text fits if at least `least` of the regular expressions `of` are found in it."""

    of: tuple[re.Pattern[str], ...]
    least: int

    def fits(self, text: str) -> bool:
        return sum(p.search(text) is not None for p in self.of) >= self.least


@dataclass(frozen=True, slots=True)
class Question:
    """A question, the messages `before` it in the same chat, and what a right answer says."""

    kind: str
    ask: str
    before: tuple[str, ...]
    must: tuple[Pattern, ...]
    must_not: tuple[Pattern, ...]


@dataclass(frozen=True, slots=True)
class Scenario:
    """A user's sessions (messages as `Memory.add` takes them, a minute apart) and questions."""

    name: str
    frozen: bool
    user_id: str
    sessions: tuple[tuple[Mapping[str, Any], ...], ...]
    now: str
    questions: tuple[Question, ...]


def is_right(answer: str, question: Question) -> bool:
    """Whether an answer has all that it must have and nothing that it must not."""
    text = answer.replace("’", "'")
    return all(p.fits(text) for p in question.must) and not any(
        p.fits(text) for p in question.must_not
    )


def day(when: str) -> str:
    """The day of an ISO-8601 time: "3 March 2026"."""
    date = datetime.fromisoformat(when)
    return f"{date.day} {date:%B %Y}"


def read_all(folder: Path = FOLDER) -> list[Scenario]:
    """The scenarios of a folder, by file name. Raises ValueError as `read` does."""
    return [read(path) for path in sorted(folder.glob("*.json"))]


def read(path: Path) -> Scenario:
    """One scenario. Raises ValueError that names the place in the file, never its words."""
    place = path.name
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
        sessions, questions = [], []
        for number, session in enumerate(_some(raw["sessions"]), 1):
            place = f"{path.name}, session {number}"
            sessions.append(tuple(_messages(session)))
        for number, question in enumerate(_some(raw["questions"]), 1):
            place = f"{path.name}, question {number}"
            questions.append(_question(question))
        place = path.name
        if not isinstance(raw["frozen"], bool):
            raise TypeError
        return Scenario(
            name=_text(raw["name"]),
            frozen=raw["frozen"],
            user_id=_text(raw["user_id"]),
            sessions=tuple(sessions),
            now=to_utc(_text(raw["now"])),
            questions=tuple(questions),
        )
    except (ValueError, LookupError, TypeError, re.error) as exc:
        raise ValueError(
            f"{place} is not as bench/scenarios.py says ({type(exc).__name__}); correct it"
        ) from None


def _messages(session: Any) -> Iterator[Mapping[str, Any]]:
    date = datetime.fromisoformat(to_utc(_text(session["date"])))
    for position, message in enumerate(_some(session["messages"])):
        if message["role"] not in ("user", "assistant"):
            raise ValueError
        yield {
            "role": message["role"],
            "content": _text(message["content"]),
            "timestamp": to_utc(date + timedelta(minutes=position)),
        }


def _question(raw: Any) -> Question:
    if raw["kind"] not in KINDS:
        raise ValueError
    must = tuple(_pattern(item) for item in raw.get("must", []))
    must_not = tuple(_pattern(item) for item in raw.get("must_not", []))
    if not must and not must_not:  # every answer would be right
        raise ValueError
    before = tuple(_text(text) for text in raw.get("before", []))
    return Question(raw["kind"], _text(raw["ask"]), before, must, must_not)


def _pattern(item: Any) -> Pattern:
    if isinstance(item, str):
        return Pattern((_compiled(item),), 1)
    of, least = tuple(_compiled(text) for text in _some(item["of"])), item["least"]
    if not isinstance(least, int) or not 1 <= least <= len(of):
        raise ValueError
    return Pattern(of, least)


def _compiled(text: Any) -> re.Pattern[str]:
    return re.compile(_text(text), re.I)


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise TypeError
    return value


def _some(value: Any) -> list[Any]:
    if not isinstance(value, list) or not value:
        raise TypeError
    return value
