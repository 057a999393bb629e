"""Several processes on one file: two writers and a reader, and two that make it."""

from __future__ import annotations

import sqlite3
from contextlib import suppress
from pathlib import Path

import pytest
from storekit import add, child, finished, memory

from edgemem.errors import StoreError
from edgemem.store import Store, schema

WRITES = 40

WRITER = """
import sys
from storekit import memory, turn
from edgemem.store import Store
path, name, count = sys.argv[1:]
with Store.open(path, busy_timeout_s=30) as store:
    print("ready", flush=True)
    sys.stdin.readline()
    for i in range(int(count)):
        with store.transaction() as tx:
            tx.add_turn(turn(f"t{name}{i}"))
            tx.add_memory(memory(f"m{name}{i}", sources=(f"t{name}{i}",)))
            generation = tx.generation
        assert store.generation() >= generation
        assert f"m{name}{i}" in store.get([f"m{name}{i}"])
"""

# Follows the changes as a cache does until it holds everything; every look is one consistent state.
READER = """
import sys
from edgemem.store import Store
path, total = sys.argv[1], int(sys.argv[2])
held, generation = {}, 0
with Store.open(path, busy_timeout_s=30) as store:
    print("ready", flush=True)
    sys.stdin.readline()
    while len(held) < total:
        if store.generation() == generation:
            continue
        got = store.changes(generation)
        assert got.generation > generation
        generation = got.generation
        for label, rowid in zip(got.labels.tolist(), got.rowids.tolist(), strict=True):
            assert label not in held
            held[label] = rowid
        assert len(held) == generation, (len(held), generation)
        items = store.by_rowids(held.values())
        assert len(items) == len(held)
        assert all(len(item.sources) == 1 for item in items.values())
print(len(held))
"""


def test_two_writers_and_a_reader_share_one_file(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    Store.open(path).close()
    processes = [
        child(WRITER, path, "a", str(WRITES)),
        child(WRITER, path, "b", str(WRITES)),
        child(READER, path, str(2 * WRITES)),
    ]
    for process in processes:
        assert process.stdout and process.stdin
        assert process.stdout.readline() == "ready\n", process.communicate()[1]
    for process in processes:
        assert process.stdin
        process.stdin.write("go\n")
        process.stdin.flush()
    outputs = [finished(process) for process in processes]
    assert outputs[2] == f"{2 * WRITES}\n"
    with Store.open(path) as store:
        assert store.generation() == store.counts()["memories"] == 2 * WRITES
        assert store.check() == []


OPENER = """
import sys
import sqlite_utils
from storekit import memory
from edgemem.store import Store
print("ready", flush=True)
sys.stdin.readline()
with Store.open(sys.argv[1]) as store, store.transaction() as tx:
    tx.add_memory(memory(sys.argv[2]))
"""


@pytest.mark.parametrize("round", range(4))
def test_two_processes_may_make_the_same_file_at_once(tmp_path: Path, round: int) -> None:
    path = tmp_path / "a.db"
    processes = [child(OPENER, path, name) for name in "ab"]
    for process in processes:
        assert process.stdout
        assert process.stdout.readline() == "ready\n", process.communicate()[1]
    for process in processes:
        assert process.stdin
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in processes:
        finished(process)
    with Store.open(path) as store:
        assert sorted(i.id for i in store.list()) == ["a", "b"]
        assert store.generation() == 2
        assert store.check() == []
    assert list(tmp_path.glob("*.bak")) == []


def test_a_file_that_another_connection_makes_meanwhile_is_seen_in_one_state(
    tmp_path: Path,
) -> None:
    path = tmp_path / "a.db"
    for statement in range(5):  # the other makes its file before the n-th statement of the look
        path.unlink(missing_ok=True)
        looking = sqlite3.connect(path, isolation_level=None)
        seen: list[str] = []

        def make(sql: str, seen: list[str] = seen, at: int = statement) -> None:
            seen.append(sql)
            if len(seen) == at + 1:
                with suppress(StoreError):  # busy: the look keeps it out until it is over
                    Store.open(path, busy_timeout_s=0).close()

        looking.set_trace_callback(make)
        try:
            assert schema.inspect(looking, "a.db") in (0, len(schema.MIGRATIONS))
        finally:
            looking.close()
        assert len(seen) == 5
        Store.open(path).close()


ERASER = """
import sys
from edgemem.store import Store
with Store.open(sys.argv[1]) as store:
    print(store.erase(["m1"]))
"""


def test_an_erase_in_one_process_reaches_the_cache_of_another(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with Store.open(path) as store:
        add(store, memory("m1"), memory("m2"))
        before = store.changes(0)
        assert finished(child(ERASER, path)) == "['m1']\n"
        after = store.changes(before.generation)
        assert (after.full, after.removed_rowids.tolist()) == (False, [1])
        assert [i.id for i in store.list()] == ["m2"]
        # The next memory gets a new rowid and label, not the erased one's.
        add(store, memory("m3"))
        newer = store.changes(after.generation)
        assert newer.rowids.tolist() == [3]
        assert newer.labels[0] > before.labels.max()
