"""Conversations as people type them in haste: no capitals, few marks, slips and short forms.

An expert that learned from careful spelling answers worse when the same messages come in haste
(bench/LOG.md, 2026-11-28). A third of the conversations lose their capitals, a third their marks,
too, and a third have slips besides. In some, messages that follow each other become a long one.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

from corpus.annotated import MARKS, Annotated, Exchange, Pair, Question
from edgemem.results import Message
from edgemem.training.examples import Example

_WORD = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)*")
_SHORT = {
    "you": "u", "your": "ur", "are": "r", "because": "cos", "and": "n", "with": "w",
    "people": "ppl", "please": "pls", "really": "rly", "about": "abt", "before": "b4",
    "though": "tho", "birthday": "bday", "appointment": "appt", "probably": "prob",
    "something": "smth", "going": "goin", "okay": "ok", "thanks": "thx", "through": "thru",
}  # fmt: skip
_SHORTENED = 0.4  # share of the words in _SHORT that are
_SLIPS = 0.05  # share of the other words without a capital
_SLIPPING = 4  # letters that a word needs for a slip
_JOINED = 0.35  # share of the conversations with joined messages
_AT_MOST = 3  # messages that become one

Spell = Callable[[str], str]


def in_haste(talk: Annotated, *, seed: int = 0) -> Annotated:
    """The conversation as if it had been typed in haste.

    The same seed gives the same conversation. Facts keep their spelling, so that what is stored has
    capitals; so do answers (but see `spelled_as_shown`). Only messages of a user are joined, only
    if no question needs another's; no facts are left of them.
    """
    rng = random.Random(f"{seed} {talk.id} haste")
    spell: Spell = rng.choice((str.lower, _bare, lambda text: _bare(_slipped(text, rng))))
    messages = [dict(message) for message in talk.messages]
    join = rng.random() < _JOINED and _needs_user_alone(talk)
    if join:
        messages = list(_joined(messages, rng))
    became = dict[str, dict[str, Any]]()
    for message in messages:
        parts = message.pop("parts", [message["content"]])
        message["content"] = spell(message["content"])
        became |= dict.fromkeys(parts, message)

    def again(said: Sequence[Message]) -> tuple[Message, ...]:
        return tuple(
            replace(message, content=became[message.content]["content"]) for message in said
        )

    def pair(told: Pair) -> Pair:
        return replace(told, messages=again(told.messages), context=again(told.context))

    def question(asked: Question) -> Question:
        told = [(evidence, became[evidence.text]) for evidence in asked.evidence]
        shown = {m["content"]: replace(e, text=m["content"], when=m["timestamp"]) for e, m in told}
        return replace(asked, text=spell(asked.text), evidence=tuple(shown.values()))

    def exchange(said: Exchange) -> Exchange:
        evidence = dict.fromkeys(became[text]["content"] for text in said.evidence)
        return replace(said, text=spell(said.text), evidence=tuple(evidence))

    later = [replace(chat, exchanges=tuple(map(exchange, chat.exchanges))) for chat in talk.later]
    asked = [question(q) for q in talk.questions]
    pairs = [] if join else [pair(told) for told in talk.pairs]
    return replace(talk, messages=messages, pairs=pairs, questions=asked, later=later)


def spelled_as_shown(example: Example) -> Example:
    """An example of an answer that spells a word as its prompt does, if that has the word. Facts
    and replies stay as they are."""
    if example.stage != "generation":
        return example
    assert isinstance(example.prompt, str)
    shown = set(_WORD.findall(example.prompt))

    def word(found: re.Match[str]) -> str:
        bare = found[0].lower().replace("'", "").replace("’", "")
        spellings = (found[0], found[0].lower(), bare)
        return next((said for said in spellings if said in shown), found[0])

    return replace(example, target=_WORD.sub(word, example.target))


def _needs_user_alone(talk: Annotated) -> bool:
    """Whether all that is asked is told by messages of a user without a name."""
    mine = {m["content"] for m in talk.messages if m["role"] == "user" and not m.get("name")}
    asked = [evidence.text for question in talk.questions for evidence in question.evidence]
    later = [text for chat in talk.later for said in chat.exchanges for text in said.evidence]
    return bool(mine) and mine.issuperset((*asked, *later))


def _bare(text: str) -> str:
    bare = MARKS.sub(" ", text).lower().replace("'", "").replace("’", "")
    return " ".join(bare.split()) or text  # "?!" stays


def _slipped(text: str, rng: random.Random) -> str:
    def word(found: re.Match[str]) -> str:
        said = found[0]
        if said in _SHORT and rng.random() < _SHORTENED:
            return _SHORT[said]
        if len(said) < _SLIPPING or not said.islower() or rng.random() >= _SLIPS:
            return said
        at = rng.randrange(1, len(said) - 1)
        swapped = said[:at] + said[at + 1] + said[at] + said[at + 2 :]
        return rng.choice((swapped, said[:at] + said[at + 1 :], said[:at] + said[at] + said[at:]))

    return _WORD.sub(word, text)


def _joined(messages: list[dict[str, Any]], rng: random.Random) -> Iterator[dict[str, Any]]:
    """The user's messages alone, two or three of a session as one; `parts`: what they were."""
    for _, session in groupby(messages, key=lambda message: message["metadata"]["session"]):
        said = [message for message in session if message["role"] == "user"]
        while said:
            many = rng.randint(2, _AT_MOST)
            parts = [message["content"] for message in said[:many]]
            yield {**said[0], "content": " ".join(parts), "parts": parts}
            said = said[many:]
