"""Which memories last: what somebody must avoid, who somebody is, how somebody lives."""

import numpy as np
from memorykit import quick

from bench import fit_lasting
from edgemem.pipeline.people import KINDS, lasting
from edgemem.pipeline.recall import overview
from edgemem.results import Scope


def test_what_lasts_is_told_apart_by_kind(embedder):
    said = {
        "constraint": "Noor has asthma and must not eat peanuts.",
        "person": "My sister is called Noor.",
        "circumstance": "I work as a nurse at the hospital in Ghent.",
    }
    with quick(embedder=embedder) as memory:
        for text in (*said.values(), "The parcel came yesterday."):
            memory.add(text, user_id="ana", infer=False)
        for kind, text in said.items():
            likeliest = lasting(memory, Scope(user_id="ana"), kind)
            assert likeliest[0].memory == text
            assert "The parcel came yesterday." not in [hit.memory for hit in likeliest]


def test_what_is_said_again_and_again_is_not_what_is_known_of_the_user(embedder):
    scope, asks = Scope(user_id="ana"), "What do you know about me?"
    lasts = "Lily is allergic to cashews.", "I'm a receptionist at Park Street Dental."
    with quick(embedder=embedder) as memory:
        for text in lasts:
            memory.add(text, user_id="ana", infer=False)
        for n in range(24):
            mood = ("grumpy", "tired", "cheerful")[n % 3]
            for text in (f"My neighbour is {mood}.", f"We have book club on the {n + 4}th."):
                memory.add(text, user_id="ana", infer=False)
        found = overview(memory, asks, memory.search(asks, user_id="ana"), most=4, scope=scope)
        assert {*lasts} <= {evidence.text for evidence in found}


def test_what_resembles_a_question_for_all_stands_beside_what_lasts(embedder):
    scope, asks = Scope(user_id="ana"), "What do you know about me?"
    told = {"I'm allergic to cashews.", "My name is Honor, I sat on the Circuit Court."}
    with quick(embedder=embedder) as memory:
        for text in told:
            memory.add(text, user_id="ana", infer=False)
        hits = memory.search(asks, user_id="ana")
        found = overview(memory, asks, hits, most=4, scope=scope)
        assert {evidence.text for evidence in found} == told


def test_another_embedder_finds_nothing_that_lasts():
    with quick() as memory:
        memory.add("I'm allergic to hazelnuts.", user_id="ana", infer=False)
        assert lasting(memory, Scope(user_id="ana"), "constraint") == []


def test_every_labelled_fact_has_a_kind_or_none():
    facts, labels, hands = fit_lasting.read()
    assert len(facts) == len(labels) == len(hands)
    assert set(labels) == {*KINDS, "-"} and all(facts)


def test_a_fact_of_the_user_is_also_learned_in_the_first_person():
    said = "my sister is Noor, and I am a nurse"
    assert fit_lasting.in_first_person("User's sister is Noor, and User is a nurse") == said
    assert fit_lasting.in_first_person("Noor is a nurse") == "Noor is a nurse"


def test_the_fit_of_what_lasts_tells_two_clouds_apart():
    draw = np.random.default_rng(0)
    y = np.arange(200) % 2 == 0
    x = np.concatenate([draw.normal(2.0 * y[:, None], 1.0, (200, 4)), np.ones((200, 1))], axis=1)
    row = fit_lasting.figures(x @ fit_lasting.fit(x, y), y)
    assert row["auc"] > 0.95 and row["precision"] > 0.9 and row["recall"] > 0.9
