"""Checks and normalises what callers pass in, before anything is stored.

Knows types and limits, no store and no model. A refusal is an InputError (a TypeError for a wrong
type) that names what was given, what is allowed and what to do.
"""

from __future__ import annotations

import json
import operator
import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from edgemem.errors import InputError
from edgemem.results import ImagePart, Message, Scope, to_utc, utc_now

__all__ = ["MAX_COUNT", "MAX_ID_CHARS", "NO_WORDS", "THOUGHT_TAGS", "count_of", "holding"]
__all__ += ["holds_nul", "id_of", "ids_of", "image_part", "infer_of", "messages_of", "metadata_of"]
__all__ += ["of_type", "scope_of", "shown", "spaced", "text_of", "threshold_of", "time_of", "utf8"]
__all__ += ["without_thoughts"]

MAX_TEXT_CHARS = 1_048_576
MAX_METADATA_BYTES = 65_536
MAX_ID_CHARS = 256
MAX_COUNT = 1_000_000_000
MAX_IMAGES = 10
"""Most images in one call. Each may take as much memory as `images` allows."""
NO_WORDS = "[image]"
"""The content of a message that has images and no text."""
THOUGHT_TAGS = "<think>", "</think>"
"""The tags around a model's reasoning before its answer."""
_THOUGHT = re.compile(r"<think>.*?(?:</think>\s*|\Z)|</think>\s*", re.DOTALL)
_ROLES = ("user", "assistant", "system", "tool")
_MESSAGE_KEYS = frozenset({"role", "content", "name", "timestamp", "metadata", "recalled"})


def text_of(value: object, what: str = "text") -> str:
    """Returns `value` if it is a text that can be stored.

    what: names the text in errors. Raises InputError on text that is blank, has a NUL or half of a
    surrogate pair, or is longer than MAX_TEXT_CHARS; TypeError on what is not a string.
    """
    text: str = of_type(value, str, f"the {what} must be a string")
    if not text.strip():
        raise InputError(f"the {what} is empty; give at least one character that is no space")
    if len(text) > MAX_TEXT_CHARS:
        raise InputError(
            f"the {what} has {len(text):,} characters; at most {MAX_TEXT_CHARS:,} are allowed: "
            + ("shorten it" if what == "query" else "store it in parts")
        )
    if "\0" in text:
        raise InputError(
            f"the {what} has a NUL character at {text.index(chr(0))}; remove it (binary data "
            "cannot be remembered)"
        )
    utf8(text, what)
    return text


def utf8(text: str, what: str = "text") -> bytes:
    """Returns a text as UTF-8. Raises InputError if it has half of a surrogate pair."""
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as exc:
        raise InputError(
            f"the {what} has half of a surrogate pair at character {exc.start}, as text has that "
            "is not UTF-8; convert it to UTF-8, or remove that character"
        ) from exc


def shown(value: object, most: int = 80) -> str:
    """Returns a value as a message shows it: its repr, of which at most so many characters."""
    try:
        text = repr(value)
    except (RecursionError, ValueError):  # nested too deep, or an integer of too many digits
        text = f"a value too long to show ({type(value).__name__})"
    return text if len(text) <= most else text[: most - 3] + "..."


def spaced(text: str) -> str:
    """Returns a text with one space for each run of white space."""
    return " ".join(text.split())


def holding(words: str) -> Callable[[str], bool]:
    """Returns a function that tells whether a text has these words side by side, in any case.

    Accents and apostrophes of any form are the same. Raises InputError if there is no word.
    """

    def folded(text: str) -> str:
        return unicodedata.normalize("NFC", text.replace("’", "'").casefold())

    sought = r"\W+".join(map(re.escape, folded(words).split()))
    if not sought:
        raise InputError("Give at least one word to look for.")
    pattern = re.compile(rf"(?<!\w){sought}(?!\w)")
    return lambda text: pattern.search(folded(text)) is not None


def time_of(value: datetime | str | float | None, what: str = "timestamp") -> str | None:
    """Returns a time as it is stored, or None. A time without a zone is in this machine's zone."""
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
            f"{what} {shown(value)} is no time; give ISO-8601 text such as "
            "2024-05-01T10:00:00+00:00"
        ) from exc


def metadata_of(value: Mapping[str, Any] | None) -> dict[str, Any]:
    """Returns metadata as a dict of at most MAX_METADATA_BYTES of JSON.

    Values that JSON cannot give back unchanged (tuples, keys that are not strings) are refused.
    """
    if value is None:
        return {}
    given = dict(of_type(value, Mapping, "metadata must be a mapping"))
    found: dict[str, Any]
    try:
        text = json.dumps(given, ensure_ascii=False, allow_nan=False)
        size = len(text.encode("utf-8"))
        found = json.loads(text)
        if found != given:
            raise ValueError("a key is no string, or a list is a tuple")
        nul = "\\u0000" in text and holds_nul(found)
    except (TypeError, ValueError, RecursionError) as exc:
        raise InputError(
            f"the metadata cannot be stored as JSON ({exc}); give strings, finite numbers, "
            "booleans, None, and lists or dicts (with strings for keys) of those"
        ) from exc
    if nul:
        raise InputError("the metadata holds a NUL character in a key or a string; remove it")
    if size > MAX_METADATA_BYTES:
        raise InputError(
            f"the metadata has {size:,} bytes as JSON; at most {MAX_METADATA_BYTES:,} are allowed: "
            "store large values as memories, or outside"
        )
    return found


def holds_nul(value: Any) -> bool:
    """Whether any string or key of a JSON value has a NUL character."""
    if isinstance(value, str):
        return "\0" in value
    if isinstance(value, dict):
        return any(holds_nul(k) or holds_nul(v) for k, v in value.items())
    return isinstance(value, list) and any(map(holds_nul, value))


def id_of(value: object) -> str:
    """Returns the id of a memory. Only its type is checked: the memory may not exist."""
    id: str = of_type(value, str, "the id of a memory must be a string")
    return id


def of_type(value: Any, kind: Any, what: str, hint: str = "") -> Any:
    """Returns a value of this type. what: says what it must be; hint: ends the error."""
    if not isinstance(value, kind):
        raise TypeError(f"{what}, not {type(value).__name__}{hint}")
    return value


def ids_of(value: object) -> list[str]:
    """Returns the ids of memories, given as one or as several."""
    if isinstance(value, str):
        return [value]
    if not isinstance(value, Iterable) or isinstance(value, bytes):
        raise TypeError(f"ids must be a string or several of them, not {type(value).__name__}")
    return [id_of(id) for id in value]


def count_of(value: object, what: str, *, least: int = 1) -> int:
    """Returns a whole number from `least` to MAX_COUNT. what: names it in errors."""
    if isinstance(value, bool):
        raise TypeError(f"{what} must be a whole number, not bool")
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError as exc:
        raise TypeError(f"{what} must be a whole number, not {type(value).__name__}") from exc
    if not least <= number <= MAX_COUNT:
        raise InputError(
            f"{what} is {shown(number)}; give a whole number from {least} to {MAX_COUNT:,}"
        )
    return number


def threshold_of(value: object) -> float | None:
    """Returns the lowest score that a search may return, or None."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"threshold must be a number, not {type(value).__name__}")
    if not 0 <= value <= 1:
        raise InputError(
            f"threshold is {shown(value)}; scores lie in [0, 1], give a number among them"
        )
    return float(value)


def infer_of(value: bool | Literal["later"]) -> bool | Literal["later"]:
    """Returns whether facts are taken from messages: at once, never or later."""
    if not isinstance(value, bool) and not (isinstance(value, str) and value == "later"):
        raise InputError(f'infer is {shown(value)}; give True, False or "later"')
    return value


def scope_of(
    user_id: str | None, agent_id: str | None, run_id: str | None, *, needed_by: str | None = None
) -> Scope:
    """Returns the scope of these ids, each checked if it is given.

    needed_by: the method that must have one of them. Raises InputError if it has none.
    """
    for name, value in (("user_id", user_id), ("agent_id", agent_id), ("run_id", run_id)):
        if value is not None:
            _short(value, name)
    scope = Scope(user_id, agent_id, run_id)
    if needed_by is not None and scope == Scope():
        raise InputError(
            f"{needed_by} needs user_id, agent_id or run_id; use reset() to empty the whole store"
        )
    return scope


def _short(value: object, what: str) -> str:
    text = text_of(value, what)
    if len(text) > MAX_ID_CHARS:
        raise InputError(
            f"the {what} has {len(text):,} characters; at most {MAX_ID_CHARS} are allowed: shorten "
            "it"
        )
    return text


def messages_of(
    value: str | Mapping[str, Any] | Sequence[Mapping[str, Any] | str],
    timestamp: datetime | str | float | None,
    images: Sequence[bytes | str | Path] = (),
) -> list[tuple[Message, bool]]:
    """Returns the messages in order, each with its `recalled` flag.

    value, timestamp, images: as for `Memory.add`; with images, `value` may be empty. A recalled
    message is stored as a turn, and no search finds it. A chat marks its own answers so, and
    questions: they repeat memories or ask for them. An image part may have a "caption". An
    assistant's `<think>…</think>` is left out, and so is a message that has nothing else.
    """
    if isinstance(value, str | Mapping):
        value = [value]
    if not isinstance(value, Sequence) or isinstance(value, bytes):
        raise TypeError(
            f"messages must be a string, a dict or a list of those, not {type(value).__name__}"
        )
    given = _images_of(images)
    if not value and not given:
        raise InputError("messages is an empty list; give at least one message")
    default = time_of(timestamp) or utc_now()
    what = "message {}" if len(value) > 1 else "message"
    read = (_message(m, default, what.format(i)) for i, m in enumerate(value, 1))
    found = [message for message in read if message is not None]
    if given:
        last, recalled = found.pop() if found else (Message("user", NO_WORDS, default), False)
        found.append((replace(last, images=(*last.images, *given)), recalled))
    count = sum(len(message.images) for message, _ in found)
    if count > MAX_IMAGES:
        raise InputError(f"{count} images were given; at most {MAX_IMAGES} go into one call")
    return found


def _images_of(images: Sequence[bytes | str | Path]) -> tuple[ImagePart, ...]:
    if isinstance(images, str | bytes) or not isinstance(images, Sequence):
        raise TypeError(f"images must be a list of paths or bytes, not {type(images).__name__}")
    what = "an image must be a path or bytes"
    return tuple(ImagePart(of_type(image, str | bytes | Path, what)) for image in images)


def _message(
    value: Mapping[str, Any] | str, default: str, what: str
) -> tuple[Message, bool] | None:
    if isinstance(value, str):
        return Message("user", text_of(value, f"text of the {what}"), default), False
    of_type(value, Mapping, f"the {what} must be a string or a dict")
    unknown = sorted(set(map(str, value)) - _MESSAGE_KEYS)
    if unknown or "content" not in value:
        problem = f"has the unknown key {unknown[0]!r}" if unknown else "has no 'content'"
        raise InputError(f"the {what} {problem}; its keys are {', '.join(sorted(_MESSAGE_KEYS))}")
    role = value.get("role", "user")
    if role not in _ROLES:
        raise InputError(f"the {what} has the role {shown(role)}; give one of {', '.join(_ROLES)}")
    name = value.get("name")
    content, images = _content(value["content"], f"content of the {what}")
    if role == "assistant" and not (content := without_thoughts(content)).strip():
        return None
    message = Message(
        role=role,
        content=content,
        timestamp=time_of(value.get("timestamp"), f"timestamp of the {what}") or default,
        name=_short(name, f"name of the {what}") if name is not None else None,
        metadata=metadata_of(value.get("metadata")),
        images=images,
    )
    return message, bool(value.get("recalled", False))


def _content(value: object, what: str) -> tuple[str, tuple[ImagePart, ...]]:
    """Returns a message's text and images. One part without a list is valid, as in mem0."""
    if not isinstance(value, Mapping | list | tuple):
        return text_of(value, what), ()
    texts: list[Any] = []
    images: list[ImagePart] = []
    for part in [value] if isinstance(value, Mapping) else value:
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind == "text":
            texts.append(part.get("text"))
        elif kind == "image_url":
            images.append(image_part(part, what))
        else:
            raise InputError(
                f"the {what} has a part of the type {shown(kind)}; give parts of the type text, "
                "or image_url with a data URI"
            )
    if images and all(isinstance(text, str) and not text.strip() for text in texts):
        return NO_WORDS, tuple(images)
    return "\n".join(text_of(text, what) for text in texts or [""]), tuple(images)


def image_part(part: Mapping[str, Any], what: str) -> ImagePart:
    """Returns the image of an OpenAI content part. Raises InputError unless it is a data URI."""
    # Inline bytes only: by a path or an address, a message's author could read any file or server.
    url = part.get("image_url")
    url = url.get("url") if isinstance(url, Mapping) else url
    if not isinstance(url, str) or not url[:5].lower() == "data:":
        raise InputError(
            f"the {what} has an image_url that is no data URI ({shown(url, 60)}); images are never "
            "fetched: give its bytes as data:image/png;base64,…, or its file with `images`"
        )
    caption = part.get("caption")
    return ImagePart(url, None if caption is None else text_of(caption, f"caption in the {what}"))


def without_thoughts(text: str) -> str:
    """Returns a model's text without `<think>…</think>` blocks, closed or not.

    The space after a block is removed too. While a text is streamed, the result only grows, apart
    from the beginning of a tag at its end (see `runtime.generation.held_back`).
    """
    while (rest := _THOUGHT.sub("", text)) != text:
        text = rest
    return text
