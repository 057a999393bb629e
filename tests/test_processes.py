"""Several processes on one file, of a store and through Memory: they write, read and make it."""

import sqlite3
from contextlib import suppress

from fake_engine import FakeEngine
from memorykit import quick, texts
from storekit import child, finished

from edgemem.errors import StoreError
from edgemem.store import Store, schema


def ready(*processes):
    """Returns once each has said that it is."""
    for process in processes:
        assert process.stdout
        assert process.stdout.readline() == "ready\n", process.communicate()[1]


def go(*processes):
    for process in processes:
        assert process.stdin
        process.stdin.write("go\n")
        process.stdin.flush()


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


def test_two_writers_and_a_reader_share_one_file(tmp_path):
    path = tmp_path / "a.db"
    Store.open(path).close()
    processes = [
        child(WRITER, path, "a", str(WRITES)),
        child(WRITER, path, "b", str(WRITES)),
        child(READER, path, str(2 * WRITES)),
    ]
    ready(*processes)
    go(*processes)
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
folder, name, rounds = sys.argv[1:]
for number in range(int(rounds)):
    print("ready", flush=True)
    sys.stdin.readline()
    with Store.open(f"{folder}/{number}.db") as store, store.transaction() as tx:
        tx.add_memory(memory(name))
"""


def test_two_processes_may_make_the_same_file_at_once(tmp_path):
    rounds = 4
    processes = [child(OPENER, tmp_path, name, str(rounds)) for name in "ab"]
    for _ in range(rounds):
        ready(*processes)
        go(*processes)
    for process in processes:
        finished(process)
    for number in range(rounds):
        with Store.open(tmp_path / f"{number}.db") as store:
            assert sorted(i.id for i in store.list()) == ["a", "b"]
            assert store.generation() == 2
            assert store.check() == []
    assert list(tmp_path.glob("*.bak")) == []


def test_a_file_that_another_connection_makes_meanwhile_is_seen_in_one_state(
    tmp_path,
):
    path = tmp_path / "a.db"
    for statement in range(5):  # the other makes its file before the n-th statement of the look
        path.unlink(missing_ok=True)
        looking = sqlite3.connect(path, isolation_level=None)
        seen: list[str] = []

        def make(sql, seen=seen, at=statement):
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


# -- through Memory ----------------------------------------------------------------------------

SAYER = """
import sys
from fake_engine import FakeEngine
from memorykit import quick
name = sys.argv[2]
with quick(sys.argv[1], engine=FakeEngine(facts={})) as memory:
    for n in range(30):
        result = memory.add(f"{name}word{n} was said by {name}", user_id=name, infer=n % 10 == 0)
        assert result.pending == 0, result
        print(f"{name}word{n}", flush=True)
"""


def test_a_reader_sees_every_acknowledged_write_of_two_writers(tmp_path):
    path = tmp_path / "a.db"
    with quick(path) as reader:
        reader.search("nothing yet")
        writers = [child(SAYER, path, name) for name in ("ana", "bob")]
        for n in range(30):
            for writer, name in zip(writers, ("ana", "bob"), strict=True):
                said = writer.stdout.readline().strip()
                assert said == f"{name}word{n}", writer.communicate()
                found = reader.search(said, user_id=name, top_k=1)
                assert texts(found) == [f"{said} was said by {name}"]
        for writer in writers:
            finished(writer)
        assert len(reader.get_all()) == len(reader.index) == 60
        assert reader.pending() == [] and reader.doctor()["problems"] == []


CHANGES = """
import sys
from memorykit import quick
with quick(sys.argv[1]) as memory:
    memory.update(sys.argv[2], "I live in Bergen")
    memory.erase(sys.argv[3])
"""


def test_an_update_and_a_deletion_by_another_process_are_seen(tmp_path):
    path = tmp_path / "a.db"
    with quick(path) as reader:
        first, second = reader.add(["I live in Oslo", "I have a cat"], infer=False)
        assert len(reader.search("Oslo cat")) == 2
        finished(child(CHANGES, path, first.id, second.id))
        assert texts(reader.search("cat Oslo Bergen")) == ["I live in Bergen"]


# Holds the work lock inside the model until it is told to go on.
WORKER = """
import sys
from fake_engine import FakeEngine
from memorykit import quick
class Waiting(FakeEngine):
    def generate(self, *args, **more):
        print("working", flush=True)
        sys.stdin.readline()
        return super().generate(*args, **more)
engine = Waiting(facts={"I live in Oslo.": "{} lives in Oslo"})
with quick(sys.argv[1], engine=engine) as memory:
    print([c.memory for c in memory.process_pending()], flush=True)
"""


def test_only_one_process_works_pending_pieces_off(tmp_path, monkeypatch):
    monkeypatch.setattr("edgemem.memory._WORK_LOCK_S", 0.2)
    path = tmp_path / "a.db"
    broken = FakeEngine()
    broken.broken = True
    with quick(path, engine=broken) as memory:
        memory.add("I live in Oslo.")
        (piece,) = memory.pending()
        with memory.store.transaction() as tx:
            tx.fail_pending(piece.id, "due at once", None)
        asked = len(broken.prompts)

        worker = child(WORKER, path)
        assert worker.stdout is not None and worker.stdin is not None
        assert worker.stdout.readline() == "working\n"
        result = memory.add("I have a cat.")  # stored at once, extracted from later
        assert (result.pending, texts(result)) == (1, ["I have a cat."])
        assert len(broken.prompts) == asked
        assert len(memory.search("cat Oslo")) == 2

        out, err = worker.communicate("\n")
        assert out == "['User lives in Oslo']\n", err
        broken.broken = False
        assert memory.process_pending().pending == 0
        assert texts(memory.get_all(filters={"kind": "fact"})) == ["User lives in Oslo"]


FIRST = """
import sys
from memorykit import BagOfWords, quick
from edgemem.errors import DimensionMismatch
sys.stdin.readline()
try:
    quick(sys.argv[1], embedder=BagOfWords(64, sys.argv[2])).add("x", infer=False)
    print("stored")
except DimensionMismatch:
    print("refused")
"""


def test_of_two_first_adds_with_different_embedders_one_is_refused(tmp_path):
    processes = [child(FIRST, tmp_path / "a.db", model) for model in ("first@1", "second@2")]
    go(*processes)
    assert sorted(finished(p) for p in processes) == ["refused\n", "stored\n"]
    with quick(tmp_path / "a.db") as memory:
        assert memory.store.counts()["vectors"] == 1
