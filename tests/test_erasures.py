"""Receipts of erasing: what they tell, that tampering shows, that `verify` finds what is left."""

import json
import os
import shutil
import time
import uuid
from pathlib import Path

import pytest
from memorykit import bytes_beside, quick
from storekit import add, memory, raw, turn

from edgemem import Memory
from edgemem.errors import InputError
from edgemem.store import Store
from edgemem.store.erasures import _free_pages, erasures, verify
from edgemem.sync import sync


@pytest.fixture
def store(tmp_path):
    with Store.open(tmp_path / "a.db") as opened:
        yield opened


def fill(store, count=5):
    """Facts with ids as edgemem makes them, each from a turn; the ids of the facts."""
    ids, turns = ([str(uuid.uuid4()) for _ in range(count)] for _ in "ab")
    add(store, *map(turn, turns))
    add(store, *(memory(id, sources=(said,)) for id, said in zip(ids, turns, strict=True)))
    return ids


def test_an_erase_of_turns_that_no_memory_cites_has_its_receipt():
    with quick() as memory:
        memory.add({"role": "system", "content": "Be brief."}, user_id="ana")
        gone = memory.erase_all(user_id="ana")
        (receipt,) = erasures(memory.store)
        assert gone.ids == () and gone.receipt == receipt.to_dict()
        assert receipt.kinds == {"said": 1}
        assert memory.erase_all(user_id="ana").receipt is None  # nothing was left to erase


@pytest.fixture(scope="module")
def thrice(tmp_path_factory):
    """A store from which was erased three times."""
    path = tmp_path_factory.mktemp("thrice") / "a.db"
    with Store.open(path) as store:
        for id in fill(store, 3):
            store.erase([id])
        assert verify(store)["problems"] == []
    return path


def test_an_erase_leaves_a_receipt_without_text_and_ids(store):
    ids = fill(store)
    store.erase(ids[:1])
    store.erase(ids[1:3])
    store.erase(["nobody"])
    first, second = erasures(store)
    assert (first.number, first.kinds, len(first.ids)) == (1, {"fact": 1, "said": 1}, 2)
    assert (second.number, second.kinds) == (2, {"fact": 2, "said": 2})
    assert second.previous == first.sha256
    gone = {name for name, count in second.rows.items() if count}
    assert gone == {"memories", "memory_sources", "turns", "vectors", "history"}
    assert set(second.rows) > gone  # those that were looked through, too
    assert not any(id.encode() in bytes_beside(store.path) for id in ids[:3])
    found = verify(store)
    assert (found["receipts"], found["ids"], found["problems"]) == (2, 6, [])
    assert {"memories", "receipts", "the file"} < set(found["looked_in"])


@pytest.mark.parametrize(
    ("statement", "told"),
    [
        ("UPDATE erasures SET body = replace(body, '\"fact\": 1', '\"fact\": 2') WHERE number = 2",
         "receipt 2 was changed"),
        ("UPDATE erasures SET sha256 = 'x' WHERE number = 1", "receipt 1 was changed"),
        ("UPDATE erasures SET body = '[' WHERE number = 1", "receipt 1 was changed"),
        ("UPDATE erasures SET number = 9 WHERE number = 3", "receipt 9 was changed"),
        ("DELETE FROM erasures WHERE number = 1", "a receipt before number 2"),
        ("DELETE FROM erasures WHERE number = 2", "a receipt before number 3"),
        ("DELETE FROM erasures WHERE number = 3", "the last receipts, up to number 3"),
        ("DELETE FROM erasures", "the last receipts, up to number 3"),
    ],
)  # fmt: skip
def test_a_receipt_that_was_changed_or_taken_out_is_found(thrice, tmp_path, statement, told):
    raw(path := Path(shutil.copy(thrice, tmp_path / "a.db")), statement)
    with Store.open(path) as store:
        assert told in verify(store)["problems"][0]


def test_a_receipt_that_was_kept_elsewhere_shows_a_chain_that_was_written_anew(
    tmp_path,
):
    with quick(tmp_path / "a.db") as made:
        kept = made.erase(made.add("I live in Oslo.", infer=False)[0].id).to_dict()
        assert made.doctor(erased=kept)["problems"] == []
        other = {**kept, "receipt": {**kept["receipt"], "sha256": "0" * 64}}
        assert "kept elsewhere" in made.doctor(erased=other)["problems"][0]
        for nonsense in ({}, {"receipt": 1, "results": []}, {"receipt": {}, "results": [1]}):
            with pytest.raises(InputError, match="edgemem erase --json"):
                made.doctor(erased=nonsense)
    with quick(tmp_path / "b.db") as another:
        assert "kept elsewhere" in another.doctor(erased=kept)["problems"][0]


def test_an_id_that_came_back_is_found_in_rows_and_bytes(store):
    ids = fill(store)
    store.erase(ids[:1])
    add(store, memory(ids[0]))
    told = verify(store)["problems"]
    assert any("a row of memories has the id" in each for each in told)
    assert any("the file has the id" in each for each in told)
    store.erase(ids[:1])
    assert verify(store)["problems"] == []


def test_what_lies_beside_the_file_is_looked_through(store):
    ids = fill(store)
    old, copy = store.path.with_name("a.db.v3.beef.bak"), store.path.with_name("a.db.copy")
    store.erase(ids[:1])
    old.write_bytes(b"older")
    os.utime(old, (1e9, 1e9))
    copy.write_bytes(b"..." + ids[0].encode())
    store.path.with_name("other.db").write_bytes(ids[0].encode())
    problems = verify(store)["problems"]
    assert [each.split()[0] for each in problems] == ["a.db.copy", "a.db.v3.beef.bak"]
    store.path.with_name("a.db.own").write_bytes(b"id of an import: tea")
    kept = {"receipt": erasures(store)[0].to_dict(), "results": [{"id": "import: tea"}]}
    assert any(each.startswith("a.db.own") for each in verify(store, kept)["problems"])


def test_a_free_page_that_is_not_empty_is_found(store):
    ids = fill(store)
    store.erase(ids[:1])
    raw(store.path, "PRAGMA secure_delete = OFF", "CREATE TABLE x (y)",
        "INSERT INTO x VALUES (zeroblob(1) || hex(randomblob(40000)))", "DROP TABLE x")  # fmt: skip
    assert "is free and not empty" in verify(store)["problems"][0]
    store.erase(ids[1:2])  # scrubs the file
    assert verify(store)["problems"] == []


def test_numbers_of_pages_in_use_again_are_no_leftovers(tmp_path):
    path = tmp_path / "bare.db"
    raw(path, "PRAGMA secure_delete = ON", "CREATE TABLE x (y)")
    raw(path, "PRAGMA secure_delete = ON", "INSERT INTO x VALUES (zeroblob(40000))")
    raw(path, "PRAGMA secure_delete = ON", "DELETE FROM x")
    raw(path, "PRAGMA secure_delete = ON", "INSERT INTO x VALUES (zeroblob(8300))")
    data = bytearray(path.read_bytes())
    size, trunk = (int.from_bytes(data[at : at + n], "big") for at, n in ((16, 2), (32, 4)))
    at = (trunk - 1) * size
    taken = at + 8 + 4 * int.from_bytes(data[at + 4 : at + 8], "big")
    assert any(data[taken : at + size])  # what SQLite leaves
    assert [*_free_pages(bytes(data))] == []
    data[taken + 8 : taken + 12] = b"text"
    assert len([*_free_pages(bytes(data))]) == 1
    data[taken : taken + 12] = b"text" + bytes(8)
    assert len([*_free_pages(bytes(data))]) == 1


def test_a_reset_has_a_receipt_and_older_rows_are_told(store):
    fill(store, 3)
    store.reset()
    (receipt,) = erasures(store)
    assert (receipt.kinds, receipt.ids) == ({"fact": 3, "said": 3}, ())
    add(store, memory("new"))
    assert verify(store)["problems"] == []
    raw(store.path, "UPDATE memories SET rowid = 1")
    assert "older than the reset of receipt 1" in verify(store)["problems"][0]


@pytest.mark.models
@pytest.mark.usefixtures("home")
def test_a_vault_is_looked_through_and_the_ways_to_its_key_may_be_older(tmp_path):
    with quick(tmp_path / "a.db", passphrase="correct horse") as memory:
        id = memory.add("hello", infer=False)[0].id
        long_ago = 1_000_000_000
        os.utime(tmp_path / "a.db.vault", (long_ago, long_ago))
        memory.erase(id)
        found = memory.doctor(erased=True)["erased"]
        assert (found["receipts"], found["problems"]) == (1, [])
        assert "a.db.vault" in found["looked_in"]


def test_ids_that_tell_other_devices_of_an_erase_are_no_remains(tmp_path):
    with quick(tmp_path / "a.db") as memory:
        id = memory.add("hello", infer=False)[0].id
        sync(memory, tmp_path / "folder")
        memory.erase(id)
        assert memory.doctor(erased=True)["erased"]["problems"] == []


def test_what_was_erased_is_searched_for_in_a_store_that_syncs_too(tmp_path):
    path = tmp_path / "a.db"
    with quick(path) as memory:
        sync(memory, tmp_path / "shared")
        memory.add("hello there", user_id="ada", infer=False)
        sync(memory, tmp_path / "shared")
        (item,) = memory.get_all()
        before = (tmp_path / "a.db-wal").read_bytes()
        gone = memory.erase(item.id)
        sync(memory, tmp_path / "shared")
        for kept in (True, gone.to_dict()):
            found = memory.doctor(erased=kept)["erased"]
            assert found["ids"] == 2 and found["problems"] == []
        time.sleep(0.03)
        (tmp_path / "a.db.copy").write_bytes(before)  # from before, and put there later
        for kept in (True, gone.to_dict()):
            (problem,) = memory.doctor(erased=kept)["erased"]["problems"]
            assert problem.startswith("a.db.copy has the id of something that was erased")
        (tmp_path / "a.db.copy").unlink()
        raw(path, f"INSERT INTO aliases VALUES ('x', 1, 1, '{item.id}')")
        (problem,) = memory.doctor(erased=True)["erased"]["problems"]
        assert problem.startswith("a row of aliases has the id")


@pytest.mark.usefixtures("home")
def test_the_command_prints_the_receipt_and_doctor_checks_it(run, tmp_path):
    with Memory() as opened:
        id = opened.add("I live in Oslo.", infer=False)[0].id
    printed = run("erase", id, "--yes", "--json").stdout
    kept = tmp_path / "kept.json"
    kept.write_text(printed)
    told = json.loads(run("doctor", "--erased", "--receipt", str(kept), "--json").stdout)
    assert told["results"][0]["erased"]["receipts"] == 1
    assert told["results"][0]["problems"] == []
    broken = json.loads(printed)
    broken["receipt"]["sha256"] = "0" * 64
    kept.write_text(json.dumps(broken))
    assert "kept elsewhere" in run("doctor", "--receipt", str(kept), code=1).stdout


@pytest.mark.parametrize("done", [True, False])
def test_ctrl_c_in_an_erase_says_whether_it_was_done(run, tmp_path, monkeypatch, done):
    monkeypatch.setenv("EDGEMEM_DB", str(tmp_path / "a.db"))
    with quick(tmp_path / "a.db") as memory:
        memory.add("My PIN is 1234.", user_id="default", infer=False)
    whole = Memory.erase_all

    def stopped(memory, **scope):
        if done:
            whole(memory, **scope)
        raise KeyboardInterrupt

    monkeypatch.setattr(Memory, "erase_all", stopped)
    told = run("erase", "--all", "-y", code=130).stderr
    assert told.startswith("Stopped, but all of it was erased." if done else "Stopped. Nothing")


def test_doctor_lists_the_copies_of_a_store_and_names_those_that_were_cut_off(
    tmp_path,
):
    with quick(tmp_path / "a.db") as memory:
        for name in (
            "a.db.v3.bak",
            "a.db.v3.0123abcd.bak",
            "b.db.v3.bak",
            ".x.01234567.edgemem.tmp",
        ):
            (tmp_path / name).write_bytes(b"memories")
        found = memory.doctor()
    assert sorted(found["copies"]) == [
        ".x.01234567.edgemem.tmp",
        "a.db.v3.0123abcd.bak",
        "a.db.v3.bak",
    ]
    upgrade, export = found["problems"]
    assert "a.db.v3.0123abcd.bak is left of an upgrade" in upgrade
    assert ".x.01234567.edgemem.tmp is left of an export" in export
