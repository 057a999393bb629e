"""Examples of the generation stage: a question, memories as a search finds them, a short answer.

What is shown is what was told, in the speaker's words or as a fact, among other talk; the most
telling mostly comes last, as recall has it, and sometimes is not there: then the answer is not
known. Knows what was told; knows no search.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from edgemem.stages import generation
from edgemem.stages.generation import Recalled
from edgemem.text import content_words
from edgemem.training.conversation import Conversation
from edgemem.training.examples import Example
from edgemem.training.phrases import Phrases, fill, slots
from edgemem.training.told import Subject, Told, all_facts

__all__ = ["generation_examples"]

_NUMBERS = ("none", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


@dataclass(frozen=True)
class _Asked:
    """A question about a subject. gold: what answers it; shut: what must not be shown beside.

    part: the question as the phrases have it; answer: None if it is not known.
    """

    kind: str
    part: str
    answer: str | None
    subject: Subject
    values: dict[str, str]
    gold: tuple[Told, ...] = ()
    shut: Callable[[Told], bool] = lambda told: False


def generation_examples(
    rng: random.Random, book: Phrases, conversation: Conversation, group: str
) -> Iterator[Example]:
    """About one example for each thing told; one in five cannot be answered."""
    told = conversation.told
    for one in told:
        for maker in rng.choices(*zip(*_KINDS, strict=True), k=4):
            asked = maker(rng, book, conversation, one)
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
        answer = plain.replace('"', "")  # a memory is shown in quotes, so that it has none
    memories = _memories(rng, conversation, asked, question)
    return Example(
        "generation",
        generation.expert_prompt(question, memories, speaker),
        generation.expert_target(answer),
        group,
        asked.kind,
    )


# -- what is shown ---------------------------------------------------------------------------


def _memories(
    rng: random.Random, conversation: Conversation, asked: _Asked, question: str
) -> list[Recalled]:
    mode = rng.choice(("sentence", "sentence", "turn", "turn", "fact", "mixed"))
    words = frozenset(content_words(question))
    rest = [t for t in conversation.told if t not in asked.gold and not asked.shut(t)]
    rng.shuffle(rest)
    rest.sort(key=lambda t: _likeness(words, t, asked), reverse=True)
    # From what answers it and little else, reading is learned at half the cost.
    few = rng.random() < 0.5
    beside = rng.randrange(3) if few else rng.randrange(4, 9) - len(asked.gold)
    near = rest[: max(0 if asked.gold else 1, beside)]
    chatter = [
        t for turns in conversation.sessions for t in turns if not t.told and len(t.text) > 30
    ]
    shown = [_recalled(rng, t, mode) for t in near]
    if mode != "fact":
        for turn in rng.sample(chatter, min(len(chatter), rng.choice((0, 0, 1, 2)))):
            if shown:
                shown[rng.randrange(len(shown))] = Recalled(
                    turn.text, turn.at, turn.person.name, True
                )
    shown.reverse()  # the most relevant last
    if rng.random() < 0.3:
        rng.shuffle(shown)
    for told in asked.gold:
        place = rng.random()
        low = len(shown) if place < 0.5 else max(0, len(shown) - 3) if place < 0.8 else 0
        shown.insert(rng.randint(low, len(shown)), _recalled(rng, told, mode))
    if rng.random() < 0.15:
        shown.sort(key=lambda m: m.when or "")
    return list(dict.fromkeys(shown))


def _likeness(words: frozenset[str], told: Told, asked: _Asked) -> float:
    shared = len(words & set(content_words(f"{told.fact} {told.sentence}")))
    same = asked.subject.owner == told.subject.owner
    topics = {g.topic.name for g in asked.gold}
    return shared + 0.5 * same + 0.5 * (told.topic.name in topics)


def _recalled(rng: random.Random, told: Told, mode: str) -> Recalled:
    if mode == "mixed":
        mode = rng.choice(("sentence", "turn", "fact"))
    if mode == "fact" or not told.self_contained:
        return Recalled(told.fact, told.at, "User", False)
    text = told.sentence if mode == "sentence" else told.turn
    return Recalled(text, told.at, told.subject.owner.name, True)


# -- what is asked ---------------------------------------------------------------------------


def _same(told: Told) -> Callable[[Told], bool]:
    """Whether something else is about the same question, so that it would answer it, too."""

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


def _ask(
    rng: random.Random,
    told: Told,
    code: str,
    kind: str,
    *,
    shut: Callable[[Told], bool] | None = None,
) -> _Asked | None:
    lines = told.topic.of(code)
    if not lines or told.state != "holds":
        return None
    line = rng.choice(lines)
    answer = line[1] if len(line) > 1 else None
    return _Asked(kind, line[0], answer, told.subject, told.values, (told,), shut or _same(told))


def _single(
    rng: random.Random, book: Phrases, conversation: Conversation, told: Told
) -> _Asked | None:
    asked = _ask(rng, told, "q", "single")
    if asked is None or not _shown(told, asked.answer or ""):
        return None
    return asked


def _shown(told: Told, part: str) -> bool:
    """Whether the words of an answer are in what was said, or noted."""
    said = f"{told.sentence} {told.fact}".lower()
    both = all(
        told.values.get(slot, "").lower() in told.sentence.lower()
        and told.values.get(slot, "").lower() in told.fact.lower()
        for slot in slots(part)
    )
    return both and bool(said)


def _detail(
    rng: random.Random, book: Phrases, conversation: Conversation, told: Told
) -> _Asked | None:
    if told.detail is None or len(told.detail) < 4:
        return None
    part, answer = told.detail[3].split("? ", 1)
    if "{when}" in answer:
        answer = _bare(told.values["when"])
    return _Asked("single", f"{part}?", answer, told.subject, told.values, (told,), _same(told))


def _bare(when: str) -> str:
    for preposition in ("on ", "in "):
        when = when.removeprefix(preposition)
    return when


def _when(
    rng: random.Random, book: Phrases, conversation: Conversation, told: Told
) -> _Asked | None:
    when = told.values.get("when") or told.values.get("soon")
    asked = _ask(rng, told, "w", "temporal")
    if asked is None or not when or when not in told.fact:
        return None
    return replace(asked, answer=_bare(when))


def _yes(
    rng: random.Random, book: Phrases, conversation: Conversation, told: Told
) -> _Asked | None:
    lines = told.topic.of("y")
    if not lines:
        return None
    part = rng.choice(lines)[0]
    if told.state == "holds":
        return _Asked("yes", part, "Yes", told.subject, told.values, (told,), _same(told))
    if told.topic.kind in ("event",):
        return None
    return _Asked("no", part, "No", told.subject, told.values, (told,), _same(told))


def _all(conversation: Conversation, told: Told) -> list[Told]:
    found: dict[str, Told] = {}
    for other in conversation.told:
        same = other.subject == told.subject and other.topic is told.topic
        if same and other.state == "holds" and _present(other, conversation):
            found.setdefault(other.value, other)
    return list(found.values())


def _list(
    rng: random.Random, book: Phrases, conversation: Conversation, told: Told
) -> _Asked | None:
    every = _all(conversation, told)
    if not 2 <= len(every) <= 5 or not told.topic.of("l"):
        return None
    part, item = rng.choice(told.topic.of("l"))
    if not all(_shown(t, item) for t in every):
        return None
    answer = ", ".join(fill(item, t.values, told.subject.third()) for t in every)
    return _Asked("list", part, answer, told.subject, told.values, tuple(every), _same(told))


def _count(
    rng: random.Random, book: Phrases, conversation: Conversation, told: Told
) -> _Asked | None:
    every = _all(conversation, told)
    if not 1 <= len(every) <= 6 or not told.topic.of("c"):
        return None
    (part,) = rng.choice(told.topic.of("c"))
    answer = _NUMBERS[len(every)]
    return _Asked("count", part, answer, told.subject, told.values, tuple(every), _same(told))


def _changed(
    rng: random.Random, book: Phrases, conversation: Conversation, told: Told
) -> _Asked | None:
    topic = told.topic
    before = [
        t for t in conversation.told
        if t.subject == told.subject and t.topic is topic and t.at < told.at
    ]  # fmt: skip
    if topic.kind != "one" or told.state == "ended" or not before or not topic.of("q"):
        return None
    old = before[-1]
    if old.state == "ended" or old.value == told.value:
        return None
    if topic.of("b") and rng.random() < 0.4:
        part, answer = rng.choice(topic.of("b"))
        values, kind = old.values, "before"
        key = old.value
    else:
        part, answer = rng.choice(topic.of("q"))
        kind, key = "now", told.value
    values = {**told.values, topic.key: key}
    if slots(answer) != {topic.key} or (not told.self_contained and told.state == "changed"):
        return None
    return _Asked(kind, part, answer, told.subject, values, (old, told), _same(told))


def _who(
    rng: random.Random, book: Phrases, conversation: Conversation, told: Told
) -> _Asked | None:
    parts = [
        f for (f,) in told.topic.of("f")
        if f.startswith("{S} ") and f.count("{S") == 1 and "{my}" not in f and "{they}" not in f
    ]  # fmt: skip
    if not parts or told.state != "holds" or told.subject.owner.name == "User":
        return None
    part = "Who" + rng.choice(parts).removeprefix("{S}") + "?"
    if not _shown(told, part.replace("{when}", "").replace("{soon}", "")):
        return None
    values = {**told.values, "when": "", "soon": ""}
    answer = told.subject.third().subject
    return _Asked("who", part, answer, told.subject, values, (told,), _same(told))


def _common(
    rng: random.Random, book: Phrases, conversation: Conversation, told: Told
) -> _Asked | None:
    """What two people have in common: the value that both have told."""
    if told.topic.kind != "many" or told.subject.relation or told.subject.owner.name == "User":
        return None
    twins = [
        t
        for t in conversation.told
        if t.topic is told.topic and t.subject != told.subject and not t.subject.relation
        and t.value == told.value and t.state == told.state == "holds"
    ]  # fmt: skip
    if not twins:
        return None
    values = {**told.values, "other": twins[0].subject.owner.name}
    part, answer = rng.choice(book.talk["common"]), f"{{{told.topic.key}}}"
    shut = _same(told)
    return _Asked("common", part, answer, told.subject, values, (told, twins[0]), shut)


def _on_date(
    rng: random.Random, book: Phrases, conversation: Conversation, told: Told
) -> _Asked | None:
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
    answer = rng.choice(parts).removeprefix("{S} ").removesuffix(" {when}")
    values = {**told.values, "when": when}

    def shut(other: Told) -> bool:
        return other.subject == told.subject and other.values.get("when") == when

    return _Asked("did", rng.choice(book.talk["did"]), answer, told.subject, values, (told,), shut)


def _infer(
    rng: random.Random, book: Phrases, conversation: Conversation, told: Told
) -> _Asked | None:
    return _ask(rng, told, "i", "inferred")


def _unknown(
    rng: random.Random, book: Phrases, conversation: Conversation, told: Told
) -> _Asked | None:
    """A question that the memories do not answer: of another person, thing, or detail."""
    form = rng.random()
    owner = told.subject.owner
    known = {(t.subject, t.topic.family) for t in conversation.told}
    if form < 0.45:  # of somebody else
        others = [Subject(p) for p in conversation.people if p != owner and not p.assistant]
        others += [t.subject for t in conversation.told if t.subject.relation]
        if told.subject.relation:
            others.append(Subject(owner))
        others = [s for s in others if (s, told.topic.family) not in known]
        code = rng.choice([c for c in "qqwy" if told.topic.of(c)])
        if not others or code == "y":
            return None
        part = rng.choice(told.topic.of(code))[0]
        shut: Callable[[Told], bool] = lambda other: False  # noqa: E731
        return _Asked("unknown", part, None, rng.choice(others), told.values, (), shut)
    if form < 0.7:  # of something never mentioned
        free = [t for t in book.topics if (told.subject, t.family) not in known and t.of("q")]
        free = [t for t in free if any(not slots(q[0]) for q in t.of("q"))]
        if not free:
            return None
        part = rng.choice([q for q in rng.choice(free).of("q") if not slots(q[0])])[0]
        return _Asked("unknown", part, None, told.subject, {}, (), lambda other: False)
    if form < 0.85 and told.topic.of("+") and told.detail is None and told.state == "holds":
        line = rng.choice(told.topic.of("+"))
        if len(line) < 4:
            return None
        part = line[3].split("? ", 1)[0] + "?"
        return _Asked("unknown", part, None, told.subject, told.values, (told,), _same(told))
    # Simulates a search that missed what would have answered.
    asked = _single(rng, book, conversation, told)
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
