"""How often does a search find all evidence of a LongMemEval-S question? No language model.

    python -m bench.longmemeval --data DIR --json OUT [--questions N] [--retrieval fast|careful]
    python -m bench.longmemeval --data DIR --json OUT --answer [--model NAME] [--experts NAME]

DIR has a JSON file for each question, with 40 to 58 sessions between a user and an assistant. Each
question has its own store, into which every message goes as it is (`infer=False`). The question is
then asked through `Memory.search`; MiniLM's cosine and BM25 rank the same memories for comparison.
A session is ranked by its best message. `all@k` (strict): all evidence sessions are among the first
k; `any@k`: at least one is. `turns@10`: all messages that hold the answer are among the first ten;
`turn_hit@10`: at least one is. Figures are by question type. Questions that the sessions do not
answer have no evidence to find and are counted separately. Nothing in edgemem was fitted on this
data.

--answer asks `Chat` too. By question type: token F1 of the answer without the quotation below it,
and whether the reply has all words of the answer. Of the questions without an answer: how many
`Chat` refuses.
"""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench import report
from bench.rankings import SYSTEMS, ranked
from corpus.evaluate import token_f1
from edgemem import kernels
from edgemem.chat import Chat
from edgemem.config import Settings, load_settings
from edgemem.language import words
from edgemem.memory import Memory
from edgemem.runtime import experts
from edgemem.runtime.embedder import Embedder, TokenEmbedder
from edgemem.runtime.engine import Engine
from edgemem.stages.generation import NOTHING_FOUND

KS = (5, 10)
TOP = 200  # memories, so that ten sessions are among them
USER = "user"


@dataclass(frozen=True)
class Asked:
    """A question and its haystack.

    sessions: (time, messages) of each session. evidence: the numbers of the sessions that answer
    the question. messages: the messages that answer it, as (session, place) pairs.
    """

    id: str
    kind: str
    text: str
    answer: str
    now: str
    sessions: tuple[tuple[str, tuple[dict[str, Any], ...]], ...]
    evidence: frozenset[int]
    messages: frozenset[tuple[int, int]]

    @property
    def answerable(self) -> bool:
        return not self.id.endswith("_abs")


def read(file: Path) -> Asked:
    """Read a question from its file."""
    data = json.loads(file.read_text(encoding="utf-8"))
    told = set(data["answer_session_ids"])
    sessions = tuple(
        (_time(when), tuple(said))
        for when, said in zip(data["haystack_dates"], data["haystack_sessions"], strict=True)
    )
    ids = data["haystack_session_ids"]
    return Asked(
        data["question_id"],
        data["question_type"],
        data["question"],
        str(data["answer"]),
        _time(data["question_date"]),
        sessions,
        frozenset(i for i, id in enumerate(ids) if id in told),
        frozenset(
            (i, j)
            for i, (_, said) in enumerate(sessions)
            for j, message in enumerate(said)
            if message.get("has_answer")
        ),
    )


def _time(written: str) -> str:
    """A time such as "2023/05/31 (Wed) 07:54" as ISO-8601 in UTC."""
    day, _, clock = written.split()
    return datetime.strptime(f"{day} {clock}", "%Y/%m/%d %H:%M").replace(tzinfo=UTC).isoformat()


def store(memory: Memory, asked: Asked) -> float:
    """Store all messages; returns the seconds taken."""
    started = time.perf_counter()
    for i, (when, said) in enumerate(asked.sessions):
        messages = [
            {
                "role": message["role"],
                "content": message["content"],
                "metadata": {"session": i, "place": j},
            }
            for j, message in enumerate(said)
            if message["content"].strip()
        ]
        if messages:
            memory.add(messages, user_id=USER, timestamp=when, infer=False)
    return time.perf_counter() - started


def search_row(memory: Memory, asked: Asked) -> dict[str, Any]:
    """Which evidence of a question each system finds."""
    row: dict[str, Any] = {}
    for system, ids in ranked(memory, asked.text, USER, TOP).items():
        items = memory.store.get(ids)
        places = [(m["session"], m["place"]) for m in (items[id].metadata for id in ids)]
        sessions = list(dict.fromkeys(session for session, _ in places))
        for k in KS:
            found = asked.evidence & set(sessions[:k])
            row[f"{system}_all_at_{k}"] = int(found == asked.evidence)
            row[f"{system}_any_at_{k}"] = int(bool(found))
        if asked.messages:
            found_messages = asked.messages & set(places[:10])
            row[f"{system}_turns_at_10"] = int(found_messages == asked.messages)
            row[f"{system}_turn_hit_at_10"] = int(bool(found_messages))
    return row


def answer_row(memory: Memory, asked: Asked) -> dict[str, Any]:
    """The answer of `Chat` to a question, and its scores."""
    started = time.perf_counter()
    reply = Chat(memory, user_id=USER).send(asked.text, timestamp=asked.now, remember=False)
    text = "".join(reply)
    row = {"answer": text, "answer_s": round(time.perf_counter() - started, 2)}
    short = text.partition("\n\n")[0]  # without the quotation below it
    refused = {"refused": int(short == NOTHING_FOUND)}
    if not asked.answerable:
        return row | refused
    wanted, said = set(words(asked.answer)), set(words(text))
    f1 = round(token_f1(short, asked.answer), 4)
    return row | {"f1": f1, "contains": int(wanted <= said)} | refused


def run(
    files: Sequence[Path], settings: Settings, *, answer: bool
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Summary, and one row for each question."""
    rows = []
    with ExitStack() as stack:
        embedder = Embedder.load(settings.embedder, n_threads=settings.n_threads)
        tokens = TokenEmbedder.load() if settings.retrieval == "careful" else None
        engine = None
        if answer:
            engine = stack.enter_context(Engine.load(settings.model, n_ctx=settings.n_ctx))
            experts.load_chosen(engine, settings.experts)
        for file in report.track(files, "asking questions"):
            asked = read(file)
            models = {"engine": engine, "embedder": embedder, "token_embedder": tokens}
            with Memory(":memory:", **models, settings=settings) as memory:
                seconds = store(memory, asked)
                row: dict[str, Any] = {"id": asked.id, "type": asked.kind}
                row |= {"messages": memory.store.counts()["turns"], "store_s": round(seconds, 2)}
                if asked.answerable:
                    row |= search_row(memory, asked)
                if answer:
                    row |= answer_row(memory, asked)
            rows.append(row)
    answerable = [row for row in rows if "search_all_at_5" in row]
    summary: dict[str, Any] = {
        "retrieval": settings.retrieval,
        **_means(answerable),
        "questions": len(rows),
        "answerable": len(answerable),
        "messages_per_s": round(sum(r["messages"] for r in rows) / sum(r["store_s"] for r in rows)),
        "peak_rss_mb": report.peak_rss_mb(),
        "backend": kernels.backend,
    }
    by_type: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in answerable:
        by_type[row["type"]].append(row)
    summary["by_type"] = {kind: _means(some) for kind, some in sorted(by_type.items())}
    unanswerable = [row["refused"] for row in rows if "refused" in row and "f1" not in row]
    if unanswerable:
        summary["refused_unanswerable"] = f"{sum(unanswerable)} of {len(unanswerable)}"
    return summary, rows


def _means(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The mean of every measure over the rows that have it."""
    names = [f"{s}_{m}_at_{k}" for s in SYSTEMS for m in ("all", "any") for k in KS]
    names += [f"{s}_{m}_at_10" for s in SYSTEMS for m in ("turns", "turn_hit")]
    names += ["f1", "contains", "refused"]
    means: dict[str, Any] = {"n": len(rows)}
    for name in names:
        values = [row[name] for row in rows if name in row]
        if values:
            means[name] = round(sum(values) / len(values), 4)
    return means


def main(argv: Sequence[str] | None = None) -> None:
    parser = report.parser("longmemeval", __doc__, data="LongMemEval-S")
    parser.add_argument("--questions", type=int, help="the first ones only")
    parser.add_argument("--answer", action="store_true", help="ask the language model, too")
    parser.add_argument("--model", help="name or file (default: setting `model`)")
    parser.add_argument("--experts", help="set of experts (default: setting `experts`)")
    parser.add_argument(
        "--retrieval", choices=["fast", "careful"], help="default: setting `retrieval`"
    )
    options = parser.parse_args(argv)
    given = {name: getattr(options, name) for name in ("model", "experts", "retrieval")}
    settings = replace(load_settings(), **{k: v for k, v in given.items() if v is not None})
    summary, rows = run(options.data[: options.questions], settings, answer=options.answer)
    report.write(options.json, summary, rows)


if __name__ == "__main__":
    main()
