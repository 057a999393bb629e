"""bench.graph: what counts as a relation that was read rightly, or is asked for."""

import json

import pytest
from memorykit import BagOfWords
from storekit import encoder

from bench import graph

LABELLED = """\
# a remark

Ana's brother Bartek moved to Bergen.
> Ana:person | sibling_of | Bartek:person
> Bartek:person | lives_in | Bergen:place
> Ana:person | likes | Bergen:place

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
        graph.read_triples(file)


LIVES = """\
# a remark
## Ada
2024-01-10 | User lives in Oslo.
2024-05-10 | User moved to Rome.
2024-06-01 | User likes tea.
? Where did I live in March? | Oslo
? Where do I live? | Rome / Roma
? What did I drive in March? | a van
"""


@pytest.mark.models
def test_questions_about_a_day_are_answered_from_what_held_then(tmp_path, embedder):
    file = tmp_path / "lives.txt"
    file.write_text(LIVES)
    row = graph.score_lives(file, embedder)
    assert (row["questions"], row["right"], row["silent"]) == (3, 2, 0)
    searched = graph.found_facts(graph.read_lives(file), BagOfWords())
    assert searched["fact_at_3"] == pytest.approx(2 / 3, abs=1e-3)
    assert searched["fact_at"] <= searched["fact_at_3"]


WHOSE = """\
## Ada
2024-01-10 | User lives in Oslo.
2024-01-12 | User's mother lives in Lund.
2024-02-01 | User's dentist is Dr Amin.
2024-02-20 | User's landlord is Mr Kay.
2024-06-01 | User's dentist is now Dr Roy.
? Where did my mother live in March? | Lund
? Who was my landlord in March? | Mr Kay
? Who was my dentist in March? | Dr Amin
? Who is my dentist now? | Dr Roy
"""


@pytest.mark.models
def test_a_question_names_whose_relation_it_asks_for_and_which_role(tmp_path, embedder):
    (life,) = graph.read_lives(_written(tmp_path, WHOSE))
    with graph.remembered(life, embedder) as memory:
        for question, answers, _ in life.questions:
            assert graph.answered(memory, question, "2024-06-04T12:00:00.000+00:00") == answers


def _written(folder, text):
    (folder / "lives.txt").write_text(text)
    return folder / "lives.txt"


def test_what_it_costs_is_measured_on_a_store_of_that_size(tmp_path):
    out = tmp_path / "out.json"
    graph.main(["--edges", "1000", "--memories", "20", "--json", str(out)])
    hop, beside = json.loads(out.read_text())["rows"]
    assert 900 < hop["relations"] <= 1000 and hop["p50_ms"] > 0 and hop["told_of_a_name"] > 1
    assert beside["memories"] == 20 and beside["p95_ms"] >= beside["p50_ms"] > 0


@pytest.mark.models
def test_the_facts_that_evidence_has_are_counted_beside_a_searchs(tmp_path):
    file, out = tmp_path / "lives.txt", tmp_path / "out.json"
    text = LIVES.split("?")[0] + "? Where do I live, and what do I like? | Rome | needs: 2, 3\n"
    file.write_text(text)
    graph.main(["--evidence", str(file), "--json", str(out)])
    (row,) = json.loads(out.read_text())["rows"]
    assert row["facts_needed"] == 2 and row["of_search"] == 1
    assert 0 <= row["of_evidence"] <= 1 and row["tokens_to_searchs"] > 0


ASKED = {
    "Where did Ana live in March 2024?": {"lives_in"},
    "who am i married to": {"married_to"},
    "What breed is my sister's dog?": {"sibling_of", "has_pet", "is_a"},
    "What should I not serve Tom because of an allergy?": {"allergic_to"},
}


@pytest.mark.parametrize("question", ASKED)
def test_what_a_question_asks_for_is_likeliest(question):
    chances = graph.asked(question, encoder())
    best = sorted(chances, key=lambda label: -chances[label])[: len(ASKED[question])]
    assert set(best) == ASKED[question]


def test_what_asks_for_no_relation_has_none_that_is_likely():
    for question in ("How do I boil an egg?", "Why is the sky blue?", "Tell me a joke."):
        assert max(graph.asked(question, encoder()).values()) < 0.5


def test_without_an_encoder_and_of_a_long_text_nothing_is_known():
    assert graph.asked("Where do I live?", None) == {}
    assert graph.asked("where do I live " * 100, encoder()) == {}
