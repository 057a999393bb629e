"""mem0 and edgemem on the same turns: how fast they add and search, how often they find.

    python -m bench.peers_mem0 --data FILE_OR_DIR --json OUT [--rounds 3]

Needs the `bench` extra. The turns of one LoCoMo conversation (of a folder: the first file) go one
by one into edgemem and into three forms of mem0: its default local store (qdrant, on disk), the
same with keyword search, and faiss. All use `infer=False`. Then each system is asked every question
of categories 1 to 4 that has usable evidence. The systems add and search in turn, on one core.
Rows: adds per second, milliseconds of a search, Hit@1 and Hit@10 as bench/locomo.py counts them.

Every system uses edgemem's embedder. All vectors are computed beforehand, so that the figures
exclude embedding. Each system gets a turn in the form that serves it best. edgemem gets the words,
the speaker as `name` and the time. mem0 gets "speaker: words", because it stores a name but does
not search it, and no time, because its open-source version refuses one.

Nothing leaves the machine. mem0's telemetry is switched off before mem0 is imported
(mem0/memory/telemetry.py reads MEM0_TELEMETRY once), the language model's key is a dummy, and any
use of the network ends the run. mem0_qdrant is mem0's plain install, without keyword search.
mem0_qdrant_words adds it through fastembed's BM25, which gets edgemem's stop words so that it does
not download a list. Entities, which need a spaCy model from the network, are off in all.
"""

from __future__ import annotations

import logging
import os
import socket
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench import report
from bench.alone import in_turns, on_one_core, one_thread_each, percentiles
from bench.questions import answerable
from corpus.readers import LocomoFile, locomo_file
from edgemem.language import STOP_WORDS
from edgemem.memory import Memory
from edgemem.pipeline.ingest import text_to_embed
from edgemem.results import Message
from edgemem.runtime.embedder import Embedder

STORES = {"mem0_qdrant": "qdrant", "mem0_qdrant_words": "qdrant", "mem0_faiss": "faiss"}
WITH_WORDS = "mem0_qdrant_words"
OWN = "edgemem"
TOP_K = 10


class Known:
    """edgemem's embedder with the vectors of `texts` precomputed. Any other text is a KeyError."""

    def __init__(self, texts: Sequence[str]) -> None:
        embedder = Embedder.load()
        self.model_id, self.dim = embedder.model_id, embedder.dim
        self.max_tokens = embedder.max_tokens
        texts = list(dict.fromkeys(texts))
        self._chunks: dict[str, NDArray[np.float32]] = {}
        for start in report.track(range(0, len(texts), 32), "embedding"):
            some = texts[start : start + 32]
            self._chunks.update(zip(some, embedder.embed_chunks(some), strict=True))
        self._whole = {text: embedder.embed([text])[0] for text in texts if self._is_long(text)}

    def _is_long(self, text: str) -> bool:
        return len(self._chunks[text]) > 1

    def embed_chunks(self, texts: Sequence[str]) -> list[NDArray[np.float32]]:
        return [self._chunks[text] for text in texts]

    def embed_query(self, text: str) -> NDArray[np.float32]:
        return self._whole[text] if self._is_long(text) else self._chunks[text][0]

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        return np.stack([self.embed_query(text) for text in texts])


class Mem0Embedder:
    """The same precomputed vectors through mem0's embedder interface, as lists."""

    def __init__(self, known: Known, texts: Sequence[str]) -> None:
        self._lists = {text: known.embed_query(text).tolist() for text in texts}

    def embed(self, text: str, memory_action: str | None = None) -> list[float]:
        return self._lists[text]

    def embed_batch(self, texts: Sequence[str], memory_action: str = "add") -> list[list[float]]:
        return [self._lists[text] for text in texts]


def refuse_network() -> None:
    """From here on, this process ends if anything in it uses the network."""

    def refuse(*args: Any, **more: Any) -> Any:
        # os._exit, because no `except` can stop it, even in a thread.
        report.console.print(f"the network was asked for: {args!r}")
        traceback.print_stack()
        os._exit(1)

    for name in ("connect", "connect_ex", "sendto"):  # not bind: urllib3 tries ::1 when imported
        setattr(socket.socket, name, refuse)
    socket.getaddrinfo = socket.create_connection = refuse  # type: ignore[assignment]


def open_mem0(
    name: str, folder: Path, embedder: Any, dim: int, language: dict[str, Any] | None = None
) -> Any:
    """The mem0 Memory of this name, in `folder`, with telemetry off.

    language: mem0's configuration of a language model behind an OpenAI-compatible address.
    """
    os.environ["MEM0_TELEMETRY"] = "False"
    os.environ["MEM0_DIR"] = str(folder / "mem0")
    logging.getLogger("mem0").setLevel(logging.ERROR)  # each search warns of missing packages
    import mem0
    from mem0.memory import telemetry

    if telemetry.MEM0_TELEMETRY:
        raise SystemExit("mem0's telemetry is on; it was imported before this bench could stop it")
    where = {"collection_name": "turns", "path": str(folder / name), "embedding_model_dims": dim}
    unused = {"provider": "openai", "config": {"api_key": "never used"}}
    memory = mem0.Memory.from_config(
        {
            "vector_store": {"provider": STORES[name], "config": where},
            "llm": {"provider": "openai", "config": language} if language else unused,
            "embedder": unused,
            "history_db_path": str(folder / f"{name}-history.db"),
        }
    )
    memory.embedding_model = embedder
    if STORES[name] == "qdrant":
        # mem0 caches its encoder in this attribute; False means that no encoder is available.
        memory.vector_store._bm25_encoder = bm25(folder) if name == WITH_WORDS else False
    return memory


def bm25(folder: Path) -> Any:
    """mem0's BM25 encoder. Given stop words and a folder, it downloads nothing."""
    from fastembed import SparseTextEmbedding

    return SparseTextEmbedding(
        "Qdrant/bm25", specific_model_path=str(folder), stopwords=set(STOP_WORDS)
    )


def spoken(message: dict[str, Any]) -> str:
    """A turn as "speaker: words", which edgemem embeds and which mem0 is given."""
    role, content, when = message["role"], message["content"], message["timestamp"]
    return text_to_embed(Message(role, content, when, message["name"]))


def add_turns(
    adders: dict[str, Callable[[dict[str, Any]], Any]], messages: Sequence[dict[str, Any]]
) -> dict[str, list[float]]:
    """Milliseconds of each add. Each system goes first equally often."""
    times: dict[str, list[float]] = {name: [] for name in adders}
    names = list(adders)
    for number, message in enumerate(report.track(messages, "adding turns")):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            began = time.perf_counter()
            adders[name](message)
            times[name].append((time.perf_counter() - began) * 1e3)
    return times


def measure(
    file: LocomoFile, rounds: int, scratch: Path
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Summary, and one row for each system."""
    user, messages = file.sample_id, file.messages
    asked = list(answerable(file))
    if not asked:
        raise SystemExit(f"{user} has no question with usable evidence; give another file")
    texts = [spoken(m) for m in messages] + [question for question, _ in asked]
    known = Known(texts)
    refuse_network()
    lists = Mem0Embedder(known, texts)
    peers = {name: open_mem0(name, scratch, lists, known.dim) for name in STORES}
    own = Memory(scratch / "edgemem.db", embedder=known)  # type: ignore[arg-type]

    def add_to(memory: Any) -> Callable[[dict[str, Any]], Any]:
        return lambda m: memory.add(
            [{"role": m["role"], "content": spoken(m)}],
            user_id=user,
            metadata=m["metadata"],
            infer=False,
        )

    def ask(memory: Any) -> Callable[[str], list[str]]:
        def ids_found(question: str) -> list[str]:
            found = memory.search(question, filters={"user_id": user}, top_k=TOP_K)["results"]
            return [hit["metadata"]["dia_id"] for hit in found]

        return ids_found

    def ask_own(question: str) -> list[str]:
        hits = own.search(question, user_id=user, top_k=TOP_K)
        return [hit.metadata["dia_id"] for hit in hits]

    with on_one_core():
        add_ms = add_turns(
            {
                OWN: lambda m: own.add(m, user_id=user, infer=False),
                **{name: add_to(memory) for name, memory in peers.items()},
            },
            messages,
        )
        searchers = {OWN: ask_own, **{name: ask(memory) for name, memory in peers.items()}}
        search_ms: dict[str, list[float]] = {name: [] for name in searchers}
        for _ in report.track(range(rounds), "asking questions"):
            times, found = in_turns(searchers, [question for question, _ in asked])
            for name, some in times.items():
                search_ms[name] += some
    own.close()
    for memory in peers.values():
        memory.close()
    rows = []
    for name in searchers:
        pairs = list(zip(found[name], (wanted for _, wanted in asked), strict=True))
        rows.append(
            {
                "system": name,
                "adds_per_s": round(1e3 * len(messages) / sum(add_ms[name]), 1),
                **percentiles(add_ms[name], "add"),
                **percentiles(search_ms[name], "search"),
                "hit_at_1": _hit(pairs, 1),
                "hit_at_10": _hit(pairs, TOP_K),
            }
        )
    summary = {
        "conversation": user,
        "turns": len(messages),
        "questions": len(asked),
        "rounds": rounds,
        "embedder": known.model_id,
        "systems": {row["system"]: _without(row, "system") for row in rows},
    }
    return summary, rows


def _hit(pairs: Sequence[tuple[list[str], list[str]]], k: int) -> float:
    return round(sum(bool(set(found[:k]) & set(wanted)) for found, wanted in pairs) / len(pairs), 4)


def _without(row: dict[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name != key}


def main(argv: Sequence[str] | None = None) -> None:
    parser = report.parser("peers_mem0", __doc__, data="LoCoMo")
    parser.add_argument("--rounds", type=int, default=3, help="how often each question is asked")
    options = parser.parse_args(argv)
    if options.rounds < 1:
        parser.error("--rounds must be 1 or more")
    one_thread_each("bench.peers_mem0")
    with tempfile.TemporaryDirectory() as scratch:
        report.write(
            options.json, *measure(locomo_file(options.data[0]), options.rounds, Path(scratch))
        )


if __name__ == "__main__":
    main()
