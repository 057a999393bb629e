"""Conversations in files, as messages that `Memory.add` takes.

Knows edgemem's own export (which it only recognises; `Memory.import_jsonl` reads it), LoCoMo's
JSON, Mem-Gallery's, and plain chat logs, such as WhatsApp's; and the conversation that `edgemem
demo` plays. What other chat programs write as JSON is read by `chat_exports`. Knows nothing of
stores, models or the command line.

`import_ids` gives every message of a conversation without times an id.
"""

from __future__ import annotations

import hashlib
import json
import re
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import groupby, pairwise
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple

from edgemem.errors import InputError
from edgemem.inputs import shown
from edgemem.pipeline.chat_exports import (
    ROLES,
    ChatLog,
    Program,
    conversations,
    is_notice,
    program_of,
    said_by,
    said_in,
    visible,
    without_marks,
)
from edgemem.results import to_utc

__all__ = ["BATCH_TURNS", "FORMS", "IMPORT_ID", "SHARES", "Demo", "Format", "batches"]
__all__ += ["detect_format", "import_ids", "read_chat_log", "read_conversations"]
__all__ += ["parsed", "read_demo", "read_json_lines", "read_locomo", "read_mem_gallery", "spaced"]
__all__ += ["unreadable"]

Format = Literal["edgemem", "locomo", "mem-gallery", "chat", Program, "memories"]
FORMS = (
    "Give a chat log with lines such as `[2024-05-01 10:00] Name: text`, `Name: text` or "
    "WhatsApp's (also in its .zip); the conversations.json of ChatGPT or Claude; Telegram's "
    'result.json; OpenAI\'s {"messages": [{"role", "content"}]}, or lines of it; LoCoMo\'s or '
    'Mem-Gallery\'s JSON; lines of {"memory": TEXT}, a list of it, or '
    'mem0\'s {"results": […]}; or an export of edgemem.'
)
"""The forms that are read, for errors."""

MAX_ZIPPED_BYTES = 67_108_864
"""Most text that is read out of a .zip."""

BATCH_TURNS = 64
"""Turns stored in one transaction when no facts are taken from them."""

SHARES = "[shares a photo: "
"""What stands between a turn of LoCoMo and the caption of its photo."""

IMPORT_ID = "import_id"
"""The metadata key of a message's id, by which a second import recognises it (see `reimport`)."""

SECONDS_PER_TURN = 5
"""Turns of a session that has one date only are set this far apart, so that their order holds."""


@dataclass(frozen=True)
class DemoSession:
    """One sitting of a demo's conversation. date: ISO-8601 UTC."""

    date: str
    messages: list[dict[str, Any]]


@dataclass(frozen=True)
class Demo:
    """A conversation to play, and questions with the answers that count as right."""

    user_id: str
    sessions: list[DemoSession]
    questions_date: str
    questions: list[dict[str, Any]]


def spaced(start: str | datetime, position: int) -> str:
    """The time of a session's turn number `position` (from 0), as ISO-8601 UTC."""
    begin = datetime.fromisoformat(to_utc(start))
    try:
        return to_utc(begin + timedelta(seconds=SECONDS_PER_TURN * position))
    except OverflowError as exc:
        raise InputError(
            f"A session starts at {start}, and its turns go past the year 9999. Correct its date."
        ) from exc


# -- files ---------------------------------------------------------------------------------------


def detect_format(path: str | Path) -> Format:
    """The format of a file; an empty one counts as an export of edgemem.

    An export is recognised by its first line, so it is not read whole. "memories": those of another
    program (see `pipeline.foreign`); every folder counts as that. Raises InputError if the file is
    unreadable, or is JSON in none of the forms.
    """
    if Path(path).is_dir():
        return "memories"
    try:
        with open(path, "rb") as file:
            first = file.readline().strip()
    except (OSError, ValueError) as exc:
        raise unreadable(path, exc) from exc
    if first.startswith(b"SQLite format 3\0"):
        raise InputError(
            f"{path} is an SQLite database; of a store, `edgemem export --db {path} FILE` writes "
            "the file to import"
        )
    try:
        row = json.loads(first)
    except (ValueError, RecursionError):
        text = _read_text(path).strip()
        if not text:
            return "edgemem"
        try:
            row = json.loads(text) if text[0] in "{[" else None
        except (ValueError, RecursionError) as exc:
            if _BEGINS_AS_JSON.match(text):
                raise InputError(
                    f"{path} begins as JSON, but is not: {exc}. It may have been cut off; export "
                    "or copy it again."
                ) from exc
            return "chat"  # such as one that begins with "[2024-05-01 10:00]"
    if isinstance(row, Mapping) and isinstance(results := row.get("results"), list):
        row = results  # of mem0
        if not results:
            return "memories"
    if isinstance(row, list):
        row = row[0] if row else None
    if not isinstance(row, Mapping):
        return "chat"
    if "memory" in row and "type" not in row:
        return "memories"
    if "multi_session_dialogues" in row:
        return "mem-gallery"
    if "conversation" in row:
        return "locomo"
    if program := program_of(row):
        return program
    if row.get("type") in _EXPORTED:
        return "edgemem"
    raise InputError(f"{path} is JSON of no form that is read. {FORMS}")


_BEGINS_AS_JSON = re.compile(r'\[?\s*\{\s*"')
_EXPORTED = ("sealed", "turn", "memory", "history", "pending", "relation", "never_send", "image")


def unreadable(path: str | Path, exc: Exception) -> InputError:
    """The error to raise for a file that cannot be opened or read."""
    why = exc.strerror if isinstance(exc, OSError) else exc
    return InputError(f"Cannot read {path}: {why}. Give a file that you may read.")


def _read_text(path: str | Path) -> str:
    try:
        with open(path, "rb") as file:
            zipped = file.read(4) == b"PK\x03\x04"
            file.seek(0)
            return (_read_zip(path, file) if zipped else file.read()).decode("utf-8-sig")
    except UnicodeDecodeError as exc:
        raise InputError(
            f"{path} is not UTF-8 text: byte {exc.start} is {exc.object[exc.start]:#04x}. "
            "Save it as UTF-8 and try again."
        ) from exc
    except InputError:
        raise
    except (OSError, ValueError) as exc:
        raise unreadable(path, exc) from exc


def _read_zip(path: str | Path, file: IO[bytes]) -> bytes:
    """The bytes of the one chat in a .zip of WhatsApp, ChatGPT or Claude; no media are read."""
    try:
        with zipfile.ZipFile(file) as archive:
            texts = [info for info in archive.infolist() if info.filename.endswith(".txt")]
            found = [info for info in archive.infolist() if _is_chat(info.filename)] or texts
            if len(found) != 1:
                raise InputError(
                    f"{path} holds {len(found)} chats where one is expected. Unpack it, and import "
                    "the file of each chat, such as WhatsApp's _chat.txt."
                )
            # Other ways of packing have no bound on what a few bytes become in one step.
            if found[0].compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise zipfile.BadZipFile("it is packed in an unusual way")
            with archive.open(found[0]) as text:
                data = text.read(MAX_ZIPPED_BYTES + 1)
    except InputError:
        raise
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, RuntimeError, ValueError) as exc:
        raise InputError(
            f"{path} cannot be unpacked ({exc}). Unpack it, and import the chat's own file."
        ) from exc
    if len(data) > MAX_ZIPPED_BYTES:
        raise InputError(
            f"{found[0].filename} in {path} has more than {MAX_ZIPPED_BYTES:,} bytes. Unpack it, "
            "and import that file."
        )
    return data


def _is_chat(name: str) -> bool:
    name = name.rpartition("/")[2].casefold()
    whatsapp = name.endswith(".txt") and "whatsapp" in name and not name.startswith(".")
    return whatsapp or name in ("_chat.txt", "conversations.json")


def _read_json(path: str | Path) -> Any:
    return parsed(_read_text(path), str(path))


def parsed(text: str | bytes, where: str) -> Any:
    """The value of a JSON text. Raises InputError, naming the place, if it is no JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as exc:
        raise InputError(f"{where} is not JSON: {exc}. Correct it, or give another file.") from exc


def read_json_lines(path: str | Path) -> Any:
    """The JSON value of a file, or the list of its lines' values if its first line is JSON."""
    text = _read_text(path)
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as exc:
        lines = [(n, line) for n, line in enumerate(text.split("\n"), 1) if line.strip()]
        try:
            json.loads(lines[0][1])
        except (ValueError, RecursionError, IndexError):
            why = f"{path} is not JSON: {exc}. Correct it, or give another file."
            raise InputError(why) from exc
    return [parsed(line, f"line {n} of {path}") for n, line in lines]


# -- LoCoMo --------------------------------------------------------------------------------------

_LOCOMO_TIME = re.compile(
    r"\s*(\d{1,2}):(\d{2})\s*([ap])\.?m\.?\s+on\s+(\d{1,2})\s+([a-z]+),?\s+(\d{4})\s*", re.I
)


def read_locomo(path: str | Path) -> list[tuple[str, list[dict[str, Any]]]]:
    """The conversations of a LoCoMo file, `{"conversation": {…}}` or a list: (id, messages) each.

    A message's content is the turn's text, with the caption of its photo if it has one; its time
    is the session's, taken as UTC, plus a few seconds per turn. Raises InputError on another shape.
    """
    raw = _read_json(path)
    samples = raw if isinstance(raw, list) else [raw]
    stem = Path(path).stem
    return [
        _locomo_sample(sample, str(path), stem if len(samples) == 1 else f"{stem}-{number}")
        for number, sample in enumerate(samples, 1)
    ]


def _locomo_sample(raw: Any, where: str, name: str) -> tuple[str, list[dict[str, Any]]]:
    conversation = raw.get("conversation") if isinstance(raw, Mapping) else None
    if not isinstance(conversation, Mapping):
        raise InputError(f"{where} has no object 'conversation', so it is not a LoCoMo file.")
    sample_id = str(raw.get("sample_id") or name)
    numbers = sorted(int(m[1]) for key in conversation if (m := _SESSION.fullmatch(key)))
    messages: list[dict[str, Any]] = []
    for number in numbers:
        turns = conversation[f"session_{number}"]
        if not isinstance(turns, list):
            raise InputError(
                f"{where}: session_{number} is {shown(turns)}; it must be a list of turns."
            )
        if turns:
            start = _locomo_time(conversation.get(f"session_{number}_date_time"), where, number)
        for position, turn in enumerate(turns):
            if (texts := _texts(turn, "speaker", "text", "dia_id")) is None:
                raise InputError(
                    f"{where}: turn {position + 1} of session_{number} lacks one of the texts "
                    "'speaker', 'text' and 'dia_id'."
                )
            speaker, text, id = texts
            if caption := turn.get("blip_caption"):
                text = f"{text} {SHARES}{caption}]".strip()
            about = {"speaker": speaker, "session": number, "dia_id": id, "sample_id": sample_id}
            said = {"role": "user", "name": speaker, "content": text, "metadata": about}
            messages.append({**said, "timestamp": spaced(start, position)})
    return sample_id, messages


_SESSION = re.compile(r"session_(0|[1-9][0-9]{0,8})")


def _locomo_time(text: object, where: str, number: int) -> datetime:
    from edgemem.language import MONTHS  # a third of the time in which a command starts

    match = _LOCOMO_TIME.fullmatch(text) if isinstance(text, str) else None
    try:
        if match is None:
            raise ValueError("no such time")
        hour, minute, half, day, month, year = match.groups()
        time = _hour(int(hour), half), int(minute)
        number_of_month = MONTHS.index(month.capitalize()) + 1
        return datetime(int(year), number_of_month, int(day), *time, tzinfo=UTC)
    except ValueError as exc:
        raise InputError(
            f"{where}: session_{number}_date_time is {shown(text)}; it must look like "
            "'1:56 pm on 8 May, 2023'."
        ) from exc


# -- Mem-Gallery ---------------------------------------------------------------------------------


_ROUND = ("user", "assistant", "round")


def read_mem_gallery(path: str | Path, *, captions: bool = True) -> list[dict[str, Any]]:
    """The messages of a Mem-Gallery scenario: in each round the user's and the assistant's.

    captions: the user's text quotes the file's captions, which a large model wrote; else it only
    says that a photo was shared. Metadata: session, round and, of a user, `images`, the ids of the
    photos. Times: the session's day at noon UTC, plus a few seconds a message. Raises InputError on
    another shape.
    """
    raw = _read_json(path)
    messages: list[dict[str, Any]] = []
    for session in _list(raw, "multi_session_dialogues", str(path)):
        id = session.get("session_id") if isinstance(session, Mapping) else session
        where = f"{path}: session {shown(id)}"
        _date(session, "date", where)
        day = datetime.fromisoformat(session["date"].strip())  # as written, whatever zone is here
        noon = datetime(day.year, day.month, day.day, 12, tzinfo=UTC)
        rounds = _list(session, "dialogues", where)
        said = [each for round in rounds for each in _gallery_round(round, where, captions)]
        for position, message in enumerate(said):
            message["metadata"] = {"session": id, **message["metadata"]}
            message["timestamp"] = spaced(noon, position)
            messages.append(message)
    return messages


def _gallery_round(raw: Any, where: str, captions: bool) -> Iterator[dict[str, Any]]:
    """The messages of a round that have words: role, content and metadata."""
    if (texts := _texts(raw, *_ROUND)) is None:
        raise InputError(f"{where}: a round lacks one of the texts {', '.join(_ROUND)}.")
    user, assistant, number = texts
    images, quoted = raw.get("image_id") or [], raw.get("image_caption") or []
    if not all(
        isinstance(texts, list) and all(isinstance(text, str) for text in texts)
        for texts in (images, quoted)
    ):
        raise InputError(f"{where}: image_id or image_caption is no list of texts.")
    photos = [f": {caption}" for caption in quoted] if captions else [""] * len(images)
    user = " ".join([user, *(f"[shares a photo{photo}]" for photo in photos)]).strip()
    about = {"round": number, "images": images} if images else {"round": number}
    if user:
        yield {"role": "user", "content": user, "metadata": about}
    if assistant.strip():
        yield {"role": "assistant", "content": assistant, "metadata": {"round": number}}


# -- other chat programs -------------------------------------------------------------------------


def read_conversations(path: str | Path, program: str) -> list[ChatLog]:
    """The conversations that another chat program wrote, as JSON or as lines of it.

    program: one of `Program`. Raises InputError on a file of another shape.
    """
    return conversations(read_json_lines(path), program, str(path))


# -- plain chat logs -----------------------------------------------------------------------------

_DATED = re.compile(
    r"""(?P<bracket>\[)?\s*
    (?P<a>\d{1,4})[-/.](?P<b>\d{1,2})[-/.](?P<c>\d{1,4})
    (?:,?\s+|T)
    (?P<hour>\d{1,2})[:.](?P<minute>\d{2})(?:[:.](?P<second>\d{2}))?(?:[.,]\d{1,6})?
    \s*(?:(?P<half>[ap])\.?\s?m\.?)?
    (?P<zone>Z|[+-]\d{2}:?\d{2})?
    \s*\]?\s*(?P<dash>[-–]\s+)?
    (?P<rest>.*)""",
    re.X | re.I | re.S,
)
_NAMED = re.compile(r"(?P<name>[^:\n]{1,60}?):(?:\s+(?P<text>.*)|\s*$)", re.S)
_UNDATED = re.compile(
    r"(?P<name>[^\W\d_][\w.'’()-]*(?: [\w.'’()-]+){0,3}):(?:\s+(?P<text>.*)|\s*$)"
)


def read_chat_log(path: str | Path, *, sure: bool = False) -> ChatLog:
    """A chat log, one message a line; a line without a head continues the message before it.

    Heads: `[2024-05-01 10:00] Name: text`, `2024-05-01 10:00 Name: text`, WhatsApp's
    `[01/05/2024, 10:00:00] Name: text` and `5/1/24, 10:00 AM - Name: text`, or `Name: text`
    without times. Every head has brackets, or a dash, if the first one has them. Any other line
    belongs to the message before it, even if it begins with a time.
    A time without a zone stays so; `Memory` reads it in the machine's own. Day and month are read
    in the order that is valid for most lines. If both orders are, the order in which time runs
    forward is taken. If it runs forward in both, the day comes first (with AM or PM the month).
    Whoever is called assistant, AI, bot or model has the role "assistant"; all others "user".
    WhatsApp's own notices are left out: omitted media, deleted messages, missed calls.
    Raises InputError on a file without any head; unless sure, also on one that is rather a letter
    or a note.
    """
    lines = visible(_read_text(path)).splitlines()
    heads = [_DATED.fullmatch(line) for line in lines]
    named_heads = (head for head in heads if head and _NAMED.fullmatch(head["rest"]))
    form = next(map(_form, named_heads), None)
    times = _times([head if head and _form(head) == form else None for head in heads])
    dated = any(times)
    entries: list[_Entry] = []
    stray = 0  # lines before the first head
    for line, head, time in zip(lines, heads, times, strict=True):
        if head and time:
            named = _NAMED.fullmatch(head["rest"])  # else it is a notice, such as of who left
            entries.append(_entry(named, time) if named else _Entry(None, None, []))
        elif not dated and (named := _UNDATED.fullmatch(line)):
            entries.append(_entry(named, None))
        elif entries:
            entries[-1].lines.append(line)
        elif line.strip():
            stray += 1
    messages = []
    for entry in entries:
        if entry.name is None or is_notice(entry.name, text := said_in(entry.lines)):
            continue
        if text := without_marks(text):
            messages.append(said_by(entry.name, text, entry.time))
    if not messages:
        raise InputError(
            f"{path} has no line such as `[2024-05-01 10:00] Name: text` or `Name: text`. {FORMS}"
        )
    if not (dated or sure) and _is_prose(entries, stray):
        raise InputError(
            f"{path} looks like a letter or a note, for few of its lines have a speaker. `edgemem "
            "add - --timestamp TIME < FILE` stores it as one text of that time. If it is a chat, "
            "give --format chat."
        )
    return ChatLog(messages, dated, stray + len(entries) - len(messages))


def _is_prose(entries: Sequence[_Entry], stray: int) -> bool:
    """Whether lines such as `Name: text` are no messages: "PS: …", "To do: …", or front matter.

    stray: how many lines stand before the first of them.
    """
    names, heads = {(entry.name or "").casefold() for entry in entries}, len(entries)
    if names & _OF_MODELS or {"user", "model"} <= names:
        return False  # a model says much in one message
    others = [line.strip() for entry in entries for line in entry.lines[1:] if line.strip()]
    least = heads - (stray == 1 and (heads == 1 or "---" in others))  # a letter, or front matter
    once = len(names) == heads or (len(names) == 1 and stray > 0)
    return stray > heads or (once and stray + len(others) > least)


_OF_MODELS = ROLES - {"user", "model"} | {"you", "human", "chatgpt"}  # in no note before a colon


class _Entry(NamedTuple):
    """A message of a log with its lines of text; without a name, a notice."""

    name: str | None
    time: str | None
    lines: list[str]


def _entry(named: re.Match[str], time: str | None) -> _Entry:
    return _Entry(named["name"].strip(), time, [named["text"] or ""])


def _form(head: re.Match[str]) -> tuple[bool, bool]:
    """Whether a head begins with a bracket, and whether a dash follows its time."""
    return head["bracket"] is not None, head["dash"] is not None


def _times(heads: Sequence[re.Match[str] | None]) -> list[str | None]:
    """The time of each head, with day and month in the order that `read_chat_log` describes.

    None where there is no head, or no such time.
    """
    halves = any(head and head["half"] for head in heads)
    readings = [[head and _time(head, order) for head in heads] for order in (not halves, halves)]
    return min(readings, key=lambda times: (times.count(None), _steps_back(times)))


def _steps_back(times: Sequence[str | None]) -> int:
    return sum(a > b for a, b in pairwise(time for time in times if time is not None))


def _time(head: re.Match[str], day_first: bool) -> str | None:
    """The time of a head, ISO-8601; None if there is no such time."""
    a, b, c = head["a"], head["b"], head["c"]
    if len(a) == 4:
        year, month, day = a, b, c
    else:
        day, month, year = (a, b, c) if day_first else (b, a, c)
    full_year = int(year) + (2000 if len(year) <= 2 else 0)
    minute, second = int(head["minute"]), int(head["second"] or 0)
    try:
        hour = _hour(int(head["hour"]), head["half"]) if head["half"] else int(head["hour"])
        local = datetime(full_year, int(month), int(day), hour, minute, second).isoformat()
        return datetime.fromisoformat(local + (head["zone"] or "").upper()).isoformat()
    except ValueError:
        return None


def _hour(hour: int, half: str) -> int:
    """The hour of 24. half: "a" or "p". Raises ValueError unless 1 <= hour <= 12."""
    if not 1 <= hour <= 12:
        raise ValueError(f"there is no {hour} {half}m")
    return hour % 12 + (12 if half.lower() == "p" else 0)


# -- ids and batches of imported messages ---------------------------------------------------------


def import_ids(messages: Sequence[Mapping[str, Any]], *, seed: str) -> list[str]:
    """An id per message: 32 hex digits that depend on all that was said up to it, and on seed.

    seed: distinguishes this conversation from others with the same beginning.
    """
    chain = hashlib.sha256(seed.encode("utf-8", "surrogatepass"))
    ids = []
    for message in messages:
        said = [message.get(key) for key in ("role", "name", "timestamp", "content")]
        chain.update(json.dumps(said).encode() + b"\n")
        ids.append(chain.hexdigest()[:32])
    return ids


def batches(messages: Sequence[dict[str, Any]], *, infer: bool) -> Iterator[list[dict[str, Any]]]:
    """The messages of each `Memory.add`: BATCH_TURNS of them, or if infer two of one session."""

    def session(message: Mapping[str, Any]) -> object:
        return (message.get("metadata") or {}).get("session")

    sessions = [list(of_one) for _, of_one in groupby(messages, key=session)]
    size = 2 if infer else BATCH_TURNS
    for group in sessions if infer else [messages]:
        for start in range(0, len(group), size):
            yield list(group[start : start + size])


# -- the demo ------------------------------------------------------------------------------------


def read_demo(path: str | Path) -> Demo:
    """A conversation for `edgemem demo`.

    `{"name", "user_id", "sessions": [{"date", "messages": [{"role", "content"}]}],
    "questions_date", "questions": [{"question", "answers": [text, …]}]}`; dates are ISO-8601.
    Raises InputError that names what is missing or wrong.
    """
    raw = _read_json(path)
    if not isinstance(raw, Mapping):
        raise InputError(f"{path} holds no object with 'sessions' and 'questions'.")
    sessions = []
    for number, session in enumerate(_list(raw, "sessions", f"{path}"), 1):
        where = f"{path}: session {number}"
        date = _date(session, "date", where)
        messages = []
        for position, message in enumerate(_list(session, "messages", where)):
            if _texts(message, "role", "content") is None:
                raise InputError(f"{where}: message {position + 1} lacks the text role or content.")
            messages.append({"timestamp": spaced(date, position), **message})
        sessions.append(DemoSession(date, messages))
    questions = []
    for number, question in enumerate(_list(raw, "questions", f"{path}"), 1):
        where = f"{path}: question {number}"
        answers = _list(question, "answers", where)
        told = all(isinstance(answer, str) and answer.strip() for answer in answers)
        if _texts(question, "question") is None or not told:
            raise InputError(f"{where} lacks the text 'question', or an answer is no text.")
        questions.append({"question": question["question"], "answers": answers})
    return Demo(
        user_id=str(raw.get("user_id") or "demo"),
        sessions=sessions,
        questions_date=_date(raw, "questions_date", f"{path}"),
        questions=questions,
    )


def _texts(raw: Any, *keys: str) -> list[str] | None:
    """The texts of an object with these keys; None unless it has them all."""
    found = (raw.get(key) if isinstance(raw, Mapping) else None for key in keys)
    texts = [text for text in found if isinstance(text, str)]
    return texts if len(texts) == len(keys) else None


def _list(raw: Any, key: str, where: str) -> list[Any]:
    value = raw.get(key) if isinstance(raw, Mapping) else None
    if not isinstance(value, list) or not value:
        raise InputError(f"{where} lacks {key!r}, a list that is not empty.")
    return value


def _date(raw: Any, key: str, where: str) -> str:
    value = raw.get(key) if isinstance(raw, Mapping) else None
    try:
        if not isinstance(value, str):
            raise ValueError("no text")
        return to_utc(value)
    except ValueError as exc:
        raise InputError(
            f"{where}: {key!r} is {shown(value)}; it must be a time such as "
            "2025-01-14T19:05:00+00:00."
        ) from exc
