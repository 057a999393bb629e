"""Which messages of an export the store has, or had until they were erased.

A message of a dated conversation is known by its minute and its text, and by its place among those
that share both. So what stands before it does not matter: an older message that was deleted since,
or an export that begins later. Its speaker only decides between equal messages, because people
rename their contacts. The minute is enough, because not every phone's export has seconds.

Knows stored turns and erased ids as values, and nothing of files and of the command line.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple

from edgemem.inputs import time_of
from edgemem.pipeline.chat_exports import without_marks
from edgemem.pipeline.importers import IMPORT_ID, import_ids
from edgemem.pipeline.ingest import imported_id
from edgemem.results import Scope, local_time
from edgemem.store.erasures import erasure_test

if TYPE_CHECKING:
    from edgemem.memory import Memory

__all__ = ["Found", "Imported", "Said", "erase_turns", "erased_before", "imported_turns"]
__all__ += ["recognised"]

Key = tuple[int, str] | str
"""A message's minute since 1970 and its text; of one without a time, its id."""

RENAMED = 0.5
"""Two speakers are one if one has at least this share of what the other says in the export."""
SHIFTED = 0.2
"""Least share of messages that are stored at other times. A zone with another summer time has
several shifts, and each has its share."""
SHIFTED_TEXTS = 3
"""Least number of different texts that show that an export has other times."""
_ZONE_STEP_MIN, _DAY_MIN = 15, 24 * 60  # zones differ by multiples of the first
_RARE = 3  # a text that is stored more often says little about times
_SAMPLE = 40  # messages by which a shift is found if only erased ones are known


class Imported(NamedTuple):
    """A stored turn that was imported. minute: since 1970. time: as it is stored."""

    id: str
    import_id: str
    role: str
    name: str | None
    minute: int
    text: str
    time: str


class Said(NamedTuple):
    """A message of an export.

    time: None in a conversation without times. former_ids: its ids by `importers.import_ids`.
    is_user: whether its speaker is the user, whose turns are stored without a name.
    """

    role: str
    name: str | None
    time: str | None
    text: str
    former_ids: Sequence[str]
    is_user: bool = False


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
            time, text = row["timestamp"], without_marks(row["content"])
            told = row["role"], row["name"], _minute(time), text, time
            found.append(Imported(row["id"], import_id, *told))
    return found


def erased_before(memory: Memory, scope: Mapping[str, Any]) -> Callable[[str], bool]:
    """A test of whether the turn of an import id was erased from exactly this scope."""
    is_erased, whose = erasure_test(memory.store), Scope(**scope)
    return lambda import_id: is_erased(imported_id(import_id, whose))


def recognised(
    said: Sequence[Said],
    turns: Sequence[Imported],
    is_erased: Callable[[str], bool],
    *,
    again: bool = False,
) -> list[Found]:
    """What is known of each message of an export, in order. No two have the same import id.

    again: an erased message counts as new, with an id that no erased turn has.
    """
    search = _Search(said, turns, is_erased)
    search.by_former_ids()
    shifts = search.shifts()
    for shift in shifts:
        search.by_key(shift)
    search.by_other_day()
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
        self, said: Sequence[Said], turns: Sequence[Imported], is_erased: Callable[[str], bool]
    ) -> None:
        self.said, self.turns, self.is_erased = said, turns, is_erased
        self.minutes = [None if one.time is None else _minute(one.time) for one in said]
        self.by_id = {turn.import_id: turn for turn in turns}
        self.by_minute: defaultdict[Key, list[Imported]] = defaultdict(list)
        for turn in turns:
            self.by_minute[turn.minute, turn.text].append(turn)
        self.known: dict[int, Found] = {}
        self.taken: set[str] = set()

    def by_former_ids(self) -> None:
        """Take the turns that an earlier version stored, if all before them is still the same."""
        for n, one in enumerate(self.said):
            for id in one.former_ids:
                if id in self.by_id and id not in self.taken:
                    self._take(n, self.by_id[id])
                    break

    def by_key(self, ahead_min: int) -> None:
        """Take the turns, and the erased ids, that have the keys of messages.

        ahead_min: how far times are ahead of those stored; other than 0 it needs evidence.
        """
        mine = self._matches(lambda n: self._key(n, ahead_min), own=True)
        if ahead_min == 0:
            self._take_all(mine)
        others = self._matches(lambda n: self._key(n, ahead_min), own=False, but=mine)
        if ahead_min == 0:
            by_speaker = defaultdict(list)
            for n, one in enumerate(self.said):
                by_speaker[one.role, one.name].append(n)
            for theirs in by_speaker.values():
                hits = {n: others[n] for n in theirs if n in others}
                self._take_all(hits if _share(theirs, hits) >= RENAMED else {})
        elif self._is_evidence(mine | others, SHIFTED, SHIFTED_TEXTS):
            self._take_all(mine | others, ahead_min)
        elif self.turns:
            return
        before = {} if ahead_min else self._ids_before()
        for n in self._left():
            id = next((id for id in before.get(n, ()) if self.is_erased(id)), None)
            id = id or next(self._ids(self._key(n, ahead_min)))
            if self.is_erased(id):
                self.taken.add(id)
                self.known[n] = Found(id, erased=True, ahead_min=ahead_min)

    def _ids_before(self) -> dict[int, list[str]]:
        """The ids that an earlier version gave to the messages that are left.

        They depend on all that was said before. So they are also made of the conversation as it
        was then: with the turns that the export lacks, and with the speakers' former names.
        """
        ids = {n: list(self.said[n].former_ids) for n in self._left()}
        if not ids or not self.known:
            return ids
        names: defaultdict[str | None, Counter[str | None]] = defaultdict(Counter)
        for n, its in self.known.items():
            if its.turn is not None and not self.said[n].is_user:
                names[self.said[n].name][its.turn.name] += 1
        mine = next((one.name for one in self.said if one.is_user), None)
        zoned = any(one.time and datetime.fromisoformat(one.time).tzinfo for one in self.said)
        told: list[tuple[tuple[int, float, int], dict[str, Any], int | None]] = []
        at, latest, ahead = {}, 0, 0
        for n, one in enumerate(self.said):
            found = self.known.get(n)
            ahead = ahead if found is None else found.ahead_min
            minute = self.minutes[n]
            latest = latest if minute is None else max(latest, minute - ahead)
            former = names[one.name].most_common(1)
            time = one.time
            if ahead and time is not None:
                moved = datetime.fromisoformat(time) - timedelta(minutes=ahead)
                time = moved.isoformat()
            name = former[0][0] if former else one.name
            told.append(((latest, n, 0), _told(one.role, name, time, one.text), n))
            if found is not None and found.turn is not None:
                at[found.turn.id] = n, latest
        for run in self._runs(at):
            n, latest = -1, 0
            for number, turn in enumerate(run):
                n, latest = at.get(turn.id, (n, max(latest, turn.minute)))
                if turn.id not in at:
                    time = turn.time if zoned else _naive(turn.time)
                    name = mine if turn.name is None and turn.role == "user" else turn.name
                    place = max(latest, turn.minute), n + 0.5, number
                    told.append((place, _told(turn.role, name, time, turn.text), None))
        told.sort(key=lambda each: each[0])
        for either_order in (True, False):
            made = import_ids([each[1] for each in told], seed="", either_order=either_order)
            for (_, _, of), id in zip(told, made, strict=True):
                if of in ids:
                    ids[of].append(id)
        return ids

    def _runs(self, at: Collection[str]) -> Iterator[list[Imported]]:
        """The turns that were stored one after another of this conversation. at: ids of those it
        has."""
        runs: list[list[Imported]] = []
        for turn in self.turns:
            if not runs or turn.minute < runs[-1][-1].minute - _DAY_MIN:
                runs.append([])
            runs[-1].append(turn)
        return (run for run in runs if sum(t.id in at for t in run) >= SHIFTED * len(run))

    def by_other_day(self) -> None:
        """Take the turns whose day and month have changed places, as a longer log may show."""
        hits = self._matches(self._other_day, own=True)
        hits |= self._matches(self._other_day, own=False, but=hits)
        if self._is_evidence(hits, RENAMED, 2):
            self._take_all(hits)

    def shifts(self) -> list[int]:
        """How far times may be ahead of those stored, in minutes, the likeliest first; and 0."""
        stored = defaultdict(list)
        for turn in self.turns:
            if turn.import_id not in self.taken:
                stored[turn.text].append(turn.minute)
        votes: Counter[int] = Counter()
        for n in self._left():
            minute, near = self.minutes[n], stored.get(self.said[n].text, ())
            if minute is not None and len(near) <= _RARE:
                votes.update(minute - other for other in near)
        likely = [ahead for ahead, _ in votes.most_common(8) if _is_of_a_zone(ahead)][:4]
        if not self.turns:
            likely = self._shifts_of_erased()
        return likely if 0 in likely else [*likely, 0]

    def results(self, *, again: bool) -> list[Found]:
        """What was found, with new ids for the messages that are new."""
        ahead = self.known[min(self.known)].ahead_min if self.known else 0
        results = []
        for n in range(len(self.said)):
            found = self.known.get(n)
            ahead = ahead if found is None else found.ahead_min
            if found is None or (again and found.erased):
                ids = (id for id in self._ids(self._key(n, ahead)) if not self.is_erased(id))
                found = Found(next(ids), ahead_min=ahead)
                self.taken.add(found.import_id)
            results.append(found)
        return results

    # -- of one message ------------------------------------------------------------------------

    def _key(self, n: int, ahead_min: int) -> Key:
        one, minute = self.said[n], self.minutes[n]
        return one.former_ids[0] if minute is None else (minute - ahead_min, one.text)

    def _other_day(self, n: int) -> Key | None:
        time = datetime.fromisoformat(self.said[n].time or "0001-01-01")
        if time.tzinfo or time.day > 12 or time.day == time.month:
            return None
        swapped = time.replace(month=time.day, day=time.month)
        return _minute(swapped.isoformat()), self.said[n].text

    def _ids(self, key: Key) -> Iterator[str]:
        """The ids of a key, without those of turns and of the export's other messages."""
        ids = (_import_id(key, place) for place in count())
        return (id for id in ids if id not in self.by_id and id not in self.taken)

    def _stored(self, key: Key) -> Iterator[Imported]:
        """The turns of a key: by their minute and text, and by the key's ids."""
        yield from self.by_minute.get(key, ())
        for place in count():
            id = _import_id(key, place)
            if id in self.by_id:
                yield self.by_id[id]
            elif not self.is_erased(id):
                return

    def _is_own(self, n: int, turn: Imported) -> bool:
        """Whether a turn has the speaker of a message."""
        return turn.name == self.said[n].name or (self.said[n].is_user and turn.name is None)

    # -- of all that are left ------------------------------------------------------------------

    def _left(self) -> list[int]:
        return [n for n in range(len(self.said)) if n not in self.known]

    def _matches(
        self, key_of: Callable[[int], Key | None], *, own: bool, but: Mapping[int, Imported] = {}
    ) -> dict[int, Imported]:
        """A free turn for each message that is left. own: of the same speaker, else of another."""
        used = {turn.import_id for turn in but.values()} | self.taken
        hits: dict[int, Imported] = {}
        for n in self._left():
            key = None if n in but else key_of(n)
            for turn in () if key is None else self._stored(key):
                fits = turn.role == self.said[n].role and self._is_own(n, turn) == own
                if fits and turn.import_id not in used:
                    used.add(turn.import_id)
                    hits[n] = turn
                    break
        return hits

    def _take_all(self, hits: Mapping[int, Imported], ahead_min: int = 0) -> None:
        for n, turn in hits.items():
            self._take(n, turn, ahead_min)

    def _take(self, n: int, turn: Imported, ahead_min: int = 0) -> None:
        self.taken.add(turn.import_id)
        self.known[n] = Found(turn.import_id, turn, ahead_min=ahead_min)

    def _is_evidence(self, hits: Collection[int], share: float, texts: int) -> bool:
        enough = len({self.said[n].text for n in hits}) >= texts
        return enough and _share(self._left(), hits) >= share

    def _shifts_of_erased(self) -> list[int]:
        longest = sorted(self._left(), key=lambda n: -len(self.said[n].text))[:_SAMPLE]
        dated = [n for n in longest if self.minutes[n] is not None]
        return [
            ahead
            for ahead in range(_ZONE_STEP_MIN - _DAY_MIN, _DAY_MIN, _ZONE_STEP_MIN)
            if sum(self.is_erased(_import_id(self._key(n, ahead), 0)) for n in dated)
            >= SHIFTED_TEXTS
        ]


def _naive(stored: str) -> str:
    """A stored time as a chat log has it: in this machine's zone, without the zone."""
    return datetime.fromisoformat(local_time(stored)).replace(tzinfo=None).isoformat()


def _told(role: str, name: str | None, time: str | None, text: str) -> dict[str, Any]:
    return {"role": role, "name": name, "timestamp": time, "content": text}


def _is_of_a_zone(ahead_min: int) -> bool:
    return ahead_min % _ZONE_STEP_MIN == 0 and abs(ahead_min) < _DAY_MIN


def _share(places: Sequence[int], hits: Collection[int]) -> float:
    """The share of hits among places from one before the first hit to one after the last."""
    at = [place for place, n in enumerate(places) if n in hits]
    return len(at) / len(places[max(at[0] - 1, 0) : at[-1] + 2]) if at else 0.0
