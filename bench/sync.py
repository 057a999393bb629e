"""Do syncing devices end with the same memory, whatever happens to their files, and at what cost?

Schedules: two to five devices with skewed clocks write, edit, contradict, mark and erase. In half
of the schedules they begin as copies of one store, and write and erase before they are paired.
Files are carried between their folders in any order, twice, late, cut short, damaged or not at all.
Exchanges are killed half way. Once the faults end, all stores must have the same logical hash and
hold whatever was acknowledged and not erased. No store and no file may hold anything that was
erased.

Cost: two devices sync a store of `--memories` with MiniLM's dimension through a folder.
"""

from __future__ import annotations

import json
import tempfile
import time
import uuid
import zlib
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from bench import report
from edgemem.results import Entity, Picture, Scope
from edgemem.store import NewMemory, NewRelation, Store, StoredTurn
from edgemem.store.receipts import add_mark, marks, remove_mark, set_never_send
from edgemem.store.sync import begin, own_device, unpack
from edgemem.sync.exchange import Directory, Synced, exchange, new_secret, unseal

DIM = 4
HOUR = 3_600_000 << 16  # in units of the hybrid clock
ADA = Scope(user_id="ada")
WHEN = "2026-11-25T10:{:02}:{:02}.000+00:00"


_LOGICAL = (
    "SELECT 'turn', id, user_id, agent_id, run_id, role, name, content, timestamp, metadata, "
    "created_at FROM turns",
    "SELECT 'memory', id, kind, memory, search_text, user_id, agent_id, run_id, created_at, "
    "updated_at, valid_from, expires_at, deleted_at, valid_to, metadata FROM memories",
    "SELECT 'source', m.id, t.id FROM memories m JOIN memory_sources o ON o.memory = m.rowid "
    "JOIN turns t ON t.rowid = o.turn",
    "SELECT 'image', m.id, l.image, l.caption, l.caption_by FROM memory_images l "
    "JOIN memories m ON m.rowid = l.memory",
    "SELECT 'history', memory_id, id, old_memory, new_memory, event, created_at, updated_at, "
    "is_deleted, actor_id, role FROM history",
    "SELECT 'never', uid, created_at, user_id, agent_id, run_id, pattern FROM never_send",
    "SELECT 'relation', m.id, r.label, s.type, s.normalised, t.type, t.normalised, r.valid_from, "
    "r.valid_to, b.id FROM relations r JOIN memories m ON m.rowid = r.memory JOIN entities s ON "
    "s.id = r.source JOIN entities t ON t.id = r.target LEFT JOIN memories b "
    "ON b.rowid = r.invalidated_by",
    "SELECT 'erased', id FROM sync_rows WHERE kind = 'erased'",
)


def digest(store: Store) -> str:
    """A hash of all synced content but vectors; two devices with the same content have the same."""
    whole = sha256()
    with store.snapshot() as connection:
        for sql in _LOGICAL:
            rows = [list(row) for row in connection.execute(sql)]
            for row in rows:
                if row[0] == "memory":
                    row[-1] = json.loads(row[-1])
            for line in sorted(json.dumps(row, sort_keys=True) for row in rows):
                whole.update(line.encode() + b"\n")
    return whole.hexdigest()


class Killed(Exception):
    """Raised when a device is killed in the middle of an exchange."""


class Shelf:
    """A sync folder in memory. writes_left: the writes that succeed before the device is killed."""

    def __init__(self) -> None:
        self.files: dict[tuple[str, str], bytes] = {}
        self.writes_left: int | None = None

    def names(self) -> dict[str, dict[str, int]]:
        found: dict[str, dict[str, int]] = {}
        for (device, name), data in self.files.items():
            found.setdefault(device, {})[name] = len(data)
        return found

    def read(self, device: str, name: str) -> bytes | None:
        return self.files.get((device, name))

    def write(self, device: str, name: str, data: bytes) -> None:
        self._step()
        self.files[device, name] = data

    def delete(self, device: str, name: str) -> None:
        self._step()
        self.files.pop((device, name), None)

    def _step(self) -> None:
        if self.writes_left is not None:
            self.writes_left -= 1
            if self.writes_left < 0:
                raise Killed


class Device:
    """A store, the shared folder as the device sees it, and how far ahead the device's clock is."""

    def __init__(self, shelf: Shelf, random: Random) -> None:
        self.store = Store.open(":memory:")
        self.shelf, self.skew = shelf, random.randrange(6) * HOUR
        # Device ids decide between versions of the same time, so the seed must fix them.
        self.first_id = f"{random.getrandbits(64):016x}"

    @property
    def paired(self) -> bool:
        return own_device(self.store) is not None

    def pair(self, secret: bytes) -> None:
        begin(self.store, secret)
        with self.store.transaction() as tx, tx.step() as connection:
            for table in ("sync_self", "sync_rows"):
                connection.execute(f"UPDATE {table} SET device = ?", (self.first_id,))

    @property
    def id(self) -> str:
        return me.device if (me := own_device(self.store)) else self.first_id

    def stamp(self, kind: str, id: str) -> tuple[int, str]:
        sql = "SELECT clock, device FROM sync_rows WHERE kind = ? AND id = ?"
        ((clock, device),) = self.store.select(sql, kind, id)
        return clock, device

    def live(self) -> list[str]:
        sql = "SELECT id FROM memories WHERE deleted_at IS NULL ORDER BY id"
        return [row[0] for row in self.store.select(sql)]


class World:
    """Devices, what was acknowledged on them, and what happens to the files between them.

    one_folder: all devices see the same folder, as on a network drive; else each device has a copy,
    as with Syncthing. copies: the devices begin as copies of one store, each paired when it first
    syncs; else they are empty and paired.
    """

    def __init__(self, devices: int, *, one_folder: bool, copies: bool, random: Random) -> None:
        self.secret = new_secret()
        shared = Shelf()
        self.devices = [Device(shared if one_folder else Shelf(), random) for _ in range(devices)]
        self.one_folder = one_folder
        self.count = 0
        self.past: list[tuple[tuple[str, str], bytes]] = []  # earlier versions of files
        self.texts: dict[str, list[tuple[tuple[int, str], str]]] = {}  # acknowledged, with versions
        self.links: set[tuple[str, str]] = set()
        self.roots: set[str] = set()
        first, *others = self.devices
        for _ in range(8 * copies):
            self.act(first, random)
        for device in others if copies else ():
            first.store._writer.backup(device.store._writer)
        for device in () if copies else self.devices:
            self.pair(device)

    def pair(self, device: Device) -> None:
        """Pair a device, unless it is paired; from now on its rows have versions."""
        if not device.paired:
            device.pair(self.secret)
            for id, text in device.store.select("SELECT id, memory FROM memories"):
                self._noted(device, id, text)

    # -- what people do ------------------------------------------------------------------------

    def act(self, device: Device, random: Random) -> None:
        """One acknowledged write on a device."""
        with device.store.transaction() as tx, tx.step() as connection:
            connection.execute(
                "UPDATE sync_self SET clock = max(clock, CAST((julianday('now') - 2440587.5) "
                "* 86400000 AS INTEGER) * 65536 + ?)",
                (device.skew,),
            )
        live = device.live()
        acts = [self._add, self._add, self._edit, self._contradict, self._delete, self._mark,
                self._relate, self._erase, self._never, self._show]  # fmt: skip
        act = random.choice(acts) if live else self._add
        act(device, random, live)

    def _new(self, what: str) -> str:
        self.count += 1
        return f"{what}{self.count}"

    def _at(self) -> str:
        return WHEN.format(self.count // 60 % 60, self.count % 60)

    def _vectors(self) -> np.ndarray:
        return np.full((1, DIM), self.count % 7, np.float32)

    def _said(self, tx: Any, *, with_memory: bool = True) -> tuple[str, str]:
        """Add a turn; returns its id and its text, which a memory can be made of."""
        turn, text = self._new("turn"), self._new("words")
        tx.add_turn(
            StoredTurn(id=turn, scope=ADA, role="user", content=text, timestamp=self._at(),
                       created_at=self._at())
        )  # fmt: skip
        return turn, text

    def _remember(self, tx: Any, turn: str, text: str, kind: Any = "fact") -> str:
        id = self._new("memory")
        tx.add_memory(
            NewMemory(id=id, kind=kind, memory=text, search_text=text, scope=ADA,
                      created_at=self._at(), vectors=self._vectors(), sources=(turn,),
                      metadata={"of": text})
        )  # fmt: skip
        self.links.add((id, turn))
        return id

    def _noted(self, device: Device, id: str, text: str) -> None:
        if device.paired:
            self.texts.setdefault(id, []).append((device.stamp("memory", id), text))

    def _add(self, device: Device, random: Random, live: Sequence[str]) -> None:
        with device.store.transaction() as tx:
            turn, text = self._said(tx)
            ids = [self._remember(tx, turn, text, "turn")]
            if random.random() < 0.5:
                ids.append(self._remember(tx, turn, text))
            if random.random() < 0.2:
                self._said(tx)  # a turn that no memory cites
        for id in ids:
            self._noted(device, id, text)

    def _edit(self, device: Device, random: Random, live: Sequence[str]) -> None:
        id = random.choice(live)
        with device.store.transaction() as tx:
            turn, text = self._said(tx)
            other = self._remember(tx, turn, text, "turn")
            tx.update_memory(
                id, memory=text, search_text=text, vectors=self._vectors(),
                updated_at=self._at(), sources=(turn,),
            )  # fmt: skip
            self.links.add((id, turn))
        self._noted(device, id, text)
        self._noted(device, other, text)

    def _contradict(self, device: Device, random: Random, live: Sequence[str]) -> None:
        old = random.choice(live)
        with device.store.transaction() as tx:
            turn, text = self._said(tx)
            new = self._remember(tx, turn, text)
            tx.invalidate(old, self._at(), at=self._at())
            self._tell(tx, new, random)
            tx.end_relations(old, self._at(), new)
        self._noted(device, new, text)

    def _delete(self, device: Device, random: Random, live: Sequence[str]) -> None:
        id = random.choice(live)
        with device.store.transaction() as tx:
            tx.delete_memory(id, self._at())
        text = device.store.get([id], include_deleted=True)[id].memory
        self._noted(device, id, text)

    def _mark(self, device: Device, random: Random, live: Sequence[str]) -> None:
        with device.store.transaction() as tx:
            set_never_send(tx, random.choice(live), random.random() < 0.7)

    def _relate(self, device: Device, random: Random, live: Sequence[str]) -> None:
        with device.store.transaction() as tx:
            self._tell(tx, random.choice(live), random)

    def _tell(self, tx: Any, id: str, random: Random) -> None:
        ada = Entity("Ada", "person", ("Addie",) if random.random() < 0.3 else ())
        place = Entity(random.choice(("Oslo", "Rome", "Bonn")), "place")
        tx.set_relations(id, [NewRelation(ada, "lives_in", place)], 1)

    def _never(self, device: Device, random: Random, live: Sequence[str]) -> None:
        there = marks(device.store)
        with device.store.transaction() as tx:
            if there and random.random() < 0.5:
                remove_mark(tx, random.choice(there).id)
            else:
                add_mark(tx, pattern=self._new("pattern"))

    def _show(self, device: Device, random: Random, live: Sequence[str]) -> None:
        id = random.choice(live)
        with device.store.transaction() as tx:
            shown = (
                "SELECT 1 FROM memory_images l JOIN memories m ON m.rowid = l.memory WHERE m.id = ?"
            )
            if device.store.select(shown, id):
                tx.set_caption(id, self._new("caption"), "user")
                return
            data = bytes([random.randrange(3)])  # several memories may share an image
            tx.add_image(
                id,
                Picture(
                    id=sha256(data).hexdigest(), mime="image/png", size_bytes=1, width=1, height=1,
                    caption=self._new("caption"), caption_by="user", ocr_state="done", data=data,
                    thumbnail=b"x", phash="0" * 16,
                ),
            )  # fmt: skip

    def _erase(self, device: Device, random: Random, live: Sequence[str]) -> None:
        id = random.choice(live)
        device.store.erase([id])
        self.roots.add(id)

    # -- what happens to files -------------------------------------------------------------------

    def sync(self, device: Device, writes_left: int | None = None) -> Synced | None:
        """One exchange; None if the device was killed after `writes_left` writes."""
        self.pair(device)
        device.shelf.writes_left = writes_left
        try:
            return exchange(device.store, device.shelf, vectors_for=lambda texts: [])
        except Killed:
            return None
        finally:
            device.shelf.writes_left = None
            self.past += list(device.shelf.files.items())[-3:]

    def carry(self, source: Device, target: Device, random: Random, *, lossy: bool) -> None:
        """Copy to `target` the files that `source` sees, except those of `target` itself.

        lossy: some files are skipped or cut, and deletions are not always carried.
        """
        if source.shelf is target.shelf:
            return
        own = target.id
        files = [item for item in source.shelf.files.items() if item[0][0] != own]
        random.shuffle(files)
        for key, data in files:
            if lossy and random.random() < 0.3:
                continue
            if lossy and random.random() < 0.1:
                data = data[: random.randrange(len(data) + 1)]
            target.shelf.files[key] = data
        if not lossy or random.random() < 0.5:
            for key in [k for k in target.shelf.files if k[0] == source.id]:
                if key not in source.shelf.files:
                    del target.shelf.files[key]

    def harm(self, device: Device, random: Random) -> None:
        """Delete, cut, damage or roll back one file that a device sees, maybe its own."""
        files = device.shelf.files
        if not files:
            return
        key = random.choice(sorted(files))
        data = files[key]
        what = random.randrange(4)
        if what == 0:
            del files[key]
        elif what == 1:
            files[key] = data[: random.randrange(len(data) + 1)]
        elif what == 2:
            at = random.randrange(len(data)) if data else 0
            files[key] = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :] if data else b"x"
        elif self.past:
            key, data = random.choice(self.past)
            files[key] = data

    # -- how it must end -------------------------------------------------------------------------

    def settle(self) -> int:
        """Let all exchange without faults until nothing changes; returns the number of rounds."""
        for round in range(12):
            moved = False
            for device in self.devices:
                for other in self.devices:
                    owned = [k for k in device.shelf.files if k[0] == other.id]
                    if other.shelf is not device.shelf:
                        for key in owned:
                            del device.shelf.files[key]
                        device.shelf.files.update(
                            (k, v) for k, v in other.shelf.files.items() if k[0] == other.id
                        )
                done = self.sync(device)
                assert done is not None
                moved = moved or bool(done.sent or done.received or done.sent_bytes or done.late)
            if not moved:
                return round
        raise AssertionError("the devices never come to rest")

    def check(self) -> None:
        """Raise AssertionError if stores differ, a write is lost or erased words remain."""
        assert len({digest(device.store) for device in self.devices}) == 1, "stores differ"
        turns = {turn for id, turn in self.links if id in self.roots}
        legitimate = self.roots | {id for id, turn in self.links if turn in turns}
        for device in self.devices:
            assert device.store.check() == []
            rows = dict(device.store.select("SELECT id, memory FROM memories"))
            lost = self.texts.keys() - rows.keys() - legitimate
            assert not lost, f"lost: {lost}"
            assert not legitimate & rows.keys(), "erased ones are back"
            history = {row[0] for row in device.store.select("SELECT new_memory FROM history")}
            for id, versions in self.texts.items():
                if id in rows:
                    assert rows[id] == max(versions)[1], "not the last writer"
                    assert {text for _, text in versions} <= history, "an edit is in no history"
            gone = {text for id in legitimate for _, text in self.texts.get(id, ())}
            kept = {text for id in rows for _, text in self.texts[id]}
            kept |= {row[0] for row in device.store.select("SELECT content FROM turns")}
            for (name, file), data in device.shelf.files.items():
                opened = unseal(self.secret, data, f"{name}/{file}")
                if opened is None or file == "head":
                    continue
                for version in unpack(zlib.decompress(opened)):
                    body = json.loads(version.body) if version.body else []
                    said = {part for part in body if isinstance(part, str)}
                    assert not said & (gone - kept), f"erased words in {name}/{file}: {version}"

    def close(self) -> None:
        for device in self.devices:
            device.store.close()


def schedule(seed: int, steps: int = 40) -> dict[str, int]:
    """One random schedule; raises AssertionError if it ends wrong."""
    random = Random(seed)
    devices = random.randrange(2, 6)
    one_folder, copies = random.random() < 0.4, random.random() < 0.5
    world = World(devices, one_folder=one_folder, copies=copies, random=random)
    try:
        for _ in range(steps):
            device = random.choice(world.devices)
            what = random.random()
            if what < 0.5:
                world.act(device, random)
            elif what < 0.75:
                world.sync(device, random.randrange(6) if random.random() < 0.15 else None)
            elif what < 0.92:
                world.carry(random.choice(world.devices), device, random, lossy=True)
            else:
                world.harm(device, random)
        rounds = world.settle()
        world.check()
    finally:
        world.close()
    return {"devices": devices, "rounds": rounds, "erased": len(world.roots)}


# -- what it costs ---------------------------------------------------------------------------------


def fill(store: Store, count: int, first: int = 0) -> int:
    """Store memories of about 100 characters, each with its turn and a vector of dimension 384.

    Returns the bytes of the new content: all values of the new rows and the vectors, once each.
    """
    rng = np.random.default_rng(first)
    vectors = rng.standard_normal((count, 384)).astype(np.float32)
    words = [f"word{n}" for n in rng.integers(0, 5000, 16 * count)]
    for start in range(0, count, 500):
        with store.transaction() as tx:
            for n in range(start, min(start + 500, count)):
                turn, id = str(uuid.uuid4()), str(uuid.uuid4())
                text = " ".join(words[16 * n : 16 * n + 16])
                at = WHEN.format(n // 60 % 60, n % 60)
                tx.add_turn(
                    StoredTurn(id=turn, scope=ADA, role="user", content=text, timestamp=at,
                               created_at=at)
                )  # fmt: skip
                tx.add_memory(
                    NewMemory(id=id, kind="turn", memory=text, search_text=text, scope=ADA,
                              created_at=at, vectors=vectors[n : n + 1], sources=(turn,))
                )  # fmt: skip
    with store.snapshot() as connection:
        total = 0
        for table, order in (("turns", "rowid"), ("memories", "rowid"), ("history", "seq")):
            for row in connection.execute(
                f"SELECT * FROM {table} ORDER BY {order} DESC LIMIT ?", (count,)
            ):
                total += sum(len(str(value)) for value in row if value is not None)
    return total + vectors.nbytes


def cost(memories: int, changed: int) -> dict[str, Any]:
    """Seconds and bytes of a first exchange, one without changes, one with some, and one erasure.

    CPU seconds too, because they are more reliable on a busy machine.
    """
    spent: list[float] = []

    def timed(store: Store) -> tuple[float, Synced]:
        start, cpu = time.perf_counter(), time.process_time()
        done = exchange(store, place, vectors_for=lambda texts: [])
        spent.append(time.process_time() - cpu)
        return time.perf_counter() - start, done

    with tempfile.TemporaryDirectory() as folder:
        place = Directory(Path(folder) / "shared")
        stores = [Store.open(Path(folder) / f"{name}.db") for name in "ab"]
        a, b = stores
        alone_s, synced_s = (_adding_s(Path(folder) / f"{on}.db", on) for on in (False, True))
        whole_bytes = fill(a, memories)
        secret = new_secret()
        for store in stores:
            begin(store, secret)
        sent_s, sent = timed(a)
        received_s, _ = timed(b)
        first_cpu = spent[:2]
        timed(a)
        spent.clear()
        idle_ms = [1e3 * timed(store)[0] for _ in range(5) for store in stores]
        idle_cpu_ms = 1e3 * max(spent)
        new_bytes = fill(a, changed, first=memories)
        news_sent_s, news = timed(a)
        news_received_s, _ = timed(b)
        timed(a)
        a.erase([a.select("SELECT id FROM memories LIMIT 1")[0][0]])
        erase_s, erase = timed(a)
        timed(b)
        assert digest(a) == digest(b)
        for store in stores:
            store.close()
    return {
        "memories": memories,
        "first_sent_s": sent_s,
        "first_received_s": received_s,
        "first_sent_cpu_s": first_cpu[0],
        "first_received_cpu_s": first_cpu[1],
        "first_bytes": sent.sent_bytes,
        "first_bandwidth": sent.sent_bytes / whole_bytes,
        "idle_ms_p50": report.percentile(idle_ms, 50),
        "idle_ms_max": max(idle_ms),
        "idle_cpu_ms_max": idle_cpu_ms,
        "changed": changed,
        "changed_sent_s": news_sent_s,
        "changed_received_s": news_received_s,
        "changed_bandwidth": news.sent_bytes / new_bytes,
        "erase_one_s": erase_s,
        "erase_one_bytes": erase.sent_bytes,
        "add_synced_ratio": synced_s / alone_s,
    }


def _adding_s(path: Path, synced: bool) -> float:
    with Store.open(path) as store:
        if synced:
            begin(store, new_secret())
        start = time.perf_counter()
        fill(store, 1000)
        return time.perf_counter() - start


def run(count: int, seconds: float | None, first: int = 0) -> dict[str, Any]:
    """Run schedules one after another until `count` are done or `seconds` are over."""
    start = time.perf_counter()
    wrong: list[dict[str, Any]] = []
    done, rounds, erased = 0, 0, 0
    for seed in range(first, first + count):
        if seconds is not None and time.perf_counter() - start > seconds:
            break
        try:
            found = schedule(seed)
            rounds, erased = max(rounds, found["rounds"]), erased + found["erased"]
        except Exception as exc:  # any error is a finding
            wrong.append({"seed": seed, "error": f"{type(exc).__name__}: {exc}"[:500]})
        done += 1
    took = time.perf_counter() - start
    return {"schedules": done, "wrong": len(wrong), "erases": erased, "most_rounds": rounds,
            "seconds": took, "errors": wrong}  # fmt: skip


def main(arguments: list[str] | None = None) -> None:
    parser = report.parser("sync", __doc__, to_file=False)
    parser.add_argument("--schedules", type=int, default=1000, metavar="N")
    parser.add_argument("--first", type=int, default=0, metavar="SEED", help="of the schedules")
    parser.add_argument("--seconds", type=float, metavar="S", help="begin none after that")
    parser.add_argument("--memories", type=int, default=10_000, metavar="N", help="0: no cost")
    parser.add_argument("--changed", type=int, default=200, metavar="N")
    options = parser.parse_args(arguments)
    rows = [cost(options.memories, options.changed)] if options.memories else []
    report.write(options.json, run(options.schedules, options.seconds, options.first), rows)


if __name__ == "__main__":
    main()
