"""The vectors of a store in memory, and the growing arrays (`Columns`) that all of retrieval uses.

Vectors are float32, or int8 with a scale for each row, d + 4 bytes in place of 4·d. A scan of int8
rounds the query too; its best 4·k rows are scored again with the query in floats. The store keeps
the floats.

A row is one vector; a memory with a long text has several. Rows are sorted by label. A removed row
stays, marked as not live, until more than a quarter of all rows are dead; then the live rows are
copied into new arrays. No locks: retrieval/index.py holds them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from edgemem.kernels import BoolArray, FloatArray, IntArray, quantize_i8

if TYPE_CHECKING:
    from edgemem.store import Changes

__all__ = ["Columns", "Dtype", "Rows", "TableView", "VectorSubset", "VectorTable"]


Dtype = Literal["float32", "int8"]

MAX_DEAD_SHARE = 0.25
NOWHERE = -1

# The columns of a table, beside the arrays of `Rows`.
COLUMNS: dict[str, type] = {"labels": np.int64, "rowids": np.int64, "live": np.bool_}


class Columns:
    """Named arrays of one length that grow together, with room to spare so that appending is cheap.

    A search may still be reading a slice that it took, so entries are only appended, or a column is
    replaced by a copy. dtypes: of the columns. arrays: further columns, given as empty arrays that
    set their dtype and shape. spare: a full column grows by 1 / spare of its length.
    """

    def __init__(
        self,
        dtypes: Mapping[str, type],
        arrays: Mapping[str, NDArray[Any]] | None = None,
        *,
        spare: int = 8,
    ) -> None:
        self.size = 0
        self._spare = spare
        self._arrays: dict[str, NDArray[Any]] = {n: np.empty(0, d) for n, d in dtypes.items()}
        self._arrays |= arrays or {}

    def __getitem__(self, name: str) -> NDArray[Any]:
        """The part of a column that is in use."""
        return self._arrays[name][: self.size]

    def grow(self, by: int) -> None:
        """Append `by` entries without values; the caller writes them."""
        size = self.size + by
        if size > len(next(iter(self._arrays.values()))):
            room = max(64, size, self.size + self.size // self._spare)
            for name, array in self._arrays.items():
                grown = np.empty((room, *array.shape[1:]), array.dtype)
                grown[: self.size] = array[: self.size]
                self._arrays[name] = grown
        self.size = size

    def append(self, entries: Mapping[str, NDArray[Any]]) -> None:
        """Append entries to every column. Into empty columns, the arrays are taken uncopied."""
        if self.size == 0:
            self._arrays = {name: entries[name] for name in self._arrays}
            self.size = len(next(iter(self._arrays.values())))
            return
        start = self.size
        self.grow(len(next(iter(entries.values()))))
        for name, values in entries.items():
            self[name][start:] = values

    def replace(self, name: str) -> NDArray[Any]:
        """Replace a column by a copy, and return the copy. Older slices keep the old array."""
        self._arrays[name] = self._arrays[name].copy()
        return self[name]

    def take(self, entries: IntArray | BoolArray) -> None:
        """Keep these entries, in this order, in new arrays."""
        self._arrays = {name: self[name][entries] for name in self._arrays}
        self.size = len(next(iter(self._arrays.values())))

    def nbytes(self) -> int:
        return sum(array.nbytes for array in self._arrays.values())


@dataclass(frozen=True, slots=True)
class VectorSubset:
    """Some vectors of a table. rows: all of the table's; positions, labels: (m,), ascending."""

    rows: Rows
    positions: IntArray
    labels: IntArray


@dataclass(frozen=True, slots=True)
class Rows:
    """Vectors. values: (n, d) float32; or int8 with scales (n,) float32, vector = scale · value."""

    values: NDArray[Any]
    scales: FloatArray | None = None

    @classmethod
    def of(cls, vectors: FloatArray, dtype: str) -> Rows:
        """Stores vectors (n, d) float32 as a `Dtype`; "float32" does not copy them.

        Raises ValueError on another dtype.
        """
        if dtype == "float32":
            return cls(vectors)
        if dtype == "int8":
            return cls(*quantize_i8(np.ascontiguousarray(vectors)))
        raise ValueError(f"dtype is {dtype!r}; vectors are held as 'float32' or 'int8'")

    @property
    def dim(self) -> int:
        return int(self.values.shape[1])

    def columns(self) -> dict[str, NDArray[Any]]:
        """Its arrays by name, in the order of its arguments; entry i of each is of vector i."""
        columns = {"values": self.values}
        return columns if self.scales is None else {**columns, "scales": self.scales}

    def floats(self, positions: IntArray) -> FloatArray:
        """A copy of the vectors at `positions`: (m, d) float32; from int8 off by <= scale / 2."""
        if self.scales is None:
            return self.values[positions]
        floats = self.values[positions].astype(np.float32)
        floats *= self.scales[positions, None]
        return floats


@dataclass(frozen=True, slots=True)
class TableView:
    """A snapshot of a table for one search.

    rows: n vectors. labels, rowids: (n,). live: (n,) bool. allowed: (n,) bool, the live rows that
    the search may find; count: their number. repeats: whether a memory may have several vectors.
    next, first: the chains of a memory's vectors, as `kernels.similarities` takes them.
    """

    rows: Rows
    labels: IntArray
    rowids: IntArray
    allowed: BoolArray
    count: int
    live: BoolArray
    repeats: bool
    next: IntArray
    first: IntArray

    def vectors(self, of: BoolArray | None) -> VectorSubset:
        """The live vectors of the memories `of`, (m,) bool by memory number; None: of all."""
        mine = self.live if of is None else self.live & of[self.rowids]
        positions = np.flatnonzero(mine)
        return VectorSubset(self.rows, positions, self.labels[positions])


class VectorTable:
    """See the module. dim: numbers in a vector. Raises ValueError on an unknown dtype."""

    def __init__(self, dim: int, dtype: Dtype = "float32") -> None:
        self.dim = dim
        self.dtype = dtype
        self.live_count = 0
        self.epoch = 0  # how often it was filled anew; a graph built before must not be used then
        self._highest_label = -1  # that the table ever had
        self._repeats = False  # whether a memory has several vectors
        self._first = np.empty(0, np.int64)  # by memory number: the position of its first vector
        self._next = np.empty(0, np.int64)  # by position: that of the same memory's next vector
        vectors = Rows.of(np.empty((0, dim), np.float32), dtype).columns()
        self._of_vectors = tuple(vectors)  # the names of the columns of `Rows`
        self._columns = Columns(COLUMNS, vectors, spare=2)

    @property
    def rows(self) -> Rows:
        """The vectors in use."""
        return Rows(*(self.column(name) for name in self._of_vectors))

    def column(self, name: str) -> NDArray[Any]:
        """A column, of all rows, live or not."""
        return self._columns[name]

    def memory_bytes(self) -> int:
        return self._columns.nbytes() + self._first.nbytes + self._next.nbytes

    def apply(self, changes: Changes) -> None:
        """Take in what a store changed. Applying the same changes twice changes nothing.

        Raises ValueError if the vectors have another dimension.
        """
        new = self._columns_of(changes)
        if changes.full:
            self._columns.take(np.empty(0, np.int64))
            self._highest_label = -1
            self.epoch += 1
        touched = np.concatenate([np.asarray(changes.removed_rowids), new["rowids"]])
        gone = np.isin(self.column("rowids"), touched) & ~np.isin(
            self.column("labels"), new["labels"]
        )
        self.column("live")[gone] = False
        # A store gives out labels in ascending order, each to one vector; the lower ones are here.
        fresh = new["labels"] > self._highest_label
        if fresh.any():
            if not fresh.all():  # else they are taken uncopied
                new = {name: column[fresh] for name, column in new.items()}
            self._columns.append(new)
            self._highest_label = int(new["labels"][-1])
        self.live_count = int(np.count_nonzero(self.column("live")))
        if self._columns.size - self.live_count > MAX_DEAD_SHARE * self._columns.size:
            self._columns.take(self.column("live"))
        self._link()

    def view(self, allowed: BoolArray | None) -> TableView:
        """A snapshot in which the live rows of the memories `allowed` may be found.

        allowed: (m,) bool by memory number, m above the highest one in the table; None: all.
        """
        rowids, live = self.column("rowids"), self.column("live").copy()
        allowed = live if allowed is None else live & allowed[rowids]
        return TableView(
            self.rows,
            self.column("labels"),
            rowids,
            allowed,
            int(np.count_nonzero(allowed)),
            live,
            self._repeats,
            self._next,
            self._first,
        )

    def _columns_of(self, changes: Changes) -> dict[str, NDArray[Any]]:
        """The changes as columns of this table, sorted by label."""
        n = len(changes.labels)
        vectors = np.asarray(changes.vectors, np.float32)
        if n == 0:
            vectors = vectors.reshape(0, self.dim)
        if vectors.shape != (n, self.dim):
            raise ValueError(
                f"vectors of shape {vectors.shape} for {n} labels; this index holds "
                f"{self.dim} numbers a vector, so ({n}, {self.dim}) is needed"
            )
        # A vector with a NaN or an infinity in it has no nearest neighbours.
        order = np.argsort(np.asarray(changes.labels, np.int64), kind="stable")
        order = order[np.asarray(np.isfinite(vectors).all(axis=1))[order]]
        if not np.array_equal(order, np.arange(n)):
            vectors = vectors[order]
        return {
            **Rows.of(vectors, self.dtype).columns(),
            "labels": np.asarray(changes.labels, np.int64)[order],
            "rowids": np.asarray(changes.owners, np.int64)[order],
            "live": np.ones(len(order), np.bool_),
        }

    def _link(self) -> None:
        """Link the live rows of each memory into a chain, in new arrays."""
        at = np.flatnonzero(self.column("live"))
        rowids = self.column("rowids")[at]
        order = np.argsort(rowids, kind="stable")
        at, rowids = at[order], rowids[order]
        same = rowids[1:] == rowids[:-1]
        self._repeats = bool(same.any())
        self._next = np.full(self._columns.size, NOWHERE, np.int64)
        self._next[at[:-1][same]] = at[1:][same]
        leads = np.concatenate([np.ones(min(1, len(at)), np.bool_), ~same])
        self._first = np.full(int(rowids.max(initial=-1)) + 1, NOWHERE, np.int64)
        self._first[rowids[leads]] = at[leads]
