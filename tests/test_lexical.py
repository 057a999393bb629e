"""What of a memory is indexed and embedded, and which words of a query are looked for."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgemem.retrieval.lexical import (
    MAX_WORDS,
    embedded_text,
    match_expression,
    query_words,
    search_text,
)
from edgemem.text import STOP_WORDS

MAY_8 = "2023-05-08T13:56:00.000+00:00"


def test_speaker_and_day_are_indexed_with_the_text():
    assert search_text("I moved.", speaker="Ana", when=MAY_8) == "Ana: I moved.\n8 May 2023"
    assert search_text("I moved.") == "I moved."


@given(st.text(), st.none() | st.text(min_size=1), st.datetimes())
def test_the_day_and_nothing_else_is_left_out_of_the_vector(text, speaker, when):
    with_day = search_text(text, speaker=speaker, when=when.isoformat())
    assert embedded_text(with_day) == search_text(text, speaker=speaker)


@pytest.mark.parametrize(
    "text",
    [
        "We met on 8 May 2023",
        "8 May 2023",
        "8 May 2023\nwas the day",
        "dear diary\n8 May 2023\n",
        "list:\n8 May",
        "\n12 eggs 30",
    ],
)
def test_a_day_that_somebody_wrote_stays(text):
    assert embedded_text(text) == text
    assert embedded_text(search_text(text, when=MAY_8)) == text


def test_only_the_last_of_two_day_lines_is_ours():
    text = "dear diary\n8 May 2023"
    assert embedded_text(search_text(text, when=MAY_8)) == text


def test_words_are_each_looked_for_once_and_stop_words_not_at_all():
    assert query_words("Is the tea of Ana's the tea?") == ["tea", "ana"]
    assert query_words("Who are you?") == ["who", "are", "you"]  # nothing else is left


def test_a_pasted_page_asks_for_its_first_words_only():
    page = " ".join(f"word{n}" for n in range(1000))
    assert query_words(page) == [f"word{n}" for n in range(MAX_WORDS)]


@pytest.mark.parametrize("query", ["?!", "--- ... ---", "", "_ * \" ' ()"])
def test_a_query_of_punctuation_has_no_words(query):
    assert query_words(query) == []


@given(st.text())
def test_words_are_few_and_safe_to_quote(query):
    found = query_words(query)
    assert len(found) == len(set(found)) <= MAX_WORDS
    assert not any('"' in word or " " in word for word in found)
    assert not STOP_WORDS & set(found) or set(found) <= STOP_WORDS


def test_any_of_the_words_matches():
    assert match_expression(["tea", "ana"]) == '"tea" OR "ana"'
