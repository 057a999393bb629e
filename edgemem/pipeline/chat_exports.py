"""Conversations in the JSON of other chat programs, as messages that `Memory.add` takes.

Knows the shapes of ChatGPT's, Claude's and Telegram's exports and of OpenAI's messages, which
change when those programs do. Knows nothing of files, stores and the formats of `importers`.

The user's messages have the role "user" and no name, the model's have the role "assistant"; so no
facts are taken from what a model said. People in Telegram are named, as in a chat log.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from edgemem.errors import InputError
from edgemem.inputs import MAX_ID_CHARS, shown
from edgemem.results import to_utc

__all__ = ["ROLES", "ChatLog", "Program", "conversations", "program_of", "said_by"]
__all__ += ["without_marks"]

Program = Literal["chatgpt", "claude", "telegram", "openai"]
_ASSISTANTS = {"assistant", "ai", "bot", "model"}
ROLES = frozenset({*_ASSISTANTS, "user"})
"""What stands for a name where nobody is named, in lower case."""
_TITLE_CHARS = 200


@dataclass(frozen=True)
class ChatLog:
    """One conversation.

    dated: whether its messages have times. left_out: how many notices, omitted media, and lines or
    messages without words or a speaker were dropped.
    """

    messages: list[dict[str, Any]]
    dated: bool
    left_out: int


@dataclass(frozen=True)
class _Said:
    """A message as its program has it; role, name, text and time are still unchecked."""

    role: object
    text: str
    time: object
    name: object = None


def without_marks(text: str) -> str:
    """A text without what a program adds: ChatGPT's citations, and the votes of WhatsApp's polls,
    whose number changes from one export to the next."""
    return _POLL.sub("", _VOTES.sub(r"\1", _CITED.sub("", text))).strip()


_CITED = re.compile(r" ?(?:\ue200[^\ue201]*\ue201|【[^【】\n]{0,40}†[^【】\n]{0,99}】)")
_POLL = re.compile(r"\A(?:POLL|UMFRAGE):\n")
_VOTES = re.compile(r"^(OPTION: .*) \(\d+ [^()\n]{1,20}\)$", re.M)


def said_by(name: str, content: str, time: str | None) -> dict[str, Any]:
    """A message of a named person; of nobody named if the name is one of ROLES."""
    role = "assistant" if name.casefold() in _ASSISTANTS else "user"
    message: dict[str, Any] = {"role": role, "content": content}
    if name.casefold() not in ROLES:
        message |= {"name": name, "metadata": {"speaker": name}}
    if time is not None:
        message["timestamp"] = time
    return message


def program_of(row: Mapping[str, Any]) -> Program | None:
    """The program that writes objects of this shape, or None. row: a file's object, or the first of
    its list."""
    if "mapping" in row:
        return "chatgpt"
    if "chat_messages" in row:
        return "claude"
    if "messages" in row:
        return "telegram" if "type" in row else "openai"
    if isinstance(row.get("chats"), Mapping):
        return "telegram"
    return "openai" if "role" in row and "content" in row and "type" not in row else None


def conversations(raw: Any, program: str, where: str) -> list[ChatLog]:
    """The conversations of a file's JSON, each in order and without messages that have no words.

    raw: an object or a list of them. Messages of systems and tools are left out too. A message
    without a time takes the time of the one before it; the first takes that of the conversation.
    Raises InputError, naming the conversation, on another shape, a bad time, or no message.
    """
    rows = raw if isinstance(raw, list) else [raw]
    if program == "telegram":
        rows = [chat for row in rows for chat in _chats(row)]
    elif program == "openai" and not any("messages" in row for row in _objects(rows)):
        rows = [{"messages": rows}]
    logs = []
    for number, row in enumerate(rows, 1):
        place = f"conversation {number} of {where}"
        logs.append(_log([*_READERS[program](row, place)], row, place))
    if not any(log.messages for log in logs):
        raise InputError(f"{where} holds no message of a person or an assistant that has words.")
    if program == "chatgpt" and (told := _profiles(rows)):
        logs.append(_log(told, {"title": "About me"}, where))
    return logs


def _log(said: Sequence[_Said], row: Mapping[str, Any], where: str) -> ChatLog:
    title = row.get("title") or row.get("name")
    about = {"conversation": _storable(title)[:_TITLE_CHARS]} if isinstance(title, str) else {}
    time = _time(row.get("create_time") or row.get("created_at"), where)
    messages: list[dict[str, Any]] = []
    for one in said:
        time = _time(one.time, where) or time
        text, name = without_marks(_storable(one.text)), one.name
        if one.role not in ("user", "assistant") or not text:
            continue
        # A model with a name would be taken for a person.
        named = isinstance(name, str) and name.strip() and one.role == "user"
        speaker = _storable(str(name if named else one.role)).strip()
        message = said_by(speaker[:MAX_ID_CHARS], text, time)
        messages.append({**message, "metadata": message.get("metadata", {}) | about})
    dated = all("timestamp" in message for message in messages)
    return ChatLog(messages, dated, len(said) - len(messages))


def _time(value: object, where: str) -> str | None:
    """A checked time: text stays as it is, and seconds since 1970 become ISO-8601 UTC."""
    if value is None:
        return None
    try:
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise ValueError("no text or number")
        utc = to_utc(value)
    except ValueError as exc:
        raise InputError(
            f"{where} has a message of the time {shown(value)}; it must be ISO-8601, or seconds "
            "since 1970."
        ) from exc
    return value.strip() if isinstance(value, str) else utc


def _storable(text: str) -> str:
    """A text of JSON without NUL characters and halves of surrogate pairs."""
    return text.replace("\0", "").encode("utf-8", "replace").decode()


def _objects(values: Iterable[Any]) -> Iterator[Mapping[str, Any]]:
    return (value for value in values if isinstance(value, Mapping))


def _held(row: Any, key: str, kind: type, where: str) -> Any:
    """The value of an object's key. Raises InputError if it is of another kind."""
    value = row.get(key) if isinstance(row, Mapping) else None
    if not isinstance(value, kind):
        what = "list" if kind is list else "object"
        raise InputError(f"{where} has no {what} {key!r}. Export it again, or give another file.")
    return value


def _joined(value: Any, glue: str) -> str:
    """A text, or the joined texts of a list of texts and of objects with a "text"."""
    parts = value if isinstance(value, list) else [value]
    texts = (part.get("text") if isinstance(part, Mapping) else part for part in parts)
    return glue.join(text for text in texts if isinstance(text, str))


# -- each program's shape ------------------------------------------------------------------------


def _chatgpt(row: Any, where: str) -> Iterator[_Said]:
    """The branch that ends in the current node; edits and second tries left other branches."""
    mapping: dict[str, Any] = _held(row, "mapping", dict, where)
    node = row.get("current_node")
    if not isinstance(node, str) or node not in mapping:
        node = next(reversed(mapping), None)
    branch: dict[str, Any] = {}
    while isinstance(node, str) and node in mapping and node not in branch:
        branch[node] = mapping[node]
        node = branch[node].get("parent") if isinstance(branch[node], Mapping) else None
    for held in _objects(reversed(branch.values())):
        message = held.get("message")
        if isinstance(message, Mapping):
            author, content = message.get("author"), message.get("content")
            role = author.get("role") if isinstance(author, Mapping) else None
            parts = content.get("parts") if isinstance(content, Mapping) else None
            shown = message.get("recipient") in (None, "all")  # else a tool is called
            if isinstance(about := message.get("metadata"), Mapping):
                shown = shown and not about.get("is_visually_hidden_from_conversation")
            yield _Said(role, _joined(parts, "\n") if shown else "", message.get("create_time"))


def _profiles(rows: Iterable[Any]) -> list[_Said]:
    """What users wrote about themselves in their settings, each wording once, at its first time.

    Each conversation holds it as a hidden message. Here it becomes a conversation of its own.
    """
    found: dict[str, float] = {}
    for row in _objects(rows):
        time = row.get("create_time")
        for node in _objects(row["mapping"].values()):
            held: Any = node
            for key in ("message", "metadata", "user_context_message_data", "about_user_message"):
                held = held.get(key) if isinstance(held, Mapping) else None
            if isinstance(held, str) and isinstance(time, int | float):
                found[held] = min(time, found.get(held, time))
    by_time = sorted(found.items(), key=lambda each: each[1])
    return [_Said("user", text, time) for text, time in by_time]


def _claude(row: Any, where: str) -> Iterator[_Said]:
    for message in _objects(_held(row, "chat_messages", list, where)):
        sender = message.get("sender")
        text = _joined(message.get("content"), "\n").strip() or _joined(message.get("text"), "")
        yield _Said("user" if sender == "human" else sender, text, message.get("created_at"))


def _chats(row: Any) -> list[Any]:
    """The chats of Telegram's file: one, or those of an account."""
    chats = row.get("chats") if isinstance(row, Mapping) else None
    held = chats.get("list") if isinstance(chats, Mapping) else None
    return held if isinstance(held, list) else [row]


def _telegram(row: Any, where: str) -> Iterator[_Said]:
    for message in _objects(_held(row, "messages", list, where)):
        name = message.get("from") or message.get("from_id")  # of a deleted account the id is left
        known = isinstance(name, str) and name.strip() and message.get("type") == "message"
        seconds = message.get("date_unixtime")  # "date" is in the zone of who exported it
        exact = isinstance(seconds, str) and seconds.isdecimal() and len(seconds) < 13
        time = int(str(seconds)) if exact else message.get("date")
        yield _Said("user" if known else None, _joined(message.get("text"), ""), time, name)


def _openai(row: Any, where: str) -> Iterator[_Said]:
    for message in _objects(_held(row, "messages", list, where)):
        text, time = _joined(message.get("content"), "\n"), message.get("timestamp")
        yield _Said(message.get("role"), text, time, message.get("name"))


_READERS: dict[str, Callable[[Any, str], Iterator[_Said]]] = {
    "chatgpt": _chatgpt,
    "claude": _claude,
    "telegram": _telegram,
    "openai": _openai,
}
