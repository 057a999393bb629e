"""Which memories last: what somebody must avoid, who somebody is, how somebody lives."""

import numpy as np
import pytest
from memorykit import quick

from bench import fit_bearing, fit_lasting
from edgemem.pipeline.bearing import bearing, foremost
from edgemem.pipeline.lasting import KINDS, lasting
from edgemem.pipeline.recall import overview
from edgemem.results import Evidence, Scope


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


@pytest.mark.parametrize(
    ("asks", "whose"),
    [
        ("What should I have for breakfast?", {0}),
        ("What should I cook for Maisie tonight?", {0, 1}),
        ("What should I cook for my elder daughter?", {0, 1, 3}),
    ],
)
def test_advice_is_shown_what_another_must_avoid_only_if_it_is_for_them(embedder, asks, whose):
    """Advice on porridge listed what four patients must avoid."""
    said = (
        "I can't eat any dairy, it gives me terrible cramps.",
        "Maisie has gone vegetarian, she must not eat meat.",
        "Dermot the builder is allergic to nuts, he must not eat them.",
        "My elder daughter is Maisie.",
    )
    with quick(embedder=embedder) as memory:
        for text in said[:3] if 3 not in whose else said:
            memory.add(text, user_id="ana", infer=False)
        hits = [hit for hit in memory.search(asks, user_id="ana") if 3 in whose]
        found = bearing(memory, Scope(user_id="ana"), asks, hits[:1], most=5, advice=True)
    assert {said.index(evidence.text) for evidence in found} == whose


@pytest.mark.parametrize(
    ("asks", "found"),
    [
        (
            "Is a quiche a good idea for Odette?",
            ("Odette is coeliac, she eats no flour.",),
        ),
        ("How do I get a stain out of wool?", ()),
    ],
)
def test_advice_begins_with_the_sentences_that_probably_bear_on_it(embedder, asks, found):
    said = "We painted the fence. Odette is coeliac, she eats no flour.", "Should I buy a new bike?"
    with quick(embedder=embedder) as memory:
        shown = [Evidence(text, None, "User") for text in said]
        other = Evidence("I am allergic to eggs, so no quiche for me.", None, "Ruth")
        assert foremost(memory, asks, [*shown, other]) == found


def test_what_was_told_longer_ago_keeps_its_order_at_the_beginning_of_an_advice(embedder):
    said = "I can't eat any dairy.", "I am allergic to nuts."
    with quick(embedder=embedder) as memory:
        shown = [Evidence(text, None, "User") for text in said]
        for order in (shown, shown[::-1]):
            told = tuple(e.text for e in order)
            assert foremost(memory, "What can I eat for breakfast?", order) == told


def test_the_sentences_that_a_reply_needs_are_learned_by_their_quotes():
    asked = next(fit_bearing.requests())
    assert len(asked.told) == len(asked.needed) and asked.needed.any() and not asked.needed.all()


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
