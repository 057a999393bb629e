"""An engine with the stage given. Knows the engine's two calls, and not what any stage is for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Unpack

from edgemem.runtime.streams import Generation, Options, Stream
from edgemem.runtime.vocabulary import Prompt

if TYPE_CHECKING:
    from edgemem.runtime.engine import Engine

__all__ = ["Stage"]


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage of an engine, with its adapters and its prefix; see `Engine.stage`."""

    engine: Engine
    name: str

    @property
    def expert(self) -> bool:
        return self.engine.expert(self.name)

    def generate(self, prompt: Prompt, **options: Unpack[Options]) -> Generation:
        """`Engine.generate` in this stage."""
        options["stage"] = self.name
        return self.engine.generate(prompt, **options)

    def stream(self, prompt: Prompt, **options: Unpack[Options]) -> Stream:
        """`Engine.stream` in this stage."""
        options["stage"] = self.name
        return self.engine.stream(prompt, **options)

    def __enter__(self) -> Stage:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is to be undone: the next stage's adapters are switched to when it runs."""
