"""Questions answered by all stages together, base against experts.

The product answers as it is: search, recall, one answer. The base is the product without experts,
which shows two sentences and quotes; an expert is shown whole turns. Knows conversations and a
Memory; knows nothing of torch.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from edgemem.chat import SHOWN_SENTENCES, SHOWN_TURNS
from edgemem.config import load_settings
from edgemem.importers import batches
from edgemem.memory import Memory
from edgemem.recall import recall
from edgemem.runtime.experts import NO_EXPERTS
from edgemem.stages.generation import NOTHING_FOUND, answer
from edgemem.training.annotated import Annotated, Question
from edgemem.training.evaluate import Track, median
from edgemem.training.scores import bleu_1, token_f1

__all__ = ["Source", "run"]

Source = Literal["turns", "memories"]
_CANDIDATES = 16


def run(
    talks: Sequence[Annotated],
    *,
    source: Source,
    experts: str,
    most: int | None,
    track: Track[Any],
    seed: int = 0,
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Summary and rows, one for each category of base and experts.

    source: what is searched, the turns as they are or the facts that are taken from them.
    most: questions drawn from each conversation; None is all.
    """
    asked = [(talk.id, q) for talk in talks for q in _drawn(talk.questions, most, seed)]
    summary: dict[str, Any] = {"experts": experts, "source": source, "n": len(asked)}
    rows: list[dict[str, Any]] = []
    for who in ("base", "expert"):
        chosen = experts if who == "expert" else NO_EXPERTS
        with _stored(talks, source, chosen, track) as (memory, writing):
            answers = [
                _ask(memory, user_id, question)
                for user_id, question in track(asked, f"{who}: answering")
            ]
        answerable = [a for a in answers if a["category"] != "adversarial"]
        suffix = "" if who == "expert" else "_base"
        summary |= {
            f"answer_f1{suffix}": _mean(answerable, "f1"),
            f"answer_s_p50{suffix}": median([a["recall_s"] + a["answer_s"] for a in answers]),
        }
        groups = defaultdict(list, all=answerable)
        for found in answers:
            groups[found["category"]].append(found)
        for category, group in groups.items():
            rows.append(
                {
                    "who": who,
                    "category": category,
                    "n": len(group),
                    **{key: _mean(group, key) for key in group[0] if key != "category"},
                }
            )
        rows.append({"who": who, **writing})
    return summary, rows


def _drawn(found: Sequence[Question], most: int | None, seed: int) -> list[Question]:
    if most is None or most >= len(found):
        return list(found)
    return [found[i] for i in sorted(random.Random(seed).sample(range(len(found)), most))]


@contextmanager
def _stored(
    talks: Sequence[Annotated], source: Source, experts: str, track: Track[Any]
) -> Iterator[tuple[Memory, dict[str, Any]]]:
    """A store of the conversations, and what it took to write it."""
    settings = replace(load_settings(), experts=experts)
    infer = source == "memories"
    seconds: list[float] = []
    with (
        tempfile.TemporaryDirectory() as scratch,
        Memory(Path(scratch) / "locomo.db", settings=settings) as memory,
    ):
        for talk in talks:
            parts = list(batches(talk.messages, infer=infer))
            for batch in track(parts, f"storing {talk.id}"):
                started = time.perf_counter()
                memory.add(batch, user_id=talk.id, infer=infer)
                seconds.append(time.perf_counter() - started)
        counts = memory.store.counts()
        yield (
            memory,
            {
                "turns": counts["turns"],
                "write_s_p50": median(seconds) if infer else None,
            },
        )


def _ask(memory: Memory, user_id: str, question: Question) -> dict[str, Any]:
    started = time.perf_counter()
    expert = memory.engine.expert("generation")
    hits = memory.search(question.text, user_id=user_id, top_k=_CANDIDATES)
    most = SHOWN_TURNS if expert else SHOWN_SENTENCES
    context = recall(memory, question.text, hits, most=most, whole=expert)
    recalled = time.perf_counter()
    text, read, written = NOTHING_FOUND, 0, 0
    if context.shown:
        stream = answer(memory.engine, question.text, context.shown, speaker="User")
        text = "".join(stream).strip()
        assert stream.result is not None
        read, written = stream.result.prompt_tokens, stream.result.completion_tokens
    done = time.perf_counter()
    refused = text == NOTHING_FOUND
    wanted = question.answer
    return {
        "category": question.category,
        "f1": token_f1(text, wanted) if wanted is not None else float(refused),
        "bleu_1": bleu_1(text, wanted) if wanted is not None else float(refused),
        "refused": float(refused),
        "tokens_in": read,
        "tokens_out": written,
        "recall_s": recalled - started,
        "answer_s": done - recalled,
    }


def _mean(answers: Sequence[dict[str, Any]], key: str) -> float:
    return round(float(sum(a[key] for a in answers)) / max(1, len(answers)), 4)
