"""`reindex`, `align`, `doctor`, `models`, `config`, `cloud`, and what `--version` prints."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from edgemem.cli import output as ui
from edgemem.cli import typed
from edgemem.config import (
    NO_MODEL,
    Settings,
    check_key,
    config_file,
    load_settings,
    set_value,
    unset_value,
    variable,
)
from edgemem.errors import EdgememError, MemoryBudgetExceeded, ModelError, StoreCorrupt
from edgemem.results import Aligned, Scope

if TYPE_CHECKING:
    from pathlib import Path

    from edgemem.memory import Memory
    from edgemem.runtime.models import Installed
    from edgemem.runtime.tune import Tuning
    from edgemem.store.receipts import Receipt

__all__ = ["tune_first"]


def _print_version(ctx: click.Context, _param: click.Parameter, wanted: bool) -> None:
    """Prints the version, the configured models, the vector backend and llama.cpp's build."""
    if not wanted or ctx.resilient_parsing:
        return
    import edgemem
    from edgemem import kernels
    from edgemem.runtime import machine
    from edgemem.runtime.embedder import TOKEN_MODEL
    from edgemem.runtime.models import installed

    settings = load_settings()
    click.echo(f"edgemem {edgemem.__version__}")
    source = {row.name: row.source for row in installed()}
    named = [("model", settings.model), ("embedder", settings.embedder)]
    if settings.mmproj != NO_MODEL:
        named.append(("projector", settings.mmproj))
    if settings.retrieval == "careful":
        named.append(("token embedder", TOKEN_MODEL))
    for label, name in named:
        state = source.get(name, "a file")
        click.echo(f"{label}: {name} ({'not installed' if state == 'missing' else state})")
    click.echo(f"vectors: {kernels.backend} ({kernels.backend_detail})")
    click.echo(f"llama.cpp: {_llama_build()}")
    click.echo(f"processor: {machine.summary()}")
    ctx.exit()


click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Show the version, the models, the vector backend and the llama.cpp build.",
)(ui.cli)


def _llama_build() -> str:
    try:
        from edgemem.runtime.llama import build_info

        return build_info()
    except Exception as exc:  # a missing or broken native library may raise anything
        return f"not usable ({ui.one_line(str(exc))}); reinstall llama-cpp-python"


@ui.cli.command()
@ui.memory_option
def reindex(memory: Memory) -> None:
    """Embed every memory anew, for instance after changing the embedder."""
    with ui.progress("Embedding", None) as advance:
        count = memory.reindex(on_progress=advance)
    ui.print_rows([{"reindexed": count}], remark=f"{count} embedded anew.")


@ui.cli.command()
@ui.memory_option
def align(memory: Memory) -> None:
    """Map every vector to a new embedder's space, to search at once; see also `reindex`.

    Embeds a sample of the memories anew and maps the vectors of all others by it. `edgemem reindex`
    embeds them all, takes longer, and may follow at any time.
    """
    with ui.progress("Embedding", None) as advance:
        aligned = memory.align(on_progress=advance)
    if aligned == Aligned(0, 0):
        remark = "The vectors are the embedder's already."
    else:
        remark = f"{aligned.mapped} mapped, {aligned.embedded} embedded anew."
    ui.print_rows([asdict(aligned)], remark=remark)


_PENDING = ("id", "task", "attempts", "last_error", "created_at", "next_try_at")


@ui.cli.command()
@click.option("--retry", is_flag=True, help="Work off what is pending now.")
@click.option("--erased", is_flag=True, help="Read all files again for what was ever erased.")
@click.option(
    "--receipt", metavar="FILE", help="With --erased: what `edgemem erase --json` printed."
)
@ui.db_and_json_options
def doctor(retry: bool, erased: bool, receipt: str | None, db: str | None) -> None:
    """Check the store and list the work that is still pending, with its last error.

    With --erased, the receipts of erasing are checked, and all files of the store are looked
    through for what they name. "typed" then counts the lines typed in chats whose words are in no
    stored message, such as "/memories Lena". The exit code is 1 if a problem was found.
    """
    kept = None if receipt is None else _receipt(receipt)
    with ExitStack() as opened:
        refused = []
        with _without_doctor(""):  # an export could not open the store either
            try:
                memory = opened.enter_context(ui.open_memory(db))
            except MemoryBudgetExceeded as exc:
                if retry:
                    raise
                refused.append(str(exc))
                memory = opened.enter_context(ui.open_memory(db, loads=False))
        with _without_doctor(f"{_SAVE}, or "):
            _examine(memory, retry, erased if kept is None else kept, refused)


_SEE_DOCTOR = "run `edgemem doctor`"
_SAVE = "save what can be read (`edgemem export FILE`)"


@contextmanager
def _without_doctor(instead: str) -> Iterator[None]:
    """Has an error that sends people to the doctor name what else can be done."""
    try:
        yield
    except StoreCorrupt as exc:
        raise StoreCorrupt(str(exc).replace(f"{_SEE_DOCTOR}, or ", instead)) from exc


def _examine(
    memory: Memory, retry: bool, erased: bool | Mapping[str, Any], refused: list[str]
) -> None:
    from edgemem.runtime import machine

    changes = None
    if retry:
        with ui.progress("Working off what is pending", None) as advance:
            changes = memory.process_pending(retry_now=True, on_progress=advance)
    pending = [{key: getattr(item, key) for key in _PENDING} for item in memory.pending()]
    found = memory.doctor(erased=erased)
    problems = [str(problem).replace(_SEE_DOCTOR, _SAVE) for problem in found["problems"]]
    found["problems"] = [*problems, *refused]
    if erased is not False:
        lines = typed.told_nowhere(memory)
        found["typed"] = {"lines": len(lines), "files": [str(f) for f in typed.kept_files()]}
    of_here = {"processor": machine.summary(), "vision": _projector(memory.settings)}
    report = {**found, **of_here, "pending": pending}
    if changes is not None:
        report["retried"] = changes.to_dict()["results"]
    ui.print_rows([report], [*_report_lines(report), *map(ui.change_line, changes or ())])
    ui.pending_note(len(pending))
    if report["problems"]:
        raise click.exceptions.Exit(1)


def _projector(settings: Settings) -> str:
    """Describes the projector without loading it."""
    from edgemem.runtime import models, vision

    if settings.mmproj == NO_MODEL:
        return "none: images are found by their words (setting `mmproj`)"
    try:
        file = models.find(settings.mmproj)
        header = vision.check_projector(file, vision.width_of(models.find(settings.model)))
    except EdgememError as exc:
        return f"not usable: {exc}"
    return f"{file.name} ({vision.projector_type(header)})"


def _receipt(file: str) -> Mapping[str, Any]:
    try:
        kept = json.loads(ui.read_text(file))
    except (OSError, ValueError, RecursionError) as exc:
        raise click.UsageError(f"{file} cannot be read as JSON ({exc})") from exc
    return kept if isinstance(kept, dict) else {}


def _report_lines(report: Mapping[str, Any]) -> Iterator[str]:
    for key, value in report.items():
        if key in ("problems", "pending", "retried"):
            continue
        yield f"{key}\t{ui.in_words(value)}"
    for problem in report["problems"] or ["none"]:
        yield f"problem\t{ui.one_line(str(problem))}"
    for item in report["pending"]:
        tries = ui.plural(item["attempts"], "failed try")
        why = ui.one_line(item["last_error"] or "not tried yet")
        yield f"pending\t{item['id']}\t{item['task']}\t{tries}\t{why}"


# -- models --------------------------------------------------------------------------------------


@ui.cli.group()
def models() -> None:
    """The models: which there are, where they lie, and whether they are whole."""


@models.command("list")
@ui.json_option
def models_list() -> None:
    """List the known models: name, kind, where from, size, licence, how it is used, what it is.

    A language model is used as `expert` (a set of experts fits it), `instruct` (it talks freely,
    with notes) or `quote` (it quotes what was said).
    """
    from edgemem.runtime.models import installed

    results, lines = [], []
    for row in installed():
        used_as, size = _used_as(row), f"{row.size_bytes / 1e6:.1f} MB"
        results.append(row.to_dict() | {"reader": used_as})
        about = [row.licence, used_as or "-", row.about]
        lines.append("\t".join([row.name, row.kind, row.source, size, *about]))
    ui.print_rows(results, lines)


def _used_as(row: Installed) -> str | None:
    """Returns the reader of an installed language model; None for a damaged or any other file."""
    from edgemem.runtime.experts import chosen_set, fits, reader_of_file

    if row.path is None or row.path.suffix != ".gguf":
        return None
    settings = load_settings()
    try:
        chosen = chosen_set(settings.experts, row.path)
        expert = chosen is not None and fits(chosen, row.path)
        found = reader_of_file(row.path, expert=expert)
    except EdgememError:
        return None
    return found if settings.reader == "auto" else settings.reader


@models.command("where")
@click.argument("name", required=False)
@ui.json_option
def models_where(name: str | None) -> None:
    """Print the path of a model's file; without NAME, the folder that you may put models in."""
    from edgemem.runtime.models import find, user_models_dir

    _print_path(user_models_dir() if name is None else find(name), name=name)


@models.command("verify")
@click.argument("names", nargs=-1, metavar="[NAME]...")
@ui.json_option
def models_verify(names: tuple[str, ...]) -> None:
    """Check the sha256 of models (default: all that are installed and known)."""
    from edgemem.runtime.models import installed, manifest, verify

    if not names:
        there, known = installed(), manifest()
        names = tuple(r.name for r in there if r.source != "missing" and r.name in known)
    rows = []
    with ui.progress("Checking", len(names)) as advance:
        for done, name in enumerate(names, 1):
            rows.append({"name": name, "ok": verify(name)})
            advance(done)
    lines = (f"{row['name']}\t{'ok' if row['ok'] else 'damaged'}" for row in rows)
    ui.print_rows(rows, lines)
    if not all(row["ok"] for row in rows):
        ui.note("Delete a damaged file (`edgemem models where NAME`) and install or pull it again.")
        raise click.exceptions.Exit(1)


@models.command("pull")
@click.argument("name")
@ui.json_option
def models_pull(name: str) -> None:
    """Fetch a model into your models folder and check its sha256. This uses the network."""
    from edgemem.runtime.models import pull

    with ui.progress("Fetching bytes", None) as advance:
        path = pull(name, advance)
    _print_path(path, name=name)


def _print_path(path: Path, **more: str | None) -> None:
    ui.print_rows([{**more, "path": str(path)}], [str(path)])


@models.command("tune")
@ui.json_option
def models_tune() -> None:
    """Find the form and the threads that run the default model fastest here, and store them.

    Takes some seconds, and 150 MB in the cache folder. `edgemem config set tuned off` ends its use.
    """
    tuning = _tune()
    lines = ["form\tthreads\tprefill tokens/s\tdecode tokens/s"]
    for speed in tuning.speeds:
        prefill, decode = speed.prefill_tokens_per_s, speed.decode_tokens_per_s
        lines.append(f"{speed.form}\t{speed.n_threads}\t{prefill:.0f}\t{decode:.0f}")
    ui.print_rows([{**asdict(tuning), "path": str(tuning.path)}], lines)
    if not ui.wants_json():
        ui.note(
            f"Chosen: {tuning.form}, {ui.plural(tuning.n_threads_batch, 'thread')} for prefill and "
            f"{tuning.n_threads} for decoding. Stored in {tuning.path}."
        )


def _tune() -> Tuning:
    from edgemem.runtime.tune import tune

    with ui.progress("Tuning the model", 100) as advance:
        return tune(advance)


_TUNING_BYTES = 500_000_000  # tuning holds two forms of the model


def tune_first(settings: Settings) -> None:
    """Tunes the model if it is the default one on the CPU, is not tuned, and a person is there.

    Only for interactive commands. If tuning fails, the model is used as it is.
    """
    from edgemem.runtime import models, tune

    wanted = settings.tuned == "on" and settings.model == models.DEFAULT_LLM
    fits = (settings.memory_limit_bytes or _TUNING_BYTES) >= _TUNING_BYTES
    if not (wanted and fits and ui.at_a_terminal()) or settings.n_gpu_layers:
        return
    if tune.stored(models.find(models.DEFAULT_LLM)) is not None:
        return
    ui.note("Tuning the model for this machine, once; `edgemem config set tuned off` ends it.")
    try:
        _tune()
    except ModelError as exc:
        ui.note(f"Not tuned: {exc}")


# -- config --------------------------------------------------------------------------------------


@ui.cli.group()
def config() -> None:
    """The settings, from config.toml and the environment (EDGEMEM_<KEY>)."""


def _print_settings(values: Mapping[str, Any]) -> None:
    results = [{"key": key, "value": value} for key, value in values.items()]
    ui.print_rows(results, _rows(values))


def _rows(values: Mapping[str, Any]) -> Iterator[str]:
    return (f"{key}\t{'' if value is None else value}" for key, value in values.items())


@config.command("show")
@ui.json_option
def config_show() -> None:
    """Show every setting that is in force."""
    _print_settings(load_settings().to_dict())


@config.command("get")
@click.argument("key")
@ui.json_option
def config_get(key: str) -> None:
    """Print one setting."""
    check_key(key)
    value = load_settings().to_dict()[key]
    shown = "" if value is None else str(value)
    ui.print_rows([{"key": key, "value": value}], [shown])


@config.command("set", context_settings={"ignore_unknown_options": True})  # -1 is a value
@click.argument("key")
@click.argument("value")
@ui.json_option
def config_set(key: str, value: str) -> None:
    """Write one setting to config.toml.

    The texts of a list are separated by commas: `salary, /IBAN.{0,9}/`.
    """
    file = set_value(key, value)
    ui.note(f"Written to {file}.")
    _print_changed(key)


@config.command("unset")
@click.argument("key")
@ui.json_option
def config_unset(key: str) -> None:
    """Take one setting out of config.toml, so that its default holds again.

    Takes out one that is wrong or unknown, too.
    """
    file = unset_value(key)
    ui.note(f"{file} no longer sets {key}.")
    _print_changed(key)


def _print_changed(key: str) -> None:
    if os.environ.get(variable(key)):
        ui.note(f"{variable(key)} is set in the environment, and holds instead.")
    values = load_settings().to_dict()
    _print_settings({key: values[key]} if key in values else {})


@config.command("path")
@ui.json_option
def config_path() -> None:
    """Print the path of config.toml."""
    _print_path(config_file())


# -- cloud ---------------------------------------------------------------------------------------


@ui.cli.group()
def cloud() -> None:
    """The optional cloud: off until you set it up; each call leaves a receipt here."""


@cloud.command("status")
@ui.db_and_json_options
def cloud_status(db: str | None) -> None:
    """Show the service, the prices, the budget and what this month has cost."""
    from edgemem.cloud.governor import require_enabled, status

    settings = load_settings()
    require_enabled(settings.cloud)
    with ui.open_memory(db, settings) as memory:
        found = status(memory.store, settings.cloud)
    ui.print_rows([found], _rows(found))


@cloud.command("receipts")
@click.option("--last", type=click.IntRange(min=1), default=20, metavar="N")
@ui.store_option
def cloud_receipts(last: int, memory: Memory) -> None:
    """List the last calls: time, service, outcome, tokens, cost, hash of what was sent.

    Receipts stay in this store: no export has them.
    """
    from edgemem.store.receipts import receipts

    found = receipts(memory.store, last)
    results = [receipt.to_dict() for receipt in found]
    remark = "This store has no receipt of a cloud call."
    ui.print_rows(results, map(_receipt_line, found), remark)


def _receipt_line(receipt: Receipt) -> str:
    tokens = f"{receipt.tokens_before}>{receipt.tokens_after} tokens"
    cost = "no price" if receipt.cost is None else f"{receipt.cost:.6f}"
    service = f"{receipt.endpoint} {receipt.model}"
    memories = ui.plural(len(receipt.memory_ids), "memory")
    sha256 = (receipt.sent_sha256 or "hash erased")[:16]
    time = ui.minute(receipt.created_at)
    return "\t".join([time, service, receipt.outcome, tokens, cost, memories, sha256])


@cloud.command("dry-run")
@click.argument("message")
@ui.scope_options
@ui.db_and_json_options
def dry_run(message: str, scope: dict[str, Any], db: str | None) -> None:
    """Print the exact request that MESSAGE would send to the cloud, and send nothing.

    It takes no key. MESSAGE is taken as the first of a chat: what goes with a later one depends on
    what was said before it.
    """
    from edgemem.chat import Chat
    from edgemem.cloud.governor import Governor, require_enabled
    from edgemem.results import Scope

    settings = load_settings()
    require_enabled(settings.cloud)
    with ui.open_memory(db, settings) as memory, Governor(memory, dry=True) as governor:
        hits = Chat(memory, **scope).offered(message)
        outgoing = governor.prepare(message, hits, scope=Scope(**scope))
    kept = outgoing.receipt
    row = {
        "url": outgoing.request.url,
        "body": outgoing.request.body.decode("utf-8"),
        "sha256": kept.sent_sha256,
        "memory_ids": kept.memory_ids,
        "tokens_before": kept.tokens_before,
        "tokens_after": kept.tokens_after,
        "cost_at_most": kept.cost,
        "redacted": outgoing.replaced,
        "images": outgoing.images,
    }
    ui.print_rows([row], [outgoing.request.shown()])
    if ui.wants_json():
        return
    for placeholder, value in outgoing.replaced.items():
        ui.note(f"{placeholder} stands for {value}, which stays here.")
    for image in outgoing.images:
        ui.note(f"The image {image} would go along, small and without metadata.")
    unknown = f"at an unknown cost: prices.toml has no price of {settings.cloud.model!r}"
    price = unknown if kept.cost is None else f"for at most {kept.cost:.6f}"
    tokens = f"{kept.tokens_before} tokens of memories, {kept.tokens_after} after compression"
    ui.note(f"Nothing was sent. It would be {kept.sent_bytes} bytes ({tokens}), {price}.")


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
    "--image", "images", multiple=True, metavar="ID|FILE", help="Mark this image, stored or not."
)
@click.option(
    "--remove", type=int, multiple=True, metavar="N", help="Drop the mark of this number."
)
@click.option("--user-id", metavar="ID", help="Mark all of this user; with IDs, keep to this user.")
@click.option("--agent-id", metavar="ID", help="The same of this agent.")
@click.option("--run-id", metavar="ID", help="The same of this run.")
@ui.db_and_json_options
def never_send(
    memories: tuple[str, ...],
    unmark: tuple[str, ...],
    patterns: tuple[str, ...],
    images: tuple[str, ...],
    remove: tuple[int, ...],
    db: str | None,
    **scope: str | None,
) -> None:
    """Keep something private: mark what may never be sent, and list the marks.

    With a marked memory stay the words it was taken from, and all that was taken from those. With
    IDs, the list leaves out the marks of others.
    """
    from edgemem import images as picture
    from edgemem.cloud.governor import IMAGE
    from edgemem.config import checked
    from edgemem.store import receipts as kept

    ids = [i if re.fullmatch("[0-9a-f]{64}", i) else picture.read(i).id for i in images]
    # The same rules as in config.toml, so a wrong expression is refused here.
    wanted = checked("cloud.never_send", list(patterns), "the call")
    new = [*wanted, *(IMAGE + id for id in ids)]
    ui.keep_given(scope)
    owned, given = (*memories, *unmark), Scope(**scope)
    scoped = not owned and given != Scope()
    if given != Scope() and (new or remove):
        raise click.UsageError(
            "--pattern, --image and --remove are of all users; give them without --user-id, "
            "--agent-id and --run-id."
        )
    with ui.open_memory(db, create=bool(new) or scoped) as memory:
        for id in owned:
            ui.existing(memory, id, deleted=True)
        with memory.store.transaction() as tx:
            for id in memories:
                kept.set_never_send(tx, id, True)
            for id in unmark:
                kept.set_never_send(tx, id, False)
            for pattern in new:
                kept.add_mark(tx, pattern=pattern)
            if scoped:
                kept.add_mark(tx, scope=given)
            for number in remove:
                kept.remove_mark(tx, number)
        marks = [m for m in kept.marks(memory.store) if _may_meet(m.scope, given)]
        flagged = [m for m in memory.get_all(filters={"never_send": True}) if given.has(m)]
    rows: list[dict[str, Any]] = [
        {"id": mark.id, "pattern": mark.pattern, **asdict(mark.scope)} for mark in marks
    ]
    rows += [{"id": "config", "pattern": p} for p in memory.settings.cloud.never_send]
    rows += [{"id": item.id, "memory": ui.one_line(item.memory)} for item in flagged]
    lines = ("\t".join(str(v) for v in row.values() if v is not None) for row in rows)
    ui.print_rows(rows, lines, "Nothing is marked.")


def _may_meet(one: Scope, other: Scope) -> bool:
    """Whether a memory can be of both scopes. A pattern, which has no ids, may meet any."""
    pairs = zip(asdict(one).values(), asdict(other).values(), strict=True)
    return all(None in pair or pair[0] == pair[1] for pair in pairs)
