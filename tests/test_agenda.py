"""What there is on some days: which questions ask for it, and what is listed."""

from datetime import date, timedelta
from unittest.mock import patch

import pytest
from fake_engine import FakeEngine
from hypothesis import given
from hypothesis import strategies as st
from memorykit import quick

from edgemem import Chat
from edgemem.language import (
    asked_days,
    asked_within,
    calls_off,
    comes_again,
    ends_weekly,
    may_name_far,
    naming,
    told_days,
    told_weekdays,
)
from edgemem.stages.generation import NOTHING_FOUND

NOW = "2026-11-18T09:00:00+00:00"  # a Wednesday


@pytest.mark.parametrize(
    ("question", "first", "last"),
    [
        ("What do I have on Thursday?", "2026-11-19", "2026-11-19"),
        ("whats on thursday", "2026-11-19", "2026-11-19"),
        ("What do I have today?", "2026-11-18", "2026-11-18"),
        ("whats happening tmrw", "2026-11-19", "2026-11-19"),
        ("what have i got on friday", "2026-11-20", "2026-11-20"),
        ("tell me what i've got on friday", "2026-11-20", "2026-11-20"),
        ("what do i have on the second of december", "2026-12-02", "2026-12-02"),
        ("anything on saturday?", "2026-11-21", "2026-11-21"),
        ("What's on the 8th of December?", "2026-12-08", "2026-12-08"),
        ("what do i have on the 25th", "2026-11-25", "2026-11-25"),
        ("What is on 2026-12-03?", "2026-12-03", "2026-12-03"),
        ("What do I have on December 3rd, 2026?", "2026-12-03", "2026-12-03"),
        ("What have I got on this week?", "2026-11-16", "2026-11-22"),
        ("what are we doing at the weekend", "2026-11-21", "2026-11-22"),
        ("What's coming up this week?", "2026-11-18", "2026-11-24"),
        ("remind me what's coming up for me in june", "2027-06-01", "2027-06-30"),
        ("what's coming up?", "2026-11-18", "9999-12-31"),
        ("What do I have this Wednesday?", "2026-11-18", "2026-11-18"),
        ("What do I have on 3.12.?", "2026-12-03", "2026-12-03"),
        ("What do I have on Thursday, 3.12.?", "2026-12-03", "2026-12-03"),
        ("What's on 3. December?", "2026-12-03", "2026-12-03"),
        ("What do I have on 14/12?", "2026-12-14", "2026-12-14"),
        ("anything on Thursday after 18:00?", "2026-11-19", "2026-11-19"),
        ("What do I have on Thursday at 20h?", "2026-11-19", "2026-11-19"),
        ("What's on Thursday and Friday?", "2026-11-19", "2026-11-20"),
        ("what do i have today or tomorrow", "2026-11-18", "2026-11-19"),
        ("What do I have am Donnerstag?", "2026-11-19", "2026-11-19"),
        ("Was steht am 4.12. an?", "2026-12-04", "2026-12-04"),
        ("Was habe ich morgen?", "2026-11-19", "2026-11-19"),
        ("What's coming up next year?", "2027-01-01", "2027-12-31"),
        ("What is planned for the spring?", "2027-03-01", "2027-05-31"),
        ("¿Qué tengo el lunes?", "2026-11-23", "2026-11-23"),
        ("And next week?", "2026-11-23", "2026-11-29"),
        ("and on Sunday?", "2026-11-22", "2026-11-22"),
        ("What is coming up in the next few weeks?", "2026-11-18", "2026-12-08"),
        ("anything planned over the next 10 days", "2026-11-18", "2026-11-27"),
        ("What's my next appointment?", "2026-11-18", "9999-12-31"),
        ("What's next in my diary?", "2026-11-18", "9999-12-31"),
    ],
)
def test_a_question_for_coming_days_is_known(question, first, last):
    days = (date.fromisoformat(first), date.fromisoformat(last), False)
    assert asked_days(question, NOW) == days


SAID = (
    "The exam is on the 8th.|It is on Thursday the 22nd at 9.|The exam is in 10 weeks.|"
    "It's in a month.|We meet three weeks on Monday.|I leave next month.|on 4/9/2027|"
    "We met three weeks yesterday.|We moved two months ago.|I saw her last month.|"
    "Party on May 3rd.|Zahnarzt am 3.12.|The gala is 30 days from today.|dentist febuary 3|"
    "It is the second Saturday of September.|We moved in this week.|I fly on Friday week.|"
    "We land on 3 May 2027 and leave exactly two weeks later.|Camp from 28 June to 3 July.|"
    "We were there the week of 28 June.|It is a fortnight tomorrow.|dinner next friday"
).split("|")


@pytest.mark.parametrize("text", SAID)
def test_a_day_that_is_far_away_is_looked_for_in_every_text_that_may_name_it(text):
    named = 0
    for n in range(0, 366, 5):
        said = date(2026, 11, 18) + timedelta(days=n)
        for day in {day for days in told_days(text, f"{said}T09:00:00") for day in days}:
            named += 1
            far = abs(day - said) > timedelta(days=16)
            assert not far or naming(day, day).search(text) or may_name_far(text), (said, day)
    assert named


@pytest.mark.parametrize(
    ("question", "first", "last"),
    [
        ("What did I do on Tuesday?", "2026-11-17", "2026-11-17"),
        ("what happend in the week of 9 november", "2026-11-09", "2026-11-15"),
        ("What did we do last weekend?", "2026-11-14", "2026-11-15"),
        ("What happened on the 25th of November?", "2025-11-25", "2025-11-25"),
        ("what did i do today", "2026-11-18", "2026-11-18"),
        ("what did I have on the 18th?", "2026-11-18", "2026-11-18"),
        ("Summarise my week", "2026-11-12", "2026-11-18"),
        ("sum up my week", "2026-11-12", "2026-11-18"),
        ("What did I have on Monday?", "2026-11-16", "2026-11-16"),
        ("recap the week of 9 November", "2026-11-09", "2026-11-15"),
        ("Summarise my last week", "2026-11-12", "2026-11-18"),
        ("summarise the past month for me", "2026-10-20", "2026-11-18"),
        ("How was my week?", "2026-11-12", "2026-11-18"),
        ("how has my last week been", "2026-11-12", "2026-11-18"),
        ("What happened in the last seven days?", "2026-11-12", "2026-11-18"),
        ("what did i do over the past 3 days", "2026-11-16", "2026-11-18"),
        ("sum up October", "2026-10-01", "2026-10-31"),
        ("What happened this year?", "2026-01-01", "2026-11-18"),
        ("What did I do in 2025?", "2025-01-01", "2025-12-31"),
        ("summarise 2025 for me", "2025-01-01", "2025-12-31"),
        ("recap last year", "2025-01-01", "2025-12-31"),
        ("what did we do last summer", "2026-06-01", "2026-08-31"),
        ("What did I do in summer 2025?", "2025-06-01", "2025-08-31"),
        ("What happened in the winter of 2024?", "2024-12-01", "2025-02-28"),
        ("sum up my year", "2025-11-19", "2026-11-18"),
        ("What happened at Christmas?", "2025-12-24", "2025-12-26"),
        ("What happened in March 2025?", "2025-03-01", "2025-03-31"),
        ("What happened in my life in 2025?", "2025-01-01", "2025-12-31"),
        ("Give me an overview of November 2026", "2026-11-01", "2026-11-30"),
        ("What were the highlights of last year?", "2025-01-01", "2025-12-31"),
    ],
)
def test_a_question_for_past_days_is_known(question, first, last):
    days = (date.fromisoformat(first), date.fromisoformat(last), True)
    assert asked_days(question, NOW) == days


@pytest.mark.parametrize(
    "question",
    [
        "When is the dentist on Friday?", "What should I cook on Saturday?", "what's today?",
        "What is the date today?", "What's the weather tomorrow?", "What may I eat?",
        "What's next?",
        "What's my next appointment with Dr Anand?", "And in May?", "And Friday.", "And today?",
        "I have the dentist on Friday", "What do I have on Tuesdays?", "On Friday we march.", "",
        "What do I have on 3/12?", "What do I have on version 3.12?", "Was ist los?",
        "Who comes on Thursday and Friday?", "What's on at 5?",
        "What do I have at 2030?", "What happened in 2025 to Tom?",
        "Tell me about May", "Give me an overview of my life", "Tell me about Ruth in 2025",
        "what do i have on 31 February", "What's on in December 9999?",
    ],
)  # fmt: skip
def test_a_question_for_anything_else_is_not(question):
    assert asked_days(question, NOW) is None


@given(st.text(max_size=60), st.sampled_from(["", " on friday", " next week", " in may", " 9999"]))
def test_any_text_can_be_asked_and_told(text, more):
    asked_days(text + more, NOW)
    assert all(first <= last for first, last in told_days(text + more, NOW))
    told_weekdays(text)


@pytest.mark.parametrize(
    ("text", "days"),
    [
        ("Dentist on Thursday at 8:30.", ["2026-11-19"]),
        ("dentist thurs 8.30", ["2026-11-19"]),
        ("team dinner Friday 7:30 at Roma", ["2026-11-20"]),
        ("I booked physio for Thursday", ["2026-11-19"]),
        ("They moved it from the 19th to the 26th", ["2026-11-19", "2026-11-26"]),
        (
            "We saw Ann on Monday. Mum's operation is on 8 December 2026",
            ["2026-11-16", "2026-12-08"],
        ),
        ("party at toms fri 9pm", ["2026-11-20"]),
        ("lunch sun 22nd, dentist is on 4 may", ["2027-05-04"]),
        ("lunch sun 22nd w mum", ["2026-11-22"]),
        ("exam 27 may 9am", ["2027-05-27"]),
        ("I sat 3 exams, my 2nd 10k run", []),
        ("Lazy Saturday.", []),
        ("yoga every Tuesday", []),
        ("coffee is friday now, not thursday", ["2026-11-20"]),
        ("paul's birthday is on the second of december", ["2026-12-02"]),
        ("it's not on Thursday 19 November 2026", []),
    ],
)
def test_a_text_tells_of_the_days_it_names(text, days):
    assert [first.isoformat() for first, _ in told_days(text, NOW)] == days


@pytest.mark.parametrize(
    ("text", "days"),
    [
        ("The dentist is on 3.12. at 8:15.", ["2026-12-03"]),
        ("Zahnarzt 3.12. 8:15", ["2026-12-03"]),
        ("The invoice is due by 10.12.", ["2026-12-10"]),
        ("Lieferung am 1.12. zwischen 10 und 12 Uhr", ["2026-12-01"]),
        ("yoga on 3.12 at 8", ["2026-12-03"]),
        ("trip from 3.12. to 5.12. with Leire", ["2026-12-03", "2026-12-05"]),
        ("Exam on 3.4.27.", ["2027-04-03"]),
        ("I retire on 31.3.2027 and Anke follows", ["2027-03-31"]),
        ("we leave on 3. April 2027", ["2027-04-03"]),
        ("The fair is from 14/12 to 18/12.", ["2026-12-14", "2026-12-18"]),
        ("wedding on 14/5/27", ["2027-05-14"]),
        ("The sofa comes on 3/12/2026", ["2026-12-03", "2026-03-12"]),
        ("On 3-12-2026 we meet", ["2026-12-03", "2026-03-12"]),
        ("la cita es el 3/12 a las 9", ["2026-12-03", "2027-03-12"]),
        ("Das Meeting am Donnerstag mit Tom ist um 15 Uhr", ["2026-11-19"]),
        ("Nächsten Freitag fliege ich nach Köln", ["2026-11-20"]),
        ("El lunes tengo una reunión", ["2026-11-23"]),
        ("cita el 3 de diciembre", ["2026-12-03"]),
        ("the exam is on 2 april. lunch is on friday", ["2027-04-02", "2026-11-20"]),
        ("Termin am 3. Dezember um 8:15 Uhr", ["2026-12-03"]),
        ("Morgen muss ich zum Arzt", ["2026-11-19"]),
        ("pasado mañana tengo yoga", ["2026-11-20"]),
        ("letzten Montag war ich krank", []),
        ("Am Donnerstag war ich krank", []),
    ],
)
def test_days_are_read_as_germans_and_spaniards_write_them(text, days):
    assert [first.isoformat() for first, _ in told_days(text, NOW)] == days


@pytest.mark.parametrize(
    "text",
    [
        "It costs 3.12.", "I paid 3.12. Then I left.", "We run version 3.12. here",
        "I upgraded from 3.11 to 3.12.", "See section 3.12. for details", "rose by 3.5 percent",
        "The heating is on 24/7", "I ate 3/4 of the cake", "1/2 to 3/4 cup of milk",
        "My blood pressure is 13/8", "The bus leaves at 8.30.", "Open from 8.10 to 9.15",
        "My IP is 192.168.1.1", "Chapter 3.2.1 is long", "We won 3-2 and 4-1", "I work 9-5",
        "We are 5. May I come in?", "I have 3 mayo sandwiches", "We drank 2 Mai Tais",
        "It works on 2.4 GHz", "I take it on 10/20 mg", "I am 3.12 m tall", "Guten Morgen!",
        "Santo Domingo is hot", "I gave it 7/10", "call 0171/1234567", "We are open until 8.10.",
        "Her numbers are 7.1, down from 8.4.", "Congratulations on 16.5!", "We settled on 2.5",
    ],
)  # fmt: skip
def test_other_numbers_and_names_are_no_days(text):
    assert told_days(text, NOW) == []


def test_a_plan_of_several_days_is_told_of_all():
    days = (date(2026, 11, 23), date(2026, 11, 25))
    for text in ("exams 23-25 Nov", "we are away from the 23rd to the 25th of November"):
        assert told_days(text, NOW) == [days]


def test_what_comes_every_week_is_known_by_its_weekdays():
    assert told_weekdays("yoga every Tuesday, swimming on Fridays, Monday is off") == {1, 4}
    assert told_weekdays("gym every wed n fri") == {2, 4}
    assert told_weekdays("Jour fixe jeden Dienstag, yoga los jueves, donnerstags Chor") == {1, 3}
    assert told_weekdays("choir on Monday evenings, yoga thu mornings") == {0, 3}
    assert not told_days("choir on Monday evenings", "2026-11-12T10:00:00+00:00")


def test_what_comes_once_a_month_is_known_by_its_day():
    december = [date(2026, 12, day) for day in range(1, 32)]
    for text, days in (
        ("The circle meets on the first Wednesday of every month at 7 pm.", [2]),
        ("book club: 3rd mon of the month", [21]),
        (
            "Choir on the last Friday evening of each month, gym every Tuesday",
            [1, 8, 15, 22, 25, 29],
        ),
        ("I no longer go on the first Wednesday of the month.", []),
        ("We had dinner at Nobu on the last Friday of the month.", []),
        ("The tax is due on the last Friday of the month.", [25]),
        ("The club met on the first Wednesday of every month.", [2]),
    ):
        assert [day.day for day in comes_again(text, december)] == days, text


@pytest.fixture
def memory():
    with quick(":memory:") as opened:
        opened._engine = FakeEngine()
        yield opened


def tell(memory, when, text):
    return memory.add(text, user_id="default", infer=False, timestamp=when)[0].id


def listed(memory, question):
    chat = Chat(memory, FakeEngine())
    reply = chat.send(question, timestamp=NOW, remember=False)
    text = "".join(reply)
    assert reply.wants == "overview"
    return [line.partition(": ")[2] or line for line in text.splitlines()[1:]] or [text]


def test_a_day_lists_what_was_told_of_it_and_what_became_of_that(memory):
    tell(memory, "2026-11-13T10:00:00Z", "The team dinner is on Thursday at Roma. I like Roma.")
    tell(memory, "2026-11-13T10:01:00Z", "Swimming is every Thursday.")
    tell(memory, "2026-11-14T10:00:00Z", "I will bake a cake for the team dinner on Thursday.")
    tell(memory, "2026-11-16T10:00:00Z", "The team dinner is cancelled.")
    tell(memory, "2026-11-17T10:00:00Z", "I saw the dentist on Monday.")
    memory.add("I fly on Thursday.", user_id="other", infer=False, timestamp=NOW)
    assert listed(memory, "What do I have on Thursday?") == [
        "The team dinner is on Thursday 19 November 2026 at Roma.",
        "The team dinner is cancelled.",
        "Swimming is every Thursday.",
        "I will bake a cake for the team dinner on Thursday 19 November 2026.",
    ]


def test_what_comes_in_two_weeks_is_listed_on_that_day_of_its_week(memory):
    tell(memory, "2026-11-05T10:00:00Z", "The inspector comes in two weeks.")
    assert len(listed(memory, "What do I have tomorrow?")) == 1
    assert listed(memory, "What do I have on Friday?") == [NOTHING_FOUND]


@pytest.mark.parametrize(
    "told",
    [
        "Isla's wedding is on the 3rd of December 2026.",
        "Wedding Dec 3rd 2026",
        "The wedding is on December 3, 2026.",
        "The wedding is on 2026-12-03.",
        "Wedding 03/12/2026 with Isla",
        "Die Hochzeit ist am 3. Dezember 2026.",
        "La boda es el 3 de diciembre de 2026.",
        "I have yoga every Thursday.",
        "Thursdays are for choir.",
        "We fly in 511 days.",
        "Wedding on 3 decembr 2026",
    ],
)
def test_a_day_that_was_named_long_before_is_listed(memory, told):
    tell(memory, "2025-07-10T10:00:00Z", told)
    tell(memory, "2025-07-10T10:00:00Z", "I watched a film on Thursday.")
    lines = listed(memory, "What do I have on 3 December 2026?")
    assert len(lines) == 1 and lines != [NOTHING_FOUND]


def test_of_many_days_what_is_not_said_again_is_listed_and_the_rest_counted(memory):
    tell(memory, "2026-11-09T10:00:00Z", "Lily came third in the cross country race.")
    for n in range(14):
        tell(memory, f"2026-11-{10 + n // 3}T1{n % 3}:00:00Z", f"Queue number {n} at Tesco.")
    lines = listed(memory, "What did I do last week?")
    assert lines == ["Lily came third in the cross country race.", "- and 14 more"]


def test_a_remark_on_a_past_day_is_not_followed_by_later_ones_like_it(memory):
    for day in range(10, 18):
        tell(memory, f"2026-11-{day}T10:00:00Z", "Work was mad, phones all day.")
    assert len(listed(memory, "What did I do on 10 November?")) == 1


def test_a_weekly_thing_that_was_given_up_is_listed_no_more(memory):
    tell(memory, "2026-01-09T10:00:00Z", "Pottery evening class on Tuesdays at the Artspace.")
    tell(memory, "2026-09-15T10:00:00Z", "I've given up pottery, there is nothing near here.")
    assert listed(memory, "What do I have on Tuesday?") == [NOTHING_FOUND]
    assert "Pottery" in listed(memory, "What did I do on 4 August 2026?")[0]


@pytest.mark.parametrize(
    ("text", "weekday", "ends"),
    [
        ("Choir has moved to Wednesdays, still half seven.", 3, True),
        ("Choir is now every Wednesday.", 3, True),
        ("I have given up the choir.", 3, True),
        ("No choir any more, I'm hoarse.", 3, True),
        ("Choir has moved to the church.", 3, False),
        ("Choir has moved, it's Thursdays at eight now.", 3, False),
        ("Swimming has moved to Wednesdays.", 3, False),
        ("Choir is cancelled.", 3, False),
        ("I've given up pottery.", 3, False),
    ],
)
def test_it_is_known_what_ends_a_weekly_thing(text, weekday, ends):
    assert ends_weekly(text, "I sing in the choir on Thursdays at half seven.", weekday) is ends


def test_a_weekday_on_which_there_is_nothing_any_more_is_none():
    told = (
        "Gwen can't do Mondays any more, trumpet is on Fridays. Yoga is every Tuesday, not Mondays"
    )
    assert told_weekdays(told) == {1, 4}
    assert told_weekdays("Gerald can't do Mondays, so he's coming Thursdays.") == {3}


def test_what_is_called_off_by_one_who_is_not_named_in_the_plan_is_listed_below_it(
    memory,
):
    tell(memory, "2026-11-09T10:00:00Z", "Flight to Rome with Ana on Thursday 19 November.")
    tell(memory, "2026-11-10T10:00:00Z", "Easyjet cancelled our flight to Rome")
    lines = listed(memory, "What do I have on 19 November?")
    assert "Rome with Ana" in lines[0] and "Easyjet" in lines[1]


PRIYA = "Priya cant do Wednesdays because of orchestra so shes coming Fridays at 4."


@pytest.mark.parametrize(
    ("text", "off"),
    [
        ("Gerald cant do tuesdays any more, moved him to Thursdays at 11.", False),
        ("Priya cant do Fridays any more.", True),
        ("Priya no longer does orchestra.", True),
    ],
)
def test_a_word_that_denies_is_no_subject_without_its_apostrophe_either(text, off):
    """ "cant" of both was half of the words, and a weekly patient was gone from the list."""
    assert calls_off(text, PRIYA) is off


@pytest.mark.parametrize(
    ("text", "off"),
    [
        ("The school play got moved to 15 December because the hall flooded.", True),
        ("The play was brought forward to 3 December.", True),
        ("I have now paid for the school play on 10 December.", False),
        ("I changed my shirt for the school play on 10 December.", False),
        ("Booked a second school play now, it's on 15 December.", False),
        ("A second school play got moved to 15 December.", False),
        ("They also moved the school play to 15 December.", False),
        ("The play has been put back a week.", True),
        ("The play was put back to Tuesday.", True),
        ("The play is now sold out.", False),
        ("The concert got moved to 15 December.", False),
        ("Maisie has a new bike now, since Monday.", False),
    ],
)
def test_it_is_known_what_moves_a_plan(text, off):
    assert calls_off(text, "Maisie is the Dodger in the school play, on 10 December.") is off


def test_a_short_sentence_that_goes_on_with_a_past_day_is_listed(memory):
    tell(memory, "2026-11-16T10:00:00Z", "Biscuit died this morning. He was 12. Tea now.")
    tell(memory, "2026-11-16T10:01:00Z", "Ok. She was 9.")
    tell(memory, "2026-11-16T10:02:00Z", "Pepper is here! She slept on Max's bed straight away.")
    assert listed(memory, "What happened on Monday?") == [
        "Biscuit died this morning. He was 12.",
        "Pepper is here! She slept on Max's bed straight away.",
    ]


def test_somebody_who_is_off_to_a_place_calls_nothing_off(memory):
    plan = "Lunch with Tom on Friday."
    tell(memory, "2026-11-15T10:00:00Z", plan)
    tell(memory, "2026-11-16T10:00:00Z", "Tom is off to Lisbon for weeks, so I do the rota.")
    assert listed(memory, "What do I have on Friday?") == [plan]
    off = "Tom is off sick, he says, so no trip into town."
    tell(memory, "2026-11-17T10:00:00Z", off)
    assert listed(memory, "What do I have on Friday?") == [plan, off]


def test_a_plan_of_something_else_in_the_same_words_does_not_follow(memory):
    plan = "Ok so the window cleaner got booked for Friday."
    tell(memory, "2026-11-15T10:00:00Z", plan)
    tell(memory, "2026-11-16T10:00:00Z", "Ok so the plumber got booked for Saturday the 28th.")
    tell(memory, "2026-11-16T10:01:00Z", "Lol ok.")
    assert listed(memory, "What do I have on Friday?") == [plan]


def test_a_plan_that_somebody_goes_on_later_is_followed(memory):
    later = "Paul is going to Toulouse a week later, so from the 27th to the 29th."
    tell(memory, "2026-11-15T10:00:00Z", "Paul flies to Toulouse on Friday until Sunday.")
    tell(memory, "2026-11-16T10:00:00Z", later)
    assert len(listed(memory, "What do I have on Friday?")) == 2


def test_the_last_days_of_the_calendar_and_a_document_are_read(memory):
    assert told_days("Lunch sun 22nd", "9999-12-30T10:00:00+00:00") == []
    tell(memory, "9999-12-30T10:00:00Z", "Lunch sun 22nd")
    tell(memory, "9999-12-30T10:00:00Z", "Fridays are for Swimming.")
    assert listed(memory, "What do I have on 31 December 9999?") == ["Fridays are for Swimming."]
    assert asked_days("What do I have on Thursday? " * 20, NOW) is None


def test_a_question_about_a_day_is_no_plan(memory):
    tell(memory, "2026-11-13T10:00:00Z", "My eye appointment, is that on Thursday?")
    tell(memory, "2026-11-13T10:00:00Z", "The team dinner is on Thursday. Or was it on Friday?")
    (told,) = listed(memory, "What do I have on Thursday?")
    assert told == "The team dinner is on Thursday 19 November 2026."
    assert listed(memory, "What do I have on Friday?") == [NOTHING_FOUND]


def test_a_day_without_plans_is_not_made_up_by_any_model(memory):
    tell(memory, "2026-11-13T10:00:00Z", "The team dinner is on Thursday.")
    assert listed(memory, "What do I have on Friday?") == [NOTHING_FOUND]


def test_only_a_large_model_tells_of_a_day_in_its_own_words(memory):
    tell(memory, "2026-11-13T10:00:00Z", "The team dinner is on Thursday.")
    engine = FakeEngine(("Dinner!",))
    chat = Chat(memory, engine)
    for n_params, told in (
        (1_500_000_000, "- 13 November 2026: The team"),
        (7_000_000_000, "Dinner!"),
    ):
        engine.n_params = n_params
        reply = chat.send("What do I have on Thursday?", timestamp=NOW, remember=False)
        assert told in "".join(reply)


def test_past_days_list_what_was_told_on_them_too(memory):
    tell(memory, "2026-11-15T10:00:00Z", "Baked bread with Ella. The dentist is on Friday.")
    tell(memory, "2026-11-16T10:00:00Z", "Yesterday I called Tom.")
    assert listed(memory, "What did I do on Sunday?") == [
        "Baked bread with Ella.",
        "On 15 November 2026 I called Tom.",
    ]


def test_a_sentence_that_says_only_when_is_listed_with_the_one_before_it(memory):
    tell(memory, "2026-11-16T10:00:00Z", "I like Ann. Booked the dentist! 2 december half 9")
    tell(memory, "2026-11-16T10:01:00Z", "Work is hard. Lunch with Tom on 2 December.")
    assert listed(memory, "What do I have on the 2nd of December?") == [
        "Booked the dentist! 2 december half 9",
        "Lunch with Tom on 2 December.",
    ]


def test_a_message_that_calls_a_plan_off_in_few_of_its_words_follows_it(memory):
    plan = "On 12 December we're flying to lisbon."
    off = "lisbon is off, no money. going to Tenby instead"
    tell(memory, "2026-11-15T10:00:00Z", plan)
    tell(memory, "2026-11-16T10:00:00Z", off)
    tell(memory, "2026-11-16T10:01:00Z", "The gym is off, the pipes burst. Had a swim instead")
    tell(memory, "2026-11-16T10:02:00Z", "The food in lisbon is said to be lovely, all that fish")
    days = "What do I have on the 12th of December?"
    assert listed(memory, days) == ["On 12 December 2026 we're flying to lisbon.", off]


@pytest.mark.parametrize(
    "moved",
    [
        "The team meeting moves to Wednesdays at 9:00.",
        "The team meeting is now on Wednesdays at 9:30.",
        "The team meeting with Tom is now every Wednesday at 9:00 instead of Tuesday.",
    ],
)
def test_a_weekly_plan_is_listed_on_its_new_weekday_alone(memory, moved):
    plan = "The team meeting with Tom is every Thursday at 10:30."
    tell(memory, "2026-11-02T10:00:00Z", plan)
    tell(memory, "2026-11-15T10:00:00Z", moved)
    tell(memory, "2026-11-16T10:00:00Z", "Dinner with Tom on Friday at 8.")
    assert listed(memory, "What do I have tomorrow?") == [NOTHING_FOUND]
    assert listed(memory, "What do I have on Wednesday 25 November?") == [moved]
    assert plan in listed(memory, "What did I do on 5 November?")


def test_a_note_with_a_dotted_date_is_listed_whole(memory):
    note = "I see Prof. Müller on 19.11. at 8:15 with Sra. Aguirre."
    tell(memory, "2026-11-16T10:00:00Z", note)
    assert listed(memory, "What do I have tomorrow?") == [note]


def test_an_edited_or_deleted_plan_is_listed_as_it_is_now(memory):
    edited = tell(memory, "2026-11-16T10:00:00Z", "Lunch with Ann is on Friday.")
    deleted = tell(memory, "2026-11-16T10:00:00Z", "Lunch with Bob is on Friday.")
    memory.update(edited, "Lunch with Ann is on Saturday.")
    memory.delete(deleted)
    assert listed(memory, "What do I have on Friday?") == [NOTHING_FOUND]
    assert listed(memory, "What do I have on Saturday?") == [
        "Lunch with Ann is on Saturday 21 November 2026."
    ]


def test_a_fact_that_was_edited_long_after_it_was_told_is_listed():
    said = "I have lunch with Ann soon."
    with quick(engine=FakeEngine(facts={said: "{} has lunch with Ann soon"})) as memory:
        _, fact = memory.add(said, user_id="default", timestamp="2024-01-16T10:00:00Z")
        with patch("edgemem.pipeline.ingest.utc_now", return_value="2026-11-17T10:00:00.000+00:00"):
            memory.update(fact.id, "User has lunch with Ann tomorrow")
        assert len(listed(memory, "What do I have today?")) == 1
        assert NOTHING_FOUND not in listed(memory, "What do I have today?")


@pytest.mark.parametrize("now", ["2100-01-01T10:00:00.000+00:00", "2026-11-01T10:00:00.000+00:00"])
def test_an_edited_fact_is_listed_whatever_the_clock_of_the_edit(now):
    said = "I have lunch with Ann soon."
    with quick(engine=FakeEngine(facts={said: "{} has lunch with Ann soon"})) as memory:
        _, fact = memory.add(said, user_id="default", timestamp="2026-11-16T10:00:00Z")
        text = "User has lunch with Ann on 20 November 2026"
        with patch("edgemem.pipeline.ingest.utc_now", return_value=now):
            memory.update(fact.id, text)
        assert listed(memory, "What do I have on Friday?") == [text]


def test_an_overview_is_of_a_year_only_where_one_is_said_to_be_meant():
    assert asked_within("What do you know about the exhibition 2024?", NOW) is None
    assert asked_within("Tell me about Windows 2000", NOW) is None
    assert asked_within("Tell me about Ana in 2024", NOW)
    assert asked_within("What did I tell you of Ana last year?", NOW)


def test_and_on_friday_asks_for_all_that_is_then_only_after_a_question_that_did(
    memory,
):
    tell(memory, "2026-11-13T10:00:00Z", "Posy has chess on Friday 20 November 2026.")
    for first, days in (
        ("What does Posy have on Thursday?", False),
        ("What do I have on Thursday?", True),
    ):
        chat = Chat(memory, FakeEngine())
        for question in (first, "And on Friday?", "And on Saturday?"):
            reply = chat.send(question, timestamp=NOW, remember=False)
            "".join(reply)
            assert (reply.wants == "overview") is days, (first, question)
