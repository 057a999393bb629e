"""The memory inspector without a browser: its files, headers and routes."""

import re
from pathlib import Path
from urllib.parse import urlencode

import pytest
from inspectorkit import BERGEN, EVIL, OSLO, fact, filled
from memorykit import quick, texts
from serverkit import running
from storekit import memory as new_memory

import edgemem.server
from edgemem.errors import InputError
from edgemem.results import Scope
from edgemem.retrieval.search import FEATURES, MATCHES
from edgemem.server.memories import PATHS
from edgemem.store.store import browse, owners, replacements

PAGE = Path(edgemem.server.__file__).parent / "page"
DATA = (
    "/inspect/overview", "/inspect/memories", "/inspect/memories/x", "/inspect/pending",
    "/inspect/receipts", "/inspect/entities", "/inspect/relations",
)  # fmt: skip
ERASING = ("/inspect/erase/preview", "/inspect/erase")


@pytest.fixture
def memory():
    with filled() as opened:
        yield opened


# -- the page's files ----------------------------------------------------------------------------


def test_the_pages_files_are_all_given_without_the_token_and_forbid_what_is_foreign(
    server,
):
    served = {"index.html" if path == "/" else path.removeprefix("/page/") for path in PATHS}
    assert served == {file.name for file in PAGE.iterdir()}
    for path in PATHS:
        status, headers, text = server.call("GET", path, token=None)
        assert status == 200 and text
        rules = headers["content-security-policy"].split("; ")
        policy = dict(rule.partition(" ")[::2] for rule in rules)
        assert policy.pop("default-src") == policy.pop("frame-ancestors") == "'none'"
        assert policy.pop("base-uri") == policy.pop("form-action") == "'none'"
        assert policy.pop("trusted-types") == "'none'"
        assert policy.pop("require-trusted-types-for") == "'script'"
        assert policy.pop("img-src") == "'self' blob:"  # images are fetched with the token
        assert set(policy.values()) == {"'self'"}
        assert headers["x-frame-options"] == "DENY" and headers["cache-control"] == "no-store"
        assert headers["cross-origin-opener-policy"] == "same-origin"
        assert "set-cookie" not in headers
        assert server.call("POST", path, token=None)[0] == 405


def test_the_page_names_no_other_host_and_has_nothing_inline():
    for file in PAGE.iterdir():
        text = file.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"//\S", text), file.name  # a comment of JavaScript has a space there
    html = (PAGE / "index.html").read_text(encoding="utf-8")
    assert not re.search(r"<style|\son\w+=|\sstyle=|<script(?![^>]*\ssrc=)", html)
    for file in PAGE.glob("*.js"):
        assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(",
                             file.read_text(encoding="utf-8"))  # fmt: skip


def test_the_page_explains_the_parts_that_a_score_has():
    listed = re.search(r"const PARTS = \{(.*?)\};", (PAGE / "lists.js").read_text(), re.S)
    assert re.findall(r"^  (\w+):", listed[1], re.M) == ["base", *FEATURES, *MATCHES]


# -- who may ask ---------------------------------------------------------------------------------


def test_all_else_asks_for_the_token(server):
    for path in (*DATA, *ERASING, "/page/", "/page/none.js", "/inspect"):
        for wrong in (None, "another-token-of-tests"):
            method = "POST" if path in ERASING else "GET"
            assert server.call(method, path, token=wrong)[0] == 401, path


def test_no_answer_is_kept_or_framed_or_taken_for_something_else(server):
    for path in (*DATA, "/healthz", "/metrics", "/memories?user_id=ana", "/no"):
        _, headers, _ = server.call("GET", path)
        assert headers["cache-control"] == "no-store" and headers["x-frame-options"] == "DENY"
        assert headers["x-content-type-options"] == "nosniff", path
        assert headers["referrer-policy"] == "no-referrer", path
    assert server.call("GET", "/metrics", token=None)[1]["cache-control"] == "no-store"


# -- what is told --------------------------------------------------------------------------------


def test_the_overview_tells_whose_memories_there_are(server, memory):
    memory.add("Bot here.", agent_id="bot", run_id="r1", infer=False)
    told = server.ok("GET", "/inspect/overview")
    assert told["owners"] == {
        "user_id": [{"id": "ana", "memories": 9}, {"id": "ben", "memories": 1}],
        "agent_id": [{"id": "bot", "memories": 1}],
        "run_id": [{"id": "r1", "memories": 1}],
    }
    assert told["counts"]["pending"] == 1 and told["cloud"] is None


def test_a_page_follows_the_one_before_whatever_was_added_or_erased_meanwhile(server, memory):
    first = server.ok("GET", "/inspect/memories?user_id=ana&limit=3")
    assert [row["memory"] for row in first["results"]] == [
        "I bought a red kayak.", "Ana works at the harbour", "I work at the harbour.",
    ]  # fmt: skip
    more = f"/inspect/memories?{urlencode({'user_id': 'ana', 'limit': 50, 'after': first['next']})}"
    memory.add("I sold the kayak.", user_id="ana", infer=False)
    memory.erase([row["id"] for row in first["results"]])
    rest = server.ok("GET", more)
    assert len(rest["results"]) == 5 and rest["next"] is None
    times = [row["valid_from"] for row in first["results"] + rest["results"]]
    assert times == sorted(times, reverse=True)


def test_each_state_and_kind_lists_its_own(server, memory):
    memory.delete(fact(memory, "cat"))

    def listed(query):
        rows = server.ok("GET", f"/inspect/memories?{query}")["results"]
        return [row["memory"] for row in rows]

    assert listed("kind=fact") == ["Ana works at the harbour", "Ana moved to Bergen"]
    assert listed("state=past") == ["Ana lives in Oslo"]
    assert listed("state=deleted") == ["Ana has a cat called Tom"]
    assert len(listed("state=all")) == 10 and len(listed("state=all&kind=fact")) == 4
    assert listed("user_id=ben") == [EVIL] and listed("agent_id=none") == []


def test_a_memory_is_told_with_its_turns_history_and_what_replaced_it(server, memory):
    old, new = fact(memory, "Oslo"), fact(memory, "Bergen")
    told = server.ok("GET", f"/inspect/memories/{old}")
    assert told["memory"]["replaced_by"] == [{"id": new, "memory": "Ana moved to Bergen"}]
    assert told["memory"]["valid_to"].startswith("2025-04-01")
    assert [(turn["name"], turn["content"]) for turn in told["turns"]] == [("Ana", OSLO)]
    assert [row["event"] for row in told["history"]] == ["ADD", "DELETE"]
    other = server.ok("GET", f"/inspect/memories/{new}")
    assert other["memory"]["replaces"] == [{"id": old, "memory": "Ana lives in Oslo"}]
    assert other["memory"]["replaced_by"] == []
    assert [turn["content"] for turn in other["turns"]] == [BERGEN]


def test_a_deleted_memory_is_still_told(server, memory):
    path = f"/inspect/memories/{fact(memory, 'cat')}"
    assert server.ok("GET", path)["memory"]["deleted_at"] is None
    memory.delete(fact(memory, "cat"))
    told = server.ok("GET", path)
    assert told["memory"]["deleted_at"] and told["history"][-1]["is_deleted"]


def test_a_message_is_told_with_the_facts_that_go_when_it_is_deleted(server, memory):
    (said,) = (item.id for item in memory.get_all() if item.memory == "My cat is called Tom.")
    (only,) = server.ok("GET", f"/inspect/memories/{said}")["alone"]
    assert only == {"id": fact(memory, "cat"), "memory": "Ana has a cat called Tom"}
    assert server.ok("GET", f"/inspect/memories/{only['id']}")["alone"] == []
    memory.delete(said)
    assert memory.get(only["id"]) is None


def test_what_waits_is_told_with_its_words_and_its_error(server):
    told = server.ok("GET", "/inspect/pending")
    (piece,) = told["results"]
    assert told["total"] == piece["attempts"] == 1 and "JSON" in piece["error"]
    assert [turn["content"] for turn in piece["turns"]] == ["I bought a red kayak."]
    assert piece["next_try_at"] > piece["created_at"]


def test_what_was_sent_is_told_without_its_words(server, memory):
    (row,) = server.ok("GET", "/inspect/receipts")["results"]
    assert row["memory_ids"] == [fact(memory, "harbour")] and row["outcome"] == "answered"
    assert "harbour" not in str(row)


# -- erasing -------------------------------------------------------------------------------------


def test_what_an_erase_would_take_is_told_and_then_taken_and_nothing_with_an_unknown_id():
    gone: list[str] = []
    with filled() as memory, running(memory, on_erase=gone.extend) as server:
        id, before = fact(memory, "harbour"), memory.store.counts()
        for path in ERASING:
            status, _, told = server.call("POST", path, {"ids": [id, "none"]})
            assert (status, told) == (404, {"detail": "there is no memory with the id 'none'"})
        shown = server.ok("POST", ERASING[0], {"ids": [id]})
        wanted = {"Ana works at the harbour", "I work at the harbour."}
        assert {row["memory"] for row in shown["memories"]} == wanted
        assert [turn["content"] for turn in shown["turns"]] == ["I work at the harbour."]
        assert memory.store.counts() == before and gone == []
        rows = server.ok("POST", ERASING[1], {"ids": [id]})["results"]
        assert {row["id"] for row in rows} == {row["id"] for row in shown["memories"]}
        assert gone == ["I work at the harbour."]
        assert not wanted & set(texts(memory.get_all()))
        assert server.call("GET", f"/inspect/memories/{id}")[0] == 404
        assert server.ok("GET", "/inspect/receipts")["results"][0]["sent_sha256"] is None


# -- the store's listings ------------------------------------------------------------------------


def test_a_memory_stored_in_the_same_moment_replaced_nothing():
    """Times are in milliseconds, and a batch of operations may share one."""
    at = "2025-01-01T00:00:00.000+00:00"
    with quick() as memory:
        memory.add("hello", user_id="ana", infer=False)  # sets the vectors' dimension
        with memory.store.transaction() as tx:
            for id in ("old", "new", "bystander"):
                if id == "new":
                    tx.invalidate("old", at, at=at)
                vectors = memory.embedder.embed_chunks([id])[0]
                tx.add_memory(new_memory(id, kind="fact", created_at=at, vectors=vectors))
        assert replacements(memory.store, ["old"]) == [("old", "new")]
        assert replacements(memory.store, ["new", "bystander"]) == [("old", "new")]
        memory.erase(["new"])
        assert replacements(memory.store, ["old"]) == []


def test_deleting_replaces_nothing(memory):
    memory.delete(fact(memory, "cat"))
    memory.add("I like tea.", user_id="ana", infer=False)
    assert replacements(memory.store, [fact(memory, "Bergen")]) == [
        (fact(memory, "Oslo"), fact(memory, "Bergen"))
    ]
    assert owners(memory.store)["user_id"] == [("ana", 9), ("ben", 1)]


def test_browsing_takes_known_states_and_numbers_alone(memory):
    assert browse(memory.store, Scope(user_id="ben"), limit=0) == []
    with pytest.raises(InputError, match="state is 'x'; give one of live, past, deleted, all"):
        browse(memory.store, state="x", limit=1)
    with pytest.raises(InputError, match="limit is -1; give 0 or more"):
        browse(memory.store, limit=-1)
