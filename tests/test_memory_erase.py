"""Erasing through Memory: no byte of the text is left in any file beside the store."""

from functools import partial
from unittest.mock import Mock

import pytest
from fake_engine import FakeEngine
from memorykit import bytes_beside, quick, texts

from edgemem import cachefile
from edgemem.errors import InputError, ModelError, StoreFull
from edgemem.pipeline import upkeep
from edgemem.retrieval.index import VectorIndex

SECRET = "xyzzyplugh"
SAID = f"I hid the {SECRET} under the oak."


def leave_an_index_file(memory):
    """As a store of many memories has: here by a crossover of none."""
    memory.index.vectors.crossover = 0
    memory.search("warm")
    memory.index.vectors.build_hnsw()
    file = memory._parts.index_file
    assert file is not None
    generation = memory.index.generation
    assert memory.index.vectors.save(file, generation=generation, model_id=memory.embedder.model_id)
    return file


def remember(path):
    facts = {SAID: f"{{}} hid the {SECRET} under the oak"}
    memory = quick(path, engine=FakeEngine(facts=facts))
    memory.add("I have a cat.", user_id="ana", infer=False)
    memory.add(
        SAID, user_id="ana", metadata={"why": f"{SECRET}-note"}, timestamp="2024-05-01T10:00Z"
    )
    return memory


def test_erase_leaves_no_trace_of_turn_fact_and_history_in_any_file(tmp_path):
    path = tmp_path / "a.db"
    with remember(path) as memory:
        (fact,) = memory.get_all(filters={"kind": "fact"})
        memory.update(fact.id, f"User hid the {SECRET} elsewhere")
        vector = memory.embedder.embed_chunks([SAID])[0][0]
        file = leave_an_index_file(memory)
        assert vector.tobytes() in file.read_bytes()  # an index file tells of its texts too
        assert SECRET.encode() in bytes_beside(path)

        gone = memory.erase(fact.id)
        assert len(gone) == 2  # the turn it came from goes with it
        left = bytes_beside(path)
        assert SECRET.encode() not in left and vector.tobytes() not in left
        assert not file.exists() and not cachefile.stamp_path(file).exists()
        assert texts(memory.get_all()) == ["I have a cat."]
        assert SECRET not in str([memory.history(id) for id in gone])
        assert texts(memory.search(SAID)) == ["I have a cat."]
        assert memory.doctor()["problems"] == []
    assert SECRET.encode() not in bytes_beside(path)


class Reader(FakeEngine):
    """Takes facts as an expert does: shown what was said before."""

    def expert(self, stage):
        return stage == "extraction"

    def generate(self, prompt, *, stage="", **options):
        asked = "\n".join(str(prompt).splitlines()[:-1])  # without whom it is about
        found = super().generate(asked, stage=stage, **options)
        self.prompts[-1] = stage, prompt
        return found


LATER = "We dug it up at noon."


def test_erase_takes_a_fact_that_has_its_words_from_a_turn_before(tmp_path):
    path = tmp_path / "a.db"
    engine = Reader(facts={LATER: f"{{}} dug up the {SECRET} at noon"})
    with quick(path, engine=engine) as memory:
        memory.add(SAID, user_id="ana")
        memory.add(LATER, user_id="ana")
        (fact,) = memory.get_all(filters={"kind": "fact"})
        assert SECRET in fact.memory and SAID in engine.prompts[-1][1]
        (said,) = (m for m in memory.get_all() if m.memory == SAID)
        assert fact.id in memory.erase(said.id)
        assert SECRET.encode() not in bytes_beside(path)


def test_what_is_deleted_is_not_shown_with_what_is_said_after(tmp_path):
    engine = Reader()
    with quick(tmp_path / "a.db", engine=engine) as memory:
        memory.add(SAID, user_id="ana")
        memory.delete(memory.get_all()[0].id)
        memory.add(LATER, user_id="ana")
    assert SECRET not in str(engine.prompts[-1]) and LATER in str(engine.prompts[-1])


def test_erase_takes_a_list_and_ids_of_deleted_memories(tmp_path):
    path = tmp_path / "a.db"
    with remember(path) as memory:
        ids = [item.id for item in memory.get_all() if SECRET in item.memory]
        memory.delete_all(user_id="ana")
        assert SECRET.encode() in bytes_beside(path)
        assert set(memory.erase(iter(ids))) == set(ids)
        assert SECRET.encode() not in bytes_beside(path)
        assert list(memory.erase([])) == []


def test_erase_all_leaves_nothing_of_a_user_even_of_what_was_deleted_or_has_expired(
    tmp_path,
):
    path = tmp_path / "a.db"
    with remember(path) as memory:
        memory.delete_all(user_id="ana")
        memory.add("The old safe was green.", user_id="ana", infer=False, expires_at="2020-01-01")
        asked = {"role": "user", "content": "Where is the crowbar?", "recalled": True}
        memory.add(asked, user_id="ana", infer=False)
        memory.add("The sky is blue.", user_id="bob", infer=False)
        with pytest.raises(InputError, match="reset"):
            memory.erase_all()
        assert memory.erase_all(user_id="ana").receipt is not None
        left = bytes_beside(path)
        for word in (SECRET.encode(), b"green", b"crowbar"):
            assert word not in left
        assert texts(memory.get_all()) == ["The sky is blue."]
        assert list(memory.erase_all(user_id="ana")) == []


def test_reset_leaves_nothing_and_the_store_goes_on(tmp_path):
    path = tmp_path / "a.db"
    with remember(path) as memory:
        leave_an_index_file(memory)
        memory.reset()
        left = bytes_beside(path)
        assert SECRET.encode() not in left and b"cat" not in left
        assert not any(".hnsw" in file.name for file in tmp_path.iterdir())
        assert list(memory.get_all()) == list(memory.search("cat")) == []
        memory.add("I have a dog.", infer=False)
        assert texts(memory.search("dog")) == ["I have a dog."]


def test_another_process_that_closes_afterwards_does_not_bring_vectors_back(tmp_path):
    path = tmp_path / "a.db"
    with remember(path) as memory:
        vector = memory.embedder.embed_chunks([SAID])[0][0]
        other = quick(path)
        other.search("warm")  # it holds the vector now
        other.index.vectors.crossover = 0
        other.index.vectors.build_hnsw()
        memory.erase([item.id for item in memory.get_all() if SECRET in item.memory])
        other.close()  # writes its index file
    file = path.with_name("a.db.hnsw")
    assert file.exists()
    assert vector.tobytes() not in bytes_beside(path)


def test_an_index_file_that_cannot_be_deleted_stops_the_erase(tmp_path, monkeypatch):
    with remember(tmp_path / "a.db") as memory:
        (fact,) = memory.get_all(filters={"kind": "fact"})

        def refuse(path):
            raise PermissionError(13, "Permission denied", str(path))

        monkeypatch.setattr(cachefile, "discard", refuse)
        with pytest.raises(StoreFull, match=r"a\.db\.hnsw cannot be deleted \(Permission denied\)"):
            memory.erase(fact.id)
        assert memory.get(fact.id) is not None


def test_the_index_file_is_written_at_the_end_and_used_at_the_next_start(tmp_path, monkeypatch):
    path = tmp_path / "a.db"
    monkeypatch.setattr("edgemem.retrieval.search.VectorIndex", partial(VectorIndex, crossover=10))
    with quick(path) as memory:
        memory.add([f"word{n}" for n in range(50)], infer=False)
        memory.search("word7")
    assert path.with_name("a.db.hnsw").exists()
    loaded: list[bool] = []
    load = VectorIndex.load
    monkeypatch.setattr(
        VectorIndex, "load", lambda *a, **k: loaded.append(load(*a, **k)) or loaded[-1]
    )
    with quick(path) as memory:
        assert texts(memory.search("word7", top_k=1)) == ["word7"]
        assert loaded == [True]


def test_erase_takes_the_chats_answers_that_quote_the_memory(tmp_path):
    """An answer is a turn that no memory cites: left alone, it would outlive what it quotes."""
    path = tmp_path / "a.db"
    with remember(path) as memory:
        asked = {"role": "user", "content": f"Where is the {SECRET}?", "recalled": True}
        answer = {"role": "assistant", "content": f"The {SECRET} is under it", "recalled": True}
        memory.add([asked, answer], user_id="ana")
        memory.add([asked, answer], user_id="bob")
        (fact,) = memory.get_all(filters={"kind": "fact"})
        memory.erase(fact.id)
        assert memory.store.counts()["turns"] == 3  # the cat, and what bob's chat said
        memory.add("I am Bob.", user_id="bob", infer=False)
        memory.erase(memory.get_all(user_id="bob")[0].id)
        assert SECRET.encode() not in bytes_beside(path)


def test_the_model_forgets_its_prompts_even_if_the_erase_ends_with_an_error(
    monkeypatch,
):
    engine = FakeEngine()
    with quick(engine=engine) as memory:
        (said,) = memory.add(SAID, user_id="ana", infer=False)
        memory.engine  # noqa: B018  # is loaded
        engine.prompts.append(("chat", SAID))
        damaged = ModelError("the embedder's file is damaged")
        monkeypatch.setattr(upkeep, "read_relations", Mock(side_effect=damaged))
        with pytest.raises(ModelError):
            memory.erase(said.id)
        assert memory.get(said.id) is None and engine.prompts == []


@pytest.mark.parametrize("what", ["erase", "reset"])
def test_the_model_forgets_the_prompts_that_showed_what_is_erased(tmp_path, what):
    with remember(tmp_path / "m.db") as memory:
        assert SECRET in str(memory.engine.prompts)
        ids = [item.id for item in memory.get_all(user_id="ana")]
        memory.reset() if what == "reset" else memory.erase(ids)
        assert memory.engine.prompts == []
