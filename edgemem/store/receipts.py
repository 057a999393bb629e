"""What the cloud's governor keeps in the store: receipts of calls, and what may never be sent.

A single memory is marked by `never_send` in its metadata, so the mark goes wherever the memory
goes.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal

from edgemem.errors import InputError, StoreError
from edgemem.inputs import scope_of
from edgemem.results import Scope, utc_now
from edgemem.store.rows import LISTED, as_json, scope_columns, unpack_ids, unpack_json
from edgemem.store.store import Store
from edgemem.store.writing import Transaction

__all__ = ["Mark", "Receipt", "Related", "add_mark", "add_receipt", "compress_rate", "end_receipt"]
__all__ += ["marked_texts", "marks", "named_texts", "receipts", "related", "remove_mark"]
__all__ += ["set_never_send", "spent_since"]

Outcome = Literal["sent", "answered", "refused", "unknown"]


@dataclass(frozen=True, kw_only=True)
class Receipt:
    """One cloud call, without any of its text.

    uid: the idempotency key. tokens_before, tokens_after: the context's tokens before and after
    compression, as estimated here. compress_s: seconds that compression took. sent_bytes,
    sent_sha256: of the request's body; the hash is None once something in the body may have been
    erased. cost: in the price table's currency, None if the model has no price; an upper bound
    until the call is answered. outcome: sent (in progress, or the program ended), answered, refused
    (not billed), unknown (failed, and may be billed). prompt_tokens, completion_tokens: as the
    service counted.
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
    """What may never be sent: everything in a scope, or text that matches a pattern."""

    id: int
    scope: Scope
    pattern: str | None


@dataclass(frozen=True, slots=True)
class Related:
    """A memory or turn that is tied to a memory by source turns, directly or through others.

    flagged: whether it is marked `never_send`. images: the ids of a memory's images.
    """

    text: str
    scope: Scope
    flagged: bool
    images: tuple[str, ...] = ()


_COLUMNS = tuple(f.name for f in fields(Receipt))


def add_receipt(tx: Transaction, receipt: Receipt) -> None:
    """Store the receipt of a call before it is made. Raises StoreError if the uid is taken."""
    with tx.step() as connection:
        sql = "SELECT 1 FROM receipts WHERE uid = ?"
        if connection.execute(sql, (receipt.uid,)).fetchone():
            raise StoreError(
                f"a call with the key {receipt.uid} was made before; prepare it anew to ask again"
            )
        tx.insert("receipts", **{**receipt.to_dict(), "memory_ids": as_json(receipt.memory_ids)})


def end_receipt(tx: Transaction, receipt: Receipt) -> None:
    """Store how a call ended. Ids and hash stay as they are: an erase may have removed some."""
    with tx.step() as connection:
        connection.execute(
            "UPDATE receipts SET outcome = :outcome, cost = :cost, prompt_tokens = :prompt_tokens, "
            "completion_tokens = :completion_tokens, seconds = :seconds, attempts = :attempts "
            "WHERE uid = :uid",
            vars(receipt),
        )


def receipts(store: Store, limit: int | None = None) -> list[Receipt]:
    """The newest `limit` calls, oldest first; None: all."""
    rows = store.select(
        f"SELECT {', '.join(_COLUMNS)} FROM receipts ORDER BY id DESC LIMIT ?",
        -1 if limit is None else limit,
    )
    found = [Receipt(**dict(zip(_COLUMNS, row, strict=True))) for row in reversed(rows)]
    return [replace(r, memory_ids=unpack_ids(r.memory_ids)) for r in found]


def spent_since(source: Store | Transaction, since: str) -> float:
    """The cost of all calls since a time (ISO-8601 UTC); an unknown outcome counts in full."""
    reading = source.snapshot() if isinstance(source, Store) else source.step()
    with reading as connection:
        sql = "SELECT coalesce(sum(cost), 0.0) FROM receipts WHERE created_at >= ?"
        return float(connection.execute(sql, (since,)).fetchone()[0])


def compress_rate(store: Store) -> float | None:
    """Seconds per token in the last 20 compressions; None if there were none."""
    ((seconds, tokens),) = store.select(
        "SELECT sum(compress_s), sum(tokens_before) FROM (SELECT compress_s, tokens_before "
        "FROM receipts WHERE compress_s > 0 ORDER BY id DESC LIMIT 20)"
    )
    return float(seconds) / tokens if tokens else None


def add_mark(tx: Transaction, *, scope: Scope | None = None, pattern: str | None = None) -> int:
    """Forbid to send what is in a scope, or what matches a pattern; returns the mark's id.

    Raises InputError on an empty id, and unless exactly one of the two is given.
    """
    given = scope or Scope()
    scope_of(given.user_id, given.agent_id, given.run_id)
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
    """Delete a mark by its id. Raises StoreError if there is none."""
    with tx.step() as connection:
        if connection.execute("DELETE FROM never_send WHERE id = ?", (id,)).rowcount == 0:
            raise StoreError(f"no never_send mark has the number {id}; list them to see which do")


def marks(store: Store) -> list[Mark]:
    """All scopes and patterns that may never be sent, oldest first."""
    rows = store.select("SELECT id, user_id, agent_id, run_id, pattern FROM never_send ORDER BY id")
    return [Mark(row[0], Scope(*row[1:4]), row[4]) for row in rows]


def set_never_send(tx: Transaction, memory_id: str, never: bool) -> None:
    """Set or remove a memory's mark `never_send`. Raises StoreError if there is no such memory."""
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


# All memories that can be reached from a memory through shared source turns. Deleted memories are
# included: their marks still apply, because other memories may repeat their words.
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
    """For each memory id: the memory, and every memory and turn tied to it by source turns.

    Unknown ids are left out. Facts repeat the words of their turns, so one of these may be sent
    only if all of them may.
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
    """(generation, [(text, speaker)]) of the memories (not deleted) written after a generation.

    generation: the newest among them, or `since_generation` if there are none. speaker: None if
    nobody is named.
    """
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
