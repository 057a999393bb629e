"""The metrics of large sets in a file beside the store, so that a start need not fit them anew.

Knows metrics and their moments, and that they tell of the vectors they were fitted on: a file is
written without a trace of vectors that are gone, and whoever erases one removes the file. Like the
HNSW file it is a cache (cachefile.py has the stamp and the writing): what is damaged, or
of another store, model, kind of vectors or layout, is refused as a whole.

The data is a NumPy .npz: `keys`, a JSON list of user ids (null: everybody); of the i-th key
`metric_i` (`Metric.to_bytes`), `count_i`, `sum_i`, `scatter_i`, the moments; `labels_i` of their
vectors; `sample_labels_i` and `sample_i`, a few of these vectors, which must be the store's.
"""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgemem import cachefile
from edgemem.retrieval.metric import Metric, Moments
from edgemem.retrieval.rows import Dtype
from edgemem.retrieval.whitening import Fitted, Key, Vectors, Whitening

log = logging.getLogger(__name__)

__all__ = ["LAYOUT", "Stamp", "load", "save"]

LAYOUT = 1
SAMPLE = 64  # vectors of each key by which another store's file is known, and as many at the end
MIN_LIVE_SHARE = 0.5  # of the sample; with fewer a fit is due anyway


@dataclass(frozen=True, slots=True)
class Stamp:
    """What a file is for. generation: the store's, which a file may be older than, not newer."""

    generation: int
    model_id: str
    dim: int
    dtype: Dtype
    layout: int = LAYOUT


def save(path: Path, whitening: Whitening, vectors: Callable[[Key], Vectors], stamp: Stamp) -> bool:
    """Write the metrics of large sets; may fit some anew, which takes seconds.

    vectors: a key's live vectors at the stamp's generation; nobody may erase any meanwhile.
    Returns whether a file was written. If not, there is no large set (a file from before is
    removed) or the disk did not take it. Never raises OSError.
    """
    try:
        metrics = whitening.large(vectors)
        if not metrics:
            cachefile.discard(path)
            return False
        data = _packed(metrics, vectors)
        temporary, size = cachefile.write_temporary(
            path, lambda name: _write(name, data), len(data)
        )
        cachefile.publish(temporary, path, {**size, **asdict(stamp)})
        return True
    except OSError as exc:
        log.warning("the metric file %s was not written: %s", path, exc)
        return False


def load(path: Path, whitening: Whitening, vectors: Callable[[Key], Vectors], stamp: Stamp) -> bool:
    """Let `whitening` hold the metrics of a file. Other arguments as for `save`, as it is now.

    Returns False, and leaves everything as it was, on any doubt. Vectors that came or went since
    are no reason for one. Never raises.
    """
    found = cachefile.read_stamp(path)
    if found is None:
        return False
    generation = found.get("generation")
    wanted = {**asdict(stamp), "generation": generation}
    if type(generation) is not int or not 0 <= generation <= stamp.generation:
        return False
    if any(found.get(name) != value for name, value in wanted.items()):
        return False
    try:
        held = _unpacked(path.read_bytes(), vectors, stamp.dim)
    except Exception:
        log.warning("the metric file %s was refused", path, exc_info=True)
        return False
    for key, fitted in held.items():
        whitening.hold(key, fitted)
    return True


def _write(name: str, data: bytes) -> None:
    Path(name).write_bytes(data)


def _packed(metrics: Mapping[Key, Fitted], vectors: Callable[[Key], Vectors]) -> bytes:
    arrays: dict[str, NDArray[Any]] = {"keys": _bytes(json.dumps(list(metrics)).encode())}
    for i, (key, fitted) in enumerate(metrics.items()):
        n, these = len(fitted.labels), vectors(key)
        spread = np.linspace(0, n - 1, SAMPLE).astype(np.int64)
        sample = fitted.labels[np.union1d(spread, np.arange(n)[-SAMPLE:])]
        arrays |= {
            f"metric_{i}": _bytes(fitted.metric.to_bytes()),
            f"count_{i}": np.array(fitted.moments.count, np.int64),
            f"sum_{i}": fitted.moments.sum,
            f"scatter_{i}": fitted.moments.scatter,
            f"labels_{i}": fitted.labels,
            f"sample_labels_{i}": sample,
            f"sample_{i}": these.rows.floats(
                these.positions[np.searchsorted(these.labels, sample)]
            ),
        }
    data = io.BytesIO()
    np.savez(data, allow_pickle=False, **arrays)
    return data.getvalue()


def _unpacked(data: bytes, vectors: Callable[[Key], Vectors], dim: int) -> dict[Key, Fitted]:
    """What `_packed` made, without keys that have hardly a vector left. Raises ValueError."""
    held: dict[Key, Fitted] = {}
    with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
        for i, key in enumerate(json.loads(arrays["keys"].tobytes())):
            metric = Metric.from_bytes(arrays[f"metric_{i}"].tobytes())
            count, labels = int(arrays[f"count_{i}"]), arrays[f"labels_{i}"]
            moments = Moments.of(count, arrays[f"sum_{i}"], arrays[f"scatter_{i}"])
            if not (metric.dim == moments.dim == dim and metric.count == count <= len(labels)):
                raise ValueError(f"the metric, moments and labels of {key!r} do not fit together")
            sample, these = arrays[f"sample_labels_{i}"], vectors(key)
            live = np.isin(sample, these.labels)
            if np.count_nonzero(live) < MIN_LIVE_SHARE * len(sample):
                continue
            at = these.positions[np.searchsorted(these.labels, sample[live])]
            # The checksum says that we wrote it, not that it was for this store.
            if not np.array_equal(these.rows.floats(at), arrays[f"sample_{i}"][live]):
                raise ValueError(f"the vectors of {key!r} are others than the store's")
            held[key] = Fitted(metric, moments, labels)
    return held


def _bytes(data: bytes) -> NDArray[np.uint8]:
    return np.frombuffer(data, np.uint8)
