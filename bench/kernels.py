"""How fast is each native kernel beside its NumPy twin, and what does int8 lose?

    python -m bench.kernels [--sizes 10000 100000] [--repeats 15] [--json OUT]

The data are clustered unit vectors of dimension 384. The two versions of a kernel run in turn, so
that a noisy machine disturbs both. Figures are medians; `ratio` is NumPy's time over the native
one. `dots` gathers different rows in each call, so they come from memory, not from a cache. NumPy
may use all cores (OPENBLAS_NUM_THREADS=1 limits it to one); the native kernels use one. The summary
has the int8 scan's ratio to the native float scan, and its recall_at_10 by number of survivors.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from bench import report
from bench.index_crossover import DIM, K, clustered
from edgemem import kernels
from edgemem.retrieval.metric import fit

SIZES = [10_000, 100_000]
GATHERED = 600
FEATURES = 8
SURVIVORS = [10, 20, 40, 100]

Call = Callable[[], Any]


def cases(n: int, rows: np.ndarray, rng: np.random.Generator) -> Iterator[tuple[str, Call, Call]]:
    """The name, native call and NumPy call of each case."""
    queries = rows[rng.integers(n, size=2)]
    query = queries[0]
    quantized, scales = kernels.quantize_i8(rows)
    metric = fit(rows[:10_000])
    features = rng.standard_normal((GATHERED, FEATURES)).astype(np.float32)
    weights = features[0].copy()
    scattered = [rng.integers(n, size=GATHERED) for _ in range(64)]
    at = iter(range(10**9))

    def positions() -> np.ndarray:
        return scattered[next(at) % len(scattered)]

    of: dict[str, Callable[[], tuple[Any, ...]]] = {
        "scan_topk": lambda: (rows, query, K, None),
        "scan_topk_i8": lambda: (quantized, query, K, None, scales),
        "dots": lambda: (rows, positions(), queries),
        "quantize_i8": lambda: (rows,),
        "metric_query": lambda: (query, metric.mean, metric.inverse_diagonal, metric.A.T),
        "rank": lambda: (features, weights, 0.0, K),
    }
    for name, arguments in of.items():
        kernel = name.removesuffix("_i8") if name != "quantize_i8" else name
        call = getattr(kernels, kernel)
        yield name, partial(apply, call, arguments), partial(apply_in_numpy, call, arguments)


def apply(call: Callable[..., Any], arguments: Callable[[], tuple[Any, ...]]) -> None:
    call(*arguments())


def apply_in_numpy(call: Callable[..., Any], arguments: Callable[[], tuple[Any, ...]]) -> None:
    given = arguments()
    with kernels.in_numpy():
        call(*given)


def milliseconds(call: Call) -> float:
    start = time.perf_counter()
    call()
    return (time.perf_counter() - start) * 1000


def compare(native: Call, plain: Call, repeats: int) -> dict[str, float]:
    """Median times of calls made in turn; a quick kernel is called more often than a slow one."""
    native(), plain()
    once = milliseconds(native) + milliseconds(plain)
    repeats = max(3, min(repeats * 20, int(repeats * 100 / once)))
    times = np.array([(milliseconds(native), milliseconds(plain)) for _ in range(repeats)])
    native_ms, numpy_ms = np.median(times, axis=0).tolist()
    return {"native_ms": native_ms, "numpy_ms": numpy_ms, "ratio": numpy_ms / native_ms}


def recall(rows: np.ndarray, queries: np.ndarray) -> dict[str, float]:
    """The share of the exact top K that the int8 scan finds, by number of survivors."""
    quantized, scales = kernels.quantize_i8(rows)
    found = dict.fromkeys(SURVIVORS, 0)
    for query in queries:
        exact = kernels.scan_topk(rows, query, K)[0]
        for survivors in SURVIVORS:
            best, _ = kernels.scan_topk(quantized, query, K, None, scales, survivors=survivors)
            found[survivors] += len(np.intersect1d(exact, best))
    return {str(survivors): same / K / len(queries) for survivors, same in found.items()}


def main(arguments: list[str] | None = None) -> None:
    parser = report.parser("kernels", __doc__, to_file=False)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, metavar="N")
    parser.add_argument("--repeats", type=int, default=15, metavar="N")
    options = parser.parse_args(arguments)
    if kernels.backend != "native":
        sys.exit(f"there is no native module to compare with: {kernels.backend_detail}")
    rows: list[dict[str, Any]] = []
    summary: dict[str, Any] = {"numpy_threads": os.environ.get("OPENBLAS_NUM_THREADS", "all")}
    for n in sorted(options.sizes):
        rng = np.random.default_rng(n)
        vectors = clustered(n + 100, rng)
        vectors, queries = np.ascontiguousarray(vectors[:n]), vectors[n:]
        of: dict[str, dict[str, float]] = {}
        for name, native, plain in cases(n, vectors, rng):
            print(f"{n} rows: {name} …", file=sys.stderr)
            of[name] = compare(native, plain, options.repeats)
            rows.append({"kernel": name, "n": n, "dim": DIM, **of[name]})
        summary[f"i8_scan_speedup_{n}"] = (
            of["scan_topk"]["native_ms"] / of["scan_topk_i8"]["native_ms"]
        )
        summary[f"i8_recall_at_10_{n}"] = recall(vectors, queries)
    report.write(options.json, summary, rows)


if __name__ == "__main__":
    main()
