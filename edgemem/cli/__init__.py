"""The command line: `edgemem …`.

Every command calls another room for its work. This room knows options, how results are shown, and
how an error becomes one line. It is the only importer of click and rich. Heavy modules are imported
inside the commands, so that `edgemem --help` is fast.

Data goes to stdout; progress, notes, questions and errors go to stderr.
"""

from __future__ import annotations

import io
import os
import sys

# Importing a module adds its commands to the group.
from edgemem.cli import admin, chatting, demo, memories, tools, vault  # noqa: F401
from edgemem.cli.output import cli

__all__ = ["cli", "main"]


def main() -> None:
    """Runs the command line: the entry point of `edgemem` and `python -m edgemem`."""
    _replace_closed_streams()
    _choose_encoding()
    try:
        cli(prog_name="edgemem")
    finally:
        _drop_unwritten()


def _replace_closed_streams() -> None:
    """Opens the null device for each stream that the shell has closed (`<&-`): it is None."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115


def _choose_encoding() -> None:
    """Makes files and pipes UTF-8, as exports are read. A terminal keeps its own encoding, and
    shows "?" for a character that this lacks."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        if sys.stdout.isatty():
            sys.stdout.reconfigure(errors="replace")
        else:
            sys.stdout.reconfigure(encoding="utf-8")


def _drop_unwritten() -> None:
    """Discards output that stdout refused: Python's exit would write it again, with a traceback."""
    try:
        sys.stdout.flush()
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
