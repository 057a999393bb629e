"""Erasing: rows, then every trace of them in the files.

Knows which rows derive from which, and where SQLite leaves bytes behind (free pages, the
full-text index's old segments, the WAL, backup copies); must not know locks between threads.

The rows go in one transaction, which also notes that the files must be scrubbed. The scrub may be
interrupted or kept off by another process's read; the note stays, and the next open finishes it.
"""

from __future__ import annotations

import re
import sqlite3
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from edgemem.errors import StoreError, StoreFull, StoreLocked
from edgemem.store import reading
from edgemem.store.failures import is_busy, sqlite_errors
from edgemem.store.reading import LISTED, as_json
from edgemem.store.writing import Transaction

__all__ = ["erase_rows", "extent", "reset_rows", "scrub", "scrub_wanted"]

Rows = list[tuple[Any, ...]]

_NOTE = "scrub_wanted"
# What says nothing about the user; a reset keeps it.
_KEPT_META = ("generation", "created_at", "embedder_model", "embedder_dim")


def extent(connection: sqlite3.Connection, memory_ids: Sequence[str]) -> tuple[Rows, Rows]:
    """What an erase takes: (rowid, id) of turns; (rowid, id, search_text, deleted_at) of memories.

    These are the memories, their source turns, and every other memory that cites one of those
    turns (the turn's own memory among them). Turns that no memory cites (questions and answers of a
    chat, messages of a system or tool) may quote what is erased: those of the same user go too or,
    of no user, those of a scope that sees an erased memory. Ids that are not there are passed over.
    """
    wanted = as_json(memory_ids)
    turns = connection.execute(
        "SELECT DISTINCT t.rowid, t.id FROM turns t JOIN memory_sources s ON s.turn = t.rowid "
        f"JOIN memories m ON m.rowid = s.memory WHERE m.id {LISTED}",
        (wanted,),
    ).fetchall()
    turns += connection.execute(
        "SELECT t.rowid, t.id FROM turns t "
        "WHERE t.rowid NOT IN (SELECT turn FROM memory_sources) AND EXISTS "
        f"(SELECT 1 FROM memories m WHERE m.id {LISTED} AND (m.user_id = t.user_id OR "
        "(t.user_id IS NULL AND (t.agent_id IS NULL OR t.agent_id = m.agent_id) "
        "AND (t.run_id IS NULL OR t.run_id = m.run_id))))",
        (wanted,),
    ).fetchall()
    memories = connection.execute(
        f"SELECT rowid, id, search_text, deleted_at FROM memories WHERE id {LISTED} "
        f"OR rowid IN (SELECT memory FROM memory_sources WHERE turn {LISTED}) ORDER BY rowid",
        (wanted, as_json(row[0] for row in turns)),
    ).fetchall()
    return turns, memories


def erase_rows(tx: Transaction, memory_ids: Sequence[str]) -> list[str]:
    """Erase the `extent` of memories; the ids of all memories erased.

    With it go vectors, full-text rows, history and the pending work that mentions one of its ids.
    """
    with tx.step() as connection:
        turns, memories = extent(connection, memory_ids)
        turn_rows, turn_ids = [row[0] for row in turns], [row[1] for row in turns]
        ids = [row[1] for row in memories]
        if not ids:
            return []
        for rowid, _, search_text, deleted_at in memories:
            if deleted_at is None:
                tx.unindex_text(rowid, search_text)
        rowids = as_json(row[0] for row in memories)
        connection.execute(
            "INSERT OR REPLACE INTO erased (memory, generation) SELECT value, ? FROM json_each(?)",
            (tx.generation, rowids),
        )
        _purge_receipts(connection, ids)
        mentioned = as_json([*ids, *turn_ids])
        connection.execute(
            "DELETE FROM pending WHERE id IN (SELECT p.id FROM pending p, json_tree(p.payload) j "
            f"WHERE j.atom {LISTED} OR j.key {LISTED})",
            (mentioned, mentioned),
        )
        connection.execute(f"DELETE FROM history WHERE memory_id {LISTED}", (as_json(ids),))
        # Vectors and memory_sources go with them, by cascade.
        connection.execute(f"DELETE FROM memories WHERE rowid {LISTED}", (rowids,))
        connection.execute(f"DELETE FROM turns WHERE rowid {LISTED}", (as_json(turn_rows),))
        tx.set_meta(_NOTE, uuid.uuid4().hex)
    return ids


def _purge_receipts(connection: sqlite3.Connection, memory_ids: Sequence[str]) -> None:
    """Take erased memories out of the receipts, and the hashes of what may have quoted them.

    The user's questions are erased too, so every hash of that user goes; time and cost stay.
    """
    gone = as_json(memory_ids)
    connection.execute(
        "UPDATE receipts SET sent_sha256 = NULL, memory_ids = (SELECT json_group_array(value) "
        f"FROM json_each(memory_ids) WHERE value NOT {LISTED}) "
        f"WHERE EXISTS (SELECT 1 FROM json_each(memory_ids) WHERE value {LISTED})",
        (gone, gone),
    )
    connection.execute(
        "UPDATE receipts SET sent_sha256 = NULL WHERE user_id IS NULL "
        f"OR user_id IN (SELECT user_id FROM memories WHERE id {LISTED})",
        (gone,),
    )


def reset_rows(tx: Transaction) -> None:
    """Erase every turn, memory, history row, piece of pending work, receipt and never_send mark,
    and meta not in _KEPT_META. The generation goes on and no rowid or label is used again."""
    with tx.step() as connection:
        connection.execute("INSERT INTO memories_fts (memories_fts) VALUES ('delete-all')")
        for table in (
            "memory_sources", "vectors", "history", "pending", "erased", "memories", "turns",
            "receipts", "never_send",
        ):  # fmt: skip
            connection.execute(f"DELETE FROM {table}")
        connection.execute(f"DELETE FROM meta WHERE key NOT {LISTED}", (as_json(_KEPT_META),))
        tx.set_meta("reset_generation", str(tx.generation))
        tx.set_meta(_NOTE, uuid.uuid4().hex)


def scrub_wanted(connection: sqlite3.Connection) -> str | None:
    """The note of an erase whose files are not scrubbed yet."""
    return reading.meta(connection, _NOTE)


def scrub(connection: sqlite3.Connection, path: Path | None, timeout_s: float) -> None:
    """Leave no byte of what was erased in the file, its WAL, or backup copies beside it.

    Does nothing if nothing was erased since the last scrub. Raises StoreLocked if another process
    keeps reading for timeout_s, StoreFull or StoreError if SQLite or the folder refuses; the note
    stays then.
    """
    with sqlite_errors(str(path or ":memory:")):
        note = scrub_wanted(connection)
    if note is None:
        return
    try:
        if path is not None:
            _drop_backups(path)
        with sqlite_errors(str(path or ":memory:")):
            # 'optimize' merges segments but does not promise to drop the terms of deleted rows.
            _patiently(
                connection, "INSERT INTO memories_fts (memories_fts) VALUES ('rebuild')", timeout_s
            )
            _patiently(connection, "VACUUM", timeout_s)
            if path is not None:
                _patiently(connection, "PRAGMA wal_checkpoint(TRUNCATE)", timeout_s)
            # Only this note: another process may have erased something meanwhile.
            connection.execute("DELETE FROM meta WHERE key = ? AND value = ?", (_NOTE, note))
    except StoreError as exc:
        raise type(exc)(
            f"the rows are erased and no answer will show them, but {path} is not scrubbed yet "
            f"({exc}); its free pages will be cleaned when the store is next opened while no "
            "other process reads it"
        ) from exc


def _patiently(connection: sqlite3.Connection, sql: str, timeout_s: float) -> None:
    """Run a statement that needs the file for itself, again and again until timeout_s."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            row = connection.execute(sql).fetchone()
            if row is None or row[0] == 0:  # a checkpoint answers (busy, frames, checkpointed)
                return
        except sqlite3.OperationalError as exc:
            if not is_busy(exc) or time.monotonic() >= deadline:
                raise
        if time.monotonic() >= deadline:
            raise StoreLocked("another process is reading the store")
        time.sleep(0.02)


def _drop_backups(path: Path) -> None:
    backup = re.compile(re.escape(path.name) + r"\.v\d+(\.[0-9a-f]+)?\.bak(-journal|-wal|-shm)?")
    try:
        for beside in path.parent.iterdir():
            if backup.fullmatch(beside.name):
                beside.unlink(missing_ok=True)
    except OSError as exc:
        raise StoreFull(
            f"a backup copy beside {path} cannot be deleted ({exc}); make its folder writable, "
            "or delete the .bak files yourself"
        ) from exc
