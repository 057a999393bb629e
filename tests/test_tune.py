"""The default model in the form that runs fastest: made, chosen, stored, and used only if whole."""

from dataclasses import replace

import pytest

from edgemem import cachefile
from edgemem.cli import admin, output
from edgemem.config import load_settings
from edgemem.errors import ModelError
from edgemem.runtime import models, tune
from edgemem.runtime.engine import Engine
from edgemem.runtime.tune import Speed, choose, stored

Q8_0_SHA256 = "7b46609d11703c058397e5cfe4cc6e4b2508cb1eb4c80ddc472a5d421fbdb508"


@pytest.fixture(scope="module", autouse=True)
def tunable(untuned):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tune, "stored", stored)
        yield


@pytest.fixture(scope="module")
def source():
    return models.find(models.DEFAULT_LLM)


@pytest.fixture(scope="module")
def tuned(source, tmp_path_factory):
    """A stored tuning, measured in one round; Q8_0 is chosen whatever that found."""
    folder = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EDGEMEM_HOME", str(folder))
        with patch.context() as while_tuning:
            while_tuning.setattr(tune, "choose", lambda speeds: ("q8_0", 1, 2))
            tuning = tune.tune(budget_s=0)
        yield tuning


def speeds(**given):
    """(prefill, decode) with one thread, then with two, by form."""
    return [
        Speed(form, n, *figures)
        for form, (p1, d1, p2, d2) in given.items()
        for n, figures in ((1, (p1, d1)), (2, (p2, d2)))
    ]


# -- choosing ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("measured", "chosen"),
    [
        (speeds(source=(100, 50, 180, 50), q8_0=(200, 50, 360, 50)), ("q8_0", 1, 2)),
        (speeds(source=(100, 50, 180, 90), q8_0=(200, 50, 360, 90)), ("q8_0", 2, 2)),
        (speeds(source=(100, 50, 105, 54), q8_0=(100, 50, 105, 54)), ("source", 1, 1)),
        (speeds(source=(100, 50, 100, 50), q8_0=(105, 52, 105, 52)), ("source", 1, 1)),
        # 150 / 200 + 30 / 10 seconds against 150 / 100 + 30 / 50
        (speeds(source=(100, 50, 100, 50), q8_0=(200, 10, 200, 10)), ("source", 1, 1)),
        ([Speed("source", 1, 100, 50), Speed("q8_0", 1, 200, 50)], ("q8_0", 1, 1)),
    ],
)
def test_a_call_of_150_tokens_and_30_decides_and_more_must_gain_a_tenth(measured, chosen):
    assert choose(measured) == chosen


# -- making --------------------------------------------------------------------------------------


@pytest.mark.models
@pytest.mark.parametrize("threads", [1, 3])
def test_a_form_has_the_same_bytes_whatever_the_threads(source, tmp_path, monkeypatch, threads):
    monkeypatch.setattr(tune, "cores", lambda: threads)
    tune.requantise(source, tmp_path / "new.gguf")
    assert models.sha256_of(tmp_path / "new.gguf") == Q8_0_SHA256


@pytest.mark.models
def test_what_llama_cannot_read_or_write_is_a_model_error(source, tmp_path):
    (tmp_path / "none.gguf").write_bytes(b"no model")
    for given, target in ((tmp_path / "none.gguf", tmp_path / "a"), (source, tmp_path / "b" / "c")):
        with pytest.raises(ModelError, match=r"llama.cpp could not write .* as q8_0 to"):
            tune.requantise(given, target)


# -- storing and using ---------------------------------------------------------------------------


@pytest.mark.models
def test_a_tuning_is_stored_and_used(tuned, source):
    assert stored(source) == tuned
    assert (tuned.form, tuned.n_threads, tuned.n_threads_batch) == ("q8_0", 1, 2)
    assert tuned.sha256 == models.sha256_of(tuned.path) == Q8_0_SHA256
    assert tuned.source_sha256 == models.sha256_of(source)
    assert {speed.form for speed in tuned.speeds} == {"source", "q8_0"}
    assert all(s.prefill_tokens_per_s > 0 and s.decode_tokens_per_s > 0 for s in tuned.speeds)
    assert sorted(f.name for f in tuned.path.parent.iterdir()) == [
        tuned.path.name,
        tuned.path.name + ".json",
    ]
    for path in (None, models.DEFAULT_LLM):
        with Engine.load(path) as engine:
            assert engine.path == tuned.path and engine.name == source.stem
            assert "Oslo" in engine.generate("The capital of Norway is", max_tokens=4).text


@pytest.mark.models
def test_a_reused_prefix_of_the_tuned_model_equals_a_fresh_one_to_the_bit(tuned):
    head = "The Lisbon office opens at nine. " * 20
    with Engine.load() as engine:
        engine.generate(head + "Where is it?", max_tokens=1, stage="fresh")
        fresh = engine._logits().tobytes()
        engine.generate(head + "When?", max_tokens=1, stage="again")
        reused = engine.generate(head + "Where is it?", max_tokens=1, stage="again")
        assert reused.cached_tokens > 100
        assert engine._logits().tobytes() == fresh


@pytest.mark.models
def test_it_is_not_used_where_it_is_not_wanted(tuned, source):
    for wanted in ({"tuned": False}, {"n_gpu_layers": 1}, {"path": source}):
        with Engine.load(**wanted) as engine:
            assert engine.path == source


@pytest.mark.models
@pytest.mark.parametrize("place", [0, 100_000_000, -1])
def test_a_damaged_file_is_not_used(tuned, source, place):
    with tuned.path.open("rb+") as file:
        file.seek(place, 2 if place < 0 else 0)
        byte = file.read(1)
        file.seek(-1, 1)
        file.write(bytes([byte[0] ^ 1]))
        file.flush()
        assert stored(source) is None
        with Engine.load() as engine:
            assert engine.path == source
        file.seek(-1, 1)
        file.write(byte)
    assert stored(source) == tuned


@pytest.mark.models
def test_a_foreign_stamp_is_not_used(tuned, source):
    file = cachefile.stamp_path(tuned.path)
    ours = file.read_bytes()
    stamp = cachefile.read_stamp(tuned.path)
    assert stamp is not None
    stamps = [stamp | {"machine": "another"}, stamp | {"source_sha256": "0"}, {}]
    stamps += [{k: v for k, v in stamp.items() if k != missing} for missing in ("form", "speeds")]
    stamps += [stamp | {"speeds": 1}, stamp | {"speeds": [{"prefill": 1}]}]
    for foreign in stamps:
        size = {key: stamp[key] for key in ("bytes", "sha256", "format")}
        file.write_bytes(cachefile._stamp_text(foreign | size))
        assert cachefile.read_stamp(tuned.path) is not None and stored(source) is None, foreign
    for garbage in (b"", b"{}", ours[:-20]):
        file.write_bytes(garbage)
        assert stored(source) is None
    file.write_bytes(ours)
    assert stored(source) == tuned


@pytest.fixture
def quick(tmp_path, monkeypatch):
    """A home of its own; the model is "written" and "measured" at once, with these figures."""

    def prepare(measured):
        monkeypatch.setenv("EDGEMEM_HOME", str(tmp_path))
        monkeypatch.setattr(tune, "requantise", lambda a, b: b.write_bytes(b"tuned"))
        monkeypatch.setattr(tune, "measure", lambda *a, **k: measured)
        return tmp_path

    return prepare


SLOWER = speeds(source=(100, 50, 180, 50), q8_0=(90, 50, 180, 50))
FASTER = speeds(source=(100, 50, 180, 50), q8_0=(200, 50, 360, 50))


@pytest.mark.models
def test_where_the_source_is_the_fastest_its_threads_are_kept(quick, source):
    home = quick(SLOWER)
    tuning = tune.tune()
    assert (tuning.form, tuning.path, tuning.n_threads_batch) == ("source", source, 2)
    assert tuning.sha256 == tuning.source_sha256 == models.sha256_of(source)
    assert sum(file.stat().st_size for file in home.iterdir()) < 10_000
    assert stored(source) == tuning


@pytest.mark.models
def test_a_tuning_that_fails_leaves_nothing(quick, monkeypatch):
    home = quick(FASTER)

    def fail(*_a, **_k):
        raise KeyboardInterrupt

    for step in ("requantise", "measure"):
        with monkeypatch.context() as patch:
            patch.setattr(tune, step, fail)
            with pytest.raises(KeyboardInterrupt):
                tune.tune()
        assert list(home.iterdir()) == []


@pytest.mark.models
def test_a_folder_that_cannot_be_written_is_named(quick):
    home = quick(FASTER)
    home.rmdir()
    home.write_text("a file")
    with pytest.raises(ModelError, match=rf"cannot be stored as {home}.*make room"):
        tune.tune()


@pytest.mark.models
def test_a_model_that_is_not_the_manifests_is_not_tuned(quick, monkeypatch, tmp_path):
    quick(FASTER)
    other = tmp_path / "other.gguf"
    other.write_bytes(b"GGUF")
    monkeypatch.setattr(models, "find", lambda name: other)
    with pytest.raises(ModelError, match=r"other.gguf is damaged: .* that of smollm2.*models list"):
        tune.tune()


# -- the command line ----------------------------------------------------------------------------


@pytest.mark.models
def test_the_command_stores_what_it_prints(run, quick, source):
    quick(FASTER)
    result = run("models", "tune")
    rows = [line.split("\t") for line in result.stdout.splitlines()]
    assert rows[1:] == [
        ["source", "1", "100", "50"],
        ["source", "2", "180", "50"],
        ["q8_0", "1", "200", "50"],
        ["q8_0", "2", "360", "50"],
    ]
    assert "Chosen: q8_0, 2 threads for prefill and 1 for decoding" in result.stderr
    tuning = stored(source)
    assert tuning is not None and tuning.form == "q8_0"


@pytest.mark.models
def test_only_a_person_at_a_terminal_has_the_default_model_tuned_and_once(
    quick, source, monkeypatch, capsys
):
    quick(FASTER)
    settings = load_settings()
    monkeypatch.setattr(output, "stdin_is_terminal", lambda: True)
    admin.tune_first(settings)  # stderr is none
    monkeypatch.setattr(output, "stderr_is_terminal", lambda: True)
    for other in (
        {"memory_limit": "350MB"},
        {"tuned": "off"},
        {"model": "gemma-3-270m-q4_k_m"},
        {"n_gpu_layers": -1},
    ):
        admin.tune_first(replace(settings, **other))
    assert stored(source) is None
    admin.tune_first(settings)
    tuning = stored(source)
    assert tuning is not None and "for this machine, once" in capsys.readouterr().err
    monkeypatch.setattr(tune, "tune", lambda *_: pytest.fail("tuned twice"))
    admin.tune_first(settings)


@pytest.mark.models
def test_a_model_that_cannot_be_tuned_is_used_as_it_is(quick, monkeypatch, capsys):
    quick(FASTER)

    def fail(*_a, **_k):
        raise ModelError("no room")

    monkeypatch.setattr(tune, "requantise", fail)
    monkeypatch.setattr(output, "at_a_terminal", lambda: True)
    admin.tune_first(load_settings())
    assert "Not tuned: no room" in capsys.readouterr().err
