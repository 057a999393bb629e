"""The vectors of a store in memory, with what a search filters them by.

Knows arrays only: no locks (retrieval/index.py holds them), no HNSW, no SQL. A row is one vector;
a memory with a long text has several. Rows are kept by ascending label. A removed row stays, marked
as not live, until a quarter of all rows are such; then the live ones are copied together.

Arrays that a search may still be reading are only ever appended to, or replaced by a copy.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from edgemem.results import Scope

if TYPE_CHECKING:
    from edgemem.store.rows import VectorChanges

__all__ = ["VectorTable", "View"]

FloatArray = NDArray[np.float32]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]

MAX_DEAD_SHARE = 0.25

# The columns, and what each element is. `rows` is the only two-dimensional one.
COLUMNS: dict[str, type] = {
    "rows": np.float32,
    "labels": np.int64,
    "rowids": np.int64,
    "user": np.int32,
    "agent": np.int32,
    "run": np.int32,
    "kind": np.int32,
    "until": np.float64,
    "live": np.bool_,
}


@dataclass(frozen=True, slots=True)
class View:
    """What one search sees, whatever happens to the table meanwhile. allowed: what it may find."""

    rows: FloatArray
    labels: IntArray
    rowids: IntArray
    allowed: BoolArray


class Codes:
    """Small numbers for the strings of one column, so that comparing 100,000 of them is quick."""

    def __init__(self) -> None:
        self._of: dict[str | None, int] = {}

    def encode(self, values: Iterable[str | None]) -> NDArray[np.int32]:
        of = self._of
        return np.array([of.setdefault(value, len(of)) for value in values], np.int32)

    def find(self, value: str | None) -> int:
        """The value's code; -1, which no row has, if it never occurred."""
        return self._of.get(value, -1)


class VectorTable:
    """See the module. dim: numbers in a vector."""

    def __init__(self, dim: int) -> None:
        self.dim = dim
        self.size = 0  # rows in use, live or not
        self.live_count = 0
        # Grows when a label got another vector, came back or came out of order: no graph of
        # before may be used then.
        self.epoch = 0
        self._highest_label = -1  # ever held
        self._codes = {name: Codes() for name in ("user", "agent", "run", "kind")}
        self._column: dict[str, NDArray[Any]] = {
            name: np.empty((0, dim) if name == "rows" else 0, dtype)
            for name, dtype in COLUMNS.items()
        }

    def column(self, name: str) -> NDArray[Any]:
        """A column's rows in use."""
        return self._column[name][: self.size]

    def memory_bytes(self) -> int:
        return sum(column.nbytes for column in self._column.values())

    def apply(self, changes: VectorChanges) -> None:
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
        self.column("live")[gone] = False

        slots = np.flatnonzero(held)
        if len(slots):
            self._overwrite(slots, new, np.searchsorted(labels, self.column("labels")[slots]))
            fresh = ~np.isin(labels, self.column("labels"))
            new = {name: column[fresh] for name, column in new.items()}
        if len(new["labels"]):
            in_order = not self.size or new["labels"][0] > self.column("labels")[-1]
            # Also one that is no longer held: a graph may have it, with its vector of then.
            if new["labels"][0] <= self._highest_label:
                self.epoch += 1
            self._highest_label = max(self._highest_label, int(new["labels"][-1]))
            self._append(new)
            if not in_order:
                self._take(np.argsort(self.column("labels"), kind="stable"))
        self.live_count = int(np.count_nonzero(self.column("live")))
        if self.size - self.live_count > MAX_DEAD_SHARE * self.size:
            self._take(np.flatnonzero(self.column("live")))

    def view(
        self,
        scope: Scope,
        kinds: frozenset[str] | None,
        now: float,
        rowids: IntArray | None,
    ) -> View:
        """The rows that are live at `now` (Unix seconds) and match. None matches everything."""
        allowed = self.column("live") & (self.column("until") > now)
        for name, value in (
            ("user", scope.user_id),
            ("agent", scope.agent_id),
            ("run", scope.run_id),
        ):
            if value is not None:
                allowed &= self.column(name) == self._codes[name].find(value)
        if kinds is not None:
            wanted = np.zeros(self.size, np.bool_)
            for kind in kinds:
                wanted |= self.column("kind") == self._codes["kind"].find(kind)
            allowed &= wanted
        if rowids is not None:
            allowed &= np.isin(self.column("rowids"), rowids)
        return View(self.column("rows"), self.column("labels"), self.column("rowids"), allowed)

    def _columns_of(self, changes: VectorChanges) -> dict[str, NDArray[Any]]:
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
        strings: dict[str, Sequence[str | None]] = {
            "user": changes.user_ids,
            "agent": changes.agent_ids,
            "run": changes.run_ids,
            "kind": changes.kinds,
        }
        new: dict[str, NDArray[Any]] = {
            "rows": vectors,
            "labels": np.asarray(changes.labels, np.int64),
            "rowids": np.asarray(changes.rowids, np.int64),
            "until": np.asarray(changes.until, np.float64),
            # A vector with a NaN or an infinity in it has no nearest neighbours.
            "live": np.asarray(np.isfinite(vectors).all(axis=1), np.bool_),
            **{name: self._codes[name].encode(values) for name, values in strings.items()},
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

    def _overwrite(self, slots: IntArray, new: dict[str, NDArray[Any]], source: IntArray) -> None:
        """Bring rows that are held already up to date; their vectors hardly ever differ."""
        same_owner = np.array_equal(self.column("rowids")[slots], new["rowids"][source])
        if not same_owner or not np.array_equal(
            self.column("rows")[slots], new["rows"][source], equal_nan=True
        ):
            self.epoch += 1
            for name in ("rows", "rowids"):
                self._column[name] = self._column[name].copy()
                self._column[name][slots] = new[name][source]
        if np.any(new["live"][source] & ~self.column("live")[slots]):
            self.epoch += 1  # it came back: a graph may have been built without it
        for name in ("user", "agent", "run", "kind", "until", "live"):
            self._column[name][slots] = new[name][source]

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
        self._column = {name: self.column(name)[slots] for name in COLUMNS}
        self.size = len(slots)
        self.live_count = int(np.count_nonzero(self.column("live")))
