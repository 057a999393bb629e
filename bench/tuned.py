"""What do the default model's quantized forms, the grammar and a second context cost and give?

    python -m bench.tuned [--seconds 20] [--json OUT]

Everything is measured in one run. Rows: the speed of each form (the source is the bundled Q4_1)
with one thread and with all, separately for prefill and decoding; the quality of each form on a
fixed text (mean log p of the text's tokens, and how often the form's likeliest token is the
source's); two threads that share one engine's lock, against one engine each.
The summary has the cost of decoding with a JSON schema.
"""

from __future__ import annotations

import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import edgemem
from bench import report
from edgemem.pipeline.importers import read_demo
from edgemem.runtime import llama, models, tune
from edgemem.runtime.engine import Engine
from edgemem.runtime.machine import cores
from edgemem.runtime.vocabulary import Vocabulary
from edgemem.stages import extraction

TEXTS = [
    Path(edgemem.__file__).parent / "data" / "demo.json",
    *sorted((Path(__file__).parent / "conversations").rglob("*.json")),
]
SENTENCES = (
    "I moved to Oslo in March and I teach maths at a primary school near the river.",
    "My sister Ines bought a narrowboat last summer and she paints it in the evenings.",
    "We got two kittens called Pepper and Salt from the shelter on Mill Lane in May.",
)
CALLS = 4


@contextmanager
def forms() -> Iterator[dict[str, Path]]:
    """The model files by name: the source, and a new temporary file in Q8_0."""
    source = models.find(models.DEFAULT_LLM)
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "q8_0.gguf"
        tune.requantise(source, made)
        yield {"source": source, "q8_0": made}


def prefill_ratio_tuned(tokens: int = 512, seconds: float = 20.0) -> float:
    """Prefill speed of Q8_0 divided by the bundled file's: two threads, medians of one run."""
    with forms() as files:
        source, tuned = tune.measure(
            files, [2], prefill_tokens=tokens, decode_tokens=1, budget_s=seconds
        )
    return tuned.prefill_tokens_per_s / source.prefill_tokens_per_s


def grammar_overhead(engine: Engine, rounds: int = 9) -> float:
    """The share by which a JSON schema slows decoding (0.1 is a tenth): median over `rounds` pairs.

    Both answers of a pair have the extraction stage's prompt and the same token limit.
    """
    ratios = []
    for number in range(rounds):
        sentence = SENTENCES[number % len(SENTENCES)]
        prompt = f"{extraction.PROMPT}\n\n{extraction._SHOTS}Ana: {sentence}\n"
        speed = [
            engine.generate(prompt, max_tokens=16, schema=schema).tokens_per_s
            for schema in (None, extraction.schema("Ana"))
        ]
        ratios.append(speed[0] / speed[1])
    return statistics.median(ratios) - 1.0


def quality(file: Path) -> tuple[NDArray[np.float64], NDArray[np.intp]]:
    """The predictions of a model file on the invented conversations.

    Returns (n,) log p of each token after the first of its batch, and (n,) the likeliest tokens.
    """
    lib = llama.library()
    model, context = llama.open_model(
        file, n_ctx=llama.N_BATCH, n_threads=1, n_threads_batch=2, n_gpu_layers=0
    )
    batch = lib.llama_batch_init(llama.N_BATCH, 0, 1)
    vocabulary = Vocabulary(lib, model, file.name)
    log_p, likeliest = [], []
    for tokens in _passages(vocabulary):
        batch.n_tokens = len(tokens)
        for i, token in enumerate(tokens):
            batch.token[i], batch.pos[i], batch.logits[i] = token, i, 1
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, 0
        lib.llama_memory_clear(lib.llama_get_memory(context), False)
        assert lib.llama_decode(context, batch) == 0
        shape = (len(tokens), vocabulary.size)
        logits = np.ctypeslib.as_array(lib.llama_get_logits(context), shape=shape)[:-1]
        logits = logits.astype(np.float64)
        logits -= logits.max(axis=1, keepdims=True)
        chosen = logits[np.arange(len(tokens) - 1), tokens[1:]]
        log_p.append(chosen - np.log(np.exp(logits).sum(axis=1)))
        likeliest.append(logits.argmax(axis=1))
    lib.llama_batch_free(batch)
    lib.llama_free(context)
    lib.llama_model_free(model)
    return np.concatenate(log_p), np.concatenate(likeliest)


def _passages(vocabulary: Vocabulary) -> Iterator[list[int]]:
    """The first 512 tokens of each invented conversation, in batches of at most N_BATCH."""
    for text in TEXTS:
        said = [m for session in read_demo(str(text)).sessions for m in session.messages]
        lines = "".join(f"{m.get('name') or m['role']}: {m['content']}\n" for m in said)
        tokens = vocabulary.tokenize(lines)[:512]
        for start in range(0, len(tokens), llama.N_BATCH):
            yield tokens[start : start + llama.N_BATCH]


def quality_rows(files: dict[str, Path]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    source = quality(files["source"])
    for name, file in files.items():
        log_p, likeliest = source if name == "source" else quality(file)
        change = log_p - source[0]
        rows.append(
            {
                "what": "quality",
                "form": name,
                "sha256": models.sha256_of(file),
                "bytes": file.stat().st_size,
                "tokens": len(log_p),
                "mean_log_p": round(float(log_p.mean()), 4),
                "change": round(float(change.mean()), 4),
                "change_standard_error": round(float(change.std() / len(change) ** 0.5), 4),
                "same_likeliest": round(float((likeliest == source[1]).mean()), 4),
            }
        )
    return rows


def two_threads(n_engines: int, n_threads_batch: int) -> float:
    """Calls/s of two threads. Each call has a new prompt of about 150 tokens, 30 answer tokens."""
    with ExitStack() as opened:
        engines = [
            opened.enter_context(
                Engine.load(tuned=False, n_threads=1, n_threads_batch=n_threads_batch)
            )
            for _ in range(n_engines)
        ]

        def work(number: int) -> None:
            for call in range(CALLS):
                prompt = f"{number}{call}. " + " ".join(SENTENCES) + " " + " ".join(SENTENCES)
                engines[number % n_engines].generate(prompt, max_tokens=30)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
        started = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return 2 * CALLS / (time.perf_counter() - started)


def speed_rows(files: dict[str, Path], seconds: float) -> list[dict[str, Any]]:
    speeds = tune.measure(
        files, sorted({1, cores()}), prefill_tokens=150, decode_tokens=15, budget_s=seconds
    )
    return [{"what": "speed", **asdict(speed)} for speed in speeds]


def context_rows(rounds: int = 3) -> list[dict[str, Any]]:
    ways = {
        "one lock, prefill on all cores": (1, cores()),
        "an engine each, prefill on one core": (2, 1),
        "an engine each, prefill on all cores": (2, cores()),
    }
    rates: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(rounds):
        for way, (n_engines, n_threads_batch) in ways.items():
            rates[way].append(two_threads(n_engines, n_threads_batch))
    return [
        {"what": "two threads", "way": way, "calls_per_s": round(statistics.median(found), 3)}
        for way, found in rates.items()
    ]


def main() -> None:
    parser = report.parser("tuned", __doc__, to_file=False)
    parser.add_argument("--seconds", type=float, default=20.0, help="for each measure of speed")
    arguments = parser.parse_args()
    with forms() as files:
        rows = [*quality_rows(files), *speed_rows(files, arguments.seconds), *context_rows()]
    with Engine.load(tuned=False) as engine:
        overhead = grammar_overhead(engine)
    summary = {
        "prefill_ratio_tuned": round(prefill_ratio_tuned(seconds=arguments.seconds), 3),
        "grammar_overhead": round(overhead, 3),
    }
    report.write(arguments.json, summary, rows)


if __name__ == "__main__":
    main()
