"""Whose "I" may answer a question in a store of several people, and what is told of one of them."""

from functools import partial

import pytest
from memorykit import quick

from edgemem import Chat
from edgemem.language import says_of_self_instead, tells_of_self
from edgemem.memory import Memory
from edgemem.pipeline.people import kept_for
from edgemem.pipeline.recall import overview, search, told_of
from edgemem.results import Scope
from edgemem.stages.generation import NEAREST, NOTHING_FOUND

ANA = {"user_id": "ana"}
DAY = "2024-05-01T10:00:00+00:00"


@pytest.fixture
def memory():
    with quick() as opened:
        yield opened


def tell(memory, text, name=None, day=DAY):
    said = {"role": "user", "content": text, "timestamp": day} | ({"name": name} if name else {})
    memory.add([said], infer=False, **ANA)


def kept(memory, question):
    hits = search(
        memory, ANA, question, None, (), most=16, keep=kept_for(memory, Scope(**ANA), question)
    )
    return {hit.memory for hit in hits}


OWN = "I'm allergic to penicillin."
RUTHS = "I'm allergic to peanuts."
TOMS = "I'm allergic to cats."


def in_a_group(memory):
    tell(memory, OWN)
    tell(memory, RUTHS, "Ruth Lodge")
    tell(memory, TOMS, "Tom")


def test_another_ones_i_answers_no_question_about_the_user(memory):
    in_a_group(memory)
    assert kept(memory, "What am I allergic to?") == {OWN}


def test_a_question_about_somebody_is_answered_by_their_own_i_alone(memory):
    in_a_group(memory)
    assert kept(memory, "What is Ruth allergic to?") == {RUTHS}


@pytest.mark.parametrize(
    "question",
    [
        "What did they say I'm allergic to?",
        "Who is allergic to something of mine?",
        "Is anybody allergic to my cats?",
        "Tell me who is allergic.",
    ],
)
def test_what_others_say_answers_a_question_for_what_others_say(memory, question):
    in_a_group(memory)
    assert kept(memory, question) == {OWN, RUTHS, TOMS}


@pytest.mark.parametrize("question", ["What am I allergic to?", "What is Ruth allergic to?"])
def test_where_no_turn_is_the_users_nothing_is_left_out(memory, question):
    tell(memory, RUTHS, "Ruth")
    tell(memory, TOMS, "Tom")
    memory.add({"role": "user", "content": "What am I?", "recalled": True}, infer=False, **ANA)
    assert kept(memory, question) == {RUTHS, TOMS}
    tell(memory, OWN)
    assert len(kept(memory, question)) == 1


def test_what_another_tells_the_user_answers_a_question_about_the_user(memory):
    tell(memory, "I sold the keys.")
    tell(memory, "I put your keys in the drawer.", "Tom")
    tell(memory, "We found the keys.", "Tom")
    tell(memory, "I saw the keys on the shelf.", "Tom")
    tell(memory, "I lost my keys", "Tom")
    tell(memory, "I have new keys", "Tom")
    told = kept(memory, "Where are my keys?")
    assert told == {
        "I sold the keys.",
        "I put your keys in the drawer.",
        "We found the keys.",
        "I saw the keys on the shelf.",
        "I have new keys",
    }


@pytest.mark.parametrize(
    ("question", "text"),
    [
        ("Where is my passport?", "I saw the passport on the kitchen shelf."),
        ("Where is my passport?", "I found it in the drawer."),
        ("Where is my passport?", "I have the passport in my bag."),
        ("What is my wifi password?", "I changed the wifi password to hunter2."),
        ("When is my dentist appointment?", "I moved the dentist appointment to Friday at 3."),
        ("Do I know a plumber?", "I know a good plumber, Al Ross."),
        ("When does my car insurance end?", "I paid the car insurance, it runs until 3 March."),
        ("Where did I park the car?", "I parked the car in Mill Street."),
        ("When does my flight leave?", "I booked the flight, it leaves at 6:40 from Luton."),
        ("When am I to fetch the cake?", "I'm told the cake is ready at four."),
        ("Where is my car?", "My wife's car is in Mill Street."),
    ],
)
def test_what_another_did_with_a_thing_may_tell_of_the_users(question, text):
    assert not tells_of_self(text, question)


@pytest.mark.parametrize(
    ("question", "text"),
    [
        ("Where do I live?", "I live in York."),
        ("What car do I drive?", "I drive a Volvo."),
        ("What pet do I have?", "I have a parrot."),
        ("Which sport do I do?", "I still do judo twice a week."),
        ("What instrument do I play?", "I play the drums."),
        ("When did I move to Leeds?", "I moved to Leeds in 2015."),
        ("What is my favourite tea?", "My favourite tea is mint."),
        ("What is my job?", "I'm a nurse."),
        ("When do I fly?", "I'll fly on Monday."),
        ("Where am I on Friday?", "I'm in Oslo on Friday."),
        ("How old am I?", "I'm 42 today."),
        ("Do I need glasses?", "I've got two glasses."),
    ],
)
def test_what_another_is_has_and_does_tells_of_them_alone(question, text):
    assert tells_of_self(text, question)


@pytest.mark.parametrize(
    ("question", "text", "of_self"),
    [
        ("When is Mum's birthday?", "My mother's birthday is on 4 May.", False),
        ("When is Mum's birthday?", "My best friend's birthday is on 4 May.", False),
        ("When is Mum's birthday?", "My birthday is on 4 May.", True),
        ("Who is Mum's mother?", "My mother is Edith.", True),
    ],
)
def test_what_the_user_tells_of_their_kin_may_tell_of_one_who_is_named(question, text, of_self):
    assert says_of_self_instead(text, question, ["mum"]) is of_self


def test_the_users_words_are_found_behind_those_of_many_others(memory):
    for n in range(60):
        tell(memory, f"I live in York {n}.", "Ruth")
    tell(memory, "At present and for some years to come I live somewhere in Bath.")
    assert kept(memory, "Where do I live?") == {
        "At present and for some years to come I live somewhere in Bath."
    }


@pytest.mark.parametrize(
    ("question", "find"), [("Who is Jens?", told_of), ("tell me about jens", overview)]
)
def test_what_somebody_tells_of_themselves_is_told_of_them(memory, question, find):
    tell(memory, "Jens is my Danish colleague.")
    tell(memory, "I start a bakery in Aarhus.", "Jens Holm")
    tell(memory, "The forecast says fog.", "Jens Holm")
    tell(memory, "I bought a canoe.", "Ruth")
    hits = memory.search(question, **ANA)
    found = find(memory, question, hits, most=12, scope=Scope(**ANA))
    told = {"Jens is my Danish colleague.", "I start a bakery in Aarhus."}
    assert told <= {evidence.text for evidence in found} <= told | {"The forecast says fog."}


def test_what_somebody_else_of_a_first_name_tells_is_not_told_of_them(memory):
    tell(memory, "I met Tom Reilly, he sings.")
    tell(memory, "I start a bakery.", "Tom Ferris")
    tell(memory, "I sell boats.", "Tom Reilly")
    question = "Who is Tom Reilly?"
    found = told_of(memory, question, memory.search(question, **ANA), most=12, scope=Scope(**ANA))
    assert [evidence.text for evidence in found] == ["I met Tom Reilly, he sings.", "I sell boats."]


@pytest.mark.parametrize(("n_told", "n_own"), [(8, 4), (12, 0)])
def test_what_is_told_of_somebody_leaves_places_for_their_own(memory, n_told, n_own):
    for n in range(30):
        tell(memory, f"I saw bird{n} on lake{n}.", "Jens")
    for n in range(n_told):
        tell(memory, f"Jens has hobby{n}.")
    found = told_of(
        memory, "Who is Jens?", memory.search("Jens", **ANA), most=12, scope=Scope(**ANA)
    )
    assert sum("hobby" in e.text for e in found) == n_told
    assert sum("bird" in e.text for e in found) == n_own
    assert found[-1].text.startswith("and ")


@pytest.mark.parametrize(
    ("question", "told"),
    [
        ("Tell me about Jens in 2024", ["Jens sings.", "In May 2024 Jens sailed."]),
        ("Tell me about Jens in June 2024", ["Jens sings."]),
        ("Tell me about Jens in 2019", ["Jens moved in 2019."]),
        (
            "Tell me about Jens in May 2019",
            ["Jens left.", "Jens sings.", "In May 2024 Jens sailed.", "Jens moved in 2019."],
        ),
        ("Tell me about Ruth in 2019", []),
        (
            "Tell me about Jens",
            ["Jens left.", "Jens sings.", "In May 2024 Jens sailed.", "Jens moved in 2019."],
        ),
        (
            "Give me an overview of what Jens sings in 2024?",
            ["Jens sings.", "In May 2024 Jens sailed."],
        ),
    ],
)
def test_an_overview_of_a_month_or_a_year_is_of_what_was_told_in_or_of_it(memory, question, told):
    tell(memory, "Jens left.", day="2018-05-01T10:00:00+00:00")
    tell(memory, "Jens sings.", day="2024-06-01T10:00:00+00:00")
    tell(memory, "In May 2024 Jens sailed.", day="2026-06-01T10:00:00+00:00")
    tell(memory, "Jens moved in 2019.", day="2026-07-01T10:00:00+00:00")
    hits = memory.search(question, **ANA)
    scope, now = Scope(**ANA), "2026-11-30T10:00:00+00:00"
    found = overview(memory, question, hits, most=12, scope=scope, said_at=now)
    assert [e.text for e in found] == told


def test_a_refusal_quotes_another_ones_i_with_the_name(shipped, embedder):
    with Memory(":memory:", engine=shipped, embedder=embedder) as memory:
        for text in ("The train leaves at 9:40.", "I work in Bristol.", "I quit smoking."):
            tell(memory, text)
        tell(memory, RUTHS, "Ruth")
        ask = partial(Chat(memory, **ANA).send, remember=False, timestamp="2026-11-30T10:00:00Z")
        reply = ask("What am I allergic to?")
        "".join(reply)
        assert reply.text == f"{NOTHING_FOUND}\n\n{NEAREST}\n- 1 May 2024, Ruth: {RUTHS}"
        reply = ask("What is Ruth allergic to?")
        "".join(reply)
        assert reply.text == "peanuts"
