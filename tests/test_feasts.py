"""Feasts: a day told as Christmas Eve, days counted from a feast, and questions that name one."""

from datetime import date, timedelta

import pytest

from edgemem.language import absolute, asked_day, asked_days, told_days
from edgemem.language.en_calendar import feast_day

NOW = "2026-11-30T10:00:00+00:00"


def days(text, now=NOW):
    return [f"{a}" if a == b else f"{a} to {b}" for a, b in told_days(text, now)]


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("the party is on christmas eve", "the party is on Christmas Eve 24 December 2026"),
        ("We fly on Boxing Day.", "We fly on Boxing Day 26 December 2026."),
        ("she comes on good friday", "she comes on Good Friday 26 March 2027"),
        ("We meet there on boxing day, 9 o'clock",
         "We meet there on Boxing Day 26 December 2026, 9 o'clock"),
        ("she walked at halloween", "she walked at Halloween 31 October 2026"),
        ("we met on Halloween", "we met on Halloween 31 October 2026"),
        ("I'm here until new years eve", "I'm here until New Years Eve 31 December 2026"),
        ("We marry on New Year’s Eve 2027", "We marry on New Year’s Eve 31 December 2027"),
        ("bia arrives on the last friday before christmas",
         "bia arrives on Friday 18 December 2026 before Christmas"),
        ("We leave the Saturday before Easter",
         "We leave on Saturday 27 March 2027 before Easter"),
        ("I'm back the day after boxing day", "I'm back on 27 December 2026 after Boxing Day"),
        ("Ola lands the weekend before Christmas",
         "Ola lands on the weekend of 19 December 2026 before Christmas"),
        ("They come the week after Easter", "They come in the week of 29 March 2027 after Easter"),
        ("He is working xmas day and boxing day",
         "He is working on Christmas Day 25 December 2026 and on Boxing Day 26 December 2026"),
    ],
)  # fmt: skip
def test_a_feast_is_dated_past_or_coming_as_the_verb_says(text, written):
    assert absolute(text, NOW)[0] == written
    assert absolute(written, NOW)[0] == written


@pytest.mark.parametrize(
    "text",
    [
        "We put up a Christmas tree", "I love Halloween", "Mr Christmas is our neighbour",
        "every Christmas my aunt sings", "we always meet on Christmas Eve", "Happy Halloween!",
        "He wrote on Good Friday Agreement talks", "My cousin lives on Christmas Island",
        "I got it in the Boxing Day sales", "I was born on Christmas Day", "Christmas is coming",
        "we go not at Easter", "my easter bonnet got wet", "Halloween is my favourite film",
        "We sing \"On Christmas Eve\" in the choir", "We watched Halloween",
        "We met on Chriſtmas Eve",
    ],
)  # fmt: skip
def test_a_feast_that_is_no_day_of_the_speaker_is_left_alone(text):
    assert absolute(text, NOW)[0] == text
    assert days(text) == []


def test_a_day_that_stands_beside_its_feast_is_not_said_twice():
    text = "He fell on Easter Sunday, 5 April 2026, and broke his arm."
    assert absolute(text, NOW)[0] == text
    assert days(text) == ["2026-04-05"]


def test_a_feast_of_long_ago_and_the_one_after_the_last_are_not_meant():
    assert absolute("We met on Easter Sunday", NOW)[0] == "We met on Easter Sunday"
    assert days("I quit the shop on Valentine's Day", "2026-02-20T10:00:00+00:00") == []


@pytest.mark.parametrize(
    "text",
    ["My granddad died on Christmas Eve", "As a kid I sang in church on Christmas Eve"],
)
def test_a_past_feast_of_more_than_a_month_ago_may_be_any_year_s(text):
    assert absolute(text, "2027-01-30T10:00:00+00:00")[0] == text
    assert days(text, "2027-01-30T10:00:00+00:00") == []
    assert days(text, "2027-01-05T10:00:00+00:00") == ["2026-12-24"]


@pytest.mark.parametrize(
    "text",
    [
        "At Easter I stood up in the middle of the sermon and walked out.",
        "I quit smoking on New Year's Day.",
        "The wedding of my cousin was on Christmas Eve",
        "at christmas tom gave me a bike",
        "My gran came for Christmas",
    ],
)
def test_what_was_at_a_feast_is_no_plan_for_the_next(text):
    assert days(text) == []


def test_the_new_year_is_no_feast():
    assert asked_days("What are my plans in the new year?", NOW) is None
    assert days("I start at Bosch in the new year") == []


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("mum comes for christmas", "2026-12-24 to 2026-12-26"),
        ("Nan is staying over Easter", "2027-03-26 to 2027-03-29"),
        ("new year's eve at ours", "2026-12-31"),
        ("lunch at mum's on easter sunday", "2027-03-28"),
    ],
)
def test_the_days_of_a_plan_at_a_feast(text, told):
    assert absolute(text, NOW)[0] == text
    assert days(text) == [told]


@pytest.mark.parametrize(
    ("question", "first", "last", "past"),
    [
        ("What do I have on Christmas Eve?", "2026-12-24", "2026-12-24", False),
        ("what's on the day after boxing day", "2026-12-27", "2026-12-27", False),
        ("what's on over easter", "2027-03-26", "2027-03-29", False),
        ("what did I do on Good Friday?", "2026-04-03", "2026-04-03", True),
    ],
)
def test_a_question_for_a_feast_is_known(question, first, last, past):
    expected = (date.fromisoformat(first), date.fromisoformat(last), past)
    assert asked_days(question, NOW) == expected


def test_a_question_about_a_past_feast_asks_of_its_day():
    assert asked_day("Where was I on Easter Monday?", NOW) == "2026-04-06"
    assert asked_day("Where did we eat on st stephens day?", NOW) == "2025-12-26"


def test_easter_is_that_of_meeus():
    for year in range(1583, 2600):
        a, (b, c) = year % 19, divmod(year, 100)
        h = (19 * a + b - b // 4 - (8 * b + 13) // 25 + 15) % 30
        last = (32 + 2 * (b % 4) + 2 * (c // 4) - h - c % 4) % 7
        n = h + last - 7 * ((a + 11 * h + 22 * last) // 451) + 114
        easter = date(year, n // 31, n % 31 + 1)
        assert feast_day("easter", year) == easter
        assert feast_day("good friday", year) == easter - timedelta(days=2)
