"""bench.align: what counts as found, and in which space each row's vectors are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from locomokit import turn, write_locomo
from memorykit import BagOfWords

from bench import align
from edgemem.pipeline import upkeep
from edgemem.pipeline.importers import read_locomo
from edgemem.retrieval.lexical import search_text

DIM = 16
WORDS = "oslo cat violin tea harbour bakery sister train garden guitar soup winter".split()


def a_lot(count: int) -> list[str]:
    pairs = np.random.default_rng(1).choice(WORDS, (count, 3, 2))
    return [" ".join(map("".join, some)) for some in pairs]


def test_rows_are_what_their_names_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The two models differ by a rotation: mapped vectors find as much as native ones."""
    monkeypatch.setattr(upkeep, "PAIRS", 40)
    file = read_locomo(write_locomo(tmp_path))
    for number, text in enumerate(a_lot(80), 10):
        message = file.messages[0]
        metadata = {**message["metadata"], **turn(number, "Nia", text)}
        file.messages.append({**message, "content": text, "metadata": metadata})
        qa = {"question": text, "evidence": [f"D1:{number}"], "category": 4}
        file.qa.append(qa)
    del file.qa[:-80]
    pairs = a_lot(60)
    texts = [search_text(m["content"], speaker=m["name"]) for m in file.messages]
    texts = list(dict.fromkeys([*texts, *(q["question"] for q in file.qa), *pairs]))
    new = align.kept(BagOfWords(DIM, "bag@1"), texts, tmp_path / "kept")
    assert align.kept(BagOfWords(DIM, "bag@1"), texts, tmp_path / "kept").dim == DIM
    old = new.turned()
    assert old.model_id != new.model_id
    rows = {row["way"]: row for row in align.compare(old, new, [file], pairs)}
    assert rows["aligned"]["embedded"] == 40 and rows["aligned"]["mapped"] == 45
    for way in ("aligned", "aligned half", "by pairs", "ridge", "ridge half"):
        assert rows[way]["cosine_hit_at_10"] == rows["native"]["cosine_hit_at_10"] > 0.9, way
    assert rows["unaligned"]["cosine_hit_at_10"] < 0.5


def test_what_is_kept_is_not_embedded_again(tmp_path: Path) -> None:
    first, again = BagOfWords(DIM), BagOfWords(DIM)
    held = align.kept(first, ["one", "two"], tmp_path)  # type: ignore[arg-type]
    same = align.kept(again, ["two"], tmp_path)  # type: ignore[arg-type]
    assert np.array_equal(same.embed_query("two"), held.embed_query("two"))
    again.embed_query = None  # type: ignore[method-assign,assignment]
    align.kept(again, ["one"], tmp_path)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        align.kept(again, ["three"], tmp_path)  # type: ignore[arg-type]


def test_pairs_are_never_of_held_out_conversations(tmp_path: Path) -> None:
    talk = "# Ana (she), Bo (he)\n@ 2024-03-09 18:20\nAna: {} one\n? Which? | one\nBo: {} two\n"
    (tmp_path / "written.txt").write_text(talk.format("shown", "shown"))
    (tmp_path / "held-out.txt").write_text(talk.format("hidden", "hidden"))
    assert sorted(align.messages(tmp_path, 9)) == ["Ana: shown one", "Bo: shown two"]
    assert len(align.messages(tmp_path, 1)) == 1
