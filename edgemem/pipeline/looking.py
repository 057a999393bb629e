"""From an image in a message to a memory that words find, and back: what is seen in stored images,
which look alike, the line that a search result is cited by, which a question is about.

The text of its memory is what is known of an image: what it was called, and what was read in it. It
is written anew when more is known; a text that somebody gave it by hand (`Memory.update`) is its
caption from then on.

An image waits in the state "pending" until its text was read, in this process or another, so a
crash loses nothing. A memory limit that has no room for the OCR leaves it waiting. One without a
caption waits for a model that sees, whose caption it is then (`caption_by`). No `add` waits.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from edgemem.errors import ContextOverflow, EdgememError, InputError, ModelError, StoreError
from edgemem.images import picture
from edgemem.images.ocr import LONGEST, Ocr
from edgemem.inputs import NO_WORDS
from edgemem.language import content_words, day_text
from edgemem.pipeline.ingest import Told, rewritten
from edgemem.pipeline.recall import share
from edgemem.results import (
    Hit,
    ImageLine,
    MemoryItem,
    Message,
    Picture,
    Scope,
    SearchResults,
    local_time,
    utc_now,
)
from edgemem.retrieval.search import Scored
from edgemem.runtime.engine import Engine, Stream
from edgemem.runtime.image_embedder import ImageEmbedder
from edgemem.runtime.vocabulary import Pixels
from edgemem.stages import vision
from edgemem.store import StoredTurn, images
from edgemem.store.filters import Where

if TYPE_CHECKING:
    from edgemem.memory import Memory

__all__ = ["NEAR", "QUIET_S", "Reader", "answer", "caption", "described", "found_alike", "given"]
__all__ += ["hits", "look", "photos", "recalled", "set_read", "waits"]

NEAR = 8
"""Bits of 64 by which the perceptual hashes of copies differ at most: bench/LOG.md."""
QUIET_S = 2.0
MAX_CAPTION_CHARS = 500
_FIRST = 6  # memories that a search found, whose images are looked at
_MOST = 4  # images at once: each is shown in a share of the window


# -- told ----------------------------------------------------------------------------------------


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
) -> list[Told]:
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
            found.append(Told(turn, described(seen, turn.timestamp), seen))
    return found


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


# -- seen ----------------------------------------------------------------------------------------


def look(
    memory: Memory,
    limit: int | None = None,
    *,
    stop: Callable[[], bool] = lambda: False,
    on_progress: Callable[[int, int], None] | None = None,
) -> int:
    """Read the text of images that wait for it, and embed those that lack a vector; how many.

    limit: of each at most so many. Nothing is done where the settings or a memory limit leave the
    models out, or they are not installed. An image that cannot be read is "failed" and not tried
    again; one that was erased meanwhile is passed over. Raises ModelError, StoreError.
    """
    store, parts, done = memory.store, memory._parts, 0
    with parts.looking:
        waiting = images.unread(store, limit)
        if waiting and (ocr := parts.ocr()) is not None:
            for id in waiting:
                if stop():
                    break
                _read(memory, ocr, id)
                done += 1
                if on_progress is not None:
                    on_progress(done, len(waiting))
            parts.drop_ocr()
        if (embedder := parts.image_embedder()) is not None:
            for id in images.without_embedding(store, embedder.model_id, limit):
                if stop():
                    break
                if (stored := images.image(store, id)) is not None:
                    vector = _embedded(embedder, stored.data).tobytes()
                    with store.transaction() as tx:
                        tx.set_image_embedding(id, embedder.model_id, vector)
                    done += 1
    return done


def _read(memory: Memory, ocr: Ocr, id: str) -> None:
    stored = images.image(memory.store, id)
    if stored is None:
        return
    try:
        pixels = picture.pixels(stored.data, LONGEST)
        lines = ocr.read(pixels)
    except (InputError, ModelError):
        set_read(memory, id, "failed")
        return
    scale = stored.width / pixels.shape[1]
    found = []
    for line in lines:
        box = tuple((round(x * scale, 1), round(y * scale, 1)) for x, y in line.box)
        found.append(replace(line, box=box).to_dict())
    text = "\n".join(line.text for line in lines)
    set_read(memory, id, "done", text or None, json.dumps(found, ensure_ascii=False))


def _embedded(embedder: ImageEmbedder, data: bytes) -> NDArray[np.float32]:
    return embedder.embed(picture.square(data, embedder.side, crop=embedder.crop))


def caption(memory: Memory, limit: int | None = None) -> None:
    """Name images that have no caption, oldest first. limit: at most so many.

    None where the language model sees no images, which is not loaded to find that out. An image
    that it cannot read gets an empty caption, and is not tried again. Raises ModelError.
    """
    if not memory._parts.sees:
        return
    for memory_id, image_id in images.uncaptioned(memory.store, -1 if limit is None else limit):
        if (stored := images.image(memory.store, image_id)) is not None:
            try:
                text = vision.caption(memory.engine, picture.pixels(stored.data, vision.LONGEST))
            except (InputError, ContextOverflow):
                text = ""
            set_caption(memory, memory_id, text, memory.engine.name)


def waits(memory: Memory) -> bool:
    """Whether an image could be given a caption now."""
    return memory._parts.sees and bool(images.uncaptioned(memory.store, 1))


class Reader:
    """Looks at images in a thread of its own, which ends when none waits. Safe from any thread.

    It begins QUIET_S after it was woken, so that what is stored and asked at once is not slowed.
    """

    def __init__(self, work: Callable[[Callable[[], bool]], object]) -> None:
        """work: does all that waits, or until the function that it is given says to stop."""
        self._work = work
        self._lock = threading.Lock()
        self._wanted = False
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def wake(self) -> None:
        """Something waits."""
        with self._lock:
            self._wanted = True
            if self._thread is None and not self._closed.is_set():
                thread = threading.Thread(target=self._run, name="edgemem-ocr")
                with suppress(RuntimeError):  # no more threads, or the program is ending
                    thread.start()
                    self._thread = thread

    def close(self) -> None:
        """Stop after the image under way, and wait for that; the others wait for another time."""
        self._closed.set()
        if (thread := self._thread) is not None:
            thread.join()

    def _run(self) -> None:
        while True:
            self._closed.wait(QUIET_S)
            with self._lock:
                if not self._wanted or self._closed.is_set():
                    self._thread = None
                    return
                self._wanted = False
            with suppress(EdgememError):  # they wait on, and `process_pending` tells why
                self._work(self._stopped)

    def _stopped(self) -> bool:
        return self._closed.is_set() or not threading.main_thread().is_alive()


# -- alike ---------------------------------------------------------------------------------------


def found_alike(
    memory: Memory,
    source: bytes | str | Path,
    scope: Scope,
    where: Where | None,
    at: str | None,
    top_k: int,
    threshold: float | None,
) -> SearchResults:
    """The memories of images that look like another, best first.

    source: its bytes, path or data URI. A copy of it, of another size, format or brightness, has a
    hash that differs by NEAR bits at most, and scores 1 - bits / 64. With an image embedder also
    what is alike in its eyes, by the cosine. The rest as `Memory.search`'s, and its errors.
    """
    started = time.perf_counter()
    store, embedder = memory.store, memory._parts.image_embedder()
    given = picture.read(source)
    rowids = store.rowids(scope, where=where, kinds={"image"}, now=utc_now(), at=at)
    looks = images.looks(store, rowids.tolist(), embedder.model_id if embedder else None)
    if not looks:
        return SearchResults()
    hashes = _bytes("".join(phash for _, phash, _ in looks)).reshape(len(looks), -1)
    bits = np.unpackbits(hashes ^ _bytes(given.phash), axis=1).sum(axis=1)
    scores = np.where(bits <= NEAR, 1 - bits / 64, 0.0)
    if embedder is not None:
        scores = np.maximum(scores, _cosines(looks, _embedded(embedder, given.data)))
    least = max(threshold or 0.0, np.finfo(np.float32).tiny)
    best = [i for i in np.argsort(-scores, kind="stable")[:top_k].tolist() if scores[i] >= least]
    items = store.by_rowids([looks[i][0] for i in best])
    found = [Hit.of(items[looks[i][0]], float(scores[i])) for i in best if looks[i][0] in items]
    took_ms = (time.perf_counter() - started) * 1e3
    return SearchResults(tuple(found), search_ms=took_ms, candidates=len(looks))


def _bytes(hexadecimal: str) -> NDArray[np.uint8]:
    return np.frombuffer(bytes.fromhex(hexadecimal), np.uint8)


def _cosines(
    looks: Sequence[tuple[int, str, bytes | None]], vector: NDArray[np.float32]
) -> NDArray[np.float32]:
    """(n,) of images with a vector; 0 of those without."""
    out = np.zeros(len(looks), np.float32)
    for i, (_, _, embedding) in enumerate(looks):
        if embedding is not None and len(embedding) == vector.nbytes:
            out[i] = np.frombuffer(embedding, np.float32) @ vector
    return out


# -- cited ---------------------------------------------------------------------------------------


def hits(memory: Memory, scored: Sequence[Scored], query: str) -> tuple[Hit, ...]:
    """What a search found, each image with the line in it that has most of the query's words, the
    first of equals."""
    items = memory.store.by_rowids([each.rowid for each in scored])
    ids = {item.image.id for item in items.values() if item.image is not None}
    read = images.lines(memory.store, ids) if ids else {}
    asked = set(content_words(query)) if read else set()
    found = []
    for each in scored:
        if (item := items.get(each.rowid)) is not None:
            lines = read.get(item.image.id, ()) if item.image is not None else ()
            found.append(Hit.of(item, each.score, each.parts, _cited(lines, asked)))
    return tuple(found)


def _cited(lines: Sequence[ImageLine], asked: set[str]) -> ImageLine | None:
    shares = [share(asked, line.text) for line in lines]
    return lines[int(np.argmax(shares))] if any(shares) else None


# -- shown to a model that sees ------------------------------------------------------------------


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
