"""The prompt at a terminal: history, completion, input of several lines, a status line.

The only importer of prompt_toolkit. This module is imported only if there is a terminal to draw on.
It draws only while it waits for input.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from typing import TypeAlias

from prompt_toolkit import PromptSession
from prompt_toolkit.application import get_app
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.enums import DEFAULT_BUFFER
from prompt_toolkit.filters import Condition, has_focus
from prompt_toolkit.history import DummyHistory, History
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.utils import get_cwidth

from edgemem.cli.typed import typed_before

__all__ = ["LineEditor", "fitting"]

CONTINUED = "...> "
_GAP = " | "

Suggest: TypeAlias = Callable[[str], Iterable[tuple[str, str]]]


class LineEditor:
    """Reads input from the terminal on stdin and stdout.

    suggest: returns the completions of a text that begins with a slash, each with its meaning. A
    completion replaces the text's last word.
    """

    def __init__(self, suggest: Suggest) -> None:
        self._suggest = suggest
        self.forget()

    def forget(self) -> None:
        """Drops all input and the clipboard of this run: an erase may cover some of it."""
        self._messages = _session(_Typed(), _Completer(self._suggest))
        self._questions = _session(DummyHistory())

    def read(self, prompt: str, status: Sequence[str] = ()) -> str:
        """Reads a message of one or several lines.

        Enter sends it. Alt-Enter, or Esc and Enter, breaks the line; pasted line breaks stay.
        status: parts of the line below, the most important first; parts that do not fit the screen
        are left out. Raises EOFError on Ctrl-D, KeyboardInterrupt on Ctrl-C.
        """
        session = self._messages
        size = session.output.get_size
        session.bottom_toolbar = (lambda: fitting(status, size().columns)) if status else None
        return session.prompt(prompt, multiline=True, prompt_continuation=CONTINUED)

    def ask(self, question: str) -> str:
        """Reads the answer to a question, which enters no history. Raises as `read` does."""
        return self._questions.prompt(question)


def fitting(parts: Sequence[str], columns: int) -> str:
    """Returns the first parts as one line, as many as fit the screen's columns."""
    line = ""
    for part in parts:
        longer = f"{line}{_GAP}{part}" if line else part
        if get_cwidth(longer) > columns:
            break
        line = longer
    return line


def _session(history: History, completer: Completer | None = None) -> PromptSession[str]:
    session: PromptSession[str] = PromptSession(
        completer=completer,
        # Only for commands: while this is true, the menu takes up space below the prompt.
        complete_while_typing=Condition(lambda: get_app().current_buffer.text.startswith("/")),
        history=history,
        key_bindings=_keys(),
        enable_suspend=True,
    )
    # A terminal that does not report its cursor gets no status line, and here no warning.
    session.app.renderer.cpr_not_supported_callback = None
    return session


class _Typed(DummyHistory):
    """The history file, read again for each prompt, so that no copy of erased input stays here."""

    async def load(self) -> AsyncGenerator[str, None]:
        for text in reversed(typed_before()):
            yield text


class _Completer(Completer):
    def __init__(self, suggest: Suggest) -> None:
        self._suggest = suggest

    def get_completions(
        self, document: Document, complete_event: CompleteEvent
    ) -> Iterable[Completion]:
        text = document.text_before_cursor
        if text.startswith("/"):
            last = len(text) - max(text.rfind(gap) for gap in " ,\n") - 1
            for word, meaning in self._suggest(text):
                yield Completion(word, start_position=-last, display_meta=meaning)


def _keys() -> KeyBindings:
    keys = KeyBindings()
    typing = has_focus(DEFAULT_BUFFER)

    @keys.add("enter", filter=typing)
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.validate_and_handle()

    @keys.add("escape", "enter", filter=typing)
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.newline(copy_margin=False)

    return keys
