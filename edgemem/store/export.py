"""The store's rows as JSON-able dicts, and back.

Knows the columns of every table that a user would want to keep; must not know files or formats
around the rows. Vectors are not exported: they are made again from the memories' text, perhaps by
another embedding model. Rowids, generations, tombstones and receipts belong to one file and stay
there.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from edgemem.errors import InputError
from edgemem.store.reading import LISTED, as_json
from edgemem.store.rows import KINDS, SOURCES, Floats, pack_json, unpack_ids, unpack_json
from edgemem.store.writing import Transaction

__all__ = ["BATCH", "export_rows", "import_rows"]

BATCH = 500
_SCOPE = ("user_id", "agent_id", "run_id")
_JSON = ("metadata", "payload")

# type -> table, order, columns that must be text, columns that may be null; numbers are below
_TABLES: dict[str, tuple[str, str, tuple[str, ...], tuple[str, ...]]] = {
    "turn": (
        "turns",
        "rowid",
        ("id", "role", "content", "timestamp", "created_at"),
        ("name", *_SCOPE),
    ),
    "memory": (
        "memories",
        "rowid",
        ("id", "kind", "memory", "search_text", "created_at", "updated_at"),
        (*_SCOPE, "valid_from", "valid_to", "expires_at", "deleted_at"),
    ),
    "history": (
        "history",
        "seq",
        ("id", "memory_id", "event"),
        ("old_memory", "new_memory", "created_at", "updated_at", "actor_id", "role"),
    ),
    "pending": (
        "pending",
        "id",
        ("uid", "task", "created_at"),
        (*_SCOPE, "last_error", "next_try_at"),
    ),
    # Without these, what may not leave could leave from an imported store.
    "never_send": ("never_send", "id", ("uid", "created_at"), (*_SCOPE, "pattern")),
}
_OTHERS = {
    "turn": ("metadata",),
    "memory": ("metadata",),
    "history": ("is_deleted",),
    "pending": ("payload", "attempts"),
    "never_send": (),
}
_KEY = {"pending": "uid", "never_send": "uid"}


def _columns(type_: str) -> tuple[str, ...]:
    _, _, needed, optional = _TABLES[type_]
    return (*needed, *optional, *_OTHERS[type_])


def export_rows(connection: sqlite3.Connection) -> Iterator[dict[str, Any]]:
    """Every turn, memory (deleted too), history row, piece of pending work and never_send mark, in
    that order and each in the order of its making. The caller holds a snapshot."""
    for type_, (table, order, _, _) in _TABLES.items():
        names = _columns(type_)
        sources = f", {SOURCES}" if type_ == "memory" else ""
        listed = ", ".join(f"m.{name}" for name in names)
        for row in connection.execute(
            f"SELECT {listed}{sources} FROM {table} m ORDER BY m.{order}"
        ):
            out: dict[str, Any] = {"type": type_}
            for name, value in zip(names, row, strict=False):
                if name in _JSON:
                    value = unpack_json(value, f"{name} of a {type_}")
                elif name == "is_deleted":
                    value = bool(value)
                out[name] = value
            if sources:
                out["sources"] = list(unpack_ids(row[-1]))
            yield out


def import_rows(
    begin: Callable[[], AbstractContextManager[Transaction]],
    rows: Iterable[Mapping[str, Any]],
    vectors_for: Callable[[list[str]], list[Floats]],
) -> dict[str, int]:
    """Store exported rows, in transactions of BATCH; how many of each type were new.

    begin: gives a transaction. vectors_for: the search texts of memories to one (c, dim) float32
    each. Rows whose id is there already are passed over, so an import that was stopped may be run
    again. Raises InputError on a row that is none of an export's; the batches before it are stored.
    """
    new = dict.fromkeys(_TABLES, 0)
    batch: list[dict[str, Any]] = []
    for number, row in enumerate(rows, 1):
        batch.append(_checked(row, number))
        if len(batch) == BATCH:
            _import_batch(begin, batch, vectors_for, new)
            batch = []
    if batch:
        _import_batch(begin, batch, vectors_for, new)
    return new


def _import_batch(
    begin: Callable[[], AbstractContextManager[Transaction]],
    batch: Sequence[dict[str, Any]],
    vectors_for: Callable[[list[str]], list[Floats]],
    new: dict[str, int],
) -> None:
    with begin() as tx:
        known = {type_: _known(tx, type_, batch) for type_ in _TABLES}
    # Embedding is slow, so it happens outside of any transaction; what another process stores
    # meanwhile is seen by the second look.
    alive = [r for r in batch if _wants_vectors(r) and r["id"] not in known["memory"]]
    made = vectors_for([r["search_text"] for r in alive]) if alive else []
    if len(made) != len(alive):
        raise ValueError(
            f"vectors_for gave {len(made)} arrays for {len(alive)} texts; give one for each"
        )
    vectors = {r["id"]: array for r, array in zip(alive, made, strict=True)}
    with begin() as tx:
        # What was there at the first look and was erased since has no vectors, and stays erased.
        known = {type_: known[type_] | _known(tx, type_, batch) for type_ in _TABLES}
        stored = dict.fromkeys(_TABLES, 0)
        for row in batch:
            type_ = row["type"]
            key = row[_KEY.get(type_, "id")]
            if key not in known[type_] and not _is_orphan(tx, row):
                known[type_].add(key)
                _import_row(tx, type_, row, vectors)
                stored[type_] += 1
    for type_, count in stored.items():
        new[type_] += count


def _wants_vectors(row: Mapping[str, Any]) -> bool:
    return row["type"] == "memory" and row["deleted_at"] is None


def _known(tx: Transaction, type_: str, batch: Sequence[Mapping[str, Any]]) -> set[str]:
    key = _KEY.get(type_, "id")
    ids = [row[key] for row in batch if row["type"] == type_]
    with tx.step() as connection:
        return {
            row[0]
            for row in connection.execute(
                f"SELECT {key} FROM {_TABLES[type_][0]} WHERE {key} {LISTED}", (as_json(ids),)
            )
        }


def _is_orphan(tx: Transaction, row: Mapping[str, Any]) -> bool:
    """Whether a history row's memory is not there: it was erased while the import went on."""
    if row["type"] != "history":
        return False
    with tx.step() as connection:
        sql = "SELECT 1 FROM memories WHERE id = ?"
        return connection.execute(sql, (row["memory_id"],)).fetchone() is None


def _import_row(
    tx: Transaction, type_: str, row: Mapping[str, Any], vectors: Mapping[str, Floats]
) -> None:
    values = {name: row[name] for name in _columns(type_)}
    for name in _JSON:
        if name in values:
            values[name] = pack_json(values[name], name)
    with tx.step():
        if type_ != "memory":
            tx.insert(_TABLES[type_][0], **values)
            return
        rowid = tx.insert("memories", **values, generation=tx.generation)
        none = np.empty((0, 0), dtype=np.float32)
        tx.add_derived(rowid, vectors.get(row["id"], none), row["sources"])
        if row["deleted_at"] is None:
            tx.index_text(rowid, row["search_text"])


def _checked(row: Mapping[str, Any], number: int) -> dict[str, Any]:
    """The row with every column it may have, or InputError."""

    def refuse(what: str) -> InputError:
        return InputError(f"row {number} of the import {what}; give the rows of an export")

    if not isinstance(row, Mapping):
        raise refuse(f"is {type(row).__name__}, not an object")
    type_ = row.get("type")
    if not isinstance(type_, str) or type_ not in _TABLES:
        raise refuse(f"has the type {type_!r}, allowed are {', '.join(_TABLES)}")
    _, _, needed, optional = _TABLES[type_]
    out: dict[str, Any] = {"type": type_}
    allowed = {"type", *_columns(type_), *(("sources",) if type_ == "memory" else ())}
    if unknown := set(row) - allowed:
        raise refuse(f"({type_}) has the unknown fields {sorted(map(str, unknown))}")
    for name in needed:
        out[name] = row.get(name)
        if not isinstance(out[name], str):
            raise refuse(f"({type_}) has no text in {name!r}")
    for name in optional:
        out[name] = row.get(name)
        if not (out[name] is None or isinstance(out[name], str)):
            raise refuse(f"({type_}) has neither text nor null in {name!r}")
    for name in _OTHERS[type_]:
        out[name] = value = row.get(name, {} if name in _JSON else 0)
        if name in _JSON:
            if not isinstance(value, Mapping):
                raise refuse(f"({type_}) has no object in {name!r}")
        elif not isinstance(value, int) or not 0 <= value < 2**31:
            raise refuse(f"({type_}) has no count in {name!r}")
        else:
            out[name] = int(value)
    if type_ == "never_send":
        given = [name for name in (*_SCOPE, "pattern") if out[name] is not None]
        if not given or ("pattern" in given and len(given) > 1):
            raise refuse("(never_send) must name either a scope or a pattern")
    if type_ == "memory":
        out["sources"] = sources = row.get("sources", ())
        if not isinstance(sources, list | tuple) or not all(isinstance(s, str) for s in sources):
            raise refuse("(memory) has no list of turn ids in 'sources'")
        if out["kind"] not in KINDS:
            raise refuse(f"(memory) has the kind {out['kind']!r}, allowed are {', '.join(KINDS)}")
    return out
