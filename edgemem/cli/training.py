"""`edgemem train …`: the stages' experts.

Knows options and files; `edgemem.training` does the work.
"""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import click

from edgemem.cli.output import note, plural
from edgemem.training.examples import STAGES, Stage, write
from edgemem.training.phrases import Split

__all__ = ["train"]


@click.group()
def train() -> None:
    """Train the stages' experts: their data, and the training itself."""


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
