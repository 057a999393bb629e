"""Whose memories: a user, agent or run that is named is kept to, also where an ID is given."""

import asyncio
import json
from typing import Any

import click
import pytest
from fake_engine import FakeEngine

from edgemem.cli import cli
from edgemem.config import set_value
from edgemem.memory import Memory
from edgemem.store import Store

pytestmark = [pytest.mark.models, pytest.mark.usefixtures("home")]

SECRET = "Tom's party is at the Lamplighter."


@pytest.fixture
def toms(home):
    """The id of a memory of Tom's, in a store that Maya uses too."""
    with Memory(home / "memory.db") as memory:
        memory.add("Maya plays chess.", user_id="maya", infer=False)
        return memory.add(SECRET, user_id="tom", run_id="r1", infer=False)[0].id


def texts(home, user):
    with Memory(home / "memory.db") as memory:
        return [item.memory for item in memory.get_all(user_id=user)]


BY_ID = {
    "get": ("get", "ID"),
    "history": ("history", "ID"),
    "update": ("update", "ID", "hacked"),
    "delete": ("delete", "ID"),
    "erase": ("erase", "ID", "-y"),
    "mark": ("cloud", "never-send", "--memory", "ID"),
    "unmark": ("cloud", "never-send", "--unmark", "ID"),
}


@pytest.mark.parametrize("named", [("--user-id", "maya"), ("--agent-id", "bot"), ("--run-id", "r")])
@pytest.mark.parametrize("command", BY_ID)
def test_an_id_of_somebody_else_is_as_unknown_to_a_command(run, home, toms, command, named):
    args = [toms if arg == "ID" else arg for arg in BY_ID[command]]
    refused = run(*args, *named, code=1)
    whose = f"{named[0][2:].replace('-', '_')} {named[1]!r}"
    assert refused.stdout == ""
    assert f"There is no memory {toms!r} of {whose}." in refused.stderr
    unknown = run(*[arg.replace(toms, "no-such") for arg in args], *named, code=1)
    assert unknown.stderr == refused.stderr.replace(toms, "no-such")
    assert texts(home, "tom") == [SECRET]
    assert len(run("history", toms).stdout.splitlines()) == 1


@pytest.mark.parametrize("named", [(), ("--user-id", "tom"), ("--run-id", "r1")])
@pytest.mark.parametrize("command", BY_ID)
def test_an_id_is_found_whoevers_it_is_or_by_its_owner(run, toms, command, named):
    run(*[toms if arg == "ID" else arg for arg in BY_ID[command]], *named)


def test_a_user_beside_an_id_is_not_marked_whole(run, toms):
    listed = run("cloud", "never-send", "--memory", toms, "--user-id", "tom").stdout
    assert listed.count("\n") == 1 and SECRET in listed


def test_the_marks_of_somebody_else_are_not_listed_beside_ids(run, home, toms):
    (mine,) = run("list", "--user-id", "maya").stdout.split("\t")[:1]
    run("cloud", "never-send", "--memory", toms)
    run("cloud", "never-send", "--user-id", "tom", "--run-id", "clinic")
    listed = run("cloud", "never-send", "--memory", mine, "--user-id", "maya").stdout
    assert [line.split("\t")[0] for line in listed.splitlines()] == [mine]
    assert SECRET in run("cloud", "never-send").stdout


@pytest.mark.parametrize("beside", [("--remove", "1"), ("--pattern", "x")])
def test_a_mark_of_all_users_takes_no_user(run, toms, beside):
    run("cloud", "never-send", "--user-id", "tom")
    said = run("cloud", "never-send", *beside, "--user-id", "maya", code=2).stderr
    assert "give them without --user-id" in said
    assert run("cloud", "never-send").stdout == "1\ttom\n"


def test_one_id_of_somebody_else_keeps_all_in_place(run, home, toms):
    (mine,) = run("list", "--user-id", "maya").stdout.split("\t")[:1]
    for command in (("delete",), ("erase", "-y")):
        run(*command, mine, toms, "--user-id", "maya", code=1)
    assert (texts(home, "maya"), texts(home, "tom")) == (["Maya plays chess."], [SECRET])


def test_a_deleted_memory_of_somebody_else_is_not_told_to_be_one(run, toms):
    run("delete", toms)
    assert "was deleted" in run("get", toms, "--user-id", "tom", code=1).stderr
    assert "deleted" not in run("get", toms, "--user-id", "maya", code=1).stderr
    run("history", toms, "--user-id", "tom")


def test_erase_all_tells_of_turns_that_no_memory_cites(run, home):
    with Memory(home / "memory.db") as memory:
        asked = {"role": "user", "content": "Where is the key?", "recalled": True}
        memory.add([asked, {**asked, "content": "And now?"}], user_id="default", infer=False)
        assert not memory.get_all()
    erased = run("erase", "--all", "--yes")
    assert erased.stderr.endswith("2 turns erased; no memories of user_id 'default'.\n")
    assert run("erase", "--all", "--yes").stderr == "No memories of user_id 'default'.\n"


# -- every command and tool that takes a user ------------------------------------------------------

TYPED = "Where is the party?\n/memories party\n/forget ID\n\n/forget party\n1\ny\n/why\n"
CALLS: dict[str, tuple[str, ...]] = {  # each command with arguments that would reach Tom's memory
    "add": ("--no-infer", "I like tea."),
    "search": ("party",),
    "graph": (),
    "get": ("ID",),
    "list": (),
    "update": ("ID", "hacked"),
    "delete": ("ID",),
    "delete --all": ("-y",),
    "erase": ("ID", "-y"),
    "erase --all": ("-y",),
    "erase --matching": ("party", "-y"),
    "history": ("ID",),
    "export": ("-",),
    "import": ("FILE", "--no-infer"),
    "chat": (),
    "cloud dry-run": ("Where is the party?",),
    "cloud never-send": (),
    "mcp": (),
}
SILENT = {"graph", "cloud never-send", "mcp"}  # without any word or row of who calls them
TOOLS: dict[str, dict[str, Any]] = {
    "add_memory": {"text": "I like tea.", "infer": False},
    "search_memories": {"query": "party", "filters": {"user_id": "tom"}},
    "search_relations": {"entity": "Tom"},
    "get_memory": {"memory_id": "ID"},
    "get_memories": {"filters": {"OR": [{"user_id": "tom"}, {"user_id": "maya"}]}},
    "update_memory": {"memory_id": "ID", "text": "hacked"},
    "delete_memory": {"memory_id": "ID"},
    "delete_all_memories": {},
}


def that_take_a_user(group, before=""):
    found: set[str] = set()
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            found |= that_take_a_user(command, f"{before}{name} ")
        elif any(parameter.name == "user_id" for parameter in command.params):
            found.add(before + name)
    return found


def of_tom(home):
    with Store.open(home / "memory.db") as store:
        return [row for row in store.export_rows() if row.get("user_id") == "tom"]


def test_the_table_has_every_command_that_takes_a_user():
    assert {name.partition(" --")[0] for name in CALLS} == that_take_a_user(cli)


@pytest.mark.parametrize("user", ["maya", "tom"])
@pytest.mark.parametrize("command", CALLS)
def test_a_command_reaches_its_users_memories_alone(run, home, toms, stand_in, command, user):
    stand_in(FakeEngine())
    if command.startswith("cloud"):
        set_value("cloud.base_url", "http://127.0.0.1:9/v1")
        set_value("cloud.model", "none")
    file = home / "chat.txt"
    file.write_text("I like tea.\n" if command != "import" else "Maya: I like tea.\n")
    before = of_tom(home)
    given = {"ID": toms, "FILE": str(file)}
    args = [*command.split(), *(given.get(arg, arg) for arg in CALLS[command])]
    typed = TYPED.replace("ID", toms) if command == "chat" else ""
    refused = user == "maya" and "ID" in CALLS[command]
    ended = run(*args, "--user-id", user, input=typed, code=int(refused))
    told = ended.stdout + ended.stderr
    if user == "maya":
        assert "Tom's party" not in told and "at the Lamplighter" not in told
        assert of_tom(home) == before
    elif command not in SILENT:  # so that the table says something
        assert "at the Lamplighter" in told or of_tom(home) != before


def test_a_tool_reaches_its_users_memories_alone(home, toms):
    pytest.importorskip("mcp", reason="needs the extra mcp")
    from mcp import Client

    from edgemem.server.mcp import mcp_server

    async def walk(memory):
        async with Client(mcp_server(memory, user_id="maya")) as client:
            assert {tool.name for tool in (await client.list_tools()).tools} == TOOLS.keys()
            asked = json.loads(json.dumps(TOOLS).replace('"ID"', f'"{toms}"'))
            return str([await client.call_tool(name, given) for name, given in asked.items()])

    before = of_tom(home)
    with Memory(home / "memory.db") as memory:
        told = asyncio.run(walk(memory))
    assert "Maya plays chess" in told and "Lamplighter" not in told
    assert of_tom(home) == before
