"""No fact is taken from a text that is not about the user's life; its turn is stored as ever."""

import numpy as np
import pytest
from fake_engine import FakeEngine
from memorykit import BagOfWords, quick, texts

from bench import fit_material
from edgemem.stages.material import features, is_material

TALE = "Translate into German: I am a baker and I have lost my dog."


@pytest.mark.parametrize(
    "text",
    [
        TALE,
        "Poem: I live inside a lighthouse / my wife is made of salt / my children are two gulls",
        "Chapter 14. I arrived in Lübeck with a false name and took a room with a widow.",
        'Shorten this: "Mira had worked at the customs house before she was dismissed."',
        "Roses are red, violets are blue, I'm a vampire from Whitby and I've come to bite you.",
    ],
)
def test_a_text_is_no_life(embedder, text):
    assert is_material(embedder, text)


@pytest.mark.parametrize(
    "text",
    [
        "My sister writes that she's moving to Bath.",
        "I finished chapter 3 today, 4,000 words.",
        "Translate 'good morning' into German for my trip to Bonn on Friday.",
        "In my seminar I met Hugh.",
        "Allergies: penicillin, hazelnuts, cats.",
        "Just so you have it: my passport runs out in October.",
    ],
)
def test_life_that_looks_alike_is_no_text(embedder, text):
    assert not is_material(embedder, text)


def test_from_a_text_no_fact_is_taken_and_its_turn_is_found(embedder):
    engine = FakeEngine(
        facts={"I am a baker and I have lost my dog.": "{} is a baker", TALE: "{} is a baker"}
    )
    with quick(engine=engine, embedder=embedder) as memory:
        changes = memory.add(TALE, user_id="ana")
        assert [change.kind for change in changes] == ["turn"] and changes.pending == 0
        assert engine.prompts == []
        assert texts(memory.search("lost my dog", user_id="ana")) == [TALE]


def test_another_embedder_knows_no_texts():
    assert not is_material(BagOfWords(), TALE)


def test_what_is_learned_is_not_held_out():
    learned, held = (fit_material.labelled(f"{name}.txt") for name in ("messages", "held-out"))
    assert not {m.text for m in learned} & {m.text for m in held}
    assert {m.kind for m in learned} == {m.kind for m in held}
    assert all(m.text and m.kind.startswith(("material: ", "life: ")) for m in [*learned, *held])


def test_the_fit_of_texts_tells_two_clouds_apart_and_loses_few_facts():
    draw = np.random.default_rng(0)
    kinds = ["material: tale"] * 40 + ["life: diary"] * 40 + ["fact"] * 400
    said = [fit_material.Said(str(i), kind, str(i)) for i, kind in enumerate(kinds)]
    is_text = np.array([kind.startswith("material") for kind in kinds])
    x = np.concatenate([draw.normal(4.0 * is_text[:, None], 1, (480, 3)), np.ones((480, 1))], 1)
    summary, rows, weights = fit_material.fitted(said, x, 70, 10)
    assert summary["facts_lost"][0] <= 2 and summary["material_found"][0] >= 36
    assert [row["kind"] for row in rows] == ["material: tale", "life: diary", "fact"]
    assert (weights[:3] > 0).all()


def test_the_form_of_a_message_counts_whatever_its_vector():
    vector = np.zeros(4, np.float32)
    plain, quoting = (
        features(t, vector) for t in ("He lives in Rome.", '"I live in Rome," he said.')
    )
    assert len(plain) == 4 + 8 and plain[-1] == 1 and not np.array_equal(plain, quoting)
