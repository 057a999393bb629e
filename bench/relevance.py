"""What does a search score that answers a question, and one that cannot?

    python -m bench.relevance --json OUT [--data DIR] [--most 200]

Each file of models/conversations is stored, its conversations side by side, as several users of one
store, and each of its questions asked: in its own conversation ("own"), in the next one ("other"),
and those that no conversation answers ("unknown"). A row for each file has the shares of these that
find something of at least a score; hit_at_1, hit_at_8: whether the turn that answers is found.
--data: LoCoMo's conversations as well, each a user of one store. No language model is asked.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track

from bench import report
from edgemem.memory import Memory
from edgemem.retrieval.fusion import RELEVANT
from edgemem.training import locomo, written
from edgemem.training.annotated import Annotated, store

SCORES = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02)
CONVERSATIONS = Path(__file__).resolve().parent.parent / "models" / "conversations"
_console = Console(stderr=True)


def row(name: str, talks: Sequence[Annotated], most: int) -> dict[str, Any]:
    """The shares of one store's questions, of at most about so many."""
    best: dict[str, list[float]] = {"own": [], "other": [], "unknown": []}
    first, found = [], []
    every = max(1, sum(len(talk.questions) for talk in talks) // most)
    with tempfile.TemporaryDirectory() as scratch, Memory(Path(scratch) / "turns.db") as memory:
        for talk in talks:
            store(memory, talk)
        for number, talk in enumerate(track(talks, name, console=_console)):
            other = talks[(number + 1) % len(talks)]
            for question in talk.questions[::every]:
                hits = memory.search(question.text, user_id=talk.id, top_k=8)
                score = hits[0].score if hits else 0.0
                if question.answer is None:
                    best["unknown"].append(score)
                    continue
                best["own"].append(score)
                texts = [hit.memory for hit in hits]
                right = {shown.text for shown in question.evidence}
                first.append(texts[0] in right if texts else False)
                found.append(bool(right & set(texts)))
                hits = memory.search(question.text, user_id=other.id, top_k=1)
                best["other"].append(hits[0].score if hits else 0.0)
    shares = {
        whose: {str(least): mean([score >= least for score in scores]) for least in SCORES}
        for whose, scores in best.items()
    }
    return {
        "file": name,
        "questions": {whose: len(scores) for whose, scores in best.items()},
        "hit_at_1": mean(first),
        "hit_at_8": mean(found),
        **shares,
    }


def mean(values: Sequence[bool]) -> float | None:
    return round(sum(values) / len(values), 3) if values else None


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.relevance", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--json", type=Path, required=True, help="file to write")
    parser.add_argument("--data", type=Path, help="folder of LoCoMo JSON files")
    parser.add_argument("--most", type=int, default=200, help="questions of a file (%(default)s)")
    options = parser.parse_args(argv)
    stores = {path.stem: written.read(path) for path in sorted(CONVERSATIONS.glob("*.txt"))}
    if options.data:
        stores["locomo"] = [locomo.read(path) for path in sorted(options.data.glob("*.json"))]
    rows = [row(name, talks, options.most) for name, talks in stores.items() if talks]
    ours = [r for r in rows if r["file"] != "locomo"]
    summary = {"relevant": RELEVANT} | {
        whose: round(sum(r[whose][str(RELEVANT)] for r in ours) / len(ours), 3)
        for whose in ("own", "other", "unknown")
    }
    report.write(options.json, summary, rows)


if __name__ == "__main__":
    main()
