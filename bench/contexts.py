"""Contexts of LoCoMo's questions: what bench.compression compresses, and what was stored of it.

`gold`: a question's evidence turns among eight random turns of the same conversation. `retrieved`:
the turns that a search finds. Both in order of time, a line each: "[8 May 2023] Ana: words".
Knows LoCoMo's files, turns and scores of tokens; no method and no reader.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.questions import CATEGORIES, evidence
from edgemem.compression.scores import Scores, joined
from edgemem.importers import LocomoFile
from edgemem.memory import Memory
from edgemem.retrieval.lexical import search_text
from edgemem.stages.dates import day_text

__all__ = ["Case", "Stored", "Turn", "ahead_of_time", "cases", "stored_scores", "turn_vectors"]

Turn = tuple[str, int]  # a sample_id, and a message's place in it

DISTRACTORS = 8
TOP_K = 30
WINDOW, OVERLAP = 256, 64  # tokens of original turns that are scored together, ahead of time


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
    def places(self) -> list[Turn]:
        return [(self.file.sample_id, i) for i in self.turns]

    @property
    def heads(self) -> list[str]:
        return [head(self.file.messages[i]) for i in self.turns]

    @property
    def lines(self) -> list[str]:
        return [
            h + body(self.file.messages[i]) for h, i in zip(self.heads, self.turns, strict=True)
        ]


@dataclass(frozen=True)
class Stored:
    """What is stored of turns: the scores of a turn's own words, and its vector."""

    scores: dict[Turn, Scores]
    vectors: dict[Turn, NDArray[np.float32]]


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
                hits = memory.search(q["question"], user_id=file.sample_id, top_k=TOP_K)
                turns = sorted({place[hit.metadata["dia_id"]] for hit in hits})
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


def ahead_of_time(
    wanted: Sequence[Case],
    score: Callable[[str], Scores],
    known: Collection[Turn],
    track: Callable[[Sequence[Any], str], Iterable[Any]],
) -> Iterator[tuple[Turn, Scores]]:
    """The scores that a store would hold of the cases' turns, but for those that are known.

    Turns are scored with the turns before them in their session, in windows of at most about 256
    tokens that share up to 64; a score is kept in 8 bits.
    """
    files = {case.file.sample_id: case.file for case in wanted}
    need = {turn for case in wanted for turn in case.places} - set(known)
    windows = [(id, w) for id, file in files.items() for w in _windows(file, need, id)]
    for id, (first, start, end) in track(windows, "scoring turns ahead of time"):
        messages = files[id].messages[first:end]
        lines = [f"{m['name']}: {body(m)}" for m in messages]
        scores = score("\n".join(lines))
        at = 0
        for place, (line, message) in enumerate(zip(lines, messages, strict=True), first):
            if place >= start:
                yield (id, place), _part(scores, at + len(message["name"]) + 2, at + len(line))
            at += len(line) + 1


def turn_vectors(
    wanted: Sequence[Case], embed: Callable[[Sequence[str]], NDArray[np.float32]]
) -> dict[Turn, NDArray[np.float32]]:
    """The vectors that a store would hold of the cases' turns."""
    texts = {}
    for case in wanted:
        for turn in case.places:
            message = case.file.messages[turn[1]]
            texts[turn] = search_text(message["content"], speaker=message["name"])
    return dict(zip(texts, embed(list(texts.values())), strict=True))


def stored_scores(
    case: Case,
    stored: Stored,
    tokenizer: Callable[[str], NDArray[np.int64]],
) -> tuple[Scores, NDArray[np.int64]]:
    """The scores of a context's tokens, and its tokens, from what was stored: nothing is scored,
    and of the text only the heads are tokenized, all at once. Tokens are not in order."""
    heads = case.heads
    starts, parts, at = [], [], 0  # of each line
    for head_text, turn in zip(heads, case.places, strict=True):
        starts.append(at)
        parts.append((at + len(head_text), stored.scores[turn]))
        at += len(head_text) + len(body(case.file.messages[turn[1]])) + 1
    scores = joined(parts)
    short = [f"\n{h.rstrip()}" for h in heads]
    begun = np.cumsum([0, *map(len, short[:-1])])
    tokens = tokenizer("".join(short)[1:]) + 1  # before the first line no line ends
    of = np.searchsorted(begun, tokens[:, 0], "right") - 1
    shift = np.array(starts) - 1 - begun  # a line's end belongs to the head after it
    moved = tokens + shift[of][:, None]
    return scores, np.concatenate([moved, scores.offsets]).astype(np.int64)


def _windows(file: LocomoFile, need: set[Turn], id: str) -> list[tuple[int, int, int]]:
    """(first, start, end) of each window that is needed: turns first to end, start on are new."""
    found, start = [], 0
    sizes = [len(m["name"]) + len(m["content"]) + 3 for m in file.messages]  # characters
    session = [m["metadata"]["session"] for m in file.messages]
    while start < len(sizes):
        first, shared = start, 0
        while first and session[first - 1] == session[start] and shared < 4 * OVERLAP:
            first -= 1
            shared += sizes[first]
        end, size = start, shared
        while end < len(sizes) and session[end] == session[start]:
            if end > start and size + sizes[end] > 4 * WINDOW:  # about four characters a token
                break
            size += sizes[end]
            end += 1
        if any((id, i) in need for i in range(start, end)):
            found.append((first, start, end))
        start = end
    return found


def _part(scores: Scores, start: int, end: int) -> Scores:
    """The scores of a part of a text, as 8 bits of their largest, by characters of the part."""
    inside = (scores.offsets[:, 1] > start) & (scores.offsets[:, 0] < end)
    values = scores.values[inside]
    scale = max(float(values.max(initial=0)), 1e-12) / 255
    offsets = np.clip(scores.offsets[inside] - start, 0, end - start)
    return Scores(offsets, (np.rint(values / scale) * scale).astype(np.float32), scores.method)
