"""Reads a fact as relations with an expert of the encoder.

A word is the mean of its tokens' states. Each run of a few words is scored as an entity of a type,
and each two of the likeliest runs as a label or none. Both are small feed-forward nets. They and
the expert are fitted by `python -m bench.fit_relations` and kept in edgemem/data/relations.npz.
Source: the span-based reading of SpERT (Eberts and Ulges 2020), with LoRA instead of a whole model.

Knows one fact as text and the language's dates; opens no store.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations
from typing import NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from edgemem.language import (
    asks,
    content_words,
    denied,
    held_since,
    nicknames,
    same_word,
    without_pronoun,
    word_spans,
    words,
)
from edgemem.results import Entity, EntityType, Label, Triple, at_day, local_time
from edgemem.runtime.encoder import Encoder
from edgemem.runtime.lowrank import expert
from edgemem.store import NewRelation

__all__ = ["DISTANCES", "FUNCTIONAL", "LABELS", "LAYERS", "LONGEST", "TYPES", "USER", "Read"]
__all__ += ["ends", "pooling", "relations", "runs", "shapes", "triples", "version"]

Floats = NDArray[np.float32]
Run = tuple[int, int]
"""The first and the last word of a run."""

TYPES: tuple[EntityType, ...] = get_args(EntityType)
LABELS: tuple[Label, ...] = get_args(Label)
LAYERS = [1, 3, 5]
"""Of the encoder's, those whose states are read."""
LONGEST = 8
"""Words of a run."""
DISTANCES = 20
"""Words between the beginnings of two runs; what is farther counts as this far."""
USER = "User"
"""How facts name the user who gave no name."""
FUNCTIONAL: frozenset[Label] = frozenset((
    "lives_in", "works_at", "works_as", "married_to", "partner_of", "engaged_to", "drives",
    "born_in", "born_on", "comes_from", "studies_at", "aged", "follows_diet",
))  # fmt: skip
"""What somebody has one of at a time."""

_VERSION = 3  # of the fitted weights; a higher one has every fact read again
_UNDATED: frozenset[Label] = frozenset((
    # What is done once: "for two weeks" says how long it took.
    "visited", "plans_to_visit", "bought", "made", "attends", "happens_on", "born_on", "born_in",
    # What no date in its fact begins.
    "parent_of", "child_of", "sibling_of", "relative_of", "is_a", "located_in", "comes_from",
))  # fmt: skip

_WORDS = 160  # of a fact; the work grows with their number
_RUN = 0.12  # probability from which a run may be an end of a relation
_RUNS = 14  # at most, since each two are looked at
_SURE = 0.45  # probability from which a relation is told; a missing one is still read in its fact


class Read(NamedTuple):
    """A relation as it was read: its two runs, label, and types of the runs."""

    source: Run
    target: Run
    label: Label
    types: tuple[EntityType, EntityType]


def version(encoder: Encoder | None) -> int:
    """Of the reader, to be stored with what it read: 0 without an encoder, so that a later reader
    reads it."""
    return 0 if encoder is None else _VERSION


def relations(
    encoder: Encoder | None, fact: str, valid_from: str, said: str | None = None
) -> list[NewRelation]:
    """The relations that a fact tells; none without an encoder.

    valid_from: when it was told or began, ISO-8601 UTC. said: the words of its turns; a relation to
    something that is not among them is left out.
    """
    in_turns = None if said is None else set(words(said))
    found = []
    for triple in triples(fact, encoder) if encoder is not None else ():
        if in_turns is not None and not _was_said(triple.target, in_turns):
            continue
        since = None
        if triple.label not in _UNDATED:
            since = held_since(fact, triple.target.name, local_time(valid_from))
        begins = at_day(since) if since else None
        found.append(NewRelation(triple.source, triple.label, triple.target, begins))
    return found


def _was_said(target: Entity, said: set[str]) -> bool:
    """Whether a target's words were said. Days are written out, and "my" becomes a name."""
    if target.type == "date":
        return True
    named = content_words(target.name)
    named = named[-1:] if target.type == "person" else named
    return all(same_word(word, said) for word in named)


def triples(fact: str, encoder: Encoder) -> list[Triple]:
    """What a fact says, in its order. A question and a long text say nothing, what is denied is
    only disliked, and "her aunt" is left out unless it was read whose she is.
    """
    spans = word_spans(fact)
    if asks(fact) or not 1 < len(spans) <= _WORDS:
        return []
    if (read := encoder.read(expert("relations"), fact)) is None:
        return []
    seen = pooling(spans, read.offsets) @ np.concatenate(read.layers[LAYERS], axis=-1)
    seen = np.concatenate([seen, shapes(fact, spans)], axis=1)
    kept = _without_clashes(_likely(seen, runs(fact, spans)))

    def said(run: Run) -> str:
        return fact[spans[run[0]][0] : spans[run[1]][1]]

    called = dict(nicknames(fact))
    names: dict[Run, str] = {}
    for each in kept:  # "her father" is known by whose he is
        kin = without_pronoun(said(each.target))
        if kin and each.types == ("person", "person"):
            names.setdefault(each.target, f"{said(each.source)}'s {kin}")

    def entity(run: Run, kind: EntityType) -> Entity:
        name = names.get(run, said(run))
        return Entity(name, kind, (called[name],) if name in called else ())

    found = [
        Triple(entity(r.source, r.types[0]), r.label, entity(r.target, r.types[1]))
        for r in sorted(kept, key=lambda r: (r.source, r.target))
    ]
    no = {word for clause in denied(fact) for word in clause}
    return [
        t
        for t in found
        if t.source.name.casefold() != t.target.name.casefold()
        and (t.label == "dislikes" or not no & {*content_words(t.target.name)})
        and not any(without_pronoun(end.name) for end in (t.source, t.target))
    ]


# -- the features ------------------------------------------------------------------------------


def pooling(words: Sequence[tuple[int, int]], offsets: Sequence[tuple[int, int]]) -> Floats:
    """(n, t): of each word the shares of the tokens in it, from their [start, end) characters."""
    within = np.array(
        [[first < end and last > start for first, last in offsets] for start, end in words],
        np.float32,
    )
    shares: Floats = within / np.maximum(within.sum(axis=1, keepdims=True), 1)
    return shares


def shapes(fact: str, words: Sequence[tuple[int, int]]) -> Floats:
    """(n, 8): how each word is written, which the embedder, all in lower case, does not see."""
    said = [fact[start:end] for start, end in words]
    return np.array(
        [
            [
                w[0].isupper(), w.isupper(), w[0].isdigit(), w in ("'s", "’s"),
                not w[0].isalnum(), i == 0, w == "User", w[0].islower(),
            ]
            for i, w in enumerate(said)
        ],
        np.float32,
    )  # fmt: skip


def runs(fact: str, words: Sequence[tuple[int, int]]) -> list[Run]:
    """The runs of words that may be an entity: they begin and end with no mark."""
    word = [fact[start].isalnum() for start, _ in words]
    return [
        (i, j)
        for i in range(len(words))
        for j in range(i, min(len(words), i + LONGEST))
        if word[i] and word[j]
    ]


def ends(sources: Sequence[Run], targets: Sequence[Run]) -> tuple[NDArray[np.int64], list[Run]]:
    """Of each two runs the distance of their beginnings, from 0 to twice DISTANCES, and the words
    between them as [first, last)."""
    apart = [b[0] - a[0] for a, b in zip(sources, targets, strict=True)]
    between = [
        (min(a[1], b[1]) + 1, max(a[0], b[0])) for a, b in zip(sources, targets, strict=True)
    ]
    return np.clip(np.array(apart, np.int64), -DISTANCES, DISTANCES) + DISTANCES, between


# -- the nets ----------------------------------------------------------------------------------


def _likely(seen: Floats, of: Sequence[Run]) -> list[Read]:
    """The relations that are likelier than not to be told, the likeliest first."""
    w = expert("relations")
    x = seen @ w["in.w"] + w["in.b"]
    x = (x - x.mean(axis=1, keepdims=True)) / np.sqrt(x.var(axis=1, keepdims=True) + 1e-5)
    x = x * w["norm.w"] + w["norm.b"]
    first, last = np.array(of, np.int64).reshape(-1, 2).T
    sums = np.concatenate([np.zeros_like(x[:1]), x.cumsum(axis=0)])
    mean = (sums[last + 1] - sums[first]) / (last - first + 1)[:, None]
    run = np.tanh(
        (x @ w["first.w"])[first] + (x @ w["last.w"])[last] + mean @ w["mean.w"]
        + w["length.w"][last - first] + w["run.b"]
    )  # fmt: skip
    types = _softmax(run @ w["type.w"] + w["type.b"])
    known = 1 - types[:, 0]
    best = [i for i in np.argsort(-known, kind="stable")[:_RUNS].tolist() if known[i] > _RUN]
    pairs = list(permutations(best, 2))
    if not pairs:
        return []
    source, target = np.array(pairs).T
    apart, between = ends([of[i] for i in source], [of[i] for i in target])
    middle = np.stack([x[a:b].max(axis=0) if a < b else np.zeros_like(x[0]) for a, b in between])
    hidden = (
        (run @ w["source.w"])[source] + (run @ w["target.w"])[target] + middle @ w["middle.w"]
        + x.max(axis=0) @ w["whole.w"] + w["apart.w"][apart] + w["pair.b"]
    )  # fmt: skip
    labels = _softmax(np.maximum(hidden, 0) @ w["label.w"] + w["label.b"])[:, 1:]
    label = labels.argmax(axis=1)
    sure = labels.max(axis=1) * np.sqrt(known[source] * known[target])
    kinds = types[:, 1:].argmax(axis=1)
    return [
        Read(
            of[source[i]], of[target[i]], LABELS[label[i]],
            (TYPES[kinds[source[i]]], TYPES[kinds[target[i]]]),
        )
        for i in np.argsort(-sure, kind="stable").tolist()
        if sure[i] >= _SURE
    ]  # fmt: skip


def _without_clashes(read: Sequence[Read]) -> list[Read]:
    """The surest relation of any two runs, and no label for two ends of which one holds the other:
    "Blue Heron" and "Blue Heron bakery"."""
    kept: list[Read] = []
    for new in read:
        if not any(_clash(new, old) for old in kept):
            kept.append(new)
    return kept


def _clash(new: Read, old: Read) -> bool:
    if {new.source, new.target} == {old.source, old.target}:
        return True
    if new.label != old.label:
        return False
    same_source, same_target = new.source == old.source, new.target == old.target
    return (not same_target and _overlap(new.target, old.target)) or (
        same_target and not same_source and _overlap(new.source, old.source)
    )


def _overlap(one: Run, other: Run) -> bool:
    return one[0] <= other[1] and other[0] <= one[1]


def _softmax(x: Floats) -> Floats:
    e = np.exp(x - x.max(axis=1, keepdims=True))
    out: Floats = e / e.sum(axis=1, keepdims=True)
    return out
