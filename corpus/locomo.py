"""LoCoMo's files with their questions, of which the product reads only what was said."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgemem.errors import InputError
from edgemem.pipeline import importers

__all__ = ["LocomoFile", "locomo_files", "read_locomo"]


@dataclass(frozen=True)
class LocomoFile:
    """One conversation of LoCoMo. messages: as `Memory.add` takes them. qa: as in the file."""

    sample_id: str
    messages: list[dict[str, Any]]
    qa: list[dict[str, Any]]


def locomo_files(path: str | Path) -> list[LocomoFile]:
    """Every conversation of a file. Raises InputError as the importer does."""
    conversations = importers.read_locomo(path)
    raw = json.loads(Path(path).read_text(encoding="utf-8-sig"))
    samples = raw if isinstance(raw, list) else [raw]
    return [
        LocomoFile(sample_id, messages, sample.get("qa", []))
        for (sample_id, messages), sample in zip(conversations, samples, strict=True)
    ]


def read_locomo(path: str | Path) -> LocomoFile:
    """The one conversation of a file. Raises InputError as the importer does, or on several."""
    files = locomo_files(path)
    if len(files) != 1:
        raise InputError(
            f"{path} holds {len(files)} LoCoMo conversations where one is expected. "
            "Split it into one file for each."
        )
    return files[0]
