"""The filled store of a scenario, cached for as long as filling it again would give the same.

Knows what a store depends on: the messages, the models, and the sources of the write path. Knows
no questions.
"""

from __future__ import annotations

import ast
import hashlib
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import edgemem
from bench.scenarios import Scenario
from edgemem.memory import Memory
from edgemem.runtime import experts, models
from edgemem.runtime.engine import Engine

_SECONDS = "bench_storing_s"
_WRITING = ("extraction", "update")  # stages
# The write path imports these modules, but their own imports mostly serve reading.
_BEYOND = {"edgemem", "edgemem.memory", "edgemem.retrieval.search"}


def filled(
    folder: Path,
    scenario: Scenario,
    open_memory: Callable[[Path], Memory],
    *,
    engine: Engine,
    chosen: str,
    embedder: str,
    infer: bool,
) -> Path:
    """The file in `folder` that holds the scenario's memories; creates it if it is missing.

    open_memory: opens a Memory on a file, with these models. chosen: the setting `experts`.
    embedder: the embedder's `model_id`. A cached store equals a new one unless the search for the
    memories nearest to a fact has changed. The file's name does not cover that search: use another
    folder after such a change.
    """
    key = {
        "sessions": [[dict(message) for message in said] for said in scenario.sessions],
        "user_id": scenario.user_id,
        "model": models.known_sha256(engine.path),
        "n_ctx": engine.n_ctx,
        "experts": _adapters(engine, chosen),
        "embedder": embedder,
        "infer": infer,
        "sources": [hashlib.sha256(file.read_bytes()).hexdigest() for file in write_path()],
    }
    digest = hashlib.sha256(json.dumps(key).encode()).hexdigest()[:16]
    target = folder / f"{scenario.name}-{digest}.db"
    if target.is_file():
        return target
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        file = Path(scratch) / "store.db"
        started = time.perf_counter()
        with open_memory(file) as memory:
            for said in scenario.sessions:
                for start in range(0, len(said), 2):
                    memory.add(said[start : start + 2], user_id=scenario.user_id, infer=infer)
            seconds = time.perf_counter() - started
            with memory.store.transaction() as tx:
                tx.set_meta(_SECONDS, f"{seconds:.1f}")
        file.replace(target)
    return target


def seconds_of(memory: Memory) -> float:
    """The seconds that filling this store took; NaN if they are not recorded."""
    return float(memory.store.meta(_SECONDS) or "nan")


def _adapters(engine: Engine, chosen: str) -> list[str]:
    found = experts.chosen_set(chosen, engine.path)
    adapters = () if found is None else found.adapters
    return [expert.sha256 for expert in adapters if expert.stage in _WRITING]


def write_path() -> list[Path]:
    """The files that decide what is stored: Memory and all that the write path imports."""
    package = Path(edgemem.__file__).parent
    files = {package / "memory.py"}
    seen: set[str] = set()
    left = ["edgemem.pipeline.ingest", "edgemem.runtime.embedder"]
    while left:
        name = left.pop()
        if name in seen or name in _BEYOND or name.partition(".")[0] != "edgemem":
            continue
        seen.add(name)
        place = package.joinpath(*name.split(".")[1:])
        for file in (place.with_suffix(".py"), place / "__init__.py"):
            if not file.is_file():
                continue
            files.add(file)
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ImportFrom) and node.module:
                    left += [node.module, *(f"{node.module}.{a.name}" for a in node.names)]
                elif isinstance(node, ast.Import):
                    left += [alias.name for alias in node.names]
    return sorted(files)
