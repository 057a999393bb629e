"""The commands `python -m corpus data` and `python -m corpus eval`."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, get_args

import click

from corpus import annotated, generator, haste, readers
from corpus import evaluate as scores
from corpus.annotated import Annotated
from corpus.phrases import Split
from corpus.teacher import at_url, local, taught
from edgemem.cli.output import (
    Group,
    json_option,
    note,
    plural,
    print_json,
    progress,
    wants_json,
    working,
)
from edgemem.config import load_settings
from edgemem.memory import Memory
from edgemem.pipeline import importers
from edgemem.runtime.engine import Engine
from edgemem.training.examples import STAGES, Example, Stage, write

FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.group(
    cls=Group,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
def cli() -> None:
    """Make training data for the stages' experts, and score sets of experts."""


@cli.command()
@click.argument("files", nargs=-1, type=FILE, metavar="[FILE]...")
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
    "--haste", "hasty", type=click.FloatRange(0, 1), default=0.0, metavar="SHARE",
    help="So many of FILEs' conversations as if typed in haste; answers spelled as the messages.",
)  # fmt: skip
@click.option(
    "--out", required=True, type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
    help="JSON lines to write.",
)  # fmt: skip
@click.option("--teacher-url", metavar="URL", help="OpenAI-compatible address of a teacher.")
@click.option("--teacher-model", metavar="NAME", help="The teacher's name at that address.")
@click.option("--teacher", metavar="GGUF", help="A local model as the teacher.")
def data(
    files: tuple[Path, ...], conversations: int, seed: int, split: Split,
    stages: tuple[Stage, ...], hasty: float, out: Path, teacher_url: str | None,
    teacher_model: str | None, teacher: str | None,
) -> None:  # fmt: skip
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
    if hasty and (teaching or not files):
        raise click.UsageError("--haste takes annotated FILEs, and no teacher.")
    wanted = stages or STAGES
    with ExitStack() as stack:
        if teaching:
            made = _taught(files, teacher, teacher_url, teacher_model, wanted, stack)
        elif files:
            made = _annotated(files, seed, wanted, hasty)
        else:
            made = generator.examples(conversations, seed=seed, split=split, stages=wanted)
        note(f"{plural(write(out, made), 'example')} in {out}")


def _annotated(
    files: Sequence[Path], seed: int, stages: Sequence[Stage], hasty: float
) -> Iterator[Example]:
    """The examples of annotated files.

    hasty: the share of the conversations that are typed in haste, for facts, answers and replies.

    Conversations give facts, replies, and answers with what a search shows for them. Files of pairs
    give updates, and files of labelled messages give intents.
    """
    facts = [path for path in files if readers.is_pairs(path)]
    messages = [path for path in files if readers.is_messages(path)]
    talks = _talks([path for path in files if path not in (*facts, *messages)])
    for path in facts if "update" in stages else ():
        yield from annotated.pair_examples(readers.read_pairs(path), path.stem)
    if "intent" in stages:
        labelled = [m for path in messages for m in readers.read_messages(path)]
        labelled += [m for talk in talks for m in annotated.labelled(talk, seed=seed)]
        yield from annotated.intent_examples(labelled, seed=seed)
    if "extraction" in stages:
        talks += _talks(messages)
    if "talk" in stages:
        yield from (example for talk in talks for example in annotated.talk_examples(talk))
    if not talks or not {*stages} - {"intent", "talk"}:
        return
    rng = random.Random(seed)
    talks = [haste.in_haste(t, seed=seed) if rng.random() < hasty else t for t in talks]
    with TemporaryDirectory() as scratch, Memory(Path(scratch) / "turns.db") as memory:
        for number, talk in enumerate(talks, 1):
            with working(f"{talk.id}, {number} of {len(talks)}"):
                made = list(annotated.examples(memory, talk, seed=seed, stages=stages))
                if "reply" in stages and talk.later:
                    made += annotated.reply_examples(memory, talk, seed=seed)
                if "generation" in stages and talk.later:
                    made += annotated.answer_examples(memory, talk)
            yield from map(haste.spelled_as_shown, made) if hasty else made


def _talks(files: Sequence[Path]) -> list[Annotated]:
    """The conversations of files, LoCoMo's or written for training."""
    found: list[Annotated] = []
    noted = False
    for path in files:
        if readers.is_written(path):
            found += readers.read_written(path)
        elif readers.is_messages(path):
            found += readers.read_told(path)
        elif importers.detect_format(path) == "locomo":
            found.append(readers.read_locomo(path))
            if not noted:
                note("LoCoMo is CC BY-NC 4.0, and so is what is trained on it.")
            noted = True
        else:
            raise click.UsageError(
                f"{path.name} has no annotations: LoCoMo's JSON has, and so have conversations and "
                "pairs of facts written for training (corpus/readers.py). "
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
    files: Sequence[Path], teacher: str | None, url: str | None, model: str | None,
    stages: Sequence[Stage], stack: ExitStack,
) -> Iterator[Example]:  # fmt: skip
    if teacher:
        ask = local(stack.enter_context(Engine.load(teacher)))
    else:
        ask = at_url(url or "", model or "")
    for path in files:
        if importers.detect_format(path) == "locomo":
            for sample in readers.locomo_files(path):
                group = sample.sample_id
                yield from taught(sample.messages, ask, group=group, qa=sample.qa, stages=stages)
        else:
            messages = importers.read_chat_log(path).messages
            yield from taught(messages, ask, group=path.stem, stages=stages)


@cli.command("eval")
@click.argument("files", nargs=-1, required=True, type=FILE, metavar="FILE...")
@click.option("--experts", help="A set's name, or its folder.  [default: setting `experts`]")
@click.option("--pairs", type=click.IntRange(1), default=120, show_default=True)
@click.option("--questions", type=click.IntRange(1), default=100, show_default=True)
@click.option("--operations", type=click.IntRange(1), default=200, show_default=True)
@click.option(
    "--together", is_flag=True,
    help="Also all stages at work: facts stored, then asked for. Some minutes a conversation.",
)  # fmt: skip
@click.option("--haste", "hasty", is_flag=True, help="As if all was typed in haste.")
@click.option("--seed", type=int, default=0, show_default=True)
@json_option
def evaluate(
    files: tuple[Path, ...], experts: str | None, pairs: int, questions: int, operations: int,
    together: bool, hasty: bool, seed: int,
) -> None:  # fmt: skip
    """Score a set of experts beside the model alone, on annotated FILEs.

    LoCoMo's JSON, or conversations written for training; of files with pairs of facts, what an
    update makes of them.

    Of each, at most so many pairs of messages (facts) and questions (answers); operations (update)
    are of invented conversations that no training sees.
    """
    experts = experts or load_settings().experts
    facts = [path for path in files if readers.is_pairs(path)]
    talks = _talks([path for path in files if path not in facts])
    if hasty:
        talks = [haste.in_haste(talk, seed=seed) for talk in talks]
    if not talks:
        raise click.UsageError("Give a file of conversations, too: pairs of facts have no answers.")
    summary, rows = scores.stages_alone(
        talks, experts, pairs=pairs, questions=questions, operations=operations, seed=seed,
        written=[s for path in facts for s in readers.read_pairs(path)], track=_tracked,
    )  # fmt: skip
    if together:
        answers = scores.together(
            talks, source="memories", experts=experts, most=questions, track=_tracked, seed=seed
        )
        more, further = scores.together_summary([answers], source="memories", experts=experts)
        summary, rows = summary | more, rows + further
    if wants_json():
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


if __name__ == "__main__":
    cli(prog_name="python -m corpus")
