"""What the store's tests share: short ways to make its rows, and child processes."""

import os
import re
import sqlite3
import subprocess
import sys
from contextlib import closing, contextmanager
from functools import cache
from pathlib import Path
from typing import Any, get_args
from zlib import crc32

import numpy as np
import pytest

import edgemem
from edgemem.results import Entity, Label, Scope
from edgemem.store import NewMemory, NewRelation, StoredTurn

DIM = 8
T0 = "2024-05-01T10:00:00.000+00:00"
T1 = "2024-05-02T10:00:00.000+00:00"
T2 = "2024-05-03T10:00:00.000+00:00"
LONG_AGO = "2001-01-01T00:00:00.000+00:00"
FAR_AHEAD = "2999-01-01T00:00:00.000+00:00"
ADA = Scope(user_id="ada")
ROOT = Path(edgemem.__file__).parent.parent


@cache
def encoder():
    """What reads facts."""
    from edgemem.runtime.encoder import Encoder  # a child that reads none starts without it

    return Encoder.load()


_TYPES = {"lives_in": "place", "works_at": "organisation"}


def relate(tx, id, *said):
    """Store what a memory says: "Ana lives_in Oslo", "Katarzyna/Kasia likes tea" with an alias."""
    from edgemem.pipeline import graph as reader

    new = []
    for line in said:
        source, label, target = re.split(rf" ({'|'.join(get_args(Label))}) ", line)
        kind = _TYPES.get(label, "person" if label.endswith("_of") else "thing")
        new.append(NewRelation(_entity(source, "person"), label, _entity(target, kind)))
    tx.set_relations(id, new, reader.version(encoder()))


def _entity(said, kind):
    name, *aliases = said.split("/")
    return Entity(name, kind, tuple(aliases))


def unit(seed, count=1, dim=DIM):
    """(count, dim) float32 random unit vectors, the same for the same seed."""
    rows = np.random.default_rng(seed).standard_normal((count, dim))
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def turn(id, content="hello", **fields):
    values: dict[str, Any] = {
        "scope": ADA, "role": "user", "timestamp": T0, "created_at": T0, **fields
    }  # fmt: skip
    return StoredTurn(id=id, content=content, **values)


def memory(id, text="Ada likes tea", **fields):
    values: dict[str, Any] = {
        "kind": "fact", "search_text": text, "scope": ADA, "created_at": T0,
        "vectors": unit(crc32(id.encode())), **fields,
    }  # fmt: skip
    return NewMemory(id=id, memory=text, **values)


def add(store, *rows):
    with store.transaction() as tx:
        return [
            tx.add_turn(row) if isinstance(row, StoredTurn) else tx.add_memory(row) for row in rows
        ]


def indexed(store, match):
    """The rowids of the memories that the full-text index has for an FTS5 query."""
    query = "SELECT rowid FROM memories_fts WHERE memories_fts MATCH ? ORDER BY rowid"
    with store.snapshot() as connection:
        return [row[0] for row in connection.execute(query, (match,))]


def by_memory(stored):
    """The terms and counts of each rowid."""
    found: dict[int, dict[str, int]] = {rowid: {} for rowid in stored.rowids.tolist()}
    for i, term in enumerate(stored.terms):
        span = slice(stored.offsets[i], stored.offsets[i + 1])
        for doc, count in zip(stored.docs[span], stored.counts[span], strict=True):
            found[int(doc)][term] = int(count)
    return found


def raw(path, *statements):
    """Change a file as another program would; foreign keys are off here."""
    with closing(sqlite3.connect(str(path), isolation_level=None)) as connection:
        for statement in statements:
            connection.execute(statement)


def vectors_by_length(texts):
    """Stands in for an embedder: vectors that depend on the text alone."""
    return [unit(len(text)) for text in texts]


def child(script, *arguments):
    """A Python process that can import edgemem and this file."""
    path = os.pathsep.join((str(ROOT), str(Path(__file__).parent)))
    return subprocess.Popen(
        [sys.executable, "-c", script, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )


def finished(process, timeout_s=120):
    """The child's output; fails with its errors if it failed."""
    out, err = process.communicate(timeout=timeout_s)
    assert process.returncode == 0, err
    return out


def raised(call):
    """The message of whatever the call raises."""
    try:
        call()
    except Exception as exc:
        return str(exc)
    raise AssertionError("nothing was raised")


@contextmanager
def full_disk():
    """No file grows in the block."""
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
