"""What of the hits the model is shown: whose words, which sentences, in which order."""

import json
from dataclasses import replace
from unittest.mock import patch

import pytest
from fake_engine import FakeEngine
from memorykit import crowd, quick

from edgemem.language import sentences as sentences_of
from edgemem.memory import Memory
from edgemem.pipeline.bearing import bearing
from edgemem.pipeline.foreign import import_foreign, read_foreign
from edgemem.pipeline.people import rarest
from edgemem.pipeline.recall import (
    clock,
    evidence_of,
    has_ended,
    near_misses,
    notes,
    overview,
    quotes,
    recall,
    search,
    sources,
    told_of,
    without_remarks,
)
from edgemem.pipeline.told import listed
from edgemem.results import Entity, Message, Scope
from edgemem.stages.generation import quoted
from edgemem.store import NewRelation

DAYS = ("2024-05-01T10:00:00+00:00", "2024-06-01T10:00:00+00:00", "2024-07-01T10:00:00+00:00")
OLD, NEW = "I drink coffee every morning.", "I drink tea every morning, no coffee."
FACTS = {OLD: "{} drinks coffee every morning", "My cat is called Tom.": "{}'s cat is called Tom"}


@pytest.fixture
def memory():
    with quick(engine=FakeEngine(facts={**FACTS})) as opened:
        yield opened


def tell(memory, text, day=DAYS[0], *, infer=False, **message):
    return memory.add(
        [{"role": "user", "content": text, "timestamp": day, **message}], user_id="ana", infer=infer
    )


def shown(memory, question, most=8, *, whole=False):
    hits = memory.search(question, user_id="ana", top_k=16, explain=True)
    return recall(memory, question, hits, most=most, whole=whole)


def sentences(found):
    return [evidence.text for evidence in found]


def with_a_contradiction(memory, old=OLD):
    """A turn whose fact has been contradicted by a later turn."""
    memory.engine.facts[old] = FACTS[OLD]
    first = tell(memory, old, DAYS[0], infer=True)
    (fact,) = [change.id for change in first if change.kind == "fact"]
    with memory.store.transaction() as tx:
        tx.invalidate(fact, "2024-06-01T10:00:00.000+00:00")
    tell(memory, NEW, DAYS[1])


def test_what_has_been_contradicted_since_is_not_shown(memory):
    with_a_contradiction(memory)
    assert sentences(shown(memory, "What do I drink every morning?")) == [NEW]


@pytest.mark.parametrize(
    ("rest", "shown_of_it"),
    [
        ("My oven only works if I kick it.", ["My oven only works if I kick it."]),
        ("It wakes me up. My oven is broken.", ["My oven is broken."]),
        ("True.", []),
    ],
)
def test_what_else_a_message_said_is_still_shown(memory, rest, shown_of_it):
    """All of it was left out because of one fact, and nothing but that fact was contradicted."""
    with_a_contradiction(memory, f"{OLD} {rest}")
    question = "What wakes me every morning, an oven?"
    found = evidence_of(memory, question, memory.search(question, user_id="ana"))
    assert [text for text in sentences(found) if text != NEW] == shown_of_it


def test_an_expert_reads_all_of_a_turn_that_tells_more_than_what_is_over(memory):
    """Messages typed in haste are one sentence: with the coffee went the oven and the cat."""
    hasty = "i drink coffee every morning the oven only works if i kick it the cat is tom"
    memory.engine.facts[hasty] = FACTS[OLD]
    (fact,) = [change.id for change in tell(memory, hasty, infer=True) if change.kind == "fact"]
    with memory.store.transaction() as tx:
        tx.invalidate(fact, "2024-06-01T10:00:00.000+00:00")
    tell(memory, NEW, DAYS[1])
    for question in ("What is the cat called?", "What do I drink every morning now?"):
        hits = memory.search(question, user_id="ana")
        read = recall(memory, question, hits, most=6, whole=True, ended=True)
        assert hasty in sentences(read)
        assert hasty not in sentences(shown(memory, question, whole=True))
    assert sentences(read)[-1] == NEW


@pytest.mark.parametrize(
    "question", ["What did I drink every morning before?", "What coffee did I used to drink?"]
)
def test_a_question_about_the_past_is_shown_it_all_the_same(memory, question):
    with_a_contradiction(memory)
    assert {OLD, NEW} == set(sentences(shown(memory, question)))


def test_a_fact_is_shown_in_the_words_of_the_turn_it_was_taken_from_and_once(memory):
    tell(memory, "My cat is called Tom.", infer=True)
    context = shown(memory, "What is my cat called?")
    assert sentences(context) == ["My cat is called Tom."]
    (recalled,) = context
    assert (recalled.when[:10], recalled.speaker) == ("2024-05-01", "User")
    assert len(sources(context)) == 1


def test_a_fact_that_was_edited_is_shown_as_it_was_edited(memory):
    added = tell(memory, "My cat is called Tom.", infer=True)
    (fact,) = [change for change in added if change.kind == "fact"]
    memory.update(fact.id, "The cat of User is called Felix")
    for past in ("", " before"):  # what was corrected never was so
        (recalled,) = shown(memory, f"What is my cat called{past}?")
        assert (recalled.text, recalled.speaker) == ("The cat of User is called Felix", None)
    assert {hit.memory for hit in memory.search("cat", user_id="ana")} == {
        "My cat is called Tom.", "The cat of User is called Felix"
    }  # fmt: skip
    (turn,) = [change for change in added if change.kind == "turn"]
    memory.delete(turn.id)
    assert [e.text for e in shown(memory, "My cat?")] == ["The cat of User is called Felix"]


@pytest.mark.parametrize("change", [Memory.delete, lambda m, id: m.update(id, "I have a dog.")])
def test_the_facts_of_a_turn_go_with_its_words(memory, change):
    added = tell(memory, "My cat is called Tom.", infer=True)
    (fact,) = [change for change in added if change.kind == "fact"]
    (turn,) = [change for change in added if change.kind == "turn"]
    change(memory, turn.id)
    assert memory.get(fact.id) is None and memory.history(fact.id)[-1]["event"] == "DELETE"
    assert "Tom" not in str(shown(memory, "What is my cat called?"))


def test_a_turn_that_was_edited_is_shown_as_it_was_edited_and_keeps_its_speaker(memory):
    told = [{"role": "user", "name": "Bo", "content": "My cat is called Tom."},
            {"role": "assistant", "content": "A fine cat."}]  # fmt: skip
    for turn in memory.add(told, user_id="ana", infer=False):
        while memory.get(turn.id).updated_at == turn.created_at:
            memory.update(turn.id, "My cat is called Felix.")
    found = shown(memory, "What is my cat called?")
    assert {(e.text, e.speaker) for e in found} == {
        ("My cat is called Felix.", "Bo"), ("My cat is called Felix.", "Assistant")
    }  # fmt: skip


def test_an_edit_by_a_clock_that_is_behind_is_shown(memory):
    (turn,) = tell(memory, "My cat is called Tom.")
    with patch("edgemem.pipeline.ingest.utc_now", return_value="2001-01-01T10:00:00.000+00:00"):
        memory.update(turn.id, "My cat is called Felix.")
    assert sentences(shown(memory, "What is my cat called?")) == ["My cat is called Felix."]


def test_what_the_assistant_said_is_shown_as_its_words_and_nowhere_as_the_users(memory):
    tell(memory, "Your cat is called Rex.", role="assistant")
    (recalled,) = shown(memory, "What is my cat called?")
    assert (recalled.text, recalled.speaker) == ("Your cat is called Rex.", "Assistant")
    tell(memory, "The cat is called Tom.", role="assistant", name="Bo")
    assert {e.speaker for e in shown(memory, "What is the cat called?")} == {"Assistant", "Bo"}
    hits = memory.search("cat", user_id="ana")
    for said in (overview(memory, "my drinks", hits, most=4), notes(memory, hits, most=4)):
        assert [e.speaker for e in said] == ["Bo"]


def test_of_an_assistants_long_turn_an_expert_reads_the_nearest_parts(memory):
    near = "Bread rises best at twenty-five degrees."
    talk = ["Good question.", "Ovens differ.", near, "Sugar is sweet.", "Have fun.", "Bye now."]
    talk += ["Salt keeps.", "Flour is white.", "Water boils.", "Cups break.", "Jam sets."]
    tell(memory, " ".join(talk), role="assistant")
    question = "How warm should bread rise?"
    (recalled,) = recall(
        memory, question, memory.search(question, user_id="ana"), most=6, whole=True
    )
    assert near in recalled.text and len(sentences_of(recalled.text)) == 8
    tell(memory, " ".join(["I like my bread.", *talk]))
    found = recall(memory, question, memory.search(question, user_id="ana"), most=6, whole=True)
    assert max(len(sentences_of(e.text)) for e in found if e.speaker == "User") == 12


def test_of_an_assistants_long_turn_only_parts_that_share_words_are_embedded(memory):
    near = "Bread rises best at twenty-five degrees."
    others = [f"Oven number {n} is hot." for n in range(60)]
    tell(memory, " ".join([*others, near]), role="assistant")
    question = "How warm should bread rise?"
    hits = memory.search(question, user_id="ana")
    with patch.object(memory.embedder, "embed", wraps=memory.embedder.embed) as embed:
        (recalled,) = recall(memory, question, hits, most=6, whole=True)
    assert near in recalled.text
    assert sum(len(call.args[0]) for call in embed.call_args_list) < 30


def test_an_expert_is_shown_nothing_far_less_probable_than_the_best_that_may_be_shown(memory):
    question = "What do I drink every morning?"
    for text in (question, NEW, "My cat is called Tom."):
        tell(memory, text)
    hits = memory.search(question, user_id="ana")
    for cat, wanted in ((0.001, {NEW}), (0.01, {NEW, "My cat is called Tom."})):
        scores = {question: 0.99, NEW: 0.04, "My cat is called Tom.": cat}
        scored = [replace(hit, score=scores.get(hit.memory, 0.0)) for hit in hits]
        assert set(sentences(recall(memory, question, scored, most=6, whole=True))) == wanted


def test_what_an_assistant_answered_to_what_is_over_is_over_too(memory):
    (fact,) = [change.id for change in tell(memory, OLD, infer=True) if change.kind == "fact"]
    tell(memory, "Coffee every morning keeps you awake!", role="assistant")
    question = "What do I drink every morning?"
    assert {e.speaker for e in shown(memory, question)} == {"User", "Assistant"}
    with memory.store.transaction() as tx:
        tx.invalidate(fact, "2024-06-01T10:00:00.000+00:00")
    assert shown(memory, question) == ()
    assert len(shown(memory, "What did I drink every morning before?")) == 2


@pytest.mark.parametrize("newest_first", [False, True])
def test_a_question_about_now_is_shown_the_newest_last(memory, newest_first):
    said = ["I work at the big old bakery.", "I work at a school.", "I work at the library."]
    told = list(zip(said, DAYS, strict=True))
    for text, day in reversed(told) if newest_first else told:
        tell(memory, text, day)
    assert sentences(shown(memory, "Where do I work now?")) == said


def test_the_hits_are_those_of_what_is_shown_the_most_telling_first(memory):
    tell(memory, "A cat sleeps all day.", DAYS[0])
    tell(memory, "My cat is called Tom.", DAYS[1])
    tell(memory, "It rained on the mountain.", DAYS[2])
    context = shown(memory, "What is my cat called?", most=2)
    assert [hit.memory for hit in sources(context)] == sentences(context)[::-1]


def test_a_relevant_hit_that_may_not_be_shown_lets_nothing_else_through(memory):
    """Asked twice, a question finds itself; that is no reason to answer from the weather."""
    crowd(memory)
    tell(memory, "It rained on the hill, the dog slept.")
    assert shown(memory, "What is my oldest sister's boat called?") == ()
    tell(memory, "What is my oldest sister's boat called?")
    assert shown(memory, "What is my oldest sister's boat called?") == ()


TOM = "My cat is called Tom."
NEAR = f"The weather was fine. {TOM} A cat sleeps all day."


@pytest.mark.parametrize(
    ("said", "most", "expected"),
    [
        pytest.param(None, 8, [], id="an empty store tells nothing"),
        pytest.param("It rained on the mountain.", 8, [], id="nor does what is not relevant"),
        pytest.param("What is my cat called?", 8, [], id="nor a question"),
        pytest.param(f"Do you like it? {TOM} A good name for a cat?", 8, [TOM], id="nor a part"),
        pytest.param(f"{TOM} It rained on the mountain.", 8, [TOM], id="what is far is left out"),
        pytest.param(NEAR, 2, ["A cat sleeps all day.", TOM], id="the nearest comes last"),
        pytest.param(NEAR, 1, [TOM], id="the nearest alone"),
    ],
)
def test_the_sentences_near_to_the_question_are_shown(memory, said, most, expected):
    if said is not None:
        crowd(memory)
        tell(memory, said)
    assert sentences(shown(memory, "What is my cat called?", most=most)) == expected


def test_an_overview_leaves_out_what_was_only_asked_for(memory):
    for text in ("Our cat is called Wim.", "Write a short birthday invitation for Wim."):
        tell(memory, text)
    hits = memory.search("What do you know about Wim?", user_id="ana")
    assert len(hits) == 2
    assert sentences(overview(memory, "Wim?", hits, most=4)) == ["Our cat is called Wim."]


def test_below_a_refusal_stands_what_shares_a_word_with_the_question(memory):
    tell(memory, "Laura is from Valencia, she studies law. The tram was late.")
    for question, found in (("What does Laura study?", 1), ("Which blood type do I have?", 0)):
        hits = memory.search(question, user_id="ana", top_k=16)
        assert len(near_misses(memory, question, hits)) == found


def test_a_stored_request_hides_nothing(memory):
    """It was the best hit for the same request again, and hits are compared with the best one."""
    for text in ("Our cat is called Wim.", "What should I tell the vet about our cat Wim?"):
        tell(memory, text)
    asks, scope = "What should I tell the vet about our cat Wim?", Scope(user_id="ana")
    hits = memory.search(asks, user_id="ana")
    given = [
        overview(memory, asks, hits, most=4),
        bearing(memory, scope, asks, hits, most=4, advice=False),
        quotes(memory, asks, hits),
    ]
    assert list(map(sentences, given)) == [["Our cat is called Wim."]] * 3


@pytest.mark.parametrize(
    ("question", "told"),
    [
        ("Tell me about Maria.", []),
        ("What do you know about my uncle?", []),
        ("tell me about Maria and Peter", []),
        ("Tell me about my mum.", ["My mother likes opera."]),
        ("Tell me about Jurgen", ["My boss Jürgen likes opera."]),
        ("Tell me about Juergen", ["My boss Jürgen likes opera."]),
    ],
)
def test_an_overview_of_somebody_never_told_of_is_empty(memory, question, told):
    for text in (
        "My mother likes opera.",
        "My boss Jürgen likes opera.",
        "My locker code is 4711.",
    ):
        tell(memory, text)
    found = overview(memory, question, memory.search(question, user_id="ana"), most=4)
    assert set(told) <= set(sentences(found))
    assert bool(found) == bool(told)


def test_an_overview_of_a_part_of_life_needs_no_word_of_the_question(memory):
    tell(memory, "I am a nurse at the clinic.")
    for question in (
        "Tell me about my work.",
        "Tell me about my week",
        "What do you know about me?",
    ):
        hits = memory.search(question, user_id="ana")
        assert sentences(overview(memory, question, hits, most=4)), question


def test_an_overview_of_somebody_leaves_out_what_is_told_of_others(memory):
    told = "I lent Tom my drill.", "Tom lives next door with a beagle.", "Anna lives in York."
    for text in told:
        tell(memory, text)
    for question in ("What do you know about Tom?", "who is tom"):
        hits = memory.search(question, user_id="ana")
        found = overview(memory, question, hits, most=4)
        assert set(sentences(found)) == {*told[:2]}
        assert bool(told_of(memory, question, hits, most=4)) == question.startswith("who")
    question = "Tell me about Tom."
    far = [replace(hit, score=0.001) for hit in memory.search(question, user_id="ana")]
    found = overview(memory, question, far, most=4, scope=Scope(user_id="ana"))
    assert set(sentences(found)) == {*told[:2]}


@pytest.mark.parametrize("question", ["Who is Tom Reilly?", "Tell me about Tom Reilly"])
def test_a_full_name_lists_nobody_else_of_that_first_name(memory, question):
    told = "My colleague Tom Reilly keeps geckos.", "Tom Reilly is off to Lisbon."
    for text in ("My brother Tom lives in Leeds.", "Tom's birthday is on Thursday.", *told):
        tell(memory, text)
    assert found_about(memory, question) == [*told]


def found_about(memory, question, most=4):
    hits, scope = memory.search(question, user_id="ana", top_k=2), Scope(user_id="ana")
    ask = told_of if question.startswith("Who") else overview
    return sentences(ask(memory, question, hits, most=most, scope=scope))


@pytest.mark.parametrize("question", ["Who is Bo?", "Tell me about Bo"])
def test_what_is_said_again_and_again_of_somebody_gives_way_to_what_matters(memory, question):
    rare = "Bo is my neighbour, a carpenter.", "Bo has bought a telescope."
    for n, photo in enumerate(("a soup", "a roast", "a pie", "a stew") * 5):
        tell(memory, f"Bo is my pal and sent a photo of {photo}.", f"2024-05-{n + 1:02}T10:00Z")
    for text in rare:
        tell(memory, text, "2024-04-01T10:00Z")
    assert found_about(memory, question) == [*rare, "and 4 more"]


def test_of_somebody_a_fact_does_not_count_beside_its_turn(memory):
    facts = {f"Bo has been to {place}.": f"Bo has been to {place}" for place in ("York", "Oslo")}
    memory.engine.facts.update(facts)
    for text in facts:
        assert len(tell(memory, text, infer=True)) == 2
    for question in ("Who is Bo?", "Tell me about Bo"):
        assert sorted(found_about(memory, question, most=2)) == sorted(facts)


def test_what_a_question_also_tells_is_shown(memory):
    tell(
        memory,
        "I'm thinking of visiting my sister Emily in Denver soon, and I was wondering if you knew "
        "any attractions there?",
    )
    tell(memory, "Where does my sister live?")
    (found,) = shown(memory, "Where does my sister Emily live?", whole=True)
    assert "Denver" in found.text


def test_the_turns_before_a_message_do_not_find_themselves(memory):
    said = "I am still sad about the house."
    tell(memory, said)
    tell(memory, "We offered 405,000 for the old mill.")
    asked, before = "How much did we offer for it?", [Message("user", said, DAYS[1])]
    found = search(memory, {"user_id": "ana"}, asked, None, before, most=8)
    alone = search(memory, {"user_id": "ana"}, asked, None, (), most=8)
    scores = [{hit.memory: hit.score for hit in hits}.get(said, 0.0) for hits in (found, alone)]
    assert scores[0] == scores[1]


def test_a_relation_that_a_later_one_ended_has_ended(memory):
    facts = {"Tom lives in Leeds.": "Leeds", "Tom moved to York.": "York"}
    memory.engine.facts |= dict.fromkeys(facts, "") | {text: text[:-1] for text in facts}
    found = []
    for (text, town), day in zip(facts.items(), DAYS, strict=False):
        (fact,) = [c.id for c in tell(memory, text, day, infer=True) if c.kind == "fact"]
        lives = NewRelation(Entity("Tom", "person"), "lives_in", Entity(town, "place"), day)
        with memory.store.transaction() as tx:
            tx.set_relations(fact, [lives], 1)
        found += evidence_of(memory, None, memory.search(text, user_id="ana", top_k=1))
    assert [has_ended(memory, [one]) for one in found] == [True, False]


def test_an_item_of_an_assistants_list_is_told_by_its_place(memory):
    tell(memory, "Ideas for my balcony, please.", role="user")
    tell(memory, "Five plants:\n1. basil\n2. mint\n3. sage\n4. thyme\n5. chives", role="assistant")
    tell(memory, "Songs to drive to, please.", role="user")
    tell(memory, "Some songs:\n1. Heroes\n2. Lola\n3. Dreams\n4. Angie", role="assistant")

    def told(question):
        return listed(memory, question, memory.search(question, user_id="ana"))

    answer, (source,) = told("what was the third plant you gave me for my balcony?")
    assert (answer, source.text, source.speaker) == ("sage", "3. sage", "Assistant")
    assert told("which balcony plant came last on your list of plants?")[0] == "chives"
    assert told("number nine on your list of plants?") is None
    assert told("which plants did you give me?") is None


def test_quotations_of_replies_say_so_and_there_are_more_of_them(memory):
    lines = [f"Balcony plant {n} likes shade." for n in range(8)]
    tell(memory, "\n".join(f"- {line}" for line in lines), role="assistant")
    question = "Which balcony plant likes shade?"
    found = quotes(memory, question, memory.search(question, user_id="ana"))
    assert len(found) == 5
    assert quoted(found).startswith("This is what was said:")


def test_what_an_answer_quoted_is_not_searched_for_with_the_next_message(memory):
    tell(memory, "Yorgos runs the ferry.")
    listed_ = "This is what you told me:\n- Yorgos runs it"
    for text, lead in ((f"I'm not sure.\n\n{listed_}", "I'm not sure."), (listed_, "")):
        said = Message("assistant", text, DAYS[1])
        with patch.object(memory, "search", wraps=memory.search) as search_:
            search(memory, {"user_id": "ana"}, "and for how long?", None, [said], most=4)
        assert search_.call_args_list[-1].args[0] == f"{lead} and for how long?"


@pytest.mark.parametrize(
    ("question", "refers", "told"),
    [
        ("What time?", False, 1),
        ("What time?", True, 0),
        ("What time is it?", True, 1),
        ("What time is my blood test?", False, 0),
        ("what time is swimming", False, 0),
        ("whats todays date", False, 1),
    ],
)
def test_the_time_of_something_is_not_the_clock_s(embedder, question, refers, told):
    with quick(embedder=embedder) as memory:
        assert len(clock(memory, question, DAYS[0], refers=refers)) == told


def test_remarks_made_again_and_again_give_way_in_a_search_that_finds_nothing_else(memory):
    lasts = "My workplace is Park Street Dental."
    tell(memory, lasts)
    for n in range(60):
        cupboard = ("stationery", "linen", "broom")[n % 3]
        tell(memory, f"Work was slow, I tidied the {cupboard} cupboard on shelf {n}.")
    question, scope = "Where is my work, at which cupboard?", Scope(user_id="ana")
    hits = memory.search(question, user_id="ana", top_k=4)
    assert lasts not in {hit.memory for hit in hits}
    found = without_remarks(memory, question, hits, scope, least=4)
    assert [hit.memory for hit in found] == [lasts]
    few = memory.search(lasts, user_id="ana", top_k=1)
    assert without_remarks(memory, question, few, scope, least=4) == [*few]


def test_a_question_for_the_next_time_finds_nothing_that_is_over(memory):
    tell(memory, "Max's swimming gala is next Friday.", "2025-10-12T09:00Z")
    tell(memory, "Max's swimming gala is on the 21st of October.", "2026-10-16T09:00Z")
    tell(memory, "Max's swimming gala is the 4th at 11.", "2026-08-29T09:00Z")
    tell(memory, "Max loves the swimming gala.", "2026-08-16T09:00Z")
    found = [told for told, _ in found_by(memory, "When is Max's next swimming gala?")]
    assert found == ["Max loves the swimming gala."]
    coming = "Max's swimming gala is on the 4th of December."
    tell(memory, coming, "2026-11-16T09:00Z")
    found = [told for told, _ in found_by(memory, "When is Max's next swimming gala?")]
    assert sorted(found) == sorted([coming, "Max loves the swimming gala."])
    assert coming in [told for told, _ in found_by(memory, "When is Max's swimming gala?")]
    tell(memory, "Max's birthday is on the 3rd of November.", "2025-10-12T09:00Z")
    assert any("birthday" in told for told, _ in found_by(memory, "When's Max's next birthday?"))


@pytest.mark.parametrize(
    "off",
    [
        "Gwen can't do Mondays any more, so we look for somebody with room at the weekend.",
        "Lily's lesson got moved to 15 December because the hall flooded.",
    ],
)
def test_what_was_called_off_or_moved_is_quoted_with_that(memory, off):
    tell(memory, "Lily's trumpet lesson with Gwen is on Mondays at four.", "2026-09-27T09:00Z")
    tell(memory, off, "2026-11-22T09:00Z")
    tell(memory, "The bins go out on Mondays.", "2026-11-23T09:00Z")
    question = "When is Lily's trumpet lesson?"
    hits = memory.search(question, user_id="ana")
    first, *rest = sorted(hits, key=lambda hit: "trumpet" not in hit.memory)
    hits = [replace(first, score=0.8), *(replace(hit, score=0.01) for hit in rest)]
    assert sentences(quotes(memory, question, hits)) == [first.memory, off]


def found_by(memory, question):
    ids = {"user_id": "ana"}
    hits = search(memory, ids, question, "2026-11-30T08:00:00+00:00", (), most=4)
    return [(hit.memory, hit.valid_from and hit.valid_from[:10]) for hit in hits]


def test_a_remark_that_somebody_makes_again_and_again_is_found_once(memory):
    tell(memory, "I got the job at Harbour Vets.", "2026-02-02T10:00Z")
    for day in range(1, 10):
        tell(memory, "Work was mad, phones all day.", f"2026-03-0{day}T10:00Z")
    tell(memory, "Work was mad, phones all day.", "2026-04-01T10:00Z", name="Ben")
    assert sorted(found_by(memory, "How was work, was the job mad?")) == [
        ("I got the job at Harbour Vets.", "2026-02-02"),
        ("Work was mad, phones all day.", "2026-03-09"),
        ("Work was mad, phones all day.", "2026-04-01"),
    ]


def test_when_in_a_year_finds_what_was_told_in_it_or_names_it(memory):
    for day in ("2024-10-12", "2025-10-22"):
        tell(memory, "Flu jab at Boots, arm like lead.", f"{day}T09:00Z")
    tell(memory, "Flu jab this morning.", "2026-10-07T09:00Z")
    tell(memory, "Booked a flu jab for 3 October 2027.", "2026-11-01T09:00Z")
    days = {"this year": ["2026-10-07", "2026-11-01"], "in 2027": ["2026-11-01"]}
    for year, told in days.items():
        found = found_by(memory, f"When did I have my flu jab {year}?")
        assert sorted(when for _, when in found) == told
    assert len(found_by(memory, "When did I have my flu jab?")) > 2
    assert found_by(memory, "When did I have my flu jab in 1999?")  # better than nothing


@pytest.mark.parametrize(
    ("question", "told"),
    [
        ("When did I have my flu jab in 2024?", "2024-10-12"),
        ("When was my flu jab last year?", "2025-10-22"),
        ("When was my flu jab this year?", "2026-10-07"),
        ("What did I do at Boots in October 2024?", "2024-10-12"),
        ("When was my flu jab?", "2026-10-07"),
    ],
)
def test_of_what_is_said_every_year_the_time_that_is_asked_about_is_found(memory, question, told):
    for day in ("2024-10-12", "2025-10-22", "2026-10-07"):
        tell(memory, "Flu jab at Boots today, arm like lead.", f"{day}T09:00Z")
    assert [when for _, when in found_by(memory, question)] == [told]


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("donna", "asked my boss donna 4 the day off n she said yeh fine"),
        ("ella", "ella is vegan now so no choc box"),
        ("pat", "leave it wiv next door shes called pat"),
    ],
)
def test_who_somebody_is_is_told_without_capitals(memory, name, told):
    tell(memory, told)
    tell(memory, "the roof is wet again")
    question = f"whos {name}"
    hits = memory.search(question, user_id="ana")
    assert sentences(told_of(memory, question, hits, most=4)) == [told]


@pytest.mark.parametrize(("what", "told"), [("pregnant", "tash is pregnant"), ("next", "im next")])
def test_but_no_word_is_somebody_that_no_text_introduces(memory, what, told):
    tell(memory, told)
    assert told_of(memory, f"whos {what}", memory.search(what, user_id="ana"), most=4) == ()


@pytest.mark.parametrize("told", ["drivin lesson 9th", "driving lesson 9th"])
def test_a_search_in_haste_finds_what_was_typed_in_haste_or_with_care(memory, told):
    for text in ("piano lesson 9th", "swimming lesson 9th", told):
        tell(memory, text)
    hits = search(memory, {"user_id": "ana"}, "wens my drivin lesson", None, (), most=4)
    assert hits[0].memory == told


@pytest.mark.parametrize(
    ("text", "question"),
    [
        ("I've sold the car. Scratch that, we still have the Volvo.", "Do I have a car?"),
        ("Rhys is a vegetarian. Actually vegan.", "Is Rhys a vegetarian?"),
    ],
)
def test_what_is_taken_back_is_quoted_with_that(memory, text, question):
    tell(memory, text)
    assert sentences(shown(memory, question)) == [text]


def test_quoted_sentences_of_a_turn_keep_its_order(memory):
    said = ["Our boiler was made in Leeds.", "The boiler man comes on Friday."]
    tell(memory, " ".join(said))
    for question in ("When does the boiler man come?", "Where was our boiler made?"):
        assert sentences(quotes(memory, question, memory.search(question, user_id="ana"))) == said


def test_an_expert_asked_of_the_user_reads_nobody_elses_i(memory):
    opening = '"My name is Mira Voss. I live in Danzig."'
    told = f"The opening of my novel: {opening}"
    tell(memory, told)
    hidden = ['The opening of my novel: "…"']
    assert sentences(shown(memory, "What is my name?", whole=True)) == hidden
    assert sentences(shown(memory, "Where does Mira Voss live?", whole=True)) == [told]
    assert sentences(shown(memory, "Where do I live?")) == [told]


def test_an_expert_asked_of_the_user_reads_titles_and_passwords(memory):
    for told, question in (
        ('My favourite book is "The Heart of the Lonely Hunter".', "What is my favourite book?"),
        ('My wifi password is "correct horse battery staple nine".', "What is my password?"),
        ('Our song is "My Way".', "What is our song?"),
    ):
        tell(memory, told)
        assert told in sentences(shown(memory, question, whole=True))


def test_imported_facts_without_a_turn_are_told_of_somebody(memory, tmp_path):
    file = tmp_path / "theirs.jsonl"
    rows = [{"memory": f"Ana is a nurse on ward {n}.", "user_id": "ana"} for n in range(9)]
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    import_foreign(memory, read_foreign(file, Scope(user_id="ana")))
    hits = memory.search("Who is Ana?", user_id="ana", top_k=16, explain=True)
    found = told_of(memory, "Who is Ana?", hits, most=9, scope=Scope(user_id="ana"))
    assert len(found) == 9


def test_of_photos_alone_none_gives_way(memory):
    assert rarest(["a beach", "a dog"], [], least=1, most=1) == ["a beach"]


@pytest.mark.parametrize(
    "told", ["My rent is due on the 1st of each month.", "The bus to work leaves at 7:40."]
)
def test_what_comes_again_is_not_over(memory, told):
    tell(memory, told, "2026-09-01T09:00Z")
    found = search(
        memory, {"user_id": "ana"}, "When is the next one?", "2026-11-30T10:00Z", [], most=4
    )
    assert [hit.memory for hit in found] == [told]


def test_of_turns_about_as_probable_as_the_best_an_expert_reads_the_newest_last(memory):
    said = ["I am allergic to penicillin.", "I am allergic to bees.", "My hero is Anton."]
    for text, day in zip(said, DAYS, strict=True):
        tell(memory, text, day)
    found = memory.search("What am I allergic to?", user_id="ana", explain=True)
    scores = dict(zip(said, (0.3, 0.4, 0.05), strict=True))
    hits = [replace(hit, score=scores[hit.memory]) for hit in found]
    read = recall(memory, "What am I allergic to?", hits, most=8, whole=True)
    assert sentences(read) == [said[2], said[0], said[1]]
