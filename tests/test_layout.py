"""How a text may be cut: what is a turn, a sentence, a head, a unit."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgemem.compression.compress import lay_out, masks
from edgemem.language import sentences


def units(layout):
    return [layout.text[a:b] for a, b in zip(layout.starts, layout.ends, strict=True)]


@pytest.mark.parametrize(
    ("text", "whole"),
    [
        ("We met on 8 May 2023 at noon.", "8 May 2023"),
        ("We met on 8th of May, 2023.", "8th of May, 2023."),
        ("It was May 8, 2023 then.", "May 8, 2023"),
        ("In June 2022 we moved.", "June 2022"),
        ("Logged 2024-05-01 10:00 here.", "2024-05-01 10:00"),
        ("I ran 5 km today.", "5 km"),
        ("It took 2 to 3 hours, or 90 minutes.", "90 minutes."),
        ("It fell by 4.5 percent.", "4.5 percent."),
        ("At 9 a.m. it rained.", "9 a.m."),
        ("Run `git commit -m x` now.", "`git commit -m x`"),
        ("So:\n```\na = 1\n\nb = 2.  c\n```\ndone", "```\na = 1\n\nb = 2.  c\n```"),
        ("See https://a.b/c?d=e. And more", "https://a.b/c?d=e."),
        ('It said {"a": [1, 2],\n "b": "x. Y"} twice.', '{"a": [1, 2],\n "b": "x. Y"}'),
        ("The list [1, 2, 3] is short.", "[1, 2, 3]"),
    ],
)
def test_what_belongs_together_is_one_unit(text, whole):
    assert whole in units(lay_out(text))


@pytest.mark.parametrize(
    "text", ["I may go", "on May street", "{not json at all", "[shares a photo: x]"]
)
def test_what_does_not_belong_together_is_words(text):
    assert units(lay_out(text)) == text.split()


def test_a_given_span_is_one_unit():
    text = "We saw New York City then."
    assert units(lay_out(text, whole=[(7, 20)])) == ["We", "saw", "New York City", "then."]


@pytest.mark.parametrize(
    ("line", "head"),
    [
        ("Ana: I drink tea.", ["Ana:"]),
        ("Ana Lima: I drink tea.", ["Ana", "Lima:"]),
        ("user: I drink tea.", ["user:"]),
        ("[2024-05-01 10:00] Ana: I drink tea.", ["[2024-05-01 10:00]", "Ana:"]),
        ("[8 May 2023] I drink tea.", ["[8 May 2023]"]),
        ("01/05/2024, 9:12 - Ana: I drink tea.", ["01/05/2024,", "9:12", "-", "Ana:"]),
        ('On 8 May 2023, Ana said: "I drink tea."', ["On", "8 May 2023,", "Ana", "said:"]),
        ("On 8 May 2023, it was noted: Ana drinks.", ["On", "8 May 2023,", "it", "was", "noted:"]),
        ("I have three wishes: tea, milk and rain.", []),
        ("I drink tea.", []),
        ("At 10:30 I drink tea.", []),
    ],
)
def test_a_turns_date_and_speaker_are_its_head(line, head):
    layout = lay_out(f"Before.\n{line}")
    shown = np.array(units(layout), object)[layout.head].tolist()
    assert shown == head
    assert layout.turn.tolist() == [0, *[1] * (len(layout.turn) - 1)]


def test_turns_are_lines_and_sentences_are_theirs():
    layout = lay_out("Ana: Tea is hot. Dr. Ito came!\nIs it late? Yes\n\nBye")
    said = [
        [u for u, s in zip(units(layout), layout.sentence, strict=True) if s == n]
        for n in range(len(layout.turn))
    ]
    assert said == [
        ["Ana:", "Tea", "is", "hot."],
        ["Dr.", "Ito", "came!"],
        ["Is", "it", "late?"],
        ["Yes"],
        ["Bye"],
    ]
    assert layout.turn.tolist() == [0, 0, 1, 1, 2]


def test_a_negation_is_fixed_with_the_words_beside_it():
    layout = lay_out("I really did not like the soup but she never eats and I don't cook.")
    shown = np.array(units(layout), object)[layout.fixed].tolist()
    assert shown == ["did", "not", "like", "she", "never", "eats", "I", "don't", "cook."]


def test_masks_are_those_of_the_paper():
    text = "I left because Ana: 42 cats.\nso?"
    words = ["I", " left", " because", " Ana", ":", " 42", " cats", ".", "\n", "so", "?"]
    ends = np.cumsum([len(w) for w in words])
    found = masks(text, np.stack([ends - [len(w) for w in words], ends], axis=1))
    wanted = [1, 1, 1.2, 1.3, 1.3, 1.4, 1, 1.4, 1.5, 1.2, 1.4]
    np.testing.assert_allclose(found, wanted, rtol=1e-6)
    assert len(masks("", np.empty((0, 2), np.int64))) == 0


def test_a_letter_that_grows_in_lower_case_moves_no_mask():
    found = masks("İ but", np.array([[0, 1], [1, 5]]))
    np.testing.assert_allclose(found, [1.0, 1.2], rtol=1e-6)


PIECES = st.sampled_from(
    ["Ana: ", "tea ", "not ", "5 km ", "8 May 2023", ". ", "? ", "\n", " ", "`a b`", '{"a": 1}',
     "{", "[", "https://a.b/c ", "```", "don't ", "日本。", "\u2003", "[x] ", "Dr. "]
)  # fmt: skip
PLAIN = st.lists(st.sampled_from(["tea ", "Oslo", ". ", "? ", "\n", "Dr. ", "no "]))
TEXTS = st.one_of(st.text(max_size=60), st.lists(PIECES, max_size=30).map("".join))


@settings(max_examples=500)
@given(text=TEXTS)
def test_units_are_all_of_a_text_but_its_spaces(text):
    layout = lay_out(text)
    assert "".join("".join(u.split()) for u in units(layout)) == "".join(text.split())
    assert (layout.starts[1:] >= layout.ends[:-1]).all()
    assert set(np.diff(layout.sentence)) <= {0, 1} and set(np.diff(layout.turn)) <= {0, 1}
    assert len(layout.turn) == (layout.sentence[-1] + 1 if len(layout.starts) else 0)
    assert all(u == u.strip() and u for u in units(layout))


@settings(max_examples=300)
@given(text=PLAIN.map("".join))
def test_plain_text_has_the_sentences_of_the_language(text):
    layout = lay_out(text)
    found = [
        text[layout.starts[of][0] : layout.ends[of][-1]]
        for s in range(len(layout.turn))
        if len(of := np.flatnonzero(layout.sentence == s))
    ]
    assert found == sentences(text)


def test_unbalanced_brackets_take_no_time():
    """Each one asked the JSON parser to read to the end: a quadratic wait, or a crash."""
    assert len(lay_out("[" * 200_000).starts) == 1
    assert len(lay_out('{"a": ' * 50_000).starts) == 50_000
