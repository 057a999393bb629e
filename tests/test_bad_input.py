"""Whatever is handed in: an error of ours that says what to do, nothing lost, nothing half done."""

import math
from datetime import datetime
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from memorykit import quick, texts

from edgemem import Memory
from edgemem.errors import EdgememError, InputError, StoreError
from edgemem.inputs import MAX_METADATA_BYTES, MAX_TEXT_CHARS


@pytest.fixture
def memory():
    with quick() as memory:
        memory.add("I live in Oslo", user_id="ana", infer=False)
        yield memory
        # Nothing was lost, and nothing was stored of what was refused.
        assert texts(memory.get_all()) == ["I live in Oslo"]
        assert memory.store.counts()["turns"] == 1
        assert memory.doctor()["problems"] == []


# -- text ------------------------------------------------------------------------------------

BAD_TEXTS = [
    ("", "is empty; give at least one character"),
    (" \t\n\u3000", "is empty"),
    ("a\0b", "NUL character at 1; remove it"),
    ("ab\ud83d", "half of a surrogate pair at character 2"),
    ("\udc00", "as text has that is not UTF-8; convert it"),
    ("x" * (MAX_TEXT_CHARS + 1), "1,048,577 characters; at most 1,048,576 are allowed"),
]


@pytest.mark.parametrize(("text", "message"), BAD_TEXTS, ids=lambda v: repr(v)[:12])
def test_text_that_cannot_be_stored_is_refused_everywhere(memory, text, message):
    id = memory.get_all()[0].id
    for step in (
        lambda: memory.add(text),
        lambda: memory.add({"content": text}, infer=False),
        lambda: memory.add(["fine", {"role": "user", "content": text}], infer=False),
        lambda: memory.update(id, text),
        lambda: memory.search(text),
    ):
        with pytest.raises(InputError) as caught:
            step()
        assert message in str(caught.value) and len(str(caught.value)) < 300


@pytest.mark.parametrize("name", ["user_id", "agent_id", "run_id"])
@pytest.mark.parametrize("value", ["", "a\0", "\ud800", "x" * 257])
def test_ids_of_a_scope_are_checked_too(memory, name, value):
    for method in (memory.add, memory.search):
        with pytest.raises(InputError, match=name):
            method("hello", **{name: value})
    for method in (memory.get_all, memory.delete_all, memory.erase_all):
        with pytest.raises(InputError, match=name):
            method(**{name: value})


def test_a_megabyte_is_stored_whole_and_found_by_any_part(tmp_path):
    text = " ".join(f"word{n}" for n in range(200_000))[:MAX_TEXT_CHARS]
    assert len(text) == MAX_TEXT_CHARS
    with quick(tmp_path / "a.db") as memory:
        id = memory.add(text, infer=False)[0].id
        memory.add("short", infer=False)
        item = memory.get(id)
        assert item is not None and item.memory == text
        for query in ("word7", "word77777", text.split()[-2]):
            assert memory.search(query, top_k=1)[0].id == id


@pytest.mark.models
def test_ten_kilobytes_through_the_real_embedder(embedder):
    filler = "The weather was dull and nothing happened that day. "
    text = filler * 180 + "My grandmother baked saffron buns. " + filler * 20
    assert len(text) > 10_000
    with Memory(":memory:", embedder=embedder) as memory:
        memory.add([text, "I like football.", "The train was late."], infer=False)
        assert memory.store.counts()["vectors"] > 10  # split, not cut
        assert memory.search("Which pastry did granny make?")[0].memory == text


SCRIPTS = {
    "Arabic": ("أعيش في القاهرة وأعمل طبيبة", "أعيش في القاهرة"),
    "Chinese": ("我在上海工作,是一名医生", "我在上海工作"),
    "Japanese": ("私は京都に住んでいます。猫が二匹います。", "京都に住んでいます"),
    "emoji": ("🎂🥳 birthday 👩‍👩‍👧‍👦", "🎂🥳 birthday"),
    "Devanagari": ("मैं दिल्ली में रहता हूँ", "दिल्ली में"),
    "Greek": ("Μένω στην Αθήνα", "Αθήνα"),
    "combining": ("Cafe\u0301 Zoe\u0308", "Café"),
}


@pytest.mark.models
def test_other_scripts_are_stored_exactly_and_found_again(embedder):
    with Memory(":memory:", embedder=embedder) as memory:
        for name, (text, _) in SCRIPTS.items():
            memory.add(text, metadata={name: text}, user_id=text[:9], infer=False)
        for name, (text, part) in SCRIPTS.items():
            for found in (memory.search(text, top_k=1), memory.search(part, top_k=1)):
                assert texts(found) == [text], name
            assert memory.search(text, user_id=text[:9])[0].metadata == {name: text}
            assert texts(memory.search(text, filters={name: {"contains": part[:4]}})) == (
                [text] if part[:4] in text else []
            )


@pytest.mark.models
def test_a_query_of_anything_is_answered(embedder):
    with Memory(":memory:", embedder=embedder) as memory:
        memory.add(["I live in Oslo", "What is it that you do?"], infer=False)
        for query in (
            "what is it that you do", "the", "?!... --- ***", '"', "'", "AND OR NOT NEAR",
            "a* OR b^2", "col:word {x} (y", "\u200b", "🦜", "x" * 5000,
        ):  # fmt: skip
            found = memory.search(query, explain=True)
            assert len(found) == 2 and all(0 <= hit.score <= 1 for hit in found), query


# -- metadata, times, numbers, shapes --------------------------------------------------------


def nested(levels):
    value: dict[str, Any] = {}
    for _ in range(levels):
        value = {"a": value}
    return value


circular: dict[str, Any] = {}
circular["self"] = circular

BAD_METADATA = [
    ({"a": math.nan}, "finite numbers"),
    ({"a": [math.inf]}, "finite numbers"),
    ({"a": "x" * MAX_METADATA_BYTES}, "at most 65,536 are allowed"),
    ({"a": "x\0y"}, "NUL character in a key or a string"),
    ({"a": [{"\0": 1}]}, "NUL character in a key or a string"),
    ({"a": "\ud800"}, "cannot be stored as JSON"),
    ({"\udfff": 1}, "cannot be stored as JSON"),
    ({1: "one", "1": "another one"}, "a key is no string"),
    ({"a": (1, 2)}, "a list is a tuple"),
    ({"a": datetime(2024, 1, 1)}, "not JSON serializable"),
    ({"a": b"x"}, "not JSON serializable"),
    ({"a": {1, 2}}, "not JSON serializable"),
    (nested(250), "nested deeper than 200 levels"),
    (nested(500), "nested deeper than 200 levels"),
    (nested(5000), "metadata"),
    (circular, "cannot be stored as JSON"),
]


@pytest.mark.parametrize(("value", "message"), BAD_METADATA, ids=range(len(BAD_METADATA)))
def test_metadata_that_json_would_change_is_refused(memory, value, message):
    id = memory.get_all()[0].id
    for step in (
        lambda: memory.add("x", metadata=value, infer=False),
        lambda: memory.add({"content": "x", "metadata": value}, infer=False),
        lambda: memory.update(id, "x", metadata=value),
    ):
        with pytest.raises(InputError, match=message):
            step()
    with pytest.raises(TypeError):
        memory.add("x", metadata=[("a", 1)])


@pytest.mark.parametrize(
    "value", [{"a": "\\u0000", "\\u0000": 1}, {"wide": [[]] * 300, "text": "x" * 60_000}],
    ids=["a written \\u0000 is no NUL", "wide is not deep"],
)  # fmt: skip
def test_odd_metadata_that_json_can_hold_is_kept(value):
    with quick() as memory:
        id = memory.add("x", metadata=value, infer=False)[0].id
        item = memory.get(id)
        assert item is not None and item.metadata == value


@pytest.mark.parametrize(
    "value", ["soon", "", "2024-13-01", math.nan, math.inf, 1e300, -1e300, 10**400, "\ud800"]
)
def test_a_time_that_is_none_is_refused(memory, value):
    with pytest.raises(InputError, match=r"give ISO-8601 text such as 2024-05-01T10:00:00\+00:00$"):
        memory.add("x", timestamp=value)
    with pytest.raises(InputError, match="expires_at"):
        memory.add("x", expires_at=value)
    with pytest.raises(InputError, match="timestamp of the message"):
        memory.add({"content": "x", "timestamp": value})


BAD_ARGUMENTS = {
    ("top_k", InputError, "top_k is .*; give a whole number from"): (0, -1, -(10**30), 10**30),
    ("top_k", TypeError, "top_k must be a whole number"): (
        True, False, 2.0, 2.5, math.nan, "3", None, [1]
    ),
    ("threshold", InputError, r"scores lie in \[0, 1\]"): (
        2, 1.01, -1, -0.1, math.nan, math.inf, -math.inf, 10**400
    ),
    ("threshold", TypeError, "threshold must be a number"): ("0.5", True, [0.5]),
    ("filters", InputError, "filter"): ([], "", 0, "city", [{"city": "Oslo"}], {1: 2}),
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "error", "message", "value"),
    [(*refused, value) for refused, values in BAD_ARGUMENTS.items() for value in values],
)
def test_an_argument_that_is_none_is_refused(memory, name, error, message, value):
    with pytest.raises(error, match=message):
        memory.search("x", **{name: value})
    if name != "threshold" and (name, repr(value)) not in (("top_k", "None"), ("top_k", "0")):
        with pytest.raises(error, match=message):
            memory.get_all(**{name: value})


def test_a_number_that_python_refuses_to_write_is_refused(memory):
    huge = 10**5000
    for value in (huge, {"in": [huge]}, {"lt": huge}, {"eq": [huge]}):
        for key in ("n", "created_at"):
            with pytest.raises(InputError, match=f"filter '{key}': .* too long to show"):
                memory.search("x", filters={key: value})
    with pytest.raises(InputError, match="top_k is a value too long to show"):
        memory.search("x", top_k=huge)
    with pytest.raises(InputError, match="scores lie in"):
        memory.search("x", threshold=huge)
    with pytest.raises(InputError, match=r"timestamp a value too long to show .* is no time"):
        memory.add("x", timestamp=huge)
    with pytest.raises(InputError, match="has the role a value too long to show"):
        memory.add({"role": huge, "content": "x"})
    with pytest.raises(InputError, match="metadata cannot be stored"):
        memory.add("x", metadata={"n": huge})


@pytest.mark.parametrize("value", [-1, -(10**30), 10**30])
def test_how_many_to_work_off_is_a_whole_number(memory, value):
    with pytest.raises(InputError, match=r"limit is .* whole number from 0 to"):
        memory.process_pending(value)


@pytest.mark.parametrize(
    ("messages", "error", "message"),
    [
        ([], InputError, "empty list; give at least one message"),
        (None, TypeError, "a string, a dict or a list"),
        (5, TypeError, "not int"),
        (b"hello", TypeError, "not bytes"),
        ([None], TypeError, "string or a dict"),
        ([["nested"]], TypeError, "string or a dict"),
        ({}, InputError, "has no 'content'"),
        ({"content": None}, TypeError, "content of the message must be a string"),
        ({"content": "x", "text": "y"}, InputError, "unknown key 'text'; its keys are content"),
        (["x", {"content": "x", "role": "robot"}], InputError, "message 2 has the role 'robot'"),
        ({"content": "x", "role": ["user"]}, InputError, "give one of user, assistant"),
        ({"content": "x", "name": ""}, InputError, "name of the message is empty"),
        ({"content": "x", "name": "n" * 300}, InputError, "at most 256"),
        ({"content": "x", "name": 5}, TypeError, "must be a string"),
    ],
)
def test_messages_of_another_shape_are_refused(memory, messages, error, message):
    with pytest.raises(error, match=message):
        memory.add(messages)


@pytest.mark.parametrize("value", ["yes", "", None, 1, 0, ["later"], "x" * 1000])
def test_when_facts_are_taken_is_now_never_or_later(memory, value):
    with pytest.raises(InputError, match=r'infer is .*; give True, False or "later"') as caught:
        memory.add("x", infer=value)
    assert len(str(caught.value)) < 150


@pytest.mark.parametrize("value", [{"n_ctx": 2048}, {}, "settings.toml"])
def test_settings_that_are_none_are_refused(tmp_path, value):
    with pytest.raises(
        TypeError, match=r"must be an edgemem\.config\.Settings, not .*load_settings"
    ):
        Memory(tmp_path / "a.db", settings=value)
    assert not (tmp_path / "a.db").exists()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m: m.erase(5), "ids must be a string or several of them, not int"),
        (lambda m: m.erase(b"x"), "ids must be a string or several of them, not bytes"),
        (lambda m: m.take_facts([]), "must be what `add` returned, not list"),
        (lambda m: m.import_jsonl([5]), "a line of an export must be a string, not int"),
        (lambda m: Memory(m.store.path, engine="x"), "engine is 'x'; give a loaded model"),
        (lambda m: Memory(m.store.path, passphrase=5), "passphrase must be a string, not int"),
    ],
)
def test_a_wrong_type_is_refused_by_name(memory, call, message):
    with pytest.raises(TypeError, match=message):
        call(memory)


def test_a_refusal_is_of_what_was_given_and_short(memory, tmp_path):
    with pytest.raises(InputError, match="at most 1,048,576 are allowed: shorten it"):
        memory.search("x" * 1_048_577)
    with pytest.raises(StoreError, match="there is no memory") as caught:
        memory.erase("x" * 1_000_000)
    assert len(str(caught.value)) < 200
    with pytest.raises(StoreError, match="is a folder; choose another place"):
        Memory(tmp_path)


def test_a_file_or_key_of_a_wrong_type_is_refused_by_name(memory, tmp_path):
    with pytest.raises(TypeError, match="file must be a path or an open text file, not int"):
        memory.export_jsonl(3)
    pytest.importorskip("apsw")
    with pytest.raises(TypeError, match="a key must be 32 bytes or a recovery code, not int"):
        Memory(tmp_path / "a.db", key=3)


# -- anything at all -------------------------------------------------------------------------

characters = st.characters(exclude_categories=())  # lone surrogates too
wild = st.text(characters, max_size=40)
scalars = st.none() | st.booleans() | st.integers() | st.floats() | wild
values = st.recursive(
    scalars | st.binary(max_size=3) | st.datetimes() | st.tuples(st.integers()),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(wild | st.integers(), inner),
    max_leaves=6,
)
quickly = settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="module")
def shared():
    with quick() as memory:
        yield memory


@quickly
@given(wild, st.dictionaries(wild, values, max_size=4), wild)
@example("a" * 300, {"a": {"b": [1, 2.5, None, True, "\u2028"]}}, "name")
@example("\ufeffx\r\n", {"": ""}, "\x1f")
def test_text_and_metadata_come_back_exactly_or_are_refused(shared, text, metadata, name):
    try:
        change = shared.add(
            {"content": text, "name": name, "metadata": metadata}, user_id=name, infer=False
        )[0]
    except InputError as exc:
        str(exc).encode()  # and can be printed
        return
    item = shared.get(change.id)
    assert (item.memory, item.metadata, item.user_id) == (text, metadata, name)
    assert shared.source_turns(change.id)[0].name == name
    assert change.id in [hit.id for hit in shared.search(text, user_id=name, top_k=1000)]
    shared.delete(change.id)


GOOD: dict[str, dict[str, Any]] = {
    "add": {"messages": "x", "user_id": "u", "metadata": {}, "timestamp": 0, "expires_at": 0},
    "search": {"query": "x", "user_id": "u", "filters": {}, "top_k": 1, "threshold": 0},
    "get": {"id": "x"},
    "get_all": {"agent_id": "a", "filters": {"a": {"gt": 1}}, "top_k": 1},
    "update": {"id": "x", "text": "x", "metadata": {}},
    "delete": {"id": "x"},
    "delete_all": {"user_id": "u"},
    "erase_all": {"user_id": "u"},
    "erase": {"ids": "x"},
    "history": {"id": "x"},
    "source_turns": {"id": "x"},
    "stale_turns": {"turns": ["x"]},
    "process_pending": {"limit": 1},
}


@quickly
@given(st.data())
def test_nothing_but_our_errors_and_type_errors_comes_out(shared, data):
    name = data.draw(st.sampled_from(sorted(GOOD)))
    arguments = dict(GOOD[name])
    arguments[data.draw(st.sampled_from(sorted(arguments)))] = data.draw(values)
    if name == "add":
        arguments["infer"] = False
    try:
        getattr(shared, name)(**arguments)
    except (EdgememError, TypeError) as exc:
        str(exc).encode()


@quickly
@given(st.dictionaries(st.sampled_from(["AND", "OR", "NOT", "a", "a.b", "created_at", ""]), values))
def test_filters_of_anything_are_answered_or_refused(shared, filters):
    try:
        shared.get_all(filters=filters)
        shared.search("x", filters=filters)
    except InputError as exc:
        str(exc).encode()
