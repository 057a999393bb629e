"""One exchange with the other devices, at a place that all of them can reach.

Each device writes in a folder of its own, and reads the folders of the others. ARCHITECTURE.md says
what the files are, and what happens if a file is missing or broken.
"""

from __future__ import annotations

import json
import os
import re
import uuid
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from edgemem.errors import InputError, SchemaVersionError, StoreError, StoreFull
from edgemem.store import Store
from edgemem.store.rows import Floats, as_json
from edgemem.store.schema import MIGRATIONS
from edgemem.store.sync import (
    Self,
    Taken,
    Version,
    Versions,
    begin,
    own_device,
    pack,
    take_in,
    texts_to_embed,
    unpack,
    versions,
)
from edgemem.store.writing import Transaction
from edgemem.sync.pairing import OtherCode, seal, unseal

__all__ = ["Directory", "Place", "Synced", "exchange", "is_name"]

HEAD_FILE = "head"
CHUNK_BYTES = 1 << 20  # of a file before compression; an erase rewrites whole files
SMALL_FILES = 64  # more files than this below a quarter of a chunk become one
OUTDATED_ROWS = 1000  # files may hold twice the store's rows and so many more
_DEVICE, _FILE = re.compile(r"[0-9a-f]{16}"), re.compile(rf"{HEAD_FILE}|\d{{10}}\.changes")


def is_name(device: str, name: str) -> bool:
    """Whether these are names of a device's folder and file; no others are read or written."""
    return bool(_DEVICE.fullmatch(device) and _FILE.fullmatch(name))


class Place(Protocol):
    """Where devices leave files for each other, each in a folder of its own."""

    def names(self) -> dict[str, dict[str, int]]:
        """The size in bytes of each file, by device and file name."""

    def read(self, device: str, name: str) -> bytes | None:
        """The content of a file, or None if there is none."""

    def write(self, device: str, name: str, data: bytes) -> None:
        """Write a file atomically."""

    def delete(self, device: str, name: str) -> None:
        """Delete a file; nothing if there is none."""


class Directory:
    """A place on a disk. Every method raises StoreFull where the disk refuses."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path).expanduser()

    def names(self) -> dict[str, dict[str, int]]:
        with self._refused():
            self.path.mkdir(parents=True, exist_ok=True)
            return {
                folder.name: {
                    file.name: file.stat().st_size
                    for file in os.scandir(folder.path)
                    if is_name(folder.name, file.name)
                }
                for folder in os.scandir(self.path)
                if _DEVICE.fullmatch(folder.name) and folder.is_dir()
            }

    def read(self, device: str, name: str) -> bytes | None:
        with self._refused():
            try:
                return (self.path / device / name).read_bytes()
            except FileNotFoundError:
                return None

    def write(self, device: str, name: str, data: bytes) -> None:
        folder = self.path / device
        partial = folder / f".{name}.partial"
        with self._refused():
            folder.mkdir(exist_ok=True)
            with partial.open("wb") as out:
                out.write(data)
                out.flush()
                os.fsync(out.fileno())
            os.replace(partial, folder / name)

    def delete(self, device: str, name: str) -> None:
        with self._refused():
            (self.path / device / name).unlink(missing_ok=True)

    @contextmanager
    def _refused(self) -> Iterator[None]:
        try:
            yield
        except OSError as exc:
            raise StoreFull(
                f"the folder {self.path} cannot be used ({exc.strerror or exc}); check that it is "
                "there, writable and has room, or give another"
            ) from exc


@dataclass(frozen=True, kw_only=True)
class Synced:
    """What one exchange did.

    devices: the number of others at this place. sent, received: rows of any kind. sent_bytes,
    received_bytes: of the files written and read. erased: ids of memories that another device has
    erased. late: devices with a file that is missing or broken. unconfirmed: devices that have not
    taken in this device's last erase yet.
    """

    devices: int
    sent: int = 0
    sent_bytes: int = 0
    received: int = 0
    received_bytes: int = 0
    erased: tuple[str, ...] = ()
    late: tuple[str, ...] = ()
    unconfirmed: tuple[str, ...] = ()


def exchange(
    store: Store,
    place: Place,
    *,
    vectors_for: Callable[[list[str]], Sequence[Floats]],
    before_erase: Callable[[], object] = lambda: None,
    on_replaced: Callable[[Transaction, list[str]], object] = lambda _tx, _ids: None,
) -> Synced:
    """Take in what the other devices have left at a place, and leave there what is new here.

    vectors_for: from search texts to one (c, dim) float32 array each; called only for texts that
    another embedder has embedded. before_erase: called before memories are erased here that another
    device has erased, and again before the file is scrubbed. on_replaced: called within the
    transaction with the ids of memories that got another text or were deleted. The caller holds the
    work lock. Raises SchemaVersionError if a device at this place has another version of edgemem,
    InputError if the place belongs to devices with another pairing code, StoreError if `begin` was
    never called.
    """
    me = own_device(store)
    if me is None:
        raise StoreError("this store is no device yet; give it a pairing code, see `edgemem sync`")
    here = place.names()
    me, own = _own_head(store, place, me)
    link = own["link"] if own else uuid.uuid4().hex[:16]
    others = _Others(store, place, me, link, sorted(here.keys() - {me.device}))
    if others.foreign and not others.heads and own is None:
        raise InputError(
            "the files at this place were sealed with another pairing code; `edgemem sync "
            "--show-code` shows it on one of their devices: give it here with --code"
        )
    taken = others.take_in(store, vectors_for, before_erase, on_replaced)
    head, sent = _publish(store, place, me, link, own, here.get(me.device, {}), others)
    if taken.erased:
        before_erase()
    store.scrub()
    unconfirmed = [
        device
        for device, other in others.heads.items()
        if other["seen"].get(me.device, 0) < head["erased"]
    ]
    return Synced(
        devices=len(others.heads),
        received=taken.rows,
        received_bytes=others.received_bytes,
        erased=tuple(taken.erased),
        late=tuple(others.late),
        unconfirmed=tuple(unconfirmed),
        **sent,
    )


def _read_head(place: Place, secret: bytes, device: str) -> dict[str, Any] | None:
    data = unseal(secret, place.read(device, HEAD_FILE), f"{device}/{HEAD_FILE}")
    return None if data is None else dict(json.loads(data))


def _read_changes(place: Place, secret: bytes, device: str, name: str) -> bytes | None:
    try:
        data = unseal(secret, place.read(device, name), f"{device}/{name}")
    except OtherCode:
        return None
    return None if data is None else zlib.decompress(data)


def _own_head(store: Store, place: Place, me: Self) -> tuple[Self, dict[str, Any] | None]:
    """This device, and its last head at this place; None if the head is missing, old or unknown.

    If a copy of this store wrote the head, under the same device id, this store gets a new id.
    """
    try:
        head = _read_head(place, me.secret, me.device)
    except OtherCode:
        head = None
    if head is None:
        return me, None
    rows = store.select("SELECT nonce, before FROM sync_links WHERE link = ?", head["link"])
    if rows and head["nonce"] in rows[0]:
        return me, head
    ((counter,),) = store.select("SELECT counter FROM sync_self")
    return (begin(store, me.secret) if head["counter"] >= counter else me), None


class _Others:
    """The other devices at a place.

    heads: by device. late: devices with a file that is missing or broken. wants: the names of those
    files, by device. foreign: devices whose head was sealed with another secret.
    """

    def __init__(
        self, store: Store, place: Place, me: Self, link: str, devices: Iterable[str]
    ) -> None:
        self.link = link
        self.heads: dict[str, dict[str, Any]] = {}
        self.late: list[str] = []
        self.foreign: list[str] = []
        self.wants: dict[str, list[str]] = {}
        self.received_bytes = 0
        self._changesets: list[bytes] = []
        self._fresh: list[tuple[str, dict[str, Any]]] = []
        rows = store.select(
            "SELECT device, counter, content, files FROM sync_peers WHERE link = ?", link
        )
        known = {device: (counter, set(json.loads(files))) for device, counter, _, files in rows}
        self.seen = {device: content for device, _, content, _ in rows}
        for device in devices:
            try:
                head = _read_head(place, me.secret, device)
            except OtherCode:
                self.foreign.append(device)
                head = None
            if head is None:
                self.late.append(device)
                continue
            _check_schema(device, head["schema"])
            counter, files = known.get(device, (-1, set()))
            self.heads[device] = head
            if head["counter"] > counter:
                self._read(place, me, device, head, sorted(head["files"].keys() - files))

    def _read(
        self, place: Place, me: Self, device: str, head: dict[str, Any], names: list[str]
    ) -> None:
        found = {name: _read_changes(place, me.secret, device, name) for name in names}
        whole = [changes for changes in found.values() if changes is not None]
        if len(whole) < len(names):
            self.late.append(device)
            self.wants[device] = [name for name, changes in found.items() if changes is None]
            return
        self.received_bytes += sum(head["files"][name][0] for name in names)
        self._changesets += whole
        self._fresh.append((device, head))

    def take_in(
        self,
        store: Store,
        vectors_for: Callable[[list[str]], Sequence[Floats]],
        before_erase: Callable[[], object],
        on_replaced: Callable[[Transaction, list[str]], object],
    ) -> Taken:
        if not self._fresh:
            return Taken(0, [], [], 0)
        texts = texts_to_embed(store, self._changesets)
        made = dict(zip(texts, vectors_for(texts), strict=True)) if texts else {}
        if any(v.kind == "erased" for changes in self._changesets for v in unpack(changes)):
            before_erase()
        with store.transaction() as tx:
            taken = Taken(0, [], [], 0)
            if self._changesets:
                taken = take_in(tx, self._changesets, self.link, made)
                on_replaced(tx, taken.replaced)
            with tx.step() as connection:
                connection.executemany(
                    "INSERT OR REPLACE INTO sync_peers VALUES (?, ?, ?, ?, ?)",
                    [
                        (self.link, d, h["counter"], h["content"], as_json(h["files"]))
                        for d, h in self._fresh
                    ],
                )
        self.seen.update((device, head["content"]) for device, head in self._fresh)
        return taken

    def asked_of(self, device: str) -> set[str]:
        """The files of a device that other devices report as missing or broken."""
        return {name for head in self.heads.values() for name in head["wants"].get(device, ())}


def _check_schema(device: str, schema: int) -> None:
    ours = len(MIGRATIONS)
    if schema != ours:
        where = "this device" if schema > ours else f"the device {device}"
        raise SchemaVersionError(
            f"the device {device} has schema version {schema} and this one {ours}; upgrade "
            f"edgemem-runtime on {where} and sync there once. If that device is gone for good, "
            f"delete its folder {device} here"
        )


def _publish(
    store: Store,
    place: Place,
    me: Self,
    link: str,
    own: dict[str, Any] | None,
    here: Mapping[str, int],
    others: _Others,
) -> tuple[dict[str, Any], dict[str, int]]:
    """Write what is new here; returns the head at the place, and the counts for `Synced`."""
    files: dict[str, list[int]] = own["files"] if own else {}
    whole = own is not None and all(here.get(name) == size for name, (size, _) in files.items())
    opened = {
        name: _read_changes(place, me.secret, me.device, name)
        for name in others.asked_of(me.device) & files.keys()
    }
    whole = whole and None not in opened.values()
    published = own["published"] if own and whole else 0
    with store.snapshot() as connection:
        ((now, all_rows),) = connection.execute(
            "SELECT clock, (SELECT count(*) FROM sync_rows) FROM sync_self"
        ).fetchall()
        erased = {
            row[0]
            for row in connection.execute(
                "SELECT id FROM sync_rows WHERE seq > ? AND kind = 'erased'", (published,)
            )
        }
        told = set(
            connection.execute("SELECT kind, id, clock, device FROM sync_rows WHERE kind = 'graph'")
            if erased
            else ()
        )
        dropped: dict[str, bytes | None] = {}
        if whole:
            dropped = _to_rewrite(place, me, files, erased, told, all_rows)
            whole = None not in dropped.values()
        if whole:
            unsent = "s.seq > ? AND s.link IS NOT ?"
            new = versions(connection, unsent, published, link, images=store.images_folder)
            held = {v[:2] for changes in dropped.values() for v in unpack(changes or b"")}
            held -= {v[:2] for v in new}
            if held:
                new += versions(connection, _AMONG, as_json(held), images=store.images_folder)
        else:
            # At a place that is new to this store, the rows just read from it need not be written.
            kept_by_others = link if own is None else ""
            dropped = dict.fromkeys(files)
            unsent = "s.link IS NOT ?"
            new = versions(connection, unsent, kept_by_others, images=store.images_folder)
    head = {
        "schema": len(MIGRATIONS), "link": link, "published": now,
        "seen": others.seen, "wants": others.wants,
    }  # fmt: skip
    same = own is not None and all(own[key] == head[key] for key in ("seen", "wants"))
    if own is not None and whole and same and not new and not dropped:
        head, sent = own, {"sent": 0, "sent_bytes": 0}
    else:
        chunks = [(len(chunk), zlib.compress(pack(chunk), 1)) for chunk in _chunks(new)]
        head |= _reserved(store, link, len(chunks))
        numbers = range(head["counter"] - len(chunks), head["counter"])
        kept = {name: entry for name, entry in files.items() if name not in dropped}
        for number, (rows, data) in zip(numbers, chunks, strict=True):
            name = f"{number:010d}.changes"
            sealed = seal(me.secret, data, f"{me.device}/{name}")
            place.write(me.device, name, sealed)
            kept[name] = [len(sealed), rows]
        changed = bool(new or dropped) or own is None
        head["files"] = kept
        head["content"] = head["counter"] if changed or own is None else own["content"]
        head["erased"] = head["content"] if erased else (own or {"erased": 0})["erased"]
        text = json.dumps(head).encode()
        place.write(me.device, HEAD_FILE, seal(me.secret, text, f"{me.device}/{HEAD_FILE}"))
        written = sum(kept[f"{number:010d}.changes"][0] for number in numbers)
        sent = {"sent": len(new), "sent_bytes": written + len(text)}
    for name in here.keys() - head["files"].keys() - {HEAD_FILE}:
        place.delete(me.device, name)
    return head, sent


_AMONG = (
    "(s.kind, s.id) IN (SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]') "
    "FROM json_each(?))"
)


_KEPT = ("erased", "root")


def _to_rewrite(
    place: Place,
    me: Self,
    files: Mapping[str, list[int]],
    erased: set[str],
    told: Set[tuple[object, ...]],
    all_rows: int,
) -> dict[str, bytes | None]:
    """The changesets of this device's files that must be rewritten, by name.

    These are all files if most of their rows are outdated, else the files that hold anything
    erased, else the small files if there are many. A changeset of None is unreadable or was not
    read; then everything must be written again. told: the current versions of relations. After an
    erase a file with an outdated one is rewritten too, as it may name who was erased.
    """

    def goes(version: Version) -> bool:
        if version.kind == "graph" and version[:4] not in told:
            return True
        return version.kind not in _KEPT and not erased.isdisjoint(version.id.split("\x1f"))

    small = [name for name, (size, _) in files.items() if size < CHUNK_BYTES // 4]
    if sum(rows for _, rows in files.values()) > 2 * all_rows + OUTDATED_ROWS:
        return dict.fromkeys(files)
    found: dict[str, bytes | None] = {}
    for name in files if erased else small if len(small) > SMALL_FILES else ():
        changes = _read_changes(place, me.secret, me.device, name)
        if changes is None or not erased or any(map(goes, unpack(changes))):
            found[name] = changes
    return found


def _reserved(store: Store, link: str, chunks: int) -> dict[str, Any]:
    """The counter and nonce of the next head, which are stored before the head is written."""
    nonce = uuid.uuid4().hex
    with store.transaction() as tx, tx.step() as connection:
        connection.execute("UPDATE sync_self SET counter = counter + ?", (chunks + 1,))
        ((counter,),) = connection.execute("SELECT counter FROM sync_self")
        connection.execute(
            "INSERT INTO sync_links (link, counter, nonce) VALUES (?, ?, ?) ON CONFLICT (link) "
            "DO UPDATE SET counter = excluded.counter, before = nonce, nonce = excluded.nonce",
            (link, counter, nonce),
        )
    return {"counter": counter, "nonce": nonce}


def _chunks(rows: Versions) -> Iterator[Versions]:
    chunk: Versions = []
    size = 0
    for row in rows:
        chunk.append(row)
        size += 100 + len(row.body or "") + len(row.vectors or b"")
        if size >= CHUNK_BYTES:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk
