"""Memory: what an app remembers of its users, in one SQLite file. Names and shapes are mem0's.

Ties the rooms together: inputs are checked, turns are stored, facts are taken from them
(`ingest`), queries are answered from vectors and words (`retrieval`). Knows no SQL, no prompt. The
language model is loaded when something is to be inferred, and not before.
"""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from filelock import FileLock, Timeout

from edgemem import ingest, kernels
from edgemem.config import Settings, load_settings
from edgemem.errors import DimensionMismatch, InputError, StoreError, StoreLocked
from edgemem.inputs import messages_of, metadata_of, scope_of, text_of, time_of
from edgemem.results import (
    AddResults,
    Change,
    Hit,
    MemoryItem,
    MemoryList,
    Message,
    Scope,
    SearchResults,
    utc_now,
)
from edgemem.retrieval import cachefile, search
from edgemem.retrieval.index import VectorIndex
from edgemem.retrieval.lexical import search_text
from edgemem.runtime.embedder import Embedder
from edgemem.runtime.engine import Engine
from edgemem.store import NewMemory, PendingItem, Store, StoredTurn
from edgemem.store.filters import compile_filters

__all__ = ["Memory"]

_WORK_LOCK_S = 120.0  # how long an `add` waits for another process that works pending pieces off


class Memory:
    """A store of memories, open for use. Safe to call from several threads; close it when done.

    path: the file, made if it is not there; ":memory:" for none; None takes `settings.db`.
    engine, embedder: models to use instead of loading those that `settings` names (the caller
    closes them). Every method may raise StoreError and its kinds; adding with infer=True also
    ModelError.

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
        settings: Settings | None = None,
    ) -> None:
        self.settings = settings or load_settings()
        self.store = Store.open(path if path is not None else self.settings.db)
        self._engine, self._own_engine = engine, engine is None
        self._embedder = embedder
        self._index: VectorIndex | None = None
        self._loading = threading.RLock()
        self._closed = False

    # -- parts, loaded when first needed -------------------------------------------------------

    @property
    def engine(self) -> Engine:
        """The language model. Raises ModelNotFound if there is none."""
        with self._loading:
            self._require_open()
            if self._engine is None:
                s = self.settings
                self._engine = Engine.load(
                    s.model, n_ctx=s.n_ctx, n_threads=s.n_threads, n_gpu_layers=s.n_gpu_layers
                )
            return self._engine

    @property
    def embedder(self) -> Embedder:
        """The embedding model. Raises DimensionMismatch if the store holds another one's vectors."""
        with self._loading:
            self._require_open()
            if self._embedder is None:
                self._embedder = Embedder.load(
                    self.settings.embedder, n_threads=self.settings.n_threads
                )
            self._check_embedder(self._embedder)
            return self._embedder

    @property
    def index(self) -> VectorIndex:
        """The vectors in memory, with the HNSW graph of the cache file if that is sound."""
        embedder = self.embedder
        with self._loading:
            if self._index is None:
                index = VectorIndex(embedder.dim)
                search.refresh(self.store, index)
                if (cache := self._cache_file()) is not None:
                    index.load(cache, generation=index.generation, model_id=embedder.model_id)
                self._index = index
            return self._index

    def _check_embedder(self, embedder: Embedder) -> None:
        stored, dim = self.store.meta("embedder_model"), self.store.meta("embedder_dim")
        if stored is not None and stored != embedder.model_id:
            raise DimensionMismatch(
                f"the store holds vectors of {stored} ({dim} dimensions), but the embedder is "
                f"{embedder.model_id} ({embedder.dim} dimensions); use that embedder, or run "
                "`edgemem reindex` to embed all memories anew"
            )

    def _cache_file(self) -> Path | None:
        path = self.store.path
        return path.with_name(path.name + ".hnsw") if path is not None else None

    @contextmanager
    def _work_lock(self, timeout_s: float) -> Iterator[bool]:
        """Hold the right to work pending pieces off and to write the index file, if it is free."""
        path = self.store.path
        if path is None:
            yield True
            return
        lock = FileLock(path.with_name(path.name + ".lock"))
        try:
            lock.acquire(timeout=timeout_s)
        except Timeout:
            yield False
            return
        except OSError as exc:
            raise StoreError(
                f"cannot make the lock file {lock.lock_file} ({exc}); make its folder writable"
            ) from exc
        try:
            yield True
        finally:
            lock.release()

    # -- writing -------------------------------------------------------------------------------

    def add(
        self,
        messages: str | Mapping[str, Any] | Sequence[Mapping[str, Any] | str],
        *,
        user_id: str | None = None,
        agent_id: str | None = None,
        run_id: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        timestamp: datetime | str | float | None = None,
        expires_at: datetime | str | float | None = None,
        infer: bool = True,
    ) -> AddResults:
        """Remember messages: each as a turn, and what can be inferred from them as facts.

        messages: a string, a dict {role, content, name?, timestamp?, metadata?} or a list of those.
        The turns are stored in one transaction before any model runs. Then each pair gives facts,
        which are added to, or replace, what is known. Messages of an assistant without a name are
        stored but not extracted from: they are the model's own words. infer=False stores the
        messages as they are, loads no language model and never de-duplicates. timestamp: when it
        was said (naive: this machine's zone). Raises InputError on what cannot be stored; then
        nothing is.
        """
        started = time.perf_counter()
        scope = scope_of(user_id, agent_id, run_id)
        shared = metadata_of(metadata)
        until = time_of(expires_at, "expires_at")
        checked = messages_of(messages, timestamp)
        spoken = [(m, m.role in ("user", "assistant") and not recalled) for m, recalled in checked]
        vectors = iter(self.embedder.embed_chunks([m.content for m, keep in spoken if keep]))
        now = utc_now()
        changes: list[Change] = []
        turns: list[StoredTurn] = []
        with self.store.transaction() as tx:
            self._name_embedder(tx)
            for message, keep in spoken:
                turn = StoredTurn(
                    id=str(uuid.uuid4()),
                    scope=scope,
                    role=message.role,
                    name=message.name,
                    content=message.content,
                    timestamp=message.timestamp,
                    metadata=message.metadata,
                    created_at=now,
                )
                turns.append(turn)
                tx.add_turn(turn)
                if keep:
                    item = _turn_memory(turn, {**shared, **message.metadata}, until, next(vectors))
                    tx.add_memory(item, role=turn.role, actor_id=turn.name)
                    changes.append(_added(item))
            queued = (
                [
                    tx.add_pending(ingest.EXTRACT, ingest.payload(pair, shared, until), scope)
                    for pair in _pairs(turns, [keep for _, keep in spoken])
                ]
                if infer
                else []
            )
        left = len(queued)
        if queued:
            done = self._work_off(queued, _WORK_LOCK_S)
            changes += done
            left = sum(1 for p in self.store.pending(ingest.EXTRACT) if p.id in set(queued))
        return AddResults(tuple(changes), left, time.perf_counter() - started)

    def _name_embedder(self, tx: Any) -> None:
        if self.store.meta("embedder_model") is None:
            tx.set_meta("embedder_model", self.embedder.model_id)
            tx.set_meta("embedder_dim", str(self.embedder.dim))

    def _work_off(self, ids: Sequence[int] | None, timeout_s: float, limit: int | None = None) -> list[Change]:
        """Work off pending pieces: those of `ids`, and any other that is due."""
        with self._work_lock(timeout_s) as mine:
            if not mine:
                return []
            wanted = set(ids) if ids is not None else None
            due = self.store.pending(ingest.EXTRACT, due_before=utc_now() if wanted is None else None)
            chosen = [p for p in due if wanted is None or p.id in wanted][:limit]
            return ingest.work_off(self, chosen)

    def process_pending(self, limit: int | None = None, *, retry_now: bool = False) -> AddResults:
        """Try again what could not be extracted, if it is due (retry_now: also if it is not).

        Raises StoreLocked while another process is at it.
        """
        started = time.perf_counter()
        with self._work_lock(0.0) as mine:
            if not mine:
                raise StoreLocked("another process works the pending turns off; try again later")
            due = None if retry_now else utc_now()
            items = self.store.pending(ingest.EXTRACT, due_before=due, limit=limit)
            changes = ingest.work_off(self, items)
        return AddResults(
            tuple(changes), len(self.pending()), time.perf_counter() - started
        )

    def pending(self) -> list[PendingItem]:
        """Turns that are stored but not yet extracted from, with the last error of each."""
        return self.store.pending(ingest.EXTRACT)

    def update(self, id: str, text: str, *, metadata: Mapping[str, Any] | None = None) -> Change:
        """Give a memory a new text; the old one stays in its history. metadata None keeps it."""
        text_of(text)
        new = metadata_of(metadata) if metadata is not None else None
        old = self._existing(id)
        vectors = self.embedder.embed_chunks([text])[0]
        now = utc_now()
        with self.store.transaction() as tx:
            tx.update_memory(
                id,
                memory=text,
                search_text=search_text(text, when=old.valid_from),
                vectors=vectors,
                updated_at=now,
                metadata=new,
            )
        return _changed(old, "UPDATE", text, new if new is not None else old.metadata, now)

    def delete(self, id: str) -> Change:
        """Take a memory out of every answer. Its text stays in its history: see `erase`."""
        old = self._existing(id)
        now = utc_now()
        with self.store.transaction() as tx:
            tx.delete_memory(id, now)
        return _changed(old, "DELETE", old.memory, old.metadata, now)

    def delete_all(
        self, *, user_id: str | None = None, agent_id: str | None = None, run_id: str | None = None
    ) -> AddResults:
        """Delete every memory of a scope. Raises InputError without one: `reset` empties a store."""
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
        return AddResults(
            tuple(_changed(i, "DELETE", i.memory, i.metadata, now) for i in items)
        )

    def erase(self, ids: str | Iterable[str]) -> list[str]:
        """Leave no trace of memories; the ids of all that went.

        With each go its source turns and every other memory taken from those, their vectors,
        history, free pages and backup copies. Raises StoreError if an id is unknown, StoreLocked as
        Store.erase does.
        """
        wanted = [ids] if isinstance(ids, str) else list(ids)
        known = self.store.get(wanted, include_deleted=True)
        for id in wanted:
            if id not in known:
                raise StoreError(_unknown(id))
        self._drop_cache()
        return self.store.erase(wanted)

    def reset(self) -> None:
        """Erase everything. The store stays usable, with the same embedder."""
        self._drop_cache()
        self.store.reset()

    def _drop_cache(self) -> None:
        """Drop the index in memory and its file: both hold vectors, which tell of their texts."""
        with self._loading:
            if self._index is not None:
                self._index.close()
                self._index = None
            if (cache := self._cache_file()) is not None:
                cachefile.discard(cache)

    # -- reading -------------------------------------------------------------------------------

    def search(
        self,
        query: str,
        *,
        user_id: str | None = None,
        agent_id: str | None = None,
        run_id: str | None = None,
        filters: Mapping[str, Any] | None = None,
        top_k: int = 10,
        threshold: float | None = None,
        explain: bool = False,
    ) -> SearchResults:
        """The live memories that fit a query best, by vectors and words, best first.

        filters: mem0's, on metadata and columns. threshold: leave out scores below it; scores lie
        in [0, 1] and mean the same for every query. explain: with the parts of each score. An
        unknown scope finds nothing. Raises InputError on a bad query, filter or number.
        """
        text_of(query, "query")
        if not isinstance(top_k, int) or top_k < 1:
            raise InputError(f"top_k is {top_k!r}; give a whole number of 1 or more")
        scope = scope_of(user_id, agent_id, run_id)
        where = compile_filters(filters) if filters else None
        index = self.index
        started = time.perf_counter()
        vector = self.embedder.embed_query(query)
        embedded = time.perf_counter()
        scored, candidates = search.find(
            self.store, index, query, vector, scope=scope, where=where, k=top_k
        )
        if threshold is not None:
            scored = [s for s in scored if s.score >= threshold]
        items = self.store.by_rowids([s.rowid for s in scored])
        hits = tuple(
            _hit(items[s.rowid], s.score, s.parts if explain else None)
            for s in scored
            if s.rowid in items
        )
        ended = time.perf_counter()
        return SearchResults(
            hits,
            embed_ms=(embedded - started) * 1e3,
            search_ms=(ended - embedded) * 1e3,
            candidates=candidates,
        )

    def get(self, id: str) -> MemoryItem | None:
        """A memory by its id, or None. Invalidated and expired ones are given, deleted ones not."""
        return self.store.get([id]).get(id)

    def get_all(
        self,
        *,
        user_id: str | None = None,
        agent_id: str | None = None,
        run_id: str | None = None,
        filters: Mapping[str, Any] | None = None,
        top_k: int | None = None,
    ) -> MemoryList:
        """The live memories of a scope, oldest first; top_k: at most so many."""
        if top_k is not None and (not isinstance(top_k, int) or top_k < 0):
            raise InputError(f"top_k is {top_k!r}; give a whole number of 0 or more, or None for all")
        where = compile_filters(filters) if filters else None
        scope = scope_of(user_id, agent_id, run_id)
        return MemoryList(tuple(self.store.list(scope, where=where, limit=top_k)))

    def history(self, id: str) -> list[dict[str, Any]]:
        """What happened to a memory, oldest first, deleted ones included. Unknown id: empty."""
        return self.store.history(id)

    def source_turns(self, id: str) -> list[StoredTurn]:
        """The turns a memory was taken from. Raises StoreError on an unknown id."""
        return list(self.store.turns(self._existing(id).sources).values())

    def stale_turns(self, turns: Iterable[str]) -> frozenset[str]:
        """Those turns (ids) of which a fact has been contradicted since."""
        return self.store.stale_turns(list(turns))

    # -- care ----------------------------------------------------------------------------------

    def export_jsonl(self, file: str | Path | IO[str]) -> int:
        """Write everything as JSON lines; how many. `import_jsonl` gives back the same store."""
        if isinstance(file, str | Path):
            with _opened(file, "w") as out:
                return self.export_jsonl(out)
        count = 0
        for row in self.store.export_rows():
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
            count += 1
        return count

    def import_jsonl(
        self, file: str | Path | IO[str], *, on_progress: Callable[[int], None] | None = None
    ) -> int:
        """Store the rows of an export; how many were new. May be run again after a stop."""
        if isinstance(file, str | Path):
            with _opened(file, "r") as lines:
                return self.import_jsonl(lines, on_progress=on_progress)
        with self.store.transaction() as tx:
            self._name_embedder(tx)
        new = self.store.import_rows(_json_lines(file, on_progress), self.embedder.embed_chunks)
        return sum(new.values())

    def reindex(self, on_progress: Callable[[int, int], None] | None = None) -> int:
        """Embed all memories anew with the present embedder; how many. All or nothing."""
        with self._loading:
            if self._embedder is None:
                self._embedder = Embedder.load(
                    self.settings.embedder, n_threads=self.settings.n_threads
                )
            embedder = self._embedder
        items = self.store.list(include_invalid=True)
        vectors = []
        for start in range(0, len(items), 64):
            vectors += embedder.embed_chunks([i.memory for i in items[start : start + 64]])
            if on_progress is not None:
                on_progress(len(vectors), len(items))
        with self.store.transaction() as tx:
            tx.set_meta("embedder_model", embedder.model_id)
            tx.set_meta("embedder_dim", str(embedder.dim))
            present = self.store.get([i.id for i in items])
            for item, rows in zip(items, vectors, strict=True):
                if item.id in present:
                    tx.set_vectors(item.id, rows)
        self._drop_cache()
        return len(items)

    def doctor(self) -> dict[str, Any]:
        """What is in the store, what is wrong with it, and what is pending."""
        embedder = self.store.meta("embedder_model")
        return {
            "path": str(self.store.path or ":memory:"),
            "problems": self.store.check(),
            "counts": self.store.counts(),
            "pending": [
                {"id": p.id, "turns": p.payload.get("turns"), "attempts": p.attempts, "error": p.last_error}
                for p in self.pending()
            ],
            "embedder": embedder,
            "backend": kernels.backend,
            "backend_detail": kernels.backend_detail,
            "index_file": str(cache) if (cache := self._cache_file()) and cache.exists() else None,
        }

    def close(self) -> None:
        """Write the index file if it is worth it, and close. A second time does nothing."""
        with self._loading:
            if self._closed:
                return
            self._closed = True
            index, cache = self._index, self._cache_file()
            if index is not None and cache is not None and len(index) > index.crossover:
                search.refresh(self.store, index)
                with self._work_lock(0.0) as mine:
                    if mine and self._embedder is not None:
                        index.save(
                            cache, generation=index.generation, model_id=self._embedder.model_id
                        )
            if index is not None:
                index.close()
            if self._own_engine and self._engine is not None:
                self._engine.close()
            self.store.close()

    def __enter__(self) -> Memory:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _require_open(self) -> None:
        if self._closed:
            raise StoreError("this Memory is closed; open it again with Memory(path)")

    def _existing(self, id: str) -> MemoryItem:
        found = self.get(id)
        if found is None:
            raise StoreError(_unknown(id))
        return found


def _unknown(id: str) -> str:
    return f"there is no memory with the id {id!r}; `edgemem list` shows the ids"


def _turn_memory(turn: StoredTurn, metadata: dict[str, Any], until: str | None, vectors: Any) -> NewMemory:
    return NewMemory(
        id=str(uuid.uuid4()),
        kind="turn",
        memory=turn.content,
        search_text=search_text(turn.content, speaker=turn.name, when=turn.timestamp),
        scope=turn.scope,
        created_at=turn.created_at,
        vectors=vectors,
        metadata=metadata,
        valid_from=turn.timestamp,
        expires_at=until,
        sources=(turn.id,),
    )


def _pairs(turns: Sequence[StoredTurn], worth: Sequence[bool]) -> list[list[str]]:
    """Ids of the turns to extract from, two messages at a time.

    An assistant without a name is the model itself, whose words hold nothing new.
    """
    pairs = [range(i, min(i + 2, len(turns))) for i in range(0, len(turns), 2)]
    ids = [
        [turns[i].id for i in pair if worth[i] and (turns[i].role == "user" or turns[i].name)]
        for pair in pairs
    ]
    return [pair for pair in ids if pair]


def _added(item: NewMemory) -> Change:
    return Change(
        id=item.id,
        memory=item.memory,
        event="ADD",
        kind=item.kind,
        metadata=item.metadata,
        created_at=item.created_at,
        updated_at=item.created_at,
    )


def _changed(
    old: MemoryItem, event: Any, text: str, metadata: Mapping[str, Any], now: str
) -> Change:
    return Change(
        id=old.id,
        memory=text,
        event=event,
        kind=old.kind,
        previous_memory=old.memory if event == "UPDATE" else None,
        metadata=metadata,
        created_at=old.created_at,
        updated_at=now,
    )


def _hit(item: MemoryItem, score: float, parts: Mapping[str, float] | None) -> Hit:
    values = {name: getattr(item, name) for name in item.__dataclass_fields__}
    return Hit(**values, score=score, parts=parts)


def _opened(file: str | Path, mode: str) -> IO[str]:
    try:
        return open(file, mode, encoding="utf-8", newline="\n")
    except OSError as exc:
        raise InputError(f"cannot open {file} ({exc.strerror}); check the path and its permissions") from exc


def _json_lines(
    lines: Iterable[str], on_progress: Callable[[int], None] | None
) -> Iterator[dict[str, Any]]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as exc:
            raise InputError(f"line {number} is no JSON ({exc}); give a file of `edgemem export`") from exc
        if not isinstance(row, dict):
            raise InputError(f"line {number} is no JSON object; give a file of `edgemem export`")
        yield row
        if on_progress is not None:
            on_progress(number)
