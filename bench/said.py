"""What did you tell me? Questions about what an assistant said in earlier chats.

    python -m bench.said FILE... --json OUT [--model NAME]

A file has invented people, their chats with an assistant whose replies are long and in Markdown,
and twelve questions of each: three for an item of a list, three for a detail, two for a name that
was found together, one for a reason, one for what the user said, two for what was never said.
Messages are stored as they are (`infer=False`), and `Chat` is asked. An answer is right if it has
one of the wordings before what stands below it, or is a refusal of what was never said; `shown`
also counts what stands below it, and `found` whether one of the turns with the answer is among the
first ten hits. Held-out files (bench/said/held-out.json) are for figures: nothing is changed
because of what they show.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench import report
from edgemem.chat import Chat
from edgemem.config import load_settings
from edgemem.memory import Memory
from edgemem.runtime import experts
from edgemem.runtime.embedder import Embedder
from edgemem.runtime.engine import Engine
from edgemem.stages.generation import NOTHING_FOUND

USER = "me"


def has(text: str, wanted: Sequence[str]) -> bool:
    return any(" ".join(each.lower().split()) in " ".join(text.lower().split()) for each in wanted)


def asked(person: dict[str, Any], memory: Memory) -> Iterator[dict[str, Any]]:
    """A row for each question of a person."""
    for session in person["sessions"]:
        memory.add(session["messages"], user_id=USER, infer=False, timestamp=session["at"])
    for question in person["questions"]:
        wanted = question["answers"]
        chat = Chat(memory, user_id=USER)
        reply = chat.send(question["question"], timestamp=person["asked_at"], remember=False)
        answer = "".join(reply)
        short = answer.partition("\n\n")[0]
        refused = short == NOTHING_FOUND
        hits = memory.search(question["question"], user_id=USER, top_k=10)
        yield {
            "name": person["name"],
            **question,
            "wants": reply.wants,
            "answer": answer,
            "right": has(short, wanted) if wanted else refused,
            "shown": has(answer, wanted) if wanted else refused,
            "refused": refused,
            "found": any(has(hit.memory, wanted) for hit in hits),
        }


def main(argv: Sequence[str] | None = None) -> None:
    parser = report.parser("said", __doc__)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="people and questions")
    parser.add_argument("--model", help="name or file (default: setting `model`)")
    options = parser.parse_args(argv)
    settings = load_settings()
    settings = replace(settings, model=options.model or settings.model)
    embedder = Embedder.load(settings.embedder, n_threads=settings.n_threads)
    people = [one for file in options.files for one in json.loads(file.read_text("utf-8"))]
    rows: list[dict[str, Any]] = []
    with Engine.load(settings.model, n_ctx=settings.n_ctx) as engine:
        experts.load_chosen(engine, settings.experts)
        for person in report.track(people, "asking questions"):
            parts = {"engine": engine, "embedder": embedder}
            with Memory(":memory:", **parts, settings=settings) as memory:
                rows += asked(person, memory)
    by_kind: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        by_kind[row["kind"]].append(row)
    summary: dict[str, Any] = {
        kind: {what: sum(row[what] for row in some) for what in ("right", "shown", "found")}
        | {"of": len(some)}
        for kind, some in by_kind.items()
    }
    summary["right"] = f"{sum(row['right'] for row in rows)} of {len(rows)}"
    report.write(options.json, summary, rows)


if __name__ == "__main__":
    main()
