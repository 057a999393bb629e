"""`edgemem train …`: the stages' experts.

Knows options and files; `edgemem.training` does the work.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import get_args

import click

from edgemem import importers
from edgemem.cli.output import note, plural
from edgemem.training.examples import STAGES, Example, Stage, write
from edgemem.training.phrases import Split

__all__ = ["train"]


@click.group()
def train() -> None:
    """Train the stages' experts: their data, and the training itself."""


@train.command()
@click.argument(
    "files", nargs=-1, type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="[FILE]...",
)  # fmt: skip
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
@click.option("--teacher-url", metavar="URL", help="OpenAI-compatible address of a teacher.")
@click.option("--teacher-model", metavar="NAME", help="The teacher's name at that address.")
@click.option("--teacher", metavar="GGUF", help="A local model as the teacher.")
def data(
    files: tuple[Path, ...],
    conversations: int,
    seed: int,
    split: Split,
    stages: tuple[Stage, ...],
    out: Path,
    teacher_url: str | None,
    teacher_model: str | None,
    teacher: str | None,
) -> None:
    """Write training examples from invented conversations, whose truth is known.

    The same options give the same file. With a teacher, they are taken from each FILE instead
    (LoCoMo's JSON or a chat log); what is in it goes to the teacher's address.
    """
    if bool(files) != bool(teacher or teacher_url) or bool(teacher_url) != bool(teacher_model):
        raise click.UsageError(
            "A teacher reads FILEs: give both, the teacher as --teacher GGUF, or as --teacher-url "
            "with --teacher-model. Without FILEs, conversations are invented."
        )
    wanted = stages or STAGES
    with ExitStack() as stack:
        if files:
            made = _taught(files, teacher, teacher_url, teacher_model, wanted, stack)
        else:
            from edgemem.training.generator import examples

            made = examples(conversations, seed=seed, split=split, stages=wanted)
        note(f"{plural(write(out, made), 'example')} in {out}")


def _taught(
    files: Sequence[Path],
    teacher: str | None,
    url: str | None,
    model: str | None,
    stages: Sequence[Stage],
    stack: ExitStack,
) -> Iterator[Example]:
    from edgemem.runtime.engine import Engine
    from edgemem.training.teacher import at_url, local, taught

    if teacher:
        ask = local(stack.enter_context(Engine.load(teacher)))
    else:
        ask = at_url(url or "", model or "")
    for path in files:
        if importers.detect_format(path) == "locomo":
            for sample in importers.locomo_samples(path):
                group = sample.sample_id
                yield from taught(sample.messages, ask, group=group, qa=sample.qa, stages=stages)
        else:
            messages = importers.read_chat_log(path).messages
            yield from taught(messages, ask, group=path.stem, stages=stages)
