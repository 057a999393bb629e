"""`edgemem demo`: what counts as a right answer, and answers from a new process."""

import json
import os
import sys
from pathlib import Path

import pytest
from fake_engine import FakeEngine
from memorykit import BagOfWords

import edgemem
from edgemem.chat import Chat
from edgemem.cli import demo
from edgemem.memory import Memory
from edgemem.results import to_utc
from edgemem.runtime.embedder import Embedder


@pytest.mark.parametrize(
    ("answer", "expected", "right"),
    [
        ("At the COPPER  Kettle!", ["Copper Kettle"], True),
        ("Joana's lessons", ["Joana"], True),
        ("I know nothing", ["no"], False),
        ("lemon, and elderflower", ["lemon and elderflower"], True),
        ("Straße", ["STRASSE"], True),
        ("", ["a"], False),
    ],
)
def test_an_answer_is_right_if_it_contains_an_expected_one(answer, expected, right):
    assert demo.is_right(answer, expected) is right


def talk(home, *answers):
    """A conversation of two messages, and the same question with each of these answers."""
    messages = [
        {"role": "user", "content": "My cat is called Tom."},
        {"role": "assistant", "content": "Hello Tom!"},
    ]
    script = {
        "sessions": [{"date": "2025-01-14T19:05:00+00:00", "messages": messages}],
        "questions_date": "2025-06-02T09:00:00+00:00",
        "questions": [{"question": "What is my cat called?", "answers": each} for each in answers],
    }
    file = home / "talk.json"
    file.write_text(json.dumps(script))
    return file


# The new process needs the stand-ins too.
CHILD = """
import sys
from fake_engine import FakeEngine
from memorykit import BagOfWords
from edgemem.cli import main
from edgemem.runtime.embedder import Embedder
from edgemem.runtime.engine import Engine
Engine.load = classmethod(lambda *a, **k: FakeEngine(pieces=("Tom",)))
Embedder.load = classmethod(lambda *a, **k: BagOfWords())
sys.argv[:] = ["edgemem", *sys.argv[3:]]
main()
"""


@pytest.mark.models
def test_the_demo_plays_and_answers_from_a_new_process(run, home, monkeypatch, stand_in):
    file = talk(home, ["Tom"], ["Otto", "Ida"])
    stand_in(FakeEngine(pieces=("Tom",), facts={"My cat is called Tom.": "{}'s cat is called Tom"}))
    monkeypatch.setattr(Embedder, "load", classmethod(lambda *_a, **_k: BagOfWords()))
    child = home / "child.py"
    child.write_text(CHILD)
    script = home / "python"
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{child}" "$@"\n')
    script.chmod(0o755)
    monkeypatch.setattr(demo.sys, "executable", str(script))
    places = [str(Path(edgemem.__file__).parent.parent), str(Path(__file__).parent)]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(places))

    result = run("demo", "--conversation", str(file))
    assert "+ User's cat is called Tom  [added, by rule]" in result.stdout
    assert "What is my cat called?\nanswer: Tom  ✓\n    2025-01-14" in result.stdout
    assert "✗ expected: Otto / Ida" in result.stdout
    assert result.stdout.splitlines()[-1].startswith("1 of 2 answers right · ")

    store = home / "kept.db"
    result = run("demo", "--conversation", str(file), "--json", "--db", str(store))
    report = json.loads(result.stdout)
    assert report["summary"]["right"] == 1 and report["summary"]["of"] == 2
    assert {"seconds", "peak_rss_mb"} < set(report["summary"])
    assert report["rows"][0]["memories"][0]["date"] == "2025-01-14"
    assert "recall_ms" in report["rows"][0]["timings"]
    assert "answers right" in result.stderr and store.exists()
    with Memory(store) as memory:  # a question that is asked of it leaves nothing in it
        assert memory.store.counts()["turns"] == 2
    assert "is not a new file" in run("demo", "--db", str(store), code=2).stderr


@pytest.mark.models
def test_questions_are_asked_on_the_conversations_date(run, home, monkeypatch, stand_in):
    stand_in(FakeEngine())
    send, asked = Chat.send, []

    def noted(self, text, **more):
        asked.append((text, to_utc(more["timestamp"]), more["remember"]))
        return send(self, text, **more)

    monkeypatch.setattr(Chat, "send", noted)
    Memory(home / "new.db").close()
    run("demo-answer", "--conversation", str(talk(home, ["Tom"])), "--db", str(home / "new.db"))
    assert asked == [("What is my cat called?", to_utc("2025-06-02T09:00:00+00:00"), False)]


@pytest.mark.models
def test_a_demo_whose_second_process_fails_says_so(run, home, monkeypatch, stand_in):
    stand_in(FakeEngine())
    monkeypatch.setattr(demo.sys, "executable", "false")
    assert "The process that answers ended with code 1" in run("demo", code=1).stderr
