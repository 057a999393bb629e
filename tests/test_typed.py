"""What was typed at the prompt of a chat: each user's own, in a file that nobody else is shown."""

import json

import pytest
from fake_engine import FakeEngine
from serverkit import running

import edgemem.server
from edgemem.cli import output, typed
from edgemem.memory import Memory
from edgemem.results import Scope

pytestmark = [pytest.mark.models, pytest.mark.usefixtures("home")]

TOM, MAYA, SHOP = Scope("tom"), Scope("maya"), Scope("maya", "shop", "week48")
SECRET = "The party is at the Lamplighter."


@pytest.fixture
def store(home):
    """The usual store, in which Tom and Maya have said something."""
    with Memory(home / "memory.db") as memory:
        memory.add(["Hello", SECRET], user_id="tom", infer=False)
        memory.add("I play chess.", user_id="maya", infer=False)
    return home / "memory.db"


def before(whose, *lines):
    """What a chat of theirs brings back; then they type these lines."""
    with output.open_memory(None):
        typed.of_user(whose)
        found = typed.typed_before()
        for line in lines:
            typed.remember_typed(line)
        return found


def test_each_user_agent_and_run_has_a_file_of_its_own(store):
    for whose in (TOM, MAYA, SHOP):
        assert before(whose, f"I am {whose}") == []
    for whose in (TOM, MAYA, SHOP):
        assert before(whose) == [f"I am {whose}"]
    assert len(typed.kept_files()) == 3
    assert all(file.stat().st_mode & 0o077 == 0 for file in typed.kept_files())


def test_files_that_earlier_versions_shared_are_wiped(run, store):
    with output.open_memory(None):
        files = [store.with_name("chat_history"), typed._start()]
    for file in files:
        file.write_text(f"{SECRET}\n")
    before(TOM, "Hi")
    run("list")
    assert not any(file.exists() for file in files)
    assert before(TOM) == ["Hi"]


def test_a_reset_by_the_server_removes_all_that_was_typed(run, store):
    before(TOM, "/memories party")
    before(MAYA, "/why")

    def serve(memory, **given):
        with running(memory, allow_reset=True, on_erase=given["on_erase"]) as server:
            server.ok("POST", "/reset")

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Memory, "engine", FakeEngine())
        patched.setattr(Memory, "index", None)
        patched.setattr(edgemem.server, "serve", serve)
        run("serve")
    assert (before(TOM), before(MAYA)) == ([], [])


def test_erasing_all_of_a_user_erases_all_that_they_typed_and_nothing_of_others(run, store):
    before(TOM, SECRET, "/memories party")
    before(MAYA, "I play chess.", "/forget Leo")
    before(SHOP, "/why")
    run("erase", "--all", "-y", "--user-id", "maya", "--agent-id", "shop")
    assert (before(MAYA), before(SHOP)) == (["I play chess.", "/forget Leo"], [])
    before(SHOP, "/why")
    run("erase", "--all", "-y", "--user-id", "maya")
    assert (before(MAYA), before(SHOP)) == ([], [])
    assert before(TOM) == [SECRET, "/memories party"]


def test_a_store_in_memory_neither_reads_writes_nor_erases_what_was_typed(run, store):
    before(Scope("default"), SECRET)
    before(TOM, "Hi")
    with output.open_memory(":memory:", create=True):
        typed.of_user(TOM)
        assert (typed.typed_before(), typed.kept_files()) == ([], [])
        typed.remember_typed("I am here.")
        typed.forget_typed([SECRET])
    run("erase", "--all", "-y", "--db", ":memory:")
    run("erase", "--all", "-y", "--user-id", "tom", "--db", ":memory:")
    assert (before(Scope("default")), before(TOM)) == ([SECRET], ["Hi"])


def test_what_is_erased_leaves_the_files_of_all_users(run, store):
    before(TOM, SECRET, "Hi")
    before(MAYA, f"/memories {SECRET}", "Hello there")
    run("erase", "--matching", "Lamplighter", "-y", "--user-id", "tom")
    assert (before(TOM), before(MAYA)) == (["Hi"], ["Hello there"])


def test_an_erase_by_words_takes_the_lines_that_name_them_too(run, store):
    """Lines that searched for the words, and messages that were never stored, had stayed."""
    before(TOM, "/memories LAMPLIGHTER", "/forget lamplighter", "The lamplighter's?", "/forget Leo")
    before(MAYA, "Is it at the Lamplighter?")
    told = json.loads(run("doctor", "--erased", "--json").stdout)["results"][0]["typed"]
    assert (told["lines"], len(told["files"])) == (5, 2)
    run("erase", "--matching", "Lamplighter", "-y", "--user-id", "tom")
    assert (before(TOM), before(MAYA)) == (["/forget Leo"], ["Is it at the Lamplighter?"])
    result = run("erase", "--matching", "leo", "--user-id", "tom")
    assert result.stderr.endswith("the words 'leo'. 1 typed line had, and went.\n")
    assert before(TOM) == []


def test_doctor_counts_no_line_that_is_a_message_or_has_no_words(run, store):
    before(TOM, SECRET, "/why", "/forget 1,2", f"/cloud {SECRET}")
    assert "\ntyped\tlines 0, files /" in run("doctor", "--erased").stdout
    assert "typed" not in run("doctor").stdout


def test_doctor_counts_the_words_of_a_command_and_neither_a_limit_nor_a_photos_name(run, store):
    harmless = ["/budget none", "/image cat.jpg", "/image 'my cat.jpg'", r"/image my\ cat.jpg"]
    before(TOM, *harmless, f"/image cat.jpg {SECRET}")
    assert "\ntyped\tlines 0, files /" in run("doctor", "--erased").stdout
    before(MAYA, "/memories Lena", "/forget Lena", "/cloud Is Lena in?", "/image cat.jpg It's Lena")
    assert "\ntyped\tlines 4, files /" in run("doctor", "--erased").stdout


def test_a_vault_seals_the_files_of_all_users_and_gives_them_back(run, store):
    pytest.importorskip("nacl", reason="needs the extra vault")
    before(TOM, SECRET)
    before(MAYA, "I play chess.")
    run("vault", "lock", "--with", "file")
    assert not any(b"Lamplighter" in file.read_bytes() for file in typed.kept_files())
    assert (before(TOM), before(MAYA)) == ([SECRET], ["I play chess."])
    run("vault", "unlock", "-y")
    assert (before(TOM), before(MAYA)) == ([SECRET], ["I play chess."])
