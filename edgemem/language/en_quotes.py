"""English: what a message quotes.

Words in quotation marks are somebody else's, or nobody's. A title or a name in such marks is the
speaker's own word for a thing.

Knows texts; no fact, no message.
"""

from __future__ import annotations

import re

from edgemem.language.en import is_of_speaker, words

__all__ = ["quoted", "unquoted"]

_LEAST = 5
"""Words of a quotation that does not say I or we. A shorter one is a title or a name."""

# A straight mark opens after a space or a mark and closes before one: 27" and 5'10" open nothing.
_QUOTATION = re.compile(
    r"(?<![\w\"])\"(?=[^\s\"])(?P<straight>[^\"]+)\"(?!\w)"
    r"|[“„](?P<curly>[^“”„\"]+)[”“\"]|«(?P<pointed>[^«»]+)»|»(?P<turned>[^«»]+)«"
)


def quoted(text: str) -> list[tuple[int, int]]:
    """The [start, end) characters of each quotation, with its marks, in order; no titles or names.

    >>> text = 'He said: "I am in Rome until May." I read "Dune".'
    >>> [text[a:b] for a, b in quoted(text)]
    ['"I am in Rome until May."']
    """
    found = []
    for match in _QUOTATION.finditer(text):
        inside = match[0][1:-1]
        if len(words(inside)) >= _LEAST or is_of_speaker(inside):
            found.append(match.span())
    return found


def unquoted(text: str) -> str:
    """A text with an ellipsis for the words of each quotation."""
    for start, end in reversed(quoted(text)):
        text = f"{text[: start + 1]}…{text[end - 1 :]}"
    return text
