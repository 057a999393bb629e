"""Images of messages: their memories, their text and captions, look-alikes, answers from them.

The text of an image's memory is its caption and the text that was read in it, written anew when
either changes. A text that the user gives the memory by hand (`Memory.update`) becomes the caption.
A caption that is the text of the image's message changes with the message.

An image stays "pending" until a process has read its text, so a crash loses nothing. An image
without a caption gets one from a model that sees, whose name is stored in `caption_by`.
`Memory.add` waits for neither.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from edgemem import images as picture
from edgemem.errors import ContextOverflow, EdgememError, InputError, ModelError
from edgemem.images import LONGEST, Ocr
from edgemem.inputs import NO_WORDS
from edgemem.language import content_words, day_text, share
from edgemem.pipeline.ingest import Draft, Outdated, retried_if_outdated, text_update
from edgemem.pipeline.passages import BARE, TEXT_IN_IT
from edgemem.results import (
    AddResults,
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
from edgemem.runtime.embedder import ImageEmbedder
from edgemem.runtime.engine import Engine, Stream
from edgemem.runtime.vocabulary import Pixels
from edgemem.stages import vision
from edgemem.store import StoredTurn, images
from edgemem.store.filters import Where
from edgemem.store.writing import Transaction

if TYPE_CHECKING:
    from edgemem.memory import Memory

__all__ = ["NEAR", "BackgroundReader", "answer", "caption", "caption_waits", "described", "drafts"]
__all__ += ["hits_of", "images_of", "pixels_of", "read_pending", "recaptioned", "search_by_image"]
__all__ += ["sent_with", "set_caption", "set_captions", "set_text"]

NEAR = 8
"""Perceptual hashes of copies differ in at most so many of 64 bits (bench/LOG.md, 2026-11-25)."""
QUIET_S = 2.0
MAX_CAPTION_CHARS = 500
_FIRST = 6  # best hits of a search whose images a question may be about
_MOST = 4  # images shown at once: each gets a share of the window


class Recaptioned(NamedTuple):
    """A memory of an image, and its new caption.

    old: the memory as it was read. changes: the arguments of `Transaction.update_memory`.
    """

    old: MemoryItem
    caption: str | None
    changes: dict[str, Any]


# -- memories of images --------------------------------------------------------------------------


def described(picture: Picture, sent_at: str) -> str:
    """The text of an image's memory: the day it was taken, if that is not the day it was sent, its
    caption, and the text that was read in it."""
    taken = local_time(picture.taken_at) if picture.taken_at else ""
    day = f" taken on {day_text(taken)}" if taken[:10] not in ("", local_time(sent_at)[:10]) else ""
    lines = [f"{BARE}{day}: {picture.caption}" if picture.caption else f"{BARE}{day}"]
    if picture.ocr_text:
        lines.append(f"{TEXT_IN_IT}{picture.ocr_text}")
    return "\n".join(lines)


def drafts(
    memory: Memory, checked: Sequence[tuple[Message, bool]], turns: Iterable[StoredTurn]
) -> list[Draft]:
    """The images of messages, decoded and described; nothing is stored.

    checked: each message, and whether it is `recalled` (searches leave it out, as it only asks).
    turns: those of the messages, in order. An image without a caption of its own takes the text of
    its message as one, unless the message is `recalled`.
    Raises InputError on an image that cannot be stored, ConfigError without the extra `images`.
    """
    found = []
    for (message, recalled), turn in zip(checked, turns, strict=True):
        for part in message.images:
            image = picture.read(part.source, place=memory.settings.image_place == "keep")
            caption, by = part.caption, turn.name or turn.role
            if caption is None and turn.content != NO_WORDS and not recalled:
                caption = turn.content
            image = replace(
                image,
                caption=caption and caption[:MAX_CAPTION_CHARS],
                caption_by=by if caption else None,
                ocr_text=images.text_of(memory.store, image.id),
            )
            found.append(Draft(turn, described(image, turn.timestamp), image))
    return found


@retried_if_outdated
def set_text(
    memory: Memory, id: str, state: str, text: str | None = None, boxes: str | None = None
) -> None:
    """Store the text that was read in an image (its id), also in the text of its memories.

    state: "done" or "failed". boxes: JSON. Does nothing if the image was erased meanwhile.
    """
    stored = images.image(memory.store, id, with_data=False)
    if stored is None:
        return
    items = _memories_of(memory, id)
    updates = []
    for item in items:
        if text and item.image:
            known = replace(stored, caption=item.image.caption, ocr_text=text)
            updates.append((item.id, _text_update(memory, item, known)))
    with memory._writing() as tx:
        if _memories_of(memory, id) != items:
            raise Outdated
        tx.set_ocr(id, state, text, boxes)
        for memory_id, changes in updates:
            tx.update_memory(memory_id, **changes)


@retried_if_outdated
def set_caption(memory: Memory, memory_id: str, caption: str, by: str) -> None:
    """Store a caption for a memory's image, and who wrote it (`by`); an empty one says that the
    model found none. Does nothing if the image has one by now, or the memory was deleted."""
    item = memory.store.get([memory_id]).get(memory_id)
    if item is None or item.image is None or item.image.caption is not None:
        return
    stored = images.image(memory.store, item.image.id, with_data=False)
    if stored is None:
        return
    caption = caption[:MAX_CAPTION_CHARS]
    changes = _text_update(memory, item, replace(stored, caption=caption)) if caption else None
    with memory._writing(item) as tx:
        tx.set_caption(memory_id, caption, by)
        if changes:
            tx.update_memory(memory_id, **changes)


def recaptioned(memory: Memory, old: MemoryItem, text: str | None) -> list[Recaptioned]:
    """The images captioned by the text of their message, with a new caption; nothing is stored.

    old: the message's memory; only a turn has such images. text: the turn's new text, which becomes
    the caption; None leaves the images without one.
    """
    found = []
    for item in memory.store.only_from(old.sources, "image") if old.kind == "turn" else ():
        stored = images.image(memory.store, item.image.id, with_data=False) if item.image else None
        if item.image and stored and item.image.caption == old.memory[:MAX_CAPTION_CHARS]:
            caption = text and text[:MAX_CAPTION_CHARS]
            changes = _text_update(memory, item, replace(stored, caption=caption))
            found.append(Recaptioned(item, caption, changes))
    return found


def set_captions(tx: Transaction, photos: Iterable[Recaptioned]) -> None:
    """Store the captions that `recaptioned` returned."""
    for old, caption, changes in photos:
        by = old.image.caption_by if old.image and caption else None
        tx.set_caption(old.id, caption, by)
        tx.update_memory(old.id, **changes)


def _memories_of(memory: Memory, id: str) -> list[MemoryItem]:
    """The memories of an image (its id)."""
    return [*memory.store.get(images.shown_by(memory.store, id)).values()]


def _text_update(memory: Memory, item: MemoryItem, known: Picture) -> dict[str, Any]:
    """`ingest.text_update` with the text that describes an image. known: what is known of it."""
    return text_update(memory, item, described(known, item.valid_from or item.created_at))


# -- text, embeddings and captions by models -----------------------------------------------------


def read_pending(
    memory: Memory,
    limit: int | None = None,
    *,
    stop: Callable[[], bool] = lambda: False,
    on_progress: Callable[[int, int], None] | None = None,
) -> int:
    """Read the text of pending images, and embed those without an embedding; returns how many.

    limit: at most so many of each. stop: asked before each image. on_progress: called with (read,
    pending). Text is not read if the OCR is not installed or a memory limit has no room for it;
    nothing is embedded if no image embedder is set. An image that cannot be read becomes "failed"
    and is not tried again. An image that was erased meanwhile is skipped. Raises ModelError,
    StoreError.
    """
    with memory._parts.reading_images:
        return _read_texts(memory, limit, stop, on_progress) + _embed_images(memory, limit, stop)


def _read_texts(
    memory: Memory,
    limit: int | None,
    stop: Callable[[], bool],
    on_progress: Callable[[int, int], None] | None,
) -> int:
    waiting = images.unread(memory.store, limit)
    ocr = memory._parts.ocr() if waiting else None
    if ocr is None:
        return 0
    done = 0
    try:
        for id in waiting:
            if stop():
                break
            _read_text(memory, ocr, id)
            done += 1
            if on_progress is not None:
                on_progress(done, len(waiting))
    finally:
        memory._parts.drop_ocr()
    return done


def _embed_images(memory: Memory, limit: int | None, stop: Callable[[], bool]) -> int:
    store, embedder = memory.store, memory._parts.image_embedder()
    if embedder is None:
        return 0
    done = 0
    for id in images.without_embedding(store, embedder.model_id, limit):
        if stop():
            break
        if (stored := images.image(store, id)) is not None:
            vector = _embedding(embedder, stored.data).tobytes()
            with store.transaction() as tx:
                tx.set_image_embedding(id, embedder.model_id, vector)
            done += 1
    return done


def _read_text(memory: Memory, ocr: Ocr, id: str) -> None:
    if (stored := images.image(memory.store, id)) is not None:
        read = _with_text(ocr, stored)
        set_text(memory, id, read.ocr_state, read.ocr_text, read.ocr_boxes)


def _with_text(ocr: Ocr, image: Picture) -> Picture:
    """An image with the text that is read in it, the boxes of its lines in the image's pixels."""
    try:
        pixels = picture.pixels(image.data, LONGEST)
        lines = ocr.read(pixels)
    except (InputError, ModelError):
        return replace(image, ocr_state="failed")
    scale = image.width / pixels.shape[1]
    found = []
    for line in lines:
        box = tuple((round(x * scale, 1), round(y * scale, 1)) for x, y in line.box)
        found.append(replace(line, box=box).to_dict())
    text = "\n".join(line.text for line in lines)
    boxes = json.dumps(found, ensure_ascii=False)
    return replace(image, ocr_text=text or None, ocr_boxes=boxes, ocr_state="done")


def sent_with(
    memory: Memory,
    sources: Sequence[bytes | str | Path],
    added: AddResults | None,
    said_at: str,
) -> tuple[Hit, ...]:
    """The images that came with a question, in order, as the best hits; their text is read at once.

    sources: as `Memory.add` takes them. added: what it returned for them. None: they are not
    stored, and the id of a hit is that of its image. Text is not read under the conditions of
    `read_pending`, or with `image_text` off. Raises InputError, ConfigError.
    """
    ocr = None
    if sources and memory.settings.image_text == "on":
        with suppress(ModelError):
            ocr = memory._parts.ocr()
    try:
        if added is not None:
            return _sent_and_stored(memory, ocr, added)
        return tuple(_sent(memory, ocr, picture.read(source), said_at) for source in sources)
    finally:
        if ocr is not None:
            memory._parts.drop_ocr()


def _sent_and_stored(memory: Memory, ocr: Ocr | None, added: AddResults) -> tuple[Hit, ...]:
    ids = [change.id for change in added if change.kind == "image"]
    for item in memory.store.get(ids).values() if ocr else ():
        if ocr and item.image and item.image.ocr_state == "pending":
            _read_text(memory, ocr, item.image.id)
    now = memory.store.get(ids)
    return tuple(Hit.of(now[id], 1.0) for id in ids if id in now)


def _sent(memory: Memory, ocr: Ocr | None, image: Picture, said_at: str) -> Hit:
    text = images.text_of(memory.store, image.id)
    if text is not None:
        image = replace(image, ocr_text=text, ocr_state="done")
    elif ocr is not None:
        image = _with_text(ocr, image)
    return Hit(
        id=image.id,
        memory=described(image, said_at),
        kind="image",
        created_at=said_at,
        updated_at=said_at,
        valid_from=said_at,
        image=image,
        score=1.0,
    )


def _embedding(embedder: ImageEmbedder, data: bytes) -> NDArray[np.float32]:
    """The embedding of an image's bytes, (dim,)."""
    return embedder.embed(picture.square(data, embedder.side, crop=embedder.crop))


def caption(memory: Memory, limit: int | None = None) -> None:
    """Let the language model, if it sees, caption images without a caption, oldest first; at most
    `limit`. An image that it cannot read gets an empty caption. Raises ModelError."""
    if not memory._parts.sees:
        return
    for memory_id, image_id in images.uncaptioned(memory.store, -1 if limit is None else limit):
        if (stored := images.image(memory.store, image_id)) is not None:
            try:
                text = vision.caption(memory.engine, picture.pixels(stored.data, vision.LONGEST))
            except (InputError, ContextOverflow):
                text = ""
            set_caption(memory, memory_id, text, memory.engine.name)


def caption_waits(memory: Memory) -> bool:
    """Whether an image has no caption, and the language model could write one."""
    return memory._parts.sees and bool(images.uncaptioned(memory.store, 1))


class BackgroundReader:
    """Reads images in a thread, which ends when none is pending. Safe from any thread.

    The thread begins QUIET_S after `wake`, so that it does not slow adds and searches that follow.
    """

    def __init__(self, work: Callable[[Callable[[], bool]], object]) -> None:
        """work: reads the pending images, until the function that it is given returns True."""
        self._work = work
        self._lock = threading.Lock()
        self._wanted = False
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def wake(self) -> None:
        """Say that an image is pending; starts the thread if there is none."""
        with self._lock:
            self._wanted = True
            if self._thread is None and not self._closed.is_set():
                thread = threading.Thread(target=self._run, name="edgemem-ocr")
                with suppress(RuntimeError):  # no more threads, or the program is ending
                    thread.start()
                    self._thread = thread

    def close(self) -> None:
        """Stop after the present image, and wait for it; the other images stay pending."""
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
            try:
                with suppress(EdgememError):  # the images stay pending; `process_pending` says why
                    self._work(self._stopped)
            except BaseException:
                with self._lock:
                    self._thread = None  # the next `wake` starts another
                raise

    def _stopped(self) -> bool:
        return self._closed.is_set() or not threading.main_thread().is_alive()


# -- look-alikes ---------------------------------------------------------------------------------


def search_by_image(
    memory: Memory,
    source: bytes | str | Path,
    scope: Scope,
    where: Where | None,
    at: str | None,
    top_k: int,
    threshold: float | None,
) -> SearchResults:
    """The memories of images that look like a given one, best first.

    source: the image's bytes, path or data URI. A copy in another size, format or brightness has a
    perceptual hash that differs by at most NEAR bits, and scores 1 - bits / 64. With an image
    embedder the score is the cosine of the embeddings, if that is larger. The other arguments and
    the errors are those of `Memory.search`.
    """
    started = time.perf_counter()
    store, embedder = memory.store, memory._parts.image_embedder()
    query = picture.read(source)
    rowids = store.rowids(scope, where=where, kinds={"image"}, now=utc_now(), at=at)
    looks = images.looks(store, rowids.tolist(), embedder.model_id if embedder else None)
    if not looks:
        return SearchResults()
    hashes = _bytes("".join(phash for _, phash, _ in looks)).reshape(len(looks), -1)
    bits = np.unpackbits(hashes ^ _bytes(query.phash), axis=1).sum(axis=1)
    scores = np.where(bits <= NEAR, 1 - bits / 64, 0.0)
    if embedder is not None:
        cosines = _cosines(looks, _embedding(embedder, query.data))
        scores = np.maximum(scores, np.minimum(cosines, 1.0))  # rounding may exceed 1
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
    """(n,) float32, the cosine of each image with `vector`; 0 without an embedding.

    looks: (rowid, perceptual hash, embedding) of each image.
    """
    out = np.zeros(len(looks), np.float32)
    for i, (_, _, embedding) in enumerate(looks):
        if embedding is not None and len(embedding) == vector.nbytes:
            out[i] = np.frombuffer(embedding, np.float32) @ vector
    return out


# -- the line that a hit cites -------------------------------------------------------------------


def hits_of(memory: Memory, scored: Sequence[Scored], query: str) -> tuple[Hit, ...]:
    """The hits of a search. Each image's hit cites the line of its text that shares most words with
    the query, the first of equals."""
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


def pixels_of(sources: Sequence[bytes | str | Path]) -> tuple[Pixels, ...]:
    """The pixels of images as `Memory.add` takes them. Raises InputError, ConfigError."""
    return tuple(picture.pixels(picture.read(source).data, vision.LONGEST) for source in sources)


def images_of(memory: Memory, hits: Sequence[Hit]) -> tuple[tuple[Hit, ...], tuple[Pixels, ...]]:
    """Of the best _FIRST hits those whose turns came with images, and the pixels of at most _MOST
    images. Both are empty if the best hit came without an image."""
    first = hits[:_FIRST]
    came = images.of_turns(memory.store, [turn for hit in first for turn in hit.sources])
    shown = tuple(hit for hit in first if came.keys() & {*hit.sources})
    if not shown or shown[0] is not first[0]:
        return (), ()
    ids = dict.fromkeys(i for hit in shown for turn in hit.sources for i in came.get(turn, ()))
    stored = (images.image(memory.store, id) for id in [*ids][:_MOST])
    return shown, tuple(picture.pixels(s.data, vision.LONGEST) for s in stored if s is not None)


def answer(engine: Engine, question: str, pixels: Sequence[Pixels]) -> Stream:
    """An answer from one image: of several, the one that the question is about."""
    best = vision.which(engine, question, pixels) if len(pixels) > 1 else 0
    return vision.answer(engine, question, pixels[best or 0])
