"""A search of a store: what it finds, what it leaves out, and what it says of a score."""

import numpy as np
import pytest
from memorykit import BagOfWords, quick
from storekit import ADA, DIM, FAR_AHEAD, LONG_AGO, T0, add, memory, turn, unit

from edgemem.errors import DimensionMismatch, ModelError
from edgemem.results import Query, Scope
from edgemem.retrieval.lexical import Postings
from edgemem.retrieval.search import FEATURES, KEPT_VISIBLE, SearchIndex, find, refresh
from edgemem.store.filters import compile_filters

BOB = Scope(user_id="bob")
E = np.eye(DIM, dtype=np.float32)


def ask(store, query, vector=E[0], **more):
    explain = bool(more.pop("explain", False))
    asked = Query(query, **more)
    return find(store, SearchIndex(DIM), asked, vector, explain=explain)[0]


def rowids(found):
    return [hit.rowid for hit in found]


# What is found


def test_words_and_meaning_each_find_a_memory(store):
    add(store, *(memory(f"m{i}", "plain", vectors=-E[:1]) for i in range(300)))
    near, worded = add(
        store,
        memory("near", "something else", vectors=E[:1]),
        memory("worded", "the cello", vectors=-E[:1]),
    )
    found = ask(store, "cello lessons", top_k=2)
    assert sorted(rowids(found)) == sorted([near, worded])


def test_a_memory_without_a_vector_is_found_by_its_words(store):
    add(store, memory("m", "tea", vectors=E[:1]))
    (bare,) = add(store, memory("bare", "cello", vectors=np.empty((0, DIM), np.float32)))
    assert bare in rowids(ask(store, "cello"))


def test_the_best_come_first_and_k_of_them(store):
    add(store, *(memory(f"m{i}", f"word{i}", vectors=unit(i)) for i in range(30)))
    every = ask(store, "word7 word9", top_k=100)
    assert len(every) == 30
    scores = [hit.score for hit in every]
    assert scores == sorted(scores, reverse=True) and all(0 < score < 1 for score in scores)
    for k in (1, 5, 29):
        assert ask(store, "word7 word9", top_k=k) == every[:k]


def test_it_says_how_many_were_scored(store):
    add(store, *(memory(f"m{i}", "tea") for i in range(20)))
    found, scored = find(store, SearchIndex(DIM), Query("tea", ADA, top_k=3), E[0])
    assert (len(found), scored) == (3, 20)
    assert find(store, SearchIndex(DIM), Query("tea", BOB, top_k=3), E[0]) == ([], 0)


def test_scopes_kinds_times_and_filters_leave_out(store):
    now = add(
        store,
        memory("a", "tea", metadata={"place": "home"}),
        memory("b", "tea", scope=BOB),
        memory("c", "tea", kind="summary"),
        memory("over", "tea", valid_to=LONG_AGO),
        memory("not yet over", "tea", expires_at=FAR_AHEAD),
        memory("deleted", "tea"),
    )
    with store.transaction() as tx:
        tx.delete_memory("deleted", T0)
    a, b, c, _, later, _ = now
    assert sorted(rowids(ask(store, "tea"))) == [a, b, c, later]
    assert sorted(rowids(ask(store, "tea", scope=ADA))) == [a, c, later]
    assert rowids(ask(store, "tea", scope=BOB)) == [b]
    assert rowids(ask(store, "tea", scope=Scope("nobody"))) == []
    assert rowids(ask(store, "tea", kinds=frozenset({"summary"}))) == [c]
    where = compile_filters({"place": "home"})
    assert rowids(ask(store, "tea", where=where)) == [a]
    assert rowids(ask(store, "tea", where=where, scope=BOB)) == []


def test_a_memory_that_matches_a_filter_is_found_among_many_nearer_ones(store):
    add(store, *(memory(f"m{i}", "tea", vectors=E[:1]) for i in range(300)))
    (far,) = add(store, memory("far", "milk", vectors=-E[:1], metadata={"place": "home"}))
    assert rowids(ask(store, "tea", where=compile_filters({"place": "home"}), top_k=1)) == [far]


# A turn and its facts


def conversation(store, n, facts=2):
    """Turns that say the same, each with facts of it: memories of each, the turn's own first."""
    made = []
    for i in range(n):
        own = memory(f"m{i}", "tea", kind="turn", sources=(f"t{i}",), vectors=E[:1])
        of = [memory(f"f{i}.{j}", "tea", sources=(f"t{i}",), vectors=E[:1]) for j in range(facts)]
        made.append(add(store, turn(f"t{i}"), own, *of)[1:])
    return made


def test_a_turn_and_its_facts_do_not_repeat_each_other(store):
    made = conversation(store, 8)
    found = rowids(ask(store, "tea", top_k=20))
    for own, *facts in made:
        assert (own in found) != bool(set(facts) & set(found))
        assert own in found or set(facts) <= set(found)


def test_whichever_is_better_stands_for_the_other(store):
    same = {"kind": "fact", "sources": ("t",)}
    _, own, fact, other = add(
        store,
        turn("t"),
        memory("m", "I had tea and then milk", kind="turn", sources=("t",), vectors=E[:1]),
        memory("f", "cello", vectors=-E[:1], **same),
        memory("g", "rain", vectors=-E[:1], **same),
    )
    assert rowids(ask(store, "had tea milk")) == [own]
    assert sorted(rowids(ask(store, "cello rain", -E[0]))) == [fact, other]


def test_repeated_facts_leave_room_for_k_others(store):
    """Three times k are looked at: of every turn that has two facts, the turn or the two."""
    conversation(store, 30)
    for k in (1, 5, 20):
        assert len(ask(store, "tea", top_k=k)) == k


def test_turns_that_outrank_many_facts_of_theirs_leave_room_for_k_others(store):
    for i in range(5):
        own = memory(f"m{i}", "tea in Rome", kind="turn", sources=(f"t{i}",), vectors=E[:1])
        of = [memory(f"f{i}.{j}", "Rome", sources=(f"t{i}",), vectors=E[:1]) for j in range(6)]
        add(store, turn(f"t{i}"), own, *of)
    add(store, *(memory(f"o{i}", f"word{i}", vectors=-E[:1]) for i in range(9)))
    for k in (2, 5, 10, 14):
        assert len(ask(store, "tea in Rome", top_k=k)) == k


def test_a_search_while_the_store_is_reindexed_answers_with_no_other_models_vectors(tmp_path):
    class Asked(BagOfWords):
        act = None

        def embed_query(self, text):
            act, self.act = self.act, None
            if act is not None:
                act()
            return super().embed_query(text)

    asked = Asked()
    path = tmp_path / "a.db"
    with quick(path, embedder=asked) as ours:
        ours.add("Ana swims in the lake.", infer=False)
        assert ours.search("swims")
        with quick(path, embedder=BagOfWords(model_id="other@1")) as other:
            asked.act = other.reindex
            with pytest.raises(DimensionMismatch, match="other@1"):
                ours.search("swims")


def test_an_embedder_that_gives_no_numbers_is_named(tmp_path):
    class Broken(BagOfWords):
        def embed_query(self, text):
            return np.full(self.dim, np.nan, np.float32)

    with quick(embedder=Broken()) as opened:
        opened.add("Ana swims in the lake.", infer=False)
        with pytest.raises(ModelError, match="bag@1"):
            opened.search("swims")


# What a score is


def test_explained_parts_add_up_to_the_score_and_change_nothing(store):
    add(store, *(memory(f"m{i}", f"tea word{i}", vectors=unit(i)) for i in range(40)))
    plain = ask(store, "tea word7 yesterday", top_k=40)
    explained = ask(store, "tea word7 yesterday", top_k=40, explain=True)
    assert [(h.rowid, h.score) for h in plain] == [(h.rowid, h.score) for h in explained]
    assert all(hit.parts is None for hit in plain)
    for hit in explained:
        assert hit.parts is not None and list(hit.parts) == ["base", *FEATURES]
        assert sum(hit.parts.values()) == pytest.approx(hit.score, abs=1e-6)


def test_a_users_scores_do_not_depend_on_what_others_remember(store):
    """Neither the words' rarity, nor who is named, nor what stands beside a turn.

    As long as no metric is fitted: users who have few vectors share one.
    """
    for i in range(6):
        mine = memory(f"m{i}", f"tea word{i}", kind="turn", sources=(f"t{i}",), vectors=unit(i))
        add(store, turn(f"t{i}", name="Ana" if i % 2 else None), mine)
    queries = ["tea word2", "What did Bea say of tea?", "When did Ana have word3?", "I word9"]
    before = [ask(store, query, scope=ADA, explain=True) for query in queries]
    for i in range(30):
        own = memory(f"b{i}", "tea word2 word9 " * 5, kind="turn", scope=BOB, sources=(f"s{i}",))
        add(store, turn(f"s{i}", name="Bea", scope=BOB), own)
    assert [ask(store, query, scope=ADA, explain=True) for query in queries] == before
    # Nor on what is no longer there.
    with store.transaction() as tx:
        for i in range(30):
            tx.delete_memory(f"b{i}", T0)
    assert [ask(store, query, scope=ADA, explain=True) for query in queries] == before


# Through Memory


@pytest.fixture
def opened():
    with quick() as memory:
        yield memory


def test_what_a_person_said_is_asked_for_by_name(opened):
    said = [{"role": "user", "name": n, "content": "I like tea."} for n in ("Ana", "Bea")]
    opened.add(said, infer=False)
    (first, second) = opened.search("What does Bea like?", explain=True)
    assert first.parts["speaker"] > 0 > second.parts["speaker"]
    found = opened.search("What does she like?", explain=True)
    assert all(hit.parts is not None and hit.parts["speaker"] == 0 for hit in found)


def test_a_query_by_day_finds_what_was_said_then(opened):
    for day in range(1, 9):
        opened.add("We met.", timestamp=f"2024-05-0{day}T10:00:00Z", infer=False)
    (first, *_) = opened.search("Who met on 7 May 2024?")
    assert first.valid_from is not None and first.valid_from.startswith("2024-05-07")


def test_a_long_text_is_found_by_its_end(opened):
    """Its vectors are several, and the best one counts."""
    opened.add(["short of it", " ".join(["plain words here"] * 300) + " cello"], infer=False)
    assert len(BagOfWords().embed_chunks(["plain words here " * 300])[0]) > 1
    assert opened.search("cello", top_k=1)[0].memory.endswith("cello")


# What a search may see is kept for the next one: never longer than it is true

NOW = 1_900_000_000.0  # 2030-03-17T17:46:40Z
IN_AN_HOUR = "2030-03-17T18:46:40.000Z"


def tea(store, id, **fields):
    add(store, memory(id, f"{id} likes tea", vectors=E[:1], **fields))


def seen(store, memories, scope=ADA, now=NOW, kinds=None, rowids=None):
    refresh(store, memories)
    candidates = memories.candidates(Query("tea", scope, kinds=kinds, now=now), E[0], rowids)
    # One of them is in the vectors, the words and the mask of neighbours, or in none.
    assert (candidates.features[:, 0] > 0).all() and (candidates.features[:, 2] > 0).all()
    return candidates.rowids.tolist()


def test_a_search_sees_what_was_written_since_the_last_one(store):
    memories = SearchIndex(DIM)
    tea(store, "a")
    assert seen(store, memories) == [1]
    tea(store, "b")
    assert seen(store, memories) == [1, 2]
    with store.transaction() as tx:
        tx.delete_memory("a", "2030-01-02T00:00:00.000Z")
    assert seen(store, memories) == [2]


def test_scopes_and_kinds_do_not_see_each_others(store):
    memories = SearchIndex(DIM)
    tea(store, "a")
    tea(store, "b", scope=BOB)
    tea(store, "c", kind="summary")
    for _ in range(2):
        assert seen(store, memories) == [1, 3]
        assert seen(store, memories, BOB) == [2]
        assert seen(store, memories, Scope()) == [1, 2, 3]
        assert seen(store, memories, kinds=frozenset({"summary"})) == [3]
        assert seen(store, memories, rowids=np.array([1])) == [1]
    assert len(memories._visible_by_scope) <= KEPT_VISIBLE


def test_a_memory_ends_between_two_searches_without_a_write(store):
    memories = SearchIndex(DIM)
    tea(store, "a")
    tea(store, "b", expires_at=IN_AN_HOUR)
    assert seen(store, memories, now=NOW) == [1, 2]
    assert seen(store, memories, now=NOW + 3599) == [1, 2]
    assert seen(store, memories, now=NOW + 3600) == [1]
    assert seen(store, memories, now=NOW) == [1, 2]  # the clock was put back


def test_more_scopes_than_are_kept_are_all_answered_right(store):
    memories = SearchIndex(DIM)
    users = [Scope(user_id=f"u{i}") for i in range(KEPT_VISIBLE + 3)]
    for i, user in enumerate(users):
        tea(store, f"m{i}", scope=user)
    for _ in range(2):
        assert [seen(store, memories, user) for user in users] == [
            [i + 1] for i in range(len(users))
        ]
    assert len(memories._visible_by_scope) == KEPT_VISIBLE


def test_having_marks_the_documents_with_any_of_the_terms():
    postings = Postings()
    postings.apply([], [1, 3, 7], [{"tea": 1}, {"milk": 2}, {"rain": 1}])
    assert np.flatnonzero(postings.with_any(["tea", "rain", "unknown"])).tolist() == [1, 7]


def test_what_says_when_is_looked_at_anew_after_a_write(store):
    memories = SearchIndex(DIM)
    column = FEATURES.index("time")

    def times():
        refresh(store, memories)
        got = memories.candidates(Query("When was there tea?", ADA, now=NOW), E[0])
        return got.features[:, column].tolist()

    tea(store, "a")
    assert times() == [0]
    tea(store, "yesterday, b")
    assert times() == times() == [0, 1]


def test_a_store_of_another_dimension_is_a_store_error_that_names_both(store):
    add(store, memory("m"))
    with pytest.raises(DimensionMismatch, match=rf"{DIM + 1} dimensions, the store {DIM}"):
        refresh(store, SearchIndex(DIM + 1))
