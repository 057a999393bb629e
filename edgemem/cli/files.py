"""`export` and `import`.

Knows files, progress and what was imported before; `importers` knows the shapes of the files and
`Memory` stores what is in them.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edgemem import importers
from edgemem.cli.output import (
    db_option,
    experts_option,
    json_option,
    licence_note,
    note,
    open_memory,
    pending_note,
    plural,
    print_json,
    progress,
    scope_kwargs,
    scope_options,
    settings_with,
    working,
)
from edgemem.errors import InputError, StoreLocked

if TYPE_CHECKING:
    from edgemem.memory import Memory

__all__ = ["export", "import_files"]

IMPORT_ID = "import_id"
"""The key of a turn's metadata that tells a second import that it is there already."""


@click.command()
@click.argument("file", type=click.Path(dir_okay=False, allow_dash=True), default="-")
@db_option
@json_option
def export(file: str, db: str | None, as_json: bool) -> None:
    """Write everything in the store to FILE as JSON Lines (default: standard output).

    Turns, memories, deleted ones too, history and pending work; `edgemem import` reads it back.
    """
    with open_memory(db) as memory:
        if file == "-":
            memory.export_jsonl(sys.stdout)
            return
        with working("Exporting …"):
            count = memory.export_jsonl(Path(file))
    if as_json:
        print_json({"results": [{"file": file, "rows": count}]})
    else:
        note(f"{plural(count, 'row')} written to {file}.")


@click.command("import")
@click.argument(
    "paths",
    nargs=-1,
    required=True,
    type=click.Path(exists=True, dir_okay=False),
    metavar="FILE...",
)
@click.option(
    "--format",
    "shape",
    type=click.Choice(["auto", "edgemem", "locomo", "chat"]),
    default="auto",
    show_default=True,
    help="edgemem: an export; locomo: LoCoMo's JSON; chat: a plain chat log.",
)
@click.option("--no-infer", is_flag=True, help="Store turns as they are: no model, no facts taken.")
@experts_option
@scope_options
@db_option
@json_option
def import_files(
    paths: tuple[str, ...],
    shape: str,
    no_infer: bool,
    experts: str | None,
    user_id: str | None,
    agent_id: str | None,
    run_id: str | None,
    db: str | None,
    as_json: bool,
) -> None:
    """Read conversations, or an export, into the store.

    Chat logs have lines such as `[2024-05-01 10:00] Name: text`, `Name: text`, or WhatsApp's. An
    import that was stopped may be run again: what is there already is passed over.
    """
    settings = settings_with(experts=experts)
    if not no_infer:
        licence_note(settings)
    scope = scope_kwargs(settings, user_id, agent_id, run_id)
    shapes = [importers.detect_format(path) if shape == "auto" else shape for path in paths]
    if "edgemem" in shapes and (no_infer or (user_id, agent_id, run_id) != (None, None, None)):
        raise click.UsageError(
            f"{paths[shapes.index('edgemem')]} is an export, which keeps its own users, agents and "
            "runs and is stored as it is. Leave out --user-id, --agent-id, --run-id and --no-infer."
        )
    rows = []
    with open_memory(db, settings) as memory:
        for path, found in zip(paths, shapes, strict=True):
            if found == "edgemem":
                row = _import_export(memory, path)
            else:
                row = _import_turns(memory, path, found, scope, infer=not no_infer)
            rows.append({"file": path, "format": found, **row})
            skipped = f", {row['skipped']} were there already" if row["skipped"] else ""
            unit = "row" if found == "edgemem" else "turn"
            note(f"{path}: {plural(row['imported'], unit)} imported{skipped}.")
            pending_note(row["pending"])
    if as_json:
        print_json({"results": rows})


def _import_export(memory: Memory, path: str) -> dict[str, int]:
    with open(path, "rb") as file:
        total = sum(1 for line in file if line.strip())
    with progress("Importing", total) as advance:
        try:
            new = memory.import_jsonl(path, on_progress=advance)
        except InputError as exc:
            raise InputError(f"{path}: {exc}") from exc
    return {"imported": new, "skipped": total - new, "memories": 0, "pending": 0}


def _import_turns(
    memory: Memory, path: str, shape: str, scope: Mapping[str, Any], *, infer: bool
) -> dict[str, int]:
    if shape == "locomo":
        conversations = [(s.sample_id, s.messages) for s in importers.locomo_samples(path)]
    else:
        log = importers.read_chat_log(path)
        # Logs without times may begin alike ("hi"), so only the whole file tells them apart.
        seed = "" if log.dated else "\n".join(m["content"] for m in log.messages)
        conversations = [(seed, log.messages)]
        if log.left_out:
            note(f"{path}: {plural(log.left_out, 'line')} left out: notices, media, or no speaker.")
    known = _imported(memory, scope)
    wanted: list[list[dict[str, Any]]] = []
    done = 0
    for seed, messages in conversations:
        ids = importers.import_ids(messages, seed=seed)
        done += sum(import_id in known for import_id in ids)
        marked = [
            {**message, "metadata": {**message.get("metadata", {}), IMPORT_ID: import_id}}
            for message, import_id in zip(messages, ids, strict=True)
        ]
        # Pairs are formed before those that are there are left out, so they stay the same pairs.
        for batch in importers.batches(marked, infer=infer):
            left = [message for message in batch if message["metadata"][IMPORT_ID] not in known]
            if left:
                wanted.append(left)
    row = {"imported": 0, "skipped": done, "memories": 0, "pending": 0}
    with progress("Importing", sum(map(len, wanted))) as advance:
        try:
            for batch in wanted:
                changes = memory.add(batch, infer=infer, **scope)
                row["imported"] += len(batch)
                row["memories"] += sum(change.event == "ADD" for change in changes)
                advance(row["imported"])
        except KeyboardInterrupt:
            note(
                f"Stopped after {plural(row['imported'], 'turn')}; the same command goes on there."
            )
            raise
    if infer and done and memory.pending():  # an import that was stopped may have left a pair
        with suppress(StoreLocked):
            row["memories"] += sum(c.event == "ADD" for c in memory.process_pending())
    row["pending"] = len(memory.pending()) if infer else 0
    return row


def _imported(memory: Memory, scope: Mapping[str, Any]) -> set[str]:
    """The import ids of the turns in exactly this scope, those of deleted memories among them."""
    known: set[str] = set()
    for row in memory.store.export_rows():
        if row["type"] != "turn":  # turns come first
            break
        if all(row[key] == value for key, value in scope.items()):
            known.add(row["metadata"].get(IMPORT_ID))
    return known
