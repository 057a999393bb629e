"""Export and import, of a store and through Memory: what goes out comes back exactly, whole or bit
by bit."""

import io
import json
from contextlib import nullcontext

import pytest
from fake_engine import FakeEngine
from imagekit import drawn, saved
from memorykit import BagOfWords, quick, texts
from storekit import ADA, FAR_AHEAD, T0, T1, T2, add, indexed, memory, turn, unit, vectors_by_length

from edgemem import vault as vaults
from edgemem.errors import InputError, StoreFull, StoreLocked
from edgemem.results import Scope
from edgemem.store import Store
from edgemem.store.receipts import add_mark
from edgemem.store.rows import import_rows

BATCH = 16


@pytest.fixture(autouse=True)
def small_batches(monkeypatch):
    monkeypatch.setattr("edgemem.store.rows.BATCH", BATCH)


@pytest.fixture
def full(tmp_path):
    """A store with a row of every kind in every state."""
    with Store.open(tmp_path / "full.db") as store:
        add(
            store,
            turn("t1", "I live in Oslo\n\tx \u2028 \U0001f375", name="Ada", metadata={"a": [1.5]}),
            turn("t2", "", scope=Scope(), role="assistant"),
            memory("m1", sources=("t2", "t1"), metadata={"n": None, "é": {"x": [True, 1e300]}}),
            memory("m2", kind="turn", scope=Scope("b", "c", "d"), search_text="other words"),
            memory("m3", valid_from=T0, valid_to=T1, expires_at=FAR_AHEAD),
            memory("gone", "Ada likes secrets", sources=("t1",)),
        )
        with store.transaction() as tx:
            tx.update_memory("m1", memory="b", search_text="b", vectors=unit(1), updated_at=T1)
            tx.delete_memory("gone", T2)
            tx.invalidate("m2", T2)
            failing = tx.add_pending("extract", {"turns": ["t1"], "reply": "{"}, ADA)
            tx.add_pending("embed", {}, Scope())
            tx.fail_pending(failing, "again", T2)
            add_mark(tx, pattern="secrets")
        yield store


def exported(store):
    return [json.dumps(row, ensure_ascii=False) for row in store.export_rows()]


def test_an_export_of_an_import_equals_the_export(full, tmp_path):
    lines = exported(full)
    with Store.open(tmp_path / "copy.db") as copy:
        new = import_rows(copy.transaction, map(json.loads, lines), vectors_by_length)
        assert exported(copy) == lines
        stored = {"turn": 2, "memory": 4, "history": 7, "pending": 2, "never_send": 1}
        assert new == {**stored, "relation": 0, "image": 0}
        assert copy.list(include_invalid=True) == full.list(include_invalid=True)
        assert copy.get(["gone"], include_deleted=True) == full.get(["gone"], include_deleted=True)
        assert copy.history("m1") == full.history("m1")
        assert copy.check() == []
        assert indexed(copy, "other") != []
        assert indexed(copy, "secrets") == []
        assert len(copy.changes(0).labels) == 3


def test_a_deleted_memory_is_never_embedded(full):
    asked: list[str] = []

    def embed(texts):
        asked.extend(texts)
        return vectors_by_length(texts)

    with Store.open(":memory:") as copy:
        import_rows(copy.transaction, full.export_rows(), embed)
    assert asked == ["b", "other words", "Ada likes tea"]  # their search texts


def test_an_import_may_be_stopped_anywhere_and_run_again(full):
    lines = exported(full)
    for stop in range(len(lines) + 1):
        with Store.open(":memory:") as copy:
            import_rows(copy.transaction, map(json.loads, lines[:stop]), vectors_by_length)
            import_rows(copy.transaction, map(json.loads, lines), vectors_by_length)
            assert exported(copy) == lines
            generation = copy.generation()
            again = import_rows(copy.transaction, map(json.loads, lines), vectors_by_length)
            assert set(again.values()) == {0}
            assert copy.generation() == generation


def test_batches_that_were_stored_before_an_error_stay(full):
    def rows():
        for i in range(BATCH + 10):
            yield {"type": "turn", "id": f"x{i}", "role": "user", "content": "", "timestamp": T0,
                   "created_at": T0}  # fmt: skip
        raise OSError("the disk went away")

    with pytest.raises(OSError, match="went away"):
        import_rows(full.transaction, rows(), vectors_by_length)
    assert full.counts()["turns"] == 2 + BATCH


def test_existing_rows_win_over_imported_ones():
    with Store.open(":memory:") as store:
        add(store, memory("m1", "mine"))
        row = next(r for r in store.export_rows() if r["type"] == "memory")
        import_rows(
            store.transaction, [{**row, "memory": "theirs"}, {**row, "id": "m2"}], vectors_by_length
        )
        assert [i.memory for i in store.list()] == ["mine", "mine"]


def test_an_embedder_that_gives_too_few_vectors_is_refused(full):
    with Store.open(":memory:") as store:
        with pytest.raises(ValueError, match="gave 0 arrays for 3 texts"):
            import_rows(store.transaction, full.export_rows(), lambda texts: [])
        assert store.counts()["memories"] == 0


def test_an_export_is_one_snapshot_and_blocks_no_writer(full):
    lines = exported(full)
    rows = full.export_rows()
    first = next(rows)
    add(full, turn("later"), memory("later"))
    assert [json.dumps(r, ensure_ascii=False) for r in [first, *rows]] == lines


def test_an_export_of_a_store_in_memory_blocks_no_writer_either():
    with Store.open(":memory:") as store:
        add(store, turn("first"), memory("first"))
        rows = store.export_rows()
        found = [next(rows)]
        add(store, turn("later"), memory("later"))
        found += rows
        assert "later" not in {row["id"] for row in found}


def test_an_erase_during_an_export_is_done_but_says_the_file_is_not_scrubbed(
    tmp_path,
):
    with Store.open(tmp_path / "a.db", busy_timeout_s=0.1) as store:
        add(store, memory("m1"), memory("m2"))
        rows = store.export_rows()
        next(rows)
        with pytest.raises(StoreLocked, match=r"rows are erased .* next opened"):
            store.erase(["m1"])
        assert [i.id for i in store.list()] == ["m2"]
        rows.close()
        assert store.erase([]) == []
        assert store.meta("scrub_wanted") is None


def test_what_is_erased_while_an_import_goes_on_stays_erased(tmp_path):
    with Store.open(":memory:") as source:
        add(source, memory("secret", "my pin is 987654321"))
        add(source, *(memory(f"m{n}") for n in range(BATCH)))
        rows = list(source.export_rows())
    path = tmp_path / "a.db"
    with Store.open(path) as store, Store.open(path) as other:
        erased: list[str] = []

        def erase_first(texts):
            if store.get(["secret"]):  # stored with the first batch
                erased.extend(other.erase(["secret"]))
            return vectors_by_length(texts)

        new = import_rows(store.transaction, rows, erase_first)
        assert erased == ["secret"]
        assert store.history("secret") == [] and new["history"] == BATCH
        assert b"987654321" not in path.read_bytes()

        def erase_known(texts):
            other.erase(["m1"])
            return vectors_by_length(texts)

        with Store.open(":memory:") as source:
            add(source, memory("m1"), memory("new"))
            assert import_rows(store.transaction, source.export_rows(), erase_known)["memory"] == 1
        assert not store.get(["m1"]) and store.check() == []


def test_two_may_import_the_same_at_once():
    with Store.open(":memory:") as source, Store.open(":memory:") as store:
        add(source, memory("m1"), turn("t1"))
        rows = list(source.export_rows())

        def meanwhile(texts):
            assert import_rows(store.transaction, rows, vectors_by_length)["memory"] == 1
            return vectors_by_length(texts)

        assert sum(import_rows(store.transaction, rows, meanwhile).values()) == 0
        assert exported(store) == exported(source)


# -- through Memory ----------------------------------------------------------------------------


def written(memory):
    out = io.StringIO()
    memory.export_jsonl(out)
    return out.getvalue()


@pytest.fixture
def rich():
    """A store with everything in it: facts, changes, deletions, other scripts, pending work."""
    known = {"I live in Oslo.": "{} lives in Oslo", "I have a cat.": "{} has a cat"}
    engine = FakeEngine(facts=known)
    with quick(engine=engine) as memory:
        memory.add(["I live in Oslo.", "I have a cat."], user_id="ana", timestamp="2024-05-01T10Z")
        first, second, *_ = memory.get_all()
        memory.update(
            first.id, "I live in Bergen. 我住在卑尔根 🏔\u2028", metadata={"a": [1.5, None]}
        )
        memory.delete(second.id)
        memory.add("x" * 3000 + " \\u0000 is no NUL", run_id="r", expires_at=9e9, infer=False)
        engine.broken = True
        memory.add("I swim on Mondays.", agent_id="bot")
        yield memory


def test_export_of_an_import_of_an_export_equals_it(rich, tmp_path):
    file = tmp_path / "out.jsonl"
    assert rich.export_jsonl(file) == len(file.read_text(encoding="utf-8").split("\n")) - 1
    assert file.read_text(encoding="utf-8") == written(rich)
    assert file.stat().st_mode & 0o077 == 0  # as private as the store
    with quick(tmp_path / "b.db") as copy:
        lines: list[int] = []
        count = copy.import_jsonl(str(file), on_progress=lines.append)
        assert lines == list(range(1, count + 1))
        assert written(copy) == written(rich)
        assert texts(copy.search("Bergen", explain=True)) == texts(rich.search("Bergen"))
        assert [p.payload for p in copy.pending()] == [p.payload for p in rich.pending()]
        for item in rich.get_all():
            assert copy.get(item.id) == item and copy.history(item.id) == rich.history(item.id)
        assert copy.doctor()["problems"] == []
        # A second time nothing is new.
        assert copy.import_jsonl(io.StringIO(written(rich))) == 0
        assert written(copy) == written(rich)


def test_an_export_of_one_user_has_all_of_theirs_and_nothing_of_others(rich, tmp_path):
    rich.add("Bob keeps bees.", user_id="bob", images=[saved(drawn())], infer=False)
    rich.add("Ana's garden.", user_id="ana", images=[saved(drawn(seed=1))], infer=False)
    file = tmp_path / "ana.jsonl"
    rich.export_jsonl(file, user_id="ana")
    assert "bees" not in file.read_text(encoding="utf-8")
    with quick(tmp_path / "b.db") as copy:
        copy.import_jsonl(file)
        mine = rich.get_all(user_id="ana")
        assert copy.get_all() == mine
        assert [copy.history(item.id) for item in mine] == [rich.history(item.id) for item in mine]
        assert copy.store.counts()["images"] == 1


def test_an_older_export_brings_back_nothing_that_was_erased():
    with quick() as memory:
        pin = memory.add(["My PIN is 4711.", "I like tea."], user_id="ana", infer="later")[0]
        memory.add("I have a cat.", user_id="ana", infer=False)
        before = written(memory)
        memory.erase(pin.id)
        (piece,) = memory.pending()
        assert memory.import_jsonl(io.StringIO(before)) == 0
        assert texts(memory.get_all()) == ["I like tea.", "I have a cat."]
        assert memory.doctor(erased=True)["problems"] == []
        memory.store._writer.execute("DELETE FROM pending")
        assert memory.import_jsonl(io.StringIO(before)) == 1
        assert [left.payload for left in memory.pending()] == [piece.payload]
        assert memory.doctor(erased=True)["erased"]["problems"] == []


def test_an_older_export_undoes_no_edit_and_brings_back_no_finished_work():
    with quick(engine=FakeEngine(facts={"I live in Oslo.": "{} lives in Oslo"})) as memory:
        told = memory.add("I live in Oslo.", user_id="ana", infer="later")
        waiting = written(memory)
        memory.take_facts(told)
        before = written(memory)
        (fact,) = memory.get_all(filters={"kind": "fact"})
        memory.update(fact.id, "User lives in Paris")
        related = [(r.source, r.destination) for r in memory.relations(user_id="ana")]
        assert memory.import_jsonl(io.StringIO(before)) == 0
        assert [(r.source, r.destination) for r in memory.relations(user_id="ana")] == related
        assert memory.import_jsonl(io.StringIO(waiting)) == 0 and memory.pending() == []
        memory.delete(told[0].id)
        memory.delete(fact.id)
        assert memory.import_jsonl(io.StringIO(waiting)) == 0 and memory.pending() == []


def test_an_import_makes_vectors_of_its_own_embedder(rich):
    with quick(embedder=BagOfWords(32, "other@2")) as copy:
        copy.import_jsonl(io.StringIO(written(rich)))
        assert copy.doctor()["embedder"] == "other@2" and copy.doctor()["problems"] == []
        assert copy.search("Bergen")[0].memory.startswith("I live in Bergen")


TURN = {"type": "turn", "id": "t", "role": "user", "content": "x", "metadata": {},
        "timestamp": T0, "created_at": T0}  # fmt: skip
FACT = {"type": "memory", "id": "m", "kind": "fact", "memory": "x", "search_text": "x",
        "created_at": T0, "updated_at": T0}  # fmt: skip
RELATION = {"type": "relation", "uid": "u", "memory_id": "m", "label": "knows", "source": "Ana",
            "source_type": "person", "target": "Bo", "target_type": "person"}  # fmt: skip
PENDING = {"type": "pending", "uid": "u", "task": "extract", "payload": {"turns": []},
           "created_at": T0}  # fmt: skip


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("not JSON", "line 2 is no JSON"),
        ("[1]", "line 2 is no JSON object"),
        ("[" * 100_000, "line 2 is no JSON"),
        ({}, "row 2 of the import has the type None, allowed are turn, memory, history, pending"),
        ({**TURN, "type": "video"}, "type 'video'"),
        ({**TURN, "timestamp": "soon"}, "line 2: timestamp is 'soon'"),
        ({**TURN, "content": "a\0b"}, "line 2 holds a NUL character"),
        ({**TURN, "content": "\ud800"}, "surrogate"),
        ({**TURN, "metadata": {"a": float("nan")}}, "metadata"),
        ({**TURN, "metadata": {"\0": 1}}, "NUL"),
        ({**PENDING, "payload": {}}, "line 2: .*no list of turn ids"),
        ({**PENDING, "payload": {"turns": 5}}, "line 2: .*no list of turn ids"),
        ({**PENDING, "attempts": 10**30}, "no count in 'attempts'"),
        ({**FACT, "memory": 5}, r"\(memory\) has no text in 'memory'"),
        ({**FACT, "user_id": 5}, r"\(memory\) has neither text nor null in 'user_id'"),
        ({**FACT, "metadata": []}, r"\(memory\) has no object in 'metadata'"),
        ({**FACT, "sources": "t1"}, r"\(memory\) has no list of turn ids in 'sources'"),
        ({**FACT, "kind": "song"}, "the kind 'song', allowed are fact, turn, summary, image"),
        ({**RELATION, "aliases": {"source": 5}}, r"\(relation\) has .*aliases that are no lists"),
        ({**RELATION, "aliases": {"target": "Bob"}}, "aliases that are no lists of texts"),
        ({**FACT, "vector": [1]}, r"\(memory\) has the unknown fields \['vector'\]"),
        ({"type": "history", "id": "h", "memory_id": "m", "event": "ADD", "is_deleted": -1},
         r"\(history\) has no count in 'is_deleted'"),
    ],
    ids=lambda value: str(value)[:60],
)  # fmt: skip
def test_a_line_that_is_none_of_an_export_is_named(line, message):
    second = line if isinstance(line, str) else json.dumps(line)
    with quick() as memory:
        with pytest.raises(InputError, match=message):
            memory.import_jsonl([json.dumps({**TURN, "id": "first"}), second])
        assert memory.store.counts()["turns"] == 0
        with pytest.raises(InputError, match="row 1 of the import is str, not an object"):
            import_rows(memory.store.transaction, ["text"], vectors_by_length)


def test_times_are_brought_into_the_stores_form():
    with quick() as memory:
        memory.import_jsonl([json.dumps({**TURN, "timestamp": "2024-05-01T12:00+02:00"})])
        assert memory.store.turns(["t"])["t"].timestamp == "2024-05-01T10:00:00.000+00:00"


def test_a_byte_order_mark_is_no_part_of_the_first_line(tmp_path):
    (tmp_path / "a.jsonl").write_text(json.dumps(TURN), encoding="utf-8-sig")
    with quick() as memory:
        assert memory.import_jsonl(tmp_path / "a.jsonl") == 1


@pytest.mark.parametrize("name", ["none.jsonl", ".", "a\0b", "\ud800", "binary"])
def test_a_file_that_cannot_be_read_is_an_input_error(tmp_path, name):
    (tmp_path / "binary").write_bytes(bytes(range(256)))
    with quick() as memory, pytest.raises(InputError, match=r"give (a file of|another)"):
        memory.import_jsonl(f"{tmp_path}/{name}")


def test_a_failed_export_leaves_the_one_before_as_it_was(tmp_path, monkeypatch):
    file = tmp_path / "out.jsonl"
    with quick() as memory:
        memory.add("one", infer=False)
        memory.export_jsonl(file)
        before = file.read_text()
        memory.add("two", infer=False)

        def full(fd):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr("os.fsync", full)
        with pytest.raises(StoreFull, match=r"out\.jsonl \(No space left on device\)"):
            memory.export_jsonl(file)
        assert file.read_text() == before and list(tmp_path.iterdir()) == [file]
        with pytest.raises(StoreFull, match="check that its folder is there"):
            memory.export_jsonl(tmp_path / "nowhere" / "out.jsonl")
        with pytest.raises(StoreFull):
            memory.export_jsonl(tmp_path)


def test_a_sealed_export_of_another_vault_opens_without_a_terminal_and_counts_its_rows(
    tmp_path, run, empty_home, monkeypatch
):
    monkeypatch.setattr(vaults, "MEM_BYTES", 2**16)
    file = str(tmp_path / "out.sealed")
    with quick(tmp_path / "a.db", passphrase="seven wet herons") as opened:
        opened.add("I live in Oslo.", user_id="ada", infer=False)
        rows = opened.export_jsonl(file, sealed=True)
    counted = []
    monkeypatch.setattr(
        "edgemem.cli.output.progress",
        lambda _label, total: nullcontext(lambda n: counted.append((n, total))),
    )
    monkeypatch.setenv("EDGEMEM_PASSPHRASE", "another store's words")
    assert "in EDGEMEM_IMPORT_PASSPHRASE" in run("import", file, code=1).stderr
    monkeypatch.setenv("EDGEMEM_IMPORT_PASSPHRASE", "seven wet herons")
    assert f"{rows} rows imported" in run("import", file).stderr
    assert counted[-1] == (rows, rows)
    assert "I live in Oslo." in run("list", "--user-id", "ada").stdout
