"""Adapter files: what is wrong with one is named, and no damaged one ends the process."""

import random
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from storekit import child, finished

from bench.random_adapters import (
    ALL_LINEAR,
    adapter_bytes,
    gguf_bytes,
    random_tensors,
    strings,
)
from edgemem.errors import AdapterError
from edgemem.runtime import models
from edgemem.runtime.experts import check_adapter
from edgemem.runtime.gguf import read_header, read_only

pytestmark = pytest.mark.models

KEYS = {"general.type": "adapter", "general.architecture": "llama", "adapter.type": "lora"}
A, B = "blk.0.attn_q.weight.lora_a", "blk.0.attn_q.weight.lora_b"
ONE_LAYER = random_tensors(layers=1)
SOUND = adapter_bytes(ONE_LAYER)


@pytest.fixture(scope="module")
def base():
    return read_header(read_only(models.find(models.DEFAULT_LLM)))


def check(data, base):
    check_adapter(Path("an.gguf"), data, "base.gguf", base)


def with_tensor(name, *, kind=1, ne=None, data=None):
    """One layer's tensors, one of them changed."""
    out = []
    for tensor in ONE_LAYER:
        if tensor[0] == name:
            shape = ne or tensor[2]
            room = {0: 4, 1: 2, 26: 4, 28: 8, 30: 2, 16: 1}[kind]
            content = data if data is not None else bytes(int(np.prod(shape)) * room)
            tensor = (name, kind, shape, content)
        out.append(tensor)
    return adapter_bytes(out)


def with_alpha(kind, value):
    return gguf_bytes([*strings(KEYS), ("adapter.lora.alpha", kind, value)], ONE_LAYER)


def with_number(position, value):
    """The first tensor's weights with another number at a position."""
    (name, _, ne, data), *_ = ONE_LAYER
    weights = np.frombuffer(data, np.float16).astype(np.float32)
    weights[position] = value
    return with_tensor(name, kind=0, ne=ne, data=weights.tobytes())


def renamed(old, new):
    return adapter_bytes([(new if n == old else n, *rest) for n, *rest in ONE_LAYER])


REFUSED = {
    "an empty file": (b"", "is no GGUF file, or is damaged: it begins with b''"),
    "another kind of file": (b"PK\3\4" + bytes(99), r"begins with b'PK\\x03\\x04'"),
    "another version": (SOUND[:4] + struct.pack("<I", 9) + SOUND[8:], "version is 9"),
    "half a header": (SOUND[:90], "the file ends"),
    "a count of nonsense": (SOUND[:8] + struct.pack("<Q", 2**60) + SOUND[16:], "entries at byte"),
    "a model": (
        adapter_bytes(ONE_LAYER, strings_in_place={"general.type": "model"}),
        "general.type is 'model', and must be 'adapter'",
    ),
    "another kind of adapter": (
        adapter_bytes(ONE_LAYER, strings_in_place={"adapter.type": "control_vector"}),
        "adapter.type is 'control_vector', and must be 'lora'",
    ),
    "another architecture": (
        adapter_bytes(ONE_LAYER, strings_in_place={"general.architecture": "qwen2"}),
        "general.architecture is 'qwen2', and must be 'llama'",
    ),
    "no architecture": (
        gguf_bytes(strings({k: v for k, v in KEYS.items() if k != "general.architecture"}), []),
        "general.architecture is missing",
    ),
    "a type that is a number": (
        gguf_bytes([("general.type", 4, struct.pack("<I", 1))], ONE_LAYER),
        "general.type is 1, and must be 'adapter'",
    ),
    "a key twice": (
        adapter_bytes(ONE_LAYER, more=strings({"adapter.type": "lora"})),
        "the key adapter.type comes twice",
    ),
    "a nested array": (
        adapter_bytes(ONE_LAYER, more=[("x", 9, struct.pack("<IQIQI", 9, 1, 4, 1, 7))]),
        "the key x has an array of the unknown type 9",
    ),
    "an alignment of 3": (
        adapter_bytes(ONE_LAYER, more=[("general.alignment", 4, struct.pack("<I", 3))]),
        "general.alignment is 3; it must be a power of two",
    ),
    "no alpha": (gguf_bytes(strings(KEYS), ONE_LAYER), r"adapter\.lora\.alpha is missing"),
    "alpha in float64": (with_alpha(12, struct.pack("<d", 16)), "alpha is 16.0, and must be a flo"),
    "alpha 0": (adapter_bytes(ONE_LAYER, alpha=0.0), "alpha is 0.0, and must be a number above 0"),
    "alpha NaN": (adapter_bytes(ONE_LAYER, alpha=float("nan")), "alpha is nan"),
    "alpha infinite": (adapter_bytes(ONE_LAYER, alpha=float("inf")), "alpha is inf"),
    "no tensors": (adapter_bytes([]), "has no tensors"),
    "a tensor twice": (adapter_bytes(ONE_LAYER + ONE_LAYER[:1]), f"{A} comes twice"),
    "a tensor of another kind": (
        renamed(A, "blk.0.attn_q.weight"),
        r"blk\.0\.attn_q\.weight is neither a \.lora_a nor",
    ),
    "a tensor the base lacks": (
        renamed(A, "blk.77.attn_q.weight.lora_a"),
        r"blk\.77\.attn_q\.weight, which the base model does not have",
    ),
    "a lora_a alone": (adapter_bytes(ONE_LAYER[:1]), f"{A} has no lora_b beside it"),
    "a lora_b alone": (adapter_bytes(ONE_LAYER[1:2]), f"{B} has no lora_a beside it"),
    "a norm": (
        adapter_bytes(
            [
                ("blk.0.attn_norm.weight.lora_a", 1, (576, 8), bytes(576 * 16)),
                ("blk.0.attn_norm.weight.lora_b", 1, (8, 576), bytes(576 * 16)),
            ]
        ),
        r"blk\.0\.attn_norm\.weight\.lora_a is for token embeddings or a vector",
    ),
    "token embeddings": (
        adapter_bytes(
            [
                ("token_embd.weight.lora_a", 1, (8, 49152), bytes(49152 * 16)),
                ("token_embd.weight.lora_b", 1, (8, 576), bytes(576 * 16)),
            ]
        ),
        "only weight matrices can be adapted",
    ),
    "too wide": (with_tensor(A, ne=(577, 8)), rf"{A} has the shape \[577, 8\].*\[576, 8\]"),
    "transposed": (with_tensor(A, ne=(8, 576)), rf"{A} has the shape \[8, 576\]"),
    "another rank": (with_tensor(B, ne=(9, 576)), rf"{B} has the shape \[9, 576\]"),
    "rank 0": (
        adapter_bytes([(A, 1, (576, 0), b""), (B, 1, (0, 576), b"")]),
        rf"{A} has the shape \[576, 0\]",
    ),
    "three dimensions": (with_tensor(B, ne=(8, 576, 2)), rf"{B} has the shape \[8, 576, 2\]"),
    "no dimensions": (
        adapter_bytes([(A, 1, (), b""), *ONE_LAYER[1:]]),
        f"{A} has 0 dimensions",
    ),
    "float64": (with_tensor(A, kind=28), rf"{A} is of type F64; llama\.cpp can run F32, F16"),
    "integers": (with_tensor(B, kind=26), f"{B} is of type I32"),
    "a type of tomorrow": (with_tensor(B, kind=16), f"{B} is of type IQ2_XXS"),
    "rows that are no blocks": (
        adapter_bytes([(n, 8, ne, bytes(9000)) for n, _, ne, _ in ONE_LAYER]),
        f"{B} has rows of 8, and Q8_0 has blocks of 32",
    ),
    "data cut off": (SOUND[:-1000], r"attn_v\.weight\.lora_. ends at byte \d+, the file at \d+"),
    "a number that is none": (with_number(77, np.nan), f"{A} has weights that are no finite"),
    "an infinite number": (with_number(-1, -np.inf), f"{A} has weights that are no finite"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_wrong_with_an_adapter_is_named(base, what):
    data, message = REFUSED[what]
    with pytest.raises(AdapterError, match=message) as e:
        check(data, base)
    assert str(e.value).startswith("an.gguf ")
    assert str(e.value).endswith("; train or convert it again for this model, or leave it out")


def bfloat16(values):
    return (values.view(np.uint32) >> 16).astype(np.uint16).tobytes()


def blocks(size, floats):
    """What packs 32 weights into blocks: small scales, then any bytes."""

    def pack(values):
        rng = np.random.default_rng(1)
        out = rng.integers(0, 256, (len(values) // 32, size), dtype=np.uint8)
        out[:, : 2 * floats] = np.full((len(out), floats), 1e-3, np.float16).view(np.uint8)
        return out.tobytes()

    return pack


# How weights are packed, and bytes at the head of a tensor that make one infinite.
KINDS = {
    0: (lambda values: values.tobytes(), b"\x00\x00\x80\x7f"),
    1: (lambda values: values.astype(np.float16).tobytes(), b"\x00\x7c"),
    30: (bfloat16, b"\x80\x7f"),
    2: (blocks(18, 1), b"\x00\x7c"),
    3: (blocks(20, 2), b"\x00\x00\x00\x7c"),
    6: (blocks(22, 1), b"\x00\x7c"),
    7: (blocks(24, 2), b"\x00\x7c"),
    8: (blocks(34, 1), b"\x00\x7c"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_each_allowed_type_runs(small, tmp_path, kind):
    pack, infinite = KINDS[kind]
    tensors = []
    for name, _, ne, data in random_tensors(rank=32, targets=ALL_LINEAR, layers=2):
        values = np.frombuffer(data, np.float16).astype(np.float32)
        tensors.append((name, kind, ne, pack(values)))
    file = tmp_path / "an.gguf"
    file.write_bytes(adapter_bytes(tensors))
    plain = small.generate("Once", max_tokens=1)
    base_logits = small._logits().tobytes()
    small.load_adapter("an", file)
    small.bind("a", {"an": 1.0})
    assert small.generate("Once", max_tokens=1, stage="a").prompt_tokens == plain.prompt_tokens
    adapted = small._logits()
    small.unload_adapter("an")
    assert np.isfinite(adapted).all() and adapted.tobytes() != base_logits
    name, _, ne, data = tensors[0]
    tensors[0] = (name, kind, ne, infinite + data[len(infinite) :])
    file.write_bytes(adapter_bytes(tensors))
    with pytest.raises(AdapterError, match="no finite numbers"):
        small.load_adapter("an", file)


@given(
    st.integers(0, len(SOUND) - 1),
    st.binary(min_size=1, max_size=8),
    st.sampled_from(["replace", "insert", "delete", "cut"]),
)
def test_a_changed_byte_is_refused_by_its_own_error_or_harmless(base, at, new, how):
    """No other exception, whatever the change."""
    head = read_header(SOUND).bytes
    at %= head if at % 4 else len(SOUND)
    data = {
        "replace": SOUND[:at] + new + SOUND[at + len(new) :],
        "insert": SOUND[:at] + new + SOUND[at:],
        "delete": SOUND[:at] + SOUND[at + len(new) :],
        "cut": SOUND[:at],
    }[how]
    try:
        check(data, base)
    except AdapterError as exc:
        assert str(exc).startswith("an.gguf ")


# Loads and runs what lies in a folder, in a process of its own: a crash is its exit status.
LOAD = """
import sys
from pathlib import Path
from edgemem.errors import AdapterError, ModelError
from edgemem.runtime.engine import Engine
with Engine.load(n_ctx=256) as engine:
    for file in sorted(Path(sys.argv[1]).iterdir()):
        try:
            engine.load_adapter("an", file)
            engine.bind("a", {"an": 1.0})
            engine.generate("Once", max_tokens=1, stage="a")
            print("fine")
        except AdapterError:
            print("refused")
        except ModelError as exc:  # weights so large that they give no numbers
            print("no numbers" if "gave no numbers" in str(exc) else exc)
        if engine.adapters():
            engine.unload_adapter("an")
"""


def test_no_damaged_adapter_ends_the_process(tmp_path):
    chance = random.Random(11)
    whole = adapter_bytes(random_tensors(layers=2))
    head = read_header(whole).bytes
    for number in range(300):
        data = bytearray(whole)
        for _ in range(chance.randint(1, 3)):
            at = chance.randrange(min(len(data), head) if chance.random() < 0.8 else len(data))
            how = chance.random()
            if how < 0.6:
                data[at] = chance.choice((0, 1, 255, chance.randrange(256)))
            elif how < 0.75:
                data[at : at + 8] = struct.pack(
                    "<Q", chance.choice((0, 1, 2**31, 2**63, 2**64 - 1))
                )
            elif how < 0.9:
                del data[at : at + chance.randint(1, 40)]
            else:
                del data[at:]
        (tmp_path / f"{number:03}.gguf").write_bytes(data)
    for name, (data, _) in REFUSED.items():
        (tmp_path / f"refused {name}.gguf").write_bytes(data)
    outcomes = finished(child(LOAD, tmp_path)).splitlines()
    assert len(outcomes) == 300 + len(REFUSED)
    assert set(outcomes) <= {"fine", "refused", "no numbers"}
    assert set(outcomes[300:]) == {"refused"}
    assert outcomes[:300].count("refused") > 100 and "fine" in outcomes
