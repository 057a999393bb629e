"""How good is each stage, base against expert? (MemLoRA's Table 4, on a small model.)

    python -m bench.stages --data DIR --json OUT [--experts open|locomo|FOLDER]
        [--pairs 120] [--questions 100] [--operations 200] [--seed 0]

Extraction and answers: of each LoCoMo conversation in DIR, pairs of messages and questions drawn at
random. Answers are given from the evidence turns (`gold`) and from what a search finds among all
turns (`retrieved`), at most the number that `Chat` shows. Update: operations of the generator's
validation templates, which no training saw. Base and expert read the same short prompts; of the
base the better of a free answer and one forced by a grammar is reported. In the summary are the
expert's figures, over all conversations, and the base's F1 of answers from retrieved turns.
"""

from __future__ import annotations

import argparse
import random
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console
from rich.progress import track

from bench import report
from bench.questions import ingest
from edgemem.chat import SHOWN_TURNS
from edgemem.importers import read_locomo
from edgemem.memory import Memory
from edgemem.runtime import experts
from edgemem.runtime.engine import Engine
from edgemem.training import evaluate, generator, locomo

T = TypeVar("T")
_console = Console(stderr=True)


def sample(items: Sequence[T], most: int, seed: int) -> list[T]:
    """At most so many of the items, in their order."""
    chosen = sorted(random.Random(seed).sample(range(len(items)), min(most, len(items))))
    return [items[i] for i in chosen]


def run(
    files: Sequence[Path], name: str, n_pairs: int, n_questions: int, n_operations: int, seed: int
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Summary and rows, those of base and expert side by side."""
    experts.find(name)  # an error now, not after the base
    pairs: list[locomo.Pair] = []
    questions: list[locomo.Question] = []
    memory_of: dict[str, str] = {}
    # About 38 operations come of one conversation.
    made = generator.examples(1 + n_operations // 20, seed=seed, split="valid", stages=["update"])
    operations = sample(list(made), n_operations, seed)
    rows: list[dict[str, Any]] = []
    with (
        tempfile.TemporaryDirectory() as scratch,
        Memory(Path(scratch) / "locomo.db") as memory,
    ):
        read = [read_locomo(path) for path in files]
        ingest(memory, read)
        for path, file in zip(files, read, strict=True):
            pairs += sample(locomo.pairs(path), n_pairs, seed)
            for question in sample(locomo.questions(file), n_questions, seed):
                questions.append(question)
                memory_of[question.text] = file.sample_id
        found = {
            q.text: locomo.retrieved(memory, memory_of[q.text], q.text, SHOWN_TURNS)
            for q in track(questions, "searching", console=_console)
        }
        contexts: dict[str, evaluate.Shown] = {
            "gold": lambda q: q.evidence,
            "retrieved": lambda q: found[q.text],
        }
        for who in ("base", "expert"):
            with Engine.load() as engine:
                if who == "expert":
                    experts.load(engine, name)

                def progress(items: Sequence[T], what: str, who: str = who) -> Iterable[T]:
                    return track(items, f"{who}: {what}", console=_console)

                extractions = [
                    evaluate.extraction_row(
                        evaluate.Reader(engine, grammar=grammar), pairs, progress
                    )
                    | {"grammar": grammar}
                    for grammar in ((False, True) if who == "base" else (False,))
                ]
                best = max(extractions, key=lambda row: row["rouge_1_nonempty"] or 0)
                reader = evaluate.Reader(engine, grammar=who == "base")
                found_rows = [
                    best,
                    *evaluate.update_rows(reader, memory.embedder, operations, progress),
                    *evaluate.generation_rows(reader, questions, contexts, progress),
                ]
                rows += [{"who": who, **row} for row in found_rows]
    return summarise(rows, name, files), rows


def summarise(rows: Sequence[dict[str, Any]], name: str, files: Sequence[Path]) -> dict[str, Any]:
    def row(who: str, **wanted: str) -> dict[str, Any]:
        return next(
            r for r in rows if r["who"] == who and all(r.get(k) == v for k, v in wanted.items())
        )

    extraction = row("expert", stage="extraction")
    return {
        "experts": name,
        "conversations": [path.stem for path in files],
        "extraction_json_valid": extraction["json_valid"],
        "extraction_rouge1_nonempty": extraction["rouge_1_nonempty"],
        "extraction_empty_accuracy": extraction["empty_accuracy"],
        "update_accuracy": row("expert", by="rules and model")["macro_accuracy"],
        "generation_f1": row("expert", context="retrieved")["f1"],
        "generation_f1_gold": row("expert", context="gold")["f1"],
        "generation_f1_base": row("base", context="retrieved")["f1"],
        "peak_rss_mb": report.peak_rss_mb(),
    }


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
    summary, rows = run(
        files,
        options.experts,
        options.pairs,
        options.questions,
        options.operations,
        options.seed,
    )
    report.write(options.json, summary, rows)


if __name__ == "__main__":
    main()
