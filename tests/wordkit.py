"""BM25 by the book, for the tests of what is quicker."""

import math

from edgemem.store.changes import tokenize

Texts = dict[int, str]


def scores_of(found, docs):
    """What any documents score; 0 for one that is not there."""
    scores = found.all_scores
    return [float(scores[d]) if 0 <= d < len(scores) else 0.0 for d in docs]


def plain_bm25(texts, terms, seen):
    """`textbook` of the texts that are seen."""
    docs = sorted(seen & set(texts))
    tokens = dict(zip(docs, tokenize([texts[d] for d in docs]), strict=True))
    having = [{d: tokens[d][term] for d in docs if term in tokens[d]} for term in terms]
    return textbook(having, {d: sum(tokens[d].values()) for d in docs})


def textbook(terms, lengths, k1=1.2, b=0.75):
    """The score of every document that has a term, and the terms' idf, in double precision.

    terms: how often each is in its documents. lengths: of the documents that count.
    """
    mean = sum(lengths.values()) / len(lengths) if lengths else 0.0
    scores: dict[int, float] = {}
    idfs = []
    for term in terms:
        having = [d for d in lengths if d in term]
        idfs.append(math.log(1 + (len(lengths) - len(having) + 0.5) / (len(having) + 0.5)))
        for d in having:
            part = term[d] * (k1 + 1) / (term[d] + k1 * (1 - b + b * lengths[d] / mean))
            scores[d] = scores.get(d, 0.0) + idfs[-1] * part
    return scores, idfs
