"""Later chats of written conversations, as examples for the expert that replies.

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
from edgemem.stages.generation import Recalled, shown_text
from edgemem.training.annotated import Annotated, Later, store
from edgemem.training.examples import Example

__all__ = ["examples"]

_MOST_SHOWN = 0.75  # of the messages that a summary needs; of two, both
_WINDOWS = (704, 1024)  # tokens; a known part of three tenths, as in the product


def examples(memory: Memory, talk: Annotated, *, seed: int = 0) -> Iterator[Example]:
    """An example for each later chat, up to its last answer whose evidence is shown.

    The conversation's turns are stored in `memory`. An answer whose evidence is not shown is not
    learned: it would teach to invent.
    """
    rng = random.Random(f"{seed} {talk.id} replies")
    store(memory, talk)
    scope = Scope(user_id=talk.id)
    written = {
        turn.content: shown_text(Recalled(turn.content, turn.timestamp, "User", said=True))
        for turn in memory.store.recent_turns(scope, before=None, limit=len(talk.messages))
    }
    for later in talk.later:
        script = _Script(memory.engine, rng.choice(_WINDOWS))
        chat = Chat(memory, script, user_id=talk.id)  # type: ignore[arg-type]
        told = list(_told(chat, script, later, written))
        said = [*script.prompt, {"role": "assistant", "content": script.answer}]
        places = [i for i, message in enumerate(said) if message["role"] == "assistant"]
        learned = [i for i, told in zip(places, told[-len(places) :], strict=True) if told]
        if learned:
            *earlier, last = learned
            target = said[last]["content"]
            yield Example("reply", said[:last], target, talk.id, "chat", tuple(earlier))


def _told(chat: Chat, script: _Script, later: Later, written: Mapping[str, str]) -> Iterator[bool]:
    """Of each answer whether the model was shown its evidence.

    written: each message as notes show it.
    """
    for exchange in later.exchanges:
        script.answer = exchange.reply
        for _ in chat.send(exchange.text, timestamp=later.at, remember=False):
            pass
        read = "\n".join(m["content"] for m in script.prompt if m["role"] != "assistant")
        shown = sum(written[text] in read for text in exchange.evidence)
        of = len(exchange.evidence)
        yield shown >= (of if of < 3 else _MOST_SHOWN * of)


class _Script:
    """A model with an expert for replies that says what was written for it.

    prompt: what it was shown last. answer: what it says next.
    """

    def __init__(self, engine: Engine, n_ctx: int) -> None:
        self._engine = engine
        self.n_ctx = n_ctx
        self.name, self.n_params = engine.name, engine.n_params
        self.has_chat_template = True
        self.prompt: list[dict[str, str]] = []
        self.answer = ""

    def expert(self, stage: str) -> bool:
        return stage == "reply"

    def count_tokens(self, prompt: Prompt) -> int:
        return self._engine.count_tokens(prompt)

    def stream(self, prompt: list[dict[str, str]], **_: Any) -> Stream:
        self.prompt = prompt
        return Stream(self._said())

    def _said(self) -> Generator[str, None, Generation]:
        yield self.answer
        return Generation(self.answer, 0, 0, 0, 0.0, 0.0, "stop")
