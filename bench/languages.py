"""How often does a search find what was said in German, Spanish or Chinese? No language model.

    python -m bench.languages --json OUT [--half development|final] [--retrieval fast|careful]
        [--embedder FILE]

The conversations of bench/conversations/other-languages are stored as they are (`infer=False`), for
one user. A store holds one half of a language's conversations: the first five (development) or the
rest (final). Hit@k: the message that answers a question is among the first k. --embedder: an ONNX
file to use in place of the bundled embedder, which was trained on English.
"""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench import report
from corpus.annotated import Annotated
from corpus.readers import read_written
from edgemem.config import Settings, load_settings
from edgemem.memory import Memory
from edgemem.pipeline.importers import batches

FOLDER = Path(__file__).parent / "conversations" / "other-languages"
HALVES = {"development": slice(0, 5), "final": slice(5, None)}
KS = (1, 5)
USER = "user"


def ranks(memory: Memory, talks: Sequence[Annotated]) -> Iterator[int]:
    """The rank of each question's message, from 1; max(KS) + 1 if the search does not find it."""
    for talk in talks:
        for batch in batches(talk.messages, infer=False):
            memory.add(batch, user_id=USER, infer=False)
    for talk in talks:
        for question in talk.questions:
            hits = memory.search(question.text, user_id=USER, top_k=max(KS))
            (wanted,) = (shown.text for shown in question.evidence)
            found = [hit.memory for hit in hits]
            yield found.index(wanted) + 1 if wanted in found else max(KS) + 1


def row(file: Path, half: str, settings: Settings) -> dict[str, Any]:
    """The hit rates over one half of a language's conversations."""
    talks = read_written(file)[HALVES[half]]
    with (
        tempfile.TemporaryDirectory() as scratch,
        Memory(Path(scratch) / "languages.db", settings=settings) as memory,
    ):
        places = list(ranks(memory, talks))
        careful = memory.token_embedder is not None
    hits = {f"hit_at_{k}": round(sum(p <= k for p in places) / len(places), 4) for k in KS}
    return {
        "language": file.stem,
        "half": half,
        "retrieval": "careful" if careful else "fast",
        "messages": sum(len(talk.messages) for talk in talks),
        "n": len(places),
        **hits,
    }


def main(argv: Sequence[str] | None = None) -> None:
    parser = report.parser("languages", __doc__)
    parser.add_argument("--half", choices=list(HALVES), help="one half (default: both)")
    parser.add_argument("--embedder", help="an ONNX file (default: setting `embedder`)")
    report.add_retrieval(parser)
    options = parser.parse_args(argv)
    settings = replace(load_settings(), retrieval=options.retrieval)
    if options.embedder is not None:
        settings = replace(settings, embedder=options.embedder)
    warnings.simplefilter("ignore")  # about a non-English text: that is what this bench measures
    rows = [
        row(file, half, settings)
        for half in ([options.half] if options.half else HALVES)
        for file in sorted(FOLDER.glob("*.txt"))
    ]
    summary = {
        f"{r['language']}_{r['half']}_hit_at_{k}": r[f"hit_at_{k}"] for r in rows for k in KS
    }
    report.write(options.json, {"retrieval": rows[0]["retrieval"], **summary}, rows)


if __name__ == "__main__":
    main()
