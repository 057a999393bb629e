"""The bench of a conversation's turns, with a stand-in for the model."""

from __future__ import annotations

from dataclasses import replace

from fake_engine import FakeEngine
from memorykit import quick

from bench import turns
from bench.scenarios import read_all
from edgemem.config import load_settings


def test_each_turn_but_the_first_is_compared_with_its_own_prompt_computed_anew() -> None:
    engine = FakeEngine(pieces=("Yes.",))
    engine.n_params, engine.n_ctx = 1_500_000_000, 100_000
    scenario = next(s for s in read_all() if not s.frozen)
    settings = replace(load_settings(), experts="none")  # nobody beside the model refuses
    with quick(engine=engine, settings=settings) as memory:
        rows = turns.turns(engine, memory, scenario)  # type: ignore[arg-type]
    assert [row["turn"] for row in rows] == list(range(2, turns.TURNS + 1))
    assert all(row["ttft_s"] == row["cold_ttft_s"] == 0.01 for row in rows)
    assert engine.prompts == [engine.prompts[-1]]  # dropped each time, and asked once more
