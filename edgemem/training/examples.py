"""Training examples: files of texts, as token ids, and packed into rows.

An example is what a stage's expert reads and what it should answer. The stages write both texts
(`expert_prompt`, `expert_target`), so that an expert is trained on what it is shown later. A
stage's examples begin with the same instruction; a row computes it once, and holds no padding.
An image becomes the projector's embeddings of it. The projector stays as it is; only the language
model is trained. llama.cpp is imported late, as the command line imports STAGES at its start.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from edgemem.errors import InputError, ModelError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from edgemem.runtime.engine import Engine
    from edgemem.runtime.vocabulary import Vocabulary

__all__ = ["STAGES", "Example", "Row", "Stage", "Tokens", "read", "rows", "tokenized", "write"]

Stage = Literal["extraction", "update", "generation", "reply", "talk", "intent", "vision"]
STAGES: tuple[Stage, ...] = get_args(Stage)
MAX_TOKENS = 2048  # of one example: the engine's default window


@dataclass(frozen=True, slots=True)
class Example:
    """One answer to learn. group: the conversation it is of; splits keep a group together.

    prompt: a text, or the messages of a chat. kind: what it is an example of ("empty", "DELETE",
    "temporal"), for counts and weights. earlier: indices of the prompt's messages that are answers
    to learn too. image: the file, for the stage "vision", whose prompt is a question.
    """

    stage: Stage
    prompt: str | list[dict[str, str]]
    target: str
    group: str
    kind: str = ""
    earlier: tuple[int, ...] = ()
    image: str = ""


def write(path: Path, examples: Iterable[Example]) -> int:
    """Write examples as JSON lines. Returns how many."""
    lines = [json.dumps(asdict(example), ensure_ascii=False) + "\n" for example in examples]
    path.write_text("".join(lines), encoding="utf-8")
    return len(lines)


def read(paths: Sequence[Path]) -> list[Example]:
    """The examples of JSON-lines files. Raises InputError, naming file and line."""
    found: list[Example] = []
    for path in paths:
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as exc:
            raise InputError(f"{path} cannot be read ({exc}); give JSON lines in UTF-8") from exc
        # Not splitlines: a text may hold a line separator that is no end of a line of JSON.
        for number, line in enumerate(text.split("\n"), 1):
            if not line:
                continue
            try:
                raw = json.loads(line)
                example = _pair(raw, path) if "question" in raw else _example(raw)
            except (TypeError, ValueError, LookupError, AttributeError, RecursionError) as exc:
                raise InputError(
                    f"{path}, line {number} is no training example ({exc}); expected JSON with "
                    "stage, prompt, target, group and kind, as `python -m corpus data` writes it, "
                    "or with image, question, answer and reason"
                ) from exc
            found.append(example)
    return found


def _pair(raw: dict[str, Any], path: Path) -> Example:
    """A question about an image with its answer, as MemLoRA-V's. path: the examples' file.

    The image's path is relative to that file. Questions about one image are one group, unless
    "group" says otherwise.
    """
    from edgemem.stages.vision import STAGE, expert_target

    image, question, answer, reason = (raw[k] for k in ("image", "question", "answer", "reason"))
    group = raw.get("group", image)
    if not all(isinstance(text, str) for text in (image, question, answer, reason, group)):
        raise TypeError("image, question, answer, reason and group must be texts")
    target, file = expert_target(answer, reason), path.parent / image
    return Example(STAGE, question, target, group, image=str(file.absolute()))


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
    """One example. prompt, target: at least one id each; the target's last ends the turn.

    earlier: ranges (first, end) of the prompt that are answers to learn too, in order; none begins
    at 0. seen: an embedding (n_embd,) for each of the prompt's ids below 0, which stand for an
    image.
    """

    prompt: tuple[int, ...]
    target: tuple[int, ...]
    earlier: tuple[tuple[int, int], ...] = ()
    seen: dict[int, NDArray[np.float32]] = field(default_factory=dict, compare=False, repr=False)

    def __len__(self) -> int:
        return len(self.prompt) + len(self.target)

    @property
    def learned(self) -> int:
        """How many tokens are predicted."""
        return len(self.target) + sum(end - first for first, end in self.earlier)

    @property
    def head(self) -> tuple[int, ...]:
        """The tokens before the first answer."""
        return self.prompt[: self.earlier[0][0]] if self.earlier else self.prompt


def tokenized(base: Path, examples: Sequence[Example], mmproj: Path | None = None) -> list[Tokens]:
    """Prompt and target of each example; the model's end-of-turn token ends the target.

    The two are tokenized separately, as the engine never sees them joined. mmproj: the projector,
    for examples with images. Raises ModelError when base is no model with a vocabulary, or its
    images cannot be trained on; InputError on an example of more than MAX_TOKENS, on a bad image,
    and on images without mmproj.
    """
    from edgemem.runtime.vocabulary import vocabulary_of

    with ExitStack() as opened:
        vocabulary = opened.enter_context(vocabulary_of(base))
        if any(example.image for example in examples):
            engine = opened.enter_context(_seeing(base, mmproj))
            known: dict[str, Tokens] = {}
            found = [_tokens_of_image(engine, vocabulary, e, known) for e in examples]
        else:
            found = [_tokens(vocabulary, example) for example in examples]
    for example, tokens in zip(examples, found, strict=True):
        if len(tokens) > MAX_TOKENS:
            raise InputError(
                f"an example of group {example.group!r} has {len(tokens)} tokens; at most "
                f"{MAX_TOKENS} are allowed: show it fewer turns or memories"
            )
    return found


def _seeing(base: Path, mmproj: Path | None) -> Engine:
    from edgemem.runtime.engine import Engine

    if mmproj is None:
        raise InputError("the examples show images; give the model's projector with --mmproj")
    engine = Engine.load(base, mmproj=mmproj, n_ctx=MAX_TOKENS, tuned=False)
    if not engine.images_in_order:
        engine.close()
        raise ModelError(
            f"{base.name} reads an image in both directions, or with positions in two dimensions, "
            "which the trainer does not; train on a model such as InternVL or SmolVLM"
        )
    return engine


def _tokens_of_image(
    engine: Engine, vocabulary: Vocabulary, example: Example, known: dict[str, Tokens]
) -> Tokens:
    """The tokens of a question about an image. known: a cache of each image's tokens, by file."""
    from edgemem import images as picture
    from edgemem.stages import vision

    pixels = picture.pixels(picture.read(Path(example.image)).data, vision.LONGEST)
    if example.image not in known:
        tokens, parts = engine.embeddings(pixels)
        below = (token for token in tokens if token < 0)
        seen = dict(zip(below, (row for part in parts for row in part), strict=True))
        known[example.image] = Tokens(tuple(tokens), (), seen=seen)
    image = known[example.image]
    parts_of = vision.expert_prompt(example.prompt, pixels)  # type: ignore[arg-type]
    prompt = vocabulary.prompt_tokens(parts_of, lambda *_: list(image.prompt))
    target = *vocabulary.tokenize(example.target), vocabulary.end_of_turn
    return Tokens(tuple(prompt), target, seen=image.seen)


def _tokens(vocabulary: Vocabulary, example: Example) -> Tokens:
    if isinstance(example.prompt, str):  # a chat template has its own end of an answer: see below
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
    lengths: how many tokens the shared beginning has (0: none), then each example's own.
    predictors: indices of the tokens whose logits are wanted; labels: the ids they should predict.
    seen: an embedding (n_embd,) for each id below 0.
    """

    ids: list[int]
    positions: list[int]
    lengths: list[int]
    predictors: list[int]
    labels: list[int]
    seen: dict[int, NDArray[np.float32]] = field(default_factory=dict)


def pack(examples: Sequence[Tokens]) -> Row:
    """One row of one or more examples, each of which sees the shared beginning and itself."""
    shared = _shared([e.head for e in examples])
    ids = list(examples[0].prompt[:shared])
    row = Row(ids, list(range(shared)), [shared], [], [])
    for example in examples:
        # The last target token is predicted, and predicts nothing.
        own = (*example.prompt, *example.target[:-1])[shared:]
        before = len(ids) - 1 - shared  # plus a token's index: its predictor's index in the row
        for first, end in (*example.earlier, (len(example.prompt), len(example))):
            row.predictors.extend(range(before + first, before + end))
            row.labels.extend((*example.prompt, *example.target)[first:end])
        row.lengths.append(len(own))
        row.positions.extend(range(shared, shared + len(own)))
        ids.extend(own)
        row.seen.update(example.seen)
    return row


def rows(examples: Sequence[Tokens], max_tokens: int) -> list[Row]:
    """Rows packed by first fit, longest first; each has at most max_tokens, or one example."""
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
    """How many tokens all prompts begin with; fewer than the shortest prompt has."""
    count = min(map(len, prompts)) - 1
    for one, other in pairwise(prompts):
        count = next((i for i in range(count) if one[i] != other[i]), count)
    return count
