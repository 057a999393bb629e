"""How often does a search find the turn that holds the answer? LoCoMo, no language model.

    python -m bench.locomo --data DIR --json OUT [--k 1 5 10 20] [--leave-one-out] [--ablation]
        [--vectors float32|int8] [--retrieval fast|careful] [--vault]
    python -m bench.locomo --data DIR --json OUT --answer [--source turns|memories]
        [--experts NAME] [--sample N]
    … [--apart] [--ray ADDRESS]

Every turn of every conversation in DIR is stored as it is (`infer=False`), each conversation in
its own scope of one store; then each question is asked through `Memory.search`. Hit@k: any
evidence turn is among the first k. Recall@k: the share of evidence turns among the first k.
Questions are of categories 1 to 4 (multi-hop, temporal, open domain, single-hop). Those without
usable evidence are left out and counted. Questions that a photo's caption answers have a row of
their own: a word of the answer is in the caption, but not in what was said. --vault: the store is
encrypted.

The product's ranking weights were fitted on LoCoMo's shared conversations, among others.
--leave-one-out adds the figures when each conversation is ranked with weights fitted on all the
others, as in bench/fit_fusion.py (ten minutes). --ablation adds the same without each feature in
turn.

--answer asks the language model too (corpus/evaluate.py): F1 by category, base against
experts.

--apart: each conversation has its own store, as each person has, so that the store's metric is
fitted to this conversation alone. --ray spreads these stores over the CPUs of a Ray cluster (extra
`fleet`). Finished parts are stored beside the --json file until all are done; if the run stops, the
same command resumes from them.
"""

from __future__ import annotations

import tempfile
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from bench import report
from bench.fit_fusion import gather, hits, leave_one_out, without
from bench.questions import CATEGORIES, evidence, ingest
from bench.spread import spread
from bench.vault import PASSPHRASE
from corpus.evaluate import together, together_summary
from corpus.readers import LocomoFile, locomo_file, read_locomo
from edgemem import kernels
from edgemem.config import load_settings
from edgemem.language import content_words, same_word, words
from edgemem.memory import Memory
from edgemem.pipeline.importers import SHARES
from edgemem.retrieval.search import FEATURES, MATCHES
from edgemem.retrieval.vectors import Dtype


def ask(memory: Memory, file: LocomoFile, ks: Sequence[int]) -> tuple[list[dict[str, Any]], int]:
    """One row per question of a conversation, and how many questions had no usable evidence."""
    said = {m["metadata"]["dia_id"]: str(m["content"]) for m in file.messages}
    rows, left_out = [], 0
    for question in file.qa:
        if question.get("category") not in CATEGORIES:
            continue
        wanted = evidence(question, set(said))
        if not wanted:
            left_out += 1
            continue
        hits = memory.search(question["question"], user_id=file.sample_id, top_k=max(ks))
        ranked = [hit.metadata["dia_id"] for hit in hits]
        row = {
            "conversation": file.sample_id,
            "category": CATEGORIES[question["category"]],
            "photo": _in_caption(str(question.get("answer", "")), [said[turn] for turn in wanted]),
            "embed_ms": hits.embed_ms,
            "search_ms": hits.search_ms,
        }
        for k in ks:
            found = len(set(ranked[:k]) & set(wanted))
            row[f"hit_at_{k}"] = int(found > 0)
            row[f"recall_at_{k}"] = found / len(wanted)
        rows.append(row)
    return rows, left_out


def _in_caption(answer: str, turns: Sequence[str]) -> bool:
    """Whether a photo's caption in these turns has a word of the answer that nobody said."""
    parts = [turn.partition(SHARES) for turn in turns]
    told, shown = (set(words(" ".join(part[i] for part in parts))) for i in (0, 2))
    return any(same_word(w, shown) and not same_word(w, told) for w in content_words(answer))


def summarise(rows: Sequence[dict[str, Any]], ks: Sequence[int]) -> dict[str, Any]:
    """Means of each measure over the questions."""
    names = [f"{measure}_at_{k}" for k in ks for measure in ("hit", "recall")]
    means = {name: sum(r[name] for r in rows) / len(rows) for name in names}
    return {"n": len(rows), **{name: round(value, 4) for name, value in means.items()}}


def score(part: dict[str, Any]) -> dict[str, Any]:
    """The rows and costs of one store, or with `answer` the figures of its answers.

    part: "files" maps names to the text of LoCoMo's files; "answer" has the arguments of
    `together`; without it, "ks", "vectors", "retrieval" and "vault" configure the search. The
    argument and the result are JSON values, as `fleet` requires.
    """
    with tempfile.TemporaryDirectory() as scratch:
        paths = [Path(scratch) / name for name in part["files"]]
        for path in paths:
            path.write_text(part["files"][path.name], encoding="utf-8")
        if part.get("answer"):
            return together(
                [read_locomo(path) for path in paths],
                **part["answer"],
                track=report.track,
            )
        files = [locomo_file(path) for path in paths]
        how = {key: part[key] for key in ("vectors", "retrieval")}
        settings = replace(load_settings(), **how)
        passphrase = PASSPHRASE if part["vault"] else None
        store = Path(scratch) / "locomo.db"
        with Memory(store, settings=settings, passphrase=passphrase) as memory:
            found: dict[str, Any] = {"seconds": ingest(memory, files), "rows": [], "left_out": 0}
            found["turns"] = memory.store.counts()["turns"]
            found["careful"] = memory.token_embedder is not None
            for file in report.track(files, "asking questions"):
                more, skipped = ask(memory, file, part["ks"])
                found["rows"] += more
                found["left_out"] += skipped
    return found | {"peak_rss_mb": report.peak_rss_mb()}


def scored(
    paths: Sequence[Path], kept: Path, *, apart: bool, ray: str | None, **how: Any
) -> list[dict[str, Any]]:
    """The results of `score`, for one store of all files, or one per file with `apart` or `ray`."""
    from bench.locomo import score  # a cluster needs this name, even if this file runs as __main__

    texts = {path.name: path.read_text(encoding="utf-8") for path in paths}
    if not apart and ray is None:
        return [score({"files": texts, **how})]
    parts = [{"files": {name: text}, **how} for name, text in texts.items()]
    return spread(score, parts, kept, address=ray)


def run(
    paths: Sequence[Path],
    ks: Sequence[int],
    *,
    vectors: Dtype = "float32",
    retrieval: Literal["fast", "careful"] = "fast",
    vault: bool = False,
    loo: bool = False,
    ablation: bool = False,
    apart: bool = False,
    ray: str | None = None,
    kept: Path = Path("locomo.parts"),
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Summary and rows (one for each category, one for each conversation)."""
    how: dict[str, Any] = {"vectors": vectors, "retrieval": retrieval}
    parts = scored(paths, kept, apart=apart, ray=ray, ks=list(ks), vault=vault, **how)
    answers = [row for part in parts for row in part["rows"]]
    turns = sum(part["turns"] for part in parts)
    careful = parts[0]["careful"]
    asked = gather("metric", paths, careful=careful) if loo or ablation else []
    summary = {
        **summarise(answers, ks),
        "left_out": sum(part["left_out"] for part in parts),
        "turns": turns,
        "turns_per_s": round(turns / sum(part["seconds"] for part in parts), 1),
        "embed_ms_p50": round(report.percentile([r["embed_ms"] for r in answers], 50), 2),
        "search_ms_p50": round(report.percentile([r["search_ms"] for r in answers], 50), 2),
        "search_ms_p95": round(report.percentile([r["search_ms"] for r in answers], 95), 2),
        "peak_rss_mb": max(part["peak_rss_mb"] for part in parts),
        "backend": kernels.backend,
        "vectors": vectors,
        "vault": vault,
        "retrieval": "careful" if careful else "fast",
        "stores": len(parts),
    }
    rows = []
    for key in ("category", "conversation", "photo"):
        groups: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for answer in answers:
            groups[answer[key]].append(answer)
        rows += [{key: name, **summarise(group, ks)} for name, group in sorted(groups.items())]
    if asked:
        fitted = hits(leave_one_out(asked, "locomo"), ks)
        summary |= {f"leave_one_out_{name}": value for name, value in fitted.items()}
    if ablation:
        for feature in report.track(FEATURES + MATCHES * careful, "leaving features out"):
            fitted = hits(leave_one_out(without(asked, feature), "locomo"), ks)
            rows.append({"without": feature, **fitted})
    return summary, rows


def main(argv: Sequence[str] | None = None) -> None:
    parser = report.parser("locomo", __doc__, data="LoCoMo")
    parser.add_argument("--k", type=int, nargs="+", default=[1, 5, 10, 20], help="cut-offs")
    parser.add_argument(
        "--vectors",
        choices=["float32", "int8"],
        default="float32",
        help="how they are held in memory (%(default)s)",
    )
    report.add_retrieval(parser)
    parser.add_argument("--vault", action="store_true", help="an encrypted store")
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
    parser.add_argument("--apart", action="store_true", help="a store for each conversation")
    parser.add_argument("--ray", metavar="ADDRESS", help="the same on a cluster, or `local`")
    options = parser.parse_args(argv)
    kept = options.json.with_name(options.json.name + ".parts")
    where = {"apart": options.apart, "ray": options.ray}
    if options.answer:
        how = {"source": options.source, "experts": options.experts}
        parts = scored(options.data, kept, **where, answer={**how, "most": options.sample})
        summary, rows = together_summary(parts, **how)
        report.write(options.json, summary | {"peak_rss_mb": report.peak_rss_mb()}, rows)
        return
    ks = sorted({1, 5, 10, 20, *options.k})
    summary, rows = run(
        options.data,
        ks,
        vectors=options.vectors,
        retrieval=options.retrieval,
        vault=options.vault,
        loo=options.leave_one_out,
        ablation=options.ablation,
        kept=kept,
        **where,
    )
    report.write(options.json, summary, rows)


if __name__ == "__main__":
    main()
