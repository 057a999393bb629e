"""Conversations whose facts and answers are known, as training examples.

A message is shown with the two before it, and has the facts that it told; the speakers get invented
names. Questions are shown what a search of the conversation finds, as algorithm B2 of MemLoRA says,
and some of them their evidence among a little of that.

Knows a Memory that searches turns, and the stages' prompts; not how conversations lie in files.
"""

from __future__ import annotations

import random
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from edgemem.importers import batches
from edgemem.memory import Memory
from edgemem.recall import asks_for_now, recall
from edgemem.results import Message, Scope
from edgemem.stages import generation
from edgemem.stages.generation import Recalled
from edgemem.stages.grounding import as_shown
from edgemem.stages.reading import readings
from edgemem.training.examples import STAGES, Example, Stage, extraction_example
from edgemem.training.phrases import phrases

__all__ = [
    "Annotated",
    "Exchange",
    "Later",
    "Pair",
    "Question",
    "as_recalled",
    "examples",
    "retrieved",
    "store",
]

_MAX_ANSWER_WORDS = 20  # a longer one explains itself
_GOLD_SHARE = 0.6  # of the questions that are shown their evidence, and little else
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


@dataclass(frozen=True)
class Exchange:
    """A message of a later chat and an ideal reply.

    evidence: the messages that the reply needs. wants: what training/intents.py reads. short: the
    few words that would do, "-" if it is not known. Both may be empty.
    """

    text: str
    reply: str
    evidence: tuple[str, ...]
    wants: str = ""
    short: str = ""


@dataclass(frozen=True)
class Later:
    """A chat that is held after the conversation. at: ISO time."""

    at: str
    exchanges: tuple[Exchange, ...]


@dataclass(frozen=True)
class Annotated:
    """messages: as `Memory.add` takes them. pronouns: "she" or "he" of each speaker with a name.

    refused: the share of the unanswerable questions to learn from. later: chats held afterwards.
    """

    id: str
    messages: Sequence[dict[str, Any]]
    pairs: Sequence[Pair]
    questions: Sequence[Question]
    pronouns: Mapping[str, str]
    refused: float = 1.0
    later: Sequence[Later] = ()


def store(memory: Memory, talk: Annotated) -> None:
    """Store a conversation's turns as they are, in a scope of its own, unless they are there."""
    if memory.store.recent_turns(Scope(user_id=talk.id), before=None, limit=1):
        return
    for batch in batches(talk.messages, infer=False):
        memory.add(batch, user_id=talk.id, infer=False)


def examples(
    memory: Memory, talk: Annotated, *, seed: int = 0, stages: Collection[Stage] = STAGES
) -> Iterator[Example]:
    """The extraction and generation examples of a conversation, whose turns `memory` takes."""
    rng = random.Random(f"{seed} {talk.id}")
    if "extraction" in stages:
        yield from _extraction(talk, rng)
    if "generation" in stages:
        store(memory, talk)
        yield from _generation(memory, talk, rng)


def _extraction(talk: Annotated, rng: random.Random) -> Iterator[Example]:
    for pair in talk.pairs:
        for reading in readings(pair.messages, pair.context):
            told = zip(pair.facts, pair.sources, strict=True)
            facts = [as_shown(fact, reading) for fact, source in told if source == reading.source]
            if None not in facts:  # who reads only this would learn to invent
                example = extraction_example(reading, [f for f in facts if f], talk.id)
                yield _renamed(example, talk.pronouns, rng)


def _generation(memory: Memory, talk: Annotated, rng: random.Random) -> Iterator[Example]:
    for question in talk.questions:
        if question.answer is None and rng.random() >= talk.refused:
            continue
        if question.answer is not None and len(question.answer.split()) > _MAX_ANSWER_WORDS:
            continue
        shown = _shown(memory, talk.id, question, rng)
        prompt = generation.expert_prompt(question.text, shown, "User")
        target = generation.expert_target(question.answer)
        yield Example("generation", prompt, target, talk.id, question.category)


def retrieved(memory: Memory, user_id: str, question: str, most: int) -> tuple[Recalled, ...]:
    """What the product shows an expert of a conversation: whole turns, the best one last."""
    hits = memory.search(question, user_id=user_id, top_k=2 * most)
    return recall(memory, question, hits, most=most, whole=True).shown


def as_recalled(message: Message) -> Recalled:
    """A message as an answer's expert is shown it."""
    speaker = message.name or message.role.capitalize()
    return Recalled(message.content, message.timestamp, speaker, said=True)


def _renamed(example: Example, pronouns: Mapping[str, str], rng: random.Random) -> Example:
    """The example with invented names for its speakers.

    Of two names a conversation an expert learns these, instead of copying whom it reads of: trained
    without this, it told nearly all of conv-26's facts of one of the two.
    """
    assert isinstance(example.prompt, str)
    lists, names = phrases("train").lists, dict[str, str]()
    for name, pronoun in pronouns.items():
        taken = (*pronouns, *names.values())
        free = [n for n in lists[pronoun] if n not in taken and n not in example.prompt]
        names[name] = rng.choice(free)
    if not names:
        return example
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
    else:
        missing = [gold for gold in question.evidence if gold not in found]
        kept = others[len(missing) :]  # the least relevant ones make room
        mixed = [shown for shown in found if shown in kept or shown in question.evidence]
        for gold in missing:
            mixed.insert(rng.randint(0, len(mixed)), gold)
    if asks_for_now(question.text):
        mixed.sort(key=lambda shown: shown.when or "")  # as recall shows them
    return tuple(mixed)
