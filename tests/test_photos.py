"""What is told from the text in a photo: its days, its lines, and when the photo is meant."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("PIL")

from fake_engine import FakeEngine
from imagekit import drawn, saved
from memorykit import quick

from edgemem import Chat, Memory
from edgemem.config import load_settings
from edgemem.images import ocr
from edgemem.results import ImageLine
from edgemem.stages.generation import NOTHING_FOUND

CARD = ("Smile Dental", "Appointment for Tom Linden", "Thursday 10 December 2026 09:20",
        "Dr Adeyemi, root canal")  # fmt: skip
RECEIPT = ("BRIGHTSIDE GARAGE LTD", "Invoice 40817 14/11/2026", "2 front brake pads 86.40",
           "TOTAL 128.40", "Next service due 14/05/2027")  # fmt: skip
Send = Callable[..., None]


@pytest.fixture
def memory() -> Iterator[Memory]:
    settings = replace(load_settings(), image_text="off")
    with quick(settings=settings, engine=FakeEngine()) as opened:
        yield opened


@pytest.fixture
def send(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> Send:
    """Sends a photo with these lines of text, and lets it be read."""

    class Eyes:
        lines: tuple[str, ...] = ()

        def read(self, _pixels: np.ndarray) -> list[ImageLine]:
            box = ((0.0, 0.0), (1.0, 0.0), (1.0, 1.0), (0.0, 1.0))
            return [ImageLine(line, 0.9, box) for line in self.lines]

    eyes, sent = Eyes(), []
    monkeypatch.setattr(ocr.Ocr, "load", lambda **_: eyes)

    def send(caption: str | None, *lines: str, at: str = "2026-11-20T12:00:00Z") -> None:
        sent.append(at)
        photo, eyes.lines = saved(drawn(seed=len(sent))), lines
        memory.add(caption or (), images=[photo], user_id="default", timestamp=at, infer=False)
        memory.read_images()

    return send


def listed(memory: Memory, question: str, at: str = "2026-11-30T09:00:00Z") -> list[str]:
    """The answer; if it is a list, its items without their days."""
    answer = "".join(Chat(memory).send(question, timestamp=at, remember=False))
    if ":\n- " not in answer:
        return [answer]
    return [item.split(": ", 1)[1] for item in answer.split("\n- ")[1:]]


# -- whether the photo is meant ------------------------------------------------------------------


def test_what_only_eyes_could_tell_of_a_photo_is_said_to_be_unseen_and_names_the_photo(
    memory: Memory, send: Send
) -> None:
    send("My new bike.")
    send(None, "Guest WiFi", "Network: LindenNest")
    memory.add("I work at the harbour.", user_id="default", infer=False)
    chat = Chat(memory)
    for question, known in (
        ("Which colour has my new bike?", 'the caption and the text of the photo "My new bike"'),
        ("What is the guest wifi called?", "the photo's text"),
    ):
        told = chat._refusal(question, memory.search(question, user_id="default"))
        assert told == f"I have only {known}, and found no answer there."
    for other in ("Where do I work at the harbour?", "Giraffes?"):
        told = chat._refusal(other, memory.search(other, user_id="default"))
        assert told == NOTHING_FOUND


@pytest.mark.parametrize("question", ["What is my name?", "What did mum earn?", "Who am I?"])
def test_a_question_that_has_nothing_of_a_photo_is_refused_without_it(
    memory: Memory, send: Send, question: str
) -> None:
    send("Pizza on Friday night.", "NAPOLI EXPRESS", "1 Margherita 9.50", "TOTAL 28.90")
    (hit,) = memory.search("Pizza", user_id="default", filters={"kind": "image"})
    best = replace(memory.search(question, user_id="default"), items=(replace(hit, score=0.5),))
    assert Chat(memory)._refusal(question, best) == NOTHING_FOUND
