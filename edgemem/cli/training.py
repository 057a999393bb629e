"""The commands `edgemem train …`: options, files, and how a run's progress looks."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from edgemem.cli.output import json_option, note, plural, print_json
from edgemem.config import load_settings
from edgemem.training.examples import STAGES, Stage

if TYPE_CHECKING:
    from edgemem.training.trainer import Progress

__all__ = ["train"]

FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.group()
def train() -> None:
    """Train the stages' experts from files of examples."""


@train.command("run")
@click.argument("stage", type=click.Choice(STAGES))
@click.option("--data", type=FILE, multiple=True, required=True, help="Examples (JSON lines).")
@click.option(
    "--valid",
    type=FILE,
    multiple=True,
    help="Validation examples; without it, a tenth of the groups of --data.",
)
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    required=True,
    help="The adapter file to write (.gguf).",
)
@click.option("--model", help="The base model: a name of the manifest, or the path of a GGUF.")
@click.option(
    "--layers",
    type=click.Choice(["qv", "all"]),
    help="That get an adapter: queries and values, or all linear ones.  [default: all for "
    "generation, else qv]",
)
@click.option("--minutes", type=float, help="End after this time, and plan the schedule so.")
@click.option("--epochs", type=int, default=50, show_default=True, help="Most passes.")
@click.option("--lr", type=float, default=1e-3, show_default=True, help="Highest learning rate.")
@click.option("--batch", type=int, default=8, show_default=True, help="Examples of a step.")
@click.option("--rank", type=int, default=8, show_default=True, help="Rank; alpha is twice it.")
@click.option(
    "--dropout", type=float, default=0.1, show_default=True, help="Of an adapter's input."
)
@click.option("--every", type=int, default=25, show_default=True, help="Steps between validations.")
@click.option(
    "--patience",
    type=int,
    default=8,
    show_default=True,
    help="End after so many validations without a better loss.",
)
@click.option(
    "--valid-examples", type=click.IntRange(1), default=64, show_default=True,
    help="Most examples that a validation reads, drawn at random.",
)  # fmt: skip
@click.option("--init", type=FILE, help="Begin from this adapter; it may have fewer layers.")
@click.option("--seed", type=int, default=0, show_default=True)
@click.option(
    "--precision",
    type=click.Choice(["auto", "bfloat16", "float32"]),
    default="auto",
    show_default=True,
)
@click.option("--threads", type=click.IntRange(1), help="CPU threads.  [default: all cores]")
@click.option("--resume", is_flag=True, help="Go on from the checkpoint beside --out.")
@json_option
def run(
    stage: Stage, data: tuple[Path, ...], valid: tuple[Path, ...], out: Path, model: str | None,
    layers: str | None, minutes: float | None, epochs: int, lr: float, batch: int, rank: int,
    dropout: float, every: int, patience: int, valid_examples: int, init: Path | None, seed: int,
    precision: str, threads: int | None, resume: bool, as_json: bool,
) -> None:  # fmt: skip
    """Train the expert of STAGE; the best adapter so far is always in --out.

    Examples of other stages are left out. At its end, a record of how it was made lies beside it.
    """
    from edgemem.runtime.models import find, known_sha256
    from edgemem.training import adapters, examples, trainer

    learn = [e for e in examples.read(data) if e.stage == stage]
    judge = [e for e in examples.read(valid) if e.stage == stage]
    if not judge:
        learn, judge = trainer.split(learn, seed)
    plan = trainer.Plan(
        layers=layers, lr=lr, batch=batch, epochs=epochs, minutes=minutes, rank=rank,
        alpha=2.0 * rank, dropout=dropout, seed=seed, every=every, patience=patience,
        valid_examples=valid_examples, precision=precision, threads=threads,
    )  # fmt: skip
    base = find(model or load_settings().model)
    with _shown() as report:
        outcome = trainer.train(
            stage, base, learn, judge, out, plan, init=init, resume=resume,
            report=report,
        )  # fmt: skip
    made = {"stage": stage, "out": str(out), **asdict(plan), **asdict(outcome)}
    adapters.write_record(
        out,
        made
        | {
            "out": out.name,
            "base_sha256": known_sha256(base),
            "targets": trainer.targets(stage, plan),
            "command": _typed(click.get_current_context()),
        },
    )
    if as_json:
        print_json(made)
        return
    click.echo(
        f"{out}: {outcome.bytes / 1e6:.1f} MB, validation loss {outcome.first_loss:.3f} -> "
        f"{outcome.best_loss:.3f} in {outcome.steps} steps, {outcome.epochs:.2f} epochs, "
        f"{outcome.elapsed_s / 60:.1f} minutes ({outcome.tokens_per_s:.0f} tokens/s); "
        f"ended by {outcome.ended}"
    )


def _typed(context: click.Context) -> str:
    """The command as it was given, files by their names alone."""
    words = context.command_path.split()
    for parameter in context.command.params:
        name = parameter.name or ""
        if context.get_parameter_source(name) is not ParameterSource.COMMANDLINE:
            continue
        value, flags = context.params[name], [max(parameter.opts, key=len)]
        if isinstance(parameter, click.Argument):
            flags = []
        elif isinstance(parameter, click.Option) and parameter.is_flag:
            words += flags
            continue
        for item in value if isinstance(value, tuple) else (value,):
            file = isinstance(item, Path) or name == "model"
            words += [*flags, Path(item).name if file else str(item)]
    return shlex.join(words)


@train.command()
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@click.argument("adapters", nargs=-1, required=True, type=FILE, metavar="ADAPTER...")
@click.option("--licence", required=True, help="SPDX name; that of the training data allows it.")
@click.option("--data", required=True, help="What it was trained on, in words.")
@click.option("--also-for", multiple=True, metavar="SHA256", help="Another form of the base model.")
@click.option("--scores", type=FILE, help="What `python -m corpus eval` printed as JSON.")
def combine(
    folder: Path, adapters: tuple[Path, ...], licence: str, data: str,
    also_for: tuple[str, ...], scores: Path | None,
) -> None:  # fmt: skip
    """Make FOLDER a set of experts of trained ADAPTERs, for `--experts FOLDER`."""
    from edgemem.training.adapters import combine as combined

    made = combined(folder, adapters, licence=licence, data=data, also_for=also_for, scores=scores)
    stages = ", ".join(expert.stage for expert in made.adapters)
    click.echo(f"{made.name}: {stages}; use it with --experts {folder}{os.sep}")


@train.command()
@click.argument("adapters", nargs=-1, required=True, type=FILE, metavar="ADAPTER...")
@click.option(
    "--out", required=True, type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
    help="The adapter to write; how it was made goes beside it.",
)  # fmt: skip
@click.option("--weight", type=click.FloatRange(0, min_open=True), help="Of each.  [default: 1/n]")
@click.option("--model", help="The base model: a name of the manifest, or the path of a GGUF.")
@json_option
@click.pass_context
def merge(
    context: click.Context, adapters: tuple[Path, ...], out: Path, weight: float | None,
    model: str | None, as_json: bool,
) -> None:  # fmt: skip
    """Add up ADAPTERs of one stage, such as one and what went on from it.

    Their sum, cut to the rank that each has, often answers better than the last of them.
    """
    from edgemem.runtime.models import find
    from edgemem.training.adapters import merge as merged

    base = find(model or load_settings().model)
    size = merged(adapters, out, base, weight or 1 / len(adapters), _typed(context))
    if as_json:
        print_json({"out": str(out), "adapters": len(adapters), "bytes": size})
        return
    click.echo(f"{out}: {plural(len(adapters), 'adapter')} in one of {size:,} bytes")


@contextmanager
def _shown() -> Iterator[Callable[[Progress], None]]:
    """A progress line on a terminal; else a line on stderr for each validation."""
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn
    from rich.progress import Progress as Bar

    console = Console(stderr=True)
    columns = (BarColumn(), TextColumn("{task.description}"))
    with Bar(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task("the base model", total=1.0)

        def report(now: Progress) -> None:
            line = (
                f"step {now.step}, epoch {now.epoch:.2f}, loss {now.loss:.3f}, validation "
                f"{now.valid_loss:.3f} (best {now.best_loss:.3f}), {now.tokens_per_s:.0f} "
                f"tokens/s, {now.left_s / 60:.0f} min left"
            )
            bar.update(task, completed=now.done, description=line)
            if now.validated and not console.is_terminal:
                note(line)

        yield report
