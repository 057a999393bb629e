"""mem0-style filters, compiled to SQL.

    {"city": "Oslo"}                                   equal
    {"age": {"gte": 30, "lt": 40}}                     both hold
    {"AND": [..]}, {"OR": [..]}, {"NOT": [..]}         NOT: none holds
    {"city": "*"}                                      present and not null

Operators: eq ne in nin gt gte lt lte contains icontains. Several keys are joined by AND.
A key in COLUMNS is that column. Every other key is a path into `metadata`, in which dots nest:
"address.city" is metadata["address"]["city"].

- Values compare within their own type: text with text (by code point), numbers with numbers
  (5 equals 5.0; integers beyond 64 bits count as floats), booleans with booleans. A comparison
  across types is false, but true for ne and nin.
- A missing key satisfies no condition, so ne, nin and NOT are true for it. `None` stands for a
  missing key as well as for a null: {"city": None} finds both, {"city": {"ne": None}} neither.
- contains: a piece of a text, or an element of a list. icontains ignores case (str.casefold).
- Time columns take datetimes, ISO-8601 text or seconds since 1970.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeGuard

from edgemem.errors import InputError
from edgemem.inputs import shown
from edgemem.results import to_utc
from edgemem.store.rows import LISTED, as_json

__all__ = ["COLUMNS", "OPERATORS", "Where", "compile_filters", "fold"]

TIMES = ("created_at", "updated_at", "valid_from", "valid_to", "expires_at")
COLUMNS = ("id", "kind", *TIMES, "user_id", "agent_id", "run_id")
OPERATORS = ("eq", "ne", "in", "nin", "gt", "gte", "lt", "lte", "contains", "icontains")
COMBINERS = ("AND", "OR", "NOT")
COMPARE = {"gt": ">", "gte": ">=", "lt": "<", "lte": "<="}

# SQLite's parser stops at about 100 open brackets and 1,000 joined terms.
MAX_DEPTH = 12
MAX_CONDITIONS = 200


@dataclass(frozen=True)
class Where:
    """A condition on a row of `memories AS m`, never NULL, with its bound parameters.

    count: of the conditions that it joins. icontains needs the SQL function `edgemem_fold`, which
    the store's connections have.
    """

    sql: str
    params: tuple[Any, ...] = ()
    count: int = 1


def fold(value: object) -> str | None:
    """The SQL function `edgemem_fold`; SQLite's own lower() knows ASCII only."""
    return value.casefold() if isinstance(value, str) else None


def compile_filters(filters: Mapping[str, Any]) -> Where:
    """The condition that `filters` states; an empty mapping is true for every memory.

    Raises InputError on an unknown operator, an operand that the operator cannot take, a key
    that cannot be a path, or more than MAX_CONDITIONS conditions or MAX_DEPTH nested levels.
    """
    where = _group(filters, 0)
    if where.count > MAX_CONDITIONS:
        raise InputError(
            f"filters have {where.count} conditions and the limit is {MAX_CONDITIONS}; use 'in' or "
            "'nin' with a list, or filter the results yourself"
        )
    return where


def _group(filters: object, depth: int) -> Where:
    if not isinstance(filters, Mapping):
        raise InputError(
            f"filters must be a mapping such as {{'city': 'Oslo'}}, not {shown(filters)}"
        )
    if depth > MAX_DEPTH:
        raise InputError(f"filters are nested deeper than {MAX_DEPTH} levels; flatten them")
    parts: list[Where] = []
    for key, value in filters.items():
        if not isinstance(key, str):
            raise InputError(f"filter key {shown(key)} is not text; use the name of a field")
        parts.append(_combined(key, value, depth) if key in COMBINERS else _field(key, value))
    return _join(parts, "AND")


def _combined(key: str, value: object, depth: int) -> Where:
    if key == "NOT" and isinstance(value, Mapping):
        value = [value]
    if not _is_list(value) or not value:
        raise InputError(
            f"filter {key} takes a list of at least one mapping, not {shown(value)}; "
            f"e.g. {{'{key}': [{{'city': 'Oslo'}}]}}"
        )
    parts = [_group(item, depth + 1) for item in value]
    if key == "NOT":
        joined = _join(parts, "OR")
        return Where(f"NOT ({joined.sql})", joined.params, joined.count)
    return _join(parts, key)


def _join(parts: Sequence[Where], word: str) -> Where:
    if not parts:
        return Where("1", count=0)
    if len(parts) == 1:
        return parts[0]
    sql = "(" + f" {word} ".join(part.sql for part in parts) + ")"
    return Where(sql, tuple(p for part in parts for p in part.params), sum(p.count for p in parts))


def _field(key: str, value: object) -> Where:
    if not isinstance(value, Mapping):
        value = {"ne": None} if isinstance(value, str) and value == "*" else {"eq": value}
    if not value:
        raise InputError(f"filter {key!r} has no operator; allowed are {', '.join(OPERATORS)}")
    parts: list[Where] = []
    for operator, operand in value.items():
        if operator not in OPERATORS:
            raise InputError(
                f"filter {key!r} has the unknown operator {shown(operator)}; allowed are "
                f"{', '.join(OPERATORS)} (and for nested metadata a dotted key, "
                f"{f'{key}.{operator}'!r})"
            )
        build = _any_of if operator in ("in", "nin") else _single
        parts.append(build(key, operator, operand))
    return _join(parts, "AND")


def _single(key: str, operator: str, operand: Any) -> Where:
    return (_column if key in COLUMNS else _metadata)(key, operator, operand)


# --- columns: text or NULL -------------------------------------------------------------------


def _column(key: str, operator: str, operand: Any) -> Where:
    name = f"m.{key}"
    if operator in ("contains", "icontains"):
        if not isinstance(operand, str):
            raise _wrong(key, operator, operand, "text")
        return _contains_text(name, (), operator, _text(key, operand))
    if operator in COMPARE:
        text = _column_text(key, operator, operand)
        return Where(f"coalesce({name} {COMPARE[operator]} ?, 0)", (text,))
    value = None if operand is None else _column_text(key, operator, operand)
    return Where(f"({name} IS {'NOT ' if operator == 'ne' else ''}?)", (value,))


def _column_text(key: str, operator: str, operand: Any) -> str:
    if key not in TIMES:
        if not isinstance(operand, str):
            raise _wrong(key, operator, operand, "text")
        return _text(key, operand)
    allowed = "a time: datetime, ISO-8601 text or seconds since 1970"
    if isinstance(operand, bool) or not isinstance(operand, datetime | str | int | float):
        raise _wrong(key, operator, operand, allowed)
    try:
        return to_utc(operand)
    except (ValueError, OverflowError) as exc:
        raise _wrong(key, operator, operand, allowed) from exc


# --- metadata: JSON, any type or missing -----------------------------------------------------


def _metadata(key: str, operator: str, operand: Any) -> Where:
    path = _path(key)
    kind, value = "json_type(m.metadata, ?)", "json_extract(m.metadata, ?)"
    if operator == "ne":
        positive = _metadata(key, "eq", operand)
        return Where(f"NOT {positive.sql}", positive.params)
    if operator in ("contains", "icontains"):
        return _metadata_contains(key, path, operator, operand)
    if operand is None and operator == "eq":
        return Where(f"(coalesce({kind}, 'null') = 'null')", (path,))
    if isinstance(operand, bool) and operator in COMPARE:
        raise _wrong(key, operator, operand, "text or a number")
    allowed = "text or a number" if operator in COMPARE else "text, a number, a boolean or None"
    types, sql, bound = _value(key, operator, operand, allowed)
    return Where(
        f"coalesce({kind} IN ({types}) AND {value} {COMPARE.get(operator, '=')} {sql}, 0)",
        (path, path, bound),
    )


def _metadata_contains(key: str, path: str, operator: str, operand: Any) -> Where:
    types, sql, bound = _value(key, operator, operand, "text, a number or a boolean")
    element = "e.value"
    if operator == "icontains" and isinstance(operand, str):
        element, bound = "edgemem_fold(e.value)", operand.casefold()
    among = (
        "json_type(m.metadata, ?) = 'array' AND EXISTS (SELECT 1 FROM json_each(m.metadata, ?) e "
        f"WHERE e.type IN ({types}) AND {element} = {sql})"
    )
    if not isinstance(operand, str):
        return Where(f"coalesce({among}, 0)", (path, path, bound))
    within = _contains_text("json_extract(m.metadata, ?)", (path,), operator, operand)
    return Where(
        f"coalesce((json_type(m.metadata, ?) = 'text' AND {within.sql}) OR ({among}), 0)",
        (path, *within.params, path, path, bound),
    )


def _value(key: str, operator: str, operand: Any, allowed: str) -> tuple[str, str, str | int]:
    """A single value: the JSON types that it may equal, its SQL and its parameter.

    A number goes through SQLite's JSON reader, as the metadata does: that reader does not always
    round a decimal to the same float as Python does.
    """
    if isinstance(operand, str):
        return "'text'", "?", _text(key, operand)
    if isinstance(operand, bool):
        return ("'true'" if operand else "'false'"), "?", int(operand)
    if not isinstance(operand, int | float):
        raise _wrong(key, operator, operand, allowed)
    try:
        return "'integer', 'real'", "json_extract(?, '$')", json.dumps(operand, allow_nan=False)
    except ValueError as exc:  # also an integer of thousands of digits
        raise _wrong(key, operator, operand, "a finite number") from exc


def _path(key: str) -> str:
    """The JSON path of a dotted key, to be bound as a parameter.

    SQLite before 3.45 cannot quote these characters in a path, so they are always refused.
    """
    parts = key.split(".")
    if not all(parts) or any(c in '"\\' or ord(c) < 32 for c in key):
        raise InputError(
            f"filter key {key!r} cannot be a path into metadata; use names without quotes, "
            'backslashes and control characters, joined by single dots, e.g. "address.city"'
        )
    _text(key, key)
    return "$" + "".join(f'."{part}"' for part in parts)


# --- both ------------------------------------------------------------------------------------


def _contains_text(sql: str, params: tuple[Any, ...], operator: str, text: str) -> Where:
    if operator == "icontains":
        sql, text = f"edgemem_fold({sql})", text.casefold()
    return Where(f"coalesce(instr({sql}, ?) > 0, 0)", (*params, text))


def _any_of(key: str, operator: str, operands: Any) -> Where:
    """in / nin. The list is one JSON parameter, so that thousands of values are one condition."""
    if not _is_list(operands):
        raise _wrong(key, operator, operands, "a list")
    path = None if key in COLUMNS else _path(key)
    # For messages. A nin on metadata is built as the negation of an in.
    told = operator if path is None else "in"
    parts: list[Where] = []
    values: dict[str, list[Any]] = {}  # by the JSON types that they may equal
    for operand in operands:
        if _is_list(operand) or isinstance(operand, Mapping):
            raise _wrong(key, told, operand, "a list of single values")
        if operand is None or isinstance(operand, bool):
            parts.append(_single(key, "eq", operand))
        elif path is None:
            values.setdefault("", []).append(_column_text(key, told, operand))
        else:
            types, _, _ = _value(key, told, operand, "text, numbers, booleans and None")
            values.setdefault(types, []).append(operand)
    parts = list(dict.fromkeys(parts))
    for types, listed in values.items():
        sql = f"m.{key} {LISTED}"
        params: tuple[str, ...] = (as_json(listed),)
        if path is not None:
            sql = f"json_type(m.metadata, ?) IN ({types}) AND json_extract(m.metadata, ?) {LISTED}"
            params = (path, path, *params)
        parts.append(Where(f"coalesce({sql}, 0)", params))
    where = _join(parts, "OR") if parts else Where("0")
    return Where(f"NOT {where.sql}" if operator == "nin" else where.sql, where.params)


def _text(key: str, text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as exc:
        raise InputError(f"filter {key!r} holds a lone surrogate; give valid text") from exc
    if "\0" in text:
        raise InputError(f"filter {key!r} holds a NUL character; give text without")
    return text


def _is_list(value: object) -> TypeGuard[Collection[Any]]:
    return isinstance(value, list | tuple | set | frozenset)


def _wrong(key: str, operator: str, operand: object, allowed: str) -> InputError:
    hint = "; for one of several values use 'in'" if _is_list(operand) and operator == "eq" else ""
    return InputError(
        f"filter {key!r}: operator {operator} takes {allowed}, not {shown(operand)}{hint}"
    )
