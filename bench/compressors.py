"""The methods that bench.compression compares: ours, the paper's, and the plain rivals.

Each takes a Job and returns a text within the budget of the reader's tokens; only the governor
estimates tokens itself. If any of a turn is kept, its head (date and speaker) is kept too.

Two methods ship: `question` is `compress_prompt`, `governor` is what the cloud's governor does
before it sends. The others ask whether something else would keep more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from numpy.typing import NDArray

from bench.contexts import Case
from edgemem.cloud.governor import compressed
from edgemem.compression.compress import (
    Layout,
    Scores,
    compress,
    compress_prompt,
    estimated_tokens,
    final_scores,
    fit_to_budget,
    group_means,
    lay_out,
    relevance,
    select,
    sentence_texts,
)
from edgemem.runtime.embedder import Embedder

KINDS = ("context", "question", "draft")
"""The text whose loss gives a Fisher score: the context, the question, a drafted answer."""

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float32]


@dataclass(frozen=True)
class Job:
    """One context to compress.

    budget: in tokens. tokens: (n, 2), where the reader's tokens lie in the text. scores: the Fisher
    scores of the text's tokens by KINDS, and their -log p as "information". weights: of each kind
    beside the question.
    """

    case: Case
    budget: int
    tokens: IntArray
    tokenizer: Callable[[str], IntArray]
    embedder: Embedder
    scores: Mapping[str, Scores] = field(default_factory=dict)
    weights: Mapping[str, float] = field(default_factory=dict)

    @property
    def text(self) -> str:
        return "\n".join(self.case.lines)


def truncation(job: Job) -> str:
    """The beginning, whole words."""
    layout, costs = _layout(job)
    return _within(job, layout, lambda aim: np.cumsum(costs) <= aim)


def top_sentences(job: Job) -> str:
    """Sentences by the cosine of their speaker and text with the question."""
    layout, costs = _layout(job)
    bodies, speakers = sentence_texts(layout)
    said = [f"{speakers[t]} {b}" for t, b in zip(layout.turn.tolist(), bodies, strict=True)]
    vectors = job.embedder.embed([job.case.question, *said])
    order, same = 1 + vectors[1:] @ vectors[0], np.ones(len(layout.starts), np.float32)
    return _within(job, layout, lambda aim: select(layout, same, costs, aim, relevance=order))


def llmlingua(job: Job) -> str:
    """Words of the highest -log p, wherever they are: LLMLingua, with words in place of tokens."""
    layout, costs = _layout(job)
    scores = job.scores["information"]
    worth = group_means(scores.values, layout.unit_of(scores.offsets[:, 1]), len(layout.starts))
    order = np.argsort(-worth, kind="stable")

    def choose(aim: int) -> NDArray[np.bool_]:
        kept = np.zeros(len(costs), bool)
        kept[order[np.cumsum(costs[order]) <= aim]] = True
        return kept

    return _within(job, layout, choose)


def fdtd(job: Job, kind: str) -> str:
    """CoreMem 3.3: sentences by their mean Fisher score, of the loss of `kind`."""
    return _compressed(job, job.scores[kind], None)


def question(job: Job) -> str:
    """The default: sentences by their relevance to the question."""
    return compress_prompt(
        job.text,
        job.case.question,
        target_token=job.budget,
        embedder=job.embedder,
        tokenizer=job.tokenizer,
    ).compressed_prompt


def question_and(job: Job, kind: str) -> str:
    """Sentences by the question, and by `fdtd`'s scores of `kind` as one more feature."""
    return with_feature(job, kind, job.weights[kind])


def governor(job: Job) -> str:
    """What the cloud's governor would send if nothing were private.

    The budget's share of the text is counted by the governor's own upper estimate of tokens.
    """
    estimate = len(estimated_tokens(job.text)) * job.budget // len(job.tokens)
    # `job` stands for a memory, of which only the embedder is read.
    return compressed(job, job.text, job.case.question, estimate)


METHODS: dict[str, Callable[[Job], str]] = {
    "truncation": truncation,
    "llmlingua": llmlingua,
    "fdtd": partial(fdtd, kind="context"),
    "fdtd_question": partial(fdtd, kind="question"),
    "fdtd_draft": partial(fdtd, kind="draft"),
    "question": question,
    **{f"question_{kind}": partial(question_and, kind=kind) for kind in KINDS},
    "top_sentences": top_sentences,
    "governor": governor,
}


def with_feature(job: Job, kind: str, weight: float) -> str:
    """Sentences by the question, and by `weight` times their standardised Fisher score.

    What is standardised, over all sentences, is the logarithm of a sentence's mean Fisher score.
    """
    scores = job.scores[kind]

    def near(layout: Layout) -> FloatArray:
        costs = _costs(job, layout) * ~layout.head
        worth = group_means(final_scores(layout, scores), layout.sentence, len(layout.turn), costs)
        logs = np.log(np.maximum(worth, 1e-12))
        standard = (logs - logs.mean()) / max(float(logs.std()), 1e-6)
        found: FloatArray = relevance(layout, job.case.question, job.embedder) + weight * standard
        return found

    return _compressed(job, scores, near)


def _compressed(job: Job, scores: Scores, near: Callable[[Layout], FloatArray] | None) -> str:
    return compress(
        [job.text],
        job.tokenizer,
        target_token=job.budget,
        scorer=lambda _: scores,
        relevance=near,
    ).compressed_prompt


def _layout(job: Job) -> tuple[Layout, IntArray]:
    layout = lay_out(job.text)
    return layout, _costs(job, layout)


def _costs(job: Job, layout: Layout) -> IntArray:
    return np.bincount(layout.unit_of(job.tokens[:, 1]), minlength=len(layout.starts))


def _within(job: Job, layout: Layout, choose: Callable[[int], NDArray[np.bool_]]) -> str:
    return fit_to_budget(layout, job.tokenizer, job.budget, choose)[1]
