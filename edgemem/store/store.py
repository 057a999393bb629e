"""The store: one SQLite file, its connections, locks and transactions.

Knows when to lock, begin and commit; must not know what the rows mean (`writing`, `reading`,
`erase`, `export` do). One connection writes and one reads, each behind its own lock, so a search
in another thread does not wait for a commit to reach the disk.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from edgemem.errors import StoreCorrupt, StoreError, StoreFull, StoreLocked
from edgemem.results import MemoryItem, Scope, utc_now
from edgemem.store import changes, erase, export, reading, schema, sensitivities
from edgemem.store.changes import Changes
from edgemem.store.failures import is_busy, sqlite_errors
from edgemem.store.filters import Where, fold
from edgemem.store.rows import Ints, PendingItem, StoredTurn
from edgemem.store.sensitivities import StoredSensitivity
from edgemem.store.writing import Transaction

__all__ = ["Store"]

Items = list[MemoryItem]  # Store.list hides the built-in inside the class
Turns = list[StoredTurn]
Ids = list[str]
Found = list[tuple[int, float]]
Work = list[PendingItem]
HistoryRows = list[dict[str, Any]]

PAGE_SIZE = 8192  # five 384-dimensional vectors to a page; two to one of the default 4096
SMALLEST = 512
EVERYTHING = Scope()


class Store:
    """An open store; make one with `Store.open`. Safe to use from several threads.

    path: the file, or None for a store in memory. Times are ISO-8601 UTC text; `now` defaults to
    the present. Readers see one snapshot each. Every method may raise StoreLocked, StoreFull or
    StoreCorrupt, and StoreError once the store is closed.
    """

    def __init__(
        self,
        path: Path | None,
        writer: sqlite3.Connection,
        reader: sqlite3.Connection,
        busy_timeout_s: float,
    ) -> None:
        self.path = path
        self._name = str(path or ":memory:")
        self._writer, self._reader = writer, reader
        self._write_lock = threading.RLock()
        self._read_lock = self._write_lock if reader is writer else threading.RLock()
        self._busy_timeout_s = busy_timeout_s
        self._closed = False

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, busy_timeout_s: float = 5.0) -> Store:
        """Open a store, new or old, and bring its schema up to date.

        path: a file, made if it is not there (readable by its owner only), or ":memory:".
        busy_timeout_s: how long to wait for another process's write before StoreLocked.
        Raises StoreCorrupt if the file is damaged or another program's, SchemaVersionError if a
        newer edgemem wrote it, StoreFull if it cannot be made or written.
        """
        file = None if os.fspath(path) == ":memory:" else _resolved(path)
        name = str(file or ":memory:")
        if file is not None:
            _make_file(file)
        opened: list[sqlite3.Connection] = []
        try:
            with sqlite_errors(name):
                writer = _connect(name, busy_timeout_s)
                opened.append(writer)
                _again_while_busy(lambda: _prepare(writer, file), busy_timeout_s)
                reader = writer
                if file is not None:
                    reader = _connect(name, busy_timeout_s)
                    opened.append(reader)
                    reader.execute("PRAGMA query_only = ON")
                # An interrupted erase is finished first; if another process reads or the disk is
                # full, a later open will do it.
                with suppress(StoreLocked, StoreFull):
                    erase.scrub(writer, file, busy_timeout_s)
        except BaseException:
            for connection in opened:
                connection.close()
            raise
        return cls(file, writer, reader, busy_timeout_s)

    def close(self) -> None:
        """Close the file; a second time does nothing."""
        with self._write_lock, self._read_lock:
            if not self._closed:
                self._closed = True
                with sqlite_errors(self._name):
                    self._reader.close()
                    self._writer.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    # --- writing ---

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """Begin a write; commit at the end of the block, undo everything if it raises.

        When the block is left without an error, what it wrote is on the disk. Other threads and
        processes wait; keep models out of it.
        """
        with self._write_lock:
            self._require_open()
            if self._writer.in_transaction:
                raise StoreError(
                    "a transaction is already open in this thread; end it before beginning another"
                )
            tx: Transaction | None = None
            try:
                with sqlite_errors(self._name):
                    self._writer.execute("BEGIN IMMEDIATE")
                    tx = Transaction(self._writer, self._name)
                yield tx
                with sqlite_errors(self._name):
                    self._writer.execute("COMMIT" if tx.finish() else "ROLLBACK")
            except BaseException:
                if tx is not None:
                    tx.abandon()
                _roll_back(self._writer)
                raise

    def erase(self, memory_ids: Iterable[str]) -> Ids:
        """Leave no trace of memories: rows, index, vectors, history, WAL, free pages, backups.

        Also erased are their source turns, every other memory that cites one of these, the turns
        that may quote them (a chat's questions and answers, whatever else of the same user or scope
        no memory cites), and pending work that mentions any of it. Ids that are not there are
        passed over; the ids of all erased memories are returned. Raises StoreLocked if another
        process keeps reading: the rows are gone then, and the next open or erase scrubs the file.
        """
        with self._write_lock:
            with self.transaction() as tx:
                ids = erase.erase_rows(tx, tuple(memory_ids))
            self._scrub()
        return ids

    def reset(self) -> None:
        """Erase everything but the store's own settings (embedder_model, embedder_dim).

        Raises StoreLocked as `erase` does.
        """
        with self._write_lock:
            with self.transaction() as tx:
                erase.reset_rows(tx)
            self._scrub()

    def _scrub(self) -> None:
        with self._read_lock:
            erase.scrub(self._writer, self.path, self._busy_timeout_s)

    # --- reading ---

    def generation(self) -> int:
        """The number of committed writes; a cache is stale when it differs from its own."""
        with self._one_read() as connection:
            return reading.generation(connection)

    def meta(self, key: str) -> str | None:
        """A setting of the store: embedder_model, embedder_dim, created_at, …; None if unset."""
        with self._one_read() as connection:
            return reading.meta(connection, key)

    def get(self, ids: Sequence[str], *, include_deleted: bool = False) -> dict[str, MemoryItem]:
        """Memories by id, in the order asked for; invalid and expired ones too."""
        with self._snapshot() as connection:
            return reading.get(connection, ids, include_deleted)

    def by_rowids(self, rowids: Iterable[int]) -> dict[int, MemoryItem]:
        """Memories that are not deleted by rowid, in the order asked for."""
        with self._one_read() as connection:
            return reading.by_rowids(connection, rowids)

    def list(
        self,
        scope: Scope = EVERYTHING,
        *,
        where: Where | None = None,
        kinds: Collection[str] | None = None,
        limit: int | None = None,
        include_invalid: bool = False,
        now: str | None = None,
    ) -> Items:
        """Live memories of a scope, oldest first; include_invalid: also those whose time is over
        (valid_to or expires_at has passed), never deleted ones."""
        with self._snapshot() as connection:
            return reading.list_memories(
                connection, scope, where, kinds, limit, include_invalid, now
            )

    def rowids(
        self,
        scope: Scope = EVERYTHING,
        *,
        where: Where | None = None,
        kinds: Collection[str] | None = None,
        now: str | None = None,
    ) -> Ints:
        """(n,) int64 rowids of the live memories that match, ascending."""
        with self._snapshot() as connection:
            return reading.rowids(connection, scope, where, kinds, now)

    def lexical(
        self,
        match: str,
        scope: Scope = EVERYTHING,
        *,
        where: Where | None = None,
        kinds: Collection[str] | None = None,
        now: str | None = None,
        limit: int | None = None,
    ) -> Found:
        """(rowid, BM25 score) of the live memories that match, best first; larger is better.

        match: an FTS5 query expression over search_text. Raises InputError if it is none.
        """
        with self._snapshot() as connection:
            return reading.lexical(connection, match, scope, where, kinds, now, limit)

    def search_texts(self) -> dict[str, str]:
        """What is indexed of each memory that is not deleted, by id."""
        with self._snapshot() as connection:
            return reading.search_texts(connection)

    def turns(self, ids: Sequence[str]) -> dict[str, StoredTurn]:
        """Turns by id, in the order asked for."""
        with self._snapshot() as connection:
            return reading.turns(connection, ids)

    def recent_turns(
        self, scope: Scope = EVERYTHING, *, before: str | None = None, limit: int
    ) -> Turns:
        """The last `limit` turns of a scope, oldest first; before: a turn id to stop short of
        (an unknown one gives none)."""
        with self._snapshot() as connection:
            return reading.recent_turns(connection, scope, before, limit)

    def standing_turns(self, ids: Sequence[str]) -> Ids:
        """Those of the turns whose own memory is live, with the words that were said."""
        with self._snapshot() as connection:
            return reading.standing_turns(connection, ids, utc_now())

    def stale_turns(self, ids: Sequence[str]) -> dict[str, tuple[str, ...]]:
        """Those of the turns from which facts were taken that are no longer valid, and these."""
        with self._snapshot() as connection:
            return reading.stale_turns(connection, ids, utc_now())

    def erase_extent(self, memory_ids: Iterable[str]) -> tuple[Ids, Ids]:
        """The ids of the turns, and of the memories, that an `erase` of these would take."""
        with self._snapshot() as connection:
            turns, memories = erase.extent(connection, tuple(memory_ids))
        return [row[1] for row in turns], [row[1] for row in memories]

    def sensitivities(self, turn_ids: Sequence[str]) -> dict[str, StoredSensitivity]:
        """Of the turns that have them, in the order asked for: which tokens matter, ready made."""
        with self._snapshot() as connection:
            return sensitivities.read(connection, turn_ids)

    def history(self, memory_id: str) -> HistoryRows:
        """What happened to a memory, oldest first, as mem0's rows."""
        with self._snapshot() as connection:
            return reading.history(connection, memory_id)

    def pending(
        self, task: str | None = None, *, due_before: str | None = None, limit: int | None = None
    ) -> Work:
        """Work that is still to be done, oldest first; due_before: only what may be tried by
        then (no next_try_at counts as due)."""
        with self._snapshot() as connection:
            return reading.pending(connection, task, due_before, limit)

    def counts(self) -> dict[str, int]:
        """How many: memories (live), facts, turn_memories, summaries and images among them,
        invalid, deleted, turns, vectors, history, pending."""
        with self._snapshot() as connection:
            return reading.counts(connection)

    def changes(self, since_generation: int = 0) -> Changes:
        """What a cache of memories at `since_generation` must take in; 0 gives everything."""
        with self._snapshot() as connection:
            return changes.read(connection, since_generation)

    def export_rows(self) -> Iterator[dict[str, Any]]:
        """Every row as a JSON-able dict with its "type": turn, memory, history, pending.

        One snapshot, on a connection of its own: writes go on meanwhile, but an erase waits until
        the iterator is used up or closed.
        """
        if self.path is None:
            with self._snapshot() as connection:
                yield from tuple(export.export_rows(connection))
            return
        self._require_open()
        with sqlite_errors(self._name):
            connection = _connect(self._name, self._busy_timeout_s)
            try:
                connection.execute("BEGIN")
                yield from export.export_rows(connection)
            finally:
                connection.close()

    def check(self) -> Ids:
        """What is wrong with the file, in words; empty if nothing is."""
        problems: list[str] = []
        with self._write_lock:
            self._require_open()
            if self._writer.in_transaction:
                raise StoreError("a transaction is open in this thread; end it before check()")
            for look in (_integrity, _references, _full_text, _vectors):
                try:
                    with sqlite_errors(self._name):
                        problems += look(self._writer)
                except StoreLocked:
                    raise
                except StoreError as exc:
                    problems.append(str(exc))
                finally:
                    _roll_back(self._writer)
        return problems

    # --- helpers ---

    def _require_open(self) -> None:
        if self._closed:
            raise StoreError(f"the store {self._name} is closed; open it again")

    @contextmanager
    def _one_read(self) -> Iterator[sqlite3.Connection]:
        """For a single SELECT, which is a snapshot by itself."""
        with self._read_lock, sqlite_errors(self._name):
            self._require_open()
            yield self._reader

    @contextmanager
    def _snapshot(self) -> Iterator[sqlite3.Connection]:
        with self._read_lock, sqlite_errors(self._name):
            self._require_open()
            if self._reader.in_transaction:  # in memory, inside this thread's own transaction
                yield self._reader
                return
            self._reader.execute("BEGIN")
            try:
                yield self._reader
            finally:
                _roll_back(self._reader)


def _resolved(path: str | os.PathLike[str]) -> Path:
    """The file itself, not a link to it: the WAL and backup copies lie beside the file."""
    try:
        return Path(path).expanduser().resolve()
    except (OSError, ValueError, RuntimeError) as exc:
        raise StoreError(f"{str(path)!r} is no usable path ({exc}); give another") from exc


_making_file = threading.Lock()


def _make_file(file: Path) -> None:
    """Make an empty file that its owner alone may read, unless there is one.

    A file that is there is only looked at from outside: closing any descriptor of it would drop
    the locks that SQLite holds on it for other connections of this process.
    """
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with _making_file, suppress(FileExistsError):
            os.close(os.open(file, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        size = file.stat().st_size
        if not os.access(file, os.R_OK | os.W_OK) or not file.is_file():
            raise PermissionError("it is not a file that may be read and written")
    except OSError as exc:
        raise StoreFull(
            f"{file} cannot be opened for writing ({exc.strerror or exc}); check the permissions "
            "of the file and its folder, free some disk space, or choose another place for the "
            "store"
        ) from exc
    except ValueError as exc:
        raise StoreError(f"{str(file)!r} is no usable path ({exc}); give another") from exc
    if 0 < size < SMALLEST:  # SQLite takes it for an empty database and would overwrite it
        raise StoreCorrupt(
            f"{file} is damaged or no edgemem store ({size} bytes, a database has at least "
            f"{SMALLEST}); give the path of a store or of a new file"
        )


def _connect(name: str, busy_timeout_s: float) -> sqlite3.Connection:
    connection = sqlite3.connect(
        name, timeout=busy_timeout_s, isolation_level=None, check_same_thread=False
    )
    connection.create_function("edgemem_fold", 1, fold, deterministic=True)
    for pragma in (
        "foreign_keys = ON",
        "secure_delete = ON",
        "temp_store = MEMORY",  # no text in temporary files
        "trusted_schema = OFF",  # the file may be anyone's
        "cell_size_check = ON",
    ):
        connection.execute(f"PRAGMA {pragma}")
    return connection


def _prepare(connection: sqlite3.Connection, file: Path | None) -> None:
    """Look before writing: another program's file is left as it is."""
    if schema.inspect(connection, str(file or ":memory:")) == 0:
        connection.execute(f"PRAGMA page_size = {PAGE_SIZE}")
    if file is not None:
        (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
        if mode != "wal":
            raise StoreError(
                f"{file} cannot use a write-ahead log (SQLite keeps {mode!r}); put the store on a "
                "local disk"
            )
    connection.execute("PRAGMA synchronous = FULL")
    schema.migrate(connection, file)


def _again_while_busy(step: Callable[[], None], timeout_s: float) -> None:
    """Two processes may open a new file at once; turning WAL on does not wait by itself."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            return step()
        except sqlite3.OperationalError as exc:
            if not is_busy(exc) or time.monotonic() >= deadline:
                raise
        time.sleep(0.01)


def _roll_back(connection: sqlite3.Connection) -> None:
    with suppress(sqlite3.Error):
        if connection.in_transaction:
            connection.execute("ROLLBACK")


def _integrity(connection: sqlite3.Connection) -> list[str]:
    rows = connection.execute("PRAGMA integrity_check").fetchall()
    return [str(row[0]) for row in rows if row[0] != "ok"]


def _references(connection: sqlite3.Connection) -> list[str]:
    rows = connection.execute("PRAGMA foreign_key_check").fetchall()
    return [f"row {row[1]} of {row[0]} refers to a missing row of {row[2]}" for row in rows]


def _full_text(connection: sqlite3.Connection) -> list[str]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        connection.execute(
            "INSERT INTO memories_fts (memories_fts, rank) VALUES ('integrity-check', 1)"
        )
    except sqlite3.DatabaseError as exc:
        if is_busy(exc):
            raise
        return [f"the full-text index does not match the memories ({exc})"]
    return []


def _vectors(connection: sqlite3.Connection) -> list[str]:
    dim = reading.meta_int(connection, "embedder_dim", 0)
    rows = connection.execute(
        "SELECT label, length(vector) FROM vectors WHERE length(vector) != ? ORDER BY label",
        (4 * dim,),
    ).fetchall()
    return [
        f"vector {label} has {size} bytes, {4 * dim} are right for dimension {dim}"
        for label, size in rows
    ]
