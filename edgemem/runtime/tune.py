"""Finds the quantisation and the thread counts with which this machine runs the default model best.

The bundled file is Q4_1, for which llama.cpp has no fast kernel. llama.cpp can requantise it to
Q8_0, which answers nearly the same. `tune` measures once whether that is faster, and with how many
threads, and stores the result in the user's cache folder. Engine.load, and so Memory, only reads
the `stored` result, if it is intact and of this machine.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from edgemem import cachefile
from edgemem.config import cache_dir
from edgemem.errors import ModelError
from edgemem.runtime import llama, models
from edgemem.runtime.machine import cores

__all__ = ["Speed", "Tuning", "choose_file", "measure", "requantise", "source_sha256", "stored"]
__all__ += ["tune"]

_Q8_0 = 7  # llama.cpp's number of the file type

# Tokens of a stage's typical call: the uncached part of its prompt, and its answer.
PREFILL_TOKENS, DECODE_TOKENS = 150, 30
# More threads, or another file, must be faster by this factor: a file takes disk space, threads
# take cores from other programs, and those disturb the measurement.
MARGIN = 1.1
BUDGET_S = 5.0

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Speed:
    """The speed of one file with n_threads: tokens/s, medians over the rounds."""

    form: str
    n_threads: int
    prefill_tokens_per_s: float
    decode_tokens_per_s: float


@dataclass(frozen=True, slots=True)
class Tuning:
    """How to load the default model.

    form: "q8_0", or "source" where the model's own file is the fastest. path: the file;
    sha256: its hash; source_sha256: that of the file it was made from. n_threads: for decoding.
    n_threads_batch: for prefill.
    """

    form: str
    path: Path
    sha256: str
    source_sha256: str
    n_threads: int
    n_threads_batch: int
    speeds: tuple[Speed, ...]


def choose_file(
    path: str | os.PathLike[str] | None, *, tuned: bool, n_gpu_layers: int
) -> tuple[Path, int, int]:
    """The file that a model is loaded from, and its threads for decoding and for prefill.

    path: a file or a name of the manifest; None is the default model. tuned: use the stored tuning
    if this is the default model and it runs without a GPU.
    Raises ModelNotFound.
    """
    file = models.find(os.fspath(path) if path is not None else models.DEFAULT_LLM)
    tunable = tuned and path in (None, models.DEFAULT_LLM) and n_gpu_layers == 0
    if tunable and (tuning := stored(file)) is not None:
        return tuning.path, tuning.n_threads, tuning.n_threads_batch
    return file, max(1, cores() // 2), cores()


def stored(source: Path) -> Tuning | None:
    """The stored tuning of the default model. Reads the whole stored file, to check it.

    source: the file of the default model. None if nothing is stored, or if it is damaged, or was
    made from another file, on another machine, or with another build of llama.cpp.
    """
    path = _path(source)
    stamp = cachefile.read_stamp(path)
    try:
        if stamp is None or stamp["machine"] != _machine():
            return None
        if stamp["source_sha256"] != models.entry(models.DEFAULT_LLM).sha256:
            return None
        unchanged = stamp["form"] == "source"
        return Tuning(
            form=stamp["form"],
            path=source if unchanged else path,
            sha256=stamp["source_sha256" if unchanged else "sha256"],
            source_sha256=stamp["source_sha256"],
            n_threads=stamp["n_threads"],
            n_threads_batch=stamp["n_threads_batch"],
            speeds=tuple(Speed(**speed) for speed in stamp["speeds"]),
        )
    except (KeyError, TypeError):  # a stamp of another program, or of another version of this one
        return None


def source_sha256(file: Path) -> str | None:
    """The sha256 of the model that a tuned file was made from; None of any other file."""
    return (cachefile.read_stamp(file) or {}).get("source_sha256")


def tune(progress: Progress | None = None, *, budget_s: float = BUDGET_S) -> Tuning:
    """Measure the default model's own form and Q8_0, and store and return the faster one.

    progress: called with (steps done, steps in all). budget_s: for measuring, of which one round is
    always done; writing the file comes before and is not counted. The rule: for each file take the
    fastest thread counts, then take the file with the least time for 150 tokens of prefill and 30
    of decode. More threads must gain a tenth, and so must a file other than the source.
    Raises ModelNotFound, and ModelError if the model is damaged or the file cannot be stored.
    """
    source = models.verified_file(models.DEFAULT_LLM)
    path = _path(source)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        made, size = cachefile.write_temporary(
            path, lambda name: requantise(source, Path(name)), None
        )
        try:
            files = {"source": source, "q8_0": made}
            counts = sorted({max(1, cores() // 2), cores()})
            speeds = measure(files, counts, budget_s=budget_s, progress=progress)
            form, n_threads, n_threads_batch = choose(speeds)
            if form == "source":  # only the speeds are stored
                made.unlink()
                made, size = cachefile.write_temporary(path, lambda name: None, 0)
            stamp = {
                "form": form,
                "machine": _machine(),
                "source_sha256": models.entry(models.DEFAULT_LLM).sha256,
                "n_threads": n_threads,
                "n_threads_batch": n_threads_batch,
                "speeds": [asdict(speed) for speed in speeds],
            }
            cachefile.publish(made, path, {**size, **stamp})
        finally:
            made.unlink(missing_ok=True)
    except OSError as exc:
        raise ModelError(
            f"The tuned model cannot be stored as {path} ({exc.strerror or exc}). It takes 150 MB: "
            "make room, or set EDGEMEM_HOME to another folder."
        ) from exc
    tuning = stored(source)
    if tuning is None:
        raise ModelError(f"{path} was changed while it was written; tune again")
    return tuning


def choose(speeds: Sequence[Speed]) -> tuple[str, int, int]:
    """The (form, threads for decoding, threads for prefill) by the rule of `tune`.

    speeds: each form, "source" first, with the same thread counts, the smallest first.
    """

    def best(kind: Callable[[Speed], float], form: str) -> Speed:
        chosen, *others = (speed for speed in speeds if speed.form == form)
        for other in others:
            if kind(other) > MARGIN * kind(chosen):
                chosen = other
        return chosen

    rows = []
    for form in dict.fromkeys(speed.form for speed in speeds):
        prefill = best(lambda s: s.prefill_tokens_per_s, form)
        decode = best(lambda s: s.decode_tokens_per_s, form)
        seconds = PREFILL_TOKENS / prefill.prefill_tokens_per_s
        seconds += DECODE_TOKENS / decode.decode_tokens_per_s
        rows.append((seconds * (1.0 if form == "source" else MARGIN), form, decode, prefill))
    _, form, decode, prefill = min(rows, key=lambda row: row[0])
    return form, decode.n_threads, prefill.n_threads


def requantise(source: Path, target: Path) -> None:
    """Write a GGUF model as Q8_0. The number of threads does not change its bytes.

    Raises ModelError if llama.cpp cannot do it.
    """
    lib = llama.library()
    params = lib.llama_model_quantize_default_params()
    params.ftype = _Q8_0
    params.allow_requantize = True
    params.nthread = cores()
    if lib.llama_model_quantize(os.fsencode(source), os.fsencode(target), ctypes.byref(params)):
        raise ModelError(
            f"llama.cpp could not write {source.name} as q8_0 to {target.parent} "
            f"({llama.last_errors()}); check the room on the disk, and the model "
            "with `edgemem models verify`"
        )


def measure(
    files: Mapping[str, Path],
    thread_counts: Sequence[int],
    *,
    prefill_tokens: int = 96,
    decode_tokens: int = 8,
    budget_s: float = BUDGET_S,
    progress: Progress | None = None,
) -> list[Speed]:
    """Measure the speed of GGUF files with several thread counts.

    files: by the name that their rows get as `form`. Each file is warmed up. Then rounds measure
    every file with every thread count until budget_s is spent (one round at least), so that other
    load on the machine affects all alike. Returns the rows file by file, threads as given.
    Raises ModelError as Engine.load does.
    """
    lib = llama.library()
    timings: dict[tuple[str, int], list[tuple[float, float]]] = {}
    n_ctx = prefill_tokens + decode_tokens
    with ExitStack() as opened:
        contexts = {}
        for name, file in files.items():
            model, context = llama.open_model(file, n_ctx=n_ctx, n_threads=thread_counts[-1])
            opened.callback(lib.llama_model_free, model)
            opened.callback(lib.llama_free, context)
            contexts[name] = context
            _timed(lib, context, 32, 1)
        started = time.perf_counter()
        while not timings or time.perf_counter() - started < budget_s:
            for name, context in contexts.items():
                for count in thread_counts:
                    lib.llama_set_n_threads(context, count, count)
                    timing = _timed(lib, context, prefill_tokens, decode_tokens)
                    timings.setdefault((name, count), []).append(timing)
            if progress is not None:
                spent = time.perf_counter() - started
                progress(min(100, round(100 * spent / budget_s)) if budget_s else 100, 100)
    speeds = []
    for name, count in itertools.product(files, thread_counts):
        prefill_s, decode_s = map(statistics.median, zip(*timings[name, count], strict=True))
        speeds.append(Speed(name, count, prefill_tokens / prefill_s, decode_tokens / decode_s))
    return speeds


def _timed(lib: Any, context: Any, prefill_tokens: int, decode_tokens: int) -> tuple[float, float]:
    """Seconds for a prefill of an empty context, and for the tokens that follow one by one."""
    lib.llama_memory_clear(lib.llama_get_memory(context), False)
    started = time.perf_counter()
    for start in range(0, prefill_tokens, llama.N_BATCH):  # any tokens will do
        llama.decode(context, range(start, min(start + llama.N_BATCH, prefill_tokens)))
    between = time.perf_counter()
    for token in range(decode_tokens):
        llama.decode(context, [token])
    return between - started, time.perf_counter() - between


def _path(source: Path) -> Path:
    return cache_dir() / f"{source.stem}.tuned"  # Engine.name stays the same


def _machine() -> str:
    return f"{platform.machine()}, {cores()} cores, {llama.build_info()}"
