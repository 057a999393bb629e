"""Tokens of other models: by their file, or by an upper estimate."""

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgemem.compression.compress import estimated_tokens
from edgemem.errors import InputError, ModelError, ModelNotFound
from edgemem.runtime import models
from edgemem.runtime.embedder import file_tokenizer

SAID = [
    "I moved to Antwerp on 3 March 2024 because of the new job.",
    "[8 May 2023] Ana Lima: That's awesome! Congratulations on following your dreams, Mel.",
    "We paid $1,299.50 for 3 nights; breakfast wasn't included (sadly).",
    "The quick brown fox jumps over the lazy dog, and then it rests beside the river.",
    "Naïve café owners in Zürich say 'grüezi' and 日本語 is spoken too 🙂.",
]


def pieces(text):
    return [text[a:b] for a, b in estimated_tokens(text).tolist()]


def test_the_estimate_is_as_it_is_stated():
    assert pieces("a walking tour") == ["a", " walk", "ing", " tour"]
    assert pieces("in 2023.\n") == ["in", " 2", "0", "2", "3", ".", "\n"]
    assert pieces("é 🙂") == ["é", "é", " 🙂", " 🙂", " 🙂", " 🙂"]
    assert pieces("") == []


TOKEN = re.compile(r" ?[A-Za-z]{1,4}| ?[0-9]| ?[^\sA-Za-z0-9]|\s")
MIXED = st.text(st.sampled_from(" \n\t\x1c\x85\u2003\u3000\u3001aZ@[`{'.09é日🙂"), max_size=40)
ANY = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)


@settings(max_examples=500)
@given(text=st.one_of(MIXED, ANY, st.text(" ab", max_size=20)))
def test_the_estimate_is_what_a_pattern_finds_and_covers_a_text(text):
    found = [m.span() for m in TOKEN.finditer(text)]
    bytes_of = [1 if text[b - 1].isascii() else len(text[b - 1].encode()) for _, b in found]
    wanted = [span for span, n in zip(found, bytes_of, strict=True) for _ in range(n)]
    spans = estimated_tokens(text)
    assert spans.dtype == np.int64 and spans.shape == (len(wanted), 2)
    assert spans.tolist() == [list(span) for span in wanted]
    assert "".join(text[a:b] for a, b in dict.fromkeys(map(tuple, spans.tolist()))) == text


@pytest.mark.models
def test_real_tokenizers_take_no_more_than_the_estimate(engine):
    bert = file_tokenizer(models.find("minilm-l6-v2-tokenizer"))
    for text in SAID:
        most = len(estimated_tokens(text))
        assert len(engine.token_offsets(text)) <= most and len(bert(text)) <= most


def test_a_file_cuts_as_its_model_does():
    tokenize = file_tokenizer(models.find("minilm-l6-v2-tokenizer"))
    text = "Walking tours in Antwerp"
    assert [text[a:b] for a, b in tokenize(text).tolist()] == ["Walking", "tours", "in", "Antwerp"]
    assert tokenize("").shape == (0, 2)
    assert len(tokenize("tea " * 2000)) == 2000  # the file asks for a cut at 128


def test_a_file_that_is_none_is_refused(tmp_path):
    with pytest.raises(ModelNotFound, match=r"There is no tokenizer file .*Give a model's tokeniz"):
        file_tokenizer(tmp_path / "none.json")
    file = tmp_path / "tokenizer.json"
    file.write_text("{}")
    with pytest.raises(ModelError, match=r"tokenizer\.json is not a tokenizer"):
        file_tokenizer(file)


def test_half_of_a_surrogate_pair_is_refused():
    bert = file_tokenizer(models.find("minilm-l6-v2-tokenizer"))
    for tokenize in (estimated_tokens, bert):
        with pytest.raises(InputError, match="half of a surrogate pair at character 3"):
            tokenize("tea\ud800")
