"""Relative dates: written out by the day on which they were said, and nothing else touched."""

from datetime import date, timedelta
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgemem.stages.dates import absolute, moments

MONDAY = "2023-05-08T13:56:00.000+00:00"


def on(day: str) -> str:
    return f"{day}T10:00:00.000+00:00"


@pytest.mark.parametrize(
    ("said", "written", "begins"),
    [
        ("I adopted a dog yesterday.", "I adopted a dog on 7 May 2023.", "2023-05-07"),
        ("Yesterday we met.", "On 7 May 2023 we met.", "2023-05-07"),
        ("I slept badly last night.", "I slept badly on 7 May 2023.", "2023-05-07"),
        ("We met the day before yesterday.", "We met on 6 May 2023.", "2023-05-06"),
        ("It is due the day after tomorrow.", "It is due on 10 May 2023.", "2023-05-10"),
        ("See you tomorrow morning!", "See you on 9 May 2023!", "2023-05-09"),
        ("I ran 5 km today.", "I ran 5 km on 8 May 2023.", "2023-05-08"),
        ("I moved two weeks ago.", "I moved in the week of 24 April 2023.", "2023-04-24"),
        ("We met A Couple Of Days ago.", "We met on 6 May 2023.", "2023-05-06"),
        ("We met 3 days ago.", "We met on 5 May 2023.", "2023-05-05"),
        ("It was a couple of months ago.", "It was in March 2023.", "2023-03-01"),
        ("I'll retire in two years.", "I'll retire in 2025.", "2025-01-01"),
        ("I'm flying out in a week", "I'm flying out in the week of 15 May 2023", "2023-05-15"),
        ("this weekend we hike", "On the weekend of 13 May 2023 we hike", "2023-05-13"),
        ("Last weekend was fun", "On the weekend of 6 May 2023 was fun", "2023-05-06"),
        ("I saw her last Friday", "I saw her on Friday 5 May 2023", "2023-05-05"),
        ("I saw her last fri, at ten", "I saw her on Friday 5 May 2023, at ten", "2023-05-05"),
        ("the last sun of summer", "the last sun of summer", None),
        ("We ran. Last Friday we hiked", "We ran. On Friday 5 May 2023 we hiked", "2023-05-05"),
        ("I start next Wednesday", "I start on Wednesday 10 May 2023", "2023-05-10"),
        ("I painted it last year", "I painted it in 2022", "2022-01-01"),
        ("I know her since last year", "I know her since 2022", "2022-01-01"),
        ("about two weeks ago", "about the week of 24 April 2023", "2023-04-24"),
        ("I liked yesterday's talk", "I liked 7 May 2023's talk", "2023-05-07"),
        ("I got it LAST MONTH", "I got it in April 2023", "2023-04-01"),
    ],
)
def test_a_relative_date_is_written_out(said, written, begins):
    assert absolute(said, MONDAY) == (written, begins)


@pytest.mark.parametrize(
    ("text", "day", "begins"),
    [
        ("last Friday", "2023-05-12", "2023-05-05"),  # said on a Friday: a week before
        ("next Friday", "2023-05-12", "2023-05-19"),
        ("last Friday", "2023-05-13", "2023-05-12"),
        ("next month", "2023-12-15", "2024-01-01"),
        ("last month", "2024-01-15", "2023-12-01"),
        ("in 14 months", "2023-12-15", "2025-02-01"),
        ("next month", "2024-01-31", "2024-02-01"),
        ("next year", "2024-02-29", "2025-01-01"),
        ("a year ago", "2024-02-29", "2023-01-01"),
        ("tomorrow", "2024-02-28", "2024-02-29"),
        ("yesterday", "2024-03-01", "2024-02-29"),
        ("yesterday", "2023-03-01", "2023-02-28"),
        ("yesterday", "2024-01-01", "2023-12-31"),
        ("this weekend", "2023-05-14", "2023-05-13"),  # said on the Sunday of it
        ("last week", "2023-05-14", "2023-05-01"),
        ("next week", "2023-12-31", "2024-01-01"),
    ],
)
def test_at_the_edges_of_weeks_months_and_years(text, day, begins):
    assert [m.begins.isoformat() for m in moments(text, on(day))] == [begins]


@pytest.mark.parametrize(
    "text",
    [
        "I was there 1.5 years ago",
        "It took 2-3 weeks ago or so",
        "twenty-two weeks ago",
        "two or three weeks ago",
        "a year and two months ago",
        "half a year ago",
        "1,000 years ago",
        "9999 years ago",
        "over the last year",
        "the next week was better",
        "my last year at school",
        "the last Friday of the month",
        "a boy in two years of trouble",
        "the yesterdays of old",
        "next door",
        "I lasted years",
        "I may go in May",
        "昨日犬を飼いました。",
        "",
    ],
)
def test_what_has_no_one_day_is_left_as_it_is(text):
    assert absolute(text, MONDAY) == (text, None)


def test_several_dates_are_all_written_out_and_the_first_counts():
    text, begins = absolute("Yesterday I slept; tomorrow I run, as two days ago.", MONDAY)
    assert text == "On 7 May 2023 I slept; on 9 May 2023 I run, as on 6 May 2023."
    assert begins == "2023-05-07"


def test_a_date_before_the_first_year_or_after_the_last_is_left_alone():
    assert absolute("yesterday", on("0001-01-01")) == ("yesterday", None)
    assert absolute("in 2 years", on("9999-01-01")) == ("in 2 years", None)


@pytest.mark.parametrize("text", ["thiſ week", "laſt friday", "next ſunday", "ſix days ago"])
def test_a_letter_that_only_folds_to_ascii_does_not_raise(text):
    """Regular expressions without case take ſ for s; a dictionary does not."""
    absolute(text, MONDAY)


WORDS = (
    "yesterday today tomorrow last next this in a an two ago week weekend month year day days "
    "friday the of 3 99 ſix İn night or ' . , \n"
).split(" ")
DAYS = st.dates(date(1, 1, 1), date(9999, 12, 31)).map(lambda d: on(d.isoformat()))


@given(st.lists(st.sampled_from(WORDS) | st.text(max_size=3), max_size=8).map(" ".join), DAYS)
def test_no_text_and_no_day_raise(text, said_at):
    found = moments(text, said_at)
    written, begins = absolute(text, said_at)
    if not found:
        assert (written, begins) == (text, None)
    else:
        assert begins == found[0].begins.isoformat()
    for one, other in pairwise(found):
        assert one.end <= other.start


@given(st.text(), DAYS)
def test_a_text_without_relative_dates_is_unchanged(text, said_at):
    if not moments(text, said_at):
        assert absolute(text, said_at) == (text, None)


@given(st.dates(date(1900, 1, 1), date(2100, 1, 1)), st.integers(1, 999))
def test_days_ago_and_in_days_are_exact(day, n):
    for text, expected in ((f"{n} days ago", -n), (f"in {n} days", n)):
        assert moments(text, on(day.isoformat()))[0].begins == day + timedelta(days=expected)


@given(st.text(max_size=30), st.sampled_from(["yesterday", "next month", "two weeks ago"]), DAYS)
def test_resolving_twice_changes_nothing_more(text, moment, said_at):
    once, _ = absolute(f"{text} {moment}", said_at)
    assert absolute(once, said_at)[0] == once
