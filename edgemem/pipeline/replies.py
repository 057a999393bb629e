"""An assistant's reply, taken apart: its sentences, the items of its lists, the rows of its tables.

One line of a long turn in Markdown answers a question: the seventh of twelve items, a price under a
heading, a row of a table. It says little without its head, so each part has that.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache

from markdown_it import MarkdownIt
from markdown_it.token import Token

from edgemem import language

__all__ = ["Part", "joined", "parts"]

_HEAD = 120  # characters of a paragraph that may be the head of what follows
_BLOCK = 240  # characters of short lines that belong together, as an address does


@dataclass(frozen=True, slots=True)
class Part:
    """A sentence, a list item, or a row of a table.

    text: in one line, without marks. head: the heading, paragraph or item that it stands under, or
    "". place: in its list or table, from 1; 0 in none. list_number: of that list or table in the
    reply, from 1; 0 for none.
    """

    text: str
    head: str = ""
    place: int = 0
    list_number: int = 0

    @property
    def whole(self) -> str:
        """The text after its head: "Budget: Influencers: $2,000"."""
        return f"{self.head}: {self.text}" if self.head else self.text


@dataclass(slots=True)
class _List:
    """An open list. place: of the present item, whose first paragraph is `item`."""

    number: int
    place: int
    head: str
    item: str = ""


@dataclass(slots=True)
class _Reading:
    """The state of reading a reply.

    head: the last one. used: whether a part stands under it. lists: the open lists, the outermost
    first. last: the last ordered list at the top, which "2." may continue after a paragraph. count:
    of lists and tables so far.
    """

    head: str = ""
    used: bool = True
    lists: list[_List] = field(default_factory=list)
    last: _List | None = None
    count: int = 0


@cache
def _markdown() -> MarkdownIt:
    return MarkdownIt("commonmark").enable("table")


def parts(reply: str) -> list[Part]:
    """The parts of a reply in Markdown, in order. A head with parts under it is no part itself.

    >>> [part.whole for part in parts("**Budget**\\n- Influencers: $2,000\\n- Posters: $300")]
    ['Budget: Influencers: $2,000', 'Budget: Posters: $300']
    """
    return [part for part in _read(_markdown().parse(reply)) if part.text]


def joined(told: Sequence[Part]) -> str:
    """Parts of one reply as a text; successive parts under one head have it once."""
    text, head = "", ""
    for part in told:
        said = part.text if part.head == head else part.whole
        text, head = f"{text} {said}{'' if said[-1] in '.!?' else '.'}", part.head
    return text.strip()


def _read(tokens: list[Token]) -> Iterator[Part]:
    state, titles, row, rows = _Reading(), list[str](), list[str](), 0
    for before, token in zip([None, *tokens], tokens, strict=False):
        opened = before.type if before else ""
        match token.type:
            case "bullet_list_open" | "ordered_list_open":
                state.lists.append(_opened_list(state, token))
            case "bullet_list_close" | "ordered_list_close":
                ended = state.lists.pop()
                state.last = ended if not state.lists and token.type[0] == "o" else state.last
            case "list_item_open":
                state.lists[-1].place += 1
                state.lists[-1].item = ""
            case "tr_open":
                row = []
            case "inline" if opened in ("th_open", "td_open"):
                row.append(" ".join(_lines(token)))
            case "tr_close" if not titles:
                titles = row
            case "tr_close":
                cells = (f"{t}: {c}" if t else c for t, c in zip(titles, row, strict=False) if c)
                rows += 1
                yield Part("; ".join(cells), _head(state), rows, state.count)
            case "table_open":
                titles, rows = [], 0
                state.count += 1
            case "inline" if opened == "heading_open":
                yield from _set_head(state, " ".join(_lines(token)))
            case "inline":
                yield from _paragraph(state, token)
            case "fence" | "code_block" | "html_block":
                head = _head(state)
                yield from (Part(line.strip(), head) for line in token.content.splitlines())
            case _:
                pass
    yield from _set_head(state, "")


def _opened_list(state: _Reading, token: Token) -> _List:
    """A new list, or the last one if its numbers continue."""
    first = int(token.attrs.get("start", 1)) if token.type[0] == "o" else 1
    if not state.lists and first > 1 and state.last and state.last.place == first - 1:
        return state.last
    state.count += 1
    return _List(state.count, first - 1, _head(state))


def _head(state: _Reading) -> str:
    """The head of the next part, which counts as used from now on."""
    if state.lists and state.lists[-1].item:
        return state.lists[-1].item
    state.used = True
    return state.head


def _set_head(state: _Reading, head: str) -> Iterator[Part]:
    """Set a new head. The one before becomes a part if nothing stands under it."""
    if not state.used:
        yield Part(state.head)
    state.head, state.used = head.rstrip(" :"), not head


def _paragraph(state: _Reading, token: Token) -> Iterator[Part]:
    lines = _lines(token)
    text = " ".join(lines)
    if state.lists:
        inner = state.lists[-1]
        if inner.item:
            yield from (Part(sentence, inner.item) for sentence in _split(lines))
        elif text:
            inner.item = text.rstrip(" :")
            yield Part(inner.item, inner.head, inner.place, inner.number)
    elif len(text) <= _HEAD and (text.endswith(":") or _is_bold(token)):
        yield from _set_head(state, text)
    else:
        head = _head(state)
        yield from (Part(sentence, head) for sentence in _split(lines))


def _split(lines: list[str]) -> list[str]:
    """The sentences of lines; short lines without an end of a sentence stay together."""
    block = ", ".join(lines)
    if len(lines) > 1 and len(block) <= _BLOCK and not any(line[-1] in ".!?" for line in lines):
        return [block]
    return [sentence for line in lines for sentence in language.sentences(line)]


def _is_bold(token: Token) -> bool:
    """Whether all of an inline token is bold."""
    inner = [child.type for child in token.children or () if child.type != "text" or child.content]
    return (
        len(inner) > 2
        and inner[0] == "strong_open"
        and inner.index("strong_close") == len(inner) - 1
    )


def _lines(token: Token) -> list[str]:
    """An inline token's lines without marks."""
    pieces = []
    for child in token.children or ():
        ends = child.type.endswith("break") or child.content.startswith("<br")
        pieces.append("\n" if ends else child.content)
    return [line for part in "".join(pieces).split("\n") if (line := " ".join(part.split()))]
