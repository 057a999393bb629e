"""How a model is used is decided once, by what it can do."""

import numpy as np
import pytest
from fake_engine import FakeEngine
from ggufkit import write_gguf

from edgemem.errors import ModelError
from edgemem.runtime import experts
from edgemem.runtime.experts import INSTRUCT_PARAMS, reader_of, reader_of_file


def engine(*, experts=(), template=True, params=INSTRUCT_PARAMS):
    made = FakeEngine()
    made.has_chat_template, made.n_params = template, params
    made.expert = lambda stage: stage in experts
    return made


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({}, "instruct"),
        ({"params": INSTRUCT_PARAMS - 1}, "quote"),
        ({"template": False}, "quote"),
        ({"experts": {"generation"}}, "expert"),
        ({"experts": {"generation"}, "params": 135_000_000}, "expert"),
        ({"experts": {"extraction"}}, "instruct"),
    ],
)
def test_a_model_is_used_for_a_stage_as_it_can(given, wanted):
    assert reader_of(engine(**given), "generation") == wanted


@pytest.mark.parametrize("wanted", ["instruct", "quote"])
def test_the_setting_comes_before_what_a_model_can(wanted):
    assert reader_of(engine(params=1), "generation", wanted) == wanted


@pytest.mark.parametrize(
    ("wanted", "missing"), [("expert", "no expert for generation"), ("instruct", "chat template")]
)
def test_a_setting_that_the_model_cannot_follow_is_refused(wanted, missing):
    with pytest.raises(ModelError, match=missing):
        reader_of(engine(template=False), "generation", wanted)


def test_a_file_tells_how_it_would_be_used(tmp_path, monkeypatch):
    monkeypatch.setattr(experts, "INSTRUCT_PARAMS", 100)
    template = {"general.architecture": "llama", "tokenizer.chat_template": "{{ messages }}"}

    def used(settings, rows, *, expert=False):
        file = write_gguf(tmp_path / "m.gguf", settings, {"t": np.zeros((rows, 10))})
        return reader_of_file(file, expert=expert)

    assert used(template, 10) == "instruct"
    assert used(template, 9) == used({"general.architecture": "llama"}, 10) == "quote"
    assert used(template, 9, expert=True) == "expert"
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    with pytest.raises(ModelError):
        reader_of_file(tmp_path / "m.gguf", expert=False)
