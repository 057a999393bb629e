"""What was typed at the prompt of `edgemem chat`: a file of lines for each store and user in it.

Knows these files alone. Those of a vault are sealed line by line. An earlier version had one file
for all users of a store. The only owner of its memories takes that over. Of several, each takes out
of it what was said as theirs, and nobody is shown the rest.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
import shlex
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

__all__ = [
    "forget_all_typed",
    "forget_shared",
    "forget_typed",
    "forget_words",
    "history_file",
    "kept_files",
    "move_typed",
    "of_store",
    "of_user",
    "remember_typed",
    "shared_history",
    "take_shared",
    "told_nowhere",
    "typed_before",
]

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


def of_user(memory: Memory, whose: Scope) -> None:
    """Makes the history of this user, agent or run in the open store the one that is used.

    A new one takes over the file that all users of the store shared, if all that the store holds is
    of these, and else exactly the lines of it that these said.
    """
    global _whose
    _whose = whose
    if _in_memory:
        return
    old = _of_all_users()
    if not old.exists() or history_file().exists():
        return
    if _held(memory) == _held(memory, whose) > 0:
        old.rename(history_file())
        return
    turns = memory.store.recent_turns(whose, limit=None)
    said = {spaced(turn.content) for turn in turns if turn.role == "user"}
    lines = _typed_lines(old)
    own = [line for line in lines if spaced(line) in said]
    if own:
        _add(history_file(), own)
        _write_typed(old, [line for line in lines if line not in own])


def _held(memory: Memory, whose: Scope | None = None) -> int:
    """Returns how many memories and turns a store holds of these, also deleted ones.

    whose: None means everybody.
    """
    from edgemem.store.writing import all_of

    with memory.store.snapshot() as connection:
        return sum(map(len, all_of(connection, whose or Scope())))


def history_file() -> Path:
    """Returns the history file of a user of the open store; see `of_user`.

    Without `of_user` it is the user of the settings, without a store the store of the settings.
    """
    return _file_of(*astuple(_whose or Scope(load_settings().user_id)))


def _file_of(*ids: str | None) -> Path:
    """Returns the file of the ids of a scope."""
    hashed = [hashlib.sha256(id.encode()).hexdigest()[:16] if id else "-" for id in ids]
    old = _of_all_users()
    return old.with_name(".".join([old.name, *hashed]))


def kept_files(whose: Scope | None = None) -> list[Path]:
    """Returns the history files of the open store, of all users.

    whose: only the files of these; an id that is None stands for any.
    """
    if _in_memory:
        return []
    old = _of_all_users()
    if whose is None:
        return [file for file in (old, *old.parent.glob(f"{old.name}.*")) if file.exists()]
    pattern = _file_of(*astuple(whose)).name
    return [*old.parent.glob(pattern.replace(".-", ".*"))]


def _of_all_users() -> Path:
    """Returns the file that all users of a store shared before each had their own.

    That of the store of the settings is also the one that all stores shared before; if that store
    is not plain, any other takes it over.
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
    """Moves a store's histories into its vault or out of it, and overwrites the old files."""
    global _in_memory, _store, _vault
    _in_memory, _store, _vault = False, store, old
    before = _of_all_users().name
    moved = {file.name.removeprefix(before): _typed_lines(file) for file in kept_files()}
    _remove(kept_files())
    _vault = new
    after = _of_all_users()
    for end, lines in moved.items():
        if lines:
            _add(after.with_name(after.name + end), lines)


def _kept(file: Path, line: str) -> str:
    """Returns a line as a file stores it."""
    if _vault is None or file == shared_history():
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
        file.writelines(_kept(place, line) + "\n" for line in lines)


def forget_typed(texts: Iterable[str], whose: Scope | None = None) -> None:
    """Removes from all histories each input that holds one of these texts, as whole words.

    whose: also removes all that these users, agents or runs typed.
    """
    if _in_memory:
        return
    texts = list(texts)
    _remove(kept_files(whose) if whose is not None else ())
    for file in (*kept_files(), shared_history()):
        _taken(file, texts)


def forget_words(words: str | None, whose: Scope) -> int:
    """Removes each input of these users, agents or runs that has these words side by side.

    Also from the histories that several shared. Returns how many inputs were removed. None removes
    none.
    """
    if _in_memory or words is None:
        return 0
    fits, count = holding(words), 0
    for file in {*kept_files(whose), _of_all_users(), shared_history()}:
        lines = _typed_lines(file)
        if taken := [line for line in lines if fits(line)]:
            _write_typed(file, [line for line in lines if line not in taken])
            count += len(taken)
    return count


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


def forget_all_typed() -> None:
    """Removes all histories of the store."""
    _remove(kept_files())


def forget_shared(memory: Memory) -> None:
    """Removes the file that all users of a store shared, if nothing of anybody is left in it."""
    if not _in_memory and _held(memory) == 0 and (old := _of_all_users()).exists():
        _remove([old])


def _remove(files: Iterable[Path]) -> None:
    for file in files:
        _write_typed(file, [])
        file.unlink()


def take_shared(memory: Memory) -> None:
    """Moves a store's lines from the history that all stores shared to that of all its users."""
    said = [turn.content for turn in memory.store.recent_turns(limit=None)]
    if lines := _taken(shared_history(), said):
        _add(_of_all_users(), lines)


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
