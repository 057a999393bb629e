"""What a message quotes gives no fact of its own, and what it takes back gives none."""

import json
from types import SimpleNamespace

import pytest

from edgemem import language
from edgemem.results import Message
from edgemem.stages.extraction import extract, readings
from edgemem.stages.update import Candidate, Op, decide

MONDAY = "2026-11-16T10:00:00.000+00:00"


class Expert:
    """An engine whose expert finds these facts, one answer for each reading."""

    has_chat_template, n_params = False, 1_000_000

    def __init__(self, *answers):
        self.answers = list(answers)

    def expert(self, stage):
        return True

    def generate(self, prompt, **options):
        text = json.dumps({"facts": self.answers.pop(0)})
        return SimpleNamespace(
            text=text, finish_reason="stop", log_p=0.0, log_p_of=lambda begin, end: 0.0
        )


def said(text):
    return Message("user", text, MONDAY, None)


def facts(text, *answers):
    return extract(Expert(*answers), [said(text)])


# -- quotations ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        'The opening: "I live above the salt warehouse in Danzig."',
        "The opening: “I live above the salt warehouse in Danzig.”",
        "Der Anfang: „I live above the salt warehouse in Danzig.“",
        "Le début : « I live above the salt warehouse in Danzig. »",
    ],
)
def test_a_fact_that_rests_on_a_quotation_alone_is_dropped(text):
    assert facts(text, ["User lives above the salt warehouse in Danzig."]) == []
    (fact,) = facts(
        text.translate(dict.fromkeys(map(ord, '"“”„“«»'))),
        ["User lives above the salt warehouse in Danzig."],
    )
    assert fact.may_end


def test_a_fact_beside_a_quotation_stays():
    text = 'I moved to Bath in May. My father said "nobody moves to Bath of their own will".'
    (fact,) = facts(text, ["User moved to Bath in May."])
    assert fact.may_end


def test_a_fact_that_is_partly_quoted_stays_and_ends_nothing():
    text = 'My sister Lena said "we are moving to Bath in May".'
    (fact,) = facts(text, ["User's sister Lena said they are moving to Bath."])
    assert not fact.may_end
    old = [Candidate("m0", "User's sister Lena lives in Rome.", 0.8)]

    class Ends(Expert):
        def generate(self, prompt, **options):
            return SimpleNamespace(text="DELETE", finish_reason="stop")

    assert decide(Ends(), [fact.text], [old]) == [Op("DELETE", "m0", "model")]
    assert decide(Ends(), [fact.text], [old], may_end=[False]) == [Op("ADD", None, "model")]


@pytest.mark.parametrize(
    "text",
    [
        'My dog is called "Sir Barks" and my cat "Tom".',
        'I read "The Salt Orchard" last week.',
        "I've a 27\" screen and a 32\" one, and I'm 5'10\".",
        "It's Ana's and the twins' room.",
    ],
)
def test_a_title_a_name_an_inch_and_an_apostrophe_quote_nothing(text):
    assert language.quotations(text) == []


def test_a_quotation_of_several_portions_is_known_as_one():
    """Cut at its sentences, a long quotation has an opening mark here and a closing one there."""
    story = " ".join(["I kept the light on the rock in the winter of the great storm."] * 12)
    told = ["User kept the light on the rock."]
    assert facts(f'Shorten this: "{story}"', told, told, told) == []


# -- what is taken back --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "kept"),
    [
        (["It has 61,000 words.", "Actually 64,000."], ["It has 64,000 words."]),
        (["He'll be 46.", "No wait, 47."], ["He'll be 47."]),
        (["It's on Tuesday.", "No, it's on Friday, at six."], ["It's on Friday.", "At six."]),
        (["I have two cats.", "Actually one of them is ill."], None),
        (["He is 46.", "No, thanks."], None),
        (["Ana has 2 dogs and 3 cats.", "Actually 4."], None),
        (["He was born on 3 May.", "Actually 4 years before me."], None),
        (["My flight lands at 9:30.", "Actually at 10 I have a meeting."], None),
        (["I have 2 dogs.", "Actually one is a puppy."], None),
    ],
)
def test_a_number_or_a_day_is_put_right_in_its_place(said, kept):
    assert language.corrected(said) == (kept or said)


@pytest.mark.parametrize(
    "takes_back",
    [
        "Scratch that, we still have it.",
        "Oh no, scratch that.",
        "That's wrong, he has it.",
        "No wait, he sold it.",
        "Never mind.",
        "Never mind, Jonas has done it.",
        "Actually blue.",
        "Well, actually we're not.",
        "I misread it.",
    ],
)
def test_a_sentence_is_taken_back_by_the_next(takes_back):
    assert language.taken_back(["I have sold the red car.", takes_back]) == [1]


@pytest.mark.parametrize(
    "sentence",
    [
        "Actually, I loved that old car of mine.",
        "Never mind the rolls.",
        "I was wrong about the sheep.",
        "No wonder, it was 20 years old.",
        "That was a mistake.",
        "Forget that I said so.",
        "Wait, you don't even know.",
        "Make it Monday.",
        "Actually I don't like it much.",
        "Actually, it's not easy.",
        "Actually so cute!",
        "Actually on Monday I have a meeting.",
        "Actually Ben visits us often.",
    ],
)
def test_what_sounds_alike_takes_nothing_back(sentence):
    assert language.taken_back(["I have sold the red car on Sunday.", sentence]) == []


def test_a_message_that_takes_back_all_the_time_is_read_a_few_times():
    assert len(readings([said("I have two cats. Actually not. " * 100)])) < 20


def test_a_sentence_that_is_taken_back_is_shown_before_the_one_that_does_so():
    """Read at once, "Finn is at Widcombe Primary" was taken again and the correction was lost."""
    text = "We had tea. Finn is at Widcombe Primary. That's wrong, he's at St Stephen's. I'm glad."
    _, first, then = readings([said("Tilda plays the cello."), said(text)])
    assert first.message.content == "We had tea." and len(first.before) == 1
    assert then.message.content == "That's wrong, he's at St Stephen's. I'm glad."
    assert [m.content for m in then.before] == ["We had tea. Finn is at Widcombe Primary."]
    old, new = "Finn is at Widcombe Primary.", "Finn is at St Stephen's."
    (fact,) = facts(text, [], [old, new])
    assert (fact.text, fact.source, fact.also) == (new, 0, ())


def test_a_fragment_about_somebody_else_is_not_taken_for_the_speakers():
    """ "Actually vegan." was read as "User is vegan"."""
    assert facts("Rhys is a vegetarian. Actually vegan.", ["User is vegan."]) == []
    (fact,) = facts("I'm a vegetarian. Actually vegan.", ["User is vegan."])
    assert fact.text == "User is vegan."


def test_a_base_model_does_not_read_what_is_taken_back_or_quoted():
    prompts = []

    class Base(Expert):
        def expert(self, stage):
            return False

        def generate(self, prompt, **options):
            prompts.append(prompt.splitlines()[-1])
            return SimpleNamespace(text='{"facts": []}', finish_reason="stop")

    text = 'I sold my car. Scratch that, I kept it. It says "I have been a widow for years".'
    extract(Base(), [said(text)], reader="quote")
    assert prompts == ["Kim: Scratch that, I kept it."]


@pytest.mark.parametrize(
    ("fact", "told"),
    [
        ("Tom has asthma, the doctor in Leeds confirmed it last week.", "Tom has asthma."),
        ("Tom has gout, it was diagnosed in Leeds on 20 November 2026.", "Tom has gout."),
        ("Leila wrote on carpets in 2018, as she told Hugo.", "Leila wrote on carpets in 2018."),
        ("User has let the choir drop and told Ines so.", "User has let the choir drop."),
    ],
)
def test_a_last_clause_that_only_tells_who_says_it_is_left_out(fact, told):
    assert language.without_source(fact) == told


@pytest.mark.parametrize(
    "fact",
    [
        "User lost the ring, Ana found it on 3 May.",
        "User was offered the post, and User said no.",
        "User called the dinner off, for they will cook at home.",
        "The firm wrote that the post has been filled.",
    ],
)
def test_a_clause_that_tells_something_itself_stays(fact):
    assert language.without_source(fact) == fact
