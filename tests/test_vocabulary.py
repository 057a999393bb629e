"""The tokens of a text, word by word, are those that llama.cpp finds in all of it."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edgemem.errors import InputError
from edgemem.runtime import gguf, models, vocabulary
from edgemem.runtime.vocabulary import Vocabulary, vocabulary_of

NORMAL_TO_ADDED = struct.pack("<i", 4)


def words_alone(folder: Path, pattern: str, added: str = "") -> Path:
    """The bundled model without its tensors, with another pattern to cut by, and perhaps with
    "<gh_stars>" replaced by a token that a fine-tune has added."""
    data = gguf.read_only(models.find(models.DEFAULT_LLM))
    cursor = gguf._Cursor(4)
    values = dict(gguf._values(data, cursor))
    header = bytearray(data[: cursor.position])
    struct.pack_into("<Q", header, 8, 0)  # tensors
    if added:
        token = _texts(header).index(b"<gh_stars>")
        types = _after(header, "tokenizer.ggml.token_type") + 12
        header[types + 4 * token : types + 4 * token + 4] = NORMAL_TO_ADDED
        header = header.replace(b"<gh_stars>", added.encode())
    at, old = _after(header, "tokenizer.ggml.pre"), str(values["tokenizer.ggml.pre"].value)
    header[at : at + 8 + len(old)] = struct.pack("<Q", len(pattern)) + pattern.encode()
    path = folder / f"{pattern}.gguf"
    path.write_bytes(header + b"\0" * (-len(header) % 32))
    return path


def _after(header: bytearray, key: str) -> int:
    """Where the value of a key begins, behind its type."""
    return header.index(struct.pack("<Q", len(key)) + key.encode()) + 8 + len(key) + 4


def _texts(header: bytearray) -> list[bytes]:
    at = _after(header, "tokenizer.ggml.tokens") + 4
    (count,) = struct.unpack_from("<Q", header, at)
    at, out = at + 8, []
    for _ in range(count):
        (size,) = struct.unpack_from("<Q", header, at)
        out.append(bytes(header[at + 8 : at + 8 + size]))
        at += 8 + size
    return out


@pytest.fixture(scope="module", params=sorted(p.decode() for p in vocabulary._SPACE_BEGINS))
def words(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):
    with vocabulary_of(words_alone(tmp_path_factory.mktemp("words"), request.param)) as found:
        yield found


PIECES = st.sampled_from(
    "tea Oslo not CAN'T don’t 's 't've 5 km 2022 10:30:05.5 Ana: [x] {\"a\": www.x.y/z?q=1 `a Dr. "
    '?" !!! … 。 İstanbul naïve 日本語 \u2003 \x1c \x85 \xa0 🙂 <|im_end|> \U00040000 a\u0300 '
    "٣ Ⅷ © __ antidisestablishmentarianism-and-so-on-and-on".split(" ")
)
GAPS = st.sampled_from(
    [" ", " ", " ", " ", "  ", "   ", "\n", "\n\n", " \n", "\n ", "\t", ". ", "", "\r\n"]
)
TEXTS = st.one_of(
    st.lists(st.tuples(PIECES, GAPS), max_size=30).map(lambda of: "".join(a + b for a, b in of)),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=40),
    st.text(" \n\ta1.'", max_size=40),
)


@pytest.mark.models
@settings(suppress_health_check=list(HealthCheck))
@given(text=TEXTS)
def test_words_have_the_same_tokens_alone_and_in_a_text(words: Vocabulary, text: str) -> None:
    assert words._splits_at_spaces
    assert words.tokenize(text) == words._tokens(text)
    assert words.tokenize(text) == words._tokens(text)  # now that its words are known


@pytest.mark.models
def test_words_are_remembered_up_to_a_number_and_a_length(words: Vocabulary) -> None:
    words._words = {}
    text = "I had a cup of tea at " + "x" * 500
    assert words.tokenize(text) == words._tokens(text)
    assert set(words._words) == {"had", "a", "cup", "of", "tea", "at"}
    words._words = {str(n): [0] for n in range(vocabulary._MOST_WORDS)}
    assert words.tokenize(text) == words._tokens(text)
    assert len(words._words) == 6


@pytest.mark.models
def test_the_character_that_is_half_a_pair_is_that_of_the_text(words: Vocabulary) -> None:
    with pytest.raises(InputError, match="surrogate pair at character 10"):
        words.tokenize("tea tea a \ud800")


@pytest.mark.models
@pytest.mark.parametrize(
    ("pattern", "added", "apart"),
    [("smollm", "<gh-stars>", True), ("smollm", "<gh stars>", False), ("tekken", "", False)],
)
def test_a_text_is_asked_about_whole_where_a_token_may_go_past_a_space(
    tmp_path: Path, pattern: str, added: str, apart: bool
) -> None:
    with vocabulary_of(words_alone(tmp_path, pattern, added)) as words:
        assert words._splits_at_spaces == apart
        text = "two <gh stars> and <gh-stars> more"
        assert words.tokenize(text) == words._tokens(text)
        assert (len(words._tokens(added)) == 1) == bool(added)
