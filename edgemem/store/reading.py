"""The store's questions: every SELECT that answers one.

Knows tables and columns; must not know locks, files or transactions. Each function takes a
connection on which the caller has begun a snapshot.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import numpy as np

from edgemem.errors import InputError
from edgemem.results import MemoryItem, Scope, utc_now
from edgemem.store.filters import Where
from edgemem.store.rows import (
    HISTORY_COLUMNS,
    MEMORY_COLUMNS,
    PENDING_COLUMNS,
    TURN_COLUMNS,
    Ints,
    PendingItem,
    StoredTurn,
    damaged,
    history_row,
    memory_item,
    pending_item,
    stored_turn,
)

__all__ = [
    "LISTED",
    "LIVE",
    "as_json",
    "by_rowids",
    "counts",
    "generation",
    "get",
    "history",
    "lexical",
    "list_memories",
    "meta",
    "meta_int",
    "pending",
    "recent_turns",
    "rowids",
    "scope_sql",
    "search_texts",
    "stale_turns",
    "standing_turns",
    "turns",
]

Connection = sqlite3.Connection
LISTED = "IN (SELECT value FROM json_each(?))"
LIVE = (
    "m.deleted_at IS NULL AND (m.valid_to IS NULL OR m.valid_to > ?) "
    "AND (m.expires_at IS NULL OR m.expires_at > ?)"
)


def as_json(values: Iterable[Any]) -> str:
    return json.dumps(list(values), ensure_ascii=False)


def meta(connection: Connection, key: str) -> str | None:
    row = connection.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
    return None if row is None else row[0]


def meta_int(connection: Connection, key: str, default: int) -> int:
    text = meta(connection, key)
    try:
        return default if text is None else int(text)
    except (TypeError, ValueError) as exc:
        raise damaged(f"its {key} is {text!r}, not a number") from exc


def generation(connection: Connection) -> int:
    value = meta_int(connection, "generation", -1)
    if value < 0:
        raise damaged("it has no generation")
    return value


def scope_sql(scope: Scope, alias: str = "m.") -> tuple[list[str], list[Any]]:
    """Conditions for the given parts of a scope; an absent one matches everything."""
    conditions: list[str] = []
    params: list[Any] = []
    for name in ("user_id", "agent_id", "run_id"):
        value = getattr(scope, name)
        if value is not None:
            conditions.append(f"{alias}{name} = ?")
            params.append(value)
    return conditions, params


def _conditions(
    scope: Scope,
    where: Where | None,
    kinds: Collection[str] | None,
    now: str | None,
    *,
    include_invalid: bool = False,
) -> tuple[str, list[Any]]:
    if include_invalid:
        conditions, params = ["m.deleted_at IS NULL"], []
    else:
        now = now or utc_now()
        conditions, params = [LIVE], [now, now]
    more, values = scope_sql(scope)
    conditions += more
    params += values
    if kinds is not None:
        conditions.append(f"m.kind {LISTED}")
        params.append(as_json(sorted(kinds)))
    if where is not None:
        conditions.append(where.sql)
        params += where.params
    return " AND ".join(conditions), params


def get(connection: Connection, ids: Sequence[str], include_deleted: bool) -> dict[str, MemoryItem]:
    alive = "" if include_deleted else " AND m.deleted_at IS NULL"
    rows = connection.execute(
        f"SELECT {MEMORY_COLUMNS} FROM memories m WHERE m.id {LISTED}{alive}", (as_json(ids),)
    )
    found = {item.id: item for item in map(memory_item, rows)}
    return {id: found[id] for id in ids if id in found}


def by_rowids(connection: Connection, rowids: Iterable[int]) -> dict[int, MemoryItem]:
    wanted = [int(rowid) for rowid in rowids]
    rows = connection.execute(
        f"SELECT {MEMORY_COLUMNS} FROM memories m WHERE m.rowid {LISTED} AND m.deleted_at IS NULL",
        (as_json(wanted),),
    )
    found = {row[0]: memory_item(row) for row in rows}
    return {rowid: found[rowid] for rowid in wanted if rowid in found}


def list_memories(
    connection: Connection,
    scope: Scope,
    where: Where | None,
    kinds: Collection[str] | None,
    limit: int | None,
    include_invalid: bool,
    now: str | None,
) -> list[MemoryItem]:
    conditions, params = _conditions(scope, where, kinds, now, include_invalid=include_invalid)
    rows = connection.execute(
        f"SELECT {MEMORY_COLUMNS} FROM memories m WHERE {conditions} "
        "ORDER BY m.created_at, m.rowid LIMIT ?",
        (*params, _limit(limit)),
    )
    return [memory_item(row) for row in rows]


def rowids(
    connection: Connection,
    scope: Scope,
    where: Where | None,
    kinds: Collection[str] | None,
    now: str | None,
) -> Ints:
    conditions, params = _conditions(scope, where, kinds, now)
    rows = connection.execute(
        f"SELECT m.rowid FROM memories m WHERE {conditions} ORDER BY m.rowid", params
    )
    return np.array([row[0] for row in rows.fetchall()], dtype=np.int64)


def lexical(
    connection: Connection,
    match: str,
    scope: Scope,
    where: Where | None,
    kinds: Collection[str] | None,
    now: str | None,
    limit: int | None,
) -> list[tuple[int, float]]:
    conditions, params = _conditions(scope, where, kinds, now)
    # CROSS JOIN fixes the order: left alone, the planner may walk a scope's memories and run the
    # full-text query once for each.
    try:
        rows = connection.execute(
            "SELECT m.rowid, -bm25(memories_fts) AS score "
            "FROM memories_fts CROSS JOIN memories m ON m.rowid = memories_fts.rowid "
            f"WHERE memories_fts MATCH ? AND {conditions} ORDER BY score DESC, m.rowid LIMIT ?",
            (match, *params, _limit(limit)),
        ).fetchall()
    except sqlite3.OperationalError as exc:
        text = str(exc)
        if text.startswith(("fts5:", "unterminated string", "no such column", "unknown special")):
            raise InputError(
                f"{match[:80]!r} is no full-text query ({text}); put each word in double quotes "
                "and join them by OR"
            ) from exc
        raise
    return [(row[0], row[1]) for row in rows]


def search_texts(connection: Connection) -> dict[str, str]:
    rows = connection.execute(
        "SELECT id, search_text FROM memories WHERE deleted_at IS NULL ORDER BY rowid"
    )
    return dict(rows.fetchall())


def _limit(limit: int | None) -> int:
    if limit is None:
        return -1
    if limit < 0:
        raise InputError(f"limit is {limit}; give 0 or more, or None for all")
    return limit


def turns(connection: Connection, ids: Sequence[str]) -> dict[str, StoredTurn]:
    rows = connection.execute(
        f"SELECT {TURN_COLUMNS} FROM turns WHERE id {LISTED}", (as_json(ids),)
    )
    found = {turn.id: turn for turn in map(stored_turn, rows)}
    return {id: found[id] for id in ids if id in found}


def recent_turns(
    connection: Connection, scope: Scope, before: str | None, limit: int
) -> list[StoredTurn]:
    conditions, params = scope_sql(scope, "")
    if before is not None:
        conditions.append("rowid < (SELECT rowid FROM turns WHERE id = ?)")
        params.append(before)
    rows = connection.execute(
        f"SELECT {TURN_COLUMNS} FROM turns WHERE {' AND '.join(conditions) or '1'} "
        "ORDER BY rowid DESC LIMIT ?",
        (*params, _limit(limit)),
    )
    return [stored_turn(row) for row in rows][::-1]


def standing_turns(connection: Connection, ids: Sequence[str], now: str) -> list[str]:
    rows = connection.execute(
        "SELECT DISTINCT t.id FROM turns t JOIN memory_sources s ON s.turn = t.rowid "
        "JOIN memories m ON m.rowid = s.memory "
        f"WHERE t.id {LISTED} AND m.kind = 'turn' AND m.memory = t.content AND {LIVE}",
        (as_json(ids), now, now),
    )
    found = {row[0] for row in rows}
    return [id for id in ids if id in found]


def stale_turns(connection: Connection, ids: Sequence[str], now: str) -> dict[str, tuple[str, ...]]:
    rows = connection.execute(
        "SELECT t.id, m.memory FROM turns t JOIN memory_sources s ON s.turn = t.rowid "
        "JOIN memories m ON m.rowid = s.memory "
        f"WHERE t.id {LISTED} AND m.kind = 'fact' AND m.valid_to <= ? ORDER BY m.rowid",
        (as_json(ids), now),
    )
    found: dict[str, tuple[str, ...]] = {}
    for turn, fact in rows:
        found[turn] = (*found.get(turn, ()), fact)
    return found


def history(connection: Connection, memory_id: str) -> list[dict[str, Any]]:
    rows = connection.execute(
        f"SELECT {HISTORY_COLUMNS} FROM history WHERE memory_id = ? ORDER BY seq", (memory_id,)
    )
    return [history_row(row) for row in rows]


def pending(
    connection: Connection, task: str | None, due_before: str | None, limit: int | None
) -> list[PendingItem]:
    rows = connection.execute(
        f"SELECT {PENDING_COLUMNS} FROM pending WHERE (?1 IS NULL OR task = ?1) "
        "AND (?2 IS NULL OR next_try_at IS NULL OR next_try_at <= ?2) ORDER BY id LIMIT ?3",
        (task, due_before, _limit(limit)),
    )
    return [pending_item(row) for row in rows]


def counts(connection: Connection) -> dict[str, int]:
    now = utc_now()
    out = {"memories": 0, "facts": 0, "turn_memories": 0, "summaries": 0, "images": 0}
    names = {"fact": "facts", "turn": "turn_memories", "summary": "summaries", "image": "images"}
    for kind, count in connection.execute(
        f"SELECT m.kind, count(*) FROM memories m WHERE {LIVE} GROUP BY m.kind", (now, now)
    ):
        out["memories"] += count
        if kind in names:
            out[names[kind]] = count
    for name, sql in (
        ("deleted", "SELECT count(*) FROM memories WHERE deleted_at IS NOT NULL"),
        ("turns", "SELECT count(*) FROM turns"),
        ("vectors", "SELECT count(*) FROM vectors"),
        ("history", "SELECT count(*) FROM history"),
        ("pending", "SELECT count(*) FROM pending"),
    ):
        out[name] = connection.execute(sql).fetchone()[0]
    all_rows = connection.execute("SELECT count(*) FROM memories").fetchone()[0]
    out["invalid"] = all_rows - out["memories"] - out["deleted"]
    return out
