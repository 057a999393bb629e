"""Which backend answers, and what kernels refuse."""

import math
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from edgemem.kernels import Bm25Query
from tests.kernelkit import NATIVE, native, needs_native, numpy

ROOT = Path(__file__).resolve().parent.parent

F32, I32 = np.float32, np.int32


def ints(*numbers):
    return np.array(numbers, np.int64)


def one(*shape, dtype=F32):
    return np.ones(shape, dtype)


QUERY = Bm25Query(
    np.array([0, 1, 3], I32), one(3, dtype=np.uint16), ints(0), ints(3),
    np.array([1, 2, 3, 4], I32), None, 4, 2.5,
)  # fmt: skip
INT8 = {"rows": one(3, 4, dtype=np.int8), "scales": one(3)}
SCAN = {"rows": one(3, 4), "query": one(4), "k": 2}


@pytest.mark.parametrize("backend", ["numpy", pytest.param("native", marks=needs_native)])
@pytest.mark.parametrize("wrong", [{"query": one(5)}, {"k": 0}, {"k": -1}, {"scales": one(2)}])
def test_what_does_not_fit_is_refused(wrong, backend):
    call = numpy("scan_topk") if backend == "numpy" else native("scan_topk", 0)
    call(**SCAN)
    with pytest.raises((ValueError, IndexError)):
        call(**SCAN | wrong)


@needs_native
@pytest.mark.parametrize(
    "wrong",
    [
        {"rows": np.ones((3, 4))},
        {"rows": one(4, 3).T},
        {"query": one(8)[::2]},
        {"scales": one(3)},
    ],
)
def test_another_type_or_layout_is_an_error_that_says_so(wrong):
    with pytest.raises(ValueError, match="scan_topk takes C-contiguous arrays of the types"):
        native("scan_topk", 0)(**SCAN | wrong)


@needs_native
def test_an_output_that_cannot_be_written_is_refused():
    with pytest.raises(ValueError, match="outputs that can be written"):
        native("bm25", 0)(QUERY, 2, np.frombuffer(bytes(16), F32))


@pytest.mark.parametrize("backend", ["numpy", pytest.param("native", marks=needs_native)])
@pytest.mark.parametrize("docs", [[0, 1, 4], [-1, 1, 3]])
def test_a_document_that_is_not_there_is_refused_and_nothing_is_written(docs, backend):
    call, scores = numpy("bm25") if backend == "numpy" else native("bm25", 0), one(4)
    with pytest.raises(ValueError, match="a position lies outside its buffer"):
        call(replace(QUERY, docs=np.array(docs, I32)), 2, scores)
    assert (scores == 1).all()


# -- what the native module refuses by itself, before it writes --------------------------------

ROOM = {n: (np.empty(n, np.int64), np.empty(n, F32)) for n in (1, 2)}
Q8, Q = INT8["rows"][0], one(4)
POSTINGS = (QUERY.docs, QUERY.starts, QUERY.sizes)
MEMORIES = (
    ints(0, 1, 2), ints(0, 0, 1), ints(0, 2, 0), one(3, dtype=I32), np.array([False, True, True])
)  # fmt: skip
SAID = (
    ints(1, 0, 0, 0, 0, 0, 0)[None], ints(0, 1), np.array([-1, 0], I32), *POSTINGS, np.ones(1),
    one(4), QUERY.lengths, None, 9,
)  # fmt: skip


def bm25(starts=QUERY.starts, counts=QUERY.counts, average=1.0, top=ROOM[1][0]):
    rest = QUERY.lengths, None, 4, average, 1.2, 0.75, 1, np.empty(1), one(4), top, ROOM[1][1]
    return "bm25", (QUERY.docs, counts, starts, QUERY.sizes, *rest)


def near(next, query, out):
    return "similarities", (
        one(2, 4), ints(0), next, ints(0)[None], query, 0.0, 1.0, 1.0, 0, out,
    )  # fmt: skip


UNFIT = "do not fit"
OVERFLOWS = [
    ("scan_topk", (one(4, 4), Q, None, 2, 0, *ROOM[1]), UNFIT),
    ("scan_topk", (one(4, 4), Q, None, 1, 99, *ROOM[1]), "instruction set"),
    ("scan_topk_i8", (*INT8.values(), Q, Q8, 1.0, None, 2, 0, *ROOM[2], *ROOM[1]), UNFIT),
    ("scan_topk_i8", (*INT8.values(), Q, Q8, 1.0, None, 2, 0, *ROOM[1], *ROOM[2]), "size"),
    ("dots", (one(3, 4), ints(0, 3), one(2, 4), 0, one(2, 2)), "position"),
    ("dots", (one(3, 4), ints(-1, 0), one(2, 4), 0, one(2, 2)), "position"),
    ("dots", (one(3, 4), ints(0, 1, 2), one(2, 4), 0, one(2, 2)), UNFIT),
    ("dots", (one(3, 4), ints(0, 1), one(2, 4), 99, one(2, 2)), "instruction set"),
    ("quantize_i8", (one(1, 4), INT8["rows"], one(3)), UNFIT),
    ("rank", (one(3, 2), one(2), 0.0, 2, one(3), *ROOM[1]), UNFIT),
    ("metric_query", (Q, Q, Q, one(2, 4), 0, Q[:2], Q.copy()), UNFIT),
    (*bm25(counts=one(2, dtype=np.uint16)), UNFIT),
    (*bm25(top=ints()), UNFIT),
    (*bm25(starts=ints(1)), "outside its"),
    (*bm25(starts=ints(-1)), "outside its"),
    (*bm25(average=math.nan), "outside its"),
    ("beside", (ints(1, 2), *MEMORIES, one(2, dtype=np.uint8), one(3, 7, dtype=np.int64)), UNFIT),
    ("beside", (ints(1, 2), *MEMORIES, one(3, dtype=np.uint8), one(2, 7, dtype=np.int64)), UNFIT),
    (*near(ints(-1), Q, one(1, 1)), UNFIT),
    (*near(ints(-1, -1), Q[:1], one(1, 1)), UNFIT),
    (*near(ints(-1, -1), Q, one(0, 1)), UNFIT),
    (*near(ints(-1, -1), Q, one(1, 2)), UNFIT),
    ("word_features", (*SAID, ints(0), one(3, dtype=np.uint8), one(1, 6)), UNFIT),
    ("word_features", (*SAID, ints(0, 0), one(2, dtype=np.uint8), one(1, 6)), UNFIT),
]


@needs_native
@pytest.mark.parametrize(("name", "arguments", "message"), OVERFLOWS)
def test_the_native_module_checks_its_buffers_itself(name, arguments, message):
    before = [a.copy() if isinstance(a, np.ndarray) else a for a in arguments]
    with pytest.raises(ValueError, match=message):
        getattr(NATIVE, name)(*arguments)
    for argument, was in zip(arguments, before, strict=True):
        np.testing.assert_array_equal(argument, was)


@needs_native
def test_what_fits_is_no_error_of_the_native_module():
    name, arguments = bm25()
    assert getattr(NATIVE, name)(*arguments) == 1
    out = np.empty((3, 7), np.int64)
    assert NATIVE.beside(ints(1), *MEMORIES, one(3, dtype=np.uint8), out) == 2
    out = one(1, 6)
    NATIVE.word_features(*SAID, ints(0, 0), one(3, dtype=np.uint8), out)
    assert out[0, 0] == 1


# -- which backend answers -----------------------------------------------------------------------

SHOW = "from edgemem import kernels; print(kernels.backend, '|', kernels.backend_detail)"
FAKE = """
import sys, types
fake = types.ModuleType("edgemem._native")
fake.ABI_VERSION = 999
sys.modules["edgemem._native"] = {}
"""


@pytest.mark.parametrize(
    ("wanted", "module", "said"),
    [
        ("numpy", "", "numpy | EDGEMEM_BACKEND=numpy"),
        ("cuda", "", "EDGEMEM_BACKEND is 'cuda'; allowed are auto, native and numpy"),
        ("auto", FAKE.format("fake"), "numpy | the compiled module has ABI 999"),
        ("auto", FAKE.format("None"), "numpy | import of edgemem._native halted"),
        ("native", FAKE.format("None"), "Reinstall edgemem-runtime with a C++ compiler present"),
    ],
)
def test_the_backend_is_the_one_asked_for_or_the_best(wanted, module, said):
    done = subprocess.run(
        [sys.executable, "-c", module + SHOW],
        cwd=ROOT,
        env={**os.environ, "EDGEMEM_BACKEND": wanted},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout.startswith(said) or said in done.stderr
