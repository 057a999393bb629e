"""Adapters: their files (GGUF, as llama.cpp reads them), their sum, and sets of experts.

A file's tensors are NumPy arrays by transformers' layer names. A record beside each adapter
(`a.gguf.json`) says how it was made, and which file it speaks of; a set's manifest repeats it.
Owns the package gguf, which writes them.
Sources: llama.cpp, convert_lora_to_gguf.py and its tensor names; Wortsman et al. 2022, "Model
soups"; MemLoRA, figure 2 (one expert a stage).
"""

from __future__ import annotations

import json
import math
import os
import shutil
import tomllib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgemem.config import toml_value
from edgemem.errors import AdapterError, InputError, ModelError
from edgemem.runtime import experts, llama
from edgemem.runtime.gguf import open_header
from edgemem.runtime.models import known_sha256, sha256_of

__all__ = ["combine", "merge", "read", "shape_of", "write", "write_record"]

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
    """The shape of a base model. Raises AdapterError if its file lacks it, ModelError on damage."""
    header, _ = open_header(base, "give the GGUF of a language model")
    name = header.get("general.architecture")
    layers, heads = (header.get(f"{name}.{key}") for key in ("block_count", "attention.head_count"))
    kv_heads = header.get(f"{name}.attention.head_count_kv", heads)
    if not all(type(number) is int for number in (layers, heads, kv_heads)):
        raise AdapterError(
            f"{base} does not say how many layers and heads it has ({layers}, {heads}, {kv_heads});"
            " give the GGUF of a language model whose layers are all of one form"
        )
    return Shape(name, layers, heads, kv_heads)


def write(file: Path, tensors: Tensors, *, alpha: float, shape: Shape) -> int:
    """Write an adapter as float16, replacing the file atomically. Returns its size in bytes.

    tensors: "model.layers.0.self_attn.q_proj.lora_A" (r, in), and "….lora_B" (out, r). Raises
    AdapterError on values that float16 does not hold; the file is then as it was.
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
        with np.errstate(over="ignore"):
            stored = values.astype(np.float16)
        if not np.isfinite(stored).all():
            raise AdapterError(
                f"{name} has values up to {np.abs(values).max():.3g}, and float16 holds none above "
                "65,504; give a smaller --weight, or train with a smaller --lr"
            )
        writer.add_tensor(f"{names[layer]}.weight.{kind.lower()}", stored)
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
        found = llama.Tensors(file)
        of, alpha = found.settings["general.architecture"], found.settings["adapter.lora.alpha"]
    except (ModelError, KeyError) as exc:
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
    for tensor, size in found.shapes.items():
        name, _, kind = tensor.rpartition(".weight.lora_")
        if name not in layers:
            raise AdapterError(f"{file} has the tensor {tensor}, which the base has not")
        values = np.empty(size, np.float32)
        found.read(tensor, values)
        if kind == "b":
            values = _rotated(values, _heads(layers[name], shape), back=True)
        tensors[f"{layers[name]}.lora_{kind.upper()}"] = values
    return tensors, float(alpha)


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
    one stage, or not of this model, or the weight is no number; AdapterError on a file that is no
    adapter, and on a sum that is too large.
    """
    if not math.isfinite(weight):
        raise InputError(f"the weight is {weight}; it must be a number")
    if out.exists() and any(out.samefile(adapter) for adapter in adapters):
        raise InputError(f"{out} is one of the adapters, and would be replaced; give another --out")
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
    result; a layer that is narrower than the rank has its width as its rank. The result is the
    nearest adapter of that rank to the weighted sum (in least squares); it is the sum itself if the
    parts' ranks add up to no more. Raises InputError unless all parts have the same layers.
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
        a, b = _cut(np.hstack(ups).astype(np.float64), np.vstack(downs).astype(np.float64), rank)
        out[f"{layer}.lora_A"], out[f"{layer}.lora_B"] = a, b * np.float32(len(a) / alpha)
    return out


def _cut(up: NDArray[np.float64], down: NDArray[np.float64], rank: int) -> tuple[FloatArray, ...]:
    """A (r, in) and B (out, r), float32; B @ A is nearest to up (out, n) @ down (n, in).

    r: the rank, or the least of in, out and n if that is less.
    """
    q_up, r_up = np.linalg.qr(up)
    q_down, r_down = np.linalg.qr(down.T)
    u, s, vt = np.linalg.svd(r_up @ r_down.T, full_matrices=False)
    root = np.sqrt(s[:rank])
    a = (q_down @ vt[:rank].T * root).T
    b = q_up @ u[:, :rank] * root
    return a.astype(np.float32), b.astype(np.float32)


def record_file(adapter: Path) -> Path:
    """Where the record of an adapter lies."""
    return adapter.with_name(adapter.name + ".json")


def write_record(adapter: Path, made: Mapping[str, Any]) -> None:
    """Write the record beside an adapter, with the file's sha256.

    made: what else `combine` needs, and any other keys.
    """
    record = {**made, "sha256": sha256_of(adapter)}
    record_file(adapter).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


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

    adapters: trained ones with their records, or those of other sets. licence: an SPDX name; data:
    what the adapters were trained on, in words. also_for: sha256 of other forms of the base model.
    scores: the JSON of `python -m corpus eval` or of `bench.stages`; each stage gets its figures
    from the summary. Raises InputError, and leaves the folder as it was, when a record is missing,
    two adapters are of one stage or of two models, or the scores or texts are something else.
    """
    folder = Path(os.path.abspath(folder))  # "." has no name
    records = [record_of(adapter) for adapter in adapters]
    stages = [record["stage"] for record in records]
    bases = {record["base_sha256"] for record in records}
    if not adapters or len(set(stages)) < len(stages) or len(bases) > 1:
        raise InputError(
            f"the adapters are of the stages {', '.join(stages) or 'none'} and of {len(bases)} "
            "models; give one for each stage, all of one model"
        )
    head = {
        "format": 1,
        "name": folder.name,
        "licence": licence,
        "data": data,
        "base_sha256": [*sorted(bases), *also_for],
    }
    text = _manifest(head, records, _summary(scores) if scores else {})
    folder.mkdir(parents=True, exist_ok=True)
    for stage, adapter in zip(stages, adapters, strict=True):
        with suppress(shutil.SameFileError):
            shutil.copyfile(adapter, folder / f"{stage}.gguf")
    temporary = folder / f"{experts.MANIFEST}.tmp"
    temporary.write_bytes(text)
    os.replace(temporary, folder / experts.MANIFEST)
    return experts.find(f"{folder}{os.sep}")


def _manifest(
    head: Mapping[str, Any], records: Sequence[Mapping[str, Any]], summary: Mapping[str, Any]
) -> bytes:
    """The manifest of a set. summary: scores by name; each stage gets those with its prefix."""
    lines = ["# Made by `edgemem train combine`; the keys are explained in models/README.md."]
    lines += [f"{key} = {toml_value(value)}" for key, value in head.items()]
    for record in records:
        stage = record["stage"]
        losses = ("first_loss", "best_loss")
        figures = {key: round(record[key], 3) for key in losses if key in record}
        figures |= record.get("scores", {})
        figures |= {k: v for k, v in summary.items() if k.startswith(f"{stage}_")}
        row = {
            "stage": stage,
            "file": f"{stage}.gguf",
            "sha256": record["sha256"],
            "scale": record.get("scale", 1.0),
            **{k: record[k] for k in ("rank", "alpha", "targets", "command", "seed", "tokens")},
        }
        lines += ["", "[[adapter]]"]
        lines += [f"{key} = {toml_value(value)}" for key, value in row.items()]
        shown = ", ".join(f"{key} = {toml_value(value)}" for key, value in figures.items())
        lines.append(f"scores = {{ {shown} }}")
    try:
        text = ("\n".join(lines) + "\n").encode()
        tomllib.loads(text.decode())
    except ValueError as exc:  # a null, a surrogate
        raise InputError(
            f"the manifest cannot hold this: {exc}; give scores, licence and data that are texts, "
            "numbers and lists of them"
        ) from exc
    return text


def _summary(scores: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(scores.read_text(encoding="utf-8"))["summary"])
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as exc:
        raise InputError(
            f"{scores} has no summary of scores ({exc!r:.80}); give what `python -m corpus eval "
            "--json` or `python -m bench.stages` wrote"
        ) from exc


def record_of(adapter: Path) -> dict[str, Any]:
    """An adapter's record, or else its row in the manifest of its folder.

    Raises InputError if there is neither, if the record is incomplete, or if it is of another file;
    AdapterError on a manifest that cannot be read.
    """
    file = record_file(adapter)
    record = None if file.exists() else _row_of(adapter)
    if record is None:
        record = _written(file)
    sha256 = sha256_of(adapter)
    if record.setdefault("sha256", sha256) != sha256:  # older records do not say it
        raise InputError(
            f"{adapter} is not the file that its record speaks of: it was replaced, or its "
            "training did not end; bring that file back, or train to the end"
        )
    return record


def _written(file: Path) -> dict[str, Any]:
    needed = {"stage", "base_sha256", "rank", "alpha", "targets", "command", "seed", "tokens"}
    try:
        record: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        missing = needed - set(record)
    except (OSError, ValueError, TypeError, RecursionError) as exc:
        raise InputError(
            f"{file.stem} has no record of its training ({file}: {exc}); give an adapter that "
            "`edgemem train run` wrote, with its record beside it, or one of a set of experts"
        ) from exc
    if missing:
        raise InputError(f"{file} does not say {', '.join(sorted(missing))}; train it again")
    return record


def _row_of(adapter: Path) -> dict[str, Any] | None:
    """What the manifest of an adapter's folder says of it, as a record; None if it says nothing."""
    folder = adapter.absolute().parent
    if not (folder / experts.MANIFEST).is_file():
        return None
    found = experts.find(f"{folder}{os.sep}")
    base = "".join(found.base_sha256[:1])  # the others are further forms of it
    row = next((row for row in found.adapters if row.file == adapter.name), None)
    if row is None:
        return None
    return {**asdict(row), "targets": list(row.targets), "base_sha256": base}
