"""Images: their rows, their files beside the store, and their rows in an export.

An image of at most INLINE_BYTES is stored in its row. A larger one is a file in the folder
`STORE.images`, named by its SHA-256. Files are written and deleted under the store's write lock,
and written before the transaction commits. So a file without a row belongs to an uncommitted write
or to an erased image, and is swept. A store in memory and a vault have no folder.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgemem.cachefile import disk_errors, replace_file, sync_folder
from edgemem.errors import InputError, StoreCorrupt, StoreError
from edgemem.results import ImageLine, Picture, utc_now
from edgemem.store.database import roll_back
from edgemem.store.rows import LISTED, OF_IMAGE, as_json, damaged

if TYPE_CHECKING:
    from edgemem.store.store import Store
    from edgemem.store.writing import Transaction

__all__ = ["image", "lines", "looks", "of_turns", "shown_by", "text_of", "uncaptioned", "unread"]
__all__ += ["without_embedding"]

INLINE_BYTES = 65_536  # an erase rewrites the whole database, and would copy every photo in it


def folder_of(path: Path | None) -> Path | None:
    """The folder of a store's larger images, which may not exist; None for a store in memory."""
    return None if path is None else path.with_name(path.name + ".images")


# -- writing: in a transaction ----------------------------------------------------------------


def insert(tx: Transaction, picture: Picture, created_at: str | None = None) -> bool:
    """Store an image; False if it is stored already. created_at: ISO-8601 UTC, None for now.

    Of an image whose bytes were lost the bytes are stored again. Without data, as in an export of
    such an image, the rest is stored.
    """
    with tx.step() as connection:
        if connection.execute("SELECT 1 FROM images WHERE id = ?", (picture.id,)).fetchone():
            return restore(tx, picture.id, picture.data)
        data = _placed(tx, picture.id, picture.data)
        tx.insert(
            "images",
            **{name: getattr(picture, name) for name in _FACTS},
            animated=int(picture.animated),
            thumbnail=picture.thumbnail,
            data=data,
            created_at=created_at or utc_now(),
        )
        return True


def _placed(tx: Transaction, id: str, data: bytes) -> bytes | None:
    """The bytes for an image's row; None if they were written to the folder, or there are none."""
    if tx.images_folder is None or len(data) <= INLINE_BYTES:
        return data or None
    _write(tx.images_folder, id, data)
    return None


def restore(tx: Transaction, id: str, data: bytes) -> bool:
    """Store the bytes of a stored image again if they were lost or changed; returns whether."""
    with tx.step() as connection:
        if hashlib.sha256(data).hexdigest() != id or _whole(connection, tx.images_folder, id):
            return False
        done = connection.execute(
            "UPDATE images SET data = ?, size_bytes = ? WHERE id = ?",
            (_placed(tx, id, data), len(data), id),
        )
        return done.rowcount > 0


def link(
    connection: sqlite3.Connection, memory: int, id: str, caption: str | None, by: str | None
) -> bool:
    """Link a memory (its rowid) to an image (its id), with a caption; False if already linked."""
    done = connection.execute(
        "INSERT OR IGNORE INTO memory_images (memory, image, caption, caption_by) "
        "VALUES (?, ?, ?, ?)",
        (memory, id, caption, by),
    )
    return done.rowcount > 0


def _write(folder: Path, name: str, data: bytes) -> None:
    with disk_errors(
        f"an image cannot be written to {folder}",
        "free some disk space, or make the folder writable",
    ):
        with suppress(FileExistsError):
            folder.mkdir(0o700)
            sync_folder(folder.parent)
        replace_file(folder / name, data)


def copy_into_rows(connection: sqlite3.Connection, folder: Path) -> None:
    """Copy the images in the folder into their rows. The caller keeps every other writer out.

    A row whose file is missing stays without data. An old schema may have no table of images.
    """
    if connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'images'").fetchone():
        for (id,) in connection.execute("SELECT id FROM images WHERE data IS NULL").fetchall():
            with suppress(FileNotFoundError):
                data = (folder / id).read_bytes()
                connection.execute("UPDATE images SET data = ? WHERE id = ?", (data, id))


def sweep(connection: sqlite3.Connection, folder: Path | None) -> None:
    """Delete the files that belong to no image, and the folder if it is then empty.

    No transaction may be open. Raises StoreFull if a file cannot be deleted.
    """
    if folder is None or not _strays(connection, folder):
        return
    connection.execute("BEGIN IMMEDIATE")  # who wrote a file has committed its row by now
    try:
        with disk_errors(
            f"an image that was erased cannot be deleted from {folder}",
            "make the folder writable and open the store again, or delete the file yourself",
        ):
            for name in _strays(connection, folder):
                (folder / name).unlink(missing_ok=True)
            sync_folder(folder)  # or a power failure may bring the files back
        with suppress(OSError):
            folder.rmdir()
            sync_folder(folder.parent)
    finally:
        roll_back(connection)


def _strays(connection: sqlite3.Connection, folder: Path) -> set[str]:
    try:
        found = set(os.listdir(folder))
    except OSError:
        return set()
    rows = connection.execute("SELECT id FROM images WHERE data IS NULL")
    return found - {row[0] for row in rows}


# -- reading -----------------------------------------------------------------------------------

_FACTS = (*OF_IMAGE, "phash", "ocr_text", "ocr_boxes")
_COLUMNS = f"{', '.join(f'i.{name}' for name in _FACTS)}, i.animated, i.thumbnail"
_ALIVE = "memory_images l JOIN memories m ON m.rowid = l.memory AND m.deleted_at IS NULL"
_KNOWN = f"EXISTS (SELECT 1 FROM {_ALIVE} WHERE l.image = i.id)"


def image(store: Store, id: str, *, with_data: bool = True) -> Picture | None:
    """An image, or None if no memory (not deleted) has it. with_data: False leaves `data` empty."""
    with store.snapshot() as connection:
        row = connection.execute(
            f"SELECT {_COLUMNS} FROM images i WHERE i.id = ? AND {_KNOWN}", (id,)
        ).fetchone()
        if row is None:
            return None
        data = _data(connection, store.images_folder, id) if with_data else b""
    *facts, animated, thumbnail = row
    known = dict(zip(_FACTS, facts, strict=True))
    return Picture(**known, animated=bool(animated), thumbnail=thumbnail, data=data)


def shown_by(store: Store, id: str) -> list[str]:
    """The ids of the memories (not deleted) that have an image, oldest first."""
    rows = store.select(f"SELECT m.id FROM {_ALIVE} WHERE l.image = ? ORDER BY m.rowid", id)
    return [row[0] for row in rows]


def text_of(store: Store, id: str) -> str | None:
    """The text that was read in an image; None if it is not stored, or was not read yet."""
    rows = store.select("SELECT ocr_text FROM images WHERE id = ?", id)
    return rows[0][0] if rows else None


def unread(store: Store, limit: int | None = None) -> list[str]:
    """The ids of images of memories (not deleted) whose text was not read yet, oldest first."""
    return _ids(store, "i.ocr_state = 'pending'", limit)


def without_embedding(store: Store, model_id: str, limit: int | None = None) -> list[str]:
    """The ids of images of memories (not deleted) without an embedding by this model."""
    return _ids(store, "i.embedding_model IS NOT ?", limit, model_id)


def _ids(store: Store, condition: str, limit: int | None, *params: str) -> list[str]:
    sql = f"SELECT i.id FROM images i WHERE {condition} AND {_KNOWN} ORDER BY i.rowid LIMIT ?"
    return [row[0] for row in store.select(sql, *params, -1 if limit is None else limit)]


def looks(
    store: Store, rowids: Sequence[int], model_id: str | None
) -> list[tuple[int, str, bytes | None]]:
    """(rowid, perceptual hash, embedding) of each image of these memories, given by rowid.

    The embedding is None unless this model made it.
    """
    return store.select(
        "SELECT l.memory, i.phash, CASE WHEN i.embedding_model = ? THEN i.embedding END "
        f"FROM memory_images l JOIN images i ON i.id = l.image WHERE l.memory {LISTED} "
        "ORDER BY l.memory",
        model_id,
        as_json(rowids),
    )


def lines(store: Store, ids: Iterable[str]) -> dict[str, list[ImageLine]]:
    """The lines that were read in images, by image id. Images that were not read are left out."""
    sql = f"SELECT id, ocr_boxes FROM images WHERE id {LISTED} AND ocr_boxes IS NOT NULL"
    return {id: _lines(boxes) for id, boxes in store.select(sql, as_json(ids))}


def _lines(boxes: str) -> list[ImageLine]:
    return [
        ImageLine(row["text"], row["confidence"], tuple((x, y) for x, y in row["box"]))
        for row in json.loads(boxes)
    ]


def of_turns(store: Store, turns: Iterable[str]) -> dict[str, list[str]]:
    """The ids of the images that came with turns, by turn id, oldest first."""
    rows = store.select(
        f"SELECT t.id, l.image FROM {_ALIVE} JOIN memory_sources s ON s.memory = m.rowid "
        f"JOIN turns t ON t.rowid = s.turn WHERE t.id {LISTED} ORDER BY m.rowid",
        as_json(turns),
    )
    found: dict[str, list[str]] = {}
    for turn, image_id in rows:
        found.setdefault(turn, []).append(image_id)
    return found


def uncaptioned(store: Store, limit: int) -> list[tuple[str, str]]:
    """(memory id, image id) of memories (not deleted) without a caption, oldest first."""
    sql = f"SELECT m.id, l.image FROM {_ALIVE} WHERE l.caption IS NULL ORDER BY m.rowid LIMIT ?"
    return [(row[0], row[1]) for row in store.select(sql, limit)]


def _data(connection: sqlite3.Connection, folder: Path | None, id: str) -> bytes:
    row = connection.execute("SELECT data FROM images WHERE id = ?", (id,)).fetchone()
    if row is None:  # a damaged index names an image that no row has
        raise damaged(f"the image {id} has no row")
    if row[0] is not None:
        return bytes(row[0])
    if folder is None:  # an export lacked its bytes
        raise _gone(connection, id, "has no bytes")
    try:
        return (folder / id).read_bytes()
    except OSError as exc:
        why = f"cannot be read from {folder} ({exc.strerror or exc})"
        raise _gone(connection, id, why) from exc


def _gone(connection: sqlite3.Connection, id: str, why: str) -> StoreCorrupt:
    sql = (
        "SELECT m.id FROM memory_images l JOIN memories m ON m.rowid = l.memory WHERE l.image = ? "
        "ORDER BY m.rowid"
    )
    memories = [row[0] for row in connection.execute(sql, (id,))]
    of = f"the memory {memories[0]}" if len(memories) == 1 else f"memories ({', '.join(memories)})"
    return StoreCorrupt(
        f"the image {id} of {of} {why}; add the photo again, put its file back from a backup, or "
        f"erase what has it (`edgemem erase {' '.join(memories)}`); exports and sync go on without "
        "its bytes"
    )


def _whole(connection: sqlite3.Connection, folder: Path | None, id: str) -> bytes:
    """The bytes of an image; b"" if they are lost or changed."""
    try:
        data = _data(connection, folder, id)
    except StoreCorrupt:
        return b""
    return data if hashlib.sha256(data).hexdigest() == id else b""


def problems(connection: sqlite3.Connection, folder: Path | None) -> list[str]:
    """A sentence for each image whose bytes are missing or changed."""
    found = []
    for (id,) in connection.execute("SELECT id FROM images ORDER BY id").fetchall():
        try:
            if hashlib.sha256(_data(connection, folder, id)).hexdigest() != id:
                found.append(str(_gone(connection, id, "has other bytes than it had")))
        except StoreError as exc:
            found.append(str(exc))
    return found


# -- exports -----------------------------------------------------------------------------------


def export_images(connection: sqlite3.Connection, folder: Path | None) -> Iterator[dict[str, Any]]:
    """Every image as a JSON-able dict, with its bytes in base64 and its links to memories.

    Of an image whose bytes are lost, `data` is empty. The caller holds a snapshot.
    """
    # One at a time, because images are large.
    for (id,) in connection.execute("SELECT id FROM images ORDER BY created_at, id").fetchall():
        yield export_image(connection, folder, id)


def export_image(connection: sqlite3.Connection, folder: Path | None, id: str) -> dict[str, Any]:
    """One row of `export_images`."""
    row = connection.execute(f"SELECT {_COLUMNS}, created_at FROM images i WHERE id = ?", (id,))
    *facts, animated, thumbnail, created_at = row.fetchone()
    links = connection.execute(
        "SELECT m.id, l.caption, l.caption_by FROM memory_images l JOIN memories m "
        "ON m.rowid = l.memory WHERE l.image = ? ORDER BY m.rowid",
        (id,),
    )
    out = dict(zip(_FACTS, facts, strict=True))
    del out["size_bytes"]
    return {
        "type": "image",
        **out,
        "animated": bool(animated),
        "created_at": created_at,
        "memories": [
            dict(zip(("memory_id", "caption", "caption_by"), link, strict=True)) for link in links
        ],
        "thumbnail": base64.b64encode(thumbnail).decode(),
        "data": base64.b64encode(_whole(connection, folder, id)).decode(),
    }


def import_image(tx: Transaction, row: Mapping[str, Any]) -> bool:
    """Store an exported image and its links to memories; returns whether anything is new.

    Does nothing if none of its memories is stored. Raises InputError on malformed `ocr_boxes`.
    """
    with tx.step() as connection:
        wanted = as_json(each["memory_id"] for each in row["memories"])
        sql = f"SELECT id, rowid FROM memories WHERE id {LISTED}"
        rowids = dict(connection.execute(sql, (wanted,)).fetchall())
        if not rowids:
            return False  # its memories were erased meanwhile
        if row["ocr_boxes"] is not None:
            try:
                _lines(row["ocr_boxes"])
            except (ValueError, KeyError, TypeError) as exc:
                raise InputError(
                    "an image has no list of {text, confidence, box} in 'ocr_boxes' "
                    f"({exc!r}); export it again"
                ) from exc
        picture = Picture(
            **{name: row[name] for name in _FACTS if name != "size_bytes"},
            size_bytes=len(row["data"]),
            animated=bool(row["animated"]),
            data=row["data"],
            thumbnail=row["thumbnail"],
        )
        new = insert(tx, picture, row["created_at"])
        for each in row["memories"]:
            if (rowid := rowids.get(each["memory_id"])) is not None:
                new |= link(connection, rowid, row["id"], each["caption"], each["caption_by"])
        return new
