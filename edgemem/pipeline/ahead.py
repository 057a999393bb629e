"""Sensitivities ahead of time: what was said is scored while nothing else is done.

The scorer has weights of its own and a share of one processor; nothing here holds a lock of search
or generation. Each window of turns is stored when it is scored, so a stop loses one window at most.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

from edgemem.compression.sensitivity import Scorer
from edgemem.errors import EdgememError
from edgemem.store import Store
from edgemem.store.store import Neighbour, backlog, put, unscored

__all__ = ["Ahead", "score_window"]

TOKENS = 512
TOKENS_BEFORE = 128
TURNS_BEFORE, TURNS_AFTER = 8, 40


class _Stopped(Exception):
    """A window that was given up."""


def score_window(store: Store, scorer: Scorer, check: Callable[[], None] | None = None) -> int:
    """Score the oldest turns that want it, in the context of their session; how many. 0: all have.

    A window is about 512 tokens of one user's, agent's and run's turns in the order they were said,
    "name: text" a line, of which up to 128 come before the first unscored one. The stored values
    are those of the sum of the losses, which a longer window does not dilute.
    check: called before each layer; what it raises ends the window, and nothing is stored.
    Raises ModelError and StoreError as the scorer and the store do.
    """
    model = scorer.model_hash
    turns = unscored(store, model, before=TURNS_BEFORE, after=TURNS_AFTER)
    if not turns:
        return 0
    lines = _window([_line(scorer, turn) for turn in turns])
    tokens = [token for line in lines for token in line.tokens]
    found = scorer.sensitivity(tokens, check=check)
    values = found.scores * np.float32(max(1, len(tokens) - 1))
    stored = start = 0
    with store.transaction() as tx:
        for line in lines:
            own = values[start : start + len(line.tokens)][line.own]
            start += len(line.tokens)
            if line.turn.wanted:
                stored += put(tx, line.turn.id, line.turn.text, line.offsets, own, model)
    return stored


@dataclass(frozen=True, slots=True)
class _Line:
    """The tokens of a turn's line; own: which of them are of its text, and their offsets in it."""

    turn: Neighbour
    tokens: Sequence[int]
    own: slice
    offsets: NDArray[np.int32]


def _line(scorer: Scorer, turn: Neighbour) -> _Line:
    head = f"{turn.speaker}: "
    tokens, spans = scorer.tokenize(f"{head}{turn.text}\n")
    end = len(head) + len(turn.text)
    own = np.flatnonzero((spans[:, 1] > len(head)) & (spans[:, 0] < end))
    some = slice(own[0], own[-1] + 1) if len(own) else slice(0, 0)
    offsets = np.clip(spans[some], len(head), end) - np.int32(len(head))
    return _Line(turn, tokens, some, offsets)


def _window(lines: list[_Line]) -> list[_Line]:
    """The first line that wants scores, what fits after it, and a little of what comes before."""
    first = next(i for i, line in enumerate(lines) if line.turn.wanted)
    start, room = first, TOKENS_BEFORE
    while start > 0 and len(lines[start - 1].tokens) <= room:
        start -= 1
        room -= len(lines[start].tokens)
    end, room = first + 1, TOKENS - sum(len(line.tokens) for line in lines[start : first + 1])
    while end < len(lines) and len(lines[end].tokens) <= room:
        room -= len(lines[end].tokens)
        end += 1
    return lines[start:end]


class Ahead:
    """A thread that scores while the store and whoever else is asked are quiet.

    load: gives the scorer, when there is first something to score; it is closed in the end. share:
    of one processor's time, above 0 and at most 1. quiet: whether nothing else is under way, asked
    before a window and before each layer of it; a window is given up when it no longer is, or when
    somebody writes to the store. idle_s: how long the store must have been left alone.
    """

    def __init__(
        self,
        store: Store,
        load: Callable[[], Scorer],
        *,
        share: float = 0.25,
        quiet: Callable[[], bool] = lambda: True,
        idle_s: float = 5.0,
    ) -> None:
        if not 0 < share <= 1:
            raise ValueError(f"share is {share}; it must be above 0 and at most 1")
        self._store, self._load, self._share = store, load, share
        self._quiet, self._idle_s = quiet, idle_s
        self._end = threading.Event()
        self._seen, self._since = -1, time.monotonic()  # the store's generation, and since when
        self._done = -1  # the generation at which nothing was left to score
        self.error: EdgememError | None = None
        """What ended the work, if an error did."""
        self._thread = threading.Thread(target=self._run, name="edgemem-ahead", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop, giving up the window under way; call it before the store is closed."""
        self._end.set()
        self._thread.join()

    def __enter__(self) -> Ahead:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _run(self) -> None:
        _lower_priority()
        scorer: Scorer | None = None
        pause = 0.0
        try:
            while not self._end.wait(pause):
                pause = min(1.0, self._idle_s)
                if not self._left_alone() or self._done == self._seen:
                    continue
                if scorer is None and not any(backlog(self._store).values()):
                    continue
                scorer = scorer or self._load()
                started = time.monotonic()
                with suppress(_Stopped):
                    scored = score_window(self._store, scorer, self._check)
                    self._seen = self._store.generation()  # our own write
                    self._done = self._seen if not scored else self._done
                pause = (time.monotonic() - started) * (1 / self._share - 1)
        except EdgememError as exc:
            self.error = exc
        finally:
            if scorer is not None:
                scorer.close()

    def _left_alone(self) -> bool:
        generation = self._store.generation()
        if generation != self._seen:
            self._seen, self._since = generation, time.monotonic()
        return time.monotonic() - self._since >= self._idle_s and self._quiet()

    def _check(self) -> None:
        if self._end.is_set() or not self._quiet() or self._store.generation() != self._seen:
            raise _Stopped


def _lower_priority() -> None:
    """Where the system lets a thread have its own: Linux."""
    if sys.platform == "linux":
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 10)
