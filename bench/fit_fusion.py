"""Sets the weights of the fusion (edgemem/data/fusion.json) on conversations with questions.

    python -m bench.fit_fusion --data DIR --json OUT [--write]

The features are those that a search computes. SHARES weighs three corpora: LoCoMo's conversations,
ours (models/conversations), and parts of ours, of a few turns each. The encoders that ship have
learned ours, so each half of ours is embedded by encoders that learned the other half alone
(models/halves, made by bench.fit_retrieval).

There are two kinds of weights: "metric" for a store that holds several conversations, "cosine" for
a store of one conversation (of LoCoMo: one session) that is too small for a metric. Each kind is
fitted for a fast and for a careful search, which needs the extra `colbert`.

The loss has two terms. The first, for the order, is minus the log likelihood of the evidence among
its question's candidates (a soft-max, with the evidence's probabilities added up). The second is
CALIBRATION times minus the log likelihood of each candidate alone, evidence or not (logistic; also
for questions that no memory answers). Then the sum is scaled and shifted (Platt 1999), which leaves
the order and makes the score a probability.

Each group (a conversation of LoCoMo, a fifth of our files) is judged by weights fitted on the
others. Printed are Hit@k, how many memories of a score are evidence, and for each threshold the
share of questions that find a memory of at least that score: questions that the conversation
answers ("own"), that another one answers ("other"), and that none answers ("unknown"). --write
stores weights fitted on all groups. About an hour.
"""

from __future__ import annotations

import json
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bench import report
from bench.questions import Question, ask, by_session, by_turns, half_of
from corpus import readers
from corpus.annotated import Annotated, store
from edgemem.config import load_settings
from edgemem.memory import Memory
from edgemem.retrieval.search import FEATURES, MATCHES, RELEVANT, Weights, probability
from edgemem.runtime.embedder import TOKEN_MODEL, Embedder, TokenEmbedder

KINDS = ("metric", "cosine")
CONVERSATIONS, HALVES = report.MODELS / "conversations", report.MODELS / "halves"
WEIGHTS = report.DATA / "fusion.json"
KS = (1, 5, 10, 20)
THRESHOLDS = (0.003, 0.005, 0.007, 0.01, 0.02, 0.05, 0.1, 0.3, 0.5)
BINS = (0.0, 0.003, 0.01, 0.03, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0)  # of scores
RIDGE = 1e-3  # on weights of features of variance 1
CALIBRATION = 0.1  # of 0.1 to 5: bench/LOG.md
SHARES = {"locomo": 0.7, "written": 0.2, "parts": 0.1}  # chosen by LoCoMo: bench/LOG.md
PARTS = (3, 9)  # turns
GROUPS = 5  # of our files
EVERY_PART, EVERY_OTHER = 2, 4  # every 2nd talk cut into parts, every 4th question to another


class Encoders(NamedTuple):
    """The encoders for a search of one corpus. tokens: None for fast searches."""

    embedder: Embedder
    tokens: TokenEmbedder | None

    @classmethod
    def load(cls, careful: bool, half: int | None = None) -> Encoders:
        """The encoders that ship, or those that learned one half of our conversations.

        They cache embeddings, as the same texts lie in many stores here.
        """
        n_threads = load_settings().n_threads
        folder = WEIGHTS.parent if half is None else HALVES / str(half)
        experts = {n: (folder / f"{n}.npz").read_bytes() for n in ("minilm", "colbert", "tokens")}
        embedder = Embedder.load(n_threads=n_threads, expert=experts["minilm"])
        chunks = embedder.embed_chunks
        one = cache(lambda text: chunks([text])[0])
        embedder.embed_chunks = lambda texts: [one(t) for t in texts]  # type: ignore[method-assign]
        if not careful:
            return cls(embedder, None)
        model = Embedder.load(TOKEN_MODEL, n_threads=n_threads, expert=experts["colbert"])
        tokens = TokenEmbedder(model, experts["tokens"])
        tokens.embed = cache(tokens.embed)  # type: ignore[method-assign]
        tokens.embed_query = cache(tokens.embed_query)  # type: ignore[method-assign]
        return cls(embedder, tokens)


def families(
    kind: str, files: Sequence[Path]
) -> Iterator[tuple[str, int | None, list[tuple[str, Annotated]]]]:
    """The families of conversations that are asked each other's questions.

    Yields a corpus, the half whose encoders embed it (None: those that ship), and the conversations
    with their groups.
    """
    talks = [readers.read_locomo(path) for path in files]
    if kind == "metric":
        yield "locomo", None, [(talk.id, talk) for talk in talks]
    else:
        yield "locomo", None, [(talk.id, part) for talk in talks for part in by_session(talk)]
    for path in sorted(CONVERSATIONS.glob("*.txt")):
        group = f"ours {zlib.crc32(path.stem.encode()) % GROUPS}"
        for half in (0, 1):  # what neither half has learned goes to 1
            talks = [t for t in readers.read_written(path) if (half_of(t.id) or 0) != half]
            if talks:
                yield "written", half, [(group, talk) for talk in talks]
                for turns in PARTS:
                    parts = [part for talk in talks[::EVERY_PART] for part in by_turns(talk, turns)]
                    yield "parts", half, [(group, part) for part in parts]


def gather(kind: str, files: Sequence[Path], *, careful: bool) -> list[Question]:
    """The questions of all corpora. files: LoCoMo's."""
    found: list[Question] = []
    encoders = {half: Encoders.load(careful, half) for half in (None, 0, 1)}
    for corpus, half, family in families(kind, files):
        middle = len(family) // 2
        stores = [range(len(family))] if kind == "metric" else [[i] for i in range(len(family))]
        embedder, tokens = encoders[half]
        for members in report.track(stores, f"{kind}: {corpus}, {family[0][1].id}"):
            with Memory(":memory:", embedder=embedder, token_embedder=tokens) as memory:
                for i in members:
                    store(memory, family[i][1])
                for i in members:
                    group, talk = family[i]
                    other = family[(i + middle) % len(family)][1]
                    others = [q for q in other.questions if q.answer is not None][::EVERY_OTHER]
                    found += ask(memory, talk, others, corpus=corpus, group=group)
    return found


def counts_of(asked: Sequence[Question]) -> NDArray[np.float64]:
    """The weight of each question, 1 on average; a corpus has its share in SHARES of the sum."""
    shares = {c: SHARES[c] / n for c, n in Counter(q.corpus for q in asked).items()}
    counts = np.array([shares[q.corpus] for q in asked])
    return counts * len(asked) / counts.sum()


def platt(
    logits: NDArray[np.float64], evidence: NDArray[np.bool_], counts: NDArray[np.float64]
) -> tuple[float, float]:
    """The scale and shift of logits that make their logistic function a probability (Platt 1999).

    All (n,); counts: how much each one counts. By Newton's method.
    """
    rows = np.stack([logits, np.ones_like(logits)], axis=1)
    line = np.array([1.0, 0.0])
    for _ in range(50):
        p = 1 / (1 + np.exp(-np.clip(rows @ line, -50, 50)))
        curvature = (rows * (counts * p * (1 - p))[:, None]).T @ rows
        step = np.linalg.solve(curvature, rows.T @ (counts * (p - evidence)))
        line -= step
        if np.abs(step).max() < 1e-6:
            break
    return float(line[0]), float(line[1])


def fit(asked: Sequence[Question]) -> Weights:
    """The weights that minimise the loss described above, scaled and shifted.

    By Newton's method with the curvature of an upper bound, so that every step lowers the loss: the
    negative curvature of the evidence's own soft-max is left out.
    """
    counts = counts_of(asked)
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
        pull = counts[question] * (among - right + CALIBRATION * (alone - evidence))
        gradient = rows.T @ pull + 2 * ridge * weights
        means = np.add.reduceat(among[:, None] * rows, starts)
        curvature = counts[question] * (among + CALIBRATION * alone * (1 - alone))
        hessian = (rows * curvature[:, None]).T @ rows + 2 * np.diag(ridge)
        hessian -= (means * counts[:, None]).T @ means
        step = np.linalg.solve(hessian, gradient)
        weights -= step * min(1.0, 3.0 / np.abs(step).max())
        if np.abs(step).max() < 1e-5:
            break
    scale, shift = platt(rows @ weights, evidence, counts[question])
    weights *= scale
    weights[-1] += shift
    return Weights(float(weights[-1]), (weights[:-1] / deviation).astype(np.float32))


def fast(asked: Sequence[Question]) -> list[Question]:
    """The questions as a fast search sees them."""
    return [
        replace(q, features=np.ascontiguousarray(q.features[:, : len(FEATURES)])) for q in asked
    ]


def leave_one_out(asked: Sequence[Question], corpus: str) -> list[tuple[Question, Weights]]:
    """The questions of a corpus, each with weights fitted on all groups but its own."""
    mine = [q for q in asked if q.corpus == corpus]
    groups = report.track(sorted({q.group for q in mine}), f"leaving out: {corpus}")
    weights = {group: fit([q for q in asked if q.group != group]) for group in groups}
    return [(q, weights[q.group]) for q in mine]


def hits(asked: Sequence[tuple[Question, Weights]], ks: Sequence[int]) -> dict[str, Any]:
    """Hit@k over the questions that their own conversation answers, and how many these are."""
    own = [(q, weights) for q, weights in asked if q.asks == "own"]
    found = {k: 0 for k in ks}
    for q, weights in own:
        best, _ = weights.best(q.features, max(ks))
        for k in ks:
            found[k] += bool(q.evidence[best[:k]].any())
    shares = {f"hit_at_{k}": round(n / max(1, len(own)), 4) for k, n in found.items()}
    return {"n": len(own), **shares}


def without(asked: Sequence[Question], feature: str) -> list[Question]:
    """The questions with one feature set to 0."""
    column = (FEATURES + MATCHES).index(feature)
    return [
        replace(q, features=np.where(np.arange(q.features.shape[1]) == column, 0, q.features))
        for q in asked
    ]


def reached(asked: Sequence[tuple[Question, Weights]]) -> list[dict[str, Any]]:
    """For each threshold and each value of `asks` the share of questions whose best hit reaches it.

    right_of_best_hits: the share that is evidence, of the best hits of "own" questions that do.
    """
    best: dict[str, list[float]] = {}
    right = []
    for q, weights in asked:
        (position,), (score,) = weights.best(q.features, 1)
        best.setdefault(q.asks, []).append(score)
        if q.asks == "own":
            right.append(q.evidence[position])
    scores = {asks: np.array(values) for asks, values in sorted(best.items())}
    rows = []
    for threshold in THRESHOLDS:
        shares = {a: round(float((s >= threshold).mean()), 3) for a, s in scores.items()}
        of = np.array(right)[scores["own"] >= threshold]
        rows.append(
            {
                "threshold": threshold,
                **shares,
                "right_of_best_hits": round(float(of.mean()), 3) if len(of) else None,
            }
        )
    return rows


def bins(scores: NDArray[np.float32], evidence: NDArray[np.bool_]) -> list[dict[str, Any]]:
    """How often memories of about the same score are evidence: a reliability diagram."""
    rows = []
    for low, high in pairwise(BINS):
        within = (scores >= low) & (scores < high)
        if within.any():
            rows.append(
                {
                    "memories": int(within.sum()),
                    "score": round(float(scores[within].mean()), 4),
                    "evidence": round(float(evidence[within].mean()), 4),
                }
            )
    return rows


def reliability(asked: Sequence[tuple[Question, Weights]]) -> list[dict[str, Any]]:
    """`bins` of all candidates of the questions that their own conversation answers."""
    own = [(q, weights) for q, weights in asked if q.asks == "own"]
    logits = [q.features @ weights.weights + weights.bias for q, weights in own]
    scores = probability(np.concatenate(logits))
    return bins(scores, np.concatenate([q.evidence for q, _ in own]))


def as_json(weights: Weights) -> dict[str, Any]:
    """Weights as the package's fusion.json holds them."""
    named = zip(FEATURES + MATCHES, weights.weights.tolist(), strict=False)
    return {
        "bias": round(weights.bias, 4),
        "weights": {name: round(weight, 4) for name, weight in named},
    }


def main(argv: Sequence[str] | None = None) -> None:
    parser = report.parser("fit_fusion", __doc__, data="LoCoMo")
    parser.add_argument("--write", action="store_true", help="store the weights in the package")
    options = parser.parse_args(argv)
    summary: dict[str, Any] = {"relevant": RELEVANT}
    rows: list[dict[str, Any]] = []
    stored: dict[str, dict[str, Any]] = {"fast": {}, "careful": {}}
    reliable: dict[str, dict[str, Any]] = {"fast": {}, "careful": {}}
    for kind in KINDS:
        careful = gather(kind, options.data, careful=True)
        for retrieval, asked in (("fast", fast(careful)), ("careful", careful)):
            for corpus in SHARES:
                held_out = leave_one_out(asked, corpus)
                named = {"retrieval": retrieval, "weights": kind, "corpus": corpus}
                found = hits(held_out, KS)
                summary |= {f"{'_'.join(named.values())}_{n}": v for n, v in found.items()}
                rows += [{**named, **row} for row in reached(held_out)]
                if kind == "metric" and corpus != "parts":
                    reliable[retrieval][corpus] = reliability(held_out)
            stored[retrieval][kind] = as_json(fit(asked))
    report.write(options.json, {**summary, "reliability": reliable}, rows)
    if options.write:
        about = (
            "set by python -m bench.fit_fusion, on LoCoMo (CC BY-NC 4.0) and models/conversations; "
            "no text of them is here"
        )
        written = {"about": about, **stored, "reliability": reliable}
        WEIGHTS.write_text(json.dumps(written, indent=1) + "\n")


if __name__ == "__main__":
    main()
