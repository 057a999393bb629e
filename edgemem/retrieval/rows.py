"""Vectors as they are held: in floats, or in 8-bit whole numbers with a scale for each.

Knows arrays and the kernels for them; no labels, no memories, no locks. Both kinds have the same
methods, so that nobody else needs to ask which one it has.

An int8 row takes d + 4 bytes in place of 4·d. What is found is near to what the floats would give,
not the same: the rows are rounded, and so is the query in the first scan, whose best four in k are
scored again with the query in floats. The store keeps the floats.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from edgemem.kernels import (
    dots,
    dots_i8,
    quantize_i8,
    scan_topk,
    scan_topk_i8,
    similarities,
    similarities_i8,
)

__all__ = ["Dtype", "Float32Rows", "Int8Rows", "Rows", "rows_type"]

FloatArray = NDArray[np.float32]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]

Dtype = Literal["float32", "int8"]


@dataclass(frozen=True, slots=True)
class Float32Rows:
    """rows: (n, d) float32."""

    METHOD: ClassVar[Literal["exact"]] = "exact"
    rows: FloatArray

    @classmethod
    def of(cls, vectors: FloatArray) -> Float32Rows:
        """vectors: (n, d) float32, not copied."""
        return cls(vectors)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def dim(self) -> int:
        return int(self.rows.shape[1])

    def columns(self) -> dict[str, NDArray[Any]]:
        """The arrays of which it is made, in the order of its arguments; a row of each a vector."""
        return {"rows": self.rows}

    def floats(self, positions: IntArray) -> FloatArray:
        """(m, d) float32, a copy of these."""
        return self.rows[positions]

    def topk(
        self, query: FloatArray, k: int, mask: BoolArray | None
    ) -> tuple[IntArray, FloatArray]:
        """As `kernels.scan_topk`."""
        return scan_topk(self.rows, query, k, mask)

    def dots(self, positions: IntArray, queries: FloatArray) -> FloatArray:
        """As `kernels.dots`."""
        return dots(self.rows, positions, queries)

    def similarities(
        self,
        first: IntArray,
        next: IntArray,
        wanted: IntArray,
        columns: int,
        query: FloatArray,
        offset: float,
        scale: float,
        limit: float,
    ) -> FloatArray:
        """As `kernels.similarities`."""
        return similarities(self.rows, first, next, wanted, columns, query, offset, scale, limit)


@dataclass(frozen=True, slots=True)
class Int8Rows:
    """rows: (n, d) int8. scales: (n,) float32, what a row is to be multiplied with."""

    METHOD: ClassVar[Literal["int8"]] = "int8"
    rows: NDArray[np.int8]
    scales: FloatArray

    @classmethod
    def of(cls, vectors: FloatArray) -> Int8Rows:
        """vectors: (n, d) float32, see `kernels.quantize_i8`."""
        return cls(*quantize_i8(np.ascontiguousarray(vectors)))

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def dim(self) -> int:
        return int(self.rows.shape[1])

    def columns(self) -> dict[str, NDArray[Any]]:
        """As `Float32Rows.columns`."""
        return {"rows": self.rows, "scales": self.scales}

    def floats(self, positions: IntArray) -> FloatArray:
        """(m, d) float32: each within half a scale of what it was rounded from."""
        numbers = self.rows[positions].astype(np.float32)
        numbers *= self.scales[positions, None]
        return numbers

    def topk(
        self, query: FloatArray, k: int, mask: BoolArray | None
    ) -> tuple[IntArray, FloatArray]:
        """As `kernels.scan_topk_i8`."""
        return scan_topk_i8(self.rows, self.scales, query, k, mask)

    def dots(self, positions: IntArray, queries: FloatArray) -> FloatArray:
        """As `kernels.dots_i8`."""
        return dots_i8(self.rows, self.scales, positions, queries)

    def similarities(
        self,
        first: IntArray,
        next: IntArray,
        wanted: IntArray,
        columns: int,
        query: FloatArray,
        offset: float,
        scale: float,
        limit: float,
    ) -> FloatArray:
        """As `kernels.similarities_i8`."""
        return similarities_i8(
            self.rows, self.scales, first, next, wanted, columns, query, offset, scale, limit
        )


Rows = Float32Rows | Int8Rows


def rows_type(dtype: str) -> type[Float32Rows] | type[Int8Rows]:
    """The kind for a `Dtype`. Raises ValueError for another name."""
    if dtype == "float32":
        return Float32Rows
    if dtype == "int8":
        return Int8Rows
    raise ValueError(f"dtype is {dtype!r}; vectors are held as 'float32' or 'int8'")
