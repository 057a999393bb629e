"""The figures of a profile, their JSON, and whether a memory budget is enough."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from edgemem.budget import Choice, admit, bytes_of
from edgemem.errors import InputError, MemoryBudgetExceeded
from edgemem.retrieval.search import reliability

__all__ = ["NOT_REPORTED", "NO_GPU", "UNKNOWN", "Growth", "Part", "Profile", "Timing"]
__all__ += ["parse_budget", "verdict"]

NO_GPU = "no GPU"
NOT_REPORTED = "not reported"
UNKNOWN = "unknown"


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
