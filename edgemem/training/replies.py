"""Later chats of written conversations, as examples for the experts that reply and that answer.

Each is played through a real `Chat` whose model is a script, so that an expert learns from what the
product would show it. Knows a Memory, Chat and written conversations; knows no model.
"""

from __future__ import annotations

import random
from collections.abc import Generator, Iterator, Mapping
from typing import Any

from edgemem.chat import Chat
from edgemem.memory import Memory
from edgemem.results import Scope
from edgemem.runtime.engine import Engine, Generation, Prompt, Stream
from edgemem.stages.generation import Recalled, expert_target, shown_text
from edgemem.training.annotated import Annotated, Exchange, Later, store
from edgemem.training.examples import Example

__all__ = ["answers", "examples"]

_MOST_SHOWN = 0.75  # of the messages that a summary needs; of two, both
_WINDOWS = (704, 1024)  # tokens; a known part of three tenths, as in the product


def examples(memory: Memory, talk: Annotated, *, seed: int = 0) -> Iterator[Example]:
    """An example for each later chat, up to its last answer whose evidence is shown.

    The conversation's turns are stored in `memory`. An answer whose evidence is not shown is not
    learned: it would teach to invent.
    """
    rng = random.Random(f"{seed} {talk.id} replies")
    written = _written(memory, talk)
    for later in talk.later:
        script = _Script(memory.engine, rng.choice(_WINDOWS), {"reply"})
        chat = Chat(memory, script, user_id=talk.id)  # type: ignore[arg-type]
        told = list(_told(chat, script, later, written))
        said = [*script.prompt, {"role": "assistant", "content": script.answer}]
        places = [i for i, message in enumerate(said) if message["role"] == "assistant"]
        learned = [i for i, told in zip(places, told[-len(places) :], strict=True) if told]
        if learned:
            *earlier, last = learned
            target = said[last]["content"]
            yield Example("reply", said[:last], target, talk.id, "chat", tuple(earlier))


def answers(memory: Memory, talk: Annotated) -> Iterator[Example]:
    """A generation example for each message that wants a fact, and whose evidence is shown."""
    written = _written(memory, talk)
    for later in talk.later:
        script = _Script(memory.engine, memory.engine.n_ctx, {"intent", "generation"})
        chat = Chat(memory, script, user_id=talk.id)  # type: ignore[arg-type]
        for exchange in later.exchanges:
            known = None if exchange.short == "-" else exchange.short
            script.prompt, script.wants = "", exchange.wants
            script.answer = expert_target(known) if exchange.short else exchange.reply
            _send(chat, exchange, later)
            shown = all(written[text] in script.prompt for text in exchange.evidence)
            if script.prompt and exchange.short and shown:
                kind = "told" if known else "unknown"
                yield Example("generation", script.prompt, script.answer, talk.id, kind)


def _written(memory: Memory, talk: Annotated) -> dict[str, str]:
    """The conversation's messages, which are stored, and each as a model is shown it."""
    store(memory, talk)
    turns = memory.store.recent_turns(Scope(user_id=talk.id), before=None, limit=len(talk.messages))
    return {
        turn.content: shown_text(Recalled(turn.content, turn.timestamp, "User", said=True))
        for turn in turns
    }


def _send(chat: Chat, exchange: Exchange, later: Later) -> None:
    for _ in chat.send(exchange.text, timestamp=later.at, remember=False):
        pass


def _told(chat: Chat, script: _Script, later: Later, written: Mapping[str, str]) -> Iterator[bool]:
    """Of each answer whether the model was shown its evidence.

    written: each message as notes show it.
    """
    for exchange in later.exchanges:
        script.answer = exchange.reply
        _send(chat, exchange, later)
        read = "\n".join(m["content"] for m in script.prompt if m["role"] != "assistant")
        shown = sum(written[text] in read for text in exchange.evidence)
        of = len(exchange.evidence)
        yield shown >= (of if of < 3 else _MOST_SHOWN * of)


class _Script:
    """A model with experts for some stages that says what was written for it.

    prompt: what it was shown last. answer, wants: what it says next, of itself and of a message.
    """

    def __init__(self, engine: Engine, n_ctx: int, stages: set[str]) -> None:
        self._engine, self._stages = engine, stages
        self.n_ctx = n_ctx
        self.name, self.n_params = engine.name, engine.n_params
        self.has_chat_template = True
        self.prompt: Any = []
        self.answer = self.wants = ""

    def expert(self, stage: str) -> bool:
        return stage in self._stages

    def count_tokens(self, prompt: Prompt) -> int:
        return self._engine.count_tokens(prompt)

    def warm(self, *_: Any, **__: Any) -> int:
        return 0

    def generate(self, prompt: str, **_: Any) -> Generation:
        return _generation(self.wants)

    def stream(self, prompt: Prompt, *, stage: str = "", **_: Any) -> Stream:
        if stage in self._stages:
            self.prompt = prompt
        return Stream(self._said())

    def _said(self) -> Generator[str, None, Generation]:
        yield self.answer
        return _generation(self.answer)


def _generation(text: str) -> Generation:
    return Generation(text, 0, 0, 0, 0.0, 0.0, "stop")
