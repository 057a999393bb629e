"""What may never be sent, and a last check of what is about to be sent.

A memory may be sent only if nothing that it is tied to by source turns is marked: its turns, the
facts taken from these turns, the other turns of these facts, and so on. Copies in other turns are
recognised by their words: no text is sent that holds a sentence of a marked text. Invisible
characters, look-alike letters and a phone's apostrophes do not prevent this. A paraphrase is not
recognised.

A pattern `image:ID` marks an image: the image, the words said with it and the text in it stay.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass

from edgemem.config import expression
from edgemem.errors import CloudRejected
from edgemem.language import (
    APOSTROPHES,
    DIGRAPHS,
    content_words,
    is_unspaced,
    joins_words,
    sentences,
    undisguised,
    words,
)
from edgemem.results import Scope
from edgemem.store import Store
from edgemem.store.receipts import Related, marked_texts, marks, related
from edgemem.store.relations import other_names

__all__ = ["IMAGE", "Guard", "guard", "matches"]

IMAGE = "image:"

_MIN_WORDS = 3  # content words; shorter sentences ("Yes, please") are said by everybody
_MIN_CHARACTERS = 6  # the same in scripts without spaces


@dataclass(frozen=True, slots=True)
class Guard:
    """The rules in force at one moment.

    patterns: as in the settings. scopes: marked ones; an id that is None matches all. quotes:
    normalised sentences of marked texts. images: ids of marked images.
    """

    patterns: tuple[str, ...]
    scopes: tuple[Scope, ...]
    quotes: frozenset[str]
    images: frozenset[str] = frozenset()

    def allows(self, text: str) -> bool:
        """Whether a text has no match of a pattern and no sentence of a marked text."""
        if any(matches(pattern, text) for pattern in self.patterns):
            return False
        # The whole text at once, so that a quoted sentence is found however the text is split.
        flat = f" {_normalised(text)} "
        joined = flat.replace(" ", "")
        return not any(quote in flat or quote in joined for quote in self.quotes)

    def allows_scope(self, scope: Scope) -> bool:
        """Whether messages of a scope may be sent at all."""
        return not any(_covers(marked, scope) for marked in self.scopes)

    def check(self, texts: Iterable[str], scope: Scope) -> None:
        """Raises CloudRejected, without the text in its message, unless all texts may be sent."""
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
        """Returns the ids of the memories that may be sent."""
        tied = related(store, memory_ids)
        return frozenset(id for id, rows in tied.items() if all(map(self._is_free, rows)))

    def _is_free(self, row: Related) -> bool:
        seen = not self.images.isdisjoint(row.images)
        return not (row.flagged or seen) and self.allows_scope(row.scope) and self.allows(row.text)


def guard(store: Store, patterns: Sequence[str]) -> Guard:
    """Returns the rules in force. patterns: from the settings, added to those in the store."""
    found = marks(store)
    listed = (*patterns, *(mark.pattern for mark in found if mark.pattern is not None))
    given = tuple(pattern for pattern in listed if not pattern.startswith(IMAGE))
    # A person whom a pattern names may have other names.
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
    """Whether a pattern occurs in a text, as written or with disguised characters replaced.

    pattern: a regular expression between slashes, or a keyword, which also matches the beginning of
    a longer word. Case does not matter. An invalid expression matches everything.
    """
    bare, plain = undisguised(pattern)[0], undisguised(text)[0]
    if plain == text.translate(APOSTROPHES) and expression(pattern) is not None:
        bare = pattern.translate(APOSTROPHES)  # "[а-я]" in Latin letters has nearly all characters
    spelled = pattern.translate(DIGRAPHS), text.translate(DIGRAPHS)
    return _is_in(pattern, text) or _is_in(bare, plain) or _is_in(*spelled)


def _is_in(pattern: str, text: str) -> bool:
    if (form := expression(pattern)) is not None:
        try:
            return re.search(form, text, re.I) is not None
        except re.error:
            return True
    parts = re.split(r"[\s_-]+", pattern.strip())
    keyword = r"[\s_-]+".join(map(re.escape, parts))
    before = "" if joins_words(pattern.strip()) else r"(?<![^\W_])"
    return re.search(before + keyword, text, re.I) is not None


def _covers(marked: Scope, scope: Scope) -> bool:
    pairs = zip(astuple(marked), astuple(scope), strict=True)
    return all(one in (None, other) for one, other in pairs)


def _normalised(text: str) -> str:
    return " ".join(words(undisguised(text)[0]))


def _quotes(text: str) -> Iterable[str]:
    for sentence in sentences(text):
        flat = _normalised(sentence)
        if is_unspaced(flat):
            if len(joined := flat.replace(" ", "")) >= _MIN_CHARACTERS:
                yield joined
        elif len(content_words(sentence)) >= _MIN_WORDS:
            yield f" {flat} "
