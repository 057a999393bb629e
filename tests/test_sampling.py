"""Choosing a token: the likeliest, one of the nucleus, and never a refused one."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgemem.errors import InputError
from edgemem.runtime.generation import Fork, pick, repeat_penalised

floats = st.floats(-40, 40, width=32)
logits_of = st.lists(floats, min_size=1, max_size=300).map(lambda x: np.array(x, np.float32))
seeds = st.integers(0, 2**32)


def choose(logits, *, temperature=0.0, top_p=0.95, seed=0, allowed=None):
    rng = np.random.default_rng(seed)
    return pick(logits, temperature=temperature, top_p=top_p, rng=rng, allowed=allowed)


@given(logits_of)
def test_temperature_zero_takes_the_likeliest(logits):
    assert choose(logits) == int(np.argmax(logits))


@given(logits_of, seeds, st.floats(0.01, 3), st.floats(0.01, 1))
def test_a_seed_repeats_its_choice(logits, seed, temperature, top_p):
    args = {"temperature": temperature, "top_p": top_p, "seed": seed}
    assert choose(logits, **args) == choose(logits, **args)


@given(logits_of, seeds, st.floats(0.05, 3), st.floats(0.05, 1))
def test_the_choice_lies_in_the_nucleus(logits, seed, temperature, top_p):
    chosen = choose(logits, temperature=temperature, top_p=top_p, seed=seed)
    scaled = logits.astype(np.float64) / temperature
    p = np.exp(scaled - scaled.max())
    p /= p.sum()
    assert p[p > p[chosen]].sum() <= top_p + 1e-9


@given(logits_of, seeds, st.sampled_from([0.0, 0.7]), st.data())
def test_a_refused_token_is_never_chosen(logits, seed, temperature, data):
    n = len(logits)
    good = data.draw(st.sets(st.integers(0, n - 1), min_size=1, max_size=5))
    mask = np.isin(np.arange(n), list(good))
    chosen = choose(logits, temperature=temperature, seed=seed, allowed=lambda ids: mask[ids])
    assert chosen in good
    if temperature == 0:
        assert logits[chosen] == logits[mask].max()


@pytest.mark.parametrize(
    ("rank", "asked_about"),
    [
        (0, [1]),
        (1, [1, 64]),
        (63, [1, 64]),
        (64, [1, 64, 512]),
        (512, [1, 64, 512, 4096]),
        (4095, [1, 64, 512, 4096]),
        (4096, [1, 64, 512, 4096, 5000]),
        (4999, [1, 64, 512, 4096, 5000]),
    ],
)
def test_ever_more_are_asked_about_while_all_are_refused(rank, asked_about):
    logits = np.random.default_rng(rank).permutation(5000).astype(np.float32)
    only = int(np.argsort(-logits)[rank])
    asked = []

    def allowed(ids):
        asked.append(len(ids))
        return ids == only

    assert choose(logits, allowed=allowed) == only
    assert asked == asked_about


@pytest.mark.parametrize("n", [1, 63, 64, 65, 1000])
def test_refusing_everything_is_an_error(n):
    with pytest.raises(ValueError, match="none of the vocabulary is allowed"):
        choose(np.zeros(n, np.float32), allowed=lambda ids: np.zeros(len(ids), bool))


def test_a_tiny_temperature_does_not_overflow():
    logits = np.array([1.0, 30.0, 2.0], np.float32)
    assert choose(logits, temperature=1e-310) == 1


def test_high_temperature_reaches_unlikely_tokens():
    logits = np.array([0.0, 1.0, 2.0], np.float32)
    assert {choose(logits, temperature=5, top_p=1, seed=s) for s in range(50)} == {0, 1, 2}


def test_a_penalty_makes_recent_tokens_less_likely_whatever_their_sign():
    logits = np.array([2.0, -2.0, 1.0], np.float32)
    np.testing.assert_allclose(repeat_penalised(logits, [0, 1, 1], 2.0), [1.0, -4.0, 1.0])
    np.testing.assert_array_equal(logits, [2.0, -2.0, 1.0])  # the model's own stay as they are


@pytest.mark.parametrize(("recent", "penalty"), [([], 2.0), ([0], 1.0)])
def test_without_a_penalty_logits_are_not_copied(recent, penalty):
    logits = np.zeros(3, np.float32)
    assert repeat_penalised(logits, recent, penalty) is logits


# -- a decision at another probability than the likeliest's ----------------------------------------


@given(logits_of, st.data(), st.floats(0, 1), seeds, st.sampled_from([0.0, 0.05, 0.7, 3.0]))
def test_a_fork_takes_its_token_from_its_probability_on_and_only_then(
    logits, data, at_least, seed, temperature
):
    token = data.draw(st.integers(0, len(logits) - 1))
    p = float(np.exp(logits[token] - np.logaddexp.reduce(logits.astype(np.float64))))
    if abs(p - at_least) < 1e-6:
        return
    before = logits.copy()
    decided = Fork((5, 6), token, at_least).decided([5, 6], logits)
    assert np.array_equal(logits, before)
    if len(logits) > 1 or p >= at_least:
        chosen = choose(decided, temperature=temperature, top_p=1.0, seed=seed)
        assert (chosen == token) == (p >= at_least)


@pytest.mark.parametrize("answer", [[], [5], [6, 5], [5, 6, 7]])
def test_a_fork_decides_nothing_elsewhere(answer):
    logits = np.zeros(3, np.float32)
    assert Fork((5, 6), 0, 0.9).decided(answer, logits) is logits


def test_a_fork_lies_where_two_answers_part():
    assert Fork.between("abc", "abd", 0.5, lambda text: [ord(c) for c in text]) == Fork(
        (97, 98), 99, 0.5
    )


@pytest.mark.parametrize(("text", "other"), [("ab", "ab"), ("ab", "abc"), ("abc", "ab"), ("", "a")])
def test_answers_that_do_not_part_are_refused(text, other):
    with pytest.raises(InputError, match="do not part"):
        Fork.between(text, other, 0.5, lambda text: [ord(c) for c in text])


@pytest.mark.parametrize("at_least", [0.0, 1.1])
def test_a_fork_takes_or_leaves_one_beginning(engine, at_least):
    prompt = "The capital of France is"
    assert engine.generate(prompt, max_tokens=3).text.startswith(" Paris")
    for beginning in (" Paris", " Lyon"):
        fork = (beginning, " the", at_least)
        text = engine.generate(prompt, max_tokens=3, fork=fork).text
        assert text.startswith(beginning) == (at_least == 0.0)


BRANCHED = ["The capital of France is", "Once upon a time", "My cat is called", "2 + 2 ="]


@pytest.mark.parametrize("prompt", BRANCHED)
def test_the_most_probable_of_the_branches_is_given(engine, prompt):
    how = {"max_tokens": 5, "stop": (".", "\n")}
    alone = engine.generate(prompt, **how)
    found = [engine.generate(prompt, **how, branches=n) for n in (1, 2, 8, 32)]
    assert found[0].text == alone.text
    assert [one.log_p for one in found] == sorted(one.log_p for one in found)
    # Branches that were left for another left nothing behind.
    assert engine.generate(prompt, **how).text == alone.text
    for one in found:
        if one.finish_reason == "length":
            told = float(engine.log_probs(prompt, one.text).sum())
            assert one.log_p == pytest.approx(told, abs=0.15)


def test_a_later_branch_wins_where_it_is_more_probable(engine):
    gains = [
        engine.generate(prompt, max_tokens=5, branches=32).log_p
        - engine.generate(prompt, max_tokens=5).log_p
        for prompt in BRANCHED
    ]
    assert max(gains) > 0.1


def test_a_refusal_at_the_fork_has_no_other_branch(engine):
    fork = (" Lyon", " the", 0.0)
    text = engine.generate("The capital of France is", max_tokens=2, fork=fork, branches=8).text
    assert text.startswith(" Lyon")


def test_more_branches_than_tokens_are_all_of_them(engine):
    few = engine.generate(BRANCHED[0], max_tokens=2, branches=64)
    assert engine.generate(BRANCHED[0], max_tokens=2, branches=10**9).log_p == few.log_p


def test_branches_can_be_stopped(engine):
    calls = iter([False, False, False] + [True] * 99)
    stopped = engine.generate(
        BRANCHED[1], max_tokens=9, branches=8, should_stop=lambda: next(calls)
    )
    assert stopped.finish_reason == "cancelled"
    assert engine.generate(BRANCHED[1], max_tokens=9).text.startswith(stopped.text)


@pytest.mark.parametrize(
    "how",
    [{"branches": 0}, {"temperature": 0.5}, {"schema": {"type": "boolean"}}, {"within": ["a b"]}],
)
def test_branches_that_cannot_be_compared_are_refused(engine, how):
    with pytest.raises(InputError, match="branches is"):
        engine.generate("Hello", **{"branches": 2, "stop": ("\n",), **how})


@pytest.mark.parametrize("answers", [("true", "false"), ("false", "true")])
def test_a_fork_decides_between_what_a_schema_allows(engine, answers):
    prompt, schema = "Is Oslo in Norway? Answer true or false: ", {"type": "boolean"}
    text = engine.generate(prompt, schema=schema, max_tokens=9, fork=(*answers, 0.0)).text
    assert text.strip() == answers[0]
