"""The command line in scripts: pipes, files in the wrong place, empty variables, exit codes."""

import json
import os
import shutil
import subprocess
import sys

import pytest

from edgemem.errors import InputError
from edgemem.memory import Memory

pytestmark = [pytest.mark.models, pytest.mark.usefixtures("home")]
CAT = "My cat is called Tom."


@pytest.fixture
def store(home, run):
    """A store with one memory, where the settings have it."""
    run("add", "--no-infer", CAT)
    return home / "memory.db"


def listed(run, *options):
    return list(json.loads(run("list", "--json", *map(str, options)).stdout)["results"])


# -- what is written -----------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["", "-wal", "-shm", ".vault"])
@pytest.mark.parametrize(
    "command", [("export",), ("get", "any", "--picture"), ("profile", "--html")], ids=" ".join
)
def test_no_output_overwrites_a_store_or_what_belongs_to_one(run, store, tmp_path, command, end):
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


def test_a_file_named_like_the_end_of_a_store_is_written(run, store):
    run("export", str(store.parent / ".vault"))
    assert (store.parent / ".vault").read_text() == run("export").stdout


@pytest.mark.parametrize("end", ["", "-wal", "-shm", ".lock", ".vault", ".images/0a1b"])
def test_an_export_from_python_overwrites_no_store(store, tmp_path, end):
    other, closed = tmp_path / "another.db", tmp_path / "closed.db"
    shutil.copy(store, closed)
    with Memory(store) as memory, Memory(other):
        for file in (store, other, closed):
            with pytest.raises(InputError, match=r"is a store, or belongs to one"):
                memory.export_jsonl(f"{file}{end}")
        assert [item.memory for item in memory.get_all()] == [CAT]


# -- settings ------------------------------------------------------------------------------------


def test_config_repairs_a_file_that_it_refuses(run, home):
    file = home / "config.toml"
    file.write_text("top_k = 'many'\ncolour = 3\n")
    assert "top_k = 'many'" in run("config", "show", code=1).stderr
    gone = run("config", "unset", "colour", code=1)  # the other is still wrong
    assert gone.stderr.startswith(f"{file} no longer sets colour.\nError: Setting top_k = 'many'")
    assert run("config", "set", "top_k", "7").stdout == "top_k\t7\n"
    assert run("config", "unset", "nothing", code=2).stderr.startswith("Error: Unknown setting")


def test_config_says_that_a_variable_holds_instead_of_the_file(run, monkeypatch):
    monkeypatch.setenv("EDGEMEM_TOP_K", "3")
    for change in (("set", "top_k", "7"), ("unset", "top_k")):
        told = run("config", *change)
        assert told.stdout == "top_k\t3\n"
        assert "EDGEMEM_TOP_K is set in the environment, and holds instead." in told.stderr
    assert "environment" not in run("config", "set", "n_ctx", "512").stderr


def test_a_setting_below_zero_needs_no_dashes(run):
    assert run("config", "set", "n_gpu_layers", "-1").stdout == "n_gpu_layers\t-1\n"


# -- a variable that is empty --------------------------------------------------------------------


@pytest.mark.usefixtures("store")
@pytest.mark.parametrize("command", [("export",), ("cloud", "never-send"), ("list",)], ids=" ".join)
def test_an_empty_id_is_refused_by_every_command(run, command):
    refused = run(*command, "--user-id", "", code=2)
    assert refused.stderr.startswith("Error: the user_id is empty") and refused.stdout == ""


# -- standard input ------------------------------------------------------------------------------


def test_a_dash_is_standard_input_without_a_byte_order_mark(run):
    run("add", "--no-infer", "-", input=b"\xef\xbb\xbfone\r\ntwo\r\n")
    (one,) = listed(run)
    assert one["memory"] == "one\r\ntwo"
    run("update", one["id"], "-", input="three\n")
    assert [item["memory"] for item in listed(run)] == ["three"]
    run("update", one["id"], "-", input="", code=2)


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="reads a pipe twice by Linux's memfd")
@pytest.mark.parametrize("file", ["-", "/dev/stdin"])
def test_an_export_is_imported_from_a_pipe(store, run, tmp_path, file):
    other = tmp_path / "other.db"
    script = f"{sys.executable} -m edgemem export | {sys.executable} -m edgemem import {file}"
    done = subprocess.run(
        ["/bin/sh", "-c", f"{script} --db {other}"], capture_output=True, text=True, check=True
    )
    assert "/dev/stdin: 3 rows imported." in done.stderr
    assert run("export", "--db", str(other)).stdout == run("export").stdout


# -- what is not there ---------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["status", "export-recovery", "change-passphrase", "unlock"])
def test_a_store_that_is_not_there_is_called_neither_plain_nor_a_vault(run, tmp_path, command):
    told = run("vault", command, "--db", str(tmp_path / "none.db"), code=1)
    assert told.stderr.startswith(f"Error: There is no store at {tmp_path / 'none.db'}")
    note = tmp_path / "note.txt"
    note.write_text("Milk, eggs.")
    told = run("vault", "status", "--db", str(note), code=1)
    assert f"{note} is no store, neither a plain one nor a vault" in told.stderr


def test_a_store_is_no_file_to_import(run, store):
    told = run("import", str(store), code=2).stderr
    assert f"Error: {store} is an SQLite database; of a store, `edgemem export --db {store}" in told


def test_a_shell_completes_commands():
    asked = {"_EDGEMEM_COMPLETE": "bash_complete", "COMP_WORDS": "edgemem lis", "COMP_CWORD": "1"}
    command = [sys.executable, "-m", "edgemem"]
    done = subprocess.run(command, env=os.environ | asked, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("plain,list\n", "")


def test_a_wrong_pairing_code_makes_no_store(run, tmp_path):
    new = tmp_path / "new.db"
    told = run("sync", str(tmp_path / "shared"), "--code", "WRONG", "--db", str(new), code=2)
    assert "the pairing code has a slip of the pen" in told.stderr and not new.exists()


@pytest.mark.usefixtures("store")
@pytest.mark.parametrize("command", [("list",), ("search", "cat")], ids=" ".join)
def test_both_lists_refuse_a_top_k_below_1(run, command):
    assert "0 is not in the range x>=1" in run(*command, "-k", "0", code=2).stderr
    assert CAT in run(*command, "-k", "1").stdout


@pytest.mark.usefixtures("store")
@pytest.mark.parametrize(
    "command", [("list",), ("search", "x"), ("graph",), ("delete", "--all"), ("erase", "--all")],
    ids=" ".join,
)  # fmt: skip
def test_nobody_is_named_where_nothing_is_found(run, command):
    yes = ["--yes"] if "--all" in command else []
    told = run(*command, *yes, "--user-id", "bo")
    assert told.stdout == "" and told.stderr.rstrip().endswith(" user_id 'bo'.")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="has no pipes with a name")
def test_an_export_goes_into_a_pipe_and_an_import_from_a_named_one_is_refused(store, run, tmp_path):
    command = [sys.executable, "-m", "edgemem", "export", "/dev/stdout"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == run("export").stdout and "3 rows written" in done.stderr
    os.mkfifo(pipe := tmp_path / "pipe")
    told = run("import", str(pipe), code=2).stderr
    assert f"{pipe} is a pipe, which can be read only once; pipe it into -." in told
