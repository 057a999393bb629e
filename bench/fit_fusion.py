"""Sets the weights of the fusion (edgemem/data/fusion.json) on LoCoMo conversations.

    python -m bench.fit_fusion --data DIR --json OUT [--write]

The features are those that a search computes. Two sets of weights: "metric" from whole
conversations, "cosine" from single sessions, which are as small as the stores that have no metric
yet. One loss for two ends: minus the log likelihood of the evidence among the candidates of its
question (soft-max over these, the evidence's probabilities added up; categories 1 to 4), which is
about the order, plus CALIBRATION times that of each candidate alone, evidence or not (logistic;
also of category 5, whose questions have no answer), which makes the score a probability.

Prints what is found when each conversation's weights come from the others, and what a threshold
means. --write stores the weights of all of them.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import track

from bench import report
from bench.questions import Question, ingest, questions, sessions
from edgemem.config import load_settings
from edgemem.importers import read_locomo
from edgemem.memory import Memory
from edgemem.retrieval.fusion import FEATURES, Weights
from edgemem.runtime.embedder import Embedder

WEIGHTS = Path(__file__).resolve().parent.parent / "edgemem" / "data" / "fusion.json"
KS = (1, 5, 10, 20)
THRESHOLDS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7)
RIDGE = 1e-3  # on weights of features of variance 1
CALIBRATION = 0.2  # of 0.05 to 5: bench/LOG.md
_console = Console(stderr=True)


def fit(asked: Sequence[Question]) -> Weights:
    """The weights that minimise the loss described above.

    By Newton's method with the curvature of an upper bound: the evidence's own soft-max, whose
    curvature counts against it, is left out, so every step lowers the loss.
    """
    rows = np.concatenate([q.features for q in asked]).astype(np.float64)
    deviation = rows.std(axis=0)
    deviation[deviation == 0] = np.inf  # a feature that never differs weighs nothing
    rows = np.hstack([rows / deviation, np.ones((len(rows), 1))])
    evidence = np.concatenate([q.evidence for q in asked])
    sizes = [len(q.features) for q in asked]
    starts = np.cumsum([0, *sizes])[:-1]
    question = np.repeat(np.arange(len(asked)), sizes)
    answered = np.array([bool(q.evidence.any()) for q in asked])[question]
    ridge = np.full(rows.shape[1], RIDGE * len(asked))
    ridge[-1] = 1e-9  # the bias is free

    weights = np.zeros(rows.shape[1])
    for _ in range(200):
        logits = rows @ weights
        raised = np.exp(logits - np.maximum.reduceat(logits, starts)[question])
        among = raised * answered
        among /= np.maximum(np.add.reduceat(among, starts), 1e-300)[question]
        right = raised * evidence
        right /= np.maximum(np.add.reduceat(right, starts), 1e-300)[question]
        alone = 1 / (1 + np.exp(-np.clip(logits, -50, 50)))
        pull = among - right + CALIBRATION * (alone - evidence)
        gradient = rows.T @ pull + 2 * ridge * weights
        means = np.add.reduceat(among[:, None] * rows, starts)
        curvature = among + CALIBRATION * alone * (1 - alone)
        hessian = (rows * curvature[:, None]).T @ rows - means.T @ means + 2 * np.diag(ridge)
        step = np.linalg.solve(hessian, gradient)
        weights -= step * min(1.0, 3.0 / np.abs(step).max())
        if np.abs(step).max() < 1e-5:
            break
    return Weights(float(weights[-1]), (weights[:-1] / deviation).astype(np.float32))


def hits(asked: Sequence[Question], weights: Weights, ks: Sequence[int]) -> dict[str, float]:
    """Hit@k over answerable questions."""
    found = {k: 0 for k in ks}
    answerable = [q for q in asked if q.answerable]
    for q in answerable:
        best, _ = weights.best(q.features, max(ks))
        for k in ks:
            found[k] += bool(q.evidence[best[:k]].any())
    return {f"hit_at_{k}": round(n / max(1, len(answerable)), 4) for k, n in found.items()}


def leave_one_out(asked: Sequence[Question], ks: Sequence[int]) -> dict[str, Any]:
    """Hit@k where each conversation's weights come from the others. Raises ValueError if there is
    only one."""
    names = sorted({q.conversation for q in asked})
    if len(names) < 2:
        raise ValueError(f"one conversation, {names}; leaving one out needs two or more")
    total = dict.fromkeys((f"hit_at_{k}" for k in ks), 0.0)
    for name in names:
        mine = [q for q in asked if q.conversation == name and q.answerable]
        here = hits(mine, fit([q for q in asked if q.conversation != name]), ks)
        for key, value in here.items():
            total[key] += value * len(mine)
    n = sum(q.answerable for q in asked)
    return {"n": n, **{key: round(value / n, 4) for key, value in total.items()}}


def without(asked: Sequence[Question], feature: str) -> list[Question]:
    """The questions as they would be if nobody had thought of a feature."""
    column = FEATURES.index(feature)
    return [
        replace(q, features=np.where(np.arange(len(FEATURES)) == column, 0, q.features))
        for q in asked
    ]


def precision(asked: Sequence[Question], weights: Weights) -> list[dict[str, Any]]:
    """What a threshold means: for each, of the best hits that reach it how many are evidence, how
    many of the answerable questions have one, and how many of the adversarial ones wrongly do."""
    best, right, answerable = [], [], []
    for q in asked:
        (position,), (score,) = weights.best(q.features, 1)
        best.append(score)
        right.append(q.evidence[position])
        answerable.append(q.answerable)
    scores, of, kind = np.array(best), np.array(right), np.array(answerable)
    rows = []
    for threshold in THRESHOLDS:
        reach = scores >= threshold
        rows.append(
            {
                "threshold": threshold,
                "right_of_best_hits": round(float(of[reach].mean()), 4) if reach.any() else None,
                "answerable_kept": round(float(reach[kind].mean()), 4),
                "adversarial_refused": round(float((~reach[~kind]).mean()), 4),
            }
        )
    return rows


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.fit_fusion", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--data", type=Path, required=True, help="folder of LoCoMo JSON files")
    parser.add_argument("--json", type=Path, required=True, help="file to write")
    parser.add_argument("--write", action="store_true", help="store the weights in the package")
    options = parser.parse_args(argv)
    files = [read_locomo(path) for path in sorted(options.data.glob("*.json"))]
    settings = load_settings()
    embedder = Embedder.load(settings.embedder, n_threads=settings.n_threads)
    summary: dict[str, Any] = {}
    rows: list[dict[str, Any]] = []
    stored: dict[str, Any] = {}
    for name, parts in (
        ("metric", files),
        ("cosine", [part for file in files for part in sessions(file)]),
    ):
        asked = []
        for part in track(parts, f"asking for the {name} weights", console=_console):
            with Memory(":memory:", embedder=embedder) as memory:
                ingest(memory, [part])
                asked += questions(memory, [part])
        weights = fit(asked)
        for key, value in leave_one_out(asked, KS).items():
            summary[f"{name}_{key}"] = value
        rows += [{"weights": name, **row} for row in precision(asked, weights)]
        stored[name] = {
            "bias": round(weights.bias, 4),
            "weights": {
                f: round(float(w), 4) for f, w in zip(FEATURES, weights.weights, strict=True)
            },
        }
    report.write(options.json, summary, rows)
    if options.write:
        about = "set by python -m bench.fit_fusion, on LoCoMo (CC BY-NC 4.0); no text of it is here"
        WEIGHTS.write_text(json.dumps({"about": about, "similarity": stored}, indent=1) + "\n")


if __name__ == "__main__":
    main()
