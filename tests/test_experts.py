"""Sets of experts: found, read, loaded onto the right model, chosen by setting and option."""

import hashlib
import json
import os
import shutil
from pathlib import Path

import pytest

from bench.random_adapters import ALL_LINEAR, QV, write_adapter
from edgemem import Memory, cachefile
from edgemem.config import load_settings
from edgemem.errors import AdapterError
from edgemem.runtime import experts, models

pytestmark = pytest.mark.models

BASE = models.entry(models.DEFAULT_LLM).sha256
TARGETS = {"extraction": QV, "update": QV, "generation": ALL_LINEAR}


def make_set(folder, *, base=BASE, licence="Apache-2.0", stages=tuple(TARGETS), **changes):
    """A set of random adapters; changes: of the first row."""
    folder.mkdir(parents=True)
    lines = [
        "format = 1",
        f"name = {json.dumps(folder.name)}",
        f"licence = {json.dumps(licence)}",
        'data = "random numbers, of use to nobody"',
        f"base_sha256 = [{json.dumps('0' * 64)}, {json.dumps(base)}]",
    ]
    for seed, stage in enumerate(stages):
        file = write_adapter(folder / f"{stage}.gguf", seed, targets=TARGETS[stage])
        row = {
            "stage": stage,
            "file": file.name,
            "sha256": hashlib.sha256(file.read_bytes()).hexdigest(),
            "scale": 0.5,
            "rank": 8,
            "alpha": 16.0,
            "targets": list(TARGETS[stage]),
            "command": "edgemem train run",
            "seed": seed,
            "tokens": 50_000,
            **(changes if not seed else {}),
        }
        lines += ["[[adapter]]", *(f"{k} = {json.dumps(v)}" for k, v in row.items())]
        lines += ["scores = { loss = 1.14 }"]
    (folder / "manifest.toml").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


@pytest.fixture(autouse=True)
def empty_home(tmp_path, monkeypatch):
    """A home of its own, and no sets that come with edgemem but those a test makes."""
    for name in [n for n in os.environ if n.startswith("EDGEMEM_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("EDGEMEM_HOME", str(tmp_path / "home"))
    (tmp_path / "ours").mkdir()
    mine = tmp_path / "home" / "models" / "adapters"
    monkeypatch.setattr(experts, "_places", lambda: (mine, tmp_path / "ours" / "adapters"))
    return tmp_path


@pytest.fixture
def ours(tmp_path):
    return tmp_path / "ours" / "adapters"


@pytest.fixture
def small(small):
    yield small
    for adapter in small.adapters():
        small.unload_adapter(adapter.name)


def test_a_set_is_read_with_all_that_its_manifest_says(ours):
    folder = make_set(ours / "open")
    found = experts.find("open")
    assert (found.name, found.licence, found.folder) == ("open", "Apache-2.0", folder)
    assert found.permissive and BASE in found.base_sha256
    assert [e.stage for e in found.adapters] == ["extraction", "update", "generation"]
    first = found.adapters[0]
    assert (first.scale, first.rank, first.alpha, first.targets) == (0.5, 8, 16.0, QV)
    assert (first.command, first.seed, first.tokens) == ("edgemem train run", 0, 50_000)
    assert first.scores == {"loss": 1.14}


def test_the_users_own_sets_come_first_and_a_path_is_a_set_too(ours, tmp_path):
    make_set(ours / "open", stages=["update"])
    make_set(ours / "other", stages=["update"])
    mine = make_set(tmp_path / "home/models/adapters/open", stages=["extraction"])
    assert [s.folder for s in experts.available()] == [mine, ours / "other"]
    assert experts.find("open").folder == mine
    assert experts.find(str(ours / "open")).folder == ours / "open"


def test_a_set_is_loaded_and_bound_to_its_stages(ours, small):
    make_set(ours / "open")
    assert not small.expert("extraction")
    loaded = experts.find("open")
    experts.load(small, loaded)
    assert [a.name for a in small.adapters()] == [f"open/{stage}" for stage in TARGETS]
    assert all(small.expert(stage) for stage in TARGETS) and not small.expert("reply")
    assert [a.sha256 for a in small.adapters()] == [e.sha256 for e in loaded.adapters]
    small.bind("alone", {"open/extraction": 0.5})
    texts = [small.generate("Once upon a time", max_tokens=8, stage=s).text for s in
             ("extraction", "alone")]  # fmt: skip
    assert texts[0] == texts[1]


def test_adapters_of_one_stage_are_added_up(ours, small):
    folder = make_set(ours / "two", stages=["extraction", "update"])
    file = folder / "manifest.toml"
    file.write_text(file.read_text().replace('stage = "update"', 'stage = "extraction"'))
    experts.load(small, experts.find("two"))
    small.bind("same", {"two/extraction": 0.5, "two/update": 0.5})
    both = [small.generate("One two", max_tokens=6, stage=s).text for s in ("extraction", "same")]
    assert both[0] == both[1] and not small.expert("update")


def test_experts_of_another_model_are_refused_and_both_are_named(ours, small):
    make_set(ours / "other", base="a" * 64)
    with pytest.raises(AdapterError, match=rf"'other'.*{'a' * 64}.*Q4_1\.gguf has {BASE}"):
        experts.load(small, experts.find("other"))
    assert small.adapters() == ()


@pytest.mark.parametrize("bad", ["sha256", "file"])
def test_a_file_that_is_not_the_manifests_leaves_the_engine_as_it_was(ours, small, bad):
    folder = make_set(ours / "bad", stages=["extraction", "update"])
    file = folder / "update.gguf"
    if bad == "file":
        file.unlink()
    else:
        write_adapter(file, 77)
    with pytest.raises(AdapterError, match=r"update\.gguf"):
        experts.load(small, experts.find("bad"))
    assert small.adapters() == () and not small.expert("extraction")


def test_a_folder_with_a_slash_is_that_folder_whatever_sets_are_called(
    ours, small, tmp_path, monkeypatch
):
    make_set(ours / "open", stages=["update"])
    make_set(tmp_path / "open", stages=["extraction"])
    monkeypatch.chdir(tmp_path)
    for setting in ("open/", "./open/", "./open"):
        experts.load_chosen(small, setting)
        assert small.expert("extraction") and not small.expert("update"), setting
        small.unload_adapter("open/extraction")


def test_a_set_for_a_model_is_for_its_tuned_form_too(ours, small, tmp_path, monkeypatch):
    make_set(ours / "mine", base="c" * 64, stages=["extraction"])
    make_set(ours / "open", base="c" * 64, stages=["extraction"])
    tuned, _ = cachefile.write_temporary(
        tmp_path / "small.tuned", lambda name: shutil.copyfile(small.path, name), None
    )
    size = {"bytes": tuned.stat().st_size, "sha256": models.sha256_of(tuned)}
    cachefile.publish(tuned, tmp_path / "small.tuned", size | {"source_sha256": "c" * 64})
    mine = experts.find("mine")
    assert not experts.fits(mine, small.path)
    monkeypatch.setattr(small, "path", tmp_path / "small.tuned")
    assert experts.chosen_set("open", small.path) is not None
    experts.load(small, mine)
    assert small.expert("extraction")


@pytest.mark.parametrize("name", ["~nosuchuser/mine", "x" * 300, "./" + "x" * 300, "a\0b"])
def test_what_can_be_no_folder_is_named(ours, name):
    with pytest.raises(AdapterError, match=r"cannot be a folder|there are no experts"):
        experts.find(name)


def test_a_scale_that_is_no_number_leaves_the_engine_as_it_was(ours, small):
    make_set(ours / "good", stages=["extraction"])
    folder = make_set(ours / "bad", stages=["extraction", "update"], scale="LAST")
    experts.load(small, experts.find("good"))
    manifest = folder / "manifest.toml"
    for scale in ("nan", "inf", "1" + "0" * 400):
        text = manifest.read_text()
        manifest.write_text(text.replace('"LAST"', scale))
        with pytest.raises(AdapterError, match="cannot read the manifest"):
            experts.load(small, experts.find("bad"))
        manifest.write_text(text)
    assert experts_of(small) == ["good/extraction"] and small.expert("extraction")


def test_an_unknown_set_names_those_there_are(ours):
    make_set(ours / "open", stages=["update"])
    for name in ("opne", "./open", "no/such/folder"):
        with pytest.raises(AdapterError, match=r"no experts .*known are: open, none"):
            experts.find(name)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("format = 1", "format = 2", "format is another than 1"),
        ("format = 1", "", "'format'"),
        ("format = 1", "format = ", "TOMLDecodeError"),
        ("licence", "license", "license|licence"),
        ('licence = "Apache-2.0"', 'licence = ["MIT"]', "must be texts"),
        ('stage = "update"', "stage = 4", "a stage that is no text"),
        ("scale = 0.5", 'scale = "much"', "a scale no number"),
        ('file = "update.gguf"', 'file = "../update.gguf"', "is no file of the folder"),
        ('file = "update.gguf"', "file = 8", "TypeError"),
        ("sha256 = ", "sha255 = ", "sha255"),
        ("base_sha256 = [", "base_sha256 = 7 #", "TypeError"),
        ("[[adapter]]", "[adapter]", "TypeError|AttributeError"),
    ],
)
def test_a_broken_manifest_is_named(ours, old, new, message):
    file = make_set(ours / "broken", stages=["update"]) / "manifest.toml"
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))
    with pytest.raises(
        AdapterError, match=rf"cannot read the manifest .*manifest\.toml.*{message}"
    ):
        experts.find("broken")


# -- the setting -----------------------------------------------------------------------------


def experts_of(engine):
    return [a.name for a in engine.adapters()]


def test_a_memory_works_with_the_default_set_if_it_is_there_and_fits(ours, monkeypatch):
    with Memory(":memory:") as memory:
        assert experts_of(memory.engine) == []
    make_set(ours / "open", stages=["extraction"])
    with Memory(":memory:") as memory:
        assert experts_of(memory.engine) == ["open/extraction"]
        assert memory.engine.expert("extraction")
    monkeypatch.setenv("EDGEMEM_EXPERTS", "none")
    with Memory(":memory:") as memory:
        assert experts_of(memory.engine) == []


def test_the_default_set_is_passed_over_with_another_model_and_no_other_is(ours, monkeypatch):
    make_set(ours / "open", base="b" * 64, stages=["extraction"])
    with Memory(":memory:") as memory:
        assert experts_of(memory.engine) == []
    make_set(ours / "mine", base="b" * 64, stages=["extraction"])
    monkeypatch.setenv("EDGEMEM_EXPERTS", "mine")
    with Memory(":memory:") as memory, pytest.raises(AdapterError, match="'mine'"):
        memory.engine  # noqa: B018
    assert load_settings().experts == "mine"


def test_a_damaged_default_set_is_an_error_and_no_silent_loss(ours):
    folder = make_set(ours / "open", stages=["extraction"])
    (folder / "extraction.gguf").write_bytes(b"GGUF")
    with Memory(":memory:") as memory, pytest.raises(AdapterError, match="damaged"):
        memory.engine  # noqa: B018


# -- the command line ------------------------------------------------------------------------


def test_the_option_chooses_a_set_and_a_licence_that_restricts_is_shown(ours, run):
    make_set(ours / "open", stages=["extraction"])
    make_set(ours / "locomo", stages=["extraction"], licence="CC-BY-NC-4.0")
    done = run("add", "--experts", "locomo", "I keep bees.")
    assert "The experts 'locomo' are licensed CC-BY-NC-4.0: random numbers" in done.stderr
    for options in (["--experts", "none"], ["--no-infer"]):
        assert "licensed" not in run("add", *options, "I keep goats.").stderr


def test_the_setting_shows_the_licence_as_the_option_does(ours, run, monkeypatch, tmp_path):
    folder = make_set(tmp_path / "own", stages=["extraction"], licence="LicenseRef-mine")
    monkeypatch.setenv("EDGEMEM_EXPERTS", str(folder))
    (tmp_path / "talk.txt").write_text("Ana: I keep bees.\nTom: Good.\n", encoding="utf-8")
    assert "licensed LicenseRef-mine" in run("import", str(tmp_path / "talk.txt")).stderr
    assert "licensed" in run("chat", input="/quit\n").stderr


@pytest.mark.parametrize("command", [["add", "x"], ["chat"], ["demo"]])
def test_an_unknown_set_is_one_line_and_nothing_is_stored(run, command):
    done = run(*command, "--experts", "nobody", code=1)
    assert done.stderr.count("\n") == 1
    assert "there are no experts 'nobody'" in done.stderr


def test_the_default_has_a_set_for_each_of_several_models(ours, small):
    make_set(ours / "open", base="1" * 64)
    make_set(ours / "opened")  # another name, not another model's set
    assert experts.chosen_set("open", small.path) is None
    of_this = make_set(ours / "open-small")
    assert experts.load_chosen(small, "open").folder == of_this


def test_a_named_set_makes_only_its_own_model_an_expert(ours, run, monkeypatch):
    for name, base, reader in (("mine", BASE, "expert"), ("others", "d" * 64, "quote")):
        make_set(ours / name, base=base, stages=["extraction"])
        monkeypatch.setenv("EDGEMEM_EXPERTS", name)
        listed = json.loads(run("models", "list", "--json").stdout)["results"]
        assert {m["name"]: m["reader"] for m in listed}[models.DEFAULT_LLM] == reader


SHIPPED = sorted((Path(__file__).parents[1] / "models" / "adapters").glob("*/manifest.toml"))


@pytest.mark.parametrize("manifest", SHIPPED, ids=lambda manifest: manifest.parent.name)
def test_a_set_that_ships_is_whole_and_of_a_model_that_we_know(manifest):
    found = experts.find(str(manifest.parent))
    assert found.name == manifest.parent.name
    for expert in found.adapters:
        data = (manifest.parent / expert.file).read_bytes()
        assert hashlib.sha256(data).hexdigest() == expert.sha256
        assert " /" not in expert.command  # no path of somebody's machine
    assert {model.sha256 for model in models.manifest().values()} & set(found.base_sha256)
