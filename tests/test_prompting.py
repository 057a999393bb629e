"""The prompt at a terminal: keys in, messages out."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prompt_toolkit.application import create_app_session
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput
from prompt_toolkit.utils import get_cwidth

from edgemem.cli.prompting import LineEditor, _Completer, fitting
from edgemem.cli.typed import remember_typed

UP, ENTER, BREAK = "\x1b[A", "\r", "\x1b\r"


pytestmark = pytest.mark.usefixtures("empty_home")


@pytest.fixture
def keyboard():
    with create_pipe_input() as keys, create_app_session(input=keys, output=DummyOutput()):
        yield keys


def suggest(text):
    words = {"/forget 1": [("12", "the cat")]}.get(text, [("/memories", "list"), ("/why", "from")])
    return [(word, why) for word, why in words if word.startswith(text.split(" ")[-1])]


@pytest.fixture
def read(keyboard):
    editor = LineEditor(suggest)

    def typing(keys):
        keyboard.send_text(keys)
        return editor.read("you> ", ["1 memory"])

    return typing


@pytest.mark.parametrize(
    ("keys", "messages"),
    [
        (f"one{ENTER}", ["one"]),
        (f"one{BREAK}  two{BREAK}{BREAK}three{ENTER}", ["one\n  two\n\nthree"]),
        # What is pasted stays one message.
        (f"\x1b[200~first\r\nsecond\rthird\n\tfourth\x1b[201~ and so on{ENTER}",
         ["first\nsecond\nthird\n\tfourth and so on"]),
        # Lines that were typed ahead are read one by one.
        (f"one{ENTER}two{ENTER}", ["one", "two"]),
    ],
)  # fmt: skip
def test_enter_sends_and_alt_enter_begins_a_new_line(read, keys, messages):
    assert [read(keys if not number else "") for number in range(len(messages))] == messages


def test_a_question_takes_up_what_was_typed_ahead(keyboard):
    editor = LineEditor(suggest)
    keyboard.send_text(f"/forget cat{ENTER}1, 2{ENTER}hello{ENTER}")
    assert editor.read("you> ") == "/forget cat"
    assert editor.ask("Which? ") == "1, 2"
    assert editor.read("you> ") == "hello"


@pytest.mark.parametrize(("key", "error"), [("\x03", KeyboardInterrupt), ("\x04", EOFError)])
@pytest.mark.parametrize("asked", [True, False])
def test_ctrl_c_and_ctrl_d_are_told_apart(keyboard, key, error, asked):
    editor = LineEditor(suggest)
    keyboard.send_text(key)
    with pytest.raises(error):
        editor.ask("Which? ") if asked else editor.read("you> ")


@pytest.mark.parametrize(
    ("text", "completed"),
    [
        ("/m", ["/memories"]),
        ("/", ["/memories", "/why"]),
        ("/forget 1", ["/forget 12"]),
        ("m", []),
        ("say /m", []),
    ],
)
def test_what_begins_with_a_slash_is_completed_and_nothing_else(text, completed):
    found = list(_Completer(suggest).get_completions(Document(text), CompleteEvent()))
    assert [text[: len(text) + each.start_position] + each.text for each in found] == completed
    assert all(each.display_meta_text for each in found)


def test_the_up_key_brings_back_what_was_typed_of_several_lines_too(
    read,
):
    remember_typed("the first")
    remember_typed("two\nlines")
    assert read(f"{UP}!{ENTER}") == "two\nlines!"
    # From the second of two lines, the first key goes to the first.
    assert read(f"{UP}{UP}{UP}!{ENTER}") == "the first!"


def test_answers_to_questions_are_not_brought_back(keyboard):
    editor = LineEditor(suggest)
    keyboard.send_text(f"yes{ENTER}{UP}{ENTER}{UP}{ENTER}")
    assert editor.ask("Erase? ") == "yes"
    assert editor.ask("Erase? ") == ""
    assert editor.read("you> ") == ""


def test_nothing_typed_or_cut_is_left_after_it_was_to_be_forgotten(keyboard):
    cut, back = "\x15", "\x19"  # Ctrl-U and Ctrl-Y
    editor = LineEditor(suggest)
    keyboard.send_text(f"secret{cut}kept {back}{ENTER}")
    assert editor.read("you> ") == "kept secret"
    keyboard.send_text(f"{back}{ENTER}")
    assert editor.read("you> ") == "secret"
    editor.forget()
    keyboard.send_text(f"{back}{UP}gone?{ENTER}")
    assert editor.read("you> ") == "gone?"


def test_parts_of_the_status_that_do_not_fit_are_left_out_from_the_end():
    parts = ["12 memories", "50 tokens/s", "memory limit 1000 MB"]
    assert fitting(parts, 80) == "12 memories | 50 tokens/s | memory limit 1000 MB"
    assert fitting(parts, 25) == fitting(parts, 47) == "12 memories | 50 tokens/s"
    assert fitting(parts, 24) == "12 memories"
    assert fitting(parts, 3) == fitting([], 80) == ""
    assert fitting(["記憶", "b"], 7) == "記憶"


@given(st.lists(st.text(st.characters(categories=["L", "N"]), max_size=30)), st.integers(0, 200))
def test_a_status_never_is_wider_than_the_screen(parts, columns):
    line = fitting(parts, columns)
    assert get_cwidth(line) <= columns
    full = " | ".join(part for part in parts if part)
    assert full.replace(" | ", "").startswith(line.replace(" | ", ""))
