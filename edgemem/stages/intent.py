"""What a message wants, by an expert, so that a small model answers it in the way that it can.

A model that has a conversation reads that for itself. One that quotes, or has an expert for short
answers, needs to be told: memories shown beside a riddle are quoted, and a question answered
without them is answered with an invention. Neither a mark nor a word tells the two apart ("where
do i live", "guess what?"), so an expert does; without one, a question mark must.

Knows a message and the one before it as text; knows no memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal, get_args

from edgemem.errors import ContextOverflow, ModelError
from edgemem.runtime.engine import Engine
from edgemem.text import is_question

__all__ = ["STAGE", "TELLS", "Intent", "Want", "expert_prompt", "expert_target", "intent"]

STAGE: Literal["intent"] = "intent"

Want = Literal["recall", "overview", "task", "edit", "general", "self"]
"""recall: a fact of the user's life; overview: much of it; task: advice or a text that must agree
with it. edit: the last answer in another form; general: knowledge of the world; self: of the
assistant."""

EXPERT_PROMPT = (
    "Say what the message wants: recall, overview, task, edit, general, self; or that it tells "
    "something, or does both."
)
TELLS = "tell"
_BOTH = f"{TELLS} and "
_WANTS: tuple[Want, ...] = get_args(Want)
MAY_TELL = 0.03
"""How probable it must be that a message tells something for it to be remembered."""
_MAX_TOKENS = 6
_LAST_CHARS = 400  # of a message: what is wanted comes last
_BEFORE_CHARS = 200


@dataclass(frozen=True, slots=True)
class Intent:
    """wants: None if the message only tells something. tells: whether it may tell something that
    is to be remembered."""

    wants: Want | None
    tells: bool


def intent(engine: Engine, text: str, before: str = "") -> Intent:
    """What a message wants. before: what the user said before it in this conversation.

    It is taken to tell something where the model fails: what it answers with fails aloud, and the
    message is kept.
    """
    if not engine.expert(STAGE):
        asks = is_question(text)
        return Intent("recall" if asks else None, not asks)
    prompt = expert_prompt(text, before)
    ask = partial(engine.generate, prompt, stop=("\n",), stage=STAGE)
    try:
        answer = ask(max_tokens=_MAX_TOKENS).text.strip()
        wants = answer.removeprefix(_BOTH)
        if wants not in _WANTS:
            return Intent(None, tells=True)
        fork = (f" {TELLS}", f" {wants}", MAY_TELL)
        may_tell = ask(max_tokens=1, fork=fork).text.strip() == TELLS
    except (ContextOverflow, ModelError):
        return Intent(None, tells=True)
    # A task says what it is for, which may be news that the expert misses (bench/LOG.md).
    return Intent(wants, tells=answer != wants or wants == "task" or may_tell)


def expert_prompt(text: str, before: str = "") -> str:
    """What an expert reads of a message."""
    last, earlier = " ".join(text.split())[-_LAST_CHARS:], " ".join(before.split())
    return f"{EXPERT_PROMPT}\n\nBefore: {earlier[-_BEFORE_CHARS:]}\nMessage: {last}\nIt wants:"


def expert_target(wants: Want | None, *, tells: bool) -> str:
    """What an expert answers, which an end-of-turn token follows."""
    if wants is None:
        return f" {TELLS}"
    return f" {_BOTH if tells else ''}{wants}"
