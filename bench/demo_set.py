"""How many questions about invented conversations does the whole product answer right?

    python -m bench.demo_set [FILE …] [--vault] [--json OUT]

Plays each file (default: the demo's own and those in bench/conversations) as `edgemem demo` does:
every pair through `Memory.add`, then the questions from a new process. One row for each file.
--vault: the stores are encrypted.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

import edgemem
from bench import report
from bench.vault import PASSPHRASE
from edgemem import Memory
from edgemem.cli import demo
from edgemem.pipeline.importers import read_demo
from edgemem.vault import PASSPHRASE_VARIABLE, is_vault

DEFAULT = [
    Path(edgemem.__file__).parent / "data" / "demo.json",
    *sorted((Path(__file__).parent / "conversations").glob("*.json")),
]


def play(file: Path, console: Console, *, vault: bool = False) -> dict[str, Any]:
    """The row of one conversation."""
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as scratch:
        store = str(Path(scratch) / "demo.db")
        if vault:
            os.environ[PASSPHRASE_VARIABLE] = PASSPHRASE  # for the process that answers
            Memory(store, passphrase=PASSPHRASE).close()
        demo.play(read_demo(file), store, console)
        played = time.perf_counter()
        answers, answering = demo.answer_questions(str(file), store, console)
        encrypted = is_vault(Path(store))
    ended = time.perf_counter()
    return {
        "file": file.name,
        "vault": encrypted,
        "right": sum(a["right"] for a in answers),
        "of": len(answers),
        "seconds": round(ended - started, 1),
        "playing_s": round(played - started, 1),
        "playing_peak_rss_mb": _whole(report.peak_rss_mb()),  # of all files so far
        "answering_peak_rss_mb": _whole(answering),
        "wrong": [
            {key: a[key] for key in ("question", "answer", "expected")}
            for a in answers
            if not a["right"]
        ],
    }


def _whole(megabytes: float | None) -> int | None:
    return None if megabytes is None else round(megabytes)


def run(
    files: Sequence[Path], console: Console, *, vault: bool = False
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Summary and rows."""
    rows = []
    for file in files:
        rows.append(play(file, console, vault=vault))
        row = rows[-1]
        sys.stderr.write(f"{file.name}: {row['right']} of {row['of']}, {row['seconds']} s\n")
    peaks = [
        row[key]
        for row in rows
        for key in ("playing_peak_rss_mb", "answering_peak_rss_mb")
        if row[key] is not None
    ]
    summary = {
        "right": sum(row["right"] for row in rows),
        "of": sum(row["of"] for row in rows),
        "seconds": round(sum(row["seconds"] for row in rows), 1),
        "peak_rss_mb": max(peaks, default=None),
    }
    return summary, rows


def main(argv: Sequence[str] | None = None) -> None:
    parser = report.parser("demo_set", __doc__, to_file=False)
    parser.add_argument("files", type=Path, nargs="*", metavar="FILE", help="conversations")
    parser.add_argument("--vault", action="store_true", help="encrypted stores")
    parser.add_argument("--show", action="store_true", help="show the conversations on stderr")
    options = parser.parse_args(argv)
    console = Console(stderr=True, quiet=not options.show, highlight=False, soft_wrap=True)
    report.write(options.json, *run(options.files or DEFAULT, console, vault=options.vault))


if __name__ == "__main__":
    main()
