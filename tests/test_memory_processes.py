"""Several processes on one store, through Memory: two add, one searches, one works pending off."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_engine import FakeEngine
from memorykit import quick, texts
from storekit import child, finished

WRITER = """
import sys
from fake_engine import FakeEngine
from memorykit import quick
name = sys.argv[2]
with quick(sys.argv[1], engine=FakeEngine(facts={})) as memory:
    for n in range(30):
        result = memory.add(f"{name}word{n} was said by {name}", user_id=name, infer=n % 10 == 0)
        assert result.pending == 0, result
        print(f"{name}word{n}", flush=True)
"""


def test_a_reader_sees_every_acknowledged_write_of_two_writers(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with quick(path) as reader:
        reader.search("nothing yet")
        writers = [child(WRITER, path, name) for name in ("ana", "bob")]
        seen = 0
        for n in range(30):
            for writer, name in zip(writers, ("ana", "bob"), strict=True):
                assert writer.stdout is not None
                said = writer.stdout.readline().strip()
                assert said == f"{name}word{n}", writer.communicate()
                found = reader.search(said, user_id=name, top_k=1)
                assert texts(found) == [f"{said} was said by {name}"]
                seen += 1
        for writer in writers:
            finished(writer)
        assert seen == len(reader.get_all()) == len(reader.index) == 60
        assert reader.pending() == [] and reader.doctor()["problems"] == []


def test_an_update_and_a_deletion_by_another_process_are_seen(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with quick(path) as reader:
        first, second = reader.add(["I live in Oslo", "I have a cat"], infer=False)
        assert len(reader.search("Oslo cat")) == 2
        finished(
            child(
                "import sys; from memorykit import quick\n"
                "m = quick(sys.argv[1]); m.update(sys.argv[2], 'I live in Bergen')\n"
                "m.erase(sys.argv[3])",
                path,
                first.id,
                second.id,
            )
        )
        assert texts(reader.search("cat Oslo Bergen")) == ["I live in Bergen"]


# Holds the work lock inside the model until it is told to go on.
WORKER = """
import sys
from fake_engine import FakeEngine
from memorykit import quick
class Waiting(FakeEngine):
    def generate(self, *args, **more):
        print("working", flush=True)
        sys.stdin.readline()
        return super().generate(*args, **more)
engine = Waiting(facts={"I live in Oslo.": "{} lives in Oslo"})
with quick(sys.argv[1], engine=engine) as memory:
    print([c.memory for c in memory.process_pending()], flush=True)
"""


def test_only_one_process_works_pending_pieces_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edgemem.memory._WORK_LOCK_S", 0.2)
    path = tmp_path / "a.db"
    broken = FakeEngine()
    broken.broken = True
    with quick(path, engine=broken) as memory:
        memory.add("I live in Oslo.")
        (piece,) = memory.pending()
        with memory.store.transaction() as tx:
            tx.fail_pending(piece.id, "due at once", None)
        asked = len(broken.prompts)

        worker = child(WORKER, path)
        assert worker.stdout is not None and worker.stdin is not None
        assert worker.stdout.readline() == "working\n"
        result = memory.add("I have a cat.")  # stored at once, extracted from later
        assert (result.pending, texts(result)) == (1, ["I have a cat."])
        assert len(broken.prompts) == asked
        assert len(memory.search("cat Oslo")) == 2

        out, err = worker.communicate("\n")
        assert out == "['User lives in Oslo']\n", err
        broken.broken = False
        assert memory.process_pending().pending == 0
        assert texts(memory.get_all(filters={"kind": "fact"})) == ["User lives in Oslo"]


FIRST = """
import sys
from memorykit import BagOfWords, quick
from edgemem.errors import DimensionMismatch
sys.stdin.readline()
try:
    quick(sys.argv[1], embedder=BagOfWords(64, sys.argv[2])).add("x", infer=False)
    print("stored")
except DimensionMismatch:
    print("refused")
"""


def test_of_two_first_adds_with_different_embedders_one_is_refused(tmp_path: Path) -> None:
    processes = [child(FIRST, tmp_path / "a.db", model) for model in ("first@1", "second@2")]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    assert sorted(finished(p) for p in processes) == ["refused\n", "stored\n"]
    with quick(tmp_path / "a.db") as memory:
        assert memory.store.counts()["vectors"] == 1
