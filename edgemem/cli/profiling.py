"""`profile`.

Knows how a profile is shown in a terminal; `edgemem.profile` measures, and writes the page.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from edgemem.cli.output import json_option, note, print_json, settings_with, working

if TYPE_CHECKING:
    from edgemem.profile.report import Profile

__all__ = ["profile"]


@click.command()
@click.option(
    "--budget",
    "budgets",
    multiple=True,
    metavar="SIZE-WHAT",
    help="Does it fit 1GB-ram, 8GB-vram, …? If not, what to turn down. Repeatable.",
)
@click.option("--rounds", type=int, default=5, show_default=True, help="Of each stage.")
@click.option("--model", metavar="NAME", help="A model's name or file.  [default: setting `model`]")
@click.option("--memory-limit", metavar="SIZE", help="As the setting `memory_limit`.")
@click.option(
    "--html", type=click.Path(dir_okay=False), metavar="FILE", help="Write a page with plots."
)
@json_option
def profile(
    budgets: tuple[str, ...],
    rounds: int,
    model: str | None,
    memory_limit: str | None,
    html: str | None,
    as_json: bool,
) -> None:
    """Does it fit, and how fast is it, on this device?

    Takes a minute or two. Each stage's time, each part's memory, a cold start, and growth with
    the number of memories, on invented memories in processes of their own. The exit code is 1 if a
    budget is not enough.
    """
    from edgemem.profile import profile as run

    settings = settings_with(model=model, memory_limit=memory_limit)
    with working("Profiling …"):
        found = run(settings=settings, budgets=budgets, rounds=rounds)
    if html is not None:
        _write(Path(html), found)
    if as_json:
        print_json(found.to_dict())
    else:
        _print(found)
    if not all(verdict.fits for verdict in found.verdicts):
        raise click.exceptions.Exit(1)


def _write(file: Path, found: Profile) -> None:
    from edgemem.profile.page import render

    try:
        file.write_text(render(found), encoding="utf-8")
    except OSError as exc:
        raise click.ClickException(
            f"Cannot write {file}: {exc.strerror}. Give a file in a folder that is writable."
        ) from exc
    note(f"Written to {file}.")


def _print(found: Profile) -> None:
    from rich.console import Console
    from rich.table import Table

    from edgemem.profile.report import NO_GPU, NOT_REPORTED, UNKNOWN

    console = Console(highlight=False)
    stages = Table(title=f"Stages of {found.model}", title_justify="left")
    stages.add_column("stage")
    for head in ("p50 ms", "p95 ms", "first token ms", "tokens/s"):
        stages.add_column(head, justify="right")
    stages.add_column("")
    for timing in found.stages:
        cells = (timing.p50_ms, timing.p95_ms, timing.ttft_ms, timing.tokens_per_s)
        stages.add_row(timing.name, *("" if v is None else f"{v:.4g}" for v in cells), timing.note)
    console.print(stages)
    memory = Table(title="Memory", title_justify="left")
    for head in ("part", "RAM MB", "VRAM MB", "from"):
        memory.add_column(head, justify="right" if head.endswith("MB") else "left")
    vram = "" if found.gpus else NO_GPU
    for part in found.parts:
        memory.add_row(part.name, f"{part.mb:.1f}", vram, part.basis)
    if found.rss_mb is not None and found.unexplained_mb is not None:
        of_gpu = [str(gpu["process_mb"] or UNKNOWN) for gpu in found.gpus] or [NO_GPU]
        rest = f"{found.unexplained_mb:.1f}"
        memory.add_row("not explained", rest, vram, "RSS less the parts")
        told = f"PSS {found.pss_mb:.1f}" if found.pss_mb is not None else "RSS"
        memory.add_row("the process", f"{found.rss_mb:.1f}", ", ".join(of_gpu), told)
    console.print(memory)
    if found.explained is None:
        console.print(f"What the process takes is {UNKNOWN} on this system.")
    else:
        console.print(f"The parts explain {found.explained:.1%} of the process's memory.")
    first = found.cold_start_to_first_token_s
    console.print(
        "Cold start to the first token of an answer with memory: "
        + (f"{first:.2f} s" if first is not None else UNKNOWN)
    )
    energy = NOT_REPORTED if found.joules is None else f"{found.joules:.0f} J"
    console.print(f"Energy: {energy}")
    if found.plan is not None:
        down = ", ".join(found.plan["turned_down"]) or "nothing"
        console.print(f"Memory limit {found.plan['limit_mb']:.0f} MB: turned down {down}.")
    for verdict in found.verdicts:
        console.print(f"[bold]{'✓' if verdict.fits else '✗'}[/] {verdict.sentence()}")
