"""One score from features: a probability, the parts that add up to it, and the shipped weights."""

import json
from importlib.resources import files

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgemem.retrieval.search import (
    FEATURES,
    FEW,
    RELEVANT,
    Feature,
    Weights,
    parts_of,
    probability,
    reliability,
    shipped,
)

numbers = st.floats(-50, 50, width=32)
rows = st.lists(numbers, min_size=len(FEATURES), max_size=len(FEATURES))


def weights(values, bias=0.0):
    return Weights(bias, np.array(values, np.float32))


# Weights


def test_the_shipped_weights_have_every_feature_and_no_other():
    data = json.loads((files("edgemem") / "data" / "fusion.json").read_text(encoding="utf-8"))
    assert data["fast"].keys() == {"metric", "cosine"} == shipped().keys()
    for name, given_ in data["fast"].items():
        assert list(given_["weights"]) == list(FEATURES)
        held = shipped()[name]
        assert held.weights.dtype == np.float32 and np.isfinite(held.weights).all()
        assert held.weights == pytest.approx(list(given_["weights"].values()))
        assert held.bias == given_["bias"]


def test_weights_without_a_feature_are_refused_by_its_name():
    some = {"bias": 0, "weights": dict.fromkeys(FEATURES[1:], 1.0)}
    with pytest.raises(KeyError, match=FEATURES[0]):
        Weights.of(some)


@pytest.mark.parametrize("name", ["metric", "cosine"])
@pytest.mark.parametrize("retrieval", RELEVANT)
def test_what_has_nothing_in_common_with_a_query_is_not_relevant(name, retrieval):
    held = shipped(retrieval == "careful")[name]
    among = held.weights[Feature.AMONG] * np.log(FEW)  # the only feature that is never 0
    assert probability(np.array([held.bias + among]))[0] < RELEVANT[retrieval]


@pytest.mark.parametrize("retrieval", RELEVANT)
def test_a_larger_score_is_right_more_often_and_of_our_own_as_often_as_it_says(retrieval):
    for rows in reliability()[retrieval].values():
        shares = [row["evidence"] for row in rows]
        assert shares == sorted(shares)
    for row in reliability()[retrieval]["written"]:
        assert row["evidence"] == pytest.approx(row["score"], abs=0.15)


# The score


def test_a_probability_is_the_logistic_function():
    logits = np.array([-np.inf, -1e4, -2, 0, 2, 1e4, np.inf])
    found = probability(logits)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, [0, 0, 0.11920292, 0.5, 0.88079708, 1, 1], rtol=1e-6)


@given(st.lists(st.floats(-80, 80), min_size=2, max_size=9))
def test_a_larger_logit_never_gives_a_smaller_probability(logits):
    found = probability(np.sort(logits))
    assert np.all(np.diff(found) >= 0) and np.all((found >= 0) & (found <= 1))


@settings(max_examples=80)
@given(rows, numbers, st.lists(rows, max_size=12), st.integers(1, 15))
def test_the_best_are_those_of_a_plain_sort(w, bias, features, k):
    matrix = np.array(features, np.float32).reshape(-1, len(FEATURES))
    positions, scores = weights(w, bias).best(matrix, k)
    logits = matrix.astype(np.float64) @ np.array(w, np.float64) + bias
    assert len(positions) == len(scores) == min(k, len(features))
    assert len(set(positions.tolist())) == len(positions)
    # A logit of thousands has a rounding of its own.
    expected = np.sort(logits)[::-1][: len(positions)]
    np.testing.assert_allclose(logits[positions], expected, rtol=1e-5, atol=1e-3)
    np.testing.assert_allclose(scores, probability(logits[positions]), rtol=2e-3, atol=1e-6)


def test_a_score_does_not_depend_on_what_else_is_scored():
    rng = np.random.default_rng(0)
    features = rng.standard_normal((50, len(FEATURES))).astype(np.float32)
    held = weights(rng.standard_normal(len(FEATURES)), -1.0)
    positions, scores = held.best(features, 50)
    for at, score in zip(positions, scores, strict=True):
        (alone,) = held.best(features[at : at + 1], 1)[1]
        assert alone == pytest.approx(score, rel=1e-6)


# Its parts


@given(rows, numbers, rows)
def test_the_parts_add_up_to_the_score(w, bias, features):
    held = weights(w, bias)
    parts = parts_of(held, features)
    assert list(parts) == ["base", *FEATURES]
    total = bias + float(np.array(w, np.float64) @ np.array(features, np.float64))
    expected = float(probability(np.array([total]))[0])
    # A float32 score, and terms of up to 2,500 that cancel each other.
    assert sum(parts.values()) == pytest.approx(expected, abs=1e-5)


@given(rows, numbers, rows)
def test_a_part_has_the_sign_of_its_term(w, bias, features):
    parts = parts_of(weights(w, bias), features)
    for name, weight, feature in zip(FEATURES, w, features, strict=True):
        assert parts[name] * weight * feature >= 0
        assert parts[name] == 0 or weight * feature != 0


def test_parts_are_in_proportion_to_their_terms():
    parts = parts_of(weights([1.0, 2.0, -1.0, *[0.0] * (len(FEATURES) - 3)]), [1.0] * len(FEATURES))
    first, second, third = (parts[name] for name in FEATURES[:3])
    assert second == pytest.approx(2 * first) and third == pytest.approx(-first)
    assert parts["base"] == 0.5


def test_terms_that_cancel_have_parts_all_the_same():
    """Their sum is 0, which nothing can be divided by."""
    parts = parts_of(weights([1.0, -1.0, *[0.0] * (len(FEATURES) - 2)]), [1.0] * len(FEATURES))
    assert parts[FEATURES[0]] == pytest.approx(0.25) == -parts[FEATURES[1]]
    assert sum(parts.values()) == parts["base"] == 0.5
