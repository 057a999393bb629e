"""What messages want, as examples for the expert that tells it.

    (tell) the biopsy came back clean, i cried in the car park
    (tell and task) we moved to bergen and the in-laws come on sunday what should i cook

From files of such lines, and from written conversations: their later chats say what each message
wants, and what an answer is taken from tells something. Half of the messages lose their capitals
and marks, so that what is wanted is not read off a question mark.

Knows those forms and the stage's prompt; knows no memory and no model.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

from edgemem.errors import InputError
from edgemem.stages.intent import STAGE, TELLS, Want, expert_prompt, expert_target
from edgemem.training.annotated import Annotated
from edgemem.training.examples import Example

__all__ = ["examples", "is_messages", "of_talk", "wanted"]

_LINE = re.compile(r"\(([a-z ]+)\) +(\S.*)")
_MARKS = re.compile(r"(?<!\d)[.,;:!?]+|[.,;:!?]+(?!\d)")
_BARE = 0.5  # of the messages
_TOGETHER = 10  # lines of a file that a split keeps together


def is_messages(path: Path) -> bool:
    """Whether a file begins with such a line."""
    with open(path, encoding="utf-8", errors="replace") as file:
        return _LINE.fullmatch(next(file, "").strip()) is not None


def wanted(text: str) -> tuple[Want | None, bool]:
    """What is in the brackets: what a message wants, and whether it tells something. Raises
    ValueError."""
    if text == TELLS:
        return None, True
    wants: tuple[Want, ...] = get_args(Want)
    for want in wants:
        if text.removeprefix(f"{TELLS} and ") == want:
            return want, text != want
    raise ValueError(f"a message wants {text!r}; allowed: {TELLS}, {', '.join(wants)}")


def examples(path: Path, *, seed: int = 0) -> Iterator[Example]:
    """Of a file of messages. Raises InputError, naming the line."""
    rng = random.Random(f"{seed} {path.stem} intents")
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            if (found := _LINE.fullmatch(line.strip())) is None:
                raise ValueError("no message such as `(tell) we got the flat`")
            wants, tells = wanted(found[1])
        except ValueError as exc:
            raise InputError(f"{path}, line {number}: {exc}. Correct the line.") from exc
        yield _example(found[2], "", wants, tells, f"{path.stem}-{number // _TOGETHER}", rng)


def of_talk(talk: Annotated, *, seed: int = 0) -> Iterator[Example]:
    """Of a conversation with later chats."""
    rng = random.Random(f"{seed} {talk.id} intents")
    asked = [exchange for later in talk.later for exchange in later.exchanges]
    told = {text for exchange in asked for text in exchange.evidence if "?" not in text}
    for later in talk.later:
        before = ""
        for exchange in later.exchanges:
            if exchange.wants:
                wants, tells = wanted(exchange.wants)
                yield _example(exchange.text, before, wants, tells, talk.id, rng)
            before = exchange.text
    for text in sorted(told):
        before = rng.choice(asked).text if rng.random() < _BARE else ""
        yield _example(text, before, None, True, talk.id, rng)


def _example(
    text: str, before: str, wants: Want | None, tells: bool, group: str, rng: random.Random
) -> Example:
    if rng.random() < _BARE:
        text = _MARKS.sub("", text).lower()
    target = expert_target(wants, tells=tells)
    return Example(STAGE, expert_prompt(text, before), target, group, target.strip())
