"""Stage 2, update: new facts and their nearest memories in, operations out.

The operations are ADD, UPDATE, DELETE and NONE, as in Mem0 and MemLoRA (A.1's prompt). A rule
decides NONE if a memory has the same words, and ADD if there is nothing to compare. An expert
decides the rest. It is shown one near memory at a time, of the same person, or of a person whom the
fact or the memory names ("Rex died." and "User has a dog called Rex."). Rules veto what would drop
a name, number, date or "not", or end what is not meant. The expert is the language model's if the
loaded set has one, else the encoder's (edgemem/data/updates.npz, fitted by
`python -m bench.fit_updates`), which works with any language model.
Departs from Mem0 in one thing: a contradiction never removes both facts. DELETE invalidates the old
memory, which is not erased, *and* adds the new fact.

Knows facts and memories as text and similarity; knows nothing of the store.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, get_args

import numpy as np

from edgemem.errors import ContextOverflow
from edgemem.language import Statement, says_the_same, without_source
from edgemem.results import Event
from edgemem.runtime.encoder import Encoder, softmax
from edgemem.runtime.engine import Engine
from edgemem.runtime.onnxfile import expert

__all__ = ["EVENTS", "Candidate", "Op", "decide", "expert_prompt", "expert_target"]
__all__ += ["probabilities"]

# An expert has learned this form. Its constant part comes first, so that its KV is cached.
EXPERT_PROMPT = (
    "Compare the new fact with the old memory. Return memory update in JSON format: "
    '{"event": "<Operation, among ADD, UPDATE, DELETE, or NONE>"}.'
)
_TO_EVENT = '{"event": "'  # the beginning of `expert_target`
EVENTS: tuple[Event, ...] = get_args(Event)

COMPARED = 0.35  # cosine from which an expert is asked; low, as a change may share no word
SURE = 0.75  # how probable the language model's DELETE must be (bench/LOG.md, 2026-11-24)
READ_SURE = 0.9  # how probable the encoder's DELETE must be (bench/LOG.md, 2026-11-26)
HINTED = 0.1  # how probable a DELETE must be without the clause that tells who says the fact
REPEATED = 0.95  # how probable its NONE must be, which drops the fact (bench/LOG.md, 2026-11-29)
_SHOWN = 4  # most memories that a fact is compared with, nearest first

_Judge = Callable[..., Event]
"""(memory, fact, hint=False) -> event. hint: DELETE of whatever might end the memory."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A stored fact near a new one. similarity: cosine of the two."""

    id: str
    text: str
    similarity: float


@dataclass(frozen=True, slots=True)
class Op:
    """What to do about a fact. target: id of the memory concerned; None for ADD.

    A DELETE stands for both halves of a contradiction: invalidate the target, add the fact.
    """

    event: Event
    target: str | None
    by: Literal["rule", "model"]


def decide(
    engine: Engine | None,
    facts: Sequence[str],
    candidates: Sequence[Sequence[Candidate]],
    encoder: Encoder | None = None,
    *,
    may_end: Sequence[bool] = (),
) -> list[Op]:
    """One operation for each fact, in order.

    candidates: for each fact its nearest memories (s = 10 in Mem0). may_end: for each fact whether
    it may end one; none given means that all may. A fact that the rules do not decide is added if
    there is neither an expert nor an encoder, or if the fact and the memory do not fit the window.
    """
    judge: _Judge | None = None
    if engine is not None and engine.expert("update"):
        judge = partial(_ask_engine, engine)
    elif encoder is not None:
        judge = partial(_ask_encoder, encoder)
    each = zip(facts, candidates, may_end or [True] * len(facts), strict=True)
    return [_decided(judge, fact, near, ends) for fact, near, ends in each]


def expert_prompt(fact: str, memory: str) -> str:
    """An expert's prompt for one new fact and one old memory."""
    old, new = " ".join(memory.split()), " ".join(fact.split())
    return f"{EXPERT_PROMPT}\n\nOld memory: {old}\nNew fact: {new}\n"


def expert_target(event: Event) -> str:
    """The text that an expert answers with. ADD: fact and memory are unrelated."""
    return json.dumps({"event": event})


def _decided(judge: _Judge | None, fact: str, candidates: Sequence[Candidate], may_end: bool) -> Op:
    """One fact's operation: NONE if a memory has the same words, else what the judge decides.

    The judge compares the fact with one memory after the other. Its first event counts that is not
    ADD and that `_is_permitted`. A DELETE also has to be hinted at by what the fact tells without
    the clause that tells who says it.
    """
    near = sorted(candidates, key=lambda c: -c.similarity)
    for candidate in near:
        if says_the_same(candidate.text, fact):
            return Op("NONE", candidate.id, "rule")
    new = Statement.of(fact)
    olds = [(c, Statement.of(c.text)) for c in near if c.similarity >= COMPARED]
    about = [(c, old) for c, old in olds if new.speaks_of(old.person) or old.speaks_of(new.person)]
    compared = about[:_SHOWN]
    if judge is None or not compared:
        return Op("ADD", None, "rule")
    told = without_source(fact)
    for candidate, old in compared:
        event = judge(candidate.text, fact)
        if event == "DELETE" and not (
            may_end and (told == fact or judge(candidate.text, told, hint=True) == "DELETE")
        ):
            continue
        if event != "ADD" and _is_permitted(event, old, new):
            return Op(event, candidate.id, "model")
    return Op("ADD", None, "model")


def _is_permitted(event: Event, old: Statement, new: Statement) -> bool:
    """Whether a NONE or UPDATE drops nothing that was said, and a DELETE ends what is meant."""
    if event == "NONE":
        return new.within(old)
    if event == "UPDATE":
        return len(new.content) >= len(old.content) and old.within(new)
    return event != "DELETE" or new.may_end(old)


def _ask_engine(engine: Engine, memory: str, fact: str, *, hint: bool = False) -> Event:
    """The language model's event; ADD if the two texts do not fit its window.

    The prompt ends with the answer up to the event, so that one token is decoded.
    """
    prompt, sure = expert_prompt(fact, memory) + _TO_EVENT, HINTED if hint else SURE
    try:
        answer = engine.generate(prompt, max_tokens=1, fork=("DELETE", "ADD", sure), stage="update")
    except ContextOverflow:
        return "ADD"
    begun = answer.text or "ADD"
    return next((e for e in EVENTS if e.startswith(begun)), "ADD")


def _ask_encoder(encoder: Encoder, memory: str, fact: str, *, hint: bool = False) -> Event:
    """DELETE if that is probable enough, else the encoder's likeliest event; ADD if that is not
    sure enough."""
    p = probabilities(encoder, memory, fact)
    least = {"DELETE": HINTED if hint else READ_SURE, "NONE": REPEATED}
    if p["DELETE"] >= least["DELETE"]:
        return "DELETE"
    event = max(EVENTS, key=lambda e: p[e])
    return event if p[event] >= least.get(event, 0.0) else "ADD"


def probabilities(encoder: Encoder, memory: str, fact: str) -> dict[Event, float]:
    """The probability of each event for a fact and a memory; ADD has 1 beyond 256 tokens.

    A net with one hidden layer reads the last layer: the state of the first token, and the mean
    states of the memory and of the fact.
    """
    w = expert("updates")
    read = encoder.read(w, memory, fact)
    if read is None:
        return {"ADD": 1.0, "UPDATE": 0.0, "DELETE": 0.0, "NONE": 0.0}
    last = read.layers[-1]
    means = [last[read.text == which].mean(axis=0) for which in (0, 1)]
    hidden = np.concatenate([last[0], *means]) @ w["hidden.w"] + w["hidden.b"]
    p = softmax(np.maximum(hidden, 0) @ w["event.w"] + w["event.b"])
    return dict(zip(EVENTS, p.tolist(), strict=True))
