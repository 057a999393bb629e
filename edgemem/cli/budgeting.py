"""`/budget` of a chat and its line of status: what the limits are, and what is left of them.

Knows how these are said. The sizes are the parts' own, the plan is the memory's, the money is
counted from the receipts by the cloud's governor.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from textwrap import fill
from typing import TYPE_CHECKING, Any

from edgemem.cli.output import plural
from edgemem.errors import EdgememError
from edgemem.results import Scope

if TYPE_CHECKING:
    from edgemem.memory import Memory

__all__ = ["budget", "budget_lines", "status_parts"]


def budget(memory: Memory) -> dict[str, Any]:
    """The memory limit and the cloud's budget, and what is used of each; JSON-able.

    memory_limit: `Plan.to_dict`, None without one. parts_mb: what each part says it holds; rss_mb:
    the whole process, None where the system does not tell. notes: what is turned off for the
    model, and why. cloud: None if none is set up; left_this_month: None if it has no budget.
    Loads what is not loaded yet, and raises as that does.
    """
    from edgemem.profile.measure import memory_bytes

    parts = {**memory.engine.memory(), "index": sum(memory.index.memory_bytes().values())}
    rss = memory_bytes()["rss"]
    return {
        "memory_limit": None if memory.plan is None else memory.plan.to_dict(),
        "parts_mb": {name: _mb(size) for name, size in parts.items()},
        "rss_mb": None if rss is None else _mb(rss),
        "cloud": _cloud(memory),
        "notes": list(memory.engine.notes),
    }


def budget_lines(found: Mapping[str, Any]) -> list[str]:
    """What `budget` has found, in lines of at most 80 columns."""
    limit, cloud = found["memory_limit"], found["cloud"]
    parts = ", ".join(f"{name} {size} MB" for name, size in found["parts_mb"].items() if size)
    rows = [("memory limit", "none; `edgemem config set memory_limit 1GB` sets one")]
    if limit is not None:
        foretold, most = limit["predicted_mb"], limit["limit_mb"]
        rows = [
            ("memory limit", f"{most} MB; {foretold} MB of it are foretold to be used"),
            ("turned down", ", ".join(limit["turned_down"]) or "nothing"),
        ]
    rows.append(("parts held", parts))
    if found["rss_mb"] is not None:
        rows.append(("the process", f"{found['rss_mb']} MB"))
    rows += [("the model", note) for note in found["notes"]]
    if cloud is None:
        rows.append(("cloud", "none is set up; nothing is sent, nothing is spent"))
    else:
        spent = cloud["spent_this_month"]
        rows.append(("cloud", f"{cloud['model']}; {spent:.6f} spent this month"))
        if cloud["monthly_budget"] is None:
            budget = "none; `edgemem config set cloud.monthly_budget 5` sets one"
        else:
            left = cloud["left_this_month"]
            budget = f"{cloud['monthly_budget']:g} a month; {left:.6f} of it is left"
        rows.append(("its budget", budget))
    return [fill(f"{name:<13} {text}", 80, subsequent_indent=" " * 14) for name, text in rows]


def status_parts(
    memory: Memory, scope: Mapping[str, Any], tokens_per_s: float | None
) -> tuple[str, ...]:
    """What a chat's line of status says, the most telling first.

    tokens_per_s: of the last answer, None if the model gave none. What the store refuses to tell,
    for instance while another process has locked it, is left out.
    """
    parts: list[str] = []
    with suppress(EdgememError):
        held = plural(len(memory.store.rowids(Scope(**scope))), "memory")
        waiting = len(memory.pending())
        parts.append(f"{held}, {waiting} pending" if waiting else held)
    if tokens_per_s is not None:
        parts.append(f"{tokens_per_s:.0f} tokens/s")
    if memory.plan is not None:
        parts.append(f"memory limit {memory.plan.limit_bytes / 1e6:.0f} MB")
    with suppress(EdgememError):
        if (cloud := _cloud(memory)) is not None:
            left = cloud["left_this_month"]
            spent = f"{cloud['spent_this_month']:.2f} spent"
            parts.append(f"cloud: {spent if left is None else f'{left:.2f} left'}")
    return tuple(parts)


def _cloud(memory: Memory) -> dict[str, Any] | None:
    settings = memory.settings.cloud
    if not settings.enabled:
        return None
    from edgemem.cloud.governor import status

    found = status(memory.store, settings)
    spent, most = found["spent_this_month"], found["monthly_budget"]
    return {
        "model": found["model"],
        "monthly_budget": most,
        "spent_this_month": spent,
        "left_this_month": None if most is None else max(0.0, most - spent),
    }


def _mb(size: int) -> float:
    return round(size / 1e6, 1)
