"""Questions as a search sees them: shared by the benches that score or fit a ranking.

Knows LoCoMo's files, conversations with questions, and the features that the product computes for a
question; knows no weights and no figures.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench import report
from corpus.annotated import Annotated
from corpus.annotated import Question as AnnotatedQuestion
from corpus.readers import CATEGORIES, LocomoFile, turn_ids
from edgemem.memory import Memory
from edgemem.pipeline.importers import batches
from edgemem.results import Query, Scope
from edgemem.retrieval.search import match, refresh


def evidence(question: dict[str, Any], known: set[str]) -> list[str]:
    """The ids of a question's evidence turns that exist in the conversation."""
    return [id for id in turn_ids(question.get("evidence", [])) if id in known]


def answerable(file: LocomoFile) -> Iterator[tuple[str, list[str]]]:
    """The questions of CATEGORIES, each with its evidence turns; without those that have none."""
    known = {message["metadata"]["dia_id"] for message in file.messages}
    for question in file.qa:
        if question.get("category") in CATEGORIES and (wanted := evidence(question, known)):
            yield question["question"], wanted


def ingest(memory: Memory, files: Sequence[LocomoFile]) -> float:
    """Store every turn as it is, each file as one user; returns the seconds taken."""
    started = time.perf_counter()
    for file in report.track(files, "storing turns"):
        for batch in batches(file.messages, infer=False):
            memory.add(batch, user_id=file.sample_id, infer=False)
    return time.perf_counter() - started


@dataclass(frozen=True)
class Question:
    """A question's candidates in one conversation.

    asks: "own" if this conversation has the answer, "other" if the question is about another
    conversation, "unknown" if none has the answer. corpus, group: where the question is from; all
    questions of a group are left out together. features: (n, f) float32, the columns FEATURES of
    retrieval/search.py and, if the memory is careful, MATCHES. evidence: (n,) bool, the candidates
    that answer the question.
    """

    corpus: str
    group: str
    asks: str
    features: NDArray[np.float32]
    evidence: NDArray[np.bool_]


def ask(
    memory: Memory, talk: Annotated, others: Sequence[AnnotatedQuestion], *, corpus: str, group: str
) -> Iterator[Question]:
    """The candidates of a stored conversation for its own questions and for `others`.

    A question without any candidate is left out.
    """
    refresh(memory.store, memory.index)
    scope = Scope(user_id=talk.id)
    stored = zip(memory.store.list(scope), memory.store.rowids(scope).tolist(), strict=True)
    rowid_of = {item.memory: rowid for item, rowid in stored}
    for number, question in enumerate((*talk.questions, *others)):
        own = number < len(talk.questions)
        asks = "other" if not own else "unknown" if question.answer is None else "own"
        wanted = [rowid_of[shown.text] for shown in question.evidence] if asks == "own" else []
        candidates = memory.index.candidates(
            Query(question.text, scope), memory.embedder.embed_query(question.text)
        )
        features = candidates.features
        if (tokens := memory._parts.query_tokens(question.text)) is not None:
            features = np.hstack([features, match(memory.store, tokens, candidates.around)])
        if len(candidates.rowids):
            right = np.isin(candidates.rowids, wanted)
            yield Question(corpus, group, asks, features, right)


def half_of(talk_id: str) -> int | None:
    """The half, 0 or 1, to which a conversation belongs: one is for fitting, the other for judging.

    None for one conversation in twenty, which nothing is fitted on.
    """
    number = zlib.crc32(talk_id.encode())
    return None if number % 20 == 0 else number // 20 % 2


def by_session(talk: Annotated) -> list[Annotated]:
    """Each session as a conversation of its own."""
    sessions = groupby(talk.messages, lambda message: message["metadata"]["session"])
    return [_part(talk, str(session), list(messages)) for session, messages in sessions]


def by_turns(talk: Annotated, turns: int) -> list[Annotated]:
    """Every `turns` turns as a conversation of its own; the remainder is left out."""
    starts = range(0, len(talk.messages) - turns + 1, turns)
    return [_part(talk, str(start), talk.messages[start : start + turns]) for start in starts]


def _part(talk: Annotated, name: str, messages: Sequence[dict[str, Any]]) -> Annotated:
    said = {message["content"] for message in messages}
    known = [q for q in talk.questions if {shown.text for shown in q.evidence} <= said]
    return replace(talk, id=f"{talk.id}/{name}", messages=messages, questions=known)
