"""How well are facts read as relations, and what does a look at the graph cost?

    python -m bench.graph FILE... --json OUT

A FILE holds facts and under each its relations: "> SOURCE:type | label | TARGET:type", or "> none";
a blank line ends an entry, a line with # is a remark. A relation is right if source, label and
target are, letter for letter but for case and a leading article; the types are counted apart.
`other` is left out unless --other is given. Held-out files are for figures: nothing is changed
because of what they show.
"""

from __future__ import annotations

import argparse
import re
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.progress import Progress

from bench import report
from edgemem.language import triples

_console = Console(stderr=True)
_ARTICLE = re.compile(r"\A(?:the|an?) ", re.I)


class Relation(NamedTuple):
    """A relation as it is compared. types: of its source and target, compared apart."""

    source: str
    label: str
    target: str


Labelled = dict[Relation, tuple[str, str]]


def read_labelled(file: Path) -> list[tuple[str, Labelled]]:
    """The facts of a file, each with its relations and their types.

    Raises ValueError, naming the entry, on a line that is none.
    """
    found = []
    for entry in re.split(r"\n\s*\n", file.read_text(encoding="utf-8").strip()):
        lines = [line for line in entry.splitlines() if line and not line.startswith("#")]
        if not lines:
            continue
        labelled: Labelled = {}
        for line in lines[1:]:
            if line == "> none":
                continue
            parts = [part.rpartition(":") for part in line.removeprefix("> ").split(" | ")]
            if not line.startswith("> ") or len(parts) != 3:
                raise ValueError(f"{file}: {line!r} is no relation of {lines[0]!r}")
            (source, _, kind), (_, _, label), (target, _, of) = parts
            labelled[Relation(_plain(source), label, _plain(target))] = kind, of
        found.append((lines[0], labelled))
    return found


def read_by_rule(fact: str) -> Labelled:
    """The relations that the rules find in a fact, with their types."""
    return {
        Relation(_plain(t.source.name), t.label, _plain(t.target.name)): (
            t.source.type,
            t.target.type,
        )
        for t in triples(fact)
    }


def _plain(name: str) -> str:
    return _ARTICLE.sub("", name.strip()).casefold()


def figures(
    wanted: Sequence[Labelled], found: Sequence[Labelled], *, other: bool = False
) -> dict[str, Any]:
    """Precision, recall and F1 of relations, the share of right types, and each label's counts."""
    right, missed, wrong = Counter[str](), Counter[str](), Counter[str]()
    typed = 0
    for of_fact, read in zip(wanted, found, strict=True):
        for relation in {*of_fact, *read}:
            if relation.label == "other" and not other:
                continue
            if relation in of_fact and relation in read:
                right[relation.label] += 1
                typed += of_fact[relation] == read[relation]
            else:
                (missed if relation in of_fact else wrong)[relation.label] += 1
    hits, all_found = right.total(), right.total() + wrong.total()
    all_wanted = hits + missed.total()
    return {
        "facts": len(wanted),
        "relations": all_wanted,
        "found": all_found,
        "right": hits,
        "precision": round(hits / max(1, all_found), 4),
        "recall": round(hits / max(1, all_wanted), 4),
        "f1": round(2 * hits / max(1, all_found + all_wanted), 4),
        "types_right": round(typed / max(1, hits), 4),
        "labels": {
            label: {"right": right[label], "missed": missed[label], "wrong": wrong[label]}
            for label in sorted({*right, *missed, *wrong})
        },
    }


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.graph", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE")
    parser.add_argument("--json", required=True, metavar="OUT", help="file to write")
    parser.add_argument("--other", action="store_true", help="count the label `other`, too")
    options = parser.parse_args(argv)
    rows: list[dict[str, Any]] = []
    with Progress(console=_console) as bar:
        for file in options.files:
            labelled = read_labelled(file)
            read_by_rule("User lives in Oslo.")  # compiles the patterns
            started = time.perf_counter()
            facts = bar.track([fact for fact, _ in labelled], description=file.name)
            found = [read_by_rule(fact) for fact in facts]
            each_ms = (time.perf_counter() - started) * 1e3 / max(1, len(labelled))
            counted = figures([wanted for _, wanted in labelled], found, other=options.other)
            rows.append({"file": file.name, **counted, "each_ms": round(each_ms, 3)})
    report.write(options.json, {"reader": "rules"}, rows)
    for row in rows:
        _console.print({key: value for key, value in row.items() if key != "labels"})


if __name__ == "__main__":
    main()
