"""The server's memory routes in mem0's shapes, and llama-server's /lora-adapters."""

from pathlib import Path
from typing import Any

import pytest
from fake_engine import FakeEngine
from memorykit import quick, texts
from serverkit import HI, running

from edgemem.errors import StoreFull, StoreLocked
from edgemem.runtime.experts import Adapter

CAT = "My cat is called Tom."


@pytest.fixture
def memory():
    with quick(engine=FakeEngine(facts={CAT: "{}'s cat is called Tom"})) as opened:
        yield opened


def added(server, text="I live in Oslo.", user="ana"):
    body = {"messages": text, "user_id": user, "infer": False}
    return str(server.ok("POST", "/memories", body)["results"][0]["id"])


def test_adding_infers_unless_told_not_to(server):
    said = {"messages": [{"role": "user", "content": CAT}], "user_id": "ana"}
    rows = server.ok("POST", "/memories", said)["results"]
    assert [(row["event"], row["kind"]) for row in rows] == [("ADD", "turn"), ("ADD", "fact")]
    body = {"messages": CAT, "agent_id": "bot", "infer": False, "metadata": {"a": 1}}
    (only,) = server.ok("POST", "/memories", body)["results"]
    assert only["kind"] == "turn" and only["metadata"] == {"a": 1}


def test_a_memory_is_got_changed_deleted_and_its_history_told(server):
    id = added(server)
    assert server.ok("GET", f"/memories/{id}")["memory"] == "I live in Oslo."
    changed = {"text": "I live in Bergen.", "metadata": {"sure": True}}
    assert "message" in server.ok("PUT", f"/memories/{id}", changed)
    assert server.ok("GET", f"/memories/{id}")["metadata"] == {"sure": True}
    assert server.ok("DELETE", f"/memories/{id}") == {"message": "Memory deleted successfully"}
    assert server.call("GET", f"/memories/{id}")[0] == 404
    events = [row["event"] for row in server.ok("GET", f"/memories/{id}/history")]
    assert events == ["ADD", "UPDATE", "DELETE"]


def test_lists_searches_and_deletes_keep_to_their_scope(server, memory):
    added(server), added(server, "I like green tea."), added(server, "I live in Porto.", "ben")
    listed = server.ok("GET", "/memories?user_id=ana")["results"]
    assert [row["memory"] for row in listed] == ["I live in Oslo.", "I like green tea."]
    assert len(server.ok("GET", "/memories?user_id=ana&top_k=1")["results"]) == 1
    query = {"query": "Where do I live?", "user_id": "ana", "limit": 1, "explain": True}
    (found,) = server.ok("POST", "/search", query)["results"]
    assert found["memory"] == "I live in Oslo."
    assert sum(found["parts"].values()) == pytest.approx(found["score"])
    assert server.ok("POST", "/search", {**query, "threshold": 1})["results"] == []
    by_filter = {"query": "live", "filters": {"user_id": "ben"}}
    assert [row["user_id"] for row in server.ok("POST", "/search", by_filter)["results"]] == ["ben"]
    server.ok("DELETE", "/memories?user_id=ana")
    assert texts(memory.get_all()) == ["I live in Porto."]


NO_ID, NO_OWNER = "there is no memory with the id 'none'", "at least one of user_id"


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "message"),
    [
        ("GET", "/memories/none", None, 404, NO_ID),
        ("PUT", "/memories/none", {"text": "x"}, 404, NO_ID),
        ("DELETE", "/memories/none", None, 404, NO_ID),
        ("GET", "/memories/none/history", None, 404, NO_ID),
        ("GET", "/memories", None, 400, NO_OWNER),
        ("DELETE", "/memories", None, 400, NO_OWNER),
        ("DELETE", "/memories?user_id=a&agent=x", None, 400, "give user_id, agent_id, run"),
        ("POST", "/search", {"query": "x"}, 400, NO_OWNER),
        ("GET", "/memories?user_id=a&top_k=all", None, 400, "must be a whole number"),
        ("GET", "/memories?user_id=a&top_k=-1", None, 400, "top_k is -1"),
        ("POST", "/memories", {"messages": "x"}, 400, NO_OWNER),
        ("POST", "/memories", {"user_id": 5, "messages": "x"}, 400, "is 5; it must be text"),
        ("POST", "/search", {"query": "", "user_id": "a"}, 400, "the query is empty"),
        ("POST", "/search", {"query": "x", "user_id": "a", "filters": {"x": {"near": 1}}}, 400,
         "near"),
        *(
            ("POST", "/memories", {"user_id": "a", **body}, 400, message)
            for body, message in (
                ({}, "messages is missing"),
                ({"messages": 5}, "messages must be a string"),
                ({"messages": [{"content": 1}]}, "must be a string"),
                ({"messages": "x", "infer": "no"}, "true or false"),
                ({"messages": "x", "metadata": []}, "an object"),
                ({"messages": "\ud800"}, "surrogate"),
            )
        ),
        *(
            ("GET", f"/inspect/memories?{query}", None, 400, message)
            for query, message in (
                ("limit=0", "limit is 0; give 1 to 200"),
                ("limit=201", "limit is 201; give 1 to 200"),
                ("limit=x", "limit is 'x'; it must be a whole number"),
                ("after=2025+-1", "the row of after is -1; give 0 or more"),
                (f"after=2025+{2**63}", "give 0 or more"),
                ("after=2025+x", "whole number"),
                ("state=dead", "give one of live, past, deleted, all"),
                ("kind=lie", "give one of fact, turn, summary, image"),
            )
        ),
        ("POST", "/inspect/erase", {"ids": []}, 400, "ids is empty"),
        ("POST", "/inspect/erase", {}, 400, "ids is None; it must be a text or a list of texts"),
        ("POST", "/inspect/erase/preview", {"ids": [1]}, 400, "must be a text or a list of texts"),
    ],
)  # fmt: skip
def test_what_cannot_be_asked_is_told_in_our_words(unchanged, method, path, body, status, message):
    found, _, told = unchanged.call(method, path, body)
    assert found == status and message in told["detail"]


def test_reset_is_off_unless_it_was_allowed(server, memory):
    added(server)
    status, _, told = server.call("POST", "/reset")
    assert status == 403 and "--allow-reset" in told["detail"]
    assert len(memory.get_all()) == 1
    gone: list[Any] = []  # what copies elsewhere are told to drop
    with running(memory, allow_reset=True, on_erase=gone.append) as other:
        other.ok("POST", "/reset")
    assert len(memory.get_all()) == 0 and gone == [None]


@pytest.mark.parametrize(
    ("error", "status", "header"),
    [(StoreLocked("busy"), 503, "5"), (StoreFull("no room"), 507, None)],
)
def test_a_store_that_cannot_write_is_told_apart_from_a_bad_request(
    server, memory, monkeypatch,
    error, status, header,
):  # fmt: skip
    def fail(*_args, **_more):
        raise error

    monkeypatch.setattr(memory, "add", fail)
    body = {"messages": "x", "user_id": "a", "infer": False}
    found, headers, told = server.call("POST", "/memories", body)
    assert (found, headers.get("retry-after"), told) == (status, header, {"detail": str(error)})


# -- adapters ------------------------------------------------------------------------------------


class WithAdapters(FakeEngine):
    """Two adapters, loaded; bound: what was bound last."""

    bound: tuple[str, dict[str, float]] | None = None

    def adapters(self):
        return tuple(Adapter(n, Path(f"{n}.gguf"), 10, "0") for n in ("first", "second"))

    def bind(self, stage, scales):
        self.bound = stage, scales


def test_adapters_are_listed_and_scaled_as_llama_server_does():
    engine = WithAdapters()
    with quick(engine=engine) as memory, running(memory) as server:
        rows = server.ok("GET", "/lora-adapters")
        assert [(row["id"], row["path"], row["scale"]) for row in rows] == [
            (0, "first.gguf", 0.0),
            (1, "second.gguf", 0.0),
        ]
        told = server.ok("POST", "/lora-adapters", [{"id": 1, "scale": 0.5}])
        assert told == {"success": True}
        server.ok("POST", "/v1/chat/completions", HI)
        assert engine.bound == (engine.prompts[-1][0], {"second": 0.5})
        assert [row["scale"] for row in server.ok("GET", "/lora-adapters")] == [0.0, 0.5]
        server.ok("POST", "/lora-adapters", [])
        assert engine.bound[1] == {}
        for bad, message in (
            ([{"id": 2, "scale": 1}], "no adapter with the id 2"),
            ([{"scale": 1}], "no adapter with the id -1"),
            ({"id": 0}, "must be a list"),
            ([{"id": 0, "scale": "x"}], "scale is 'x'"),
        ):
            status, _, refused = server.call("POST", "/lora-adapters", bad)
            assert status == 400 and message in refused["detail"]
