"""Memory's methods and mem0's shapes, without a language model."""

import dataclasses
import io
import json
import threading
from datetime import UTC, datetime, timedelta, timezone
from functools import partial

import numpy as np
import pytest
from fake_engine import FakeEngine
from memorykit import CALLS, BagOfWords, Meanwhile, call, quick, texts

from edgemem import Memory
from edgemem.errors import DimensionMismatch, InputError, StoreError
from edgemem.runtime.engine import Engine
from edgemem.store.receipts import set_never_send


@pytest.fixture
def memory():
    return quick()


# -- adding ----------------------------------------------------------------------------------


def test_add_takes_a_string_a_dict_and_a_list(memory):
    one = memory.add("I live in Oslo", infer=False)
    two = memory.add({"role": "user", "content": "I have a cat"}, infer=False)
    three = memory.add(
        ["I cycle", {"content": "I swim"}, {"role": "assistant", "content": "Good for you"}],
        infer=False,
    )
    assert [texts(r) for r in (one, two, three)] == [
        ["I live in Oslo"], ["I have a cat"], ["I cycle", "I swim", "Good for you"]
    ]  # fmt: skip
    assert {c.event for c in (*one, *two, *three)} == {"ADD"}
    assert {c.kind for c in three} == {"turn"}


def test_results_are_frozen_sequences_in_mem0s_shape(memory):
    added = memory.add("I live in Oslo", user_id="ana", metadata={"city": "Oslo"}, infer=False)
    found = memory.search("Where is Oslo", user_id="ana")
    listed = memory.get_all(user_id="ana")
    for results in (added, found, listed):
        assert len(results) == 1 and results[0] is next(iter(results)) and results[:1]
        with pytest.raises(dataclasses.FrozenInstanceError):
            results.items = ()
        with pytest.raises(dataclasses.FrozenInstanceError):
            results[0].memory = "changed"
        out = results.to_dict()
        assert next(iter(out)) == "results" and json.loads(json.dumps(out)) == out
        row = out["results"][0]
        assert {"id", "memory", "kind", "metadata", "created_at", "updated_at"} <= set(row)
        assert (row["memory"], row["metadata"]) == ("I live in Oslo", {"city": "Oslo"})
    assert added.to_dict()["results"][0]["event"] == "ADD"
    assert 0 < found.to_dict()["results"][0]["score"] <= 1
    assert "parts" not in found.to_dict()["results"][0]
    explained = memory.search("Where is Oslo", user_id="ana", explain=True)
    (parts,) = (hit.parts for hit in explained)
    assert parts and explained.to_dict()["results"][0]["parts"] == parts
    assert explained[0].score == found[0].score == pytest.approx(sum(parts.values()))
    assert found.candidates == 1 and found.embed_ms > 0 and found.search_ms > 0
    assert listed.to_dict()["results"][0]["user_id"] == "ana"


def test_infer_false_stores_as_given_and_never_de_duplicates(memory, monkeypatch):
    monkeypatch.setattr(Engine, "load", lambda *a, **k: pytest.fail("a language model was loaded"))
    for _ in range(3):
        result = memory.add("  I like TEA,  twice\n", user_id="ana", infer=False)
        assert result.pending == 0
    assert texts(memory.get_all(user_id="ana")) == ["  I like TEA,  twice\n"] * 3
    assert memory.pending() == []


def test_a_message_keeps_its_name_role_metadata_and_own_time(memory):
    memory.add(
        [
            {"role": "user", "name": "Carla", "content": "I paint", "metadata": {"dia": "D1:1"}},
            {"role": "assistant", "name": "Mel", "content": "I run", "timestamp": "2023-05-08T00Z"},
        ],
        metadata={"file": 1, "dia": "none"},
        timestamp="2023-01-02T03:04:05Z",
        infer=False,
    )
    first, second = memory.get_all()
    assert (first.metadata, second.metadata) == (
        {"file": 1, "dia": "D1:1"}, {"file": 1, "dia": "none"}
    )  # fmt: skip
    assert first.valid_from == "2023-01-02T03:04:05.000+00:00"
    assert second.valid_from == "2023-05-08T00:00:00.000+00:00"
    (turn,) = memory.source_turns(first.id)
    assert (turn.name, turn.role, turn.content) == ("Carla", "user", "I paint")
    # The speaker's name and the month are words by which a turn is found.
    assert memory.search("What did Mel do in May 2023?", explain=True)[0].id == second.id


def test_an_apps_own_import_id_refuses_no_message(memory):
    told = [
        {"role": "user", "content": page, "metadata": {"import_id": "ab" * 16}}
        for page in ("the first page", "the second page")
    ]
    added = memory.add(told, user_id="ada", infer=False)
    added = (*added, *memory.add(told, user_id="ada", infer=False))
    assert len({change.id for change in added}) == 4
    assert [change.metadata for change in added] == [told[0]["metadata"]] * 4


def test_a_timestamp_may_be_naive_aware_or_an_epoch(memory):
    naive = datetime(2024, 5, 1, 12, 0)
    aware = datetime(2024, 5, 1, 12, 0, tzinfo=timezone(timedelta(hours=2)))
    for value in (naive, aware, "2024-05-01T12:00:00+02:00", aware.timestamp(), int(1e9)):
        memory.add("x", timestamp=value, infer=False)
    stored = [item.valid_from for item in memory.get_all()]
    local = naive.astimezone(UTC).isoformat(timespec="milliseconds")
    ten = "2024-05-01T10:00:00.000+00:00"
    assert stored == [local, ten, ten, ten, "2001-09-09T01:46:40.000+00:00"]


def test_system_and_recalled_messages_are_kept_but_not_found(memory):
    added = memory.add(
        [
            {"role": "system", "content": "You are kind"},
            {"role": "user", "content": "Where do I live?"},
            {"role": "assistant", "content": "You live in Oslo", "recalled": True},
        ],
        infer=False,
    )
    assert texts(added) == ["Where do I live?"]
    assert memory.store.counts()["turns"] == 3
    assert texts(memory.search("You are kind, you live in Oslo")) == ["Where do I live?"]


# -- scopes, filters, scores -----------------------------------------------------------------


def test_scopes_are_kept_apart_and_an_unknown_one_is_empty(memory):
    memory.add("tea for ana", user_id="ana", infer=False)
    memory.add("tea for bob", user_id="bob", agent_id="shop", run_id="r1", infer=False)
    assert texts(memory.search("tea", user_id="ana")) == ["tea for ana"]
    assert texts(memory.search("tea", agent_id="shop")) == ["tea for bob"]
    assert texts(memory.search("tea", user_id="bob", run_id="r1")) == ["tea for bob"]
    assert len(memory.search("tea")) == 2
    for scope in ({"user_id": "eve"}, {"user_id": "ana", "run_id": "r1"}):
        assert list(memory.search("tea", **scope)) == list(memory.get_all(**scope)) == []
        assert list(memory.delete_all(**scope)) == []


def test_threshold_leaves_out_lower_scores_and_top_k_the_rest(memory):
    memory.add(["green tea", "black tea and milk", "coffee"], infer=False)
    everything = memory.search("black tea")
    for hit in everything:
        kept = memory.search("black tea", threshold=hit.score)
        assert list(kept) == [other for other in everything if other.score >= hit.score]
    assert len(memory.search("black tea", threshold=0)) == 3
    assert len(memory.search("black tea", threshold=1)) == 0
    assert list(memory.search("black tea", top_k=2)) == list(everything[:2])
    assert texts(memory.get_all(top_k=2)) == ["green tea", "black tea and milk"]
    assert len(memory.get_all(top_k=0)) == 0 and len(memory.get_all(top_k=None)) == 3


# -- changing --------------------------------------------------------------------------------


def test_update_changes_what_is_found_and_keeps_the_old_text_in_history(memory):
    id = memory.add(
        {"role": "user", "name": "Ana", "content": "I live in Oslo"},
        metadata={"a": 1}, timestamp="2024-05-01T10:00Z", infer=False,
    )[0].id  # fmt: skip
    change = memory.update(id, "I live in Bergen")
    assert (change.event, change.memory) == ("UPDATE", "I live in Bergen")
    assert change.to_dict()["previous_memory"] == "I live in Oslo"
    assert memory.update(id, "I live in Tromsø", metadata={"b": 2}).metadata == {"b": 2}
    item = memory.get(id)
    assert item is not None and (item.memory, item.metadata) == ("I live in Tromsø", {"b": 2})
    assert memory.search("Oslo", explain=True)[0].parts["bm25"] == 0
    for word in ("Tromsø", "Ana", "May"):  # the speaker and the day stay words to find it by
        assert memory.search(word, explain=True)[0].parts["bm25"] > 0
    rows = memory.history(id)
    assert [(r["event"], r["old_memory"], r["new_memory"]) for r in rows] == [
        ("ADD", None, "I live in Oslo"),
        ("UPDATE", "I live in Oslo", "I live in Bergen"),
        ("UPDATE", "I live in Bergen", "I live in Tromsø"),
    ]
    assert {"id", "memory_id", "created_at", "updated_at", "is_deleted", "actor_id"} <= set(rows[0])


def test_new_metadata_beside_the_same_words_takes_no_fact_and_no_mark_away():
    with quick(engine=FakeEngine(facts={"I live in Oslo.": "{} lives in Oslo"})) as memory:
        turn = memory.add("I live in Oslo.", user_id="ana")[0]
        with memory.store.transaction() as tx:
            set_never_send(tx, turn.id, True)
        memory.update(turn.id, turn.memory, metadata={"topic": "home"})
        assert texts(memory.get_all()) == ["I live in Oslo.", "User lives in Oslo"]
        kept = memory.get(turn.id)
        assert kept is not None and kept.metadata == {"topic": "home", "never_send": True}


def test_a_mark_that_comes_while_new_words_are_embedded_stays():
    embedder = Meanwhile()
    with quick(embedder=embedder) as memory:
        turn = memory.add("I have diabetes", infer=False)[0]

        def mark():
            with memory.store.transaction() as tx:
                set_never_send(tx, turn.id, True)

        embedder.act = mark
        memory.update(turn.id, "I have type 1 diabetes", metadata={"topic": "health"})
        kept = memory.get(turn.id)
        assert kept is not None and kept.metadata == {"topic": "health", "never_send": True}


def test_delete_takes_out_of_answers_and_keeps_history(memory):
    id = memory.add("I live in Oslo", infer=False)[0].id
    change = memory.delete(id)
    told = change.event, change.memory, change.previous_memory
    assert told == ("DELETE", "I live in Oslo", None)
    assert memory.get(id) is None
    assert list(memory.search("Oslo")) == list(memory.get_all()) == []
    last = memory.history(id)[-1]
    assert (last["event"], last["old_memory"], last["is_deleted"]) == (
        "DELETE", "I live in Oslo", True
    )  # fmt: skip


def test_delete_all_wants_a_scope_and_empties_only_that(memory):
    _, two = memory.add(["one", "two"], user_id="ana", infer=False)
    memory.add("three", user_id="bob", infer=False)
    with memory.store.transaction() as tx:  # contradicted: it answers no more, and goes too
        tx.invalidate(two.id, "2024-06-01T10:00:00.000+00:00")
    with pytest.raises(InputError, match=r"user_id, agent_id or run_id; use reset\(\)"):
        memory.delete_all()
    gone = memory.delete_all(user_id="ana")
    assert [(c.event, c.memory) for c in gone] == [("DELETE", "one"), ("DELETE", "two")]
    assert texts(memory.get_all()) == ["three"]


@pytest.mark.parametrize("name", ["update", "delete", "erase", "source_turns"])
def test_an_unknown_id_is_named(memory, name):
    with pytest.raises(StoreError, match="no memory with the id 'id'; `edgemem list` shows"):
        call(memory, name)


def test_an_unknown_id_is_nothing_to_get_and_has_no_history(memory):
    assert memory.get("id") is None and memory.history("id") == []
    id = memory.add("one", infer=False)[0].id
    memory.delete(id)
    with pytest.raises(StoreError, match=id):
        memory.delete(id)


# -- opening and closing ---------------------------------------------------------------------


def test_what_was_added_is_there_another_day(tmp_path):
    path = tmp_path / "deep" / "er" / "a.db"
    with quick(path) as memory:
        memory.add("I live in Oslo", user_id="ana", infer=False)
    with quick(str(path)) as memory:
        assert texts(memory.search("Oslo", user_id="ana")) == ["I live in Oslo"]
    assert path.stat().st_mode & 0o077 == 0  # nobody else's business


def test_without_a_path_the_settings_say_where(tmp_path, monkeypatch):
    monkeypatch.setenv("EDGEMEM_HOME", str(tmp_path))
    monkeypatch.delenv("EDGEMEM_DB", raising=False)
    with quick(None) as memory:
        assert memory.store.path == tmp_path / "memory.db"


@pytest.mark.parametrize("path", [":memory:", "a.db"])
def test_closed_twice_is_closed_and_every_method_says_so(tmp_path, path):
    memory = quick(path if path == ":memory:" else tmp_path / path)
    memory.add("hello", user_id="ada", infer=False)
    assert not memory.closed
    memory.close()
    memory.close()
    assert memory.closed
    before = sorted(tmp_path.iterdir())
    public = {n for n in dir(Memory) if not n.startswith("_")}
    parts = ("engine", "embedder", "encoder", "token_embedder", "index", "judge")
    assert public - {"close", "closed", "plan", *parts} == set(CALLS)
    for name in CALLS:
        with pytest.raises(StoreError, match=r"the store .* is closed; open it again$"):
            call(memory, name)
    for part in parts:
        with pytest.raises(StoreError, match="closed"):
            getattr(memory, part)
    with pytest.raises(StoreError, match="closed"):
        memory.add("hello")
    assert sorted(tmp_path.iterdir()) == before  # nothing was begun


def test_the_context_manager_closes_also_after_an_error(tmp_path):
    with pytest.raises(RuntimeError), quick(tmp_path / "a.db") as memory:
        raise RuntimeError
    with pytest.raises(StoreError, match="closed"):
        memory.get_all()


def test_closing_while_others_search_and_add_ends_them_with_store_errors(tmp_path):
    memory = quick(tmp_path / "a.db")
    memory.add("hello", infer=False)
    running, wrong = threading.Barrier(5), []

    def work(step):
        running.wait()
        try:
            while True:
                step()
        except StoreError:
            pass
        except BaseException as exc:
            wrong.append(exc)

    steps = [lambda: memory.search("hello")] * 2 + [lambda: memory.add("hello", infer=False)] * 2
    threads = [threading.Thread(target=work, args=(step,)) for step in steps]
    for thread in threads:
        thread.start()
    running.wait()
    memory.search("hello")
    memory.close()
    for thread in threads:
        thread.join(30)
    assert wrong == [] and not any(thread.is_alive() for thread in threads)


def test_closing_waits_for_an_answer_whose_reader_reads_the_memory_meanwhile():
    class Busy(FakeEngine):
        """An engine in the middle of an answer until `read` is set."""

        def close(self):
            closing.set()
            waited.append(read.wait(30))

    def reads():
        closing.wait(30)
        with pytest.raises(StoreError, match="closed"):
            memory.search("hello")
        read.set()

    closing, read, waited = threading.Event(), threading.Event(), list[bool]()
    memory = quick(engine=Busy())
    memory._parts._own_engine = True
    thread = threading.Thread(target=reads)
    thread.start()
    memory.close()
    thread.join(30)
    assert waited == [True]


@pytest.mark.parametrize("path", [":memory:", "a.db"])
def test_first_adds_and_searches_of_many_threads_do_not_lock_each_other_out(tmp_path, path):
    for turn in range(10):
        memory = quick(path if path == ":memory:" else tmp_path / f"{turn}{path}")
        steps = [partial(memory.add, "hello", infer=False), partial(memory.search, "hello")] * 2
        together = threading.Barrier(len(steps))

        def act(step, together=together):
            together.wait()
            step()

        threads = [threading.Thread(target=act, args=(s,), daemon=True) for s in steps]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
            assert not thread.is_alive()
        assert len(memory.get_all()) == 2
        memory.close()


# -- other embedders -------------------------------------------------------------------------


def test_another_embedder_is_refused_until_reindex(tmp_path):
    path = tmp_path / "a.db"
    with quick(path, embedder=BagOfWords(64, "first@1")) as memory:
        id = memory.add("I live in Oslo", infer=False)[0].id
        memory.add("gone", expires_at="2001-01-01T00:00Z", infer=False)
        memory.delete(memory.add("deleted", infer=False)[0].id)
    with quick(path, embedder=BagOfWords(32, "second@2")) as memory:
        for step in (
            lambda: memory.add("x", infer=False),
            lambda: memory.search("x"),
            lambda: memory.update(id, "x"),
            lambda: memory.import_jsonl(tmp_path / "none"),
        ):
            with pytest.raises(DimensionMismatch) as caught:
                step()
            for part in ("first@1", "64", "second@2", "32", "edgemem reindex"):
                assert part in str(caught.value)
        assert texts(memory.get_all()) == ["I live in Oslo"]  # needs no vectors
        seen: list[tuple[int, int]] = []
        assert memory.reindex(lambda done, all_: seen.append((done, all_))) == 2
        assert seen == [(2, 2)]
        assert texts(memory.search("Oslo")) == ["I live in Oslo"]
        assert memory.doctor()["problems"] == []
        assert memory.doctor()["embedder"] == "second@2" and len(memory.history(id)) == 1


@pytest.mark.parametrize("name", [None, "Ana"])
@pytest.mark.parametrize("text", ["I moved to Oslo", "dear diary\n8 May 2023", "8 May 2023"])
def test_a_text_has_one_vector_however_it_came_in(name, text):
    """Added, edited, embedded anew or imported: speaker and text, never the day it was said on."""
    message = {"role": "user", "content": text, "name": name, "timestamp": "2024-05-01T10:00Z"}
    expected = BagOfWords().embed_chunks([f"{name}: {text}" if name else text])[0]

    def held(memory):
        return memory.store.changes(0).vectors

    with quick() as memory, quick() as copy:
        (added,) = memory.add(message, infer=False)
        assert np.array_equal(held(memory), expected)
        memory.reindex()
        assert np.array_equal(held(memory), expected)
        memory.update(added.id, "something else")
        assert not np.array_equal(held(memory), expected)
        memory.update(added.id, text)
        assert np.array_equal(held(memory), expected)
        out = io.StringIO()
        memory.export_jsonl(out)
        copy.import_jsonl(io.StringIO(out.getvalue()))
        assert np.array_equal(held(copy), expected)


def test_reindex_takes_in_what_is_stored_while_it_embeds(tmp_path):
    with quick(tmp_path / "a.db", embedder=BagOfWords(64, "first@1")) as other:
        old = other.add("I live in Oslo", infer=False)[0].id
        with quick(tmp_path / "a.db", embedder=BagOfWords(32, "second@2")) as memory:

            def meanwhile(done, total):
                other.update(old, "I live in Bergen")
                other.add("I have a cat", infer=False)

            assert memory.reindex(meanwhile) == 2
            assert memory.doctor()["problems"] == []
            assert texts(memory.search("Bergen", top_k=1)) == ["I live in Bergen"]
            assert texts(memory.search("cat", top_k=1)) == ["I have a cat"]
        with pytest.raises(DimensionMismatch, match=r"second@2.*first@1"):
            other.search("cat")


class ReindexedMeanwhile(BagOfWords):
    """While it embeds, somebody else reindexes the store with another model."""

    def __init__(self, path):
        super().__init__(64, "first@1")
        self._path = path

    def embed_chunks(self, texts):
        with quick(self._path, embedder=BagOfWords(64, "second@2")) as other:
            other.reindex()
        return super().embed_chunks(texts)


@pytest.mark.parametrize("way", ["add", "import"])
def test_what_was_embedded_before_a_reindex_is_not_stored(tmp_path, way):
    exported = io.StringIO()
    with quick() as source:
        source.add("x", infer=False)
        source.export_jsonl(exported)
    exported.seek(0)
    with quick(tmp_path / "a.db", embedder=ReindexedMeanwhile(tmp_path / "a.db")) as memory:
        with pytest.raises(DimensionMismatch):
            memory.add("x", infer=False) if way == "add" else memory.import_jsonl(exported)
        assert memory.store.counts()["memories"] == 0


def test_doctor_tells_what_is_there(tmp_path):
    with quick(tmp_path / "a.db") as memory:
        memory.add(["one", "two"], infer=False)
        report = memory.doctor()
    assert report["path"] == str(tmp_path / "a.db")
    assert report["counts"]["turns"] == report["counts"]["turn_memories"] == 2
    assert (report["problems"], report["pending"]) == ([], [])
    assert report["embedder"] == "bag@1" and report["backend"] in ("native", "numpy")
    assert json.loads(json.dumps(report)) == report
