"""What happened before devices were paired, which name a store has, and what a reader delays."""

import shutil
from contextlib import closing
from hashlib import sha256
from threading import Thread

import pytest
from memorykit import bytes_beside, quick, texts
from storekit import ADA, add, memory, turn, unit
from synckit import SECRET, converge, never_asked, sync

from edgemem import vault as vaults
from edgemem.results import Picture
from edgemem.store import Store, database
from edgemem.store.erasures import verify
from edgemem.store.sync import begin
from edgemem.sync import pairing_code
from edgemem.sync import sync as sync_memory
from edgemem.sync.exchange import exchange
from edgemem.sync.network import Remote, Server

KEY = bytes(range(32))


def opened(path, key=None):
    return Store.open(path, busy_timeout_s=0.2, vault=None if key is None else vaults.of_key(key))


def copied(store, path):
    store._writer.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    shutil.copy(store.path, path)


def by_folder(a, b, folder):
    for store in (a, b, a, b):
        sync(store, folder)


def by_line(a, b, folder):
    """As `edgemem sync --with` does on b, once."""
    server = Server(folder, SECRET, lambda: sync(a, folder), "127.0.0.1", 0)
    Thread(target=server.serve_forever, daemon=True).start()
    with closing(server), closing(Remote(f"127.0.0.1:{server.port}", SECRET)) as remote:
        remote.exchange_there()
        exchange(b, remote, vectors_for=never_asked)
        remote.exchange_there()
        # What a has erased is not b's to be confirmed.
        assert exchange(b, remote, vectors_for=never_asked).unconfirmed == ()


@pytest.mark.parametrize("key", [None, KEY], ids=["plain", "vault"])
@pytest.mark.parametrize("bring_together", [by_folder, by_line])
def test_what_was_erased_before_the_devices_were_paired_is_erased_on_both(
    tmp_path, key, bring_together
):
    with opened(tmp_path / "a.db", key) as a:
        add(a, turn("t0", "Zephyrine said"), memory("m0", "Zephyrine is ill", sources=("t0",)),
            memory("m1", "Zephyrine sails", sources=("t0",)), turn("t2"),
            memory("m2", sources=("t2",)), turn("uncited", "Where is Zephyrine?"))  # fmt: skip
        copied(a, tmp_path / "b.db")
        with opened(tmp_path / "b.db", key) as b:
            # The copy learns more of m0, which will be erased, and of m1, which only goes with it.
            for old, new in (("m0", "3"), ("m1", "4")):
                said = f"Zephyrine again {new}" if old == "m0" else "the boat"
                add(b, turn(f"t{new}", said), memory(f"m{new}", said, sources=(f"t{new}",)))
                with b.transaction() as tx:
                    tx.update_memory(
                        old, memory=said, search_text=said, vectors=unit(1), updated_at="2024-06",
                        sources=(f"t{new}",),
                    )  # fmt: skip
            a.erase(["m0"])
            for store in (a, b):
                begin(store, SECRET)
            bring_together(a, b, tmp_path / "folder")
            for store in (a, b):
                assert {m.id for m in store.list(ADA)} == {"m2", "m4"}
                assert set(store.turns(["t0", "t2", "t3", "t4", "uncited"])) == {"t2", "t4"}
                assert b"Zephyrine" not in store._reader.serialize()
                assert verify(store)["problems"] == []
            converge(tmp_path / "folder", a, b)


def test_a_memory_erased_before_pairing_is_found_by_nobody_after_it(tmp_path):
    with quick(tmp_path / "laptop.db") as laptop:
        laptop.add("My sister Lena has an illness.", user_id="ana", infer=False)
        laptop.add("The cat sleeps.", user_id="ana", infer=False)
    (tmp_path / "phone").mkdir()
    shutil.copy(tmp_path / "laptop.db", tmp_path / "phone" / "phone.db")
    folder = tmp_path / "folder"
    with quick(tmp_path / "laptop.db") as laptop, quick(tmp_path / "phone/phone.db") as phone:
        (illness,) = [m for m in laptop.get_all() if "illness" in m.memory]
        laptop.erase(illness.id)
        sync_memory(laptop, folder)
        sync_memory(phone, folder, code=pairing_code(laptop))
        sync_memory(laptop, folder)
        assert sync_memory(phone, folder).erased == (illness.id,)
        assert texts(laptop.get_all()) == texts(phone.get_all()) == ["The cat sleeps."]
    assert b"illness" not in bytes_beside(tmp_path / "phone" / "phone.db")


def test_what_is_stored_again_after_an_erase_is_kept_at_the_first_sync(tmp_path):
    with opened(tmp_path / "a.db") as a, opened(tmp_path / "b.db") as b:
        told = (turn("t0", "I like green tea"), memory("m0", "I like green tea", sources=("t0",)),
                memory("m1", "I live in Oslo"))  # fmt: skip
        add(a, *told)
        a.erase(["m0"])
        add(a, *told[:2])  # as an import, which gives the same ids
        for store in (a, b):
            begin(store, SECRET)
        by_folder(a, b, tmp_path / "folder")
        with b.transaction() as tx:  # an edit names the id again
            tx.update_memory(
                "m0", memory="I like white tea", search_text="I like white tea", vectors=unit(1),
                updated_at="2999",
            )  # fmt: skip
        by_folder(b, a, tmp_path / "folder")
        for store in (a, b):
            assert {m.memory for m in store.list(ADA)} == {"I like white tea", "I live in Oslo"}
            assert set(store.turns(["t0"])) == {"t0"}
        a.erase(["m0"])  # and a later erase holds for both
        by_folder(a, b, tmp_path / "folder")
        for store in (a, b):
            assert {m.memory for m in store.list(ADA)} == {"I live in Oslo"}
        converge(tmp_path / "folder", a, b)


# -- names -----------------------------------------------------------------------------------------


def with_image(store):
    data = bytes(range(256)) * 400
    picture = Picture(
        id=sha256(data).hexdigest(), mime="image/png", size_bytes=len(data), width=1, height=1,
        caption="a boat", caption_by="user", ocr_state="done", data=data, thumbnail=b"small",
        phash="0" * 16,
    )  # fmt: skip
    add(store, turn("t0"), memory("m0", sources=("t0",)))
    with store.transaction() as tx:
        tx.add_image("m0", picture)


def test_a_vault_that_sends_an_image_keeps_its_name_and_is_scrubbed(tmp_path):
    with opened(tmp_path / "a.db", KEY) as a, opened(tmp_path / "b.db", KEY) as b:
        with_image(a)
        add(b, memory("m1", "Zephyrine"))
        for store in (a, b):
            begin(store, SECRET)
        for _ in range(3):
            assert sync(a, tmp_path / "folder").devices <= 1
            sync(b, tmp_path / "folder")
            add(a, memory(f"n{a.generation()}"))
        b.erase(["m1"])
        sync(b, tmp_path / "folder")
        assert sync(a, tmp_path / "folder").scrubbed
        assert len(list((tmp_path / "folder").iterdir())) == 2


@pytest.mark.parametrize("key", [None, KEY], ids=["plain", "vault"])
def test_a_statement_that_is_not_read_to_its_end_ends_with_its_cursor(tmp_path, key):
    with opened(tmp_path / "a.db", key) as store:
        add(store, memory("m0"), memory("m1"))
        with store.snapshot() as connection:
            unread = connection.execute("SELECT id FROM memories")
            assert unread.fetchone() == ("m0",)
            assert connection.execute("SELECT count(*) FROM memories").fetchall() == [(2,)]
            del unread
        add(store, memory("m2"))
        assert store.select("SELECT count(*) FROM memories") == [(3,)]


def test_a_store_put_back_from_a_backup_takes_a_new_name_and_leaves_no_old_one(
    tmp_path,
):
    folder = tmp_path / "folder"
    with opened(tmp_path / "b.db") as b, opened(tmp_path / "c.db") as c:
        with opened(tmp_path / "a.db") as a:
            for store in (a, b, c):
                begin(store, SECRET)
            add(a, memory("m0"))
            sync(a, folder)
            copied(a, tmp_path / "backup.db")
            for id in ("m1", "m2"):
                add(a, memory(id))
                sync(a, folder)
        with opened(tmp_path / "backup.db") as a:
            assert sync(a, folder).devices == 0  # it was alone there, under its former name
            sync(b, folder)
            b.erase(["m0"])
            sync(b, folder)
            sync(a, folder)
            assert sync(b, folder).unconfirmed == ()
            converge(folder, a, b, c)
            assert {m.id for m in c.list(ADA)} == {"m1", "m2"}
    assert len(list(folder.iterdir())) == 3


# -- readers ---------------------------------------------------------------------------------------


def test_an_exchange_ends_although_a_reader_delays_the_scrub_which_closing_does(
    tmp_path,
):
    folder = tmp_path / "folder"
    (tmp_path / "b").mkdir()
    with opened(tmp_path / "a.db") as a, opened(tmp_path / "b" / "b.db") as b:
        add(a, turn("t0"), memory("m0", "Zephyrine", sources=("t0",)))
        for store in (a, b):
            begin(store, SECRET)
        converge(folder, a, b)
        a.erase(["m0"])
        sync(a, folder)
        with closing(database.connect(str(b.path), 0.1, None)) as reader:
            reader.execute("BEGIN")
            assert reader.execute("SELECT count(*) FROM memories").fetchall() == [(1,)]
            done = sync(b, folder)
        assert (done.erased, done.scrubbed) == (("m0",), False)
        assert sync(a, folder).unconfirmed == ()  # it said so all the same
    assert b"Zephyrine" not in bytes_beside(tmp_path / "b" / "b.db")
