"""Contexts of LoCoMo's questions: what bench.compression compresses.

A context is a question's evidence among random turns of the same conversation, in order of time, a
line each: "[8 May 2023] Ana: words". Knows LoCoMo's files; no method and no reader.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import zip_longest
from typing import Any

from bench.questions import CATEGORIES, evidence
from corpus.readers import LocomoFile
from edgemem.language import day_text

CHARACTERS = 2200  # of the turns without heads; about 600 tokens with heads


@dataclass(frozen=True)
class Case:
    """A question and its context. turns: places of the lines in the conversation. evidence: which
    of the lines answer it."""

    id: str
    file: LocomoFile
    question: str
    answer: str
    turns: tuple[int, ...]
    evidence: tuple[bool, ...]

    @property
    def lines(self) -> list[str]:
        messages = [self.file.messages[i] for i in self.turns]
        return [head(message) + body(message) for message in messages]


def head(message: dict[str, Any]) -> str:
    day = day_text(datetime.fromisoformat(message["timestamp"]).date())
    return f"[{day}] {message['name']}: "


def body(message: dict[str, Any]) -> str:
    return " ".join(message["content"].split())


def cases(files: Sequence[LocomoFile], n: int, seed: int) -> list[Case]:
    """n answerable questions drawn at random, files taking turns; a larger n extends the list."""
    of_files = [_cases(file, -(-n // len(files)), seed) for file in files]
    return [case for turn in zip_longest(*of_files) for case in turn if case is not None][:n]


def _cases(file: LocomoFile, n: int, seed: int) -> list[Case]:
    rng = random.Random(f"{seed} {file.sample_id}")
    place = {m["metadata"]["dia_id"]: i for i, m in enumerate(file.messages)}
    asked = [
        (i, q)
        for i, q in enumerate(file.qa)
        if q["category"] in CATEGORIES and evidence(q, set(place))
    ]
    found = []
    rng.shuffle(asked)
    for i, q in asked[:n]:
        rng = random.Random(f"{seed} {file.sample_id} {i}")
        gold = {place[id] for id in evidence(q, set(place))}
        turns = set(gold)
        for turn in rng.sample(range(len(file.messages)), len(file.messages)):
            if sum(len(body(file.messages[t])) for t in turns) >= CHARACTERS:
                break
            turns.add(turn)
        order = tuple(sorted(turns))
        told = tuple(t in gold for t in order)
        id = f"{file.sample_id}/{i}"
        found.append(Case(id, file, q["question"], str(q["answer"]), order, told))
    return found
