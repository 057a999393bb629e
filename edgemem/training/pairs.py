"""An old memory and new facts, written for training, and what each fact is beside the memory.

    : User rents a room above a bakery in Aarhus for 3,900 kroner.
    DELETE User has two rooms in Leith at 720 pounds a month.
    UPDATE User rents a room above a bakery in Aarhus for 3,900 kroner, without a kitchen.
    NONE User lives in a room over a baker's in Aarhus.
    ADD User's brother has bought a house in Odense.

A line with `:` is a memory; those below are facts told later, each compared with it alone. What
the four mean is said in models/pairs/README.md. Knows that form; knows nothing of training.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path
from typing import get_args

from edgemem.errors import InputError
from edgemem.results import Event
from edgemem.training.changes import Situation, update_examples
from edgemem.training.examples import Example

__all__ = ["examples", "is_pairs", "read"]

_EVENTS: dict[str, Event] = {event: event for event in get_args(Event)}


def is_pairs(path: Path) -> bool:
    """Whether a file begins as one of these does, after empty lines or none."""
    with open(path, encoding="utf-8", errors="replace") as file:
        return next((line for line in file if not line.isspace()), "").startswith(": ")


def read(path: Path) -> list[Situation]:
    """What each fact of a file is beside its memory.

    Raises InputError, naming file and line, on another form.
    """
    found: list[Situation] = []
    memory = ""
    for number, raw in enumerate(path.read_text(encoding="utf-8").split("\n"), 1):
        event, _, text = raw.strip().partition(" ")
        if event == ":" and text:
            memory = text
        elif event in _EVENTS and text and memory:
            found.append(Situation((memory,), text, _EVENTS[event], int(event == "ADD")))
        elif event:
            raise InputError(
                f"{path}, line {number}: {raw.strip()[:60]!r} is no memory (`: User sings.`), nor "
                f"a fact below one (`ADD User sings well.`); allowed: {', '.join(_EVENTS)}. "
                "Correct the line."
            )
    return found


def examples(found: Iterable[Situation], name: str) -> Iterator[Example]:
    """The update examples of what was read, a group for each old memory."""
    for number, (_, of_one) in enumerate(groupby(found, key=lambda s: s.memories), 1):
        yield from update_examples(of_one, f"{name}-{number}")
