"""Chat spellings: what is written out, what is left, and what is read of it."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgemem.language import absolute, asked_days, is_other_language, plain, plain_places, told_days

WEDNESDAY = "2026-11-25T18:00:00+00:00"


def days(text):
    return [str(first) for first, _ in told_days(text, WEDNESDAY)]


@pytest.mark.parametrize(
    ("typed", "written"),
    [
        ("wat size slippers 4 dad", "what size slippers 4 dad"),
        ("wens my dentist", "when's my dentist"),
        ("Wots on 2nite?", "What's on tonight?"),
        ("WENS MY DENTIST", "WHEN'S MY DENTIST"),
        ("wen we seein raye", "when we seeing raye"),
        ("were did i lose my purse", "where did i lose my purse"),
        ("u off nxt wk, or 2moro", "you off next week, or tomorrow"),
        ("doin owt dis wkend?", "doing anything this weekend?"),
        ("course on 3 febuary", "course on 3 february"),
        ("on wendesday or thrusday", "on wednesday or thursday"),
        ("on Saterday", "on Saturday"),
        ("monady: gym", "monday: gym"),
    ],
)
def test_chat_spellings_are_written_out(typed, written):
    assert plain(typed) == written


@pytest.mark.parametrize(
    "text",
    [
        "",
        "n y r 2 4 wit ware id an",
        "we were was",  # no "where"
        "a wat in Siem Reap, near Angkor Wat, with my cuz",
        "I'm called Wen, and my dog is Mornin",
        "the b4-paper, u.s. and @wat, wat.com",
        "a sundae with sundry toppings in Sunray",
        "I drive for Sunbay, and Sunbay is a firm",
        "my sister Augusta came with Sundar",
        "within a cabin in Dublin with Colin and Robin",
        "wat wil hij eten op zondag",  # Dutch
        "wen treffe ich morgen",  # German
        "mon ami tue le temps avec moi",
        "see example.org/?u=2day&ur=wk or set u=3",
        "the wen is a cyst",
        "I had lunch with Sun at 1.",
    ],
)
def test_what_may_be_meant_so_is_left(text):
    assert plain(text) == text


@pytest.mark.parametrize(
    ("typed", "day"),
    [
        ("dentist fri at 2", "2026-11-27"),
        ("dentist weds at 2", "2026-12-02"),
        ("got my flu jab fri at boots half 5", "2026-11-27"),
        ("bins go out thurs n dont forget", "2026-11-26"),
        ("cinema sat with ella", "2026-11-28"),
        ("im off sat", "2026-11-28"),
        ("call mum sun", "2026-11-29"),
        ("party sat 8pm", "2026-11-28"),
        ("the cleaner comes wed morning", "2026-12-02"),
        ("hockey final is sun 11am", "2026-11-29"),
        ("tues not mon", "2026-12-01"),
        ("lunch Sat with Bo", "2026-11-28"),
        ("mum coming sun 6th for lunch", "2026-12-06"),
        ("dentist a week today", "2026-12-02"),
        ("a week tomorrow is the exam", "2026-12-03"),
        ("the exam is a week on friday", "2026-12-04"),
        ("exam a week friday", "2026-12-04"),
        ("i texted him n hes sending somebody monday", "2026-11-30"),
        ("he has tablets twice a day til friday", "2026-11-27"),
    ],
)
def test_a_short_weekday_is_a_day_by_the_words_beside_it(typed, day):
    assert days(typed) == [day]


@pytest.mark.parametrize(
    "text",
    [
        "we sat with ella",
        "the cat sat at the door",
        "the kids sat at 8 tables",
        "On Thursday, she walked in, sat on my bag and cried",
        "Dayo has sat two exams and I sat 5 hours",
        "Nerys sat down",
        "I'm sat in the car",
        "i love the sun",
        "no sun and no stress, she said keep out of strong sun",
        "pack sun cream",
        "I read it in the Sun",
        "they wed in May",
        "I'm wed to my old phone",
        "they are to be wed",
        "hey mon",
        "the SAT, the MON and the SUN",
        "my sister Thu came",
    ],
)
def test_sat_sun_and_wed_are_words_of_their_own(text):
    assert plain(text) == text


def test_lists_of_short_weekdays_are_no_single_day():
    assert plain("gym mon wed n fri") == "gym monday wednesday n friday"
    assert plain("i work sat and sun") == "i work saturday and sunday"
    assert absolute("gym mon wed n fri from 7", WEDNESDAY)[1] is None


def test_a_day_keeps_its_own_preposition_after_in():
    told = absolute("she wants me in tomorrow", WEDNESDAY)[0]
    assert told == "she wants me in on 26 November 2026"


def test_dates_are_resolved_where_they_were_typed():
    """The person's other words stay as they are."""
    typed = "doin nowt 2moro, gym nxt fri wiv ella"
    written = "doin nowt on 26 November 2026, gym on Friday 27 November 2026 wiv ella"
    assert absolute(typed, WEDNESDAY) == (written, "2026-11-26")


@pytest.mark.parametrize(
    ("question", "first"),
    [
        ("am i free sat", "2026-11-28"),
        ("plans for sat?", "2026-11-28"),
        ("anythin on friday", "2026-11-27"),
        ("do i have anything on monday", "2026-11-30"),
        ("whats on tomoz", "2026-11-26"),
        ("wats my week lookin like", "2026-11-23"),
    ],
)
def test_days_are_asked_for_in_haste(question, first):
    asked = asked_days(question, WEDNESDAY)
    assert asked is not None and str(asked.first) == first


def test_a_second_date_without_a_year_is_told_too():
    text = "lesson cancelled this week steves got covid next ones 2nd dec at 5"
    assert days(text) == ["2026-11-23", "2026-12-02"]


def test_wat_and_wen_alone_are_no_dutch_and_no_german():
    assert not is_other_language("wat size slippers 4 dad")
    assert not is_other_language("wen u goin")
    assert is_other_language("wat eet hij") and is_other_language("wen treffe ich")


_WORDS = st.sampled_from(
    "sat sun mon wed fri thurs friday n and to at 2 8pm in with the we wat wens wen is 2moro nxt "
    "wk were did monady Sat SAT doin cinema call , . \n - u".split(" ")
)


@given(st.lists(_WORDS, max_size=14).map(" ".join) | st.text(max_size=60))
def test_the_plain_form_is_plain(text):
    once, places = plain_places(text)
    assert plain(once) == once
    assert len(places) == (0 if once == text else len(once))
    assert all(0 <= place < len(text) for place in places) and list(places) == sorted(places)
    absolute(text, WEDNESDAY)


@pytest.mark.parametrize("part", ["sat ", "sat, ", "call sat ", "mon n ", "'", "in sat\n", "wat "])
def test_a_long_text_is_read_in_linear_time(part):
    text = (part * 20_000)[:20_000]
    started = time.process_time()
    plain(text)
    assert time.process_time() - started < 1
