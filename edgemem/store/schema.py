"""The tables of a store's file, and the migrations that made them.

A file's version is `PRAGMA user_version`, the number of the last migration that was applied to it.
The migrations that a file lacks run in one transaction, after a copy of the file was made.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from functools import partial
from pathlib import Path

from edgemem.errors import SchemaVersionError, StoreCorrupt, StoreError, StoreLocked
from edgemem.results import utc_now
from edgemem.store.database import (
    backup,
    connect,
    is_out_of_room,
    open_file,
    patiently,
    roll_back,
    snapshot,
    sqlite_errors,
    uri,
)
from edgemem.vault import is_vault

__all__ = ["APPLICATION_ID", "MIGRATIONS", "TABLES", "connected", "inspect"]

PAGE_SIZE = 8192  # holds five 384-dimensional vectors; SQLite's default, 4096, holds two
APPLICATION_ID = 0x45444745  # "EDGE", in the file's header


def _migration_1(connection: sqlite3.Connection) -> None:
    # sqlite-utils' table builder has no AUTOINCREMENT, no views over FTS5 content and no composite
    # keys with cascades; those are SQL. Imported here, because an existing store does not need it.
    from sqlite_utils import Database

    db = Database(connection, execute_plugins=False)
    db.table("meta").create({"key": str, "value": str}, pk="key", strict=True)
    db.table("erased").create({"memory": int, "generation": int}, pk="memory", strict=True)
    _executed(connection, _STATEMENTS_1)
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
    # A deleted memory keeps its row but must stay out of the index, also after a 'rebuild'. So the
    # index reads its content through this view.
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
    # uid: identifies a piece of work in exports; its id belongs to this file.
    """CREATE TABLE pending (
        id INTEGER PRIMARY KEY AUTOINCREMENT, uid TEXT NOT NULL UNIQUE,
        task TEXT NOT NULL, payload TEXT NOT NULL,
        user_id TEXT, agent_id TEXT, run_id TEXT,
        attempts INTEGER NOT NULL DEFAULT 0, last_error TEXT,
        created_at TEXT NOT NULL, next_try_at TEXT
    ) STRICT""",
)

# Receipts of cloud calls hold ids, counts and a hash, but no text. A row of never_send is a scope
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


# Scores of tokens that were made ahead of time did not help (bench/LOG.md, 2026-11-25).
_STATEMENTS_NO_SENSITIVITIES = (
    "DROP TRIGGER IF EXISTS sensitivities_forget",
    "DROP TABLE IF EXISTS sensitivities",
)

# The token vectors of a search text as one blob of int8 rows, by the model in meta's `token_model`.
# The trigger deletes them with their text, so code that edits or deletes it need not.
_STATEMENTS_TOKENS = (
    """CREATE TABLE token_vectors (
        memory INTEGER PRIMARY KEY REFERENCES memories (rowid) ON DELETE CASCADE,
        tokens BLOB NOT NULL
    ) STRICT""",
    """CREATE TRIGGER token_vectors_forget AFTER UPDATE OF search_text, deleted_at ON memories
        WHEN new.search_text <> old.search_text OR new.deleted_at IS NOT NULL
        BEGIN DELETE FROM token_vectors WHERE memory = new.rowid; END""",
)

# An entity is one name of one type for one owner. An alias comes from a fact and is deleted with
# it. graphed: the version of the reader that has read the fact; a trigger resets it on an edit.
_STATEMENTS_GRAPH = (
    """CREATE TABLE entities (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        user_id TEXT, agent_id TEXT, run_id TEXT,
        type TEXT NOT NULL, name TEXT NOT NULL, normalised TEXT NOT NULL
    ) STRICT""",
    """CREATE UNIQUE INDEX idx_entities_name ON entities (
        normalised, type, ifnull(user_id, ''), ifnull(agent_id, ''), ifnull(run_id, '')
    )""",
    # The key's columns come first, or SQLite 3.40's integrity check takes a value for NULL.
    """CREATE TABLE aliases (
        normalised TEXT NOT NULL,
        entity INTEGER NOT NULL REFERENCES entities (id) ON DELETE CASCADE,
        memory INTEGER NOT NULL REFERENCES memories (rowid) ON DELETE CASCADE,
        name TEXT NOT NULL,
        PRIMARY KEY (normalised, entity, memory)
    ) STRICT, WITHOUT ROWID""",
    "CREATE INDEX idx_aliases_entity ON aliases (entity)",
    "CREATE INDEX idx_aliases_memory ON aliases (memory)",
    """CREATE TABLE relations (
        id INTEGER PRIMARY KEY AUTOINCREMENT, uid TEXT NOT NULL UNIQUE,
        source INTEGER NOT NULL REFERENCES entities (id) ON DELETE CASCADE,
        label TEXT NOT NULL,
        target INTEGER NOT NULL REFERENCES entities (id) ON DELETE CASCADE,
        memory INTEGER NOT NULL REFERENCES memories (rowid) ON DELETE CASCADE,
        valid_from TEXT, valid_to TEXT,
        invalidated_by INTEGER REFERENCES memories (rowid) ON DELETE SET NULL,
        UNIQUE (source, label, target, memory), CHECK (source <> target)
    ) STRICT""",
    "CREATE INDEX idx_relations_target ON relations (target)",
    "CREATE INDEX idx_relations_memory ON relations (memory)",
    "CREATE INDEX idx_relations_invalidated_by ON relations (invalidated_by)",
    "ALTER TABLE memories ADD COLUMN graphed INTEGER NOT NULL DEFAULT 0",
    """CREATE INDEX idx_memories_graphed ON memories (graphed)
        WHERE kind = 'fact' AND deleted_at IS NULL""",
    """CREATE TRIGGER relations_orphans AFTER DELETE ON relations
        BEGIN DELETE FROM entities WHERE id IN (old.source, old.target)
            AND NOT EXISTS (SELECT 1 FROM relations WHERE source = entities.id)
            AND NOT EXISTS (SELECT 1 FROM relations WHERE target = entities.id); END""",
    """CREATE TRIGGER relations_forget AFTER UPDATE OF memory, deleted_at ON memories
        WHEN new.memory <> old.memory OR new.deleted_at IS NOT NULL
        BEGIN DELETE FROM relations WHERE memory = new.rowid;
            DELETE FROM aliases WHERE memory = new.rowid;
            UPDATE memories SET graphed = 0 WHERE rowid = new.rowid; END""",
)

# id: the SHA-256 of the bytes, which lie in `data` or in a file of that name (store/images.py).
# Long columns come last, so that the others are read without them. A caption belongs to a memory
# and is deleted with it; the text that was read in an image belongs to the image.
_STATEMENTS_IMAGES = (
    """CREATE TABLE images (
        id TEXT PRIMARY KEY,
        mime TEXT NOT NULL, size_bytes INTEGER NOT NULL,
        width INTEGER NOT NULL, height INTEGER NOT NULL, animated INTEGER NOT NULL,
        taken_at TEXT, place TEXT, created_at TEXT NOT NULL,
        phash TEXT NOT NULL,
        ocr_state TEXT NOT NULL CHECK (ocr_state IN ('pending', 'done', 'failed')),
        embedding_model TEXT, embedding BLOB,
        ocr_text TEXT, ocr_boxes TEXT,
        thumbnail BLOB NOT NULL, data BLOB
    ) STRICT""",
    "CREATE INDEX idx_images_phash ON images (phash, id)",
    "CREATE INDEX idx_images_unread ON images (id) WHERE ocr_state = 'pending'",
    """CREATE TABLE memory_images (
        memory INTEGER NOT NULL REFERENCES memories (rowid) ON DELETE CASCADE,
        image TEXT NOT NULL REFERENCES images (id) ON DELETE CASCADE,
        caption TEXT, caption_by TEXT,
        PRIMARY KEY (memory, image)
    ) STRICT, WITHOUT ROWID""",
    "CREATE INDEX idx_memory_images_image ON memory_images (image)",
    # An image is deleted with its last memory.
    """CREATE TRIGGER images_orphans AFTER DELETE ON memory_images
        BEGIN DELETE FROM images WHERE id = old.image
            AND NOT EXISTS (SELECT 1 FROM memory_images WHERE image = old.image); END""",
)


BETWEEN = "\x1f"  # between a memory's id and that of a row which belongs to it
SEPARATOR = f"char({ord(BETWEEN)})"  # the same in SQL
_ON = "EXISTS (SELECT 1 FROM sync_self WHERE NOT quiet)"
_CHANGED = " OR ".join(
    f"old.{name} IS NOT new.{name}" for name in ("search_text", "valid_from", "expires_at")
)
# The mark never_send is versioned separately from the rest of the metadata. It is found by text
# search, because an untrusted schema may not use JSON functions. In doubt both get a new version.
_OTHERS = "{}.metadata"
for _mark in (',"never_send":true', '"never_send":true,', '"never_send":true'):
    _OTHERS = f"replace({_OTHERS}, '{_mark}', '')"
_CHANGED += f" OR {_OTHERS.format('old')} IS NOT {_OTHERS.format('new')}"
_MARKED = "instr({}.metadata, '\"never_send\"') > 0"
_NEW_MARK = _MARKED.format("new")
_OTHER_MARK = f"old.metadata IS NOT new.metadata AND ({_MARKED.format('old')} OR {_NEW_MARK})"
_OF = "(SELECT id FROM {} WHERE rowid = new.{})"
# When a row gets a new version: the kind, the event, the table, the version's id, the condition.
_VERSIONED = (
    ("turn", "INSERT", "turns", "new.id", "1"),
    ("memory", "INSERT", "memories", "new.id", "1"),
    ("memory", "UPDATE OF memory, deleted_at", "memories", "new.id", "1"),
    (
        "memory", "UPDATE OF search_text, metadata, valid_from, expires_at", "memories", "new.id",
        _CHANGED,
    ),
    ("end", "INSERT", "memories", "new.id", "new.valid_to IS NOT NULL"),
    ("end", "UPDATE OF valid_to", "memories", "new.id", "1"),
    ("mark", "INSERT", "memories", "new.id", _NEW_MARK),
    ("mark", "UPDATE OF metadata", "memories", "new.id", _OTHER_MARK),
    ("graph", "UPDATE OF graphed", "memories", "new.id", "1"),
    (
        "graph", "UPDATE OF valid_to, invalidated_by", "relations",
        _OF.format("memories", "memory"), "1",
    ),
    (
        "source", "INSERT", "memory_sources",
        f"{_OF.format('memories', 'memory')} || {SEPARATOR} || {_OF.format('turns', 'turn')}", "1",
    ),
    *(
        ("image", event, "memory_images",
         f"{_OF.format('memories', 'memory')} || {SEPARATOR} || new.image", "1")
        for event in ("INSERT", "UPDATE OF caption, caption_by")
    ),
    ("history", "INSERT", "history", f"new.memory_id || {SEPARATOR} || new.id", "1"),
    ("never", "INSERT", "never_send", "new.uid", "1"),
)  # fmt: skip
_TICK = (
    "UPDATE sync_self SET clock = max(clock + 1, "
    "CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER) * 65536)"
)


def _sync_triggers() -> Iterator[str]:
    """The triggers that give rows their versions, in the transaction of the change itself.

    They upsert, because in a trigger SQLite would turn OR REPLACE into the OR IGNORE of the
    statement that fires it.
    """
    version = "INSERT INTO sync_rows SELECT '{}', {}, clock, device, clock, NULL FROM sync_self"
    latest = (
        " ON CONFLICT (kind, id) DO UPDATE SET clock = excluded.clock, device = excluded.device, "
        "seq = excluded.seq, link = NULL; "
    )
    for number, (kind, event, table, id, condition) in enumerate(_VERSIONED):
        steps = f"{_TICK}; {version.format(kind, id)} WHERE true{latest}"
        if kind == "memory":  # relations older than their text would be ignored
            steps += f"{_TICK}; {version.format('graph', id)} WHERE new.graphed > 0{latest}"
        yield (
            f"CREATE TRIGGER sync_{kind}_{number} AFTER {event} ON {table} "
            f"WHEN ({condition}) AND {_ON} BEGIN {steps}END"
        )
    for table, id in (("turns", "id"), ("memories", "id"), ("never_send", "uid")):
        gone = f"old.{id}"
        owned = f"id > {gone} || {SEPARATOR} AND id < {gone} || char(32)"
        yield (
            f"CREATE TRIGGER sync_{table}_erased AFTER DELETE ON {table} WHEN {_ON} BEGIN {_TICK}; "
            f"DELETE FROM sync_rows WHERE id = {gone} "
            "AND kind IN ('turn', 'memory', 'end', 'mark', 'graph', 'never'); "
            # Rows of kind 'source' stay: a root from another device erases the turns they name.
            f"DELETE FROM sync_rows WHERE kind IN ('image', 'history') AND {owned}; "
            f"DELETE FROM sync_waiting WHERE id = {gone} OR ({owned}); "
            f"{version.format('erased', gone)} WHERE true ON CONFLICT (kind, id) DO NOTHING; END"
        )


# The state of sync (see store/sync.py). sync_self gets its one row when sync begins; until then no
# trigger does anything. A row of sync_rows is the version of what kind and id name. clock: a hybrid
# logical clock (Unix milliseconds * 65536 + a count). device: which device wrote it. seq: this
# device's clock when it wrote or received it. link: where it was received; NULL if written here.
# Rows of kind "asked" are no versions: their ids are hashes of what was asked to be erased before
# sync began (see store/erasures.py).
_STATEMENTS_SYNC = (
    """CREATE TABLE sync_self (
        one INTEGER PRIMARY KEY CHECK (one = 1),
        device TEXT NOT NULL, secret BLOB NOT NULL, clock INTEGER NOT NULL,
        counter INTEGER NOT NULL DEFAULT 0, quiet INTEGER NOT NULL DEFAULT 0
    ) STRICT""",
    """CREATE TABLE sync_rows (
        kind TEXT NOT NULL, id TEXT NOT NULL, clock INTEGER NOT NULL, device TEXT NOT NULL,
        seq INTEGER NOT NULL, link TEXT, PRIMARY KEY (kind, id)
    ) STRICT, WITHOUT ROWID""",
    "CREATE INDEX idx_sync_rows_seq ON sync_rows (seq)",
    # Versions that arrived before a row that they refer to.
    """CREATE TABLE sync_waiting (
        kind TEXT NOT NULL, id TEXT NOT NULL, clock INTEGER NOT NULL, device TEXT NOT NULL,
        body TEXT, vectors BLOB, PRIMARY KEY (kind, id)
    ) STRICT, WITHOUT ROWID""",
    """CREATE TABLE sync_links (
        link TEXT PRIMARY KEY, counter INTEGER NOT NULL, nonce TEXT NOT NULL, before TEXT
    ) STRICT, WITHOUT ROWID""",
    """CREATE TABLE sync_peers (
        link TEXT NOT NULL, device TEXT NOT NULL, counter INTEGER NOT NULL,
        content INTEGER NOT NULL, files TEXT NOT NULL, PRIMARY KEY (link, device)
    ) STRICT, WITHOUT ROWID""",
    *_sync_triggers(),
)

# Receipts of erasing. AUTOINCREMENT reveals whether the last ones were removed.
_STATEMENTS_ERASURES = (
    """CREATE TABLE erasures (
        number INTEGER PRIMARY KEY AUTOINCREMENT, body TEXT NOT NULL, sha256 TEXT NOT NULL
    ) STRICT""",
)


# What each migration executes; the first does more.
_STATEMENTS: tuple[tuple[str, ...], ...] = (
    _STATEMENTS_1,
    _STATEMENTS_CLOUD,
    (),  # added a table that the next one drops
    _STATEMENTS_NO_SENSITIVITIES,
    _STATEMENTS_TOKENS,
    _STATEMENTS_GRAPH,
    _STATEMENTS_IMAGES,
    _STATEMENTS_ERASURES,
    _STATEMENTS_SYNC,
)


def _executed(connection: sqlite3.Connection, statements: tuple[str, ...]) -> None:
    for statement in statements:
        connection.execute(statement)


MIGRATIONS: list[Callable[[sqlite3.Connection], object]] = [
    _migration_1,
    *(partial(_executed, statements=statements) for statements in _STATEMENTS[1:]),
]
# The tables that each migration adds. A file of version n has those of the first n migrations.
TABLES = tuple(
    frozenset(re.findall(r"CREATE (?:VIRTUAL TABLE|TABLE|VIEW) (\w+)", "\n".join(statements)))
    for statements in _STATEMENTS
)


def inspect(connection: sqlite3.Connection, path: str) -> int:
    """The schema version of an opened file, 0 if it is new and empty. Writes nothing.

    Raises StoreCorrupt if it is another program's file or lacks a table, SchemaVersionError if
    a newer edgemem wrote it.
    """
    with snapshot(connection):  # another process may be making the file at this moment
        rows = connection.execute("SELECT name FROM sqlite_master").fetchall()
        (application,) = connection.execute("PRAGMA application_id").fetchone()
        (version,) = connection.execute("PRAGMA user_version").fetchone()
    names = {name for (name,) in rows if isinstance(name, str)}
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
    wanted = frozenset({"meta", "erased"}).union(*TABLES[:version])
    if version < 1 or not names >= wanted:
        missing = ", ".join(sorted(wanted - names)) or "none"
        raise StoreCorrupt(
            f"{path} is damaged: schema version {version}, missing tables: {missing}; "
            "go back to a backup copy"
        )
    return int(version)


def connected(
    name: str, file: Path | None, timeout_s: float, key: bytes | None, vault: Path | None
) -> tuple[sqlite3.Connection, bool]:
    """A connection to a file whose schema is up to date, and whether it is the only one there can
    be: in memory, or where a full disk has no room for the log's index.

    name: of the file for SQLite; a URI if it is read-only. file: None for a store in memory. key:
    the page key of a vault. vault: the file, if `STORE.vault` has its key; StoreLocked if that is
    gone. Raises StoreError, StoreFull, SQLite's errors.
    """
    alone = file is None
    while True:
        connection = connect(name, timeout_s, key, alone=alone)
        try:
            if vault is not None and not is_vault(vault):
                # A new file would be encrypted with a key that is kept nowhere.
                raise StoreLocked(f"{vault} was removed by a program that ended; try again")
            read_only = name != str(file or ":memory:")
            full = alone and file is not None
            _prepare(connection, file, timeout_s, key, read_only=read_only, full=full)
        except BaseException as exc:
            connection.close()
            if alone or not is_out_of_room(exc):
                raise
            alone = True
        else:
            return connection, alone


def _prepare(
    connection: sqlite3.Connection,
    file: Path | None,
    timeout_s: float,
    key: bytes | None,
    *,
    read_only: bool,
    full: bool,
) -> None:
    """Bring a file's schema up to date.

    The file is inspected before anything is written, so another program's file is left as it is.
    read_only: only inspect it, and refuse an older one. full: refuse an older one, as there is no
    room for a backup, which would also wait for this connection.
    """

    def step() -> None:
        version = inspect(connection, str(file or ":memory:"))
        if (read_only or full) and version < len(MIGRATIONS):
            raise StoreError(
                f"{file} {'is read-only' if read_only else 'is on a full disk'} and has schema "
                f"version {version}, which this edgemem has to raise to {len(MIGRATIONS)}; copy it "
                "to a folder that can be written"
            )
        if read_only:
            return
        if version == 0:
            connection.execute(f"PRAGMA page_size = {PAGE_SIZE}")
        if file is not None:
            (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
            if mode != "wal":
                raise StoreError(
                    f"{file} cannot use a write-ahead log (SQLite keeps {mode!r}); put the store "
                    "on a local disk"
                )
        connection.execute("PRAGMA synchronous = FULL")
        if version < len(MIGRATIONS):
            _migrate(connection, file, key)

    if file is not None:
        _try_log(file, timeout_s, key, full=full)
    # Two processes may open a new file at once; turning WAL on does not wait by itself.
    patiently(step, timeout_s)


def _try_log(file: Path, timeout_s: float, key: bytes | None, *, full: bool) -> None:
    """Read a file with the log beside it by a connection that cannot write.

    A log that a killed program left may be of another file than the one that lies there now. Any
    other connection would write it into that one as it closes. full: the log's index is then not
    written; SQLite makes one in memory if it may not write the file of the index, which must be
    there, but may be empty. Raises StoreCorrupt.
    """
    log = file.with_name(file.name + "-wal")
    size = 0
    with suppress(FileNotFoundError):
        size = log.stat().st_size
    if not size:
        return
    name, options = str(file), "mode=ro"
    if full:
        options += "&readonly_shm=1"
        with suppress(OSError):
            file.with_name(file.name + "-shm").touch(0o600)
    try:
        with (
            sqlite_errors(name, encrypted=key is not None),
            closing(open_file(uri(file, options), timeout_s, key)) as reading,
        ):
            patiently(lambda: inspect(reading, name) < 0, timeout_s)
    except StoreCorrupt as exc:
        raise StoreCorrupt(
            f"{exc}. If it was put back from a backup, {log.name} is of the file before: close "
            f"every program that has the store open, delete {log.name} and {file.name}-shm, and "
            "open it again"
        ) from exc


def _migrate(connection: sqlite3.Connection, file: Path | None, key: bytes | None) -> None:
    """Apply the missing migrations in one transaction, after a backup of an older file.

    Safe when several processes do it at once: each reads the version again under the write lock.
    """
    connection.execute("BEGIN IMMEDIATE")
    try:
        version = inspect(connection, str(file or ":memory:"))
        if 0 < version < len(MIGRATIONS) and file is not None:
            backup(file, version, key)
        for migration in MIGRATIONS[version:]:
            migration(connection)
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")
        connection.execute("COMMIT")
    except BaseException:
        roll_back(connection)
        raise
