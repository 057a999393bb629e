"""The write path: messages become turns, and facts are taken from them.

A turn and its piece of pending work are committed together before the language model runs. Work on
a piece ends in one transaction that applies the operations and drops the piece. If the model's
answer cannot be parsed, or the process dies, the piece stays and is tried again. One process at a
time works on pending pieces.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import wraps
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec, TypeVar

import numpy as np
from numpy.typing import NDArray

from edgemem import graph
from edgemem.errors import DimensionMismatch, StoreFull, StoreLocked
from edgemem.inputs import NO_WORDS
from edgemem.language import Statement, in_third_person, same_word
from edgemem.pipeline.importers import IMPORT_ID
from edgemem.pipeline.parts import expert_of
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
from edgemem.store import NewMemory, NewRelation, PendingItem, StoredTurn
from edgemem.store.relations import relations_of
from edgemem.store.writing import Transaction

if TYPE_CHECKING:
    from edgemem.memory import Memory

__all__ = ["EXTRACT", "Outdated", "Told", "added", "conclude", "conflicts", "imported_id"]
__all__ += [
    "is_searchable",
    "nearest",
    "pairs_to_extract",
    "redone",
    "retract",
    "rewritten",
    "said",
]
__all__ += ["stored_turn", "turn_memory", "unqueue", "work_off", "work_off_all"]

EXTRACT = "extract"
NEAREST = 10  # Mem0's s: memories that a new fact is compared with
_COMPARED = 50  # facts that are compared
_DENIED = 0.6  # share of the shorter fact's content words that a denial must share with the other
_OPPOSITE: dict[Label, Label] = {"likes": "dislikes", "dislikes": "likes"}
_FIRST_RETRY_S, _LAST_RETRY_S = 60.0, 86_400.0  # doubled from one failure to the next

Vectors = NDArray[np.float32]
P = ParamSpec("P")
R = TypeVar("R")


class Told(NamedTuple):
    """What a memory is made of: a turn, or an image that came with it.

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


def said(turn: StoredTurn | Message, image: str | None = None) -> str:
    """The text to embed for a turn: its speaker and its words, or the description of an image."""
    return search_text(image or turn.content, speaker=turn.name)


def imported_id(import_id: object, scope: Scope, *what: object) -> str:
    """The id of an imported turn or memory, the same on every device and at every time. So two
    devices that import a file have it once after a sync, and what was erased is recognised.

    import_id: the message's IMPORT_ID, or the memory's id elsewhere. what: gives the id of
    something else that was made of the turn.
    """
    name = json.dumps([import_id, scope.user_id, scope.agent_id, scope.run_id, *what])
    return str(uuid.uuid5(uuid.NAMESPACE_OID, name))


def _new_id(turn: StoredTurn, *what: object) -> str:
    """The id of what is stored of a turn: random, unless the turn was imported (`imported_id`)."""
    import_id = turn.metadata.get(IMPORT_ID)
    if turn.id != imported_id(import_id, turn.scope):
        return str(uuid.uuid4())
    return imported_id(import_id, turn.scope, *what)


def stored_turn(message: Message, scope: Scope, now: str, *, imported: bool = False) -> StoredTurn:
    """A message as it goes into the store, with an id of its own. now: ISO-8601 UTC.

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
    """The memory that makes a turn searchable, whatever is extracted from it later.

    vectors: (c, dim) float32, of the text that `said` gives. metadata: of the whole call; the
    message's own overrides it. image: the description of an image that came with the turn; then
    the memory is the image's.
    """
    text = image or turn.content
    return NewMemory(
        id=str(uuid.uuid4()) if image else _new_id(turn, "turn"),
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


def added(item: NewMemory) -> Change:
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


def rewritten(memory: Memory, item: MemoryItem, text: str) -> dict[str, Any]:
    """What `Transaction.update_memory` takes to give a memory another text."""
    speaker = None
    if item.kind in ("turn", "image"):
        speaker = next((turn.name for turn in memory.store.turns(item.sources).values()), None)
    indexed = search_text(text, speaker=speaker, when=item.valid_from)
    (vectors,) = memory.embedder.embed_chunks([embedded_text(indexed)])
    return {"memory": text, "search_text": indexed, "vectors": vectors, "updated_at": utc_now()}


class Outdated(Exception):
    """A memory is no longer as it was read, so what was made of it must not be written."""


def redone(write: Callable[P, R]) -> Callable[P, R]:
    """A function that reads memories, embeds and writes; it begins anew if it raises Outdated.

    No transaction is open while it embeds, so somebody else may change the memories meanwhile.
    """

    @wraps(write)
    def anew(*args: P.args, **kwargs: P.kwargs) -> R:
        while True:
            with suppress(Outdated):
                return write(*args, **kwargs)

    return anew


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


def work_off_all(memory: Memory, pieces: Iterable[PendingItem]) -> list[Change]:
    """Take facts from pending pieces; returns all changes. The caller holds the work lock."""
    changes: list[Change] = []
    for piece in pieces:
        try:
            changes += work_off(memory, piece)
        except StoreLocked:
            break  # the pieces that are left stay pending
    return changes


def unqueue(memory: Memory, tx: Transaction, gone: Iterable[MemoryItem]) -> None:
    """Take the turns of deleted or edited memories out of the pending work."""
    turns = {source for item in gone if item.kind == "turn" for source in item.sources}
    for piece in memory.pending() if turns else ():
        left = [turn for turn in piece.payload["turns"] if turn not in turns]
        if len(left) < len(piece.payload["turns"]):
            tx.finish_pending(piece.id)
            if left:
                tx.add_pending(piece.task, {**piece.payload, "turns": left}, piece.scope)


def retract(memory: Memory, tx: Transaction, old: MemoryItem, now: str) -> None:
    """`unqueue` a memory's turn, and delete the facts that were taken from that turn alone."""
    unqueue(memory, tx, [old])
    for fact in memory.store.only_from(old.sources) if old.kind == "turn" else ():
        tx.delete_memory(fact.id, now)


def work_off(memory: Memory, item: PendingItem) -> list[Change]:
    """Extract facts from pending turns and update the memories; returns the changes in order.

    A failure is noted in the piece, with a time to try again. The caller holds the store's work
    lock. Raises ModelNotFound when there is no model at all, and StoreError when no piece could be
    worked off.
    """
    memory.engine  # noqa: B018  # without a model nothing is tried, and no attempt counted
    try:
        return _extract_and_update(memory, item)
    except (StoreLocked, StoreFull, DimensionMismatch):
        raise  # so would every other piece
    except Exception as exc:  # one message must not stop those that come after it
        memory._parts.require_open()
        wait = min(_FIRST_RETRY_S * 2.0 ** min(item.attempts, 30), _LAST_RETRY_S)
        due = datetime.now(UTC) + timedelta(seconds=wait)
        with memory.store.transaction() as tx:
            # While the model read the turns, somebody else may have deleted them.
            if any(left.id == item.id for left in memory.pending()):
                error = f"{type(exc).__name__}: {exc}"[:500]
                tx.fail_pending(item.id, error, to_utc(due))
        return []


def _extract_and_update(memory: Memory, item: PendingItem) -> list[Change]:
    turns = list(memory.store.turns(item.payload["turns"]).values())
    engine = expert_of(memory, "extraction", memory.engine)
    way = reader_of(engine, "extraction", memory.settings.reader)
    before = memory.settings.context_turns if way == "quote" else extraction.CONTEXT
    context: list[StoredTurn] = []
    if turns and before:
        context = memory.store.recent_turns(item.scope, before=turns[0].id, limit=before)
        standing = memory.store.standing_turns([t.id for t in context])
        context = [t for t in context if t.id in standing]
    context, turns = (_of_life(memory, told) for told in (context, turns))
    found = extraction.extract(
        engine, [_message(t) for t in turns], context=[_message(t) for t in context], reader=way
    )
    return conclude(memory, item, context, turns, found)


def _of_life(memory: Memory, turns: Sequence[StoredTurn]) -> list[StoredTurn]:
    """The turns without those that are material: no fact is taken from them, nor shown by them. An
    assistant without a name is the model itself, whose words are only shown."""
    return [
        turn
        for turn in turns
        if (turn.role != "user" and turn.name is None)
        or not is_material(memory.embedder, turn.content)
    ]


def conclude(
    memory: Memory,
    piece: PendingItem,
    context: Sequence[StoredTurn],
    turns: Sequence[StoredTurn],
    found: Sequence[extraction.Fact],
) -> list[Change]:
    """Update the memories by the facts of pending turns, and finish the piece; returns the changes.

    context: the turns before them, from which a fact may take words (`Fact.also`).
    """
    encoder = memory.encoder
    vectors = memory.embedder.embed_chunks([f.text for f in found]) if found else []
    said = [*context, *turns]
    facts = []
    for number, (fact, chunks) in enumerate(zip(found, vectors, strict=True)):
        its = [said[len(context) + i] for i in (fact.source, *fact.also)]
        facts.append(_new_fact(piece, its, number, fact, chunks, encoder))
    near = [_near(memory, new.item) for new in facts]
    ops = update.decide(
        memory.engine,
        [new.item.memory for new in facts],
        [[update.Candidate(m.id, m.memory, s) for m, s in of_one] for of_one in near],
        encoder,
        may_end=[fact.may_end for fact in found],
    )
    compared = {m.id: m for of_one in near for m, _ in of_one}
    last_told = _last_told(memory, compared.values())
    changes: list[Change] = []
    with memory._writing() as tx:
        # Somebody may have edited, ended or deleted one while the model read.
        now = memory.store.get(list(compared))
        known = {id: m for id, m in compared.items() if now.get(id) == m}
        # Another device may have taken the same facts of an import, and they came by a sync. One
        # that was edited, ended or deleted since stays so.
        had = memory.store.get([new.item.id for new in facts], include_deleted=True)
        for op, new in zip(ops, facts, strict=True):
            if new.item.id in had:
                continue
            changes += _apply(tx, op, new, known, last_told, graph.version(encoder))
        tx.finish_pending(piece.id)
    return changes


def _new_fact(
    piece: PendingItem,
    its: Sequence[StoredTurn],
    number: int,
    fact: extraction.Fact,
    vectors: Vectors,
    encoder: Encoder | None,
) -> _NewFact:
    """A fact as it is stored, if the update adds it. its: the turns that tell it, the one that
    says it first. number: its place among the piece's facts."""
    turn = its[0]
    item = NewMemory(
        id=_new_id(turn, number, fact.text),
        kind="fact",
        memory=fact.text,
        search_text=search_text(fact.text, when=fact.valid_from),
        scope=piece.scope,
        created_at=utc_now(),
        vectors=vectors,
        metadata=piece.payload.get("metadata") or {},
        valid_from=fact.valid_from,
        expires_at=piece.payload.get("expires_at"),
        sources=tuple(turn.id for turn in its),
    )
    words = " ".join(turn.content for turn in its)
    told = graph.relations(encoder, fact.text, fact.valid_from, words, turn.timestamp)
    return _NewFact(item, told, turn)


def _near(memory: Memory, new: NewMemory) -> list[tuple[MemoryItem, float]]:
    """The facts to compare a new one with. A scope without a user finds everybody's facts, but ends
    nobody else's."""
    query = Query(new.memory, new.scope, kinds=frozenset({"fact"}), top_k=NEAREST)
    found = nearest(memory, query, new.vectors[0])
    return [(item, cosine) for item, cosine in found if item.user_id == new.scope.user_id]


def _message(turn: StoredTurn) -> Message:
    return Message(turn.role, turn.content, turn.timestamp, turn.name)


def nearest(memory: Memory, query: Query, vector: Vectors) -> list[tuple[MemoryItem, float]]:
    """The memories with the largest cosines to a query's vector (dim,), with these; best first."""
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
    known: dict[str, MemoryItem],
    told: Mapping[str, str],
    reader: int,
) -> list[Change]:
    """Write one operation. known: memories by id that no operation has replaced yet; one that is
    replaced here is removed. told: when each was told last. reader: the version of the reader of
    relations."""
    now = utc_now()
    item = replace(new.item, created_at=now)

    def add(item: NewMemory) -> Change:
        tx.add_memory(item, role=new.turn.role, actor_id=new.turn.name)
        tx.set_relations(item.id, new.relations, reader)
        return replace(added(item), by=op.by)

    old = known.get(op.target) if op.target is not None else None
    if old is None or (op.event != "DELETE" and _expires_before(old, item)):
        return [add(item)]
    if op.event == "NONE":
        return [changed(old, "NONE", old.updated_at, by=op.by)]
    if op.event == "UPDATE":
        del known[old.id]
        tx.update_memory(
            old.id,
            memory=item.memory,
            search_text=item.search_text,
            vectors=item.vectors,
            updated_at=now,
            valid_from=item.valid_from,
            sources=item.sources,
        )
        tx.set_relations(old.id, new.relations, reader)
        return [changed(old, "UPDATE", now, text=item.memory, previous=old.memory, by=op.by)]
    if new.turn.timestamp < told[old.id]:
        # An older conversation, imported later: its fact had ended before it was stored.
        return [add(replace(item, valid_to=_ended_at(item, old, told[old.id])))]
    del known[old.id]
    ended_at = _ended_at(old, item, new.turn.timestamp)
    tx.invalidate(old.id, ended_at, at=now)
    dropped = changed(old, "DELETE", now, by=op.by)
    instead = add(item)
    tx.end_relations(old.id, ended_at, instead.id)
    return [dropped, instead]


def _expires_before(old: MemoryItem, new: NewMemory) -> bool:
    if old.expires_at is None:
        return False
    return new.expires_at is None or old.expires_at < new.expires_at


def _last_told(memory: Memory, items: Iterable[MemoryItem]) -> dict[str, str]:
    """When each memory was told last, by its id; when it was stored, if its turns are deleted."""
    told = {}
    for item in items:
        turns = memory.store.turns(item.sources).values()
        told[item.id] = max((turn.timestamp for turn in turns), default=item.created_at)
    return told


def _ended_at(old: MemoryItem | NewMemory, new: MemoryItem | NewMemory, told: str) -> str:
    """When a fact ends that is contradicted by a new one, told at `told`.

    It holds until the new one begins. A plan for a later day than `told` is off at once.
    """
    began = old.valid_from or ""
    return told if began > told else max(new.valid_from or told, began)


# -- what a statement contradicts --------------------------------------------------------------


def conflicts(memory: Memory, text: str, scope: Scope) -> list[Conflict]:
    """The facts of a scope that a statement contradicts, the most similar first; writes nothing.

    Two facts contradict each other if they give somebody two targets of a relation that has one at
    a time (lives_in), if they say that something is liked and disliked, or if one denies what the
    other says. text: about somebody by name; the first person means the user.
    """
    statement = in_third_person(text, graph.USER)
    vector = memory.embedder.embed_query(statement)
    query = Query(statement, scope, kinds=frozenset({"fact"}), top_k=_COMPARED)
    new = graph.relations(memory.encoder, statement, utc_now())
    said = Statement.of(statement)
    found = []
    for item, cosine in nearest(memory, query, vector):
        label = _at_odds(new, relations_of(memory.store, [item.id], scope))
        if label is not None or _denies(said, Statement.of(item.memory)):
            found.append(Conflict(**vars(item), score=max(0.0, cosine), label=label))
    return found


def _at_odds(new: list[NewRelation], old: list[Relation]) -> Label | None:
    """The label of a new relation that cannot hold together with an old one, or None."""
    for one in new:
        for other in old:
            if one.source.name.casefold() != other.source.casefold():
                continue
            same = one.target.name.casefold() == other.destination.casefold()
            if one.label == other.relationship and one.label in graph.FUNCTIONAL and not same:
                return one.label
            if _OPPOSITE.get(one.label) == other.relationship and same:
                return one.label
    return None


def _denies(one: Statement, other: Statement) -> bool:
    """Whether one of two facts about the same person negates the other in much the same words."""
    if one.negated == other.negated or one.person != other.person:
        return False
    less, more = sorted((one.content, other.content), key=len)
    shared = sum(same_word(word, more) for word in less)
    return bool(less) and shared >= _DENIED * len(less)
