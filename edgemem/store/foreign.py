"""Reads another program's SQLite file: Chroma's, which is opened read-only.

Knows Chroma's tables; knows nothing of edgemem's.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from edgemem.errors import InputError

__all__ = ["chroma_records"]


def chroma_records(file: Path) -> dict[tuple[str, str], dict[str, Any]]:
    """The metadata of each record of a chroma.sqlite3, by collection and id, in stored order.

    The text is the value of "chroma:document". The file holds only the latest vectors, so none are
    read. Raises InputError if the file is not Chroma's, or its version is before 0.4.15.
    """
    found: dict[tuple[str, str], dict[str, Any]] = {}
    try:
        with closing(sqlite3.connect(f"{file.resolve().as_uri()}?mode=ro", uri=True)) as connection:
            for collection, id, created_at, key, *values, true in connection.execute(
                "SELECT c.name, e.embedding_id, e.created_at, m.key, m.string_value, m.int_value, "
                "m.float_value, m.bool_value FROM embeddings e "
                "JOIN segments s ON s.id = e.segment_id JOIN collections c ON c.id = s.collection "
                "JOIN embedding_metadata m ON m.id = e.id ORDER BY e.id"
            ):
                record = found.setdefault((collection, id), {"created_at": f"{created_at}+00:00"})
                value = bool(true) if true is not None else None
                record[key] = next((v for v in values if v is not None), value)
    except (sqlite3.Error, UnicodeDecodeError) as exc:
        raise InputError(
            f"{file} cannot be read as Chroma's file ({exc}); give the folder of a Chroma of "
            "version 0.4.15 or later that no program is writing to"
        ) from exc
    return found
