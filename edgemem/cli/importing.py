"""`import`."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import click

from edgemem.cli import output as ui
from edgemem.config import load_settings
from edgemem.errors import EdgememError, InputError, StoreFull, StoreLocked
from edgemem.pipeline import importers
from edgemem.pipeline.chat_exports import ChatLog
from edgemem.pipeline.importers import IMPORT_ID
from edgemem.results import Scope, to_utc

if TYPE_CHECKING:
    from edgemem.memory import Memory
    from edgemem.pipeline.reimport import Found, Said

__all__: list[str] = []

_MOST_NAMED = 3  # users, people or files that are named after an import


@ui.cli.command("import")
@click.argument(
    "paths",
    nargs=-1,
    required=True,
    type=click.Path(exists=True, allow_dash=True),
    metavar="FILE...",
)
@click.option(
    "--format",
    "shape",
    type=click.Choice(["auto", *get_args(importers.Format)]),
    default="auto",
    help="edgemem: an export; chat: a plain chat log; memories: mem0's or Chroma's folder, or "
    "lines of JSON; the others: their JSON.",
)
@click.option("--no-infer", is_flag=True, help="Store turns as they are: no model, no facts taken.")
@click.option("--me", metavar="NAME", help="Who of the people in the conversations you are.")
@click.option(
    "--again",
    is_flag=True,
    help="Bring back what you erased, and store anew what is yours (--me) but has a name.",
)
@ui.experts_option
@ui.scope_options
@ui.db_and_json_options
def import_files(
    paths: tuple[str, ...],
    shape: str,
    no_infer: bool,
    me: str | None,
    again: bool,
    experts: str | None,
    scope: dict[str, Any],
    db: str | None,
) -> None:
    """Read conversations, or an export, into the store.

    Chat logs have lines such as `[2024-05-01 10:00] Name: text`, `Name: text`, or WhatsApp's, also
    in its .zip. The exports of ChatGPT, Claude and Telegram are JSON. A FILE of - is standard
    input. A newer export of the same chat, or an import that was stopped, may be run again: what is
    there already, or was erased, is passed over.
    Memories of another program, such as `{"memory": "…", "vector": […]}` in each line, are stored
    as facts; of many vectors, most are mapped instead of embedding their texts anew.
    """
    settings = ui.settings_with(experts=experts) if no_infer else ui.model_settings(experts=experts)
    paths = tuple(dict.fromkeys(_STDIN if path == "-" else path for path in paths))
    if _STDIN in paths:
        _copy_stdin()
    if pipe := next((path for path in paths if Path(path).is_fifo()), None):
        raise click.UsageError(f"{pipe} is a pipe, which can be read only once; pipe it into -.")
    shapes: list[str] = []
    with _if_refused(paths, shapes, "imported"):
        for path in paths:
            shapes.append(importers.detect_format(path) if shape == "auto" else shape)
    given = click.get_current_context().params
    if "edgemem" in shapes and (no_infer or any(given[key] is not None for key in ("me", *scope))):
        raise click.UsageError(
            f"{paths[shapes.index('edgemem')]} is an export, which keeps its own users, agents and "
            "runs and is stored as it is. Leave out --user-id, --agent-id, --run-id, --me and "
            "--no-infer."
        )
    if again and (others := {"edgemem", "memories"} & {*shapes}):
        path = next(path for path, found in zip(paths, shapes, strict=True) if found in others)
        raise click.UsageError(f"{path} holds no conversation, which --again takes. Leave it out.")
    rows: list[dict[str, Any]] = []
    with ui.open_memory(db, settings, create=True) as memory, _if_refused(paths, rows, "read"):
        for path, found in zip(paths, shapes, strict=True):
            if found == "edgemem":
                row = _import_export(memory, path)
            elif found == "memories":
                row = _import_memories(memory, path, scope, given["user_id"])
            else:
                row = _import_turns(memory, path, found, scope, me, infer=not no_infer, again=again)
            rows.append({"file": path, "format": found, **row})
            skipped = f", {row['skipped']} were there already" if row["skipped"] else ""
            unit = {"edgemem": "row", "memories": "memory"}.get(found, "turn")
            ui.note(f"{path}: {ui.plural(row['imported'], unit)} imported{skipped}.")
            ui.pending_note(row["pending"])
    ui.print_rows(rows)


_STDIN = "/dev/stdin"


def _copy_stdin() -> None:
    """Puts a copy in memory in the place of stdin, because an import reads its file twice."""
    if not hasattr(os, "memfd_create"):
        raise click.UsageError("Standard input cannot be read twice on this system; give a FILE.")
    with open(os.memfd_create("edgemem"), "wb") as copy:
        copy.write(sys.stdin.buffer.read())
        copy.flush()
        os.dup2(copy.fileno(), 0)


def _import_export(memory: Memory, path: str) -> dict[str, int]:
    from edgemem.pipeline.upkeep import SEALED, opened_lines

    with open(path, "rb") as file:
        total = sum(1 for line in file if line.strip())
        file.seek(0)
        sealed = file.readline().startswith(SEALED.encode())
        total -= 2 * sealed  # the first and the last line

    users: set[str | None] = set()

    def noted(lines: Iterable[str]) -> Iterator[str]:
        for line in lines:
            with suppress(ValueError, RecursionError, AttributeError, TypeError):
                row = json.loads(line)
                if row.get("type") == "memory" and not row.get("deleted_at"):
                    users.add(row.get("user_id"))
            yield line

    def read(passphrase: str | None) -> int:
        with open(path, encoding="utf-8-sig") as file, ui.progress("Importing", total) as advance:
            lines = opened_lines(file, memory.store.vault, passphrase)
            return memory.import_jsonl(noted(lines), on_progress=lambda n: advance(n - sealed))

    try:
        new = ui.ask_passphrase(read)
    except InputError as exc:
        raise InputError(f"{path}: {exc}") from exc
    except (KeyboardInterrupt, StoreFull):
        ui.note(f"{path}: stopped. What is stored stays; the same command goes on from there.")
        raise
    if new:
        _note_users(path, users)
    return {"imported": new, "skipped": total - new, "memories": 0, "pending": 0}


def _import_memories(
    memory: Memory, path: str, scope: Mapping[str, Any], user_id: str | None
) -> dict[str, int]:
    """user_id: as the command was given it."""
    from edgemem.pipeline.foreign import import_foreign, read_foreign
    from edgemem.store.erasures import erased_of

    items = read_foreign(path, Scope(**scope))
    own = [item.scope.user_id for item in items if item.scope.user_id not in (None, user_id)]
    if own and user_id is not None:
        ui.note(
            f"{path}: {ui.plural(len(own), 'memory')} of the user_id in the file "
            f"({_listed({*filter(None, own)})}); --user-id {user_id} is for those without one."
        )
    ids = [item.id for item in items]
    erased = erased_of(memory.store, ids) - memory.store.get(ids, include_deleted=True).keys()
    if gone := sum(id in erased for id in ids):
        ui.note(f"{path}: {ui.plural(gone, 'memory')} left out that you erased.")

    def stored() -> int:
        return len(memory.store.get(ids, include_deleted=True))

    with _if_stopped(path, len(items), "memory", stored), ui.progress("Embedding", None) as advance:
        done = import_foreign(memory, items, advance)
    new = done.mapped + done.embedded
    ui.note(f"{path}: {done.mapped} mapped from the vectors given, {done.embedded} embedded anew.")
    _note_users(path, {item.scope.user_id for item in items if new})
    old, mapped = len(items) - new - gone, done.mapped
    return {"imported": new, "skipped": old, "memories": new, "mapped": mapped, "pending": 0}


def _import_turns(
    memory: Memory,
    path: str,
    shape: str,
    scope: Mapping[str, Any],
    me: str | None,
    *,
    infer: bool,
    again: bool,
) -> dict[str, int]:
    from edgemem.pipeline.reimport import imported_turns

    sure = click.get_current_context().params["shape"] == "chat"
    conversations = _conversations(path, shape, sure=sure)
    _note_people(path, [m for _, log in conversations for m in log.messages], me)
    found = _recognised(memory, path, conversations, scope, me, again=again)
    wanted: list[list[dict[str, Any]]] = []
    done = 0
    for (_, log), known in zip(conversations, found, strict=True):
        old = {one.import_id for one in known if one.turn is not None}
        gone = {one.import_id for one in known if one.erased}
        done += len(old)
        # Batches are formed before stored turns are left out, so every import has the same pairs.
        for batch in importers.batches(_marked(log.messages, known, me), infer=infer):
            left = [m for m in batch if m["metadata"][IMPORT_ID] not in old | gone]
            if left:
                wanted.append(left)
    row = {"imported": 0, "skipped": done, "memories": 0, "pending": 0}

    def stored() -> int:  # also the turns of a batch whose facts are not taken yet
        kept = {turn.import_id for turn in imported_turns(memory, scope)}
        return done + sum(m["metadata"][IMPORT_ID] in kept for batch in wanted for m in batch)

    missing = sum(map(len, wanted))
    with (
        _if_stopped(path, done + missing, "turn", stored),
        ui.progress("Importing", missing) as advance,
    ):
        for batch in wanted:
            changes = memory.add(batch, infer=infer, imported=True, **scope)
            row["imported"] += len(batch)
            row["memories"] += sum(change.event == "ADD" for change in changes)
            advance(row["imported"])
    if infer and done and memory.pending():  # an interrupted import may have left work
        with suppress(StoreLocked):
            row["memories"] += sum(c.event == "ADD" for c in memory.process_pending())
    row["pending"] = len(memory.pending()) if infer else 0
    if row["imported"]:
        _note_users(path, {scope["user_id"]})
    return row


def _conversations(path: str, shape: str, *, sure: bool) -> list[tuple[str, ChatLog]]:
    """Returns a file's conversations, each with a text that distinguishes it from others.

    sure: whether the file is a chat for sure. The text is empty if times distinguish the messages.
    """
    if shape in ("locomo", "mem-gallery"):
        gallery = shape == "mem-gallery"
        samples = (
            [(Path(path).stem, importers.read_mem_gallery(path))]
            if gallery
            else importers.read_locomo(path)
        )
        return [(name, ChatLog(messages, True, 0)) for name, messages in samples]
    plain = shape == "chat"
    read = importers.read_conversations
    logs = [importers.read_chat_log(path, sure=sure)] if plain else read(path, shape)
    if left_out := sum(log.left_out for log in logs):
        why = "notices, media, or no speaker" if plain else "no words, or of a system or a tool"
        unit = "line" if plain else "message"
        ui.note(f"{path}: {ui.plural(left_out, unit)} left out: {why}.")
    # An export may begin with the newest conversation; what is told later may end what is known.
    logs.sort(key=lambda log: (log.messages or [{}])[0].get("timestamp") or "")
    # Logs without times may begin alike ("hi"), so only their whole texts differ for sure.
    return [
        ("" if log.dated else "\n".join(m["content"] for m in log.messages), log) for log in logs
    ]


def _recognised(
    memory: Memory,
    path: str,
    conversations: Sequence[tuple[str, ChatLog]],
    scope: Mapping[str, Any],
    me: str | None,
    *,
    again: bool,
) -> list[list[Found]]:
    """Returns what is known of each message of each conversation, and tells what is unexpected."""
    from edgemem.pipeline import reimport

    said = [
        one._replace(chat=chat)
        for chat, (seed, log) in enumerate(conversations)
        for one in _said(log, seed=seed, me=me)
    ]
    is_erased = reimport.erased_before(memory, scope)

    def find() -> list[Found]:
        turns = reimport.imported_turns(memory, scope)
        return reimport.recognised(said, turns, is_erased, again=again)

    found = find()
    named = {
        one.turn.id: one.turn.name
        for of, one in zip(said, found, strict=True)
        if of.is_user and one.turn is not None and one.turn.name is not None
    }
    # A turn of another name may be somebody else's, so it is never erased here.
    mine = [id for id, name in named.items() if _is_called({"name": name}, me)]
    others = {id: name for id, name in named.items() if id not in mine}
    if mine and again:
        with ui.working("Erasing …"):
            reimport.erase_turns(memory, mine)
        ui.note(f"{path}: {ui.plural(len(mine), 'turn')} of {me} erased, to be stored as yours.")
        is_erased = reimport.erased_before(memory, scope)
        found = find()
    elif mine:
        ui.note(
            f"{path}: {ui.plural(len(mine), 'turn')} stored as said by {me}, from an import "
            "without --me. The same command with --again stores them as yours."
        )
    if others:
        ui.note(
            f"{path}: {ui.plural(len(others), 'turn')} of {me} stored as said by "
            f"{_listed(set(others.values()))}; they stay so. If that is you, erase them, and "
            "import again with --again."
        )
    if gone := sum(one.erased for one in found):
        ui.note(
            f"{path}: {ui.plural(gone, 'turn')} left out that you erased. With --again they come "
            "back."
        )
    if ahead := {one.ahead_min for one in found if one.ahead_min}:
        hours = " or ".join(f"{minutes / 60:+g}" for minutes in sorted(ahead))
        ui.note(
            f"{path}: its times differ by {hours} hours from those of the import before, so it was "
            "exported in another time zone; new turns get the times of the zone before."
        )
    rest = iter(found)
    return [[next(rest) for _ in log.messages] for _, log in conversations]


def _said(log: ChatLog, *, seed: str, me: str | None) -> Iterator[Said]:
    """Yields the messages of a conversation as `reimport` takes them."""
    from edgemem.pipeline.reimport import Said

    ids = importers.import_ids(log.messages, seed=seed)
    for message, id in zip(log.messages, ids, strict=True):
        # With a seed, messages have no times, or those that an importer made up.
        time = None if seed else message.get("timestamp")
        told = message["role"], message.get("name"), time, message["content"]
        yield Said(*told, id, is_user=_is_called(message, me))


def _marked(
    messages: Sequence[dict[str, Any]], found: Sequence[Found], me: str | None
) -> list[dict[str, Any]]:
    """Returns messages with their import ids; those of `me` lose the name, so facts say "User"."""
    marked = [
        {**message, "metadata": {**message.get("metadata", {}), IMPORT_ID: one.import_id}}
        for message, one in zip(messages, found, strict=True)
    ]
    for message, one in zip(marked, found, strict=True):
        if _is_called(message, me):
            del message["name"]
            message["metadata"].pop("speaker", None)
        if one.ahead_min:
            time = datetime.fromisoformat(to_utc(message["timestamp"]))
            message["timestamp"] = to_utc(time - timedelta(minutes=one.ahead_min))
    return marked


def _is_called(message: Mapping[str, Any], name: str | None) -> bool:
    return name is not None and message.get("name", "").casefold() == name.strip().casefold()


def _note_people(path: str, messages: Sequence[Mapping[str, Any]], me: str | None) -> None:
    """Tells who speaks in a file beside the user. Raises InputError if nobody is called `me`."""
    names = {message["name"] for message in messages if "name" in message}
    told = _listed(names)
    if me is None and names:
        ui.note(f"{path}: said by {told}. With --me NAME one of them is you.")
    if me is not None and names and not any(_is_called(message, me) for message in messages):
        raise InputError(f"nobody in {path} is called {me!r}; it has {told}.")


def _listed(names: Set[str]) -> str:
    return ", ".join(sorted(names)[:_MOST_NAMED]) + (" …" if len(names) > _MOST_NAMED else "")


@contextmanager
def _if_refused(paths: Sequence[str], done: Sequence[object], what: str) -> Iterator[None]:
    """Tells what becomes of a command's other files if one is refused.

    done: one for each file before it. what: "read" if these are stored, else "imported".
    """
    try:
        yield
    except InputError:
        left = paths[len(done) + 1 :] if what == "read" else (
            path for n, path in enumerate(paths) if n != len(done)
        )  # fmt: skip
        if told := ", ".join(map(str, left)):
            ui.note(f"Not {what}, because another FILE is refused: {told}.")
        raise


@contextmanager
def _if_stopped(path: str, total: int, unit: str, stored: Callable[[], int]) -> Iterator[None]:
    """Tells how much of a file is stored if its import is stopped or fails."""
    try:
        yield
    except (KeyboardInterrupt, EdgememError):
        with suppress(EdgememError):  # such as that of a disk without any room
            ui.note(
                f"{path}: stopped with {stored()} of {ui.plural(total, unit)} stored; the same "
                "command goes on from there."
            )
        raise


def _note_users(path: str, users: Set[str | None]) -> None:
    """Tells for whom a file's memories were stored, unless all are of the commands' own user."""
    default = load_settings().user_id
    if users and users != {default}:
        told = sorted(repr(user) if user else "none" for user in users)
        more = f" and {len(told) - _MOST_NAMED} more" if len(told) > _MOST_NAMED else ""
        ui.note(
            f"{path}: stored for user_id {', '.join(told[:_MOST_NAMED])}{more}. The commands show "
            f"those of {default!r}, unless they are given --user-id."
        )
