"""All stages of a set of experts tried on known data, base beside expert: MemLoRA's Table 4.

Extraction and answers: pairs of messages and questions of annotated conversations, drawn at random.
Answers are given from the evidence turns ("gold") and from what a search finds among all turns
("retrieved"), as many as `Chat` shows. Update: operations of the generator's validation templates,
which no training saw. Of the base the best way of answering is reported: for facts free or forced
by a grammar, for answers the best of `evaluate.BASE_WAYS` on the first questions.

Knows conversations, sets of experts and the rows of `evaluate`; knows nothing of torch.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

from edgemem.chat import SHOWN_TURNS
from edgemem.memory import Memory
from edgemem.runtime import experts
from edgemem.runtime.engine import Engine
from edgemem.stages.generation import Recalled
from edgemem.training import annotated, evaluate, generator
from edgemem.training.annotated import Annotated, Pair, Question
from edgemem.training.changes import Situation
from edgemem.training.evaluate import Track

__all__ = ["run"]

T = TypeVar("T")
_TO_CHOOSE = 24  # questions that a base's way of answering is chosen on
_OPERATIONS = 20  # at least so many come of one invented conversation


def run(
    talks: Sequence[Annotated],
    name: str,
    *,
    pairs: int,
    questions: int,
    operations: int,
    seed: int,
    written: Sequence[Situation] = (),
    track: Track[Any],
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Summary and rows, those of base and expert side by side.

    name: of a set of experts, or its folder. pairs, questions: most of each conversation;
    operations: in all. written: more of these, with rows of their own. Raises AdapterError as
    `experts.load` does.
    """
    experts.find(name)  # an error now, not after the base
    made = list(generator.operations(1 + operations // _OPERATIONS, seed=seed))
    updates = _sample(made, operations, seed)
    pairs_read: list[Pair] = []
    asked: list[Question] = []
    found: dict[Question, Sequence[Recalled]] = {}
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as scratch, Memory(Path(scratch) / "turns.db") as memory:
        for talk in track(talks, "storing turns"):
            annotated.store(memory, talk)
            pairs_read += _sample(talk.pairs, pairs, seed)
            for question in _sample(talk.questions, questions, seed):
                asked.append(question)
                found[question] = annotated.retrieved(memory, talk.id, question.text, SHOWN_TURNS)
        contexts: dict[str, evaluate.Shown] = {
            "gold": lambda q: q.evidence,
            "retrieved": lambda q: found[q],
        }
        for who in ("base", "expert"):
            with Engine.load() as engine:
                if who == "expert":
                    experts.load(engine, name)

                def tracked(items: Sequence[T], what: str, who: str = who) -> Any:
                    return track(items, f"{who}: {what}")

                extractions = [
                    evaluate.extraction_row(
                        evaluate.Reader(engine, grammar=grammar), pairs_read, tracked
                    )
                    | {"grammar": grammar}
                    for grammar in ((False, True) if who == "base" else (False,))
                ]
                best = max(extractions, key=lambda row: row["rouge_1_nonempty"] or 0)
                way = _best_way(engine, asked, contexts, tracked) if who == "base" else "expert"
                reader = evaluate.Reader(engine, grammar=who == "base")
                found_rows = [
                    best,
                    *(
                        {"of": of, **row}
                        for of, some in (("phrases", updates), ("written", written))
                        if some
                        for row in evaluate.update_rows(reader, memory.embedder, some, tracked)
                    ),
                    *evaluate.generation_rows(engine, asked, contexts, tracked, way=way),
                ]
                rows += [{"who": who, **row} for row in found_rows]
    return _summary(rows, name, talks), rows


def _best_way(
    engine: Engine,
    questions: Sequence[Question],
    contexts: dict[str, evaluate.Shown],
    track: Track[Question],
) -> evaluate.Way:
    few = {"retrieved": contexts["retrieved"]}
    asked = [q for q in questions if q.answer is not None][:_TO_CHOOSE]
    f1 = {
        way: evaluate.generation_rows(engine, asked, few, track, way=way)[0]["f1"] or 0
        for way in evaluate.BASE_WAYS
    }
    return max(f1, key=f1.__getitem__)


def _summary(
    rows: Sequence[dict[str, Any]], name: str, talks: Sequence[Annotated]
) -> dict[str, Any]:
    def row(who: str, **wanted: str) -> dict[str, Any]:
        return next(
            r for r in rows if r["who"] == who and all(r.get(k) == v for k, v in wanted.items())
        )

    extraction = row("expert", stage="extraction")
    updates = {
        r["of"]: r["macro_accuracy"]
        for r in rows
        if r["who"] == "expert" and r.get("by") == "rules and model"
    }
    return {
        "experts": name,
        "conversations": [talk.id for talk in talks],
        "extraction_json_valid": extraction["json_valid"],
        "extraction_rouge1_nonempty": extraction["rouge_1_nonempty"],
        "extraction_empty_accuracy": extraction["empty_accuracy"],
        "update_accuracy": updates["phrases"],
        "update_accuracy_written": updates.get("written"),
        "generation_f1": row("expert", context="retrieved")["f1"],
        "generation_f1_gold": row("expert", context="gold")["f1"],
        "generation_f1_base": row("base", context="retrieved")["f1"],
    }


def _sample(items: Sequence[T], most: int, seed: int) -> list[T]:
    """At most so many of the items, in their order."""
    chosen = sorted(random.Random(seed).sample(range(len(items)), min(most, len(items))))
    return [items[i] for i in chosen]
