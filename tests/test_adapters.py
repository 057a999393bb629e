"""LoRA adapters: loading, binding to stages, switching, and that no stale KV is ever used."""

import hashlib
import random
import struct
from concurrent.futures import ThreadPoolExecutor

import pytest

from bench.random_adapters import ALL_LINEAR, adapter_bytes, write_adapter
from edgemem.errors import AdapterError, ModelError
from edgemem.runtime.engine import Adapter

pytestmark = pytest.mark.models

STORY = "Once upon a time"
LONG = "The Lisbon office opens at nine. " * 3


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("adapters")
    return {
        "one": write_adapter(folder / "one.gguf", 1),
        "two": write_adapter(folder / "two.gguf", 2),
        "all": write_adapter(folder / "all.gguf", 3, targets=ALL_LINEAR, size=0.02),
    }


@pytest.fixture
def engine(small, files):
    """An engine that holds no prefix, with one adapter loaded."""
    small.drop_prefixes()
    found = small.load_adapter("one", files["one"])
    assert small.adapters() == (found,)
    yield small
    for adapter in small.adapters():
        small.unload_adapter(adapter.name)


def first_logits(engine, seen, stage, prompt=LONG + "Then"):
    """The logits of a prompt's answer, and how much of the prompt was reused."""
    seen.clear()
    done = engine.generate(prompt, max_tokens=3, stage=stage)
    return tuple(seen), done


def cold_logits(engine, seen, stage, prompt=LONG + "Then"):
    engine.drop_prefixes()
    found, done = first_logits(engine, seen, stage, prompt)
    assert done.cached_tokens == 0
    return found


def all_cold(engine, seen, sets, prompts):
    """By the number of a set and a prompt: the logits of a cold engine."""
    cold = {}
    for i, scales in enumerate(sets):
        engine.bind("cold", scales)
        for prompt in prompts:
            cold[i, prompt] = cold_logits(engine, seen, "cold", prompt)
    return cold


# -- loading and binding ---------------------------------------------------------------------


def test_a_loaded_adapter_says_what_it_is(engine, files):
    data = files["one"].read_bytes()
    assert engine.adapters() == (
        Adapter("one", files["one"], len(data), hashlib.sha256(data).hexdigest()),
    )


def test_an_adapter_does_nothing_until_it_is_bound_and_after_it_is_not(engine, logits_seen):
    plain = cold_logits(engine, logits_seen, "extraction")
    assert not engine.expert("extraction")
    engine.bind("extraction", {"one": 1.0})
    assert engine.expert("extraction") and not engine.expert("update")
    adapted = cold_logits(engine, logits_seen, "extraction")
    assert adapted != plain
    assert cold_logits(engine, logits_seen, "update") == plain
    engine.bind("extraction", {})
    assert not engine.expert("extraction")
    assert cold_logits(engine, logits_seen, "extraction") == plain


def test_the_switch_is_timed_and_made_only_when_the_set_changes(engine):
    engine.bind("a", {"one": 1.0})
    engine.bind("b", {"one": 1.0})
    engine.generate(STORY, max_tokens=1)
    took = [engine.generate(STORY, max_tokens=1, stage=s).switch_s > 0 for s in ("a", "b", "", "")]
    assert took == [True, False, True, False]


def test_a_scale_counts_and_a_scale_of_nothing_is_no_adapter(engine, files, logits_seen):
    plain = cold_logits(engine, logits_seen, "plain")
    engine.bind("a", {"one": 1.0})
    engine.bind("b", {"one": 0.5})
    engine.bind("none", {"one": 0.0})
    whole = cold_logits(engine, logits_seen, "a")
    assert cold_logits(engine, logits_seen, "b") not in (whole, plain)
    assert not engine.expert("none")
    assert cold_logits(engine, logits_seen, "none") == plain


def test_a_mixture_is_another_set_than_its_parts_whatever_the_order(engine, files, logits_seen):
    engine.load_adapter("two", files["two"])
    engine.load_adapter("all", files["all"])
    for stage, scales in {
        "one": {"one": 1.0},
        "both": {"one": 1.0, "two": 0.5},
        "too": {"two": 0.5, "one": 1.0},
        "three": {"all": 1.0, "one": 1.0, "two": 0.5},
    }.items():
        engine.bind(stage, scales)
    found = {s: cold_logits(engine, logits_seen, s) for s in ("one", "both", "too", "three", "")}
    assert found["both"] == found["too"]
    assert len(set(found.values())) == 4


def test_what_cannot_be_loaded_or_bound_is_named(engine, files, tmp_path):
    for use, message in {
        lambda: engine.load_adapter("one", files["two"]): "'one'.*choose another, or unload",
        lambda: engine.load_adapter("", files["two"]): "name is ''",
        lambda: engine.load_adapter("x", tmp_path / "no.gguf"): r"no\.gguf cannot be read",
        lambda: engine.load_adapter("x", tmp_path): "cannot be read",
        lambda: engine.load_adapter("x", "a\0b"): "cannot be read",
        lambda: engine.bind("a", {"two": 1.0}): "'two' is loaded; loaded are: one",
        lambda: engine.bind("a", {"one": float("inf")}): "scale .*'one' is inf",
        lambda: engine.unload_adapter("two"): "'two' is loaded",
    }.items():
        with pytest.raises(AdapterError, match=message):
            use()
    assert [a.name for a in engine.adapters()] == ["one"]
    assert not engine.expert("a")


def test_nothing_is_loaded_while_a_stream_of_ones_own_is_unfinished(engine, files):
    stream = engine.stream(STORY, max_tokens=5)
    next(stream)
    with pytest.raises(ModelError, match="unfinished stream"):
        engine.load_adapter("two", files["two"])
    stream.close()


def test_threads_of_different_stages_get_their_own_adapters_texts(engine, files):
    engine.load_adapter("two", files["two"])
    engine.bind("a", {"one": 2.0})
    engine.bind("b", {"two": 2.0})
    jobs = [(stage, prompt) for stage in ("a", "b", "") for prompt in (STORY, LONG)]

    def run(job):
        return engine.generate(job[1], max_tokens=4, stage=job[0]).text

    expected = [run(job) for job in jobs]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(run, jobs * 3)) == expected * 3


# -- no stale KV -----------------------------------------------------------------------------


def test_a_prefix_is_kept_for_each_set_and_used_for_no_other(engine, logits_seen):
    plain = cold_logits(engine, logits_seen, "a")
    engine.bind("a", {"one": 1.0})
    adapted, done = first_logits(engine, logits_seen, "a")
    assert done.cached_tokens == 0 and adapted != plain
    engine.bind("a", {})
    again, done = first_logits(engine, logits_seen, "a")
    assert done.cached_tokens == done.prompt_tokens - 2 and again == plain
    engine.bind("a", {"one": 1.0})
    again, done = first_logits(engine, logits_seen, "a")
    assert done.cached_tokens == done.prompt_tokens - 2 and again == adapted


def test_another_scale_or_another_adapter_of_the_same_name_starts_anew(engine, files, logits_seen):
    engine.bind("a", {"one": 1.0})
    first, _ = first_logits(engine, logits_seen, "a")
    engine.bind("a", {"one": 0.5})
    second, done = first_logits(engine, logits_seen, "a")
    assert done.cached_tokens == 0 and second == cold_logits(engine, logits_seen, "a") != first
    engine.unload_adapter("one")
    assert engine.adapters() == () and not engine.expert("a")
    engine.load_adapter("one", files["two"])
    engine.bind("a", {"one": 0.5})
    third, done = first_logits(engine, logits_seen, "a")
    assert done.cached_tokens == 0 and third == cold_logits(engine, logits_seen, "a") != second


def test_unloading_takes_an_adapter_out_of_mixtures_and_frees_its_prefixes(
    engine, files, logits_seen
):
    engine.load_adapter("two", files["two"])
    engine.bind("a", {"one": 1.0})
    engine.bind("both", {"one": 1.0, "two": 1.0})
    alone = cold_logits(engine, logits_seen, "a")
    first_logits(engine, logits_seen, "both")
    first_logits(engine, logits_seen, "")
    assert len(engine._prefixes._saved) == 2
    engine.unload_adapter("two")
    assert len(engine._prefixes._saved) == 1
    found, done = first_logits(engine, logits_seen, "both")
    assert found == alone and done.cached_tokens == done.prompt_tokens - 2


def test_interleaved_stages_adapters_and_prompts_give_cold_logits_to_the_bit(
    engine, files, logits_seen
):
    """Binding, scaling, unloading and generating at random; the bench does a thousand of them."""
    for name in ("two", "all"):
        engine.load_adapter(name, files[name])
    sets = [{}, {"one": 1.0}, {"one": 0.5}, {"two": 1.0}, {"one": 1.0, "two": 0.5}, {"all": 1.0}]
    prompts = [LONG + "Ana", LONG[:60] + "Then", STORY, "1 2"]
    cold = all_cold(engine, logits_seen, sets, prompts)
    assert len(set(cold.values())) == len(cold)
    chance = random.Random(5)
    bound, cached = dict.fromkeys(("a", "b", "c"), 0), 0
    for _ in range(40):
        stage, prompt = chance.choice("abc"), chance.choice(prompts)
        if chance.random() < 0.3:
            bound[stage] = chance.randrange(len(sets))
            engine.bind(stage, sets[bound[stage]])
        if chance.random() < 0.05:
            engine.unload_adapter("two")
            engine.load_adapter("two", files["two"])
            for each, i in bound.items():
                engine.bind(each, sets[i])
        found, done = first_logits(engine, logits_seen, stage, prompt)
        assert found == cold[bound[stage], prompt]
        cached += done.cached_tokens
    assert cached > 0


def test_an_activated_adapter_is_refused(engine, tmp_path):
    file = tmp_path / "late.gguf"
    value = struct.pack("<IQ2I", 4, 2, 1, 2)  # two tokens of u32
    file.write_bytes(adapter_bytes(more=[("adapter.alora.invocation_tokens", 9, value)]))
    with pytest.raises(AdapterError, match="it is an activated LoRA"):
        engine.load_adapter("late", file)
