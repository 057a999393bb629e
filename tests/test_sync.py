"""Devices of one person that exchange through folders: who wins, what is kept, what is gone."""

import json
import os
import re
import shutil
import time
import zlib
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
from fake_engine import FakeEngine
from memorykit import BagOfWords, bytes_beside, quick, texts
from storekit import ADA, DIM, FAR_AHEAD, T1, T2, add, child, memory, turn, unit
from synckit import SECRET, converge, sync

from bench.sync import digest, schedule
from edgemem.errors import InputError, SchemaVersionError, StoreError, StoreFull
from edgemem.results import Entity, Picture, Scope
from edgemem.store import NewRelation, Store, images
from edgemem.store.receipts import add_mark, marks, remove_mark, set_never_send
from edgemem.store.relations import relations
from edgemem.store.sync import begin, own_device, take_in, unpack, versions
from edgemem.sync import exchange as module
from edgemem.sync import pairing_code
from edgemem.sync import sync as sync_memory
from edgemem.sync.exchange import (
    MAGIC,
    Directory,
    Synced,
    code_of,
    new_secret,
    secret_of,
    unseal,
)

HOUR = 3_600_000 << 16


def write(store, id, text, at=T1, **more):
    with store.transaction() as tx:
        tx.update_memory(id, memory=text, search_text=text, vectors=unit(1), updated_at=at, **more)


def written(folder):
    """All that lies in the files of a folder, opened."""
    return [
        version
        for file in folder.rglob("*.changes")
        for version in unpack(
            zlib.decompress(unseal(SECRET, file.read_bytes(), f"{file.parent.name}/{file.name}"))
        )
    ]


@pytest.fixture
def pair(tmp_path):
    """Two devices that know m0, taken from t0, and their folder."""
    with Store.open(tmp_path / "a.db") as a, Store.open(tmp_path / "b.db") as b:
        add(a, turn("t0"), memory("m0", "old", sources=("t0",)))
        for store in (a, b):
            begin(store, SECRET)
        converge(tmp_path / "folder", a, b)
        yield a, b, tmp_path / "folder"


def test_all_that_travels_arrives_with_its_vectors_and_can_be_searched(pair):
    a, b, folder = pair
    ada, oslo = Entity("Ada", "person", ("Addie",)), Entity("Oslo", "place")
    add(a, turn("t1", "I moved"), memory("m1", "Ada lives in Oslo", sources=("t1",)))
    with a.transaction() as tx:
        tx.set_relations("m1", [NewRelation(ada, "lives_in", oslo, T1)], 3)
        tx.invalidate("m0", T2)
        set_never_send(tx, "m1", True)
        add_mark(tx, pattern="secret")
    converge(folder, a, b)
    assert b.get(["m1"])["m1"].to_dict() == a.get(["m1"])["m1"].to_dict()
    assert b.get(["m0"])["m0"].valid_to == T2
    assert [r.destination for r in relations(b, ADA, ["Addie"])] == ["Oslo"]
    assert [mark.pattern for mark in marks(b)] == ["secret"]
    assert [h["event"] for h in b.history("m0")] == ["ADD", "DELETE"]
    np.testing.assert_array_equal(b.vectors()["m1"], a.vectors()["m1"])
    assert b.meta("embedder_dim") == str(DIM)


def test_an_image_comes_along_with_what_its_memory_calls_it_and_goes_with_it(pair):
    a, b, folder = pair
    data = bytes(range(256)) * 400  # beside the file, not in it
    picture = Picture(
        id=sha256(data).hexdigest(), mime="image/png", size_bytes=len(data), width=1, height=1,
        caption="a boat", caption_by="user", ocr_state="done", ocr_text="ZANZIBAR", data=data,
        thumbnail=b"small", phash="0" * 16,
    )  # fmt: skip
    with a.transaction() as tx:
        tx.add_image("m0", picture)
    converge(folder, a, b)
    assert images.image(b, picture.id).data == data
    with b.transaction() as tx:
        tx.set_caption("m0", "our boat", "user")
    converge(folder, a, b)
    assert a.select("SELECT caption FROM memory_images") == [("our boat",)]
    b.erase(["m0"])
    converge(folder, a, b)
    assert images.text_of(a, picture.id) is None
    assert list(folder.parent.glob("*.images")) == []
    assert "ZANZIBAR" not in json.dumps([version.body for version in written(folder)])


def test_lost_bytes_of_an_image_stop_no_sync_and_come_back_from_a_device_that_has_them(
    pair,
):
    a, b, folder = pair
    data = bytes(range(256)) * 400
    picture = Picture(
        id=sha256(data).hexdigest(), mime="image/png", size_bytes=len(data), width=1, height=1,
        caption="a boat", caption_by="user", ocr_state="done", ocr_text="", data=data,
        thumbnail=b"small", phash="0" * 16,
    )  # fmt: skip
    with a.transaction() as tx:
        tx.add_image("m0", picture)
    file = images.folder_of(a.path) / picture.id
    file.unlink()
    sync(a, folder)
    sync(b, folder)
    assert [len(store.check()) for store in (a, b)] == [1, 1]
    file.write_bytes(data)
    sync(a, new := folder.with_name("new"))
    sync(b, new)  # the same version, now with its bytes
    assert b.check() == [] and images.image(b, picture.id).data == data


def test_a_reset_empties_every_device(pair):
    a, b, folder = pair
    a.reset()
    converge(folder, a, b)
    assert b.counts()["turns"] == b.counts()["history"] == 0
    add(b, memory("new"))
    converge(folder, a, b)
    assert [m.id for m in a.list()] == ["new"]


def test_other_folders_at_a_place_are_no_devices_and_are_not_read(pair, monkeypatch):
    a, _, folder = pair
    sync(a, folder)
    for name in (".stfolder", "System Volume Information", "lost+found"):
        (folder / name).mkdir()
    scandir = os.scandir

    def refusing(path):
        if Path(path).name == "lost+found":
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(module.os, "scandir", refusing)
    assert sync(a, folder) == Synced(devices=1)


def test_an_exchange_without_news_writes_nothing(pair):
    a, b, folder = pair
    sync(a, folder)  # it has seen that b has seen it
    before = {file: file.stat().st_mtime_ns for file in folder.rglob("*")}
    generation = a.generation()
    assert sync(a, folder) == sync(b, folder) == Synced(devices=1)
    assert {file: file.stat().st_mtime_ns for file in folder.rglob("*")} == before
    assert a.generation() == generation


def test_the_last_writer_wins_and_the_other_text_is_in_the_history(pair):
    a, b, folder = pair
    write(a, "m0", "from a")
    time.sleep(0.01)  # within one tick of the clock the device's id decides which is later
    write(b, "m0", "from b")
    converge(folder, a, b)
    assert a.get(["m0"])["m0"].memory == "from b"
    assert {h["new_memory"] for h in a.history("m0")} == {"old", "from a", "from b"}


def test_a_history_is_told_oldest_first_although_the_later_change_was_made_here(pair):
    a, b, folder = pair
    write(a, "m0", "first", at=T1)
    time.sleep(0.01)  # within one tick of the clock the device's id decides which is later
    write(b, "m0", "second", at=T2)
    converge(folder, a, b)
    for store in (a, b):
        assert [h["new_memory"] for h in store.history("m0")] == ["old", "first", "second"]


def test_who_answers_an_edit_wins_although_their_clock_is_hours_behind(pair):
    a, b, folder = pair
    a._writer.execute("UPDATE sync_self SET clock = clock + ?", (5 * HOUR,))
    write(a, "m0", "ahead")
    converge(folder, a, b)
    write(b, "m0", "answer")
    converge(folder, a, b)
    assert a.get(["m0"])["m0"].memory == "answer"


def test_what_was_stored_by_a_clock_ahead_before_the_first_sync_can_be_changed(
    tmp_path,
):
    with Store.open(tmp_path / "a.db") as a, Store.open(tmp_path / "b.db") as b:
        add(a, memory("m0", "old", created_at=FAR_AHEAD), memory("m1", created_at=FAR_AHEAD))
        for store in (a, b):
            begin(store, SECRET)
        converge(tmp_path / "folder", a, b)
        write(a, "m0", "new")
        with a.transaction() as tx:
            tx.delete_memory("m1", T2)
        converge(tmp_path / "folder", a, b)
        assert [item.memory for item in b.list(ADA)] == ["new"]


def test_what_ended_by_a_clock_ahead_has_ended_everywhere_and_a_dated_end_keeps_its_day(
    pair,
):
    """It was live on the other devices for as long as the clock was ahead."""
    a, b, folder = pair
    ada, oslo = Entity("Ada", "person"), Entity("Oslo", "place")
    add(a, memory("planned"))
    with a.transaction() as tx:
        tx.set_relations("m0", [NewRelation(ada, "lives_in", oslo, T1)], 3)
        tx.invalidate("m0", FAR_AHEAD, at=FAR_AHEAD)
        tx.invalidate("planned", FAR_AHEAD, at=T2)
    sync(a, folder)
    sync(b, folder)
    assert [item.id for item in b.list(ADA)] == ["planned"]
    assert b.get(["planned"])["planned"].valid_to == FAR_AHEAD
    assert relations(b, ADA) == []
    assert relations(b, ADA, include_invalid=True)[0].valid_to == b.get(["m0"])["m0"].valid_to


def test_a_contradiction_on_each_device_keeps_both_facts_with_their_times(pair):
    a, b, folder = pair
    for store, id, at in ((a, "oslo", T1), (b, "rome", T2)):
        with store.transaction() as tx:
            tx.invalidate("m0", at, at=at)
            tx.add_memory(memory(id, f"Ada lives in {id}", valid_from=at))
        time.sleep(0.01)  # within one tick of the clock the device's id decides which is later
    write(a, "m0", "old, reworded")  # an edit here, and ends on both
    converge(folder, a, b)
    assert {(m.id, m.valid_from) for m in b.list(ADA)} == {("oslo", T1), ("rome", T2)}
    assert (m0 := b.get(["m0"])["m0"]).memory == "old, reworded"
    assert m0.valid_to == T2


def test_a_mark_here_and_an_edit_there_are_both_kept(pair):
    a, b, folder = pair
    with a.transaction() as tx:
        set_never_send(tx, "m0", True)
    write(b, "m0", "edited", metadata={"tag": 1})
    converge(folder, a, b)
    assert a.get(["m0"])["m0"].metadata == {"tag": 1, "never_send": True}
    with b.transaction() as tx:
        set_never_send(tx, "m0", False)
    write(a, "m0", "again")
    converge(folder, a, b)
    assert b.get(["m0"])["m0"].metadata == {"tag": 1}


def test_a_mark_taken_off_here_after_an_edit_came_leaves_a_second_edit_there(pair):
    a, b, folder = pair
    with a.transaction() as tx:
        set_never_send(tx, "m0", True)
    for text in ("first edit", "second edit"):
        converge(folder, a, b)
        write(b, "m0", text)
    time.sleep(0.01)  # within one tick of the clock the device's id decides which is later
    with a.transaction() as tx:
        set_never_send(tx, "m0", False)
    converge(folder, a, b)
    assert (m0 := a.get(["m0"])["m0"]).memory == "second edit" and m0.metadata == {}


def test_a_deleted_memory_is_in_no_index_and_a_later_edit_brings_it_back(pair):
    a, b, folder = pair
    with a.transaction() as tx:
        tx.delete_memory("m0", T1)
    sync(a, folder)
    write(b, "m0", "still wanted")
    converge(folder, a, b)
    assert [m.memory for m in a.list(ADA)] == ["still wanted"]
    with b.transaction() as tx:
        tx.delete_memory("m0", T2)
    converge(folder, a, b)
    assert a.list(ADA) == [] and a.counts()["vectors"] == 0


def test_an_erase_wins_over_a_later_edit_and_leaves_no_word_in_any_file(pair):
    a, b, folder = pair
    add(a, turn("t1", "bystander"), memory("m1", "kept text", sources=("t1",)))
    write(a, "m0", "zanzibar")
    converge(folder, a, b)
    a.erase(["m0"])
    write(b, "m0", "zanzibar again")
    first = sync(a, folder)
    assert first.unconfirmed and not sync(b, folder).unconfirmed
    converge(folder, a, b)
    assert sync(a, folder).unconfirmed == ()
    assert list(b.get(["m0", "m1"])) == ["m1"]
    said = json.dumps([version.body for version in written(folder)])
    assert "zanzibar" not in said and "kept text" in said
    for file in folder.parent.rglob("*"):
        assert file.is_dir() or b"zanzibar" not in file.read_bytes(), file


def test_an_erased_name_is_gone_from_the_relations_of_others_in_every_file(pair):
    a, b, folder = pair
    sister, lena, oslo = "User's sister", Entity("Lena", "person", ("User's sister",)), "Oslo"
    add(a, turn("t1"), memory("m1", "User's sister is Lena", sources=("t1",)))
    add(a, turn("t2"), memory("m2", "User's sister lives in Oslo", sources=("t2",)))
    told = {"m1": (lena, "sibling_of", Entity("User", "person"))}
    told["m2"] = (Entity(sister, "person"), "lives_in", Entity(oslo, "place"))
    for id, relation in told.items():
        with a.transaction() as tx:
            tx.set_relations(id, [NewRelation(*relation)], 1)
        converge(folder, a, b)  # each in a file of its own
    assert any(v.id == "m2" and "Lena" in (v.body or "") for v in written(folder))
    a.erase(["m1"])
    converge(folder, a, b)
    assert "Lena" not in json.dumps([version.body for version in written(folder)])


def test_an_erase_takes_the_turn_that_only_another_device_knows_and_no_more(pair):
    a, b, folder = pair
    add(a, turn("t1"), memory("own1", "the turn t1", sources=("t1",)))
    add(a, memory("both", "from t0 and t1", sources=("t0", "t1")))
    converge(folder, a, b)
    add(b, turn("t2"), memory("own2", "the turn t2", sources=("t2",)))
    write(b, "m0", "m0, from t2 as well", sources=["t2"])
    a.erase(["m0"])  # and `both`, which cites t0; not t1, which `both` alone shares with it
    converge(folder, a, b)
    assert [m.id for m in b.list(ADA)] == ["own1"]
    assert set(a.turns(["t0", "t1", "t2"])) == {"t1"}


def test_a_history_that_comes_before_its_memory_waits_and_is_erased_with_it(pair, tmp_path):
    a, b, folder = pair
    add(a, turn("t1"), memory("m1", "ZANZIBAR", sources=("t1",)))
    with a.snapshot() as connection:
        early = [v for v in versions(connection, "1") if v.kind == "history" and "m1" in v.id]
    with b.transaction() as tx:
        take_in(tx, early, "there", {})
    assert b.select("SELECT kind FROM sync_waiting") == [("history",)]
    assert b.history("m1") == []
    a.erase(["m1"])
    converge(folder, a, b)
    assert b.history("m1") == []
    b.close()
    assert b"ZANZIBAR" not in bytes_beside(tmp_path / "b.db")


def test_turns_that_may_quote_what_is_erased_go_where_they_were_said(pair):
    a, b, folder = pair
    add(b, turn("answer", "as you said: old", role="assistant"))
    add(b, turn("other", scope=Scope(user_id="bob"), role="assistant"))
    a.erase(["m0"])
    converge(folder, a, b)
    assert list(a.turns(["answer", "other"])) == ["other"]


def test_what_an_import_brings_back_is_erased_again(pair):
    a, b, folder = pair
    a.erase(["m0"])
    converge(folder, a, b)
    add(b, turn("t0"), memory("m0", "back", sources=("t0",)))
    add(a, memory("m2"))
    converge(folder, a, b)
    assert [m.id for m in b.list(ADA)] == ["m2"]


def test_a_taken_off_never_send_mark_is_gone_everywhere(pair):
    a, b, folder = pair
    with a.transaction() as tx:
        add_mark(tx, pattern="x")
    converge(folder, a, b)
    with b.transaction() as tx:
        remove_mark(tx, marks(b)[0].id)
    converge(folder, a, b)
    assert marks(a) == []


@pytest.mark.parametrize("harm", ["lost", "cut", "damaged", "head lost", "head cut"])
def test_a_file_that_suffers_is_written_again(pair, harm):
    a, b, folder = pair
    add(a, memory("m1"))
    sync(a, folder)
    own = folder / str(a.select("SELECT device FROM sync_self")[0][0])
    file = max(own.glob("*.changes")) if "head" not in harm else own / "head"
    data = file.read_bytes()
    if "lost" in harm:
        file.unlink()
    else:
        file.write_bytes(data[:-1] if "cut" in harm else data[:-1] + bytes([data[-1] ^ 1]))
    assert sync(b, folder).late == (own.name,) if harm != "head lost" else sync(b, folder)
    assert "m1" not in b.get(["m1"])
    converge(folder, a, b)
    assert "m1" in b.get(["m1"])


def test_a_damaged_name_of_the_key_is_not_taken_for_another_code(tmp_path):
    with Store.open(":memory:") as a, Store.open(":memory:") as b:
        for store in (a, b):
            begin(store, SECRET)
        sync(a, tmp_path)
        (head,) = tmp_path.rglob("head")
        data = bytearray(head.read_bytes())
        data[len(MAGIC)] ^= 1
        head.write_bytes(data)
        assert sync(b, tmp_path).late == (head.parent.name,)
        converge(tmp_path, a, b)


def test_an_exchange_that_is_killed_anywhere_is_made_good_by_the_next(pair, monkeypatch):
    a, b, folder = pair
    for step in range(6):
        add(a, memory(f"m{step + 1}"), turn(f"s{step}"))
        if step % 2:
            a.erase([f"m{step}"])
        left = iter(range(step))

        def stumble(name, left=left):
            whole = getattr(Directory, name)

            def act(self, *args):
                if next(left, None) is None:
                    raise KeyboardInterrupt
                return whole(self, *args)

            return act

        with monkeypatch.context() as patched:
            for name in ("write", "delete"):
                patched.setattr(Directory, name, stumble(name))
            with suppress(KeyboardInterrupt):
                sync(a, folder)
        sync(b, folder)
    converge(folder, a, b)
    assert sorted(m.id for m in b.list(ADA)) == ["m0", "m2", "m4", "m6"]


def test_versions_are_committed_with_what_they_are_of_whenever_the_process_dies(
    tmp_path,
):
    with Store.open(tmp_path / "a.db") as a:
        begin(a, SECRET)
    code = """
import sys
from storekit import add, memory, turn
from edgemem.store import Store
store = Store.open(sys.argv[1])
for i in range(100_000):
    add(store, turn(f"t{i}"), memory(f"m{i}", sources=(f"t{i}",)))
    print(i, flush=True)
"""
    process = child(code, tmp_path / "a.db")
    assert process.stdout is not None
    for line in process.stdout:
        if int(line) == 30:
            process.kill()
            break
    process.communicate()
    with Store.open(tmp_path / "a.db") as a, Store.open(tmp_path / "b.db") as b:
        begin(b, SECRET)
        converge(tmp_path / "folder", a, b)
        assert len(b.list(ADA)) >= 31


def test_a_copy_of_a_store_becomes_a_device_of_its_own(pair, tmp_path):
    a, b, folder = pair
    a._writer.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    shutil.copy(tmp_path / "a.db", tmp_path / "copy.db")
    with Store.open(tmp_path / "copy.db") as copy:
        for number, store in enumerate((a, copy, a, copy)):
            add(store, memory(f"n{number}"))
            sync(store, folder)
        converge(folder, a, b, copy)
        assert len(copy.list(ADA)) == 5
        assert len(list(folder.iterdir())) == 3


def test_what_was_learned_at_one_place_goes_on_to_the_next(pair, tmp_path):
    a, b, folder = pair
    with Store.open(tmp_path / "c.db") as c:
        begin(c, SECRET)
        converge(tmp_path / "stick", b, c)
        add(a, memory("m1"))
        sync(a, folder)
        sync(b, folder)
        assert sync(b, tmp_path / "stick").sent > 0
        sync(c, tmp_path / "stick")
        assert "m1" in c.get(["m1"]) and digest(c) == digest(a)


def test_a_new_device_sends_back_none_of_what_it_has_read(pair, tmp_path):
    _a, _b, folder = pair
    with Store.open(tmp_path / "c.db") as c:
        begin(c, SECRET)
        assert (done := sync(c, folder)).received and not done.sent


def test_many_small_files_become_one(pair, monkeypatch):
    a, b, folder = pair
    monkeypatch.setattr(module, "SMALL_FILES", 5)
    for number in range(12):
        add(a, memory(f"n{number}"))
        sync(a, folder)
    own = folder / str(a.select("SELECT device FROM sync_self")[0][0])
    assert len(list(own.glob("*.changes"))) <= 7
    converge(folder, a, b)


def test_outdated_versions_do_not_pile_up(pair, monkeypatch):
    a, b, folder = pair
    monkeypatch.setattr(module, "CHUNK_BYTES", 1)  # no file is small
    monkeypatch.setattr(module, "OUTDATED_ROWS", 5)
    own = folder / str(a.select("SELECT device FROM sync_self")[0][0])
    most = 0
    for number in range(20):
        with a.transaction() as tx:
            set_never_send(tx, "m0", number % 2 == 0)
        sync(a, folder)
        most = max(most, len(list(own.glob("*.changes"))))
    assert most == 1 + 12  # one file of four rows; then a mark each, of which eleven are outdated
    converge(folder, a, b)


def test_another_embedders_vectors_are_made_anew(pair, tmp_path):
    a, _b, folder = pair
    with a.transaction() as tx:
        tx.set_meta("embedder_model", "one@1")
    add(a, memory("m1", "the only text"))
    sync(a, folder)
    with Store.open(tmp_path / "c.db") as c:
        begin(c, SECRET)
        with c.transaction() as tx:
            tx.set_meta("embedder_model", "other@1")
        asked: list[str] = []

        def vectors_for(texts):
            asked.extend(texts)
            return [unit(9, dim=5) for _ in texts]

        sync(c, folder, vectors_for)
        assert sorted(asked) == ["old", "the only text"]
        assert c.vectors()["m1"].shape == (1, 5)


def test_a_relation_waits_for_what_ended_it(pair, tmp_path):
    a, b, folder = pair
    place = NewRelation(Entity("Ada", "person"), "lives_in", Entity("Oslo", "place"))
    with a.transaction() as tx:
        tx.set_relations("m0", [place], 3)
    converge(folder, a, b)
    with Store.open(tmp_path / "c.db") as c:
        begin(c, SECRET)
        converge(tmp_path / "stick", c, b)
        add(c, memory("new"))
        converge(tmp_path / "stick", c, b)
        with b.transaction() as tx:
            tx.end_relations("m0", T2, "new")
        sync(b, folder)
        b_files = folder / str(b.select("SELECT device FROM sync_self")[0][0])
        assert b_files.is_dir()
        converge(folder, a, b)
        assert relations(a, ADA, include_invalid=True)[0].invalidated_by == "new"


def test_devices_with_other_versions_refuse_with_the_next_step(pair, monkeypatch):
    a, b, folder = pair
    newer = [*module.MIGRATIONS, lambda connection: None]
    with monkeypatch.context() as patched:
        patched.setattr(module, "MIGRATIONS", newer)
        with pytest.raises(SchemaVersionError, match=r"upgrade .* on the device \w{16} and sync"):
            sync(a, folder)
        for file in folder.glob("*/head"):
            file.unlink()
        sync(a, folder)
    with pytest.raises(SchemaVersionError, match="upgrade edgemem-runtime on this device"):
        sync(b, folder)


def test_devices_that_are_upgraded_one_after_the_other_do_not_wait_for_each_other(
    pair, monkeypatch
):
    """Each refused the other's old files before it had written new ones."""
    a, b, folder = pair
    sync(b, folder)
    monkeypatch.setattr(module, "MIGRATIONS", [*module.MIGRATIONS, lambda connection: None])
    add(a, memory("new"))
    with pytest.raises(SchemaVersionError, match=f"on the device {own_device(b).device} and sync"):
        sync(a, folder)
    sync(b, folder)
    assert "new" in b.get(["new"])
    converge(folder, a, b)


def test_files_of_an_earlier_format_are_said_to_be_another_versions(pair):
    a, b, folder = pair
    sync(b, folder)
    for head in folder.glob("*/head"):
        head.write_bytes(b"EDGESYN1" + head.read_bytes()[len(MAGIC) :])
    with pytest.raises(SchemaVersionError, match=r"of an earlier format .* upgrade .* the device"):
        sync(a, folder)
    sync(b, folder)
    converge(folder, a, b)
    (folder / own_device(a).device / "head").write_bytes(b"EDGESYN9" + bytes(200))
    with pytest.raises(SchemaVersionError, match="upgrade edgemem-runtime on this device"):
        sync(b, folder)


def test_an_empty_device_begins_with_its_own_embedder(tmp_path):
    """It took the embedder of an upgraded store, and every add and search then failed."""
    with (
        quick(tmp_path / "a.db", embedder=BagOfWords(model_id="old@1")) as a,
        quick(tmp_path / "b.db") as b,
    ):
        a.add("The cellar is damp.", infer=False)
        sync_memory(a, tmp_path / "folder")
        sync_memory(b, tmp_path / "folder", pairing_code(a))
        assert b.store.meta("embedder_model") == b.embedder.model_id != "old@1"
        b.add("The roof is new.", infer=False)
        assert texts(b.search("cellar", top_k=1)) == ["The cellar is damp."]


def test_a_store_that_is_no_device_and_a_folder_of_other_people_are_refused(pair, tmp_path):
    _a, _b, folder = pair
    with Store.open(tmp_path / "c.db") as c:
        with pytest.raises(StoreError, match="edgemem sync"):
            sync(c, folder)
        begin(c, new_secret())
        sync(c, tmp_path / "own")  # a place of its own makes no other one its own
        with pytest.raises(InputError, match="another pairing code"):
            sync(c, folder)
        (tmp_path / "file").write_text("x")
        with pytest.raises(StoreFull, match="cannot be used"):
            sync(c, tmp_path / "file")


def test_a_code_survives_how_people_type_and_tells_a_slip():
    secret = bytes(range(14))  # one slip in 256 passes the checksum: no random code
    code = code_of(secret)
    assert re.fullmatch(r"([A-Z2-7]{4}-){5}[A-Z2-7]{4}", code)
    assert secret_of(code.lower().replace("-", " ").replace("o", "0")) == secret
    slips = [code[:-1], code[1:] + code[0], "", "no code", code.replace(code[0], "é")]
    for slip in slips:
        with pytest.raises(InputError, match="slip of the pen"):
            secret_of(slip)


# -- through Memory --------------------------------------------------------------------------


def test_a_memory_finds_what_another_device_was_told_and_forgets_with_it(tmp_path):
    folder = tmp_path / "shared"
    with quick(tmp_path / "a" / "a.db") as a, quick(tmp_path / "b" / "b.db") as b:
        a.add("The boat is called Zanzibar.", user_id="ada", infer=False)
        b.add("The cat sleeps.", user_id="ada", infer=False)
        assert texts(b.search("boat", user_id="ada", top_k=1)) == ["The cat sleeps."]
        sync_memory(a, folder)
        sync_memory(b, folder, code=pairing_code(a))
        assert isinstance(b.embedder, BagOfWords) and b.embedder.embedded == 1
        found = b.search("boat", user_id="ada", top_k=1)
        assert texts(found) == ["The boat is called Zanzibar."]
        a.erase(found[0].id)
        sync_memory(a, folder)
        assert sync_memory(b, folder).erased == (found[0].id,)
        assert texts(b.search("boat", user_id="ada")) == ["The cat sleeps."]
        b.close()
        assert b"Zanzibar" not in bytes_beside(tmp_path / "b" / "b.db")
        assert b"Zanzibar" not in bytes_beside(folder / "x")


def test_an_exchange_that_fails_after_an_erase_has_dropped_the_prompts(tmp_path, monkeypatch):
    engine, folder = FakeEngine(), tmp_path / "folder"
    with quick(tmp_path / "a.db") as a, quick(tmp_path / "b.db", engine=engine) as b:
        (said,) = a.add("The PIN is 4711.", user_id="ada", infer=False)
        sync_memory(a, folder)
        sync_memory(b, folder, code=pairing_code(a))
        a.erase(said.id)
        sync_memory(a, folder)
        b.engine  # noqa: B018  # is loaded
        engine.prompts.append(("chat", "The PIN is 4711."))
        monkeypatch.setattr(
            module._Exchange, "publish", lambda _: (_ for _ in ()).throw(StoreFull("full"))
        )
        with pytest.raises(StoreFull):
            sync_memory(b, folder)
        assert b.get(said.id) is None and engine.prompts == []


def test_facts_are_not_taken_from_a_turn_that_was_deleted_elsewhere(tmp_path):
    folder = tmp_path / "shared"
    with quick(tmp_path / "a.db") as a, quick(tmp_path / "b.db") as b:
        a.add("I moved to Oslo.", user_id="ada", infer="later")
        sync_memory(a, folder)
        sync_memory(b, folder, code=pairing_code(a))
        assert len(a.pending()) == 1 and b.pending() == []
        b.delete(b.get_all(user_id="ada")[0].id)
        sync_memory(b, folder)
        sync_memory(a, folder)
        assert a.pending() == []


def test_facts_that_were_taken_here_go_with_the_turn_that_was_deleted_elsewhere(
    tmp_path,
):
    folder, known = tmp_path / "shared", {"I live in Oslo.": "{} lives in Oslo"}
    engine = FakeEngine(facts=known)
    with quick(tmp_path / "a.db", engine=engine) as a, quick(tmp_path / "b.db") as b:
        told = a.add("I live in Oslo.", user_id="ada", infer="later")
        sync_memory(a, folder)
        sync_memory(b, folder, code=pairing_code(a))
        b.delete(told[0].id)
        a.take_facts(told)
        for _ in range(2):
            sync_memory(b, folder)
            sync_memory(a, folder)
        assert texts(a.get_all()) == texts(b.get_all()) == []


def test_a_vault_syncs_with_a_plain_store(tmp_path):
    from edgemem import vault

    key = vault.new_key()
    vault.create(tmp_path / "a.db", key, way=None)
    with Store.open(tmp_path / "a.db", vault=key) as a, Store.open(tmp_path / "b.db") as b:
        for store in (a, b):
            begin(store, SECRET)
        add(a, turn("t1"), memory("m1", "in the vault", sources=("t1",)))
        add(b, memory("m2"))
        converge(tmp_path / "folder", a, b)
        b.erase(["m1"])
        converge(tmp_path / "folder", a, b)
        assert [m.id for m in a.list(ADA)] == ["m2"]


@pytest.mark.parametrize("seed", range(20))
def test_a_schedule_ends_with_equal_stores(seed):
    """Whatever happens to devices and files; `python -m bench.sync --schedules N` runs more."""
    schedule(seed)
