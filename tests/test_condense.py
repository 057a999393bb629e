"""Memories in a budget of tokens: what is kept, in which order, and whose it is."""

from __future__ import annotations

import pytest
from fake_engine import FakeEngine
from memorykit import quick

from edgemem.compression.layout import estimated_tokens
from edgemem.errors import InputError
from edgemem.memory import Memory
from edgemem.pipeline.condense import Condensed, condense

SAID = (
    "My sister Ingrid moved to Leeds.\nShe teaches chemistry there.",
    "I had soup for lunch. It was fine, though a little cold for the season.",
    "The weather was grey all day. I stayed at home and read.",
    "Ingrid plays the cello in an orchestra on Thursdays.",
)


@pytest.fixture
def memory():
    with quick(engine=FakeEngine()) as opened:
        for number, text in enumerate(SAID):
            opened.add(
                [{"role": "user", "content": text, "name": "Ada"}],
                user_id="ada",
                timestamp=f"2024-05-0{4 - number}T10:00:00+00:00",
                infer=False,
            )
        yield opened


def condensed(memory: Memory, question: str, **budget: object) -> Condensed:
    hits = memory.search(question, user_id="ada", top_k=16)
    return condense(memory, question, hits, **budget)  # type: ignore[arg-type]


def test_what_fits_is_whole_and_oldest_first(memory: Memory) -> None:
    text = condensed(memory, "What does Ingrid play?", rate=1.0).context.compressed_prompt
    lines = text.split("\n")
    assert [line[:20] for line in lines] == [f"On {day} May 2024, Ada: "[:20] for day in "1234"]
    assert lines[0] == f"On 1 May 2024, Ada: {SAID[3]}"
    assert lines[3] == f"On 4 May 2024, Ada: {SAID[0].replace(chr(10), ' ')}"


@pytest.mark.parametrize("budget", [24, 30, 55])
def test_what_the_question_asks_for_is_kept_within_the_budget(memory: Memory, budget: int) -> None:
    found = condensed(memory, "What does Ingrid play in the orchestra?", target_token=budget)
    text = found.context.compressed_prompt
    assert len(estimated_tokens(text)) == found.context.compressed_tokens <= budget
    assert "cello" in text and "soup" not in text


def test_each_span_is_of_the_memory_that_it_was_taken_from(memory: Memory) -> None:
    found = condensed(memory, "Where did Ingrid move to?", rate=0.5)
    assert found.context.spans
    for span in found.context.spans:
        line = f"On x May 2024, Ada: {' '.join(found.hits[span.source].memory.split())}"
        kept = line[span.start : span.end]
        assert kept.removeprefix("On x May 2024,").strip() in found.context.compressed_prompt


def test_nothing_found_is_an_empty_context(memory: Memory) -> None:
    found = condense(memory, "What?", [], target_token=10)
    assert found.context.compressed_prompt == "" and found.hits == ()


def test_a_budget_is_needed(memory: Memory) -> None:
    with pytest.raises(InputError, match="give one of the two"):
        condensed(memory, "What?")
