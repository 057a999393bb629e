"""Export and import: what goes out comes back exactly, whole or bit by bit."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from storekit import ADA, FAR_AHEAD, T0, T1, T2, add, indexed, memory, turn, unit, vectors_by_length

from edgemem.errors import InputError, StoreLocked
from edgemem.results import Scope
from edgemem.store import Store
from edgemem.store.receipts import add_mark
from edgemem.store.rows import BATCH, import_rows


@pytest.fixture
def full(tmp_path: Path) -> Iterator[Store]:
    """A store with a row of every kind in every state."""
    with Store.open(tmp_path / "full.db") as store:
        add(
            store,
            turn(
                "t1", "I live in Oslo\n\ttab \u2028 \U0001f375", name="Ada", metadata={"a": [1.5]}
            ),
            turn("t2", "", scope=Scope(), role="assistant"),
            memory("m1", sources=("t2", "t1"), metadata={"n": None, "é": {"x": [True, 1e300]}}),
            memory("m2", kind="turn", scope=Scope("b", "c", "d"), search_text="other words"),
            memory("m3", valid_from=T0, valid_to=T1, expires_at=FAR_AHEAD),
            memory("gone", "Ada likes secrets", sources=("t1",)),
        )
        with store.transaction() as tx:
            tx.update_memory("m1", memory="b", search_text="b", vectors=unit(1), updated_at=T1)
            tx.delete_memory("gone", T2)
            tx.invalidate("m2", T2)
            failing = tx.add_pending("extract", {"turns": ["t1"], "reply": "{"}, ADA)
            tx.add_pending("embed", {}, Scope())
            tx.fail_pending(failing, "again", T2)
            add_mark(tx, pattern="secrets")
        yield store


def exported(store: Store) -> list[str]:
    return [json.dumps(row, ensure_ascii=False) for row in store.export_rows()]


def test_an_export_of_an_import_equals_the_export(full: Store, tmp_path: Path) -> None:
    lines = exported(full)
    with Store.open(tmp_path / "copy.db") as copy:
        new = import_rows(copy.transaction, map(json.loads, lines), vectors_by_length)
        assert exported(copy) == lines
        assert new == {
            "turn": 2,
            "memory": 4,
            "history": 7,
            "pending": 2,
            "relation": 0,
            "never_send": 1,
            "image": 0,
        }
        assert copy.list(include_invalid=True) == full.list(include_invalid=True)
        assert copy.get(["gone"], include_deleted=True) == full.get(["gone"], include_deleted=True)
        assert copy.history("m1") == full.history("m1")
        assert copy.check() == []
        assert indexed(copy, "other") != []
        assert indexed(copy, "secrets") == []
        assert len(copy.changes(0).labels) == 3


def test_a_deleted_memory_is_never_embedded(full: Store) -> None:
    asked: list[str] = []

    def embed(texts: list[str]) -> list[np.ndarray]:
        asked.extend(texts)
        return vectors_by_length(texts)

    with Store.open(":memory:") as copy:
        import_rows(copy.transaction, full.export_rows(), embed)
    assert asked == ["b", "other words", "Ada likes tea"]  # their search texts


def test_an_import_may_be_stopped_anywhere_and_run_again(full: Store) -> None:
    lines = exported(full)
    for stop in range(len(lines) + 1):
        with Store.open(":memory:") as copy:
            import_rows(copy.transaction, map(json.loads, lines[:stop]), vectors_by_length)
            import_rows(copy.transaction, map(json.loads, lines), vectors_by_length)
            assert exported(copy) == lines
            generation = copy.generation()
            again = import_rows(copy.transaction, map(json.loads, lines), vectors_by_length)
            assert set(again.values()) == {0}
            assert copy.generation() == generation


def test_batches_that_were_stored_before_an_error_stay(full: Store) -> None:
    def rows() -> Iterator[dict[str, Any]]:
        for i in range(BATCH + 10):
            yield {"type": "turn", "id": f"x{i}", "role": "user", "content": "", "timestamp": T0,
                   "created_at": T0}  # fmt: skip
        raise OSError("the disk went away")

    with pytest.raises(OSError, match="went away"):
        import_rows(full.transaction, rows(), vectors_by_length)
    assert full.counts()["turns"] == 2 + BATCH


def test_existing_rows_win_over_imported_ones() -> None:
    with Store.open(":memory:") as store:
        add(store, memory("m1", "mine"))
        row = next(r for r in store.export_rows() if r["type"] == "memory")
        import_rows(
            store.transaction, [{**row, "memory": "theirs"}, {**row, "id": "m2"}], vectors_by_length
        )
        assert [i.memory for i in store.list()] == ["mine", "mine"]


ROW = {
    "type": "memory", "id": "m", "kind": "fact", "memory": "x", "search_text": "x",
    "created_at": T0, "updated_at": T0,
}  # fmt: skip


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("text", "row 2 of the import is str, not an object"),
        ({}, "has the type None, allowed are turn, memory, history, pending, relation, never_send"),
        ({**ROW, "memory": 5}, "(memory) has no text in 'memory'"),
        ({**ROW, "user_id": 5}, "(memory) has neither text nor null in 'user_id'"),
        ({**ROW, "metadata": []}, "(memory) has no object in 'metadata'"),
        ({**ROW, "sources": "t1"}, "(memory) has no list of turn ids in 'sources'"),
        ({**ROW, "kind": "song"}, "has the kind 'song', allowed are fact, turn, summary, image"),
        ({**ROW, "vector": [1]}, "(memory) has the unknown fields ['vector']"),
        ({"type": "history", "id": "h", "memory_id": "m", "event": "ADD", "is_deleted": -1},
         "(history) has no count in 'is_deleted'"),
    ],
)  # fmt: skip
def test_a_row_that_is_no_exports_is_named(row: Any, message: str) -> None:
    with Store.open(":memory:") as store:
        with pytest.raises(InputError) as caught:
            import_rows(store.transaction, [ROW, row], vectors_by_length)
        assert message in str(caught.value)
        assert store.counts()["memories"] == 0


def test_an_embedder_that_gives_too_few_vectors_is_refused() -> None:
    with Store.open(":memory:") as store:
        with pytest.raises(ValueError, match="gave 0 arrays for 1 texts"):
            import_rows(store.transaction, [ROW], lambda texts: [])
        assert store.counts()["memories"] == 0


def test_an_export_is_one_snapshot_and_blocks_no_writer(full: Store) -> None:
    lines = exported(full)
    rows = full.export_rows()
    first = next(rows)
    add(full, turn("later"), memory("later"))
    assert [json.dumps(r, ensure_ascii=False) for r in [first, *rows]] == lines


def test_an_erase_during_an_export_is_done_but_says_the_file_is_not_scrubbed(
    tmp_path: Path,
) -> None:
    with Store.open(tmp_path / "a.db", busy_timeout_s=0.1) as store:
        add(store, memory("m1"), memory("m2"))
        rows = store.export_rows()
        next(rows)
        with pytest.raises(StoreLocked, match=r"rows are erased .* next opened"):
            store.erase(["m1"])
        assert [i.id for i in store.list()] == ["m2"]
        rows.close()
        assert store.erase([]) == []
        assert store.meta("scrub_wanted") is None


def test_what_is_erased_while_an_import_goes_on_stays_erased(tmp_path: Path) -> None:
    with Store.open(":memory:") as source:
        add(source, memory("secret", "my pin is 987654321"))
        add(source, *(memory(f"m{n}") for n in range(BATCH)))
        rows = list(source.export_rows())
    path = tmp_path / "a.db"
    with Store.open(path) as store, Store.open(path) as other:
        erased: list[str] = []

        def erase_first(texts: list[str]) -> list[np.ndarray]:
            if store.get(["secret"]):  # stored with the first batch
                erased.extend(other.erase(["secret"]))
            return vectors_by_length(texts)

        new = import_rows(store.transaction, rows, erase_first)
        assert erased == ["secret"]
        assert store.history("secret") == [] and new["history"] == BATCH
        assert b"987654321" not in path.read_bytes()

        def erase_known(texts: list[str]) -> list[np.ndarray]:
            other.erase(["m1"])
            return vectors_by_length(texts)

        with Store.open(":memory:") as source:
            add(source, memory("m1"), memory("new"))
            assert import_rows(store.transaction, source.export_rows(), erase_known)["memory"] == 1
        assert not store.get(["m1"]) and store.check() == []


def test_two_may_import_the_same_at_once() -> None:
    with Store.open(":memory:") as source, Store.open(":memory:") as store:
        add(source, memory("m1"), turn("t1"))
        rows = list(source.export_rows())

        def meanwhile(texts: list[str]) -> list[np.ndarray]:
            assert import_rows(store.transaction, rows, vectors_by_length)["memory"] == 1
            return vectors_by_length(texts)

        assert sum(import_rows(store.transaction, rows, meanwhile).values()) == 0
        assert exported(store) == exported(source)
