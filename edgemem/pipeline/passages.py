"""What of the evidence is nearest to a question: its sentences, the parts of its replies, the lines
of its photos.

Knows a Memory for its embedder, and for what a reply answers; not which memories may be shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from edgemem import language
from edgemem.pipeline.photos import amount, caption_of, headed, lines_of, price
from edgemem.pipeline.replies import Part, joined, parts
from edgemem.results import Evidence, Hit

if TYPE_CHECKING:
    from edgemem.memory import Memory

__all__ = [
    "answered",
    "asks_to_see",
    "asks_whole",
    "near_lines",
    "nearest_sentences",
    "nearness",
    "shortened",
]

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
