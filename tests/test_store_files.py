"""The store's file: new, old, another program's, damaged, locked, full."""

import os
import random
import shutil
import sqlite3
import stat
from pathlib import Path, PurePosixPath, PureWindowsPath
from uuid import UUID

import numpy as np
import pytest
from storekit import ADA, add, child, finished, full_disk, indexed, memory, raised, raw, turn, unit

from edgemem.errors import (
    EdgememError,
    SchemaVersionError,
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreLocked,
)
from edgemem.store import Store, database, receipts, schema

FIXTURES = Path(__file__).parent / "fixtures"
CURRENT = len(schema.MIGRATIONS)


def test_a_new_file_has_the_settings_that_keep_it_safe(tmp_path):
    path = tmp_path / "new" / "folder" / "a.db"
    with Store.open(path) as store:
        assert store.path == path
        for connection in (store._writer, store._reader):
            for pragma, wanted in (
                ("journal_mode", "wal"), ("synchronous", 2), ("foreign_keys", 1),
                ("secure_delete", 1), ("temp_store", 2), ("application_id", 0x45444745),
                ("user_version", CURRENT), ("trusted_schema", 0),
            ):  # fmt: skip
                assert connection.execute(f"PRAGMA {pragma}").fetchone() == (wanted,), pragma
        if os.name == "posix":
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert not Path(f"{path}-wal").exists()


def test_opening_a_file_twice_keeps_the_first_ones_locks(tmp_path):
    """POSIX drops a process's locks on a file when any descriptor of it is closed."""
    path = tmp_path / "a.db"
    with Store.open(path) as store:
        add(store, memory("m1"))
        with store.transaction() as tx:
            tx.add_memory(memory("m2"))
            Store.open(path).close()
            script = (
                "import sys; from edgemem.store import Store; s = Store.open(sys.argv[1]);"
                "print(len(s.list())); s.close()"
            )
            assert finished(child(script, path)) == "1\n"
            assert Path(f"{path}-wal").exists()  # the other process was not the last one out
        assert [i.id for i in store.list()] == ["m1", "m2"]
        assert store.check() == []


def test_the_wal_lies_beside_the_file_and_not_beside_a_link_to_it(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link.db").symlink_to(tmp_path / "real" / "a.db")
    with Store.open(tmp_path / "link.db") as store:
        assert store.path == tmp_path / "real" / "a.db"


# --- versions ---------------------------------------------------------------------------------


@pytest.fixture
def v1(tmp_path):
    return Path(shutil.copy(FIXTURES / "store-v1.db", tmp_path / "store.db"))


def test_the_kept_file_of_schema_1_opens_and_reads(v1):
    with Store.open(v1) as store:
        assert store.check() == []
        assert [i.memory for i in store.list(include_invalid=True)] == [
            "Ada lives in Oslo", "Ada lives in Rome", "Ada likes coffee"
        ]  # fmt: skip
        fact = store.get(["fact-1"])["fact-1"]
        assert (fact.metadata, fact.sources) == ({"city": "Oslo"}, ("turn-1",))
        assert store.turns(["turn-1"])["turn-1"].content == "I moved to Oslo."
        assert [r["event"] for r in store.history("fact-4")] == ["ADD", "DELETE"]
        assert store.pending()[0].payload == {"turns": ["turn-1"]}
        assert store.meta("embedder_model") == "specimen@000000000000"
        assert indexed(store, "oslo") == [1]
        np.testing.assert_array_equal(store.changes(0).vectors, np.eye(4)[:3])
        add(store, memory("new", vectors=unit(1, dim=4)))
        assert store.erase(["fact-1"]) == ["fact-1"]


def test_the_kept_file_of_schema_3_opens_and_reads(tmp_path):
    path = Path(shutil.copy(FIXTURES / "store-v3.db", tmp_path / "store.db"))
    with sqlite3.connect(path) as db:
        assert db.execute("PRAGMA user_version").fetchone() == (3,)
        for table in sorted(frozenset().union(*schema.TABLES[:3]) - {"erased"}):
            assert db.execute(f"SELECT count(*) FROM {table}").fetchone() > (0,), table
        assert db.execute("SELECT memory FROM erased").fetchall() == [(3,)]
    db.close()
    with Store.open(path) as store:
        assert store.check() == []
        assert store.counts() == {
            "memories": 3, "facts": 1, "turn_memories": 2, "summaries": 0, "images": 0,
            "invalid": 0, "deleted": 0, "turns": 2, "vectors": 3, "token_vectors": 0,
            "entities": 0, "relations": 0, "history": 4,
            "pending": 1, "image_bytes": 0,
        }  # fmt: skip
        said = store.get(["said-1", "said-2", "fact-1"])
        assert [m.memory for m in said.values()] == [
            "I moved to Oslo.", "My card ends in 7.", "Ada lives in Oslo"
        ]  # fmt: skip
        assert [m.sources for m in said.values()] == [("turn-1",), ("turn-2",), ("turn-1",)]
        assert said["said-2"].metadata == {"never_send": True}
        assert [t.content for t in store.turns(["turn-1", "turn-2"]).values()] == [
            "I moved to Oslo.", "My card ends in 42."
        ]  # fmt: skip
        assert [r["event"] for r in store.history("said-2")] == ["ADD", "UPDATE"]
        assert indexed(store, "oslo") == [1, 4]
        np.testing.assert_array_equal(store.changes(0).vectors, np.eye(4)[[0, 3, 1]])
        (work,) = store.pending()
        assert work.payload == {"turns": ["turn-2"]}
        assert (work.attempts, work.last_error) == (1, "no JSON")
        first, second = receipts.receipts(store)
        assert (first.uid, first.outcome, first.cost) == ("call-1", "answered", 0.25)
        assert (first.attempts, first.seconds, first.completion_tokens) == (2, 1.5, 12)
        assert (second.uid, second.outcome, second.cost) == ("call-2", "sent", None)
        assert first.memory_ids == second.memory_ids == ("said-1", "fact-1")
        assert (first.tokens_before, first.tokens_after, first.sent_sha256) == (900, 450, "ab" * 32)
        assert [(m.scope.user_id, m.pattern) for m in receipts.marks(store)] == [
            ("carol", None), (None, "boat*")
        ]  # fmt: skip
        assert receipts.marked_texts(store) == ["My card ends in 42.", "My card ends in 7."]
        add(store, memory("new", vectors=unit(1, dim=4)))
        assert store.erase(["said-1"]) == ["said-1", "fact-1"]
        assert [r.memory_ids for r in receipts.receipts(store)] == [(), ()]


def add_a_table(connection):
    connection.execute("CREATE TABLE later (x INTEGER) STRICT")


@pytest.mark.parametrize("named", ["2024", "20240131", "cafe", "0123abcdef"])
def test_a_copy_that_the_user_made_is_no_leftover_of_an_upgrade(v1, monkeypatch, named):
    """The next upgrade had deleted it, and doctor had told to."""
    own = v1.with_name(f"store.db.v1.{named}.bak")
    own.write_bytes(b"the user's own")
    monkeypatch.setattr(schema, "MIGRATIONS", [*schema.MIGRATIONS, add_a_table])
    with Store.open(v1) as store:
        assert store.check() == []
        store.erase([store.list()[0].id])
    assert [file.name for file in v1.parent.glob("*.bak")] == [own.name]


def test_a_folder_that_is_named_as_a_copy_keeps_no_erase_from_its_end(v1):
    v1.with_name("store.db.v0.bak").mkdir()
    with Store.open(v1) as store:
        store.erase([store.list()[0].id])
        assert store.meta("scrub_wanted") is None


def test_the_half_copy_of_an_upgrade_is_known_even_if_its_random_digits_have_no_letter(
    v1, monkeypatch
):
    seen: list[list[str]] = []
    monkeypatch.setattr(database.uuid, "uuid4", lambda: UUID(int=0))
    monkeypatch.setattr(database.os, "replace", lambda *_: seen.append(database.left_behind(v1)))
    database.backup(v1, 1, None)
    assert [len(found) for found in seen] == [1]


def test_a_migration_keeps_a_copy_of_the_file_before_it(v1, monkeypatch):
    monkeypatch.setattr(schema, "MIGRATIONS", [*schema.MIGRATIONS, add_a_table, lambda c: None])
    v1.with_name("store.db.v1.0123abcd.bak").write_bytes(b"left by an upgrade that was killed")
    with Store.open(v1) as store:
        assert store._writer.execute("PRAGMA user_version").fetchone() == (CURRENT + 2,)
        assert len(store.list(include_invalid=True)) == 3
    assert [p.name for p in v1.parent.glob("*.bak")] == ["store.db.v1.bak"]
    old = sqlite3.connect(v1.parent / "store.db.v1.bak")
    assert old.execute("PRAGMA user_version").fetchone() == (1,)
    assert old.execute("SELECT count(*) FROM memories").fetchone() == (4,)
    assert old.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    old.close()
    monkeypatch.undo()
    with Store.open(v1.parent / "store.db.v1.bak") as store:
        assert store.check() == []


def test_a_migration_that_fails_changes_nothing(v1, monkeypatch):
    def breaks(connection):
        add_a_table(connection)
        connection.execute("INSERT INTO no_such_table VALUES (1)")

    monkeypatch.setattr(schema, "MIGRATIONS", [*schema.MIGRATIONS, breaks])
    with pytest.raises(StoreError):
        Store.open(v1)
    monkeypatch.undo()
    with Store.open(v1) as store:
        assert store._writer.execute("PRAGMA user_version").fetchone() == (CURRENT,)
        names = store._writer.execute("SELECT name FROM sqlite_master").fetchall()
        assert ("later",) not in names


def test_a_migration_without_room_for_its_copy_is_not_begun(v1, monkeypatch):
    def no_room(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(schema, "MIGRATIONS", [*schema.MIGRATIONS, add_a_table])
    monkeypatch.setattr(database.os, "replace", no_room)
    with pytest.raises(StoreFull, match=r"no backup copy .*store\.db\.v1\.bak.*No space left"):
        Store.open(v1)
    monkeypatch.undo()
    assert list(v1.parent.glob("*.bak")) == []
    with Store.open(v1) as store:
        assert store._writer.execute("PRAGMA user_version").fetchone() == (CURRENT,)


def test_a_newer_schema_is_refused_with_both_versions(v1):
    raw(v1, f"PRAGMA user_version = {CURRENT + 6}")
    before = v1.read_bytes()
    refused = rf"version {CURRENT + 6} .* versions up to {CURRENT}; upgrade"
    with pytest.raises(SchemaVersionError, match=refused):
        Store.open(v1)
    assert v1.read_bytes() == before


# --- not a store ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "told"),
    [(None, "another program"), (b"x", "no edgemem store"), (bytes(9000), "no edgemem store"),
     (b"# Shopping list\n" * 500, "no edgemem store")],
    ids=["another program's database", "a byte", "zeros", "a text"],
)  # fmt: skip
def test_what_is_no_store_is_refused_and_left_as_it_is(tmp_path, content, told):
    path = tmp_path / "list.txt"
    if content is None:
        raw(path, "CREATE TABLE bookmarks (url TEXT)")
        content = path.read_bytes()
    path.write_bytes(content)
    with pytest.raises(StoreCorrupt, match=told):
        Store.open(path)
    assert path.read_bytes() == content and list(tmp_path.iterdir()) == [path]


def test_an_empty_file_is_a_new_store(tmp_path):
    (tmp_path / "a.db").touch()
    with Store.open(tmp_path / "a.db") as store:
        assert store.list() == []


def test_a_place_that_cannot_be_written_says_so(tmp_path):
    (tmp_path / "file").touch()
    for place in (tmp_path, tmp_path / "file" / "a.db"):
        message = raised(lambda place=place: Store.open(place))
        assert str(place) in message
        assert "choose another place" in message
    for no_path in ("a\0b", "\ud800"):
        with pytest.raises(StoreError):
            Store.open(tmp_path / no_path)


def test_a_file_without_permission_says_so_to_root_too(tmp_path, monkeypatch):
    path = tmp_path / "a.db"
    Store.open(path).close()
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(StoreFull, match=r"may be read\).*choose another place"):
        Store.open(path)


def one_memory(path):
    with Store.open(path) as store:
        add(store, memory("m1"))
    return path


def check_that_it_is_only_read(path):
    before = sorted(path.parent.iterdir())
    with Store.open(path) as store:
        assert [item.id for item in store.list()] == ["m1"]
        assert [row["type"] for row in store.export_rows()] == ["memory", "history"]
        with (
            pytest.raises(StoreFull, match=r"cannot be written.*choose another place"),
            store.transaction() as tx,
        ):
            tx.add_memory(memory("m2"))
        (problem,) = store.check()
        assert f"{path} cannot be written" in problem
    assert sorted(path.parent.iterdir()) == before


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_file_or_folder_is_opened_for_reading(tmp_path):
    path = one_memory(tmp_path / "a.db")
    path.chmod(0o400)
    check_that_it_is_only_read(path)
    path.chmod(0o600)
    tmp_path.chmod(0o500)
    try:
        check_that_it_is_only_read(path)
    finally:
        tmp_path.chmod(0o700)


@pytest.mark.parametrize("read_only", ["a ü#%.db", "."])
def test_a_store_on_read_only_media_is_opened_for_reading(tmp_path, monkeypatch, read_only):
    path = one_memory(tmp_path / "a ü#%.db")
    refused = (tmp_path / read_only, os.W_OK)
    monkeypatch.setattr(os, "access", lambda place, mode: (Path(place), mode) != refused)
    check_that_it_is_only_read(path)


def test_what_the_log_of_a_read_only_file_holds_is_read_too(tmp_path, monkeypatch):
    with Store.open(tmp_path / "a.db") as writer:
        monkeypatch.setattr(os, "access", lambda _, mode: mode != os.W_OK)
        with Store.open(tmp_path / "a.db") as reader:
            for id in ("m1", "m2"):
                add(writer, memory(id))
                assert list(reader.get(["m1", "m2"]))[-1] == id


def test_on_a_full_disk_a_store_is_opened_for_reading(tmp_path):
    path = one_memory(tmp_path / "a.db")
    with full_disk(), Store.open(path) as store:
        assert [item.id for item in store.list()] == ["m1"]
        assert [row["type"] for row in store.export_rows()] == ["memory", "history"]
        assert store.check() == []
        with pytest.raises(StoreFull, match="cannot be written"):
            add(store, memory("m2"))
    with Store.open(path) as store:
        assert [item.id for item in store.list()] == ["m1"]


def test_a_full_disk_hides_nothing_that_the_log_holds(tmp_path):
    with Store.open(one_memory(tmp_path / "a.db")) as store:
        add(store, memory("m2"))
        for end in ("", "-wal"):  # as a killed program leaves them
            (tmp_path / f"b.db{end}").write_bytes((tmp_path / f"a.db{end}").read_bytes())
    with full_disk(), Store.open(tmp_path / "b.db") as store:
        assert [item.id for item in store.list()] == ["m1", "m2"]
        with pytest.raises(StoreFull, match="cannot be written"):
            add(store, memory("m3"))
    with Store.open(tmp_path / "b.db") as store:
        assert [item.id for item in store.list()] == ["m1", "m2"]


def test_an_older_schema_on_read_only_media_says_to_copy_it(v1, monkeypatch):
    before = v1.read_bytes()
    monkeypatch.setattr(os, "access", lambda _, mode: mode != os.W_OK)
    with pytest.raises(StoreError, match=r"has schema version 1, .* copy it to a folder that can"):
        Store.open(v1)
    assert v1.read_bytes() == before


# --- refusals while it is open ----------------------------------------------------------------


def test_a_full_disk_undoes_the_write_and_says_so(tmp_path):
    with Store.open(tmp_path / "a.db") as store:
        add(store, memory("m1"))
        pages = store._writer.execute("PRAGMA page_count").fetchone()[0]
        store._writer.execute(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(StoreFull, match="free some disk space"), store.transaction() as tx:
            for i in range(500):
                tx.add_memory(memory(f"x{i}", "text " * 200))
        store._writer.execute("PRAGMA max_page_count = 1000000")
        assert [i.id for i in store.list()] == ["m1"]
        assert store.check() == []
        add(store, memory("m2"))


def test_a_full_disk_that_the_caller_swallows_commits_nothing_later(tmp_path):
    with Store.open(tmp_path / "a.db") as store:
        pages = store._writer.execute("PRAGMA page_count").fetchone()[0]
        store._writer.execute(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(StoreError, match="failed earlier"), store.transaction() as tx:
            with pytest.raises(StoreFull):
                tx.add_memory(memory("big", "text " * 100_000))
            store._writer.execute("PRAGMA max_page_count = 1000000")
            tx.add_memory(memory("after"))
        assert store.list() == []


def test_a_write_that_is_not_permitted_is_store_full(tmp_path):
    with Store.open(tmp_path / "a.db") as store:
        store._writer.execute("PRAGMA query_only = ON")
        with pytest.raises(StoreFull, match="permissions"):
            add(store, memory("m1"))


def test_a_lock_that_is_held_too_long_is_store_locked(tmp_path):
    path = tmp_path / "a.db"
    with Store.open(path) as first, Store.open(path, busy_timeout_s=0.05) as second:
        with first.transaction() as tx:
            tx.add_memory(memory("m1"))
            with pytest.raises(StoreLocked, match="another process"):
                add(second, memory("m2"))
            assert second.list() == []  # reading goes on
        add(second, memory("m2"))


# --- damage -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    path = tmp_path_factory.mktemp("whole") / "a.db"
    with Store.open(path) as store:
        for i in range(60):
            add(
                store,
                turn(f"t{i}", f"turn number {i} about tea"),
                memory(f"m{i}", f"Ada likes tea number {i}", sources=(f"t{i}",),
                       metadata={"i": i}, expires_at="2999-01-01T00:00:00.000+00:00",
                       vectors=unit(i, dim=64)),
            )  # fmt: skip
        with store.transaction() as tx:
            tx.delete_memory("m3", "2024-05-01T10:00:00.000+00:00")
            tx.add_pending("extract", {"turns": ["t1"]}, ADA)
    return path


def use_everything(path):
    """Each call answers or raises one of our errors; anything else is a bug."""
    try:
        store = Store.open(path, busy_timeout_s=0.2)
    except EdgememError as exc:
        yield exc
        return
    with store:
        for call in (
            store.check,
            lambda: store.list(include_invalid=True),
            lambda: store.get([f"m{i}" for i in range(60)], include_deleted=True),
            lambda: store.turns([f"t{i}" for i in range(60)]),
            lambda: store.recent_turns(limit=100),
            lambda: indexed(store, "tea OR number OR ada"),
            lambda: store.changes(0),
            lambda: store.changes(5),
            lambda: store.history("m1"),
            lambda: store.pending(),
            store.counts,
            store.generation,
            lambda: list(store.export_rows()),
            lambda: add(store, turn("new"), memory("new", vectors=unit(1, dim=64))),
            lambda: store.erase(["m7"]),
        ):
            try:
                yield call()
            except EdgememError as exc:
                yield exc


@pytest.mark.parametrize("seed", range(60))
def test_flipped_bytes_give_an_answer_or_our_error(whole, tmp_path, seed):
    choose = random.Random(seed)
    data = bytearray(whole.read_bytes())
    page = 8192
    for _ in range(choose.choice((1, 3, 30))):
        # Half of them where the structure is: in the headers at the start of pages.
        at = choose.randrange(len(data) // page) * page + choose.randrange(
            choose.choice((60, page))
        )
        data[at] = choose.randrange(256)
    path = tmp_path / "a.db"
    path.write_bytes(data)
    list(use_everything(path))


@pytest.mark.parametrize("seed", range(20))
def test_a_truncated_file_gives_an_answer_or_our_error(whole, tmp_path, seed):
    data = whole.read_bytes()
    path = tmp_path / "a.db"
    path.write_bytes(data[: random.Random(seed).randrange(1, len(data))])
    assert any(isinstance(outcome, StoreError) or outcome for outcome in use_everything(path))


def test_every_damaged_header_byte_gives_an_answer_or_our_error(whole, tmp_path):
    data = whole.read_bytes()
    path = tmp_path / "a.db"
    for at in range(100):
        for file in tmp_path.iterdir():
            file.unlink()
        path.write_bytes(data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :])
        try:
            with Store.open(path, busy_timeout_s=0.2) as store:
                store.list()
        except EdgememError:
            pass


def test_a_row_that_sqlite_can_read_and_we_cannot_is_store_corrupt(whole, tmp_path):
    path = Path(shutil.copy(whole, tmp_path / "a.db"))
    raw(path, "UPDATE memories SET metadata = '[1' WHERE id = 'm1'",
        "UPDATE memories SET expires_at = 'soon' WHERE id = 'm2'",
        "UPDATE turns SET metadata = '[]' WHERE id = 't1'")  # fmt: skip
    with Store.open(path) as store:
        for call, message in (
            (lambda: store.get(["m1"]), "metadata of a memory is no JSON"),
            (lambda: store.changes(0), "'soon' is no time"),
            (lambda: store.turns(["t1"]), "metadata of a turn is no JSON object"),
        ):
            with pytest.raises(StoreCorrupt, match=message):
                call()
        assert store.get(["m5"])["m5"].metadata == {"i": 5}


# --- importing --------------------------------------------------------------------------------


def test_opening_a_store_that_exists_does_not_import_sqlite_utils(whole):
    script = (
        "import sys; from edgemem.store import Store; Store.open(sys.argv[1]).close();"
        "print('sqlite_utils' in sys.modules)"
    )
    assert finished(child(script, whole)) == "False\n"


def test_a_share_of_windows_is_a_path_to_sqlite_and_no_host():
    share = database.uri(PureWindowsPath(r"\\nas\home\Ana B\memory.db"), "mode=ro")
    assert share == "file:////nas/home/Ana%20B/memory.db?mode=ro"
    with pytest.raises(sqlite3.OperationalError, match="unable to open"):  # not "invalid authority"
        sqlite3.connect(share, uri=True)
    assert database.uri(PureWindowsPath(r"C:\a.db"), "mode=ro") == "file:///C:/a.db?mode=ro"
    assert database.uri(PurePosixPath("/a?b.db"), "mode=ro") == "file:///a%3Fb.db?mode=ro"


def test_an_sqlite_too_old_for_the_schema_says_which_is_needed():
    too_old = sqlite3.OperationalError('near "STRICT": syntax error')
    assert "3.37 or later" in str(database._translated(too_old, "a.db"))
    too_old = sqlite3.OperationalError("unknown table option: STRICT")
    assert "3.37 or later" in str(database._translated(too_old, "a.db"))
