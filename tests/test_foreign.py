"""Memories of other programs, with their vectors: JSON Lines, mem0's FAISS, Chroma."""

import json
import sqlite3
import struct
from contextlib import closing

import numpy as np
import pytest
from memorykit import BagOfWords, quick, texts

from edgemem.errors import InputError
from edgemem.pipeline import upkeep
from edgemem.pipeline.foreign import import_foreign, read_foreign
from edgemem.pipeline.importers import detect_format
from edgemem.results import Aligned, Scope

DIM = 16
WORDS = "oslo cat violin tea harbour bakery sister train garden guitar soup winter".split()
NOBODY = Scope()


def said(count):
    rng = np.random.default_rng(1)
    pairs = rng.choice(WORDS, (count, 3, 2))
    return [f"number{i} " + " ".join(map("".join, some)) for i, some in enumerate(pairs)]


def theirs(told, dim=DIM):
    """Their model's vectors: ours, in another basis and of another length."""
    turned = np.linalg.qr(np.random.default_rng(7).standard_normal((dim, dim)))[0]
    return (3 * BagOfWords(DIM).embed(told) @ turned[:DIM]).astype(np.float32)


@pytest.fixture(autouse=True)
def few_pairs(monkeypatch):
    monkeypatch.setattr(upkeep, "PAIRS", 40)


def lines(path, rows):
    path.write_text("\n".join(map(json.dumps, rows)) + "\n", encoding="utf-8")
    return path


def faiss_folder(path, told, vectors, kind=b"IxF2"):
    """As mem0 2.2.1 and faiss 1.15.1 write it, with a place in the index that was deleted."""
    path.mkdir()
    gone = np.ones((1, vectors.shape[1]), np.float32)
    data = np.concatenate([gone, vectors]).astype("<f4")
    n, d = data.shape
    metric = int(kind == b"IxF2")
    head = struct.pack("<4siqqqBiQ", kind, d, n, 1 << 20, 1 << 20, 1, metric, data.size)
    (path / "mem0.faiss").write_bytes(head + data.tobytes())
    more = {"hash": "0f", "created_at": "2024-05-01T10:00:00-07:00", "topic": "life"}
    docs = {
        f"m{i}": {"data": text, "user_id": "ana" if i % 2 else "bo", **more}
        for i, text in enumerate(told)
    }
    places = {str(i + 1): f"m{i}" for i in range(len(told))}
    held = {"docstore": docs, "index_to_id": places}
    (path / "mem0.json").write_text(json.dumps(held), encoding="utf-8")
    return path


def chroma_folder(path, told):
    """The tables of chromadb 1.5.9 that are read, as it fills them."""
    path.mkdir()
    with closing(sqlite3.connect(path / "chroma.sqlite3")) as db, db:
        db.executescript("""
            CREATE TABLE collections (id TEXT PRIMARY KEY, name TEXT NOT NULL);
            CREATE TABLE segments (id TEXT PRIMARY KEY, type TEXT, scope TEXT, collection TEXT);
            CREATE TABLE embeddings (id INTEGER PRIMARY KEY, segment_id TEXT NOT NULL,
                embedding_id TEXT NOT NULL, seq_id BLOB NOT NULL,
                created_at TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP);
            CREATE TABLE embedding_metadata (id INTEGER, key TEXT NOT NULL, string_value TEXT,
                int_value INTEGER, float_value REAL, bool_value INTEGER, PRIMARY KEY (id, key));
            INSERT INTO collections VALUES ('c', 'notes');
            INSERT INTO segments VALUES ('v', 'hnsw', 'VECTOR', 'c'), ('m', 's', 'METADATA', 'c');
        """)
        for i, text in enumerate([*told, None], 1):
            time = "2024-05-01 10:00:00"
            db.execute("INSERT INTO embeddings VALUES (?, 'm', ?, ?, ?)", (i, f"id{i}", i, time))
            document = [] if text is None else [("chroma:document", text, None, None, None)]
            for row in (
                *document, ("user_id", "ana", None, None, None), ("page", None, 7, None, None),
                ("weight", None, None, 0.5, None), ("kept", None, None, None, 1),
            ):  # fmt: skip
                db.execute("INSERT INTO embedding_metadata VALUES (?, ?, ?, ?, ?, ?)", (i, *row))
    return path


# -- what is read ------------------------------------------------------------------------------


def test_lines_are_read_with_all_that_they_say(tmp_path):
    rows = [
        {"id": "a", "memory": "I live in Oslo", "vector": [1, 2.5], "user_id": "ana",
         "created_at": "2024-05-01T12:00:00+02:00", "metadata": {"k": 1}, "hash": "x",
         "role": "user"},
        {"memory": "I have a cat"},
    ]  # fmt: skip
    file = lines(tmp_path / "a.jsonl", rows)
    assert detect_format(file) == "memories"
    one, two = read_foreign(file, Scope(user_id="bo", run_id="r"))
    assert (one.memory, one.kind, one.scope) == ("I live in Oslo", "fact", Scope("ana", None, "r"))
    assert np.array_equal(one.vectors, np.array([[1, 2.5]], np.float32))
    assert one.created_at == one.valid_from == "2024-05-01T10:00:00.000+00:00"
    assert one.metadata == {"k": 1, "role": "user"}
    assert one.search_text == "I live in Oslo\n1 May 2024"
    assert two.scope == Scope("bo", None, "r") and two.vectors.shape == (0, 0)
    assert two.valid_from is None and two.metadata == {}


@pytest.mark.parametrize("indent", [None, 1])
@pytest.mark.parametrize("wrapped", [True, False], ids=["get_all", "list"])
def test_what_mem0_itself_returns_is_read(tmp_path, wrapped, indent):
    rows = [
        {"id": "a", "memory": "I live in Oslo", "hash": "x", "metadata": None, "user_id": "ana",
         "created_at": "2021-09-01T09:00:00-07:00", "updated_at": None},
        {"id": "b", "memory": "I have a cat", "user_id": "ana"},
    ]  # fmt: skip
    file = tmp_path / "mem0.json"
    file.write_text(json.dumps({"results": rows} if wrapped else rows, indent=indent))
    assert detect_format(file) == "memories"
    found = read_foreign(file, NOBODY)
    assert [item.memory for item in found] == ["I live in Oslo", "I have a cat"]
    each = lines(tmp_path / "a.jsonl", rows)
    assert [item.id for item in found] == [item.id for item in read_foreign(each, NOBODY)]
    file.write_text(json.dumps({"results": [rows[0], 5]} if wrapped else [rows[0], 5]))
    with pytest.raises(InputError, match=r"memory 2 of .* it is no JSON object"):
        read_foreign(file, NOBODY)


@pytest.mark.parametrize(
    ("row", "told"),
    [
        (b'{"memory": \xff}', "is not UTF-8 text: byte 49"),
        (b'{"memory', "line 2 of .* is not JSON"),
        ("no object", "memory 2 of .* no JSON object"),
        ({"memory": " "}, "memory 2 of .* the memory is empty"),
        ({"vector": [1]}, "memory 2 of .* must be a string, not NoneType"),
        ({"memory": "x", "vector": []}, "memory 2 of .* no list of numbers"),
        ({"memory": "x", "vector": [[1, 2]]}, "memory 2 of .* no list of numbers"),
        ({"memory": "x", "vector": ["a"]}, "memory 2 of .* could not convert"),
        ({"memory": "x", "vector": [1, 2, 3]}, "vectors of 2 and 3 dimensions"),
        ({"memory": "x", "created_at": "soon"}, "memory 2 of .* created_at 'soon' is no time"),
        ({"memory": "x", "user_id": 3}, "memory 2 of .* user_id must be a string"),
        ({"memory": "x", "metadata": ["a"]}, "memory 2 of .* cannot be stored"),
    ],
)
def test_a_line_that_cannot_be_stored_is_named(tmp_path, row, told):
    file = lines(tmp_path / "a.jsonl", [{"memory": "first", "vector": [1, 2]}])
    with file.open("ab") as out:
        out.write(row if isinstance(row, bytes) else json.dumps(row).encode())
    with pytest.raises(InputError, match=told):
        read_foreign(file, NOBODY)


def test_chromas_texts_are_read(tmp_path):
    folder = chroma_folder(tmp_path / "chroma", ["I live in Oslo", "I have a cat"])
    one, two = read_foreign(folder, NOBODY)  # the third has no text
    assert (one.memory, two.memory) == ("I live in Oslo", "I have a cat")
    assert one.scope == Scope(user_id="ana") and not len(one.vectors)
    assert one.created_at == "2024-05-01T10:00:00.000+00:00"
    assert one.metadata == {"page": 7, "weight": 0.5, "kept": True}


def test_a_damaged_chroma_is_refused_and_left_alone(tmp_path):
    (file := tmp_path / "chroma.sqlite3").write_bytes(b"SQLite format 3\0" + b"x" * 2000)
    before = file.read_bytes()
    with pytest.raises(InputError, match="cannot be read as Chroma's file"):
        read_foreign(tmp_path, NOBODY)
    assert file.read_bytes() == before and [f.name for f in tmp_path.iterdir()] == [file.name]


@pytest.mark.parametrize("kind", [b"IxF2", b"IxFI"])
def test_mem0s_faiss_folder_is_read_with_its_vectors(tmp_path, kind):
    told = said(5)
    items = read_foreign(faiss_folder(tmp_path / "f", told, theirs(told), kind), NOBODY)
    assert [item.memory for item in items] == told
    assert np.array_equal(np.concatenate([item.vectors for item in items]), theirs(told))
    assert items[1].scope == Scope(user_id="ana") and items[1].metadata == {"topic": "life"}
    assert items[1].created_at == "2024-05-01T17:00:00.000+00:00"


def test_a_faiss_file_that_was_cut_is_refused(tmp_path):
    folder = faiss_folder(tmp_path / "f", said(5), theirs(said(5)))
    whole = (folder / "mem0.faiss").read_bytes()
    for cut in (0, 3, 30, 45, 60):
        (folder / "mem0.faiss").write_bytes(whole[:cut])
        with pytest.raises(InputError, match="damaged, or no flat FAISS index"):
            read_foreign(folder, NOBODY)


def test_a_docstore_of_another_index_is_refused(tmp_path):
    folder = faiss_folder(tmp_path / "f", said(5), theirs(said(5)))
    held = json.loads((folder / "mem0.json").read_text())
    for broken in ({"docstore": {}}, {"index_to_id": {"99": "m0"}}, {"index_to_id": []}):
        (folder / "mem0.json").write_text(json.dumps({**held, **broken}))
        with pytest.raises(InputError, match=r"mem0\.json does not fit"):
            read_foreign(folder, NOBODY)


def test_a_pickle_is_never_read(tmp_path):
    """What it would run is not run, and the error says what to do instead."""
    (tmp_path / "index.faiss").write_bytes(b"IxF2")
    ran = tmp_path / "ran"
    (tmp_path / "index.pkl").write_bytes(f"cos\nmkdir\n(V{ran}\ntR.".encode())
    with pytest.raises(InputError, match=r"pickles .* are not read.*lines of JSON"):
        read_foreign(tmp_path, NOBODY)
    assert not ran.exists()


# -- what is stored ----------------------------------------------------------------------------


@pytest.mark.parametrize("dim", [DIM, 24])
def test_a_sample_is_embedded_and_the_others_are_mapped(tmp_path, dim):
    told = said(120)
    rows = [{"memory": text, "vector": vector.tolist(), "user_id": "ana"}
            for text, vector in zip(told, theirs(told, dim), strict=True)]  # fmt: skip
    rows += [{"memory": "I have a parrot", "user_id": "ana"}]
    file = lines(tmp_path / "a.jsonl", rows)
    with quick(tmp_path / "a.db", embedder=BagOfWords(DIM)) as memory:
        seen: list[tuple[int, int]] = []
        items = read_foreign(file, NOBODY)
        done = import_foreign(memory, items, lambda done, of: seen.append((done, of)))
        assert done == Aligned(80, 41) and seen[-1] == (41, 41)
        assert memory.embedder.embedded == 41
        held = memory.store.vectors()
        for item, text in zip(items, told, strict=False):
            assert np.abs(held[item.id] - BagOfWords(DIM).embed([text])).max() < 1e-4
        assert texts(memory.search("number77", user_id="ana", top_k=1)) == [told[77]]
        assert texts(memory.search("parrot", user_id="ana", top_k=1)) == ["I have a parrot"]
        # Again, with one that is new; what was deleted meanwhile stays away.
        memory.delete(items[3].id)
        lines(file, [*rows, {"memory": "I have a dog", "user_id": "ana"}])
        assert import_foreign(memory, read_foreign(file, NOBODY)) == Aligned(0, 1)
        assert memory.store.counts()["memories"] == 121
        assert memory.doctor()["problems"] == []
        memory.erase(items[5].id)
        assert told[5] not in texts(memory.get_all())


@pytest.mark.parametrize("how", ["few", "alike", "nan"])
def test_without_a_map_all_are_embedded(tmp_path, how):
    """Too few memories for a map to pay, or vectors that no map can be fitted to."""
    told = said(30 if how == "few" else 90)
    vectors = theirs(told)
    if how == "alike":
        vectors[:] = vectors[0]
    if how == "nan":
        vectors[0] = np.nan
    rows = [{"memory": t, "vector": v.tolist()} for t, v in zip(told, vectors, strict=True)]
    with quick(embedder=BagOfWords(DIM)) as memory:
        items = read_foreign(lines(tmp_path / "a.jsonl", rows), NOBODY)
        assert import_foreign(memory, items) == Aligned(0, len(told))
        held = memory.store.vectors()
        for item in items:
            assert np.array_equal(held[item.id], BagOfWords(DIM).embed([item.memory]))


@pytest.mark.models
@pytest.mark.usefixtures("home")
def test_the_command_takes_folders_and_lines(run, tmp_path):
    faiss = faiss_folder(tmp_path / "faiss", ["I live in Oslo"], theirs(["x"]))
    chroma = chroma_folder(tmp_path / "chroma", ["I have a cat"])
    file = lines(tmp_path / "a.jsonl", [{"memory": "I play the violin"}])
    paths = list(map(str, (faiss, chroma, file)))
    rows = json.loads(run("import", *paths, "--user-id", "cy", "--json").stdout)["results"]
    assert [row["imported"] for row in rows] == [1, 1, 1]
    for user, text in (("bo", "I live in Oslo"), ("ana", "I have a cat"), ("cy", "I play the")):
        assert text in run("list", "--user-id", user).stdout
    again = run("import", *paths, "--user-id", "cy")
    assert "faiss: 1 memory of the user_id in the file (bo); --user-id cy is for" in again.stderr
    assert again.stderr.count("0 memories imported, 1 were there already") == 3
    (tmp_path / "empty").mkdir()
    assert "neither chroma.sqlite3" in run("import", str(tmp_path / "empty"), code=2).stderr


@pytest.mark.models
@pytest.mark.usefixtures("home")
def test_a_memory_that_was_erased_does_not_come_back_with_their_file(tmp_path, run):
    rows = [{"id": "1", "memory": "I like green tea"}, {"id": "2", "memory": "I live in Oslo"}]
    path = str(lines(tmp_path / "m.jsonl", rows))
    run("import", path)
    (tea,) = [row for row in run("list").stdout.splitlines() if "tea" in row]
    run("erase", tea.split("\t")[0], "--yes")
    again = run("import", path, "--json")
    assert "1 memory left out that you erased" in again.stderr
    assert json.loads(again.stdout)["results"][0]["skipped"] == 1
    assert "tea" not in run("list").stdout and "Oslo" in run("list").stdout


def test_their_facts_tell_who_is_what_to_whom(tmp_path):
    rows = [{"memory": "Ana's brother Bartek moved to Bergen."}]
    with quick() as memory:
        import_foreign(memory, read_foreign(lines(tmp_path / "theirs.jsonl", rows), NOBODY))
        assert len(memory.relations()) == 0  # that takes a moment for each, and follows
        memory.process_pending()
        told = [(r.source, r.relationship, r.destination) for r in memory.relations()]
        assert told == [("Ana", "sibling_of", "Bartek"), ("Bartek", "lives_in", "Bergen")]
