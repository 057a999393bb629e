"""bench.graph: what counts as a relation that was read rightly."""

import json

import pytest

from bench import graph

LABELLED = """\
# a remark

User works at the Blue Heron in Leeds.
> User:person | works_at | Blue Heron:organisation
> Blue Heron:organisation | located_in | Leeds:place
> User:person | likes | Leeds:place

User slept.
> none
"""


def test_relations_are_counted_by_name_and_their_types_apart(tmp_path):
    file, out = tmp_path / "facts.txt", tmp_path / "out.json"
    file.write_text(LABELLED)
    graph.main([str(file), "--json", str(out)])
    (row,) = json.loads(out.read_text())["rows"]
    assert (row["facts"], row["relations"], row["found"], row["right"]) == (2, 3, 2, 2)
    assert row["precision"] == 1 and row["recall"] == pytest.approx(2 / 3, abs=1e-4)
    assert row["f1"] == pytest.approx(0.8) and row["types_right"] == 1
    assert row["labels"]["likes"] == {"right": 0, "missed": 1, "wrong": 0}


def test_a_line_that_is_no_relation_is_named(tmp_path):
    file = tmp_path / "facts.txt"
    file.write_text("User slept.\n> User:person | likes\n")
    with pytest.raises(ValueError, match=r"no relation of 'User slept\.'"):
        graph.read_labelled(file)
