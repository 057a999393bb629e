"""`serve` and `mcp`: the memory for other programs of the same person.

Knows options and what is told at the start; `edgemem.server` does the work.
"""

from __future__ import annotations

from typing import Any

import click

from edgemem.cli.output import (
    db_option,
    experts_option,
    licence_note,
    note,
    open_memory,
    scope_kwargs,
    scope_options,
    settings_with,
    stderr_is_terminal,
)
from edgemem.cli.typed import forget_typed
from edgemem.config import require

__all__ = ["mcp", "serve"]

FILE = click.Path(exists=True, dir_okay=False)


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
