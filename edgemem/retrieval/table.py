"""The vectors of a store in memory.

Knows arrays only: no locks (retrieval/index.py holds them), no HNSW, no SQL, of a memory its
number, and not in which of the ways of retrieval/rows.py its vectors are held. A row is one vector;
a memory with a long text has several. Rows are kept by ascending label. A removed row stays, marked
as not live, until a quarter of all rows are such; then the live ones are copied together.

Arrays that a search may still be reading are only ever appended to, or replaced by a copy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from edgemem.retrieval.rows import Dtype, Rows, rows_type
from edgemem.retrieval.whitening import Vectors

if TYPE_CHECKING:
    from edgemem.store import Changes

__all__ = ["VectorTable", "View"]

FloatArray = NDArray[np.float32]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]

MAX_DEAD_SHARE = 0.25
NOWHERE = -1

# The columns beside those of the vectors, and what each element is.
# next: where the memory's next vector is, NOWHERE after its last one.
COLUMNS: dict[str, type] = {
    "labels": np.int64,
    "rowids": np.int64,
    "next": np.int64,
    "live": np.bool_,
}


@dataclass(frozen=True, slots=True)
class View:
    """What one search sees, whatever happens to the table meanwhile.

    rows: n vectors. labels, rowids: (n,). allowed: (n,) bool, what it may find, of what is `live`;
    count: how many that are. repeats: whether a memory may have several vectors.
    """

    rows: Rows
    labels: IntArray
    rowids: IntArray
    allowed: BoolArray
    count: int
    live: BoolArray
    repeats: bool
    _next: IntArray
    _first: IntArray

    def vectors(self, of: BoolArray | None) -> Vectors:
        """The live vectors of some memories, (m,) bool by memory number; None: of all."""
        mine = self.live if of is None else self.live & of[self.rowids]
        positions = np.flatnonzero(mine)
        return Vectors(self.rows, positions, self.labels[positions])

    def similarities(
        self,
        memories: IntArray,
        columns: int,
        query: FloatArray,
        *,
        offset: float = 0.0,
        scale: float = 1.0,
        limit: float = np.inf,
    ) -> FloatArray:
        """As `kernels.similarities`, of the memories (m, w) with these numbers."""
        return self.rows.similarities(
            self._first, self._next, memories, columns, query, offset, scale, limit
        )


class VectorTable:
    """See the module. dim: numbers in a vector. Raises ValueError on an unknown dtype."""

    def __init__(self, dim: int, dtype: Dtype = "float32") -> None:
        self.dim = dim
        self._type = rows_type(dtype)
        self.size = 0  # rows in use, live or not
        self.live_count = 0
        # Grows when a label got another vector, came back or came out of order: no graph of
        # before may be used then.
        self.epoch = 0
        # Grows when rows moved to other positions.
        self.moves = 0
        self._highest_label = -1  # ever held
        self._repeats = False  # whether a memory has had several vectors
        self._first = np.empty(0, np.int64)  # of each memory number, its first vector's position
        vectors = self._type.of(np.empty((0, dim), np.float32)).columns()
        self._of_vectors = tuple(vectors)  # the names of their columns
        self._column: dict[str, NDArray[Any]] = {
            **vectors,
            **{name: np.empty(0, dtype) for name, dtype in COLUMNS.items()},
        }

    @property
    def rows(self) -> Rows:
        """The vectors in use."""
        return self._type(*(self.column(name) for name in self._of_vectors))

    def column(self, name: str) -> NDArray[Any]:
        """A column's rows in use."""
        return self._column[name][: self.size]

    def memory_bytes(self) -> int:
        return sum(column.nbytes for column in self._column.values()) + self._first.nbytes

    def apply(self, changes: Changes) -> None:
        """Take in what a store changed. Applying the same changes twice changes nothing.

        Raises ValueError if the vectors have another dimension or the columns differ in length.
        """
        new = self._columns_of(changes)
        labels = new["labels"]
        held = np.isin(self.column("labels"), labels)
        if changes.full:
            gone = ~held
        else:
            touched = np.concatenate([np.asarray(changes.removed_rowids), new["rowids"]])
            gone = np.isin(self.column("rowids"), touched) & ~held
        left = np.unique(self.column("rowids")[gone & self.column("live")])
        self.column("live")[gone] = False

        moved = False
        slots = np.flatnonzero(held)
        if len(slots):
            source = np.searchsorted(labels, self.column("labels")[slots])
            moved = self._overwrite(slots, new, source)
            moved |= bool(np.isin(self.column("rowids")[slots], left).any())
            fresh = ~np.isin(labels, self.column("labels"))
            new = {name: column[fresh] for name, column in new.items()}
        start = self.size
        if len(new["labels"]):
            in_order = not self.size or new["labels"][0] > self.column("labels")[-1]
            # Also one that is no longer held: a graph may have it, with its vector of then.
            if new["labels"][0] <= self._highest_label:
                self.epoch += 1
            self._highest_label = max(self._highest_label, int(new["labels"][-1]))
            self._append(new)
            if not in_order:
                self._take(np.argsort(self.column("labels"), kind="stable"))
                moved = True
        self.live_count = int(np.count_nonzero(self.column("live")))
        if self.size - self.live_count > MAX_DEAD_SHARE * self.size:
            self._take(np.flatnonzero(self.column("live")))
            moved = True
        self._link(0 if moved else start, left)

    def view(self, allowed: BoolArray | None) -> View:
        """The live rows of the memories that are allowed: (m,) bool by memory number, m large
        enough for every memory held; None: of all."""
        rowids, live = self.column("rowids"), self.column("live").copy()
        allowed = live if allowed is None else live & allowed[rowids]
        return View(
            self.rows,
            self.column("labels"),
            rowids,
            allowed,
            int(np.count_nonzero(allowed)),
            live,
            self._repeats,
            self.column("next"),
            self._first,
        )

    def _columns_of(self, changes: Changes) -> dict[str, NDArray[Any]]:
        """The changes as columns of ours, by ascending label."""
        n = len(changes.labels)
        vectors = np.asarray(changes.vectors, np.float32)
        if n == 0:
            vectors = vectors.reshape(0, self.dim)
        if vectors.shape != (n, self.dim):
            raise ValueError(
                f"vectors of shape {vectors.shape} for {n} labels; this index holds "
                f"{self.dim} numbers a vector, so ({n}, {self.dim}) is needed"
            )
        new: dict[str, NDArray[Any]] = {
            **self._type.of(vectors).columns(),
            "labels": np.asarray(changes.labels, np.int64),
            "rowids": np.asarray(changes.owners, np.int64),
            "next": np.full(n, NOWHERE, np.int64),
            # A vector with a NaN or an infinity in it has no nearest neighbours.
            "live": np.asarray(np.isfinite(vectors).all(axis=1), np.bool_),
        }
        for name, column in new.items():
            if len(column) != n:
                raise ValueError(f"{name} has {len(column)} entries for {n} labels")
        order = np.argsort(new["labels"], kind="stable")
        if np.any(np.diff(new["labels"][order]) == 0):
            raise ValueError("a label occurs twice in one set of changes")
        if np.array_equal(order, np.arange(n)):
            return new
        return {name: column[order] for name, column in new.items()}

    def _overwrite(self, slots: IntArray, new: dict[str, NDArray[Any]], source: IntArray) -> bool:
        """Bring rows that are held already up to date; their vectors hardly ever differ.

        Returns whether one has another owner now, or came back.
        """
        same_owner = np.array_equal(self.column("rowids")[slots], new["rowids"][source])
        if not same_owner or not all(
            np.array_equal(self.column(name)[slots], new[name][source], equal_nan=True)
            for name in self._of_vectors
        ):
            self.epoch += 1
            for name in (*self._of_vectors, "rowids"):
                self._column[name] = self._column[name].copy()
                self._column[name][slots] = new[name][source]
        came_back = bool(np.any(new["live"][source] & ~self.column("live")[slots]))
        if came_back:
            self.epoch += 1  # a graph may have been built without it
        self._column["live"][slots] = new["live"][source]
        return came_back or not same_owner

    def _append(self, new: dict[str, NDArray[Any]]) -> None:
        size = self.size + len(new["labels"])
        if size > len(self._column["labels"]):
            # Doubling from the start, by a half later: 100,000 vectors are 150 MB.
            room = max(64, size, self.size * 2 if self.size < 10_000 else self.size * 3 // 2)
            for name, column in self._column.items():
                grown = np.empty((room, *column.shape[1:]), column.dtype)
                grown[: self.size] = column[: self.size]
                self._column[name] = grown
        for name, column in new.items():
            self._column[name][self.size : size] = column
        self.size = size

    def _take(self, slots: IntArray) -> None:
        """Keep these rows, in this order, in new arrays."""
        self._column = {name: self.column(name)[slots] for name in self._column}
        self.size = len(slots)
        self.live_count = int(np.count_nonzero(self.column("live")))
        self.moves += 1

    def _link(self, start: int, left: IntArray) -> None:
        """Chain the live rows from `start` on by their memory; 0: all anew, in new arrays.

        left: memories of which every row from before `start` is gone.
        """
        at = np.flatnonzero(self.column("live")[start:]) + start
        rowids = self.column("rowids")[at]
        room = max(len(self._first), int(rowids.max(initial=-1)) + 1)
        if start == 0 or len(left) or room > len(self._first):
            first = np.full(room if room == len(self._first) else room * 9 // 8, NOWHERE, np.int64)
            if start:
                first[: len(self._first)] = self._first
                first[left] = NOWHERE
            self._first = first
        if start and np.any(self._first[rowids] != NOWHERE):
            return self._link(0, left)  # a memory got more rows, and keeps those it had
        if start == 0:
            self._column["next"] = np.full(len(self._column["next"]), NOWHERE, np.int64)
        # By memory, and within one by position: each row's successor is the one after it.
        order = np.lexsort((at, rowids))
        at, rowids = at[order], rowids[order]
        same = rowids[1:] == rowids[:-1]
        self._column["next"][at[:-1][same]] = at[1:][same]
        self._repeats |= bool(same.any())
        leads = np.concatenate([np.ones(min(1, len(at)), np.bool_), ~same])
        self._first[rowids[leads]] = at[leads]
