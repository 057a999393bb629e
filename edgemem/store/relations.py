"""The graph's tables: entities with their aliases, and the relations that each fact states.

An entity is identified by its type and its normalised name or alias, among the entities of one
owner: a user and agent, in all their runs, or a run if neither is named. The facts decide what may
be seen: a relation belongs to its fact's scope, ends with the fact, and is erased with it.
"""

from __future__ import annotations

import unicodedata
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

from edgemem.results import ONE_AT_A_TIME, Entity, Relation, Scope, utc_now
from edgemem.store.rows import LISTED, SCOPE, SOURCES, NewRelation, as_json, scope_sql, unpack_ids

if TYPE_CHECKING:
    import sqlite3

    from edgemem.store.store import Store

__all__ = ["entities", "entity_ids", "entity_names", "normalised", "other_names", "relations"]
__all__ += ["relations_of", "unread_facts"]

EVERYBODY = Scope()
_ALONE = (
    "NOT EXISTS (SELECT 1 FROM relations WHERE source = entities.id) "
    "AND NOT EXISTS (SELECT 1 FROM relations WHERE target = entities.id)"
)
_SCOPED = " AND ".join(f"ifnull({name}, '') = ?" for name in SCOPE)


def normalised(name: str) -> str:
    """A name in the form that is compared, in which case, width and spacing do not count."""
    return " ".join(unicodedata.normalize("NFKC", name).casefold().split())


# -- writing, within a transaction ----------------------------------------------------------------


def write_relations(
    connection: sqlite3.Connection,
    memory: int,
    new: Iterable[NewRelation],
    version: int,
) -> None:
    """Replace the relations of a fact.

    memory: the fact's rowid. version: of the reader that found the relations. A relation without
    `valid_from` gets the fact's, and all relations get the fact's `valid_to`.
    """
    forget_relations(connection, memory, version)
    *scope, valid_from, valid_to = connection.execute(
        "SELECT user_id, agent_id, run_id, valid_from, valid_to FROM memories WHERE rowid = ?",
        (memory,),
    ).fetchone()
    for relation in new:
        dated = replace(relation, valid_from=relation.valid_from or valid_from)
        _insert(connection, scope, memory, dated, valid_to, uuid.uuid4().hex)


def forget_relations(connection: sqlite3.Connection, memory: int, version: int) -> None:
    """Delete a fact's relations and aliases, and set the version of the reader that has read it."""
    connection.execute("DELETE FROM relations WHERE memory = ?", (memory,))
    connection.execute("DELETE FROM aliases WHERE memory = ?", (memory,))
    connection.execute("UPDATE memories SET graphed = ? WHERE rowid = ?", (version, memory))


def import_relation(
    connection: sqlite3.Connection, row: Mapping[str, Any], *, by_name: bool = False
) -> None:
    """Store a relation of an export. Its fact must be stored already.

    by_name: match source and target by name only. If aliases counted, the order in which facts
    arrive would decide which entity is meant.
    """
    memory, *scope = connection.execute(
        "SELECT rowid, user_id, agent_id, run_id FROM memories WHERE id = ?", (row["memory_id"],)
    ).fetchone()
    source, target = (
        Entity(row[end], row[f"{end}_type"], tuple(row["aliases"].get(end, ())))
        for end in ("source", "target")
    )
    new = NewRelation(source, row["label"], target, row["valid_from"])
    _insert(connection, scope, memory, new, row["valid_to"], row["uid"], by_name=by_name)
    connection.execute(
        "UPDATE relations SET invalidated_by = (SELECT rowid FROM memories WHERE id = ?) "
        "WHERE uid = ?",
        (row["invalidated_by"], row["uid"]),
    )
    connection.execute("UPDATE memories SET graphed = ? WHERE rowid = ?", (row["graphed"], memory))


def _insert(
    connection: sqlite3.Connection,
    scope: Sequence[str | None],
    memory: int,
    new: NewRelation,
    valid_to: str | None,
    uid: str,
    *,
    by_name: bool = False,
) -> None:
    owner = _owner(scope)
    source, target = (
        _entity(connection, owner, e, memory, by_name) for e in (new.source, new.target)
    )
    if source != target:
        connection.execute(
            "INSERT OR IGNORE INTO relations (uid, source, label, target, memory, valid_from, "
            "valid_to) VALUES (?, ?, ?, ?, ?, ?, ?)",
            (uid, source, new.label, target, memory, new.valid_from, valid_to),
        )
    connection.execute(  # if both are one entity, it may have no relation
        f"DELETE FROM entities WHERE id IN (?, ?) AND {_ALONE}", (source, target)
    )


def _owner(scope: Sequence[str | None]) -> tuple[str, ...]:
    """The owner of a name: user and agent, or the run if neither is named."""
    user, agent, run = scope
    return (user or "", agent or "", "" if user or agent else run or "")


def _entity(
    connection: sqlite3.Connection,
    owner: tuple[str, ...],
    entity: Entity,
    memory: int,
    by_name: bool,
) -> int:
    """The id of the entity with that name or (unless by_name) alias, created if there is none.

    An alias that several entities share matches none of them.
    """
    name = normalised(entity.name)
    found = connection.execute(
        f"SELECT id FROM entities WHERE normalised = ? AND type = ? AND {_SCOPED}",
        (name, entity.type, *owner),
    ).fetchall()
    if not found and not by_name:
        found = connection.execute(
            "SELECT DISTINCT e.id FROM aliases a JOIN entities e ON e.id = a.entity "
            f"WHERE a.normalised = ? AND e.type = ? AND {_SCOPED} LIMIT 2",
            (name, entity.type, *owner),
        ).fetchall()
    if len(found) == 1:
        (id,) = found[0]
    else:
        id = connection.execute(
            "INSERT INTO entities (user_id, agent_id, run_id, type, name, normalised) "
            "VALUES (?, ?, ?, ?, ?, ?)",
            (*(part or None for part in owner), entity.type, entity.name, name),
        ).lastrowid
    for alias in entity.aliases:
        if normalised(alias) != name:
            connection.execute(
                "INSERT OR IGNORE INTO aliases (entity, normalised, name, memory) "
                "VALUES (?, ?, ?, ?)",
                (id, normalised(alias), alias, memory),
            )
    return int(id)


def end_relations(
    connection: sqlite3.Connection, memory: int, valid_to: str, by: int | None = None
) -> None:
    """End the relations of an ended fact.

    memory: the fact's rowid. valid_to: when it ended; a relation that ended earlier keeps its end.
    by: the rowid of the fact that contradicts it.
    """
    connection.execute(
        "UPDATE relations SET invalidated_by = coalesce(?1, invalidated_by), "
        "valid_to = min(ifnull(valid_to, ?2), ?2) WHERE memory = ?3",
        (by, valid_to, memory),
    )


def forget_entities(connection: sqlite3.Connection, memories: str) -> None:
    """Delete the entities with an alias from facts that will be erased, and all their relations.

    Otherwise a name would outlive the fact that says whose it is. Facts that lose relations are
    marked to be read again. memories: rowids of the facts, as JSON.
    """
    named = f"SELECT entity FROM aliases WHERE memory {LISTED}"
    connection.execute(
        "UPDATE memories SET graphed = 0 WHERE rowid IN (SELECT memory FROM relations "
        f"WHERE source IN ({named}) OR target IN ({named}))",
        (memories, memories),
    )
    connection.execute(f"DELETE FROM entities WHERE id IN ({named})", (memories,))


# -- reading -----------------------------------------------------------------------------------

_ONE_AT_A_TIME = ", ".join(f"'{label}'" for label in sorted(ONE_AT_A_TIME))
_REPLACED = "(later.id IS NOT NULL AND ifnull(r.valid_to > later.valid_from, TRUE))"
_END = f"iif({_REPLACED}, later.valid_from, r.valid_to)"
_BY = f"(SELECT id FROM memories WHERE rowid = iif({_REPLACED}, later.memory, r.invalidated_by))"
_RELATION = (
    f"r.uid, s.name, r.label, t.name, s.type, t.type, m.id, r.valid_from, {_END}, {_BY}, "
    f"{SOURCES}, r.source, r.target"
)


def _joined(scope: Scope) -> tuple[str, list[Any]]:
    """The tables of a reading, with the parameters that they take.

    later: the first relation after r that gives its source another target, if the label has one at
    a time. Nothing is stored of that: without the later fact the earlier one would hold.
    """
    conditions, params = scope_sql(scope, "by.")
    later = " AND ".join((
        "new.source = r.source AND new.label = r.label AND new.target <> r.target",
        f"r.label IN ({_ONE_AT_A_TIME})",
        "new.valid_from > ifnull(r.valid_from, '')",
        "ifnull(new.valid_to > new.valid_from, TRUE)",
        "by.deleted_at IS NULL AND ifnull(by.expires_at > ?, TRUE)",
        *conditions,
    ))  # fmt: skip
    tables = (
        "relations r CROSS JOIN memories m ON m.rowid = r.memory "
        "JOIN entities s ON s.id = r.source JOIN entities t ON t.id = r.target "
        "LEFT JOIN relations later ON later.id = (SELECT new.id FROM relations new "
        f"JOIN memories by ON by.rowid = new.memory WHERE {later} "
        "ORDER BY new.valid_from, new.id LIMIT 1)"
    )
    return tables, [utc_now(), *params]


def relations(
    store: Store,
    scope: Scope,
    names: Sequence[str] | None = None,
    *,
    at: str | None = None,
    include_invalid: bool = False,
) -> list[Relation]:
    """The relations within a scope, the earliest first, each once.

    names: only those whose source or target has one of these names or aliases. at: only those that
    were valid then, ISO-8601 UTC; None: now. include_invalid: all, whatever their times. One that
    has one target at a time (`ONE_AT_A_TIME`) ends when the next one begins.
    """
    conditions, params = _visible(scope, at or utc_now(), include_invalid)
    if names is not None:
        ids = entity_ids(store, names, scope)
        near = f"SELECT id FROM relations WHERE source {LISTED} UNION SELECT id FROM relations"
        conditions.insert(0, f"r.id IN ({near} WHERE target {LISTED})")
        params[:0] = [as_json(ids), as_json(ids)]
    tables, first = _joined(scope)
    rows = store.select(
        f"SELECT {_RELATION} FROM {tables} WHERE {' AND '.join(conditions)} "
        "ORDER BY coalesce(r.valid_from, m.created_at), r.id",
        *first,
        *params,
    )
    return list(_merged(rows))


def relations_of(
    store: Store,
    memories: Mapping[str, float] | Iterable[str],
    scope: Scope = EVERYBODY,
    *,
    at: str | None = None,
    include_invalid: bool = False,
) -> list[Relation]:
    """The relations that memories state; a turn states those of the facts taken from it.

    memories: ids, or scores by id. With scores, the best come first, each relation with the score
    of the best memory that states it. scope: holds the memories and what may end their relations.
    at, include_invalid: as for `relations`, but None takes also those that have yet to begin.
    """
    conditions, params = _visible(scope, at, include_invalid)
    tables, first = _joined(scope)
    rows = store.select(
        "WITH hit (id, rowid) AS (SELECT id, rowid FROM memories "
        f"WHERE id {LISTED}), told (hit, fact) AS (SELECT id, rowid FROM hit UNION "
        "SELECT hit.id, theirs.memory FROM hit JOIN memory_sources own ON own.memory = hit.rowid "
        "JOIN memory_sources theirs ON theirs.turn = own.turn) "
        f"SELECT {_RELATION}, told.hit FROM told CROSS JOIN {tables} "
        f"WHERE r.memory = told.fact AND {' AND '.join(conditions)} "
        "ORDER BY coalesce(r.valid_from, m.created_at), r.id",
        as_json(memories),
        *first,
        *params,
    )
    found = _merged(rows, memories if isinstance(memories, Mapping) else None)
    return sorted(found, key=lambda relation: -(relation.score or 0.0))


def all_relations(connection: sqlite3.Connection) -> Iterable[tuple[Any, ...]]:
    """Each relation of a fact that is not deleted, in the order in which they were stored.

    Rows: uid, id of the fact, name and type of the source, label, name and type of the target,
    valid_from, valid_to, id of the fact that ended it. Ends are those of `relations`.
    """
    tables, params = _joined(EVERYBODY)
    return connection.execute(
        f"SELECT r.uid, m.id, s.name, s.type, r.label, t.name, t.type, r.valid_from, {_END}, {_BY} "
        f"FROM {tables} WHERE m.deleted_at IS NULL ORDER BY r.id",
        params,
    )


def _visible(scope: Scope, at: str | None, include_invalid: bool) -> tuple[list[str], list[Any]]:
    now = utc_now()
    conditions, params = scope_sql(scope)
    conditions.append("m.deleted_at IS NULL")
    if not include_invalid:
        conditions += [
            "(m.expires_at IS NULL OR m.expires_at > ?)",
            f"ifnull({_END} > ?, TRUE)",
            "(? IS NULL OR r.valid_from IS NULL OR r.valid_from <= ?)",
        ]
        params += [now, at or now, at, at]
    return conditions, params


def _merged(
    rows: Iterable[tuple[Any, ...]], scores: Mapping[str, float] | None = None
) -> Iterator[Relation]:
    """One relation for all rows with the same source, label, target and end.

    rows: of _RELATION. scores: of the memory whose id ends each row; the best one counts.
    """
    read = cache(unpack_ids)  # facts of one turn have the same list
    alike: dict[tuple[Any, ...], list[tuple[Any, ...]]] = {}
    for row in rows:
        alike.setdefault((row[11], row[2], row[12], row[8]), []).append(row)
    for told in alike.values():
        id, source, label, target, source_type, target_type, memory, begins, ends, *_ = told[0]
        yield Relation(
            id=id, source=source, relationship=label, destination=target,
            source_type=source_type, destination_type=target_type, memory_id=memory,
            valid_from=begins, valid_to=ends, invalidated_by=told[-1][9],
            turns=tuple(dict.fromkeys(turn for row in told for turn in read(row[10]))),
            score=None if scores is None else max(scores[row[13]] for row in told),
        )  # fmt: skip


def entity_ids(store: Store, names: Iterable[str], scope: Scope = EVERYBODY) -> list[int]:
    """The ids of entities with one of these names or aliases. scope: only its user_id counts."""
    wanted = as_json({normalised(name) for name in names})
    rows = store.select(
        f"SELECT id FROM entities WHERE (normalised {LISTED} "
        f"OR id IN (SELECT entity FROM aliases WHERE normalised {LISTED})) "
        "AND (?3 IS NULL OR user_id = ?3)",
        wanted,
        wanted,
        scope.user_id,
    )
    return [row[0] for row in rows]


def entities(store: Store, scope: Scope, limit: int) -> list[dict[str, Any]]:
    """The entities in a scope: name, type and number of relations (ended too), the most first."""
    conditions, params = _visible(scope, None, include_invalid=True)
    told = (
        f"FROM relations r JOIN memories m ON m.rowid = r.memory WHERE {' AND '.join(conditions)}"
    )
    rows = store.select(
        "SELECT e.name, e.type, count(*) FROM "
        f"(SELECT r.source AS id {told} UNION ALL SELECT r.target {told}) ends "
        "JOIN entities e ON e.id = ends.id GROUP BY e.id ORDER BY 3 DESC, 1 LIMIT ?",
        *params,
        *params,
        limit,
    )
    return [{"name": name, "type": type, "relations": count} for name, type, count in rows]


def entity_names(store: Store, types: Iterable[str]) -> list[str]:
    """The names and aliases of all entities of these types, each once, for every owner."""
    wanted = as_json(types)
    rows = store.select(
        f"SELECT name FROM entities WHERE type {LISTED} UNION SELECT a.name FROM aliases a "
        f"JOIN entities e ON e.id = a.entity WHERE e.type {LISTED} ORDER BY 1",
        wanted,
        wanted,
    )
    return [row[0] for row in rows]


def other_names(store: Store) -> list[tuple[str, ...]]:
    """The names of each entity that has more than one."""
    rows = store.select(
        "SELECT e.id, e.name FROM entities e WHERE e.id IN (SELECT entity FROM aliases) "
        "UNION SELECT entity, name FROM aliases ORDER BY 1, 2"
    )
    found: dict[int, list[str]] = {}
    for id, name in rows:
        found.setdefault(id, []).append(name)
    return [tuple(names) for names in found.values()]


def unread_facts(
    store: Store, version: int, limit: int | None = None
) -> list[tuple[str, str, str, str | None, str | None]]:
    """What `graph.reader.relations` takes of facts that this version of it has not read, by rowid:
    (id, text, start, said, told_at).

    start: valid_from, or else created_at. said: the text of the source turns; None if the fact was
    edited, as its words are then the user's. told_at: the time of the last of these turns, or None.
    """
    turns = "memory_sources o JOIN turns t ON t.rowid = o.turn WHERE o.memory = m.rowid"
    return store.select(
        "SELECT m.id, m.memory, coalesce(m.valid_from, m.created_at), CASE WHEN m.updated_at = "
        f"m.created_at THEN (SELECT group_concat(t.content, ' ') FROM {turns}) END, "
        f"(SELECT max(t.timestamp) FROM {turns}) FROM memories m "
        "WHERE m.kind = 'fact' AND m.deleted_at IS NULL AND m.graphed < ? "
        "ORDER BY m.rowid LIMIT ?",
        version,
        -1 if limit is None else limit,
    )
