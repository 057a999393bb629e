"""What a message wants, and what memories it is answered with."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from fake_engine import FakeEngine
from hypothesis import given
from hypothesis import strategies as st
from memorykit import crowd

from corpus import annotated, readers
from edgemem.chat import Chat
from edgemem.errors import InputError, ModelError
from edgemem.language import is_not_to_be_kept
from edgemem.memory import Memory
from edgemem.results import Scope
from edgemem.runtime import onnxfile
from edgemem.stages.generation import (
    ABOUT_ITSELF,
    CHECK_THIS,
    DOES_NOTHING,
    DOES_NOTHING_BUT_KEEPS,
    ERASES_NOTHING,
    KEEPS_AND_ERASES_NOTHING,
    NOTHING_FOUND,
)
from edgemem.stages.intent import (
    BUCKETS,
    CLASSES,
    Intent,
    as_meant,
    decided,
    expert_prompt,
    expert_target,
    features,
    intent,
)
from edgemem.stages.reply import NOTED

pytestmark = pytest.mark.models

MOVED = "I moved to Bergen in May."
SAMI = "Sami must not eat peanuts."


ASKED = [
    ("where do i live", "recall", False),
    ("Which doctor does Ana see now?", "recall", False),
    ("summarize what you know about me", "overview", False),
    ("what is the capital of peru", "general", False),
    ("who are you", "self", False),
    ("guess what? we got the flat in Bergen!", None, True),
    ("I work at Shell since Monday.", None, True),
    ("do I drink coffee?", "recall", False),
    ("Do I like olives?", "recall", False),
    ("do you like olives?", "self", False),
    ("wens my dentist", "recall", False),
    ("wots the wifi at mums", "recall", False),
    ("Lia's birthday party is next Saturday at 3pm, 11 kids are coming.", None, True),
]


# That he has one may be news, as far as the regression knows.
TASKS = [
    ("suggest a birthday present for my brother", "task"),
    ("write a birthday card for my brother", "text"),
]


@pytest.mark.parametrize(("text", "wants", "tells"), [*ASKED, *((*task, True) for task in TASKS)])
def test_any_model_is_told_asking_from_telling(embedder, text, wants, tells):
    assert intent(FakeEngine(), embedder, text) == Intent(wants, tells)


BOTH = [
    ("my sister lives in Oslo now, how far is Oslo from Bergen", "general", True),
    ("Our neighbour Hedwig fears needles. Whom else could I ask to help her?", "task", True),
    ("the cat hates the tablet. i have tuna, hide it in that?", "task", True),
    ("I got the job, can you believe it?", None, True),
]


@pytest.mark.parametrize(
    ("text", "wants", "tells"), [*ASKED, *((*task, False) for task in TASKS), *BOTH]
)
def test_the_shipped_expert_tells_asking_from_telling(shipped, embedder, text, wants, tells):
    assert intent(shipped, embedder, text) == Intent(wants, tells)


@pytest.mark.parametrize(
    "text",
    [
        "Forget my locker code.",
        "Forget my locker code at the gym.",
        "forget my IBAN",
        "Forget my salary.",
        "Forget what I said about Leire.",
        "Delete my locker code.",
        "Remove my phone number.",
        "Erase the PIN.",
        "You can forget the hotel in Hannover.",
        "Please forget my PIN.",
        "Forget Jürgen's birthday.",
        "Forget about the trip to Köln.",
        "Vergiss bitte meinen Spind-Code.",
        "Olvida el código de la taquilla",
    ],
)
def test_a_short_request_to_forget_is_one_and_is_not_kept(shipped, embedder, text):
    """ "Forget my locker code." got "Noted.", and was kept."""
    assert intent(shipped, embedder, text) == Intent("erase", tells=False)


@pytest.mark.parametrize(
    "text",
    [
        "don't let me forget the milk",
        "I always forget my keys.",
        "I deleted the app.",
        "I forgot my umbrella.",
        "I had my wisdom tooth removed.",
        "I will never forget that summer.",
        "Ich habe meinen Regenschirm vergessen.",
        "Nunca olvidaré ese verano.",
    ],
)
def test_news_of_what_is_forgotten_or_removed_are_kept(shipped, embedder, text):
    found = intent(shipped, embedder, text)
    assert found.tells and found.wants != "erase"


@pytest.mark.parametrize(
    ("text", "before", "wants"),
    [
        ("Are you sure the dentist is on Friday?", "The dentist is on Friday.", "recall"),
        ("are you sure its on friday", "When is the dentist?", "source"),
        ("Are you sure nobody can read this?", "", "self"),
    ],
)
def test_whether_something_is_so_is_no_question_about_the_assistant(
    shipped, embedder, text, before, wants
):
    assert intent(shipped, embedder, text, before) == Intent(wants, tells=False)


def test_what_is_so_no_longer_is_news_and_no_request_to_forget(shipped, embedder):
    """It got how to erase, and was not kept."""
    told = intent(shipped, embedder, "That's not my address anymore.", "What is my address?")
    assert told == Intent(None, tells=True)
    for wiped in ("That's not my address anymore, delete it", "Stop storing my address any more."):
        assert intent(shipped, embedder, wiped, "What is my address?").wants == "erase"


@pytest.mark.parametrize(
    ("text", "before", "asked"),
    [
        ("no, I meant Shona's", "When is my brother's birthday?", "When is Shona's birthday?"),
        ("I meant my sister's", "When is the birthday?", "When is my sister's birthday?"),
        ("for the office i mean", "what's the wifi password", "And for the office?"),
        ("I mean 4812", "whats the pin of the lock", None),  # news
        ("I meant to tell you that we moved", "Where do I live?", None),
        ("no, it's on Tuesday", "When is the dentist?", None),
        ("I am talking to Tom tomorrow about the house", "When is my sister's birthday?", None),
        ("I'm asking my doctor about the pills", "When is my sister's birthday?", None),
    ],
)
def test_what_was_meant_is_asked_in_the_question_before_and_is_no_news(
    shipped, embedder, text, before, asked
):
    """ "I meant my sister's" was kept as news."""
    wanted = intent(shipped, embedder, text, before)
    of_client = None if before.endswith("?") else "recall"
    for after in ("recall", of_client):
        found = as_meant(embedder, text, before, after, wanted)
        meant = (text, wanted) if asked is None else (asked, Intent("recall", tells=False))
        assert found == meant


@pytest.mark.parametrize(
    ("said", "found"),
    [
        ("recall", Intent("recall", tells=False)),
        ("tell", Intent(None, tells=True)),
        ("tell and general", Intent("general", tells=True)),
        ("task", Intent("task", tells=False)),
        ("tell and task", Intent("task", tells=True)),
        ("", Intent(None, tells=True)),
    ],
)
def test_an_expert_decides_where_there_is_one(embedder, said, found):
    engine = FakeEngine(wants={"where do i live": said})
    assert intent(engine, embedder, "where do i live") == found


@pytest.mark.parametrize(("p", "wants"), [(0.999999, "general"), (0.5, "recall")])
def test_an_expert_that_is_not_sure_is_outvoted(embedder, p, wants):
    class Says(FakeEngine):
        def generate(self, prompt, **how):
            return replace(super().generate(prompt, **how), log_p=math.log(p))

    engine: Any = Says(wants={"where do i live": "general"})
    assert intent(engine, embedder, "where do i live").wants == wants


def test_a_request_to_forget_is_not_kept_because_an_outvoted_expert_took_it_for_news(
    embedder,
):
    class Says(FakeEngine):
        def generate(self, prompt, **how):
            return replace(super().generate(prompt, **how), log_p=math.log(0.5))

    text = "Please forget my PIN."
    engine: Any = Says(wants={text: "tell"})
    assert intent(engine, embedder, text) == Intent("erase", tells=False)


def test_what_is_told_beside_a_question_is_kept(embedder):
    """Twelve hydrangeas along the drive were told once, beside a question, and never found."""
    asked, told = "Is it too early to prune the hydrangeas?", "I have twelve along the drive."
    engine: Any = FakeEngine(wants={asked: "task", f"{asked} {told}": "task"})
    assert not intent(engine, embedder, asked).tells
    assert intent(engine, embedder, f"{asked} {told}").tells


def test_a_long_request_is_kept_without_reading_each_of_its_sentences(embedder):
    text = " ".join(["where do i live?"] * 1000)
    engine: Any = FakeEngine(wants={text[-400:]: "recall"})
    read = list[str]()

    class Counts:
        model_id, dim = embedder.model_id, embedder.dim

        def embed_query(self, text):
            read.append(text)
            return embedder.embed_query(text)

    counts: Any = Counts()
    assert intent(engine, counts, text) == Intent("recall", tells=True) and len(read) < 3


def test_to_an_expert_a_text_is_a_task(embedder):
    assert expert_target("text", tells=True) == " tell and task"
    asked = "write a birthday card for my brother"
    engine: Any = FakeEngine(wants={asked: "task"})
    assert intent(engine, embedder, asked).wants == "text"


def test_a_task_is_sure_though_it_may_be_a_text():
    row = np.full(len(CLASSES) + 1, -9.0, np.float32)
    row[CLASSES.index("task")], row[CLASSES.index("text")], row[CLASSES.index("edit")] = (
        1.0,
        1.1,
        1.2,
    )
    assert CLASSES[decided(row[None])[0][0]] == "text"


def test_what_is_not_sure_wants_nothing_and_tells_by_its_own_probability():
    unsure, sure = np.full(len(CLASSES), 1.0), np.zeros(len(CLASSES))
    sure[CLASSES.index("general")] = 9.0
    unsure[CLASSES.index("recall")] = 2.0
    rows = [[*wants, telling] for wants in (unsure, sure) for telling in (-4.0, 0.0)]
    classes, tells = decided(np.array(rows, np.float32))
    assert [CLASSES[c] for c in classes] == [None, None, "general", "general"]
    assert tells.tolist() == [False, True, False, True]


def test_another_embedding_model_leaves_the_words_to_decide(embedder):
    class Other:
        model_id, dim = "other@0", 2

        def embed_query(self, _):
            raise AssertionError("a vector of another model says nothing here")

    for text, wants in (("where do i live", "recall"), ("we got the flat in Bergen!", None)):
        assert intent(FakeEngine(), Other(), text).wants == wants


@given(st.text(max_size=600))
def test_the_words_of_any_text_are_a_vector_of_one_length(text):
    buckets, values = features(text)
    assert (
        buckets.min() >= 0 and buckets.max() < BUCKETS and len({*buckets.tolist()}) == len(buckets)
    )
    assert np.linalg.norm(values) == pytest.approx(3.0, rel=1e-5)


def test_only_the_end_of_a_long_message_is_read(embedder):
    engine: Any = FakeEngine()
    long = "we got the flat. " * 4000 + "x" * 400
    assert intent(engine, embedder, long) == intent(engine, embedder, "x" * 400)


def test_the_weights_have_a_column_for_each_want_and_one_for_telling():
    weights = onnxfile.expert("intent")
    columns = len(CLASSES) + 1
    assert weights["words"].shape == (BUCKETS, columns) and weights["bias"].shape == (columns,)


def test_an_expert_reads_the_end_of_a_long_message_and_what_was_said_before():
    read = expert_prompt("why " * 400 + "is it so", "and\nbefore")
    assert len(read) < 700 and "Before: and before\n" in read and "is it so\nIt wants:" in read


@pytest.fixture
def memory(embedder):
    days = ("2026-03-02T10:00:00+00:00", "2026-05-04T10:00:00+00:00")
    with Memory(":memory:", engine=FakeEngine(), embedder=embedder) as opened:
        for text, day in zip((SAMI, MOVED), days, strict=True):
            opened.add(text, user_id="ana", infer=False, timestamp=day)
        yield opened


def asked(memory, text, remember=True):
    reply = Chat(memory, user_id="ana").send(text, remember=remember)
    list(reply)
    return reply


def last_prompt(memory):
    stage, prompt = memory.engine.prompts[-1]
    return stage, str(prompt)


def test_what_asks_without_a_mark_is_answered_from_memory(memory):
    reply = asked(memory, "where do i live")
    stage, prompt = last_prompt(memory)
    assert (stage, reply.found) == ("generation", True) and MOVED in prompt


def test_a_question_in_haste_is_answered_in_plain_words_and_kept_in_its_own(memory):
    typed = "wen did i move 2 bergen"
    list(Chat(memory, user_id="ana").send(typed))
    stage, prompt = last_prompt(memory)
    assert stage == "generation" and "when did i move" in prompt and MOVED in prompt
    turns = memory.store.recent_turns(Scope(user_id="ana"), before=None, limit=9)
    assert typed in [turn.content for turn in turns]


def test_a_message_is_kept_when_the_model_cannot_tell_what_it_wants(memory):
    def fail(*_, **__):
        raise ModelError("out of memory")

    engine: Any = memory.engine
    engine.wants["anything"] = "tell"  # there is an expert
    engine.generate = fail
    assert intent(engine, memory.embedder, "where do i live") == Intent("recall", tells=True)
    list(Chat(memory, user_id="ana").send("we got the flat"))
    assert "we got the flat" in [item.memory for item in memory.get_all(user_id="ana")]


def test_what_is_not_known_is_said_not_to_be(memory):
    crowd(memory)
    assert asked(memory, "what does zlatan's tortoise weigh").text == NOTHING_FOUND


def test_an_overview_and_a_task_tell_what_was_told_in_its_own_words(memory):
    overview = asked(memory, "summarize what you know about me").text
    assert overview.splitlines()[1:] == [f"- 2 March 2026: {SAMI}", f"- 4 May 2026: {MOVED}"]
    task = asked(memory, "what should i cook for sami")
    assert f"- 2 March 2026: {SAMI}" in task.text and task.context
    stages = {stage for stage, _ in memory.engine.prompts}
    assert stages <= {"extraction"}  # no model says it


def test_an_earlier_request_bears_on_no_other(memory):
    asked(memory, "suggest a pizza for me")
    task = asked(memory, "what should i cook for sami")
    assert SAMI in task.text and "pizza" not in task.text


def test_other_talk_is_shown_no_memory(memory):
    for text in ("tell me a joke about bergen", "shorter please"):
        reply = asked(memory, text)
        stage, prompt = last_prompt(memory)
        assert stage == "talk" and MOVED not in prompt and not reply.found


def test_no_model_says_who_the_assistant_is(memory):
    told = Chat(memory, user_id="ana", instructions="You are Marvin.")  # it follows none
    assert "".join(told.send("are you ana", remember=False)) == ABOUT_ITSELF
    reply = asked(memory, "are you ana")
    assert "AI assistant" in reply.text and "Ana" not in reply.text
    assert reply.generation is None and "tokens_per_s" not in reply.timings
    assert memory.engine.prompts == []


def test_a_message_is_no_request_to_forget_where_the_regression_rules_it_out(
    memory,
):
    """ "I don't want to talk about it" was answered with how to erase, and not kept."""
    for text in ("i mean tuesdays not mondays sry", "i dont wanna talk abt it"):
        memory.engine.wants[text] = "erase"
        found = intent(memory.engine, memory.embedder, text, "we broke up")
        assert (found.wants, found.tells) == (None, True)


def test_what_a_small_model_knows_of_the_world_comes_with_a_caution(memory):
    memory.engine.wants["how far is the sun"] = "general"
    assert asked(memory, "how far is the sun").text.endswith(CHECK_THIS)


def test_news_that_an_expert_takes_for_a_deed_is_acknowledged(memory):
    """Ankles that were swollen again were answered with "I can't do that"."""
    text = "The practice rang back: I stop the old pills tomorrow"
    memory.engine.wants[text] = "act"
    assert asked(memory, text).wants is None


def test_no_model_says_that_something_is_erased_and_the_request_is_not_kept(memory):
    before = memory.store.counts()
    for remember in (True, "first"):
        reply = asked(memory, "forget what i said about bergen", remember)
        assert reply.text == KEEPS_AND_ERASES_NOTHING and reply.wants == "erase"
        assert MOVED in [hit.memory for hit in reply.hits]
    assert memory.store.counts() == before
    assert memory.engine.prompts == []


@pytest.mark.parametrize(
    "text",
    [
        "Don't remember this: my PIN is 4471.",
        "off the record, i hate my job",
        "I earn 2,900 a month. Please don't write that down anywhere.",
        "the code for the safe is 0412 - do not store",
        "Don't keep this in memory, I failed my exam.",
        "Don't add this to your memory. I'm seeing Bo.",
        "Do not save anything I say today. My ex is Bo.",
        "Forget this right away, I owe Bo 300.",
    ],
)
def test_what_says_that_it_is_not_to_be_kept_is_not_kept(memory, text):
    memory.engine.wants[text] = "tell"
    before = memory.store.counts()
    assert asked(memory, text, True).text == KEEPS_AND_ERASES_NOTHING
    assert memory.store.counts() == before


@pytest.mark.parametrize(
    "text",
    [
        "I don't remember this song",
        "My brother doesn't store it in the shed.",
        "Please don't save that seat for me, I can't come.",
        "My teacher said don't note everything",
        "Don't write this down as a loss: my shop made 3,000.",
        "Off the record player it went.",
        "Where did I put my passport? Don't remember.",
        "My doctor told me about aspirin: don't take it.",
        "I don't drink milk and don't add it.",
        "Don't you remember what I said?",
        "Don't forget this: I'm allergic to latex",
    ],
)
def test_what_only_has_the_same_words_is_kept(text):
    assert not is_not_to_be_kept(text)


def test_a_request_to_forget_that_tells_news_is_kept(memory):
    text = "we moved to oslo on friday, please forget what i said about bergen"
    memory.engine.wants[text] = "tell and erase"
    assert asked(memory, text).text == ERASES_NOTHING
    assert text in [item.memory for item in memory.get_all(user_id="ana")]


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("set a timer for 10 minutes", DOES_NOTHING),
        ("remind me to call the plumber on friday", DOES_NOTHING_BUT_KEEPS),
    ],
)
def test_no_model_says_that_it_has_done_something(memory, text, answer):
    reply = asked(memory, text)
    assert reply.text == answer and reply.generation is None
    kept = [item.memory for item in memory.get_all(user_id="ana")]
    assert any("plumber" in memory for memory in kept) is (answer == DOES_NOTHING_BUT_KEEPS)


@pytest.mark.parametrize(
    ("text", "kept"),
    [("where did i move to", False), ("we sold the blue car, where did i move to in May?", True)],
)
def test_what_only_asks_is_never_found_again(memory, text, kept):
    asked(memory, text)
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


def test_examples_come_from_messages_and_from_later_chats(tmp_path):
    lines, talk = tmp_path / "messages.txt", tmp_path / "talk.txt"
    lines.write_text(MESSAGES)
    talk.write_text(TALK)
    assert readers.is_messages(lines) and not readers.is_messages(talk)
    assert [e.target for e in annotated.intent_examples(readers.read_messages(lines))] == [
        " tell",
        " tell and task",
    ]
    made = list(annotated.intent_examples(annotated.labelled(*readers.read_written(talk))))
    assert [e.target for e in made] == [" recall", " edit", " tell"]
    assert "Before: what is my dog called\n" in made[1].prompt
    assert made[0].target == expert_target("recall", tells=False)


def test_messages_of_a_chat_are_said_after_each_other(tmp_path):
    file = tmp_path / "messages.txt"
    file.write_text("~\n(recall) how old is rex\n(tell) we sold the van\n~\n(tell) hi\n")
    assert readers.is_messages(file)
    read = list(readers.read_messages(file))
    assert [m.before for m in read] == ["", "how old is rex", ""]
    assert read[0].group == read[1].group != read[2].group


def test_facts_below_the_messages_of_a_chat_are_of_these_messages(tmp_path):
    file = tmp_path / "messages.txt"
    told = "(tell) im kofi\n= User is Kofi.\n(recall) who am i\n(tell) no, koby\n= User is Koby.\n"
    file.write_text(f"~\n{told}~\n(tell) hi\n")
    said = [message.text for message in readers.read_messages(file)]
    assert said == ["im kofi", "who am i", "no, koby", "hi"]
    first, second = readers.read_told(file)
    assert [pair.facts for pair in first.pairs] == [("User is Kofi.",), (), ("User is Koby.",)]
    assert [m.content for m in first.pairs[2].context] == ["who am i", NOTED]
    assert not second.pairs
    file.write_text("~\n(tell) hi\n")
    assert readers.read_told(file) == []


def test_empty_lines_of_messages_are_passed_over(tmp_path):
    file = tmp_path / "messages.txt"
    file.write_text("\n(tell) fine\n\n(recall) where do I live\u2028now\n")
    assert readers.is_messages(file)
    assert [m.text for m in readers.read_messages(file)] == ["fine", "where do I live\u2028now"]


@pytest.mark.parametrize("line", ["no brackets", "(ask) what", "(tell and sing) la"])
def test_a_line_that_wants_nothing_known_is_named(tmp_path, line):
    file = tmp_path / "messages.txt"
    file.write_text(f"(tell) fine\n{line}\n")
    with pytest.raises(InputError, match="line 2"):
        list(readers.read_messages(file))


def test_half_of_the_examples_have_no_capitals_and_marks(tmp_path):
    file = tmp_path / "messages.txt"
    file.write_text("(tell) At 7:30, in Ostrava!\n" * 200)
    read = [
        str(e.prompt).rpartition("Message: ")[2]
        for e in annotated.intent_examples(readers.read_messages(file))
    ]
    bare = sum(text.startswith("at 7:30 in ostrava\n") for text in read)
    assert 60 < bare < 140
