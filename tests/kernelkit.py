"""What the tests of the kernels share: the ways to call one, the sizes, exact inputs."""

import numpy as np
import pytest

from edgemem import kernels

needs_native = pytest.mark.skipif(
    kernels.backend != "native", reason=f"no native module: {kernels.backend_detail}"
)

# 1, odd, and one beside each width that a kernel works in: 4, 8, 16 and 32 numbers.
DIMS = [1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 65, 384, 385]

# These have one loop for all instruction sets.
ONE_LOOP = ["beside", "bm25", "quantize_i8", "rank", "word_features"]

NATIVE = kernels._native


def every_way(name, argument):
    """Run a test with the kernel `name` as each version of it, given as `argument`."""
    isas = {"native": 0} if name in ONE_LOOP else {"native-best": 0, "native-scalar": 1}
    ways = [
        pytest.param(numpy(name), id="numpy"),
        *(
            pytest.param(native(name, isa), id=label, marks=needs_native)
            for label, isa in isas.items()
        ),
    ]
    return pytest.mark.parametrize(argument, ways)


def numpy(name):
    return _answered_by(None, name, 0)


def native(name, isa):
    return _answered_by(NATIVE, name, isa)


def _answered_by(module, name, isa):
    """A kernel as this module answers it (None: NumPy), with this instruction set. No threads."""
    call = getattr(kernels, name)

    def answer(*arguments, **named):
        kernels._native, kernels.isa = module, isa
        try:
            return call(*arguments, **named)
        finally:
            kernels._native, kernels.isa = NATIVE, 0

    return answer


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
