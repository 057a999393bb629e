"""The smaller benches: what counts, of invented files."""

import json
from dataclasses import replace

import numpy as np
import pytest
from fake_engine import FakeEngine
from locomokit import turn, write_locomo
from memorykit import BagOfWords, quick

from bench import align, intents, longmemeval, mem_gallery, turns, updates
from bench.scenarios import read_all
from corpus.annotated import Labelled
from corpus.readers import locomo_file
from edgemem.config import load_settings
from edgemem.errors import ModelNotFound
from edgemem.memory import Memory
from edgemem.pipeline import upkeep
from edgemem.retrieval.lexical import search_text
from edgemem.stages.intent import Intent

CAT = "I adopted a grey cat called Biscuit."
VASE = "Biscuit broke the blue vase on Monday."


def said(content, **more):
    return {"role": "user", "content": content, **more}


@pytest.fixture
def asked(tmp_path):
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
def gallery(tmp_path):
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

    def opened(*_a, **_k):
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
def test_a_contradiction_is_asked_for_as_a_statement(said, answer):
    asked = "Please determine whether this conflicts with the dialogue memory:\n I fly a plane."
    engine = FakeEngine(pieces=(said,))
    with quick(engine=engine) as memory:
        memory.add("I fly a red kite, not a plane.", user_id="ana", infer=False)
        question = mem_gallery.Question("ana", "CD", asked, "", "Yes.", frozenset(), False)
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


# -- bench.turns -----------------------------------------------------------------------------


def test_each_turn_but_the_first_is_compared_with_its_own_prompt_computed_anew():
    engine = FakeEngine(pieces=("Yes.",))
    engine.n_params, engine.n_ctx = 1_500_000_000, 100_000
    scenario = next(s for s in read_all() if not s.frozen)
    settings = replace(load_settings(), experts="none")  # nobody beside the model refuses
    with quick(engine=engine, settings=settings) as memory:
        rows = turns.turns(engine, memory, scenario)
    assert [row["turn"] for row in rows] == list(range(2, turns.TURNS + 1))
    assert all(row["ttft_s"] == row["cold_ttft_s"] == 0.01 for row in rows)
    assert engine.prompts == [engine.prompts[-1]]  # dropped each time, and asked once more


# -- bench.updates ---------------------------------------------------------------------------


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


# -- bench.align -----------------------------------------------------------------------------


DIM = 16
WORDS = "oslo cat violin tea harbour bakery sister train garden guitar soup winter".split()


def a_lot(count):
    pairs = np.random.default_rng(1).choice(WORDS, (count, 3, 2))
    return [" ".join(map("".join, some)) for some in pairs]


def test_rows_are_what_their_names_say(tmp_path, monkeypatch):
    """The two models differ by a rotation: mapped vectors find as much as native ones."""
    monkeypatch.setattr(upkeep, "PAIRS", 40)
    file = locomo_file(write_locomo(tmp_path))
    for number, text in enumerate(a_lot(80), 10):
        message = file.messages[0]
        metadata = {**message["metadata"], **turn(number, "Nia", text)}
        file.messages.append({**message, "content": text, "metadata": metadata})
        qa = {"question": text, "evidence": [f"D1:{number}"], "category": 4}
        file.qa.append(qa)
    del file.qa[:-80]
    pairs = a_lot(60)
    texts = [search_text(m["content"], speaker=m["name"]) for m in file.messages]
    texts = list(dict.fromkeys([*texts, *(q["question"] for q in file.qa), *pairs]))
    new = align.kept(BagOfWords(DIM, "bag@1"), texts, tmp_path / "kept")
    assert align.kept(BagOfWords(DIM, "bag@1"), texts, tmp_path / "kept").dim == DIM
    old = new.turned()
    assert old.model_id != new.model_id
    rows = {row["way"]: row for row in align.compare(old, new, [file], pairs)}
    assert rows["aligned"]["embedded"] == 40 and rows["aligned"]["mapped"] == 45
    for way in ("aligned", "aligned half", "by pairs"):
        assert rows[way]["cosine_hit_at_10"] == rows["native"]["cosine_hit_at_10"] > 0.9, way
    assert rows["unaligned"]["cosine_hit_at_10"] < 0.5


def test_what_is_kept_is_not_embedded_again(tmp_path):
    first, again = BagOfWords(DIM), BagOfWords(DIM)
    held = align.kept(first, ["one", "two"], tmp_path)
    same = align.kept(again, ["two"], tmp_path)
    assert np.array_equal(same.embed_query("two"), held.embed_query("two"))
    again.embed_query = None
    align.kept(again, ["one"], tmp_path)
    with pytest.raises(TypeError):
        align.kept(again, ["three"], tmp_path)


def test_pairs_are_never_of_held_out_conversations(tmp_path):
    talk = "# Ana (she), Bo (he)\n@ 2024-03-09 18:20\nAna: {} one\n? Which? | one\nBo: {} two\n"
    (tmp_path / "written.txt").write_text(talk.format("shown", "shown"))
    (tmp_path / "held-out.txt").write_text(talk.format("hidden", "hidden"))
    assert sorted(align.messages(tmp_path, 9)) == ["Ana: shown one", "Bo: shown two"]
    assert len(align.messages(tmp_path, 1)) == 1
