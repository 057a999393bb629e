"""`chat`: a conversation at the prompt, or with lines from a pipe.

Answers and lists go to stdout, everything else to stderr. Only a terminal gets a prompt and a
status line.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress
from textwrap import fill
from typing import TYPE_CHECKING, Any

import click

from edgemem.cli import output as ui
from edgemem.cli import typed
from edgemem.cli.admin import tune_first
from edgemem.cli.vault import offer_vault
from edgemem.errors import EdgememError, InputError, StoreFull
from edgemem.results import Scope

if TYPE_CHECKING:
    from edgemem.chat import Chat, Reply
    from edgemem.cli.prompting import LineEditor
    from edgemem.cloud.governor import Governor, Mode
    from edgemem.memory import Memory
    from edgemem.results import MemoryItem

__all__ = ["budget", "budget_lines", "status_parts"]

_FILE = re.compile(
    r"""(?:"(?P<double>[^"]+)"|'(?P<single>[^']+)'|(?!["'])(?P<bare>(?:\\[^\w\\]|\S)+))"""
    r"(?:\s+(?P<words>.*)|$)",
    re.S,
)
"""What stands behind /image: a path, perhaps as a terminal writes a dropped file, and words."""
_ESCAPED = re.compile(r"\\([^\w\\])")
PROMPT = "you> "
CANDIDATES = 5
NEAR = 0.17  # share of the best hit's score from which /forget lists a memory without its words
HELP = """\
/memories [WORDS]  list what is remembered; with WORDS, what fits them best
/why               show the memories that the last answer was made from, and their scores; of an
                   answer from the cloud, what was sent there
/forget WORDS|N    find memories (or take those numbered in the last list), show what would go
                   with them, ask, and erase it for good
/image FILE WORDS  remember a photo, and answer WORDS if there are any
/cloud MESSAGE     let the cloud answer this once, if one is set up
/budget            show the memory limit, what is held, and what is left of the cloud's budget
/help              show this
/quit              leave (so does Ctrl-D; Ctrl-C stops an answer, and leaves at the prompt)
At a terminal, Enter sends; Alt-Enter, or Esc and then Enter, begins a new line; Tab completes."""
MEANINGS = {
    "/memories": "list what is remembered",
    "/why": "what the last answer was made from",
    "/forget": "erase for good",
    "/image": "remember a photo",
    "/cloud": "let the cloud answer this once",
    "/budget": "memory and money: limits, and what is left",
    "/help": "explain the commands",
    "/quit": "leave",
}


@ui.cli.command()
@ui.model_option
@click.option(
    "--mmproj",
    metavar="FILE",
    help="A vision model's projector: images are seen.  [default: setting `mmproj`]",
)
@ui.experts_option
@ui.scope_options
@ui.db_and_json_options
def chat(db: str | None, scope: dict[str, Any], **given: str | None) -> None:
    """Talk with the model; it remembers, and recalls on another day. /help lists the commands.

    Piped in, each line is one message. With --json each answer, and each memory of a list, is
    one line of JSON.
    """
    settings = ui.model_settings(**given)
    passphrase = offer_vault(db, settings)
    tune_first(settings)
    with ui.open_memory(db, settings, passphrase, create=True) as memory:
        if ui.stdin_is_terminal():
            ui.note("Loading the model …")
        memory.engine  # noqa: B018  # loads it now, so that a missing model ends this at once
        from edgemem.chat import Chat

        typed.of_user(Scope(**scope))
        governor = _governor(memory)
        session = _Session(memory, Chat(memory, cloud=governor, **scope), scope, ui.wants_json())
        if ui.stdin_is_terminal():
            ui.note("/help lists the commands. Ctrl-D leaves.")
        with governor or nullcontext():
            session.run()
    if session.failed and not ui.stdin_is_terminal():
        raise click.exceptions.Exit(1)


def _governor(memory: Memory) -> Governor | None:
    """Returns the cloud's governor; None if no cloud is set up, or its settings are wrong."""
    if not memory.settings.cloud.enabled:
        return None
    from edgemem.cloud.governor import Governor

    try:
        return Governor(memory)
    except EdgememError as exc:
        ui.note(f"No cloud: {exc}")
        return None


class _Session:
    """One run of `edgemem chat`. reply: the last answer. listed: the memories shown last."""

    def __init__(self, memory: Memory, chat: Chat, scope: dict[str, Any], as_json: bool) -> None:
        self.memory, self.chat, self.scope, self.as_json = memory, chat, scope, as_json
        self.reply: Reply | None = None
        self.listed: list[MemoryItem] = []
        self.failed = False
        self.editor = _editor(self.suggestions)
        self.commands: dict[str, Callable[[str], None]] = {
            "/memories": self.memories,
            "/why": self.why,
            "/forget": self.forget,
            "/image": self.image,
            "/cloud": self.cloud,
            "/budget": self.budget,
            "/help": lambda _: click.echo(HELP, err=as_json or not ui.stdin_is_terminal()),
        }

    def run(self) -> None:
        """Reads and answers until the end of the input, /quit, or Ctrl-C at the prompt."""
        while True:
            try:
                line = self.read()
            except (EOFError, KeyboardInterrupt):
                if ui.stdin_is_terminal():
                    click.echo(err=True)
                return
            text = line.strip()
            if not text:
                continue
            if ui.stdin_is_terminal():
                typed.remember_typed(line)
            if text.split()[0] in ("/quit", "/exit"):
                return
            try:
                self.handle(text)
            except KeyboardInterrupt as stop:
                self.stopped(text, stop)
            except EdgememError as exc:
                self.failed = True
                click.echo(f"Error: {ui.one_line(str(exc))}", err=True)

    def stopped(self, text: str, stop: KeyboardInterrupt) -> None:
        """Says that Ctrl-C stopped a message or command, and whether a message is kept."""
        from edgemem.chat import Stopped

        if not isinstance(stop, Stopped):
            ui.note("(stopped)")
        elif stop.kept:
            ui.note("(stopped; what you said is kept)")
            ui.pending_note(len(self.memory.pending()))
        else:
            ui.note("(stopped; not kept)")
            if stop.wants == "erase":
                self.forget_typed(text)

    def forget_typed(self, text: str) -> None:
        typed.forget_typed([text])
        if self.editor is not None:
            self.editor.forget()

    def read(self) -> str:
        """Reads a message. Raises EOFError at the input's end, KeyboardInterrupt on Ctrl-C."""
        if self.editor is None:
            return _read_line(PROMPT)
        speed = None if self.reply is None else self.reply.timings.get("tokens_per_s")
        return self.editor.read(PROMPT, status_parts(self.memory, self.scope, speed))

    def ask(self, question: str) -> str:
        """Asks the user a question. Returns "" at the end of the input."""
        try:
            if self.editor is not None:
                return self.editor.ask(question).strip()
            if not (ui.stdin_is_terminal() and sys.stdout.isatty()):
                click.echo(question, err=True)
                question = ""
            return _read_line(question).strip()
        except EOFError:
            return ""

    def suggestions(self, text: str) -> Iterable[tuple[str, str]]:
        """Returns completions of a text that begins with a slash: commands, or listed numbers."""
        command, *rest = re.split("[ \n]", text, maxsplit=1)
        if not rest:
            return [(name, why) for name, why in MEANINGS.items() if name.startswith(command)]
        if command != "/forget":
            return []
        begun = re.split("[ ,\n]", rest[0])[-1]
        numbered = ((str(number), ui.text_of(item)) for number, item in enumerate(self.listed, 1))
        return [pair for pair in numbered if pair[0].startswith(begun)]

    def handle(self, text: str) -> None:
        if not text.startswith("/"):
            self.answer(text)
            return
        command, *rest = re.split("[ \n]", text, maxsplit=1)
        if command not in self.commands:
            known = ", ".join([*self.commands, "/quit"])
            raise InputError(f"There is no command {command!r}. Allowed: {known}.")
        self.commands[command]("".join(rest).strip())

    def answer(self, text: str, cloud: Mode = "auto", images: Sequence[str] = ()) -> None:
        self.reply = None
        try:
            reply = self.chat.send(text, cloud=cloud, images=images)
        except StoreFull as exc:
            if images:
                raise
            reply = self.chat.send(text, cloud=cloud, remember=False)
            if reply.tells:  # which would be lost
                reply.close()
                raise
            ui.note(f"  (not remembered: {exc})")
        self.reply = reply
        shown = False
        try:
            for piece in reply:
                if not self.as_json:
                    click.echo(ui.visible(piece, "\n\t"), nl=False)
                    shown = True
        except KeyboardInterrupt:
            ui.note(" (stopped)")
            reply.close()
        finally:
            if shown:
                click.echo()
        if reply.cloud is not None:
            told = f"{reply.cloud.receipt.model}, {reply.cloud.why}; /why shows what was sent"
            ui.note(f"  (from the cloud: {told})")
        if reply.cloud_error is not None:
            ui.note(f"  (answered here: {reply.cloud_error})")
        if self.as_json:
            _print_line(_reply_dict(reply))
        elif reply.wants == "erase" and reply.hits and ui.stdin_is_terminal():
            self.show(list(reply.hits)[:CANDIDATES])
            ui.note("/forget with numbers of this list erases them.")
        if reply.wants == "erase" and reply.changes is None:  # the message was not kept
            self.forget_typed(text)
        if reply.changes is not None:
            for change in reply.changes:
                if change.kind == "fact" and change.event != "NONE":
                    sign = {"ADD": "+", "UPDATE": "~", "DELETE": "-"}[change.event]
                    ui.note(f"  {sign} {change.memory}")
            ui.pending_note(reply.changes.pending)

    # -- slash commands --------------------------------------------------------------------------

    def cloud(self, text: str) -> None:
        from edgemem.cloud.governor import require_enabled

        require_enabled(self.memory.settings.cloud)
        if not text:
            raise InputError("/cloud needs a message to ask the cloud.")
        self.answer(text, "ask")

    def image(self, what: str) -> None:
        named = _FILE.match(what)
        if named is None:
            raise InputError("/image needs a FILE, in quotes if it has spaces.")
        bare = _ESCAPED.sub(r"\1", named["bare"] or "")
        file = os.path.expanduser(named["double"] or named["single"] or bare)
        if words := named["words"]:
            self.answer(words, images=[file])
        else:
            self.memory.add(images=[file], infer=False, **self.scope)
        ui.note(f"  + {os.path.basename(file)}")

    def memories(self, words: str) -> None:
        if words:
            self.show(self.memory.search(words, **self.scope))
            return
        items = ui.oldest_first(self.memory.get_all(**self.scope))
        facts = [item for item in items if item.kind != "turn"]
        self.show(facts, "No facts of" if items else "No memories of")
        if turns := len(items) - len(facts):
            ui.note(
                f"and {ui.plural(turns, 'turn')} as they were said; /memories WORDS finds those "
                "too."
            )

    def why(self, _: str) -> None:
        if self.reply is None:
            ui.note("Nothing has been answered yet.")
            return
        if (cloud := self.reply.cloud) is not None:
            self.listed = []
            click.echo(json.dumps({"sent": cloud.sent}) if self.as_json else cloud.sent)
            return
        self.listed = list(self.reply.context)
        if not self.listed:
            ui.note("The last answer was made from no memory.")
            return
        for number, hit in enumerate(self.reply.context, 1):
            if self.as_json:
                _print_line(hit.to_dict())
                continue
            sums = " ".join(f"{name}={value:.3f}" for name, value in (hit.parts or {}).items())
            sums = f"  ({sums})" if sums else ""
            click.echo(f"{number}. {hit.score:.3f}{sums}  {ui.when(hit)}  {ui.text_of(hit)}")

    def forget(self, what: str) -> None:
        if not what:
            raise InputError("/forget needs words to look for, or numbers of the last list.")
        if all(part.isdecimal() for part in what.replace(",", " ").split()) and self.listed:
            words, chosen = "", self.pick(what)
        elif (found := self.memory.get(what)) and Scope(**self.scope).has(found):
            words, chosen = "", [found]
        else:
            from edgemem.pipeline.recall import within

            words = what
            hits = self.memory.search(what, top_k=CANDIDATES, **self.scope)
            having, said = ui.having(self.memory, what, self.scope)
            named = {*having, *said}
            near = {hit.id for hit in within(hits, NEAR)}
            self.show([hit for hit in hits if hit.id in named | near])
            if not self.listed:
                return
            if more := len(named - {item.id for item in self.listed}):
                told = f"{ui.plural(more, 'memory')} more"
                if self.memory.store.path is not None:  # no other command reads one in memory
                    options = " ".join([shlex.quote(what), *ui.given_options(self.memory)])
                    told += f": edgemem erase --matching {options}"
                ui.note(told)
            chosen = self.pick(self.ask("Which of these (numbers; Enter for none)? "))
        if not chosen:
            ui.note("Nothing was erased.")
            return
        ids = [item.id for item in chosen]
        said = ui.erase_preview(self.memory, ids)
        if self.ask("Erase it? [y/N] ").strip().lower() not in ("y", "yes"):
            ui.note("Nothing was erased.")
            return
        typed.forget_typed([*said, f"/forget {what}"])
        gone = self.memory.erase(ids)
        if words and not any(ui.having(self.memory, words, self.scope)):
            typed.forget_words(words, Scope(**self.scope))
        if self.editor is not None:
            self.editor.forget()
        self.reply, self.listed = None, []
        ui.note(f"{ui.plural(len(gone), 'memory')} erased.")

    def budget(self, _: str) -> None:
        found = budget(self.memory)
        if self.as_json:
            _print_line(found)
            return
        for line in budget_lines(found):
            click.echo(line)

    def pick(self, numbers: str) -> list[MemoryItem]:
        """Returns the memories with these numbers in the last list."""
        parts = numbers.replace(",", " ").split()
        for part in parts:
            if not part.isdecimal() or not 1 <= int(part) <= len(self.listed):
                raise InputError(
                    f"{part!r} is no number of the last list, which goes from 1 to "
                    f"{len(self.listed)}. Nothing was erased."
                )
        return [self.listed[int(part) - 1] for part in parts]

    def show(self, items: Sequence[MemoryItem], nothing: str = "Nothing found for") -> None:
        self.listed = list(items)
        for number, item in enumerate(items, 1):
            if self.as_json:
                _print_line(item.to_dict())
            else:
                click.echo(f"{number}. {ui.when(item)}  {ui.text_of(item)}")
        if not items:
            ui.note(f"{nothing} {ui.who(self.scope)}.")


def _editor(suggest: Callable[[str], Iterable[tuple[str, str]]]) -> LineEditor | None:
    """Returns a line editor; None for a pipe, and for a terminal that cannot be drawn on."""
    drawn_on = ui.stdin_is_terminal() and sys.stdout.isatty()
    if not drawn_on or os.environ.get("TERM", "").lower() in ("dumb", "unknown"):
        return None
    from edgemem.cli.prompting import LineEditor

    return LineEditor(suggest)


def _read_line(prompt: str) -> str:
    """Reads a line of input. Raises EOFError at its end, KeyboardInterrupt on Ctrl-C."""
    if ui.stdin_is_terminal():
        if sys.stdout.isatty():
            return input(prompt)
        click.echo(prompt, err=True, nl=False)
    line = sys.stdin.buffer.readline()
    if not line:
        raise EOFError
    return line.decode("utf-8", "replace")


def _print_line(value: dict[str, Any]) -> None:
    click.echo(json.dumps(value, ensure_ascii=False))


def _reply_dict(reply: Reply) -> dict[str, Any]:
    return {
        "reply": reply.text,
        "found": reply.found,
        "results": [hit.to_dict() for hit in reply.context],
        "cloud": None if reply.cloud is None else reply.cloud.receipt.to_dict(),
        "cloud_error": reply.cloud_error,
        "timings": dict(reply.timings),
    }


# -- /budget and the status line -------------------------------------------------------------------


def budget(memory: Memory) -> dict[str, Any]:
    """Returns the memory limit and the cloud's budget, and what is used of each, as JSON values.

    memory_limit: `Plan.to_dict`; None without a limit. parts_mb: as each part reports itself.
    rss_mb: of the process; None if the system does not report it. notes: what is turned off for the
    model, and why. cloud: as `governor.status`; None if no cloud is set up.
    Loads the model and the index if they are not loaded, and raises as that does.
    """
    from edgemem.profile.measure import memory_bytes

    parts = {**memory.engine.memory(), "index": sum(memory.index.memory_bytes().values())}
    rss = memory_bytes()["rss"]
    return {
        "memory_limit": None if memory.plan is None else memory.plan.to_dict(),
        "parts_mb": {name: _mb(size) for name, size in parts.items()},
        "rss_mb": None if rss is None else _mb(rss),
        "cloud": _cloud(memory),
        "notes": list(memory.engine.notes),
    }


def budget_lines(found: Mapping[str, Any]) -> list[str]:
    """Returns the result of `budget` as lines of at most 80 columns."""
    limit, cloud = found["memory_limit"], found["cloud"]
    parts = ", ".join(f"{name} {size} MB" for name, size in found["parts_mb"].items() if size)
    rows = [("memory limit", "none; `edgemem config set memory_limit 1GB` sets one")]
    if limit is not None:
        foretold, most = limit["predicted_mb"], limit["limit_mb"]
        rows = [
            ("memory limit", f"{most} MB; {foretold} MB of it are foretold to be used"),
            ("turned down", ", ".join(limit["turned_down"]) or "nothing"),
        ]
    rows.append(("parts held", parts))
    if found["rss_mb"] is not None:
        rows.append(("the process", f"{found['rss_mb']} MB"))
    rows += [("the model", note) for note in found["notes"]]
    if cloud is None:
        rows.append(("cloud", "none is set up; nothing is sent, nothing is spent"))
    else:
        spent = cloud["spent_this_month"]
        rows.append(("cloud", f"{cloud['model']}; {spent:.6f} spent this month"))
        if cloud["monthly_budget"] is None:
            budget = "none; `edgemem config set cloud.monthly_budget 5` sets one"
        else:
            left = cloud["left_this_month"]
            budget = f"{cloud['monthly_budget']:g} a month; {left:.6f} of it is left"
        rows.append(("its budget", budget))
    return [fill(f"{name:<13} {text}", 80, subsequent_indent=" " * 14) for name, text in rows]


def status_parts(
    memory: Memory, scope: Mapping[str, Any], tokens_per_s: float | None
) -> tuple[str, ...]:
    """Returns the parts of a chat's status line, the most important first.

    tokens_per_s: of the last answer; None if no model made it. A part that the store cannot
    provide, for instance while another process has locked it, is left out.
    """
    parts: list[str] = []
    with suppress(EdgememError):
        held = ui.plural(len(memory.store.rowids(Scope(**scope))), "memory")
        waiting = len(memory.pending())
        parts.append(f"{held}, {waiting} pending" if waiting else held)
    if tokens_per_s is not None:
        parts.append(f"{tokens_per_s:.0f} tokens/s")
    if memory.plan is not None:
        parts.append(f"memory limit {memory.plan.limit_bytes / 1e6:.0f} MB")
    with suppress(EdgememError):
        if (cloud := _cloud(memory)) is not None:
            left = cloud["left_this_month"]
            spent = f"{cloud['spent_this_month']:.2f} spent"
            parts.append(f"cloud: {spent if left is None else f'{left:.2f} left'}")
    return tuple(parts)


def _cloud(memory: Memory) -> dict[str, Any] | None:
    settings = memory.settings.cloud
    if not settings.enabled:
        return None
    from edgemem.cloud.governor import status

    return status(memory.store, settings)


def _mb(size: int) -> float:
    return round(size / 1e6, 1)
