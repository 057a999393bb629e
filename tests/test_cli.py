"""The command line: data on stdout, everything else on stderr, errors in one line."""

import json
import os
import re
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from fake_engine import FakeEngine

import edgemem
from edgemem.cli import cli
from edgemem.cli.typed import history_file, remember_typed
from edgemem.memory import Memory

pytestmark = [pytest.mark.models, pytest.mark.usefixtures("home")]

CAT = "My cat is called Tom."


def results(result):
    found = json.loads(result.stdout)
    assert next(iter(found)) == "results"
    return list(found["results"])


def added(run, *texts, **options):
    """The ids of texts stored without inference."""
    return [row["id"] for row in results(run("add", "--no-infer", "--json", *texts, **options))]


@pytest.fixture
def store(home):
    """An empty store where the settings have it."""
    Memory(home / "memory.db").close()
    return home / "memory.db"


def subcommands():
    found = []
    for name, command in cli.commands.items():
        found.append(name)
        found += [f"{name} {sub}" for sub in getattr(command, "commands", {})]
    return found


# -- help, version, start ------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["", *subcommands()])
def test_every_command_has_help_and_json_and_db_where_they_make_sense(run, command):
    shown = run(*command.split(), "--help").stdout
    assert shown.startswith(f"Usage: edgemem {command}".rstrip())
    usage, _, about = shown.partition("\n\n")
    assert about.strip() and not about.startswith("Options:") and "Options:" in shown, usage
    without = {"", "models", "config", "cloud", "train", "train combine", "demo-answer", "vault"}
    without |= {"serve", "mcp"}  # what they say is a protocol
    assert ("--json" in shown) == (command not in without)
    alone = {"", "models", "config", "compress", "profile", "train"}
    stores = command not in ("cloud", "vault") and command.partition(" ")[0] not in alone
    assert ("--db" in shown) == stores


def test_version_names_models_backend_and_llama_build(run):
    lines = run("--version").stdout.splitlines()
    assert lines[0] == f"edgemem {edgemem.__version__}"
    named = ["model", "embedder", "vectors", "llama.cpp", "processor"]
    assert [line.split(":")[0] for line in lines[1:]] == named
    assert "smollm2-135m-instruct-q4_1 (package)" in lines[1]
    assert "llama-cpp-python" in lines[4]


def test_version_says_whether_careful_searches_have_their_model(run, monkeypatch):
    monkeypatch.setenv("EDGEMEM_RETRIEVAL", "careful")
    assert "token embedder: colbert-small-v1-int8 (" in run("--version").stdout


def test_help_loads_no_heavy_module():
    code = (
        "import sys; from edgemem.cli import cli\n"
        "try: cli(['--help'])\n"
        "except SystemExit: pass\n"
        "heavy = {'numpy', 'sqlite3', 'llama_cpp', 'onnxruntime', 'hnswlib', 'rich'}\n"
        "heavy |= {'prompt_toolkit', 'edgemem.language'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


# -- errors --------------------------------------------------------------------------------------


FAILED, MISUNDERSTOOD, INTERRUPTED = 1, 2, 130


@pytest.mark.usefixtures("store")
@pytest.mark.parametrize(
    ("code", "args", "message"),
    [
        (FAILED, ("get", "no-such"), "There is no memory 'no-such'. `edgemem list` and `edgemem "),
        (FAILED, ("update", "no-such", "x"), "There is no memory 'no-such'"),
        (FAILED, ("delete", "no-such"), "There is no memory 'no-such'."),
        (FAILED, ("erase", "no-such"), "There is no memory 'no-such'."),
        (FAILED, ("history", "no-such"), "There is no memory 'no-such'."),
        (FAILED, ("list", "--db", "/proc/none/x.db"), "/proc/none"),
        (FAILED, ("models", "where", "nothing"), "There is no model 'nothing'"),
        (FAILED, ("vault", "unlock"), "is a plain store already"),
        (FAILED, ("vault", "export-recovery"), "is no vault"),
        (FAILED, ("cloud", "status"), "cloud.base_url"),
        (FAILED, ("sync", "--with", "nowhere"), "this device has no pairing code yet"),
        (MISUNDERSTOOD, ("add", "--no-infer", ""), "empty"),
        (MISUNDERSTOOD, ("add", "--no-infer", "x", "--timestamp", "soon"), "soon"),
        (MISUNDERSTOOD, ("search", "x", "--threshold", "2"), "threshold is 2.0"),
        (MISUNDERSTOOD, ("search", "x", "--filters", '{"a": {"near": 1}}'), "near"),
        (MISUNDERSTOOD, ("config", "get", "colour"), "Unknown setting 'colour' in the call"),
        (MISUNDERSTOOD, ("config", "set", "colour", "red"), "Unknown setting 'colour' in the call"),
        (MISUNDERSTOOD, ("config", "set", "top_k", "many"), "top_k = 'many'"),
        (MISUNDERSTOOD, ("config", "unset", "colour"), "Unknown setting 'colour'"),
        (MISUNDERSTOOD, ("cloud", "never-send", "--pattern", "/(/"), "regular expressions between"),
        (MISUNDERSTOOD, ("profile", "--rounds", "0"), "rounds is 0"),
        (MISUNDERSTOOD, ("profile", "--budget", "much"), "'much' is no budget"),
        (MISUNDERSTOOD, ("serve", "--host", "0.0.0.0"), "can be reached by others"),
        (MISUNDERSTOOD, ("sync", "x", "--code", "no"), "slip of the pen"),
        (MISUNDERSTOOD, ("import", "{damaged}"), "damaged.json is JSON of no form that is read. "),
        (MISUNDERSTOOD, ("add", "--image", "{damaged}"), "the image is of no known kind"),
        (MISUNDERSTOOD, ("demo", "--conversation", "{damaged}"), "lacks 'sessions'"),
    ],
)
def test_an_error_is_one_line_on_stderr_and_its_code_tells_which_kind(
    run, code, args, message, tmp_path
):
    damaged = tmp_path / "damaged.json"
    damaged.write_text('{"neither": "nor"}')
    result = run(*(str(damaged) if a == "{damaged}" else a for a in args), code=code)
    (last,) = result.stderr.splitlines()
    assert result.stdout == "" and last.startswith("Error: ") and message in last


@pytest.mark.usefixtures("store")
@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("search",), "Give a QUERY, or an --image"),
        (("delete",), "Give either IDs or --all"),
        (("delete", "x", "--all"), "Give either IDs or --all"),
        (("search", "x", "--filters", "{"), "Invalid value for '--filters': '{' is not JSON"),
        (("add", "x", "--metadata", "[1]"), "'[1]' is JSON, but no object"),
        (("import", "/no/such/file"), "does not exist"),
        (("fly",), "No such command 'fly'"),
    ],
)
def test_wrong_usage_has_the_code_of_what_is_not_understood(run, args, message):
    result = run(*args, code=MISUNDERSTOOD)
    assert result.stdout == "" and message in " ".join(result.stderr.split())


@pytest.mark.usefixtures("store")
def test_ctrl_c_ends_a_command_quietly_with_130(run, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("edgemem.memory.Memory.get_all", interrupted)
    listed = run("list", code=INTERRUPTED)
    assert (listed.stdout, listed.stderr) == ("", "")


@pytest.mark.usefixtures("store")
@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
@pytest.mark.parametrize(("typed", "code"), [("\x03", INTERRUPTED), ("n\n", FAILED)])
def test_ctrl_c_at_a_question_is_told_from_a_no(run, typed, code):
    from termkit import Terminal

    with Terminal("from edgemem.__main__ import main; main()", "erase", "--all") as terminal:
        terminal.wait_for("[y/N]")
        while terminal.process.poll() is None:  # a Ctrl-C just before the read waits for the next
            terminal.type(typed)
            with suppress(subprocess.TimeoutExpired):
                terminal.process.wait(5)
        assert terminal.ended() == code and b"Traceback" not in terminal.raw


LOGGED = """
import _thread, ctypes, signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
import edgemem.runtime.embedder
from edgemem.cli import main
from edgemem.memory import Memory

@ctypes.CFUNCTYPE(None)
def log():  # as llama.cpp's is: an error in it is lost
    sys.settrace(again)
    _thread.interrupt_main()

def get_all(*_, **__):
    log()
    sys.settrace(None)
    while True:
        time.sleep(0.01)

Memory.get_all = get_all
sys.argv[1:] = ["list"]
main()
"""


AGAIN = """
def again(*_):
    raise KeyboardInterrupt  # as a second Ctrl-C does, in the first line of Python that runs
"""


@pytest.mark.usefixtures("store")
@pytest.mark.parametrize("again", ["again = None", AGAIN])
def test_ctrl_c_while_c_calls_back_is_not_lost_even_if_another_comes(again):
    command = [sys.executable, "-c", again + LOGGED]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (INTERRUPTED, "", "")


HOOKED = """
import signal, sys, time, types
from edgemem.cli import _repeat_interrupts
signal.signal(signal.SIGINT, signal.default_int_handler)
_repeat_interrupts()
for kind in (None, KeyboardInterrupt):
    sys.unraisablehook(types.SimpleNamespace(exc_type=kind))
try:
    time.sleep(20)
except KeyboardInterrupt:
    print("interrupted")
"""


def test_an_error_without_a_type_loses_no_later_ctrl_c():
    command = [sys.executable, "-c", HOOKED]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("interrupted\n", "")


ENDING = """
import sys
from edgemem.cli import main
class Late:
    def __del__(self):
        raise ValueError("too late")
late = Late()
sys.argv[1:] = ["--version"]
main()
"""


def test_an_error_while_python_ends_is_still_said():
    command = [sys.executable, "-c", ENDING]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and "too late" in done.stderr


def test_ctrl_c_while_the_commands_are_imported_ends_quietly():
    code = (
        "import sys\n"
        "class Interrupted:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'edgemem.cli': raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupted())\n"
        "from edgemem.__main__ import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (INTERRUPTED, "", "")
    scripts = Path(edgemem.__file__).parent.parent / "pyproject.toml"
    assert 'edgemem = "edgemem.__main__:main"' in scripts.read_text(encoding="utf-8")


def edgemem_in_a_shell(command):
    line = f'"{sys.executable}" -m edgemem {command}'
    # Buffered, as a user's is: then a refusal may come as late as the end of the process.
    env = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    return subprocess.run(line, shell=True, capture_output=True, text=True, env=env)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("command", ["list", "list --json", "export", "--help", "get -h"])
def test_output_that_is_refused_is_an_error_of_one_line(run, command):
    added(run, "My cat is Tom")
    done = edgemem_in_a_shell(f"{command} >/dev/full")
    assert done.stderr == "Error: Cannot write the output: No space left on device.\n"
    assert done.returncode == 1


@pytest.mark.skipif(sys.platform == "win32", reason="needs a shell that closes streams")
@pytest.mark.parametrize(
    ("command", "code", "message"),
    [
        ("export >&-", 0, ""),
        ("add --no-infer <&-", 2, "Error: the content of the message is empty"),
        ("get no-such 2>&-", 1, ""),
    ],
)
def test_a_stream_that_is_closed_is_an_empty_one(run, command, code, message):
    added(run, "My cat is Tom")
    done = edgemem_in_a_shell(command)
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr.startswith(message) and done.stderr.count("\n") == (1 if message else 0)


@pytest.mark.parametrize("encoding", ["latin-1", "cp1252", "ascii"])
def test_files_and_pipes_get_utf_8_whatever_the_locale_says(run, encoding, monkeypatch, tmp_path):
    said = "Zoë’s café in Łódź 🚲"
    added(run, said)
    monkeypatch.setenv("PYTHONIOENCODING", encoding)
    backup = tmp_path / "backup.jsonl"
    assert edgemem_in_a_shell(f"export > {backup}").returncode == 0
    assert said in backup.read_text(encoding="utf-8")
    copy = tmp_path / "copy.db"
    run("import", str(backup), "--db", str(copy))
    assert said in edgemem_in_a_shell(f"list --db {copy}").stdout


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
def test_a_terminal_shows_a_question_mark_for_a_character_that_it_lacks(run):
    from termkit import Terminal

    added(run, "Łódź has a café")
    code = "from edgemem.cli import main; main()"
    with Terminal(code, "list", PYTHONIOENCODING="cp1252") as terminal:
        assert terminal.ended() == 0
        assert "?ód? has a caf".encode("cp1252") in terminal.raw


def test_a_file_that_is_no_store_is_refused_and_left_alone(run, tmp_path):
    foreign = tmp_path / "foreign.db"
    foreign.write_bytes(b"not a database at all" * 100)
    result = run("list", "--db", str(foreign), code=1)
    assert result.stderr.startswith("Error: ") and str(foreign) in result.stderr
    assert foreign.read_bytes() == b"not a database at all" * 100


@pytest.mark.parametrize(
    "command",
    [
        "search x", "list", "get x", "history x", "graph", "export", "update x y", "delete x",
        "erase x", "reindex", "align", "cloud receipts", "vault unlock",
    ],
)  # fmt: skip
def test_a_command_that_needs_a_store_makes_none_at_a_mistyped_path(run, home, command):
    for options, path in (((), "memory.db"), (("--db", str(home / "typo.db")), "typo.db")):
        told = run(*command.split(), *options, code=1).stderr
        assert told.startswith(f"Error: There is no store at {home / path}: nothing was remembered")
        assert "`edgemem add TEXT` or `edgemem chat` makes one" in told
    assert list(home.iterdir()) == []


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("import {damaged}", MISUNDERSTOOD),
        ("import --format chat {damaged}", MISUNDERSTOOD),
        ("add --image {damaged}", MISUNDERSTOOD),
        ("add --no-infer x --role nobody", MISUNDERSTOOD),
        ("cloud never-send --memory no-such --pattern x", FAILED),
        ("serve --port {taken}", FAILED),
        ("serve --model none.gguf", FAILED),
        ("chat --model none.gguf", FAILED),
    ],
)
def test_a_command_that_fails_before_it_writes_leaves_no_store(run, home, tmp_path, command, code):
    damaged = tmp_path / "damaged.txt"
    damaged.write_text('{"neither": "nor"}')
    with socket.create_server(("127.0.0.1", 0)) as taken:
        words = command.format(damaged=damaged, taken=taken.getsockname()[1]).split()
        run(*words, code=code)
    assert list(home.glob("*.db*")) == []


@pytest.mark.usefixtures("store")
def test_a_variable_that_nothing_reads_is_told_once_with_the_nearest_name(run, monkeypatch):
    for name in ("EDGEMEM_N_THREAD", "EDGEMEM_zzz", "EDGEMEM_MY_KEY", "EDGEMEM_BACKEND"):
        monkeypatch.setenv(name, "2" if "THREAD" in name else "")
    monkeypatch.setenv("EDGEMEM_CLOUD_API_KEY_ENV", "EDGEMEM_MY_KEY")
    listed = run("list", "--json")
    assert listed.stdout and sorted(listed.stderr.splitlines()) == [
        "EDGEMEM_N_THREAD is set, but edgemem does not read it. Did you mean EDGEMEM_N_THREADS?",
        "EDGEMEM_zzz is set, but edgemem does not read it. `edgemem config show` lists settings.",
    ]


# -- memories ------------------------------------------------------------------------------------


def test_add_search_get_list_update_delete_history(run):
    first, second = added(
        run, "I moved to Oslo", "My cat is Tom", "--metadata", '{"topic": "home"}',
        "--timestamp", "2024-05-01T10:00:00Z",
    )  # fmt: skip
    best = results(run("search", "where do I live, Oslo?", "--json", "--explain"))[0]
    assert best["id"] == first and best["parts"] and best["metadata"]["topic"] == "home"
    (only,) = results(run("search", "cat", "--top-k", "1", "--json"))
    assert only["id"] == second
    assert results(run("search", "cat", "--threshold", "1", "--json")) == []

    shown = run("get", first).stdout
    assert "memory\tI moved to Oslo\n" in shown
    assert "said\t2024-05-01 10:00 user: I moved to Oslo\n" in shown
    (said,) = results(run("get", first, "--json"))[0]["said"]
    assert (said["role"], said["content"]) == ("user", "I moved to Oslo")
    assert run("list").stdout.splitlines() == [
        f"{first}\t2024-05-01 10:00\tI moved to Oslo",
        f"{second}\t2024-05-01 10:00\tMy cat is Tom",
    ]
    filters = json.dumps({"id": {"ne": first}})
    assert [row["id"] for row in results(run("list", "--filters", filters, "--json"))] == [second]

    for command in (("list",), ("search", "Oslo")):
        then = results(run(*command, "--at", "2024-04-01T00:00:00Z", "--json"))
        assert then == [] and results(run(*command, "--at", "2024-06-01T00:00:00Z", "--json"))

    assert run("update", first, "I live in Bergen").stdout == f"{first}\tUPDATE\tI live in Bergen\n"
    assert run("delete", first).stdout == f"{first}\tDELETE\tI live in Bergen\n"
    assert "With --all: do not ask." in run("delete", "--help").stdout
    events = [row["event"] for row in results(run("history", first, "--json"))]
    assert events == ["ADD", "UPDATE", "DELETE"]
    lines = run("history", first).stdout.splitlines()
    assert lines[1].split("\t")[1:] == ["UPDATE", "I moved to Oslo", "I live in Bergen"]
    assert [row["id"] for row in results(run("list", "--json"))] == [second]


def test_json_is_what_to_dict_gives(run, home):
    added(run, "My cat is Tom")
    with Memory(home / "memory.db") as memory:
        listed = memory.get_all(user_id="default").to_dict()
        found = memory.search("cat", user_id="default", explain=True).to_dict()
    assert json.loads(run("list", "--json").stdout) == listed
    assert json.loads(run("search", "cat", "--explain", "--json").stdout) == found


def test_text_is_taken_from_stdin_whole(run):
    added(run, input="two\nlines\n")
    added(run, input="größe".encode())
    assert [row["memory"] for row in results(run("list", "--json"))] == ["two\nlines", "größe"]
    assert run("list").stdout.splitlines()[0].endswith("\ttwo lines")
    result = run("add", "--no-infer", input=b"caf\xe9", code=2)
    assert "Standard input is not UTF-8 text: byte 3 is 0xe9" in result.stderr


def test_characters_that_steer_a_terminal_are_not_printed(run):
    added(run, "red \x1b[31malert\x07")
    assert "\x1b" not in run("list").stdout and "red \ufffd[31malert\ufffd" in run("list").stdout
    assert results(run("list", "--json"))[0]["memory"] == "red \x1b[31malert\x07"


def test_joined_emoji_and_words_are_printed_whole_and_what_turns_a_text_is_not(run):
    joined = "\U0001f469\u200d\U0001f467 \u2764\ufe0f \u0645\u06cc\u200c\u062e\u0648\u0627"
    added(run, joined, "pay \u202e\u2066\u200b\u2028now")
    first, second = run("list").stdout.splitlines()
    assert first.endswith(f"\t{joined}") and second.endswith("\tpay \ufffd\ufffd\ufffd now")


def test_a_list_is_in_the_order_of_the_times_that_it_shows(run):
    for day in ("2024-05-03", "2024-05-01", "2024-05-02"):
        added(run, f"on {day}", "--timestamp", f"{day}T10:00:00Z")
    shown = [line.split("\t")[1][:10] for line in run("list").stdout.splitlines()]
    assert shown == ["2024-05-01", "2024-05-02", "2024-05-03"]
    rows = results(run("list", "--top-k", "2", "--json"))
    assert [row["memory"] for row in rows] == ["on 2024-05-01", "on 2024-05-02"]
    run("list", "--top-k", "-1", code=2)


def test_a_deleted_memory_is_told_from_one_that_never_was(run):
    (gone,) = added(run, "the sky is blue")
    run("delete", gone)
    for command in ("get", "delete"):
        told = run(command, gone, code=1).stderr
        assert f"The memory {gone!r} was deleted. `edgemem history {gone}` shows" in told
        assert run(command, gone, "--user-id", "default", code=1).stderr == told
        told = run(command, gone, "--user-id", "ana", code=1).stderr
        assert f"There is no memory {gone!r} of user_id 'ana'." in told


def test_scopes_and_the_settings_user_keep_people_apart_and_are_named(run):
    added(run, "ada's", "--user-id", "ada", "--agent-id", "helper", "--run-id", "r1")
    added(run, "mine")
    run("config", "set", "user_id", "ada")
    assert [row["memory"] for row in results(run("list", "--json"))] == ["ada's"]
    assert results(run("list", "--run-id", "r2", "--json")) == []
    scope = ("--user-id", "bo", "--run-id", "r1")
    assert run("list", *scope).stderr == "No memories of user_id 'bo', run_id 'r1'.\n"
    assert run("search", "cat", *scope).stderr == "Nothing found for user_id 'bo', run_id 'r1'.\n"
    assert [r["memory"] for r in results(run("list", "--user-id", "default", "--json"))] == ["mine"]


def test_delete_all_asks_and_keeps_to_its_scope_and_a_wrong_id_deletes_none(run):
    added(run, "a", "b")
    added(run, "c", "--user-id", "bo")
    refused = run("delete", "--all", input="n\n", code=1)
    assert refused.stdout == "" and "Delete 2 memories of user_id 'default'?" in refused.stderr
    assert len(results(run("delete", "--all", "--json", input="y\n"))) == 2
    assert results(run("list", "--json")) == []
    assert len(results(run("list", "--user-id", "bo", "--json"))) == 1
    assert results(run("delete", "--all", "--yes", "--json")) == []
    (only,) = added(run, "a")
    run("delete", only, "wrong", code=1)  # one wrong id, and none is deleted
    assert len(results(run("list", "--json"))) == 1


def test_erase_shows_asks_and_leaves_no_byte(run, home):
    secret, kept = added(run, "the password is xyzzy-plugh", "the sky is blue")
    remember_typed("the password is  xyzzy-plugh")
    remember_typed("the sky is blue")
    refused = run("erase", secret, input="n\n", code=1)
    assert "  memory the password is xyzzy-plugh\n" in refused.stderr
    assert "  said user: the password is xyzzy-plugh\n" in refused.stderr
    run("delete", secret)  # what was deleted can still be erased
    assert results(run("erase", secret, "--yes", "--json")) == [{"id": secret, "event": "ERASE"}]
    assert [row["id"] for row in results(run("list", "--json"))] == [kept]
    assert history_file().read_text() == "the sky is blue\n"
    for file in home.iterdir():
        assert b"xyzzy" not in file.read_bytes(), file


def test_erase_all_asks_takes_what_was_deleted_and_keeps_to_its_scope(run, home):
    (gone,) = added(run, "the password is xyzzy-plugh")
    added(run, "c", "--user-id", "bo")
    run("delete", gone)
    refused = run("erase", "--all", input="n\n", code=1)
    assert "that was ever said and remembered of user_id 'default'?" in refused.stderr
    run("erase", gone, "--all", code=2)
    assert results(run("erase", "--all", "--yes", "--json")) == [{"id": gone, "event": "ERASE"}]
    assert len(results(run("list", "--user-id", "bo", "--json"))) == 1
    assert not any(b"xyzzy" in file.read_bytes() for file in home.iterdir())


def test_erase_matching_takes_all_that_has_a_name(run, home):
    told = ("Hannah's tea is mint.", "i met hannah  Smith", "Hannahs are many", "The sky is blue.")
    ids = added(run, *told)
    run("delete", ids[0])
    added(run, "Hannah Smith is my sister.", "--user-id", "bo")
    run("erase", ids[0], "--matching", "hannah", code=2)
    run("erase", "--matching", " ", code=2)
    assert "No memory of user_id 'default'" in run("erase", "--matching", "nobody").stderr
    shown = run("erase", "--matching", "HANNAH", input="n\n", code=1).stderr
    assert "  memory Hannah's tea is mint.\n" in shown and "many" not in shown
    gone = results(run("erase", "--matching", "hannah smith", "--yes", "--json"))
    assert [row["id"] for row in gone] == [ids[1]]
    gone = results(run("erase", "--matching", "hannah", "--yes", "--json"))
    assert [row["id"] for row in gone] == [ids[0]]
    assert len(results(run("list", "--user-id", "bo", "--json"))) == 1
    assert not any(b"mint" in file.read_bytes() for file in home.iterdir())


def test_erase_matching_takes_what_had_the_name_before_an_edit(run, home):
    edited, accent = added(run, "My brother Benjamin lives in Rome.", "Jose\u0301 O’Neil came.")
    run("update", edited, "My brother lives in Rome.")
    gone = results(run("erase", "--matching", "benjamin", "--yes", "--json"))
    assert [row["id"] for row in gone] == [edited]
    assert not any(b"Benjamin" in file.read_bytes() for file in home.iterdir())
    gone = results(run("erase", "--matching", "jos\u00e9 o'neil", "--yes", "--json"))
    assert [row["id"] for row in gone] == [accent]
    assert results(run("erase", "--matching", "nobody", "--yes", "--json")) == []


def test_erase_matching_takes_all_that_somebody_of_that_name_said(run, home):
    told = [
        "[2024-05-01 09:00] Jens Holm: The kiln was dear.",
        "[2024-05-01 09:01] Eva: Jens comes at six.",
        "[2024-05-01 09:02] +44 7700 900123: My knee hurts.",
        "[2024-05-01 09:03] Eva: Fine weather.",
    ]
    (home / "chat.txt").write_text("\n".join(told))
    run("import", str(home / "chat.txt"), "--no-infer", "--me", "Eva")
    shown = run("erase", "--matching", "jens", input="n\n", code=1).stderr
    assert "1 memory with the words 'jens'; 1 memory more said by one so called.\n" in shown
    assert "  memory Jens Holm: The kiln was dear.\n" in shown
    assert len(results(run("erase", "--matching", "Jens", "--yes", "--json"))) == 2
    shown = run("erase", "--matching", "+44 7700 900123", "--yes").stderr
    assert "0 memories with the words '+44 7700 900123'; 1 memory said by one so called." in shown
    assert [row["memory"] for row in results(run("list", "--json"))] == ["Fine weather."]
    assert not any(b"kiln" in file.read_bytes() for file in home.iterdir() if file.suffix != ".txt")


def test_delete_says_that_the_words_of_a_fact_stay(run, stand_in):
    stand_in(FakeEngine(facts={CAT: "{}'s cat is called Tom"}))
    turn, fact = results(run("add", CAT, "--json"))
    assert (
        "What was said stays, and may still answer (1 message)" in run("delete", fact["id"]).stderr
    )
    assert "stays" not in run("delete", turn["id"]).stderr


def test_a_message_and_its_own_fact_are_deleted_together(run, stand_in):
    stand_in(FakeEngine(facts={CAT: "{} has a cat called Tom"}))
    turn, fact = (row["id"] for row in results(run("add", "--json", CAT)))
    gone = results(run("delete", turn, fact, "--json"))
    assert [row["id"] for row in gone] == [turn]
    assert results(run("list", "--json")) == []


def test_a_long_erase_is_shown_in_part_and_typed_lines_go_all(run):
    lines = [f"line {n}" for n in range(14)]
    for text in lines:
        remember_typed(text)
    ids = added(run, *lines)
    shown = run("erase", *ids, input="y\n").stderr.splitlines()
    assert shown[0] == "This would go for good:"
    assert shown[11] == "  and 4 memories more" and shown[22] == "  and 4 turns more"
    assert history_file().read_text() == ""


def test_inference_runs_through_the_engine(run, stand_in):
    stand_in(FakeEngine(facts={CAT: "{}'s cat is called Tom"}))
    rows = results(run("add", CAT, "--json"))
    told = [("turn", CAT), ("fact", "User's cat is called Tom")]
    assert [(row["kind"], row["memory"]) for row in rows] == told


# -- export and import ---------------------------------------------------------------------------


def test_an_export_imported_exports_the_same(run, home):
    ids = added(run, "one", "two", "three")
    run("delete", ids[0])
    everything = run("export").stdout
    assert all(json.loads(line)["type"] for line in everything.splitlines())
    file = home / "out.jsonl"
    assert f"rows written to {file}" in run("export", str(file)).stderr
    assert file.read_text(encoding="utf-8") == everything
    other = str(home / "other.db")
    row = results(run("import", str(file), "--db", other, "--json"))[0]
    assert row["format"] == "edgemem" and row["imported"] == len(everything.splitlines())
    assert run("export", "--db", other).stdout == everything
    again = results(run("import", str(file), "--db", other, "--json"))[0]
    assert (again["imported"], again["skipped"]) == (0, row["imported"])


@pytest.mark.usefixtures("store")
@pytest.mark.parametrize(
    "option",
    [("--user-id", "bo"), ("--agent-id", "a"), ("--run-id", "r"), ("--me", "Bo"), ("--no-infer",)],
)
def test_an_export_takes_no_scope_and_nothing_is_imported(run, home, option):
    log, file = chat_log(home / "log.txt", 3), home / "out.jsonl"
    added(run, "one", "--db", str(home / "other.db"))
    run("export", str(file), "--db", str(home / "other.db"))
    told = " ".join(run("import", *option, str(log), str(file), code=2).stderr.split())
    assert f"{file} is an export, which keeps its own users, agents and runs" in told
    assert results(run("list", "--json")) == []


def test_logs_without_times_that_begin_alike_are_two_logs(run, tmp_path):
    for name, last in (("one.txt", "Bo: my cat is Tom"), ("two.txt", "Bo: the sky is blue")):
        file = tmp_path / name
        file.write_text(f"Ana: hi\n{last}\n")
        (row,) = results(run("import", "--no-infer", str(file), "--json"))
        assert (row["imported"], row["skipped"]) == (2, 0)
    (row,) = results(run("import", "--no-infer", str(file), "--json"))
    assert (row["imported"], row["skipped"]) == (0, 2)


def chat_log(path, lines):
    text = [f"[2024-05-01 {n // 60:02}:{n % 60:02}] {'Ada' if n % 2 else 'Bo'}: turn {n}\n"
            for n in range(lines)]  # fmt: skip
    path.write_text("".join(text))
    return path


def test_a_chat_log_is_imported_once_and_goes_on_where_it_grew(run, tmp_path):
    file = chat_log(tmp_path / "log.txt", 70)
    first = run("import", "--no-infer", str(file))
    assert first.stdout == "" and "70 turns imported." in first.stderr
    (row,) = results(run("import", "--no-infer", str(chat_log(file, 75)), "--json"))
    assert (row["imported"], row["skipped"], row["memories"], row["format"]) == (5, 70, 5, "chat")
    items = results(run("list", "--json"))
    assert [item["memory"] for item in items] == [f"turn {n}" for n in range(75)]
    assert items[0]["metadata"]["speaker"] == "Bo"
    assert "\tBo: turn 0\n" in run("list", "-k", "1").stdout
    run("delete", "--all", "--yes")  # nothing that was deleted is brought back
    (row,) = results(run("import", "--no-infer", str(file), "--json"))
    assert row["imported"] == 0 and results(run("list", "--json")) == []
    # Another user's memory is another matter.
    (row,) = results(run("import", "--no-infer", str(file), "--user-id", "bo", "--json"))
    assert row["imported"] == 75


def test_locomo_is_imported_in_pairs_with_inference(run, tmp_path, stand_in):
    said = [("Nia", "I bought a red boat."), ("Omar", "Nice!"), ("Nia", "See you.")]
    conversation = {
        "speaker_a": "Nia", "speaker_b": "Omar", "session_1_date_time": "1:56 pm on 8 May, 2023",
        "session_1": [
            {"speaker": who, "dia_id": f"D1:{n}", "text": text}
            for n, (who, text) in enumerate(said, 1)
        ],
    }  # fmt: skip
    file = tmp_path / "conv-0.json"
    file.write_text(json.dumps({"conversation": conversation, "qa": []}))
    stand_in(FakeEngine(facts={"I bought a red boat.": "{} bought a red boat"}))
    (row,) = results(run("import", str(file), "--json"))
    assert (row["format"], row["imported"], row["memories"], row["pending"]) == ("locomo", 3, 4, 0)
    found = results(run("search", "red boat", "--json"))
    assert "red boat" in found[0]["memory"]
    assert found[0]["valid_from"].startswith("2023-05-08T13:56")
    turns = [item["metadata"] for item in results(run("list", "--json")) if item["kind"] == "turn"]
    assert sorted(turn["dia_id"] for turn in turns) == ["D1:1", "D1:2", "D1:3"]
    assert {turn["sample_id"] for turn in turns} == {"conv-0"}


# -- reindex, doctor, models, config -------------------------------------------------------------


def test_doctor_lists_pending_work_and_retries_it(run, stand_in):
    engine = FakeEngine(facts={CAT: "{}'s cat is called Tom"})
    engine.broken = True
    stand_in(engine)
    result = run("add", CAT)
    assert "1 piece of work left for later: see `edgemem doctor`." in result.stderr
    (report,) = results(run("doctor", "--json"))
    assert report["problems"] == [] and report["counts"]["pending"] == 1
    assert report["pending"][0]["attempts"] == 1 and report["pending"][0]["last_error"]
    assert "1 failed try\t" in run("doctor").stdout

    engine.broken = False
    (report,) = results(run("doctor", "--retry", "--json"))
    assert report["pending"] == []
    assert [row["memory"] for row in report["retried"]] == ["User's cat is called Tom"]
    assert "problem\tnone\n" in run("doctor").stdout


def test_doctor_makes_no_store_of_a_mistyped_name(run, home):
    assert "There is no store" in run("doctor", "--db", str(home / "typo.db"), code=1).stderr
    assert not (home / "typo.db").exists()


@pytest.mark.usefixtures("store")
def test_doctor_speaks_in_words_and_its_json_in_json(run):
    lines = run("doctor").stdout
    assert "encrypted\tno\n" in lines and "aligned_from\tnone\n" in lines
    lines += run("doctor", "--erased").stdout
    assert not re.search(r"True|False|None|[\[{]", lines)
    (report,) = results(run("doctor", "--json"))
    assert report["encrypted"] is False and report["aligned_from"] is None


def test_the_doctor_sends_nobody_to_the_doctor(run, home):
    added(run, *(f"word{n} " * 20 for n in range(60)))
    raw = next(home.glob("*.db")).read_bytes()
    damaged = home / "b.db"
    damaged.write_bytes(raw[: len(raw) // 2])
    assert "edgemem doctor" in run("list", "--db", str(damaged), code=1).stderr
    told = run("doctor", "--db", str(damaged), code=1)
    assert "edgemem doctor" not in told.output
    assert "backup" in told.output and "export" not in told.output  # which cannot open it either


@pytest.mark.usefixtures("store")
def test_doctor_ends_with_1_on_a_problem(run, monkeypatch):
    monkeypatch.setattr("edgemem.store.Store.check", lambda _self: ["a page is torn"])
    assert "problem\ta page is torn\n" in run("doctor", code=1).stdout


def test_a_command_that_loads_no_model_needs_no_memory_for_one(run):
    (id,) = added(run, "I live in Oslo")
    run("config", "set", "memory_limit", "50MB")
    assert "Oslo" in run("list").stdout and "Oslo" in run("export").stdout
    assert "Oslo" in run("get", id).stdout and "ADD" in run("history", id).stdout
    assert "it takes" in run("search", "Oslo", code=1).stderr
    assert "the memory limit is 50 MB" in run("doctor", code=1).stdout
    assert "the memory limit is 50 MB" in run("doctor", "--retry", code=1).stderr
    assert id in run("erase", "--all", "--yes").stdout


def test_reindex_embeds_everything_anew(run):
    added(run, "one", "two")
    assert results(run("reindex", "--json")) == [{"reindexed": 2}]
    assert "2 embedded anew." in run("reindex").stderr


def test_align_brings_a_store_to_a_new_embedder(run, home):
    db = "--db", str(home / "other.db")
    run("add", "--no-infer", "one", "two", *db)
    assert results(run("align", "--json", *db)) == [{"mapped": 0, "embedded": 0}]
    assert "are the embedder's already" in run("align", *db).stderr
    with Memory(home / "other.db") as memory, memory.store.transaction() as tx:
        tx.set_meta("embedder_model", "another@1")
    assert "edgemem align" in run("search", "one", *db, code=1).stderr
    assert "0 mapped, 2 embedded anew." in run("align", *db).stderr
    assert len(results(run("search", "one", "--json", *db))) == 2


def test_models_are_listed_found_and_verified(run, home, monkeypatch):
    rows = {row["name"]: row for row in results(run("models", "list", "--json"))}
    assert rows["minilm-l6-v2-int8"]["source"] == "package"
    bundled = rows["smollm2-135m-instruct-q4_1"]
    assert (bundled["source"], bundled["reader"]) in (("package", "expert"), ("missing", None))
    assert rows["minilm-l6-v2-int8"]["reader"] is None
    assert len(run("models", "list").stdout.splitlines()) == len(rows)
    path = Path(run("models", "where", "minilm-l6-v2-tokenizer").stdout.strip())
    assert path.is_file()
    assert run("models", "where").stdout.strip() == str(home / "models")
    assert run("models", "verify", "minilm-l6-v2-tokenizer").stdout.endswith("\tok\n")
    bad = home / "models" / "minilm-l6-v2-tokenizer.json"
    bad.parent.mkdir()
    bad.write_text("{}")
    result = run("models", "verify", "minilm-l6-v2-tokenizer", code=1)
    assert result.stdout.endswith("\tdamaged\n") and "Delete a damaged file" in result.stderr
    monkeypatch.setattr("edgemem.runtime.models.pull", lambda name, progress: home / name)
    assert run("models", "pull", "some").stdout == f"{home / 'some'}\n"


def test_config_is_shown_set_and_unset(run, home):
    assert run("config", "path").stdout == f"{home / 'config.toml'}\n"
    assert run("config", "get", "top_k").stdout == "10\n"
    result = run("config", "set", "top_k", "3")
    assert result.stdout == "top_k\t3\n" and "config.toml" in result.stderr
    assert {"key": "top_k", "value": 3} in results(run("config", "show", "--json"))
    assert run("config", "unset", "top_k").stdout == "top_k\t10\n"
    assert "db\t" in run("config", "show").stdout
