"""How often does a search find the turn that holds the answer? LoCoMo, no language model.

    python -m bench.locomo --data DIR --json OUT [--k 1 5 10 20]

Every turn of every conversation in DIR is stored as it is (`infer=False`), each conversation in
its own scope of one store; then each question is asked through `Memory.search`. Hit@k: any
evidence turn is among the first k; Recall@k: the share of evidence turns that are. Categories 1 to
4 (multi-hop, temporal, open domain, single-hop); questions without usable evidence are left out and
counted.
"""

from __future__ import annotations

import argparse
import re
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track

from bench import report
from edgemem import kernels
from edgemem.importers import LocomoFile, batches, read_locomo
from edgemem.memory import Memory

CATEGORIES = {1: "multi-hop", 2: "temporal", 3: "open-domain", 4: "single-hop"}
_DIALOGUE_ID = re.compile(r"\bD\d+:\d+\b")
_console = Console(stderr=True)


def evidence(question: dict[str, Any], known: set[str]) -> list[str]:
    """The ids of a question's evidence turns that exist in the conversation."""
    found = [id for e in question.get("evidence", []) for id in _DIALOGUE_ID.findall(str(e))]
    return [id for id in dict.fromkeys(found) if id in known]


def ingest(memory: Memory, files: Sequence[LocomoFile]) -> float:
    """Store every turn; seconds taken."""
    started = time.perf_counter()
    for file in track(files, "storing turns", console=_console):
        for batch in batches(file.messages, infer=False):
            memory.add(batch, user_id=file.sample_id, infer=False)
    return time.perf_counter() - started


def ask(memory: Memory, file: LocomoFile, ks: Sequence[int]) -> tuple[list[dict[str, Any]], int]:
    """One row for each question of a conversation, and how many had no usable evidence."""
    known = {m["metadata"]["dia_id"] for m in file.messages}
    rows, left_out = [], 0
    for question in file.qa:
        if question.get("category") not in CATEGORIES:
            continue
        wanted = evidence(question, known)
        if not wanted:
            left_out += 1
            continue
        hits = memory.search(question["question"], user_id=file.sample_id, top_k=max(ks))
        ranked = [hit.metadata["dia_id"] for hit in hits]
        row = {
            "conversation": file.sample_id,
            "category": CATEGORIES[question["category"]],
            "embed_ms": hits.embed_ms,
            "search_ms": hits.search_ms,
        }
        for k in ks:
            found = len(set(ranked[:k]) & set(wanted))
            row[f"hit_at_{k}"] = int(found > 0)
            row[f"recall_at_{k}"] = found / len(wanted)
        rows.append(row)
    return rows, left_out


def summarise(rows: Sequence[dict[str, Any]], ks: Sequence[int]) -> dict[str, Any]:
    """Means of each measure over the questions."""
    names = [f"{measure}_at_{k}" for k in ks for measure in ("hit", "recall")]
    means = {name: sum(r[name] for r in rows) / len(rows) for name in names}
    return {"n": len(rows), **{name: round(value, 4) for name, value in means.items()}}


def run(folder: Path, ks: Sequence[int]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Summary and rows (one for each category, one for each conversation)."""
    files = [read_locomo(path) for path in sorted(folder.glob("*.json"))]
    if not files:
        raise SystemExit(f"{folder} holds no LoCoMo JSON files; give the folder that does")
    with tempfile.TemporaryDirectory() as scratch, Memory(Path(scratch) / "locomo.db") as memory:
        seconds = ingest(memory, files)
        turns = memory.store.counts()["turns"]
        answers, left_out = [], 0
        for file in track(files, "asking questions", console=_console):
            more, skipped = ask(memory, file, ks)
            answers += more
            left_out += skipped
    summary = {
        **summarise(answers, ks),
        "left_out": left_out,
        "turns": turns,
        "turns_per_s": round(turns / seconds, 1),
        "embed_ms_p50": round(report.percentile([r["embed_ms"] for r in answers], 50), 2),
        "search_ms_p50": round(report.percentile([r["search_ms"] for r in answers], 50), 2),
        "search_ms_p95": round(report.percentile([r["search_ms"] for r in answers], 95), 2),
        "peak_rss_mb": report.peak_rss_mb(),
        "backend": kernels.backend,
    }
    rows = []
    for key in ("category", "conversation"):
        groups: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for answer in answers:
            groups[answer[key]].append(answer)
        rows += [{key: name, **summarise(group, ks)} for name, group in sorted(groups.items())]
    return summary, rows


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.locomo", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--data", type=Path, required=True, help="folder of LoCoMo JSON files")
    parser.add_argument("--json", type=Path, required=True, help="file to write")
    parser.add_argument("--k", type=int, nargs="+", default=[1, 5, 10, 20], help="cut-offs")
    options = parser.parse_args(argv)
    summary, rows = run(options.data, sorted({1, 5, 10, 20, *options.k}))
    report.write(options.json, summary, rows)


if __name__ == "__main__":
    main()
