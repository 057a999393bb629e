"""Where people look at the graph: the command line, MCP, the server, redaction."""

import asyncio
import json
from urllib.parse import quote

import pytest
from inspectorkit import fact, filled
from memorykit import quick
from storekit import relate

from edgemem.cli import memories
from edgemem.cli.output import open_memory
from edgemem.cloud.governor import guard
from edgemem.cloud.names import People


@pytest.fixture
def memory():
    with filled() as opened:
        yield opened


# -- the command line ------------------------------------------------------------------------


@pytest.mark.models
@pytest.mark.usefixtures("home")
def test_graph_prints_what_is_told_of_whom(run):
    id = json.loads(run("add", "--no-infer", "--json", "x").stdout)["results"][0]["id"]
    assert run("graph").stdout == ""
    assert "Nothing is told" in run("graph", "Rex").stderr
    with open_memory(None) as memory, memory.store.transaction() as tx:
        relate(tx, id, "Ana sibling_of Bartek", "Bartek lives_in Bergen")
    rows = [line.split("\t") for line in run("graph", "bartek").stdout.splitlines()]
    assert [row[:3] for row in rows] == [
        ["Ana", "sibling_of", "Bartek"],
        ["Bartek", "lives_in", "Bergen"],
    ]
    shown = json.loads(run("graph", "Bergen", "--json").stdout)["relations"]
    assert shown[0]["relationship"] == "lives_in"
    assert run("graph", "--at", "soon", code=2).stderr.startswith("Error: at 'soon' is no time")


def test_a_terminal_gets_a_tree(memory, capsys):
    memories._draw_relations(memory.relations("Oslo", include_invalid=True), "oslo")
    assert "Oslo\n└── ← lives_in Ana  2025-03-01 – 2025-04-01" in capsys.readouterr().out
    memories._draw_relations(memory.relations("Tom"), "Tom")
    assert "← has_pet Ana" in capsys.readouterr().out


# -- MCP and HTTP ----------------------------------------------------------------------------


def test_mcp_tells_relations(memory):
    mcp = pytest.importorskip("mcp")
    from edgemem.server.mcp import mcp_server

    async def talk():
        async with mcp.Client(mcp_server(memory, user_id="ana")) as client:
            answer = await client.call_tool("search_relations", {"entity": "tom"})
            told = json.loads(answer.content[0].text)["relations"]
            assert told[0]["destination"] == "Tom" and told[0]["source"] == "Ana"
            refused = await client.call_tool("search_relations", {"at": "soon"})
            assert refused.is_error and "no time" in refused.content[0].text

    asyncio.run(talk())


def test_the_server_tells_relations_in_mem0s_shape(server, memory):
    told = server.ok("GET", "/relations?user_id=ana&entity=tom")["relations"]
    assert [(r["source"], r["relationship"], r["destination"]) for r in told][:1] == [
        ("Ana", "has_pet", "Tom")
    ]
    past = server.ok("GET", f"/relations?user_id=ana&at={quote('2025-03-15T00:00Z')}")
    assert [r["destination"] for r in past["relations"]] == ["Oslo"]
    assert server.call("GET", "/relations")[0] == 400
    assert server.ok("GET", "/relations?user_id=ben")["relations"] == []
    body = {"query": "Where does Ana live?", "user_id": "ana", "at": "2025-03-15"}
    found = server.ok("POST", "/search", body)
    assert [r["destination"] for r in found["relations"]] == ["Oslo"]


def test_the_inspector_is_told_of_everybody_and_of_what_is_over(server, memory):
    known = server.ok("GET", "/inspect/entities")
    assert known["results"][0] == {"name": "Ana", "type": "person", "relations": 4}
    assert not known["more"]
    assert server.ok("GET", "/inspect/entities?user_id=ben")["results"] == []
    told = server.ok("GET", "/inspect/relations?entity=oslo")["relations"]
    assert [(r["source"], bool(r["valid_to"])) for r in told] == [("Ana", True)]
    assert told[0]["invalidated_by"] == fact(memory, "Bergen")
    assert server.call("GET", "/inspect/entities", token=None)[0] == 401


# -- what leaves the device --------------------------------------------------------------------


def test_redaction_knows_people_by_their_aliases():
    with quick() as memory:
        id = memory.add("x", infer=False)[0].id
        with memory.store.transaction() as tx:
            relate(tx, id, "User sibling_of Katarzyna/Qqsia", "Katarzyna lives_in Oslo")
        people = People()
        people.learn(memory.store)
        assert {"Katarzyna", "Qqsia"} <= people.names()
        assert not {"User", "Oslo"} & people.names()


def test_what_is_never_sent_by_one_name_is_not_sent_by_another():
    with quick() as memory:
        id = memory.add("x", infer=False)[0].id
        with memory.store.transaction() as tx:
            relate(tx, id, "User sibling_of Katarzyna/Kasia")
        assert not guard(memory.store, ["katarzyna"]).allows("Kasia called.")
        assert guard(memory.store, ["bartek"]).allows("Kasia called.")
        assert guard(memory.store, []).allows("Katarzyna called.")
