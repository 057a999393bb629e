"""What a Memory may load under its memory limit: the parts' sizes, foretold one by one.

Knows the settings, the store's counts and the models' files; knows no ladder (budget.py has it) and
loads nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

from edgemem.budget import Choice, Plan, admit
from edgemem.config import NO_MODEL, Settings
from edgemem.errors import ModelNotFound
from edgemem.retrieval.index import CROSSOVER
from edgemem.runtime import experts, models, tune
from edgemem.runtime.embedder import embedder_bytes
from edgemem.runtime.encoder import encoder_bytes
from edgemem.runtime.engine import PREFIX_BYTES, Engine
from edgemem.runtime.image_embedder import image_embedder_bytes
from edgemem.runtime.tokens import MODEL, token_embedder_bytes
from edgemem.runtime.vision import engine_bytes

__all__ = ["LIBRARIES_BYTES", "index_bytes", "plan", "predict"]

LIBRARIES_BYTES = 85_000_000
"""Python, NumPy, llama.cpp, onnxruntime and the rest once imported; measured 80 to 84 MB."""

DIM = 384  # of the bundled embedder's vectors, where the store does not say yet
_ROW_BYTES = 34  # the columns beside a vector
_TEXT_BYTES = 400  # postings and the catalog, of a memory of some fifteen words
_LINK_BYTES = 148  # HNSW's links and labels (M = 16), beside its own copy of the vector
_METRIC_NUMBERS = 9  # bytes for each of dim², of a fitted metric and its moments


def plan(
    settings: Settings,
    limit_bytes: int,
    counts: dict[str, int],
    dim: int | None,
    engine: Engine | None,
) -> Plan:
    """What a Memory with these settings loads, turned down until it fits.

    counts: of the store; dim: of its vectors, None if it has none. engine: one that the caller has
    loaded, which is counted and cannot be turned down.
    Raises MemoryBudgetExceeded, and ModelError or AdapterError on a file that cannot be read.
    """
    wanted = Choice(
        n_ctx=settings.n_ctx if engine is None else engine.n_ctx,
        vectors=settings.vectors,
        prefix_bytes=PREFIX_BYTES,
        careful=settings.retrieval == "careful",
    )
    return admit(wanted, predict(settings, counts, dim, engine), limit_bytes)


def predict(
    settings: Settings, counts: dict[str, int], dim: int | None, engine: Engine | None = None
) -> Callable[[Choice], dict[str, int]]:
    """Bytes of each part under a choice; as `plan`. A model that is not there takes nothing."""
    of_engine: Callable[[Choice], dict[str, int]] = lambda choice: {}  # noqa: E731
    adapters = embedder = encoder = tokens = looks = 0
    with suppress(ModelNotFound):
        if engine is not None:
            loaded = Choice(n_ctx=engine.n_ctx, prefix_bytes=PREFIX_BYTES)
            own = engine_bytes(engine.path, engine.mmproj, loaded)
            of_engine = lambda choice: own  # noqa: E731
            adapters = engine.memory()["adapters"]
        else:
            file, _, _ = tune.choose_file(
                settings.model, tuned=settings.tuned == "on", n_gpu_layers=settings.n_gpu_layers
            )
            projector = None if settings.mmproj == NO_MODEL else models.find(settings.mmproj)
            of_engine = partial(engine_bytes, file, projector)
            adapters = _adapter_bytes(settings.experts, file)
    with suppress(ModelNotFound):
        embedder = embedder_bytes(models.find(settings.embedder))
        if settings.embedder == models.DEFAULT_EMBEDDER:
            encoder = encoder_bytes(models.find(settings.embedder))
    with suppress(ModelNotFound):
        if settings.image_embedder != NO_MODEL:
            looks = image_embedder_bytes(settings.image_embedder)
    with suppress(ModelNotFound):
        tokens = token_embedder_bytes(models.find(MODEL))

    def parts(choice: Choice) -> dict[str, int]:
        return {
            "libraries": LIBRARIES_BYTES,
            **of_engine(choice),
            "adapters": adapters,
            "embedder": embedder,
            "encoder": encoder,
            "token_embedder": tokens if choice.careful else 0,
            "image_embedder": looks,
            "index": index_bytes(counts["vectors"], dim or DIM, choice.vectors),
        }

    return parts


def index_bytes(n: int, dim: int, vectors: str) -> int:
    """Of what searches keep of n vectors of `dim` numbers, held as "float32" or "int8"."""
    row = dim + 4 if vectors == "int8" else 4 * dim
    if vectors == "float32" and n > CROSSOVER:
        row += 4 * dim + _LINK_BYTES
    return n * (row + _ROW_BYTES + _TEXT_BYTES) + (_METRIC_NUMBERS * dim * dim if n else 0)


def _adapter_bytes(setting: str, base: Path) -> int:
    """Of the experts that will be loaded beside a model: as large as their files."""
    chosen = experts.chosen_set(setting, base)
    files = [] if chosen is None else [chosen.folder / a.file for a in chosen.adapters]
    return sum(file.stat().st_size for file in files if file.is_file())
