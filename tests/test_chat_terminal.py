"""`edgemem chat` on a screen of 80 columns and 24 rows, as a person sees it."""

import re
import sys

import pytest
from memorykit import quick

from edgemem.cli import typed
from edgemem.cli.chatting import MEANINGS, PROMPT
from edgemem.cli.prompting import CONTINUED

if sys.platform == "win32":
    pytest.skip("needs a pseudo-terminal", allow_module_level=True)

from termkit import Terminal

# "slowly" is answered so slowly that it has to be stopped. It is slow in many short sleeps: a
# Ctrl-C that comes just before a long one begins would wait for its end.
CHILD = """
import sys, time
from fake_engine import FakeEngine
from memorykit import BagOfWords
from edgemem.cli import main
from edgemem.runtime.embedder import Embedder
from edgemem.runtime.engine import Engine
def slow():
    while "slowly" in str(engine.prompts[-1]):
        time.sleep(0.05)
engine = FakeEngine(("It is ", "Tom."), {"My cat is Tom.": "{}'s cat is Tom"}, between=slow)
Engine.load = classmethod(lambda *a, **k: engine)
Embedder.load = classmethod(lambda *a, **k: BagOfWords())
try:
    main()
finally:
    print("drawn by prompt_toolkit:", "prompt_toolkit" in sys.modules)
"""
COLOURS = re.compile(rb"\x1b\[(?:\d+;)*(?:3[0-8]|4[0-8]|9[0-7]|10[0-7])(?:;\d+)*m")


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("EDGEMEM_HOME", str(tmp_path))
    monkeypatch.setenv("EDGEMEM_TUNED", "off")
    return tmp_path


def at_the_prompt(terminal, status="memor"):
    """Wait for an empty prompt with a status in the last line that has this in it."""
    terminal.wait_until(lambda: terminal.current == PROMPT.strip() and status in terminal.lines[-1])


def leave(terminal, key="\x04"):
    """By Ctrl-D, or Ctrl-C, at the prompt."""
    terminal.type(key)
    assert terminal.ended() == 0


def test_the_status_is_below_and_the_answer_above_the_prompt():
    with Terminal(CHILD, "chat") as terminal:
        at_the_prompt(terminal)
        assert terminal.lines[-1] == "0 memories"
        assert terminal.is_reversed(row=23)
        terminal.type("My cat is Tom.\r")
        at_the_prompt(terminal, "2 memories | 50 tokens/s")
        above = [line for line in terminal.lines if line]
        said = above.index(f"{PROMPT}My cat is Tom.")
        assert above[said + 1 :] == [
            "It is Tom.",
            "  + User's cat is Tom",
            PROMPT.strip(),
            "2 memories | 50 tokens/s",
        ]
        leave(terminal)


@pytest.mark.parametrize("no_colour", ["", "1"])
def test_a_slash_shows_the_commands_in_colour_unless_told_not_to_and_tab_completes_them(
    no_colour,
):
    with Terminal(CHILD, "chat", NO_COLOR=no_colour) as terminal:
        at_the_prompt(terminal)
        terminal.type("/")
        for command, meaning in MEANINGS.items():
            terminal.wait_until(
                lambda c=command, m=meaning: any(c in x and m in x for x in terminal.lines)
            )
        assert bool(COLOURS.search(terminal.raw)) == (not no_colour)
        terminal.type("b")
        terminal.wait_until(lambda: not any(MEANINGS["/why"] in x for x in terminal.lines))
        terminal.type("\t")
        terminal.wait_until(lambda: terminal.current.startswith(f"{PROMPT}/budget"))
        terminal.type("\r")
        at_the_prompt(terminal)
        assert any(line.startswith("memory limit  none") for line in terminal.lines)


def test_the_up_key_brings_back_nothing_that_another_user_typed():
    said = "The party is at the Lamplighter."
    with Terminal(CHILD, "chat", "--user-id", "tom") as terminal:
        at_the_prompt(terminal)
        terminal.type(f"{said}\r")
        at_the_prompt(terminal, "1 memory")
        leave(terminal)
    with Terminal(CHILD, "chat", "--user-id", "maya") as terminal:
        at_the_prompt(terminal)
        terminal.type("\x1b[A!")
        terminal.wait_until(lambda: terminal.current.endswith("!"))
        assert terminal.current == f"{PROMPT}!"
        terminal.type("\x15")
        leave(terminal)
    with Terminal(CHILD, "chat", "--user-id", "tom") as terminal:
        at_the_prompt(terminal)
        terminal.type("\x1b[A!")
        terminal.wait_until(
            lambda: terminal.current == f"{PROMPT}The party is at the Lamplighter.!"
        )
        terminal.type("\x15")
        leave(terminal)


def test_a_forgotten_message_comes_back_nowhere(home):
    with quick(home / "memory.db") as memory:
        memory.add("The sky is blue.", user_id="default", infer=False)
    with Terminal(CHILD, "chat") as terminal:
        at_the_prompt(terminal, "1 memory")
        terminal.type("The password is xyzzy.\r")
        at_the_prompt(terminal, "2 memories")
        terminal.type("/memories password\r")
        terminal.wait_for("1. 20")
        at_the_prompt(terminal, "2 memories")
        terminal.type("/forget ")  # the numbers of that list, and what they stand for
        terminal.wait_until(
            lambda: any(re.match(r" +1 +The password", line) for line in terminal.lines)
        )
        terminal.type("1\r")
        terminal.wait_for("Erase it? [y/N]")
        terminal.type("y\r")
        terminal.wait_for("1 memory erased.")
        at_the_prompt(terminal, "1 memory")
        terminal.type("\x1b[A\x1b[A\x1b[A\x1b[A")
        terminal.wait_until(lambda: terminal.current == f"{PROMPT}/memories password")
        leave(terminal, "\x03")
    assert typed.typed_before() == ["/memories password"]


def test_who_asks_to_forget_is_shown_what_may_be_erased(home):
    with quick(home / "memory.db") as memory:
        memory.add("The wifi password is xyzzy.", user_id="default", infer=False)
    with Terminal(CHILD, "chat") as terminal:
        at_the_prompt(terminal, "1 memory")
        terminal.type("please forget what i said about the wifi\r")
        terminal.wait_for("/forget with numbers of this list erases them.")
        at_the_prompt(terminal, "1 memory")
        above = [line for line in terminal.lines if line]
        assert "xyzzy" in above[-4] and above[-4].startswith("1. ")
        terminal.type("/forget 1\r")
        terminal.wait_for("Erase it? [y/N]")
        terminal.type("y\r")
        terminal.wait_for("1 memory erased.")
        at_the_prompt(terminal, "0 memories")
        leave(terminal)
    assert typed.typed_before() == []


def test_a_message_of_several_lines_is_one_message(home):
    with Terminal(CHILD, "chat") as terminal:
        at_the_prompt(terminal)
        terminal.type("I like tea.\x1b\rI like ネコ too.")
        terminal.wait_until(lambda: "too." in terminal.current)
        assert terminal.current.startswith(CONTINUED)
        terminal.type("\r")
        at_the_prompt(terminal, "1 memory")
        leave(terminal)
    with quick(home / "memory.db") as memory:
        (item,) = memory.get_all(user_id="default", filters={"kind": "turn"})
        assert item.memory == "I like tea.\nI like ネコ too."
    assert typed.typed_before() == ["I like tea.\nI like ネコ too."]
    assert typed.history_file().stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("term", ["xterm-256color", "dumb"])
def test_ctrl_c_stops_an_answer_and_ctrl_d_leaves(home, term):
    with Terminal(CHILD, "chat", TERM=term) as terminal:
        terminal.wait_until(lambda: terminal.current == PROMPT.strip())
        terminal.type("Good morning, slowly!\n")
        terminal.wait_until(lambda: terminal.current.startswith("It is"))
        terminal.type("\x03")
        terminal.wait_for("(stopped)")
        terminal.wait_until(lambda: terminal.current == PROMPT.strip())
        terminal.type("/help\n")
        terminal.wait_for("/forget WORDS|N")
        terminal.wait_until(lambda: terminal.current == PROMPT.strip())
        leave(terminal)
        drawn = term != "dumb"
        assert f"drawn by prompt_toolkit: {drawn}".encode() in terminal.raw
        assert (b"\x1b[?2004h" in terminal.raw) == drawn  # keys are asked for as they are pasted
    assert typed.typed_before() == ["Good morning, slowly!", "/help"]


def test_ctrl_c_leaves_at_the_prompt_even_where_its_signal_is_ignored():
    ignored = "signal.signal(signal.SIGINT, signal.SIG_IGN)\n"  # as in a shell's background
    with Terminal(ignored + CHILD, "chat") as terminal:
        at_the_prompt(terminal)
        terminal.type("half a message\x03")
        assert terminal.ended() == 0
    assert typed.typed_before() == []


def test_a_smaller_window_keeps_the_prompt_and_what_fits_of_the_status(home):
    with Terminal(CHILD, "chat", EDGEMEM_MEMORY_LIMIT="1GB") as terminal:
        at_the_prompt(terminal, "0 memories | memory limit 1000 MB")
        terminal.type("Our cat is bl")
        terminal.wait_until(lambda: terminal.current == f"{PROMPT}Our cat is bl")
        terminal.resize(24, 8)
        terminal.wait_until(lambda: "0 memories" in terminal.lines)
        terminal.type("ack\r")
        terminal.wait_for("It is Tom.")
        terminal.wait_until(lambda: terminal.lines[-1] == "1 memory | 50 tokens/s")
        leave(terminal)


def test_a_terminal_that_does_not_tell_where_its_cursor_is_gets_no_status():
    with Terminal(CHILD, "chat", answers=False) as terminal:
        terminal.wait_until(lambda: terminal.current == PROMPT.strip())
        for answers in (1, 2):
            terminal.type("Good morning to you!\r")
            terminal.wait_until(lambda n=answers: terminal.lines.count("It is Tom.") == n)
            terminal.wait_until(lambda: terminal.current == PROMPT.strip())
        leave(terminal)
        assert not any("memories" in line or "WARNING" in line for line in terminal.lines)
