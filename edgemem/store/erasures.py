"""Receipts of erasing, and the check that what they name is really gone.

A receipt holds no text, and only the SHA-256 of each id, because imported ids may be readable text.
Each receipt holds the hash of the previous one, so no receipt can be changed or removed unnoticed.
Whoever can write the file can rewrite the whole chain; a receipt kept elsewhere reveals even that.
"""

from __future__ import annotations

import glob
import hashlib
import json
import re
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgemem.cachefile import HALF_EXPORT
from edgemem.errors import InputError
from edgemem.results import Erased, to_utc, utc_now
from edgemem.store.database import SCRUB_WANTED, meta
from edgemem.store.schema import BETWEEN

if TYPE_CHECKING:
    from edgemem.store.store import Store

__all__ = ["erased_of", "erasure_test", "erasures", "last_erasure", "verify", "with_receipt"]

_NOT_LOOKED_THROUGH = ("meta", "erased", "erasures")
_ID_CHARS = 300  # no id is longer, whether a scope's or imported
_CLOCK_S = 0.02  # a file's mtime may lag the clock by this much
_UUID = re.compile(rb"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


@dataclass(frozen=True, kw_only=True)
class Erasure:
    """The receipt of one erase or reset.

    number: from 1, without gaps. kinds: the number of erased memories by kind, and of turns as
    "said". rows: the number of erased rows by table. ids: the SHA-256 of the id of each erased
    memory and turn, in hexadecimal. through: for a reset only, the last rowid of `memories` and of
    `turns` before it. previous: the sha256 of the previous receipt, "" for the first.
    """

    number: int
    erased_at: str
    kinds: Mapping[str, int]
    rows: Mapping[str, int]
    ids: tuple[str, ...]
    through: Mapping[str, int]
    previous: str
    sha256: str = ""

    def body(self) -> str:
        """The text that is hashed: all fields but `sha256`, as JSON."""
        fields = {name: value for name, value in asdict(self).items() if name != "sha256"}
        return json.dumps(fields, sort_keys=True)

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "ids": list(self.ids)}


def _hash(text: str | bytes) -> str:
    return hashlib.sha256(text.encode() if isinstance(text, str) else text).hexdigest()


def _tables(connection: sqlite3.Connection) -> list[str]:
    """The tables that can hold something of a memory. The full-text index stores no text itself."""
    rows = connection.execute(
        "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite%' "
        "AND name NOT LIKE 'memories_fts%' ORDER BY name"
    )
    return [name for (name,) in rows if name not in _NOT_LOOKED_THROUGH]


def count_rows(connection: sqlite3.Connection) -> Counter[str]:
    """How many rows each table has."""
    return Counter(
        {
            name: connection.execute(f'SELECT count(*) FROM "{name}"').fetchone()[0]
            for name in _tables(connection)
        }
    )


def add_erasure(
    connection: sqlite3.Connection,
    *,
    kinds: Mapping[str, int],
    ids: Iterable[str],
    before: Counter[str],
    everything: bool = False,
) -> None:
    """Write the receipt of an erase, within its transaction.

    before: `count_rows` before the erase. everything: whether this was a reset.
    """
    last = connection.execute(
        "SELECT number, sha256 FROM erasures ORDER BY number DESC LIMIT 1"
    ).fetchone()
    after, through = count_rows(connection), {}
    if everything:
        through = dict(
            connection.execute(
                "SELECT name, seq FROM sqlite_sequence WHERE name IN ('memories', 'turns')"
            )
        )
    receipt = Erasure(
        number=1 if last is None else last[0] + 1,
        erased_at=utc_now(),
        kinds=dict(kinds),
        rows={name: count - after[name] for name, count in before.items()},
        ids=tuple(sorted(map(_hash, ids))),
        through=through,
        previous="" if last is None else last[1],
    )
    connection.execute(
        "INSERT INTO erasures (number, body, sha256) VALUES (?, ?, ?)",
        (receipt.number, receipt.body(), _hash(receipt.body())),
    )


def last_erasure(store: Store) -> int:
    """The number of the newest erasure; 0 if nothing was ever erased."""
    ((number,),) = store.select("SELECT coalesce(max(number), 0) FROM erasures")
    return int(number)


def erasures(store: Store) -> list[Erasure]:
    """All receipts, the oldest first. An unreadable receipt is left out; `verify` reports it."""
    with store.snapshot() as connection:
        return _receipts(connection)


def _receipts(connection: sqlite3.Connection) -> list[Erasure]:
    rows = connection.execute("SELECT body, sha256 FROM erasures ORDER BY number")
    return [found for row in rows if (found := _read(*row)) is not None]


def with_receipt(store: Store, gone: Sequence[str], turns: Sequence[str] = ()) -> Erased:
    """The result of an erase, with its receipt.

    gone: the ids of the erased memories. turns: the ids of turns that the caller asked to erase.
    """
    wanted = next((_hash(id) for id in (*gone, *turns)), "")
    receipt = next((each for each in reversed(erasures(store)) if wanted in each.ids), None)
    return Erased(tuple(gone), receipt.to_dict() if receipt else None)


def erased_of(store: Store, ids: Sequence[str]) -> set[str]:
    """The ids, among those given, that were erased: see `erasure_test`."""
    return {*filter(erasure_test(store), ids)}


def erasure_test(store: Store) -> Callable[[str], bool]:
    """Tests whether an id was erased until now, here or on another device.

    Ids that a reset took are unknown afterwards, unless the store syncs.
    """
    with store.snapshot() as connection:
        ids = {id for (id,) in connection.execute("SELECT id FROM sync_rows WHERE kind = 'erased'")}
        hashes = {hash for receipt in _receipts(connection) for hash in receipt.ids}
    return lambda id: bool(ids or hashes) and (id in ids or _hash(id) in hashes)


def by_receipts(connection: sqlite3.Connection, ids: Iterable[str]) -> dict[str, str]:
    """The SHA-256 of each id, among those given, that a receipt names."""
    hashes = {id: _hash(id) for id in ids}
    known = {hash for receipt in _receipts(connection) for hash in receipt.ids}
    return {id: hash for id, hash in hashes.items() if hash in known}


def note_roots(connection: sqlite3.Connection, ids: Iterable[str]) -> None:
    """Store which ids were asked to be erased: as they are if the store syncs, or their hashes.

    Other devices then also erase those of their turns that are unknown here.
    """
    connection.execute(
        "INSERT INTO sync_rows SELECT iif(one, 'root', 'asked'), iif(one, j.key, j.value), "
        "ifnull(clock, 0), ifnull(device, ''), ifnull(clock, 0), NULL "
        "FROM json_each(?) j LEFT JOIN sync_self WHERE true ON CONFLICT (kind, id) DO NOTHING",
        (json.dumps({id: _hash(id) for id in ids}),),
    )


def _read(body: str, sha256: str) -> Erasure | None:
    """The receipt, or None if it is not exactly what was written."""
    try:
        fields = json.loads(body)
        found = Erasure(**{**fields, "ids": tuple(fields["ids"]), "sha256": sha256})
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    return found if _hash(body) == sha256 and found.body() == body else None


# -- whether it is gone --------------------------------------------------------------------------


def verify(store: Store, kept: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Search every table and file of a store for the ids of everything that was erased from it.

    kept: what `edgemem erase --json` printed. Its receipt must be in the chain, and its ids are
    searched for as they are. Other ids are found in the bytes of files only if they are UUIDs.
    Holds a copy of the file in memory. Returns, JSON-able: receipts and ids (counts), looked_in
    (tables and files), problems (empty if all is gone). Raises InputError if `kept` is no such
    output.
    """
    receipt, ids = _parsed_receipt(kept)
    with store.snapshot() as connection:
        rows = connection.execute("SELECT number, body, sha256 FROM erasures ORDER BY number")
        found, problems = _chain(connection, rows.fetchall(), receipt)
        erased = {id for each in found for id in each.ids} | set(map(_hash, ids))
        # Sync stores erased ids on purpose, so that no other device brings the rows back.
        tables = [name for name in _tables(connection) if name != "sync_rows"]
        of_sync = {
            id
            for (said,) in connection.execute("SELECT id FROM sync_rows")
            for id in said.split(BETWEEN)
        }
        problems += chain.from_iterable(_in_table(connection, name, erased) for name in tables)
        problems += _from_before_resets(connection, found)
        if meta(connection, SCRUB_WANTED) is not None:
            problems.append(
                "the last erase is not scrubbed from the file yet; open the store while no other "
                "process reads it"
            )
        database = connection.serialize()
    problems += _free_pages(database)
    files = _beside(store.path)
    contents = {"the file": database, **{file.name: file.read_bytes() for file in files}}
    with_sync_rows = ("the file", f"{store.path.name}-wal" if store.path else "")
    not_in_sync = erased - set(map(_hash, of_sync)), [id for id in ids if id not in of_sync]
    for name, data in contents.items():
        problems += _in_bytes(
            name, data, *(not_in_sync if name in with_sync_rows else (erased, ids))
        )
    if found:
        problems += _from_before_erase(files, found[-1].erased_at)
    return {
        "receipts": len(found),
        "ids": len(erased),
        "looked_in": [*tables, *contents],
        "problems": problems,
    }


def _parsed_receipt(kept: Mapping[str, Any] | None) -> tuple[Mapping[str, Any] | None, list[str]]:
    """The receipt that was kept elsewhere, and the ids that were erased. Raises InputError."""
    if kept is None:
        return None, []
    try:
        receipt, ids = kept["receipt"], [row["id"] for row in kept["results"]]
        int(receipt["number"]), str(receipt["sha256"]), "".join(ids)
    except (KeyError, TypeError, ValueError) as exc:
        raise InputError(
            f"this is no receipt ({exc!r:.80}); give what `edgemem erase --json` printed"
        ) from exc
    return receipt, ids


def _chain(
    connection: sqlite3.Connection,
    rows: Iterable[tuple[int, str, str]],
    kept: Mapping[str, Any] | None,
) -> tuple[list[Erasure], list[str]]:
    """The readable receipts, and the problems of their chain."""
    found: list[Erasure] = []
    problems: list[str] = []
    previous, hashes = "", {}
    for place, (number, body, sha256) in enumerate(rows, 1):
        receipt = _read(body, sha256)
        if receipt is None or receipt.number != number:
            problems.append(f"receipt {number} was changed: its hash is not that of its text")
        elif receipt.previous != previous or number != place:
            problems.append(f"a receipt before number {number} was changed or taken out")
        if receipt is not None:
            found.append(receipt)
        previous = hashes[number] = sha256
    last = connection.execute("SELECT seq FROM sqlite_sequence WHERE name = 'erasures'").fetchone()
    if last is not None and last[0] != max(hashes, default=0):
        problems.append(f"the last receipts, up to number {last[0]}, were taken out")
    if kept is not None and hashes.get(kept["number"]) != kept["sha256"]:
        problems.append(f"receipt {kept['number']} is not the one that was kept elsewhere")
    return found, problems


def _in_table(connection: sqlite3.Connection, name: str, erased: set[str]) -> Iterator[str]:
    """A problem for each row that holds the id of something that was erased."""
    for row in connection.execute(f'SELECT * FROM "{name}"') if erased else ():
        if any(
            isinstance(value, str) and len(value) <= _ID_CHARS and _hash(value) in erased
            for value in row
        ):
            yield f"a row of {name} has the id of something that was erased; it was stored again"


def _from_before_resets(connection: sqlite3.Connection, found: Iterable[Erasure]) -> Iterator[str]:
    """A problem for each table that has a row from before a reset. Rowids are never reused."""
    for receipt in found:
        for name, last in receipt.through.items():
            if (
                name in ("memories", "turns")
                and connection.execute(f"SELECT 1 FROM {name} WHERE rowid <= ?", (last,)).fetchone()
            ):
                yield f"a row of {name} is older than the reset of receipt {receipt.number}"


def _free_pages(data: bytes) -> Iterator[str]:
    """Free pages that are not empty. Source: SQLite's file format, 1.5 (the freelist)."""

    def number(at: int) -> int:
        return int.from_bytes(data[at : at + 4], "big")

    size = int.from_bytes(data[16:18], "big") or 512
    size = 65536 if size == 1 else size
    trunk, seen = number(32), set[int]()
    while trunk and trunk not in seen:
        seen.add(trunk)
        at = (trunk - 1) * size
        most = size // 4 - 2
        count = min(number(at + 4), most)
        pages = {number(at + 8 + 4 * n): 0 for n in range(count)}
        # SQLite leaves the numbers of pages that it took from the end of a trunk's list. Those of
        # this file begin with a zero byte, as no text does.
        while count < most and 1 < number(at + 8 + 4 * count) <= len(data) // size:
            count += 1
        pages[trunk] = 8 + 4 * count
        for page, head in pages.items():
            start = (page - 1) * size
            if any(data[start + head : start + size]):
                yield f"page {page} is free and not empty; `VACUUM` was not done with secure_delete"
        trunk = number(at)


def _beside(path: Path | None) -> list[Path]:
    """The non-empty files that belong to the store, without the database file, and hidden
    temporary files in its folder, as a killed export leaves one.

    The database file is not opened here: closing it would drop SQLite's locks on it.
    """
    if path is None:
        return []
    apart = {path.name, f"{path.name}-shm", f"{path.name}.lock"}
    beside = sorted({*path.parent.glob(f"{glob.escape(path.name)}*"), *path.parent.glob(".*.tmp")})
    return [f for f in beside if f.name not in apart and f.is_file() and f.stat().st_size]


def _in_bytes(name: str, data: bytes, erased: set[str], ids: Iterable[str]) -> Iterator[str]:
    uuids = set(_UUID.findall(data)) if erased else ()
    if any(_hash(uuid) in erased for uuid in uuids) or any(id.encode() in data for id in ids):
        yield f"{name} has the id of something that was erased among its bytes"


def _from_before_erase(files: Iterable[Path], erased_at: str) -> Iterator[str]:
    """A problem for each file, but of the vault, that was last written before the last erase."""
    for file in files:
        if file.name.startswith(".") and not file.name.endswith(HALF_EXPORT):
            continue  # perhaps another program's
        if file.suffix != ".vault" and to_utc(file.stat().st_mtime + _CLOCK_S) < erased_at:
            yield f"{file.name} is older than the last erase and may hold what went; delete it"
