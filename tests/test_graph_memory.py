"""Memory's graph: what add and search tell of it, relations, and what held at a date."""

import pytest
from fake_engine import FakeEngine
from memorykit import quick, texts

from edgemem.errors import InputError

FACTS = {
    "I live in Bergen.": "{} lives in Bergen",
    "I moved to Oslo and live there now.": "{} moved to Oslo and lives there now",
    "My brother Bartek plays the cello.": "{}'s brother Bartek plays the cello",
    "I have worked at Corvid Press for three years.": (
        "{} has worked at Corvid Press for three years"
    ),
    "My sister Lena is moving to Rome next month.": "{}'s sister Lena is moving to Rome next month",
}


def told(*said, user_id="ana", ends=False):
    """A memory that was told things: (time, words)."""
    over = (
        {FACTS["I moved to Oslo and live there now."].format("User"): "User lives in Bergen"}
        if ends
        else {}
    )
    memory = quick(engine=FakeEngine(facts=FACTS, ends=over))
    for when, words in said:
        memory.add(words, user_id=user_id, timestamp=when)
    return memory


def edges(found):
    return [f"{r.source} {r.relationship} {r.destination}" for r in found]


MOVED = (
    ("2024-03-10T12:00Z", "I live in Bergen."),
    ("2024-06-10T12:00Z", "I moved to Oslo and live there now."),
)


def test_what_is_added_is_told_as_relations_in_mem0s_shape():
    with told() as memory:
        added = memory.add("My brother Bartek plays the cello.", user_id="ana")
        assert edges(added.relations) == ["User sibling_of Bartek", "Bartek plays cello"]
        shown = added.to_dict()["relations"][0]
        assert (shown["source"], shown["relationship"], shown["destination"]) == (
            "User", "sibling_of", "Bartek",
        )  # fmt: skip
        (fact,) = [change for change in added if change.kind == "fact"]
        assert shown["memory_id"] == fact.id
        assert shown["turns"] == [t.id for t in memory.source_turns(fact.id)]


def test_a_search_tells_what_its_hits_say_of_whom_with_their_score():
    with told(*MOVED) as memory:
        memory.add("My brother Bartek plays the cello.", user_id="ana")
        found = memory.search("Who plays the cello?", user_id="ana", top_k=1)
        assert edges(found.relations) == ["User sibling_of Bartek", "Bartek plays cello"]
        assert {r.score for r in found.relations} == {found[0].score}
        assert found.to_dict()["relations"][1]["destination"] == "cello"
        assert memory.search("cello", user_id="ben").relations == ()


def test_a_turn_stored_without_inference_has_no_relations():
    with quick() as memory:
        assert memory.add("User lives in Oslo.", infer=False).relations == ()
        assert len(memory.relations()) == 0


def test_a_contradiction_ends_the_old_relation_and_the_past_keeps_it():
    with told(*MOVED, ends=True) as memory:
        assert edges(memory.relations(user_id="ana")) == ["User lives_in Oslo"]
        (then,) = memory.relations("bergen", user_id="ana", at="2024-04-01T00:00Z")
        assert then.valid_to is not None and then.valid_to.startswith("2024-06-10")
        assert then.invalidated_by == memory.relations("Oslo")[0].memory_id
        assert len(memory.relations(user_id="ana", include_invalid=True)) == 2
        assert edges(memory.relations(at="2024-01-01T00:00Z")) == []


def test_what_held_then_is_listed_and_found():
    with told(*MOVED, ends=True) as memory:
        only_facts = {"kind": "fact"}
        at = "2024-04-01T00:00Z"
        assert texts(memory.get_all(filters=only_facts, at=at)) == ["User lives in Bergen"]
        assert texts(memory.get_all(filters=only_facts)) == [
            "User moved to Oslo and lives there now"
        ]
        found = memory.search("Where do I live?", filters=only_facts, at=at)
        assert texts(found) == ["User lives in Bergen"]
        assert edges(found.relations) == ["User lives_in Bergen"]
        assert len(memory.search("Where do I live?", at="2020-01-01")) == 0


def test_a_length_of_time_says_since_when():
    said = ("2024-05-08T12:00Z", "I have worked at Corvid Press for three years.")
    with told(said) as memory:
        (known,) = memory.relations("corvid press")
        assert known.valid_from == "2021-05-08T00:00:00.000+00:00"
        assert edges(memory.relations(at="2022-01-01")) == ["User works_at Corvid Press"]
        facts = memory.get_all(filters={"kind": "fact"}, at="2022-01-01")
        assert len(facts) == 1


def test_who_somebody_is_holds_from_the_day_it_was_told_and_not_from_a_coming_one():
    with told(("2024-05-08T12:00Z", "My sister Lena is moving to Rome next month.")) as memory:

        def begins():
            return {r.relationship: r.valid_from for r in memory.relations(include_invalid=True)}

        (fact,) = memory.get_all(filters={"kind": "fact"}, at="2024-06-02")
        assert (fact.valid_from or "")[:10] == "2024-06-01"
        told_at = "2024-05-08T12:00:00.000+00:00"
        assert begins() == {"sibling_of": told_at}
        assert edges(memory.relations("Lena", at="2024-05-09")) == ["User sibling_of Lena"]
        memory.update(fact.id, "User's friend Lena is moving to Rome in June 2024.")
        assert begins() == {"friend_of": told_at}
        with memory.store.transaction() as tx:  # as after an erase, or an import
            tx.set_relations(fact.id, [], 0)
        memory.process_pending()
        assert begins() == {"friend_of": told_at}


def test_a_users_own_id_stands_for_the_user_unless_somebody_has_that_name():
    with told(*MOVED) as memory:
        assert len(memory.relations("ANA", user_id="ana", include_invalid=True)) == 2
        fact = memory.get_all(filters={"kind": "fact"})[0]
        memory.update(fact.id, "Ana plays tennis.")
        assert edges(memory.relations("ana", user_id="ana")) == ["Ana plays tennis"]


def test_an_edited_fact_is_read_again_and_an_erased_one_is_gone():
    with told(*MOVED) as memory:
        first = memory.get_all(filters={"kind": "fact"})[0]
        memory.update(first.id, "User lives in Rome.")
        both = memory.relations("user", include_invalid=True)
        assert edges(both) == ["User lives_in Rome", "User lives_in Oslo"]
        memory.erase(first.id)
        assert edges(memory.relations()) == ["User lives_in Oslo"]
        memory.delete_all(user_id="ana")
        assert len(memory.relations(include_invalid=True)) == 0


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"entity": " "}, "the entity is empty"),
        ({"at": "soon"}, "at 'soon' is no time"),
    ],
)
def test_bad_arguments_are_named(given, message):
    with quick() as memory, pytest.raises(InputError, match=message):
        memory.relations(**given)
