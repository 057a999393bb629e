"""A writer that is killed at any instant loses nothing acknowledged and leaves nothing half done.

SIGKILL stands for the crash of a process. That a commit also survives the loss of power rests on
synchronous=FULL, which no test here can show. EDGEMEM_KILLS sets how many writers are killed.
"""

import json
import os
import random
import signal
import sqlite3
import sys
import threading
from pathlib import Path

import pytest
from memorykit import bytes_beside
from storekit import add, child, finished, indexed, memory

from edgemem import vault
from edgemem.cachefile import HALF_EXPORT, half_exports, replacing
from edgemem.pipeline.upkeep import export_jsonl
from edgemem.store import Store
from edgemem.store.erasures import erasures, verify

KILLS = int(os.environ.get("EDGEMEM_KILLS", "15"))


# Runs one script after another, each in a process of its own that has nothing left to import.
FORKS = """
import json, os, sys
import apsw, nacl, sqlite_utils, storekit
from edgemem.store import Store
for line in sys.stdin:
    script, sys.argv[1:], os.environ["EDGEMEM_HOME"] = json.loads(line)
    if pid := os.fork():
        print("died", os.waitpid(pid, 0)[1], flush=True)
        continue
    try:
        print(os.getpid(), flush=True)
        exec(script)
    except BaseException as exc:
        print("died of", repr(exc), flush=True)
    os._exit(1)
"""


@pytest.fixture(scope="module")
def start():
    """Starts a script with arguments; gives its process id, then its lines until it is killed."""
    forks = child(FORKS)
    assert forks.stdin is not None and forks.stdout is not None
    ask, told = forks.stdin, forks.stdout

    def started(script, *arguments):
        home = os.environ.get("EDGEMEM_HOME", "")
        ask.write(json.dumps([script, [str(each) for each in arguments], home]) + "\n")
        ask.flush()
        for line in told:
            _, died, status = line.partition("died ")  # it may have begun a line
            if died:
                assert status == f"{signal.SIGKILL:d}\n"
                return
            yield line
        raise AssertionError(forks.communicate()[1])

    yield started
    finished(forks)


# Each transaction: a turn and two memories, one deleted again or updated, pending work.
WRITER = """
import sys, uuid
from storekit import ADA, T1, memory, turn, unit
from edgemem.results import Entity
from edgemem.store import NewRelation, Store
lives = NewRelation(Entity("Ada", "person"), "lives_in", Entity("Oslo", "place"))
store = Store.open(sys.argv[1], busy_timeout_s=30)
print("ready", flush=True)
while True:
    n = "n" + uuid.uuid4().hex
    with store.transaction() as tx:
        tx.add_turn(turn("turn" + n, n + " " + "said " * 50))
        tx.add_memory(memory("fact" + n, n, sources=("turn" + n,), vectors=unit(1, 2)))
        tx.add_memory(memory("old" + n, "old" + n, sources=("turn" + n,)))
        tx.update_memory("fact" + n, memory=n + " new", search_text=n, vectors=None, updated_at=T1)
        tx.set_relations("fact" + n, [lives], 1)
        tx.delete_memory("old" + n, T1)
        tx.add_pending("extract", {"turns": ["turn" + n]}, ADA)
    print(n, flush=True)
"""

pytestmark = pytest.mark.skipif(os.name != "posix", reason="needs SIGKILL")


def written(store, n):
    """All of one transaction is there."""
    assert list(store.turns([f"turn{n}"])) == [f"turn{n}"]
    fact = store.get([f"fact{n}"])[f"fact{n}"]
    assert (fact.memory, fact.sources) == (f"{n} new", (f"turn{n}",))
    assert len(indexed(store, f'"{n}"')) == 1
    assert [r["event"] for r in store.history(f"fact{n}")] == ["ADD", "UPDATE"]
    assert [r["event"] for r in store.history(f"old{n}")] == ["ADD", "DELETE"]
    assert store.get([f"old{n}"]) == {} != store.get([f"old{n}"], include_deleted=True)


@pytest.fixture(params=["plain", "vault"])
def path(request, tmp_path, monkeypatch):
    """The place of a new store; of a vault, this process and its children find the key."""
    monkeypatch.setenv("EDGEMEM_HOME", str(tmp_path / "home"))
    file = tmp_path / "a.db"
    if request.param == "vault":
        vault.create(file, vault.new_key(), way="file")
    return file


def test_killed_writers_lose_nothing_acknowledged(path, start):
    choose = random.Random(os.urandom(8))
    acknowledged: list[str] = []
    kills = KILLS // 3 if vault.is_vault(path) else KILLS
    for number in range(kills):
        lines = start(WRITER, path)
        pid, ready = int(next(lines)), next(lines)
        assert ready == "ready\n"
        if number % 2:  # half of them die only after a first acknowledged write
            acknowledged.append(next(lines))
        # The delay is the instant of death, not a wait for anything.
        threading.Timer(choose.uniform(0, 0.15), os.kill, (pid, signal.SIGKILL)).start()
        acknowledged += lines

        with Store.open(path) as store:
            counts = store.counts()
            turns = counts["turns"]
            # No half operations: every transaction made exactly these.
            assert counts["memories"] == counts["deleted"] == counts["pending"] == turns
            assert counts["relations"] == turns
            assert (counts["vectors"], counts["history"]) == (2 * turns, 4 * turns)
            assert store.generation() == turns
            assert len(indexed(store, "new OR old OR n*")) == turns
            assert store.check() == []
    names = [line.strip() for line in acknowledged]
    assert len(names) == len(set(names)) >= kills // 2
    with Store.open(path) as store:
        stored = {t.id.removeprefix("turn") for t in store.recent_turns(limit=10**9)}
        assert set(names) <= stored
        assert len(stored) - len(names) <= kills  # at most one not yet acknowledged by each
        for n in stored:
            written(store, n)
    print(f"{kills} kills, {len(names)} acknowledged writes, none lost", file=sys.stderr)


OPENER = """
import signal, sys
from edgemem.store import Store
Store.open(sys.argv[1])
signal.pause()
"""


def test_an_opening_that_is_killed_leaves_a_file_that_opens(tmp_path, start):
    choose = random.Random(os.urandom(8))
    for i in range(max(3, KILLS // 3)):
        path = tmp_path / f"{i}.db"
        lines = start(OPENER, path)
        pid = int(next(lines))
        # The first opening makes the tables: about 0.03 s.
        threading.Timer(choose.uniform(0, 0.06), os.kill, (pid, signal.SIGKILL)).start()
        assert list(lines) == []
        with Store.open(path) as store:
            assert store.check() == []
            add(store, memory("m1"))


DIES_WHILE_SCRUBBING = """
import os, signal, sys
from edgemem.store import Store
def die(*args):
    os.kill(os.getpid(), signal.SIGKILL)
store = Store.open(sys.argv[1])
trace = lambda sql: die() if sql.startswith(sys.argv[2]) else None
if hasattr(store._writer, "_raw"):  # apsw's
    store._writer._raw.set_exec_trace(lambda _cursor, sql, _params: not trace(sql))
else:
    store._writer.set_trace_callback(trace)
store.erase(["secret"])
"""


@pytest.mark.parametrize(
    "statement", ["INSERT INTO memories_fts (memories_fts) VALUES ('rebuild')", "VACUUM",
                  "PRAGMA wal_checkpoint", "DELETE FROM meta"]
)  # fmt: skip
def test_an_erase_that_is_killed_is_finished_by_the_next_open(path, statement, start):
    with Store.open(path) as store:
        add(store, memory("secret", "xyzzyplugh " * 400), memory("kept"))
    assert len(list(start(DIES_WHILE_SCRUBBING, path, statement))) == 1  # it was killed
    with Store.open(path) as store:
        assert store.meta("scrub_wanted") is None
        assert [i.id for i in store.list()] == ["kept"]
        assert store.check() == []
        assert b"xyzzy" not in bytes_beside(path)


DIES_WHILE_EXPORTING = """
import os, signal, sys
from edgemem.pipeline.upkeep import export_jsonl
from edgemem.store import Store
with Store.open(sys.argv[1]) as store:
    os.fsync = lambda _fd: os.kill(os.getpid(), signal.SIGKILL)
    export_jsonl(store, sys.argv[2])
"""


def test_an_export_that_is_killed_is_named_and_goes_with_an_erase(path, start):
    with Store.open(path) as store:
        add(store, memory("secret", "xyzzyplugh"), memory("kept"))
        assert len(list(start(DIES_WHILE_EXPORTING, path, path.with_name("out.jsonl")))) == 1
        (left,) = path.parent.glob(".out.jsonl.*")
        assert b"xyzzyplugh" in left.read_bytes()
        assert [f"{left} is left of an export" in problem for problem in store.check()] == [True]
        store.erase(["secret"])
        assert store.check() == []
        assert not left.exists() and b"xyzzy" not in bytes_beside(path)


def test_an_export_removes_what_a_killed_one_has_left_under_its_name(tmp_path, start):
    path, out = tmp_path / "a.db", tmp_path / "elsewhere" / "out.jsonl"
    out.parent.mkdir()
    with Store.open(path) as store:
        add(store, memory("secret", "xyzzyplugh"))
        assert len(list(start(DIES_WHILE_EXPORTING, path, out))) == 1
        assert len(list(out.parent.iterdir())) == 1
        export_jsonl(store, out)
    assert list(out.parent.iterdir()) == [out]


def test_an_export_and_an_erase_remove_no_file_of_the_user_or_of_another_program(
    tmp_path,
):
    """An export had removed `.NAME.*.tmp`, and a folder had kept an erase from its end."""
    out = tmp_path / "out.jsonl"
    ends = ("mine.tmp", "k3Jq.tmp", "x_123456.tmp", "mine.edgemem.tmp", "K3JQ_123.edgemem.tmp")
    others = {out.with_name(f".out.jsonl.{end}") for end in ends}
    others |= {tmp_path / ".x.edgemem.tmp", tmp_path / ".more.jsonl.x_123456.tmp"}
    for file in others:
        file.write_text("not ours")
    folder = tmp_path / ".out.jsonl.x_123456.edgemem.tmp"
    folder.mkdir()
    with Store.open(tmp_path / "a.db") as store:
        add(store, memory("secret"))
        export_jsonl(store, out)
        store.erase(["secret"])
        assert store.meta("scrub_wanted") is None and store.check() == []
    assert {*others, folder} <= set(tmp_path.iterdir())


def test_what_an_earlier_version_left_of_an_export_is_found_after_an_erase(
    tmp_path,
):
    left = tmp_path / ".out.jsonl.x_123456.tmp"
    with Store.open(tmp_path / "a.db") as store:
        add(store, memory("told first", "xyzzyplugh"))
        export_jsonl(store, left)
        store.erase(["told first"])
        kept = {"receipt": erasures(store)[0].to_dict(), "results": [{"id": "told first"}]}
        (problem,) = verify(store, kept)["problems"]
        assert problem == f"{left.name} has the id of something that was erased among its bytes"


def test_an_export_under_way_is_not_taken_for_a_killed_one(tmp_path):
    out = tmp_path / "out.jsonl"
    with Store.open(tmp_path / "a.db") as store:
        add(store, memory("a"))
        with replacing(out, "w", suffix=HALF_EXPORT) as under_way:
            under_way.write("other")
            assert half_exports(tmp_path) == [] and store.check() == []
            export_jsonl(store, out)
        assert out.read_text() == "other"


def test_a_torn_write_ahead_log_loses_only_what_was_torn(tmp_path):
    path, copy = tmp_path / "a.db", tmp_path / "copy.db"
    with Store.open(path) as store:
        store._writer.execute("PRAGMA wal_autocheckpoint = 0")
        for i in range(5):
            add(store, memory(f"m{i}"))
        whole = Path(f"{path}-wal").read_bytes()
        main = path.read_bytes()
    for cut in random.Random(0).sample(range(len(whole)), 25):
        for name in ("copy.db", "copy.db-wal", "copy.db-shm"):
            (tmp_path / name).unlink(missing_ok=True)
        copy.write_bytes(main)
        Path(f"{copy}-wal").write_bytes(whole[:cut])
        with sqlite3.connect(copy) as raw:
            tables = raw.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        raw.close()
        with Store.open(copy) as opened:
            ids = [i.id for i in opened.list()]
            assert ids == [f"m{i}" for i in range(len(ids))]
            assert opened.generation() == len(ids)
            assert opened.check() == []
        assert tables == 0 or tables > 10
