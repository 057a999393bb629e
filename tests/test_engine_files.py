"""Model files: missing, damaged, of another kind, without a chat template or with an odd one."""

import struct

import pytest
from familykit import DIM, write_family
from storekit import child, finished

from edgemem.errors import InputError, ModelError, ModelNotFound
from edgemem.runtime.engine import Engine
from edgemem.runtime.llama import build_info

LAYERS_KEY = b"llama.block_count"
EPSILON_KEY = b"llama.attention.layer_norm_rms_epsilon"
CHAT = [{"role": "user", "content": "Hi."}]

# Loads what it is given, untried, in a process of its own: its exit status would tell of a crash.
LOAD = """
import sys
from edgemem.errors import ModelError
from edgemem.runtime import machine
from edgemem.runtime.engine import Engine
machine.extra_buffers = lambda *_: True
for file in sys.argv[1:]:
    try:
        with Engine.load(file, n_ctx=256) as engine:
            engine.generate("Hello", max_tokens=1)
            print("fine")
    except ModelError as exc:
        print("refused", str(exc).replace("\\n", " "))
"""


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A tiny Llama's file."""
    return write_family(tmp_path_factory.mktemp("llama"), "llama").read_bytes()


def with_value(data, key, layout, value):
    at, new = data.index(key) + len(key) + 4, struct.pack(layout, value)
    return data[:at] + new + data[at + len(new) :]


def test_a_missing_file_says_what_to_do(tmp_path):
    with pytest.raises(ModelNotFound, match=r"nowhere\.gguf"):
        Engine.load(tmp_path / "nowhere.gguf")


def test_a_folder_is_no_model(tmp_path):
    with pytest.raises(ModelError, match=str(tmp_path)):
        Engine.load(tmp_path)


KEYS = b"GGUF" + struct.pack("<IQQ", 3, 0, 1)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"G", "begins with b'G'"),
        (b"#!/bin/sh\n", "begins with b'#!/b'"),
        (b"GGUF", "cannot be loaded"),
        (b"GGUF" + b"\xff" * 400, "cannot be loaded"),
        (b"GGUF" + b"\0" * 400, "cannot be loaded"),
        (KEYS + struct.pack("<Q", 2**63), "cannot be loaded"),
        (KEYS + struct.pack("<Q", 1) + b"a\x63", "cannot be loaded"),
    ],
)
def test_what_is_no_gguf_is_refused(tmp_path, content, message):
    file = tmp_path / "other.gguf"
    file.write_bytes(content)
    with pytest.raises(ModelError, match=message) as e:
        Engine.load(file)
    assert str(file) in str(e.value) and ".gguf" in str(e.value)


@pytest.mark.parametrize(
    ("key", "layout", "value"),
    [
        (LAYERS_KEY, "<I", 0),
        (LAYERS_KEY, "<I", 1000),
        (LAYERS_KEY, "<I", 2**32 - 1),
        (EPSILON_KEY, "<f", float("nan")),
    ],
)
def test_a_header_that_aborts_llama_cpp_is_refused_before_it_can(
    tmp_path, data, key, layout, value
):
    file = tmp_path / "damaged.gguf"
    file.write_bytes(with_value(data, key, layout, value))
    with pytest.raises(ModelError, match=f"damaged: its {key.decode()} is"):
        Engine.load(file)


def test_a_key_after_the_vocabularys_is_looked_at_too(tmp_path, data):
    (keys,) = struct.unpack_from("<Q", data, 16)
    first = struct.pack("<Q16sII", 16, b"tokenizer.ggml.x", 4, 0)  # 32 bytes keep the alignment
    moved = data[:16] + struct.pack("<Q", keys + 1) + first + data[24:]
    sound, damaged = tmp_path / "sound.gguf", tmp_path / "damaged.gguf"
    sound.write_bytes(moved)
    damaged.write_bytes(with_value(moved, LAYERS_KEY, "<I", 1000))
    fine, refused = finished(child(LOAD, sound, damaged)).splitlines()
    assert fine == "fine" and f"its {LAYERS_KEY.decode()} is 1000" in refused


def test_no_damaged_file_ends_the_process(tmp_path, data):
    head = data.index(b"tokenizer.ggml.tokens")
    contents = {
        "half": data[: len(data) // 2],
        "short": data[:-64],
        "head": data[:head],
        "keys": data[:200],
        "swapped": data[:head] + data[head + 8 :],
        "zeros": data[:300] + b"\0" * 4096 + data[4396:],
        "version": data[:4] + struct.pack("<I", 99) + data[8:],
        "count": data[:8] + struct.pack("<Q", 2**40) + data[16:],
        "layers": with_value(data, LAYERS_KEY, "<I", 2**31),
        "fewer": with_value(data, LAYERS_KEY, "<I", 3),
        "width": with_value(data, b"llama.embedding_length", "<I", DIM - 1),
        "heads": with_value(data, b"llama.attention.head_count", "<I", 0),
        "noise": data[:-200_000] + bytes(range(256)) * 781 + data[-64:],
    }
    files = [tmp_path / f"{name}.gguf" for name in contents]
    for file, content in zip(files, contents.values(), strict=True):
        file.write_bytes(content)
    for line, file in zip(finished(child(LOAD, *files)).splitlines(), files, strict=True):
        assert line.startswith("refused") and file.name in line, line


def test_a_model_without_a_chat_template_takes_plain_text_only(tmp_path, data):
    file = tmp_path / "base.gguf"
    file.write_bytes(data.replace(b"tokenizer.chat_template", b"tokenizer.chat_templatX", 1))
    with Engine.load(file, n_ctx=256) as engine:
        assert not engine.has_chat_template
        assert engine.generate("Once upon", max_tokens=2).completion_tokens == 2
        with pytest.raises(ModelError, match=r"base\.gguf has no chat template.*plain string"):
            engine.generate(CHAT, max_tokens=2)


def test_a_chat_template_that_is_none_is_named_and_plain_text_still_works(tmp_path):
    with Engine.load(write_family(tmp_path, "llama", template="{% for %}"), n_ctx=256) as engine:
        assert engine.generate("Once upon", max_tokens=1).completion_tokens == 1
        with pytest.raises(ModelError, match="a chat template that cannot be read"):
            engine.generate(CHAT, max_tokens=1)


@pytest.mark.models
@pytest.mark.parametrize(
    "options",
    [{"n_ctx": 0}, {"n_ctx": 2**32 + 64}, {"n_threads": 0}, {"n_threads": -1},
     {"n_threads_batch": 0}],
)  # fmt: skip
def test_a_bad_number_is_named(options):
    with pytest.raises(InputError, match=next(iter(options))):
        Engine.load(**options)


@pytest.mark.models
def test_gpu_layers_may_be_given():
    with Engine.load(n_ctx=256, n_gpu_layers=0, n_threads=1, n_threads_batch=1) as engine:
        assert engine.n_gpu_layers == 0
        assert engine.n_ctx == 256
        assert engine.generate("Hello", max_tokens=1).completion_tokens == 1


def test_the_build_names_llama_cpp_python():
    assert "llama-cpp-python" in build_info()


# libgomp reads its environment when it is loaded, so nothing may load it before the engine does.
EARLY = """
import os, sys
os.environ.pop("OMP_WAIT_POLICY", None)
import numpy, hnswlib, onnxruntime
import edgemem.memory, edgemem.chat, edgemem.runtime.embedder
from edgemem.runtime import llama
maps = open("/proc/self/maps").read()
assert "llama_cpp" not in sys.modules
print("early", "libgomp" in maps)
llama.library()
print("late", "libgomp" in open("/proc/self/maps").read(), os.environ["OMP_WAIT_POLICY"])
"""


@pytest.mark.skipif("sys.platform != 'linux'")
def test_waiting_threads_sleep_because_libgomp_is_loaded_after_they_were_told_to():
    assert finished(child(EARLY)).splitlines() == ["early False", "late True PASSIVE"]


def test_a_wait_policy_of_the_users_own_is_kept():
    script = "import os; os.environ['OMP_WAIT_POLICY'] = 'ACTIVE'\n" + (
        "from edgemem.runtime import llama; llama.library(); print(os.environ['OMP_WAIT_POLICY'])"
    )
    assert finished(child(script)).strip() == "ACTIVE"
