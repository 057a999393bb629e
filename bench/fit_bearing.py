"""Sets the weights that tell which sentence bears on a request (edgemem/data/bearing.npz).

    python -m bench.fit_bearing --json OUT [--write]

A logistic regression learns the requests for advice of models/chats: of all sentences that the
user said before, those whose words the ideal reply needs. Each file's requests are scored by the
weights of the others. Printed: for how many the likeliest sentence is right, and the same of those
from a probability on. --write stores the weights of all files. Two minutes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bench import report
from bench.fit_lasting import fit
from corpus import readers
from edgemem import language
from edgemem.config import load_settings
from edgemem.pipeline.bearing import features
from edgemem.runtime.embedder import Embedder

WEIGHTS = report.DATA / "bearing.npz"
LEAST = (0.0, 0.3, 0.4, 0.5, 0.6, 0.7)


class Asked(NamedTuple):
    """A request, the sentences said before it, and which of these the reply needs."""

    file: str
    text: str
    told: list[str]
    needed: NDArray[np.bool_]


def requests() -> Iterator[Asked]:
    for path in sorted((report.MODELS / "chats").glob("*.txt")):
        if path.stem.startswith("held-out") or not readers.is_written(path):
            continue
        for talk in readers.read_written(path):
            said = [m["content"] for m in talk.messages if m["role"] == "user"]
            told = [s for text in said for s in language.sentences(text)]
            told = [s for s in dict.fromkeys(told) if not language.is_question(s)]
            for exchange in (e for later in talk.later for e in later.exchanges):
                if exchange.wants == "task" and told:
                    needed = [any(q in s or s in q for q in exchange.quotes) for s in told]
                    yield Asked(path.name, exchange.text, told, np.array(needed))


def figures(asked: Sequence[Asked], scores: Sequence[NDArray[np.float64]]) -> list[dict[str, Any]]:
    """How often the likeliest sentence is needed, from each of the LEAST probabilities on."""
    best = [int(s.argmax()) for s in scores]
    p = np.array([1 / (1 + np.exp(-s[i])) for s, i in zip(scores, best, strict=True)])
    right = np.array([a.needed[i] for a, i in zip(asked, best, strict=True)])
    return [
        {
            "least": least,
            "requests": int((p >= least).sum()),
            "right": int(right[p >= least].sum()),
            "share": round(float(right[p >= least].sum()) / max(1, int((p >= least).sum())), 3),
        }
        for least in LEAST
    ]


def main(argv: Sequence[str] | None = None) -> None:
    parser = report.parser("fit_bearing", __doc__)
    parser.add_argument("--write", action="store_true", help="store the weights in the package")
    options = parser.parse_args(argv)
    asked = list(requests())
    embedder = Embedder.load(load_settings().embedder)
    read = []
    for one in report.track(asked, "embedding"):
        found = features(embedder, one.text, one.told)
        if found is None:
            raise SystemExit("lasting.npz is fitted to another embedder; run bench.fit_lasting")
        read.append(found.astype(float))
    x, y = np.concatenate(read), np.concatenate([one.needed for one in asked])
    files = np.array([one.file for one in asked for _ in one.told])
    by_file = {name: fit(x[files != name], y[files != name]) for name in set(files.tolist())}
    rows = figures(asked, [x @ by_file[a.file] for a, x in zip(asked, read, strict=True)])
    rows_near = figures(asked, [found[:, 0] for found in read])
    for row in rows:
        print(row)
    summary = {"requests": len(asked), "sentences": len(y), "by_cosine": rows_near[0]["share"]}
    report.write(options.json, summary, rows)
    if options.write:
        np.savez(WEIGHTS, weights=fit(x, y).astype(np.float32))


if __name__ == "__main__":
    main()
