"""What the commands share: the group, options, opening the store, printing, erasing, reading."""

from __future__ import annotations

import errno
import json
import os
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from edgemem.cli import typed
from edgemem.config import MEMORY_DB, NO_LIMIT, Settings, load_settings, unread
from edgemem.errors import EdgememError, InputError, StoreError, VaultLocked
from edgemem.inputs import holding, scope_of, spaced
from edgemem.results import Change, MemoryItem, Scope, local_time

if TYPE_CHECKING:
    from rich.status import Status

    from edgemem.memory import Memory

__all__ = ["FILE", "NEW", "STDOUT", "WORDS", "ask_passphrase", "at_a_terminal", "change_line"]
__all__ += ["cli", "db_and_json_options", "db_option", "erase_preview", "erasing", "existing"]
__all__ += ["experts_option", "given_options", "in_words", "json_option", "keep_given", "matching"]
__all__ += ["memory_option", "minute", "model_option", "model_settings", "note", "oldest_first"]
__all__ += ["one_line", "open_memory", "or_stdin", "owner_options", "pending_note", "plural"]
__all__ += ["print_json", "print_result", "print_rows", "progress", "read_text", "require_store"]
__all__ += ["scope_options", "settings_with", "stderr_is_terminal", "stdin_is_terminal"]
__all__ += ["store_option", "text_of", "visible", "wants_json", "when", "who", "working"]
__all__ += ["yes_option"]

Command = Callable[..., None]
Opened = TypeVar("Opened")
ASKED = 3  # attempts at a passphrase
INTERRUPTED = 130  # a shell's exit code for a program that SIGINT has ended
WORDS = "edgemem.words"  # the key of the command's arguments in click's `meta`
PREVIEWED = 10  # memories, and turns, that are shown one by one before an erase


# -- the group -----------------------------------------------------------------------------------


class Group(click.Group):
    """A group that turns an error of its commands into one line and an exit code.

    2: what was asked cannot be understood (click's usage errors, InputError). 1: it was understood
    and failed. 130: Ctrl-C.
    """

    def make_context(self, *args: Any, **more: Any) -> click.Context:
        with _one_line_errors():  # --help and --version print here
            return super().make_context(*args, **more)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[WORDS] = list(args)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        with _one_line_errors():
            return super().invoke(ctx)


class _Misunderstood(click.ClickException):
    exit_code = click.UsageError.exit_code


@contextmanager
def _one_line_errors() -> Iterator[None]:
    """Turns an EdgememError, or an OSError such as a failed write, into click's one-line error.

    A closed pipe (EPIPE) is left to click, which exits silently.
    """
    try:
        yield
        if sys.stdout is not None:
            sys.stdout.flush()
    except EdgememError as exc:
        kind = _Misunderstood if isinstance(exc, InputError) else click.ClickException
        raise kind(one_line(str(exc))) from exc
    except (KeyboardInterrupt, click.Abort) as exc:
        # click raises Abort for Ctrl-C at a question, and for a "no".
        if isinstance(exc, click.Abort) and not isinstance(exc.__context__, KeyboardInterrupt):
            raise
        if stderr_is_terminal():
            click.echo(err=True)
        raise click.exceptions.Exit(INTERRUPTED) from exc
    except OSError as exc:
        if exc.errno == errno.EPIPE:
            raise
        why = one_line(str(exc.strerror or exc))
        if exc.filename is None:  # a standard stream
            raise click.ClickException(f"Cannot write the output: {why}.") from exc
        raise click.ClickException(f"Cannot use {exc.filename}: {why}.") from exc


_SHOWN = {"help_option_names": ["-h", "--help"], "max_content_width": 100, "show_default": True}


@click.group(cls=Group, context_settings=_SHOWN)
@click.pass_context
def cli(context: click.Context) -> None:
    """Private, long-term memory for small models on your own device.

    Nothing leaves this machine, unless you set up a cloud. `edgemem demo` shows what it does;
    `edgemem chat` talks with it.
    """
    if context.invoked_subcommand != "demo-answer":  # which `demo` starts, and has said it
        for name, meant in unread().items():
            note(f"{name} is set, but edgemem does not read it. {meant}")


# -- options -------------------------------------------------------------------------------------


FILE = click.Path(exists=True, dir_okay=False)
STDOUT = Path("-")


def NEW(value: str) -> Path:
    """The type of a file that a command writes; "-" is stdout. A store is never overwritten."""
    from edgemem.store.database import resolved
    from edgemem.store.encryption import is_of_store

    click.Path(dir_okay=False, allow_dash=True).convert(value, None, None)
    path = Path(value)
    if path != STDOUT and is_of_store(resolved(path)):
        raise click.BadParameter(f"{path} is a store, or belongs to one; give another file.")
    return path


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
    """Whether the running command was given --json."""
    return bool(click.get_current_context().meta.get("edgemem.json"))


def db_and_json_options(command: Command) -> Command:
    return db_option(json_option(command))


def memory_option(command: Command, *, loads: bool = True) -> Command:
    """Adds --db and --json to a command, and passes it the open `memory`; see `open_memory`."""

    @db_and_json_options
    @wraps(command)
    def opened(*args: Any, db: str | None, **given: Any) -> None:
        with open_memory(db, loads=loads) as memory:
            command(*args, memory=memory, **given)

    return opened


store_option = partial(memory_option, loads=False)


def scope_options(command: Command) -> Command:
    """Adds --user-id, --agent-id and --run-id, and passes `scope`: keyword arguments for Memory."""

    @click.option(
        "--user-id", metavar="ID", help="Whose memories.  [default: the setting `user_id`]"
    )
    @click.option("--agent-id", metavar="ID", help="Only this agent.")
    @click.option("--run-id", metavar="ID", help="Only this run.")
    @wraps(command)
    def scoped(*args: Any, **given: Any) -> None:
        scope = {key: given.pop(key) for key in ("user_id", "agent_id", "run_id")}
        keep_given(scope)
        if scope["user_id"] is None:
            scope["user_id"] = load_settings().user_id
        command(*args, scope=scope, **given)

    return scoped


def owner_options(command: Command) -> Command:
    """Adds --user-id, --agent-id and --run-id to a command whose memories `existing` returns."""

    @click.option("--user-id", metavar="ID", help="Only if it is of this user.")
    @click.option("--agent-id", metavar="ID", help="Only if it is of this agent.")
    @click.option("--run-id", metavar="ID", help="Only if it is of this run.")
    @wraps(command)
    def kept(*args: Any, **given: Any) -> None:
        keep_given({key: given.pop(key) for key in ("user_id", "agent_id", "run_id")})
        command(*args, **given)

    return kept


_GIVEN = "edgemem.given"


def keep_given(scope: Mapping[str, Any]) -> None:
    """Keeps the ids that the options gave, for `existing`. Raises InputError on a bad one."""
    click.get_current_context().meta[_GIVEN] = scope_of(**scope)


def given_options(memory: Memory) -> list[str]:
    """Returns options with which another command reads this store and keeps to the ids given."""
    from edgemem.store.database import resolved

    given = asdict(click.get_current_context().meta[_GIVEN])
    named = {f"--{name.replace('_', '-')}": id for name, id in given.items() if id is not None}
    if (file := memory.store.path) is not None and file != resolved(memory.settings.db):
        named["--db"] = str(file)
    return [shlex.quote(word) for pair in named.items() for word in pair]


def who(scope: Mapping[str, Any]) -> str:
    """Returns a scope as text: `user_id 'ana', run_id 'r1'`."""
    return ", ".join(f"{key} {value!r}" for key, value in scope.items() if value)


def settings_with(**given: Any) -> Settings:
    """Returns the settings in force, with the options that are not None in their place."""
    return replace(load_settings(), **{k: v for k, v in given.items() if v is not None})


def model_settings(**given: Any) -> Settings:
    """Returns `settings_with`, and notes the licence of the experts if it is not a permissive one.

    Raises AdapterError if there is no such set.
    """
    from edgemem.runtime import experts

    settings = settings_with(**given)
    if settings.experts not in (experts.DEFAULT, experts.NO_EXPERTS):
        chosen = experts.find(settings.experts)
        if not chosen.permissive:
            note(f"The experts {chosen.name!r} are licensed {chosen.licence}: {chosen.data}")
    return settings


@contextmanager
def open_memory(
    db: str | None,
    settings: Settings | None = None,
    passphrase: str | None = None,
    *,
    create: bool = False,
    loads: bool = True,
) -> Iterator[Memory]:
    """Opens the store of --db, else of the settings. Asks at a terminal for a passphrase.

    loads: whether the command loads a model; if not, no memory limit keeps it from its work.
    EDGEMEM_PASSPHRASE makes a new store a vault; a note says so if it is of no use to a plain one.
    Raises StoreError if there is none and `create` is False, so that a mistyped path makes no file.
    A command that fails before it writes leaves no new store behind.
    """
    from edgemem.memory import Memory
    from edgemem.store.database import resolved
    from edgemem.store.encryption import remove_unwritten
    from edgemem.vault import is_vault

    settings = settings or load_settings()
    if not loads:
        settings = replace(settings, memory_limit=NO_LIMIT)
    place = settings.db if db is None else db
    file = None
    if str(place) != MEMORY_DB:
        file = resolved(place) if create else require_store(place)
    new = file is not None and not file.exists() and not is_vault(file)
    opened = partial(Memory, place, settings=settings)
    passphrase = passphrase or (None if file is None else _first_passphrase(file))
    try:
        with ask_passphrase(lambda given: opened(passphrase=given or passphrase)) as memory:
            typed.of_store(memory.store)
            yield memory
    except BaseException:
        if file is not None and new:
            remove_unwritten(file)
        raise


def require_store(place: str | Path) -> Path:
    """Returns the path of a store with links followed. Raises StoreError if nothing is there."""
    from edgemem.store.database import resolved

    if not (file := resolved(place)).exists():
        raise StoreError(
            f"There is no store at {file}: nothing was remembered there yet. `edgemem add TEXT` or "
            "`edgemem chat` makes one, `edgemem sync … --code CODE` fetches that of another "
            "device; if yours lies elsewhere, name it with --db."
        )
    return file


def _first_passphrase(file: Path) -> str | None:
    """The passphrase of the environment, if the store is yet to be made."""
    from edgemem.store.encryption import is_plain
    from edgemem.vault import PASSPHRASE_VARIABLE, is_vault

    given = os.environ.get(PASSPHRASE_VARIABLE)
    if not given or is_vault(file):
        return None
    if is_plain(file):
        note(
            f"{PASSPHRASE_VARIABLE} is set, but {file} is a plain store, which anyone may read; "
            "`edgemem vault lock` encrypts it."
        )
    return None if file.exists() and file.stat().st_size else given


def ask_passphrase(open_with: Callable[[str | None], Opened]) -> Opened:
    """Returns `open_with(None)`. If that raises VaultLocked, asks at a terminal for passphrases."""
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
    """Prints one line to stderr: for a person, not for a program that reads stdout."""
    indent = text[: len(text) - len(text.lstrip(" "))]
    click.secho(indent + one_line(text), err=True, dim=True)


def pending_note(count: int) -> None:
    if count:
        note(f"{plural(count, 'piece')} of work left for later: see `edgemem doctor`.")


@contextmanager
def progress(label: str, total: int | None) -> Iterator[Callable[..., None]]:
    """Shows a progress bar on stderr, if that is a terminal.

    total: None if unknown. Yields a function of the count done so far and, optionally, of a total
    and a label in place of those given.
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

        def advance(done: int, of: int | None = total, label: str = label) -> None:
            bar.update(task, completed=done, total=of, description=label)

        yield advance


def working(label: str) -> Status:
    """Returns a spinner on stderr, if that is a terminal, for work of unknown length."""
    from rich.console import Console

    return Console(stderr=True).status(label)


# -- stdout --------------------------------------------------------------------------------------


def print_json(value: Mapping[str, Any]) -> None:
    click.echo(json.dumps(value, ensure_ascii=False, indent=2))


def print_result(value: Mapping[str, Any], lines: Iterable[str] = (), remark: str = "") -> None:
    """Prints the value with --json, else the lines; without lines, the remark on stderr."""
    if wants_json():
        print_json(value)
        return
    empty = True
    for line in lines:
        click.echo(line)
        empty = False
    if empty and remark:
        note(remark)


def print_rows(rows: Sequence[Any], lines: Iterable[str] = (), remark: str = "") -> None:
    """Does as `print_result`; rows: the `results` of the JSON."""
    print_result({"results": rows}, lines, remark)


def plural(count: int, noun: str) -> str:
    """Returns a count with its noun: `1 memory`, `2 memories`, `3 turns`."""
    if count != 1:
        noun = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"
    return f"{count} {noun}"


def one_line(text: str) -> str:
    """Returns a text in one line, as `visible` gives it."""
    return visible(spaced(text))


_JOINERS = "\u200c\u200d"  # of Persian and Indian words, and of emoji


def visible(text: str, kept: str = "") -> str:
    """Returns a text with characters replaced that steer a terminal or turn its direction.

    kept: control characters that stay, such as a line break.
    """
    kept += _JOINERS
    return "".join(c if c.isprintable() or c in kept else "\ufffd" for c in text)


def in_words(value: Any) -> str:
    """Returns a JSON value for a person, in one line: `yes`, `no`, `none`, `facts 2, turns 3`."""
    if isinstance(value, dict):
        return ", ".join(f"{name} {in_words(each)}" for name, each in value.items())
    if isinstance(value, list):
        return "; ".join(map(in_words, value)) or "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "none" if value is None else one_line(str(value))


def when(item: MemoryItem) -> str:
    """Returns the minute since when a memory is valid, in this machine's zone."""
    return minute(_since(item))


def oldest_first(items: Iterable[MemoryItem]) -> list[MemoryItem]:
    """Returns memories by the time that `when` shows, not by when they were stored."""
    return sorted(items, key=_since)


def _since(item: MemoryItem) -> str:
    return item.valid_from or item.created_at


def minute(time: str) -> str:
    """Returns a stored time in this machine's zone, to the minute."""
    return local_time(time)[:16].replace("T", " ")


def text_of(item: MemoryItem) -> str:
    """Returns a memory in one line, after the speaker's name if an import has stored that."""
    speaker = item.metadata.get("speaker") if item.kind == "turn" else None
    return one_line(f"{speaker}: {item.memory}" if speaker else item.memory)


def change_line(change: Change) -> str:
    """Returns a change as tab-separated id, event, text."""
    return "\t".join([change.id, change.event, one_line(change.memory)])


# -- erasing ---------------------------------------------------------------------------------------


def existing(memory: Memory, memory_id: str, *, deleted: bool = False) -> MemoryItem:
    """Returns a memory, with `deleted` also a deleted one. Raises StoreError if there is none.

    One that is not of the ids given as options counts as none. A default user is not given.
    """
    item = memory.store.get([memory_id], include_deleted=deleted).get(memory_id)
    return _owned(memory, memory_id, item)


def _owned(memory: Memory, memory_id: str, item: MemoryItem | None) -> MemoryItem:
    given: Scope = click.get_current_context().meta[_GIVEN]
    if item is not None and given.has(item):
        return item
    gone = memory.store.get([memory_id], include_deleted=True).get(memory_id)
    if gone is not None and given.has(gone):
        raise StoreError(
            f"The memory {memory_id!r} was deleted. `edgemem history {memory_id}` shows what it "
            f"said; `edgemem erase {memory_id}` removes it for good."
        )
    if given != Scope():
        raise StoreError(
            f"There is no memory {memory_id!r} of {who(asdict(given))}. `edgemem list` and "
            "`edgemem search` with the same options show the ids."
        )
    raise StoreError(
        f"There is no memory {memory_id!r}. `edgemem list` and `edgemem search` show the ids."
    )


def erase_preview(memory: Memory, ids: Sequence[str], *, shown: bool = True) -> list[str]:
    """Returns the texts of the turns that `Memory.erase` would erase.

    shown: also lists on stderr the first memories (even deleted ones) and turns that would be
    erased, and how many follow. Raises StoreError on an unknown id.
    """
    known = memory.store.get(ids, include_deleted=True)
    for memory_id in ids:
        _owned(memory, memory_id, known.get(memory_id))
    turn_ids, memory_ids = memory.store.erase_extent(ids)
    items = memory.store.get(memory_ids, include_deleted=True).values()
    turns = list(memory.store.turns(turn_ids).values())
    if shown:
        note("This would go for good:")
        _first("memory", [f"memory {text_of(item)}" for item in items])
        cited = {source for item in items for source in item.sources}
        turns = sorted(turns, key=lambda turn: turn.id not in cited)
        _first("turn", [f"said {turn.name or turn.role}: {turn.content}" for turn in turns])
        if any(turn.id not in cited for turn in turns):
            note("  (What chats asked and answered goes too, as it may quote the rest.)")
    return [turn.content for turn in turns]


@contextmanager
def erasing(memory: Memory) -> Iterator[None]:
    """Shows that an erase goes on; of one that Ctrl-C stops, says whether anything was erased."""
    from edgemem.store.erasures import last_erasure

    before = last_erasure(memory.store)
    try:
        with working("Erasing …"):
            yield
    except KeyboardInterrupt:
        if last_erasure(memory.store) == before:
            note("Stopped. Nothing was erased.")
        else:
            note(
                "Stopped, but all of it was erased. What the file may still hold of it goes when "
                "the store is next opened."
            )
        raise


def having(memory: Memory, words: str, scope: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Returns the ids of all memories of a scope that have, or had before an edit, these words side
    by side, in any case; and of the others those that were said by somebody with these words in the
    name. Both include ended, expired and deleted ones."""
    from edgemem.store.store import browse

    try:
        fits = holding(words)
    except InputError as exc:
        raise click.UsageError(str(exc)) from exc

    def texts(item: MemoryItem) -> Iterator[str]:
        yield item.memory
        if item.updated_at != item.created_at:
            yield from (row["old_memory"] or "" for row in memory.history(item.id))

    items = [one.item for one in browse(memory.store, Scope(**scope), state="all", limit=2**62)]
    told = [item.id for item in items if any(map(fits, texts(item)))]
    known = {*told}
    turns = memory.store.turns([id for item in items for id in item.sources])
    theirs = {turn.id for turn in turns.values() if fits(turn.name or "")}

    def is_theirs(item: MemoryItem) -> bool:
        speaker = item.metadata.get("speaker")  # all that a memory of an export has of its turn
        return not theirs.isdisjoint(item.sources) or fits(str(speaker or ""))

    return told, [item.id for item in items if item.id not in known and is_theirs(item)]


def matching(memory: Memory, words: str, scope: Mapping[str, Any]) -> list[str]:
    """Returns the ids that `having` does. If some were said by somebody so called, notes how many
    of each there are."""
    told, theirs = having(memory, words, scope)
    if theirs:
        others = f"{plural(len(theirs), 'memory')}{' more' if told else ''} said by one so called"
        note(f"{plural(len(told), 'memory')} with the words {words!r}; {others}.")
    return [*told, *theirs]


def _first(noun: str, lines: Sequence[str]) -> None:
    for line in lines[:PREVIEWED]:
        note(f"  {line}")
    if len(lines) > PREVIEWED:
        note(f"  and {plural(len(lines) - PREVIEWED, noun)} more")


# -- stdin ---------------------------------------------------------------------------------------


def read_text(file: str = "-") -> str:
    """Reads a file, or stdin, as text. Raises click's usage error if it is not UTF-8."""
    try:
        if file == "-":
            return sys.stdin.buffer.read().decode("utf-8-sig")
        return Path(file).read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as exc:
        raise click.UsageError(
            f"{'Standard input' if file == '-' else file} is not UTF-8 text: byte {exc.start} is "
            f"{exc.object[exc.start]:#04x}. Convert it to UTF-8 first."
        ) from exc


def or_stdin(text: str) -> str:
    """Returns a text; for "-" all of stdin, without the line breaks at its end."""
    return read_text().rstrip("\r\n") if text == "-" else text


def stdin_is_terminal() -> bool:
    return sys.stdin.isatty()


def stderr_is_terminal() -> bool:
    return sys.stderr.isatty()


def at_a_terminal() -> bool:
    """Whether a person can be asked: stdin and stderr are a terminal."""
    return stdin_is_terminal() and stderr_is_terminal()
