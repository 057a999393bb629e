"""One exchange with the other devices, at a place that all of them can reach.

ARCHITECTURE.md says what the files are, and what happens if one is missing or broken. A key made of
the pairing code that all devices share seals the files, and proves to the other end of a line who a
device is.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import os
import re
import uuid
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from edgemem.cachefile import disk_errors
from edgemem.config import require
from edgemem.errors import InputError, SchemaVersionError, StoreCorrupt, StoreError, StoreLocked
from edgemem.store import Store
from edgemem.store.rows import Floats, as_json
from edgemem.store.schema import BETWEEN, MIGRATIONS
from edgemem.store.sync import (
    ERASING,
    OwnDevice,
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
from edgemem.vault import Vault, of_key

if TYPE_CHECKING:
    from edgemem.store.writing import Transaction

__all__ = ["Directory", "Place", "Synced", "exchange", "new_secret", "secret_of", "unseal"]

MAGIC = b"EDGESYN2"  # the last byte is the format; 1 had no id of its key
SECRET_BYTES = 14
_ID_BYTES = 4  # of the key's id in each file, and of that id's checksum
HEAD_FILE = "head"
CHUNK_BYTES = 1 << 20  # of a file before compression; an erase rewrites whole files
SMALL_FILES = 64  # more files than this below a quarter of a chunk become one
OUTDATED_ROWS = 1000  # files may hold twice the store's rows and so many more
_DEVICE, _FILE = re.compile(r"[0-9a-f]{16}"), re.compile(rf"{HEAD_FILE}|\d{{10}}\.changes")


# -- the pairing code ----------------------------------------------------------------------------


class OtherCode(Exception):
    """Raised for a file that devices with another pairing code have written."""


def new_secret() -> bytes:
    """The random secret of a new pairing code."""
    require("sync")
    return os.urandom(SECRET_BYTES)


def code_of(secret: bytes) -> str:
    """The pairing code of a secret: six groups of four, the last two characters a checksum."""
    text = base64.b32encode(secret + _check(secret)).decode()
    return "-".join(text[i : i + 4] for i in range(0, len(text), 4))


def secret_of(code: str) -> bytes:
    """The secret of a pairing code; case, spaces and hyphens do not count. Raises InputError."""
    require("sync")
    text = code.upper().translate(str.maketrans("018", "OLB", " -\n\t"))
    try:
        raw = base64.b32decode(text)
    except (binascii.Error, ValueError):
        raw = b""
    secret = raw[:SECRET_BYTES]
    if len(secret) != SECRET_BYTES or raw[SECRET_BYTES:] != _check(secret):
        short = f"it has {len(text)} letters and digits, and 24 are right"
        slip = "one of its 24 letters and digits is another" if len(text) == 24 else short
        raise InputError(
            f"the pairing code has a slip of the pen: {slip}; `edgemem sync --show-code` shows it "
            "on a device that has it"
        )
    return secret


def paired(store: Store, code: str | None) -> bytes:
    """The secret of a store, created if it has none. code: to adopt. Raises InputError."""
    me = own_device(store)
    if me is not None and (code is None or secret_of(code) == me.secret):
        return me.secret
    return begin(store, new_secret() if code is None else secret_of(code)).secret


def _check(secret: bytes) -> bytes:
    return hashlib.blake2b(secret, digest_size=1, person=b"edgemem code").digest()


@lru_cache(maxsize=8)
def _key(secret: bytes) -> Vault:
    return of_key(hashlib.blake2b(secret, digest_size=32, person=b"edgemem sync").digest())


def seal(secret: bytes, data: bytes, name: str) -> bytes:
    """The bytes of the file `name`: MAGIC, the key's id with its checksum, and the sealed data."""
    key = _key(secret)
    return MAGIC + _named(bytes.fromhex(key.id)[:_ID_BYTES]) + key.seal(data, name)


def unseal(secret: bytes, data: bytes | None, name: str) -> bytes | None:
    """The data of a file; None if it is missing, damaged, or was sealed under another name.

    Raises OtherCode if it was sealed with another secret.
    """
    key, start = _key(secret), len(MAGIC) + 2 * _ID_BYTES
    if data is None or len(data) <= start or not data.startswith(MAGIC):
        return None
    id = data[len(MAGIC) : start - _ID_BYTES]
    if data[len(MAGIC) : start] != _named(id):
        return None
    if id != bytes.fromhex(key.id)[:_ID_BYTES]:
        raise OtherCode
    try:
        return key.unseal(data[start:], name)
    except StoreCorrupt:
        return None


def _named(id: bytes) -> bytes:
    return id + zlib.crc32(id).to_bytes(_ID_BYTES, "big")


def proof(secret: bytes, *said: bytes) -> str:
    """The HMAC-SHA-256 of some bytes under a key made of the secret, in hexadecimal."""
    return hmac.new(_key(secret).subkey("proof"), b"\0".join(said), "sha256").hexdigest()


# -- places --------------------------------------------------------------------------------------


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
        """Delete a file, and the folder with its last one; nothing if there is none."""


class Directory:
    """A place on a disk. Every method raises StoreFull where the disk refuses."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path).expanduser()

    def names(self) -> dict[str, dict[str, int]]:
        with self._disk_errors():
            self.path.mkdir(parents=True, exist_ok=True)
            found: dict[str, dict[str, int]] = {}
            for folder in self.path.iterdir():
                if _DEVICE.fullmatch(folder.name) and folder.is_dir():
                    sizes = found[folder.name] = {}
                    for file in folder.iterdir():
                        if is_name(folder.name, file.name):
                            with suppress(FileNotFoundError):  # its device has just deleted it
                                sizes[file.name] = file.stat().st_size
            return found

    def read(self, device: str, name: str) -> bytes | None:
        with self._disk_errors():
            try:
                return (self.path / device / name).read_bytes()
            except FileNotFoundError:
                return None

    def write(self, device: str, name: str, data: bytes) -> None:
        folder = self.path / device
        partial = folder / f".{name}.partial"
        with self._disk_errors():
            folder.mkdir(exist_ok=True)
            with partial.open("wb") as out:
                out.write(data)
                out.flush()
                os.fsync(out.fileno())
            os.replace(partial, folder / name)

    def delete(self, device: str, name: str) -> None:
        with self._disk_errors():
            (self.path / device / name).unlink(missing_ok=True)
            with suppress(OSError):  # other files are left
                (self.path / device).rmdir()

    def _disk_errors(self) -> AbstractContextManager[None]:
        return disk_errors(
            f"the folder {self.path} cannot be used",
            "check that it is there, writable and has room, or give another",
        )


@dataclass(frozen=True, kw_only=True)
class Synced:
    """What one exchange did.

    devices: the number of others at this place. sent, received: rows of any kind. sent_bytes,
    received_bytes: of the files written and read. erased: ids of memories that another device has
    erased. late: devices with a file that is missing or broken. unconfirmed: devices that have not
    taken in this device's last erase yet. scrubbed: False if another process was reading the store,
    so that its free pages are cleaned when it is closed or next opened.
    """

    devices: int
    sent: int = 0
    sent_bytes: int = 0
    received: int = 0
    received_bytes: int = 0
    erased: tuple[str, ...] = ()
    late: tuple[str, ...] = ()
    unconfirmed: tuple[str, ...] = ()
    scrubbed: bool = True

    def then(self, later: Synced) -> Synced:
        """What this exchange and a later one at the same place did together."""
        added = ("sent", "sent_bytes", "received", "received_bytes", "erased")
        return replace(
            later, **{name: getattr(self, name) + getattr(later, name) for name in added}
        )


def exchange(
    store: Store,
    place: Place,
    *,
    vectors_for: Callable[[list[str]], Sequence[Floats]],
    own_model: Callable[[], tuple[str, int]] | None = None,
    before_erase: Callable[[], object] = lambda: None,
    on_replaced: Callable[[Transaction, list[str]], object] = lambda _tx, _ids: None,
) -> Synced:
    """Take in what the other devices have left at a place, and leave there what is new here.

    vectors_for: from search texts to one (c, dim) float32 array each; called only for texts that
    another embedder has embedded. own_model: gives the id and dimension of the embedder that an
    empty store begins with; without it, that is the one of the first vectors received.
    before_erase: called before the erases of other devices are repeated here, and again before the
    file is scrubbed. on_replaced: called within the transaction with the ids of memories that got
    another text or were deleted. The caller holds the work lock.
    Raises SchemaVersionError if a device has another version of edgemem: at the end, if that is an
    older one. Raises InputError if all have another pairing code, StoreError if `begin` was never
    called.
    """
    me = own_device(store)
    if me is None:
        raise StoreError("this store is no device yet; give it a pairing code, see `edgemem sync`")
    at_place = _Exchange(store, place, me)
    at_place.read_others()
    known = at_place.heads or at_place.outdated or at_place.own
    if at_place.foreign and not known:
        raise InputError(
            "the files at this place were sealed with another pairing code; `edgemem sync "
            "--show-code` shows it on one of their devices: give it here with --code"
        )
    taken = at_place.take_in(vectors_for, own_model, before_erase, on_replaced)
    head, sent, sent_bytes = at_place.publish()
    if taken.erased:
        before_erase()
    scrubbed = False
    with suppress(StoreLocked):
        store.scrub()
        scrubbed = True
    for device, schema in at_place.outdated.items():
        raise _other_version(device, schema)
    unconfirmed = [
        device
        for device, other in at_place.heads.items()
        if other["seen"].get(at_place.me.device, 0) < head["erased"]
    ]
    return Synced(
        devices=len(at_place.heads),
        sent=sent,
        sent_bytes=sent_bytes,
        received=taken.rows,
        received_bytes=at_place.received_bytes,
        erased=tuple(taken.erased),
        late=tuple(at_place.late),
        unconfirmed=tuple(unconfirmed),
        scrubbed=scrubbed,
    )


class _Unsent(NamedTuple):
    """What a device has to write at a place.

    rows: to be written. replaced: names of files that these rows replace. erased: whether anything
    was erased since the last head, but for what this place told itself. clock: the device's clock
    when the rows were read.
    """

    rows: Versions
    replaced: Collection[str]
    erased: bool
    clock: int


class _Exchange:
    """This device at a place, and what it finds there.

    names: the files there. former: this store's name before, if it just got another. own: its last
    head there; None if that is missing, old or unknown. link: the place's name in this store.
    heads: those of the other devices. outdated: devices with an older edgemem, and their schema
    versions. seen: what was taken in of each. late: devices with a file that is missing or broken.
    wants: the names of those files, by device. foreign: devices whose head was sealed with another
    secret.
    """

    def __init__(self, store: Store, place: Place, me: OwnDevice) -> None:
        self.store, self.place, self.me = store, place, me
        self.names = place.names()
        self.former = ""
        self.own = self._own_head()
        self.link: str = self.own["link"] if self.own else uuid.uuid4().hex[:16]
        self.heads: dict[str, dict[str, Any]] = {}
        self.outdated: dict[str, int] = {}
        self.seen: dict[str, int] = {}
        self.late: list[str] = []
        self.wants: dict[str, list[str]] = {}
        self.foreign: list[str] = []
        self.received_bytes = 0
        self._received: Versions = []
        self._new_heads: dict[str, dict[str, Any]] = {}

    # -- files -----------------------------------------------------------------------------------

    def _head(self, device: str) -> dict[str, Any] | None:
        data = self.place.read(device, HEAD_FILE)
        if data is not None and data.startswith(MAGIC[:-1]) and not data.startswith(MAGIC):
            return {"schema": 0 if data < MAGIC else len(MIGRATIONS) + 1}  # of another format
        opened = unseal(self.me.secret, data, f"{device}/{HEAD_FILE}")
        return None if opened is None else dict(json.loads(opened))

    def _changes(self, device: str, name: str) -> Versions | None:
        data = self.place.read(device, name)
        try:
            opened = unseal(self.me.secret, data, f"{device}/{name}")
        except OtherCode:
            return None
        return None if opened is None else [*unpack(zlib.decompress(opened))]

    def _write(self, name: str, data: bytes) -> int:
        """Seal and write a file of this device; returns its size in bytes."""
        sealed = seal(self.me.secret, data, f"{self.me.device}/{name}")
        self.place.write(self.me.device, name, sealed)
        return len(sealed)

    def _own_head(self) -> dict[str, Any] | None:
        """This device's last head at the place; None if an earlier edgemem wrote it: its files are
        then written anew.

        If a copy of this store wrote it, under the same device id, this store gets a new id.
        """
        try:
            head = self._head(self.me.device)
        except OtherCode:
            return None
        if head is None or "link" not in head:
            return None
        rows = self.store.select(
            "SELECT nonce, before FROM sync_links WHERE link = ?", head["link"]
        )
        if rows and head["nonce"] in rows[0]:
            return head if head["schema"] == len(MIGRATIONS) else None
        ((counter,),) = self.store.select("SELECT counter FROM sync_self")
        if head["counter"] >= counter:
            self.former = self.me.device
            self.me = begin(self.store, self.me.secret)
        return None

    # -- taking in -------------------------------------------------------------------------------

    def read_others(self) -> None:
        """Read the heads of the other devices, and what they list that was not taken in yet."""
        rows = self.store.select(
            "SELECT device, counter, content, files FROM sync_peers WHERE link = ?", self.link
        )
        known = {device: (counter, set(json.loads(files))) for device, counter, _, files in rows}
        self.seen = {device: content for device, _, content, _ in rows}
        for device in sorted(self.names.keys() - {self.me.device}):
            try:
                head = self._head(device)
            except OtherCode:
                self.foreign.append(device)
                head = None
            if head is None:
                self.late.append(device)
                continue
            if head["schema"] > len(MIGRATIONS):
                raise _other_version(device, head["schema"])
            if head["schema"] < len(MIGRATIONS):
                # Told once this device has written its files, or the two would wait for each other.
                self.outdated[device] = head["schema"]
                continue
            self.heads[device] = head
            counter, files = known.get(device, (-1, set()))
            if head["counter"] > counter:
                self._read(device, head, sorted(head["files"].keys() - files))

    def _read(self, device: str, head: dict[str, Any], names: list[str]) -> None:
        found = {name: self._changes(device, name) for name in names}
        if missing := [name for name, changes in found.items() if changes is None]:
            self.late.append(device)
            self.wants[device] = missing
            return
        self.received_bytes += sum(head["files"][name][0] for name in names)
        self._received += [version for changes in found.values() for version in changes or ()]
        self._new_heads[device] = head

    def take_in(
        self,
        vectors_for: Callable[[list[str]], Sequence[Floats]],
        own_model: Callable[[], tuple[str, int]] | None,
        before_erase: Callable[[], object],
        on_replaced: Callable[[Transaction, list[str]], object],
    ) -> Taken:
        taken = Taken()
        if not self._new_heads:
            return taken
        own = None
        if own_model is not None and self.store.meta("embedder_model") is None:
            own = own_model()
        texts = texts_to_embed(self.store, self._received, own)
        vectors = dict(zip(texts, vectors_for(texts), strict=True)) if texts else {}
        if any(version.kind == "erased" for version in self._received):
            before_erase()
        with self.store.transaction() as tx:
            if self._received:
                taken = take_in(tx, self._received, self.link, vectors, own)
                on_replaced(tx, taken.replaced)
            with tx.step() as connection:
                for device, head in self._new_heads.items():
                    files = as_json(head["files"])
                    connection.execute(
                        "INSERT OR REPLACE INTO sync_peers VALUES (?, ?, ?, ?, ?)",
                        (self.link, device, head["counter"], head["content"], files),
                    )
        self.seen.update((device, head["content"]) for device, head in self._new_heads.items())
        return taken

    # -- publishing ------------------------------------------------------------------------------

    def publish(self) -> tuple[dict[str, Any], int, int]:
        """Write what is new here; returns the head at the place, and the rows and bytes written."""
        own, sizes = self.own, self.names.get(self.me.device, {})
        files: dict[str, list[int]] = own["files"] if own else {}
        # The files that other devices report as missing or broken.
        asked = {n for head in self.heads.values() for n in head["wants"].get(self.me.device, ())}
        whole = (
            own is not None
            and all(sizes.get(name) == size for name, (size, _) in files.items())
            and all(self._changes(self.me.device, n) is not None for n in asked & files.keys())
        )
        unsent = self._unsent(files, whole)
        head: dict[str, Any] = {
            "schema": len(MIGRATIONS), "link": self.link, "published": unsent.clock,
            "seen": self.seen, "wants": self.wants,
        }  # fmt: skip
        sent_bytes = 0
        unchanged = own if own and not unsent.rows and not unsent.replaced else None
        if unchanged and all(unchanged[name] == head[name] for name in ("seen", "wants")):
            head = unchanged
        else:
            chunks = [(len(chunk), zlib.compress(pack(chunk), 1)) for chunk in _chunks(unsent.rows)]
            head |= self._reserved(len(chunks))
            kept = {name: entry for name, entry in files.items() if name not in unsent.replaced}
            for number, (rows, data) in enumerate(chunks, head["counter"] - len(chunks)):
                name = f"{number:010d}.changes"
                size = self._write(name, data)
                kept[name] = [size, rows]
                sent_bytes += size
            head["files"] = kept
            head["content"] = unchanged["content"] if unchanged else head["counter"]
            head["erased"] = head["content"] if unsent.erased else own["erased"] if own else 0
            text = json.dumps(head).encode()
            self._write(HEAD_FILE, text)
            sent_bytes += len(text)
        for name in sizes.keys() - head["files"].keys() - {HEAD_FILE}:
            self.place.delete(self.me.device, name)
        if self.former in self.heads and not self.late and not self.outdated:
            # Maybe nobody has this name any more. If another store has it, it writes all it knows.
            del self.heads[self.former]
            for name in self.names[self.former]:
                self.place.delete(self.former, name)
        return head, len(unsent.rows), sent_bytes

    def _unsent(self, files: Mapping[str, list[int]], whole: bool) -> _Unsent:
        """What this device has to write. whole: whether all of its files are there."""
        own, folder = self.own, self.store.images_folder
        since = own["published"] if own and whole else 0
        with self.store.snapshot() as connection:
            ((clock,),) = connection.execute("SELECT clock FROM sync_self").fetchall()
            sql = "SELECT id, link FROM sync_rows WHERE seq > ? AND kind = 'erased'"
            erased = dict(connection.execute(sql, (since,)).fetchall())
            dropped = self._to_rewrite(files, set(erased)) if whole else None
            if dropped is None:
                since = 0
            # At a place that is new to this store, the rows just read from it need not be written.
            read_here = "" if self.former or (own and dropped is None) else self.link
            new = versions(connection, _UNSENT, since, read_here, images=folder)
            held = {v[:2] for changes in (dropped or {}).values() for v in changes}
            if held := held - {v[:2] for v in new}:
                new += versions(connection, _AMONG, as_json(held), images=folder)
        replaced = files.keys() if dropped is None else dropped.keys()
        news = any(link != self.link for link in erased.values())
        return _Unsent(new, replaced, news, clock)

    def _to_rewrite(
        self, files: Mapping[str, list[int]], erased: set[str]
    ) -> dict[str, Versions] | None:
        """The versions in those files of this device that must be rewritten, by file name.

        After an erase these are the files that hold anything erased, or an outdated version of
        relations, which may name who was erased. Otherwise they are the small files, if there are
        many. None if everything must be written again: most rows in the files are outdated, or a
        file cannot be read.
        """
        ((rows,),) = self.store.select("SELECT count(*) FROM sync_rows")
        if sum(count for _, count in files.values()) > 2 * rows + OUTDATED_ROWS:
            return None
        sql = "SELECT kind, id, clock, device FROM sync_rows WHERE kind = 'graph'"
        told = set(self.store.select(sql)) if erased else set()

        def goes(version: Version) -> bool:
            if version.kind == "graph" and version[:4] not in told:
                return True
            return version.kind not in ERASING and not erased.isdisjoint(version.id.split(BETWEEN))

        small = [name for name, (size, _) in files.items() if size < CHUNK_BYTES // 4]
        found: dict[str, Versions] = {}
        for name in files if erased else small if len(small) > SMALL_FILES else ():
            changes = self._changes(self.me.device, name)
            if changes is None:
                return None
            if not erased or any(map(goes, changes)):
                found[name] = changes
        return found

    def _reserved(self, chunks: int) -> dict[str, Any]:
        """The counter and nonce of the next head, which are stored before the head is written."""
        nonce = uuid.uuid4().hex
        with self.store.transaction() as tx, tx.step() as connection:
            connection.execute("UPDATE sync_self SET counter = counter + ?", (chunks + 1,))
            ((counter,),) = connection.execute("SELECT counter FROM sync_self")
            connection.execute(
                "INSERT INTO sync_links (link, counter, nonce) VALUES (?, ?, ?) ON CONFLICT (link) "
                "DO UPDATE SET counter = excluded.counter, before = nonce, nonce = excluded.nonce",
                (self.link, counter, nonce),
            )
        return {"counter": counter, "nonce": nonce}


_UNSENT = "s.seq > ? AND s.link IS NOT ?"
_AMONG = (
    "(s.kind, s.id) IN (SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]') "
    "FROM json_each(?))"
)


def _other_version(device: str, schema: int) -> SchemaVersionError:
    ours = len(MIGRATIONS)
    where = "this device" if schema > ours else f"the device {device}"
    return SchemaVersionError(
        f"the device {device} has schema version {schema or 'of an earlier format'} and this one "
        f"{ours}; upgrade edgemem-runtime on {where} and sync there once. If that device is gone "
        f"for good, delete its folder {device} here"
    )


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
