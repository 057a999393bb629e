"""From an image in a message to a memory that words find, and back.

The memory's text is what is known of the image: what it was called, and what was read in it. It is
written anew when more is known; a text that somebody gave it by hand (`Memory.update`) is its
caption from then on.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from edgemem.errors import StoreError
from edgemem.images import picture
from edgemem.inputs import NO_WORDS
from edgemem.language import day_text
from edgemem.pipeline.ingest import added
from edgemem.results import Change, MemoryItem, Message, Picture, local_time, utc_now
from edgemem.retrieval.lexical import embedded_text, search_text
from edgemem.store import NewMemory, StoredTurn, Transaction, images

if TYPE_CHECKING:
    from edgemem.memory import Memory

__all__ = ["Photo", "described", "photos", "set_caption", "set_read", "store"]

MAX_CAPTION_CHARS = 500


@dataclass(frozen=True, slots=True)
class Photo:
    """An image of a turn, that is to be stored. picture: with its caption, and what was read."""

    picture: Picture
    turn: StoredTurn

    @property
    def text(self) -> str:
        """What its memory says."""
        return described(self.picture, self.turn.timestamp)

    @property
    def indexed(self) -> str:
        """What is searched of it."""
        return search_text(self.text, speaker=self.turn.name, when=self.turn.timestamp)

    @property
    def embedded(self) -> str:
        """What its vectors are made of."""
        return embedded_text(self.indexed)

    def memory(
        self, vectors: NDArray[np.float32], metadata: Mapping[str, Any], expires_at: str | None
    ) -> NewMemory:
        """The memory that it becomes. vectors: (c, dim) float32, those of `embedded`."""
        return NewMemory(
            id=str(uuid.uuid4()),
            kind="image",
            memory=self.text,
            search_text=self.indexed,
            scope=self.turn.scope,
            created_at=self.turn.created_at,
            vectors=vectors,
            metadata={**metadata, **self.turn.metadata},
            valid_from=self.turn.timestamp,
            expires_at=expires_at,
            sources=(self.turn.id,),
        )


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
            found.append(Photo(seen, turn))
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
        item = photo.memory(chunks, metadata, expires_at)
        tx.add_memory(item, role=photo.turn.role, actor_id=photo.turn.name)
        tx.add_image(item.id, photo.picture)
        changes.append(added(item))
    return changes


def set_read(
    memory: Memory, id: str, state: str, text: str | None = None, boxes: str | None = None
) -> None:
    """Note what was read in an image (its id), and say so in the text of its memories.

    state: "done" or "failed". boxes: JSON. Raises StoreError if the image is not there any more.
    """
    held, embedder = memory.store, memory.embedder
    seen = images.image(held, id, with_data=False)
    if seen is None:
        raise StoreError(f"there is no image {id!r:.80}; it may have been erased meanwhile")
    shown = images.shown_by(held, id)
    items = held.get([each.memory_id for each in shown])
    made = []
    for each in shown if text else ():
        known = replace(seen, caption=each.caption, caption_by=each.caption_by, ocr_text=text)
        made.append(_Words.of(memory, items[each.memory_id], known))
    with memory._writing(embedder) as tx:
        tx.set_ocr(id, state, text, boxes)
        for words in made:
            words.write(tx)


def set_caption(memory: Memory, memory_id: str, caption: str, by: str) -> None:
    """Let a memory call its image so. An empty caption says that none was found, and is shown
    nowhere. Raises StoreError if the memory is not there any more."""
    held = memory.store
    item = held.get([memory_id]).get(memory_id)
    seen = None if item is None or item.image is None else images.image(held, item.image.id)
    if item is None or seen is None:
        raise StoreError(f"there is no image of the memory {memory_id!r:.80}; it may be erased")
    caption = caption[:MAX_CAPTION_CHARS]
    words = _Words.of(memory, item, replace(seen, caption=caption, caption_by=by))
    with memory._writing(memory.embedder) as tx:
        tx.set_caption(memory_id, caption, by)
        if caption:
            words.write(tx)


@dataclass(frozen=True, slots=True)
class _Words:
    """What a memory says of its image by now, with its vectors."""

    memory_id: str
    text: str
    indexed: str
    vectors: NDArray[np.float32]

    @classmethod
    def of(cls, memory: Memory, item: MemoryItem, known: Picture) -> _Words:
        when = item.valid_from or item.created_at
        text = described(known, when)
        speaker = next((turn.name for turn in memory.store.turns(item.sources).values()), None)
        indexed = search_text(text, speaker=speaker, when=when)
        vectors = memory.embedder.embed_chunks([embedded_text(indexed)])[0]
        return cls(item.id, text, indexed, vectors)

    def write(self, tx: Transaction) -> None:
        tx.update_memory(
            self.memory_id, memory=self.text, search_text=self.indexed, vectors=self.vectors,
            updated_at=utc_now(),
        )  # fmt: skip
