"""Images in prompts, through libmtmd, on tiny vision models of random weights.

What they say is noise. What is tested: whose state an image's is, and that nothing ends the
process.
"""

import ctypes
import gc
import random
from typing import Any

import numpy as np
import pytest
from ggufkit import write_gguf
from memorykit import quick
from visionkit import DIM, IMAGE, OF, TEXT_DIM, picture, write_projector, write_vision

from edgemem.errors import ContextOverflow, InputError, MemoryBudgetExceeded, ModelError
from edgemem.runtime import machine
from edgemem.runtime import vision as vision_module
from edgemem.runtime.engine import Engine
from edgemem.runtime.vision import part_of, token_positions
from edgemem.store import Store

A, B, LARGE = picture(1), picture(2), picture(3, 100, 150)
SURVIVES = machine.require_projector_runs  # which conftest.py turns off


@pytest.fixture(scope="module", params=OF)
def files(request, tmp_path_factory):
    return write_vision(tmp_path_factory.mktemp("vision"), request.param)


def load(files, **more):
    return Engine.load(files[0], mmproj=files[1], n_threads=1, **{"n_ctx": 1024, **more})


@pytest.fixture(scope="module")
def loaded(files):
    with load(files) as loaded:
        yield loaded


@pytest.fixture
def engine(loaded):
    """Of each form; it holds no prefix and no image."""
    loaded.drop_prefixes()
    return loaded


@pytest.fixture(scope="module")
def internvl(tmp_path_factory):
    return write_vision(tmp_path_factory.mktemp("internvl"), "internvl")


@pytest.fixture(scope="module")
def seer(internvl):
    with load(internvl) as loaded:
        yield loaded


def about(*parts):
    return [{"role": "user", "content": list(parts)}]


# -- shapes, and whose state it is -----------------------------------------------------------------


def test_an_image_becomes_tokens_and_embeddings_of_the_models_width(engine):
    form = str(engine._vision and engine._vision.path.stem.removeprefix("mmproj-"))
    for image in (A, LARGE):
        tokens, embeddings = engine.embeddings(image)
        of_image = [token for token in tokens if token < 0]
        assert [e.shape[1] for e in embeddings] == [TEXT_DIM] * len(embeddings)
        assert [part_of(t) for t in of_image] == [
            part for part, e in zip(sorted({*map(part_of, of_image)}), embeddings, strict=True)
            for _ in e
        ]  # fmt: skip
        if image is A and form != "qwen2vl":
            assert len(of_image) == (IMAGE // 4 // 2) ** 2
    # Large ones are several parts, more tokens, or scaled down.
    assert {"internvl": len(embeddings) > 1, "qwen2vl": len(of_image) > 200}.get(form, True)
    positions = sum(map(token_positions, of_image))
    assert positions < len(of_image) if form == "qwen2vl" else positions == len(of_image)


def test_the_logits_are_those_of_libmtmds_own_helper(engine, logits_seen):
    """Of one text with a marker, which libmtmd cuts, tokenizes and decodes by itself."""
    vision = engine._vision
    lib, handle, context = vision._lib, vision._handle, engine._context
    text = b"Look at this: <__media__> What colour is it?"
    if engine._vocabulary._bos is not None:
        text = b"<bos>" + text
    height, width, _ = A.shape
    bitmap = lib.mtmd_bitmap_init(width, height, A.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8)))
    chunks, new = lib.mtmd_input_chunks_init(), ctypes.c_int32()
    given = lib.mtmd_input_text(text, len(text), False, True)
    bitmaps = (lib.mtmd_bitmap_p_ctypes * 1)(bitmap)
    assert lib.mtmd_tokenize(handle, chunks, ctypes.byref(given), bitmaps, 1) == 0
    status = lib.mtmd_helper_eval_chunks(
        handle, context, chunks, 0, 0, 256, True, ctypes.byref(new)
    )
    assert status == 0
    wanted = engine._logits().copy()
    lib.mtmd_input_chunks_free(chunks)
    lib.mtmd_bitmap_free(bitmap)
    engine.drop_prefixes()
    engine.generate(["Look at this: ", A, " What colour is it?"], max_tokens=1)
    assert np.array_equal(np.frombuffer(logits_seen[0], np.float32), wanted)


def test_the_same_image_gives_the_same_state_and_another_image_another(engine, logits_seen):
    seen = {}
    for name, image in (("a", A), ("b", B), ("again", A.copy())):
        engine.drop_prefixes()
        logits_seen.clear()
        assert engine.generate(about(image, "What is it?"), max_tokens=3).cached_tokens == 0
        seen[name] = list(logits_seen)
    assert seen["a"] == seen["again"] and seen["a"][0] != seen["b"][0]


def test_another_image_reuses_what_stands_before_it_and_nothing_else(engine):
    tokens, _ = engine._prompt_tokens(about("Look. ", A, "What is it?"))
    before = next(i for i, token in enumerate(tokens) if token < 0)
    behind = before + sum(token < 0 for token in tokens)
    engine.generate(about("Look. ", A, "What is it?"), max_tokens=2)
    for image, reused in ((A, True), (B, False), (A, False), (A, True)):
        done = engine.generate(about("Look. ", image, "What is that?"), max_tokens=2)
        assert (
            done.cached_tokens >= behind if reused else done.cached_tokens in (before, before - 1)
        )


PROMPTS = [
    ("a", about("Look. ", A, "What colour is it?")),
    ("a", about("Look. ", A, "What colour is the sky, and what is under it?")),
    ("a", about("Look. ", B, "What colour is it?")),
    ("b", about("Look. ", B, "Then ", A, "Which of these is green?")),
    ("b", about("Look. ", B, "Then ", B, "Which of these is green?")),
    ("a", about("Look. It is a long way to go.")),
    ("c", about(LARGE, "Why?")),
    ("c", [*about(LARGE, "Why?"), {"role": "assistant", "content": "So."}, *about("And ", A, "?")]),
    ("b", ["Look. ", A, " It"]),
]


@pytest.mark.parametrize("prefix_bytes", [64_000_000, 0])
def test_prompts_that_take_turns_have_a_cold_engines_logits(files, logits_seen, prefix_bytes):
    def answers(engine, number):
        stage, prompt = PROMPTS[number]
        logits_seen.clear()
        done = engine.generate(prompt, max_tokens=3, stage=stage)
        return list(logits_seen), done.cached_tokens

    cold, cached, chance = [], 0, random.Random(3)
    with load(files) as engine:
        for number in range(len(PROMPTS)):
            engine.drop_prefixes()
            found, reused = answers(engine, number)
            assert reused == 0
            cold.append(found)
    with load(files, prefix_bytes=prefix_bytes) as engine:
        for number in [*range(len(PROMPTS)), *(chance.randrange(len(PROMPTS)) for _ in range(16))]:
            if chance.random() < 0.3:
                engine.warm(chance.choice("abc"), ["Look. ", A, "What"])
            found, reused = answers(engine, number)
            assert found == cold[number]
            cached += reused
    assert cached > 0


def test_a_switch_of_adapters_computes_the_image_anew_but_does_not_encode_it(
    internvl, tmp_path, logits_seen, monkeypatch
):
    rng = np.random.default_rng(0)
    tensors = {
        f"blk.{n}.attn_q.weight.lora_{side}": rng.standard_normal(shape).astype(np.float32)
        for n in range(6)
        for side, shape in (("a", (2, TEXT_DIM)), ("b", (64, 2)))
    }
    settings = {"general.type": "adapter", "adapter.type": "lora",
                "general.architecture": "qwen2", "adapter.lora.alpha": 4.0}  # fmt: skip
    file = write_gguf(tmp_path / "vision.gguf", settings, tensors)
    encoded: list[int] = []
    encode = vision_module.Vision._encode
    monkeypatch.setattr(
        vision_module.Vision, "_encode", lambda *a: (encoded.append(1), encode(*a))[1]
    )
    with load(internvl) as engine:
        engine.load_adapter("vision", file)
        found: dict[bool, list[list[bytes]]] = {False: [], True: []}
        for bound in (False, True, False, True):
            engine.bind("vision", {"vision": 1.0} if bound else {})
            logits_seen.clear()
            engine.generate(about(A, "What is it?"), max_tokens=2, stage="vision")
            found[bound].append(list(logits_seen))
        assert found[False][0] == found[False][1] and found[True][0] == found[True][1]
        assert found[False][0] != found[True][0]
    assert encoded == [1]


def test_nothing_of_an_image_is_left_when_prefixes_are_dropped(engine):
    vision = engine._vision
    assert vision is not None
    engine.generate(about(LARGE, "Why?"), max_tokens=2)
    held = engine.memory()["projector"]
    assert len(vision._pictures) > 0 and vision.kept_bytes > 0
    engine.drop_prefixes()
    gc.collect()
    assert len(vision._pictures) == vision.kept_bytes == len(vision._numbers) == 0
    assert engine.memory()["projector"] < held
    assert engine.generate(about(LARGE, "Why?"), max_tokens=2).cached_tokens == 0


def test_a_prefix_with_an_image_is_kept_in_no_file(seer, tmp_path):
    seer.warm("a", ["Look. ", A, "What"], folder=tmp_path)
    assert list(tmp_path.iterdir()) == []
    seer.warm("a", "Look. What?", folder=tmp_path)
    assert len(list(tmp_path.glob("*.kv"))) == 1


# -- what it takes, and what is refused ------------------------------------------------------------


def test_images_are_scaled_down_until_they_fit_half_of_the_window(
    internvl,
):
    with load(internvl, n_ctx=256) as engine:
        for count in (1, 2, 3):
            done = engine.generate(about(*[LARGE] * count, "Why?"), max_tokens=1)
            assert done.prompt_tokens < 256
        with pytest.raises(ContextOverflow):  # they can be made no smaller
            engine.generate(about(*[A] * 20, "Why?"), max_tokens=1)


def test_the_projector_is_counted_and_turned_down_for(internvl, seer):
    assert seer.memory()["projector"] > 100_000
    size = internvl[1].stat().st_size
    with load(internvl, memory_limit_bytes=10**9) as engine:
        assert engine.plan.parts_bytes["projector"] == size + 9 * 4 * 64 * DIM + 16_000_000
    with pytest.raises(MemoryBudgetExceeded, match="projector 16 MB"):
        load(internvl, memory_limit_bytes=10_000_000)


def test_images_seen_last_are_kept_up_to_a_limit(seer, monkeypatch):
    one = 16 * TEXT_DIM * 4
    monkeypatch.setattr(vision_module, "KEPT_BYTES", 3 * one)
    seer.drop_prefixes()
    for seed in range(10):
        seer.generate(about(picture(seed), "Why?"), max_tokens=1)
        gc.collect()
        assert seer._vision is not None and seer._vision.kept_bytes <= 3 * one
    # Its tokens are the same when it comes again, though its embeddings are computed anew.
    tokens = seer.embeddings(picture(0))[0]
    for seed in range(5, 9):
        seer.embeddings(picture(seed))
    assert seer.embeddings(picture(0))[0] == tokens


def test_a_closed_engine_has_freed_its_projector(internvl):
    engine = load(internvl)
    vision = engine._vision
    assert vision is not None and engine.sees
    engine.close()
    engine.close()
    assert vision._handle is None
    with pytest.raises(ModelError, match="closed"):
        vision.see(A, 100)


@pytest.mark.parametrize(
    "image",
    [np.zeros((4, 4), np.uint8), np.zeros((4, 4, 4), np.uint8), np.zeros((0, 4, 3), np.uint8),
     np.zeros((4, 4, 3), np.float32), np.zeros((1, 9000, 3), np.uint8), b"\x89PNG damaged"],
    ids=lambda image: str(getattr(image, "shape", "bytes")),
)  # fmt: skip
def test_what_is_no_image_is_refused(seer, image):
    with pytest.raises(InputError, match=r"\(height, width, 3\)"):
        seer.generate(about(image, "What is it?"))


def test_images_of_any_size_do_no_harm(engine):
    for height, width in ((1, 1), (1, 500), (500, 1), (33, 31), (7, 640)):
        assert engine.count_tokens(about(picture(4, height, width), "Why?")) < engine.n_ctx
        engine.generate(about(picture(4, height, width), "Why?"), max_tokens=1)


def test_a_user_cannot_write_an_image_and_a_prompt_ends_in_text(engine):
    text = "a <__media__> b"
    assert engine.count_tokens(about(text)) == engine.count_tokens(about("a < __media__> b"))
    engine.generate(about(A, text), max_tokens=1)
    with pytest.raises(InputError, match="ends in an image"):
        engine._vocabulary.prompt_tokens(["Look: ", A], lambda *_: [-1])


def test_an_engine_without_a_projector_says_so(internvl):
    with Engine.load(internvl[0], n_threads=1, n_ctx=256) as engine:
        assert not engine.sees
        with pytest.raises(ModelError, match=r"Engine\.load\(path, mmproj=\.\.\.\)"):
            engine.generate(about(A, "What is it?"))


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "of another model": ({"width": 48}, "makes embeddings of 48 numbers, and the model's have 64"),
    "audio": ({"clip.has_vision_encoder": False}, "has no vision encoder"),
    "no heads": ({"clip.vision.attention.head_count": 0}, "head_count is 0"),
    "not alone": ({"clip.projector_type": "deepseek4v"}, "depend on what stands before"),
    "unknown": ({"clip.projector_type": "nonsense"}, "unknown projector type: nonsense"),
    "lacks a tensor": ({"clip.vision.block_count": 3}, "cannot be loaded as the projector"),
    "other tokens": ({"clip.projector_type": "idefics3"}, "cannot be loaded as the projector"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_projector_is_a_model_error(internvl, tmp_path, name):
    settings, message = WRONG[name]
    file = write_projector(tmp_path / "mmproj.gguf", "internvl", **settings)
    with pytest.raises(ModelError, match=message):
        load((internvl[0], file))
    Engine.load(internvl[0], n_ctx=256).close()


def test_a_missing_a_damaged_and_no_projector_are_model_errors(internvl, tmp_path):
    model, projector = internvl
    whole, cut = projector.read_bytes(), tmp_path / "cut.gguf"
    for size, message in ((0, "no GGUF"), (900, "damaged"), (len(whole) - 400, "ends at byte")):
        cut.write_bytes(whole[:size])
        with pytest.raises(ModelError, match=message):
            load((model, cut))
    with pytest.raises(ModelError, match="must be 'clip'"):
        load((model, model))
    with pytest.raises(ModelError):
        load((model, tmp_path / "not-there.gguf"))


def test_a_projector_that_kills_libmtmd_kills_a_child_and_not_this(internvl, tmp_path, monkeypatch):
    """An odd number of patches on a side, of which two by two are to become one token."""
    model, projector = internvl
    monkeypatch.setenv("EDGEMEM_HOME", str(tmp_path / "home"))
    odd = {"clip.vision.image_size": IMAGE, "clip.vision.projector.scale_factor": 3}
    file = write_projector(tmp_path / "mmproj.gguf", "internvl", **odd)
    with pytest.raises(ModelError, match=r"libmtmd dies \(SIG"):
        SURVIVES(model, file)
    SURVIVES(model, projector)
    verdicts = machine.read_cached("processors.json")
    assert list(verdicts.values()) == [True]


def test_doctor_and_version_name_the_projector_and_what_is_wrong_with_it(
    internvl, tmp_path, monkeypatch, run
):
    monkeypatch.setenv("EDGEMEM_HOME", str(tmp_path))
    database = "--db", str(tmp_path / "a.db")
    Store.open(tmp_path / "a.db").close()
    assert "vision\tnone: images are found by their words" in run("doctor", *database).output
    monkeypatch.setenv("EDGEMEM_MODEL", str(internvl[0]))
    monkeypatch.setenv("EDGEMEM_MMPROJ", str(internvl[1]))
    assert "vision\tmmproj-internvl.gguf (internvl)" in run("doctor", *database).output
    assert f"projector: {internvl[1]} (a file)" in run("--version").output
    wide = write_projector(tmp_path / "wide.gguf", "internvl", 48)
    monkeypatch.setenv("EDGEMEM_MMPROJ", str(wide))
    assert "not usable: " in run("doctor", *database).output


def test_a_memory_loads_the_projector_of_its_settings_and_counts_it(internvl, monkeypatch):
    monkeypatch.setenv("EDGEMEM_MODEL", str(internvl[0]))
    monkeypatch.setenv("EDGEMEM_MMPROJ", str(internvl[1]))
    monkeypatch.setenv("EDGEMEM_EXPERTS", "none")
    with quick(memory_limit_bytes=10**9) as memory:
        assert memory.engine.sees and memory.engine.mmproj == internvl[1]
        assert memory.plan is not None and memory.plan.parts_bytes["projector"] > 16_000_000


def test_a_chat_with_a_projector_that_is_not_there_ends_in_a_line(empty_home, run):
    result = run("chat", "--mmproj", "not-there.gguf", input="Hello\n", code=1)
    assert "not-there.gguf" in result.stderr and "Traceback" not in result.output
