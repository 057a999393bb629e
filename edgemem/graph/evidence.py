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
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import prod

from edgemem.language import content_words, same_word, words
from edgemem.results import Label, Relation, Scope, Subgraph, local_time
from edgemem.store import Store
from edgemem.store.relations import relations

__all__ = ["around", "connected", "exactly", "prize", "subgraph"]

AROUND = 100
"""Relations of the neighbourhood, at most."""
_FAR = 0.3  # of the best prize; what is worth less would only distract
_NAME_WORDS = 3  # of a name in a question

EXACT = 12
"""Of so few relations all connected subsets are looked through."""
SEEDS = 4  # relations that a tree is grown from

Chosen = tuple[int, ...]
"""Numbers of relations, ascending."""
End = tuple[str, str]
"""A name and its type."""


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


def prize(question: str, relation: Relation, chances: Mapping[Label, float]) -> float:
    """What a relation is worth to a question, in [0, 1]: the mean of its memory's score, of the
    share of the question's words that it has, and of the chance that its label is asked for.

    chances: by `questions.asked`.
    """
    asked = content_words(question)
    said = words(
        f"{relation.source} {relation.relationship.replace('_', ' ')} {relation.destination}"
    )
    share = sum(same_word(word, said) for word in asked) / max(1, len(asked))
    return ((relation.score or 0.0) + share + chances.get(relation.relationship, 0.0)) / 3


def subgraph(
    told: Sequence[Relation],
    question: str,
    chances: Mapping[Label, float],
    count_tokens: Callable[[str], int],
    budget: int,
) -> Subgraph:
    """The connected relations that are worth most to a question within a budget of tokens.

    chances: by `questions.asked`. budget: for the whole text. Nothing, if no relation fits.
    """
    prizes = [prize(question, relation, chances) for relation in told]
    least = _FAR * max(prizes, default=0.0)
    prizes = [prize if prize >= least else 0.0 for prize in prizes]
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
    left = room - costs[seed]
    if left < 0:
        return ()
    at: dict[End, list[int]] = defaultdict(list)
    for i, relation in enumerate(told):
        for end in _ends(relation):
            at[end].append(i)
    chosen = {seed}
    while way := _best_way(told, chosen, at, prizes, costs, left):
        chosen.update(way)
        left -= sum(costs[i] for i in way)
    return tuple(sorted(chosen))


def _best_way(
    told: Sequence[Relation],
    chosen: set[int],
    at: Mapping[End, Sequence[int]],
    prizes: Sequence[float],
    costs: Sequence[int],
    room: int,
) -> list[int]:
    """The relations from a chosen set to one that is worth something, the most for their cost.

    The cheapest way to each name is Dijkstra's. Empty, if none fits the room.
    """
    ways: dict[End, tuple[int, list[int]]] = {}
    queue: list[tuple[int, End, list[int]]] = sorted(
        (0, end, []) for end in {e for i in chosen for e in _ends(told[i])}
    )
    while queue:
        cost, end, way = heapq.heappop(queue)
        if end in ways:
            continue
        ways[end] = cost, way
        for i in at[end]:
            other = next((e for e in _ends(told[i]) if e != end), end)
            if i not in chosen and other not in ways and cost + costs[i] <= room:
                heapq.heappush(queue, (cost + costs[i], other, [*way, i]))
    best: tuple[float, int, list[int]] = (0.0, 0, [])
    for i in range(len(told)):
        if i in chosen or prizes[i] <= 0:
            continue
        for end in _ends(told[i]):
            if end not in ways or i in ways[end][1]:
                continue
            cost, way = ways[end][0] + costs[i], [*ways[end][1], i]
            if cost <= room:
                worth = sum(prizes[j] for j in way) / max(1, cost)
                best = min(best, (-worth, cost, way))
    return best[2]


def _neighbours(told: Sequence[Relation]) -> list[set[int]]:
    """Of each relation those that share an end with it."""
    ends = [set(_ends(relation)) for relation in told]
    return [{j for j, e in enumerate(ends) if e & mine and j != i} for i, mine in enumerate(ends)]


def _ends(relation: Relation) -> tuple[End, End]:
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
    ends = relation.valid_from, relation.valid_to
    since, until = (local_time(time)[:10] if time else "" for time in ends)
    return f" (since {since}, until {until})" if until else f" (since {since})" if since else ""
