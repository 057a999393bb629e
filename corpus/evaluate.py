"""How good the stages are on data with known truth, base beside expert (MemLoRA's Table 4).

`stages_alone` scores each stage on its own. Base and expert get the expert's short prompt. For the
base, the best way of answering is reported: for facts, without or with a grammar; for answers, the
best of BASE_WAYS on the first questions. Answers are given from the evidence turns ("gold") and
from what a search finds among all turns ("retrieved"), as many as `Chat` shows. Updates are made of
the generator's validation phrases, which no training saw.

`together` scores the product as it is: search, recall, one answer. The base is shown a few
sentences and quotes them; an expert is shown whole turns.

Scores are between 0 and 1. Their tokens are lower-case words and numbers without articles, as in
LoCoMo's own evaluation.
"""

from __future__ import annotations

import json
import math
import random
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np

from corpus import annotated, generator
from corpus.annotated import Annotated, Pair, Question, Situation, update_examples
from edgemem.config import load_settings
from edgemem.errors import ContextOverflow
from edgemem.language import words
from edgemem.memory import Memory
from edgemem.pipeline.days import with_days
from edgemem.pipeline.importers import batches
from edgemem.pipeline.plan import SHOWN_SENTENCES, SHOWN_TURNS
from edgemem.pipeline.recall import recall
from edgemem.results import Evidence
from edgemem.runtime import experts
from edgemem.runtime.embedder import Embedder
from edgemem.runtime.engine import Engine, Generation, Prompt
from edgemem.runtime.experts import NO_EXPERTS
from edgemem.stages import extraction, update
from edgemem.stages import generation as answering
from edgemem.stages.generation import NOTHING_FOUND

T = TypeVar("T")
Track = Callable[[Sequence[T], str], Iterable[T]]
Shown = Callable[[Question], Sequence[Evidence]]
Way = Literal["expert", "completion", "chat", "quoted"]
Source = Literal["turns", "memories"]

BASE_WAYS: tuple[Way, ...] = ("completion", "chat", "quoted")
"""How a base model may answer a question: by continuing the prompt, through its chat template, or
forced to quote what it is shown."""

_ARTICLES = frozenset(("a", "an", "the", "and"))
_TO_CHOOSE = 24  # questions that a base's way of answering is chosen on
_OPERATIONS = 20  # at least so many come of one invented conversation
_CANDIDATES = 16


def stages_alone(
    talks: Sequence[Annotated],
    name: str,
    *,
    pairs: int,
    questions: int,
    operations: int,
    seed: int,
    written: Sequence[Situation] = (),
    track: Track[Any],
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Summary and rows of scores; the rows have base and expert.

    name: of a set of experts, or its folder. pairs, questions: most of each conversation.
    operations: most in all. written: further situations, with rows of their own. Raises
    AdapterError as `experts.load` does.
    """
    chosen = experts.find(name)  # fails now, not after the base was scored
    made = list(generator.operations(1 + operations // _OPERATIONS, seed=seed))
    updates = _sample(made, operations, seed)
    pairs_read: list[Pair] = []
    asked: list[Question] = []
    found: dict[Question, Sequence[Evidence]] = {}
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as scratch, Memory(Path(scratch) / "turns.db") as memory:
        for talk in track(talks, "storing turns"):
            annotated.store(memory, talk)
            pairs_read += _sample(talk.pairs, pairs, seed)
            for question in _sample(talk.questions, questions, seed):
                asked.append(question)
                shown = annotated.retrieved(memory, talk.id, question.text, SHOWN_TURNS)
                found[question] = with_days(memory.embedder, question.text, shown)
        contexts: dict[str, Shown] = {
            "gold": lambda q: q.evidence,
            "retrieved": found.__getitem__,
        }
        for who in ("base", "expert"):
            with Engine.load() as engine:
                if who == "expert":
                    experts.load(engine, chosen)

                def tracked(items: Sequence[T], what: str, who: str = who) -> Any:
                    return track(items, f"{who}: {what}")

                extractions = [
                    extraction_row(Reader(engine, grammar=grammar), pairs_read, tracked)
                    | {"grammar": grammar}
                    for grammar in ((False, True) if who == "base" else (False,))
                ]
                best = max(extractions, key=lambda row: row["rouge_1_nonempty"] or 0)
                way = _best_way(engine, asked, contexts, tracked) if who == "base" else "expert"
                reader = Reader(engine, grammar=who == "base")
                found_rows = [
                    best,
                    *(
                        {"of": of, **row}
                        for of, some in (("phrases", updates), ("written", written))
                        if some
                        for row in update_rows(reader, memory, some, tracked)
                    ),
                    *generation_rows(
                        engine, asked, contexts, tracked, way=way, embedder=memory.embedder
                    ),
                ]
                rows += [{"who": who, **row} for row in found_rows]
    return _summary(rows, name, talks), rows


def together(
    talks: Sequence[Annotated],
    *,
    source: Source,
    experts: str,
    most: int | None,
    track: Track[Any],
    seed: int = 0,
) -> dict[str, Any]:
    """The product's answers without and with experts, as JSON; `together_summary` takes several.

    source: what is searched, the turns as they are or the facts that are taken from them.
    most: questions drawn from each conversation; None is all.
    """
    asked = [(talk.id, q) for talk in talks for q in _sample(talk.questions, most, seed)]
    found: dict[str, Any] = {}
    for who, chosen in (("base", NO_EXPERTS), ("expert", experts)):
        with _stored(talks, source, chosen, track) as (memory, writing):
            answers = [
                _ask(memory, user_id, question)
                for user_id, question in track(asked, f"{who}: answering")
            ]
        found[who] = {"answers": answers, **writing}
    return found


def together_summary(
    parts: Sequence[dict[str, Any]], *, source: Source, experts: str
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Summary and rows of results of `together`, a row for each category of base and experts."""
    summary: dict[str, Any] = {"experts": experts, "source": source}
    rows: list[dict[str, Any]] = []
    for who in ("base", "expert"):
        answers = [answer for part in parts for answer in part[who]["answers"]]
        answerable = [a for a in answers if a["category"] != "adversarial"]
        suffix = "" if who == "expert" else "_base"
        summary |= {
            "n": len(answers),
            f"answer_f1{suffix}": _mean([a["f1"] for a in answerable]) or 0.0,
            f"answer_s_p50{suffix}": _median([a["recall_s"] + a["answer_s"] for a in answers]),
        }
        groups = defaultdict(list, all=answerable)
        for found in answers:
            groups[found["category"]].append(found)
        for category, group in groups.items():
            figures = {key: _mean([a[key] for a in group]) for key in group[0] if key != "category"}
            rows.append({"who": who, "category": category, "n": len(group), **figures})
        writing = [s for part in parts for s in part[who]["write_s"]]
        turns = sum(part[who]["turns"] for part in parts)
        rows.append({"who": who, "turns": turns, "write_s_p50": _median(writing)})
    return summary, rows


def token_f1(found: str, wanted: str) -> float:
    """F1 of shared tokens, each counted as often as both have it; 1 if both have none."""
    return _f1(_tokens(found), _tokens(wanted))


def rouge_1(found: str, wanted: str) -> float:
    """F1 of shared words, articles included."""
    return _f1(words(found), words(wanted))


def rouge_l(found: str, wanted: str) -> float:
    """F1 of the longest common subsequence of tokens."""
    a, b = _tokens(found), _tokens(wanted)
    longest = [0] * (len(b) + 1)
    for x in a:
        diagonal = 0
        for j, y in enumerate(b):
            above = longest[j + 1]
            longest[j + 1] = diagonal + 1 if x == y else max(above, longest[j])
            diagonal = above
    return 2 * longest[-1] / (len(a) + len(b)) if a or b else 1.0


def bleu_1(found: str, wanted: str) -> float:
    """Share of the found tokens that are wanted; a short answer loses by exp(1 - wanted/found)."""
    a, b = _tokens(found), _tokens(wanted)
    if not a or not b:
        return float(a == b)
    precision = (Counter(a) & Counter(b)).total() / len(a)
    return precision * min(1.0, math.exp(1 - len(b) / len(a)))


def macro(pairs: Sequence[tuple[str, str]]) -> dict[str, float]:
    """Share of (wanted, given) labels that are equal, for each wanted label."""
    right = Counter(wanted for wanted, given in pairs if wanted == given)
    of = Counter(wanted for wanted, _ in pairs)
    return {label: right[label] / of[label] for label in sorted(of)}


class Reader:
    """An engine that is asked like an expert in every stage, at first without a grammar.

    An answer that does not follow its schema is asked for again with a grammar. grammar: use it at
    once. answers, valid: how many answers had a schema, and how many followed it at first. tokens:
    read and written.
    """

    def __init__(self, engine: Engine, *, grammar: bool = False) -> None:
        self._engine, self._grammar = engine, grammar
        self.answers = self.valid = 0
        self.tokens = Counter[str]()

    def expert(self, stage: str) -> bool:
        return True

    def generate(self, prompt: Any, *, schema: Any = None, **options: Any) -> Generation:
        if schema is None:  # the prompt ends within the answer, which forces the form
            return self._engine.generate(prompt, **options)
        free = self._engine.generate(
            prompt, schema=schema if self._grammar else None, stop=("\n",), **options
        )
        self.tokens.update(read=free.prompt_tokens, written=free.completion_tokens)
        self.answers += 1
        try:
            followed = set(json.loads(free.text)) == set(schema["properties"])
        except (TypeError, ValueError):
            followed = False
        self.valid += followed
        if followed or self._grammar:
            return free
        return self._engine.generate(prompt, schema=schema, **options)


def extraction_row(reader: Reader, pairs: Sequence[Pair], track: Track[Pair]) -> dict[str, Any]:
    """Facts of pairs of messages, as the product would store them, against the annotated ones.

    rouge_1_nonempty: of a pair's facts with those it should have (0 if there are none);
    empty_accuracy: share of the pairs without facts that give none.
    """
    scores, empty, seconds = [], [], []
    for pair in track(pairs, "extraction"):
        started = time.perf_counter()
        try:
            facts = extraction.extract(reader, pair.messages, context=pair.context)  # type: ignore[arg-type]
            found = [fact.text for fact in facts]
        except ValueError:
            found = [""]  # counts neither as a fact nor as a correct empty answer
        seconds.append(time.perf_counter() - started)
        if pair.facts:
            scores.append(rouge_1(" ".join(found), " ".join(pair.facts)))
        else:
            empty.append(not found)
    return {
        "stage": "extraction",
        "n": len(pairs),
        "json_valid": _mean([reader.valid / reader.answers]) if reader.answers else None,
        "rouge_1_nonempty": _mean(scores),
        "nonempty": len(scores),
        "empty_accuracy": _mean(empty),
        "empty": len(empty),
        "s_p50": _median(seconds),
        **_tokens_of(reader),
    }


def _meant(op: update.Op, situation: Situation) -> str:
    """An operation's event; "wrong memory" if it is not about the situation's memory."""
    right = op.event == "ADD" or op.target == str(situation.number)
    return op.event if right else "wrong memory"


def update_rows(
    reader: Reader, memory: Memory, operations: Sequence[Situation], track: Track[Situation]
) -> list[dict[str, Any]]:
    """Scores of operations with known truth, a row for each way of deciding.

    The model alone is asked about the memory concerned (for ADD, the one most like the fact). The
    stage is given all memories, and decides with its rules and the model's or the encoder's expert.
    """
    alone: list[tuple[str, str]] = []
    encoder: list[tuple[str, str]] = []
    stage: dict[str, list[tuple[str, str]]] = {"rule": [], "model": []}
    events = {"event": {"enum": list(update.EVENTS)}}
    schema = {"type": "object", "properties": events, "required": ["event"]}
    for situation in track(operations, "update"):
        (example,) = update_examples([situation], "")
        answer = reader.generate(example.prompt, max_tokens=32, schema=schema, stage="update")
        alone.append((situation.event, json.loads(answer.text)["event"]))
        vectors = memory.embedder.embed([situation.fact, *situation.memories])
        near = [
            update.Candidate(str(n), text, float(vectors[0] @ vectors[n + 1]))
            for n, text in enumerate(situation.memories)
        ]
        (op,) = update.decide(reader, [situation.fact], [near])  # type: ignore[arg-type]
        stage[op.by].append((situation.event, _meant(op, situation)))
        (op,) = update.decide(None, [situation.fact], [near], memory.encoder)
        encoder.append((situation.event, _meant(op, situation)))
    whole = stage["rule"] + stage["model"]
    return [
        {"stage": "update", "by": by, **_operations(found)}
        for by, found in (
            ("model alone", alone),
            ("rules and model", whole),
            ("rules and encoder", encoder),
            ("rules' part", stage["rule"]),
            ("model's part", stage["model"]),
        )
        if found
    ]


def generation_rows(
    engine: Engine,
    questions: Sequence[Question],
    contexts: dict[str, Shown],
    track: Track[Question],
    *,
    way: Way = "expert",
    embedder: Embedder | None = None,
) -> list[dict[str, Any]]:
    """Answers against the annotated ones, a row for each way of choosing what is shown.

    embedder: ranks an expert's likeliest answers, as a chat's does.
    """
    rows = []
    for name, shown in contexts.items():
        scores: dict[str, list[float]] = {"f1": [], "bleu_1": [], "rouge_l": []}
        kinds: dict[str, list[float]] = {}
        refused: list[bool] = []
        wrongly, seconds, written = 0, [], 0
        for question in track(questions, f"answers ({name})"):
            memories = shown(question)
            started = time.perf_counter()
            text, tokens = _answer(engine, question.text, memories, way, embedder)
            seconds.append(time.perf_counter() - started)
            written += tokens
            if question.answer is None:
                refused.append(text == NOTHING_FOUND)
                continue
            wrongly += text == NOTHING_FOUND
            for key, score in (("f1", token_f1), ("bleu_1", bleu_1), ("rouge_l", rouge_l)):
                scores[key].append(score(text, question.answer))
            kinds.setdefault(question.category, []).append(scores["f1"][-1])
        rows.append(
            {
                "stage": "generation",
                "context": name,
                "way": way,
                "n": len(scores["f1"]),
                **{key: _mean(values) for key, values in scores.items()},
                **{f"f1_{kind}": _mean(values) for kind, values in sorted(kinds.items())},
                "refused_unanswerable": _mean(refused),
                "unanswerable": len(refused),
                "refused_answerable": round(wrongly / max(1, len(scores["f1"])), 4),
                "tokens_written": round(written / max(1, len(questions)), 1),
                "s_p50": _median(seconds),
            }
        )
    return rows


def _best_way(
    engine: Engine,
    questions: Sequence[Question],
    contexts: dict[str, Shown],
    track: Track[Question],
) -> Way:
    few = {"retrieved": contexts["retrieved"]}
    asked = [q for q in questions if q.answer is not None][:_TO_CHOOSE]
    f1 = {
        way: generation_rows(engine, asked, few, track, way=way)[0]["f1"] or 0 for way in BASE_WAYS
    }
    return max(f1, key=f1.__getitem__)


def _summary(
    rows: Sequence[dict[str, Any]], name: str, talks: Sequence[Annotated]
) -> dict[str, Any]:
    def row(who: str, **wanted: str) -> dict[str, Any]:
        return next(
            r for r in rows if r["who"] == who and all(r.get(k) == v for k, v in wanted.items())
        )

    extraction = row("expert", stage="extraction")
    updates = {
        r["of"]: r["macro_accuracy"]
        for r in rows
        if r["who"] == "expert" and r.get("by") == "rules and model"
    }
    return {
        "experts": name,
        "conversations": [talk.id for talk in talks],
        "extraction_json_valid": extraction["json_valid"],
        "extraction_rouge1_nonempty": extraction["rouge_1_nonempty"],
        "extraction_empty_accuracy": extraction["empty_accuracy"],
        "update_accuracy": updates["phrases"],
        "update_accuracy_written": updates.get("written"),
        "generation_f1": row("expert", context="retrieved")["f1"],
        "generation_f1_gold": row("expert", context="gold")["f1"],
        "generation_f1_base": row("base", context="retrieved")["f1"],
    }


@contextmanager
def _stored(
    talks: Sequence[Annotated], source: Source, experts: str, track: Track[Any]
) -> Iterator[tuple[Memory, dict[str, Any]]]:
    """A store of the conversations, and what it took to write it."""
    settings = replace(load_settings(), experts=experts)
    infer = source == "memories"
    seconds: list[float] = []
    with (
        tempfile.TemporaryDirectory() as scratch,
        Memory(Path(scratch) / "locomo.db", settings=settings) as memory,
    ):
        for talk in talks:
            parts = list(batches(talk.messages, infer=infer))
            for batch in track(parts, f"storing {talk.id}"):
                started = time.perf_counter()
                memory.add(batch, user_id=talk.id, infer=infer)
                seconds.append(time.perf_counter() - started)
        turns = memory.store.counts()["turns"]
        yield memory, {"turns": turns, "write_s": seconds if infer else []}


def _ask(memory: Memory, user_id: str, question: Question) -> dict[str, Any]:
    started = time.perf_counter()
    expert = memory.engine.expert("generation")
    hits = memory.search(question.text, user_id=user_id, top_k=_CANDIDATES)
    most = SHOWN_TURNS if expert else SHOWN_SENTENCES
    shown = recall(memory, question.text, hits, most=most, whole=expert, ended=expert)
    if expert:
        shown = with_days(memory.embedder, question.text, shown)
    recalled = time.perf_counter()
    text, read, written = NOTHING_FOUND, 0, 0
    if shown:
        stream = answering.answer(
            memory.engine, question.text, shown, speaker="User", embedder=memory.embedder
        )
        text = "".join(stream).strip()
        assert stream.result is not None
        read, written = stream.result.prompt_tokens, stream.result.completion_tokens
    done = time.perf_counter()
    refused = text == NOTHING_FOUND
    wanted = question.answer
    return {
        "category": question.category,
        "f1": token_f1(text, wanted) if wanted is not None else float(refused),
        "bleu_1": bleu_1(text, wanted) if wanted is not None else float(refused),
        "refused": float(refused),
        "tokens_in": read,
        "tokens_out": written,
        "recall_s": recalled - started,
        "answer_s": done - recalled,
    }


def _answer(
    engine: Engine,
    question: str,
    memories: Sequence[Evidence],
    way: Way,
    embedder: Embedder | None = None,
) -> tuple[str, int]:
    """An answer's text, NOTHING_FOUND if it is a refusal, and how many tokens were written."""
    if way == "expert":
        stream = answering.answer(engine, question, memories, speaker="User", embedder=embedder)
        text = "".join(stream).strip()
        return text, stream.result.completion_tokens if stream.result else 0
    if way == "quoted" and not memories:
        return NOTHING_FOUND, 0
    asked = answering.expert_prompt(question, memories, "User")
    prompt: Prompt = [{"role": "user", "content": asked}] if way == "chat" else asked
    options: dict[str, Any] = {"max_tokens": answering.MAX_ANSWER_TOKENS}
    if way == "quoted":
        options |= {"within": [m.text for m in memories], "stop": ("\n",)}
    try:
        answer = engine.generate(prompt, **options)
    except ContextOverflow:
        return "", 0
    # A base model begins with an empty line, or goes on with lines of its own.
    text = next(iter(answer.text.strip().splitlines()), "")
    refused = text.strip(" .") == answering.NOT_KNOWN
    return NOTHING_FOUND if refused else text, answer.completion_tokens


def _operations(found: Sequence[tuple[str, str]]) -> dict[str, Any]:
    each = macro(found)
    return {
        "n": len(found),
        "accuracy": _mean([wanted == given for wanted, given in found]),
        "macro_accuracy": _mean(list(each.values())),
        **{event: round(share, 4) for event, share in each.items()},
        "confusion": {f"{w} as {g}": n for (w, g), n in sorted(Counter(found).items()) if w != g},
    }


def _tokens_of(reader: Reader) -> dict[str, Any]:
    return {f"tokens_{k}": round(v / max(1, reader.answers), 1) for k, v in reader.tokens.items()}


def _mean(values: Sequence[float]) -> float | None:
    return round(float(np.mean(values)), 4) if len(values) else None


def _median(values: Sequence[float]) -> float | None:
    """The median to a thousandth; None without values."""
    return round(float(np.median(values)), 3) if len(values) else None


def _sample(items: Sequence[T], most: int | None, seed: int) -> list[T]:
    """At most so many of the items (None: all), in their order."""
    if most is None or most >= len(items):
        return list(items)
    return [items[i] for i in sorted(random.Random(seed).sample(range(len(items)), most))]


def _tokens(text: str) -> list[str]:
    return [w for w in words(text) if w not in _ARTICLES]


def _f1(a: Sequence[str], b: Sequence[str]) -> float:
    if not a and not b:
        return 1.0
    return 2 * (Counter(a) & Counter(b)).total() / (len(a) + len(b))
