"""bench.compression: its contexts, its methods' budgets, and its figures."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from memorykit import BagOfWords

from bench import contexts
from bench.compression import WEIGHTS, _fit, _items, _rows
from bench.compressors import KINDS, METHODS, Job
from bench.contexts import CHARACTERS, cases
from bench.reading import Kept, score
from corpus.readers import LocomoFile
from edgemem.compression.compress import Scores, estimated_tokens

SAID = [
    "I moved from Ghent to Antwerp because of the new job. It rained all day, but we were happy.",
    "Green tea is what I drink now. Coffee keeps me awake until 3 o'clock.",
    "My nephew Jonas plays the trumpet in a school band. The hall was full on 2 May 2024.",
    "I finished the blue scarf, it took three weeks of slow and careful work in the evenings.",
]


def conversation():
    messages = [
        {
            "role": "user",
            "name": "Ana" if i % 2 else "Bo",
            "content": SAID[i % 4],
            "timestamp": f"2024-05-{1 + i // 6:02d}T10:00:00.000+00:00",
            "metadata": {"session": i // 6, "dia_id": f"D{i // 6}:{i}"},
        }
        for i in range(24)
    ]
    asked = {"question": "What does Jonas play?", "answer": "the trumpet", "category": 4}
    qa = [{**asked, "evidence": ["D0:2"]}, {**asked, "evidence": ["D1:10", "D2:14"]}]
    return LocomoFile("invented", messages, qa)


def varied(text):
    offsets = estimated_tokens(text)
    return Scores(offsets, 1 + np.arange(len(offsets), dtype=np.float32) % 7, "made up")


@pytest.fixture(scope="module")
def drawn():
    return cases([conversation()], 2, 0)


def job_of(case, rate=1.0):
    tokens, scores = estimated_tokens("\n".join(case.lines)), varied("\n".join(case.lines))
    return Job(
        case=case,
        budget=int(rate * len(tokens)),
        tokens=tokens,
        tokenizer=estimated_tokens,
        embedder=BagOfWords(),
        scores=dict.fromkeys((*KINDS, "information"), scores),
        weights=dict.fromkeys(KINDS, 0.1),
    )


def test_gold_is_the_evidence_among_others_in_order(drawn):
    first, second = drawn
    for case in drawn:
        assert list(case.turns) == sorted(case.turns)
        said = sum(len(SAID[turn % 4]) for turn in case.turns)
        assert CHARACTERS <= said < CHARACTERS + 100 or len(case.turns) == 24
    told = [
        [line for line, is_told in zip(case.lines, case.evidence, strict=True) if is_told]
        for case in drawn
    ]
    assert sorted(told, key=len) == [
        [f"[1 May 2024] Bo: {SAID[2]}"],
        [f"[2 May 2024] Bo: {SAID[2]}", f"[3 May 2024] Bo: {SAID[2]}"],
    ]
    assert first.id != second.id


def test_more_questions_leave_the_first_ones_as_they_are():
    for seed in range(3):
        (alone,) = cases([conversation()], 1, seed)
        assert cases([conversation()], 2, seed)[0] == alone


def test_what_models_say_is_kept_of_one_context_and_not_of_a_question(drawn, tmp_path):
    asked: list[str] = []
    engine = SimpleNamespace(
        path=tmp_path / "model.gguf",
        token_offsets=estimated_tokens,
        text_log_probs=lambda text: asked.append(text) or -np.ones(len(estimated_tokens(text))),
    )
    kept, case = Kept(tmp_path / "parts"), drawn[0]
    other = replace(case, turns=case.turns[1:], evidence=case.evidence[1:])
    for of in (case, other, case):
        found = score(kept, engine, of, "information", "")
        assert len(found.values) == len(estimated_tokens("\n".join(of.lines)))
    assert len(asked) == 2


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("rate", [0.5, 0.33])
def test_methods_keep_the_budget(drawn, method, rate):
    job = job_of(drawn[0], rate)
    text = METHODS[method](job)
    assert 0.8 < len(estimated_tokens(text)) / job.budget <= 1
    if method.startswith("question") or method == "governor":
        assert "trumpet" in text


def test_the_weight_of_a_score_is_fitted_without_the_conversation_it_is_for(
    drawn,
):
    """The scores of one conversation point at its answers, those of the other one at nothing."""
    jobs = []
    for name in ("a", "b"):
        case = replace(drawn[0], file=replace(drawn[0].file, sample_id=name))
        job = job_of(case)
        worth = np.array(["trumpet" in job.text[a - 60 : b + 60] for a, b in job.tokens.tolist()])
        right = Scores(job.tokens, (1 + 99 * worth).astype(np.float32), "made up")
        jobs.append(replace(job, scores={"draft": right if name == "a" else varied("")}))
    found = _fit(jobs, "draft", [10])
    assert found["a"] == 0.0 and found["b"] in WEIGHTS


def test_what_is_measured_of_each_method_and_kept_for_the_next_run(
    random_llama, tmp_path, monkeypatch
):
    monkeypatch.setattr(contexts, "CHARACTERS", 600)
    engine, drawn = random_llama, cases([conversation()], 2, 0)
    parts = tmp_path / "out.parts"
    options = SimpleNamespace(methods=["truncation", "question"], budgets=[50], read=1)
    read = engine.token_offsets
    jobs = [replace(job_of(c), tokens=read("\n".join(c.lines)), tokenizer=read) for c in drawn]
    items = _items(jobs, options, Kept(parts), engine)
    asked = ["none 0", "full 100", "truncation 50", "question 50"]
    assert [" ".join(key) for key in items] == asked
    for key in items:
        first, second = (items[key][case.id]["log_p"] for case in drawn)
        assert first < 0 and np.isnan(second)
    said = parts.read_text(encoding="utf-8")
    assert said.count("log_p") == 4
    _items(jobs, options, Kept(parts), engine)
    assert parts.read_text(encoding="utf-8") == said


def test_a_run_that_was_stopped_in_a_line_goes_on_after_the_last_whole_one(tmp_path):
    parts = tmp_path / "out.json.parts"
    assert Kept(parts)("draft", "model", "case", make=lambda: "Oslo") == "Oslo"
    line = parts.read_text(encoding="utf-8")
    parts.write_text(line + line[:20], encoding="utf-8")
    assert Kept(parts)("draft", "model", "case", make=lambda: "never") == "Oslo"
    assert parts.read_text(encoding="utf-8") == line


def test_the_gap_is_a_ratio_of_sums_and_differences_are_paired():
    read = {"answer_words": None, "entities": 0.5, "tokens": 50, "exceeds": False, "ms": 2.0}
    items: dict[tuple[str, str], dict[str, dict[str, object]]] = {}
    for i in range(40):
        for key, log_p in (
            (("none", "0"), -10.0 - i),
            (("full", "100"), -6.0 - i),
            (("question", "50"), -7.0 - i + (i % 2)),
            (("truncation", "50"), -9.0 - i + (i % 2)),
        ):
            items.setdefault(key, {})[str(i)] = {**read, "log_p": log_p}
        items["truncation", "50"][str(i)]["exceeds"] = True
    for i in range(4):  # only some answers have words that the context has
        items["question", "50"][str(i)]["answer_words"] = 1.0
        items["truncation", "50"][str(i)]["answer_words"] = i % 2
    rows = {row["method"]: row for row in _rows(items, "question")}
    ours, plain = rows["question"], rows["truncation"]
    assert ours["gap_kept"] == 0.875 and plain["gap_kept"] == 0.375
    assert ours["gap_kept_ci"][0] < 0.875 < ours["gap_kept_ci"][1]
    assert plain["default_minus"] == 0.5 and plain["default_minus_ci"] == [0.5, 0.5]
    assert ours["default_minus_ci"] == [0.0, 0.0] == ours["default_words_minus_ci"]
    assert (ours["answer_words_kept"], plain["answer_words_kept"]) == (1.0, 0.5)
    assert plain["default_words_minus"] == 0.5
    low, high = plain["default_words_minus_ci"]
    assert 0 <= low < 0.5 < high <= 1
    assert rows["full"]["answer_words_kept"] is rows["full"]["default_minus"] is None
    assert (ours["exceeds"], plain["exceeds"], plain["n"]) == (0, 40, 40)
