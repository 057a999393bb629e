"""Erase: afterwards no byte of it is left in any of the store's files."""

import random
import time
from contextlib import closing

import pytest
from storekit import ADA, T0, T1, add, child, finished, indexed, memory, turn, unit

from edgemem.errors import StoreLocked
from edgemem.results import Scope
from edgemem.store import Store, database, schema

MARK = "Quetzalcoatlus"
PORTER = "quetzalcoatlu"  # what the full-text index makes of it
DIM = 64


@pytest.fixture
def store(tmp_path):
    with Store.open(tmp_path / "a.db") as opened:
        yield opened


def traces(store, *needles):
    """The needles that a byte-wise look finds, by file: the store's own and every one beside it."""
    assert store.path is not None
    found: dict[str, list[bytes]] = {}
    for file in store.path.parent.iterdir():
        data = file.read_bytes().lower()
        hits = [needle for needle in needles if needle.lower() in data]
        if hits:
            found[file.name] = hits
    return found


def needles(vectors):
    """The text, its stem, the ids, and each vector's first, middle and last 16 bytes."""
    out = [MARK.encode(), PORTER.encode(), b"secret-"]
    for row in vectors:
        blob = row.tobytes()
        out += [blob[:16], blob[len(blob) // 2 :][:16], blob[-16:]]
    return out


def fill(store, vectors):
    """A secret among much else, in every table and every state a row can be in."""

    def of(drink, i):
        sources = (f"t{i}",) if drink == "tea" else ()
        text, vectors = f"{drink} {i} " * 60, unit(1000 + i, dim=DIM)
        return memory(f"m{i}", text, sources=sources, vectors=vectors)

    add(store, *(turn(f"t{i}", f"tea {i} " * 60) for i in range(30)))
    add(store, *(of("tea", i) for i in range(30)))
    add(
        store,
        turn("secret-turn", f"My dinosaur is a {MARK}", name=MARK, metadata={"x": MARK}),
        memory("secret-1", f"{MARK} lives here", sources=("secret-turn",), vectors=vectors[:1],
               metadata={"animal": MARK, "long": MARK * 2000}),
        memory("secret-2", f"The turn: {MARK}", kind="turn", sources=("secret-turn", "t0"),
               vectors=vectors[1:2]),
        memory("secret-3", f"{MARK} is big", sources=("secret-turn",), vectors=vectors[2:3]),
        memory("secret-4", f"{MARK} is old", sources=("secret-turn",), vectors=vectors[3:4]),
    )  # fmt: skip
    with store.transaction() as tx:
        tx.add_pending("extract", {"turns": [{"id": "secret-turn"}], "reply": MARK}, ADA)
        tx.add_pending("extract", {"turns": ["t1"]}, ADA)
        tx.update_memory("secret-3", memory="It is big", search_text="It is big",
                         vectors=vectors[4:5], updated_at=T1)  # fmt: skip
        tx.delete_memory("secret-4", T1)
        tx.invalidate("secret-2", T0)
    add(store, *(of("coffee", i) for i in range(30, 60)))


def test_no_byte_of_an_erased_memory_is_left_in_any_file(store):
    vectors = unit(7, count=5, dim=DIM)
    fill(store, vectors)
    before = traces(store, *needles(vectors))
    assert {n for hits in before.values() for n in hits} >= {MARK.encode(), PORTER.encode()}
    last = store.changes(0)
    assert store.erase(["secret-1"]) == ["secret-1", "secret-2", "secret-3", "secret-4"]
    assert traces(store, *needles(vectors)) == {}
    for id in ("secret-1", "secret-2", "secret-3", "secret-4"):
        assert store.history(id) == []
    assert store.turns(["secret-turn"]) == {}
    assert [p.payload for p in store.pending()] == [{"turns": ["t1"]}]
    assert store.get(["m0"])["m0"].sources == ("t0",)  # a turn that only another one cited
    assert len(store.list()) == 60
    assert len(indexed(store, "tea")) == len(indexed(store, "coffee")) == 30
    assert len(store.changes(0).labels) == 60
    assert store.check() == []
    (later,) = add(store, memory("later", vectors=unit(1, dim=DIM)))
    new = store.changes(store.generation() - 1)
    assert later > last.rowids.max() and new.labels[0] > last.labels.max()  # no number again
    store.close()
    assert traces(store, *needles(vectors)) == {}


def test_backup_copies_beside_the_file_go_too(store, monkeypatch):
    path = store.path
    assert path is not None
    vectors = unit(7, count=5, dim=DIM)
    fill(store, vectors)
    store.close()
    monkeypatch.setattr(schema, "MIGRATIONS", [*schema.MIGRATIONS, lambda connection: None])
    neighbour = path.with_name("b.db.v1.bak")
    neighbour.write_bytes(b"another store's")
    left_by_a_crash = path.with_name("a.db.v1.0123abcd.bak")
    left_by_a_crash.write_bytes(MARK.encode())
    with Store.open(path) as newer:
        assert f"a.db.v{len(schema.MIGRATIONS) - 1}.bak" in traces(newer, MARK.encode())
        newer.erase(["secret-3"])
        assert traces(newer, *needles(vectors)) == {}
    assert neighbour.read_bytes() == b"another store's"


def test_a_reset_leaves_no_byte_and_uses_no_number_again(store):
    vectors = unit(7, count=5, dim=DIM)
    fill(store, vectors)
    with store.transaction() as tx:
        tx.set_meta("summary", MARK)
        tx.set_meta("embedder_model", "minilm@1")
    last = store.changes(0)
    generation = store.generation()
    store.reset()
    assert traces(store, *needles(vectors), b"tea", b"coffee") == {}
    assert set(store.counts().values()) == {0}
    assert store.generation() == generation + 1
    assert (store.meta("embedder_model"), store.meta("embedder_dim")) == ("minilm@1", str(DIM))
    assert store.meta("summary") is None
    assert store.changes(generation).full
    add(store, memory("m1", vectors=unit(1, dim=DIM)))
    new = store.changes(generation + 1)
    assert not new.full
    assert new.rowids[0] > last.rowids.max()
    assert new.labels[0] > last.labels.max()
    assert store.check() == []


def test_ids_that_are_not_there_are_passed_over(store):
    add(store, memory("m1"))
    generation = store.generation()
    assert store.erase(["nobody", ""]) == []
    assert store.erase([]) == []
    assert store.generation() == generation
    assert store.erase(["nobody", "m1"]) == ["m1"]


def test_memories_without_sources_and_pending_work_by_memory_id(store):
    add(store, memory("m1"), memory("m10"))
    with store.transaction() as tx:
        tx.add_pending("embed", {"memory": "m1"}, ADA)
        tx.add_pending("embed", {"memory": "m10"}, ADA)
        tx.add_pending("embed", {"m1": [1]}, ADA)
    assert store.erase(["m1"]) == ["m1"]
    assert [p.payload for p in store.pending()] == [{"memory": "m10"}]


def ids(store):
    """All turns and all memories that are in the store, deleted ones too."""
    rows = list(store.export_rows())
    turns, memories = ({r["id"] for r in rows if r["type"] == type} for type in ("turn", "memory"))
    return turns, memories


def test_the_extent_of_an_erase_is_all_that_is_gone_after_it(store):
    fill(store, unit(7, count=5, dim=DIM))
    add(store, turn("asked", f"Is it a {MARK}?"), turn("answered", "Yes.", role="assistant"))
    add(store, turn("bo's", "Hello", scope=Scope(user_id="bo")))
    before, generation = ids(store), store.generation()
    turns, memories = store.erase_extent(["secret-1", "nobody"])
    assert (ids(store), store.generation()) == (before, generation)
    assert set(turns) == {"secret-turn", "asked", "answered"}
    assert memories == ["secret-1", "secret-2", "secret-3", "secret-4"]  # -4 is deleted
    assert store.erase(["secret-1", "nobody"]) == memories
    after = ids(store)
    assert (before[0] - after[0], before[1] - after[1]) == (set(turns), set(memories))
    assert store.erase_extent(["nobody"]) == ([], [])


HOLDS_A_READ = """
import sys, sqlite3
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN")
connection.execute("SELECT count(*) FROM memories").fetchone()
print("reading", flush=True)
sys.stdin.read()
"""


def test_a_reader_that_stays_makes_it_wait_and_the_next_open_cleans_up(tmp_path):
    path = tmp_path / "a.db"
    with Store.open(path, busy_timeout_s=0.1) as store:
        add(store, memory("m1", MARK), memory("m2"))
        reader = child(HOLDS_A_READ, path)
        assert reader.stdout
        assert reader.stdout.readline() == "reading\n"
        with pytest.raises(StoreLocked) as caught:
            store.erase(["m1"])
        assert "the rows are erased" in str(caught.value)
        assert "cleaned when the store is next opened" in str(caught.value)
        assert store.get(["m1"], include_deleted=True) == {}
        add(store, memory("m3"))  # the store goes on working
    with Store.open(path, busy_timeout_s=0.1) as store:  # still held: it opens all the same
        assert store.meta("scrub_wanted") is not None
    finished(reader)
    with Store.open(path) as store:
        assert store.meta("scrub_wanted") is None
        assert [i.id for i in store.list()] == ["m2", "m3"]
        assert traces(store, MARK.encode(), PORTER.encode()) == {}


def test_closing_waits_for_no_reader(tmp_path):
    store = Store.open(tmp_path / "a.db", busy_timeout_s=60)
    add(store, memory("m1"))
    with store.transaction() as tx:
        tx.set_meta("scrub_wanted", "as a sync leaves it")
    with closing(database.connect(str(store.path), 0.1, None)) as reader:
        reader.execute("BEGIN")
        assert reader.execute("SELECT count(*) FROM memories").fetchall() == [(1,)]
        add(store, memory("m2"))
        began = time.monotonic()
        store.close()
        assert time.monotonic() - began < 30


def test_closing_does_not_repeat_a_scrub_that_failed(tmp_path, monkeypatch):
    tried: list[float] = []

    def refused(connection, path, timeout_s):
        tried.append(timeout_s)
        raise StoreLocked("another process is reading the store")

    with Store.open(tmp_path / "a.db", busy_timeout_s=0.1) as store:
        add(store, memory("m1"))
        monkeypatch.setattr(database, "scrub", refused)
        with pytest.raises(StoreLocked):
            store.erase(["m1"])
    assert tried == [0.1]


@pytest.mark.parametrize("seed", range(6))
def test_random_histories_leave_no_trace(tmp_path, seed):
    """Whatever happened to the pages before: updates, deletions and growth around the secret."""
    choose = random.Random(seed)
    secret = "".join(choose.choices("bcdfghjklmnp", k=14))
    with Store.open(tmp_path / "a.db") as store:
        add(store, turn("ts", secret * choose.choice((1, 2000))))
        for i in range(40):
            text = (
                f"{secret} {i}" if choose.random() < 0.4 else f"plain {i} " * choose.randint(1, 99)
            )
            sources = ("ts",) if secret in text else ()
            add(store, memory(f"m{i}", text, sources=sources, vectors=unit(i, dim=DIM)))
            victim = f"m{choose.randint(0, i)}"
            if choose.random() < 0.5 and store.get([victim]):
                with store.transaction() as tx:
                    if choose.random() < 0.5:
                        tx.delete_memory(victim, T1)
                    else:
                        tx.update_memory(victim, memory="calm", search_text="calm",
                                         vectors=unit(500 + i, dim=DIM), updated_at=T1)  # fmt: skip
        cited = store.select("SELECT count(*) FROM memory_sources")[0][0]
        first = next(i for i in range(40) if (secret in store.history(f"m{i}")[0]["new_memory"]))
        assert len(store.erase([f"m{first}"])) == cited
        assert traces(store, secret.encode()) == {}
        assert store.check() == []


def test_turns_that_no_memory_cites_go_with_what_they_may_quote():
    one, two = Scope(run_id="one"), Scope(run_id="two")
    helper, hers = Scope(agent_id="x"), Scope(user_id="ana", agent_id="x")
    with Store.open(":memory:") as store:
        for scope, id in ((one, "one"), (two, "two"), (helper, "helper"), (hers, "hers")):
            add(store, turn(f"answer-{id}", role="assistant", scope=scope))
        add(store, memory("m1", scope=one), memory("m2", scope=hers))
        store.erase(["m1"])
        left = ["answer-two", "answer-helper", "answer-hers"]
        assert sorted(store.turns([*left, "answer-one"])) == sorted(left)
        store.erase(["m2"])  # a search of agent x sees it
        assert list(store.turns(left)) == ["answer-two"]
