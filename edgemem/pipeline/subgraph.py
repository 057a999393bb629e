"""The memories that answer a question within a budget of tokens, with what joins them (MemAdapter).

A search says how probable it is that a memory answers. One that names what a better one names may
be the next step to the answer ("my sister is married to Joachim", "Joachim works in Innsbruck"), so
it inherits a share of that one's worth, and hangs on it. This makes a tree below the question. The
part of it that is worth most within the budget is wanted: prize-collecting with a root, exactly.
Source: MemAdapter 2.2.1 and B.1 (nodes, edges, the confidence; every line a subset of what is
stored). Departs from it: the nodes are memories, and no model writes lines, so none is invented.

Knows a Memory; no model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from edgemem.graph.reader import USER
from edgemem.language import content_words, is_question, proper_names, sentences, words
from edgemem.pipeline.recall import evidence_of, share, within
from edgemem.results import Edge, Evidence, Subgraph
from edgemem.stages.evidence import day_of, plain

if TYPE_CHECKING:
    from edgemem.memory import Memory

__all__ = ["best_subtree", "subgraph", "tree"]

_HITS = 20
_INHERITED = 0.3  # of the worth of the memory that names the same (bench/LOG.md, 2026-11-26)
_LEAST = 0.02  # of the best score; what is less probable would only distract
_LONG = 24  # tokens of one memory; of a longer one the sentences with most of the question's words


def subgraph(memory: Memory, question: str, budget: int, **where: Any) -> Subgraph:
    """The evidence for a question, its whole text within `budget` tokens of the embedder.

    where: scope and time, as `Memory.search` takes them. What no longer holds is left out, but of a
    question about the past. Nothing, where nothing fits. Raises as `search`.
    """
    count = memory.embedder.count_tokens
    hits = memory.search(question, **where, top_k=_HITS)
    near = within(hits, _LEAST)
    found = evidence_of(memory, question, near, assistants=True)[:_HITS]
    found = [_shortened(question, evidence, count) for evidence in found]
    scores = [0.0 if e.source is None else e.source.score for e in found]
    joined = _joined(found)
    worth, parents = tree(scores, joined)
    costs = [
        count(_node(0, evidence)) + (0 if parent is None else count(_edge(0, 0, joined[i, parent])))
        for i, (evidence, parent) in enumerate(zip(found, parents, strict=True))
    ]
    room = budget - count(_text((), (), 0.0))
    while chosen := best_subtree(worth, costs, parents, room):
        order = sorted(chosen, key=lambda i: found[i].when or "")
        place = {i: n for n, i in enumerate(order)}
        edges = [(place[p], place[i], joined[i, p]) for i in order if (p := parents[i]) is not None]
        nodes = tuple(hit for i in order if (hit := found[i].source) is not None)
        each = {hit.id: hit.score for hit in nodes}  # of a fact, two turns may be shown
        confidence = round(1 - prod(1 - score for score in each.values()), 2)
        text = _text([found[i] for i in order], edges, confidence)
        if (tokens := count(text)) <= budget:
            return Subgraph(nodes, tuple(Edge(*edge) for edge in edges), text, tokens, confidence)
        room -= tokens - budget
    return Subgraph()


def tree(
    scores: Sequence[float], joined: dict[tuple[int, int], str]
) -> tuple[list[float], list[int | None]]:
    """What each memory is worth, and on which it hangs; None: on the question itself.

    joined: pairs (i, j), either way round, that name the same. A memory inherits from the one that
    is worth most, which is settled before it (best first, as Dijkstra's way to each).
    """
    worth = list(scores)
    parents: list[int | None] = [None] * len(scores)
    left = set(range(len(scores)))
    while left:
        best = max(left, key=lambda i: (worth[i], -i))
        left.remove(best)
        for i in left:
            inherited = scores[i] + _INHERITED * worth[best]
            if (i, best) in joined and inherited > worth[i]:
                worth[i], parents[i] = inherited, best
    return worth, parents


def best_subtree(
    worth: Sequence[float], costs: Sequence[int], parents: Sequence[int | None], room: int
) -> list[int]:
    """The memories worth most together whose costs fit the room, none without its parent.

    Exact: a knapsack along the tree, each memory followed by those that hang on it; taken, the next
    one is asked, and passed over, the first one after all these. Cost O(n · room).
    """
    order: list[int] = []
    after: dict[int, int] = {}

    def visit(parent: int | None) -> None:
        for i, above in enumerate(parents):
            if above == parent:
                order.append(i)
                visit(i)
                after[i] = len(order)

    visit(None)
    room = max(0, min(room, sum(costs)))
    value = np.zeros((len(order) + 1, room + 1))
    for at in range(len(order) - 1, -1, -1):
        i = order[at]
        value[at] = value[after[i]]
        if costs[i] <= room:
            taken = value[at + 1, : room + 1 - costs[i]] + worth[i]
            np.maximum(value[at, costs[i] :], taken, out=value[at, costs[i] :])
    chosen, at = [], 0
    while at < len(order):
        i = order[at]
        if value[at, room] > value[after[i], room]:
            chosen.append(i)
            room -= costs[i]
            at += 1
        else:
            at = after[i]
    return chosen


def _joined(found: Sequence[Evidence]) -> dict[tuple[int, int], str]:
    """The pairs of evidence that name the same, either way round, with the name; the user and who
    speaks join nothing."""
    speaking = {*words(USER), *(word for e in found for word in words(e.speaker or ""))}
    names = [proper_names(evidence.text) - speaking for evidence in found]
    said = [{*words(evidence.text)} for evidence in found]
    pairs = {}
    for i in range(len(found)):
        for j in range(i):
            shared = names[i] & said[j] | names[j] & said[i]
            if shared:
                pairs[i, j] = pairs[j, i] = min(shared)
    return pairs


def _shortened(question: str, evidence: Evidence, count: Callable[[str], int]) -> Evidence:
    """Without its questions, which tell nothing; of what is long, the sentences with most of the
    question's words, and of equals those that say most."""
    text = plain(evidence)
    parts = [part for part in sentences(text) if not is_question(part)]
    asked = content_words(question)

    def bears(i: int) -> tuple[float, int]:
        return share(asked, parts[i]), len(content_words(parts[i]))

    kept: list[int] = []
    room = _LONG
    for i in sorted(range(len(parts)), key=bears, reverse=True):
        cost = count(parts[i])
        if not kept or cost <= room:
            kept.append(i)
            room -= cost
    return replace(evidence, text=" ".join(parts[i] for i in sorted(kept)) or text, turn=None)


# -- the paper's form ----------------------------------------------------------------------------


def _text(
    nodes: Sequence[Evidence], edges: Sequence[tuple[int, int, str]], confidence: float
) -> str:
    """Nodes, then edges, then the confidence, as MemAdapter's figure 7 has them."""
    shown = ["[EVIDENCE_SUBGRAPH]", "<NODES>", *(_node(n, e) for n, e in enumerate(nodes))]
    shown += ["<EDGES>", *(_edge(*edge) for edge in edges)]
    return "\n".join([*shown, "[CONFIDENCE]", f"{confidence:.2f}"])


def _node(number: int, evidence: Evidence) -> str:
    head = ", ".join(part for part in (day_of(evidence), evidence.speaker) if part)
    return f"N{number + 1}: {head}{': ' if head else ''}{evidence.text}"


def _edge(source: int, target: int, name: str) -> str:
    return f"N{source + 1} -> N{target + 1}: {name}"
