"""Memory: what an app remembers of its users, in one SQLite file. Names and shapes are mem0's.

Ties the rooms together: inputs are checked, turns are stored, facts are taken from them
(`ingest`), queries are answered from vectors and words (`retrieval`), the store is looked after
(`upkeep`). The language model is loaded when something is to be inferred, and not before.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from datetime import datetime
from functools import wraps
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np
from numpy.typing import NDArray

from edgemem.budget import Plan
from edgemem.config import Settings, load_settings
from edgemem.errors import EdgememError, InputError, ModelError, StoreError, StoreLocked
from edgemem.graph import reader as graph
from edgemem.inputs import (
    count_of,
    id_of,
    messages_of,
    metadata_of,
    scope_of,
    text_of,
    threshold_of,
    time_of,
)
from edgemem.pipeline import ingest, looking, upkeep
from edgemem.pipeline.conflicts import conflicts
from edgemem.pipeline.parts import Parts
from edgemem.pipeline.subgraph import subgraph
from edgemem.results import (
    AddResults,
    Aligned,
    Change,
    Conflict,
    Erased,
    MemoryItem,
    MemoryList,
    Picture,
    Query,
    Relation,
    Relations,
    Scope,
    SearchResults,
    Subgraph,
    changed,
    utc_now,
)
from edgemem.retrieval import search
from edgemem.retrieval.search import Memories
from edgemem.runtime.embedder import Embedder
from edgemem.runtime.encoder import Encoder
from edgemem.runtime.engine import Engine
from edgemem.runtime.tokens import TokenEmbedder
from edgemem.store import PendingItem, Store, StoredTurn
from edgemem.store.database import work_lock
from edgemem.store.encryption import vault_for
from edgemem.store.erasures import with_receipt
from edgemem.store.filters import Where, compile_filters
from edgemem.store.images import image
from edgemem.store.relations import entity_ids, normalised, relations, relations_of
from edgemem.store.rows import unix_seconds
from edgemem.store.writing import Transaction

__all__ = ["AsyncMemory", "Memory"]

_WORK_LOCK_S = 120.0  # how long to wait for another process that works pending pieces off
_RETRIES = 2  # older pieces that are due, which an `add` takes up beside its own


class Memory:
    """A store of memories, open for use. Safe to call from several threads; close it when done.

    path: the file, made if it is not there; ":memory:" for none; None takes `settings.db`.
    engine, embedder, token_embedder: models to use instead of loading those that `settings` names
    (the caller closes them); with the last one, retrieval is careful. memory_limit_bytes: of all
    that is loaded, in place of the setting; what does not fit is turned down, as `plan` says, and
    MemoryBudgetExceeded raised if that is not enough. passphrase, or key (32 bytes, or a recovery
    code): of an encrypted store, which is made if it is not there; without them see `vault.unlock`.
    Every method may raise StoreError and its kinds, also when this is closed; adding with
    infer=True also ModelError.

    >>> with Memory("memories.db") as memory:
    ...     memory.add("I moved to Oslo last month.", user_id="ana")
    ...     memory.search("Where does Ana live?", user_id="ana")[0].memory
    """

    def __init__(
        self,
        path: str | Path | None = None,
        *,
        engine: Engine | None = None,
        embedder: Embedder | None = None,
        token_embedder: TokenEmbedder | None = None,
        settings: Settings | None = None,
        memory_limit_bytes: int | None = None,
        passphrase: str | None = None,
        key: bytes | str | None = None,
    ) -> None:
        self.settings = settings or load_settings()
        if memory_limit_bytes is not None:
            self.settings = replace(self.settings, memory_limit=str(memory_limit_bytes))
        path = path if path is not None else self.settings.db
        self.store = Store.open(path, vault=vault_for(path, key, passphrase))
        self._parts = Parts(self.store, self.settings, engine, embedder, token_embedder)
        self._reader = looking.Reader(lambda stop: looking.look(self, stop=stop))

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._parts.closed

    @property
    def plan(self) -> Plan | None:
        """What the memory limit has made of the parts; None without one."""
        return self._parts.plan

    @property
    def engine(self) -> Engine:
        """The language model, loaded when first asked for. Raises ModelNotFound, ModelError."""
        return self._parts.engine()

    @property
    def judge(self) -> Engine | None:
        """The bundled model beside a larger one; see `Parts.judge`."""
        return self._parts.judge()

    @property
    def embedder(self) -> Embedder:
        """The embedding model. Raises DimensionMismatch if the store holds another's vectors."""
        return self._parts.embedder()

    @property
    def encoder(self) -> Encoder | None:
        """What reads facts; None where the bundled embedder is not installed. Raises ModelError."""
        return self._parts.encoder()

    @property
    def token_embedder(self) -> TokenEmbedder | None:
        """The model of careful retrieval; None where retrieval is fast. Raises ModelError."""
        return self._parts.token_embedder()

    @property
    def index(self) -> Memories:
        """What searches keep of the store in memory."""
        return self._parts.index()

    def _work_lock(self, timeout_s: float) -> AbstractContextManager[bool]:
        return work_lock(self.store.path, self._parts.working, timeout_s)

    @contextmanager
    def _writing(self) -> Iterator[Transaction]:
        """A transaction for vectors of the embedder, whatever another process did meanwhile.

        What it has written gets its token vectors after it, where retrieval is careful. It is
        stored by then, so what goes wrong there is left to `process_pending`.
        """
        embedder, tokens = self._parts.any_embedder(), self.token_embedder
        with self.store.transaction() as tx:
            if not self._parts.check_embedder(embedder):
                tx.set_meta("embedder_model", embedder.model_id)
                tx.set_meta("embedder_dim", str(embedder.dim))
            yield tx
        with suppress(EdgememError):
            upkeep.embed_tokens(self.store, tokens, since=tx.generation)

    # -- writing -------------------------------------------------------------------------------

    def add(
        self,
        messages: str | Mapping[str, Any] | Sequence[Mapping[str, Any] | str] = (),
        *,
        images: Sequence[bytes | str | Path] = (),
        user_id: str | None = None,
        agent_id: str | None = None,
        run_id: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        timestamp: datetime | str | float | None = None,
        expires_at: datetime | str | float | None = None,
        infer: bool | Literal["later"] = True,
    ) -> AddResults:
        """Remember messages: each as a turn, and what can be inferred from them as facts.

        messages: a string, a dict {role, content, name?, timestamp?, metadata?} or a list of those;
        content: a text, or OpenAI's parts, images among them as data URIs. images: bytes, paths or
        data URIs, that belong to the last message; each becomes a memory of kind "image".
        The turns are stored in one transaction before any model runs. Then each pair gives facts,
        which are added to, or replace, what is known; what fails is left in `pending` and taken up
        again later. Messages of an assistant without a name are stored but not extracted from: they
        are the model's own words. infer=False stores the messages as they are, loads no language
        model and never de-duplicates; infer="later" leaves the facts to `process_pending`.
        timestamp: when it was said (naive: this machine's zone).
        Raises InputError on what cannot be stored; then nothing is. A ModelError about the language
        model comes after the messages were stored.
        """
        started = time.perf_counter()
        scope = scope_of(user_id, agent_id, run_id)
        shared = metadata_of(metadata)
        until = time_of(expires_at, "expires_at")
        checked = messages_of(messages, timestamp, images)
        now = utc_now()
        turns = [ingest.stored_turn(message, scope, now) for message, _ in checked]
        photos = looking.photos(self, checked, turns)
        searchable = [
            turn
            for turn, (_, recalled) in zip(turns, checked, strict=True)
            if ingest.is_searchable(turn, recalled)
        ]
        told = [*map(ingest.Told, searchable), *photos]
        vectors = self.embedder.embed_chunks([ingest.said(turn, image) for turn, image, _ in told])
        changes: list[Change] = []
        queued: list[int] = []
        with self._writing() as tx:
            for turn in turns:
                tx.add_turn(turn)
            for (turn, image, picture), chunks in zip(told, vectors, strict=True):
                item = ingest.turn_memory(turn, chunks, shared, until, image=image)
                tx.add_memory(item, role=turn.role, actor_id=turn.name)
                if picture is not None:
                    tx.add_image(item.id, picture)
                changes.append(ingest.added(item))
            for pair in ingest.pairs_to_extract(turns, searchable) if infer else ():
                piece = {"turns": pair, "metadata": shared, "expires_at": until}
                queued.append(tx.add_pending(ingest.EXTRACT, piece, scope))
        left = 0
        if queued:
            changes += self._infer(queued) if infer != "later" else []
            left = sum(piece.id in set(queued) for piece in self.pending())
        if photos and self.settings.image_text == "on":
            self._reader.wake()
        took = time.perf_counter() - started
        return AddResults(tuple(changes), left, took, self._told(changes))

    def _told(self, changes: Iterable[Change]) -> tuple[Relation, ...]:
        """What facts that were added or replaced tell of whom."""
        new = [c.id for c in changes if c.kind == "fact" and c.event in ("ADD", "UPDATE")]
        return tuple(relations_of(self.store, new)) if new else ()

    def _infer(self, queued: Sequence[int]) -> list[Change]:
        """Work off pieces that were just stored, after a few older ones whose time has come."""
        try:
            self.engine  # noqa: B018  # without one nothing is tried, and no attempt counted
        except ModelError as exc:
            raise type(exc)(
                f"{exc} The messages are stored and searchable; facts are taken from them once "
                "there is a model (`edgemem doctor --retry`)."
            ) from exc
        with self._work_lock(_WORK_LOCK_S) as mine:
            if not mine:
                return []
            due = self.store.pending(ingest.EXTRACT, due_before=utc_now())
            ingest.work_off_all(self, [piece for piece in due if piece.id < queued[0]][:_RETRIES])
            return ingest.work_off_all(self, [piece for piece in due if piece.id in set(queued)])

    def process_pending(
        self,
        limit: int | None = None,
        *,
        retry_now: bool = False,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> AddResults:
        """Try again what could not be extracted, if it is due (retry_now: also if it is not).

        Images without a caption get one from a model that sees. limit: at most so many pieces and
        images. Without one, images are read too (`read_images`), facts that an earlier version
        stored get their relations, and memories that were stored while retrieval was fast their
        token vectors. on_progress: given how many of these are done and how many there are. Raises
        StoreLocked while another process is at it.
        """
        started = time.perf_counter()
        if limit is not None:
            limit = count_of(limit, "limit", least=0)
        self._parts.require_open()
        with self._work_lock(0.0) as mine:
            if not mine:
                raise StoreLocked("another process works the pending turns off; try again later")
            due = None if retry_now else utc_now()
            pieces = self.store.pending(ingest.EXTRACT, due_before=due, limit=limit)
            changes = ingest.work_off_all(self, pieces)
            looking.caption(self, None if limit is None else limit - len(pieces))
            if limit is None:
                upkeep.read_relations(self.store, self.encoder, on_progress)
                self.read_images(on_progress=on_progress)
                upkeep.embed_tokens(self.store, self.token_embedder, on_progress=on_progress)
        took = time.perf_counter() - started
        return AddResults(tuple(changes), len(self.pending()), took, self._told(changes))

    def read_images(
        self, limit: int | None = None, *, on_progress: Callable[[int, int], None] | None = None
    ) -> int:
        """Read the text of images that wait for it, which `add` leaves to another thread; how many.

        Their memories are found by it from then on. With an image embedder, images without a vector
        get theirs. limit: at most so many. None are read where rapidocr is not installed (extra
        `images`), or a memory limit has no room for it.
        """
        self._parts.require_open()
        limit = None if limit is None else count_of(limit, "limit", least=0)
        return looking.look(self, limit, on_progress=on_progress)

    def pending(self) -> list[PendingItem]:
        """Turns that are stored but not yet extracted from, with the last error of each."""
        return self.store.pending(ingest.EXTRACT)

    def update(self, id: str, text: str, *, metadata: Mapping[str, Any] | None = None) -> Change:
        """Give a memory a new text; the old one stays in its history. metadata None keeps it.

        A turn that waits for its extraction is no longer extracted from: its words were replaced.
        """
        text_of(text)
        new = metadata_of(metadata) if metadata is not None else None
        old = self._existing(id)
        encoder = self.encoder if old.kind == "fact" else None
        told = graph.relations(encoder, text, old.valid_from or old.created_at)
        words = ingest.rewritten(self, old, text)
        with self._writing() as tx:
            previous = tx.update_memory(id, **words, metadata=new)
            if old.kind == "image":
                tx.set_caption(id, text, "user")
            if old.kind == "fact":
                tx.set_relations(id, told, graph.version(encoder))
            ingest.leave_unread(self, tx, [old])
        now = words["updated_at"]
        return changed(old, "UPDATE", now, text=text, metadata=new, previous=previous)

    def delete(self, id: str) -> Change:
        """Take a memory out of every answer. Its text stays in its history: see `erase`.

        A turn that waits for its extraction is no longer extracted from.
        """
        old = self._existing(id)
        now = utc_now()
        with self.store.transaction() as tx:
            tx.delete_memory(id, now)
            ingest.leave_unread(self, tx, [old])
        return changed(old, "DELETE", now)

    def delete_all(
        self, *, user_id: str | None = None, agent_id: str | None = None, run_id: str | None = None
    ) -> AddResults:
        """Delete every memory of a scope. Raises InputError without one; see `reset`."""
        scope = scope_of(user_id, agent_id, run_id)
        if scope == Scope():
            raise InputError(
                "delete_all needs user_id, agent_id or run_id; use reset() to empty the whole store"
            )
        now = utc_now()
        with self.store.transaction() as tx:
            items = self.store.list(scope, include_invalid=True)
            for item in items:
                tx.delete_memory(item.id, now)
            ingest.leave_unread(self, tx, items)
        return AddResults(tuple(changed(item, "DELETE", now) for item in items))

    def erase(self, ids: str | Iterable[str]) -> Erased:
        """Leave no trace of memories; the ids of all that went, with a receipt.

        With each go its source turns and every other memory taken from those, their vectors,
        history, free pages and backup copies; also the user's turns that are no memory (what a chat
        asked and answered, messages of a system or tool), for they may quote it. Raises StoreError
        if an id is unknown, StoreLocked as Store.erase does, or if another process works pending
        turns off and does not end.
        """
        wanted = [id_of(id) for id in ([ids] if isinstance(ids, str) else ids)]
        known = self.store.get(wanted, include_deleted=True)
        if missing := [id for id in wanted if id not in known]:
            raise StoreError(_unknown(missing[0]))
        with self._index_dropped():
            gone = self.store.erase(wanted)
            upkeep.read_relations(self.store, self.encoder, limit=upkeep.BATCH)
        return with_receipt(self.store, gone)

    def reset(self) -> None:
        """Erase everything. The store stays usable, with the same embedder."""
        with self._index_dropped():
            self.store.reset()

    @contextmanager
    def _index_dropped(self) -> Iterator[None]:
        """Without the index and its files, whose vectors tell of their texts. Nobody writes a file
        or takes facts from what is erased before the block is left."""
        self._parts.require_open()
        with self._work_lock(_WORK_LOCK_S) as mine:
            if not mine:
                raise StoreLocked(
                    "another process takes facts from turns at the moment, and nothing was erased; "
                    "try again when it has finished, or close it"
                )
            self._parts.drop_index()
            yield
            self._parts.drop_prompts()

    # -- reading -------------------------------------------------------------------------------

    def search(
        self,
        query: str | None = None,
        *,
        image: bytes | str | Path | None = None,
        user_id: str | None = None,
        agent_id: str | None = None,
        run_id: str | None = None,
        filters: Mapping[str, Any] | None = None,
        top_k: int = 10,
        threshold: float | None = None,
        explain: bool = False,
        at: datetime | str | float | None = None,
    ) -> SearchResults:
        """The live memories that fit a query best, by vectors and words, best first.

        image: its bytes, path or data URI, in place of a query (`looking.found_alike`). filters:
        mem0's, on metadata and columns. threshold: leave out scores below it; they lie in [0, 1]
        and mean the same for every query. explain: with the parts of each score. at: what was told
        by then and held then, in place of what holds now. An unknown scope finds nothing.
        Raises InputError on a bad query, filter, time or number.
        """
        top_k, threshold = count_of(top_k, "top_k"), threshold_of(threshold)
        scope = scope_of(user_id, agent_id, run_id)
        then = time_of(at, "at")
        if image is not None:
            if query is not None:
                raise InputError("a query and an image were given; a search takes one of them")
            return looking.found_alike(self, image, scope, _where(filters), then, top_k, threshold)
        query = text_of(query, "query")
        held = None if then is None else unix_seconds(then)
        asked = Query(query, scope, _where(filters), at=held, top_k=top_k)
        index = self.index
        started = time.perf_counter()
        vector = self._parts.query_vector(query)
        tokens = self._parts.query_tokens(query)
        embedded = time.perf_counter()
        scored, candidates = search.find(
            self.store, index, asked, vector, tokens=tokens, explain=explain
        )
        if threshold is not None:
            scored = [s for s in scored if s.score >= threshold]
        hits = looking.hits(self, scored, query)
        told = relations_of(self.store, {hit.id: hit.score for hit in hits}, at=then)
        ended = time.perf_counter()
        return SearchResults(
            hits,
            embed_ms=(embedded - started) * 1e3,
            search_ms=(ended - embedded) * 1e3,
            candidates=candidates,
            relations=tuple(told),
        )

    def relations(
        self,
        entity: str | None = None,
        *,
        user_id: str | None = None,
        agent_id: str | None = None,
        run_id: str | None = None,
        at: datetime | str | float | None = None,
        include_invalid: bool = False,
    ) -> Relations:
        """Who is what to whom in a scope, the longest known first; see `Relation`.

        entity: only what is told of somebody or something of this name or alias, from either end;
        the user's own facts are told of "User", whom the user_id stands for where nobody else has
        that name. at: what held then, in place of what holds now. include_invalid: also what is
        over. An unknown entity has none. Raises InputError on a blank name or what is no time.
        """
        then, scope = time_of(at, "at"), scope_of(user_id, agent_id, run_id)
        names = None if entity is None else [text_of(entity, "entity")]
        own = scope.user_id is not None and normalised(scope.user_id)
        if names and normalised(names[0]) == own and not entity_ids(self.store, names, scope):
            names.append(graph.USER)
        found = relations(self.store, scope, names, at=then, include_invalid=include_invalid)
        return Relations(tuple(found))

    def evidence(
        self,
        query: str,
        *,
        budget: int = 250,
        user_id: str | None = None,
        agent_id: str | None = None,
        run_id: str | None = None,
        at: datetime | str | float | None = None,
    ) -> Subgraph:
        """The memories that answer a query, joined by what two of them name, as text of at most
        `budget` tokens of the embedder; see `pipeline.subgraph`. Raises as `search`."""
        ids: dict[str, Any] = {"user_id": user_id, "agent_id": agent_id, "run_id": run_id}
        return subgraph(self, query, count_of(budget, "budget"), **ids, at=at)

    def conflicts(
        self,
        text: str,
        *,
        user_id: str | None = None,
        agent_id: str | None = None,
        run_id: str | None = None,
    ) -> list[Conflict]:
        """The facts that a new statement contradicts, by rule, the most alike first.

        Stores nothing. text: in the third person, or in the first of the user. Raises InputError on
        a bad text.
        """
        return conflicts(self, text_of(text), scope_of(user_id, agent_id, run_id))

    def get(self, id: str) -> MemoryItem | None:
        """A memory by its id, or None. Invalidated and expired ones are given, deleted ones not."""
        return self.store.get([id_of(id)]).get(id)

    def image(self, id: str, *, thumbnail_only: bool = False) -> Picture | None:
        """A stored image by its id (`item.image.id`), or None. thumbnail_only: its data is left."""
        return image(self.store, id_of(id), with_data=not thumbnail_only)

    def get_all(
        self,
        *,
        user_id: str | None = None,
        agent_id: str | None = None,
        run_id: str | None = None,
        filters: Mapping[str, Any] | None = None,
        top_k: int | None = None,
        at: datetime | str | float | None = None,
    ) -> MemoryList:
        """The live memories of a scope, oldest first; top_k: at most so many. at: those that were
        told by then and held then."""
        if top_k is not None:
            top_k = count_of(top_k, "top_k", least=0)
        where = _where(filters)
        scope = scope_of(user_id, agent_id, run_id)
        then = time_of(at, "at")
        return MemoryList(tuple(self.store.list(scope, where=where, limit=top_k, at=then)))

    def history(self, id: str) -> list[dict[str, Any]]:
        """What happened to a memory, oldest first, deleted ones included. Unknown id: empty."""
        return self.store.history(id_of(id))

    def source_turns(self, id: str) -> list[StoredTurn]:
        """The turns a memory was taken from. Raises StoreError on an unknown id."""
        return list(self.store.turns(self._existing(id).sources).values())

    def stale_turns(self, turns: Iterable[str]) -> dict[str, tuple[str, ...]]:
        """Those turns (ids) of which facts have been contradicted since, with these facts."""
        return self.store.stale_turns(list(turns))

    # -- upkeep --------------------------------------------------------------------------------

    def export_jsonl(self, file: str | Path | IO[str], *, sealed: bool = False) -> int:
        """Write everything as JSON lines; how many. `import_jsonl` gives back the same store.

        file: a path, written anew in one step, or an open text file. sealed: each line with the
        key of this store, which must be a vault; without it the lines are plain, also a vault's.
        Raises StoreFull if it cannot be written.
        """
        self._parts.require_open()
        return upkeep.export_jsonl(self.store, file, sealed=sealed)

    def import_jsonl(
        self, file: str | Path | Iterable[str], *, on_progress: Callable[[int], None] | None = None
    ) -> int:
        """Store the rows of an export; how many were new. May be run again after a stop.

        A sealed export is opened with this store's key, or another that `vault.open_ways` finds.
        on_progress: given the number of the line that was read. Raises InputError, naming the line,
        on what is no export; what came before it may be stored then.
        """
        return upkeep.import_jsonl(self, file, on_progress)

    def reindex(self, on_progress: Callable[[int, int], None] | None = None) -> int:
        """Embed all memories anew with the present embedder; how many. All or nothing.

        on_progress: given how many are embedded and how many there are; of token vectors again.
        """
        count = upkeep.reindex(self.store, self._parts.any_embedder(), on_progress)
        self._parts.drop_index()
        upkeep.embed_tokens(self.store, self.token_embedder, on_progress=on_progress)
        return count

    def align(
        self,
        pairs: tuple[NDArray[np.float32], NDArray[np.float32]] | None = None,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> Aligned:
        """Map the store's vectors, another embedder's, into the present embedder's space.

        To search at once after a change of the embedder; `reindex` may follow at any time.
        pairs: vectors of the same texts by the other embedder, (n, d), and by this one, (n, dim);
        then nothing is embedded. Without them a sample of the memories is embedded anew and the
        others are mapped; a store that is no larger than the sample is embedded anew. All or
        nothing. Where the vectors are this embedder's already, nothing is done.
        Raises InputError on pairs that are too few, too similar or of other dimensions.
        """
        aligned = upkeep.align(self.store, self._parts.any_embedder(), pairs, on_progress)
        if aligned != Aligned(0, 0):
            self._parts.drop_index()
        return aligned

    def doctor(self, *, erased: bool | Mapping[str, Any] = False) -> dict[str, Any]:
        """What is in the store, what is wrong with it, and what is pending.

        erased: also look through all of its files for what was ever erased, under the key "erased";
        what an erase gave (`Erased.to_dict`) is looked for by its ids, too. See `erasures.verify`.
        """
        return upkeep.doctor(self.store, self._parts.index_file, self.plan, erased)

    def close(self) -> None:
        """Write the index's files if it is worth it, and close. A second time does nothing.

        Waits for a write or an answer of the model that is under way in another thread; what is
        called after it raises StoreError.
        """
        self._reader.close()
        self._parts.close()

    def __enter__(self) -> Memory:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _existing(self, id: str) -> MemoryItem:
        if (found := self.get(id)) is None:
            raise StoreError(_unknown(id))
        return found


def _where(filters: Mapping[str, Any] | None) -> Where | None:
    where = None if filters is None else compile_filters(filters)
    return where if filters else None  # an empty one is none, and searching is quicker so


def _unknown(id: str) -> str:
    return f"there is no memory with the id {id!r}; `edgemem list` shows the ids"


class AsyncMemory:
    """`await AsyncMemory(...).search(...)`: every method of Memory, awaited in a worker thread.

    Arguments, results and errors are Memory's own. memory: the Memory behind it, with its settings
    and parts.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.memory = Memory(*args, **kwargs)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        # Of the class, because reading the property `engine` of an instance would load a model.
        method = getattr(Memory, name, None)
        if name.startswith("_") or not callable(method):
            raise AttributeError(f"AsyncMemory has no method {name!r}; see `.memory` for the rest")

        @wraps(method)
        async def awaited(*args: Any, **kwargs: Any) -> Any:
            import asyncio

            return await asyncio.to_thread(method, self.memory, *args, **kwargs)

        return awaited

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *(n for n in dir(Memory) if not n.startswith("_"))})

    async def close(self) -> None:
        """Memory's, in this thread: an answer that it has begun and not read is ended, not awaited.

        The event loop stands still meanwhile, also while an answer in another thread ends.
        """
        self.memory.close()

    async def __aenter__(self) -> AsyncMemory:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()
