"""Is each message of a running chat read as it is meant? By an expert, and by the regression alone.

    python -m bench.intents --json OUT [--experts SET] [--file FILE]

The messages of models/chats/held-out-messages.txt, from which nothing has learned, follow each
other in chats: news stand after questions, and questions after news. `expert` reads a message with
the one before it, as the bundled model does. `regression` reads it alone, as is done for a model
without such an expert. For each: how many are read as meant, of each want; `answered`: telling
messages that are answered as if they asked; `lost`: telling messages that would not be remembered.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench import report
from corpus import readers
from corpus.annotated import Labelled
from edgemem.config import load_settings
from edgemem.runtime import experts
from edgemem.runtime.embedder import Embedder
from edgemem.runtime.engine import Engine
from edgemem.stages.intent import REMARK, TASKS, Intent, intent

HELD_OUT = report.MODELS / "chats" / "held-out-messages.txt"


def kind(message: Intent | Labelled) -> str | None:
    return message.wants if message.wants or message.tells else REMARK


def row(name: str, read: Sequence[Intent], meant: Sequence[Labelled]) -> dict[str, Any]:
    """The figures of one reader. read: its intent of each message."""
    pairs = list(zip(read, meant, strict=True))
    of = Counter(map(kind, meant))
    right = Counter(kind(message) for found, message in pairs if kind(found) == kind(message))
    told = [found for found, message in pairs if kind(message) is None]
    return {
        "reader": name,
        "right": right.total(),
        "n": len(pairs),
        "by_want": {str(want): [right[want], n] for want, n in of.items()},
        "answered": [sum(found.wants not in (None, *TASKS) for found in told), len(told)],
        "lost": [
            sum(message.tells and not found.tells for found, message in pairs),
            sum(message.tells for message in meant),
        ],
    }


def main(argv: Sequence[str] | None = None) -> None:
    parser = report.parser("intents", __doc__)
    parser.add_argument("--experts", help="the set whose expert reads (default: the setting)")
    parser.add_argument("--file", type=Path, default=HELD_OUT, help="labelled messages")
    given = parser.parse_args(argv)

    settings = load_settings()
    settings = replace(settings, experts=given.experts or settings.experts)
    embedder = Embedder.load(settings.embedder)
    messages = list(readers.read_messages(given.file))
    with Engine.load(settings.model) as engine:

        def read(name: str) -> dict[str, Any]:
            shown = report.track(messages, name)
            return row(name, [intent(engine, embedder, m.text, m.before) for m in shown], messages)

        rows = [read("regression")]  # of an engine without an expert
        experts.load_chosen(engine, settings.experts)
        rows.append(read("expert"))
    report.write(given.json, {"file": given.file.name}, rows)


if __name__ == "__main__":
    main()
