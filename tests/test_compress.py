"""compress_prompt and `edgemem compress`: what is asked for is what comes."""

import json
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest

from edgemem import compress_prompt
from edgemem.compression.compress import (
    Scores,
    Span,
    compress,
    estimated_tokens,
    lay_out,
    relevance,
    self_information,
    sentence_texts,
)
from edgemem.errors import InputError
from edgemem.runtime.engine import SCORED_OVERLAP, Engine

CHAT = """[3 March 2024] Ana: I moved from Ghent to Antwerp because of the new job. It rained.
[9 April 2024] Bo: I drink green tea now. Coffee keeps me awake.
[2 May 2024] Ana: My nephew Jonas plays the trumpet in a school band. The hall was full.
[14 June 2024] Bo: I finished the blue scarf, it took three weeks."""


def flat(text):
    """Scores that prefer nothing."""
    offsets = estimated_tokens(text)
    return Scores(offsets, np.ones(len(offsets), np.float32), "flat")


def compressed(context=CHAT, **more):
    """Without a model."""
    given = {"tokenizer": estimated_tokens, "scorer": flat, **more}
    if "target_token" not in given:
        given.setdefault("rate", 0.5)
    return compress([context] if isinstance(context, str) else context, **given)


@pytest.fixture
def lent(random_llama, monkeypatch):
    """What stands in for the default engine, and stays open when who loaded it closes it."""
    held = nullcontext(random_llama)
    monkeypatch.setattr(Engine, "load", classmethod(lambda *_a, **_k: held))
    return random_llama


@pytest.mark.models
@pytest.mark.parametrize(
    ("question", "line"),
    [
        ("Which instrument does Jonas play?", "plays the trumpet"),
        ("What does Bo drink these days?", "green tea"),
        ("Why did Ana move?", "because of the new job"),
    ],
)
def test_what_answers_the_question_is_kept(engine, embedder, question, line):
    found = compress_prompt(CHAT, question, rate=0.33, engine=engine, embedder=embedder)
    assert line in found.compressed_prompt
    assert found.compressed_tokens == len(engine.tokenize(found.compressed_prompt))
    assert found.compressed_tokens <= 0.33 * found.origin_tokens
    assert found.method == "none" and found.seconds > 0


def test_without_models_given_the_default_ones_are_loaded(lent):
    given = compress_prompt(CHAT, rate=0.5, engine=lent)
    alone = compress_prompt(CHAT, rate=0.5)
    assert alone.compressed_prompt == given.compressed_prompt != ""
    assert alone.method == "fisher"


@pytest.mark.models
def test_surprising_words_are_worth_more(engine):
    scores = self_information(engine, "one two three four five six seven zebra")
    assert scores.values.shape == (len(scores.offsets),)
    assert scores.values[-1] == scores.values[1:].max() > 3 * scores.values[-2]


def test_a_text_longer_than_the_window_is_scored_in_windows(random_llama):
    text = "".join(map(chr, np.random.default_rng(1).integers(65, 91, 600)))  # a token each
    with Engine.load(random_llama.path, n_ctx=256, n_threads=1) as small:
        found, step = small.text_log_probs(text), small.n_ctx - 1 - SCORED_OVERLAP
    assert len(found) == len(text) > 2 * small.n_ctx
    for first in range(0, len(text) - SCORED_OVERLAP, step):
        seen = random_llama.text_log_probs(text[first : first + small.n_ctx - 1])
        new = slice(SCORED_OVERLAP if first else 0, len(seen))
        np.testing.assert_allclose(found[first:][new], seen[new], atol=1e-3)


def test_what_fits_comes_back_as_it_is():
    found = compressed(rate=1)
    assert found.compressed_prompt == CHAT and found.spans == (Span(0, 0, len(CHAT)),)
    assert found.ratio == found.rate == 1.0 and found.method == "none"
    assert compressed(target_token=10_000).compressed_prompt == CHAT
    assert compressed("").compressed_prompt == ""


def test_the_result_says_what_it_took():
    found = compressed(rate=0.5)
    assert found.origin_tokens == len(estimated_tokens(CHAT))
    assert found.compressed_tokens == len(estimated_tokens(found.compressed_prompt))
    assert found.ratio == found.origin_tokens / found.compressed_tokens >= 2
    assert found.rate == 1 / found.ratio
    row = found.to_dict()
    assert list(row) == [
        "compressed_prompt", "origin_tokens", "compressed_tokens", "spans", "method", "seconds",
        "ratio", "rate",
    ]  # fmt: skip
    assert json.loads(json.dumps(row))["spans"] == [[s.source, s.start, s.end] for s in found.spans]


def test_spans_say_which_characters_of_which_text_were_kept():
    lines = CHAT.split("\n")
    found = compressed(lines, keep=["Jonas plays", "blue scarf"], rate=0.4)
    assert {"Jonas plays", "blue scarf"} <= {
        words for s in found.spans for words in ("Jonas plays", "blue scarf")
        if words in lines[s.source][s.start : s.end]
    }  # fmt: skip
    joined = "".join(lines[s.source][s.start : s.end] for s in found.spans)
    assert "".join(joined.split()) == "".join(found.compressed_prompt.split())
    assert list(found.spans) == sorted(found.spans, key=lambda s: (s.source, s.start))


def test_whole_words_are_marked_wherever_they_stand():
    text = "Al sat. Ann met Al. Alma sang a song of old. Bo and Al left at nine."
    found = compressed(text, keep=["Al"], target_token=10)
    assert found.compressed_prompt.split().count("Al") + found.compressed_prompt.count("Al.") == 3
    assert "Alma" not in found.compressed_prompt
    assert "song" in compressed(text, keep=[Span(0, 34, 38)], target_token=5).compressed_prompt


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"rate": None}, "target_token is None and rate is None; give one of the two"),
        ({"rate": 0.5, "target_token": 5}, "target_token is 5 and rate is 0.5; give one of the"),
        ({"rate": 0}, "rate is 0; it must be above 0 and at most 1, such as 0.5"),
        ({"rate": 1.5}, "rate is 1.5; it must be above 0"),
        ({"rate": float("nan")}, "rate is nan; it must be"),
        ({"target_token": 0}, "target_token is 0; it must be at least 1"),
        ({"keep": ["Ankara"]}, "keep has 'Ankara', which the context does not say; give its words"),
        ({"keep": [" "]}, "keep has ' ', which the context does not say"),
        ({"keep": [Span(1, 0, 2)]}, "which is no part of the 1 texts given"),
        ({"keep": [Span(0, 5, 5)]}, "give 0 <= start < end within one of them"),
        ({"keep": [CHAT]}, "what is to be kept takes 118 tokens, and the budget is 59; give a lar"),
    ],
)
def test_a_bad_request_is_refused_with_the_way_out(more, message):
    with pytest.raises(InputError) as caught:
        compressed(**more)
    assert message in str(caught.value)


# -- relevance -----------------------------------------------------------------------------------


def test_sentences_and_speakers_are_told_apart():
    bodies, speakers = sentence_texts(lay_out(CHAT))
    assert speakers == ["Ana:", "Bo:", "Ana:", "Bo:"]
    assert bodies[1] == "It rained." and bodies[2] == "I drink green tea now." and len(bodies) == 7
    assert sentence_texts(lay_out("")) == ([], [])
    assert sentence_texts(lay_out("Ana:")) == ([""], ["Ana:"])


def embedder_of(*cosines):
    """An embedder that finds the sentences of a text as near to the question as is said."""
    vectors = np.array([[1.0], *([cosine] for cosine in cosines)], np.float32)
    return SimpleNamespace(embed=lambda texts: vectors if cosines else np.ones((len(texts), 1)))


def test_words_alone_find_the_sentence():
    found = relevance(lay_out(CHAT), "Which instrument does Jonas play?", embedder_of())
    assert found.argmax() == 4 and found[5] > found[0]  # its neighbour in the turn is next


def test_the_nearest_sentence_of_a_turn_counts_for_the_others():
    cosines = np.array([0.1, 0.9, 0.2, 0.3, 0.5, 0.4, 0.6], np.float32)
    layout = lay_out(CHAT)
    found, before = (relevance(layout, "??", embedder_of(*c)) for c in (cosines, cosines * 0))
    of_turns = np.array([0.9, 0.9, 0.3, 0.3, 0.5, 0.5, 0.6])
    np.testing.assert_allclose(found - before, 1.5 * cosines + 0.5 * of_turns, rtol=1e-5)


def test_of_two_sentences_as_near_the_one_that_tells_more_comes_first():
    layout = lay_out("Ana: Tea, yes! Is it tea? I drink green tea from Kyoto now.")
    yes, asks, tells = relevance(layout, "What tea does Ana drink?", embedder_of()).tolist()
    assert tells > yes > asks


# -- the command ---------------------------------------------------------------------------------


@pytest.mark.models
def test_the_command_shortens_a_file(home, lent, run, tmp_path):
    file = tmp_path / "chat.txt"
    file.write_text(CHAT)
    question = "Which instrument does Jonas play?"
    result = run("compress", str(file), "--rate", "0.33", "--question", question)
    assert "plays the trumpet" in result.stdout
    assert "tokens of " in result.stderr and result.stderr.count("\n") == 1
    same = run("compress", "--rate", "0.33", "--question", question, input=CHAT)
    assert same.stdout == result.stdout
    row = json.loads(run("compress", str(file), "--target-token", "40", "--json").stdout)
    assert row["compressed_tokens"] <= 40
    assert row["origin_tokens"] == len(lent.tokenize(CHAT))


@pytest.mark.models
def test_the_command_needs_no_language_model_for_a_question(home, run):
    question = "Which instrument does Jonas play?"
    result = run("compress", "--question", question, "--tokenizer", "estimate", input=CHAT)
    assert "plays the trumpet" in result.stdout


@pytest.mark.models
def test_the_command_shows_what_was_dropped(home, lent, run):
    result = run("compress", "--show", "--keep", "green tea", "--tokenizer", "estimate", input=CHAT)
    assert "".join(result.stdout.split()) == "".join(
        CHAT.split()
    )  # all of it, no colours in a pipe
    assert f"of {len(estimated_tokens(CHAT))} (" in result.stderr


def test_what_is_dropped_is_struck_through(monkeypatch, capsys):
    from edgemem.cli.tools import print_struck

    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    print_struck("tea and milk", [(0, 3)])
    assert capsys.readouterr().out == "tea\x1b[2;9m and milk\x1b[0m\n"


@pytest.mark.parametrize(
    ("args", "message", "code"),
    [
        (("--rate", "0.5", "--target-token", "5"), "Give --rate or --target-token, not both.", 2),
        (("--show", "--json"), "Give --show or --json, not both.", 2),
        (("--tokenizer", "none.json"), "There is no tokenizer file none.json.", 1),
    ],
)
def test_the_command_refuses_before_it_loads_a_model(home, run, args, message, code):
    assert message in run("compress", *args, input="tea", code=code).stderr
