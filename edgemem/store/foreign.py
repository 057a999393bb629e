"""Other programs' databases: reads Chroma's SQLite file, writes SQL for PostgreSQL with pgvector.

Opens Chroma's file read-only and no connection to PostgreSQL: `psql` loads what is written. Several
people's stores may go into one database. Loading an export again replaces all rows of the same
store, so memories that were erased here are deleted there. Source: PostgreSQL's COPY, text format;
pgvector's `vector` type and HNSW index.
"""

from __future__ import annotations

import sqlite3
import uuid
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import IO, Any

from edgemem.errors import InputError
from edgemem.store import database
from edgemem.store.relations import all_relations
from edgemem.store.rows import unpack_vectors
from edgemem.store.store import Store

__all__ = ["chroma_records", "write_sql"]


def chroma_records(file: Path) -> dict[tuple[str, str], dict[str, Any]]:
    """The metadata of each record of a chroma.sqlite3, by collection and id, in stored order.

    The text is the value of "chroma:document". The file holds only the latest vectors, so none are
    read. Raises InputError if the file is not Chroma's, or its version is before 0.4.15.
    """
    found: dict[tuple[str, str], dict[str, Any]] = {}
    try:
        with closing(
            sqlite3.connect(database.uri(file.resolve(), "mode=ro"), uri=True)
        ) as connection:
            for collection, id, created_at, key, *values, true in connection.execute(
                "SELECT c.name, e.embedding_id, e.created_at, m.key, m.string_value, m.int_value, "
                "m.float_value, m.bool_value FROM embeddings e "
                "JOIN segments s ON s.id = e.segment_id JOIN collections c ON c.id = s.collection "
                "JOIN embedding_metadata m ON m.id = e.id ORDER BY e.id"
            ):
                record = found.setdefault((collection, id), {"created_at": f"{created_at}+00:00"})
                value = bool(true) if true is not None else None
                record[key] = next((v for v in values if v is not None), value)
    except (sqlite3.Error, UnicodeDecodeError) as exc:
        raise InputError(
            f"{file} cannot be read as Chroma's file ({exc}); give the folder of a Chroma of "
            "version 0.4.15 or later that no program is writing to"
        ) from exc
    return found


# -- PostgreSQL --------------------------------------------------------------------------------

_NAME = "pgvector_store"
_MAX_INDEXED_DIM = 2000  # the limit of pgvector's HNSW over `vector`

_TABLES = """\
\\set ON_ERROR_STOP on
BEGIN;
SET LOCAL client_encoding = 'UTF8';
SET LOCAL standard_conforming_strings = on;
SET LOCAL client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS vector;
CREATE TABLE IF NOT EXISTS memories (
  id text PRIMARY KEY, store text NOT NULL, kind text NOT NULL, memory text NOT NULL,
  user_id text, agent_id text, run_id text, metadata jsonb NOT NULL,
  created_at timestamptz NOT NULL, updated_at timestamptz NOT NULL,
  valid_from timestamptz, valid_to timestamptz, expires_at timestamptz
);
CREATE TABLE IF NOT EXISTS vectors (
  memory_id text REFERENCES memories ON DELETE CASCADE, chunk integer,
  model text NOT NULL, embedding vector{dim} NOT NULL, PRIMARY KEY (memory_id, chunk)
);
CREATE TABLE IF NOT EXISTS relations (
  id text PRIMARY KEY, memory_id text NOT NULL REFERENCES memories ON DELETE CASCADE,
  source text NOT NULL, source_type text NOT NULL, label text NOT NULL,
  target text NOT NULL, target_type text NOT NULL,
  valid_from timestamptz, valid_to timestamptz, invalidated_by text
);
CREATE INDEX IF NOT EXISTS memories_store ON memories (store);
CREATE INDEX IF NOT EXISTS memories_scope ON memories (user_id, agent_id, run_id);
CREATE INDEX IF NOT EXISTS memories_words ON memories USING gin (to_tsvector('english', memory));
CREATE INDEX IF NOT EXISTS relations_memory ON relations (memory_id);
"""
_HNSW = (
    "CREATE INDEX IF NOT EXISTS vectors_hnsw ON vectors USING hnsw (embedding vector_cosine_ops);\n"
)
_REPLACE = """\
DELETE FROM memories WHERE store = '{store}' OR id IN (SELECT id FROM loaded);
INSERT INTO memories SELECT * FROM loaded;
"""
_MEMORIES = (
    "SELECT id, ?, kind, memory, user_id, agent_id, run_id, metadata, created_at, updated_at, "
    "valid_from, valid_to, expires_at FROM memories WHERE deleted_at IS NULL ORDER BY rowid"
)
_VECTORS = (
    "SELECT m.id, v.chunk, ?, v.vector FROM memories m CROSS JOIN vectors v ON v.memory = m.rowid "
    "WHERE m.deleted_at IS NULL ORDER BY m.rowid, v.chunk"
)
_ESCAPES = str.maketrans({"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"})


def write_sql(store: Store, out: IO[str]) -> int:
    """Write tables and rows as one transaction; the number of memories, vectors and relations.

    Memories that are no longer valid are included. Deleted memories, and turns that are no memory,
    are not.
    """
    name = _name(store)
    with store.snapshot() as connection:
        dim = database.meta_int(connection, "embedder_dim")
        out.write(_TABLES.format(dim=f"({dim})" if dim else ""))
        out.write("CREATE TEMPORARY TABLE loaded (LIKE memories) ON COMMIT DROP;\n")
        count = _copy(out, "loaded", connection.execute(_MEMORIES, (name,)))
        out.write(_REPLACE.format(store=name))
        count += _copy(out, "vectors", _embeddings(connection, dim))
        count += _copy(out, "relations", all_relations(connection))
        if 0 < dim <= _MAX_INDEXED_DIM:
            out.write(_HNSW)
        out.write("COMMIT;\n")
    return count


def _name(store: Store) -> str:
    """This store's unique name in the shared database, which its first export assigns."""
    name = store.meta(_NAME)
    if name is None:
        name = uuid.uuid4().hex
        with store.transaction() as tx:
            tx.set_meta(_NAME, name)
    return name


def _embeddings(connection: sqlite3.Connection, dim: int) -> Iterable[tuple[Any, ...]]:
    model = database.meta(connection, "embedder_model")
    for *row, blob in connection.execute(_VECTORS, (model,)):
        (vector,) = unpack_vectors([blob], dim).tolist()
        yield *row, f"[{','.join(f'{value:.9g}' for value in vector)}]"


def _copy(out: IO[str], table: str, rows: Iterable[tuple[Any, ...]]) -> int:
    out.write(f"COPY {table} FROM stdin;\n")
    count = 0
    for row in rows:
        fields = ("\\N" if value is None else str(value).translate(_ESCAPES) for value in row)
        out.write("\t".join(fields) + "\n")
        count += 1
    out.write("\\.\n")
    return count
