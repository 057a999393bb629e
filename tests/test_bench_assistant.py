"""The bench of the assistant: its scenarios, its scoring, and one small run."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from fake_engine import FakeEngine
from memorykit import BagOfWords

from bench import assistant, report, stores
from bench.scenarios import FOLDER, KINDS, Question, Scenario, is_right, read
from edgemem.config import Settings

FILES = sorted(FOLDER.glob("*.json"))

TALK: dict[str, Any] = {
    "name": "small",
    "frozen": False,
    "user_id": "ana",
    "sessions": [
        {
            "date": "2026-03-02T18:40:00+00:00",
            "messages": [
                {"role": "user", "content": "I live in Oslo."},
                {"role": "assistant", "content": "Nice!"},
                {"role": "user", "content": "My cat is called Momo."},
            ],
        }
    ],
    "now": "2026-06-10T09:00:00+00:00",
    "questions": [
        {"kind": "recall", "ask": "Where do I live?", "must": ["oslo"], "must_not": ["bergen"]},
        {"kind": "follow-up", "before": ["Where do I live?"], "ask": "And my cat?", "must": ["x"]},
    ],
}


def written(folder, **more):
    file = folder / f"{more.get('name', 'small')}.json"
    file.write_text(json.dumps({**TALK, **more}))
    return file


def question(**raw):
    return {"kind": "recall", "ask": "Who?", **raw}


# -- the scenarios ---------------------------------------------------------------------------------


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_scenario_has_questions_of_every_kind(file):
    # Measured before it is asserted: pytest shows what an assertion reads, and half is frozen.
    scenario = read(file)
    named, asked = scenario.name == file.stem, len(scenario.questions)
    kinds = {q.kind for q in scenario.questions}
    said = [message["timestamp"] for session in scenario.sessions for message in session]
    in_turns = all(
        message["role"] == ("user", "assistant")[position % 2]
        for session in scenario.sessions
        for position, message in enumerate(session)
    )
    sessions, now = len(scenario.sessions), scenario.now
    assert named and asked >= 15 and kinds == set(KINDS)
    assert 3 <= sessions <= 5 and in_turns
    assert said == sorted(said) and said[-1] < now


def test_half_of_the_scenarios_are_frozen():
    frozen = {(s := read(file)).name: s.frozen for file in FILES}
    assert len(frozen) == len(FILES) >= 12
    assert 2 * sum(frozen.values()) == len(FILES)


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ({"frozen": "no"}, "small.json is"),
        ({"now": "soon"}, "small.json is"),
        ({"sessions": []}, "small.json is"),
        ({"sessions": [{"date": "2026-03-02", "messages": [{"role": "ana"}]}]}, "session 1 is"),
        ({"questions": [question(must=["a"]), question(must=["("])]}, "question 2 is"),
        ({"questions": [question(must=[{"of": ["a"], "least": 2}])]}, "question 1 is"),
        ({"questions": [question()]}, "question 1 is"),
        ({"questions": [question(kind="riddle", must=["a"])]}, "question 1 is"),
    ],
)
def test_a_malformed_file_is_told_by_its_place_alone(tmp_path, change, place):
    with pytest.raises(ValueError, match=place) as told:
        read(written(tmp_path, **change))
    assert "Oslo" not in str(told.value) and told.value.__cause__ is None


# -- scoring ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "right"),
    [
        ("You have TWO cats and a dog.", True),
        ("You have two cats.", False),
        ("A dog, cats and a fish.", False),  # no number
        ("Two cats, a dog, and no parrot.", False),
        ("", False),
    ],
)
def test_an_answer_has_all_that_it_must_and_nothing_that_it_must_not(tmp_path, answer, right):
    must = [r"\b(?:2|two)\b", {"of": ["cat", "dog", "fish"], "least": 2}]
    file = written(tmp_path, questions=[question(must=must, must_not=["parrot"])])
    assert is_right(answer, read(file).questions[0]) is right


def test_a_typographic_apostrophe_is_one(tmp_path):
    asked = read(written(tmp_path, questions=[question(must=["don't know"])])).questions[0]
    assert is_right("I don’t know that.", asked)


@pytest.mark.parametrize(
    ("right", "of", "low", "high"),
    [
        (0, 10, 0.0, 0.2775),
        (5, 10, 0.2366, 0.7634),
        (10, 10, 0.7225, 1.0),
        (81, 263, 0.2553, 0.3662),
    ],
)
def test_wilsons_interval_is_that_of_the_formula(right, of, low, high):
    """The last is of Newcombe (1998), table I."""
    assert report.wilson(right, of) == pytest.approx((low, high), abs=5e-5)


# -- one run ---------------------------------------------------------------------------------------


def setup(folder, engine, **more):
    settings = Settings(db=Path("unused"), experts="none")
    return assistant.Setup(engine, BagOfWords(), settings, folder, **more)


def test_a_run_has_figures_by_kind_and_half_and_no_words_of_the_frozen(tmp_path):
    scenarios = [
        read(written(tmp_path)),
        read(written(tmp_path, name="cold", frozen=True)),
    ]
    engine = FakeEngine(facts={"I live in Oslo.": "{} lives in Oslo"})
    summary, rows = assistant.run(scenarios, ["chat", "plain"], setup(tmp_path / "kept", engine))
    assert Counter((r["half"], r["system"]) for r in rows) == {
        (half, system): 2 for half in ("dev", "frozen") for system in ("chat", "plain")
    }
    plain = summary["dev"]["plain"]
    assert plain["recall"] | {"wilson_95": 0} == {"right": 1, "of": 1, "share": 1.0, "wilson_95": 0}
    assert plain["follow-up"]["right"] == 0 and plain["all"]["of"] == 2 and "now" not in plain
    assert plain["seconds_p50"] >= 0 and plain["ttft_s_p50"] >= 0
    for row in rows:
        assert isinstance(row["right"], bool)
        if row["half"] == "frozen":
            assert set(row) == {"half", "system", "kind", "right", "seconds", "ttft_s"}
        else:
            assert row["error"] is None and row["question"]


def test_one_chat_goes_on_where_the_question_before_ended(tmp_path):
    scenario = read(written(tmp_path))
    lengths = {}
    for one_chat in (False, True):
        run = setup(tmp_path / "kept", FakeEngine(), infer=False, one_chat=one_chat)
        with assistant.opened("chat", run, scenario) as ask:
            chats = [ask.args[0]() for _ in scenario.questions]
        lengths[one_chat] = len({id(chat) for chat in chats})
    assert lengths == {False: len(scenario.questions), True: 1}


def test_the_plain_prompt_is_the_days_date_and_the_notes_and_the_talk_so_far(
    tmp_path,
):
    engine = FakeEngine()
    run = setup(tmp_path / "kept", engine, infer=False)
    assistant.run([read(written(tmp_path))], ["plain"], run)
    stage, prompt = engine.prompts[-1]
    assert stage == "plain"
    assert [m["role"] for m in prompt] == ["system", "user", "assistant", "user"]
    head, _, notes = prompt[0]["content"].partition("\n")
    assert head == (
        "You are a helpful assistant. Today is Wednesday, 10 June 2026. "
        "Notes from earlier conversations with the user:"
    )
    assert set(notes.split("\n")) == {
        "- 2 March 2026 User: I live in Oslo.",
        "- 2 March 2026 Assistant: Nice!",
        "- 2 March 2026 User: My cat is called Momo.",
    }
    said = ["Where do I live?", "Oslo, I think.", "And my cat?"]
    assert [m["content"] for m in prompt[1:]] == said


def test_notes_that_do_not_fit_the_window_are_left_out():
    engine = FakeEngine()
    engine.n_ctx = assistant.MAX_ANSWER_TOKENS + 40  # of words, as the stand-in counts
    scenario = Scenario("s", False, "ana", (), TALK["now"], ())
    asked = Question("recall", "Where?", (), (), ())
    answer = assistant.ask_plain(engine, lambda *_: ["short", "long " * 50], scenario, asked)
    assert answer.shown == ("short",)


def test_a_kept_store_is_used_again_unless_what_it_depends_on_has_changed(tmp_path, monkeypatch):
    kept, scenario = tmp_path / "kept", read(written(tmp_path))

    def files(**more):
        with setup(kept, FakeEngine(), **more).filled(scenario) as memory:
            assert len(memory.get_all(user_id="ana")) == 3
            assert stores.seconds_of(memory) >= 0
        return len(list(kept.glob("*.db")))

    assert [files(), files()] == [1, 1]
    assert files(infer=False) == 2
    source = tmp_path / "ingest.py"
    source.write_text("changed")
    monkeypatch.setattr(stores, "write_path", lambda: [source])
    assert files() == 3


def test_the_write_path_has_the_stages_that_write_and_not_those_that_answer():
    names = {f"{file.parent.name}/{file.name}" for file in stores.write_path()}
    writing = {"edgemem/memory.py", "stages/extraction.py", "stages/update.py"}
    assert {"pipeline/ingest.py", "runtime/embedder.py", *writing} <= names
    assert not {"edgemem/chat.py", "pipeline/recall.py", "stages/generation.py"} & names
    assert "retrieval/search.py" not in names


def test_questions_are_chosen_by_half_name_kind_and_number(tmp_path):
    both = [read(written(tmp_path)), read(written(tmp_path, name="cold", frozen=True))]
    assert [s.name for s in assistant.chosen(both, half="frozen")] == ["cold"]
    assert [s.name for s in assistant.chosen(both, only=["small"])] == ["small"]
    (one,) = assistant.chosen(both, half="dev", kinds=["follow-up"])
    assert [q.kind for q in one.questions] == ["follow-up"]
    assert [len(s.questions) for s in assistant.chosen(both, most=1)] == [1, 1]
    with pytest.raises(SystemExit, match="the scenarios are: small, cold"):
        assistant.chosen(both, kinds=["general"])
