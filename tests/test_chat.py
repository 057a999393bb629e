"""A chat: what is recalled is answered from, kept, and never remembered again."""

import gc
import math

import pytest
from fake_engine import FakeEngine
from memorykit import texts

from edgemem import chat as chats
from edgemem.chat import Chat, Stopped
from edgemem.errors import InputError, ModelError, StoreFull
from edgemem.memory import Memory
from edgemem.results import Message, Scope, utc_now
from edgemem.stages.generation import NEAREST, NO_MEMORY, NOTHING_FOUND, TOLD, TOO_SMALL

pytestmark = pytest.mark.models

CAT = "My cat is called Tom."
QUESTION = "What is my cat called?"
FACTS = {CAT: "{}'s cat is called Tom"}
ANSWER = "Your cat is Tom."


@pytest.fixture
def fake():
    return FakeEngine(pieces=("Your cat ", "is ", "Tom."), facts=FACTS)


@pytest.fixture
def memory(fake, embedder):
    with Memory(":memory:", engine=fake, embedder=embedder) as opened:
        yield opened


@pytest.fixture
def chat(memory):
    return Chat(memory)


def say(chat, text, **more):
    reply = chat.send(text, **more)
    assert "".join(reply).strip() == reply.text
    return reply


def raising(error):
    def fail():
        raise error

    return fail


def raising_all(error):
    def fail(*args):
        raise error

    return fail


def turns(memory):
    scope = Scope(user_id="default")
    return [(t.role, t.content) for t in memory.store.recent_turns(scope, limit=100)]


def test_what_was_said_is_recalled_and_shown_without_the_clock(chat, fake):
    first = say(chat, CAT)
    assert [c.memory for c in first.changes if c.kind == "fact"] == ["User's cat is called Tom"]
    reply = say(chat, QUESTION)
    assert reply.found and reply.text == ANSWER
    assert {hit.memory for hit in reply.context} <= {CAT, "User's cat is called Tom"}
    stage, prompt = fake.prompts[-1]
    assert stage == "generation"
    assert CAT in prompt and prompt.index(CAT) < prompt.index(QUESTION)
    assert "Today is" not in prompt
    assert fake.within == [CAT]  # the turn's own words, and the turn alone
    assert reply.timings.keys() >= {"recall_ms", "ttft_s", "tokens_per_s", "remember_s"}
    assert reply.generation is not None


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("what day is it today", "Thursday"),
        ("What's the date today?", "26 November 2026"),
        ("what time is it", "14:05"),
        ("When is my next check?", "4 December"),
    ],
)
def test_the_day_and_the_time_are_the_clock_s(shipped, embedder, question, answer):
    with Memory(":memory:", engine=shipped, embedder=embedder) as memory:
        for text in ("My dentist is Dr Osei, next check on Friday 4 December.", CAT):
            memory.add(text, user_id="default", infer=False, timestamp="2026-11-20T10:00:00+00:00")
        reply = say(Chat(memory), question, timestamp="2026-11-26T14:05:00+00:00", remember=False)
        assert answer in reply.text


def test_an_answer_from_memory_is_kept_as_a_turn_and_never_remembered(chat, memory, fake):
    """mem0's users found 97.8 % junk, much of it recalled memories that were extracted again."""
    memory.add(CAT, user_id="default")
    before = texts(memory.get_all(user_id="default"))
    for _ in range(5):
        reply = say(chat, QUESTION)
        assert reply.text == ANSWER
        assert ANSWER not in texts(reply.hits)
    assert texts(memory.get_all(user_id="default")) == before
    assert [t for t in turns(memory) if t == ("assistant", ANSWER)] == [("assistant", ANSWER)] * 5
    read = [prompt for stage, prompt in fake.prompts if stage == "extraction"]
    assert len(read) == 1 and all(ANSWER not in prompt for prompt in read)
    assert memory.pending() == []


def test_what_the_model_says_of_itself_is_no_fact(chat, memory, fake):
    fake.pieces = ("I adopted ", "a dog in Oslo.")
    reply = say(chat, "I slept badly.")
    assert not reply.found
    assert texts(memory.get_all(user_id="default")) == ["I slept badly."]
    assert turns(memory)[-1] == ("assistant", "I adopted a dog in Oslo.")  # kept, never found
    assert "adopted" not in " ".join(texts(memory.search("Who adopted a dog?", user_id="default")))
    assert all("adopted" not in str(p) for stage, p in fake.prompts if stage == "extraction")


def test_nothing_relevant_is_said_to_be_nothing_and_asks_no_model(chat, memory, fake):
    reply = say(chat, "Where did my grandmother go to school?")
    assert (reply.text, reply.found, reply.context) == (NOTHING_FOUND, False, ())
    assert fake.prompts == []
    again = say(chat, "Where did my grandmother go to school?")
    assert again.text == NOTHING_FOUND  # an earlier question is no answer, nor is that it had none
    assert NOTHING_FOUND not in texts(memory.get_all(user_id="default"))


def test_a_statement_is_talked_about_and_not_answered_from_memory(chat, fake):
    say(chat, CAT)
    reply = say(chat, "My cat Tom is asleep.")
    assert not reply.found
    assert [stage for stage, _ in fake.prompts if stage != "extraction"] == ["talk", "talk"]


def test_closing_a_reply_in_the_middle_keeps_the_turn(chat, memory):
    say(chat, CAT)
    reply = chat.send(QUESTION)
    assert next(reply) == "Your cat "
    reply.close()
    assert (reply.text, reply.generation) == ("Your cat", None)
    assert turns(memory)[-2:] == [("user", QUESTION), ("assistant", "Your cat")]
    assert "Your cat" not in texts(memory.get_all(user_id="default"))
    assert list(reply) == []
    assert say(chat, QUESTION).text == ANSWER  # the engine is free again


def test_a_reply_that_is_dropped_ends_at_once(chat, memory):
    gc.disable()  # which would free it later, in any thread
    try:
        for _ in chat.send(CAT):
            break
        assert turns(memory) == [("user", CAT), ("assistant", "Your cat")]
    finally:
        gc.enable()


def test_an_answer_under_way_when_anything_is_erased_is_not_stored(chat, memory, fake):
    memory.add("The clinic said zebrafinch.", user_id="default", infer=False)
    fake.pieces = ("The clinic ", "said zebrafinch.")
    reply = chat.send("What did the clinic say?", remember="first")
    next(reply)
    memory.erase([item.id for item in memory.get_all()])
    assert "zebrafinch" in "".join(reply) + reply.text  # who asked still reads it
    assert turns(memory) == []
    fake.prompts.clear()
    say(chat, "Hello, how are you?")
    assert "zebrafinch" not in str(fake.prompts)


def test_what_is_erased_of_another_user_changes_nothing(chat, memory, fake):
    theirs = memory.add("Bob keeps bees.", user_id="bob", infer=False)[0].id
    say(chat, CAT)
    reply = chat.send(QUESTION, remember="first")
    next(reply)
    memory.erase(theirs)
    "".join(reply)
    assert turns(memory)[-2:] == [("user", QUESTION), ("assistant", ANSWER)]


def test_closing_a_reply_before_its_first_piece_keeps_the_message(chat, memory, fake):
    reply = chat.send(CAT)
    reply.close()
    assert turns(memory) == [("user", CAT)]
    assert "User's cat is called Tom" in texts(reply.changes)
    assert (reply.text, reply.generation, list(reply)) == ("", None, [])
    assert [stage for stage, _ in fake.prompts] == ["extraction"]


@pytest.mark.parametrize("pieces", [0, 1])
@pytest.mark.parametrize("read_on", [False, True])
def test_a_memory_closed_before_the_reply_ended_has_the_message_and_its_facts_wait(
    fake, embedder, tmp_path, pieces, read_on
):
    with Memory(tmp_path / "chat.db", engine=fake, embedder=embedder) as memory:
        reply = Chat(memory, fake).send("My dog is called Rex.")
        for _ in range(pieces):
            next(reply)
    if read_on:
        assert "".join(reply).endswith("Tom.")
    reply.close()
    assert reply.changes.pending == 1
    with Memory(tmp_path / "chat.db", engine=fake, embedder=embedder) as memory:
        assert turns(memory) == [("user", "My dog is called Rex.")]
        assert len(memory.pending()) == 1


@pytest.mark.parametrize("remember", [True, "first"])
def test_a_message_that_cannot_be_stored_gets_no_answer(chat, memory, fake, monkeypatch, remember):
    """On a full disk "Noted." was read first, and then the error."""
    monkeypatch.setattr(memory, "_writing", raising(StoreFull("the disk is full")))
    with pytest.raises(StoreFull, match="the disk is full"):
        chat.send(CAT, remember=remember)
    assert fake.prompts == []


@pytest.mark.parametrize("error", [KeyboardInterrupt(), ModelError("out of memory")])
def test_whatever_stops_the_model_keeps_the_turn(chat, memory, fake, error):
    fake.between = raising(error)
    reply = chat.send(CAT)
    assert next(reply) == "Your cat "
    with pytest.raises(type(error)):
        next(reply)
    assert turns(memory) == [("user", CAT), ("assistant", "Your cat")]
    assert texts(reply.changes) == [CAT, "User's cat is called Tom"]


@pytest.mark.parametrize("step", ["understood", "plan_answer"])
def test_ctrl_c_before_an_answer_begins_keeps_what_was_said(chat, memory, monkeypatch, step):
    """It was lost without a word: it is stored only after the models that plan the answer."""
    whole, stops = getattr(chats, step), [KeyboardInterrupt()]

    def stopped(*args):
        if stops:
            raise stops.pop()
        return whole(*args)

    monkeypatch.setattr(chats, step, stopped)
    with pytest.raises(Stopped) as stop:
        chat.send(CAT)
    assert stop.value.kept and turns(memory) == [("user", CAT)]
    assert len(memory.pending()) == 1
    assert say(chat, QUESTION).found


def test_ctrl_c_keeps_a_message_once_and_none_that_is_not_to_be_stored(chat, memory, monkeypatch):
    store = chat._store

    def stored(request):
        store(request)
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(chat, "_store", stored)
    with pytest.raises(Stopped) as stop:
        chat.send(CAT)
    assert stop.value.kept and turns(memory) == [("user", CAT)]
    for more, text in (({"remember": False}, CAT), ({}, "Forget what I said about my cat.")):
        monkeypatch.setattr(chats, "plan_answer", raising_all(KeyboardInterrupt()))
        with pytest.raises(Stopped) as stop:
            chat.send(text, **more)
        assert not stop.value.kept
    assert stop.value.wants == "erase"
    assert turns(memory) == [("user", CAT)]


def test_a_second_ctrl_c_leaves_a_message_unstored_and_says_so(chat, memory, monkeypatch):
    monkeypatch.setattr(chats, "understood", raising_all(KeyboardInterrupt()))
    with pytest.raises(Stopped) as stop:
        chat.send(CAT)
    assert (stop.value.kept, stop.value.wants, turns(memory)) == (False, None, [])


@pytest.mark.parametrize(
    ("text", "timestamp"),
    [(text, None) for text in ("", " \n", "a\0b", "half \ud800 a pair")]
    + [("hello", time) for time in ("nonsense", "", math.nan, 10**400)],
)
def test_what_cannot_be_stored_is_refused_at_once(chat, memory, text, timestamp):
    with pytest.raises(InputError, match="is no time" if text == "hello" else "the message"):
        chat.send(text, timestamp=timestamp)
    with pytest.raises(TypeError, match="the message must be a string, not NoneType"):
        chat.send(None)
    assert memory.store.counts()["turns"] == 0


def test_a_mode_that_is_none_is_refused_before_anything_is_stored(chat, memory):
    with pytest.raises(InputError, match="cloud is 'Ask'; give 'ask', 'auto' or 'off'"):
        chat.send("hello", cloud="Ask")
    assert not memory.get_all() and not turns(memory)


def test_remember_false_stores_nothing(chat, memory):
    say(chat, CAT)
    before = memory.store.counts()
    reply = say(chat, QUESTION, remember=False)
    assert (reply.text, reply.changes) == (ANSWER, None)
    say(chat, "My dog is called Rex.", remember=False)
    assert memory.store.counts() == before


def test_what_is_told_is_acknowledged_in_a_sentence(chat, fake):
    """A small model went on with what nobody had said."""
    fake.pieces = ("Good", " for you!", " I like", " it too.")
    assert say(chat, "My dog is called Rex.").text == "Good for you!"
    fake.pieces = ("Good for you", "!")
    reply = say(chat, "He is asleep now.")
    assert reply.text == "Good for you!" and reply.generation is not None


class Talks(FakeEngine):
    """A model with an expert for talk, which is sure."""

    log_p = 0.0

    def expert(self, stage):
        return stage in ("talk", "update")


def test_an_expert_for_talk_replies_to_what_is_told(embedder):
    engine = Talks(pieces=("Nice to", " meet you!"))
    with Memory(":memory:", engine=engine, embedder=embedder) as memory:
        assert say(Chat(memory), "My dog is called Rex.").text == "Nice to meet you!"


class Reads(FakeEngine):
    """An expert for short answers that knows who Karim is where it is shown."""

    log_p, answer = 0.0, "the technician"

    def expert(self, stage):
        return stage in ("generation", "update") or super().expert(stage)

    def stream(self, prompt, **how):
        known = "technician Karim" in prompt
        self.pieces = (f" {self.answer}",) if known else (" Not known",)
        return super().stream(prompt, **how)


def test_what_no_longer_holds_answers_what_nothing_else_tells(embedder):
    """The oven is fixed, so "the technician Karim comes" was over, and nobody knew Karim."""
    comes, fixed = "The technician Karim comes at eight.", "Karim fixed the oven."
    engine = Reads(facts={comes: "the technician Karim comes at eight"})
    with Memory(":memory:", engine=engine, embedder=embedder) as memory:
        said = [{"role": "user", "content": text} for text in (comes, fixed)]
        changes = memory.add(said, user_id="default")
        (fact,) = [change.id for change in changes if change.kind == "fact"]
        with memory.store.transaction() as tx:
            tx.invalidate(fact, utc_now())
        reply = say(Chat(memory), "What does Karim do?")
        assert reply.text == "the technician"
        assert any("technician" in hit.memory for hit in reply.context)
        assert comes in say(Chat(memory), "Who is Karim?").text


@pytest.mark.parametrize(
    ("said", "p", "answered"),
    [
        ("at eight", 0.5, "at eight"),
        ("at eight", 0.3, f"at eight\n\n{TOLD}"),
        ("at eight", 0.1, f"I'm not sure.\n\n{TOLD}"),
        ("Yes, at eight", 0.5, TOLD),
        ("Yes, at eight", 0.7, "Yes, at eight"),
        ("Not known", 0.9, f"{NOTHING_FOUND}\n\n{NEAREST}"),
    ],
)
def test_an_answer_that_is_not_reliable_comes_with_what_was_told(embedder, said, p, answered):
    engine = Reads()
    engine.log_p = math.log(p)
    told = "- 1 May 2024: The technician Karim comes at eight."
    with Memory(":memory:", engine=engine, embedder=embedder) as memory:
        said_then = ("The technician Karim comes at eight.", "I sing in a choir.")
        memory.add(said_then, user_id="default", timestamp="2024-05-01T10:00Z", infer=False)
        engine.answer = said
        reply = say(Chat(memory), "When does the technician Karim come?")
        assert reply.text == (f"{answered}\n{told}" if answered.endswith(":") else answered)
        other = say(Chat(memory), "Which bus goes to the stadium?")
        assert said != "Not known" or other.text == NOTHING_FOUND


def test_who_is_not_answered_with_a_day(embedder):
    """ "Milo takes over the roof from monday", asked who is on the roof: "monday" """
    engine = Reads()
    engine.log_p, engine.answer = math.log(0.9), "monday"
    with Memory(":memory:", engine=engine, embedder=embedder) as memory:
        told = "The technician Karim takes over the roof from monday."
        memory.add(told, user_id="default", infer=False)
        reply = say(Chat(memory), "Who is on the roof?")
        assert reply.text.startswith(f"I'm not sure.\n\n{TOLD}") and told in reply.text
        assert say(Chat(memory), "When does Karim take over the roof?").text == "monday"


def test_what_a_memory_denies_is_no_answer(embedder):
    """ "200" was the answer after "it was 240 hawthorn I ordered, not 200"."""
    engine = Reads()
    engine.answer = "200"
    with Memory(":memory:", engine=engine, embedder=embedder) as memory:
        for told in ("The technician Karim ordered 200 pots.", "Karim ordered 240 pots, not 200."):
            memory.add(told, user_id="default", infer=False)
        assert say(Chat(memory), "How many pots did Karim order?").text.startswith("I'm not sure.")
        assert say(Chat(memory), "How many pots did Karim order before?").text == "200"


def test_a_small_model_knows_of_the_world_nothing_of_somebody_known(embedder):
    """To "can Sanne use a chainsaw?" it said yes; her certificate had been told."""
    engine = Reads(
        wants=dict.fromkeys(ASKED_OF, "general"), facts={KNOWN: "sister Sanne is a vet in Leeds"}
    )
    with Memory(":memory:", engine=engine, embedder=embedder) as memory:
        memory.add(KNOWN, user_id="default")
        for asked, wants in ASKED_OF.items():
            assert say(Chat(memory), asked).wants == wants


KNOWN = "My sister Sanne is a vet in Leeds."
ASKED_OF = {"Can Sanne use a chainsaw?": "recall", "Can otters use tools?": "general"}


@pytest.mark.parametrize(("asked", "told"), [("Can Noah eat nuts?", True), ("Is rain wet?", False)])
def test_general_knowledge_that_was_told_of_is_answered_from_memory(embedder, asked, told):
    """To "can Noah eat nuts?" a small model said yes, though his allergy had been told."""
    engine = Reads(wants={asked: "general"})
    with Memory(":memory:", engine=engine, embedder=embedder) as memory:
        allergy = "Noah is allergic to nuts, said the technician Karim."
        memory.add(allergy, user_id="default", infer=False)
        reply = say(Chat(memory), asked)
        assert (reply.text == "the technician", reply.wants == "recall") == (told, told)


@pytest.mark.parametrize(
    ("asked", "answer", "wants"),
    [
        ("Who invented the piano?", "Not known", "general"),
        ("Who invented the piano?", "Karim", "recall"),
        ("Who invented the piano for Sanne?", "Not known", "recall"),
        ("Who invented my piano?", "Not known", "recall"),
    ],
)
def test_what_may_be_of_the_world_is_not_refused_for_want_of_a_memory(
    embedder, asked, answer, wants
):
    engine = Reads(wants={asked: "recall"}, facts={KNOWN: "sister Sanne is a vet in Leeds"})
    engine.answer, engine.log_p, engine.n_params = answer, math.log(0.9), 1_500_000_000
    with Memory(":memory:", engine=engine, embedder=embedder) as memory:
        memory.add(KNOWN, user_id="default")
        memory.add("I bought a piano, says technician Karim.", user_id="default", infer=False)
        assert say(Chat(memory), asked).wants == wants


def test_what_follows_a_question_of_general_knowledge_is_one(embedder):
    """ "And of Morocco?" was refused, as no memory tells its capital."""
    first, second = "What is the capital of Portugal?", "And of Morocco?"
    for told, wants in (
        ("My dog is called Rex.", "general"),
        ("Ann flies to Morocco in May.", "recall"),
    ):
        engine = Reads(wants={first: "general", second: "recall"})
        with Memory(":memory:", engine=engine, embedder=embedder) as memory:
            memory.add(told, user_id="default", infer=False)
            chat = Chat(memory)
            say(chat, first, remember=False)
            assert say(chat, second, remember=False).wants == wants, told


def test_a_question_that_refers_to_nothing_is_asked_alone(embedder):
    """The boss became the answer to who was asked about next."""
    engine = Reads()
    with Memory(":memory:", engine=engine, embedder=embedder) as memory:
        memory.add("The technician Karim comes at eight.", user_id="default", infer=False)
        chat = Chat(memory)
        for text, follows in (("What does Karim do?", False), ("And who is he?", True)):
            say(chat, "Who is my boss?", remember=False)
            say(chat, text, remember=False)
            assert ("my boss" in engine.prompts[-1][1]) is follows


def test_a_question_without_its_mark_is_never_shown_as_what_was_told(embedder):
    engine = Reads()
    with Memory(":memory:", engine=engine, embedder=embedder) as memory:
        chat = Chat(memory)
        for text in ("what is my cat called", CAT, "and who is my vet"):
            say(chat, text, remember=False)
        shown = [line for line in engine.prompts[-1][1].splitlines() if " said: " in line]
        assert [line.split('"')[1] for line in shown] == [CAT]


def test_remember_false_still_goes_on_with_the_talk(chat, fake):
    say(chat, "My dog is called Rex.", remember=False)
    say(chat, "What is the capital of Portugal?", remember=False)
    _, messages = fake.prompts[-1]
    said = [(m["role"], m["content"]) for m in messages if m["role"] != "system"]
    assert said == [
        ("user", "My dog is called Rex."), ("assistant", ANSWER),
        ("user", "What is the capital of Portugal?"),
    ]  # fmt: skip


def test_two_users_do_not_share_what_they_say(memory):
    say(Chat(memory, user_id="ana"), CAT)
    assert say(Chat(memory, user_id="ana"), QUESTION).found
    assert say(Chat(memory, user_id="bo"), QUESTION).text == NOTHING_FOUND


def test_a_message_may_be_dated(chat, memory):
    reply = say(chat, CAT, timestamp="2024-05-01T10:00:00+00:00")
    assert {memory.get(c.id).valid_from[:10] for c in reply.changes} == {"2024-05-01"}


def test_the_real_model_recalls_over_sessions_and_learns_nothing_from_it(
    engine, embedder, tmp_path
):
    file = tmp_path / "chat.db"
    with Memory(file, engine=engine, embedder=embedder) as memory:
        say(Chat(memory), "My dog is called Biscuit.", timestamp="2024-05-01T10:00:00+00:00")
    with Memory(file, engine=engine, embedder=embedder) as memory:
        chat = Chat(memory)
        before = texts(memory.get_all(user_id="default"))
        for _ in range(2):
            assert "Biscuit" in say(chat, "What is my dog called?").text
            assert texts(memory.get_all(user_id="default")) == before


def test_what_a_memory_answers_is_no_question_of_the_world(shipped, embedder):
    with Memory(":memory:", engine=shipped, embedder=embedder) as memory:
        told = "I learn Portuguese. My teacher is called Joana, and I practise with her."
        memory.add(told, user_id="default", infer=False)
        asked = say(Chat(memory), "Who teaches me Portuguese?", remember=False)
        assert "Joana" in asked.text and asked.found
        assert not say(Chat(memory), "What is the capital of Peru?", remember=False).found


def test_stored_first_the_message_is_there_before_the_answer_and_its_facts_wait(chat, memory, fake):
    reply = chat.send(CAT, remember="first")
    assert turns(memory) == [("user", CAT)] and len(memory.pending()) == 1
    "".join(reply)
    assert turns(memory) == [("user", CAT), ("assistant", ANSWER)]
    assert texts(memory.get_all(user_id="default")) == [CAT]
    assert texts(reply.changes) == [CAT] and reply.changes.pending == 1
    memory.process_pending()
    assert texts(memory.get_all(user_id="default")) == [CAT, "User's cat is called Tom"]
    assert chat.send(QUESTION, remember="first").found


def test_stored_first_a_message_stays_when_the_answer_is_stopped_or_fails(chat, memory, fake):
    reply = chat.send(CAT, remember="first")
    next(reply)
    reply.close()
    assert turns(memory) == [("user", CAT), ("assistant", "Your cat")]
    fake.between = raising(ModelError("no more"))
    with pytest.raises(ModelError):
        "".join(chat.send("It is grey.", remember="first"))
    assert ("user", "It is grey.") in turns(memory)


def test_a_question_about_a_month_is_answered_from_what_held_then(embedder):
    bergen, oslo = "I live in Bergen.", "I moved to Oslo and live there now."
    facts = {bergen: "{} lives in Bergen", oslo: "{} moved to Oslo and lives there now"}
    ends = {facts[oslo].format("User"): facts[bergen].format("User")}
    fake = FakeEngine(pieces=("Bergen.",), facts=facts, ends=ends)
    with Memory(":memory:", engine=fake, embedder=embedder) as memory:
        memory.add(bergen, user_id="default", timestamp="2024-02-10T12:00Z")
        memory.add(oslo, user_id="default", timestamp="2024-06-10T12:00Z")
        chat = Chat(memory)
        then = say(chat, "Where did I live in March?", timestamp="2024-07-01T12:00Z")
        assert [r.destination for r in then.hits.relations] == ["Bergen"]  # over by now
        assert bergen in fake.prompts[-1][1]
        now = say(chat, "Where do I live?", timestamp="2024-07-01T12:00Z")
        assert [r.destination for r in now.hits.relations] == ["Oslo"]
        assert bergen not in fake.prompts[-1][1]


def test_are_you_sure_is_answered_with_what_the_answer_rests_on(shipped, embedder):
    with Memory(":memory:", engine=shipped, embedder=embedder) as memory:
        chat = Chat(memory)
        for text in ("My dentist is Dr Osei.", "I work at the bakery in Leeds."):
            memory.add(text, user_id="default", infer=False)
        assert "Osei" in say(chat, "Who is my dentist?").text
        for asked in ("Are you sure?", "How do you know that?"):
            reply = say(chat, asked)
            assert reply.wants == "source" and [hit.memory for hit in reply.context] == [
                "My dentist is Dr Osei."
            ]
            assert reply.text.splitlines()[0] == "This is what you told me:"
        say(chat, "What is the capital of Peru?")
        assert say(chat, "How do you know that?").text == NO_MEMORY


def test_a_client_that_names_no_wants_is_told_what_an_answer_rests_on(shipped, embedder):
    with Memory(":memory:", engine=shipped, embedder=embedder) as memory:
        memory.add("My dentist is Dr Osei.", user_id="default", infer=False)
        said = [("user", "Who is my dentist?"), ("assistant", "Dr Osei")]
        turns = [Message(role, text, "2026-11-26T14:05:00+00:00") for role, text in said]
        assert "Osei" in say(Chat(memory, turns=turns), "Are you sure?").text
        assert say(Chat(memory), "Are you sure?").text == NO_MEMORY


@pytest.mark.parametrize("text", ["You're right.", "That makes no sense.", "good to know"])
def test_a_remark_is_not_remembered_and_not_said_to_be(shipped, embedder, text):
    with Memory(":memory:", engine=shipped, embedder=embedder) as memory:
        reply = say(Chat(memory), text)
        assert reply.wants is None and reply.text not in ("Noted.", "Thanks, I've got that now.")
        assert not memory.get_all(user_id="default")


def test_what_a_small_model_cannot_edit_it_does_not_take_for_news(shipped, embedder):
    with Memory(":memory:", engine=shipped, embedder=embedder) as memory:
        chat = Chat(memory)
        say(chat, "Write a short message to Sami.")
        assert say(chat, "Make it shorter and say that Tom is coming too.").text == TOO_SMALL


def test_without_a_user_a_chat_is_of_all_users_of_its_agent(memory):
    memory.add(CAT, user_id="maya", agent_id="shop", infer=False)
    assert not say(Chat(memory, agent_id="shop"), QUESTION, remember=False).found
    shop = Chat(memory, user_id=None, agent_id="shop")
    assert say(shop, QUESTION).found
    say(shop, "We need milk.")
    told = [item for item in memory.get_all(agent_id="shop") if "milk" in item.memory]
    assert {(item.user_id, item.agent_id) for item in told} == {(None, "shop")}


def test_are_you_sure_after_a_list_is_answered_with_that_list(shipped, embedder):
    with Memory(":memory:", engine=shipped, embedder=embedder) as memory:
        chat = Chat(memory)
        for text in ("The dentist is on 10 December 2026.", "We fly to Porto on 12 December 2026."):
            memory.add(text, user_id="default", infer=False, timestamp="2026-11-20T10:00:00Z")
        now = "2026-12-08T10:00:00Z"
        listed = say(chat, "What do I have on this week?", timestamp=now)
        assert len(listed.context) == 2
        assert say(chat, "Are you sure?", timestamp=now).context == listed.context
        memory.delete(listed.context[0].id)
        assert len(say(chat, "Are you sure?", timestamp=now).context) == 1


@pytest.mark.parametrize(
    "text", ["I like that one.", "I'll think about it.", "That's my favourite.", "Vegan.", "740*"]
)
def test_a_terse_message_that_tells_something_is_remembered(shipped, embedder, text):
    with Memory(":memory:", engine=shipped, embedder=embedder) as memory:
        say(Chat(memory), text)
        assert memory.get_all(user_id="default")
