"""Training examples: files of texts, as token ids, and packed into rows.

An example is what a stage's expert reads and what it should answer. The stages write both texts
(`expert_prompt`, `expert_target`), so that an expert is trained on what it is shown later. A
stage's examples begin with the same instruction: a row computes it once, and holds no padding.
llama.cpp is imported late, for the command line reads STAGES at once.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from edgemem.errors import InputError, ModelError

if TYPE_CHECKING:
    from edgemem.runtime.vocabulary import Vocabulary

__all__ = [
    "MAX_TOKENS",
    "STAGES",
    "Example",
    "Row",
    "Stage",
    "Tokens",
    "pack",
    "read",
    "rows",
    "tokenized",
    "write",
]

Stage = Literal["extraction", "update", "generation", "reply", "intent"]
STAGES: tuple[Stage, ...] = get_args(Stage)
MAX_TOKENS = 2048  # of one example: the engine's default window


@dataclass(frozen=True, slots=True)
class Example:
    """One answer to learn. group: the conversation it is of; splits keep a group together.

    prompt: a text, or the messages of a chat. kind: what it is an example of ("empty", "DELETE",
    "temporal"), for counts and weights. earlier: places of messages in the prompt that are
    answers to learn too.
    """

    stage: Stage
    prompt: str | list[dict[str, str]]
    target: str
    group: str
    kind: str = ""
    earlier: tuple[int, ...] = ()


def write(path: Path, examples: Iterable[Example]) -> int:
    """Write examples as JSON lines; how many."""
    lines = [json.dumps(asdict(example), ensure_ascii=False) + "\n" for example in examples]
    path.write_text("".join(lines), encoding="utf-8")
    return len(lines)


def read(paths: Sequence[Path]) -> list[Example]:
    """The examples of JSON-lines files. Raises InputError, naming file and line."""
    found: list[Example] = []
    for path in paths:
        # Not splitlines: a text may hold a line separator that is no end of a line of JSON.
        for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), 1):
            if not line:
                continue
            try:
                example = _example(json.loads(line))
            except (TypeError, ValueError, LookupError) as exc:
                raise InputError(
                    f"{path}, line {number} is no training example ({exc}); expected JSON with "
                    "stage, prompt, target, group and kind, as `python -m corpus data` writes it"
                ) from exc
            found.append(example)
    return found


def _example(raw: dict[str, Any]) -> Example:
    example = Example(**{**raw, "earlier": tuple(raw.get("earlier", ()))})
    texts = [example.target, example.group, example.kind]
    if isinstance(example.prompt, str):
        texts.append(example.prompt)
    else:
        texts += [message[key] for message in example.prompt for key in ("role", "content")]
        if any(example.prompt[place]["role"] != "assistant" for place in example.earlier):
            raise ValueError("an earlier answer is no message of the assistant")
    if example.stage not in STAGES or not all(isinstance(text, str) for text in texts):
        raise ValueError(f"stage is {example.stage!r}; allowed: {', '.join(STAGES)}")
    return example


# -- as token ids ----------------------------------------------------------------------------------


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


def tokenized(base: Path, examples: Sequence[Example]) -> list[Tokens]:
    """Prompt and target of each example; the model's end-of-turn token ends the target.

    They are tokenized apart, for the engine never sees them joined. Raises ModelError when base is
    no model with a vocabulary, InputError on an example of more than MAX_TOKENS.
    """
    from edgemem.runtime.vocabulary import vocabulary_of

    with vocabulary_of(base) as vocabulary:
        found = [_tokens(vocabulary, example) for example in examples]
    for example, tokens in zip(examples, found, strict=True):
        if len(tokens) > MAX_TOKENS:
            raise InputError(
                f"an example of group {example.group!r} has {len(tokens)} tokens; at most "
                f"{MAX_TOKENS} are allowed: show it fewer turns or memories"
            )
    return found


def _tokens(vocabulary: Vocabulary, example: Example) -> Tokens:
    if isinstance(example.prompt, str):  # a chat's template ends an answer in a way of its own
        prompt = vocabulary.prompt_tokens(example.prompt)
        target = *vocabulary.tokenize(example.target), vocabulary.end_of_turn
        return Tokens(tuple(prompt), target)
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


# -- as rows ---------------------------------------------------------------------------------------


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
