"""`import`."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager, suppress
from dataclasses import dataclass
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
    shapes = [importers.detect_format(path) if shape == "auto" else shape for path in paths]
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
    with ui.open_memory(db, settings, create=True) as memory:
        for path, found in zip(paths, shapes, strict=True):
            file = _Import(memory, path, scope, me, infer=not no_infer, again=again)
            if found == "edgemem":
                row, unit = file.export(), "row"
            elif found == "memories":
                row, unit = file.memories(given["user_id"]), "memory"
            else:
                row, unit = file.turns(_conversations(path, found, sure=shape == "chat")), "turn"
            rows.append({"file": path, "format": found, **row})
            skipped = f", {row['skipped']} were there already" if row["skipped"] else ""
            file.note(f"{ui.plural(row['imported'], unit)} imported{skipped}.")
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


@dataclass(frozen=True, slots=True)
class _Import:
    """The import of one file. scope: whose it is. me: who of its people is the user."""

    memory: Memory
    path: str
    scope: Mapping[str, Any]
    me: str | None
    infer: bool
    again: bool

    def note(self, text: str) -> None:
        ui.note(f"{self.path}: {text}")

    # Each of the next three stores the file, and returns a row of the command's JSON.

    def export(self) -> dict[str, int]:
        """Stores an export of ours."""
        from edgemem.pipeline.upkeep import SEALED, opened_lines

        with open(self.path, "rb") as file:
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
            with (
                open(self.path, encoding="utf-8-sig") as file,
                ui.progress("Importing", total) as advance,
            ):
                lines = noted(opened_lines(file, self.memory.store.vault, passphrase))
                return self.memory.import_jsonl(lines, on_progress=lambda n: advance(n - sealed))

        try:
            new = ui.ask_passphrase(read)
        except InputError as exc:
            raise InputError(f"{self.path}: {exc}") from exc
        except (KeyboardInterrupt, StoreFull):
            self.note("stopped. What is stored stays; the same command goes on from there.")
            raise
        if new:
            self._note_users(users)
        return {"imported": new, "skipped": total - new, "memories": 0, "pending": 0}

    def memories(self, user_id: str | None) -> dict[str, int]:
        """Stores memories of another program. user_id: as the command was given it."""
        from edgemem.pipeline.foreign import import_foreign, read_foreign
        from edgemem.store.erasures import erased_of

        store = self.memory.store
        items = read_foreign(self.path, Scope(**self.scope))
        users = [item.scope.user_id for item in items]
        own = [user for user in users if user not in (None, user_id)]
        if own and user_id is not None:
            self.note(
                f"{ui.plural(len(own), 'memory')} of the user_id in the file "
                f"({_listed({*filter(None, own)})}); --user-id {user_id} is for those without one."
            )
        ids = [item.id for item in items]
        erased = erased_of(store, ids) - store.get(ids, include_deleted=True).keys()
        if gone := sum(id in erased for id in ids):
            self.note(f"{ui.plural(gone, 'memory')} left out that you erased.")

        def stored() -> int:
            return len(store.get(ids, include_deleted=True))

        with self._if_stopped(len(items), "memory", stored), ui.progress("Embedding", None) as on:
            done = import_foreign(self.memory, items, on)
        new = done.mapped + done.embedded
        self.note(f"{done.mapped} mapped from the vectors given, {done.embedded} embedded anew.")
        if new:
            self._note_users({*users})
        old, mapped = len(items) - new - gone, done.mapped
        return {"imported": new, "skipped": old, "memories": new, "mapped": mapped, "pending": 0}

    def turns(self, conversations: Sequence[tuple[str, ChatLog]]) -> dict[str, int]:
        """Stores conversations; see `_conversations`."""
        from edgemem.pipeline.reimport import imported_turns

        memory = self.memory
        said = [message for _, log in conversations for message in log.messages]
        self._note_people({message["name"] for message in said if "name" in message})
        wanted: list[list[dict[str, Any]]] = []
        done = 0
        for (_, log), known in zip(conversations, self._recognised(conversations), strict=True):
            old = {one.import_id for one in known if one.turn is not None}
            gone = {one.import_id for one in known if one.erased}
            done += len(old)
            # Batches are formed before stored turns are left out, so every import has the same
            # pairs.
            for batch in importers.batches(self._marked(log.messages, known), infer=self.infer):
                left = [m for m in batch if m["metadata"][IMPORT_ID] not in old | gone]
                if left:
                    wanted.append(left)
        row = {"imported": 0, "skipped": done, "memories": 0, "pending": 0}

        def stored() -> int:  # also the turns of a batch whose facts are not taken yet
            kept = {turn.import_id for turn in imported_turns(memory, self.scope)}
            return done + sum(m["metadata"][IMPORT_ID] in kept for batch in wanted for m in batch)

        missing = sum(map(len, wanted))
        with (
            self._if_stopped(done + missing, "turn", stored),
            ui.progress("Importing", missing) as advance,
        ):
            for batch in wanted:
                changes = memory.add(batch, infer=self.infer, imported=True, **self.scope)
                row["imported"] += len(batch)
                row["memories"] += sum(change.event == "ADD" for change in changes)
                advance(row["imported"])
        if self.infer and done and memory.pending():  # an interrupted import may have left work
            with suppress(StoreLocked):
                row["memories"] += sum(c.event == "ADD" for c in memory.process_pending())
        row["pending"] = len(memory.pending()) if self.infer else 0
        if row["imported"]:
            self._note_users({self.scope["user_id"]})
        return row

    def _recognised(self, conversations: Sequence[tuple[str, ChatLog]]) -> list[list[Found]]:
        """Returns what is known of each message of each conversation; tells what is unexpected."""
        from edgemem.pipeline import reimport

        said = [
            one._replace(chat=chat)
            for chat, (seed, log) in enumerate(conversations)
            for one in self._said(log, seed)
        ]
        is_erased = reimport.erased_before(self.memory, self.scope)

        def find() -> list[Found]:
            turns = reimport.imported_turns(self.memory, self.scope)
            return reimport.recognised(said, turns, is_erased, again=self.again)

        found = find()
        named = {
            one.turn.id: one.turn.name
            for of, one in zip(said, found, strict=True)
            if of.is_user and one.turn is not None and one.turn.name is not None
        }
        # A turn of another name may be somebody else's, so it is never erased here.
        mine = [id for id, name in named.items() if self._is_me(name)]
        others = {name for id, name in named.items() if id not in mine}
        if mine and self.again:
            with ui.working("Erasing …"):
                reimport.erase_turns(self.memory, mine)
            self.note(f"{ui.plural(len(mine), 'turn')} of {self.me} erased, to be stored as yours.")
            is_erased = reimport.erased_before(self.memory, self.scope)
            found = find()
        elif mine:
            self.note(
                f"{ui.plural(len(mine), 'turn')} stored as said by {self.me}, from an import "
                "without --me. The same command with --again stores them as yours."
            )
        if others:
            self.note(
                f"{ui.plural(len(named) - len(mine), 'turn')} of {self.me} stored as said by "
                f"{_listed(others)}; they stay so. If that is you, erase them, and import again "
                "with --again."
            )
        if gone := sum(one.erased for one in found):
            self.note(
                f"{ui.plural(gone, 'turn')} left out that you erased. With --again they come back."
            )
        if ahead := {one.ahead_min for one in found if one.ahead_min}:
            hours = " or ".join(f"{minutes / 60:+g}" for minutes in sorted(ahead))
            self.note(
                f"its times differ by {hours} hours from those of the import before, so it was "
                "exported in another time zone; new turns get the times of the zone before."
            )
        rest = iter(found)
        return [[next(rest) for _ in log.messages] for _, log in conversations]

    def _said(self, log: ChatLog, seed: str) -> Iterator[Said]:
        """Yields the messages of a conversation as `reimport` takes them."""
        from edgemem.pipeline.reimport import Said

        ids = importers.import_ids(log.messages, seed=seed)
        for message, id in zip(log.messages, ids, strict=True):
            # With a seed, messages have no times, or those that an importer made up.
            time = None if seed else message.get("timestamp")
            name = message.get("name")
            said = message["role"], name, time, message["content"]
            yield Said(*said, id, is_user=self._is_me(name))

    def _marked(
        self, messages: Sequence[dict[str, Any]], found: Sequence[Found]
    ) -> list[dict[str, Any]]:
        """Returns messages with their import ids; the user's lose the name, so facts say "User"."""
        marked = []
        for message, one in zip(messages, found, strict=True):
            metadata = {**message.get("metadata", {}), IMPORT_ID: one.import_id}
            message = {**message, "metadata": metadata}
            if self._is_me(message.get("name")):
                del message["name"]
                metadata.pop("speaker", None)
            if one.ahead_min:
                time = datetime.fromisoformat(to_utc(message["timestamp"]))
                message["timestamp"] = to_utc(time - timedelta(minutes=one.ahead_min))
            marked.append(message)
        return marked

    def _is_me(self, name: str | None) -> bool:
        if self.me is None or name is None:
            return False
        return name.casefold() == self.me.strip().casefold()

    def _note_people(self, names: Set[str]) -> None:
        """Tells who speaks in a file beside the user. Raises InputError if nobody is `me`."""
        if self.me is None and names:
            self.note(f"said by {_listed(names)}. With --me NAME one of them is you.")
        if self.me is not None and names and not any(map(self._is_me, names)):
            have = _listed(names)
            raise InputError(f"nobody in {self.path} is called {self.me!r}; it has {have}.")

    @contextmanager
    def _if_stopped(self, total: int, unit: str, stored: Callable[[], int]) -> Iterator[None]:
        """Tells how much of the file is stored if its import is stopped or fails."""
        try:
            yield
        except (KeyboardInterrupt, EdgememError):
            with suppress(EdgememError):  # such as that of a disk without any room
                self.note(
                    f"stopped with {stored()} of {ui.plural(total, unit)} stored; the same "
                    "command goes on from there."
                )
            raise

    def _note_users(self, users: Set[str | None]) -> None:
        """Tells for whom memories were stored, unless all are of the commands' own user."""
        default = load_settings().user_id
        if users and users != {default}:
            told = _listed({repr(user) if user else "none" for user in users})
            self.note(
                f"stored for user_id {told}. The commands show those of {default!r}, unless they "
                "are given --user-id."
            )


def _conversations(path: str, shape: str, *, sure: bool) -> list[tuple[str, ChatLog]]:
    """Returns a file's conversations, each with a text that distinguishes it from others.

    sure: whether the file is a chat for sure. The text is empty if times distinguish the messages.
    """
    if shape == "locomo":
        return [(name, ChatLog(said, True, 0)) for name, said in importers.read_locomo(path)]
    if shape == "mem-gallery":
        return [(Path(path).stem, ChatLog(importers.read_mem_gallery(path), True, 0))]
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


def _listed(names: Set[str]) -> str:
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return ", ".join(sorted(names)[:_MOST_NAMED]) + more
