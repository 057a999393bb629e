"""LoCoMo's annotations: `observation` gives facts, `qa` gives answers.

LoCoMo is CC BY-NC 4.0; so is whatever is trained on these. Facts cite turns, so a message has the
facts that cite it; relative dates are written out in both, by the same rule. Of the adversarial
questions the answer is that it is not known.

Knows LoCoMo's files; knows nothing of training.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from edgemem.importers import LocomoFile, batches, read_locomo
from edgemem.results import Message
from edgemem.stages import dates
from edgemem.stages.reading import CONTEXT
from edgemem.text import words
from edgemem.training.annotated import Annotated, Pair, Question, as_recalled

__all__ = ["ADVERSARIAL", "CATEGORIES", "pairs", "questions", "read"]

CATEGORIES = {1: "multi-hop", 2: "temporal", 3: "open-domain", 4: "single-hop"}
ADVERSARIAL = "adversarial"
_DIALOGUE_ID = re.compile(r"\bD\d+:\d+\b")
_REFUSED_SHARE = 0.2  # of the adversarial questions: all would teach to refuse too much


def read(path: Path) -> Annotated:
    """A file of one conversation, with its annotations. Raises InputError as `read_locomo` does."""
    file, found = read_locomo(path), pairs(path)
    return Annotated(
        id=file.sample_id,
        messages=file.messages,
        pairs=found,
        questions=questions(file),
        pronouns=_pronouns(found),
        refused=_REFUSED_SHARE,
    )


def pairs(path: Path) -> list[Pair]:
    """The pairs of a LoCoMo file. A fact that cites several turns is of the last one."""
    file = read_locomo(path)
    found: list[tuple[list[Message], list[tuple[str, int]], list[Message]]] = []
    place: dict[str, tuple[int, int]] = {}
    said: list[Message] = []
    for batch in batches(file.messages, infer=True):
        messages = [_message(raw) for raw in batch]
        for source, raw in enumerate(batch):
            place[raw["metadata"]["dia_id"]] = len(found), source
        found.append((messages, [], said[-CONTEXT:]))
        said += messages
    for text, cited in _observations(path):
        known = [place[id] for id in cited if id in place]
        if known:
            number, source = max(known)
            said_at = found[number][0][source].timestamp
            found[number][1].append((dates.absolute(text, said_at)[0].strip(), source))
    return [
        Pair(
            messages=tuple(messages),
            facts=tuple(text for text, _ in facts),
            sources=tuple(source for _, source in facts),
            context=tuple(context),
        )
        for messages, facts, context in found
    ]


def questions(file: LocomoFile) -> list[Question]:
    """The questions of a file whose evidence turns exist."""
    turn = {m["metadata"]["dia_id"]: as_recalled(_message(m)) for m in file.messages}
    found = []
    for row in file.qa:
        cited = _ids(row.get("evidence", ()))
        shown = tuple(turn[id] for id in cited if id in turn)
        category = CATEGORIES.get(row["category"], ADVERSARIAL)
        answer = str(row["answer"]).strip() if category != ADVERSARIAL else None
        if shown:
            found.append(Question(row["question"], category, answer, shown))
    return found


def _pronouns(read: Sequence[Pair]) -> dict[str, str]:
    """Of each speaker "she" or "he", by what their facts say more often."""
    said: dict[str, Counter[str]] = {}
    for pair in read:
        for message in pair.messages:
            said.setdefault(message.name or message.role.capitalize(), Counter())
        for fact in pair.facts:
            if (about := next((n for n in said if fact.startswith(n)), None)) is not None:
                said[about].update(words(fact))
    return {
        name: "she" if found["she"] + found["her"] > found["he"] + found["his"] else "he"
        for name, found in said.items()
    }


def _observations(path: Path) -> Iterator[tuple[str, list[str]]]:
    for session in json.loads(path.read_text(encoding="utf-8")).get("observation", {}).values():
        for facts in session.values():
            for text, cited in facts:
                yield text, _ids([cited])


def _ids(cited: Sequence[Any]) -> list[str]:
    """Ids of turns, however they are written: "D1:3", ["D1:3", "D1:4"], "D1:3; D1:4"."""
    return list(dict.fromkeys(id for c in cited for id in _DIALOGUE_ID.findall(str(c))))


def _message(raw: Any) -> Message:
    return Message(raw["role"], raw["content"], raw["timestamp"], raw["name"])
