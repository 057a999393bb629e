"""Which messages of an export the store has, or had until they were erased.

A conversation that begins as before is known by the ids of `importers.import_ids`, which depend on
all that was said up to a message. The same speaker, minute and text tell a message of a changed
conversation: an older message was deleted since, or the export begins later. Equal texts of one
minute also stand in different chats. So these count only if the conversation is an export of a chat
that is stored: TEXTS different texts and HALF of the messages of their time span are there, or were
erased. Otherwise a message is new, because a lost message is worse than a doubled one.

The minute is enough, because not every phone's export has seconds. Knows stored turns and erased
ids as values, and nothing of files and of the command line.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import accumulate, count, groupby
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

TEXTS = 5
"""Least number of different texts that show that a conversation, or a speaker, is stored."""
SHIFTED_TEXTS = 10
"""Least number of different texts that show that an export has other times."""
HALF = 0.5
"""Least share of a conversation's messages that are there, in the time span of those."""
_RUN = 0.2  # least share of the turns stored one after another that a conversation has
_ZONE_STEP_MIN, _DAY_MIN = 15, 24 * 60  # zones differ by multiples of the first
_NEAR = 6  # messages in a row, of which HALF must be there
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
    is_user: whether its speaker is the user, whose turns are stored without a name. chat: number of
    its conversation in the file; the messages of one stand together.
    """

    role: str
    name: str | None
    time: str | None
    text: str
    former_ids: Sequence[str]
    is_user: bool = False
    chat: int = 0


class Found(NamedTuple):
    """What is known of a message.

    import_id: of the stored turn, or the one to store it by. turn: the stored turn. erased: whether
    it was erased. ahead_min: how far its time is ahead of that in the earlier import.
    doubtful: whether it is new only because too few others tell that its chat is stored.
    """

    import_id: str
    turn: Imported | None = None
    erased: bool = False
    ahead_min: int = 0
    doubtful: bool = False


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
    for chat in search.chats:
        for shift in shifts:
            search.by_key(chat, shift)
        search.by_other_day(chat)
        search.by_ids_before(chat)
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
        self.spans: dict[tuple[str, str | None], tuple[int, int]] = {}
        for turn in turns:
            self.by_minute[turn.minute, turn.text].append(turn)
            who, minute = (turn.role, turn.name), turn.minute
            first, last = self.spans.get(who, (minute, minute))
            self.spans[who] = min(first, minute), max(last, minute)
        self.chats = [list(ns) for _, ns in groupby(range(len(said)), lambda n: said[n].chat)]
        self.opening: set[int] = set()
        for chat in self.chats:
            texts: set[str] = set()
            speakers: set[tuple[str, str | None]] = set()
            for n in chat:
                if len(texts) >= TEXTS and len(speakers) > 1:
                    break
                self.opening.add(n)
                texts.add(said[n].text)
                speakers.add((said[n].role, said[n].name))
        self.known: dict[int, Found] = {}
        self.taken: set[str] = set()
        self.doubtful: set[int] = set()
        self.places: dict[Key, int] = {}

    def by_former_ids(self) -> None:
        """Take what stands in conversations that begin as they did.

        The first messages tell that by their ids, which depend on all before. Those after them have
        ids of their own, so they are taken up to the first that is neither there nor erased.
        """
        for chat in self.chats:
            begins = True
            free: dict[Key, list[Imported]] = {}
            for n in chat:
                for id in self.said[n].former_ids:
                    turn = next(
                        (t for t in self._of_ids(id) if t.import_id not in self.taken), None
                    )
                    if turn is not None:
                        self._take(n, turn)
                        break
                else:
                    if n in self.opening:
                        self._take_erased(n, self.said[n].former_ids)
                    elif begins:
                        key = self._key(n, 0)
                        hits = self._matches([n], lambda n: self._key(n, 0), own=True, free=free)
                        self._take_all(hits)
                        if not hits:
                            self._take_erased(n, [*self.said[n].former_ids, next(self._ids(key))])
                begins = begins and n in self.known

    def by_key(self, chat: Sequence[int], ahead_min: int) -> None:
        """Take the turns, and the erased ids, that have the keys of messages, if it is the chat's.

        ahead_min: how far times are ahead of those stored.
        """
        left = [n for n in chat if n not in self.known and self.minutes[n] is not None]
        if not left:
            return
        mine = self._matches(left, lambda n: self._key(n, ahead_min), own=True)
        if ahead_min and self.turns and not mine:
            return
        others = self._matches(left, lambda n: self._key(n, ahead_min), own=False, but=mine)
        others = self._renamed(others)
        gone: dict[int, str] = {}
        for n in left:
            if n not in mine and n not in others:
                id = next(self._ids(self._key(n, ahead_min)))
                if self.is_erased(id):
                    self.taken.add(id)
                    gone[n] = id
        sure = self._dense(chat, {*mine, *others, *gone, *(n for n in chat if n in self.known)})
        if stray := {id for n, id in gone.items() if n not in sure}:
            self.taken -= stray
            self.places.clear()
        alike = {*mine, *gone}
        mine, others = ({n: t for n, t in of.items() if n in sure} for of in (mine, others))
        gone = {n: id for n, id in gone.items() if n in sure}
        hits = mine if ahead_min else mine | others
        if not self._is_there(chat, hits, gone, ahead_min, mine | ({} if ahead_min else others)):
            if ahead_min == 0 and len(alike) >= HALF * len(chat):
                self.doubtful |= alike
            self.taken.difference_update(gone.values())
            self.places.clear()
            return
        self._take_all(mine, ahead_min)
        self._take_all(others, ahead_min)
        for n, id in gone.items():
            self.known[n] = Found(id, erased=True, ahead_min=ahead_min)

    def _renamed(self, others: Mapping[int, Imported]) -> dict[int, Imported]:
        """The turns of other names whose speaker has enough of them to be the same."""
        texts = defaultdict(set)
        for n in others:
            texts[self.said[n].role, self.said[n].name].add(self.said[n].text)
        who = {speaker for speaker, theirs in texts.items() if len(theirs) >= TEXTS}
        return {n: t for n, t in others.items() if (self.said[n].role, self.said[n].name) in who}

    def _is_there(
        self,
        chat: Sequence[int],
        hits: Mapping[int, Imported],
        gone: Collection[int],
        ahead_min: int,
        mine: Collection[int],
    ) -> bool:
        """Whether a conversation is one of which the store has, or had, enough.

        hits: turns for its messages. gone: erased ones. mine: those of the same speaker,
        also under a former name.
        """
        known = [n for n in chat if n in self.known]
        found = {*hits, *gone}
        texts = {self.said[n].text for n in ({*found} if ahead_min else {*found, *known})}
        if len(texts) < (SHIFTED_TEXTS if ahead_min else TEXTS):
            return False
        there = found.union(known)
        turns = {n: t for n in known if (t := self.known[n].turn) is not None} | dict(hits)
        speakers = {
            (self.said[n].role, self.said[n].name)
            for n in {*mine, *known, *(() if self.turns else gone)}
        }
        at = [m for n in there if (m := self.minutes[n]) is not None]
        first, last = min(at, default=0), max(at, default=0)
        if ahead_min and len(speakers) < min(2, self._speakers(chat)):
            return False
        if ahead_min or len(speakers) < 2:
            # One speaker may have said the same in several chats, so the whole span counts in which
            # the store has those who are recognised.
            spans = [self.spans[who] for who in {(t.role, t.name) for t in turns.values()}]
            begin = max((span[0] for span in spans), default=first) + ahead_min
            end = min((span[1] for span in spans), default=last) + ahead_min
            if begin <= end:
                first, last = min(first, begin), max(last, end)
        span = [n for n in chat if (m := self.minutes[n]) is not None and first <= m <= last]
        return bool(at) and len(there.intersection(span)) >= HALF * len(span)

    def _dense(self, chat: Sequence[int], there: Collection[int]) -> set[int]:
        """Those that stand among others: HALF of the messages just before or after are there.

        A single one far from all others is most likely of another chat.
        """
        size = min(_NEAR, len(chat))
        sums = [0, *accumulate(n in there for n in chat)]
        full = [sums[at + size] - sums[at] >= HALF * size for at in range(len(chat) - size + 1)]
        return {
            n
            for at, n in enumerate(chat)
            if n in there
            and any(full[start] for start in (at, at - size + 1) if 0 <= start < len(full))
        }

    def _speakers(self, chat: Sequence[int]) -> int:
        return len({(self.said[n].role, self.said[n].name) for n in chat})

    def by_ids_before(self, chat: Sequence[int]) -> None:
        """Take the erased ids that depend on what was said before, as it was then."""
        ahead = next((self.known[n].ahead_min for n in chat if n in self.known), 0)
        for n, ids in self._ids_before(chat).items():
            self._take_erased(n, ids, ahead)

    def _take_erased(self, n: int, ids: Sequence[str], ahead_min: int = 0) -> None:
        id = next((id for id in ids if id not in self.taken and self.is_erased(id)), None)
        if id is not None:
            self.taken.add(id)
            self.known[n] = Found(id, erased=True, ahead_min=ahead_min)

    def _ids_before(self, chat: Sequence[int]) -> dict[int, list[str]]:
        """The ids by all that was said before, of the messages that are left.

        They depend on all that was said before. So they are also made of the conversation as it
        was then: with the turns that the export lacks, and with the speakers' former names.
        """
        ids = {n: list(self.said[n].former_ids) for n in chat if n not in self.known}
        known = {n: self.known[n] for n in chat if n in self.known}
        if not ids or not known:
            return ids
        names: defaultdict[str | None, Counter[str | None]] = defaultdict(Counter)
        for n, its in known.items():
            if its.turn is not None and not self.said[n].is_user:
                names[self.said[n].name][its.turn.name] += 1
        mine = next((self.said[n].name for n in chat if self.said[n].is_user), None)
        times = [time for n in chat if (time := self.said[n].time)]
        zoned = any(datetime.fromisoformat(time).tzinfo for time in times)
        told: list[tuple[tuple[int, float, int], dict[str, Any], int | None]] = []
        at, latest, ahead = {}, 0, known[min(known)].ahead_min
        for n in chat:
            one, found = self.said[n], known.get(n)
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
        messages = [each[1] for each in told]
        for written in (messages, [_to_the_minute(message) for message in messages]):
            for either_order in (True, False):
                made = import_ids(written, seed="", either_order=either_order)
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
        return (run for run in runs if sum(t.id in at for t in run) >= _RUN * len(run))

    def by_other_day(self, chat: Sequence[int]) -> None:
        """Take the turns whose day and month have changed places, as a longer log may show."""
        left = [n for n in chat if n not in self.known]
        hits = self._matches(left, self._other_day, own=True)
        if self._is_there(chat, hits, (), 0, hits):
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
        results = []
        for chat in self.chats:
            ahead = next((self.known[n].ahead_min for n in chat if n in self.known), 0)
            few = len({self.said[n].text for n in chat if n in self.known}) < TEXTS
            for n in chat:
                found = self.known.get(n)
                ahead = ahead if found is None else found.ahead_min
                if found is None or (again and found.erased):
                    key = self._key(n, ahead)
                    if (few or found is not None) and n in self.opening:
                        key = self.said[n].former_ids[-1]
                    ids = (id for id in self._ids(key) if not self.is_erased(id))
                    found = Found(next(ids), ahead_min=ahead, doubtful=n in self.doubtful)
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
        start = self.places.get(key, 0)
        while (id := _import_id(key, start)) in self.by_id or id in self.taken:
            start += 1
        self.places[key] = start
        ids = (_import_id(key, place) for place in count(start))
        return (id for id in ids if id not in self.by_id and id not in self.taken)

    def _stored(self, key: Key) -> Iterator[Imported]:
        """The turns of a key: by their minute and text, and by the key's ids."""
        yield from self.by_minute.get(key, ())
        yield from self._of_ids(key)

    def _of_ids(self, key: Key) -> Iterator[Imported]:
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
        self,
        left: Sequence[int],
        key_of: Callable[[int], Key | None],
        *,
        own: bool,
        but: Mapping[int, Imported] = {},
        free: dict[Key, list[Imported]] | None = None,
    ) -> dict[int, Imported]:
        """A free turn for each of these messages.

        own: of the same speaker, else of another. free: the turns of keys met before.
        """
        used = {turn.import_id for turn in but.values()}
        free = {} if free is None else free
        hits: dict[int, Imported] = {}
        for n in left:
            key = None if n in but else key_of(n)
            if key is None:
                continue
            if key not in free:
                free[key] = list({t.import_id: t for t in self._stored(key)}.values())
            for turn in free[key]:
                fits = turn.role == self.said[n].role and self._is_own(n, turn) == own
                if fits and turn.import_id not in used and turn.import_id not in self.taken:
                    used.add(turn.import_id)
                    hits[n] = turn
                    free[key].remove(turn)
                    break
        return hits

    def _take_all(self, hits: Mapping[int, Imported], ahead_min: int = 0) -> None:
        for n, turn in hits.items():
            self._take(n, turn, ahead_min)

    def _take(self, n: int, turn: Imported, ahead_min: int = 0) -> None:
        self.taken.add(turn.import_id)
        self.known[n] = Found(turn.import_id, turn, ahead_min=ahead_min)

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


def _to_the_minute(message: dict[str, Any]) -> dict[str, Any]:
    if message["timestamp"] is None:
        return message
    time = datetime.fromisoformat(message["timestamp"])
    return {**message, "timestamp": time.replace(second=0).isoformat()}


def _is_of_a_zone(ahead_min: int) -> bool:
    return ahead_min % _ZONE_STEP_MIN == 0 and abs(ahead_min) < _DAY_MIN
