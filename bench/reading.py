"""Model outputs that bench.compression needs, cached in a file.

Computes log p of an answer given its question and context, the reader's draft answers, and the
scores of a context's tokens. Each result is one line of the file, so that a stopped run can resume.
Knows no compression method and no figures over questions.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from bench.contexts import Case
from edgemem.compression.compress import Scores, self_information
from edgemem.compression.fisher import Model, fisher
from edgemem.runtime.engine import Engine

DRAFT_TOKENS = 24
PROMPT = (
    "Based on the following conversation context, answer the question concisely.\n"
    "Context:\n{}\nQuestion: {}\nAnswer:"
)  # CoreMem's appendix E
BARE = "Answer the question concisely.\nQuestion: {}\nAnswer:"
SCORE_DIGITS = 6


class Kept:
    """A cache in a file of JSON lines. A key is a tuple of strings."""

    def __init__(self, path: Path) -> None:
        self._path, self._found = path, _read_lines(path)

    def __call__(self, *key: str, make: Callable[[], Any]) -> Any:
        """The cached value of the key. If there is none, `make` computes and this stores it."""
        if key not in self._found:
            self._found[key] = made = make()
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps([key, made]) + "\n")
        return self._found[key]


def _read_lines(path: Path) -> dict[tuple[str, ...], Any]:
    """The entries of a cache file. Truncates a last line that a stopped run left incomplete."""
    if not path.exists():
        return {}
    text = path.read_text(encoding="utf-8")
    whole, _, cut = text.rpartition("\n")
    if cut:
        path.write_text(f"{whole}\n" if whole else "", encoding="utf-8")
    return {tuple(key): found for key, found in map(json.loads, whole.splitlines())}


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def draft(kept: Kept, reader: Engine, case: Case) -> str:
    """The reader's own answer from the whole context."""
    prompt = PROMPT.format("\n".join(case.lines), case.question)
    key = _digest(prompt)

    def make() -> str:
        answer = reader.generate(prompt, max_tokens=DRAFT_TOKENS, stop=("\n",), stage="scoring")
        return answer.text.strip()

    return str(kept("draft", reader.path.name, case.id, key, make=make))


def score(kept: Kept, engine: Engine, case: Case, kind: str, said: str) -> Scores:
    """The scores of the context's tokens.

    kind: "information" gives self-information; the others give Fisher scores. Their loss is that of
    the context itself ("context", with an empty `said`), or of `said` after it: the question
    ("question") or a draft of its answer ("draft").
    """
    text = "\n".join(case.lines)

    def make() -> list[Any]:
        if kind == "information":
            found = self_information(engine, text)
        else:
            before = "\nQuestion:"
            if kind == "draft":
                before += f" {case.question}\nAnswer:"
            with Model(engine.path) as model:
                worth = fisher(model, engine, text, said, before=before)
            found = Scores(engine.token_offsets(text), worth, "fisher")
        digits = [float(f"{value:.{SCORE_DIGITS}g}") for value in found.values]
        return [found.offsets.tolist(), digits, found.method]

    offsets, values, method = kept(
        "score", engine.path.name, case.id, _digest(text), kind, said, make=make
    )
    return Scores(
        np.array(offsets, np.int64).reshape(-1, 2), np.array(values, np.float32), str(method)
    )


def read(kept: Kept, reader: Engine, case: Case, texts: Iterable[str | None]) -> dict[Any, float]:
    """log p of the answer after each text; None is a prompt without a context.

    Prompts are read in token order. Each then shares its longest possible prefix with the previous
    one, and the engine computes only the rest (runtime/prefixes.py).
    """
    asked = case.question
    prompts = {t: BARE.format(asked) if t is None else PROMPT.format(t, asked) for t in texts}

    def make(prompt: str) -> float:
        return float(reader.log_probs(prompt, f" {case.answer}").sum())

    found: dict[Any, float] = {}
    for text in sorted(prompts, key=lambda text: reader.tokenize(prompts[text])):
        prompt = prompts[text]
        found[text] = kept(
            "log_p", reader.path.name, case.id, _digest(prompt), make=lambda p=prompt: make(p)
        )
    return found
