"""`edgemem chat`: slash commands, pipes, the keyboard."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from fake_engine import FakeEngine

import edgemem
from edgemem.cli import chatting, cli, typed
from edgemem.errors import ModelNotFound
from edgemem.memory import Memory
from edgemem.runtime.embedder import Embedder
from edgemem.runtime.engine import Engine

pytestmark = pytest.mark.models

Chat = Callable[..., Result]


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine(
        pieces=("It is ", "Tom", "."), facts={"My cat is called Tom.": "{}'s cat is called Tom"}
    )


@pytest.fixture(autouse=True)
def home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, embedder: Embedder, engine: FakeEngine
) -> Iterator[Path]:
    monkeypatch.setenv("EDGEMEM_HOME", str(tmp_path))
    monkeypatch.setattr(Embedder, "load", classmethod(lambda *_a, **_k: embedder))
    monkeypatch.setattr(Engine, "load", classmethod(lambda *_a, **_k: engine))
    yield tmp_path


@pytest.fixture
def chat() -> Chat:
    def invoke(*lines: str, args: tuple[str, ...] = (), code: int = 0) -> Result:
        text = "".join(f"{line}\n" for line in lines)
        result = CliRunner().invoke(cli, ["chat", *args], input=text)
        assert result.exit_code == code, (result.stdout, result.stderr, result.exception)
        return result

    return invoke


def remember(home: Path, *texts: str) -> list[str]:
    with Memory(home / "memory.db") as memory:
        changes = memory.add(list(texts), user_id="default", infer=False)
        return [change.id for change in changes]


def memories(home: Path) -> list[str]:
    with Memory(home / "memory.db") as memory:
        return [item.memory for item in memory.get_all(user_id="default")]


def test_piped_in_only_answers_are_on_stdout(chat: Chat, home: Path) -> None:
    result = chat("My cat is called Tom.", "", "What is my cat called?")
    assert result.stdout == "It is Tom.\nIt is Tom.\n"
    assert chatting.PROMPT not in result.stderr
    assert "  + User's cat is called Tom\n" in result.stderr
    assert "User's cat is called Tom" in memories(home)
    assert not typed.history_file().exists()


def test_json_gives_one_line_for_each_answer(chat: Chat, home: Path) -> None:
    remember(home, "My cat is called Tom.")
    line = chat("What is my cat called?", args=("--json",)).stdout
    assert line.count("\n") == 1
    answer = json.loads(line)
    assert answer["reply"] == "It is Tom." and answer["found"]
    assert answer["results"][0]["memory"] == "My cat is called Tom."
    assert answer["timings"]["recall_ms"] > 0


def test_json_gives_one_line_for_each_memory_of_a_list(chat: Chat, home: Path) -> None:
    (tom,) = remember(home, "My cat is called Tom.")
    lines = ("What is my cat called?", "/why", "/memories cat", "/forget cat", "1", "n", "/help")
    answer, *listed = map(json.loads, chat(*lines, args=("--json",)).stdout.splitlines())
    assert answer["results"] == [listed[0]]
    assert [item["id"] for item in listed] == [tom, tom, tom]
    assert listed[0]["score"] > 0 and listed[0]["parts"]


def test_an_empty_list_says_whose_it_is(chat: Chat, home: Path) -> None:
    result = chat("/memories", "/memories cat", args=("--user-id", "bo"))
    assert "No memories of user_id 'bo'.\n" in result.stderr
    assert "Nothing found for user_id 'bo'.\n" in result.stderr
    remember(home, "The sky is blue.")
    assert "No facts of user_id 'default'.\nand 1 turn as they" in chat("/memories").stderr


def test_an_answer_cannot_steer_the_terminal(chat: Chat, engine: FakeEngine) -> None:
    engine.pieces = ("\x1b[2J", "one\ttwo\nthree\x07")
    assert chat("Good morning to you!").stdout == "\ufffd[2Jone\ttwo\nthree\ufffd\n"


def test_why_shows_the_memories_of_the_last_answer_with_their_scores(
    chat: Chat, home: Path
) -> None:
    remember(home, "My cat is called Tom.", "The sky over Lisbon is blue.")
    lines = chat("/why", "What is my cat called?", "/why").stdout.splitlines()
    assert lines[0] == "It is Tom."
    number, score, *_ = lines[1].split()
    assert number == "1." and 0 < float(score) <= 1
    assert lines[1].endswith("My cat is called Tom.")


def test_why_shows_nothing_of_an_earlier_answer_when_the_last_one_failed(
    chat: Chat, home: Path
) -> None:
    remember(home, "My cat is called Tom.")
    result = chat("What is my cat called?", "bad \x00 text", "/why", code=1)
    assert result.stdout == "It is Tom.\n"
    assert "Nothing has been answered yet." in result.stderr


def test_why_says_so_when_nothing_was_recalled(chat: Chat) -> None:
    result = chat("/why", "Good morning to you!", "/why")
    assert "Nothing has been answered yet." in result.stderr
    assert "The last answer was made from no memory." in result.stderr


def test_memories_lists_facts_and_finds_words(chat: Chat, home: Path) -> None:
    remember(home, "The sky is blue.")
    result = chat("My cat is called Tom.", "/memories", "/memories sky")
    answer, fact, found, *_ = result.stdout.splitlines()
    assert answer == "It is Tom."
    assert fact.startswith("1. ") and fact.endswith("User's cat is called Tom")
    assert found.endswith("The sky is blue.")
    assert "as they were said" in result.stderr


def test_forget_shows_what_goes_asks_and_erases(chat: Chat, home: Path) -> None:
    remember(home, "The password is xyzzy.", "The sky is blue.")
    typed.remember_typed("The password is xyzzy.")
    result = chat("/forget password", "1", "yes")
    assert result.stdout.splitlines()[0].endswith("The password is xyzzy.")
    assert "This would go for good:" in result.stderr
    assert "said user: The password is xyzzy." in result.stderr
    assert "1 memory erased." in result.stderr
    assert memories(home) == ["The sky is blue."]
    assert typed.history_file().read_text() == ""


def rows(home: Path) -> dict[str, str]:
    """The text of every turn and memory in the store, deleted ones too, by id."""
    with Memory(home / "memory.db") as memory:
        found = list(memory.store.export_rows())
    return {
        row["id"]: row["content"] if row["type"] == "turn" else row["memory"]
        for row in found
        if row["type"] in ("turn", "memory")
    }


def test_all_that_forget_takes_was_shown_first(chat: Chat, home: Path) -> None:
    for line in ("My cat is called Tom.", "What is my  cat called?", "The sky is blue."):
        typed.remember_typed(line)
    chat("My cat is called Tom.", "What is my cat called?")
    with Memory(home / "memory.db") as memory:  # a deleted memory of the same turn
        fact = next(m for m in memory.get_all(user_id="default") if m.kind == "fact")
        memory.delete(fact.id)
    before = rows(home)
    result = chat("/forget Tom", "1", "y")
    gone = {text for id, text in before.items() if id not in rows(home)}
    assert gone == {
        "My cat is called Tom.", "User's cat is called Tom", "What is my cat called?", "It is Tom."
    }  # fmt: skip
    shown = result.stderr.partition("This would go for good:\n")[2].partition("Erase it?")[0]
    for text in gone:
        assert text in shown
    assert "  said assistant: It is Tom.\n" in shown
    assert typed.history_file().read_text() == "The sky is blue.\n"


def test_numbers_of_a_list_count_no_more_after_an_erase(chat: Chat, home: Path) -> None:
    remember(home, "The password is xyzzy.", "The passport is red.")
    result = chat("/forget password", "1", "y", "/forget 1", "")
    assert "1 memory erased." in result.stderr
    assert result.stderr.count("Which of these") + result.stderr.count("Nothing found") == 2
    assert memories(home) == ["The passport is red."]


@pytest.mark.parametrize("answers", [("1", "n"), ("",), ("1",), ("1", ""), ()])
def test_forget_without_a_yes_erases_nothing(
    chat: Chat, home: Path, answers: tuple[str, ...]
) -> None:
    remember(home, "The password is xyzzy.")
    result = chat("/forget password", *answers)
    assert "Nothing was erased." in result.stderr
    assert memories(home) == ["The password is xyzzy."]


def test_forget_takes_an_id_or_numbers_of_the_last_list(chat: Chat, home: Path) -> None:
    first, *_ = remember(home, "alpha is one", "beta is two", "gamma is three")
    chat(f"/forget {first}", "y")
    assert memories(home) == ["beta is two", "gamma is three"]
    wrong = chat("/memories is", "/forget 9", code=1)
    assert "'9' is no number of the last list, which goes from 1 to 2" in wrong.stderr
    chat("/memories is", "/forget 1, 2", "y")
    assert memories(home) == []


def test_commands_that_are_none_are_named_and_the_chat_goes_on(chat: Chat) -> None:
    result = chat("/dance", "/forget", "Good morning to you!", code=1)
    assert "Error: There is no command '/dance'. Allowed: /memories, /why" in result.stderr
    assert "Error: /forget needs words" in result.stderr
    assert result.stdout == "It is Tom.\n"


def test_help_and_quit(chat: Chat) -> None:
    result = chat("/help", "/quit", "Good morning to you!")
    assert result.stdout == "" and "/forget WORDS|N" in result.stderr


def test_a_missing_model_ends_the_chat_at_once(chat: Chat, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_a: Any, **_k: Any) -> None:
        raise ModelNotFound("no such model; install it")

    monkeypatch.setattr(Engine, "load", classmethod(missing))
    assert chat("Hello", "Hello", code=1).stderr == "Error: no such model; install it\n"


def test_an_error_in_one_answer_does_not_end_the_chat(
    chat: Chat, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = chat("bad \x00 text", "Good morning to you!", code=1)
    assert result.stderr.startswith("Error: ") and result.stdout == "It is Tom.\n"


def test_ctrl_c_stops_the_answer_and_what_was_said_is_kept(
    chat: Chat, home: Path, engine: FakeEngine
) -> None:
    def interrupt() -> None:
        engine.between = lambda: None
        raise KeyboardInterrupt

    engine.between = interrupt
    result = chat("My cat is called Tom.", "Good morning to you!")
    assert result.stdout == "It is \nIt is Tom.\n"
    assert "(stopped)" in result.stderr
    assert "My cat is called Tom." in memories(home)


# -- at a terminal -------------------------------------------------------------------------------

CHILD = """
import signal
import time
# A test run in the background of a shell ignores Ctrl-C, and its children with it.
signal.signal(signal.SIGINT, signal.default_int_handler)
from fake_engine import FakeEngine
from edgemem.cli import main
from edgemem.runtime.engine import Engine
engine = FakeEngine(("first", "second"), between=lambda: time.sleep(600))
Engine.load = classmethod(lambda *a, **k: engine)
main()
"""


class _Screen:
    """What a pseudo-terminal shows, read piece by piece."""

    def __init__(self, master: int) -> None:
        self.master, self.unread = master, ""

    def wait_for(self, wanted: str) -> None:
        """Read up to and with `wanted`."""
        deadline = time.monotonic() + 60
        while wanted not in self.unread:
            assert time.monotonic() < deadline, self.unread
            if select.select([self.master], [], [], 1.0)[0]:
                try:
                    self.unread += os.read(self.master, 4096).decode("utf-8", "replace")
                except OSError as exc:  # the other end has closed
                    raise AssertionError(self.unread) from exc
        self.unread = self.unread.partition(wanted)[2]


@pytest.mark.skipif(sys.platform == "win32", reason="needs a shell that closes streams")
def test_a_chat_without_an_input_ends_at_once(home: Path) -> None:
    places = [str(Path(edgemem.__file__).parent.parent), str(Path(__file__).parent)]
    done = subprocess.run(
        ["sh", "-c", '"$0" -c "$1" chat <&-', sys.executable, CHILD],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(places)},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
def test_at_a_terminal_ctrl_c_stops_an_answer_and_ctrl_d_leaves(home: Path) -> None:
    import pty

    master, slave = pty.openpty()
    places = [str(Path(edgemem.__file__).parent.parent), str(Path(__file__).parent)]
    process = subprocess.Popen(
        [sys.executable, "-c", CHILD, "chat"],
        stdin=slave,
        stdout=slave,
        stderr=slave,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(places), "TERM": "dumb"}
        | {"EDGEMEM_TUNED": "off"},
        start_new_session=True,
    )
    os.close(slave)
    screen = _Screen(master)
    try:
        screen.wait_for(chatting.PROMPT)
        os.write(master, b"Good morning to you!\n")
        screen.wait_for("first")
        process.send_signal(signal.SIGINT)
        screen.wait_for("(stopped)")
        screen.wait_for(chatting.PROMPT)
        os.write(master, b"/help\n")
        screen.wait_for("/forget WORDS|N")
        screen.wait_for(chatting.PROMPT)
        os.write(master, b"\x04")
        assert process.wait(timeout=60) == 0
    finally:
        process.kill()
        process.wait()
        os.close(master)
    assert typed.history_file().read_text() == "Good morning to you!\n/help\n"
    assert typed.history_file().stat().st_mode & 0o077 == 0


def test_what_was_typed_comes_back_and_stays_bounded(home: Path) -> None:
    readline = pytest.importorskip("readline")
    for number in range(2 * typed.MOST_LINES + 1):
        typed.remember_typed(f"line {number}")
    typed.load_typed()
    last = readline.get_current_history_length()
    assert last == typed.MOST_LINES
    assert readline.get_history_item(last) == f"line {2 * typed.MOST_LINES}"
    assert len(typed.history_file().read_text().splitlines()) == typed.MOST_LINES
    typed.forget_typed([f"line {2 * typed.MOST_LINES}"])
    assert readline.get_current_history_length() == typed.MOST_LINES - 1
    readline.clear_history()


@pytest.mark.skipif(sys.platform == "win32", reason="needs hard links")
def test_a_forgotten_line_is_overwritten_where_it_lay(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
