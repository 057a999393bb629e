"""`edgemem chat`: slash commands, pipes, what was typed."""

import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from unittest.mock import Mock

import pytest
from clikit import invoke
from cloudkit import service
from fake_engine import FakeEngine
from hypothesis import given
from hypothesis import strategies as st
from memorykit import texts

import edgemem
from edgemem.cli import chatting, typed
from edgemem.cli.chatting import budget_lines, status_parts
from edgemem.config import set_value
from edgemem.errors import ModelNotFound
from edgemem.memory import Memory
from edgemem.runtime.engine import Engine
from edgemem.stages.intent import Intent

pytestmark = pytest.mark.models

CAT = "My cat is called Tom."
ASKED = "What is my cat called?"
CHITCHAT = "Good morning to you!"


@pytest.fixture
def engine():
    return FakeEngine(pieces=("It is ", "Tom", "."), facts={CAT: "{}'s cat is called Tom"})


@pytest.fixture(autouse=True)
def _model(home, stand_in, engine):
    stand_in(engine)


def chat(*lines, args=(), code=0):
    return invoke("chat", *args, input="".join(f"{line}\n" for line in lines), code=code)


def remember(home, *texts):
    with Memory(home / "memory.db") as memory:
        changes = memory.add(list(texts), user_id="default", infer=False)
        return [change.id for change in changes]


def memories(home):
    with Memory(home / "memory.db") as memory:
        return texts(memory.get_all(user_id="default"))


def test_piped_in_only_answers_are_on_stdout(home):
    result = chat(CAT, "", ASKED)
    assert result.stdout == "It is Tom.\nIt is Tom.\n"
    assert chatting.PROMPT not in result.stderr
    assert "  + User's cat is called Tom\n" in result.stderr
    assert "User's cat is called Tom" in memories(home)
    assert not typed.history_file().exists()


def test_json_gives_one_line_for_each_answer_and_each_memory_of_a_list(home):
    (tom,) = remember(home, CAT)
    lines = (ASKED, "/why", "/memories cat", "/forget cat", "1", "n", "/help")
    answer, *listed = map(json.loads, chat(*lines, args=("--json",)).stdout.splitlines())
    assert answer["reply"] == "It is Tom." and answer["found"]
    assert answer["results"] == [listed[0]] and listed[0]["memory"] == CAT
    assert answer["timings"]["recall_ms"] > 0
    assert [item["id"] for item in listed] == [tom, tom, tom]
    assert listed[0]["score"] > 0 and listed[0]["parts"]


def test_where_nothing_can_be_written_a_question_is_answered_and_news_are_refused(
    home, monkeypatch
):
    remember(home, CAT)
    monkeypatch.setattr(os, "access", lambda _, mode: mode != os.W_OK)
    result = chat("My dog is called Rex.", ASKED, code=1)
    assert result.stdout == "It is Tom.\n"
    refused, told = result.stderr.splitlines()
    assert refused.startswith("Error: ") and "cannot be written" in refused
    assert told.startswith("  (not remembered: ") and "cannot be written" in told
    asks_and_tells = Intent("recall", tells=True)
    monkeypatch.setattr("edgemem.pipeline.plan.intent", lambda *_, **__: asks_and_tells)
    both = chat(f"{ASKED} My dog is called Rex.", code=1)
    assert both.stdout == "" and "cannot be written" in both.stderr
    assert memories(home) == [CAT]


def test_an_empty_list_says_whose_it_is(home):
    result = chat("/memories", "/memories cat", args=("--user-id", "bo"))
    assert "No memories of user_id 'bo'.\n" in result.stderr
    assert "Nothing found for user_id 'bo'.\n" in result.stderr
    remember(home, "The sky is blue.")
    assert "No facts of user_id 'default'.\nand 1 turn as they" in chat("/memories").stderr


def test_an_answer_cannot_steer_the_terminal(engine):
    engine.pieces = ("\x1b[2J", "one\ttwo\nthree\x07")
    said = chat("What is the capital of Portugal?").stdout
    assert said.startswith("\ufffd[2Jone\ttwo\nthree\ufffd\n")


def test_why_shows_the_memories_of_the_last_answer_with_their_scores(home):
    remember(home, CAT, "The sky over Lisbon is blue.")
    told = chat("/why", ASKED, "/why")
    answer, why, *_ = told.stdout.splitlines()
    number, score, *_ = why.split()
    assert (answer, number) == ("It is Tom.", "1.") and 0 < float(score) <= 1
    assert why.endswith(CAT) and "Nothing has been answered yet." in told.stderr


def test_why_shows_nothing_of_an_earlier_answer_when_the_last_one_failed_or_recalled_nothing(
    home,
):
    remember(home, CAT)
    result = chat(ASKED, "bad \x00 text", "/why", CHITCHAT, "/why", code=1)
    assert result.stdout == "It is Tom.\nIt is Tom.\n"  # an error does not end the chat
    assert result.stderr.startswith("Error: ")
    assert "Nothing has been answered yet." in result.stderr
    assert "The last answer was made from no memory." in result.stderr


def test_memories_lists_facts_and_finds_words(home):
    remember(home, "The sky is blue.")
    result = chat(CAT, "/memories", "/memories sky")
    answer, fact, found, *_ = result.stdout.splitlines()
    assert answer == "It is Tom."
    assert fact.startswith("1. ") and fact.endswith("User's cat is called Tom")
    assert found.endswith("The sky is blue.")
    assert "as they were said" in result.stderr


def rows(home):
    """The text of every turn and memory in the store, deleted ones too, by id."""
    with Memory(home / "memory.db") as memory:
        found = list(memory.store.export_rows())
    return {
        row["id"]: row["content"] if row["type"] == "turn" else row["memory"]
        for row in found
        if row["type"] in ("turn", "memory")
    }


def test_forget_shows_all_that_goes_asks_and_erases(home):
    for line in (CAT, "What is my  cat called?", "The sky is blue."):
        typed.remember_typed(line)
    chat(CAT, ASKED)
    with Memory(home / "memory.db") as memory:  # a deleted memory of the same turn
        fact = next(m for m in memory.get_all(user_id="default") if m.kind == "fact")
        memory.delete(fact.id)
    before = rows(home)
    result = chat("/forget Tom", "1", "yes")
    gone = {text for id, text in before.items() if id not in rows(home)}
    assert gone == {
        CAT, "User's cat is called Tom", ASKED, "It is Tom."
    }  # fmt: skip
    shown = result.stderr.partition("This would go for good:\n")[2].partition("Erase it?")[0]
    for text in gone:
        assert text in shown
    assert "  said assistant: It is Tom.\n" in shown
    assert "memories erased." in result.stderr or "1 memory erased." in result.stderr
    assert typed.history_file().read_text() == "The sky is blue.\n"


def test_forget_takes_no_id_of_somebody_else(home):
    with Memory(home / "memory.db") as memory:
        toms = memory.add("The party is on Friday.", user_id="tom", infer=False)[0].id
    result = chat(f"/forget {toms}", "y")
    assert "Friday" not in result.stdout + result.stderr
    with Memory(home / "memory.db") as memory:
        assert memory.get(toms) is not None


def test_forget_tells_of_all_that_it_does_not_list(home):
    with Memory(home / "memory.db") as memory:
        said = [f"Tom was here on day {n}." for n in range(8)]
        memory.add(said, user_id="default", infer=False)
        memory.add(said, user_id="bo d", infer=False)
    shown = chat("/forget Tom", "").stderr
    assert "3 memories more: edgemem erase --matching Tom\n" in shown
    shown = chat("/forget Tom", "", args=("--user-id", "bo d")).stderr
    assert "3 memories more: edgemem erase --matching Tom --user-id 'bo d'\n" in shown


def test_the_command_that_forget_tells_of_is_quoted_for_a_shell_and_names_the_store(
    home,
):
    other, words = home / "my other.db", "it's Tom's $(id) day"
    with Memory(other) as memory:
        said = [f"I think {words} number {n}." for n in range(8)]
        memory.add(said, user_id="default", infer=False)
    shown = chat(f"/forget {words}", "", args=("--db", str(other))).stderr
    command = shown.partition("3 memories more: ")[2].partition("\n")[0]
    assert shlex.split(command) == [
        *("edgemem", "erase", "--matching", words), "--db", str(other)
    ]  # fmt: skip
    said = [f"Tom was here on day {n}." for n in range(8)]
    shown = chat(*said, "/forget Tom", "", args=("--db", ":memory:")).stderr
    assert "memories more\n" in shown  # no other command reads a store in memory


def test_forget_lists_what_has_the_words_or_is_near_and_nothing_far_below(home):
    remember(home, "The new sofa, 899 pounds.", "My dentist card", "The sofa is blue.", "first")
    shown = chat("/forget sofa", "").stdout
    assert "new sofa" in shown and "sofa is blue" in shown
    assert "dentist" not in shown and "first" not in shown
    assert "new sofa" in chat("/forget couch", "").stdout  # nothing has the word


def test_what_was_erased_is_shown_no_more_to_anyone(home, engine):
    lines = ("The password is xyzzy.", "I like the sea.", "/forget password", "1", "y")
    result = chat("What is the password?", *lines, "/why", "What is the capital of Portugal?")
    assert "Nothing has been answered yet." in result.stderr
    shown = [str(prompt) for stage, prompt in engine.prompts if stage == "talk"]
    assert "I like the sea." in shown[-1]
    assert not any("password" in each or "xyzzy" in each for each in shown)


def test_numbers_of_a_list_count_no_more_after_an_erase(home):
    remember(home, "The password is xyzzy.", "The passport is red.")
    result = chat("/forget password", "1", "y", "/forget 1", "")
    assert "1 memory erased." in result.stderr
    assert result.stderr.count("Which of these") + result.stderr.count("Nothing found") == 2
    assert memories(home) == ["The passport is red."]


@pytest.mark.parametrize("answers", [("1", "n"), ("",), ("1",), ("1", ""), ()])
def test_forget_without_a_yes_erases_nothing(home, answers):
    remember(home, "The password is xyzzy.")
    result = chat("/forget password", *answers)
    assert "Nothing was erased." in result.stderr
    assert memories(home) == ["The password is xyzzy."]


def test_forget_takes_an_id_or_numbers_of_the_last_list(home):
    first, *_ = remember(home, "alpha is one", "beta is two", "gamma is three")
    chat(f"/forget {first}", "y")
    assert memories(home) == ["beta is two", "gamma is three"]
    wrong = chat("/memories is", "/forget 9", code=1)
    assert "'9' is no number of the last list, which goes from 1 to 2" in wrong.stderr
    chat("/memories is", "/forget 1, 2", "y")
    assert memories(home) == []


def budget_of():
    return dict(json.loads(chat("/budget", args=("--json",)).stdout))


def test_a_budget_says_what_is_held_what_is_turned_off_and_how_to_set_limits(
    monkeypatch,
):
    shown = chat("/budget").stdout.splitlines()
    assert shown[0] == "memory limit  none; `edgemem config set memory_limit 1GB` sets one"
    assert shown[1].startswith("parts held    weights 90.0 MB, kv 47.0 MB")
    assert shown[-1] == "cloud         none is set up; nothing is sent, nothing is spent"
    found = budget_of()
    assert found["memory_limit"] is None and found["cloud"] is None and found["notes"] == []
    assert found["parts_mb"]["kv"] == 47.0 and "index" in found["parts_mb"]
    if found["rss_mb"] is not None:
        assert re.fullmatch(r"the process   [1-9][\d.]* MB", shown[2])
    monkeypatch.setattr(FakeEngine, "notes", ("It does not think.", "It forgets."))
    assert budget_of()["notes"] == ["It does not think.", "It forgets."]
    lines = [line for line in chat("/budget").stdout.splitlines() if line not in shown]
    assert lines[-2:] == ["the model     It does not think.", "the model     It forgets."]


def test_a_budget_says_what_was_turned_down_for_the_memory_limit():
    set_value("memory_limit", "1GB")
    assert "turned down   nothing" in chat("/budget").stdout.splitlines()
    limit = budget_of()["memory_limit"]
    assert limit["limit_mb"] == 1000.0 and limit["turned_down"] == []
    set_value("memory_limit", str(int(limit["predicted_mb"] * 1e6) - 5_000_000))
    less = budget_of()["memory_limit"]
    assert less["turned_down"] and less["predicted_mb"] <= less["limit_mb"]
    first, second, *_ = chat("/budget").stdout.splitlines()
    foretold = f"{less['predicted_mb']} MB of it are foretold to be used"
    assert first == f"memory limit  {less['limit_mb']} MB; {foretold}"
    assert second == f"turned down   {', '.join(less['turned_down'])}"


def test_a_budget_says_what_is_left_of_the_clouds():
    pytest.importorskip("httpx2")
    with service() as cloud:
        set_value("cloud.base_url", cloud.base_url)
        set_value("cloud.model", "gpt-4o-mini")
        *_, model, budget = chat("/budget").stdout.splitlines()
        assert model == "cloud         gpt-4o-mini; 0.000000 spent this month"
        assert budget.startswith("its budget    none; `edgemem config set cloud.monthly_budget 5`")
        assert budget_of()["cloud"]["left_this_month"] is None
        set_value("cloud.monthly_budget", "5")
        *_, model, budget = chat(f"/cloud {CHITCHAT}", "/budget").stdout.splitlines()
        assert len(cloud.calls) == 1
    found = budget_of()["cloud"]
    spent, left = found["spent_this_month"], found["left_this_month"]
    assert 0 < spent < 1 and spent + left == pytest.approx(5)
    assert model == f"cloud         gpt-4o-mini; {spent:.6f} spent this month"
    assert budget == f"its budget    5 a month; {left:.6f} of it is left"
    set_value("cloud.monthly_budget", "0")
    assert budget_of()["cloud"]["left_this_month"] == 0


def test_a_budget_fits_eighty_columns():
    parts = {f"part{number}": 1234.5 for number in range(9)}
    plan = {"limit_mb": 1e6, "predicted_mb": 1e6, "turned_down": ["n_ctx 1024"] * 9}
    cloud = {"model": "m" * 40, "monthly_budget": 1e6, "spent_this_month": 1.0}
    notes = ["The model is told not to think before it answers: " + "why " * 20]
    found = {"memory_limit": plan, "parts_mb": parts, "rss_mb": 1.0, "notes": notes}
    text = budget_lines({**found, "cloud": {**cloud, "left_this_month": 999999.0}})
    assert max(len(line) for row in text for line in row.splitlines()) <= 80
    assert len(text) == 7 and " ".join(text[2].split()) == " ".join(
        ["parts held", ", ".join(f"part{number} 1234.5 MB" for number in range(9))]
    )


def test_a_status_says_speed_memories_and_budgets(home):
    scope = {"user_id": "default"}
    with Memory(home / "memory.db") as memory:
        assert status_parts(memory, scope, None) == ("0 memories",)
        memory.add(CAT, infer="later", **scope)
        memory.add("The sky is blue.", infer=False, user_id="bo")
        assert status_parts(memory, scope, 49.6) == ("1 memory, 1 pending", "50 tokens/s")
    set_value("memory_limit", "1GB")
    set_value("cloud.base_url", "http://localhost:9/v1")
    set_value("cloud.model", "gpt-4o-mini")
    with Memory(home / "memory.db") as memory:
        parts = status_parts(memory, {"user_id": "bo"}, None)
        assert parts == ("1 memory, 1 pending", "memory limit 1000 MB", "cloud: 0.00 spent")
    set_value("cloud.monthly_budget", "5")
    with Memory(home / "memory.db") as memory:
        assert status_parts(memory, scope, None)[-1] == "cloud: 5.00 left"
    # What a store that is closed refuses to tell is left out.
    assert status_parts(memory, scope, 50.0) == ("50 tokens/s", "memory limit 1000 MB")


def test_commands_that_are_none_are_named_and_the_chat_goes_on():
    result = chat("/dance", "/forget", CHITCHAT, code=1)
    assert "Error: There is no command '/dance'. Allowed: /memories, /why" in result.stderr
    assert "Error: /forget needs words" in result.stderr
    assert result.stdout == "It is Tom.\n"


def test_help_lists_every_command_and_quit_ends_the_chat():
    result = chat("/help", "/quit", CHITCHAT)
    assert result.stdout == "" and "/forget WORDS|N" in result.stderr
    described = [line.split()[0] for line in chatting.HELP.splitlines() if line.startswith("/")]
    assert described == list(chatting.MEANINGS)


def test_a_missing_model_ends_the_chat_at_once(monkeypatch):
    def missing(*_a, **_k):
        raise ModelNotFound("no such model; install it")

    monkeypatch.setattr(Engine, "load", classmethod(missing))
    assert chat("Hello", "Hello", code=1).stderr == "Error: no such model; install it\n"


def test_ctrl_c_stops_the_answer_and_what_was_said_is_kept(home, engine):
    def interrupt():
        engine.between = lambda: None
        raise KeyboardInterrupt

    engine.between = interrupt
    result = chat(CAT, CHITCHAT)
    assert result.stdout == "It is \nIt is Tom.\n"
    assert "(stopped)" in result.stderr
    assert CAT in memories(home)


def test_ctrl_c_before_an_answer_says_whether_the_message_is_kept(home, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("edgemem.chat.plan_answer", interrupt)
    forget = "Forget what I said about my dog."
    result = chat(CAT, forget)
    kept, waits, lost = result.stderr.splitlines()
    assert (kept, lost) == ("(stopped; what you said is kept)", "(stopped; not kept)")
    assert waits.startswith("1 piece of work left for later")
    assert memories(home) == [CAT]


# -- in a pipe -----------------------------------------------------------------------------------

CHILD = """
import sys
from fake_engine import FakeEngine
from edgemem.cli import main
from edgemem.runtime.engine import Engine
engine = FakeEngine(("It is ", "Tom."), {"My cat is called Tom.": "{}'s cat is called Tom"})
Engine.load = classmethod(lambda *a, **k: engine)
try:
    main()
finally:
    for name in ("prompt_toolkit", "asyncio", "readline"):
        assert name not in sys.modules, name
"""


def piped(command, input=""):
    """What a shell's command does, in which "$0" -c "$1" is edgemem with a stand-in for a model."""
    places = [str(Path(edgemem.__file__).parent.parent), str(Path(__file__).parent)]
    return subprocess.run(
        ["sh", "-c", command, sys.executable, CHILD],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(places)},
        input=input,
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.mark.skipif(sys.platform == "win32", reason="needs a shell that closes streams")
def test_a_chat_without_an_input_ends_at_once(home):
    done = piped('"$0" -c "$1" chat <&-')
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.skipif(sys.platform == "win32", reason="needs a shell")
def test_a_pipe_sees_no_prompt_and_no_status_and_loads_nothing_to_draw_them(home):
    lines = [CAT, "/forget\tcat", "/forget nonsense", "1", "no", "/cloud", ""]
    done = piped('"$0" -c "$1" chat', "\n".join(lines))
    assert done.returncode == 1
    said, listed = done.stdout.splitlines()
    assert said == "It is Tom." and listed.startswith("1. ")
    assert done.stderr.splitlines() == [
        "  + User's cat is called Tom",
        "Error: There is no command '/forget\\tcat'. Allowed: /memories, /why, /forget, /image, "
        "/cloud, /budget, /help, /quit.",
        "Which of these (numbers; Enter for none)? ",
        "This would go for good:",
        "  memory My cat is called Tom.",
        "  memory User's cat is called Tom",
        "  said user: My cat is called Tom.",
        "  said assistant: It is Tom.",
        "  (What chats asked and answered goes too, as it may quote the rest.)",
        "Erase it? [y/N] ",
        "Nothing was erased.",
        "Error: the cloud is off, and nothing is sent; to switch it on: `edgemem config set "
        "cloud.base_url https://api.openai.com/v1`, `edgemem config set cloud.model "
        "gpt-4o-mini`, `edgemem config set cloud.api_key_env OPENAI_API_KEY`",
    ]
    assert not typed.history_file().exists()


# -- what was typed --------------------------------------------------------------------------------


def test_what_was_typed_comes_back_and_stays_bounded(home):
    for number in range(2 * typed.MOST_LINES + 1):
        typed.remember_typed(f"line {number}")
    before = typed.typed_before()
    assert len(before) == typed.MOST_LINES
    assert before[-1] == f"line {2 * typed.MOST_LINES}"
    assert len(typed.history_file().read_text().splitlines()) == typed.MOST_LINES
    typed.forget_typed([before[-1]])
    assert typed.typed_before() == before[:-1]


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1), max_size=5))
def test_an_input_of_several_lines_comes_back_as_one(texts):
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("EDGEMEM_HOME", folder)
        for text in texts:
            typed.remember_typed(text)
        assert typed.typed_before() == ["\n".join(text.splitlines()) for text in texts]
        typed.forget_typed(texts[:1])
        gone = " ".join(texts[0].split()) if texts else ""
        lines = [" ".join(text.split()) for text in texts]
        kept = [" ".join(text.split()) for text in typed.typed_before()]
        assert gone == "" or gone not in kept
        # Only what holds it is gone, as it was typed or without its quotes.
        bare = [re.sub(r"[\s'\"\\]", "", line) for line in (*lines, gone)]
        assert [line for line, b in zip(lines, bare, strict=False) if bare[-1] not in b] == [
            line for line in kept if bare[-1] not in re.sub(r"[\s'\"\\]", "", line)
        ]


@pytest.mark.parametrize(
    ("typed", "file", "words"),
    [
        ("bike.jpg It's Ana's bike", "bike.jpg", "It's Ana's bike"),
        (r"C:\Users\Ana\bike.jpg My new bike.", r"C:\Users\Ana\bike.jpg", "My new bike."),
        (r'"C:\My Pictures\bike.jpg" new', r"C:\My Pictures\bike.jpg", "new"),
        (r"\\nas\photos\bike.jpg", r"\\nas\photos\bike.jpg", ""),
        (r"My\ Pictures/a\(1\).jpg now", "My Pictures/a(1).jpg", "now"),
        ("'my bike.jpg'", "my bike.jpg", ""),
    ],
)
def test_behind_image_stand_a_path_of_any_system_and_words_as_they_are_typed(typed, file, words):
    session = Mock(scope={})
    chatting._Session.image(session, typed)
    said = session.answer.call_args or session.memory.add.call_args
    assert said.kwargs["images"] == [file]
    assert (said.args or ("",))[0] == words


def test_what_was_typed_behind_a_command_is_forgotten_with_what_it_said(home):
    for text in ("/cloud The password\nis xyzzy.", "The password is xyzzy.", "/why", "xyzzy?"):
        typed.remember_typed(text)
    typed.remember_typed("/image x.png The password is xyzzy.")
    typed.remember_typed("You said: “The password is xyzzy.”")
    typed.remember_typed("The password is xyzzy.com")
    typed.forget_typed(["The password is xyzzy.", " "])
    assert typed.typed_before() == ["/why", "xyzzy?", "The password is xyzzy.com"]


def test_a_command_that_led_to_an_erase_is_forgotten_with_what_it_erased(home):
    remember(home, CAT)
    for line in (CAT, "/forget Tom", "/why"):
        typed.remember_typed(line)
    chat("/forget Tom", "1", "n")
    assert typed.typed_before() == [CAT, "/forget Tom", "/why"]
    chat("/forget Tom", "1", "y")
    assert typed.typed_before() == ["/why"]


def test_an_erase_of_all_that_has_the_words_forgets_the_searches_for_them(home):
    remember(home, CAT, "Tom is ill.")
    typed.remember_typed("/memories tom")
    chat("/forget Tom", "1", "y")
    assert typed.typed_before() == ["/memories tom"]  # something still has the words
    chat("/forget Tom", "1", "y")
    assert typed.typed_before() == []


@pytest.mark.skipif(sys.platform == "win32", reason="needs hard links")
def test_a_forgotten_line_is_overwritten_where_it_lay(home, monkeypatch):
    typed.remember_typed("The password is xyzzy.")
    typed.remember_typed("Hello")
    size = typed.history_file().stat().st_size
    link = home / "link"
    os.link(typed.history_file(), link)
    on_the_disk: list[bytes] = []
    monkeypatch.setattr(
        typed.os, "fsync", lambda _: on_the_disk.append(typed.history_file().read_bytes())
    )
    with open(link, "rb") as kept:
        typed.forget_typed(["The password is xyzzy."])
        assert kept.read() == link.read_bytes() == b"Hello\n"
    # Cut off only after its bytes are gone from the disk.
    assert on_the_disk == [b"Hello\n".ljust(size, b"\n")]
