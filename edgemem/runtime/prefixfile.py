"""Kept prefixes on disk: what a stage's prompts begin with, computed once for all processes.

A file holds llama.cpp's state of one sequence. It is used only if it is whole (cachefile.py) and
its stamp names exactly what would be computed: model file, adapter with its scale, tokens, the
build of llama.cpp. Anything else is passed over, never an error: it can be computed again.

Knows files; knows nothing of prompts. The caller sees to it that nothing private lands here.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgemem import cachefile
from edgemem.runtime.prefixes import Keyed

__all__ = ["describe", "read", "write"]

MAX_FILES = 12


def describe(
    prompt: Sequence[Keyed],
    members: Callable[[int], Sequence[tuple[str, float]]],
    same: Callable[[], Mapping[str, Any]],
) -> dict[str, Any] | None:
    """What makes up a prompt's KV, in words that mean the same in another process.

    members: the (sha256, scale) of each adapter of a set. same: what else must be equal. None for
    a mixture: llama.cpp adds its members up in an order that depends on their addresses.
    """
    sets = {number: [list(member) for member in members(number)] for _, number in prompt}
    if any(len(found) > 1 for found in sets.values()):
        return None
    keyed = json.dumps([[token, sets[number]] for token, number in prompt])
    digest = hashlib.sha256(keyed.encode()).hexdigest()
    return {**same(), "tokens": len(prompt), "prompt": digest}


def read(folder: Path, what: Mapping[str, Any]) -> NDArray[np.uint8] | None:
    """The state of what a mapping (of JSON values) describes, if it is there and sound."""
    file = _file(folder, what)
    stamp = cachefile.read_stamp(file)
    if stamp is None or stamp.get("of") != what:
        return None
    with suppress(OSError):
        file.touch()  # the least recently used go first
        return np.fromfile(file, np.uint8)
    return None


def write(folder: Path, what: Mapping[str, Any], state: NDArray[np.uint8]) -> None:
    """Keep a state, and no more than MAX_FILES in all. A disk that is full is no error."""
    file = _file(folder, what)
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        temporary, stamp = cachefile.write_temporary(file, state.tofile, state.nbytes)
        cachefile.publish(temporary, file, {**stamp, "of": dict(what)})
        kept = sorted(folder.glob("*.kv"), key=lambda f: f.stat().st_mtime_ns)
        for old in kept[:-MAX_FILES]:
            cachefile.discard(old)


def _file(folder: Path, what: Mapping[str, Any]) -> Path:
    name = hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()
    return folder / f"{name[:32]}.kv"
