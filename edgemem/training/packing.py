"""Examples packed into rows: one beginning that all share, then the examples end to end.

A stage's examples begin with the same instruction, so a row computes it once, and holds no padding.
Knows token ids; knows no tensors, no model and no text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

__all__ = ["Row", "Tokens", "pack", "rows"]


@dataclass(frozen=True, slots=True)
class Tokens:
    """One example. prompt: at least one id; target: at least one, the end of the turn its last.

    earlier: ranges (first, end) of the prompt that are answers to learn too, in order; none begins
    at 0.
    """

    prompt: tuple[int, ...]
    target: tuple[int, ...]
    earlier: tuple[tuple[int, int], ...] = ()

    def __len__(self) -> int:
        return len(self.prompt) + len(self.target)

    @property
    def learned(self) -> int:
        """How many tokens are predicted."""
        return len(self.target) + sum(end - first for first, end in self.earlier)

    @property
    def head(self) -> tuple[int, ...]:
        """What is read before the first answer."""
        return self.prompt[: self.earlier[0][0]] if self.earlier else self.prompt


@dataclass(frozen=True, slots=True)
class Row:
    """Examples that one forward pass computes.

    ids, positions: one per token; an example's positions go on where the shared beginning ends.
    lengths: tokens of the shared beginning (0: none), then those of each example that are its own.
    predictors: indices of the tokens whose logits are wanted; labels: the ids they should predict.
    """

    ids: list[int]
    positions: list[int]
    lengths: list[int]
    predictors: list[int]
    labels: list[int]


def pack(examples: Sequence[Tokens]) -> Row:
    """One row of one or more examples, each of which sees the shared beginning and itself."""
    shared = _shared([e.head for e in examples])
    ids = list(examples[0].prompt[:shared])
    row = Row(ids, list(range(shared)), [shared], [], [])
    for example in examples:
        # The last target token is predicted, and predicts nothing.
        own = (*example.prompt, *example.target[:-1])[shared:]
        before = len(ids) - 1 - shared  # of a token, the place of the one that predicts it
        for first, end in (*example.earlier, (len(example.prompt), len(example))):
            row.predictors.extend(range(before + first, before + end))
            row.labels.extend((*example.prompt, *example.target)[first:end])
        row.lengths.append(len(own))
        row.positions.extend(range(shared, shared + len(own)))
        ids.extend(own)
    return row


def rows(examples: Sequence[Tokens], max_tokens: int) -> list[Row]:
    """As few rows as first fit finds, each of at most max_tokens tokens, or of one example."""
    shared = _shared([e.head for e in examples])
    bins: list[list[Tokens]] = []
    room: list[int] = []
    for example in sorted(examples, key=len, reverse=True):
        own = len(example) - 1 - shared
        i = next((i for i, free in enumerate(room) if free >= own), None)
        if i is None:
            i = len(bins)
            bins.append([])
            room.append(max_tokens - shared)
        bins[i].append(example)
        room[i] -= own
    return [pack(b) for b in bins]


def _shared(prompts: Sequence[Sequence[int]]) -> int:
    """Tokens that all prompts begin with; less than any of them whole."""
    count = min(map(len, prompts)) - 1
    for one, other in pairwise(prompts):
        count = next((i for i in range(count) if one[i] != other[i]), count)
    return count
