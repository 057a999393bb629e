"""A stand-in for the language model, at the engine's seam: the same calls, answers known."""

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from edgemem.runtime.engine import Generation, Stream
from edgemem.stages import intent
from edgemem.stages.update import expert_prompt

ANSWER = '{"event": "'  # how an update expert's answer begins


class FakeEngine:
    """Answers every question with `pieces`; takes from a sentence the fact that `facts` has for it.

    facts: sentence to fact, in which {} stands for the speaker. ends: new fact to the old one that
    it ends; wants: what a message wants, "tell" if it is none of these. There is an expert for
    updates, and one for intents where `wants` is given. between: called between two pieces.
    prompts: what was asked, by stage. within: the texts that the last answer had to quote.
    """

    name = "fake"
    n_ctx = 2048
    has_chat_template = True
    sees = False
    mmproj = None
    notes: tuple[str, ...] = ()
    log_p = math.log(0.1)  # of every answer
    n_params = 135_000_000
    path = Path(__file__)  # no model that experts are for

    def __init__(
        self,
        pieces=("Oslo", ", I think."),
        facts=None,
        between=lambda: None,
        ends=None,
        wants=None,
    ):
        self.pieces, self.facts, self.between = pieces, dict(facts or {}), between
        self.ends, self.wants = dict(ends or {}), dict(wants or {})
        self.prompts: list[tuple[str, Any]] = []
        self.within: Sequence[str] | None = None
        self.prefill = ""
        self.broken = False

    def drop_prefixes(self):
        self.prompts.clear()

    def memory(self):
        return {"weights": 90_000_000, "kv": 47_000_000, "adapters": 0}

    def expert(self, stage):
        return stage == "update" or (stage == "intent" and bool(self.wants))

    def warm(self, stage, beginning, *, folder=None):
        return self.count_tokens(beginning)

    def count_tokens(self, prompt):
        return len(str(prompt).split())

    def stream(
        self,
        prompt,
        *,
        stage="",
        within=None,
        prefill="",
        **_,
    ):
        self.prompts.append((stage, prompt))
        self.within, self.prefill = within, prefill
        return Stream(self._pieces())

    def _pieces(self):
        for number, piece in enumerate(self.pieces):
            if number:
                self.between()
            yield piece
        return replace(_generation("".join(self.pieces)), log_p=self.log_p)

    def generate(self, prompt, *, stage="", **_):
        self.prompts.append((stage, prompt))
        if self.broken:
            return _generation("no JSON at all")
        if stage == "update":
            over = any(
                prompt == f"{expert_prompt(new, old)}{ANSWER}" for new, old in self.ends.items()
            )
            return _generation("DELETE" if over else "ADD")
        if stage == intent.STAGE:
            message = next(m for m in [*self.wants, ""] if f"\nMessage: {m}" in prompt)
            return _generation(f" {self.wants.get(message, 'tell')}")
        speaker, _, said = str(prompt).rstrip("\n").rpartition("\n")[2].partition(": ")
        fact = self.facts.get(said)
        return _generation(json.dumps({"facts": [fact.format(speaker)] if fact else []}))

    def close(self):
        pass


def _generation(text):
    return Generation(
        text=text,
        prompt_tokens=10,
        completion_tokens=2,
        cached_tokens=0,
        ttft_s=0.01,
        tokens_per_s=50.0,
        finish_reason="stop",
    )
