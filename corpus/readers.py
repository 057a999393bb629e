"""Annotated data as files have them: three forms written for training, and LoCoMo's JSON.

Conversations, with the facts and answers of each message under it:

    # Mara (she), Joel (he)
    @ 2024-03-09 18:20
    Mara: I adopted a grey cat last week, he's called Biscuit.
    = Mara adopted a grey cat called Biscuit last week.
    ? When did Mara get a cat? | last week
    Joel: Congratulations!
    ? Does Joel have a cat? | -

`#` begins a conversation of two people, or of `User, Assistant`; `@` begins a session. `=` is a
fact that the message above tells, with its dates in the message's words. `?` is a question that the
message answers, then the answer, `-` if there is none. If the answer needs earlier messages, too,
words quoted from each follow. A question about "User" is changed to the first person, as users ask
(models/conversations/README.md). A conversation without any `=` line is taken as one whose facts
nobody wrote down: it has questions alone.

    ~ 2024-06-11 09:30
    > (task) Who could look after my cat in May? | a grey cat last week
    < Biscuit would be in good hands with Joel, who knows cats.
    > (recall) and which colour is he | a grey cat last week
    < Biscuit is grey. | grey

`~` begins a chat held later. `>` is what the user says there: what the message wants in brackets
(as in the third form), the message, and words quoted from each earlier message that the answer
needs. `<` is an ideal answer, then the same in a few words; `-` if it is not known.

Pairs of an old memory (`:`) and facts told later. Each fact is compared with the memory alone, and
begins with the event (models/pairs/README.md):

    : User rents a room above a bakery in Aarhus for 3,900 kroner.
    DELETE User has two rooms in Leith at 720 pounds a month.
    UPDATE User rents a room above a bakery in Aarhus for 3,900 kroner, without a kitchen.
    NONE User lives in a room over a baker's in Aarhus.
    ADD User's brother has bought a house in Odense.

Messages, with what each wants:

    (tell) the biopsy came back clean, i cried in the car park
    (tell and task) we moved to bergen and the in-laws come on sunday what should i cook
    = User moved to Bergen.

A line `~` begins a chat: from there on each message is said after the one above it. Facts may stand
below the messages of chats.

LoCoMo is CC BY-NC 4.0; so is whatever is trained on it. A message has the facts (`observation`)
that cite it. Relative dates are written out in messages and facts by the same rule. The answer to
an adversarial question (`qa`) is that it is not known.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, get_args

from corpus.annotated import (
    Annotated,
    Exchange,
    Labelled,
    Later,
    Pair,
    Question,
    Situation,
    as_evidence,
    wanted,
)
from edgemem.errors import InputError
from edgemem.language import absolute, moments, words, written
from edgemem.pipeline import importers
from edgemem.pipeline.importers import batches, spaced
from edgemem.results import Event, Message
from edgemem.stages.extraction import CONTEXT, label
from edgemem.stages.reply import NOTED

_EVENTS: dict[str, Event] = {event: event for event in get_args(Event)}
_LINE = re.compile(r"\(([a-z ]+)\) +(\S.*)")
_TOGETHER = 10  # lines of a file that a split keeps together
CATEGORIES = {1: "multi-hop", 2: "temporal", 3: "open-domain", 4: "single-hop"}
_ADVERSARIAL = "adversarial"
_DIALOGUE_ID = re.compile(r"\bD\d+:\d+\b")
_REFUSED_SHARE = 0.2  # of the adversarial questions; all of them would teach to refuse too much
_PEOPLE = re.compile(r"# *(\w[\w'-]*) \((she|he|they)\), *(\w[\w'-]*) \((she|he|they)\)")
_WITH_ASSISTANT = re.compile(r"# *User, *Assistant")
_USER = "(?:[Tt]he user|User)"
_AS_ASKED = (  # "User" and "the user" in a question, and the first person for them
    (re.compile(rf"\b{_USER}['’]s\b"), "my"),
    (re.compile(rf"\b([Dd])oes {_USER}\b(?! and\b)"), r"\1o I"),
    (re.compile(rf"\b([Hh])as {_USER}\b(?! and\b)"), r"\1ave I"),
    (re.compile(rf"\b[Ii]s {_USER}\b(?! and\b)"), "am I"),
    (
        re.compile(
            r"\b([Dd]id|[Ww]ill|[Cc]an|[Cc]ould|[Ww]ould|[Ss]hould|[Hh]ad|[Ww]as|[Mm]ay|[Mm]ust)"
            rf" {_USER}\b"
        ),
        r"\1 I",
    ),
    (re.compile(rf"(?<=[a-z] ){_USER}(?=[?,.])"), "me"),
    (
        re.compile(
            r"\b(about|asked|bought|by|for|from|gave|gives|helped|kept|lets?|made|makes|of|paid|sold"
            rf"|taught|to|told|visit|with) {_USER}\b(?! and\b)"
        ),
        r"\1 me",
    ),
)
_TIME = r" *(\d{4}-\d{2}-\d{2})[ T](\d{2}:\d{2})"
_WANTS = re.compile(r"\(([a-z ]+)\) *")
_SESSION, _LATER = re.compile(f"@{_TIME}"), re.compile(f"~{_TIME}")


@dataclass
class _Turn:
    message: dict[str, Any]
    facts: list[str] = field(default_factory=list)
    questions: list[tuple[str, str, tuple[int, ...]]] = field(default_factory=list)


@dataclass
class _Chat:
    """A later chat. asked: a message that has no answer yet, its evidence, what it wants, and the
    words of the evidence that matter."""

    at: str
    exchanges: list[Exchange] = field(default_factory=list)
    asked: tuple[str, tuple[str, ...], str, tuple[str, ...]] | None = None


def _first_line(path: Path) -> str:
    """The first line that is not empty; "" without one."""
    with open(path, encoding="utf-8", errors="replace") as file:
        return next((line.rstrip() for line in file if not line.isspace()), "")


def is_written(path: Path) -> bool:
    """Whether a file's first line that is not empty begins a written conversation."""
    first = _first_line(path).strip()
    return bool(_PEOPLE.fullmatch(first) or _WITH_ASSISTANT.fullmatch(first))


def read_written(path: Path) -> list[Annotated]:
    """The conversations of a file. Raises InputError, naming file and line, on another form."""
    return _conversations(path, enumerate(path.read_text(encoding="utf-8").split("\n"), 1))


def _conversations(path: Path, lines: Iterable[tuple[int, str]]) -> list[Annotated]:
    found: list[Annotated] = []
    pronouns: dict[str, str] = {}
    start, position, session = "", 0, 0
    turns: list[_Turn] = []
    chats: list[_Chat] = []

    def finished() -> None:
        if turns:
            found.append(_annotated(f"{path.stem}-{len(found) + 1}", turns, pronouns, chats))
            chats.clear()

    for number, raw in lines:
        line = raw.strip()
        try:
            if people := _PEOPLE.fullmatch(line):
                finished()
                turns, start = [], ""
                pronouns = {people[1]: people[2], people[3]: people[4]}
            elif _WITH_ASSISTANT.fullmatch(line):
                finished()
                turns, start, pronouns = [], "", {}
            elif begun := _SESSION.fullmatch(line):
                start, position, session = f"{begun[1]}T{begun[2]}:00+00:00", 0, session + 1
            elif begun := _LATER.fullmatch(line):
                chats.append(_Chat(f"{begun[1]}T{begun[2]}:00+00:00"))
            elif line.startswith((">", "<")):
                _said_later(line[1:].strip(), line[0] == ">", turns, chats)
            elif line.startswith("="):
                _last(turns).facts.append(_fact(line[1:].strip(), turns))
            elif line.startswith("?"):
                _last(turns).questions.append(_question(line[1:].strip(), turns))
            elif line:
                if not start:
                    raise ValueError(
                        "a message before the session's line, such as @ 2024-05-01 18:30"
                    )
                turns.append(_Turn(_message(line, pronouns, spaced(start, position), session)))
                position += 1
        except ValueError as exc:
            raise InputError(f"{path}, line {number}: {exc}. Correct the line.") from exc
    finished()
    return found


def _last(turns: Sequence[_Turn]) -> _Turn:
    if not turns:
        raise ValueError("a fact or question before the first message")
    return turns[-1]


def _message(line: str, people: dict[str, str], at: str, session: int) -> dict[str, Any]:
    speaker, colon, text = line.partition(":")
    allowed = tuple(people) or ("User", "Assistant")
    if not colon or speaker not in allowed or not text.strip():
        raise ValueError(f"{line[:40]!r} is no message of {' or '.join(allowed)}")
    said = {"content": text.strip(), "timestamp": at, "metadata": {"session": session}}
    role = speaker.lower() if not people else "user"
    return {"role": role, **said, **({"name": speaker} if people else {})}


def _fact(text: str, turns: Sequence[_Turn]) -> str:
    message = _last(turns).message
    if message["role"] == "assistant":
        raise ValueError("a fact under a message of the assistant, which tells none")
    return absolute(text, message["timestamp"])[0].strip()


def _question(line: str, turns: Sequence[_Turn]) -> tuple[str, str, tuple[int, ...]]:
    """The question, its answer, and the indices of the earlier turns that it needs, too."""
    parts = [part.strip() for part in line.split("|")]
    if len(parts) < 2 or not all(parts):
        raise ValueError(f"{line!r} is no `question | answer`")
    text, answer, *quotes = parts
    earlier = [_place(quote, turns) for quote in quotes]
    if answer != "-":
        told = [_last(turns), *(turns[place] for place in earlier)]
        answer = _dated(answer, [turn.message for turn in told]).removeprefix("my ")
    return text, answer, tuple(dict.fromkeys(earlier))


def _dated(answer: str, told: Sequence[dict[str, Any]]) -> str:
    """The answer with its relative dates written out, as in the first message that has its words.

    That message tells the tense: "on Monday" is the last one in a sentence about the past.
    """
    for message in told:
        said = message["content"]
        if found := re.search(re.escape(answer), said, re.I):
            start, end = found.span()
            days = [
                m for m in moments(said, message["timestamp"]) if start <= m.start < m.end <= end
            ]
            return written(said[:end], days)[start:] if days else answer
    return absolute(f"so {answer}", told[0]["timestamp"])[0].removeprefix("so ")


def _said_later(line: str, by_user: bool, turns: Sequence[_Turn], chats: Sequence[_Chat]) -> None:
    """Add a message to the last chat, or the answer to its message."""
    if not chats or not line or (chats[-1].asked is None) != by_user:
        raise ValueError("a chat is a line such as ~ 2024-05-01 18:30, then > and < in turn")
    chat = chats[-1]
    if chat.asked is None:
        want = _WANTS.match(line)
        text, *quotes = (part.strip() for part in line[want.end() if want else 0 :].split("|"))
        places = [_place(quote, turns) for quote in quotes]
        said = dict.fromkeys(turns[place].message["content"] for place in places)
        if want:
            wanted(want[1])
        chat.asked = text, tuple(said), want[1] if want else "", tuple(quotes)
    else:
        text, evidence, wants, quoted = chat.asked
        reply, _, short = (part.strip() for part in line.partition("|"))
        chat.exchanges.append(Exchange(text, reply, evidence, wants, short, quoted))
        chat.asked = None


def _place(quote: str, turns: Sequence[_Turn]) -> int:
    """The index of the first message that has these words."""
    for place, turn in enumerate(turns):
        if quote in turn.message["content"]:
            return place
    raise ValueError(f"no message up to here has the words {quote!r}")


def _annotated(
    id: str, turns: Sequence[_Turn], pronouns: dict[str, str], chats: Sequence[_Chat]
) -> Annotated:
    messages = [turn.message for turn in turns]
    renamed = {name: said for name, said in pronouns.items() if said != "they"}
    pairs = list(_pairs(turns)) if any(turn.facts for turn in turns) else []
    later = [Later(chat.at, tuple(chat.exchanges)) for chat in chats if chat.exchanges]
    return Annotated(id, messages, pairs, list(_questions(turns)), renamed, later=later)


def _pairs(turns: Sequence[_Turn]) -> Iterator[Pair]:
    """The pairs as `Memory.add` takes them; an assistant's messages are only context."""
    said = [as_message(turn.message) for turn in turns]
    place = 0
    for batch in batches([turn.message for turn in turns], infer=True):
        asked = [i for i in range(place, place + len(batch)) if said[i].role == "user"]
        place += len(batch)
        if not asked:
            continue
        told = [(fact, number) for number, i in enumerate(asked) for fact in turns[i].facts]
        yield Pair(
            messages=tuple(said[i] for i in asked),
            facts=tuple(fact for fact, _ in told),
            sources=tuple(number for _, number in told),
            context=tuple(said[max(0, asked[0] - CONTEXT) : asked[0]]),
        )


def _questions(turns: Sequence[_Turn]) -> Iterator[Question]:
    for place, turn in enumerate(turns):
        for text, answer, earlier in turn.questions:
            used = sorted({*earlier, place})
            shown = tuple(as_evidence(as_message(turns[i].message)) for i in used)
            kind = "temporal" if text.lower().startswith("when") else "single-hop"
            if turn.message.get("name") is None:
                for user, said in _AS_ASKED:
                    text = user.sub(said, text)
                text = text[0].upper() + text[1:]
            if answer == "-":
                yield Question(text, "unknown", None, shown)
            else:
                yield Question(text, "multi-hop" if earlier else kind, answer, shown)


def as_message(raw: Mapping[str, Any]) -> Message:
    """A message as the importers give it."""
    return Message(raw["role"], raw["content"], raw["timestamp"], raw.get("name"))


def is_pairs(path: Path) -> bool:
    """Whether a file's first line that is not empty is the memory of a pair."""
    return _first_line(path).startswith(": ")


def read_pairs(path: Path) -> list[Situation]:
    """The situations of a file of pairs: each fact with its memory and event.

    Raises InputError, naming file and line, on another form.
    """
    found: list[Situation] = []
    memory = ""
    for number, raw in enumerate(path.read_text(encoding="utf-8").split("\n"), 1):
        event, _, text = raw.strip().partition(" ")
        if event == ":" and text:
            memory = text
        elif event in _EVENTS and text and memory:
            found.append(Situation((memory,), text, _EVENTS[event], int(event == "ADD")))
        elif event:
            raise InputError(
                f"{path}, line {number}: {raw.strip()[:60]!r} is no memory (`: User sings.`), nor "
                f"a fact below one (`ADD User sings well.`); allowed: {', '.join(_EVENTS)}. "
                "Correct the line."
            )
    return found


def is_messages(path: Path) -> bool:
    """Whether a file's first line that is not empty is a labelled message, or begins a chat."""
    first = _first_line(path).strip()
    return first == "~" or _LINE.fullmatch(first) is not None


def read_messages(path: Path) -> Iterator[Labelled]:
    """The labelled messages of a file, without its empty lines. Raises InputError, naming file and
    line."""
    begun, before = 0, ""  # the chat that a message belongs to, and what was said before it
    for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), 1):
        if line.strip() == "~":
            begun, before = number, ""
        if line.strip() in ("", "~") or line.startswith("="):
            continue
        try:
            if (found := _LINE.fullmatch(line.strip())) is None:
                raise ValueError("no message such as `(tell) we got the flat`")
            wants, tells = wanted(found[1])
        except ValueError as exc:
            raise InputError(f"{path}, line {number}: {exc}. Correct the line.") from exc
        group = begun or number // _TOGETHER
        yield Labelled(found[2], before, wants, tells, f"{path.stem}-{group}")
        if begun:
            before = found[2]


def read_told(path: Path) -> list[Annotated]:
    """The chats of a file of labelled messages with their facts; none if it has no facts.

    The assistant answers each message as it answers most that only tell. Raises InputError, naming
    file and line.
    """
    text = path.read_text(encoding="utf-8")
    return _conversations(path, _told(text.split("\n"))) if "\n=" in text else []


def _told(messages: Iterable[str]) -> Iterator[tuple[int, str]]:
    """The lines of chats in the form of conversations, numbered as they were, three days apart."""
    begun, said = datetime(2026, 1, 5, 18), False
    for number, line in enumerate(map(str.strip, messages), 1):
        if line == "~":
            begun, said = begun + timedelta(days=3), False
            yield number, "# User, Assistant"
            yield number, f"@ {begun:%Y-%m-%d %H:%M}"
        elif message := _LINE.fullmatch(line):
            if said:
                yield number, f"Assistant: {NOTED}"
            said = True
            yield number, f"User: {message[2]}"
        else:
            yield number, line


@dataclass(frozen=True)
class LocomoFile:
    """One conversation of LoCoMo. messages: as `Memory.add` takes them. qa: as in the file."""

    sample_id: str
    messages: list[dict[str, Any]]
    qa: list[dict[str, Any]]


def locomo_files(path: str | Path) -> list[LocomoFile]:
    """Every conversation of a file. Raises InputError as the importer does."""
    conversations = importers.read_locomo(path)
    raw = json.loads(Path(path).read_text(encoding="utf-8-sig"))
    samples = raw if isinstance(raw, list) else [raw]
    return [
        LocomoFile(sample_id, messages, sample.get("qa", []))
        for (sample_id, messages), sample in zip(conversations, samples, strict=True)
    ]


def locomo_file(path: str | Path) -> LocomoFile:
    """The one conversation of a file. Raises InputError as the importer does, or on several."""
    files = locomo_files(path)
    if len(files) != 1:
        raise InputError(
            f"{path} holds {len(files)} LoCoMo conversations where one is expected. "
            "Split it into one file for each."
        )
    return files[0]


def read_locomo(path: Path) -> Annotated:
    """A file of one conversation, with its annotations. Raises as `locomo_file`."""
    file, found = locomo_file(path), locomo_pairs(path)
    return Annotated(
        id=file.sample_id,
        messages=file.messages,
        pairs=found,
        questions=locomo_questions(file),
        pronouns=_pronouns(found),
        refused=_REFUSED_SHARE,
    )


def locomo_pairs(path: Path) -> list[Pair]:
    """The pairs of a LoCoMo file. A fact that cites several turns is of the last one."""
    turns = [_Turn(raw) for raw in locomo_file(path).messages]
    place = {turn.message["metadata"]["dia_id"]: i for i, turn in enumerate(turns)}
    for text, cited in observations(path):
        known = [place[id] for id in cited if id in place]
        if known:
            turn = turns[max(known)]
            turn.facts.append(absolute(text, turn.message["timestamp"])[0].strip())
    return list(_pairs(turns))


def locomo_questions(file: LocomoFile) -> list[Question]:
    """The questions of a file whose evidence turns exist."""
    turn = {m["metadata"]["dia_id"]: as_evidence(as_message(m)) for m in file.messages}
    found = []
    for row in file.qa:
        cited = turn_ids(row.get("evidence", ()))
        shown = tuple(turn[id] for id in cited if id in turn)
        category = CATEGORIES.get(row["category"], _ADVERSARIAL)
        answer = str(row["answer"]).strip() if category != _ADVERSARIAL else None
        if shown:
            found.append(Question(row["question"], category, answer, shown))
    return found


def _pronouns(read: Sequence[Pair]) -> dict[str, str]:
    """Each speaker's pronoun, "she" or "he", whichever is more frequent in their facts."""
    said: dict[str, Counter[str]] = {}
    for pair in read:
        for message in pair.messages:
            said.setdefault(label(message), Counter())
        for fact in pair.facts:
            if (about := next((n for n in said if fact.startswith(n)), None)) is not None:
                said[about].update(words(fact))
    return {
        name: "she" if found["she"] + found["her"] > found["he"] + found["his"] else "he"
        for name, found in said.items()
    }


def observations(path: Path) -> Iterator[tuple[str, list[str]]]:
    """Each observation of a LoCoMo file, and the ids of the turns that it cites."""
    for session in json.loads(path.read_text(encoding="utf-8")).get("observation", {}).values():
        for facts in session.values():
            for text, cited in facts:
                yield text, turn_ids([cited])


def turn_ids(cited: Sequence[Any]) -> list[str]:
    """Ids of turns, however they are written: "D1:3", ["D1:3", "D1:4"], "D1:3; D1:4"."""
    return list(dict.fromkeys(id for c in cited for id in _DIALOGUE_ID.findall(str(c))))
