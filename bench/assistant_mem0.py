"""mem0 in place of `Memory`, filled by the same model through `edgemem serve`.

mem0 extracts facts from each pair of messages (`infer=True`) through the OpenAI-compatible server,
which runs the model without memory. It uses edgemem's embedder, so that vectors make no difference.
The day of a pair is in its metadata, as mem0's open-source version takes no time. Its store is
qdrant on disk, the default.

Needs the `bench` extra, and the `serve` extra for the server. mem0's telemetry is off (see
bench/peers_mem0.py). mem0's instructions are 8,000 tokens of Qwen2.5, which take a small computer
minutes. So one server answers for all scenarios, and computes them once.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.peers_mem0 import open_mem0
from bench.scenarios import Scenario, day
from edgemem.config import Settings
from edgemem.runtime.embedder import Embedder
from edgemem.server.asgi import load_token

TOP_K = 8
N_CTX = 16_384  # mem0 2.2 instructs its model at length, and adds what it knows
MAX_TOKENS = 1024  # of the facts of one pair


class _Vectors:
    """edgemem's embedder as mem0 calls it."""

    def __init__(self, embedder: Embedder) -> None:
        self._embedder = embedder

    def embed(self, text: str, memory_action: str | None = None) -> list[float]:
        return [float(x) for x in self._embedder.embed([text])[0]]

    def embed_batch(self, texts: list[str], memory_action: str = "add") -> list[list[float]]:
        return [self.embed(text) for text in texts]


@contextmanager
def serving(settings: Settings) -> Iterator[str]:
    """The address of a server that runs the settings' model, in a process of its own."""
    with tempfile.TemporaryDirectory() as scratch:
        yield from _served(settings, Path(scratch))


def _served(settings: Settings, folder: Path) -> Iterator[str]:
    command = [sys.executable, "-m", "edgemem", "serve", "--port", "0"]
    command += ["--db", str(folder / "server.db"), "--model", settings.model]
    command += ["--experts", settings.experts]
    environment = {**os.environ, "EDGEMEM_N_CTX": str(N_CTX)}
    log = folder / "server.log"
    with (
        log.open("wb") as out,
        subprocess.Popen(command, stderr=out, stdout=out, env=environment) as process,
    ):
        try:
            while not (found := re.search(r"Listening on (http://\S+?)\. ", log.read_text())):
                try:
                    process.wait(0.2)
                except subprocess.TimeoutExpired:
                    continue
                raise SystemExit(f"`edgemem serve` has ended:\n{log.read_text()}")
            yield found[1]
        finally:
            process.terminate()


@contextmanager
def filled(
    url: str, model: str, embedder: Embedder, scenario: Scenario
) -> Iterator[Callable[[Scenario, str], list[str]]]:
    """A function from scenario and text to mem0's best memories, best first, as plain notes.

    url: from `serving`, whose settings name the same model.
    """
    with tempfile.TemporaryDirectory() as scratch:
        language = {
            "model": model,
            "api_key": load_token()[0],
            "openai_base_url": f"{url}/v1",
            "temperature": 0.0,
            "max_tokens": MAX_TOKENS,
        }
        vectors = _Vectors(embedder)
        memory = open_mem0("mem0_qdrant", Path(scratch), vectors, embedder.dim, language)
        for said in scenario.sessions:
            for start in range(0, len(said), 2):
                pair = said[start : start + 2]
                memory.add(
                    [{"role": m["role"], "content": m["content"]} for m in pair],
                    user_id=scenario.user_id,
                    metadata={"day": pair[0]["timestamp"]},
                )

        def notes(scenario: Scenario, text: str) -> list[str]:
            found = memory.search(text, filters={"user_id": scenario.user_id}, top_k=TOP_K)
            return [
                f"{day(hit['metadata']['day'])} User: {hit['memory']}" for hit in found["results"]
            ]

        try:
            yield notes
        finally:
            memory.close()
