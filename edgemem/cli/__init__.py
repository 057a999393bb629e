"""The command line: `edgemem …`.

Every command asks another room: this one knows options, how results are shown, and how an error is
said in one line, and nothing of how anything is done. It is the only importer of click and rich.
Heavy modules are imported inside the commands, so that `edgemem --help` is quick.

Data goes to stdout; progress, notes, questions and errors go to stderr.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import click

from edgemem.cli import admin, chatting, cloud, demo, memories, tools, training
from edgemem.cli.output import one_line_errors

__all__ = ["cli", "main"]


class _Group(click.Group):
    """A group whose commands turn an error into one line and exit code 1."""

    def make_context(self, *args: Any, **more: Any) -> click.Context:
        with one_line_errors():  # --help and --version print from here
            return super().make_context(*args, **more)

    def invoke(self, ctx: click.Context) -> Any:
        with one_line_errors():
            return super().invoke(ctx)


def _print_version(ctx: click.Context, _param: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        admin.print_version()
        ctx.exit()


@click.group(
    cls=_Group,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Show the version, the models, the vector backend and the llama.cpp build.",
)
def cli() -> None:
    """Private, long-term memory for small models on your own device.

    Nothing leaves this machine, unless you set up a cloud. `edgemem demo` shows what it does;
    `edgemem chat` talks with it.
    """


for _command in (
    chatting.chat,
    demo.demo,
    demo.demo_answer,
    memories.add,
    memories.search,
    memories.get,
    memories.list_memories,
    memories.update,
    memories.delete,
    memories.erase,
    memories.history,
    memories.export,
    memories.import_files,
    tools.compress,
    admin.reindex,
    admin.doctor,
    admin.models,
    admin.config,
    cloud.cloud,
    tools.profile,
    tools.serve,
    tools.mcp,
    training.train,
):
    cli.add_command(_command)


def main() -> None:
    """The entry point of `edgemem` and `python -m edgemem`."""
    _replace_closed_streams()
    try:
        cli(prog_name="edgemem")
    finally:
        _drop_unwritten()


def _replace_closed_streams() -> None:
    """Python has None for a stream that the shell has closed (`<&-`, `>&-`)."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115


def _drop_unwritten() -> None:
    """What stdout has refused: Python would try it once more at its end, with a traceback."""
    try:
        sys.stdout.flush()
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
