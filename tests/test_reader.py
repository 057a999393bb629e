"""How a model is used is decided once, by what it can do."""

import pytest
from fake_engine import FakeEngine

from edgemem.errors import ModelError
from edgemem.runtime.reader import INSTRUCT_PARAMS, reader_of


def engine(*, experts=(), template=True, params=INSTRUCT_PARAMS):
    made = FakeEngine()
    made.has_chat_template, made.n_params = template, params
    made.expert = lambda stage: stage in experts
    return made


@pytest.mark.parametrize(
    ("given", "reader"),
    [
        ({}, "instruct"),
        ({"params": INSTRUCT_PARAMS - 1}, "quote"),
        ({"template": False}, "quote"),
        ({"experts": {"generation"}}, "expert"),
        ({"experts": {"generation"}, "params": 135_000_000}, "expert"),
        ({"experts": {"extraction"}}, "instruct"),
    ],
)
def test_a_model_is_used_for_a_stage_as_it_can(given, reader):
    assert reader_of(engine(**given), "generation") == reader


@pytest.mark.parametrize("wanted", ["instruct", "quote"])
def test_the_setting_comes_before_what_a_model_can(wanted):
    assert reader_of(engine(params=1), "generation", wanted) == wanted


@pytest.mark.parametrize(
    ("wanted", "missing"), [("expert", "no expert for generation"), ("instruct", "chat template")]
)
def test_a_setting_that_the_model_cannot_follow_is_refused(wanted, missing):
    with pytest.raises(ModelError, match=missing):
        reader_of(engine(template=False), "generation", wanted)
