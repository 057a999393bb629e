"""Sets the weights that tell which sentence bears on a request (edgemem/data/bearing.npz).

    python -m bench.fit_bearing --json OUT [--write]

A logistic regression learns the requests for advice of models/chats: of all sentences that the
user said before, those whose words the ideal reply needs, and of OTHERS constraints of other people
none. Each file's requests are scored by the weights of the others. Printed: for how many the
likeliest sentence is right, the same of those from a probability on, and for how many one of three
constraints of other people reaches it. --write stores the weights of all files. Some minutes.
"""

from __future__ import annotations

import random
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
from edgemem.pipeline.people import KINDS, lasting_logits
from edgemem.runtime.embedder import Embedder

WEIGHTS = report.DATA / "bearing.npz"
LEAST = (0.0, 0.2, 0.3, 0.4, 0.5, 0.6)
OTHERS = 2  # constraints of other people that a request is learned with
STRANGE = 3  # the same that may be mistaken for those of who asks
BATCH = 64

FloatArray = NDArray[np.float64]


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


def constraints(embedder: Embedder, asked: Sequence[Asked]) -> list[tuple[str, str]]:
    """The sentences that probably tell a constraint, each with its file."""
    told = list(dict.fromkeys((a.file, sentence) for a in asked for sentence in a.told))
    found = []
    for start in report.track(range(0, len(told), BATCH), "constraints"):
        batch = told[start : start + BATCH]
        logits = lasting_logits(embedder, embedder.embed([sentence for _, sentence in batch]))
        if logits is None:
            raise SystemExit("lasting.npz is fitted to another embedder; run bench.fit_lasting")
        likely = logits[:, KINDS.index("constraint")] > 0
        found += [one for one, is_likely in zip(batch, likely, strict=True) if is_likely]
    return found


def figures(
    asked: Sequence[Asked], scores: Sequence[FloatArray], strange: Sequence[FloatArray]
) -> list[dict[str, Any]]:
    """From each of the LEAST probabilities on: of how many requests the likeliest sentence reaches
    it, for how many of these it is needed, and of how many one of STRANGE constraints does."""
    best = [int(s.argmax()) for s in scores]
    p = _probability([s[i] for s, i in zip(scores, best, strict=True)])
    p_strange = _probability([s.max() for s in strange])
    right = np.array([a.needed[i] for a, i in zip(asked, best, strict=True)])
    return [
        {
            "least": least,
            "requests": int((p >= least).sum()),
            "right": int(right[p >= least].sum()),
            "strange": int((p_strange >= least).sum()),
        }
        for least in LEAST
    ]


def _probability(logits: Sequence[float]) -> FloatArray:
    p: FloatArray = 1 / (1 + np.exp(-np.array(logits)))
    return p


def main(argv: Sequence[str] | None = None) -> None:
    parser = report.parser("fit_bearing", __doc__)
    parser.add_argument("--write", action="store_true", help="store the weights in the package")
    options = parser.parse_args(argv)
    asked, rng = list(requests()), random.Random(0)
    embedder = Embedder.load(load_settings().embedder)
    known = constraints(embedder, asked)
    learned, needed, strange = [], [], []
    for one in report.track(asked, "requests"):
        others = [sentence for file, sentence in known if file != one.file]
        told = [*one.told, *rng.sample(others, OTHERS + STRANGE)]
        read = features(embedder, one.text, told)
        assert read is not None
        learned.append(read[:-STRANGE].astype(float))
        needed.append(np.concatenate([one.needed, np.zeros(OTHERS, np.bool_)]))
        strange.append(read[-STRANGE:].astype(float))
    x, y = np.concatenate(learned), np.concatenate(needed)
    files = np.repeat([one.file for one in asked], [len(rows) for rows in learned])
    w = {name: fit(x[files != name], y[files != name]) for name in set(files.tolist())}
    own = [a[:-OTHERS] @ w[one.file] for a, one in zip(learned, asked, strict=True)]
    strangers = [a @ w[one.file] for a, one in zip(strange, asked, strict=True)]
    rows = figures(asked, own, strangers)
    near = figures(asked, [a[:-OTHERS, 0] for a in learned], [a[:, 0] for a in strange])
    for row in rows:
        print(row)
    summary = {"requests": len(asked), "sentences": len(y), "right_by_cosine": near[0]["right"]}
    report.write(options.json, summary, rows)
    if options.write:
        np.savez(WEIGHTS, weights=fit(x, y).astype(np.float32))


if __name__ == "__main__":
    main()
