"""`cloud`: what is configured, what was sent, what would be sent, and what never may."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from edgemem.cli.output import (
    db_option,
    json_option,
    note,
    one_line,
    open_memory,
    plural,
    print_json,
    print_result,
    scope_kwargs,
    scope_options,
)
from edgemem.config import load_settings

if TYPE_CHECKING:
    from edgemem.memory import Memory
    from edgemem.store.receipts import Receipt

__all__ = ["cloud"]


@click.group()
def cloud() -> None:
    """The optional cloud: off until you set it up; each call leaves a receipt here."""


@cloud.command()
@db_option
@json_option
def status(db: str | None, as_json: bool) -> None:
    """Show the service, the prices, the budget and what this month has cost."""
    from edgemem.cloud.governor import require_enabled
    from edgemem.cloud.governor import status as find

    settings = load_settings()
    require_enabled(settings.cloud)
    with open_memory(db, settings) as memory:
        found = find(memory.store, settings.cloud)
    lines = (f"{key}\t{'' if value is None else value}" for key, value in found.items())
    print_result(as_json, {"results": [found]}, lines)


@cloud.command()
@click.option("--last", type=click.IntRange(min=1), default=20, show_default=True, metavar="N")
@db_option
@json_option
def receipts(last: int, db: str | None, as_json: bool) -> None:
    """List the last calls: time, service, outcome, tokens, cost, hash of what was sent."""
    from edgemem.store.receipts import receipts as read

    with open_memory(db) as memory:
        found = read(memory.store, last)
    results = [receipt.to_dict() for receipt in found]
    remark = "Nothing was ever sent from this store."
    print_result(as_json, {"results": results}, map(_line, found), remark)


def _line(receipt: Receipt) -> str:
    tokens = f"{receipt.tokens_before}>{receipt.tokens_after} tokens"
    cost = "no price" if receipt.cost is None else f"{receipt.cost:.6f}"
    service = f"{receipt.endpoint} {receipt.model}"
    memories = plural(len(receipt.memory_ids), "memory")
    sha256 = (receipt.sent_sha256 or "hash erased")[:16]
    columns = [receipt.created_at[:19], service, receipt.outcome, tokens, cost, memories, sha256]
    return "\t".join(columns)


@cloud.command("dry-run")
@click.argument("message")
@scope_options
@db_option
@json_option
def dry_run(
    message: str,
    user_id: str | None,
    agent_id: str | None,
    run_id: str | None,
    db: str | None,
    as_json: bool,
) -> None:
    """Print the exact request that MESSAGE would send to the cloud, and send nothing."""
    from edgemem.cloud.governor import Governor, require_enabled
    from edgemem.results import Scope
    from edgemem.stages.intent import intent

    settings = load_settings()
    require_enabled(settings.cloud)
    scope = scope_kwargs(settings, user_id, agent_id, run_id)
    with open_memory(db, settings) as memory, Governor(memory) as governor:
        asks = intent(memory.engine, memory.embedder, message).wants is not None
        hits = memory.search(message, top_k=16, **scope) if asks else ()
        outgoing = governor.prepare(message, hits, scope=Scope(**scope))
    if as_json:
        row = {
            "url": outgoing.request.url,
            "body": outgoing.request.body.decode("utf-8"),
            "sha256": outgoing.sha256,
            "memory_ids": list(outgoing.memory_ids),
            "tokens_before": outgoing.tokens_before,
            "tokens_after": outgoing.tokens_after,
            "cost_at_most": outgoing.cost_at_most,
            "redacted": dict(outgoing.redacted.values),
        }
        print_json({"results": [row]})
        return
    click.echo(outgoing.request.shown())
    for placeholder, value in outgoing.redacted.values.items():
        note(f"{placeholder} stands for {value}, which stays here.")
    cost = outgoing.cost_at_most
    price = "at a price that is not known" if cost is None else f"for at most {cost:.6f}"
    tokens = (
        f"{outgoing.tokens_before} tokens of memories, {outgoing.tokens_after} after compression"
    )
    note(f"Nothing was sent. It would be {len(outgoing.request.body)} bytes ({tokens}), {price}.")


@cloud.command("never-send")
@click.option("--memory", "memories", multiple=True, metavar="ID", help="Mark this memory.")
@click.option("--unmark", multiple=True, metavar="ID", help="Take the mark off this memory.")
@click.option(
    "--pattern",
    "patterns",
    multiple=True,
    metavar="TEXT",
    help="Mark all that holds this keyword, or /regular expression/.",
)
@click.option(
    "--remove", type=int, multiple=True, metavar="N", help="Drop the mark of this number."
)
@click.option("--user-id", metavar="ID", help="Mark all of this user.")
@click.option("--agent-id", metavar="ID", help="Mark all of this agent.")
@click.option("--run-id", metavar="ID", help="Mark all of this run.")
@db_option
@json_option
def never_send(
    memories: tuple[str, ...],
    unmark: tuple[str, ...],
    patterns: tuple[str, ...],
    remove: tuple[int, ...],
    user_id: str | None,
    agent_id: str | None,
    run_id: str | None,
    db: str | None,
    as_json: bool,
) -> None:
    """Mark what may never be sent, and list the marks.

    With a marked memory stay the words it was taken from, and all that was taken from those.
    """
    from edgemem.config import checked
    from edgemem.results import Scope
    from edgemem.store import receipts as kept

    # The same rules as in config.toml, so a wrong expression is refused here.
    wanted = checked("never_send", list(patterns), "the call")
    scope = Scope(user_id, agent_id, run_id)
    with open_memory(db) as memory:
        with memory.store.transaction() as tx:
            for id in memories:
                kept.set_never_send(tx, id, True)
            for id in unmark:
                kept.set_never_send(tx, id, False)
            for pattern in wanted:
                kept.add_mark(tx, pattern=pattern)
            if scope != Scope():
                kept.add_mark(tx, scope=scope)
            for number in remove:
                kept.remove_mark(tx, number)
        rows = _marks(memory)
    lines = ("\t".join(str(v) for v in row.values() if v is not None) for row in rows)
    print_result(as_json, {"results": rows}, lines, "Nothing is marked.")


def _marks(memory: Memory) -> list[dict[str, Any]]:
    from edgemem.store.receipts import marks

    rows: list[dict[str, Any]] = []
    for mark in marks(memory.store):
        scope = {"user_id": mark.scope.user_id, "agent_id": mark.scope.agent_id}
        rows.append({"id": mark.id, "pattern": mark.pattern, **scope, "run_id": mark.scope.run_id})
    rows += [{"id": "config", "pattern": p} for p in memory.settings.cloud.never_send]
    flagged = memory.get_all(filters={"never_send": True})
    rows += [{"id": item.id, "memory": one_line(item.memory)} for item in flagged]
    return rows
