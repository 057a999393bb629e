"""One embedder's vectors in another's space: the map, and a store that changes its embedder."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from memorykit import BagOfWords, quick, texts

from edgemem.errors import DimensionMismatch, InputError
from edgemem.pipeline import upkeep
from edgemem.results import Aligned
from edgemem.retrieval.alignment import fit


def unit(rows):
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def rotation(rng, d):
    return np.linalg.qr(rng.standard_normal((d, d)))[0].astype(np.float32)


# -- the map ---------------------------------------------------------------------------------


@settings(max_examples=25)
@given(
    seed=st.integers(0, 2**32 - 1),
    d=st.integers(2, 48),
    more=st.integers(1, 100),
    centre=st.floats(0, 2),
    length=st.floats(1e-3, 1e3),
)
def test_a_random_rotation_is_recovered(seed, d, more, centre, length):
    """Whatever the vectors' length, and with a mean far from 0, as bge's is."""
    rng = np.random.default_rng(seed)
    x = unit(rng.standard_normal((2 * d + more, d)) + centre)
    turned = rotation(rng, d)
    alignment = fit(x[d:] * np.float32(length), x[d:] @ turned)
    assert np.abs(alignment.map(x * np.float32(length)) - x @ turned).max() < 1e-4


@settings(max_examples=20)
@given(seed=st.integers(0, 2**32 - 1), d=st.integers(2, 16), more=st.integers(1, 16))
def test_dimensions_may_differ(seed, d, more):
    """What lies in d directions of a larger space comes back from there, and goes there."""
    rng = np.random.default_rng(seed)
    small = unit(rng.standard_normal((200, d)))
    large = small @ rotation(rng, d + more)[:d]
    assert np.abs(fit(large, small).map(large) - small).max() < 1e-4
    assert np.abs(fit(small, large).map(small) - large).max() < 1e-4


def test_huge_and_tiny_vectors_have_their_directions():
    rng = np.random.default_rng(0)
    x = unit(rng.standard_normal((60, 8)))
    alignment = fit(x, x @ rotation(rng, 8))
    for length in (1e-30, 1e30):
        assert np.abs(alignment.map(x * np.float32(length)) - alignment.map(x)).max() < 1e-4


def test_directions_that_a_model_leaves_empty_are_no_obstacle():
    """MiniLM's vectors lie in 381 of 384 directions."""
    rng = np.random.default_rng(0)
    x = unit(rng.standard_normal((200, 40)) * (np.arange(40) > 2)) @ rotation(rng, 40)
    turned = rotation(rng, 40)
    alignment = fit(x[:100], x[:100] @ turned)
    assert np.abs(alignment.map(x) - x @ turned).max() < 1e-4


def test_neighbours_stay_neighbours_under_noise():
    rng = np.random.default_rng(0)
    x = unit(rng.standard_normal((400, 32)))
    y = unit(x @ rotation(rng, 32) + 0.03 * rng.standard_normal((400, 32)))
    mapped = fit(x[:200], y[:200]).map(x[200:])
    assert ((mapped @ y[200:].T).argmax(axis=1) == np.arange(200)).mean() > 0.98
    assert ((x[200:] @ y[200:].T).argmax(axis=1) == np.arange(200)).mean() < 0.1


@pytest.mark.parametrize(
    ("x", "y", "told"),
    [
        ((5, 8), (5, 8), "5 pairs are too few to align 8 dimensions with 8; give more than 8"),
        ((8, 8), (8, 20), "8 pairs are too few to align 8 dimensions with 20"),
        ((30, 8), (29, 8), "30 vectors of one model and 29 of the other"),
        ((0, 8), (0, 8), r"shape \(0, 8\)"),
        ((8,), (8,), r"shape \(8,\); give \(n, dim\)"),
    ],
)
def test_too_few_or_uneven_pairs_are_refused(x, y, told):
    rng = np.random.default_rng(0)
    with pytest.raises(InputError, match=told):
        fit(rng.standard_normal(x).astype("f4"), rng.standard_normal(y).astype("f4"))


@settings(max_examples=20)
@given(seed=st.integers(0, 2**32 - 1), rank=st.integers(1, 7))
def test_pairs_that_vary_in_few_directions_are_refused(seed, rank):
    rng = np.random.default_rng(seed)
    few = rng.standard_normal((100, rank)) @ rng.standard_normal((rank, 8))
    many = rng.standard_normal((100, 8)).astype("f4")
    for x, y in ((few.astype("f4"), many), (many, few.astype("f4"))):
        with pytest.raises(InputError, match=rf"vary in [1-{rank}] directions of 8"):
            fit(x, y)


def test_pairs_that_are_all_the_same_are_refused():
    with pytest.raises(InputError, match="vary in 0 directions"):
        fit(np.ones((9, 4), "f4"), np.ones((9, 4), "f4"))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_no_number_is_refused(bad):
    x = np.random.default_rng(0).standard_normal((20, 4)).astype("f4")
    alignment = fit(x, x)
    x[3, 2] = bad
    for step in (lambda: fit(x, x), lambda: alignment.map(x)):
        with pytest.raises(InputError, match="NaN or infinity"):
            step()


def test_vectors_of_another_dimension_than_the_pairs_are_refused():
    x = np.random.default_rng(0).standard_normal((20, 4)).astype("f4")
    with pytest.raises(InputError, match=r"have 5 dimensions, .* aligned by 4"):
        fit(x, x).map(np.ones((2, 5), "f4"))


# -- a store that changes its embedder -------------------------------------------------------

DIM = 16


class Turned(BagOfWords):
    """The same vectors in another basis: what an ideal second embedder would give."""

    def __init__(self, dim=DIM, model_id="turned@2"):
        super().__init__(DIM, model_id)
        turned = rotation(np.random.default_rng(7), max(dim, DIM))
        self._basis = turned[:DIM, :dim]
        self.out = dim

    def embed_chunks(self, texts):
        return [chunks @ self._basis for chunks in super().embed_chunks(texts)]

    def embed_query(self, text):
        return super().embed_query(text) @ self._basis


class Wider(Turned):
    """The same in 24 dimensions."""

    def __init__(self):
        super().__init__(24, "wider@3")
        self._bag_dim, self.dim = DIM, 24

    def _unit(self, found):
        self.dim = DIM
        try:
            return super()._unit(found)
        finally:
            self.dim = 24


WORDS = "oslo cat violin tea harbour bakery sister train garden guitar soup winter".split()


def said(count):
    rng = np.random.default_rng(1)
    pairs = rng.choice(WORDS, (count, 3, 2))
    return [f"number{i} " + " ".join(map("".join, some)) for i, some in enumerate(pairs)]


@pytest.fixture
def path(tmp_path, monkeypatch):
    """A store of 120 memories by the first embedder, one of them in three chunks."""
    monkeypatch.setattr(upkeep, "PAIRS", 40)
    with quick(tmp_path / "a.db", embedder=BagOfWords(DIM, "first@1")) as memory:
        memory.add(said(119), infer=False)
        memory.add(" ".join(f"word{i}" for i in range(500)), infer=False)
        memory.delete(memory.add("deleted", infer=False)[0].id)
    return tmp_path / "a.db"


@pytest.mark.parametrize("kind", [Turned, Wider])
def test_a_sample_is_embedded_and_the_others_are_mapped(path, kind):
    with quick(path, embedder=kind()) as memory:
        with pytest.raises(DimensionMismatch, match="edgemem align"):
            memory.search("oslo")
        seen: list[tuple[int, int]] = []
        assert memory.align(on_progress=lambda done, of: seen.append((done, of))) == Aligned(80, 40)
        assert seen[-1] == (40, 40) and memory.embedder.embedded == 40
        assert memory.doctor()["embedder"] == memory.embedder.model_id
        assert memory.doctor()["aligned_from"] == "first@1"
        assert memory.doctor()["problems"] == []
        changes = memory.store.changes(0)
        assert changes.vectors.shape == (122, memory.embedder.dim)
        aligned = memory.store.vectors()
        assert texts(memory.search("number77", top_k=1))[0].startswith("number77 ")
        memory.add("I have a dog", infer=False)
        assert memory.reindex() == 121  # and now each has its own
        assert memory.doctor()["aligned_from"] is None
        native = memory.store.vectors()
        for id, vectors in aligned.items():
            assert np.abs(native[id] - vectors).max() < 1e-4
        assert memory.align() == Aligned(0, 0)


def test_with_pairs_nothing_is_embedded(path):
    with quick(path, embedder=Turned()) as memory:
        pairs = BagOfWords(DIM).embed(said(60)), Turned().embed(said(60))
        assert memory.align(pairs) == Aligned(120, 0)
        assert memory.embedder.embedded == 0
        assert texts(memory.search("number77", top_k=1))[0].startswith("number77 ")


def test_pairs_that_do_not_fit_leave_the_store_as_it_was(path):
    with quick(path, embedder=Turned()) as memory:
        before = memory.store.generation()
        few = BagOfWords(DIM).embed(said(5)), Turned().embed(said(5))
        other = BagOfWords(32).embed(said(60)), Turned().embed(said(60))
        wide = BagOfWords(DIM).embed(said(60)), BagOfWords(20).embed(said(60))
        for pairs, told in (
            (few, "too few"),
            (other, "16 dimensions"),
            (wide, "have 20 dimensions, .* has 16"),
        ):
            with pytest.raises(InputError, match=told):
                memory.align(pairs)
        assert memory.store.generation() == before


def test_a_small_store_is_embedded_anew(tmp_path):
    with quick(tmp_path / "a.db", embedder=BagOfWords(DIM, "first@1")) as memory:
        memory.add(["I live in Oslo", "I have a cat"], infer=False)
    with quick(tmp_path / "a.db", embedder=Turned()) as memory:
        assert memory.align() == Aligned(0, 2)
        assert memory.doctor()["aligned_from"] is None
        assert texts(memory.search("cat", top_k=1)) == ["I have a cat"]


def test_an_empty_store_needs_no_alignment():
    with quick() as memory:
        assert memory.align() == Aligned(0, 0)


def test_what_is_stored_while_the_sample_is_embedded_is_taken_in(path):
    with (
        quick(path, embedder=BagOfWords(DIM, "first@1")) as other,
        quick(path, embedder=Turned()) as memory,
    ):
        id = other.get_all()[-2].id

        def meanwhile(done, of):
            other.update(id, "I live in Bergen")
            other.add("I have a parrot", infer=False)

        assert memory.align(on_progress=meanwhile) == Aligned(80, 41)
        assert texts(memory.search("Bergen", top_k=1)) == ["I live in Bergen"]
        assert texts(memory.search("parrot", top_k=1)) == ["I have a parrot"]
        with pytest.raises(DimensionMismatch, match=r"turned@2.*first@1"):
            other.search("cat")
