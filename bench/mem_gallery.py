"""How often does a search find the rounds that answer a question of Mem-Gallery? No pixels.

    python -m bench.mem_gallery --data DIR --json OUT [--retrieval fast|careful]

DIR: a JSON file for each scenario. A round of its dialogue, both sides and the captions of its
images, is a memory; a scenario is a user. A question is asked with the caption of its image, if it
has one, through `Memory.search`, and beside it MiniLM's cosine and BM25 rank the same memories.
Recall@k: the share of a question's rounds that are among the first k. By kind of question (the
paper's). Questions without evidence, which the dialogue does not answer, are left out and counted.
Nothing of edgemem was fitted on this data.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track

from bench import report
from bench.rankings import SYSTEMS, ranked
from edgemem import kernels
from edgemem.config import load_settings
from edgemem.memory import Memory

KS = (1, 5, 10, 20)
_console = Console(stderr=True)


def store(memory: Memory, scenario: str, data: dict[str, Any]) -> None:
    """Store each round as one memory."""
    for session in data["multi_session_dialogues"]:
        for said in session["dialogues"]:
            lines = [f"User: {said['user']}", f"Assistant: {said['assistant']}"]
            lines += [f"[image: {caption}]" for caption in said.get("image_caption", ())]
            memory.add(
                "\n".join(lines),
                user_id=scenario,
                timestamp=f"{session['date']}T12:00:00+00:00",
                metadata={"round": said["round"]},
                infer=False,
            )


def ask(memory: Memory, scenario: str, data: dict[str, Any]) -> tuple[list[dict[str, Any]], int]:
    """One row for each question with evidence, and how many have none."""
    rows, left_out = [], 0
    known = {said["round"] for s in data["multi_session_dialogues"] for said in s["dialogues"]}
    for question in data["human-annotated QAs"]:
        wanted = set(question["clue"]) & known
        if not wanted:
            left_out += 1
            continue
        captions = question.get("image_caption") or ()
        captions = [captions] if isinstance(captions, str) else captions
        text = " ".join([question["question"], *captions])
        row: dict[str, Any] = {"scenario": scenario, "kind": question["point"]}
        for system, ids in ranked(memory, text, scenario, max(KS)).items():
            items = memory.store.get(ids)
            rounds = [items[id].metadata["round"] for id in ids]
            for k in KS:
                row[f"{system}_recall_at_{k}"] = len(wanted & set(rounds[:k])) / len(wanted)
        rows.append(row)
    return rows, left_out


def means(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The mean of every measure."""
    names = [f"{system}_recall_at_{k}" for system in SYSTEMS for k in KS]
    return {
        "n": len(rows),
        **{name: round(sum(row[name] for row in rows) / len(rows), 4) for name in names},
    }


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.mem_gallery", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--data", type=Path, required=True, help="folder of Mem-Gallery files")
    parser.add_argument("--json", type=Path, required=True, help="file to write")
    parser.add_argument(
        "--retrieval", choices=["fast", "careful"], help="default: setting `retrieval`"
    )
    options = parser.parse_args(argv)
    files = sorted(options.data.glob("*.json"))
    if not files:
        parser.error(f"{options.data} holds no Mem-Gallery JSON files; give the folder that does")
    rows, left_out = [], 0
    settings = load_settings()
    settings = replace(settings, retrieval=options.retrieval or settings.retrieval)
    with Memory(":memory:", settings=settings) as memory:
        careful = memory.token_embedder is not None
        for file in track(files, "asking questions", console=_console):
            data = json.loads(file.read_text(encoding="utf-8"))
            store(memory, file.stem, data)
            more, without = ask(memory, file.stem, data)
            rows += more
            left_out += without
    summary: dict[str, Any] = {
        "retrieval": "careful" if careful else "fast",
        **means(rows),
        "left_out": left_out,
        "backend": kernels.backend,
    }
    groups: dict[str, dict[str, list[dict[str, Any]]]] = {"scenario": {}, "kind": {}}
    for row in rows:
        for key, group in groups.items():
            group.setdefault(row[key], []).append(row)
    by_group = [
        {key: name, **means(some)} for key, group in groups.items() for name, some in group.items()
    ]
    summary["peak_rss_mb"] = report.peak_rss_mb()
    report.write(options.json, summary, by_group)


if __name__ == "__main__":
    main()
