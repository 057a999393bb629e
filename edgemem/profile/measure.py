"""What the profiled processes measure: the stages of a Memory, its parts, its growth, the system.

`work` runs in a process of its own: whatever else was loaded, or left on the heap, would be counted
too. A figure that the system does not report is None, never 0. The only importer of nvidia-ml-py.
"""

from __future__ import annotations

import gc
import os
import platform
import re
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from importlib import import_module, metadata
from itertools import cycle
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import edgemem
from edgemem import kernels
from edgemem.chat import Chat
from edgemem.compression.compress import compress_prompt
from edgemem.config import load_settings
from edgemem.memory import Memory
from edgemem.pipeline.ingest import stored_turn, turn_memory
from edgemem.results import Message, Query, Scope, utc_now
from edgemem.retrieval import search
from edgemem.retrieval.search import SearchIndex, similarities
from edgemem.retrieval.vectors import Dtype
from edgemem.runtime import llama, machine, tune
from edgemem.runtime.engine import Engine
from edgemem.runtime.vocabulary import vocabulary_of
from edgemem.stages import extraction, update
from edgemem.store import Store

__all__ = ["growth", "memory_bytes", "work"]

PREFILL_TOKENS, DECODE_TOKENS = 480, 24
COMPRESSED_WORDS = 90
QUICK = 20  # times as many rounds for stages that take milliseconds
_PLACES = "Oslo Ghent York Lisbon Turin Cork Bergen Porto Graz Lyon".split()
_THINGS = "cheese,the sea,old maps,quiet trains,green tea,wool,chess,rowing,clay,jazz".split(",")
_TOLD = [
    *(
        f"In {place} I talked about {thing} with my neighbour number {i}."
        for i, place in enumerate(_PLACES)
        for thing in _THINGS
    ),
    "I work at the harbour in Oslo.",
]


@dataclass(slots=True)
class _Run:
    """The results so far."""

    rounds: int
    user: str
    question: str
    parts: list[dict[str, Any]] = field(default_factory=list)  # the fields of report's Part
    stages: list[dict[str, Any]] = field(default_factory=list)  # those of its Timing
    resident: int | None = None

    def grown(self) -> int | None:
        """The growth of RSS since the last call, in bytes; None at first, or if it is unknown."""
        give_back()
        before, self.resident = self.resident, memory_bytes()["rss"]
        return None if before is None or self.resident is None else self.resident - before

    def part(self, name: str, size: int | None, basis: str) -> None:
        if size is not None:
            self.parts.append({"name": name, "mb": size / 1e6, "basis": basis})

    def stage(self, name: str, times_ms: Iterable[float] = (), **more: Any) -> None:
        self.stages.append({"name": name, "times_ms": list(times_ms), **more})


def work(
    path: str, rounds: int, changes: Mapping[str, Any], user: str, question: str
) -> dict[str, Any]:
    """Run every stage on a new store at `path`, which is left there; returns JSON-able figures.

    rounds: of each stage that asks the language model; stages that take milliseconds run 20 times
    as often. changes: settings in place of those in force. user: the owner of the memories;
    question: one that a memory answers. Raises what Memory, Chat and the stages do.
    """
    # Imported by name, only to count their memory before anything is loaded; not used here.
    for name in (*LIBRARIES.values(), "llama_cpp.llama_chat_format"):
        import_module(name)
    llama.library()
    run = _Run(rounds, user, question)
    run.grown()
    run.part("libraries", run.resident, "RSS after imports, before anything is loaded")
    settings = replace(load_settings(), **changes)
    joules = energy_joules()
    with Memory(path, settings=settings) as memory:
        _retrieval(run, memory)
        mappings = _engine(run, memory)
        _stages(run, memory)
        _compress(run, memory)
        give_back()
        held = memory_bytes()
        _reported(run, memory, mappings)
        after = energy_joules()
        return {
            "profile": {
                "parts": run.parts,
                "stages": run.stages,
                **{f"{name}_mb": size and size / 1e6 for name, size in held.items()},
                "peak_rss_mb": machine.peak_rss_mb(),
                "gpus": gpus(),
                "joules": joules_between(joules, after) if joules and after else None,
                "plan": None if memory.plan is None else memory.plan.to_dict(),
                "model": memory.engine.name,
                "machine": machine.properties(),
                "versions": versions(),
                "backend": kernels.backend,
            },
            "reserved": memory.engine.memory(),
            "n_ctx": memory.engine.n_ctx,
            "vectors": memory.index.vectors.dtype,
            "tuned": memory.plan.choice.tuned if memory.plan else memory.settings.tuned == "on",
            "careful": memory.token_embedder is not None,
            "counts": memory.store.counts(),
            "dim": memory.embedder.dim,
        }


def _retrieval(run: _Run, memory: Memory) -> None:
    """Measure the embedder, the index, and the stages that need only these."""
    embedder = memory.embedder
    embedder.embed(_TOLD[:8])
    run.part("embedder", run.grown(), "growth of RSS when it was loaded and first used")
    if (tokens := memory.token_embedder) is not None:
        tokens.embed(_TOLD[0])
        run.part("token_embedder", run.grown(), "as the embedder's")
    memory.add(_TOLD, user_id=run.user, infer=False)
    questions = [f"Where did I talk about {thing}?" for thing in _THINGS]
    next_one = cycle(questions)
    run.stage("embed", _timed(lambda: embedder.embed_query(next(next_one)), QUICK * run.rounds))
    memory.search(questions[0], user_id=run.user)  # not timed: it fits the metric
    found = [memory.search(q, user_id=run.user) for q in questions * 2 * run.rounds]
    times = (round(hits.search_ms, 4) for hits in found)
    run.stage("search", times, note="beyond embedding the query")
    index, vector = memory.index, embedder.embed_query(run.question)
    best = index.candidates(Query(run.question, Scope(run.user)), vector)
    table = index.vectors.table()
    metric = index.whitening.get(None, index.generation, lambda: table.vectors(None))

    def rerank() -> None:
        similarities(table, vector, metric, best.rowids[:, None])
        best.best(30)

    run.stage("re-rank", _timed(rerank, QUICK * run.rounds))


def _engine(run: _Run, memory: Memory) -> set[int]:
    """Load the model and time prefill and decode. Returns where the model's file is mapped."""
    run.grown()
    file, _, _ = tune.choose_file(
        memory.settings.model,
        tuned=memory.settings.tuned == "on",
        n_gpu_layers=memory.settings.n_gpu_layers,
    )
    with vocabulary_of(file):
        run.part("tokenizer", run.grown(), "growth of RSS when it alone was loaded")
    engine = memory.engine
    mappings = set(mapped_bytes(engine.path) or ())
    long = _prompt(engine, min(PREFILL_TOKENS, engine.n_ctx - DECODE_TOKENS - 8))
    run.grown()
    engine.generate(long, max_tokens=1)
    run.part("compute", run.grown(), "growth of RSS by the first long prompt")
    prefill = []
    for _ in range(run.rounds):
        engine.drop_prefixes()
        prefill.append(engine.generate(long, max_tokens=1))
    run.stage(
        "prefill",
        [g.ttft_s * 1e3 for g in prefill],
        tokens_per_s=median(g.prompt_tokens / g.ttft_s for g in prefill),
        ttft_ms=median(g.ttft_s for g in prefill) * 1e3,
        note=f"{prefill[0].prompt_tokens} tokens, none of them cached",
    )
    told = [
        engine.generate("Once upon a time there was", max_tokens=DECODE_TOKENS, stage="decode")
        for _ in range(run.rounds)
    ]
    told = [g for g in told if g.tokens_per_s > 0]
    run.stage(
        "decode",
        [1e3 / g.tokens_per_s for g in told],
        tokens_per_s=median(g.tokens_per_s for g in told) if told else None,
        note="a token",
    )
    return mappings


def _stages(run: _Run, memory: Memory) -> None:
    """Time switching experts, extraction, update and an answer with memory."""
    engine, now = memory.engine, utc_now()
    expert = next((s for s in ("extraction", "update", "generation") if engine.expert(s)), None)
    if expert is None:
        run.stage("switch", note="skipped: no adapters are loaded")
    else:
        switched = [
            engine.generate("Hello there, who is it?", max_tokens=1, stage=stage).switch_s * 1e3
            for stage in ("base", expert) * QUICK * run.rounds
        ]
        run.stage("switch", switched)
    message = Message("user", "I moved to Oslo last month and I work at the harbour.", now)
    run.stage("extract", _timed(lambda: extraction.extract(engine, [message]), run.rounds))
    # Both are about one person and neither repeats the other, so that an expert is asked.
    encoder = memory.encoder
    near = [update.Candidate("1", "Ana plays chess with her brother on Sundays", 0.7)]
    fact = "Ana plays chess in a club on Tuesdays"
    times = _timed(lambda: update.decide(engine, [fact], [near], encoder), run.rounds)
    run.stage("update", times)
    chat, spent, generations = Chat(memory, user_id=run.user), list[float](), []
    for i in range(run.rounds + 1):
        began = time.perf_counter()
        reply = chat.send(run.question, remember=False)
        text = "".join(reply)
        if i and reply.generation is not None and text:
            spent.append(_ms(began))
            generations.append((reply.generation, reply.timings["recall_ms"]))
    if not generations:
        run.stage("generate", note="skipped: the model gave no answer")
        return
    run.stage(
        "generate",
        spent,
        tokens_per_s=median(g.tokens_per_s for g, _ in generations),
        ttft_ms=median(recall + g.ttft_s * 1e3 for g, recall in generations),
        note="an answer with memory: recall, then the model",
    )


def _compress(run: _Run, memory: Memory) -> None:
    """Time compressing a text to half by the model's gradients."""
    engine, text = memory.engine, " ".join(" ".join(_TOLD).split()[:COMPRESSED_WORDS])
    times = _timed(lambda: compress_prompt(text, rate=0.5, engine=engine), run.rounds)
    tokens = len(engine.tokenize(text))
    run.stage(
        "compress",
        times,
        tokens_per_s=tokens / median(times) * 1e3,
        note=f"{tokens} tokens to half, by gradients",
    )


def _reported(run: _Run, memory: Memory, mappings: set[int]) -> None:
    """Add what the parts report of themselves, and how much of the model's file is resident."""
    engine = memory.engine
    held, mapped = engine.memory(), mapped_bytes(engine.path)
    weights, basis = held["weights"], "size of the file's tensors"
    if mapped is not None:
        weights = sum(size for at, size in mapped.items() if at in mappings)
        basis = "resident pages of the mapped file"
    run.part("weights", weights, basis)
    for name in ("kv", "output", "adapters", "prefixes"):
        run.part(name, held[name], "reported by the engine")
    run.part("index", sum(memory.index.memory_bytes().values()), "reported by the index")


def _prompt(engine: Engine, tokens: int) -> str:
    """A text of about `tokens` tokens, not more."""
    words = " ".join(_TOLD).split()
    while engine.count_tokens(" ".join(words)) > tokens:
        words = words[: len(words) * 9 // 10]
    return " ".join(words)


def _timed(call: Callable[[], object], times: int) -> list[float]:
    """The milliseconds of each call."""
    call()  # not timed
    spent = []
    for _ in range(times):
        began = time.perf_counter()
        call()
        spent.append(_ms(began))
    return spent


def _ms(began: float) -> float:
    return round((time.perf_counter() - began) * 1e3, 4)


# -- growth ----------------------------------------------------------------------------------------

_DIM = 384
_WORDS = 12
_SCOPE = Scope("profile")


def growth(folder: str, sizes: list[int], vectors: Dtype, rounds: int = 60) -> list[dict[str, Any]]:
    """Searches among invented memories, without a model: times in ms and the index's size.

    The vectors lie in clusters, as those of a person's talk do, and the words follow Zipf's law.
    They are random, so the figures say nothing of what a search finds.
    """
    return [_searches(Path(folder) / f"{n}.db", n, vectors, rounds) for n in sizes]


def _searches(path: Path, n: int, vectors: Dtype, rounds: int) -> dict[str, Any]:
    """Fill a store with n memories, and search it `rounds` times."""
    rng = np.random.default_rng(n)
    centres = rng.standard_normal((max(2, n // 50), _DIM))
    rows = centres[rng.integers(len(centres), size=n)] + rng.standard_normal((n, _DIM))
    unit = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)
    ranks = np.minimum(rng.zipf(1.3, (n + rounds, _WORDS)), 20_000)
    texts = [" ".join(f"w{rank}" for rank in row) for row in ranks.tolist()]
    when = "2026-01-01T10:00:00.000+00:00"
    with Store.open(path) as store:
        with store.transaction() as tx:
            for i in range(n):
                turn = stored_turn(Message("user", texts[i], when), _SCOPE, when)
                tx.add_turn(turn)
                tx.add_memory(turn_memory(turn, unit[i : i + 1]), role="user", actor_id=None)
        memories = SearchIndex(_DIM, vectors)

        def ask(i: int) -> float:
            # Near to a memory, as a question is to what it asks for.
            vector = unit[i % n] + rng.standard_normal(_DIM) / np.sqrt(2 * _DIM)
            vector = (vector / np.linalg.norm(vector)).astype(np.float32)
            began = time.perf_counter()
            found, _ = search.find(store, memories, Query(texts[n + i], _SCOPE), vector)
            store.by_rowids([hit.rowid for hit in found])
            return _ms(began)

        ask(0)
        if n > memories.vectors.crossover:
            memories.vectors.build_hnsw()
        ask(0)
        spent = [ask(i) for i in range(rounds)]
        size = sum(memories.memory_bytes().values())
        memories.close()
    return {
        "memories": n,
        "p50_ms": round(float(np.percentile(spent, 50)), 3),
        "p95_ms": round(float(np.percentile(spent, 95)), 3),
        "index_mb": round(size / 1e6, 2),
    }


# -- the system ------------------------------------------------------------------------------------

LIBRARIES = {  # what is imported, by the name of its distribution
    "numpy": "numpy",
    "onnxruntime": "onnxruntime",
    "tokenizers": "tokenizers",
    "hnswlib": "hnswlib",
    "sqlite-utils": "sqlite_utils",
    "llama-cpp-python": "llama_cpp",
}
_MAPPING = re.compile(r"([0-9a-f]+)-[0-9a-f]+ \S+ \S+ \S+ \d+\s*(.*)")
_POWERCAP = Path("/sys/class/powercap")


def give_back() -> None:
    """Return freed memory to the system, so that all resident memory is in use. glibc only."""
    gc.collect()
    machine.trim_heap()


def memory_bytes() -> dict[str, int | None]:
    """rss and pss of this process; pss divides shared pages among the processes that share them."""
    found: dict[str, int | None] = {"rss": None, "pss": None}
    with suppress(OSError):
        for line in Path("/proc/self/smaps_rollup").read_text(encoding="ascii").splitlines():
            name, _, value = line.partition(":")
            if name in ("Rss", "Pss"):
                found[name.lower()] = int(value.split()[0]) * 1024
    return found


def mapped_bytes(file: Path) -> dict[int, int] | None:
    """Resident bytes of each mapping of a file into this process, by start address."""
    found: dict[int, int] = {}
    at: int | None = None
    try:
        with open("/proc/self/smaps", encoding="utf-8", errors="surrogateescape") as lines:
            for line in lines:
                if (head := _MAPPING.match(line)) is not None:
                    at = int(head[1], 16) if head[2].strip() == str(file.resolve()) else None
                elif at is not None and line.startswith("Rss:"):
                    found[at] = int(line.split()[1]) * 1024
    except OSError:
        return None
    return found


def energy_joules(folder: Path = _POWERCAP) -> dict[str, tuple[float, float]] | None:
    """The joules each processor package has used, and at how many its counter wraps (RAPL).

    None if the machine does not report it, or not to this user.
    """
    found: dict[str, tuple[float, float]] = {}
    for zone in sorted(folder.glob("*-rapl:*")):
        if zone.name.count(":") == 1:  # a package; its parts are counted in it
            with suppress(OSError, ValueError):
                used = int((zone / "energy_uj").read_text(encoding="ascii"))
                most = int((zone / "max_energy_range_uj").read_text(encoding="ascii"))
                found[zone.name] = (used / 1e6, most / 1e6)
    return found or None


def joules_between(
    before: Mapping[str, tuple[float, float]], after: Mapping[str, tuple[float, float]]
) -> float:
    """The joules used between two readings, between which a counter wraps at most once."""
    spent = 0.0
    for name in before.keys() & after.keys():
        (start, most), (end, _) = before[name], after[name]
        spent += end - start if end >= start else end - start + most
    return spent


def versions() -> dict[str, str]:
    """Python's, ours and the libraries' versions."""
    ours = {"python": platform.python_version(), "edgemem": edgemem.__version__}
    return ours | {name: metadata.version(name) for name in LIBRARIES}


def gpus() -> list[dict[str, Any]]:
    """For each GPU: name, total_mb, used_mb (by all), process_mb (by this process, or None)."""
    try:
        import pynvml
    except ImportError:
        return []
    with suppress(pynvml.NVMLError):
        pynvml.nvmlInit()
        try:
            return [_gpu(pynvml, i) for i in range(pynvml.nvmlDeviceGetCount())]
        finally:
            pynvml.nvmlShutdown()
    return []


def _gpu(nvml: Any, number: int) -> dict[str, Any]:
    handle = nvml.nvmlDeviceGetHandleByIndex(number)
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    ours: float | None = None
    with suppress(nvml.NVMLError):
        running = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
        # In a container, NVML may report other process ids, or no size.
        for process in running:
            if process.pid == os.getpid() and process.usedGpuMemory is not None:
                ours = round(process.usedGpuMemory / 1e6, 1)
    name = nvml.nvmlDeviceGetName(handle)
    return {
        "name": name.decode() if isinstance(name, bytes) else str(name),
        "total_mb": round(memory.total / 1e6, 1),
        "used_mb": round(memory.used / 1e6, 1),
        "process_mb": ours,
    }
