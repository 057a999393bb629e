"""How good is each stage, base against expert? (MemLoRA's Table 4, on a small model.)

    python -m bench.stages --data DIR --json OUT [--experts open|locomo|FOLDER]
        [--pairs 120] [--questions 100] [--operations 200] [--seed 0]

Does what `python -m corpus eval` does, on LoCoMo's conversations in DIR (see corpus/evaluate.py).
The summary has the expert's figures over all conversations, and the base model's F1 of answers from
retrieved turns.
"""

from __future__ import annotations

from collections.abc import Sequence

from bench import report
from corpus.evaluate import stages_alone
from corpus.readers import read_locomo


def main(argv: Sequence[str] | None = None) -> None:
    parser = report.parser("stages", __doc__, data="LoCoMo")
    parser.add_argument("--conversation", default="*", metavar="NAME", help="one file of it")
    parser.add_argument("--experts", default="open", help="a set's name or folder (%(default)s)")
    parser.add_argument("--pairs", type=int, default=120, help="of messages, a conversation")
    parser.add_argument("--questions", type=int, default=100, help="a conversation")
    parser.add_argument("--operations", type=int, default=200, help="of update, in all")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(argv)
    files = [path for path in options.data if path.match(options.conversation)]
    if not files:
        parser.error(f"--data has no file {options.conversation}")
    if min(options.pairs, options.questions, options.operations) < 1:
        parser.error("--pairs, --questions and --operations must be 1 or more")
    summary, rows = stages_alone(
        [read_locomo(path) for path in files],
        options.experts,
        pairs=options.pairs,
        questions=options.questions,
        operations=options.operations,
        seed=options.seed,
        track=report.track,
    )
    report.write(options.json, summary | {"peak_rss_mb": report.peak_rss_mb()}, rows)


if __name__ == "__main__":
    main()
