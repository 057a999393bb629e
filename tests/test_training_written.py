"""Conversations written for training, and the examples made of them."""

import json
import re
from functools import cache
from pathlib import Path

import pytest
from fake_engine import FakeEngine
from memorykit import quick

from corpus import annotated, evaluate, readers
from corpus.annotated import examples
from corpus.readers import is_written
from corpus.readers import read_written as read
from edgemem.errors import InputError
from edgemem.runtime import models
from edgemem.runtime.engine import Engine
from edgemem.stages.extraction import readings
from edgemem.stages.generation import NOT_KNOWN
from edgemem.training import examples as files
from edgemem.training.examples import Example, tokenized

TALK = """\
# Mara (she), Joel (he)
@ 2024-03-09 18:20
Mara: I adopted a grey cat last week, he's called Biscuit.
= Mara adopted a grey cat called Biscuit last week.
? When did Mara get a cat? | last week
Joel: Congratulations! I play the violin.
= Joel plays the violin.
@ 2024-04-02 07:45
Joel: And the piano since yesterday: my aunt's.
= Joel plays the piano since yesterday.
? What does Joel play? | the violin and the piano | play the violin
? Whose piano does Joel play? | my aunt's
? Does Joel have a cat? | -

# User, Assistant
@ 2024-05-01 10:00
User: I am allergic to nuts.
= User is allergic to nuts.
? What is User's allergy? | nuts
? What does User eat? | -
Assistant: Noted. Anything else?
User: No, thanks.
Assistant: Have a good day.
"""

LATER = """\
~ 2024-06-01 09:00
> what can i cook, allergic to nuts as i am | I am allergic to nuts
< Anything without nuts, for you are allergic to them.
> And for Joel?
< I don't know what Joel eats.
~ 2024-06-02 09:00
> What is two and two?
< Four.
"""

PLACES = {2021: "Oslo", 2022: "Bern", 2023: "Ghent", 2024: "Turin"}


@pytest.fixture
def path(tmp_path):
    file = tmp_path / "few.txt"
    file.write_text(TALK)
    return file


def with_more(path, more):
    """Both conversations, the second of which goes on."""
    path.write_text(TALK + more)
    return read(path)


def replies(path, more):
    with quick(engine=FakeEngine()) as memory:
        return list(annotated.reply_examples(memory, with_more(path, more)[1]))


def test_an_answer_has_the_day_that_its_message_means(tmp_path):
    file = tmp_path / "days.txt"
    file.write_text(
        "# User, Assistant\n@ 2025-03-27 10:00\n"  # a Thursday
        "User: I paid him on Monday, the rest is due on Monday.\n"
        "? When did I pay him? | on Monday\n"
        "User: The roofers come tomorrow.\n"
        "@ 2025-04-24 10:00\n"
        "User: They came only today.\n"
        "? When were they to come first? | tomorrow | The roofers come\n"
        "? When did they come? | today\n"
    )
    (talk,) = read(file)
    assert [question.answer for question in talk.questions] == [
        "on Monday 24 March 2025",
        "on 28 March 2025",
        "on 24 April 2025",
    ]


def test_a_file_holds_conversations_with_facts_whose_dates_are_written_out(path):
    named, asked = read(path)
    assert (named.id, asked.id) == ("few-1", "few-2")
    assert named.pronouns == {"Mara": "she", "Joel": "he"} and asked.pronouns == {}
    assert [len(pair.messages) for pair in named.pairs] == [2, 1]  # a pair is of one session
    told = [fact for pair in named.pairs for fact in pair.facts]
    assert told == [
        "Mara adopted a grey cat called Biscuit in the week of 26 February 2024.",
        "Joel plays the violin.",
        "Joel plays the piano since 1 April 2024.",
    ]
    assert named.pairs[0].sources == (0, 1)
    assert [[m.role for m in pair.messages] for pair in asked.pairs] == [["user"], ["user"]]
    assert [m.role for m in asked.pairs[1].context] == ["user", "assistant"]


def test_questions_have_the_message_above_and_those_they_quote_as_evidence(path):
    asked = read(path)[0].questions
    assert [(q.category, q.answer, len(q.evidence)) for q in asked] == [
        ("temporal", "in the week of 26 February 2024", 1),
        ("multi-hop", "the violin and the piano", 2),
        ("single-hop", "aunt's", 1),
        ("unknown", None, 1),
    ]


def test_users_ask_of_themselves(path):
    asked = [q.text for q in read(path)[1].questions]
    assert asked == ["What is my allergy?", "What do I eat?"]
    path.write_text(re.sub(r"(is|does) User", r"\1 the user", TALK))
    assert [q.text for q in read(path)[1].questions] == asked


def test_where_nobody_wrote_down_facts_there_are_questions_alone(path):
    path.write_text(re.sub(r"(?m)^=.*\n", "", TALK))
    named, _ = talks = read(path)
    assert not any(talk.pairs for talk in talks) and len(named.questions) == 4
    with quick(engine=FakeEngine()) as memory:
        assert {example.stage for example in examples(memory, named)} == {"generation"}
        row = evaluate.extraction_row(evaluate.Reader(memory.engine), [], lambda items, _: items)
    assert row["n"] == 0 and row["s_p50"] is None


def test_who_asks_for_now_is_shown_the_newest_last(tmp_path):
    file = tmp_path / "changed.txt"
    told = [f"@ {year}-02-01 10:00\nUser: I live in {town}.\n" for year, town in PLACES.items()]
    asked = "? Where does User live now? | Turin | in Oslo | in Bern | in Ghent\n"
    file.write_text(f"# User, Assistant\n{''.join(told)}{asked * 9}")
    with quick() as memory:
        made = list(examples(memory, read(file)[0], stages=["generation"]))
    assert len(made) == 9
    for example in made:
        assert re.findall(r"live in (\w+)", example.prompt) == list(PLACES.values())


def test_an_assistants_messages_are_shown_and_not_asked_about(path):
    with quick() as memory:
        told, thanked = examples(memory, read(path)[1], stages=["extraction"])
    assert told.prompt.endswith("About User:\n") and "Assistant: Noted" in thanked.prompt
    found = [json.loads(example.target)["facts"] for example in (told, thanked)]
    assert found == [["User is allergic to nuts."], []]


def test_speakers_get_other_names_and_unknown_answers_are_refused(path):
    with quick() as memory:
        made = list(examples(memory, read(path)[0]))
    facts = [e for e in made if e.stage == "extraction"]
    assert facts and not any("Mara" in e.prompt + e.target for e in facts)
    refused = [e.target for e in made if e.kind == "unknown"]
    assert refused == [f" {NOT_KNOWN}"]


def test_chats_held_later_follow_a_conversation(path):
    named, asked = with_more(path, LATER)
    assert not named.later
    first, second = asked.later
    assert (first.at, second.at) == ("2024-06-01T09:00:00+00:00", "2024-06-02T09:00:00+00:00")
    cook, joel = first.exchanges
    assert cook.text == "what can i cook, allergic to nuts as i am" and joel.evidence == ()
    assert cook.evidence == ("I am allergic to nuts.",) and "without nuts" in cook.reply
    assert second.exchanges[0].reply == "Four."


def test_a_chat_is_learned_as_the_product_shows_it(path):
    first, second = replies(path, LATER)
    system, noted, answered, asked = first.prompt
    assert "Saturday, 1 June 2024" in system["content"]
    assert 'User said: "I am allergic to nuts."' in noted["content"]
    assert answered == {"role": "assistant", "content": read(path)[1].later[0].exchanges[0].reply}
    assert asked["content"].endswith("And for Joel?")
    assert first.target == "I don't know what Joel eats."
    assert first.earlier == (2,) and first.group == "few-2"
    assert second.target == "Four." and second.earlier == ()


ASKED = """\
~ 2024-06-01 09:00
> (recall) what must i not eat | I am allergic to nuts
< You must not eat nuts. | nuts
> (recall) and joel
< You haven't told me. | -
> (general) what is two and two
< Four.
"""


@pytest.mark.models
def test_a_short_answer_is_learned_with_what_was_said_before_it(path, embedder):
    _, asked = with_more(path, ASKED)
    with quick(engine=FakeEngine(), embedder=embedder) as memory:
        first, second = annotated.answer_examples(memory, asked)
    assert (first.stage, first.target, second.target) == ("generation", " nuts", f" {NOT_KNOWN}")
    assert 'User said: "I am allergic to nuts."' in first.prompt
    assert first.prompt.count("User asks") == 1
    assert second.prompt.endswith("Answer: nuts\nOn 1 June 2024, User asks: and joel\nAnswer:")


@pytest.mark.models
def test_a_chat_teaches_each_answer_with_the_end_that_its_template_writes():
    said = [("user", "Hi."), ("assistant", "Hello, Ana!"), ("user", "And now?")]
    chat = [{"role": role, "content": content} for role, content in said]
    example = Example("reply", chat, "Now we talk.", "g", "chat", (1,))
    base = models.find(models.DEFAULT_LLM)
    with Engine.load(base, n_ctx=256) as engine:
        (tokens,) = tokenized(base, [example])
        (end,) = engine.tokenize("<|im_end|>", special=True)
        ((first, stop),) = tokens.earlier
        assert tokens.prompt[first:stop] == (*engine.tokenize("Hello, Ana!"), end)
        assert tokens.target == (*engine.tokenize("Now we talk."), end)
        assert len(tokens.prompt) == engine.count_tokens(chat)


def test_an_answer_whose_evidence_is_not_shown_is_not_learned(path):
    more = "".join(f"User: I saw film {i} at the cinema, {'long ' * 40}.\n" for i in range(20))
    later = LATER.replace("I am allergic to nuts\n", "I saw film 13 at the cinema\n")
    first, _ = replies(path, more + later)
    assert first.earlier == () and first.target == "I don't know what Joel eats."


def test_what_an_assistant_says_to_what_is_told_is_learned_session_by_session(path):
    more = f"@ 2024-05-02 10:00\nUser: Bye.\nAssistant: {'So long. ' * 30}\n"
    later = LATER + "> (tell) Good night\n< Sleep well.\n> (recall) who am i\n< Joel.\n"
    named, asked = with_more(path, more + later)
    assert not list(annotated.talk_examples(named))
    *_, session, chat = annotated.talk_examples(asked)  # of the second session nothing is short
    roles = [message["role"] for message in session.prompt]
    assert roles == ["system", "user", "assistant", "user"]
    assert session.target == "Have a good day." and session.earlier == (2,)
    assert chat.prompt[-1]["content"] == "Good night" and chat.target == "Sleep well."
    assert chat.earlier == () and "Four." in [message["content"] for message in chat.prompt]


GREETED = """\
# User, Assistant
@ 2026-03-03 16:05
User: hi, I'm Jay
Assistant: Hello, Jay!
User: my van got nicked
Assistant: Sorry about the van, Jay.
User: good night
Assistant: Good night!
"""


def test_a_question_to_an_assistant_may_come_after_another_message(tmp_path):
    file = tmp_path / "names.txt"
    asked = "".join(f"? What is my name, {i}? | Jay\n" for i in range(60))
    file.write_text(GREETED.replace("Assistant: Hello", f"{asked}Assistant: Hello"))
    with quick() as memory:
        (talk,) = read(file)
        made = [str(e.prompt) for e in annotated.examples(memory, talk, stages=["generation"])]
    after = [prompt for prompt in made if "\nUser asks: my van got nicked\nAnswer: Sorry" in prompt]
    assert 0 < len(after) < 20 and len(made) == 60


def test_chats_are_read_back_from_files_of_examples(path, tmp_path):
    made = replies(path, LATER)
    file = tmp_path / "made.jsonl"
    files.write(file, made)
    assert files.read([file]) == made
    file.write_text(file.read_text().replace('"earlier": [2]', '"earlier": [1]'))
    with pytest.raises(InputError, match=r"line 1 is no training example .*no message of the"):
        files.read([file])


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("= Mara sings.", "line 2: a fact or question before"),
        ("Mara: Hi.", "line 2: a message before the session's line"),
        ("@ 2024-01-01 10:00\nKim: Hi.", "line 3: 'Kim: Hi.' is no message of Mara or Joel"),
        ("@ 2024-01-01 10:00\nMara: Hi.\n? Who?", "line 4: 'Who\\?' is no `question | answer`"),
        ("@ 2024-01-01 10:00\nMara: Hi.\n? Who? | x | Ho", "no message up to here has .*'Ho'"),
        ("@ 2024-01-01 10:00\nMara: Hi.\n> Who?", "line 4: a chat is a line such as"),
        ("@ 2024-01-01 10:00\nMara: Hi.\n~ 2024-02-01 10:00\n< Hi.", "line 5: a chat is"),
        ("@ 2024-01-01 10:00\nMara: Hi.\n~ 2024-02-01 10:00\n> (sing) Hi.", "line 5: .*'sing'"),
        ("@ 2024-13-01 10:00\nMara: Hi.", "line 3: month must be in 1..12"),
        ("# User, Assistant\n@ 2024-01-01 10:00\nAssistant: Hi.\n= User sings.", "tells none"),
    ],
)
def test_a_line_of_another_form_is_named(tmp_path, line, said):
    file = tmp_path / "bad.txt"
    file.write_text(f"# Mara (she), Joel (he)\n{line}\n")
    with pytest.raises(InputError, match=said):
        read(file)


def test_other_files_are_told_apart(path, tmp_path):
    log = tmp_path / "log.txt"
    log.write_bytes(b"[2024-05-01 10:00] Kim: I have a cat.\xff\n")
    assert is_written(path) and not is_written(log)
    path.write_text(f"\n \n{TALK}")
    assert is_written(path)


# -- the conversations that the experts learned from ----------------------------------------------

whole = cache(read)  # several tests ask of a long file
OURS = sorted((Path(__file__).parents[1] / "models" / "conversations").glob("*.txt"))
ALONE = ("reading", "names", "notebook")  # questions alone
READING = [f for f in OURS if any(name in f.stem for name in ALONE)]
LONG = [f for f in OURS if f.stem.startswith(("long-", "moved-", "held-out-moved"))]
HASTY = next(file for file in OURS if file.stem == "held-out-hasty")  # facts alone


def speaks_itself(fact):
    """Whether a fact is in the first person, outside of quotations."""
    return bool(re.search(r"\b(?:I|I'm|my|me)\b", re.sub(r'"[^"]*"', "", fact)))


@pytest.mark.parametrize("file", READING, ids=lambda file: file.stem)
def test_our_questions_about_reading_are_whole(file):
    talks = whole(file)
    assert len(talks) >= (6 if file.stem.startswith("held-out") else 14)
    for talk in talks:
        assert not talk.pairs and len(talk.questions) >= 10, talk.id
        assert any(q.answer is None for q in talk.questions), talk.id


@pytest.mark.parametrize("file", LONG, ids=lambda file: file.stem)
def test_our_long_conversations_are_whole(file):
    least = 40 if file.stem.startswith("long-") else 28
    for talk in whole(file):
        assert not talk.pairs and len(talk.messages) >= least and len(talk.questions) >= 20, talk.id
        assert all(question.evidence for question in talk.questions), talk.id


@pytest.mark.parametrize(
    "file", sorted({*OURS} - {*READING, *LONG, HASTY}), ids=lambda file: file.stem
)
def test_our_conversations_are_whole(file):
    talks = whole(file)
    assert len(talks) >= 16
    changes = file.stem.endswith("changes")  # short ones, of little else
    told = 0
    for talk in talks:
        assert len(talk.pairs) >= (5 if changes else 8) and len(talk.questions) >= 6, talk.id
        assert changes or any(q.answer is None for q in talk.questions), talk.id
        asked = [r for pair in talk.pairs for r in readings(pair.messages, pair.context)]
        facts = [fact for pair in talk.pairs for fact in pair.facts]
        told += sum(len(set(pair.sources)) for pair in talk.pairs)
        assert len(facts) <= (2 if changes else 1.5) * len(asked), talk.id
        bad = [f for f in facts if speaks_itself(f)]
        assert not bad
    messages = sum(len(pair.messages) for talk in talks for pair in talk.pairs)
    assert 0.35 < told / messages < (0.9 if changes else 0.65)  # about half hold no fact


SMALL_TALK = Path(__file__).parents[1] / "models" / "chats" / "small-talk.txt"
GREETINGS = SMALL_TALK.with_stem("greetings")  # replies alone
CHATS = sorted({*SMALL_TALK.parent.glob("*.txt")} - {SMALL_TALK, GREETINGS})


@pytest.mark.parametrize("file", CHATS, ids=lambda file: file.stem)
def test_our_chats_are_whole(file):
    if readers.is_messages(file):
        messages = [message.text for message in readers.read_messages(file)]
        assert len(messages) == len(set(messages)) >= 130
        return
    talks = read(file)
    assert len(talks) >= 40
    for talk in talks:
        said = [exchange for later in talk.later for exchange in later.exchanges]
        assert len(said) >= 12 and any(not exchange.evidence for exchange in said), talk.id
        last = max(message["timestamp"] for message in talk.messages)
        assert all(later.at > last for later in talk.later), talk.id
        assert all(len(exchange.reply.split()) <= 100 for exchange in said), talk.id
        assert all(exchange.wants for exchange in said), talk.id


def talks_of(file):
    return readers.read_told(file) if readers.is_messages(file) else read(file)


WITH_FACTS = [f for f in (HASTY, *CHATS, SMALL_TALK) if "\n= " in f.read_text()]


@pytest.mark.parametrize("file", WITH_FACTS, ids=lambda file: file.stem)
def test_facts_of_hasty_messages_are_in_careful_spelling(file):
    facts = [fact for talk in talks_of(file) for pair in talk.pairs for fact in pair.facts]
    assert len(facts) >= 30
    bad = [f for f in facts if speaks_itself(f) or not f[0].isupper() or f[-1] != "."]
    assert not bad


def test_our_small_talk_is_short_and_in_turn():
    talks = read(SMALL_TALK)
    assert len(talks) >= 100
    for talk in talks:
        roles = [message["role"] for message in talk.messages]
        assert roles == ["user", "assistant"] * (len(roles) // 2) and len(roles) >= 10, talk.id
        replies = [message["content"] for message in talk.messages[1::2]]
        assert all(len(reply.split()) <= 25 for reply in replies), talk.id


def test_nobody_held_out_is_among_those_trained_on():
    held, others = (
        {
            frozenset(t.pronouns)
            for f in OURS
            if f.stem.startswith("held-out") is out
            for t in whole(f)
        }
        for out in (True, False)
    )
    assert held - {frozenset()} and not (held & others) - {frozenset()}
