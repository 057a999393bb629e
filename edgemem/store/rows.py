"""What goes into the store and comes out of it, and how it looks in a row.

Knows the columns and their encodings (JSON text, float32 blobs); must not know SQL, connections
or where the file is. Whatever cannot be decoded is a damaged file: `StoreCorrupt`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, get_args

import numpy as np
import numpy.typing as npt

from edgemem.errors import InputError, StoreCorrupt
from edgemem.results import Kind, MemoryItem, Scope

__all__ = ["NewMemory", "PendingItem", "StoredTurn"]

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]

KINDS: tuple[str, ...] = get_args(Kind)

# SQLite's JSON reader stops at 1,000 levels; a filter over such a row would fail for every row.
MAX_DEPTH = 200


@dataclass(frozen=True, kw_only=True, eq=False)
class NewMemory:
    """A memory to be stored.

    search_text: what full-text search sees (the memory, perhaps with its date and speaker).
    vectors: (c, dim) float32, one row per piece of a long text, c >= 0.
    sources: ids of stored turns that it was taken from. Times: ISO-8601 UTC text.
    """

    id: str
    kind: Kind
    memory: str
    search_text: str
    scope: Scope
    created_at: str
    vectors: Floats
    updated_at: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    valid_from: str | None = None
    valid_to: str | None = None
    expires_at: str | None = None
    sources: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class StoredTurn:
    """One message as it was said. timestamp: when it was said; created_at: when it was stored."""

    id: str
    scope: Scope
    role: str
    content: str
    timestamp: str
    created_at: str
    name: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class PendingItem:
    """A piece of work that is still to be done. attempts: how often it has failed."""

    id: int
    task: str
    payload: Mapping[str, Any]
    scope: Scope
    attempts: int
    last_error: str | None
    created_at: str
    next_try_at: str | None


_decoder = json.JSONDecoder()


def _loads(text: str) -> Any:
    """As json.loads, in half the time where there is no blank around it."""
    try:
        value, end = _decoder.raw_decode(text)
    except ValueError:
        end = -1
    return value if end == len(text) else json.loads(text)


def pack_json(value: Mapping[str, Any], what: str) -> str:
    """Compact JSON text. Raises InputError if JSON cannot hold the value; what: for the message."""
    try:
        text = json.dumps(dict(value), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        text.encode()
    except (TypeError, ValueError, RecursionError) as exc:
        raise InputError(
            f"the {what} cannot be stored as JSON ({exc}); give strings, finite numbers, "
            "booleans, None, and lists or dicts of those"
        ) from exc
    # Non-string keys become strings here, as in the json module, so what is read back may differ.
    if text.count("{") + text.count("[") > MAX_DEPTH and _is_deep(value):
        raise InputError(f"the {what} is nested deeper than {MAX_DEPTH} levels; flatten it")
    return text


def _is_deep(value: Any, left: int = MAX_DEPTH) -> bool:
    if not isinstance(value, Mapping | list | tuple):
        return False
    inner = value.values() if isinstance(value, Mapping) else value
    return left == 0 or any(_is_deep(v, left - 1) for v in inner)


def unpack_json(text: object, what: str) -> dict[str, Any]:
    """The dict behind a JSON column. Raises StoreCorrupt if there is none."""
    try:
        value = _loads(text)  # type: ignore[arg-type]
    except (TypeError, ValueError, RecursionError) as exc:
        raise damaged(f"the {what} is no JSON: {str(text)[:80]!r}") from exc
    if not isinstance(value, dict):
        raise damaged(f"the {what} is no JSON object: {str(text)[:80]!r}")
    return value


def unpack_ids(text: object) -> tuple[str, ...]:
    """A JSON list of ids; quickest as SQL's json_group_array writes it."""
    if isinstance(text, str) and text[:2] == '["' and text[-2:] == '"]' and "\\" not in text:
        # Without an escape, every quote is JSON's own.
        return tuple(text[2:-2].replace('", "', '","').split('","'))
    try:
        return tuple(json.loads(text))  # type: ignore[arg-type]
    except (TypeError, ValueError) as exc:
        raise damaged("the list of a memory's sources is unreadable") from exc


def damaged(what: str) -> StoreCorrupt:
    return StoreCorrupt(
        f"the store is damaged: {what}; run `edgemem doctor`, export what can be read, "
        "or go back to a backup copy"
    )


def pack_vectors(vectors: npt.ArrayLike) -> list[bytes]:
    """(c, dim) float32 as c little-endian blobs. Raises ValueError on another shape or dtype."""
    array = np.asarray(vectors)
    if array.ndim != 2 or array.dtype != np.float32:
        raise ValueError(
            f"vectors must be (c, dim) float32, not {array.shape} {array.dtype}; "
            "give one row per piece of text"
        )
    if array.size and not np.isfinite(array).all():
        raise ValueError("vectors hold NaN or infinity; check what the embedder returned")
    little = array.astype("<f4", copy=False)
    return [row.tobytes() for row in little]


def unpack_vectors(blobs: Sequence[bytes], dim: int) -> Floats:
    """(n, dim) float32 from n blobs. Raises StoreCorrupt if one has another size."""
    try:
        whole = b"".join(blobs)
    except TypeError as exc:
        raise damaged("a vector is not a blob") from exc
    if blobs and set(map(len, blobs)) != {dim * 4}:
        raise damaged(f"a vector does not have {dim} float32 values")
    return np.frombuffer(whole, dtype="<f4").reshape(len(blobs), dim).astype(np.float32, copy=False)


def unix_seconds(text: str) -> float:
    try:
        return datetime.fromisoformat(text).timestamp()
    except (TypeError, ValueError, OverflowError) as exc:
        raise damaged(f"{text!r} is no time") from exc


SOURCES = (  # the ids of the turns of a memory m, as JSON; in its index's order: no sorting
    "(SELECT json_group_array(id) FROM (SELECT t.id FROM memory_sources s JOIN turns t "
    "ON t.rowid = s.turn WHERE s.memory = m.rowid ORDER BY s.turn))"
)
MEMORY_COLUMNS = (
    "m.rowid, m.id, m.memory, m.kind, m.created_at, m.updated_at, m.user_id, m.agent_id, "
    f"m.run_id, m.metadata, m.valid_from, m.valid_to, m.expires_at, {SOURCES}"
)


def memory_item(row: Sequence[Any]) -> MemoryItem:
    """A row of MEMORY_COLUMNS."""
    if not (isinstance(row[1], str) and isinstance(row[2], str) and row[3] in KINDS):
        raise damaged(f"memory row {row[0]} holds something else than an id, a text and a kind")
    return MemoryItem(
        id=row[1],
        memory=row[2],
        kind=row[3],
        created_at=row[4],
        updated_at=row[5],
        user_id=row[6],
        agent_id=row[7],
        run_id=row[8],
        metadata=unpack_json(row[9], "metadata of a memory"),
        valid_from=row[10],
        valid_to=row[11],
        expires_at=row[12],
        sources=unpack_ids(row[13]),
    )


TURN_COLUMNS = "id, user_id, agent_id, run_id, role, name, content, timestamp, metadata, created_at"


def stored_turn(row: Sequence[Any]) -> StoredTurn:
    """A row of TURN_COLUMNS."""
    if not (isinstance(row[0], str) and isinstance(row[6], str)):
        raise damaged("a turn holds something else than an id and a text")
    return StoredTurn(
        id=row[0],
        scope=Scope(row[1], row[2], row[3]),
        role=row[4],
        name=row[5],
        content=row[6],
        timestamp=row[7],
        metadata=unpack_json(row[8], "metadata of a turn"),
        created_at=row[9],
    )


HISTORY_COLUMNS = (
    "id, memory_id, old_memory, new_memory, event, created_at, updated_at, is_deleted, "
    "actor_id, role"
)


def history_row(row: Sequence[Any]) -> dict[str, Any]:
    """A row of HISTORY_COLUMNS, in mem0's shape."""
    names = [name.strip() for name in HISTORY_COLUMNS.split(",")]
    out = dict(zip(names, row, strict=True))
    out["is_deleted"] = bool(out["is_deleted"])
    return out


PENDING_COLUMNS = (
    "id, task, payload, user_id, agent_id, run_id, attempts, last_error, created_at, next_try_at"
)


def pending_item(row: Sequence[Any]) -> PendingItem:
    """A row of PENDING_COLUMNS."""
    return PendingItem(
        id=row[0],
        task=row[1],
        payload=unpack_json(row[2], "payload of a pending piece of work"),
        scope=Scope(row[3], row[4], row[5]),
        attempts=row[6],
        last_error=row[7],
        created_at=row[8],
        next_try_at=row[9],
    )
