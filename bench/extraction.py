"""How good are the bundled model's facts? LoCoMo pairs against LoCoMo's own observations.

    python -m bench.extraction --data DIR --json OUT [--pairs 60] [--seed 0] [--context-turns 0 2 4]

Pairs of messages are drawn from one conversation and put through the extraction stage, as
`Memory.add` does. One row for each number of earlier turns shown to the model: the share of its
answers that are strict JSON; ROUGE-1 F of a pair's facts against the observations that cite its
turns (0 if nothing was extracted); the share of pairs without observations that rightly give
nothing; seconds for a pair. The observations are a person's words for the same facts, so ROUGE-1
compares settings of this stage; it does not say how many facts are true.
"""

from __future__ import annotations

import random
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench import report
from corpus.evaluate import rouge_1
from corpus.readers import as_message, locomo_file, observations
from edgemem.pipeline.importers import batches
from edgemem.runtime.engine import Engine, Generation
from edgemem.stages import extraction


class Recorder:
    """An engine that keeps its answers."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.answers: list[Generation] = []

    def generate(self, prompt: Any, **options: Any) -> Generation:
        self.answers.append(self._engine.generate(prompt, **options))
        return self.answers[-1]


def is_strict(answer: Generation) -> bool:
    """Whether an answer is `{"facts": [strings]}` and nothing else."""
    try:
        extraction.parse(answer.text)
    except ValueError:
        return False
    return True


def measure(
    engine: Engine,
    messages: Sequence[Mapping[str, Any]],
    drawn: Sequence[tuple[int, Sequence[Mapping[str, Any]]]],
    known: Sequence[tuple[str, list[str]]],
    before: int,
) -> dict[str, Any]:
    """The row of one setting. drawn: pairs, each with the position of its first message."""
    recorder = Recorder(engine)
    scores, empty, seconds, facts, failed = [], [], [], 0, 0
    for position, pair in report.track(drawn, f"{before} turns of context"):
        context = [as_message(m) for m in messages[max(0, position - before) : position]]
        started = time.perf_counter()
        try:
            found = extraction.extract(recorder, [as_message(m) for m in pair], context=context)
            broken = False
        except ValueError:  # a pair that fails is not one that rightly gives nothing
            found, broken = [], True
        failed += broken
        seconds.append(time.perf_counter() - started)
        facts += len(found)
        turns = {m["metadata"]["dia_id"] for m in pair}
        wanted = " ".join(text for text, cited in known if turns.intersection(cited))
        if wanted:
            scores.append(rouge_1(" ".join(f.text for f in found), wanted))
        else:
            empty.append(not found and not broken)
    answers = recorder.answers
    return {
        "context_turns": before,
        "n": len(drawn),
        "with_observations": len(scores),
        "rouge_1_f": round(sum(scores) / len(scores), 4) if scores else None,
        "without_observations": len(empty),
        "rightly_nothing": round(sum(empty) / len(empty), 4) if empty else None,
        "facts": facts,
        "answers": len(answers),
        "strict_json": round(sum(map(is_strict, answers)) / len(answers), 4) if answers else None,
        "failed_pairs": failed,
        "pair_s_p50": round(report.percentile(seconds, 50), 2),
    }


def run(
    path: Path, pairs: int, seed: int, context_turns: Sequence[int]
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Summary (the row without context if there is one, else the first row) and rows."""
    messages = locomo_file(path).messages
    known, every, position = list(observations(path)), [], 0
    for pair in batches(messages, infer=True):
        every.append((position, pair))
        position += len(pair)
    drawn = sorted(random.Random(seed).sample(range(len(every)), min(pairs, len(every))))
    with Engine.load() as engine:
        measure(engine, messages, [every[drawn[0]]], known, 0)  # caches the prompt's prefix
        rows = [
            measure(engine, messages, [every[i] for i in drawn], known, n) for n in context_turns
        ]
        model = engine.name
    default = next((row for row in rows if row["context_turns"] == 0), rows[0])
    summary = {"conversation": path.stem, "model": model, "seed": seed, **default}
    return {**summary, "peak_rss_mb": report.peak_rss_mb()}, rows


def main(argv: Sequence[str] | None = None) -> None:
    parser = report.parser("extraction", __doc__, data="LoCoMo")
    parser.add_argument("--conversation", default="*", metavar="NAME", help="default: the first")
    parser.add_argument("--pairs", type=int, default=60, help="pairs of messages to draw")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--context-turns", type=int, nargs="+", default=[0, 2, 4], metavar="N")
    options = parser.parse_args(argv)
    if options.pairs < 1 or min(options.context_turns) < 0:
        parser.error("--pairs must be 1 or more, --context-turns 0 or more")
    files = [path for path in options.data if path.match(options.conversation)]
    if not files:
        parser.error(f"--data has no file {options.conversation}")
    report.write(options.json, *run(files[0], options.pairs, options.seed, options.context_turns))


if __name__ == "__main__":
    main()
