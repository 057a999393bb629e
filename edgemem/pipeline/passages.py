"""What of the evidence is nearest to a question: sentences of turns, parts of an assistant's reply,
lines of the text in a photo.

One line of a long reply in Markdown answers a question: the seventh of twelve items, a price under
a heading, a row of a table. It says little without its head, so each part has that. A photo's text
is its caption and the lines that matter.

Knows a Memory for its embedder, and for what a reply answers; not which memories may be shown.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

import numpy as np
from markdown_it import MarkdownIt
from markdown_it.tree import SyntaxTreeNode
from numpy.typing import NDArray

from edgemem import language
from edgemem.results import Evidence, Hit

if TYPE_CHECKING:
    from edgemem.memory import Memory

__all__ = ["BARE", "TEXT_IN_IT", "Part", "amount", "answered", "asks_to_see", "asks_whole"]
__all__ += ["caption_of", "head_of", "headed", "joined", "known_of", "lines_of", "near_lines"]
__all__ += ["nearest_sentences", "nearness", "one_line", "parts", "price", "shortened"]
__all__ += ["whole_text"]

_WORDS_WEIGHT = 0.3  # of the share of the question's words in a sentence, beside the cosine's 1
_BEFORE_WEIGHT = 0.2  # of the cosine of what a reply answers
_PARTS_SHOWN = 8  # of all replies: an expert was trained on people's turns, which are short
_LIKELY = 24  # parts of replies that are embedded
_LINES = 3  # of a photo's text
_PRICES = "How much did it cost?", "What was the price?"
_OF_AMOUNT = 0.42  # cosine of a question for an amount to one of these (bench/LOG.md, 2026-11-30)
_WHOLE_TEXT = "What does the photo say?", "What is written on the photo?"
_ASKS_WHOLE = 0.71  # cosine of a question for a photo's text to one of these (bench/LOG.md)
_NAMES_NONE = 0.73  # the same, if no photo has its words: "What does the photo of the sofa say?"
_SEE = "Show me the photo.", "Can I see the photo?"
_ASKS_TO_SEE = 0.6  # cosine of such a request to one of these; of 682 other deeds at most 0.58
_FAR = 0.3  # of the best sentence's score; a sentence below it would only distract
_HEAD = 120  # characters of a paragraph that may be the head of what follows
_BLOCK = 240  # characters of short lines that belong together, as an address does
TEXT_IN_IT = "Text in it: "
BARE = "Photo"
"""The text of an image of which nothing else is known."""
_ENDS = ".", ",", ";", ":", "!", "?"  # of a line; it gets no period
_LETTER, _RUNS_ON = 32, 0.8  # a line runs on from so many characters and share of the longest one
_AMOUNT = re.compile(  # a space parts thousands only before a comma: "Table 12 104.50"
    r"(?<![\d.,/:-])(?:\d{1,3}(?: \d{3})+(?=,)|\d{1,3}(?:[.,']\d{3})+|\d{1,9})"
    r"[.,]\d\d(?![\d/:-]|[.,]\d)"
)
_ROUND = 100  # hundredths: cash that gives change is mostly coins and notes
_MOST_CHARS = 800  # of a text that is read out
_HEAD_CHARS = 80  # of a photo's name


def shortened(memory: Memory, question: str, found: Sequence[Evidence]) -> list[Evidence]:
    """The evidence, with the assistant's turns cut to the parts nearest to the question. A turn
    without such a part is left out."""
    told = [(i, part) for i, e in enumerate(found) if e.is_reply for part in parts(e.text)]
    if not told:
        return list(found)
    asked = answered(memory, found)
    before = [asked.get(found[i], "") for i, _ in told]
    near = nearness(memory, question, [part.whole for _, part in told], _LIKELY, before)
    kept: dict[int, list[Part]] = {i: [] for i, e in enumerate(found) if e.is_reply}
    for at in sorted(np.argsort(-near, kind="stable")[:_PARTS_SHOWN].tolist()):
        i, part = told[at]
        kept[i].append(part)
    cut = (replace(e, text=joined(kept[i])) if i in kept else e for i, e in enumerate(found))
    return [evidence for evidence in cut if evidence.text]


def answered(memory: Memory, found: Sequence[Evidence]) -> dict[Evidence, str]:
    """The user's turn before each of the assistant's turns among the evidence."""
    store = memory.store
    ids = {e: e.source.sources[0] for e in found if e.is_reply and e.source and e.source.sources}
    asked: dict[str, str] = {}
    for id, turn in store.turns(list(ids.values())).items():
        for before in store.recent_turns(turn.scope, before=id, limit=1):
            if before.role == "user":
                asked[id] = before.content
    return {e: asked[id] for e, id in ids.items() if id in asked}


def nearness(
    memory: Memory,
    question: str,
    texts: Sequence[str],
    most: int | None = None,
    before: Sequence[str] = (),
) -> NDArray[np.float32]:
    """(n,) float32, how near each text is to a question, by the cosine and by shared words.

    most: embed only so many texts, those that share most words; the others get -inf. before: the
    message that each text answers, which counts too.
    """
    asked = language.content_words(question)
    said = [f"{b} {text}" for b, text in zip(before, texts, strict=True)] if before else texts
    shares = np.array([language.share(asked, each) for each in said], np.float32)
    likely = np.sort(np.argsort(-shares, kind="stable")[:most])
    answers = sorted({*before})
    vectors = memory.embedder.embed([question, *answers, *(texts[i] for i in likely)])
    cosines = vectors @ vectors[0]
    near = np.full(len(texts), -np.inf, np.float32)
    near[likely] = cosines[1 + len(answers) :] + np.float32(_WORDS_WEIGHT) * shares[likely]
    if before:
        of = dict(zip(answers, cosines[1:], strict=False))
        near += np.float32(_BEFORE_WEIGHT) * np.array([of[b] for b in before], np.float32)
    return near


def nearest_sentences(memory: Memory, question: str, found: Sequence[Evidence]) -> list[Evidence]:
    """The sentences of evidence that are near a question, nearest first. Of a photo the lines that
    are near are one sentence, below the caption, which is not also a sentence of its own."""
    asked = answered(memory, found)
    captions = {caption_of(e.photo) for e in found if e.photo} - {""}
    split = [
        (evidence, sentence)
        for evidence in found
        for sentence in (
            [near_lines(memory, question, evidence.photo)]
            if evidence.photo
            else _sentences(evidence)
        )
        if not language.is_question(sentence) and sentence.rstrip(".") not in captions
    ]
    if not split:
        return []
    before = [asked.get(evidence, "") for evidence, _ in split]
    texts = [sentence for _, sentence in split]
    scores = nearness(memory, question, texts, before=before if any(before) else ())
    order = np.argsort(-scores, kind="stable").tolist()
    near = [i for i in order if scores[i] >= _FAR * scores[order[0]]]
    return [replace(split[i][0], text=texts[i], place=i) for i in near]


def near_lines(memory: Memory, question: str, photo: Hit) -> str:
    """The lines of a photo's text that are nearest to a question, in their order below its caption;
    if it asks for an amount, the price and lines with smaller amounts."""
    lines = lines_of(photo)
    if not lines:
        return headed(photo, ())
    near = nearness(memory, question, lines, _LIKELY)
    first = int(near.argmax())
    amounts = np.array([amount(line) for line in lines])
    if amounts.any() and _asks_amount(memory, question):
        first = price(amounts.tolist())
        near[(amounts == 0) | (amounts > amounts[first])] = -np.inf
    near[first] = np.inf
    best = np.argsort(-near, kind="stable")[:_LINES]
    return headed(photo, [lines[i] for i in sorted(best.tolist()) if near[i] > 0])


def _asks_amount(memory: Memory, question: str) -> bool:
    return _nearest(memory, question, _PRICES) >= _OF_AMOUNT


def asks_whole(memory: Memory, question: str, photo: Hit | None = None) -> bool:
    """Whether a question asks for a photo's whole text. photo: None if it names no photo."""
    near = _nearest(memory, _of_photo(question, photo), _WHOLE_TEXT)
    return near >= (_NAMES_NONE if photo is None else _ASKS_WHOLE)


def asks_to_see(memory: Memory, request: str, photo: Hit | None = None) -> bool:
    """Whether a request is to see a photo. photo: the one that it names."""
    return _nearest(memory, _of_photo(request, photo), _SEE) >= _ASKS_TO_SEE


def _of_photo(text: str, photo: Hit | None) -> str:
    """A text with "photo" for each word that the photo's caption or first line has too."""
    if photo is None:
        return text
    name = f"{caption_of(photo)} {' '.join(lines_of(photo)[:1])}"
    names = {w for w in language.content_words(text) if language.share([w], name)}
    return " ".join("photo" if w in names else w for w in language.words(text))


def _nearest(memory: Memory, text: str, others: Sequence[str]) -> float:
    """The largest cosine of a text to others."""
    asked, *near = memory.embedder.embed([text, *others])
    return max(float(asked @ each) for each in near)


def _sentences(evidence: Evidence) -> list[str]:
    """The parts of a reply, or the sentences of a turn, each with those that take it back. A
    quotation is not cut."""
    if evidence.is_reply:
        return [part.whole for part in parts(evidence.text)]
    said = language.uncut(evidence.text)
    begins = [*({*range(len(said))} - {*language.taken_back(said)}), len(said)]
    return [" ".join(said[start:end]) for start, end in pairwise(sorted(begins))]


# -- an assistant's reply ------------------------------------------------------------------------


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


def parts(reply: str) -> list[Part]:
    """The parts of a reply in Markdown, in order. A head with parts under it is no part itself.

    >>> [part.whole for part in parts("**Budget**\\n- Influencers: $2,000\\n- Posters: $300")]
    ['Budget: Influencers: $2,000', 'Budget: Posters: $300']
    """
    reading = _Reading()
    reading.read(SyntaxTreeNode(_markdown().parse(reply)), None)
    reading.begin("")
    return [part for part in reading.parts if part.text]


def joined(told: Sequence[Part]) -> str:
    """Parts of one reply as a text; successive parts under one head have it once."""
    text, head = "", ""
    for part in told:
        said = part.text if part.head == head else part.whole
        text, head = f"{text} {said}{'' if said[-1] in '.!?' else '.'}", part.head
    return text.strip()


@cache
def _markdown() -> MarkdownIt:
    return MarkdownIt("commonmark").enable("table")


@dataclass(slots=True)
class _List:
    """A list. place: of the present item, whose first paragraph is `item`."""

    number: int
    place: int
    head: str
    item: str = ""


class _Reading:
    """The parts of a reply, as its blocks are read.

    head: the last one. used: whether a part stands under it. last: the last ordered list outside of
    others, which "2." may continue after a paragraph. count: of lists and tables so far.
    """

    def __init__(self) -> None:
        self.parts: list[Part] = []
        self.head, self.used, self.count = "", True, 0
        self.last: _List | None = None

    def read(self, node: SyntaxTreeNode, inside: _List | None) -> None:
        """Read the blocks of a node. inside: the list whose item it belongs to."""
        for block in node.children:
            match block.type:
                case "bullet_list" | "ordered_list":
                    self.read_list(block, inside)
                case "table":
                    self.read_table(block, inside)
                case "heading":
                    self.begin(" ".join(_lines(block.children[0])))
                case "paragraph":
                    self.read_paragraph(block.children[0], inside)
                case "fence" | "code_block" | "html_block":
                    self.add([line.strip() for line in block.content.splitlines()], inside)
                case _:
                    self.read(block, inside)

    def begin(self, head: str) -> None:
        """Set a new head. The one before becomes a part if nothing stands under it."""
        if not self.used:
            self.parts.append(Part(self.head))
        self.head, self.used = head.rstrip(" :"), not head

    def head_in(self, inside: _List | None) -> str:
        """The head of the next part, which counts as used from now on."""
        if inside and inside.item:
            return inside.item
        self.used = True
        return self.head

    def read_list(self, node: SyntaxTreeNode, inside: _List | None) -> None:
        ordered = node.type == "ordered_list"
        first = int(node.attrs.get("start", 1)) if ordered else 1
        if not inside and first > 1 and self.last and self.last.place == first - 1:
            of = self.last
        else:
            self.count += 1
            of = _List(self.count, first - 1, self.head_in(inside))
        for item in node.children:
            of.place, of.item = of.place + 1, ""
            self.read(item, of)
        if ordered and not inside:
            self.last = of

    def read_table(self, node: SyntaxTreeNode, inside: _List | None) -> None:
        self.count += 1
        rows = [
            [" ".join(_lines(cell.children[0])) for cell in row.children]
            for group in node.children
            for row in group.children
        ]
        for number, row in enumerate(rows[1:], 1):
            cells = (f"{t}: {c}" if t else c for t, c in zip(rows[0], row, strict=False) if c)
            self.parts.append(Part("; ".join(cells), self.head_in(inside), number, self.count))

    def read_paragraph(self, node: SyntaxTreeNode, inside: _List | None) -> None:
        lines = _lines(node)
        text = " ".join(lines)
        if inside and not inside.item:
            if text:
                inside.item = text.rstrip(" :")
                self.parts.append(Part(inside.item, inside.head, inside.place, inside.number))
        elif not inside and len(text) <= _HEAD and (text.endswith(":") or _is_bold(node)):
            self.begin(text)
        else:
            self.add(_split(lines), inside)

    def add(self, texts: Sequence[str], inside: _List | None) -> None:
        head = self.head_in(inside)
        self.parts += (Part(text, head) for text in texts)


def _split(lines: list[str]) -> list[str]:
    """The sentences of lines; short lines without an end of a sentence stay together."""
    block = ", ".join(lines)
    if len(lines) > 1 and len(block) <= _BLOCK and not any(line[-1] in ".!?" for line in lines):
        return [block]
    return [sentence for line in lines for sentence in language.sentences(line)]


def _is_bold(inline: SyntaxTreeNode) -> bool:
    """Whether all of a paragraph is bold."""
    return [n.type for n in inline.children if n.type != "text" or n.content] == ["strong"]


def _lines(inline: SyntaxTreeNode) -> list[str]:
    """The lines of a paragraph without marks."""
    pieces = []
    for child in (inline.token.children if inline.token else None) or ():
        ends = child.type.endswith("break") or child.content.startswith("<br")
        pieces.append("\n" if ends else child.content)
    return [line for part in "".join(pieces).split("\n") if (line := " ".join(part.split()))]


# -- the text in a photo -------------------------------------------------------------------------


def one_line(text: str) -> str:
    """The text of an image's memory as one line. A line that does not run on (`_unbroken`) ends its
    sentence."""
    about, _, told = text.partition(f"\n{TEXT_IN_IT}")
    first, *rest = _unbroken(told.splitlines()) or [""]
    parts = [*_unbroken(about.splitlines()), *([TEXT_IN_IT + first] if first else []), *rest]
    ends = ["" if part[-1:] in _ENDS else "." for part in parts[:-1]]
    return " ".join(f"{part}{end}" for part, end in zip(parts, [*ends, ""], strict=True))


def _unbroken(lines: Sequence[str]) -> list[str]:
    """The lines, each with those that it runs on into: if it is nearly as long as the longest, ends
    in a comma or colon, or if the next begins with a small letter."""
    full = max(_LETTER, _RUNS_ON * max(map(len, lines), default=0))
    found: list[str] = []
    last = ""
    for line in lines:
        runs_on = len(last) >= full or line[:1].islower() or last[-1:] in (",", ":")
        if found and runs_on and last[-1:] not in (".", "!", "?"):
            found[-1] += f" {line}"
        else:
            found.append(line)
        last = line
    return found


def caption_of(hit: Hit) -> str:
    """The caption of an image as its name, "" if it has none."""
    return head_of(hit).partition(": ")[2]


def head_of(hit: Hit) -> str:
    """The name of an image: "Photo: My dentist card", with the day if it was taken on another. What
    was asked with it is left out."""
    parts = language.sentences(" ".join(hit.memory.partition(f"\n{TEXT_IN_IT}")[0].split()))
    head = " ".join([part for part in parts if not language.asks(part)] or parts)
    if len(head) > _HEAD_CHARS:
        head = f"{head[:_HEAD_CHARS].rpartition(' ')[0]} …"
    return head.rstrip(".")


def lines_of(hit: Hit) -> list[str]:
    """The lines of the text in an image; lines that run on are one."""
    return _unbroken(hit.memory.partition(f"\n{TEXT_IN_IT}")[2].splitlines())


def known_of(hit: Hit) -> str:
    """All that is known of an image, but that it is a photo; "" if nothing else is."""
    return " ".join([caption_of(hit), *lines_of(hit)]).strip()


def headed(hit: Hit, lines: Sequence[str]) -> str:
    """Some lines of an image's text, in one line after its name."""
    told = "; ".join(line.rstrip(".;") for line in lines)
    return f"{head_of(hit)}: {told}" if told else head_of(hit)


def amount(line: str) -> int:
    """The largest amount that a line names, in hundredths; 0 if it names none.

    >>> amount("2 Cola 4.00 of 1,204.50, 14.05.2027")
    120450
    """
    return max((int(re.sub(r"\D", "", found)) for found in _AMOUNT.findall(line)), default=0)


def price(amounts: Sequence[int]) -> int:
    """The place of the price among the amounts of a text's lines, 0 for a line without one.

    It is the largest amount, but for the cash that was handed over. Such cash is no sum of what is
    above it, and comes after a price that is one, or is a round sum and comes before the change.

    >>> price([2890, 5000, 2110]), price([950, 1940, 2890, 3000]), price([950, 1940, 2890])
    (0, 2, 2)
    """
    largest = max(range(len(amounts)), key=amounts.__getitem__)
    cash, above, below = amounts[largest], amounts[:largest], amounts[largest + 1 :]
    if not any(above) or _sums_up(above, cash):
        return largest
    owed = max(range(largest), key=lambda i: (amounts[i], i))
    changed = cash % _ROUND == 0 and cash - amounts[owed] in below
    return owed if changed or _sums_up(above[:owed], amounts[owed]) else largest


def _sums_up(above: Sequence[int], total: int) -> bool:
    """Whether a total is the sum of the last two or more amounts above it."""
    return total in [*accumulate(filter(None, reversed(above)))][1:]


def whole_text(hit: Hit) -> str:
    """The whole text of an image after its name; of a long one the beginning. "" without a text."""
    kept: list[str] = []
    for line in lines_of(hit):
        if sum(map(len, kept)) + len(line) > _MOST_CHARS:
            kept.append(f"{line[: max(0, _MOST_CHARS - sum(map(len, kept)))].rstrip()} …")
            break
        kept.append(line)
    return headed(hit, kept) if kept else ""
