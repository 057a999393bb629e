"""The vector index: a scan, and an HNSW graph above the size at which that is faster.

The only importer of hnswlib, whose index this module calls the graph. The graph holds copies of the
table's vectors and is dropped if one of them changes. So it can make an answer incomplete, but
never wrong. Where it proposes too few memories, the exact scan answers. int8 vectors get no graph,
because hnswlib would store them as floats.

The graph only grows and may lag behind the table. Rows newer than its last label are scanned, and
removed rows (ghosts) are filtered out of its proposals; with too many of them it is rebuilt. Of
equal vectors ("ok", "thanks") it holds only the first COPIES, as they would fill each other's lists
of neighbours, and other rows would no longer be reached. The rest are scanned, too. hnswlib must
not be searched while rows are added: `_graph_lock` prevents that, and a search that does not get
the lock within GRAPH_WAIT_S scans instead.

Source: Malkov and Yashunin 2018 (HNSW), as hnswlib 0.8.0 has it. Departs from it in never using its
deletion marks: a search must see one state of the store, so it filters by its own view.
"""

from __future__ import annotations

import logging
import math
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from edgemem import cachefile
from edgemem.kernels import BoolArray, FloatArray, IntArray, dots, scan_topk
from edgemem.retrieval.vectors import Dtype, Rows, TableView, VectorTable
from edgemem.vault import Vault

if TYPE_CHECKING:
    from edgemem.store import Changes

log = logging.getLogger(__name__)

__all__ = ["CROSSOVER", "IndexView", "Method", "VectorIndex"]


Method = Literal["exact", "hnsw", "int8"]

CROSSOVER = 20_000
"""Vectors up to which the exact scan answers. Measured: bench/index_crossover.py, bench/LOG.md."""

M, EF_CONSTRUCTION = 16, 100  # of HNSW
MAX_GHOST_SHARE = 0.25
MAX_TAIL = 1024  # rows newer than the graph that are scanned until a build adds them
MAX_PROPOSALS = 1024  # asking the graph for more is slower than scanning
COPIES = 4  # of one vector in the graph
CHUNK = 256  # rows added at a time; between chunks a build can stop and searches can run
GRAPH_WAIT_S = 0.005
SAMPLE = 512  # vectors of a loaded graph that are compared with the store's


@dataclass(eq=False)
class _Graph:
    """An hnswlib index of `count` rows: the rows up to `last_label` that were live, less `copies`.

    copies: the labels, ascending, of rows whose vector the graph already had COPIES times.
    """

    index: Any
    last_label: int
    count: int
    epoch: int
    copies: IntArray


@dataclass(frozen=True, slots=True)
class IndexView:
    """An index at one instant, for one search. See `VectorIndex.view`."""

    _index: VectorIndex
    table: TableView
    _graph: _Graph | None
    _last_label: int
    _copies: IntArray

    def search(self, query: FloatArray, k: int) -> tuple[IntArray, FloatArray, Method]:
        """The k best memories; a memory's score is that of its best vector.

        query: (dim,) float32, finite. Returns rowids (m,) int64 and scores (m,) float32, m <= k,
        best first, equal ones by age, and the method used. "hnsw" may miss some; "int8" scores
        rounded vectors and may miss some of the lowest ranks. Raises ValueError on a wrong shape or
        k < 1.
        """
        query = self._index._check_query(query, k)
        if self._graph is not None and self.table.count > self._index.crossover:
            found = self._search_graph(self._graph, query, k)
            if found is not None:
                return (*found, "hnsw")
        found = _best_memories(self.table, query, k)
        return (*found, "exact" if self._index.dtype == "float32" else "int8")

    def _search_graph(
        self, graph: _Graph, query: FloatArray, k: int
    ) -> tuple[IntArray, FloatArray] | None:
        """The k best among the graph's proposals and the rows it lacks; None: scan instead."""
        view = self.table
        upto = int(np.searchsorted(view.labels, self._last_label, "right"))
        tail = np.flatnonzero(view.allowed[upto:]) + upto
        if len(self._copies):
            older = _slots_of(self._copies, view.labels[:upto])
            tail = np.concatenate([older[view.allowed[older]], tail])
        share = (view.count - len(tail)) / max(1, graph.count)
        if share == 0:
            return None
        # The fewer of the graph's rows are allowed, the less evenly these lie around the query: ask
        # for more.
        wanted = int(min(k, MAX_PROPOSALS) * (1.5 - 0.5 * share) / share)
        if share < 1 or view.repeats:
            wanted += 16
        while wanted <= min(MAX_PROPOSALS, graph.count):
            if (proposed := self._index._neighbours(graph, query, wanted)) is None:
                return None
            labels, scores = proposed
            slots = np.minimum(np.searchsorted(view.labels[:upto], labels), upto - 1)
            held = (view.labels[slots] == labels) & view.allowed[slots]
            slots, scores = slots[held], scores[held]
            ids, scores = _first_of_each(view.rowids[slots], scores)
            if len(ids) >= k:
                if len(tail):
                    ids = np.append(ids, view.rowids[tail])
                    scores = np.append(scores, dots(view.rows.values, tail, query[None])[:, 0])
                    best = np.argsort(-scores, kind="stable")
                    ids, scores = _first_of_each(ids[best], scores[best])
                return ids[:k], scores[:k]
            wanted *= 4
        return None


class VectorIndex:
    """The vectors of one store, searchable from several threads.

    dim: numbers in a vector. dtype: how they are stored, see vectors.py. ef_search: as in HNSW.
    crossover: above this many candidates the graph is asked. Vectors should have length 1, as the
    score is the inner product.
    """

    def __init__(
        self,
        dim: int,
        dtype: Dtype = "float32",
        *,
        ef_search: int = 160,
        crossover: int = CROSSOVER,
    ) -> None:
        self.dim = dim
        self.dtype = dtype
        self.generation = 0  # of the store, as of the last `apply`
        self.crossover = crossover
        self._parameters = {"dim": dim, "M": M, "ef_construction": EF_CONSTRUCTION}
        self._ef_search = ef_search
        # Lock order: acquire these from top to bottom.
        self._build_lock = threading.Lock()  # one build, save or load at a time
        self._graph_lock = threading.Lock()  # while hnswlib reads its data or adds to it
        self._lock = threading.Lock()  # the fields below; held for microseconds to milliseconds
        self._table = VectorTable(dim, dtype)
        self._graph: _Graph | None = None
        self._worker: threading.Thread | None = None
        self._worker_failed = False  # if true, no worker is started again
        self._closed = False
        # The graph last found up to date, its rows then, and the generation.
        self._up_to_date: tuple[_Graph, int, int] | None = None

    def __len__(self) -> int:
        """Live vectors."""
        with self._lock:
            return self._table.live_count

    def memory_bytes(self) -> int:
        """Bytes held by the vectors, their columns and the graph."""
        with self._lock:
            total, graph = self._table.memory_bytes(), self._graph
        if graph is not None:
            with self._graph_lock:
                total += int(graph.index.index_file_size())
        return total

    def apply(self, changes: Changes) -> None:
        """Apply the store's changes. A search sees all of them or none.

        Changes older than the index's generation are ignored, unless they are full: a backup may
        have been restored. Raises ValueError if the vectors have another dimension.
        """
        with self._lock:
            if changes.generation < self.generation and not changes.full:
                return
            self._table.apply(changes)
            self.generation = changes.generation
            if self._graph is not None and self._graph.epoch != self._table.epoch:
                self._graph = None

    def exact_search(
        self, query: FloatArray, k: int, allowed: BoolArray
    ) -> tuple[IntArray, FloatArray]:
        """As `IndexView.search`, always by scanning: the reference for the graph's recall."""
        query = self._check_query(query, k)
        with self._lock:
            table = self._table.view(allowed)
        return _best_memories(table, query, k)

    def view(self, allowed: BoolArray | TableView) -> IndexView:
        """A snapshot of the index for one search.

        allowed: (m,) bool by memory number, which memories may be found; m must exceed the highest
        number applied. Or the `table` of an earlier view, if nothing was applied since. Above
        `crossover` live vectors, a view lets another thread build the graph that is missing.
        """
        with self._lock:
            graph = self._graph
            # Read together with the table: rows that the graph takes in later are scanned.
            last_label = graph.last_label if graph is not None else -1
            copies = graph.copies if graph is not None else np.empty(0, np.int64)
            if self._wants_graph():
                self._start_worker_if_behind()
            table = allowed if isinstance(allowed, TableView) else self._table.view(allowed)
            return IndexView(self, table, graph, last_label, copies)

    def table(self) -> TableView:
        """A snapshot of all live vectors, for computations other than a search."""
        with self._lock:
            return self._table.view(None)

    def build_hnsw(self, *, num_threads: int = -1) -> bool:
        """Bring the graph up to date now, in this thread: seconds for each 10,000 vectors.

        num_threads: -1 for all cores. Returns whether a graph now holds every live vector: not if
        dtype is int8, no vector is live, or `close` or a changed vector interrupted it.
        """
        if self.dtype == "int8":
            return False
        with self._build_lock:
            return self._build(anew=False, num_threads=num_threads, stop=lambda: self._closed)

    def close(self) -> None:
        """Stop a build in another thread and wait for it. Searches still work afterwards."""
        with self._lock:
            self._closed = True
            worker = self._worker
        if worker is not None:
            worker.join()

    def save(
        self, path: Path, *, generation: int, model_id: str, vault: Vault | None = None
    ) -> bool:
        """Write the graph as a cache file that holds no removed vector; may build it first.

        generation: the store's, which this index must have applied. vault: seals the file. Returns
        whether a file was written: not if there are too few vectors (an older file is removed), the
        store moved on, `close` was called, or the disk failed. Never raises OSError.
        """
        with self._build_lock:
            with self._lock:
                wanted = self._wants_graph()
                ghosts = self._graph is not None and self._lag(self._graph)[0] > 0
                current = self.generation == generation
            try:
                if not wanted:
                    cachefile.discard(path)
                    return False
                if not current:
                    return False
                built = self._build(anew=ghosts, num_threads=-1, stop=lambda: self._closed)
                return built and self._write(path, generation, model_id, vault)
            except OSError as exc:
                log.warning("the index file %s was not written: %s", path, exc)
                return False

    def load(
        self, path: Path, *, generation: int, model_id: str, vault: Vault | None = None
    ) -> bool:
        """Load the graph from a cache file. Call it after `apply`, with the store's generation.

        Returns False and changes nothing if the file is missing, damaged, of another model, store
        or parameters, of a later generation, lacks a live vector, or holds too many removed ones.
        Never raises, and never lets hnswlib read a file whose checksum is wrong.
        """
        with self._build_lock:
            with self._lock:
                if not self._wants_graph():
                    return False
                table = self._table.view(None)
                graph = _Graph(_new_hnswlib(self.dim), -1, 0, self._table.epoch, table.labels[:0])
            wanted = {**self._parameters, "model_id": model_id, "generation": generation}
            stamp = cachefile.stamp_for(path, wanted)
            if stamp is None:
                return False
            try:
                graph.count, graph.last_label = int(stamp["count"]), int(stamp["last_label"])
                with cachefile.readable(path, vault) as name:
                    graph.index.load_index(name, max_elements=graph.count + MAX_TAIL)
                copies = _lacking_copies(graph, table)
                if copies is None:
                    return False
                graph.copies = copies
            except Exception:
                log.warning("the index file %s was refused", path, exc_info=True)
                return False
            with self._lock:
                if self._table.epoch != graph.epoch:
                    return False
                self._graph = graph
            return True

    def _check_query(self, query: FloatArray, k: int) -> FloatArray:
        query = np.ascontiguousarray(query, np.float32)
        if query.shape != (self.dim,):
            raise ValueError(f"query has shape {query.shape}; this index needs ({self.dim},)")
        # The product is quicker to check, and finite for any vector of a reasonable length.
        if not math.isfinite(query.dot(query)) and not np.isfinite(query).all():
            raise ValueError("query holds a NaN or an infinity")
        if k < 1:
            raise ValueError(f"k is {k}; it must be 1 or more")
        return query

    def _neighbours(
        self, graph: _Graph, query: FloatArray, k: int
    ) -> tuple[IntArray, FloatArray] | None:
        """The labels and scores of the graph's k nearest rows, nearest first, equal ones by label.

        None if rows are being added to the graph, or it finds fewer than k.
        """
        if not self._graph_lock.acquire(timeout=GRAPH_WAIT_S):
            return None
        try:
            # hnswlib does not save ef in its file, and ef must be at least k.
            graph.index.set_ef(max(self._ef_search, k))
            labels, distances = graph.index.knn_query(query[None, :], k=k, num_threads=1)
        except RuntimeError:  # "Cannot return the results": it found fewer than asked for
            return None
        finally:
            self._graph_lock.release()
        return labels[0].astype(np.int64), 1 - distances[0]

    def _wants_graph(self) -> bool:
        """The caller holds `_lock`."""
        return self.dtype == "float32" and self._table.live_count > self.crossover

    def _lag(self, graph: _Graph) -> tuple[int, int]:
        """How many rows of the graph are no longer live, and how many live rows are newer than it.

        The caller holds `_lock`.
        """
        labels, live = self._table.column("labels"), self._table.column("live")
        upto = int(np.searchsorted(labels, graph.last_label, "right"))
        older = np.count_nonzero(live[:upto]) - np.count_nonzero(
            live[_slots_of(graph.copies, labels[:upto])]
        )
        return graph.count - int(older), int(np.count_nonzero(live[upto:]))

    def _start_worker_if_behind(self) -> None:
        """The caller holds `_lock`."""
        if self._worker is not None or self._worker_failed or self._closed:
            return
        graph = self._graph
        if graph is not None:
            if self._up_to_date == (graph, graph.count, self.generation):
                return
            ghosts, tail = self._lag(graph)
            if tail <= MAX_TAIL and ghosts <= MAX_GHOST_SHARE * graph.count:
                self._up_to_date = (graph, graph.count, self.generation)
                return
        # Not a daemon: the interpreter would kill it inside C++. It stops when the program ends.
        worker = threading.Thread(target=self._work, name="edgemem-hnsw")
        with suppress(RuntimeError):  # no more threads, or the program is ending: keep scanning
            worker.start()
            self._worker = worker

    def _work(self) -> None:
        try:
            with self._build_lock:
                # One thread: a chat may be running meanwhile.
                alive = threading.main_thread().is_alive
                self._build(anew=False, num_threads=1, stop=lambda: self._closed or not alive())
        except Exception:
            log.warning("the HNSW graph could not be built; scanning goes on", exc_info=True)
            self._worker_failed = True
        finally:
            with self._lock:
                self._worker = None

    def _build(self, *, anew: bool, num_threads: int, stop: Callable[[], bool]) -> bool:
        """Build the graph or add what it lacks. The caller holds `_build_lock`."""
        with self._lock:
            graph = self._graph
            if graph is not None and (anew or self._lag(graph)[0] > MAX_GHOST_SHARE * graph.count):
                graph = None
            table, epoch = self._table, self._table.epoch
            labels, rows = table.column("labels"), table.rows
            slots = np.flatnonzero(table.column("live"))
        copy = _are_copies(rows, slots, COPIES)
        if graph is not None:
            newer = labels[slots] > graph.last_label
            slots, copy = slots[newer], copy[newer]
        copies, slots = labels[slots[copy]], slots[~copy]
        private = graph is None
        if graph is None:
            if not len(slots):
                return False
            index = _new_hnswlib(self.dim)
            index.init_index(len(slots) + MAX_TAIL, M=M, ef_construction=EF_CONSTRUCTION)
            graph = _Graph(index, -1, 0, epoch, copies)
        else:
            with self._lock:
                graph.copies = np.concatenate([graph.copies, copies])
            with self._graph_lock:
                if graph.count + len(slots) > graph.index.get_max_elements():
                    graph.index.resize_index(graph.count + max(len(slots), graph.count // 4))
        for start in range(0, len(slots), CHUNK):
            if stop():
                return False
            chunk = slots[start : start + CHUNK]
            with nullcontext() if private else self._graph_lock:
                graph.index.add_items(rows.floats(chunk), labels[chunk], num_threads=num_threads)
            with self._lock:
                graph.last_label = int(labels[chunk[-1]])
                graph.count += len(chunk)
        with self._lock:
            if self._table.epoch != epoch:
                return False
            if len(copies):
                graph.last_label = max(graph.last_label, int(copies[-1]))
            self._graph = graph
        return True

    def _write(self, path: Path, generation: int, model_id: str, vault: Vault | None) -> bool:
        """Write the graph as it is. The caller holds `_build_lock`, so nothing is added to it."""
        with self._lock:
            graph = self._graph
        if graph is None:
            return False
        with self._graph_lock:
            index = graph.index
            temporary, stamp = cachefile.write_temporary(
                path, index.save_index, int(index.index_file_size()), vault
            )
        stamp.update(
            self._parameters,
            generation=generation,
            model_id=model_id,
            count=graph.count,
            last_label=graph.last_label,
        )
        with self._lock:
            # A vector that was erased meanwhile must not come back with the file.
            if self.generation != generation:
                temporary.unlink(missing_ok=True)
                return False
            cachefile.publish(temporary, path, stamp)
        return True


def _lacking_copies(graph: _Graph, table: TableView) -> IntArray | None:
    """The labels of the table's rows that a loaded graph lacks because they are copies.

    None if the graph is not of this table: it lacks another row, or holds too many removed ones, or
    some vectors differ. Those of a restored backup differ at the end.
    """
    labels = table.labels
    ids = np.sort(np.asarray(graph.index.get_ids_list(), np.int64))
    slots = np.flatnonzero(table.live[: np.searchsorted(labels, graph.last_label, "right")])
    held = np.isin(labels[slots], ids)
    copies = labels[slots[~held]]
    if (
        len(ids) != graph.count
        or ids[-1] > graph.last_label
        or np.count_nonzero(held) < (1 - MAX_GHOST_SHARE) * graph.count
        or not (held.all() or (held | _are_copies(table.rows, slots, 1)).all())
    ):
        return None
    slots = slots[held]
    spread = np.linspace(0, len(slots) - 1, SAMPLE).astype(np.int64)
    some = slots[np.union1d(spread, np.arange(len(slots))[-SAMPLE:])]
    equal = np.array_equal(graph.index.get_items(labels[some]), table.rows.floats(some))
    return copies if equal else None


def _are_copies(rows: Rows, slots: IntArray, first: int) -> BoolArray:
    """Which of the rows equal `first` or more of those before them, by their hashes."""
    seen: Counter[int] = Counter()
    copies = np.zeros(len(slots), np.bool_)
    for start in range(0, len(slots), CHUNK):
        for i, row in enumerate(rows.floats(slots[start : start + CHUNK]), start):
            code = hash(row.tobytes())
            copies[i] = seen[code] >= first
            seen[code] += 1
    return copies


def _slots_of(some: IntArray, labels: IntArray) -> IntArray:
    """The positions of the labels `some` in `labels`, without the missing ones. Both ascend."""
    slots = np.searchsorted(labels, some)
    slots, some = slots[slots < len(labels)], some[slots < len(labels)]
    held: IntArray = slots[labels[slots] == some]
    return held


def _new_hnswlib(dim: int) -> Any:
    import hnswlib  # late: most stores stay below the crossover and never need it

    return hnswlib.Index(space="ip", dim=dim)


def _best_memories(table: TableView, query: FloatArray, k: int) -> tuple[IntArray, FloatArray]:
    """The k memories with the best vectors, by scanning. Asks for more rows if memories repeat."""
    rows, wanted = table.rows, k
    while True:
        positions, scores = scan_topk(rows.values, query, wanted, table.allowed, rows.scales)
        ids, scores = _first_of_each(table.rowids[positions], scores)
        if len(ids) >= k or len(positions) < wanted:
            return ids[:k], scores[:k]
        wanted *= 4


def _first_of_each(ids: IntArray, scores: FloatArray) -> tuple[IntArray, FloatArray]:
    """Memories and scores, which come best first, without a memory's later occurrences."""
    if len(set(ids.tolist())) == len(ids):  # the usual case, and quicker than sorting
        return ids, scores
    first = np.sort(np.unique(ids, return_index=True)[1])
    return ids[first], scores[first]
