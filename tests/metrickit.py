"""Made-up embeddings, and CoreMem's Σ by dense linear algebra."""

import numpy as np
from hypothesis import strategies as st

seeds = st.integers(0, 2**32 - 1)


def cloud(seed, n, d):
    """Correlated rows of different lengths, around a mean that is not zero."""
    rng = np.random.default_rng(seed)
    mixing = rng.standard_normal((d, d)) * np.geomspace(1, 0.1, d)
    return (rng.standard_normal((n, d)) @ mixing + rng.standard_normal(d)).astype(np.float32)


def unit(H):
    H = np.asarray(H, np.float64)
    return H / np.linalg.norm(H, axis=1, keepdims=True)


def parts(H, c):
    """μ, σ², λ, Vᵀ and s²/N from the SVD of the centred unit rows, as the paper has them."""
    X = unit(H)
    _, s, Vt = np.linalg.svd(X - X.mean(0), full_matrices=False)
    variance = X.var(axis=0)
    return X.mean(0), variance, c * variance.mean(), Vt, s**2 / len(X)


def dense_sigma(H, c, rank):
    _, variance, ridge, Vt, M = parts(H, c)
    return (Vt[:rank].T * M[:rank]) @ Vt[:rank] + np.diag(variance + ridge)


def dense_inverse(metric):
    A = metric.A.astype(np.float64)
    return np.diag(metric.inverse_diagonal.astype(np.float64)) - A @ A.T


def assert_same_metric(a, b):
    assert (a.count, a.rank) == (b.count, b.rank)
    np.testing.assert_allclose(a.mean, b.mean, atol=1e-6)
    expected = dense_inverse(b)
    np.testing.assert_allclose(dense_inverse(a), expected, atol=1e-5 * np.abs(expected).max())
