"""The store's rows: what is written is what is read, together or not at all."""

import threading

import numpy as np
import pytest
from storekit import ADA, DIM, FAR_AHEAD, T0, T1, T2, add, indexed, memory, raw, turn, unit

from edgemem.errors import DimensionMismatch, InputError, StoreError
from edgemem.results import Scope
from edgemem.store import Store
from edgemem.store.filters import compile_filters

# In a file another connection reads than writes.
both = pytest.mark.parametrize("store", ["file", "memory"], indirect=True)


def edit(tx, id, text, vectors, **more):
    """Gives a memory another text, at T1."""
    given = {"memory": text, "search_text": text, "vectors": vectors, "updated_at": T1}
    return tx.update_memory(id, **given, **more)


@both
def test_a_memory_is_read_as_it_was_written(store):
    given = {
        "metadata": {"city": "Oslo", "n": [1, 2.5, None, {"é": True}]},
        "valid_from": T0, "valid_to": FAR_AHEAD, "expires_at": FAR_AHEAD,
    }  # fmt: skip
    said = turn("t1", "I moved to Oslo", name="Ada", metadata={"session": 3})
    fact = memory("m1", scope=Scope("ada", "helper", "run-1"), sources=("t2", "t1"), **given)
    add(store, said, turn("t2", "Nice"), fact)
    item = store.get(["m1"])["m1"]
    assert item.to_dict() == {
        "id": "m1", "memory": "Ada likes tea", "kind": "fact", "created_at": T0, "updated_at": T0,
        "user_id": "ada", "agent_id": "helper", "run_id": "run-1", **given,
        "sources": ["t1", "t2"],  # in the order in which they were said
    }  # fmt: skip
    assert store.turns(["t1"])["t1"] == said
    assert store.by_rowids([1, 99]) == {1: item}


@both
def test_an_exception_undoes_the_whole_transaction(store):
    before = store.counts()
    with pytest.raises(ZeroDivisionError), store.transaction() as tx:
        tx.add_turn(turn("t1"))
        tx.add_memory(memory("m1", sources=("t1",)))
        tx.add_pending("extract", {"turns": ["t1"]}, ADA)
        tx.set_meta("embedder_model", "x")
        raise ZeroDivisionError
    assert store.counts() == before
    assert store.generation() == 0
    assert store.meta("embedder_model") is None
    assert indexed(store, "tea") == []
    assert store.check() == []


@both
def test_a_failed_step_that_the_caller_swallows_is_never_half_committed(store):
    with pytest.raises(StoreError, match="failed earlier"), store.transaction() as tx:
        tx.add_turn(turn("t1"))
        with pytest.raises(StoreError):
            tx.add_turn(turn("t2", role=None))
    assert store.counts()["turns"] == 0


@both
def test_a_refusal_before_anything_was_written_leaves_the_transaction_usable(store):
    with store.transaction() as tx:
        with pytest.raises(StoreError, match="no memory with id 'nope'"):
            tx.delete_memory("nope", T1)
        with pytest.raises(InputError, match="JSON"):
            tx.add_memory(memory("m1", metadata={"x": float("nan")}))
        with pytest.raises(InputError, match="surrogate"):
            tx.add_turn(turn("t1", "\ud800"))
        tx.add_memory(memory("m1"))
    assert list(store.get(["m1"])) == ["m1"]


def test_unknown_and_taken_ids_are_named(store):
    add(store, turn("t1"), memory("m1"), memory("gone"))
    with store.transaction() as tx:
        tx.delete_memory("gone", T1)
    for call, message in (
        (lambda tx: tx.add_memory(memory("m1")), "a memory with id 'm1' exists already"),
        (lambda tx: tx.add_memory(memory("gone")), "a memory with id 'gone' exists already"),
        (lambda tx: tx.add_turn(turn("t1")), "a turn with id 't1' exists already"),
        (lambda tx: tx.add_memory(memory("m2", sources=("t9",))), "no turn with id 't9'"),
        (lambda tx: tx.invalidate("m9", T1), "no memory with id 'm9'"),
        (lambda tx: tx.delete_memory("gone", T1), "no memory with id 'gone'"),
        (lambda tx: tx.set_vectors("m9", unit(1)), "no memory with id 'm9'"),
        (lambda tx: tx.finish_pending(7), "no pending work with number 7"),
        (lambda tx: tx.fail_pending(7, "x", None), "no pending work with number 7"),
        (lambda tx: edit(tx, "m9", "x", unit(1)), "no memory with id 'm9'"),
        (
            lambda tx: tx.add_memory(memory("m2", kind="opinion")),
            "memory kind 'opinion' is unknown; give one of fact, turn, summary, image",
        ),
    ):
        with pytest.raises((StoreError, InputError)) as caught, store.transaction() as tx:
            call(tx)
        assert message in str(caught.value)


def test_vectors_of_another_dimension_or_dtype_are_refused(store):
    add(store, memory("m1"))
    assert store.meta("embedder_dim") == str(DIM)
    with pytest.raises(DimensionMismatch, match=r"dimension 4 .* dimension 8"):
        add(store, memory("m2", vectors=unit(1, dim=4)))
    for bad in (unit(1)[0], unit(1).astype(np.float64), np.full((1, DIM), np.nan, np.float32)):
        with pytest.raises(ValueError, match="vectors"):
            add(store, memory("m2", vectors=bad))
    assert store.counts()["memories"] == 1


@both
def test_an_update_is_found_by_its_new_text_only(store):
    add(store, turn("t1"), turn("t2"), memory("m1", "Ada likes tea", sources=("t1",)))
    with store.transaction() as tx:
        previous = edit(tx, "m1", "Ada likes coffee", unit(9, count=2), sources=("t2", "t1"))
    assert previous == "Ada likes tea"
    assert indexed(store, "tea") == []
    assert indexed(store, "coffee") == [1]
    item = store.get(["m1"])["m1"]
    assert (item.memory, item.updated_at, item.sources) == ("Ada likes coffee", T1, ("t1", "t2"))
    np.testing.assert_array_equal(store.changes(0).vectors, unit(9, count=2))
    with store.transaction() as tx:
        edit(tx, "m1", "Ada likes coffee", None, metadata={"a": 1})
    assert store.get(["m1"])["m1"].metadata == {"a": 1}
    np.testing.assert_array_equal(store.changes(0).vectors, unit(9, count=2))
    assert store.check() == []


def test_an_invalidated_memory_leaves_the_answers_when_its_time_is_over(store):
    add(store, memory("m1"))
    with store.transaction() as tx:
        tx.invalidate("m1", T1)
    assert store.list() == []
    assert store.rowids().tolist() == []
    assert store.rowids(now=T0).tolist() == [1]
    assert [item.id for item in store.list(include_invalid=True)] == ["m1"]
    assert store.get(["m1"])["m1"].valid_to == T1
    assert store.counts()["invalid"] == 1


def test_an_expired_memory_leaves_the_answers(store):
    add(store, memory("m1", expires_at=T1), memory("m2", expires_at=FAR_AHEAD))
    assert [item.id for item in store.list()] == ["m2"]
    assert store.rowids(now=T0).tolist() == [1, 2]


def test_a_deleted_memory_is_gone_from_answers_and_kept_in_history(store):
    add(store, memory("m1"))
    with store.transaction() as tx:
        tx.delete_memory("m1", T1)
    assert store.get(["m1"]) == {} == store.by_rowids([1])
    assert store.list(include_invalid=True) == [] == indexed(store, "tea")
    assert len(store.changes(0).labels) == 0
    assert store.get(["m1"], include_deleted=True)["m1"].memory == "Ada likes tea"
    assert store.history("m1")[-1]["old_memory"] == "Ada likes tea"
    assert store.check() == []


def test_a_history_is_in_order_although_a_clock_was_set_back(store):
    with store.transaction() as tx:
        tx.add_memory(memory("m1", created_at=T2))
        edit(tx, "m1", "b", unit(2))
    assert [row["event"] for row in store.history("m1")] == ["ADD", "UPDATE"]


def test_history_rows_have_mem0s_shape(store):
    with store.transaction() as tx:
        tx.add_memory(memory("m1"), actor_id="ada", role="user")
        edit(tx, "m1", "b", unit(2))
        tx.invalidate("m1", T1, at=T2)
        tx.delete_memory("m1", T2)
    rows = store.history("m1")
    assert list(rows[0]) == [
        "id", "memory_id", "old_memory", "new_memory", "event", "created_at", "updated_at",
        "is_deleted", "actor_id", "role",
    ]  # fmt: skip
    told = [
        (r["event"], r["old_memory"], r["new_memory"], r["updated_at"], r["is_deleted"])
        for r in rows
    ]
    assert told == [
        ("ADD", None, "Ada likes tea", None, False),
        ("UPDATE", "Ada likes tea", "b", T1, False),
        ("DELETE", "b", None, T2, False),
        ("DELETE", "b", None, T2, True),
    ]
    assert (rows[0]["actor_id"], rows[0]["role"], rows[0]["created_at"]) == ("ada", "user", T0)
    assert store.history("nobody") == []


def test_scopes_kinds_and_filters_narrow_every_reader(store):
    add(
        store,
        memory("a", scope=Scope("ada"), metadata={"n": 1}),
        memory("b", scope=Scope("bob"), metadata={"n": 1}),
        memory("c", scope=Scope("ada", "x", "r"), kind="turn", metadata={"n": 2}, created_at=T1),
    )
    for scope, where, kinds, wanted in (
        (Scope(), None, None, [1, 2, 3]),
        (Scope("ada"), None, None, [1, 3]),
        (Scope(agent_id="x"), None, None, [3]),
        (Scope("ada", run_id="r"), None, None, [3]),
        (Scope("nobody"), None, None, []),
        (Scope(), compile_filters({"n": 1}), None, [1, 2]),
        (Scope("ada"), compile_filters({"n": 1}), None, [1]),
        (Scope(), None, ["turn"], [3]),
        (Scope(), None, [], []),
    ):
        assert store.rowids(scope, where=where, kinds=kinds).tolist() == wanted
        listed = store.list(scope, where=where, kinds=kinds)
        assert list(store.by_rowids(wanted).values()) == listed


def test_list_is_oldest_first_and_limited(store):
    add(store, memory("c", created_at=T2), memory("a", created_at=T0), memory("b", created_at=T0))
    assert [item.id for item in store.list()] == ["a", "b", "c"]
    assert [item.id for item in store.list(limit=2)] == ["a", "b"]
    assert store.list(limit=0) == []
    with pytest.raises(InputError, match="limit is -1"):
        store.list(limit=-1)


def test_recent_turns_are_the_last_ones_oldest_first(store):
    add(store, *(turn(f"t{i}") for i in range(5)), turn("b", scope=Scope("bob")))
    assert [t.id for t in store.recent_turns(ADA, limit=2)] == ["t3", "t4"]
    assert [t.id for t in store.recent_turns(ADA, before="t3", limit=2)] == ["t1", "t2"]
    assert [t.id for t in store.recent_turns(limit=2)] == ["t4", "b"]
    assert store.recent_turns(ADA, before="unknown", limit=2) == []


def test_the_last_turns_of_a_user_are_found_in_the_index(store):
    """Of 50,000 turns, 45,000 of them the user's, all were read and sorted whole: 0.13 s."""
    asked: list[str] = []
    store._reader.set_trace_callback(asked.append)
    store.recent_turns(ADA, limit=2)
    store._reader.set_trace_callback(None)
    (select,) = (sql for sql in asked if sql.startswith("SELECT"))
    plan = [row[3] for row in store._reader.execute(f"EXPLAIN QUERY PLAN {select}")]
    by_user = [step for step in plan if "(user_id=?" in step]
    assert by_user and all("COVERING INDEX" in step for step in by_user), plan


def test_pending_work_is_queued_retried_and_finished(store):
    with store.transaction() as tx:
        first = tx.add_pending("extract", {"turns": ["t1"], "reply": "}{"}, ADA)
        second = tx.add_pending("embed", {}, Scope())
    with store.transaction() as tx:
        tx.fail_pending(first, "bad reply", T2)
    item = store.pending("extract")[0]
    assert (item.id, item.payload, item.scope) == (first, {"turns": ["t1"], "reply": "}{"}, ADA)
    assert (item.attempts, item.last_error, item.next_try_at) == (1, "bad reply", T2)
    assert [p.id for p in store.pending(due_before=T1)] == [second]
    assert [p.id for p in store.pending(due_before=T2)] == [first, second]
    assert [p.id for p in store.pending(due_before=T0)] == [first, second]  # a clock was ahead
    assert [p.id for p in store.pending(limit=1)] == [first]
    with store.transaction() as tx:
        tx.finish_pending(first)
    assert [p.id for p in store.pending()] == [second]


@both
def test_each_committed_write_counts_once_and_an_empty_one_not(store):
    with store.transaction() as tx:
        assert tx.generation == 1
        tx.add_memory(memory("m1"))
        tx.add_memory(memory("m2"))
    assert store.generation() == 1
    with store.transaction():
        pass
    assert store.generation() == 1


@both
def test_a_transaction_cannot_be_nested_or_used_after_its_end(store):
    with store.transaction() as tx:
        with pytest.raises(StoreError, match="already open"), store.transaction():
            pass
        tx.add_memory(memory("m1"))
    with pytest.raises(StoreError, match="over"):
        tx.add_memory(memory("m2"))
    assert store.counts()["memories"] == 1


@both
def test_a_closed_store_says_so(store):
    store.close()
    store.close()
    for call in (store.generation, store.list, store.check, lambda: list(store.export_rows())):
        with pytest.raises(StoreError, match="closed"):
            call()
    with pytest.raises(StoreError, match="closed"), store.transaction():
        pass


def test_a_search_is_not_blocked_by_an_open_write(tmp_path):
    with Store.open(tmp_path / "a.db") as store:
        add(store, memory("m1"))
        seen: list[int] = []
        with store.transaction() as tx:
            tx.add_memory(memory("m2"))
            thread = threading.Thread(target=lambda: seen.append(len(store.list())))
            thread.start()
            thread.join(timeout=30)
            assert seen == [1]
        assert len(store.list()) == 2


@both
def test_threads_may_write_and_read_at_once(store):
    errors: list[BaseException] = []

    def work(name):
        try:
            for i in range(20):
                add(store, memory(f"{name}{i}"))
                assert f"{name}{i}" in store.get([f"{name}{i}"])
                store.changes(store.generation() - 1)
        except BaseException as exc:
            errors.append(exc)

    threads = [threading.Thread(target=work, args=(name,)) for name in "abc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert store.generation() == store.counts()["memories"] == 60


def test_check_names_what_is_wrong(tmp_path):
    path = tmp_path / "a.db"
    with Store.open(path) as store:
        add(store, turn("t1"), memory("m1", sources=("t1",)), memory("m2", expires_at=T0))
        assert store.check() == []
    raw(path, "DELETE FROM turns", "UPDATE vectors SET vector = x'00' WHERE memory = 1",
        "UPDATE memories SET search_text = 'other words' WHERE id = 'm2'")  # fmt: skip
    with Store.open(path) as store:
        told = "\n".join(store.check())
    assert "refers to a missing row of turns" in told
    assert "has 1 bytes, 32 are right for dimension 8" in told
    assert "the full-text index does not match the memories" in told


# --- what recall and exports ask --------------------------------------------------------------


def test_indexed_texts_are_those_of_all_memories_that_are_not_deleted(store):
    add(
        store,
        memory("b", "tea", search_text="Ada: tea\n1 May 2024"),
        memory("a", "coffee"),
        memory("over", "milk", valid_to=T0),
        memory("gone", "juice"),
    )
    with store.transaction() as tx:
        tx.delete_memory("gone", T1)
        tx.update_memory("a", memory="mate", search_text="mate!", vectors=None, updated_at=T2)
    expected = {"b": "Ada: tea\n1 May 2024", "a": "mate!", "over": "milk"}
    assert store.search_texts() == expected
    assert list(store.search_texts()) == list(expected)  # oldest first


def test_a_turn_is_stale_once_a_fact_of_it_is_over(store):
    add(
        store,
        *(turn(f"t{n}") for n in range(6)),
        memory("over", sources=("t0", "t1"), valid_from=T0, valid_to=T1),
        memory("still", sources=("t1", "t2")),
        memory("not yet over", sources=("t3",), valid_to=FAR_AHEAD),
        memory("a turn", kind="turn", sources=("t4",), valid_to=T1),
    )
    turns = [f"t{n}" for n in range(6)]
    over, still = memory("over").memory, memory("still").memory
    assert store.stale_turns(turns) == {"t0": (over,), "t1": (over,)}
    assert store.stale_turns(["t1", "t2", "unknown"]) == {"t1": (over,)}
    assert store.stale_turns([]) == {}
    with store.transaction() as tx:
        tx.invalidate("still", T2)
    assert store.stale_turns(turns) == {"t0": (over,), "t1": (over, still), "t2": (still,)}


def test_a_turn_stands_while_its_own_memory_does_and_says_the_same(store):
    add(store, *(turn(f"t{n}", "tea") for n in range(4)))
    add(store, memory("m0", "tea", kind="turn", sources=("t0",)))
    add(store, memory("m1", "tea", kind="turn", sources=("t1",)))
    add(store, memory("m2", "tea", kind="fact", sources=("t2",)))
    add(store, memory("m3", "tea", kind="turn", sources=("t3",), valid_to=T1))
    assert store.standing_turns(["t3", "t2", "t1", "t0"]) == ["t1", "t0"]
    with store.transaction() as tx:
        edit(tx, "m1", "mate", None)
    assert store.standing_turns(["t1", "t0"]) == ["t0"]
