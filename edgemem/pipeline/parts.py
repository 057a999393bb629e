"""The parts of a Memory: its models and its index, each loaded when it is first needed.

Checks that the store's vectors are the embedder's. Drops the index and its files before an erase,
because vectors reveal their texts. Predicts the size of each part, for the memory limit
(budget.py). Knows no memories.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from edgemem import cachefile
from edgemem.budget import Choice, Plan, admit
from edgemem.config import NO_MODEL, Settings
from edgemem.errors import (
    ConfigError,
    DimensionMismatch,
    ModelError,
    ModelNotFound,
    StoreError,
    StoreFull,
)
from edgemem.images import OCR_BYTES, Ocr
from edgemem.inputs import shown
from edgemem.language import is_other_language, is_other_script
from edgemem.retrieval.index import CROSSOVER
from edgemem.retrieval.search import QueryTokens, SearchIndex, refresh
from edgemem.runtime import experts, models, tune
from edgemem.runtime.embedder import (
    TOKEN_MODEL,
    WORKSPACE_BYTES,
    Embedder,
    ImageEmbedder,
    TokenEmbedder,
    embedder_bytes,
    image_embedder_bytes,
    token_embedder_bytes,
)
from edgemem.runtime.encoder import Encoder, encoder_bytes
from edgemem.runtime.engine import PREFIX_BYTES, Engine
from edgemem.runtime.machine import mmap_large_blocks, trim_heap
from edgemem.runtime.models import DEFAULT_EMBEDDER
from edgemem.runtime.vision import engine_bytes
from edgemem.store import Store
from edgemem.store.database import work_lock

if TYPE_CHECKING:
    from edgemem.memory import Memory

__all__ = ["Parts", "engine_for", "predict"]

_ENGLISH_ALONE = (
    f"a query is not in English, and the embedder {DEFAULT_EMBEDDER} knows English alone: it is "
    "searched for by its letters. Set `embedder` to the path of a multilingual ONNX model "
    "(`edgemem config set embedder FILE`) and run `edgemem reindex`"
)
_JUDGE_CTX = 1024  # tokens; a question and the turns it may be answered from
LIBRARIES_BYTES = 85_000_000
"""Python, NumPy, llama.cpp, onnxruntime and the other libraries once imported, as measured."""
DIM = 384  # the bundled embedder's, assumed while the store has no vectors
_ROW_BYTES = 34  # the columns beside a vector
_TEXT_BYTES = 400  # postings and the catalog, for a memory of some fifteen words
_LINK_BYTES = 148  # HNSW's links and labels (M = 16), beside its own copy of the vector
_METRIC_NUMBERS = 2  # two fitted metrics of 100 directions take so many bytes times dim²


def engine_for(memory: Memory, stage: str, engine: Engine) -> Engine:
    """The model for a stage: `engine`, or the bundled model if only that has an expert.

    A model of HEEDS_PARAMS or more works by itself (bench/LOG.md, 2026-11-29), and so does a model
    too small to follow instructions.
    """
    able = experts.INSTRUCT_PARAMS <= engine.n_params < experts.HEEDS_PARAMS
    if engine.expert(stage) or not able:
        return engine
    try:
        bundled = memory.judge
    except ModelError:  # the given model works alone
        return engine
    return bundled if bundled is not None and bundled.expert(stage) else engine


class Parts:
    """The store, engine, embedder and index of one Memory. Safe to use from several threads.

    engine, embedder, token_embedder: None loads those that the settings name. `close` does not
    close an engine that was given. plan: the parts that fit the memory limit; None without a limit.
    Raises MemoryBudgetExceeded if they cannot fit, TypeError on a model's name in place of a model,
    and then closes the store.
    """

    def __init__(
        self,
        store: Store,
        settings: Settings,
        engine: Engine | None,
        embedder: Embedder | None,
        token_embedder: TokenEmbedder | None = None,
    ) -> None:
        for part, given in (("engine", engine), ("embedder", embedder)):
            if isinstance(given, str | Path):
                store.close()
                raise TypeError(
                    f"{part} is {shown(str(given))}; give a loaded model, or name a model in the "
                    "settings"
                )
        self.store, self.settings = store, settings
        self._engine, self._own_engine = engine, engine is None
        self._judge: Engine | None = None
        self._embedder = embedder
        self._encoder: Encoder | None = None
        self._token_embedder = token_embedder
        self._ocr: Ocr | None = None
        self._image_embedder: ImageEmbedder | None = None
        self._index: SearchIndex | None = None
        # Not to be taken inside a transaction: `index` holds it while it waits for the store.
        self._lock = threading.RLock()
        self.working = threading.Lock()  # for work_lock
        self.reading_images = threading.Lock()  # one thread at a time reads images
        self.closed = False
        self._warned = False  # of a query in another language
        # The index's file, which may not exist yet; None in memory.
        path = store.path
        self.index_file = None if path is None else path.with_name(path.name + ".hnsw")
        self.plan: Plan | None = None
        self._choice = Choice(
            n_ctx=settings.n_ctx if engine is None else engine.n_ctx,
            tuned=settings.tuned == "on",
            vectors=settings.vectors,
            prefix_bytes=PREFIX_BYTES,
            careful=settings.retrieval == "careful",
        )
        if (limit := settings.memory_limit_bytes) is not None:
            mmap_large_blocks()
            try:
                dim = int(store.meta("embedder_dim") or DIM)
                bytes_of = predict(settings, store.counts(), dim, engine)
                self.plan = admit(self._choice, bytes_of, limit)
                self._choice = self.plan.choice
            except BaseException:
                store.close()
                raise

    def require_open(self) -> None:
        """Raises StoreError if `close` was called."""
        if self.closed:
            name = self.store.path or ":memory:"
            raise StoreError(f"the store {name} is closed; open it again")

    def engine(self) -> Engine:
        """The language model, with its experts. Raises ModelNotFound, ModelError."""
        with self._lock:
            self.require_open()
            if self._engine is None:
                s = self.settings
                engine = Engine.load(
                    s.model,
                    mmproj=None if s.mmproj == NO_MODEL else s.mmproj,
                    n_ctx=self._choice.n_ctx,
                    n_threads=s.n_threads,
                    n_gpu_layers=s.n_gpu_layers,
                    tuned=self._choice.tuned,
                    prefix_bytes=self._choice.prefix_bytes,
                )
                engine.plan = self.plan
                with_experts = s.reader in ("auto", "expert")
                _load_experts(engine, s.experts if with_experts else experts.NO_EXPERTS)
                self._engine = engine
            return self._engine

    @property
    def sees(self) -> bool:
        """Whether the language model sees images, or will once it is loaded."""
        with self._lock:
            engine = self._engine
            return self.settings.mmproj != NO_MODEL if engine is None else engine.sees

    def judge(self) -> Engine | None:
        """The bundled model with its experts, loaded beside the model that converses.

        None if it is not installed, if there is a memory limit, or if the settings `reader` or
        `experts` are not the defaults. Raises ModelError.
        """
        s = self.settings
        with self._lock:
            self.require_open()
            if self.plan is not None or (s.reader, s.experts) != ("auto", experts.DEFAULT):
                return None
            if self._judge is None:
                try:
                    judge = Engine.load(
                        n_ctx=_JUDGE_CTX, n_threads=s.n_threads, tuned=s.tuned == "on"
                    )
                except ModelNotFound:
                    return None
                _load_experts(judge, s.experts)
                self._judge = judge
            return self._judge if self._judge.expert("generation") else None

    def any_embedder(self) -> Embedder:
        """The embedding model, even if the store has another's vectors. Errors as `engine`."""
        with self._lock:
            self.require_open()
            if self._embedder is None:
                s = self.settings
                self._embedder = Embedder.load(s.embedder, n_threads=s.n_threads)
            return self._embedder

    def embedder(self) -> Embedder:
        """The embedding model. Raises DimensionMismatch if the stored vectors are another's."""
        embedder = self.any_embedder()
        self.check_embedder(embedder)
        return embedder

    def encoder(self) -> Encoder | None:
        """The model that reads facts: the bundled embedder's layers, whichever embedder is set.

        None if the bundled embedder is not installed, or if another one is set and there is a
        memory limit. Raises ModelError if the file is damaged.
        """
        with self._lock:
            self.require_open()
            admitted = self.plan is None or self.plan.parts_bytes["encoder"]
            if self._encoder is None and admitted:
                with suppress(ModelNotFound):
                    self._encoder = Encoder.load()
            return self._encoder

    def token_embedder(self) -> TokenEmbedder | None:
        """The model of careful retrieval. None if the settings or a memory limit leave it out, or
        if it is not installed. Raises ModelError if its file is damaged."""
        with self._lock:
            self.require_open()
            if self._token_embedder is None and self._choice.careful:
                with suppress(ModelNotFound):
                    self._token_embedder = TokenEmbedder.load(n_threads=self.settings.n_threads)
            return self._token_embedder

    def ocr(self) -> Ocr | None:
        """The OCR that reads the text of images, in memory until `drop_ocr`.

        None if it is not installed, or if the planned parts leave no room for it under a memory
        limit. Raises ModelError if one of its files is damaged.
        """
        with self._lock:
            self.require_open()
            plan = self.plan
            if plan is not None and plan.total_bytes + OCR_BYTES > plan.limit_bytes:
                return None
            if self._ocr is None:
                with suppress(ConfigError):
                    self._ocr = Ocr.load(n_threads=self.settings.n_threads)
            return self._ocr

    def drop_ocr(self) -> None:
        """Free the memory of the OCR; call it when no image is pending."""
        with self._lock:
            self._ocr = None
        trim_heap()

    def image_embedder(self) -> ImageEmbedder | None:
        """The CLIP or SigLIP model of the settings, or None. Raises ModelNotFound, ModelError."""
        with self._lock:
            self.require_open()
            s = self.settings
            if self._image_embedder is None and s.image_embedder != NO_MODEL:
                self._image_embedder = ImageEmbedder.load(s.image_embedder, n_threads=s.n_threads)
            return self._image_embedder

    def query_vector(self, query: str) -> NDArray[np.float32] | None:
        """A query's vector, (dim,) of length 1. Raises ModelError if it is not finite.

        The bundled embedder knows only English: with it, a query in another script has no vector
        (None), and the first query in another language gives a warning.
        """
        embedder = self.any_embedder()
        if not embedder.model_id.startswith(f"{DEFAULT_EMBEDDER}@"):
            vector = embedder.embed_query(query)
            if not np.isfinite(vector).all():
                raise ModelError(
                    f"the embedder {embedder.model_id} gave a vector that is not finite for a "
                    "query; set another `embedder`, and run `edgemem reindex`"
                )
            return vector
        if is_other_language(query) and not self._warned:
            self._warned = True
            warnings.warn(_ENGLISH_ALONE, stacklevel=3)
        return None if is_other_script(query) else embedder.embed_query(query)

    def query_tokens(self, query: str) -> QueryTokens | None:
        """A query's token vectors for a careful search. None if retrieval is fast, or if the query
        is in a script that the token embedder does not know."""
        embedder = self.token_embedder()
        if embedder is None or is_other_script(query):
            return None
        return QueryTokens(embedder.model_id, embedder.embed_query(query), embedder.step)

    def check_embedder(self, embedder: Embedder) -> bool:
        """Whether the store has this model's vectors; False if it has none yet. Raises
        DimensionMismatch if they are another model's."""
        stored = self.store.meta("embedder_model")
        if stored is not None and stored != embedder.model_id:
            raise DimensionMismatch(
                f"the store holds vectors of {stored} ({self.store.meta('embedder_dim')} "
                f"dimensions), but the embedder is {embedder.model_id} ({embedder.dim} "
                "dimensions); use that embedder, or run `edgemem reindex` to embed all memories "
                "anew (`edgemem align` maps most of a large store's vectors instead, at once)"
            )
        return stored is not None

    def index(self) -> SearchIndex:
        """All memories as searches see them, with the HNSW graph from its file, if that is sound.
        Raises DimensionMismatch as `embedder`."""
        embedder = self.embedder()
        with self._lock:
            self.require_open()
            if self._index is None or self._index.dim != embedder.dim:
                index = SearchIndex(embedder.dim, self._choice.vectors)
                refresh(self.store, index)
                trim_heap()  # the rows took several times the memory of what was made of them
                if (file := self.index_file) is not None:
                    index.vectors.load(
                        file,
                        generation=index.generation,
                        model_id=embedder.model_id,
                        vault=self.store.vault,
                    )
                self._index = index
            return self._index

    def drop_prompts(self) -> None:
        """Drop the engines' cached prompts, but not those of an engine whose answer this thread is
        still reading."""
        with self._lock:
            engines = self._engine, self._judge
        for engine in engines:
            if engine is not None:
                with suppress(ModelError):
                    engine.drop_prefixes()

    def drop_index(self) -> None:
        """Forget the index and delete its file. Raises StoreFull if that cannot be deleted."""
        with self._lock:
            if self._index is not None:
                self._index.close()
                self._index = None
        if (file := self.index_file) is None:
            return
        try:
            cachefile.discard(file)
            cachefile.discard(file.with_suffix(".metric"))  # an earlier version's
        except OSError as exc:
            raise StoreFull(
                f"the index file {file} cannot be deleted ({exc.strerror or exc}); make its "
                "folder writable, or delete it yourself"
            ) from exc

    def close(self) -> None:
        """Write the index's file if it is worth it, and close all. A second call does nothing.

        Waits for a write or an answer of the model in another thread.
        """
        with self._lock:
            if self.closed:
                return
            self.closed = True  # from here on no part is loaded
            index, engine, judge = self._index, self._engine, self._judge
        # Without the lock, as a thread that streams an answer may wait for it.
        try:
            self._save_index(index)
        except StoreError:
            pass  # the file is a cache
        finally:
            if index is not None:
                index.close()
            if self._own_engine and engine is not None:
                engine.close()
            if judge is not None:
                judge.close()
            self.store.close()

    def _save_index(self, index: SearchIndex | None) -> None:
        embedder, file = self._embedder, self.index_file
        if index is None or embedder is None or file is None:
            return
        if len(index) <= index.vectors.crossover:
            return
        with work_lock(self.store.path, self.working, 0.0) as mine:
            if mine:
                refresh(self.store, index)  # inside the lock, so that nothing erased is saved
                index.vectors.save(
                    file,
                    generation=index.generation,
                    model_id=embedder.model_id,
                    vault=self.store.vault,
                )


def _load_experts(engine: Engine, setting: str) -> None:
    try:
        experts.load_chosen(engine, setting)
    except BaseException:
        engine.close()
        raise


# -- what a memory limit admits ------------------------------------------------------------------


def predict(
    settings: Settings, counts: dict[str, int], dim: int, engine: Engine | None = None
) -> Callable[[Choice], dict[str, int]]:
    """A function from a choice to the bytes of each part that a Memory with these settings loads.

    counts: the store's; dim: of its vectors. engine: one that the caller has loaded; it is counted,
    but cannot be turned down. A model that is not installed counts 0. This function and the
    returned one raise ModelError or AdapterError on a file that cannot be read.
    """
    files: dict[bool, Path] = {}  # the model's file, by whether it is tuned
    mmproj: Path | None = None
    loaded: Choice | None = None
    adapters = embedder = encoder = token_embedder = image_embedder = 0
    with suppress(ModelNotFound):
        if engine is not None:
            files, mmproj = dict.fromkeys((True, False), engine.path), engine.mmproj
            loaded = Choice(n_ctx=engine.n_ctx, prefix_bytes=PREFIX_BYTES)
            adapters = engine.memory()["adapters"]
        else:
            n_gpu = settings.n_gpu_layers
            for tuned in (False, settings.tuned == "on"):
                files[tuned], *_ = tune.choose_file(settings.model, tuned=tuned, n_gpu_layers=n_gpu)
            mmproj = None if settings.mmproj == NO_MODEL else models.find(settings.mmproj)
            adapters = _adapter_bytes(settings.experts, files[False])
    with suppress(ModelNotFound):
        embedder = embedder_bytes(models.find(settings.embedder))
        if settings.embedder == DEFAULT_EMBEDDER:
            encoder = encoder_bytes(models.find(settings.embedder))
    with suppress(ModelNotFound):
        if settings.image_embedder != NO_MODEL:
            image_embedder = image_embedder_bytes(settings.image_embedder)
    with suppress(ModelNotFound):
        token_embedder = token_embedder_bytes(models.find(TOKEN_MODEL))

    def parts_bytes(choice: Choice) -> dict[str, int]:
        return {
            "libraries": LIBRARIES_BYTES,
            **(engine_bytes(files[choice.tuned], mmproj, loaded or choice) if files else {}),
            "adapters": adapters,
            "embedder": embedder,
            "workspace": WORKSPACE_BYTES if embedder else 0,
            "encoder": encoder,
            "token_embedder": token_embedder if choice.careful else 0,
            "image_embedder": image_embedder,
            "index": index_bytes(counts["vectors"], dim, choice.vectors),
        }

    return parts_bytes


def index_bytes(n: int, dim: int, vectors: str) -> int:
    """Bytes of an index of n vectors of `dim` numbers. vectors: "float32" or "int8"."""
    row = dim + 4 if vectors == "int8" else 4 * dim
    if vectors == "float32" and n > CROSSOVER:
        row += 4 * dim + _LINK_BYTES
    return n * (row + _ROW_BYTES + _TEXT_BYTES) + (_METRIC_NUMBERS * dim * dim if n else 0)


def _adapter_bytes(setting: str, base: Path) -> int:
    """Bytes of the experts that will be loaded into a model, as large as their files."""
    chosen = experts.chosen_set(setting, base)
    files = [] if chosen is None else [chosen.folder / a.file for a in chosen.adapters]
    return sum(file.stat().st_size for file in files if file.is_file())
