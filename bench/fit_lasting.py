"""Sets the weights that tell which memories last (edgemem/data/lasting.npz).

    python -m bench.fit_lasting --json OUT [--write]

A logistic regression with an L2 penalty for each kind learns the labelled facts of models/facts by
Newton's method, each fact also in the first person, as turns are. Printed for each kind, each
hand's facts scored by the weights of the others: AUC, and precision and recall at the probability
that counts. --write stores the weights of all facts. A minute.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench import report
from edgemem.config import load_settings
from edgemem.pipeline.people import KINDS, LIKELY
from edgemem.runtime.embedder import Embedder

FACTS = report.MODELS / "facts" / "lasting.txt"
WEIGHTS = report.DATA / "lasting.npz"
PENALTY = 0.3
STEPS, BATCH = 30, 64

_FIRST_PERSON = {
    r"\bUser's\b": "my",
    r"\bUser (?:is|was)\b": "I am",
    r"\bUser has\b": "I have",
    r"\bUser does\b": "I do",
    r"\b(?:User|they)\b": "I",
    r"\b(?:their|them)\b": "my",
}

FloatArray = NDArray[np.float64]


def read() -> tuple[list[str], list[str], NDArray[np.intp]]:
    """The facts and their first-person forms, the labels, and the number of each one's hand."""
    facts, labels, hands, hand = [], [], [], 0
    for line in FACTS.read_text(encoding="utf-8").splitlines():
        if line.startswith("#"):
            hand += 1
            continue
        label, fact = line.split("\t")
        for text in sorted({fact, in_first_person(fact)}):
            facts.append(text)
            labels.append(label)
            hands.append(hand)
    return facts, labels, np.array(hands)


def in_first_person(fact: str) -> str:
    """A fact about the user, roughly in the user's words; another fact as it is."""
    if "User" in fact:
        for pattern, words in _FIRST_PERSON.items():
            fact = re.sub(pattern, words, fact)
    return fact


def fit(x: FloatArray, y: NDArray[np.bool_]) -> FloatArray:
    """The weights (dim + 1,), the last of the constant. x: (n, dim + 1); y: (n,)."""
    penalty = np.full(x.shape[1], PENALTY)
    penalty[-1] = 0
    w = np.zeros(x.shape[1])
    for _ in range(STEPS):
        p = 1 / (1 + np.exp(-x @ w))
        hessian = (x * (p * (1 - p))[:, None]).T @ x + np.diag(penalty)
        w -= (step := np.linalg.solve(hessian, x.T @ (p - y) + penalty * w))
        if np.abs(step).max() < 1e-6:
            break
    return w


def figures(logits: FloatArray, y: NDArray[np.bool_]) -> dict[str, Any]:
    ranks = logits.argsort().argsort()
    n = int(y.sum())
    told = logits >= np.log(LIKELY / (1 - LIKELY))
    return {
        "facts": n,
        "auc": round(float((ranks[y].sum() - n * (n - 1) / 2) / (n * (~y).sum())), 3),
        "precision": round(float(y[told].mean()), 3),
        "recall": round(float(told[y].mean()), 3),
    }


def main(argv: Sequence[str] | None = None) -> None:
    parser = report.parser("fit_lasting", __doc__)
    parser.add_argument("--write", action="store_true", help="store the weights in the package")
    options = parser.parse_args(argv)
    facts, labels, hands = read()
    embedder = Embedder.load(load_settings().embedder)
    batches = report.track(range(0, len(facts), BATCH), "embedding")
    vectors = np.concatenate([embedder.embed(facts[i : i + BATCH]) for i in batches])
    x = np.concatenate([vectors, np.ones((len(facts), 1))], axis=1)
    rows, weights = [], []
    for kind in KINDS:
        y = np.array(labels) == kind
        logits = np.zeros(len(y))
        for hand in set(hands.tolist()):
            logits[hands == hand] = x[hands == hand] @ fit(x[hands != hand], y[hands != hand])
        rows.append({"kind": kind, **figures(logits, y)})
        print(rows[-1])
        weights.append(fit(x, y))
    if options.write:
        vector, bias = np.split(np.stack(weights, axis=1).astype(np.float32), [-1])
        np.savez(WEIGHTS, vector=vector, bias=bias[0], embedder=embedder.model_id)
    report.write(options.json, {"facts": len(facts), "penalty": PENALTY}, rows)


if __name__ == "__main__":
    main()
