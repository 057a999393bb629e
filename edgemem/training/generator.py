"""Training examples by construction: invented conversations, and what each stage should answer.

The truth is known because it is what the conversation was made from. Nothing comes from a data set
or a model, so the examples have no licence but the project's own. Seeded: the same arguments give
the same examples. Knows conversations and the stages' prompts; knows no model.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator

from edgemem.stages.reading import readings
from edgemem.training.changes import Situation, situations, update_examples
from edgemem.training.conversation import Conversation, converse
from edgemem.training.examples import STAGES, Example, Stage, extraction_example
from edgemem.training.phrases import Phrases, Split, phrases
from edgemem.training.questions import generation_examples

__all__ = ["examples", "operations"]


def examples(
    conversations: int,
    *,
    seed: int = 0,
    split: Split = "train",
    stages: Collection[Stage] = STAGES,
) -> Iterator[Example]:
    """The examples of so many conversations, of the wanted stages.

    split: "valid" says nothing with a phrase that "train" uses, and has other names and values.
    """
    book = phrases(split)
    for number in range(conversations):
        group = f"{split}-{seed}-{number}"
        conversation = converse(random.Random(f"{group} talk"), book)
        if "extraction" in stages:
            yield from _extraction(conversation, group)
        if "update" in stages:
            yield from update_examples(_changes(group, book, conversation), group)
        if "generation" in stages:
            rng = random.Random(f"{group} generation")
            yield from generation_examples(rng, book, conversation, group)


def operations(conversations: int, *, seed: int = 0, split: Split = "valid") -> Iterator[Situation]:
    """What the update examples of so many conversations are of, all memories shown."""
    book = phrases(split)
    for number in range(conversations):
        group = f"{split}-{seed}-{number}"
        yield from _changes(group, book, converse(random.Random(f"{group} talk"), book))


def _changes(group: str, book: Phrases, conversation: Conversation) -> Iterator[Situation]:
    return situations(random.Random(f"{group} update"), book, conversation)


def _extraction(conversation: Conversation, group: str) -> Iterator[Example]:
    """What `Memory.add` would ask about each turn, with the facts in it."""
    for turns in conversation.sessions:
        said = [turn.message for turn in turns]
        for reading in readings(said):
            turn = turns[reading.source]
            if not turn.person.assistant and reading.message is said[reading.source]:
                yield extraction_example(reading, turn.facts, group)
