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
from queue import SimpleQueue
from typing import TYPE_CHECKING

# Importing a module adds its commands to the group.
from edgemem.cli import admin, chatting, demo, importing, memories, tools, vault  # noqa: F401
from edgemem.cli.output import cli

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

__all__ = ["cli", "main"]

_AGAIN_S = 0.05


def main() -> None:
    """Runs the command line."""
    _repeat_interrupts()
    _replace_closed_streams()
    _choose_encoding()
    try:
        cli(prog_name="edgemem")
    finally:
        sys.unraisablehook = sys.__unraisablehook__  # no thread runs while Python ends
        _drop_unwritten()


def _replace_closed_streams() -> None:
    """Opens the null device for each stream that the shell has closed (`<&-`): it is None."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115


def _repeat_interrupts() -> None:
    """Repeats a Ctrl-C that came where Python drops it: in llama.cpp's log, a callback from C.

    Python drops one in a hook too, so the hook runs no line of Python. The repeated one comes after
    the hook has ended.
    """
    lost: SimpleQueue[UnraisableHookArgs] = SimpleQueue()

    def repeat() -> None:
        while True:
            one = lost.get()
            if issubclass(one.exc_type or Exception, KeyboardInterrupt):
                time.sleep(_AGAIN_S)
                _thread.interrupt_main()
            else:
                with suppress(Exception):  # as where stderr is closed
                    sys.__unraisablehook__(one)
            del one  # it holds what is to be freed

    threading.Thread(target=repeat, daemon=True).start()
    sys.unraisablehook = lost.put


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
