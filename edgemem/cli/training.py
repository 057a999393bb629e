"""The commands `edgemem train …`: experts for the stages, their data, and the training.

Knows options, files and how a run's progress looks; `edgemem.training` does the work.
"""

from __future__ import annotations

import os
import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, cast, get_args

import click
from click.core import ParameterSource

from edgemem import importers
from edgemem.cli.output import json_option, note, plural, print_json, progress, working
from edgemem.config import load_settings
from edgemem.training.examples import STAGES, Example, Stage, write
from edgemem.training.phrases import Split

if TYPE_CHECKING:
    from edgemem.training.annotated import Annotated
    from edgemem.training.evaluate import Track
    from edgemem.training.trainer import Progress

__all__ = ["train"]

FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


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

    The same options give the same file. With FILEs, they are taken from these instead: what is
    annotated in LoCoMo's JSON and in conversations and pairs of facts written for training; or, of
    LoCoMo's and of chat logs, what a teacher makes of them, to whose address their text goes.
    """
    teaching = bool(teacher or teacher_url)
    if (teaching and not files) or bool(teacher_url) != bool(teacher_model):
        raise click.UsageError(
            "A teacher reads FILEs: give both, the teacher as --teacher GGUF, or as --teacher-url "
            "with --teacher-model. Without FILEs, conversations are invented."
        )
    wanted = stages or STAGES
    with ExitStack() as stack:
        if teaching:
            made = _taught(files, teacher, teacher_url, teacher_model, wanted, stack)
        elif files:
            made = _annotated(files, seed, wanted)
        else:
            from edgemem.training.generator import examples

            made = examples(conversations, seed=seed, split=split, stages=wanted)
        note(f"{plural(write(out, made), 'example')} in {out}")


def _annotated(files: Sequence[Path], seed: int, stages: Sequence[Stage]) -> Iterator[Example]:
    """Of annotated conversations: facts, and answers with what a search shows for them.

    Of written pairs: what a new fact is beside an old memory.
    """
    from edgemem.memory import Memory
    from edgemem.training import annotated, intents, pairs, replies

    facts = [path for path in files if pairs.is_pairs(path)]
    messages = [path for path in files if intents.is_messages(path)]
    talks = _talks([path for path in files if path not in (*facts, *messages)])
    for path in facts if "update" in stages else ():
        yield from pairs.examples(pairs.read(path), path.stem)
    if "intent" in stages:
        labelled = [m for path in messages for m in intents.of_file(path)]
        labelled += [m for talk in talks for m in intents.of_talk(talk, seed=seed)]
        yield from intents.examples(labelled, seed=seed)
    if not talks or not {*stages} - {"intent"}:
        return
    with TemporaryDirectory() as scratch, Memory(Path(scratch) / "turns.db") as memory:
        for number, talk in enumerate(talks, 1):
            with working(f"{talk.id}, {number} of {len(talks)}"):
                made = list(annotated.examples(memory, talk, seed=seed, stages=stages))
                if "reply" in stages and talk.later:
                    made += replies.examples(memory, talk, seed=seed)
                if "generation" in stages and talk.later:
                    made += replies.answers(memory, talk)
            yield from made


def _talks(files: Sequence[Path]) -> list[Annotated]:
    """The conversations of files, LoCoMo's or written for training."""
    from edgemem.training import locomo, written

    found: list[Annotated] = []
    noted = False
    for path in files:
        if written.is_written(path):
            found += written.read(path)
        elif importers.detect_format(path) == "locomo":
            found.append(locomo.read(path))
            if not noted:
                note("LoCoMo is CC BY-NC 4.0, and so is what is trained on it.")
            noted = True
        else:
            raise click.UsageError(
                f"{path.name} has no annotations: LoCoMo's JSON has, and so have conversations and "
                "pairs of facts written for training (edgemem/training/written.py, pairs.py). "
                "Examples of other files need a teacher."
            )
    twice = sorted(id for id, times in Counter(talk.id for talk in found).items() if times > 1)
    if twice:
        raise click.UsageError(
            f"{', '.join(twice)}: two conversations of that name would be taken for one. Give each "
            "file once, and other files other names."
        )
    return found


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
    from dataclasses import asdict

    from edgemem.runtime.models import find, known_sha256
    from edgemem.training import combine, examples, trainer

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
    combine.write_record(
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


@train.command("eval")
@click.argument("files", nargs=-1, required=True, type=FILE, metavar="FILE...")
@click.option("--experts", help="A set's name, or its folder.  [default: setting `experts`]")
@click.option("--pairs", type=click.IntRange(1), default=120, show_default=True)
@click.option("--questions", type=click.IntRange(1), default=100, show_default=True)
@click.option("--operations", type=click.IntRange(1), default=200, show_default=True)
@click.option(
    "--together", is_flag=True,
    help="Also all stages at work: facts stored, then asked for. Some minutes a conversation.",
)  # fmt: skip
@click.option("--seed", type=int, default=0, show_default=True)
@json_option
def evaluate(
    files: tuple[Path, ...], experts: str | None, pairs: int, questions: int, operations: int,
    together: bool, seed: int, as_json: bool,
) -> None:  # fmt: skip
    """Score a set of experts beside the model alone, on annotated FILEs.

    LoCoMo's JSON, or conversations written for training; of files with pairs of facts, what an
    update makes of them.

    Of each, at most so many pairs of messages (facts) and questions (answers); operations (update)
    are of invented conversations that no training sees.
    """
    from edgemem.training import answers, trial
    from edgemem.training.pairs import is_pairs, read

    experts = experts or load_settings().experts
    track = cast("Track[Any]", _tracked)
    facts = [path for path in files if is_pairs(path)]
    talks = _talks([path for path in files if path not in facts])
    if not talks:
        raise click.UsageError("Give a file of conversations, too: pairs of facts have no answers.")
    summary, rows = trial.run(
        talks, experts, pairs=pairs, questions=questions, operations=operations, seed=seed,
        written=[situation for path in facts for situation in read(path)], track=track,
    )  # fmt: skip
    if together:
        more, further = answers.run(
            talks, source="memories", experts=experts, most=questions, track=track, seed=seed
        )
        summary, rows = summary | more, rows + further
    if as_json:
        print_json({"summary": summary, "rows": rows})
        return
    for row in rows:
        figures = {k: v for k, v in row.items() if isinstance(v, float)}
        told = [str(row[k]) for k in ("who", "stage", "by", "context", "category") if k in row]
        click.echo(f"{', '.join(told)}: " + ", ".join(f"{k} {v:g}" for k, v in figures.items()))


def _tracked(items: Sequence[Any], what: str) -> Iterator[Any]:
    with progress(what, len(items)) as advance:
        for number, item in enumerate(items, 1):
            yield item
            advance(number)


@train.command()
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@click.argument("adapters", nargs=-1, required=True, type=FILE, metavar="ADAPTER...")
@click.option("--licence", required=True, help="SPDX name; that of the training data allows it.")
@click.option("--data", required=True, help="What it was trained on, in words.")
@click.option("--also-for", multiple=True, metavar="SHA256", help="Another form of the base model.")
@click.option("--scores", type=FILE, help="What `train eval` printed as JSON.")
def combine(
    folder: Path, adapters: tuple[Path, ...], licence: str, data: str,
    also_for: tuple[str, ...], scores: Path | None,
) -> None:  # fmt: skip
    """Make FOLDER a set of experts of trained ADAPTERs, for `--experts FOLDER`."""
    from edgemem.training import combine as sets

    made = sets.combine(
        folder, adapters, licence=licence, data=data, also_for=also_for, scores=scores
    )
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
    from edgemem.training import merge as sums

    base = find(model or load_settings().model)
    size = sums.merge(adapters, out, base, weight or 1 / len(adapters), _typed(context))
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
