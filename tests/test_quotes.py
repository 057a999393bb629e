"""What a message quotes gives no fact of its own."""

import json
from types import SimpleNamespace

import pytest

from edgemem import language
from edgemem.results import Message
from edgemem.stages.extraction import extract
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
    assert language.quoted(text) == []


def test_a_quotation_of_several_portions_is_known_as_one():
    """Cut at its sentences, a long quotation has an opening mark here and a closing one there."""
    story = " ".join(["I kept the light on the rock in the winter of the great storm."] * 12)
    told = ["User kept the light on the rock."]
    assert facts(f'Shorten this: "{story}"', told, told, told) == []
