"""Training on a tiny model: packed rows are exact, runs repeat, go on, and end when they should."""

import json
import os
import shutil
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from trainkit import SHAPE, llama_logits, write_base

from edgemem.errors import AdapterError, InputError, ModelError
from edgemem.runtime import llama
from edgemem.runtime.models import find, sha256_of
from edgemem.training import adapters, lora, trainer
from edgemem.training import examples as files
from edgemem.training.examples import Example, Tokens, pack, tokenized

torch: Any = pytest.importorskip("torch", reason="needs edgemem-runtime[train]")
pytest.importorskip("transformers", reason="needs edgemem-runtime[train]")
pytest.importorskip("gguf", reason="needs edgemem-runtime[train]")
pytestmark = pytest.mark.train

PLAN = trainer.Plan(lr=2e-2, batch=4, epochs=6, every=4, dropout=0.1, precision="float32")


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return write_base(tmp_path_factory.mktemp("base") / "tiny.gguf")


def adapted(base, size=0.15):
    """A float32 model whose adapters do something, and their parameters."""
    model = lora.load_base(base, precision="float32")
    tensors = lora.add_lora(model, lora.ALL_LINEAR, rank=4, alpha=8.0, dropout=0.0, seed=1)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for tensor in tensors.values():
            tensor.copy_((torch.randn(tensor.shape, generator=generator) * size).half())
    return model, tensors


def test_the_shape_of_a_model_is_read_from_its_file(base, tmp_path):
    assert adapters.shape_of(base) == SHAPE
    (tmp_path / "x.gguf").write_bytes(b"GGUF")
    with pytest.raises(ModelError, match="give the GGUF of a language model"):
        adapters.shape_of(tmp_path / "x.gguf")


def examples(count, group="g", stage="extraction"):
    """To learn: the answer to a letter is that letter twice."""
    return [
        Example(stage, f"Say it twice.\n{c}\n", c * 2, f"{group}{n % 3}")
        for n in range(count)
        for c in ["abcdefgh"[n % 8]]
    ]


def test_a_packed_row_has_the_loss_and_gradients_of_its_examples(base):
    model, tensors = adapted(base)
    rng = np.random.default_rng(0)
    shared = tuple(rng.integers(0, 256, 7).tolist())

    def ids(count):
        return tuple(rng.integers(0, 256, count).tolist())

    batch = [Tokens(shared + ids(p), ids(t)) for p, t in [(1, 1), (3, 4), (20, 9), (1, 12)]]

    def gradients(rows):
        model.zero_grad()
        total = 0.0
        for row in rows:
            loss = lora.loss_sum(model, pack(row))
            loss.backward()
            total += loss.item()
        return total, {n: p.grad.clone() for n, p in tensors.items()}

    together, packed = gradients([batch])
    apart, single = gradients([[e] for e in batch])
    assert together == pytest.approx(apart, rel=1e-5)
    for name, gradient in single.items():
        assert float(gradient.norm()) > 0.0, name
        assert float((packed[name] - gradient).abs().max()) < 1e-4 * float(gradient.abs().max())


def test_the_loss_is_that_of_transformers_own_attention(base):
    import transformers

    (tokens,) = tokenized(base, examples(1))
    ids = torch.tensor([[*tokens.prompt, *tokens.target]])
    labels = ids.clone()
    labels[:, : len(tokens.prompt)] = -100
    plain = transformers.AutoModelForCausalLM.from_pretrained(
        str(base.parent), gguf_file=base.name, dtype=torch.float32
    )
    wanted = plain(input_ids=ids, labels=labels).loss.item() * len(tokens.target)
    ours = lora.load_base(base, precision="float32")
    assert lora.loss_sum(ours, pack([tokens])).item() == pytest.approx(wanted, rel=1e-5)


def test_llama_cpp_computes_what_was_trained(base, tmp_path):
    model, tensors = adapted(base)
    model.eval()
    tokens = list(b"The other path is over there.")
    row = pack([Tokens(tuple(tokens), (0,))])
    with torch.no_grad():
        (ours,) = lora.logits(model, row).numpy()
    arrays = {n: t.detach().numpy() for n, t in tensors.items()}
    file = tmp_path / "a.gguf"
    adapters.write(file, arrays, alpha=8.0, shape=SHAPE)
    assert np.abs(llama_logits(base, tokens, file) - ours).max() < 0.05
    assert np.abs(llama_logits(base, tokens) - ours).max() > 1.0


@pytest.fixture(scope="module")
def learned(base, tmp_path_factory):
    """An adapter of queries and values, trained to the end of PLAN."""
    out = tmp_path_factory.mktemp("learned") / "a.gguf"
    return out, trainer.train("extraction", base, *data(), out, PLAN)


def data(count=24, stage="extraction"):
    """To learn from, and to be judged by."""
    return examples(count, stage=stage), examples(count // 3, "v", stage=stage)


def test_an_expert_learns_and_the_best_adapter_is_in_the_file(
    learned,
):
    out, outcome = learned
    assert outcome.best_loss < 0.7 * outcome.first_loss
    assert (outcome.ended, outcome.steps, outcome.epochs_done) == ("epochs", 36, 6.0)
    tensors, alpha = adapters.read(out, shape=SHAPE)
    assert alpha == PLAN.alpha
    layers = {name.rpartition(".")[0] for name in tensors}
    assert {name.rpartition(".")[2] for name in layers} == set(lora.QV)


def test_the_same_seed_gives_the_same_file(base, tmp_path):
    plan = replace(PLAN, epochs=1)
    files = [tmp_path / f"{n}.gguf" for n in range(3)]
    for file, seed in zip(files, (0, 0, 1), strict=True):
        given = data(12, "generation")
        trainer.train("generation", base, *given, file, replace(plan, seed=seed))
    one, again, other = (f.read_bytes() for f in files)
    assert one == again != other


def test_a_run_that_was_stopped_goes_on_as_if_it_had_not_been(base, tmp_path):
    whole, stopped = tmp_path / "whole.gguf", tmp_path / "stopped.gguf"
    wanted = trainer.train("extraction", base, *data(12), whole, PLAN)

    def stop(now):
        if now.step == 10:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        trainer.train("extraction", base, *data(12), stopped, PLAN, report=stop)
    steps: list[int] = []
    got = trainer.train(
        "extraction", base, *data(12), stopped, PLAN, resume=True,
        report=lambda now: steps.append(now.step),
    )  # fmt: skip
    assert steps[0] == 9  # the checkpoint was of step 8
    assert stopped.read_bytes() == whole.read_bytes()
    assert (got.best_loss, got.first_loss) == (wanted.best_loss, wanted.first_loss)


def test_other_data_or_another_model_of_the_same_name_is_not_resumed(base, tmp_path):
    out, plan, other = tmp_path / "a.gguf", replace(PLAN, epochs=1), tmp_path / base.name
    trainer.train("extraction", base, *data(12), out, plan)
    write_base(other, seed=9)
    for model, count in ((base, 13), (other, 12)):
        with pytest.raises(InputError, match="other data or settings; give the same ones, or "):
            trainer.train("extraction", model, *data(count), out, plan, resume=True)


def test_what_was_trained_is_not_replaced_by_a_training_begun_anew(base, tmp_path, learned):
    out, plan = tmp_path / "a.gguf", replace(PLAN, epochs=1)
    shutil.copyfile(learned[0], out)
    adapters.write_record(out, {"best_loss": 0.1})
    for resume, message in ((False, r"with --resume, or"), (True, r"checkpoint does not exist")):
        with pytest.raises(InputError, match=rf"a\.gguf exists, .* another --out, .*{message}"):
            trainer.train("extraction", base, *data(), out, plan, resume=resume)
    assert out.read_bytes() == learned[0].read_bytes()
    after = trainer.train("extraction", base, *data(), out, plan, init=out)
    assert after.first_loss == pytest.approx(learned[1].best_loss, abs=0.01)


def test_a_checkpoint_goes_on_only_beside_the_adapter_that_its_run_wrote(base, tmp_path, learned):
    out, plan = tmp_path / "a.gguf", replace(PLAN, epochs=1)
    trainer.train("extraction", base, *data(12), out, plan)

    def go_on():
        longer = replace(plan, epochs=2)
        return trainer.train("extraction", base, *data(12), out, longer, resume=True)

    own = out.read_bytes()
    for other in (learned[0].read_bytes(), None):
        out.unlink()
        if other is not None:
            out.write_bytes(other)
        with pytest.raises(InputError, match=r"is not the adapter that .* goes with; bring"):
            go_on()
        out.write_bytes(own)
    checkpoint = tmp_path / "a.gguf.checkpoint"
    whole = checkpoint.read_bytes()
    for damaged in (whole[: len(whole) // 2], b"", b"x" * 100):
        checkpoint.write_bytes(damaged)
        with pytest.raises(InputError, match=r"checkpoint is no checkpoint, or is damaged"):
            go_on()
    checkpoint.write_bytes(whole)
    assert go_on().epochs_done == 2.0


@pytest.mark.parametrize("changes", [{"alpha": 32.0}, {"rank": 12}, {"layers": "all"}])
def test_training_begins_where_an_adapter_ended_also_one_of_fewer_layers_or_a_lower_rank(
    base, tmp_path, learned, changes
):
    first, before = learned
    out, plan = tmp_path / "2.gguf", replace(PLAN, epochs=1, **changes)
    after = trainer.train("extraction", base, *data(), out, plan, init=first)
    assert after.first_loss == pytest.approx(before.best_loss, abs=0.01)  # float16 in between
    if "layers" not in changes:
        return
    assert out.stat().st_size > 2 * first.stat().st_size
    for wrong, init, error, message in (
        ({"rank": 4}, first, AdapterError, r"lora_A \(8, 32\), where this expert has \(4, 32\)"),
        ({}, out, AdapterError, "no such layer; give an adapter of the same base"),
        ({"layers": "most"}, None, InputError, "layers is 'most'; allowed: qv, all"),
    ):
        with pytest.raises(error, match=message):
            trainer.train(
                "extraction", base, *data(), tmp_path / "3.gguf", replace(PLAN, **wrong), init=init
            )


@pytest.mark.parametrize(
    ("changes", "ended", "most"),
    [
        ({"lr": 1e-12, "every": 1, "patience": 2}, "patience", 35),
        ({"epochs": 50, "minutes": 1e-6}, "minutes", 1),
    ],
)
def test_it_ends_when_validation_gets_no_better_or_its_time_is_over(
    base, tmp_path, changes, ended, most
):
    plan = replace(PLAN, **changes)
    outcome = trainer.train("extraction", base, *data(), tmp_path / "a.gguf", plan)
    assert outcome.ended == ended and 1 <= outcome.steps <= most


def test_the_command_writes_an_adapter_and_says_how_it_went(base, tmp_path, run):
    lines, out = tmp_path / "d.jsonl", tmp_path / "a.gguf"
    files.write(lines, examples(24))
    result = run(
        "train", "run", "extraction", "--data", str(lines), "--out", str(out), "--model", str(base),
        "--epochs", "2", "--every", "2", "--valid-examples", "5", "--threads", "1", "--json",
    )  # fmt: skip
    said = json.loads(result.stdout)
    assert said["steps"] == 4 and said["ended"] == "epochs"  # 16 examples, 8 held for validation
    assert said["valid_examples"] == 5
    assert said["bytes"] == out.stat().st_size
    assert adapters.read(out, shape=SHAPE)[1] == 16.0
    assert "step 4, epoch 2.00" in result.stderr and "min left" in result.stderr
    first = next(line for line in result.stderr.splitlines() if "step 0" in line)
    assert "validation" in first and "nan" not in first and "left" not in first
    record = json.loads((tmp_path / "a.gguf.json").read_text())
    assert record["sha256"] == sha256_of(out)
    command = record["command"]
    # To be typed as it stands, where the files lie.
    assert command.startswith("edgemem train run extraction --data d.jsonl --out a.gguf")


def test_the_record_has_what_was_planned_beside_what_was_done(base, tmp_path, run):
    lines, out = tmp_path / "d.jsonl", tmp_path / "a.gguf"
    files.write(lines, examples(24))
    run(
        "train", "run", "extraction", "--data", str(lines), "--out", str(out), "--model", str(base),
        "--epochs", "9", "--minutes", "1e-6", "--threads", "1",
    )  # fmt: skip
    record = json.loads(adapters.record_file(out).read_text())
    assert (record["epochs"], record["epochs_done"], record["ended"]) == (9, 0.5, "minutes")


@pytest.mark.models
@pytest.mark.slow
def test_llama_cpp_computes_the_same_on_the_bundled_model(tmp_path):
    """On its F16 form, for llama.cpp multiplies Q4_1 weights with activations of eight bits."""
    bundled, base = find("smollm2-135m-instruct-q4_1"), tmp_path / "f16.gguf"
    lib = llama.library()
    params = lib.llama_model_quantize_default_params()
    params.ftype, params.allow_requantize = lib.LLAMA_FTYPE_MOSTLY_F16, True
    assert lib.llama_model_quantize(os.fsencode(bundled), os.fsencode(base), params) == 0
    text = "Old memories:\n0: Ana lives in Oslo\nNew fact: Ana moved to Bergen\n"
    (tokens,) = tokenized(base, [Example("update", text, "x", "g")])
    prompt = tokens.prompt
    model, tensors = adapted(base, 0.03)
    with torch.no_grad():
        ours = lora.logits(model.eval(), pack([Tokens(prompt, (0,))]))[0].numpy()
    arrays = {n: t.detach().numpy() for n, t in tensors.items()}
    shape = adapters.shape_of(base)
    file = tmp_path / "a.gguf"
    assert adapters.write(file, arrays, alpha=8.0, shape=shape) <= 6_000_000
    assert np.abs(llama_logits(base, prompt, file) - ours).max() <= 0.1
    assert np.abs(llama_logits(base, prompt) - ours).max() > 1.0
