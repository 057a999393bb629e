"""The graph: who is what to whom, and since when (Mem0ᵍ), read from facts by the encoder's expert.

A word is the mean of its tokens' states. A small feed-forward net scores each run of a few words
as an entity of a type. Another net scores each pair of the likeliest runs as a relation or none.
The nets and the expert are fitted by `python -m bench.fit_relations`, into
edgemem/data/relations.npz.
Source: the span-based reading of SpERT (Eberts and Ulges 2020), with LoRA instead of a whole model.

Knows one fact as text and the language's dates; the store keeps the relations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import permutations
from typing import NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from edgemem import language
from edgemem.results import ONE_AT_A_TIME, Entity, EntityType, Label, at_day, local_time
from edgemem.runtime.encoder import Encoder, softmax
from edgemem.runtime.onnxfile import expert
from edgemem.store import NewRelation

__all__ = ["DISTANCES", "FUNCTIONAL", "LABELS", "LAYERS", "LONGEST", "TYPES", "USER", "Read"]
__all__ += ["ends", "pooling", "relations", "runs", "shapes", "triples", "version"]

Floats = NDArray[np.float32]
Run = tuple[int, int]
"""The first and the last word of a run."""

TYPES: tuple[EntityType, ...] = get_args(EntityType)
LABELS: tuple[Label, ...] = get_args(Label)
LAYERS = [1, 3, 5]
"""The layers of the encoder whose states are read."""
LONGEST = 8
"""Most words of a run."""
DISTANCES = 20
"""Most words between the beginnings of two runs; a larger distance counts as this one."""
USER = "User"
"""How facts name a user who gave no name."""
FUNCTIONAL: frozenset[Label] = ONE_AT_A_TIME | {"born_in", "born_on", "comes_from"}
"""Relations with at most one target for an entity at any time."""

_VERSION = 4  # of the fitted weights; under a higher version every fact is read again
_UNDATED: frozenset[Label] = frozenset((
    # Done once: "for two weeks" says how long it took, not since when it holds.
    "visited", "plans_to_visit", "bought", "made", "attends", "happens_on", "born_on", "born_in",
    # A date in the fact does not say when these began.
    "parent_of", "child_of", "sibling_of", "relative_of", "is_a", "located_in", "comes_from",
))  # fmt: skip
_STATES: frozenset[Label] = frozenset((
    # A fact's day is that of an event or a change. It does not say when these began.
    "parent_of", "child_of", "sibling_of", "relative_of", "friend_of", "colleague_of",
    "neighbour_of", "has_pet", "member_of", "owns", "likes", "dislikes", "allergic_to",
    "has_condition", "speaks", "plays", "practises", "is_a", "located_in", "comes_from", "aged",
))  # fmt: skip

_WORDS = 160  # most words of a fact that is read, as they cost time
_RUN = 0.12  # probability from which a run may be an end of a relation
_RUNS = 14  # most runs, since each two are scored
_SURE = 0.48  # least probability of a relation; a search still finds the fact of a missing one


class Read(NamedTuple):
    """A relation as it was read: its two runs, its label, and the types of the runs."""

    source: Run
    target: Run
    label: Label
    types: tuple[EntityType, EntityType]


def version(encoder: Encoder | None) -> int:
    """The version of the fitted weights, stored with each fact that they read. It is 0 without an
    encoder, so that the facts are read once there is an encoder."""
    return 0 if encoder is None else _VERSION


def relations(
    encoder: Encoder | None,
    fact: str,
    valid_from: str,
    said: str | None = None,
    told_at: str | None = None,
) -> list[NewRelation]:
    """The relations that a fact tells; none without an encoder.

    valid_from: when the fact was told or began, ISO-8601 UTC. said: the text of its turns; a
    relation whose target is not named in it is left out. told_at: when it was told; None takes
    valid_from. A state begins then, unless the fact says that it began earlier.
    """
    told_at = told_at or valid_from
    in_turns = None if said is None else set(language.words(said))
    found = []
    for triple in triples(fact, encoder) if encoder is not None else ():
        if in_turns is not None and not _was_said(triple.target, in_turns):
            continue
        since = None
        if triple.label not in _UNDATED:
            since = language.held_since(fact, triple.target.name, local_time(valid_from))
        begins = at_day(since) if since else None
        if triple.label in _STATES:
            begins = min(begins or told_at, told_at)
        found.append(replace(triple, valid_from=begins))
    return found


def _was_said(target: Entity, said: set[str]) -> bool:
    """Whether a target's words were said.

    A fact writes dates out and replaces "my" by a name. So a date always counts as said, and a
    person counts as said if the last word of the name was.
    """
    if target.type == "date":
        return True
    named = language.content_words(target.name)
    named = named[-1:] if target.type == "person" else named
    return all(language.same_word(word, said) for word in named)


def triples(fact: str, encoder: Encoder) -> list[NewRelation]:
    """The relations that a fact states, in the order of its words, without `valid_from`.

    A question or a text of more than _WORDS words has none. A denied target can only be disliked.
    "her aunt" is left out unless the fact says whose aunt she is.
    """
    spans = language.word_spans(fact)
    if language.asks(fact) or not 1 < len(spans) <= _WORDS:
        return []
    if (read := encoder.read(expert("relations"), fact)) is None:
        return []
    seen = pooling(spans, read.offsets) @ np.concatenate(read.layers[LAYERS], axis=-1)
    seen = np.concatenate([seen, shapes(fact, spans)], axis=1)
    kept: list[Read] = []
    for new in _likely(seen, runs(fact, spans)):
        if not any(_clash(new, old) for old in kept):
            kept.append(new)

    def said(run: Run) -> str:
        return fact[spans[run[0]][0] : spans[run[1]][1]]

    called = dict(language.nicknames(fact))
    names: dict[Run, str] = {}
    for each in kept:  # "her father" is named by whose father he is: "Ana's father"
        kin = language.without_pronoun(said(each.target))
        if kin and each.types == ("person", "person"):
            names.setdefault(each.target, f"{said(each.source)}'s {kin}")

    def entity(run: Run, kind: EntityType) -> Entity:
        name = names.get(run, said(run))
        return Entity(name, kind, (called[name],) if name in called else ())

    found = [
        NewRelation(entity(r.source, r.types[0]), r.label, entity(r.target, r.types[1]))
        for r in sorted(kept, key=lambda r: (r.source, r.target))
    ]
    no = {word for clause in language.denied(fact) for word in clause}
    return [
        t
        for t in found
        if t.source.name.casefold() != t.target.name.casefold()
        and (t.label == "dislikes" or not no & {*language.content_words(t.target.name)})
        and not any(language.without_pronoun(end.name) for end in (t.source, t.target))
    ]


# -- the features ------------------------------------------------------------------------------


def pooling(words: Sequence[tuple[int, int]], offsets: Sequence[tuple[int, int]]) -> Floats:
    """(n, t) float32: row i averages the tokens of word i. Both are [first, end) characters."""
    within = np.array(
        [[first < end and last > start for first, last in offsets] for start, end in words],
        np.float32,
    )
    shares: Floats = within / np.maximum(within.sum(axis=1, keepdims=True), 1)
    return shares


def shapes(fact: str, words: Sequence[tuple[int, int]]) -> Floats:
    """(n, 8) float32: how each word is written; the encoder reads all text in lower case."""
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
    """The runs of words that may be an entity: neither their first nor last word is a mark."""
    word = [fact[start].isalnum() for start, _ in words]
    return [
        (i, j)
        for i in range(len(words))
        for j in range(i, min(len(words), i + LONGEST))
        if word[i] and word[j]
    ]


def ends(sources: Sequence[Run], targets: Sequence[Run]) -> tuple[NDArray[np.int64], list[Run]]:
    """For each source and its target: the distance of their beginnings, clipped to ±DISTANCES and
    shifted to start at 0, and the words between them as [first, last)."""
    apart = [b[0] - a[0] for a, b in zip(sources, targets, strict=True)]
    between = [
        (min(a[1], b[1]) + 1, max(a[0], b[0])) for a, b in zip(sources, targets, strict=True)
    ]
    return np.clip(np.array(apart, np.int64), -DISTANCES, DISTANCES) + DISTANCES, between


# -- the nets ----------------------------------------------------------------------------------


def _likely(seen: Floats, of: Sequence[Run]) -> list[Read]:
    """The relations of at least probability _SURE, the likeliest first.

    seen: (n, d), the features of each word. of: the runs to score.
    """
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
    types = softmax(run @ w["type.w"] + w["type.b"])
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
    labels = softmax(np.maximum(hidden, 0) @ w["label.w"] + w["label.b"])[:, 1:]
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


def _clash(new: Read, old: Read) -> bool:
    """Whether two relations join the same two runs, or have one label and overlapping targets
    ("Blue Heron", "Blue Heron bakery"), or one label, one target and overlapping sources."""
    if {new.source, new.target} == {old.source, old.target}:
        return True
    if new.label != old.label:
        return False
    if new.target == old.target:
        return _overlap(new.source, old.source)
    return _overlap(new.target, old.target)


def _overlap(one: Run, other: Run) -> bool:
    return one[0] <= other[1] and other[0] <= one[1]
