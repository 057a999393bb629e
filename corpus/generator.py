"""Training examples of invented conversations, made from the conversations' known truth.

Nothing comes from a data set or a model, so the examples have no licence but the project's own.
The same arguments give the same examples.

Update: a new fact among old memories. NONE: an old memory says it already. UPDATE: it says what an
old one says, and more. DELETE: an old one no longer holds. ADD: none of these; its memories are
near misses: another value where several may be true, another day, another person, a relative.

Generation: a question, memories as a search finds them, a short answer. The memories are what was
told, in the speaker's words or as facts, among other talk. The most relevant one mostly comes last,
as recall orders them. Sometimes it is missing, and the answer is that it is not known.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from typing import get_args

from corpus.annotated import Situation, extraction_example, update_examples
from corpus.conversation import Conversation, converse
from corpus.phrases import (
    Phrases,
    Split,
    Subject,
    Told,
    all_facts,
    fact_of,
    fill,
    phrases,
    slots,
    tell,
)
from edgemem.language import content_words
from edgemem.results import Event, Evidence
from edgemem.stages import generation
from edgemem.stages.extraction import readings
from edgemem.training.examples import STAGES, Example, Stage

_EVENTS: tuple[Event, ...] = get_args(Event)
_WEIGHTS = (19, 21, 34, 20)  # DELETE is tried more often, as not every topic has an end
_DATES = ("when", "soon")
_NUMBERS = ("none", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


def examples(
    conversations: int,
    *,
    seed: int = 0,
    split: Split = "train",
    stages: Collection[Stage] = STAGES,
) -> Iterator[Example]:
    """The examples of so many conversations, of the wanted stages.

    split: "valid" shares no phrase with "train", and no value of a list of eight or more.
    """
    book = phrases(split)
    for group, conversation in _invented(conversations, seed, split):
        if "extraction" in stages:
            yield from _extraction(conversation, group)
        if "update" in stages:
            yield from update_examples(_situations(book, conversation, group), group)
        if "generation" in stages:
            yield from _generation(book, conversation, group)


def operations(conversations: int, *, seed: int = 0, split: Split = "valid") -> Iterator[Situation]:
    """The situations of the update examples of so many conversations, with all their memories."""
    for group, conversation in _invented(conversations, seed, split):
        yield from _situations(phrases(split), conversation, group)


def _invented(conversations: int, seed: int, split: Split) -> Iterator[tuple[str, Conversation]]:
    """Conversations, each with its name."""
    for number in range(conversations):
        group = f"{split}-{seed}-{number}"
        yield group, converse(random.Random(f"{group} talk"), phrases(split))


def _extraction(conversation: Conversation, group: str) -> Iterator[Example]:
    """What `Memory.add` would ask about each turn, with the facts in it."""
    for turns in conversation.sessions:
        said = [turn.message for turn in turns]
        for reading in readings(said):
            turn = turns[reading.source]
            if not turn.person.assistant and reading.message is said[reading.source]:
                yield extraction_example(reading, [told.fact for told in turn.told], group)


def _situations(book: Phrases, conversation: Conversation, group: str) -> Iterator[Situation]:
    """About one for each thing told, the four operations equally often."""
    rng = random.Random(f"{group} update")
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


# Each gives the old memory concerned, the new fact, and what was told, which no other memory may
# repeat or contradict; None if it cannot be made.


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
    """Memories that resemble what was told and stay true beside the new fact about it."""
    found: list[str] = []
    people = [p for p in conversation.people if not p.assistant]
    others = [Subject(p) for p in people if p != told.subject.owner]
    if not others or rng.random() < 0.5:
        others.append(_relative(rng, book, told))
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
        dated = _dated(told) and _date_of(told) in new  # else either day might be meant
        if dated and told.topic.kind == "event" and rng.random() < 0.5:
            again = tell(rng, book, told.topic, told.subject, told.at)
            if _dated(again) and _date_of(again) != _date_of(told):
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


def _date_of(told: Told) -> str:
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


@dataclass(frozen=True)
class _World:
    """What questions are made from."""

    rng: random.Random
    book: Phrases
    conversation: Conversation


@dataclass(frozen=True)
class _Asked:
    """A question about a subject. gold: what answers it. shut: whether something told may not be
    shown beside that.

    part: the question's phrase, its slots not filled in. answer: such a phrase; None if not known.
    """

    kind: str
    part: str
    answer: str | None
    subject: Subject
    values: dict[str, str]
    gold: tuple[Told, ...] = ()
    shut: Callable[[Told], bool] = lambda told: False


def _generation(book: Phrases, conversation: Conversation, group: str) -> Iterator[Example]:
    """About one example for each thing told; one in five cannot be answered."""
    rng = random.Random(f"{group} generation")
    world = _World(rng, book, conversation)
    for one in conversation.told:
        for maker in rng.choices(*zip(*_KINDS, strict=True), k=4):
            asked = maker(world, one)
            if asked is not None:
                yield _example(rng, conversation, asked, group)
                break


def _example(rng: random.Random, conversation: Conversation, asked: _Asked, group: str) -> Example:
    owner = asked.subject.owner
    strangers = [p for p in conversation.people if p != owner and not p.assistant]
    if owner.name == "User" or rng.random() < 0.45:
        voice, speaker = asked.subject.own(), owner.name
    else:
        voice = asked.subject.third()
        speaker = strangers[0].name if strangers and rng.random() < 0.2 else "User"
    question = fill(asked.part, asked.values, voice)
    question = question[0].upper() + question[1:]
    answer = asked.answer
    if answer is not None:
        plain = fill(answer.removeprefix("{my} "), asked.values, asked.subject.third())
        answer = plain.replace('"', "")  # memories are shown in quotes, and without any inside
    memories = _memories(rng, conversation, asked, question)
    return Example(
        "generation",
        generation.expert_prompt(question, memories, speaker),
        generation.expert_target(answer),
        group,
        asked.kind,
    )


def _memories(
    rng: random.Random, conversation: Conversation, asked: _Asked, question: str
) -> list[Evidence]:
    mode = rng.choice(("sentence", "sentence", "turn", "turn", "fact", "mixed"))
    words = frozenset(content_words(question))
    rest = [t for t in conversation.told if t not in asked.gold and not asked.shut(t)]
    rng.shuffle(rest)
    rest.sort(key=lambda t: _likeness(words, t, asked), reverse=True)
    # From the gold and little else, reading is learned at half the cost.
    few = rng.random() < 0.5
    beside = rng.randrange(3) if few else rng.randrange(4, 9) - len(asked.gold)
    near = rest[: max(0 if asked.gold else 1, beside)]
    chatter = [
        t for turns in conversation.sessions for t in turns if not t.told and len(t.text) > 30
    ]
    shown = [_evidence(rng, t, mode) for t in near]
    if mode != "fact":
        for turn in rng.sample(chatter, min(len(chatter), rng.choice((0, 0, 1, 2)))):
            if shown:
                shown[rng.randrange(len(shown))] = Evidence(turn.text, turn.at, turn.person.name)
    shown.reverse()  # the most relevant last
    if rng.random() < 0.3:
        rng.shuffle(shown)
    for told in asked.gold:
        place = rng.random()
        low = len(shown) if place < 0.5 else max(0, len(shown) - 3) if place < 0.8 else 0
        shown.insert(rng.randint(low, len(shown)), _evidence(rng, told, mode))
    if rng.random() < 0.15:
        shown.sort(key=lambda m: m.when or "")
    return list(dict.fromkeys(shown))


def _likeness(words: frozenset[str], told: Told, asked: _Asked) -> float:
    shared = len(words & set(content_words(f"{told.fact} {told.sentence}")))
    same = asked.subject.owner == told.subject.owner
    topics = {g.topic.name for g in asked.gold}
    return shared + 0.5 * same + 0.5 * (told.topic.name in topics)


def _evidence(rng: random.Random, told: Told, mode: str) -> Evidence:
    if mode == "mixed":
        mode = rng.choice(("sentence", "turn", "fact"))
    if mode == "fact" or not told.self_contained:
        return Evidence(told.fact, told.at)
    text = told.sentence if mode == "sentence" else told.turn
    return Evidence(text, told.at, told.subject.owner.name)


def _same(told: Told) -> Callable[[Told], bool]:
    """A test of whether something else that was told would answer the same question, too."""

    def shut(other: Told) -> bool:
        if other.topic.family != told.topic.family:
            return False
        return other.subject == told.subject or other.value == told.value

    return shut


def _present(told: Told, conversation: Conversation) -> bool:
    """Whether something still holds at the end of the conversation."""
    later = conversation.told[conversation.told.index(told) + 1 :]
    return told.state != "ended" and not any(
        t.subject == told.subject and t.topic.family == told.topic.family
        and (t.topic.kind == "one" or told.value in t.values.values())
        for t in later
    )  # fmt: skip


def _about(
    told: Told,
    kind: str,
    part: str,
    answer: str | None,
    values: dict[str, str] | None = None,
    gold: tuple[Told, ...] = (),
) -> _Asked:
    """A question about something told; nothing else that answers it is shown.

    values: by default those told. gold: by default what was told.
    """
    if values is None:
        values = told.values
    return _Asked(kind, part, answer, told.subject, values, gold or (told,), _same(told))


def _ask(world: _World, told: Told, code: str, kind: str) -> _Asked | None:
    lines = told.topic.of(code)
    if not lines or told.state != "holds":
        return None
    line = world.rng.choice(lines)
    answer = line[1] if len(line) > 1 else None
    return _about(told, kind, line[0], answer)


def _single(world: _World, told: Told) -> _Asked | None:
    asked = _ask(world, told, "q", "single")
    if asked is None or not _shown(told, asked.answer or ""):
        return None
    return asked


def _shown(told: Told, part: str) -> bool:
    """Whether the values of an answer are both in what was said and in the fact noted."""
    values = [told.values.get(slot, "").lower() for slot in slots(part)]
    return all(v in told.sentence.lower() and v in told.fact.lower() for v in values)


def _detail(world: _World, told: Told) -> _Asked | None:
    if told.detail is None or len(told.detail) < 4:
        return None
    part, answer = told.detail[3].split("? ", 1)
    if "{when}" in answer:
        answer = _bare(told.values["when"])
    return _about(told, "single", f"{part}?", answer)


def _bare(when: str) -> str:
    for preposition in ("on ", "in "):
        when = when.removeprefix(preposition)
    return when


def _when(world: _World, told: Told) -> _Asked | None:
    when = told.values.get("when") or told.values.get("soon")
    asked = _ask(world, told, "w", "temporal")
    if asked is None or not when or when not in told.fact:
        return None
    return replace(asked, answer=_bare(when))


def _yes(world: _World, told: Told) -> _Asked | None:
    lines = told.topic.of("y")
    if not lines:
        return None
    part = world.rng.choice(lines)[0]
    if told.state == "holds":
        return _about(told, "yes", part, "Yes")
    return None if told.topic.kind == "event" else _about(told, "no", part, "No")


def _all(conversation: Conversation, told: Told) -> list[Told]:
    found: dict[str, Told] = {}
    for other in conversation.told:
        same = other.subject == told.subject and other.topic is told.topic
        if same and other.state == "holds" and _present(other, conversation):
            found.setdefault(other.value, other)
    return list(found.values())


def _list(world: _World, told: Told) -> _Asked | None:
    every = _all(world.conversation, told)
    if not 2 <= len(every) <= 5 or not told.topic.of("l"):
        return None
    part, item = world.rng.choice(told.topic.of("l"))
    if not all(_shown(t, item) for t in every):
        return None
    answer = ", ".join(fill(item, t.values, told.subject.third()) for t in every)
    return _about(told, "list", part, answer, gold=tuple(every))


def _count(world: _World, told: Told) -> _Asked | None:
    every = _all(world.conversation, told)
    if not 1 <= len(every) <= 6 or not told.topic.of("c"):
        return None
    (part,) = world.rng.choice(told.topic.of("c"))
    return _about(told, "count", part, _NUMBERS[len(every)], gold=tuple(every))


def _changed(world: _World, told: Told) -> _Asked | None:
    topic = told.topic
    before = [
        t for t in world.conversation.told
        if t.subject == told.subject and t.topic is topic and t.at < told.at
    ]  # fmt: skip
    if topic.kind != "one" or told.state == "ended" or not before:
        return None
    old = before[-1]
    if old.state == "ended" or old.value == told.value:
        return None
    if topic.of("b") and world.rng.random() < 0.4:
        part, answer = world.rng.choice(topic.of("b"))
        kind, key = "before", old.value
    else:
        part, answer = world.rng.choice(topic.of("q"))
        kind, key = "now", told.value
    values = {**told.values, topic.key: key}
    if slots(answer) != {topic.key} or (not told.self_contained and told.state == "changed"):
        return None
    return _about(told, kind, part, answer, values, (old, told))


def _who(world: _World, told: Told) -> _Asked | None:
    parts = [
        f for (f,) in told.topic.of("f")
        if f.startswith("{S} ") and f.count("{S") == 1 and "{my}" not in f and "{they}" not in f
    ]  # fmt: skip
    if not parts or told.state != "holds" or told.subject.owner.name == "User":
        return None
    part = "Who" + world.rng.choice(parts).removeprefix("{S}") + "?"
    if not _shown(told, part.replace("{when}", "").replace("{soon}", "")):
        return None
    return _about(told, "who", part, told.subject.third().subject, _undated(told).values)


def _common(world: _World, told: Told) -> _Asked | None:
    """What two people have in common: the value that both have told."""
    if told.topic.kind != "many" or told.subject.relation or told.subject.owner.name == "User":
        return None
    twins = [
        t
        for t in world.conversation.told
        if t.topic is told.topic and t.subject != told.subject and not t.subject.relation
        and t.value == told.value and t.state == told.state == "holds"
    ]  # fmt: skip
    if not twins:
        return None
    values = {**told.values, "other": twins[0].subject.owner.name}
    part, answer = world.rng.choice(world.book.talk["common"]), f"{{{told.topic.key}}}"
    return _about(told, "common", part, answer, values, (told, twins[0]))


def _on_date(world: _World, told: Told) -> _Asked | None:
    """What somebody did on a day: the fact without its subject and date."""
    when = told.values.get("when", "")
    parts = [
        f for f in all_facts(told.topic)
        if f.startswith("{S} ") and f.endswith(" {when}") and f.count("{S") == 1
    ]  # fmt: skip
    if told.topic.kind != "event" or told.state != "holds" or not when or not parts:
        return None
    if when not in told.fact or not _shown(told, f"{{{told.topic.key}}}"):
        return None
    answer = world.rng.choice(parts).removeprefix("{S} ").removesuffix(" {when}")

    def shut(other: Told) -> bool:
        return other.subject == told.subject and other.values.get("when") == when

    part = world.rng.choice(world.book.talk["did"])
    return _Asked("did", part, answer, told.subject, told.values, (told,), shut)


def _infer(world: _World, told: Told) -> _Asked | None:
    return _ask(world, told, "i", "inferred")


def _unknown(world: _World, told: Told) -> _Asked | None:
    """A question that the memories do not answer: of another person, thing, or detail."""
    form = world.rng.random()
    owner = told.subject.owner
    known = {(t.subject, t.topic.family) for t in world.conversation.told}
    if form < 0.45:  # of somebody else
        others = [Subject(p) for p in world.conversation.people if p != owner and not p.assistant]
        others += [t.subject for t in world.conversation.told if t.subject.relation]
        if told.subject.relation:
            others.append(Subject(owner))
        others = [s for s in others if (s, told.topic.family) not in known]
        code = world.rng.choice([c for c in "qqwy" if told.topic.of(c)])
        if not others or code == "y":
            return None
        part = world.rng.choice(told.topic.of(code))[0]
        return _Asked("unknown", part, None, world.rng.choice(others), told.values)
    if form < 0.7:  # of something never mentioned
        free = [t for t in world.book.topics if (told.subject, t.family) not in known]
        free = [t for t in free if any(not slots(q[0]) for q in t.of("q"))]
        if not free:
            return None
        part = world.rng.choice([q for q in world.rng.choice(free).of("q") if not slots(q[0])])[0]
        return _Asked("unknown", part, None, told.subject, {})
    if form < 0.85 and told.topic.of("+") and told.detail is None and told.state == "holds":
        line = world.rng.choice(told.topic.of("+"))
        if len(line) < 4:
            return None
        part = line[3].split("? ", 1)[0] + "?"
        return _about(told, "unknown", part, None)
    # Simulates a search that missed what would have answered.
    asked = _single(world, told)
    if asked is None:
        return None
    return replace(asked, kind="unknown", answer=None, gold=(), shut=_hidden(told))


def _hidden(told: Told) -> Callable[[Told], bool]:
    same = _same(told)
    return lambda other: other is told or (same(other) and other.subject == told.subject)


_KINDS: tuple[tuple[Callable[..., _Asked | None], int], ...] = (
    (_single, 14), (_detail, 14), (_when, 22), (_yes, 4), (_list, 16), (_count, 6),
    (_changed, 40), (_who, 4), (_infer, 3), (_common, 12), (_on_date, 5), (_unknown, 5),
)  # fmt: skip
