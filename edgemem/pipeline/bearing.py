"""What of the memories bears on a request for advice or for a text, and which sentence of it most.

What to cook for somebody depends on their allergy, though "coeliac" and "a quiche" have little in
common. A model below some billions of parameters overlooks it among other notes, unless its answer
begins with it. A logistic regression weighs how near a sentence is to the request, the words that
they share, how likely the sentence tells something lasting of each kind (people.py), and for a
constraint also how near it is. `python -m bench.fit_bearing` fits its weights, for one embedder;
with any other no sentence is found.

Knows a Memory; no prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from itertools import islice
from math import log
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from edgemem import language
from edgemem.pipeline.passages import known_of, near_lines
from edgemem.pipeline.people import KINDS, lasting, lasting_logits
from edgemem.pipeline.recall import (
    NEAR_BEST,
    evidence_of,
    oldest_first,
    round_robin,
    shares,
    that_tell,
    within,
)
from edgemem.results import Evidence, Hit, Scope
from edgemem.runtime.embedder import Embedder
from edgemem.runtime.onnxfile import expert
from edgemem.stages.material import is_material

if TYPE_CHECKING:
    from edgemem.memory import Memory

__all__ = ["bearing", "features", "foremost"]

_PHOTO_BEARS = 0.04  # least score of an image: a whole receipt is much to read in vain
_MANY, _LIKELIEST = 400, 16  # constraints of who is named in the task; of anybody
_FOREMOST, _QUOTED_CHARS = 2, 300  # sentences that an answer begins with; of each
_LEAST_LOGIT = log(0.3 / 0.7)  # of such a sentence
_PARTS, _OF_A_PART = 6, 4  # names and parts of a task that are searched for, hits of each


def bearing(
    memory: Memory, scope: Scope, task: str, hits: Sequence[Hit], *, most: int, advice: bool
) -> tuple[Evidence, ...]:
    """At most `most` turns that a task should agree with, oldest first.

    They are taken by turns from the hits of the search that are not far below the best one, and
    from those of a search for each name and part of the task. advice: also from what the user must
    avoid, or one named in the task or in these hits. What those named in the task must avoid has
    the first places, and leaves two. Turns that only ask are left out, and images and their
    captions that share no word with the task. Of an image the lines near to the task are shown.
    """
    rows: list[Sequence[Hit]] = [hits]
    lasts = lasting(memory, scope, "constraint", most=_MANY) if advice else []
    lasts = [hit for hit in lasts if hit.kind != "image"]  # not scored
    names = language.named(task, (hit.memory for hit in hits))
    for part in [*names, *language.parts_of(task)][:_PARTS]:
        rows.append(memory.search(part, top_k=_OF_A_PART, **asdict(scope)))
    of_each = [[h for h in lasts if shares([name], h.memory)][:_LIKELIEST] for name in names]
    lasts = [hit for hit in lasts[:_LIKELIEST] if all(hit not in row for row in of_each)]
    once = {hit.id: hit for row in [*rows, *of_each, lasts] for hit in row}  # each is read once
    tell = {hit.id for hit in that_tell(memory, once.values())}
    near = [within([hit for hit in row if hit.id in tell], NEAR_BEST) for row in rows]
    asked = language.content_words(task)
    near = [[hit for hit in row if _bears(memory, asked, hit)] for row in near]
    lasts, *of_each = ([hit for hit in row if hit.id in tell] for row in (lasts, *of_each))
    first = evidence_of(memory, None, list(round_robin(*of_each)))[: max(1, most - 2)]
    whom = set[str]().union(*(language.proper_names(hit.memory) for row in near for hit in row))
    own = _own(lasts, sure=bool(first))
    near.insert(1, [h for h in lasts if h in own or (not first and shares(whom, h.memory))])
    once_told: dict[str, Evidence] = {}
    for e in (*first, *evidence_of(memory, None, list(round_robin(*near)))):
        once_told.setdefault(e.text, e)
    found = islice(once_told.values(), most)
    cut = (replace(e, text=near_lines(memory, task, e.photo)) if e.photo else e for e in found)
    return oldest_first([*cut])


def _own(hits: Sequence[Hit], *, sure: bool) -> list[Hit]:
    """The hits that do not clearly tell of another than the user. sure: nor do their facts."""
    theirs = {id for hit in hits if hit.kind == "fact" and not _is_own(hit) for id in hit.sources}
    return [
        hit
        for hit in hits
        if _is_own(hit)
        and not (sure and theirs & {*hit.sources} and not language.is_of_speaker(hit.memory))
    ]


def _is_own(hit: Hit) -> bool:
    """Whether a hit does not clearly tell of another than the user. Of whom "She must not" tells is
    said in the message before."""
    told = hit.memory
    if hit.kind == "fact":
        return "User" in told
    others = language.is_of_another(told) and not language.leans_back(told)
    return language.is_of_speaker(told) or not others


def _bears(memory: Memory, asked: Sequence[str], hit: Hit) -> bool:
    """Whether a hit is neither an image nor its caption, or has a word of a task and a score."""
    if hit.kind == "image":
        told = known_of(hit)
    elif hit.kind == "turn" and _is_caption(memory, hit):
        told = hit.memory
    else:
        return True
    return hit.score >= _PHOTO_BEARS and shares(asked, told)


def _is_caption(memory: Memory, turn: Hit) -> bool:
    """Whether a turn is the caption of the image that was sent with it."""
    sent = memory.store.only_from(turn.sources, "image")
    captions = (item.image.caption for item in sent if item.image)
    return any(caption and turn.memory.startswith(caption) for caption in captions)


def foremost(memory: Memory, task: str, found: Sequence[Evidence]) -> tuple[str, ...]:
    """The sentences of the user's turns that an answer to a task should begin with: at most
    _FOREMOST that probably bear on it, as they were told. None is of a pasted text."""
    said = [e.text for e in found if e.speaker == "User" and not (e.photo or e.over)]
    said = [text for text in said if not is_material(memory.embedder, text)]
    told = [s for text in said for s in language.sentences(text) if not language.is_question(s)]
    told = [sentence for sentence in dict.fromkeys(told) if len(sentence) <= _QUOTED_CHARS]
    if not told or (read := features(memory.embedder, task, told)) is None:
        return ()
    logits = read @ expert("bearing")["weights"]
    best = np.argsort(-logits, kind="stable")[:_FOREMOST].tolist()
    return tuple(told[i] for i in sorted(best) if logits[i] >= _LEAST_LOGIT)


def features(embedder: Embedder, request: str, told: Sequence[str]) -> NDArray[np.float32] | None:
    """What the regression reads of sentences: (n, len(KINDS) + 4) float32, the last column 1. None
    with an embedder that nothing is fitted to."""
    vectors = embedder.embed(told)
    kinds = lasting_logits(embedder, vectors)
    if kinds is None:
        return None
    near = vectors @ embedder.embed_query(request)
    both = near * kinds[:, KINDS.index("constraint")]
    asked = {*language.content_words(request)}
    shared = [len(asked.intersection(language.content_words(sentence))) for sentence in told]
    return np.column_stack([near, kinds, both, shared, np.ones(len(told))]).astype(np.float32)
