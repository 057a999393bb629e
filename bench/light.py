"""How little memory and time does it take? Each figure comes from a process of its own.

    python -m bench.light --json OUT [--before CHECKOUT] [--rounds 3] [--only search first …]

demo: peak RSS of `edgemem demo`. search: peak RSS of a process that searches an existing store of
10,000 memories. first: the first search of a process over 500 messages of 100 to 400 words, without
the query's embedding. stored: the same search right after the messages were stored. alone,
together: turns stored per second with infer=False, by one `add` each or by fifty at once. RSS is in
10⁶ bytes, times in milliseconds. Beside each wall time stands the CPU time, which is more reliable
on a busy machine.

--before: another checkout (`git worktree add DIR dfa7fb9`), which runs in turn with this one. The
texts come from a seeded generator. The vectors of search, first and stored are random, which does
not change how many a search reads.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from edgemem.memory import Memory
from edgemem.runtime.embedder import Embedder

MANY, LONG, TURNS, TOGETHER = 10_000, 500, 100, 50
QUERY = "When did Ana buy the guitar for her sister?"
USER = "u"
COMMON = (
    "the a of to and in is it my for on with that was i you we about would like could think time "
    "day week work home plan book trip recipe music garden train dog movie paint course garage "
    "lamp river market city house doctor friend sister brother cousin boss report budget coffee"
).split()
_letters = random.Random(1)
RARE = ["".join(_letters.choices("abcdefghilmnoprstu", k=4 + i % 6)) for i in range(8000)]


def messages(count: int, least: int, most: int) -> list[dict[str, Any]]:
    """`count` messages of `least` to `most` words, fifty a day."""
    rng = random.Random(0)
    made = []
    for i in range(count):
        n = rng.randint(least, most)
        words = rng.choices(COMMON, k=n - n // 3)
        words += [RARE[int(rng.random() ** 3 * len(RARE))] for _ in range(n // 3)]
        rng.shuffle(words)
        said = 1.7e9 + 86_400 * (i // 50) + 60 * (i % 50)
        role = ("user", "assistant")[i % 2]
        made.append({"role": role, "content": " ".join(words), "timestamp": said})
    return made


class RandomVectors:
    """Random vectors under a real embedder's `model_id`, one for each 180 words of a text."""

    dim = 384

    def __init__(self, model_id: str) -> None:
        self.model_id = model_id
        self._rng = np.random.default_rng(0)

    def embed_chunks(self, texts: list[str]) -> list[NDArray[np.float32]]:
        return [self._vectors(1 + text.count(" ") // 180) for text in texts]

    def embed_query(self, text: str) -> NDArray[np.float32]:
        vector: NDArray[np.float32] = self._vectors(1)[0]
        return vector

    def _vectors(self, n: int) -> NDArray[np.float32]:
        vectors = self._rng.normal(size=(n, self.dim)).astype(np.float32)
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


# -- in a child process: one figure of the checkout in PYTHONPATH --------------------------------


def stores(folder: Path) -> dict[str, float]:
    """Make the stores that the other figures read."""
    vectors = RandomVectors(Embedder.load().model_id)
    for name, texts in (("many", messages(MANY, 8, 24)), ("long", messages(LONG, 100, 400))):
        with Memory(folder / f"{name}.db", embedder=cast(Any, vectors)) as memory:
            fill(memory, texts)
    return {}


def search(folder: Path) -> dict[str, float]:
    """Search. The parent reads the peak RSS, since importing `bench.report` here would raise it."""
    with Memory(folder / "many.db") as memory:
        for _ in range(3):
            memory.search(QUERY, user_id=USER)
    return {}


def first(folder: Path) -> dict[str, float]:
    with Memory(folder / "long.db") as memory:
        memory.embedder.embed_query(QUERY)
        started = time.process_time()
        memory.embedder.embed_query(QUERY)
        return first_search(memory, "first", time.process_time() - started)


def stored(folder: Path) -> dict[str, float]:
    vectors = RandomVectors(Embedder.load().model_id)
    with Memory(folder / f"{time.time_ns()}.db", embedder=cast(Any, vectors)) as memory:
        fill(memory, messages(LONG, 100, 400))
        return first_search(memory, "stored", 0.0)


def first_search(memory: Memory, figure: str, embedding_cpu_s: float) -> dict[str, float]:
    started, cpu = time.perf_counter(), time.process_time() + embedding_cpu_s
    found = memory.search(QUERY, user_id=USER)
    ended, cpu = time.perf_counter(), time.process_time() - cpu
    return {
        f"{figure}_ms": (ended - started) * 1e3 - found.embed_ms,
        f"{figure}_cpu_ms": cpu * 1e3,
    }


def alone(folder: Path) -> dict[str, float]:
    return storing(folder, "alone", 1)


def together(folder: Path) -> dict[str, float]:
    return storing(folder, "together", TOGETHER)


def storing(folder: Path, figure: str, at_once: int) -> dict[str, float]:
    texts = messages(TURNS, 10, 30)
    with Memory(folder / f"{time.time_ns()}.db") as memory:
        memory.add("Hello.", user_id=USER, infer=False)
        started, cpu = time.perf_counter(), time.process_time()
        fill(memory, texts, at_once)
        taken, cpu = time.perf_counter() - started, time.process_time() - cpu
    return {f"{figure}_per_s": TURNS / taken, f"{figure}_cpu_ms": cpu / TURNS * 1e3}


def fill(memory: Memory, texts: list[dict[str, Any]], at_once: int = TOGETHER) -> None:
    for start in range(0, len(texts), at_once):
        memory.add(texts[start : start + at_once], user_id=USER, infer=False)


def demo(folder: Path) -> dict[str, float]:
    """The peak RSS of `edgemem demo`: the larger of its two processes' peaks."""
    command = [sys.executable, "-m", "edgemem", "demo", "--json"]
    # Run in another folder: -m prefers the edgemem of the current folder to that of PYTHONPATH.
    told = subprocess.run(
        command, check=True, stdout=subprocess.PIPE, encoding="utf-8", cwd=folder
    ).stdout
    return {"demo_rss_mb": float(json.loads(told)["summary"]["peak_rss_mb"])}


FIGURES = {f.__name__: f for f in (search, first, stored, alone, together, demo)}


# -- the parent ----------------------------------------------------------------------------------


def measured(checkout: Path, figure: str, folder: Path) -> dict[str, float]:
    """One figure of a checkout. Raises CalledProcessError if its process fails."""
    command = [sys.executable, __file__, "--child", figure, str(folder)]
    env = {**os.environ, "PYTHONPATH": str(checkout)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, encoding="utf-8", env=env) as process:
        assert process.stdout is not None
        told = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    found: dict[str, float] = json.loads(told.splitlines()[-1])
    if figure == "search":
        found["search_rss_mb"] = usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024) / 1e6
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--json", metavar="OUT")
    parser.add_argument("--before", type=Path, metavar="CHECKOUT")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="+", choices=FIGURES, default=list(FIGURES))
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        figure, folder = args.child
        print(json.dumps({**FIGURES, "stores": stores}[figure](Path(folder))))
        return
    here = Path(__file__).resolve().parent.parent
    checkouts = {"after": here} if args.before is None else {"before": args.before, "after": here}
    rows = []
    with tempfile.TemporaryDirectory(prefix="edgemem-light-") as folder:
        folders = {name: Path(folder, name) for name in checkouts}  # schemas differ by version
        for name, checkout in checkouts.items():
            folders[name].mkdir()
            if {"search", "first"} & set(args.only):
                measured(checkout.resolve(), "stores", folders[name])
        for figure in args.only:
            for number in range(1 if figure == "demo" else args.rounds):
                for name, checkout in checkouts.items():
                    found = measured(checkout.resolve(), figure, folders[name])
                    rows.append({"version": name, "round": number, **found})
                    print(rows[-1], file=sys.stderr)
    from bench import report  # only in the parent: it adds to RSS

    report.write(args.json, medians(rows), rows)


def medians(rows: list[dict[str, Any]]) -> dict[str, float]:
    """The median over the rounds of each figure of each version."""
    values: dict[str, list[float]] = {}
    for row in rows:
        for name in row.keys() - {"version", "round"}:
            values.setdefault(f"{row['version']}_{name}", []).append(row[name])
    return {name: round(median(some), 1) for name, some in sorted(values.items())}


if __name__ == "__main__":
    main()
