"""One question's context, compressed by each method and read: the work of bench.compression.

What repeats is done once: texts are embedded and scored once for all methods, budgets and readers,
equal results are read once, and the others in the order of their tokens, so that each prompt begins
as the one before it does for as long as any does. The engine then computes the rest alone, which
gives the same numbers to the bit (runtime/prefixes.py).

Runs in worker processes (`start`, then `measured` for each task). Knows no figures over questions.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from bench.compressors import METHODS, Job
from bench.contexts import Case, hits
from corpus.evaluate import token_f1
from edgemem.compression.compress import fisher, self_information
from edgemem.compression.sensitivity import Scorer
from edgemem.language import content_words, words
from edgemem.memory import Memory
from edgemem.runtime.embedder import Embedder
from edgemem.runtime.engine import Engine

__all__ = ["N_CTX", "READERS", "Item", "Key", "Task", "measured", "start"]

READERS = {"smollm2": None, "gemma3": "gemma-3-270m-q4_k_m"}
N_CTX = 4096
MAX_ANSWER_TOKENS = 24
PROMPT = (
    "Based on the following conversation context, answer the question concisely.\n"
    "Context:\n{}\nQuestion: {}\nAnswer:"
)
BARE = "Answer the question concisely.\nQuestion: {}\nAnswer:"
_ENTITY = re.compile(r"(?<!^)(?<![.!?] )\b[A-Z][\w'’]+|\d[\d.,:]*(?<![.,:])")

Key = tuple[str, str, str, str, str]  # context, reader, case, method, budget
Item = dict[str, Any]


@dataclass(frozen=True)
class Task:
    """What is to be measured of one case: some of its keys."""

    case: Case
    keys: tuple[Key, ...]


class _Tools:
    """What a worker has open, until it ends."""

    def __init__(self, store: Path, readers: Sequence[str], threads: int) -> None:
        load = partial(Engine.load, n_ctx=N_CTX, n_threads_batch=threads)
        self.distiller = load()
        self.readers = {n: load(p) if (p := READERS[n]) else self.distiller for n in readers}
        self.scorer = Scorer.load(self.distiller.path, threads=threads)
        self.memory = Memory(store, embedder=Embedder.load(n_threads=threads))


class _Once:
    """Keeps what functions gave; owed_s, owed_cpu_s: what the repeated calls would have taken."""

    def __init__(self) -> None:
        self._found: dict[object, tuple[Any, float, float]] = {}
        self.owed_s = self.owed_cpu_s = 0.0

    def __call__(self, function: Callable[..., Any], argument: Any) -> Any:
        key = function, argument
        if key in self._found:
            value, spent, cpu = self._found[key]
            self.owed_s += spent
            self.owed_cpu_s += cpu
            return value
        started = time.perf_counter(), time.process_time()
        value = function(argument)
        spent, cpu = time.perf_counter() - started[0], time.process_time() - started[1]
        self._found[key] = value, spent, cpu
        return value


_tools: _Tools


def start(store: Path, readers: Sequence[str], threads: int) -> None:
    """Open what this worker's tasks need. store: a Memory's file that holds the cases' turns."""
    global _tools
    _tools = _Tools(store, readers, threads)


def measured(task: Task) -> list[tuple[Key, Item]]:
    """What there is to say of each key: see bench.compression; ms and cpu_s of the compression."""
    case, once, text = task.case, _Once(), "\n".join(task.case.lines)
    score = partial(fisher, _tools.scorer, _tools.distiller)
    inform = partial(self_information, _tools.distiller)
    found_hits = hits(_tools.memory, case)
    out = []
    for name in dict.fromkeys(key[1] for key in task.keys):
        reader = _tools.readers[name]
        job = Job(
            case=case,
            budget=0,
            tokens=reader.token_offsets(text),
            tokenizer=reader.token_offsets,
            embedder=_embedder_once(once),
            exact=lambda: once(score, text),
            information=lambda: once(inform, text),
            memory=_tools.memory,
            hits=found_hits,
        )
        made = {key: _compressed(job, once, *key[3:]) for key in task.keys if key[1] == name}
        read = _read(reader, case, {item["text"] for item in made.values()})
        for key, item in made.items():
            out.append((key, _judged(case, text, item) | read[item["text"]]))
    return out


def _embedder_once(once: _Once) -> Any:
    embed = _tools.memory.embedder.embed
    return SimpleNamespace(embed=lambda texts: once(embed, tuple(texts)))


def _compressed(job: Job, once: _Once, method: str, budget: str) -> Item:
    """text: None is a prompt without a context. most: tokens that it may have."""
    origin = len(job.tokens)
    if method in ("none", "full"):
        text = None if method == "none" else job.text
        return {"text": text, "origin": origin, "most": origin, "ms": 0.0, "cpu_s": 0.0}
    share = int(budget[:-1]) / 100 if budget.endswith("%") else 1.0
    most = int(share * origin) if share < 1 else min(int(budget), origin)
    once.owed_s = once.owed_cpu_s = 0.0
    started = time.perf_counter(), time.process_time()
    text = METHODS[method](replace(job, budget=most))
    spent = time.perf_counter() - started[0] + once.owed_s
    cpu = time.process_time() - started[1] + once.owed_cpu_s
    return {"text": text, "origin": origin, "most": most, "ms": spent * 1e3, "cpu_s": cpu}


def _read(reader: Engine, case: Case, texts: set[str | None]) -> dict[str | None, Item]:
    """Of each text: its tokens, log p of the answer after it, F1 of the reader's own answer."""
    asked = case.question
    prompts = {t: BARE.format(asked) if t is None else PROMPT.format(t, asked) for t in texts}
    read: dict[str | None, Item] = {}
    for text in sorted(texts, key=lambda text: reader.tokenize(prompts[text])):
        log_p = float(reader.log_probs(prompts[text], f" {case.answer}").sum())
        if text is None:
            read[text] = {"log_p": log_p}
            continue
        # The stage of log_probs, which has just read the same prompt.
        answer = reader.generate(
            prompts[text], max_tokens=MAX_ANSWER_TOKENS, stop=("\n",), stage="scoring"
        )
        f1 = token_f1(answer.text.strip(), case.answer)
        read[text] = {"log_p": log_p, "f1": f1, "tokens": len(reader.tokenize(text))}
    return read


def _judged(case: Case, whole: str, item: Item) -> Item:
    text = item["text"]
    if text is None:
        return {}
    lines = zip(case.lines, case.evidence, strict=True)
    evidence = " ".join(line for line, told in lines if told)
    said = set(words(text))
    answer_words = set(content_words(case.answer)) & set(words(whole))
    entities = set(_ENTITY.findall(f". {text}")) | said
    return {
        "answer_words": _share(answer_words, said),
        "entities": _share(set(_ENTITY.findall(evidence)), entities),
        **{name: item[name] for name in ("origin", "most", "ms", "cpu_s")},
    }


def _share(wanted: set[str], found: set[str]) -> float | None:
    return len(wanted & found) / len(wanted) if wanted else None
