"""What other chat programs write, as messages that `Memory.add` takes.

Knows the shapes of ChatGPT's, Claude's and Telegram's exports and of OpenAI's messages, and
WhatsApp's own notices and marks in a chat's log, which change when those programs do. Knows nothing
of files, stores and the formats of `importers`.

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

__all__ = ["ROLES", "ChatLog", "Program", "conversations", "is_notice", "program_of", "said_by"]
__all__ += ["said_in", "visible", "without_marks"]

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


# -- what WhatsApp itself says in a log ------------------------------------------------------------

# The first line of a notice by WhatsApp, known by its form or by WhatsApp's words in English,
# German, Spanish, French, Italian, Portuguese and Dutch.
_NOTICE = re.compile(
    r"""<(?!/?[a-z][a-z0-9]*\s*/?>)[^<>]{2,99}>  # <Media omitted>, in any language; but not <br>
    | (?:media|image|video|audio|gif|sticker|document|photo)\ omitted
    | (?-i:null)  # of a message that is shown once
    | [A-Z]{3,5}-\d{8}-WA\d{4,}\.\w{2,5}\ \([^()]{2,40}\)  # IMG-….jpg (file attached)
    | .{1,200}\.\w{2,5}\ •\ .*  # Plan.pdf • 3 pages document omitted
    | .{1,200}\.\w{2,5}\ \((?:file\ attached|Datei\ angehängt|archivo\ adjunto|fichier\ joint
        |file\ allegato|arquivo\ anexado|ficheiro\ anexado|bestand\ bijgevoegd)\)
    | (?:this\ message\ was\ deleted|you\ deleted\ this\ message
        |diese\ nachricht\ wurde\ gelöscht|du\ hast\ diese\ nachricht\ gelöscht
        |se\ eliminó\ este\ mensaje|este\ mensaje\ fue\ eliminado|eliminaste\ este\ mensaje
        |ce\ message\ a\ été\ supprimé|vous\ avez\ supprimé\ ce\ message
        |questo\ messaggio\ è\ stato\ eliminato|hai\ eliminato\ questo\ messaggio
        |(?:essa|esta)\ mensagem\ foi\ apagada|você\ apagou\ esta\ mensagem
        |dit\ bericht\ is\ verwijderd|u\ hebt\ dit\ bericht\ verwijderd
        |missed\ (?:group\ )?(?:voice|video)\ call|verpasster\ (?:sprach|video)anruf
        |(?:llamada|videollamada)\ perdida|appel\ (?:vocal|vidéo)\ manqué
        |(?:chiamata|videochiamata)\ persa|(?:chamada|ligação)\ de\ (?:voz|vídeo)\ perdida
        |gemiste\ (?:spraak|video)oproep)\.?
    | (?:messages\ and\ calls\ are\ end-to-end\ encrypted
        |nachrichten\ und\ anrufe\ sind\ ende-zu-ende-verschlüsselt
        |los\ mensajes\ y\ las\ llamadas\ están\ cifrados\ de\ extremo\ a\ extremo
        |les\ messages\ et\ les\ appels\ sont\ chiffrés\ de\ bout\ en\ bout
        |i\ messaggi\ e\ le\ chiamate\ sono\ crittografati\ end-to-end
        |as\ mensagens\ e\ (?:as\ )?(?:chamadas|ligações)\ são\ protegidas
        |berichten\ en\ gesprekken\ zijn\ end-to-end\ versleuteld)\b.*
    | this\ message\ was\ deleted\ by\ admin\b.{0,99}
    | you\ deleted\ this\ message\ as\ admin
    | diese\ nachricht\ wurde\ von\ admin\ .{1,99}\ gelöscht\.?
    | waiting\ for\ this\ message(?:\.\ this\ may\ take\ a\ while)?\.?
    | warten?\ auf\ diese\ nachricht
        (?:\.\ (?:dies|das)\ kann\ (?:etwas|einen\ moment|eine\ weile)\ dauern)?\.?""",
    re.X | re.I,
)
# A name is cut at a colon within quotation marks in `Ruth created group "Brandts: family"`.
_OPENED = re.compile(r"""(?P<before>.*)\ (?:"|“|„|«\ ?)[^"“”„«»]+""", re.X)
_CLOSED = re.compile(r"""[^"“”„«»]*["”“»](?P<after>.*)""")
_ABOUT_GROUP = re.compile(
    r"""\b(?:created|changed|erstellt|geändert|creó|creaste|cambió|cambiaste|créé|modifié
    |changé|creato|modificato|cambiato|criou|mudou|alterou|gemaakt|aangemaakt|gewijzigd)\b""",
    re.X | re.I,
)
_EDITED = re.compile(
    r"<(?=[^<>]*\b(?:message|nachricht|mensaje|messaggio|mensagem|bericht)\b)"
    r"[^<>]*\b(?:edited|bearbeitet|editó|editad[oa]|modificato|modifié|bewerkt)\b[^<>]*>",
    re.I,
)
_MARK = "\u200e"
"""iOS puts it before what WhatsApp itself says: `Name: <mark>image omitted`."""
_OTHER_MARKS = re.compile(rf"(?<!: ){_MARK}(?!<)")
_INVISIBLE = dict.fromkeys(map(ord, "\u200f\u202a\u202c\ufeff")) | {0x202F: " ", 0xA0: " "}


def visible(text: str) -> str:
    """A log without the invisible characters that stand for nothing."""
    return _OTHER_MARKS.sub("", text.translate(_INVISIBLE))


def said_in(lines: Sequence[str]) -> str:
    """The text of a message without WhatsApp's notices; "" if nothing is left.

    The notice of a photo is the first line; the photo's caption follows in other lines.
    """
    first, rest = lines[0], "\n".join(lines[1:])
    notice = first.startswith(_MARK) or _NOTICE.fullmatch(first.strip())
    text = (rest if notice else f"{first}\n{rest}").strip()
    before, bracket, last = text.rpartition("<")  # "… <This message was edited>", or a file of iOS
    marked = before.endswith(_MARK) and last.endswith(">")
    if len(last) < 100 and (marked or _EDITED.fullmatch(bracket + last)):
        text = before
    return text.replace(_MARK, "").strip()


def is_notice(name: str, text: str) -> bool:
    """Whether a name and a text are a notice of what was done to a group."""
    opened, closed = _OPENED.fullmatch(name), _CLOSED.fullmatch(text)
    if not (opened and closed):
        return False
    last = closed["after"].split()[-1:]  # the verb, in German and Dutch
    return _ABOUT_GROUP.search(" ".join([opened["before"], *last])) is not None
