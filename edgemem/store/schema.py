"""The tables, and how an older file is brought up to date.

Knows every version of the schema; must not know what the rows mean or who reads them. A file's
version is `PRAGMA user_version`, the number of the last migration that was applied to it. Each
migration is one transaction, before which a backup copy of an existing file is made.
"""

from __future__ import annotations

import os
import sqlite3
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from edgemem.errors import SchemaVersionError, StoreCorrupt, StoreFull
from edgemem.results import utc_now

__all__ = ["APPLICATION_ID", "MIGRATIONS", "backup_path", "inspect", "migrate"]

APPLICATION_ID = 0x45444745  # "EDGE", in the file's header
# What each migration adds: a file of version n has those of the first n.
TABLES = (
    frozenset(
        {"meta", "turns", "memories", "memory_sources", "vectors", "history", "pending", "erased"}
        | {"memories_fts", "memories_live"}
    ),
    frozenset({"receipts", "never_send"}),
    frozenset({"sensitivities"}),
)


def _one(connection: sqlite3.Connection, sql: str) -> int:
    return int(connection.execute(sql).fetchone()[0])


def _migration_1(connection: sqlite3.Connection) -> None:
    # sqlite-utils where its table builder can say it; it has no AUTOINCREMENT, views over FTS5
    # content or composite keys with cascades. Imported here: a store that exists needs it not.
    from sqlite_utils import Database

    db = Database(connection, execute_plugins=False)
    db.table("meta").create({"key": str, "value": str}, pk="key", strict=True)
    db.table("erased").create({"memory": int, "generation": int}, pk="memory", strict=True)
    for statement in _STATEMENTS_1:
        connection.execute(statement)
    db.table("erased").create_index(["generation"])
    db.table("turns").create_index(["user_id", "agent_id", "run_id"])
    db.table("memories").create_index(["generation"])
    db.table("memories").create_index(["user_id", "agent_id", "run_id"])
    db.table("memory_sources").create_index(["turn"])
    db.table("vectors").create_index(["memory"])
    db.table("history").create_index(["memory_id"])
    connection.executemany(
        "INSERT INTO meta (key, value) VALUES (?, ?)",
        [("generation", "0"), ("created_at", utc_now())],
    )


# AUTOINCREMENT: a number that was ever used (HNSW labels, rowids in other processes' caches) is
# never used again, not even after an erase.
_STATEMENTS_1 = (
    """CREATE TABLE turns (
        rowid INTEGER PRIMARY KEY AUTOINCREMENT,
        id TEXT NOT NULL UNIQUE,
        user_id TEXT, agent_id TEXT, run_id TEXT,
        role TEXT NOT NULL, name TEXT, content TEXT NOT NULL,
        timestamp TEXT NOT NULL, metadata TEXT NOT NULL, created_at TEXT NOT NULL
    ) STRICT""",
    # vectors_generation: when its vectors were last replaced; 0 if they never were.
    """CREATE TABLE memories (
        rowid INTEGER PRIMARY KEY AUTOINCREMENT,
        id TEXT NOT NULL UNIQUE,
        kind TEXT NOT NULL, memory TEXT NOT NULL, search_text TEXT NOT NULL,
        user_id TEXT, agent_id TEXT, run_id TEXT, metadata TEXT NOT NULL,
        created_at TEXT NOT NULL, updated_at TEXT NOT NULL,
        valid_from TEXT, valid_to TEXT, expires_at TEXT, deleted_at TEXT,
        generation INTEGER NOT NULL, vectors_generation INTEGER NOT NULL DEFAULT 0
    ) STRICT""",
    """CREATE TABLE memory_sources (
        memory INTEGER NOT NULL REFERENCES memories (rowid) ON DELETE CASCADE,
        turn INTEGER NOT NULL REFERENCES turns (rowid) ON DELETE CASCADE,
        PRIMARY KEY (memory, turn)
    ) STRICT, WITHOUT ROWID""",
    """CREATE TABLE vectors (
        label INTEGER PRIMARY KEY AUTOINCREMENT,
        memory INTEGER NOT NULL REFERENCES memories (rowid) ON DELETE CASCADE,
        chunk INTEGER NOT NULL, vector BLOB NOT NULL
    ) STRICT""",
    # A deleted memory keeps its row but not its place in the index, also after a 'rebuild',
    # so the index reads its content through this view.
    """CREATE VIEW memories_live AS
        SELECT rowid AS rowid, search_text FROM memories WHERE deleted_at IS NULL""",
    """CREATE VIRTUAL TABLE memories_fts USING fts5 (
        search_text, content='memories_live', content_rowid='rowid',
        tokenize='porter unicode61 remove_diacritics 2'
    )""",
    """CREATE TABLE history (
        seq INTEGER PRIMARY KEY AUTOINCREMENT,
        id TEXT NOT NULL UNIQUE, memory_id TEXT NOT NULL,
        old_memory TEXT, new_memory TEXT, event TEXT NOT NULL,
        created_at TEXT, updated_at TEXT, is_deleted INTEGER NOT NULL DEFAULT 0,
        actor_id TEXT, role TEXT
    ) STRICT""",
    # uid: the same piece of work in an export, whatever its number here.
    """CREATE TABLE pending (
        id INTEGER PRIMARY KEY AUTOINCREMENT, uid TEXT NOT NULL UNIQUE,
        task TEXT NOT NULL, payload TEXT NOT NULL,
        user_id TEXT, agent_id TEXT, run_id TEXT,
        attempts INTEGER NOT NULL DEFAULT 0, last_error TEXT,
        created_at TEXT NOT NULL, next_try_at TEXT
    ) STRICT""",
)

# Receipts of cloud calls hold ids, counts and a hash: no text. What may never be sent: a scope
# (absent parts match everything) or a pattern.
_STATEMENTS_CLOUD = (
    """CREATE TABLE receipts (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        uid TEXT NOT NULL UNIQUE, created_at TEXT NOT NULL,
        endpoint TEXT NOT NULL, model TEXT NOT NULL,
        user_id TEXT, agent_id TEXT, run_id TEXT, memory_ids TEXT NOT NULL,
        tokens_before INTEGER NOT NULL, tokens_after INTEGER NOT NULL, compress_s REAL NOT NULL,
        sent_bytes INTEGER NOT NULL, sent_sha256 TEXT, cost REAL,
        outcome TEXT NOT NULL, prompt_tokens INTEGER, completion_tokens INTEGER,
        seconds REAL, attempts INTEGER
    ) STRICT""",
    "CREATE INDEX idx_receipts_created_at ON receipts (created_at)",
    """CREATE TABLE never_send (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        uid TEXT NOT NULL UNIQUE, created_at TEXT NOT NULL,
        user_id TEXT, agent_id TEXT, run_id TEXT, pattern TEXT,
        CHECK ((pattern IS NULL) <> (coalesce(user_id, agent_id, run_id) IS NULL))
    ) STRICT""",
)


def _migration_cloud(connection: sqlite3.Connection) -> None:
    for statement in _STATEMENTS_CLOUD:
        connection.execute(statement)


_STATEMENTS_SENSITIVITIES = (
    """CREATE TABLE sensitivities (
        turn INTEGER PRIMARY KEY REFERENCES turns (rowid) ON DELETE CASCADE,
        model TEXT NOT NULL, scale REAL NOT NULL, offsets BLOB NOT NULL, scores BLOB NOT NULL
    ) STRICT""",
    # Whoever deletes or edits a memory: the scores of its words must not outlive them.
    """CREATE TRIGGER sensitivities_forget AFTER UPDATE OF memory, deleted_at ON memories
        WHEN new.kind = 'turn' AND (new.memory <> old.memory OR new.deleted_at IS NOT NULL)
        BEGIN DELETE FROM sensitivities
            WHERE turn IN (SELECT turn FROM memory_sources WHERE memory = new.rowid); END""",
)


def _migration_sensitivities(connection: sqlite3.Connection) -> None:
    for statement in _STATEMENTS_SENSITIVITIES:
        connection.execute(statement)


MIGRATIONS: list[Callable[[sqlite3.Connection], None]] = [
    _migration_1,
    _migration_cloud,
    _migration_sensitivities,
]


def inspect(connection: sqlite3.Connection, path: str) -> int:
    """The schema version of an opened file, 0 if it is new and empty. Writes nothing.

    Raises StoreCorrupt if it is another program's file or lacks a table, SchemaVersionError if
    a newer edgemem wrote it.
    """
    application, version, names = _identity(connection)
    if application == 0 and version == 0 and not names:
        return 0
    if application != APPLICATION_ID:
        raise StoreCorrupt(
            f"{path} is a SQLite file of another program (application_id {application:#x}, an "
            f"edgemem store has {APPLICATION_ID:#x}); give the path of a store or of a new file"
        )
    if version > len(MIGRATIONS):
        raise SchemaVersionError(
            f"{path} has schema version {version} and this edgemem knows versions up to "
            f"{len(MIGRATIONS)}; upgrade edgemem-runtime to open it"
        )
    wanted = frozenset[str]().union(*TABLES[:version])
    if version < 1 or not names >= wanted:
        missing = ", ".join(sorted(wanted - names)) or "none"
        raise StoreCorrupt(
            f"{path} is damaged: schema version {version}, missing tables: {missing}; "
            "go back to a backup copy"
        )
    return version


def _identity(connection: sqlite3.Connection) -> tuple[int, int, set[str]]:
    """application_id, user_version and the tables' names, of one state of the file: another
    process may be making it at this moment."""
    with _snapshot(connection):
        rows = connection.execute("SELECT name FROM sqlite_master").fetchall()
        application = _one(connection, "PRAGMA application_id")
        version = _one(connection, "PRAGMA user_version")
    return application, version, {name for (name,) in rows if isinstance(name, str)}


@contextmanager
def _snapshot(connection: sqlite3.Connection) -> Iterator[None]:
    if connection.in_transaction:
        yield
        return
    connection.execute("BEGIN")
    try:
        yield
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")


def migrate(connection: sqlite3.Connection, path: Path | None) -> None:
    """Bring the file up to this version's schema. path: None for a store in memory.

    All steps are one transaction, after a copy of an older file. Safe when several processes do it
    at once: each looks again under the write lock.
    """
    name = str(path) if path is not None else ":memory:"
    if inspect(connection, name) == len(MIGRATIONS):
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        version = inspect(connection, name)
        if 0 < version < len(MIGRATIONS) and path is not None:
            _backup(path, version)
        for step in MIGRATIONS[version:]:
            step(connection)
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def backup_path(path: Path, version: int) -> Path:
    """Where the copy of a file of that schema version is kept."""
    return path.with_name(f"{path.name}.v{version}.bak")


def _backup(path: Path, version: int) -> None:
    """Copy the file, through SQLite, to `<file>.v<version>.bak`. The caller holds its lock."""
    target = backup_path(path, version)
    # Named `.bak` from the start, so that an erase also finds what a crash left half written.
    partial = target.with_name(f"{path.name}.v{version}.{uuid.uuid4().hex[:8]}.bak")
    try:
        source = sqlite3.connect(path, isolation_level=None)
        try:
            os.close(os.open(partial, os.O_CREAT | os.O_RDWR, 0o600))
            copy = sqlite3.connect(partial, isolation_level=None)
            try:
                source.backup(copy)
                copy.execute("PRAGMA journal_mode = DELETE")
            finally:
                copy.close()
        finally:
            source.close()
        descriptor = os.open(partial, os.O_RDWR)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.replace(partial, target)
    except BaseException as exc:
        partial.unlink(missing_ok=True)
        if not isinstance(exc, OSError):
            raise
        raise StoreFull(
            f"no backup copy could be written to {target} ({exc}); free some space or make the "
            "folder writable, then open the store again"
        ) from exc
