"""What a message wants, and how a model that has no conversation answers it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_engine import FakeEngine

from edgemem.chat import Chat, Reply
from edgemem.errors import InputError, ModelError
from edgemem.memory import Memory
from edgemem.results import Scope
from edgemem.runtime.embedder import Embedder
from edgemem.runtime.engine import Engine
from edgemem.stages.generation import NOTHING_FOUND
from edgemem.stages.intent import Intent, expert_prompt, expert_target, intent
from edgemem.training import intents, written

pytestmark = pytest.mark.models

MOVED = "I moved to Bergen in May."
SAMI = "Sami must not eat peanuts."


@pytest.mark.parametrize(
    ("said", "found"),
    [
        ("recall", Intent("recall", tells=False)),
        ("tell", Intent(None, tells=True)),
        ("tell and general", Intent("general", tells=True)),
        ("task", Intent("task", tells=True)),  # it says what for, which may be news
        ("", Intent(None, tells=True)),
    ],
)
def test_an_expert_says_what_a_message_wants(said: str, found: Intent) -> None:
    engine = FakeEngine(wants={"where do i live": said})
    assert intent(engine, "where do i live") == found  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "wants", "tells"),
    [
        ("where do i live", "recall", False),
        ("Which doctor does Ana see now?", "recall", False),
        ("summarize what you know about me", "overview", False),
        ("suggest a birthday present for my brother", "task", True),
        ("what is the capital of peru", "general", False),
        ("who are you", "self", False),
        ("guess what? we got the flat in Bergen!", None, True),
        ("I work at Shell since Monday.", None, True),
        ("my sister lives in Oslo now, how far is that from Bergen", "general", True),
    ],
)
def test_the_shipped_expert_tells_asking_from_telling(
    shipped: Engine, text: str, wants: str | None, tells: bool
) -> None:
    """All that told something was also taken to want something: its end was no token of a quote."""
    assert intent(shipped, text) == Intent(wants, tells)  # type: ignore[arg-type]


def test_without_an_expert_a_question_mark_asks() -> None:
    engine = FakeEngine()
    assert intent(engine, "Where do I live?") == Intent("recall", tells=False)  # type: ignore[arg-type]
    assert intent(engine, "I live here. Do you?") == Intent(None, tells=True)  # type: ignore[arg-type]
    assert engine.prompts == []


def test_an_expert_reads_the_end_of_a_long_message_and_what_was_said_before() -> None:
    read = expert_prompt("why " * 400 + "is it so", "and\nbefore")
    assert len(read) < 700 and "Before: and before\n" in read and "is it so\nIt wants:" in read


def asked(memory: Memory, text: str, want: str) -> Reply:
    memory.engine.wants[text] = want  # type: ignore[attr-defined]
    reply = Chat(memory, user_id="ana").send(text)
    list(reply)
    return reply


@pytest.fixture
def memory(embedder: Embedder) -> Iterator[Memory]:
    engine = FakeEngine(wants={"nothing yet": "recall"})
    days = ("2026-03-02T10:00:00+00:00", "2026-05-04T10:00:00+00:00")
    with Memory(":memory:", engine=engine, embedder=embedder) as opened:  # type: ignore[arg-type]
        for text, day in zip((SAMI, MOVED), days, strict=True):
            opened.add(text, user_id="ana", infer=False, timestamp=day)
        yield opened


def test_what_asks_without_a_mark_is_answered_from_memory(memory: Memory) -> None:
    reply = asked(memory, "where do i live", "recall")
    stage, prompt = memory.engine.prompts[-1]  # type: ignore[attr-defined]
    assert (stage, reply.found) == ("generation", True) and MOVED in prompt


def test_a_message_is_kept_when_the_model_cannot_tell_what_it_wants(memory: Memory) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ModelError("out of memory")

    engine = memory.engine
    engine.generate = fail  # type: ignore[assignment]
    assert intent(engine, "where do i live") == Intent(None, tells=True)
    list(Chat(memory, user_id="ana").send("we got the flat"))
    assert "we got the flat" in [item.memory for item in memory.get_all(user_id="ana")]


def test_what_is_not_known_is_said_not_to_be(memory: Memory) -> None:
    reply = asked(memory, "what does zlatan's tortoise weigh", "recall")
    assert reply.text == NOTHING_FOUND


def test_an_overview_and_a_task_tell_what_was_told_in_its_own_words(memory: Memory) -> None:
    overview = asked(memory, "summarize what you know about me", "overview").text
    assert overview.splitlines()[1:] == [f"- 2 March 2026: {SAMI}", f"- 4 May 2026: {MOVED}"]
    task = asked(memory, "what should i cook for sami", "task")
    assert f"- 2 March 2026: {SAMI}" in task.text and task.context
    stages = {stage for stage, _ in memory.engine.prompts}  # type: ignore[attr-defined]
    assert stages == {"intent", "extraction"}  # no model says it


def test_other_talk_is_shown_no_memory(memory: Memory) -> None:
    for text in ("tell me a joke about bergen", "shorter please"):
        reply = asked(memory, text, "general")
        stage, prompt = memory.engine.prompts[-1]  # type: ignore[attr-defined]
        assert stage == "reply" and MOVED not in str(prompt) and not reply.found


def test_no_model_says_who_the_assistant_is(memory: Memory) -> None:
    reply = asked(memory, "are you ana", "self")
    assert "AI assistant" in reply.text and "Ana" not in reply.text
    assert reply.generation is None and "tokens_per_s" not in reply.timings
    assert {stage for stage, _ in memory.engine.prompts} == {"intent"}  # type: ignore[attr-defined]


@pytest.mark.parametrize(("want", "kept"), [("recall", False), ("tell and recall", True)])
def test_what_only_asks_is_never_found_again(memory: Memory, want: str, kept: bool) -> None:
    text = "we sold the car what did it cost"
    asked(memory, text, want)
    memories = [item.memory for item in memory.get_all(user_id="ana")]
    assert (text in memories) is kept
    turns = memory.store.recent_turns(Scope(user_id="ana"), before=None, limit=9)
    assert text in [turn.content for turn in turns]


MESSAGES = """\
(tell) We got the flat!
(tell and task) the in-laws come on Sunday, what should I cook?
"""
TALK = """\
# User, Assistant
@ 2026-03-02 10:00
User: Rex is my dog.
~ 2026-05-04 09:30
> (recall) what is my dog called | Rex is my dog
< Rex.
> (edit) shorter
< Rex
"""


def test_examples_come_from_messages_and_from_later_chats(tmp_path: Path) -> None:
    lines, talk = tmp_path / "messages.txt", tmp_path / "talk.txt"
    lines.write_text(MESSAGES)
    talk.write_text(TALK)
    assert intents.is_messages(lines) and not intents.is_messages(talk)
    assert [e.target for e in intents.examples(lines)] == [" tell", " tell and task"]
    made = list(intents.of_talk(*written.read(talk)))
    assert [e.target for e in made] == [" recall", " edit", " tell"]
    assert "Before: what is my dog called\n" in made[1].prompt
    assert made[0].target == expert_target("recall", tells=False)


@pytest.mark.parametrize("line", ["no brackets", "(ask) what", "(tell and sing) la"])
def test_a_line_that_wants_nothing_known_is_named(tmp_path: Path, line: str) -> None:
    file = tmp_path / "messages.txt"
    file.write_text(f"(tell) fine\n{line}\n")
    with pytest.raises(InputError, match="line 2"):
        list(intents.examples(file))


def test_half_of_the_examples_have_no_capitals_and_marks(tmp_path: Path) -> None:
    file = tmp_path / "messages.txt"
    file.write_text("(tell) At 7:30, in Ostrava!\n" * 200)
    read = [str(e.prompt).rpartition("Message: ")[2] for e in intents.examples(file)]
    bare = sum(text.startswith("at 7:30 in ostrava\n") for text in read)
    assert 60 < bare < 140
