"""What was typed at the prompt of `edgemem chat`: a file of lines for each store and user in it.

Knows these files alone. Those of a vault are sealed line by line. Earlier versions had files that
several users or stores shared; they are wiped when a store is opened.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import astuple
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from edgemem.config import data_dir, load_settings
from edgemem.errors import StoreCorrupt
from edgemem.inputs import holding, spaced
from edgemem.results import Scope

if TYPE_CHECKING:
    from edgemem.memory import Memory
    from edgemem.store import Store
    from edgemem.vault import Vault

__all__ = ["forget_typed", "forget_words", "history_file", "kept_files"]
__all__ += ["move_typed", "of_store", "of_user", "remember_typed", "told_nowhere", "typed_before"]

MOST_LINES = 1000
_BREAK = "\u2028"  # Unicode's line separator stands for a line break within an input
_in_memory = False  # whether the open store lies in no file: what is typed there is kept nowhere
_store: Path | None = None  # the file of the open store, and its vault
_vault: Vault | None = None
_whose: Scope | None = None


def of_store(store: Store) -> None:
    """Makes the history of this store the one that all other functions use.

    A store in memory has none: the others then find nothing, keep nothing and remove nothing.
    """
    global _in_memory, _store, _vault, _whose
    _in_memory = store.path is None
    _store, _vault, _whose = store.path, store.vault, None
    if not _in_memory:
        with suppress(OSError):
            _remove(file for file in (data_dir() / "chat_history", _start()) if file.exists())


def of_user(whose: Scope) -> None:
    """Makes the history of this user, agent or run in the open store the one that is used."""
    global _whose
    _whose = whose


def history_file() -> Path:
    """Returns the history file of a user of the open store; see `of_user`.

    Without `of_user` it is the user of the settings, without a store the store of the settings.
    """
    return _file_of(_whose or Scope(load_settings().user_id))


def _file_of(whose: Scope) -> Path:
    ids = astuple(whose)
    hashed = [hashlib.sha256(id.encode()).hexdigest()[:16] if id else "-" for id in ids]
    return _start().with_name(".".join([_start().name, *hashed]))


def kept_files(whose: Scope | None = None) -> list[Path]:
    """Returns the history files of the open store, of all users.

    whose: only the files of these; an id that is None stands for any.
    """
    if _in_memory:
        return []
    names = f"{_start().name}.*" if whose is None else _file_of(whose).name.replace(".-", ".*")
    return [*data_dir().glob(names)]


def _start() -> Path:
    """Returns the path with which those of a store's histories begin."""
    if _vault is not None:
        return data_dir() / f"chat_history.{_vault.id[:8]}"
    from edgemem.store.database import resolved

    store = _store or resolved(load_settings().db)
    return data_dir() / f"chat_history.{hashlib.sha256(os.fsencode(store)).hexdigest()[:16]}"


def move_typed(store: Path, old: Vault | None, new: Vault | None) -> None:
    """Moves a store's histories into its vault or out of it, and overwrites the old files."""
    global _in_memory, _store, _vault
    _in_memory, _store, _vault = False, store, old
    before = _start().name
    moved = {file.name.removeprefix(before): _typed_lines(file) for file in kept_files()}
    _remove(kept_files())
    _vault = new
    after = _start()
    for end, lines in moved.items():
        if lines:
            _add(after.with_name(after.name + end), lines)


def _kept(line: str) -> str:
    """Returns a line as a file stores it."""
    if _vault is None:
        return line
    return base64.b64encode(_vault.seal(line.encode(), "chat history")).decode()


def typed_before() -> list[str]:
    """Returns the last MOST_LINES inputs, oldest first. Shortens a file of twice as many."""
    if _in_memory:
        return []
    lines = _typed_lines(history_file())
    if len(lines) > 2 * MOST_LINES:
        _write_typed(history_file(), lines[-MOST_LINES:])
    return [line.replace(_BREAK, "\n") for line in lines[-MOST_LINES:]]


def remember_typed(text: str) -> None:
    """Adds an input to the history file. A failed write is ignored."""
    if _in_memory:
        return
    with suppress(OSError, UnicodeEncodeError):
        _add(history_file(), [_BREAK.join(text.splitlines())])


def _add(place: Path, lines: Iterable[str]) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    private = partial(os.open, mode=0o600)
    with open(place, "a", encoding="utf-8", opener=private) as file:
        file.writelines(_kept(line) + "\n" for line in lines)


def forget_typed(texts: Iterable[str] | None, whose: Scope | None = None) -> None:
    """Removes from all histories each input that holds one of these texts, as whole words.

    texts: None stands for any text. whose: also removes all that these users, agents or runs typed.
    """
    if texts is None or whose is not None:
        _remove(kept_files(whose))
    texts = list(texts or ())
    for file in kept_files():
        lines = {line: spaced(line) for line in _typed_lines(file)}
        everything = "\n".join(lines.values())
        # Few of the texts were typed here, and an erase may take very many.
        here = [text for text in {*map(spaced, texts)} - {""} if text in everything]
        if not here:
            continue
        held = re.compile("|".join(rf"(?<!\w){re.escape(text)}(?!\w)" for text in here))
        _drop(file, {line for line, words in lines.items() if held.search(words)})


def forget_words(words: str | None, whose: Scope) -> int:
    """Removes each input of these users, agents or runs that has these words side by side.

    Returns how many inputs were removed. None removes none.
    """
    if words is None:
        return 0
    fits = holding(words)
    return sum(_drop(file, {*filter(fits, _typed_lines(file))}) for file in kept_files(whose))


def _drop(file: Path, unwanted: set[str]) -> int:
    """Removes lines from a file, and returns how many they were."""
    lines = _typed_lines(file)
    kept = [line for line in lines if line not in unwanted]
    if len(kept) < len(lines):
        _write_typed(file, kept)
    return len(lines) - len(kept)


_COMMAND = re.compile(r"""^(?:/image\s+(?:"[^"]*"|'[^']*'|(?:\\.|\S)+)|/budget\s.*|/\w+)""")


def told_nowhere(memory: Memory) -> list[str]:
    """Returns the inputs of all histories whose words stand in no stored message as they are.

    A command is one of these if it has words, which may name what was erased, as of "/memories
    Lena" or of "/cloud Where is Lena?". The name of a photo and what /budget is given are none.
    """
    turns = memory.store.recent_turns(limit=None)
    said = "\n".join(spaced(turn.content) for turn in turns)
    lines = chain.from_iterable(map(_typed_lines, kept_files()))
    words = ((line, _COMMAND.sub("", spaced(line)).strip()) for line in lines)
    return [line for line, told in words if re.search(r"[^\W\d]", told) and told not in said]


def _remove(files: Iterable[Path]) -> None:
    for file in files:
        _write_typed(file, [])
        file.unlink()


def _typed_lines(file: Path) -> list[str]:
    try:
        text = file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    lines = text.removesuffix("\n").split("\n") if text else []
    if _vault is None:
        return lines
    opened = []
    for line in lines:
        with suppress(ValueError, StoreCorrupt):  # a line that was cut off is skipped
            opened.append(_vault.unseal(base64.b64decode(line), "chat history").decode())
    return opened


def _write_typed(file: Path, lines: list[str]) -> None:
    """Replaces a file's lines in place, so that the old bytes are overwritten."""
    data = "".join(f"{_kept(line)}\n" for line in lines).encode()
    with open(file, "r+b") as opened:
        old = os.fstat(opened.fileno()).st_size
        opened.write(data + b"\n" * max(0, old - len(data)))
        opened.flush()
        os.fsync(opened.fileno())
        opened.truncate(len(data))
