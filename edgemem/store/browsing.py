"""What a person who looks through a store asks it: whose memories there are, the newest of them in
whatever state, and which replaced which.

Knows the tables `memories` and `history`; no search, no page. Functions beside `Store`, which is
long enough.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from edgemem.errors import InputError
from edgemem.results import MemoryItem, Scope, utc_now
from edgemem.store.reading import LISTED, LIVE, as_json, scope_sql
from edgemem.store.rows import KINDS, MEMORY_COLUMNS, memory_item
from edgemem.store.store import EVERYTHING, Store

__all__ = ["Browsed", "browse", "owners", "replacements"]

_STATES = {
    "live": LIVE,
    "past": f"m.deleted_at IS NULL AND NOT ({LIVE})",
    "deleted": "m.deleted_at IS NOT NULL",
    "all": "1",
}
_SCOPE = ("user_id", "agent_id", "run_id")


@dataclass(frozen=True, slots=True)
class Browsed:
    """A memory as it lies in the store. deleted_at: ISO-8601 UTC; None if it was not deleted."""

    item: MemoryItem
    deleted_at: str | None


def owners(store: Store, most: int = 500) -> dict[str, list[tuple[str, int]]]:
    """Every user_id, agent_id and run_id that has memories, with how many of them are not deleted.

    most: of each kind of id at most so many, in the order of their text.
    """
    with store._snapshot() as connection:
        return {
            name: connection.execute(
                f"SELECT {name}, sum(deleted_at IS NULL) FROM memories WHERE {name} IS NOT NULL "
                f"GROUP BY {name} ORDER BY {name} LIMIT ?",
                (most,),
            ).fetchall()
            for name in _SCOPE
        }


def browse(
    store: Store,
    scope: Scope = EVERYTHING,
    *,
    id: str | None = None,
    kind: str | None = None,
    state: str = "live",
    limit: int,
    offset: int = 0,
) -> list[Browsed]:
    """Memories of a scope, those that hold since the latest time first.

    id, kind: only those. state: live; past, those whose time is over; deleted; or all. Raises
    InputError on an unknown kind or state, or a number below 0.
    """
    for what, given, allowed in (("state", state, tuple(_STATES)), ("kind", kind, KINDS)):
        if given is not None and given not in allowed:
            raise InputError(f"{what} is {given!r:.80}; give one of {', '.join(allowed)}")
    for what, number in (("limit", limit), ("offset", offset)):
        if not 0 <= number < 2**63:
            raise InputError(f"{what} is {number}; give 0 or more")
    conditions, params = scope_sql(scope)
    for column, value in (("id", id), ("kind", kind)):
        if value is not None:
            conditions.append(f"m.{column} = ?")
            params.append(value)
    conditions.append(_STATES[state])
    params += [utc_now()] * _STATES[state].count("?")
    order = "ORDER BY coalesce(m.valid_from, m.created_at) DESC, m.rowid DESC"
    with store._snapshot() as connection:
        # The page's rows are found first, or the sources of every row would be read to be sorted.
        rows = connection.execute(
            f"SELECT {MEMORY_COLUMNS}, m.deleted_at FROM memories m WHERE m.rowid IN "
            f"(SELECT m.rowid FROM memories m WHERE {' AND '.join(conditions)} {order} "
            f"LIMIT ? OFFSET ?) {order}",
            (*params, limit, offset),
        ).fetchall()
    return [Browsed(memory_item(row), row[-1]) for row in rows]


def replacements(store: Store, ids: Sequence[str]) -> list[tuple[str, str]]:
    """Pairs (old, new) of memories, one of them in `ids`, where a contradiction ended the old one.

    The two are noted in one breath (see `ingest`): the next row of the history adds the new one. A
    memory that was over when it was stored (an older conversation, imported later) has no such row.
    """
    with store._snapshot() as connection:
        return connection.execute(
            "SELECT ended.memory_id, began.memory_id FROM history ended JOIN history began "
            "ON began.seq = ended.seq + 1 WHERE ended.event = 'DELETE' AND NOT ended.is_deleted "
            "AND began.event = 'ADD' AND began.created_at = ended.updated_at "
            f"AND (ended.memory_id {LISTED} OR began.memory_id {LISTED}) ORDER BY ended.seq",
            (as_json(ids), as_json(ids)),
        ).fetchall()
