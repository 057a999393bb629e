"""Words for full-text search: what of a memory is indexed, and what of a query is asked.

Knows FTS5's query syntax as text; runs no SQL.
"""

from __future__ import annotations

from datetime import datetime

from edgemem.stages.dates import day_text
from edgemem.text import content_words, words

__all__ = ["match_expression", "search_text"]

MAX_WORDS = 32  # of a query; a pasted page is no better asked with all its words


def search_text(text: str, *, speaker: str | None = None, when: str | None = None) -> str:
    """What full-text search sees of a memory: its text, who said it and the day it speaks of.

    when: ISO-8601. Dates are written as people ask for them ("May 2023"): on LoCoMo, questions name
    the speaker and the month more often than any other word.
    """
    day = day_text(datetime.fromisoformat(when).date()) if when else ""
    return "\n".join(part for part in (text, speaker or "", day) if part)


def match_expression(query: str) -> str | None:
    """An FTS5 expression for any of a query's words, or None if it has no word to look for.

    Stop words are left out: with them each search reads most of the index.
    """
    found = list(dict.fromkeys(content_words(query) or words(query)))[:MAX_WORDS]
    return " OR ".join(f'"{word}"' for word in found) or None
