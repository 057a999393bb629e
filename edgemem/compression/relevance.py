"""How much each sentence has to do with a question.

Knows sentences, words and an Embedder; knows no tokens and no budget.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from edgemem.compression.layout import Layout
from edgemem.text import STOP_WORDS, content_words, same_word, words

if TYPE_CHECKING:
    from edgemem.runtime.embedder import Embedder

__all__ = ["relevance", "sentence_texts"]

FloatArray = NDArray[np.float32]

# Chosen by the answers' words that were kept, on LoCoMo's eight conversations (bench/LOG.md).
_SENTENCE, _TURN = 1.5, 0.5  # of cosines
_ASKED, _ASKED_OF_TURN = 0.3, 0.5  # of the shares of the question's words
_NEW = 0.25  # of the logarithm of how many other words there are
_ASKS = 0.1  # what a sentence loses that is itself a question


def relevance(
    layout: Layout,
    question: str,
    embedder: Embedder | None = None,
    *,
    turns: FloatArray | None = None,
) -> FloatArray:
    """(s,) float32, larger is nearer to the question, and has more to say about it.

    The cosine of a sentence (of it and who says it) counts most, that of its turn's nearest
    sentence a third of it; then the shares of the question's words that both have, and the
    logarithm of the words that the sentence has beside them: "Yes, me too!" is near to much and
    tells nothing.
    turns: (t,) cosines of whole turns, where they are known (a search computed them); no text is
    then embedded, and they stand for those of the sentences as well. Without embedder and turns,
    words alone decide.
    """
    bodies, speakers = sentence_texts(layout)
    turn = layout.turn
    asked = list(dict.fromkeys(content_words(question)))
    said = [set(words(body)) for body in bodies]
    in_turn = [set(words(speaker)) for speaker in speakers]
    for t, found in zip(turn.tolist(), said, strict=True):
        in_turn[t] |= found
    new = [len(found - STOP_WORDS - {*asked}) for found in said]
    asks = [body.rstrip().endswith(("?", "？")) for body in bodies]
    score = _ASKED * _shares(asked, said) + _ASKED_OF_TURN * _shares(asked, in_turn)[turn]
    score += _NEW * np.log1p(new) - _ASKS * np.array(asks)
    if turns is not None:
        score += (_SENTENCE + _TURN) * turns[turn]
    elif embedder is not None and bodies:
        shown = [f"{speakers[t]} {b}" for t, b in zip(turn.tolist(), bodies, strict=True)]
        vectors = embedder.embed([question, *shown])
        cosines = vectors[1:] @ vectors[0]
        best = np.full(len(speakers), -1.0, np.float32)
        np.maximum.at(best, turn, cosines)
        score += _SENTENCE * cosines + _TURN * best[turn]
    return score.astype(np.float32)


def sentence_texts(layout: Layout) -> tuple[list[str], list[str]]:
    """Of each sentence its text without the head, and of each turn who speaks: "Ana:"."""
    n_turns = int(layout.turn.max(initial=-1)) + 1
    bodies, speakers = [""] * len(layout.turn), [""] * n_turns
    for head in (True, False):
        at = np.flatnonzero(layout.head == head)
        number = layout.turn[layout.sentence[at]] if head else layout.sentence[at]
        first = np.flatnonzero(np.diff(number, prepend=-1))
        last = np.append(first[1:], len(at)) - 1
        for n, a, b, z in zip(
            number[first].tolist(),
            layout.starts[at[first]].tolist(),
            layout.ends[at[last]].tolist() if len(at) else [],
            layout.starts[at[last]].tolist() if len(at) else [],
            strict=True,
        ):
            if head:
                speakers[n] = layout.text[z:b]  # without the date
            else:
                bodies[n] = layout.text[a:b]
    return bodies, speakers


def _shares(asked: list[str], said: list[set[str]]) -> NDArray[np.float64]:
    """Which share of the words, or other forms of them, each of some sets of words has."""
    if not asked:
        return np.zeros(len(said))
    # Forms of a word begin alike, which is quickly seen.
    starts = {w[:3] for w in asked}
    near = [o for o in set().union(*said) if o[:3] in starts]
    forms = [{o for o in near if o[:3] == w[:3] and same_word(w, (o,))} for w in asked]
    return np.array([sum(not f.isdisjoint(s) for f in forms) for s in said]) / len(asked)
