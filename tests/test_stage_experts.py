"""The stages with an expert bound: short prompts, whole messages, answers in its own words."""

import json
import re
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corpus.evaluate import Reader
from edgemem.results import Evidence, Message
from edgemem.runtime.engine import Generation, Stream
from edgemem.stages import extraction, generation, reading, update
from edgemem.stages.generation import NOT_KNOWN, NOTHING_FOUND

MAY_8 = "2023-05-08T13:56:00.000+00:00"


class Expert:
    """An engine whose every stage has an expert; its answers are known."""

    n_ctx = 2048
    has_chat_template, n_params = True, 135_000_000

    def __init__(self, *answers, finish_reason="stop"):
        self.answers, self.finish_reason = list(answers), finish_reason
        self.calls, self.warmed = [], []

    def expert(self, stage):
        return True

    def warm(self, stage, beginning, *, folder):
        self.warmed.append((stage, beginning))

    def count_tokens(self, prompt):
        return len(prompt.split())

    def generate(self, prompt, **options):
        self.calls.append((prompt, options))
        text = self.answers.pop(0)
        text = text if isinstance(text, str) else json.dumps(text)
        return SimpleNamespace(text=text, finish_reason=self.finish_reason)

    def stream(self, prompt, **options):
        self.calls.append((prompt, options))

        def pieces():
            yield from self.answers
            return Generation("".join(self.answers), 9, len(self.answers), 0, 0.1, 9.0, "stop")

        return Stream(pieces())


def said(text, name="Ana", when=MAY_8, role="user"):
    return Message(role, text, when, name)


def facts(*texts):
    return {"facts": list(texts)}


# -- extraction ----------------------------------------------------------------------------------


def test_an_expert_reads_a_message_with_what_was_said_before_and_dates_written_out():
    engine = Expert(facts())
    extraction.extract(engine, [said("How was it?", "Tom"), said("I ran a race\nyesterday.")])
    ((prompt, options),) = engine.calls
    assert prompt == (
        f"{reading.PROMPT}\n\n"
        "Before:\nTom: How was it?\nNow:\nAna: I ran a race on 7 May 2023.\n"
        "About Ana:\n"
    )
    assert options["stage"] == "extraction"
    assert options["fork"] == ('{"facts": []}', '{"facts": ["A"]}', extraction.SURE)


def test_an_expert_is_shown_the_two_messages_before_of_the_same_talk():
    engine = Expert(facts(), facts())
    yesterday, noon = "2023-05-07T13:56:00.000+00:00", "2023-05-08T12:56:00.000+00:00"
    context = [said("I am off.", when=yesterday), said("Tell me all.", "Tom", when=noon)]
    extraction.extract(
        engine, [said("I own a boat."), said("I own a car.", "Tom")], context=context
    )
    shown = [prompt.split("\n\n", 1)[1] for prompt, _ in engine.calls]
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
    engine = Expert(facts(), facts())
    extraction.extract(engine, [said("I see them often.", "Tomas"), said(text)])
    assert engine.calls[1][0].endswith(f"\nAna: {read}\nAbout Ana:\n")


def test_a_fact_cites_the_message_that_holds_its_words_and_the_day_it_holds_from():
    engine = Expert(facts("Tom owns a boat"), facts("Ana ran a race on 7 May 2023"))
    messages = [said("I own a boat.", "Tom"), said("I ran a race yesterday.")]
    boat, ran = extraction.extract(engine, messages)
    assert (ran.text, ran.source) == ("Ana ran a race on 7 May 2023", 1)
    assert ran.valid_from[:10] == "2023-05-07"
    assert (boat.source, boat.valid_from) == (0, MAY_8)


def test_a_date_that_the_expert_left_out_is_put_at_the_end_of_its_fact():
    engine = Expert(facts("Ana ran a race."))
    (fact,) = extraction.extract(engine, [said("It was hot. I ran a race yesterday.")])
    assert fact.text == "Ana ran a race on 7 May 2023"


BOAT = said("I own a boat, red and fast.", "Tom")
VET = [said("Biscuit weighs nine kilos now, says the vet. My mum took him there.")]
BOUGHT, MASTS = [said("I bought a boat.")], [said("I bought a boat, it has 2 masts.")]
FAST = [BOAT, said("I like that it is so fast.")]
SAILED = [said("How was it?", "Tom"), said("We sailed all day. Boats are wonderful.")]
PROUD = [said("Hello?", "Tom"), said("You have run a race, I am proud of you.")]
PETS = [said("Do you have pets?", "Tom"), said("I have two black cats.")]


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
        # What one says of the other stays about the other.
        (PROUD, "Tom has run a race", ...),
    ],
)
def test_what_an_expert_tells_is_a_fact_of_whom_it_was_said_or_none(messages, told, kept):
    nothing = [facts()] if messages[0] is BOAT else []  # each message is read by itself
    found = extraction.extract(Expert(*nothing, facts(told)), messages)
    kept = told if kept is ... else kept
    assert [fact.text for fact in found] == ([kept] if kept else [])
    assert not found or found[0].source == len(messages) - 1


def test_an_answer_to_a_question_is_read_with_it():
    engine = Expert(facts("Ana has lived in Oslo for four years"))
    messages = [said("How long have you lived in Oslo?", "Tom"), said("Four years now.")]
    (fact,) = extraction.extract(engine, messages)
    assert fact.source == 1


def test_a_fact_cites_the_messages_before_that_lent_it_words():
    """It may say what they say, and goes when they are erased."""
    context = [said("We live in Oslo."), said("How long have you lived there?", "Tom")]
    engine = Expert(facts("Ana has lived in Oslo for four years"), facts("Tom owns a boat"))
    messages = [said("Four years now."), said("I own a boat.", "Tom")]
    lived, boat = extraction.extract(engine, messages, context=context)
    assert (lived.source, lived.also) == (0, (-2, -1))
    assert (boat.source, boat.also) == (1, ())


@pytest.mark.parametrize(
    ("texts", "calls"),
    [
        (["I'm vegan."], 1),
        (["Great, I smoke!"], 1),
        (["We won."], 1),
        (["How are you?", "And you?"], 0),
        (["Nice.", "Great, you did it!"], 0),
    ],
)
def test_only_a_message_with_a_sentence_that_may_hold_a_fact_is_read(texts, calls):
    engine = Expert(*[facts()] * calls)
    messages = [said(text, name) for text, name in zip(texts, ("Ana", "Tom"), strict=False)]
    assert extraction.extract(engine, messages) == [] and len(engine.calls) == calls


def test_a_long_message_is_read_in_portions_of_whole_sentences():
    sentences = [f"I visited the town number {n} and liked it very much." for n in range(60)]
    engine = Expert(*[facts() for _ in range(9)])
    extraction.extract(engine, [said("Where to?", "Tom"), said(" ".join(sentences))])
    read = [re.findall(r"^Ana: (.*)", prompt, re.M)[-1].strip() for prompt, _ in engine.calls]
    assert " ".join(read) == " ".join(sentences[: reading.MAX_SENTENCES])
    assert all(400 < len(text) <= 500 for text in read[:-1])


def test_of_a_long_message_before_only_the_end_is_shown():
    engine = Expert(facts())
    essay = "Boats are made of wood, as everybody has known for years. " * 30 + "Do you own one?"
    extraction.extract(engine, [said("I do.")], context=[said(essay, "Tom")])
    before = engine.calls[0][0].split("\n\n", 1)[1].splitlines()[1]
    assert before.startswith("Tom: Boats are") and before.endswith("Do you own one?")
    assert len(before) <= len("Tom: ") + 500


def test_an_answer_that_is_no_json_is_an_error_and_a_cut_one_keeps_its_closed_facts():
    with pytest.raises(ValueError, match="expected"):
        extraction.extract(Expert({"fact": []}), [said("I own a boat.")])
    cut = Expert('{"facts": ["Ana owns a boat", "Ana ow', finish_reason="length")
    assert [f.text for f in extraction.extract(cut, [said("I own a boat.")])] == ["Ana owns a boat"]


# -- update --------------------------------------------------------------------------------------


def near(*texts):
    return [update.Candidate(f"m{n}", text, 0.8) for n, text in enumerate(texts)]


def test_an_expert_compares_a_fact_with_one_memory_at_a_time():
    engine = Expert("ADD", "ADD", "DELETE")
    old = [near("Ana paints roses in oil"), near("Ana rides a red horse", "Ana rides at noon")]
    new = ["Ana paints birds", "Ana likes to ride a black horse"]
    ops = update.decide(engine, new, old)
    assert [op.event for op in ops] == ["ADD", "DELETE"] and ops[1].target == "m1"
    prompts = [prompt for prompt, _ in engine.calls]
    assert prompts[0] == (
        f"{update.EXPERT_PROMPT}\n\nOld memory: Ana paints roses in oil\n"
        'New fact: Ana paints birds\n{"event": "'
    )
    assert all(options["stage"] == "update" for _, options in engine.calls)


def test_an_expert_is_not_asked_about_somebody_elses_memory():
    engine = Expert("ADD")
    old = near("Ana's brother paints roses", "Ana paints roses in oil")
    (op,) = update.decide(engine, ["Ana paints birds"], [old])
    assert op == update.Op("ADD", 0, None, "model")
    assert "Old memory: Ana paints roses in oil\n" in engine.calls[0][0]


@pytest.mark.parametrize(
    ("event", "old", "new"),
    [
        ("N", "Ana rides a red horse", "Ana rode 3 horses in the park"),
        ("N", "Ana rides a red horse", "Ana rides a horse in Oslo"),
        ("N", "Ana rides a red horse", "Ana rides a horse of her sister"),
        ("N", "Ana rides a red horse", "Ana rode a horse on 3 May 2024"),
        ("N", "Ana rides a red horse on the beach with friends", "Ana doesn't ride at noon"),
        ("UPDATE", "Ana rides a red horse", "Ana rides bikes"),
        ("UPDATE", "Ana rides a horse in Oslo", "Ana rides a horse and a donkey"),
    ],
)
def test_an_expert_cannot_lose_what_was_said(event, old, new):
    engine = Expert(event)
    assert update.decide(engine, [new], [near(old)]) == [update.Op("ADD", 0, None, "model")]
    assert len(engine.calls) == 1


@pytest.mark.parametrize(
    ("text", "event"),
    [("N", "NONE"), ("NONE", "NONE"), ("UP", "UPDATE"), ("DELETE", "DELETE"), ("ADD", "ADD"),
     ("", "ADD"), ("none", "ADD"), (' "', "ADD")],
)  # fmt: skip
def test_the_first_token_of_an_experts_event_tells_it(text, event):
    """A vocabulary may cut the word anywhere; what begins no event is taken for ADD."""
    old = near("Ana rides a red horse")
    (op,) = update.decide(Expert(text), ["Ana likes to ride a black horse"], [old])
    assert op == update.Op(event, 0, None if event == "ADD" else "m0", "model")


def test_an_expert_is_asked_about_the_same_person_in_other_words():
    """The rules took "Ana's biggest supporter" for somebody else, and added every such fact."""
    engine = Expert("N")
    old = near("Ana's cousin's biggest supporter is her mum", "Ana is supported by her mum")
    (op,) = update.decide(engine, ["Ana's biggest supporter is her mum"], [old])
    assert op == update.Op("NONE", 0, "m1", "model")


def test_where_nothing_is_to_be_compared_no_expert_is_asked():
    engine = Expert()
    far = update.Candidate("m0", "Ana is very fond of onion soup", update.COMPARED - 0.01)
    of_another = update.Candidate("m1", "Tom moved to Bergen", 0.9)
    assert update.decide(engine, ["Ana moved to Bergen"], [[of_another, far]]) == [
        update.Op("ADD", 0, None, "rule")
    ]


def test_a_bench_asks_for_an_event_as_the_stage_does():
    """It once asked a second time for whatever had no schema."""
    engine = Expert("N")
    op = update.decide(Reader(engine), ["Ana likes to ride a horse"], [near("Ana rides a red one")])
    assert op == [update.Op("NONE", 0, "m0", "model")] and len(engine.calls) == 1


# -- answers -------------------------------------------------------------------------------------


def answer(*pieces, question="Who barks?", **said):
    engine = Expert(*pieces)
    memories = [Evidence("I adopted Rex yesterday.", MAY_8, "Ana")]
    return engine, generation.answer(engine, question, memories, speaker="Tom", **said)


def test_an_expert_is_shown_the_instruction_the_memories_and_the_question():
    engine, stream = answer(" Rex")
    assert "".join(stream) == " Rex" and stream.result.text == " Rex"
    ((prompt, options),) = engine.calls
    assert prompt == (
        f"{generation.EXPERT_PROMPT}\n\n"
        'On 8 May 2023, Ana said: "I adopted Rex on 7 May 2023."\n'
        "\nTom asks: Who barks?\nAnswer:"
    )
    assert "within" not in options
    # It refuses only if that is probable.
    assert options["fork"] == (f" {NOT_KNOWN}", " Yes", generation.SURE)
    # What is kept in a file for other processes holds nothing that somebody said.
    assert engine.warmed == [("generation", f"{generation.EXPERT_PROMPT}\n\n")]


def test_an_expert_is_shown_the_day_of_a_question():
    """ "How long have I had him?" has no answer without it."""
    engine, stream = answer(" Two days", asked_at="2023-05-09T08:00:00+00:00")
    assert "".join(stream) == " Two days"
    assert engine.calls[0][0].endswith("\nOn 9 May 2023, Tom asks: Who barks?\nAnswer:")


@pytest.mark.parametrize(
    "pieces",
    [(" Not", " known"), (" Not known.",), ("",), (), (f" {NOT_KNOWN}",), (" not known.",)],
)
def test_an_experts_refusal_is_told_in_our_words(pieces):
    _, stream = answer(*pieces)
    assert list(stream) == [NOTHING_FOUND]
    assert stream.result.text == NOTHING_FOUND


@pytest.mark.parametrize(
    ("written", "told"),
    [
        (" Rex, a cat, Rex, a cat, Rex", " Rex, a cat"),
        (" a red dog, dog", " a red dog"),
        (" the dog that the dog that the dog that", " the dog that"),
        (" Rex, The Kinks, a cat", " Rex"),  # nobody said a word of any Kinks
        (" The Kinks, Rex", " The Kinks, Rex"),
        (" more and more and more", " more and more and more"),
        (" 7 May, 2023", " 7 May, 2023"),
        (" Rex,", " Rex"),
        (" Rex, 🙂, 🙂", " Rex, 🙂, 🙂"),
        # What only begins like a refusal is told as it is.
        *((text, text) for text in (" No", " Not", " Not kn", " Nothing", "No.")),
        (" Not known to Ana", " Not known to Ana"),
    ],
)
def test_an_answer_ends_where_it_begins_again_or_names_what_nobody_said(written, told):
    _, stream = answer(*re.findall(r" ?[^ ]+", written))
    assert "".join(stream) == stream.result.text == told


def test_an_experts_days_are_told_in_the_form_that_was_asked_for():
    pieces = (" 7 May", " 2023,", " 8 May 2023")
    _, stream = answer(*pieces, question="Which days? Give them as YYYY-MM-DD.")
    assert "".join(stream) == stream.result.text == " 2023-05-07, 2023-05-08"


@given(st.text("ab ,A", max_size=40), st.integers(1, 5))
def test_what_is_told_piece_by_piece_is_the_beginning_of_what_was_written(text, size):
    _, stream = answer(*(text[i : i + size] for i in range(0, len(text), size)))
    told = "".join(stream)
    assert stream.result.text == told
    assert text.startswith(told) or told == NOTHING_FOUND


def test_a_closed_answer_ends_the_models_own():
    _, stream = answer(" Rex,", " who barks")
    assert next(stream) == " Rex"
    stream.close()
    assert list(stream) == []
