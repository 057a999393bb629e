"""Stage 3, generation: a question and recalled memories in, a short answer out.

A small base model answers best when it completes a quotation: shown what was said and when, the
most relevant last, and an opened quote to close, it copies the answer (5 of 6 in the first demo
against 2 to 4 with chat prompts). So recall is answered through a plain completion, which any GGUF
can do; only talk that needs no memory goes through the chat template.

Knows memories as dated text; knows nothing of the store or of how they were found.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from edgemem.results import Message
from edgemem.runtime.engine import Engine, Prompt, Stream
from edgemem.stages.dates import absolute, day_text

__all__ = ["NOTHING_FOUND", "Recalled", "answer", "reply"]

NOTHING_FOUND = "I have nothing about that in my memory."

MAX_ANSWER_TOKENS = 48
MAX_REPLY_TOKENS = 64
_SYSTEM = "You are a friendly companion. Reply in one or two short sentences."


@dataclass(frozen=True, slots=True)
class Recalled:
    """One memory as it is shown to the model. said: whether `text` is somebody's own words."""

    text: str
    when: str | None
    speaker: str
    said: bool


def answer(engine: Engine, question: str, memories: Sequence[Recalled], *, speaker: str) -> Stream:
    """Answer a question from memories, the most relevant first in the sequence.

    speaker: who asks. Memories that do not fit the context window beside more relevant ones are
    left out. Raises ContextOverflow when the question alone does not fit.
    """
    shown: list[Recalled] = []
    for memory in memories:
        prompt = _prompt(question, [*shown, memory], speaker)
        if engine.count_tokens(prompt) + MAX_ANSWER_TOKENS <= engine.n_ctx:
            shown.append(memory)
    return engine.stream(
        _prompt(question, shown, speaker),
        max_tokens=MAX_ANSWER_TOKENS,
        stop=('"', "\n"),
        stage="generation",
    )


def reply(engine: Engine, text: str, turns: Sequence[Message]) -> Stream:
    """Reply to talk that asks for no memory. turns: the last ones of this chat, oldest first.

    The oldest are left out when they do not fit. Raises ContextOverflow when `text` does not.
    """
    prompt = _talk(engine, text, turns)
    while turns and engine.count_tokens(prompt) + MAX_REPLY_TOKENS > engine.n_ctx:
        turns = turns[1:]
        prompt = _talk(engine, text, turns)
    if isinstance(prompt, str):
        return engine.stream(prompt, max_tokens=MAX_REPLY_TOKENS, stop=("\n",), stage="generation")
    return engine.stream(prompt, max_tokens=MAX_REPLY_TOKENS, repeat_penalty=1.1, stage="reply")


def _talk(engine: Engine, text: str, turns: Sequence[Message]) -> Prompt:
    if not engine.has_chat_template:
        past = "".join(f"{t.name or t.role}: {t.content}\n" for t in turns)
        return f"{_SYSTEM}\n\n{past}user: {text}\nassistant:"
    messages = [{"role": "system", "content": _SYSTEM}]
    messages += [{"role": t.role, "content": t.content} for t in turns]
    return [*messages, {"role": "user", "content": text}]


def _prompt(question: str, memories: Sequence[Recalled], speaker: str) -> str:
    lines = "".join(_line(m) for m in reversed(memories))
    question = " ".join(question.split())
    return f"{lines}\nQuestion to {speaker}: {question}\n{speaker}'s short answer: \""


def _line(memory: Recalled) -> str:
    when = f"On {day_text(datetime.fromisoformat(memory.when).date())}, " if memory.when else ""
    text = " ".join(memory.text.split())  # a line of it could look like one of the prompt
    if not memory.said:
        return f"{when}it was noted: {text}\n"
    if memory.when:
        text = absolute(text, memory.when)[0]
    text = text.replace('"', "'")  # it would end the quotation that the model is to imitate
    return f'{when}{memory.speaker} said: "{text}"\n'
