"""From an image in a message to a memory that words find, and back.

The memory's text is what is known of the image: what it was called, and what was read in it. It is
written anew when more is known; a text that somebody gave it by hand (`Memory.update`) is its
caption from then on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from edgemem.errors import StoreError
from edgemem.images import picture
from edgemem.inputs import NO_WORDS
from edgemem.language import day_text
from edgemem.pipeline.ingest import added, rewritten, turn_memory
from edgemem.results import Change, MemoryItem, Message, Picture, local_time
from edgemem.store import StoredTurn, Transaction, images

if TYPE_CHECKING:
    from edgemem.memory import Memory

__all__ = ["Photo", "described", "photos", "set_caption", "set_read", "store"]

MAX_CAPTION_CHARS = 500


@dataclass(frozen=True, slots=True)
class Photo:
    """An image of a turn, that is to be stored. picture: with its caption, and what was read. text:
    what its memory says."""

    picture: Picture
    turn: StoredTurn
    text: str


def described(picture: Picture, sent_at: str) -> str:
    """What is known of an image, as a text: its day if it is not that of sending, its caption, and
    what was read in it."""
    taken = local_time(picture.taken_at) if picture.taken_at else ""
    day = f" taken on {day_text(taken)}" if taken[:10] not in ("", local_time(sent_at)[:10]) else ""
    lines = [f"Photo{day}: {picture.caption}" if picture.caption else f"Photo{day}"]
    if picture.ocr_text:
        lines.append(f"Text in it: {picture.ocr_text}")
    return "\n".join(lines)


def photos(
    memory: Memory, checked: Sequence[tuple[Message, bool]], turns: Iterable[StoredTurn]
) -> list[Photo]:
    """The images of messages, looked at; nothing is stored. turns: of the messages, in order.

    Without a caption of its own an image is called what was said with it, unless that only asks.
    Raises InputError on an image that cannot be stored, ConfigError without the extra `images`.
    """
    found = []
    for (message, recalled), turn in zip(checked, turns, strict=True):
        for part in message.images:
            seen = picture.read(part.source, place=memory.settings.image_place == "keep")
            caption, by = part.caption, turn.name or turn.role
            if caption is None and turn.content != NO_WORDS and not recalled:
                caption = turn.content
            seen = replace(
                seen,
                caption=caption and caption[:MAX_CAPTION_CHARS],
                caption_by=by if caption else None,
                ocr_text=images.text_of(memory.store, seen.id),
            )
            found.append(Photo(seen, turn, described(seen, turn.timestamp)))
    return found


def store(
    tx: Transaction,
    found: Iterable[Photo],
    vectors: Iterable[NDArray[np.float32]],
    metadata: Mapping[str, Any],
    expires_at: str | None,
) -> list[Change]:
    """Store images with their memories, after their turns. vectors: of what of each is embedded."""
    changes = []
    for photo, chunks in zip(found, vectors, strict=True):
        item = turn_memory(photo.turn, chunks, metadata, expires_at, image=photo.text)
        tx.add_memory(item, role=photo.turn.role, actor_id=photo.turn.name)
        tx.add_image(item.id, photo.picture)
        changes.append(added(item))
    return changes


def set_read(
    memory: Memory, id: str, state: str, text: str | None = None, boxes: str | None = None
) -> None:
    """Note what was read in an image (its id), and say so in the text of its memories.

    state: "done" or "failed". boxes: JSON. Nothing, if the image is not there any more.
    """
    held = memory.store
    seen = images.image(held, id, with_data=False)
    if seen is None:
        return
    shown = {each.memory_id: each.caption for each in images.shown_by(held, id)} if text else {}
    made = [
        (item.id, _reworded(memory, item, replace(seen, caption=shown[item.id], ocr_text=text)))
        for item in held.get([*shown]).values()
    ]
    with _unless_erased(memory, id), memory._writing() as tx:
        tx.set_ocr(id, state, text, boxes)
        for memory_id, words in made:
            tx.update_memory(memory_id, **words)


def set_caption(memory: Memory, memory_id: str, caption: str, by: str) -> None:
    """Let a memory call its image so. An empty caption says that none was found, and is shown
    nowhere. Nothing, if the memory is not there any more."""
    item = memory.store.get([memory_id]).get(memory_id)
    if item is None or item.image is None:
        return
    seen = images.image(memory.store, item.image.id, with_data=False)
    if seen is None:
        return
    caption = caption[:MAX_CAPTION_CHARS]
    words = _reworded(memory, item, replace(seen, caption=caption)) if caption else None
    with _unless_erased(memory, seen.id), memory._writing() as tx:
        tx.set_caption(memory_id, caption, by)
        if words:
            tx.update_memory(memory_id, **words)


def _reworded(memory: Memory, item: MemoryItem, known: Picture) -> dict[str, Any]:
    return rewritten(memory, item, described(known, item.valid_from or item.created_at))


@contextmanager
def _unless_erased(memory: Memory, id: str) -> Iterator[None]:
    try:
        yield
    except StoreError:
        if images.image(memory.store, id, with_data=False) is not None:
            raise  # it is still there
