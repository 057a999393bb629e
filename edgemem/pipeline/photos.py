"""What the text of a photo tells, in few words: its caption, and the lines that matter.

The text of an image's memory is its caption and the text that was read in it. A whole receipt is no
quotation, so a list or an answer quotes the lines that it is about, below the photo's caption.

Knows the text of a memory; no store, no prompt.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from edgemem.language import asks, sentences
from edgemem.results import Hit

__all__ = ["TEXT_IN_IT", "amount", "caption_of", "head_of", "lines_of", "one_line", "quoted"]
__all__ += ["known_of", "read_out"]

TEXT_IN_IT = "Text in it: "
_LETTER, _RUNS_ON = 32, 0.8  # a line runs on from so many characters and share of the longest one
_AMOUNT = re.compile(r"(?<![\d.,/:-])(?:\d{1,3}(?:[., ']\d{3})+|\d{1,9})[.,]\d\d(?![\d/:-]|[.,]\d)")
_MOST_CHARS = 800  # of a text that is read out
_HEAD_CHARS = 80  # of a photo's name


def one_line(text: str) -> str:
    """The lines of an image's text as one line. A line runs on into the next if it is nearly as
    long as the longest, as in a letter, or if the next begins with a small letter. Any other line
    ends its sentence."""
    first, *rest = text.splitlines() or [""]
    full = _full(rest)
    one, last = first, ""
    for line in rest:
        apart = not (len(last) >= full or line[:1].islower() or one[-1:] in ".,;:!?")
        one += f"{'.' if apart else ''} {line}"
        last = line
    return one


def _full(lines: Sequence[str]) -> float:
    """The characters from which a line runs on into the next."""
    return max(_LETTER, _RUNS_ON * max(map(len, lines), default=0))


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
    """The lines of the text in an image; lines that run on are one (`one_line`)."""
    lines = hit.memory.partition(f"\n{TEXT_IN_IT}")[2].splitlines()
    full = _full(lines)
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


def known_of(hit: Hit) -> str:
    """All that is known of an image, but that it is a photo; "" if nothing else is."""
    return " ".join([caption_of(hit), *lines_of(hit)]).strip()


def quoted(hit: Hit, lines: Sequence[str]) -> str:
    """Some lines of an image's text, in one line after its name."""
    told = "; ".join(line.rstrip(".;") for line in lines)
    return f"{head_of(hit)}: {told}" if told else head_of(hit)


def amount(line: str) -> int:
    """The largest amount that a line names, in hundredths; 0 if it names none.

    >>> amount("2 Cola 4.00 of 1,204.50, 14.05.2027")
    120450
    """
    return max((int(re.sub(r"\D", "", found)) for found in _AMOUNT.findall(line)), default=0)


def read_out(hit: Hit) -> str:
    """The whole text of an image after its name; of a long one the beginning. "" without a text."""
    kept: list[str] = []
    for line in lines_of(hit):
        if sum(map(len, kept)) + len(line) > _MOST_CHARS:
            kept.append(f"{line[: max(0, _MOST_CHARS - sum(map(len, kept)))].rstrip()} …")
            break
        kept.append(line)
    return quoted(hit, kept) if kept else ""
