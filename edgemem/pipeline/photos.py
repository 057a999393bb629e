"""What the text of a photo tells, in few words: its caption, and the lines that matter.

Knows the text of a memory; no store, no prompt.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import accumulate

from edgemem.language import asks, sentences
from edgemem.results import Hit

__all__ = ["BARE", "TEXT_IN_IT", "amount", "caption_of", "head_of", "headed"]
__all__ += ["known_of", "lines_of", "one_line", "price", "whole_text"]

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
    parts = sentences(" ".join(hit.memory.partition(f"\n{TEXT_IN_IT}")[0].split()))
    head = " ".join([part for part in parts if not asks(part)] or parts)
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
