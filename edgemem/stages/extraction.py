"""Stage 1, extraction: messages in, facts out, each citing the turn it was taken from.

The prompt is MemLoRA's (A.1), one line. An expert adapter has learned the task from it. The expert
reads one message at a time, with relative dates written out, after the two messages before it. Its
facts must be grounded, so that no invention is stored: enough of their words must occur in what the
expert was shown, and no fact may turn its message round ("Sam's wife is ill" into "User's wife").

For a base model, which has not learned the task, the stage departs from the paper in three ways
(`bench/stages.py` measures them):

- worked examples follow the line (their KV is computed once and cached);
- the model reads one sentence at a time, but no sentence that asks, greets or only speaks of the
  other person. The schema makes the fact begin with the speaker's name. A speaker without a name
  gets a common one, as the model writes badly about "User";
- three quarters of a fact's content words must occur in its sentence, as the model invents.

An instruct model reads one message at a time as an expert does, but through its chat template and
after worked examples. Its facts must be grounded too.

Knows messages and the engine's `generate`; knows nothing of the store.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

from edgemem import language
from edgemem.results import Message, at_day, local_time
from edgemem.runtime.engine import Engine, Prompt
from edgemem.runtime.experts import Reader, reader_of
from edgemem.runtime.generation import Generation, close_json

__all__ = ["CONTEXT", "MAX_SENTENCES", "PROMPT", "SURE", "Fact", "Reading", "as_shown"]
__all__ += ["expert_target", "extract", "label", "parse", "readings", "schema", "worth_reading"]

PROMPT = (
    "Extract and organize relevant details. Response Format: Strictly JSON: "
    '{"facts": ["fact1", "fact2"]}.'
)

# Short, varied, and with an empty answer for each kind of talk that holds no fact.
_EXAMPLES: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("Tom", "Hello! How are you today?", ()),
    (
        "Ana",
        "I moved to Oslo in March and I teach maths at a primary school.",
        ("Ana moved to Oslo in March and teaches maths at a primary school",),
    ),
    ("Tom", "That sounds wonderful, I am so proud of you.", ()),
    ("Ravi", "My brother Sunil plays the cello.", ("Ravi's brother Sunil plays the cello",)),
    (
        "Ravi",
        "We are going to his concert on 3 May 2024.",
        ("Ravi is going to a concert on 3 May 2024",),
    ),
    ("Tom", "What about you?", ()),
    (
        "Lena",
        "I sold my car, so I cycle to the office now.",
        ("Lena sold her car and now cycles to the office",),
    ),
    ("Lena", "I can't eat gluten.", ("Lena can't eat gluten",)),
)
_SHOTS = "".join(
    f"{name}: {said}\n{json.dumps({'facts': facts})}\n\n" for name, said, facts in _EXAMPLES
)

_TASK = (
    "You keep a personal memory. Write down each fact that the last message tells about a person's "
    "life: who they are, their people, animals, things, places, work, health, tastes, plans, "
    "dates, prices, and what has changed. One short sentence each, in the third person, that can "
    "be understood alone: names instead of pronouns, all names, numbers and dates as they were "
    "said. Questions, requests, thanks and opinions about the other are no facts. Answer as JSON: "
    '{"facts": ["..."]}'
)
_TALKS: tuple[tuple[str, tuple[str, ...]], ...] = (
    (
        "User: we moved from Ghent to Antwerp on 3 March 2025 because my wife Lotte got a job at "
        "the zoo, the flat is 900 a month\nAbout User:\n",
        (
            "User moved from Ghent to Antwerp on 3 March 2025",
            "User's wife Lotte got a job at the zoo",
            "User's flat in Antwerp costs 900 a month",
        ),
    ),
    ("User: Thanks! Can you give me an idea for dinner tonight?\nAbout User:\n", ()),
    (
        "Before:\nAssistant: Do your brothers visit you?\nNow:\nUser: Only Jan, he's allergic to "
        "cats though. I no longer eat meat, by the way.\nAbout User:\n",
        (
            "User's brother Jan visits User",
            "User's brother Jan is allergic to cats",
            "User no longer eats meat",
        ),
    ),
)

_STAND_INS = ("Kim", "Alex", "Robin", "Sasha", "Jamie", "Morgan")
_USER = "User"  # the label of a message without a name
_PLAIN_NAME = re.compile(r"[A-Za-z]+")

_MAX_TOKENS = 80
_MESSAGE_TOKENS = 160
SURE = 0.55  # how probable "no facts" must be for an expert to give none
_LIKELY = -5.0  # an expert's fact of a lower log-probability is more often false than true
_QUOTED = 0.75  # share of a base model's fact whose words must be in its sentence
_SHOWN = 0.4  # share of an expert's fact that must have been shown: it may rephrase, not invent
_OWN = 0.2  # share that must be in the message itself: it may not repeat an earlier one
_TAKEN_BACK = 8  # sentences of one message that are read as taken back
_UNQUOTED = 1 / 3  # share of what the message has of a fact that must stand outside quotations

CONTEXT = 2  # earlier messages that an expert is shown with a message
MAX_SENTENCES = 40  # of one message; a longer one is a document: searchable, not read to its end
_PORTION_CHARS = 500
_MAX_SENTENCE_CHARS = 600  # a longer "sentence" is a list or a paste; it is read in pieces
_PAUSE = timedelta(hours=4)  # after a longer one, a message does not continue the earlier talk
_ITEM = re.compile(r"^[ \t]*(?:\d{1,2}[.)]|[-*•])[ \t]+(?:([^\n]*\w)[ \t]*$)?", re.M)
_ASIDE = re.compile(r"\[[^\[\]]{0,500}\]")  # "[shares a photo: ...]" is no sentence of the speaker

# Not `.*`: llama.cpp's "." matches a bare quote or tab too, and the text would not be JSON.
_TEXT = r'[^"\\\x00-\x1f]*$'
_MESSAGE_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"facts": {"type": "array", "items": {"type": "string"}, "maxItems": 8}},
    "required": ["facts"],
}


@dataclass(frozen=True, slots=True)
class Fact:
    """One extracted fact. source: index of the message; valid_from: ISO time it holds from.

    also: indices of the earlier messages that supplied its words; -1 is the context's last one.
    may_end: whether it may end a memory; False if some of its words stand in a quotation alone.
    """

    text: str
    source: int
    valid_from: str
    also: tuple[int, ...] = ()
    may_end: bool = True


def extract(
    engine: Engine,
    messages: Sequence[Message],
    *,
    context: Sequence[Message] = (),
    captions: Collection[int] = (),
    reader: Reader | None = None,
) -> list[Fact]:
    """The facts that messages state, oldest first, without repetitions.

    context: earlier messages, shown before but not extracted from. captions: the indices of the
    messages that came with images. reader: how the model reads; None decides it by what the model
    can do. Raises ValueError when the model's answer cannot be parsed, ModelError as the engine.
    """
    reader = reader or reader_of(engine, "extraction")
    if reader == "quote":
        return _without_repetitions(_by_sentence(engine, messages, context, captions))
    names = _stand_ins([*context, *messages])
    messages, context = ([_renamed(m, names) for m in told] for told in (messages, context))
    read = readings(messages, context, captions)
    facts = _without_repetitions(_by_message(engine, messages, read, reader))
    return [replace(fact, text=_with_names(fact.text, names)) for fact in facts]


def _stand_ins(messages: Sequence[Message]) -> dict[str, str]:
    """A common name for each speaker whose name has no letter, as a phone number, by that name."""
    said = " ".join([*(m.content for m in messages), *(m.name or "" for m in messages)]).lower()
    names = dict.fromkeys(m.name for m in messages if m.name)
    unnamed = [name for name in names if not any(map(str.isalpha, name))]
    free = [name for name in _STAND_INS if name.lower() not in said]
    return dict(zip(unnamed, free, strict=False))


def _renamed(message: Message, names: Mapping[str, str]) -> Message:
    return replace(message, name=names.get(message.name or "", message.name))


def _with_names(fact: str, names: Mapping[str, str]) -> str:
    for name, stand_in in names.items():
        fact = name.join(re.split(rf"\b{stand_in}\b", fact))
    return fact


def expert_target(facts: Sequence[str]) -> str:
    """The text that an expert answers with, without its end-of-turn token."""
    return json.dumps({"facts": list(facts)}, ensure_ascii=False)


def _by_sentence(
    engine: Engine,
    messages: Sequence[Message],
    context: Sequence[Message],
    captions: Collection[int],
) -> list[Fact]:
    """The facts that a base model reads in one sentence at a time."""
    facts: list[Fact] = []
    before = "".join(f"{label(m)}: {m.content}\n" for m in context)
    told = (
        (source, message, sentence)
        for source, message in enumerate(messages)
        for sentence in _standing(language.unquoted(message.content))[:MAX_SENTENCES]
        if worth_reading(sentence)
    )
    for source, message, sentence in told:
        name = _prompt_name(message, sentence)
        answer = engine.generate(
            f"{PROMPT}\n\n{_SHOTS}{'' if source in captions else before}{name}: {sentence}\n",
            max_tokens=_MAX_TOKENS,
            schema=schema(name),
            stage="extraction",
        )
        for text in parse(answer.text, cut=answer.finish_reason == "length"):
            if _is_quoted(text, name, sentence):
                text = label(message).join(re.split(rf"\b{name}\b", text))
                facts.append(_dated(text, sentence, source, message.timestamp))
    return facts


def _by_message(
    engine: Engine, messages: Sequence[Message], read: Sequence[Reading], reader: Reader
) -> list[Fact]:
    """The grounded facts that an expert or an instruct model reads in one message at a time."""
    facts: list[Fact] = []
    by_expert = reader == "expert"
    for reading in read:
        answer = engine.generate(
            reading.prompt if by_expert else _instructed(reading),
            max_tokens=_MESSAGE_TOKENS,
            schema=_MESSAGE_SCHEMA,
            stage="extraction",
            fork=(expert_target([]), expert_target(["A"]), SURE) if by_expert else None,
        )
        for text in parse(answer.text, cut=answer.finish_reason == "length"):
            if by_expert and _log_p(answer, text) < _LIKELY:
                continue
            shown = as_shown(text, reading)
            grounded = None if shown is None else _grounded(shown, reading)
            said = reading.message
            if not grounded or language.misreads(grounded[0], said.content, label(said)):
                continue
            if language.repeats_itself(grounded[0]):
                continue
            own = _share_unquoted(text, messages[reading.source], reading)
            if own >= _UNQUOTED:
                fact = _dated(*grounded, reading.source, said.timestamp)
                facts.append(replace(fact, also=_suppliers(text, reading), may_end=own == 1))
    return facts


def _log_p(answer: Generation, fact: str) -> float:
    """Natural logarithm of the probability of one fact of an answer."""
    written = json.dumps(fact, ensure_ascii=False)[1:-1]
    begin = answer.text.find(written)
    return answer.log_p_of(begin, begin + len(written)) if begin >= 0 else answer.log_p


def _instructed(reading: Reading) -> Prompt:
    """An instruct model's prompt: the task, worked examples, and the talk that an expert reads."""
    turns = [{"role": "system", "content": _TASK}]
    for said, facts in _TALKS:
        turns += [{"role": "user", "content": said}]
        turns += [{"role": "assistant", "content": expert_target(facts)}]
    return [*turns, {"role": "user", "content": reading.talk}]


def schema(name: str) -> dict[str, Any]:
    """The JSON schema of at most one fact, which begins with `name` (letters only)."""
    about = {"type": "string", "pattern": f"^{name}( |'s )" + _TEXT}
    facts = {"type": "array", "items": about, "maxItems": 1}
    return {"type": "object", "properties": {"facts": facts}, "required": ["facts"]}


def parse(text: str, *, cut: bool = False) -> list[str]:
    """The facts of an answer. cut: max_tokens ended it, so only its complete strings are facts.

    Raises ValueError unless it is {"facts": [strings]} or, if cut, the beginning of that.
    """
    found = json.loads((close_json(text) or "{}") if cut else text)
    facts = found.get("facts") if isinstance(found, dict) else None
    if cut and facts is None:
        return []  # the answer was cut before its facts
    if not isinstance(facts, list) or not all(isinstance(f, str) for f in facts):
        raise ValueError(f'expected {{"facts": [strings]}}, the model gave {text[:200]!r}')
    return [f.strip() for f in facts if f.strip()]


def _prompt_name(message: Message, sentence: str) -> str:
    if message.name and _PLAIN_NAME.fullmatch(message.name):
        return message.name
    return next((n for n in _STAND_INS if n not in sentence), _STAND_INS[0])


def _dated(text: str, sentence: str, source: int, said_at: str) -> Fact:
    """A `Fact` with relative dates written out.

    A fact without a date takes the date of its sentence, if the sentence has only one.
    """
    local = local_time(said_at)
    resolved, begins = language.absolute(text, local)
    found = language.moments(sentence, local)
    if begins is None and len(found) == 1:
        moment = found[0]
        begins = moment.begins.isoformat()
        at = text.lower().find(sentence[moment.start : moment.end].lower())
        if moment.text.split(" ", 1)[1] in text:
            pass  # the fact has the day already: an expert reads dates written out
        elif at >= 0:  # only the sentence tells whether the date is past or coming
            length = moment.end - moment.start
            resolved = language.written(text, [replace(moment, start=at, end=at + length)])
        else:
            resolved = f"{text.rstrip('.')} {language.phrase(sentence, moment)}"
    return Fact(resolved, source, at_day(begins) if begins else said_at)


def _without_repetitions(facts: Sequence[Fact]) -> list[Fact]:
    """Drop a fact whose words are all in another of the same batch."""
    bags = [frozenset(language.content_words(f.text)) for f in facts]
    return [
        fact
        for i, fact in enumerate(facts)
        if not any(
            bags[i] < bag or (bags[i] == bag and j < i) for j, bag in enumerate(bags) if j != i
        )
    ]


# -- whether a fact says what was said ---------------------------------------------------------


def as_shown(fact: str, reading: Reading) -> str | None:
    """The fact without a relation that was not shown; None if a person in it was not shown.

    "Ana's sister Lena" becomes "Lena" if no message shown speaks of a sister.
    """
    shown = _words([*reading.before, reading.message], reading.names)
    return language.with_known_people(fact, shown | _named(reading))


def _grounded(fact: str, reading: Reading) -> tuple[str, str] | None:
    """An expert's fact, about the right person, and its sentence; None if the fact is dropped.

    A fact is dropped as invented unless at least _OWN of its words are the message's and at least
    _SHOWN of them were shown. A fact about another person is dropped if that person said more of it
    before, or if it is the user, who has said nothing and is not spoken to. A sentence in the first
    person, or without a subject, is about the speaker, even if the expert named another person. A
    fact of a speaker with a name has no "I".
    """
    message, speaker = reading.message, label(reading.message)
    named = _named(reading)
    new = [w for w in language.content_words(fact) if w not in named]
    shown = _words([*reading.before, message])
    own = _count_said(new, _words([message]))
    if not new or own < _OWN * len(new) or _count_said(new, shown) < _SHOWN * len(new):
        return None
    if {w for w in new if w.isdigit()} - shown:
        return None
    parts = pieces(message.content) or [message.content]
    sentence = max(parts, key=lambda part: _count_said(new, language.words(part)))
    fact = language.of_diarist(fact, sentence, speaker)
    if _puts_another_right(reading) and re.match(rf"{re.escape(speaker)}\b", fact):
        return None
    if message.name and language.is_of_speaker(fact.split(maxsplit=1)[0]):
        return None  # "I" in a fact is the user
    others = {*reading.names, _USER} - {speaker}
    other = next((o for o in others if re.match(rf"{re.escape(o)}\b", fact)), None)
    if other is None or re.search(rf"\b{re.escape(speaker)}\b", fact):
        return fact, sentence
    if _count_said(new, _words(m for m in reading.before if label(m) == other)) > own:
        return None
    for said in (sentence, message.content):
        if language.is_of_speaker(said) and not (
            language.is_of_listener(said) or re.search(rf"\b{re.escape(other)}\b", said)
        ):
            return speaker + fact[len(other) :], sentence
    if other == _USER and _USER not in reading.names:  # "You moved" is of the user, who listens
        clauses = re.split(r"[,;]", sentence)
        clause = max(clauses, key=lambda part: _count_said(new, language.words(part)))
        return (fact, sentence) if language.is_of_listener(clause) else None
    return fact, sentence


def _puts_another_right(reading: Reading) -> bool:
    """Whether a message takes back what it said of somebody else: "Rhys eats fish. Actually not."

    The expert takes such a fragment to be about the speaker.
    """
    own = [m for m, i in zip(reading.before, reading.places, strict=True) if i == reading.source]
    return bool(own) and not any(language.is_of_speaker(m.content) for m in (*own, reading.message))


def _suppliers(fact: str, reading: Reading) -> tuple[int, ...]:
    """Indices of the earlier messages that supply words of a fact which its own message lacks."""
    own = _named(reading) | _words([reading.message])
    missing = [w for w in language.content_words(fact) if not language.same_word(w, own)]
    return tuple(
        index
        for index, message in zip(reading.places, reading.before, strict=True)
        if index != reading.source and _count_said(missing, _words([message]))
    )


def _share_unquoted(fact: str, message: Message, reading: Reading) -> float:
    """Of a fact's words that its message has, the share that stands outside quotations, in [0, 1].

    message: the whole of it, as a quotation may run through several readings.
    """
    outside = replace(message, content=language.unquoted(message.content))
    if outside.content == message.content:
        return 1.0
    named = _named(reading)
    new = [w for w in language.content_words(fact) if w not in named]
    held = _count_said(new, _words([message]))
    return _count_said(new, _words([outside])) / held if held else 1.0


def _is_quoted(fact: str, speaker: str, sentence: str) -> bool:
    """Whether a fact says what its sentence says, and names the speaker instead of "I"."""
    if language.is_unresolved(fact):
        return False
    said = set(language.words(sentence))
    new = [w for w in language.content_words(fact) if w not in language.words(speaker)]
    if not all(language.same_word(w, said) for w in language.owned_by(speaker, fact)):
        return False  # a possession that was not said: "Kim's wife" in a fact from "I sold the car"
    quoted = bool(new) and _count_said(new, said) >= _QUOTED * len(new)
    return quoted and language.denies_alike(fact, new, sentence)


def _words(messages: Iterable[Message], names: Collection[str] = ()) -> set[str]:
    """The words of messages, as `line` shows them."""
    return {word for message in messages for word in language.words(line(message, names))}


def _named(reading: Reading) -> set[str]:
    """The words of the speakers' names."""
    return {word for name in reading.names for word in language.words(name)}


def _count_said(content: Sequence[str], said: Collection[str]) -> int:
    """How many of the words were said, in any form."""
    return sum(language.same_word(word, said) for word in content)


# -- what is read --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Reading:
    """A message as an expert reads it, or a portion of a long one.

    source: index of the message. before: the earlier messages shown with it; the last may be what
    the message itself says before it takes that back. places: their indices, negative for those of
    the context. names: of all speakers.
    """

    source: int
    message: Message
    before: tuple[Message, ...]
    places: tuple[int, ...]
    names: frozenset[str]

    @property
    def prompt(self) -> str:
        """The expert's prompt: the instruction, then the talk."""
        return f"{PROMPT}\n\n{self.talk}"

    @property
    def talk(self) -> str:
        """A line for each message, with absolute dates; then whom the facts of the last one are
        about, as a small model does not look back for a name."""
        lines = [f"{label(m)}: {line(m, self.names)}\n" for m in (*self.before, self.message)]
        if self.before:
            lines = ["Before:\n", *lines[:-1], "Now:\n", lines[-1]]
        return f"{''.join(lines)}About {label(self.message)}:\n"


def readings(
    messages: Sequence[Message],
    context: Sequence[Message] = (),
    captions: Collection[int] = (),
) -> list[Reading]:
    """What an expert reads: each message, unless it only asks.

    The CONTEXT messages before are shown with it, if they are of the same talk, and none with a
    caption. A long message becomes several readings of whole sentences. A sentence that is taken
    back is only shown before the one that does so, as if that were the next message. context: as in
    `extract`.
    """
    said = [*context, *messages]
    names = frozenset(label(m) for m in said)
    found = []
    for source, message in enumerate(messages):
        n_before = 0 if source in captions else CONTEXT
        earlier = range(max(source - n_before, -len(context)), source)
        places = tuple(i for i in earlier if _is_of_one_talk(said[len(context) + i], message))
        before = tuple(_end_of(said[len(context) + i]) for i in places)
        if language.is_question(line(message, names)):
            continue
        for taken_back, part in _without_taken_back(message):
            if taken_back is not None:
                before, places = (_end_of(taken_back),), (source,)
            found += [Reading(source, p, before, places, names) for p in _portions(part)]
    return found


def _without_taken_back(message: Message) -> list[tuple[Message | None, Message]]:
    """The parts of a message without the sentences that are taken back in it, values put right,
    each with what the message says before it. All but the first take something back."""
    whole = pieces(message.content)
    said = language.corrected(whole)
    begins = language.taken_back(said)[:_TAKEN_BACK]
    if not begins:
        as_it_is = said == whole
        return [(None, message if as_it_is else replace(message, content=" ".join(said)))]
    parts: list[tuple[Message | None, Message]] = []
    for start, end in pairwise([0, *begins, len(said)]):
        kept = said[start : end if end == len(said) else end - 1]
        earlier = replace(message, content=" ".join(said[:start])) if start else None
        if kept:
            parts.append((earlier, replace(message, content=" ".join(kept))))
    return parts


def _standing(text: str) -> list[str]:
    """The sentences of a text that none of its sentences takes back."""
    said = language.corrected(pieces(text))
    gone = {i - 1 for i in language.taken_back(said)}
    return [sentence for i, sentence in enumerate(said) if i not in gone]


def worth_reading(sentence: str) -> bool:
    """Whether a sentence may hold a fact about its speaker; without "I" or "we" it needs a name, a
    number, or six words."""
    count = len(language.words(sentence))
    if language.is_question(sentence) or (count < 3 and not language.has_foreign_letter(sentence)):
        return False
    if language.is_of_speaker(sentence):
        return True
    return not language.is_of_listener(sentence) and (count >= 6 or language.is_specific(sentence))


def label(message: Message) -> str:
    """The speaker of a message as a prompt shows it: the name, else the role ("User")."""
    return message.name or message.role.capitalize()


def pieces(text: str) -> list[str]:
    """The sentences of a text without asides, each of at most _MAX_SENTENCE_CHARS."""
    out: list[str] = []
    for sentence in language.sentences(_ASIDE.sub(" ", _itemised(text))):
        while len(sentence) > _MAX_SENTENCE_CHARS:
            cut = sentence.rfind(" ", 1, _MAX_SENTENCE_CHARS) + 1 or _MAX_SENTENCE_CHARS
            out.append(sentence[:cut].strip())
            sentence = sentence[cut:]
        out.append(sentence)
    return out


def line(message: Message, names: Collection[str] = ()) -> str:
    """A message with its dates written out, without the names by which it addresses the others."""
    told = _itemised(message.content)
    text = " ".join(language.absolute(told, local_time(message.timestamp))[0].split())
    others = [name for name in names if name != label(message)]
    return language.without_vocatives(
        text, lambda called: any(n.startswith(called) for n in others)
    )


def _itemised(text: str) -> str:
    """The items of a list as sentences: in one line "3." would belong to the item before it."""
    return _ITEM.sub(lambda item: f"{item[1]}." if item[1] else "", text)


def _is_of_one_talk(earlier: Message, later: Message) -> bool:
    begun, now = (datetime.fromisoformat(m.timestamp) for m in (earlier, later))
    return abs(now - begun) <= _PAUSE


def _end_of(message: Message) -> Message:
    """The last sentences of a message: they ask what the next message answers."""
    if len(message.content) <= _PORTION_CHARS:
        return message
    kept = ""
    for piece in reversed(pieces(message.content)):
        if len(kept) + len(piece) > _PORTION_CHARS:
            break
        kept = f"{piece} {kept}".strip()
    return replace(message, content=kept or message.content[-_PORTION_CHARS:])


def _portions(message: Message) -> list[Message]:
    """A message; if it is long, its parts, each of whole sentences."""
    if len(message.content) <= _PORTION_CHARS:
        return [message]
    portions, text = [], ""
    for piece in [*pieces(message.content)[:MAX_SENTENCES], ""]:
        if text and (not piece or len(text) + len(piece) > _PORTION_CHARS):
            portions.append(replace(message, content=text))
            text = ""
        text = f"{text} {piece}".strip()
    return portions
