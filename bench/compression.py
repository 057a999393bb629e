"""Does a compressed context keep the answer?

    python -m bench.compression --data DIR --json OUT [--full] [--questions 120]
        [--conversations 3] [--seed 0] [--workers 2] [--methods M …] [--default M]

LoCoMo's questions, each with a context (bench/contexts.py) that is compressed by each method
(bench/compressors.py) and read by a small model, which sees the prompt of CoreMem's appendix E.
The default run: gold contexts, 50 % and 33 %, SmolLM2, what ships beside its ablations and rivals.
--full adds the other methods, retrieved contexts with 1000, 500 and 250 tokens, 67 %, and Gemma 3
270M as a second reader.

What is done is kept in OUT.parts, a case at a time, and the turns with their sensitivities in
OUT.db, so that a run that was stopped goes on; delete both to begin anew. --workers: processes that
take the cases in turns, with the cores shared among them. The figures of texts are the same for any
number of them; ms is of a machine with that much to do.

gap_kept: Σ[log p(answer | question, compressed) - log p(answer | question)] over the same with the
full context, 1 where nothing is lost. answer_words_kept: of the answer's words that the context
has. default_minus, default_words_minus: what --default keeps more than this method, of the one and
of the other. All intervals (`_ci`) are of 95 %, paired bootstraps over questions. entities_kept: of
the names, numbers and dates of the evidence. f1: of the reader's answer. ratio: origin over
compressed tokens. exceeds: contexts above the budget. ms_p50 and cpu_s_per_1000_tokens: of the
compression, scores made for this context included, what is stored ahead of time not. lookup_ms: of
`edgemem.pipeline.condense` over memories of 2,000 tokens, half of them kept, counted as the model
counts and (lookup_estimate_ms) by the estimate that is its default.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from itertools import count
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import Progress, track

from bench import report
from bench.compressors import METHODS, OURS
from bench.contexts import Case, cases, store
from bench.reading import N_CTX, READERS, Item, Key, Task, measured, start
from bench.sensitivity import measure
from edgemem.compression.compress import Tokenize
from edgemem.compression.layout import estimated_tokens
from edgemem.compression.sensitivity import Scorer
from edgemem.memory import Memory
from edgemem.pipeline.ahead import score_window
from edgemem.pipeline.condense import condense
from edgemem.pipeline.importers import read_locomo
from edgemem.runtime import models
from edgemem.runtime.engine import Engine
from edgemem.store.store import backlog

DEFAULT = "ours_question"
ONLY_FULL = ("random_sentences", "ours_exact", "ours_product")
ABLATIONS = ("ours_fisher", "ours_information", "ours_product")
LOOKUP_TOKENS = 2000
LOOKUP_QUESTIONS, LOOKUP_ROUNDS = 20, 5
LIMIT_TOKENS = 512
BOOTSTRAPS = 2000
_console = Console(stderr=True)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--json", required=True)
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--questions", type=int, default=120, metavar="N")
    parser.add_argument("--conversations", type=int, default=3, metavar="N")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=min(2, _cores()), metavar="N")
    parser.add_argument("--methods", nargs="*", choices=METHODS, help="only these")
    parser.add_argument("--default", choices=METHODS, default=DEFAULT)
    options = parser.parse_args(arguments)
    paths = sorted(options.data.glob("*.json"))[: options.conversations]
    if not paths:
        raise SystemExit(f"{options.data} holds no LoCoMo JSON files; give the folder that does")
    files = [read_locomo(path) for path in paths]
    methods = options.methods or [m for m in METHODS if options.full or m not in ONLY_FULL]
    budgets = {"gold": ["67%", "50%", "33%"] if options.full else ["50%", "33%"]}
    if options.full:
        budgets["retrieved"] = ["67%", "50%", "33%", "1000", "500", "250"]
    readers = list(READERS) if options.full else list(READERS)[:1]
    for reader in readers:
        models.find(READERS[reader] or models.DEFAULT_LLM)  # now, and not after the scoring
    parts, db = Path(f"{options.json}.parts"), Path(f"{options.json}.db")
    parts.parent.mkdir(parents=True, exist_ok=True)
    started = time.perf_counter()
    with Memory(db) as memory:
        store(memory, files)
        drawn = {
            context: cases(files, options.questions, options.seed, held)
            for context, held in (("gold", None), ("retrieved", memory))
            if context in budgets
        }
        if "ours_lookup" in methods:
            _score_ahead(memory)
    tasks = []
    for context, of_context in drawn.items():
        asked = [(m, b) for b in budgets[context] for m in methods]
        wanted = [(r, m, b) for r in readers for m, b in [("none", ""), ("full", ""), *asked]]
        for case in of_context:
            tasks.append(Task(case, tuple((context, r, case.id, m, b) for r, m, b in wanted)))
    items = _measured(tasks, parts, options.workers, (db, readers))
    rows = _rows({key: items[key] for task in tasks for key in task.keys}, options.default)
    lookups: dict[str, list[float]] = {}
    if "ours_lookup" in methods:
        some = drawn["gold"][:LOOKUP_QUESTIONS]
        with Memory(db) as memory, Engine.load(n_ctx=N_CTX) as engine:
            lookups["lookup"] = _lookup_ms(memory, some, engine.token_offsets)
            lookups["lookup_estimate"] = _lookup_ms(memory, some, estimated_tokens)
    summary = {
        "n": options.questions,
        "conversations": [file.sample_id for file in files],
        "default": options.default,
        **_summary(rows),
        "lookup_tokens": LOOKUP_TOKENS,
        **{
            f"{name}_ms_p{p}": round(report.percentile(times, p), 2)
            for name, times in lookups.items()
            for p in (50, 95)
        },
        "exact_over_gemm_limit": round(
            measure(None, LIMIT_TOKENS, min(2, _cores()), 3)["ratio"], 2
        ),
        "workers": options.workers,
        "seconds": round(time.perf_counter() - started),
    }
    report.write(options.json, summary, rows)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _score_ahead(memory: Memory) -> None:
    """What an open store does while nothing else is done."""
    todo = backlog(memory.store)["missing"]
    if not todo:
        return
    with Scorer.load() as scorer, Progress(console=_console) as bar:
        task = bar.add_task("scoring turns ahead of time", total=todo)
        while scored := score_window(memory.store, scorer):
            bar.advance(task, scored)


def _measured(
    tasks: Sequence[Task], parts: Path, workers: int, opened: tuple[Any, ...]
) -> dict[Key, Item]:
    """The items of all tasks' keys: those of the parts file, and the others, which go into it."""
    items = _read_parts(parts)
    left = [replace(t, keys=tuple(k for k in t.keys if k not in items)) for t in tasks]
    left = [task for task in left if task.keys]
    if not left:
        return items
    threads = max(1, _cores() // workers)
    processes = ProcessPoolExecutor(workers, get_context("spawn"), start, (*opened, threads))
    with processes as pool, parts.open("a", encoding="utf-8") as log:
        done = as_completed([pool.submit(measured, task) for task in left])
        try:
            for future in track(done, "questions", total=len(left), console=_console):
                found = future.result()
                items.update(found)
                log.writelines(json.dumps([key, item]) + "\n" for key, item in found)
                log.flush()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return items


def _rows(items: dict[Key, Item], default: str) -> list[dict[str, Any]]:
    groups: dict[tuple[str, str, str, str], dict[str, Item]] = defaultdict(dict)
    for (context, reader, case, method, budget), item in items.items():
        groups[context, reader, method, budget][case] = item
    rows = []
    for (context, reader, method, budget), group in groups.items():
        if method == "none":
            continue
        base = _column(groups[context, reader, "none", ""].values(), "log_p")
        full = groups[context, reader, "full", ""].values()
        gain, room = (_column(of, "log_p") - base for of in (group.values(), full))
        answer_words = _column(group.values(), "answer_words")
        others = groups.get((context, reader, default, budget), {}).values()
        more_gain, more_words = gain * np.nan, answer_words * np.nan
        if others:
            more_gain = _column(others, "log_p") - base - gain
            more_words = _column(others, "answer_words") - answer_words
        drawn = np.random.default_rng(0).integers(len(gain), size=(BOOTSTRAPS, len(gain)))
        room_drawn = room[drawn].sum(axis=1)
        rows.append(
            {
                "method": method,
                "budget": budget,
                "context": context,
                "reader": reader,
                "n": len(group),
                "gap_kept": _rounded(gain.sum() / room.sum()),
                "gap_kept_ci": _interval(gain[drawn].sum(axis=1) / room_drawn),
                "default_minus": _rounded(more_gain.sum() / room.sum()),
                "default_minus_ci": _interval(more_gain[drawn].sum(axis=1) / room_drawn),
                "answer_words_kept": _mean(answer_words),
                "answer_words_kept_ci": _interval(_means(answer_words[drawn])),
                "default_words_minus": _mean(more_words),
                "default_words_minus_ci": _interval(_means(more_words[drawn])),
                "entities_kept": _mean(_column(group.values(), "entities")),
                "f1": _mean(_column(group.values(), "f1")),
                "f1_full": _mean(_column(full, "f1")),
                "ratio": _mean([i["origin"] / max(1, i["tokens"]) for i in group.values()]),
                "exceeds": sum(i["tokens"] > i["most"] for i in group.values()),
                "ms_p50": round(report.percentile([i["ms"] for i in group.values()], 50), 2),
                "cpu_s_per_1000_tokens": round(
                    1e3
                    * sum(i["cpu_s"] for i in group.values())
                    / sum(i["origin"] for i in group.values()),
                    3,
                ),
            }
        )
    return rows


def _summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """budget_violations: contexts of ours above the budget, over all rows."""
    at_half = {
        r["method"]: r["gap_kept"]
        for r in rows
        if (r["budget"], r["context"], r["reader"]) == ("50%", "gold", "smollm2")
    }
    ours = {m: gap for m, gap in at_half.items() if m in OURS and m not in ABLATIONS}
    return {
        "budget_violations": sum(r["exceeds"] for r in rows if r["method"] in OURS),
        "best_ours_50": max(ours.values(), default=None),
        "best_ours_50_method": max(ours, key=lambda m: ours[m], default=None),
        "top_sentences_50": at_half.get("top_sentences"),
    }


def _lookup_ms(memory: Memory, drawn: Sequence[Case], tokenizer: Tokenize) -> list[float]:
    """Times of condensing 2,000 tokens of memories that a search found to half of them."""
    spent = []
    for case in drawn:
        found = memory.search(
            case.question, user_id=case.file.sample_id, top_k=len(case.file.messages)
        )
        for most in count(10):
            whole = condense(memory, case.question, found[:most], rate=1.0, tokenizer=tokenizer)
            if whole.context.origin_tokens >= LOOKUP_TOKENS or most > len(found):
                break
        for _ in range(LOOKUP_ROUNDS):
            started = time.perf_counter()
            condense(memory, case.question, found[:most], rate=0.5, tokenizer=tokenizer)
            spent.append((time.perf_counter() - started) * 1e3)
    return spent


def _read_parts(path: Path) -> dict[Key, Item]:
    """What an earlier run has done; a line that it was stopped in is left out."""
    items: dict[Key, Item] = {}
    if path.exists():
        text = path.read_text(encoding="utf-8")
        whole, _, cut = text.rpartition("\n")
        if cut:
            path.write_text(f"{whole}\n" if whole else "", encoding="utf-8")
        for line in whole.splitlines():
            key, item = json.loads(line)
            items[tuple(key)] = item
    return items


def _column(items: Iterable[Item], name: str) -> NDArray[np.float64]:
    """One number of each; nan where it is None."""
    return np.array([item[name] for item in items], np.float64)


def _means(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Of each row, without its nans; nan if it has nothing else."""
    known = ~np.isnan(values)
    with np.errstate(invalid="ignore"):
        return np.where(known, values, 0).sum(axis=1) / known.sum(axis=1)


def _mean(values: Iterable[float]) -> float | None:
    known = np.asarray(values, np.float64)
    known = known[~np.isnan(known)]
    return round(float(known.mean()), 4) if len(known) else None


def _rounded(value: float) -> float | None:
    return None if np.isnan(value) else round(float(value), 3)


def _interval(values: NDArray[np.float64]) -> list[float] | None:
    known = values[~np.isnan(values)]
    return [round(float(v), 3) for v in np.percentile(known, [2.5, 97.5])] if len(known) else None


if __name__ == "__main__":
    main()
