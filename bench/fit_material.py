"""Sets the weights that tell a text from the user's life (edgemem/data/material.npz).

    python -m bench.fit_material --json OUT [--write]

A logistic regression with an L2 penalty learns the messages of models/material by Newton's method,
and as life also those of models/chats and models/conversations from which facts were taken, and
CHAT others of models/chats that tell something. Each conversation is scored by weights that have
not seen it. Printed: how many messages of material and of life are taken for material, of those
left out of a fold and of models/material/held-out.txt, each kind by itself too. --write stores the
weights of all but the held-out ones. Half an hour, most of it embedding.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bench import report
from corpus import annotated, readers
from edgemem.config import load_settings
from edgemem.runtime.embedder import Embedder
from edgemem.stages.material import features, read

MATERIAL = report.MODELS / "material"
WEIGHTS = report.DATA / "material.npz"
CHAT = 2500
PENALTY = 0.3
FOLDS, STEPS, BATCH = 5, 25, 64

FloatArray = NDArray[np.float64]


class Said(NamedTuple):
    """A message. kind: "material: joke". group: what a fold leaves out together."""

    text: str
    kind: str
    group: str


def labelled(name: str) -> list[Said]:
    """The messages of a file of models/material."""
    found, kind = [], ""
    for line in (MATERIAL / name).read_text(encoding="utf-8").splitlines():
        if line.startswith("# "):
            kind = line[2:]
        else:
            found.append(Said(line.replace("\\n", "\n"), kind, line))
    return found


def telling() -> list[Said]:
    """The messages from which facts were taken, each once."""
    found = {}
    for folder in ("chats", "conversations"):
        for path in sorted((report.MODELS / folder).glob("*.txt")):
            if not path.stem.startswith("held-out"):
                for text, group in _told(path):
                    found[text] = Said(text, "fact", group)
    return list(found.values())


def chatting(known: Collection[str]) -> list[Said]:
    """CHAT messages to an assistant that tell something, none of them known."""
    found: dict[str, Said] = {}
    for path in sorted((report.MODELS / "chats").glob("*.txt")):
        if path.stem.startswith("held-out"):
            continue
        if readers.is_messages(path):
            messages = list(readers.read_messages(path))
        else:
            messages = [m for talk in readers.read_written(path) for m in annotated.labelled(talk)]
        found |= {
            m.text: Said(m.text, "chat", f"{path.name} {m.group}") for m in messages if m.tells
        }
    new = [said for text, said in found.items() if text not in known]
    return random.Random(0).sample(new, CHAT)


def _told(path: Path) -> Iterator[tuple[str, str]]:
    of_messages = readers.is_messages(path)
    for talk in readers.read_told(path) if of_messages else readers.read_written(path):
        for pair in talk.pairs:
            for source in sorted(set(pair.sources)):
                yield pair.messages[source].content, f"{path.name} {talk.id}"


def fit(x: FloatArray, y: NDArray[np.bool_]) -> FloatArray:
    """The weights (d,), the last of the constant. x: (n, d); y: (n,)."""
    penalty = np.full(x.shape[1], PENALTY)
    penalty[-1] = 1e-9
    w = np.zeros(x.shape[1])
    for _ in range(STEPS):
        p = 1 / (1 + np.exp(-x @ w))
        hessian = (x * (p * (1 - p))[:, None]).T @ x + np.diag(penalty)
        step = np.linalg.solve(hessian, x.T @ (p - y) + penalty * w)
        w -= step
        if np.abs(step).max() < 1e-6:
            break
    return w


def main(argv: Sequence[str] | None = None) -> None:
    parser = report.parser("fit_material", __doc__)
    parser.add_argument("--write", action="store_true", help="store the weights in the package")
    options = parser.parse_args(argv)
    learned, held, facts = labelled("messages.txt"), labelled("held-out.txt"), telling()
    chat = chatting({m.text for m in facts})
    said = [*learned, *held, *facts, *chat]
    embedder = Embedder.load(load_settings().embedder)
    batches = report.track(range(0, len(said), BATCH), "embedding")
    vectors = [
        v for i in batches for v in embedder.embed([read(m.text) for m in said[i : i + BATCH]])
    ]
    x = np.stack([features(m.text, v) for m, v in zip(said, vectors, strict=True)]).astype(float)
    summary, rows, weights = fitted(said, x, len(learned), len(held))
    report.write(options.json, summary, rows)
    if options.write:
        np.savez(
            WEIGHTS,
            weights=weights.astype(np.float32),
            embedder=np.array(embedder.model_id),
        )


def fitted(
    said: Sequence[Said], x: FloatArray, learned: int, held: int
) -> tuple[dict[str, Any], list[dict[str, Any]], FloatArray]:
    """The figures, those of each kind, and the weights.

    said: first the learned messages, then the held-out ones, then the others; x: theirs.
    """
    y = np.array([m.kind.startswith("material") for m in said])
    is_fact = np.array([m.kind == "fact" for m in said])
    is_chat = np.array([m.kind == "chat" for m in said])
    is_held = np.zeros(len(said), bool)
    is_held[learned : learned + held] = True
    fold = np.array([zlib.crc32(m.group.encode()) % FOLDS for m in said])
    logits = np.zeros(len(said))
    for i in report.track(range(FOLDS), "folds"):
        of_fit, out = ~is_held & (fold != i), ~is_held & (fold == i)
        logits[out] = x[out] @ fit(x[of_fit], y[of_fit])
    weights = fit(x[~is_held], y[~is_held])
    logits[is_held] = x[is_held] @ weights
    found = logits >= 0

    def share(rows: NDArray[np.bool_]) -> list[int]:
        return [int(found[rows].sum()), int(rows.sum())]

    summary = {
        "facts_lost": share(is_fact),
        "chat_lost": share(is_chat),
        "material_found": share(y & ~is_held),
        "life_lost": share(~y & ~is_held & ~is_fact & ~is_chat),
        "held_out_material_found": share(y & is_held),
        "held_out_life_lost": share(~y & is_held),
    }
    kinds = np.array([m.kind for m in said])
    rows = [
        {"kind": kind, "found": share(kinds == kind), "held_out": share((kinds == kind) & is_held)}
        for kind in dict.fromkeys(kinds.tolist())
    ]
    return summary, rows, weights


if __name__ == "__main__":
    main()
