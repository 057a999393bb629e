"""bench.longmemeval, bench.mem_gallery and bench.intents: what counts, of invented files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from fake_engine import FakeEngine
from memorykit import quick

from bench import intents, longmemeval, mem_gallery
from corpus.annotated import Labelled
from edgemem.errors import ModelNotFound
from edgemem.memory import Memory
from edgemem.stages.intent import Intent

CAT = "I adopted a grey cat called Biscuit."
VASE = "Biscuit broke the blue vase on Monday."


def said(content: str, **more: Any) -> dict[str, Any]:
    return {"role": "user", "content": content, **more}


@pytest.fixture
def asked(tmp_path: Path) -> longmemeval.Asked:
    file = tmp_path / "q.json"
    data = {
        "question_id": "q1",
        "question_type": "multi-session",
        "question": "What did my grey cat Biscuit break?",
        "question_date": "2023/05/31 (Wed) 07:54",
        "answer": "the blue vase",
        "answer_session_ids": ["a", "b"],
        "haystack_session_ids": ["x", "a", "y", "b"],
        "haystack_dates": [f"2023/05/0{day} (Mon) 08:30" for day in range(1, 5)],
        "haystack_sessions": [
            [said("The train was late.")],
            [said("Hello."), said(CAT, has_answer=True)],
            [said("I bake bread."), said("   ")],
            [said(VASE, has_answer=True)],
        ],
    }
    file.write_text(json.dumps(data), encoding="utf-8")
    return longmemeval.read(file)


def test_a_questions_evidence_is_its_sessions_and_their_messages(asked):
    assert asked.now == "2023-05-31T07:54:00+00:00" and asked.answerable
    assert asked.evidence == {1, 3} and asked.messages == {(1, 1), (3, 0)}


def test_strict_counts_a_question_only_when_all_its_sessions_are_found(asked, monkeypatch):
    with quick() as memory:
        longmemeval.store(memory, asked)
        assert memory.store.counts()["turns"] == 5  # what is empty is no message
        row = longmemeval.search_row(memory, asked)
        assert row["search_all_at_5"] == row["search_turns_at_10"] == 1
        (cat,) = (item.id for item in memory.get_all() if item.memory == CAT)
        monkeypatch.setattr(longmemeval, "ranked", lambda *_: {"search": [cat]})
        row = longmemeval.search_row(memory, asked)
    assert (row["search_all_at_5"], row["search_any_at_5"]) == (0, 1)
    assert (row["search_turns_at_10"], row["search_turn_hit_at_10"]) == (0, 1)


@pytest.fixture
def gallery(tmp_path: Path) -> Path:
    """A folder with a scenario of Mem-Gallery's shape, of two rounds."""
    kite = {"image_id": ["D1:IMG_001"], "image_caption": ["a red kite"]}
    rounds = [
        {"round": "D1:1", "user": "Tell me of bread.", "assistant": "Dough rises for two hours."},
        {"round": "D1:2", "user": "And look at this.", "assistant": "Oh!", **kite},
    ]
    asks = [
        ("VS", "Which photo shows this?", "D1:IMG_001", ["D1:2"], "red kite"),
        ("FR", "For how long does dough rise?", "Two hours.", ["D1:1"], None),
        ("AR", "Did it rain in Spain?", "Not mentioned.", [], None),
        ("CD", "Does dough rise for two hours?", "No.", ["D1:1"], None),
        ("CD", "Is bread never made of dough?", "Yes.", ["D1:1"], None),
    ]
    keys = ("point", "question", "answer", "clue", "image_caption")
    data = {
        "multi_session_dialogues": [
            {"session_id": "D1", "date": "2024-06-17", "dialogues": rounds}
        ],
        "human-annotated QAs": [dict(zip(keys, ask, strict=True)) for ask in asks],
    }
    (tmp_path / "ana.json").write_text(json.dumps(data), encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize("captions", ["paper", "none"])
def test_a_round_is_found_by_the_caption_of_its_image_and_of_the_questions(
    gallery, tmp_path, monkeypatch, captions
):
    kites = []

    def opened(*_a: Any, **_k: Any) -> Any:
        memory = quick()
        monkeypatch.setattr(
            memory, "close", lambda: kites.append("kite" in str(memory.get_all().to_dict()))
        )
        return memory

    monkeypatch.setattr(mem_gallery, "Memory", opened)
    out = tmp_path / "out" / "o.json"
    mem_gallery.main(["--data", str(gallery), "--json", str(out), "--captions", captions])
    assert kites == [captions == "paper"]
    report = json.loads(out.read_text())
    assert report["summary"]["left_out"] == 1 and report["summary"]["n"] == 4
    rows = {row["task"]: row for row in report["rows"] if "task" in row}
    if captions == "paper":
        assert [rows["VS"][f"{s}_recall_at_1"] for s in ("search", "cosine", "bm25")] == [1, 1, 1]
    assert rows["FR"]["search_precision_at_20"] == pytest.approx(0.5)
    assert rows["FR"]["search_hit_at_5"] == 1


def test_an_unknown_model_is_refused_before_anything_is_stored(gallery, tmp_path, monkeypatch):
    monkeypatch.setattr(Memory, "add", None)
    with pytest.raises(ModelNotFound, match="no-such-model"):
        mem_gallery.main(["--data", str(gallery), "--json", str(tmp_path / "o"),
                          "--model", "no-such-model"])  # fmt: skip


def test_answers_are_scored_as_the_paper_does_and_refusals_on_both_sides(
    gallery, tmp_path, monkeypatch
):
    engine = FakeEngine(pieces=("Two hours, ", "I think."))
    monkeypatch.setattr(mem_gallery, "Memory", lambda *_a, **_k: quick(engine=engine))
    out = tmp_path / "out" / "o.json"
    mem_gallery.main(["--data", str(gallery), "--json", str(out), "--model", "x",
                      "--systems", "ours", "fifo", "full"])  # fmt: skip
    found = json.loads(out.read_text())
    answers = {(r["system"], r["question"][:9]): r for r in found["rows"] if "answer" in r}
    assert answers["ours", "Which pho"]["answer"] == "D1:IMG_001"
    dough = answers["full", "For how l"]
    assert (dough["f1"], dough["bleu_1"], dough["em"]) == (2 * 2 / 6, 0.5, 0)
    assert answers["ours", "Did it ra"]["answer"] == "Not mentioned."  # nothing relevant was found
    assert found["summary"]["fifo_balanced_accuracy"] == 0.5  # it says no to both
    assert found["summary"]["ours_over_refusal"] == 0
    assert found["summary"]["fifo_over_refusal"] == 0.5  # it has no photo to give
    assert 'Assistant said: "Dough rises for two hours."' in str(engine.prompts)


@pytest.mark.parametrize(("said", "answer"), [("no, a kite", "Yes."), ("yes", "No.")])
def test_a_contradiction_is_asked_for_as_a_statement(said: str, answer: str) -> None:
    asked = "Please determine whether this conflicts with the dialogue memory:\n I fly a plane."
    engine = FakeEngine(pieces=(said,))
    with quick(engine=engine) as memory:
        memory.add("I fly a red kite, not a plane.", user_id="ana", infer=False)
        question = mem_gallery.Question("ana", "CD", asked, "Yes.", frozenset(), False)
        row = mem_gallery.answered(memory, question, "ours")
    assert row["answer"] == answer
    assert "True or not: I fly a plane." in str(engine.prompts)
    assert "dialogue memory" not in str(engine.prompts)


def test_photos_nearly_as_probable_as_the_best_are_given():
    assert mem_gallery.nearly_best([]) == 0
    assert mem_gallery.nearly_best([0.9, 0.05, 0.05]) == 1
    assert mem_gallery.nearly_best([0.9, 0.8, 0.8, 0.1]) == 3
    assert mem_gallery.nearly_best([0.05] * 3) == 3


# -- bench.intents ---------------------------------------------------------------------------


def test_a_telling_message_counts_as_answered_or_lost():
    meant = [Labelled(text, "", None, True, "g") for text in ("sold", "fired", "hi")]
    meant.append(Labelled("who am i", "", "recall", False, "g"))
    read = [Intent(None, True), Intent("recall", True), Intent("erase", False), Intent(None, True)]
    row = intents.row("expert", read, meant)
    assert (row["right"], row["n"]) == (1, 4)
    assert row["by_want"] == {"None": [1, 3], "recall": [0, 1]}
    assert (row["answered"], row["lost"]) == ([2, 3], [1, 3])
