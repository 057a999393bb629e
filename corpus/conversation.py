"""Invented conversations, with the truth of every turn.

Two friends, or a person and an assistant, talk over some months: they tell things of themselves
and of people they know, change some of them, ask, joke and wander off.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from corpus.phrases import (
    FIRST_PERSON,
    SECOND_PERSON,
    Person,
    Phrases,
    Subject,
    Told,
    Topic,
    all_facts,
    as_sentence,
    fill,
    slots,
    tell,
)
from edgemem.pipeline.importers import spaced
from edgemem.results import Message

_CHATTER = (
    "hypo", "advice", "filler", "small", "fine", "compliment", "wish", "musing", "react", "maxim",
)  # fmt: skip
_OF_THE_OTHER = ("echo", "recall")  # about what the other has or does; an assistant has nothing
_INTERRUPTED = frozenset(("fine", "react", "small", "musing", "compliment", "wish", "hypo", "sad"))
_EMOJI = "😊 😂 ❤️ 🎉 😅 🙌 👍 🥰 😭 🔥 ✨ :) :D haha lol".split()


@dataclass
class Turn:
    """What one person says, and what is told in it."""

    person: Person
    text: str
    at: str
    told: list[Told] = field(default_factory=list)

    @property
    def message(self) -> Message:
        if self.person.name == "User" or self.person.assistant:
            return Message("assistant" if self.person.assistant else "user", self.text, self.at)
        return Message("user", self.text, self.at, self.person.name)


@dataclass(frozen=True)
class Conversation:
    """sessions: turns in order. told: everything told, oldest first."""

    people: tuple[Person, Person]
    sessions: list[list[Turn]]

    @property
    def told(self) -> list[Told]:
        return [told for turns in self.sessions for turn in turns for told in turn.told]


class _Talk:
    """One conversation as it grows: who is who, what was told, what was asked last."""

    def __init__(self, rng: random.Random, book: Phrases, people: tuple[Person, Person]) -> None:
        self.rng, self.book, self.people = rng, book, people
        self.told: dict[Person, list[Told]] = {p: [] for p in people}
        self.kin: dict[Person, list[Subject]] = {p: self._kin(p) for p in people}
        several = [t for t in book.topics if t.of("l")]  # what somebody comes back to
        self.often = {p: rng.sample(several, min(5, len(several))) for p in people}
        self.sessions: list[list[Turn]] = []

    def _kin(self, person: Person) -> list[Subject]:
        taken = {p.name for p in self.people}
        found: list[Subject] = []
        for _ in range(self.rng.randrange(2, 5)):
            pronoun = self.rng.choice(("she", "he"))
            relation = self.rng.choice(self.book.lists[f"rel_{pronoun}"])
            if any(s.relation == relation for s in found):
                continue
            name = self.rng.choice([n for n in self.book.lists[pronoun] if n not in taken])
            taken.add(name)
            found.append(
                Subject(person, relation, name if self.rng.random() < 0.7 else "", pronoun)
            )
        return found

    def pick(self, name: str, other: Person, known: Mapping[str, str] | None = None) -> str:
        """A phrase of talk. known: values for its slots; the other slots get random values."""
        said = self.book.talk[name]
        if other.assistant:  # nobody calls an assistant by name
            said = [phrase for phrase in said if "{other}" not in phrase]
        phrase = self.rng.choice(said)
        named = sorted(slots(phrase) - {"other"})
        values = {s: (known or {}).get(s) or self.rng.choice(self.book.lists[s]) for s in named}
        text = fill(phrase, {"other": other.name} | values)
        if name in _INTERRUPTED and self.rng.random() < 0.3:
            first = text.split(" ", 1)[0].split("'")[0].rstrip(",.!")
            if first not in self.book.proper | {other.name}:
                text = text[0].lower() + text[1:]
            text = f"{self.rng.choice(self.book.talk['interj'])}, {text}"
        addressed = name in _INTERRUPTED and text[-1].isalnum() and not other.assistant
        if addressed and other.name not in text and self.rng.random() < 0.12:
            text += f", {other.name}"
        return text

    def news(self, person: Person, at: str, topic: Topic | None = None) -> Told:
        """Something to tell: a change of what was told, or a new thing (about topic, if given)."""
        rng, told = self.rng, self.told[person]
        if topic is None and told and rng.random() < 0.25:
            changed = self.change(person, at)
            if changed is not None:
                return changed
        if topic is None and rng.random() < 0.08:
            (other,) = (p for p in self.people if p != person)
            shared = [t for t in self.told[other] if t.topic.kind == "many" and t.state == "holds"]
            shared = [t for t in shared if not t.subject.relation]
            if shared:  # "me, too"
                like = rng.choice(shared)
                return tell(rng, self.book, like.topic, Subject(person), at, like=like)
        subject = Subject(person)
        if topic is None:
            topic = rng.choice(self.often[person] if rng.random() < 0.4 else self.book.topics)
            if self.kin[person] and rng.random() < 0.22:
                subject = rng.choice(self.kin[person])
        known = [t for t in told if t.subject == subject and t.topic.family == topic.family]
        if topic.kind == "one" and known:
            topic = rng.choice([t for t in self.book.topics if t.kind != "one"])
        new = tell(rng, self.book, topic, subject, at)
        if any(t.topic is topic and t.value == new.value for t in told):
            return self.news(person, at)
        return new

    def change(self, person: Person, at: str) -> Told | None:
        """An end or a change of something told, mostly of a topic with one value at a time.

        None if what was chosen has ended, or the topic has no such phrases.
        """
        rng, told = self.rng, self.told[person]
        one = [t for t in told if t.topic.kind == "one"]
        old = rng.choice(one if one and rng.random() < 0.6 else told)
        latest = [
            t
            for t in told
            if t.subject == old.subject
            and t.topic is old.topic
            and (t.topic.kind == "one" or old.value in t.values.values())
        ][-1]
        states = [s for s, code in (("ended", "-"), ("changed", "!")) if old.topic.of(code)]
        if latest.state == "ended" or not states:
            return None
        state = rng.choice(states)
        return tell(rng, self.book, old.topic, old.subject, at, before=latest, state=state)

    def session(self, start: str, length: int) -> None:
        rng = self.rng
        turns: list[Turn] = []
        self.sessions.append(turns)
        first = rng.randrange(2)
        asked: tuple[Topic, tuple[str, ...]] | None = None
        chatter = False  # a run of turns without facts
        while len(turns) < length:
            number = len(turns)
            person, other = self.people[(number + first) % 2], self.people[(number + first + 1) % 2]
            turn = Turn(person, "", spaced(start, number))
            last = turns[-1] if turns else None
            parts: list[str] = []
            if number < 2 and rng.random() < 0.8:
                parts.append(self.pick("greetback" if number else "greet", other))
            if rng.random() < 0.2:
                chatter = not chatter
            if person.assistant:
                parts.append(self.pick("assistant", other))
                turn.text = self.spoken(parts, person)
                turns.append(turn)
                continue
            if last and not last.person.assistant:
                parts += self.reaction(last, other)
            wants = 0.15 if chatter else 0.75
            if asked is not None:
                self.answer(turn, parts, asked)
                asked = None
            elif rng.random() < wants and number < length - 2:
                for _ in range(2 if rng.random() < 0.2 else 1):
                    self.add(turn, parts, self.news(person, turn.at))
            elif other.assistant and rng.random() < 0.6:
                parts.append(self.pick("userask", other))
            elif not parts or rng.random() < 0.6:
                kinds = _CHATTER if other.assistant else _CHATTER + _OF_THE_OTHER
                some = rng.sample(kinds, rng.choice((1, 1, 2, 3)))
                parts += [self.pick(kind, other) for kind in some]
            if number >= length - 2:
                parts.append(self.pick("byeback" if number == length - 1 else "bye", other))
            elif not other.assistant and rng.random() < 0.45:
                topic = rng.choice(self.book.topics)
                if rng.random() < 0.45 and number < length - 3 and number % 2 == 0:
                    asked = self.ask(parts, topic)
                else:
                    parts.append(self.pick(rng.choice(("tail", "follow", "enquire")), other))
            turn.text = self.spoken(parts, person)
            photos = [
                p for t in turn.told[:1] for (p,) in t.topic.of("p") if slots(p) <= set(t.values)
            ]
            if turn.told and photos and rng.random() < 0.22:
                picture = fill(rng.choice(photos), {**turn.told[0].values, "my": "a"})
                turn.text += f" [shares a photo: {picture}]"
            elif rng.random() < 0.03:
                turn.text += f" [shares a photo: {self.pick('aphoto', other)}]"
            turn.told = [replace(told, turn=turn.text) for told in turn.told]
            turns.append(turn)

    def reaction(self, last: Turn, other: Person) -> list[str]:
        rng, parts = self.rng, []
        if not last.told:
            if rng.random() < 0.3:
                parts.append(self.pick(rng.choice(("fine", "react", "small")), other))
            return parts
        told = last.told[-1]
        sad = told.state == "ended" or told.topic.name in ("injury", "illness")
        if rng.random() < 0.65:
            parts.append(self.pick("sad" if sad else "react", other))
        echoes = [r for (r,) in told.topic.of("r") if slots(r) <= set(told.values)]
        if echoes and told.state == "holds" and rng.random() < 0.45:
            parts.append(fill(rng.choice(echoes), told.values))
        if not sad and rng.random() < 0.4:
            parts.append(self.pick("echo", other, told.values))
        if rng.random() < 0.3:
            kinds = ("fine", "compliment", "wish", "advice", "musing", "maxim", "recall")
            parts.append(self.pick(rng.choice(kinds), other, told.values))
        return parts

    def ask(self, parts: list[str], topic: Topic) -> tuple[Topic, tuple[str, ...]] | None:
        """Ask the other about a topic, if that can be asked without naming its value."""
        plain = [q for q in topic.of("q") if not slots(q[0]) and _facts_of(topic, q[1])]
        if not plain:
            return None
        question = self.rng.choice(plain)
        parts.append(fill(question[0], {}, SECOND_PERSON))
        return topic, question

    def answer(self, turn: Turn, parts: list[str], asked: tuple[Topic, tuple[str, ...]]) -> None:
        """Answer in a few words, or at length."""
        topic, question = asked
        if self.rng.random() < 0.35 or (
            topic.kind == "one"
            and any(t.topic.family == topic.family for t in self.told[turn.person])
        ):
            return  # evades: the next part is small talk
        told = self.news(turn.person, turn.at, topic)
        if told.topic is not topic or self.rng.random() < 0.5:
            self.add(turn, parts, told)
            return
        values = {**told.values, "when": "", "soon": ""}
        short = fill(question[1], values, FIRST_PERSON)
        part = self.rng.choice(_facts_of(topic, question[1]))
        fact = as_sentence(fill(part, values, told.subject.third()))
        form = self.rng.choice(
            ("{}", "{}, actually", "{}!", "hmm, {}", "{} :)", "{} these days", "it's {}")
        )
        if topic.kind in ("event", "plan"):
            form = self.rng.choice(("{}", "{}!", "hmm, {}"))
        parts.append(form.format(short))
        new = Told(
            topic, told.subject, values, turn.at, fact=fact, sentence=fact, self_contained=False
        )
        self.keep(turn, new)

    def add(self, turn: Turn, parts: list[str], told: Told) -> None:
        """Put something told into a turn, with talk around it."""
        rng = self.rng
        fact, sentence = told.fact, told.sentence  # these are kept without the talk around them
        if (
            told.topic.kind != "plan"
            and told.state == "holds"
            and told.topic.name in _FELT
            and rng.random() < 0.5
        ):
            said, felt = rng.choice(self.book.talk["feel"]).split(" => ")
            rel = {"rel": rng.choice(self.book.lists["rel"])}
            own = told.subject.own()
            if told.subject.relation:
                own = replace(own, subject=own.they, possessive=own.my)
            sentence += f" {as_sentence(fill(said, rel, own))}"
            fact = f"{fact.rstrip('.')} {fill(felt, rel, told.subject.third())}."
        if rng.random() < 0.3:
            opener = self.pick("opener", turn.person)
            first = sentence.split(" ", 1)[0].removesuffix("'s").rstrip(",.")
            goes_on = first not in self.book.proper and not opener.endswith("!")
            begun = sentence[0].lower() if goes_on else sentence[0]
            parts.append(f"{opener} {begun}{sentence[1:]}")
        else:
            parts.append(sentence)
        if rng.random() < 0.35:
            parts.append(self.pick(rng.choice(("filler", "filler", "musing")), turn.person))
        self.keep(turn, replace(told, fact=fact, sentence=sentence))

    def keep(self, turn: Turn, told: Told) -> None:
        turn.told.append(told)
        self.told[turn.person].append(told)

    def spoken(self, parts: list[str], person: Person) -> str:
        """The parts as one text, in the speaker's manner."""
        rng = self.rng
        out = []
        for part in parts:
            part = part.strip()
            part = part[0].upper() + part[1:]
            if part[-1].isalnum() or part[-1] in "'\")":
                part += "!" if rng.random() < 0.25 else "."
            out.append(part)
        text = " ".join(out)
        if person.assistant:
            return text
        if rng.random() < person.informal:
            text = informal(rng, text)
        if rng.random() < 0.5 * person.informal:
            text += f" {rng.choice(_EMOJI)}"
        return text


_FELT = frozenset(
    "workshop outing race contest volunteer concert cooking painting hike museum pastTrip built "
    "startbusiness achievement".split()
)


def _facts_of(topic: Topic, answer: str) -> list[str]:
    """The fact phrases of a topic whose slots an answer fills."""
    return [f for f in all_facts(topic) if slots(f) - {"when", "soon"} <= slots(answer)]


def informal(rng: random.Random, text: str) -> str:
    """Contractions and careless spelling, as in chats."""
    for plain, loose in (
        ("I am ", "I'm "), ("I have ", "I've "), ("going to ", "gonna "), ("really", "rly"),
        ("you ", "u "), ("because", "cuz"), ("though", "tho"), ("want to", "wanna"),
        ("I'm", "im"), ("don't", "dont"), ("!", "!!"),
    ):  # fmt: skip
        if rng.random() < 0.25:
            text = text.replace(plain, loose)
    if rng.random() < 0.3:
        text = text.rstrip(".")
    if rng.random() < 0.15:
        text = text.replace("I ", "i ")
    return text


def converse(rng: random.Random, book: Phrases) -> Conversation:
    """One conversation of several sessions."""
    names = [(n, p) for p in ("she", "he") for n in book.lists[p]]
    (a, pa), (b, pb) = rng.sample(names, 2)
    people = (
        (Person("User", "they", rng.random() * 0.6), Person("Assistant", "they", 0, True))
        if rng.random() < 0.25
        else (Person(a, pa, rng.random() * 0.6), Person(b, pb, rng.random() * 0.6))
    )
    talk = _Talk(rng, book, people)
    day = datetime(
        rng.randrange(2020, 2027), rng.randrange(1, 13), rng.randrange(1, 28), tzinfo=UTC
    )
    for _ in range(rng.randrange(6, 11)):
        day += timedelta(days=rng.randrange(2, 40))
        start = day.replace(hour=rng.randrange(7, 23), minute=rng.randrange(60))
        talk.session(start.isoformat(), rng.randrange(9, 23))
    return Conversation(people, talk.sessions)
