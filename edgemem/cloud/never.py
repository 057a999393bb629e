"""What may never be sent, and a last look at what is about to be.

A memory may leave only if nothing that it shares source turns with is marked: not its turns, not
the facts taken from those, not what these were taken from besides. Copies that share no turn (the
same words said again) are caught by their words: a sentence of a marked text does not leave in any
text. Invisible characters and letters that look like others hide nothing. What says the same in
other words is not recognised.

A pattern `image:ID` marks an image: neither it leaves, nor what was said with it or read in it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass

from edgemem.config import expression
from edgemem.errors import CloudRejected
from edgemem.language import content_words, sentences, undisguised, words
from edgemem.results import Scope
from edgemem.store import Store
from edgemem.store.receipts import Related, marked_texts, marks, related
from edgemem.store.relations import other_names

__all__ = ["IMAGE", "Guard", "guard", "matches"]

IMAGE = "image:"

_MIN_WORDS = 3  # of content; shorter sentences ("Yes, please") belong to nobody


@dataclass(frozen=True, slots=True)
class Guard:
    """The rules of one moment. patterns: as in the settings; scopes: absent parts match all.

    images: ids.
    """

    patterns: tuple[str, ...]
    scopes: tuple[Scope, ...]
    quotes: frozenset[str]
    images: frozenset[str] = frozenset()

    def allows(self, text: str) -> bool:
        """Whether a text holds nothing that a pattern matches, nor a sentence of a marked text."""
        if any(matches(pattern, text) for pattern in self.patterns):
            return False
        # All at once, padded, so that a quotation is found wherever its sentence was cut.
        flat = f" {_flat(text)} "
        return not any(quote in flat for quote in self.quotes)

    def allows_scope(self, scope: Scope) -> bool:
        """Whether messages of a scope may leave at all."""
        return not any(_covers(marked, scope) for marked in self.scopes)

    def check(self, texts: Iterable[str], scope: Scope) -> None:
        """Raise CloudRejected unless all may leave. Names no text: errors are shown and logged."""
        if not self.allows_scope(scope):
            raise CloudRejected(
                "nothing of this user, agent or run may be sent (never_send); it was not sent. "
                "`edgemem cloud never-send` lists what is marked"
            )
        if not all(map(self.allows, texts)):
            raise CloudRejected(
                "this holds what may never be sent (never_send); it was not sent. "
                "`edgemem cloud never-send` lists what is marked"
            )

    def sendable(self, store: Store, memory_ids: Sequence[str]) -> frozenset[str]:
        """Those memories that may leave."""
        tied = related(store, memory_ids)
        return frozenset(id for id, rows in tied.items() if all(map(self._is_free, rows)))

    def _is_free(self, row: Related) -> bool:
        seen = not self.images.isdisjoint(row.images)
        return not (row.flagged or seen) and self.allows_scope(row.scope) and self.allows(row.text)


def guard(store: Store, patterns: Sequence[str]) -> Guard:
    """The rules in force. patterns: of the settings, beside those in the store."""
    found = marks(store)
    listed = (*patterns, *(mark.pattern for mark in found if mark.pattern is not None))
    given = tuple(pattern for pattern in listed if not pattern.startswith(IMAGE))
    # Whom a pattern names by one name may be called by another.
    aliases = [
        name
        for names in (other_names(store) if given else ())
        if any(matches(pattern, name) for pattern in given for name in names)
        for name in names
    ]
    return Guard(
        patterns=(*given, *aliases),
        scopes=tuple(mark.scope for mark in found if mark.pattern is None),
        quotes=frozenset(quote for text in marked_texts(store) for quote in _quotes(text)),
        images=frozenset(p.removeprefix(IMAGE) for p in listed if p.startswith(IMAGE)),
    )


def matches(pattern: str, text: str) -> bool:
    """Whether a pattern is in a text, as it is or as a reader sees it: a regular expression between
    slashes, or the beginning of words, whatever their case. An expression that is none matches
    everything."""
    plain = undisguised(text)[0]
    return _is_in(pattern, text) or (plain != text and _is_in(undisguised(pattern)[0], plain))


def _is_in(pattern: str, text: str) -> bool:
    if (form := expression(pattern)) is not None:
        try:
            return re.search(form, text, re.I) is not None
        except re.error:
            return True
    keyword = r"\s+".join(map(re.escape, pattern.split()))
    return re.search(rf"(?<![^\W_]){keyword}", text, re.I) is not None


def _covers(marked: Scope, scope: Scope) -> bool:
    pairs = zip(astuple(marked), astuple(scope), strict=True)
    return all(one in (None, other) for one, other in pairs)


def _flat(text: str) -> str:
    return " ".join(words(undisguised(text)[0]))


def _quotes(text: str) -> Iterable[str]:
    for sentence in sentences(text):
        if len(content_words(sentence)) >= _MIN_WORDS:
            yield f" {_flat(sentence)} "
