"""Which backend answers, and what every kernel refuses, in the same words natively and in NumPy."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest

from edgemem import kernels
from edgemem.kernels import Bm25Query
from tests.kernelkit import NATIVE, native, needs_native, numpy

ROOT = Path(__file__).resolve().parent.parent

F32, I32, BOOL = np.float32, np.int32, np.bool_


def ints(*numbers):
    return np.array(numbers, np.int64)


def one(*shape, dtype=F32):
    return np.ones(shape, dtype)


QUERY = Bm25Query(
    np.array([0, 1, 3], I32), one(3, dtype=np.uint16), ints(0), ints(3),
    np.array([1, 2, 3, 4], I32), None, 4, 2.5,
)  # fmt: skip
WIDE = np.zeros((0, kernels.MAX_DIM_I8 + 1), np.int8)
CHAINS = {
    "rows": one(3, 4), "query": one(4), "first": ints(0), "next": ints(1, -1, -1),
    "wanted": ints(0, 0)[None], "columns": 1, "offset": 0.0, "scale": 1.0, "limit": 9.0,
}  # fmt: skip
INT8 = {"rows": one(3, 4, dtype=np.int8), "scales": one(3)}

# Of each kernel: arguments that it takes, and changes to them with the words that refuse each.
REFUSED = {
    "scan_topk": (
        {"rows": one(3, 4), "query": one(4), "k": 2},
        [
            ({"rows": np.ones((3, 4))}, "rows must be a 2-d float32 array, not 2-d float64"),
            ({"rows": one(4)}, "rows must be a 2-d float32 array, not 1-d float32"),
            ({"rows": [[1.0]]}, "rows must be a 2-d float32 array, not list"),
            ({"rows": one(4, 3).T}, "rows must be C-contiguous"),
            ({"rows": one(3, 0)}, "rows has shape (3, 0); (3, 1) is needed"),
            ({"query": one(5)}, "query has shape (5,); (4,) is needed"),
            ({"query": one(8)[::2]}, "query must be C-contiguous"),
            ({"query": one(4, dtype=I32)}, "query must be a 1-d float32 array, not 1-d int32"),
            ({"mask": one(2, dtype=BOOL)}, "mask has shape (2,); (3,) is needed"),
            ({"mask": one(3, dtype=np.uint8)}, "mask must be a 1-d bool array, not 1-d uint8"),
            ({"k": 0}, "k is 0; it must be 1 or more"),
            ({"k": -1}, "k is -1; it must be 1 or more"),
            ({"k": 2.0}, "k must be a whole number, not float"),
            ({"k": True}, "k must be a whole number, not bool"),
            ({"scales": one(3)}, "rows must be a 2-d int8 array, not 2-d float32"),
            ({"rows": INT8["rows"]}, "rows must be a 2-d float32 array, not 2-d int8"),
            (INT8 | {"rows": WIDE, "scales": one(0)}, "query has shape (4,); (131072,) is needed"),
            (INT8 | {"scales": one(2)}, "scales has shape (2,); (3,) is needed"),
            (INT8 | {"scales": np.ones(3)}, "scales must be a 1-d float32 array, not 1-d float64"),
            (INT8 | {"query": one(5)}, "query has shape (5,); (4,) is needed"),
            (INT8 | {"mask": one(2, dtype=BOOL)}, "mask has shape (2,); (3,) is needed"),
            (INT8 | {"k": 0}, "k is 0; it must be 1 or more"),
            (INT8 | {"survivors": 1}, "survivors is 1; it must be 2 or more"),
            (INT8 | {"survivors": 2.5}, "survivors must be a whole number, not float"),
        ],
    ),
    "dots": (
        {"rows": one(3, 4), "positions": ints(0, 2), "queries": one(2, 4)},
        [
            ({"positions": [0]}, "positions must be a 1-d int64 array, not list"),
            ({"positions": np.array([0], I32)}, "positions must be a 1-d int64 array, not 1-d"),
            ({"positions": ints(0, 3)}, "positions are 0 to 3; allowed are 0 to 2"),
            ({"positions": ints(-1, 2)}, "positions are -1 to 2; allowed are 0 to 2"),
            ({"queries": one(4)}, "queries must be a 2-d float32 array"),
            ({"queries": one(2, 5)}, "queries has shape (2, 5); (2, 4) is needed"),
            ({"queries": one(0, 4)}, "queries has shape (0, 4); (1, 4) is needed"),
            ({"queries": one(2, 8)[:, ::2]}, "queries must be C-contiguous"),
            ({"rows": np.ones((3, 4))}, "rows must be a 2-d float32 array, not 2-d float64"),
            ({"rows": one(0, 4)}, "positions are 0 to 2; none is allowed"),
        ],
    ),
    "quantize_i8": (
        {"rows": one(2, 4)},
        [
            ({"rows": WIDE.astype(F32)}, "rows have 131072 columns; at most 131071 fit in int8"),
            ({"rows": INT8["rows"]}, "rows must be a 2-d float32 array, not 2-d int8"),
        ],
    ),
    "metric_query": (
        {"query": one(4), "mean": one(4), "inverse_diagonal": one(4), "directions": one(2, 4)},
        [
            ({"mean": one(5)}, "mean has shape (5,); (4,) is needed"),
            ({"inverse_diagonal": one(3)}, "inverse_diagonal has shape (3,); (4,) is needed"),
            ({"directions": one(1, 3)}, "directions has shape (1, 3); (1, 4) is needed"),
            ({"directions": np.ones((1, 4))}, "directions must be a 2-d float32 array, not 2-d fl"),
            ({"directions": one(4, 2).T}, "directions must be C-contiguous"),
        ],
    ),
    "rank": (
        {"features": one(3, 2), "weights": one(2), "bias": 1.0, "k": 2},
        [
            ({"features": one(3)}, "features must be a 2-d float32 array, not 1-d"),
            ({"features": one(3, 0)}, "features has shape (3, 0); (3, 1) is needed"),
            ({"weights": one(3)}, "weights has shape (3,); (2,) is needed"),
            ({"weights": np.ones(2)}, "weights must be a 1-d float32 array, not 1-d float64"),
            ({"k": 0}, "k is 0; it must be 1 or more"),
        ],
    ),
    "bm25": (  # a change of the query's columns stands for the query
        {"query": QUERY, "k": 2, "scores": one(4)},
        [
            ({"k": 0}, "k is 0; it must be 1 or more"),
            ({"scores": np.broadcast_to(F32(1), 4)}, "scores must be C-contiguous"),
            ({"scores": np.frombuffer(bytes(16), F32)}, "scores is read-only; pass an array that"),
            ({"docs": ints(0, 0, 0)}, "docs must be a 1-d int32 array, not 1-d int64"),
            ({"counts": one(2, dtype=np.uint16)}, "counts has shape (2,); (3,) is needed"),
            ({"counts": one(6, dtype=np.uint16)[::2]}, "counts must be C-contiguous"),
            ({"sizes": ints(1, 1)}, "sizes has shape (2,); (1,) is needed"),
            ({"starts": [0]}, "starts must be a 1-d int64 array, not list"),
            ({"allowed": one(3, dtype=BOOL)}, "allowed has shape (3,); (4,) is needed"),
            ({"lengths": one(5, dtype=I32)}, "scores has shape (4,); (5,) is needed"),
            ({"starts": ints(-1)}, "a term has 3 postings from -1 on; there are 3 in all"),
            ({"starts": ints(1)}, "a term has 3 postings from 1 on; there are 3 in all"),
            ({"sizes": ints(-1)}, "a term has -1 postings from 0 on; there are 3 in all"),
            ({"sizes": ints(2**63 - 1)}, "a term has 9223372036854775807 postings from 0 on"),
            ({"n_allowed": -1}, "n_allowed is -1; it must be 0 to 2147483647"),
            ({"average_length": 0.0}, "average_length is 0.0; it must be 1e-09 to 2147483647"),
            ({"average_length": math.nan}, "average_length is nan; it must be"),
            ({"k1": -0.1}, "k1 is -0.1; it must be 0 to 1000"),
            ({"b": 1.5}, "b is 1.5; it must be 0 to 1"),
            ({"docs": np.array([0, 1, 4], I32)}, "a position lies outside its buffer"),
            ({"docs": np.array([-1, 1, 3], I32)}, "a position lies outside its buffer"),
        ],
    ),
    "similarities": (
        CHAINS,
        [
            ({"rows": np.ones((3, 4))}, "rows must be a 2-d float32 array, not 2-d float64"),
            ({"first": np.array([0], I32)}, "first must be a 1-d int64 array, not 1-d int32"),
            ({"next": ints(0)}, "next has shape (1,); (3,) is needed"),
            ({"wanted": [[0]]}, "wanted must be a 2-d int64 array, not list"),
            ({"columns": 0}, "columns is 0; it must be 1 or more"),
            ({"columns": 3}, "columns is 3; wanted has 2"),
            ({"scale": 0.0}, "scale is 0.0, limit 9.0; they must be above 0, and 0 or more"),
            ({"scale": math.nan}, "scale is nan, limit 9.0"),
            ({"limit": -1.0}, "scale is 1.0, limit -1.0"),
            ({"query": one(5)}, "query has shape (5,); (4,) is needed"),
            (INT8 | {"scales": one(2)}, "scales has shape (2,); (3,) is needed"),
        ],
    ),
    "beside": (
        {
            "proposals": ints(1), "place": ints(0, 1, 2), "before": ints(0, 0, 1),
            "after": ints(0, 2, 0), "speaker": one(3, dtype=I32),
            "allowed": np.array([False, True, True]),
        },
        [
            ({"proposals": one(1, dtype=I32)}, "proposals must be a 1-d int64 array"),
            ({"before": ints(0)}, "before has shape (1,); (3,) is needed"),
            ({"speaker": ints(0, 1, 2)}, "speaker must be a 1-d int32 array, not 1-d int64"),
            ({"allowed": one(3, dtype=BOOL)}, "memory 0 is nobody: allowed[0] must be there, and"),
            ({"proposals": ints(3)}, "proposals are 3 to 3; allowed are 0 to 2"),
            ({"proposals": ints(-1)}, "proposals are -1 to -1; allowed are 0 to 2"),
            ({"place": ints(0, 3, 2)}, "place are 0 to 3; allowed are 0 to 2"),
            ({"before": ints(0, -1, 1)}, "before are -1 to 1; allowed are 0 to 2"),
            ({"after": ints(0, 9, 0)}, "after are 0 to 9; allowed are 0 to 2"),
        ],
    ),
    "word_features": (
        {
            "around": ints(1, 0, 0, 0, 0, 0, 0)[None], "session": ints(0, 1),
            "slot": np.array([-1, 0], I32), "idf": np.ones(1), "scores": one(4),
            "query": QUERY, "timed": one(4, dtype=BOOL), "max_length": 64,
        },
        [
            ({"around": ints(1)}, "around must be a 2-d int64 array, not 1-d int64"),
            ({"around": ints(1, 2)[None]}, "around has shape (1, 2); (1, 7) is needed"),
            ({"session": np.ones(2)}, "session must be a 1-d int64 array, not 1-d float64"),
            ({"slot": ints(-1, 0)}, "slot must be a 1-d int32 array, not 1-d int64"),
            ({"idf": np.ones(2)}, "idf has shape (2,); (1,) is needed"),
            ({"scores": one(2)}, "scores has shape (2,); (4,) is needed"),
            ({"timed": one(2, dtype=BOOL)}, "timed has shape (2,); (4,) is needed"),
            ({"max_length": -1}, "max_length is -1; it must be 0 or more"),
            ({"session": ints(0)}, "candidates are 1 to 1; allowed are 0 to 0"),
            ({"around": ints(-1, *[0] * 6)[None]}, "candidates are -1 to -1; allowed are 0 to 1"),
            ({"slot": np.array([-1, 4], I32)}, "slots are -1 to 4; allowed are -1 to 3"),
            ({"slot": np.array([-1, -2], I32)}, "slots are -2 to -1; allowed are -1 to 3"),
        ],
    ),
    "maxsim": (
        {"rows": one(2, 4, dtype=np.int8), "offsets": ints(0, 2), "query": INT8["rows"][:1]},
        [
            ({"query": one(1, 3, dtype=np.int8)}, "query has shape (1, 3); (1, 4) is needed"),
            ({"query": one(0, 4, dtype=np.int8)}, "query has shape (0, 4); (1, 4) is needed"),
            ({"offsets": ints(0, 2, 1)}, "offsets must ascend"),
            ({"offsets": ints()}, "offsets must ascend"),
            ({"offsets": ints(0, 3)}, "offsets are 0 to 3; allowed are 0 to 2"),
            ({"offsets": ints(-1, 2)}, "offsets are -1 to 2"),
            ({"rows": one(2, 4)}, "rows must be a 2-d int8 array"),
        ],
    ),
}  # fmt: skip
CASES = [
    pytest.param(name, right, change, message, id=f"{name}-{message}")
    for name, (right, changes) in REFUSED.items()
    for change, message in changes
]
COLUMNS = {field.name for field in fields(Bm25Query)}


@pytest.mark.parametrize("backend", ["numpy", pytest.param("native", marks=needs_native)])
@pytest.mark.parametrize(("name", "right", "change", "message"), CASES)
def test_wrong_input_is_refused_and_nothing_is_written(name, right, change, message, backend):
    call = numpy(name) if backend == "numpy" else native(name, 0)
    call(**right)
    given = right | change
    if name == "bm25":
        query = replace(QUERY, **{k: v for k, v in change.items() if k in COLUMNS})
        given = {k: v for k, v in given.items() if k not in COLUMNS} | {"query": query}
        right["scores"][:] = 7
    with pytest.raises(ValueError) as error:
        call(**given)
    assert str(error.value).startswith(message)
    assert name != "bm25" or (right["scores"] == 7).all()


# -- what the native module refuses by itself, before it writes --------------------------------

ROOM = {n: (np.empty(n, np.int64), np.empty(n, F32)) for n in (1, 2)}
Q8, Q = INT8["rows"][0], one(4)
POSTINGS = (QUERY.docs, QUERY.starts, QUERY.sizes)
MEMORIES = tuple(
    REFUSED["beside"][0][n] for n in ("place", "before", "after", "speaker", "allowed")
)
WORDS = REFUSED["word_features"][0]
SAID = (WORDS["around"], WORDS["session"], WORDS["slot"], *POSTINGS, WORDS["idf"], WORDS["scores"],
        QUERY.lengths, None, 9)  # fmt: skip


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
    assert out[0, 0] == WORDS["scores"][0]


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
