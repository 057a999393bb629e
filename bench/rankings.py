"""What a search finds, compared with MiniLM's cosine alone and BM25 alone on the same store.

Shared by the retrieval benches on public data. Knows a Memory; knows no data set.
"""

from __future__ import annotations

import numpy as np

from edgemem.memory import Memory
from edgemem.results import Query, Scope
from edgemem.retrieval.search import Feature, refresh

SYSTEMS = ("search", "cosine", "bm25")


def ranked(memory: Memory, text: str, user_id: str, top_k: int) -> dict[str, list[str]]:
    """The ids of each system's `top_k` best memories for a text, best first."""
    search = [hit.id for hit in memory.search(text, user_id=user_id, top_k=top_k)]
    refresh(memory.store, memory.index)
    query = Query(text, Scope(user_id=user_id), top_k=top_k)
    vector = memory.embedder.embed_query(text)
    near, _ = memory.index.nearest(query, vector)
    candidates = memory.index.candidates(query, vector)
    words = candidates.features[:, Feature.BM25]
    best = np.argsort(-words, kind="stable")[:top_k]
    lexical = candidates.rowids[best[words[best] > 0]]
    items = memory.store.by_rowids([*near.tolist(), *lexical.tolist()])
    found = {
        name: [items[rowid].id for rowid in rowids.tolist()]
        for name, rowids in (("cosine", near), ("bm25", lexical))
    }
    return {"search": search, **found}
