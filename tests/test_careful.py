"""Careful retrieval: token vectors come and go with their memories, searches score with them."""

from dataclasses import replace

import pytest
from memorykit import WordTokens, bytes_beside, quick, texts

from edgemem.config import load_settings
from edgemem.errors import ModelError, ModelNotFound, StoreCorrupt
from edgemem.results import Query, Scope
from edgemem.retrieval.search import FEATURES, MATCHES, match, refresh
from edgemem.runtime.embedder import TokenEmbedder

DIM = WordTokens.dim
SAID = "Ana keeps a tortoise in the greenhouse."
OTHERS = ["Ana went to the market.", "It rained all day.", "The greenhouse needs new glass."]


def careful(path=":memory:", model_id="words@1", **more):
    return quick(path, token_embedder=WordTokens(model_id), **more)


def held(memory):
    """How many memories have token vectors."""
    return memory.store.select("SELECT count(*) FROM token_vectors")[0][0]


def remember(memory):
    memory.add([SAID, *OTHERS], user_id="ana", infer=False)


# Where they come from


def test_what_is_added_or_changed_has_the_token_vectors_of_its_text_of_now():
    with careful() as memory:
        remember(memory)
        assert held(memory) == 4
        (item,) = [i for i in memory.get_all() if i.memory == SAID]
        memory.update(item.id, "Ana keeps a parrot.")
        assert memory.token_embedder.embedded[-1] == "Ana keeps a parrot."
        assert held(memory) == 4


def test_a_fast_memory_makes_none_and_a_careful_one_catches_up():
    with quick() as memory:
        remember(memory)
        assert held(memory) == 0
        memory._parts._token_embedder = WordTokens()
        memory.process_pending()
        assert held(memory) == 4


def test_an_add_looks_for_token_vectors_among_what_it_wrote_alone(monkeypatch):
    with careful() as memory:
        remember(memory)
        ran = []
        select = memory.store.select
        monkeypatch.setattr(memory.store, "select", lambda *q: ran.append(q) or select(*q))
        memory.add("Ana bought a kite.", user_id="ana", infer=False)
        sql, *given = next(q for q in ran if "token_vectors" in q[0] and "NOT EXISTS" in q[0])
        plan = select(f"EXPLAIN QUERY PLAN {sql}", *given)
    assert "idx_memories_generation" in plan[0][3]


def test_catching_up_tells_how_far_it_is_and_is_no_part_of_a_limited_turn():
    with quick() as memory:
        remember(memory)
        memory._parts._token_embedder = WordTokens()
        memory.process_pending(1)
        assert held(memory) == 0
        told = []
        memory.reindex(lambda done, of: told.append((done, of)))
        assert held(memory) == 4 and told == [(4, 4), (4, 4)]
        assert memory.doctor()["token_embedder"] == "words@1"


def test_what_is_stored_stays_when_its_token_vectors_fail(monkeypatch):
    def broken(self, text):
        raise ModelError("the model failed")

    with careful() as memory:
        with monkeypatch.context() as patch:
            patch.setattr(WordTokens, "embed", broken)
            remember(memory)
        assert SAID in texts(memory.get_all()) and held(memory) == 0
        memory.process_pending()
        assert held(memory) == 4


def test_a_model_that_is_not_installed_leaves_retrieval_fast(monkeypatch, caplog):
    def absent(**_):
        raise ModelNotFound("the extra colbert is not installed")

    monkeypatch.setattr(TokenEmbedder, "load", absent)
    settings = replace(load_settings(), retrieval="careful")
    with quick(settings=settings) as memory:
        assert memory.token_embedder is None
        remember(memory)
        assert memory.search("tortoise")[0].memory == SAID
        assert held(memory) == 0 and not caplog.records


def test_a_text_that_changed_meanwhile_gets_no_vectors_of_its_old_words():
    with careful() as memory:
        remember(memory)
        ((rowid, text),) = memory.store.select(
            "SELECT rowid, search_text FROM memories WHERE memory = ?", SAID
        )
        with memory.store.transaction() as tx:
            tx.set_tokens("words@1", [(rowid, "another text", b"\x01" * DIM)])
        with memory.store.transaction() as tx:
            tx.set_tokens("words@1", [(rowid, text, b"\x02" * DIM)])
        assert memory.store.tokens("words@1", [rowid], DIM) == {rowid: b"\x02" * DIM}


# Where they go


def test_what_is_deleted_or_erased_leaves_no_token_vectors(tmp_path):
    path = tmp_path / "a.db"
    with careful(path) as memory:
        remember(memory)
        first, second = (i for i in memory.get_all() if i.memory in (SAID, OTHERS[0]))
        tokens = memory.token_embedder.embed(SAID).tobytes()
        assert tokens in bytes_beside(path)
        memory.delete(second.id)
        assert held(memory) == 3
        memory.erase(first.id)
        assert held(memory) == 2 and tokens not in bytes_beside(path)
        memory.reset()
        assert held(memory) == 0


# Searching


def test_a_careful_search_explains_each_score_by_parts_that_add_up_to_it():
    with careful() as memory:
        remember(memory)
        hits = memory.search("Where is the tortoise?", user_id="ana", explain=True)
        assert hits[0].memory == SAID
        for hit in hits:
            assert set(hit.parts) == {"base", *FEATURES, *MATCHES}
            assert sum(hit.parts.values()) == pytest.approx(hit.score, abs=1e-6)


def test_a_match_is_told_of_a_turn_of_those_beside_it_and_of_all_three():
    turns = [{"role": "user", "content": text} for text in ("a heron", "it ate", "the frog")]
    with careful() as memory:
        memory.add(turns, user_id="ana", infer=False)
        asked = memory._parts.query_tokens("heron frog")
        refresh(memory.store, memory.index)
        vector = memory.embedder.embed_query("heron frog")
        found = memory.index.candidates(Query("heron frog", Scope(user_id="ana")), vector)
        own, around, before, after = match(memory.store, asked, found.around).T
    assert before.tolist() == [0, *own[:2]] and after.tolist() == [*own[1:], 0]
    assert around[1] == pytest.approx(1, abs=0.01)  # either word is beside "it ate"
    assert own[1] < own[0] < 0.9 and own[1] < own[2] < 0.9


def test_a_search_before_the_vectors_are_there_scores_as_a_fast_one():
    with quick() as memory:
        remember(memory)
        fast = memory.search("Where is the tortoise?", user_id="ana", explain=True)
        memory._parts._token_embedder = WordTokens()
        assert memory.search("Where is the tortoise?", user_id="ana", explain=True)[:] == fast[:]


def test_a_memory_without_vectors_is_found_among_those_that_have_some():
    with careful() as memory:
        remember(memory)
        (rowid,) = memory.store.select("SELECT rowid FROM memories WHERE memory = ?", SAID)[0]
        with memory.store.transaction() as tx, tx.step() as connection:
            connection.execute("DELETE FROM token_vectors WHERE memory = ?", (rowid,))
        hits = memory.search("Where is the tortoise?", user_id="ana", explain=True)
        found = {hit.memory: set(hit.parts) for hit in hits}
        assert found[SAID] == {"base", *FEATURES}
        assert all(found[text] == {"base", *FEATURES, *MATCHES} for text in OTHERS)
        scores = [hit.score for hit in hits]
        assert scores == sorted(scores, reverse=True)


def test_vectors_of_another_model_are_not_compared_and_reindex_makes_them_anew(tmp_path):
    path = tmp_path / "a.db"
    with careful(path) as memory:
        remember(memory)
    with careful(path, model_id="words@2") as memory:
        parts = memory.search("tortoise", user_id="ana", explain=True)[0].parts
        assert set(parts) == {"base", *FEATURES}
        memory.reindex()
        parts = memory.search("tortoise", user_id="ana", explain=True)[0].parts
        assert set(parts) == {"base", *FEATURES, *MATCHES}


def test_an_import_is_searched_as_carefully_as_what_was_exported(tmp_path):
    with careful() as memory, careful() as other:
        remember(memory)
        memory.export_jsonl(tmp_path / "out.jsonl")
        other.import_jsonl(tmp_path / "out.jsonl")
        assert held(other) == 4
        question = "Where is the tortoise?"
        wanted, found = (m.search(question, user_id="ana", explain=True) for m in (memory, other))
        assert texts(wanted) == texts(found)
        assert [hit.score for hit in wanted] == [hit.score for hit in found]


def test_broken_token_vectors_are_damage_that_is_told():
    with careful() as memory:
        remember(memory)
        with memory.store.transaction() as tx, tx.step() as connection:
            connection.execute("UPDATE token_vectors SET tokens = x'0102'")
        with pytest.raises(StoreCorrupt, match="token vectors do not have 16 numbers"):
            memory.search("tortoise")


def test_a_careful_search_of_nothing_finds_nothing():
    with careful() as memory:
        assert memory.search("Where is the tortoise?")[:] == ()
        remember(memory)
        assert memory.search("Where is the tortoise?", user_id="nobody")[:] == ()
