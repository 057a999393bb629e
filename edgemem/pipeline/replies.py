"""An assistant's reply, taken apart: its sentences, the items of its lists, the rows of its tables.

A person's turn is short. An assistant's is long and in Markdown, and one line of it answers a
question: the seventh of twelve items, a price under a heading, a row of a table. Such a line says
little without its head, so each part knows it.
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
    """text: in one line, without marks. under: the head that it stands under, or "". place: in its
    list or table, from 1; 0 in none. of: the number of that list in the reply."""

    text: str
    under: str = ""
    place: int = 0
    of: int = 0

    @property
    def whole(self) -> str:
        """The text under its head: "Budget: Influencers: $2,000"."""
        return f"{self.under}: {self.text}" if self.under else self.text


@dataclass(slots=True)
class _List:
    number: int
    place: int
    under: str
    item: str = ""  # the first paragraph of the present item


@dataclass(slots=True)
class _Reading:
    """What is read of a reply so far. head: waits for what it is the head of."""

    head: str = ""
    used: bool = True
    lists: list[_List] = field(default_factory=list)
    last: _List | None = None  # the last ordered list at the top: "2." may go on after a paragraph
    count: int = 0


@cache
def _markdown() -> MarkdownIt:
    return MarkdownIt("commonmark").enable("table")


def parts(reply: str) -> list[Part]:
    """The parts of a reply in Markdown, in their order. Heads are no parts of their own.

    >>> [part.whole for part in parts("**Budget**\\n- Influencers: $2,000\\n- Posters: $300")]
    ['Budget: Influencers: $2,000', 'Budget: Posters: $300']
    """
    return [part for part in _read(_markdown().parse(reply)) if part.text]


def joined(told: Sequence[Part]) -> str:
    """Parts of one reply as a text, each head once."""
    text, under = "", ""
    for part in told:
        one = part.text if part.under == under else part.whole
        text, under = f"{text} {one}{'' if one[-1] in '.!?' else '.'}", part.under
    return text.strip()


def _read(tokens: list[Token]) -> Iterator[Part]:
    now, titles, row, rows = _Reading(), list[str](), list[str](), 0
    for before, token in zip([None, *tokens], tokens, strict=False):
        opened = before.type if before else ""
        match token.type:
            case "bullet_list_open" | "ordered_list_open":
                now.lists.append(_begun(now, token))
            case "bullet_list_close" | "ordered_list_close":
                ended = now.lists.pop()
                now.last = ended if not now.lists and token.type[0] == "o" else now.last
            case "list_item_open":
                now.lists[-1].place += 1
                now.lists[-1].item = ""
            case "tr_open":
                row = []
            case "inline" if opened in ("th_open", "td_open"):
                row.append(" ".join(_lines(token)))
            case "tr_close" if not titles:
                titles = row
            case "tr_close":
                cells = (f"{t}: {c}" if t else c for t, c in zip(titles, row, strict=False) if c)
                rows += 1
                yield Part("; ".join(cells), _under(now), rows, now.count)
            case "table_open":
                titles, rows = [], 0
                now.count += 1
            case "inline" if opened == "heading_open":
                yield from _headed(now, " ".join(_lines(token)))
            case "inline":
                yield from _paragraph(now, token)
            case "fence" | "code_block" | "html_block":
                under = _under(now)
                yield from (Part(line.strip(), under) for line in token.content.splitlines())
            case _:
                pass
    yield from _headed(now, "")


def _begun(now: _Reading, token: Token) -> _List:
    first = int(token.attrs.get("start", 1)) if token.type[0] == "o" else 1
    if not now.lists and first > 1 and now.last and now.last.place == first - 1:
        return now.last  # it goes on
    now.count += 1
    return _List(now.count, first - 1, _under(now))


def _under(now: _Reading) -> str:
    """The head of what stands here."""
    if now.lists and now.lists[-1].item:
        return now.lists[-1].item
    now.used = True
    return now.head


def _headed(now: _Reading, head: str) -> Iterator[Part]:
    """A new head. The one before, if nothing stands under it, is a part."""
    if not now.used:
        yield Part(now.head)
    now.head, now.used = head.rstrip(" :"), not head


def _paragraph(now: _Reading, token: Token) -> Iterator[Part]:
    lines = _lines(token)
    text = " ".join(lines)
    if now.lists:
        of = now.lists[-1]
        if of.item:
            yield from (Part(one, of.item) for one in _split(lines))
        elif text:
            of.item = text.rstrip(" :")
            yield Part(of.item, of.under, of.place, of.number)
    elif len(text) <= _HEAD and (text.endswith(":") or _is_bold(token)):
        yield from _headed(now, text)
    else:
        under = _under(now)
        yield from (Part(one, under) for one in _split(lines))


def _split(lines: list[str]) -> list[str]:
    """Sentences; short lines that end no sentence stay together."""
    block = ", ".join(lines)
    if len(lines) > 1 and len(block) <= _BLOCK and not any(line[-1] in ".!?" for line in lines):
        return [block]
    return [sentence for line in lines for sentence in language.sentences(line)]


def _is_bold(token: Token) -> bool:
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
