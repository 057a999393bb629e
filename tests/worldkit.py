"""A store of made-up conversations, and what a search of it should compute, in plain Python."""

import math
from dataclasses import dataclass
from datetime import datetime, timedelta

import numpy as np
from metrickit import dense_inverse
from storekit import FAR_AHEAD, LONG_AGO, T0, T1, add, memory, turn, unit
from wordkit import plain_bm25

from edgemem.language import FIRST_PERSON, asks_when, words
from edgemem.results import Scope
from edgemem.retrieval.catalog import SESSION_GAP_S
from edgemem.retrieval.lexical import query_terms, time_terms
from edgemem.retrieval.search import FEATURES, FEW
from edgemem.store.changes import tokenize

NOW = 1_800_000_000.0
START = datetime.fromisoformat(T0)
NAMES = ["Ana Lima", "Bea", None]
USERS = [Scope("ana"), Scope("bob"), Scope("ana", "bot")]
SAID = "tea oslo cello milk rain yesterday week 2024 plays ana".split()


@dataclass
class Row:
    """A memory as the world knows it. turn: the number of its turn, 0 if none."""

    rowid: int
    kind: str
    text: str
    vectors: np.ndarray
    scope: Scope
    ended: bool
    turn: int
    time_s: float
    name: str | None
    role: str | None

    def speaks(self, query_words):
        """Whether a query names who said it."""
        if self.name is not None:
            return bool(set(words(self.name)) & set(query_words))
        return self.role == "user" and bool(set(FIRST_PERSON) & set(query_words))

    def speaker(self):
        return (self.name, None) if self.name is not None else (None, self.role)


class World:
    """A store that is written to at random, and what is in it."""

    def __init__(self, store, rng):
        self.store, self.rng = store, rng
        self.rows: dict[str, Row] = {}
        self.clock_s = 0.0

    def text(self):
        text = " ".join(self.rng.choice(SAID, self.rng.integers(1, 7)))
        return text + "?" if self.rng.random() < 0.2 else text

    def vectors(self):
        return unit(int(self.rng.integers(2**31)), int(self.rng.choice([0, 1, 1, 1, 3])))

    def say(self, scope=None):
        """A turn and its memory; now and then after a pause."""
        number = len(self.rows) + 1
        self.clock_s += float(self.rng.choice([60, 600, 0.9 * SESSION_GAP_S, 2 * SESSION_GAP_S]))
        when = (START + timedelta(seconds=self.clock_s)).isoformat(timespec="milliseconds")
        scope = scope or USERS[self.rng.integers(len(USERS))]
        name, role = NAMES[self.rng.integers(3)], str(self.rng.choice(["user", "assistant"]))
        said = turn(f"t{number}", name=name, role=role, scope=scope, timestamp=when)
        (at,) = add(self.store, said)
        self._remember(f"m{number}", "turn", scope, (f"t{number}",), at, when, name, role)

    def conclude(self):
        """A fact, of a turn that is there or of none."""
        id = f"m{len(self.rows) + 1}"
        turns = [r for r in self.rows.values() if r.kind == "turn" and r.turn in self._turns()]
        if turns and self.rng.random() < 0.8:
            of = turns[self.rng.integers(len(turns))]
            source = self._turns()[of.turn]
            when = datetime.fromtimestamp(of.time_s, START.tzinfo).isoformat(
                timespec="milliseconds"
            )
            self._remember(id, "fact", of.scope, (source,), of.turn, when, of.name, of.role)
        else:
            self._remember(id, "fact", USERS[self.rng.integers(3)], (), 0, T0, None, None)

    def _turns(self):
        """The turns that are still in the store, by number."""
        ids = {r.turn: f"t{id[1:]}" for id, r in self.rows.items() if r.kind == "turn"}
        there = self.store.turns(list(ids.values()))
        return {number: id for number, id in ids.items() if id in there}

    def _remember(
        self,
        id,
        kind,
        scope,
        sources,
        at,
        when,
        name,
        role,
    ):
        text, vectors = self.text(), self.vectors()
        until = [None, None, FAR_AHEAD, LONG_AGO][self.rng.integers(4)]
        new = memory(
            id, text, kind=kind, scope=scope, sources=sources, vectors=vectors, expires_at=until
        )
        (rowid,) = add(self.store, new)
        time_s = datetime.fromisoformat(when).timestamp()
        ended = until == LONG_AGO
        self.rows[id] = Row(rowid, kind, text, vectors, scope, ended, at, time_s, name, role)

    def live(self):
        """What is neither deleted nor erased, by id."""
        there = self.store.get(list(self.rows))
        return {id: row for id, row in self.rows.items() if id in there}

    def change(self, step):
        """One memory is updated, invalidated, deleted or erased, if there is one."""
        live = self.live()
        if not live:
            return
        id = sorted(live)[self.rng.integers(len(live))]
        if step == "erase":
            self.store.erase([id])
            return
        with self.store.transaction() as tx:
            if step == "update":
                row = self.rows[id]
                row.text, new = self.text(), self.vectors() if self.rng.random() < 0.7 else None
                row.vectors = row.vectors if new is None else new
                tx.update_memory(
                    id, memory=row.text, search_text=row.text, vectors=new, updated_at=T1
                )
            elif step == "invalidate":
                tx.invalidate(id, LONG_AGO)
                self.rows[id].ended = True
            else:
                tx.delete_memory(id, T1)


def neighbours(rows):
    """By memory: the one before, the one after, and the session; of turns in their scopes."""
    before, after, session = {}, {}, {r.rowid: r.rowid for r in rows}
    last: dict[Scope, Row] = {}
    for row in sorted((r for r in rows if r.kind == "turn"), key=lambda r: r.turn):
        old = last.get(row.scope)
        if old is not None and abs(row.time_s - old.time_s) <= SESSION_GAP_S:
            before[row.rowid], after[old.rowid] = old.rowid, row.rowid
            session[row.rowid] = session[old.rowid]
        last[row.scope] = row
    return before, after, session


def similarity_of(row, vector, metric):
    """The best of a memory's vectors: cosine, or (q − μ)ᵀ Σ⁻¹ (h − μ) / ‖q − μ‖ under Σ⁻¹."""
    if not len(row.vectors):
        return 0.0
    h, q = row.vectors.astype(np.float64), vector.astype(np.float64)
    if metric is None:
        return float((h @ q).max())
    inverse, mean = dense_inverse(metric), metric.mean.astype(np.float64)
    norm = math.sqrt((q - mean) @ inverse @ (q - mean))
    return float(((h - mean) @ inverse @ (q - mean)).max() / norm)


def expected(
    world,
    query,
    vector,
    *,
    scope,
    kinds=None,
    metric=None,
):
    """By memory number: its place and its features, of all that the search should score.

    For stores of less than a hundred memories, where every one that has a vector is proposed.
    """
    rows = {row.rowid: row for row in world.live().values()}
    before, after, session = neighbours(rows.values())
    of_turn = {r.turn: r.rowid for r in rows.values() if r.kind == "turn"}
    place = {r.rowid: of_turn.get(r.turn, r.rowid) if r.turn else r.rowid for r in rows.values()}
    seen = {
        r.rowid
        for r in rows.values()
        if not r.ended
        and scope.user_id in (None, r.scope.user_id)
        and scope.agent_id in (None, r.scope.agent_id)
        and (kinds is None or r.kind in kinds)
    }
    texts = {rowid: row.text for rowid, row in rows.items()}
    tokens = dict(zip(texts, tokenize(list(texts.values())), strict=True))
    terms = query_terms(query, NOW)
    bm25, idfs = plain_bm25(texts, terms, seen)
    asked = words(query)
    named = any(rows[rowid].speaks(asked) for rowid in seen)

    def beside(rowid):
        at = place.get(rowid) if rowid is not None else None
        return before.get(at), after.get(at)

    found = {rowid for rowid in seen if len(rows[rowid].vectors) or bm25.get(rowid, 0) > 0}
    found |= {other for rowid in found for other in beside(rowid) if other in seen}
    best: dict[int, float] = {}
    for rowid in found:
        key = session[place[rowid]]
        best[key] = max(best.get(key, 0.0), bm25.get(rowid, 0.0))
    made = {}
    for rowid in found:
        row = rows[rowid]
        left, right = beside(rowid)
        far = (beside(left)[0], beside(right)[1])
        here = tokens[rowid]
        replied = left in seen and rows[left].speaker() != row.speaker()
        near = {rowid}
        for other in (left, right):
            if other in seen and rows[other].speaker() != row.speaker():
                near.add(other)
        covered = [any(term in tokens[x] for x in near) for term in terms]
        features = dict.fromkeys(FEATURES, 0.0)
        features.update(
            similarity=similarity_of(row, vector, metric),
            similarity_before=similarity_of(rows[left], vector, metric) if replied else 0.0,
            bm25=bm25.get(rowid, 0.0),
            bm25_around=sum(bm25.get(x, 0.0) for x in (left, right, *far) if x in seen),
            coverage=sum(i for i, has in zip(idfs, covered, strict=True) if has) / sum(idfs or [1]),
            session=best[session[place[rowid]]] if terms else 0.0,
            question=float(row.text.rstrip().endswith("?")),
            length=math.log1p(sum(here.values())),
            among=math.log(max(FEW, len(seen))),
        )
        if named:
            features["speaker"] = 0.5 if row.speaks(asked) else -0.5
        if asks_when(query):
            features["time"] = float(any(term in here for term in time_terms()))
        made[rowid] = (place[rowid], features)
    return made
