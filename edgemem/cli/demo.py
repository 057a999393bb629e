"""`demo`: stores a conversation, then answers questions about it in a new process."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edgemem.cli import output as ui
from edgemem.cli.admin import tune_first
from edgemem.pipeline.importers import Demo, read_demo

if TYPE_CHECKING:
    from rich.console import Console

    from edgemem.config import Settings
    from edgemem.results import AddResults

__all__ = ["answer_questions", "is_right", "play"]

_SIGNS = {
    "ADD": ("+", "green", "added"),
    "UPDATE": ("~", "yellow", "changed"),
    "DELETE": ("-", "red", "dropped"),
    "NONE": ("=", "dim", "known already"),
}

conversation_option = click.option(
    "--conversation",
    type=ui.FILE,
    default=str(Path(__file__).parent.parent / "data" / "demo.json"),
    show_default=False,
    metavar="FILE",
    help="Play another conversation, in the format of edgemem/data/demo.json.",
)


@ui.cli.command()
@conversation_option
@click.option("--db", metavar="FILE", help="Keep the store in this new file.  [default: discard]")
@ui.experts_option
@ui.json_option
def demo(conversation: str, db: str | None, experts: str | None) -> None:
    """Play a conversation of several weeks, then answer questions about it from a new process.

    Shows what was taken from each pair of messages, which memories were added, changed or
    dropped, and with the answers the memories used and the time taken. Right is an answer that
    contains an expected one, apart from case and punctuation.
    """
    from rich.console import Console

    from edgemem.runtime.machine import peak_rss_mb

    if db is not None and (db == ":memory:" or Path(db).exists()):
        raise click.UsageError(
            f"{db} is not a new file. Give --db one that does not exist yet: invented memories "
            "must not mix with yours, and a second process reads it."
        )
    console = Console(stderr=ui.wants_json(), highlight=False, soft_wrap=True)
    settings = ui.model_settings(experts=experts)
    tune_first(settings)
    started = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="edgemem-demo-") as folder:
        store = db or os.path.join(folder, "demo.db")
        play(read_demo(conversation), store, console, settings)
        rows, child_rss = answer_questions(conversation, store, console, experts)
    seconds = time.perf_counter() - started
    peaks = [peak for peak in (peak_rss_mb(), child_rss) if peak is not None]
    right = sum(row["right"] for row in rows)
    summary = {
        "right": right,
        "of": len(rows),
        "seconds": round(seconds, 1),
        "peak_rss_mb": round(max(peaks)) if peaks else None,
    }
    memory_used = f" · peak RSS {summary['peak_rss_mb']} MB" if peaks else ""
    console.print(f"\n[bold]{right} of {len(rows)} answers right[/] · {seconds:.0f} s{memory_used}")
    if ui.wants_json():
        ui.print_json({"summary": summary, "rows": rows})


# -- playing -------------------------------------------------------------------------------------


def play(script: Demo, store: str, console: Console, settings: Settings | None = None) -> None:
    """Passes every session to `Memory.add`, two messages at a time, and shows the changes."""
    pairs = sum((len(session.messages) + 1) // 2 for session in script.sessions)
    done = 0
    with ui.open_memory(store, settings, create=True) as memory:
        with console.status("Loading the models …"):
            memory.engine  # noqa: B018  # loads it
        for number, session in enumerate(script.sessions, 1):
            console.rule(f"session {number} of {len(script.sessions)} · {session.date[:10]}")
            for start in range(0, len(session.messages), 2):
                pair = session.messages[start : start + 2]
                done += 1
                for message in pair:
                    _say(console, message.get("name") or message["role"], message["content"])
                with console.status(f"Remembering (pair {done} of {pairs}) …"):
                    changes = memory.add(pair, user_id=script.user_id)
                _show_changes(console, changes)


def _say(console: Console, speaker: str, text: str) -> None:
    from rich.text import Text

    console.print(Text.assemble((f"{ui.one_line(speaker)}: ", "bold"), ui.one_line(text)))


def _show_changes(console: Console, changes: AddResults) -> None:
    from rich.text import Text

    facts = [change for change in changes if change.kind == "fact"]
    for change in facts:
        sign, colour, what = _SIGNS[change.event]
        line = Text(f"    {sign} {ui.one_line(change.memory)}", style=colour)
        if change.event == "UPDATE" and change.previous_memory:
            line.append(f"  (was: {ui.one_line(change.previous_memory)})", style="dim")
        line.append(f"  [{what}, by {change.by}]", style="dim")
        console.print(line)
    if not facts:
        console.print(Text("    no facts", style="dim"))
    if changes.pending:
        console.print(Text(f"    {changes.pending} left for later", style="dim"))


# -- asking --------------------------------------------------------------------------------------


def answer_questions(
    conversation: str, store: str, console: Console, experts: str | None = None
) -> tuple[list[dict[str, Any]], float | None]:
    """Asks every question in a new process on the same file.

    Returns a row for each question, and the process's peak RSS in MB (None if unknown).
    """
    console.rule("a new process opens the same file and answers")
    command = [sys.executable, "-m", "edgemem", "demo-answer", "--db", store]
    command += ["--conversation", conversation]
    command += [] if experts is None else ["--experts", experts]
    rows: list[dict[str, Any]] = []
    peak = None
    with (
        console.status("Answering …"),
        subprocess.Popen(command, stdout=subprocess.PIPE, encoding="utf-8") as process,
    ):
        assert process.stdout is not None
        for line in process.stdout:
            row = json.loads(line)
            if "question" in row:
                rows.append(row)
                _show_answer(console, row)
            else:
                peak = row["peak_rss_mb"]
    if process.returncode:
        raise click.ClickException(
            f"The process that answers ended with code {process.returncode}; what it said is above."
        )
    recall = sum(row["timings"]["recall_ms"] for row in rows) / len(rows)
    total = sum(row["seconds"] for row in rows)
    console.print(
        f"\n{len(rows)} questions in {total:.1f} s · recall {recall:.0f} ms on average", style="dim"
    )
    return rows, peak


def _show_answer(console: Console, row: dict[str, Any]) -> None:
    from rich.text import Text

    _say(console, "question", row["question"])
    mark, colour = ("✓", "green") if row["right"] else ("✗", "red")
    answer = Text.assemble(("answer: ", "bold"), ui.one_line(row["answer"]), (f"  {mark}", colour))
    if not row["right"]:
        answer.append(f" expected: {' / '.join(row['expected'])}", style="dim")
    console.print(answer)
    for used in row["memories"]:
        line = f"    {used['date']}  {used['score']:.2f}  {used['kind']}: {used['memory']}"
        console.print(Text(line, style="cyan"))
    if not row["memories"]:
        console.print(Text("    no memory used", style="dim"))
    console.print(Text(f"    {_timings(row['timings'])} · {row['seconds']:.1f} s", style="dim"))


def _timings(timings: dict[str, float]) -> str:
    shown = [f"recall {timings['recall_ms']:.0f} ms"]
    if "ttft_s" in timings:
        shown.append(f"first token {timings['ttft_s']:.2f} s")
    if "tokens_per_s" in timings:
        shown.append(f"{timings['tokens_per_s']:.0f} tokens/s")
    return " · ".join(shown)


@ui.cli.command("demo-answer", hidden=True)
@conversation_option
@ui.db_option
@ui.experts_option
def demo_answer(conversation: str, db: str | None, experts: str | None) -> None:
    """Answer a conversation's questions from a store; one line of JSON each, then the peak RSS."""
    from edgemem.chat import Chat
    from edgemem.runtime.machine import peak_rss_mb

    script = read_demo(conversation)
    with ui.open_memory(db, ui.settings_with(experts=experts)) as memory:
        for question in script.questions:
            started = time.perf_counter()
            # A new chat for each question: only the stored sessions may answer it.
            chat = Chat(memory, user_id=script.user_id)
            reply = chat.send(question["question"], timestamp=script.questions_date, remember=False)
            for _ in reply:
                pass
            row = {
                "question": question["question"],
                "answer": reply.text,
                "expected": question["answers"],
                "right": is_right(reply.text, question["answers"]),
                "found": reply.found,
                "memories": [
                    {
                        "id": hit.id,
                        "date": ui.when(hit)[:10],
                        "score": round(hit.score, 4),
                        "kind": hit.kind,
                        "memory": ui.one_line(hit.memory),
                    }
                    for hit in reply.context
                ],
                "timings": {key: round(value, 3) for key, value in reply.timings.items()},
                "seconds": round(time.perf_counter() - started, 3),
            }
            click.echo(json.dumps(row))
    click.echo(json.dumps({"peak_rss_mb": peak_rss_mb()}))


# -- scoring -------------------------------------------------------------------------------------


def is_right(answer: str, expected: list[str]) -> bool:
    """Whether an answer contains one of the expected answers, as whole words."""
    given = f" {_normalised(answer)} "
    return any(f" {_normalised(text)} " in given for text in expected)


def _normalised(text: str) -> str:
    """Returns a text in lower case, with punctuation and runs of spaces as one space."""
    return " ".join(re.sub(r"[\W_]+", " ", text.casefold()).split())
