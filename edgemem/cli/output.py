"""What the commands share: the group, options, the store, printing, the file of what was typed.

Knows no command.
"""

from __future__ import annotations

import base64
import errno
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from edgemem.config import Settings, data_dir, load_settings
from edgemem.errors import EdgememError, StoreCorrupt, StoreError, VaultLocked
from edgemem.results import Change, MemoryItem, local_time

if TYPE_CHECKING:
    from rich.status import Status

    from edgemem.memory import Memory
    from edgemem.vault import Vault

__all__ = [
    "FILE",
    "MOST_LINES",
    "Group",
    "ask_passphrase",
    "at_a_terminal",
    "change_line",
    "cli",
    "db_option",
    "erase_preview",
    "experts_option",
    "forget_typed",
    "history_file",
    "json_option",
    "licence_note",
    "memory_option",
    "minute",
    "model_option",
    "move_typed",
    "no_memory",
    "note",
    "one_line",
    "open_memory",
    "pending_note",
    "plural",
    "print_json",
    "print_result",
    "progress",
    "read_text",
    "remember_typed",
    "scope_options",
    "settings_with",
    "stderr_is_terminal",
    "stdin_is_terminal",
    "text_of",
    "typed_before",
    "wants_json",
    "when",
    "who",
    "working",
    "yes_option",
]

Command = Callable[..., None]
Opened = TypeVar("Opened")
ASKED = 3  # times for a passphrase
PREVIEWED = 10  # memories, and turns, that an erase shows one by one before it asks


# -- the group -----------------------------------------------------------------------------------


class Group(click.Group):
    """A group whose commands turn an error into one line and exit code 1."""

    def make_context(self, *args: Any, **more: Any) -> click.Context:
        with _one_line_errors():  # --help and --version print from here
            return super().make_context(*args, **more)

    def invoke(self, ctx: click.Context) -> Any:
        with _one_line_errors():
            return super().invoke(ctx)


@contextmanager
def _one_line_errors() -> Iterator[None]:
    """Turn an EdgememError, or output that is refused, into click's one line and exit code 1.

    A reader that has gone (EPIPE) is left to click, which ends without a word.
    """
    try:
        yield
        if sys.stdout is not None:
            sys.stdout.flush()
    except EdgememError as exc:
        raise click.ClickException(one_line(str(exc))) from exc
    except OSError as exc:
        if exc.errno == errno.EPIPE:
            raise
        why = one_line(str(exc.strerror or exc))
        if exc.filename is None:  # a stream has none
            raise click.ClickException(f"Cannot write the output: {why}.") from exc
        raise click.ClickException(f"Cannot use {exc.filename}: {why}.") from exc


_SHOWN = {"help_option_names": ["-h", "--help"], "max_content_width": 100, "show_default": True}


@click.group(cls=Group, context_settings=_SHOWN)
def cli() -> None:
    """Private, long-term memory for small models on your own device.

    Nothing leaves this machine, unless you set up a cloud. `edgemem demo` shows what it does;
    `edgemem chat` talks with it.
    """


# -- options -------------------------------------------------------------------------------------


FILE = click.Path(exists=True, dir_okay=False)

db_option = click.option(
    "--db", metavar="FILE", help="The store's file.  [default: the setting `db`]"
)
model_option = click.option(
    "--model", metavar="NAME", help="A model's name or file.  [default: setting `model`]"
)
experts_option = click.option(
    "--experts",
    metavar="NAME",
    help="The model's experts: a set's name or folder, or none.  [default: setting `experts`]",
)
yes_option = click.option("--yes", "-y", is_flag=True, help="Do not ask.")


def _keep_json(ctx: click.Context, _param: click.Parameter, wanted: bool) -> None:
    ctx.meta["edgemem.json"] = wanted


json_option = click.option(
    "--json", is_flag=True, expose_value=False, callback=_keep_json, help="Print JSON."
)


def wants_json() -> bool:
    """Whether the command that runs was given --json."""
    return bool(click.get_current_context().meta.get("edgemem.json"))


def memory_option(command: Command) -> Command:
    """--db and --json; the command is given the open `memory`."""

    @db_option
    @json_option
    @wraps(command)
    def opened(*args: Any, db: str | None, **given: Any) -> None:
        with open_memory(db) as memory:
            command(*args, memory=memory, **given)

    return opened


def scope_options(command: Command) -> Command:
    """--user-id, --agent-id and --run-id; the command is given `scope`, as `Memory` takes it."""

    @click.option(
        "--user-id", metavar="ID", help="Whose memories.  [default: the setting `user_id`]"
    )
    @click.option("--agent-id", metavar="ID", help="Only this agent.")
    @click.option("--run-id", metavar="ID", help="Only this run.")
    @wraps(command)
    def scoped(*args: Any, **given: Any) -> None:
        scope = {key: given.pop(key) for key in ("user_id", "agent_id", "run_id")}
        if scope["user_id"] is None:
            scope["user_id"] = load_settings().user_id
        command(*args, scope=scope, **given)

    return scoped


def who(scope: Mapping[str, Any]) -> str:
    """Whose memories a scope holds: `user_id 'ana', run_id 'r1'`."""
    return ", ".join(f"{key} {value!r}" for key, value in scope.items() if value)


def settings_with(**given: Any) -> Settings:
    """The settings in force, with those options that were given in their place."""
    return replace(load_settings(), **{k: v for k, v in given.items() if v is not None})


def licence_note(settings: Settings) -> None:
    """Before experts are loaded that not everybody may use for everything: say so.

    Raises AdapterError if there is no such set.
    """
    from edgemem.runtime import experts

    if settings.experts not in (experts.DEFAULT, experts.NO_EXPERTS):
        chosen = experts.find(settings.experts)
        if not chosen.permissive:
            note(f"The experts {chosen.name!r} are licensed {chosen.licence}: {chosen.data}")


@contextmanager
def open_memory(
    db: str | None, settings: Settings | None = None, passphrase: str | None = None
) -> Iterator[Memory]:
    """The store of --db, or else of the settings. A person is asked for a vault's passphrase."""
    from edgemem.memory import Memory

    global _vault
    settings = settings or load_settings()
    place = settings.db if db is None else db
    opened = partial(Memory, place, settings=settings)
    with ask_passphrase(lambda given: opened(passphrase=given or passphrase)) as memory:
        _vault = memory.store.vault
        yield memory


def ask_passphrase(open_with: Callable[[str | None], Opened]) -> Opened:
    """What opens without a passphrase, or with one that a person at the terminal is asked for."""
    try:
        return open_with(None)
    except VaultLocked:
        if not at_a_terminal():
            raise
    ask = partial(click.prompt, "Passphrase, or recovery code", hide_input=True, err=True)
    for _ in range(ASKED - 1):
        try:
            return open_with(ask())
        except VaultLocked as exc:
            note(str(exc))
    return open_with(ask())


# -- stderr --------------------------------------------------------------------------------------


def note(text: str) -> None:
    """One line for the person, not for the program that reads stdout."""
    indent = text[: len(text) - len(text.lstrip(" "))]
    click.secho(indent + one_line(text), err=True, dim=True)


def pending_note(count: int) -> None:
    if count:
        note(f"{plural(count, 'piece')} of work left for later: see `edgemem doctor`.")


@contextmanager
def progress(label: str, total: int | None) -> Iterator[Callable[..., None]]:
    """A progress bar on stderr, if that is a terminal.

    Yields what to call with the count done, and the count in all where that was not known before.
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
    from rich.progress import TimeRemainingColumn as Remaining

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), Remaining())
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task(label, total=total)

        def advance(done: int, of: int | None = None) -> None:
            bar.update(task, completed=done, total=total if of is None else of)

        yield advance


def working(label: str) -> Status:
    """A spinner on stderr, if that is a terminal, for work whose end is not known."""
    from rich.console import Console

    return Console(stderr=True).status(label)


# -- stdout --------------------------------------------------------------------------------------


def print_json(value: Mapping[str, Any]) -> None:
    click.echo(json.dumps(value, ensure_ascii=False, indent=2))


def print_result(value: Mapping[str, Any], lines: Iterable[str] = (), remark: str = "") -> None:
    """Print lines for a person, or with --json the value. remark: noted if there are no lines."""
    if wants_json():
        print_json(value)
        return
    empty = True
    for line in lines:
        click.echo(line)
        empty = False
    if empty and remark:
        note(remark)


def plural(count: int, noun: str) -> str:
    """`1 memory`, `2 memories`, `3 turns`."""
    if count != 1:
        noun = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"
    return f"{count} {noun}"


def one_line(text: str) -> str:
    """A text with its line breaks folded and without characters that steer a terminal."""
    folded = " ".join(text.split())
    return "".join(c if c.isprintable() else "\ufffd" for c in folded)


def when(item: MemoryItem) -> str:
    """Since when a memory holds, to the minute."""
    return minute(item.valid_from or item.created_at)


def minute(time: str) -> str:
    """A stored time in this machine's zone, to the minute."""
    return local_time(time)[:16].replace("T", " ")


def text_of(item: MemoryItem) -> str:
    """A memory in one line, with the speaker where an import has told who it was."""
    speaker = item.metadata.get("speaker") if item.kind == "turn" else None
    return one_line(f"{speaker}: {item.memory}" if speaker else item.memory)


def change_line(change: Change) -> str:
    """A change as tab-separated id, event, text."""
    return "\t".join([change.id, change.event, one_line(change.memory)])


# -- erasing ---------------------------------------------------------------------------------------


def no_memory(memory_id: str) -> StoreError:
    return StoreError(
        f"There is no memory {memory_id!r}. `edgemem list` and `edgemem search` show the ids."
    )


def erase_preview(memory: Memory, ids: Sequence[str], *, shown: bool = True) -> list[str]:
    """What was said in the turns that `Memory.erase` would take away.

    shown: tell on stderr what would go, deleted memories too: the first of the memories and of the
    turns, and how many more. Raises StoreError on an unknown id.
    """
    turn_ids, memory_ids = memory.store.erase_extent(ids)
    for memory_id in ids:
        if memory_id not in memory_ids:
            raise no_memory(memory_id)
    items = memory.store.get(memory_ids, include_deleted=True).values()
    turns = memory.store.turns(turn_ids).values()
    if shown:
        note("This would go for good:")
        _first("memory", [f"memory {item.memory}" for item in items])
        _first("turn", [f"said {turn.name or turn.role}: {turn.content}" for turn in turns])
    return [turn.content for turn in turns]


def _first(noun: str, lines: Sequence[str]) -> None:
    for line in lines[:PREVIEWED]:
        note(f"  {line}")
    if len(lines) > PREVIEWED:
        note(f"  and {plural(len(lines) - PREVIEWED, noun)} more")


# -- stdin ---------------------------------------------------------------------------------------


def read_text(file: str = "-") -> str:
    """All of a file, or of stdin, as text. Raises click's usage error on what is no UTF-8."""
    try:
        if file == "-":
            return sys.stdin.buffer.read().decode("utf-8")
        return Path(file).read_text(encoding="utf-8")
    except UnicodeDecodeError as exc:
        raise click.UsageError(
            f"{'Standard input' if file == '-' else file} is not UTF-8 text: byte {exc.start} is "
            f"{exc.object[exc.start]:#04x}. Convert it to UTF-8 first."
        ) from exc


def stdin_is_terminal() -> bool:
    return sys.stdin.isatty()


def stderr_is_terminal() -> bool:
    return sys.stderr.isatty()


def at_a_terminal() -> bool:
    """Whether a person can be asked, and answer."""
    return stdin_is_terminal() and stderr_is_terminal()


# -- what was typed at the prompt of `edgemem chat` ------------------------------------------------

MOST_LINES = 1000
_BREAK = "\u2028"  # Unicode's line separator: where an input of several lines was broken
_vault: Vault | None = None
"""Whose chats' inputs are kept: each vault has a file of its own, sealed line by line."""


def history_file() -> Path:
    suffix = "" if _vault is None else f".{_vault.id[:8]}"
    return data_dir() / f"chat_history{suffix}"


def move_typed(old: Vault | None, new: Vault | None) -> None:
    """Take what was typed in chats into a vault, or out of it; nothing stays behind."""
    global _vault
    _vault = old
    lines, file = _typed_lines(), history_file()
    if lines:
        _write_typed([])
        file.unlink()
    _vault = new
    for line in lines:
        remember_typed(line.replace(_BREAK, "\n"))


def _kept(line: str) -> str:
    """A line as the file has it."""
    if _vault is None:
        return line
    return base64.b64encode(_vault.seal(line.encode(), "chat history")).decode()


def typed_before() -> list[str]:
    """The inputs of earlier chats and of this one, oldest first; a file grown long is cut."""
    lines = _typed_lines()
    if len(lines) > 2 * MOST_LINES:
        _write_typed(lines[-MOST_LINES:])
    return [line.replace(_BREAK, "\n") for line in lines[-MOST_LINES:]]


def remember_typed(text: str) -> None:
    """Add an input to the file. A folder that refuses is no error."""
    with suppress(OSError, UnicodeEncodeError):
        history_file().parent.mkdir(parents=True, exist_ok=True)
        private = partial(os.open, mode=0o600)
        with open(history_file(), "a", encoding="utf-8", opener=private) as file:
            file.write(_kept(_BREAK.join(text.splitlines())) + "\n")


def forget_typed(texts: Iterable[str]) -> None:
    """Drop the lines that say one of these texts, alone or behind a command, from the file."""
    gone = {_folded(text) for text in texts}
    lines = _typed_lines()
    kept = [line for line in lines if not gone & {_folded(line), _folded(_without_command(line))}]
    if len(kept) < len(lines):
        _write_typed(kept)


def _without_command(line: str) -> str:
    """`/cloud MESSAGE` says MESSAGE."""
    return "".join(line.split(maxsplit=1)[1:]) if line.lstrip().startswith("/") else line


def _folded(text: str) -> str:
    return " ".join(text.split())


def _typed_lines() -> list[str]:
    try:
        text = history_file().read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    lines = text.removesuffix("\n").split("\n") if text else []
    if _vault is None:
        return lines
    opened = []
    for line in lines:
        with suppress(ValueError, StoreCorrupt):  # one that was cut off is passed over
            opened.append(_vault.unseal(base64.b64decode(line), "chat history").decode())
    return opened


def _write_typed(lines: list[str]) -> None:
    """Put these lines in the file's place, over its old bytes."""
    data = "".join(f"{_kept(line)}\n" for line in lines).encode()
    with open(history_file(), "r+b") as file:
        old = os.fstat(file.fileno()).st_size
        file.write(data + b"\n" * max(0, old - len(data)))
        file.flush()
        os.fsync(file.fileno())
        file.truncate(len(data))
