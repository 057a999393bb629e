"""Facts from messages: grounded in what was said, dated, citing their turn."""

import json
import re
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgemem.results import Message
from edgemem.runtime import llama
from edgemem.runtime.generation import Generation, allows, grammar_sampler
from edgemem.stages.extraction import (
    MAX_SENTENCES,
    PROMPT,
    SURE,
    extract,
    parse,
    schema,
    worth_reading,
)

MONDAY = "2023-05-08T13:56:00.000+00:00"


class Saying:
    """An engine that answers each sentence by a function of it and of the name in the prompt."""

    has_chat_template, n_params = False, 1_000_000

    def __init__(self, answer, finish_reason="stop"):
        self.answer, self.finish_reason = answer, finish_reason
        self.prompts = []

    def expert(self, stage):
        return False

    def generate(self, prompt, *, max_tokens, schema, stage):
        assert stage == "extraction"
        self.prompts.append(prompt)
        name, _, sentence = prompt.rstrip("\n").rpartition("\n")[2].partition(": ")
        text = self.answer(name, sentence)
        if not isinstance(text, str):
            text = json.dumps({"facts": text})
        return SimpleNamespace(text=text, finish_reason=self.finish_reason)


def turn(text, name="Ana", when=MONDAY):
    return Message("user", text, when, name)


def facts(text, answer, **more):
    return [f.text for f in extract(Saying(answer, **more), [turn(text)])]


@pytest.mark.parametrize(
    "sentence",
    [
        "I moved to Oslo.",
        "My brother plays the cello.",
        "We can't eat gluten.",
        "The flat has 3 rooms",
        "私は三月にオスロへ引っ越しました。",
        "Gluten makes everybody at home feel terrible",
    ],
)
def test_what_may_hold_a_fact_is_read(sentence):
    assert worth_reading(sentence)


@pytest.mark.parametrize(
    "sentence",
    [
        "Where do I live?",
        "Hi!",
        "Thank you.",
        "You look great today, really.",
        "So nice",
        "🎉",
        "Nice – so!",
    ],
)
def test_questions_greetings_and_talk_of_the_other_are_not(sentence):
    assert not worth_reading(sentence)


@given(st.text())
def test_no_sentence_breaks_the_choice(sentence):
    worth_reading(sentence)


def test_nothing_worth_reading_asks_no_model():
    engine = Saying(lambda *_: 1 / 0)
    assert extract(engine, [turn("Hello! How are you?")]) == []


def test_each_fact_cites_the_message_it_came_from():
    messages = [turn("I sold our car."), turn("Nice!"), turn("I bought a bicycle.", name="Tom")]
    engine = Saying(lambda name, s: [f"{name} {s[2:-1]}"])
    found = extract(engine, messages)
    assert [(f.text, f.source) for f in found] == [
        ("Ana sold our car", 0),
        ("Tom bought a bicycle", 2),
    ]


def test_a_fact_that_still_speaks_as_i_is_dropped():
    assert facts("I sold my car.", lambda *_: ["Ana sold my car"]) == []
    assert facts("I sold my car.", lambda *_: ["Ana sold her car"]) == ["Ana sold her car"]


def test_an_invention_is_dropped():
    assert facts("I sold my old car.", lambda *_: ["Ana's favourite colour is blue"]) == []


def test_another_town_that_begins_alike_is_an_invention():
    """All but the last three letters told the forms of a word: Bergen was taken for Berlin."""
    assert facts("I live in Bergen.", lambda *_: ["Ana lives in Berlin"]) == []
    assert facts("I live in Bergen.", lambda *_: ["Ana lives in Bergen"]) != []


def test_a_fact_about_somebody_elses_doing_is_dropped():
    """Four of its five words were said; whose doing it was, is the fifth."""
    said = "I sold the old red car."
    assert facts(said, lambda *_: ["Ana's wife sold the old red car"]) == []
    assert facts(said, lambda *_: ["Ana's car was sold"]) == ["Ana's car was sold"]


@pytest.mark.parametrize(
    ("said", "fact", "kept"),
    [
        ("I can't eat gluten.", "Ana can eat gluten", False),
        ("I can't eat gluten.", "Ana can't eat gluten", True),
        ("I eat gluten.", "Ana doesn't eat gluten", False),
        ("I don't drink tea, I love coffee.", "Ana loves coffee", True),
        ("I never smoke.", "Ana smokes", False),
        ("I don't drink tea, I love coffee.", "Ana doesn't love coffee", False),
        ("I love coffee but I don't drink tea.", "Ana doesn't love coffee", False),
        ("I don't drink tea, I love coffee.", "Ana doesn't drink tea", True),
        ("I don't really like tea.", "Ana doesn't like tea", True),
        ("I drink tea but no coffee.", "Ana drinks tea but no coffee", True),
        ("No, I love coffee.", "Ana loves coffee", True),
        ("No, I love coffee.", "Ana doesn't love coffee", False),
    ],
)
def test_a_fact_denies_what_its_sentence_denies(said, fact, kept):
    """Its words are all in the sentence either way: "not" is a stop word."""
    assert facts(said, lambda *_: [fact]) == ([fact] if kept else [])


def test_yesterday_is_written_out_and_begins_the_fact():
    (fact,) = extract(
        Saying(lambda *_: ["Ana adopted a dog yesterday"]), [turn("I adopted a dog yesterday.")]
    )
    assert fact.text == "Ana adopted a dog on 7 May 2023"
    assert fact.valid_from == "2023-05-07T00:00:00.000+00:00"


def test_a_date_that_the_model_left_out_comes_back():
    (fact,) = extract(
        Saying(lambda *_: ["Ana adopted a dog"]), [turn("Last week I adopted a dog.")]
    )
    assert fact.text == "Ana adopted a dog in the week of 1 May 2023"
    assert fact.valid_from == "2023-05-01T00:00:00.000+00:00"


@pytest.mark.parametrize(
    ("said", "fact", "expected"),
    [
        (  # the date comes back with the word that says what it is to the rest
            "I am off work until tomorrow, you know.",
            "Ana is off work",
            "Ana is off work until 9 May 2023",
        ),
        (  # the fact has no verb that tells, its sentence has
            "I went to Ghent on Friday to sing.",
            "Ana to sing in Ghent on Friday",
            "Ana to sing in Ghent on Friday 5 May 2023",
        ),
    ],
)
def test_a_date_of_the_sentence_is_told_by_its_own_words_in_the_fact(said, fact, expected):
    found = extract(Saying(lambda *_: [fact]), [turn(said)])
    assert [f.text for f in found] == [expected]


def test_of_two_dates_that_the_model_left_out_neither_is_guessed():
    said = "I adopted a dog yesterday and a cat last week."
    (fact,) = extract(Saying(lambda *_: ["Ana adopted a dog"]), [turn(said)])
    assert (fact.text, fact.valid_from) == ("Ana adopted a dog", MONDAY)


def test_a_fact_without_a_date_begins_when_it_was_said():
    (fact,) = extract(Saying(lambda *_: ["Ana has a dog"]), [turn("I have a dog.")])
    assert fact.valid_from == MONDAY


@pytest.mark.parametrize(
    ("message", "label"),
    [
        (turn("I have a dog.", name=None), "User"),
        (turn("I have a dog.", name="Ana-Lena B."), "Ana-Lena B."),
        (turn("I have a dog.", name=r"A\1(x)"), r"A\1(x)"),
        (turn("I have a dog.", name="李"), "李"),
    ],
)
def test_a_name_the_grammar_cannot_hold_is_lent_another_and_given_back(message, label):
    engine = Saying(lambda name, _: [f"{name} has a dog"])
    (fact,) = extract(engine, [message])
    assert fact.text == f"{label} has a dog"
    assert "Kim: I have a dog." in engine.prompts[0]


def test_a_lent_name_is_not_one_of_the_sentence():
    engine = Saying(lambda name, _: [f"{name} met Kim"])
    (fact,) = extract(engine, [turn("I met Kim.", name=None)])
    assert fact.text == "User met Kim"


def test_repetitions_in_one_batch_are_left_out():
    text = "I have a big dog. I have a dog. I have a big dog."
    found = facts(text, lambda name, s: [s.rstrip(".").replace("I have", "Ana has")])
    assert found == ["Ana has a big dog"]


def test_context_is_shown_and_not_read():
    engine = Saying(lambda name, s: [f"Ana {s[2:].rstrip('.')}"])
    found = extract(engine, [turn("I feed him daily.")], context=[turn("I adopted Rex.")])
    assert [f.text for f in found] == ["Ana feed him daily"]
    assert "Ana: I adopted Rex.\nAna: I feed him daily.\n" in engine.prompts[0]


def test_a_document_is_read_up_to_a_limit():
    engine = Saying(lambda *_: [])
    extract(engine, [turn(" ".join(f"I own {n} boats." for n in range(MAX_SENTENCES + 1)))])
    assert len(engine.prompts) == MAX_SENTENCES
    assert engine.prompts[-1].endswith(f"I own {MAX_SENTENCES - 1} boats.\n")


def test_an_aside_is_nobodys_sentence():
    engine = Saying(lambda *_: [])
    extract(engine, [turn("I love this. [shares a photo: my red boat on the lake] I went alone.")])
    assert len(engine.prompts) == 2 and not any("boat" in p for p in engine.prompts)


def test_a_very_long_sentence_is_read_in_pieces_and_loses_nothing():
    text = "I own " + " ".join(f"thing{n}" for n in range(400))
    engine = Saying(lambda *_: [])
    extract(engine, [turn(text)])
    read = [p.rpartition("Ana: ")[2].strip() for p in engine.prompts]
    assert len(read) > 1 and " ".join(read).split() == text.split()
    assert max(map(len, read)) <= 600


def test_a_long_text_without_a_space_ends_too():
    extract(Saying(lambda *_: []), [turn("I" + "x" * 5000)])


@pytest.mark.parametrize(
    "garbage", ["", "no", "[]", "{}", "null", '{"facts": "a"}', '{"facts": [1]}', '{"facts": ["a']
)
def test_garbage_of_the_model_is_a_value_error(garbage):
    with pytest.raises(ValueError):
        parse(garbage)
    with pytest.raises(ValueError):
        extract(Saying(lambda *_: garbage), [turn("I have a dog.")])


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('{"facts": ["Ana has a dog", "Ana has a', ["Ana has a dog"]),
        ('{"facts": ["Ana has a dog"', ["Ana has a dog"]),
        ('{"facts": ["Ana said \\"hi\\"", "x', ['Ana said "hi"']),
        ('{"facts": ["Ana has a dog", "Ana has a\t", "x', ["Ana has a dog"]),
        ('{"fa', []),
        ("", []),
    ],
)
def test_an_answer_cut_by_max_tokens_gives_its_closed_facts(text, found):
    assert parse(text, cut=True) == found


@given(st.text() | st.text('"\\\x00\t,] a{}:[u'))
def test_a_cut_answer_never_raises(text):
    assert all(isinstance(fact, str) for fact in parse(text, cut=True))


def test_blank_facts_are_left_out():
    assert parse('{"facts": [" ", "a "]}') == ["a"]


@pytest.mark.parametrize(
    ("fact", "fits"),
    [
        ("Ana likes tea", True),
        ("Ana's 犬 (Rex) is 2", True),
        ("Tom likes tea", False),
        *((f"Ana likes {mark}", False) for mark in ('"', "\\", "\n", "\r", "\t", "\0", "\x1f")),
    ],
)
def test_the_schema_takes_facts_about_the_speaker_that_json_need_not_escape(fact, fits):
    pattern = schema("Ana")["properties"]["facts"]["items"]["pattern"]
    assert (re.fullmatch(pattern, fact) is not None) == fits


# -- the bundled model -----------------------------------------------------------------------------


@pytest.mark.models
def test_the_real_grammar_takes_no_mark_that_json_must_escape(engine):
    """A tab is no newline: it passed, and the answer could not be parsed."""
    lib, vocabulary = engine._lib, engine._vocabulary.handle
    sampler = grammar_sampler(lib, vocabulary, llama.grammar(schema("Ana")))
    for token in engine.tokenize('{"facts": ["Ana likes'):
        lib.llama_sampler_accept(sampler, token)
    marks = [engine.tokenize(mark)[0] for mark in ("\t", "\r", "\n", "\x1f", "\\", " tea", "犬")]
    allowed = allows(lib, sampler)(np.array(marks))
    lib.llama_sampler_free(sampler)
    assert allowed.tolist() == [False] * 5 + [True] * 2


@pytest.mark.models
def test_the_real_model_finds_a_fact_and_its_day(engine):
    found = extract(engine, [turn("I adopted a dog called Biscuit yesterday.")])
    assert len(found) == 1
    assert found[0].text.startswith("Ana") and "Biscuit" in found[0].text
    assert "7 May 2023" in found[0].text


@pytest.mark.models
@pytest.mark.parametrize(
    "text",
    ['I said "no" \\ to {"facts": ["x"]}.', "J'habite à Genève. 私は犬が好きです。", "I " * 100],
)
def test_the_real_model_copes_with_odd_text(engine, text):
    for fact in extract(engine, [turn(text)]):
        assert fact.text.startswith("Ana") and fact.source == 0


@pytest.mark.models
def test_a_quote_in_a_sentence_does_not_break_the_json(engine):
    """llama.cpp's `.` let a bare quote into the text: five of sixty LoCoMo pairs never parsed."""
    said = 'My brother calls his boat "The Wet Sock", and I painted "Biscuit" on my own car!'
    answer = engine.generate(
        f"Ana: {said}\n", max_tokens=60, schema=schema("Ana"), temperature=2.0, seed=1
    )
    assert '"' not in "".join(parse(answer.text, cut=answer.finish_reason == "length"))
    extract(engine, [turn(said)])


# -- an expert, which reads whole messages ---------------------------------------------------------


class Expert:
    """An engine whose expert gives these answers, one by one. asked: what it was."""

    has_chat_template, n_params = True, 135_000_000
    marks = ()

    def __init__(self, *answers, finish_reason="stop"):
        self.answers, self.finish_reason = list(answers), finish_reason
        self.asked = []

    def expert(self, stage):
        return True

    def generate(self, prompt, **options):
        self.asked.append((prompt, options))
        text = self.answers.pop(0)
        text = text if isinstance(text, str) else json.dumps({"facts": text})
        return Generation(text, 0, 0, 0, 0.0, 0.0, self.finish_reason, marks=self.marks)


def test_an_expert_reads_a_message_with_what_was_said_before_and_dates_written_out():
    engine = Expert([])
    extract(engine, [turn("How was it?", "Tom"), turn("I ran a race\nyesterday.")])
    ((prompt, options),) = engine.asked
    assert prompt == (
        f"{PROMPT}\n\n"
        "Before:\nTom: How was it?\nNow:\nAna: I ran a race on 7 May 2023.\n"
        "About Ana:\n"
    )
    assert options["stage"] == "extraction"
    assert options["fork"] == ('{"facts": []}', '{"facts": ["A"]}', SURE)


def test_a_fact_of_which_the_expert_is_not_sure_is_left_out():
    sure, not_sure = "Ana won the race.", 'Ana\'s "coach" won.'
    engine = Expert([sure, not_sure])
    before, between, after = (len(text) for text in ('{"facts": ["', '", "', '"]}'))
    ends = np.cumsum([before, len(sure), between, len(not_sure) + 2, after])
    engine.marks = tuple(zip(ends.tolist(), (-9.0, -13.0, -13.0, -19.0, -19.0), strict=True))
    assert [fact.text for fact in extract(engine, [turn('I won the race, my "coach" too.')])] == [
        sure
    ]


def test_with_a_caption_no_message_before_is_shown():
    engine = Expert([], [])
    messages = [turn("The new sofa."), turn("I own a car.", "Tom")]
    extract(engine, messages, context=[turn("I own a boat.")], captions=[0])
    shown = [prompt.split("\n\n", 1)[1] for prompt, _ in engine.asked]
    assert shown == [
        "Ana: The new sofa.\nAbout Ana:\n",
        "Before:\nAna: I own a boat.\nAna: The new sofa.\nNow:\nTom: I own a car.\nAbout Tom:\n",
    ]


@pytest.mark.parametrize("said", ["is called the new sofa", "is her new sofa", "is Ana's"])
def test_a_fact_that_something_is_itself_is_dropped(said):
    assert not extract(Expert([f"Ana's new sofa {said}"]), [turn("This is my new sofa.")])
    assert extract(Expert(["Ana's new sofa is red"]), [turn("This is my new red sofa.")])


def test_an_expert_is_shown_the_two_messages_before_of_the_same_talk():
    engine = Expert([], [])
    yesterday, noon = "2023-05-07T13:56:00.000+00:00", "2023-05-08T12:56:00.000+00:00"
    context = [turn("I am off.", when=yesterday), turn("Tell me all.", "Tom", when=noon)]
    extract(engine, [turn("I own a boat."), turn("I own a car.", "Tom")], context=context)
    shown = [prompt.split("\n\n", 1)[1] for prompt, _ in engine.asked]
    assert shown == [
        "Before:\nTom: Tell me all.\nNow:\nAna: I own a boat.\nAbout Ana:\n",
        "Before:\nTom: Tell me all.\nAna: I own a boat.\nNow:\nTom: I own a car.\nAbout Tom:\n",
    ]


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("Thanks, Tom! I own a boat.", "Thanks! I own a boat."),
        ("Hey Tom! I own a boat.", "Hey! I own a boat."),
        ("Tom, I own a boat.", "I own a boat."),
        ("I own a boat, Tom.", "I own a boat."),
        ("Thank you Tomas! I own a boat.", "Thank you! I own a boat."),
        ("I met Tom, and I own a boat.", "I met Tom, and I own a boat."),
        ("I love Tom.", "I love Tom."),
        ("Hey Jo! I own a boat.", "Hey Jo! I own a boat."),
        ("Thanks, Ana here! I own a boat, Oslo.", "Thanks, Ana here! I own a boat, Oslo."),
    ],
)
def test_an_expert_does_not_read_the_name_that_the_other_is_called_by(text, read):
    """It took "Thanks, Tom! I ..." for something about Tom."""
    engine = Expert([], [])
    extract(engine, [turn("I see them often.", "Tomas"), turn(text)])
    assert engine.asked[1][0].endswith(f"\nAna: {read}\nAbout Ana:\n")


def test_a_fact_cites_the_message_that_holds_its_words_and_the_day_it_holds_from():
    engine = Expert(["Tom owns a boat"], ["Ana ran a race on 7 May 2023"])
    messages = [turn("I own a boat.", "Tom"), turn("I ran a race yesterday.")]
    boat, ran = extract(engine, messages)
    assert (ran.text, ran.source) == ("Ana ran a race on 7 May 2023", 1)
    assert ran.valid_from[:10] == "2023-05-07"
    assert (boat.source, boat.valid_from) == (0, MONDAY)


def test_a_date_that_the_expert_left_out_is_put_at_the_end_of_its_fact():
    engine = Expert(["Ana ran a race."])
    (fact,) = extract(engine, [turn("It was hot. I ran a race yesterday.")])
    assert fact.text == "Ana ran a race on 7 May 2023"


BOAT = turn("I own a boat, red and fast.", "Tom")
VET = [turn("Biscuit weighs nine kilos now, says the vet. My mum took him there.")]
BOUGHT, MASTS = [turn("I bought a boat.")], [turn("I bought a boat, it has 2 masts.")]
FAST = [BOAT, turn("I like that it is so fast.")]
SAILED = [turn("How was it?", "Tom"), turn("We sailed all day. Boats are wonderful.")]
SOWN = [turn("Is Sanne going to Wisley?", "Tom"), turn("Sowed beetroot in two rows.")]
BASED = [SOWN[0], turn("Based in Wisley.")]
PROUD = [turn("Hello?", "Tom"), turn("You have run a race, I am proud of you.")]
PETS = [turn("Do you have pets?", "Tom"), turn("I have two black cats.")]


@pytest.mark.parametrize(
    ("messages", "told", "kept"),
    [
        # What the messages do not say is no fact, nor what was said before them.
        (BOUGHT, "Ana's favourite colour is blue", None),
        (BOUGHT, "Ana", None),
        (BOUGHT, "Ana owns a boat", ...),
        (FAST, "Tom's boat is red and fast", None),
        (FAST, "Ana likes Tom's fast boat", ...),
        # A number that nobody said is made up.
        (MASTS, "Ana bought a boat in 1990", None),
        (MASTS, "Ana bought a boat with 2 masts", ...),
        # So is a relation or a name that nothing shown tells.
        (VET, "Ana's cat Biscuit weighs nine kilos", "Biscuit weighs nine kilos"),
        (VET, "Ana's brother Biscuit's kilos are nine", "Biscuit's kilos are nine"),
        (VET, "Ana's son weighs nine kilos", None),
        (VET, "Ana and her son saw that he weighs nine kilos", None),
        (VET, "Biscuit weighs nine kilos, says Mira", None),
        (VET, "Ana's vet says nine kilos", ...),
        (VET, "Ana's mother took Biscuit to the vet", ...),
        # What one says of oneself is no fact about the other.
        (PETS, "Tom has two cats", "Ana has two cats"),
        (PETS, "Tom's two cats are black", "Ana's two cats are black"),
        (PETS, "Tom knows that Ana has two cats", ...),
        (PETS, "Tomas has two cats", ...),
        # A sentence without "I" is of who speaks of themselves around it.
        (SAILED, "Tom finds boats wonderful", "Ana finds boats wonderful"),
        (SOWN, "Sanne has sown beetroot in two rows", "Ana has sown beetroot in two rows"),
        (BASED, "Sanne is based in Wisley", ...),
        # A fact of somebody with a name is not the user's, who did not speak.
        (BOUGHT, "I bought a boat", None),
        (BOUGHT, "User bought a boat", "Ana bought a boat"),
        ([turn("The boat is fast.")], "User's boat is fast", None),
        # What one says of the other stays about the other.
        (PROUD, "Tom has run a race", ...),
    ],
)
def test_what_an_expert_tells_is_a_fact_of_whom_it_was_said_or_none(messages, told, kept):
    nothing = [[]] if messages[0] is BOAT else []  # each message is read by itself
    found = extract(Expert(*nothing, [told]), messages)
    kept = told if kept is ... else kept
    assert [fact.text for fact in found] == ([kept] if kept else [])
    assert not found or found[0].source == len(messages) - 1


@pytest.mark.parametrize(
    ("said", "told", "kept"),
    [
        # A person or a thing that is only another's is not the speaker's.
        ("Grahams wife is ill so he is off", "Ana's wife is ill", False),
        ("Sam's girlfriend is called Nadia", "Ana's girlfriend is called Nadia", False),
        ("The twins' dad is a vet", "Ana's dad is a vet", False),
        ("it was 240 pots, not 200", "Ana ordered 200 pots, not 240", False),
        # Nor is it told of somebody whom another message named.
        ("Arne's tablets are in the bread bin", "Bill's tablets are in the bread bin", False),
        ("Arne's tablets are in the bread bin", "Arne's tablets are in the bread bin", True),
        ("it was 240 pots, not 200", "Ana ordered 240 pots, not 200", True),
        ("Priya lent me her tent", "Priya lent Ana's tent", False),
        ("my wife is ill, Grahams wife too", "Ana's wife is ill", True),
        ("We met Sam. Wife is ill", "Ana's wife is ill", True),
        ("he's been odd, who's boss here, boss is ill", "Ana's boss is ill", True),
        # Nor is what is only the speaker's another's.
        ("lent my drill to Marcus", "Ana lent Marcus's drill", False),
        ("lent my drill to Marcus", "Ana lent Ana's drill to Marcus", True),
        # Who gave is not who took.
        ("paid Priya back the 40", "Priya paid Ana the 40", False),
        ("paid back Priya the 40", "Priya paid Ana back the 40", False),
        ("Priya paid me the 40", "Priya paid Ana the 40", True),
        ("I paid Priya, then Priya paid me", "Priya paid Ana", True),
        ("Priya owes me 40", "Ana owes Priya 40", False),
        ("me and Dan broke up", "Dan and Ana broke up", True),
        # What has ended is not told as if it lasted.
        ("eczema has totally gone", "Ana has eczema", False),
        ("eczema has totally gone", "Ana's eczema has gone", True),
        ("the pain has gone, but I have eczema", "Ana has eczema", True),
        ("Priya has gone to Oslo", "Priya is in Oslo", True),
    ],
)
def test_a_fact_that_turns_round_what_was_said_is_left_out(said, told, kept):
    assert [fact.text for fact in extract(Expert([told]), [turn(said)])] == [told] * kept


def test_a_speaker_of_two_names_owns_what_is_theirs():
    said = turn("my sister Lena sings and I paid Tom", "Ana Ruiz")
    (fact,) = extract(Expert(["Ana Ruiz's sister Lena sings"]), [said])
    assert fact.text == "Ana Ruiz's sister Lena sings"


@pytest.mark.parametrize(
    ("said", "kept"),
    [
        ("You are allergic to penicillin, says the letter.", True),
        ("I hear you are allergic to penicillin.", True),
        ("I am allergic to penicillin, can you help?", False),
        ("The boat is allergic to penicillin.", False),
    ],
)
def test_what_a_named_speaker_tells_the_user_of_themselves_is_a_fact_of_the_user(said, kept):
    told = "User is allergic to penicillin"
    found = extract(Expert([told]), [turn(said, "Ruth")])
    assert [fact.text for fact in found] == [told] * kept


@pytest.mark.parametrize("kim", ["Kim", "kim", "KIM"])
def test_a_speaker_whose_name_has_no_letters_is_read_under_a_common_one(kim):
    """The expert wrote "I have high blood pressure" of a phone number: that was the user's."""
    number = "+44 7700 900123"
    said = [turn(f"{kim} is fine, I moved to Whitby.", number), turn("Go on!", "Tom")]
    engine = Expert(["Alex moved to Whitby"])
    (fact,) = extract(engine, said[:1], context=said[1:])
    assert fact.text == f"{number} moved to Whitby"
    assert number not in engine.asked[0][0]


def test_an_answer_to_a_question_is_read_with_it():
    engine = Expert(["Ana has lived in Oslo for four years"])
    messages = [turn("How long have you lived in Oslo?", "Tom"), turn("Four years now.")]
    (fact,) = extract(engine, messages)
    assert fact.source == 1


def test_a_fact_cites_the_messages_before_that_lent_it_words():
    """It may say what they say, and goes when they are erased."""
    context = [turn("We live in Oslo."), turn("How long have you lived there?", "Tom")]
    engine = Expert(["Ana has lived in Oslo for four years"], ["Tom owns a boat"])
    messages = [turn("Four years now."), turn("I own a boat.", "Tom")]
    lived, boat = extract(engine, messages, context=context)
    assert (lived.source, lived.also) == (0, (-2, -1))
    assert (boat.source, boat.also) == (1, ())


@pytest.mark.parametrize(
    ("texts", "calls"),
    [
        (["I'm vegan."], 1),
        (["Great, I smoke!"], 1),
        (["went well", "the cat died. muffin"], 2),
        (["How are you?", "And you?"], 0),
    ],
)
def test_a_message_is_read_unless_it_only_asks(texts, calls):
    engine = Expert(*[[]] * calls)
    messages = [turn(text, name) for text, name in zip(texts, ("Ana", "Tom"), strict=False)]
    assert extract(engine, messages) == [] and len(engine.asked) == calls


def test_the_items_of_a_list_are_read_as_sentences():
    """The number of an item was taken for the end of the one before it."""
    engine = Expert([])
    extract(
        engine, [turn("Site notes\n1. Order the windows\n2) Oskar is off.\n- 10.5 t came", "Ana")]
    )
    read = re.findall(r"^Ana: (.*)", engine.asked[0][0], re.M)[-1]
    assert read == "Site notes Order the windows. Oskar is off. 10.5 t came."


def test_a_long_message_is_read_in_portions_of_whole_sentences():
    sentences = [f"I visited the town number {n} and liked it very much." for n in range(60)]
    engine = Expert(*[[] for _ in range(9)])
    extract(engine, [turn("Where to?", "Tom"), turn(" ".join(sentences))])
    read = [re.findall(r"^Ana: (.*)", prompt, re.M)[-1].strip() for prompt, _ in engine.asked]
    assert " ".join(read) == " ".join(sentences[:MAX_SENTENCES])
    assert all(400 < len(text) <= 500 for text in read[:-1])


def test_of_a_long_message_before_only_the_end_is_shown():
    engine = Expert([])
    essay = "Boats are made of wood, as everybody has known for years. " * 30 + "Do you own one?"
    extract(engine, [turn("I do.")], context=[turn(essay, "Tom")])
    before = engine.asked[0][0].split("\n\n", 1)[1].splitlines()[1]
    assert before.startswith("Tom: Boats are") and before.endswith("Do you own one?")
    assert len(before) <= len("Tom: ") + 500


def test_an_answer_that_is_no_json_is_an_error_and_a_cut_one_keeps_its_closed_facts():
    with pytest.raises(ValueError, match="expected"):
        extract(Expert('{"fact": []}'), [turn("I own a boat.")])
    cut = Expert('{"facts": ["Ana owns a boat", "Ana ow', finish_reason="length")
    assert [f.text for f in extract(cut, [turn("I own a boat.")])] == ["Ana owns a boat"]
