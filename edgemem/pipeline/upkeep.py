"""Upkeep of a store: export, import, reindex, align, doctor.

Memory's methods of the same names call these functions, and document them.
"""

from __future__ import annotations

import base64
import json
import logging
import os
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import partial
from itertools import chain
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from edgemem import kernels
from edgemem import vault as vaults
from edgemem.budget import Plan
from edgemem.cachefile import HALF_EXPORT, half_exports, replacing
from edgemem.errors import InputError, StoreCorrupt, StoreFull
from edgemem.inputs import holds_nul, of_type, shown
from edgemem.pipeline import graph
from edgemem.pipeline.ingest import EXTRACT
from edgemem.results import Aligned, to_utc
from edgemem.retrieval import alignment as alignments
from edgemem.retrieval.lexical import embedded_text
from edgemem.runtime.embedder import Embedder, TokenEmbedder
from edgemem.runtime.encoder import Encoder
from edgemem.store import Store, foreign, images
from edgemem.store.database import copies, resolved
from edgemem.store.encryption import is_of_store
from edgemem.store.erasures import erased_of, verify
from edgemem.store.relations import unread_facts
from edgemem.store.rows import import_rows
from edgemem.vault import Vault

if TYPE_CHECKING:
    from edgemem.memory import Memory

__all__ = ["SEALED", "align", "doctor", "embed_tokens", "export_jsonl", "export_pgvector"]
__all__ += ["import_jsonl", "mapped", "opened_lines", "read_relations", "reindex", "vectors_of"]

_log = logging.getLogger(__name__)

Vectors = NDArray[np.float32]
Item = TypeVar("Item")
BATCH = 64
"""Items that are embedded or read in one batch."""
PAIRS = 1000
"""Texts that `align` embeds anew, to map the vectors of all others (bench/LOG.md, 2026-11-25)."""
_TIMES = (
    "timestamp", "taken_at", "created_at", "updated_at", "valid_from", "valid_to", "expires_at",
    "deleted_at", "next_try_at",
)  # fmt: skip


def _batched(
    items: Sequence[Item], on_progress: Callable[[int, int], None] | None
) -> Iterator[Sequence[Item]]:
    """BATCH items at a time; after each batch, on_progress is called with (done, total)."""
    for start in range(0, len(items), BATCH):
        batch = items[start : start + BATCH]
        yield batch
        if on_progress is not None:
            on_progress(start + len(batch), len(items))


def vectors_of(embedder: Embedder, search_texts: Iterable[str]) -> list[Vectors]:
    """The vectors of memories, (c, dim) for each, from their search texts."""
    return embedder.embed_chunks([embedded_text(text) for text in search_texts])


# -- export and import -----------------------------------------------------------------------


def export_jsonl(
    store: Store, file: str | Path | IO[str], *, user_id: str | None = None, sealed: bool = False
) -> int:
    """Write the rows of a store as lines of JSON; returns how many. See `Memory.export_jsonl`."""
    count = 0
    bare: list[str] = []  # memories whose image has lost its bytes
    rows = cast("Generator[dict[str, Any], None, None]", store.export_rows())
    # `rows` holds a snapshot, and an erase waits for that; so it is closed in any case.
    with _replacing(file) as out, closing(rows):
        wanted = rows if user_id is None else _of_user(rows, user_id)
        lines = (json.dumps(row, ensure_ascii=False) for row in _noting_bare(wanted, bare))
        for line in _sealed_lines(store, lines) if sealed else lines:
            out.write(line + "\n")
            count += 1
    if bare:
        _log.warning(
            "The export has no bytes of the photos of these memories, as the store has lost them: "
            "%s; `edgemem doctor` says what to do.", ", ".join(bare),
        )  # fmt: skip
    return count - 2 * sealed


def _noting_bare(rows: Iterable[dict[str, Any]], bare: list[str]) -> Iterator[dict[str, Any]]:
    """The rows; the ids of the memories whose image has no bytes are added to `bare`."""
    for row in rows:
        if row["type"] == "image" and not row["data"]:
            bare += [link["memory_id"] for link in row["memories"]]
        yield row


def _of_user(rows: Iterable[dict[str, Any]], user_id: str) -> Iterator[dict[str, Any]]:
    """The rows of an export that are a user's own, or that belong to a memory of the user.

    Memories come before the rows that belong to them.
    """
    mine: set[str] = set()
    for row in rows:
        if row["type"] == "image":
            row["memories"] = [link for link in row["memories"] if link["memory_id"] in mine]
            wanted = bool(row["memories"])
        elif "memory_id" in row:
            wanted = row["memory_id"] in mine
        else:
            wanted = row["user_id"] == user_id
            if wanted and row["type"] == "memory":
                mine.add(row["id"])
        if wanted:
            yield row


# A sealed export is a line of JSON with the ways to the key (see `vault`), then each row sealed for
# its line number, then a sealed empty row. So no line can be changed, moved or cut off unnoticed.
SEALED = '{"type": "sealed", '


def _sealed_lines(store: Store, lines: Iterable[str]) -> Iterator[str]:
    if store.vault is None or store.path is None:
        raise InputError(
            "a plain store has no key to seal an export with; run `edgemem vault lock`"
        )
    none = {"format": vaults.FORMAT, "id": store.vault.id, "state": "locked", "ways": []}
    yield SEALED + json.dumps(vaults.read(store.path) or none).removeprefix("{")
    for number, line in enumerate(chain(lines, [""]), 1):
        yield base64.b64encode(store.vault.seal(line.encode(), f"export {number}")).decode()


def opened_lines(
    lines: Iterable[str], vault: Vault | None, passphrase: str | None = None
) -> Iterator[str]:
    """The lines of an export, decrypted if they are sealed. vault: that of the importing store.

    passphrase: opens an export of another vault. Raises VaultLocked, or InputError on a line that
    was changed.
    """
    lines = iter(lines)
    first = next(lines, "")
    if not first.startswith(SEALED):
        yield first
        yield from lines
        return
    try:
        ways = vaults.checked(json.loads(first))
    except (ValueError, RecursionError) as exc:
        raise InputError(f"the export's first line is damaged ({exc}); export it again") from exc
    plain = vault is None
    if vault is None or vault.id != ways["id"]:
        vault = vaults.open_ways(ways, "the export", passphrase, vaults.IMPORT_VARIABLE)
    if plain:
        _log.warning(
            "The export was encrypted, and the store that it is imported into is not: "
            "`edgemem vault lock` encrypts it."
        )
    yield "\n"  # so that the rows keep their line numbers
    for number, line in enumerate(lines, 1):
        try:
            row = vault.unseal(base64.b64decode(line), f"export {number}").decode()
        except (ValueError, StoreCorrupt) as exc:
            raise InputError(
                f"line {number + 1} of the sealed export was changed or moved; export it again"
            ) from exc
        if not row:
            return
        yield row
    raise InputError("the sealed export was cut off; what came before is stored; export it again")


def export_pgvector(store: Store, file: str | Path | IO[str]) -> int:
    """Write a store as SQL for `psql` (see `store.foreign`); returns how many rows."""
    with _replacing(file) as out:
        return foreign.write_sql(store, out)


def import_jsonl(
    memory: Memory, file: str | Path | Iterable[str], on_progress: Callable[[int], None] | None
) -> int:
    """Store the rows of an export; returns how many were new. See `Memory.import_jsonl`."""
    vectors_for = partial(vectors_of, memory.embedder)
    with _opened(file) as lines:
        rows = _rows(opened_lines(lines, memory.store.vault), on_progress)
        erased = partial(erased_of, memory.store)
        return sum(import_rows(memory._writing, rows, vectors_for, erased).values())


@contextmanager
def _replacing(file: str | Path | IO[str]) -> Iterator[IO[str]]:
    """A temporary file to write, readable by its owner only, which replaces the path once it is
    whole. An open file, a pipe or a terminal is written directly. Raises StoreFull, and InputError
    on a file of a store."""
    if not isinstance(file, str | Path):
        if not hasattr(file, "write"):
            raise TypeError(f"file must be a path or an open text file, not {type(file).__name__}")
        yield file
        return
    path = _usable(file)
    if is_of_store(resolved(path)):
        raise InputError(f"{path} is a store, or belongs to one; give another file to export to")
    try:
        given = Path(file)  # the link of a pipe such as /dev/stdout leads to no path
        if given.exists() and not given.is_file():  # a pipe or a terminal
            with given.open("w", encoding="utf-8", newline="\n") as out:
                yield out
            return
        for left in half_exports(path.parent, path.name):
            left.unlink(missing_ok=True)
        text: dict[str, Any] = {"encoding": "utf-8", "newline": "\n"}
        with replacing(path, "w", suffix=HALF_EXPORT, **text) as out:
            yield out
    except OSError as exc:
        raise StoreFull(
            f"cannot write the export to {path} ({exc.strerror or exc}); check that its folder is "
            "there, writable and has room, or choose another path"
        ) from exc


@contextmanager
def _opened(file: str | Path | Iterable[str]) -> Iterator[Iterable[str]]:
    if not isinstance(file, str | Path):
        yield (of_type(line, str, "a line of an export must be a string") for line in file)
        return
    try:
        lines = _usable(file).open(encoding="utf-8-sig")
    except OSError as exc:
        raise InputError(
            f"cannot open {file} ({exc.strerror or exc}); give a file of `edgemem export`"
        ) from exc
    with lines:
        yield lines


def _usable(path: str | Path) -> Path:
    """The path with its links resolved. Raises InputError if it is no usable path."""
    try:
        os.fsencode(path)
        return Path(path).resolve()
    except (OSError, ValueError, RuntimeError) as exc:
        raise InputError(f"{str(path)!r} is no usable path ({exc}); give another") from exc


def _rows(
    file: Iterable[str], on_progress: Callable[[int], None] | None
) -> Iterator[dict[str, Any]]:
    for number, line in _lines(file):
        if line.strip():
            yield _row(line, number)
            if on_progress is not None:
                on_progress(number)


def _lines(file: Iterable[str]) -> Iterator[tuple[int, str]]:
    number = 0
    try:
        for number, line in enumerate(file, 1):
            yield number, line
    except UnicodeDecodeError as exc:
        raise InputError(
            f"the import is no UTF-8 text after line {number} ({exc.reason}); give a file of "
            "`edgemem export`"
        ) from exc
    except OSError as exc:
        raise InputError(
            f"the import cannot be read after line {number} ({exc.strerror or exc}); run it again, "
            "what is stored is passed over"
        ) from exc


def _row(line: str, number: int) -> dict[str, Any]:
    """The row of a line, with its times as the store has them. The store checks all else."""
    try:
        row = json.loads(line)
        nul = holds_nul(row)
    except (ValueError, RecursionError) as exc:
        raise InputError(
            f"line {number} is no JSON ({exc}); give a file of `edgemem export`"
        ) from exc
    if not isinstance(row, dict):
        raise InputError(f"line {number} is no JSON object; give a file of `edgemem export`")
    if nul:
        raise InputError(f"line {number} holds a NUL character; remove it")
    if row.get("type") == "pending" and row.get("task") == EXTRACT:
        payload = row.get("payload")
        turns = payload.get("turns") if isinstance(payload, dict) else None
        if not isinstance(turns, list) or not all(isinstance(turn, str) for turn in turns):
            raise InputError(
                f"line {number}: the payload of a pending extraction has no list of turn ids in "
                "'turns'; give a file of `edgemem export`"
            )
    for name in _TIMES:
        if isinstance(value := row.get(name), str):
            try:
                row[name] = to_utc(value)
            except ValueError as exc:
                raise InputError(
                    f"line {number}: {name} is {shown(value)}; give ISO-8601 text such as "
                    "2024-05-01T10:00:00.000+00:00"
                ) from exc
    return row


# -- reindex, align and doctor ---------------------------------------------------------------


def reindex(
    store: Store, embedder: Embedder, on_progress: Callable[[int, int], None] | None
) -> int:
    """Give all memories vectors of this embedder; returns how many memories. All or nothing."""
    made = _embedded(embedder, [*store.search_texts().items()], on_progress)
    return _replace_vectors(store, embedder, made, aligned_from=None)


def align(
    store: Store,
    embedder: Embedder,
    pairs: tuple[Vectors, Vectors] | None,
    on_progress: Callable[[int, int], None] | None,
) -> Aligned:
    """See `Memory.align`."""
    before = store.meta("embedder_model")
    if before in (None, embedder.model_id):
        return Aligned(0, 0)
    items = [*store.search_texts().items()]
    made, n_mapped = mapped(embedder, items, store.vectors(), pairs, on_progress)
    total = _replace_vectors(store, embedder, made, aligned_from=before if n_mapped else None)
    return Aligned(n_mapped, total - n_mapped)


def mapped(
    embedder: Embedder,
    items: Sequence[tuple[str, str]],
    held: Mapping[str, Vectors],
    pairs: tuple[Vectors, Vectors] | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> tuple[dict[tuple[str, str], Vectors], int]:
    """The vectors of memories in the embedder's space, and how many memories' were mapped to it.

    items: (id, search text) each. held: by id the vectors of another model, (c, d); a memory
    without them is embedded. pairs: as for `Memory.align`; None embeds a sample for them. Raises
    InputError if no map can be fitted.
    """
    given = [item for item in items if item[0] in held]
    dim = max((vectors.shape[1] for vectors in held.values()), default=0)
    sample = _sample(given, embedder.dim, dim) if pairs is None else []
    without = [item for item in items if item[0] not in held]
    made = _embedded(embedder, [*sample, *without], on_progress)
    left = [item for item in given if item not in made]
    if pairs is None:
        if not left:
            return made, 0
        x = np.stack([held[id].mean(axis=0) for id, _ in sample])
        pairs = x, np.stack([made[item].mean(axis=0) for item in sample])
    alignment = alignments.fit(*pairs)
    if (dim := len(alignment.shift)) != embedder.dim:
        raise InputError(
            f"the second vectors of the pairs have {dim} dimensions, and the embedder "
            f"{embedder.model_id} has {embedder.dim}; give (the other's vectors, this one's)"
        )
    if left:
        vectors = alignment.map(np.concatenate([held[id] for id, _ in left]))
        ends = np.cumsum([len(held[id]) for id, _ in left])
        made.update(zip(left, np.split(vectors, ends[:-1]), strict=True))
    return made, len(left)


def _sample(items: Sequence[Item], dim: int, other_dim: int) -> list[Item]:
    """The items to embed anew so that the others can be mapped, from all parts of the list.

    max(PAIRS, twice the smaller dimension) of them in order, or all if there are no more. dim,
    other_dim: the dimensions of the two models' vectors.
    """
    count = min(max(PAIRS, 2 * min(dim, other_dim)), len(items))
    return [items[i * len(items) // count] for i in range(count)]


def _embedded(
    embedder: Embedder,
    items: Sequence[tuple[str, str]],
    on_progress: Callable[[int, int], None] | None = None,
) -> dict[tuple[str, str], Vectors]:
    made: dict[tuple[str, str], Vectors] = {}
    for batch in _batched(items, on_progress):
        made.update(zip(batch, vectors_of(embedder, (text for _, text in batch)), strict=True))
    return made


def _replace_vectors(
    store: Store,
    embedder: Embedder,
    made: dict[tuple[str, str], Vectors],
    *,
    aligned_from: str | None,
) -> int:
    """Store vectors of all memories in the embedder's space; returns how many memories.

    made: the vectors by (id, search text); memories that lack one are embedded. aligned_from: the
    model whose vectors were mapped.
    """
    with store.transaction() as tx:
        tx.set_meta("embedder_model", embedder.model_id)
        tx.set_meta("embedder_dim", str(embedder.dim))
        tx.set_meta("aligned_from", aligned_from)
        # Other writers wait for this transaction. They stored little since `made` was computed.
        items = list(store.search_texts().items())
        made.update(_embedded(embedder, [item for item in items if item not in made]))
        for item in items:
            tx.set_vectors(item[0], made[item])
    return len(items)


def embed_tokens(
    store: Store,
    embedder: TokenEmbedder | None,
    *,
    since: int = 0,
    on_progress: Callable[[int, int], None] | None = None,
) -> None:
    """Embed the tokens of memories that lack token vectors, one transaction for each batch.

    embedder: None (retrieval is fast) does nothing. since: only memories written in this generation
    or later. A search scores a memory without token vectors by its other features.
    """
    if embedder is None:
        return
    items = store.without_tokens(embedder.model_id, since)
    for batch in _batched(items, on_progress):
        made = [
            (rowid, text, embedder.embed(embedded_text(text)).tobytes()) for rowid, text in batch
        ]
        with store.transaction() as tx:
            tx.set_tokens(embedder.model_id, made)


def read_relations(
    store: Store,
    encoder: Encoder | None,
    on_progress: Callable[[int, int], None] | None = None,
    *,
    limit: int | None = None,
) -> None:
    """Read the relations of facts that this version has not read, one transaction for each batch.

    These facts were read by an earlier version, or an erase or an import left them without
    relations. limit: at most so many facts, the oldest first.
    """
    version = graph.version(encoder)
    facts = unread_facts(store, version, limit)
    for batch in _batched(facts, on_progress):
        made = [
            (id, graph.relations(encoder, text, start, said, told_at))
            for id, text, start, said, told_at in batch
        ]
        with store.transaction() as tx:
            unread = tx.unread(version, [id for id, _ in made])
            for id, relations in made:
                if id in unread:
                    tx.set_relations(id, relations, version)


def doctor(
    store: Store,
    index_file: Path | None,
    plan: Plan | None,
    erased: bool | Mapping[str, Any] = False,
) -> dict[str, Any]:
    """What is in a store, what is wrong with it, and what is pending, as values for JSON.

    plan: what the memory limit has turned down. erased: see `Memory.doctor`.
    """
    found = None if erased is False else verify(store, None if erased is True else erased)
    return {
        "path": str(store.path or ":memory:"),
        "encrypted": store.vault is not None,
        "problems": [*store.check(), *(found["problems"] if found else ())],
        **({"erased": found} if found else {}),
        "counts": store.counts(),
        "pending": [
            {
                "id": piece.id,
                "turns": piece.payload.get("turns"),
                "attempts": piece.attempts,
                "error": piece.last_error,
            }
            for piece in store.pending(EXTRACT)
        ],
        "unread_images": len(images.unread(store)),
        "embedder": store.meta("embedder_model"),
        "aligned_from": store.meta("aligned_from"),
        "token_embedder": store.meta("token_model"),
        "backend": kernels.backend,
        "backend_detail": kernels.backend_detail,
        "copies": [file.name for file in copies(store.path)],
        "index_file": str(index_file) if index_file is not None and index_file.exists() else None,
        "memory_limit": plan.to_dict() if plan is not None else None,
    }
