"""The types of annotated data, and the training examples that are made from them.

A message is shown with the two before it, and has the facts that it told; the speakers get invented
names. A question is shown either its evidence and little else, or what a search of the conversation
finds (MemLoRA, algorithm B2) with its evidence put in. A later chat is played through a real `Chat`
whose model is a script, so that an expert learns from what the product would show it. Half of the
messages for the stage intent lose capitals and marks, so that no question mark gives it away.
"""

from __future__ import annotations

import random
import re
from collections.abc import Collection, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import groupby, pairwise
from typing import Any, get_args

from corpus.phrases import phrases
from edgemem.chat import Chat
from edgemem.language import DAY_TEXT, asks_for_now, content_words
from edgemem.memory import Memory
from edgemem.pipeline.days import with_days
from edgemem.pipeline.importers import batches
from edgemem.pipeline.recall import recall
from edgemem.results import Event, Evidence, Message, Scope
from edgemem.runtime.engine import Engine, Generation, Prompt, Stream
from edgemem.stages import extraction, generation, intent, update
from edgemem.stages.evidence import shown_text
from edgemem.stages.extraction import Reading, label, readings
from edgemem.stages.intent import REMARK, TELLS, Want
from edgemem.stages.reply import talk_prompt
from edgemem.training.examples import STAGES, Example, Stage

_MAX_ANSWER_WORDS = 30  # of answers to learn; longer ones are reasons, opinions, lists
_GOLD_SHARE = 0.6  # share of the questions that are shown their evidence, and little else
_UNDATED, _LATEST_DAYS = 0.3, 60  # share of questions without a time; most days after the talk
_SHOWN = (3, 7)  # turns that a question is shown
_AFTER = 0.3  # share of questions to an assistant that come after another message
_WRITES_ALL = 4_000_000_000  # parameters from which `Chat` leaves every answer to the model
_MOST_SHOWN = 0.75  # share of a reply's evidence that must be shown; of one or two, all
_WINDOWS = (704, 1024)  # tokens of the windows for which replies are learned
_TALK_WORDS = 40  # of a reply without memory that is learned, at most
_NEW_DAY = re.compile(rf" \(on {DAY_TEXT}\)")  # as `with_days` writes it
MARKS = re.compile(r"(?<!\d)[.,;:!?]+|[.,;:!?]+(?!\d)")


@dataclass(frozen=True)
class Pair:
    """One or two messages that follow each other, as `Memory.add` takes them, and their facts.

    sources: for each fact, the index of its message. context: the messages before.
    """

    messages: tuple[Message, ...]
    facts: tuple[str, ...]
    sources: tuple[int, ...]
    context: tuple[Message, ...]


@dataclass(frozen=True)
class Question:
    """A question on a conversation. answer: None if it does not tell. evidence: turns, in order."""

    text: str
    category: str
    answer: str | None
    evidence: tuple[Evidence, ...]


@dataclass(frozen=True)
class Exchange:
    """A message of a later chat and an ideal reply.

    evidence: the messages that the reply needs. wants: a label that `wanted` reads. short: the
    answer in a few words, "-" if it is not known. quotes: the words of the evidence that matter.
    wants and short may be empty.
    """

    text: str
    reply: str
    evidence: tuple[str, ...]
    wants: str = ""
    short: str = ""
    quotes: tuple[str, ...] = ()


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


@dataclass(frozen=True, slots=True)
class Situation:
    """A new fact among old memories. number: index of the one concerned; len(memories) for ADD."""

    memories: tuple[str, ...]
    fact: str
    event: Event
    number: int


@dataclass(frozen=True)
class Labelled:
    """A message, what was said before it, what it wants, and whether it tells something.

    group: messages that a split keeps together.
    """

    text: str
    before: str
    wants: Want | None
    tells: bool
    group: str


def store(memory: Memory, talk: Annotated) -> None:
    """Store a conversation's turns as they are, in a scope of its own, unless it has some."""
    if memory.store.recent_turns(Scope(user_id=talk.id), before=None, limit=1):
        return
    for batch in batches(talk.messages, infer=False):
        memory.add(batch, user_id=talk.id, infer=False)


def retrieved(memory: Memory, user_id: str, question: str, most: int) -> tuple[Evidence, ...]:
    """The turns that the product shows an expert for a question, whole, the best one last."""
    hits = memory.search(question, user_id=user_id, top_k=2 * most)
    return recall(memory, question, hits, most=most, whole=True, ended=True)


def as_evidence(message: Message) -> Evidence:
    """A message as generation's expert is shown it."""
    return Evidence(message.content, message.timestamp, label(message))


def examples(
    memory: Memory, talk: Annotated, *, seed: int = 0, stages: Collection[Stage] = STAGES
) -> Iterator[Example]:
    """The extraction and generation examples of a conversation.

    Those for generation store its turns in `memory`.
    """
    rng = random.Random(f"{seed} {talk.id}")
    if "extraction" in stages:
        yield from _extraction(talk, rng)
    if "generation" in stages:
        store(memory, talk)
        yield from _generation(memory, talk, rng)


def extraction_example(reading: Reading, facts: Sequence[str], group: str) -> Example:
    """A question to extraction's expert, and the facts that it should find."""
    target = extraction.expert_target(facts)
    return Example("extraction", reading.prompt, target, group, "facts" if facts else "empty")


def _extraction(talk: Annotated, rng: random.Random) -> Iterator[Example]:
    for pair in talk.pairs:
        for reading in readings(pair.messages, pair.context):
            told = zip(pair.facts, pair.sources, strict=True)
            facts = [
                extraction.as_shown(fact, reading)
                for fact, source in told
                if source == reading.source
            ]
            if None not in facts:  # a fact that needs more than is shown would teach to invent
                example = extraction_example(reading, [f for f in facts if f], talk.id)
                yield _renamed(example, talk.pronouns, rng)


def _generation(memory: Memory, talk: Annotated, rng: random.Random) -> Iterator[Example]:
    for question in talk.questions:
        if question.answer is None and rng.random() >= talk.refused:
            continue
        if question.answer is not None and len(question.answer.split()) > _MAX_ANSWER_WORDS:
            continue
        shown = _shown(memory, talk.id, question, rng)
        shown = with_days(memory.embedder, question.text, shown)
        asked_at = _asked_at(talk, rng)
        before = _before(talk, rng)
        prompt = generation.expert_prompt(question.text, shown, "User", before, asked_at)
        target = generation.expert_target(question.answer)
        yield Example("generation", prompt, target, talk.id, question.category)


def _before(talk: Annotated, rng: random.Random) -> tuple[str, str] | None:
    """An exchange of a conversation with an assistant; mostly None.

    In a running chat a question is shown what was said before it, though it seldom asks about that.
    """
    exchanges = [
        (said["content"], answered["content"])
        for said, answered in pairwise(talk.messages)
        if (said["role"], answered["role"]) == ("user", "assistant")
    ]
    return rng.choice(exchanges) if exchanges and rng.random() < _AFTER else None


def _asked_at(talk: Annotated, rng: random.Random) -> str | None:
    """A random time after the conversation; sometimes None."""
    last = talk.messages[-1].get("timestamp") if talk.messages else None
    if last is None or rng.random() < _UNDATED:
        return None
    asked = datetime.fromisoformat(str(last)) + timedelta(days=rng.randint(1, _LATEST_DAYS))
    return asked.isoformat()


def _renamed(example: Example, pronouns: Mapping[str, str], rng: random.Random) -> Example:
    """The example with invented names for its speakers.

    Each conversation has only two names, which an expert would learn, instead of copying those it
    reads. Trained without this, it attributed nearly all facts of a conversation to one of them
    (bench/LOG.md, 2026-11-22).
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
) -> tuple[Evidence, ...]:
    """What a question is shown: its evidence and at most two turns that a search found.

    Other questions are shown the search's results with the evidence put in; a question without an
    answer, the results alone.
    """
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


def update_examples(found: Iterable[Situation], group: str) -> Iterator[Example]:
    """An example for each situation: the memory concerned; for ADD, the one most like the fact."""
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


def pair_examples(found: Iterable[Situation], name: str) -> Iterator[Example]:
    """The update examples of a file of pairs, a group for each old memory. name: the file's."""
    for number, (_, of_one) in enumerate(groupby(found, key=lambda s: s.memories), 1):
        yield from update_examples(of_one, f"{name}-{number}")


def wanted(text: str) -> tuple[Want | None, bool]:
    """A label's meaning: what a message wants, and whether it tells something.

    text: as in "tell", "recall", "tell and task", or "remark" for neither. Raises ValueError on any
    other.
    """
    if text == TELLS:
        return None, True
    if text == REMARK:
        return None, False
    wants: tuple[Want, ...] = get_args(Want)
    for want in wants:
        if text.removeprefix(f"{TELLS} and ") == want:
            return want, text != want
    raise ValueError(f"a message wants {text!r}; allowed: {TELLS}, {REMARK}, {', '.join(wants)}")


def labelled(talk: Annotated, *, seed: int = 0) -> Iterator[Labelled]:
    """The labelled messages of a conversation with later chats.

    The chats' messages have labels. Messages that they need as evidence only tell, unless they
    have a question mark. seed: chooses what these are said after.
    """
    rng = random.Random(f"{seed} {talk.id} intents")
    asked = [exchange for later in talk.later for exchange in later.exchanges]
    told = {text for exchange in asked for text in exchange.evidence if "?" not in text}
    for later in talk.later:
        before = ""
        for exchange in later.exchanges:
            if exchange.wants:
                wants, tells = wanted(exchange.wants)
                yield Labelled(exchange.text, before, wants, tells, talk.id)
            before = exchange.text
    for text in sorted(told):
        before = rng.choice(asked).text if rng.random() < 0.5 else ""
        yield Labelled(text, before, None, True, talk.id)


def bare(messages: Iterable[Labelled], *, seed: int = 0) -> Iterator[Labelled]:
    """The messages, half of them without capitals and marks."""
    rng = random.Random(seed)
    for message in messages:
        text = message.text
        yield replace(message, text=MARKS.sub("", text).lower()) if rng.random() < 0.5 else message


def intent_examples(messages: Iterable[Labelled], *, seed: int = 0) -> Iterator[Example]:
    """The intent examples of labelled messages, half of which are made bare."""
    for m in bare(messages, seed=seed):
        target = intent.expert_target(m.wants, tells=m.tells)
        prompt = intent.expert_prompt(m.text, m.before)
        yield Example(intent.STAGE, prompt, target, m.group, target.strip())


def reply_examples(memory: Memory, talk: Annotated, *, seed: int = 0) -> Iterator[Example]:
    """An example for each later chat, up to its last answer whose evidence is shown.

    The conversation's turns are stored in `memory`. An answer whose evidence is not shown is not
    learned: it would teach to invent.
    """
    rng = random.Random(f"{seed} {talk.id} replies")
    written = _written(memory, talk)
    for later in talk.later:
        script = _Script(memory.engine, rng.choice(_WINDOWS), {"intent", "reply"})
        script.n_params = _WRITES_ALL
        chat = Chat(memory, script, user_id=talk.id)  # type: ignore[arg-type]
        told = list(_told(chat, script, later, written))
        said = [*script.prompt, {"role": "assistant", "content": script.answer}]
        places = [i for i, message in enumerate(said) if message["role"] == "assistant"]
        learned = [i for i, told in zip(places, told[-len(places) :], strict=True) if told]
        if learned:
            *earlier, last = learned
            target = said[last]["content"]
            yield Example("reply", said[:last], target, talk.id, "chat", tuple(earlier))


def talk_examples(talk: Annotated) -> Iterator[Example]:
    """Examples of an assistant's replies without memory, to news and to general questions.

    One for each session and each later chat; a long reply in it is read, but not learned.
    """
    if {message["role"] for message in talk.messages} != {"user", "assistant"}:
        return
    sessions = groupby(talk.messages, key=lambda message: message["metadata"]["session"])
    chats = [[(m["role"], m["content"], True) for m in said] for _, said in sessions]
    for later in talk.later:
        said = []
        for exchange in later.exchanges:
            learned = exchange.wants in ("general", TELLS, REMARK)
            said += [("user", exchange.text, False), ("assistant", exchange.reply, learned)]
        chats.append(said)
    for chat in chats:
        places = [
            i
            for i, (role, text, learned) in enumerate(chat)
            if i and role == "assistant" and learned and len(text.split()) <= _TALK_WORDS
        ]
        if places:
            *earlier, last = places
            turns = [Message(role, text, "") for role, text, _ in chat[: last - 1]]
            prompt = talk_prompt(chat[last - 1][1], turns)
            before = tuple(i + 1 for i in earlier)  # the system's message is first
            yield Example("talk", prompt, chat[last][1], talk.id, "talk", before)


def answer_examples(memory: Memory, talk: Annotated) -> Iterator[Example]:
    """A generation example for each message that wants a fact, and whose evidence is shown."""
    written = _written(memory, talk)
    for later in talk.later:
        script = _Script(memory.engine, memory.engine.n_ctx, {"intent", "generation"})
        chat = Chat(memory, script, user_id=talk.id)  # type: ignore[arg-type]
        for exchange in later.exchanges:
            known = None if exchange.short == "-" else exchange.short
            script.prompt, script.wants = "", exchange.wants
            script.answer = generation.expert_target(known) if exchange.short else exchange.reply
            _send(chat, exchange, later)
            read = _NEW_DAY.sub("", script.prompt)
            shown = all(_NEW_DAY.sub("", written[text]) in read for text in exchange.evidence)
            if script.prompt and exchange.short and shown:
                kind = "told" if known else "unknown"
                yield Example("generation", script.prompt, script.answer, talk.id, kind)


def _written(memory: Memory, talk: Annotated) -> dict[str, str]:
    """Store the conversation's messages. Returns each one's text as a model is shown it."""
    store(memory, talk)
    turns = memory.store.recent_turns(Scope(user_id=talk.id), before=None, limit=len(talk.messages))
    shown = [Evidence(turn.content, turn.timestamp, "User") for turn in turns]
    return {turn.text: shown_text(turn) for turn in shown}


def _send(chat: Chat, exchange: Exchange, later: Later) -> None:
    for _ in chat.send(exchange.text, timestamp=later.at, remember=False):
        pass


def _told(chat: Chat, script: _Script, later: Later, written: Mapping[str, str]) -> Iterator[bool]:
    """Play a later chat, and yield for each answer whether the model was shown its evidence.

    written: each message as notes show it.
    """
    for exchange in later.exchanges:
        script.answer = exchange.reply
        # `Chat` answers who the assistant is without a model; here the model is to learn it.
        script.wants = exchange.wants.replace("self", "general")
        _send(chat, exchange, later)
        read = "\n".join(m["content"] for m in script.prompt if m["role"] != "assistant")
        shown = sum(written[text] in read for text in exchange.evidence)
        of = len(exchange.evidence)
        yield shown >= (of if of < 3 else _MOST_SHOWN * of)


class _Script:
    """A stand-in for an `Engine` with experts for some stages; it says what was written for it.

    prompt: the last one it was shown. answer: what it answers next. wants: its next intent label.
    """

    def __init__(self, engine: Engine, n_ctx: int, stages: set[str]) -> None:
        self._engine, self._stages = engine, stages
        self.n_ctx = n_ctx
        self.name, self.n_params = engine.name, engine.n_params
        self.has_chat_template, self.sees = True, False
        self.prompt: Any = []
        self.answer = self.wants = ""

    def expert(self, stage: str) -> bool:
        return stage in self._stages

    def count_tokens(self, prompt: Prompt) -> int:
        return self._engine.count_tokens(prompt)

    def warm(self, *_: Any, **__: Any) -> int:
        return 0

    def generate(self, prompt: str, **_: Any) -> Generation:
        return _as_generation(self.wants)

    def stream(self, prompt: Prompt, *, stage: str = "", **_: Any) -> Stream:
        if stage in self._stages:
            self.prompt = prompt
        return Stream(self._said())

    def _said(self) -> Generator[str, None, Generation]:
        yield self.answer
        return _as_generation(self.answer)


def _as_generation(text: str) -> Generation:
    return Generation(text, 0, 0, 0, 0.0, 0.0, "stop")
