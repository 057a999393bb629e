"""Trained adapters made one set of experts: their files, and a manifest that says how.

`train run` leaves a record beside each adapter (`a.gguf.json`), which the manifest repeats. Knows
files; knows no model and nothing of torch. Source: MemLoRA, figure 2 (one expert a stage).
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from edgemem.errors import InputError
from edgemem.runtime import experts
from edgemem.runtime.models import sha256_of

__all__ = ["combine", "record_file", "record_of", "write_record"]

_LOSSES = ("first_loss", "best_loss")


def record_file(adapter: Path) -> Path:
    """Where the record of an adapter lies."""
    return adapter.with_name(adapter.name + ".json")


def write_record(adapter: Path, made: Mapping[str, Any]) -> None:
    """Say beside an adapter how it was made. made: what `combine` needs, and whatever else."""
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
    """Make a folder a set of experts that is named after it; what it held of these is replaced.

    licence: an SPDX name; data: what the adapters were trained on, in words. also_for: sha256 of
    other forms of the base model. scores: the JSON of `train eval` or of `bench.stages`,
    whose summary's figures are each stage's. Raises InputError when a record is missing, two
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
        shutil.copyfile(adapter, copy)
        figures = {key: round(record[key], 3) for key in _LOSSES if key in record}
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
        summary = json.loads(scores.read_text(encoding="utf-8"))["summary"]
        return dict(summary)
    except (OSError, ValueError, TypeError, KeyError) as exc:
        raise InputError(
            f"{scores} has no summary of scores ({exc!r:.80}); give what `edgemem train eval "
            "--json` or `python -m bench.stages` wrote"
        ) from exc


def record_of(adapter: Path) -> dict[str, Any]:
    """What `train run` or `train merge` wrote beside an adapter. Raises InputError if it is not all
    there."""
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


def _toml(value: Any) -> str:
    """A text, a number or a list of these. TOML's basic strings escape as JSON's do."""
    return json.dumps(value)
