"""What users hand in, checked and brought into shape before anything is stored.

Knows types and limits; no store, no model. Everything refused here is an InputError (or a TypeError
for a wrong type) that names what was given, what is allowed and what to do.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from edgemem.errors import InputError
from edgemem.results import Message, Scope, to_utc, utc_now

__all__ = ["MAX_METADATA_BYTES", "MAX_TEXT_CHARS", "messages_of", "metadata_of", "scope_of", "text_of", "time_of"]

MAX_TEXT_CHARS = 1_048_576
MAX_METADATA_BYTES = 65_536
MAX_ID_CHARS = 256
_ROLES = ("user", "assistant", "system", "tool")
_MESSAGE_KEYS = frozenset({"role", "content", "name", "timestamp", "metadata", "recalled"})


def text_of(value: object, what: str = "text") -> str:
    """A text that can be stored: not blank, at most a mebi-character, of whole characters, no NUL."""
    if not isinstance(value, str):
        raise TypeError(f"the {what} must be a string, not {type(value).__name__}")
    if not value.strip():
        raise InputError(f"the {what} is empty; give at least one character that is no space")
    if len(value) > MAX_TEXT_CHARS:
        raise InputError(
            f"the {what} has {len(value):,} characters; at most {MAX_TEXT_CHARS:,} are allowed: "
            "store it in parts"
        )
    if "\0" in value:
        raise InputError(
            f"the {what} has a NUL character at {value.index(chr(0))}; remove it (binary data cannot "
            "be remembered)"
        )
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as exc:
        raise InputError(
            f"the {what} has half of a surrogate pair at character {exc.start}; decode it again with "
            "errors='replace', or remove that character"
        ) from exc
    return value


def time_of(value: datetime | str | float | None, what: str = "timestamp") -> str | None:
    """A time as stored text, or None. Naive times are taken in this machine's zone."""
    if value is None:
        return None
    if not isinstance(value, datetime | str | int | float) or isinstance(value, bool):
        raise TypeError(
            f"{what} must be a datetime, an ISO-8601 string or seconds, not {type(value).__name__}"
        )
    try:
        return to_utc(value)
    except (ValueError, OverflowError) as exc:
        raise InputError(
            f"{what} {value!r} is no time; give a datetime, ISO-8601 text such as "
            "2024-05-01T10:00:00+00:00, or seconds since 1970"
        ) from exc


def metadata_of(value: Mapping[str, Any] | None) -> dict[str, Any]:
    """Metadata as a dict that JSON gives back unchanged, at most 64 KiB."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise TypeError(f"metadata must be a mapping, not {type(value).__name__}")
    try:
        text = json.dumps(dict(value), ensure_ascii=False, allow_nan=False)
        size = len(text.encode("utf-8"))
    except (TypeError, ValueError, RecursionError) as exc:
        raise InputError(
            f"the metadata cannot be stored as JSON ({exc}); give strings, finite numbers, booleans, "
            "None, and lists or dicts of those"
        ) from exc
    if size > MAX_METADATA_BYTES:
        raise InputError(
            f"the metadata has {size:,} bytes as JSON; at most {MAX_METADATA_BYTES:,} are allowed: "
            "store large values as memories, or outside"
        )
    found: dict[str, Any] = json.loads(text)
    return found


def scope_of(user_id: str | None, agent_id: str | None, run_id: str | None) -> Scope:
    """A scope of usable ids."""
    for name, value in (("user_id", user_id), ("agent_id", agent_id), ("run_id", run_id)):
        if value is None:
            continue
        text_of(value, name)
        if len(value) > MAX_ID_CHARS:
            raise InputError(f"{name} has {len(value)} characters; at most {MAX_ID_CHARS} are allowed")
    return Scope(user_id, agent_id, run_id)


def messages_of(
    value: str | Mapping[str, Any] | Sequence[Mapping[str, Any] | str],
    timestamp: datetime | str | float | None,
) -> list[tuple[Message, bool]]:
    """Messages in order, each with whether it was made from recalled memories.

    value: a string (a user's message), a message dict {role, content, name?, timestamp?, metadata?,
    recalled?}, or a sequence of either. timestamp: for messages without their own; None is now.
    """
    if isinstance(value, str | Mapping):
        value = [value]
    if not isinstance(value, Sequence) or isinstance(value, bytes):
        raise TypeError(
            f"messages must be a string, a dict or a list of those, not {type(value).__name__}"
        )
    if not value:
        raise InputError("messages is an empty list; give at least one message")
    default = time_of(timestamp) or utc_now()
    return [_message(m, default, f"message {i}" if len(value) > 1 else "message") for i, m in enumerate(value)]


def _message(value: Mapping[str, Any] | str, default: str, what: str) -> tuple[Message, bool]:
    if isinstance(value, str):
        return Message("user", text_of(value, f"text of the {what}"), default), False
    if not isinstance(value, Mapping):
        raise TypeError(f"the {what} must be a string or a dict, not {type(value).__name__}")
    unknown = sorted(set(map(str, value)) - _MESSAGE_KEYS)
    if unknown or "content" not in value:
        problem = f"has the unknown key {unknown[0]!r}" if unknown else "has no 'content'"
        raise InputError(f"the {what} {problem}; its keys are {', '.join(sorted(_MESSAGE_KEYS))}")
    role = value.get("role", "user")
    if role not in _ROLES:
        raise InputError(f"the {what} has the role {role!r}; give one of {', '.join(_ROLES)}")
    name = value.get("name")
    message = Message(
        role=role,
        content=text_of(value["content"], f"content of the {what}"),
        timestamp=time_of(value.get("timestamp"), f"timestamp of the {what}") or default,
        name=text_of(name, f"name of the {what}") if name is not None else None,
        metadata=metadata_of(value.get("metadata")),
    )
    return message, bool(value.get("recalled", False))
