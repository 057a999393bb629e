"""`edgemem export --format pgvector`, loaded into a real PostgreSQL: what it finds is what we do.

The server is Debian's (postgresql-NN-pgvector) or PyPI's pgserver, in a folder of the test's own,
reached by a socket. PostgreSQL refuses to run as root, so root runs it as the user postgres.
"""

import io
import os
import pwd
import shutil
import subprocess
import tempfile
from importlib.util import find_spec
from pathlib import Path

import pytest
from memorykit import BagOfWords
from storekit import ADA, DIM, T0, T1, add, memory, relate, turn, unit

from edgemem import Memory
from edgemem.pipeline import upkeep
from edgemem.results import Entity, Scope
from edgemem.store import NewRelation, Store


def programs():
    """The folder of a PostgreSQL that has pgvector."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    has = Path("/usr/share/postgresql")
    found = [p for p in found if (has / p.parent.name / "extension/vector.control").exists()]
    if (spec := find_spec("pgserver")) and spec.origin:
        found.append(Path(spec.origin).parent / "pginstall/bin")
    return next((p for p in found if (p / "initdb").exists()), None)


@pytest.fixture(scope="module")
def server():
    """Runs SQL in an empty database: `psql("SELECT 1")`, or a file by `psql("\\i FILE")`."""
    bin = programs()
    if bin is None:
        pytest.skip("no PostgreSQL with pgvector: apt install postgresql-NN-pgvector, or pgserver")
    names = [] if os.geteuid() else [p.pw_name for p in pwd.getpwall() if p.pw_name == "postgres"]
    if not os.geteuid() and not names:
        pytest.skip("PostgreSQL does not run as root, and there is no user postgres")
    user = names[0] if names else None
    folder = tempfile.mkdtemp(prefix="pg", dir="/tmp")  # a socket's path is at most 107 bytes
    if user:
        shutil.chown(folder, user)

    def run(program, *arguments, input=None):
        done = subprocess.run(
            [bin / program, *arguments], input=input, capture_output=True, text=True, user=user,
            cwd=folder, env={"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8", "HOME": folder},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    try:
        run("initdb", "-D", "data", "-U", "ada", "-E", "UTF8", "--auth=trust", "--no-sync")
    except PermissionError:
        pytest.skip(f"the user {user} may not read {bin}")
    log = f"{folder}/log"
    options = f"-c listen_addresses='' -k {folder} -c fsync=off"
    run("pg_ctl", "-D", "data", "-o", options, "-l", log, "-w", "start")
    ask = ("-h", folder, "-U", "ada", "-d", "postgres", "-XqAt", "-F", "|", "-vON_ERROR_STOP=1")
    try:
        yield lambda sql: run("psql", *ask, input=sql)
    finally:
        run("pg_ctl", "-D", "data", "-m", "immediate", "stop")
        shutil.rmtree(folder)


def loaded(psql, store, file):
    rows = upkeep.export_pgvector(store, file)
    psql(file.read_text(encoding="utf-8"))
    return rows


ODD = 'Tea \\ "at" 5\tor\n\\.\r\\N later’s 🍵'


def test_what_is_loaded_is_what_was_stored(server, tmp_path):
    lives = NewRelation(Entity("User", "person"), "lives_in", Entity("Oslo", "place"))
    with Store.open(tmp_path / "a.db") as store:
        with store.transaction() as tx:
            tx.set_meta("embedder_model", "bag@1")
            tx.set_meta("embedder_dim", str(DIM))
        add(store, turn("t1"), memory("m1", ODD, metadata={"a": {"é": [1.5, None, "\\n"]}}))
        add(store, memory("m2", vectors=unit(1, 3), scope=Scope(), valid_from=T0, valid_to=T1))
        add(store, memory("gone", "a secret"))
        with store.transaction() as tx:
            tx.set_relations("m1", [lives], 1)
            tx.delete_memory("gone", T1)
        assert loaded(server, store, tmp_path / "a.sql") == 2 + 4 + 1
        vectors = store.vectors()
    assert server("SELECT count(*) FROM memories WHERE memory LIKE '%secret%'") == "0\n"
    said = server("SELECT encode(convert_to(memory, 'UTF8'), 'hex') FROM memories WHERE id = 'm1'")
    assert bytes.fromhex(said.strip()).decode() == ODD
    assert server("SELECT metadata->'a'->'é'->>2 FROM memories WHERE id = 'm1'") == "\\n\n"
    told = "SELECT user_id, kind, extract(epoch FROM valid_to - valid_from) FROM memories"
    assert server(f"{told} ORDER BY id") == f"{ADA.user_id}|fact|\n|fact|86400.000000\n"
    assert server("SELECT source, label, target FROM relations") == "User|lives_in|Oslo\n"
    (row,) = server("SELECT embedding FROM vectors WHERE memory_id = 'm2' AND chunk = 2").split()
    assert row.count(",") == DIM - 1
    assert [float(x) for x in row[1:-1].split(",")] == pytest.approx(vectors["m2"][2], abs=1e-7)
    with pytest.raises(AssertionError, match=f"expected {DIM} dimensions, not 2"):
        server("UPDATE vectors SET embedding = '[1,2]'")


def test_the_next_home_ends_the_one_before_there_as_here():
    with Store.open(":memory:") as store:
        for id, home, began in (("m1", "Oslo", T0), ("m2", "Rome", T1)):
            add(store, memory(id, f"Ana lives in {home}", valid_from=began))
            with store.transaction() as tx:
                relate(tx, id, f"Ana lives_in {home}")
        out = io.StringIO()
        upkeep.export_pgvector(store, out)
    rows = out.getvalue().partition("COPY relations FROM stdin;\n")[2].splitlines()[:2]
    assert [row.split("\t")[5:] for row in rows] == [
        ["Oslo", "place", T0, T1, "m2"],
        ["Rome", "place", T1, "\\N", "\\N"],
    ]


def test_a_second_load_takes_along_what_was_erased_since_and_leaves_other_stores_alone(
    server, tmp_path
):
    server("DROP TABLE IF EXISTS vectors, relations, memories")
    with Store.open(tmp_path / "a.db") as ours, Store.open(tmp_path / "b.db") as other:
        add(ours, memory("m1", "stays"), memory("m2", "goes"))
        add(other, memory("m3", "theirs"))
        for store in (ours, other):
            with store.transaction() as tx:
                tx.set_meta("embedder_dim", str(DIM))
                tx.set_meta("embedder_model", "bag@1")
            loaded(server, store, tmp_path / "x.sql")
        ours.erase(["m2"])
        loaded(server, ours, tmp_path / "x.sql")
    assert server("SELECT memory FROM memories ORDER BY id") == "stays\ntheirs\n"
    assert server("SELECT count(*) FROM vectors") == "2\n"


def test_the_nearest_there_are_the_nearest_here(server, tmp_path, run, empty_home):
    server("DROP TABLE IF EXISTS vectors, relations, memories")
    bag = BagOfWords()
    things = "tea coffee bread sailing chess the violin maps gardens trains snow".split()
    texts = [f"Ada likes {a} and {b}." for a in things for b in things if a < b]
    file = tmp_path / "m.db"
    with Memory(file, embedder=bag) as store:
        for text in texts:
            store.add(text, user_id="ada", infer=False)
        store.add("Bob likes chess and bread.", user_id="bob", infer=False)
    out = tmp_path / "m.sql"
    run("export", "--format", "pgvector", "--db", str(file), str(out))
    server(out.read_text(encoding="utf-8"))
    vector = bag.embed_query("Does Ada like chess with bread?")
    found = server(
        f"SELECT id, 1 - (embedding <=> '{vector.tolist()}') FROM vectors "
        "JOIN memories ON id = memory_id WHERE user_id = 'ada' ORDER BY 2 DESC LIMIT 5"
    )
    with Store.open(file) as opened:
        items = opened.list(ADA)
        cosines = [float(opened.vectors()[item.id][0] @ vector) for item in items]
    scores = [float(line.split("|")[1]) for line in found.split()]
    assert scores == pytest.approx(sorted(cosines, reverse=True)[:5], abs=1e-5)
    assert {line.split("|")[0] for line in found.split()} <= {item.id for item in items}
    words = "to_tsvector('english', memory) @@ plainto_tsquery('english', 'violins trains')"
    assert server(f"SELECT memory FROM memories WHERE {words}") == "Ada likes trains and violin.\n"
