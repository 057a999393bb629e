"""Old memories and new facts written for training, and the examples made of them."""

from collections import Counter
from pathlib import Path

import pytest
from clikit import run_corpus

from corpus.annotated import pair_examples
from corpus.readers import is_pairs
from corpus.readers import read_pairs as read
from edgemem.errors import InputError
from edgemem.stages.update import expert_prompt, expert_target
from edgemem.training import examples

FEW = """
: User sings in a choir.
DELETE User left the choir.
ADD User's aunt sings in a choir.

: Mara has a cat.
NONE Mara has a cat.
"""
OURS = sorted((Path(__file__).parents[1] / "models" / "pairs").glob("*.txt"))


@pytest.fixture
def path(tmp_path):
    file = tmp_path / "few.txt"
    file.write_text(FEW)
    return file


def test_each_fact_is_compared_with_the_memory_above(path):
    found = list(pair_examples(read(path), "few"))
    assert [(e.stage, e.kind, e.group) for e in found] == [
        ("update", "DELETE", "few-1"),
        ("update", "ADD", "few-1"),
        ("update", "NONE", "few-2"),
    ]
    assert found[0].prompt == expert_prompt("User left the choir.", "User sings in a choir.")
    assert found[0].target == expert_target("DELETE")


@pytest.mark.parametrize("line", ["KEEP User sings.", "DELETE", ":", "User sings."])
def test_a_line_of_another_form_is_named(path, line):
    path.write_text(f"{FEW}{line}\n")
    with pytest.raises(InputError, match=r"line 8: .* is no memory"):
        read(path)


def test_a_fact_without_a_memory_is_named(path):
    path.write_text("ADD User sings.\n")
    assert not is_pairs(path)
    with pytest.raises(InputError, match="line 1"):
        read(path)


def test_the_command_takes_pairs_beside_conversations(path):
    talk, out = path.with_name("talk.txt"), path.with_name("out.jsonl")
    talk.write_text("# User, Assistant\n@ 2024-05-01 10:00\nUser: I sing.\n= User sings.\n")
    run_corpus("data", str(path), str(talk), "--out", str(out))
    assert Counter(e.stage for e in examples.read([out])) == {"update": 3, "extraction": 1}
    run_corpus("data", str(path), "--stage", "extraction", "--out", str(out))
    assert examples.read([out]) == []


@pytest.mark.parametrize("file", OURS, ids=lambda file: file.stem)
def test_our_pairs_are_whole(file):
    found = read(file)
    assert is_pairs(file) and len(set(found)) == len(found) > 200
    if file.stem in ("written", "held-out"):
        share = {event: n / len(found) for event, n in Counter(s.event for s in found).items()}
        assert set(share) == {"ADD", "UPDATE", "DELETE", "NONE"}
        assert min(share.values()) > 0.1 and share["DELETE"] > 0.15


def test_no_memory_held_out_is_among_those_trained_on():
    held, others = (
        {
            line
            for f in OURS
            if f.stem.startswith("held-out") is out
            for line in f.read_text().split("\n")
        }
        for out in (True, False)
    )
    assert held and not (held & others) - {""}
