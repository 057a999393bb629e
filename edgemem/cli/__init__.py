"""The command line: `edgemem …`.

Every command calls another room for its work. This room knows options, how results are shown, and
how an error becomes one line. It is the only importer of click and rich. Heavy modules are imported
inside the commands, so that `edgemem --help` is fast.

Data goes to stdout; progress, notes, questions and errors go to stderr.
"""

from __future__ import annotations

import _thread
import io
import os
import sys
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

# Importing a module adds its commands to the group.
from edgemem.cli import admin, chatting, demo, memories, tools, vault  # noqa: F401
from edgemem.cli.output import cli

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

__all__ = ["cli", "main"]

_AGAIN_S = 0.05


def main() -> None:
    """Runs the command line."""
    sys.unraisablehook = _interrupt_later
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


def _interrupt_later(lost: UnraisableHookArgs) -> None:
    """Repeats a Ctrl-C that came where Python drops it: in llama.cpp's log, a callback from C.

    The repeated one must not come before this has ended, as Python would drop it here too.
    """
    if not issubclass(lost.exc_type, KeyboardInterrupt):
        sys.__unraisablehook__(lost)
        return
    ended = False

    def again() -> None:
        while True:
            time.sleep(_AGAIN_S)
            if ended:
                break
        _thread.interrupt_main()

    with suppress(RuntimeError, KeyboardInterrupt):  # the program is ending; one more came
        threading.Thread(target=again, daemon=True).start()
    ended = True


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
