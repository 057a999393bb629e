"""An answer that must quote: always a run of words of a text, and never stop words alone."""

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgemem.errors import InputError
from edgemem.language import content_words
from edgemem.runtime.generation import Spans

PIECES = [" the", " tea", " of", " Bis", "cuit", "'s", "-", " ", "2", "0", ".", ",", " é", "è",
          " ("]  # fmt: skip
END = len(PIECES)
TEXTS = [
    "My sister Ana moved to Oslo in 2021.",
    "We pay 1,250.50 crowns for a flat at St. Hanshaugen; the lift is out of order.",
    "She won't drink coffee after 10:30, it's the doctor's advice!",
    "私は東京に住んでいます。 Zoë 🙂 naïve",
]


def piece(token):
    return PIECES[token].encode()


def written(tokens):
    return "".join(PIECES[token] for token in tokens)


def spans(*texts):
    """Of texts that are given as their pieces."""
    return Spans([[PIECES.index(p) for p in text] for text in texts], piece, [END])


def after(of, *answer):
    return {"END" if t == END else PIECES[t] for t in of.after([PIECES.index(p) for p in answer])}


def is_cut(text, at):
    """Whether a place is inside a word or number of a text."""
    left, right = text[at - 1 : at], text[at : at + 2]
    word = r"[\w'\-]"
    return bool(left.strip()) and bool(re.match(rf"{word}|[.,:/][0-9]", right))


@given(st.lists(st.lists(st.integers(0, END - 1), min_size=1), min_size=1), st.data())
def test_every_answer_is_a_run_of_words_of_a_text(texts, data):
    of = Spans(texts, piece, [END])
    answer = []
    while (token := data.draw(st.sampled_from(sorted(of.after(answer))))) != END:
        answer.append(token)
        assert len(answer) <= max(map(len, texts))  # so it ends
    said = written(answer)
    places = [
        (whole, start, start + len(said))
        for whole in map(written, texts)
        for start in range(len(whole) - len(said) + 1)
        if whole.startswith(said, start)
    ]
    assert any(start == 0 or whole[start] == " " for whole, start, _ in places)
    assert content_words(said) or any(end == len(whole) for whole, _, end in places)
    assert not all(is_cut(whole, end) for whole, _, end in places)


@given(st.lists(st.lists(st.integers(0, END - 1), min_size=1), min_size=1), st.data())
def test_the_rest_of_a_text_from_any_word_on_is_an_answer(texts, data):
    of = Spans(texts, piece, [END])
    tokens = data.draw(st.sampled_from(texts))
    starts = [i for i, t in enumerate(tokens) if i == 0 or PIECES[t].startswith(" ")]
    start = data.draw(st.sampled_from(starts))
    for i in range(start, len(tokens)):
        assert tokens[i] in of.after(tokens[start:i])
    rest = tokens[start:]
    assert END in of.after(rest) or not content_words(written(rest))


def test_an_answer_does_not_end_before_a_word_that_says_something():
    of = spans([" the", " tea", " of", " the", " Bis", "cuit"])
    assert after(of, " the") == {" tea", " Bis"}
    assert after(of, " the", " tea") == {" of", "END"}
    assert after(of, " of", " the") == {" Bis"}


def test_stop_words_are_an_answer_if_nothing_else_can_follow():
    of = spans([" of", " the"])
    assert after(of, " of", " the") == {"END"}
    assert after(of, " the") == {"END"}


def test_a_word_or_number_is_never_cut():
    of = spans([" Bis", "cuit", "'s", " tea", ",", " ", "2", ".", "2", ".", " tea", "-", "2"])
    assert after(of, " Bis") == {"cuit"}
    assert after(of, " Bis", "cuit") == {"'s"}
    assert after(of, " ", "2") == {"."}
    assert after(of, " ", "2", ".", "2") == {".", "END"}
    assert after(of, " tea") == {",", "-", "END"}  # the first tea ends, the second goes on
    assert after(of, " tea", "-") == {"2"}


def test_a_number_may_begin_an_answer_though_its_space_is_a_token():
    assert " " in after(spans([" tea", " ", "2", "0"]))


def test_a_text_without_spaces_may_be_quoted_from_its_beginning():
    assert after(spans(["cuit", "-", "2"])) == {"cuit"}


def test_the_test_of_candidates_sees_the_answer_grow():
    answer = []
    allowed = spans([" the", " tea"]).allowed(answer)
    the, tea = PIECES.index(" the"), PIECES.index(" tea")
    assert allowed(np.array([the, tea, END])).tolist() == [True, True, False]
    answer.append(the)
    assert allowed(np.array([the, tea, END])).tolist() == [False, True, False]


@pytest.fixture
def engine(random_llama):
    """One that wants nothing in particular: what may be quoted is not its choice."""
    return random_llama


def folded(text):
    return " ".join(text.split())


@pytest.mark.parametrize(
    "prompt",
    [
        "Where does Ana live?\nShort answer:",
        "Tell me a story about dragons.\n",
        "How much is the rent?\nAnswer: The rent is",
        "2 + 2 =",
        [{"role": "user", "content": "When may she drink coffee?"}],
    ],
)
@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_a_model_quotes_whatever_it_is_asked(engine, prompt, temperature):
    answer = engine.generate(
        prompt, within=TEXTS, stop=("\n",), max_tokens=120, temperature=temperature, seed=7
    )
    said = folded(answer.text)
    assert any(said in folded(text) for text in TEXTS)
    assert answer.finish_reason == "length" or content_words(said)


@pytest.mark.parametrize("text", [*TEXTS, "東京", "7", "the", "...", " two \n lines\t here "])
def test_any_text_may_be_quoted_by_a_model(engine, text):
    answer = engine.generate("Say it again:", within=["", text], stop=("\n",), max_tokens=120)
    assert folded(answer.text) and folded(answer.text) in folded(text)


@pytest.mark.parametrize("stop", [(), ("no single token ends it",)])
def test_without_a_token_to_end_with_quoting_is_refused(engine, stop):
    with pytest.raises(InputError, match="single token"):
        engine.generate("Who?", within=TEXTS, stop=stop)


def test_a_tokenizer_that_puts_a_space_before_any_text_can_end_an_answer(engine, monkeypatch):
    """SentencePiece models do: "\\n" is a space and a newline, and quoting was refused."""
    of, (space,) = engine._vocabulary, engine.tokenize(" ")
    tokenize = of.tokenize
    monkeypatch.setattr(of, "tokenize", lambda text, **how: [space, *tokenize(text, **how)])
    answer = engine.generate("Where does Ana live?", within=TEXTS, stop=("\n",), max_tokens=120)
    assert answer.finish_reason == "stop"
    assert any(folded(answer.text) in folded(text) for text in TEXTS)


@pytest.mark.parametrize("texts", [[], [""], [" \n"]])
def test_quoting_from_nothing_is_refused(engine, texts):
    with pytest.raises(InputError, match="at least one text"):
        engine.generate("Who?", within=texts, stop=("\n",))


def test_a_schema_and_texts_to_quote_are_not_both_possible(engine):
    with pytest.raises(InputError, match="not both"):
        engine.generate("Who?", within=TEXTS, schema={"type": "string"}, stop=("\n",))
