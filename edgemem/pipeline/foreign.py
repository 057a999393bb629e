"""Imports the memories of another program, with the vectors that it made.

Knows three shapes: memories as JSON, in lines or in a list, mem0's FAISS folder, and Chroma's
folder, of which only the texts are taken. A Python pickle is never read, as reading one can run
code. So the vectors of Chroma, of mem0's Qdrant folder and of LangChain's FAISS must come as JSON,
which the program that owns them can write.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from edgemem.errors import InputError
from edgemem.inputs import metadata_of, scope_of, text_of, time_of
from edgemem.pipeline.importers import parsed, read_json_lines, unreadable
from edgemem.pipeline.ingest import imported_id
from edgemem.pipeline.upkeep import mapped
from edgemem.results import Aligned, Scope, utc_now
from edgemem.retrieval.lexical import search_text
from edgemem.store import NewMemory
from edgemem.store.erasures import erased_of
from edgemem.store.foreign import chroma_records

if TYPE_CHECKING:
    from edgemem.memory import Memory

__all__ = ["import_foreign", "read_foreign"]

Vectors = NDArray[np.float32]
_ROWS = 500  # memories stored in one transaction
_TEXTS = ("memory", "data", "chroma:document")  # in JSON Lines, in mem0, in Chroma
_NOTES = (".md", ".txt")
_SCOPE = ("user_id", "agent_id", "run_id")
_KNOWN = {*_TEXTS, *_SCOPE, "id", "vector", "metadata", "created_at", "updated_at", "hash"}


def read_foreign(path: str | Path, scope: Scope) -> list[NewMemory]:
    """The memories of another program, as facts with its vectors: (1, d), or (0, 0) for none.

    path: `{"memory": …, "vector"?: […], "id"?, "user_id"?, "agent_id"?, "run_id"?, "created_at"?,
    "metadata"?}` in each line, in a JSON list, or in mem0's `{"results": […]}`; a folder of mem0's
    FAISS (NAME.faiss, flat, and NAME.json); a folder of Chroma, without vectors.
    scope: gives the ids that a memory lacks. Raises InputError on anything else, naming the place,
    and on vectors of several dimensions.
    """
    path = Path(path)
    rows = _folder(path) if path.is_dir() else _rows(path)
    found = [_memory(*row, scope) for row in rows]
    sizes = {item.vectors.shape[1] for item in found if len(item.vectors)}
    if len(sizes) > 1:
        raise InputError(
            f"{path} holds vectors of {' and '.join(map(str, sorted(sizes)))} dimensions; give "
            "those of one model at a time"
        )
    return found


def import_foreign(
    memory: Memory,
    items: Sequence[NewMemory],
    on_progress: Callable[[int, int], None] | None = None,
) -> Aligned:
    """Store the memories that `read_foreign` found, but none whose id is stored or was erased.

    A sample of the memories with vectors is embedded, and by it the other vectors are mapped. All
    are embedded if they are no more than a sample, or if no map can be fitted: the vectors vary too
    little, or one is not finite. on_progress: called with (embedded, to be embedded).
    """
    ids = [item.id for item in items]
    known = {*memory.store.get(ids, include_deleted=True), *erased_of(memory.store, ids)}
    new = [item for item in {item.id: item for item in items}.values() if item.id not in known]
    texts = [(item.id, item.search_text) for item in new]
    held = {item.id: item.vectors for item in new if len(item.vectors)}
    try:
        made, n_mapped = mapped(memory.embedder, texts, held, on_progress=on_progress)
    except InputError:
        made, n_mapped = mapped(memory.embedder, texts, {}, on_progress=on_progress)
    for start in range(0, len(new), _ROWS):
        with memory._writing() as tx:
            for item in new[start : start + _ROWS]:
                tx.add_memory(replace(item, vectors=made[item.id, item.search_text]))
    return Aligned(n_mapped, len(new) - n_mapped)


# -- files and folders -----------------------------------------------------------------------


_Row = tuple[object, Any, Any, str]
"""A memory as another program has it, unchecked: id, what it holds, vector, and where it stands."""


def _memory(id: object, row: Any, vector: Any, where: str, scope: Scope) -> NewMemory:
    """A memory of another program, checked. row: its text, scope, time and metadata."""
    try:
        if not isinstance(row, dict):
            raise ValueError("it is no JSON object")
        text = text_of(next((row[name] for name in _TEXTS if name in row), None), "memory")
        vectors = np.array([[]] if vector is None else [vector], np.float32)
        if vector is not None and (vectors.ndim != 2 or not vectors.size):
            raise ValueError("its vector is no list of numbers")
        full = scope_of(*(row.get(name) or getattr(scope, name) for name in _SCOPE))
        when = time_of(row.get("created_at"), "created_at")
        extra = {key: value for key, value in row.items() if key not in _KNOWN}
        return NewMemory(
            id=imported_id(id, full),
            kind="fact",
            memory=text,
            search_text=search_text(text, when=when),
            scope=full,
            created_at=when or utc_now(),
            valid_from=when,
            vectors=vectors if vectors.size else np.empty((0, 0), np.float32),
            metadata=metadata_of({**(row.get("metadata") or {}), **extra}),
        )
    except (ValueError, TypeError) as exc:
        raise InputError(f"{where} cannot be stored: {exc}") from exc


def _rows(path: Path) -> Iterator[_Row]:
    whole = read_json_lines(path)
    held = whole["results"] if isinstance(whole, dict) and "results" in whole else whole
    for number, row in enumerate(held if isinstance(held, list) else [held], 1):
        found = row if isinstance(row, dict) else {}
        id = found.get("id") or found.get("memory")
        yield id, row, found.get("vector"), f"memory {number} of {path}"


def _folder(path: Path) -> Iterator[_Row]:
    if (file := path / "chroma.sqlite3").is_file():
        for (collection, id), record in chroma_records(file).items():
            if any(name in record for name in _TEXTS):  # some are vectors without a text
                yield [collection, id], record, None, f"{id!r} of {file}"
        return
    indexes = sorted(file for file in path.glob("*.faiss") if file.with_suffix(".json").is_file())
    if not indexes and (notes := [file for end in _NOTES for file in path.rglob(f"*{end}")]):
        raise InputError(
            f"{path} is a folder of texts, such as {notes[0].name}. Import each chat by its own "
            "file; `edgemem add - --timestamp TIME < FILE` stores a note as one text of that time"
        )
    if not indexes:
        raise InputError(
            f"{path} has neither chroma.sqlite3 nor a NAME.faiss beside its NAME.json. Python "
            "pickles (Qdrant's storage.sqlite, an index.pkl) are not read, for they can run code: "
            'let the program that owns them write lines of JSON, {"memory": TEXT, "vector": '
            "[NUMBERS]}, and import that file"
        )
    for index in indexes:
        docs, vectors = index.with_suffix(".json"), _flat(index)
        held = parsed(_read(docs), str(docs))
        try:
            rows = [(id, held["docstore"][id], vectors[int(place)])
                    for place, id in held["index_to_id"].items()]  # fmt: skip
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as exc:
            raise InputError(f"{docs} does not fit {index} ({exc!r}); copy both again") from exc
        for id, row, vector in rows:
            yield id, row, vector, f"{id!r} of {docs}"


def _flat(file: Path) -> Vectors:
    """The (n, d) vectors of a FAISS index without compression: IndexFlatL2, IndexFlatIP."""
    head, raw = struct.Struct("<4siqqqBiQ"), _read(file)
    _, d, n, *_, count = head.unpack_from(raw.ljust(head.size, b"\0"))
    flat = raw[:4] in (b"IxF2", b"IxFI") and n >= 0 and d > 0
    if not flat or count != n * d or len(raw) != head.size + 4 * count:
        raise InputError(f"{file} is damaged, or no flat FAISS index; import lines of JSON instead")
    return np.frombuffer(raw, "<f4", offset=head.size).reshape(n, d).astype(np.float32)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except (OSError, ValueError) as exc:
        raise unreadable(path, exc) from exc
