"""Does it fit, and how fast is it? `edgemem profile`, as a bench.

    python -m bench.profile --json OUT [--rounds 5] [--cold-starts 3] [--budget 1GB-ram]

The summary holds parts_mb, rss_mb, explained, stages and cold_start_to_first_token_s, as
edgemem/profile/report.py explains them; the rows are the growth with the number of memories.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from bench import report
from edgemem.profile import profile

GIVEN_ELSEWHERE = ("growth", "machine", "versions", "backend")  # in the rows, and by bench.report


def main(argv: Sequence[str] | None = None) -> None:
    parser = report.parser("profile", __doc__)
    parser.add_argument("--rounds", type=int, default=5, help="of each stage")
    parser.add_argument("--cold-starts", type=int, default=3)
    parser.add_argument("--budget", action="append", default=[], help="such as 1GB-ram; repeatable")
    options = parser.parse_args(argv)
    found = profile(
        rounds=options.rounds,
        cold_starts=options.cold_starts,
        budgets=options.budget,
        on_step=lambda what: print(what, file=sys.stderr),
    ).to_dict()
    summary = {name: value for name, value in found.items() if name not in GIVEN_ELSEWHERE}
    report.write(options.json, summary, found["growth"])


if __name__ == "__main__":
    main()
