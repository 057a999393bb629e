"""Stage 4, vision: answers about an image (a word and a reason), captions, and choices of images.

MemLoRA-V answers in JSON with one word, which can be checked, and a reason; here a grammar forces
the form. The instruction comes first and the image next, so that the KV of both is cached for the
next question about the image. An expert has learned the form and reads a plain prompt. A model
without an expert reads its chat template, as vision models are trained on it.
Source: MemLoRA, section 3.3.

Knows pixels and texts; knows nothing of where an image is stored.
"""

from __future__ import annotations

import json
import re
from collections.abc import Generator, Sequence
from dataclasses import replace
from typing import Any, Final

from edgemem.inputs import without_thoughts
from edgemem.runtime.engine import Engine, Generation, Stream
from edgemem.runtime.generation import close_json
from edgemem.runtime.vocabulary import Pixels, Prompt

__all__ = ["LONGEST", "NOT_SEEN", "STAGE", "answer", "caption", "expert_prompt", "expert_target"]
__all__ += ["which"]

STAGE: Final = "vision"
LONGEST = 1344
"""Pixels of an image's longest side: three tiles of 448. Most models scale it down further."""
NOT_SEEN = "I cannot tell that from the image."
EXPERT_PROMPT = (
    "Answer the question about the image with one word. "
    'Return JSON: {"answer": "<one word>", "reason": "<explanation>"}.'
)
CAPTION_PROMPT = "Say in one sentence what the image shows."
WHICH_PROMPT = (
    "Which of these images does the question ask for? "
    'Return JSON: {"image": <its number, or 0 if it is none of them>}.'
)
MAX_ANSWER_TOKENS = 96
MAX_CAPTION_TOKENS = 48
_MAX_WORD_CHARS, _MAX_REASON_CHARS = 40, 240  # limits that the grammar sets
_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "answer": {"type": "string", "maxLength": _MAX_WORD_CHARS},
        "reason": {"type": "string", "maxLength": _MAX_REASON_CHARS},
    },
    "required": ["answer", "reason"],
}
_SENTENCE = re.compile(r".+?[.!?](?=\s|$)")


def answer(engine: Engine, question: str, image: Pixels) -> Stream:
    """A word about an image, and why, as one piece of text: "Red. The car is red."

    image: (height, width, 3) uint8. Raises ModelError where the engine sees no images,
    ContextOverflow when the question does not fit beside the image.
    """
    prompt = _prompt(engine, EXPERT_PROMPT, [image], _asked(question))
    stream = engine.stream(prompt, max_tokens=MAX_ANSWER_TOKENS, schema=_SCHEMA, stage=STAGE)
    return Stream(_said(stream))


def caption(engine: Engine, image: Pixels) -> str:
    """What an image shows, in a sentence; empty if the model says nothing. Errors as `answer`."""
    prompt = _prompt(engine, CAPTION_PROMPT, [image], "\nThe image shows:")
    made = engine.generate(prompt, max_tokens=MAX_CAPTION_TOKENS, stop=("\n",), stage=STAGE)
    text = " ".join(without_thoughts(made.text).split())
    found = _SENTENCE.match(text)
    return found[0] if found else text


def which(engine: Engine, question: str, images: Sequence[Pixels]) -> int | None:
    """The index, from 0, of the image that a question asks for; None if it is none of them.

    images: all are shown in one prompt, each in a share of the window. Errors as `answer`.
    """
    if not images:
        return None
    schema = {
        "type": "object",
        "properties": {"image": {"enum": list(range(len(images) + 1))}},
        "required": ["image"],
    }
    prompt = _prompt(engine, WHICH_PROMPT, images, _asked(question))
    made = engine.generate(prompt, max_tokens=16, schema=schema, stage=STAGE)
    number = json.loads(close_json(made.text) or "{}").get("image", 0)
    return number - 1 if number else None


def expert_prompt(question: str, image: Pixels) -> list[str | Pixels]:
    """An expert's prompt."""
    return _parts(EXPERT_PROMPT, [image], _asked(question) + "\n")


def expert_target(answer: str, reason: str) -> str:
    """The text that an expert answers with, without its end-of-turn token."""
    answer, reason = (" ".join(text.split()) for text in (answer, reason))
    return json.dumps({"answer": answer, "reason": reason}, ensure_ascii=False)


def _asked(question: str) -> str:
    return f"\nQuestion: {' '.join(question.split())}"


def _parts(instruction: str, images: Sequence[Pixels], end: str) -> list[str | Pixels]:
    parts: list[str | Pixels] = [f"{instruction}\n\n"]
    for number, image in enumerate(images, 1):
        parts += [f"Image {number}: " if len(images) > 1 else "", image, "\n"]
    return [*parts, end.lstrip("\n")]


def _prompt(engine: Engine, instruction: str, images: Sequence[Pixels], end: str) -> Prompt:
    if engine.expert(STAGE) or not engine.has_chat_template:
        return _parts(instruction, images, end + "\n")
    return [{"role": "user", "content": _parts(instruction, images, end)}]


def _said(stream: Stream) -> Generator[str, None, Generation]:
    """A JSON answer put in words, as one piece once it is complete."""
    result = stream.whole()
    fields = json.loads(close_json(result.text) or "{}")
    word, reason = (" ".join(str(fields.get(key, "")).split()) for key in ("answer", "reason"))
    text = f"{word.rstrip('.')}. {reason}".strip() if word else NOT_SEEN
    yield text
    return replace(result, text=text)
