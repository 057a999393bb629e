"""Helpers for benches of latency and memory: one core, resident memory, calls that take turns.

On systems without sched_setaffinity (macOS, Windows) a bench runs unpinned and its
report says so.
"""

from __future__ import annotations

import gc
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench import report
from edgemem.runtime.machine import trim_heap

_MARK = "EDGEMEM_BENCH_ONE_THREAD"
_LIBRARIES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def one_thread_each(module: str) -> None:
    """Restart this program with one thread for each numeric library; once restarted, do nothing.

    The libraries read the setting only when they are loaded.
    """
    if os.environ.get(_MARK) != "1":
        one = {name: "1" for name in (_MARK, *_LIBRARIES)}
        command = [sys.executable, "-m", module, *sys.argv[1:]]
        sys.stdout.flush()
        os.execve(sys.executable, command, {**os.environ, **one})


@contextmanager
def on_one_core() -> Iterator[bool]:
    """Keep this thread on one core inside the block; yields whether the system can."""
    if not hasattr(os, "sched_setaffinity"):
        yield False
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(before)})
    try:
        yield True
    finally:
        os.sched_setaffinity(0, before)


def rss_mb() -> float | None:
    """Resident megabytes of this process, after giving back what was freed; None off Linux."""
    gc.collect()
    trim_heap()
    return resident_mb()


def resident_mb() -> float | None:
    """The resident set of this process in 10⁶ bytes; None off Linux."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except OSError:
        return None
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def grown_mb(before: float | None) -> float | None:
    """How many more megabytes are resident than `before`, from rss_mb."""
    now = rss_mb()
    return None if before is None or now is None else round(now - before, 1)


def in_turns(
    calls: Mapping[str, Callable[[Any], Any]], inputs: Sequence[Any], *, block: int = 20
) -> tuple[dict[str, list[float]], dict[str, list[Any]]]:
    """Milliseconds and answers of each call for each input.

    The calls take turns of `block` inputs, so that noise of the machine hits them alike. Within a
    turn a call has its data in the caches, as in its own loop. A turn begins with an untimed call.
    """
    times: dict[str, list[float]] = {name: [] for name in calls}
    answers: dict[str, list[Any]] = {name: [] for name in calls}
    for start in range(0, len(inputs), block):
        for name, call in calls.items():
            call(inputs[start])
            for given in inputs[start : start + block]:
                began = time.perf_counter()
                answer = call(given)
                times[name].append((time.perf_counter() - began) * 1e3)
                answers[name].append(answer)
    return times, answers


def percentiles(times_ms: Sequence[float], name: str) -> dict[str, float]:
    """`{name}_ms_p50` and `_p95`, to the microsecond."""
    return {f"{name}_ms_p{p}": round(report.percentile(times_ms, p), 3) for p in (50, 95)}
