"""Prefixes computed ahead, and kept on disk: used when they are exactly right, else passed over."""

import json

import pytest

from bench.random_adapters import write_adapter
from edgemem import cachefile
from edgemem.errors import ContextOverflow
from edgemem.runtime import prefixes
from edgemem.runtime.engine import Engine

pytestmark = pytest.mark.models

HEAD = "The Lisbon office opens at nine. " * 3
PROMPT = HEAD + "Who opens it? Ana"


@pytest.fixture(scope="module")
def adapters(tmp_path_factory):
    folder = tmp_path_factory.mktemp("adapters")
    return [write_adapter(folder / f"{seed}.gguf", seed) for seed in (1, 2)]


@pytest.fixture
def small(small):
    small.drop_prefixes()
    return small


def loaded(adapters):
    engine = Engine.load(n_ctx=256)
    for i, file in enumerate(adapters):
        engine.load_adapter(str(i), file)
    return engine


@pytest.mark.parametrize("scales", [{}, {"0": 1.0}])
def test_a_warmed_stage_starts_behind_its_beginning_with_a_cold_runs_logits(
    adapters, scales, logits_seen
):
    with loaded(adapters) as engine:
        engine.bind("a", scales)
        cold = engine.generate(PROMPT, max_tokens=3, stage="a")
        expected = list(logits_seen)
        engine.drop_prefixes()
        held = engine.warm("a", HEAD)
        logits_seen.clear()
        done = engine.generate(PROMPT, max_tokens=3, stage="a")
        assert logits_seen == expected and done.text == cold.text
        assert held - 2 <= done.cached_tokens <= held == engine.count_tokens(HEAD)


def test_what_does_not_fit_the_window_cannot_be_warmed(small):
    with pytest.raises(ContextOverflow):
        small.warm("a", "word " * 300)


@pytest.mark.parametrize("scales", [{}, {"0": 0.5}])
def test_another_process_reads_what_one_has_computed_to_the_bit(
    adapters, scales, tmp_path, logits_seen, decoded
):
    with loaded(adapters) as engine:
        engine.bind("a", scales)
        engine.warm("a", HEAD, folder=tmp_path)
        assert sum(decoded) == engine.count_tokens(HEAD)
        engine.drop_prefixes()
        engine.generate(PROMPT, max_tokens=3, stage="a")
    expected = list(logits_seen)
    with loaded(adapters) as engine:
        engine.bind("a", scales)
        decoded.clear()
        engine.warm("a", HEAD, folder=tmp_path)
        assert decoded == []
        logits_seen.clear()
        done = engine.generate(PROMPT, max_tokens=3, stage="a")
        assert logits_seen == expected and done.cached_tokens > 20
    assert len(list(tmp_path.glob("*.kv"))) == 1


def test_another_text_adapter_or_scale_reads_no_file_of_another(adapters, tmp_path, decoded):
    with loaded(adapters) as engine:
        asked = [(HEAD, {}), (HEAD, {"0": 1.0}), (HEAD, {"0": 0.5}), (HEAD, {"1": 1.0})]
        for number, (text, scales) in enumerate([*asked, ("x" + HEAD, {})], start=1):
            engine.drop_prefixes()
            decoded.clear()
            engine.bind("a", scales)
            engine.warm("a", text, folder=tmp_path)
            assert sum(decoded) == engine.count_tokens(text)
            assert len(list(tmp_path.glob("*.kv"))) == number


def test_a_mixture_is_not_kept_on_disk(adapters, tmp_path, decoded):
    with loaded(adapters) as engine:
        engine.bind("a", {"0": 1.0, "1": 1.0})
        engine.warm("a", HEAD, folder=tmp_path)
        assert list(tmp_path.iterdir()) == [] and sum(decoded) == engine.count_tokens(HEAD)


def test_a_damaged_or_foreign_file_is_passed_over_and_written_anew(small, tmp_path, decoded):
    small.warm("a", HEAD, folder=tmp_path)
    (file,) = tmp_path.glob("*.kv")
    stamp = tmp_path / f"{file.name}.json"
    whole, label = file.read_bytes(), stamp.read_bytes()
    middle = len(whole) // 2
    changed = whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :]
    of_another = json.loads(label)
    del of_another["check"]
    of_another["of"]["build"] = "llama.cpp of tomorrow"
    cachefile.publish(*_copied(file, whole), of_another)
    foreign = stamp.read_bytes()
    labelled = [(changed, label), (whole[:-1], label), (b"", label)]
    for data, text in (*labelled, (whole, b"{}"), (whole, foreign)):
        file.write_bytes(data)
        stamp.write_bytes(text)
        small.drop_prefixes()
        decoded.clear()
        small.warm("a", HEAD, folder=tmp_path)
        assert sum(decoded) == small.count_tokens(HEAD)
        assert json.loads(stamp.read_bytes())["of"] == json.loads(label)["of"]
        assert file.stat().st_size == len(whole)


def _copied(file, data):
    temporary = file.with_name("copy.tmp")
    temporary.write_bytes(data)
    return temporary, file


def test_no_more_files_are_kept_than_allowed_and_the_used_ones_stay(small, tmp_path, monkeypatch):
    monkeypatch.setattr(prefixes, "MAX_FILES", 2)
    for text in ("One two three.", "Four five six.", "One two three.", "Seven eight nine."):
        small.drop_prefixes()
        small.warm("a", text, folder=tmp_path)
    names = {f.name for f in tmp_path.glob("*.kv")}
    small.drop_prefixes()
    small.warm("a", "One two three.", folder=tmp_path)
    assert {f.name for f in tmp_path.glob("*.kv")} == names and len(names) == 2
    assert len(list(tmp_path.iterdir())) == 4


def test_a_folder_that_cannot_be_written_is_no_error(small, tmp_path):
    (tmp_path / "file").write_text("no folder")
    assert small.warm("a", HEAD, folder=tmp_path / "file" / "in") > 0


def test_memory_is_told_by_part(small, adapters):
    before = small.memory()
    kv = 256 * 30 * 2 * 192 * 2  # cells, layers, K and V, width, float16
    assert before["kv"] == pytest.approx(kv, abs=10_500)  # told in hundredths of a MiB
    assert 90e6 < before["weights"] < 100e6 and before["compute"] > 1e6
    assert before["adapters"] == before["prefixes"] == 0
    small.load_adapter("one", adapters[0])
    small.generate(HEAD, max_tokens=1, stage="a")
    small.generate("Hello", max_tokens=1, stage="b")
    after = small.memory()
    assert after["adapters"] == adapters[0].stat().st_size
    tokens = small.count_tokens(HEAD)
    assert tokens * 23_000 < after["prefixes"] < tokens * 24_000
    assert {**after, "adapters": 0, "prefixes": 0} == before
    small.unload_adapter("one")
