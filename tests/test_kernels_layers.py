"""The steps between matrix products: native and NumPy give the same numbers, which are right."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgemem import kernels
from edgemem.kernels import reference
from tests.kernelkit import every_way, needs_native

# 1, odd, and one beside each width: 8 lanes, the 16 sums, and NumPy's own.
SIZES = [1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 32, 33, 100, 1025]


def ways(name):
    return every_way(name, "kernel")


def normal(seed, *shape, scale=1.0):
    numbers = np.random.default_rng(seed).standard_normal(shape) * scale
    return numbers.astype(np.float32)


# -- softmax ---------------------------------------------------------------------------------


def softmax_slowly(scores, group, first):
    out = np.zeros(scores.shape)
    for i, row in enumerate(scores.astype(np.float64)):
        position = first + i // group
        seen = slice(position + 1)
        powers = np.exp(row[seen] - row[seen].max())
        out[i, seen] = powers / powers.sum()
    return out


@ways("softmax_causal")
@pytest.mark.parametrize("keys", SIZES)
@pytest.mark.parametrize("group", [1, 3])
def test_a_row_is_the_softmax_of_the_keys_it_sees(kernel, keys, group):
    positions = min(keys, 20)
    first = keys - positions
    scores = normal(keys, positions * group, keys, scale=5)
    expected = softmax_slowly(scores, group, first)
    kernel(scores, group, first)
    np.testing.assert_allclose(scores, expected, rtol=3e-6, atol=1e-30)
    assert (scores[expected == 0] == 0).all()


@ways("softmax_causal")
def test_scores_far_apart_give_no_infinity(kernel):
    scores = np.array([[3e4, -3e4, 3e4, -1e38]], np.float32)
    kernel(scores, 1, 3)
    np.testing.assert_allclose(scores, [[0.5, 0, 0.5, 0]], atol=1e-30)


@ways("softmax_causal")
def test_a_score_that_is_no_number_spoils_its_row_visibly(kernel):
    scores = normal(1, 2, 40)
    scores[0, 17] = np.nan
    kernel(scores, 1, 38)
    assert np.isnan(scores[0, :39]).any() and np.isfinite(scores[1]).all()


@ways("softmax_causal")
def test_what_a_row_does_not_see_is_0_even_beside_no_number(kernel):
    scores = np.array([[np.nan, 0]], np.float32)
    kernel(scores, 1, 0)
    assert scores[0, 1] == 0


@ways("softmax_causal")
def test_scores_that_cannot_be_written_are_refused(kernel):
    scores = normal(1, 1, 8)
    scores.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        kernel(scores, 1, 7)


@ways("softmax_backward")
@pytest.mark.parametrize("keys", SIZES)
def test_the_gradient_of_scores_is_that_of_the_definition(kernel, keys):
    p, d = np.abs(normal(keys, 5, keys)), normal(keys + 1, 5, keys)
    p /= p.sum(axis=1, keepdims=True)
    exact = p.astype(np.float64) * (d - (p.astype(np.float64) * d).sum(axis=1, keepdims=True))
    kernel(p, d)
    np.testing.assert_allclose(d, exact, rtol=1e-5, atol=2e-6)


# -- gated units -----------------------------------------------------------------------------


def silu_slowly(gate):
    gate = gate.astype(np.float64)
    return gate / (1 + np.exp(-gate))


@ways("gated")
@pytest.mark.parametrize("size", SIZES)
def test_a_gated_unit_is_that_of_its_definition(kernel, size):
    gate_up = normal(size, 3, 2 * size, scale=4)
    out, halves = np.empty((3, size), np.float32), np.empty((3, 2 * size), np.uint16)
    kernel(gate_up, out, halves)
    exact = silu_slowly(gate_up[:, :size]) * gate_up[:, size:]
    np.testing.assert_allclose(out, exact, rtol=3e-5, atol=1e-6)
    assert (halves == gate_up.view(np.uint32) >> 16).all()


@ways("gated_backward")
@pytest.mark.parametrize("size", SIZES)
def test_the_gradient_of_a_gated_unit_is_the_slope_of_the_unit(kernel, size):
    halves = (normal(size, 2, 2 * size, scale=4).view(np.uint32) >> 16).astype(np.uint16)
    d_out, d = normal(size + 1, 2, size), np.empty((2, 2 * size), np.float32)
    kernel(halves, d_out, d)
    gate_up = reference.middles(halves).astype(np.float64)
    gate, up, step = gate_up[:, :size], gate_up[:, size:], 1e-6
    slope = silu_slowly(gate + step) - silu_slowly(gate - step)
    np.testing.assert_allclose(d[:, :size], d_out * up * slope / (2 * step), rtol=2e-4, atol=2e-5)
    exact = d_out * silu_slowly(gate)
    np.testing.assert_allclose(d[:, size:], exact, rtol=3e-5, atol=1e-6)


def test_a_half_stands_for_the_middle_of_the_numbers_it_was_cut_from():
    numbers = normal(3, 1000, scale=100)
    middles = reference.middles((numbers.view(np.uint32) >> 16).astype(np.uint16))
    error = middles / numbers - 1
    assert np.abs(error).max() <= 2**-8 and abs(error.mean()) < 2**-12


@needs_native
@settings(max_examples=100)
@given(
    rows=st.integers(0, 9),
    keys=st.integers(1, 70),
    group=st.integers(1, 4),
    scale=st.sampled_from([1e-3, 1.0, 30.0, 1e6]),
    seed=st.integers(0, 2**32 - 1),
)
def test_native_and_numpy_agree_on_any_block(rows, keys, group, scale, seed):
    first = max(0, keys - 1 - max(0, rows - 1) // group)
    if rows and first + (rows - 1) // group >= keys:
        return
    ours, theirs = (normal(seed, rows, keys, scale=scale) for _ in range(2))
    kernels.softmax_causal(ours, group, first)
    reference.softmax_causal(theirs, group, first)
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-30)


# -- RMS norms -------------------------------------------------------------------------------


def norm_slowly(x, weight):
    return x / np.sqrt((x * x).mean(axis=1, keepdims=True) + 1e-5) * weight


@ways("rms_norm")
@pytest.mark.parametrize("size", SIZES)
def test_a_norm_is_that_of_its_definition(kernel, size):
    x, weight = normal(size, 70, size), normal(1, size)
    out, inverse, halves = np.empty_like(x), np.empty(70, np.float32), np.empty(x.shape, np.uint16)
    kernel(x, weight, 1e-5, out, inverse, halves)
    exact = x.astype(np.float64)
    np.testing.assert_allclose(out, norm_slowly(exact, weight), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(inverse, 1 / np.sqrt((exact**2).mean(axis=1) + 1e-5), rtol=1e-5)
    assert (halves == x.view(np.uint32) >> 16).all()
    again = x.copy()
    kernel(again, weight, 1e-5, again, inverse, halves)
    assert (again == out).all() and (halves == x.view(np.uint32) >> 16).all()


@ways("rms_norm_backward")
@pytest.mark.parametrize("size", SIZES)
def test_the_gradient_of_a_norm_is_the_slope_of_the_norm(kernel, size):
    halves = (normal(size, 70, size).view(np.uint32) >> 16).astype(np.uint16)
    x = reference.middles(halves).astype(np.float64)
    weight, d_out, dx = normal(1, size), normal(2, 70, size), np.ones((70, size), np.float32)
    inverse = (1 / np.sqrt((x * x).mean(axis=1) + 1e-5)).astype(np.float32)
    kernel(d_out, halves, weight, inverse, dx)
    direction, step = normal(3, 70, size).astype(np.float64), 1e-6
    change = norm_slowly(x + step * direction, weight) - norm_slowly(x - step * direction, weight)
    slope = (change * d_out).sum(axis=1) / (2 * step)
    np.testing.assert_allclose(((dx - 1) * direction).sum(axis=1), slope, rtol=1e-3, atol=1e-3)
