"""How good is each stage, base against expert? (MemLoRA's Table 4, on a small model.)

    python -m bench.stages --data DIR --json OUT [--experts open|locomo|FOLDER]
        [--pairs 120] [--questions 100] [--operations 200] [--seed 0]

Does what `python -m corpus eval` does, on LoCoMo's conversations in DIR (see corpus/evaluate.py).
The summary has the expert's figures over all conversations, and the base model's F1 of answers from
retrieved turns.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import track

from bench import report
from corpus.evaluate import stages_alone
from corpus.readers import read_locomo

_console = Console(stderr=True)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.stages", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--data", type=Path, required=True, help="folder of LoCoMo JSON files")
    parser.add_argument("--json", type=Path, required=True, help="file to write")
    parser.add_argument("--conversation", metavar="NAME", help="one file of it (default: all)")
    parser.add_argument("--experts", default="open", help="a set's name or folder (%(default)s)")
    parser.add_argument("--pairs", type=int, default=120, help="of messages, a conversation")
    parser.add_argument("--questions", type=int, default=100, help="a conversation")
    parser.add_argument("--operations", type=int, default=200, help="of update, in all")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(argv)
    files = sorted(options.data.glob(options.conversation or "*.json"))
    if not files:
        parser.error(f"{options.data} holds no such LoCoMo JSON file")
    if min(options.pairs, options.questions, options.operations) < 1:
        parser.error("--pairs, --questions and --operations must be 1 or more")
    summary, rows = stages_alone(
        [read_locomo(path) for path in files],
        options.experts,
        pairs=options.pairs,
        questions=options.questions,
        operations=options.operations,
        seed=options.seed,
        track=lambda items, what: track(items, what, console=_console),
    )
    report.write(options.json, summary | {"peak_rss_mb": report.peak_rss_mb()}, rows)


if __name__ == "__main__":
    main()
