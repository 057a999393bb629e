"""What does it cost to fit the metric again, and how stale may it get before that is worth it?

    python -m bench.metric_refit [--rows 100000] [--new 1000] [--rounds 7] [--data DIR] [--json OUT]

Cost: made-up unit rows of 384 numbers with a decaying spectrum. Rows of kind `cost`, for each rank,
medians in milliseconds: the first moments of all rows; then `new` rows more and the fit (`refit_ms`
is the sum of the two), in another thread, while this thread searches: `search_ms` p50 and p95 of an
exact scan of 20,000 rows, alone and meanwhile.

Where other processes keep the cores busy, several BLAS threads wait for each other: compare with
OPENBLAS_NUM_THREADS=1 (the summary's `blas_threads`).

Staleness (with --data, a folder of LoCoMo files): a metric fitted on the first n turns ranks n and
`growth` more, for the questions about them, by itself. Rows of kind `stale`: `overlap_at_10` of the
first 10 with those of a metric fitted on all, and Hit@10 of the cosine, the stale and the fresh
one. Each conversation by itself, or (scope `all`) one conversation after another, so that the new
turns are other people's.
"""

from __future__ import annotations

import argparse
import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import track

from bench import report
from bench.hubness import Conversation, K, best, load, scores_of
from edgemem.kernels import scan_topk
from edgemem.retrieval.metric import Moments, fit

DIM = 384
SEARCHED = 20_000
RANKS = (50, 100)
GROWTHS = (0.05, 0.1, 0.2, 0.5, 1.0)
FORMS = ("inner product", "whitened cosine")
SHARE_AT_FIRST = 0.4  # of the turns; so that all growths fit
_console = Console(stderr=True)


def made_up(n: int, seed: int) -> np.ndarray:
    """(n, DIM) float32 unit rows around a mean that is not zero."""
    rng = np.random.default_rng(seed)
    scale = (1 + np.arange(DIM)).astype(np.float32) ** -0.4
    rows = rng.standard_normal((n, DIM), dtype=np.float32) * scale + 0.3 * scale
    rotation = np.linalg.qr(np.random.default_rng(0).standard_normal((DIM, DIM)))[0]
    rows @= rotation.astype(np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def refit(moments: Moments, new: np.ndarray, rank: int) -> dict[str, float]:
    """Milliseconds of each step."""
    marks = [time.perf_counter()]
    moments.add(new)
    marks.append(time.perf_counter())
    moments.fit(max_rank=rank)
    marks.append(time.perf_counter())
    add, fitted = (np.diff(marks) * 1e3).tolist()
    return {"add_ms": add, "fit_ms": fitted, "refit_ms": add + fitted}


def search_ms(rows: np.ndarray, until: threading.Thread | None, least: int = 50) -> list[float]:
    """Milliseconds of searches one after another, at least `least` and until the thread ends."""
    times: list[float] = []
    while len(times) < least or (until is not None and until.is_alive()):
        start = time.perf_counter()
        scan_topk(rows, rows[len(times)], K)
        times.append((time.perf_counter() - start) * 1e3)
    return times


def cost(n: int, n_new: int, rounds: int) -> list[dict[str, Any]]:
    rows = made_up(n + n_new, 1)
    new = rows[n:]
    searched = np.ascontiguousarray(rows[:SEARCHED])
    start = time.perf_counter()
    moments = Moments(DIM)
    moments.add(rows[:n])
    first_ms = (time.perf_counter() - start) * 1e3
    found = []
    for rank in RANKS:
        steps: list[dict[str, float]] = []
        alone: list[float] = []
        meanwhile: list[float] = []
        for _ in track(range(rounds), f"rank {rank}", console=_console):
            steps.append(refit(moments, new, rank))
            alone += search_ms(searched, None)

            def work(rank: int = rank) -> None:
                refit(moments, new, rank)

            thread = threading.Thread(target=work)
            thread.start()
            meanwhile += search_ms(searched, thread, least=1)
            thread.join()
        figures = {name: report.percentile([s[name] for s in steps], 50) for name in steps[0]}
        for label, times in (("alone", alone), ("meanwhile", meanwhile)):
            for p in (50, 95):
                figures[f"search_{label}_ms_p{p}"] = report.percentile(times, p)
        figures["refit_ms_min"] = min(s["refit_ms"] for s in steps)
        about = {"kind": "cost", "n": n, "new": n_new, "max_rank": rank}
        found.append({**about, "first_moments_ms": first_ms, **figures})
    return found


def stale_once(one: Conversation, growth: float, form: str) -> list[tuple[float, ...]]:
    """Overlap, and hits of cosine, stale and fresh, for each question that can be answered."""
    n = int(SHARE_AT_FIRST * len(one.turns))
    held = int(n * (1 + growth))
    H = one.turns[:held]
    asked = [i for i, wanted in enumerate(one.wanted) if min(wanted) < held]
    questions = one.questions[asked]
    ranked = [
        best(questions @ H.T, K),
        *(best(scores_of(form, fit(rows), H, questions), K) for rows in (H[:n], H)),
    ]
    found = []
    for i, tops in zip(asked, zip(*(r.tolist() for r in ranked), strict=True), strict=True):
        hits = [float(bool(set(top) & set(one.wanted[i]))) for top in tops]
        found.append((len(set(tops[1]) & set(tops[2])) / K, *hits))
    return found


def joined(conversations: Sequence[Conversation]) -> Conversation:
    starts = np.cumsum([0, *(len(c.turns) for c in conversations[:-1])])
    return Conversation(
        np.concatenate([c.turns for c in conversations]),
        np.concatenate([c.questions for c in conversations]),
        [
            [start + w for w in wanted]
            for start, c in zip(starts.tolist(), conversations, strict=True)
            for wanted in c.wanted
        ],
    )


def staleness(conversations: Sequence[Conversation]) -> list[dict[str, Any]]:
    rows = []
    for scope, parts in (("conversation", conversations), ("all", [joined(conversations)])):
        for growth in GROWTHS:
            for form in FORMS:
                found = [f for one in parts for f in stale_once(one, growth, form)]
                about = {"kind": "stale", "scope": scope, "growth": growth, "form": form}
                names = ("overlap_at_10", "hit_cosine", "hit_stale", "hit_fresh")
                means = np.mean(found, axis=0).round(4).tolist()
                rows.append(
                    {**about, "questions": len(found), **dict(zip(names, means, strict=True))}
                )
    return rows


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.metric_refit", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--new", type=int, default=1_000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--data", type=Path, help="folder of LoCoMo JSON files (for staleness)")
    parser.add_argument("--json", default="-", metavar="OUT", help="a file (default: stdout)")
    options = parser.parse_args(arguments)
    if min(options.rows, options.new, options.rounds) < 1:
        parser.error("--rows, --new and --rounds must be 1 or more")
    costs = cost(options.rows, options.new, options.rounds)
    summary = {
        "rows": options.rows,
        "new": options.new,
        "blas_threads": os.environ.get("OPENBLAS_NUM_THREADS", "not set"),
        **{f"refit_ms_rank_{row['max_rank']}": round(row["refit_ms"], 1) for row in costs},
    }
    stale = staleness(load(options.data)) if options.data else []
    report.write(options.json, summary, costs + stale)


if __name__ == "__main__":
    main()
