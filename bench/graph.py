"""How well are facts read as relations, and what does a look at the graph cost?

    python -m bench.graph FILE... --json OUT
    python -m bench.graph --lives FILE... --json OUT
    python -m bench.graph --evidence FILE... --json OUT
    python -m bench.graph --turns DIR --json OUT
    python -m bench.graph --edges 1000000 --memories 5000 --json OUT

A FILE holds facts and under each its relations: "> SOURCE:type | label | TARGET:type", or "> none";
a blank line ends an entry, a line that begins with # is a comment. A relation is right if source,
label and target are, letter for letter but for case and a leading article; types are counted
separately. `other` is left out unless --other is given. Held-out files are for figures: nothing is
changed because of what they show.

--lives: files of invented lives, "## NAME", then "DATE | FACT" lines, then "? QUESTION | ANSWER /
ANOTHER WORDING". Questions are asked three days after the last fact, and answered from
`relations(at=)` alone (see `answered`). The row also says how often the answer is in the best fact
of `search(at=)`, in one of its best three, and in the best fact of a search without `at`. Facts go
through the update stage.

--evidence: lives whose questions end in "| needs: 2, 5", the facts that answer them. The row says
which share of these facts is among the best ten memories of a search, and among the sources of
`evidence` in 250 tokens.

--turns: a folder of LoCoMo's files. The row says which share of a question's evidence turns is
among the best ten of a search, and among the nodes of `evidence` in 250 tokens. The tokens of the
evidence are compared with those of the ten turns alone, and of the ten as a model is shown them.

--edges: milliseconds to read all relations of a name (500 names), in a store of so many relations,
a hundred to a fact. --memories: milliseconds to read the relations of ten hits, in a store of so
many facts.
"""

from __future__ import annotations

import math
import random
import re
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bench import report
from corpus.annotated import store
from corpus.readers import read_locomo
from edgemem import Memory
from edgemem.language import asked_day, words
from edgemem.pipeline import graph as reader
from edgemem.pipeline import ingest
from edgemem.pipeline.graph import LABELS, triples
from edgemem.pipeline.recall import evidence_of
from edgemem.results import Entity, Label, Message, Scope, to_utc
from edgemem.results import Relation as Edge
from edgemem.runtime.embedder import Embedder
from edgemem.runtime.encoder import Encoder
from edgemem.runtime.onnxfile import Expert, read_expert
from edgemem.stages import evidence
from edgemem.stages.extraction import Fact
from edgemem.store import NewMemory, NewRelation, Store
from edgemem.store.relations import relations, relations_of

QUESTIONS = Path(__file__).resolve().parent / "relations" / "questions.npz"
_LEAST, _WEIGHT = 0.3, 10.0  # chosen on at-date-dev.txt and at-date-dev-2.txt
_AS_NEAR = 0.4  # share of the best score from which a person may be who has that role now
_FACTS = 30  # most facts that a search scores
_ARTICLE = re.compile(r"\A(?:the|an?) ", re.I)


class Relation(NamedTuple):
    """A relation as it is compared; the types of its ends are compared separately."""

    source: str
    label: str
    target: str


Labelled = dict[Relation, tuple[str, str]]


def read_triples(file: Path) -> list[tuple[str, list[NewRelation]]]:
    """The facts of a file, each with its triples.

    Raises ValueError, naming the entry, if a line is no triple.
    """
    found = []
    for entry in re.split(r"\n\s*\n", file.read_text(encoding="utf-8").strip()):
        lines = [line for line in entry.splitlines() if line and not line.startswith("#")]
        if not lines:
            continue
        triples = []
        for line in lines[1:]:
            if line == "> none":
                continue
            parts = [part.rpartition(":") for part in line.removeprefix("> ").split(" | ")]
            if not line.startswith("> ") or len(parts) != 3:
                raise ValueError(f"{file}: {line!r} is no relation of {lines[0]!r}")
            (source, _, kind), (_, _, label), (target, _, of) = parts
            triples.append(NewRelation(Entity(source, kind), label, Entity(target, of)))  # type: ignore[arg-type]
        found.append((lines[0], triples))
    return found


def labelled(triples: Iterable[NewRelation]) -> Labelled:
    """Triples as they are compared, with the types of source and target."""
    return {
        Relation(_plain(t.source.name), t.label, _plain(t.target.name)): (
            t.source.type,
            t.target.type,
        )
        for t in triples
    }


def _plain(name: str) -> str:
    return _ARTICLE.sub("", name.strip()).casefold()


def figures(
    wanted: Sequence[Labelled], found: Sequence[Labelled], *, other: bool = False
) -> dict[str, Any]:
    """Precision, recall and F1 of relations, the share of right types, and each label's counts."""
    right, missed, wrong = Counter[str](), Counter[str](), Counter[str]()
    typed = 0
    for of_fact, told in zip(wanted, found, strict=True):
        for relation in {*of_fact, *told}:
            if relation.label == "other" and not other:
                continue
            if relation in of_fact and relation in told:
                right[relation.label] += 1
                typed += of_fact[relation] == told[relation]
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


# -- questions about a day ---------------------------------------------------------------------


class Life(NamedTuple):
    """Dated facts, and questions with the answers that count as right."""

    name: str
    facts: list[tuple[str, str]]
    questions: list[tuple[str, list[str], list[int]]]
    """Question, answers, and the numbers of the facts that it needs."""


def read_lives(file: Path) -> list[Life]:
    """The lives of a file. Raises ValueError on a line that is no fact, question or comment."""
    lives: list[Life] = []
    for line in file.read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            lives.append(Life(line[3:], [], []))
        elif line.startswith("? "):
            question, answers, *needs = line[2:].split(" | ")
            needed = [int(n) - 1 for n in re.findall(r"\d+", "".join(needs))]
            lives[-1].questions.append((question, answers.split(" / "), needed))
        elif found := re.fullmatch(r"(\d{4}-\d\d-\d\d) \| (.+)", line):
            lives[-1].facts.append((to_utc(f"{found[1]}T12:00:00+00:00"), found[2]))
        elif line.strip() and not line.startswith("#"):
            raise ValueError(f"{file}: {line!r} is no fact and no question")
    return lives


def remembered(life: Life, embedder: Embedder) -> Memory:
    """A Memory of a life's facts, each written as if extracted from a turn of the same words."""
    memory = Memory(":memory:", embedder=embedder)
    for when, fact in life.facts:
        turn = ingest.stored_turn(Message("user", fact, when), Scope("ana"), when)
        with memory._writing() as tx:
            tx.add_turn(turn)
            tx.add_pending(ingest.EXTRACT, {"turns": [turn.id]}, turn.scope)
        (piece,) = memory.pending()
        ingest.apply_facts(memory, piece, [], [turn], [Fact(fact, 0, when)])
    return memory


@cache
def _expert() -> Expert:
    return read_expert(QUESTIONS.read_bytes())


def asked(question: str, encoder: Encoder | None) -> dict[Label, float]:
    """For each label the probability that a question asks for its relations.

    "What breed is my sister's dog?" asks for sibling_of, has_pet and is_a. A logistic regression
    for each label reads the states of the encoder with an expert (bench/fit_questions.py). The
    product does not use it: the memories' scores say as much about what answers a question
    (bench/LOG.md, 2026-11-26). Empty for a question of more than 256 tokens, and without an
    encoder.
    """
    weights = _expert()
    states = None if encoder is None else encoder.read(weights, question)
    if states is None:
        return {}
    logits = states.layers[-1].mean(axis=0) @ weights["label.w"] + weights["label.b"]
    return dict(zip(LABELS, (1 / (1 + np.exp(-logits))).tolist(), strict=True))


def answered(memory: Memory, question: str, asked_at: str) -> list[str]:
    """The targets of the source and label that a question most likely asks for.

    A relation's score is the probability that the question asks for its label, times its source's,
    times its fact's: _WEIGHT as the exponent of the fact's score in a search. A source's is 1 for
    those the question names (if it names none, for the user), and for others the probability that
    it asks for their relation to the user. No label is less likely than _LEAST. A label that allows
    one target gives the newest. So does `other`, of the facts that are about as near: a tenant
    follows another.
    """
    day = asked_day(question, asked_at)
    at = asked_at if day is None else f"{day}T12:00:00.000+00:00"
    told = list(memory.relations(at=at))
    if not told:
        return []
    chances, said = asked(question, memory.encoder), {*words(question)}
    near = {hit.id: hit.score for hit in memory.search(question, top_k=_FACTS, at=at)}
    named = {r.source for r in told if {*words(r.source.removeprefix("User's "))} <= said}
    about = dict.fromkeys(named or {reader.USER}, 1.0)
    for each in told:
        if each.source == reader.USER:
            about.setdefault(each.destination, chances[each.relationship])

    def score(each: Edge) -> float:
        likely = (chances[each.relationship] + _LEAST) * about.get(each.source, 0.0)
        return likely * math.exp(_WEIGHT * near.get(each.memory_id, 0.0))

    best = max(told, key=score)
    same = [r for r in told if (r.source, r.relationship) == (best.source, best.relationship)]
    if best.relationship == "other":
        same = [r for r in same if score(r) >= score(best) * _AS_NEAR]
    if best.relationship in reader.FUNCTIONAL | {"other"}:
        return [max(same, key=lambda each: each.valid_from or "").destination]
    return [each.destination for each in same]


def found_facts(lives: Sequence[Life], embedder: Embedder) -> dict[str, float]:
    """Shares of questions whose answer the best facts of a search have, with and without `at`."""
    found = Counter[str]()
    for life in lives:
        with remembered(life, embedder) as memory:
            for question, answers, _ in life.questions:
                day = asked_day(question, _asked_at(life))
                at = None if day is None else f"{day}T12:00:00+00:00"
                hits = memory.search(question, top_k=3, at=at)
                plain = memory.search(question, top_k=1)
                right = [any(_plain(a) in _plain(h.memory) for a in answers) for h in hits]
                found["fact_at"] += any(right[:1])
                found["fact_at_3"] += any(right)
                found["fact_without_at"] += any(
                    _plain(a) in _plain(hit.memory) for hit in plain for a in answers
                )
    questions = sum(len(life.questions) for life in lives)
    return {name: round(count / questions, 3) for name, count in found.items()}


def _asked_at(life: Life) -> str:
    return to_utc(datetime.fromisoformat(life.facts[-1][0]) + timedelta(days=3))


def score_lives(file: Path, embedder: Embedder) -> dict[str, Any]:
    """How many questions the graph answers right, how many not at all, what a search finds."""
    right = silent = questions = 0
    for life in read_lives(file):
        with remembered(life, embedder) as memory:
            for question, answers, _ in life.questions:
                found = answered(memory, question, _asked_at(life))
                questions += 1
                silent += not found
                right += any(
                    _plain(a) in _plain(f) or _plain(f) in _plain(a) for f in found for a in answers
                )
    low, high = report.wilson(right, questions)
    searched = found_facts(read_lives(file), embedder)
    return {
        "file": file.name,
        "questions": questions,
        "right": right,
        "silent": silent,
        "share": round(right / questions, 3),
        "wilson_95": [round(low, 3), round(high, 3)],
        **searched,
    }


def score_evidence(file: Path, embedder: Embedder) -> dict[str, Any]:
    """Shares of the needed facts that a search and the evidence have, and the tokens of both."""
    needed = by_search = by_evidence = tokens = of_search = 0
    for life in read_lives(file):
        with remembered(life, embedder) as memory:
            for question, _, needs in life.questions:
                gold = {life.facts[n][1] for n in needs}
                hits = memory.search(question, top_k=10)
                found = memory.evidence(question, budget=250)
                needed += len(gold)
                by_search += len(gold & {hit.memory for hit in hits})
                by_evidence += len(gold & {memory.get(id).memory for id in found.sources})
                tokens += found.tokens
                of_search += sum(embedder.count_tokens(hit.memory) for hit in hits)
    return {
        "file": file.name, "facts_needed": needed,
        "of_search": round(by_search / needed, 3), "of_evidence": round(by_evidence / needed, 3),
        "tokens_to_searchs": round(tokens / max(1, of_search), 3),
    }  # fmt: skip


def score_turns(files: Sequence[Path], embedder: Embedder) -> dict[str, Any]:
    """Shares of LoCoMo's evidence turns that a search and the evidence have, tokens, milliseconds;
    means over the questions."""
    count, rows = embedder.count_tokens, []
    for file in files:
        talk = read_locomo(file)
        with Memory(":memory:", embedder=embedder) as memory:
            store(memory, talk)
            for question in report.track(talk.questions, talk.id):
                gold = {shown.text for shown in question.evidence}
                if question.answer is None or not gold:
                    continue
                hits = memory.search(question.text, user_id=talk.id, top_k=10)
                shown = evidence_of(memory, None, hits, assistants=True)[:10]
                started = time.perf_counter()
                found = memory.evidence(question.text, user_id=talk.id, budget=250)
                rows.append(
                    (
                        len(gold & {hit.memory for hit in hits}) / len(gold),
                        len(gold & {node.memory for node in found.nodes}) / len(gold),
                        found.tokens,
                        sum(count(hit.memory) for hit in hits),
                        sum(count(evidence.line(each)) for each in shown),
                        (time.perf_counter() - started) * 1e3,
                    )
                )
    by_search, by_evidence, tokens, plain, as_shown, _ = np.mean(rows, axis=0).tolist()
    return {
        "bench": "turns", "questions": len(rows), "of_search": round(by_search, 4),
        "of_evidence": round(by_evidence, 4), "share": round(by_evidence / by_search, 4),
        "tokens": round(tokens, 1), "tokens_to_turns": round(tokens / plain, 3),
        "tokens_to_shown": round(tokens / as_shown, 3),
        "p50_ms": round(report.percentile([row[-1] for row in rows], 50), 1),
    }  # fmt: skip


# -- what it costs -----------------------------------------------------------------------------

_TO_A_FACT = 100


def _fact(id: str, text: str, when: str) -> NewMemory:
    none = np.empty((0, 0), np.float32)
    return NewMemory(
        id=id, kind="fact", memory=text, search_text=text, scope=Scope("ana"), created_at=when,
        vectors=none, valid_from=when,
    )  # fmt: skip


def one_hop(edges: int, names: int = 500) -> dict[str, Any]:
    """Milliseconds to read all relations of a name, in a store of `edges` relations."""
    draw = random.Random(7)
    people = max(2, edges // 5)
    with tempfile.TemporaryDirectory() as folder, Store.open(Path(folder) / "s.db") as store:
        for start in range(0, edges, 100 * _TO_A_FACT):
            with store.transaction() as tx:
                for first in range(start, min(start + 100 * _TO_A_FACT, edges), _TO_A_FACT):
                    tx.add_memory(_fact(str(first), "x", "2024-01-01T00:00:00.000+00:00"))
                    new = [
                        NewRelation(
                            Entity(f"P{draw.randrange(people)}", "person"), "friend_of",
                            Entity(f"P{draw.randrange(people)}", "person"),
                        )
                        for _ in range(_TO_A_FACT)
                    ]  # fmt: skip
                    tx.set_relations(str(first), new, 1)
        took, found = [], 0
        for _ in range(names):
            name = f"P{draw.randrange(people)}"
            started = time.perf_counter()
            found += len(relations(store, Scope("ana"), [name]))
            took.append((time.perf_counter() - started) * 1e3)
        size = (Path(folder) / "s.db").stat().st_size
        held = store.counts()["relations"]
    return {
        "bench": "one_hop",
        "relations": held,
        "told_of_a_name": round(found / names, 1),
        "p50_ms": round(report.percentile(took, 50), 3),
        "p95_ms": round(report.percentile(took, 95), 3),
        "bytes_a_relation": round(size / max(1, held)),
    }


def told_beside(memories: int, searches: int = 500) -> dict[str, Any]:
    """Milliseconds to read the relations of ten hits, in a store of `memories` facts."""
    draw = random.Random(7)
    labels = ("lives_in", "likes", "friend_of")
    with Store.open(":memory:") as store:
        with store.transaction() as tx:
            for number in range(memories):
                tx.add_memory(_fact(str(number), "x", "2024-01-01T00:00:00.000+00:00"))
                new = [
                    NewRelation(Entity(f"P{draw.randrange(memories)}", "person"), label,  # type: ignore[arg-type]
                                Entity(f"T{draw.randrange(memories)}", "thing"))
                    for label in labels
                ]  # fmt: skip
                tx.set_relations(str(number), new, 1)
        took = []
        for _ in range(searches):
            hits = {str(draw.randrange(memories)): 0.5 for _ in range(10)}
            started = time.perf_counter()
            relations_of(store, hits)
            took.append((time.perf_counter() - started) * 1e3)
    return {
        "bench": "told_beside_a_search",
        "memories": memories,
        "p50_ms": round(report.percentile(took, 50), 3),
        "p95_ms": round(report.percentile(took, 95), 3),
    }


def main(argv: Sequence[str] | None = None) -> None:
    parser = report.parser("graph", __doc__)
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE")
    parser.add_argument("--lives", nargs="+", type=Path, default=[], metavar="FILE")
    parser.add_argument("--evidence", nargs="+", type=Path, default=[], metavar="FILE")
    parser.add_argument("--turns", type=report.json_files, metavar="DIR", help="folder of LoCoMo")
    parser.add_argument("--edges", type=int, metavar="N", help="relations of a large store")
    parser.add_argument("--memories", type=int, metavar="N", help="facts of a store")
    parser.add_argument("--other", action="store_true", help="count the label `other`, too")
    options = parser.parse_args(argv)
    rows: list[dict[str, Any]] = []
    embedder, encoder = Embedder.load(), Encoder.load()
    for file in options.files:
        told = read_triples(file)
        triples("User lives in Oslo.", encoder)  # loads the weights
        started = time.perf_counter()
        each = report.track([fact for fact, _ in told], file.name)
        found = [labelled(triples(fact, encoder)) for fact in each]
        each_ms = (time.perf_counter() - started) * 1e3 / max(1, len(told))
        wanted = [labelled(of_fact) for _, of_fact in told]
        counted = figures(wanted, found, other=options.other)
        rows.append({"file": file.name, **counted, "each_ms": round(each_ms, 3)})
    if options.lives or options.evidence:
        rows += [score_lives(file, embedder) for file in options.lives]
        rows += [score_evidence(file, embedder) for file in options.evidence]
    if options.turns:
        rows.append(score_turns(options.turns, embedder))
    if options.edges:
        rows.append(one_hop(options.edges))
    if options.memories:
        rows.append(told_beside(options.memories))
    report.write(options.json, {"reader": reader.version(encoder)}, rows)
    for row in rows:
        report.console.print({key: value for key, value in row.items() if key != "labels"})


if __name__ == "__main__":
    main()
