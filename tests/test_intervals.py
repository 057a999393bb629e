"""How long ago, how long between, which first: how such a question is taken, and its answer."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date

import pytest
from fake_engine import FakeEngine
from hypothesis import given
from hypothesis import strategies as st
from memorykit import quick

from bench.intervals import is_right
from edgemem import Chat, Memory
from edgemem.language import Comparison, Event, comparison, days_told, worded
from edgemem.pipeline.intervals import compared
from edgemem.results import Evidence
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
def test_a_question_that_compares_days_is_taken_apart(
    question: str, asks: str, unit: str, events: list[str]
) -> None:
    found = comparison(question)
    assert found is not None
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
def test_a_question_that_compares_no_days_is_left_alone(question: str) -> None:
    assert comparison(question) is None


@given(st.text(max_size=400))
def test_any_text_may_be_asked_or_told(text: str) -> None:
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
def test_the_answer_is_computed_from_the_days(
    asks: str, unit: str, days: list[str], answer: str | None
) -> None:
    asked = Comparison(asks, unit, tuple(Event(name) for name in "ab"[: len(days)]))  # type: ignore[arg-type]
    assert worded(asked, [*map(date.fromisoformat, days)], date(2026, 11, 18)) == answer


@pytest.fixture
def memory() -> Iterator[Memory]:
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
            ("2026-11-10", "The dinner of the club is cancelled."),
        ):
            opened.add(text, user_id="me", infer=False, timestamp=f"{when}T10:00:00Z")
        yield opened


def ask(memory: Memory, question: str) -> tuple[str, tuple[Evidence, ...]] | None:
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
    ],
)  # fmt: skip
def test_the_nearest_sentence_tells_the_day(memory: Memory, question: str, answer: str) -> None:
    found = ask(memory, question)
    assert found is not None
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
def test_no_day_is_taken_where_none_is_told(memory: Memory, question: str) -> None:
    assert ask(memory, question) is None


def test_a_chat_gives_the_answer_with_what_was_told(memory: Memory) -> None:
    question = "How many days until the half marathon?"
    chat = Chat(memory, FakeEngine(wants={question: "recall"}), user_id="me")
    reply = chat.send(question, timestamp=NOW, remember=False)
    assert "".join(reply) == (
        "151 days\n\nUntil 18 April 2027.\n\nThis is what you told me:\n"
        "- 20 October 2026: Entered a half marathon. 18 April 2027."
    )
    assert [hit.memory for hit in reply.context] == ["Entered a half marathon. 18 April 2027."]


def test_the_bench_scores_the_answer_without_what_stands_below() -> None:
    assert is_right("7 days\n\nSince 3 May 2026.", ["a week", "7 days"])
    assert not is_right("I'm not sure.\n\n- 7 days", ["7 days"])
    assert is_right(NOTHING_FOUND, ["-"])
