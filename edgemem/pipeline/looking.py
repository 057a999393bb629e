"""What is seen in stored images: their text, read after they were stored; those that look alike;
the line that a search result is cited by.

An image waits in the state "pending" until its text was read, in this process or another, so a
crash loses nothing. A memory limit that has no room for the OCR leaves it waiting.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from edgemem.errors import EdgememError, InputError, ModelError, StoreError
from edgemem.language import content_words
from edgemem.pipeline import pictures
from edgemem.results import ImageLine
from edgemem.store import images

if TYPE_CHECKING:
    from edgemem.memory import Memory

__all__ = ["NEAR", "Reader", "alike", "cited", "look"]

NEAR = 8
"""Bits of 64 by which the perceptual hashes of copies differ at most: bench/LOG.md."""
_BATCH = 20


def look(
    memory: Memory,
    limit: int | None = None,
    *,
    stop: Callable[[], bool] = lambda: False,
    on_progress: Callable[[int, int], None] | None = None,
) -> int:
    """Read the text of images that wait for it, and embed those that lack a vector; how many.

    limit: at most so many. The caller holds the work lock. Nothing is done where the settings or a
    memory limit leave the models out, or they are not installed. An image that cannot be read is
    "failed" and not tried again. Raises ModelError, StoreError.
    """
    done = 0
    if (ocr := memory._parts.ocr()) is not None:
        for id in images.unread(memory.store, limit):
            if stop():
                break
            with suppress(StoreError):  # it was erased meanwhile
                _read(memory, ocr, id)
                done += 1
            if on_progress is not None:
                on_progress(done, done + len(images.unread(memory.store)))
        memory._parts.drop_ocr()
    if (embedder := memory._parts.image_embedder()) is not None:
        from edgemem.images import picture

        for id in images.without_embedding(memory.store, embedder.model_id, limit):
            if stop():
                break
            stored = images.image(memory.store, id)
            if stored is not None:
                square = picture.square(stored.data, embedder.side, crop=embedder.crop)
                with memory.store.transaction() as tx:
                    tx.set_image_embedding(id, embedder.model_id, embedder.embed(square))
                done += 1
    return done


def _read(memory: Memory, ocr: Any, id: str) -> None:
    from edgemem.images import picture

    stored = images.image(memory.store, id)
    if stored is None:
        return
    try:
        pixels = picture.pixels(stored.data, ocr.longest)
        lines = ocr.read(pixels)
    except (InputError, ModelError):
        pictures.set_read(memory, id, "failed")
        return
    scale = stored.width / pixels.shape[1]
    found = [
        asdict(line) | {"box": [[round(x * scale, 1), round(y * scale, 1)] for x, y in line.box]}
        for line in lines
    ]
    text = "\n".join(line.text for line in lines)
    pictures.set_read(memory, id, "done", text or None, json.dumps(found, ensure_ascii=False))


class Reader:
    """Looks at images in a thread of its own, which ends when none waits. Safe from any thread."""

    def __init__(self, work: Callable[[Callable[[], bool]], object]) -> None:
        """work: does all that waits, or until the function that it is given says to stop."""
        self._work = work
        self._lock = threading.Lock()
        self._wanted = self._closed = False
        self._thread: threading.Thread | None = None

    def wake(self) -> None:
        """Something waits."""
        with self._lock:
            self._wanted = True
            if self._thread is None and not self._closed:
                thread = threading.Thread(target=self._run, name="edgemem-ocr")
                with suppress(RuntimeError):  # no more threads, or the program is ending
                    thread.start()
                    self._thread = thread

    def close(self) -> None:
        """Stop after the image under way, and wait for that; the others wait for another time."""
        self._closed = True
        if (thread := self._thread) is not None:
            thread.join()

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._wanted or self._closed:
                    self._thread = None
                    return
                self._wanted = False
            with suppress(EdgememError):  # they wait on, and `process_pending` tells why
                self._work(self._stopped)

    def _stopped(self) -> bool:
        return self._closed or not threading.main_thread().is_alive()


# -- alike ---------------------------------------------------------------------------------------


def alike(
    memory: Memory, source: bytes | str | Path, rowids: Sequence[int], top_k: int
) -> list[tuple[int, float]]:
    """The images among some memories that look like another: rowids and scores, best first.

    source: the other's bytes, path or data URI. A copy of it, of another size, format or brightness,
    has a hash that differs by NEAR bits at most, and scores 1 - bits / 64. With an image embedder
    also what is alike in its eyes, by the cosine. Raises InputError, ModelError.
    """
    from edgemem.images import picture

    embedder = memory._parts.image_embedder()
    looks = images.looks(memory.store, rowids, embedder.model_id if embedder else None)
    if not looks:
        return []
    given = picture.read(source)
    hashes = np.array([int(phash, 16) for _, phash, _ in looks], np.uint64)
    bits = np.bitwise_count(hashes ^ np.uint64(int(given.phash, 16)))
    scores = np.where(bits <= NEAR, 1 - bits / 64, 0.0)
    if embedder is not None:
        square = picture.square(given.data, embedder.side, crop=embedder.crop)
        scores = np.maximum(scores, _cosines(looks, embedder.embed(square)))
    best = np.argsort(-scores, kind="stable")[:top_k]
    return [(looks[i][0], float(scores[i])) for i in best.tolist() if scores[i] > 0]


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


def cited(lines: Iterable[ImageLine], query: str) -> ImageLine | None:
    """The line of an image that has most of a query's words, the first of equals; None if none has
    any."""
    asked = set(content_words(query))
    best, most = None, 0
    for line in lines:
        shared = len(asked & set(content_words(line.text)))
        if shared > most:
            best, most = line, shared
    return best
