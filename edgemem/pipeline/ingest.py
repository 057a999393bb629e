"""The write path: messages become turns, and facts are extracted from the turns.

A turn and its piece of pending work are committed together before the language model runs. One
transaction then applies the operations of the piece and deletes it; until then it stays, and is
tried again. One process at a time works on pending pieces.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import wraps
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec, TypeVar

import numpy as np
from numpy.typing import NDArray

from edgemem.errors import DimensionMismatch, StoreFull, StoreLocked
from edgemem.inputs import NO_WORDS
from edgemem.language import Statement, in_third_person, same_word
from edgemem.pipeline import graph
from edgemem.pipeline.importers import IMPORT_ID
from edgemem.pipeline.parts import engine_for
from edgemem.results import (
    Change,
    Conflict,
    Label,
    MemoryItem,
    Message,
    Picture,
    Query,
    Relation,
    Scope,
    changed,
    to_utc,
    utc_now,
)
from edgemem.retrieval.lexical import embedded_text, search_text
from edgemem.retrieval.search import refresh
from edgemem.runtime.encoder import Encoder
from edgemem.runtime.experts import reader_of
from edgemem.stages import extraction, update
from edgemem.stages.material import is_material
from edgemem.store import NewMemory, NewRelation, PendingItem, StoredTurn, images
from edgemem.store.relations import relations_of
from edgemem.store.writing import Transaction

if TYPE_CHECKING:
    from edgemem.memory import Memory

__all__ = ["EXTRACT", "Draft", "Outdated", "add_change", "apply_facts", "conflicts", "imported_id"]
__all__ += ["is_searchable", "nearest", "pairs_to_extract", "process_piece", "process_pieces"]
__all__ += ["retract", "retried_if_outdated", "stored_turn", "text_to_embed", "text_update"]
__all__ += ["turn_memory", "unqueue"]

EXTRACT = "extract"
NEAREST = 10  # Mem0's s: memories that a new fact is compared with
_COMPARED = 50  # facts that a statement is compared with (`conflicts`)
_DENIED = 0.6  # share of the shorter fact's content words that a denial must share with the other
_OPPOSITE: dict[Label, Label] = {"likes": "dislikes", "dislikes": "likes"}
_FIRST_RETRY_S, _LONGEST_RETRY_S = 60.0, 86_400.0  # doubled from one failure to the next

Vectors = NDArray[np.float32]
P = ParamSpec("P")
R = TypeVar("R")


class Draft(NamedTuple):
    """A memory before its text is embedded: of a turn, or of an image that came with the turn.

    image: the image's description, None for a turn. picture: the image itself.
    """

    turn: StoredTurn
    image: str | None = None
    picture: Picture | None = None


@dataclass(frozen=True)
class _NewFact:
    """A fact as it may be stored, the relations that it tells, and the turn that says it."""

    item: NewMemory
    relations: list[NewRelation]
    turn: StoredTurn


# -- messages as stored turns -----------------------------------------------------------------


def is_searchable(turn: StoredTurn, recalled: bool) -> bool:
    """Whether searches find a turn: a user's or an assistant's, in words, and not `recalled`."""
    return turn.role in ("user", "assistant") and not recalled and turn.content != NO_WORDS


def text_to_embed(turn: StoredTurn | Message, image: str | None = None) -> str:
    """The speaker of a turn with its words, or with the description of an image (`image`)."""
    return search_text(image or turn.content, speaker=turn.name)


def imported_id(import_id: object, scope: Scope, *what: object) -> str:
    """The id of an imported turn or memory, the same on every device, for sync and for erase.

    import_id: the message's IMPORT_ID, or the memory's id in the other program. what: distinguishes
    the memories that are made of the turn from the turn and from each other.
    """
    name = json.dumps([import_id, scope.user_id, scope.agent_id, scope.run_id, *what])
    return str(uuid.uuid5(uuid.NAMESPACE_OID, name))


def _memory_id(turn: StoredTurn, *what: object) -> str:
    """The id of a memory of a turn: random, unless the turn was imported (`imported_id`)."""
    import_id = turn.metadata.get(IMPORT_ID)
    if turn.id != imported_id(import_id, turn.scope):
        return str(uuid.uuid4())
    return imported_id(import_id, turn.scope, *what)


def stored_turn(message: Message, scope: Scope, now: str, *, imported: bool = False) -> StoredTurn:
    """A message as a turn, with an id. now: ISO-8601 UTC.

    imported: the id is made of the message's IMPORT_ID, if it has one.
    """
    import_id = message.metadata.get(IMPORT_ID) if imported else None
    return StoredTurn(
        id=str(uuid.uuid4()) if import_id is None else imported_id(import_id, scope),
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
    vectors: Vectors,
    metadata: Mapping[str, Any] | None = None,
    expires_at: str | None = None,
    *,
    image: str | None = None,
) -> NewMemory:
    """The memory that makes a turn, or an image that came with it, searchable.

    vectors: (c, dim) float32, of `text_to_embed`. metadata: of the whole call; the message's own
    overrides it. image: the image's description; None makes the memory of the turn itself.
    """
    text = image or turn.content
    return NewMemory(
        id=str(uuid.uuid4()) if image else _memory_id(turn, "turn"),
        kind="image" if image else "turn",
        memory=text,
        search_text=search_text(text, speaker=turn.name, when=turn.timestamp),
        scope=turn.scope,
        created_at=turn.created_at,
        vectors=vectors,
        metadata={**(metadata or {}), **turn.metadata},
        valid_from=turn.timestamp,
        expires_at=expires_at,
        sources=(turn.id,),
    )


def add_change(item: NewMemory) -> Change:
    """The ADD change that reports a stored memory."""
    return Change(
        id=item.id,
        memory=item.memory,
        event="ADD",
        kind=item.kind,
        metadata=item.metadata,
        created_at=item.created_at,
        updated_at=item.created_at,
    )


def text_update(memory: Memory, item: MemoryItem, text: str) -> dict[str, Any]:
    """The arguments of `Transaction.update_memory` that give a memory a new text."""
    speaker = None
    if item.kind in ("turn", "image"):
        speaker = next((turn.name for turn in memory.store.turns(item.sources).values()), None)
    indexed = search_text(text, speaker=speaker, when=item.valid_from)
    (vectors,) = memory.embedder.embed_chunks([embedded_text(indexed)])
    return {"memory": text, "search_text": indexed, "vectors": vectors, "updated_at": utc_now()}


class Outdated(Exception):
    """A memory has changed since it was read, so nothing derived from it may be written."""


def retried_if_outdated(write: Callable[P, R]) -> Callable[P, R]:
    """Decorates a function that reads memories, embeds and writes: on Outdated it is called again,
    as another writer may change the memories while it embeds."""

    @wraps(write)
    def retried(*args: P.args, **kwargs: P.kwargs) -> R:
        while True:
            with suppress(Outdated):
                return write(*args, **kwargs)

    return retried


def pairs_to_extract(
    turns: Sequence[StoredTurn], searchable: Sequence[StoredTurn]
) -> list[list[str]]:
    """Ids of the turns to extract from, two messages at a time.

    An assistant without a name is the model itself, whose words hold nothing new.
    """
    worth = {turn.id for turn in searchable if turn.role == "user" or turn.name is not None}
    pairs = [turns[i : i + 2] for i in range(0, len(turns), 2)]
    ids = [[turn.id for turn in pair if turn.id in worth] for pair in pairs]
    return [pair for pair in ids if pair]


# -- facts from stored turns -------------------------------------------------------------------


def process_pieces(memory: Memory, pieces: Iterable[PendingItem]) -> list[Change]:
    """Take facts from pending pieces; returns all changes. The caller holds the work lock.

    Stops at a StoreLocked. The rest stays pending.
    """
    changes: list[Change] = []
    for piece in pieces:
        try:
            changes += process_piece(memory, piece)
        except StoreLocked:
            break
    return changes


def unqueue(memory: Memory, tx: Transaction, gone: Iterable[MemoryItem]) -> None:
    """Take the turns of memories that are being deleted or edited out of the pending work."""
    turns = {source for item in gone if item.kind == "turn" for source in item.sources}
    for piece in memory.pending() if turns else ():
        left = [turn for turn in piece.payload["turns"] if turn not in turns]
        if len(left) < len(piece.payload["turns"]):
            tx.finish_pending(piece.id)
            if left:
                tx.add_pending(piece.task, {**piece.payload, "turns": left}, piece.scope)


def retract(memory: Memory, tx: Transaction, old: MemoryItem, now: str) -> None:
    """`unqueue` the turn of a memory, and delete the facts that were taken from this turn alone."""
    unqueue(memory, tx, [old])
    for fact in memory.store.only_from(old.sources) if old.kind == "turn" else ():
        tx.delete_memory(fact.id, now)


def process_piece(memory: Memory, piece: PendingItem) -> list[Change]:
    """Extract facts from pending turns and update the memories; returns the changes in order.

    A failure is noted in the piece, with a time to try again. The caller holds the work lock.
    Raises ModelNotFound if there is no model, and StoreError if no piece could be processed.
    """
    memory.engine  # noqa: B018  # without a model nothing is tried, and no attempt counted
    try:
        return _extract_and_update(memory, piece)
    except (StoreLocked, StoreFull, DimensionMismatch):
        raise  # every other piece would fail too
    except Exception as exc:  # one message must not stop those that come after it
        memory._parts.require_open()
        wait = min(_FIRST_RETRY_S * 2.0 ** min(piece.attempts, 30), _LONGEST_RETRY_S)
        due = datetime.now(UTC) + timedelta(seconds=wait)
        with memory.store.transaction() as tx:
            # Another writer may have deleted the turns while the model read them.
            if any(left.id == piece.id for left in memory.pending()):
                error = f"{type(exc).__name__}: {exc}"[:500]
                tx.fail_pending(piece.id, error, to_utc(due))
        return []


def _extract_and_update(memory: Memory, piece: PendingItem) -> list[Change]:
    turns = list(memory.store.turns(piece.payload["turns"]).values())
    engine = engine_for(memory, "extraction", memory.engine)
    way = reader_of(engine, "extraction", memory.settings.reader)
    before = 0 if way == "quote" else extraction.CONTEXT
    context: list[StoredTurn] = []
    if turns and before:
        context = memory.store.recent_turns(piece.scope, before=turns[0].id, limit=before)
        standing = memory.store.standing_turns([t.id for t in context])
        context = [t for t in context if t.id in standing]
    context, turns = (_of_life(memory, told) for told in (context, turns))
    photos = images.of_turns(memory.store, [t.id for t in turns])
    found = extraction.extract(
        engine,
        [_message(t) for t in turns],
        context=[_message(t) for t in context],
        captions=[i for i, turn in enumerate(turns) if turn.id in photos],
        reader=way,
    )
    return apply_facts(memory, piece, context, turns, found)


def _of_life(memory: Memory, turns: Sequence[StoredTurn]) -> list[StoredTurn]:
    """The turns without those that are material. An assistant without a name is the model itself,
    whose words are only shown."""
    return [
        turn
        for turn in turns
        if (turn.role != "user" and turn.name is None)
        or not is_material(memory.embedder, turn.content)
    ]


def apply_facts(
    memory: Memory,
    piece: PendingItem,
    context: Sequence[StoredTurn],
    turns: Sequence[StoredTurn],
    found: Sequence[extraction.Fact],
) -> list[Change]:
    """Update the memories by the facts of pending turns, and finish the piece; returns the changes.

    found: the facts extracted from `turns`. context: the turns before these, from which a fact may
    take words (`Fact.also`).
    """
    encoder = memory.encoder
    vectors = memory.embedder.embed_chunks([f.text for f in found]) if found else []
    shown = [*context, *turns]
    facts = []
    for number, (fact, chunks) in enumerate(zip(found, vectors, strict=True)):
        sources = [shown[len(context) + i] for i in (fact.source, *fact.also)]
        facts.append(_new_fact(piece, sources, number, fact, chunks, encoder))
    near = [_comparable(memory, new.item) for new in facts]
    ops = update.decide(
        memory.engine,
        [new.item.memory for new in facts],
        [[update.Candidate(m.id, m.memory, cosine) for m, cosine in pairs] for pairs in near],
        encoder,
        may_end=[fact.may_end for fact in found],
    )
    compared = {item.id: item for pairs in near for item, _ in pairs}
    last_told = _last_told(memory, compared.values())
    changes: list[Change] = []
    with memory._writing() as tx:
        # Another writer may have edited, ended or deleted a memory while the model read.
        now = memory.store.get(list(compared))
        unchanged = {id: item for id, item in compared.items() if now.get(id) == item}
        # A sync may have brought the same facts of an import from another device. A fact that was
        # edited, ended or deleted since stays so.
        stored = memory.store.get([new.item.id for new in facts], include_deleted=True)
        for op, new in zip(ops, facts, strict=True):
            if new.item.id not in stored:
                changes += _apply(tx, op, new, unchanged, last_told, graph.version(encoder))
        tx.finish_pending(piece.id)
    return changes


def _new_fact(
    piece: PendingItem,
    sources: Sequence[StoredTurn],
    number: int,
    fact: extraction.Fact,
    vectors: Vectors,
    encoder: Encoder | None,
) -> _NewFact:
    """A fact as it may be stored. sources: the turns that tell it, first the one that says it.
    number: its place among the piece's facts."""
    turn = sources[0]
    item = NewMemory(
        id=_memory_id(turn, number, fact.text),
        kind="fact",
        memory=fact.text,
        search_text=search_text(fact.text, when=fact.valid_from),
        scope=piece.scope,
        created_at=utc_now(),
        vectors=vectors,
        metadata=piece.payload.get("metadata") or {},
        valid_from=fact.valid_from,
        expires_at=piece.payload.get("expires_at"),
        sources=tuple(turn.id for turn in sources),
    )
    said = " ".join(turn.content for turn in sources)
    related = graph.relations(encoder, fact.text, fact.valid_from, said, turn.timestamp)
    return _NewFact(item, related, turn)


def _comparable(memory: Memory, new: NewMemory) -> list[tuple[MemoryItem, float]]:
    """The facts to compare a new one with, each with its cosine, nearest first; none of another
    user, as a scope without a user finds."""
    query = Query(new.memory, new.scope, kinds=frozenset({"fact"}), top_k=NEAREST)
    found = nearest(memory, query, new.vectors[0])
    return [(item, cosine) for item, cosine in found if item.user_id == new.scope.user_id]


def _message(turn: StoredTurn) -> Message:
    return Message(turn.role, turn.content, turn.timestamp, turn.name)


def nearest(memory: Memory, query: Query, vector: Vectors) -> list[tuple[MemoryItem, float]]:
    """The memories nearest to a query's vector (dim,), each with its cosine, nearest first."""
    store, index = memory.store, memory.index
    refresh(store, index)
    rowids, cosines = index.nearest(query, vector)
    items = store.by_rowids(rowids.tolist())
    pairs = zip(rowids.tolist(), cosines.tolist(), strict=True)
    return [(items[rowid], cosine) for rowid, cosine in pairs if rowid in items]


def _apply(
    tx: Transaction,
    op: update.Op,
    new: _NewFact,
    replaceable: dict[str, MemoryItem],
    last_told: Mapping[str, str],
    graph_version: int,
) -> list[Change]:
    """Write one operation; returns its changes.

    replaceable: memories by id that no operation has replaced yet. A memory that this one replaces
    is removed. last_told: when each was told last. graph_version: see `graph.version`.
    """
    now = utc_now()
    item = replace(new.item, created_at=now)

    def add(item: NewMemory) -> Change:
        tx.add_memory(item, role=new.turn.role, actor_id=new.turn.name)
        tx.set_relations(item.id, new.relations, graph_version)
        return replace(add_change(item), by=op.by)

    old = replaceable.get(op.target) if op.target is not None else None
    if old is None or (op.event != "DELETE" and _expires_before(old, item)):
        return [add(item)]
    if op.event == "NONE":
        return [changed(old, "NONE", old.updated_at, by=op.by)]
    if op.event == "UPDATE":
        del replaceable[old.id]
        tx.update_memory(
            old.id,
            memory=item.memory,
            search_text=item.search_text,
            vectors=item.vectors,
            updated_at=now,
            valid_from=item.valid_from,
            sources=item.sources,
        )
        tx.set_relations(old.id, new.relations, graph_version)
        return [changed(old, "UPDATE", now, text=item.memory, previous=old.memory, by=op.by)]
    if new.turn.timestamp < last_told[old.id]:
        # An older conversation, imported later: its fact had ended before it was stored.
        return [add(replace(item, valid_to=_ended_at(item, old, last_told[old.id])))]
    del replaceable[old.id]
    ended_at = _ended_at(old, item, new.turn.timestamp)
    tx.invalidate(old.id, ended_at, at=now)
    ended = changed(old, "DELETE", now, by=op.by)
    successor = add(item)
    tx.end_relations(old.id, ended_at, successor.id)
    return [ended, successor]


def _expires_before(old: MemoryItem, new: NewMemory) -> bool:
    if old.expires_at is None:
        return False
    return new.expires_at is None or old.expires_at < new.expires_at


def _last_told(memory: Memory, items: Iterable[MemoryItem]) -> dict[str, str]:
    """When each memory was told last, by its id; when it was stored, if its turns are deleted."""
    last = {}
    for item in items:
        turns = memory.store.turns(item.sources).values()
        last[item.id] = max((turn.timestamp for turn in turns), default=item.created_at)
    return last


def _ended_at(old: MemoryItem | NewMemory, new: MemoryItem | NewMemory, told_at: str) -> str:
    """When a fact ends that a new one, told at `told_at`, contradicts: when the new one begins.

    A plan for a later day than `told_at` ends at `told_at`.
    """
    began = old.valid_from or ""
    return told_at if began > told_at else max(new.valid_from or told_at, began)


# -- what a statement contradicts --------------------------------------------------------------


def conflicts(memory: Memory, text: str, scope: Scope) -> list[Conflict]:
    """The facts of a scope that a statement contradicts, the most similar first; writes nothing.

    Facts do if they give somebody two targets of a relation with one target at a time (lives_in),
    if they say that something is liked and disliked, or if one denies what the other says. text:
    about somebody by name; the first person means the user.
    """
    statement = in_third_person(text, graph.USER)
    vector = memory.embedder.embed_query(statement)
    query = Query(statement, scope, kinds=frozenset({"fact"}), top_k=_COMPARED)
    new = graph.relations(memory.encoder, statement, utc_now())
    said = Statement.of(statement)
    found = []
    for item, cosine in nearest(memory, query, vector):
        label = _contradicted_label(new, relations_of(memory.store, [item.id], scope))
        if label is not None or _denies(said, Statement.of(item.memory)):
            found.append(Conflict(**vars(item), score=max(0.0, cosine), label=label))
    return found


def _contradicted_label(new: list[NewRelation], old: list[Relation]) -> Label | None:
    """The label of the first new relation that cannot hold together with an old one, or None."""
    for one, other in product(new, old):
        if one.source.name.casefold() != other.source.casefold():
            continue
        same_target = one.target.name.casefold() == other.destination.casefold()
        same_label = one.label == other.relationship
        if same_label and not same_target and one.label in graph.FUNCTIONAL:
            return one.label
        if same_target and _OPPOSITE.get(one.label) == other.relationship:
            return one.label
    return None


def _denies(one: Statement, other: Statement) -> bool:
    """Whether one of two facts about the same person negates the other in much the same words."""
    if one.negated == other.negated or one.person != other.person:
        return False
    less, more = sorted((one.content, other.content), key=len)
    shared = sum(same_word(word, more) for word in less)
    return bool(less) and shared >= _DENIED * len(less)
