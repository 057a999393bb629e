"""How evidence is written for a model: its day, its speaker, its words.

Each stage orders the lines in its own way; this module decides what a line contains.
`compression/compress.py` recognises `head` by `language.HEAD`, so they change together.
"""

from __future__ import annotations

from edgemem.language import Moment, day_text, moments, on_day, written
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
    """The text in one line, its relative dates written out (`_moments`)."""
    text = " ".join(evidence.text.split())
    return written(text, _moments(evidence, text))


def own_words(evidence: Evidence) -> str:
    """The text in one line for a reader who sees its day beside it: "today" stays, and all other
    relative dates are written out."""
    text = " ".join(evidence.text.split()).lstrip("-*• ")
    today = local_time(evidence.when)[:10] if evidence.when else ""
    return written(text, [m for m in _moments(evidence, text) if m.begins.isoformat() != today])


def _moments(evidence: Evidence, text: str) -> list[Moment]:
    """The relative dates of evidence in one line (`text`). Of an image only the first line of its
    memory, the caption, was said on the evidence's day; "tomorrow" on a poster is counted from
    another."""
    found = moments(text, local_time(evidence.when)) if evidence.when else []
    if evidence.photo is None:
        return found
    caption = evidence.photo.memory.partition("\n")[0]
    return [moment for moment in found if caption.startswith(text[: moment.end])]


def _on_day(evidence: Evidence) -> str:
    return on_day(local_time(evidence.when) if evidence.when else None)
