"""Training examples by construction: their truth, their variety, and that validation is unseen."""

import json
import random
import re
from collections import Counter
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corpus.conversation import converse
from corpus.generator import examples, operations
from corpus.phrases import Split, Voice, fill, phrases, slots
from edgemem.language import content_words, moments
from edgemem.stages import extraction
from edgemem.stages.generation import NOT_KNOWN
from edgemem.training.examples import STAGES

SEEDS = st.integers(0, 10_000)
SPLITS = get_args(Split)
SPLIT = st.sampled_from(SPLITS)
DATE = re.compile(
    r"\b(?:\d{1,2} )?(?:January|February|March|April|May|June|July|August|September|October|"
    r"November|December) \d{4}\b"
)


@pytest.fixture(scope="module")
def made():
    return list(examples(30, seed=7))


def of(made, stage):
    return [e for e in made if e.stage == stage]


def shown(example):
    """A prompt without its instruction."""
    return example.prompt.split("\n\n", 1)[1]


def test_the_same_seed_gives_the_same_examples_and_another_others():
    first = list(examples(2, seed=3))
    assert first == list(examples(2, seed=3))
    assert {e.prompt for e in first}.isdisjoint(
        e.prompt for e in examples(2, seed=4, stages=["update"])
    )


def test_only_the_wanted_stages_are_made_and_are_the_same_as_among_all():
    every = list(examples(2, seed=3))
    for stage in STAGES:
        assert list(examples(2, seed=3, stages=[stage])) == of(every, stage)


# -- validation is unseen --------------------------------------------------------------------


def said(split):
    """Every phrase of a split that has words of its own."""
    book = phrases(split)
    parts = {p for t in book.topics for lines in t.lines.values() for line in lines for p in line}
    every = {a for p in parts for a in p.split(" | ")} | {
        p for ps in book.talk.values() for p in ps
    }
    return {p for p in every if content_words(re.sub(r"\{[^}]*\}", " ", p))}


def test_validation_says_nothing_that_training_says():
    train, valid = said("train"), said("valid")
    assert len(train) > 1500 and len(valid) > 1000
    answers = {a for t in phrases("train").topics for code in "qbl" for _, a in t.of(code)}
    assert train & valid <= answers  # "with a {pet}" may answer any wording


def test_validation_has_other_names_and_values():
    train, valid = phrases("train").lists, phrases("valid").lists
    assert train.keys() == valid.keys()
    for name, values in train.items():
        assert not set(values) & set(valid[name]) or set(values) == set(valid[name]), name
    assert not set(train["she"]) & set(valid["she"]) and not set(train["he"]) & set(valid["he"])


@pytest.mark.parametrize("split", SPLITS)
def test_every_topic_can_be_told_noted_and_asked_about(split):
    book = phrases(split)
    parts = {"s": 1, "f": 1, "q": 2, "w": 1, "y": 1, "b": 2, "l": 2, "c": 1, "i": 2,
             "+": 4, "-": 2, "!": 2, "r": 1, "p": 1}  # fmt: skip
    names = set(book.lists) | {"when", "soon"}
    assert len(book.topics) >= 60
    for topic in book.topics:
        assert all(topic.of(code) for code in "sfq"), topic.name
        assert topic.key in book.lists, topic.name
        for code, lines in topic.lines.items():
            for line in lines:
                assert len(line) == parts[code], (topic.name, line)
                assert {s.rstrip("2") for p in line for s in slots(p)} <= names, (topic.name, line)
        assert any("{S" in say for (say,) in topic.of("s")), topic.name  # may be told of others
        for (say,) in topic.of("s"):
            for (fact,) in topic.of("f"):  # a fact has nothing that was not said, nor another date
                assert slots(fact) <= slots(say), (topic.name, say, fact)
                dated = {"when", "soon"}
                assert slots(fact) & dated == slots(say) & dated, (topic.name, say, fact)


@pytest.mark.parametrize("split", SPLITS)
def test_no_phrase_has_a_relative_date_of_its_own(split):
    """The prompt would have it written out, and the fact would not."""
    book = phrases(split)
    filled = {f"{name}{n}": values[0] for name, values in book.lists.items() for n in ("", "2")}
    filled |= {"when": "", "soon": "", "other": "Kim"}
    voice = Voice("Kim", "Kim's", "her", "her", "she", 2)
    for phrase in said(split):
        for part in phrase.split(" => "):
            assert moments(fill(part, filled, voice), "2024-05-08T10:00:00+00:00") == [], phrase


def test_an_assistant_is_not_praised_for_what_it_has():
    book = phrases("train")
    of_the_other = {p for name in ("echo", "recall") for p in book.talk[name] if not slots(p)}
    heard = {True: 0, False: 0}
    for seed in range(60):
        talk = converse(random.Random(seed), book)
        to_assistant = talk.people[1].assistant
        text = " ".join(t.text for turns in talk.sessions for t in turns).lower()
        heard[to_assistant] += sum(p.lower() in text for p in of_the_other)
    assert heard[True] == 0 < heard[False]


# -- the truth -------------------------------------------------------------------------------


@settings(max_examples=25)
@given(SEEDS, SPLIT)
def test_facts_parse_name_a_speaker_and_have_the_dates_of_their_turns(seed, split):
    for example in examples(1, seed=seed, split=split, stages=["extraction"]):
        facts = extraction.parse(example.target)
        assert example.target == extraction.expert_target(facts)
        assert (example.kind == "empty") == (not facts)
        speakers = set(re.findall(r"^(\w+): ", shown(example), re.M)) - {"Assistant"}
        for fact in facts:
            assert any(fact.startswith((f"{name} ", f"{name}'s ")) for name in speakers), fact
            assert not re.search(r"[{}]|  |[ ,]\.|\b(I|my|me)\b", fact), fact
            for date in DATE.findall(fact):
                assert date in example.prompt, (fact, example.prompt)


@settings(max_examples=25)
@given(SEEDS, SPLIT)
def test_an_operation_means_a_memory_and_add_none(seed, split):
    found = list(operations(1, seed=seed, split=split))
    for s in found:
        assert 1 <= len(s.memories) <= 4 and len(set(s.memories)) == len(s.memories)
        assert s.number == len(s.memories) if s.event == "ADD" else s.number < len(s.memories)
        assert s.event != "ADD" or s.fact not in s.memories
    made = list(examples(1, seed=seed, split=split, stages=["update"]))
    for s, example in zip(found, made, strict=True):
        assert json.loads(example.target) == {"event": s.event} and example.kind == s.event
        old, new = re.findall(r"^(?:Old memory|New fact): (.+)$", example.prompt, re.M)
        assert new == s.fact and old in s.memories
        assert s.event == "ADD" or old == s.memories[s.number]


@settings(max_examples=25)
@given(SEEDS, SPLIT)
def test_answers_are_in_the_memories_and_short(seed, split):
    for example in examples(1, seed=seed, split=split, stages=["generation"]):
        answer = example.target.removeprefix(" ")
        assert 0 < len(answer.split()) <= 40 and "{" not in example.prompt + answer
        assert (answer == NOT_KNOWN) == (example.kind == "unknown")
        memories = shown(example).rsplit("\n\n", 1)[0].lower().replace("'", "")
        assert len(memories.splitlines()) <= 9
        if example.kind in ("single", "temporal", "list", "now", "before", "who", "common"):
            for word in content_words(answer):
                assert word.removesuffix("'s") in memories, (example.kind, example.prompt, answer)


# -- shares and variety ----------------------------------------------------------------------


def test_the_kinds_are_balanced(made):
    def shares(stage):
        rows = of(made, stage)
        return {kind: n / len(rows) for kind, n in Counter(e.kind for e in rows).items()}

    assert 0.45 < shares("extraction")["empty"] < 0.65  # as in chats: 877 of 1,550
    update = shares("update")
    assert set(update) == {"ADD", "UPDATE", "DELETE", "NONE"}
    assert all(0.18 < share < 0.32 for share in update.values()), update
    generation = shares("generation")
    assert 0.05 < generation["unknown"] < 0.15
    assert generation["temporal"] > 0.08 and generation["list"] > 0.05
    assert generation["now"] + generation["before"] > 0.04


def test_examples_are_varied(made):
    prompts = [shown(e) for e in of(made, "extraction")][:2000]
    assert len(set(prompts)) >= 0.95 * len(prompts)
    read = {p.splitlines()[-2].split(": ", 1)[-1] for p in prompts}
    assert len(read) >= 0.85 * len(prompts)
    for stage in ("update", "generation"):
        rows = of(made, stage)
        assert len({e.prompt for e in rows}) >= 0.99 * len(rows)


def test_what_an_assistant_says_is_shown_but_not_asked_about(made):
    speakers = [re.findall(r"^(\w+): ", shown(e), re.M) for e in of(made, "extraction")]
    assert any("Assistant" in before for *before, _ in speakers)
    assert all(last != "Assistant" for *_, last in speakers)
