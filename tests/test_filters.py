"""Filters: the SQL finds what a plain reading of the rules finds."""

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from storekit import T0, T1, T2, add, memory

from edgemem.errors import InputError
from edgemem.results import Scope, to_utc
from edgemem.store import Store
from edgemem.store.filters import COLUMNS, MAX_CONDITIONS, MAX_DEPTH, TIMES, compile_filters

MISSING = object()


# --- the same rules, in Python ---------------------------------------------------------------


def matches(filters, item):
    for key, value in filters.items():
        if key in ("AND", "OR", "NOT"):
            parts = [matches(f, item) for f in (value if isinstance(value, list) else [value])]
            good = {"AND": all(parts), "OR": any(parts), "NOT": not any(parts)}[key]
        else:
            found = look_up(item, key)
            if value == "*":
                good = found is not MISSING and found is not None
            else:
                operators = value if isinstance(value, dict) else {"eq": value}
                good = all(holds(op, found, x, key in TIMES) for op, x in operators.items())
        if not good:
            return False
    return True


def look_up(item, key):
    if key in COLUMNS:
        return getattr(item, key)
    found: Any = item.metadata
    for part in key.split("."):
        if not isinstance(found, dict) or part not in found:
            return MISSING
        found = found[part]
    return found


def holds(operator, found, operand, is_time):
    if operator == "ne":
        return not holds("eq", found, operand, is_time)
    if operator == "nin":
        return not holds("in", found, operand, is_time)
    if operator == "in":
        return any(holds("eq", found, x, is_time) for x in operand)
    if is_time and operand is not None and operator not in ("contains", "icontains"):
        operand = to_utc(operand)
    if operator == "eq" and operand is None:
        return found is None or found is MISSING
    if operator in ("contains", "icontains"):
        if isinstance(found, list):
            return any(same(x, operand, fold=operator == "icontains") for x in found)
        if not (isinstance(found, str) and isinstance(operand, str)):
            return False
        if operator == "icontains":
            return operand.casefold() in found.casefold()
        return operand in found
    if operator == "eq":
        return same(found, operand)
    if not (is_number(found) and is_number(operand)) and not (
        isinstance(found, str) and isinstance(operand, str)
    ):
        return False
    return {
        "gt": found > operand, "gte": found >= operand,
        "lt": found < operand, "lte": found <= operand,
    }[operator]  # fmt: skip


def is_number(value):
    return isinstance(value, int | float) and not isinstance(value, bool)


def same(a, b, fold=False):
    if is_number(a) and is_number(b):
        return a == b
    if isinstance(a, str) and isinstance(b, str):
        return a.casefold() == b.casefold() if fold else a == b
    return type(a) is type(b) and a == b


# --- compared ---------------------------------------------------------------------------------

words = st.sampled_from(["", "a", "A", "Oslo", "oslo", "ÅSE", "åse", "straße", "10", "9", "*", "'"])
text = words | st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=4)
numbers = (
    st.integers(-3, 3) | st.integers(-(2**63), 2**63 - 1) | st.sampled_from([0.1, 1.0, -2.5, 1e9])
)
numbers = numbers | st.floats(allow_nan=False, allow_infinity=False)
scalars = st.none() | st.booleans() | numbers | text
names = st.sampled_from(["city", "age", "a", "b b", "é", "it's", "$", "[0]"])
values = scalars | st.lists(scalars, max_size=3) | st.dictionaries(names, scalars, max_size=2)
metadata = st.dictionaries(names, values, max_size=4)
paths = names | st.builds("{}.{}".format, names, names)
times = st.sampled_from([T0, T1, T2])
time_operands = times | st.sampled_from(
    [datetime(2024, 5, 2, 10, tzinfo=UTC), 1714557600, "2024-05-02T12:00:00+02:00"]
)
users = st.sampled_from(["ada", "bob", "ÅSE"])


def operators(single, ordered, pieces):
    return st.one_of(
        st.fixed_dictionaries({}, optional={"eq": single, "ne": single}).filter(bool),
        st.fixed_dictionaries({"in": st.lists(single, max_size=3)}),
        st.fixed_dictionaries({"nin": st.lists(single, max_size=3)}),
        st.dictionaries(st.sampled_from(["gt", "gte", "lt", "lte"]), ordered, min_size=1),
        st.dictionaries(st.sampled_from(["contains", "icontains"]), pieces, min_size=1),
    )


on_metadata = operators(scalars, numbers | text, scalars.filter(lambda x: x is not None))
on_times = operators(st.none() | time_operands, time_operands, st.sampled_from(["2024", "05-0"]))
on_users = operators(st.none() | users, users, words)
leaves = st.one_of(
    st.dictionaries(paths, on_metadata | scalars | st.just("*"), max_size=2),
    st.dictionaries(st.sampled_from(TIMES), on_times | time_operands | st.just("*"), max_size=1),
    st.dictionaries(st.sampled_from(["user_id", "run_id"]), on_users | users, max_size=1),
)
filters = st.recursive(
    leaves,
    lambda inner: st.dictionaries(
        st.sampled_from(["AND", "OR", "NOT"]),
        st.lists(inner, min_size=1, max_size=3),
        min_size=1,
        max_size=2,
    ),
    max_leaves=5,
)
scopes = st.builds(Scope, users | st.none(), st.none(), users | st.none())
row_values = st.tuples(metadata, scopes, times | st.none(), times | st.none())


@settings(max_examples=300)
@given(st.lists(row_values, min_size=1, max_size=5), st.lists(filters, min_size=1, max_size=5))
@example(rows=[({"a": 0.1}, Scope(), None, None)], conditions=[{"a": {"in": [0.1, None]}}])
@example(rows=[({"a": 2.5e-310}, Scope(), None, None)], conditions=[{"a": 2.5e-310}])
def test_sql_agrees_with_python(rows, conditions):
    with Store.open(":memory:") as store:
        add(
            store,
            *(
                memory(f"m{i}", metadata=data, scope=scope, valid_from=start, expires_at=end)
                for i, (data, scope, start, end) in enumerate(rows)
            ),
        )
        items = store.list(include_invalid=True)
        for condition in conditions:
            where = compile_filters(condition)
            found = [i.id for i in store.list(where=where, include_invalid=True)]
            assert found == [i.id for i in items if matches(condition, i)], (condition, where)


# --- by example -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def store():
    with Store.open(":memory:") as opened:
        add(
            opened,
            memory("oslo", metadata={"city": "Oslo", "age": 30, "tags": ["Work", 7], "ok": True}),
            memory("rome", metadata={"city": "Rome", "age": 41.5, "home": {"zip": "00118"}}),
            memory("bare", created_at=T2, scope=Scope("bob", run_id="r")),
            memory("null", metadata={"city": None, "age": "30", "ok": 1}),
        )
        yield opened


@pytest.mark.parametrize(
    ("condition", "wanted"),
    [
        ({}, "oslo rome null bare"),
        ({"city": "Oslo"}, "oslo"),
        ({"city": "oslo"}, ""),
        ({"city": {"ne": "Oslo"}}, "rome null bare"),
        ({"city": {"nin": ["Oslo", "Rome"]}}, "null bare"),
        ({"city": {"in": ["Oslo", None]}}, "oslo null bare"),
        ({"city": {"in": []}}, ""),
        ({"city": "*"}, "oslo rome"),
        ({"NOT": {"city": "*"}}, "null bare"),
        ({"city": None}, "null bare"),
        ({"city": {"icontains": "OM"}}, "rome"),
        ({"city": {"contains": "s"}, "age": {"gte": 30}}, "oslo"),
        ({"age": {"gte": 30, "lt": 41.5}}, "oslo"),
        ({"age": {"gte": "3"}}, "null"),
        ({"age": "30"}, "null"),
        ({"age": 30.0}, "oslo"),
        ({"age": {"lt": 2**70}}, "oslo rome"),
        ({"ok": True}, "oslo"),
        ({"ok": 1}, "null"),
        ({"tags": {"contains": 7}}, "oslo"),
        ({"tags": {"contains": "work"}}, ""),
        ({"tags": {"icontains": "work"}}, "oslo"),
        ({"tags": '["Work",7]'}, ""),
        ({"home.zip": "00118"}, "rome"),
        ({"id": {"in": ["oslo", "bare"]}}, "oslo bare"),
        ({"user_id": "bob"}, "bare"),
        ({"run_id": "*"}, "bare"),
        ({"created_at": {"gt": T1}}, "bare"),
        ({"created_at": {"gte": datetime(2024, 5, 3, 10, tzinfo=UTC)}}, "bare"),
        ({"created_at": {"contains": "05-03"}}, "bare"),
        ({"valid_to": None}, "oslo rome null bare"),
        ({"OR": [{"city": "Oslo"}, {"user_id": "bob"}]}, "oslo bare"),
        ({"AND": [{"city": "*"}, {"NOT": [{"age": 30}, {"city": "x"}]}]}, "rome"),
        ({"city": "x' OR 1 --"}, ""),
        ({"x') OR (1": 1}, ""),
    ],
)
def test_a_filter_lets_through_what_it_says(store, condition, wanted):
    assert [i.id for i in store.list(where=compile_filters(condition))] == wanted.split()


@pytest.mark.parametrize(
    ("condition", "message"),
    [
        (["city"], "filters must be a mapping such as {'city': 'Oslo'}, not ['city']"),
        (
            {"age": {"over": 3}},
            "filter 'age' has the unknown operator 'over'; allowed are eq, ne, in, nin, gt, gte, "
            "lt, lte, contains, icontains (and for nested metadata a dotted key, 'age.over')",
        ),
        ({"age": {}}, "filter 'age' has no operator"),
        ({"age": {"in": 3}}, "filter 'age': operator in takes a list, not 3"),
        ({"age": {"in": [[1]]}}, "operator in takes a list of single values, not [1]"),
        ({"age": {"in": [b"x"]}}, "operator in takes text, numbers, booleans and None"),
        ({"age": [1, 2]}, "for one of several values use 'in'"),
        ({"age": {"gt": True}}, "operator gt takes text or a number, not True"),
        ({"age": {"gt": None}}, "operator gt takes text or a number, not None"),
        ({"age": float("nan")}, "operator eq takes a finite number, not nan"),
        ({"age": {"contains": None}}, "operator contains takes text, a number or a boolean"),
        ({"user_id": 5}, "filter 'user_id': operator eq takes text, not 5"),
        ({"user_id": {"contains": 5}}, "operator contains takes text, not 5"),
        ({"created_at": "yesterday"}, "operator eq takes a time: datetime, ISO-8601 text or"),
        ({"created_at": {"gt": True}}, "operator gt takes a time"),
        ({"created_at": {"gt": 1e300}}, "operator gt takes a time"),
        ({"created_at": {"gt": float("nan")}}, "operator gt takes a time"),
        ({"AND": []}, "filter AND takes a list of at least one mapping, not []"),
        ({"OR": {"city": "Oslo"}}, "filter OR takes a list of at least one mapping"),
        ({"OR": ["x"]}, "filters must be a mapping"),
        ({3: 4}, "filter key 3 is not text"),
        ({"a..b": 1}, "filter key 'a..b' cannot be a path into metadata"),
        ({'a"b': 1}, "cannot be a path into metadata"),
        ({"": 1}, "cannot be a path into metadata"),
        ({"a": "\ud800"}, "filter 'a' holds a lone surrogate"),
        ({"a\ud800": 1}, "holds a lone surrogate"),
        ({"a": "x\0"}, "filter 'a' holds a NUL character"),
    ],
)
def test_a_wrong_filter_says_what_is_allowed(condition, message):
    with pytest.raises(InputError) as caught:
        compile_filters(condition)
    assert message in str(caught.value)


def test_filters_may_be_as_large_as_the_limits_say_and_no_larger(store):
    deep: dict[str, Any] = {"city": {"icontains": "oslo"}}
    for level in range(MAX_DEPTH):
        deep = {("AND", "OR", "NOT")[level % 3]: [deep, {"city": {"icontains": "oslo"}}]}
    store.list(where=compile_filters(deep))
    with pytest.raises(InputError, match="nested deeper than 12 levels"):
        compile_filters({"AND": [deep]})

    many = [{"tags": {"icontains": "x"}} for _ in range(MAX_CONDITIONS)]
    for word in ("AND", "OR", "NOT"):
        store.list(where=compile_filters({word: many}))
    with pytest.raises(InputError, match="201 conditions and the limit is 200"):
        compile_filters({"OR": [*many, {"a": 1}]})

    long = [f"id{i}" for i in range(40_000)]
    assert store.list(where=compile_filters({"id": {"in": [*long, "oslo"]}}))[0].id == "oslo"
    mixed = [*long, *range(40_000), "Oslo"]
    assert store.list(where=compile_filters({"city": {"in": mixed}}))[0].id == "oslo"
