"""Sensitivities of what was said, kept beside it: a byte a token.

Knows the table `sensitivities`, one row for each turn whose own memory stands, and which turns want
one still. Must not know how they are computed. Functions beside `Store`, which is long enough.

A row goes with its turn (by cascade) and when the turn's memory is deleted or gets other words (by
triggers), so that neither an erase nor an edit leaves scores of words that are gone.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from edgemem.errors import StoreCorrupt
from edgemem.store.reading import LISTED, as_json
from edgemem.store.writing import Transaction

if TYPE_CHECKING:
    from edgemem.store.store import Store

__all__ = ["Neighbour", "StoredSensitivity", "backlog", "put", "read", "unscored"]

# The words of a turn are those of its own memory, which may have been edited since.
_STANDING = (
    "FROM turns t JOIN memory_sources s ON s.turn = t.rowid JOIN memories m ON m.rowid = s.memory "
    "WHERE m.kind = 'turn' AND m.deleted_at IS NULL"
)


@dataclass(frozen=True, slots=True, eq=False)
class StoredSensitivity:
    """Scores of one turn's tokens.

    offsets: (n, 2) int32, characters [start, end) of the text of the turn's memory. scores: (n,)
    uint8, the square roots of the sensitivities in steps: most are small beside the largest, and
    would share a few even steps. scale: the value of (score = 1)². model: its file's sha256.
    """

    offsets: NDArray[np.int32]
    scores: NDArray[np.uint8]
    scale: float
    model: str

    @property
    def values(self) -> NDArray[np.float32]:
        """The sensitivities, (n,) float32 >= 0, within 1/255 of the largest at most."""
        return np.float32(self.scale) * self.scores.astype(np.float32) ** 2


@dataclass(frozen=True, slots=True)
class Neighbour:
    """A turn among those around one that wants scores. wanted: whether this one does too."""

    id: str
    speaker: str
    text: str
    wanted: bool


def read(connection: sqlite3.Connection, turn_ids: Sequence[str]) -> dict[str, StoredSensitivity]:
    rows = connection.execute(
        "SELECT t.id, n.offsets, n.scores, n.scale, n.model FROM sensitivities n "
        f"JOIN turns t ON t.rowid = n.turn WHERE t.id {LISTED}",
        (as_json(turn_ids),),
    )
    found = {row[0]: _stored(*row) for row in rows}
    return {id: found[id] for id in turn_ids if id in found}


def _stored(id: str, offsets: bytes, scores: bytes, scale: float, model: str) -> StoredSensitivity:
    if len(offsets) != 8 * len(scores) or not 0 <= scale < float("inf"):
        raise StoreCorrupt(
            f"the sensitivities of turn {id!r} are damaged ({len(scores)} scores, {len(offsets)} "
            "bytes of offsets); check the store with `edgemem doctor`"
        )
    return StoredSensitivity(
        np.frombuffer(offsets, "<i4").reshape(-1, 2),
        np.frombuffer(scores, np.uint8),
        scale,
        model,
    )


def put(
    tx: Transaction,
    turn_id: str,
    text: str,
    offsets: NDArray[np.int32],
    values: NDArray[np.float32],
    model: str,
) -> bool:
    """Keep the sensitivities of a turn; whether its text is still the one that was scored.

    offsets: (n, 2) int32; values: (n,) float32 >= 0. Nothing is written for a turn that was erased,
    or whose memory was deleted or edited, while its text was read.
    """
    scale = float(values.max(initial=0)) / 255**2
    scores = np.rint(np.sqrt(values / scale)) if scale else np.zeros(len(values))
    with tx.step() as connection:
        done = connection.execute(
            "INSERT OR REPLACE INTO sensitivities (turn, model, scale, offsets, scores) "
            f"SELECT t.rowid, ?, ?, ?, ? {_STANDING} AND t.id = ? AND m.memory = ? LIMIT 1",
            (
                model,
                scale,
                offsets.astype("<i4").tobytes(),
                scores.astype(np.uint8).tobytes(),
                turn_id,
                text,
            ),
        )
    return done.rowcount > 0


def unscored(store: Store, model: str, *, before: int, after: int) -> list[Neighbour]:
    """The oldest turn without scores of this model, and the turns around it, in order; or nothing.

    before, after: at most so many turns of the same user, agent and run on either side.
    """
    missing = "NOT EXISTS (SELECT 1 FROM sensitivities n WHERE n.turn = t.rowid AND n.model = ?)"
    columns = f"SELECT DISTINCT t.rowid, t.id, coalesce(t.name, t.role), m.memory, {missing}"
    with store._snapshot() as connection:
        first = connection.execute(
            f"SELECT t.rowid, t.user_id, t.agent_id, t.run_id {_STANDING} AND {missing} "
            "ORDER BY t.rowid LIMIT 1",
            (model,),
        ).fetchone()
        if first is None:
            return []
        same = "t.user_id IS ? AND t.agent_id IS ? AND t.run_id IS ?"
        found = [
            row
            for side, order, limit in (("<", "DESC", before), (">=", "", after + 1))
            for row in connection.execute(
                f"{columns} {_STANDING} AND {same} AND t.rowid {side} ? "
                f"ORDER BY t.rowid {order} LIMIT ?",
                (model, *first[1:], first[0], limit),
            )
        ]
    return [Neighbour(row[1], row[2], row[3], bool(row[4])) for row in sorted(found)]


def backlog(store: Store) -> dict[str, int]:
    """How many turns have scores, and how many still want them."""
    with store._snapshot() as connection:
        (ready,) = connection.execute("SELECT count(*) FROM sensitivities").fetchone()
        (standing,) = connection.execute(f"SELECT count(DISTINCT t.rowid) {_STANDING}").fetchone()
    return {"ready": ready, "missing": standing - ready}
