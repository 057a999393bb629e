"""How long ago, how long between, which first, how old: such questions and their answers."""

from datetime import date

import pytest
from fake_engine import FakeEngine
from hypothesis import given
from hypothesis import strategies as st
from memorykit import quick

from bench.intervals import is_right
from edgemem import Chat, Memory
from edgemem.language import (
    Comparison,
    Event,
    age_text,
    births,
    comparison,
    days_told,
    whose_age,
    worded,
)
from edgemem.pipeline.told import aged, compared
from edgemem.stages.generation import NOTHING_FOUND

NOW = "2026-11-18T09:00:00.000+00:00"  # a Wednesday


@pytest.mark.parametrize(
    ("question", "asks", "unit", "events"),
    [
        ("How many weeks ago did I twist my ankle?", "since", "week", ["I twist my ankle"]),
        ("How long ago was the fair?", "since", "", ["the fair"]),
        ("Weeks since I bought the boat?", "since", "week", ["I bought the boat"]),
        ("How long has it been since the cast came off?", "since", "", ["the cast came off"]),
        ("How many weeks is it ago that I quit?", "since", "week", ["I quit"]),
        ("how long have i had the cat now", "since", "", ["the cat"]),
        ("For how long have I been taking lessons?", "since", "", ["taking lessons"]),
        ("How many days till the exam?", "until", "day", ["the exam"]),
        ("how long do we still have until the ferry leaves", "until", "", ["the ferry leaves"]),
        ("How many days passed between the day I sowed and the day I reaped?", "between", "day",
         ["I sowed", "I reaped"]),
        ("How many months passed between Ann adopting Toby and Buddy?", "between", "month",
         ["Ann adopting Toby", "Ann adopting Buddy"]),
        ("How many days had passed since I began when I stopped?", "between", "day",
         ["I began", "I stopped"]),
        ("How long after I quit did Arno quit?", "between", "", ["I quit", "Arno quit"]),
        ("How long had I been taking lessons when I got the piano?", "between", "",
         ["taking lessons", "I got the piano"]),
        ("Which was first: Leo singing or Ann dancing?", "first", "",
         ["Leo singing", "Ann dancing"]),
        ("Did I dye it before or after Theo came?", "before", "", ["I dye it", "Theo came"]),
        ("Which came first, the fair or my exam?", "first", "", ["the fair", "my exam"]),
        ("Which pet did Ann adopt first - Susie or Rex?", "first", "",
         ["Ann adopt Susie", "Ann adopt Rex"]),
        ("Was it the 10k or the fall that happened earlier?", "first", "", ["the 10k", "the fall"]),
        ("First 5k or Milo starting, which was first?", "first", "", ["First 5k", "Milo starting"]),
    ],
)  # fmt: skip
def test_a_question_that_compares_days_is_taken_apart(question, asks, unit, events):
    found = comparison(question)
    assert (found.asks, found.unit) == (asks, unit)
    assert [event.text for event in found.events] == events


@pytest.mark.parametrize(
    "question",
    [
        "How long is the flight to Lisbon?",
        "How many days a week do I work?",
        "How long does it take from Leeds to York?",
        "how long is it from Leeds to York",
        "How long is the road between Leeds and York?",
        "Between which two streets is the shop?",
        "Which of my two sisters is older?",
        "How many museums did I visit?",
        "how long are my lessons",
        "How long do I bake it?",
        "Who came first in the race, Tom or Ann?",
        "Is it tea or coffee that I like?",
        "I was there before or after all.",
    ],
)
def test_a_question_that_compares_no_days_is_left_alone(question):
    assert comparison(question) is None


@given(st.text(max_size=400))
def test_any_text_may_be_asked_or_told(text):
    comparison(text)
    days_told(text, NOW)


@pytest.mark.parametrize(
    ("asks", "unit", "days", "answer"),
    [
        ("since", "day", ["2026-11-08"], "10 days\n\nSince 8 November 2026."),
        ("since", "week", ["2026-10-31"], "2 weeks and 4 days\n\nSince 31 October 2026."),
        ("since", "month", ["2026-08-20"], "about 3 months\n\nSince 20 August 2026."),
        ("since", "", ["2026-09-24"], "55 days (about 8 weeks)\n\nSince 24 September 2026."),
        ("since", "", ["2026-12-24"], None),  # it is still to come
        ("since", "year", ["2026-10-24"], None),
        ("until", "sleep", ["2026-11-19"], "1 sleep\n\nUntil 19 November 2026."),
        ("until", "week", ["2026-11-18"], "0 days\n\nUntil 18 November 2026."),
        ("between", "day", ["2026-03-08", "2026-03-01"],
         "7 days\n\nFrom 1 March 2026 to 8 March 2026."),
        ("before", "", ["2026-03-01", "2026-03-08"], "before\n\na: 1 March 2026; b: 8 March 2026"),
        ("first", "", ["2026-03-08", "2026-03-01"], "b\n\na: 8 March 2026; b: 1 March 2026"),
        ("first", "", ["2026-03-08", "2026-03-08"], None),
    ],
)  # fmt: skip
def test_the_answer_is_computed_from_the_days(asks, unit, days, answer):
    asked = Comparison(asks, unit, tuple(Event(name) for name in "ab"[: len(days)]))
    assert worded(asked, [*map(date.fromisoformat, days)], date(2026, 11, 18)) == answer


@pytest.fixture
def memory():
    with quick() as opened:
        for when, text in (
            ("2026-09-01", "Bin lorry hit the van on Saturday. Parked it at home since."),
            ("2026-09-12", "Got the van back from the garage this morning."),
            (
                "2026-09-20",
                "My friend Jo has a cat. I adopted a cat yesterday. He is called Gravy.",
            ),
            ("2026-10-02", "The cat had his vaccination today, Gravy is brave."),
            ("2026-10-05", "I have lived in Leeds for three years."),
            ("2026-10-08", "I drive to the office in Leeds."),
            ("2026-10-12", "A friend made the bowl for my 18th birthday ten years ago."),
            ("2026-10-20", "Entered a half marathon. 18 April 2027."),
            ("2026-10-25", "The concert of the choir is on 5 December."),
            ("2026-11-02", "The concert of the choir is on 12 December now."),
            ("2026-11-03", "The dinner of the club is on 15 December."),
            ("2026-11-08", "We're going to the Azores, 20 to 30 January, with Ryanair."),
            ("2026-11-09", "We decided to go to Madeira in January, from the 12th to the 19th."),
            ("2026-11-10", "The dinner of the club is cancelled."),
        ):
            opened.add(text, user_id="me", infer=False, timestamp=f"{when}T10:00:00Z")
        yield opened


def ask(memory, question):
    return compared(memory, lambda text: memory.search(text, user_id="me"), question, NOW)


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("How many days passed between the lorry hitting the van and getting the van back?",
         "14 days"),
        ("Which was first, the van back or the lorry?",
         "the lorry"),
        ("How long have I had the cat Gravy?", "60 days (about 2 months)"),
        ("How many days until the half marathon?", "151 days"),
        ("How many days until the concert of the choir?", "24 days"),
        ("How many days until we fly to the Azores?", "63 days"),
        ("How many days until we go to Madeira?", "55 days"),
    ],
)  # fmt: skip
def test_the_nearest_sentence_tells_the_day(memory, question, answer):
    found = ask(memory, question)
    assert found[0].partition("\n\n")[0] == answer


@pytest.mark.parametrize(
    "question",
    [
        "How long ago did Priya paint her nails?",
        "How long have I lived in Leeds?",  # it tells the length itself
        "How long have I been driving to the office?",  # no day on which that began
        "How many days until the dinner of the club?",
        "How long ago did I move?",
        "How long ago was my 18th birthday?",  # a length, and no day
    ],
)
def test_no_day_is_taken_where_none_is_told(memory, question):
    assert ask(memory, question) is None


def test_a_chat_gives_the_answer_with_what_was_told(memory):
    question = "How many days until the half marathon?"
    chat = Chat(memory, FakeEngine(wants={question: "recall"}), user_id="me")
    reply = chat.send(question, timestamp=NOW, remember=False)
    assert "".join(reply) == (
        "151 days\n\nUntil 18 April 2027.\n\nThis is what you told me:\n"
        "- 20 October 2026: Entered a half marathon. 18 April 2027."
    )
    assert [hit.memory for hit in reply.context] == ["Entered a half marathon. 18 April 2027."]


def test_the_bench_scores_the_answer_without_what_stands_below():
    assert is_right("7 days\n\nSince 3 May 2026.", ["a week", "7 days"])
    assert not is_right("I'm not sure.\n\n- 7 days", ["7 days"])
    assert is_right(NOTHING_FOUND, ["-"])


@pytest.mark.parametrize(
    ("question", "whom"),
    [
        ("How old is my aunt Rosa now?", {"aunt", "rosa"}),
        ("how old am i", {"i"}),
        ("wait how old am i again lol", {"i"}),
        ("What is my age?", {"i"}),
        ("whats my age again", {"i"}),
        ("What is my dad's age?", {"dad"}),
        ("whats mias age", {"mia"}),
        ("Mia's age, please?", {"mia"}),
        ("What age is my dad", {"dad"}),
        ("What is the age of my house?", {"house"}),
        ("What age has our Philippa reached?", {"philippa"}),
        ("How old would the cat be by now?", {"cat"}),
        ("And my sister Rosalind, what is her age at present?", {"sister", "rosalind"}),
        ("How old was I then?", None),
        ("How old will Shona be in June?", None),
        ("How old do I have to be to vote?", None),
        ("At what age do children walk?", None),
        ("How old is she?", None),
    ],
)
def test_a_question_for_a_present_age_names_whose(question, whom):
    assert whose_age(question) == whom


@pytest.mark.parametrize(
    ("told", "whom", "age"),
    [
        ("My aunt Rosa was born on 3 May 1961.", "aunt", "65"),
        ("My son Max was born in 2019.", "max", "6 or 7"),
        ("Dad's birthday is 2 June 1955", "dad", "71"),
        ("mia turned 7 last week", "mia", "7"),
        ("Happy birthday to Mia, who turns seven tomorrow", "mia", "7"),
        ("I turn 40 on 3 June", "i", "40"),
        ("my 60th is on 3 May", "i", "60"),
        ("I'm thirty-four", "i", "34 or 35"),
        ("born in 1994 and already bad knees", "i", "31 or 32"),
        ("My daughter, Mia, is 7 and Tom is 4.", "mia", "7 or 8"),
        ("My daughter, Mia, is 7 and Tom is 4.", "tom", "4 or 5"),
        ("Mia (6) and Tom (9) love it", "tom", "9 or 10"),
        ("our 12-year-old son Leo broke his arm", "son", "12 or 13"),
        ("I have a daughter. She is 7.", "daughter", "7 or 8"),
        ("We got a puppy, ten weeks old", "puppy", "12 months"),
        ("The house was built in 1920.", "house", "105 or 106"),
        ("Mia's brother is 9", "mia brother", "9 or 10"),
        ("theo hes six on tuesday", "theo", "6"),
        ("I was 38 last Saturday", "i", "38"),
        ("Au pair starts Monday. Freja, 20, from Aarhus.", "freja", "20 or 21"),
        ("My father-in-law, Alasdair (b. 1948), is here.", "alasdair", "77 or 78"),
        ("I was born in Leeds in 1990", "i", "35 or 36"),
        ("My age is 34", "i", "34 or 35"),
        ("Tom just turned 30", "tom", "30 or 31"),
        ("tom i live with is 28 and tidy", "tom", "28 or 29"),
        ("Ella from work turned 30 on 3 January 2026", "ella", "30"),
        ("Mia was at the zoo with us, she is 7", "mia", "7 or 8"),
        ("The car is 12 years old and Mia is 7.", "car", "12 or 13"),
    ],
)
def test_an_age_is_counted_from_when_it_was_told(told, whom, age):
    (birth,) = births(told, "2026-01-05T10:00:00", {*whom.split()})
    assert age_text(birth, date(2026, 11, 20)) == age


@pytest.mark.parametrize(
    ("told", "whom"),
    [
        ("Mia's brother is 9", "mia"),
        ("Mia loves Tom. She is 7.", "tom"),
        ("My aunt Rosa was born in 1961.", "i"),
        ("Mia is 30 minutes late", "mia"),
        ("Mia is 20 % faster", "mia"),
        ("We had quite the gathering for Mia's seventy-fifth on Thursday", "mia"),
        ("mias eldest leo hes six on tuesday", "mia"),
        ("mia from work turned 30 today", "i"),
        ("Mia and I rattle about in a house which was built in 1908.", "mia"),
        ("We live at number 30 and Mia is at school.", "mia"),
        ("I'm thirty-four", "ana"),
        ("Mia is 999", "mia"),
        ("I am 999", "i"),
        ("When I'm 64, I will stop", "i"),
        ("When Mia turned 7 we moved", "mia"),
        ("Tom is 40?", "tom"),
        ("Tom came 3rd on Sunday", "tom"),
        ("Tom was 12 years old.", "tom"),
        ("Tom's daughter is 12", "daughter"),
        ("Tom is 3 on my list", "tom"),
        ("Mia and Tom are 7 and 9", "tom"),
    ],
)
def test_what_tells_of_another_or_of_no_age_gives_none(told, whom):
    assert births(told, "2026-01-05T10:00:00", {*whom.split()}) == []


@pytest.mark.parametrize(
    ("told", "whom"),
    [
        ("My car is 12 years old", "i"),
        ("The car is 12 years old I think", "i"),
        ("I have a dog that is 12 years old", "i"),
        ("My 12-year-old and I went out", "i"),
        ("My 12-year-old car broke down", "i"),
        ("My shoe size is 42", "i"),
        ("My blood pressure is 120", "i"),
        ("My locker is 42", "i"),
        ("Tom's house was built in 1950", "tom"),
        ("Tom built a shed in 2020", "tom"),
        ("Tom's room is 12", "tom"),
        ("Tom's temperature is 39", "tom"),
        ("Tom's 12-year-old car broke down", "tom"),
        ("Tom has a dog, he is 12", "tom"),
        ("Tom says she is 12", "tom"),
        ("My shoe size is 42 and Mia's is 37", "mia"),
    ],
)
def test_the_age_of_a_thing_or_a_number_is_nobodys_age(told, whom):
    assert births(told, "2026-01-05T10:00:00", {whom}) == []


@pytest.mark.parametrize(
    "told",
    [
        "We bought Tom's birthday present in 2023.",
        "Tom's birthday in 2023 was fun",
        "Tom's birthday party was on 3 May 2025",
        "For Tom's 40th birthday we went to Rome",
        "Tom was born in Leeds and moved here in 2010",
    ],
)
def test_the_day_of_something_else_is_no_day_of_birth(told):
    assert births(told, "2026-06-05T10:00:00", {"tom"}) == []


@pytest.mark.parametrize(
    "told",
    [
        "My grandpa was born in 1930 and died in 2001.",
        "My late grandpa was born in 1930.",
        "Grandpa would've been 90 this year, he was born in 1930",
        "Grandpa was born in 1930. He passed away last week.",
    ],
)
def test_the_dead_have_no_present_age(told):
    with quick() as memory:
        for text in ("My grandpa was born in 1930.", told):
            memory.add(text, user_id="me", timestamp="2026-01-05T10:00:00+00:00", infer=False)
        question = "How old is my grandpa?"
        hits = memory.search(question, user_id="me")
        assert aged(memory, hits, question, NOW) is None


@given(st.text(), st.text(), st.dates())
def test_no_text_breaks_the_reading_of_ages(text, whom, said):
    for birth in births(f"{text} {whom} is 7, born {text}", f"{said}T10:00:00", {*whom.split()}):
        assert birth.first <= birth.last
        age_text(birth, date(2026, 11, 20))


AGES = [
    ("2026-02-03", "My daughter Mia turned 7 on Sunday."),
    ("2026-02-10", "Our cat Pepper is 4 now."),
    ("2025-03-30", "Jo's niece Ella is 5."),
    ("2025-08-09", "Ella from work turned 30 today."),
    ("2027-02-28", "My grandma was born in 1940."),
]


@pytest.mark.parametrize(
    ("question", "asked_at", "answer"),
    [
        ("How old is Mia?", "2027-03-01", "8"),
        ("How old is my cat?", "2027-03-01", "5 or 6"),
        ("How old is my cat?", "2026-03-01", None),  # the model quotes what was told lately
        ("How old is Ella?", "2027-03-01", None),  # one of two
        ("How old is Jonas?", "2027-03-01", None),
        ("How old is my grandma?", "2027-03-01", "86 or 87"),
    ],
)
def test_a_chat_tells_how_old_somebody_is_by_now(question, asked_at, answer):
    with quick() as memory:
        for day, text in AGES:
            memory.add(text, user_id="me", timestamp=f"{day}T10:00:00+00:00", infer=False)
        hits = memory.search(question, user_id="me")
        found = aged(memory, hits, question, f"{asked_at}T10:00:00+00:00")
    assert (found and found[0]) == answer


def test_an_age_is_found_among_many_remarks_that_name_who_has_it(shipped, embedder):
    with Memory(":memory:", engine=shipped, embedder=embedder) as memory:
        said = [("2019-06-09T09:00:00+00:00", "Lottie is three today!")]
        said += [
            (f"2020-01-{n:02}T10:00:00+00:00", f"Lottie drew {n} ducks.") for n in range(1, 29)
        ]
        for when, text in said:
            memory.add(text, user_id="default", infer=False, timestamp=when)
        reply = Chat(memory).send("How old is Lottie?", timestamp="2020-02-01T10:00:00+00:00")
        assert "".join(reply).partition("\n")[0] == "3"
