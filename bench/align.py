"""Does a store whose vectors are mapped from another embedder's find what a reindex would?

    python -m bench.align --data DIR --other ONNX --json OUT [--keep DIR]

The turns of all LoCoMo conversations lie in one store, a user for each conversation; no language
model is used. The store is made with one embedder and opened with another, in both directions:
`other` is the ONNX file (with tokenizer.json beside it), `bundled` is edgemem's own. Hit@k: the
share of questions (categories 1 to 4) with an evidence turn among the first k, by `Memory.search`
and, with `cosine_`, by the vectors alone. Rows:

    native         every turn embedded by the new embedder, what `reindex` does
    aligned        `Memory.align()`: a sample embedded, the others mapped
    aligned half   the same, then a random half is embedded anew, as in a store that grows
    by pairs       `Memory.align(pairs)`, 2,500 messages of models/conversations, nothing embedded
    unaligned      the old vectors as they are
    turned         the old vectors in a random basis, in case the two models share a basis

`ten_thousand_s`: seconds of `Memory.align(pairs)` in a store of 10,000 memories. --keep: a folder
for embeddings, so that a second run is quick.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from bench import report
from bench.locomo import ask
from bench.questions import CATEGORIES, answerable, ingest
from corpus.readers import LocomoFile, locomo_file, read_written
from edgemem.memory import Memory
from edgemem.retrieval.lexical import embedded_text, search_text
from edgemem.runtime.embedder import Embedder

PAIRS = 2500


class Kept:
    """An embedder that looks vectors up by text. embedded: how many texts were looked up."""

    def __init__(self, model_id: str, vectors: dict[str, np.ndarray]) -> None:
        self.model_id, self._vectors = model_id, vectors
        self.dim = len(next(iter(vectors.values())))
        self.embedded = 0

    def embed_chunks(self, texts: Sequence[str]) -> list[np.ndarray]:
        self.embedded += len(texts)
        return [self._vectors[text][None] for text in texts]

    def embed_query(self, text: str) -> np.ndarray:
        return self._vectors[text]

    def turned(self) -> Kept:
        """This embedder with its vectors in a random basis."""
        normal = np.random.default_rng(0).standard_normal((self.dim, self.dim))
        basis = np.linalg.qr(normal)[0].astype(np.float32)
        turned = {text: vector @ basis for text, vector in self._vectors.items()}
        return Kept(f"turned {self.model_id}", turned)


def kept(embedder: Embedder, texts: Sequence[str], folder: Path | None) -> Kept:
    """An embedder's vectors of texts. Those not in the folder are computed and stored in it."""
    name = embedder.model_id.replace("@", "-") + ".npz"
    file = None if folder is None else folder / name
    known: dict[str, np.ndarray] = {}
    if file is not None and file.is_file():
        held = np.load(file)
        known = dict(zip(held["texts"].tolist(), held["vectors"], strict=True))
    left = [text for text in texts if text not in known]
    for start in report.track(range(0, len(left), 64), "embedding"):
        batch = left[start : start + 64]
        known.update(zip(batch, embedder.embed(batch), strict=True))
    if file is not None and left:
        file.parent.mkdir(parents=True, exist_ok=True)
        np.savez(file, texts=np.array(list(known)), vectors=np.stack(list(known.values())))
    return Kept(embedder.model_id, known)


def messages(folder: Path, count: int) -> list[str]:
    """Messages of the written conversations that are not held out, in random order."""
    found = [
        search_text(message["content"], speaker=message.get("name"))
        for file in sorted(folder.glob("*.txt"))
        if not file.name.startswith("held-out")
        for talk in read_written(file)
        for message in talk.messages
    ]
    order = np.random.default_rng(0).permutation(len(found))[:count]
    return [found[place] for place in order.tolist()]


def found(memory: Memory, files: Sequence[LocomoFile]) -> dict[str, float]:
    """Hit@1 and Hit@10 of all questions, by a search and by the vectors alone."""
    rows = [row for file in files for row in ask(memory, file, (1, 10))[0]]
    result = {f"hit_at_{k}": float(np.mean([r[f"hit_at_{k}"] for r in rows])) for k in (1, 10)}
    vectors = memory.store.vectors()
    hits: list[list[bool]] = []
    for file in files:
        items = list(memory.get_all(user_id=file.sample_id))
        ids = [item.metadata["dia_id"] for item in items]
        held = np.stack([vectors[item.id].mean(axis=0) for item in items])
        for question, wanted in answerable(file):
            scores = held @ memory.embedder.embed_query(question)
            ranked = [ids[place] for place in np.argsort(-scores)[:10]]
            hits.append([bool({*ranked[:k]} & {*wanted}) for k in (1, 10)])
    cosine = np.mean(hits, axis=0).tolist()
    result |= {f"cosine_hit_at_{k}": value for k, value in zip((1, 10), cosine, strict=True)}
    return {name: round(value, 4) for name, value in result.items()}


@contextmanager
def opened(made: Path, new: Kept) -> Iterator[Memory]:
    """A copy of a store, open with the new embedder."""
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(shutil.copy(made, scratch))
        with Memory(path, embedder=new) as memory:  # type: ignore[arg-type]
            yield memory


def stored(path: Path, old: Kept, files: Sequence[LocomoFile]) -> Path:
    """A store of the files' turns, made with the old embedder."""
    with Memory(path, embedder=old) as memory:  # type: ignore[arg-type]
        ingest(memory, files)
    return path


def renamed(memory: Memory, new: Kept) -> None:
    """Record the new embedder's name in the store, and leave the vectors as they are."""
    with memory.store.transaction() as tx:
        tx.set_meta("embedder_model", new.model_id)


def half_anew(memory: Memory, new: Kept) -> None:
    """Embed a random half of the memories by the new embedder."""
    texts = memory.store.search_texts()
    some = np.random.default_rng(1).random(len(texts)) < 0.5
    with memory.store.transaction() as tx:
        for (id, text), anew in zip(texts.items(), some, strict=True):
            if anew:
                tx.set_vectors(id, new.embed_chunks([embedded_text(text)])[0])


def compare(
    old: Kept, new: Kept, files: Sequence[LocomoFile], pairs: Sequence[str]
) -> Iterator[dict[str, Any]]:
    """A row for each way from the old embedder to the new one."""
    vectors = [np.concatenate(e.embed_chunks(pairs)) for e in (old, new)]
    with tempfile.TemporaryDirectory() as scratch:
        made = stored(Path(scratch) / "old.db", old, files)
        with opened(made, new) as memory:
            memory.reindex()
            yield {"way": "native", **found(memory, files)}
        with opened(made, new) as memory:
            started = time.perf_counter()
            aligned = memory.align()
            seconds = time.perf_counter() - started
            counts = {"mapped": aligned.mapped, "embedded": aligned.embedded}
            yield {"way": "aligned", **found(memory, files), **counts, "align_s": round(seconds, 2)}
            half_anew(memory, new)
            yield {"way": "aligned half", **found(memory, files)}
        with opened(made, new) as memory:
            memory.align((vectors[0], vectors[1]))
            yield {"way": "by pairs", **found(memory, files)}
        if old.dim == new.dim:
            with opened(made, new) as memory:
                renamed(memory, new)
                yield {"way": "unaligned", **found(memory, files)}
            turned = stored(Path(scratch) / "turned.db", old.turned(), files)
            with opened(turned, new) as memory:
                renamed(memory, new)
                yield {"way": "turned", **found(memory, files)}


def seconds_for(count: int, dim: int) -> float:
    """Seconds of `Memory.align(pairs)` in a store of `count` memories with random vectors."""
    rng = np.random.default_rng(0)
    vectors = rng.standard_normal((2, count, dim)).astype(np.float32)
    said = [f"memory {number}" for number in range(count)]
    old, new = (
        Kept(f"{name}@0", dict(zip(said, rows, strict=True)))
        for name, rows in zip(("old", "new"), vectors, strict=True)
    )
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "store.db"
        with Memory(path, embedder=old) as memory:  # type: ignore[arg-type]
            memory.add(said, infer=False)
        with Memory(path, embedder=new) as memory:  # type: ignore[arg-type]
            started = time.perf_counter()
            memory.align((vectors[0][:PAIRS], vectors[1][:PAIRS]))
            return time.perf_counter() - started


def main(argv: Sequence[str] | None = None) -> None:
    parser = report.parser("align", __doc__, data="LoCoMo")
    parser.add_argument("--other", type=Path, required=True, help="another embedder's ONNX file")
    parser.add_argument("--keep", type=Path, help="folder for embeddings")
    options = parser.parse_args(argv)
    files = [locomo_file(path) for path in options.data]
    pairs = messages(report.MODELS / "conversations", PAIRS)
    texts = [
        *(search_text(m["content"], speaker=m.get("name")) for f in files for m in f.messages),
        *(q["question"] for f in files for q in f.qa if q.get("category") in CATEGORIES),
        *pairs,
    ]
    texts = list(dict.fromkeys(texts))
    bundled = kept(Embedder.load(), texts, options.keep)
    other = kept(Embedder.load(options.other), texts, options.keep)
    rows = []
    for name, old, new in (("other", other, bundled), ("bundled", bundled, other)):
        for row in compare(old, new, files, pairs):
            rows.append({"from": name, "old": old.model_id, "new": new.model_id, **row})
            report.console.print(rows[-1])
    hits = {row["way"]: row["hit_at_10"] for row in rows if row["from"] == "other"}
    summary = {
        **{f"hit_at_10_{way.replace(' ', '_')}": value for way, value in hits.items()},
        "share_of_native": round(hits["aligned"] / hits["native"], 3),
        "ten_thousand_s": round(seconds_for(10_000, bundled.dim), 2),
        "peak_rss_mb": report.peak_rss_mb(),
    }
    report.write(options.json, summary, rows)


if __name__ == "__main__":
    main()
