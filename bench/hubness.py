"""Does CoreMem's metric reduce hubs among real memories, and does that find more?

    python -m bench.hubness --data DIR --json OUT

Turns and questions of LoCoMo, embedded as edgemem embeds them (speaker in front), each conversation
searched by itself. Rows: the cosine, and each form of the metric for each ridge c, fitted on the
conversation or on all turns together. `skewness` is that of the k-occurrence (Radovanović et al.
2010): how often each turn is among the 10 nearest of the other turns; 0 has no hubs. `orphans` is
the share of turns that are among nobody's. Both are means over the conversations. `hit_at_10`: an
evidence turn is among the first 10 for a question, the form alone; categories 1 to 4.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import track

from bench import report
from bench.locomo import CATEGORIES, evidence
from edgemem.importers import LocomoFile, read_locomo
from edgemem.retrieval import metric as metrics
from edgemem.retrieval.lexical import search_text
from edgemem.runtime.embedder import Embedder

K = 10
RIDGES = (1.0, 3.0, 10.0)
ALPHA = 0.5
_console = Console(stderr=True)

# From the cosines with a query, q'·h, the query made ready and the rows' norms to scores.
Form = Callable[[np.ndarray, np.ndarray, metrics.WhitenedQuery, np.ndarray], np.ndarray]
FORMS: dict[str, Form] = {
    "inner product": lambda cosine, dots, q, norms: metrics.centred_inner_product(dots, q),
    "distance": lambda cosine, dots, q, norms: -metrics.squared_distance(dots, q, norms),
    "whitened cosine": lambda cosine, dots, q, norms: metrics.whitened_cosine(dots, q, norms),
    "fusion": lambda cosine, dots, q, norms: metrics.residual_fusion(
        cosine, metrics.centred_inner_product(dots, q), ALPHA
    ),
}


@dataclass(frozen=True)
class Conversation:
    """turns: (n, d); questions: (m, d), unit rows; wanted: the evidence turns of each question."""

    turns: np.ndarray
    questions: np.ndarray
    wanted: list[list[int]]


def embed(file: LocomoFile, embedder: Embedder) -> Conversation:
    texts = [search_text(m["content"], speaker=m.get("name")) for m in file.messages]
    number = {m["metadata"]["dia_id"]: i for i, m in enumerate(file.messages)}
    asked = [
        (question["question"], [number[id] for id in evidence(question, set(number))])
        for question in file.qa
        if question.get("category") in CATEGORIES
    ]
    usable = [(text, wanted) for text, wanted in asked if wanted]
    return Conversation(
        embedder.embed(texts),
        embedder.embed([text for text, _ in usable]),
        [wanted for _, wanted in usable],
    )


def load(folder: Path) -> list[Conversation]:
    """Every conversation of the folder, embedded."""
    paths = sorted(folder.glob("*.json"))
    if not paths:
        raise SystemExit(f"{folder} holds no LoCoMo JSON files; give the folder that does")
    embedder = Embedder.load()
    return [embed(read_locomo(p), embedder) for p in track(paths, "embedding", console=_console)]


def scores_of(form: str, metric: metrics.Metric, H: np.ndarray, queries: np.ndarray) -> np.ndarray:
    """(queries, rows), larger is better. form: a key of FORMS."""
    norms = metric.norms(H)
    ready = [metric.query(q) for q in queries]
    return np.stack(
        [FORMS[form](H @ q, H @ w.image, w, norms) for q, w in zip(queries, ready, strict=True)]
    )


def best(scores: np.ndarray, k: int) -> np.ndarray:
    """(queries, k): the positions of the k largest of each row, in any order."""
    return np.argpartition(-scores, k - 1, axis=1)[:, :k]


def k_occurrence(scores: np.ndarray) -> np.ndarray:
    """(n,): in how many other rows' 10 best each row is. scores: (n, n), overwritten."""
    np.fill_diagonal(scores, -np.inf)
    return np.bincount(best(scores, K).ravel(), minlength=len(scores))


def skewness(counts: np.ndarray) -> float:
    z = counts - counts.mean()
    return float((z**3).mean() / (z**2).mean() ** 1.5)


def measure(
    conversations: Sequence[Conversation],
    score: Callable[[int, np.ndarray, np.ndarray], np.ndarray],
) -> dict[str, float]:
    """The figures of one way to score. score: (conversation's number, turns, queries) -> scores."""
    counts = [k_occurrence(score(i, c.turns, c.turns).copy()) for i, c in enumerate(conversations)]
    hits = []
    for i, c in enumerate(conversations):
        found = best(score(i, c.turns, c.questions), K)
        hits += [not set(f) & set(w) for f, w in zip(found.tolist(), c.wanted, strict=True)]
    return {
        "skewness": round(float(np.mean([skewness(n) for n in counts])), 3),
        "orphans": round(float(np.mean([(n == 0).mean() for n in counts])), 3),
        "hit_at_10": round(1 - float(np.mean(hits)), 4),
    }


def rows_of(conversations: Sequence[Conversation]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = [
        {"form": "cosine", **measure(conversations, lambda i, H, queries: queries @ H.T)}
    ]
    every = np.concatenate([c.turns for c in conversations])
    for c in track(RIDGES, "scoring", console=_console):
        fitted = {
            "conversation": [metrics.fit(each.turns, c=c) for each in conversations],
            "all": [metrics.fit(every, c=c)] * len(conversations),
        }
        for fitted_on, metric in fitted.items():
            rank = round(float(np.mean([m.rank for m in metric])), 1)
            for form in FORMS:
                figures = measure(
                    conversations,
                    lambda i, H, q, form=form, metric=metric: scores_of(form, metric[i], H, q),
                )
                rows.append({"form": form, "c": c, "fitted_on": fitted_on, "rank": rank} | figures)
    return rows


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.hubness", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--data", type=Path, required=True, help="folder of LoCoMo JSON files")
    parser.add_argument("--json", default="-", metavar="OUT", help="a file (default: stdout)")
    options = parser.parse_args(arguments)
    conversations = load(options.data)
    rows = rows_of(conversations)
    summary = {
        "conversations": len(conversations),
        "turns": sum(len(c.turns) for c in conversations),
        "questions": sum(len(c.wanted) for c in conversations),
        "k": K,
    }
    for row in rows:
        cells = [str(row.get(name, "")) for name in ("form", "fitted_on", "c", "rank")]
        figures = [f"{row[name]:8.4f}" for name in ("skewness", "orphans", "hit_at_10")]
        _console.print(f"{cells[0]:16}{cells[1]:14}{cells[2]:>5}{cells[3]:>7}", *figures)
    report.write(options.json, summary, rows)


if __name__ == "__main__":
    main()
