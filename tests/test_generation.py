"""The answering stage: its prompts, what does not fit in one, and what is told of an answer."""

import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgemem.errors import ContextOverflow
from edgemem.language import as_of_now, content_words
from edgemem.results import Evidence, Message
from edgemem.runtime.engine import Generation, Stream
from edgemem.stages.generation import (
    EXPERT_PROMPT,
    MAX_ANSWER_TOKENS,
    NOT_KNOWN,
    NOTHING_FOUND,
    SURE,
    answer,
    quoted,
)
from edgemem.stages.reply import NOTED, acknowledge, fulfil, small_talk

MAY_8 = "2023-05-08T13:56:00.000+00:00"


class Recorder:
    """An engine that counts words as tokens and keeps what it is given. pieces: of its expert."""

    n_ctx = 2048

    def __init__(self, has_chat_template=True, pieces=None, log_p=0.0):
        self.has_chat_template, self.pieces, self.log_p = has_chat_template, pieces, log_p
        self.warmed = []

    def expert(self, stage):
        return self.pieces is not None

    def warm(self, stage, beginning, *, folder):
        self.warmed.append((stage, beginning))

    def count_tokens(self, prompt):
        return len(str(prompt).split())

    def stream(self, prompt, **options):
        self.prompt, self.options = prompt, options

        def pieces():
            yield from self.pieces
            said = Generation("".join(self.pieces), 9, len(self.pieces), 0, 0.1, 9.0, "stop")
            return replace(said, log_p=self.log_p)

        return Stream(pieces())

    @property
    def asked(self):
        """The prompt after its worked examples, whose last answer ends with the blank line."""
        return self.prompt.rpartition("The trumpet\n\n")[2]


def said(text, when=MAY_8):
    return Evidence(text, when, "User")


def test_the_most_relevant_memory_stands_last_with_its_day_and_speaker():
    engine = Recorder()
    noted = Evidence("Ana has a dog")
    answer(engine, "Who barks?", [noted, said("I adopted Rex yesterday.")], speaker="Ana")
    assert engine.asked == (
        "it was noted: Ana has a dog\n"
        'On 8 May 2023, User said: "I adopted Rex on 7 May 2023."\n'
        "\nQuestion to Ana: Who barks?\nAna's short answer:"
    )


def test_an_answer_quotes_what_was_shown_and_ends_with_its_line():
    engine = Recorder()
    answer(engine, "Who?", [said('I saw "Rex"\nyesterday.')], speaker="Ana")
    assert engine.options == {
        "max_tokens": MAX_ANSWER_TOKENS,
        "stop": ("\n",),
        "within": ["I saw 'Rex' on 7 May 2023."],  # as it is shown
        "stage": "generation",
    }
    answer(engine, "Who?", [], speaker="Ana")
    assert engine.options["within"] is None


def with_room_for(words):
    """An engine whose window takes the examples, a question of one word and so many words more."""
    engine = Recorder()
    answer(engine, "Who?", [], speaker="Ana")
    engine.n_ctx = engine.count_tokens(engine.prompt) + MAX_ANSWER_TOKENS + words
    return engine


def test_memories_that_do_not_fit_are_left_out_the_least_relevant_first():
    engine = with_room_for(2 * 16)  # "On 8 May 2023, User said:" and ten words
    memories = [said(f"word{n} " * 10) for n in range(6)]
    answer(engine, "Who?", memories, speaker="Ana")
    assert engine.asked.index("word4") < engine.asked.index("word5")
    assert "word3" not in engine.prompt
    assert [text[:5] for text in engine.options["within"]] == ["word4", "word5"]


def test_a_memory_too_long_for_the_window_does_not_keep_the_others_out():
    engine = with_room_for(32)
    answer(engine, "Who?", [said("small"), said("huge " * 5000)], speaker="Ana")
    assert "small" in engine.prompt and "huge" not in engine.prompt


@pytest.mark.parametrize("text", ['He said "hi"', "two\nlines", 'end"'])
def test_a_memory_with_quotes_or_lines_stays_one_line_of_the_prompt(text):
    engine = Recorder()
    answer(engine, "Who?", [said(text)], speaker="Ana")
    (line, *_) = engine.asked.split("\n\nQuestion", 1)
    assert "\n" not in line
    assert line.count('"') == 2


def test_a_question_stays_one_line_of_the_prompt():
    engine = Recorder()
    answer(engine, "Who\nis\r\nthere?", [], speaker="Ana")
    assert "Question to Ana: Who is there?\n" in engine.prompt


def test_talk_goes_through_the_chat_template_with_the_last_turns():
    engine = Recorder()
    small_talk(engine, "Hello", [Message("user", "Hi", MAY_8), Message("assistant", "Ho", MAY_8)])
    assert [m["role"] for m in engine.prompt] == ["system", "user", "assistant", "user"]
    assert engine.prompt[-1]["content"] == "Hello"
    assert engine.options["stage"] == "talk"


def test_without_a_chat_template_talk_is_a_plain_completion():
    engine = Recorder(has_chat_template=False)
    small_talk(engine, "Hello", [Message("user", "Hi", MAY_8, "Ana")])
    assert engine.prompt.endswith("Ana: Hi\nuser: Hello\nassistant:")
    assert engine.options["stop"]
    assert engine.options["stage"] == "talk"  # another one's prefix would be thrown away


@pytest.mark.models
def test_the_real_model_answers_from_a_memory(engine):
    memories = [said("I went for a run today."), said("My dog is called Biscuit.")]
    stream = answer(engine, "What is the name of my dog?", memories, speaker="User")
    assert "Biscuit" in "".join(stream)


@pytest.mark.models
@pytest.mark.parametrize(
    "question", ["What is my cat called?", "Which instrument does Jonas play?", "Who am I?", "the?"]
)
def test_the_real_model_takes_no_answer_from_the_examples(engine, question):
    memories = [said("I went for a run on Monday."), said("My dog is called Biscuit.")]
    text = "".join(answer(engine, question, memories, speaker="User")).strip()
    assert any(text in memory.text for memory in memories)
    assert content_words(text)


@pytest.mark.models
def test_a_question_too_long_for_the_window_is_refused(small):
    with pytest.raises(ContextOverflow):
        answer(small, "why " * 300 + "?", [said("x")], speaker="User")
    with pytest.raises(ContextOverflow):
        small_talk(small, "why " * 300, [])


@pytest.mark.models
def test_talk_longer_than_the_window_loses_its_oldest_turns(small):
    turns = [Message("user", f"{n} " + "blah " * 60, MAY_8) for n in range(6)]
    stream = small_talk(small, "Hello there", turns)
    next(stream)
    stream.close()


# -- an expert, which answers in its own words -----------------------------------------------------


def by_expert(*pieces, question="Who barks?", **more):
    """An engine whose expert says this, and what is told of it."""
    engine = Recorder(pieces=pieces)
    memories = [Evidence("I adopted Rex yesterday.", MAY_8, "Ana")]
    return engine, answer(engine, question, memories, speaker="Tom", **more)


def test_an_expert_is_shown_the_instruction_the_memories_and_the_question():
    engine, stream = by_expert(" Rex")
    assert "".join(stream) == " Rex" and stream.result.text == " Rex"
    assert engine.prompt == (
        f"{EXPERT_PROMPT}\n\n"
        'On 8 May 2023, Ana said: "I adopted Rex on 7 May 2023."\n'
        "\nTom asks: Who barks?\nAnswer:"
    )
    assert "within" not in engine.options
    # It refuses only if that is probable.
    assert engine.options["fork"] == (f" {NOT_KNOWN}", " Yes", SURE)
    # What is kept in a file for other processes holds nothing that somebody said.
    assert engine.warmed == [("generation", f"{EXPERT_PROMPT}\n\n")]


def test_an_expert_is_shown_the_day_of_a_question():
    """ "How long have I had him?" has no answer without it."""
    engine, stream = by_expert(" Two days", asked_at="2023-05-09T08:00:00+00:00")
    assert "".join(stream) == " Two days"
    assert engine.prompt.endswith("\nOn 9 May 2023, Tom asks: Who barks?\nAnswer:")


def test_how_long_it_is_until_a_day_is_counted_and_not_left_to_the_expert():
    more = {"question": "how many weeks till the wedding?", "asked_at": "2023-05-09T08:00:00+00:00"}
    engine, stream = by_expert(" 20", " June 2023", **more)
    assert "".join(stream) == stream.result.text == "6 weeks, 20 June 2023"
    assert engine.prompt.endswith("\nOn 9 May 2023, Tom asks: When is the wedding?\nAnswer:")


class Near:
    """An embedder whose texts are alike if both name the dentist, or neither does."""

    def embed(self, texts):
        return np.array([[1.0, 0.0] if "dentist" in t else [0.0, 1.0] for t in texts], np.float32)


@pytest.mark.parametrize(
    ("question", "answers", "taken"),
    [
        ("Who is my dentist?", [(" Ann Low", -1.0), (" Mr Brook", -3.0)], 1),
        ("Who is my dentist?", [(" Ann Low", -1.0), (" Mr Brook", -9.5)], 0),  # too improbable
        ("Who is my aunt?", [(" Ann Low", -1.0), (" Mr Brook", -3.0)], 0),
        ("Who is my dentist?", [(" yes", -1.0), (" mr brook.", -3.0)], 0),  # nobody told a "yes"
        ("Who is my dentist?", [(" yes", -1.0), (" no", -2.0)], 0),
        ("Who is my dentist?", [("", -1.0), (" Mr Brook", -3.0)], 0),
        # Whether to refuse is no matter of words, and was decided before.
        ("Who is my dentist?", [(" it", -3.0), (" not known", 0.0), (" Mr Brook", -3.0)], 0),
        ("Who is my dentist?", [(" Ann Low", -3.0), ("", 0.0), (" Mr Brook", -3.0)], 2),
        ("Who is my dentist?", [(" Ann Low", -1.0)], 0),
        ("Who is my dentist?", [(" User", -1.0), (" Mr Brook", -9.5)], 1),
        # The 30th was a Monday.
        ("When do I see Ann?", [(" Friday 30 November 2026", -1.0), (" Friday", -5.0)], 1),
        ("When do I see Ann?", [(" Friday 30 November 2026", -1.0)], 0),
        ("Who came, and talked?", [(" Friday", -1.0), (" Ann Low", -5.0)], 1),
        ("Who came, and when?", [(" Friday", -1.0), (" Ann Low", -9.5)], 0),
    ],
)
def test_an_answer_counts_for_more_where_what_stands_around_it_is_near(question, answers, taken):
    engine = Recorder(pieces=())
    told = "Ann Low, my aunt, came on Friday, and we talked for a while. " * 2
    memories = [Evidence(f"{told}My new dentist is called Mr Brook.", MAY_8, "Ana")]
    answer(engine, question, memories, speaker="Ana", embedder=Near())
    assert engine.options["branches"] > 1
    assert engine.options["choose"](answers) == taken


@pytest.mark.parametrize(("log_p", "told"), [(-0.6, "How sad."), (-0.8, NOTED)])
def test_what_is_told_gets_an_experts_reply_only_if_it_is_probable(log_p, told):
    engine = Recorder(pieces=("How", " sad."), log_p=log_p)
    stream = acknowledge(engine, "ruth's gran died")
    assert "".join(stream) == told and stream.result.text == told


@pytest.mark.parametrize(
    "pieces",
    [
        (" Not", " known"),
        (" Not known.",),
        ("",),
        (),
        (f" {NOT_KNOWN}",),
        (" not known.",),
        (" yes, in as few words as you can",),
    ],
)
def test_an_experts_refusal_is_told_in_our_words(pieces):
    _, stream = by_expert(*pieces)
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
    _, stream = by_expert(*re.findall(r" ?[^ ]+", written))
    assert "".join(stream) == stream.result.text == told


@pytest.mark.parametrize(
    ("said", "given"),
    [(" 14 times", False), (" twice a week", True), (" on Fridays", False)],
)
def test_a_count_that_nobody_told_is_no_answer_to_how_often(said, given):
    told = [Evidence("I swim twice a week, the 14th time today.", MAY_8, "Ana")]
    engine = Recorder(pieces=(said,))
    stream = answer(engine, "How often do I swim?", told, speaker="Ana", quotes=lambda: told)
    assert "".join(stream).startswith(said if given else "I'm not sure.")
    stream = answer(engine, "How often do I swim?", told, speaker="Ana")
    assert "".join(stream) == (said if given else NOTHING_FOUND)


def test_below_a_length_of_time_stands_the_day_that_it_ends_on():
    """The holiday was said to begin in "7 days", when the assistant did."""
    told = [Evidence("Our holiday begins on 15 May.", MAY_8, "Ana")]
    engine, asks = Recorder(pieces=(" 15 May",), log_p=0.0), "How long until the holiday?"
    for quotes, said in (
        ((lambda: told), "7 days, 15 May\n\nThis is what you told me:"),
        ((lambda: ()), NOTHING_FOUND),
        (None, "7 days, 15 May"),
    ):
        stream = answer(engine, asks, told, speaker="Ana", asked_at=MAY_8, quotes=quotes)
        assert "".join(stream).startswith(said)
    past = Recorder(pieces=(" 7 May",), log_p=0.0)
    stream = answer(past, asks, told, speaker="Ana", asked_at=MAY_8, quotes=tuple)
    assert "".join(stream) == NOTHING_FOUND


def test_an_experts_days_are_told_in_the_form_that_was_asked_for():
    pieces = (" 7 May", " 2023,", " 8 May 2023")
    _, stream = by_expert(*pieces, question="Which days? Give them as YYYY-MM-DD.")
    assert "".join(stream) == stream.result.text == " 2023-05-07, 2023-05-08"


@given(st.text("ab ,A", max_size=40), st.integers(1, 5))
def test_what_is_told_is_the_beginning_of_what_was_written(text, size):
    _, stream = by_expert(*(text[i : i + size] for i in range(0, len(text), size)))
    told = "".join(stream)
    assert stream.result.text == told
    assert text.startswith(told) or told == NOTHING_FOUND


def test_a_closed_answer_ends_the_models_own():
    _, stream = by_expert(" Rex,", " who barks")
    assert next(stream) == " Rex, who barks"
    stream.close()
    assert list(stream) == []


def test_a_quotation_keeps_today_beside_its_day_and_writes_out_other_days():
    said = Evidence("Lent Tom my drill today, he will return it on Friday.", "2024-05-06T10:00Z")
    assert quoted([said]).splitlines()[1] == (
        "- 6 May 2024: Lent Tom my drill today, he will return it on Friday 10 May 2024."
    )


def test_a_quotation_names_who_said_it_unless_it_was_the_user():
    told = [Evidence("I turn 35.", "2024-05-06T10:00Z", "Aisha"), Evidence("I'm 40.", None, "User")]
    assert quoted(told).splitlines()[1:] == ["- 6 May 2024, Aisha: I turn 35.", "- I'm 40."]


@pytest.mark.parametrize(
    ("pieces", "told"),
    [
        ((" Not", "ed."), ["I don't know that."]),
        ((" No", "vember", " has 30."), [" November", " has 30."]),
        ((" No",), [" No"]),
        ((), ["I don't know that."]),
    ],
)
def test_a_question_of_the_world_is_not_answered_with_noted(pieces, told):
    assert list(fulfil(Recorder(pieces=pieces), "Which month has 30 days?", ())) == told


@pytest.mark.parametrize(
    ("question", "asked"),
    [
        ("Where does Tom live?", "Where does Tom live now?"),
        ("whats my dentist called", "whats my dentist called now?"),
        ("Who's my boss?", "Who's my boss now?"),
        ("Where did Tom live?", "Where did Tom live?"),
        ("Where is Tom moving to next month?", "Where is Tom moving to next month?"),
        ("Who is my boss these days?", "Who is my boss these days?"),
        ("What is on Friday?", "What is on Friday?"),
        ("And when?", "And when?"),
    ],
)
def test_a_question_about_the_present_asks_for_now(question, asked):
    """Of two turns that contradict each other the older one was the answer to 9 of 20."""
    assert as_of_now(question) == asked


@pytest.mark.parametrize("ended", [False, True])
def test_an_expert_is_asked_for_now_where_something_has_ended(ended):
    engine = Recorder(pieces=(" York",))
    told = [said("Tom lives in Leeds."), said("Tom moved to York.")]
    answer(engine, "Where does Tom live?", told, speaker="User", ended=ended)
    assert ("Where does Tom live now?" in engine.prompt) is ended
