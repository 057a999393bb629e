"""bench.updates: what is counted as found, and as wrongly taken for over."""

import json

import pytest

from bench import updates

PAIRS = """\
: User works at Shell.
NONE User works at Shell.
ADD User's brother has sold a boat.
DELETE User no longer works at Shell.
"""


def test_endings_found_and_others_ended_are_counted_apart():
    wanted = ["DELETE", "DELETE", "ADD", "NONE", "UPDATE"]
    found = updates.figures(wanted, ["DELETE", "ADD", "DELETE", "NONE", "NONE"])
    assert (found["endings"], found["endings_found"]) == (2, 1)
    assert (found["others"], found["others_ended"]) == (3, 1)
    assert found["right_NONE"] == "1 of 1" and found["macro"] == pytest.approx(1.5 / 4)


@pytest.mark.models
def test_without_a_set_the_encoder_compares(tmp_path, capsys):
    file, out = tmp_path / "pairs.txt", tmp_path / "out.json"
    file.write_text(PAIRS)
    updates.main([str(file), "--experts", "none", "--json", str(out)])
    made = json.loads(out.read_text())
    assert made["summary"]["by"] == "encoder"
    (row,) = made["rows"]
    assert row["file"] == "pairs.txt" and row["right_NONE"] == "1 of 1"
    assert row["endings_found"] == 1 and row["others_ended"] == 0
