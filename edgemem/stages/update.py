"""Stage 2, update: new facts and their nearest memories in, operations out.

ADD, UPDATE, DELETE or NONE, as in Mem0 and MemLoRA (A.1's prompt). What a rule can settle, a rule
settles, because a base model of 135 M parameters decides at chance; the model decides the rest, and
only within what the rules hold possible. An expert also decides where the rules find nothing to
compare (their ADD): it is shown each near memory of the same person by itself. A model's word never
loses what was said: it cannot drop a name, a number, a date or a "not" that is nowhere else.
Departs from Mem0 in one thing: a contradiction never ends with both facts gone. DELETE takes the
old memory out of answers (it is invalidated, not erased) *and* the new fact is added.

The rules read English words. In another language few of them fire: facts are then added beside each
other, and nothing is lost.

Knows facts and memories as text and similarity; knows nothing of the store.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from edgemem.errors import ContextOverflow
from edgemem.results import Event
from edgemem.runtime.engine import Engine
from edgemem.text import KIN, content_words, is_negated, same_stem, words

__all__ = [
    "EXPERT_SCHEMA",
    "PROMPT",
    "Candidate",
    "Op",
    "decide",
    "expert_prompt",
    "expert_target",
    "rule",
]

PROMPT = (
    "Old memories: {old}. New retrieved facts: {new}. Return memory update in JSON format: "
    '{{"memory" : [{{"id" : "<ID of the memory>", "text" : "<Content of the memory>", '
    '"event" : "<Operation, among ADD, UPDATE, DELETE, or NONE>", '
    '"old_memory" : "<Old memory content, only if UPDATE event>"}}]}}'
)

# An expert has learned the form; what never changes comes first, so that its KV is kept.
EXPERT_PROMPT = (
    "Compare the new fact with the old memory. Return memory update in JSON format: "
    '{"event": "<Operation, among ADD, UPDATE, DELETE, or NONE>"}.'
)
_TO_EVENT = '{"event": "'  # as `expert_target` begins
EXPERT_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"event": {"enum": list(get_args(Event))}},
    "required": ["event"],
}

# Cosine from which two facts with the same names and numbers say the same. MiniLM has "Ana likes
# tea" and "loves tea" at 0.975, but "a brother in Paris" and "a sister in Paris" at 0.958.
SAME = 0.97
SURELY_SAME = 0.85  # from here the model may call a fact a repetition
RELATED = 0.50  # below it two facts have nothing to do with each other, for rules and a base model
COMPARED = 0.4  # from here an expert is asked; it knows changes that share no word
_SHOWN = 4  # of a fact's memories, nearest first: all of them need not fit the context window
_MAX_TOKENS_PER_FACT = 48
_EVENTS = get_args(Event)

_ENDED = re.compile(
    r"\b(?:no longer|not any ?more|any ?more|stopped|quit|left|sold|gave (?:up|away|back)|lost|"
    r"broke up|split up|divorced|cancell?ed|ended|finished with|got rid of|dropped|retired|"
    r"resigned|used to|moved (?:out|away)|never|died|returned|swapped|replaced)\b",
    re.I,
)
_CHANGED = re.compile(
    r"\b(?:now|currently|instead|these days|switched|changed|moved|relocated|became|has become|new|"
    r"again|renamed|grew|rather than)\b",
    re.I,
)
_INSTEAD = re.compile(r"\b(?:instead of|rather than)\b", re.I)
# What a person has one of at a time: a new value replaces the old.
_SLOTS: tuple[frozenset[str], ...] = tuple(
    frozenset(s.split())
    for s in (
        "live lives living lived move moved moves moving home relocate relocated based flat "
        "apartment",
        "work works working worked job jobs employer employed hired position",
        "name named called renamed",
        "weigh weighs weighed weight",
        "age old turned",
        "favourite favorite prefers prefer",
        "drive drives driving car",
        "date dating married engaged divorced girlfriend boyfriend partner",
        "study studies studying student major",
    )
)
_MONTH = "jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec"
_DATE = re.compile(
    rf"\b(?:(?:on|in|the (?:week|weekend) of) )*(?:(?:mon|tues|wednes|thurs|fri|satur|sun)day )?"
    rf"(?:\d{{1,2}} (?:{_MONTH})\w* \d{{4}}|(?:{_MONTH})\w* \d{{4}}|\d{{4}}-\d\d-\d\d|"
    rf"(?:19|20)\d\d)\b",
    re.I,
)
_CAPITAL = r"[^\W\d_a-zß-öø-ÿ]"
_NAME = re.compile(rf"\b{_CAPITAL}\w+")
# "Ana", but "Ana's brother" and "Mary Ann's brother's wife": what is true of one is not of another.
_OWNER = rf"(?:{_CAPITAL}\w*\.?[ -])*[^\W_]+\.?"
_SUBJECT = re.compile(rf"(?:{_OWNER}['’]s? )*[^\W_]+")
_KIN = re.compile(rf"{KIN}s?")
_RELATIVE = rf"['’]s? ({KIN})s?\b"
_RELATIVES = re.compile(rf"{_OWNER}((?:{_RELATIVE}(?: {_CAPITAL}\w+)*)+)")
_CLAUSE_END = re.compile(r"[,;:]|\b(?:and|but|so)\b", re.I)
_NUMBER_WORDS = frozenset(
    "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen "
    "sixteen seventeen eighteen nineteen twenty thirty forty fifty sixty seventy eighty ninety "
    "hundred".split()
)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A stored fact near a new one. similarity: cosine of the two."""

    id: str
    text: str
    similarity: float


@dataclass(frozen=True, slots=True)
class Op:
    """What to do about fact number `fact`. target: the memory that UPDATE, DELETE and NONE mean.

    A DELETE stands for both halves of a contradiction: invalidate the target, add the fact.
    """

    event: Event
    fact: int
    target: str | None
    by: Literal["rule", "model"]


def rule(fact: str, candidates: Sequence[Candidate]) -> Op | None:
    """What the rules say of one fact against its nearest memories; None leaves it to the model.

    In this order, the nearest candidate first: the same words, or nearly the same vector with the
    same numbers and no new word (NONE); the old words and more (UPDATE); a changed number, an
    ending ("sold", "no longer"), a "not" more or less, or a new value of what one has one of, said
    with a word of change (DELETE). Nothing related: ADD.
    """
    new = _Parts.of(fact)
    related = [c for c in candidates if c.similarity >= RELATED]
    if not related:
        return Op("ADD", 0, None, "rule")
    for event, holds in (("NONE", _repeats), ("UPDATE", _extends), ("DELETE", _contradicts)):
        for candidate in sorted(related, key=lambda c: -c.similarity):
            if holds(_Parts.of(candidate.text), new, candidate.similarity):
                return Op(event, 0, candidate.id, "rule")  # type: ignore[arg-type]
    if all(not _same_topic(_Parts.of(c.text), new) for c in related):
        return Op("ADD", 0, None, "rule")
    return None


def decide(
    engine: Engine | None, facts: Sequence[str], candidates: Sequence[Sequence[Candidate]]
) -> list[Op]:
    """One operation for each fact, in order.

    candidates: for each fact its nearest memories (s = 10 in Mem0). What the rules leave open is
    added if there is no engine, or if the fact does not fit its window. Raises ValueError when the
    model's answer cannot be parsed.
    """
    ops: dict[int, Op] = {}
    expert = engine is not None and engine.expert("update")
    for i, (fact, near) in enumerate(zip(facts, candidates, strict=True)):
        op = rule(fact, near)
        if engine is not None and expert and (op is None or op.event == "ADD"):
            op = _ask_expert(engine, fact, near) or op
        if op is not None:
            ops[i] = replace(op, fact=i)
    open_facts = [i for i in range(len(facts)) if i not in ops]
    if open_facts and engine is not None and not expert:
        ops.update(_ask(engine, facts, candidates, open_facts))
    return [ops.get(i) or Op("ADD", i, None, "rule") for i in range(len(facts))]


def expert_prompt(fact: str, memory: str) -> str:
    """What an expert reads of one new fact and one old memory."""
    old, new = " ".join(memory.split()), " ".join(fact.split())
    return f"{EXPERT_PROMPT}\n\nOld memory: {old}\nNew fact: {new}\n"


def expert_target(event: Event) -> str:
    """What an expert answers; ADD if the two have nothing to do with each other."""
    return json.dumps({"event": event})


# -- rules -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Parts:
    """A fact taken apart: whom it is about, its other words, its numbers.

    subject: the first word, with all that it owns ("ana", "ana brother", "ana exam"). person: the
    same without things ("ana", "ana brother", "ana"). content: the words that are neither of the
    subject, nor numbers, nor stop words. names: the words after the first that begin with a
    capital, and those for people ("sister").
    """

    text: str
    subject: str
    person: str
    content: frozenset[str]
    names: frozenset[str]
    numbers: frozenset[str]
    dates: tuple[str, ...]
    negated: bool

    @classmethod
    def of(cls, text: str) -> _Parts:
        undated = _DATE.sub(" ", text)
        found = _SUBJECT.search(text)
        subject = words(found[0]) if found else []
        content = content_words(undated)
        capitals = [w.lower() for w in _NAME.findall(undated)]
        named = capitals[1:] if text[:1].isupper() else capitals
        people = {w for w in content if _KIN.fullmatch(w)}
        numbers = frozenset(w for w in content if w.isdigit() or w in _NUMBER_WORDS)
        return cls(
            text=text,
            subject=" ".join(subject),
            person=" ".join(subject[:1] + _relatives(text)),
            content=frozenset(content) - numbers - set(subject),
            names=frozenset(named) | people - set(subject),
            numbers=numbers,
            dates=tuple(d.lower() for d in _DATE.findall(text)),
            negated=is_negated(text),
        )

    @property
    def values(self) -> tuple[object, ...]:
        """What two facts must have in common to be taken for one by their vectors."""
        return self.names, self.numbers, self.dates, self.negated

    def within(self, other: _Parts) -> bool:
        """Whether another fact has all of this one's words (in some form), numbers and dates."""
        return (
            bool(self.content)
            and self.negated == other.negated
            and all(same_stem(w, other.content) for w in self.content)
            and self.numbers <= other.numbers
            and set(self.dates) <= set(other.dates)
        )


def _relatives(text: str) -> list[str]:
    """The people on the way from the first to the one meant: brother in "Ana's brother Tom's"."""
    leading = _RELATIVES.match(text)
    return re.findall(_RELATIVE, leading[1].lower()) if leading else []


def _repeats(old: _Parts, new: _Parts, similarity: float) -> bool:
    if old.subject != new.subject or bool(_ENDED.search(new.text)) != bool(_ENDED.search(old.text)):
        return False
    if new.within(old):  # "tea instead of coffee" and "coffee instead of tea" have the same words
        return not _INSTEAD.search(new.text) or words(new.text) == words(old.text)
    same_values = old.values == new.values and len(new.content) <= len(old.content)
    return same_values and similarity >= SAME and not _CHANGED.search(new.text)


def _extends(old: _Parts, new: _Parts, similarity: float) -> bool:
    ends = _ENDED.search(new.text) or _INSTEAD.search(new.text)
    return old.subject == new.subject and old.within(new) and not ends


def _contradicts(old: _Parts, new: _Parts, similarity: float) -> bool:
    if old.subject != new.subject or (old.dates and new.dates and old.dates != new.dates):
        return False
    if _INSTEAD.search(new.text) and old.within(new):
        return True
    shared = {w for w in new.content if same_stem(w, old.content)}
    if old.numbers and new.numbers and old.numbers != new.numbers and shared:
        two_names = old.names and new.names and not old.names & new.names
        return len(shared) >= 0.6 * len(old.content) and not two_names
    if _ENDED.search(new.text) and not _ENDED.search(old.text):
        ended = _ended(new)
        return len(shared & ended) > len(ended) / 2  # "used to live in Paris" ends no life in Oslo
    if old.negated != new.negated and shared:
        return len(shared) >= 0.6 * len(old.content)
    if new.names and new.names <= old.names:
        return False  # "lives in Oslo", "moved to Oslo"
    return bool(_CHANGED.search(new.text)) and _one_slot(old, new)


def _one_slot(old: _Parts, new: _Parts) -> bool:
    """Whether both speak of what a person has one of at a time."""
    a, b = set(words(old.text)), set(words(new.text))
    return any(slot & a and slot & b for slot in _SLOTS)


def _ended(fact: _Parts) -> frozenset[str]:
    """What a fact says has ended: the content of each clause that says so, but for the ending."""
    clauses = [c for c in _CLAUSE_END.split(fact.text) if _ENDED.search(c)]
    return fact.content & {w for c in clauses for w in content_words(_ENDED.sub(" ", c))}


def _same_topic(old: _Parts, new: _Parts) -> bool:
    """Whether the model may be asked at all: the same subject, and a word in common."""
    if old.dates and new.dates and not set(old.dates) & set(new.dates):
        return False  # what happened on two days is two things
    return old.subject == new.subject and any(same_stem(w, old.content) for w in new.content)


# -- the model -------------------------------------------------------------------------------


def _ask(
    engine: Engine,
    facts: Sequence[str],
    candidates: Sequence[Sequence[Candidate]],
    open_facts: Sequence[int],
) -> dict[int, Op]:
    """Let the model decide about the facts that the rules left open, in as few calls as fit.

    A fact that does not fit even alone, beside its memories, has no operation here.
    """
    memories = {
        c.id: c for i in open_facts for c in candidates[i][:_SHOWN] if c.similarity >= RELATED
    }
    number = {id: str(n) for n, id in enumerate(memories)}  # short ids: long ones get garbled
    prompt = PROMPT.format(
        old=json.dumps([{"id": number[c.id], "text": c.text} for c in memories.values()]),
        new=json.dumps([facts[i] for i in open_facts]),
    )
    schema = {
        "type": "object",
        "properties": {
            "memory": {
                "type": "array",
                "minItems": len(open_facts),
                "maxItems": len(open_facts),
                "items": {
                    "type": "object",
                    "properties": {
                        "id": {"enum": list(number.values())},
                        "event": {"enum": list(_EVENTS)},
                    },
                    "required": ["id", "event"],
                },
            }
        },
        "required": ["memory"],
    }
    try:
        answer = engine.generate(
            [{"role": "user", "content": prompt}] if engine.has_chat_template else prompt,
            max_tokens=_MAX_TOKENS_PER_FACT * len(open_facts),
            schema=schema,
            stage="update",
        )
    except ContextOverflow:
        half = len(open_facts) // 2
        if not half:
            return {}
        first = _ask(engine, facts, candidates, open_facts[:half])
        return first | _ask(engine, facts, candidates, open_facts[half:])
    rows = _parse(answer.text, len(open_facts), number.values())
    ids = {n: id for id, n in number.items()}
    return {
        i: _validated(event, ids[n], i, facts[i], candidates[i])
        for i, (event, n) in zip(open_facts, rows, strict=True)
    }


def _ask_expert(engine: Engine, fact: str, candidates: Sequence[Candidate]) -> Op | None:
    """Let an expert compare a fact with its memories one by one, nearest first.

    None if there is none to compare with. It is shown its answer up to the event, whose first
    token tells it: six steps fewer than an answer forced into its schema.
    """
    new = _Parts.of(fact)
    near = [(c, _Parts.of(c.text)) for c in candidates if c.similarity >= COMPARED]
    shown = [(c, old) for c, old in near if old.person == new.person][:_SHOWN]
    for candidate, old in shown:
        try:
            prompt = expert_prompt(fact, candidate.text) + _TO_EVENT
            answer = engine.generate(prompt, max_tokens=1, stage="update")
        except ContextOverflow:
            continue
        begun = answer.text or "ADD"
        event: Event = next((e for e in _EVENTS if e.startswith(begun)), "ADD")
        if event != "ADD" and _loses_nothing(event, old, new):
            return Op(event, 0, candidate.id, "model")
    return Op("ADD", 0, None, "model") if shown else None


def _loses_nothing(event: Event, old: _Parts, new: _Parts) -> bool:
    """Whether nothing that was said is lost if an expert is wrong about a memory."""
    if event == "NONE":
        return old.negated == new.negated and _values_within(new, old)
    if event == "UPDATE":
        return len(new.content) >= len(old.content) and _values_within(old, new)
    return True  # of a DELETE both stay, the old one in the history


def _values_within(part: _Parts, whole: _Parts) -> bool:
    return (
        part.names <= set(words(whole.text))
        and part.numbers <= whole.numbers
        and set(part.dates) <= set(whole.dates)
    )


def _parse(text: str, count: int, ids: Collection[str]) -> list[tuple[Event, str]]:
    """The (event, short id) of each operation. Raises ValueError on anything else."""
    try:
        rows = [(row["event"], row["id"]) for row in json.loads(text)["memory"]]
        if len(rows) == count and all(e in _EVENTS and n in ids for e, n in rows):
            return rows
    except (KeyError, TypeError):
        pass
    raise ValueError(
        f"expected {count} operations on the memories {', '.join(ids)}, "
        f"the model gave {text[:200]!r}"
    )


def _validated(event: Event, target: str, i: int, fact: str, near: Sequence[Candidate]) -> Op:
    """Take the model's word only where it can do no harm; otherwise the fact is added.

    NONE would drop the fact, UPDATE and DELETE would hide a memory: each needs a memory among the
    fact's own candidates, about the same subject, that shares a word; UPDATE needs the new fact to
    be the longer one.
    """
    candidate = next((c for c in near if c.id == target and c.similarity >= RELATED), None)
    if event == "ADD" or candidate is None:
        return Op("ADD", i, None, "model")
    old, new = _Parts.of(candidate.text), _Parts.of(fact)
    if not _same_topic(old, new):
        return Op("ADD", i, None, "model")
    longer = len(new.content) >= len(old.content)
    overlaps = len(new.content & old.content) * 2 >= len(old.content)
    if (
        (event == "NONE" and old.negated == new.negated and candidate.similarity >= SURELY_SAME)
        or (event == "UPDATE" and longer and overlaps)
        or (event == "DELETE" and _CHANGED.search(fact))
    ):
        return Op(event, i, target, "model")
    return Op("ADD", i, None, "model")
