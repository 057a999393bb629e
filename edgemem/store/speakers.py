"""Who said what: the turns of a user, and of those who are named.

A turn of role "user" without a name is the user's. Knows the store; no question.
"""

from __future__ import annotations

from collections.abc import Callable

from edgemem.results import Scope
from edgemem.store.rows import LISTED, as_json, scope_sql
from edgemem.store.store import Store

__all__ = ["said_by", "user_tells"]


def user_tells(store: Store, scope: Scope) -> bool:
    """Whether any message that is remembered in a scope, and was not deleted, is the user's own."""
    conditions, params = scope_sql(scope, "t.")
    own = ["t.role = 'user'", "t.name IS NULL", *conditions]
    rows = store.select(
        f"SELECT EXISTS (SELECT 1 FROM turns t WHERE {' AND '.join(own)} AND EXISTS (SELECT 1 FROM "
        "memory_sources s JOIN memories m ON m.rowid = s.memory WHERE s.turn = t.rowid "
        "AND m.kind = 'turn' AND m.deleted_at IS NULL))",
        *params,
    )
    return bool(rows[0][0])


def said_by(store: Store, scope: Scope, has_name: Callable[[str], bool]) -> frozenset[int]:
    """The rowids of the memories that come from turns of somebody whose name fits; also of those
    that were deleted."""
    conditions, params = scope_sql(scope, "t.")
    where = " AND ".join(["t.name IS NOT NULL", *conditions])
    names = store.select(f"SELECT DISTINCT t.name FROM turns t WHERE {where}", *params)
    fitting = [name for (name,) in names if has_name(name)]
    if not fitting:
        return frozenset()
    rows = store.select(
        "SELECT s.memory FROM turns t JOIN memory_sources s ON s.turn = t.rowid "
        f"WHERE {where} AND t.name {LISTED}",
        *params,
        as_json(fitting),
    )
    return frozenset(row for (row,) in rows)
