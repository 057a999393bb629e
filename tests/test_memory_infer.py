"""Facts from messages: what is taken, replaced and left for later."""

import os
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from unittest.mock import patch

import pytest
from fake_engine import FakeEngine
from memorykit import quick, texts
from storekit import child

import edgemem.memory
from edgemem import Memory
from edgemem.config import Settings
from edgemem.errors import InputError, ModelNotFound, StoreError, StoreFull, StoreLocked
from edgemem.pipeline.recall import recall

MOVED = {
    "I live in Bergen.": "{} lives in Bergen",
    "I moved to Oslo and live there now.": "{} moved to Oslo and lives there now",
}
OSLO = {"I live in Oslo.": "{} lives in Oslo", "I have a cat.": "{} has a cat"}


def facts(memory, **scope):
    return texts(memory.get_all(filters={"kind": "fact"}, **scope))


# -- the bundled model -----------------------------------------------------------------------


@pytest.mark.models
def test_a_contradiction_ends_with_the_new_fact_and_the_old_one_invalidated(shipped, embedder):
    with Memory(":memory:", engine=shipped, embedder=embedder) as memory:
        first = memory.add("I live in Oslo.", user_id="ana", timestamp="2024-03-01T10:00Z")
        (old,) = [c for c in first if c.kind == "fact"]
        assert old.event == "ADD" and "Oslo" in old.memory

        second = memory.add("I moved to Bergen.", user_id="ana", timestamp="2024-06-01T10:00Z")
        assert first.pending == second.pending == 0
        assert {c.event for c in second if c.kind == "fact"} == {"DELETE", "ADD"}
        left = facts(memory, user_id="ana")
        assert len(left) == 1 and "Bergen" in left[0]
        gone = memory.get(old.id)  # invalidated, not erased
        assert gone.valid_to.startswith("2024-06-01")
        assert [row["event"] for row in memory.history(old.id)] == ["ADD", "DELETE"]
        assert not any("lives in Oslo" in text for text in texts(memory.search("live in Oslo")))
        # Both turns are found all the same: recall does not depend on extraction.
        assert len(memory.get_all(user_id="ana", filters={"kind": "turn"})) == 2


@pytest.mark.models
def test_two_named_speakers_give_facts_about_each_that_cite_their_turns(engine, embedder):
    said = [
        {"role": "user", "name": "Carla", "content": "I adopted a dog called Rex yesterday."},
        {"role": "assistant", "name": "Monica", "content": "Lovely! I work at a bakery."},
    ]
    with Memory(":memory:", engine=engine, embedder=embedder) as memory:
        changes = memory.add(said, user_id="conv", timestamp="2023-05-08T13:56Z")
        found = [c for c in changes if c.kind == "fact"]
        cited = [(c, turn.name) for c in found for turn in memory.source_turns(c.id)]
        assert len(cited) == len(found) and {name for _, name in cited} == {"Carla", "Monica"}
        assert all(name and c.memory.startswith(name) for c, name in cited)
        (dog,) = (c for c in found if c.memory.startswith("Carla"))
        assert "7 May 2023" in dog.memory  # "yesterday", said on the 8th
        item = memory.get(dog.id)
        assert item is not None and item.valid_from == "2023-05-07T00:00:00.000+00:00"


@pytest.mark.models
def test_a_model_that_is_not_there_loses_no_message(tmp_path, embedder):
    settings = Settings(db=tmp_path / "a.db", model=str(tmp_path / "none.gguf"))
    with Memory(settings=settings, embedder=embedder) as memory:
        with pytest.raises(ModelNotFound, match=r"none\.gguf.*messages are stored"):
            memory.add("I live in Oslo.")
        assert texts(memory.search("Oslo")) == ["I live in Oslo."]
        assert [piece.attempts for piece in memory.pending()] == [0]
    with Memory(tmp_path / "a.db", engine=FakeEngine(facts=OSLO), embedder=embedder) as memory:
        assert memory.process_pending().pending == 0
        assert facts(memory) == ["User lives in Oslo"]


# -- rules and order, with known answers -----------------------------------------------------


def test_facts_cite_their_turns_and_take_their_scope_metadata_and_expiry():
    with quick(engine=FakeEngine(facts=OSLO)) as memory:
        changes = memory.add(
            ["I live in Oslo.", {"content": "I have a cat."}],
            user_id="ana", run_id="r", metadata={"file": 7}, expires_at="2999-01-01T00:00Z",
            timestamp="2024-05-01T10:00Z",
        )  # fmt: skip
        assert [(c.kind, c.memory) for c in changes] == [
            ("turn", "I live in Oslo."), ("turn", "I have a cat."),
            ("fact", "User lives in Oslo"), ("fact", "User has a cat"),
        ]  # fmt: skip
        for change in changes:
            item = memory.get(change.id)
            assert (item.user_id, item.run_id, item.metadata) == ("ana", "r", {"file": 7})
            assert item.expires_at == "2999-01-01T00:00:00.000+00:00"
        turns = [memory.source_turns(c.id)[0].content for c in changes]
        assert turns == ["I live in Oslo.", "I have a cat."] * 2


def test_the_models_own_words_and_recalled_ones_are_never_extracted():
    engine = FakeEngine(facts=OSLO)
    with quick(engine=engine) as memory:
        own = {"role": "assistant", "content": "I live in Oslo."}
        system = {"role": "system", "content": "I have a cat."}
        changes = memory.add([own, {**own, "name": "Mel", "recalled": True}, system])
        assert [c.kind for c in changes] == ["turn"] and changes.pending == 0
        assert engine.prompts == []


def test_an_older_conversation_imported_later_does_not_overturn_newer_facts(
    embedder,
):
    ends = {"User moved to Oslo and lives there now": "User lives in Bergen"}
    engine = FakeEngine(facts=MOVED, ends=ends)
    with Memory(":memory:", engine=engine, embedder=embedder) as memory:
        memory.add("I live in Bergen.", timestamp="2024-06-01T10:00Z")
        later = memory.add("I moved to Oslo and live there now.", timestamp="2020-01-01T10:00Z")
        assert facts(memory) == ["User lives in Bergen"]
        (old,) = [c for c in later if c.kind == "fact"]
        assert old.event == "ADD"
        item = memory.get(old.id)  # it was true until the newer one
        assert item is not None and item.valid_to == "2024-06-01T10:00:00.000+00:00"


@pytest.mark.parametrize("in_order", [True, False])
def test_a_plan_that_is_moved_before_its_day_is_off_from_then_on(embedder, in_order):
    said = {"2024-05-01": "My dinner is in two days.", "2024-05-02": "My dinner is in seven days."}
    old, new = "User's dinner is on 3 May 2024", "User's dinner is on 9 May 2024"
    read = {text: text.replace("My", "{}'s").strip(".") for text in said.values()}
    engine = FakeEngine(facts=read, ends={new: old} if in_order else {old: new})
    with Memory(":memory:", engine=engine, embedder=embedder) as memory:
        for day in sorted(said, reverse=not in_order):
            memory.add(said[day], timestamp=f"{day}T10:00Z")
        assert facts(memory) == [new]
        both = memory.store.list(kinds={"fact"}, include_invalid=True)
        told = "2024-05-02T10:00:00.000+00:00"
        assert {item.memory: item.valid_to for item in both} == {old: told, new: None}


def test_no_rule_takes_a_fact_out_of_answers_and_the_older_comes_first(embedder):
    """Where no expert ends a fact, who is right is told by the days."""
    with Memory(":memory:", engine=FakeEngine(facts=MOVED), embedder=embedder) as memory:
        for said, when in zip(MOVED, ("2024-06-01T10:00Z", "2025-01-01T10:00Z"), strict=True):
            added = [c for c in memory.add(said, timestamp=when) if c.kind == "fact"]
            assert [c.event for c in added] == ["ADD"]
        stored = [m for m in memory.get_all() if m.kind == "fact"]
        assert all(m.valid_to is None for m in stored)
        assert [m.memory for m in sorted(stored, key=lambda m: m.valid_from or "")] == [
            "User lives in Bergen",
            "User moved to Oslo and lives there now",
        ]
        asked = "Where do I live now?"
        shown = recall(memory, asked, memory.search(asked), most=4)
        assert "Oslo" in shown[-1].text and any("Bergen" in r.text for r in shown[:-1])


# -- pending ---------------------------------------------------------------------------------


@pytest.fixture
def broken():
    """A model whose answers cannot be parsed, until it is mended."""
    engine = FakeEngine(facts=OSLO)
    engine.broken = True
    return engine


def test_an_answer_that_cannot_be_parsed_waits_with_its_turn_and_is_finished_later(
    broken,
):
    with quick(engine=broken) as memory:
        result = memory.add("I live in Oslo.", user_id="ana")
        assert result.pending == 1 and [c.kind for c in result] == ["turn"]
        assert texts(memory.search("Oslo", user_id="ana")) == ["I live in Oslo."]
        (piece,) = memory.pending()
        (listed,) = memory.doctor()["pending"]
        assert listed["attempts"] == piece.attempts == 1 and listed["error"] == piece.last_error
        (turn,) = memory.store.turns(listed["turns"]).values()
        assert turn.content == "I live in Oslo."

        broken.broken = False
        assert list(memory.process_pending()) == []  # its time has not come
        done = memory.process_pending(retry_now=True)
        assert texts(done) == facts(memory, user_id="ana") == ["User lives in Oslo"]
        assert done.pending == 0 and memory.doctor()["pending"] == []


def test_a_full_disk_while_extracting_is_told(tmp_path):
    with quick(tmp_path / "a.db", engine=FakeEngine(facts=OSLO)) as memory:
        full = patch("edgemem.pipeline.ingest._apply", side_effect=StoreFull("the disk is full"))
        with full, pytest.raises(StoreFull):
            memory.add("I live in Oslo.")
        assert texts(memory.search("Oslo")) == ["I live in Oslo."] and len(memory.pending()) == 1
        with patch("edgemem.pipeline.ingest._apply", side_effect=StoreLocked("busy")):
            assert memory.process_pending(retry_now=True).pending == 1  # it stays, untold


def test_an_add_takes_up_two_older_pieces_and_no_more():
    engine = FakeEngine(facts=OSLO)
    with quick(engine=engine) as memory:
        for _ in range(4):  # as after crashes: queued, never tried
            with patch("edgemem.pipeline.ingest.process_piece", return_value=[]):
                memory.add("I live in Oslo.")
        assert memory.add("I have a cat.").pending == 0 and len(memory.pending()) == 2


def test_a_memory_that_is_closed_while_the_model_reads_counts_no_attempt(tmp_path):
    engine = FakeEngine(facts=OSLO)
    told = engine.generate
    with quick(tmp_path / "a.db", engine=engine) as memory:
        engine.generate = lambda *a, **k: (memory.close(), told(*a, **k))[1]
        with pytest.raises(StoreError, match="closed"):
            memory.add("I live in Oslo.")
    with quick(tmp_path / "a.db") as memory:
        assert [(p.attempts, p.last_error) for p in memory.pending()] == [(0, None)]


def test_each_failure_waits_longer(broken):
    with quick(engine=broken) as memory:
        memory.add("I live in Oslo.")
        waits = []
        for _ in range(3):
            memory.process_pending(retry_now=True)
            waits.append(memory.pending()[0].next_try_at)
        assert waits == sorted(set(waits)) and memory.pending()[0].attempts == 4
        assert memory.process_pending(limit=0, retry_now=True).pending == 1


def test_a_later_add_takes_up_what_is_due():
    with quick(engine=FakeEngine(facts=OSLO)) as memory:
        turn = memory.add("I live in Oslo.", user_id="ana", infer=False)[0]
        with memory.store.transaction() as tx:  # as after a crash: queued, never tried
            turns = [t.id for t in memory.source_turns(turn.id)]
            payload = {"turns": turns, "metadata": {}, "expires_at": None}
            tx.add_pending("extract", payload, memory.store.turns(turns)[turns[0]].scope)
        result = memory.add("I have a cat.", user_id="bob")
        assert texts(result) == ["I have a cat.", "User has a cat"]  # its own, nobody else's
        assert memory.pending() == [] and facts(memory, user_id="ana") == ["User lives in Oslo"]


@pytest.mark.parametrize(
    ("change", "left"),
    [
        (lambda memory, id: memory.update(id, "I live in Bergen."), ["User has a cat"]),
        (lambda memory, id: memory.delete(id), ["User has a cat"]),
        (lambda memory, id: memory.erase(id), ["User has a cat"]),
        (lambda memory, id: memory.delete_all(user_id="ana"), []),
        (lambda memory, id: memory.reset(), []),
    ],
    ids=["update", "delete", "erase", "delete_all", "reset"],
)
def test_what_is_edited_or_deleted_is_not_extracted_from_as_it_was(broken, change, left):
    with quick(engine=broken) as memory:
        first, _ = memory.add(["I live in Oslo.", "I have a cat."], user_id="ana")
        broken.broken = False
        change(memory, first.id)
        memory.process_pending(retry_now=True)
        assert facts(memory) == left and memory.pending() == []


def test_what_is_deleted_while_the_model_reads_it_leaves_no_fact():
    with quick() as memory:
        engine = FakeEngine(facts=OSLO)
        told = engine.generate
        engine.generate = lambda *a, **k: (memory.delete_all(user_id="ana"), told(*a, **k))[1]
        memory._parts._engine = engine
        result = memory.add("I live in Oslo.", user_id="ana")
        assert result.pending == 0 and facts(memory) == [] and memory.pending() == []


@pytest.mark.parametrize("fault", [AttributeError, StoreError, InputError])
def test_a_fault_of_ours_in_one_message_is_noted_and_stops_no_other(
    fault,
):
    with quick(engine=FakeEngine(facts=OSLO)) as memory:
        with patch("edgemem.pipeline.ingest._apply", side_effect=fault("here")):
            assert memory.add("I live in Oslo.", user_id="ana").pending == 1
        (piece,) = memory.pending()
        assert (piece.attempts, piece.last_error) == (1, f"{fault.__name__}: here")
        assert piece.next_try_at is not None
        memory.add("I have a cat.", user_id="ana")
        memory.process_pending(retry_now=True)
        assert sorted(facts(memory)) == ["User has a cat", "User lives in Oslo"]


class Interrupted(FakeEngine):
    """An engine that calls `meanwhile` when it compares facts, as another thread would."""

    meanwhile: Callable[[], object] = staticmethod(lambda: None)

    def generate(self, prompt, *, stage="", **options):
        read = super().generate(prompt, stage=stage, **options)
        if stage == "update":
            self.meanwhile()
        return read


@pytest.mark.parametrize("what", ["edited", "deleted"])
def test_a_fact_that_changes_while_the_model_compares_it_is_left_as_it_is(what):
    ends = {"User moved to Oslo and lives there now": "User lives in Bergen"}
    engine = Interrupted(facts=MOVED, ends=ends)
    with quick(engine=engine) as memory:
        memory.add("I live in Bergen.", user_id="ana")
        (old,) = memory.get_all(filters={"kind": "fact"})
        edited = "User's parents live in Bergen"
        change = {"edited": partial(memory.update, text=edited), "deleted": memory.delete}[what]
        engine.meanwhile = partial(change, old.id)
        memory.add("I moved to Oslo and live there now.", user_id="ana")
        kept = [edited] if what == "edited" else []
        assert facts(memory) == [*kept, "User moved to Oslo and lives there now"]
        assert memory.pending() == []


@pytest.mark.parametrize("told", [{}, {"run_id": "r1"}, {"user_id": "bob"}], ids=str)
def test_nobodys_fact_is_ended_by_what_somebody_else_said(told):
    ends = {"User moved to Oslo and lives there now": "User lives in Bergen"}
    with quick(engine=FakeEngine(facts=MOVED, ends=ends)) as memory:
        memory.add("I live in Bergen.", user_id="ana", run_id="r1")
        memory.add("I moved to Oslo and live there now.", **told)
        assert facts(memory, user_id="ana") == ["User lives in Bergen"]


def test_a_fact_that_is_said_again_without_an_end_outlives_the_one_that_expires():
    with quick(engine=FakeEngine(facts=OSLO)) as memory:
        memory.add("I live in Oslo.", user_id="ana", expires_at="2100-01-01")
        memory.add("I live in Oslo.", user_id="ana", expires_at="2090-01-01")
        memory.add("I live in Oslo.", user_id="ana")
        ends = [item.expires_at for item in memory.get_all(filters={"kind": "fact"})]
        assert [end and end[:4] for end in ends] == ["2100", None]


def test_work_that_another_process_holds_is_left_and_said_so(tmp_path, monkeypatch):
    monkeypatch.setattr(edgemem.memory, "_WORK_LOCK_S", 0.1)
    engine = FakeEngine(facts=OSLO)
    with quick(tmp_path / "a.db", engine=engine) as memory, quick(tmp_path / "a.db") as other:
        with other._work_lock(1) as mine:
            assert mine
            result = memory.add("I live in Oslo.")
            assert result.pending == 1 and [c.kind for c in result] == ["turn"]
            assert engine.prompts == []
            with pytest.raises(
                StoreLocked, match="another process or thread takes facts from the pending turns"
            ):
                memory.process_pending()
            with pytest.raises(StoreLocked, match="nothing was erased"):
                memory.erase(result[0].id)
            assert len(memory.search("Oslo")) == 1
        assert texts(memory.process_pending()) == ["User lives in Oslo"]


def test_one_thread_at_a_time_works_pending_pieces_off():
    inside, most = [0], [0]
    engine = FakeEngine(facts=OSLO)
    told = engine.generate

    def counted(*args, **more):
        inside[0] += 1
        most[0] = max(most[0], inside[0])
        answer = told(*args, **more)
        inside[0] -= 1
        return answer

    engine.generate = counted
    with quick(engine=engine) as memory:
        with ThreadPoolExecutor(6) as pool:
            list(pool.map(lambda i: memory.add("I live in Oslo.", user_id=str(i)), range(6)))
        assert most == [1] and memory.pending() == []
        assert facts(memory) == ["User lives in Oslo"] * 6


DIES = """
import sys
from fake_engine import FakeEngine
from memorykit import quick
class Stuck(FakeEngine):
    def generate(self, *args, **more):
        print("extracting", flush=True)
        sys.stdin.read()
quick(sys.argv[1], engine=Stuck()).add(["I live in Oslo.", "I have a cat."], user_id="ana")
"""


@pytest.mark.skipif(os.name != "posix", reason="needs SIGKILL")
def test_a_process_killed_while_extracting_leaves_the_turns_and_the_work(tmp_path):
    path = tmp_path / "a.db"
    dying = child(DIES, path)
    assert dying.stdout is not None and dying.stdout.readline() == "extracting\n"
    dying.send_signal(signal.SIGKILL)
    dying.communicate(timeout=30)
    with quick(path, engine=FakeEngine(facts=OSLO)) as memory:
        assert len(memory.search("cat in Oslo", user_id="ana")) == 2
        assert [c["attempts"] for c in memory.doctor()["pending"]] == [0]
        assert memory.doctor()["problems"] == []
        done = memory.process_pending()  # the dead hold no lock
        assert texts(done) == ["User lives in Oslo", "User has a cat"]
        assert memory.pending() == []


def test_facts_may_be_left_for_later():
    engine = FakeEngine(facts=OSLO)
    with quick(engine=engine) as memory:
        stored = memory.add(next(iter(OSLO)), user_id="ana", infer="later")
        assert [c.kind for c in stored] == ["turn"] and stored.pending == 1
        assert engine.prompts == []
        assert [c.kind for c in memory.process_pending()] == ["fact"]


def test_facts_that_were_left_are_told_with_the_message_they_are_taken_from():
    with quick(engine=FakeEngine(facts=OSLO)) as memory:
        _, second = (memory.add(text, user_id="ana", infer="later") for text in OSLO)
        done = memory.take_facts(second)
        assert texts(done)[0] == texts(second)[0] and [c.kind for c in done] == ["turn", "fact"]
        assert (done.pending, done.queued) == (0, ()) and done.relations
        assert memory.take_facts(done) is done
