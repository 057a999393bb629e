"""The terms of a text are those of the full-text index, one text at a time or all at once."""

import sqlite3
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from storekit import LONG_AGO, T1, T2, add, by_memory, memory

from edgemem.errors import InputError, StoreCorrupt
from edgemem.store import Store
from edgemem.store.changes import stored_postings, tokenize, word_terms


def read(store):
    with store.snapshot() as connection:
        return stored_postings(connection)


TEXTS = [
    "",
    "!!! ... —",
    "Tea, tea and more TEA",
    "She was running; he runs, they ran",
    "Crème brûlée in Kraków, naïvely: Ärger, Straße, İstanbul",
    "e\u0301te\u0301 is été",  # decomposed and composed
    "Việt Nam, tiếng Việt",  # two marks on one letter
    "東京タワー に 行きました。 Россия Ελλάδα עברית हिन्दी",
    "😀 tea😀tea 👩‍👩‍👧 2024-05-01 3.14 a_b don't o’neil",
    "a\0b \x1f tab\tnew\nline",
    "x" * 40_000,
    "東" * 20_000,  # FTS5 cuts it within a character
    "lorem ipsum dolor " * 5_700,  # 100 KB
    '"quoted" AND OR NOT NEAR(a b) col:x ^y z*',
]


def test_terms_are_folded_and_stemmed():
    assert tokenize(["The Cafés, the café!", "", "plays played playing"]) == [
        {"the": 2, "cafe": 2},
        {},
        {"plai": 3},
    ]


def test_terms_are_those_of_the_stores_index(store):
    rowids = add(store, *(memory(f"m{i}", text) for i, text in enumerate(TEXTS)))
    assert by_memory(read(store)) == dict(zip(rowids, tokenize(TEXTS), strict=True))


@settings(max_examples=60)
@given(
    st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=40), min_size=1, max_size=6)
)
def test_any_texts_have_the_terms_of_the_stores_index(texts):
    with Store.open(":memory:") as store:
        rowids = add(store, *(memory(f"m{i}", text) for i, text in enumerate(texts)))
        assert by_memory(read(store)) == dict(zip(rowids, tokenize(texts), strict=True))


def test_a_count_is_cut_at_what_its_type_holds(store):
    add(store, memory("m", "tea " * 70_000))
    stored = read(store)
    assert stored.counts.tolist() == [65_535] and stored.lengths.tolist() == [70_000]
    assert tokenize(["tea " * 70_000]) == [{"tea": 70_000}]


def test_words_of_a_query_give_their_terms_each_once():
    assert word_terms(["playing"]) == ["plai"]
    assert set(word_terms(["o'neil"])) == {"o", "neil"}
    assert word_terms(["so-so", "plays", "playing"]) == ["so", "plai"]
    assert word_terms(["!"]) == word_terms([""]) == word_terms([]) == []


def test_a_text_that_cannot_be_encoded_is_refused_and_the_next_one_is_not():
    with pytest.raises(InputError, match="lone surrogates"):
        tokenize(["tea", "\ud800"])
    assert tokenize(["tea"]) == [{"tea": 1}]


def test_threads_do_not_mix_their_texts():
    names = [f"w{i % 4}" for i in range(200)]
    with ThreadPoolExecutor(4) as pool:
        found = pool.map(lambda name: tokenize([name, f"{name} {name}"]), names)
    assert list(found) == [[{name: 1}, {name: 2}] for name in names]


def test_stored_postings_follow_updates_deletes_and_erases(store):
    texts = {"kept": "green tea", "edited": "black tea", "gone": "mate", "erased": "tea and milk"}
    rowids = dict(zip(texts, add(store, *(memory(n, t) for n, t in texts.items())), strict=True))
    (over,) = add(store, memory("over", "old tea", valid_to=LONG_AGO))
    with store.transaction() as tx:
        tx.update_memory("edited", memory="", search_text="water", vectors=None, updated_at=T2)
        tx.delete_memory("gone", T1)
    store.erase(["erased"])
    stored = read(store)
    assert by_memory(stored) == {
        rowids["kept"]: {"green": 1, "tea": 1},
        rowids["edited"]: {"water": 1},
        over: {"old": 1, "tea": 1},  # whose time is over, which a mask leaves out
    }
    assert stored.rowids.tolist() == sorted([rowids["kept"], rowids["edited"], over])
    assert stored.lengths.tolist() == [2, 1, 2]


def test_stored_postings_are_arrays_of_the_stated_types(store):
    add(store, memory("a", "tea tea milk"), memory("empty", "..."), memory("b", "tea"))
    stored = read(store)
    assert stored.terms == ["milk", "tea"] and stored.offsets.tolist() == [0, 1, 3]
    assert stored.docs.tolist() == [1, 1, 3] and stored.counts.tolist() == [1, 2, 1]
    assert stored.rowids.tolist() == [1, 2, 3] and stored.lengths.tolist() == [3, 0, 1]
    arrays = (stored.offsets, stored.docs, stored.counts, stored.rowids, stored.lengths)
    assert [a.dtype.name for a in arrays] == ["int64", "int32", "uint16", "int64", "int32"]


def test_an_empty_store_has_no_postings(store):
    stored = read(store)
    assert stored.terms == [] and stored.offsets.tolist() == [0]
    assert len(stored.docs) == len(stored.counts) == len(stored.rowids) == len(stored.lengths) == 0


def test_the_stored_postings_are_those_of_the_texts(store):
    rng = np.random.default_rng(3)
    texts = [" ".join(rng.choice(list("abcdefghij"), 5)) for _ in range(30)]
    rowids = add(store, *(memory(f"m{i}", text) for i, text in enumerate(texts)))
    assert by_memory(read(store)) == dict(zip(rowids, tokenize(texts), strict=True))


def test_reading_leaves_the_connection_as_it_was(tmp_path):
    with Store.open(tmp_path / "a.db") as store:
        add(store, memory("m", "tea"))
        for _ in range(2):
            assert read(store).terms == ["tea"]
        with store.snapshot() as connection:
            stored_postings(connection)
            assert connection.execute("SELECT count(*) FROM temp.sqlite_schema").fetchone() == (0,)
            with pytest.raises(sqlite3.OperationalError, match="readonly"):
                connection.execute("DELETE FROM memories")


def test_reading_goes_on_inside_a_transaction_of_a_store_in_memory():
    with Store.open(":memory:") as store, store.transaction() as tx:
        tx.add_memory(memory("m", "tea"))
        assert read(store).terms == ["tea"]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ("DELETE FROM memories_fts_docsize WHERE id = 1", "terms of a memory that is not in it"),
        ("DELETE FROM memories_fts_docsize WHERE id = 2", "terms of a memory that is not in it"),
        ("DELETE FROM memories_fts_docsize", "terms of a memory that is not in it"),
        ("INSERT INTO memories_fts_docsize VALUES (-5, x'00')", "the rowids -5 to 2"),
        ("INSERT INTO memories_fts_docsize VALUES (1 << 31, x'00')", "the rowids 1 to 2147483648"),
    ],
)
def test_an_index_that_does_not_fit_its_memories_is_damaged(tmp_path, damage, message):
    path = tmp_path / "a.db"
    with Store.open(path) as store:
        add(store, memory("a", "tea"), memory("b", "milk"))
    connection = sqlite3.connect(path)
    connection.execute(damage)
    connection.commit()
    connection.close()
    with Store.open(path) as store, pytest.raises(StoreCorrupt, match=message):
        read(store)
