"""A store to which nothing was ever written is removed, unless a program has it open."""

import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from edgemem.errors import StoreLocked
from edgemem.memory import Memory
from edgemem.store import schema
from edgemem.store.encryption import remove_unwritten

pytestmark = pytest.mark.models


@pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX locks")
def test_a_store_that_this_process_has_open_keeps_its_locks(home):
    path = home / "memory.db"
    alone = "import sqlite3, sys; sqlite3.connect(sys.argv[1], 0).executescript("
    alone += "'PRAGMA locking_mode = EXCLUSIVE; BEGIN EXCLUSIVE')"
    with Memory(path) as memory:
        remove_unwritten(path)
        command = [sys.executable, "-c", alone, str(path)]
        done = subprocess.run(command, capture_output=True, text=True)
        assert "database is locked" in done.stderr
        assert not memory.get_all(user_id="ana")


def test_a_removed_store_leaves_no_log_even_if_it_is_interrupted(home, monkeypatch):
    path, gone = home / "memory.db", list[str]()
    with Memory(path):
        pass
    monkeypatch.setattr(Path, "unlink", lambda file, **_: gone.append(file.name))
    remove_unwritten(path)
    assert gone == ["memory.db-wal", "memory.db-shm", "memory.db"]


@pytest.mark.parametrize("passphrase", ["", "a long passphrase of tests"])
def test_a_first_command_that_fails_leaves_no_store(run, home, monkeypatch, passphrase):
    monkeypatch.setenv("EDGEMEM_PASSPHRASE", passphrase)
    before = {*home.rglob("*")}
    wrong = ("add", "--no-infer", "x", "--timestamp", "soon")
    run(*wrong, code=2)
    assert {path.name for path in {*home.rglob("*")} - before} <= {"memory.db.lock"}
    run("add", "--no-infer", "I like tea.")
    run(*wrong, code=2)
    assert "I like tea." in run("list").stdout


def test_a_vault_whose_store_is_missing_is_kept_by_a_command_that_fails(run, home, monkeypatch):
    monkeypatch.setenv("EDGEMEM_PASSPHRASE", "a long passphrase of tests")
    run("add", "--no-infer", "I like tea.")
    key = (home / "memory.db.vault").read_bytes()
    (home / "memory.db").unlink()
    run("add", "--no-infer", "x", "--timestamp", "soon", code=2)
    assert (home / "memory.db.vault").read_bytes() == key


def test_no_vault_is_opened_anew_whose_key_was_removed_meanwhile(home, monkeypatch):
    phrase = "a long passphrase of tests"
    monkeypatch.setenv("EDGEMEM_PASSPHRASE", phrase)
    path = home / "memory.db"
    with Memory(path, passphrase=phrase):
        pass
    connect = schema.connect

    def connected_late(*given, **how):
        remove_unwritten(path)
        return connect(*given, **how)

    monkeypatch.setattr(schema, "connect", connected_late)
    with pytest.raises(StoreLocked, match="removed"), Memory(path, passphrase=phrase) as memory:
        memory.add("My cat is Tom", user_id="ana", infer=False)


def test_a_store_that_another_connection_uses_or_that_was_written_to_stays(home):
    path = home / "memory.db"
    with Memory(path):
        remove_unwritten(path)
    other = sqlite3.connect(path)
    other.execute("SELECT count(*) FROM memories").fetchone()
    remove_unwritten(path)
    assert path.exists()
    other.close()
    with Memory(path) as memory:
        memory.add("My cat is Tom", user_id="ana", infer=False)
    remove_unwritten(path)
    with Memory(path) as memory:
        assert len(memory.get_all(user_id="ana")) == 1
