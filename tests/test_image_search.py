"""What is seen in stored images: their text, its line, and those that look alike."""

import queue
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("PIL")

from clikit import invoke
from fake_engine import FakeEngine
from imagekit import drawn, saved
from memorykit import quick, texts
from onnxkit import write_image_embedder
from PIL import Image, ImageDraw, ImageEnhance, ImageFont

from edgemem import Memory, config
from edgemem import images as ocr
from edgemem.chat import Chat
from edgemem.config import Settings, load_settings
from edgemem.errors import InputError, ModelError, ModelNotFound
from edgemem.pipeline import image_memories
from edgemem.pipeline.recall import evidence_of
from edgemem.results import ImageLine
from edgemem.runtime.embedder import ImageEmbedder

WIDE = (3000, 1200)  # larger than what is read, so that boxes are to be scaled
LINES = ("BRINDLE BAKERY", "TOTAL 23.40", "mail ana@example.org")


class Eyes:
    """Stands in for the OCR: each line is a row of the picture, from left to right."""

    def __init__(self, *lines):
        self.lines, self.seen = lines, list[tuple[int, ...]]()

    def read(self, pixels):
        self.seen.append(pixels.shape)
        if not self.lines:
            raise ModelError("the model failed")
        height, width, _ = pixels.shape
        return [
            ImageLine(line, 0.9, tuple((x * width, (i + y) * height / len(self.lines))
                                       for x, y in ((0, 0), (1, 0), (1, 1), (0, 1))))
            for i, line in enumerate(self.lines)
        ]  # fmt: skip


@pytest.fixture
def eyes(monkeypatch):
    made = Eyes(*LINES)
    monkeypatch.setattr(ocr.Ocr, "load", lambda **_: made)
    return made


def quiet(path=":memory:", engine=None, **more):
    """A Memory that reads images when it is told to."""
    settings = replace(load_settings(), image_text="off", **more)
    return quick(path, settings=settings, engine=engine)


# -- text ----------------------------------------------------------------------------------------


def test_what_was_read_is_found_and_cited_by_its_line(eyes):
    with quiet() as memory:
        (added,) = memory.add(images=[saved(drawn(WIDE))], user_id="ana", infer=False)
        memory.add("The total was a surprise.", user_id="ben", infer=False)
        assert texts(memory.search("total", user_id="ana")) == ["Photo"]
        assert memory.read_images() == 1 and memory.read_images() == 0
        assert eyes.seen == [(800, 2000, 3)]
        hit = memory.search("What was the total?", user_id="ana")[0]
        assert hit.id == added.id and "TOTAL 23.40" in hit.memory and hit.image is not None
        assert hit.image.ocr_state == "done" and hit.line is not None
        assert hit.line.text == "TOTAL 23.40"
        assert hit.line.box == ((0, 400), (3000, 400), (3000, 800), (0, 800))
        assert hit.to_dict()["line"]["box"][2] == [3000, 800]
        assert memory.search("giraffes", user_id="ana")[0].line is None
        only = memory.search("total", filters={"kind": "image"})
        assert texts(only) == [hit.memory]


def test_an_image_waits_through_a_crash_and_one_that_cannot_be_read_is_not_tried_again(
    eyes, tmp_path
):
    file = tmp_path / "m.db"
    with quiet(file) as memory:
        memory.add(images=[saved(drawn()), saved(drawn(seed=1))], infer=False)
        assert memory.doctor()["unread_images"] == 2
        assert memory.read_images(limit=1) == 1  # and then the process ends
    with quiet(file) as memory:
        eyes.lines = ()
        memory.process_pending()
        states = [item.image.ocr_state for item in memory.get_all() if item.image]
        assert sorted(states) == ["done", "failed"] and memory.doctor()["unread_images"] == 0
        assert memory.read_images() == 0


def test_an_image_that_is_erased_while_it_is_read_leaves_nothing(eyes, monkeypatch):
    with quiet() as memory:
        (added,) = memory.add(images=[saved(drawn())], infer=False)
        read = eyes.read
        monkeypatch.setattr(eyes, "read", lambda pixels: memory.erase(added.id) and read(pixels))
        memory.read_images()
        assert memory.get_all().items == () and len(eyes.seen) == 1


def test_images_are_read_in_the_background_and_closing_does_not_wait_for_all(eyes, monkeypatch):
    monkeypatch.setattr(image_memories, "QUIET_S", 0.0)
    with quick(settings=replace(load_settings(), image_text="on")) as memory:
        memory.add(images=[saved(drawn())], infer=False)
        until = time.monotonic() + 20
        while "TOTAL" not in memory.get_all()[0].memory:
            assert time.monotonic() < until
            time.sleep(0.01)
    monkeypatch.setattr(image_memories, "QUIET_S", 60.0)
    started = time.monotonic()
    with quick(settings=replace(load_settings(), image_text="on")) as memory:
        memory.add(images=[saved(drawn())], infer=False)
    assert time.monotonic() - started < 30 and len(eyes.seen) == 1


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_unforeseen_error_of_the_thread_does_not_keep_later_images_from_it(
    monkeypatch,
):
    monkeypatch.setattr(image_memories, "QUIET_S", 0.0)
    threads: queue.Queue[threading.Thread] = queue.Queue()

    def work(_stop):
        threads.put(threading.current_thread())
        raise ZeroDivisionError

    reader = image_memories.BackgroundReader(work)
    for _ in range(2):
        reader.wake()
        threads.get(timeout=20).join()
    reader.close()


def test_a_memory_limit_without_room_for_the_ocr_leaves_images_waiting(eyes):
    with quiet(model="not-there", embedder="not-there", memory_limit="400MB") as memory:
        memory.add(images=[saved(drawn())], infer=False)
        assert memory.read_images() == 0 and memory.doctor()["unread_images"] == 1
    with quiet(model="not-there", embedder="not-there", memory_limit="600MB") as memory:
        memory.add(images=[saved(drawn())], infer=False)
        assert memory.read_images() == 1


def test_rows_are_read_along_the_text_however_the_picture_is_turned():
    def box(x, y, wide, angle):
        turn = np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])
        corners = np.array([(x, y), (x + wide, y), (x + wide, y + 20), (x, y + 20)])
        return (corners @ turn).tolist()

    for angle in (-0.1, 0.0, 0.1, 0.5):
        placed = [(400, 62, 60), (0, 0, 300), (0, 60, 150), (0, 30, 200)]
        boxes = np.array([box(*each, angle) for each in placed])
        assert ocr.reading_order(boxes) == [[1], [3], [2, 0]]
    assert ocr.reading_order(np.zeros((1, 4, 2))) == [[0]]


@pytest.mark.slow
def test_the_real_ocr_reads_a_tilted_receipt_with_its_spaces_and_prices(
    monkeypatch,
):
    pytest.importorskip("rapidocr")
    monkeypatch.setitem(config._EXTRAS, "ocr", ("the text of an image", "rapidocr"))
    sheet = Image.new("RGB", (620, 300), "white")
    draw = ImageDraw.Draw(sheet)
    font = ImageFont.load_default(34)
    for y, left, right in ((20, "Brindle Bakery", ""), (110, "Rye loaf", "3.40"),
                           (200, "Total to pay", "23.40")):  # fmt: skip
        draw.text((30, y), left, "black", font)
        draw.text((480, y), right, "black", font)
    turned = sheet.rotate(4, expand=True, fillcolor="white")
    reader = ocr.Ocr.load()
    found = reader.read(np.asarray(turned))
    assert [line.text for line in found] == [
        "Brindle Bakery",
        "Rye loaf 3.40",
        "Total to pay 23.40",
    ]
    assert all(line.confidence > 0.8 for line in found)
    (left, high), (right, higher), *_ = found[2].box
    assert left < 100 and right > 550 and higher < high - 20  # along the turned line
    assert reader.read(np.full((40, 40, 3), 255, np.uint8)) == []
    with pytest.raises(ValueError, match="at most 2000 a side"):
        reader.read(np.zeros((2001, 10, 3), np.uint8))


def test_the_words_beside_a_photo_are_its_caption_unless_they_ask(eyes):
    with quiet(engine=FakeEngine()) as memory:
        chat = Chat(memory, user_id="ana")
        for caption in ("test results for Okafor", "invoice number on the back of this one"):
            reply = chat.send(caption, images=[saved(drawn())])
            assert "".join(reply) and reply.wants is None
            assert caption in texts(memory.get_all(user_id="ana"))
        reply = chat.send("What does it say on the label?", images=[saved(drawn(seed=1))])
        assert "".join(reply) and reply.wants == "recall"


def test_a_line_of_a_letter_runs_on_and_one_of_a_receipt_does_not(eyes):
    letter = "Your annual assessment has been booked for\nTuesday 8 December at the depot"
    eyes.lines = tuple(f"{letter}\nRegards".splitlines())
    with quiet() as memory:
        memory.add("A letter.", images=[saved(drawn())], infer=False)
        memory.read_images()
        eyes.lines = LINES
        memory.add("A receipt.", images=[saved(drawn(seed=1))], infer=False)
        memory.read_images()
        told = [e.text for e in evidence_of(memory, None, memory.search("A receipt, a letter?"))]
        assert any(letter.replace("\n", " ") + ". Regards" in text for text in told)
        assert any("BRINDLE BAKERY. TOTAL 23.40" in text for text in told)


# -- looks ---------------------------------------------------------------------------------------


def test_copies_of_an_image_are_found_and_others_are_not():
    photo = drawn()
    with quiet() as memory:
        (own,) = memory.add(images=[saved(photo)], user_id="ana", infer=False)
        others = [saved(drawn(seed=seed)) for seed in range(1, 9)]
        memory.add(images=others, user_id="ana", infer=False)
        memory.add(images=[saved(photo)], user_id="ben", infer=False)
        copies = (
            saved(photo), saved(photo, "JPEG", quality=30), saved(photo.resize((120, 90))),
            saved(ImageEnhance.Brightness(photo).enhance(1.2), "WEBP"),
        )  # fmt: skip
        for copy in copies:
            (hit,) = memory.search(image=copy, user_id="ana")
            assert hit.id == own.id and hit.score >= 1 - image_memories.NEAR / 64
        assert memory.search(image=copies[0], user_id="ana", threshold=1.0)[0].score == 1.0
        assert len(memory.search(image=copies[0])) == 2
        assert memory.search(image=saved(drawn(seed=99)), user_id="ana").items == ()
        assert memory.search(image=copies[0], user_id="cy").items == ()
        with pytest.raises(InputError, match="no known kind"):
            memory.search(image=b"hello")
        with pytest.raises(TypeError, match="query must be a string"):
            memory.search()
        with pytest.raises(InputError, match="takes one of them"):
            memory.search("a house", image=copies[0])


def test_the_command_line_finds_a_copy(tmp_path):
    file, copy = tmp_path / "a.db", tmp_path / "copy.jpg"
    copy.write_bytes(saved(drawn(), "JPEG", quality=40))
    with Memory(file) as memory:
        (own,) = memory.add(images=[saved(drawn())], user_id="default", infer=False)
    assert invoke("search", "--image", str(copy), "--db", str(file)).output.startswith(own.id)
    both = invoke("search", "house", "--image", str(copy), "--db", str(file), code=2)
    assert "takes one of them" in both.stderr


def test_with_an_image_embedder_what_looks_alike_is_found(tmp_path):
    folder = write_image_embedder(tmp_path / "clip")
    plain = {name: saved(Image.new("RGB", (60, 40), name)) for name in ("red", "blue", "#e02010")}
    clip = ImageEmbedder.load(folder)
    red = clip.embed(np.full((8, 8, 3), (255, 0, 0), np.uint8))
    assert clip.dim == 3 and np.allclose(red, np.array([1, -1, -1]) / np.sqrt(3), atol=1e-5)
    with quiet(image_embedder=str(folder)) as memory:
        memory.add(images=[plain["red"], plain["blue"]], infer=False)
        noise = saved(drawn(seed=5).resize((60, 40)))
        assert memory.search(image=noise).items == ()  # no vectors yet, and no copy
        assert memory.read_images() >= 2
        best, *_ = memory.search(image=plain["#e02010"])
        assert memory.image(best.image.id).data == plain["red"]
        assert 0.9 < best.score <= 1.0


def test_a_folder_that_is_no_image_embedder_is_refused_with_what_is_missing(tmp_path):
    with pytest.raises(ModelNotFound, match=r"there is no vision_model\.onnx"):
        ImageEmbedder.load(tmp_path)
    folder = write_image_embedder(tmp_path / "clip")
    (folder / "preprocessor_config.json").write_text("{}")
    with pytest.raises(ModelError, match="does not say how an image"):
        ImageEmbedder.load(folder)
    (folder / "vision_model.onnx").write_bytes(b"hello")
    with pytest.raises(ModelError, match="not a model that onnxruntime can load"):
        ImageEmbedder.load(folder)
    assert Settings(db=Path("x.db")).image_embedder == "none"
