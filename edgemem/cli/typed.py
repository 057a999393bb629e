"""What was typed at the prompt of `edgemem chat`, so that the arrow keys bring it back.

Knows the file `chat_history` in the data folder, one line per input. Knows nothing of chats or
keys. Lines leave the file when what they said is erased.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from edgemem.config import data_dir

__all__ = ["MOST_LINES", "forget_typed", "history_file", "remember_typed", "typed_before"]

MOST_LINES = 1000
_BREAK = "\u2028"  # Unicode's line separator: where an input of several lines was broken


def history_file() -> Path:
    return data_dir() / "chat_history"


def typed_before() -> list[str]:
    """The inputs of earlier chats and of this one, oldest first; a file grown long is cut."""
    lines = _lines()
    if len(lines) > 2 * MOST_LINES:
        _write(lines[-MOST_LINES:])
    return [line.replace(_BREAK, "\n") for line in lines[-MOST_LINES:]]


def remember_typed(text: str) -> None:
    """Add an input to the file. A folder that refuses is no error."""
    with suppress(OSError, UnicodeEncodeError):
        history_file().parent.mkdir(parents=True, exist_ok=True)
        with open(history_file(), "a", encoding="utf-8", opener=_private) as file:
            file.write(_BREAK.join(text.splitlines()) + "\n")


def forget_typed(texts: Iterable[str]) -> None:
    """Drop the lines that say one of these texts, alone or behind a command, from the file."""
    gone = {_folded(text) for text in texts}
    lines = _lines()
    kept = [line for line in lines if not gone & {_folded(line), _folded(_without_command(line))}]
    if len(kept) < len(lines):
        _write(kept)


def _without_command(line: str) -> str:
    """`/cloud MESSAGE` says MESSAGE."""
    return "".join(line.split(maxsplit=1)[1:]) if line.lstrip().startswith("/") else line


def _folded(text: str) -> str:
    return " ".join(text.split())


def _lines() -> list[str]:
    try:
        text = history_file().read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    return text.removesuffix("\n").split("\n") if text else []


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
