"""What the cloud's governor keeps in the store: receipts of calls, and what may never be sent.

A memory's own mark is `never_send` in its metadata, so that it goes wherever the memory goes.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal

from edgemem.errors import InputError, StoreError
from edgemem.results import Scope, utc_now
from edgemem.store.rows import LISTED, as_json, scope_columns, unpack_ids, unpack_json
from edgemem.store.store import Store
from edgemem.store.writing import Transaction

__all__ = [
    "Mark",
    "Receipt",
    "Related",
    "add_mark",
    "add_receipt",
    "compress_rate",
    "end_receipt",
    "marked_texts",
    "marks",
    "named_texts",
    "receipts",
    "related",
    "remove_mark",
    "set_never_send",
    "spent_since",
]

Outcome = Literal["sent", "answered", "refused", "unknown"]


@dataclass(frozen=True, kw_only=True)
class Receipt:
    """One cloud call, without any of its text.

    uid: the idempotency key. tokens_before, tokens_after: of the context, as estimated here, before
    and after compression, which took compress_s. sent_bytes, sent_sha256: of the request's body;
    the hash is None once something in it may have been erased. cost: in the price table's currency,
    None if the model has no price; an upper bound until it is answered. outcome: sent (under way,
    or the program ended), answered, refused (not billed), unknown (it failed, and may be billed).
    prompt_tokens, completion_tokens: as the service counted.
    """

    uid: str
    created_at: str
    endpoint: str
    model: str
    user_id: str | None = None
    agent_id: str | None = None
    run_id: str | None = None
    memory_ids: tuple[str, ...]
    tokens_before: int
    tokens_after: int
    compress_s: float
    sent_bytes: int
    sent_sha256: str | None
    cost: float | None
    outcome: Outcome = "sent"
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    seconds: float | None = None
    attempts: int | None = None

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "memory_ids": list(self.memory_ids)}


@dataclass(frozen=True, slots=True)
class Mark:
    """Something that may never be sent: a scope, or what matches a pattern. id: its number."""

    id: int
    scope: Scope
    pattern: str | None


@dataclass(frozen=True, slots=True)
class Related:
    """A memory or a turn that a memory shares source turns with, perhaps through others.

    images: the ids of those that a memory is of.
    """

    text: str
    scope: Scope
    flagged: bool
    images: tuple[str, ...] = ()


_COLUMNS = tuple(f.name for f in fields(Receipt))


def add_receipt(tx: Transaction, receipt: Receipt) -> None:
    """Note a call before it is made. Raises StoreError if there is one of that uid."""
    with tx.step() as connection:
        sql = "SELECT 1 FROM receipts WHERE uid = ?"
        if connection.execute(sql, (receipt.uid,)).fetchone():
            raise StoreError(
                f"a call with the key {receipt.uid} was made before; prepare it anew to ask again"
            )
        tx.insert("receipts", **{**receipt.to_dict(), "memory_ids": as_json(receipt.memory_ids)})


def end_receipt(tx: Transaction, receipt: Receipt) -> None:
    """Note how a call ended. An erase meanwhile is not undone: ids and hash stay as they are."""
    with tx.step() as connection:
        connection.execute(
            "UPDATE receipts SET outcome = :outcome, cost = :cost, prompt_tokens = :prompt_tokens, "
            "completion_tokens = :completion_tokens, seconds = :seconds, attempts = :attempts "
            "WHERE uid = :uid",
            vars(receipt),
        )


def receipts(store: Store, limit: int | None = None) -> list[Receipt]:
    """The last calls, oldest first; limit: at most so many, None for all."""
    rows = store.select(
        f"SELECT {', '.join(_COLUMNS)} FROM receipts ORDER BY id DESC LIMIT ?",
        -1 if limit is None else limit,
    )
    found = [Receipt(**dict(zip(_COLUMNS, row, strict=True))) for row in reversed(rows)]
    return [replace(r, memory_ids=unpack_ids(r.memory_ids)) for r in found]


def spent_since(source: Store | Transaction, since: str) -> float:
    """The cost of all calls since a time (ISO-8601 UTC), those of unknown outcome in full."""
    reading = source.snapshot() if isinstance(source, Store) else source.step()
    with reading as connection:
        sql = "SELECT coalesce(sum(cost), 0.0) FROM receipts WHERE created_at >= ?"
        return float(connection.execute(sql, (since,)).fetchone()[0])


def compress_rate(store: Store) -> float | None:
    """Seconds that a token took in the last compressions; None if there were none."""
    ((seconds, tokens),) = store.select(
        "SELECT sum(compress_s), sum(tokens_before) FROM (SELECT compress_s, tokens_before "
        "FROM receipts WHERE compress_s > 0 ORDER BY id DESC LIMIT 20)"
    )
    return float(seconds) / tokens if tokens else None


def add_mark(tx: Transaction, *, scope: Scope | None = None, pattern: str | None = None) -> int:
    """Never send what is of a scope, or what matches a pattern (give one of the two); its number.

    Raises InputError on both or neither.
    """
    given = scope or Scope()
    if (pattern is None) == (given == Scope()):
        raise InputError(
            "a never_send mark needs either a pattern or a scope (user_id, agent_id or run_id); "
            "give one of the two"
        )
    with tx.step():
        return tx.insert(
            "never_send",
            uid=uuid.uuid4().hex,
            created_at=utc_now(),
            **scope_columns(given),
            pattern=pattern,
        )


def remove_mark(tx: Transaction, id: int) -> None:
    """Drop a mark. Raises StoreError if there is none of that number."""
    with tx.step() as connection:
        if connection.execute("DELETE FROM never_send WHERE id = ?", (id,)).rowcount == 0:
            raise StoreError(f"no never_send mark has the number {id}; list them to see which do")


def marks(store: Store) -> list[Mark]:
    """All scopes and patterns that may never be sent, oldest first."""
    rows = store.select("SELECT id, user_id, agent_id, run_id, pattern FROM never_send ORDER BY id")
    return [Mark(row[0], Scope(*row[1:4]), row[4]) for row in rows]


def set_never_send(tx: Transaction, memory_id: str, never: bool) -> None:
    """Mark a memory, or take the mark off. Raises StoreError if there is no such memory."""
    value = "json_set(metadata, '$.never_send', json('true'))"
    if not never:
        value = "json_remove(metadata, '$.never_send')"
    with tx.step() as connection:
        done = connection.execute(
            f"UPDATE memories SET metadata = {value}, generation = ? WHERE id = ?",
            (tx.generation, memory_id),
        )
        if done.rowcount == 0:
            raise StoreError(f"no memory has the id {memory_id!r}; `edgemem list` shows them")


# From a memory to all that share a source turn with it, and on from those. Deleted memories count:
# a mark outlives its memory, whose words others may repeat.
_REACH = """WITH RECURSIVE reach (root, memory) AS (
    SELECT m.id, m.rowid FROM memories m WHERE {start}
    UNION
    SELECT r.root, b.memory FROM reach r JOIN memory_sources a ON a.memory = r.memory
    JOIN memory_sources b ON b.turn = a.turn
) """
_MEMORIES = (
    "SELECT r.root, m.memory, m.user_id, m.agent_id, m.run_id, m.metadata, "
    "(SELECT json_group_array(image) FROM memory_images WHERE memory = m.rowid) FROM reach r "
    "JOIN memories m ON m.rowid = r.memory"
)
_TURNS = (
    "SELECT DISTINCT r.root, t.content, t.user_id, t.agent_id, t.run_id, t.metadata, '[]' "
    "FROM reach r "
    "JOIN memory_sources s ON s.memory = r.memory JOIN turns t ON t.rowid = s.turn"
)


def related(store: Store, memory_ids: Sequence[str]) -> dict[str, list[Related]]:
    """Of each memory: itself and every memory and turn that it is tied to by source turns.

    Unknown ids are left out. A fact repeats its turns' words, a turn gave its facts: what may be
    said of one must be allowed of all.
    """
    found: dict[str, list[Related]] = {}
    reach = _REACH.format(start=f"m.id {LISTED}")
    with store.snapshot() as connection:
        for select in (_MEMORIES, _TURNS):
            for row in connection.execute(reach + select, (as_json(memory_ids),)):
                found.setdefault(row[0], []).append(_related(row))
    return found


def _related(row: Sequence[Any]) -> Related:
    metadata = unpack_json(row[5], "metadata of what may be sent")
    flagged = bool(metadata.get("never_send"))
    return Related(row[1], Scope(*row[2:5]), flagged, unpack_ids(row[6]))


def marked_texts(store: Store) -> list[str]:
    """The texts of marked memories and turns, and of all that is tied to them, in every scope."""
    flag = "coalesce(json_extract({}.metadata, '$.never_send'), 0) NOT IN (0, '')"
    start = (
        f"{flag.format('m')} OR m.rowid IN (SELECT s.memory FROM memory_sources s JOIN turns t "
        f"ON t.rowid = s.turn WHERE {flag.format('t')})"
    )
    reach = _REACH.format(start=start)
    with store.snapshot() as connection:
        return sorted(
            {row[1] for select in (_MEMORIES, _TURNS) for row in connection.execute(reach + select)}
        )


def named_texts(store: Store, since_generation: int) -> tuple[int, list[tuple[str, str | None]]]:
    """The generation now, and of each memory written after a generation: what it says, and its
    speaker if one is named."""
    rows = store.select(
        "SELECT m.memory, (SELECT t.name FROM memory_sources s JOIN turns t "
        "ON t.rowid = s.turn WHERE s.memory = m.rowid AND t.name IS NOT NULL LIMIT 1), "
        "json_extract(m.metadata, '$.speaker'), m.generation FROM memories m "
        "WHERE m.generation > ? AND m.deleted_at IS NULL",
        since_generation,
    )
    newest = max((row[3] for row in rows), default=since_generation)
    speakers = [s if isinstance(s := row[1] or row[2], str) else None for row in rows]
    return newest, [(row[0], s) for row, s in zip(rows, speakers, strict=True)]
