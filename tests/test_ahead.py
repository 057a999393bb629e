"""Sensitivities ahead of time: what is stored, when it goes, and who is never kept waiting."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from storekit import ADA, T1, add, memory, turn, unit

from edgemem import Memory
from edgemem.compression.sensitivity import Scorer, Sensitivity
from edgemem.config import Settings
from edgemem.errors import ModelError, StoreCorrupt
from edgemem.pipeline.ahead import TOKENS, Ahead, score_window
from edgemem.results import Scope
from edgemem.store import Store
from edgemem.store.store import backlog


class FakeScorer:
    """A token for each character, worth its code; remembers what it was given."""

    def __init__(self, model_hash: str = "model-1") -> None:
        self.model_hash = model_hash
        self.windows: list[str] = []
        self.closed = False
        self.gate = threading.Event()
        self.gate.set()

    def tokenize(self, text: str) -> tuple[list[int], np.ndarray]:
        ends = np.arange(1, len(text) + 1, dtype=np.int32)
        return [ord(c) for c in text], np.stack([ends - 1, ends], axis=1)

    def sensitivity(self, tokens, *, check=None):
        self.windows.append("".join(map(chr, tokens)))
        while check is not None and not self.gate.wait(0.01):
            check()
        scores = np.array(tokens, np.float32) / max(1, len(tokens) - 1)
        return Sensitivity(scores, scores, 1, 0.0)

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "a.db") as opened:
        yield opened


def say(store: Store, id: str, text: str, **fields) -> None:
    scope = fields.get("scope", ADA)
    own = memory(f"m-{id}", text, kind="turn", sources=(id,), scope=scope)
    add(store, turn(id, text, **fields), own)


def score_all(store: Store, scorer) -> int:
    total = 0
    while scored := score_window(store, scorer):
        total += scored
    return total


def until(condition, timeout_s=20.0) -> bool:
    end = time.monotonic() + timeout_s
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    return condition()


# -- what is stored --------------------------------------------------------------------------


def test_a_turn_is_scored_among_those_said_around_it(store):
    say(store, "t1", "I moved.", name="Ana")
    say(store, "x1", "Elsewhere.", scope=Scope(user_id="bob"))
    say(store, "t2", "Where to?")
    scorer = FakeScorer()
    assert score_all(store, scorer) == 3
    assert scorer.windows == ["Ana: I moved.\nuser: Where to?\n", "user: Elsewhere.\n"]
    found = store.sensitivities(["t2", "none", "t1"])
    assert list(found) == ["t2", "t1"]
    assert found["t1"].offsets.tolist() == [[i, i + 1] for i in range(8)]
    assert found["t1"].offsets.dtype == np.int32 and found["t1"].scores.dtype == np.uint8
    expected = np.array([ord(c) for c in "I moved."], np.float32)
    np.testing.assert_allclose(found["t1"].values, expected, atol=expected.max() / 255)
    assert found["t1"].model == "model-1"


def test_small_values_keep_their_order_beside_a_large_one(store):
    say(store, "t1", "\x01\x02\x03\x04\u0fff")
    score_all(store, FakeScorer())
    values = store.sensitivities(["t1"])["t1"].values
    assert (np.diff(values) > 0).all()


def test_a_window_holds_what_fits_and_a_little_of_what_came_before(store):
    texts = [f"{i:02d} " + "word " * 20 for i in range(30)]
    for i, text in enumerate(texts):
        say(store, f"t{i}", text)
    scorer = FakeScorer()
    assert score_all(store, scorer) == 30
    assert all(len(window) <= TOKENS for window in scorer.windows)
    starts = [window.split()[1] for window in scorer.windows]
    assert starts[:3] == ["00", "03", "06"]  # four fit, and one of the turns before
    assert len(store.sensitivities([f"t{i}" for i in range(30)])) == 30


def test_a_turn_longer_than_a_window_and_one_without_words_are_scored_too(store):
    say(store, "long", "word " * 400)
    say(store, "blank", " ")
    assert score_all(store, FakeScorer()) == 2
    assert len(store.sensitivities(["long"])["long"].scores) == 2000


def test_a_later_turn_is_scored_without_scoring_the_earlier_ones_again(store):
    say(store, "t1", "one")
    scorer = FakeScorer()
    score_all(store, scorer)
    before = store.sensitivities(["t1"])["t1"].scores
    say(store, "t2", "two")
    assert score_all(store, scorer) == 1
    assert scorer.windows[-1] == "user: one\nuser: two\n"
    np.testing.assert_array_equal(store.sensitivities(["t1"])["t1"].scores, before)


def test_another_model_scores_everything_anew(store):
    say(store, "t1", "one")
    score_all(store, FakeScorer())
    assert score_all(store, FakeScorer("model-2")) == 1
    assert store.sensitivities(["t1"])["t1"].model == "model-2"


def test_what_is_not_remembered_as_a_turn_is_not_scored(store):
    add(store, turn("t1", "a question that nothing cites"), turn("t2", "x"))
    add(store, memory("fact", sources=("t2",)))
    scorer = FakeScorer()
    assert score_all(store, scorer) == 0 and scorer.windows == []
    assert backlog(store) == {"ready": 0, "missing": 0}


# -- when it goes ----------------------------------------------------------------------------


def test_an_erase_a_reset_and_a_deletion_take_the_scores_along(store):
    for id in ("t1", "t2", "t3"):
        say(store, id, f"words of {id}")
    score_all(store, FakeScorer())
    assert backlog(store) == {"ready": 3, "missing": 0}
    blob = store.sensitivities(["t1"])["t1"].scores.tobytes()
    store.erase(["m-t1"])
    assert all(blob not in f.read_bytes() for f in store.path.parent.iterdir())
    with store.transaction() as tx:
        tx.delete_memory("m-t2", T1)
    assert list(store.sensitivities(["t1", "t2", "t3"])) == ["t3"]
    assert backlog(store) == {"ready": 1, "missing": 0}
    store.reset()
    assert backlog(store) == {"ready": 0, "missing": 0}


def test_an_edited_memory_is_scored_anew_by_its_new_words(store):
    say(store, "t1", "old words")
    scorer = FakeScorer()
    score_all(store, scorer)
    with store.transaction() as tx:
        tx.set_vectors("m-t1", unit(5))
    assert backlog(store) == {"ready": 1, "missing": 0}  # not its words
    with store.transaction() as tx:
        tx.update_memory("m-t1", memory="new", search_text="new", vectors=None, updated_at=T1)
    assert backlog(store) == {"ready": 0, "missing": 1}
    assert score_all(store, scorer) == 1
    assert scorer.windows[-1] == "user: new\n"
    assert len(store.sensitivities(["t1"])["t1"].scores) == 3


def test_words_that_change_while_they_are_scored_get_no_scores(store):
    say(store, "t1", "old words")
    say(store, "t2", "to be erased")

    class Slow(FakeScorer):
        def sensitivity(self, tokens, *, check=None):
            if not self.windows:
                with store.transaction() as tx:
                    tx.update_memory(
                        "m-t1", memory="new", search_text="new", vectors=None, updated_at=T1
                    )
                store.erase(["m-t2"])
            return super().sensitivity(tokens, check=check)

    assert score_window(store, Slow()) == 0
    assert backlog(store) == {"ready": 0, "missing": 1}


def test_damaged_scores_are_said(store):
    say(store, "t1", "one")
    score_all(store, FakeScorer())
    store._writer.execute("UPDATE sensitivities SET scores = x'00'")
    with pytest.raises(StoreCorrupt, match=r"'t1' are damaged \(1 scores, 24 bytes of offsets\)"):
        store.sensitivities(["t1"])


# -- the thread ------------------------------------------------------------------------------


def test_the_thread_works_the_backlog_off_and_closes_its_scorer(store):
    for i in range(5):
        say(store, f"t{i}", f"turn {i}")
    scorer = FakeScorer()
    with Ahead(store, lambda: scorer, share=1.0, idle_s=0.01):
        assert until(lambda: backlog(store)["missing"] == 0)
        say(store, "later", "one more")
        assert until(lambda: backlog(store)["missing"] == 0)
    assert scorer.closed


def test_nothing_is_loaded_for_an_empty_store_nor_while_others_work(store):
    loaded = []
    with Ahead(store, lambda: loaded.append(1), share=1.0, idle_s=0.01):
        time.sleep(0.2)
    say(store, "t1", "one")
    with Ahead(store, lambda: loaded.append(1), share=1.0, idle_s=0.01, quiet=lambda: False):
        time.sleep(0.2)
    assert loaded == []


@pytest.mark.parametrize("what", ["a write", "a generation", "the end"])
def test_a_window_is_given_up_when_something_else_begins(store, what):
    say(store, "t1", "one")
    scorer, quiet = FakeScorer(), threading.Event()
    scorer.gate.clear()  # the window does not end by itself
    quiet.set()
    ahead = Ahead(store, lambda: scorer, share=1.0, idle_s=0.01, quiet=quiet.is_set)
    assert until(lambda: len(scorer.windows) == 1)
    if what == "a write":
        say(store, "t2", "two")
    elif what == "a generation":
        quiet.clear()
    if what != "the end":
        assert until(lambda: len(scorer.windows) > 1 or what == "a generation")
        quiet.set()
        scorer.gate.set()
        assert until(lambda: backlog(store)["missing"] == 0)
    ahead.close()
    assert ahead.error is None and scorer.closed
    assert backlog(store)["missing"] == (1 if what == "the end" else 0)


def test_a_model_that_cannot_be_scored_ends_the_thread_with_its_error(store):
    say(store, "t1", "one")

    def refuse():
        raise ModelError("no gradient")

    with Ahead(store, refuse, share=1.0, idle_s=0.01) as ahead:
        assert until(lambda: ahead.error is not None)
    assert str(ahead.error) == "no gradient"


@pytest.mark.parametrize("share", [0, -1, 1.5])
def test_a_share_is_above_0_and_at_most_1(store, share):
    with pytest.raises(ValueError, match=f"share is {share}"):
        Ahead(store, FakeScorer, share=share)


# -- with the real model ---------------------------------------------------------------------


@pytest.mark.models
def test_an_open_memory_scores_what_it_was_told(tmp_path, monkeypatch, embedder):
    monkeypatch.setattr("edgemem.pipeline.ahead.Ahead", lambda *a, **k: Ahead(*a, **k, idle_s=0.05))
    settings = Settings(db=tmp_path / "a.db", ahead_percent=100)
    with Memory(settings.db, settings=settings, embedder=embedder) as opened:
        said = "I moved to Zürich in March; the 2 cats 🐈 came by train."
        opened.add(said, user_id="ana", infer=False)
        assert until(lambda: opened.doctor()["sensitivities"]["ready"] == 1, 120)
        (item,) = opened.get_all(user_id="ana")
        found = opened.store.sensitivities(item.sources)[item.sources[0]]
    words = [said[start:end] for start, end in found.offsets]
    assert "".join(words).replace("🐈", "") == said.replace("🐈", "")
    assert len(found.values) == len(words) and (found.values > 0).all()


@pytest.mark.models
@pytest.mark.parametrize(
    "text", ["", " ", "one", "  two\n\nthree ", "naïve 🐈‍⬛ 日本語", "\U0001f9d1‍\U0001f680 ok"]
)
def test_offsets_cover_the_text_in_order(text):
    with Scorer.load(threads=1) as scorer:
        tokens, offsets = scorer.tokenize(text)
    assert offsets.shape == (len(tokens), 2) and (offsets[:, 0] <= offsets[:, 1]).all()
    covered = {i for start, end in offsets for i in range(start, end)}
    assert covered == set(range(len(text)))
    assert (np.diff(offsets[:, 0]) >= 0).all() and (np.diff(offsets[:, 1]) >= 0).all()
