"""How soon does the next turn of a conversation begin, compared with the same prompt cold?

    python -m bench.turns --json OUT [--model NAME] [--experts NAME]

A scenario of `bench/scenarios/` (not a frozen one) is stored. Then its questions are asked in one
`Chat`, without storing them. For each turn but the first, the time to the first token is compared
with that of the same prompt without cached prefixes. For models that have a conversation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from bench import report
from bench.scenarios import Scenario, read_all
from edgemem.chat import Chat
from edgemem.config import load_settings
from edgemem.memory import Memory
from edgemem.runtime import experts
from edgemem.runtime.embedder import Embedder
from edgemem.runtime.engine import Engine
from edgemem.runtime.experts import reader_of

TURNS = 9
_TOKENS = 48  # per answer


def turns(engine: Engine, memory: Memory, scenario: Scenario) -> list[dict[str, Any]]:
    """A row for each of the first TURNS questions that the model answers, without the first one."""
    asked: list[tuple[Any, dict[str, Any]]] = []
    stream = engine.stream

    def watched(prompt: Any, **options: Any) -> Any:
        asked.append((prompt, options))
        return stream(prompt, **options)

    engine.stream = watched  # type: ignore[method-assign]
    chat = Chat(memory, engine, user_id=scenario.user_id)
    rows = []
    for number, question in enumerate(scenario.questions[:TURNS]):
        before = len(asked)
        reply = chat.send(
            question.ask,
            timestamp=scenario.now,
            remember=False,
            options={"max_tokens": _TOKENS},
        )
        list(reply)
        if len(asked) == before:  # the model was not asked: a fixed sentence, or an expert's answer
            continue
        assert reply.generation is not None
        prompt, options = asked[-1]
        engine.drop_prefixes()
        cold = stream(prompt, **{**options, "max_tokens": 1})
        list(cold)
        assert cold.result is not None
        if number:
            rows.append(
                {
                    "turn": number + 1,
                    "prompt_tokens": reply.generation.prompt_tokens,
                    "cached_tokens": reply.generation.cached_tokens,
                    "ttft_s": round(reply.generation.ttft_s, 3),
                    "cold_ttft_s": round(cold.result.ttft_s, 3),
                }
            )
    return rows


def main(argv: Sequence[str] | None = None) -> None:
    parser = report.parser("turns", __doc__)
    parser.add_argument("--model", help="name or file (default: setting `model`)")
    parser.add_argument("--experts", help="set of experts (default: setting `experts`)")
    options = parser.parse_args(argv)
    given = {name: getattr(options, name) for name in ("model", "experts")}
    settings = replace(load_settings(), **{k: v for k, v in given.items() if v is not None})
    scenario = next(s for s in read_all() if not s.frozen)
    with Engine.load(settings.model, n_ctx=settings.n_ctx) as engine:
        experts.load_chosen(engine, settings.experts)
        if reader_of(engine, "reply", settings.reader) == "quote":
            raise SystemExit(f"{engine.name} holds no conversation; give an instruct model")
        embedder = Embedder.load(settings.embedder)
        with Memory(":memory:", engine=engine, embedder=embedder, settings=settings) as memory:
            for said in scenario.sessions:
                memory.add(said, user_id=scenario.user_id, infer=False)
            rows = turns(engine, memory, scenario)
    ratios = [row["ttft_s"] / row["cold_ttft_s"] for row in rows]
    summary = {
        "model": engine.name,
        "experts": settings.experts,
        "turns": len(rows),
        "ttft_s_p50": round(report.percentile([row["ttft_s"] for row in rows], 50), 3),
        "cold_ttft_s_p50": round(report.percentile([row["cold_ttft_s"] for row in rows], 50), 3),
        "ratio_p50": round(report.percentile(ratios, 50), 3),
    }
    report.write(options.json, summary, rows)
    print(summary)


if __name__ == "__main__":
    main()
