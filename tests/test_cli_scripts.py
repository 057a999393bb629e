"""The command line in scripts: pipes, files in the wrong place, empty variables, exit codes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from clikit import Run

from edgemem.errors import InputError
from edgemem.memory import Memory

pytestmark = [pytest.mark.models, pytest.mark.usefixtures("home")]
CAT = "My cat is called Tom."


@pytest.fixture
def store(home: Path, run: Run) -> Path:
    """A store with one memory, where the settings have it."""
    run("add", "--no-infer", CAT)
    return home / "memory.db"


def listed(run: Run, *options: Any) -> list[dict[str, Any]]:
    return list(json.loads(run("list", "--json", *map(str, options)).stdout)["results"])


# -- what is written -----------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["", "-wal", "-shm", ".vault"])
@pytest.mark.parametrize(
    "command", [("export",), ("get", "any", "--picture"), ("profile", "--html")], ids=" ".join
)
def test_no_output_overwrites_a_store_or_what_belongs_to_one(
    run: Run, store: Path, tmp_path: Path, command: tuple[str, ...], end: str
) -> None:
    other = tmp_path / "another.db"
    shutil.copy(store, other)
    link = tmp_path / "link"
    link.symlink_to(f"{other}{end}")
    for file in (f"{store}{end}", f"{other}{end}", str(link)):
        told = run(*command, file, code=2).stderr
        assert f"{file} is a store, or belongs to one; give another file." in told
    assert [item["memory"] for item in listed(run)] == [CAT] == [
        item["memory"] for item in listed(run, "--db", other)
    ]  # fmt: skip


def test_an_export_from_python_does_not_overwrite_its_store(store: Path) -> None:
    with Memory(store) as memory:
        with pytest.raises(InputError, match=r"memory\.db is the store itself"):
            memory.export_jsonl(store)
        assert [item.memory for item in memory.get_all()] == [CAT]
