"""The KV cache of one context, shared by stages and adapters that take turns.

Each stage begins its prompts with the same long text, whose keys and values are worth keeping. The
context holds one sequence, that of the running stage. The states of other stages are stored outside
the context, or in files for other processes.

KV is valid only for the adapter set that computed it. With another it is wrong, though the
likeliest token is often the same. So only a beginning of equal tokens and of the same set is
reused. Other adapters, a new scale or a reloaded adapter make another set (experts.py). A stage's
last prompt is stored for each set it ran with. Another stage of the set whose prompt begins with
the same tokens starts from a copy of it.

What is reused must equal what a fresh context would compute, bit for bit:

- The context holds one sequence at a time, from the first cell on. In a unified cache with one
  sequence per stage, the cells of several sequences are interleaved, and sums run in another order.
- Only tokens decoded two or more at a time are reused, because ggml multiplies by one column and by
  several in different orders. So at least two tokens of a prompt are decoded anew, and the tokens
  of an answer are not reused.
- A recurrent state (Mamba, RWKV; a hybrid's layers) cannot drop its last tokens. Only a prompt that
  continues where the state ends can reuse it: `Engine.warm` stores such states.
- libmtmd decodes each part of an image whole, and no other image has the same tokens (vision.py).
  So a reused beginning never ends within a part.
- For a sliding window, llama.cpp saves only what the next token sees. A state of more tokens than
  the window gave other logits once restored, without an error, so no such state is stored. In the
  context itself the window's cache has its full size (llama.py), and any tail may be cut.

After each cut and each restored state, `_matches_context` checks what llama.cpp really holds.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgemem import cachefile
from edgemem.errors import ModelError
from edgemem.runtime import llama
from edgemem.runtime.experts import Adapters, AdapterSet
from edgemem.runtime.generation import Reason
from edgemem.runtime.vision import Vision, part_of, token_positions

__all__ = ["Prefixes", "describe", "read", "write"]

MAX_FILES = 12

Tokens = Sequence[int]  # below 0: of an image
_Slot = tuple[str, AdapterSet]  # a stage, and its adapter set


class Prefixes:
    """The tokens in the context, and the stored states of other stages. Not thread-safe.

    budget_bytes: limit of the stored states; the least recently used is dropped first.
    vision: decodes images, if the model sees any. held: the tokens of the sequence in the context,
    all computed by the adapter set of the stage that was entered.
    """

    def __init__(
        self,
        lib: Any,
        context: Any,
        budget_bytes: int,
        adapters: Adapters,
        vision: Vision | None = None,
    ) -> None:
        self._lib, self._context, self._budget = lib, context, budget_bytes
        self._adapters, self._vision = adapters, vision
        self._memory = lib.llama_get_memory(context)
        model = lib.llama_get_model(context)
        self._cuttable = not (
            lib.llama_model_is_recurrent(model) or lib.llama_model_is_hybrid(model)
        )
        self._window = int(lib.llama_model_n_swa(model))  # in tokens; 0 if there is none
        self._batch = lib.llama_batch_init(llama.N_BATCH, 0, 1)
        self._slot: _Slot = "", ()
        self._reusable = 0  # tokens of `held` that a later prompt may reuse
        self._saved: OrderedDict[_Slot, tuple[list[int], NDArray[np.uint8]]] = OrderedDict()
        self.held: list[int] = []
        self._next = 0  # position of the token after `held`

    @property
    def notes(self) -> tuple[str, ...]:
        """What is not reused, and why."""
        notes = []
        if not self._cuttable:
            notes.append(
                "A prompt is computed anew from its first token, unless it goes on where a "
                "beginning computed ahead ends: the model's state is recurrent and cannot give up "
                "its last tokens."
            )
        if self._window:
            notes.append(
                f"No more than the first {self._window} tokens of a prompt are kept while another "
                "stage runs, or in a file: the model has a sliding window of as many, and "
                "llama.cpp saves nothing from before it."
            )
        return tuple(notes)

    def rewind(self, length: int) -> bool:
        """Keep only the first `length` tokens. Returns False, and drops none, if the model's state
        is recurrent."""
        if self._cuttable:
            self._cut(length)
        return self._cuttable

    @property
    def bytes(self) -> int:
        """Size of the states stored outside the context."""
        return sum(state.nbytes for _, state in list(self._saved.values()))

    def has(self, stage: str, beginning: Tokens) -> bool:
        """Whether the context, or a stored state of the stage's adapter set, begins with these
        tokens, except for the last two, which are decoded anew."""
        sought, members = list(beginning[:-2]), self._adapters.set_of(stage)
        kept = [held for (_, of), (held, _) in self._saved.items() if of == members]
        if self._cuttable:
            kept += [self.held] if self._slot[1] == members else []
        else:
            kept = [held for held in kept if len(held) <= len(beginning)]
        return any(held[: len(sought)] == sought for held in kept)

    def keepable(self, beginning: Tokens) -> Tokens:
        """The longest part of a beginning that can be stored, and continued by any prompt."""
        length = len(beginning)
        if not self._cuttable and length > 2:
            length -= 2  # the last two may be other tokens once more text follows
        return beginning[: _cut_between_images(beginning, min(length, self._window or length))]

    def keep(self) -> None:
        """Store a copy of the context's state, if a prompt that continues it would destroy it."""
        if not self._cuttable:
            self._cut(self._reusable)
            self._store_state()

    def enter(self, stage: str, prompt: Tokens) -> int:
        """Prepare the context for a stage's prompt. Returns how many of its tokens are there.

        The caller decodes the others, which are at least two (or all), before any of an answer.
        """
        self._cut(self._reusable)
        slot = (stage, members := self._adapters.set_of(stage))
        if slot != self._slot:
            if self._cuttable:
                self._store_state()
            if members != self._slot[1]:
                self._clear()
            self._slot = slot
        kept = ((s, held) for s, (held, _) in self._saved.items() if s[1] == members)
        reusable = {s: self._usable(held, prompt) for s, held in kept}
        best = max(reversed(reusable), key=lambda s: (reusable[s], s == slot), default=slot)
        if reusable.get(best, 0) > self._usable(self.held, prompt):
            self.restore(*self._saved[best])
            self._saved.move_to_end(best)
        if self._cuttable:
            self._saved.pop(slot, None)  # the context now holds the stage's latest state
        self._cut(self._usable(self.held, prompt))
        self._reusable = _until_lone_token(prompt)
        return len(self.held)

    def decode(
        self,
        tokens: Tokens,
        interrupted: Callable[[], Reason | None] = lambda: None,
        *,
        every: bool = False,
    ) -> Reason | None:
        """Append tokens to the sequence; logits are computed for the last one, or for every one.

        interrupted: called between batches; if it gives a reason, decoding ends and returns it.
        Raises ModelError.
        """
        done = 0
        for part in _batches(tokens):
            if done and (reason := interrupted()) is not None:
                return reason
            self._adapters.use(self._slot[1])
            if part[0] < 0:
                assert self._vision is not None
                self._vision.decode(part[0], self._next)
                self._append(part)
                done += len(part)
                continue
            batch = self._batch
            batch.n_tokens = len(part)
            for i, token in enumerate(part):
                batch.token[i] = token
                batch.pos[i] = self._next + i
                batch.n_seq_id[i] = 1
                batch.seq_id[i][0] = 0
                batch.logits[i] = every or done + i == len(tokens) - 1
            status = self._lib.llama_decode(self._context, batch)
            if status != 0:
                raise ModelError(
                    f"llama.cpp failed to decode {len(part)} tokens at position {len(self.held)} "
                    f"(status {status}; {llama.last_errors()})"
                )
            self._append(part)
            done += len(part)
        return None

    def _append(self, part: Tokens) -> None:
        self.held.extend(part)
        self._next += _positions(part)

    def state(self) -> NDArray[np.uint8]:
        """The context's state, as llama.cpp serialises it; empty if it cannot."""
        size = self._lib.llama_state_seq_get_size(self._context, 0)
        state = np.empty(size, np.uint8)
        got = self._lib.llama_state_seq_get_data(self._context, _pointer(state), size, 0)
        return state if got == size else state[:0]

    def restore(self, held: Tokens, state: NDArray[np.uint8]) -> bool:
        """Replace the context's state. Returns False, with an empty context, if llama.cpp fails."""
        self._clear()
        if self._lib.llama_state_seq_set_data(self._context, _pointer(state), len(state), 0):
            self._append(held)
            if self._matches_context():
                return True
        self._clear()
        return False

    def forget(self, serial: int) -> None:
        """Drop what was computed with this adapter."""
        for slot in [slot for slot in self._saved if serial in dict(slot[1])]:
            del self._saved[slot]
        if serial in dict(self._slot[1]):
            self._clear()

    def clear(self) -> None:
        """Drop everything, so that the next prompt is computed from its first token."""
        self._saved.clear()
        self._clear()

    def close(self) -> None:
        """Free the batch. Call this before the context is freed."""
        self._lib.llama_batch_free(self._batch)

    def _cut(self, length: int) -> None:
        """Keep only the first tokens, and no image part incompletely.

        Always calls llama.cpp: an interrupted decode may have left more than `held`.
        """
        if length < len(self.held):
            del self.held[_cut_between_images(self.held, length) :]
            self._next = _positions(self.held)
        removed = self._lib.llama_memory_seq_rm(self._memory, 0, self._next, -1)
        if not (removed and self._matches_context()):
            self._clear()

    def _matches_context(self) -> bool:
        """Whether llama.cpp has every token of `held` and no other."""
        first = self._lib.llama_memory_seq_pos_min(self._memory, 0)
        last = self._lib.llama_memory_seq_pos_max(self._memory, 0)
        end = self._next - 1
        if self.held and self._vision is not None:
            end = self._vision.last_position(self.held[-1], self._next)
        # For a recurrent state, llama.cpp tells only the last position.
        return last == end and (first <= 0 or not self._cuttable)

    def _usable(self, held: Tokens, prompt: Tokens) -> int:
        """How many of the held tokens a prompt can reuse; all or none if they cannot be cut."""
        common = _reusable(held, prompt)
        return common if self._cuttable or common == len(held) else 0

    def _store_state(self) -> None:
        """Store a copy of the context's state, after cutting the context to what can be saved."""
        if self._window:
            self._cut(self._window)
        if self.held:
            size = self._lib.llama_state_seq_get_size(self._context, 0)
            if size <= self._budget and len(state := self.state()):
                self._saved[self._slot] = (list(self.held), state)
        while self.bytes > self._budget:
            self._saved.popitem(last=False)

    def _clear(self) -> None:
        self.held, self._next = [], 0
        self._lib.llama_memory_clear(self._memory, False)


def _runs(prompt: Tokens) -> Iterator[tuple[int, int]]:
    """Yields [start, end) of each run of text, and of each part of an image."""
    start = 0
    for _, run in groupby(prompt, key=part_of) if _shows_images(prompt) else [(0, iter(prompt))]:
        end = start + len(list(run))
        yield start, end
        start = end


def _reusable(held: Tokens, prompt: Tokens) -> int:
    """How many of the held tokens a prompt can reuse so that no other token is decoded alone."""
    common = 0
    for ours, theirs in zip(
        held, prompt[: min(_until_lone_token(prompt), len(prompt) - 1)], strict=False
    ):
        if ours != theirs:
            break
        common += 1
    common = _cut_between_images(prompt, common)
    alone = any(start < common == end - 1 for start, end in _runs(prompt))
    return common - alone


def _shows_images(tokens: Tokens) -> bool:
    return min(tokens, default=0) < 0


def _positions(tokens: Tokens) -> int:
    """How many positions tokens take: fewer than tokens if images have two dimensions (M-RoPE)."""
    return sum(map(token_positions, tokens)) if _shows_images(tokens) else len(tokens)


def _cut_between_images(prompt: Tokens, length: int) -> int:
    """The largest length, at most this one, that does not end within a part of an image."""
    part = part_of(prompt[length]) if length < len(prompt) else 0
    while part and length and part_of(prompt[length - 1]) == part:
        length -= 1
    return length


def _until_lone_token(prompt: Tokens) -> int:
    """How many tokens come before the first one that must be decoded alone."""
    return next((start for start, end in _runs(prompt) if end - start == 1), len(prompt))


def _batches(tokens: Tokens) -> Iterator[Tokens]:
    """Yields runs cut at N_BATCH, so that single tokens are avoided where possible.

    A part of an image is not cut: libmtmd decodes it.
    """
    for start, end in _runs(tokens):
        if tokens[start] < 0:
            yield tokens[start:end]
            continue
        while start < end:
            size = min(llama.N_BATCH, end - start)
            if end - start == llama.N_BATCH + 1:
                size -= 1
            yield tokens[start : start + size]
            start += size


def _pointer(state: NDArray[np.uint8]) -> Any:
    return state.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))


# -- files for other processes ---------------------------------------------------------------------
# A file is used only if it is intact (cachefile.py) and its stamp names exactly what would be
# computed. Any other file is ignored, never an error: its KV can be computed again. The caller
# ensures that nothing private is written here.


def describe(prompt: Tokens, members: Sequence[tuple[str, float]]) -> dict[str, Any] | None:
    """A description of a prompt's KV that is valid in other processes too, or None.

    members: the (sha256, scale) of each adapter of its set. None for several: llama.cpp sums them
    in an order that depends on their addresses. None for a prompt with an image, whose token
    numbers are valid in this process only.
    """
    if _shows_images(prompt) or len(members) > 1:
        return None
    keyed = json.dumps([list(prompt), members])
    return {"tokens": len(prompt), "prompt": hashlib.sha256(keyed.encode()).hexdigest()}


def read(folder: Path, what: Mapping[str, Any]) -> NDArray[np.uint8] | None:
    """The stored state of a description (JSON values), or None if there is no intact one."""
    file = _file(folder, what)
    stamp = cachefile.read_stamp(file)
    if stamp is None or stamp.get("of") != what:
        return None
    with suppress(OSError):
        file.touch()  # `write` removes the least recently used
        return np.fromfile(file, np.uint8)
    return None


def write(folder: Path, what: Mapping[str, Any], state: NDArray[np.uint8]) -> None:
    """Store a state, and remove the oldest beyond MAX_FILES. A full disk is no error."""
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
