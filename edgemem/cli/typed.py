"""What was typed at the prompt of `edgemem chat`: a file of lines for each store.

Knows that file alone. That of a vault is sealed line by line.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
import shlex
from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from edgemem.config import data_dir, load_settings
from edgemem.errors import StoreCorrupt
from edgemem.inputs import spaced

if TYPE_CHECKING:
    from edgemem.memory import Memory
    from edgemem.store import Store
    from edgemem.vault import Vault

__all__ = [
    "forget_typed",
    "history_file",
    "move_typed",
    "of_store",
    "remember_typed",
    "shared_history",
    "take_shared",
    "typed_before",
]

MOST_LINES = 1000
_BREAK = "\u2028"  # Unicode's line separator stands for a line break within an input
_store: Path | None = None  # the file of the open store, and its vault
_vault: Vault | None = None


def of_store(store: Store) -> None:
    """Makes the history of this store the one that all other functions use."""
    global _store, _vault
    _store, _vault = store.path, store.vault


def history_file() -> Path:
    """Returns the history file of the open store, else of the store of the settings.

    The store of the settings takes over the shared one, or any other if that store is not plain.
    """
    if _vault is not None:
        return data_dir() / f"chat_history.{_vault.id[:8]}"
    from edgemem.store.database import resolved
    from edgemem.store.encryption import is_plain

    usual = resolved(load_settings().db)
    store = _store or usual
    name = hashlib.sha256(os.fsencode(store)).hexdigest()[:16]
    file, shared = data_dir() / f"chat_history.{name}", shared_history()
    if shared.exists() and not file.exists() and (store == usual or not is_plain(usual)):
        shared.rename(file)
    return file


def shared_history() -> Path:
    """Returns the file that all plain stores shared before each had its own."""
    return data_dir() / "chat_history"


def move_typed(store: Path, old: Vault | None, new: Vault | None) -> None:
    """Moves a store's history into its vault or out of it, and overwrites the old file."""
    global _store, _vault
    _store, _vault = store, old
    lines = _typed_lines(file := history_file())
    if lines:
        _write_typed(file, [])
        file.unlink()
    _vault = new
    for line in lines:
        remember_typed(line.replace(_BREAK, "\n"))


def _kept(file: Path, line: str) -> str:
    """Returns a line as a file stores it."""
    if _vault is None or file == shared_history():
        return line
    return base64.b64encode(_vault.seal(line.encode(), "chat history")).decode()


def typed_before() -> list[str]:
    """Returns the last MOST_LINES inputs, oldest first. Shortens a file of twice as many."""
    lines = _typed_lines(history_file())
    if len(lines) > 2 * MOST_LINES:
        _write_typed(history_file(), lines[-MOST_LINES:])
    return [line.replace(_BREAK, "\n") for line in lines[-MOST_LINES:]]


def remember_typed(text: str) -> None:
    """Adds an input to the history file. A failed write is ignored."""
    with suppress(OSError, UnicodeEncodeError):
        place = history_file()
        place.parent.mkdir(parents=True, exist_ok=True)
        private = partial(os.open, mode=0o600)
        with open(place, "a", encoding="utf-8", opener=private) as file:
            file.write(_kept(place, _BREAK.join(text.splitlines())) + "\n")


def forget_typed(texts: Iterable[str]) -> None:
    """Removes from the history each input that holds one of these texts, as whole words."""
    texts = list(texts)
    for file in (history_file(), shared_history()):
        _taken(file, texts)


def take_shared(memory: Memory) -> None:
    """Moves a store's lines from the history that all stores shared to its own."""
    said = [turn.content for turn in memory.store.recent_turns(limit=None)]
    for line in _taken(shared_history(), said):
        remember_typed(line.replace(_BREAK, "\n"))


def _taken(file: Path, texts: Iterable[str]) -> list[str]:
    """Removes from a file the lines that hold one of these texts, and returns them."""
    lines = _typed_lines(file)
    forms = {line: _forms(line) for line in lines}
    everything = "\n".join(chain.from_iterable(forms.values()))
    # Few of the texts were typed here, and an erase may take very many.
    here = [text for text in {*map(spaced, texts)} - {""} if text in everything]
    if not here:
        return []
    held = re.compile("|".join(rf"(?<!\w){re.escape(text)}(?!\w)" for text in here))
    taken = [line for line in lines if any(map(held.search, forms[line]))]
    if taken:
        _write_typed(file, [line for line in lines if line not in taken])
    return taken


def _forms(line: str) -> list[str]:
    """Returns an input as it was typed, and without the quotes that /image once dropped."""
    forms = [spaced(line)]
    with suppress(ValueError):  # a quote without its end
        forms.append(spaced(" ".join(shlex.split(line))))
    return forms


def _typed_lines(file: Path) -> list[str]:
    try:
        text = file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    lines = text.removesuffix("\n").split("\n") if text else []
    if _vault is None or file == shared_history():
        return lines
    opened = []
    for line in lines:
        with suppress(ValueError, StoreCorrupt):  # a line that was cut off is skipped
            opened.append(_vault.unseal(base64.b64decode(line), "chat history").decode())
    return opened


def _write_typed(file: Path, lines: list[str]) -> None:
    """Replaces a file's lines in place, so that the old bytes are overwritten."""
    data = "".join(f"{_kept(file, line)}\n" for line in lines).encode()
    with open(file, "r+b") as opened:
        old = os.fstat(opened.fileno()).st_size
        opened.write(data + b"\n" * max(0, old - len(data)))
        opened.flush()
        os.fsync(opened.fileno())
        opened.truncate(len(data))
