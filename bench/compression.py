"""Does a compressed context keep the answer?

    python -m bench.compression --data DIR --json OUT [--model FILE] [--budgets 50 33 20 10]
        [--questions 24] [--read 24] [--methods M …] [--scorer FILE] [--drafter FILE] [--seed 0]

Each of LoCoMo's questions has a context (bench/contexts.py). Each method (bench/compressors.py)
compresses the context to so many percent of its tokens. A model reads the result in the prompt of
CoreMem's appendix E (bench/reading.py).

--model: the reader. --scorer: the model of the Fisher scores and of -log p. --drafter: the model
that drafts the answers whose loss the `draft` scores are of (default: the reader). Each is a file
or a name of the manifest, by default the bundled model. --questions: how many contexts are
compressed. --read: how many of these, from the first on, are read. Models' outputs are cached in
OUT.parts, for a run that was interrupted and for one with other methods.

gap_kept: Σ[log p(answer | question, compressed) - log p(answer | question)] over the same with the
full context, 1 where nothing is lost. answer_words_kept: the share kept of the answer's words that
the context has. default_minus, default_words_minus: how much more `question` keeps than this
method, of the gap and of the words. All intervals (`_ci`) are of 95 %, by paired bootstraps over
questions. entities_kept: the share kept of the names, numbers and dates of the evidence. exceeds:
contexts above the budget. weights: of each kind of Fisher score beside the question, by the
conversation left out of the fit. ms_p50: time of the compression without the scores.
"""

from __future__ import annotations

import argparse
import re
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench import report
from bench.compressors import KINDS, METHODS, Job, with_feature
from bench.contexts import Case, cases
from bench.reading import Kept, draft, read, score
from corpus.readers import locomo_file
from edgemem.language import content_words, words
from edgemem.runtime.embedder import Embedder
from edgemem.runtime.engine import Engine

DEFAULT = "question"
NEEDS = {
    "llmlingua": "information",
    **{f"{name}_{kind}": kind for name in ("fdtd", "question") for kind in KINDS},
    "fdtd": "context",
}
"""The kind of scores that each method takes."""
WEIGHTS = (0.0, 0.03, 0.06, 0.1, 0.2, 0.4, 0.8)
N_CTX = 4096
BOOTSTRAPS = 2000
_ENTITY = re.compile(r"(?<!^)(?<![.!?] )\b[A-Z][\w'’]+|\d[\d.,:]*(?<![.,:])")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = report.parser("compression", __doc__, data="LoCoMo")
    parser.add_argument("--model", help="the reader")
    parser.add_argument("--scorer", help="the model of the scores")
    parser.add_argument("--drafter", help="the model of the drafts (default: the reader)")
    parser.add_argument("--budgets", type=int, nargs="+", default=[50, 33, 20, 10], metavar="%")
    parser.add_argument("--questions", type=int, default=24, metavar="N")
    parser.add_argument("--read", type=int, metavar="N", help="(default: all)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--methods", nargs="*", choices=METHODS, default=list(METHODS))
    options = parser.parse_args(arguments)
    files = [locomo_file(path) for path in options.data]
    drawn = cases(files, options.questions, options.seed)
    Path(options.json).parent.mkdir(parents=True, exist_ok=True)
    kept = Kept(Path(f"{options.json}.parts"))
    started = time.perf_counter()
    with ExitStack() as stack:
        reader = stack.enter_context(Engine.load(options.model, n_ctx=N_CTX))
        jobs = _jobs(options, kept, drawn, reader, stack)
        fitted = {kind: _fit(jobs, kind, options.budgets) for kind in _kinds(options.methods)}
        jobs = [replace(job, weights={k: w[job.case.file.sample_id] for k, w in fitted.items()})
                for job in jobs]  # fmt: skip
        items = _items(jobs, options, kept, reader)
    rows = _rows(items, DEFAULT)
    summary = {
        "reader": reader.path.name,
        "n": len(drawn),
        "read": len(drawn) if options.read is None else min(options.read, len(drawn)),
        "conversations": [file.sample_id for file in files],
        "tokens_mean": round(float(np.mean([len(job.tokens) for job in jobs]))),
        "weights": fitted,
        "budget_violations": sum(row["exceeds"] for row in rows if row["method"] != "governor"),
        "seconds": round(time.perf_counter() - started),
    }
    report.write(options.json, summary, rows)


def _kinds(methods: Iterable[str]) -> list[str]:
    """The kinds of scores that some methods take beside the question."""
    return [kind for kind in KINDS if f"question_{kind}" in methods]


def _jobs(
    options: argparse.Namespace,
    kept: Kept,
    drawn: Sequence[Case],
    reader: Engine,
    stack: ExitStack,
) -> list[Job]:
    """Each case with the scores that the methods take."""
    needed = {NEEDS[method] for method in options.methods if method in NEEDS}
    engine = stack.enter_context(Engine.load(options.scorer, n_ctx=N_CTX))
    drafter = reader
    if options.drafter and "draft" in needed:
        drafter = stack.enter_context(Engine.load(options.drafter, n_ctx=N_CTX))
    embed = lru_cache(maxsize=None)(Embedder.load().embed)
    embedder: Any = SimpleNamespace(embed=lambda texts: embed(tuple(texts)))
    jobs = []
    for case in report.track(drawn, "scores"):
        said = {"question": case.question}
        if "draft" in needed:
            said["draft"] = draft(kept, drafter, case) or case.question
        text = "\n".join(case.lines)
        jobs.append(
            Job(
                case=case,
                budget=0,
                tokens=reader.token_offsets(text),
                tokenizer=reader.token_offsets,
                embedder=embedder,
                scores={k: score(kept, engine, case, k, said.get(k, "")) for k in needed},
            )
        )
    return jobs


def _fit(jobs: Sequence[Job], kind: str, budgets: Sequence[int]) -> dict[str, float]:
    """For each conversation the weight of a kind of score, fitted on the other conversations.

    It is the smallest weight that keeps most of the answers' words, as a mean over all budgets.
    """
    kept = np.full((len(WEIGHTS), len(jobs)), np.nan)
    for j, job in enumerate(report.track(jobs, f"weight of {kind}")):
        for w, weight in enumerate(WEIGHTS):
            shares = [
                _judged(job.case, with_feature(_at(job, budget), kind, weight))["answer_words"]
                for budget in budgets
            ]
            kept[w, j] = np.nan if None in shares else np.mean(np.array(shares, np.float64))
    of = np.array([job.case.file.sample_id for job in jobs])
    return {
        name: WEIGHTS[int(np.argmax(np.nan_to_num(np.nanmean(kept[:, of != name], axis=1))))]
        for name in dict.fromkeys(of.tolist())
    }


def _at(job: Job, percent: int) -> Job:
    return replace(job, budget=len(job.tokens) * percent // 100)


Item = dict[str, Any]
Items = dict[tuple[str, str], dict[str, Item]]
"""The figures of each context, by method and budget, then by case."""


def _items(jobs: Sequence[Job], options: argparse.Namespace, kept: Kept, reader: Engine) -> Items:
    """The figures of each context. log_p: nan where the reader does not read the context."""
    asked = [
        ("none", 0),
        ("full", 100),
        *((m, b) for b in options.budgets for m in options.methods),
    ]
    items: Items = defaultdict(dict)
    for number, job in enumerate(report.track(jobs, "contexts")):
        case, made = job.case, {}
        for method, budget in asked:
            at = _at(job, budget)
            begun = time.perf_counter()
            text = None if method == "none" else job.text
            if method in METHODS:
                text = METHODS[method](at)
            ms = (time.perf_counter() - begun) * 1e3
            made[method, budget] = text
            counted = 0 if text is None else len(job.tokenizer(text))
            items[method, str(budget)][case.id] = {
                **(_judged(case, text) if text is not None else {}),
                "log_p": np.nan,
                "tokens": counted,
                "exceeds": counted > at.budget,
                "ms": ms,
            }
        if options.read is None or number < options.read:
            found = read(kept, reader, case, set(made.values()))
            for (method, budget), text in made.items():
                items[method, str(budget)][case.id]["log_p"] = found[text]
    return items


def _judged(case: Case, text: str) -> Item:
    lines = zip(case.lines, case.evidence, strict=True)
    evidence = " ".join(line for line, told in lines if told)
    said = set(words(text))
    answer_words = set(content_words(case.answer)) & set(words("\n".join(case.lines)))
    entities = set(_ENTITY.findall(f". {text}")) | said
    return {
        "answer_words": _share(answer_words, said),
        "entities": _share(set(_ENTITY.findall(evidence)), entities),
    }


def _share(wanted: set[str], found: set[str]) -> float | None:
    return len(wanted & found) / len(wanted) if wanted else None


def _rows(items: Mapping[tuple[str, str], Mapping[str, Item]], default: str) -> list[Item]:
    base = _column(items["none", "0"].values(), "log_p")
    room = _column(items["full", "100"].values(), "log_p") - base
    drawn = np.random.default_rng(0).integers(len(base), size=(BOOTSTRAPS, len(base)))
    rows = []
    for (method, budget), of in items.items():
        if method == "none":
            continue
        group = list(of.values())
        gain, kept = _column(group, "log_p") - base, _column(group, "answer_words")
        more_gain, more_words = gain * np.nan, kept * np.nan
        if others := items.get((default, budget)):
            more_gain = _column(others.values(), "log_p") - base - gain
            more_words = _column(others.values(), "answer_words") - kept
        rows.append(
            {
                "method": method,
                "budget": budget,
                "n": len(group),
                "gap_kept": _ratio(gain, room),
                "gap_kept_ci": _interval(gain[drawn], room[drawn]),
                "default_minus": _ratio(more_gain, room),
                "default_minus_ci": _interval(more_gain[drawn], room[drawn]),
                "answer_words_kept": _ratio(kept),
                "answer_words_kept_ci": _interval(kept[drawn]),
                "default_words_minus": _ratio(more_words),
                "default_words_minus_ci": _interval(more_words[drawn]),
                "entities_kept": _ratio(_column(group, "entities")),
                "tokens_mean": round(float(np.mean([item["tokens"] for item in group]))),
                "exceeds": sum(bool(item["exceeds"]) for item in group),
                "ms_p50": round(report.percentile([item["ms"] for item in group], 50), 2),
            }
        )
    return rows


def _column(items: Iterable[Item], name: str) -> NDArray[np.float64]:
    """One figure of each item; nan where it is None."""
    return np.array([item[name] for item in items], np.float64)


def _ratio(values: NDArray[np.float64], over: NDArray[np.float64] | None = None) -> float | None:
    """Σ values / Σ over, or the mean of the values; without nan values. None if none is left."""
    found = _ratios(values[None], None if over is None else over[None])[0]
    return None if np.isnan(found) else round(float(found), 3)


def _interval(
    values: NDArray[np.float64], over: NDArray[np.float64] | None = None
) -> list[float] | None:
    """The 95 % interval of the ratios of bootstrapped rows. None if all are nan."""
    found = _ratios(values, over)
    found = found[~np.isnan(found)]
    return [round(float(v), 3) for v in np.percentile(found, [2.5, 97.5])] if len(found) else None


def _ratios(values: NDArray[np.float64], over: NDArray[np.float64] | None) -> NDArray[np.float64]:
    known = ~np.isnan(values)
    below = known if over is None else np.where(known, over, 0)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(known, values, 0).sum(axis=1) / below.sum(axis=1)


if __name__ == "__main__":
    main()
