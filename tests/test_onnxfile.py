"""An ONNX file with int8 weights is rewritten without a change in what it computes."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from edgemem.runtime import embedder, models
from edgemem.runtime.onnxfile import rewritten

TEXTS = ["Yes.", "She moved to Oslo in May 2023.", "harbour café, 3 days a week; " * 40]


@pytest.fixture(scope="module")
def file() -> Path:
    return models.find(models.DEFAULT_EMBEDDER)


def test_the_vectors_are_those_of_the_file_as_it_is(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = embedder.Embedder.load(n_threads=1).embed(TEXTS)
    monkeypatch.setattr(embedder, "rewritten", lambda file: None)
    assert np.array_equal(small, embedder.Embedder.load(n_threads=1).embed(TEXTS))


def test_the_weights_stay_in_the_file(file: Path) -> None:
    model = rewritten(file)
    assert model is not None and len(model) < file.stat().st_size / 40
    assert file.name.encode() in model


@pytest.mark.parametrize("content", [b"", b"\x3a\x05abc", b"\x07", b"no ONNX at all", bytes(100)])
def test_what_is_no_such_file_is_left_alone(content: bytes, tmp_path: Path) -> None:
    other = tmp_path / "a.onnx"
    other.write_bytes(content)
    with suppress(ValueError, IndexError):  # the loader then says what is wrong with the file
        assert rewritten(other) is None


def test_a_half_file_is_refused(file: Path, tmp_path: Path) -> None:
    half = tmp_path / "half.onnx"
    half.write_bytes(file.read_bytes()[:1_000_000])
    with pytest.raises((ValueError, IndexError)):
        rewritten(half)
