"""Words for full-text search: what of a memory is indexed, and what of a query is asked.

Knows FTS5's query syntax as text; runs no SQL.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime

from edgemem.stages.dates import day_text
from edgemem.text import content_words, words

__all__ = ["embedded_text", "match_expression", "query_words", "search_text"]

_DAY_LINE = re.compile(r"\n\d{1,2} [A-Z][a-z]+ \d{1,4}\Z")
MAX_WORDS = 32  # of a query; a pasted page is no better asked with all its words


def search_text(text: str, *, speaker: str | None = None, when: str | None = None) -> str:
    """What is indexed of a memory: who said it, the text, and the day it speaks of.

    when: ISO-8601. The day is written as people ask for it ("8 May 2023"). Questions name the
    speaker and the month more often than any other word: on LoCoMo, Hit@10 of the vectors alone
    rises from 0.36 to 0.50 with the speaker, that of BM25 from 0.56 to 0.69 with speaker and day.
    """
    said = f"{speaker}: {text}" if speaker else text
    return f"{said}\n{day_text(datetime.fromisoformat(when).date())}" if when else said


def embedded_text(search_text: str) -> str:
    """What of the indexed text the vector is made of: all but the day at its end.

    Two facts of different days that say the same must look the same.
    """
    return _DAY_LINE.sub("", search_text)


def query_words(query: str) -> list[str]:
    """The words of a query that are worth looking for, each once, at most 32.

    Stop words are left out (with them a search reads most of the index), unless there is no other.
    """
    return list(dict.fromkeys(content_words(query) or words(query)))[:MAX_WORDS]


def match_expression(words: Sequence[str]) -> str:
    """An FTS5 expression for any of the words (one or more)."""
    return " OR ".join(f'"{word}"' for word in words)
