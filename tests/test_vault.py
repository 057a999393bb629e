"""An encrypted store: no byte of it can be read without its key, and nothing of it is lost."""

import json
import os
import random
import sqlite3
import subprocess
import sys
import time
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice

import numpy as np
import pytest
from imagekit import noise
from memorykit import BagOfWords, WordTokens, quick, texts
from storekit import ROOT, add, child, finished, memory, raised

import edgemem.cli.output as output
import edgemem.cli.typed as typed
from edgemem import Memory
from edgemem import vault as vaults
from edgemem.cli.typed import history_file, remember_typed, typed_before
from edgemem.errors import (
    ConfigError,
    InputError,
    StoreCorrupt,
    StoreError,
    StoreLocked,
    VaultLocked,
)
from edgemem.pipeline.upkeep import opened_lines
from edgemem.results import Scope
from edgemem.store import Store, database, encryption
from edgemem.store.cipher import Connection

PASSPHRASE = "seven wet herons"
WORDS = [f"q{random.Random(i).getrandbits(60):x}z" for i in range(1000)]
SAID = [" ".join(WORDS[i : i + 10]) for i in range(0, 1000, 10)]


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("EDGEMEM_HOME", str(tmp_path / "home"))
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    # A key is sought quickly here: what Argon2 costs is libsodium's business.
    monkeypatch.setattr(vaults, "MEM_BYTES", 2**16)
    return tmp_path / "home"


def vault_at(path, **rows):
    """A vault whose key lies in a file, with these memories."""
    vault = vaults.new_key()
    vaults.create(path, vault, way="file")
    with Store.open(path) as store:
        add(store, *(memory(id, text) for id, text in rows.items()))
    return vault


# -- nothing can be read ---------------------------------------------------------------------------


def traces(folder, marks):
    """The names of the files in a folder that hold one of these bytes."""
    return {
        file.name
        for file in folder.rglob("*")
        if file.is_file() and any(mark in file.read_bytes() for mark in marks)
    }


@pytest.mark.parametrize("passphrase", [None, PASSPHRASE], ids=["plain", "vault"])
def test_no_file_holds_a_word_or_a_vector_of_a_vault(tmp_path, passphrase):
    path, tokens = tmp_path / "a.db", WordTokens()
    words = [word.encode() for word in WORDS]
    vectors = [chunk[0] for chunk in BagOfWords().embed_chunks(SAID)]
    marks = words + [v.tobytes()[64:128] for v in vectors]
    marks += [np.rint(v / np.abs(v).max() * 127).astype(np.int8).tobytes() for v in vectors]
    marks += [tokens.embed_query(word)[1].tobytes() for word in WORDS[:200]]
    with quick(path, passphrase=passphrase, token_embedder=tokens) as opened:
        typed._vault = opened.store.vault
        opened.add(SAID, infer=False, user_id="ada")
        opened.add([{"role": "user", "content": s} for s in SAID[:3]], infer="later")
        opened.index.vectors.crossover = 0
        opened.search(WORDS[0])
        opened.index.vectors.build_hnsw()
        key = opened.store.vault.page_key if opened.store.vault else None
        database.backup(path, 1, key)
        remember_typed(SAID[0])
        opened.export_jsonl(tmp_path / "out.jsonl", sealed=bool(passphrase))
        while_open = traces(tmp_path, marks)  # with the log, before it is taken into the file
    closed = {file.name for file in tmp_path.rglob("*")}
    assert {"a.db.hnsw", "a.db.v1.bak"} <= closed
    found = while_open | traces(tmp_path, marks)
    if passphrase is None:  # the search finds what there is to be found
        wanted = {"a.db", "a.db-wal", "a.db.hnsw", "a.db.v1.bak", "out.jsonl"}
        assert wanted | {history_file().name} <= found
    else:
        assert found == set()
        with quick(path, passphrase=passphrase, token_embedder=tokens) as opened:
            opened.index.vectors.crossover = 0
            assert texts(opened.search(WORDS[55], top_k=1)) == [SAID[5]]
            typed._vault = opened.store.vault
            assert typed_before() == [SAID[0]]


def test_an_index_file_of_a_vault_is_loaded_again_and_never_with_another_key(
    tmp_path,
):
    path = tmp_path / "a.db"
    with quick(path, passphrase=PASSPHRASE) as opened:
        opened.add(SAID, infer=False)
        opened.index.vectors.crossover = 0
        opened.search(WORDS[0])
        opened.index.vectors.build_hnsw()
        file, index = opened._parts.index_file, opened.index
        assert file is not None
        stamp = {"generation": index.generation, "model_id": "bag@1"}
        vault = opened.store.vault
        assert index.vectors.save(file, **stamp, vault=vault)
        assert index.vectors.load(file, **stamp, vault=vault)
        for other in (None, vaults.new_key()):
            assert not index.vectors.load(file, **stamp, vault=other)


def test_a_vault_answers_as_the_plain_store_does(tmp_path):
    said = ["I live in Oslo.", "My sister lives in Graz.", "I sold the red canoe in Turku."]
    found = []
    for passphrase in (None, PASSPHRASE):
        with quick(tmp_path / f"{passphrase}.db", passphrase=passphrase) as opened:
            opened.add(said, user_id="ada", infer=False)
            for query in ("Where does my sister live?", "canoe", "Who lives in Oslo?"):
                found.append([(h.memory, round(h.score, 9)) for h in opened.search(query)])
    assert found[:3] == found[3:]


# -- keys ------------------------------------------------------------------------------------------


def test_a_vault_opens_with_its_passphrase_or_recovery_code_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "a.db"
    with quick(path, passphrase=PASSPHRASE) as opened:
        opened.add("I live in Oslo.", infer=False)
        code = opened.store.vault.recovery_code()
    for wrong in ({}, {"passphrase": "seven wet heron"}, {"key": bytes(32)}):
        with pytest.raises(VaultLocked):
            quick(path, **wrong)
    assert "EDGEMEM_PASSPHRASE" in raised(lambda: quick(path))
    slip = ("A" if code[0] != "A" else "B") + code[1:]
    for right in ({"passphrase": PASSPHRASE}, {"key": code}, {"passphrase": code.lower()},
                  {"key": code.replace("-", " ").replace("O", "0")}):  # fmt: skip
        with quick(path, **right) as opened:
            assert texts(opened.get_all()) == ["I live in Oslo."]
    with pytest.raises(InputError, match="slip of the pen"):
        quick(path, key=slip)
    monkeypatch.setenv("EDGEMEM_PASSPHRASE", PASSPHRASE)
    quick(path).close()
    vaults.vault_file(path).unlink()  # the code is the key: it needs no other file
    quick(path, key=code).close()
    quick(path, passphrase=code).close()
    with pytest.raises(VaultLocked, match="the key does not open"):
        quick(path, key=bytes(32))
    with pytest.raises(VaultLocked, match=r"is encrypted, and a\.db\.vault, .* is missing: copy"):
        quick(path)
    with pytest.raises(InputError, match=r"if a\.db\.vault is missing, .* the recovery code"):
        quick(path, passphrase=PASSPHRASE)
    monkeypatch.setenv("EDGEMEM_PASSPHRASE", code)
    quick(path).close()
    quick(tmp_path / "plain.db").close()
    quick(tmp_path / "plain.db").close()  # a code of another store is no reason to refuse it


def test_a_key_and_a_passphrase_are_not_given_at_once(tmp_path):
    with pytest.raises(InputError, match="a store is opened by one of them"):
        Memory(tmp_path / "a.db", key=bytes(32), passphrase=PASSPHRASE)
    assert not [*tmp_path.glob("a.db*")]


def test_an_umlaut_is_the_same_however_it_is_typed(tmp_path):
    quick(tmp_path / "a.db", passphrase="Gr\u00fc\u00dfe aus Graz").close()
    quick(tmp_path / "a.db", passphrase="Gru\u0308\u00dfe aus Graz").close()


def test_another_passphrase_rewrites_nothing_but_the_file_of_the_ways(tmp_path):
    path = tmp_path / "a.db"
    vault = vault_at(path, m1="Ada likes tea")
    before = {f.name: f.read_bytes() for f in tmp_path.glob("a.db*")}
    vaults.set_passphrase(path, vault, "first of them")
    vaults.set_passphrase(path, vault, PASSPHRASE)
    after = {f.name: f.read_bytes() for f in tmp_path.glob("a.db*")}
    assert {n for n in after if after[n] != before.get(n)} == {"a.db.vault"}
    with pytest.raises(VaultLocked):
        vaults.unlock(path, passphrase="first of them")
    assert vaults.unlock(path, passphrase=PASSPHRASE).id == vault.id
    with pytest.raises(InputError, match="at least 8 characters, this one has 5"):
        vaults.set_passphrase(path, vault, "short")
    with pytest.raises(InputError, match="at least 8 characters, this one has 3"):
        vaults.set_passphrase(path, vault, "日本語")  # of nine bytes


class Ring:
    """Stands in for the system's keyring."""

    priority = 5.0

    def __init__(self):
        self.held: dict[tuple[str, str], str] = {}

    def set_password(self, service, name, secret):
        self.held[service, name] = secret

    def get_password(self, service, name):
        return self.held.get((service, name))

    def delete_password(self, service, name):
        del self.held[service, name]


def test_the_keyring_opens_a_vault_and_forgets_it_once_it_is_plain(tmp_path, monkeypatch):
    assert not vaults.keyring_works()  # the tests' own has none
    ring = Ring()
    monkeypatch.setattr("keyring.get_keyring", lambda: ring)
    assert vaults.keyring_works() and ring.held == {}
    path = tmp_path / "a.db"
    with Store.open(path) as store:
        add(store, memory("m1"))
    vault = encryption.encrypt(path, "keyring")
    assert list(ring.held) == [("edgemem", vault.id)]
    with Store.open(path) as store:
        assert store.vault is not None and list(store.get(["m1"])) == ["m1"]
    kept = dict(ring.held)
    ring.held.clear()
    with pytest.raises(VaultLocked, match="ways to it: keyring"):
        Store.open(path)
    ring.held.update(kept)
    encryption.decrypt(path, vault)
    assert ring.held == {} and not vaults.is_vault(path)


def test_a_key_file_is_its_owners_alone_and_no_part_of_the_store(tmp_path):
    vault_at(tmp_path / "a.db", m1="Ada likes tea")
    (file,) = (tmp_path / "home" / "keys").iterdir()
    assert file.stat().st_mode & 0o777 == 0o600
    file.unlink()
    with pytest.raises(VaultLocked, match="ways to it: file"):
        Store.open(tmp_path / "a.db")


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", "\0", '{"format": 9}', "[" * 50_000,
             '{"format": 1, "id": "x", "state": "locked", "ways": [{"by": 1, "box": ""}]}',
             '{"format": 1, "id": "x", "state": "gone", "ways": []}']
)  # fmt: skip
def test_a_damaged_file_of_the_ways_is_said_to_be(tmp_path, text):
    vault_at(tmp_path / "a.db", m1="Ada likes tea")
    vaults.vault_file(tmp_path / "a.db").write_text(text)
    with pytest.raises(StoreCorrupt, match=r"a\.db\.vault is damaged.*recovery code"):
        Store.open(tmp_path / "a.db")


def test_parameters_of_argon2_that_would_fill_the_memory_are_refused(tmp_path):
    quick(tmp_path / "a.db", passphrase=PASSPHRASE).close()
    file = vaults.vault_file(tmp_path / "a.db")
    found = json.loads(file.read_text())
    found["ways"][0]["mem_bytes"] = 2**40
    file.write_text(json.dumps(found))
    with pytest.raises(StoreCorrupt, match="no usable parameters"):
        quick(tmp_path / "a.db", passphrase=PASSPHRASE)


def test_a_plain_store_is_not_taken_for_a_vault_nor_a_vault_for_a_plain_one(
    tmp_path,
):
    with Store.open(tmp_path / "a.db") as store:
        add(store, memory("m1"))
    with pytest.raises(InputError, match=r"is no vault; .* edgemem vault lock"):
        quick(tmp_path / "a.db", passphrase=PASSPHRASE)
    with pytest.raises(VaultLocked, match="or it is a plain store"):
        quick(tmp_path / "a.db", key=bytes(32))
    vault_at(tmp_path / "v.db", m1="Ada likes tea")
    (tmp_path / "v.db").write_bytes((tmp_path / "a.db").read_bytes())  # put there by somebody
    with pytest.raises(VaultLocked, match="or it is a plain store"):
        Store.open(tmp_path / "v.db")


def test_a_damaged_page_is_damage_and_a_sealed_byte_too(tmp_path):
    path = tmp_path / "a.db"
    vault = vault_at(path, **{f"m{i}": "Ada likes tea " * 200 for i in range(20)})
    data = bytearray(path.read_bytes())
    for page in range(1, len(data) // 8192):
        data[page * 8192 + 99] ^= 1
    path.write_bytes(data)

    def read():
        with Store.open(path) as store:
            store.list()

    with pytest.raises(StoreCorrupt, match="is damaged or no edgemem store"):
        read()
    sealed = bytearray(vault.seal(b"tea", "cup"))
    assert vault.unseal(bytes(sealed), "cup") == b"tea"
    for i in range(len(sealed)):
        changed = bytes(sealed[:i]) + bytes([sealed[i] ^ 1]) + bytes(sealed[i + 1 :])
        with pytest.raises(StoreCorrupt):
            vault.unseal(changed, "cup")
    with pytest.raises(StoreCorrupt):
        vault.unseal(bytes(sealed), "pot")


WITHOUT_THE_EXTRA = """
import sys
sys.modules["apsw"] = sys.modules["nacl"] = None
from edgemem import config
config.find_spec = lambda name: None
from edgemem.store import Store
Store.open(sys.argv[1])
"""


def test_without_the_extra_the_error_says_what_to_install(tmp_path, monkeypatch):
    vault = vault_at(tmp_path / "a.db", m1="Ada likes tea")
    with monkeypatch.context() as patch:
        patch.delattr("apsw.mc_version")  # the package of the same name that cannot encrypt
        with pytest.raises(ConfigError, match="cannot encrypt; run: pip uninstall apsw"):
            Store.open(tmp_path / "b.db", vault=vault)
    without = child(WITHOUT_THE_EXTRA, tmp_path / "a.db")
    assert 'pip install "edgemem-runtime[vault]"' in without.communicate()[1]


# -- from plain to vault and back ------------------------------------------------------------------


def test_a_store_that_is_open_anywhere_is_not_moved(tmp_path):
    path = tmp_path / "a.db"
    with Store.open(path) as store:
        add(store, memory("m1"))
        with pytest.raises(StoreLocked, match="open in this program"):
            encryption.encrypt(path, "file")
    reader = child(
        "import sys\nfrom edgemem.store import Store\nstore = Store.open(sys.argv[1])\n"
        "store.list()\nprint('ready', flush=True)\nsys.stdin.read()",
        path,
    )
    assert reader.stdout is not None and reader.stdout.readline() == "ready\n"
    with pytest.raises(StoreLocked, match="locked by another process"):
        encryption.encrypt(path, "file", timeout_s=0.2)
    assert not vaults.is_vault(path)
    finished(reader)
    encryption.encrypt(path, "file")
    with Store.open(path) as store:
        assert store.vault is not None and list(store.get(["m1"])) == ["m1"]


def test_a_move_into_a_vault_and_back_changes_no_row(tmp_path):
    path = tmp_path / "a.db"
    with quick(path) as opened:
        opened.add(["I live in Oslo.", "My cat is Tom."], user_id="ada", infer=False)
        opened.delete(opened.get_all()[0].id)
        rows = list(opened.store.export_rows())
        generation = opened.store.generation()
    vault = encryption.encrypt(path, "passphrase", PASSPHRASE)
    with quick(path, passphrase=PASSPHRASE) as opened:
        assert list(opened.store.export_rows()) == rows
        assert (opened.store.generation(), opened.store.check()) == (generation, [])
    encryption.decrypt(path, vault)
    with quick(path) as opened:
        assert list(opened.store.export_rows()) == rows and opened.store.check() == []
    with pytest.raises(StoreError, match="is a plain store already"):
        encryption.decrypt(path, vault)
    assert {f.name for f in tmp_path.glob("a.db*")} == {"a.db", "a.db.lock"}


def test_the_images_of_a_vault_lie_in_its_file(tmp_path):
    path, photos = tmp_path / "a.db", [noise(seed=0), noise(side=20, seed=1)]
    folder = tmp_path / "a.db.images"
    with quick(path) as opened:
        opened.add([], images=photos[:1], infer=False)
        (known,) = opened.get_all()
        assert known.image is not None and len(list(folder.iterdir())) == 1
    vault = encryption.encrypt(path, "passphrase", PASSPHRASE)
    with quick(path, passphrase=PASSPHRASE) as opened:
        opened.add([], images=[noise(seed=2), photos[1]], infer=False)
        found = opened.image(known.image.id)
        assert found is not None and found.data == photos[0] and opened.store.check() == []
        marks = [p[60:90] for p in (*photos, noise(seed=2))] + [known.image.id.encode()]
        assert traces(tmp_path, marks) == set() and not folder.exists()
    encryption.decrypt(path, vault)
    with quick(path) as opened:
        assert len(opened.get_all()) == 3 and opened.store.check() == []


def test_a_move_that_is_killed_loses_nothing_and_leaves_no_plain_copy():
    """`python -m bench.vault --kills 100` does it at a hundred instants."""
    kills = os.environ.get("EDGEMEM_MOVES", "8")
    command = [sys.executable, "-m", "bench.vault", "--kills", kills, "--n", "50", "--json", "-"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout)["summary"]["kills"] == int(kills)


# -- exports ---------------------------------------------------------------------------------------


def imported(into, file):
    """With the passphrase of the vault that the export comes from."""
    with file.open(encoding="utf-8") as lines:
        return into.import_jsonl(opened_lines(lines, into.store.vault, PASSPHRASE))


def test_a_sealed_export_is_read_by_its_key_and_whole_or_not_at_all(tmp_path, caplog):
    out = tmp_path / "out.sealed"
    with quick(tmp_path / "a.db", passphrase=PASSPHRASE) as opened:
        opened.add(SAID[:5], infer=False)
        assert opened.export_jsonl(out, sealed=True) == 15
    with quick(tmp_path / "b.db") as other:
        with pytest.raises(VaultLocked):
            other.import_jsonl(out)
        assert caplog.text == ""
        assert imported(other, out) == 15
        assert "`edgemem vault lock` encrypts it" in caplog.text  # it lies in plain now
        assert sorted(texts(other.get_all())) == sorted(SAID[:5])
        with pytest.raises(InputError, match="a plain store has no key"):
            other.export_jsonl(tmp_path / "no", sealed=True)
    lines = out.read_text().splitlines(keepends=True)
    for broken in (lines[:-1], [*lines[:2], lines[3], lines[2], *lines[4:]],
                   [lines[0], lines[1][:-9] + "AAAAAAA=\n", *lines[2:]]):  # fmt: skip
        out.write_text("".join(broken))
        with quick(tmp_path / "c.db") as other, pytest.raises(InputError, match="sealed export"):
            imported(other, out)


# -- the connection --------------------------------------------------------------------------------


def code_of(exc):
    return type(exc), getattr(exc, "sqlite_errorcode", None)


FAILING = [
    "SELECT nothing", "INSERT INTO t VALUES (1)", "SELECT * FROM missing",
    "INSERT INTO t VALUES ('x')", "SELECT abs(-9223372036854775808)", "COMMIT",
    "INSERT INTO u VALUES (1)",
]  # fmt: skip


def test_the_connection_does_and_fails_as_sqlite3s_does(tmp_path):
    made = [
        sqlite3.connect(tmp_path / "a.db", isolation_level=None),
        Connection(str(tmp_path / "b.db"), 0.1, bytes(range(32))),
    ]
    seen = []
    for connection in made:
        run = connection.execute
        run("CREATE TABLE t (a INTEGER PRIMARY KEY) STRICT")
        run("CREATE TABLE u (a TEXT CHECK (a > 'a')) STRICT")
        connection.create_function("twice", 1, lambda x: 2 * x, deterministic=True)
        out: list[object] = [run("INSERT INTO t VALUES (?)", (1,)).lastrowid]
        connection.executemany("INSERT INTO t VALUES (?)", [(i,) for i in range(2, 9)])
        out.append(run("UPDATE t SET a = -a WHERE a > ?", (6,)).rowcount)
        out.append(run("DELETE FROM t WHERE a = 99").rowcount)
        cursor = run("SELECT a, twice(a) FROM t ORDER BY a")
        rows = iter(cursor)
        out += [list(islice(rows, 2)), cursor.fetchone(), list(cursor)]
        out += [cursor.fetchall(), cursor.fetchone(), connection.total_changes]
        run("BEGIN")
        out.append(connection.in_transaction)
        run("ROLLBACK")
        out.append(run("SELECT :a, :b", {"a": 1, "b": b"x", "c": None}).fetchone())
        for sql in FAILING:
            with pytest.raises(sqlite3.Error) as failed:
                run(sql)
            out.append(code_of(failed.value))
        connection.close()
        with pytest.raises(sqlite3.ProgrammingError, match="closed database"):
            run("SELECT 1")
        seen.append(out)
    assert seen[0] == seen[1]


def test_a_locked_vault_is_a_store_locked(tmp_path):
    vault_at(tmp_path / "a.db", m1="Ada likes tea")
    one, two = (Store.open(tmp_path / "a.db", busy_timeout_s=0.05) for _ in range(2))
    with one, two:
        with one.transaction(), pytest.raises(StoreLocked), two.transaction():
            pass
        assert list(two.get(["m1"])) == ["m1"]


# -- the command line ------------------------------------------------------------------------------


def test_the_commands_lock_tell_and_unlock(tmp_path, run, monkeypatch):
    path = tmp_path / "home" / "memory.db"
    with Store.open(path) as store:
        add(store, memory("m1"))
    remember_typed("where is the tea?")
    assert "encrypted\tno" in run("vault", "status").stdout
    locked = run("vault", "lock")
    assert "a file of your configuration folder" in locked.stderr
    assert "export-recovery" in locked.stderr
    assert traces(tmp_path, [b"where is the tea?", b"Ada likes"]) == set()
    assert "Ada likes tea" in run("get", "m1").stdout
    code = run("vault", "export-recovery").stdout.strip()
    assert len(code.replace("-", "")) == 56
    status = json.loads(run("vault", "status", "--json").stdout)["results"][0]
    assert (status["encrypted"], status["opened_by"]) == (True, "file")
    assert "is no plain store" in run("vault", "lock", code=1).stderr
    plain = run("export")
    assert "this export is not; --sealed encrypts it" in plain.stderr
    assert "Ada likes" in plain.stdout and "Ada" not in run("export", "--sealed").stdout

    # A person at a terminal is asked, three times, and may give the recovery code.
    for file in (tmp_path / "home" / "keys").iterdir():
        file.unlink()
    assert "its key is not at hand" in run("get", "m1", code=1).stderr
    monkeypatch.setattr(output, "at_a_terminal", lambda: True)
    typed = f"wrong one\n{code}\n{PASSPHRASE}\n{PASSPHRASE}\n"
    asked = run("vault", "change-passphrase", input=typed)
    assert "does not open" in asked.stderr
    assert "Ada likes tea" in run("get", "m1", input=f"{PASSPHRASE}\n").stdout
    assert "does not open" in run("get", "m1", input="a\nb\nc\n", code=1).stderr
    monkeypatch.setenv("EDGEMEM_PASSPHRASE", PASSPHRASE)
    assert "Aborted" in run("vault", "unlock", input="n\n", code=1).stderr
    run("vault", "unlock", "--yes")
    assert encryption.is_plain(path) and typed_before() == ["where is the tea?"]
    assert "is no vault" in run("vault", "export-recovery", code=1).stderr


def typed_of(path):
    """What `edgemem chat` brings back of what was typed."""
    with output.open_memory(str(path)):
        typed.of_user(Scope("default"))
        return typed_before()


def test_what_was_typed_moves_into_its_own_stores_vault_alone(tmp_path, run):
    home, work = tmp_path / "home" / "memory.db", tmp_path / "work.db"
    for path, text in ((home, "a secret of home"), (work, "a plan of work")):
        run("add", "--no-infer", text, "--db", str(path))
        remember_typed(text)
    run("vault", "lock", "--with", "file", "--db", str(work))
    assert traces(tmp_path, [b"plan of work"]) == set()
    run("vault", "lock", "--with", "file")
    assert traces(tmp_path, [b"plan of work", b"secret of home"]) == set()
    run("vault", "unlock", "-y", "--db", str(work))
    assert traces(tmp_path, [b"secret of home"]) == set()
    assert typed_of(work) == ["a plan of work"]
    assert typed_of(home) == ["a secret of home"]


def test_a_passphrase_makes_a_new_store_a_vault_and_is_not_ignored_in_silence_for_a_plain_one(
    tmp_path, run, monkeypatch
):
    new, plain = tmp_path / "new.db", tmp_path / "plain.db"
    run("add", "--no-infer", "--db", str(plain), "Ada likes tea")
    monkeypatch.setenv("EDGEMEM_PASSPHRASE", PASSPHRASE)
    made = run("add", "--no-infer", "--db", str(new), "Ada likes tea")
    assert "plain" not in made.stderr and not encryption.is_plain(new)
    assert traces(tmp_path, [b"Ada likes"]) == {plain.name}
    assert "plain" not in run("list", "--db", str(new)).stderr
    told = run("list", "--db", str(plain))
    assert "Ada likes tea" in told.stdout
    assert f"{plain} is a plain store, which anyone may read; `edgemem vault lock`" in told.stderr
    monkeypatch.setenv("EDGEMEM_PASSPHRASE", "short")
    refused = run("add", "--no-infer", "--db", str(tmp_path / "other.db"), "hello", code=2)
    assert "at least 8 characters" in refused.stderr


def test_two_that_create_one_vault_at_once_have_the_same_key(tmp_path, monkeypatch):
    store = tmp_path / "ada.db"
    create, others = vaults.create, ThreadPoolExecutor(1)

    def slowly(*args, **kwargs):
        monkeypatch.setattr(vaults, "create", create)
        late.append(others.submit(encryption.unlock_or_create, store, None, PASSPHRASE))
        time.sleep(0.1)  # the other one has seen that there is no vault yet
        create(*args, **kwargs)

    late: list[Future[vaults.Vault | None]] = []
    monkeypatch.setattr(vaults, "create", slowly)
    made = encryption.unlock_or_create(store, None, PASSPHRASE)
    other = late[0].result(timeout=60)
    assert made is not None and other is not None and made.id == other.id
    assert vaults.unlock(store, passphrase=PASSPHRASE).id == made.id


def test_lock_takes_the_passphrase_of_the_variable(tmp_path, run, monkeypatch):
    with Store.open(tmp_path / "home" / "memory.db") as store:
        add(store, memory("m1"))
    refused = run("vault", "lock", "--with", "passphrase", code=1)
    assert "asked for at a terminal, and there is none; set EDGEMEM_PASSPHRASE" in refused.stderr
    monkeypatch.setenv("EDGEMEM_PASSPHRASE", PASSPHRASE)
    run("vault", "lock", "--with", "passphrase")
    assert "opened_by\tpassphrase" in run("vault", "status").stdout
    assert "Ada likes tea" in run("get", "m1").stdout
    assert "and there is none" in run("vault", "change-passphrase", code=1).stderr
    monkeypatch.delenv("EDGEMEM_PASSPHRASE")
    assert "its key is not at hand" in run("get", "m1", code=1).stderr


def test_a_vault_that_has_lost_its_file_of_the_ways_gets_a_new_one_by_the_recovery_code(
    tmp_path, run, monkeypatch
):
    path = tmp_path / "home" / "memory.db"
    code = vault_at(path, m1="Ada likes tea").recovery_code()
    vaults.vault_file(path).unlink()
    assert "the recovery code alone" in run("vault", "status").stdout
    assert "memory.db.vault, which belongs beside it, is missing" in run("get", "m1", code=1).stderr
    typed = f"{PASSPHRASE}\n{PASSPHRASE}\n"
    monkeypatch.setenv("EDGEMEM_PASSPHRASE", vaults.new_key().recovery_code())
    assert "does not open" in run("vault", "change-passphrase", input=typed, code=1).stderr
    monkeypatch.setattr(output, "at_a_terminal", lambda: True)
    monkeypatch.setenv("EDGEMEM_PASSPHRASE", code)
    assert "Ada likes tea" in run("get", "m1").stdout
    run("vault", "change-passphrase", input=typed)
    monkeypatch.setenv("EDGEMEM_PASSPHRASE", PASSPHRASE)
    assert "Ada likes tea" in run("get", "m1").stdout


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
@pytest.mark.models
@pytest.mark.parametrize("answer", ["y", "n"])
def test_a_first_chat_offers_to_encrypt_once(tmp_path, answer):
    from termkit import Terminal
    from test_chat_terminal import CHILD, at_the_prompt, leave

    given = {"EDGEMEM_ENCRYPTION": "ask", "EDGEMEM_TUNED": "off"}
    with Terminal(CHILD, "chat", **given) as terminal:
        terminal.wait_for("Encrypt what is remembered on this disk?")
        terminal.type(f"{answer}\r")
        if answer == "y":
            for question in ("New passphrase", "The same again"):
                terminal.wait_for(question)
                terminal.type(f"{PASSPHRASE}\r")
        at_the_prompt(terminal)
        leave(terminal)
    path = tmp_path / "home" / "memory.db"
    assert encryption.is_plain(path) == (answer == "n")
    given["EDGEMEM_PASSPHRASE"] = PASSPHRASE
    with Terminal(CHILD, "chat", **given) as terminal:
        at_the_prompt(terminal)  # and asks nothing
        leave(terminal)


def test_memory_keeps_a_key_that_the_caller_holds(tmp_path):
    key = bytes(range(32))
    with Memory(tmp_path / "a.db", embedder=BagOfWords(), key=key) as opened:
        opened.add("I live in Oslo.", infer=False)
        assert opened.doctor()["encrypted"] is True
    assert vaults.read(tmp_path / "a.db") is not None
    with pytest.raises(VaultLocked, match="ways to it: the key itself alone"):
        quick(tmp_path / "a.db")
    with pytest.raises(InputError, match="a key is 32 bytes, this one has 5"):
        quick(tmp_path / "a.db", key=b"short")
    assert quick(":memory:", key=key).store.vault is None
