"""hnswlib or usearch? Speed, recall, memory and what a damaged file does, beside our exact scan.

    python -m bench.peers_index [--sizes 10000 100000] [--queries 400] [--json OUT]

Needs the `bench` extra. Vectors and questions are bench/synthetic.py's; one core, one thread, the
systems take turns. Each index is built with M 16 and ef_construction 100 and holds its own copy of
the vectors. Rows: for each size, system and ef_search, milliseconds for k = 10 and, where ef is
that large, k = 200; recall@10 against the exact answer, and that of the best 10 of 200 proposals
once they are scored again with the float32 vectors, as edgemem does. For each index: seconds (and
processor seconds) to build, to save and load; megabytes by its own account, in the file, and by
how much the process grew.
usearch_i8 quantises by itself (a component of 1 becomes 127, so the vectors of a text, whose
components are about 0.05, keep six levels); usearch_i8_scaled is given int8 rows that use the whole
range. edgemem means `VectorIndex`, whose file is hnswlib's with a checksum beside it.

Damage: the files of the smallest size are cut, get a page of zeros or one flipped bit, and are
loaded and asked in a process of their own. "refused": an error; "crashed": a signal; "wrong":
answers differ from those of the sound file and nothing is said; "harmless": they do not.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hnswlib
import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track
from usearch.index import Index as UsearchIndex

from bench import report
from bench.alone import grown_mb, in_turns, on_one_core, one_thread_each, percentiles, rss_mb
from bench.index_crossover import changes_of
from bench.synthetic import DIM, corpus, queries
from edgemem.kernels import scan_topk
from edgemem.kernels.reference import scan_topk as scan_topk_numpy
from edgemem.retrieval.index import EF_CONSTRUCTION, M, VectorIndex

EFS = (32, 50, 64, 100, 200, 400)
K, MANY = 10, 200
EQUAL_TO = 64  # the summary compares ef that reach hnswlib's recall at this one
STANDARD = "hnswlib"
CHILD_TIMEOUT_S = 60
_console = Console(stderr=True)

FloatArray = NDArray[np.float32]


@dataclass(frozen=True)
class Peer:
    """How one library is used. search: (index, query, k, ef) to labels, best first."""

    build: Callable[[FloatArray], Any]
    search: Callable[[Any, FloatArray, int, int], Any]
    save: Callable[[Any, str], Any]
    load: Callable[[str, FloatArray], Any]
    own_bytes: Callable[[Any], int]


def build_hnswlib(rows: FloatArray, num_threads: int = 1) -> Any:
    """A bare hnswlib index of rows 0 to n - 1."""
    index = hnswlib.Index(space="ip", dim=rows.shape[1])
    index.init_index(len(rows), M=M, ef_construction=EF_CONSTRUCTION)
    index.add_items(rows, np.arange(len(rows)), num_threads=num_threads)
    return index


def search_hnswlib(index: Any, query: FloatArray, k: int, ef: int) -> Any:
    index.set_ef(ef)
    return index.knn_query(query[None, :], k=k, num_threads=1)[0][0]


def load_hnswlib(path: str, rows: FloatArray) -> Any:
    index = hnswlib.Index(space="ip", dim=DIM)
    index.load_index(path)
    return index


def scaled_int8(rows: FloatArray) -> NDArray[np.int8]:
    """Rows whose largest component becomes ±127; only their directions are kept."""
    largest = np.abs(rows).max(axis=-1, keepdims=True)
    return np.rint(rows / largest * 127).astype(np.int8)


def build_usearch(
    rows: FloatArray, dtype: str = "f32", scaled: bool = False, threads: int = 1
) -> UsearchIndex:
    """A usearch index of rows 0 to n - 1. scaled: give it int8 rows of ours."""
    index = UsearchIndex(
        ndim=rows.shape[1],
        metric="cos" if scaled else "ip",
        dtype=dtype,
        connectivity=M,
        expansion_add=EF_CONSTRUCTION,
    )
    index.add(np.arange(len(rows)), scaled_int8(rows) if scaled else rows, threads=threads)
    return index


def search_usearch(index: UsearchIndex, query: FloatArray, k: int, ef: int) -> Any:
    index.expansion_search = ef
    return index.search(query, k, threads=1).keys


def _usearch(dtype: str, scaled: bool = False, view: bool = False) -> Peer:
    def search(index: UsearchIndex, query: FloatArray, k: int, ef: int) -> Any:
        return search_usearch(index, scaled_int8(query) if scaled else query, k, ef)

    return Peer(
        build=lambda rows: build_usearch(rows, dtype, scaled),
        search=search,
        save=lambda index, path: index.save(path),
        load=lambda path, rows: UsearchIndex.restore(path, view=view),
        own_bytes=lambda index: int(index.memory_usage),
    )


def _build_edgemem(rows: FloatArray) -> VectorIndex:
    index = VectorIndex(DIM, crossover=0)
    index.apply(changes_of(rows))
    index.build_hnsw(num_threads=1)
    return index


def _load_edgemem(path: str, rows: FloatArray) -> VectorIndex:
    index = VectorIndex(DIM, crossover=0)
    index.apply(changes_of(rows))
    if not index.load(Path(path), generation=1, model_id="synthetic"):
        raise ValueError("the file was refused; the graph would be built anew")
    return index


def _search_edgemem(index: VectorIndex, query: FloatArray, k: int, ef: int) -> Any:
    return index.view(np.ones(len(index) + 1, np.bool_)).search(query, k)[0] - 1


PEERS = {
    STANDARD: Peer(
        build=build_hnswlib,
        search=search_hnswlib,
        save=lambda index, path: index.save_index(path),
        load=load_hnswlib,
        own_bytes=lambda index: int(index.index_file_size()),
    ),
    "usearch_f32": _usearch("f32"),
    "usearch_f16": _usearch("f16"),
    "usearch_i8": _usearch("i8"),
    "usearch_i8_scaled": _usearch("i8", scaled=True),
}
DAMAGED = {
    STANDARD: PEERS[STANDARD],
    "usearch_f32": PEERS["usearch_f32"],
    "usearch_f32_view": _usearch("f32", view=True),
    "edgemem": Peer(
        build=_build_edgemem,
        search=_search_edgemem,
        save=lambda index, path: index.save(Path(path), generation=1, model_id="synthetic"),
        load=_load_edgemem,
        own_bytes=lambda index: int(index.memory_bytes()),
    ),
}


def recall(found: Sequence[Any], wanted: Sequence[Any]) -> float:
    """The share of the exact answers that were found."""
    same = [len(np.intersect1d(a, b)) / len(b) for a, b in zip(found, wanted, strict=True)]
    return round(float(np.mean(same)), 4)


def measure(n: int, count: int, seed: int, folder: Path) -> list[dict[str, Any]]:
    """The rows of one size."""
    made = corpus(n, seed=seed)
    rows, asked = made.vectors, [query.vector for query in queries(made, count, seed=seed)]
    built: dict[str, Any] = {}
    about: dict[str, dict[str, Any]] = {}
    for name, peer in track(PEERS.items(), f"building, {n:,} vectors", console=_console):
        before, start, cpu = rss_mb(), time.perf_counter(), time.process_time()
        index = built[name] = peer.build(rows)
        done, cpu = time.perf_counter(), time.process_time() - cpu
        grown, path = grown_mb(before), str(folder / f"{name}-{n}")
        began = time.perf_counter()
        peer.save(index, path)
        saved = time.perf_counter()
        peer.load(path, rows)
        about[name] = {
            "build_s": round(done - start, 2),
            "build_cpu_s": round(cpu, 2),  # to compare by: other programs are not in it
            "save_s": round(saved - began, 3),
            "load_s": round(time.perf_counter() - saved, 3),
            "file_mb": round(Path(path).stat().st_size / 1e6, 1),
            "own_mb": round(peer.own_bytes(index) / 1e6, 1),
            "rss_grown_mb": grown,
        }

    def ask(name: str, k: int, ef: int) -> Callable[[FloatArray], Any]:
        return lambda query: PEERS[name].search(built[name], query, k, ef)

    settings = [(name, ef) for name in PEERS for ef in EFS]
    calls: dict[str, Callable[[FloatArray], Any]] = {}
    for k in (K, MANY):
        calls[f"numpy {k} 0"] = lambda query, k=k: scan_topk_numpy(rows, query, k)[0]
        calls[f"exact {k} 0"] = lambda query, k=k: scan_topk(rows, query, k)[0]
        calls.update({f"{name} {k} {ef}": ask(name, k, ef) for name, ef in settings if ef >= k})
    times: dict[str, list[float]] = {name: [] for name in calls}
    answers: dict[str, list[Any]] = {name: [] for name in calls}
    block = 20
    with on_one_core():
        for start in track(range(0, count, block), f"asking, {n:,} vectors", console=_console):
            some_times, some = in_turns(calls, asked[start : start + block], block=block)
            for name in calls:
                times[name] += some_times[name]
                answers[name] += some[name]
    exact = answers[f"exact {K} 0"]
    out = []
    for name, ef in [("numpy", 0), ("exact", 0), *settings]:  # exact: our native scan
        row: dict[str, Any] = {"n": n, "system": name, "ef_search": ef or None}
        ten, many = f"{name} {K} {ef}", f"{name} {MANY} {ef}"
        row |= {**percentiles(times[ten], "k10"), "recall_at_10": recall(answers[ten], exact)}
        if many in calls:
            again = [_best(rows, q, found) for q, found in zip(asked, answers[many], strict=True)]
            row |= percentiles(times[many], "k200")
            row["rescored_recall_at_10"] = recall(again, exact)
        out.append(row | about.get(name, {"own_mb": round(rows.nbytes / 1e6, 1)}))
    return out


def _best(rows: FloatArray, query: FloatArray, found: Any) -> Any:
    """The K best of what was found, by the float32 vectors."""
    found = np.asarray(found, np.int64)
    return found[np.argsort(-(rows[found] @ query), kind="stable")[:K]]


# -- damage ------------------------------------------------------------------------------------


def damages(sound: bytes, seed: int) -> Iterator[tuple[str, Callable[[bytearray], None]]]:
    """Kinds of damage to a file, and what does it."""
    size = len(sound)
    # usearch's comes after its vectors, hnswlib's is the file's beginning.
    header = max(0, sound.find(b"usearch"))

    def cut(to: int) -> Callable[[bytearray], None]:
        return lambda data: data.__delitem__(slice(to, None))

    def zeros(at: int) -> Callable[[bytearray], None]:
        return lambda data: data.__setitem__(slice(at, at + 4096), bytes(min(4096, len(data) - at)))

    def flip(at: int, bit: int) -> Callable[[bytearray], None]:
        return lambda data: data.__setitem__(at, data[at] ^ 1 << bit)

    rng = np.random.default_rng(seed)
    for to in (0, 50, size // 2, size - 4096, size - 1):
        yield "cut", cut(to)
    for at in rng.integers(size // 4096, size=10).tolist():
        yield "page of zeros", zeros(at * 4096)
    for at in rng.integers(64, size=16).tolist():
        yield "bit of the header", flip(header + at, int(rng.integers(8)))
    for at in rng.integers(size, size=40).tolist():
        yield "bit anywhere", flip(at, int(rng.integers(8)))


def damage_rows(n: int, seed: int, folder: Path) -> list[dict[str, Any]]:
    """What became of each damaged file: one row for each system and kind of damage."""
    made = corpus(n, seed=seed)
    np.save(folder / "rows.npy", made.vectors)
    np.save(folder / "asked.npy", np.stack([q.vector for q in queries(made, 50, seed=seed)]))
    rows = []
    for name, peer in DAMAGED.items():
        path = folder / name
        peer.save(peer.build(made.vectors), str(path))
        sound = path.read_bytes()
        wanted = _child(name, path)
        if wanted[0] != "answered":
            raise SystemExit(f"{name} does not read its own sound file: {wanted[1]}")
        ends: dict[str, Counter[str]] = {}
        said: dict[str, str] = {}
        every = list(damages(sound, seed))
        for kind, harm in track(every, f"damaged files, {name}", console=_console):
            data = bytearray(sound)
            harm(data)
            path.write_bytes(data)
            end, told = _child(name, path)
            if end == "answered":
                end = "harmless" if told == wanted[1] else "wrong"
            elif end in ("refused", "crashed"):
                said[kind] = told.splitlines()[-1][:120] if told else ""
            ends.setdefault(kind, Counter())[end] += 1
        path.unlink()
        for kind, counted in ends.items():
            rows.append({"system": name, "damage": kind, **counted, "said": said.get(kind)})
    return rows


def _child(name: str, path: Path) -> tuple[str, str]:
    """Load a file and ask it in another process: how that ended, and what it printed."""
    command = [sys.executable, "-m", "bench.peers_index", "--child", name, str(path)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=CHILD_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return "hung", ""
    if done.returncode < 0:
        return "crashed", f"signal {-done.returncode}"
    return ("refused", done.stderr) if done.returncode else ("answered", done.stdout)


def child(name: str, path: Path) -> None:
    """Print the answers of one file to the questions beside it."""
    peer, folder = DAMAGED[name], path.parent
    index = peer.load(str(path), np.load(folder / "rows.npy"))
    for query in np.load(folder / "asked.npy"):
        print(np.asarray(peer.search(index, query, K, EQUAL_TO)).tolist())


def equal_recall(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """For each size and system, the smallest ef that finds as much as hnswlib's at 64."""
    out = []
    for n in sorted({row["n"] for row in rows}):
        own = [row for row in rows if row["n"] == n and row["ef_search"] is not None]
        least = next(
            row["recall_at_10"]
            for row in own
            if (row["system"], row["ef_search"]) == (STANDARD, EQUAL_TO)
        )
        for name in PEERS:
            # Recall that differs by one answer in a thousand is no difference.
            enough = [
                row for row in own if row["system"] == name and row["recall_at_10"] >= least - 1e-3
            ]
            best = min(enough, key=lambda row: row["ef_search"], default=None)
            keys = ("ef_search", "k10_ms_p50", "recall_at_10")
            shown = {key: best[key] if best else None for key in keys}
            out.append({"n": n, "system": name, **shown})
    return out


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.peers_index", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--sizes", type=int, nargs="+", default=[10_000, 100_000], metavar="N")
    parser.add_argument("--queries", type=int, default=400, metavar="N")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-damage", action="store_true", help="leave out the damaged files")
    parser.add_argument("--json", default="-", metavar="OUT", help="a file (default: stdout)")
    parser.add_argument("--child", nargs=2, metavar=("SYSTEM", "FILE"), help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.child:
        child(options.child[0], Path(options.child[1]))
        return
    if min(options.sizes) < MANY or options.queries < 1:
        parser.error(f"--sizes must be {MANY} or more, --queries 1 or more")
    one_thread_each("bench.peers_index")
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as scratch:
        for n in sorted(options.sizes):
            rows += measure(n, options.queries, options.seed, Path(scratch))
        damaged = []
        if not options.no_damage:
            damaged = damage_rows(min(options.sizes), options.seed, Path(scratch))
    summary = {
        "dim": DIM,
        "M": M,
        "ef_construction": EF_CONSTRUCTION,
        "queries": options.queries,
        "equal_recall": equal_recall(rows),
    }
    report.write(options.json, summary, [*rows, *damaged])


if __name__ == "__main__":
    main()
