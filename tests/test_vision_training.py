"""Training the vision expert: questions about images, on a tiny vision model of random weights."""

import json
from pathlib import Path

import numpy as np
import pytest
from imagekit import saved
from PIL import Image
from visionkit import picture, write_vision

from edgemem import images as pictures
from edgemem.errors import InputError, ModelError
from edgemem.runtime.engine import Engine
from edgemem.runtime.vocabulary import vocabulary_of
from edgemem.stages import vision
from edgemem.training import examples

pytestmark = pytest.mark.train

torch = pytest.importorskip("torch", reason="needs edgemem-runtime[train]")
pytest.importorskip("gguf", reason="needs edgemem-runtime[train]")

from edgemem.training import lora, trainer  # noqa: E402

QUESTION = "What is it?"
ANSWERS = {1: "Red", 2: "Blue"}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return write_vision(tmp_path_factory.mktemp("vision"), "internvl")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Two images, each with a question and its answer, and the same once more to validate on."""
    folder = tmp_path_factory.mktemp("pairs")
    lines = []
    for seed, answer in ANSWERS.items():
        (folder / f"{seed}.png").write_bytes(saved(Image.fromarray(picture(seed))))
        pair = {"image": f"{seed}.png", "question": QUESTION, "answer": answer, "reason": "So."}
        lines += [json.dumps(pair), json.dumps({**pair, "group": f"valid {seed}"})]
    (folder / "pairs.jsonl").write_text("\n".join(lines), encoding="utf-8")
    return folder / "pairs.jsonl"


def test_pairs_are_read_as_examples_of_the_stage_in_groups_of_an_image(data, tmp_path):
    found = examples.read([data])
    assert [e.group for e in found] == ["1.png", "valid 1", "2.png", "valid 2"]
    assert {e.stage for e in found} == {"vision"} and Path(found[0].image) == data.parent / "1.png"
    assert found[0].target == vision.expert_target("Red", "So.")
    examples.write(tmp_path / "again.jsonl", found)
    assert examples.read([tmp_path / "again.jsonl"]) == [*found]
    (tmp_path / "bad.jsonl").write_text('{"question": "Why?", "answer": 3}', encoding="utf-8")
    with pytest.raises(InputError, match="image, question, answer and reason"):
        examples.read([tmp_path / "bad.jsonl"])


def test_torch_gives_the_logits_of_llama_cpp_after_an_image(files, data, logits_seen):
    (tokens, *_) = examples.tokenized(files[0], examples.read([data]), files[1])
    model = lora.load_base(files[0], precision="float32").eval()
    with torch.no_grad():
        row = examples.pack([examples.Tokens(tokens.prompt, (0,), seen=tokens.seen)])
        (ours,) = lora.logits(model, row).numpy()
    with Engine.load(files[0], mmproj=files[1], n_threads=1, n_ctx=2048) as engine:
        pixels = pictures.pixels((data.parent / "1.png").read_bytes(), vision.LONGEST)
        engine.generate(vision.expert_prompt(QUESTION, pixels), max_tokens=1)
    theirs = np.frombuffer(logits_seen[0], np.float32)
    assert np.abs(theirs - ours).max() < 0.02 * np.abs(ours).max()


def test_an_expert_learns_what_each_image_is_and_the_engine_answers_with_it(files, data, tmp_path):
    found = examples.read([data])
    learn = [e for e in found if not e.group.startswith("valid")]
    judge = [e for e in found if e.group.startswith("valid")]
    plan = trainer.Plan(
        lr=2e-2, batch=2, epochs=25, dropout=0.0, every=5, precision="float32", threads=1
    )
    out = tmp_path / "vision.gguf"
    outcome = trainer.train("vision", files[0], learn, judge, out, plan, mmproj=files[1])
    assert outcome.best_loss < 0.2 < outcome.first_loss
    with Engine.load(files[0], mmproj=files[1], n_threads=1, n_ctx=2048) as engine:
        engine.load_adapter("vision", out)
        engine.bind("vision", {"vision": 1.0})
        for seed, answer in ANSWERS.items():
            pixels = pictures.pixels((data.parent / f"{seed}.png").read_bytes(), vision.LONGEST)
            assert "".join(vision.answer(engine, QUESTION, pixels)) == f"{answer}. So."


def test_images_need_a_projector_that_the_trainer_can_follow(files, data, tmp_path):
    found = examples.read([data])
    with pytest.raises(InputError, match="give the model's projector with --mmproj"):
        examples.tokenized(files[0], found)
    for form in ("qwen2vl", "gemma3"):
        model, projector = write_vision(tmp_path, form)
        with pytest.raises(ModelError, match="such as InternVL or SmolVLM"):
            examples.tokenized(model, found, projector)
    (tmp_path / "1.png").write_bytes(b"\x89PNG\r\n\x1a\n damaged")
    (tmp_path / "pairs.jsonl").write_text(data.read_text(encoding="utf-8"), encoding="utf-8")
    with pytest.raises(InputError, match="damaged"):
        examples.tokenized(files[0], examples.read([tmp_path / "pairs.jsonl"]), files[1])


def test_a_prompt_is_tokenized_as_the_engine_reads_it(files, data):
    (tokens, *_) = examples.tokenized(files[0], examples.read([data]), files[1])
    with vocabulary_of(files[0]) as vocabulary:
        assert tokens.target[-1] == vocabulary.end_of_turn
    with Engine.load(files[0], mmproj=files[1], n_threads=1, n_ctx=2048) as engine:
        pixels = pictures.pixels((data.parent / "1.png").read_bytes(), vision.LONGEST)
        assert engine.count_tokens(vision.expert_prompt(QUESTION, pixels)) == len(tokens.prompt)
