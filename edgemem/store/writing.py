"""The changes of one transaction, which keep rows, full-text index, vectors and history in step.

Also decides which rows an erase takes. An erase leaves a note in `meta` to scrub the file.
"""

from __future__ import annotations

import sqlite3
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from edgemem.errors import DimensionMismatch, InputError, StoreError
from edgemem.results import Picture, Scope, utc_now
from edgemem.store import erasures, images, relations
from edgemem.store.database import SCRUB_WANTED, generation, meta, meta_int, sqlite_errors
from edgemem.store.rows import (
    KINDS,
    LISTED,
    Floats,
    NewMemory,
    NewRelation,
    StoredTurn,
    as_columns,
    as_json,
    pack_json,
    pack_vectors,
    rowid_of,
    scope_columns,
    scope_sql,
)

__all__ = ["Transaction", "all_of"]

Rows = list[tuple[Any, ...]]

# Settings that say nothing about the user; a reset does not delete them.
_KEPT_META = ("generation", "created_at", "embedder_model", "embedder_dim")


class Transaction:
    """A write transaction, from `Store.transaction()`: all of it is committed, or nothing.

    generation: the store's once this is committed. Methods raise StoreError on an unknown id before
    they write anything. After an error of SQLite itself the transaction can only be rolled back.
    """

    def __init__(
        self, connection: sqlite3.Connection, path: str, images_folder: Path | None
    ) -> None:
        self._connection = connection
        self._path = path
        self.images_folder = images_folder
        self._failed: BaseException | None = None
        self._open = True
        self.generation = generation(connection) + 1
        self._changes_before = connection.total_changes

    # --- turns and memories ---

    def add_turn(self, turn: StoredTurn) -> int:
        """Store a message; returns its rowid. Raises StoreError if the id is taken."""
        with self.step():
            self._new_id("turns", turn.id)
            return self.insert("turns", **as_columns(turn))

    def add_memory(
        self,
        memory: NewMemory,
        *,
        actor_id: str | None = None,
        role: str | None = None,
    ) -> int:
        """Store a memory with vectors, full-text row, sources and history row; returns its rowid.

        Raises StoreError if the id is taken or a source is unknown, DimensionMismatch if the
        vectors are of another dimension than the store's, InputError on an unknown kind.
        """
        with self.step():
            self._new_id("memories", memory.id)
            if memory.kind not in KINDS:
                raise InputError(
                    f"memory kind {memory.kind!r} is unknown; give one of {', '.join(KINDS)}"
                )
            columns = as_columns(memory)
            turns = self._turn_rowids(memory.sources)
            blobs = self._blobs(memory.vectors)
            rowid = self.insert(
                "memories", **columns, updated_at=memory.created_at, generation=self.generation
            )
            self.index_text(rowid, memory.search_text)
            self._add_vectors(rowid, blobs)
            self._add_sources(rowid, turns)
            self._history(
                memory.id,
                "ADD",
                new_memory=memory.memory,
                created_at=memory.created_at,
                actor_id=actor_id,
                role=role,
            )
            return rowid

    def update_memory(
        self,
        id: str,
        *,
        memory: str,
        search_text: str,
        vectors: Floats | None,
        updated_at: str,
        metadata: Mapping[str, Any] | None = None,
        valid_from: str | None = None,
        sources: Sequence[str] = (),
        role: str | None = None,
    ) -> str:
        """Give a memory a new text; returns its previous text.

        vectors, metadata, valid_from: None leaves them as they are. sources: ids of turns, added to
        the memory's sources. role: "user" if a person edits it. Raises StoreError if there is no
        such memory or source.
        """
        with self.step():
            rowid, old, old_search, created_at = self._memory(id)
            packed = None if metadata is None else pack_json(metadata, "metadata")
            turns = self._turn_rowids(sources)
            blobs = None if vectors is None else self._blobs(vectors)
            if search_text != old_search:
                self.unindex_text(rowid, old_search)
            given = {"metadata": packed, "valid_from": valid_from}
            given = {name: value for name, value in given.items() if value is not None}
            self.change(
                rowid, memory=memory, search_text=search_text, updated_at=updated_at, **given
            )
            if search_text != old_search:
                self.index_text(rowid, search_text)
            if blobs is not None:
                self._replace_vectors(rowid, blobs)
            self._add_sources(rowid, turns)
            self._history(
                id,
                "UPDATE",
                old_memory=old,
                new_memory=memory,
                created_at=created_at,
                updated_at=updated_at,
                role=role,
            )
            return old

    def set_vectors(self, id: str, vectors: Floats) -> None:
        """Replace a memory's vectors and nothing else (`reindex`); no history row."""
        with self.step():
            self._replace_vectors(self._memory(id)[0], self._blobs(vectors))

    def set_tokens(self, model: str, made: Iterable[tuple[int, str, bytes]]) -> None:
        """Store the token vectors of memories, and delete those of another model.

        made: (rowid, search text that was embedded, int8 rows) of each memory. A memory that has
        another text by now, or is deleted, gets none.
        """
        with self.step() as connection:
            if meta(connection, "token_model") != model:
                connection.execute("DELETE FROM token_vectors")
                self.set_meta("token_model", model)
            connection.executemany(
                "INSERT OR REPLACE INTO token_vectors (memory, tokens) SELECT rowid, ?3 "
                "FROM memories WHERE rowid = ?1 AND search_text = ?2 AND deleted_at IS NULL",
                made,
            )

    def invalidate(self, id: str, valid_to: str, *, at: str | None = None) -> None:
        """End a memory's validity: from `valid_to` on, answers leave it out; its row stays.

        at: when that was decided (now if None). History: event DELETE, is_deleted 0.
        """
        with self.step():
            rowid, old, _, created_at = self._memory(id)
            at = at or utc_now()
            self.change(rowid, valid_to=valid_to, updated_at=at)
            relations.end_relations(self._connection, rowid, valid_to)
            self._history(id, "DELETE", old_memory=old, created_at=created_at, updated_at=at)

    def set_relations(self, id: str, new: Iterable[NewRelation], version: int) -> None:
        """Replace the relations of a fact. version: of the reader that found them."""
        with self.step() as connection:
            relations.write_relations(connection, self._memory(id)[0], new, version)

    def unread(self, version: int, ids: Iterable[str]) -> set[str]:
        """The ids, among those given, of facts that this version of the reader has not read."""
        with self.step() as connection:
            rows = connection.execute(
                f"SELECT id FROM memories WHERE id {LISTED} AND deleted_at IS NULL AND graphed < ?",
                (as_json(ids), version),
            )
            return {row[0] for row in rows}

    def end_relations(self, ended: str, valid_to: str, by: str) -> None:
        """End the relations of the fact `ended`, which `by` contradicts (relations.py)."""
        with self.step() as connection:
            old, new = self._memory(ended)[0], self._memory(by)[0]
            relations.end_relations(connection, old, valid_to, new)

    def import_relation(self, row: Mapping[str, Any]) -> None:
        """Store a relation of an export."""
        with self.step() as connection:
            relations.import_relation(connection, row)

    def live(self, ids: Iterable[str]) -> set[str]:
        """The ids, among those given, of memories that are not deleted."""
        with self.step() as connection:
            sql = f"SELECT id FROM memories WHERE deleted_at IS NULL AND id {LISTED}"
            return {id for (id,) in connection.execute(sql, (as_json(ids),))}

    def delete_memory(self, id: str, deleted_at: str) -> None:
        """Take a memory out of every answer and index; its text stays in its row and history."""
        with self.step():
            rowid, old, old_search, created_at = self._memory(id)
            self.unindex_text(rowid, old_search)
            self._connection.execute("DELETE FROM vectors WHERE memory = ?", (rowid,))
            self.change(rowid, deleted_at=deleted_at)
            self._history(
                id,
                "DELETE",
                old_memory=old,
                created_at=created_at,
                updated_at=deleted_at,
                is_deleted=1,
            )

    # --- images ---

    def add_image(self, memory_id: str, picture: Picture) -> None:
        """Store the image of a stored memory, with the caption that the memory gives it.

        An image that is stored already keeps the text that was read in it.
        """
        with self.step() as connection:
            rowid = self._memory(memory_id)[0]
            images.insert(self, picture)
            images.link(connection, rowid, picture.id, picture.caption, picture.caption_by)

    def set_caption(self, memory_id: str, caption: str | None, by: str | None) -> None:
        """Set a memory's caption for its image, and who wrote it; the caller sets its text."""
        with self.step() as connection:
            connection.execute(
                "UPDATE memory_images SET caption = ?, caption_by = ? WHERE memory = ?",
                (caption, by, self._memory(memory_id)[0]),
            )

    def set_ocr(self, id: str, state: str, text: str | None, boxes: str | None) -> None:
        """Store what was read in an image; the caller sets the text of its memories.

        state: "done" or "failed". boxes: JSON. Raises StoreError if the image is not stored.
        """
        with self.step() as connection:
            done = connection.execute(
                "UPDATE images SET ocr_state = ?, ocr_text = ?, ocr_boxes = ? WHERE id = ?",
                (state, text, boxes, id),
            )
            if done.rowcount == 0:
                raise StoreError(f"there is no image {id!r:.80}; it may have been erased meanwhile")

    def set_image_embedding(self, id: str, model_id: str, vector: bytes) -> None:
        """Store the vector of an image, float32 bytes. Does nothing if the image is not stored."""
        with self.step() as connection:
            connection.execute(
                "UPDATE images SET embedding_model = ?, embedding = ? WHERE id = ?",
                (model_id, vector, id),
            )

    def import_image(self, row: Mapping[str, Any]) -> bool:
        """Store an image of an export; returns whether anything of it is new."""
        return images.import_image(self, row)

    # --- pending work and meta ---

    def add_pending(self, task: str, payload: Mapping[str, Any], scope: Scope) -> int:
        """Queue a piece of work; returns its id. An erase takes erased ids out of it."""
        with self.step():
            return self.insert(
                "pending",
                uid=uuid.uuid4().hex,
                task=task,
                payload=pack_json(payload, "payload"),
                **scope_columns(scope),
                created_at=utc_now(),
            )

    def finish_pending(self, id: int) -> None:
        """Drop a piece of work that is done. Raises StoreError if there is none."""
        self._change_pending("DELETE FROM pending WHERE id = ?", id)

    def fail_pending(self, id: int, error: str, next_try_at: str | None) -> None:
        """Note a failed try. Raises StoreError if there is no such piece of work."""
        self._change_pending(
            "UPDATE pending SET attempts = attempts + 1, last_error = ?, next_try_at = ? "
            "WHERE id = ?",
            error,
            next_try_at,
            id,
        )

    def _change_pending(self, sql: str, *params: str | int | None) -> None:
        with self.step() as connection:
            if connection.execute(sql, params).rowcount == 0:
                raise StoreError(
                    f"no pending work with number {params[-1]}; another process may have done it"
                )

    def set_meta(self, key: str, value: str | None) -> None:
        """Store a setting of the store itself; None drops it."""
        with self.step():
            if value is None:
                self._connection.execute("DELETE FROM meta WHERE key = ?", (key,))
            else:
                self._connection.execute(
                    "INSERT OR REPLACE INTO meta (key, value) VALUES (?, ?)", (key, value)
                )

    # --- for this package ---

    @contextmanager
    def step(self) -> Iterator[sqlite3.Connection]:
        """One change. If it fails half way, the transaction can only be rolled back.

        SQLite may itself have rolled back (a full disk), after which every further statement
        would commit on its own.
        """
        if not self._open:
            raise StoreError("this transaction is over; begin another with store.transaction()")
        self.require_whole()
        before = self._connection.total_changes
        try:
            with sqlite_errors(self._path):
                yield self._connection
        except BaseException as exc:
            refused = isinstance(exc, StoreError | ValueError | TypeError)
            inside = isinstance(exc.__cause__, sqlite3.Error | MemoryError)
            if not refused or inside or self._connection.total_changes != before:
                self._failed = exc
            raise

    def require_whole(self) -> None:
        if self._failed is not None:
            raise StoreError(
                f"this transaction failed earlier ({self._failed}) and is rolled back; "
                "begin another"
            ) from self._failed

    def finish(self) -> bool:
        """End the transaction; returns whether it wrote anything, and then sets the generation."""
        self.require_whole()
        self._open = False
        if self._connection.total_changes == self._changes_before:
            return False
        self._connection.execute(
            "UPDATE meta SET value = ? WHERE key = 'generation'", (str(self.generation),)
        )
        return True

    def abandon(self) -> None:
        self._open = False

    def insert(self, table: str, **values: Any) -> int:
        names, marks = ", ".join(values), ", ".join("?" * len(values))
        cursor = self._connection.execute(
            f"INSERT INTO {table} ({names}) VALUES ({marks})", tuple(values.values())
        )
        return int(cursor.lastrowid or 0)

    def change(self, rowid: int, **values: Any) -> None:
        """Set columns of a memory and its generation, so that caches read it again."""
        columns = ", ".join(f"{name} = ?" for name in (*values, "generation"))
        self._connection.execute(
            f"UPDATE memories SET {columns} WHERE rowid = ?",
            (*values.values(), self.generation, rowid),
        )

    def index_text(self, rowid: int, text: str) -> None:
        self._connection.execute(
            "INSERT INTO memories_fts (rowid, search_text) VALUES (?, ?)", (rowid, text)
        )

    def unindex_text(self, rowid: int, text: str) -> None:
        # An FTS5 index over external content needs the exact text that was indexed.
        self._connection.execute(
            "INSERT INTO memories_fts (memories_fts, rowid, search_text) VALUES ('delete', ?, ?)",
            (rowid, text),
        )

    def add_derived(self, rowid: int, vectors: Floats, sources: Sequence[str]) -> None:
        """Store the vectors and sources of a memory row that was just inserted or changed."""
        blobs, turns = self._blobs(vectors), self._turn_rowids(sources)
        self._add_vectors(rowid, blobs)
        self._add_sources(rowid, turns)

    # --- helpers ---

    def _new_id(self, table: str, id: str) -> None:
        if rowid_of(self._connection, table, id) is not None:
            what = "turn" if table == "turns" else "memory"
            raise StoreError(f"a {what} with id {id!r} exists already; give a new id")

    def _memory(self, id: str) -> tuple[int, str, str, str]:
        row = self._connection.execute(
            "SELECT rowid, memory, search_text, created_at FROM memories "
            "WHERE id = ? AND deleted_at IS NULL",
            (id,),
        ).fetchone()
        if row is None:
            raise StoreError(
                f"no memory with id {id!r} (or it was deleted); list them to see which there are"
            )
        return row[0], row[1], row[2], row[3]

    def _turn_rowids(self, ids: Iterable[str]) -> list[int]:
        out = []
        for id in dict.fromkeys(ids):
            rowid = rowid_of(self._connection, "turns", id)
            if rowid is None:
                raise StoreError(f"no turn with id {id!r}; add the turn before what cites it")
            out.append(rowid)
        return out

    def _add_sources(self, rowid: int, turns: Iterable[int]) -> None:
        self._connection.executemany(
            "INSERT OR IGNORE INTO memory_sources (memory, turn) VALUES (?, ?)",
            [(rowid, turn) for turn in turns],
        )

    def _blobs(self, vectors: Floats) -> list[bytes]:
        """The vectors as blobs. The first ones ever set the store's dimension.

        Raises DimensionMismatch if the vectors have another one.
        """
        blobs = pack_vectors(vectors)
        if blobs:
            dim = len(blobs[0]) // 4
            held = meta_int(self._connection, "embedder_dim")
            if not held:
                self.set_meta("embedder_dim", str(dim))
            elif dim != held:
                raise DimensionMismatch(
                    f"vectors of dimension {dim} were given and the store {self._path} holds "
                    f"vectors of dimension {held}; use the embedding model it was made with, "
                    "or run `edgemem reindex`"
                )
        return blobs

    def _add_vectors(self, rowid: int, blobs: Iterable[bytes]) -> None:
        self._connection.executemany(
            "INSERT INTO vectors (memory, chunk, vector) VALUES (?, ?, ?)",
            [(rowid, chunk, blob) for chunk, blob in enumerate(blobs)],
        )

    def _replace_vectors(self, rowid: int, blobs: Iterable[bytes]) -> None:
        self._connection.execute("DELETE FROM vectors WHERE memory = ?", (rowid,))
        self._add_vectors(rowid, blobs)
        self.change(rowid, vectors_generation=self.generation)

    def _history(self, memory_id: str, event: str, **columns: str | int | None) -> None:
        self.insert("history", id=str(uuid.uuid4()), memory_id=memory_id, event=event, **columns)


# --- erasing ----------------------------------------------------------------------------------


def extent(
    connection: sqlite3.Connection,
    memory_ids: Sequence[str],
    others: Sequence[str] = (),
    made_by: str | None = None,
) -> tuple[Rows, Rows]:
    """What an erase takes: (rowid, id) of turns; (rowid, id, search_text, deleted_at) of memories.

    These are the given memories, their source turns, and every other memory that cites one of those
    turns (such as the turn's own memory). Turns that no memory cites (questions and answers of a
    chat, messages of a system or tool) may quote what is erased: they go if their user is that of a
    given memory or, without a user, if their scope includes one. others: ids of turns, erased with
    the memories that cite them, and of memories, erased without their turns. made_by: erase uncited
    turns only if this device wrote them.
    """
    wanted = as_json(memory_ids)
    turns = connection.execute(
        "SELECT DISTINCT t.rowid, t.id FROM turns t JOIN memory_sources s ON s.turn = t.rowid "
        f"JOIN memories m ON m.rowid = s.memory WHERE m.id {LISTED} "
        f"UNION SELECT rowid, id FROM turns WHERE id {LISTED}",
        (wanted, as_json(others)),
    ).fetchall()
    turns += connection.execute(
        "SELECT t.rowid, t.id FROM turns t "
        "WHERE t.rowid NOT IN (SELECT turn FROM memory_sources) AND EXISTS "
        "(SELECT 1 FROM memories m WHERE m.id IN (SELECT value FROM json_each(?1)) "
        "AND (m.user_id = t.user_id OR "
        "(t.user_id IS NULL AND (t.agent_id IS NULL OR t.agent_id = m.agent_id) "
        "AND (t.run_id IS NULL OR t.run_id = m.run_id)))) AND (?2 IS NULL OR EXISTS "
        "(SELECT 1 FROM sync_rows r WHERE r.kind = 'turn' AND r.id = t.id AND r.device = ?2))",
        (wanted, made_by),
    ).fetchall()
    memories = connection.execute(
        f"SELECT rowid, id, search_text, deleted_at FROM memories WHERE id {LISTED} "
        f"OR rowid IN (SELECT memory FROM memory_sources WHERE turn {LISTED}) ORDER BY rowid",
        (as_json([*memory_ids, *others]), as_json(row[0] for row in turns)),
    ).fetchall()
    return turns, memories


def all_of(connection: sqlite3.Connection, scope: Scope) -> tuple[list[str], list[str]]:
    """The ids of all memories of a scope, also deleted ones, and of all its turns."""
    conditions, params = scope_sql(scope, "")
    where = " AND ".join(["1", *conditions])
    memories, turns = (
        [id for (id,) in connection.execute(f"SELECT id FROM {table} WHERE {where}", params)]
        for table in ("memories", "turns")
    )
    return memories, turns


def erase_rows(
    tx: Transaction,
    memory_ids: Sequence[str],
    others: Sequence[str] = (),
    made_by: str | None = None,
) -> list[str]:
    """Erase the `extent` of memories and others; returns the ids of all memories erased.

    Also erases their vectors, full-text rows and history, and takes their ids out of pending work.
    """
    with tx.step() as connection:
        turns, memories = extent(connection, memory_ids, others, made_by)
        turn_rows, turn_ids = [row[0] for row in turns], [row[1] for row in turns]
        ids = [row[1] for row in memories]
        if not ids and not turns:
            return []
        before = erasures.count_rows(connection)
        kinds = _count_kinds(connection, f"rowid {LISTED}", as_json(row[0] for row in memories))
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
        _drop_from_pending(connection, mentioned)
        connection.execute(f"DELETE FROM history WHERE memory_id {LISTED}", (as_json(ids),))
        relations.forget_entities(connection, rowids)
        # Vectors, memory_sources and relations go with them, by cascade.
        connection.execute(f"DELETE FROM memories WHERE rowid {LISTED}", (rowids,))
        connection.execute(f"DELETE FROM turns WHERE rowid {LISTED}", (as_json(turn_rows),))
        erasures.add_erasure(
            connection,
            kinds={**kinds, "said": len(turn_rows)},
            ids=[*ids, *turn_ids],
            before=before,
        )
        erasures.note_roots(connection, set(memory_ids).intersection(ids))
        tx.set_meta(SCRUB_WANTED, uuid.uuid4().hex)
    return ids


def _drop_from_pending(connection: sqlite3.Connection, erased: str) -> None:
    """Take erased ids (`as_json`) out of the turns of pending work.

    Work that has no turns left, or that mentions an erased id elsewhere, is dropped.
    """
    turns = "FROM json_each(payload, '$.turns') WHERE value"
    left = f"json((SELECT json_group_array(value) {turns} NOT {LISTED}))"
    connection.execute(
        f"UPDATE pending SET payload = json_set(payload, '$.turns', {left}) "
        f"WHERE EXISTS (SELECT 1 {turns} {LISTED})",
        (erased, erased),
    )
    connection.execute(
        "DELETE FROM pending WHERE json_extract(payload, '$.turns') = '[]' OR id IN (SELECT p.id "
        f"FROM pending p, json_tree(p.payload) j WHERE j.atom {LISTED} OR j.key {LISTED})",
        (erased, erased),
    )


def _count_kinds(connection: sqlite3.Connection, where: str, *params: str) -> dict[str, int]:
    rows = connection.execute(
        f"SELECT kind, count(*) FROM memories WHERE {where} GROUP BY kind", params
    )
    return dict(rows.fetchall())


def _purge_receipts(connection: sqlite3.Connection, memory_ids: Sequence[str]) -> None:
    """Remove erased ids from the receipts of cloud calls, and hashes of what may have quoted them.

    These are all hashes of that user, and of no user. Time and cost stay.
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
    """Erase every turn, memory, image, history row, piece of pending work, receipt of a cloud call
    and never_send mark, and meta not in _KEPT_META.

    The generation goes on, and no rowid or label is reused. Receipts of erasing and versions stay.
    """
    with tx.step() as connection:
        before, kinds = erasures.count_rows(connection), _count_kinds(connection, "1")
        connection.execute("INSERT INTO memories_fts (memories_fts) VALUES ('delete-all')")
        for table in (
            "relations", "aliases", "entities", "memory_sources", "vectors", "token_vectors",
            "memory_images", "images", "history", "pending", "erased", "memories", "turns",
            "receipts", "never_send", "sync_waiting",
        ):  # fmt: skip
            connection.execute(f"DELETE FROM {table}")
        connection.execute(f"DELETE FROM meta WHERE key NOT {LISTED}", (as_json(_KEPT_META),))
        erasures.add_erasure(
            connection,
            kinds={**kinds, "said": before["turns"]},
            ids=(),
            before=before,
            everything=True,
        )
        tx.set_meta("reset_generation", str(tx.generation))
        tx.set_meta(SCRUB_WANTED, uuid.uuid4().hex)
