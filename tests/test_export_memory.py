"""Export and import through Memory: the same store again, whatever happened on the way."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_engine import FakeEngine
from memorykit import BagOfWords, quick, texts

from edgemem import Memory
from edgemem.errors import InputError, StoreFull


def exported(memory: Memory) -> str:
    out = io.StringIO()
    memory.export_jsonl(out)
    return out.getvalue()


@pytest.fixture
def rich() -> Iterator[Memory]:
    """A store with everything in it: facts, changes, deletions, other scripts, pending work."""
    known = {"I live in Oslo.": "{} lives in Oslo", "I have a cat.": "{} has a cat"}
    engine = FakeEngine(facts=known)
    with quick(engine=engine) as memory:
        memory.add(["I live in Oslo.", "I have a cat."], user_id="ana", timestamp="2024-05-01T10Z")
        first, second, *_ = memory.get_all()
        memory.update(
            first.id, "I live in Bergen. 我住在卑尔根 🏔\u2028", metadata={"a": [1.5, None]}
        )
        memory.delete(second.id)
        memory.add("x" * 3000 + " \\u0000 is no NUL", run_id="r", expires_at=9e9, infer=False)
        engine.broken = True
        memory.add("I swim on Mondays.", agent_id="bot")
        yield memory


def test_export_of_an_import_of_an_export_equals_it(rich: Memory, tmp_path: Path) -> None:
    file = tmp_path / "out.jsonl"
    assert rich.export_jsonl(file) == len(file.read_text(encoding="utf-8").split("\n")) - 1
    assert file.read_text(encoding="utf-8") == exported(rich)
    assert file.stat().st_mode & 0o077 == 0  # as private as the store
    with quick(tmp_path / "b.db") as copy:
        lines: list[int] = []
        count = copy.import_jsonl(str(file), on_progress=lines.append)
        assert lines == list(range(1, count + 1))
        assert exported(copy) == exported(rich)
        assert texts(copy.search("Bergen", explain=True)) == texts(rich.search("Bergen"))
        assert [p.payload for p in copy.pending()] == [p.payload for p in rich.pending()]
        for item in rich.get_all():
            assert copy.get(item.id) == item and copy.history(item.id) == rich.history(item.id)
        assert copy.doctor()["problems"] == []
        # A second time nothing is new.
        assert copy.import_jsonl(io.StringIO(exported(rich))) == 0
        assert exported(copy) == exported(rich)


def test_a_stopped_import_is_resumed(tmp_path: Path) -> None:
    with quick() as memory:
        for start in range(0, 600, 100):
            memory.add([f"word{n}" for n in range(start, start + 100)], infer=False)
        whole = exported(memory)

    class Stop(Exception):
        pass

    def stop(line: int) -> None:
        if line == 1100:
            raise Stop

    with quick(tmp_path / "b.db") as copy:
        with pytest.raises(Stop):
            copy.import_jsonl(io.StringIO(whole), on_progress=stop)
        half = copy.store.counts()
        assert 0 < half["turns"] + half["memories"] < 1200
    with quick(tmp_path / "b.db") as copy:
        rows = whole.count("\n")
        assert copy.import_jsonl(io.StringIO(whole)) < rows
        assert exported(copy) == whole
        assert texts(copy.search("word599", top_k=1)) == ["word599"]


def test_an_import_makes_vectors_of_its_own_embedder(rich: Memory) -> None:
    with quick(embedder=BagOfWords(32, "other@2")) as copy:
        copy.import_jsonl(io.StringIO(exported(rich)))
        assert copy.doctor()["embedder"] == "other@2" and copy.doctor()["problems"] == []
        assert copy.search("Bergen")[0].memory.startswith("I live in Bergen")


ROW = {"type": "turn", "id": "t", "role": "user", "content": "x", "metadata": {},
       "timestamp": "2024-05-01T10:00:00.000+00:00",
       "created_at": "2024-05-01T10:00:00.000+00:00"}  # fmt: skip

PENDING = {"type": "pending", "uid": "u", "task": "extract", "payload": {"turns": []},
           "created_at": "2024-05-01T10:00:00.000+00:00"}  # fmt: skip


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("not JSON", "line 2 is no JSON"),
        ("[1]", "line 2 is no JSON object"),
        ("[" * 100_000, "line 2 is no JSON"),
        (json.dumps({**ROW, "type": "video"}), "type 'video'"),
        (json.dumps({**ROW, "timestamp": "soon"}), "line 2: timestamp is 'soon'"),
        (json.dumps({**ROW, "content": "a\0b"}), "line 2 holds a NUL character"),
        (json.dumps({**ROW, "content": "\ud800"}), "surrogate"),
        (json.dumps({**ROW, "metadata": {"a": float("nan")}}), "metadata"),
        (json.dumps({**ROW, "metadata": {"\0": 1}}), "NUL"),
        (json.dumps({**ROW, "colour": "red"}), "colour"),
        (json.dumps({**PENDING, "payload": {}}), "line 2: .*no list of turn ids"),
        (json.dumps({**PENDING, "payload": {"turns": 5}}), "line 2: .*no list of turn ids"),
        (json.dumps({**PENDING, "attempts": 10**30}), "no count in 'attempts'"),
    ],
)
def test_a_line_that_is_none_of_an_export_is_named(line: str, message: str) -> None:
    with quick() as memory, pytest.raises(InputError, match=message):
        memory.import_jsonl(io.StringIO(json.dumps({**ROW, "id": "first"}) + "\n" + line + "\n"))


def test_times_are_brought_into_the_stores_form() -> None:
    with quick() as memory:
        memory.import_jsonl(io.StringIO(json.dumps({**ROW, "timestamp": "2024-05-01T12:00+02:00"})))
        assert memory.store.turns(["t"])["t"].timestamp == "2024-05-01T10:00:00.000+00:00"


def test_a_byte_order_mark_is_no_part_of_the_first_line(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps(ROW), encoding="utf-8-sig")
    with quick() as memory:
        assert memory.import_jsonl(tmp_path / "a.jsonl") == 1


@pytest.mark.parametrize("name", ["none.jsonl", ".", "a\0b", "\ud800", "binary"])
def test_a_file_that_cannot_be_read_is_an_input_error(tmp_path: Path, name: str) -> None:
    (tmp_path / "binary").write_bytes(bytes(range(256)))
    with quick() as memory, pytest.raises(InputError, match=r"give (a file of|another)"):
        memory.import_jsonl(f"{tmp_path}/{name}")


def test_a_failed_export_leaves_the_one_before_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "out.jsonl"
    with quick() as memory:
        memory.add("one", infer=False)
        memory.export_jsonl(file)
        before = file.read_text()
        memory.add("two", infer=False)

        def full(fd: int) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr("os.fsync", full)
        with pytest.raises(StoreFull, match=r"out\.jsonl \(No space left on device\)"):
            memory.export_jsonl(file)
        assert file.read_text() == before and list(tmp_path.iterdir()) == [file]
        with pytest.raises(StoreFull, match="check that its folder is there"):
            memory.export_jsonl(tmp_path / "nowhere" / "out.jsonl")
        with pytest.raises(StoreFull):
            memory.export_jsonl(tmp_path)
