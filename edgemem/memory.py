"""Memory: what an app remembers of its users, in one SQLite file. Names and shapes are mem0's.

Checks inputs and stores turns. `pipeline` extracts facts from them and maintains the store;
`retrieval` answers queries. The language model is loaded when it is first needed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np
from numpy.typing import NDArray

from edgemem import inputs
from edgemem.budget import Plan
from edgemem.config import Settings, load_settings
from edgemem.errors import EdgememError, InputError, ModelError, StoreError, StoreLocked
from edgemem.pipeline import graph, image_memories, ingest, upkeep
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
    SearchResults,
    Subgraph,
    changed,
    utc_now,
)
from edgemem.retrieval import search
from edgemem.retrieval.search import SearchIndex
from edgemem.runtime.embedder import Embedder, TokenEmbedder
from edgemem.runtime.encoder import Encoder
from edgemem.runtime.engine import Engine
from edgemem.store import PendingItem, Store, StoredTurn
from edgemem.store.database import work_lock
from edgemem.store.encryption import unlock_or_create
from edgemem.store.erasures import with_receipt
from edgemem.store.filters import Where, compile_filters
from edgemem.store.images import image
from edgemem.store.relations import entity_ids, normalised, relations, relations_of
from edgemem.store.rows import unix_seconds
from edgemem.store.writing import Transaction, all_of

__all__ = ["Memory"]

_WORK_LOCK_S = 120.0  # how long to wait for another process that works on pending pieces
_RETRIES = 2  # most older pending pieces that an `add` retries before its own, if they are due


class Memory:
    """A store of memories, open for use. Safe to call from several threads; close it when done.

    path: the SQLite file, created if it is missing; ":memory:" for no file; None takes
    `settings.db`. engine, embedder, token_embedder: loaded models to use in place of those that
    `settings` names; the caller closes them. A token_embedder makes retrieval careful.
    memory_limit_bytes: the limit of all that is loaded, in place of the setting. Parts are turned
    down until they fit (see `plan`). passphrase, key (32 bytes, or a recovery code): open an
    encrypted store, or create one if the file is missing; without either see `vault.unlock`.
    Raises MemoryBudgetExceeded if the parts cannot fit. Every method may raise StoreError and its
    subclasses, also once this is closed; `add` with infer=True may raise ModelError.

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
        what = "settings must be an edgemem.config.Settings"
        hint = "; change what load_settings() returns with dataclasses.replace"
        self.settings = inputs.of_type(settings, Settings | None, what, hint) or load_settings()
        if memory_limit_bytes is not None:
            self.settings = replace(self.settings, memory_limit=str(memory_limit_bytes))
        path = path if path is not None else self.settings.db
        self.store = Store.open(path, vault=unlock_or_create(path, key, passphrase))
        self._parts = Parts(self.store, self.settings, engine, embedder, token_embedder)
        self._image_reader = image_memories.BackgroundReader(
            lambda stop: image_memories.read_pending(self, stop=stop)
        )

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._parts.closed

    @property
    def plan(self) -> Plan | None:
        """The size of each part and what was turned down for the memory limit; None without one."""
        return self._parts.plan

    @property
    def engine(self) -> Engine:
        """The language model, loaded at the first access. Raises ModelNotFound, ModelError."""
        return self._parts.engine()

    @property
    def judge(self) -> Engine | None:
        """The bundled model beside a larger one; see `Parts.judge`."""
        return self._parts.judge()

    @property
    def embedder(self) -> Embedder:
        """The embedding model. Raises DimensionMismatch if the stored vectors are another's."""
        return self._parts.embedder()

    @property
    def encoder(self) -> Encoder | None:
        """The model that reads facts as relations, or None; see `Parts.encoder`."""
        return self._parts.encoder()

    @property
    def token_embedder(self) -> TokenEmbedder | None:
        """The model of careful retrieval; None where retrieval is fast. Raises ModelError."""
        return self._parts.token_embedder()

    @property
    def index(self) -> SearchIndex:
        """All memories of the store as searches see them: vectors, words, metrics."""
        return self._parts.index()

    def _work_lock(self, timeout_s: float | None = None) -> AbstractContextManager[bool]:
        timeout_s = _WORK_LOCK_S if timeout_s is None else timeout_s
        return work_lock(self.store.path, self._parts.working, timeout_s)

    @contextmanager
    def _writing(self, *read: MemoryItem) -> Iterator[Transaction]:
        """A transaction that writes memories with vectors of this embedder.

        read: memories that what is written was derived from. A store without vectors is marked as
        this embedder's. If retrieval is careful, the memories written get token vectors after the
        commit; if that fails, `process_pending` tries again. Raises Outdated if a memory in `read`
        has changed, and DimensionMismatch if another process has reindexed the store.
        """
        embedder, tokens = self._parts.any_embedder(), self.token_embedder
        with self.store.transaction() as tx:
            if [*self.store.get([item.id for item in read]).values()] != [*read]:
                raise ingest.Outdated
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
        imported: bool = False,
    ) -> AddResults:
        """Remember messages: each as a turn, and what can be inferred from them as facts.

        messages: a string, a dict {role, content, name?, timestamp?, metadata?} or a list of those;
        content: a text, or OpenAI's parts, with images as data URIs. images: bytes, paths or data
        URIs that belong to the last message; each becomes a memory of kind "image".
        The turns are stored in one transaction before the language model runs. Then facts are
        taken from each pair of messages, and added to the memories or put in place of older ones.
        A pair that fails stays in `pending` and is tried again later. Messages of an assistant
        without a name are stored but not extracted from: they are the model's own words.
        infer=False stores the messages as they are, loads no language model and never
        de-duplicates; infer="later" leaves the facts to `take_facts` or `process_pending`.
        timestamp: when the messages were said (naive: this machine's zone), unless they have one of
        their own. metadata, expires_at: of every memory that is stored.
        imported: the ids are made of each message's metadata.import_id, as `edgemem import` does,
        so that two devices that import a file have it once. An import_id must not come twice.
        Raises InputError if anything cannot be stored, and then stores nothing. A ModelError of the
        language model is raised after the messages were stored.
        """
        started = time.perf_counter()
        infer = inputs.infer_of(infer)
        scope = inputs.scope_of(user_id, agent_id, run_id)
        shared = inputs.metadata_of(metadata)
        until = inputs.time_of(expires_at, "expires_at")
        checked = inputs.messages_of(messages, timestamp, images)
        now = utc_now()
        turns = [ingest.stored_turn(m, scope, now, imported=imported) for m, _ in checked]
        photos = image_memories.drafts(self, checked, turns)
        searchable = [
            turn
            for turn, (_, recalled) in zip(turns, checked, strict=True)
            if ingest.is_searchable(turn, recalled)
        ]
        drafts = [*map(ingest.Draft, searchable), *photos]
        texts = [ingest.text_to_embed(turn, image) for turn, image, _ in drafts]
        vectors = self.embedder.embed_chunks(texts)
        changes: list[Change] = []
        queued: list[int] = []
        with self._writing() as tx:
            for turn in turns:
                tx.add_turn(turn)
            for (turn, image, picture), chunks in zip(drafts, vectors, strict=True):
                item = ingest.turn_memory(turn, chunks, shared, until, image=image)
                tx.add_memory(item, role=turn.role, actor_id=turn.name)
                if picture is not None:
                    tx.add_image(item.id, picture)
                changes.append(ingest.add_change(item))
            for pair in ingest.pairs_to_extract(turns, searchable) if infer else ():
                piece = {"turns": pair, "metadata": shared, "expires_at": until}
                queued.append(tx.add_pending(ingest.EXTRACT, piece, scope))
        took_s = time.perf_counter() - started
        results = AddResults(tuple(changes), len(queued), took_s, queued=tuple(queued))
        if infer != "later":
            results = self.take_facts(results)
        if photos and self.settings.image_text == "on":
            self._image_reader.wake()
        return results

    def take_facts(self, added: AddResults) -> AddResults:
        """Extract the facts that `add` with infer="later" left; returns the changes of both calls.

        What fails, or what another process is extracting, stays pending. Raises ModelError if there
        is no language model.
        """
        self._parts.require_open()
        if not inputs.of_type(added, AddResults, "added must be what `add` returned").queued:
            return added
        started = time.perf_counter()
        changes = (*added, *self._infer(added.queued))
        left = tuple(piece.id for piece in self.pending() if piece.id in added.queued)
        took_s = added.seconds + time.perf_counter() - started
        return AddResults(changes, len(left), took_s, self._relations_of(changes), left)

    def _relations_of(self, changes: Iterable[Change]) -> tuple[Relation, ...]:
        """The relations that added and updated facts tell."""
        new = [c.id for c in changes if c.kind == "fact" and c.event in ("ADD", "UPDATE")]
        return tuple(relations_of(self.store, new)) if new else ()

    def _infer(self, queued: Sequence[int]) -> list[Change]:
        """Extract facts from the pieces just queued (their ids); returns their changes. At most
        _RETRIES older pieces are retried first."""
        try:
            self.engine  # noqa: B018  # without a model nothing is tried, and no attempt counted
        except ModelError as exc:
            raise type(exc)(
                f"{exc} The messages are stored and searchable; facts are taken from them once "
                "there is a model (`edgemem doctor --retry`)."
            ) from exc
        with self._work_lock() as mine:
            if not mine:
                return []
            due = self.store.pending(ingest.EXTRACT, due_before=utc_now())
            ingest.process_pieces(self, [piece for piece in due if piece.id < queued[0]][:_RETRIES])
            return ingest.process_pieces(self, [piece for piece in due if piece.id in set(queued)])

    def process_pending(
        self,
        limit: int | None = None,
        *,
        retry_now: bool = False,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> AddResults:
        """Extract facts from pending turns that are due (retry_now: from all of them).

        Images without a caption get one from a model that sees. limit: at most so many pieces and
        images. Without a limit, relations that were never read, the text of images and missing
        token vectors follow. on_progress: called with (done, total) in each of these three. Raises
        StoreLocked while another process works on pending pieces.
        """
        started = time.perf_counter()
        limit = None if limit is None else inputs.count_of(limit, "limit", least=0)
        self._parts.require_open()
        with self._work_lock(0.0) as mine:
            if not mine:
                raise StoreLocked(
                    "another process or thread takes facts from the pending turns; try again when "
                    "it has finished"
                )
            due = None if retry_now else utc_now()
            pieces = self.store.pending(ingest.EXTRACT, due_before=due, limit=limit)
            changes = ingest.process_pieces(self, pieces)
            image_memories.caption(self, None if limit is None else limit - len(pieces))
            if limit is None:
                upkeep.read_relations(self.store, self.encoder, on_progress)
                self.read_images(on_progress=on_progress)
                upkeep.embed_tokens(self.store, self.token_embedder, on_progress=on_progress)
        took_s = time.perf_counter() - started
        related = self._relations_of(changes)
        return AddResults(tuple(changes), len(self.pending()), took_s, related)

    def read_images(
        self, limit: int | None = None, *, on_progress: Callable[[int, int], None] | None = None
    ) -> int:
        """Read the text of images that `add` left to a background thread; returns how many images.

        Searches then find the images by their text. With an image embedder, images without an
        embedding get one; these are counted too. limit: at most so many of each. No text is read if
        rapidocr (extra `images`) is missing or has no room within a memory limit. on_progress:
        called with (read, pending).
        """
        self._parts.require_open()
        limit = None if limit is None else inputs.count_of(limit, "limit", least=0)
        return image_memories.read_pending(self, limit, on_progress=on_progress)

    def pending(self) -> list[PendingItem]:
        """Turns that are stored but not yet extracted from, with the last error of each."""
        return self.store.pending(ingest.EXTRACT)

    @ingest.retried_if_outdated
    def update(self, id: str, text: str, *, metadata: Mapping[str, Any] | None = None) -> Change:
        """Give a memory a new text; the old one stays in its history.

        metadata: None keeps it; a mark `never_send` stays, unless the metadata names it. If a fact
        is edited, its turn stays, but what the turn says of it no longer holds. If a turn is
        edited, the facts taken from it alone are deleted, and no new ones are taken; an image whose
        caption was the turn's old text gets the new one. Raises StoreError on an unknown id.
        """
        inputs.text_of(text)
        new = inputs.metadata_of(metadata) if metadata is not None else None
        old = self._existing(id)
        if new is not None and "never_send" in old.metadata:
            new.setdefault("never_send", old.metadata["never_send"])
        encoder = self.encoder if old.kind == "fact" else None
        told_at = max((turn.timestamp for turn in self.source_turns(id)), default=None)
        since = old.valid_from or old.created_at
        related = graph.relations(encoder, text, since, told_at=told_at)
        changes = ingest.text_update(self, old, text)
        photos = image_memories.recaptioned(self, old, text)
        now = changes["updated_at"]
        with self._writing(old, *(photo.old for photo in photos)) as tx:
            previous = tx.update_memory(id, **changes, metadata=new, role="user")
            if old.kind == "image":
                tx.set_caption(id, text, "user")
            if old.kind == "fact":
                tx.set_relations(id, related, graph.version(encoder))
            image_memories.set_captions(tx, photos)
            if text != old.memory:
                ingest.retract(self, tx, old, now)
        return changed(old, "UPDATE", now, text=text, metadata=new, previous=previous)

    @ingest.retried_if_outdated
    def delete(self, id: str) -> Change:
        """Take a memory out of every answer. Its text stays in its history: see `erase`.

        With a turn, the facts taken from it alone are deleted, and no new ones are taken. The
        turn's images stay; those that it captioned lose the caption. With a fact, its turn stays
        and still tells it. Raises StoreError if the id is unknown.
        """
        old = self._existing(id)
        now = utc_now()
        photos = image_memories.recaptioned(self, old, None)
        with self._writing(*(p.old for p in photos)) if photos else self.store.transaction() as tx:
            tx.delete_memory(id, now)
            image_memories.set_captions(tx, photos)
            ingest.retract(self, tx, old, now)
        return changed(old, "DELETE", now)

    def delete_all(
        self, *, user_id: str | None = None, agent_id: str | None = None, run_id: str | None = None
    ) -> AddResults:
        """Delete every memory of a scope. Raises InputError without one; see `reset`."""
        scope = inputs.scope_of(user_id, agent_id, run_id, needed_by="delete_all")
        now = utc_now()
        with self.store.transaction() as tx:
            items = self.store.list(scope, include_invalid=True)
            for item in items:
                tx.delete_memory(item.id, now)
            ingest.unqueue(self, tx, items)
        return AddResults(tuple(changed(item, "DELETE", now) for item in items))

    def erase(self, ids: str | Iterable[str]) -> Erased:
        """Leave no trace of memories; returns the ids of all erased memories, with a receipt.

        Erasing a memory also erases its source turns, every other memory taken from those turns,
        and the vectors, history, free pages, log and backup copies of them all. The user's turns
        that no memory cites (a chat's questions and answers, messages of a system or tool) may
        quote the memory, so they are erased too. Raises StoreError if an id is unknown; StoreLocked
        as `Store.erase` does, or if another process keeps working on pending turns.
        """
        wanted = inputs.ids_of(ids)
        known = self.store.get(wanted, include_deleted=True)
        if missing := [id for id in wanted if id not in known]:
            raise StoreError(_unknown(missing[0]))
        return self._erased(wanted)

    def _erased(self, ids: Sequence[str], turns: Sequence[str] = ()) -> Erased:
        with self._index_dropped():
            gone = self.store.erase(ids, turns)
            upkeep.read_relations(self.store, self.encoder, limit=upkeep.BATCH)
        return with_receipt(self.store, gone, turns)

    def erase_all(
        self, *, user_id: str | None = None, agent_id: str | None = None, run_id: str | None = None
    ) -> Erased:
        """Leave no trace of a scope: of all its turns and memories, also deleted and expired ones.

        Raises InputError without a scope (see `reset`), and StoreLocked as `erase` does.
        """
        scope = inputs.scope_of(user_id, agent_id, run_id, needed_by="erase_all")
        with self.store.snapshot() as connection:
            memories, turns = all_of(connection, scope)
        return self._erased(memories, turns)

    def reset(self) -> None:
        """Erase everything. The store stays usable, with the same embedder."""
        with self._index_dropped():
            self.store.reset()

    @contextmanager
    def _index_dropped(self) -> Iterator[None]:
        """Delete the index and its files, whose vectors reveal texts, before the block erases.

        Until the block ends, nobody else writes index files or extracts facts. Raises StoreLocked
        if another process keeps extracting.
        """
        self._parts.require_open()
        with self._work_lock() as mine:
            if not mine:
                raise StoreLocked(
                    "another process takes facts from turns at the moment, and nothing was erased; "
                    "try again when it has finished, or close it"
                )
            self._parts.drop_index()
            try:
                yield
            finally:  # the block may raise after it has erased rows
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

        image: bytes, path or data URI of an image, in place of a query; finds images that look like
        it. filters: mem0's, on metadata and columns. threshold: leave out lower scores; scores lie
        in [0, 1] and mean the same for every query. explain: give the parts of each score. at: the
        memories that were valid at this time, in place of those valid now.
        Raises InputError on a bad query, image, filter, time or number.
        """
        top_k, threshold = inputs.count_of(top_k, "top_k"), inputs.threshold_of(threshold)
        scope = inputs.scope_of(user_id, agent_id, run_id)
        then = inputs.time_of(at, "at")
        if image is not None:
            if query is not None:
                raise InputError("a query and an image were given; a search takes one of them")
            return image_memories.search_by_image(
                self, image, scope, _where(filters), then, top_k, threshold
            )
        query = inputs.text_of(query, "query")
        at_s = None if then is None else unix_seconds(then)
        parsed = Query(query, scope, _where(filters), at=at_s, top_k=top_k)
        index = self.index
        started = time.perf_counter()
        vector = self._parts.query_vector(query)
        tokens = self._parts.query_tokens(query)
        embedded = time.perf_counter()
        scored, candidates = search.find(
            self.store, index, parsed, vector, tokens=tokens, explain=explain
        )
        self._parts.embedder()  # another process may have reindexed the store meanwhile
        if threshold is not None:
            scored = [s for s in scored if s.score >= threshold]
        hits = image_memories.hits_of(self, scored, query)
        related = relations_of(self.store, {hit.id: hit.score for hit in hits}, scope, at=then)
        ended = time.perf_counter()
        return SearchResults(
            hits,
            embed_ms=(embedded - started) * 1e3,
            search_ms=(ended - embedded) * 1e3,
            candidates=candidates,
            relations=tuple(related),
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

        entity: a name or alias; gives only relations that have it at either end. Facts call the
        user "User"; the user_id given as `entity` means "User", unless another entity has that
        name. An unknown entity has no relations. at: the relations that held at this time, in place
        of those that hold now. include_invalid: also relations that hold no longer, or not yet.
        Raises InputError on a blank name or a bad time.
        """
        then, scope = inputs.time_of(at, "at"), inputs.scope_of(user_id, agent_id, run_id)
        names = None if entity is None else [inputs.text_of(entity, "entity")]
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
        """The memories that answer a query, linked by the names that they share, as a text of at
        most `budget` tokens of the embedder; see `pipeline.subgraph`. Raises as `search`."""
        ids: dict[str, Any] = {"user_id": user_id, "agent_id": agent_id, "run_id": run_id}
        return subgraph(self, query, inputs.count_of(budget, "budget"), **ids, at=at)

    def conflicts(
        self,
        text: str,
        *,
        user_id: str | None = None,
        agent_id: str | None = None,
        run_id: str | None = None,
    ) -> list[Conflict]:
        """The facts that a new statement contradicts, by rule, the most similar first.

        Stores nothing. text: in the third person; the first person means the user. Raises
        InputError on a bad text.
        """
        scope = inputs.scope_of(user_id, agent_id, run_id)
        return ingest.conflicts(self, inputs.text_of(text), scope)

    def get(self, id: str) -> MemoryItem | None:
        """A memory by its id, also an invalid or expired one; None if it is unknown or deleted."""
        return self.store.get([inputs.id_of(id)]).get(id)

    def image(self, id: str, *, thumbnail_only: bool = False) -> Picture | None:
        """A stored image by its id (`item.image.id`), or None. thumbnail_only: `data` is empty."""
        return image(self.store, inputs.id_of(id), with_data=not thumbnail_only)

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
        """The live memories of a scope, the first stored first; top_k: at most so many. at: the
        memories that were valid at this time."""
        top_k = None if top_k is None else inputs.count_of(top_k, "top_k", least=0)
        where = _where(filters)
        scope = inputs.scope_of(user_id, agent_id, run_id)
        then = inputs.time_of(at, "at")
        return MemoryList(tuple(self.store.list(scope, where=where, limit=top_k, at=then)))

    def history(self, id: str) -> list[dict[str, Any]]:
        """What happened to a memory, oldest first, deleted ones included. Unknown id: empty."""
        return self.store.history(inputs.id_of(id))

    def source_turns(self, id: str) -> list[StoredTurn]:
        """The turns a memory was taken from. Raises StoreError on an unknown id."""
        return list(self.store.turns(self._existing(id).sources).values())

    def stale_turns(self, turns: Iterable[str]) -> dict[str, tuple[str, ...]]:
        """The invalid facts taken from turns, by turn id; turns without any are left out."""
        return self.store.stale_turns(list(turns))

    # -- upkeep --------------------------------------------------------------------------------

    def export_jsonl(
        self, file: str | Path | IO[str], *, user_id: str | None = None, sealed: bool = False
    ) -> int:
        """Write what is remembered as JSON lines; returns how many. `import_jsonl` reads them.

        Written are turns, memories (deleted ones too), history, relations, images, marks of what
        may never be sent, and pending work. Receipts of cloud calls and of erasures are not.
        file: a path, replaced in one step, or an open text file. user_id: write only what is of
        this user, without the keywords that may never be sent. sealed: encrypt each line with the
        key of this store, which must be a vault. Otherwise the lines are plain, even those of a
        vault. Raises StoreFull if the file cannot be written.
        """
        self._parts.require_open()
        inputs.scope_of(user_id, None, None)
        return upkeep.export_jsonl(self.store, file, user_id=user_id, sealed=sealed)

    def import_jsonl(
        self, file: str | Path | Iterable[str], *, on_progress: Callable[[int], None] | None = None
    ) -> int:
        """Store the rows of an export; returns how many were new. May be run again after a stop.

        A sealed export is opened with this store's key, or with what `vault.open_ways` finds.
        on_progress: called with the number of each line that was read. Raises InputError, naming
        the line, if the file is no export; rows before that line may be stored already.
        """
        return upkeep.import_jsonl(self, file, on_progress)

    def reindex(self, on_progress: Callable[[int, int], None] | None = None) -> int:
        """Embed all memories anew with the present embedder; returns how many. All or nothing.

        on_progress: called with (embedded, total) for the vectors, then for the token vectors.
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

        After a change of the embedder the store can be searched at once; `reindex` may follow at
        any time. pairs: vectors of the same texts by the other embedder, (n, d), and by this one,
        (n, dim). With pairs all vectors are mapped. Without them a sample of the memories is
        embedded anew and the others are mapped; a store no larger than the sample is embedded
        whole. All or nothing. Does nothing if the vectors are this embedder's already.
        Raises InputError if the pairs are too few, too similar or of other dimensions.
        """
        aligned = upkeep.align(self.store, self._parts.any_embedder(), pairs, on_progress)
        if aligned != Aligned(0, 0):
            self._parts.drop_index()
        return aligned

    def doctor(self, *, erased: bool | Mapping[str, Any] = False) -> dict[str, Any]:
        """What is in the store, what is wrong with it, and what is pending.

        erased: also search all files of the store for what was ever erased, under the key "erased";
        given an `Erased.to_dict`, also for its ids. See `erasures.verify`.
        """
        return upkeep.doctor(self.store, self._parts.index_file, self.plan, erased)

    def close(self) -> None:
        """Write the index's files if it is worth it, and close. A second call does nothing.

        Waits for a write or an answer of the model in another thread. Later calls of other methods
        raise StoreError.
        """
        self._image_reader.close()
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
    """The compiled filters; None for empty ones, as a search without a filter is quicker."""
    where = None if filters is None else compile_filters(filters)
    return where if filters else None


def _unknown(id: str) -> str:
    return f"there is no memory with the id {inputs.shown(id)}; `edgemem list` shows the ids"
