"""How does a whole search grow with the number of memories, and where does its time go?

    python -m bench.retrieval_scale [--sizes 1000 10000 100000] [--queries 200] [--json OUT]
        [--careful]

Needs the `bench` extra for usearch; without it that peer is left out. A store in a temporary folder
is filled with one user's invented memories (bench/synthetic.py, with ready-made vectors). They are
turns of two-speaker conversations, 20 turns each, with seconds between turns and days between
conversations. The index is built and saved, and everything is opened again as a new process would.
Then each question (text and vector) goes through the search that `Memory.search` uses, on one core.
The milliseconds thus exclude embedding. A row has the search and its pieces, each called alone:
`candidates` (all but SQL and the last ranking), the same without words, `nearest` (the vector
index's proposals), `rank`, `generation` (the SQL of every search) and `read_rows` (the SQL that
reads the ten rows, which `Memory.search` adds). A row also has the share of questions whose own
memory is among the first 10, the seconds to fill, build and open, and megabytes.

`vectors` is the vector search alone: HNSW proposes 200, which the metric ranks. Compare it with
bare hnswlib asked for 200 (`vectors_to_hnswlib`). Its recall@10 is against exact search by the
metric; proposals_recall_at_10 is the share of the ten best cosines among the 200. The peers run in
turn with it: hnswlib and usearch asked for 200, the NumPy product, and FTS5's bm25 of the same
words. --careful: each memory also has 40 invented token vectors, and a careful search with 12 query
tokens runs in turn. Disk: about 5 KB per memory, 9 KB with token vectors.
"""

from __future__ import annotations

import gc
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.progress import Progress

from bench import report
from bench.alone import grown_mb, in_turns, on_one_core, one_thread_each, percentiles, rss_mb
from bench.synthetic import DIM, Corpus, Query, corpus, queries
from edgemem import results
from edgemem.kernels import in_numpy, scan_topk
from edgemem.pipeline.ingest import stored_turn, turn_memory
from edgemem.results import Message, Scope
from edgemem.retrieval import search
from edgemem.retrieval.lexical import query_words
from edgemem.retrieval.metric import EVERYBODY, Metric
from edgemem.retrieval.search import NEAREST, Candidates, QueryTokens, SearchIndex, similarities
from edgemem.retrieval.vectors import TableView
from edgemem.store import Store

SCOPE = Scope(user_id="ana")
MODEL = "synthetic"
BATCH = 5_000  # memories per transaction
K = 10
PROPOSALS = 200  # neighbours that each peer is asked for
TURNS = 20  # per conversation
TOKENS, QUERY_TOKENS, TOKEN_DIM = 40, 12, 96  # tokens of a text, tokens of a query, dimension
STEP = 1 / 127  # quantization step of the invented token vectors
FIRST_DAY = datetime(2024, 1, 1, 9, tzinfo=UTC)
WITHIN, BETWEEN = timedelta(seconds=20), timedelta(days=2)  # of turns, of conversations

FloatArray = NDArray[np.float32]
IntArray = NDArray[np.int64]


def find(
    store: Store,
    memories: SearchIndex,
    text: str,
    vector: FloatArray,
    tokens: QueryTokens | None = None,
) -> list[int]:
    """The rowids that a search finds, best first."""
    query = results.Query(text, SCOPE, top_k=K)
    found, _ = search.find(store, memories, query, vector, tokens=tokens)
    return [scored.rowid for scored in found]


def made_up_tokens(count: int, rng: np.random.Generator) -> NDArray[np.int8]:
    """Random token vectors, (count, TOKEN_DIM) int8, of length 1 when multiplied by STEP."""
    rows = rng.normal(size=(count, TOKEN_DIM))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return np.rint(rows / STEP).astype(np.int8)


def in_conversations(made: Corpus) -> Corpus:
    """The same memories, said by two speakers in turn; each conversation has its own pair."""
    speakers = []
    for start in range(0, len(made.speakers), TURNS):
        first = made.speakers[start]
        second = next((name for name in made.speakers[start:] if name != first), first)
        speakers += [(first, second)[i % 2] for i in range(TURNS)]
    return replace(made, speakers=speakers[: len(made.speakers)])


def fill(path: Path, made: Corpus, progress: Progress) -> None:
    """Store all memories as turns of conversations; memory i gets the rowid i + 1."""
    n = len(made.texts)
    task = progress.add_task(f"storing {n:,}", total=n)
    with Store.open(path) as store:
        for start in range(0, n, BATCH):
            with store.transaction() as tx:
                if not start:
                    tx.set_meta("embedder_model", MODEL)
                    tx.set_meta("embedder_dim", str(DIM))
                for i in range(start, min(start + BATCH, n)):
                    said = FIRST_DAY + i // TURNS * BETWEEN + i % TURNS * WITHIN
                    when = said.isoformat(timespec="milliseconds")
                    message = Message("user", made.texts[i], when, made.speakers[i])
                    turn = stored_turn(message, SCOPE, when)
                    tx.add_turn(turn)
                    vectors = made.vectors[i : i + 1]
                    tx.add_memory(turn_memory(turn, vectors))
            progress.update(task, completed=min(start + BATCH, n))


def add_tokens(path: Path) -> None:
    """Give each memory its token vectors."""
    rng = np.random.default_rng(0)
    with Store.open(path) as store:
        texts = list(store.without_tokens(MODEL))
        for start in range(0, len(texts), BATCH):
            with store.transaction() as tx:
                tx.set_tokens(
                    MODEL,
                    [
                        (rowid, text, made_up_tokens(TOKENS, rng).tobytes())
                        for rowid, text in texts[start : start + BATCH]
                    ],
                )


def index_file(path: Path) -> Path:
    return path.with_name(path.name + ".hnsw")


def build_graph(path: Path) -> float | None:
    """Build and save the store's HNSW graph; seconds, or None if the store is too small for one."""
    with Store.open(path) as store:
        memories = SearchIndex(DIM)
        search.refresh(store, memories)
        index = memories.vectors
        if len(index) <= index.crossover:
            return None
        began = time.perf_counter()
        index.build_hnsw()
        taken = time.perf_counter() - began
        index.save(index_file(path), generation=index.generation, model_id=MODEL)
        memories.close()
    return round(taken, 2)


def open_memories(store: Store, path: Path) -> SearchIndex:
    """Open the index as `Memory` does at its first search."""
    memories = SearchIndex(DIM)
    search.refresh(store, memories)
    memories.vectors.load(index_file(path), generation=memories.generation, model_id=MODEL)
    return memories


def pieces(store: Store, memories: SearchIndex) -> dict[str, Callable[[Query], Any]]:
    """The pieces of a search by name, each as a call of its own."""
    allowed = np.ones(len(memories) + 1, np.bool_)

    def candidates(text: str, query: Query) -> Candidates:
        return memories.candidates(results.Query(text, SCOPE), query.vector)

    some = candidates("", Query(np.ones(DIM, np.float32) / np.float32(DIM**0.5), "", 0))
    view = memories.vectors.view(allowed)
    metric = metric_of(memories, view.table)

    def vectors(query: Query) -> IntArray:
        proposed, _, _ = memories.vectors.view(view.table).search(query.vector, PROPOSALS)
        scores = similarities(view.table, query.vector, metric, proposed[:, None])[:, 0]
        return proposed[np.argsort(-scores, kind="stable")[:K]]

    return {
        "candidates": lambda query: candidates(query.text, query),
        "candidates_without_words": lambda query: candidates("", query),
        "nearest": lambda query: memories.vectors.view(view.table).search(query.vector, NEAREST),
        "rank": lambda query: some.best(3 * K),
        "generation": lambda query: store.generation(),
        "read_rows": lambda query: store.by_rowids(range(query.target + 1, query.target + 1 + K)),
        "vectors": vectors,
    }


def metric_of(memories: SearchIndex, table: TableView) -> Metric | None:
    """The metric fitted to all memories; None if there is none."""
    return memories.whitening.get(EVERYBODY, memories.generation, lambda: table.vectors(None))


def fts5(store: Store, query: Query) -> list[tuple[int, float]]:
    """The best NEAREST memories by FTS5's own bm25, for the words that edgemem searches for."""
    match = " OR ".join(f'"{word}"' for word in query_words(query.text))
    with store.snapshot() as connection:
        # CROSS JOIN fixes the order: the planner might run the full-text query once per memory.
        return connection.execute(
            "SELECT m.rowid, -bm25(memories_fts) AS score FROM memories_fts "
            "CROSS JOIN memories m ON m.rowid = memories_fts.rowid WHERE memories_fts MATCH ? "
            "AND m.deleted_at IS NULL AND m.user_id = ? ORDER BY score DESC, m.rowid LIMIT ?",
            (match, SCOPE.user_id, NEAREST),
        ).fetchall()


def peers(
    path: Path, vectors: FloatArray
) -> tuple[dict[str, Callable[[Query], Any]], dict[str, Any]]:
    """The peers' searches, and what they cost to build.

    hnswlib loads the store's own graph file if there is one. The difference in time is then
    edgemem's own overhead.
    """
    import hnswlib

    calls: dict[str, Callable[[Query], Any]] = {
        "numpy": lambda query: in_numpy()(scan_topk)(vectors, query.vector, 10)
    }
    costs: dict[str, Any] = {}
    before, began = rss_mb(), time.perf_counter()
    graph = hnswlib.Index(space="ip", dim=DIM)
    if index_file(path).exists():
        graph.load_index(str(index_file(path)))
        costs["hnswlib_load_s"] = round(time.perf_counter() - began, 2)
    else:
        graph.init_index(len(vectors), M=16, ef_construction=100)
        graph.add_items(vectors, np.arange(1, len(vectors) + 1))
        costs["hnswlib_build_s"] = round(time.perf_counter() - began, 2)
    costs["hnswlib_rss_mb"] = grown_mb(before)
    graph.set_ef(PROPOSALS)
    calls["hnswlib"] = lambda query: graph.knn_query(
        query.vector[None, :], k=PROPOSALS, num_threads=1
    )
    if find_spec("usearch") is not None:
        from usearch.index import Index

        before, began = rss_mb(), time.perf_counter()
        other = Index(ndim=DIM, metric="ip", dtype="f32", connectivity=16, expansion_add=100)
        other.add(np.arange(1, len(vectors) + 1), vectors)
        costs["usearch_build_s"] = round(time.perf_counter() - began, 2)
        costs["usearch_rss_mb"] = grown_mb(before)
        other.expansion_search = PROPOSALS
        calls["usearch"] = lambda query: other.search(query.vector, PROPOSALS, threads=1)
    return calls, costs


def recalls(
    memories: SearchIndex, asked: Sequence[Query], found: Sequence[IntArray]
) -> dict[str, float]:
    """recall@10 of the results of `vectors`, and of the proposals that it ranked."""
    allowed = np.ones(len(memories) + 1, np.bool_)
    index, table = memories.vectors, memories.vectors.view(allowed).table
    metric = metric_of(memories, table)
    shares = []
    for query, best in zip(asked, found, strict=True):
        image = query.vector if metric is None else metric.query(query.vector).image
        exact = table.rowids[scan_topk(table.rows.values, image, K, None, table.rows.scales)[0]]
        nearest, _ = index.exact_search(query.vector, K, allowed)
        proposed, _, _ = index.view(allowed).search(query.vector, PROPOSALS)
        shares.append([np.isin(exact, best).mean(), np.isin(nearest, proposed).mean()])
    in_metric, among = np.mean(shares, axis=0).tolist()
    return {
        "vectors_recall_at_10": round(in_metric, 4),
        "proposals_recall_at_10": round(among, 4),
    }


def measure(n: int, count: int, seed: int, with_peers: bool, careful: bool) -> dict[str, Any]:
    """The row of one size."""
    made = in_conversations(corpus(n, seed=seed))
    asked = queries(made, count, seed=seed)
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "scale.db"
        began = time.perf_counter()
        with Progress(console=report.console) as progress:
            fill(path, made, progress)
        if careful:
            add_tokens(path)
        fill_s = time.perf_counter() - began
        made.texts.clear()
        made.speakers.clear()
        gc.collect()
        graph_s = build_graph(path)

        before, began = rss_mb(), time.perf_counter()
        store = Store.open(path)
        memories = open_memories(store, path)
        opened = time.perf_counter()
        find(store, memories, asked[0].text, asked[0].vector)
        first_s = time.perf_counter() - opened
        row: dict[str, Any] = {
            "n": n,
            "fill_s": round(fill_s, 1),
            "graph_build_s": graph_s,
            "open_s": round(opened - began, 3),
            "first_search_s": round(first_s, 3),
            "rss_mb": grown_mb(before),
            "index_mb": round(sum(memories.memory_bytes().values()) / 1e6, 1),
            "disk_mb": round(sum(f.stat().st_size for f in Path(scratch).iterdir()) / 1e6, 1),
        }
        calls: dict[str, Callable[[Query], Any]] = {
            "search": lambda query: find(store, memories, query.text, query.vector),
            **pieces(store, memories),
        }
        if careful:
            tokens = made_up_tokens(QUERY_TOKENS, np.random.default_rng(seed))
            asking = QueryTokens(MODEL, tokens, STEP)
            calls["careful"] = lambda query: find(store, memories, query.text, query.vector, asking)
        costs: dict[str, Any] = {}
        if with_peers:
            more, costs = peers(path, made.vectors)
            calls |= {**more, "fts5": lambda query: fts5(store, query)}
        with on_one_core() as pinned, report.console.status(f"asking {n:,} memories"):
            times, answers = in_turns(calls, asked)
            row |= recalls(memories, asked, answers["vectors"])
        for name in calls:
            row |= percentiles(times[name], name)
        if with_peers:
            row["vectors_to_hnswlib"] = round(row["vectors_ms_p50"] / row["hnswlib_ms_p50"], 2)
        row["own_memory_found_at_10"] = round(
            sum(q.target + 1 in rowids for q, rowids in zip(asked, answers["search"], strict=True))
            / len(asked),
            4,
        )
        memories.close()
        store.close()
    return {**row, **costs, "one_core": pinned}


def main(argv: Sequence[str] | None = None) -> None:
    parser = report.parser("retrieval_scale", __doc__, to_file=False)
    parser.add_argument(
        "--sizes", type=int, nargs="+", default=[1_000, 10_000, 100_000], metavar="N"
    )
    parser.add_argument("--queries", type=int, default=200, metavar="N")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-peers", action="store_true", help="measure edgemem alone")
    parser.add_argument("--careful", action="store_true", help="measure careful searches, too")
    options = parser.parse_args(argv)
    if min(options.sizes) < PROPOSALS or options.queries < 1:
        parser.error(f"--sizes must be {PROPOSALS} or more, --queries 1 or more")
    one_thread_each("bench.retrieval_scale")
    rows = []
    for n in sorted(options.sizes):
        rows.append(
            measure(n, options.queries, options.seed, not options.no_peers, options.careful)
        )
        done = rows[-1]
        sys.stderr.write(f"{n} memories: search {done['search_ms_p50']} ms p50\n")
    summary = {
        "dim": DIM,
        "queries": options.queries,
        "seed": options.seed,
        "search_ms_p50": {row["n"]: row["search_ms_p50"] for row in rows},
        "search_ms_p95": {row["n"]: row["search_ms_p95"] for row in rows},
    }
    if options.careful:
        summary |= {
            f"careful_ms_{p}": {r["n"]: r[f"careful_ms_{p}"] for r in rows} for p in ("p50", "p95")
        }
    report.write(options.json, summary, rows)


if __name__ == "__main__":
    main()
