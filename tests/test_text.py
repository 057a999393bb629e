"""Sentences and words."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgemem.text import (
    content_words,
    is_negated,
    is_question,
    same_stem,
    same_word,
    sentences,
    words,
)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("I ran. You slept!", ["I ran.", "You slept!"]),
        ("Dr. Ito met J. Smith. Then?", ["Dr. Ito met J. Smith.", "Then?"]),
        ("First\n\nSecond", ["First", "Second"]),
        ('He said "no." I left.', ['He said "no.', "I left."]),
        ("犬を飼いました。嬉しいです！", ["犬を飼いました。", "嬉しいです！"]),
        ("at 3.5 km", ["at 3.5 km"]),
        ("  ", []),
        ("", []),
    ],
)
def test_a_text_falls_into_sentences(text, parts):
    assert sentences(text) == parts


@given(st.text())
def test_sentences_lose_no_word_and_are_never_blank(text):
    parts = sentences(text)
    assert all(part.strip() == part and part for part in parts)
    assert [w for part in parts for w in words(part)] == words(text)


@given(st.text())
def test_content_words_are_words(text):
    assert set(content_words(text)) <= set(words(text))


def test_words_are_lower_case_and_lose_the_possessive():
    assert words("Ana's DON'T, 3.5km: l’été") == ["ana", "don't", "3", "5km", "l’été"]


def test_a_text_of_stop_words_has_no_content():
    assert content_words("what is it that you don't have") == []


@pytest.mark.parametrize("form", ["plays", "played", "playing", "play"])
def test_forms_of_a_word_are_the_same_word(form):
    assert same_word("play", {form}) and same_word(form, {"play"})
    assert same_stem("play", {form}) and same_stem(form, {"play"})


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("marry", "married"),
        ("live", "living"),
        ("run", "running"),
        ("city", "cities"),
        ("box", "boxes"),
        ("house", "houses"),
        ("like", "likes"),
    ],
)
def test_endings_do_not_part_a_stem(one, other):
    assert same_stem(one, [other]) and same_stem(other, [one])


@pytest.mark.parametrize(
    ("one", "other"),
    [("berlin", "bergen"), ("marie", "marta"), ("plays", "plans"), ("2023", "2024"), ("a1", "a2")],
)
def test_different_words_have_different_stems(one, other):
    assert not same_stem(one, [other])


@given(st.text(), st.lists(st.text()))
def test_no_word_breaks_the_comparison(word, others):
    same_word(word, others)
    assert same_stem(word, [*others, word])


@pytest.mark.parametrize("text", ["I can't", "I can’t", "not me", "No.", "I never do", "cannot"])
def test_a_negation_is_seen(text):
    assert is_negated(text)


@pytest.mark.parametrize("text", ["I know", "nothing", "the cant", "notes", ""])
def test_no_negation_is_invented(text):
    assert not is_negated(text)


def test_a_question_asks_in_every_sentence():
    assert is_question("Where? And when?")
    assert is_question('Did you say "why?"')
    assert is_question("元気ですか？")
    assert not is_question("I ask. Why?")
    assert not is_question("")
