"""What a vision model is shown of stored images: one that a question is about, one without a name.

An image without a caption waits for one until a model that sees works it off, which no `add` waits
for. The caption is the model's, and says so (`caption_by`).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from edgemem.errors import ContextOverflow, InputError, StoreError
from edgemem.images import picture
from edgemem.pipeline import pictures
from edgemem.results import Hit
from edgemem.runtime.engine import Engine, Stream
from edgemem.runtime.vocabulary import Pixels
from edgemem.stages import vision
from edgemem.store import images

if TYPE_CHECKING:
    from edgemem.memory import Memory

__all__ = ["answer", "caption", "given", "recalled", "waits"]

_FIRST = 6  # memories that a search found, whose images are looked at
_MOST = 4  # images at once: each is shown in a share of the window


def caption(memory: Memory, limit: int | None = None) -> int:
    """Name images that have no caption, oldest first; how many. limit: at most so many.

    None where the language model sees no images, which is not loaded to find that out. An image
    that it cannot read gets an empty caption, and is not tried again. Raises ModelError.
    """
    held, done = memory.store, 0
    if not memory._parts.sees:
        return 0
    for memory_id, image_id in images.uncaptioned(held, -1 if limit is None else limit):
        stored = images.image(held, image_id)
        if stored is None:
            continue
        try:
            text = vision.caption(memory.engine, picture.pixels(stored.data, vision.LONGEST))
        except (InputError, ContextOverflow):
            text = ""
        try:
            pictures.set_caption(memory, memory_id, text, memory.engine.name)
        except StoreError:
            if images.image(held, image_id, with_data=False) is not None:
                raise  # else it was erased meanwhile
        done += 1
    return done


def waits(memory: Memory) -> bool:
    """Whether an image could be given a caption now."""
    return memory._parts.sees and bool(images.uncaptioned(memory.store, 1))


def given(sources: Sequence[bytes | str | Path]) -> tuple[Pixels, ...]:
    """The pixels of images as `Memory.add` takes them. Raises InputError, ConfigError."""
    return tuple(picture.pixels(picture.read(source).data, vision.LONGEST) for source in sources)


def recalled(memory: Memory, hits: Sequence[Hit]) -> tuple[tuple[Hit, ...], tuple[Pixels, ...]]:
    """The images that a question may be about, and the memories that led to them: of the turns that
    the first memories are from, where the best one's came with an image."""
    first = hits[:_FIRST]
    came = images.of_turns(memory.store, [turn for hit in first for turn in hit.sources])
    shown = tuple(hit for hit in first if came.keys() & {*hit.sources})
    if not shown or shown[0] is not first[0]:
        return (), ()
    ids = dict.fromkeys(i for hit in shown for turn in hit.sources for i in came.get(turn, ()))
    stored = (images.image(memory.store, id) for id in [*ids][:_MOST])
    return shown, tuple(picture.pixels(s.data, vision.LONGEST) for s in stored if s is not None)


def answer(engine: Engine, question: str, pixels: Sequence[Pixels]) -> Stream:
    """An answer from an image; of several, from the one that the question is about."""
    best = vision.which(engine, question, pixels) if len(pixels) > 1 else 0
    return vision.answer(engine, question, pixels[best or 0])
