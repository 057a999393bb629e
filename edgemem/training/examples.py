"""Training examples: what a stage's expert reads and what it should answer.

The stages write both texts (`expert_prompt`, `expert_target`), so that an expert is trained on what
it is shown later.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from edgemem.errors import InputError

__all__ = ["STAGES", "Example", "Stage", "read", "write"]

Stage = Literal["extraction", "update", "generation", "reply", "intent"]
STAGES: tuple[Stage, ...] = get_args(Stage)


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
