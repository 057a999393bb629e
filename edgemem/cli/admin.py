"""`reindex`, `doctor`, `models`, `config` and what `--version` prints."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from edgemem.cli.output import (
    change_line,
    db_option,
    json_option,
    note,
    one_line,
    open_memory,
    pending_note,
    plural,
    print_json,
    print_result,
    progress,
    stderr_is_terminal,
    stdin_is_terminal,
    working,
)
from edgemem.config import Settings, config_file, load_settings, set_value, unset_value
from edgemem.errors import ConfigError, EdgememError, ModelError

if TYPE_CHECKING:
    from edgemem.runtime.models import Installed
    from edgemem.runtime.tune import Tuning

__all__ = ["config", "doctor", "models", "print_version", "reindex", "tune_first"]


def print_version() -> None:
    """The version, the default models, the vector backend and llama.cpp's build."""
    import edgemem
    from edgemem.runtime import machine
    from edgemem.runtime.models import installed

    settings = load_settings()
    click.echo(f"edgemem {edgemem.__version__}")
    source = {row.name: row.source for row in installed()}
    for label, name in (("model", settings.model), ("embedder", settings.embedder)):
        state = source.get(name, "a file")
        click.echo(f"{label}: {name} ({'not installed' if state == 'missing' else state})")
    from edgemem import kernels

    click.echo(f"vectors: {kernels.backend} ({kernels.backend_detail})")
    click.echo(f"llama.cpp: {_llama_build()}")
    click.echo(f"processor: {machine.summary()}")


def _llama_build() -> str:
    try:
        from edgemem.runtime.engine import build_info

        return build_info()
    except Exception as exc:  # a missing or broken native library may raise anything
        return f"not usable ({one_line(str(exc))}); reinstall llama-cpp-python"


@click.command()
@db_option
@json_option
def reindex(db: str | None, as_json: bool) -> None:
    """Embed every memory anew, for instance after changing the embedder."""
    with open_memory(db) as memory, progress("Embedding", None) as advance:
        count = memory.reindex(on_progress=advance)
    print_result(as_json, {"results": [{"reindexed": count}]}, remark=f"{count} embedded anew.")


_PENDING = ("id", "task", "attempts", "last_error", "created_at", "next_try_at")


@click.command()
@click.option("--retry", is_flag=True, help="Work off what is pending now.")
@db_option
@json_option
def doctor(retry: bool, db: str | None, as_json: bool) -> None:
    """Check the store and list the work that is still pending, with its last error.

    The exit code is 1 if a problem was found.
    """
    from edgemem.runtime import machine

    with open_memory(db) as memory:
        changes = None
        if retry:
            with working("Working off what is pending …"):
                changes = memory.process_pending(retry_now=True)
        report: dict[str, Any] = dict(memory.doctor())
        pending = [{key: getattr(item, key) for key in _PENDING} for item in memory.pending()]
    report["processor"] = machine.summary()
    report["pending"] = pending
    if changes is not None:
        report["retried"] = changes.to_dict()["results"]
    shown = json.loads(json.dumps(report, default=str))
    lines = [*_report_lines(report), *map(change_line, changes or ())]
    print_result(as_json, {"results": [shown]}, lines)
    pending_note(len(pending))
    if report.get("problems"):
        raise click.exceptions.Exit(1)


def _report_lines(report: dict[str, Any]) -> Iterator[str]:
    for key, value in report.items():
        if key in ("problems", "pending", "retried"):
            continue
        if isinstance(value, dict):
            value = ", ".join(f"{name} {number}" for name, number in value.items())
        yield f"{key}\t{one_line(str(value))}"
    for problem in report.get("problems") or ["none"]:
        yield f"problem\t{one_line(str(problem))}"
    for item in report["pending"]:
        tries = plural(item["attempts"], "failed try")
        why = one_line(item["last_error"] or "not tried yet")
        yield f"pending\t{item['id']}\t{item['task']}\t{tries}\t{why}"


# -- models --------------------------------------------------------------------------------------


@click.group()
def models() -> None:
    """The models: which there are, where they lie, and whether they are whole."""


@models.command("list")
@json_option
def models_list(as_json: bool) -> None:
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
    print_result(as_json, {"results": results}, lines)


def _used_as(row: Installed) -> str | None:
    """How a language model that is here is used; None for anything else, and a damaged file."""
    from edgemem.runtime.experts import chosen_set, reader_of_file

    if row.path is None or row.path.suffix != ".gguf":
        return None
    settings = load_settings()
    try:
        expert = chosen_set(settings.experts, row.path) is not None
        found = reader_of_file(row.path, expert=expert)
    except EdgememError:
        return None
    return found if settings.reader == "auto" else settings.reader


@models.command("where")
@click.argument("name", required=False)
@json_option
def models_where(name: str | None, as_json: bool) -> None:
    """Print the path of a model's file; without NAME, the folder that you may put models in."""
    from edgemem.runtime.models import find, user_models_dir

    path = user_models_dir() if name is None else find(name)
    print_result(as_json, {"results": [{"name": name, "path": str(path)}]}, [str(path)])


@models.command("verify")
@click.argument("names", nargs=-1, metavar="[NAME]...")
@json_option
def models_verify(names: tuple[str, ...], as_json: bool) -> None:
    """Check the sha256 of models (default: all that are installed and known)."""
    from edgemem.runtime.models import installed, manifest, verify

    if not names:
        known = manifest()
        there = [row.name for row in installed() if row.source != "missing"]
        names = tuple(name for name in there if name in known)
    rows = []
    with progress("Checking", len(names)) as advance:
        for done, name in enumerate(names, 1):
            rows.append({"name": name, "ok": verify(name)})
            advance(done)
    lines = (f"{row['name']}\t{'ok' if row['ok'] else 'damaged'}" for row in rows)
    print_result(as_json, {"results": rows}, lines)
    if not all(row["ok"] for row in rows):
        note("Delete a damaged file (`edgemem models where NAME`) and install or pull it again.")
        raise click.exceptions.Exit(1)


@models.command("pull")
@click.argument("name")
@json_option
def models_pull(name: str, as_json: bool) -> None:
    """Fetch a model into your models folder and check its sha256. This uses the network."""
    from edgemem.runtime.models import pull

    with progress("Fetching bytes", None) as advance:
        path = pull(name, advance)
    print_result(as_json, {"results": [{"name": name, "path": str(path)}]}, [str(path)])


@models.command("tune")
@json_option
def models_tune(as_json: bool) -> None:
    """Find the form and the threads that run the default model fastest here, and store them.

    Takes some seconds, and 150 MB in the cache folder. `edgemem config set tuned off` ends its use.
    """
    tuning = _tune()
    if as_json:
        print_json({"results": [{**asdict(tuning), "path": str(tuning.path)}]})
        return
    click.echo("form\tthreads\tprefill tokens/s\tdecode tokens/s")
    for speed in tuning.speeds:
        prefill, decode = speed.prefill_tokens_per_s, speed.decode_tokens_per_s
        click.echo(f"{speed.form}\t{speed.n_threads}\t{prefill:.0f}\t{decode:.0f}")
    note(
        f"Chosen: {tuning.form}, {plural(tuning.n_threads_batch, 'thread')} for prefill and "
        f"{tuning.n_threads} for decoding. Stored in {tuning.path}."
    )


def _tune() -> Tuning:
    from edgemem.runtime.tune import tune

    with progress("Tuning the model", 100) as advance:
        return tune(advance)


def tune_first(settings: Settings) -> None:
    """Tune the default model if that is what settings load, it never was, and a person is there.

    Only for commands that a person talks with. A model that cannot be tuned is used as it is.
    """
    from edgemem.runtime import models, tune

    wanted = settings.tuned == "on" and settings.model == models.DEFAULT_LLM
    if not wanted or settings.n_gpu_layers or not (stdin_is_terminal() and stderr_is_terminal()):
        return
    if tune.stored(models.find(models.DEFAULT_LLM)) is not None:
        return
    note("Tuning the model for this machine, once; `edgemem config set tuned off` ends it.")
    try:
        _tune()
    except ModelError as exc:
        note(f"Not tuned: {exc}")


# -- config --------------------------------------------------------------------------------------


@click.group()
def config() -> None:
    """The settings, from config.toml and the environment (EDGEMEM_<KEY>)."""


def _print_settings(values: dict[str, Any], as_json: bool) -> None:
    results = [{"key": key, "value": value} for key, value in values.items()]
    lines = (f"{key}\t{'' if value is None else value}" for key, value in values.items())
    print_result(as_json, {"results": results}, lines)


@config.command("show")
@json_option
def config_show(as_json: bool) -> None:
    """Show every setting that is in force."""
    _print_settings(load_settings().to_dict(), as_json)


@config.command("get")
@click.argument("key")
@json_option
def config_get(key: str, as_json: bool) -> None:
    """Print one setting."""
    values = load_settings().to_dict()
    if key not in values:
        raise ConfigError(f"Unknown setting {key!r}. Allowed: {', '.join(values)}.")
    value = values[key]
    results = [{"key": key, "value": value}]
    print_result(as_json, {"results": results}, ["" if value is None else str(value)])


@config.command("set")
@click.argument("key")
@click.argument("value")
@json_option
def config_set(key: str, value: str, as_json: bool) -> None:
    """Write one setting to config.toml."""
    file = set_value(key, value)
    note(f"Written to {file}.")
    _print_settings({key: load_settings(file).to_dict()[key]}, as_json)


@config.command("unset")
@click.argument("key")
@json_option
def config_unset(key: str, as_json: bool) -> None:
    """Take one setting out of config.toml, so that its default holds again."""
    file = unset_value(key)
    note(f"Taken out of {file}.")
    _print_settings({key: load_settings().to_dict()[key]}, as_json)


@config.command("path")
@json_option
def config_path(as_json: bool) -> None:
    """Print the path of config.toml."""
    print_result(as_json, {"results": [{"path": str(config_file())}]}, [str(config_file())])
