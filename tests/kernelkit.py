"""What the tests of the kernels share: the ways to call one, the sizes, exact inputs."""

from __future__ import annotations

import numpy as np
import pytest

from edgemem import kernels, kernels_candidates, kernels_numpy

needs_native = pytest.mark.skipif(
    kernels.backend != "native", reason=f"no native module: {kernels.backend_detail}"
)

# 1, odd, and one beside each width that a kernel works in: 4, 8, 16 and 32 numbers.
DIMS = [1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 65, 384, 385]

# These have one loop for all instruction sets.
ONE_LOOP = ["beside", "bm25", "quantize_i8", "rank", "word_features"]


def every_way(name, argument):
    """Run a test with the kernel `name` as each version of it, given as `argument`.

    All but the dispatched one take arguments by position, every one, and check none.
    """
    isas = {"native": 0} if name in ONE_LOOP else {"native-best": 0, "native-scalar": 1}
    ways = [
        pytest.param(getattr(kernels_numpy, name), id="numpy"),
        *(
            pytest.param(native(name, isa), id=label, marks=needs_native)
            for label, isa in isas.items()
        ),
    ]
    return pytest.mark.parametrize(argument, ways)


def native(name, isa):
    owner = kernels if hasattr(kernels, name) else kernels_candidates
    call = getattr(owner, f"_{name}_native")
    return call if name in ONE_LOOP else lambda *arguments: call(*arguments, isa)


def whole_numbers(seed, *shape):
    """Small ones: their inner products are exact in float32 whatever the order of adding."""
    return np.random.default_rng(seed).integers(-3, 4, shape).astype(np.float32)


def ranked(scores, k, counted=None):
    """The definition of the k best, slowly."""
    scores = np.where(np.isnan(scores), -np.inf, scores)
    positions = list(range(len(scores)) if counted is None else counted)
    positions.sort(key=lambda i: (-scores[i], i))
    return positions[:k], scores[positions[:k]]


def assert_same(found, expected):
    positions, scores = found
    assert positions.dtype == np.int64 and scores.dtype == np.float32
    assert positions.tolist() == list(expected[0])
    assert scores.tolist() == list(expected[1])
