"""What is seen in stored images: their text, read after they were stored; those that look alike;
the line that a search result is cited by.

An image waits in the state "pending" until its text was read, in this process or another, so a
crash loses nothing. A memory limit that has no room for the OCR leaves it waiting.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from edgemem.errors import EdgememError, InputError, ModelError, StoreError
from edgemem.images import picture
from edgemem.images.ocr import LONGEST, Ocr
from edgemem.language import content_words, same_word, words
from edgemem.pipeline import pictures
from edgemem.results import Hit, ImageLine, Scope, SearchResults, utc_now
from edgemem.retrieval.search import Scored
from edgemem.store import images
from edgemem.store.filters import Where

if TYPE_CHECKING:
    from edgemem.memory import Memory

__all__ = ["NEAR", "QUIET_S", "Reader", "found_alike", "hits", "look"]

NEAR = 8
"""Bits of 64 by which the perceptual hashes of copies differ at most: bench/LOG.md."""
QUIET_S = 2.0


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
    with memory._parts.looking:
        return _look(memory, limit, stop, on_progress)


def _look(
    memory: Memory,
    limit: int | None,
    stop: Callable[[], bool],
    on_progress: Callable[[int, int], None] | None,
) -> int:
    store, parts = memory.store, memory._parts
    waiting = images.unread(store, limit)
    done = 0
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
            stored = images.image(store, id)
            if stored is not None:
                square = picture.square(stored.data, embedder.side, crop=embedder.crop)
                vector = embedder.embed(square).tobytes()
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
        _note(memory, id, "failed")
        return
    scale = stored.width / pixels.shape[1]
    found = []
    for line in lines:
        box = tuple((round(x * scale, 1), round(y * scale, 1)) for x, y in line.box)
        found.append(replace(line, box=box).to_dict())
    text = "\n".join(line.text for line in lines)
    _note(memory, id, "done", text or None, json.dumps(found, ensure_ascii=False))


def _note(memory: Memory, id: str, state: str, *read: str | None) -> None:
    try:
        pictures.set_read(memory, id, state, *read)
    except StoreError:
        if images.image(memory.store, id, with_data=False) is not None:
            raise  # it is still there


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
        square = picture.square(given.data, embedder.side, crop=embedder.crop)
        scores = np.maximum(scores, _cosines(looks, embedder.embed(square)))
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
    shared = [
        sum(same_word(word, said) for word in asked)
        for said in (set(words(line.text)) for line in lines)
    ]
    return lines[int(np.argmax(shared))] if any(shared) else None
