"""Contexts of LoCoMo's questions: what bench.compression compresses, and what a store knows of it.

`gold`: a question's evidence turns among eight random turns of the same conversation. `retrieved`:
the turns that a search finds. Both in order of time, a line each: "[8 May 2023] Ana: words".
Knows LoCoMo's files and a Memory that holds their turns; no method and no reader.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from bench.questions import CATEGORIES, evidence, ingest
from edgemem.language import day_text
from edgemem.memory import Memory
from edgemem.pipeline.importers import LocomoFile
from edgemem.results import Hit

__all__ = ["Case", "cases", "hits", "store"]

DISTRACTORS = 8
TOP_K = 30


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


def cases(
    files: Sequence[LocomoFile], n: int, seed: int, memory: Memory | None = None
) -> list[Case]:
    """n answerable questions, as many of each file, drawn at random; of a `memory`, which holds the
    files' turns by sample_id, the turns it finds are the context, and else it is gold."""
    found = []
    for number, file in enumerate(files):
        rng = random.Random(f"{seed} {file.sample_id}")
        place = {m["metadata"]["dia_id"]: i for i, m in enumerate(file.messages)}
        asked = [
            (i, q)
            for i, q in enumerate(file.qa)
            if q["category"] in CATEGORIES and evidence(q, set(place))
        ]
        share = n // len(files) + (number < n % len(files))
        for i, q in sorted(rng.sample(asked, min(share, len(asked))), key=lambda a: a[0]):
            gold = {place[id] for id in evidence(q, set(place))}
            if memory is None:
                rest = [t for t in range(len(file.messages)) if t not in gold]
                turns = sorted(gold | set(rng.sample(rest, DISTRACTORS)))
            else:
                found_hits = memory.search(q["question"], user_id=file.sample_id, top_k=TOP_K)
                turns = sorted({place[hit.metadata["dia_id"]] for hit in found_hits})
            found.append(
                Case(
                    f"{file.sample_id}/{i}",
                    file,
                    q["question"],
                    str(q["answer"]),
                    tuple(turns),
                    tuple(t in gold for t in turns),
                )
            )
    return found


def store(memory: Memory, files: Sequence[LocomoFile]) -> None:
    """Store the files' turns as they are, each file as one user, unless they are there already."""
    for file in files:
        known = memory.get_all(user_id=file.sample_id)
        if len(known) != len(file.messages):
            memory.erase([item.id for item in known])  # of a run that was stopped
            ingest(memory, [file])


def hits(memory: Memory, case: Case) -> list[Hit]:
    """The case's turns with the scores that a search for its question gives them, best first."""
    wanted = {case.file.messages[i]["metadata"]["dia_id"] for i in case.turns}
    n = len(case.file.messages)
    found = memory.search(case.question, user_id=case.file.sample_id, top_k=n)
    return [hit for hit in found if hit.metadata["dia_id"] in wanted]
