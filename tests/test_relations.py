"""What a fact says of people and things, as the fitted reader tells it."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from storekit import encoder

from edgemem.pipeline import graph as reader
from edgemem.pipeline.graph import triples as read

SAID = {
    "Ana's brother Bartek moved to Bergen.": {
        "Ana sibling_of Bartek",
        "Bartek lives_in Bergen",
    },
    "User's sister got the job.": {"User sibling_of User's sister"},
    "Ana lives with her father in Pécs.": {"Ana child_of Ana's father"},
    "User has a younger sister named Bea who studies medicine in Lund.": {
        "User sibling_of Bea",
        "Bea studies medicine",
    },
    "User takes ramipril for her high blood pressure.": {
        "User takes_medicine ramipril",
        "User has_condition high blood pressure",
    },
    "User and Lena are engaged.": {"User engaged_to Lena"},
    "User's aunt Pat (72) and her husband Stan live in Ely.": {
        "User relative_of Pat",
        "Pat aged 72",
        "Pat married_to Stan",
        "Pat lives_in Ely",
        "Stan lives_in Ely",
    },
    "User's children are called Ali and Bea.": {"User parent_of Ali", "User parent_of Bea"},
    "User was born in 1988 in Cairo.": {"User born_in Cairo"},
    "User moved from Lund to Malmö.": {"User lives_in Malmö"},
}
NOT_SAID = (
    "User doesn't live in Oslo.",
    "User no longer works at the bank.",
    "User would love to move to Porto.",
    "User used to play the cello.",
    "If User had a garden, they would keep bees.",
    "User has no pets.",
    "User's ex-husband called.",
    "User studied law in Lund.",
    "User made a mistake.",
    "User's dentist was late.",
    "Does User live in Oslo?",
    "User went home.",
    "张伟住在北京。",
    "",
    "...",
    "word " * 400,
)


def triples(fact):
    return read(fact, encoder())


def said(fact):
    return {f"{t.source.name} {t.label} {t.target.name}" for t in triples(fact)}


@pytest.mark.parametrize("fact", SAID)
def test_a_fact_gives_the_relations_that_it_says(fact):
    assert said(fact) >= SAID[fact]


@pytest.mark.parametrize("fact", NOT_SAID)
def test_what_is_denied_wished_or_over_says_nothing(fact):
    assert said(fact) == set()


def test_what_cannot_be_stood_is_disliked():
    assert said("User can't stand coriander.") == {"User dislikes coriander"}


def test_a_name_that_stands_for_another_is_its_alias():
    (sister,) = triples("User's sister Katarzyna, also known as Kasia, called.")
    assert sister.target.aliases == ("Kasia",)


WORDS = (
    "User Ana Ana's User's sister brother Rex dog who and , her his lives in Oslo works at the "
    "bank as a nurse is has likes tea called plays with moved to no not if 12 May 's ’s - ( ..."
).split()


@given(st.lists(st.sampled_from(WORDS), max_size=14).map(" ".join) | st.text(max_size=80))
def test_a_triple_says_nothing_that_its_fact_does_not(fact):
    whole = " ".join(fact.split())
    for triple in triples(fact):
        assert triple.source.name.casefold() != triple.target.name.casefold()
        for entity in (triple.source, triple.target):
            assert entity.name.strip()
            # "Ana's sister" may be "her sister" in the fact.
            for word in re.split(r"['’]s | ", entity.name):
                assert word in whole


@pytest.mark.parametrize(
    ("fact", "day"),
    [
        ("User's friend Lucia is getting married on 12 June 2027.", "2026-05-08"),
        ("User has a dog called Rex since 2020.", "2020-01-01"),
        ("User is a member of the Bergen Choir.", "2026-05-08"),
    ],
)
def test_a_state_begins_when_it_was_told_unless_the_fact_says_that_it_began_before(fact, day):
    found = reader.relations(encoder(), fact, "2027-06-12T00:00Z", told_at="2026-05-08T00:00Z")
    assert (found[0].valid_from or "")[:10] == day


def test_without_an_encoder_nothing_is_read():
    assert (reader.version(None), reader.relations(None, "User lives in Oslo.", "")) == (0, [])
