"""How evidence is written for a model: its day, its speaker, its words.

Each stage orders the lines in its own way; this module decides what a line contains.
`compression/layout.py` recognises `head` by `language.HEAD`, so they change together.
"""

from __future__ import annotations

from edgemem.language import absolute, day_text, moments, on_day, written
from edgemem.results import Evidence, local_time

__all__ = ["day_of", "head", "line", "own_words", "plain", "quotation", "shown_text"]

_NOTED = "it was noted"


def day_of(evidence: Evidence) -> str:
    """The evidence's day in words ("3 March 2024"); "" if it has no time."""
    return day_text(local_time(evidence.when)) if evidence.when else ""


def head(evidence: Evidence) -> str:
    """The prefix of the text in a list: "On 3 March 2024, Ana: "."""
    return f"{_on_day(evidence)}{evidence.speaker or _NOTED}: "


def line(evidence: Evidence) -> str:
    """One line of a prompt: `On 3 March 2024, Ana said: "I moved."`."""
    noted = "" if evidence.speaker else f"{_NOTED}: "
    return f"{_on_day(evidence)}{noted}{quotation(evidence)}"


def quotation(evidence: Evidence) -> str:
    """`line` without the day; the text alone if the evidence has no speaker."""
    text = shown_text(evidence)
    return f'{evidence.speaker} said: "{text}"' if evidence.speaker else text


def shown_text(evidence: Evidence) -> str:
    """`plain` with single quotes for double ones, which would end the quotation of `line`."""
    return plain(evidence).replace('"', "'")


def plain(evidence: Evidence) -> str:
    """The text in one line, its relative dates written out."""
    text = " ".join(evidence.text.split())
    return absolute(text, local_time(evidence.when))[0] if evidence.when else text


def own_words(evidence: Evidence) -> str:
    """The text in one line for a reader who sees its day beside it: "today" stays, and all other
    relative dates are written out."""
    text = " ".join(evidence.text.split()).lstrip("-*• ")
    if not evidence.when:
        return text
    said_at = local_time(evidence.when)
    others = [m for m in moments(text, said_at) if m.begins.isoformat() != said_at[:10]]
    return written(text, others)


def _on_day(evidence: Evidence) -> str:
    return on_day(local_time(evidence.when) if evidence.when else None)
