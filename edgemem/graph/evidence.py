"""The part of the graph that answers a question within a budget, connected and small (MemAdapter).

Relations have prizes, what they tell of the question, and costs, their tokens. Wanted is the
connected set of relations with the largest prize whose lines fit the budget, of equal ones the
cheaper: a prize-collecting problem, NP-hard. Few relations are searched through; of many a tree is
grown from each good relation, taking up the cheapest way to the next prize.
Source: MemAdapter 2.2.1 and B.1 (nodes, edges, the confidence; every line a subset of what is
stored); departs from it in that no model writes the lines, so none can be invented.

Knows relations and their store; knows no model.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from math import prod

from edgemem.language import content_words, same_word, words
from edgemem.results import Relation, Scope, Subgraph
from edgemem.store import Store
from edgemem.store.relations import relations

__all__ = ["around", "connected", "exactly", "prize", "subgraph"]

AROUND = 200
"""Relations of the neighbourhood, at most."""
_NAME_WORDS = 3  # of a name in a question

EXACT = 12
"""Of so few relations all connected subsets are looked through."""
SEEDS = 8  # relations that a tree is grown from

Chosen = tuple[int, ...]
"""Numbers of relations, ascending."""


def around(
    store: Store, scope: Scope, question: str, found: Sequence[Relation], at: str | None = None
) -> list[Relation]:
    """What a search found, and what else is told of its ends and of whom the question names."""
    said = words(question)
    named = [
        " ".join(said[i : i + n])
        for n in range(1, _NAME_WORDS + 1)
        for i in range(len(said) - n + 1)
    ]
    ends = [end for each in found for end in (each.source, each.destination)]
    beside = relations(store, scope, [*named, *ends], at=at, limit=AROUND)
    known = {(each.source, each.relationship, each.destination) for each in found}
    return [*found, *(r for r in beside if (r.source, r.relationship, r.destination) not in known)]


def prize(question: str, relation: Relation) -> float:
    """What a relation is worth to a question, in [0, 1]: the mean of its memory's score and of the
    share of the question's words that it has."""
    asked = content_words(question)
    said = words(
        f"{relation.source} {relation.relationship.replace('_', ' ')} {relation.destination}"
    )
    share = sum(same_word(word, said) for word in asked) / max(1, len(asked))
    return ((relation.score or 0.0) + share) / 2


def subgraph(
    told: Sequence[Relation],
    prizes: Sequence[float],
    count_tokens: Callable[[str], int],
    budget: int,
) -> Subgraph:
    """The connected relations that are worth most within a budget of tokens.

    prizes: of each relation, at least 0. budget: for the whole text. Nothing, if no relation fits.
    """
    lines = [_line(relation) for relation in told]
    costs = [count_tokens(line) for line in lines]
    room = budget - count_tokens(_text([], 0.0))
    chosen = connected(told, prizes, costs, room)
    while chosen:
        kept = [told[i] for i in chosen]
        scores = {each.memory_id: each.score or 0.0 for each in kept}  # a fact counts once
        confidence = round(1 - prod(1 - score for score in scores.values()), 2)
        text = _text(kept, confidence)
        if (tokens := count_tokens(text)) <= budget:
            return Subgraph(tuple(kept), text=text, tokens=tokens, confidence=confidence)
        room -= tokens - budget  # names and numbers come on top of the lines
        chosen = connected(told, prizes, costs, room)
    return Subgraph()


def connected(
    told: Sequence[Relation], prizes: Sequence[float], costs: Sequence[int], room: int
) -> Chosen:
    """The relations of a connected set with a large prize and costs within the room.

    The best there is, if there are few; deterministic in either case.
    """
    if len(told) <= EXACT:
        return exactly(told, prizes, costs, room)
    ranked = sorted(range(len(told)), key=lambda i: (-prizes[i], costs[i], i))
    grown = [_grown(told, prizes, costs, room, seed) for seed in ranked[:SEEDS] if prizes[seed] > 0]
    return min(grown, key=lambda chosen: _rank(chosen, prizes, costs), default=())


def exactly(
    told: Sequence[Relation], prizes: Sequence[float], costs: Sequence[int], room: int
) -> Chosen:
    """The best connected set of all, by looking at each: 2 to the power of their number."""
    beside = _neighbours(told)
    best: Chosen = ()
    seen: set[Chosen] = set()
    waiting: list[Chosen] = [(i,) for i in range(len(told))]
    while waiting:
        chosen = waiting.pop()
        if chosen in seen or sum(costs[i] for i in chosen) > room:
            continue
        seen.add(chosen)
        best = min(best, chosen, key=lambda these: _rank(these, prizes, costs))
        reach = {j for i in chosen for j in beside[i]} - set(chosen)
        waiting += [tuple(sorted((*chosen, j))) for j in reach]
    return best


def _rank(chosen: Chosen, prizes: Sequence[float], costs: Sequence[int]) -> tuple[object, ...]:
    """Smaller is better: more prize, then less cost, then the lower numbers."""
    # Rounded, for a sum of floats depends on its order.
    return (-round(sum(prizes[i] for i in chosen), 9), sum(costs[i] for i in chosen), chosen)


def _grown(
    told: Sequence[Relation], prizes: Sequence[float], costs: Sequence[int], room: int, seed: int
) -> Chosen:
    """A tree grown from a relation: again and again the way with the most prize for its cost."""
    beside = _neighbours(told)
    left = room - costs[seed]
    if left < 0:
        return ()
    chosen = {seed}
    while way := _best_way(chosen, beside, prizes, costs, left):
        chosen.update(way)
        left -= sum(costs[i] for i in way)
    return tuple(sorted(chosen))


def _best_way(
    chosen: set[int],
    beside: Sequence[set[int]],
    prizes: Sequence[float],
    costs: Sequence[int],
    room: int,
) -> list[int]:
    """The relations on the way from a set to another prize, dearest for its cost; Dijkstra's."""
    cheapest: dict[int, tuple[int, list[int]]] = {}
    queue = [(costs[j], [j]) for j in sorted({j for i in chosen for j in beside[i]} - chosen)]
    heapq.heapify(queue)
    while queue:
        cost, way = heapq.heappop(queue)
        end = way[-1]
        if cost > room or end in cheapest:
            continue
        cheapest[end] = cost, way
        for j in sorted(beside[end] - chosen - cheapest.keys()):
            heapq.heappush(queue, (cost + costs[j], [*way, j]))
    worth = (
        (-sum(prizes[i] for i in way) / max(1, cost), cost, way)
        for cost, way in cheapest.values()
        if prizes[way[-1]] > 0
    )
    return min(worth, default=(0.0, 0, []))[2]


def _neighbours(told: Sequence[Relation]) -> list[set[int]]:
    """Of each relation those that share an end with it."""
    ends: dict[tuple[str, str], set[int]] = defaultdict(set)
    for i, relation in enumerate(told):
        for end in _ends(relation):
            ends[end].add(i)
    return [set().union(*(ends[end] for end in _ends(each))) - {i} for i, each in enumerate(told)]


def _ends(relation: Relation) -> tuple[tuple[str, str], tuple[str, str]]:
    return (
        (relation.source, relation.source_type),
        (relation.destination, relation.destination_type),
    )


# -- the paper's form ----------------------------------------------------------------------------


def _text(told: Iterable[Relation], confidence: float) -> str:
    """Nodes, then edges, then the confidence, as MemAdapter's figure 7 has them."""
    told = list(told)
    numbers = {end: n for n, end in enumerate(dict.fromkeys(e for t in told for e in _ends(t)), 1)}
    nodes = [f"N{n}: {name}" for (name, _), n in numbers.items()]
    edges = []
    for each in told:
        source, target = _ends(each)
        edges.append(f"N{numbers[source]} -> N{numbers[target]}: {each.relationship}{_time(each)}")
    shown = ["[EVIDENCE_SUBGRAPH]", "<NODES>", *nodes, "<EDGES>", *edges]
    return "\n".join([*shown, "[CONFIDENCE]", f"{confidence:.2f}"])


def _line(relation: Relation) -> str:
    """About what a relation adds to the text: its edge and the names of its ends."""
    return (
        f"{relation.source}\n{relation.destination}\n"
        f"N1 -> N2: {relation.relationship}{_time(relation)}"
    )


def _time(relation: Relation) -> str:
    since, until = ((time or "")[:10] for time in (relation.valid_from, relation.valid_to))
    return f" (since {since}, until {until})" if until else f" (since {since})" if since else ""
