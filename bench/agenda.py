"""Which notes does a question for some days list? Six invented diaries (bench/agenda.txt).

    python -m bench.agenda --json OUT

A diary's notes are stored as they are (`infer=False`), each at its time. A question is asked at its
place between them, and names the notes that a fair reader would list. "taken": the share of the
questions that are known to ask for days. Of these "recall" and "precision" are of all notes that
are listed and wanted, "right" the share whose lists are as wanted. No language model.

    # nurse
    @ 2027-03-01 08:10
    1: Dentist on Thursday at half past eight.
    ? what do i have on thursday | 1
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench import report
from edgemem.memory import Memory
from edgemem.pipeline.days import agenda, days_asked
from edgemem.pipeline.plan import TOLD_TURNS
from edgemem.results import Scope

FILE = Path(__file__).with_suffix(".txt")


def answers(diary: str) -> list[tuple[str, set[str] | None, set[str]]]:
    """Each question, the numbers of the notes that it lists (None: it asks for no days) and of
    those wanted."""
    found: list[tuple[str, set[str] | None, set[str]]] = []
    numbers: dict[str, str] = {}
    now = ""
    with Memory(":memory:") as memory:
        for line in map(str.strip, diary.splitlines()[1:]):
            if line.startswith("@"):
                now = line[1:].strip().replace(" ", "T") + ":00+00:00"
            elif line.startswith("?"):
                question, _, wanted = (part.strip() for part in line[1:].partition("|"))
                asked = days_asked(question, now)
                shown = asked and agenda(memory, Scope(user_id="me"), asked, now, most=TOLD_TURNS)
                listed = shown and {numbers[e.source.id] for e in shown if e.source}
                found.append(
                    (question, set(listed or ()) if asked else None, set(wanted.split()) - {"-"})
                )
            elif line:
                number, _, text = line.partition(":")
                added = memory.add(text.strip(), user_id="me", infer=False, timestamp=now)
                numbers[added[0].id] = number
    return found


def row(diary: str) -> dict[str, Any]:
    """The figures of one diary, which begins with its name."""
    found = answers(diary)
    taken = [(listed, wanted) for _, listed, wanted in found if listed is not None]
    both = sum(len(listed & wanted) for listed, wanted in taken)
    return {
        "diary": diary.partition("\n")[0].strip(),
        "questions": len(found),
        "taken": len(taken),
        "right": sum(listed == wanted for listed, wanted in taken),
        "listed": sum(len(listed) for listed, _ in taken),
        "wanted": sum(len(wanted) for _, wanted in taken),
        "both": both,
    }


def main(argv: Sequence[str] | None = None) -> None:
    options = report.parser("agenda", __doc__).parse_args(argv)
    rows = [row(part) for part in FILE.read_text(encoding="utf-8").split("# ")[1:]]
    total = {key: sum(r[key] for r in rows) for key in rows[0] if key != "diary"}
    summary = {
        "questions": total["questions"],
        "taken": round(total["taken"] / total["questions"], 3),
        "right": round(total["right"] / total["taken"], 3),
        "recall": round(total["both"] / total["wanted"], 3),
        "precision": round(total["both"] / total["listed"], 3),
    }
    report.write(options.json, summary, rows)


if __name__ == "__main__":
    main()
