"""Does a compressed context keep the answer?

    python -m bench.compression --data DIR --json OUT [--full] [--n 120] [--conversations 3]
        [--seed 0]

LoCoMo's questions, each with a context (bench/contexts.py) that is compressed by each method
(bench/compressors.py) and read by a small model, which sees the prompt of CoreMem's appendix E.
The default run: gold contexts, 50 % and 33 %, SmolLM2, all methods but Algorithm 2 as printed.
--full adds that one, three ablations, retrieved contexts with 1000, 500 and 250 tokens, 67 %, and
Gemma 3 270M as a second reader. What is done is kept in OUT.parts, so that a run that was stopped
goes on; delete that file to begin anew.

gap_kept: Σ[log p(answer | question, compressed) - log p(answer | question)] over the same with the
full context, 1 where nothing is lost; its interval is a paired bootstrap over questions, as is that
of `default_minus`, the gap that the default keeps more than this method. answer_words_kept: of the
answer's words that the context has. entities_kept: of the names, numbers and dates of the evidence.
f1: of the reader's answer. ratio: origin over compressed tokens. ms_p50 and cpu_s_per_1000_tokens:
of the compression, scores made for this context included, what is stored ahead of time not.
"""

from __future__ import annotations

import argparse
import json
import re
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track

from bench import report
from bench.compressors import METHODS, OURS, Job
from bench.contexts import Case, Stored, Turn, ahead_of_time, cases, stored_scores, turn_vectors
from bench.questions import ingest
from bench.sensitivity import measure
from edgemem.compression.compress import compress
from edgemem.compression.relevance import relevance
from edgemem.compression.scores import Scores, fisher, self_information
from edgemem.compression.sensitivity import Scorer
from edgemem.importers import LocomoFile, read_locomo
from edgemem.memory import Memory
from edgemem.runtime.embedder import Embedder
from edgemem.runtime.engine import Engine
from edgemem.text import content_words, words
from edgemem.training.scores import token_f1

READERS = {"smollm2": None, "gemma3": "gemma-3-270m-q4_k_m"}
DEFAULT = "ours_question"
ABLATIONS = ("fdtd_alg2", "ours_no_scores", "ours_product", "ours_information")
N_CTX = 4096
MAX_ANSWER_TOKENS = 24
LOOKUP_TOKENS = 2000
LIMIT_TOKENS = 512
PROMPT = (
    "Based on the following conversation context, answer the question concisely.\n"
    "Context:\n{}\nQuestion: {}\nAnswer:"
)
BARE = "Answer the question concisely.\nQuestion: {}\nAnswer:"
BOOTSTRAPS = 2000
_ENTITY = re.compile(r"(?<!^)(?<![.!?] )\b[A-Z][\w'’]+|\d[\d.,:]*(?<![.,:])")
_console = Console(stderr=True)

Key = tuple[str | int, ...]  # of a result, or of a turn's stored scores


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--json", required=True)
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--n", type=int, default=120)
    parser.add_argument("--conversations", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--methods", nargs="*", choices=METHODS, help="only these")
    options = parser.parse_args(arguments)
    paths = sorted(options.data.glob("*.json"))[: options.conversations]
    if not paths:
        raise SystemExit(f"{options.data} holds no LoCoMo JSON files; give the folder that does")
    files = [read_locomo(path) for path in paths]
    methods = options.methods or [m for m in METHODS if options.full or m not in ABLATIONS]
    budgets = [("gold", b) for b in (("67%", "50%", "33%") if options.full else ("50%", "33%"))]
    if options.full:
        budgets += [("retrieved", b) for b in ("67%", "50%", "33%", "1000", "500", "250")]
    readers = READERS if options.full else list(READERS)[:1]
    parts = Path(f"{options.json}.parts")
    items = _read_parts(parts)
    started = time.perf_counter()
    embedder = Embedder.load()
    with ExitStack() as loaded:
        log = loaded.enter_context(parts.open("a", encoding="utf-8"))
        distiller = loaded.enter_context(Engine.load(n_ctx=N_CTX))
        exact = loaded.enter_context(Scorer.load(distiller.path))
        score = partial(fisher, exact, distiller)
        lookup: list[float] = []

        def keep(key: Key, item: dict[str, Any]) -> None:
            items[key] = item
            log.write(json.dumps([key, item]) + "\n")
            log.flush()

        for context in dict.fromkeys(context for context, _ in budgets):
            drawn = _cases(files, options.n, options.seed, context)
            stored = Stored(_known_scores(items), {})
            if "ours_lookup" in methods:
                for turn, scores in ahead_of_time(drawn, score, stored.scores, _track):
                    stored.scores[turn] = scores
                    keep(("stored", *turn), _as_json(scores))
                stored.vectors.update(turn_vectors(drawn, embedder.embed))
                lookup = lookup or _lookup_ms(drawn, stored, distiller, embedder)
            for name in readers:
                wanted = [(m, b) for c, b in budgets if c == context for m in methods]
                wanted = [("none", ""), ("full", ""), *wanted]
                with _reader(name, distiller) as reader:
                    for case in _track(drawn, f"{context}, {name}"):
                        make = _Compressor(case, distiller, reader, embedder, score, stored)
                        for method, budget in wanted:
                            key = (context, name, case.id, method, budget)
                            if key not in items:
                                keep(key, make(method, budget))
    rows = _rows(items, methods)
    summary = {
        "n": options.n,
        "conversations": [file.sample_id for file in files],
        "default": DEFAULT,
        **_summary(rows),
        "lookup_tokens": LOOKUP_TOKENS,
        "lookup_ms_p50": round(report.percentile(lookup, 50), 2) if lookup else None,
        "lookup_ms_p95": round(report.percentile(lookup, 95), 2) if lookup else None,
        "exact_over_gemm_limit": round(measure(None, LIMIT_TOKENS, 2, 3)["ratio"], 2),
        "seconds": round(time.perf_counter() - started),
        "peak_rss_mb": report.peak_rss_mb(),
    }
    report.write(options.json, summary, rows)


class _Once:
    """A value made when it is first asked for. owed_s, owed_cpu_s: what the later calls saved."""

    def __init__(self, make: Callable[[], Scores]) -> None:
        self._make = make
        self._made: Scores | None = None
        self._took = (0.0, 0.0)
        self.owed_s = self.owed_cpu_s = 0.0

    def __call__(self) -> Scores:
        if self._made is None:
            started = time.perf_counter(), time.process_time()
            self._made = self._make()
            self._took = time.perf_counter() - started[0], time.process_time() - started[1]
        else:
            self.owed_s, self.owed_cpu_s = self._took
        return self._made


class _Compressor:
    """One case: compresses it by a method, and has the reader read the result."""

    def __init__(
        self,
        case: Case,
        distiller: Engine,
        reader: Engine,
        embedder: Embedder,
        score: Callable[[str], Scores],
        stored: Stored,
    ) -> None:
        self._case, self._reader = case, reader
        self._text = "\n".join(case.lines)
        self._tokens = reader.token_offsets(self._text)
        self._exact = _Once(lambda: score(self._text))
        self._information = _Once(lambda: self_information(distiller, self._text))
        self._job = Job(
            case=case,
            budget=0,
            tokens=self._tokens,
            tokenizer=reader.token_offsets,
            distiller=distiller.token_offsets,
            embedder=embedder,
            exact=self._exact,
            information=self._information,
            stored=stored,
        )
        evidence = " ".join(
            line for line, told in zip(case.lines, case.evidence, strict=True) if told
        )
        self._answer_words = set(content_words(case.answer)) & set(words(self._text))
        self._entities = set(_ENTITY.findall(evidence))

    def __call__(self, method: str, budget: str) -> dict[str, Any]:
        if method == "none":
            return {"log_p": self._log_p(BARE.format(self._case.question))}
        origin = len(self._tokens)
        most, text, spent, cpu = origin, self._text, 0.0, 0.0
        if method != "full":
            share = int(budget[:-1]) / 100 if budget.endswith("%") else 1.0
            most = int(share * origin) if share < 1 else min(int(budget), origin)
            text, spent, cpu = self._compressed(method, most)
        prompt = PROMPT.format(text, self._case.question)
        tokens = len(self._reader.tokenize(text))
        said = set(words(text))
        entities = set(_ENTITY.findall(f". {text}")) | said
        return {
            "log_p": self._log_p(prompt),
            "f1": token_f1(self._answer(prompt), self._case.answer),
            "answer_words": _share(self._answer_words, said),
            "entities": _share(self._entities, entities),
            "tokens": tokens,
            "origin": origin,
            "exceeds": tokens > most,
            "ms": spent * 1e3,
            "cpu_s": cpu,
        }

    def _compressed(self, method: str, most: int) -> tuple[str, float, float]:
        once = (self._exact, self._information)
        for o in once:
            o.owed_s = o.owed_cpu_s = 0.0
        started = time.perf_counter(), time.process_time()
        text = METHODS[method](replace(self._job, budget=most))
        spent = time.perf_counter() - started[0] + sum(o.owed_s for o in once)
        return text, spent, time.process_time() - started[1] + sum(o.owed_cpu_s for o in once)

    def _log_p(self, prompt: str) -> float:
        return float(self._reader.log_probs(prompt, f" {self._case.answer}").sum())

    def _answer(self, prompt: str) -> str:
        # The stage of log_probs, which has just read the same prompt.
        found = self._reader.generate(
            prompt, max_tokens=MAX_ANSWER_TOKENS, stop=("\n",), stage="scoring"
        )
        return found.text.strip()


def _rows(items: dict[Key, dict[str, Any]], methods: Sequence[str]) -> list[dict[str, Any]]:
    groups: dict[tuple[str, str, str], dict[str, dict[str, Any]]] = defaultdict(dict)
    for key, item in items.items():
        if key[0] != "stored" and key[3] in methods:
            context, reader, case, method, budget = map(str, key)
            groups[context, reader, f"{method} {budget}"][case] = item
    rows = []
    for (context, reader, name), group in groups.items():
        method, _, budget = name.partition(" ")
        base = [items[context, reader, case, "none", ""]["log_p"] for case in group]
        full = [items[context, reader, case, "full", ""] for case in group]
        gain = np.array([item["log_p"] for item in group.values()]) - base
        room = np.array([item["log_p"] for item in full]) - base
        default = groups[context, reader, f"{DEFAULT} {budget}"]
        other = [default[case]["log_p"] for case in group] - np.array(base) if default else gain
        rng = np.random.default_rng(0)
        drawn = rng.integers(len(gain), size=(BOOTSTRAPS, len(gain)))
        below = room[drawn].sum(axis=1)
        rows.append(
            {
                "method": method,
                "budget": budget,
                "context": context,
                "reader": reader,
                "n": len(group),
                "gap_kept": round(float(gain.sum() / room.sum()), 3),
                "gap_kept_ci": _interval(gain[drawn].sum(axis=1) / below),
                "default_minus": round(float((other - gain).sum() / room.sum()), 3),
                "default_minus_ci": _interval((other - gain)[drawn].sum(axis=1) / below),
                "answer_words_kept": _mean([i["answer_words"] for i in group.values()]),
                "entities_kept": _mean([i["entities"] for i in group.values()]),
                "f1": _mean([i["f1"] for i in group.values()]),
                "f1_full": _mean([i["f1"] for i in full]),
                "ratio": _mean([i["origin"] / max(1, i["tokens"]) for i in group.values()]),
                "exceeds": sum(i["exceeds"] for i in group.values()),
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


def _lookup_ms(
    drawn: Sequence[Case],
    stored: Stored,
    distiller: Engine,
    embedder: Embedder,
) -> list[float]:
    """Times of compressing 2,000 tokens to half, from what is stored and a question's vector."""
    case = drawn[0]
    places = sorted(i for id, i in stored.vectors if id == case.file.sample_id)
    sizes = [len(stored.scores[case.file.sample_id, i].values) + 10 for i in places]
    turns = tuple(places[: int(np.searchsorted(np.cumsum(sizes), LOOKUP_TOKENS)) + 1])
    case = replace(case, turns=turns, evidence=(False,) * len(turns))
    query = embedder.embed_query(case.question)
    spent = []
    for _ in range(60):
        started = time.perf_counter()
        scores, tokens = stored_scores(case, stored, distiller.token_offsets)
        near = np.array([stored.vectors[turn] @ query for turn in case.places], np.float32)
        found = compress(
            case.lines,
            scores,
            distiller.token_offsets,
            len(tokens) // 2,
            tokens=tokens,
            relevance=lambda layout, near=near: relevance(layout, case.question, turns=near),
        )
        spent.append((time.perf_counter() - started) * 1e3)
    assert found.compressed_tokens <= len(tokens) // 2
    return spent


def _cases(files: Sequence[LocomoFile], n: int, seed: int, context: str) -> list[Case]:
    if context == "gold":
        return cases(files, n, seed)
    with tempfile.TemporaryDirectory() as scratch, Memory(Path(scratch) / "locomo.db") as memory:
        ingest(memory, files)
        return cases(files, n, seed, memory)


@contextmanager
def _reader(name: str, distiller: Engine) -> Iterator[Engine]:
    if READERS[name] is None:
        yield distiller
    else:
        with Engine.load(READERS[name], n_ctx=N_CTX) as reader:
            yield reader


def _as_json(scores: Scores) -> dict[str, Any]:
    values = [round(float(v), 6) for v in scores.values]
    return {"offsets": scores.offsets.tolist(), "values": values, "method": scores.method}


def _known_scores(items: dict[Key, dict[str, Any]]) -> dict[Turn, Scores]:
    found: dict[Turn, Scores] = {}
    for key, item in items.items():
        if key[0] == "stored":
            offsets = np.array(item["offsets"], np.int64).reshape(-1, 2)
            values = np.array(item["values"], np.float32)
            found[str(key[1]), int(key[2])] = Scores(offsets, values, item["method"])
    return found


def _read_parts(path: Path) -> dict[Key, dict[str, Any]]:
    if not path.exists():
        return {}
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return {tuple(key): item for key, item in lines}


def _track(sequence: Sequence[Any], what: str) -> Iterable[Any]:
    return track(sequence, what, console=_console)


def _share(wanted: set[str], found: set[str]) -> float | None:
    return len(wanted & found) / len(wanted) if wanted else None


def _mean(values: Sequence[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return round(sum(known) / len(known), 4) if known else None


def _interval(values: NDArray[np.float64]) -> list[float]:
    return [round(float(v), 3) for v in np.percentile(values, [2.5, 97.5])]


if __name__ == "__main__":
    main()
