"""From trained adapters to a set of experts, and a set's scores beside the base model's."""

import json
import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
from clikit import run_corpus
from familykit import write_family
from locomokit import write_locomo

from bench import random_adapters
from bench.random_adapters import QV, write_adapter
from corpus import evaluate
from corpus.readers import locomo_file, locomo_questions
from edgemem.errors import InputError
from edgemem.runtime import experts
from edgemem.runtime.engine import Engine
from edgemem.runtime.models import sha256_of
from edgemem.training import examples
from edgemem.training.adapters import combine, record_file, write_record

SHIPPED = Path(__file__).parents[1] / "models" / "adapters"
MADE = {
    "stage": "extraction", "base_sha256": "a" * 64, "rank": 8, "alpha": 16.0, "targets": list(QV),
    "command": "edgemem train run extraction --data a.jsonl", "seed": 3, "tokens": 50_000,
    "first_loss": 3.3104, "best_loss": 0.97,
}  # fmt: skip


@pytest.fixture
def base(tmp_path, monkeypatch):
    """The sha256 of a tiny model, which is loaded whatever is asked for."""
    file, load = write_family(tmp_path, "llama"), Engine.load
    monkeypatch.setattr(Engine, "load", lambda *_a, **_k: load(file, n_threads=1))
    monkeypatch.setattr(random_adapters, "LINEAR", {"attn_q": (64, 64), "attn_v": (64, 32)})
    return sha256_of(file)


def trained(folder, stage, **changes):
    """A random adapter, and a record as if it had been trained."""
    file = write_adapter(folder / f"my-{stage}.gguf", 1, layers=6)
    write_record(file, MADE | {"stage": stage} | changes)
    return file


def test_a_combined_set_is_loaded_by_name_of_its_folder(tmp_path, base):
    adapters = [trained(tmp_path, s, base_sha256=base) for s in ("extraction", "update")]
    scores = tmp_path / "scores.json"
    summary = {"extraction_json_valid": 0.99, "generation_f1": 0.1}
    scores.write_text(json.dumps({"summary": summary, "rows": []}))
    made = combine(tmp_path / "mine", adapters, licence="MIT", data='what "I" wrote', scores=scores)
    assert (made.name, made.licence, made.data) == ("mine", "MIT", 'what "I" wrote')
    extraction, update = made.adapters
    assert (extraction.stage, extraction.rank, extraction.targets) == ("extraction", 8, QV)
    assert (extraction.command, extraction.tokens) == (MADE["command"], 50_000)
    assert extraction.scores == {
        "first_loss": 3.31, "best_loss": 0.97, "extraction_json_valid": 0.99
    }  # fmt: skip
    assert update.scores == {"first_loss": 3.31, "best_loss": 0.97}
    with Engine.load() as engine:
        experts.load(engine, experts.find(str(tmp_path / "mine")))
        assert engine.expert("extraction") and not engine.expert("generation")


def test_an_adapter_that_lies_in_the_folder_already_is_taken(tmp_path, base):
    first = trained(tmp_path, "extraction", base_sha256=base)
    combine(tmp_path / "mine", [first], licence="MIT", data="x")
    own = tmp_path / "mine" / "extraction.gguf"
    write_record(own, MADE | {"stage": "extraction", "base_sha256": base})
    assert len(combine(tmp_path / "mine", [own], licence="MIT", data="x").adapters) == 1


@pytest.mark.parametrize(
    ("second", "message"),
    [
        ({"stage": "extraction"}, "one for each stage"),
        ({"stage": "update", "base_sha256": "0" * 64}, "all of one model"),
    ],
)
def test_adapters_that_make_no_set_are_refused(tmp_path, second, message):
    (tmp_path / "b").mkdir()
    adapters = [trained(tmp_path, "extraction"), trained(tmp_path / "b", **second)]
    with pytest.raises(InputError, match=message):
        combine(tmp_path / "mine", adapters, licence="MIT", data="x")


def test_an_adapter_without_a_whole_record_is_refused(tmp_path):
    adapter = trained(tmp_path, "extraction")
    write_record(adapter, {"stage": "extraction"})
    with pytest.raises(InputError, match=r"does not say alpha, base_sha256, .*train it again"):
        combine(tmp_path / "mine", [adapter], licence="MIT", data="x")
    record_file(adapter).unlink()
    with pytest.raises(InputError, match="no record of its training"):
        combine(tmp_path / "mine", [adapter], licence="MIT", data="x")


def test_a_record_certifies_no_other_file_than_its_own(tmp_path):
    adapter = trained(tmp_path, "extraction")
    write_adapter(adapter, 2, layers=6)
    with pytest.raises(InputError, match=r"my-extraction\.gguf is not the file that its record"):
        combine(tmp_path / "mine", [adapter], licence="MIT", data="x")
    assert not (tmp_path / "mine").exists()


def test_an_adapter_of_another_set_is_taken_by_its_row_of_the_manifest(tmp_path):
    shipped = experts.find(f"{SHIPPED / 'open'}/")
    own = trained(tmp_path, "generation", base_sha256=shipped.base_sha256[0])
    others = [SHIPPED / "open" / f"{stage}.gguf" for stage in ("extraction", "intent", "talk")]
    made = combine(tmp_path / "mine", [*others, own], licence="MIT", data="x")
    rows = {row.stage: row for row in shipped.adapters}
    assert [row.stage for row in made.adapters] == ["extraction", "intent", "talk", "generation"]
    for row in made.adapters[:3]:
        assert row == rows[row.stage]
    again = combine(tmp_path / "mine", [tmp_path / "mine/talk.gguf"], licence="MIT", data="x")
    assert again.adapters == (rows["talk"],)
    (tmp_path / "mine" / "other.gguf").write_bytes(b"no row speaks of it")
    with pytest.raises(InputError, match=r"other\.gguf has no record of its training"):
        combine(tmp_path / "mine", [tmp_path / "mine/other.gguf"], licence="MIT", data="x")


def test_a_text_in_a_manifest_may_hold_anything_that_toml_can_and_nothing_else_replaces_one(
    tmp_path,
):
    adapter, scores = trained(tmp_path, "extraction"), tmp_path / "scores.json"
    for value in ('\U0001f41d é \x7f \\ "', 0.5, 1e-9, True, ["a", 1]):
        scores.write_text(json.dumps({"summary": {"extraction_of": value}}))
        made = combine(tmp_path / "mine", [adapter], licence="MIT", data=f"{value}", scores=scores)
        assert made.data == f"{value}" and made.adapters[0].scores["extraction_of"] == value
    good = (tmp_path / "mine" / "manifest.toml").read_bytes()
    for worse in (None, {"a": 1}, "\ud800", float("nan")):
        scores.write_text(json.dumps({"summary": {"extraction_of": worse}}))
        with pytest.raises(InputError, match="the manifest cannot hold this"):
            combine(tmp_path / "mine", [adapter], licence="MIT", data="x", scores=scores)
    assert (tmp_path / "mine" / "manifest.toml").read_bytes() == good


def test_this_folder_is_a_set_of_its_name(tmp_path, monkeypatch):
    adapter = trained(tmp_path, "extraction")
    monkeypatch.chdir(tmp_path)
    assert combine(Path(), [adapter], licence="MIT", data="x").name == tmp_path.name


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"summary": 3}', "[" * 200_000])
def test_scores_that_are_none_are_named(tmp_path, text):
    scores = tmp_path / "scores.json"
    scores.write_text(text)
    adapter = trained(tmp_path, "extraction")
    with pytest.raises(InputError, match="no summary of scores"):
        combine(tmp_path / "mine", [adapter], licence="MIT", data="x", scores=scores)
    assert not (tmp_path / "mine").exists()


@pytest.mark.models
def test_the_commands_combine_a_set_and_score_it(tmp_path, base, run):
    scored = ("extraction", "update", "generation")  # of replies bench.assistant knows more
    adapters = [str(trained(tmp_path, stage, base_sha256=base)) for stage in scored]
    folder = str(tmp_path / "mine")
    said = run("train", "combine", folder, *adapters, "--licence", "MIT", "--data", "x").stdout
    assert said == f"mine: extraction, update, generation; use it with --experts {folder}/\n"
    facts = tmp_path / "facts.txt"
    facts.write_text(": User sings.\nDELETE User stopped singing.\nADD User's aunt sings.\n")
    asked = ["eval", str(write_locomo(tmp_path)), str(facts)]
    asked += f"--experts {folder}/ --pairs 2 --questions 2 --operations 2 --together --json".split()
    told = json.loads(run_corpus(*asked).stdout)
    assert {"extraction_json_valid", "update_accuracy", "answer_f1"} <= set(told["summary"])
    assert told["summary"]["update_accuracy_written"] is not None
    stages = {(row["who"], row["stage"]) for row in told["rows"] if "stage" in row}
    assert stages == {(who, stage) for who in ("base", "expert") for stage in scored}


@pytest.mark.train
@pytest.mark.models
@pytest.mark.slow
def test_the_steps_to_experts_of_ones_own_are_as_written(tmp_path, run, monkeypatch):
    for needed in ("torch", "transformers", "gguf"):
        pytest.importorskip(needed, reason="needs edgemem-runtime[train]")
    told = (SHIPPED.parent / "README.md").read_text(encoding="utf-8")
    section = told.partition("\n## Experts of your own\n")[2]
    talks, steps = re.findall(r"^```\w*\n(.*?)^```", section, re.M | re.S)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EDGEMEM_HOME", str(tmp_path / "home"))
    (tmp_path / "mine.txt").write_text(talks, encoding="utf-8")
    (tmp_path / "models").symlink_to(SHIPPED.parent)
    lines = steps.replace("\\\n", "").replace("--minutes 30", "--minutes 0.01").splitlines()
    for line in lines[:-1]:
        program, *words = shlex.split(line.removeprefix("python -m "))
        {"corpus": run_corpus, "edgemem": run}[program](*words)
    assert lines[-1] == "edgemem chat --experts mine/"
    run("chat", "--experts", "mine/", input="Do you know me?\n")
    stages = [row.stage for row in experts.find("mine/").adapters]
    assert stages == ["generation", "extraction", "intent", "talk"]


def test_files_that_are_not_annotated_need_a_teacher(tmp_path):
    log, out = tmp_path / "log.txt", tmp_path / "out.jsonl"
    log.write_text("[2024-05-01 10:00] Kim: I have a cat.\n")
    result = run_corpus("data", str(log), "--out", str(out), code=2)
    assert "log.txt has no annotations" in result.stderr and not out.exists()


@pytest.mark.models
def test_annotated_files_give_examples_of_the_stages_asked_for(tmp_path):
    out = tmp_path / "out.jsonl"
    arguments = ["data", str(write_locomo(tmp_path)), "--out", str(out)]
    result = run_corpus(*arguments, "--stage", "generation")
    assert "CC BY-NC 4.0" in result.stderr
    assert {e.stage for e in examples.read([out])} == {"generation"}
    run_corpus(*arguments)
    assert {e.stage for e in examples.read([out])} == {"extraction", "generation"}


@pytest.mark.models
def test_conversations_of_one_name_are_refused(tmp_path):
    talk, out = tmp_path / "talk.txt", tmp_path / "out.jsonl"
    talk.write_text("# User, Assistant\n@ 2024-05-01 10:00\nUser: I sing.\n= User sings.\n")
    assert "1 example" in run_corpus("data", str(talk), "--out", str(out)).stderr
    result = run_corpus("data", str(talk), str(talk), "--out", str(out), code=2)
    assert "talk-1: two conversations of that name" in result.stderr


@pytest.mark.models
@pytest.mark.parametrize("way", evaluate.BASE_WAYS)
def test_a_base_model_answers_in_one_line(tmp_path, engine, way):
    asked = locomo_questions(locomo_file(write_locomo(tmp_path)))
    tellable = [q for q in asked if q.answer]
    answers = [evaluate._answer(engine, q.text, q.evidence, way)[0] for q in tellable]
    none = replace(tellable[0], text="word " * 3000)
    assert evaluate._answer(engine, none.text, none.evidence, way) == ("", 0)
    assert answers and all(a and "\n" not in a for a in answers)


def test_a_set_that_is_replaced_is_told_of(tmp_path, base, run):
    files = [str(trained(tmp_path, s, base_sha256=base)) for s in ("extraction", "update")]
    made = ["train", "combine", str(tmp_path / "mine"), "--licence", "MIT", "--data", "x"]
    assert "is replaced" not in run(*made, *files).stderr
    assert "is replaced." in run(*made, *files).stderr
    assert "it lacks what that had for update" in run(*made, files[0]).stderr
