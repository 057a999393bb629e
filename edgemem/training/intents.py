"""What messages want: labelled messages, and examples for the expert that tells it.

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
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import get_args

from edgemem.errors import InputError
from edgemem.stages.intent import STAGE, TELLS, Want, expert_prompt, expert_target
from edgemem.training.annotated import Annotated
from edgemem.training.examples import Example

__all__ = ["Labelled", "bare", "examples", "is_messages", "of_file", "of_talk", "wanted"]

_LINE = re.compile(r"\(([a-z ]+)\) +(\S.*)")
_MARKS = re.compile(r"(?<!\d)[.,;:!?]+|[.,;:!?]+(?!\d)")
_TOGETHER = 10  # lines of a file that a split keeps together


@dataclass(frozen=True)
class Labelled:
    """A message, what was said before it, what it wants, and whether it tells something.

    group: messages that a split keeps together.
    """

    text: str
    before: str
    wants: Want | None
    tells: bool
    group: str


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


def of_file(path: Path) -> Iterator[Labelled]:
    """Of a file of messages. Raises InputError, naming the line."""
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            if (found := _LINE.fullmatch(line.strip())) is None:
                raise ValueError("no message such as `(tell) we got the flat`")
            wants, tells = wanted(found[1])
        except ValueError as exc:
            raise InputError(f"{path}, line {number}: {exc}. Correct the line.") from exc
        yield Labelled(found[2], "", wants, tells, f"{path.stem}-{number // _TOGETHER}")


def of_talk(talk: Annotated, *, seed: int = 0) -> Iterator[Labelled]:
    """Of a conversation with later chats. seed: of what telling messages are said after."""
    rng = random.Random(f"{seed} {talk.id} intents")
    asked = [exchange for later in talk.later for exchange in later.exchanges]
    told = {text for exchange in asked for text in exchange.evidence if "?" not in text}
    for later in talk.later:
        before = ""
        for exchange in later.exchanges:
            if exchange.wants:
                wants, tells = wanted(exchange.wants)
                yield Labelled(exchange.text, before, wants, tells, talk.id)
            before = exchange.text
    for text in sorted(told):
        before = rng.choice(asked).text if rng.random() < 0.5 else ""
        yield Labelled(text, before, None, True, talk.id)


def bare(messages: Iterable[Labelled], *, seed: int = 0) -> Iterator[Labelled]:
    """The messages, half of them without capitals and marks."""
    rng = random.Random(seed)
    for message in messages:
        text = message.text
        yield replace(message, text=_MARKS.sub("", text).lower()) if rng.random() < 0.5 else message


def examples(messages: Iterable[Labelled], *, seed: int = 0) -> Iterator[Example]:
    """What the expert learns from."""
    for m in bare(messages, seed=seed):
        target = expert_target(m.wants, tells=m.tells)
        yield Example(STAGE, expert_prompt(m.text, m.before), target, m.group, target.strip())
