"""Stage 1, extraction: messages in, facts out, each citing the turn it was taken from.

The prompt is MemLoRA's (A.1), one line. An expert adapter has learned the task from it, and reads
messages as they are, with their relative dates written out. A base model of 135 M parameters has
not, so without an expert the stage departs from the paper in three ways (bench/LOG.md has what each
gave; `bench/stages.py` measures the stage as it is):

- worked examples follow the line (their KV is computed once and kept);
- it reads one sentence at a time, and leaves out those that ask, greet or only speak of the other
  person. The schema makes the fact begin with its speaker; one without a name lends a common one,
  for the model writes badly about "User";
- a fact must be *grounded*: its words are those of its sentence. The model's inventions (its
  favourite is a favourite colour) are dropped, never stored.

An expert's facts must be grounded too, in one of the messages, which is then their source.

Knows messages and the engine's `generate`; knows nothing of the store.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
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
    "PROMPT",
    "Fact",
    "expert_prompt",
    "expert_target",
    "extract",
    "parse",
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

MAX_SENTENCES = 40  # of one message; a longer one is a document: searchable, not read to its end
_ASIDE = re.compile(r"\[[^\[\]]{0,500}\]")  # "[shares a photo: ...]" is no sentence of the speaker
_STAND_INS = ("Kim", "Alex", "Robin", "Sasha")
_PLAIN_NAME = re.compile(r"[A-Za-z]+")

MIN_GROUNDED = 0.75
_MAX_TOKENS = 80
_EXPERT_TOKENS = 160
_EXPERT_GROUNDED = 0.4  # it may say things in its own words, not make them up
_OWN_SUBJECT = 0.2
_PORTION_CHARS = 1500
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
_NAME_OR_NUMBER = re.compile(r"(?<=[\w,;:] )[A-Z]\w+|\d|[^\x00-\x7f]")


@dataclass(frozen=True, slots=True)
class Fact:
    """One extracted fact. source: index of the message; valid_from: ISO time it holds from."""

    text: str
    source: int
    valid_from: str


def worth_reading(sentence: str) -> bool:
    """Whether a sentence may hold a fact about its speaker.

    Not: a question, fewer than three words, or talk about the other person alone. Of sentences
    without "I" or "we", those with a name, a number, or at least six words.
    """
    count = len(words(sentence))
    if is_question(sentence) or (count < 3 and sentence.isascii()):
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
        return _without_repetitions(_by_expert(engine, messages))
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


def expert_prompt(messages: Sequence[Message]) -> str:
    """What an expert reads: the instruction, then a line for each message, with absolute dates."""
    lines = (f"{_label(m)}: {_one_line(m)}\n" for m in messages)
    return f"{PROMPT}\n\n{''.join(lines)}"


def expert_target(facts: Sequence[str]) -> str:
    """What an expert answers, which an end-of-turn token follows."""
    return json.dumps({"facts": list(facts)}, ensure_ascii=False)


def _one_line(message: Message) -> str:
    return " ".join(dates.absolute(message.content, message.timestamp)[0].split())


def _by_expert(engine: Engine, messages: Sequence[Message]) -> list[Fact]:
    """Facts of messages read together, or one after the other if they are long."""
    facts: list[Fact] = []
    for portion in _portions(messages):
        answer = engine.generate(
            expert_prompt([message for _, message in portion]),
            max_tokens=_EXPERT_TOKENS,
            schema=_EXPERT_SCHEMA,
            stage="extraction",
        )
        for text in parse(answer.text, cut=answer.finish_reason == "length"):
            found = _sentence_of(text, [message for _, message in portion])
            if found is not None:
                number, sentence = found
                source, message = portion[number]
                text = _of_its_speaker(text, sentence, message, [m for _, m in portion])
                facts.append(_dated(text, sentence, source, message.timestamp))
    return facts


def _portions(messages: Sequence[Message]) -> list[list[tuple[int, Message]]]:
    """What is read at once: all messages, each with its number, if they are short together.

    A longer one is read in portions of whole sentences; nothing, if it is questions only.
    """
    numbered = [(i, m) for i, m in enumerate(messages) if not is_question(m.content)]
    if not numbered:
        return []
    if sum(len(m.content) for m in messages) <= _PORTION_CHARS:
        return [list(enumerate(messages))]
    portions: list[list[tuple[int, Message]]] = []
    for number, message in numbered:
        text = ""
        for piece in [*_pieces(message.content)[:MAX_SENTENCES], ""]:
            if text and (not piece or len(text) + len(piece) > _PORTION_CHARS):
                portions.append([(number, replace(message, content=text))])
                text = ""
            text = f"{text} {piece}".strip()
    return portions


def _sentence_of(fact: str, messages: Sequence[Message]) -> tuple[int, str] | None:
    """The message, and its sentence, that an expert took a fact from; None if there is none.

    Of the messages whose words hold enough of the fact's, the one that holds most, the fact's own
    subject first.
    """
    best: tuple[float, int] | None = None
    new = [w for w in content_words(fact) if not any(w in words(_label(m)) for m in messages)]
    if not new:
        return None
    for number, message in enumerate(messages):
        said = set(words(_one_line(message)))
        share = sum(same_word(w, said) for w in new) / len(new)
        if fact.startswith(_label(message)):
            share += _OWN_SUBJECT
        if best is None or share > best[0]:
            best = share, number
    assert best is not None
    everything = {w for m in messages for w in words(_one_line(m))}
    if sum(same_word(w, everything) for w in new) < _EXPERT_GROUNDED * len(new):
        return None
    said_at = messages[best[1]]
    found = max(
        _pieces(said_at.content) or [said_at.content],
        key=lambda s: sum(same_word(w, set(words(s))) for w in new),
    )
    return best[1], found


def _of_its_speaker(fact: str, sentence: str, message: Message, messages: Sequence[Message]) -> str:
    """A fact that an expert told of another speaker than the one who said it of themselves."""
    speaker = _label(message)
    others = {_label(m) for m in messages} - {speaker}
    other = next((o for o in others if re.match(rf"{re.escape(o)}\b", fact)), None)
    if (
        other is None
        or re.search(rf"\b{re.escape(speaker)}\b", fact)
        or _SECOND_PERSON.search(sentence)
        or re.search(rf"\b{re.escape(other)}\b", sentence)
        or not _FIRST_PERSON.search(sentence)
    ):
        return fact
    return speaker + fact[len(other) :]


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
