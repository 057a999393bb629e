"""What of a memory is indexed and embedded, and which words of a query are looked for."""

from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgemem.language import STOP_WORDS
from edgemem.retrieval.lexical import (
    MAX_WORDS,
    embedded_text,
    query_terms,
    query_words,
    search_text,
    time_terms,
)
from edgemem.store.changes import tokenize

MAY_8 = "2023-05-08T13:56:00.000+00:00"
NOW = datetime.fromisoformat(MAY_8).timestamp()


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
        "Shopping:\n12 Eggs 3",
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


def test_the_terms_of_a_query_are_those_of_the_index_each_once():
    found = query_terms("Did Zoë play, or plays she? She's playing O'Neil.", NOW)
    assert sorted(found) == ["neil", "o", "plai", "zoe"]
    assert query_terms("?!", NOW) == []


@pytest.mark.parametrize("word", ["i'm", "o’neil", "or", "near", "NOT", "東京", "²", "a*", '"x"'])
def test_no_word_of_a_query_is_read_as_an_operator(word):
    assert all(term.isalnum() for term in query_terms(word, NOW))


def test_last_month_asks_for_that_months_words():
    assert {"april", "2023"} <= set(query_terms("What did I do last month?", NOW))


def test_a_text_that_says_when_has_one_of_the_times_and_its_day_line_has_none():
    said = search_text("We met two weeks ago.", when=MAY_8)
    (terms, of_the_day) = tokenize([said, search_text("We met.", when=MAY_8)])
    assert set(terms) & set(time_terms()) and not set(of_the_day) & set(time_terms())
