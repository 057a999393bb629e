"""Whether a budget is enough for what was measured, and what to turn down if not.

Knows budgets, the measured parts and the ladder of budget.py; measures nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from edgemem.budget import Choice, admit, bytes_of
from edgemem.errors import InputError, MemoryBudgetExceeded
from edgemem.profile.report import Profile, Verdict

__all__ = ["Budget", "parse_budget", "verdict"]

Kind = Literal["ram", "vram"]
_BUDGET = re.compile(r"(.+?)[ -]?(ram|vram)", re.I)
_IN_VRAM = ("weights", "kv", "compute", "output", "adapters")


@dataclass(frozen=True, slots=True)
class Budget:
    text: str
    bytes: int
    kind: Kind


def parse_budget(text: str) -> Budget:
    """`1GB-ram` or `8GB-vram`. Raises InputError on anything else."""
    found = _BUDGET.fullmatch(text.strip())
    try:
        if found is not None:
            kind: Kind = "vram" if found[2].lower() == "vram" else "ram"
            return Budget(text, bytes_of(found[1]), kind)
    except InputError:
        pass
    raise InputError(f"{text!r} is no budget; give a size and what of, such as 1GB-ram or 8GB-vram")


def verdict(
    budget: Budget,
    profile: Profile,
    reserved: Mapping[str, int],
    choice: Choice,
    predict: Callable[[Choice], Mapping[str, int]],
) -> Verdict:
    """Does what was profiled fit a budget?

    reserved: what the engine has of its buffers, all of which a GPU would hold. choice: what was
    loaded; predict: bytes of each part under another, from which each measured part is scaled.
    RAM is judged by the RSS measured; VRAM by what the process holds of the first GPU, or, where
    none runs it, by what it would hold with every layer there.
    """
    told = predict(choice)
    shrinks = {"kv", "compute", "prefixes", "index", "compressor"}
    if budget.kind == "ram":
        measured = {part.name: part.mb * 1e6 for part in profile.parts}
        rest = (profile.unexplained_mb or 0.0) * 1e6
        needs, basis = profile.rss_mb, "measured"
    else:
        measured = {name: float(reserved.get(name, 0)) for name in _IN_VRAM}
        rest, basis = 0.0, "foretold for all layers on a GPU"
        shrinks = {"kv"}  # the buffer's size is that of the logits of a batch
        needs = sum(measured.values()) / 1e6
        held = next((gpu["process_mb"] for gpu in profile.gpus if gpu["process_mb"]), None)
        if held is not None:
            rest, needs, basis = (held - needs) * 1e6, held, "measured"
    made = Verdict(
        budget=budget.text,
        fits=needs is not None and needs * 1e6 <= budget.bytes,
        limit_mb=budget.bytes / 1e6,
        needs_mb=None if needs is None else round(needs, 1),
        then_mb=None,
        turn_down=(),
        basis=basis,
    )
    if made.fits or needs is None:
        return made

    def scaled(smaller: Choice) -> dict[str, int]:
        less = predict(smaller)
        parts = {
            name: int(size * less[name] / told[name] if name in shrinks and told[name] else size)
            for name, size in measured.items()
        }
        return {**parts, "the rest": int(rest)}

    try:
        plan = admit(choice, scaled, budget.bytes)
    except MemoryBudgetExceeded as exc:
        return replace(made, turn_down=exc.turned_down)
    return replace(made, then_mb=round(plan.total_bytes / 1e6, 1), turn_down=plan.turned_down)
