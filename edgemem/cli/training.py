"""The commands `edgemem train …`: experts for the stages, their data, and the training.

Knows options, files and how a run's progress looks; `edgemem.training` does the work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import click

from edgemem.cli.output import json_option, note, plural, print_json
from edgemem.config import load_settings
from edgemem.training.examples import STAGES, Stage, write
from edgemem.training.phrases import Split

if TYPE_CHECKING:
    from edgemem.training.trainer import Progress

__all__ = ["train"]

FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.group()
def train() -> None:
    """Train the stages' experts: their data, and the training itself (extra `train`)."""


@train.command()
@click.option(
    "--conversations", type=click.IntRange(min=1), default=100, show_default=True, metavar="N",
    help="How many conversations to invent (about 60, 40 and 40 examples each).",
)  # fmt: skip
@click.option("--seed", type=int, default=0, show_default=True)
@click.option(
    "--split", type=click.Choice(get_args(Split)), default="train", show_default=True,
    help="valid: phrases, names and values that training never sees.",
)  # fmt: skip
@click.option(
    "--stage", "stages", type=click.Choice(STAGES), multiple=True,
    help="Only this stage's examples; may be repeated. Default: all.",
)  # fmt: skip
@click.option(
    "--out", required=True, type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
    help="JSON lines to write.",
)  # fmt: skip
def data(conversations: int, seed: int, split: Split, stages: tuple[Stage, ...], out: Path) -> None:
    """Write training examples from invented conversations, whose truth is known.

    The same options give the same file.
    """
    from edgemem.training.generator import examples

    made = examples(conversations, seed=seed, split=split, stages=stages or STAGES)
    note(f"{plural(write(out, made), 'example')} in {out}")


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
@click.option("--minutes", type=float, help="End after this time, and plan the schedule so.")
@click.option("--epochs", type=int, default=50, show_default=True, help="Most passes.")
@click.option("--lr", type=float, default=1e-3, show_default=True, help="Highest learning rate.")
@click.option("--batch", type=int, default=16, show_default=True, help="Examples of a step.")
@click.option("--rank", type=int, default=8, show_default=True, help="Rank; alpha is twice it.")
@click.option("--every", type=int, default=25, show_default=True, help="Steps between validations.")
@click.option(
    "--patience",
    type=int,
    default=8,
    show_default=True,
    help="End after so many validations without a better loss.",
)
@click.option("--init", type=FILE, help="Begin from this adapter.")
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
    minutes: float | None, epochs: int, lr: float, batch: int, rank: int, every: int,
    patience: int, init: Path | None, seed: int, precision: str,
    threads: int | None, resume: bool, as_json: bool,
) -> None:  # fmt: skip
    """Train the expert of STAGE; the best adapter so far is always in --out.

    Examples of other stages are left out.
    """
    from dataclasses import asdict

    from edgemem.runtime.models import find
    from edgemem.training import examples, trainer

    learn = [e for e in examples.read(data) if e.stage == stage]
    judge = [e for e in examples.read(valid) if e.stage == stage]
    if not judge:
        learn, judge = trainer.split(learn, seed)
    plan = trainer.Plan(
        lr=lr, batch=batch, epochs=epochs, minutes=minutes, rank=rank, alpha=2.0 * rank, seed=seed,
        every=every, patience=patience, precision=precision, threads=threads,
    )  # fmt: skip
    base = find(model or load_settings().model)
    with _shown() as report:
        outcome = trainer.train(
            stage, base, learn, judge, out, plan, init=init, resume=resume,
            report=report,
        )  # fmt: skip
    if as_json:
        print_json({"stage": stage, "out": str(out), **asdict(plan), **asdict(outcome)})
        return
    click.echo(
        f"{out}: {outcome.bytes / 1e6:.1f} MB, validation loss {outcome.first_loss:.3f} -> "
        f"{outcome.best_loss:.3f} in {outcome.steps} steps, {outcome.epochs:.2f} epochs, "
        f"{outcome.elapsed_s / 60:.1f} minutes ({outcome.tokens_per_s:.0f} tokens/s); "
        f"ended by {outcome.ended}"
    )


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
