"""LoCoMo's annotations as training examples."""

import json
import re

import pytest
from locomokit import write_locomo
from memorykit import quick

from corpus import readers
from corpus.annotated import examples
from corpus.readers import locomo_file
from edgemem.errors import InputError
from edgemem.stages.generation import NOT_KNOWN
from edgemem.training import examples as files
from edgemem.training.examples import Example


@pytest.fixture
def path(tmp_path):
    return write_locomo(tmp_path)


def test_a_pair_has_the_facts_that_cite_its_turns_with_dates_written_out(path):
    pairs = readers.locomo_pairs(path)
    assert [len(pair.messages) for pair in pairs] == [2, 2, 1]
    assert pairs[0].facts == ("Nia went sailing on 7 May 2023.", "Omar bakes bread on Sundays.")
    assert pairs[0].sources == (0, 1)
    assert pairs[1].facts == pairs[2].facts == ()
    assert pairs[1].context == pairs[0].messages


def test_questions_without_evidence_are_left_out_and_adversarial_ones_have_no_answer(path):
    asked = readers.locomo_questions(locomo_file(path))
    assert [(q.text, q.category, q.answer, len(q.evidence)) for q in asked] == [
        ("Who sails?", "single-hop", "Nia", 1),
        ("When?", "temporal", "2023", 2),
        ("Who skis?", "adversarial", None, 1),
    ]


def made(path, seed):
    with quick() as memory:
        return list(examples(memory, readers.read_locomo(path), seed=seed))


@pytest.fixture(scope="module")
def of_seeds(tmp_path_factory):
    """The examples of one conversation by eight seeds."""
    path = write_locomo(tmp_path_factory.mktemp("locomo"))
    return [made(path, seed) for seed in range(8)]


def test_examples_show_an_answerable_question_all_of_its_evidence(of_seeds):
    every = [example for examples in of_seeds for example in examples]
    assert {e.group for e in every} == {"conv-0"}
    for example in every:
        if example.kind in ("single-hop", "temporal"):
            assert "I went sailing on 7 May 2023 with my uncle." in example.prompt
        if example.kind == "temporal":
            assert "Lovely! I bake bread on Sundays." in example.prompt
        if example.kind == "adversarial":
            assert example.target == f" {NOT_KNOWN}"
    assert {(e.stage, e.kind) for e in every} == {
        *(("extraction", kind) for kind in ("facts", "empty")),
        *(("generation", kind) for kind in ("single-hop", "temporal", "adversarial")),
    }


def test_what_is_read_is_of_people_with_invented_names(of_seeds):
    """Of two real names a conversation an expert learned these, not to copy whom it reads of."""
    speakers = set()
    for example in (e for made in of_seeds for e in made if e.stage == "extraction"):
        assert not re.search(r"\b(Nia|Omar)\b", example.prompt + example.target)
        speaker = re.search(r"About (\w+):\n$", example.prompt)[1]
        facts = json.loads(example.target)["facts"]
        assert all(fact.startswith(f"{speaker} ") for fact in facts)
        speakers.add(speaker)
    assert len(speakers) > 4


def test_examples_of_one_seed_are_the_same(path, of_seeds):
    assert made(path, 3) == of_seeds[3]


def test_examples_come_back_from_their_file(tmp_path):
    some = [Example("update", "a\u2028b\n", "c", "g", "ADD"), Example("extraction", "x", "y", "g")]
    file = tmp_path / "data.jsonl"
    assert files.write(file, some) == 2
    assert files.read([file, file]) == some * 2


@pytest.mark.parametrize(
    "line", ["{}", "[]", "no", '{"stage": "sleep", "prompt": "", "target": "", "group": ""}']
)
def test_a_line_that_is_no_example_is_named(tmp_path, line):
    file = tmp_path / "data.jsonl"
    file.write_text(line + "\n")
    with pytest.raises(InputError, match="line 1 is no training example"):
        files.read([file])
