"""All memories in memory: a search's features are what plain Python makes of the store."""

import threading

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from indexkit import changes
from metrickit import seeds
from storekit import DIM, unit
from worldkit import NOW, SAID, USERS, World, expected

from edgemem.results import Query, Scope
from edgemem.retrieval import metric as metric_module
from edgemem.retrieval.metric import MIN_VECTORS
from edgemem.retrieval.search import FEATURES, FEW, MANY, SearchIndex
from edgemem.store import Store

ANA, BOB = Scope("ana"), Scope("bob")


def filled(store):
    memories = SearchIndex(DIM)
    memories.apply(store.changes(0))
    return memories


def features_of(candidates):
    """By memory number: its place and its features."""
    columns = candidates.rowids, candidates.places, candidates.features
    rows = zip(*(column.tolist() for column in columns), strict=True)
    return {rowid: (at, dict(zip(FEATURES, row, strict=True))) for rowid, at, row in rows}


def assert_same(found, wanted):
    got = features_of(found)
    assert got.keys() == wanted.keys()
    for rowid, (place, features) in wanted.items():
        assert got[rowid][0] == place
        assert got[rowid][1] == pytest.approx(features, rel=1e-3, abs=2e-4), rowid


def query_of(rng):
    start = ["", "?!", "When ", "I ", "Bea ", "What did Ana "][rng.integers(6)]
    return start + " ".join(rng.choice([*SAID, "unknown"], rng.integers(0, 4)))


def test_a_search_under_way_ends_although_the_store_is_replaced_meanwhile():
    e = np.eye(2, DIM, dtype=np.float32)
    memories = SearchIndex(DIM)
    rows = np.tile(e[1], (60, 1))
    memories.apply(changes(1, range(1, 61), vectors=rows, text="tea", kind="image"))
    of_metric = memories.whitening.get

    def replaced(*asked):  # what a search asks outside the lock
        memories.apply(changes(2, [1], [1], e[:1], text="milk", full=True))
        return of_metric(*asked)

    memories.whitening.get = replaced
    found = memories.candidates(Query("tea", Scope(user_id="ann"), now=NOW), e[1])
    assert len(found.images) == 60 and found.images.all()
    memories.close()


# What a search computes

STEPS = ["say", "say", "conclude", "update", "invalidate", "delete", "erase", "follow"]


@settings(max_examples=60)
@given(seed=seeds, steps=st.lists(st.sampled_from(STEPS), max_size=40))
@example(seed=0, steps=[])
def test_features_are_those_of_plain_python_however_the_changes_came(seed, steps):
    rng = np.random.default_rng(seed)
    with Store.open(":memory:") as store:
        world, followed = World(store, rng), SearchIndex(DIM)
        for step in steps:
            if step == "say":
                world.say()
            elif step == "conclude":
                world.conclude()
            elif step == "follow":
                followed.apply(store.changes(followed.generation))
            else:
                world.change(step)
        followed.apply(store.changes(followed.generation))
        fresh = filled(store)
        assert len(followed) == len(fresh) == sum(len(r.vectors) for r in world.live().values())
        assume(len(fresh) < MIN_VECTORS)  # a metric is tested below
        for scope in (Scope(), *USERS):
            query, vector = query_of(rng), unit(int(rng.integers(2**31)))[0]
            kinds = [None, frozenset({"turn"}), frozenset({"fact"})][rng.integers(3)]
            wanted = expected(world, query, vector, scope=scope, kinds=kinds)
            for memories in (followed, fresh):
                found = memories.candidates(Query(query, scope, kinds=kinds, now=NOW), vector)
                assert_same(found, wanted)
                assert found.similarity == "cosine"


@settings(max_examples=10)
@given(seed=seeds)
def test_features_under_a_metric_are_those_of_plain_python(seed):
    rng = np.random.default_rng(seed)
    with Store.open(":memory:") as store:
        world = World(store, rng)
        while sum(len(r.vectors) for r in world.rows.values()) < MIN_VECTORS + 20:
            world.say(ANA if len(world.rows) % 8 else BOB)
        memories = filled(store)
        rows = list(world.live().values())
        for scope in (ANA, BOB, Scope()):
            vectors = [r.vectors for r in rows if scope == ANA and r.scope == ANA]
            own = np.concatenate(vectors or [r.vectors for r in rows])
            if len(own) < MIN_VECTORS:
                own = np.concatenate([r.vectors for r in rows])
            query, vector = query_of(rng), unit(int(rng.integers(2**31)))[0]
            found = memories.candidates(Query(query, scope, now=NOW), vector)
            assert found.similarity == "metric"
            metric = metric_module.fit(own)
            assert_same(found, expected(world, query, vector, scope=scope, metric=metric))
        memories.close()


def test_the_nearest_the_best_by_words_and_those_beside_them_are_candidates():
    """Of many memories not all are scored."""
    n = 400
    e = np.eye(2, DIM, dtype=np.float32)
    vectors = np.tile(e[1], (n, 1))
    vectors[:120] = e[0]
    text = ["plain"] * n
    text[300] = "cello"
    memories = SearchIndex(DIM)
    turns = list(range(1, n + 1))
    more = {"text": text, "kind": "turn", "turn": turns, "role": "user"}
    memories.apply(changes(1, turns, vectors=vectors, **more))
    found = memories.candidates(Query("cello", Scope(), now=NOW), e[0]).rowids.tolist()
    # Equal ones: the earlier stored. 101 is beside 100, as 300 and 302 are beside 301.
    assert found == [*range(1, 102), 300, 301, 302]
    more = memories.candidates(Query("cello", Scope(), now=NOW, top_k=60), e[0]).rowids.tolist()
    assert more == [*range(1, 122), 300, 301, 302]
    some = np.array([50, 301, 399])
    got = memories.candidates(Query("cello", Scope(), now=NOW), e[0], some)
    assert got.rowids.tolist() == some.tolist()


def test_nearest_gives_cosines_of_what_is_live_in_a_scope():
    with Store.open(":memory:") as store:
        world = World(store, np.random.default_rng(3))
        for _ in range(30):
            world.say()
            world.conclude()
        vector = unit(9)[0]
        rowids, cosines = filled(store).nearest(
            Query("", ANA, kinds=frozenset({"fact"}), top_k=4), vector
        )
        best = {
            r.rowid: float((r.vectors @ vector).max())
            for r in world.rows.values()
            if r.scope.user_id == "ana" and r.kind == "fact" and not r.ended and len(r.vectors)
        }
        order = sorted(best, key=lambda rowid: -best[rowid])[:4]
        assert rowids.tolist() == order
        np.testing.assert_allclose(cosines, [best[i] for i in order], rtol=1e-5)


# Which metric


def users_of(*counts):
    """A memory of one vector for each, users "0", "1", …"""
    memories, n = SearchIndex(DIM), sum(counts)
    owner = [str(user) for user, count in enumerate(counts) for _ in range(count)]
    memories.apply(changes(1, range(1, n + 1), vectors=unit(7, n), user=owner))
    return memories


@pytest.mark.parametrize(
    ("counts", "user", "fitted_on"),
    [
        ((MIN_VECTORS - 1,), "0", None),
        ((MIN_VECTORS,), "0", slice(0, MIN_VECTORS)),
        ((MIN_VECTORS, 30), "0", slice(0, MIN_VECTORS)),
        ((MIN_VECTORS, 30), "1", slice(0, MIN_VECTORS + 30)),
        ((MIN_VECTORS, 30), "nobody", slice(0, MIN_VECTORS + 30)),
        ((MIN_VECTORS, 30), None, slice(0, MIN_VECTORS + 30)),
        ((10, 30), "1", None),
    ],
)
def test_a_user_with_enough_vectors_has_a_metric_and_the_others_share_one(counts, user, fitted_on):
    memories, query = users_of(*counts), unit(5)[0]
    found = memories.candidates(Query("", Scope(user), now=NOW), query)
    vectors = unit(7, sum(counts))
    if fitted_on is None:
        assert found.similarity == "cosine"
        similar = vectors @ query
    else:
        assert found.similarity == "metric"
        metric = metric_module.fit(vectors[fitted_on])
        asked = metric.query(query)
        similar = (vectors @ asked.image + asked.offset) / asked.norm
    column = found.features[:, FEATURES.index("similarity")]
    np.testing.assert_allclose(column, similar[found.rowids - 1], rtol=1e-3, atol=1e-4)
    memories.close()


@pytest.mark.parametrize("count", [1, FEW, 7, MANY, MANY + 30])
def test_how_many_a_search_sees_counts_from_few_to_many(count):
    memories = users_of(count, 3)
    found = memories.candidates(Query("", Scope("0"), now=NOW), unit(5)[0])
    column = found.features[:, FEATURES.index("among")]
    np.testing.assert_allclose(column, np.log(np.clip(count, FEW, MANY)), rtol=1e-6)
    memories.close()


# One generation


def test_a_search_sees_what_was_there_when_it_began(monkeypatch):
    """Whatever is taken in while it goes on: here when it asks for its metric."""
    turns = list(range(1, 21))
    more = {"kind": "turn", "role": "user", "time": 60.0}
    memories = SearchIndex(DIM)
    first = changes(
        1, turns, vectors=unit(1, 20), turn=turns, speaker=["Ana", "Bea"] * 10, text="tea", **more
    )
    memories.apply(first)
    expected = features_of(memories.candidates(Query("Ana tea", Scope(), now=NOW), unit(4)[0]))
    inner, taken = memories.whitening.get, []

    def meanwhile(*arguments):
        if not taken:
            taken.append(True)
            new = [21, 22, 23]  # few enough to go where there is room
            memories.apply(
                changes(2, new, vectors=unit(2, 3), turn=new, speaker="Ana", text="tea", **more)
            )
            edited = {"turn": [3], "speaker": "Ana", "text": "milk", "asks": True, **more}
            memories.apply(changes(3, [400], [3], unit(3), removed=[3, 5], **edited))
        return inner(*arguments)

    monkeypatch.setattr(memories.whitening, "get", meanwhile)
    found = memories.candidates(Query("Ana tea", Scope(), now=NOW), unit(4)[0])
    assert taken and features_of(found) == expected
    after = features_of(memories.candidates(Query("Ana tea", Scope(), now=NOW), unit(4)[0]))
    assert 5 not in after and 23 in after and after[3][1]["question"] == 1
    memories.close()


def test_searches_see_every_update_whole_while_another_thread_makes_it():
    """A memory whose vector, words and turn change together, over and over."""
    e = np.eye(2, DIM, dtype=np.float32)
    memories = SearchIndex(DIM)
    texts = ["tea", "milk"]
    memories.apply(changes(1, range(1, 61), vectors=np.tile(e[1], (60, 1)), text="plain"))
    memories.apply(changes(2, [61], [61], e[:1], text=texts[0]))
    wrong, done = [], threading.Event()

    def look():
        while not done.is_set():
            found = features_of(memories.candidates(Query("tea", Scope(), now=NOW), e[0]))
            _, seen = found[61]
            said = bool(seen["similarity"] == 1), seen["bm25"] > 0, seen["coverage"] == 1
            if len(set(said)) != 1 or seen["question"] == seen["bm25"] > 0:
                wrong.append(seen)
                return

    threads = [threading.Thread(target=look) for _ in range(2)]
    for thread in threads:
        thread.start()
    for generation in range(3, 303):
        now = generation % 2
        more = {"removed": [61], "text": texts[now], "asks": bool(now)}
        memories.apply(changes(generation, [generation * 100], [61], e[now : now + 1], **more))
    done.set()
    for thread in threads:
        thread.join()
    assert not wrong
    memories.close()


def test_older_changes_are_ignored_and_a_backup_put_back_is_not():
    memories = SearchIndex(DIM)
    memories.apply(changes(1, [1, 2], vectors=unit(1, 2), full=True))
    memories.apply(changes(5, [3], vectors=unit(2), removed=[1]))
    memories.apply(changes(4, [1], vectors=unit(3)))

    def found():
        return memories.candidates(Query("", Scope(), now=NOW), unit(1)[0]).rowids.tolist()

    assert (found(), memories.generation) == ([2, 3], 5)
    memories.apply(changes(2, [1, 2], vectors=unit(1, 2), full=True))
    assert (found(), memories.generation) == ([1, 2], 2)


def test_full_changes_that_come_late_do_not_take_back_newer_ones():
    memories = SearchIndex(DIM)
    memories.apply(changes(1, [1], vectors=unit(1), full=True), since=0)
    memories.apply(changes(3, [1, 2], vectors=unit(2, 2), full=True), since=1)
    memories.apply(changes(2, [1], vectors=unit(1), full=True), since=1)  # of a slower thread
    found = memories.candidates(Query("", Scope(), now=NOW), unit(1)[0]).rowids.tolist()
    assert (found, memories.generation) == ([1, 2], 3)


def test_every_part_counts_its_bytes():
    few, many = (users_of(n).memory_bytes() for n in (1, 2000))
    assert few.keys() == many.keys()
    assert few.keys() == {"vectors", "metric", "postings", "catalog", "masks"}
    assert many["vectors"] >= 2000 * DIM * 4 and few["vectors"] < many["vectors"]
    assert few["catalog"] < many["catalog"]
