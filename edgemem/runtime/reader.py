"""How a model reads and writes for a stage: decided here, once, from what the model can do.

Knows a loaded engine or a model's file, and the setting `reader`; knows no prompt.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from edgemem.errors import ModelError
from edgemem.runtime.gguf import read_header, read_only

if TYPE_CHECKING:
    from edgemem.runtime.engine import Engine

__all__ = ["INSTRUCT_PARAMS", "Reader", "Wanted", "reader_of", "reader_of_file"]

Reader = Literal["expert", "instruct", "quote"]
Wanted = Literal["auto", "expert", "instruct", "quote"]

INSTRUCT_PARAMS = 400_000_000
"""Parameters from which a model with a chat template follows an instruction."""


def reader_of(engine: Engine, stage: str, wanted: Wanted = "auto") -> Reader:
    """The way in which a model works for a stage.

    `expert`: it has an adapter for the stage. `instruct`: it has a chat template and at least
    INSTRUCT_PARAMS parameters, or the setting says so. `quote`: neither; it quotes what was said.
    Raises ModelError if the setting names a way that the model does not have.
    """
    if wanted == "expert" and not engine.expert(stage):
        raise ModelError(
            f"the setting reader is 'expert', but {engine.name} has no expert for {stage}; choose "
            "a set with one (`--experts`), or set reader to auto"
        )
    if wanted == "instruct" and not engine.has_chat_template:
        raise ModelError(
            f"the setting reader is 'instruct', but {engine.name} has no chat template; use an "
            "instruction-tuned model, or set reader to auto"
        )
    if wanted != "auto":
        return wanted
    if engine.expert(stage):
        return "expert"
    return _without_experts(engine.has_chat_template, engine.n_params)


def reader_of_file(file: Path, *, expert: bool) -> Reader:
    """The way in which a GGUF would work by itself. expert: whether a set has one for it.

    Raises ModelError when the file is damaged.
    """
    try:
        header = read_header(read_only(file))
    except ValueError as exc:
        raise ModelError(
            f"{file} is a damaged model ({exc}); check it with `edgemem models verify`"
        ) from exc
    n_params = sum(math.prod(tensor.shape) for tensor in header.tensors.values())
    if expert:
        return "expert"
    return _without_experts("tokenizer.chat_template" in header.values, n_params)


def _without_experts(has_chat_template: bool, n_params: int) -> Reader:
    return "instruct" if has_chat_template and n_params >= INSTRUCT_PARAMS else "quote"
