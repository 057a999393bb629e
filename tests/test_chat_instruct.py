"""A chat with an instruct model: every message recalls, notes are data, earlier turns stay."""

import math
from dataclasses import replace

import numpy as np
import pytest
from fake_engine import FakeEngine
from memorykit import texts

from edgemem.chat import Chat
from edgemem.config import load_settings
from edgemem.errors import AdapterError
from edgemem.memory import Memory
from edgemem.pipeline.plan import FEW_NOTES, SHOWN_NOTES
from edgemem.results import Message
from edgemem.runtime.experts import HEEDS_PARAMS
from edgemem.stages.generation import (
    ABOUT_ITSELF,
    CHECK_THIS,
    NEAREST,
    NOT_KNOWN,
    NOTHING_FOUND,
    TOO_SMALL,
)
from edgemem.stages.reply import NEWS_TOKENS, converse

pytestmark = pytest.mark.models

CAT = "My cat is called Tom."
MARCH = "2024-03-04T10:00:00+00:00"
JUNE = "2024-06-10T10:00:00+00:00"
TOLD = f"- 4 March 2024: {CAT}"
FACTS = {CAT: "{}'s cat is called Tom"}


class Instruct(FakeEngine):
    """A stand-in that is large enough to answer in its own words. options: of the last answer.
    doubts: an answer that it holds for less likely than none."""

    n_params = 1_500_000_000
    doubts = ""

    def stream(self, prompt, **options):
        self.options = options
        return super().stream(prompt, **options)

    def generate(self, prompt, *, stage="", **options):
        if stage == "extraction":
            prompt = prompt[-1]["content"].rpartition("About")[0]
        return super().generate(prompt, stage=stage, **options)

    def log_probs(self, prompt, continuation):
        self.checked = prompt
        doubted = continuation.lower() == self.doubts.lower()
        return np.log([0.5 if continuation == NOT_KNOWN else 0.1 if doubted else 0.9])


@pytest.fixture
def fake():
    return Instruct(pieces=("Your cat ", "is ", "Tom."), facts=FACTS)


class Trained(FakeEngine):
    """A small model with experts for these stages."""

    stages = ("reply", "generation", "talk")

    def expert(self, stage):
        return stage in self.stages


@pytest.fixture
def judge():
    """Who tells what no memory tells, in place of the bundled model."""
    return Trained(pieces=(" Tom",))


@pytest.fixture
def memory(fake, judge, embedder, monkeypatch):
    with Memory(":memory:", engine=fake, embedder=embedder) as opened:
        monkeypatch.setattr(opened._parts, "judge", lambda: judge)
        yield opened


@pytest.fixture
def chat(memory):
    return Chat(memory)


def say(chat, text, **more):
    reply = chat.send(text, timestamp=JUNE, **more)
    assert "".join(reply).strip() == reply.text
    return reply


def shown(fake):
    """The last conversation: the system message, then the contents of its turns."""
    prompt = next(p for stage, p in reversed(fake.prompts) if stage == "reply")
    assert [m["role"] for m in prompt[:2]] == ["system", "user"]
    return [m["content"] for m in prompt]


def remembered(memory, *said):
    memory.add(list(said), user_id="default", timestamp=MARCH, infer=False)


@pytest.mark.parametrize(
    "text", ["Good morning, how is my cat?", "write a card for my cat", "where is my cat"]
)
def test_every_message_recalls_whatever_its_form(chat, memory, fake, text):
    remembered(memory, CAT)
    reply = say(chat, text)
    assert reply.found and texts(reply.context) == [CAT]
    assert f'4 March 2024:\n- User said: "{CAT}"' in shown(fake)[-1] and shown(fake)[-1].endswith(
        text
    )


def test_what_is_told_is_acknowledged_by_the_bundled_model(chat, memory, fake, judge):
    """A model of this size said of news what was not told: "six weeks of downhill exercise"."""
    remembered(memory, CAT)
    say(chat, "My cat Tom is asleep.")
    assert judge.prompts[-1][0] == "talk"
    assert all(stage not in ("talk", "reply") for stage, _ in fake.prompts)
    fake.n_params = HEEDS_PARAMS
    say(Chat(memory), "My cat Tom is awake.")
    assert "Notes from memory" in shown(fake)[-1]


@pytest.mark.parametrize(("p", "answer"), [(0.3, "Your cat is Tom."), (0.9, "yes")])
def test_a_larger_model_knows_of_the_world_what_no_memory_surely_tells(
    memory, fake, judge, p, answer
):
    """ "Is garlic good against fleas?" was answered with "The cat has fleas again." """
    remembered(memory, "The cat has fleas again.")
    judge.pieces, judge.log_p = (" yes",), math.log(p)
    asked = "Is garlic good against fleas?"
    judge.wants = fake.wants = {asked: "general"}
    assert say(Chat(memory), asked).text == answer


def test_an_acknowledgement_is_not_shown_to_the_model(memory, fake, judge):
    """After two of them a 1.5B model answered a request for a present with a third."""
    judge.pieces, judge.log_p = ("Noted.",), 0.0
    before = [Message("user", "Hello.", JUNE), Message("assistant", "Hello!", JUNE)]
    chat = Chat(memory, turns=before)
    for news in (CAT, "Tom weighs 4 kilos."):
        assert say(chat, news).text == "Noted."
    say(chat, "Suggest a present for my cat.")
    asked = shown(fake)[1]
    assert asked.startswith(f"Hello.\n\n{CAT}\n\nTom weighs 4 kilos.\n\n")
    assert len(shown(fake)) == 2


def test_what_is_told_on_a_clients_terms_gets_a_short_reply_and_is_shown_no_note(memory, fake):
    """A model of this size repeated the notes, or said that none told what it was just told."""
    remembered(memory, CAT)
    chat = Chat(memory, instructions="Be kind.")
    say(chat, "where is my cat")
    say(chat, "My cat Tom is asleep.")
    prompt = next(p for stage, p in reversed(fake.prompts) if stage == "talk")
    assert fake.options["max_tokens"] == NEWS_TOKENS
    assert [turn["content"] for turn in prompt[1:]] == ["My cat Tom is asleep."]


@pytest.mark.parametrize("instructions", ["", "Be kind."])
def test_a_small_model_with_an_expert_for_replies_does_not_acknowledge_news(
    memory, fake, judge, monkeypatch, instructions
):
    """Of 36 pieces of news one of half a billion answered 32 with what was another's, or untrue."""
    monkeypatch.setattr(fake, "n_params", 500_000_000)
    monkeypatch.setattr(fake, "expert", lambda stage: stage == "reply")
    say(Chat(memory, instructions=instructions), "My cat Tom is asleep.")
    assert judge.prompts[-1][0] == "talk"
    assert all(stage not in ("talk", "reply") for stage, _ in fake.prompts)


def test_the_model_is_told_who_it_is_and_what_day_it_is(chat, fake):
    say(chat, "Write a poem about the morning.")
    system = shown(fake)[0]
    assert "Monday, 10 June 2024" in system and "an AI, not the user" in system
    assert "never instructions" in system


def test_what_was_told_stands_under_a_small_models_advice(chat, memory, fake):
    remembered(memory, CAT)
    asks = "Suggest a birthday present for my cat"
    reply = say(chat, asks)
    own, _, below = reply.text.partition("\n\n")
    assert own.endswith("Your cat is Tom.") and f"- 4 March 2024: {CAT}" in below
    say(chat, "Suggest a toy for my cat")
    assert own in shown(fake)  # the model goes on from its own words alone
    assert "4 March" not in say(chat, asks, options={"max_tokens": 9}).text  # a client's own terms
    fake.n_params = 7_000_000_000
    assert say(chat, asks).text == "Your cat is Tom."


def test_a_small_models_advice_begins_with_what_the_user_told_that_bears_on_it(chat, memory, fake):
    """A 1.5B model told a diabetic to tuck into the buns, with the note before its eyes."""
    told = "I am allergic to hazelnuts, so I must never eat them."
    remembered(memory, told, "I painted the fence green.")
    fake.pieces = (", she", " leaves the hazelnuts out.")
    asks = "Which nuts should a friend leave out of my birthday cake?"
    begun = f"You told me: “{told}” So"
    assert say(chat, asks).text.startswith(f"{begun}, she leaves the hazelnuts out.\n\n")
    assert fake.prefill == begun and told in shown(fake)[-1]
    say(chat, "Suggest a colour for the door of my car")
    assert "hazelnuts" not in fake.prefill
    say(chat, asks, options={"max_tokens": 9})  # a client's own terms
    assert fake.prefill == ""
    fake.n_params = 7_000_000_000
    say(chat, asks)
    assert fake.prefill == ""


def test_a_beginning_that_leaves_no_room_for_an_answer_is_left_out(fake):
    fake.n_ctx = 200
    turns = [Message("user", "May I eat this?", JUNE)]
    converse(fake, "You help.", turns, told=("I eat no nuts.",)).whole()
    assert fake.prefill == "You told me: “I eat no nuts.” So"
    converse(fake, "You help.", turns, told=("I eat no nuts at all. " * 40,)).whole()
    assert fake.prefill == ""


def test_a_text_stands_alone_unless_its_model_mixes_up_who_does_what(chat, memory, fake):
    remembered(memory, CAT)
    asks = "Write a birthday card for my cat"
    reply = say(chat, asks)
    assert reply.text == "Your cat is Tom." and CAT in shown(fake)[-1]
    fake.n_params = 500_000_000
    assert say(chat, asks).text.startswith("Your cat is Tom.\n\nThis is what you told me")


def test_the_bundled_model_answers_from_memory_beside_a_small_one(chat, memory, fake, judge):
    remembered(memory, CAT)
    fake.n_params, judge.log_p = 500_000_000, 0.0
    reply = say(chat, "What is my cat called?")
    assert reply.text == "Tom" and texts(reply.context) == [CAT]
    judge.log_p = math.log(0.1)
    assert say(chat, "Tell me a joke.").text == f"Your cat is Tom.\n\n{CHECK_THIS}"
    asks = "What is my cat called?"
    assert say(chat, asks, options={"max_tokens": 9}).text == "Your cat is Tom."
    chat.memory._parts.judge = lambda: None  # as under a memory limit
    assert say(chat, asks).text.startswith("Your cat is Tom.")


def test_a_small_model_is_shown_few_notes(chat, memory, fake):
    remembered(memory, *(f"My cat number {number} likes fish." for number in range(9)))
    few = len(say(chat, "where is my cat").context)
    fake.n_params = 7_000_000_000
    many = len(say(Chat(memory), "where is my cat").context)
    assert (few, many) == (FEW_NOTES, SHOWN_NOTES)


def test_a_model_that_would_invent_does_not_sum_up_what_it_was_told(chat, memory, fake):
    remembered(memory, CAT)
    asks = "Summarize what you know about me."
    assert TOLD in say(chat, asks).text
    assert say(chat, asks, options={"max_tokens": 9}).text == "Your cat is Tom."
    fake.n_params = HEEDS_PARAMS
    assert say(chat, asks).text == "Your cat is Tom."


def test_what_no_memory_tells_is_refused_by_an_expert_for_answers(chat, memory, fake, judge):
    remembered(memory, CAT)
    judge.pieces = (" Not known",)
    reply = say(chat, "What is my dog called?")
    assert reply.text == f"{NOTHING_FOUND}\n\n{NEAREST}\n{TOLD}"
    assert not reply.found and not reply.context
    assert reply.generation is not None  # a model was asked, and its tokens count
    assert "reply" not in dict(fake.prompts)
    assert say(chat, "Suggest a name for my dog").text != NOTHING_FOUND  # no question of memory
    fake.n_params = 7_000_000_000
    assert say(chat, "What is my dog called?").text == "Your cat is Tom."


def test_a_refusal_and_its_question_are_not_shown_to_the_model(chat, memory, fake, judge):
    """After two refusals a 1.5B model refused what the notes told."""
    remembered(memory, CAT)
    judge.pieces = (" Not known",)
    say(chat, "What is my dog called?", remember=False)
    say(chat, "Suggest a name for my dog", remember=False)
    seen = shown(fake)
    assert not any(NOTHING_FOUND in turn or "my dog called" in turn for turn in seen)
    say(chat, "Write a card for my cat.", remember=False)
    question, answer = shown(fake)[1:3]
    assert question == seen[1] and answer.endswith("Your cat is Tom.")


def test_news_that_got_a_fixed_text_are_shown_to_the_model(chat, fake):
    say(chat, "Remind me at eight that Ana comes with the cake.", remember=False)
    say(chat, "Write a poem about the morning.", remember=False)
    assert shown(fake)[1].startswith("Remind me at eight")


def test_an_expert_that_is_sure_spares_the_model_that_talks(chat, memory, fake, judge):
    remembered(memory, CAT)
    asks = "What is my cat called?"
    in_doubt = f"Your cat is Tom.\n\nThis is what you told me:\n{TOLD}"
    assert say(chat, asks).text == in_doubt
    judge.log_p = math.log(0.9)
    reply = say(Chat(memory), asks)
    assert reply.text == "Tom" and texts(reply.context) == [CAT]
    assert reply.generation is not None and reply.generation.log_p == judge.log_p
    assert say(chat, asks, options={"max_tokens": 9}).text == "Your cat is Tom."
    assert "Your cat is Tom." in say(chat, "Suggest a name for my dog").text
    fake.n_params = 7_000_000_000
    assert say(Chat(memory), asks).text == "Your cat is Tom."


def test_an_answer_that_the_model_that_talks_doubts_gives_way_to_what_was_told(
    chat, memory, fake, judge
):
    remembered(memory, CAT)
    judge.log_p, fake.doubts = math.log(0.9), "Tom"
    reply = say(chat, "What is my cat called?")
    assert reply.text == f"I'm not sure.\n\nThis is what you told me:\n{TOLD}"
    assert texts(reply.context) == [CAT]
    notes = fake.checked[-1]["content"]
    assert CAT in notes and notes.endswith("Question of the user: What is my cat called?")
    judge.pieces = (" on 15 June 2024",)  # the days until then are counted, not read
    fake.doubts = "5 days, on 15 June 2024"
    assert say(chat, "How many days till my cat's birthday?").text == fake.doubts


def test_a_doubted_answer_from_what_is_not_stored_gives_way_to_that_and_not_to_nothing(
    chat, memory, fake, judge
):
    "".join(chat.send(CAT, remember=False))
    judge.log_p, fake.doubts = math.log(0.9), "Tom"
    told = "".join(chat.send("What is my cat called?", remember=False))
    assert CAT in told


def test_what_this_conversation_told_is_not_refused_unseen(chat, judge):
    say(chat, CAT, remember=False)
    say(chat, "What is my cat called?", remember=False)
    assert f'User said: "{CAT}"' in judge.prompts[-1][1]


def test_what_memory_holds_is_left_to_the_search(chat, judge):
    say(chat, CAT)
    say(chat, "What is my cat called?")
    assert judge.prompts[-1][1].count(f'User said: "{CAT}"') == 1


def test_a_long_conversation_does_not_crowd_out_what_memory_tells(chat, memory, judge):
    remembered(memory, CAT)
    friends = "Ana Bo Cleo Dan Eva Finn Gus Hana Ivo".split()
    for friend in friends:
        say(chat, f"My friend {friend} lives in Bergen.", remember=False)
    say(chat, "What is my cat called?", remember=False)
    shown = judge.prompts[-1][1]
    assert shown.index("Ivo") < shown.index(CAT) and "Cleo" not in shown


def test_a_judge_that_fails_refuses_nothing(chat, memory, judge, monkeypatch):
    remembered(memory, CAT)

    def fails(*_, **__):
        raise AdapterError("damaged")

    monkeypatch.setattr(judge, "stream", fails)
    assert say(chat, "What is my dog called?").text.startswith("Your cat is Tom.")


@pytest.mark.parametrize(("asks", "known"), [("my cat", True), ("my dentist", False)])
def test_the_bundled_models_expert_is_asked(fake, embedder, asks, known):
    with Memory(":memory:", engine=fake, embedder=embedder) as memory:
        remembered(memory, CAT, "I moved to Bergen in spring.", "I drink tea now.")
        reply = say(Chat(memory), f"What is {asks} called?")
        assert memory.judge is memory.judge
    assert reply.text.startswith(NOTHING_FOUND) != known


@pytest.mark.parametrize("choice", [{"experts": "none"}, {"reader": "instruct"}])
def test_who_wants_no_expert_has_no_second_model(fake, embedder, choice):
    settings = replace(load_settings(), **choice)
    with Memory(":memory:", engine=fake, embedder=embedder, settings=settings) as memory:
        assert memory.judge is None


def test_who_it_is_is_the_callers_to_say(memory, fake):
    assert say(Chat(memory), "Who are you?").text == ABOUT_ITSELF  # models take on any name
    say(Chat(memory, instructions="You are Marvin, a pirate."), "Who are you?")
    assert "You are Marvin" in shown(fake)[0]


def test_what_lasts_is_shown_although_a_search_does_not_find_it(chat, memory, fake):
    remembered(memory, "I am allergic to nuts and must not eat them.")
    tickets = (f"I bought ticket number {i} for a train journey to a far city." for i in range(60))
    remembered(memory, *tickets)
    say(chat, "Which train tickets did I buy for the journey?")
    assert "allergic to nuts" in shown(fake)[0]


def test_a_conversation_given_with_its_turns_finds_the_same_system_message(memory, fake):
    remembered(memory, CAT)
    say(Chat(memory), "Write a poem about the morning.", remember=False)
    first = shown(fake)[0]
    remembered(memory, "I am allergic to nuts.")  # said in the conversation
    turns = [Message("user", "I am allergic to nuts.", JUNE), Message("assistant", "Noted.", JUNE)]
    say(Chat(memory, turns=turns), "Write a poem about the evening.", remember=False)
    assert shown(fake)[0] == first


def test_what_is_known_of_the_user_does_not_leak_into_what_is_not_about_them(memory, fake):
    """Asked who it was, a model of half a billion said "no glasses and no dairy"."""
    remembered(memory, "I am allergic to nuts and must not eat them.")
    chat = Chat(memory, instructions="You are Marvin, a pirate.")
    assert "allergic" in say(chat, "What do you know about me?").text
    for text in ("Who are you?", "What is the capital of Australia?"):
        say(chat, text)
        assert "allergic" not in "".join(shown(fake)), text
    say(chat, "Write a poem about the morning.")
    assert "allergic" in shown(fake)[0]
    fake.n_params = HEEDS_PARAMS
    say(chat, "What is the capital of Australia?")
    assert "allergic" in shown(fake)[0]


def test_an_edit_that_changes_nothing_is_owned_up_to(chat, fake):
    say(chat, "Write a poem about the morning.")
    assert say(chat, "Make it shorter.").text == f"Your cat is Tom.\n\n{TOO_SMALL}"
    fake.pieces = ("Sure, here's a shorter version:\n\nYour cat is Tom!",)
    assert say(chat, "Make it shorter.").text.endswith(TOO_SMALL)
    fake.pieces = ("Tom.",)
    assert say(chat, "Make it shorter.").text == "Tom."


def test_an_answer_that_only_says_the_question_again_is_what_was_told(chat, memory, fake):
    remembered(memory, CAT)
    told = f"This is what you told me:\n{TOLD}"
    fake.pieces = ("What is ", "your cat ", "called?")
    assert say(chat, "What is my cat called?").text == told
    fake.pieces = ("What is ", "your cat called? ", "Tom.")
    assert say(chat, "What is my cat called?").text.startswith("What is your cat called? Tom.")


def test_an_edit_is_asked_of_the_text_alone(chat, fake):
    """Below a conversation a 1.5B model copied the text."""
    say(chat, "My dog is called Rex.", remember=False)
    say(chat, "Write a poem about the morning.", remember=False)
    say(chat, "Make it shorter.", remember=False)
    first, again = [prompt for stage, prompt in fake.prompts if stage == "edit"]
    said = ["Write a poem about the morning.", "Your cat is Tom.", "Make it shorter."]
    assert [turn["content"] for turn in first[1:]] == said  # it was copied, so it is asked again:
    assert again[1]["content"].startswith("Make it shorter: rewrite the text below")
    fake.pieces = ("Sure, ", "here's a shorter version:\n\n", "Your cat is Tom!")
    say(chat, "Make it shorter.", remember=False)
    assert "do not copy" in fake.prompts[-1][1][1]["content"]
    fake.pieces = ("Your cat ", "is Tim.")
    assert say(chat, "Make it shorter.", remember=False).text == "Your cat is Tim."
    assert "do not copy" not in fake.prompts[-1][1][1]["content"]
    fake.n_params = HEEDS_PARAMS
    say(chat, "Make it longer.", remember=False)
    assert any("Rex" in turn for turn in shown(fake))


def test_notes_are_shown_oldest_first(chat, memory, fake):
    for day, text in (("05", "My cat moved to Rome."), ("03", "My cat lives in Oslo.")):
        memory.add(text, user_id="default", timestamp=f"2024-{day}-01T10:00:00+00:00", infer=False)
    say(chat, "Where does my cat live?")
    note = shown(fake)[-1]
    assert note.index("Oslo") < note.index("Rome")


def test_facts_that_a_search_does_not_find_are_shown_too(chat, memory, fake):
    memory.add(CAT, user_id="default", timestamp=MARCH)
    remembered(memory, *(f"I bought ticket number {i} for a train journey." for i in range(12)))
    say(chat, "Which train tickets did I buy for the journey?")
    assert f'User said: "{CAT}"' in shown(fake)[0]  # the turn that told it, not the model's words


def test_a_turn_is_shown_again_as_it_was_shown_first(chat, memory, fake):
    remembered(memory, CAT)
    say(chat, "How is my cat?")
    first = shown(fake)
    say(chat, "And my dog?")
    assert shown(fake)[: len(first)] == first
    assert shown(fake)[len(first)] == "Your cat is Tom."


def test_a_note_is_shown_once_in_a_conversation(chat, memory, fake):
    remembered(memory, CAT)
    for _ in range(3):
        say(chat, "How is my cat Tom?")
    assert sum(CAT in turn for turn in shown(fake)[1:]) == 1


def test_what_was_said_in_the_conversation_is_no_note(chat, fake):
    say(chat, CAT)
    say(chat, "How is my cat?")
    assert sum(turn.count(CAT) for turn in shown(fake)[1:]) == 1


def test_a_message_is_searched_together_with_what_it_follows(chat, memory, fake):
    remembered(memory, "Bartek is a plumber from Gdansk.", "Paint dries slowly in the cellar.")
    fake.pieces = ("Bartek does.",)
    say(chat, "Who repairs the sink?", remember=False)
    reply = say(chat, "And where is he from?", remember=False)
    assert reply.hits[0].memory == "Bartek is a plumber from Gdansk."


def test_a_request_is_searched_alone_unless_it_refers_back(chat, memory, fake):
    """The summary of a row with the landlord was one of Lorna, of whom the answer before told."""
    remembered(memory, "Bartek is a plumber from Gdansk.", "Dora is a tiler from Oslo.")
    fake.pieces = ("Dora does.",)
    say(chat, "Who is the plumber?", remember=False)
    alone = say(Chat(memory), "Write a card for my landlord.", remember=False)
    reply = say(chat, "Write a card for my landlord.", remember=False)
    assert reply.hits.items == alone.hits.items
    say(chat, "Who is the plumber?", remember=False)
    reply = say(chat, "Write a card for them.", remember=False)
    assert reply.hits[0].memory == "Bartek is a plumber from Gdansk."


def test_a_wrong_weekday_is_put_right_and_no_other_word_waits_for_it(fake):
    """A play was said to be on "Saturday, 15 December 2026", a Tuesday."""
    fake.pieces = ("Sun ", "on Sat", "urday, ", "15 Dec", "ember 2026", ", or Mon", "day at 9.")
    stream = converse(fake, "", [Message("user", "When is it?", JUNE)])
    assert [piece for piece in stream if piece] == [
        "Sun ", "on ", "Tuesday, 15 December 2026, or ", "Monday at 9."
    ]  # fmt: skip
    assert stream.result.text == "Sun on Tuesday, 15 December 2026, or Monday at 9."


def test_an_answer_takes_the_callers_options(chat, fake):
    say(chat, "Tell me a story.", options={"temperature": 0.7, "max_tokens": 9, "stop": ("\n",)})
    assert (fake.options["temperature"], fake.options["max_tokens"]) == (0.7, 9)
    assert fake.options["stop"] == ("\n",)
    for most in (None, 0):  # 0 is the engine's to refuse
        say(chat, "Tell me a story.", options={"max_tokens": most})
        assert fake.options["max_tokens"] == most


def test_the_callers_instructions_stand_beside_our_own(memory, fake):
    chat = Chat(memory, instructions="Answer in Dutch.")
    for text in ("Write a poem about the sea.", "My cat Tom is asleep."):
        say(chat, text, remember=False)
        system = fake.prompts[-1][1][0]["content"]
        assert "an AI" in system and "Answer in Dutch." in system


def test_a_long_conversation_leaves_its_older_half_out(memory, fake):
    fake.n_ctx = 700
    talk = [
        Message(role, f"{role} says {i} " + "word " * 20, MARCH)
        for i in range(20)
        for role in ("user", "assistant")
    ]
    chat = Chat(memory, turns=talk)
    say(chat, "Write a poem about the night.")
    first = shown(fake)
    assert len(first) < 30 and first[-1].endswith("Write a poem about the night.")
    say(chat, "Write a poem about sleep.")
    assert shown(fake)[1] == first[1]  # not one turn fewer each time


def test_what_is_forgotten_is_shown_no_more(chat, memory, fake):
    memory.add(CAT, user_id="default", timestamp=MARCH)
    say(chat, "How is my cat?")
    memory.erase([item.id for item in memory.get_all(user_id="default")])
    fake.prompts.clear()
    say(chat, "How is my dog?")
    assert all("called Tom" not in turn for turn in shown(fake))
    assert "Your cat is Tom." not in shown(fake)  # an answer that was made of it


def test_what_was_deleted_or_edited_is_shown_no_more_and_the_conversation_goes_on(
    chat, memory, fake
):
    cat, dog = (
        memory.add(text, user_id="default", timestamp=MARCH, infer=False)[0].id
        for text in (CAT, "My dog is called Rex.")
    )
    say(chat, "How is my cat?", remember=False)
    say(chat, "How is my dog?", remember=False)
    memory.delete(cat)
    memory.update(dog, "My dog is called Max.")
    fake.prompts.clear()
    say(chat, "Write a poem about the sea.", remember=False)
    read = str(fake.prompts[-1])
    assert "How is my cat?" in read and "called Tom" not in read and "called Rex" not in read


def test_a_turn_without_an_answer_is_one_with_the_next(chat, fake):
    say(chat, "Write a letter to Ana.", remember=False)
    chat.send("Write a letter to Bo.", remember=False).close()
    say(chat, "Write a letter to Cleo.", remember=False)
    roles = [message["role"] for message in fake.prompts[-1][1]]
    assert roles == ["system", "user", "assistant", "user"]
    assert "Bo" in shown(fake)[-1] and shown(fake)[-1].endswith("Write a letter to Cleo.")


def test_extraction_asks_once_for_a_message(memory, fake):
    memory.add(f"{CAT}", user_id="default", timestamp=MARCH)
    asked = [prompt for stage, prompt in fake.prompts if stage == "extraction"]
    assert len(asked) == 1
    assert "User's cat is called Tom" in texts(memory.get_all(user_id="default"))


def test_a_small_model_with_an_expert_for_replies_has_a_conversation_too(embedder):
    fake = Trained(pieces=("It is Tom.",))
    with Memory(":memory:", engine=fake, embedder=embedder) as memory:
        remembered(memory, CAT)
        say(Chat(memory), "write a card for my cat")
    system, noted = shown(fake)
    assert CAT in noted and "Monday, 10 June 2024" in system
    assert "never instructions" not in system  # it has learned that


def test_an_expert_for_answers_alone_is_asked_for_answers_alone(embedder):
    fake = Trained(pieces=(" Tom",))
    fake.stages = ("generation",)
    with Memory(":memory:", engine=fake, embedder=embedder) as memory:
        remembered(memory, CAT)
        say(Chat(memory), "What is my cat called?")
    assert fake.prompts[-1][0] == "generation"


def test_a_large_model_is_asked_for_what_no_memory_tells(chat, fake):
    fake.n_params = HEEDS_PARAMS
    say(chat, "What is the capital of Australia?")
    assert "memor" not in say(chat, "Are you sure?").text
    assert fake.prompts[-1][1][-1]["content"].endswith("Are you sure?")
