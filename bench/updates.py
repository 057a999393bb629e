"""How many ended facts does the update stage find, and how many valid ones does it end wrongly?

    python -m bench.updates FILE... --json OUT [--model NAME] [--experts NAME]

A FILE holds pairs of an old memory and a new fact, labelled with the right event (models/pairs).
Every fact goes through the stage as in `Memory.add`, with its memory as the only candidate.
Held-out files are for figures only: nothing is tuned on them.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench import report
from corpus.annotated import Situation
from corpus.readers import read_pairs
from edgemem.config import load_settings
from edgemem.runtime import experts
from edgemem.runtime.embedder import Embedder
from edgemem.runtime.encoder import Encoder
from edgemem.runtime.engine import Engine
from edgemem.stages import update


def judged(engine: Engine, embedder: Embedder, encoder: Encoder, situation: Situation) -> str:
    """The event that the update stage decides on for a fact and its memory."""
    (memory,) = situation.memories
    old, new = embedder.embed([memory, situation.fact])
    near = [update.Candidate("old", memory, float(old @ new))]
    (op,) = update.decide(engine, [situation.fact], [near], encoder)
    return op.event


def figures(wanted: Sequence[str], found: Sequence[str]) -> dict[str, Any]:
    """Counts of endings (DELETE) found and of wrong endings, with Wilson's intervals."""
    right = Counter(w for w, f in zip(wanted, found, strict=True) if w == f)
    of = Counter(wanted)
    wrong = sum(f == "DELETE" != w for w, f in zip(wanted, found, strict=True))
    others = len(wanted) - of["DELETE"]
    return {
        "endings": of["DELETE"],
        "endings_found": right["DELETE"],
        "found_wilson_95": [round(x, 3) for x in report.wilson(right["DELETE"], of["DELETE"])],
        "others": others,
        "others_ended": wrong,
        "ended_wilson_95": [round(x, 4) for x in report.wilson(wrong, others)],
        "macro": round(sum(right[e] / of[e] for e in of) / len(of), 4),
        **{f"right_{e}": f"{right[e]} of {of[e]}" for e in sorted(of)},
    }


def main(argv: Sequence[str] | None = None) -> None:
    parser = report.parser("updates", __doc__)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    parser.add_argument("--model", help="name or file (default: setting `model`)")
    parser.add_argument("--experts", help="set of experts (default: setting `experts`)")
    options = parser.parse_args(argv)
    settings = load_settings()
    chosen = options.experts or settings.experts
    rows = []
    embedder, encoder = Embedder.load(settings.embedder), Encoder.load()
    with Engine.load(options.model or settings.model) as engine:
        experts.load_chosen(engine, chosen)
        for file in options.files:
            situations = read_pairs(file)
            started = time.perf_counter()
            each = report.track(situations, file.name)
            found = [judged(engine, embedder, encoder, s) for s in each]
            each_ms = (time.perf_counter() - started) * 1e3 / max(1, len(situations))
            counted = figures([s.event for s in situations], found)
            rows.append({"file": file.name, **counted, "each_ms": round(each_ms, 1)})
        by = "model" if engine.expert("update") else "encoder"
        summary = {"model": engine.name, "experts": chosen, "by": by}
    report.write(options.json, summary, rows)
    for row in rows:
        report.console.print(row)


if __name__ == "__main__":
    main()
