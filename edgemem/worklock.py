"""One at a time: who works pending pieces off, writes the index file, or erases.

Knows the lock file beside a store, which outlives its holder but not the holder's grip on it: the
system lets go when the process ends, however it ends. The only importer of filelock.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from edgemem.errors import StoreFull

__all__ = ["work_lock"]


@contextmanager
def work_lock(store: Path | None, threads: threading.Lock, timeout_s: float) -> Iterator[bool]:
    """Hold the right to do what only one may do at a time; whether it was got within timeout_s.

    store: the store's file, None for one in memory. threads: keeps this process's threads apart.
    Raises StoreFull if the lock file cannot be made.
    """
    deadline = time.monotonic() + timeout_s
    if not threads.acquire(timeout=timeout_s):
        yield False
        return
    try:
        if store is None:
            yield True
            return
        lock = FileLock(store.with_name(store.name + ".lock"), mode=0o600)
        try:
            lock.acquire(timeout=max(0.0, deadline - time.monotonic()))
        except Timeout:
            yield False
            return
        except OSError as exc:
            raise StoreFull(
                f"cannot make the lock file {lock.lock_file} ({exc.strerror or exc}); make its "
                "folder writable, free some disk space, or choose another place for the store"
            ) from exc
        try:
            yield True
        finally:
            lock.release()
    finally:
        threads.release()
