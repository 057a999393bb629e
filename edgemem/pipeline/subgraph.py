"""The memories that answer a question within a budget of tokens, linked by names (MemAdapter).

The score of a memory is the probability that it answers. A memory that shares a name with a better
one may be the next step to the answer ("my sister is married to Joachim", "Joachim works in
Innsbruck"). So it becomes a child of the better memory, and inherits a share of its worth. The
question is the root of this tree. The subtree at the root with the largest worth within the budget
is found exactly (rooted prize-collecting).
Source: MemAdapter 2.2.1 and B.1 (nodes, edges, the confidence; every line a subset of what is
stored). Departs from it: the nodes are memories, and no model writes lines, so none is invented.

Knows a Memory; no model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from math import prod
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from edgemem.language import content_words, is_question, proper_names, sentences, share, words
from edgemem.pipeline.graph import USER
from edgemem.pipeline.recall import asks_of_past, evidence_of, within
from edgemem.results import ONE_AT_A_TIME, Edge, Evidence, Subgraph
from edgemem.stages.evidence import day_of, plain
from edgemem.store.relations import relations_of

if TYPE_CHECKING:
    from edgemem.memory import Memory

__all__ = ["best_subtree", "subgraph", "tree"]

_HITS = 20
_INHERITED = 0.3  # share of the parent's worth that a memory inherits (bench/LOG.md, 2026-11-26)
_LEAST = 0.02  # of the best score; a less probable memory would only distract
_REPLACES = 0.3  # of the older one's score; a newer memory with less is about something else
_LONG = 24  # tokens; a longer memory is cut to the sentences with most of the question's words


def subgraph(memory: Memory, question: str, budget: int, **where: Any) -> Subgraph:
    """The evidence for a question, its whole text within `budget` tokens of the embedder.

    where: scope and time, as `Memory.search` takes them. Facts that no longer hold are left out,
    and newer ones come before those that they replace, unless the question is about the past.
    Returns an empty Subgraph if nothing fits. Raises as `search`.
    """
    count = memory.embedder.count_tokens
    hits = memory.search(question, **where, top_k=_HITS)
    near = within(hits, _LEAST)
    found = evidence_of(memory, question, near, assistants=True)[:_HITS]
    found = [_shortened(question, evidence, count) for evidence in found]
    scores = [0.0 if e.source is None else e.source.score for e in found]
    if not asks_of_past(question):
        scores = _newest_first(memory, found, scores)
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
        each = {hit.id: hit.score for hit in nodes}  # two turns of a fact count once
        confidence = round(1 - prod(1 - score for score in each.values()), 2)
        text = _text([found[i] for i in order], edges, confidence)
        if (tokens := count(text)) <= budget:
            return Subgraph(nodes, tuple(Edge(*edge) for edge in edges), text, tokens, confidence)
        room -= tokens - budget
    return Subgraph()


def tree(
    scores: Sequence[float], joined: dict[tuple[int, int], str]
) -> tuple[list[float], list[int | None]]:
    """The worth of each memory, and its parent; None if the parent is the question.

    joined: the pairs that share a name, both (i, j) and (j, i). Memories are settled by falling
    worth, as in Dijkstra's algorithm. The parent of a memory is the worthiest memory joined with it
    that was settled before.
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
    """The memories with the largest total worth whose costs fit the room, none without its parent.

    Exact: a knapsack along the tree in preorder. A memory that is taken is followed by the next
    one; a memory that is not taken, by the first one past its subtree. Cost O(n · room).
    """
    order: list[int] = []
    after: dict[int, int] = {}

    def visit(parent: int | None) -> None:
        for i, above in enumerate(parents):
            if above == parent:
                order.append(i)
                visit(i)
                after[i] = len(order)

    @cache
    def best(at: int, room: int) -> tuple[float, tuple[int, ...]]:
        """The worth of the best of the memories from `at` on, and which these are."""
        if at == len(order):
            return 0.0, ()
        i = order[at]
        without = best(after[i], room)
        if costs[i] > room:
            return without
        value, chosen = best(at + 1, room - costs[i])
        return max(without, (value + worth[i], (i, *chosen)), key=itemgetter(0))

    visit(None)
    return [*best(0, room)[1]]


def _joined(found: Sequence[Evidence]) -> dict[tuple[int, int], str]:
    """The pairs of evidence that share a name, both (i, j) and (j, i), with the name. The names of
    the user and of the speakers do not count."""
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


def _newest_first(
    memory: Memory, found: Sequence[Evidence], scores: Sequence[float]
) -> list[float]:
    """The scores, exchanged where a newer memory that bears on the question gives somebody another
    target of a relation that has one at a time, and the older one tells nothing else of them."""
    hits = {i: e.source for i, e in enumerate(found) if e.source is not None}
    told = relations_of(memory.store, [hit.id for hit in hits.values()], include_invalid=True)
    states = {
        i: [r for r in told if r.memory_id == hit.id or not {*r.turns}.isdisjoint(hit.sources)]
        for i, hit in hits.items()
    }
    scores = list(scores)
    for i, hit in hits.items():
        of_fact = [r for r in states[i] if r.memory_id == hit.id] or states[i]
        for old in of_fact:
            alone = all(r is old or r.source != old.source for r in of_fact)
            if alone and old.relationship in ONE_AT_A_TIME:
                newer = [
                    (r.valid_from, j)
                    for j, of_hit in states.items()
                    for r in of_hit
                    if (r.source, r.relationship) == (old.source, old.relationship)
                    and r.destination != old.destination
                    and (r.valid_from or "") > (old.valid_from or "")
                ]
                _, j = max(newer, default=("", i))
                if scores[i] > scores[j] >= _REPLACES * scores[i]:
                    scores[i], scores[j] = scores[j], scores[i]
    return scores


def _shortened(question: str, evidence: Evidence, count: Callable[[str], int]) -> Evidence:
    """The evidence without questions, which tell nothing. A long text keeps the sentences with most
    of the question's words; among equals, those with most content words."""
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
    return replace(evidence, text=" ".join(parts[i] for i in sorted(kept)) or text)


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
