"""Other languages than English: told by a query, found by grams or by an embedder of one's own."""

import warnings
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from memorykit import BagOfWords, WordTokens, quick, texts
from onnxkit import write_embedder

from bench import languages
from corpus.readers import read_written
from edgemem import Memory
from edgemem.config import load_settings
from edgemem.errors import DimensionMismatch
from edgemem.language import grams, is_other_language, is_other_script, name_forms
from edgemem.results import Query, Scope
from edgemem.retrieval.lexical import MAX_GRAMS, Matches, Postings, gram_counts, query_grams
from edgemem.retrieval.search import RELEVANT, Feature
from edgemem.runtime.models import DEFAULT_EMBEDDER
from edgemem.store.changes import tokenize

GERMAN = [
    "Zur Hochzeit gab es eine dreistöckige Torte.",
    "Der Zug nach Bremen war wieder zu spät.",
    "Am Abend haben wir Karten gespielt.",
]
CHINESE = ["我昨天把钥匙忘在出租车上了。", "今天下雨，我没去跑步。", "妈妈做的红烧肉最好吃。"]
ENGLISH = ["We had a cake at the wedding.", "The train to Bremen was late.", "I play cards."]


@pytest.fixture
def english_embedder():
    """A Memory whose embedder says that it is the bundled one."""
    with quick(embedder=BagOfWords(model_id=f"{DEFAULT_EMBEDDER}@0")) as memory:
        memory.add([*GERMAN, *CHINESE, *ENGLISH], user_id="u", infer=False)
        yield memory


# What a query is in


@pytest.mark.parametrize(
    ("query", "other"),
    [
        ("Wo wohnt meine Schwester?", True),
        ("Was hat Ana gekauft?", True),
        ("¿Dónde dejé las llaves?", True),
        ("Où habite ma sœur ?", True),
        ("Quando comincia il corso?", True),
        ("Waar woont mijn zus?", True),
        ("Gdzie mieszka Ola?", True),
        ("我把钥匙忘在哪里了？", True),
        ("花子はどこに住んでいますか", True),
        ("Где живёт Анна?", True),
        ("أين تسكن ليلى؟", True),
        # foreign words in it, or no sentence
        ("Where did I leave the keys?", False),
        ("What does my sister Zoë think of Die Hard?", False),
        ("Was I in Las Vegas?", False),
        ("Where did Ana say 'wo ist Bea'?", False),
        ("cello lesson price", False),
        ("hat made", False),
        ("", False),
        ("?!", False),
        ("2024", False),
    ],
)
def test_a_query_in_another_language_is_told(query, other):
    assert is_other_language(query) == other


def test_a_script_is_that_of_most_letters():
    assert is_other_script("小雨 drives 我的车子啊你好吗")
    assert not is_other_script("What does 你好 mean?")
    assert not is_other_script("Wofür büßt Zoë?") and not is_other_script("123 ?!")


@given(st.text())
def test_no_text_breaks_what_is_asked_of_it(text):
    assert is_other_language(text) >= is_other_script(text)
    assert all(grams(form) for form in name_forms(text))


# How words are compared


def test_forms_and_compounds_share_grams_and_so_do_han_clauses():
    assert grams("torte") == ["#torte#", "#tor", "tort", "orte", "rte#"]
    assert set(grams("torten")) & set(grams("hochzeitstorte")) == {"tort", "orte"}
    assert grams("o") == ["#o#"] and grams("ab") == ["#ab#"]
    assert grams("钥匙") == ["钥", "匙", "钥匙"]


def test_a_pasted_page_asks_for_its_first_grams_only():
    page = " ".join(f"wort{3**i}" for i in range(20, 500))
    assert len(query_grams(page)) == MAX_GRAMS and len(query_grams("字" * 5000)) == 2


def test_a_name_is_seen_in_its_genitive_and_in_a_clause():
    assert "till" in name_forms("Was treibt Tills Bruder?")
    assert "小雨" in name_forms("现在小雨开谁的车？")


SPOKEN = "tee täglich teeküche 東京 東京都 a".split()
text = st.lists(st.sampled_from(SPOKEN), max_size=6)
change = st.tuples(
    st.sets(st.integers(1, 12), max_size=3),
    st.dictionaries(st.integers(1, 12), text.map(" ".join), max_size=5),
)


def ranked(postings):
    """The documents that have each gram, and what they score for it alone."""
    corpus = postings.corpus(np.ones(20, np.bool_))
    every = {gram for counted in tokenize(SPOKEN) for gram in gram_counts(counted)}
    found = {gram: Matches.of(postings.view([gram], corpus), 20) for gram in every}
    return {gram: (match.docs.tolist(), match.scores.tolist()) for gram, match in found.items()}


@settings(max_examples=100)
@given(before=st.lists(change, max_size=4), after=st.lists(change, max_size=4))
def test_postings_in_grams_are_those_of_the_texts_whatever_came_and_went(before, after):
    said: dict[int, str] = {}
    words = Postings()

    def apply(removed, new, *many):
        counted = tokenize(list(new.values()))
        words.apply(removed, list(new), counted)
        for postings in many:
            postings.apply(removed, list(new), [gram_counts(each) for each in counted])
        for gone in removed:
            said.pop(gone, None)
        said.update(new)

    for removed, new in before:
        apply(removed, new)
    followed = words.by_grams()
    for removed, new in after:
        apply(removed, new, followed)
    expected = Postings()
    expected.apply([], list(said), [gram_counts(each) for each in tokenize(list(said.values()))])
    for postings in (followed, words.by_grams()):
        assert ranked(postings) == ranked(expected) and postings._live.sum() == len(said)


# What a search finds


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("Welche Torten gab es?", GERMAN[0]),
        ("Was haben wir abends gespielt?", GERMAN[2]),
        ("我的钥匙在哪里？", CHINESE[0]),
        ("谁做的肉好吃？", CHINESE[2]),
    ],
)
def test_another_language_is_found_by_its_letters(query, found):
    with quick(embedder=BagOfWords(dim=4096)) as memory:  # no two words share a dimension
        memory.add([*GERMAN, *CHINESE, *ENGLISH], user_id="u", infer=False)
        assert texts(memory.search(query, user_id="u"))[0] == found


def test_what_is_stored_edited_and_deleted_after_a_search_in_grams_is_followed():
    with quick() as memory:
        memory.add(CHINESE[1], user_id="u", infer=False)
        assert texts(memory.search("谁去跑步了？", user_id="u")) == [CHINESE[1]]
        memory.add(CHINESE[0], user_id="u", infer=False)
        first = memory.search("我的钥匙在哪里？", user_id="u")[0]
        assert first.memory == CHINESE[0]
        memory.update(first.id, "猫睡在沙发上。")
        assert texts(memory.search("猫在哪里？", user_id="u"))[0] == "猫睡在沙发上。"
        memory.delete(first.id)
        assert texts(memory.search("猫在哪里？", user_id="u")) == [CHINESE[1]]


def test_a_search_in_grams_sees_only_its_scope_and_filters():
    with quick() as memory:
        memory.add(CHINESE[0], user_id="u", metadata={"n": 1}, infer=False)
        memory.add(CHINESE[0], user_id="v", infer=False)
        for filters, count in ((None, 1), ({"n": 1}, 1), ({"n": 2}, 0)):
            hits = memory.search("钥匙在哪里？", user_id="u", filters=filters)
            assert [hit.user_id for hit in hits] == ["u"] * count


def test_an_english_search_is_the_same_before_and_after_one_in_another_language():
    def hits(memory):
        found = memory.search("What did we have at the wedding?", user_id="u", explain=True)
        return [(hit.memory, hit.score, hit.parts) for hit in found]

    with quick() as memory:
        memory.add([*GERMAN, *ENGLISH], user_id="u", infer=False)
        before = hits(memory)
        memory.search("Welche Torten gab es?", user_id="u")
        assert hits(memory) == before


def test_a_speaker_is_meant_by_a_genitive_and_by_a_name_without_spaces_around_it():
    said = [{"role": "user", "name": n, "content": "好的，没问题。"} for n in ("Till", "小雨")]
    with quick() as memory:
        memory.add(said, user_id="u", infer=False)
        for query, name in (("Was ist Tills Antwort?", "Till"), ("现在小雨说什么？", "小雨")):
            for hit in memory.search(query, user_id="u", explain=True):
                (turn,) = memory.source_turns(hit.id)
                assert (hit.parts["speaker"] > 0) == (turn.name == name)


# What the embedder knows


def test_it_is_said_once_that_the_embedder_knows_english_alone(english_embedder):
    with pytest.warns(
        UserWarning, match="Set `embedder` to the path of a multilingual ONNX"
    ) as said:
        english_embedder.search("Welche Torten gab es?", user_id="u")
        english_embedder.search("我的钥匙在哪里？", user_id="u")
    assert len(said) == 1 and said[0].filename == __file__


def test_nothing_is_said_of_an_english_query_or_another_embedder(english_embedder):
    with warnings.catch_warnings(), quick() as memory:
        warnings.simplefilter("error")
        english_embedder.search("What cake was there?", user_id="u")
        memory.add(GERMAN, user_id="u", infer=False)
        memory.search("Welche Torten gab es?", user_id="u")


@pytest.mark.filterwarnings("ignore:a query is not in English")
def test_a_script_that_the_embedder_cannot_read_is_ranked_by_words_alone(
    english_embedder,
):
    index, parts = english_embedder.index, english_embedder._parts
    alike = []
    for query in ("钥匙在哪里？", "Welche Torten gab es?"):
        asked = Query(query, Scope("u"))
        found = index.candidates(asked, parts.query_vector(query))
        alike.append(len(set(found.features[:, Feature.SIMILARITY].tolist())) == 1)
    assert alike == [True, False]
    (first, *_) = english_embedder.search("钥匙在哪里？", user_id="u")
    assert first.memory == CHINESE[0] and first.score > RELEVANT["fast"]


def test_a_careful_search_in_another_script_is_a_fast_one():
    with quick(token_embedder=WordTokens()) as memory:
        memory.add([*CHINESE, *GERMAN], user_id="u", infer=False)
        found = {
            query: "match" in memory.search(query, user_id="u", explain=True)[0].parts
            for query in ("钥匙在哪里？", "Welche Torten gab es?")
        }
    assert found == {"钥匙在哪里？": False, "Welche Torten gab es?": True}


def test_a_multilingual_embedder_by_path_finds_one_language_by_another(tmp_path):
    meanings = {
        **dict.fromkeys(["hund", "perro", "dog", "狗"], (1.0, 0.0, 0.0)),
        **dict.fromkeys(["torte", "tarta", "cake", "糕"], (0.0, 1.0, 0.0)),
    }
    file = write_embedder(tmp_path / "model", meanings)
    chosen = replace(load_settings(), embedder=str(file))
    store = tmp_path / "memories.db"
    with quick(store) as memory:
        memory.add(["Der Hund schläft.", "Die Torte ist weg."], user_id="u", infer=False)
    with warnings.catch_warnings(), Memory(store, settings=chosen) as memory:
        warnings.simplefilter("error")
        with pytest.raises(DimensionMismatch, match="edgemem reindex"):
            memory.search("¿Dónde está el perro?", user_id="u")
        assert memory.reindex() == 2
        memory.add("狗在花园里。", user_id="u", infer=False)
        for query in ("¿Dónde está el perro?", "Where is the dog?", "狗在哪里？"):
            hits = memory.search(query, user_id="u", explain=True)
            assert set(texts(hits)[:2]) == {"Der Hund schläft.", "狗在花园里。"}, query
            assert hits[0].parts["similarity"] > 0
        assert texts(memory.search("¿Quién hizo la tarta?", user_id="u"))[0] == "Die Torte ist weg."


# The bench


@pytest.mark.parametrize("language", ["de", "es", "zh"])
def test_the_conversations_are_ten_of_a_language_each_with_questions_that_it_answers(language):
    talks = read_written(languages.FOLDER / f"{language}.txt")
    assert len(talks) == 10
    for talk in talks:
        assert 12 <= len(talk.messages) <= 20 and 6 <= len(talk.questions) <= 8, talk.id
        assert len({message["content"] for message in talk.messages}) == len(talk.messages)


def test_a_question_counts_as_found_at_the_place_of_its_message(tmp_path):
    file = tmp_path / "xx.txt"
    lines = ["# Ana (she), Bo (he)", "@ 2025-03-04 10:00", "Ana: 猫睡在沙发上。"]
    lines += ["? 猫睡在哪里？ | 沙发上", "Bo: 狗在花园里。"]
    file.write_text("\n".join(lines), encoding="utf-8")
    (talk,) = read_written(file)
    with quick() as memory:
        assert list(languages.ranks(memory, [talk])) == [1]
