"""BM25 by the book, for the tests of what is quicker."""

from __future__ import annotations

import math
from collections.abc import Sequence

from edgemem.retrieval.lexical import Matches
from edgemem.store.changes import tokenize

Texts = dict[int, str]


def scores_of(found: Matches, docs: Sequence[int]) -> list[float]:
    """What any documents score; 0 for one that is not there."""
    slot_of = found._view.slot_of
    slots = [slot_of[d] if 0 <= d < len(slot_of) else -1 for d in docs]
    return [float(found._by_slot[slot]) if slot >= 0 else 0.0 for slot in slots]


def plain_bm25(
    texts: Texts, terms: list[str], seen: set[int]
) -> tuple[dict[int, float], list[float]]:
    """The score of every document that has a term, and the terms' idf, in double precision."""
    docs = sorted(seen & set(texts))
    tokens = dict(zip(docs, tokenize([texts[d] for d in docs]), strict=True))
    lengths = {d: sum(tokens[d].values()) for d in docs}
    mean = sum(lengths.values()) / len(docs) if docs else 0.0
    scores: dict[int, float] = {}
    idfs = []
    for term in terms:
        having = [d for d in docs if term in tokens[d]]
        idfs.append(math.log(1 + (len(docs) - len(having) + 0.5) / (len(having) + 0.5)))
        for d in having:
            tf = tokens[d][term]
            part = tf * 2.2 / (tf + 1.2 * (0.25 + 0.75 * lengths[d] / mean))
            scores[d] = scores.get(d, 0.0) + idfs[-1] * part
    return scores, idfs
