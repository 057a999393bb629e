"""Postings in memory rank as plain BM25 does over the texts that are there now."""

import threading

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from storekit import T1, T2, add, memory
from wordkit import Texts, plain_bm25, scores_of

from edgemem.retrieval.lexical import Matches, Postings
from edgemem.store import Store
from edgemem.store.changes import stored_postings, tokenize, word_terms

WORDS = "tea milk oslo cello naïve running plays 2024 東京 rain snow sun".split()


def filled(texts):
    postings = Postings()
    postings.apply([], list(texts), tokenize(list(texts.values())))
    return postings


def assert_plain(found, k, texts, terms, seen):
    scores, idfs = plain_bm25(texts, terms, seen)
    docs = found.docs.tolist()
    np.testing.assert_allclose(found.idf, idfs, rtol=1e-12)
    assert len(docs) == len(set(docs)) == min(k, len(scores)) and set(docs) <= set(scores)
    np.testing.assert_allclose(found.scores, [scores[d] for d in docs], rtol=1e-5)
    # The k best, up to ties; among scores that are equal to the last bit, the lower document.
    best = sorted(scores.values(), reverse=True)[:k]
    np.testing.assert_allclose(found.scores, best, rtol=1e-5)
    pairs = list(zip((-found.scores).tolist(), docs, strict=True))
    assert pairs == sorted(pairs)
    everyone = [*range(-1, max(texts, default=0) + 5), 2**40]
    expected = [scores.get(d, 0.0) for d in everyone]
    np.testing.assert_allclose(scores_of(found, everyone), expected, rtol=1e-5)
    assert scores_of(found, docs) == found.scores.tolist()


def mask_of(seen, postings):
    mask = np.zeros(max([postings.doc_end, *(d + 1 for d in seen)]), np.bool_)
    mask[list(seen)] = True
    return mask


def view_of(postings, terms, allowed=None):
    everything = np.ones(postings.doc_end, np.bool_)
    return postings.view(terms, postings.corpus(everything if allowed is None else allowed))


text = st.lists(st.sampled_from(WORDS), max_size=8).map(" ".join)
change = st.tuples(
    st.sets(st.integers(1, 25), max_size=4), st.dictionaries(st.integers(1, 25), text, max_size=6)
)


@settings(max_examples=150)
@given(data=st.data())
def test_the_ranking_is_plain_bm25s_whatever_came_and_went(data):
    postings, texts = Postings(), Texts()
    for removed, new in data.draw(st.lists(change, max_size=12)):
        for _ in range(data.draw(st.integers(1, 2))):  # a second time changes nothing
            postings.apply([*removed, 99], list(new), tokenize(list(new.values())))
        texts = {d: t for d, t in texts.items() if d not in removed} | new
    assert postings._live.sum() == len(texts)
    terms = word_terms(data.draw(st.lists(st.sampled_from([*WORDS, "unknown"]), max_size=4)))
    k = data.draw(st.integers(1, 30))
    assert_plain(Matches.of(view_of(postings, terms), k), k, texts, terms, set(texts))
    seen = data.draw(st.sets(st.integers(1, 30)))
    found = Matches.of(view_of(postings, terms, mask_of(seen, postings)), k)
    assert_plain(found, k, texts, terms, seen)


def test_many_changes_one_by_one_keep_to_plain_bm25():
    """Long enough for terms to move, the pool to be compacted and dead slots to go."""
    rng = np.random.default_rng(5)
    postings, texts = Postings(), Texts()
    next_doc = 1
    for step in range(600):
        removed = [int(rng.choice(list(texts)))] if texts and rng.random() < 0.3 else []
        if texts and rng.random() < 0.3:
            doc = int(rng.choice(list(texts)))
        else:
            doc, next_doc = next_doc, next_doc + int(rng.integers(1, 3))
        new = {doc: " ".join(rng.choice(WORDS, rng.integers(0, 9)))}
        postings.apply(removed, list(new), tokenize(list(new.values())))
        texts = {d: t for d, t in texts.items() if d not in removed} | new
        if step % 20 == 0:
            seen = {int(d) for d in texts if rng.random() < 0.7}
            terms = word_terms(list(rng.choice(WORDS, 3, replace=False)))
            found = Matches.of(view_of(postings, terms, mask_of(seen, postings)), 10)
            assert_plain(found, 10, texts, terms, seen)


def test_a_cold_start_gives_what_the_changes_gave():
    rng = np.random.default_rng(7)
    hot, texts = Postings(), Texts()
    with Store.open(":memory:") as store:
        for i in range(60):
            said = " ".join(rng.choice(WORDS, rng.integers(0, 9)))
            (rowid,) = add(store, memory(f"m{i}", said))
            texts[rowid] = said
        hot.apply([], list(texts), tokenize(list(texts.values())))
        ids = dict(zip(texts, (f"m{i}" for i in range(60)), strict=True))
        for rowid in list(texts)[::7]:
            with store.transaction() as tx:
                tx.delete_memory(ids[rowid], T1)
            hot.apply([rowid], [], [])
            del texts[rowid]
        for rowid in list(texts)[::5]:
            texts[rowid] = " ".join(rng.choice(WORDS, 4))
            with store.transaction() as tx:
                tx.update_memory(
                    ids[rowid], memory="", search_text=texts[rowid], vectors=None, updated_at=T2
                )
            hot.apply([], [rowid], tokenize([texts[rowid]]))
        gone = list(texts)[::6]
        assert len(store.erase(ids[rowid] for rowid in gone)) == len(gone)
        hot.apply(gone, [], [])
        texts = {d: t for d, t in texts.items() if d not in gone}
        with store.snapshot() as connection:
            cold = Postings.of(stored_postings(connection))
    assert cold._live.sum() == hot._live.sum() == len(texts)
    for postings in (cold, hot):
        postings.apply([next(iter(texts))], [70], tokenize(["tea and rain"]))
    del texts[next(iter(texts))]
    texts[70] = "tea and rain"
    for words in (["tea"], ["milk", "plays", "sun"], ["naïve", "東京", "2024", "unknown"]):
        terms = word_terms(words)
        for k in (1, 3, 100):
            one, other = Matches.of(view_of(hot, terms), k), Matches.of(view_of(cold, terms), k)
            assert_plain(one, k, texts, terms, set(texts))
            assert one.docs.tolist() == other.docs.tolist()
            assert one.scores.tolist() == other.scores.tolist()
            assert one.idf.tolist() == other.idf.tolist()


def test_nothing_is_found_where_nothing_is():
    for postings in (Postings(), filled({1: "", 2: "!"}), filled({1: "tea"})):
        found = Matches.of(view_of(postings, ["milk"]), 3)
        assert len(found.docs) == len(found.scores) == 0 and len(found.idf) == 1
        assert scores_of(found, [0, 1, 2]) == [0, 0, 0]
        assert len(Matches.of(view_of(postings, []), 3).idf) == 0
    nobody = np.zeros(2, np.bool_)
    assert len(Matches.of(view_of(filled({1: "tea"}), ["tea"], nobody), 3).docs) == 0


def test_what_all_left_can_be_filled_again():
    postings = filled({d: "tea milk" for d in range(1, 9)})
    postings.apply(range(1, 9), [], [])
    assert postings._live.sum() == 0 and len(Matches.of(view_of(postings, ["tea"]), 3).docs) == 0
    postings.apply([], [4], tokenize(["tea"]))
    assert Matches.of(view_of(postings, ["tea"]), 3).docs.tolist() == [4]


def test_memory_is_given_back_when_documents_go():
    postings = filled({d: f"word{d} other{d} tea" for d in range(1, 2_000)})
    full = postings.memory_bytes()
    assert full > 2_000 * (3 * 6 + 2 * 50)
    postings.apply(range(20, 2_000), [], [])
    assert postings.memory_bytes() < full / 5


def test_memory_is_near_to_what_is_needed_however_documents_came():
    texts = {d: f"tea milk oslo word{d % 7} word{d % 50}" for d in range(1, 1_500)}
    grown = Postings()
    for doc, terms in zip(texts, tokenize(list(texts.values())), strict=True):
        grown.apply([], [doc], [terms])
    assert grown.memory_bytes() < 1.7 * filled(texts).memory_bytes()


def test_a_view_sees_nothing_of_later_changes():
    texts = {d: WORDS[d % 3] + " tea" for d in range(1, 30)}
    postings = filled(texts)
    postings.apply([2, 3], [], [])
    del texts[2], texts[3]
    view = view_of(postings, ["tea", "milk"])
    found = Matches.of(view, 50)
    postings.apply([], [3], tokenize(["tea"]))
    later = Matches.of(view_of(postings, ["tea", "milk"]), 50)
    for doc in range(30, 200):  # appended; then moved, compacted, replaced and removed
        postings.apply([], [doc], tokenize(["tea milk"]))
    postings.apply(range(1, 10), list(range(10, 20)), tokenize(["sun"] * 10))
    assert_plain(Matches.of(view, 50), 50, texts, ["tea", "milk"], set(texts))
    assert_plain(found, 50, texts, ["tea", "milk"], set(texts))
    texts[3] = "tea"
    assert_plain(later, 50, texts, ["tea", "milk"], set(texts))


def test_searches_in_other_threads_see_whole_changes():
    """Each change replaces the one document that has the word; a search finds exactly one."""
    postings, lock = Postings(), threading.Lock()
    postings.apply([], range(1, 301), tokenize(["tea"] * 299 + ["milk"]))
    done, wrong = threading.Event(), []

    def search():
        while not done.is_set():
            with lock:
                view = view_of(postings, ["milk", "tea"])
            found = Matches.of(view, 400)
            weights = scores_of(found, found.docs)
            if len(found.docs) != 300 or weights != found.scores.tolist():
                wrong.append(found)

    threads = [threading.Thread(target=search) for _ in range(3)]
    for thread in threads:
        thread.start()
    milk = 300
    try:
        for i in range(300):
            other = 1 + i % 299
            with lock:
                if milk != other:
                    postings.apply([], [milk, other], tokenize(["tea", "milk"]))
            milk = other
    finally:
        done.set()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert Matches.of(view_of(postings, ["milk"]), 9).docs.tolist() == [milk]
