"""Whose memories a call to the server reaches: an id that is given is kept to, on every route."""

from typing import Any

import pytest
from fake_engine import FakeEngine
from imagekit import drawn, part, saved
from memorykit import quick
from serverkit import HI, running

from edgemem.results import Entity, Scope
from edgemem.server import memories
from edgemem.store.rows import NewRelation

SECRET = "The party is at the Lamplighter."
ROUTES = sorted(
    (method, route.path)
    for route in memories.ROUTES
    for method in (route.methods or set()) - {"HEAD"}
    if route.path not in memories.PATHS
)
BY_ID = [
    (method, path)
    for method, path in ROUTES
    if "{id}" in path or path in ("/inspect/erase", "/inspect/erase/preview")
]
OF_MAYA = [{"user_id": "maya"}, {"agent_id": "shop"}, {"user_id": "tom", "run_id": "r9"}]


@pytest.fixture
def memory():
    """Tom has a photo with words and a relation, Maya has words."""
    with quick(engine=FakeEngine()) as opened:
        photo = part(saved(drawn((80, 60))))
        said = {"role": "user", "content": [{"type": "text", "text": SECRET}, photo]}
        (item, *_) = opened.add(said, user_id="tom", infer=False)
        works = NewRelation(Entity("Tom", "person"), "works_at", Entity("Lamplighter", "place"))
        with opened.store.transaction() as tx:
            tx.set_relations(item.id, [works], 1)
        opened.add("Is there a party?", user_id="maya", infer=False)
        yield opened


@pytest.fixture
def server(memory):
    with running(memory, allow_reset=True) as found:
        yield found


def stored(memory):
    return list(memory.store.export_rows())


def call(server, memory, method, path, query="", **more):
    """Status and body of a call with a sound body, of Tom's photo where the path takes an id."""
    photo = next(item for item in memory.get_all(user_id="tom") if item.image)
    id = photo.image.id if path.startswith("/images") else photo.id
    needed: dict[str, dict[str, Any]] = {
        "/search": {"query": "party"},
        "/memories/{id}": {"text": "hacked"},
        "/memories": {"messages": "I am here.", "infer": False},
        "/inspect/erase": {"ids": [id]},
        "/inspect/erase/preview": {"ids": [id]},
    }
    body = {**needed.get(path, {}), **more} if method in ("POST", "PUT") else more
    try:
        status, _, told = server.call(method, path.replace("{id}", id) + query, body or None)
    except UnicodeDecodeError:  # the bytes of a picture
        return 200, "a picture"
    return status, str(told)


def in_query(ids):
    return "?" + "&".join(f"{name}={id}" for name, id in ids.items())


@pytest.mark.parametrize("place", ["query", "body"])
@pytest.mark.parametrize("ids", OF_MAYA)
@pytest.mark.parametrize(("method", "path"), BY_ID)
def test_an_id_of_somebody_else_is_not_found(server, memory, method, path, ids, place):
    before = stored(memory)
    given = (in_query(ids), {}) if place == "query" else ("", ids)
    status, told = call(server, memory, method, path, given[0], **given[1])
    assert status == 404 and "there is no" in told and "Lamplighter" not in told
    assert stored(memory) == before


@pytest.mark.parametrize("query", ["", "?user_id=tom"])
@pytest.mark.parametrize(("method", "path"), BY_ID)
def test_an_id_alone_or_with_its_owner_is_found(server, memory, method, path, query):
    assert call(server, memory, method, path, query)[0] == 200


@pytest.mark.parametrize(("method", "path"), [r for r in ROUTES if r not in BY_ID])
def test_no_other_route_gives_or_takes_what_is_of_somebody_else(server, memory, method, path):
    toms = [row for row in stored(memory) if row.get("user_id") == "tom"]
    status, told = call(server, memory, method, path, "?user_id=maya")
    takes_none = path in ("/reset", "/inspect/overview", "/inspect/pending", "/inspect/receipts")
    assert status == (400 if takes_none else 200), told
    assert "Lamplighter" not in told
    if path.endswith(("/relations", "/entities")):
        assert "Lamplighter" in call(server, memory, method, path, "?user_id=tom")[1]
    assert [row for row in stored(memory) if row.get("user_id") == "tom"] == toms


@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_an_unknown_field_is_refused_by_every_route_and_does_nothing(server, memory, method, path):
    before = stored(memory)
    whose = "&user_id=tom" if path in ("/memories", "/search", "/relations") else ""
    for query, body in ((f"?userid=maya{whose}", {}), (f"?{whose[1:]}", {"userid": "maya"})):
        status, told = call(server, memory, method, path, query, **body)
        assert status == 400 and "userid is 'maya'; " in told, told
    assert stored(memory) == before


def test_a_field_that_comes_twice_is_refused(server):
    for query, body in (
        ("?user_id=maya&user_id=tom", {"query": "party"}),
        ("?user_id=maya", {"query": "party", "user_id": "tom"}),
    ):
        status, _, told = server.call("POST", f"/search{query}", body)
        assert status == 400 and "user_id is 'tom'; it was given before" in told["detail"]
    twice = "/search?user_id=tom&user_id=tom"
    assert server.ok("POST", twice, {"query": "party", "user_id": "tom"})["results"]


@pytest.mark.parametrize(
    ("method", "path", "body", "told"),
    [
        ("GET", "/inspect/memories", {"after": 5}, "after is 5; give it in the query"),
        ("GET", "/inspect/entities", {"user_id": {"a": 1}}, "user_id is {'a': 1}; it must be text"),
        ("GET", "/memories?user_id=tom", {"top_k": 1}, "top_k is 1; give it in the query"),
        ("GET", "/relations?user_id=tom", {"include_invalid": True}, "give it in the query"),
        ("DELETE", "/memories", {"user_id": 5}, "user_id is 5; it must be text"),
        ("POST", "/search?user_id=tom&query=party", {}, "'party'; give it in the JSON body"),
        ("POST", "/search?limit=1", {"query": "party", "limit": 1}, "give it in the JSON body"),
        ("PUT", "/memories/x?text=hacked", {"text": "hacked"}, "give it in the JSON body"),
        ("POST", "/inspect/erase?ids=x", {"ids": ["x"]}, "give it in the JSON body"),
    ],
)
def test_a_field_in_the_wrong_place_or_an_id_that_is_no_text_is_refused(
    server, memory, method, path, body, told
):
    before = stored(memory)
    status, _, found = server.call(method, path, body)
    assert status == 400 and told in found["detail"]
    assert stored(memory) == before


def test_a_chat_keeps_to_the_agent_and_the_run_beside_its_user(server, memory):
    asked = "Where is the party?"
    body = {**HI, "messages": [{"role": "user", "content": asked}], "user": "tom"}
    for name in ("agent_id", "run_id"):
        told = server.ok("POST", "/v1/chat/completions", {**body, name: "x1"})
        assert "Lamplighter" not in f"{told}{memory.engine.prompts}"
        (turn, *_) = memory.store.recent_turns(Scope("tom", **{name: "x1"}), limit=2)
        assert turn.content == asked
    told = server.ok("POST", "/v1/chat/completions", body)
    assert "Lamplighter" in f"{told}{memory.engine.prompts}"


def test_what_mem0s_and_openais_clients_send_beside_is_taken(server):
    absent = dict.fromkeys(["agent_id", "run_id", "metadata", "memory_type", "prompt", "other"])
    said = [{"role": "user", "content": "I like tea."}]
    body = {"messages": said, "user_id": "ana", "infer": False, **absent}
    assert server.ok("POST", "/memories", body)["results"]
    kind = {"memory_type": "procedural_memory", "prompt": "Facts alone."}
    assert server.ok("POST", "/memories", {**body, **kind})["results"]
    more = {"service_tier": "auto", "userid": "ana", "user_id": "ana"}
    assert server.ok("POST", "/v1/chat/completions", {**HI, **more})["choices"]
    assert server.client().models.list(extra_query={"after": "x"}).data
