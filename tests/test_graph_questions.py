"""Which relations a question asks for."""

from __future__ import annotations

import pytest
from storekit import encoder

from bench.asked import asked

ASKED = {
    "Where did Ana live in March 2024?": {"lives_in"},
    "who am i married to": {"married_to"},
    "What breed is my sister's dog?": {"sibling_of", "has_pet", "is_a"},
    "What should I not serve Tom because of an allergy?": {"allergic_to"},
}


@pytest.mark.parametrize("question", ASKED)
def test_what_a_question_asks_for_is_likeliest(question: str) -> None:
    chances = asked(question, encoder())
    best = sorted(chances, key=lambda label: -chances[label])[: len(ASKED[question])]
    assert set(best) == ASKED[question]


def test_what_asks_for_no_relation_has_none_that_is_likely() -> None:
    for question in ("How do I boil an egg?", "Why is the sky blue?", "Tell me a joke."):
        assert max(asked(question, encoder()).values()) < 0.5


def test_without_an_encoder_and_of_a_long_text_nothing_is_known() -> None:
    assert asked("Where do I live?", None) == {}
    assert asked("where do I live " * 100, encoder()) == {}
