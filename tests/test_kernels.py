"""Which backend answers, and the scan: native and NumPy give the same answers."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgemem import kernels
from edgemem.kernels import reference
from tests.kernelkit import (
    DIMS,
    assert_same,
    every_way,
    native,
    needs_native,
    ranked,
    whole_numbers,
)

ROOT = Path(__file__).resolve().parent.parent


every_scan = every_way("scan_topk", "scan")

COUNTS = [1, 2, 3, 7, 8, 9, 100]


def inputs(seed, n, dim):
    return whole_numbers(seed, n, dim), whole_numbers(seed + 1, dim)


def answer(rows, query, k, mask=None):
    """The definition, slowly."""
    scores = rows.astype(np.float64) @ query.astype(np.float64)
    return ranked(scores, k, None if mask is None else np.flatnonzero(mask))


@every_scan
@pytest.mark.parametrize("dim", DIMS)
def test_every_width_gives_the_defined_answer(scan, dim):
    for n in COUNTS:
        rows, query = inputs(dim * 1000 + n, n, dim)
        for k in (1, 2, n, n + 5):
            assert_same(scan(rows, query, k), answer(rows, query, k))


@every_scan
@pytest.mark.parametrize("dim", DIMS)
def test_fractions_agree_with_double_precision(scan, dim):
    rng = np.random.default_rng(dim)
    rows = rng.standard_normal((200, dim)).astype(np.float32)
    query = rng.standard_normal(dim).astype(np.float32)
    positions, scores = scan(rows, query, 20)
    exact = rows.astype(np.float64) @ query.astype(np.float64)
    np.testing.assert_allclose(scores, exact[positions], rtol=1e-4, atol=1e-4)
    assert np.all(np.diff(scores) <= 0)
    np.testing.assert_allclose(scores, np.sort(exact)[::-1][:20], rtol=1e-4, atol=1e-4)


@every_scan
def test_equal_scores_come_by_position(scan):
    rows = np.ones((50, 8), np.float32)
    rows[30] = 2
    positions, _ = scan(rows, np.ones(8, np.float32), 6)
    assert positions.tolist() == [30, 0, 1, 2, 3, 4]


@every_scan
def test_a_nan_never_wins(scan):
    rows, query = inputs(1, 9, 5)
    query[:] = 1
    rows[[0, 4]] = np.nan
    positions, scores = scan(rows, query, 9)
    assert positions[-2:].tolist() == [0, 4]
    assert np.isneginf(scores[-2:]).all() and np.isfinite(scores[:-2]).all()
    assert not {0, 4} & set(scan(rows, query, 7)[0].tolist())


@every_scan
def test_a_nan_in_the_query_makes_all_equal(scan):
    rows, query = inputs(1, 5, 3)
    query[0] = np.nan
    positions, scores = scan(rows, query, 3)
    assert positions.tolist() == [0, 1, 2] and np.isneginf(scores).all()


@every_scan
def test_infinite_scores_are_ranked(scan):
    rows = np.array([[1.0], [np.inf], [-np.inf], [2.0]], np.float32)
    assert scan(rows, np.ones(1, np.float32), 4)[0].tolist() == [1, 3, 0, 2]


@every_scan
def test_a_mask_leaves_rows_out(scan):
    rows, query = inputs(3, 100, 17)
    for share in (0.0, 0.05, 0.5, 1.0):
        mask = np.random.default_rng(4).random(100) < share
        for k in (1, 10, 200):
            assert_same(scan(rows, query, k, mask), answer(rows, query, k, mask))


@every_scan
def test_no_rows_give_no_answer(scan):
    positions, scores = scan(np.empty((0, 4), np.float32), np.ones(4, np.float32), 3)
    assert positions.shape == scores.shape == (0,)
    assert positions.dtype == np.int64 and scores.dtype == np.float32


@every_scan
def test_read_only_arrays_are_fine(scan):
    rows, query = inputs(5, 10, 8)
    rows.flags.writeable = query.flags.writeable = False
    assert_same(scan(rows, query, 3), answer(rows, query, 3))


@every_scan
@settings(max_examples=150)
@given(data=st.data())
def test_any_input_gives_the_defined_answer(scan, data):
    n = data.draw(st.integers(0, 40))
    dim = data.draw(st.integers(1, 70))
    k = data.draw(st.integers(1, 60))
    rows, query = inputs(data.draw(st.integers(0, 2**32)), n, dim)
    for row in data.draw(st.sets(st.integers(0, n - 1), max_size=5)) if n else ():
        rows[row, data.draw(st.integers(0, dim - 1))] = np.nan
    mask = None
    if data.draw(st.booleans()):
        mask = np.array(data.draw(st.lists(st.booleans(), min_size=n, max_size=n)), np.bool_)
    assert_same(scan(rows, query, k, mask), answer(rows, query, k, mask))


@every_scan
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rows": np.ones((3, 4))}, "rows must be a 2-d float32 array, not 2-d float64"),
        ({"rows": np.ones(4, np.float32)}, "rows must be a 2-d float32 array, not 1-d float32"),
        ({"rows": [[1.0]]}, "rows must be a 2-d float32 array, not list"),
        ({"rows": np.ones((4, 3), np.float32).T}, "rows must be C-contiguous"),
        ({"rows": np.ones((3, 0), np.float32)}, "rows have 0 columns"),
        ({"query": np.ones(5, np.float32)}, "query has 5 numbers, rows have 4"),
        ({"query": np.ones(8, np.float32)[::2]}, "query must be C-contiguous"),
        ({"query": np.ones(4, np.int32)}, "query must be a 1-d float32 array, not 1-d int32"),
        ({"mask": np.ones(2, np.bool_)}, "mask has 2 entries for 3 rows"),
        ({"mask": np.ones(3, np.uint8)}, "mask must be a 1-d bool array, not 1-d uint8"),
        ({"k": 0}, "k is 0; it must be 1 or more"),
        ({"k": -1}, "k is -1; it must be 1 or more"),
        ({"k": 2.0}, "k must be a whole number, not float"),
        ({"k": True}, "k must be a whole number, not bool"),
    ],
)
def test_wrong_input_is_refused(scan, change, message):
    given = {"rows": np.ones((3, 4), np.float32), "query": np.ones(4, np.float32), "k": 2}
    with pytest.raises(ValueError) as error:
        scan(**{**given, **change})
    assert str(error.value).startswith(message)


@every_scan
def test_a_k_beyond_any_row_count_is_fine(scan):
    rows, query = inputs(6, 4, 4)
    assert_same(scan(rows, query, 2**70), answer(rows, query, 4))


@pytest.mark.parametrize("isa", [0, 1])
@pytest.mark.parametrize("scan", [kernels.scan_topk, reference.scan_topk])
def test_threads_share_the_arrays(monkeypatch, scan, isa):
    monkeypatch.setattr(kernels, "isa", isa)
    rows, query = inputs(7, 2000, 64)
    expected = answer(rows, query, 10)
    wrong = []

    def work():
        for _ in range(20):
            positions, _ = scan(rows, query, 10)
            if positions.tolist() != list(expected[0]):
                wrong.append(positions)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@needs_native
def test_an_instruction_set_that_is_not_there_is_refused():
    rows, query = inputs(8, 4, 4)
    with pytest.raises(ValueError, match="instruction set"):
        native("scan_topk", 99)(rows, query, 1)


@needs_native
def test_the_native_module_checks_its_buffers_itself():
    from edgemem import _native

    rows, query = inputs(8, 4, 4)
    small = np.empty(1, np.int64), np.empty(1, np.float32)
    with pytest.raises(ValueError, match="do not fit"):
        _native.scan_topk(rows, query, None, 2, 0, *small)


def python(code, **environment):
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )


SHOW = "from edgemem import kernels; print(kernels.backend, '|', kernels.backend_detail)"


def test_numpy_can_be_asked_for():
    done = python(SHOW, EDGEMEM_BACKEND="numpy")
    assert done.stdout.strip() == "numpy | EDGEMEM_BACKEND=numpy"


def test_an_unknown_backend_is_refused():
    done = python(SHOW, EDGEMEM_BACKEND="cuda")
    assert "EDGEMEM_BACKEND is 'cuda'; allowed are auto, native and numpy" in done.stderr


FAKE = """
import sys, types
fake = types.ModuleType("edgemem._native")
fake.ABI_VERSION = 999
sys.modules["edgemem._native"] = {module}
"""


def test_a_module_with_another_abi_is_not_used():
    done = python(FAKE.format(module="fake") + SHOW, EDGEMEM_BACKEND="auto")
    assert done.stdout.startswith("numpy | the compiled module has ABI 999")


def test_a_missing_module_is_said():
    missing = FAKE.format(module="None")
    done = python(missing + SHOW, EDGEMEM_BACKEND="auto")
    assert done.stdout.startswith("numpy | ") and "_native" in done.stdout
    done = python(missing + SHOW, EDGEMEM_BACKEND="native")
    assert "Reinstall edgemem-runtime with a C++ compiler present" in done.stderr
