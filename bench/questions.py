"""LoCoMo's questions as a search sees them: shared by the benches that score or fit a ranking.

Knows LoCoMo's files, and what the product computes of a question; no weights, no figures.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track

from edgemem.importers import LocomoFile, batches
from edgemem.memory import Memory
from edgemem.results import Scope
from edgemem.retrieval.search import refresh

__all__ = ["ADVERSARIAL", "CATEGORIES", "Question", "evidence", "ingest", "questions", "sessions"]

CATEGORIES = {1: "multi-hop", 2: "temporal", 3: "open-domain", 4: "single-hop"}
ADVERSARIAL = 5  # its questions have no answer in the conversation
_DIALOGUE_ID = re.compile(r"\bD\d+:\d+\b")
_console = Console(stderr=True)


def evidence(question: dict[str, Any], known: set[str]) -> list[str]:
    """The ids of a question's evidence turns that exist in the conversation."""
    found = [id for e in question.get("evidence", []) for id in _DIALOGUE_ID.findall(str(e))]
    return [id for id in dict.fromkeys(found) if id in known]


def ingest(memory: Memory, files: Sequence[LocomoFile]) -> float:
    """Store every turn as it is, each file as one user; seconds taken."""
    started = time.perf_counter()
    for file in _track(files, "storing turns"):
        for batch in batches(file.messages, infer=False):
            memory.add(batch, user_id=file.sample_id, infer=False)
    return time.perf_counter() - started


@dataclass(frozen=True)
class Question:
    """A question's candidates in its own conversation.

    features: (n, f) float32, see retrieval/fusion.py; evidence: (n,) bool, which of the candidates
    answer it. Of an adversarial question that is nothing.
    """

    conversation: str
    category: int
    features: NDArray[np.float32]
    evidence: NDArray[np.bool_]

    @property
    def answerable(self) -> bool:
        return self.category != ADVERSARIAL


def questions(memory: Memory, files: Sequence[LocomoFile]) -> list[Question]:
    """Every question with usable evidence, asked of its own file's turns, which are stored."""
    refresh(memory.store, memory.index)
    found = []
    for file in _track(files, "computing features"):
        scope = Scope(user_id=file.sample_id)
        rowid_of = {
            item.metadata["dia_id"]: rowid
            for item, rowid in zip(
                memory.store.list(scope), memory.store.rowids(scope).tolist(), strict=True
            )
        }
        for question in file.qa:
            wanted = evidence(question, set(rowid_of))
            if not wanted:
                continue
            text = question["question"]
            candidates = memory.index.candidates(
                text, memory.embedder.embed_query(text), scope=scope, now=time.time()
            )
            answerable = question["category"] in CATEGORIES
            right = np.isin(candidates.rowids, [rowid_of[id] for id in wanted]) & answerable
            found.append(
                Question(
                    file.sample_id.split("/")[0],
                    question["category"],
                    candidates.features,
                    right,
                )
            )
    return found


def _track(files: Sequence[LocomoFile], what: str) -> Iterable[LocomoFile]:
    return track(files, what, console=_console) if len(files) > 1 else files


def sessions(file: LocomoFile) -> list[LocomoFile]:
    """Each session of a conversation as a file of its own, named "conversation/session"."""
    parts: dict[Any, list[dict[str, Any]]] = {}
    for message in file.messages:
        parts.setdefault(message["metadata"]["session"], []).append(message)
    return [
        replace(file, sample_id=f"{file.sample_id}/{session}", messages=messages)
        for session, messages in parts.items()
    ]
