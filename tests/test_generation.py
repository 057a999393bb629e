"""Prompts of the answering stage: memories in order, what does not fit left out."""

import pytest

from edgemem.errors import ContextOverflow
from edgemem.language import content_words
from edgemem.results import Evidence, Message
from edgemem.stages.generation import MAX_ANSWER_TOKENS, answer
from edgemem.stages.reply import small_talk

MAY_8 = "2023-05-08T13:56:00.000+00:00"


class Recorder:
    """An engine that counts words as tokens and keeps what it is given."""

    def __init__(self, n_ctx=2048, has_chat_template=True):
        self.n_ctx, self.has_chat_template = n_ctx, has_chat_template

    def expert(self, stage):
        return False

    def warm(self, stage, beginning, *, folder):
        pass

    def count_tokens(self, prompt):
        return len(str(prompt).split())

    def stream(self, prompt, **options):
        self.prompt, self.options = prompt, options

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
