"""BM25 by the book, for the tests of what is quicker."""

from __future__ import annotations

import math

from edgemem.store.tokens import tokenize, word_terms

Texts = dict[int, str]


def terms_of(words: list[str]) -> list[str]:
    return list(dict.fromkeys(term for word in words for term in word_terms(word)))


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
