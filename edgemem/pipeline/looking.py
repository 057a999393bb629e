"""Images of messages: their memories, their text and captions, look-alikes, answers from them.

The text of an image's memory says what is known of the image: its caption, and the text that was
read in it. It is written anew when more is known. A text that the user gives the memory by hand
(`Memory.update`) is the caption from then on. A caption that is the text of the image's message
changes and goes with it.

An image stays in the state "pending" until this process or another has read its text, so a crash
loses nothing. It also stays pending while a memory limit has no room for the OCR. An image without
a caption waits for a model that sees; `caption_by` then names this. `Memory.add` waits for neither.
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

from edgemem.errors import ContextOverflow, EdgememError, InputError, ModelError
from edgemem.images import picture
from edgemem.images.ocr import LONGEST, Ocr
from edgemem.inputs import NO_WORDS
from edgemem.language import content_words, day_text, share
from edgemem.pipeline.ingest import Outdated, Told, redone, rewritten
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
from edgemem.runtime.embedder import ImageEmbedder
from edgemem.runtime.engine import Engine, Stream
from edgemem.runtime.vocabulary import Pixels
from edgemem.stages import vision
from edgemem.store import StoredTurn, images
from edgemem.store.filters import Where
from edgemem.store.writing import Transaction

if TYPE_CHECKING:
    from edgemem.memory import Memory

__all__ = ["NEAR", "Reader", "answer", "caption", "described", "found_alike", "given", "hits"]
__all__ += ["look", "photos", "recalled", "retell", "retold", "waits"]

NEAR = 8
"""Perceptual hashes of copies differ in at most so many of 64 bits (bench/LOG.md, 2026-11-25)."""
QUIET_S = 2.0
MAX_CAPTION_CHARS = 500
_FIRST = 6  # best hits of a search whose images a question may be about
_MOST = 4  # images shown at once: each gets a share of the window


class Retold(NamedTuple):
    """An image's memory as it was read, and what to store of it for another caption.

    words: what `Transaction.update_memory` takes.
    """

    old: MemoryItem
    caption: str | None
    words: dict[str, Any]


# -- memories of images --------------------------------------------------------------------------


def described(picture: Picture, sent_at: str) -> str:
    """The text of an image's memory: the day it was taken, if that is not the day it was sent, its
    caption, and the text that was read in it."""
    taken = local_time(picture.taken_at) if picture.taken_at else ""
    day = f" taken on {day_text(taken)}" if taken[:10] not in ("", local_time(sent_at)[:10]) else ""
    lines = [f"Photo{day}: {picture.caption}" if picture.caption else f"Photo{day}"]
    if picture.ocr_text:
        lines.append(f"Text in it: {picture.ocr_text}")
    return "\n".join(lines)


def photos(
    memory: Memory, checked: Sequence[tuple[Message, bool]], turns: Iterable[StoredTurn]
) -> list[Told]:
    """The images of messages, decoded and described; nothing is stored.

    turns: those of the messages, in order. An image without a caption of its own takes the text of
    its message as one, unless the message is `recalled`, as one that only asks is.
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


@redone
def set_read(
    memory: Memory, id: str, state: str, text: str | None = None, boxes: str | None = None
) -> None:
    """Store the text that was read in an image (its id), also in the text of its memories.

    state: "done" or "failed". boxes: JSON. Does nothing if the image was erased meanwhile.
    """
    seen = images.image(memory.store, id, with_data=False)
    if seen is None:
        return
    items = _showing(memory, id)
    made = [
        (item.id, _reworded(memory, item, replace(seen, caption=item.image.caption, ocr_text=text)))
        for item in items
        if text and item.image
    ]
    with memory._writing() as tx:
        if _showing(memory, id) != items:
            raise Outdated
        tx.set_ocr(id, state, text, boxes)
        for memory_id, words in made:
            tx.update_memory(memory_id, **words)


@redone
def set_caption(memory: Memory, memory_id: str, caption: str, by: str) -> None:
    """Store a caption for a memory's image, which has none. An empty caption means that none could
    be found, and is shown nowhere. Does nothing if the image has got a caption meanwhile, or the
    memory was erased or deleted."""
    item = memory.store.get([memory_id]).get(memory_id)
    if item is None or item.image is None or item.image.caption is not None:
        return
    seen = images.image(memory.store, item.image.id, with_data=False)
    if seen is None:
        return
    caption = caption[:MAX_CAPTION_CHARS]
    words = _reworded(memory, item, replace(seen, caption=caption)) if caption else None
    with memory._writing(item) as tx:
        tx.set_caption(memory_id, caption, by)
        if words:
            tx.update_memory(memory_id, **words)


def retold(memory: Memory, old: MemoryItem, text: str | None) -> list[Retold]:
    """The images whose caption is the text of their message, with another in its place.

    old: a memory; only a turn has such images. text: what the turn says from now on; None leaves
    the images without a caption. Nothing is stored: see `retell`.
    """
    found = []
    for item in memory.store.only_from(old.sources, "image") if old.kind == "turn" else ():
        seen = images.image(memory.store, item.image.id, with_data=False) if item.image else None
        if item.image and seen and item.image.caption == old.memory[:MAX_CAPTION_CHARS]:
            caption = text and text[:MAX_CAPTION_CHARS]
            words = _reworded(memory, item, replace(seen, caption=caption))
            found.append(Retold(item, caption, words))
    return found


def retell(tx: Transaction, photos: Iterable[Retold]) -> None:
    """Store what `retold` has found."""
    for old, caption, words in photos:
        by = old.image.caption_by if old.image and caption else None
        tx.set_caption(old.id, caption, by)
        tx.update_memory(old.id, **words)


def _showing(memory: Memory, id: str) -> list[MemoryItem]:
    return [*memory.store.get(images.shown_by(memory.store, id)).values()]


def _reworded(memory: Memory, item: MemoryItem, known: Picture) -> dict[str, Any]:
    return rewritten(memory, item, described(known, item.valid_from or item.created_at))


# -- text, embeddings and captions by models -----------------------------------------------------


def look(
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
    """Let the language model caption images without a caption, oldest first; at most `limit`.

    Does nothing if the model sees no images; it is not loaded to find that out. An image that it
    cannot read gets an empty caption, and is not tried again. Raises ModelError.
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
    """Whether an image waits for a caption, and the language model could give one."""
    return memory._parts.sees and bool(images.uncaptioned(memory.store, 1))


class Reader:
    """Reads images in a thread of its own, which ends when none waits. Safe from any thread.

    The thread begins QUIET_S after `wake`, so that it slows no adds and searches that follow soon.
    """

    def __init__(self, work: Callable[[Callable[[], bool]], object]) -> None:
        """work: reads the images that wait, until the function given to it returns True."""
        self._work = work
        self._lock = threading.Lock()
        self._wanted = False
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def wake(self) -> None:
        """Say that an image waits; starts the thread if there is none."""
        with self._lock:
            self._wanted = True
            if self._thread is None and not self._closed.is_set():
                thread = threading.Thread(target=self._run, name="edgemem-ocr")
                with suppress(RuntimeError):  # no more threads, or the program is ending
                    thread.start()
                    self._thread = thread

    def close(self) -> None:
        """Stop after the present image, and wait for that; the other images stay pending."""
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


def found_alike(
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
    hash that differs by at most NEAR bits, and scores 1 - bits / 64. With an image embedder the
    score is the cosine of the embeddings, if that is larger. The other arguments and the errors are
    those of `Memory.search`.
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
        cosines = _cosines(looks, _embedded(embedder, given.data))
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
    """(n,) float32, the cosine of each image with `vector`; 0 if it has no embedding."""
    out = np.zeros(len(looks), np.float32)
    for i, (_, _, embedding) in enumerate(looks):
        if embedding is not None and len(embedding) == vector.nbytes:
            out[i] = np.frombuffer(embedding, np.float32) @ vector
    return out


# -- the line that a hit cites -------------------------------------------------------------------


def hits(memory: Memory, scored: Sequence[Scored], query: str) -> tuple[Hit, ...]:
    """The hits of a search. The hit of an image has the line read in it that shares most words with
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


def given(sources: Sequence[bytes | str | Path]) -> tuple[Pixels, ...]:
    """The pixels of images as `Memory.add` takes them. Raises InputError, ConfigError."""
    return tuple(picture.pixels(picture.read(source).data, vision.LONGEST) for source in sources)


def recalled(memory: Memory, hits: Sequence[Hit]) -> tuple[tuple[Hit, ...], tuple[Pixels, ...]]:
    """The hits whose turns came with images, and the pixels of these images.

    Of the best _FIRST hits, and at most _MOST images. Both are empty if the best hit is not among
    them: then the question is not about an image.
    """
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
