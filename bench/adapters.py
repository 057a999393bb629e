"""What do adapters cost? Switching, reloading, decoding, memory; and what do kept prefixes save?

    python -m bench.adapters --json OUT [--experts NAME] [--interleavings 1000] [--rounds 12]

The adapters are those of a set of experts, if there is one; else random ones of the same shape: q
and v (r = 8) for extraction and update, all linear maps for generation. Random numbers cost what
trained ones do, but answer nothing. One row for each question:

- switch: microseconds of `llama_set_adapters_lora`, in generations of two stages that take turns;
  first_decode_ms: what the graph that is built anew adds to the next prompt's first tokens;
- reload: milliseconds to load the model anew with `lora_path`, what a switch replaces;
- speed: prefill and decode with each stage's adapters, and with a random adapter of q and v alone
  ("q,v"), against none, in alternation;
- memory: growth of the resident set when all adapters are loaded and used;
- prefix: time to first token with a cached prefix of 300 tokens, against a cold run;
- contamination: how many of random interleavings of stages, adapters and prompts give logits that
  differ in any bit from a cold run's.

The summary also has two figures of bench/tuned.py: the cost of a JSON schema in decoding, and the
tuned model's prefill ratio, for 512 tokens and for the number that is new in a stage's call.
"""

from __future__ import annotations

import gc
import random
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from bench import report
from bench.alone import resident_mb
from bench.random_adapters import ALL_LINEAR, QV, write_adapter
from bench.tuned import grammar_overhead, prefill_ratio_tuned
from edgemem.runtime import experts, models, tune
from edgemem.runtime.engine import Engine

STAGES = {"extraction": QV, "update": QV, "generation": ALL_LINEAR}
STORY = "The old harbour master walked along the quay and told the children how"
SENTENCES = (
    "I sold my car and I cycle to the office now.",
    "My sister Ines plays the cello in an orchestra.",
    "We moved to Bergen in June because of the new job.",
    "I am allergic to hazelnuts and to cats.",
    "On Fridays I teach chess at the library.",
)

Row = dict[str, Any]


def words(seed: int, count: int) -> str:
    """`count` random words; each seed gives another text."""
    chance = random.Random(seed)
    some = "river stone lamp garden winter letter bread cloud train window song paper hill".split()
    return " ".join(chance.choice(some) for _ in range(count))


def adapter_files(folder: Path, name: str) -> tuple[str, dict[str, tuple[Path, float]]]:
    """A description of the adapters, and each stage's file and scale."""
    known = {s.name: s for s in experts.available()}
    if name in known:
        found = known[name]
        return name, {e.stage: (found.folder / e.file, e.scale) for e in found.adapters}
    if name != experts.DEFAULT:
        raise SystemExit(f"There are no experts {name!r}. Known: {', '.join(known) or 'none'}.")
    return "random numbers", {
        stage: (write_adapter(folder / f"{stage}.gguf", seed, targets=targets, size=0.02), 1.0)
        for seed, (stage, targets) in enumerate(STAGES.items())
    }


def bind_all(engine: Engine, files: Mapping[str, tuple[Path, float]]) -> None:
    for stage, (file, scale) in files.items():
        engine.load_adapter(stage, file)
        engine.bind(stage, {stage: scale})


# -- one question each -------------------------------------------------------------------------


def memory(files: Mapping[str, tuple[Path, float]]) -> tuple[Row, Engine]:
    """A row with the growth of the resident set, and the engine, which the other questions use.

    rss_mb: after each adapter was used and cached prompts were dropped. taking_turns_rss_mb: the
    maximum while adapters alternate, with what llama.cpp allocates anew for each.
    """
    engine = Engine.load(tuned=False)
    prompt = words(1, 200)
    for _ in range(2):
        engine.generate(prompt, max_tokens=4)
        engine.drop_prefixes()
    gc.collect()
    before = resident_mb()
    bind_all(engine, files)
    for stage in files:
        engine.generate(prompt, max_tokens=4, stage=stage)
        engine.drop_prefixes()  # cached prompts are no cost of adapters
    gc.collect()
    rested = resident_mb()
    most = 0.0
    for stage in [*files] * 4:
        engine.generate(prompt, max_tokens=4, stage=stage)
        most = max(most, resident_mb() - engine.memory()["prefixes"] / 1e6)
    engine.drop_prefixes()
    row = {
        "what": "memory",
        "adapters": len(files),
        "files_mb": sum(a.bytes for a in engine.adapters()) / 1e6,
        "rss_mb": rested - before,
        "taking_turns_rss_mb": most - before,
    }
    return row, engine


def switch(engine: Engine, stages: Sequence[str], switches: int) -> Row:
    first_us, first_ms, same_ms = [], [], []
    for turn in range(switches):
        done = engine.generate("One two", max_tokens=1, stage=stages[turn % len(stages)])
        first_us.append(done.switch_s * 1e6)
        if turn < 40:
            first_ms.append(done.ttft_s * 1e3)
            engine.drop_prefixes()
            again = engine.generate("One two", max_tokens=1, stage=stages[turn % len(stages)])
            same_ms.append(again.ttft_s * 1e3)
            engine.drop_prefixes()
    assert all(us > 0 for us in first_us)
    return {
        "what": "switch",
        "switches": switches,
        "us_p50": report.percentile(first_us, 50),
        "us_p95": report.percentile(first_us, 95),
        "first_decode_ms": median(first_ms) - median(same_ms),
    }


def reload(path: Path, adapter: Path, rounds: int) -> Row:
    from llama_cpp import Llama

    times = []
    for _ in range(rounds):
        started = time.perf_counter()
        llama = Llama(model_path=str(path), lora_path=str(adapter), n_ctx=2048, verbose=False)
        times.append((time.perf_counter() - started) * 1e3)
        llama.close()
    return {
        "what": "reload",
        "rounds": rounds,
        "ms_p50": report.percentile(times, 50),
        "ms_p95": report.percentile(times, 95),
    }


def speed(engine: Engine, stages: Sequence[str], rounds: int) -> list[Row]:
    """A row for each stage: its prefill and decode speed, and their ratios to no adapter's.

    Ratios are of CPU seconds: other work on the machine stretches wall time, but hardly CPU time.
    """
    found: dict[str, list[tuple[float, ...]]] = {stage: [] for stage in ["", *stages]}
    for turn in range(rounds + 1):
        prompt = f"{words(turn, 120)}. {STORY}"
        for stage in random.Random(turn).sample(list(found), len(found)):
            engine.generate("One two", max_tokens=1, stage=stage)  # the switch is not measured here
            engine.drop_prefixes()
            started = time.process_time()
            first = engine.generate(prompt, max_tokens=1, stage=stage)
            between = time.process_time()
            done = engine.generate(prompt, max_tokens=40, stop=("\0",), stage=stage)
            ended = time.process_time()
            if turn:  # the first round warms
                per_token = (ended - between) / (done.completion_tokens + 1)
                per_prompt = (between - started) / first.prompt_tokens
                tokens_per_s = first.prompt_tokens / first.ttft_s
                found[stage].append((per_prompt, per_token, tokens_per_s, done.tokens_per_s))
    rows: list[Row] = []
    for stage, samples in found.items():
        ratios = [(b[0] / s[0], b[1] / s[1]) for s, b in zip(samples, found[""], strict=True)]
        rows.append(
            {
                "what": "speed",
                "stage": stage or "(no adapter)",
                "rounds": rounds,
                "prefill_ratio": median(ratio for ratio, _ in ratios),
                "decode_ratio": median(ratio for _, ratio in ratios),
                "prefill_tokens_per_s": median(s[2] for s in samples),
                "decode_tokens_per_s": median(s[3] for s in samples),
            }
        )
    return rows


def prefix(engine: Engine, stage: str, rounds: int) -> Row:
    tokens = engine.tokenize(words(7, 400))[:300]
    text = b"".join(map(engine._vocabulary.piece, tokens)).decode()
    cold, hit, cached = [], [], []
    for turn in range(rounds):
        prompt = f"{text}. {SENTENCES[turn % len(SENTENCES)]} {words(turn, 12)}"
        engine.drop_prefixes()
        cold.append(engine.generate(prompt, max_tokens=1, stage=stage).ttft_s * 1e3)
        engine.generate(f"{text}! {words(99, 9)}", max_tokens=1, stage=stage)
        engine.generate("Another stage has its turn.", max_tokens=1, stage="between")
        done = engine.generate(prompt, max_tokens=1, stage=stage)
        hit.append(done.ttft_s * 1e3)
        cached.append(done.cached_tokens)
    return {
        "what": "prefix",
        "stage": stage or "(no adapter)",
        "prompt_tokens": done.prompt_tokens,
        "cached_tokens": int(median(cached)),
        "cold_ttft_ms": median(cold),
        "hit_ttft_ms": median(hit),
        "ratio": median(c / h for c, h in zip(cold, hit, strict=True)),
    }


def contamination(engine: Engine, stages: Sequence[str], interleavings: int) -> Row:
    """How often logits after a prompt differ, in any byte, from those of a run without a prefix."""
    sets: list[dict[str, float]] = [{}, *({s: 1.0} for s in stages), {stages[0]: 0.5}]
    sets.append(dict.fromkeys(stages[:2], 0.7))
    heads = [words(31, 24), words(32, 40)]
    prompts = [f"{head}. {tail}" for head in heads for tail in SENTENCES[:3]] + ["One two", STORY]
    triples = [(i, p) for i in range(len(sets)) for p in range(len(prompts))]
    chance = random.Random(1)
    triples = chance.sample(triples, min(40, len(triples)))

    def logits(stage: str, prompt: int) -> tuple[bytes, int]:
        done = engine.generate(prompts[prompt], max_tokens=1, stage=stage)
        return engine._logits().tobytes(), done.cached_tokens

    cold = {}
    for i, prompt in triples:
        engine.bind("cold", sets[i])
        engine.drop_prefixes()
        cold[i, prompt] = logits("cold", prompt)[0]
    engine.drop_prefixes()
    names = ["a", "b", "c", "d"]
    bound = dict.fromkeys(names, 0)
    wrong = hits = 0
    for _ in range(interleavings):
        i, prompt = chance.choice(triples)
        fitting = [name for name in names if bound[name] == i]
        stage = chance.choice(fitting if fitting and chance.random() < 0.8 else names)
        if bound[stage] != i:
            engine.bind(stage, sets[i])
            bound[stage] = i
        found, cached = logits(stage, prompt)
        wrong += found != cold[i, prompt]
        hits += cached > 0
    return {
        "what": "contamination",
        "triples": len(triples),
        "interleavings": interleavings,
        "with_reused_prefix": hits,
        "contaminations": wrong,
    }


# -- all of them -------------------------------------------------------------------------------


def told(question: str, answer: Callable[[], Any]) -> Any:
    started = time.perf_counter()
    found = answer()
    seconds = time.perf_counter() - started
    print(f"{question}: {seconds:.0f} s", file=sys.stderr)
    return found


def run(name: str, interleavings: int, rounds: int) -> tuple[Row, list[Row]]:
    with tempfile.TemporaryDirectory() as folder:
        what, files = adapter_files(Path(folder), name)
        stages = list(files)
        memory_row, engine = told("memory", lambda: memory(files))
        with engine:
            switch_row = told("switch", lambda: switch(engine, stages[:2], 200))
            file = files[stages[0]][0]
            reload_row = told("reload", lambda: reload(engine.path, file, rounds))
            qv = write_adapter(Path(folder, "qv.gguf"), 9, targets=QV, size=0.02)
            bind_all(engine, {"q,v": (qv, 1.0)})
            speed_rows = told("speed", lambda: speed(engine, [*stages, "q,v"], rounds))
            engine.unload_adapter("q,v")
            prefix_rows = [told(f"prefix {s}", partial(prefix, engine, s, rounds)) for s in stages]
            overhead = told("grammar", lambda: grammar_overhead(engine))
            contamination_row = told(
                "contamination", lambda: contamination(engine, stages, interleavings)
            )
        rows: list[Row] = [memory_row, switch_row, reload_row, *speed_rows, *prefix_rows]
        rows.append(contamination_row)
    tuned = told("tuned", prefill_ratio_tuned)
    tuned_call = told("tuned, a call", lambda: prefill_ratio_tuned(tune.PREFILL_TOKENS))
    decode = {row["stage"]: row["decode_ratio"] for row in speed_rows}
    summary = {
        "model": models.DEFAULT_LLM,
        "adapters": what,
        "switch_us_p50": switch_row["us_p50"],
        "reload_ms_p50": reload_row["ms_p50"],
        "switch_faster_than_reload": reload_row["ms_p50"] * 1e3 / switch_row["us_p50"],
        "contaminations": contamination_row["contaminations"],
        "interleavings": interleavings,
        "prefix_ttft_ratio": min(r["ratio"] for r in prefix_rows),
        "grammar_overhead": overhead,
        "prefill_ratio_tuned": tuned,
        "prefill_ratio_tuned_call": tuned_call,
        "adapters_rss_mb": memory_row["rss_mb"],
        "taking_turns_rss_mb": memory_row["taking_turns_rss_mb"],
        "decode_ratio_qv": decode["q,v"],
        "decode_ratio_experts": min(decode[stage] for stage in stages),
    }
    return summary, rows


def main(arguments: list[str] | None = None) -> None:
    parser = report.parser("adapters", __doc__, to_file=False)
    parser.add_argument("--experts", default=experts.DEFAULT, metavar="NAME", help="a set's name")
    parser.add_argument("--interleavings", type=int, default=1000, metavar="N")
    parser.add_argument("--rounds", type=int, default=12, metavar="N")
    options = parser.parse_args(arguments)
    if options.interleavings < 1 or options.rounds < 1:
        parser.error("--interleavings and --rounds must be 1 or more")
    report.write(options.json, *run(options.experts, options.interleavings, options.rounds))


if __name__ == "__main__":
    main()
