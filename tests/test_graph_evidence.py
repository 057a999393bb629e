"""The part of the graph that answers a question, and what a statement contradicts."""

from __future__ import annotations

from itertools import combinations

import pytest
from fake_engine import FakeEngine
from hypothesis import given, settings
from hypothesis import strategies as st
from memorykit import quick, texts

from edgemem import Memory
from edgemem.errors import InputError
from edgemem.graph.evidence import EXACT, connected, exactly, subgraph
from edgemem.results import Relation

FACTS = {
    "My brother Bartek plays the cello.": "{}'s brother Bartek plays the cello",
    "Bartek lives in Bergen.": "Bartek lives in Bergen",
    "I like opera.": "{} likes opera",
    "I live in Oslo.": "{} lives in Oslo",
}


def relation(source: str, target: str, label: str = "friend_of") -> Relation:
    return Relation(
        id=f"{source}{target}", source=source, relationship=label, destination=target,  # type: ignore[arg-type]
        source_type="person", destination_type="person", memory_id=source + target, score=0.5,
    )  # fmt: skip


@pytest.fixture
def memory() -> Memory:
    made = quick(engine=FakeEngine(facts=FACTS))
    for said in FACTS:
        made.add(said, user_id="ana", timestamp="2024-03-01T12:00Z")
    return made


def is_connected(told: list[Relation], chosen: tuple[int, ...]) -> bool:
    left, ends = set(chosen[1:]), {told[chosen[0]].source, told[chosen[0]].destination}
    while reach := {i for i in left if ends & {told[i].source, told[i].destination}}:
        left -= reach
        ends |= {end for i in reach for end in (told[i].source, told[i].destination)}
    return not left


EDGE = st.tuples(st.sampled_from("abcdef"), st.sampled_from("abcdef")).filter(
    lambda e: e[0] != e[1]
)
GRAPH = st.lists(
    st.tuples(EDGE, st.integers(0, 5), st.integers(1, 5)),
    max_size=8,
    unique_by=lambda each: each[0],
)


@settings(deadline=None)
@given(GRAPH, st.integers(0, 16))
def test_few_relations_are_chosen_as_brute_force_does(
    drawn: list[tuple[tuple[str, str], int, int]], room: int
) -> None:
    told = [relation(*edge) for edge, _, _ in drawn]
    prizes, costs = [p / 5 for _, p, _ in drawn], [c for _, _, c in drawn]
    best = max(
        (
            sum(prizes[i] for i in chosen)
            for n in range(1, len(told) + 1)
            for chosen in combinations(range(len(told)), n)
            if sum(costs[i] for i in chosen) <= room and is_connected(told, chosen)
        ),
        default=0.0,
    )
    chosen = exactly(told, prizes, costs, room)
    assert sum(prizes[i] for i in chosen) == pytest.approx(best)
    assert sum(costs[i] for i in chosen) <= room
    assert not chosen or is_connected(told, chosen)


MANY = st.lists(
    st.tuples(EDGE, st.integers(0, 5), st.integers(1, 5)),
    min_size=EXACT + 1, max_size=25, unique_by=lambda each: each[0],
)  # fmt: skip


@settings(deadline=None, max_examples=50)
@given(MANY, st.integers(0, 30))
def test_many_are_connected_within_the_room_and_always_the_same(
    drawn: list[tuple[tuple[str, str], int, int]], room: int
) -> None:
    told = [relation(*edge) for edge, _, _ in drawn]
    prizes, costs = [p / 5 for _, p, _ in drawn], [c for _, _, c in drawn]
    chosen = connected(told, prizes, costs, room)
    assert sum(costs[i] for i in chosen) <= room
    assert not chosen or is_connected(told, chosen)
    assert chosen == connected(told, prizes, costs, room)


def test_a_way_over_what_is_worth_nothing_leads_to_a_prize() -> None:
    told = [relation("a", "b"), relation("b", "c"), relation("c", "d")]
    told += [relation("x", f"y{i}") for i in range(EXACT)]
    prizes = [1.0, 0.0, 1.0, *[0.0] * EXACT]
    assert connected(told, prizes, [1] * len(told), 3) == (0, 1, 2)
    assert connected(told, prizes, [1] * len(told), 2) == (0,)


def test_a_circle_ends() -> None:
    told = [relation(a, b) for a in "abcd" for b in "abcd" if a != b]
    assert len(connected(told, [0.5] * len(told), [1] * len(told), 5)) == 5


def test_no_relation_that_fits_gives_nothing() -> None:
    found = subgraph([relation("a", "b")], "a", {}, lambda text: len(text.split()), 3)
    assert found.edges == () and found.text == "" and found.tokens == 0
    assert subgraph([], "a", {}, len, 100).to_dict()["nodes"] == []


def test_where_one_fits_it_is_the_relation_that_is_asked_for() -> None:
    told = [relation("a", "b"), relation("c", "d", "works_at"), relation("e", "f")]

    def count(text: str) -> int:
        return len(text.split())

    found = subgraph(told, "Who is paid where?", {"works_at": 0.9}, count, 14)
    assert found.edges == (told[1],)


def test_evidence_is_written_as_the_paper_does_and_every_line_is_stored(memory: Memory) -> None:
    found = memory.evidence("Where does my brother live?", user_id="ana", budget=60)
    assert found.text.splitlines()[:3] == ["[EVIDENCE_SUBGRAPH]", "<NODES>", "N1: User"]
    stored = {(r.source, r.relationship, r.destination) for r in memory.relations(user_id="ana")}
    assert {(r.source, r.relationship, r.destination) for r in found.edges} <= stored
    assert "User" in found.nodes and "Bartek" in found.nodes
    assert found.tokens <= 60 and 0 <= found.confidence <= 1
    assert set(found.sources) <= {item.id for item in memory.get_all(user_id="ana")}
    assert found == memory.evidence("Where does my brother live?", user_id="ana", budget=60)
    small = memory.evidence("Where does my brother live?", user_id="ana", budget=20)
    assert small.tokens <= 20 and len(small.edges) <= len(found.edges)
    assert memory.evidence("Where?", user_id="ben").edges == ()


def test_a_budget_that_is_none_is_named(memory: Memory) -> None:
    with pytest.raises(InputError, match="budget is 0"):
        memory.evidence("Where?", budget=0)


# -- conflicts -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "contradicted"),
    [
        ("User lives in Rome.", ["User lives in Oslo"]),
        ("I moved to Rome.", ["User lives in Oslo"]),
        ("I live in Oslo.", []),
        ("I hate opera.", ["User likes opera"]),
        ("I don't like opera.", ["User likes opera"]),
        ("I like coffee.", []),
        ("Bartek lives in Rome.", ["Bartek lives in Bergen"]),
        ("Bartek's friend Ola lives in Rome.", []),
        ("Rome is nice.", []),
    ],
)
def test_what_a_statement_contradicts(memory: Memory, text: str, contradicted: list[str]) -> None:
    before = memory.store.generation()
    found = memory.conflicts(text, user_id="ana")
    assert texts(found) == contradicted
    assert all(0 <= each.score <= 1 for each in found)
    assert memory.store.generation() == before
    assert memory.conflicts(text, user_id="ben") == []


def test_a_conflict_says_which_relation(memory: Memory) -> None:
    (found,) = memory.conflicts("I live in Rome.", user_id="ana")
    assert found.label == "lives_in" and found.to_dict()["score"] == found.score
