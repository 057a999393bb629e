"""Files that are not what they should be and full disks: an error says what to do."""

import os
import shutil
import sqlite3
import subprocess
import sys

import pytest
from fake_engine import FakeEngine
from memorykit import BagOfWords, quick, texts
from storekit import child, finished, full_disk

from edgemem import Memory
from edgemem.config import Settings
from edgemem.errors import (
    ModelError,
    ModelNotFound,
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreLocked,
)
from edgemem.store import Store


def test_a_damaged_database_is_refused_and_the_doctor_named(tmp_path):
    damaged = tmp_path / "damaged.db"
    with quick(damaged) as memory:
        memory.add([f"word{n}" for n in range(200)], infer=False)
    raw = bytearray(damaged.read_bytes())
    raw[8192 : len(raw) - 8192] = os.urandom(len(raw) - 16384)
    damaged.write_bytes(raw)
    with pytest.raises(StoreCorrupt, match=r"damaged\.db.*edgemem doctor"), quick(damaged) as m:
        m.search("word7")
        m.get_all()


@pytest.mark.parametrize("path", ["", ".", "a\0b", "\ud800", "x" * 5000])
def test_a_path_that_is_none_is_refused(tmp_path, path):
    with pytest.raises(StoreError):
        quick(f"{tmp_path}/{path}")


def test_a_folder_that_refuses_writing_is_a_store_error_that_says_so(tmp_path, monkeypatch):
    """Whoever runs this: root may write anywhere."""

    def refuse(*args, **more):
        raise PermissionError(13, "Permission denied")

    with quick(tmp_path / "a.db", engine=FakeEngine()) as memory:
        with monkeypatch.context() as patched:
            patched.setattr("os.open", refuse)
            with pytest.raises(StoreFull, match=r"b\.db.*permissions"):
                quick(tmp_path / "b.db")
            with pytest.raises(StoreFull, match=r"a\.db\.lock.*make its folder writable"):
                memory.add("I live in Oslo.")
        assert texts(memory.search("Oslo")) == ["I live in Oslo."]  # the turn is stored
        assert memory.process_pending().pending == 0


def test_a_full_disk_loses_nothing_and_says_what_to_do(tmp_path):
    with quick(tmp_path / "a.db") as memory:
        memory.add("I live in Oslo", infer=False)
        pages = memory.store._writer.execute("PRAGMA page_count").fetchone()[0]
        memory.store._writer.execute(f"PRAGMA max_page_count = {pages + 1}")
        with pytest.raises(StoreFull, match=r"a\.db.*free some disk space"):
            memory.add("word " * 20_000, infer=False)
        assert texts(memory.search("Oslo")) == ["I live in Oslo"]
        assert memory.store.counts()["turns"] == 1
        memory.store._writer.execute("PRAGMA max_page_count = 1000000")
        memory.add("word " * 20_000, infer=False)
        assert memory.doctor()["problems"] == []


FILLS_THE_DISK = """
import sys
from memorykit import quick, texts
from edgemem.errors import StoreFull
memory = quick(sys.argv[1])
stored = 0
try:
    while stored < 10_000:
        memory.add(f"word{stored} " + "x" * 5000, infer=False)
        stored += 1
except StoreFull as exc:
    assert "free some disk space" in str(exc), exc
else:
    raise SystemExit("the disk never filled")
assert len(memory.get_all()) == stored
assert texts(memory.search("word0", top_k=1))[0].startswith("word0 ")
memory.close()
print(stored)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="mounts a tmpfs")
def test_a_really_full_disk_loses_nothing_that_was_stored(tmp_path):
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(tmp_path)], capture_output=True
    )
    if mounted.returncode != 0:
        pytest.skip("may not mount a tmpfs here")
    try:
        stored = int(finished(child(FILLS_THE_DISK, tmp_path / "a.db")))
        (tmp_path / "a.db-shm").unlink(missing_ok=True)
        subprocess.run(["mount", "-o", "remount,size=8m", str(tmp_path)], check=True)
        with quick(tmp_path / "a.db") as memory:
            assert len(memory.get_all()) == stored and memory.doctor()["problems"] == []
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


def test_a_locked_database_is_a_store_locked_and_reading_goes_on(tmp_path):
    with quick(tmp_path / "a.db") as memory:
        memory.add("I live in Oslo", infer=False)
        memory.store._writer.execute("PRAGMA busy_timeout = 50")
        other = sqlite3.connect(tmp_path / "a.db", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreLocked, match=r"a\.db is locked by another process.*wait for it"):
            memory.add("x", infer=False)
        assert texts(memory.search("Oslo")) == ["I live in Oslo"]
        other.execute("ROLLBACK")
        other.close()
        memory.add("x", infer=False)


@pytest.mark.parametrize("key", ["model", "embedder"])
@pytest.mark.parametrize(
    ("content", "error"), [(None, ModelNotFound), (b"", ModelError), (b"GGUF" * 99, ModelError)]
)
def test_a_missing_or_damaged_model_file_is_named(tmp_path, key, content, error):
    file = tmp_path / ("m.gguf" if key == "model" else "m.onnx")
    if content is not None:
        file.write_bytes(content)
    chosen = Settings(db=tmp_path / "a.db", **{key: str(file)})
    stub = BagOfWords() if key == "model" else None
    with Memory(settings=chosen, embedder=stub) as memory:
        with pytest.raises(error) as caught:
            memory.add("I live in Oslo.")
        assert file.name in str(caught.value)
        stored = memory.store.counts()["turns"]
        assert stored == (1 if key == "model" else 0)
        assert memory.doctor()["problems"] == []


def test_a_file_that_is_replaced_or_removed_while_open_is_written_to_no_more(
    tmp_path,
):
    path = tmp_path / "a.db"
    with quick(path) as memory, quick(tmp_path / "b.db") as other:
        memory.add("I live in Oslo", infer=False)
        other.add("I live in Rome", infer=False)
        other.close()
        os.replace(tmp_path / "b.db", path)
        with pytest.raises(StoreError, match=r"a\.db was replaced or removed.*open it again"):
            memory.add("lost", infer=False)
        path.unlink()
        with pytest.raises(StoreError, match="replaced or removed"):
            memory.erase([])
        memory.close()
        assert not path.exists()


def test_a_file_that_is_moved_while_open_takes_its_last_notes_along(tmp_path):
    old, new = tmp_path / "a.db", tmp_path / "b.db"
    with quick(old) as memory:
        memory.add("I live in Oslo", infer=False)
    with quick(old) as memory:
        memory.add("I work in Rome", infer=False)
        old.rename(new)
    with quick(new) as moved:
        assert texts(moved.get_all()) == ["I live in Oslo", "I work in Rome"]
    assert sorted(beside.name for beside in tmp_path.iterdir()) == ["b.db"]


@pytest.mark.parametrize("written", [False, True])
def test_a_backup_that_is_put_back_while_the_store_is_open_stays_as_it_is(tmp_path, written):
    path, backup = tmp_path / "a.db", tmp_path / "backup.db"
    with quick(path) as memory:
        memory.add([f"note {n} of January" for n in range(40)], infer=False)
    shutil.copy(path, backup)
    whole = backup.read_bytes()
    with quick(path) as memory:
        memory.erase([item.id for item in memory.get_all()[:30]])
        memory.add("note of February", infer=False)
        os.replace(backup, path)
        if written:
            with pytest.raises(StoreError, match="was replaced or removed"):
                memory.add("lost", infer=False)
            with quick(path) as other:  # while the first has its file open
                assert len(other.get_all()) == 40
    assert path.read_bytes() == whole
    with quick(path) as restored:
        assert len(restored.get_all()) == 40 and restored.doctor()["problems"] == []


def test_a_log_of_another_file_destroys_no_backup(tmp_path):
    path, log = tmp_path / "a.db", tmp_path / "a.db-wal"
    with quick(path) as memory:
        memory.add([f"note {n} of January " + "word " * 60 for n in range(40)], infer=False)
    whole = path.read_bytes()
    with quick(path) as memory:
        memory.erase([item.id for item in memory.get_all()[:30]])
        memory.add("note of February", infer=False)
        left = log.read_bytes()  # as if the program were killed here
    path.write_bytes(whole)
    log.write_bytes(left)
    with full_disk(), pytest.raises(StoreCorrupt, match=r"delete a\.db-wal"):
        Store.open(path)
    assert path.read_bytes() == whole
    for _ in range(2):
        with pytest.raises(StoreCorrupt, match=r"delete a\.db-wal and a\.db-shm"):
            quick(path)
        assert path.read_bytes() == whole
    log.unlink()
    (tmp_path / "a.db-shm").unlink(missing_ok=True)
    with quick(path) as restored:
        assert len(restored.get_all()) == 40 and restored.doctor()["problems"] == []


def test_what_cannot_follow_a_moved_file_is_said(tmp_path):
    old, new = tmp_path / "a.db", tmp_path / "b.db"
    with Store.open(old) as reading:
        store = Store.open(old, busy_timeout_s=0.1)
        with reading.snapshot() as connection:
            connection.execute("SELECT count(*) FROM memories").fetchall()
            with store.transaction() as tx:
                tx.set_meta("a", "b")
            old.rename(new)
            with pytest.raises(StoreError, match=r"moved while it was open.* in a\.db-wal"):
                store.close()
    with Store.open(new) as moved:  # the last that had it open wrote it into the file
        assert moved.meta("a") == "b"
