"""How many private values does redaction find, and how often does it replace ordinary text?

    python -m bench.redaction [--cases N] [--seed S] [--json OUT]

Texts are invented (bench/private_texts.py). A value counts as found only if no word or run of
digits of it is left. A name is in the store, as a speaker or in one memory, before a text mentions
it. False positives are the ordinary texts in which anything was replaced, and the sentences of our
own conversations (bench/conversations) in which anything but a name was. The people of those
conversations are listed below by hand. The summary says how many of them are recognised, and which
other words are taken for names. One row for each kind of value.
"""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from bench import report
from bench.private_texts import KINDS, Case, ordinary, private
from edgemem.cloud.names import People
from edgemem.cloud.redact import Redacted, redact
from edgemem.language import sentences

PEOPLE = (
    "Aled Amelie Bernard Bettina Colette Colin Denise Duarte Elin Felix Gareth Graham Hana "
    "Hartleys Henrik Ines Ingrid Kevin Kiran Leila Leonie Lucia Margit Noemi Noor Okafor Paula "
    "Pettifer Priya Rosa Sabine Samir Stan Sylvie Tobias"
).split()
PETS = ("Admiral", "Biscuit", "Pickle")  # counted neither as names nor as errors
CONVERSATIONS = Path(__file__).parent / "conversations"
_PLACEHOLDER = re.compile(r"\[[A-Z]+_\d+\]")


def redacted(case: Case) -> Redacted:
    """The text of a case as a governor would send it, given the store of the case."""
    people = People(case.speakers)
    for text in (*case.stored, case.text):
        people.read(text)
    return redact([case.text], people.names())


def is_found(case: Case, text: str) -> bool:
    """Whether no part of the private values is left in a redacted text."""
    rest = case.text
    for value in case.values:
        rest = rest.replace(value, " ")
    left = set(_parts(_PLACEHOLDER.sub(" ", text))) - set(_parts(rest))
    return not left.intersection(part for value in case.values for part in _parts(value))


def _parts(text: str) -> list[str]:
    return [part.casefold() for part in re.findall(r"[^\W_]{2,}", text)]


def run(cases: int, seed: int = 1) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Summary and rows. cases: the number of private texts, and of ordinary ones."""
    found, total, missed = Counter[str](), Counter[str](), []
    started = time.perf_counter()
    for case in private(seed, cases):
        text = redacted(case).texts[0]
        total[case.kind] += 1
        found[case.kind] += (ok := is_found(case, text))
        if not ok:
            missed.append({"kind": case.kind, "text": case.text, "sent": text})
    spent = time.perf_counter() - started
    wrong: Counter[str] = Counter()
    taken = []
    for case in ordinary(seed, cases):
        result = redacted(case)
        wrong.update(_kinds(result))
        wrong["any"] += bool(result.values)
        taken += [f"{name} {value}" for name, value in result.values.items()]
    people = People()
    for text in _conversations():
        people.read(text)
    named = {part for name in people.names() for part in name.split()}
    said = [sentence for text in _conversations() for sentence in sentences(text)]
    talked = [result for s in said if (result := redact([s])).values]
    rows = [
        {"kind": kind, "cases": total[kind], "recall": round(found[kind] / total[kind], 4),
         "false_positive_rate": round(wrong[kind] / cases, 4)}
        for kind in KINDS
    ]  # fmt: skip
    summary = {
        "cases": sum(total.values()),
        "recall": round(sum(found.values()) / sum(total.values()), 4),
        "worst_recall": min(row["recall"] for row in rows),
        "false_positive_rate": round(wrong["any"] / cases, 4),
        "conversation_names_found": len(named & set(PEOPLE)),
        "conversation_names": len(PEOPLE),
        "conversation_no_names_taken": sorted(named - {*PEOPLE, *PETS}),
        "conversation_sentences": len(said),
        "conversation_false_positive_rate": round(len(talked) / max(1, len(said)), 4),
        "ms_per_text": round(spent / max(1, cases) * 1e3, 3),
        "missed": missed[:20],
        "taken": sorted(set(taken))[:20],
        "taken_in_conversations": [dict(r.values) for r in talked][:20],
    }
    return summary, rows


def _kinds(result: Redacted) -> Iterable[str]:
    return {name[1:].rpartition("_")[0] for name in result.values}


def _conversations() -> Iterable[str]:
    for file in sorted(CONVERSATIONS.rglob("*.json")):
        yield from _texts(json.loads(file.read_text(encoding="utf-8")))


def _texts(value: Any) -> Iterable[str]:
    if isinstance(value, dict):
        for key, inner in value.items():
            if isinstance(inner, str) and key in ("content", "text", "user", "assistant"):
                yield inner
            else:
                yield from _texts(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _texts(inner)


def main(argv: Sequence[str] | None = None) -> None:
    parser = report.parser("redaction", __doc__, to_file=False)
    parser.add_argument("--cases", type=int, default=7000, metavar="N", help="default: 7000")
    parser.add_argument("--seed", type=int, default=1, metavar="S", help="default: 1")
    options = parser.parse_args(argv)
    report.write(options.json, *run(options.cases, options.seed))


if __name__ == "__main__":
    main()
