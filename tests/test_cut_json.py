"""A cut JSON text is closed where it is whole, and never says what the whole would not."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgemem.runtime.generation import close_json

text = st.text(max_size=8) | st.text('"\\[]{},: \n\u2028é', max_size=8)
scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | text
values = st.recursive(
    scalars, lambda v: st.lists(v, max_size=4) | st.dictionaries(text, v, max_size=4), max_leaves=12
)
layouts = st.sampled_from([None, 1]), st.booleans()


def begins(part, whole):
    """Whether `part` is `whole` up to some place: all that it has is there, in order, and whole."""
    if isinstance(whole, dict) and isinstance(part, dict):
        part, whole = list(part.items()), list(whole.items())
    elif isinstance(whole, tuple) and isinstance(part, tuple):
        return part[0] == whole[0] and begins(part[1], whole[1])
    elif not (isinstance(whole, list) and isinstance(part, list)):
        return type(part) is type(whole) and part == whole
    if not part:
        return True
    earlier = part[:-1] == whole[: len(part) - 1] and len(part) <= len(whole)
    return earlier and begins(part[-1], whole[len(part) - 1])


@given(values, *layouts, st.data())
def test_a_cut_json_text_is_closed_into_a_beginning_of_its_value(value, indent, ascii, data):
    whole = json.dumps(value, indent=indent, ensure_ascii=ascii)
    cut = whole[: data.draw(st.integers(0, len(whole)))]
    closed = close_json(cut)
    if closed is None:
        assert not cut or cut[0] not in "[{"
    elif closed == cut:
        assert json.loads(closed) == value or not isinstance(value, list | dict)
    else:
        assert begins(json.loads(closed), value)


@given(st.lists(text, max_size=6), *layouts, st.data())
def test_every_string_that_is_whole_is_kept(facts, indent, ascii, data):
    whole = json.dumps({"facts": facts}, indent=indent, ensure_ascii=ascii)
    cut = data.draw(st.integers(whole.index("["), len(whole))) + 1
    ends, at = [], whole.index("[")
    for fact in facts:
        fact_text = json.dumps(fact, ensure_ascii=ascii)
        at = whole.index(fact_text, at) + len(fact_text)
        ends.append(at)
    closed = close_json(whole[:cut])
    assert json.loads(closed) == {"facts": facts[: sum(end <= cut for end in ends)]}


@given(st.text() | st.text('"\\\x00\t,] a1{}:[ntrue'))
def test_any_text_gives_json_that_it_begins_with_or_nothing(garbage):
    closed = close_json(garbage)
    if closed is not None:
        json.loads(closed)
        assert garbage.startswith(closed.rstrip("]}"))


@pytest.mark.parametrize(
    ("cut", "closed"),
    [
        ('{"facts": ["a", "b', '{"facts": ["a"]}'),
        ('{"facts": ["a", "b"', '{"facts": ["a", "b"]}'),
        ('{"facts": ["a [b\\', '{"facts": []}'),
        ('{"a": 1, "b"', '{"a": 1}'),
        ('{"a": 1, "b": ', '{"a": 1}'),
        ('{"a": 1', "{}"),
        ('{"a": 12 ', '{"a": 12}'),
        ("[true, fal", "[true]"),
        ("[nullable", "[]"),
        ('{"fa', "{}"),
        ('[{"id": "1", "event": "AD', '[{"id": "1"}]'),
        ('{"a": [1, 2]} and then', '{"a": [1, 2]}'),
        ('["a\tb", "c"', "[]"),  # a bare tab is no JSON
        ("12", "12"),
        ('"ab', None),
        ("no", None),
        ("", None),
        ("[" * 100_000, "[" * 100 + "]" * 100),
    ],
)
def test_what_is_left_of_a_cut_text(cut, closed):
    assert close_json(cut) == closed
