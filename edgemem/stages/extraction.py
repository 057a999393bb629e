"""Stage 1, extraction: messages in, facts out, each citing the turn it was taken from.

The prompt is MemLoRA's (A.1), one line. An expert adapter has learned the task from it, and reads
a message at a time, its relative dates written out, with the two before it: shown a pair at once,
it told a quarter of the facts of the wrong speaker. Its facts must be grounded, so that an
invention is never stored: enough of their words are of what it was shown.

A base model of 135 M parameters has not learned it, so without an expert the stage departs from
the paper in three ways (bench/LOG.md has what each gave; `bench/stages.py` measures the stage):

- worked examples follow the line (their KV is computed once and kept);
- it reads one sentence at a time, and leaves out those that ask, greet or only speak of the other
  person. The schema makes the fact begin with its speaker; one without a name lends a common one,
  for the model writes badly about "User";
- all but a quarter of a fact's words must be those of its sentence (the model's favourite invention
  is a favourite colour).

Knows messages and the engine's `generate`; knows nothing of the store.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from edgemem.results import Message, to_utc
from edgemem.runtime.cut_json import close_json
from edgemem.runtime.engine import Engine
from edgemem.stages import dates
from edgemem.text import (
    NEGATION,
    content_words,
    is_negated,
    is_question,
    same_word,
    sentences,
    words,
)

__all__ = [
    "CONTEXT",
    "PROMPT",
    "SURE",
    "Fact",
    "Reading",
    "expert_target",
    "extract",
    "parse",
    "readings",
    "schema",
    "worth_reading",
]

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

CONTEXT = 2  # messages before it that an expert is shown with one
MAX_SENTENCES = 40  # of one message; a longer one is a document: searchable, not read to its end
_ASIDE = re.compile(r"\[[^\[\]]{0,500}\]")  # "[shares a photo: ...]" is no sentence of the speaker
_STAND_INS = ("Kim", "Alex", "Robin", "Sasha")
_PLAIN_NAME = re.compile(r"[A-Za-z]+")

MIN_GROUNDED = 0.75
_MAX_TOKENS = 80
_EXPERT_TOKENS = 160
SURE = 0.55  # how probable "no facts" must be for an expert to give none
_EXPERT_GROUNDED = 0.4  # it may say things in its own words, not make them up
_EXPERT_OWN = 0.2  # nor repeat what was said before
_PORTION_CHARS = 500
_PAUSE = timedelta(hours=4)  # what is said after a longer one does not go on from what was before
_MAX_SENTENCE_CHARS = 600  # a longer "sentence" is a list or a paste; it is read in pieces

# Not `.*`: llama.cpp's "." matches a bare quote or tab too, and the text would not be JSON.
_TEXT = r'[^"\\\x00-\x1f]*$'
_EXPERT_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "facts": {"type": "array", "items": {"type": "string"}, "maxItems": 8},
    },
    "required": ["facts"],
}

_FIRST_PERSON = re.compile(
    r"\b(?:i|i['’](?:m|ve|d|ll)|my|me|mine|myself|we|we['’](?:re|ve|d|ll)|our|ours|us)\b", re.I
)
_SECOND_PERSON = re.compile(
    r"\b(?:you|your|yours|yourself|you['’](?:re|ve|d|ll)|ya|y['’]all)\b", re.I
)
_UNRESOLVED = re.compile(r"\b(?:i|me|my|mine|you|your|yours|this|i['’](?:m|ve|d|ll))\b", re.I)
_CLAUSE_END = re.compile(r"[,;:.!?]|\bbut\b", re.I)
_VOCATIVES = (
    re.compile(r"(?P<before>(?:^|(?<=[.!?] )))(?P<name>[A-Z]\w{2,}), "),
    re.compile(
        r"(?P<before>\b(?i:hey|hi|hello|bye|thanks|thank you|morning|evening|night|oh|ah|aw+|wow"
        r"|yeah|yep|yes|sure|ok|okay|no|nope|congrats|congratulations|absolutely|definitely|totally"
        r"|exactly|awesome|cool|great|right|true|agreed)),? (?P<name>[A-Z]\w{2,})(?=[,.!?])"
    ),
    re.compile(r"(?P<before>), (?P<name>[A-Z]\w{2,})(?=[.!?])"),
)
_FOREIGN = re.compile(r"(?=[^\x00-\x7f])\w")  # a letter of another alphabet, no emoji
_NAME_OR_NUMBER = re.compile(rf"(?<=[\w,;:] )[A-Z]\w+|\d|{_FOREIGN.pattern}")


@dataclass(frozen=True, slots=True)
class Fact:
    """One extracted fact. source: index of the message; valid_from: ISO time it holds from.

    also: of other messages that lent it words, -1 being the last one of the context.
    """

    text: str
    source: int
    valid_from: str
    also: tuple[int, ...] = ()


def worth_reading(sentence: str) -> bool:
    """Whether a sentence may hold a fact about its speaker.

    Not: a question, fewer than three words, or talk about the other person alone. Of sentences
    without "I" or "we", those with a name, a number, or at least six words.
    """
    count = len(words(sentence))
    if is_question(sentence) or (count < 3 and not _FOREIGN.search(sentence)):
        return False
    if _FIRST_PERSON.search(sentence):
        return True
    if _SECOND_PERSON.search(sentence):
        return False
    return count >= 6 or _NAME_OR_NUMBER.search(sentence) is not None


def extract(
    engine: Engine, messages: Sequence[Message], *, context: Sequence[Message] = ()
) -> list[Fact]:
    """The facts that messages state, oldest first, without repetitions.

    context: earlier messages, shown before but not extracted from. Raises ValueError when the
    model's answer cannot be parsed (the caller keeps the turn in `pending`), ModelError as the
    engine does.
    """
    if engine.expert("extraction"):
        return _without_repetitions(_by_expert(engine, messages, context))
    facts: list[Fact] = []
    before = "".join(f"{_label(m)}: {m.content}\n" for m in context)
    for source, message in enumerate(messages):
        for sentence in _pieces(message.content)[:MAX_SENTENCES]:
            if not worth_reading(sentence):
                continue
            name = _prompt_name(message, sentence)
            answer = engine.generate(
                _prompt(before, name, sentence),
                max_tokens=_MAX_TOKENS,
                schema=schema(name),
                stage="extraction",
            )
            for text in parse(answer.text, cut=answer.finish_reason == "length"):
                if _is_grounded(text, name, sentence):
                    text = _label(message).join(re.split(rf"\b{name}\b", text))
                    facts.append(_dated(text, sentence, source, message.timestamp))
    return _without_repetitions(facts)


@dataclass(frozen=True, slots=True)
class Reading:
    """One question to an expert. source: index of the message that `message` is, or is part of.

    before: what was said before it, and where, the context's places being negative; names: of all
    who speak.
    """

    source: int
    message: Message
    before: tuple[Message, ...]
    places: tuple[int, ...]
    names: frozenset[str]

    @property
    def prompt(self) -> str:
        """The instruction, then a line for each message, with absolute dates; the last is read.

        It ends with whom the facts are about: a small model does not look that far back for a name.
        """
        lines = [f"{_label(m)}: {_line(m, self.names)}\n" for m in (*self.before, self.message)]
        if self.before:
            lines = ["Before:\n", *lines[:-1], "Now:\n", lines[-1]]
        return f"{PROMPT}\n\n{''.join(lines)}About {_label(self.message)}:\n"


def readings(messages: Sequence[Message], context: Sequence[Message] = ()) -> list[Reading]:
    """What an expert is asked about messages: one question for each that may hold a fact.

    It is shown the CONTEXT messages before, if they are of the same talk. A long message is asked
    about in portions of whole sentences. context: as `extract` takes it.
    """
    said = [*context, *messages]
    names = frozenset(_label(m) for m in said)
    found = []
    for source, message in enumerate(messages):
        earlier = range(max(source - CONTEXT, -len(context)), source)
        places = tuple(i for i in earlier if _is_of_one_talk(said[len(context) + i], message))
        before = tuple(_end_of(said[len(context) + i]) for i in places)
        if _may_tell(_line(message, names), before):
            found += [Reading(source, part, before, places, names) for part in _portions(message)]
    return found


def expert_target(facts: Sequence[str]) -> str:
    """What an expert answers, which an end-of-turn token follows."""
    return json.dumps({"facts": list(facts)}, ensure_ascii=False)


def _may_tell(text: str, before: Sequence[Message]) -> bool:
    """Whether a message may hold a fact: a sentence worth reading, however short ("I'm vegan."), or
    the answer to a question."""
    if is_question(text):
        return False
    if before and before[-1].content.rstrip().endswith("?"):
        return True
    return any(
        worth_reading(sentence) or (_FIRST_PERSON.search(sentence) and not is_question(sentence))
        for sentence in _pieces(text)[:MAX_SENTENCES]
    )


def _is_of_one_talk(earlier: Message, later: Message) -> bool:
    begun, now = (datetime.fromisoformat(m.timestamp) for m in (earlier, later))
    return abs(now - begun) <= _PAUSE


def _end_of(message: Message) -> Message:
    """The last sentences of a message, in which it asks what the next one answers."""
    if len(message.content) <= _PORTION_CHARS:
        return message
    kept = ""
    for piece in reversed(_pieces(message.content)):
        if len(kept) + len(piece) > _PORTION_CHARS:
            break
        kept = f"{piece} {kept}".strip()
    return replace(message, content=kept or message.content[-_PORTION_CHARS:])


def _portions(message: Message) -> list[Message]:
    """A message, or if it is long, parts of it of whole sentences."""
    if len(message.content) <= _PORTION_CHARS:
        return [message]
    portions, text = [], ""
    for piece in [*_pieces(message.content)[:MAX_SENTENCES], ""]:
        if text and (not piece or len(text) + len(piece) > _PORTION_CHARS):
            portions.append(replace(message, content=text))
            text = ""
        text = f"{text} {piece}".strip()
    return portions


def _line(message: Message, names: Collection[str] = ()) -> str:
    """A message with its dates written out, without the names that it calls the others by.

    A small model takes "Thanks, Ana!" for the beginning of something about Ana.
    """
    text = " ".join(dates.absolute(message.content, message.timestamp)[0].split())

    def kept(found: re.Match[str]) -> str:
        called = found["name"]
        other = any(n.startswith(called) and n != _label(message) for n in names)
        return found["before"] if other else found[0]

    for vocative in _VOCATIVES:
        text = vocative.sub(kept, text)
    return text


def _by_expert(
    engine: Engine, messages: Sequence[Message], context: Sequence[Message]
) -> list[Fact]:
    facts: list[Fact] = []
    for reading in readings(messages, context):
        answer = engine.generate(
            reading.prompt,
            max_tokens=_EXPERT_TOKENS,
            schema=_EXPERT_SCHEMA,
            stage="extraction",
            fork=(expert_target([]), expert_target(["A"]), SURE),
        )
        for text in parse(answer.text, cut=answer.finish_reason == "length"):
            if (found := _grounded(text, reading)) is not None:
                fact = _dated(*found, reading.source, reading.message.timestamp)
                facts.append(replace(fact, also=_lenders(text, reading)))
    return facts


def _grounded(fact: str, reading: Reading) -> tuple[str, str] | None:
    """An expert's fact, told of whom it is about, and its sentence; None if it is made up.

    Some of its words must be the message's; others may be of what was said before. What one says
    of oneself is about the speaker, even if the expert told it of another. What is about another,
    and more of it in their own words before, is no news.
    """
    message, speaker = reading.message, _label(reading.message)
    named = {word for name in reading.names for word in words(name)}
    new = [w for w in content_words(fact) if w not in named]

    def held(messages: Iterable[Message]) -> int:
        said = {w for m in messages for w in words(_line(m))}
        return sum(same_word(w, said) for w in new)

    shown = [*reading.before, message]
    own = held([message])
    if not new or own < _EXPERT_OWN * len(new) or held(shown) < _EXPERT_GROUNDED * len(new):
        return None
    if {w for w in new if w.isdigit()} - {w for m in shown for w in words(_line(m))}:
        return None
    sentence = max(
        _pieces(message.content) or [message.content],
        key=lambda s: sum(same_word(w, set(words(s))) for w in new),
    )
    others = reading.names - {speaker}
    other = next((o for o in others if re.match(rf"{re.escape(o)}\b", fact)), None)
    if other is None or re.search(rf"\b{re.escape(speaker)}\b", fact):
        return fact, sentence
    if held(m for m in reading.before if _label(m) == other) > own:
        return None
    for said in (sentence, message.content):
        if _FIRST_PERSON.search(said) and not (
            _SECOND_PERSON.search(said) or re.search(rf"\b{re.escape(other)}\b", said)
        ):
            return speaker + fact[len(other) :], sentence
    return fact, sentence


def _lenders(fact: str, reading: Reading) -> tuple[int, ...]:
    """The places of the messages before that have words of a fact which its own message has not."""
    own = {w for part in (*reading.names, _line(reading.message)) for w in words(part)}
    lent = [w for w in content_words(fact) if not same_word(w, own)]
    return tuple(
        place
        for place, message in zip(reading.places, reading.before, strict=True)
        if any(same_word(w, set(words(_line(message)))) for w in lent)
    )


def schema(name: str) -> dict[str, Any]:
    """At most one fact, about `name` (letters only)."""
    about = {"type": "string", "pattern": f"^{name}( |'s )" + _TEXT}
    facts = {"type": "array", "items": about, "maxItems": 1}
    return {"type": "object", "properties": {"facts": facts}, "required": ["facts"]}


def parse(text: str, *, cut: bool = False) -> list[str]:
    """The facts of an answer. cut: it ran into max_tokens, so only its whole strings are facts.

    Raises ValueError on what is not {"facts": [strings]}, nor, if cut, the beginning of it.
    """
    found = json.loads((close_json(text) or "{}") if cut else text)
    facts = found.get("facts") if isinstance(found, dict) else None
    if cut and facts is None:
        return []  # it was cut before them
    if not isinstance(facts, list) or not all(isinstance(f, str) for f in facts):
        raise ValueError(f'expected {{"facts": [strings]}}, the model gave {text[:200]!r}')
    return [f.strip() for f in facts if f.strip()]


def _label(message: Message) -> str:
    return message.name or message.role.capitalize()


def _prompt_name(message: Message, sentence: str) -> str:
    if message.name and _PLAIN_NAME.fullmatch(message.name):
        return message.name
    return next((n for n in _STAND_INS if n not in sentence), _STAND_INS[0])


def _pieces(text: str) -> list[str]:
    out: list[str] = []
    for sentence in sentences(_ASIDE.sub(" ", text)):
        while len(sentence) > _MAX_SENTENCE_CHARS:
            cut = sentence.rfind(" ", 1, _MAX_SENTENCE_CHARS) + 1 or _MAX_SENTENCE_CHARS
            out.append(sentence[:cut].strip())
            sentence = sentence[cut:]
        out.append(sentence)
    return out


def _prompt(before: str, speaker: str, sentence: str) -> str:
    examples = "".join(
        f"{name}: {said}\n{json.dumps({'facts': facts})}\n\n" for name, said, facts in _EXAMPLES
    )
    return f"{PROMPT}\n\n{examples}{before}{speaker}: {sentence}\n"


def _is_grounded(fact: str, speaker: str, sentence: str) -> bool:
    """Whether a fact says what its sentence says, of a speaker who is named."""
    if _UNRESOLVED.search(fact):
        return False
    said = set(words(sentence))
    new = [w for w in content_words(fact) if w not in words(speaker)]
    owned = re.findall(rf"\b{speaker}['’]s (\w+)", fact)
    if not all(same_word(w.lower(), said) for w in owned):
        return False  # whose what: "Kim's wife sold the car" is not "I sold the car"
    held = sum(same_word(w, said) for w in new)
    return bool(new) and held >= MIN_GROUNDED * len(new) and _is_as_negated(fact, new, sentence)


def _is_as_negated(fact: str, content: Sequence[str], sentence: str) -> bool:
    """Whether a fact denies what its sentence denies: "I can't eat nuts" is not "Kim can eat nuts".

    What a fact denies is the word after its "not"; its sentence must deny that too. A fact about
    the rest of a sentence may leave out the word after the sentence's "not".
    """
    denied = _denied(sentence)
    if is_negated(fact):
        said = [word for clause in denied for word in clause]
        return is_negated(sentence) and all(same_word(c[0], said) for c in _denied(fact))
    return not any(same_word(clause[0], content) for clause in denied)


def _denied(text: str) -> list[list[str]]:
    """The content words after each "not" of a text, up to its clause's end, if there are any."""
    clauses = (_CLAUSE_END.split(rest, 1)[0] for rest in NEGATION.split(text)[1:])
    return [denied for clause in clauses if (denied := content_words(clause))]


def _dated(text: str, sentence: str, source: int, said_at: str) -> Fact:
    """Write the sentence's relative date into the fact; if the model left it out, at its end."""
    resolved, begins = dates.absolute(text, said_at)
    found = dates.moments(sentence, said_at)
    if begins is None and len(found) == 1:
        begins = found[0].begins.isoformat()
        if found[0].text.split(" ", 1)[1] not in text:  # without "on"; an expert has read the day
            resolved = f"{text.rstrip('.')} {found[0].text}"
    return Fact(resolved, source, to_utc(f"{begins}T00:00:00+00:00") if begins else said_at)


def _without_repetitions(facts: Sequence[Fact]) -> list[Fact]:
    """Drop a fact whose words are all in another of the same batch."""
    bags = [frozenset(content_words(f.text)) for f in facts]
    return [
        fact
        for i, fact in enumerate(facts)
        if not any(
            bags[i] < bag or (bags[i] == bag and j < i) for j, bag in enumerate(bags) if j != i
        )
    ]
