"""How good are the stages, each on its own? Base against expert, on data with known truth.

Both get the expert's short prompt. A base model may answer it in several ways, free or forced by a
grammar, of which the best is to be taken (MemLoRA's Table 4 is the model of this table). Knows the
stages and an engine; nothing of torch.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, TypeVar

import numpy as np

from edgemem.errors import ContextOverflow
from edgemem.runtime.embedder import Embedder
from edgemem.runtime.engine import Engine, Generation, Prompt
from edgemem.stages import extraction, update
from edgemem.stages import generation as answering
from edgemem.stages.generation import Recalled
from edgemem.training.annotated import Pair, Question
from edgemem.training.changes import Situation, update_examples
from edgemem.training.scores import bleu_1, macro, rouge_1, rouge_l, token_f1

__all__ = [
    "BASE_WAYS",
    "Reader",
    "Way",
    "extraction_row",
    "generation_rows",
    "median",
    "update_rows",
]

T = TypeVar("T")
Track = Callable[[Sequence[T], str], Iterable[T]]
Shown = Callable[[Question], Sequence[Recalled]]
Way = Literal["expert", "completion", "chat", "quoted"]

BASE_WAYS: tuple[Way, ...] = ("completion", "chat", "quoted")
"""How a base model may answer a question: by going on with the prompt's text, as a chat model, and
forced to quote what it is shown."""


class Reader:
    """An engine whose every stage is asked like an expert, free of grammar as long as that works.

    grammar: force one at once. answers, valid: how many answers had a schema, and how many followed
    it unforced; tokens: read and written.
    """

    def __init__(self, engine: Engine, *, grammar: bool = False) -> None:
        self._engine, self._grammar = engine, grammar
        self.answers = self.valid = 0
        self.tokens = Counter[str]()

    def expert(self, stage: str) -> bool:
        return True

    def generate(self, prompt: Any, *, schema: Any = None, **options: Any) -> Generation:
        if schema is None:  # the text itself forces the form
            return self._engine.generate(prompt, **options)
        free = self._engine.generate(
            prompt, schema=schema if self._grammar else None, stop=("\n",), **options
        )
        self.tokens.update(read=free.prompt_tokens, written=free.completion_tokens)
        self.answers += 1
        try:
            followed = set(json.loads(free.text)) == set(schema["properties"])
        except (TypeError, ValueError):
            followed = False
        self.valid += followed
        if followed or self._grammar:
            return free
        return self._engine.generate(prompt, schema=schema, **options)


def extraction_row(reader: Reader, pairs: Sequence[Pair], track: Track[Pair]) -> dict[str, Any]:
    """Facts of pairs of messages, as the product would store them, against the annotated ones.

    rouge_1_nonempty: of a pair's facts with those it should have (0 if there are none);
    empty_accuracy: share of the pairs without facts that give none.
    """
    scores, empty, seconds = [], [], []
    for pair in track(pairs, "extraction"):
        started = time.perf_counter()
        try:
            facts = extraction.extract(reader, pair.messages, context=pair.context)  # type: ignore[arg-type]
            found = [fact.text for fact in facts]
        except ValueError:
            found = [""]  # neither a fact nor rightly nothing
        seconds.append(time.perf_counter() - started)
        if pair.facts:
            scores.append(rouge_1(" ".join(found), " ".join(pair.facts)))
        else:
            empty.append(not found)
    return {
        "stage": "extraction",
        "n": len(pairs),
        "json_valid": _mean([reader.valid / reader.answers]) if reader.answers else None,
        "rouge_1_nonempty": _mean(scores),
        "nonempty": len(scores),
        "empty_accuracy": _mean(empty),
        "empty": len(empty),
        "s_p50": median(seconds),
        **_tokens(reader),
    }


def update_rows(
    reader: Reader, embedder: Embedder, operations: Sequence[Situation], track: Track[Situation]
) -> list[dict[str, Any]]:
    """Operations of known truth: the model's about the memory that is meant (of an ADD: the one
    most like the fact), and the stage's among all memories, rules and all."""
    alone: list[tuple[str, str]] = []
    stage: dict[str, list[tuple[str, str]]] = {"rule": [], "model": []}
    for situation in track(operations, "update"):
        (example,) = update_examples([situation], "")
        answer = reader.generate(
            example.prompt, max_tokens=32, schema=update.EXPERT_SCHEMA, stage="update"
        )
        alone.append((situation.event, json.loads(answer.text)["event"]))
        vectors = embedder.embed([situation.fact, *situation.memories])
        near = [
            update.Candidate(str(n), text, float(vectors[0] @ vectors[n + 1]))
            for n, text in enumerate(situation.memories)
        ]
        near.sort(key=lambda c: -c.similarity)
        op = update.decide(reader, [situation.fact], [near])[0]  # type: ignore[arg-type]
        # The right operation on the wrong memory is not right.
        right = op.event == "ADD" or op.target == str(situation.number)
        stage[op.by].append((situation.event, op.event if right else "wrong memory"))
    whole = stage["rule"] + stage["model"]
    return [
        {"stage": "update", "by": by, **_operations(found)}
        for by, found in (
            ("model alone", alone),
            ("rules and model", whole),
            ("rules' part", stage["rule"]),
            ("model's part", stage["model"]),
        )
        if found
    ]


def generation_rows(
    engine: Engine,
    questions: Sequence[Question],
    contexts: dict[str, Shown],
    track: Track[Question],
    *,
    way: Way = "expert",
) -> list[dict[str, Any]]:
    """Answers against the annotated ones, a row for each way of choosing what is shown."""
    rows = []
    for name, shown in contexts.items():
        scores: dict[str, list[float]] = {"f1": [], "bleu_1": [], "rouge_l": []}
        kinds: dict[str, list[float]] = {}
        refused: list[bool] = []
        wrongly, seconds, written = 0, [], 0
        for question in track(questions, f"answers ({name})"):
            memories = shown(question)
            started = time.perf_counter()
            text, tokens = _answer(engine, question.text, memories, way)
            seconds.append(time.perf_counter() - started)
            written += tokens
            if question.answer is None:
                refused.append(text == answering.NOTHING_FOUND)
                continue
            wrongly += text == answering.NOTHING_FOUND
            for key, score in (("f1", token_f1), ("bleu_1", bleu_1), ("rouge_l", rouge_l)):
                scores[key].append(score(text, question.answer))
            kinds.setdefault(question.category, []).append(scores["f1"][-1])
        rows.append(
            {
                "stage": "generation",
                "context": name,
                "way": way,
                "n": len(scores["f1"]),
                **{key: _mean(values) for key, values in scores.items()},
                **{f"f1_{kind}": _mean(values) for kind, values in sorted(kinds.items())},
                "refused_unanswerable": _mean(refused),
                "unanswerable": len(refused),
                "refused_answerable": round(wrongly / max(1, len(scores["f1"])), 4),
                "tokens_written": round(written / max(1, len(questions)), 1),
                "s_p50": median(seconds),
            }
        )
    return rows


def _answer(
    engine: Engine, question: str, memories: Sequence[Recalled], way: Way
) -> tuple[str, int]:
    """An answer's text, the refusal in our words, and its tokens."""
    if way == "expert":
        stream = answering.answer(engine, question, memories, speaker="User")
        text = "".join(stream).strip()
        return text, stream.result.completion_tokens if stream.result else 0
    if way == "quoted" and not memories:
        return answering.NOTHING_FOUND, 0
    asked = answering.expert_prompt(question, memories, "User")
    prompt: Prompt = [{"role": "user", "content": asked}] if way == "chat" else asked
    quoting: dict[str, Any] = {"within": [m.text for m in memories], "stop": ("\n",)}
    try:
        answer = engine.generate(
            prompt,
            max_tokens=answering.MAX_ANSWER_TOKENS,
            **(quoting if way == "quoted" else {}),
        )
    except ContextOverflow:
        return "", 0
    # A base model begins with an empty line, or goes on with lines of its own.
    text = next(iter(answer.text.strip().splitlines()), "")
    refused = text.strip(" .") == answering.NOT_KNOWN
    return answering.NOTHING_FOUND if refused else text, answer.completion_tokens


def _operations(found: Sequence[tuple[str, str]]) -> dict[str, Any]:
    each = macro(found)
    return {
        "n": len(found),
        "accuracy": _mean([wanted == given for wanted, given in found]),
        "macro_accuracy": _mean(list(each.values())),
        **{event: round(share, 4) for event, share in each.items()},
        "confusion": {f"{w} as {g}": n for (w, g), n in sorted(Counter(found).items()) if w != g},
    }


def _tokens(reader: Reader) -> dict[str, Any]:
    return {f"tokens_{k}": round(v / max(1, reader.answers), 1) for k, v in reader.tokens.items()}


def _mean(values: Sequence[float]) -> float | None:
    return round(float(np.mean(values)), 4) if len(values) else None


def median(values: Sequence[float]) -> float | None:
    """To a thousandth; None of nothing."""
    return round(float(np.median(values)), 3) if len(values) else None
