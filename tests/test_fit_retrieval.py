"""bench.fit_retrieval: what a search's encoders learn from, and what the package computes."""

import io
from itertools import chain

import numpy as np
import pytest

from edgemem.runtime.embedder import TOKEN_MODEL, Embedder, TokenEmbedder, bundled_tokenizer

torch = pytest.importorskip("torch", reason="needs edgemem-runtime[train]")
fit_retrieval = pytest.importorskip("bench.fit_retrieval")
pytestmark = [pytest.mark.train, pytest.mark.models]

SAID = ["Mara: I adopted a grey cat.", "Joel: I play the violin.", "Mara: The boat is sold."]
ASKED = {"Which pet does Mara have?": [0], "What does Joel play?": [1], "What was sold?": [2]}


def ids(text):
    found: list[int] = bundled_tokenizer().encode(text, add_special_tokens=False).ids
    return found


def saved(numbers):
    file = io.BytesIO()
    np.savez(file, **numbers)
    return file.getvalue()


@pytest.fixture
def talk():
    made = fit_retrieval.Talk(True, False, [ids(text) for text in SAID])
    for question, needed in ASKED.items():
        made.ask(ids(question), needed)
    return made


def test_joined_turns_are_needed_where_one_of_them_was(talk):
    for seed in range(20):
        made = fit_retrieval.joined(talk, np.random.default_rng(seed))
        assert [*chain(*made.texts)] == [*chain(*talk.texts)]
        for (turn,), (now,) in zip(talk.needed, made.needed, strict=True):
            text, within = talk.texts[turn], made.texts[now]
            assert text in [within[i : i + len(text)] for i in range(len(within))]


def test_what_needs_nothing_is_not_asked(talk):
    talk.ask(ids("Who called?"), [])
    assert len(talk.queries) == len(talk.needed) == len(talk.weight) == 3


@pytest.mark.parametrize("kind", ["minilm", "colbert"])
def test_what_was_learned_is_what_a_search_computes(talk, kind):
    torch.manual_seed(0)
    net = fit_retrieval.Net(kind, bundled_tokenizer())
    other = fit_retrieval.Talk(False, False, [ids("I sold the cat."), ids("I bought a violin.")])
    other.ask(ids("What did I buy?"), [1])
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    losses = []
    for _ in range(4):
        loss = fit_retrieval.loss_of(net, [talk, other], np.random.default_rng(0))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0]

    files = fit_retrieval.exported(net.eval(), kind, talk.texts)
    with torch.no_grad():
        learned = net(talk.queries, talk.texts).numpy()
    if kind == "minilm":
        embedder = Embedder.load(expert=saved(files["minilm"]))
        found = embedder.embed(list(ASKED)) @ embedder.embed(SAID).T
    else:
        model = Embedder.load(TOKEN_MODEL, expert=saved(files["colbert"]))
        tokens = TokenEmbedder(model, saved(files["tokens"]))
        asked, said = map(tokens.embed_query, ASKED), [tokens.embed(text) for text in SAID]
        cosines = [[one @ other.T.astype(int) for other in said] for one in asked]
        found = np.array([[c.max(axis=1).mean() for c in row] for row in cosines]) * tokens.step**2
    assert np.abs(found - learned).max() < 0.03
