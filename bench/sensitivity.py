"""How close are exact sensitivities to the speed limit of float32 matrix products?

    python -m bench.sensitivity [--model M] [--tokens 256 512 1024] [--repeats 5] [--threads 2]
                                [--json OUT]

The limit is the time of the products with the weights alone, forward and back: 4 · parameters ·
tokens operations. The same shapes run through NumPy, either with BLAS's own threads or with the
rows split among as many Python threads. A trial chooses the faster way (`gemm_limit_by`). The limit
and the exact computation run in turn, so that a noisy machine disturbs both. A row's ratio is the
median of the ratios of all turns. cpu_ratio compares CPU seconds, always with split rows, and is
valid on a busy machine too. gflops counts the limit's operations for both. peak_extra_rss_mb comes
from a fresh process for each row: its peak RSS after scoring minus its peak before the model is
mapped. It includes the pages of the model file.
"""

from __future__ import annotations

import multiprocessing
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from bench import report
from edgemem.compression.fisher import Model, sensitivity
from edgemem.kernels import one_blas_thread
from edgemem.runtime import llama, models

OUTPUT_ROWS = 4096


def products(shape: Model, ffn: int) -> list[tuple[int, int, float]]:
    """(rows, columns, count) of the matrices that a token passes through in one direction."""
    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    return [
        (queries + 2 * keys, shape.dim, shape.layers),
        (shape.dim, queries, shape.layers),
        (2 * ffn, shape.dim, shape.layers),
        (shape.dim, ffn, shape.layers),
        (OUTPUT_ROWS, shape.dim, shape.vocabulary / OUTPUT_ROWS),
    ]


def flops(matrices: list[tuple[int, int, float]], n: int) -> float:
    return sum(4.0 * n * rows * columns * often for rows, columns, often in matrices)


def limit(matrices: list[tuple[int, int, float]], n: int, threads: int) -> tuple[float, float]:
    """Wall and CPU seconds of a pass's products over n tokens, split by rows among `threads`."""
    rng = np.random.default_rng(n)
    wall = cpu = 0.0
    step = -(-n // threads)
    parts = [slice(start, start + step) for start in range(0, n, step)]
    with ThreadPoolExecutor(threads) as pool:
        for rows, columns, often in matrices:
            matrix = rng.standard_normal((rows, columns), np.float32)
            x, y = (rng.standard_normal((n, size), np.float32) for size in (columns, rows))
            out_x, out_y = np.empty_like(x), np.empty_like(y)

            def forward(t: slice, x=x, m=matrix, out=out_y) -> None:  # type: ignore[no-untyped-def]
                np.matmul(x[t], m.T, out=out[t])

            def back(t: slice, y=y, m=matrix, out=out_x) -> None:  # type: ignore[no-untyped-def]
                np.matmul(y[t], m, out=out[t])

            for work in (forward, back):
                list(pool.map(work, parts))
                times = round(often)
                started, used = time.perf_counter(), time.process_time()
                for _ in range(times):
                    list(pool.map(work, parts))
                wall += (time.perf_counter() - started) * often / times
                cpu += (time.process_time() - used) * often / times
    return wall, cpu


def timed(call: Callable[[], Any]) -> tuple[float, float]:
    started, used = time.perf_counter(), time.process_time()
    call()
    return time.perf_counter() - started, time.process_time() - used


def measure(path: str | None, n: int, threads: int, repeats: int) -> dict[str, Any]:
    file = models.find(path or models.DEFAULT_LLM)
    tokens = np.random.default_rng(n).integers(0, 40_000, n).tolist()
    with Model(file, threads) as model:
        matrices = products(model, len(model.tensor("blk.0.ffn_up.weight")))
        sensitivity(model, tokens[:32])
        rows, columns, _ = matrices[2]
        trial = [(rows, columns, 5.0)]
        by_blas = limit(trial, n, 1)[0]
        with one_blas_thread():
            by_rows = limit(trial, n, threads)[0]
        turns = []
        for turn in range(repeats):
            print(f"{n} tokens: {turn + 1} of {repeats}", file=sys.stderr)
            with one_blas_thread():
                split = limit(matrices, n, threads)
            quicker = limit(matrices, n, 1)[0] if by_blas < by_rows else split[0]
            exact = timed(lambda: sensitivity(model, tokens))
            turns.append((exact[0], quicker, exact[1], split[1]))
    wall, limits, cpu, limit_cpu = np.array(turns).T
    return {
        "tokens": n,
        "threads": threads,
        "seconds": float(np.median(wall)),
        "gemm_limit_by": "blas" if by_blas < by_rows else "rows",
        "gemm_limit_seconds": float(np.median(limits)),
        "ratio": float(np.median(wall / limits)),
        "cpu_seconds": float(np.median(cpu)),
        "gemm_limit_cpu_seconds": float(np.median(limit_cpu)),
        "cpu_ratio": float(np.median(cpu / limit_cpu)),
        "gflops": flops(matrices, n) / float(np.median(wall)) / 1e9,
        "gemm_limit_gflops": flops(matrices, n) / float(np.median(limits)) / 1e9,
    }


def peak_extra_rss_mb(path: str | None, n: int, threads: int) -> float:
    """The extra peak RSS in a process of its own, because a process's peak never falls."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return float(pool.apply(_peak, (path, n, threads)))


def _peak(path: str | None, n: int, threads: int) -> float:
    llama.tensor_type(0)  # loads both libraries
    before = report.peak_rss_mb() or 0.0
    with Model(models.find(path or models.DEFAULT_LLM), threads) as model:
        sensitivity(model, [1 + i % 1000 for i in range(n)])
    return (report.peak_rss_mb() or 0.0) - before


def main(arguments: list[str] | None = None) -> None:
    parser = report.parser("sensitivity", __doc__, to_file=False)
    parser.add_argument("--model", help="a GGUF file or a name of the manifest")
    parser.add_argument("--tokens", type=int, nargs="+", default=[256, 512, 1024], metavar="N")
    parser.add_argument("--repeats", type=int, default=5, metavar="N")
    parser.add_argument("--threads", type=int, default=2, metavar="N")
    options = parser.parse_args(arguments)
    rows = []
    for n in options.tokens:
        row = measure(options.model, n, options.threads, options.repeats)
        peak = peak_extra_rss_mb(options.model, n, options.threads)
        rows.append({**row, "peak_extra_rss_mb": peak})
    summary = {
        "model": options.model or models.DEFAULT_LLM,
        "exact_over_gemm_limit": max(row["ratio"] for row in rows),
        "exact_over_gemm_limit_cpu": max(row["cpu_ratio"] for row in rows),
        "peak_extra_rss_mb": max(row["peak_extra_rss_mb"] for row in rows),
    }
    report.write(options.json, summary, rows)


if __name__ == "__main__":
    main()
