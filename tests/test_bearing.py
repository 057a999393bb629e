"""What of the memories bears on advice and texts, and what a small model's advice begins with."""

import pytest
from fake_engine import FakeEngine
from memorykit import quick

from bench import fit_bearing
from edgemem.pipeline.bearing import bearing, foremost
from edgemem.results import Evidence, Scope


def tell(memory, text, *, infer=False):
    memory.add(text, user_id="ana", timestamp="2024-05-01T10:00:00+00:00", infer=infer)


def sentences(found):
    return [evidence.text for evidence in found]


def test_advice_is_shown_what_somebody_must_avoid_and_a_letter_is_not(embedder):
    said = (
        "I'm allergic to hazelnuts, they make my throat swell.",
        "My neighbour Piet cannot stand dogs.",
        "The tram was late again this morning.",
        "Lotte's birthday is on Saturday.",
    )
    with quick(embedder=embedder) as memory:
        for text in said:
            tell(memory, text)
        asks, scope = "What could I bring for Lotte's birthday?", Scope(user_id="ana")
        hits = memory.search(asks, user_id="ana", top_k=16)
        given = [
            set(sentences(bearing(memory, scope, asks, hits, most=5, advice=advice)))
            for advice in (True, False)
        ]
    assert given == [{said[0], said[1], said[3]}, {said[3]}]


GUESTS = (
    "We have two children: Judith, who lives in Bristol with her husband Kamal, and Rory.",
    "Judith's daughter Posy is my only grandchild. She loves otters and volcanoes.",
    "Judith and Posy will come back with us on Friday and stay till Sunday.",
    "Posy has gone off volcanoes, it's all octopuses now.",
    "Posy will be a star in her school nativity on Friday. We're driving down.",
    "Walter and I are going to Madeira in January.",
    "I'm allergic to penicillin, it gave me a dreadful rash.",
    "Posy is lactose intolerant, the doctor in Bristol confirmed it.",
    "My friend Hilary is a vegetarian.",
    "Hilary has asked for no presents but a donation.",
)


@pytest.mark.parametrize(
    ("asks", "avoided", "left_out"),
    [
        ("What shall I cook for Judith, Kamal and Posy on Friday evening?", {6, 7}, {}),
        ("What shall I bake for Posy and Walter?", {6, 7}, {}),
        ("What can I give Hilary and Posy for lunch?", {6, 7, 8}, {}),
        ("Recommend a book for Hilary.", {6, 8}, {7}),
    ],
)
def test_what_those_named_must_avoid_comes_first(embedder, asks, avoided, left_out):
    """Among the notes of three guests and the user's own allergies, one guest's had no place."""
    engine = FakeEngine(facts={GUESTS[7]: "Posy is lactose intolerant"})
    with quick(embedder=embedder, engine=engine) as memory:
        for text in GUESTS:
            tell(memory, text, infer=True)
        hits = memory.search(asks, user_id="ana", top_k=16)
        given = {*sentences(bearing(memory, Scope(user_id="ana"), asks, hits, most=5, advice=True))}
    assert {GUESTS[i] for i in avoided} <= given
    assert given.isdisjoint(GUESTS[i] for i in left_out)


def test_what_is_told_of_somebody_by_a_pronoun_alone_reaches_advice(embedder):
    """ "She is allergic to shellfish." was left out as another's."""
    with quick(embedder=embedder) as memory:
        for text in ("My wife is vegetarian.", "She is allergic to shellfish."):
            tell(memory, text)
        asks = "plan a birthday dinner for my wife"
        hits = memory.search(asks, user_id="ana", top_k=16)
        given = bearing(memory, Scope(user_id="ana"), asks, hits, most=5, advice=True)
    assert "She is allergic to shellfish." in sentences(given)


def test_each_part_of_a_letter_is_searched_for(embedder):
    told = (
        "Bo runs the bakery on Canal Street.",
        "Our flight lands in Porto at six on Saturday.",
        "The hotel in Ribeira is called Pestana.",
        "The tram was late again this morning.",
    )
    task = "Write a card for Bo: when our flight lands, and the name of the hotel."
    with quick(embedder=embedder) as memory:
        for text in told:
            tell(memory, text)
        hits = memory.search("Bo", user_id="ana", top_k=1)
        found = bearing(memory, Scope(user_id="ana"), task, hits, most=5, advice=False)
    assert {*told[:3]} <= {*sentences(found)} and told[3] not in sentences(found)


def test_each_name_in_a_task_is_searched_for(embedder):
    told = "Rhys is a vegan."
    task = "What should I cook for Daniel and Rhys when they come to lunch on Saturday?"
    with quick(embedder=embedder) as memory:
        tell(memory, told)
        for day in ("Saturday", "Sunday", "Monday"):
            tell(memory, f"I cooked lunch for Daniel on {day}, and they came for dinner.")
        hits = memory.search(task, user_id="ana", top_k=2)
        assert told not in [hit.memory for hit in hits]
        found = bearing(memory, Scope(user_id="ana"), task, hits, most=4, advice=False)
    assert told in sentences(found)


def test_of_a_task_of_many_parts_only_the_first_are_searched_for(embedder, monkeypatch):
    with quick(embedder=embedder) as memory:
        tell(memory, "Bo runs the bakery on Canal Street.")
        hits = memory.search("Bo", user_id="ana")
        asked = list[str]()
        search = memory.search
        monkeypatch.setattr(
            memory, "search", lambda query, **how: asked.append(query) or search(query, **how)
        )
        task = "Write a card, " + "the name of the hotel, " * 500
        bearing(memory, Scope(user_id="ana"), task, hits, most=5, advice=False)
    assert 1 < len(asked) < 10


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
