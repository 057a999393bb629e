"""What a message takes from the turns before it: whom it means, what it changes or asks for."""

from datetime import UTC, datetime

import pytest
from fake_engine import FakeEngine

from edgemem.chat import Chat
from edgemem.language import (
    asks_of_another,
    asks_to_change,
    greets,
    one_named,
    question_asked,
    reply_asked,
    with_named,
)
from edgemem.memory import Memory
from edgemem.pipeline import recall
from edgemem.pipeline.recall import search
from edgemem.stages.generation import ABOUT_ITSELF, GREETED
from edgemem.stages.intent import Intent, as_change, intent, of_somebody

BORN = "Posy was born on 14 March 2019 and loves otters."
PRESENT = "What would be a nice present for Posy?"


def say(chat, text):
    at = datetime(2026, 11, 30, 9, len(chat._talk.turns), tzinfo=UTC)
    reply = chat.send(text, timestamp=at)
    "".join(reply)
    return reply


@pytest.fixture
def memory(embedder):
    engine: object = FakeEngine(pieces=("A book.",))
    with Memory(":memory:", engine=engine, embedder=embedder) as opened:
        yield opened


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("Who is Posy?", "Posy"),
        ("Draft a note to Dr Anand about the ankle.", "Dr Anand"),
        ("Does my mum like fish?", "my mum"),
        ("Are Desmond and Rory on bad terms?", ""),
        ("When is Rory's baby due?", ""),  # whose age is asked next?
        ("Who wrote Underland?", ""),
        ("Write an email to the Clive about the menu.", ""),
        ("When do we fly to Madeira?", ""),
        ("Is it raining in Bristol?", ""),
        ("What do I have on Monday?", ""),
    ],
)
def test_a_question_names_one_person_or_none(text, name):
    assert one_named(text) == name


def test_a_place_that_memory_knows_is_no_person():
    assert one_named("What do you know of Wellington?", {"wellington"}) == ""


@pytest.mark.parametrize(
    ("text", "name", "asked"),
    [
        ("How old is she?", "Posy", "How old is Posy?"),
        ("What is his partner called?", "Rory", "What is Rory's partner called?"),
        ("What would be a nice present for her?", "Posy", "What would be a nice present for Posy?"),
        ("How old is he?", "my sister Ana", ""),
        ("Is he older than her?", "Posy", ""),
        ("What is Walter getting for his birthday?", "Posy", ""),
        ("How old is it?", "Posy", ""),
    ],
)
def test_a_pronoun_becomes_the_name_where_that_is_safe(text, name, asked):
    assert with_named(text, name) == asked


def test_an_age_is_told_of_her_whom_the_question_before_named(memory):
    """ "How old is she?" was refused after "Who is Posy?"."""
    chat = Chat(memory)
    say(chat, BORN)
    say(chat, "Who is Posy?")
    assert say(chat, "How old is she?").text.startswith("7")
    say(chat, "And since when?")
    assert say(chat, "And how old is she?").text.startswith("7")


@pytest.mark.parametrize(
    ("text", "before", "after", "asked", "wants"),
    [
        ("And for Walter?", PRESENT, "task", "What would be a nice present for Walter?", "task"),
        ("And Walter?", "How old is Posy?", "recall", "How old is Walter?", "recall"),
        (
            "And for Tom and Ida?",
            PRESENT,
            "task",
            "What would be a nice present for Tom and Ida?",
            "task",
        ),
        ("And Walter?", "Tell me about Posy.", "overview", "Tell me about Walter.", "overview"),
        ("And my mum?", "How old is Posy?", None, "How old is my mum?", "recall"),
        ("And next week?", PRESENT, "task", "And next week?", "recall"),
        ("And Walter?", "Posy likes otters.", None, "And Walter?", "recall"),
    ],
)
def test_what_is_asked_of_another_is_what_was_asked(text, before, after, asked, wants):
    def no_people():
        return ()

    found, intent = of_somebody(text, before, after, Intent("recall", tells=False), no_people)
    assert (found, intent.wants) == (asked, wants)


def test_days_are_nobody_else():
    assert asks_of_another("What about Monday?") == ""


@pytest.mark.parametrize(
    ("text", "after", "wants"),
    [
        ("Don't mention that she is a vegetarian.", "text", "edit"),
        ("No, the first version was better.", "edit", "edit"),
        ("No, not a book. Something else.", "task", "task"),
        ("Posy should be able to eat it too, so change it.", "task", "task"),
        ("Don't mention that she is a vegetarian.", "recall", None),
    ],
)
def test_what_changes_the_answer_before_is_no_news(shipped, embedder, text, after, wants):
    """These were answered "Noted.", or with how to erase."""
    wanted = intent(shipped, embedder, text, PRESENT)
    asked, found = as_change(text, PRESENT, after, wanted)
    if wants is None:
        assert (asked, found) == (text, wanted)
    else:
        assert found == Intent(wants, tells=False)
        assert asked == (f"{PRESENT} {text}" if wants == "task" else text)


@pytest.mark.parametrize("text", ["Don't put that in your memory yet.", "no dont write that down"])
def test_a_request_to_forget_stays_one_after_a_text(shipped, embedder, text):
    wanted = intent(shipped, embedder, text)
    assert wanted.wants == "erase" and as_change(text, PRESENT, "text", wanted)[1] == wanted


def test_a_change_of_plans_is_no_change_of_an_answer():
    assert not asks_to_change("No, not on Sunday. It is on Monday.")


@pytest.mark.parametrize("text", ["Good morning! How are you today?", "how r u", "How's it going?"])
def test_how_are_you_is_answered_as_a_greeting(memory, text):
    assert greets(text) and say(Chat(memory), text).text == GREETED


def test_how_it_works_is_no_greeting(memory):
    assert not greets("How are you storing what I say?")
    assert say(Chat(memory), "Who are you?").text == ABOUT_ITSELF


def test_the_question_that_i_asked_is_told(memory):
    chat = Chat(memory)
    for text in ("Where do I live?", "I moved to Bergen in May.", "When did I move?"):
        say(chat, text)
    assert say(chat, "What did I ask you first today?").text.endswith("Where do I live?")
    assert say(chat, "What did I just ask you?").text.endswith("What did I ask you first today?")
    assert say(chat, "What did I just tell you?").text.endswith("I moved to Bergen in May.")


def test_an_answer_of_the_conversation_is_told_again(memory):
    """ "What did you suggest for pudding?" was refused."""
    chat = Chat(memory)
    say(chat, "hello there")
    chat.engine.pieces = ("Plum crumble.",)
    say(chat, "Suggest a pudding for tonight.")
    chat.engine.pieces = ("Otters.",)
    say(chat, "Suggest a film about the sea.")
    told = say(chat, "And what did you suggest for pudding?")
    assert told.text.startswith("This is what was said:") and "Plum crumble." in told.text
    chat.engine.pieces = ("Heron.",)
    say(chat, "Suggest a name for my boat.")
    say(chat, "What is my dog called?")  # a refusal is no answer
    assert "Otters." in say(chat, "Which film did you recommend?").text


def test_what_an_answer_rests_on_is_sought_as_the_answer_was(shipped, embedder, monkeypatch):
    """Without the turns before, the note behind the answer was not near enough to be quoted."""
    searched: list[tuple[str, list[str]]] = []

    def spied(*given, **more):
        searched.append((given[2], [turn.content for turn in given[4]]))
        return search(*given, **more)

    with Memory(":memory:", engine=shipped, embedder=embedder) as memory:
        memory.add("I got Walter binoculars for his birthday.", user_id="default", infer=False)
        chat = Chat(memory)
        say(chat, "hello there")
        monkeypatch.setattr(recall, "search", spied)
        say(chat, "What is Walter getting for his birthday?")
        asked = searched[-1]
        reply = say(chat, "Are you sure?")
        assert searched[-1] == asked and "hello there" in asked[1]
        assert "binoculars" in reply.text


def test_the_turns_that_a_question_asks_for():
    assert question_asked("What was my last question?") == -1
    assert question_asked("What did I ask Ana first?") is None
    assert reply_asked("What did you just suggest?") == ""
    assert reply_asked("What do you suggest for pudding?") is None
