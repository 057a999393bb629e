"""`add`, `search`, `graph`, `get`, `list`, `update`, `delete`, `erase`, `history` and `export`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import click

from edgemem.cli import output as ui
from edgemem.cli import typed
from edgemem.errors import StoreError
from edgemem.results import Erased, Hit, MemoryItem, MemoryList, Relation, Scope, local_time

if TYPE_CHECKING:
    from edgemem.memory import Memory

__all__: list[str] = []


def JSON(value: str) -> dict[str, Any]:  # its name is shown in --help
    """The type of an option whose value is a JSON object."""
    example = """give an object such as '{"city": "Oslo"}'."""
    try:
        parsed = json.loads(value)
    except (ValueError, RecursionError) as exc:
        raise click.BadParameter(f"{value!r} is not JSON ({exc}); {example}") from exc
    if not isinstance(parsed, dict):
        raise click.BadParameter(f"{value!r} is JSON, but no object; {example}")
    return parsed


top_k_option = partial(click.option, "--top-k", "-k", type=click.IntRange(1), metavar="N")
id_argument = click.argument("memory_id", metavar="ID")
at_option = click.option("--at", metavar="TIME", help="What held then, ISO-8601.  [default: now]")


@ui.cli.command()
@click.argument("texts", nargs=-1, metavar="[TEXT]...")
@click.option("--no-infer", is_flag=True, help="Store as given: no model, no facts taken.")
@ui.experts_option
@click.option(
    "--image",
    "images",
    multiple=True,
    type=ui.FILE,
    help="A photo or screenshot; TEXT, if given, says what it is.",
)
@click.option("--role", default="user", help="Who says it.")
@click.option("--name", help="The speaker's name.")
@click.option("--timestamp", metavar="TIME", help="When it was said, ISO-8601.  [default: now]")
@click.option("--expires-at", metavar="TIME", help="When it stops to be recalled, ISO-8601.")
@click.option("--metadata", type=JSON, help="A JSON object to store with it.")
@ui.scope_options
@ui.db_and_json_options
def add(
    texts: tuple[str, ...],
    images: tuple[str, ...],
    no_infer: bool,
    experts: str | None,
    role: str,
    name: str | None,
    db: str | None,
    scope: dict[str, Any],
    **given: Any,
) -> None:
    """Remember each TEXT as one message; without TEXT, all of standard input as one.

    A TEXT of - is standard input, too. An image belongs to the last TEXT, or stands alone. Prints
    what changed: id, event, text. A time without a zone is in this machine's own.
    """
    if not texts and not images:
        if ui.stdin_is_terminal():
            raise click.UsageError("Give a TEXT, or pipe one in.")
        texts = ("-",)
    texts = tuple(map(ui.or_stdin, texts))
    speaker = {} if name is None else {"name": name}
    messages = [{"role": role, "content": text, **speaker} for text in texts]
    settings = ui.settings_with(experts=experts) if no_infer else ui.model_settings(experts=experts)
    with ui.open_memory(db, settings, create=True) as memory, ui.working("Remembering …"):
        changes = memory.add(messages, images=images, infer=not no_infer, **scope, **given)
        if images and settings.image_text == "on":
            memory.read_images()  # this process ends before the background thread reads them
    ui.print_result(changes.to_dict(), map(ui.change_line, changes))
    ui.pending_note(changes.pending)


@ui.cli.command()
@click.argument("query", nargs=-1)
@click.option("--image", type=ui.FILE, help="Find images that look like this one, without a QUERY.")
@top_k_option(help="Most memories to show.  [default: setting `top_k`]")
@click.option("--threshold", type=float, help="Leave out lower scores.")
@click.option("--filters", type=JSON, help="""Such as '{"city": {"in": ["Oslo"]}}'.""")
@click.option("--explain", is_flag=True, help="Show the parts that make up each score.")
@at_option
@ui.scope_options
@ui.memory_option
def search(
    query: tuple[str, ...],
    image: str | None,
    top_k: int | None,
    memory: Memory,
    scope: dict[str, Any],
    **given: Any,
) -> None:
    """Find the memories that fit QUERY best.

    Prints id, score, time and text, and with --explain the score's parts.
    """
    top_k = memory.settings.top_k if top_k is None else top_k
    if not query and image is None:
        raise click.UsageError("Give a QUERY, or an --image.")
    asked = " ".join(query) if query else None
    hits = memory.search(asked, image=image, top_k=top_k, **scope, **given)
    ui.print_result(hits.to_dict(), map(_item_line, hits), f"Nothing found for {ui.who(scope)}.")


def _item_line(item: MemoryItem) -> str:
    """Returns a memory as tab-separated id, score (of a hit), time, text, and any score parts."""
    columns = [item.id, ui.when(item), ui.text_of(item)]
    if isinstance(item, Hit):
        columns.insert(1, f"{item.score:.3f}")
        if item.parts is not None:
            columns.append(" ".join(f"{name}={value:.3f}" for name, value in item.parts.items()))
    return "\t".join(columns)


@ui.cli.command()
@click.argument("entity", required=False)
@at_option
@click.option("--all", "include_invalid", is_flag=True, help="Also what is over or yet to come.")
@ui.scope_options
@ui.store_option
def graph(entity: str | None, memory: Memory, scope: dict[str, Any], **given: Any) -> None:
    """Show who is what to whom; with ENTITY, what is told of somebody or something.

    Prints source, relation, target, and since and until when. The user is "User".
    """
    told = memory.relations(entity, **scope, **given)
    if told and not ui.wants_json() and sys.stdout.isatty():
        _draw_relations(told, entity)
        return
    ui.print_result(
        told.to_dict(), map(_relation_line, told), f"Nothing is told of {entity or ui.who(scope)}."
    )


def _relation_line(told: Relation) -> str:
    """Returns a relation as tab-separated source, relation, target, first and last day."""
    ends = [ui.one_line(told.source), told.relationship, ui.one_line(told.destination)]
    return "\t".join([*ends, *_days(told)])


def _days(told: Relation) -> list[str]:
    """Returns the days since and until when a relation is valid; "" for an unknown day."""
    return [local_time(time)[:10] if time else "" for time in (told.valid_from, told.valid_to)]


def _draw_relations(told: Iterable[Relation], entity: str | None) -> None:
    """Draws a tree of relations for each source; with an entity, both directions in its tree."""
    from rich.console import Console
    from rich.text import Text
    from rich.tree import Tree

    trees: dict[str, Tree] = {}
    for each in told:
        ends = ui.one_line(each.source), ui.one_line(each.destination)
        back = entity is not None and ends[1].casefold() == entity.strip().casefold()
        root, leaf = ends[::-1] if back else ends
        line = Text(f"{'← ' if back else ''}{each.relationship} ", "bold").append(leaf, "not bold")
        line.append(f"  {' – '.join(filter(None, _days(each)))}", "dim")
        if each.valid_to is not None:
            line.stylize("dim strike")
        trees.setdefault(root, Tree(Text(root, "bold"))).add(line)
    for tree in trees.values():
        Console().print(tree)


@ui.cli.command()
@id_argument
@click.option("--picture", type=ui.NEW, metavar="FILE", help="Also write its picture to this file.")
@ui.owner_options
@ui.store_option
def get(memory_id: str, memory: Memory, picture: Path | None) -> None:
    """Show one memory, and what was said that it was taken from."""
    if picture == ui.STDOUT and ui.wants_json():
        raise click.UsageError("--picture - and --json would both print; give --picture a FILE.")
    item = ui.existing(memory, memory_id)
    if picture is not None:
        if item.image is None or (image := memory.image(item.image.id)) is None:
            have = """`edgemem list --filters '{"kind": "image"}'` shows those that have."""
            raise StoreError(f"{memory_id} has no picture. {have}")
        if picture == ui.STDOUT:
            click.echo(image.data, nl=False)
            return
        picture.write_bytes(image.data)
    shown = item.to_dict()
    lines = [
        f"{key}\t{value if key == 'memory' else ui.one_line(str(value))}"
        for key, value in shown.items()
        if value not in (None, {}, [])
    ]
    turns = memory.source_turns(memory_id)
    for turn in turns:
        said = f"{ui.minute(turn.timestamp)} {turn.name or turn.role}: {turn.content}"
        lines.append(f"said\t{ui.one_line(said)}")
    shown["said"] = [
        {key: getattr(turn, key) for key in ("id", "role", "name", "content", "timestamp")}
        for turn in turns
    ]
    ui.print_rows([shown], lines)


@ui.cli.command("list")
@click.option("--filters", type=JSON, help="""Such as '{"kind": "fact"}'.""")
@top_k_option(help="Most memories to show.  [default: all]")
@at_option
@ui.scope_options
@ui.store_option
def list_memories(top_k: int | None, memory: Memory, scope: dict[str, Any], **given: Any) -> None:
    """List memories, the first told first: id, time, text."""
    items = MemoryList(tuple(ui.oldest_first(memory.get_all(**scope, **given))[:top_k]))
    fits = " fit these options" if any(value is not None for value in given.values()) else ""
    nothing = f"No memories of {ui.who(scope)}{fits}."
    ui.print_result(items.to_dict(), map(_item_line, items), nothing)


@ui.cli.command()
@id_argument
@click.argument("text")
@click.option("--metadata", type=JSON, help="A JSON object in place of the present one.")
@ui.owner_options
@ui.memory_option
def update(memory_id: str, text: str, metadata: dict[str, Any] | None, memory: Memory) -> None:
    """Replace the text of a memory; its history keeps the old one.

    A TEXT of - is standard input.
    """
    ui.existing(memory, memory_id)
    change = memory.update(memory_id, ui.or_stdin(text), metadata=metadata)
    ui.print_rows([change.to_dict()], [ui.change_line(change)])


@ui.cli.command()
@click.argument("ids", nargs=-1, metavar="[ID]...")
@click.option("--all", "everything", is_flag=True, help="All memories of the user, agent or run.")
@click.option("--yes", "-y", is_flag=True, help="With --all: do not ask.")
@ui.scope_options
@ui.db_and_json_options
def delete(
    ids: tuple[str, ...], everything: bool, yes: bool, scope: dict[str, Any], db: str | None
) -> None:
    """Take memories out of every answer; their history is kept. See also `erase`.

    The facts that were taken from a message alone go with it. Its photo stays, without the words of
    the message. Without its fact a message stays, and still tells what it tells. An ID may be of
    any user, unless --user-id, --agent-id or --run-id says whose it must be.
    """
    if bool(ids) == everything:
        raise click.UsageError("Give either IDs or --all.")
    with ui.open_memory(db) as memory:
        if everything:
            count = len(memory.get_all(**scope))
            if count and not yes:
                question = f"Delete {ui.plural(count, 'memory')} of {ui.who(scope)}?"
                click.confirm(question, abort=True, err=True)
            changes = list(memory.delete_all(**scope))
        else:
            for memory_id in ids:  # first, so that an unknown id leaves all in place
                ui.existing(memory, memory_id)
            # A turn takes its facts along, which may have been given too.
            changes = [memory.delete(id) for id in dict.fromkeys(ids) if memory.get(id)]
            facts = memory.store.get(
                [change.id for change in changes if change.kind == "fact"], include_deleted=True
            )
            sources = {source for fact in facts.values() for source in fact.sources}
            telling = memory.store.standing_turns(sorted(sources))
            if telling:
                ui.note(
                    "What was said stays, and may still answer "
                    f"({ui.plural(len(telling), 'message')}); `edgemem erase` would remove it with "
                    "the fact."
                )
    rows = [change.to_dict() for change in changes]
    ui.print_rows(rows, map(ui.change_line, changes), f"No memories of {ui.who(scope)}.")


@ui.cli.command()
@click.argument("ids", nargs=-1, metavar="[ID]...")
@click.option("--all", "everything", is_flag=True, help="All of the user, agent or run.")
@click.option("--matching", metavar="WORDS", help="All with these words, or said by one so called.")
@ui.yes_option
@ui.scope_options
@ui.db_and_json_options
def erase(
    ids: tuple[str, ...],
    everything: bool,
    matching: str | None,
    yes: bool,
    scope: dict[str, Any],
    db: str | None,
) -> None:
    """Remove memories for good, with all that came from the same words.

    What was said, every memory taken from it, and their history are wiped from the files; with it
    goes what a chat asked and answered. --all and --matching also take what was deleted or has
    expired; --matching takes all that somebody of that name said. An ID may be of any user, unless
    --user-id, --agent-id or --run-id says whose it must be. Prints the ids that went; `--json` also
    the receipt, which `edgemem doctor --erased --receipt FILE` takes.
    """
    if [bool(ids), everything, matching is not None].count(True) != 1:
        raise click.UsageError("Give either IDs, --matching or --all.")
    with ui.open_memory(db, loads=False) as memory:
        if everything:
            if not yes:
                question = f"Erase all that was ever said and remembered of {ui.who(scope)}?"
                click.confirm(question, abort=True, err=True)
            said = [turn.content for turn in memory.store.recent_turns(Scope(**scope), limit=None)]
        else:
            if matching is not None and not (ids := tuple(ui.matching(memory, matching, scope))):
                went = typed.forget_words(matching, Scope(**scope))
                also = f" {ui.plural(went, 'typed line')} had, and went." if went else ""
                nothing = f"No memory of {ui.who(scope)} has the words {matching!r}.{also}"
                ui.print_result(Erased().to_dict(), remark=nothing)
                return
            said = ui.erase_preview(memory, ids, shown=not yes)
            if not yes:
                click.confirm("Erase it?", abort=True, err=True)
        typed.forget_typed(said, Scope(**scope) if everything else None)
        typed.forget_words(matching, Scope(**scope))
        with ui.erasing(memory):
            gone = memory.erase_all(**scope) if everything else memory.erase(ids)
    none = f"{ui.plural(len(said), 'turn')} erased; no" if said else "No"
    ui.print_result(gone.to_dict(), gone, f"{none} memories of {ui.who(scope)}.")


@ui.cli.command()
@id_argument
@ui.owner_options
@ui.store_option
def history(memory_id: str, memory: Memory) -> None:
    """Show what became of a memory, oldest first: time, event, old and new text."""
    ui.existing(memory, memory_id, deleted=True)
    rows = memory.history(memory_id)
    lines = []
    for row in rows:
        changed_at = row["updated_at"] or row["created_at"]  # an import may have neither
        time = ui.minute(changed_at) if changed_at else ""
        old, new = row["old_memory"] or "", row["new_memory"] or ""
        lines.append("\t".join([time, row["event"], ui.one_line(old), ui.one_line(new)]))
    ui.print_rows(rows, lines)


# -- files -----------------------------------------------------------------------------------------


@ui.cli.command()
@click.argument("file", type=ui.NEW, default="-")
@click.option(
    "--format", "shape", type=click.Choice(["edgemem", "pgvector"]), default="edgemem",
    help="edgemem: JSON Lines; pgvector: SQL that psql loads into PostgreSQL.",
)  # fmt: skip
@click.option("--user-id", metavar="ID", help="Only what is of this user.  [default: everything]")
@click.option("--sealed", is_flag=True, help="Encrypt each line with the vault's key.")
@ui.store_option
def export(file: Path, shape: str, user_id: str | None, sealed: bool, memory: Memory) -> None:
    """Write what is remembered to FILE as JSON Lines (default: standard output).

    Turns, memories, deleted ones too, history, relations, images, marks of what may never be sent,
    and pending work; `edgemem import` reads it back. Receipts of cloud calls and of erasures stay
    here. As SQL: memories that are not deleted, their vectors and relations, for a shared database;
    loaded again, it replaces what this store gave before.
    """
    if (sealed or user_id is not None) and shape != "edgemem":
        raise click.UsageError("--sealed and --user-id are for JSON Lines, not for SQL.")
    if memory.store.vault is not None and not sealed:
        ui.note("The store is encrypted and this export is not; --sealed encrypts it.")

    def write(to: Path | TextIO) -> int:
        if shape == "pgvector":
            from edgemem.pipeline import upkeep

            return upkeep.export_pgvector(memory.store, to)
        return memory.export_jsonl(to, user_id=user_id, sealed=sealed)

    if file == ui.STDOUT:
        write(sys.stdout)
        return
    with ui.working("Exporting …"):
        count = write(file)
    remark = f"{ui.plural(count, 'row')} written to {file}."
    ui.print_rows([{"file": str(file), "rows": count}], remark=remark)
