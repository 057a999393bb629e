"""What was typed at the prompt of `edgemem chat`, so that the arrow keys bring it back.

Knows the file `chat_history` in the data folder, one line per input, and readline where Python
has it. Knows nothing of chats. Lines leave the file when what they said is erased.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from edgemem.config import data_dir

__all__ = ["MOST_LINES", "forget_typed", "history_file", "load_typed", "remember_typed"]

MOST_LINES = 1000


def history_file() -> Path:
    return data_dir() / "chat_history"


def load_typed() -> None:
    """Give readline the lines of earlier chats; without readline, nothing."""
    readline = _readline()
    lines = _lines()
    if len(lines) > 2 * MOST_LINES:
        _write(lines[-MOST_LINES:])
    if readline is not None:
        readline.clear_history()
        for line in lines[-MOST_LINES:]:
            readline.add_history(line)


def remember_typed(line: str) -> None:
    """Add a line to the file; readline has it already. A folder that refuses is no error."""
    with suppress(OSError, UnicodeEncodeError):
        history_file().parent.mkdir(parents=True, exist_ok=True)
        with open(history_file(), "a", encoding="utf-8", opener=_private) as file:
            file.write(line + "\n")


def forget_typed(texts: Iterable[str]) -> None:
    """Drop the lines that say one of these texts, from the file and from readline."""
    gone = {" ".join(text.split()) for text in texts}
    lines = _lines()
    kept = [line for line in lines if " ".join(line.split()) not in gone]
    if len(kept) < len(lines):
        _write(kept)
        readline = _readline()
        if readline is not None and readline.get_current_history_length():
            load_typed()


def _readline() -> Any:
    try:
        import readline
    except ImportError:  # Windows
        return None
    return readline


def _lines() -> list[str]:
    try:
        return history_file().read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []


def _write(lines: list[str]) -> None:
    """Put these lines in the file's place, over its old bytes."""
    data = "".join(f"{line}\n" for line in lines).encode()
    with open(history_file(), "r+b") as file:
        old = os.fstat(file.fileno()).st_size
        file.write(data + b"\n" * max(0, old - len(data)))
        file.flush()
        os.fsync(file.fileno())
        file.truncate(len(data))


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
