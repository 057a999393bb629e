"""A plan that was moved by a length of time is shown with the day that this makes."""

from datetime import date

import pytest
from memorykit import quick

from corpus import annotated
from corpus.readers import read_written
from edgemem.chat import Chat
from edgemem.language import mentions, moved
from edgemem.pipeline.days import with_days
from edgemem.pipeline.plan import evidence_for_expert
from edgemem.results import Evidence, Message

WHEN = "When is it?"
SAID = "2026-05-04T10:00:00+00:00"
TALK = """\
# User, Assistant
@ 2026-02-01 10:00
User: My exam is on 9 May.
Assistant: Good luck.
@ 2026-03-02 10:00
User: My exam is put back a week.
? When is my exam? | 16 May 2026 | exam is on | exam is put back
Assistant: More time, then.
~ 2026-03-09 09:00
> (recall) When is my exam? | exam is on | exam is put back
< On 16 May. | 16 May 2026
"""


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
        ("He came on 8 April, one week late.", []),
        ("The scan of 8 April is moved two days later.", [(0, 2)]),
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


def told(*texts):
    days = ("2026-02-01", "2026-03-02", "2026-04-02")
    return [
        Evidence(text, f"{day}T10:00:00+00:00", "User")
        for text, day in zip(texts, days, strict=False)
    ]


def test_a_moved_plan_is_shown_with_its_new_day(memory):
    plans = "The dentist is on 9 March. Jo's wedding is on 9 May in Leeds."
    later = "The wedding is put back a fortnight, no hall."
    shown = with_days(memory.embedder, WHEN, told(plans, later))
    assert [e.text for e in shown] == [
        plans,
        "The wedding is put back a fortnight (on 23 May 2026), no hall.",
    ]
    assert with_days(memory.embedder, "Who is at the wedding?", told(plans, later)) == tuple(
        told(plans, later)
    )
    assert with_days(memory.embedder, WHEN, told(plans, later)[::-1]) == shown[::-1]


def test_a_plan_is_moved_from_a_day_in_numbers(memory):
    plans = "The dentist is on 9.3. Jo's wedding is on 9.5. at noon in Leeds."
    shown = with_days(memory.embedder, WHEN, told(plans, "The wedding is put back a fortnight."))
    assert [e.text for e in shown] == [
        plans,
        "The wedding is put back a fortnight (on 23 May 2026).",
    ]


@pytest.mark.parametrize(
    "texts",
    [
        pytest.param(["The dentist is on 9 March."], id="nothing is moved"),
        pytest.param(["The dentist is put back a week."], id="nothing to count from"),
        pytest.param(["It was on 31 January; the dentist is put back a month."], id="no such day"),
    ],
)
def test_what_has_no_new_day_stays_as_it_was_said(memory, texts):
    assert [e.text for e in with_days(memory.embedder, WHEN, told(*texts))] == texts


def test_of_a_calendar_no_plan_is_moved(memory):
    """A pasted calendar of a thousand days would be embedded before each answer."""
    texts = ["The dentist is on 9 March. " * 70, "The dentist is put back a week."]
    assert [e.text for e in with_days(memory.embedder, WHEN, told(*texts))] == texts


def test_a_chat_counts_from_what_it_was_told_before(memory):
    """Also messages that are not stored: of this conversation, or of an app that stores them."""
    (plan, later) = told("My exam is on 9 May.", "My exam is put back a week.")
    memory.add([{"role": "user", "content": plan.text, "timestamp": plan.when}], infer=False)
    hits = memory.search("When is my exam?")
    chat = Chat(memory, turns=[Message("user", later.text, later.when or "")])
    assert [e.text for e in evidence_for_expert(chat._talk, "When is my exam?", hits)] == [
        "My exam is put back a week (on 16 May 2026).",
        plan.text,
    ]


def test_an_expert_learns_from_moved_plans_as_a_chat_shows_them(memory, tmp_path):
    file = tmp_path / "few.txt"
    file.write_text(TALK)
    (talk,) = read_written(file)
    examples = [*annotated.examples(memory, talk, stages=("generation",))]
    examples += annotated.answer_examples(memory, talk)
    assert len(examples) == 2
    for example in examples:
        assert str(example.prompt).count("a week (on 16 May 2026)") == 1
        assert example.prompt.count("put back") == 1
        assert example.target.strip() == "16 May 2026"
