"""Later chats of written conversations, as examples for the expert that replies.

Each is played through a real `Chat` whose model is a script, so that an expert learns from what the
product would show it. Knows a Memory, Chat and written conversations; knows no model.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from typing import Any

from edgemem.chat import Chat
from edgemem.importers import batches
from edgemem.memory import Memory
from edgemem.results import Scope
from edgemem.runtime.engine import Engine, Generation, Prompt, Stream
from edgemem.training.annotated import Annotated, Later
from edgemem.training.examples import Example

__all__ = ["examples"]

_MOST_SHOWN = 0.75  # of the messages that a summary needs; of two, both


def examples(memory: Memory, talk: Annotated) -> Iterator[Example]:
    """An example for each later chat, up to its last answer that the notes tell.

    The conversation is stored in `memory`, facts and all. An answer whose evidence is not shown is
    not learned: it would teach to invent.
    """
    user_id = f"{talk.id} and later"  # other examples of it store its turns alone
    for batch in batches(talk.messages, infer=True):
        memory.add(batch, user_id=user_id)
    scope = Scope(user_id=user_id)
    told = {
        turn.content: {fact.memory for fact in memory.store.list(scope, kinds={"fact"})
                       if turn.id in fact.sources}
        for turn in memory.store.recent_turns(scope, before=None, limit=len(talk.messages))
    }  # fmt: skip
    for later in talk.later:
        script = _Script(memory.engine)
        chat = Chat(memory, script, user_id=user_id)  # type: ignore[arg-type]
        learned = list(_learned(chat, script, later, told))
        if learned:
            *earlier, last = learned
            said = [*script.prompt, {"role": "assistant", "content": script.answer}]
            target = said[last]["content"]
            yield Example("reply", said[:last], target, talk.id, "chat", tuple(earlier))


def _learned(
    chat: Chat, script: _Script, later: Later, told: Mapping[str, set[str]]
) -> Iterator[int]:
    """Places of the answers in the conversation whose evidence the model was shown.

    told: of each message the facts that were taken from it.
    """
    noted: set[str] = set()
    for exchange in later.exchanges:
        script.answer = exchange.reply
        reply = chat.send(exchange.text, timestamp=later.at, remember=False)
        for _ in reply:
            pass
        for hit in reply.context:
            noted |= {turn.content for turn in chat.memory.source_turns(hit.id)}
        system = script.prompt[0]["content"]
        shown = [
            text in noted or any(fact in system for fact in told.get(text, ()))
            for text in exchange.evidence
        ]
        least = len(shown) if len(shown) < 3 else _MOST_SHOWN * len(shown)
        if sum(shown) >= least:
            yield len(script.prompt)


class _Script:
    """A model with an expert for replies that says what was written for it.

    prompt: what it was shown last. answer: what it says next.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.n_ctx = engine.n_ctx
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
