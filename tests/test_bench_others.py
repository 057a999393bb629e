"""bench.longmemeval and bench.mem_gallery: which evidence counts as found, of invented files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from memorykit import quick

from bench import longmemeval, mem_gallery

CAT = "I adopted a grey cat called Biscuit."
VASE = "Biscuit broke the blue vase on Monday."


def said(content: str, **more: Any) -> dict[str, Any]:
    return {"role": "user", "content": content, **more}


@pytest.fixture
def asked(tmp_path: Path) -> longmemeval.Asked:
    file = tmp_path / "q.json"
    data = {
        "question_id": "q1",
        "question_type": "multi-session",
        "question": "What did my grey cat Biscuit break?",
        "question_date": "2023/05/31 (Wed) 07:54",
        "answer": "the blue vase",
        "answer_session_ids": ["a", "b"],
        "haystack_session_ids": ["x", "a", "y", "b"],
        "haystack_dates": [f"2023/05/0{day} (Mon) 08:30" for day in range(1, 5)],
        "haystack_sessions": [
            [said("The train was late.")],
            [said("Hello."), said(CAT, has_answer=True)],
            [said("I bake bread."), said("   ")],
            [said(VASE, has_answer=True)],
        ],
    }
    file.write_text(json.dumps(data), encoding="utf-8")
    return longmemeval.read(file)


def test_a_questions_evidence_is_its_sessions_and_their_messages(asked):
    assert asked.now == "2023-05-31T07:54:00+00:00" and asked.answerable
    assert asked.evidence == {1, 3} and asked.messages == {(1, 1), (3, 0)}


def test_strict_counts_a_question_only_when_all_its_sessions_are_found(asked, monkeypatch):
    with quick() as memory:
        longmemeval.store(memory, asked)
        assert memory.store.counts()["turns"] == 5  # what is empty is no message
        row = longmemeval.search_row(memory, asked)
        assert row["search_all_at_5"] == row["search_turns_at_10"] == 1
        (cat,) = (item.id for item in memory.get_all() if item.memory == CAT)
        monkeypatch.setattr(longmemeval, "ranked", lambda *_: {"search": [cat]})
        row = longmemeval.search_row(memory, asked)
    assert (row["search_all_at_5"], row["search_any_at_5"]) == (0, 1)
    assert (row["search_turns_at_10"], row["search_turn_hit_at_10"]) == (0, 1)


def test_a_round_is_found_by_the_caption_of_its_image_and_of_the_questions():
    rounds = [
        {"round": "D1:1", "user": "Look at this.", "assistant": "Nice!"},
        {"round": "D1:2", "user": "And this.", "assistant": "Oh!", "image_caption": ["a red kite"]},
    ]
    data = {
        "multi_session_dialogues": [{"date": "2024-06-17", "dialogues": rounds}],
        "human-annotated QAs": [
            {"point": "VS", "question": "Which?", "clue": ["D1:2"], "image_caption": ["red kite"]},
            {"point": "AR", "question": "Did it rain?", "clue": []},
        ],
    }
    with quick() as memory:
        mem_gallery.store(memory, "ana", data)
        rows, left_out = mem_gallery.ask(memory, "ana", data)
    assert left_out == 1 and [row["kind"] for row in rows] == ["VS"]
    for system in ("search", "cosine", "bm25"):
        assert rows[0][f"{system}_recall_at_1"] == 1
    assert mem_gallery.means(rows)["n"] == 1
