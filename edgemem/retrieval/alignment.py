"""Maps one model's vectors to another's, fitted on the vectors of texts that both have embedded.

Knows arrays only. MemAdapter (2.2.2, Algorithm 1) trains a network for this
with a contrastive loss, Eq. 9. Departs from it: a rotation in closed form. The negatives of Eq. 9
do not depend on the trained map λ, so they only scale the gradient of the positive pair. With
negatives that depend on λ, mapped vectors do not lie where native ones do (bench/LOG.md).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgemem.errors import InputError

__all__ = ["Alignment", "fit"]

Vectors = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Alignment:
    """The map y = x · rotation + shift, then normalised to length 1.

    rotation: (d_x, d_y) float32, a partial isometry times one scale; shift: (d_y,) float32.
    """

    rotation: Vectors
    shift: Vectors

    def map(self, vectors: Vectors) -> Vectors:
        """Maps (n, d_x) vectors of any length to (n, d_y) float32 of length 1.

        Raises InputError on another dimension, or on a NaN or an infinity.
        """
        x = _unit(vectors, "vectors")
        if x.shape[1] != len(self.rotation):
            raise InputError(
                f"the vectors have {x.shape[1]} dimensions, and those of the pairs that they are "
                f"aligned by {len(self.rotation)}; give pairs of the model that made the vectors"
            )
        return _unit(x @ self.rotation + self.shift, "aligned vectors")


def fit(x: Vectors, y: Vectors) -> Alignment:
    """The map from x to y, by orthogonal Procrustes (Schönemann 1966) with centring and scale.

    x: (n, d_x), y: (n, d_y), any float: row i of each is text i embedded by one of the models. The
    rows' lengths are ignored. If d_x > d_y, the map is a projection.
    n must be above the smaller dimension, or more than one rotation fits. Directions in which the
    pairs do not vary are mapped to 0. Models leave a few unused; more than a tenth is refused.
    Cost O(n·d_x·d_y).
    Raises InputError on a wrong shape, too few or too similar pairs, a NaN or an infinity.
    """
    x, y = _unit(x, "pairs"), _unit(y, "pairs")
    if len(x) != len(y):
        raise InputError(
            f"the pairs are {len(x)} vectors of one model and {len(y)} of the other; give the "
            "vectors of the same texts in the same order"
        )
    least = min(x.shape[1], y.shape[1])
    if len(x) <= least:
        raise InputError(
            f"{len(x)} pairs are too few to align {x.shape[1]} dimensions with {y.shape[1]}; give "
            f"more than {least} (2,500 are plenty), or embed the texts anew (`edgemem reindex`)"
        )
    x_mean, y_mean = x.mean(axis=0, dtype=np.float64), y.mean(axis=0, dtype=np.float64)
    x_centred, y_centred = x - x_mean, y - y_mean
    u, s, vt = np.linalg.svd(x_centred.T @ y_centred, full_matrices=False)
    rank = int((s > s[0] * _SMALLEST).sum())
    if rank < least * _LEAST_RANK:
        raise InputError(
            f"the {len(x)} pairs vary in {rank} directions of {least}; give pairs of "
            "more various texts, or embed the texts anew (`edgemem reindex`)"
        )
    scale = np.linalg.norm(y_centred) / np.linalg.norm(x_centred)
    rotation = u[:, :rank] @ vt[:rank] * scale
    shift = y_mean - x_mean @ rotation
    return Alignment(rotation.astype(np.float32), shift.astype(np.float32))


_SMALLEST = 1e-7  # singular value relative to the largest; below it, float32 cannot tell it from 0
_LEAST_RANK = 0.9


def _unit(vectors: Vectors, what: str) -> Vectors:
    """(n, d) float32 of length 1; zeros stay zeros."""
    given = np.asarray(vectors, np.float32)
    if given.ndim != 2 or not given.size:
        raise InputError(f"the {what} have the shape {given.shape}; give (n, dim), n >= 1")
    if not np.isfinite(given).all():
        raise InputError(f"the {what} hold NaN or infinity; leave those texts out")
    # Divide by the largest number first: its square may leave float32's range.
    largest = np.abs(given).max(axis=1, keepdims=True)
    scaled = given / np.where(largest > 0, largest, np.float32(1))
    norm = np.linalg.norm(scaled, axis=1, keepdims=True)  # 1 or more, or 0
    return np.asarray(scaled / np.maximum(norm, 1), np.float32)
