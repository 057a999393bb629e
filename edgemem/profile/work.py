"""The stages of a Memory, each timed, and what its parts hold: what the profiled process does.

Knows every part by its public face, and invented memories to work on. Knows nothing of how the
figures are shown. To be run in a process of its own (child.py): what others have loaded, or left
of the heap, would be counted with it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from importlib import import_module
from itertools import cycle
from pathlib import Path
from statistics import median
from typing import Any

from edgemem import kernels
from edgemem.chat import Chat
from edgemem.compression.compress import compress_prompt, fisher
from edgemem.compression.sensitivity import Scorer
from edgemem.config import load_settings
from edgemem.errors import ModelError
from edgemem.memory import Memory
from edgemem.profile import system
from edgemem.profile.child import QUESTION, USER
from edgemem.profile.gpu import gpus
from edgemem.profile.report import Part, Timing
from edgemem.results import Message, Scope, utc_now
from edgemem.retrieval.search import similarities
from edgemem.runtime import llama, tune
from edgemem.runtime.engine import Engine
from edgemem.runtime.vocabulary import Tokenizer
from edgemem.stages import extraction, update

__all__ = ["work"]

PREFILL_TOKENS, DECODE_TOKENS = 480, 24
COMPRESSED_WORDS = 90
QUICK = 20  # times as many rounds for what takes milliseconds
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
    """What has been found so far."""

    rounds: int
    parts: list[Part] = field(default_factory=list)
    stages: list[Timing] = field(default_factory=list)
    resident: int | None = None

    def grown(self) -> int | None:
        """By how much the process has grown since this was asked last."""
        system.give_back()
        before, self.resident = self.resident, system.memory_bytes()["rss"]
        return None if before is None or self.resident is None else self.resident - before

    def part(self, name: str, size: int | None, basis: str) -> None:
        if size is not None:
            self.parts.append(Part(name=name, mb=size / 1e6, basis=basis))

    def timed(self, name: str, call: Callable[[], object], times: int) -> None:
        call()  # once off the clock
        spent = []
        for _ in range(times):
            began = time.perf_counter()
            call()
            spent.append(_ms(began))
        self.stages.append(Timing(name=name, times_ms=tuple(spent)))


def work(path: Path, rounds: int, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Run every stage on a new store at `path`, which is left there; JSON-able figures.

    rounds: of each stage that asks the language model; what takes milliseconds is run 20 times as
    often. changes: settings in place of those in force. Raises what Memory, Chat and the stages do.
    """
    # Imported by name, to count what they take before anything is loaded: nothing here uses them.
    for name in (*system.LIBRARIES.values(), "llama_cpp.llama_chat_format"):
        import_module(name)
    llama.library()
    run = _Run(rounds)
    run.grown()
    run.part("libraries", run.resident, "RSS after imports, before anything is loaded")
    settings = replace(load_settings(), **changes)
    joules, began = system.energy_joules(), time.perf_counter()
    with Memory(path, settings=settings) as memory:
        _retrieval(run, memory)
        mappings = _engine(run, memory)
        _stages(run, memory)
        with ExitStack() as opened:
            scorer = _compress(run, memory, opened)
            system.give_back()
            held = system.memory_bytes()
            _reported(run, memory, mappings, scorer)
        spent, after = time.perf_counter() - began, system.energy_joules()
        return {
            "parts": [asdict(part) for part in run.parts],
            "stages": [asdict(timing) for timing in run.stages],
            "memory": held,
            "reserved": memory.engine.memory(),
            "gpus": gpus(),
            "joules": system.joules_between(joules, after) if joules and after else None,
            "seconds": round(spent, 1),
            "plan": None if memory.plan is None else memory.plan.to_dict(),
            "n_ctx": memory.engine.n_ctx,
            "vectors": memory.index.vectors.dtype,
            "counts": memory.store.counts(),
            "dim": memory.embedder.dim,
            "model": memory.engine.name,
            "backend": kernels.backend,
        }


def _retrieval(run: _Run, memory: Memory) -> None:
    """The embedder, the index and what asks only them."""
    embedder = memory.embedder
    embedder.embed(_TOLD[:8])
    run.part("embedder", run.grown(), "growth of RSS when it was loaded and first used")
    memory.add(_TOLD, user_id=USER, infer=False)
    questions = [f"Where did I talk about {thing}?" for thing in _THINGS]
    run.timed("embed", _each(embedder.embed_query, questions), QUICK * run.rounds)
    memory.search(questions[0], user_id=USER)  # once off the clock: it fits the metric
    found = [memory.search(q, user_id=USER) for q in questions * 2 * run.rounds]
    times = tuple(round(hits.search_ms, 4) for hits in found)
    run.stages.append(Timing(name="search", times_ms=times, note="beyond embedding the query"))
    index, vector = memory.index, embedder.embed_query(QUESTION)
    best = index.candidates(QUESTION, vector, scope=Scope(USER), now=time.time())
    table = index.vectors.table()
    metric = index.whitening.get(None, index.generation, lambda: table.vectors(None))

    def rerank() -> None:
        similarities(table, vector, metric, best.rowids[:, None])
        best.weights.best(best.features, 30)

    run.timed("re-rank", rerank, QUICK * run.rounds)


def _engine(run: _Run, memory: Memory) -> set[int]:
    """Load the model, and time what it does alone; where its file was mapped then."""
    run.grown()
    file, _, _ = tune.choose_file(
        memory.settings.model,
        tuned=memory.settings.tuned == "on",
        n_gpu_layers=memory.settings.n_gpu_layers,
    )
    with Tokenizer(file):
        run.part("tokenizer", run.grown(), "growth of RSS when it alone was loaded")
    engine = memory.engine
    mappings = set(system.mapped_bytes(engine.path) or ())
    long = _prompt(engine, min(PREFILL_TOKENS, engine.n_ctx - DECODE_TOKENS - 8))
    run.grown()
    engine.generate(long, max_tokens=1)
    run.part("compute", run.grown(), "growth of RSS by the first long prompt")
    prefill = []
    for _ in range(run.rounds):
        engine.drop_prefixes()
        prefill.append(engine.generate(long, max_tokens=1))
    run.stages.append(
        Timing(
            name="prefill",
            times_ms=tuple(g.ttft_s * 1e3 for g in prefill),
            tokens_per_s=median(g.prompt_tokens / g.ttft_s for g in prefill),
            ttft_ms=median(g.ttft_s for g in prefill) * 1e3,
            note=f"{prefill[0].prompt_tokens} tokens, none of them cached",
        )
    )
    told = [
        engine.generate("Once upon a time there was", max_tokens=DECODE_TOKENS, stage="decode")
        for _ in range(run.rounds)
    ]
    told = [g for g in told if g.tokens_per_s > 0]
    run.stages.append(
        Timing(
            name="decode",
            times_ms=tuple(1e3 / g.tokens_per_s for g in told),
            tokens_per_s=median(g.tokens_per_s for g in told) if told else None,
            note="a token",
        )
    )
    return mappings


def _stages(run: _Run, memory: Memory) -> None:
    """Switching, extraction, update and an answer with memory."""
    engine, now = memory.engine, utc_now()
    expert = next((s for s in ("extraction", "update", "generation") if engine.expert(s)), None)
    if expert is None:
        note = "skipped: no adapters are loaded"
        run.stages.append(Timing(name="switch", note=note))
    else:
        switched = [
            engine.generate("Hello there, who is it?", max_tokens=1, stage=stage).switch_s * 1e3
            for stage in ("base", expert) * QUICK * run.rounds
        ]
        run.stages.append(Timing(name="switch", times_ms=tuple(switched)))
    message = Message("user", "I moved to Oslo last month and I work at the harbour.", now)
    run.timed("extract", lambda: extraction.extract(engine, [message]), run.rounds)
    # Of one person, and no repetition: an expert is asked.
    near = [update.Candidate("1", "Ana plays chess with her brother on Sundays", 0.7)]
    fact = "Ana plays chess in a club on Tuesdays"
    note = "" if engine.expert("update") else "no expert: added"
    run.timed("update", lambda: update.decide(engine, [fact], [near]), run.rounds)
    run.stages[-1] = replace(run.stages[-1], note=note)
    chat, times, generations = Chat(memory, user_id=USER), [], []
    for i in range(run.rounds + 1):
        began = time.perf_counter()
        reply = chat.send(QUESTION, remember=False)
        text = "".join(reply)
        if i and reply.generation is not None and text:
            times.append(_ms(began))
            generations.append((reply.generation, reply.timings["recall_ms"]))
    if not generations:
        run.stages.append(Timing(name="generate", note="skipped: the model gave no answer"))
        return
    run.stages.append(
        Timing(
            name="generate",
            times_ms=tuple(times),
            tokens_per_s=median(g.tokens_per_s for g, _ in generations),
            ttft_ms=median(recall + g.ttft_s * 1e3 for g, recall in generations),
            note="an answer with memory: recall, then the model",
        )
    )


def _compress(run: _Run, memory: Memory, opened: ExitStack) -> Scorer | None:
    """Compress a text to half; the scorer, which stays open, if the model's gradient is known."""
    if memory.plan is not None and not memory.plan.choice.compressor:
        run.stages.append(Timing(name="compress", note="skipped: left out for the memory limit"))
        return None
    engine, text = memory.engine, " ".join(" ".join(_TOLD).split()[:COMPRESSED_WORDS])
    try:
        scorer = opened.enter_context(Scorer.load(engine.path))
    except ModelError as exc:
        run.stages.append(Timing(name="compress", note=f"skipped: {exc}"))
        return None

    def compressed() -> object:
        return compress_prompt(
            text,
            QUESTION,
            rate=0.5,
            engine=engine,
            embedder=memory.embedder,
            scorer=lambda joined: fisher(scorer, engine, joined),
        )

    run.timed("compress", compressed, run.rounds)
    tokens = len(engine.tokenize(text))
    speed = tokens / (run.stages[-1].p50_ms or 1) * 1e3
    run.stages[-1] = replace(
        run.stages[-1], tokens_per_s=speed, note=f"{tokens} tokens to half, by gradients"
    )
    return scorer


def _reported(run: _Run, memory: Memory, mappings: set[int], scorer: Scorer | None) -> None:
    """What the parts say of themselves, and what of the model's file is resident."""
    engine = memory.engine
    held, mapped = engine.memory(), system.mapped_bytes(engine.path)
    weights, basis = held["weights"], "size of the file's tensors"
    again = engine.path.stat().st_size if scorer is not None else 0
    if mapped is not None:
        weights = sum(size for at, size in mapped.items() if at in mappings)
        again = sum(size for at, size in mapped.items() if at not in mappings)
        basis = "resident pages of the mapped file"
    run.part("weights", weights, basis)
    for name in ("kv", "output", "adapters", "prefixes"):
        run.part(name, held[name], "reported by the engine")
    run.part("index", sum(memory.index.memory_bytes().values()), "reported by the index")
    if scorer is not None:
        size = scorer.memory_bytes() + again
        run.part("compressor", size, "reported by the scorer, and the file mapped once more")


def _prompt(engine: Engine, tokens: int) -> str:
    """A text of about so many tokens, not more."""
    words = " ".join(_TOLD).split()
    while engine.count_tokens(" ".join(words)) > tokens:
        words = words[: len(words) * 9 // 10]
    return " ".join(words)


def _each(call: Callable[[str], object], inputs: list[str]) -> Callable[[], object]:
    """The call, with the next input each time."""
    turn = cycle(inputs)
    return lambda: call(next(turn))


def _ms(began: float) -> float:
    return round((time.perf_counter() - began) * 1e3, 4)
