"""English words: sentences, forms, denials, persons, and what a question asks for."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgemem.language import (
    asked_about,
    asked_whom,
    asks_for_now,
    asks_for_past,
    asks_when,
    content_words,
    is_of_listener,
    is_of_speaker,
    is_question,
    leans_back,
    named,
    of_others,
    same_word,
    says_the_same,
    sentences,
    with_known_people,
    words,
)
from edgemem.language.en import is_negated, refers_back


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("I ran. You slept!", ["I ran.", "You slept!"]),
        ("Dr. Ito met J. Smith. Then?", ["Dr. Ito met J. Smith.", "Then?"]),
        ("the surgeon was dr. Mertens. fine", ["the surgeon was dr. Mertens.", "fine"]),
        ("First\n\nSecond", ["First", "Second"]),
        ('He said "no." I left.', ['He said "no.', "I left."]),
        ("犬を飼いました。嬉しいです！", ["犬を飼いました。", "嬉しいです！"]),
        ("at 3.5 km", ["at 3.5 km"]),
        ("It is on 3.12. at 8. Come!", ["It is on 3.12. at 8.", "Come!"]),
        ("It costs 3.12. Then I left.", ["It costs 3.12.", "Then I left."]),
        ("I came on 3. December at 8. Bye", ["I came on 3. December at 8.", "Bye"]),
        ("Am 3. Juli. Danke.", ["Am 3. Juli.", "Danke."]),
        ("on 3 Dec. at 8", ["on 3 Dec. at 8"]),
        ("I call Sra. Aguirre and Prof. Ito", ["I call Sra. Aguirre and Prof. Ito"]),
        ("with Hr. Weiß bzw. Anke, ca. 10 Uhr", ["with Hr. Weiß bzw. Anke, ca. 10 Uhr"]),
        ("I live at no. 5. Come in.", ["I live at no. 5.", "Come in."]),
        ("She turned 5. April fools us.", ["She turned 5.", "April fools us."]),
        ("I met the Gen. Then I left.", ["I met the Gen.", "Then I left."]),
        ("I said no. 3 came.", ["I said no.", "3 came."]),
        ("It was 2019. Then we moved.", ["It was 2019.", "Then we moved."]),
        ("We are 5. May I come?", ["We are 5.", "May I come?"]),
        ("He is 12. March was cold.", ["He is 12.", "March was cold."]),
        ("she was 2.4 and he 2.6. oli left", ["she was 2.4 and he 2.6.", "oli left"]),
        ("friday, 24.9. we win", ["friday, 24.9. we win"]),
        ("i am 5. i like tea", ["i am 5.", "i like tea"]),
        ("the bus is at 8.30. we go", ["the bus is at 8.30.", "we go"]),
        ("  ", []),
        ("", []),
    ],
)
def test_a_text_falls_into_sentences(text, parts):
    assert sentences(text) == parts


@given(st.text())
def test_sentences_lose_no_word_and_are_never_blank(text):
    parts = sentences(text)
    assert all(part.strip() == part and part for part in parts)
    assert [w for part in parts for w in words(part)] == words(text)


@given(st.text())
def test_content_words_are_words(text):
    assert set(content_words(text)) <= set(words(text))


def test_words_are_lower_case_and_lose_the_possessive():
    assert words("Ana's DON'T, 3.5km: l’été") == ["ana", "don't", "3", "5km", "l’été"]


def test_a_text_of_stop_words_has_no_content():
    assert content_words("what is it that you don't have") == []


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("play", "play", True),
        ("play", "plays", True),
        ("play", "played", True),
        ("playing", "plays", True),
        ("marry", "married", True),
        ("live", "living", True),
        ("run", "running", True),
        ("city", "cities", True),
        ("box", "boxes", True),
        ("house", "houses", True),
        ("like", "likes", True),
        # once all but the last three letters told the forms of a word
        ("bergen", "berlin", False),
        ("marie", "marta", False),
        ("plays", "plans", False),
        ("planes", "plans", False),
        ("2023", "2024", False),
        ("a1", "a2", False),
    ],
)
def test_forms_of_a_word_are_the_same_word_and_words_that_begin_alike_are_not(one, other, same):
    assert same_word(one, ["tea", other]) == same_word(other, {one}) == same


@pytest.mark.parametrize(
    ("old", "new", "same"),
    [
        ("Ana studies maths", "Ana is studying maths", True),
        ("Ana runs", "Ana is running", True),
        ("Ana hardly works", "Ana hard works", False),
        ("Ana builds planes", "Ana builds plans", False),
        ("Ana's universe", "Ana's universal", False),
    ],
)
def test_only_forms_of_the_present_say_the_same(old, new, same):
    assert says_the_same(old, new) == same


@pytest.mark.parametrize(
    ("fact", "said", "told"),
    [
        ("Ana's sister Lena sings", "my sister lena sings", "Ana's sister Lena sings"),
        ("Ana's sister Lena sings", "lena sings", "Lena sings"),
        ("Ana's sister sings", "lena sings", None),
        ("Ana's mother rang", "mamma rang", "Ana's mother rang"),
        ("Ana met Ottilie on Tuesday", "met otti on tues", "Ana met Ottilie on Tuesday"),
        ("Ana lives in Berlin", "i live in bergen", None),
    ],
)
def test_only_people_and_places_that_were_said_are_told_of(fact, said, told):
    assert with_known_people(fact, {"ana", *said.split()}) == told


@pytest.mark.parametrize(
    ("question", "told", "names", "whom"),
    [
        ("who is Tom?", "", ["tom"], ["tom"]),
        ("and whos tom", "I lent Tom my drill", ["tom"], ["tom"]),
        ("Who are Carol and Dave?", "", ["carol", "dave"], ["carol", "dave"]),
        ("what does tom do", "I lent Tom my drill", ["tom"], []),
        ("Who is Tom married to?", "", ["tom"], ["tom", "married", "to"]),
        ("who is my boss?", "I met Boss", ["boss"], ["my", "boss"]),
        ("who is pregnant?", "Pregnant again", [], ["pregnant"]),
        ("when is it, in March or on Monday?", "", [], []),
        ("who is " + "a " * 20_000, "", [], []),
    ],
)
def test_it_is_known_whom_a_question_names(question, told, names, whom):
    assert (named(question, [told]), asked_whom(question)) == (names, whom)


@pytest.mark.parametrize(
    ("question", "word"),
    [
        ("Tell me about Ana Lima.", "lima"),
        ("can you please tell me about Tom", "tom"),
        ("Tell me everything you know about my best friend", "friend"),
        ("What do you remember about my mum?", "mother"),
        ("what have I told you about Bo and my sister-in-law?", "sister"),
        ("Tell me about my work.", None),
        ("Tell me about Tom's new job in Leeds", None),
        ("What do you know about me?", None),
        ("Tell me about May", None),
        ("Tell me about the best bars in Rome", None),
    ],
)
def test_it_is_known_who_is_asked_about_in_general(question, word):
    found = asked_about(question)
    assert found == set() if word is None else word in found and not {"my", "best"} & found


REILLY = (
    "My brother Tom lives in Leeds.",
    "Tom's birthday is on Thursday.",
    "My colleague Tom Reilly showed me round.",
    "Tom Reilly is off to Lisbon.",
    "Tom and Aisha are having a baby!",
)


@pytest.mark.parametrize(
    ("question", "others"),
    [
        ("Who is Tom Reilly?", (0, 1, 4)),
        ("tell me about Tom Reilly", (0, 1, 4)),
        ("who is tom reilly", (0, 1, 4)),
        ("What do you know about my brother Tom?", (2, 3)),
        ("Who are Tom Reilly and Aisha?", (0, 1)),
        ("Who is Tom?", ()),
        ("Where does Tom Reilly live?", ()),
    ],
)
def test_a_full_name_or_kin_tells_two_people_of_one_first_name_apart(question, others):
    found = of_others(question, REILLY)
    assert [i for i, other in enumerate(found) if other] == [*others]


@pytest.mark.parametrize(
    ("question", "texts", "others"),
    [
        ("Who is Ana Lima?", ("Ana is ill.", "My boss Ana rang.", "Ana Lima left."), ()),
        ("Who is Mr Feeney?", ("Mr Okafor left.", "Mr. Feeney said no.", "I like Mr Feeney"), (0,)),
        (
            "Tell me about Sarah from choir",
            ("Sarah from pottery left.", "Sarah in the choir sings.", "Sarah moved lunch."),
            (0,),
        ),
        ("Who is Tom Reilly?", ("I saw Tom. Reilly rang.", "Tom Reilly left."), ()),
        (
            "Tell me about my mum",
            ("Mum rang.", "Hannah's mother is ill.", "My mum met Ffion's mum.", "I like opera."),
            (1,),
        ),
    ],
)  # fmt: skip
def test_a_first_name_is_that_of_the_only_person_of_that_name(question, texts, others):
    found = of_others(question, texts)
    assert [i for i, other in enumerate(found) if other] == [*others]


@given(st.text(max_size=40), st.lists(st.text(max_size=40), max_size=4))
def test_any_texts_can_be_of_others(name, texts):
    assert len(of_others(f"Who is {name}?", texts)) == len(texts)


@given(st.text(), st.lists(st.text()))
def test_no_word_breaks_the_comparison(word, others):
    same_word(word, others)
    assert same_word(word, [*others, word])


@pytest.mark.parametrize(
    ("text", "speaker", "listener"),
    [
        ("I’m off", True, False),
        ("that is MINE", True, False),
        ("y'all know", False, True),
        ("Give it to us, you two", True, True),
        ("Myra is young", False, False),
        ("", False, False),
    ],
)
def test_a_text_is_of_its_speaker_its_listener_or_neither(text, speaker, listener):
    assert (is_of_speaker(text), is_of_listener(text)) == (speaker, listener)


@pytest.mark.parametrize(
    ("asks", "text", "found"),
    [
        (asks_when, "When did Ana move?", True),
        (asks_when, "how long was it", True),
        (asks_when, "Which month was that?", True),
        (asks_when, "What day, then", True),
        (asks_when, "Where is it?", False),
        (asks_when, "What did Ana do whenever", False),
        (asks_when, "which yearbook", False),
        (asks_when, "How many?", False),
        (asks_when, "", False),
        (asks_for_now, "What do I drink these days?", True),
        (asks_for_now, "What do I know?", False),
        (asks_for_past, "Where did I use to live back then?", True),
        (asks_for_past, "Where do I live?", False),
        (leans_back, "It has two rooms.", True),
        (leans_back, "But they left.", True),
        (leans_back, "Items: two", False),
        (is_negated, "I can't", True),
        (is_negated, "I can’t", True),
        (is_negated, "not me", True),
        (is_negated, "No.", True),
        (is_negated, "I never do", True),
        (is_negated, "cannot", True),
        (is_negated, "I know", False),
        (is_negated, "nothing", False),
        (is_negated, "the cant", False),
        (is_negated, "notes", False),
        (is_negated, "", False),
        (is_question, "Where? And when?", True),  # every sentence asks
        (is_question, 'Did you say "why?"', True),
        (is_question, "元気ですか？", True),
        (is_question, "钥匙在车上。", False),
        (is_question, "I ask. Why?", False),
        (is_question, "", False),
    ],
)
def test_what_a_question_or_a_sentence_needs_asks_or_denies(asks, text, found):
    assert asks(text) == found


@pytest.mark.parametrize(
    ("question", "refers"),
    [
        ("Who comes this week?", False),
        ("Which allergies are there in my family?", False),
        ("Who lives there?", True),
        ("Is this right?", True),
    ],
)
def test_a_time_and_what_there_is_refer_to_nothing_said_before(question, refers):
    assert refers_back(question) is refers
