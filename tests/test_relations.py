"""What a fact says of people and things, by rule (language/en_relations.py)."""

from __future__ import annotations

import re
from time import perf_counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgemem.language import triples

SAID = {
    "User works as a baker at the Blue Heron bakery in Leeds.": {
        "User works_as baker",
        "User works_at Blue Heron bakery",
        "Blue Heron bakery located_in Leeds",
    },
    "Ana's brother Bartek moved to Bergen.": {
        "Ana sibling_of Bartek",
        "Bartek lives_in Bergen",
    },
    "User's sister got the job.": {"User sibling_of User's sister"},
    "Mere has two hens called Salt and Pepper.": {"Mere has_pet Salt", "Mere has_pet Pepper"},
    "User's dog Rex is a poodle and is nine.": {
        "User has_pet Rex",
        "Rex is_a poodle",
        "Rex aged nine",
    },
    "User likes opera, rowing and silence.": {
        "User likes opera",
        "User likes rowing",
        "User likes silence",
    },
    "Zoë hates mornings, and her husband Jörg loves them.": {
        "Zoë dislikes mornings",
        "Zoë married_to Jörg",
    },
    "User has a younger sister named Bea who studies medicine in Lund.": {
        "User sibling_of Bea",
        "Bea studies medicine",
    },
    "User takes ramipril for her high blood pressure.": {
        "User takes_medicine ramipril",
        "User has_condition high blood pressure",
    },
    "User and Lena are engaged.": {"User engaged_to Lena"},
    "User's niece is called Żaneta.": {"User relative_of Żaneta"},
    "User's aunt Pat (72) and her husband Stan live in Ely.": {
        "User relative_of Pat",
        "Pat aged 72",
        "Pat married_to Stan",
        "Pat lives_in Ely",
        "Stan lives_in Ely",
    },
    "Salma and Rafi's parents live in Amman.": {
        "Rafi child_of Rafi's parents",
        "Rafi's parents lives_in Amman",
    },
    "User's children are called Ali and Bea.": {"User parent_of Ali", "User parent_of Bea"},
    "User's uncle left them a grandfather clock.": {
        "User relative_of User's uncle",
        "User owns grandfather clock",
    },
    "Mr Ito teaches User the harp.": {"User learns harp"},
    "User's company is called Lumen.": {"User works_at Lumen"},
    "User was born in 1988 in Cairo.": {"User born_in Cairo", "User born_on 1988"},
    "The concert is on 3 May 2025.": {"concert happens_on 3 May 2025"},
    "Ana's dance partner Gergo left.": {"Ana other Gergo"},
}
NOT_SAID = (
    "User doesn't live in Oslo.",
    "User no longer works at the bank.",
    "User would love to move to Porto.",
    "User used to play the cello.",
    "If User had a garden, they would keep bees.",
    "User might go to Rome in May.",
    "User hopes to study law.",
    "User has no pets.",
    "User's ex-husband called.",
    "User studied history at Durham.",
    "User works with children in finance.",
    "User knows Anja from school.",
    "User made a mistake.",
    "User is a keen gardener.",
    "User's dentist was late.",
    "Does User live in Oslo?",
    "User went home.",
    "张伟住在北京。",
    "",
    "...",
)


def said(fact: str) -> set[str]:
    return {f"{t.source.name} {t.label} {t.target.name}" for t in triples(fact)}


@pytest.mark.parametrize("fact", SAID)
def test_what_a_fact_says(fact: str) -> None:
    assert said(fact) >= SAID[fact]
    extra = {t for t in said(fact) - SAID[fact] if " is_a " not in t}
    assert extra == set()


@pytest.mark.parametrize("fact", NOT_SAID)
def test_what_is_denied_wished_or_over_says_nothing(fact: str) -> None:
    assert said(fact) == set()


def test_a_death_ends_what_somebody_was() -> None:
    assert said("User's wife Rima died in March.") == set()


def test_a_pronoun_of_two_possible_owners_says_nothing() -> None:
    assert said("Kofi bought Esi's share because her mother called.") == set()


WORDS = (
    "User Ana Ana's User's sister brother Rex dog who and , her his lives in Oslo works at the "
    "bank as a nurse is has likes tea called plays with moved to no not if 12 May 's ’s - ( ..."
).split()


@given(st.lists(st.sampled_from(WORDS), max_size=14).map(" ".join) | st.text(max_size=80))
def test_a_triple_says_nothing_that_its_fact_does_not(fact: str) -> None:
    whole = " ".join(fact.split())
    for triple in triples(fact):
        assert triple.source.name.casefold() != triple.target.name.casefold()
        for entity in (triple.source, triple.target):
            assert entity.name.strip()
            # "Ana's sister" may be "her sister" in the fact.
            for word in re.split(r"['’]s | ", entity.name):
                assert word in whole


@pytest.mark.parametrize(
    "words", ["very ", "Ana ", "Ana's ", "and ", "A", "tea, ", "Ana of ", "her sister ", "a b'"]
)
def test_a_long_fact_is_read_in_no_time(words: str) -> None:
    triples("User likes tea.")  # compiles
    for fact in (f"User likes {words * (900 // len(words))}", words * 200_000):
        started = perf_counter()
        triples(fact)
        assert perf_counter() - started < 2
