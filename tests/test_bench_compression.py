"""bench.compression: its contexts, its methods' budgets, and its figures."""

from __future__ import annotations

import numpy as np
import pytest

from bench.compression import _rows
from bench.compressors import METHODS, Job
from bench.contexts import Case, Stored, ahead_of_time, cases, stored_scores, turn_vectors
from edgemem.compression.estimate import estimated_tokens
from edgemem.compression.layout import lay_out
from edgemem.compression.scores import Scores
from edgemem.importers import LocomoFile
from edgemem.runtime.embedder import Embedder

SAID = [
    "I moved from Ghent to Antwerp because of the new job. It rained all day, but we were happy.",
    "Green tea is what I drink now. Coffee keeps me awake until 3 o'clock.",
    "My nephew Jonas plays the trumpet in a school band. The hall was full on 2 May 2024.",
    "I finished the blue scarf, it took three weeks of slow and careful work in the evenings.",
]


def conversation() -> LocomoFile:
    messages = [
        {
            "role": "user",
            "name": "Ana" if i % 2 else "Bo",
            "content": SAID[i % 4],
            "timestamp": f"2024-05-{1 + i // 6:02d}T10:00:00.000+00:00",
            "metadata": {"session": i // 6, "dia_id": f"D{i // 6}:{i}"},
        }
        for i in range(24)
    ]
    asked = {"question": "What does Jonas play?", "answer": "the trumpet", "category": 4}
    qa = [{**asked, "evidence": ["D0:2"]}, {**asked, "evidence": ["D1:10", "D2:14"]}]
    return LocomoFile("invented", messages, qa)


def varied(text: str) -> Scores:
    offsets = estimated_tokens(text)
    return Scores(offsets, 1 + np.arange(len(offsets), dtype=np.float32) % 7, "made up")


@pytest.fixture(scope="module")
def drawn() -> list[Case]:
    return cases([conversation()], 2, 0)


@pytest.fixture(scope="module")
def stored(drawn: list[Case], embedder: Embedder) -> Stored:
    found = dict(ahead_of_time(drawn, varied, (), lambda items, _: items))
    return Stored(found, turn_vectors(drawn, embedder.embed))


def test_gold_is_the_evidence_among_eight_others_in_order(drawn: list[Case]) -> None:
    first, second = drawn
    assert len(first.turns) == 9 and len(second.turns) == 10
    assert list(second.turns) == sorted(second.turns)
    told = [line for line, is_told in zip(second.lines, second.evidence, strict=True) if is_told]
    assert told == [f"[2 May 2024] Bo: {SAID[2]}", f"[3 May 2024] Bo: {SAID[2]}"]


def test_what_is_stored_are_scores_of_the_turns_own_words(
    drawn: list[Case], stored: Stored
) -> None:
    for case in drawn:
        text = "\n".join(case.lines)
        scores, tokens = stored_scores(case, stored, estimated_tokens)
        said = "".join(text[a:b] for a, b in scores.offsets.tolist())
        bodies = [line.partition("] ")[2].partition(": ")[2] for line in case.lines]
        assert said.replace(" ", "") == "".join(bodies).replace(" ", "")
        layout, whole = lay_out(text), estimated_tokens(text)
        np.testing.assert_array_equal(
            np.bincount(layout.unit_of(np.sort(tokens[:, 1]))),
            np.bincount(layout.unit_of(whole[:, 1])),
        )


def test_what_was_scored_is_not_scored_again(drawn: list[Case], stored: Stored) -> None:
    assert not list(ahead_of_time(drawn, varied, stored.scores, lambda items, _: items))


@pytest.mark.models
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("rate", [0.5, 0.33])
def test_methods_keep_the_budget(
    drawn: list[Case], stored: Stored, embedder: Embedder, method: str, rate: float
) -> None:
    case = drawn[0]
    tokens = estimated_tokens("\n".join(case.lines))
    job = Job(
        case=case,
        budget=int(rate * len(tokens)),
        tokens=tokens,
        tokenizer=estimated_tokens,
        distiller=estimated_tokens,
        embedder=embedder,
        exact=lambda: varied("\n".join(case.lines)),
        information=lambda: varied("\n".join(case.lines)),
        stored=stored,
    )
    text = METHODS[method](job)
    share = len(estimated_tokens(text)) / job.budget
    assert share > 0.8
    if method != "fdtd_alg2":  # as printed, it exceeds
        assert share <= 1
    if method in ("ours_question", "ours_lookup", "ours_no_scores", "ours_product"):
        assert "trumpet" in text


def test_the_gap_is_a_ratio_of_sums_and_differences_are_paired() -> None:
    items: dict[tuple[str | int, ...], dict[str, object]] = {("stored", "invented", 1): {}}
    read = {"answer_words": None, "entities": 0.5, "f1": 0.0, "tokens": 50, "origin": 100,
            "exceeds": False, "ms": 2.0, "cpu_s": 0.1}  # fmt: skip
    for i in range(40):
        key = ("gold", "smollm2", f"invented/{i}")
        items[*key, "none", ""] = {"log_p": -10.0 - i}
        items[*key, "full", ""] = {**read, "log_p": -6.0 - i}
        items[*key, "ours_question", "50%"] = {**read, "log_p": -7.0 - i + (i % 2)}
        items[*key, "truncation", "50%"] = {**read, "log_p": -9.0 - i + (i % 2)}
    rows = {row["method"]: row for row in _rows(items, ["ours_question", "truncation"])}  # type: ignore[arg-type]
    ours, plain = rows["ours_question"], rows["truncation"]
    assert ours["gap_kept"] == 0.875 and plain["gap_kept"] == 0.375
    assert ours["gap_kept_ci"][0] < 0.875 < ours["gap_kept_ci"][1]
    assert plain["default_minus"] == 0.5 and plain["default_minus_ci"] == [0.5, 0.5]
    assert ours["default_minus_ci"] == [0.0, 0.0]
    assert plain["n"] == 40 and plain["ratio"] == 2.0 and plain["answer_words_kept"] is None
    assert plain["cpu_s_per_1000_tokens"] == 1.0
