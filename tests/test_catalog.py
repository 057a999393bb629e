"""The catalog: which memories a search may see, and which turns were said beside each other."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from indexkit import EVER, changes

from edgemem.results import Query, Scope
from edgemem.retrieval.catalog import NOBODY, SESSION_GAP_S, Catalog

ANY = Scope()
MINUTE = 60.0


def said(generation, rowids, **columns):
    """Changes by turns' own memories, a minute apart, each turn with its memory's number."""
    rowids = list(rowids)
    times = [MINUTE * n for n in rowids]
    columns = {"kind": "turn", "role": "user", "turn": rowids, "time": times, **columns}
    return changes(generation, rowids=rowids, **columns)


def catalog_of(*several):
    catalog = Catalog()
    for change in several:
        catalog.apply(change)
    return catalog


def found(catalog, scope=ANY, *, kinds=None, now=0.0, rowids=None):
    return np.flatnonzero(catalog.allowed(Query("", scope, kinds=kinds, now=now), rowids)).tolist()


def chains(catalog):
    """The turns and whatever else stands at its own place, each with what was said after it."""
    places, made = catalog.places(), []
    alone = [i for i in found(catalog) if places.place[i] == i]
    for first in (i for i in alone if places.before[i] == NOBODY):
        made.append(chain := [first])
        while (after := int(places.after[chain[-1]])) != NOBODY:
            assert places.before[after] == chain[-1] and after not in chain
            chain.append(after)
    sessions = [set(places.session[chain].tolist()) for chain in made]
    assert all(len(each) == 1 for each in sessions) and len(set.union(*sessions)) == len(made)
    assert sorted(at for chain in made for at in chain) == alone
    return made


# What a search may see


def test_scopes_kinds_and_times_filter():
    catalog = catalog_of(
        changes(
            1,
            rowids=range(1, 7),
            user=["ann", "ann", "bob", None, "ann", "ann"],
            agent=["x", None, "x", "x", "x", "x"],
            run=["r1", "r2", "r1", "r1", "r1", "r1"],
            kind=["fact", "turn", "fact", "fact", "summary", "fact"],
            until=[EVER, EVER, EVER, EVER, EVER, 100.0],
        )
    )
    assert found(catalog) == [1, 2, 3, 4, 5, 6]
    assert found(catalog, Scope(user_id="ann")) == [1, 2, 5, 6]
    assert found(catalog, Scope(user_id="ann", agent_id="x")) == [1, 5, 6]
    assert found(catalog, Scope(run_id="r1", agent_id="x")) == [1, 3, 4, 5, 6]
    assert found(catalog, Scope(user_id="nobody")) == []
    assert found(catalog, kinds={"fact"}) == [1, 3, 4, 6]
    assert found(catalog, kinds={"turn", "summary", "image"}) == [2, 5]
    assert found(catalog, kinds=set()) == []
    assert found(catalog, now=99.9) == [1, 2, 3, 4, 5, 6]
    assert found(catalog, now=100.0) == [1, 2, 3, 4, 5]
    assert found(catalog, rowids=np.array([2, 6, 99])) == [2, 6]
    assert found(catalog, rowids=np.array([], np.int64)) == []
    assert found(catalog, Scope(user_id="ann"), kinds={"fact"}, now=100.0) == [1]


def test_an_empty_catalog_allows_nothing():
    catalog = catalog_of(changes(1))
    assert found(catalog) == [] and len(catalog.allowed(Query("", now=0.0))) == catalog.end == 1


def test_a_changed_scope_kind_or_time_counts_from_then_on():
    catalog = catalog_of(changes(1, rowids=range(1, 11)))
    catalog.apply(changes(2, rowids=[4], user="bob", until=50.0, kind="summary"))
    assert found(catalog, Scope(user_id="bob")) == [4]
    assert 4 not in found(catalog, Scope(user_id="ann"))
    assert found(catalog, kinds={"summary"}) == [4]
    assert found(catalog, Scope(user_id="bob"), now=51.0) == []


def test_full_changes_forget_what_they_do_not_name():
    catalog = catalog_of(said(1, range(1, 6), speaker="Ana"))
    catalog.apply(said(2, [7, 9], speaker="Bea", full=True))
    allowed = catalog.allowed(Query("", now=0.0))
    assert found(catalog) == [7, 9] and chains(catalog) == [[7, 9]]
    assert catalog.speakers_named(["ana"], catalog.speakers(allowed)) == []
    catalog.apply(changes(3, full=True))
    assert found(catalog) == []


# Conversations


MIXED = ["a", "b", "a", None], ["b", None, "a"]
# What was said, the chains that it makes, and the place of each fact that has one.
CONVERSATIONS = {
    "an hour between two turns is one session and more are two": (
        [said(1, range(1, 5), time=[0, 100, 100 + SESSION_GAP_S, 101 + 2 * SESSION_GAP_S])],
        [[1, 2, 3], [4]], {},
    ),
    "an older time is another session if it is far off": (  # last year's talk, imported today
        [said(1, [1, 2, 3], time=[1e9, 1e9 - SESSION_GAP_S, 5e8])], [[1, 2], [3]], {}
    ),
    **{
        f"scopes that differ in {column} are kept apart however their turns are mixed": (
            [said(n, rows, **{column: users})
             for n, rows, users in zip((1, 2), (range(1, 5), range(5, 8)), MIXED, strict=True)],
            [[1, 3, 7], [2, 5], [4, 6]], {},
        )
        for column in ("user", "agent", "run")
    },
    "only turns are beside each other": (
        [changes(1, rowids=range(1, 5), kind=["turn", "fact", "turn", "summary"],
                 turn=[1, 0, 2, 0])],
        [[1, 3], [2], [4]], {},
    ),
    "a fact stands where its turn does": (
        [said(1, range(1, 6), kind=["turn"] * 3 + ["fact"] * 2, turn=[1, 2, 3, 2, 2])],
        [[1, 2, 3]], {4: 2, 5: 2},
    ),
    "a later fact stands where its turn does": (
        [said(1, [1, 2, 3]), changes(2, rowids=[4, 5], kind="fact", turn=2)],
        [[1, 2, 3]], {4: 2, 5: 2},
    ),
    "a fact of no turn or of one that is no memory stands alone": (
        [said(1, [1, 2], turn=[1, 3]), changes(2, rowids=[3, 4], kind="fact", turn=[0, 2])],
        [[1, 2], [3], [4]], {},
    ),
    "the turns around a deleted one move together": (  # as in a store that is opened afterwards
        [said(1, [1, 2, 3]), changes(2, rowids=[4], turn=2), changes(3, removed=[2])],
        [[1, 3], [4]], {},
    ),
    "a turn that was edited keeps its place": (
        [said(1, [1, 2, 3]), said(2, [2], removed=[2], asks=True)], [[1, 2, 3]], {}
    ),
    "a turn that comes late is put where it was said": (  # one that was deleted, imported again
        [said(1, [1, 2, 4], turn=[1, 2, 4]), changes(2, rowids=[5], turn=3),
         said(3, [6], turn=[3], time=[3 * MINUTE])],
        [[1, 2, 6, 4]], {5: 6},
    ),
}  # fmt: skip


@pytest.mark.parametrize(("batches", "expected", "at"), CONVERSATIONS.values(), ids=CONVERSATIONS)
def test_turns_are_chained_by_scope_and_session_and_facts_lie_at_their_turn(batches, expected, at):
    catalog = catalog_of(*batches)
    assert chains(catalog) == expected
    places = catalog.places()
    elsewhere = [i for i in found(catalog) if places.place[i] != i]
    assert {i: places.place[i] for i in elsewhere} == at
    for fact, turn in at.items():
        assert places.session[fact] == places.session[turn]


def test_a_view_of_the_places_stays_as_it_was():
    catalog = catalog_of(said(1, range(1, 5)))
    places = catalog.places()
    before = [np.array(c) for c in (places.after, places.before, places.place, places.asks)]
    catalog.apply(said(2, [5]))
    catalog.apply(said(3, [2], removed=[2, 3], asks=True))
    assert chains(catalog) == [[1, 2, 4, 5]]
    assert catalog.places().asks.tolist() == [False, False, True, False, False, False]
    after = [places.after, places.before, places.place, places.asks]
    for old, now in zip(before, after, strict=True):
        np.testing.assert_array_equal(old, now)


def same_places(one, other, allowed):
    """Whether two catalogs say the same of the memories that are there."""
    a, b = one.places(), other.places()
    return all(
        getattr(a, name)[allowed].tolist() == getattr(b, name)[allowed].tolist()
        for name in ("place", "session", "before", "after", "asks")
    )


@settings(max_examples=60)
@given(data=st.data())
def test_batches_one_at_a_time_leave_what_all_at_once_would(data):
    """Turns and facts of them, in several scopes, some removed on the way or brought late."""
    n = data.draw(st.integers(1, 25))
    turn_of, kinds, turns = {}, [], []
    order = data.draw(st.permutations(range(1, n + 1))) if data.draw(st.booleans()) else None
    for number in range(1, n + 1):
        known = sorted(turn_of)
        if known and data.draw(st.integers(0, 2)) == 0:
            kinds.append("fact")
            turns.append(data.draw(st.sampled_from([0, *known])))
        else:
            kinds.append("turn")
            turns.append(order[number - 1] if order else number)
            turn_of[turns[-1]] = number
    users = [data.draw(st.sampled_from(["a", "b", None])) for _ in range(n)]
    times = [data.draw(st.integers(0, 4)) * SESSION_GAP_S * 0.6 for _ in range(n)]

    def some(generation, numbers, **more):
        of = {
            name: [column[i - 1] for i in numbers]
            for name, column in (("kind", kinds), ("turn", turns), ("user", users), ("time", times))
        }
        return changes(generation, rowids=numbers, role="user", **of, **more)

    catalog, live, first = Catalog(), [], 1
    while first <= n:
        end = min(n, first + data.draw(st.integers(0, 5))) + 1
        gone = data.draw(st.sets(st.sampled_from(live), max_size=3)) if live else set()
        changed = data.draw(st.sets(st.sampled_from(live), max_size=3)) if live else set()
        now = sorted({*range(first, end), *changed} - gone)
        catalog.apply(some(first, now, removed=[*sorted(gone | changed), 99]))
        live = [*(i for i in live if i not in gone), *range(first, end)]
        first = end
    assert found(catalog) == live
    assert same_places(catalog, catalog_of(some(1, live, full=True)), live)


# Who said it


def test_speakers_are_named_by_any_word_of_their_name():
    speakers = ["Ana Lima", "Bea Lima", None, "D'Arcy"]
    catalog = catalog_of(said(1, range(1, 5), speaker=speakers))
    allowed = catalog.allowed(Query("", now=0.0))
    speaker, among = catalog.places().speaker, catalog.speakers(allowed)

    def named(*words):
        return np.flatnonzero(np.isin(speaker, catalog.speakers_named(words, among))).tolist()

    assert named("ana") == [1] and named("lima") == [1, 2] and named("what", "bea") == [2]
    assert named("an") == named() == named("user") == []
    assert catalog.speakers_named(["ana"], catalog.speakers(np.zeros_like(allowed))) == []


def test_i_names_the_user_without_a_name_and_nobody_else():
    catalog = catalog_of(said(1, [1, 2, 3], speaker=[None, None, "I"], role=["user", "ai", "user"]))
    allowed = catalog.allowed(Query("", now=0.0))
    speaker = catalog.places().speaker
    assert speaker[1] in catalog.speakers_named(["my"], catalog.speakers(allowed))
    assert speaker[2] not in catalog.speakers_named(["i", "my", "ai"], catalog.speakers(allowed))


def test_a_speaker_is_a_name_or_a_role_without_one():
    roles = ["user", "user", "user", "assistant"]
    catalog = catalog_of(said(1, range(1, 5), speaker=["Ana", "Ana", None, None], role=roles))
    speaker = catalog.places().speaker
    assert speaker[1] == speaker[2] and len(set(speaker[[2, 3, 4]].tolist())) == 3
