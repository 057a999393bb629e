"""A cache file is read when it is exactly what was written, and else as if it were not there."""

from pathlib import Path

import numpy as np
import pytest

from edgemem import cachefile


def write(path, data, **stamp):
    def fill(name):
        Path(name).write_bytes(data)

    temporary, size = cachefile.write_temporary(path, fill, len(data))
    cachefile.publish(temporary, path, {**size, **stamp})


def two(path):
    """Each of the two files: what is in it, and what is in another store's."""
    rng = np.random.default_rng(1)
    files = path, cachefile.stamp_path(path)
    write(path, rng.bytes(3000), model_id="other", generation=2)
    others = [file.read_bytes() for file in files]
    write(path, rng.bytes(3000), model_id="mine", generation=1)
    return [(file, file.read_bytes(), other) for file, other in zip(files, others, strict=True)]


def damaged(data, other, rng):
    """The same bytes with something wrong: flipped, cut, swapped, repeated, another's."""
    changed = bytearray(data)
    way = rng.integers(7)
    at = int(rng.integers(len(changed)))
    if way == 0:
        changed[at] ^= 1 << int(rng.integers(8))
    elif way == 1:
        del changed[at:]
    elif way == 2:
        to = int(rng.integers(len(changed)))
        if changed[at] == changed[to]:
            changed[at] ^= 0xFF
        changed[at], changed[to] = changed[to], changed[at]
    elif way == 3:
        changed[at : at + 8] = b"\xff" * 8
    elif way == 4:
        changed += changed[at:] or b"\0"
    elif way == 5:
        changed[at:] = bytes(len(changed) - at)
    else:
        changed[at:] = other[at:]
    return bytes(changed)


def test_no_damage_is_read(tmp_path):
    rng, refused = np.random.default_rng(0), 0
    files = two(tmp_path / "cache")
    for round_ in range(200):
        file, good, other = files[round_ % 2]
        bad = damaged(good, other, rng)
        if bad != good:
            file.write_bytes(bad)
            assert cachefile.read_stamp(tmp_path / "cache") is None
            refused += 1
            file.write_bytes(good)
    assert refused > 150
    assert (cachefile.read_stamp(tmp_path / "cache") or {})["model_id"] == "mine"


def test_data_and_stamp_that_do_not_belong_together_are_not_read(tmp_path):
    path = tmp_path / "cache"
    (data, _, other), (stamp, _, other_stamp) = two(path)
    data.write_bytes(other)
    assert cachefile.read_stamp(path) is None
    stamp.write_bytes(other_stamp)
    assert (cachefile.read_stamp(path) or {})["model_id"] == "other"  # for its owner to refuse


@pytest.mark.parametrize(
    "text", [b"", b"[]", b"null", b"{}", b"[" * 9000, b'{"check": 1}', b"\xff"]
)
def test_a_stamp_that_is_no_stamp_is_refused(tmp_path, text):
    path = tmp_path / "cache"
    write(path, b"data")
    cachefile.stamp_path(path).write_bytes(text)
    assert cachefile.read_stamp(path) is None


def test_discarding_removes_everything_and_nothing_else(tmp_path):
    path = tmp_path / "my[db]*.hnsw"
    write(path, b"data")
    (tmp_path / "my[db]*.hnsw.abc.tmp").write_text("left by a writer that died")
    (tmp_path / "my[db]*.hnsw.abc.tmp.json").write_text("so was this")
    (tmp_path / "mydb.hnsw").write_text("another's")
    cachefile.discard(path)
    cachefile.discard(path)
    assert [file.name for file in tmp_path.iterdir()] == ["mydb.hnsw"]
