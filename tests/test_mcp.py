"""`edgemem mcp` as the SDK's own client sees it, over the process's standard streams."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from fake_engine import FakeEngine
from mcp import Client, StdioServerParameters, stdio_client
from memorykit import quick, texts

from edgemem import Memory
from edgemem.server.mcp import mcp_server


def environment(home):
    root = str(Path(__file__).parents[1])
    return {**os.environ, "EDGEMEM_HOME": str(home), "PYTHONPATH": root}


def talk(conversation, memory=None, **scope):
    """A conversation with the server inside this process, by itself of an empty memory."""
    if memory is None:
        with quick(engine=FakeEngine()) as opened:
            talk(conversation, opened, **scope)
        return

    async def run():
        async with Client(mcp_server(memory, **scope)) as client:
            await conversation(client)

    asyncio.run(run())


async def results(client, tool, **arguments):
    answer = await client.call_tool(tool, arguments)
    assert not answer.is_error, answer.content
    return json.loads(answer.content[0].text)


async def refusal(client, tool, **arguments):
    answer = await client.call_tool(tool, arguments)
    assert answer.is_error
    return str(answer.content[0].text)


def test_the_tools_say_which_only_read_and_which_destroy():
    async def conversation(client):
        listed = (await client.list_tools()).tools
        marks = {t.name: t.annotations for t in listed}
        assert {n for n, m in marks.items() if m and m.read_only_hint} == {
            "search_memories", "search_relations", "get_memory", "get_memories",
        }  # fmt: skip
        assert {n for n, m in marks.items() if m and m.destructive_hint} == {
            "update_memory", "delete_memory", "delete_all_memories",
        }  # fmt: skip
        assert marks["add_memory"] and marks["add_memory"].destructive_hint is False
        assert len(listed) == 8 and all(t.description for t in listed)

    talk(conversation)


def test_memories_are_added_found_changed_and_deleted():
    async def conversation(client):
        first = await results(client, "add_memory", text="I live in Oslo.", metadata={"a": 1})
        id = first["results"][0]["id"]
        found = await results(client, "search_memories", query="Where do I live?")
        assert [row["memory"] for row in found["results"]] == ["I live in Oslo."]
        await results(client, "update_memory", memory_id=id, text="I live in Bergen.")
        got = await results(client, "get_memory", memory_id=id)
        assert (got["memory"], got["metadata"]) == ("I live in Bergen.", {"a": 1})
        listed = await results(client, "get_memories", top_k=5)
        assert [row["id"] for row in listed["results"]] == [id]
        await results(client, "delete_memory", memory_id=id)
        assert (await results(client, "get_memories"))["results"] == []

    talk(conversation, user_id="ana")


def test_no_call_reaches_anybody_elses_memories():
    async def conversation(client):
        await results(client, "add_memory", text="I like tea.", infer=False)
        listed = await results(client, "get_memories")
        assert [row["memory"] for row in listed["results"]] == ["I like tea."]
        for tool, more in (("get", {}), ("update", {"text": "I was here."}), ("delete", {})):
            assert "no memory with the id" in await refusal(
                client, f"{tool}_memory", memory_id=bens, **more
            )
        assert await results(client, "delete_all_memories") == {"deleted": 1}
        assert (await results(client, "get_memories"))["results"] == []

    with quick() as memory:
        bens = memory.add("I like coffee.", user_id="ben", infer=False)[0].id
        talk(conversation, memory, user_id="ana")
        assert texts(memory.get_all()) == ["I like coffee."]


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("delete_all_memories", {"query": "the rate limit"}),
        ("delete_all_memories", {"user_id": "ben"}),
        ("search_memories", {"query": "tea", "limit": 3}),
        ("add_memory", {"text": "I like tea.", "content": "I like tea."}),
    ],
)
def test_an_unknown_argument_is_refused_and_does_nothing(tool, arguments):
    async def conversation(client):
        told = await refusal(client, tool, **arguments)
        assert f"{tool} has no argument '{[*arguments][-1]}'; allowed are: " in told

    with quick() as memory:
        memory.add("I like tea.", user_id="ana", infer=False)
        talk(conversation, memory, user_id="ana")
        assert texts(memory.get_all()) == ["I like tea."]


def test_what_a_model_reads_is_short_and_says_what_has_ended():
    old, new = "User lives in Bergen", "User moved to Oslo and lives there now"
    told = ("I live in Bergen.", "I moved to Oslo and live there now.")
    facts = {text: fact.replace("User", "{}") for text, fact in zip(told, (old, new), strict=True)}
    engine = FakeEngine(facts=facts, ends={new: old})

    async def conversation(client):
        found = await client.call_tool("search_memories", {"query": "Bergen"})
        assert found.structured_content is None
        rows = (await results(client, "search_memories", query="Bergen"))["results"]
        (said,) = [row for row in rows if row["memory"] == "I live in Bergen."]
        assert said["no_longer_so"] == [old]
        assert said.keys() == {"id", "memory", "kind", "when", "no_longer_so", "score"}
        listed = await results(client, "get_memories", top_k=1)
        assert listed["in_all"] == 4 and listed["results"][0]["memory"].startswith("log log")
        assert len(listed["results"][0]["memory"]) < 1_100
        whole = await results(client, "get_memory", memory_id=listed["results"][0]["id"])
        assert len(whole["memory"]) == 7_999 and whole["history"]
        schemas = [tool.input_schema for tool in (await client.list_tools()).tools]
        assert "title" not in json.dumps(schemas)

    with quick(engine=engine) as memory:
        for text in facts:
            memory.add(text, user_id="ana")
        memory.add(" ".join(["log"] * 2_000), user_id="ana", infer=False)
        talk(conversation, memory, user_id="ana")


def test_facts_are_taken_after_the_answer_and_from_what_was_left():
    known = {"I live in Oslo.": "{} lives in Oslo", "I have a cat.": "{} has a cat"}

    async def conversation(client):
        added = await results(client, "add_memory", text="I have a cat.")
        assert [row["memory"] for row in added["results"]] == ["I have a cat."]
        for _ in range(200):
            if not memory.pending():
                break
            await asyncio.sleep(0.05)

    with quick(engine=FakeEngine(facts=known)) as memory:
        memory.add("I live in Oslo.", user_id="ana", infer="later")
        talk(conversation, memory, user_id="ana")
        facts = texts(memory.get_all(filters={"kind": "fact"}))
        assert sorted(facts) == ["User has a cat", "User lives in Oslo"]


def test_errors_come_back_as_tool_errors_in_our_words():
    unknown = "no memory with the id 'x'; get_memories and search_memories tell the ids"

    async def conversation(client):
        for tool, arguments, message in (
            ("get_memory", {"memory_id": "x"}, unknown),
            ("delete_memory", {"memory_id": "x"}, unknown),
            ("update_memory", {"memory_id": "x", "text": "a"}, unknown),
            ("update_memory", {"memory_id": id, "text": " "}, "text is empty"),
            ("search_memories", {"query": "a", "top_k": 0}, "top_k is 0"),
            ("search_memories", {"query": ""}, "query is empty"),
            ("get_memories", {"filters": {"x": {"near": 1}}}, "near"),
            ("delete_all_memories", {}, "use reset"),
            ("search_relations", {"at": "soon"}, "soon"),
        ):
            assert message in await refusal(client, tool, **arguments)
        assert await refusal(client, "update_memory", text="a", metadata="b") == (
            "Error executing tool update_memory: memory_id: Field required; "
            "metadata: Input should be a valid dictionary"
        )

    with quick() as memory:
        id = memory.add("I like tea.", user_id="ben", infer=False)[0].id
        talk(conversation, memory)


@pytest.mark.models
@pytest.mark.slow
def test_over_stdio_the_sdks_client_is_understood_and_the_file_keeps_it(tmp_path):
    command = ["-m", "edgemem", "mcp", "--user-id", "ana"]
    server = StdioServerParameters(command=sys.executable, args=command, env=environment(tmp_path))

    async def run():
        async with Client(stdio_client(server)) as client:
            assert client.server_info and client.server_info.name == "edgemem"
            said = "I moved to Oslo in May."
            await results(client, "add_memory", text=said, infer=False)
            found = await results(client, "search_memories", query="Where do I live?")
            assert found["results"][0]["memory"] == said
            assert "no memory" in await refusal(client, "get_memory", memory_id="none")

    asyncio.run(run())
    with Memory(tmp_path / "memory.db") as memory:
        assert texts(memory.get_all(user_id="ana")) == ["I moved to Oslo in May."]


@pytest.mark.models
@pytest.mark.skipif(sys.platform == "win32", reason="sends SIGINT")
def test_one_ctrl_c_ends_it_and_the_file_keeps_what_was_added(tmp_path):
    code = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    code += "from edgemem.__main__ import main; main()"  # a job in the background ignores SIGINT
    with subprocess.Popen(
        [sys.executable, "-c", code, "mcp", "--user-id", "ana"], env=environment(tmp_path),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as server:  # fmt: skip
        assert server.stdin and server.stdout and server.stderr

        def ask(id, method, **params):
            call = {"jsonrpc": "2.0", "id": id, "method": method, "params": params}
            print(json.dumps(call), file=server.stdin, flush=True)
            return server.stdout.readline() if server.stdout else ""

        client = {"name": "test", "version": "1"}
        ask(1, "initialize", protocolVersion="2025-06-18", capabilities={}, clientInfo=client)
        tea = {"text": "I like tea.", "infer": False}
        assert '"ADD' in ask(2, "tools/call", name="add_memory", arguments=tea).replace("\\", "")
        server.send_signal(signal.SIGINT)
        assert server.wait(60) == 130 and not server.stderr.read()
    with Memory(tmp_path / "memory.db") as memory:
        assert texts(memory.get_all(user_id="ana")) == ["I like tea."]
    assert not list(tmp_path.glob("*-wal"))


@pytest.mark.models
def test_stdout_carries_nothing_but_the_protocol(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "edgemem", "mcp"], env=environment(tmp_path), input="no JSON\n",
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0
    assert all(line.startswith('{"jsonrpc"') for line in done.stdout.splitlines())
