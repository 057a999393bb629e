"""The vision stage, captions that wait for a model that sees, and questions about images in a chat.

A fake engine says what a vision model would; a tiny one of random weights shows that the grammar
holds whatever it says.
"""

import json
from dataclasses import replace

import numpy as np
import pytest
from fake_engine import FakeEngine, _generation
from imagekit import saved
from memorykit import quick
from PIL import Image
from visionkit import picture, write_vision

from edgemem.chat import Chat
from edgemem.config import load_settings
from edgemem.errors import ContextOverflow
from edgemem.pipeline import image_memories
from edgemem.runtime.engine import Engine, Stream
from edgemem.stages import vision
from edgemem.store import images

QUESTION = "What colour is the car in the photo?"


class Seeing(FakeEngine):
    """Sees: names an image by its mean colour, and answers with it. shown: pixels, by call."""

    name, sees = "tiny-vl", True

    def __init__(self, **more):
        super().__init__(**more)
        self.shown: list[list[np.ndarray]] = []
        self.cut = False

    def _look(self, prompt, schema):
        parts = prompt[0]["content"]
        self.shown.append([part for part in parts if not isinstance(part, str)])
        colour = ("Red", "Green", "Blue")[int(self.shown[-1][0].mean((0, 1)).argmax())]
        if schema is None:
            return f"A {colour.lower()} car stands in the street. It is parked.\nMore"
        if "image" in schema["properties"]:
            wanted = " ".join(p for p in parts if isinstance(p, str)).lower()
            hues = [int(p.mean((0, 1)).argmax()) for p in self.shown[-1]]
            hue = next(i for i, word in enumerate(("red", "green", "blue")) if word in wanted)
            return json.dumps({"image": hues.index(hue) + 1 if hue in hues else 0})
        text = json.dumps({"answer": colour, "reason": f"The car is {colour.lower()}."})
        return text[:9] if self.cut else text

    def generate(self, prompt, *, stage="", **more):
        if stage != vision.STAGE:
            return super().generate(prompt, stage=stage, **more)
        self.prompts.append((stage, prompt))
        return _generation(self._look(prompt, more.get("schema")).split("\n")[0])

    def stream(self, prompt, *, stage="", **more):
        if stage != vision.STAGE:
            return super().stream(prompt, stage=stage, **more)
        self.prompts.append((stage, prompt))
        text = self._look(prompt, more["schema"])

        def pieces():
            yield text[:5]
            yield text[5:]
            return _generation(text)

        return Stream(pieces())


RED, GREEN = (saved(Image.new("RGB", (40, 30), rgb)) for rgb in ((200, 10, 10), (10, 200, 10)))


# -- the stage -------------------------------------------------------------------------------------


def test_an_answer_is_a_word_and_its_reason_of_the_image_between_instruction_and_question():
    engine, pixels = Seeing(), image_memories.pixels_of([RED])[0]
    stream = vision.answer(engine, "What  colour\nis it?", pixels)
    assert "".join(stream) == "Red. The car is red." == stream.result.text
    content = engine.prompts[0][1][0]["content"]
    assert content[0].startswith(vision.EXPERT_PROMPT)
    assert [i for i, p in enumerate(content) if p is pixels] == [2]
    assert content[-1] == "Question: What colour is it?"


def test_an_answer_that_is_cut_before_its_word_says_that_nothing_was_seen():
    engine = Seeing()
    engine.cut = True
    stream = vision.answer(engine, "Why?", image_memories.pixels_of([RED])[0])
    assert "".join(stream) == vision.NOT_SEEN


def test_a_caption_is_one_sentence_and_which_tells_the_image_that_is_meant():
    engine, pixels = Seeing(), image_memories.pixels_of([RED, GREEN])
    assert vision.caption(engine, pixels[1]) == "A green car stands in the street."
    assert vision.which(engine, "Which one is green?", pixels) == 1
    assert vision.which(engine, "Which one is blue?", pixels) is None
    assert vision.which(engine, "Which?", []) is None


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    model, projector = write_vision(tmp_path_factory.mktemp("vision"), "internvl")
    with Engine.load(model, mmproj=projector, n_threads=1, n_ctx=1024) as engine:
        yield engine


def test_whatever_a_model_says_the_forms_hold(tiny):
    image = picture(1)
    first, again = (vision.answer(tiny, "What is it?", image) for _ in range(2))
    text = "".join(first)
    assert text and text == "".join(again) and first.result is not None
    assert first.result.cached_tokens == 0 < again.result.cached_tokens
    asked = vision.answer(tiny, "How many are there?", image)
    "".join(asked)
    behind = sum(token < 0 for token in tiny.embeddings(image)[0])
    assert asked.result is not None and asked.result.cached_tokens > behind  # the image's KV too
    assert "\n" not in vision.caption(tiny, image)
    assert vision.which(tiny, "Which?", [image, picture(2)]) in (None, 0, 1)


def test_an_expert_reads_the_same_parts_without_a_conversation(tiny):
    parts = vision.expert_prompt("What is it?", picture(1))
    assert [p if isinstance(p, str) else "image" for p in parts] == [
        f"{vision.EXPERT_PROMPT}\n\n", "", "image", "\n", "Question: What is it?\n"
    ]  # fmt: skip
    target = vision.expert_target(" Red ", "It  is a red car.")
    assert json.loads(target) == {"answer": "Red", "reason": "It is a red car."}
    assert tiny.count_tokens(parts) > 16


# -- captions --------------------------------------------------------------------------------------


def captions(memory):
    found = [item.image for item in memory.get_all(user_id="ada") if item.image is not None]
    return [(image.caption, image.caption_by) for image in found]


def test_an_image_gets_its_caption_later_from_a_model_that_sees_and_is_found_by_it():
    engine = Seeing()
    with quick(engine=engine) as memory:
        memory.add(images=[RED], user_id="ada")
        assert engine.shown == [] and captions(memory) == [(None, None)]  # nobody waited
        memory.add("my cousin's bike", images=[GREEN], user_id="ada")
        assert image_memories.caption_waits(memory)
        memory.process_pending()
        assert not image_memories.caption_waits(memory)
        assert sorted(captions(memory)) == [
            ("A red car stands in the street.", "tiny-vl"), ("my cousin's bike", "user")
        ]  # fmt: skip
        hit = memory.search("street", user_id="ada")[0]
        assert hit.kind == "image" and "A red car stands in the street." in hit.memory
        memory.process_pending()
        assert len(engine.shown) == 1
        memory.erase(hit.id)
        assert [by for _, by in captions(memory)] == ["user"]


def test_an_unreadable_image_is_passed_over_once_and_a_limit_holds(
    monkeypatch,
):
    engine, tried = Seeing(), list[int]()

    def refuse(*_):
        tried.append(1)
        raise ContextOverflow("too large", prompt_tokens=9, n_ctx=8)

    with quick(engine=engine) as memory:
        for source in (RED, GREEN):
            memory.add(images=[source], user_id="ada", infer=False)
        with monkeypatch.context() as patch:
            patch.setattr(vision, "caption", refuse)
            memory.process_pending(1)
            assert tried == [1]
        memory.process_pending()
        shown = [item.memory for item in memory.get_all(user_id="ada") if item.image is not None]
        assert sorted(shown) == ["Photo", "Photo: A green car stands in the street."]
        assert images.uncaptioned(memory.store, 9) == []


def test_without_a_model_that_sees_nothing_waits_and_none_is_loaded():
    engine = FakeEngine()
    with quick(engine=engine) as memory:
        memory.add(images=[RED], user_id="ada", infer=False)
        memory.process_pending()
        assert not image_memories.caption_waits(memory) and captions(memory) == [(None, None)]
    with quick() as memory:
        memory.add(images=[RED], user_id="ada", infer=False)
        image_memories.caption(memory)
        assert memory._parts._engine is None
    with_projector = replace(load_settings(), mmproj="mmproj.gguf")
    with quick(settings=with_projector) as memory:
        assert memory._parts.sees


# -- a chat ----------------------------------------------------------------------------------------


def ask(engine, text, added, **more):
    with quick(engine=engine) as memory:
        for caption, source in added:
            memory.add(caption, images=[source], user_id="default", infer=False)
        reply = Chat(memory).send(text, **{"remember": False, **more})
        "".join(reply)
        return reply


def seeing(text, wants="recall"):
    return Seeing(wants={text: wants})


def test_a_question_about_a_remembered_image_is_answered_from_its_pixels():
    engine = seeing(QUESTION)
    reply = ask(engine, QUESTION, [("the photo of the car", RED)])
    assert reply.text == "Red. The car is red." and reply.found
    assert {hit.kind for hit in reply.context} == {"turn", "image"}  # the words it came with
    assert engine.shown[-1][0].shape == (30, 40, 3)


def test_of_several_images_the_one_that_is_meant_is_shown():
    question = "How many doors has the green car in the photo?"
    engine = seeing(question)
    photos = [("the photo of the car", RED), ("a photo of the car", GREEN)]
    reply = ask(engine, question, photos)
    assert reply.text.startswith("Green.") and [len(shown) for shown in engine.shown] == [2, 1]


def test_an_image_that_comes_with_a_question_is_looked_at_and_kept_if_wanted():
    engine = seeing(QUESTION)
    reply = ask(engine, QUESTION, [], images=[GREEN])
    assert reply.text == "Green. The car is green."
    with quick(engine=engine) as memory:
        reply = Chat(memory).send(QUESTION, images=[GREEN])
        "".join(reply)
        assert [item.kind for item in memory.get_all(user_id="default")] == ["image"]


@pytest.mark.parametrize("wants", ["tell", "talk"])
def test_what_is_no_question_of_memory_shows_no_remembered_image(wants):
    text = "The photo of the car is nice."
    engine = seeing(text, wants)
    ask(engine, text, [("the photo of the car", RED)])
    assert engine.shown == []


def test_an_engine_that_does_not_see_is_shown_words_alone():
    engine = FakeEngine(wants={QUESTION: "recall"})
    reply = ask(engine, QUESTION, [("the photo of the car", RED)])
    assert reply.text == "Oslo, I think."
    assert all(isinstance(prompt, str | list) for _, prompt in engine.prompts)
