"""Examples of the update stage: a new fact, old memories, and what follows for which of them.

NONE: an old memory says it already. UPDATE: it says what an old one says, and more. DELETE: an old
one no longer holds. ADD: none of these; its memories are near misses: another value where several
may be true, another day, another person, a relative. Knows what was told; knows no dialogue.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import get_args

from edgemem.results import Event
from edgemem.stages import update
from edgemem.text import content_words
from edgemem.training.conversation import Conversation
from edgemem.training.examples import Example
from edgemem.training.phrases import Phrases, slots
from edgemem.training.told import (
    Subject,
    Told,
    all_facts,
    fact_of,
    tell,
)

__all__ = ["Situation", "situations", "update_examples"]

_EVENTS: tuple[Event, ...] = get_args(Event)
_WEIGHTS = (19, 21, 34, 20)  # not every topic has an end: DELETE comes to a quarter
_DATES = ("when", "soon")


@dataclass(frozen=True, slots=True)
class Situation:
    """A new fact among old memories. number: which of them the event means; of ADD, the next."""

    memories: tuple[str, ...]
    fact: str
    event: Event
    number: int


def situations(
    rng: random.Random, book: Phrases, conversation: Conversation
) -> Iterator[Situation]:
    """About one for each thing told, the four operations equally often."""
    for told in conversation.told:
        if told.state != "holds":
            continue
        event = rng.choices(_EVENTS, _WEIGHTS)[0]
        pair = _PAIRS[event](rng, book, told)
        if pair is None:
            continue
        old, new, allowed = pair
        memories = [old] if old else []
        others = _near(rng, book, conversation, allowed, new)
        rng.shuffle(others)
        memories += others[: rng.choice((0, 1, 2, 2, 3, 3)) if old else rng.choice((1, 2, 3, 4))]
        memories = list(dict.fromkeys(memories))
        if new in memories and event == "ADD":
            continue
        if rng.random() < 0.5:
            rng.shuffle(memories)
        number = memories.index(old) if old else len(memories)
        yield Situation(tuple(memories), new, event, number)


def update_examples(found: Iterable[Situation], group: str) -> Iterator[Example]:
    """The meant memory and its event; of an ADD, the memory that is most like the fact."""
    for situation in found:
        if situation.event == "ADD":
            said = set(content_words(situation.fact))
            memory = max(situation.memories, key=lambda m: len(said & set(content_words(m))))
        else:
            memory = situation.memories[situation.number]
        yield Example(
            "update",
            update.expert_prompt(situation.fact, memory),
            update.expert_target(situation.event),
            group,
            situation.event,
        )


# A pair: the old memory that is meant, the new fact, and what distractors must not touch.


def _none(rng: random.Random, book: Phrases, told: Told) -> tuple[str, str, Told] | None:
    old, new = _two(rng, told)
    form = rng.random()
    if form < 0.2 and told.topic.of("+"):
        old = _extended(rng, told)
    elif form < 0.4 and _dated(told) and told.topic.kind == "event":
        new = _plain(rng, _undated(told))
    elif form < 0.5:
        new = old
    return old, new, told


def _update(rng: random.Random, book: Phrases, told: Told) -> tuple[str, str, Told] | None:
    if _dated(told) and told.topic.kind == "event" and rng.random() < 0.2:
        return _plain(rng, _undated(told)), _plain(rng, told), told
    if not told.topic.of("+"):
        return None
    return _plain(rng, told), _extended(rng, told), told


def _delete(rng: random.Random, book: Phrases, told: Told) -> tuple[str, str, Told] | None:
    topic = told.topic
    codes = [code for code in "-!" if topic.of(code)]
    if topic.kind == "one" and rng.random() < 0.4:
        rivals = [t for t in book.topics if t.family == topic.family]
        rival = tell(rng, book, rng.choice(rivals), told.subject, told.at, detailed=0.2)
        if rival.value == told.value:
            return None
        return _plain(rng, told), rival.fact, told
    if not codes:
        return None
    state = "ended" if rng.choice(codes) == "-" else "changed"
    later = tell(rng, book, topic, told.subject, told.at, before=told, state=state)
    old = _extended(rng, told) if topic.of("+") and rng.random() < 0.2 else _plain(rng, told)
    return old, later.fact, told


def _add(rng: random.Random, book: Phrases, told: Told) -> tuple[None, str, Told] | None:
    new = _extended(rng, told) if told.topic.of("+") and rng.random() < 0.25 else _plain(rng, told)
    return None, new, told


_PAIRS = {"NONE": _none, "UPDATE": _update, "DELETE": _delete, "ADD": _add}


def _near(
    rng: random.Random, book: Phrases, conversation: Conversation, told: Told, new: str
) -> list[str]:
    """Memories that resemble what was told and are not touched by the new fact about it."""
    found: list[str] = []
    people = [p for p in conversation.people if not p.assistant]
    others = [Subject(p) for p in people if p != told.subject.owner]
    if not others or rng.random() < 0.5:
        kin = _relative(rng, book, told)
        others.append(kin if kin.relation else Subject(told.subject.owner))
    for other in others:  # somebody else: the same, or another value
        if rng.random() < 0.5:
            found.append(_plain(rng, replace(told, subject=other)))
        else:
            found.append(tell(rng, book, told.topic, other, told.at).fact)
    if told.topic.kind != "one":
        for _ in range(2):
            more = tell(rng, book, told.topic, told.subject, told.at)
            if more.value != told.value:
                found.append(more.fact)
        dated = _dated(told) and _when(told) in new  # else either day might be meant
        if dated and told.topic.kind == "event" and rng.random() < 0.5:
            again = tell(rng, book, told.topic, told.subject, told.at)
            if _dated(again) and _when(again) != _when(told):
                found.append(
                    _plain(rng, replace(told, values={**told.values, "when": again.values["when"]}))
                )
    far = [
        t for t in conversation.told
        if t.topic.family != told.topic.family and t.state == "holds"
    ]  # fmt: skip
    own = [t for t in far if t.subject == told.subject]
    found += [t.fact for t in rng.sample(own, min(2, len(own)))]
    found += [t.fact for t in rng.sample(far, min(1, len(far)))]
    return found


def _relative(rng: random.Random, book: Phrases, told: Told) -> Subject:
    if told.subject.relation:
        return Subject(told.subject.owner)
    pronoun = rng.choice(("she", "he"))
    relation = rng.choice(book.lists[f"rel_{pronoun}"])
    name = rng.choice(book.lists[pronoun]) if rng.random() < 0.7 else ""
    return Subject(told.subject.owner, relation, name, pronoun)


def _dated(told: Told) -> bool:
    noted = {slot for part in all_facts(told.topic) for slot in slots(part)}
    return any(told.values.get(slot) and slot in noted for slot in _DATES)


def _when(told: Told) -> str:
    return told.values.get("when", "")


def _undated(told: Told) -> Told:
    return replace(told, values={**told.values, "when": "", "soon": ""})


def _plain(rng: random.Random, told: Told) -> str:
    return fact_of(rng.choice(all_facts(told.topic)), told)


def _two(rng: random.Random, told: Told) -> tuple[str, str]:
    facts = all_facts(told.topic)
    first, second = rng.sample(facts, 2) if len(facts) > 1 else (facts[0], facts[0])
    return fact_of(first, told), fact_of(second, told)


def _extended(rng: random.Random, told: Told) -> str:
    detail = told.detail or rng.choice(told.topic.of("+"))
    return fact_of(rng.choice(detail[2].split(" | ")), told)
