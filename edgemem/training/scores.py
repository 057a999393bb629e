"""Scores of a text against a wanted one. Knows words; no model, no data.

Tokens are lower-case words and numbers without articles, as LoCoMo's own evaluation has them. All
are between 0 and 1.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from edgemem.text import words

__all__ = ["bleu_1", "macro", "rouge_1", "rouge_l", "token_f1"]

_ARTICLES = frozenset(("a", "an", "the", "and"))


def token_f1(found: str, wanted: str) -> float:
    """F1 of shared tokens, each counted as often as both have it; 1 if both have none."""
    return _f1(_tokens(found), _tokens(wanted))


def rouge_1(found: str, wanted: str) -> float:
    """F1 of shared words, articles included."""
    return _f1(words(found), words(wanted))


def rouge_l(found: str, wanted: str) -> float:
    """F1 of the longest common subsequence of tokens."""
    a, b = _tokens(found), _tokens(wanted)
    longest = [0] * (len(b) + 1)
    for x in a:
        diagonal = 0
        for j, y in enumerate(b):
            above = longest[j + 1]
            longest[j + 1] = diagonal + 1 if x == y else max(above, longest[j])
            diagonal = above
    return 2 * longest[-1] / (len(a) + len(b)) if a or b else 1.0


def bleu_1(found: str, wanted: str) -> float:
    """Share of the found tokens that are wanted; a short answer loses by exp(1 - wanted/found)."""
    a, b = _tokens(found), _tokens(wanted)
    if not a or not b:
        return float(a == b)
    precision = (Counter(a) & Counter(b)).total() / len(a)
    return precision * min(1.0, math.exp(1 - len(b) / len(a)))


def macro(pairs: Sequence[tuple[str, str]]) -> dict[str, float]:
    """Share of (wanted, given) labels that are equal, for each wanted label."""
    right: dict[str, list[bool]] = {}
    for wanted, given in pairs:
        right.setdefault(wanted, []).append(wanted == given)
    return {label: sum(hits) / len(hits) for label, hits in sorted(right.items())}


def _tokens(text: str) -> list[str]:
    return [w for w in words(text) if w not in _ARTICLES]


def _f1(a: Sequence[str], b: Sequence[str]) -> float:
    if not a and not b:
        return 1.0
    return 2 * (Counter(a) & Counter(b)).total() / (len(a) + len(b))
