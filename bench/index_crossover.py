"""From how many vectors on is HNSW faster than the exact scan, and by how much?

    python -m bench.index_crossover [--sizes 1000 5000 …] [--queries 200] [--json OUT]

Clustered unit vectors, 384 numbers each, one query at a time in one thread, through VectorIndex, so
that masks and bookkeeping count in both. Rows: for each size, milliseconds of both ways (p50, p95),
of the NumPy scan, recall_at_10 of HNSW against the exact answer, and the seconds and bytes that the
graph costs. The summary's `crossover` is the smallest size at which HNSW's p50 is at most half of
the scan's: below that a graph is not worth its memory and its build.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

from bench import report
from edgemem.kernels import in_numpy, scan_topk
from edgemem.retrieval.index import CROSSOVER, VectorIndex

DIM = 384
K = 10
SIZES = [500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000]


def clustered(n: int, rng: np.random.Generator) -> np.ndarray:
    """(n, DIM) float32 of length 1, about 50 to a cluster."""
    centres = rng.standard_normal((max(1, n // 50), DIM)).astype(np.float32)
    vectors = centres[rng.integers(len(centres), size=n)]
    vectors = vectors + rng.standard_normal((n, DIM)).astype(np.float32) * np.float32(0.7)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def changes_of(vectors: np.ndarray) -> Any:
    n = len(vectors)
    numbers = np.arange(1, n + 1, dtype=np.int64)
    return SimpleNamespace(
        generation=1,
        full=True,
        removed_rowids=np.empty(0, np.int64),
        labels=numbers,
        owners=numbers,
        vectors=vectors,
    )


def timed(call: Callable[[np.ndarray], Any], queries: np.ndarray) -> tuple[list[float], list[Any]]:
    for query in queries[:10]:
        call(query)
    times, answers = [], []
    for query in queries:
        start = time.perf_counter()
        answers.append(call(query))
        times.append((time.perf_counter() - start) * 1000)
    return times, answers


def measure(n: int, n_queries: int, ef_search: int) -> dict[str, Any]:
    rng = np.random.default_rng(n)
    vectors = clustered(n + n_queries, rng)
    vectors, queries = np.ascontiguousarray(vectors[:n]), vectors[n:]
    index = VectorIndex(DIM, crossover=0, ef_search=ef_search)
    index.apply(changes_of(vectors))
    allowed = np.ones(n + 1, np.bool_)
    numpy_ms, _ = timed(lambda query: in_numpy()(scan_topk)(vectors, query, K), queries)
    exact_ms, exact = timed(lambda query: index.exact_search(query, K, allowed), queries)
    without_graph = index.memory_bytes()
    start = time.perf_counter()
    index.build_hnsw()
    build_s = time.perf_counter() - start
    hnsw_ms, found = timed(lambda query: index.view(allowed).search(query, K), queries)
    assert all(method == "hnsw" for _, _, method in found)
    same = [len(np.intersect1d(a[0], b[0])) for a, b in zip(exact, found, strict=True)]
    index.close()
    return {
        "n": n,
        "dim": DIM,
        "k": K,
        "ef_search": ef_search,
        "exact_ms_p50": report.percentile(exact_ms, 50),
        "exact_ms_p95": report.percentile(exact_ms, 95),
        "exact_numpy_ms_p50": report.percentile(numpy_ms, 50),
        "hnsw_ms_p50": report.percentile(hnsw_ms, 50),
        "hnsw_ms_p95": report.percentile(hnsw_ms, 95),
        "recall_at_10": float(np.mean(same)) / K,
        "build_s": build_s,
        "vectors_bytes": without_graph,
        "graph_bytes": index.memory_bytes() - without_graph,
    }


def main(arguments: list[str] | None = None) -> None:
    parser = report.parser("index_crossover", __doc__, to_file=False)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, metavar="N")
    parser.add_argument("--queries", type=int, default=200, metavar="N")
    parser.add_argument("--ef-search", type=int, default=64, metavar="EF")
    options = parser.parse_args(arguments)
    rows = []
    for n in sorted(options.sizes):
        print(f"{n} vectors …", file=sys.stderr)
        rows.append(measure(n, options.queries, options.ef_search))
    faster = [row["n"] for row in rows if row["hnsw_ms_p50"] < row["exact_ms_p50"]]
    worth = [row["n"] for row in rows if 2 * row["hnsw_ms_p50"] <= row["exact_ms_p50"]]
    summary = {
        "crossover": min(worth, default=None),
        "faster_from": min(faster, default=None),
        "crossover_in_use": CROSSOVER,
    }
    report.write(options.json, summary, rows)


if __name__ == "__main__":
    main()
