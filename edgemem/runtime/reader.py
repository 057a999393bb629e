"""How a model reads and writes for a stage: decided here, once, from what the model can do.

Knows a loaded engine and the setting `reader`; knows no prompt.
"""

from __future__ import annotations

from typing import Literal

from edgemem.errors import ModelError
from edgemem.runtime.engine import Engine

__all__ = ["INSTRUCT_PARAMS", "Reader", "Wanted", "reader_of"]

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
    if engine.has_chat_template and engine.n_params >= INSTRUCT_PARAMS:
        return "instruct"
    return "quote"
