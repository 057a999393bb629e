"""What a store sends to a person's other devices, and how it takes in what they send.

Every row that travels has a version (in `sync_rows`), which triggers write in the transaction that
makes the change (schema.py). A file of changes is a changeset, which SQLite's session extension
records from an in-memory table, `rows`. ARCHITECTURE.md says what travels, and which of two
versions wins. This file imports apsw, as cipher.py does, so import it late.
"""

from __future__ import annotations

import base64
import json
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import apsw
import numpy as np

from edgemem.results import utc_now
from edgemem.store.database import SCRUB_WANTED, meta
from edgemem.store.erasures import by_receipts
from edgemem.store.images import export_image, restore
from edgemem.store.relations import forget_relations, import_relation
from edgemem.store.rows import LISTED, RELATIONS, SCOPE, Floats, as_json, pack_json, rowid_of
from edgemem.store.schema import BETWEEN, SEPARATOR
from edgemem.store.writing import Transaction, erase_rows

if TYPE_CHECKING:
    import sqlite3

    from edgemem.store.store import Store

__all__ = ["OwnDevice", "Taken", "Version", "begin", "own_device", "take_in", "unpack", "versions"]

_TURN = (*SCOPE, "role", "name", "content", "timestamp", "metadata", "created_at")
_MEMORY = ("kind", "memory", "search_text", *SCOPE, "created_at", "updated_at", "valid_from",
           "expires_at", "deleted_at")  # fmt: skip
_HISTORY = ("old_memory", "new_memory", "event", "created_at", "updated_at", "is_deleted",
            "actor_id", "role")  # fmt: skip
_NEVER = ("created_at", *SCOPE, "pattern")
_RELATION = ("uid", "memory_id", "label", "source", "source_type", "target", "target_type",
             "valid_from", "valid_to", "invalidated_by", "graphed")  # fmt: skip


def _array(alias: str, columns: Iterable[str], *more: str) -> str:
    return f"json_array({', '.join([*(f'{alias}.{name}' for name in columns), *more])})"


_OF_MEMORY = "JOIN memories m ON m.id = s.id"
_RELATIONS_JSON = (
    f"(SELECT json_group_array(json_object({', '.join(f'{n!r}, {n}' for n in _RELATION)}, "
    f"'aliases', json(aliases))) FROM ({RELATIONS} WHERE f.id = m.id ORDER BY r.id))"
)
_OWNER = f"substr(s.id, 1, instr(s.id, {SEPARATOR}) - 1)"
_SETTING = "(SELECT value FROM meta WHERE key = '{}')"
# By kind: what is joined to sync_rows s, ORDER BY, the body. Kinds are taken in in this order.
_KINDS = {
    "erased": ("", "s.id", "NULL"),
    "root": ("", "s.id", "NULL"),
    "turn": ("JOIN turns t ON t.id = s.id", "t.rowid", _array("t", _TURN)),
    "memory": (
        _OF_MEMORY,
        "m.rowid",
        _array(
            "m", _MEMORY, "'' || json_remove(m.metadata, '$.never_send')",
            _SETTING.format("embedder_model"), _SETTING.format("embedder_dim"),
        ),
    ),
    "source": (f"JOIN memories m ON m.id = {_OWNER}", "s.id", "NULL"),
    "image": (f"JOIN memories m ON m.id = {_OWNER}", "s.id", "NULL"),  # see versions
    "end": (_OF_MEMORY, "m.rowid", "json_array(m.valid_to, m.updated_at)"),
    # With two paths json_extract gives a JSON list; with one it would give 1 for true.
    "mark": (
        _OF_MEMORY, "m.rowid", "json_extract(m.metadata, '$.never_send', '$.never_send')",
    ),
    "history": (
        f"JOIN history h ON h.id = substr(s.id, instr(s.id, {SEPARATOR}) + 1)",
        "h.seq",
        _array("h", _HISTORY),
    ),
    "graph": (_OF_MEMORY, "m.rowid", f"json_array(m.graphed, {_RELATIONS_JSON})"),
    "never": ("JOIN never_send n ON n.uid = s.id", "n.id", _array("n", _NEVER)),
}  # fmt: skip
ERASING = ("erased", "root")
# Rows that are stored once and never changed: the table, its key, the columns of the body.
_ONCE = {
    "turn": ("turns", "id", _TURN),
    "history": ("history", "id", _HISTORY),
    "never": ("never_send", "uid", _NEVER),
}


class Version(NamedTuple):
    """One version of one row, as it travels; `_KINDS` has the kinds.

    clock, device: the larger pair wins. body: JSON. vectors: a memory's, float32, concatenated.
    """

    kind: str
    id: str
    clock: int
    device: str
    body: str | None = None
    vectors: bytes | None = None

    @property
    def value(self) -> Any:
        """What the body holds."""
        return json.loads(self.body or "")


Versions = list[Version]


@dataclass(frozen=True, slots=True)
class OwnDevice:
    """This device's id, and the secret that all devices of the person share."""

    device: str
    secret: bytes


@dataclass(frozen=True, slots=True)
class Taken:
    """What `take_in` has changed.

    rows: the number of rows of any kind. erased: ids of memories erased here. replaced: ids of
    memories here that got a later version, such as another text, or were deleted.
    """

    rows: int = 0
    erased: list[str] = field(default_factory=list)
    replaced: list[str] = field(default_factory=list)


# -- changesets --------------------------------------------------------------------------------


def pack(versions: Iterable[Version]) -> bytes:
    """A changeset of these versions. No two of them may be of the same row."""
    connection = apsw.Connection(":memory:")
    connection.execute(
        "CREATE TABLE rows (kind TEXT NOT NULL, id TEXT NOT NULL, clock INTEGER NOT NULL, "
        "device TEXT NOT NULL, body TEXT, vectors BLOB, PRIMARY KEY (kind, id)) WITHOUT ROWID"
    )
    session = apsw.Session(connection, "main")
    session.attach("rows")
    with connection:
        connection.executemany("INSERT INTO rows VALUES (?, ?, ?, ?, ?, ?)", versions)
    changeset: bytes = session.changeset()
    session.close()
    connection.close()
    return changeset


def unpack(changeset: bytes) -> Iterator[Version]:
    """The versions that a changeset holds."""
    for change in apsw.Changeset.iter(changeset):
        assert change.new is not None  # each is an insert
        yield Version._make(change.new)


def _merge(connection: sqlite3.Connection, received: Versions) -> Versions:
    """The latest version of each row, if it is later than the version stored here."""
    clocks = {s[:2]: s[2:] for s in _stamps(connection, {version[:2] for version in received})}
    latest: dict[tuple[str, str], Version] = {}
    for version in received:
        row, clock = version[:2], version[2:4]
        if row not in clocks or clock > clocks[row]:
            clocks[row], latest[row] = clock, version
    return [latest[row] for row in sorted(latest)]  # "erased" before "root", see `_erase`


# -- this device ---------------------------------------------------------------------------------


def own_device(store: Store) -> OwnDevice | None:
    """Who this device is; None if its store was never synced."""
    rows = store.select("SELECT device, secret FROM sync_self")
    return OwnDevice(*rows[0]) if rows else None


def begin(store: Store, secret: bytes) -> OwnDevice:
    """Make the store one of a person's devices, or give it a new device id and this secret.

    The first time, rows that are stored already get versions from their own timestamps.
    """
    new = OwnDevice(uuid.uuid4().hex[:16], secret)
    with store.transaction() as tx, tx.step() as connection:
        connection.execute("DELETE FROM sync_links")
        connection.execute("DELETE FROM sync_peers")
        first = connection.execute("SELECT 1 FROM sync_self").fetchone() is None
        connection.execute(
            "INSERT INTO sync_self (one, device, secret, clock) VALUES (1, ?, ?, 1) "
            "ON CONFLICT (one) DO UPDATE SET device = excluded.device, secret = excluded.secret",
            (new.device, secret),
        )
        for kind, (tables, when, id) in _FIRST_VERSIONS.items() if first else ():
            clock = f"CAST((julianday({when}) - 2440587.5) * 86400000 AS INTEGER) * 65536"
            clock += " + m.rowid % 65536"  # rows of one instant stay in order
            connection.execute(
                "INSERT OR IGNORE INTO sync_rows "
                f"SELECT ?, {id}, ifnull({clock}, 0), ?, 1, NULL FROM {tables}",
                (kind, new.device),
            )
        # A clock may have been ahead; what changes from now on is newer all the same.
        connection.execute(
            "UPDATE sync_self SET clock = max(clock, (SELECT ifnull(max(clock), 0) FROM sync_rows))"
        )
    return new


_CITED = "memories m JOIN memory_sources o ON o.memory = m.rowid JOIN turns t ON t.rowid = o.turn"
_FIRST_VERSIONS = {
    "turn": ("turns m", "created_at", "id"),
    "memory": ("memories m", "coalesce(deleted_at, updated_at)", "id"),
    "end": ("memories m WHERE valid_to IS NOT NULL", "updated_at", "id"),
    "mark": (
        "memories m WHERE json_extract(metadata, '$.never_send') IS NOT NULL", "updated_at", "id",
    ),
    "source": (_CITED, "m.created_at", f"m.id || {SEPARATOR} || t.id"),
    "image": (
        "memory_images o JOIN memories m ON m.rowid = o.memory",
        "m.created_at",
        f"m.id || {SEPARATOR} || o.image",
    ),
    "history": (
        "history m", "coalesce(updated_at, created_at)", f"memory_id || {SEPARATOR} || id",
    ),
    # Relations are one millisecond later than the text that they were read from.
    "graph": ("memories m WHERE graphed > 0", "updated_at, '+0.001 seconds'", "id"),
    "never": ("never_send m", "created_at", "uid"),
}  # fmt: skip


# -- what travels ------------------------------------------------------------------------------


def versions(
    connection: sqlite3.Connection, condition: str, *params: Any, images: Path | None = None
) -> Versions:
    """The current versions of rows, in the order in which they are to be taken in.

    condition: SQL on the table sync_rows as s, with its params. images: the folder of large images.
    The caller holds a snapshot.
    """
    vectors: dict[str, bytes] = {}
    for id, vector in connection.execute(
        f"SELECT m.id, v.vector FROM sync_rows s {_OF_MEMORY} JOIN vectors v ON v.memory = m.rowid "
        f"WHERE s.kind = 'memory' AND ({condition}) ORDER BY v.memory, v.chunk",
        params,
    ):
        vectors[id] = vectors.get(id, b"") + vector
    found: Versions = []
    for kind, (tables, order, body) in _KINDS.items():
        rows = connection.execute(
            f"SELECT s.kind, s.id, s.clock, s.device, {body} FROM sync_rows s {tables} "
            f"WHERE s.kind = '{kind}' AND ({condition}) ORDER BY {order}",
            params,
        )
        with_vectors = vectors if kind == "memory" else {}
        found += [Version._make((*row, with_vectors.get(row[1]))) for row in rows]
    return [_with_image(connection, v, images) if v.kind == "image" else v for v in found]


def _with_image(connection: sqlite3.Connection, version: Version, folder: Path | None) -> Version:
    """The version of an image, with its row of an export as body, linked to this memory only."""
    memory_id, _sep, id = version.id.partition(BETWEEN)
    row = export_image(connection, folder, id)
    row["memories"] = [link for link in row["memories"] if link["memory_id"] == memory_id]
    return version._replace(body=json.dumps(row))


def texts_to_embed(
    store: Store, received: Versions, own: tuple[str, int] | None = None
) -> list[str]:
    """The search texts of received memories (not deleted) whose vectors are another embedder's.

    own: the id and dimension of the embedder that an empty store begins with.
    """
    model = store.meta("embedder_model") or (own[0] if own else None)
    if model is None:
        return []
    text, deleted_at = _MEMORY.index("search_text"), _MEMORY.index("deleted_at")
    bodies = (version.value for version in received if version.kind == "memory")
    return list({body[text] for body in bodies if body[-2] != model and body[deleted_at] is None})


# -- taking in ---------------------------------------------------------------------------------


def take_in(
    tx: Transaction,
    received: Versions,
    link: str,
    vectors: Mapping[str, Floats],
    own: tuple[str, int] | None = None,
) -> Taken:
    """Store the received versions that are later than those stored here.

    link: the place where they were read; they are not sent back to it. vectors: of the
    `texts_to_embed`, by text. own: as there.
    """
    with tx.step() as connection:
        waited = [Version._make(row) for row in connection.execute("SELECT * FROM sync_waiting")]
        new = _merge(connection, waited + received)
        ((device, clock),) = connection.execute("SELECT device, clock FROM sync_self")
        seq = max(clock + 1, *(version.clock for version in new), 0)
        connection.execute("UPDATE sync_self SET clock = ?", (seq,))
        erased = _erase(tx, connection, new, link, seq, device)
        gone = {row[0] for row in connection.execute(_ERASED)}
        if any(not gone.isdisjoint(v.id.split(BETWEEN)) for v in waited):
            tx.set_meta(SCRUB_WANTED, uuid.uuid4().hex)  # sync_waiting may have had their text
        new = [v for v in new if v.kind not in ERASING and gone.isdisjoint(v.id.split(BETWEEN))]
        connection.execute("UPDATE sync_self SET quiet = 1")
        connection.execute("DELETE FROM sync_waiting")
        _restore_images(tx, connection, received)
        order = list(_KINDS)
        taking = _Taking(tx, connection, vectors)
        replaced: list[str] = []
        waiting: Versions = []
        _adopt_model(tx, connection, new, own)
        for version in sorted(new, key=lambda v: (order.index(v.kind), v.clock, v.device, v.id)):
            taken = getattr(taking, version.kind)(version)
            if taken is None:
                waiting.append(version)
                continue
            replaced += [version.id] * (taken == "replaced")
            _stamp(connection, version, seq, link)
        connection.executemany("INSERT INTO sync_waiting VALUES (?, ?, ?, ?, ?, ?)", waiting)
        connection.execute("UPDATE sync_self SET quiet = 0")
    return Taken(len(new) - len(waiting) + len(erased), erased, replaced)


_ERASED = "SELECT id FROM sync_rows WHERE kind = 'erased'"


def _stamps(
    connection: sqlite3.Connection, ids: Iterable[tuple[str, str]]
) -> list[tuple[str, str, int, str]]:
    return connection.execute(
        "SELECT s.kind, s.id, s.clock, s.device FROM json_each(?) j JOIN sync_rows s "
        "ON s.kind = json_extract(j.value, '$[0]') AND s.id = json_extract(j.value, '$[1]')",
        (as_json(ids),),
    ).fetchall()


def _has_later(connection: sqlite3.Connection, kind: str, version: Version) -> bool:
    """Whether the stored row of this kind and the version's id has a later version."""
    found = _stamps(connection, [(kind, version.id)])
    return bool(found) and found[0][2:] > version[2:4]


def _stamp(connection: sqlite3.Connection, version: Version, seq: int, link: str | None) -> None:
    connection.execute(
        "INSERT OR REPLACE INTO sync_rows VALUES (?, ?, ?, ?, ?, ?)", (*version[:4], seq, link)
    )


def _erase(
    tx: Transaction,
    connection: sqlite3.Connection,
    new: Versions,
    link: str,
    seq: int,
    device: str,
) -> list[str]:
    """Erase what other devices erased, and what cites it here; returns the memories' ids.

    The erase of a root also erases its turns, even those that only one device knows. The erase of a
    memory that went with a root erases no turns. Turns that no memory cites are erased only if
    they were written here: the memory of another device's turn may still arrive.
    """
    gone = {row[0] for row in connection.execute(_ERASED)}
    roots: list[str] = []
    for version in new + _erased_before(connection, new, seq, device):
        if version.kind == "root" or (version.kind == "erased" and version.id not in gone):
            gone.add(version.id)
            _stamp(connection, version, seq, None if version.device == device else link)
            roots += [version.id] * (version.kind == "root")
    cited = [version.id.split(BETWEEN) for version in new if version.kind == "source"]
    rooted = {row[0] for row in connection.execute("SELECT id FROM sync_rows WHERE kind = 'root'")}
    also = {turn for memory, turn in cited if memory in rooted} - gone
    also |= {memory for memory, turn in cited if turn in gone | also} - gone
    for id in sorted(also):
        _stamp(connection, Version("erased", id, seq, device), seq, None)
    connection.execute(f"DELETE FROM never_send WHERE uid IN ({_ERASED})")
    # All erased ids are looked up, not just new ones: an import may have brought rows back.
    others = connection.execute(
        f"SELECT id FROM memories WHERE id IN ({_ERASED}) UNION ALL "
        f"SELECT id FROM turns WHERE id IN ({_ERASED}) UNION ALL "
        f"SELECT substr(s.id, instr(s.id, {SEPARATOR}) + 1) FROM sync_rows s "
        f"WHERE s.kind = 'source' AND {_OWNER} {LISTED}",
        (as_json(roots),),
    ).fetchall()
    return erase_rows(tx, roots, [row[0] for row in others], made_by=device)


def _erased_before(
    connection: sqlite3.Connection, new: Versions, seq: int, device: str
) -> Versions:
    """The erases of what these versions name, if they were made here before the first sync.

    The receipts of those erases, and the rows of kind "asked", know ids by their hashes alone. What
    lives here was stored again after its erase: an import gives the same ids.
    """
    named = {id for version in new for id in version.id.split(BETWEEN)}
    lives = connection.execute(
        f"SELECT id FROM memories WHERE id {LISTED} UNION SELECT id FROM turns WHERE id {LISTED}",
        (as_json(named), as_json(named)),
    )
    named -= {row[0] for row in lives}
    hashes = by_receipts(connection, named)
    rows = connection.execute("SELECT id FROM sync_rows WHERE kind = 'asked'")
    asked = {row[0] for row in rows}
    erases = [("erased", id) for id in hashes]
    erases += [("root", id) for id, hash in hashes.items() if hash in asked]
    known = {stamp[:2] for stamp in _stamps(connection, erases)}
    return [Version(*erase, seq, device) for erase in erases if erase not in known]


def _restore_images(tx: Transaction, connection: sqlite3.Connection, received: Versions) -> None:
    """Store the bytes of images that were lost here, also of versions that are known here."""
    for version in received:
        id = version.id.rpartition(BETWEEN)[2]
        if version.kind == "image" and rowid_of(connection, "images", id) is not None:
            restore(tx, id, base64.b64decode(version.value["data"]))


def _adopt_model(
    tx: Transaction,
    connection: sqlite3.Connection,
    new: Versions,
    own: tuple[str, int] | None,
) -> None:
    """An empty store takes its own embedder, or that of the first vectors that it gets."""
    if meta(connection, "embedder_model") is None:
        for version in new:
            if version.kind == "memory" and version.vectors:
                model, dim = version.value[-2:] if own is None else own
                tx.set_meta("embedder_model", model)
                tx.set_meta("embedder_dim", str(dim))
                return


@dataclass(frozen=True, slots=True)
class _Taking:
    """Methods that store a version, one per kind and with its name.

    Each returns "replaced" if a memory was stored before, and otherwise "taken". If a row that the
    version refers to is not stored yet, it returns None and stores nothing.
    """

    tx: Transaction
    connection: sqlite3.Connection
    vectors: Mapping[str, Floats]

    def _insert_once(self, version: Version) -> str | None:
        table, key, columns = _ONCE[version.kind]
        values = {key: version.id, **_columns(columns, version)}
        if version.kind == "history":
            values["memory_id"], _sep, values[key] = version.id.partition(BETWEEN)
            if rowid_of(self.connection, "memories", values["memory_id"]) is None:
                return None  # it would survive an erase of its memory
        sql = f"SELECT 1 FROM {table} WHERE {key} = ?"
        if self.connection.execute(sql, (values[key],)).fetchone() is None:
            self.tx.insert(table, **values)
        return "taken"

    turn = history = never = _insert_once

    def memory(self, version: Version) -> str | None:
        values = _columns(_MEMORY, version)
        metadata, model, dim = version.value[-3:]
        vectors = self.vectors.get(values["search_text"], np.empty((0, 0), np.float32))
        if model == meta(self.connection, "embedder_model") and version.vectors:
            vectors = np.frombuffer(version.vectors, "<f4").reshape(-1, int(dim)).astype(np.float32)
        text, live = values["search_text"], values["deleted_at"] is None
        row = self.connection.execute(
            "SELECT rowid, search_text, deleted_at, updated_at, "
            "json_extract(metadata, '$.never_send', '$.never_send') FROM memories WHERE id = ?",
            (version.id,),
        ).fetchone()
        relations: Versions = []
        now = self.tx.generation
        if row is None:
            values = {"id": version.id, **values, "metadata": metadata, "generation": now}
            rowid = self.tx.insert("memories", **values)
        else:
            rowid, old, deleted_at, updated_at, mark = row
            if _has_later(self.connection, "graph", version):
                mine = "s.kind = 'graph' AND s.id = ?"
                relations = versions(self.connection, mine, version.id)
            if _has_later(self.connection, "end", version):
                values["updated_at"] = updated_at
            if (marked := json.loads(mark)[0]) is not None:
                # Compact as everywhere: the triggers find a mark by its text.
                metadata = pack_json({**json.loads(metadata), "never_send": marked}, "metadata")
            if deleted_at is None:
                self.tx.unindex_text(rowid, old)
            self.tx.change(rowid, **values, metadata=metadata, vectors_generation=now)
            self.connection.execute("DELETE FROM vectors WHERE memory = ?", (rowid,))
            if not relations:  # a trigger deletes them only if the text changes
                forget_relations(self.connection, rowid, 0)
        if live:
            self.tx.index_text(rowid, text)
            self.tx.add_derived(rowid, vectors, ())
        for graph in relations:
            _replace_relations(self.connection, rowid, graph)
        return "taken" if row is None else "replaced"

    def source(self, version: Version) -> str | None:
        memory_id, _sep, turn_id = version.id.partition(BETWEEN)
        memory = rowid_of(self.connection, "memories", memory_id)
        turn = rowid_of(self.connection, "turns", turn_id)
        if memory is None or turn is None:
            return None
        self.connection.execute(
            "INSERT OR IGNORE INTO memory_sources VALUES (?, ?)", (memory, turn)
        )
        self.tx.change(memory)
        return "taken"

    def image(self, version: Version) -> str | None:
        memory_id, _sep, id = version.id.partition(BETWEEN)
        memory = rowid_of(self.connection, "memories", memory_id)
        if memory is None:
            return None
        row = version.value
        self.tx.import_image(
            {**row, **{name: base64.b64decode(row[name]) for name in ("data", "thumbnail")}}
        )
        ((_, caption, by),) = (link.values() for link in row["memories"])
        self.connection.execute(
            "UPDATE memory_images SET caption = ?, caption_by = ? WHERE memory = ? AND image = ?",
            (caption, by, memory, id),
        )
        return "taken"

    def end(self, version: Version) -> str | None:
        valid_to, updated_at = version.value
        if valid_to is not None and valid_to <= updated_at:
            # It had ended by the clock of its device. If that is ahead, it would go on here.
            valid_to = min(valid_to, utc_now())
        later = not _has_later(self.connection, "memory", version)
        done = self.connection.execute(
            "UPDATE memories SET valid_to = ?, updated_at = iif(?, ?, updated_at), generation = ? "
            "WHERE id = ?",
            (valid_to, later, updated_at, self.tx.generation, version.id),
        )
        return "taken" if done.rowcount else None

    def mark(self, version: Version) -> str | None:
        (mark, _) = version.value
        done = self.connection.execute(
            "UPDATE memories SET metadata = iif(?1 IS NULL, json_remove(metadata, '$.never_send'), "
            "json_set(metadata, '$.never_send', json(?1))), generation = ?2 WHERE id = ?3",
            (None if mark is None else json.dumps(mark), self.tx.generation, version.id),
        )
        return "taken" if done.rowcount else None

    def graph(self, version: Version) -> str | None:
        rowid = rowid_of(self.connection, "memories", version.id)
        if rowid is None:
            return None
        if _has_later(self.connection, "memory", version):  # read from an outdated text
            return "taken"
        for ended_by in {row["invalidated_by"] for row in version.value[1]} - {None}:
            if (
                rowid_of(self.connection, "memories", ended_by) is None
                and not self.connection.execute(f"{_ERASED} AND id = ?", (ended_by,)).fetchone()
            ):
                return None
        _replace_relations(self.connection, rowid, version)
        return "taken"


def _replace_relations(connection: sqlite3.Connection, rowid: int, version: Version) -> None:
    """Replace a fact's relations by those of a version of kind "graph"."""
    graphed, relations = version.value
    forget_relations(connection, rowid, graphed)
    for relation in relations:
        import_relation(connection, relation, by_name=True)
    connection.execute(  # `end` may have ended the fact earlier than its device did
        "UPDATE relations SET valid_to = min(valid_to, "
        "(SELECT ifnull(m.valid_to, relations.valid_to) FROM memories m WHERE m.rowid = ?1)) "
        "WHERE memory = ?1 AND valid_to > ?2",
        (rowid, utc_now()),
    )


def _columns(names: tuple[str, ...], version: Version) -> dict[str, Any]:
    return dict(zip(names, version.value, strict=False))
