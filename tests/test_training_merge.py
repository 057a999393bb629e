"""Adapters added up: the sum itself, what is nearest to it, and the record that says so."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from trainkit import SHAPE, write_base

from edgemem.errors import InputError
from edgemem.runtime.models import sha256_of
from edgemem.training import adapters
from edgemem.training.adapters import merged, record_file, write_record


def random(rank, seed, layers=1, wide=32):
    rng = np.random.default_rng(seed)
    sizes = {"lora_A": (rank, wide), "lora_B": (wide, rank)}
    return {
        f"model.layers.{n}.self_attn.{part}_proj.{kind}": rng.normal(size=size).astype(np.float32)
        for n in range(layers) for part in "qo" for kind, size in sizes.items()
    }  # fmt: skip


def change(tensors, layer, scale):
    return scale * tensors[f"{layer}.lora_B"] @ tensors[f"{layer}.lora_A"]


@given(st.integers(1, 4), st.integers(1, 4), st.floats(0.1, 2), st.integers(0, 99))
def test_a_sum_of_enough_rank_is_exact(r1, r2, weight, seed):
    one, two = random(r1, seed), random(r2, seed + 1)
    found = merged([(one, 8.0, weight), (two, 2.0, 1.0)], r1 + r2, 16.0)
    layer = "model.layers.0.self_attn.q_proj"
    wanted = change(one, layer, weight * 8 / r1) + change(two, layer, 2 / r2)
    np.testing.assert_allclose(change(found, layer, 16 / (r1 + r2)), wanted, atol=1e-3)


def test_a_cut_sum_is_the_nearest_of_its_rank():
    one, two = random(4, 1), random(4, 2)
    layer = "model.layers.0.self_attn.o_proj"
    whole = change(one, layer, 1.0) + change(two, layer, 1.0)
    found = merged([(one, 4.0, 1.0), (two, 4.0, 1.0)], 4, 4.0)
    left = np.linalg.norm(whole - change(found, layer, 1.0))
    singular = np.linalg.svd(whole, compute_uv=False)
    assert left == pytest.approx(float(np.linalg.norm(singular[4:])), rel=1e-3)


def test_a_layer_narrower_than_the_rank_is_added_up_whole():
    rng = np.random.default_rng(0)
    layer = "model.layers.0.self_attn.v_proj"
    a, b = (rng.normal(size=size).astype(np.float32) for size in ((16, 24), (12, 16)))
    wide = {f"{layer}.lora_A": a, f"{layer}.lora_B": b}
    found = merged([(wide, 32.0, 0.5), (wide, 32.0, 0.5)], 16, 32.0)
    scale = 32.0 / len(found[f"{layer}.lora_A"])  # as llama.cpp has it
    np.testing.assert_allclose(change(found, layer, scale), change(wide, layer, 2.0), atol=1e-3)


def test_adapters_of_different_layers_are_refused():
    with pytest.raises(InputError, match="different layers"):
        merged([(random(2, 0), 2.0, 1.0), (random(2, 1, layers=2), 2.0, 1.0)], 2, 2.0)


@pytest.fixture
def trained(tmp_path):
    """A model, and two adapters of it with records as if they had been trained."""
    pytest.importorskip("gguf", reason="needs edgemem-runtime[train]")
    base = write_base(tmp_path / "tiny.gguf")
    files = [tmp_path / "a.gguf", tmp_path / "b.gguf"]
    for rank, file in enumerate(files, 2):
        adapters.write(file, random(rank, rank, layers=2), alpha=2.0 * rank, shape=SHAPE)
        record = {
            "stage": "update", "rank": rank, "alpha": 2.0 * rank, "targets": ["q_proj", "o_proj"],
            "base_sha256": sha256_of(base), "seed": 3, "tokens": 1000, "best_loss": 1.0,
            "command": f"edgemem train run update --out {file.name}",
        }  # fmt: skip
        write_record(file, record)
    return base, files


@pytest.mark.train
def test_trained_adapters_are_merged_and_the_record_says_of_which(trained, run):
    base, files = trained
    out = base.with_name("sum.gguf")
    paths = map(str, files)
    options = ["--out", str(out), "--weight", "0.6", "--model", str(base)]
    told = run("train", "merge", *paths, *options, "--json")
    assert json.loads(told.stdout) == {"out": str(out), "adapters": 2, "bytes": out.stat().st_size}
    found, alpha = adapters.read(out, shape=SHAPE)
    layer = "model.layers.1.self_attn.q_proj"
    parts = [adapters.read(f, shape=SHAPE)[0] for f in files]
    whole = sum(change(part, layer, 0.6 * 2) for part in parts)
    best = np.linalg.norm(np.linalg.svd(whole, compute_uv=False)[2:])
    assert np.linalg.norm(whole - change(found, layer, alpha / 2)) == pytest.approx(best, rel=1e-2)
    record = json.loads(record_file(out).read_text())
    assert record["tokens"] == 2000 and "best_loss" not in record
    assert (record["rank"], record["alpha"]) == (2, alpha)
    assert record["command"] == (
        "edgemem train run update --out a.gguf && edgemem train run update --out b.gguf && "
        f"edgemem train merge a.gguf b.gguf --out sum.gguf --weight 0.6 --model {base.name} --json"
    )


@pytest.mark.train
@pytest.mark.parametrize(
    ("change", "message"),
    [({"stage": "generation"}, "differ in stage"), ({"base_sha256": "0" * 64}, "differ in")],
)
def test_adapters_that_were_not_trained_alike_are_refused(trained, run, change, message):
    base, files = trained
    record = json.loads(record_file(files[1]).read_text())
    write_record(files[1], record | change)
    out = str(base.with_name("s.gguf"))
    told = run("train", "merge", *map(str, files), "--out", out, "--model", str(base), code=2)
    assert message in told.stderr


@pytest.mark.train
@pytest.mark.parametrize(
    ("weight", "message", "code"),
    [("nan", "the weight is nan", 2), ("1e9", "float16 holds none above", 1)],
)
def test_a_weight_that_no_adapter_can_have_is_refused(trained, run, weight, message, code):
    base, files = trained
    out = base.with_name("s.gguf")
    options = ["--out", str(out), "--model", str(base), "--weight", weight]
    assert message in run("train", "merge", *map(str, files), *options, code=code).stderr
    assert not out.exists()


@pytest.mark.train
def test_a_sum_does_not_replace_one_of_its_parts(trained, run):
    base, files = trained
    before = files[0].read_bytes()
    options = ["--out", str(files[0]), "--model", str(base)]
    told = run("train", "merge", *map(str, files), *options, code=2)
    assert "is one of the adapters" in told.stderr and files[0].read_bytes() == before
