"""How a row of the store looks outside of it: as a dataclass, and as a dict of an export.

A value that cannot be decoded means a damaged file and raises StoreCorrupt. An export has no
vectors, which an import makes again, and no rowids, generations, tombstones or receipts, which
belong to one file.
"""

from __future__ import annotations

import base64
import hashlib
import json
import sqlite3
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple, get_args

import numpy as np
import numpy.typing as npt

from edgemem.errors import InputError, StoreCorrupt
from edgemem.results import Entity, EntityType, Image, ImageMime, Kind, Label, MemoryItem, Scope

if TYPE_CHECKING:
    from edgemem.store.writing import Transaction

__all__ = ["NewMemory", "NewRelation", "PendingItem", "StoredTurn", "import_rows"]

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]

KINDS: tuple[str, ...] = get_args(Kind)
SCOPE = ("user_id", "agent_id", "run_id")

LISTED = "IN (SELECT value FROM json_each(?))"  # its parameter is made by `as_json`

# SQLite's JSON reader stops at 1,000 levels; a filter over such a row would fail for every row.
MAX_DEPTH = 200


@dataclass(frozen=True, slots=True)
class NewRelation:
    """A relation that a fact states between two entities. valid_from: ISO-8601 UTC, if known."""

    source: Entity
    label: Label
    target: Entity
    valid_from: str | None = None


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


def scope_columns(scope: Scope) -> dict[str, str | None]:
    """A scope as columns."""
    return {name: getattr(scope, name) for name in SCOPE}


def as_columns(item: NewMemory | StoredTurn) -> dict[str, Any]:
    """The columns that a memory or turn fills in its own row."""
    values = {each.name: getattr(item, each.name) for each in fields(item)}
    for other in ("scope", "vectors", "sources"):
        values.pop(other, None)
    packed = pack_json(item.metadata, "metadata")
    return {**values, **scope_columns(item.scope), "metadata": packed}


def scope_sql(scope: Scope, alias: str = "m.") -> tuple[list[str], list[Any]]:
    """Conditions for the given parts of a scope; an absent one matches everything."""
    given = {name: value for name, value in scope_columns(scope).items() if value is not None}
    return [f"{alias}{name} = ?" for name in given], list(given.values())


def rowid_of(connection: sqlite3.Connection, table: str, id: str) -> int | None:
    """The rowid of a turn or memory, deleted or not; None if it is not stored."""
    row = connection.execute(f"SELECT rowid FROM {table} WHERE id = ?", (id,)).fetchone()
    return None if row is None else row[0]


def as_json(values: Iterable[Any]) -> str:
    return json.dumps(list(values), ensure_ascii=False)


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
    """The dict in a JSON column. Raises StoreCorrupt if the text is no JSON object."""
    try:
        value = json.loads(text)  # type: ignore[arg-type]
    except (TypeError, ValueError, RecursionError) as exc:
        raise damaged(f"the {what} is no JSON: {str(text)[:80]!r}") from exc
    if not isinstance(value, dict):
        raise damaged(f"the {what} is no JSON object: {str(text)[:80]!r}")
    return value


def unpack_ids(text: object) -> tuple[str, ...]:
    """The ids in a JSON list. Raises StoreCorrupt if the text is no JSON list."""
    try:
        return tuple(json.loads(text))  # type: ignore[arg-type]
    except (TypeError, ValueError) as exc:
        raise damaged("the list of a memory's sources is unreadable") from exc


def damaged(what: str) -> StoreCorrupt:
    return StoreCorrupt(
        f"the store is damaged: {what}; run `edgemem doctor`, or go back to a backup copy"
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


SOURCES = (  # the ids of the turns of a memory m, as JSON; in index order, so nothing is sorted
    "(SELECT json_group_array(id) FROM (SELECT t.id FROM memory_sources s JOIN turns t "
    "ON t.rowid = s.turn WHERE s.memory = m.rowid ORDER BY s.turn))"
)
OF_IMAGE = (
    "id", "mime", "size_bytes", "width", "height", "taken_at", "place", "ocr_state",
)  # fmt: skip
IMAGE = (  # OF_IMAGE, caption and caption_by of the image of a memory m, as JSON; NULL for most
    f"CASE WHEN m.kind = 'image' THEN (SELECT json_array({', '.join(f'i.{n}' for n in OF_IMAGE)}, "
    "l.caption, l.caption_by) FROM memory_images l JOIN images i ON i.id = l.image "
    "WHERE l.memory = m.rowid LIMIT 1) END"
)
_MEMORY = (
    "id", "memory", "kind", "created_at", "updated_at", *SCOPE, "metadata", "valid_from",
    "valid_to", "expires_at",
)  # fmt: skip
MEMORY_COLUMNS = f"m.rowid, {', '.join(f'm.{name}' for name in _MEMORY)}, {SOURCES}, {IMAGE}"


def memory_item(row: Sequence[Any]) -> MemoryItem:
    """The memory in a row of MEMORY_COLUMNS. Raises StoreCorrupt if the row is damaged."""
    if not (isinstance(row[1], str) and isinstance(row[2], str) and row[3] in KINDS):
        raise damaged(f"memory row {row[0]} holds something else than an id, a text and a kind")
    values = dict(zip((*_MEMORY, "sources", "image"), row[1:], strict=False))
    values["metadata"] = unpack_json(values["metadata"], "metadata of a memory")
    values["sources"] = unpack_ids(values["sources"])
    values["image"] = None if values["image"] is None else _image(values["image"])
    return MemoryItem(**values)


def _image(text: str) -> Image:
    return Image(**dict(zip((*OF_IMAGE, "caption", "caption_by"), json.loads(text), strict=True)))


TURN_COLUMNS = "id, user_id, agent_id, run_id, role, name, content, timestamp, metadata, created_at"


def stored_turn(row: Sequence[Any]) -> StoredTurn:
    """The turn in a row of TURN_COLUMNS. Raises StoreCorrupt if the row is damaged."""
    if not (isinstance(row[0], str) and isinstance(row[6], str)):
        raise damaged("a turn holds something else than an id and a text")
    return StoredTurn(**_scoped(TURN_COLUMNS, row, "metadata", "a turn"))


def _scoped(columns: str, row: Sequence[Any], json_column: str, what: str) -> dict[str, Any]:
    """The values of a row by column, with its scope as one value and its JSON decoded."""
    values = dict(zip(columns.split(", "), row, strict=True))
    values["scope"] = Scope(*(values.pop(name) for name in SCOPE))
    values[json_column] = unpack_json(values[json_column], f"{json_column} of {what}")
    return values


# Whether a row h of the history is a person's edit of the memory m, and whether m has any.
EDITS = "h.memory_id = m.id AND h.event = 'UPDATE' AND h.role = 'user'"
EDITED = f"EXISTS (SELECT 1 FROM history h WHERE {EDITS})"

HISTORY_COLUMNS = (
    "id, memory_id, old_memory, new_memory, event, created_at, updated_at, is_deleted, "
    "actor_id, role"
)
# A memory's history, oldest first, even if a clock was set back. What another device did has its
# place by the versions of sync.
HISTORY_OF = (
    f"SELECT {HISTORY_COLUMNS} FROM history h WHERE memory_id = ? ORDER BY (SELECT clock FROM "
    "sync_rows WHERE kind = 'history' AND id = h.memory_id || char(31) || h.id), seq"
)


def history_row(row: Sequence[Any]) -> dict[str, Any]:
    """A row of HISTORY_COLUMNS as a dict in mem0's shape."""
    out = dict(zip(HISTORY_COLUMNS.split(", "), row, strict=True))
    return {**out, "is_deleted": bool(out["is_deleted"])}


PENDING_COLUMNS = (
    "id, task, payload, user_id, agent_id, run_id, attempts, last_error, created_at, next_try_at"
)


def pending_item(row: Sequence[Any]) -> PendingItem:
    """The piece of work in a row of PENDING_COLUMNS."""
    return PendingItem(**_scoped(PENDING_COLUMNS, row, "payload", "a pending piece of work"))


# --- exports ----------------------------------------------------------------------------------

BATCH = 500
_LISTS = {"memory": ("sources",), "image": ("memories",)}
_OCR_STATES = ("pending", "done", "failed")
_JSON = ("metadata", "payload", "aliases")

Begin = Callable[[], AbstractContextManager["Transaction"]]
Embed = Callable[[list[str]], list[Floats]]


class _Table(NamedTuple):
    """A table of an export.

    texts: columns that must be text; the first is the key that finds a row already stored.
    nullable: text or null. others: JSON objects (those in _JSON) or counts.
    """

    name: str
    texts: tuple[str, ...]
    nullable: tuple[str, ...]
    others: tuple[str, ...]

    @property
    def key(self) -> str:
        return self.texts[0]

    @property
    def columns(self) -> tuple[str, ...]:
        return (*self.texts, *self.nullable, *self.others)


# A relation with the names of its source and target and the aliases that its fact gives each.
_ALIASES = (
    "(SELECT json_group_array(a.name) FROM aliases a WHERE a.entity = r.{} AND a.memory = r.memory)"
)
RELATIONS = (
    "SELECT r.id AS rowid, r.uid, f.id AS memory_id, r.label, s.name AS source, "
    "s.type AS source_type, t.name AS target, t.type AS target_type, r.valid_from, r.valid_to, "
    "b.id AS invalidated_by, "
    f"json_object('source', {_ALIASES.format('source')}, 'target', {_ALIASES.format('target')}) "
    "AS aliases, f.graphed FROM relations r JOIN memories f ON f.rowid = r.memory "
    "JOIN entities s ON s.id = r.source JOIN entities t ON t.id = r.target "
    "LEFT JOIN memories b ON b.rowid = r.invalidated_by"
)
_TABLES = {
    "turn": _Table(
        "turns",
        ("id", "role", "content", "timestamp", "created_at"),
        ("name", *SCOPE),
        ("metadata",),
    ),
    "memory": _Table(
        "memories",
        ("id", "kind", "memory", "search_text", "created_at", "updated_at"),
        (*SCOPE, "valid_from", "valid_to", "expires_at", "deleted_at"),
        ("metadata",),
    ),
    "history": _Table(
        "history",
        ("id", "memory_id", "event"),
        ("old_memory", "new_memory", "created_at", "updated_at", "actor_id", "role"),
        ("is_deleted",),
    ),
    "pending": _Table(
        "pending",
        ("uid", "task", "created_at"),
        (*SCOPE, "last_error", "next_try_at"),
        ("payload", "attempts"),
    ),
    "relation": _Table(
        f"({RELATIONS})",
        ("uid", "memory_id", "label", "source", "source_type", "target", "target_type"),
        ("valid_from", "valid_to", "invalidated_by"),
        ("aliases", "graphed"),
    ),
    # Without these marks, an imported store could send what the original may not.
    "never_send": _Table("never_send", ("uid", "created_at"), (*SCOPE, "pattern"), ()),
}

_IMAGE = _Table(
    "images",
    ("id", "mime", "phash", "created_at", "ocr_state", "thumbnail", "data"),
    ("taken_at", "place", "ocr_text", "ocr_boxes"),
    ("width", "height", "animated"),
)
_IMPORTED = {**_TABLES, "image": _IMAGE}


def export_rows(connection: sqlite3.Connection) -> Iterator[dict[str, Any]]:
    """Every row of an export but the images: turns, memories (deleted ones too), history, pending
    work, relations and never_send marks, in that order, each by rowid.

    The caller holds a snapshot. Images are large, and store/images.py exports them one by one.
    """
    for type_, table in _TABLES.items():
        sources = f", {SOURCES}" if type_ == "memory" else ""
        listed = ", ".join(f"m.{name}" for name in table.columns)
        for row in connection.execute(
            f"SELECT {listed}{sources} FROM {table.name} m ORDER BY m.rowid"
        ):
            out: dict[str, Any] = {"type": type_}
            for name, value in zip(table.columns, row, strict=False):
                if name in _JSON:
                    value = unpack_json(value, f"{name} of a {type_}")
                elif name == "is_deleted":
                    value = bool(value)
                out[name] = value
            if sources:
                out["sources"] = list(unpack_ids(row[-1]))
            yield out


def import_rows(
    begin: Begin,
    rows: Iterable[Mapping[str, Any]],
    vectors_for: Embed,
    erased: Callable[[Sequence[str]], Collection[str]] = lambda ids: (),
) -> dict[str, int]:
    """Store exported rows, BATCH in a transaction; returns how many of each type were new.

    begin: begins a transaction. vectors_for: from the search texts of memories to one (c, dim)
    float32 array each. erased: from ids to those that were erased from the store. Rows whose id is
    stored already or was erased are skipped, so an interrupted import can be run again; and so is
    what was taken from a text that the store has changed since. Raises InputError on a row that is
    not an export's; the batches before it stay stored.
    """
    new = dict.fromkeys(_IMPORTED, 0)
    state = _ImportState()
    for batch in _batches(_checked(row, number) for number, row in enumerate(rows, 1)):
        for type_, count in _import_batch(begin, batch, vectors_for, erased, state).items():
            new[type_] += count
    return new


@dataclass(slots=True)
class _ImportState:
    """What an import has read so far.

    ids: of all memories. changed: the ids of those that the store has edited or deleted since the
    export. erased: the ids of turns and memories that were erased from the store.
    """

    ids: set[str] = field(default_factory=set)
    changed: set[str] = field(default_factory=set)
    erased: set[str] = field(default_factory=set)


def _batches(rows: Iterable[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    batch = []
    for row in rows:
        batch.append(row)
        if len(batch) == BATCH or row["type"] == "image":  # which may have many megabytes
            yield batch
            batch = []
    if batch:
        yield batch


def _import_batch(
    begin: Begin,
    batch: Sequence[dict[str, Any]],
    vectors_for: Embed,
    erased: Callable[[Sequence[str]], Collection[str]],
    state: _ImportState,
) -> Counter[str]:
    ids = [row["id"] for row in batch if row["type"] in ("turn", "memory")]
    state.erased.update(erased(ids))
    with begin() as tx:
        known = {type_: _stored_keys(tx, type_, batch) for type_ in _TABLES}
    # Embedding is slow, so it happens outside of any transaction. The second call of `_stored_keys`
    # sees what another process stores meanwhile.
    texts = {
        row["id"]: row["search_text"]
        for row in batch
        if row["type"] == "memory" and row["deleted_at"] is None
        if row["id"] not in known["memory"] | state.erased
    }
    arrays = vectors_for([*texts.values()]) if texts else []
    if len(arrays) != len(texts):
        raise ValueError(
            f"vectors_for gave {len(arrays)} arrays for {len(texts)} texts; give one for each"
        )
    vectors = dict(zip(texts, arrays, strict=True))
    with begin() as tx:
        # A row that was stored at the first call and was erased since has no vectors here. It
        # stays erased.
        known = {type_: known[type_] | _stored_keys(tx, type_, batch) for type_ in _TABLES}
        stored = Counter[str]()
        for row in batch:
            type_ = row["type"]
            if type_ == "image":
                stored[type_] += tx.import_image(row)
                continue
            key = row[_TABLES[type_].key]
            if type_ == "pending" and isinstance(turns := row["payload"].get("turns"), list):
                left = [turn for turn in turns if turn not in state.erased]
                row["payload"] = {**row["payload"], "turns": left}
            if type_ == "memory":
                state.ids.add(key)
                if key in known[type_] and _differs_from_stored(tx, row):
                    state.changed.add(key)
            if key not in known[type_] | state.erased and not _is_orphan(tx, row, state):
                known[type_].add(key)
                _import_row(tx, type_, row, vectors)
                stored[type_] += 1
    return stored


def _stored_keys(tx: Transaction, type_: str, batch: Sequence[Mapping[str, Any]]) -> set[str]:
    table, key = _TABLES[type_].name, _TABLES[type_].key
    ids = [row[key] for row in batch if row["type"] == type_]
    with tx.step() as connection:
        sql = f"SELECT {key} FROM {table} WHERE {key} {LISTED}"
        return {row[0] for row in connection.execute(sql, (as_json(ids),))}


def _differs_from_stored(tx: Transaction, row: Mapping[str, Any]) -> bool:
    """Whether the store holds another text than a memory's row, or only one of them is deleted."""
    with tx.step() as connection:
        sql = "SELECT memory, deleted_at IS NULL FROM memories WHERE id = ?"
        stored = connection.execute(sql, (row["id"],)).fetchone()
    return stored is not None and stored != (row["memory"], row["deleted_at"] is None)


def _is_orphan(tx: Transaction, row: Mapping[str, Any], state: _ImportState) -> bool:
    """Whether the store no longer holds what a row belongs to.

    A history row belongs to its memory, and a relation to its memory's text. Pending work belongs
    to its turns. It is done if the store has a memory of them that the export lacks.
    """
    type_ = row["type"]
    if type_ not in ("history", "relation", "pending"):
        return False
    with tx.step() as connection:
        if type_ != "pending":
            changed = type_ == "relation" and row["memory_id"] in state.changed
            return changed or rowid_of(connection, "memories", row["memory_id"]) is None
        if row["payload"].get("turns") == []:
            return True
        taken = connection.execute(
            "SELECT m.id FROM memories m JOIN memory_sources s ON s.memory = m.rowid "
            "JOIN turns t ON t.rowid = s.turn "
            "WHERE t.id IN (SELECT atom FROM json_tree(?) WHERE type = 'text')",
            (pack_json(row["payload"], "payload"),),
        )
        return any(id not in state.ids or id in state.changed for (id,) in taken)


def _import_row(
    tx: Transaction, type_: str, row: Mapping[str, Any], vectors: Mapping[str, Floats]
) -> None:
    values = {name: row[name] for name in _TABLES[type_].columns}
    for name in _JSON:
        if name in values:
            values[name] = pack_json(values[name], name)
    with tx.step():
        if type_ == "relation":
            tx.import_relation(row)
            return
        if type_ != "memory":
            tx.insert(_TABLES[type_].name, **values)
            return
        rowid = tx.insert("memories", **values, generation=tx.generation)
        none = np.empty((0, 0), dtype=np.float32)
        tx.add_derived(rowid, vectors.get(row["id"], none), row["sources"])
        if row["deleted_at"] is None:
            tx.index_text(rowid, row["search_text"])


def _checked(row: Mapping[str, Any], number: int) -> dict[str, Any]:
    """The row with a value for every column of its type. Raises InputError if it is malformed."""

    def refuse(what: str) -> InputError:
        return InputError(f"row {number} of the import {what}; give the rows of an export")

    if not isinstance(row, Mapping):
        raise refuse(f"is {type(row).__name__}, not an object")
    type_ = row.get("type")
    if not isinstance(type_, str) or type_ not in _IMPORTED:
        raise refuse(f"has the type {type_!r}, allowed are {', '.join(_IMPORTED)}")
    table = _IMPORTED[type_]
    out: dict[str, Any] = {"type": type_}
    allowed = {"type", *table.columns, *_LISTS.get(type_, ())}
    if unknown := set(row) - allowed:
        raise refuse(f"({type_}) has the unknown fields {sorted(map(str, unknown))}")
    for name in table.columns:
        value = row.get(name, {} if name in _JSON else 0 if name in table.others else None)
        if name in table.texts:
            right, what = isinstance(value, str), "no text"
        elif name in table.nullable:
            right, what = isinstance(value, str | None), "neither text nor null"
        elif name in _JSON:
            right, what = isinstance(value, Mapping), "no object"
        else:
            right, what = isinstance(value, int) and 0 <= value < 2**31, "no count"
        if not right:
            raise refuse(f"({type_}) has {what} in {name!r}")
        out[name] = int(value) if isinstance(value, bool) else value
    for name in _LISTS.get(type_, ()):
        out[name] = row.get(name, ())
    if type_ == "image":
        try:
            for name in ("data", "thumbnail"):
                out[name] = base64.b64decode(out[name], validate=True)
        except ValueError as exc:
            raise refuse(f"(image) has no base64 in {name!r} ({exc})") from exc
    if wrong := _wrong(out):
        raise refuse(f"({type_}) {wrong}")
    return out


def _wrong(row: Mapping[str, Any]) -> str:
    """What is wrong with a row whose columns have the right types; "" if nothing."""
    if row["type"] == "never_send":
        given = [name for name in (*SCOPE, "pattern") if row[name] is not None]
        if not given or ("pattern" in given and len(given) > 1):
            return "must name either a scope or a pattern"
    if row["type"] == "relation":
        aliases = [row["aliases"].get(end, ()) for end in ("source", "target")]
        if row["label"] not in get_args(Label) or not all(map(_are_texts, aliases)):
            return "has an unknown label, or aliases that are no lists of texts"
        if not {row["source_type"], row["target_type"]} <= set(get_args(EntityType)):
            return "has an unknown type of entity"
    if row["type"] == "memory":
        if not _are_texts(row["sources"]):
            return "has no list of turn ids in 'sources'"
        if row["kind"] not in KINDS:
            return f"has the kind {row['kind']!r}, allowed are {', '.join(KINDS)}"
    if row["type"] == "image":
        if row["mime"] not in get_args(ImageMime) or row["ocr_state"] not in _OCR_STATES:
            return "has an unknown mime or ocr_state"
        if not isinstance(row["memories"], list) or not all(map(_is_link, row["memories"])):
            return "has no list of {memory_id, caption, caption_by} in 'memories'"
        # Of an image whose bytes were lost, an export has none.
        if row["data"] and hashlib.sha256(row["data"]).hexdigest() != row["id"]:
            return "has bytes whose SHA-256 is not its 'id'"
    return ""


def _are_texts(value: object) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(item, str) for item in value)


def _is_link(value: object) -> bool:
    return (
        isinstance(value, Mapping)
        and set(value) == {"memory_id", "caption", "caption_by"}
        and isinstance(value["memory_id"], str)
        and all(isinstance(value[n], str | None) for n in ("caption", "caption_by"))
    )
