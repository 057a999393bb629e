"""Days are those of this machine's time zone, whatever lies in the store is UTC."""

import json
import os
import time
from datetime import datetime
from types import SimpleNamespace
from zoneinfo import ZoneInfo

import pytest
from clikit import invoke

from edgemem import Memory
from edgemem.pipeline import graph as reader
from edgemem.pipeline.image_memories import described
from edgemem.pipeline.importers import read_mem_gallery
from edgemem.pipeline.recall import asked_at
from edgemem.results import Evidence, Message, at_day, local_time
from edgemem.retrieval.lexical import query_terms, search_text
from edgemem.stages import evidence, extraction, generation
from edgemem.store import NewRelation

pytestmark = pytest.mark.skipif(not hasattr(time, "tzset"), reason="the zone cannot be set here")

LATE = "2026-11-26T03:30:00.000+00:00"  # the evening of the 25th in Los Angeles
ANGELES, AUCKLAND = "America/Los_Angeles", "Pacific/Auckland"


@pytest.fixture(params=[ANGELES, AUCKLAND])
def zone(request, monkeypatch):
    monkeypatch.setenv("TZ", request.param)
    time.tzset()
    yield request.param
    os.environ["TZ"] = "UTC"
    time.tzset()


def day(zone, west, east):
    return west if zone == ANGELES else east


def test_a_turn_is_shown_with_the_day_on_which_it_was_said(zone):
    said = Evidence("I moved yesterday.", LATE, "User")
    wanted = day(zone, ("25", "24"), ("26", "25"))
    assert evidence.line(said) == (
        f'On {wanted[0]} November 2026, User said: "I moved on {wanted[1]} November 2026."'
    )
    assert evidence.day_of(said) == f"{wanted[0]} November 2026"
    assert f"On {wanted[0]} November 2026, User asks" in generation.expert_prompt(
        "when?", [], "User", asked_at=LATE
    )
    assert wanted[1] in extraction.line(Message("user", "I moved yesterday.", LATE))


def test_a_fact_begins_at_the_midnight_of_its_day_here(zone):
    text = "User moved yesterday."
    fact = extraction._dated(text, text, 0, LATE)
    begins = day(zone, "2026-11-24T08:00", "2026-11-24T11:00")
    assert fact.valid_from.startswith(begins)
    assert evidence.day_of(Evidence(fact.text, fact.valid_from)) in fact.text


def test_what_is_indexed_and_asked_has_the_same_day(zone):
    number = day(zone, "25", "26")
    indexed = search_text("I moved.", when=LATE)
    assert indexed.endswith(f"\n{number} November 2026")
    now = 1795663800.0  # LATE
    assert number in query_terms("What did I do today?", now)


def test_a_question_about_a_day_means_it_here(zone):
    at = asked_at("Where did I live on 3 March?", LATE)
    assert at is not None and local_time(at).startswith("2026-03-03T12:00")


def test_a_relation_holds_since_a_day_of_here(zone, monkeypatch):
    from edgemem.results import Entity

    triple = NewRelation(Entity("User", "person"), "lives_in", Entity("Oslo", "place"))
    monkeypatch.setattr(reader, "triples", lambda *_: [triple])
    (found,) = reader.relations(object(), "User has lived in Oslo for two days.", LATE)
    assert found.valid_from == at_day(day(zone, "2026-11-23", "2026-11-24"))


def test_a_photo_taken_on_the_day_of_its_message_has_no_day_of_its_own(zone):
    same = day(zone, "2026-11-25T09:00:00.000+00:00", "2026-11-25T12:00:00.000+00:00")
    picture = SimpleNamespace(taken_at=same, caption=None, ocr_text=None)
    assert described(picture, LATE) == "Photo"


def test_a_mem_gallery_session_is_of_the_day_that_its_file_names(zone, tmp_path):
    rounds = [{"round": "D1:1", "user": "Look!", "assistant": "A fine sloop."}]
    session = {"session_id": "D1", "date": "2024-06-24", "dialogues": rounds}
    file = tmp_path / "boats.json"
    file.write_text(json.dumps({"multi_session_dialogues": [session]}))
    assert [message["timestamp"] for message in read_mem_gallery(file)] == [
        "2024-06-24T12:00:00.000+00:00",
        "2024-06-24T12:00:05.000+00:00",
    ]


def test_the_command_line_prints_the_time_of_here(zone, tmp_path):
    file = str(tmp_path / "a.db")
    with Memory(file) as memory:
        (moved,) = memory.add("I moved.", user_id="default", infer=False, timestamp=LATE)
        (row,) = memory.history(moved.id)
    assert day(zone, "2026-11-25 19:30", "2026-11-26 16:30") in invoke("list", "--db", file).output
    stored = datetime.fromisoformat(row["created_at"]).astimezone(ZoneInfo(zone))
    told = invoke("history", moved.id, "--db", file).output
    assert told.startswith(f"{stored:%Y-%m-%d %H:%M}\tADD\t")


@pytest.mark.parametrize("edge", ["0001-01-01T00:00:00.000+00:00", "9999-12-31T23:59:59.000+00:00"])
def test_the_first_and_the_last_day_do_not_raise(zone, edge):
    assert local_time(edge) and at_day(edge[:10])
    evidence.line(Evidence("I moved yesterday, and move tomorrow.", edge, "User"))
