"""`add`, `search`, `get`, `list`, `update`, `delete`, `erase`, `history`.

Knows how their options become calls of `Memory`, and nothing of what those do.
"""

from __future__ import annotations

from typing import Any

import click

from edgemem.cli.output import (
    db_option,
    erase_preview,
    experts_option,
    json_object,
    json_option,
    licence_note,
    no_memory,
    note,
    one_line,
    open_memory,
    pending_note,
    plural,
    print_changes,
    print_item,
    print_json,
    read_stdin,
    scope_kwargs,
    scope_options,
    settings_with,
    show_preview,
    stdin_is_terminal,
    who,
    working,
)
from edgemem.cli.typed import forget_typed

__all__ = ["add", "delete", "erase", "get", "history", "list_memories", "search", "update"]


@click.command()
@click.argument("texts", nargs=-1, metavar="[TEXT]...")
@click.option("--no-infer", is_flag=True, help="Store as given: no model, no facts taken.")
@experts_option
@click.option("--role", default="user", show_default=True, help="Who says it.")
@click.option("--name", help="The speaker's name.")
@click.option("--timestamp", metavar="TIME", help="When it was said, ISO-8601.  [default: now]")
@click.option("--expires-at", metavar="TIME", help="When it stops to be recalled, ISO-8601.")
@click.option(
    "--metadata", metavar="JSON", callback=json_object, help="A JSON object to store with it."
)
@scope_options
@db_option
@json_option
def add(
    texts: tuple[str, ...],
    no_infer: bool,
    experts: str | None,
    role: str,
    name: str | None,
    timestamp: str | None,
    expires_at: str | None,
    metadata: dict[str, Any] | None,
    user_id: str | None,
    agent_id: str | None,
    run_id: str | None,
    db: str | None,
    as_json: bool,
) -> None:
    """Remember each TEXT as one message; without TEXT, all of standard input as one.

    Prints what changed: id, event, text. A time without a zone is in this machine's own.
    """
    if not texts:
        if stdin_is_terminal():
            raise click.UsageError("Give a TEXT, or pipe one in.")
        texts = (read_stdin().rstrip("\r\n"),)
    speaker = {} if name is None else {"name": name}
    messages = [{"role": role, "content": text, **speaker} for text in texts]
    settings = settings_with(experts=experts)
    if not no_infer:
        licence_note(settings)
    with open_memory(db, settings) as memory, working("Remembering …"):
        changes = memory.add(
            messages,
            metadata=metadata,
            timestamp=timestamp,
            expires_at=expires_at,
            infer=not no_infer,
            **scope_kwargs(settings, user_id, agent_id, run_id),
        )
    if as_json:
        print_json(changes.to_dict())
    else:
        print_changes(changes)
    pending_note(changes.pending)


@click.command()
@click.argument("query", nargs=-1, required=True)
@click.option("--top-k", "-k", type=int, help="Most memories to show.  [default: setting `top_k`]")
@click.option("--threshold", type=float, help="Leave out lower scores.")
@click.option(
    "--filters",
    metavar="JSON",
    callback=json_object,
    help="""Such as '{"city": {"in": ["Oslo"]}}'.""",
)
@click.option("--explain", is_flag=True, help="Show the parts that make up each score.")
@scope_options
@db_option
@json_option
def search(
    query: tuple[str, ...],
    top_k: int | None,
    threshold: float | None,
    filters: dict[str, Any] | None,
    explain: bool,
    user_id: str | None,
    agent_id: str | None,
    run_id: str | None,
    db: str | None,
    as_json: bool,
) -> None:
    """Find the memories that fit QUERY best.

    Prints id, score, time (UTC) and text, and with --explain the score's parts.
    """
    settings = settings_with()
    scope = scope_kwargs(settings, user_id, agent_id, run_id)
    with open_memory(db, settings) as memory:
        hits = memory.search(
            " ".join(query),
            filters=filters,
            top_k=settings.top_k if top_k is None else top_k,
            threshold=threshold,
            explain=explain,
            **scope,
        )
    if as_json:
        print_json(hits.to_dict())
        return
    for hit in hits:
        print_item(hit)
    if not hits:
        note(f"Nothing found for {who(scope)}.")


@click.command()
@click.argument("memory_id", metavar="ID")
@db_option
@json_option
def get(memory_id: str, db: str | None, as_json: bool) -> None:
    """Show one memory, and what was said that it was taken from."""
    with open_memory(db) as memory:
        item = memory.get(memory_id)
        if item is None:
            raise no_memory(memory_id)
        turns = [] if as_json else memory.source_turns(memory_id)
    if as_json:
        print_json({"results": [item.to_dict()]})
        return
    for key, value in item.to_dict().items():
        if value not in (None, {}, []):
            click.echo(f"{key}\t{value if key == 'memory' else one_line(str(value))}")
    for turn in turns:
        said = f"{turn.timestamp[:16].replace('T', ' ')} {turn.name or turn.role}: {turn.content}"
        click.echo(f"said\t{one_line(said)}")


@click.command("list")
@click.option(
    "--filters", metavar="JSON", callback=json_object, help="""Such as '{"kind": "fact"}'."""
)
@click.option("--top-k", "-k", type=int, help="Most memories to show.  [default: all]")
@scope_options
@db_option
@json_option
def list_memories(
    filters: dict[str, Any] | None,
    top_k: int | None,
    user_id: str | None,
    agent_id: str | None,
    run_id: str | None,
    db: str | None,
    as_json: bool,
) -> None:
    """List memories, oldest first: id, time (UTC), text."""
    settings = settings_with()
    scope = scope_kwargs(settings, user_id, agent_id, run_id)
    with open_memory(db, settings) as memory:
        items = memory.get_all(filters=filters, top_k=top_k, **scope)
    if as_json:
        print_json(items.to_dict())
        return
    for item in items:
        print_item(item)
    if not items:
        note(f"No memories of {who(scope)}.")


@click.command()
@click.argument("memory_id", metavar="ID")
@click.argument("text")
@click.option(
    "--metadata",
    metavar="JSON",
    callback=json_object,
    help="A JSON object in place of the present one.",
)
@db_option
@json_option
def update(
    memory_id: str, text: str, metadata: dict[str, Any] | None, db: str | None, as_json: bool
) -> None:
    """Replace the text of a memory; its history keeps the old one."""
    with open_memory(db) as memory:
        change = memory.update(memory_id, text, metadata=metadata)
    if as_json:
        print_json({"results": [change.to_dict()]})
    else:
        print_changes([change])


@click.command()
@click.argument("ids", nargs=-1, metavar="[ID]...")
@click.option("--all", "everything", is_flag=True, help="All memories of the user, agent or run.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@scope_options
@db_option
@json_option
def delete(
    ids: tuple[str, ...],
    everything: bool,
    yes: bool,
    user_id: str | None,
    agent_id: str | None,
    run_id: str | None,
    db: str | None,
    as_json: bool,
) -> None:
    """Take memories out of every answer; their history is kept. See also `erase`."""
    if bool(ids) == everything:
        raise click.UsageError("Give either IDs or --all.")
    settings = settings_with()
    with open_memory(db, settings) as memory:
        if everything:
            scope = scope_kwargs(settings, user_id, agent_id, run_id)
            count = len(memory.get_all(**scope))
            if count and not yes:
                question = f"Delete {plural(count, 'memory')} of {who(scope)}?"
                click.confirm(question, abort=True, err=True)
            changes = list(memory.delete_all(**scope))
        else:
            for memory_id in ids:  # all or none, as far as a wrong id goes
                if memory.get(memory_id) is None:
                    raise no_memory(memory_id)
            changes = [memory.delete(memory_id) for memory_id in dict.fromkeys(ids)]
    if as_json:
        print_json({"results": [change.to_dict() for change in changes]})
    else:
        print_changes(changes)


@click.command()
@click.argument("ids", nargs=-1, required=True, metavar="ID...")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@db_option
@json_option
def erase(ids: tuple[str, ...], yes: bool, db: str | None, as_json: bool) -> None:
    """Remove memories for good, with all that came from the same words.

    What was said, every memory taken from it, and their history are wiped from the files; with it
    goes what a chat asked and answered. Prints the ids that went.
    """
    with open_memory(db) as memory:
        items, turns = erase_preview(memory, ids)
        if not yes:
            show_preview(items, turns)
            click.confirm("Erase it?", abort=True, err=True)
        forget_typed([turn.content for turn in turns])
        with working("Erasing …"):
            gone = memory.erase(list(ids))
    if as_json:
        print_json({"results": [{"id": memory_id, "event": "ERASE"} for memory_id in gone]})
        return
    for memory_id in gone:
        click.echo(memory_id)


@click.command()
@click.argument("memory_id", metavar="ID")
@db_option
@json_option
def history(memory_id: str, db: str | None, as_json: bool) -> None:
    """Show what became of a memory, oldest first: time, event, old and new text."""
    with open_memory(db) as memory:
        rows = memory.history(memory_id)
    if not rows:
        raise no_memory(memory_id)
    if as_json:
        print_json({"results": rows})
        return
    for row in rows:
        time = (row["updated_at"] or row["created_at"] or "")[:19].replace("T", " ")
        old, new = row["old_memory"] or "", row["new_memory"] or ""
        click.echo("\t".join([time, row["event"], one_line(old), one_line(new)]))
