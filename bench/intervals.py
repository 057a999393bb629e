"""How long ago, how long between, which first: are questions that compare days answered rightly?

    python -m bench.intervals FILE... --json OUT [--model NAME]

A file has invented diaries: "# NAME", then "@ DAY TIME" before what is said or asked at that time.
A question is "? KIND: QUESTION | ANSWER / ANOTHER WORDING"; "-" stands for a refusal. Its kinds are
ago, between, first, until, and trap: what looks alike and asks for something else, or was never
told. Messages are stored as they are (`infer=False`), and `Chat` is asked. An answer is right if it
has the words of one of the wordings before what stands below it. Held-out files
(bench/intervals/held-out.txt) are for figures: nothing is changed because of what they show.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench import report
from edgemem.chat import Chat
from edgemem.config import load_settings
from edgemem.language import words
from edgemem.memory import Memory
from edgemem.runtime import experts
from edgemem.runtime.embedder import Embedder
from edgemem.runtime.engine import Engine
from edgemem.stages.generation import NOTHING_FOUND

USER = "me"


def is_right(answer: str, wanted: Sequence[str]) -> bool:
    answer = answer.partition("\n\n")[0]
    if "-" in wanted:
        return answer == NOTHING_FOUND
    said = f" {' '.join(words(answer))} "
    return any(f" {' '.join(words(each))} " in said for each in wanted)


def answered(diary: str, memory: Memory) -> Iterator[dict[str, Any]]:
    """A row for each question of a diary, which begins with its name."""
    name, *lines = diary.splitlines()
    now = ""
    for line in filter(None, map(str.strip, lines)):
        if line.startswith("@"):
            now = line[1:].strip().replace(" ", "T") + ":00+00:00"
        elif line.startswith("?"):
            asked, _, wordings = line[1:].rpartition("|")
            kind, _, question = (part.strip() for part in asked.partition(":"))
            wanted = [wording.strip() for wording in wordings.split(" / ")]
            reply = Chat(memory, user_id=USER).send(question, timestamp=now, remember=False)
            answer = "".join(reply)
            yield {
                "diary": name.strip(),
                "kind": kind,
                "question": question,
                "wanted": wanted,
                "answer": answer,
                "right": is_right(answer, wanted),
            }
        else:
            memory.add(line, user_id=USER, infer=False, timestamp=now)


def main(argv: Sequence[str] | None = None) -> None:
    parser = report.parser("intervals", __doc__)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="diaries")
    parser.add_argument("--model", help="name or file (default: setting `model`)")
    options = parser.parse_args(argv)
    settings = load_settings()
    settings = replace(settings, model=options.model or settings.model)
    embedder = Embedder.load(settings.embedder, n_threads=settings.n_threads)
    diaries = [part for file in options.files for part in file.read_text("utf-8").split("# ")[1:]]
    rows: list[dict[str, Any]] = []
    with Engine.load(settings.model, n_ctx=settings.n_ctx) as engine:
        experts.load_chosen(engine, settings.experts)
        for diary in report.track(diaries, "asking questions"):
            parts = {"engine": engine, "embedder": embedder}
            with Memory(":memory:", **parts, settings=settings) as memory:
                rows += answered(diary, memory)
    by_kind: dict[str, list[bool]] = defaultdict(list)
    for row in rows:
        by_kind[row["kind"]].append(row["right"])
    summary = {kind: f"{sum(some)} of {len(some)}" for kind, some in by_kind.items()}
    summary["right"] = f"{sum(row['right'] for row in rows)} of {len(rows)}"
    report.write(options.json, summary, rows)


if __name__ == "__main__":
    main()
