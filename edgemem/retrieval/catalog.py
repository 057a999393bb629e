"""What a search needs of each memory beside its vectors and words, in columns by memory number.

The columns say whose a memory is, until when it is valid, who said it, and its place in the
conversation. A memory's number is its rowid in the store. No locks: retrieval/search.py holds them.
The columns that `allowed` reads are overwritten in place, so call it under the lock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from edgemem.kernels import BoolArray, IntArray
from edgemem.language import FIRST_PERSON, words
from edgemem.results import Query
from edgemem.retrieval.vectors import Columns

if TYPE_CHECKING:
    from edgemem.store import Changes

__all__ = ["Catalog", "Places"]


SESSION_GAP_S = 3600.0  # turns further apart belong to two conversations
NOBODY = 0  # no memory has this number
UNUSED = -1  # the code of a string that never occurred
_ROLE = "\0"  # prefix of a role that is used as the speaker because no name is given
_USER = _ROLE + "user"

# place: the memory of the turn that this memory was taken from, or else the memory itself. A fact
# that a person has edited has its own.
# before, after: only set for a turn's memory, so look them up at `place`; the memories of the turns
# said just before and after it in the same session. speaker: a code of the name, or of the role if
# there is no name.
COLUMNS: dict[str, type] = {
    "live": np.bool_,
    "until": np.float64,
    "user": np.int32,
    "agent": np.int32,
    "run": np.int32,
    "kind": np.int32,
    "speaker": np.int32,
    "asks": np.bool_,
    "place": np.int64,
    "turn": np.int64,
    "time": np.float64,
    "session": np.int64,
    "before": np.int64,
    "after": np.int64,
}


@dataclass(frozen=True, slots=True)
class Places:
    """Where memories stand in their conversations: columns by memory number, see COLUMNS."""

    place: IntArray
    session: IntArray
    before: IntArray
    after: IntArray
    speaker: NDArray[np.int32]
    asks: BoolArray


class Catalog:
    """See the module."""

    def __init__(self) -> None:
        self._column = Columns(COLUMNS, spare=4)
        self._grow(1)
        self._memory_of_turn = np.zeros(1, np.int64)  # the memory of each turn, by the turn's rowid
        # Small numbers for the strings of a column, so that comparing 100,000 of them is quick.
        self._codes: dict[str, dict[str | None, int]] = {
            name: {None: 0} for name in ("user", "agent", "run", "kind", "speaker")
        }
        self._last: dict[tuple[int, int, int], int] = {}  # the memory of each scope's last turn
        self._named: dict[str, set[int]] = {}  # by word: the codes of the speakers that it names

    @property
    def end(self) -> int:
        """One more than the highest memory number so far."""
        return self._column.size

    def memory_bytes(self) -> int:
        return self._column.nbytes() + self._memory_of_turn.nbytes

    def apply(self, changes: Changes) -> None:
        """Take in what a store changed. Applying the same changes twice changes nothing."""
        if changes.full:
            self.__init__()  # type: ignore[misc]
        rowids = np.asarray(changes.rowids, np.int64)
        removed = np.asarray(changes.removed_rowids, np.int64)
        removed = removed[removed < self.end]
        self._column["live"][removed] = False
        gone = removed[~np.isin(removed, rowids)]
        turn_removed = bool(self._are_turns(gone).any())
        if not len(rowids):
            return self._place_all() if turn_removed else None
        known = np.zeros(len(rowids), np.bool_)
        held = rowids < self.end
        known[held] = self._column["place"][rowids[held]] > 0
        end = self.end
        self._grow(int(rowids.max()) + 1)
        self._write(changes, rowids, known)
        new = rowids[~known]
        turns = self._column["turn"][new[self._are_turns(new)]]
        # An import may bring turns that are older than those already placed.
        if turn_removed or (turns <= self._column["turn"][:end].max()).any():
            self._place_all()
        else:
            self._place(new)

    def _write(self, changes: Changes, rowids: IntArray, known: BoolArray) -> None:
        """Write the changed memories' columns, except places. known: (n,) bool, which had one."""
        column = self._column
        if known.any():
            column.replace("speaker")
            column.replace("asks")
        speakers = [
            _ROLE + (role or "") if name is None else name
            for name, role in zip(changes.speakers, changes.roles, strict=True)
        ]
        for name, strings in (
            ("user", changes.user_ids),
            ("agent", changes.agent_ids),
            ("run", changes.run_ids),
            ("kind", changes.kinds),
            ("speaker", speakers),
        ):
            codes = self._codes[name]
            column[name][rowids] = [codes.setdefault(value, len(codes)) for value in strings]
        column["live"][rowids] = True
        column["until"][rowids] = changes.until
        column["asks"][rowids] = changes.asks
        edited = rowids[known & (changes.turns == 0)]
        edited = edited[column["turn"][edited] > 0]
        if len(edited):
            column["turn"][edited] = 0
            column.replace("place")[edited] = edited
            column.replace("session")[edited] = edited
        self._learn_names(speakers)
        new = rowids[~known]
        column["turn"][new] = changes.turns[~known]
        column["time"][new] = changes.times[~known]

    def allowed(self, query: Query, rowids: IntArray | None = None) -> BoolArray:
        """(end,) bool: the live memories that a query may find. rowids: among these; None: all."""
        held = query.now if query.at is None else query.at
        allowed: BoolArray = self._column["live"] & (self._column["until"] > held)
        scope = query.scope
        for name, value in (
            ("user", scope.user_id),
            ("agent", scope.agent_id),
            ("run", scope.run_id),
        ):
            if value is not None:
                allowed &= self._column[name] == self._codes[name].get(value, UNUSED)
        if query.kinds is not None:
            wanted = [self._codes["kind"].get(kind, UNUSED) for kind in query.kinds]
            allowed &= np.isin(self._column["kind"], wanted)
        if rowids is not None:
            listed = np.zeros(self.end, np.bool_)
            listed[rowids[rowids < self.end]] = True
            allowed &= listed
        return allowed

    def soonest_end(self, memories: BoolArray) -> float:
        """When the first of `memories`, (end,) bool, stops being live: Unix seconds or inf."""
        return float(self._column["until"].min(initial=np.inf, where=memories))

    def places(self) -> Places:
        """The current places of all memories."""
        column = self._column
        return Places(
            *(column[n] for n in ("place", "session", "before", "after", "speaker", "asks"))
        )

    def by_user(self) -> Callable[[str], BoolArray]:
        """Returns a function that maps a user id to (end,) bool, the memories of that user."""
        users, codes = self._column["user"], self._codes["user"]
        return lambda user_id: users == codes.get(user_id, UNUSED)

    def speakers(self, memories: BoolArray) -> frozenset[int]:
        """The codes of the speakers of `memories`, (end,) bool."""
        said = np.bincount(self._column["speaker"], weights=memories)
        return frozenset(np.flatnonzero(said).tolist())

    def speakers_named(self, query_words: Iterable[str], among: frozenset[int]) -> list[int]:
        """The codes, out of `among`, of the speakers whose name contains one of the query's words.

        The words are in lower case. "I" and "my" name the user who has no name.
        """
        codes = {code for word in query_words for code in self._named.get(word, ())}
        return sorted(codes & among)

    def _grow(self, end: int) -> None:
        start = self.end
        self._column.grow(max(0, end - start))
        for name in COLUMNS:
            self._column[name][start:] = 0

    def _learn_names(self, speakers: Iterable[str]) -> None:
        for name in set(speakers):
            if name == _USER:
                naming: Iterable[str] = FIRST_PERSON
            else:
                naming = [] if name.startswith(_ROLE) else words(name)
            for word in naming:
                self._named.setdefault(word, set()).add(self._codes["speaker"][name])

    def of_kind(self, kind: str) -> Callable[[IntArray], BoolArray]:
        """Returns a function that maps rowids (n,) to (n,) bool, whether they are of this kind."""
        kinds, code = self._column["kind"], self._codes["kind"].get(kind, UNUSED)
        return lambda rowids: kinds[rowids] == code

    def _are_turns(self, rowids: IntArray) -> BoolArray:
        """Which of the memories `rowids` are turns themselves, not taken from one: (n,) bool."""
        return self.of_kind("turn")(rowids) & (self._column["turn"][rowids] > 0)

    def _place_all(self) -> None:
        """Compute the places of all live memories again, as if they had arrived together."""
        for name in ("place", "session", "before", "after"):
            self._column.replace(name)[:] = 0
        self._memory_of_turn = np.zeros(1, np.int64)
        self._last = {}
        self._place(np.flatnonzero(self._column["live"]))

    def _place(self, rowids: IntArray) -> None:
        """Place new memories: a turn beside the turns around it, any other memory at its turn."""
        column = self._column
        column["place"][rowids] = rowids
        column["session"][rowids] = rowids
        turns = column["turn"][rowids]
        is_turn = self._are_turns(rowids)
        highest = int(turns.max(initial=0))
        if highest >= len(self._memory_of_turn):
            grown = np.zeros(highest + 1 + highest // 4, np.int64)
            grown[: len(self._memory_of_turn)] = self._memory_of_turn
            self._memory_of_turn = grown
        self._memory_of_turn[turns[is_turn]] = rowids[is_turn]
        self._chain(rowids[is_turn])
        others = rowids[~is_turn & (turns > 0)]
        sources = self._memory_of_turn[column["turn"][others]]
        others, sources = others[sources > 0], sources[sources > 0]
        column["place"][others] = sources
        column["session"][others] = column["session"][sources]

    def _chain(self, rowids: IntArray) -> None:
        """Link the memories of turns to the ones said before and after them in their scope."""
        column = self._column
        scopes = np.stack([column[name][rowids] for name in ("user", "agent", "run")], axis=1)
        order = np.lexsort((column["turn"][rowids], *scopes.T))
        rowids, scopes = rowids[order], scopes[order]
        before = np.concatenate([[NOBODY], rowids[:-1]]).astype(np.int64)
        first = np.ones(len(rowids), np.bool_)
        first[1:] = np.any(scopes[1:] != scopes[:-1], axis=1)
        for i in np.flatnonzero(first).tolist():
            before[i] = self._last.get(tuple(scopes[i].tolist()), NOBODY)
        last = np.concatenate([first[1:], np.ones(min(1, len(first)), np.bool_)])
        for i in np.flatnonzero(last).tolist():
            self._last[tuple(scopes[i].tolist())] = int(rowids[i])
        follows = (before != NOBODY) & (
            np.abs(column["time"][before] - column["time"][rowids]) <= SESSION_GAP_S
        )
        # A session's number is that of its first memory. The first turn of a scope may continue an
        # older session.
        opens = first | ~follows
        sessions = np.where(follows, column["session"][before], rowids)
        sessions = sessions[np.maximum.accumulate(np.where(opens, np.arange(len(rowids)), 0))]
        column["session"][rowids] = sessions
        column.replace("after")
        column["before"][rowids[follows]] = before[follows]
        column["after"][before[follows]] = rowids[follows]
