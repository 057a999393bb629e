"""Scores of a text against a wanted one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corpus.evaluate import bleu_1, macro, rouge_1, rouge_l, token_f1

SENTENCES = st.lists(st.sampled_from("the a tea milk and Ana drinks".split())).map(" ".join)


def test_shared_tokens_count_as_often_as_both_have_them_and_articles_not_at_all():
    assert token_f1("the green tea", "Green tea!") == 1.0
    assert token_f1("tea tea", "tea") == pytest.approx(2 / 3)
    assert token_f1("milk", "tea") == 0.0
    assert rouge_1("the tea", "tea") == pytest.approx(2 / 3)


def test_a_longest_common_subsequence_needs_no_neighbours():
    assert rouge_l("one two three four", "one three two four") == pytest.approx(6 / 8)


def test_a_short_answer_loses_by_its_brevity():
    assert bleu_1("tea", "tea with milk") == pytest.approx(2.718281828 ** (1 - 3))
    assert bleu_1("tea with milk sugar", "tea with milk") == pytest.approx(3 / 4)


@pytest.mark.parametrize("score", [token_f1, rouge_1, rouge_l, bleu_1])
@given(a=SENTENCES, b=SENTENCES)
def test_scores_are_shares_and_a_text_is_equal_to_itself(score, a, b):
    assert 0.0 <= score(a, b) <= 1.0 + 1e-9
    assert score(a, a) == 1.0


def test_labels_are_counted_apart():
    assert macro([("ADD", "ADD"), ("ADD", "NONE"), ("NONE", "NONE")]) == {"ADD": 0.5, "NONE": 1.0}
