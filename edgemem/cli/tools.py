"""`compress`, `profile`, `serve` and `mcp`: each hands its options to another room."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edgemem.cli.output import (
    db_option,
    experts_option,
    forget_typed,
    json_option,
    licence_note,
    note,
    open_memory,
    plural,
    print_json,
    read_text,
    scope_kwargs,
    scope_options,
    settings_with,
    stderr_is_terminal,
    working,
)
from edgemem.config import require

if TYPE_CHECKING:
    from edgemem.compression.compress import Tokenize
    from edgemem.profile.report import Profile

__all__ = ["compress", "mcp", "print_struck", "profile", "serve"]

FILE = click.Path(exists=True, dir_okay=False)


@click.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, allow_dash=True), default="-")
@click.option("--rate", type=float, metavar="SHARE", help="Keep at most this share of the tokens.")
@click.option("--target-token", type=int, metavar="N", help="Keep at most so many tokens.")
@click.option("--question", metavar="TEXT", default="", help="What the text is to answer.")
@click.option("--keep", metavar="TEXT", multiple=True, help="Words that survive. Repeatable.")
@click.option(
    "--tokenizer",
    metavar="FILE",
    help="Count tokens by this tokenizer.json; `estimate`: by an upper estimate for any model.  "
    "[default: the local model's own]",
)
@click.option("--show", is_flag=True, help="Show the whole text, what was dropped struck through.")
@json_option
def compress(
    file: str,
    rate: float | None,
    target_token: int | None,
    question: str,
    keep: tuple[str, ...],
    tokenizer: str | None,
    show: bool,
    as_json: bool,
) -> None:
    """Shorten FILE, or standard input, to what tells most within a budget of tokens.

    Whole words go: those of sentences far from the question, or without one those that the model's
    gradients say least of. Each line is a turn, and its date and speaker stay with what is kept of
    it. Without --rate and --target-token: half.
    """
    from edgemem.compression.compress import compress_prompt
    from edgemem.compression.layout import estimated_tokens
    from edgemem.runtime.embedder import Embedder, file_tokenizer
    from edgemem.runtime.engine import Engine

    if rate is not None and target_token is not None:
        raise click.UsageError("Give --rate or --target-token, not both.")
    if show and as_json:
        raise click.UsageError("Give --show or --json, not both.")
    text = read_text(file)
    settings = settings_with()
    if tokenizer == "estimate":
        count: Tokenize | None = estimated_tokens
    else:
        count = file_tokenizer(tokenizer) if tokenizer is not None else None
    with ExitStack() as opened:
        opened.enter_context(working("Compressing …"))
        engine = None
        if count is None or not question.strip():
            engine = opened.enter_context(
                Engine.load(
                    settings.model,
                    n_ctx=settings.n_ctx,
                    n_threads=settings.n_threads,
                    n_gpu_layers=settings.n_gpu_layers,
                )
            )
        found = compress_prompt(
            text,
            question,
            target_token=target_token,
            rate=0.5 if rate is None and target_token is None else rate,
            keep=keep,
            engine=engine,
            embedder=Embedder.load(settings.embedder) if question.strip() else None,
            tokenizer=count,
        )
    if as_json:
        print_json(found.to_dict())
        return
    if show:
        print_struck(text, [(span.start, span.end) for span in found.spans])
    else:
        click.echo(found.compressed_prompt)
    note(
        f"{plural(found.compressed_tokens, 'token')} of {found.origin_tokens} "
        f"({found.rate:.0%}) in {found.seconds:.1f} s"
    )


def print_struck(text: str, kept: Sequence[tuple[int, int]]) -> None:
    """The text with what lies outside the kept spans struck through and dim."""
    from rich.console import Console
    from rich.text import Text

    shown, at = Text(), 0
    for start, end in [*kept, (len(text), len(text))]:
        shown.append(text[at:start], "strike dim")
        shown.append(text[start:end])
        at = end
    Console(highlight=False).print(shown, soft_wrap=True)


@click.command()
@click.option(
    "--budget",
    "budgets",
    multiple=True,
    metavar="SIZE-WHAT",
    help="Does it fit 1GB-ram, 8GB-vram, …? If not, what to turn down. Repeatable.",
)
@click.option("--rounds", type=int, default=5, show_default=True, help="Of each stage.")
@click.option("--model", metavar="NAME", help="A model's name or file.  [default: setting `model`]")
@click.option("--memory-limit", metavar="SIZE", help="As the setting `memory_limit`.")
@click.option(
    "--html", type=click.Path(dir_okay=False), metavar="FILE", help="Write a page with plots."
)
@json_option
def profile(
    budgets: tuple[str, ...],
    rounds: int,
    model: str | None,
    memory_limit: str | None,
    html: str | None,
    as_json: bool,
) -> None:
    """Does it fit, and how fast is it, on this device?

    Takes a minute or two. Each stage's time, each part's memory, a cold start, and growth with
    the number of memories, on invented memories in processes of their own. The exit code is 1 if a
    budget is not enough.
    """
    from edgemem.profile import profile as run

    settings = settings_with(model=model, memory_limit=memory_limit)
    with working("Profiling …"):
        found = run(settings=settings, budgets=budgets, rounds=rounds)
    if html is not None:
        _write_page(Path(html), found)
    if as_json:
        print_json(found.to_dict())
    else:
        _print_profile(found)
    if not all(verdict.fits for verdict in found.verdicts):
        raise click.exceptions.Exit(1)


def _write_page(file: Path, found: Profile) -> None:
    from edgemem.profile.page import render

    try:
        file.write_text(render(found), encoding="utf-8")
    except OSError as exc:
        raise click.ClickException(
            f"Cannot write {file}: {exc.strerror}. Give a file in a folder that is writable."
        ) from exc
    note(f"Written to {file}.")


def _print_profile(found: Profile) -> None:
    from rich.console import Console
    from rich.table import Table

    from edgemem.profile.report import NO_GPU, NOT_REPORTED, UNKNOWN

    console = Console(highlight=False)
    stages = Table(title=f"Stages of {found.model}", title_justify="left")
    stages.add_column("stage")
    for head in ("p50 ms", "p95 ms", "first token ms", "tokens/s"):
        stages.add_column(head, justify="right")
    stages.add_column("")
    for timing in found.stages:
        cells = (timing.p50_ms, timing.p95_ms, timing.ttft_ms, timing.tokens_per_s)
        stages.add_row(timing.name, *("" if v is None else f"{v:.4g}" for v in cells), timing.note)
    console.print(stages)
    memory = Table(title="Memory", title_justify="left")
    for head in ("part", "RAM MB", "VRAM MB", "from"):
        memory.add_column(head, justify="right" if head.endswith("MB") else "left")
    vram = "" if found.gpus else NO_GPU
    for part in found.parts:
        memory.add_row(part.name, f"{part.mb:.1f}", vram, part.basis)
    if found.rss_mb is not None and found.unexplained_mb is not None:
        of_gpu = [str(gpu["process_mb"] or UNKNOWN) for gpu in found.gpus] or [NO_GPU]
        rest = f"{found.unexplained_mb:.1f}"
        memory.add_row("not explained", rest, vram, "RSS less the parts")
        told = f"PSS {found.pss_mb:.1f}" if found.pss_mb is not None else "RSS"
        memory.add_row("the process", f"{found.rss_mb:.1f}", ", ".join(of_gpu), told)
    console.print(memory)
    if found.explained is None:
        console.print(f"What the process takes is {UNKNOWN} on this system.")
    else:
        console.print(f"The parts explain {found.explained:.1%} of the process's memory.")
    first = found.cold_start_to_first_token_s
    console.print(
        "Cold start to the first token of an answer with memory: "
        + (f"{first:.2f} s" if first is not None else UNKNOWN)
    )
    energy = NOT_REPORTED if found.joules is None else f"{found.joules:.0f} J"
    console.print(f"Energy: {energy}")
    if found.plan is not None:
        down = ", ".join(found.plan["turned_down"]) or "nothing"
        console.print(f"Memory limit {found.plan['limit_mb']:.0f} MB: turned down {down}.")
    for verdict in found.verdicts:
        console.print(f"[bold]{'✓' if verdict.fits else '✗'}[/] {verdict.sentence()}")


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=8765, show_default=True, help="0: a free one."
)
@click.option("--tls-cert", type=FILE, help="A certificate (PEM), for calls from other machines.")
@click.option("--tls-key", type=FILE, help="Its key (PEM).")
@click.option("--insecure", is_flag=True, help="Let other machines call without TLS.")
@click.option(
    "--allow-host", "hosts", multiple=True, metavar="NAME", help="A name it may be called by."
)
@click.option("--allow-reset", is_flag=True, help="Let POST /reset erase everything.")
@click.option(
    "--queue", type=click.IntRange(min=1), default=16, show_default=True, metavar="N",
    help="Requests that may wait for the model; more get 429.",
)  # fmt: skip
@click.option("--show-token", is_flag=True, help="Print the token that every call needs, and end.")
@click.option("--model", metavar="NAME", help="A model's name or file.  [default: setting `model`]")
@experts_option
@db_option
def serve(
    host: str,
    port: int,
    tls_cert: str | None,
    tls_key: str | None,
    insecure: bool,
    hosts: tuple[str, ...],
    allow_reset: bool,
    queue: int,
    show_token: bool,
    model: str | None,
    experts: str | None,
    db: str | None,
) -> None:
    """Answer for other programs: OpenAI's API, mem0's routes, /lora-adapters, /metrics.

    Only programs of this machine reach it, and each call needs a token, which is made at the first
    start. A chat with `user` remembers and recalls; without, the model answers alone. In a browser
    the same address shows a page on which to look through the memories, correct and forget them.
    """
    require("serve")
    from edgemem.server import Limits
    from edgemem.server import serve as run
    from edgemem.server.asgi import require_safe
    from edgemem.server.guard import load_token, token_file

    token, made = load_token()
    if show_token:
        click.echo(token)
        return
    require_safe(host, tls_cert, tls_key, insecure=insecure)

    def ready(url: str) -> None:
        if stderr_is_terminal():  # and in no log, for the token is in it
            note(f"Look through the memories at {url}/#token={token}")
        note(f"Listening on {url}. Ctrl-C ends it.")

    settings = settings_with(model=model, experts=experts)
    licence_note(settings)
    note(f"The token of every call lies in {token_file()}; `edgemem serve --show-token` prints it.")
    if made and stderr_is_terminal():
        note(f"It was made just now: {token}")
    with open_memory(db, settings) as memory:
        if stderr_is_terminal():
            note("Loading the models …")
        # A missing model ends this at once, and no caller waits for the loading.
        memory.engine, memory.index  # noqa: B018
        run(
            memory,
            host=host,
            port=port,
            token=token,
            tls_cert=tls_cert,
            tls_key=tls_key,
            insecure=insecure,
            hosts=hosts,
            allow_reset=allow_reset,
            on_erase=forget_typed,
            limits=Limits(queue=queue),
            on_ready=ready,
        )


@click.command()
@experts_option
@scope_options
@db_option
def mcp(
    experts: str | None,
    user_id: str | None,
    agent_id: str | None,
    run_id: str | None,
    db: str | None,
) -> None:
    """Serve the memory to a program that speaks MCP, over standard input and output.

    The program starts this itself; tell it the command `edgemem mcp`.
    """
    require("mcp")
    from edgemem.server.mcp import mcp_server

    settings = settings_with(experts=experts)
    licence_note(settings)
    scope: dict[str, Any] = scope_kwargs(settings, user_id, agent_id, run_id)
    with open_memory(db, settings) as memory:
        mcp_server(memory, **scope).run()
