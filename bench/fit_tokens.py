"""Sets the projection of token vectors (edgemem/data/tokens.npz) on our own conversations.

    python -m bench.fit_tokens --json OUT [--dim 96] [--every 12] [--write]

Needs the extra `colbert`. Of every so many messages of models/conversations the tokens are embedded
(no text of LoCoMo is among them). The projection is onto the directions that hold most of their
inner products, the leading eigenvectors of their second moments, each divided by the fourth root of
its eigenvalue: what all tokens have in common counts for less (bench/LOG.md). The step of the whole
numbers is such that one number in ten thousand is cut off. Half a minute.

Prints how much of a vector's squared length those directions hold, and how far off the cosines of
two tokens are for the whole numbers.
"""

from __future__ import annotations

import argparse
import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track

from bench import report
from bench.fit_fusion import CONVERSATIONS
from corpus import readers
from edgemem.retrieval.lexical import search_text
from edgemem.runtime.embedder import Embedder
from edgemem.runtime.tokens import MODEL, TEXT_MARK, projected

SAVED = Path(__file__).resolve().parent.parent / "edgemem" / "data" / "tokens.npz"
CUT_OFF = 1e-4
_console = Console(stderr=True)


def fit(vectors: NDArray[np.float32], dim: int) -> tuple[NDArray[np.float16], float, float]:
    """The projection (d, dim), the step of the whole numbers, and the share that is kept."""
    values, directions = np.linalg.eigh(vectors.T.astype(np.float64) @ vectors / len(vectors))
    values, directions = values[::-1], directions[:, ::-1]
    projection = (directions[:, :dim] * values[:dim] ** -0.25).astype(np.float16)
    step = float(np.quantile(np.abs(projected(vectors, projection)), 1 - CUT_OFF)) / 127
    return projection, step, float(values[:dim].sum() / values.sum())


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.fit_tokens", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--json", type=Path, required=True, help="file to write")
    parser.add_argument("--dim", type=int, default=96, help="numbers of a vector (%(default)s)")
    parser.add_argument("--every", type=int, default=12, help="of so many messages one is taken")
    parser.add_argument("--write", action="store_true", help="store it in the package")
    options = parser.parse_args(argv)
    talks = [t for path in sorted(CONVERSATIONS.glob("*.txt")) for t in readers.read_written(path)]
    said = [search_text(m["content"], speaker=m.get("name")) for t in talks for m in t.messages]
    embedder = Embedder.load(MODEL)
    vectors = np.concatenate(
        [
            tokens
            for text in track(said[:: options.every], "embedding", console=_console)
            for _, tokens in embedder.embed_tokens(text, TEXT_MARK)
        ]
    )
    projection, step, kept = fit(vectors, options.dim)
    some = projected(np.random.default_rng(0).permutation(vectors)[:2000], projection)
    rounded = np.clip(np.rint(some / step), -127, 127) * step
    off = np.abs(some @ some.T - rounded @ rounded.T)
    summary = {
        "texts": len(said[:: options.every]),
        "tokens": len(vectors),
        "dim": options.dim,
        "kept": round(kept, 4),
        "step": step,
        "off_p50": round(float(np.median(off)), 4),
        "off_p99": round(float(np.quantile(off, 0.99)), 4),
    }
    if options.write:
        file = io.BytesIO()
        np.savez(file, projection=projection, step=np.float64(step))
        SAVED.write_bytes(file.getvalue())
    report.write(options.json, summary, [])


if __name__ == "__main__":
    main()
