"""Messages as stored turns: what is kept of each, what of it is searchable, what is extracted from.

Knows messages and the store's rows; no SQL, no model.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgemem.results import Change, Message, Scope
from edgemem.retrieval.lexical import search_text
from edgemem.store import NewMemory, StoredTurn

__all__ = ["added", "is_searchable", "pairs_to_extract", "said", "stored_turn", "turn_memory"]


def is_searchable(message: Message, recalled: bool) -> bool:
    """Whether a message is found by searches: said by someone, and not made from memories."""
    return message.role in ("user", "assistant") and not recalled


def said(message: Message) -> str:
    """The text whose vector stands for a message: who says it, and what."""
    return search_text(message.content, speaker=message.name)


def stored_turn(message: Message, scope: Scope, now: str) -> StoredTurn:
    """A message as it goes into the store, with an id of its own. now: ISO-8601 UTC."""
    return StoredTurn(
        id=str(uuid.uuid4()),
        scope=scope,
        role=message.role,
        name=message.name,
        content=message.content,
        timestamp=message.timestamp,
        metadata=message.metadata,
        created_at=now,
    )


def turn_memory(
    turn: StoredTurn,
    vectors: NDArray[np.float32],
    *,
    metadata: Mapping[str, Any],
    expires_at: str | None,
) -> NewMemory:
    """The memory that makes a turn searchable, whatever is extracted from it later.

    vectors: (c, dim) float32, those of `said(message)`. metadata: of the whole call; the message's
    own goes before it.
    """
    return NewMemory(
        id=str(uuid.uuid4()),
        kind="turn",
        memory=turn.content,
        search_text=search_text(turn.content, speaker=turn.name, when=turn.timestamp),
        scope=turn.scope,
        created_at=turn.created_at,
        vectors=vectors,
        metadata={**metadata, **turn.metadata},
        valid_from=turn.timestamp,
        expires_at=expires_at,
        sources=(turn.id,),
    )


def added(item: NewMemory) -> Change:
    """What storing a memory changed."""
    return Change(
        id=item.id,
        memory=item.memory,
        event="ADD",
        kind=item.kind,
        metadata=item.metadata,
        created_at=item.created_at,
        updated_at=item.created_at,
    )


def pairs_to_extract(turns: Sequence[StoredTurn], searchable: Sequence[bool]) -> list[list[str]]:
    """Ids of the turns to extract from, two messages at a time.

    An assistant without a name is the model itself, whose words hold nothing new.
    """
    worth = [
        keep and (turn.role == "user" or turn.name is not None)
        for turn, keep in zip(turns, searchable, strict=True)
    ]
    pairs = [range(i, min(i + 2, len(turns))) for i in range(0, len(turns), 2)]
    ids = [[turns[i].id for i in pair if worth[i]] for pair in pairs]
    return [pair for pair in ids if pair]
