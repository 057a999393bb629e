"""The prompt at a terminal: what was typed before, completion, several lines, a line of status.

The only importer of prompt_toolkit, itself imported only where there is a terminal to draw on. It
draws while it waits for a key, and for no other reason.
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

from edgemem.cli.output import typed_before

__all__ = ["LineEditor", "fitting"]

CONTINUED = "...> "
_GAP = " | "

Suggest: TypeAlias = Callable[[str], Iterable[tuple[str, str]]]


class LineEditor:
    """Reads what a person types at the terminal that stdin and stdout are.

    suggest: the words that may end a text, each with its meaning; asked for texts that begin with
    a slash. The last word of the text is what they replace.
    """

    def __init__(self, suggest: Suggest) -> None:
        self._suggest = suggest
        self.forget()

    def forget(self) -> None:
        """Drop whatever was typed or cut so far: some of it may have been erased."""
        self._messages = _session(_Typed(), _Completer(self._suggest))
        self._questions = _session(DummyHistory())

    def read(self, prompt: str, status: Sequence[str] = ()) -> str:
        """A message, of one line or several. Enter sends it; Alt-Enter, or Esc and Enter, breaks
        the line, and so do the breaks of what is pasted.

        status: parts of the line below, the first the most telling; those that do not fit the
        screen are left out. Raises EOFError on Ctrl-D, KeyboardInterrupt on Ctrl-C.
        """
        session = self._messages
        size = session.output.get_size
        session.bottom_toolbar = (lambda: fitting(status, size().columns)) if status else None
        return session.prompt(prompt, multiline=True, prompt_continuation=CONTINUED)

    def ask(self, question: str) -> str:
        """A line that answers a question, and is not kept. Raises as `read` does."""
        return self._questions.prompt(question)


def fitting(parts: Sequence[str], columns: int) -> str:
    """As many of the parts, from the first on, as fit a line of the screen."""
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
        # Of commands only: below the prompt, room for the menu is kept while this is true.
        complete_while_typing=Condition(lambda: get_app().current_buffer.text.startswith("/")),
        history=history,
        key_bindings=_keys(),
        enable_suspend=True,
    )
    # A terminal that does not tell where its cursor is has no line of status, and no warning.
    session.app.renderer.cpr_not_supported_callback = None
    return session


class _Typed(DummyHistory):
    """The file of what was typed, read anew for each prompt: what was erased has no copy here."""

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
