"""The ways to compress that bench.compression compares: ours, the paper's, and the plain rivals.

Each takes a Job and gives a text; all but the paper's Algorithm 2 and the governor, which counts by
itself, stay within the budget, counted as the reader counts. Heads of turns (date and speaker) go
with what is kept of a turn, except where a method knows nothing of turns.

Three ways ship: `ours_question` is `compress_prompt`, `governor` what the cloud's governor does
before it sends, `ours_lookup` is `condense`, from what a search and the store know.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bench.contexts import Case
from edgemem.cloud.governor import by_relevance
from edgemem.compression.compress import (
    GAP,
    Scores,
    Selection,
    compress,
    compress_prompt,
    final_scores,
    pool,
    relevance,
    select,
    sentence_means,
    sentence_texts,
    turn_decay,
    unit_means,
    within,
)
from edgemem.compression.layout import Layout, estimated_tokens, lay_out, masks
from edgemem.memory import Memory
from edgemem.pipeline.condense import condense
from edgemem.results import Hit
from edgemem.runtime.embedder import Embedder

__all__ = ["METHODS", "OURS", "Job"]

PAPER_PRUNE = 0.5  # the paper does not say how much of a sentence's middle goes

TEMPERATURE = 0.3  # of nearness, where it is multiplied by scores

IntArray = NDArray[np.int64]


@dataclass
class Job:
    """One context to compress. tokens: of the whole text, as the reader counts. exact: scores of
    the text's tokens, made for it; information: -log p of them. memory: holds the turns, and scores
    of them that were made earlier; hits: the turns as a search found them."""

    case: Case
    budget: int
    tokens: IntArray
    tokenizer: Callable[[str], IntArray]
    embedder: Embedder
    exact: Callable[[], Scores]
    information: Callable[[], Scores]
    memory: Memory
    hits: Sequence[Hit]

    @property
    def text(self) -> str:
        return "\n".join(self.case.lines)


def truncation(job: Job) -> str:
    """The beginning, whole words."""
    layout, costs = _layout(job)
    return _within(job, layout, lambda aim: np.cumsum(costs) <= aim)


def random_sentences(job: Job) -> str:
    layout, costs = _layout(job)
    draw = np.random.default_rng(random.Random(job.case.id).getrandbits(32))
    order = draw.random(len(layout.turn)).astype(np.float32)
    return _ranked(job, layout, costs, order)


def top_sentences(job: Job) -> str:
    """By the cosine of a sentence, and who says it, with the question: the rival to beat."""
    layout, costs = _layout(job)
    bodies, speakers = sentence_texts(layout)
    said = [f"{speakers[t]} {b}" for t, b in zip(layout.turn.tolist(), bodies, strict=True)]
    vectors = job.embedder.embed([job.case.question, *said])
    return _ranked(job, layout, costs, 1 + vectors[1:] @ vectors[0])


def self_information(job: Job) -> str:
    """Words of the highest -log p, wherever they are (SelectiveContext, words for phrases)."""
    layout, costs = _layout(job)
    scores = job.information()
    worth = unit_means(scores.values, layout.unit_of(scores.offsets[:, 1]), len(layout.starts))
    order = np.argsort(-worth, kind="stable")

    def choose(aim: int) -> NDArray[np.bool_]:
        kept = np.zeros(len(costs), bool)
        kept[order[np.cumsum(costs[order]) <= aim]] = True
        return kept

    return _within(job, layout, choose)


def fdtd_alg2(job: Job) -> str:
    """Algorithm 2 as printed: the top B tokens of all, gaps filled beyond the budget."""
    scores, text = job.exact(), job.text
    offsets, n = scores.offsets, len(scores.values)
    layout = lay_out(text)
    decay = turn_decay(layout.turn)[layout.sentence][layout.unit_of(offsets[:, 1])]
    final = pool(scores.values, np.zeros(n, np.int64)) * masks(text, offsets) * decay
    share = job.budget / len(job.tokens)
    kept = np.sort(np.argsort(-final, kind="stable")[: int(share * n)])
    filled = np.zeros(n, bool)
    filled[kept] = True
    for a, b in zip(kept[:-1].tolist(), kept[1:].tolist(), strict=True):
        if b - a <= GAP:
            filled[a:b] = True
    return "".join(text[a:b] for a, b in offsets[filled].tolist())


def fdtd_paper(job: Job) -> str:
    """3.3: sentences by their mean score after pruning, the budget kept."""
    layout, costs = _layout(job)
    worth = final_scores(layout, job.exact())
    return _within(job, layout, lambda aim: select(layout, worth, costs, aim, prune=PAPER_PRUNE))


def ours_exact(job: Job) -> str:
    """Ours, of a context whose question is not known."""
    return _ours(job, job.exact(), None)


def ours_lookup(job: Job) -> str:
    """What ships for memories: what a search found and what is stored of it, nothing computed."""
    return condense(
        job.memory,
        job.case.question,
        job.hits,
        target_token=job.budget,
        tokenizer=job.tokenizer,
    ).context.compressed_prompt


def ours_question(job: Job) -> str:
    """The default: sentences by their nearness to the question."""
    return compress_prompt(
        job.text,
        job.case.question,
        target_token=job.budget,
        embedder=job.embedder,
        tokenizer=job.tokenizer,
    ).compressed_prompt


def governor(job: Job) -> str:
    """What the cloud's governor sends, were nothing private in it: the same share, by its own upper
    estimate of tokens, and no scores."""
    estimate = len(estimated_tokens(job.text)) * job.budget // len(job.tokens)
    return by_relevance(job)(job.text, job.case.question, estimate)  # of a memory the embedder


def ours_fisher(job: Job) -> str:
    """With exact=True: sentences by the question, the words of the last one by the Fisher score."""
    return _ours(job, job.exact(), lambda layout: _relevance(job, layout))


def ours_product(job: Job) -> str:
    """Nearness to the question times the tokens' Fisher scores."""
    return _product(job, job.exact())


def ours_information(job: Job) -> str:
    """The same with -log p in the place of the Fisher score."""
    return _product(job, job.information())


METHODS: dict[str, Callable[[Job], str]] = {
    method.__name__: method
    for method in (
        truncation,
        random_sentences,
        top_sentences,
        self_information,
        fdtd_paper,
        ours_exact,
        ours_lookup,
        ours_question,
        governor,
        fdtd_alg2,
        ours_fisher,
        ours_product,
        ours_information,
    )
}
OURS = tuple(name for name in METHODS if name.startswith("ours_"))


def _ours(job: Job, scores: Scores, near: Callable[[Layout], NDArray[np.float32]] | None) -> str:
    return compress(
        [job.text], scores, job.tokenizer, job.budget, tokens=job.tokens, relevance=near
    ).compressed_prompt


def _product(job: Job, scores: Scores) -> str:
    layout, costs = _layout(job)
    worth = final_scores(layout, scores, decay=False)
    near = np.exp(_relevance(job, layout) / TEMPERATURE)
    order = near * sentence_means(layout, worth, np.where(layout.head, 0, costs))
    return _within(job, layout, lambda aim: select(layout, worth, costs, aim, relevance=order))


def _relevance(job: Job, layout: Layout) -> NDArray[np.float32]:
    return relevance(layout, job.case.question, job.embedder)


def _layout(job: Job) -> tuple[Layout, IntArray]:
    layout = lay_out(job.text)
    return layout, np.bincount(layout.unit_of(job.tokens[:, 1]), minlength=len(layout.starts))


def _ranked(job: Job, layout: Layout, costs: IntArray, order: NDArray[np.float32]) -> str:
    same = np.ones(len(layout.starts), np.float32)
    return _within(job, layout, lambda aim: select(layout, same, costs, aim, relevance=order))


def _within(job: Job, layout: Layout, choose: Callable[[int], NDArray[np.bool_]]) -> str:
    selection: Selection = within(layout, job.tokenizer, job.budget, choose)
    return selection.text
