"""Conversations as typed in haste, from which the answers' expert learns."""

import pytest
from clikit import run_corpus
from hypothesis import given
from hypothesis import strategies as st

from corpus.haste import in_haste, spelled_as_shown
from corpus.readers import read_written
from edgemem.training.examples import Example, read

TALK = """\
# User, Assistant
@ 2024-05-01 10:00
User: Because of the nurses, Benedikt's appointment in Bergen is at 10:30, and it costs 1,200.
? When is the appointment? | at 10:30
Assistant: Noted, Bergen it is.
User: Something really important: my grandmother lives between the rivers.
? Where does Grandma live? | between the rivers
? Who lives there with her? | -
@ 2024-06-01 10:00
User: My birthday is tomorrow!
? Where is the appointment before my birthday? | Bergen | appointment in Bergen
~ 2024-06-09 09:00
> (recall) Where was Benedikt's appointment? | appointment in Bergen
< In Bergen. | Bergen
"""


@pytest.fixture(scope="module")
def talk(tmp_path_factory):
    return read_written(written(tmp_path_factory.mktemp("haste")))[0]


def written(folder):
    path = folder / "few.txt"
    path.write_text(TALK)
    return path


def said(talk):
    return [message["content"] for message in talk.messages]


@given(seed=st.integers())
def test_what_a_question_needs_is_still_among_the_messages(talk, seed):
    hasty = in_haste(talk, seed=seed)
    told = {(m["content"], m["timestamp"]) for m in hasty.messages}
    for before, question in zip(talk.questions, hasty.questions, strict=True):
        assert question.answer == before.answer
        assert question.evidence
        assert {(evidence.text, evidence.when) for evidence in question.evidence} <= told
    (exchange,) = hasty.later[0].exchanges
    assert set(exchange.evidence) <= set(said(hasty))


@given(seed=st.integers())
def test_capitals_go_and_names_times_and_sums_stay(talk, seed):
    told = " ".join(said(in_haste(talk, seed=seed)))
    assert told == told.lower()
    assert all(kept in told for kept in ("benedikt", "bergen", "10:30", "1,200"))


def test_a_seed_tells_what_becomes_of_a_conversation(talk):
    assert in_haste(talk, seed=1) == in_haste(talk, seed=1)
    made = [tuple(said(in_haste(talk, seed=seed))) for seed in range(40)]
    assert len(set(made)) > 8
    joined = [texts for texts in made if len(texts) == 2]  # of the user, one for each session
    assert 5 < len(joined) < 25


def test_messages_are_not_joined_if_the_assistants_are_needed(tmp_path):
    path = written(tmp_path)
    path.write_text(TALK.replace("it is.\n", "it is.\n? What did you note? | Bergen\n", 1))
    (talk,) = read_written(path)
    assert all(len(said(in_haste(talk, seed=seed))) == 4 for seed in range(40))


def test_two_friends_without_questions_keep_their_own_messages(tmp_path):
    path = written(tmp_path)
    path.write_text(
        "# Mara (she), Joel (he)\n@ 2024-05-01 10:00\nMara: Hi!\nJoel: ?!\nMara: Bye.\n"
    )
    (talk,) = read_written(path)
    for seed in range(40):
        assert [text.strip("!.") for text in said(in_haste(talk, seed=seed))] == ["hi", "?", "bye"]


def test_an_answer_is_spelled_as_the_messages():
    def spelled(prompt, target):
        return spelled_as_shown(Example("generation", prompt, target, "a")).target

    assert spelled("moved to bergen on Sunday 2 June", " Bergen, on Sunday") == " bergen, on Sunday"
    assert spelled("its grandmas cat", " Grandma's cat, no dog") == " grandmas cat, no dog"
    assert spelled("he lives in Bergen", " Bergen") == " Bergen"


def test_a_share_of_the_conversations_becomes_examples_in_haste(tmp_path):
    path, out = written(tmp_path), tmp_path / "examples.jsonl"
    for haste, capitals in (("0", True), ("1", False)):
        run_corpus("data", str(path), "--stage", "generation", "--haste", haste, "--out", str(out))
        examples = read([out])
        assert len(examples) == 5
        assert ("Bergen" in str(examples[0].prompt)) == capitals
        assert examples[-1].target.strip() == ("Bergen" if capitals else "bergen")


def test_haste_without_annotated_files_is_refused(tmp_path):
    told = run_corpus("data", "--haste", "1", "--out", str(tmp_path / "out.jsonl"), code=2)
    assert "--haste takes annotated FILEs" in told.output
