"""Adapters of one stage added up, as one adapter of the rank they have.

The sum of what several runs have learned answers better than the last of them (a "model soup", here
of the low-rank changes and not of whole models). Knows matrices and adapters' files; knows no
torch.
Source: Wortsman et al. 2022, "Model soups"; departs from it in that the weights need not sum to 1,
and that the sum is cut to the rank of its parts, by its singular values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edgemem.errors import InputError
from edgemem.runtime.models import known_sha256
from edgemem.training import adapterfile
from edgemem.training.combine import record_of, write_record

__all__ = ["merge", "merged"]

FloatArray = NDArray[np.float32]
Tensors = Mapping[str, FloatArray]


def merge(adapters: Sequence[Path], out: Path, base: Path, weight: float, command: str) -> int:
    """Write the weighted sum of trained adapters, and its record, as `train run` does; its bytes.

    base: the model's GGUF; weight: of each; command: what was typed, for the record, behind the
    commands that made the parts. Raises InputError when the adapters are not of one stage and rank,
    or not of this model; AdapterError on a file that is no adapter.
    """
    records = [record_of(adapter) for adapter in adapters]
    first = records[0]
    same = ("stage", "rank", "alpha", "targets", "base_sha256")
    if any(record[key] != first[key] for record in records for key in same):
        raise InputError(
            "the adapters differ in stage, rank, alpha, layers or base model; give adapters that "
            "were trained alike, such as one and what went on from it"
        )
    if first["base_sha256"] != known_sha256(base):
        raise InputError(f"the adapters are of another model than {base}; give theirs")
    shape = adapterfile.shape_of(base)
    parts = [(*adapterfile.read(adapter, shape=shape), weight) for adapter in adapters]
    tensors = merged(parts, first["rank"], first["alpha"])
    size = adapterfile.write(out, tensors, alpha=first["alpha"], shape=shape)
    made = {
        "command": " && ".join([*(str(record["command"]) for record in records), command]),
        "tokens": sum(int(record["tokens"]) for record in records),
    }
    write_record(out, {key: first[key] for key in (*same, "seed")} | made)
    return size


def merged(parts: Sequence[tuple[Tensors, float, float]], rank: int, alpha: float) -> Tensors:
    """The tensors of one adapter that does what several do together.

    parts: of each its tensors, as `adapterfile.read` gives them, its alpha and its weight. rank,
    alpha: of the result; it is the nearest of that rank to the weighted sum (in least squares), and
    the sum itself where the ranks add up to no more. Raises InputError unless all have the same
    layers.
    """
    layers = [{name.rpartition(".")[0] for name in tensors} for tensors, _, _ in parts]
    if not parts or any(found != layers[0] for found in layers):
        raise InputError("the adapters change different layers; give adapters of one stage")
    out: dict[str, FloatArray] = {}
    for layer in sorted(layers[0]):
        ups, downs = [], []
        for tensors, of_alpha, weight in parts:
            a, b = tensors[f"{layer}.lora_A"], tensors[f"{layer}.lora_B"]
            ups.append(b * (weight * of_alpha / len(a)))
            downs.append(a)
        out[f"{layer}.lora_A"], out[f"{layer}.lora_B"] = _cut(
            np.hstack(ups).astype(np.float64), np.vstack(downs).astype(np.float64), rank
        )
        out[f"{layer}.lora_B"] *= rank / alpha
    return out


def _cut(up: NDArray[np.float64], down: NDArray[np.float64], rank: int) -> tuple[FloatArray, ...]:
    """(rank, in) and (out, rank), whose product is nearest to up (out, n) @ down (n, in)."""
    q_up, r_up = np.linalg.qr(up)
    q_down, r_down = np.linalg.qr(down.T)
    u, s, vt = np.linalg.svd(r_up @ r_down.T)
    root = np.sqrt(s[:rank])
    a = (q_down @ vt[:rank].T * root).T
    b = q_up @ u[:, :rank] * root
    return a.astype(np.float32), b.astype(np.float32)
