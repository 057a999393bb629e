"""Which messages of an export the store has, or had until they were erased.

A stored message is known by its minute, its speaker and its text, as not every phone's export has
seconds. An erased one is known by minute and text alone, so that no new name brings it back. In a
conversation without times a message is known by all that was said up to it.

A newer export may have another name for a contact, come from another time zone, or show that a day
was read as the month. Such a reading is taken if it knows enough different texts, and HALF of the
messages of their time. Otherwise its messages are new, as a lost message is worse than a doubled
one.

Knows stored turns and erased ids as values, and nothing of files and of the command line.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from itertools import count, groupby, takewhile
from typing import TYPE_CHECKING, Any, NamedTuple

from edgemem.inputs import time_of
from edgemem.pipeline.importers import IMPORT_ID
from edgemem.pipeline.ingest import imported_id
from edgemem.results import Scope
from edgemem.store.erasures import erasure_test

if TYPE_CHECKING:
    from edgemem.memory import Memory

__all__ = ["Found", "Imported", "Said", "erase_turns", "erased_before", "imported_turns"]
__all__ += ["recognised"]

Key = tuple[int, str] | str
"""A message's minute since 1970 and its text; of one without a time, its id."""

SWAPPED_TEXTS, RENAMED_TEXTS, SHIFTED_TEXTS = 2, 5, 10
"""Least numbers of different texts that show that day and month have changed places, that a speaker
has another name, and that an export has other times."""
HALF = 0.5
"""Least share of a conversation's messages that are there, in the time of those."""
_ZONE_STEP_MIN, _DAY_MIN = 15, 24 * 60  # zones differ by multiples of the first
_SAMPLE = 200  # messages by which another zone is found


class Imported(NamedTuple):
    """A stored turn that was imported. minute: since 1970."""

    id: str
    import_id: str
    role: str
    name: str | None
    minute: int
    text: str


class Said(NamedTuple):
    """A message of an export.

    time: None in a conversation without times; id: then the message's (`importers.import_ids`).
    is_user: whether its speaker is the user, whose turns are stored without a name. chat: number of
    its conversation in the file; the messages of one stand together.
    """

    role: str
    name: str | None
    time: str | None
    text: str
    id: str = ""
    is_user: bool = False
    chat: int = 0


class Found(NamedTuple):
    """What is known of a message.

    import_id: of the stored turn, or the one to store it by. turn: the stored turn. erased: whether
    it was erased. ahead_min: how far its time is ahead of that in the earlier import.
    """

    import_id: str
    turn: Imported | None = None
    erased: bool = False
    ahead_min: int = 0


def imported_turns(memory: Memory, scope: Mapping[str, Any]) -> list[Imported]:
    """The imported turns of exactly this scope, in their order, even of deleted memories."""
    found = []
    for row in memory.store.export_rows():
        if row["type"] != "turn":  # turns come first
            break
        import_id = row["metadata"].get(IMPORT_ID)
        if isinstance(import_id, str) and all(row[key] == value for key, value in scope.items()):
            said = row["role"], row["name"], _minute(row["timestamp"]), row["content"]
            found.append(Imported(row["id"], import_id, *said))
    return found


def erased_before(memory: Memory, scope: Mapping[str, Any]) -> Callable[[str], bool]:
    """A test of whether the turn of an import id was erased from exactly this scope."""
    is_erased, whose = erasure_test(memory.store), Scope(**scope)
    return lambda import_id: is_erased(imported_id(import_id, whose))


def recognised(
    said: Sequence[Said],
    turns: Iterable[Imported],
    is_erased: Callable[[str], bool],
    *,
    again: bool = False,
) -> list[Found]:
    """What is known of each message of an export, in order. No two have the same import id.

    again: an erased message counts as new, with an id that no erased turn has.
    """
    search = _Search(said, turns, is_erased)
    search.read()
    return search.results(again=again)


def erase_turns(memory: Memory, turn_ids: Sequence[str]) -> None:
    """Leave no trace of turns and of what was taken from them, as `Memory.erase` does."""
    memory._erased((), turn_ids)


def _minute(time: str) -> int:
    return int(datetime.fromisoformat(time_of(time) or "").timestamp() // 60)


def _import_id(key: Key, place: int) -> str:
    """The id of a message. place: among those that have its key, from 0."""
    if isinstance(key, str) and place == 0:
        return key
    return hashlib.sha256(json.dumps([key, place]).encode()).hexdigest()[:32]


class _Search:
    """Which messages of an export are known, and which turns and ids are taken by them."""

    def __init__(
        self, said: Sequence[Said], turns: Iterable[Imported], is_erased: Callable[[str], bool]
    ) -> None:
        self.said, self.is_erased = said, is_erased
        self.chats = [[*ns] for _, ns in groupby(range(len(said)), key=lambda n: said[n].chat)]
        self.minutes = [0 if one.time is None else _minute(one.time) for one in said]
        self.by_id: dict[str, Imported] = {}
        self.by_minute: defaultdict[Key, list[Imported]] = defaultdict(list)
        for turn in turns:
            self.by_id[turn.import_id] = turn
            self.by_minute[turn.minute, turn.text].append(turn)
        self.known: dict[int, Found] = {}
        self.taken: set[str] = set()

    def read(self) -> None:
        """Take what is known of each conversation, in each reading of its times."""
        for chat in self.chats:
            self._take(self._as_read(chat, self._key))
        shifts = self._shifts([n for n in self._left(range(len(self.said))) if self._is_local(n)])
        for chat in self.chats:
            if not all(map(self._is_local, left := self._left(chat))):
                continue
            swapped = self._as_read(left, self._other_day)
            if self._are_there(chat, swapped, SWAPPED_TEXTS):
                self._take(swapped)
            for ahead in shifts:
                left = self._left(chat)
                shifted = self._as_read(left, partial(self._key, ahead_min=ahead))
                if self._are_there(chat, shifted, SHIFTED_TEXTS):
                    self._take(shifted, ahead)

    def results(self, *, again: bool) -> list[Found]:
        """What was found, with new ids for the messages that are new."""
        results: list[Found] = []
        new: dict[Key, Iterator[str]] = {}
        for chat in self.chats:
            ahead = next((self.known[n].ahead_min for n in chat if n in self.known), 0)
            for n in chat:
                found = self.known.get(n)
                ahead = ahead if found is None else found.ahead_min
                if found is None or (again and found.erased):
                    key = self._key(n, ahead)
                    found = Found(next(new.setdefault(key, self._new_ids(key))), ahead_min=ahead)
                    self.taken.add(found.import_id)
                results.append(found)
        return results

    def _left(self, chat: Sequence[int]) -> list[int]:
        return [n for n in chat if n not in self.known]

    def _take(self, found: Mapping[int, Found], ahead_min: int = 0) -> None:
        for n, one in found.items():
            self.known[n] = one._replace(ahead_min=ahead_min)
            self.taken.add(one.import_id)

    # -- one reading of a conversation ---------------------------------------------------------

    def _as_read(
        self, left: Sequence[int], key_of: Callable[[int], Key | None]
    ) -> dict[int, Found]:
        """What is known of messages by their keys: as turns of their speakers, as turns of the
        names that the speakers had, or as erased."""
        hits = self._turns(left, key_of, self._is_own, {})
        speakers = defaultdict(list)
        for n in left:
            if n not in hits:
                speakers[self.said[n].role, self.said[n].name].append(n)
        for theirs in speakers.values():
            for former in {turn.name for n in theirs for turn in self._stored(key_of(n))}:
                was = self._turns(theirs, key_of, partial(self._is_by, name=former), hits)
                if was and self._are_there(theirs, was, RENAMED_TEXTS, beside=hits):
                    hits |= was
        found = {n: Found(turn.import_id, turn) for n, turn in hits.items()}
        gone: dict[Key, Iterator[str]] = {}
        for n in left:
            if n not in found and (key := key_of(n)) is not None:
                erased = next(gone.setdefault(key, self._erased(key)), None)
                if erased is not None:
                    found[n] = Found(erased, erased=True)
        return found

    def _turns(
        self,
        left: Sequence[int],
        key_of: Callable[[int], Key | None],
        fits: Callable[[int, Imported], bool],
        taken: Mapping[int, Imported],
    ) -> dict[int, Imported]:
        """A turn for each message that has one, each turn once. taken: those of other messages."""
        used = {turn.import_id for turn in taken.values()}
        hits: dict[int, Imported] = {}
        for n in left:
            for turn in () if n in taken else self._stored(key_of(n)):
                is_free = turn.import_id not in used and turn.import_id not in self.taken
                if is_free and turn.role == self.said[n].role and fits(n, turn):
                    used.add(turn.import_id)
                    hits[n] = turn
                    break
        return hits

    def _are_there(
        self,
        chat: Sequence[int],
        hits: Collection[int],
        least_texts: int,
        beside: Collection[int] = (),
    ) -> bool:
        """Whether a reading knows enough of a conversation, or of what a speaker said in it.
        beside: messages of the others that are there."""
        if len({self.said[n].text for n in (*hits, *beside)}) < least_texts:
            return False
        first, last = min(hits), max(hits)
        span = [n in hits or n in self.known for n in chat if first <= n <= last]
        return sum(span) >= HALF * len(span)

    def _shifts(self, left: Sequence[int]) -> list[int]:
        """How far times may be ahead of those stored or erased, in minutes, the likeliest first.
        Only the longest texts are tried, because these are rare."""
        texts = {self.said[n].text: n for n in left}
        sample = [texts[text] for text in sorted(texts, key=len, reverse=True)[:_SAMPLE]]
        votes: Counter[int] = Counter()
        for ahead in range(_ZONE_STEP_MIN - _DAY_MIN, _DAY_MIN, _ZONE_STEP_MIN):
            keys = ((n, self._key(n, ahead)) for n in sample)
            there = (
                any(self._is_own(n, turn) for turn in self._stored(key))
                or self.is_erased(_import_id(key, 0))
                for n, key in keys
            )
            votes[ahead] = sum(there)
        return [ahead for ahead, most in votes.most_common() if most >= SHIFTED_TEXTS]

    # -- one message ---------------------------------------------------------------------------

    def _key(self, n: int, ahead_min: int = 0) -> Key:
        one = self.said[n]
        return one.id if one.time is None else (self.minutes[n] - ahead_min, one.text)

    def _other_day(self, n: int) -> Key | None:
        """The key of a message whose day and month change places; None if they cannot."""
        time = datetime.fromisoformat(self.said[n].time or "0001-01-01")
        if time.day > 12 or time.day == time.month:
            return None
        return _minute(time.replace(month=time.day, day=time.month).isoformat()), self.said[n].text

    def _is_local(self, n: int) -> bool:
        """Whether a message has a time without a zone, which another phone writes otherwise."""
        time = self.said[n].time
        return time is not None and datetime.fromisoformat(time).tzinfo is None

    def _is_own(self, n: int, turn: Imported) -> bool:
        """Whether a turn has the speaker of a message. The id of one without a time tells it."""
        one = self.said[n]
        return one.time is None or turn.name == one.name or (one.is_user and turn.name is None)

    def _is_by(self, _n: int, turn: Imported, name: str | None) -> bool:
        return turn.name == name

    def _stored(self, key: Key | None) -> Iterable[Imported]:
        if isinstance(key, str):
            return (self.by_id[id] for id in self._used_ids(key) if id in self.by_id)
        return self.by_minute.get(key, ()) if key else ()

    def _erased(self, key: Key) -> Iterator[str]:
        """The ids of erased turns of a key that no message has taken."""
        ids = self._used_ids(key)
        return (id for id in ids if id not in self.by_id and id not in self.taken)

    def _used_ids(self, key: Key) -> Iterator[str]:
        """The ids of a key that stored or erased turns have; they have the first places."""
        ids = (_import_id(key, place) for place in count())
        return takewhile(lambda id: id in self.by_id or self.is_erased(id), ids)

    def _new_ids(self, key: Key) -> Iterator[str]:
        for place in count():
            id = _import_id(key, place)
            if id not in self.by_id and id not in self.taken and not self.is_erased(id):
                yield id
