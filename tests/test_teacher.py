"""A teacher's answers, cleaned, as training examples; and the two ways to ask one."""

import json

import pytest
from clikit import run_corpus
from cloudkit import answer, service

from corpus.teacher import at_url, taught
from edgemem.errors import CloudError, CloudRejected
from edgemem.stages import extraction
from edgemem.training.examples import Example, read

AT = "2024-05-08T10:00:00+00:00"


def said(name, text):
    return {"role": "user", "name": name, "content": text, "timestamp": AT}


class Teacher:
    """Gives the answers in turn; keeps what it was asked."""

    def __init__(self, *answers):
        self.answers, self.asked = list(answers), [""][:0]

    def __call__(self, prompt):
        self.asked.append(prompt)
        return self.answers.pop(0)


TALK = [
    said("Kim", "I adopted a cat yesterday!"),
    said("Noor", "How old is it?"),
    said("Kim", "The cat is called Miso, by the way."),
    said("Noor", "Does it sleep?"),
]


def test_facts_are_learned_under_the_experts_prompt_not_under_the_instructions():
    teacher = Teacher('{"facts": ["Kim adopted a cat on 7 May 2024."]}')
    (example,) = taught(TALK[:2], teacher, group="a", stages=["extraction"])
    assert "I adopted a cat on 7 May 2024!" in teacher.asked[0]
    assert "Greetings" in teacher.asked[0] and "Greetings" not in example.prompt
    assert example.prompt.startswith(extraction.PROMPT)
    target = '{"facts": ["Kim adopted a cat on 7 May 2024."]}'
    assert example == Example("extraction", example.prompt, target, "a", "facts")


HAS_A_CAT = '{"facts": ["Kim has a cat."]}'


@pytest.mark.parametrize(
    ("answer", "targets"),
    [
        # thoughts, fences and repetitions are cleaned away
        (f'<think>{{"facts": ["no"]}}?</think> {HAS_A_CAT}', [HAS_A_CAT]),
        ('Here you are:\n```json\n{"facts": [" Kim has  a cat. ", "", "Kim has a cat."]}\n```',
         [HAS_A_CAT]),
        # what is not strict JSON is dropped
        ("", []),
        ("Kim has a cat.", []),
        ('{"facts": "a cat"}', []),
        ('{"facts": [1]}', []),
        ('{"facts": ["a"', []),
        ("[]", []),
    ],
)  # fmt: skip
def test_an_answer_is_cleaned_and_must_be_strict_json(answer, targets):
    made = taught(TALK[:2], Teacher(answer), group="a", stages=["extraction"])
    assert [example.target for example in made] == targets


FIRST = '{"facts": ["Kim adopted a cat."]}'
SECOND = '{"facts": ["Kim adopted a cat called Miso."]}'


@pytest.mark.parametrize(
    ("answer", "events"),
    [
        ('{"id": "0", "event": "UPDATE"}', ["UPDATE"]),
        ('{"id": 7, "event": "ADD"}', ["ADD"]),
        ('{"memory": [{"id": "0", "event": "NONE"}, {"id": "1", "event": "ADD"}]}', ["ADD"]),
        ('{"memory": [{"id": "0", "event": "NONE"}]}', ["NONE"]),
        # on no memory
        ('{"id": "1", "event": "UPDATE"}', []),
        ('{"id": "0", "event": "MERGE"}', []),
        ('{"memory": []}', []),
        ("no", []),
    ],
)
def test_an_operation_is_of_the_new_fact_and_names_a_memory(answer, events):
    made = list(taught(TALK, Teacher(FIRST, SECOND, answer), group="a", stages=["update"]))
    assert [e.target for e in made] == [f'{{"event": "{event}"}}' for event in events]
    compared = "Old memory: Kim adopted a cat.\nNew fact: Kim adopted a cat called Miso."
    assert all(compared in e.prompt for e in made)


def test_answers_are_learned_over_the_teachers_memories_as_they_then_are():
    qa = [{"question": "What is the cat of Kim called?", "answer": "Miso"},
          {"question": "Which dog has Kim adopted?", "category": 5}]  # fmt: skip
    teacher = Teacher(FIRST, SECOND, '{"id": "0", "event": "UPDATE"}')
    made = list(taught(TALK, teacher, group="a", qa=qa, stages=["generation"]))
    assert [e.target for e in made] == [" Miso", " Not known"]
    assert "it was noted: Kim adopted a cat called Miso." in made[0].prompt
    assert "noted: Kim adopted a cat.\n" not in made[0].prompt  # the update took its place


# -- asked over HTTP -------------------------------------------------------------------------


@pytest.fixture
def server():
    pytest.importorskip("httpx2")
    with service() as opened:
        opened.behaviour = lambda call: call.reply(answer(HAS_A_CAT))
        yield opened


def test_a_teacher_at_an_address_is_asked_in_openais_form(server):
    assert at_url(server.base_url, "big")("What?") == HAS_A_CAT
    (call,) = server.calls
    asked = json.loads(call.body)
    assert call.head.startswith("POST /v1/chat/completions ") and asked["model"] == "big"
    assert asked["messages"] == [{"role": "user", "content": "What?"}]


def test_a_refusal_and_an_address_without_a_server_are_our_errors(server):
    server.behaviour = lambda call: call.reply(b"{}", 404)
    with pytest.raises(CloudRejected, match="no such model"):
        at_url(server.base_url, "big")("What?")
    with pytest.raises(CloudError, match="The teacher big at"):
        at_url("http://127.0.0.1:1/v1", "big")("What?")


def test_the_command_reads_a_chat_log_with_a_teacher(server, tmp_path):
    log, out = tmp_path / "log.txt", tmp_path / "out.jsonl"
    log.write_text("[2024-05-01 10:00] Kim: I have a cat.\n[2024-05-01 10:01] Noor: Is it nice?\n")
    teacher = ["--teacher-url", server.base_url, "--teacher-model", "big"]
    run_corpus("data", str(log), "--out", str(out), *teacher)
    assert [(e.stage, e.group, e.kind) for e in read([out])] == [("extraction", "log", "facts")]


@pytest.mark.parametrize("extra", [["--teacher", "x.gguf"], ["--teacher-url", "http://x"]])
def test_a_teacher_without_files_is_a_mistake(extra, tmp_path):
    told = run_corpus("data", "--out", str(tmp_path / "o"), *extra, code=2)
    assert "A teacher reads FILEs" in told.stderr


def test_the_command_invents_conversations_without_one(tmp_path):
    out = tmp_path / "out.jsonl"
    told = run_corpus("data", "--conversations", "1", "--stage", "update", "--out", str(out))
    assert {e.stage for e in read([out])} == {"update"}
    assert f"{len(read([out]))} examples" in told.stderr
