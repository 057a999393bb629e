"""Training examples from a teacher: a larger model, local or behind an OpenAI-compatible address.

Algorithm B2 of MemLoRA. The teacher takes facts from each message, and decides what each fact means
for the memories that it resembles. The targets of generation are the data set's own answers, over
the memories that the teacher made. The teacher reads instructions; the example has the expert's
short prompt. Answers are cleaned as in A.2: only strict JSON counts, without thoughts, and without
a NONE row for an old memory that the fact does not repeat. Departs from MemLoRA in two ways:
memories are found by the words they share with a fact or question, and an answer that cannot be
used is dropped, not repaired.

What is shown to a teacher behind an address leaves this machine.
"""

from __future__ import annotations

import json
import os
import re
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, get_args

from corpus.annotated import Situation, extraction_example, update_examples
from edgemem.cloud.client import Client
from edgemem.config import CloudSettings, checked
from edgemem.errors import CloudError
from edgemem.language import content_words
from edgemem.results import Event, Evidence, Message, to_utc, utc_now
from edgemem.runtime.engine import Engine
from edgemem.stages import generation
from edgemem.stages.extraction import readings
from edgemem.training.examples import STAGES, Example, Stage

Ask = Callable[[str], str]
"""A question to the teacher; gives its whole answer."""

TIMEOUT_S = 120.0
MAX_TOKENS = 1024
SHOWN_OLD, SHOWN_ANSWER = 4, 6
_EVENTS = get_args(Event)
_THOUGHTS = re.compile(r"<think>.*?</think>", re.S)

EXTRACT = """List what the last message says about its speaker and people they know: preferences,
details, plans, events. What was said before it only tells what it is about. Each fact is one
sentence that begins with a name and needs no context; keep dates as they are written. Greetings,
questions, advice and small talk hold no fact.
Answer with JSON only: {"facts": ["...", "..."]}, or {"facts": []}.

"""
DECIDE = """Decide what a new fact means for the old memories.
NONE: an old memory says it already (id: that memory).
UPDATE: it says what an old memory says, and more (id: that memory).
DELETE: an old memory no longer holds because of it (id: that memory).
ADD: none of these (id: the next free number).
Answer with JSON only: {"id": "...", "event": "..."}.

"""


def at_url(url: str, model: str) -> Ask:
    """A teacher behind an OpenAI-compatible address, such as "http://127.0.0.1:8080/v1".

    The key is OPENAI_API_KEY of the environment; many local servers want none. Raises ConfigError
    on an address that is none. The answer raises CloudTimeout after 120 s, CloudRejected when the
    service refuses, CloudError otherwise. Raises CloudDisabled without `httpx2`.
    """
    where = "--teacher-url"
    settings = CloudSettings(
        base_url=checked("cloud.base_url", url, where),
        model=checked("cloud.model", model, "--teacher-model"),
        timeout_s=TIMEOUT_S,
        max_tokens=MAX_TOKENS,
    )
    client = Client(settings, os.environ.get("OPENAI_API_KEY"))

    def ask(prompt: str) -> str:
        parameters = {
            "model": model,
            "messages": [{"role": "user", "content": prompt}],
            "temperature": 0,
            "max_tokens": MAX_TOKENS,
        }
        try:
            return client.send(client.build(parameters, str(uuid.uuid4()))).text
        except CloudError as exc:
            raise type(exc)(f"The teacher {model} at {url} gave no answer: {exc}") from exc

    return ask


def local(engine: Engine) -> Ask:
    """A teacher that this machine runs."""

    def ask(prompt: str) -> str:
        asked: Any = [{"role": "user", "content": prompt}] if engine.has_chat_template else prompt
        return engine.generate(asked, max_tokens=MAX_TOKENS, stage="teacher").text

    return ask


def taught(
    messages: Sequence[Mapping[str, Any]],
    ask: Ask,
    *,
    group: str,
    qa: Sequence[Mapping[str, Any]] = (),
    stages: Collection[Stage] = STAGES,
) -> Iterator[Example]:
    """The examples of one conversation. messages: as `importers` gives them, oldest first.

    qa: questions with answers, as LoCoMo has them; without qa there are no generation examples.
    """
    bank: dict[int, Evidence] = {}
    number = 0
    for reading in readings([_message(m) for m in messages]):
        facts = _facts(ask(EXTRACT + reading.prompt.split("\n\n", 1)[1]))
        if facts is None:
            continue
        if "extraction" in stages:
            yield extraction_example(reading, facts, group)
        if set(stages) == {"extraction"}:
            continue
        for text in facts:
            near = _near(text, bank, SHOWN_OLD)
            event: Event = "ADD"
            if near:
                olds = [bank[n].text for n in near]
                listed = "".join(f"{n}: {old}\n" for n, old in enumerate(olds))
                asked = f"{DECIDE}Old memories:\n{listed}New fact: {text}\n"
                decided = _operation(ask(asked), len(olds))
                if decided is None:
                    continue
                event, place = decided
                if "update" in stages:
                    yield from update_examples([Situation(tuple(olds), text, event, place)], group)
                if event in ("UPDATE", "DELETE"):
                    del bank[near[place]]
            if event != "NONE":
                bank[number] = Evidence(text, reading.message.timestamp)
                number += 1
    if "generation" in stages:
        for row in qa:
            found = _near(str(row["question"]), bank, SHOWN_ANSWER)
            shown = [bank[n] for n in reversed(found)]
            answer = row.get("answer")
            yield Example(
                "generation",
                generation.expert_prompt(str(row["question"]), shown, "User"),
                generation.expert_target(None if answer is None else str(answer)),
                group,
                "unknown" if answer is None else "known",
            )


def _message(raw: Mapping[str, Any]) -> Message:
    said_at = to_utc(raw.get("timestamp") or utc_now())
    return Message(raw["role"], raw["content"], said_at, raw.get("name"))


def _near(text: str, bank: Mapping[int, Evidence], most: int) -> list[int]:
    """The memories that share words with a text, the nearest first."""
    words = set(content_words(text))
    shared = {n: len(words & set(content_words(fact.text))) for n, fact in bank.items()}
    return sorted((n for n in shared if shared[n]), key=lambda n: -shared[n])[:most]


def _json(answer: str) -> Any:
    """The one JSON object of an answer, or None. Thoughts and fences around it do not count."""
    text = _THOUGHTS.sub("", answer)
    with suppress(ValueError):
        return json.loads(text[text.index("{") : text.rindex("}") + 1])
    return None


def _facts(answer: str) -> list[str] | None:
    found = _json(answer)
    facts = found.get("facts") if isinstance(found, dict) else None
    if not isinstance(facts, list) or not all(isinstance(fact, str) for fact in facts):
        return None
    return list(dict.fromkeys(" ".join(fact.split()) for fact in facts if fact.strip()))


def _operation(answer: str, olds: int) -> tuple[Event, int] | None:
    """An answer's event and its memory's index (for ADD, the next free one); None if unusable."""
    found = _json(answer)
    rows = found.get("memory", [found]) if isinstance(found, dict) else []
    rows = [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
    if len(rows) > 1:  # Mem0's form lists every old memory; NONE there says nothing of the fact
        rows = [row for row in rows if row.get("event") != "NONE"]
    if len(rows) != 1 or rows[0].get("event") not in _EVENTS:
        return None
    event: Event = rows[0]["event"]
    place = str(rows[0].get("id"))
    if event == "ADD":
        return event, olds
    return (event, int(place)) if place.isdecimal() and int(place) < olds else None
