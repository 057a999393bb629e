"""How often does a search find the turn that holds the answer? LoCoMo, no language model.

    python -m bench.locomo --data DIR --json OUT [--k 1 5 10 20] [--leave-one-out] [--ablation]
        [--vectors float32|int8] [--retrieval fast|careful]
    python -m bench.locomo --data DIR --json OUT --answer [--source turns|memories]
        [--experts NAME] [--sample N]

Every turn of every conversation in DIR is stored as it is (`infer=False`), each conversation in
its own scope of one store; then each question is asked through `Memory.search`. Hit@k: any
evidence turn is among the first k; Recall@k: the share of evidence turns that are. Categories 1 to
4 (multi-hop, temporal, open domain, single-hop); questions without usable evidence are left out and
counted.

The weights of the product were set on LoCoMo's shared conversations among others. --leave-one-out
also says what is found when each conversation's weights come from all the other ones, as
bench/fit_fusion.py has them (ten minutes); --ablation, the same without each feature in turn.

--answer asks the language model too (corpus/evaluate.py): F1 by category, base against
experts.
"""

from __future__ import annotations

import argparse
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from rich.progress import track

from bench import report
from bench.fit_fusion import gather, hits, leave_one_out, remembering, without
from bench.questions import CATEGORIES, evidence, ingest
from corpus.evaluate import stages_together
from corpus.readers import read_locomo as read_annotated
from edgemem import kernels
from edgemem.config import load_settings
from edgemem.memory import Memory
from edgemem.pipeline.importers import LocomoFile, read_locomo
from edgemem.retrieval.matching import MATCHES
from edgemem.retrieval.search import FEATURES
from edgemem.retrieval.vectors import Dtype

_console = Console(stderr=True)


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


def run(
    folder: Path,
    ks: Sequence[int],
    *,
    vectors: Dtype = "float32",
    retrieval: Literal["fast", "careful"] = "fast",
    loo: bool = False,
    ablation: bool = False,
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Summary and rows (one for each category, one for each conversation)."""
    paths = sorted(folder.glob("*.json"))
    files = [read_locomo(path) for path in paths]
    if not files:
        raise SystemExit(f"{folder} holds no LoCoMo JSON files; give the folder that does")
    settings = replace(load_settings(), vectors=vectors, retrieval=retrieval)
    with (
        tempfile.TemporaryDirectory() as scratch,
        Memory(Path(scratch) / "locomo.db", settings=settings) as memory,
    ):
        seconds = ingest(memory, files)
        turns = memory.store.counts()["turns"]
        answers, left_out = [], 0
        for file in track(files, "asking questions", console=_console):
            more, skipped = ask(memory, file, ks)
            answers += more
            left_out += skipped
        tokens = memory.token_embedder
        if tokens is not None and (loo or ablation):
            remembering(tokens)
        asked = gather("metric", paths, memory.embedder, tokens) if loo or ablation else []
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
        "vectors": vectors,
        "retrieval": "fast" if tokens is None else "careful",
    }
    rows = []
    for key in ("category", "conversation"):
        groups: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for answer in answers:
            groups[answer[key]].append(answer)
        rows += [{key: name, **summarise(group, ks)} for name, group in sorted(groups.items())]
    if asked:
        fitted = hits(leave_one_out(asked, "locomo"), ks)
        summary |= {f"leave_one_out_{name}": value for name, value in fitted.items()}
    if ablation:
        for feature in track(
            FEATURES + MATCHES * bool(tokens), "leaving features out", console=_console
        ):
            fitted = hits(leave_one_out(without(asked, feature), "locomo"), ks)
            rows.append({"without": feature, **fitted})
    return summary, rows


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.locomo", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--data", type=Path, required=True, help="folder of LoCoMo JSON files")
    parser.add_argument("--json", type=Path, required=True, help="file to write")
    parser.add_argument("--k", type=int, nargs="+", default=[1, 5, 10, 20], help="cut-offs")
    parser.add_argument(
        "--vectors",
        choices=["float32", "int8"],
        default="float32",
        help="how they are held in memory (%(default)s)",
    )
    parser.add_argument(
        "--retrieval",
        choices=["fast", "careful"],
        default="fast",
        help="careful needs the extra colbert (%(default)s)",
    )
    parser.add_argument("--leave-one-out", action="store_true", help="weights from the others")
    parser.add_argument("--ablation", action="store_true", help="also without each feature")
    parser.add_argument("--answer", action="store_true", help="answer the questions, with a model")
    parser.add_argument(
        "--source",
        choices=["turns", "memories"],
        default="turns",
        help="what answers come from: turns, or facts taken from them (%(default)s)",
    )
    parser.add_argument("--experts", default="open", help="of answers (%(default)s)")
    parser.add_argument("--sample", type=int, help="questions of each conversation (default: all)")
    options = parser.parse_args(argv)
    if options.answer:
        files = sorted(options.data.glob("*.json"))
        if not files:
            parser.error(f"{options.data} holds no LoCoMo JSON files; give the folder that does")
        summary, rows = stages_together(
            [read_annotated(path) for path in files],
            source=options.source,
            experts=options.experts,
            most=options.sample,
            track=lambda items, what: track(items, what, console=_console),
        )
        report.write(options.json, summary | {"peak_rss_mb": report.peak_rss_mb()}, rows)
        return
    ks = sorted({1, 5, 10, 20, *options.k})
    summary, rows = run(
        options.data,
        ks,
        vectors=options.vectors,
        retrieval=options.retrieval,
        loo=options.leave_one_out,
        ablation=options.ablation,
    )
    report.write(options.json, summary, rows)


if __name__ == "__main__":
    main()
