"""`compress`, `profile`, `serve`, `mcp`, `sync` and `train`: each hands its options to a room."""

from __future__ import annotations

import os
import re
import shlex
import signal
import threading
from collections.abc import Sequence
from contextlib import ExitStack, closing, nullcontext, suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edgemem.cli import output as ui
from edgemem.cli import typed
from edgemem.config import load_settings, require
from edgemem.errors import AdapterError, InputError, StoreError
from edgemem.training.examples import STAGES, Stage

if TYPE_CHECKING:
    from edgemem.compression.compress import Tokenize
    from edgemem.memory import Memory
    from edgemem.profile.report import Profile
    from edgemem.sync.exchange import Place, Synced
    from edgemem.training.trainer import Progress

__all__ = ["print_struck"]

_ENGINE_SETTINGS = ("n_ctx", "n_threads", "n_gpu_layers")


@ui.cli.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, allow_dash=True), default="-")
@click.option("--rate", type=float, metavar="SHARE", help="Keep at most this share of the tokens.")
@click.option("--target-token", type=int, metavar="N", help="Keep at most so many tokens.")
@click.option(
    "--question", metavar="TEXT", default="", show_default=False, help="What the text is to answer."
)
@click.option("--keep", metavar="TEXT", multiple=True, help="Words that survive. Repeatable.")
@click.option(
    "--tokenizer",
    metavar="FILE",
    help="Count tokens by this tokenizer.json; `estimate`: by an upper estimate for any model.  "
    "[default: the local model's own]",
)
@click.option("--show", is_flag=True, help="Show the whole text, what was dropped struck through.")
@ui.json_option
def compress(
    file: str,
    rate: float | None,
    target_token: int | None,
    question: str,
    keep: tuple[str, ...],
    tokenizer: str | None,
    show: bool,
) -> None:
    """Shorten FILE, or standard input, to what tells most within a budget of tokens.

    Whole words go: those of sentences far from the question, or without one those that the model's
    gradients say least of. Each line is a turn, and its date and speaker stay with what is kept of
    it. Without --rate and --target-token: half.
    """
    from edgemem.compression.compress import compress_prompt, estimated_tokens
    from edgemem.runtime.embedder import Embedder, file_tokenizer
    from edgemem.runtime.engine import Engine

    if rate is not None and target_token is not None:
        raise click.UsageError("Give --rate or --target-token, not both.")
    if rate is None and target_token is None:
        rate = 0.5
    if show and ui.wants_json():
        raise click.UsageError("Give --show or --json, not both.")
    text = ui.read_text(file)
    settings = load_settings()
    count: Tokenize | None = None
    if tokenizer is not None:
        count = estimated_tokens if tokenizer == "estimate" else file_tokenizer(tokenizer)
    asked = bool(question.strip())
    with ExitStack() as opened:
        opened.enter_context(ui.working("Compressing …"))
        engine = None
        if count is None or not asked:
            parts = {name: getattr(settings, name) for name in _ENGINE_SETTINGS}
            engine = opened.enter_context(Engine.load(settings.model, **parts))
        found = compress_prompt(
            text,
            question,
            target_token=target_token,
            rate=rate,
            keep=keep,
            engine=engine,
            embedder=Embedder.load(settings.embedder) if asked else None,
            tokenizer=count,
        )
    if ui.wants_json():
        ui.print_json(found.to_dict())
        return
    if show:
        print_struck(text, [(span.start, span.end) for span in found.spans])
    else:
        click.echo(found.compressed_prompt)
    ui.note(
        f"{ui.plural(found.compressed_tokens, 'token')} of {found.origin_tokens} "
        f"({found.rate:.0%}) in {found.seconds:.1f} s"
    )


def print_struck(text: str, kept: Sequence[tuple[int, int]]) -> None:
    """Prints a text. What lies outside the kept spans (start, end) is struck through and dim."""
    from rich.console import Console
    from rich.text import Text

    shown, at = Text(), 0
    for start, end in [*kept, (len(text), len(text))]:
        shown.append(text[at:start], "strike dim")
        shown.append(text[start:end])
        at = end
    Console(highlight=False).print(shown, soft_wrap=True)


@ui.cli.command()
@click.option(
    "--budget",
    "budgets",
    multiple=True,
    metavar="SIZE-WHAT",
    help="Does it fit 1GB-ram, 8GB-vram, …? If not, what to turn down. Repeatable.",
)
@click.option("--rounds", type=int, default=5, help="Of each stage.")
@ui.model_option
@click.option("--memory-limit", metavar="SIZE", help="As the setting `memory_limit`.")
@click.option("--html", type=ui.NEW, metavar="FILE", help="Write a page with plots.")
@ui.json_option
def profile(budgets: tuple[str, ...], rounds: int, html: Path | None, **given: str | None) -> None:
    """Does it fit, and how fast is it, on this device?

    Takes a minute or two. Each stage's time, each part's memory, a cold start, and growth with
    the number of memories, on invented memories in processes of their own. The exit code is 1 if a
    budget is not enough.
    """
    from edgemem.profile import profile as run

    settings = ui.settings_with(**given)
    # Told now, and not after minutes of profiling.
    if html is not None and not os.access(html if html.exists() else html.parent, os.W_OK):
        raise click.ClickException(
            f"Cannot write {html}: no file can be made there. Give a file in a folder that is "
            "writable."
        )
    with ui.progress("Profiling", None) as advance:
        found = run(settings=settings, budgets=budgets, rounds=rounds, on_progress=advance)
    if ui.wants_json():
        ui.print_json(found.to_dict())
    else:
        _print_profile(found)
    if html is not None:
        from edgemem.profile.report import render

        html.write_text(render(found), encoding="utf-8")
        ui.note(f"Written to {html}.")
    if not all(verdict.fits for verdict in found.verdicts):
        raise click.exceptions.Exit(1)


def _print_profile(found: Profile) -> None:
    from rich.console import Console
    from rich.table import Table

    from edgemem.profile.report import MEMORY_HEADS, STAGE_HEADS, words_of

    console = Console(highlight=False)
    for title, heads, rows in (
        (f"Stages of {found.model}", STAGE_HEADS, found.stage_rows()),
        ("Memory", MEMORY_HEADS, found.memory_rows()),
    ):
        table = Table(title=title, title_justify="left")
        for head in heads:
            table.add_column(
                head, justify="left" if head in ("stage", "part", "from", "") else "right"
            )
        for row in rows:
            table.add_row(*map(words_of, row))
        console.print(table)
    for name, value in found.summary().items():
        console.print(f"{name}: {value}")
    for fits, told in found.told_verdicts():
        console.print(f"[bold]{'✓' if fits else '✗'}[/] {told}")


@ui.cli.command()
@click.option("--host", default="127.0.0.1", help="The address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), default=8765, help="0: a free one.")
@click.option(
    "--tls-cert", type=ui.FILE, help="A certificate (PEM), for calls from other machines."
)
@click.option("--tls-key", type=ui.FILE, help="Its key (PEM).")
@click.option("--insecure", is_flag=True, help="Let other machines call without TLS.")
@click.option(
    "--allow-host", "hosts", multiple=True, metavar="NAME", help="A name it may be called by."
)
@click.option("--allow-reset", is_flag=True, help="Let POST /reset erase everything.")
@click.option(
    "--queue", type=click.IntRange(min=1), default=16, metavar="N",
    help="Requests that may wait for the model; more get 429.",
)  # fmt: skip
@click.option("--show-token", is_flag=True, help="Print the token that every call needs, and end.")
@ui.model_option
@ui.experts_option
@ui.db_option
def serve(
    queue: int,
    show_token: bool,
    model: str | None,
    experts: str | None,
    db: str | None,
    **where: Any,
) -> None:
    """Answer for other programs: OpenAI's API, mem0's routes, /lora-adapters, /metrics.

    Only programs of this machine reach it, and each call needs a token, which is made at the first
    start. A chat with `user` remembers and recalls; without, the model answers alone. In a browser
    the same address shows a page on which to look through the memories, correct and forget them.
    """
    require("serve")
    from edgemem.server import Limits
    from edgemem.server import serve as run
    from edgemem.server.asgi import load_token, require_safe, token_file

    token, made = load_token()
    if show_token:
        click.echo(token)
        return
    require_safe(where["host"], where["tls_cert"], where["tls_key"], insecure=where["insecure"])

    def ready(url: str) -> None:
        if ui.stderr_is_terminal():  # the token must not reach a log
            ui.note(f"Look through the memories at {url}/#token={token}")
        ui.note(f"Listening on {url}. Ctrl-C ends it.")

    settings = ui.model_settings(model=model, experts=experts)
    ui.note(
        f"The token of every call lies in {token_file()}; `edgemem serve --show-token` prints it."
    )
    if made and ui.stderr_is_terminal():
        ui.note(f"It was made just now: {token}")
    with ui.open_memory(db, settings, create=True) as memory:
        if ui.stderr_is_terminal():
            ui.note("Loading the models …")
        # Loads both now: a missing model ends this at once, and no caller waits for the loading.
        memory.engine, memory.index  # noqa: B018
        run(
            memory,
            token=token,
            on_erase=typed.forget_typed,
            limits=Limits(queue=queue),
            on_ready=ready,
            **where,
        )


@ui.cli.command()
@ui.experts_option
@ui.scope_options
@ui.db_option
def mcp(experts: str | None, scope: dict[str, Any], db: str | None) -> None:
    """Serve the memory to a program that speaks MCP, over standard input and output.

    The program starts this itself; tell it the command `edgemem mcp`.
    """
    require("mcp")
    from edgemem.server.mcp import mcp_server

    with ui.open_memory(db, ui.model_settings(experts=experts), create=True) as memory:
        _end_on_ctrl_c(memory)
        mcp_server(memory, **scope).run()


def _end_on_ctrl_c(memory: Memory) -> None:
    """From now on Ctrl-C closes the memory and ends the process, though one of its threads waits
    for input, which nothing can interrupt. Another Ctrl-C ends it at once."""

    def end() -> None:
        try:
            memory.close()
        finally:
            os._exit(ui.INTERRUPTED)

    def interrupted(*_: object) -> None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        threading.Thread(target=end).start()  # the main thread may hold the store's lock

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not in the background
        signal.signal(signal.SIGINT, interrupted)


# -- sync ----------------------------------------------------------------------------------------


@ui.cli.command()
@click.argument("folder", required=False, type=click.Path(file_okay=False, path_type=Path))
@click.option("--code", metavar="CODE", help="The pairing code of another device; needed once.")
@click.option(
    "--show-code", is_flag=True, help="Print the pairing code for other devices, and end."
)
@click.option("--serve", is_flag=True, help="Let other devices sync with this one directly.")
@click.option("--with", "address", metavar="HOST[:PORT]", help="Sync with a device that serves.")
@click.option("--host", default="0.0.0.0", help="With --serve: the address.")
@click.option("--port", type=click.IntRange(0, 65535), default=8766, help="With --serve.")
@ui.db_and_json_options
def sync(
    folder: Path | None,
    code: str | None,
    show_code: bool,
    serve: bool,
    address: str | None,
    host: str,
    port: int,
    db: str | None,
) -> None:
    """Bring this memory and your other devices' to the same state.

    FOLDER is one that all your devices see: on a drive, a stick, or kept equal by Syncthing or a
    cloud; what is written there is encrypted. Or one device runs `sync --serve` and another `sync
    --with` its address. The first device makes a pairing code, which each other one needs once.
    What is erased on one device is erased on all. Needs edgemem-runtime[sync].
    """
    if sum((folder is not None, show_code, serve, address is not None)) != 1:
        raise click.UsageError("give one of FOLDER, --show-code, --serve and --with")
    from edgemem.sync import pairing_code
    from edgemem.sync.exchange import secret_of

    if code is not None:
        secret_of(code)  # a wrong one makes no store
    with ui.open_memory(db, create=code is not None) as memory:
        known = code is not None or memory.store.select("SELECT 1 FROM sync_self") != []
        if show_code:
            made = pairing_code(memory, code)
            ui.print_rows([{"code": made}], [made])
        elif serve:
            _serve_sync(memory, pairing_code(memory, code), host, port)
        elif address is not None:
            if not known:
                raise StoreError(
                    f"this device has no pairing code yet; `edgemem sync --serve` at {address} "
                    "prints it: give it here with --code"
                )
            from edgemem.sync.network import Remote

            with closing(Remote(address, secret_of(code or pairing_code(memory)))) as remote:
                remote.exchange_there()  # the other device writes its changes
                done = _exchange(memory, remote, code)
                remote.exchange_there()  # and takes in those of this device
                done = done.then(_exchange(memory, remote))  # some of which it may have erased
            _print_synced(done)
        else:
            assert folder is not None
            done = _exchange(memory, folder, code)
            _print_synced(done)
            if not known and not done.devices:
                ui.note(f"On your other devices: edgemem sync FOLDER --code {pairing_code(memory)}")


def _exchange(memory: Memory, place: Path | Place, code: str | None = None) -> Synced:
    """Syncs, and forgets what was typed here of the turns that another device has erased."""
    from edgemem.sync import sync as exchange

    def said() -> set[str]:
        return {turn.content for turn in memory.store.recent_turns(limit=None)}

    before = said() if typed.kept_files() else set()
    try:
        return exchange(memory, place, code=code)
    finally:
        if before:
            typed.forget_typed(before - said())


def _serve_sync(memory: Memory, code: str, host: str, port: int) -> None:
    from edgemem.sync.exchange import secret_of
    from edgemem.sync.network import Server

    if memory.store.path is None:
        raise InputError("a memory that lies in no file cannot be served; give --db a file")
    folder = memory.store.path.with_name(memory.store.path.name + ".sync")
    server = Server(folder, secret_of(code), lambda: _exchange(memory, folder), host, port)
    ui.note(f"On your other device: edgemem sync --with THIS_MACHINE:{server.port} --code {code}")
    ui.note("Ctrl-C ends it.")
    with closing(server), suppress(KeyboardInterrupt):
        server.serve_forever()


def _print_synced(done: Synced) -> None:
    lines = [
        f"{ui.plural(done.devices, 'other device')}. Received {ui.plural(done.received, 'row')} "
        f"({done.received_bytes} bytes), sent {done.sent} ({done.sent_bytes} bytes)."
    ]
    if done.erased:
        lines.append(f"Erased here, because another device erased it: {len(done.erased)}.")
    if done.late:
        lines.append(f"Not all files are here yet of: {', '.join(done.late)}. Sync again later.")
    if done.unconfirmed:
        lines.append(f"Have not yet confirmed the last erase: {', '.join(done.unconfirmed)}.")
    if not done.scrubbed:
        lines.append(
            "Another process reads this memory. What was erased is cleaned from its file when no "
            "other process has it open."
        )
    ui.print_rows([asdict(done)], lines)


# -- train ---------------------------------------------------------------------------------------

PATH = click.Path(exists=True, dir_okay=False, path_type=Path)
base_option = click.option(
    "--model", help="The base model: a name of the manifest, or the path of a GGUF."
)


@ui.cli.group()
def train() -> None:
    """Train the stages' experts from files of examples."""


@train.command("run")
@click.argument("stage", type=click.Choice(STAGES))
@click.option("--data", type=PATH, multiple=True, required=True, help="Examples (JSON lines).")
@click.option(
    "--valid",
    type=PATH,
    multiple=True,
    help="Validation examples; without it, a tenth of the groups of --data.",
)
@click.option(
    "--out", type=ui.NEW, metavar="FILE", required=True, help="The adapter file to write (.gguf)."
)
@base_option
@click.option(
    "--layers",
    type=click.Choice(["qv", "all"]),
    help="That get an adapter: queries and values, or all linear ones.  [default: qv for "
    "extraction, update and intent, else all]",
)
@click.option("--minutes", type=float, help="End after this time, and plan the schedule so.")
@click.option("--epochs", type=int, default=50, help="Most passes.")
@click.option("--lr", type=float, default=1e-3, help="Highest learning rate.")
@click.option("--batch", type=int, default=8, help="Examples of a step.")
@click.option("--rank", type=int, default=8, help="Rank; alpha is twice it.")
@click.option("--dropout", type=float, default=0.1, help="Of an adapter's input.")
@click.option("--every", type=int, default=25, help="Steps between validations.")
@click.option(
    "--patience", type=int, default=8, help="End after so many validations without a better loss."
)
@click.option(
    "--valid-examples", type=click.IntRange(1), default=64,
    help="Most examples that a validation reads, drawn at random.",
)  # fmt: skip
@click.option("--mmproj", type=PATH, help="The base model's projector, for questions about images.")
@click.option(
    "--init", type=PATH, help="Begin from this adapter; it may have fewer layers or a lower rank."
)
@click.option("--seed", type=int, default=0)
@click.option("--precision", type=click.Choice(["auto", "bfloat16", "float32"]), default="auto")
@click.option("--threads", type=click.IntRange(1), help="CPU threads.  [default: all cores]")
@click.option("--resume", is_flag=True, help="Go on from the checkpoint beside --out.")
@click.option(
    "--ray", metavar="ADDRESS",
    help="Compute the rows of a step on a Ray cluster: HOST:PORT, auto, or local.",
)  # fmt: skip
@ui.json_option
def train_run(
    stage: Stage, data: tuple[Path, ...], valid: tuple[Path, ...], out: Path, model: str | None,
    mmproj: Path | None, init: Path | None, resume: bool, ray: str | None, **plan: Any,
) -> None:  # fmt: skip
    """Train the expert of STAGE; the best adapter so far is always in --out.

    Examples of other stages are left out. At its end, a record of how it was made lies beside it.
    With --ray, workers of --threads CPUs (1), or of a GPU each, share the rows; give a --batch that
    makes several, and --resume after a stop.
    """
    from edgemem.runtime.models import find, known_sha256
    from edgemem.training import adapters, examples, trainer

    learn = [e for e in examples.read(data) if e.stage == stage]
    judge = [e for e in examples.read(valid) if e.stage == stage]
    if not valid:
        learn, judge = trainer.split(learn, plan["seed"])
    planned = trainer.Plan(**plan, alpha=2.0 * plan["rank"])
    base = find(model or load_settings().model)
    if resume and not (kept := trainer.checkpoint_of(out)).exists():
        ui.note(f"There is no checkpoint {kept}: the training begins anew.")
    spread = trainer.workers(ray, stage, base, planned) if ray else nullcontext()
    with ui.progress("the base model", 100) as advance, spread as workers:

        def report(now: Progress) -> None:
            advance(round(100 * now.done), label=_told(now))
            if now.validated and not ui.stderr_is_terminal():
                ui.note(_told(now))

        outcome = trainer.train(
            stage, base, learn, judge, out, planned,
            mmproj=mmproj, init=init, resume=resume, workers=workers, report=report,
        )  # fmt: skip
    made = {"stage": stage, "out": str(out), **asdict(planned), **asdict(outcome)}
    how = {
        "out": out.name,
        "base_sha256": known_sha256(base),
        "targets": trainer.targets(stage, planned),
        "command": _typed(click.get_current_context()),
    }
    adapters.write_record(out, made | how)
    told = (
        f"{out}: {outcome.bytes / 1e6:.1f} MB, validation loss {outcome.first_loss:.3f} -> "
        f"{outcome.best_loss:.3f} in {outcome.steps} steps, {outcome.epochs_done:.2f} epochs, "
        f"{outcome.elapsed_s / 60:.1f} minutes ({outcome.tokens_per_s:.0f} tokens/s); "
        f"ended by {outcome.ended}"
    )
    ui.print_result(made, [told])


def _typed(context: click.Context) -> str:
    """Returns the command as it was given, with files named without their folders."""
    words = [re.sub(r"[^=]*[/\\]", "", word) for word in context.meta[ui.WORDS]]
    return shlex.join(["edgemem", *words])


@train.command()
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@click.argument("adapters", nargs=-1, required=True, type=PATH, metavar="ADAPTER...")
@click.option("--licence", required=True, help="SPDX name; that of the training data allows it.")
@click.option("--data", required=True, help="What it was trained on, in words.")
@click.option("--also-for", multiple=True, metavar="SHA256", help="Another form of the base model.")
@click.option("--scores", type=PATH, help="What `python -m corpus eval` printed as JSON.")
def combine(
    folder: Path, adapters: tuple[Path, ...], licence: str, data: str,
    also_for: tuple[str, ...], scores: Path | None,
) -> None:  # fmt: skip
    """Make FOLDER a set of experts of trained ADAPTERs, for `--experts FOLDER`."""
    from edgemem.runtime import experts
    from edgemem.training.adapters import combine as combined

    there: set[str] = set()
    with suppress(AdapterError):  # there is no set yet, or a damaged one
        there = {expert.stage for expert in experts.find(f"{folder}{os.sep}").adapters}
    made = combined(folder, adapters, licence=licence, data=data, also_for=also_for, scores=scores)
    if there:
        left = ", ".join(sorted(there - {expert.stage for expert in made.adapters}))
        lacks = f"; it lacks what that had for {left}, whose files stay" if left else ""
        ui.note(f"The set that was in {folder} is replaced{lacks}.")
    stages = ", ".join(expert.stage for expert in made.adapters)
    click.echo(f"{made.name}: {stages}; use it with --experts {folder}{os.sep}")


@train.command()
@click.argument("adapters", nargs=-1, required=True, type=PATH, metavar="ADAPTER...")
@click.option(
    "--out", required=True, type=ui.NEW, metavar="FILE",
    help="The adapter to write; how it was made goes beside it.",
)  # fmt: skip
@click.option("--weight", type=click.FloatRange(0, min_open=True), help="Of each.  [default: 1/n]")
@base_option
@ui.json_option
@click.pass_context
def merge(
    context: click.Context, adapters: tuple[Path, ...], out: Path, weight: float | None,
    model: str | None,
) -> None:  # fmt: skip
    """Add up ADAPTERs of one stage, such as one and what went on from it.

    Their sum, cut to the rank of the first, often answers better than the last of them.
    """
    from edgemem.runtime.models import find
    from edgemem.training.adapters import merge as merged

    base = find(model or load_settings().model)
    size = merged(adapters, out, base, weight or 1 / len(adapters), _typed(context))
    told = f"{out}: {ui.plural(len(adapters), 'adapter')} in one of {size:,} bytes"
    ui.print_result({"out": str(out), "adapters": len(adapters), "bytes": size}, [told])


def _told(now: Progress) -> str:
    line = f"step {now.step}, epoch {now.epoch:.2f}, validation {now.valid_loss:.3f} "
    line += f"(best {now.best_loss:.3f})"
    if now.step:  # before the first there is neither a loss nor a pace
        line += f", loss {now.loss:.3f}, {now.tokens_per_s:.0f} tokens/s"
        line += f", {now.left_s / 60:.0f} min left"
    return line
