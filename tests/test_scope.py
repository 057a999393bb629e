"""Whose memories: a user, agent or run that is named is kept to, also where an ID is given."""

from __future__ import annotations

from pathlib import Path

import pytest
from clikit import Run

from edgemem.memory import Memory

pytestmark = [pytest.mark.models, pytest.mark.usefixtures("home")]

SECRET = "Tom's party is at the Lamplighter."


@pytest.fixture
def toms(home: Path) -> str:
    """The id of a memory of Tom's, in a store that Maya uses too."""
    with Memory(home / "memory.db") as memory:
        memory.add("Maya plays chess.", user_id="maya", infer=False)
        return memory.add(SECRET, user_id="tom", run_id="r1", infer=False)[0].id


def texts(home: Path, user: str) -> list[str]:
    with Memory(home / "memory.db") as memory:
        return [item.memory for item in memory.get_all(user_id=user)]


BY_ID = {
    "get": ("get", "ID"),
    "history": ("history", "ID"),
    "update": ("update", "ID", "hacked"),
    "delete": ("delete", "ID"),
    "erase": ("erase", "ID", "-y"),
}


@pytest.mark.parametrize("named", [("--user-id", "maya"), ("--agent-id", "bot"), ("--run-id", "r")])
@pytest.mark.parametrize("command", BY_ID)
def test_an_id_of_somebody_else_is_as_unknown_to_a_command(
    run: Run, home: Path, toms: str, command: str, named: tuple[str, str]
) -> None:
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
def test_an_id_is_found_whoevers_it_is_or_by_its_owner(
    run: Run, toms: str, command: str, named: tuple[str, ...]
) -> None:
    run(*[toms if arg == "ID" else arg for arg in BY_ID[command]], *named)


def test_one_id_of_somebody_else_keeps_all_in_place(run: Run, home: Path, toms: str) -> None:
    (mine,) = run("list", "--user-id", "maya").stdout.split("\t")[:1]
    for command in (("delete",), ("erase", "-y")):
        run(*command, mine, toms, "--user-id", "maya", code=1)
    assert (texts(home, "maya"), texts(home, "tom")) == (["Maya plays chess."], [SECRET])


def test_a_deleted_memory_of_somebody_else_is_not_told_to_be_one(run: Run, toms: str) -> None:
    run("delete", toms)
    assert "was deleted" in run("get", toms, "--user-id", "tom", code=1).stderr
    assert "deleted" not in run("get", toms, "--user-id", "maya", code=1).stderr
    run("history", toms, "--user-id", "tom")


def test_erase_all_tells_of_turns_that_no_memory_cites(run: Run, home: Path) -> None:
    with Memory(home / "memory.db") as memory:
        asked = {"role": "user", "content": "Where is the key?", "recalled": True}
        memory.add([asked, {**asked, "content": "And now?"}], user_id="default", infer=False)
        assert not memory.get_all()
    erased = run("erase", "--all", "--yes")
    assert erased.stderr.endswith("2 turns erased; no memories of user_id 'default'.\n")
    assert run("erase", "--all", "--yes").stderr == "No memories of user_id 'default'.\n"
