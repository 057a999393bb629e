"""The store: one SQLite file, its locks and transactions, and every query on it.

One connection writes and one reads, each behind its own lock, so a search in another thread does
not wait for a commit to reach the disk.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from edgemem.errors import InputError, StoreError, StoreFull, StoreLocked
from edgemem.results import MemoryItem, Scope, utc_now
from edgemem.store import database, encryption, images, schema, writing
from edgemem.store.changes import Changes, read_changes
from edgemem.store.database import sqlite_errors
from edgemem.store.filters import Where
from edgemem.store.rows import (
    EDITED,
    EDITS,
    HISTORY_OF,
    KINDS,
    LISTED,
    MEMORY_COLUMNS,
    PENDING_COLUMNS,
    SCOPE,
    TURN_COLUMNS,
    Floats,
    Ints,
    PendingItem,
    StoredTurn,
    as_json,
    damaged,
    export_rows,
    history_row,
    memory_item,
    pending_item,
    scope_sql,
    stored_turn,
    unpack_vectors,
)
from edgemem.store.writing import Transaction
from edgemem.vault import Vault, is_vault

__all__ = ["Browsed", "Store", "browse", "owners", "replacements"]

Items = list[MemoryItem]  # Store.list hides the built-in inside the class
Turns = list[StoredTurn]
Ids = list[str]
Work = list[PendingItem]
HistoryRows = list[dict[str, Any]]
Rows = list[tuple[Any, ...]]
Texts = list[tuple[int, str]]

EVERYTHING = Scope()
Key = TypeVar("Key")
Value = TypeVar("Value")
LIVE = (
    "m.deleted_at IS NULL AND (m.valid_to IS NULL OR m.valid_to > ?) "
    "AND (m.expires_at IS NULL OR m.expires_at > ?)"
)


class Store:
    """An open store; make one with `Store.open`. Safe to use from several threads.

    path: the file, or None for a store in memory. vault: None for a plain store. Times are ISO-8601
    UTC text; `now` defaults to the present. Each reading method sees one snapshot. Every method may
    raise StoreLocked, StoreFull or StoreCorrupt, and StoreError once the store is closed.
    """

    def __init__(
        self,
        path: Path | None,
        writer: sqlite3.Connection,
        reader: sqlite3.Connection,
        busy_timeout_s: float,
        vault: Vault | None,
        source: str,
    ) -> None:
        self.path = path
        self.vault = vault
        # A vault has all images in its file: a file's name and size would reveal which image it is.
        self.images_folder = None if vault is not None else images.folder_of(path)
        self._name = str(path or ":memory:")
        self._source = source
        self._writer, self._reader = writer, reader
        self._write_lock = threading.RLock()
        self._read_lock = self._write_lock if reader is writer else threading.RLock()
        self._busy_timeout_s = busy_timeout_s
        self._closed = False
        self._scrub_failed = False
        encryption.OPEN.add(self)
        self._files = database.identities(path)

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        busy_timeout_s: float = 5.0,
        vault: Vault | None = None,
    ) -> Store:
        """Open a store, new or old, and bring its schema up to date.

        path: a file, made if it is not there (readable by its owner only), or ":memory:". A file
        that is read-only, or whose folder is, opens for reading; writing raises StoreFull. So does
        a file on a full disk, for one process at a time.
        busy_timeout_s: how long to wait for another process's write before StoreLocked.
        vault: of an encrypted store; if None, its key is looked for (`vault.unlock`).
        Raises VaultLocked if a key is wrong or not found, StoreCorrupt if the file is damaged or
        another program's, SchemaVersionError if a newer edgemem wrote it, StoreFull if it cannot
        be made or read, ConfigError without the extra `vault` if it is needed.
        """
        file = None if os.fspath(path) == ":memory:" else database.resolved(path)
        name = source = str(file or ":memory:")
        if file is not None:
            database.make_file(file)
            source = database.sqlite_name(file)
            vault = encryption.find_vault(file, vault, busy_timeout_s)
        key = None if vault is None else vault.page_key
        kept = file if file is not None and is_vault(file) else None
        with ExitStack() as opened:
            with sqlite_errors(name, encrypted=key is not None):
                writer, alone = schema.connected(source, file, busy_timeout_s, key, kept)
                opened.callback(writer.close)
                reader = writer
                if not alone:
                    reader = database.connect(source, busy_timeout_s, key)
                    opened.callback(reader.close)
                    reader.execute("PRAGMA query_only = ON")
            store = cls(file, writer, reader, busy_timeout_s, vault, source)
            # An interrupted erase is finished first; if another process reads or the disk is
            # full, a later open will do it.
            with suppress(StoreLocked, StoreFull):
                store.scrub()
            opened.pop_all()
        return store

    def close(self) -> None:
        """Close the file, after what a sync has left to scrub; a second time does nothing.

        Waits for no reader. What is not scrubbed now, the next open scrubs. Raises StoreError if
        the file was moved meanwhile, and its last writes cannot follow it.
        """
        with self._write_lock, self._read_lock:
            if not self._closed:
                self._closed = True
                encryption.OPEN.discard(self)
                with sqlite_errors(self._name), closing(self._writer), closing(self._reader):
                    moved = database.settle_if_moved(self._writer, self.path, self._files)
                    if not moved and not self._scrub_failed:
                        self._writer.execute("PRAGMA busy_timeout = 0")
                        with suppress(StoreError):
                            database.scrub(self._writer, self.path, 0.0)

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # --- writing ---

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """Begin a write; commit at the end of the block, undo everything if it raises.

        When the block ends without an error, its writes are on the disk. Other writers wait until
        then, so run no model in the block. Raises StoreError if a transaction is open in this
        thread already, or the file was replaced.
        """
        with self._write_lock:
            self._require_open()
            if database.settle_if_moved(self._writer, self.path, self._files):
                raise StoreError(
                    f"{self.path} was replaced or removed while it was open, and what is written "
                    "would be lost; open it again"
                )
            if self._writer.in_transaction:
                raise StoreError(
                    "a transaction is already open in this thread; end it before beginning another"
                )
            tx: Transaction | None = None
            try:
                with sqlite_errors(self._name):
                    self._writer.execute("BEGIN IMMEDIATE")
                    tx = Transaction(self._writer, self._name, self.images_folder)
                yield tx
                with sqlite_errors(self._name):
                    self._writer.execute("COMMIT" if tx.finish() else "ROLLBACK")
            except BaseException:
                if tx is not None:
                    tx.abandon()
                database.roll_back(self._writer)
                raise

    def erase(self, memory_ids: Iterable[str], turn_ids: Iterable[str] = ()) -> Ids:
        """Leave no trace of memories: rows, index, vectors, history, WAL, free pages, backups.

        `writing.extent` says what goes with them. turn_ids: also these, with what cites them.
        Unknown ids are skipped. Returns the ids of all erased memories. Raises StoreLocked if
        another process keeps reading: the rows are gone then, and the next open or erase scrubs the
        file.
        """
        with self._write_lock:
            with self.transaction() as tx:
                ids = writing.erase_rows(tx, tuple(memory_ids), tuple(turn_ids))
            self.scrub()
        return ids

    def reset(self) -> None:
        """Erase everything but the embedder's settings, receipts of erasing and sync's ids.

        Raises StoreLocked as `erase` does.
        """
        with self._write_lock:
            with self.transaction() as tx:
                writing.reset_rows(tx)
            self.scrub()

    def scrub(self) -> None:
        """Remove every byte of what was erased. Raises StoreLocked as `erase` does."""
        with self._write_lock, self._read_lock:
            self._scrub_failed = True
            database.scrub(self._writer, self.path, self._busy_timeout_s)
            self._scrub_failed = False
            with sqlite_errors(self._name):
                images.sweep(self._writer, self.images_folder)

    # --- reading ---

    @contextmanager
    def snapshot(self) -> Iterator[sqlite3.Connection]:
        """Read one state of the store with several SELECTs, each to its last row."""
        with self._read_lock, sqlite_errors(self._name):
            self._require_open()
            with database.snapshot(self._reader):
                yield self._reader

    def select(self, sql: str, *params: Any) -> Rows:
        """The rows of one SELECT of this package."""
        with self.snapshot() as connection:
            return connection.execute(sql, params).fetchall()

    def _items(self, condition: str, *params: Any) -> Items:
        """The memories m for which a condition holds, which may end in an ORDER BY."""
        sql = f"SELECT {MEMORY_COLUMNS} FROM memories m WHERE {condition}"
        return [memory_item(row) for row in self.select(sql, *params)]

    def generation(self) -> int:
        """The number of committed writes; a cache with another generation is stale."""
        with self.snapshot() as connection:
            return database.generation(connection)

    def meta(self, key: str) -> str | None:
        """A setting of the store: embedder_model, embedder_dim, created_at, …; None if unset."""
        with self.snapshot() as connection:
            return database.meta(connection, key)

    def get(self, ids: Sequence[str], *, include_deleted: bool = False) -> dict[str, MemoryItem]:
        """Memories by id, in the order asked for; invalid and expired ones too."""
        alive = "" if include_deleted else " AND m.deleted_at IS NULL"
        found = self._items(f"m.id {LISTED}{alive}", as_json(ids))
        return _in_order(ids, {item.id: item for item in found})

    def by_rowids(self, rowids: Iterable[int]) -> dict[int, MemoryItem]:
        """Memories that are not deleted by rowid, in the order asked for."""
        wanted = [int(rowid) for rowid in rowids]
        rows = self.select(
            f"SELECT {MEMORY_COLUMNS} FROM memories m "
            f"WHERE m.rowid {LISTED} AND m.deleted_at IS NULL",
            as_json(wanted),
        )
        return _in_order(wanted, {row[0]: memory_item(row) for row in rows})

    def list(
        self,
        scope: Scope = EVERYTHING,
        *,
        where: Where | None = None,
        kinds: Collection[str] | None = None,
        limit: int | None = None,
        include_invalid: bool = False,
        at: str | None = None,
    ) -> Items:
        """Live memories of a scope, oldest first.

        include_invalid: also memories whose valid_to or expires_at has passed, but never deleted
        ones. at: the memories that were valid at this time.
        """
        sql, params = _conditions(scope, where, kinds, include_invalid=include_invalid, at=at)
        order = "ORDER BY m.created_at, m.rowid LIMIT ?"
        return self._items(f"{sql} {order}", *params, _limit(limit))

    def rowids(
        self,
        scope: Scope = EVERYTHING,
        *,
        where: Where | None = None,
        kinds: Collection[str] | None = None,
        now: str | None = None,
        at: str | None = None,
    ) -> Ints:
        """(n,) int64 rowids of the live memories that match, ascending. at: see `list`."""
        conditions, params = _conditions(scope, where, kinds, now=now, at=at)
        rows = self.select(
            f"SELECT m.rowid FROM memories m WHERE {conditions} ORDER BY m.rowid", *params
        )
        return np.array([row[0] for row in rows], dtype=np.int64)

    def search_texts(self) -> dict[str, str]:
        """The indexed text of each memory that is not deleted, by id."""
        sql = "SELECT id, search_text FROM memories WHERE deleted_at IS NULL ORDER BY rowid"
        return dict(self.select(sql))

    def vectors(self) -> dict[str, Floats]:
        """The vectors, (c, dim) float32, of each memory that has some and is not deleted, by id."""
        found: dict[str, list[bytes]] = {}
        with self.snapshot() as connection:
            for id, vector in connection.execute(
                "SELECT m.id, v.vector FROM memories m CROSS JOIN vectors v ON v.memory = m.rowid "
                "WHERE m.deleted_at IS NULL ORDER BY m.rowid, v.chunk"
            ):
                found.setdefault(id, []).append(vector)
            dim = database.meta_int(connection, "embedder_dim")
        return {id: unpack_vectors(blobs, dim) for id, blobs in found.items()}

    def without_tokens(self, model: str, since: int = 0) -> Texts:
        """Rowid and search text of the memories, not deleted, that lack this model's token vectors.

        since: only those that were written in this generation or later.
        """
        return self.select(
            "SELECT rowid, search_text FROM memories m WHERE deleted_at IS NULL "
            "AND generation >= ?2 AND NOT EXISTS (SELECT 1 FROM token_vectors, meta "
            "WHERE memory = m.rowid AND key = 'token_model' AND value = ?1) "
            "ORDER BY generation, rowid",  # by rowid alone it would scan the table
            model,
            since,
        )

    def tokens(self, model: str, rowids: Iterable[int], dim: int) -> dict[int, bytes]:
        """The token vectors of memories, by rowid: int8 rows of `dim` numbers.

        A memory without token vectors of this model is left out. Raises StoreCorrupt if a blob is
        not a whole number of rows.
        """
        found: dict[int, bytes] = dict(
            self.select(
                f"SELECT memory, tokens FROM token_vectors WHERE memory {LISTED} AND EXISTS "
                "(SELECT 1 FROM meta WHERE key = 'token_model' AND value = ?)",
                as_json(rowids),
                model,
            )
        )
        if any(len(blob) % dim for blob in found.values()):
            raise damaged(f"token vectors do not have {dim} numbers")
        return found

    def turns(self, ids: Sequence[str]) -> dict[str, StoredTurn]:
        """Turns by id, in the order asked for."""
        rows = self.select(f"SELECT {TURN_COLUMNS} FROM turns WHERE id {LISTED}", as_json(ids))
        return _in_order(ids, {row[0]: stored_turn(row) for row in rows})

    def recent_turns(
        self, scope: Scope = EVERYTHING, *, before: str | None = None, limit: int | None
    ) -> Turns:
        """The last `limit` turns of a scope, oldest first; None: all.

        before: only turns stored before the turn with this id; an unknown id gives none.
        """
        conditions, params = scope_sql(scope, "")
        if before is not None:
            conditions.append("rowid < (SELECT rowid FROM turns WHERE id = ?)")
            params.append(before)
        # The inner SELECT reads the index of scopes alone; otherwise it would sort whole turns.
        ids = f"SELECT rowid FROM turns WHERE {' AND '.join(conditions) or '1'} ORDER BY rowid DESC"
        rows = self.select(
            f"SELECT {TURN_COLUMNS} FROM turns WHERE rowid IN ({ids} LIMIT ?) ORDER BY rowid DESC",
            *params,
            _limit(limit),
        )
        return [stored_turn(row) for row in reversed(rows)]

    def standing_turns(self, ids: Sequence[str]) -> Ids:
        """The ids, of those given, of turns whose own memory is live and has the turn's words."""
        now = utc_now()
        rows = self.select(
            f"SELECT t.id FROM {_TURNS_AND_MEMORIES} "
            f"WHERE t.id {LISTED} AND m.kind = 'turn' AND m.memory = t.content AND {LIVE}",
            as_json(ids),
            now,
            now,
        )
        found = {row[0] for row in rows}
        return [id for id in ids if id in found]

    def stale_turns(self, ids: Sequence[str]) -> dict[str, tuple[str, ...]]:
        """The texts of facts that are no longer valid, by the turn that they were taken from."""
        rows = self.select(
            f"SELECT t.id, m.memory FROM {_TURNS_AND_MEMORIES} "
            f"WHERE t.id {LISTED} AND m.kind = 'fact' AND m.valid_to <= ? ORDER BY m.rowid",
            as_json(ids),
            utc_now(),
        )
        found: dict[str, tuple[str, ...]] = {}
        for turn, fact in rows:
            found[turn] = (*found.get(turn, ()), fact)
        return found

    def corrections(self, turn_ids: Iterable[str]) -> Rows:
        """The facts of these turns that a person has edited: ids of turn and fact, old text."""
        return self.select(
            f"SELECT t.id, m.id, h.old_memory FROM {_TURNS_AND_MEMORIES} JOIN history h ON {EDITS} "
            f"WHERE t.id {LISTED} AND m.kind = 'fact' ORDER BY h.seq",
            as_json(turn_ids),
        )

    def only_from(self, turn_ids: Iterable[str], kind: str = "fact") -> Items:
        """The memories of a kind that came from these turns and from no other; not edited ones."""
        turns = as_json(turn_ids)
        cited = "SELECT s.memory FROM memory_sources s JOIN turns t ON t.rowid = s.turn WHERE t.id"
        return self._items(
            f"m.kind = ? AND m.deleted_at IS NULL AND m.rowid IN ({cited} {LISTED}) "
            f"AND NOT EXISTS ({cited} NOT {LISTED} AND s.memory = m.rowid) AND NOT {EDITED} "
            "ORDER BY m.rowid",
            kind,
            turns,
            turns,
        )

    def erase_extent(self, memory_ids: Iterable[str]) -> tuple[Ids, Ids]:
        """The ids of the turns, and of the memories, that an `erase` of these would take."""
        with self.snapshot() as connection:
            turns, memories = writing.extent(connection, tuple(memory_ids))
        return [row[1] for row in turns], [row[1] for row in memories]

    def history(self, memory_id: str) -> HistoryRows:
        """What happened to a memory, oldest first, as mem0's rows."""
        return [history_row(row) for row in self.select(HISTORY_OF, memory_id)]

    def pending(
        self, task: str | None = None, *, due_before: str | None = None, limit: int | None = None
    ) -> Work:
        """Work that is still to be done, oldest first.

        due_before: only work whose next_try_at is not later, or is missing, or is over a day later,
        since the clock was ahead when it was set.
        """
        rows = self.select(
            f"SELECT {PENDING_COLUMNS} FROM pending WHERE (?1 IS NULL OR task = ?1) "
            "AND (?2 IS NULL OR next_try_at IS NULL OR next_try_at <= ?2 "
            "OR julianday(next_try_at) - julianday(?2) > 1) ORDER BY id LIMIT ?3",
            task,
            due_before,
            _limit(limit),
        )
        return [pending_item(row) for row in rows]

    def counts(self) -> dict[str, int]:
        """The numbers of rows, and image_bytes.

        memories: the live ones; facts, turn_memories, summaries and images are among them. invalid,
        deleted: memories too. The others: all rows.
        """
        now = utc_now()
        sums = ", ".join(f"(SELECT count(*) FROM {table})" for table in _COUNTED)
        with self.snapshot() as connection:
            kinds = dict(
                connection.execute(
                    f"SELECT m.kind, count(*) FROM memories m WHERE {LIVE} GROUP BY m.kind",
                    (now, now),
                ).fetchall()
            )
            ((all_rows, deleted, image_bytes, *others),) = connection.execute(
                "SELECT count(*), count(deleted_at), "
                f"(SELECT coalesce(sum(size_bytes), 0) FROM images), {sums} FROM memories"
            ).fetchall()
        live = sum(kinds.values())
        return {
            "memories": live,
            "facts": kinds.get("fact", 0),
            "turn_memories": kinds.get("turn", 0),
            "summaries": kinds.get("summary", 0),
            "images": kinds.get("image", 0),
            "invalid": all_rows - live - deleted,
            "deleted": deleted,
            **dict(zip(_COUNTED, others, strict=True)),
            "image_bytes": image_bytes,
        }

    def changes(self, since_generation: int = 0) -> Changes:
        """The changes that a cache at `since_generation` must apply; 0 gives the whole store."""
        with self.snapshot() as connection:
            return read_changes(connection, since_generation)

    def export_rows(self) -> Iterator[dict[str, Any]]:
        """Every row as a JSON-able dict with its "type", see rows.py.

        All rows are of one snapshot, and writes go on meanwhile. An erase waits until the iterator
        of a file is used up or closed. The rows of a store with one connection are copied first.
        """
        if self._reader is self._writer:
            with self.snapshot() as connection:
                rows = [*export_rows(connection)]
                rows += images.export_images(connection, self.images_folder)
            yield from rows
            return
        self._require_open()
        key = None if self.vault is None else self.vault.page_key
        with (
            sqlite_errors(self._name),
            closing(database.connect(self._source, self._busy_timeout_s, key)) as connection,
        ):
            connection.execute("BEGIN")
            yield from export_rows(connection)
            yield from images.export_images(connection, self.images_folder)

    def check(self) -> Ids:
        """The problems found in the file, as text; empty if there are none."""
        with self._write_lock:
            self._require_open()
            if self._writer.in_transaction:
                raise StoreError("a transaction is open in this thread; end it before check()")
            of_images = partial(images.problems, folder=self.images_folder)
            found = database.problems(self._writer, self._name, of_images)
        return found + database.left_behind(self.path)

    def _require_open(self) -> None:
        if self._closed:
            raise StoreError(f"the store {self._name} is closed; open it again")


_COUNTED = "turns vectors token_vectors entities relations history pending".split()
_TURNS_AND_MEMORIES = (
    "turns t JOIN memory_sources s ON s.turn = t.rowid JOIN memories m ON m.rowid = s.memory"
)


def _in_order(wanted: Iterable[Key], found: Mapping[Key, Value]) -> dict[Key, Value]:
    return {key: found[key] for key in wanted if key in found}


def _conditions(
    scope: Scope,
    where: Where | None,
    kinds: Collection[str] | None,
    *,
    include_invalid: bool = False,
    now: str | None = None,
    at: str | None = None,
) -> tuple[str, list[Any]]:
    now = now or utc_now()
    conditions, params = scope_sql(scope)
    if include_invalid:
        conditions.append("m.deleted_at IS NULL")
    else:
        conditions.append(LIVE)
        params += [at or now, now]
    if at is not None:
        conditions.append(
            "(m.valid_from IS NULL OR m.valid_from <= ? OR EXISTS (SELECT 1 FROM relations r "
            "WHERE r.memory = m.rowid AND r.valid_from <= ?))"
        )
        params += [at, at]
    if kinds is not None:
        conditions.append(f"m.kind {LISTED}")
        params.append(as_json(sorted(kinds)))
    if where is not None:
        conditions.append(where.sql)
        params += where.params
    return " AND ".join(conditions), params


def _limit(limit: int | None) -> int:
    if limit is None:
        return -1
    if limit < 0:
        raise InputError(f"limit is {limit}; give 0 or more, or None for all")
    return limit


def told_texts(store: Store, scope: Scope, kinds: Collection[str]) -> Rows:
    """(rowid, text, time) of the live memories of a scope, by rowid.

    time: when a turn was said or an image sent, or when a fact was last edited.
    """
    conditions, params = _conditions(scope, None, kinds)
    when = "iif(m.kind = 'fact', m.updated_at, coalesce(m.valid_from, m.created_at))"
    return store.select(
        f"SELECT m.rowid, m.memory, {when} FROM memories m WHERE {conditions} ORDER BY m.rowid",
        *params,
    )


# --- for a person who looks through a store ---------------------------------------------------

_STATES = {
    "live": LIVE,
    "past": f"m.deleted_at IS NULL AND NOT ({LIVE})",
    "deleted": "m.deleted_at IS NOT NULL",
    "all": "1",
}


@dataclass(frozen=True, slots=True)
class Browsed:
    """A memory as it lies in the store. deleted_at: ISO-8601 UTC; None if it was not deleted."""

    item: MemoryItem
    deleted_at: str | None
    place: tuple[str, int]  # in the order of `browse`


def owners(store: Store) -> dict[str, list[tuple[str, int]]]:
    """Every user_id, agent_id and run_id that has memories, with how many of them are not deleted.

    At most 500 ids of each kind, sorted.
    """
    with store.snapshot() as connection:
        return {
            name: connection.execute(
                f"SELECT {name}, sum(deleted_at IS NULL) FROM memories WHERE {name} IS NOT NULL "
                f"GROUP BY {name} ORDER BY {name} LIMIT 500"
            ).fetchall()
            for name in SCOPE
        }


def browse(
    store: Store,
    scope: Scope = EVERYTHING,
    *,
    id: str | None = None,
    kind: str | None = None,
    state: str = "live",
    limit: int,
    after: tuple[str, int] | None = None,
) -> list[Browsed]:
    """Memories of a scope, the latest valid_from (or else created_at) first.

    id, kind: only memories with this id or kind. state: "live", "past" (ended or expired),
    "deleted" or "all". after: only what follows this place, whatever was added or erased since it
    was given. Raises InputError on an unknown kind or state, or a number below 0.
    """
    for what, given, allowed in (("state", state, tuple(_STATES)), ("kind", kind, KINDS)):
        if given is not None and given not in allowed:
            raise InputError(f"{what} is {given!r:.80}; give one of {', '.join(allowed)}")
    for what, number in (("limit", limit), ("the row of after", after[1] if after else 0)):
        if not 0 <= number < 2**63:
            raise InputError(f"{what} is {number}; give 0 or more")
    conditions, params = scope_sql(scope)
    for column, value in (("id", id), ("kind", kind)):
        if value is not None:
            conditions.append(f"m.{column} = ?")
            params.append(value)
    time = "coalesce(m.valid_from, m.created_at)"
    order = f"ORDER BY {time} DESC, m.rowid DESC"
    conditions += [_STATES[state], f"({time}, m.rowid) < (?, ?)"]
    params += [utc_now()] * _STATES[state].count("?")
    params += [*(after or ("~", 0)), limit]  # "~" follows all times
    # The inner SELECT finds the page's rows; otherwise the sources of every row would be read.
    rows = store.select(
        f"SELECT {MEMORY_COLUMNS}, m.deleted_at, {time}, m.rowid FROM memories m WHERE m.rowid IN "
        f"(SELECT m.rowid FROM memories m WHERE {' AND '.join(conditions)} {order} LIMIT ?) "
        f"{order}",
        *params,
    )
    return [Browsed(memory_item(row), row[-3], row[-2:]) for row in rows]


def replacements(store: Store, ids: Sequence[str]) -> list[tuple[str, str]]:
    """Pairs (old id, new id), either of them in `ids`, where the new memory contradicts the old.

    In the history, the row that adds the new memory then follows the row that ends the old one. A
    memory that was already invalid when it was stored has no such row.
    """
    listed = as_json(ids)
    return store.select(
        "SELECT ended.memory_id, began.memory_id FROM history ended JOIN history began "
        "ON began.seq = ended.seq + 1 WHERE ended.event = 'DELETE' AND NOT ended.is_deleted "
        "AND began.event = 'ADD' AND began.created_at = ended.updated_at "
        f"AND (ended.memory_id {LISTED} OR began.memory_id {LISTED}) ORDER BY ended.seq",
        listed,
        listed,
    )
