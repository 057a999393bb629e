"""The figures of a profile, as JSON, rows and an HTML page; whether a memory budget is enough."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from html import escape
from itertools import cycle, pairwise
from typing import Any

import numpy as np

from edgemem.budget import Choice, admit, bytes_of
from edgemem.errors import InputError, MemoryBudgetExceeded
from edgemem.retrieval.search import reliability

__all__ = ["MEMORY_HEADS", "STAGE_HEADS", "Growth", "Part", "Profile", "Timing"]
__all__ += ["parse_budget", "render", "verdict", "words_of"]

NO_GPU = "no GPU"
NOT_REPORTED = "not reported"
UNKNOWN = "unknown"
STAGE_HEADS = ("stage", "p50 ms", "p95 ms", "first token ms", "tokens/s", "")
MEMORY_HEADS = ("part", "RAM MB", "VRAM MB", "from")
Cell = str | float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What one part holds in memory. basis: where the figure comes from."""

    name: str
    mb: float
    basis: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """One stage's times, in ms, in the order of the rounds; none if it was skipped, as note says.

    tokens_per_s, ttft_ms: medians; None if the stage has no such figure.
    """

    name: str
    times_ms: Sequence[float] = ()
    tokens_per_s: float | None = None
    ttft_ms: float | None = None
    note: str = ""

    @property
    def p50_ms(self) -> float | None:
        return _percentile(self.times_ms, 50)

    @property
    def p95_ms(self) -> float | None:
        return _percentile(self.times_ms, 95)

    def to_dict(self) -> dict[str, Any]:
        out: dict[str, Any] = {
            "p50_ms": self.p50_ms,
            "p95_ms": self.p95_ms,
            "n": len(self.times_ms),
            "times_ms": list(self.times_ms),
        }
        for name in ("tokens_per_s", "ttft_ms", "note"):
            if value := getattr(self, name):
                out[name] = value
        return out


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """The time of a search among `memories`, without embedding the query, and the index's size."""

    memories: int
    p50_ms: float
    p95_ms: float
    index_mb: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Whether a budget is enough.

    needs_mb: what is needed as things are, None if unknown; basis: "measured", or how it was
    foretold. If it does not fit: turn_down: what to turn down, in order; then_mb: what is needed
    then, None if even that is too much.
    """

    budget: str
    fits: bool
    limit_mb: float
    needs_mb: float | None
    then_mb: float | None = None
    turn_down: tuple[str, ...] = ()
    basis: str

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "turn_down": list(self.turn_down)}

    def sentence(self) -> str:
        """The verdict in words."""
        if self.needs_mb is None:
            return f"{self.budget}: {UNKNOWN}, this system does not tell what a process takes"
        needs = f"{self.needs_mb:.0f} of {self.limit_mb:.0f} MB, {self.basis}"
        if self.fits:
            return f"{self.budget}: fits ({needs})"
        if self.then_mb is None:
            tried = f" even with {', '.join(self.turn_down)}" if self.turn_down else ""
            return f"{self.budget}: does not fit{tried} ({needs}); use a smaller model"
        return (
            f"{self.budget}: does not fit as it is ({needs}); turn down {', '.join(self.turn_down)}"
            f" for {self.then_mb:.0f} MB (memory_limit does it)"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """What `profile` found. MB are 10⁶ bytes; None is what the system does not report.

    rss_mb, pss_mb: of the process at the end, with everything loaded and freed memory returned.
    peak_rss_mb: its highest RSS. explained: 1 − |RSS − sum of the parts| / RSS. cold_start_s: when
    each step was done, after the start of a process; the last is the first token of an answer with
    memory. plan: what a memory limit has turned down. joules: used by the processor while the
    stages ran, including all other programs.
    """

    parts: tuple[Part, ...]
    rss_mb: float | None
    pss_mb: float | None
    peak_rss_mb: float | None
    stages: tuple[Timing, ...]
    cold_start_s: Mapping[str, float]
    growth: tuple[Growth, ...]
    gpus: Sequence[Mapping[str, Any]]
    joules: float | None
    verdicts: tuple[Verdict, ...] = ()
    plan: Mapping[str, Any] | None
    model: str
    machine: Mapping[str, Any]
    versions: Mapping[str, str]
    backend: str

    @property
    def sum_mb(self) -> float:
        return sum(part.mb for part in self.parts)

    @property
    def unexplained_mb(self) -> float | None:
        """RSS that no part accounts for; below 0 if the parts claim more than is resident."""
        return None if self.rss_mb is None else self.rss_mb - self.sum_mb

    @property
    def explained(self) -> float | None:
        if self.rss_mb is None:
            return None
        return 1 - abs(self.rss_mb - self.sum_mb) / self.rss_mb

    @property
    def cold_start_to_first_token_s(self) -> float | None:
        return self.cold_start_s.get("first token")

    @property
    def largest_first(self) -> list[Part]:
        return sorted(self.parts, key=lambda part: -part.mb)

    def summary(self) -> dict[str, str]:
        """Returns the figures that matter most, in words, by their names."""
        decode = next((timing for timing in self.stages if timing.name == "decode"), None)
        speed = None if decode is None else decode.tokens_per_s
        vram = [
            f"{_or_unknown(gpu['process_mb'], '{:.0f}')} of {gpu['total_mb']:.0f} MB"
            for gpu in self.gpus
        ]
        first = "Cold start to the first token of an answer with memory"
        return {
            "Resident memory": _or_unknown(self.rss_mb, "{:.0f} MB"),
            "The same, with shared pages divided": _or_unknown(self.pss_mb, "{:.0f} MB"),
            "Most that it ever was": _or_unknown(self.peak_rss_mb, "{:.0f} MB"),
            "Explained by the parts": _or_unknown(self.explained, "{:.1%}"),
            "VRAM": ", ".join(vram) or NO_GPU,
            first: _or_unknown(self.cold_start_to_first_token_s, "{:.2f} s"),
            "Decoding": _or_unknown(speed, "{:.0f} tokens/s"),
            "Energy": NOT_REPORTED if self.joules is None else f"{self.joules:.0f} J",
        }

    def stage_rows(self) -> list[tuple[Cell, ...]]:
        """Returns a row for each stage, as `STAGE_HEADS` says."""
        return [
            (each.name, each.p50_ms, each.p95_ms, each.ttft_ms, each.tokens_per_s, each.note)
            for each in self.stages
        ]

    def memory_rows(self) -> list[tuple[Cell, ...]]:
        """Returns a row for each part, the largest first, as `MEMORY_HEADS` says."""
        vram = "" if self.gpus else NO_GPU
        rows: list[tuple[Cell, ...]] = [(p.name, p.mb, vram, p.basis) for p in self.largest_first]
        if self.rss_mb is not None:
            rows.append(("not explained", self.unexplained_mb, vram, "RSS less the parts"))
            held = ", ".join(str(gpu["process_mb"] or UNKNOWN) for gpu in self.gpus) or NO_GPU
            rows.append(("the process", self.rss_mb, held, "RSS"))
        return rows

    def told_verdicts(self) -> list[tuple[bool, str]]:
        """Returns whether each budget and the memory limit is enough, with the reason in words."""
        told = [(verdict.fits, verdict.sentence()) for verdict in self.verdicts]
        if self.plan is not None:
            down = ", ".join(self.plan["turned_down"]) or "nothing"
            told.append((True, f"memory limit {self.plan['limit_mb']:.0f} MB: turned down {down}"))
        return told

    def to_dict(self) -> dict[str, Any]:
        """JSON-able values; what is unknown is null."""
        return {
            "parts_mb": {part.name: round(part.mb, 2) for part in self.parts},
            "parts_basis": {part.name: part.basis for part in self.parts},
            "rss_mb": _rounded(self.rss_mb),
            "pss_mb": _rounded(self.pss_mb),
            "peak_rss_mb": _rounded(self.peak_rss_mb),
            "unexplained_mb": _rounded(self.unexplained_mb),
            "explained": _rounded(self.explained, 4),
            "vram": [dict(gpu) for gpu in self.gpus] or NO_GPU,
            "stages": {timing.name: timing.to_dict() for timing in self.stages},
            "cold_start_to_first_token_s": self.cold_start_to_first_token_s,
            "cold_start_s": dict(self.cold_start_s),
            "growth": [asdict(grown) for grown in self.growth],
            "reliability": reliability(),
            "energy_joules": NOT_REPORTED if self.joules is None else round(self.joules, 1),
            "budgets": [verdict.to_dict() for verdict in self.verdicts],
            "memory_limit": self.plan,
            "model": self.model,
            "machine": dict(self.machine),
            "versions": dict(self.versions),
            "backend": self.backend,
        }


def _percentile(values: Sequence[float], p: float) -> float | None:
    return round(float(np.percentile(values, p)), 3) if len(values) else None


def _rounded(value: float | None, digits: int = 2) -> float | None:
    return None if value is None else round(value, digits)


def _or_unknown(value: float | None, form: str) -> str:
    return UNKNOWN if value is None else form.format(value)


def words_of(cell: Cell) -> str:
    """Returns a cell of a table as text."""
    if isinstance(cell, str | int):
        return cell if isinstance(cell, str) else f"{cell:,}"
    return "" if cell is None else f"{cell:.1f}" if cell >= 10 else f"{cell:.3g}"


# -- budgets ----------------------------------------------------------------------------------

_BUDGET = re.compile(r"(.+?)[ -]?(ram|vram)", re.I)
_IN_VRAM = ("weights", "kv", "compute", "output", "adapters")


@dataclass(frozen=True, slots=True)
class Budget:
    """kind: "ram" or "vram"."""

    text: str
    bytes: int
    kind: str


def parse_budget(text: str) -> Budget:
    """`1GB-ram` or `8GB-vram`. Raises InputError on anything else."""
    with suppress(InputError):
        if found := _BUDGET.fullmatch(text.strip()):
            return Budget(text, bytes_of(found[1]), found[2].lower())
    raise InputError(f"{text!r} is no budget; give a size and what of, such as 1GB-ram or 8GB-vram")


def verdict(
    budget: Budget,
    profile: Profile,
    reserved: Mapping[str, int],
    choice: Choice,
    predict: Callable[[Choice], Mapping[str, int]],
) -> Verdict:
    """Whether the profiled process fits a budget, and what to turn down if it does not.

    reserved: bytes of the engine's buffers, all of which a GPU would hold. choice: what was loaded;
    predict: returns the bytes of each part under a choice, by which measured parts are scaled.
    RAM is judged by the measured RSS. VRAM is judged by what the process holds on the first GPU
    that reports it, or else by what it would hold with every layer on a GPU.
    """
    told = predict(choice)
    shrinks = {"weights", "kv", "compute", "prefixes", "index", "token_embedder"}
    if budget.kind == "ram":
        measured = {part.name: part.mb * 1e6 for part in profile.parts}
        rest = (profile.unexplained_mb or 0.0) * 1e6
        needs, basis = profile.rss_mb, "measured"
    else:
        measured = {name: float(reserved.get(name, 0)) for name in _IN_VRAM}
        rest, basis = 0.0, "foretold for all layers on a GPU"
        shrinks = {"kv"}  # the compute buffer does not shrink: its size is that of a batch's logits
        needs = sum(measured.values()) / 1e6
        held = next((gpu["process_mb"] for gpu in profile.gpus if gpu["process_mb"]), None)
        if held is not None:
            rest, needs, basis = (held - needs) * 1e6, held, "measured"
    made = Verdict(
        budget=budget.text,
        fits=needs is not None and needs * 1e6 <= budget.bytes,
        limit_mb=budget.bytes / 1e6,
        needs_mb=None if needs is None else round(needs, 1),
        basis=basis,
    )
    if made.fits or needs is None:
        return made

    def scaled(smaller: Choice) -> dict[str, int]:
        less = predict(smaller)
        scales = {name: less[name] / told[name] for name in shrinks if told.get(name)}
        parts = {name: int(size * scales.get(name, 1)) for name, size in measured.items()}
        return {**parts, "the rest": int(rest)}

    try:
        plan = admit(choice, scaled, budget.bytes)
    except MemoryBudgetExceeded as exc:
        return replace(made, turn_down=exc.turned_down)
    return replace(made, then_mb=round(plan.total_bytes / 1e6, 1), turn_down=plan.turned_down)


# -- the page ----------------------------------------------------------------------------------

_COLOURS = {
    "weights": "#2563c9",
    "embedder": "#7c4fc4",
    "token_embedder": "#a2478f",
    "libraries": "#5d6673",
    "kv": "#0b7f75",
    "compute": "#96650a",
    "prefixes": "#c04a30",
    "tokenizer": "#4d7c0f",
    "index": "#b0357f",
    "adapters": "#3f4f96",
    "not explained": "#87919e",
}
_STYLE = """
:root { color-scheme: light dark; --ground: #fbfbfa; --ink: #1d2127; --soft: #5b636e;
  --line: #d9dce0; --p50: #2563c9; --p95: #c04a30 }
@media (prefers-color-scheme: dark) { :root { --ground: #14171b; --ink: #e8eaed;
  --soft: #a2abb6; --line: #343a42; --p50: #74a7f7; --p95: #f09277 } }
body { margin: 0 auto; padding: 2rem 1.25rem 4rem; max-width: 60rem; background: var(--ground);
  color: var(--ink); font: 15px/1.5 system-ui, sans-serif }
h1 { font-size: 1.5rem; margin: 0 } h2 { font-size: 1.05rem; margin: 2.5rem 0 .5rem }
p { margin: .3rem 0 .6rem; max-width: 46rem } .soft { color: var(--soft) }
.no { font-weight: 600; color: var(--p95) }
.scroll { overflow-x: auto } table { border-collapse: collapse; width: 100%; font-size: .9rem }
th, td { padding: .25rem .8rem .25rem 0; border-bottom: 1px solid var(--line); text-align: left }
th.n, td.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap }
.bar { display: flex; height: 2.6rem; margin: .5rem 0 } .bar span { overflow: hidden;
  text-indent: .4rem; font-size: .8rem; color: #fff; border-right: 2px solid var(--ground);
  box-sizing: border-box }
.plot { position: relative; min-width: 16rem; height: 1.2rem;
  background-image: linear-gradient(90deg, var(--line) 1px, transparent 1px) }
.plot i { position: absolute; top: .4rem; width: .4rem; height: .4rem; margin-left: -.2rem;
  border-radius: 50%; background: var(--p50); opacity: .35 }
.plot .p50, .plot .p95 { top: 0; width: 3px; height: 1.2rem; border-radius: 0; opacity: 1 }
.plot .p95 { background: var(--p95) }
"""


class _Html(str):
    """A cell of a table that is HTML."""


def render(profile: Profile) -> str:
    """Returns a profile as one HTML page, with plots as columns of its tables.

    It is readable without a network and without a script, light and dark, and is XML too.
    """
    machine = profile.machine
    cores = f"{machine['cores']} cores" if machine.get("cores") else None
    about = [profile.model, machine.get("processor"), cores, machine.get("system")]
    shown = ("edgemem", "python", "llama-cpp-python", "onnxruntime")
    versions = [f"{name} {profile.versions[name]}" for name in shown if name in profile.versions]
    about += [f"{profile.backend} vectors", *versions]
    fits = "".join(
        f"<li>{escape(text)}</li>" if fits else f'<li class="no">{escape(text)}</li>'
        for fits, text in profile.told_verdicts()
    )
    sizes = {part.name: part.mb for part in profile.largest_first}
    sizes["not explained"] = max(0.0, profile.unexplained_mb or 0.0)
    body = [
        "<h1>edgemem profile</h1>",
        f'<p class="soft">{escape(" · ".join(str(each) for each in about if each))}</p>',
        f"<h2>Does it fit?</h2><ul>{fits}</ul>" if fits else "",
        "<h2>At a glance</h2>",
        _table(("", ""), [*profile.summary().items()]),
        "<h2>Memory</h2>",
        _bar((name, mb, f"{mb:.0f} MB") for name, mb in sizes.items()),
        _table(MEMORY_HEADS, profile.memory_rows()),
        "<h2>Latency of each stage</h2>",
        "<p>Each round is a dot; the first mark is the median, the other the 95th percentile.</p>",
        _latencies(profile),
        "<h2>Cold start</h2>",
        "<p>From the start of a process to the first token of an answer with memory, the disk's "
        "cache being warm.</p>",
        _cold_start(profile.cold_start_s),
        "<h2>Growth with the number of memories</h2>",
        "<p>Invented memories; the search without embedding the query.</p>",
        _growth(profile.growth),
        "<h2>How far to trust a score</h2>",
        "<p>A score is the probability that a memory answers the question. The first mark is the "
        "mean score of some memories, the other the share of them that did, in conversations that "
        "the weights have not seen.</p>",
        _reliability(),
    ]
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"/>'
        '<meta name="viewport" content="width=device-width, initial-scale=1"/>'
        f"<title>edgemem profile</title><style>{_STYLE}</style></head>\n"
        f"<body><main>{chr(10).join(body)}</main></body></html>\n"
    )


def _latencies(profile: Profile) -> str:
    every = [math.log10(max(ms, 1e-3)) for each in profile.stages for ms in each.times_ms] or [0.0]
    low, high = math.floor(min(every)), max(math.ceil(max(every)), math.floor(min(every)) + 1)

    def at(ms: float) -> float:
        return (math.log10(max(ms, 1e-3)) - low) / (high - low)

    def plot(each: Timing) -> str:
        ends = [(each.p50_ms, "p50"), (each.p95_ms, "p95")]
        marks = [(at(ms), "") for ms in each.times_ms]
        marks += [(at(ms), look) for ms, look in ends if ms is not None]
        return _plot(marks, high - low)

    name, *heads = STAGE_HEADS
    rows = [
        (name, plot(each), *figures)
        for each, (name, *figures) in zip(profile.stages, profile.stage_rows(), strict=True)
    ]
    return _table((name, f"{10.0**low:g} to {10.0**high:g} ms, logarithmic", *heads), rows)


def _cold_start(marks: Mapping[str, float]) -> str:
    if not marks:
        return f"<p>{UNKNOWN}</p>"
    spent = [at - before for before, at in pairwise([0.0, *marks.values()])]
    steps = [*zip(marks, spent, marks.values(), strict=True)]
    bar = _bar((name, took, f"{took:.2f} s") for name, took, _ in steps)
    return bar + _table(("up to", "s", "s since the start"), steps)


def _growth(growth: Sequence[Growth]) -> str:
    if not growth:
        return "<p>It was not measured.</p>"
    slowest, largest = max(each.p95_ms for each in growth), max(each.index_mb for each in growth)
    rows = [
        (
            each.memories,
            _plot([(each.p50_ms / slowest, "p50"), (each.p95_ms / slowest, "p95")]),
            each.p50_ms,
            each.p95_ms,
            _plot([(each.index_mb / largest, "p50")]),
            each.index_mb,
        )
        for each in growth
    ]
    times, sizes = f"0 to {slowest:g} ms", f"0 to {largest:g} MB"
    return _table(("memories", times, "p50 ms", "p95 ms", sizes, "index MB"), rows)


def _reliability() -> str:
    """Returns the reliability diagram of the weights that ship."""
    names = {"locomo": "LoCoMo", "written": "invented conversations"}
    rows = [
        (
            f"{retrieval}, {names[corpus]}",
            _plot([(row["score"], "p50"), (row["evidence"], "p95")], 10),
            row["score"],
            row["evidence"],
            int(row["memories"]),
        )
        for retrieval, corpora in reliability().items()
        for corpus, found in corpora.items()
        for row in found
    ]
    return _table(("search", "0 to 1", "mean score", "share that answers", "memories"), rows)


def _bar(pieces: Iterable[tuple[str, float, str]]) -> str:
    """Returns a stacked bar. pieces: name, size and the size in words."""
    shown = [(escape(name), size, words) for name, size, words in pieces]
    total = sum(size for _, size, _ in shown) or 1.0
    others = cycle(("#5d6673", "#3f4f96"))
    spans = (
        f'<span style="width:{100 * size / total:.2f}%;background:'
        f'{_COLOURS.get(name) or next(others)}" title="{name}: {words}">{name}<br/>{words}</span>'
        for name, size, words in shown
    )
    return f'<div class="bar" aria-hidden="true">{"".join(spans)}</div>'


def _plot(marks: Iterable[tuple[float, str]], steps: int = 4) -> _Html:
    """Returns marks on a line from 0 to 1 with a grid. marks: place, and "p50", "p95" or ""."""
    shown = "".join(f'<i class="{look}" style="left:{100 * at:.1f}%"></i>' for at, look in marks)
    size = f"background-size:{100 / steps:.2f}%"
    return _Html(f'<div class="plot" style="{size}" aria-hidden="true">{shown}</div>')


def _table(heads: Sequence[str], rows: Sequence[Sequence[Cell]]) -> str:
    """Returns a table. Texts are escaped, unless they are `_Html`; figures are aligned right."""
    figures = {i for row in rows for i, cell in enumerate(row) if isinstance(cell, int | float)}

    def line(cells: Iterable[Cell], tag: str) -> str:
        told = [c if isinstance(c, _Html) else escape(words_of(c)) for c in cells]
        looks = [' class="n"' if i in figures else "" for i in range(len(told))]
        shown = (f"<{tag}{look}>{c}</{tag}>" for look, c in zip(looks, told, strict=True))
        return f"<tr>{''.join(shown)}</tr>"

    body = "".join(line(row, "td") for row in rows)
    return f'<div class="scroll"><table>{line(heads, "th")}{body}</table></div>'
