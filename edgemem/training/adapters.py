"""Adapters: their files (GGUF, as llama.cpp reads them), their sum, and sets of experts.

A file's tensors are NumPy arrays by transformers' layer names. A record beside each adapter
(`a.gguf.json`) says how it was made; a set's manifest repeats it. Owns the package gguf.
Sources: llama.cpp, convert_lora_to_gguf.py and its tensor names; Wortsman et al. 2022, "Model
soups"; MemLoRA, figure 2 (one expert a stage).
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgemem.errors import AdapterError, InputError
from edgemem.runtime import experts
from edgemem.runtime.models import known_sha256, sha256_of

__all__ = [
    "Shape",
    "combine",
    "merge",
    "merged",
    "read",
    "record_file",
    "shape_of",
    "write",
    "write_record",
]

FloatArray = NDArray[np.float32]
Tensors = Mapping[str, FloatArray]


@dataclass(frozen=True, slots=True)
class Shape:
    """What an adapter file depends on in its base model. architecture: as its GGUF names it."""

    architecture: str
    layers: int
    heads: int
    kv_heads: int


def shape_of(base: Path) -> Shape:
    """The shape of a base model, read from its GGUF. Raises AdapterError if the file lacks it."""
    import gguf

    try:
        fields = gguf.GGUFReader(base).fields
        name = str(fields["general.architecture"].contents())
        layers, heads = (
            int(fields[f"{name}.{key}"].contents())
            for key in ("block_count", "attention.head_count")
        )
        kv_heads = fields.get(f"{name}.attention.head_count_kv")
        return Shape(name, layers, heads, int(kv_heads.contents()) if kv_heads else heads)
    except (OSError, ValueError, LookupError, TypeError) as exc:
        raise AdapterError(
            f"{base} does not say how many layers and heads it has ({exc!r:.80}); give the GGUF "
            "of a language model whose layers are all of one form"
        ) from exc


def write(file: Path, tensors: Tensors, *, alpha: float, shape: Shape) -> int:
    """Write an adapter as float16, replacing the file atomically. Returns its size in bytes.

    tensors: "model.layers.0.self_attn.q_proj.lora_A" (r, in), and "….lora_B" (out, r).
    """
    import gguf

    temporary = file.with_name(file.name + ".tmp")
    writer = gguf.GGUFWriter(temporary, shape.architecture)
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", alpha)
    names = _names(gguf, shape)
    for name, values in sorted(tensors.items()):
        layer, _, kind = name.rpartition(".")
        if kind == "lora_B":
            values = _rotated(values, _heads(layer, shape), back=False)
        writer.add_tensor(f"{names[layer]}.weight.{kind.lower()}", values.astype(np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    os.replace(temporary, file)
    return file.stat().st_size


def read(file: Path, *, shape: Shape) -> tuple[dict[str, FloatArray], float]:
    """An adapter's tensors as `write` takes them, and its alpha.

    Raises AdapterError on a file that is no adapter, or is for another architecture.
    """
    import gguf

    try:
        found = gguf.GGUFReader(file)
        fields = {k: f.contents() for k, f in found.fields.items() if not k.startswith("GGUF.")}
        of, alpha = fields["general.architecture"], float(fields["adapter.lora.alpha"])
    except (OSError, ValueError, KeyError, IndexError) as exc:
        raise AdapterError(
            f"{file} is not a LoRA adapter ({exc}); give a .gguf that `edgemem train run` wrote"
        ) from exc
    if of != shape.architecture:
        raise AdapterError(
            f"{file} is an adapter for {of!r}, but the base model is {shape.architecture!r}; "
            "give one that was trained on this base"
        )
    layers = {there: here for here, there in _names(gguf, shape).items()}
    tensors: dict[str, FloatArray] = {}
    for tensor in found.tensors:
        name, _, kind = tensor.name.rpartition(".weight.lora_")
        if name not in layers:
            raise AdapterError(f"{file} has the tensor {tensor.name}, which the base has not")
        values = np.asarray(tensor.data, np.float32)
        if kind == "b":
            values = _rotated(values, _heads(layers[name], shape), back=True)
        tensors[f"{layers[name]}.lora_{kind.upper()}"] = values
    return tensors, alpha


def _names(gguf: Any, shape: Shape) -> dict[str, str]:
    """llama.cpp's name ("blk.0.attn_q") of each layer that transformers names."""
    arch = next((a for a, n in gguf.MODEL_ARCH_NAMES.items() if n == shape.architecture), None)
    if arch is None:
        raise AdapterError(
            f"the gguf package does not know the architecture {shape.architecture!r}; train on a "
            "base of a known one, or update gguf"
        )
    names = gguf.get_tensor_name_map(arch, shape.layers)
    parts = [f"self_attn.{p}_proj" for p in "qkvo"]
    parts += [f"mlp.{p}_proj" for p in ("gate", "up", "down")]
    layers = [f"model.layers.{n}.{part}" for n in range(shape.layers) for part in parts]
    return {layer: str(found) for layer in layers if (found := names.get_name(layer))}


def _heads(layer: str, shape: Shape) -> int:
    """How many heads have rows that llama.cpp orders otherwise in this layer; 0 if none have."""
    if shape.architecture != "llama":  # the others rotate halves, as transformers does
        return 0
    return {"q_proj": shape.heads, "k_proj": shape.kv_heads}.get(layer.rpartition(".")[2], 0)


def _rotated(rows: FloatArray, heads: int, *, back: bool) -> FloatArray:
    """Each head's rows from halves (transformers) to pairs (llama.cpp), or back."""
    if not heads:
        return rows
    half = rows.shape[0] // heads // 2
    split = (heads, half, 2) if back else (heads, 2, half)
    return rows.reshape(*split, rows.shape[1]).swapaxes(1, 2).reshape(rows.shape)


def merge(adapters: Sequence[Path], out: Path, base: Path, weight: float, command: str) -> int:
    """Write the weighted sum of trained adapters, and its record, as `train run` does.

    Returns the file's size in bytes. The sum gets the rank and the alpha of the first adapter.
    base: the model's GGUF. weight: the same for each adapter. command: what was typed; the record
    has it after the commands that made the parts. Raises InputError when the adapters are not of
    one stage, or not of this model; AdapterError on a file that is no adapter.
    """
    records = [record_of(adapter) for adapter in adapters]
    first = records[0]
    same = ("stage", "targets", "base_sha256")
    if any(record[key] != first[key] for record in records for key in same):
        raise InputError(
            "the adapters differ in stage, layers or base model; give adapters that were trained "
            "alike, such as one and what went on from it"
        )
    if first["base_sha256"] != known_sha256(base):
        raise InputError(f"the adapters are of another model than {base}; give theirs")
    shape = shape_of(base)
    parts = [(*read(adapter, shape=shape), weight) for adapter in adapters]
    tensors = merged(parts, first["rank"], first["alpha"])
    size = write(out, tensors, alpha=first["alpha"], shape=shape)
    made = {
        "command": " && ".join([*(str(record["command"]) for record in records), command]),
        "tokens": sum(int(record["tokens"]) for record in records),
    }
    write_record(out, {key: first[key] for key in (*same, "rank", "alpha", "seed")} | made)
    return size


def merged(parts: Sequence[tuple[Tensors, float, float]], rank: int, alpha: float) -> Tensors:
    """The tensors of one adapter that does what several do together.

    parts: for each adapter (tensors as `read` gives them, alpha, weight). rank, alpha: of the
    result. The result is the nearest adapter of that rank to the weighted sum (in least squares);
    it is the sum itself if the parts' ranks add up to no more. Raises InputError unless all parts
    have the same layers.
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
    """A (rank, in) and B (out, rank), float32; B @ A is nearest to up (out, n) @ down (n, in)."""
    q_up, r_up = np.linalg.qr(up)
    q_down, r_down = np.linalg.qr(down.T)
    u, s, vt = np.linalg.svd(r_up @ r_down.T)
    root = np.sqrt(s[:rank])
    a = (q_down @ vt[:rank].T * root).T
    b = q_up @ u[:, :rank] * root
    return a.astype(np.float32), b.astype(np.float32)


_toml = json.dumps  # of texts, numbers and lists: TOML's basic strings escape as JSON's do


def record_file(adapter: Path) -> Path:
    """Where the record of an adapter lies."""
    return adapter.with_name(adapter.name + ".json")


def write_record(adapter: Path, made: Mapping[str, Any]) -> None:
    """Write the record beside an adapter. made: what `combine` needs, and any other keys."""
    record_file(adapter).write_text(json.dumps(made, indent=2) + "\n", encoding="utf-8")


def combine(
    folder: Path,
    adapters: Sequence[Path],
    *,
    licence: str,
    data: str,
    also_for: Sequence[str] = (),
    scores: Path | None = None,
) -> experts.ExpertSet:
    """Make a folder a set of experts of its name; replaces its manifest and these stages' files.

    licence: an SPDX name; data: what the adapters were trained on, in words. also_for: sha256 of
    other forms of the base model. scores: the JSON of `python -m corpus eval` or of `bench.stages`;
    each stage gets its figures from the summary. Raises InputError when a record is missing, two
    adapters are of one stage or of two models, or the scores are something else.
    """
    records = [record_of(adapter) for adapter in adapters]
    stages = [record["stage"] for record in records]
    bases = {record["base_sha256"] for record in records}
    if not adapters or len(set(stages)) < len(stages) or len(bases) > 1:
        raise InputError(
            f"the adapters are of the stages {', '.join(stages) or 'none'} and of {len(bases)} "
            "models; give one for each stage, all of one model"
        )
    summary = _summary(scores) if scores else {}
    folder.mkdir(parents=True, exist_ok=True)
    lines = [
        "# Made by `edgemem train combine`; the keys are explained in models/README.md.",
        "format = 1",
        f"name = {_toml(folder.name)}",
        f"licence = {_toml(licence)}",
        f"data = {_toml(data)}",
        f"base_sha256 = {_toml([*sorted(bases), *also_for])}",
    ]
    for adapter, record in zip(adapters, records, strict=True):
        stage = record["stage"]
        copy = folder / f"{stage}.gguf"
        with suppress(shutil.SameFileError):
            shutil.copyfile(adapter, copy)
        losses = ("first_loss", "best_loss")
        figures = {key: round(record[key], 3) for key in losses if key in record}
        figures |= {k: v for k, v in summary.items() if k.startswith(f"{stage}_")}
        row = {
            "stage": stage,
            "file": copy.name,
            "sha256": sha256_of(copy),
            **{key: record[key] for key in ("rank", "alpha", "targets", "command", "seed")},
            "tokens": record["tokens"],
        }
        lines += ["", "[[adapter]]", *(f"{key} = {_toml(value)}" for key, value in row.items())]
        shown = ", ".join(f"{key} = {_toml(value)}" for key, value in figures.items())
        lines.append(f"scores = {{ {shown} }}")
    (folder / "manifest.toml").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return experts.find(str(folder.absolute()))


def _summary(scores: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(scores.read_text(encoding="utf-8"))["summary"])
    except (OSError, ValueError, TypeError, KeyError) as exc:
        raise InputError(
            f"{scores} has no summary of scores ({exc!r:.80}); give what `python -m corpus eval "
            "--json` or `python -m bench.stages` wrote"
        ) from exc


def record_of(adapter: Path) -> dict[str, Any]:
    """An adapter's record. Raises InputError if the record is missing or incomplete."""
    file = record_file(adapter)
    needed = {"stage", "base_sha256", "rank", "alpha", "targets", "command", "seed", "tokens"}
    try:
        record: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        missing = needed - set(record)
    except (OSError, ValueError, TypeError) as exc:
        raise InputError(
            f"{adapter} has no record of its training ({file.name}: {exc}); give an adapter that "
            "`edgemem train run` wrote, with its record beside it"
        ) from exc
    if missing:
        raise InputError(f"{file} does not say {', '.join(sorted(missing))}; train it again")
    return record
