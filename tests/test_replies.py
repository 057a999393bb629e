"""An assistant's reply in parts, and the question for an item by its place."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgemem.language import LAST, place_asked
from edgemem.pipeline.passages import joined, parts

TRIP = """Three days, then:

1. **Kotor**: walls before nine
2. **Perast**: the boat costs €5
   - bring coins
   - no cards

## What to pack

| item | weight |
|---|---|
| tent | 2 kg |
| stove | 300 g |

Marina Office
Quay 7
Phone: 555 12

The water is cold in May. Swim at noon!

3. **Budva**: only to sleep
"""


def test_a_reply_is_its_sentences_items_and_rows_each_under_its_head():
    assert [part.whole for part in parts(TRIP)] == [
        "Three days, then: Kotor: walls before nine",
        "Three days, then: Perast: the boat costs €5",
        "Perast: the boat costs €5: bring coins",
        "Perast: the boat costs €5: no cards",
        "What to pack: item: tent; weight: 2 kg",
        "What to pack: item: stove; weight: 300 g",
        "What to pack: Marina Office, Quay 7, Phone: 555 12",
        "What to pack: The water is cold in May.",
        "What to pack: Swim at noon!",
        "Three days, then: Budva: only to sleep",
    ]


def test_a_list_goes_on_after_a_paragraph_with_its_next_number():
    days = [part for part in parts(TRIP) if part.list_number == 1]
    assert [(part.place, part.text[:5]) for part in days] == [
        (1, "Kotor"),
        (2, "Peras"),
        (3, "Budva"),
    ]


def test_a_head_with_nothing_under_it_is_told_all_the_same():
    assert [part.whole for part in parts("My pick:")] == ["My pick"]
    assert [part.whole for part in parts("The name I like:\n\n**Luna**")] == [
        "The name I like",
        "Luna",
    ]


def test_marks_and_escapes_are_not_shown_and_lines_of_code_and_html_are():
    text = "See *this* [page](https://example.org): \\_a\\_\n\n```\nx = 1\n```\n\n<p>\nkept\n</p>"
    assert [part.text for part in parts(text)] == [
        "See this page: _a_",
        "x = 1",
        "<p>",
        "kept",
        "</p>",
    ]


def test_parts_are_joined_with_each_head_once():
    tent, stove = parts(TRIP)[4:6]
    assert joined([tent, stove]) == (
        "What to pack: item: tent; weight: 2 kg. item: stove; weight: 300 g."
    )


@given(st.text(alphabet=st.sampled_from("ab1.-*#|:\n `>[]()<\\ é"), max_size=200))
def test_any_text_has_parts_without_an_error(text):
    assert all(part.text for part in parts(text))
    joined(parts(text))


@pytest.mark.parametrize(
    ("question", "place"),
    [
        ("What was the 7th job on the list you gave me?", 7),
        ("You listed six plants; what was the fifth?", 5),
        ("number 4 on the list of problem sources", 4),
        ("What was step seven of the plan", 7),
        ("which church came third in the list", 3),
        ("the last of the nine tips you gave me", LAST),
        ("How many of the first guests did you list?", None),
        ("What did you say about the 3rd of May?", None),
        ("When is my second appointment?", None),
        ("What did I do last week?", None),
        ("Is the meeting on May 3?", None),
        ("who sleeps in room 4", None),
        ("What is item 0?", None),
        ("Do you remember the show with only the last season?", None),
    ],
)
def test_a_question_may_ask_for_an_item_by_its_place(question, place):
    assert place_asked(question) == place
