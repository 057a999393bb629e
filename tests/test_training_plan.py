"""What is decided before and around training: no torch is needed, and what is refused is said."""

import importlib.util
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgemem import config
from edgemem.errors import ConfigError, InputError
from edgemem.training import examples as files
from edgemem.training import trainer
from edgemem.training.examples import MAX_TOKENS, Example, tokenized

PLAN = trainer.Plan()
BASE = Path(__file__).parent / "fixtures" / "lora-v1-base.gguf"


def example(group, prompt="p", stage="update"):
    return Example(stage, prompt, "t", group)


@given(st.lists(st.sampled_from("abcdefgh"), min_size=2), st.integers(0, 3))
def test_validation_holds_whole_groups_a_tenth_at_least(groups, seed):
    data = [example(group, str(n)) for n, group in enumerate(groups)]
    if len(set(groups)) == 1:
        with pytest.raises(InputError, match=r"1 group, which cannot be split; give validation"):
            trainer.split(data, seed)
        return
    learn, judge = trainer.split(data, seed)
    assert sorted(learn + judge, key=data.index) == data
    assert not {e.group for e in learn} & {e.group for e in judge}
    assert learn and len(judge) * 10 >= len(data)
    assert trainer.split(data, seed) == (learn, judge)


def test_no_examples_are_not_a_group():
    with pytest.raises(InputError, match=r"^no examples; give validation"):
        trainer.split([])


def test_the_learning_rate_rises_and_falls_to_a_tenth():
    rates = [trainer.learning_rate(PLAN, step, step / 100) for step in range(101)]
    peak = rates.index(max(rates))
    assert peak == trainer.WARMUP_STEPS - 1
    assert rates[:peak] == sorted(rates[:peak]) and rates[peak:] == sorted(rates[peak:])[::-1]
    assert rates[0] == pytest.approx(PLAN.lr / 10)
    assert rates[50] == pytest.approx(PLAN.lr * 0.55)
    assert rates[-1] == pytest.approx(PLAN.lr / 10)


@pytest.mark.parametrize(
    "learn, judge, changes, message",
    [
        ([], [example("v")], {}, r"training data has 0 examples; give at least one, all of update"),
        ([example("g")], [], {}, r"validation data has 0 examples"),
        ([example("g", stage="generation")], [example("v")], {}, r"1 examples, one of generation"),
        ([example("g")], [example("g")], {}, r"1 groups are in the training and the validation"),
        ([example("g")], [example("v")], {"lr": 0.0}, r"must be above 0"),
        ([example("g")], [example("v")], {"minutes": -1.0}, r"must be above 0"),
        ([example("g")], [example("v")], {"dropout": 1.0}, r"dropout is 1\.0; it must be"),
        ([example("g")], [example("v")], {"seed": 20261129120000}, r"the seed is 20261129120000"),
        ([example("g")], [example("v")], {"seed": -1}, r"the seed is -1; it must be at least 0"),
    ],
)
def test_what_cannot_be_trained_is_refused_at_once(learn, judge, changes, message):
    with pytest.raises(InputError, match=message):
        trainer.train("update", BASE, learn, judge, Path("a.gguf"), replace(PLAN, **changes))


def test_a_folder_that_is_not_there_is_refused_before_a_model_is_loaded(tmp_path):
    with pytest.raises(InputError, match=r"no folder .*nodir to write x\.gguf to; make it first"):
        given = [example("g")], [example("v")]
        trainer.train("update", BASE, *given, tmp_path / "nodir" / "x.gguf", PLAN)


def test_validation_files_without_examples_of_the_stage_are_refused(tmp_path, run):
    data, valid = tmp_path / "d.jsonl", tmp_path / "v.jsonl"
    files.write(data, [example("g"), example("h")])
    files.write(valid, [example("v", stage="generation")])
    result = run(
        "train", "run", "update", "--data", str(data), "--valid", str(valid),
        "--out", str(tmp_path / "a.gguf"), "--model", str(BASE), code=2,
    )  # fmt: skip
    assert "the validation data has 0 examples" in result.stderr


def test_the_help_tells_which_layers_each_stage_trains(run):
    told = " ".join(run("train", "run", "--help").stdout.split())
    few = [s for s in files.STAGES if trainer.targets(s, PLAN) == trainer.LAYERS["qv"]]
    assert f"[default: qv for {', '.join(few[:-1])} and {few[-1]}, else all]" in told


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("naïve".encode("latin-1"), r"d\.jsonl cannot be read .*give JSON lines in UTF-8"),
        (b"[" * 200_000, r"d\.jsonl, line 1 is no training example"),
        (b"[3]", r"d\.jsonl, line 1 is no training example"),
    ],
)
def test_a_file_that_holds_no_examples_is_named(tmp_path, data, message):
    (tmp_path / "d.jsonl").write_bytes(data)
    with pytest.raises(InputError, match=message):
        files.read([tmp_path / "d.jsonl"])


def test_an_example_that_no_window_holds_is_refused():
    with pytest.raises(InputError, match=rf"group 'long' has \d+ tokens; at most {MAX_TOKENS} are"):
        tokenized(BASE, [example("g"), example("long", "x" * MAX_TOKENS)])


def test_targets_end_with_the_end_of_the_turn_and_control_tokens_are_read_as_text():
    plain, defused = tokenized(BASE, [example("g", "hi"), example("g", "<|im_end|>")])
    assert (plain.prompt, plain.target) == (tuple(b"hi"), (*b"t", 256))
    assert 256 not in defused.prompt


def test_a_missing_package_is_named_with_the_line_that_installs_it(monkeypatch, tmp_path, run):
    def find_spec(name, *_):
        return None if name == "torch" else found(name)

    found = importlib.util.find_spec
    monkeypatch.setattr(config, "find_spec", find_spec)
    with pytest.raises(ConfigError, match=r"training needs torch"):
        config.require("train")
    data, valid = tmp_path / "d.jsonl", tmp_path / "v.jsonl"
    files.write(data, [example("g")])
    files.write(valid, [example("v")])
    result = run(
        "train", "run", "update", "--data", str(data), "--valid", str(valid),
        "--out", str(tmp_path / "a.gguf"), "--model", str(BASE), code=1,
    )  # fmt: skip
    assert 'pip install "edgemem-runtime[train]"' in result.stderr
