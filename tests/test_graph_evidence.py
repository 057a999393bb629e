"""The memories that answer a question within a budget, and what a statement contradicts."""

import re
from itertools import combinations

import pytest
from fake_engine import FakeEngine
from hypothesis import given
from hypothesis import strategies as st
from memorykit import quick, texts

from edgemem.errors import InputError
from edgemem.pipeline.subgraph import best_subtree, tree

FACTS = {
    "My brother Bartek plays the cello.": "{}'s brother Bartek plays the cello",
    "Bartek lives in Bergen.": "Bartek lives in Bergen",
    "I like opera.": "{} likes opera",
    "I live in Oslo.": "{} lives in Oslo",
}


@pytest.fixture
def memory():
    made = quick(engine=FakeEngine(facts=FACTS))
    for said in FACTS:
        made.add(said, user_id="ana", timestamp="2024-03-01T12:00Z")
    return made


TREE = st.lists(st.tuples(st.integers(0, 5), st.integers(1, 5), st.integers(0, 9)), max_size=9).map(
    lambda rows: [(w, c, None if above >= i else above) for i, (w, c, above) in enumerate(rows)]
)


@given(TREE, st.integers(0, 25))
def test_the_best_part_of_a_tree_is_what_brute_force_finds(drawn, room):
    worth, costs, parents = ([row[k] for row in drawn] for k in range(3))
    best = max(
        sum(worth[i] for i in chosen)
        for n in range(len(drawn) + 1)
        for chosen in combinations(range(len(drawn)), n)
        if sum(costs[i] for i in chosen) <= room
        and all(parents[i] is None or parents[i] in chosen for i in chosen)
    )
    chosen = best_subtree(worth, costs, parents, room)
    assert sum(worth[i] for i in chosen) == best
    assert sum(costs[i] for i in chosen) <= room
    assert all(parents[i] is None or parents[i] in chosen for i in chosen)


def test_what_names_the_same_as_a_better_one_hangs_on_it_and_is_worth_more():
    pairs = {(0, 1): "bartek", (1, 0): "bartek", (1, 2): "bergen", (2, 1): "bergen"}
    worth, parents = tree([0.5, 0.1, 0.01, 0.2], pairs)
    assert parents == [None, 0, 1, None]
    assert worth == pytest.approx([0.5, 0.25, 0.085, 0.2])


def test_a_chain_is_followed_where_the_budget_does_not_hold_all():
    told = [
        "My sister Beatrix is married to Joachim.",
        "The roof of the house is done.",
        "Joachim is paid by Uhren Vogt.",
    ]
    memory = quick()
    memory.add(told, user_id="ana", infer=False)
    asked = "Who pays the husband of my sister Beatrix?"
    assert texts(memory.search(asked, user_id="ana"))[1] == told[1]
    found = memory.evidence(asked, user_id="ana", budget=40)
    assert texts(found.nodes) == [told[0], told[2]]
    assert [edge.name for edge in found.edges] == ["joachim"]


def test_evidence_is_written_as_the_paper_does_and_every_line_is_stored(memory):
    asked = "Where does my brother live?"
    found = memory.evidence(asked, user_id="ana", budget=90)
    lines = found.text.splitlines()
    assert lines[:2] == ["[EVIDENCE_SUBGRAPH]", "<NODES>"]
    assert lines[2].startswith("N1: 1 March 2024, User: ")
    said = {line.split(": ", 2)[2] for line in lines[2 : lines.index("<EDGES>")]}
    assert "Bartek lives in Bergen." in said <= set(FACTS)
    assert found.tokens <= 90 and 0 < found.confidence <= 1
    assert set(found.sources) <= {item.id for item in memory.get_all(user_id="ana")}
    assert found == memory.evidence(asked, user_id="ana", budget=90)
    small = memory.evidence(asked, user_id="ana", budget=40)
    assert small.tokens <= 40 and 0 < len(small.nodes) < len(found.nodes)
    assert memory.evidence(asked, user_id="ana", budget=5).text == ""
    assert memory.evidence("Where?", user_id="ben").nodes == ()


def test_of_a_long_turn_what_bears_on_the_question_is_evidence_and_no_question_is():
    memory = quick()
    talk = " ".join(["We talked about the weather and the harbour all the evening."] * 9)
    told = f"{talk} Bartek plays the cello. Did you hear?"
    memory.add(told, user_id="ana", infer=False)
    found = memory.evidence("Who plays the cello?", user_id="ana", budget=100)
    (node,) = [line for line in found.text.splitlines() if line.startswith("N1")]
    assert "Bartek plays the cello." in node and "hear?" not in node and len(node) < len(told) / 2


def test_what_replaces_a_memory_comes_before_it():
    graz = "My brother Ivo lives in Graz with his three dogs, and bakes his own bread at home."
    vienna = "Ivo moved to Vienna."
    told = {graz: "{}'s brother Ivo lives in Graz", vienna: "Ivo moved to Vienna"}
    memory = quick(engine=FakeEngine(facts=told))
    for day, said in zip(("2024-02-01", "2025-05-01"), told, strict=True):
        memory.add(said, user_id="ana", timestamp=day)

    def lines(question, budget=40):
        text = memory.evidence(question, user_id="ana", budget=budget).text
        return [line.split(": ")[2] for line in text.splitlines() if re.match(r"N\d:", line)]

    assert lines("Where does Ivo live?") == [vienna]
    assert lines("Where does Ivo live?", 50) == [graz, vienna]
    assert lines("Where did Ivo live before?") == [graz]
    assert lines("Who bakes bread at home?") == [graz]


def test_a_newer_memory_replaces_none_that_tells_more_of_somebody():
    told = "Ivo works at the bakery and lives in Graz.", "Ivo moved to Vienna."
    memory = quick(engine=FakeEngine(facts={said: said.rstrip(".") for said in told}))
    for day, said in zip(("2024-02-01", "2025-05-01"), told, strict=True):
        memory.add(said, user_id="ana", timestamp=day)
    found = memory.evidence("Where does Ivo work?", user_id="ana", budget=28)
    assert texts(found.nodes) == [told[0]]


def test_a_budget_that_is_none_is_named(memory):
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
def test_conflicts_are_the_facts_that_a_statement_contradicts(memory, text, contradicted):
    before = memory.store.generation()
    found = memory.conflicts(text, user_id="ana")
    assert texts(found) == contradicted
    assert all(0 <= each.score <= 1 for each in found)
    assert memory.store.generation() == before
    assert memory.conflicts(text, user_id="ben") == []


def test_a_conflict_says_which_relation(memory):
    (found,) = memory.conflicts("I live in Rome.", user_id="ana")
    assert found.label == "lives_in" and found.to_dict()["score"] == found.score
