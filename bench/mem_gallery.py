"""Mem-Gallery: does a search find the rounds that answer, and what does a model answer? No pixels.

    python -m bench.mem_gallery --data DIR --json OUT [--captions paper|none]
        [--retrieval fast|careful] [--scenarios N]
    … --model NAME [--sample N] [--systems ours fifo full cosine bm25]

DIR has a JSON file for each scenario. A scenario is one user. The messages that `edgemem import`
reads from it are stored as they are, one turn each, with or without the captions in the file. A
large model wrote these captions, so they favour systems that read captions. A question is searched
for with the caption of its image. The model reads the caption as the last thing that the user said.
That form was chosen on this data; nothing else in edgemem was fitted on it.

Search: memories are mapped to their rounds, in rank order. Recall, Precision and Hit@K follow the
paper's equations 9 to 11, by task. Questions without evidence (AR) are left out.

--model also scores answers, with F1, BLEU-1 (precision alone) and EM as in equations 4 to 8. VS is
answered with the ids of the photos whose score is at least `_NEARLY` times the best one. That
constant is the only number chosen on it. CD is Yes if `Memory.conflicts` finds a conflict or
if the model answers "True or not: STATEMENT" with no, else No. The two classes of CD differ in
size, so balanced accuracy is reported too. AR is right if refused. As refusing everything would
score well there, over_refusal is the share refused of all questions but those of AR and CD. The
other systems give the same model their own evidence: the newest (fifo) or the oldest (full) turns
that fit the context window, or the top of a ranking. --sample: questions drawn of each task and
scenario.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track

from bench import report
from bench.rankings import SYSTEMS, ranked
from corpus.evaluate import rouge_1
from edgemem import kernels
from edgemem.config import load_settings
from edgemem.language import words
from edgemem.memory import Memory
from edgemem.pipeline.importers import batches, read_mem_gallery
from edgemem.pipeline.plan import SHOWN_SENTENCES, SHOWN_TURNS
from edgemem.pipeline.recall import recall
from edgemem.pipeline.told import compared
from edgemem.results import Evidence, Hit, Scope, utc_now
from edgemem.stages import generation

KS = (1, 5, 10, 20)
TURNS_PER_ROUND = 2  # turns requested per round wanted, so that enough rounds are found
WAYS = ("ours", "fifo", "full", "cosine", "bm25")
_NEARLY = 0.7  # chosen by F1 on this data; leaving out any one scenario gives the same
_CLAIM = re.compile(r"\A[^:]*\b(?:memory|history):\s*")  # the prefix of a CD statement
_NOT_MENTIONED = "Not mentioned."
_CHARS_PER_TOKEN = 4
_console = Console(stderr=True)


@dataclass(frozen=True)
class Question:
    """One question. caption: of its image, if it has one. wanted: the rounds that answer the
    question, empty if none does."""

    scenario: str
    task: str
    asked: str
    caption: str
    answer: str
    wanted: frozenset[str]
    with_image: bool

    @property
    def text(self) -> str:
        """What is searched for."""
        return f"{self.asked} {self.caption}".strip()


def questions(scenario: str, data: dict[str, Any], *, captions: bool) -> Iterator[Question]:
    known = {said["round"] for s in data["multi_session_dialogues"] for said in s["dialogues"]}
    for raw in data["human-annotated QAs"]:
        shown = raw.get("image_caption") or ()
        shown = [shown] if isinstance(shown, str) else shown
        yield Question(
            scenario,
            raw["point"],
            raw["question"],
            " ".join(shown if captions else ()),
            raw["answer"],
            frozenset(raw["clue"]) & known,
            bool(raw.get("question_image")),
        )


def rounds_of(memory: Memory, ids: Sequence[str]) -> list[str]:
    """The rounds of these memories, in order, without repeats."""
    items = memory.store.get(ids)
    return list(dict.fromkeys(items[id].metadata["round"] for id in ids))


def found(memory: Memory, question: Question) -> dict[str, Any]:
    """Recall, precision and hit of each ranking."""
    row = _row(question)
    for system, ids in ranked(
        memory, question.text, question.scenario, max(KS) * TURNS_PER_ROUND
    ).items():
        rounds = rounds_of(memory, ids)
        for k in KS:
            right = len(question.wanted & set(rounds[:k]))
            row[f"{system}_recall_at_{k}"] = right / len(question.wanted)
            row[f"{system}_precision_at_{k}"] = right / max(1, len(rounds[:k]))
            row[f"{system}_hit_at_{k}"] = float(right > 0)
    return row


def _row(question: Question) -> dict[str, Any]:
    image = "with image" if question.with_image else "without image"
    return {"scenario": question.scenario, "task": question.task, "image": image}


# -- answers ---------------------------------------------------------------------------------------


def answered(memory: Memory, question: Question, system: str) -> dict[str, Any]:
    """A row with the scores of one answer."""
    started = time.perf_counter()
    if question.task == "VS":
        text = photos(memory, question, system)
    else:
        claim = _CLAIM.sub("", question.text) if question.task == "CD" else None
        asked = question
        if claim is not None:
            asked = replace(question, asked=f"True or not: {claim}", caption="")
        text = said(memory, asked, system)
        if claim is not None:
            against = system == "ours" and memory.conflicts(claim, user_id=question.scenario)
            text = "Yes." if against or words(text)[:1] == ["no"] else "No."
    given, wanted = (
        _ids(t) if question.task == "VS" else words(t) for t in (text, question.answer)
    )
    return _row(question) | {
        "system": system,
        "question": question.text,
        "wanted": question.answer,
        "answer": text,
        "f1": rouge_1(" ".join(given), " ".join(wanted)),
        "bleu_1": _precision(given, wanted),
        "em": float(given == wanted),
        "refused": float(text == _NOT_MENTIONED),
        "seconds": time.perf_counter() - started,
    }


def said(memory: Memory, question: Question, system: str) -> str:
    """The model's answer from the evidence that a system shows it. Ours compares days as `Chat`."""
    find = partial(memory.search, user_id=question.scenario, top_k=16)
    if system == "ours" and (counted := compared(memory, find, question.asked, utc_now())):
        return counted[0].partition("\n\n")[0]
    shown = evidence(memory, question, system)
    if not shown:
        return _NOT_MENTIONED
    if question.caption:
        shown = [*shown, Evidence(f"I share a photo: {question.caption}", None, "User")]
    stream = generation.answer(
        memory.engine, question.asked, shown, speaker="User", embedder=memory.embedder
    )
    text = "".join(stream).strip()
    return _NOT_MENTIONED if text == generation.NOTHING_FOUND else text


def evidence(memory: Memory, question: Question, system: str) -> Sequence[Evidence]:
    """The evidence that a system shows for a question, the most relevant last."""
    if system in ("fifo", "full"):
        turns = memory.store.recent_turns(_scope(question), limit=10_000)
        turns, left = (turns[::-1] if system == "fifo" else turns), memory.engine.n_ctx
        shown = []
        for turn in turns:
            left -= len(turn.content) // _CHARS_PER_TOKEN + 12
            if left < generation.EXPERT_ANSWER_TOKENS:
                break
            shown.append(Evidence(turn.content, turn.timestamp, turn.role.capitalize()))
        return shown[::-1] if system == "fifo" else shown
    if system == "ours":
        hits: Sequence[Hit] = memory.search(question.text, user_id=question.scenario, top_k=16)
    else:
        ids = ranked(memory, question.text, question.scenario, 16)[system]
        hits = [Hit.of(item, 0.0) for item in memory.store.get(ids).values()]
    expert = memory.engine.expert("generation")
    most = SHOWN_TURNS if expert else SHOWN_SENTENCES
    return recall(memory, question.text, hits, most=most, whole=expert, ended=expert)


def photos(memory: Memory, question: Question, system: str) -> str:
    """The ids of the photos that a system finds, in the format of task VS."""
    if system in ("fifo", "full"):
        return _NOT_MENTIONED  # the model would have to write ids that it cannot distinguish
    top_k = max(KS) * TURNS_PER_ROUND
    if system == "ours":
        hits = memory.search(question.text, user_id=question.scenario, top_k=top_k)
        shared = [(hit.score, image) for hit in hits for image in hit.metadata.get("images", ())]
        images = [image for _, image in shared[: nearly_best([score for score, _ in shared])]]
    else:
        ids = ranked(memory, question.text, question.scenario, top_k)[system]
        images = [
            i for item in memory.store.get(ids).values() for i in item.metadata.get("images", ())
        ]
        images = images[:1]  # its scores do not tell how many photos to give
    return ", ".join(sorted(images)) or _NOT_MENTIONED


def nearly_best(scores: Sequence[float]) -> int:
    """How many scores are at least `_NEARLY` times the first one, which is the best."""
    return sum(score >= _NEARLY * scores[0] for score in scores)


def _ids(text: str) -> list[str]:
    return [part.strip(" .").lower().replace(":", "") for part in text.split(",")]


def _precision(given: Sequence[str], wanted: Sequence[str]) -> float:
    left, right = list(wanted), 0
    for word in given:
        if word in left:
            left.remove(word)
            right += 1
    return right / len(given) if given else float(not wanted)


def _scope(question: Question) -> Scope:
    return Scope(user_id=question.scenario)


def summarised(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The means over answers, CD's balanced accuracy and the over-refusal rate."""
    out = {"n": len(rows), **{k: _mean([r[k] for r in rows]) for k in ("f1", "bleu_1", "em")}}
    cd: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        if row["task"] == "CD":
            cd[row["wanted"]].append(row["em"])
    if len(cd) == 2:
        out["balanced_accuracy"] = _mean([sum(v) / len(v) for v in cd.values()])
    told = [row["refused"] for row in rows if row["task"] not in ("AR", "CD")]
    if told:
        out["over_refusal"] = _mean(told)
    return out | {"seconds_p50": round(report.percentile([r["seconds"] for r in rows], 50), 2)}


def _mean(values: Sequence[float]) -> float:
    return round(sum(values) / len(values), 4)


def means(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The mean of every search measure."""
    names = [f"{s}_{m}_at_{k}" for s in SYSTEMS for m in ("recall", "precision", "hit") for k in KS]
    return {"n": len(rows), **{name: _mean([row[name] for row in rows]) for name in names}}


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.mem_gallery", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--data", type=Path, required=True, help="folder of Mem-Gallery files")
    parser.add_argument("--json", type=Path, required=True, help="file to write")
    parser.add_argument("--captions", choices=["paper", "none"], default="paper")
    parser.add_argument(
        "--retrieval", choices=["fast", "careful"], help="default: setting `retrieval`"
    )
    parser.add_argument("--scenarios", type=int, help="the first N files (default: all)")
    parser.add_argument("--model", help="answers: a name of the manifest, or a GGUF")
    parser.add_argument("--experts", help="of the model (default: setting `experts`)")
    parser.add_argument("--systems", nargs="+", choices=WAYS, default=["ours"])
    parser.add_argument("--sample", type=int, help="questions of each task and scenario answered")
    options = parser.parse_args(argv)
    files = sorted(options.data.glob("*.json"))[: options.scenarios]
    if not files:
        parser.error(f"{options.data} holds no Mem-Gallery JSON files; give the folder that does")
    settings = load_settings()
    given = {key: getattr(options, key) for key in ("retrieval", "model", "experts")}
    settings = replace(settings, **{key: value for key, value in given.items() if value})
    captions = options.captions == "paper"
    searched: list[dict[str, Any]] = []
    answers: list[dict[str, Any]] = []
    left_out = 0
    with Memory(":memory:", settings=settings) as memory:
        if options.model:
            memory.engine  # noqa: B018  # loads it now, so that a wrong name ends this at once
        for file in track(files, "asking questions", console=_console):
            for batch in batches(read_mem_gallery(file, captions=captions), infer=False):
                memory.add(batch, user_id=file.stem, infer=False)
            data = json.loads(file.read_text(encoding="utf-8"))
            asked = list(questions(file.stem, data, captions=captions))
            searched += [found(memory, question) for question in asked if question.wanted]
            left_out += sum(not question.wanted for question in asked)
            if options.model:
                answers += [
                    answered(memory, question, system)
                    for question in drawn(asked, options.sample)
                    for system in options.systems
                ]
        summary: dict[str, Any] = {
            "retrieval": "fast" if memory.token_embedder is None else "careful",
            "captions": options.captions,
            "scenarios": len(files),
            **means(searched),
            "left_out": left_out,
            "backend": kernels.backend,
        }
    rows: list[dict[str, Any]] = []
    for key in ("scenario", "task", "image"):
        rows += [{key: name, **means(some)} for name, some in _grouped(searched, key)]
    for system, of_system in _grouped(answers, "system"):
        summary |= {f"{system}_{key}": v for key, v in summarised(of_system).items()}
        for key in ("task", "image"):
            for name, some in _grouped(of_system, key):
                rows.append({"system": system, key: name, **summarised(some)})
    summary["peak_rss_mb"] = report.peak_rss_mb()
    report.write(options.json, summary, rows + answers)


def drawn(asked: Sequence[Question], most: int | None) -> list[Question]:
    """At most `most` questions of each task, the same ones in every run."""
    chance = random.Random(0)
    by_task: dict[str, list[Question]] = defaultdict(list)
    for question in asked:
        by_task[question.task].append(question)
    return [
        question
        for some in by_task.values()
        for question in chance.sample(some, min(len(some), most or len(some)))
    ]


def _grouped(rows: Sequence[dict[str, Any]], key: str) -> list[tuple[str, list[dict[str, Any]]]]:
    groups: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        groups[row[key]].append(row)
    return sorted(groups.items())


if __name__ == "__main__":
    main()
