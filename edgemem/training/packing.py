"""Examples as token ids, packed into rows: one beginning that all share, then each example's own.

A stage's examples begin with the same instruction, so a row computes it once, and holds no padding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from edgemem.errors import InputError, ModelError
from edgemem.runtime import llama
from edgemem.runtime.vocabulary import Vocabulary
from edgemem.training.examples import Example

__all__ = ["MAX_TOKENS", "Row", "Tokens", "pack", "rows", "tokenized"]


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


MAX_TOKENS = 2048  # of one example: the engine's default window


def tokenized(base: Path, examples: Sequence[Example]) -> list[Tokens]:
    """Prompt and target of each example; the model's end-of-turn token ends the target.

    They are tokenized apart, for the engine never sees them joined. Raises ModelError when base is
    no model with a vocabulary, InputError on an example of more than MAX_TOKENS.
    """
    lib, model = llama.library(), llama.open_vocabulary(base)
    try:
        vocabulary = Vocabulary(lib, model, base.stem)
        end = lib.llama_vocab_eot(vocabulary.handle)
        if end < 0:
            end = lib.llama_vocab_eos(vocabulary.handle)
        found = [_tokens(vocabulary, example, end) for example in examples]
        vocabulary.close()
    finally:
        lib.llama_model_free(model)
    for example, tokens in zip(examples, found, strict=True):
        if len(tokens) > MAX_TOKENS:
            raise InputError(
                f"an example of group {example.group!r} has {len(tokens)} tokens; at most "
                f"{MAX_TOKENS} are allowed: show it fewer turns or memories"
            )
    return found


def _tokens(vocabulary: Vocabulary, example: Example, end: int) -> Tokens:
    """end: the token that ends an answer to a plain text; a chat's template has its own."""
    if isinstance(example.prompt, str):
        prompt = vocabulary.prompt_tokens(example.prompt)
        return Tokens(tuple(prompt), (*vocabulary.tokenize(example.target), end))
    chat = [*example.prompt, {"role": "assistant", "content": example.target}]
    tokens = vocabulary.prompt_tokens(chat)
    answers = []
    for place in (*example.earlier, len(chat) - 1):
        first = len(vocabulary.prompt_tokens(chat[:place]))
        stop = first + len(vocabulary.tokenize(chat[place]["content"])) + 1
        if not vocabulary.ends(tokens[stop - 1]):
            raise ModelError(
                f"the chat template ends no answer after {chat[place]['content'][-20:]!r}; train "
                "on a model whose template shows an answer as the model writes it"
            )
        answers.append((first, stop))
    *earlier, (first, stop) = answers
    return Tokens(tuple(tokens[:first]), tuple(tokens[first:stop]), tuple(earlier))
