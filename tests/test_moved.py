"""A plan that was moved by a length of time is shown with the day that this makes."""

from datetime import date

import pytest
from memorykit import quick

from edgemem.language import mentions, moved
from edgemem.pipeline.moved import with_days
from edgemem.pipeline.recall import recall
from edgemem.results import Evidence

SAID = "2026-05-04T10:00:00+00:00"


@pytest.mark.parametrize(
    ("text", "by"),
    [
        ("My exam is put back exactly a fortnight.", [(0, 14)]),
        ("exam now two weeks later than planned", [(0, 14)]),
        ("They moved it two weeks later.", [(0, 14)]),
        ("He came three days early.", [(0, -3)]),
        ("They brought the scan forward by a month.", [(-1, 0)]),
        ("The party is postponed for ten days.", [(0, 10)]),
        ("It poured, so we played the day after.", [(0, 1)]),
        ("It was one week before the date they gave me.", [(0, -7)]),
        ("I run two weeks after Christmas every year.", []),
        ("We stayed two weeks and then went home.", []),
        ("I put sugar in for a week.", []),
        ("It is put back a fortnİght.", []),
    ],
)
def test_a_length_by_which_a_plan_is_moved_is_found(text, by):
    assert [mention.by for mention in mentions(text, SAID) if mention.day is None] == by


@pytest.mark.parametrize(
    ("text", "days"),
    [
        ("on 20 october and the 3rd of June 2027", [date(2026, 10, 20), date(2027, 6, 3)]),
        ("May 9, then in the week of 3 May 2026", [date(2026, 5, 9)]),
        ("we met on 2 April; it is on 2 February", [date(2026, 4, 2), date(2027, 2, 2)]),
        ("31 June", []),
    ],
)
def test_the_days_that_a_text_names_are_found(text, days):
    assert [mention.day for mention in mentions(text, SAID)] == days


def test_a_mention_is_told_by_the_words_up_to_the_next_ones():
    exam, scan = mentions("The exam is on 3 June, the scan on 9 June. Both at noon.", SAID)
    assert "exam" in exam.beside and "exam" not in scan.beside
    assert "scan" in scan.beside and "noon" not in scan.beside


def test_a_length_is_counted_in_days_or_months():
    assert moved(date(2026, 5, 4), (0, -14)) == date(2026, 4, 20)
    assert moved(date(2026, 12, 4), (2, 0)) == date(2027, 2, 4)
    with pytest.raises(ValueError, match="day"):
        moved(date(2026, 1, 31), (1, 0))


@pytest.fixture
def memory():
    with quick() as opened:
        yield opened


def told(*texts: str) -> list[Evidence]:
    days = ("2026-02-01", "2026-03-02", "2026-04-02")
    return [
        Evidence(text, f"{day}T10:00:00+00:00", "User")
        for text, day in zip(texts, days, strict=False)
    ]


def test_a_moved_plan_is_shown_with_its_new_day(memory):
    plans = "The dentist is on 9 March. Jo's wedding is on 9 May in Leeds."
    later = "The wedding is put back a fortnight, no hall."
    shown = with_days(memory.embedder, told(plans, later))
    assert [e.text for e in shown] == [
        plans,
        "The wedding is put back a fortnight (on 23 May 2026), no hall.",
    ]
    assert with_days(memory.embedder, told(plans, later)[::-1]) == shown[::-1]


@pytest.mark.parametrize(
    "texts",
    [
        pytest.param(["The dentist is on 9 March."], id="nothing is moved"),
        pytest.param(["The dentist is put back a week."], id="nothing to count from"),
        pytest.param(["The dentist is put back a month, it was 31 January."], id="no such day"),
    ],
)
def test_what_has_no_new_day_stays_as_it_was_said(memory, texts):
    assert [e.text for e in with_days(memory.embedder, told(*texts))] == texts


def test_of_a_calendar_no_plan_is_moved(memory):
    """A pasted calendar of a thousand days would be embedded before each answer."""
    texts = ["The dentist is on 9 March. " * 70, "The dentist is put back a week."]
    assert [e.text for e in with_days(memory.embedder, told(*texts))] == texts


def test_only_a_question_for_a_day_sees_it(memory):
    for evidence in told("My exam is on 9 May.", "My exam is put back a week."):
        said = {"role": "user", "content": evidence.text, "timestamp": evidence.when}
        memory.add([said], user_id="ana", infer=False)

    def shown(question: str) -> str:
        hits = memory.search(question, user_id="ana")
        return " ".join(e.text for e in recall(memory, question, hits, most=6, whole=True))

    assert "a week (on 16 May 2026)" in shown("When is my exam?")
    assert "16 May" not in shown("What about my exam?")
