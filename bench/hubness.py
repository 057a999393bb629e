"""Does CoreMem's metric reduce hubs among real memories, and does that find more?

    python -m bench.hubness --data DIR --json OUT

Turns and questions of LoCoMo, embedded as edgemem embeds them (speaker in front), each conversation
searched by itself. Rows: the cosine, and each form of the metric for each ridge c, fitted on the
conversation or on all turns together. `skewness` is that of the k-occurrence (Radovanović et al.
2010): how often each turn is among the 10 nearest of the other turns; 0 has no hubs. `orphans` is
the share of turns that are among nobody's. Both are means over the conversations. `hit_at_10` is
the share of questions (categories 1 to 4) with an evidence turn among the form's first 10.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bench import report
from bench.questions import answerable
from corpus.readers import LocomoFile, locomo_file
from edgemem.kernels import zero_norm
from edgemem.retrieval import metric as metrics
from edgemem.retrieval.lexical import search_text
from edgemem.runtime.embedder import Embedder

K = 10
RIDGES = (1.0, 3.0, 10.0)
ALPHA = 0.5


def centred_inner_product(dots: np.ndarray, query: metrics.WhitenedQuery) -> np.ndarray:
    """(q − μ)ᵀ Σ⁻¹ (h − μ), a score: Algorithm 1, line 15, with the inverse of eq. 1.

    dots: (n,) q'·h for each row, q' = query.image. Returns (n,) float32; −inf for a row whose dot
    is NaN.
    """
    inner = np.asarray(dots, np.float32) + np.float32(query.offset)
    return np.where(np.isnan(inner), np.float32(-np.inf), inner)


def norms_of(metric: metrics.Metric, H: np.ndarray) -> np.ndarray:
    """The whitened norm of each row around the mean, sqrt((h − μ)ᵀ Σ⁻¹ (h − μ)).

    H: (n, d) float32, rows of unit length (not normalised here). Returns (n,) float32 >= 0; 0
    for a row that is not finite or is taken for the mean. Cost O(n·d·r).
    """
    with np.errstate(invalid="ignore", over="ignore"):
        centred = H - metric.mean
        along = centred @ metric.A
        squared = (centred * centred) @ metric.inverse_diagonal
        norms: np.ndarray = np.sqrt(squared - np.einsum("ij,ij->i", along, along))
    norms[~np.isfinite(norms) | (norms <= zero_norm(metric.inverse_diagonal))] = 0
    return norms


def squared_distance(
    dots: np.ndarray, query: metrics.WhitenedQuery, norms: np.ndarray
) -> np.ndarray:
    """(q − h)ᵀ Σ⁻¹ (q − h), the squared Mahalanobis distance: smaller is nearer.

    dots: as for `centred_inner_product`; norms: (n,) of the rows, from `norms_of`. Returns (n,)
    float32 >= 0; inf for a row whose dot is NaN. Ranking by it makes hubs of the rows near the
    mean (bench/LOG.md, 2026-11-22).
    """
    norms = np.asarray(norms, np.float32)
    squared = query.norm**2 - 2 * centred_inner_product(dots, query) + norms * norms
    distance: np.ndarray = np.maximum(squared, np.float32(0))
    return distance


def whitened_cosine(
    dots: np.ndarray, query: metrics.WhitenedQuery, norms: np.ndarray
) -> np.ndarray:
    """The cosine of q − μ and h − μ in the space where Σ is the identity; not in the paper.

    dots, norms: as for `squared_distance`. Returns (n,) float32 in [-1, 1]; 0 where a norm is 0.
    """
    length = np.asarray(norms, np.float32) * np.float32(query.norm)
    inner = centred_inner_product(dots, query)
    cosine = np.divide(inner, length, out=np.zeros_like(inner), where=length > 0)
    clipped: np.ndarray = np.clip(cosine, -1, 1)
    return clipped


def residual_fusion(cosine: np.ndarray, metric: np.ndarray, alpha: float = 0.5) -> np.ndarray:
    """α·norm(cosine) + (1 − α)·norm(metric), each min–max normalised: CoreMem eq. 2.

    cosine, metric: (n,) scores (larger is better) of the same rows; alpha: weight of the cosine, 0
    to 1 (paper: 0.5). Returns (n,) float32 in [0, 1]. Scores that are all equal become 0; one that
    is not finite counts as the smallest. The result depends on which rows are compared.
    Raises ValueError on another alpha, or on shapes that differ.
    """
    if not 0 <= alpha <= 1:
        raise ValueError(f"alpha is {alpha}; the cosine's weight must be 0 to 1")
    if np.shape(cosine) != np.shape(metric):
        raise ValueError(f"cosine has shape {np.shape(cosine)}, metric {np.shape(metric)}")
    fused = alpha * _min_max(cosine) + (1 - alpha) * _min_max(metric)
    return fused.astype(np.float32)


def _min_max(scores: np.ndarray) -> np.ndarray:
    scores = np.asarray(scores, np.float64)
    finite = np.isfinite(scores)
    if not finite.any():
        return np.zeros_like(scores)
    low, high = scores[finite].min(), scores[finite].max()
    spread = high - low if high > low else 1.0
    return np.where(finite, (scores - low) / spread, 0.0)


# (cosines with a query, dots q'·h, the whitened query, the rows' norms) -> scores.
Form = Callable[[np.ndarray, np.ndarray, metrics.WhitenedQuery, np.ndarray], np.ndarray]
FORMS: dict[str, Form] = {
    "inner product": lambda cosine, dots, q, norms: centred_inner_product(dots, q),
    "distance": lambda cosine, dots, q, norms: -squared_distance(dots, q, norms),
    "whitened cosine": lambda cosine, dots, q, norms: whitened_cosine(dots, q, norms),
    "fusion": lambda cosine, dots, q, norms: residual_fusion(
        cosine, centred_inner_product(dots, q), ALPHA
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
    asked = list(answerable(file))
    return Conversation(
        embedder.embed(texts),
        embedder.embed([text for text, _ in asked]),
        [[number[id] for id in wanted] for _, wanted in asked],
    )


def scores_of(form: str, metric: metrics.Metric, H: np.ndarray, queries: np.ndarray) -> np.ndarray:
    """(queries, rows), larger is better. form: a key of FORMS."""
    norms = norms_of(metric, H)
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
    for c in report.track(RIDGES, "scoring"):
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
    parser = report.parser("hubness", __doc__, data="LoCoMo", to_file=False)
    options = parser.parse_args(arguments)
    embedder = Embedder.load()
    conversations = [
        embed(locomo_file(path), embedder) for path in report.track(options.data, "embedding")
    ]
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
        report.console.print(f"{cells[0]:16}{cells[1]:14}{cells[2]:>5}{cells[3]:>7}", *figures)
    report.write(options.json, summary, rows)


if __name__ == "__main__":
    main()
