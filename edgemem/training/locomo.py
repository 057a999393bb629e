"""LoCoMo's annotations as training examples: `observation` gives facts, `qa` gives answers.

LoCoMo is CC BY-NC 4.0; so is whatever is trained on these. Facts cite turns, so a message has the
facts that cite it; relative dates are written out in both, by the same rule, and the speakers have
invented names. Questions are shown what a search of the conversation finds, as algorithm B2 of
MemLoRA says, and some of them their evidence among a little of that; of the adversarial ones the
answer is that it is not known.

Knows LoCoMo's files and a Memory that searches them; knows nothing of training.
"""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from edgemem.importers import LocomoFile, batches, read_locomo
from edgemem.memory import Memory
from edgemem.recall import recall
from edgemem.results import Message
from edgemem.stages import dates, extraction, generation
from edgemem.stages.generation import Recalled
from edgemem.text import words
from edgemem.training.examples import Example, extraction_example
from edgemem.training.phrases import phrases

__all__ = [
    "ADVERSARIAL",
    "CATEGORIES",
    "Pair",
    "Question",
    "examples",
    "pairs",
    "questions",
    "retrieved",
]

CATEGORIES = {1: "multi-hop", 2: "temporal", 3: "open-domain", 4: "single-hop"}
ADVERSARIAL = "adversarial"
_DIALOGUE_ID = re.compile(r"\bD\d+:\d+\b")
_MAX_ANSWER_WORDS = 20  # a longer one explains itself
_GOLD_SHARE = 0.6  # of the questions that are shown their evidence, and little else
_REFUSED_SHARE = 0.2  # of the adversarial questions: all would teach to refuse too much
_SHOWN = (3, 7)  # turns that a question is shown


@dataclass(frozen=True)
class Pair:
    """Two messages that follow each other, as `Memory.add` takes them, and their facts.

    sources: of each fact, the index of its message. context: the messages before.
    """

    messages: tuple[Message, ...]
    facts: tuple[str, ...]
    sources: tuple[int, ...]
    context: tuple[Message, ...]


@dataclass(frozen=True)
class Question:
    """answer: None for one that the conversation does not tell. evidence: turns, in order."""

    text: str
    category: str
    answer: str | None
    evidence: tuple[Recalled, ...]


def pairs(path: Path) -> list[Pair]:
    """The pairs of a LoCoMo file. A fact that cites several turns is of the last one."""
    file = read_locomo(path)
    found: list[tuple[list[Message], list[tuple[str, int]], list[Message]]] = []
    place: dict[str, tuple[int, int]] = {}
    said: list[Message] = []
    for batch in batches(file.messages, infer=True):
        messages = [_message(raw) for raw in batch]
        for source, raw in enumerate(batch):
            place[raw["metadata"]["dia_id"]] = len(found), source
        found.append((messages, [], said[-extraction.CONTEXT :]))
        said += messages
    for text, cited in _observations(path):
        known = [place[id] for id in cited if id in place]
        if known:
            number, source = max(known)
            said_at = found[number][0][source].timestamp
            found[number][1].append((dates.absolute(text, said_at)[0].strip(), source))
    return [
        Pair(
            messages=tuple(messages),
            facts=tuple(text for text, _ in facts),
            sources=tuple(source for _, source in facts),
            context=tuple(context),
        )
        for messages, facts, context in found
    ]


def questions(file: LocomoFile) -> list[Question]:
    """The questions of a file whose evidence turns exist."""
    turn = {m["metadata"]["dia_id"]: _recalled(_message(m)) for m in file.messages}
    found = []
    for row in file.qa:
        cited = _ids(row.get("evidence", ()))
        shown = tuple(turn[id] for id in cited if id in turn)
        category = CATEGORIES.get(row["category"], ADVERSARIAL)
        answer = str(row["answer"]).strip() if category != ADVERSARIAL else None
        if shown:
            found.append(Question(row["question"], category, answer, shown))
    return found


def examples(memory: Memory, path: Path, *, seed: int = 0) -> Iterator[Example]:
    """The extraction and generation examples of a file.

    memory: an empty scope of it, named for the file, takes the conversation's turns.
    """
    file, rng = read_locomo(path), random.Random(f"{seed} {path.stem}")
    read = pairs(path)
    pronouns = _pronouns(read)
    for pair in read:
        told = list(zip(pair.facts, pair.sources, strict=True))
        for reading in extraction.readings(pair.messages, pair.context):
            facts = [text for text, source in told if source == reading.source]
            yield _renamed(extraction_example(reading, facts, file.sample_id), pronouns, rng)
    for batch in batches(file.messages, infer=False):
        memory.add(batch, user_id=file.sample_id, infer=False)
    for question in questions(file):
        if question.answer is None and rng.random() >= _REFUSED_SHARE:
            continue
        if question.answer is not None and len(question.answer.split()) > _MAX_ANSWER_WORDS:
            continue
        shown = _shown(memory, file.sample_id, question, rng)
        prompt = generation.expert_prompt(question.text, shown, "User")
        target = generation.expert_target(question.answer)
        yield Example("generation", prompt, target, file.sample_id, question.category)


def _pronouns(read: Sequence[Pair]) -> dict[str, str]:
    """Of each speaker "she" or "he", by what their facts say more often."""
    said: dict[str, Counter[str]] = {}
    for pair in read:
        for message in pair.messages:
            said.setdefault(message.name or message.role.capitalize(), Counter())
        for fact in pair.facts:
            if (about := next((n for n in said if fact.startswith(n)), None)) is not None:
                said[about].update(words(fact))
    return {
        name: "she" if found["she"] + found["her"] > found["he"] + found["his"] else "he"
        for name, found in said.items()
    }


def _renamed(example: Example, pronouns: Mapping[str, str], rng: random.Random) -> Example:
    """The example with invented names for its speakers.

    Of two names a conversation an expert learns these, instead of copying whom it reads of: trained
    without this, it told nearly all of conv-26's facts of one of the two.
    """
    lists, names = phrases("train").lists, dict[str, str]()
    for name, pronoun in pronouns.items():
        taken = (*pronouns, *names.values())
        free = [n for n in lists[pronoun] if n not in taken and n not in example.prompt]
        names[name] = rng.choice(free)
    speaker = re.compile(rf"\b({'|'.join(map(re.escape, names))})\b")
    prompt, target = (
        speaker.sub(lambda found: names[found[0]], text)
        for text in (example.prompt, example.target)
    )
    return replace(example, prompt=prompt, target=target)


def _shown(
    memory: Memory, user_id: str, question: Question, rng: random.Random
) -> tuple[Recalled, ...]:
    """What a question is shown: what a search finds, the evidence put in where it found none."""
    most = rng.randint(*_SHOWN)
    found = retrieved(memory, user_id, question.text, most)
    if question.answer is None:
        return found
    others = [shown for shown in found if shown not in question.evidence]
    if rng.random() < _GOLD_SHARE:
        mixed = [*question.evidence, *others[len(others) - rng.randint(0, 2) :]]
        rng.shuffle(mixed)
        return tuple(mixed)
    missing = [gold for gold in question.evidence if gold not in found]
    kept = others[len(missing) :]  # the least relevant ones make room
    mixed = [shown for shown in found if shown in kept or shown in question.evidence]
    for gold in missing:
        mixed.insert(rng.randint(0, len(mixed)), gold)
    return tuple(mixed)


def retrieved(memory: Memory, user_id: str, question: str, most: int) -> tuple[Recalled, ...]:
    """What the product shows an expert of a conversation: whole turns, the best one last."""
    hits = memory.search(question, user_id=user_id, top_k=2 * most)
    return recall(memory, question, hits, most=most, whole=True).shown


def _observations(path: Path) -> Iterator[tuple[str, list[str]]]:
    for session in json.loads(path.read_text(encoding="utf-8")).get("observation", {}).values():
        for facts in session.values():
            for text, cited in facts:
                yield text, _ids([cited])


def _ids(cited: Sequence[Any]) -> list[str]:
    """Ids of turns, however they are written: "D1:3", ["D1:3", "D1:4"], "D1:3; D1:4"."""
    return list(dict.fromkeys(id for c in cited for id in _DIALOGUE_ID.findall(str(c))))


def _message(raw: Any) -> Message:
    return Message(raw["role"], raw["content"], raw["timestamp"], raw["name"])


def _recalled(message: Message) -> Recalled:
    speaker = message.name or message.role.capitalize()
    return Recalled(message.content, message.timestamp, speaker, said=True)
