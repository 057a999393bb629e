"""`edgemem cloud`, and `/cloud` in a chat."""

import json
import re
import tomllib

import pytest
from cloudkit import answer, service
from fake_engine import FakeEngine

from edgemem.config import load_settings, set_value, unset_value
from edgemem.errors import ConfigError
from edgemem.memory import Memory

pytestmark = pytest.mark.models

QUESTION = "Where does my sister Ingrid live?"


@pytest.fixture
def cloud(home):
    with service() as opened:
        set_value("cloud.base_url", opened.base_url)
        set_value("cloud.model", "gpt-4o-mini")
        yield opened


@pytest.fixture(autouse=True)
def _model(home, stand_in):
    stand_in(FakeEngine(pieces=("Local ", "answer.")))


def remember(run):
    run("add", "--no-infer", "My sister Ingrid lives at 12 Mill Road, Leeds.")


@pytest.mark.parametrize("command", [["status"], ["dry-run", "hello"]])
def test_without_a_cloud_the_commands_say_how_to_have_one(home, run, command):
    failed = run("cloud", *command, code=1)
    assert "the cloud is off" in failed.stderr and "cloud.base_url" in failed.stderr


def test_status_shows_service_price_and_budget(cloud, run):
    remember(run)
    set_value("cloud.monthly_budget", "5")
    shown = dict(line.split("\t") for line in run("cloud", "status").stdout.splitlines())
    assert shown["base_url"] == cloud.base_url and shown["key"] == "none needed"
    assert (shown["monthly_budget"], shown["spent_this_month"]) == ("5.0", "0.0")
    assert shown["input_price_per_million"] == "0.15"
    (row,) = json.loads(run("cloud", "status", "--json").stdout)["results"]
    assert row["model"] == "gpt-4o-mini" and row["calls"] == 0
    set_value("cloud.api_key_env", "EDGEMEM_TEST_KEY")
    assert "key\tmissing" in run("cloud", "status").stdout


def test_a_dry_run_prints_the_request_and_sends_nothing(cloud, run):
    remember(run)
    shown = run("cloud", "dry-run", QUESTION)
    assert shown.stdout.startswith(f"POST {cloud.base_url}/chat/completions\n")
    assert "[PERSON_1]" in shown.stdout and "[ADDRESS_1]" in shown.stdout
    assert "Ingrid" not in shown.stdout and "[PERSON_1] stands for Ingrid" in shown.stderr
    assert "Nothing was sent" in shown.stderr
    (row,) = json.loads(run("cloud", "dry-run", QUESTION, "--json").stdout)["results"]
    assert json.loads(row["body"])["model"] == "gpt-4o-mini"
    assert row["redacted"]["[PERSON_1]"] == "Ingrid" and len(row["memory_ids"]) == 1
    assert cloud.received == b""
    assert "no receipt of a cloud call" in run("cloud", "receipts").stderr


def test_a_dry_run_of_a_question_about_the_past_is_what_a_chat_sends(cloud, run, stand_in):
    first, then = "I live in Ghent.", "I live in Antwerp now."
    facts = {first: "{} lives in Ghent", then: "{} lives in Antwerp"}
    stand_in(FakeEngine(facts=facts, ends={"User lives in Antwerp": "User lives in Ghent"}))
    with Memory(load_settings().db) as memory:
        for text, day in ((first, "2024-01-05"), (then, "2025-02-01")):
            told = {"role": "user", "content": text, "timestamp": day}
            memory.add([told], user_id="default")
    asked = "Where did I live in March 2024?"
    (row,) = json.loads(run("cloud", "dry-run", asked, "--json").stdout)["results"]
    run("chat", input=f"/cloud {asked}\n")
    assert row["body"].encode() == cloud.calls[-1].body
    assert len(row["memory_ids"]) == 3  # one of them holds no longer, as a plain search knows


def test_a_mistyped_file_makes_no_store_unless_something_is_marked(cloud, run, tmp_path):
    file = tmp_path / "typo.db"
    for given in ([], ["--remove", "1"], ["--unmark", "x"], ["--memory", "x"]):
        assert (
            "There is no store"
            in run("cloud", "never-send", *given, "--db", str(file), code=1).stderr
        )
    assert not file.exists()
    assert "/c.t/" in run("cloud", "never-send", "--pattern", "/c.t/", "--db", str(file)).stdout


def test_a_dry_run_takes_neither_key_nor_price_and_tells_no_secret_that_stays_out(cloud, run):
    remember(run)
    set_value("cloud.api_key_env", "EDGEMEM_TEST_KEY")
    set_value("cloud.model", "our-own")
    set_value("cloud.monthly_budget", "5")
    for number in range(9):  # so much that compression drops some of it
        run("add", "--no-infer", f"My sister Ingrid has the phone number 0113 496 000{number}.")
    set_value("cloud.context_tokens", "64")
    shown = run("cloud", "dry-run", QUESTION)
    assert "at an unknown cost: prices.toml has no price of 'our-own'" in shown.stderr
    content = json.loads(shown.stdout.splitlines()[-1])["messages"][-1]["content"]
    (row,) = json.loads(run("cloud", "dry-run", QUESTION, "--json").stdout)["results"]
    assert row["cost_at_most"] is None and "[PERSON_1]" in row["redacted"]
    assert set(re.findall(r"\[[A-Z]+_\d+\]", content)) == row["redacted"].keys()
    assert shown.stderr.count("stands for") == len(row["redacted"]) < 8
    assert cloud.received == b""


def test_never_send_marks_and_lists(cloud, run):
    remember(run)
    id = json.loads(run("list", "--json").stdout)["results"][0]["id"]
    run("cloud", "never-send", "--memory", id, "--pattern", "/c.t/")
    run("cloud", "never-send", "--run-id", "clinic")
    set_value("cloud.never_send", "salary")
    shown = run("cloud", "never-send").stdout.splitlines()
    assert shown == [
        "1\t/c.t/",
        "2\tclinic",
        "config\tsalary",
        f"{id}\tMy sister Ingrid lives at 12 Mill Road, Leeds.",
    ]
    assert "ADDRESS_1" not in run("cloud", "dry-run", QUESTION).stdout
    assert "never_send" in run("cloud", "dry-run", "What is my salary?", code=1).stderr
    run("cloud", "never-send", "--unmark", id, "--remove", "1", "--remove", "2")
    unset_value("cloud.never_send")
    assert "Nothing is marked." in run("cloud", "never-send").stderr
    assert "ADDRESS_1" in run("cloud", "dry-run", QUESTION).stdout
    assert "regular expressions" in run("cloud", "never-send", "--pattern", "/(/", code=2).stderr


def test_a_chat_asks_the_cloud_when_told_to(cloud, run):
    remember(run)
    cloud.behaviour = lambda call: call.reply(answer("[PERSON_1] lives in Leeds."))
    shown = run("chat", input=f"/cloud {QUESTION}\n/why\n")
    answered, *sent = shown.stdout.splitlines()
    assert answered == "Ingrid lives in Leeds."
    assert sent[0] == "My notes:" and sent[-1] == QUESTION.replace("Ingrid", "[PERSON_1]")
    assert "Ingrid" not in "".join(sent) and "12 Mill Road" not in "".join(sent)
    assert "from the cloud: gpt-4o-mini, asked" in shown.stderr
    line = run("cloud", "receipts").stdout.rstrip().split("\t")
    assert line[1:3] == [f"{cloud.base_url} gpt-4o-mini", "answered"]
    (row,) = json.loads(run("cloud", "receipts", "--json").stdout)["results"]
    assert row["prompt_tokens"] == 40 and row["sent_sha256"].startswith(line[-1])


def test_a_chat_answers_itself_and_says_so_when_the_cloud_fails(cloud, run):
    cloud.behaviour = lambda call: call.reply(b"", 500)
    shown = run("chat", input="/cloud Good morning to you!\n")
    assert shown.stdout == "Local answer.\n"
    assert "answered here: the cloud failed (status 500)" in shown.stderr
    row = json.loads(run("chat", "--json", input="/cloud Good morning!\n").stdout)
    assert row["cloud"] is None and "status 500" in row["cloud_error"]


def test_a_chat_without_a_cloud_or_key_goes_on(home, run):
    shown = run("chat", input="/cloud hello\nGood morning!\n", code=1)
    assert "the cloud is off" in shown.stderr and shown.stdout == "Local answer.\n"
    set_value("cloud.base_url", "http://localhost:9/v1")
    set_value("cloud.model", "m")
    set_value("cloud.api_key_env", "EDGEMEM_TEST_KEY")
    shown = run("chat", input="Good morning!\n")
    assert "No cloud: " in shown.stderr and shown.stdout == "Local answer.\n"


# -- settings ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "value", "allowed"),
    [
        ("cloud.base_url", "api.example.com", "a URL such as"),
        ("cloud.base_url", "http://api.example.com/v1", "home network only"),
        ("cloud.base_url", "https://user:pass@example.com/v1", "no user name"),
        ("cloud.base_url", "https://example.com/v1?key=1", "or query"),
        ("cloud.api_key_env", "sk-abcdef", "the name of an environment variable"),
        ("cloud.monthly_budget", "-1", "a number from 0"),
        ("cloud.monthly_budget", "nan", "a number from 0"),
        ("cloud.max_retries", "9", "a whole number from 0 to 5"),
        ("cloud.min_confidence", "2", "a number from 0 to 1"),
        ("cloud.max_tokens_name", "limit", "max_completion_tokens"),
        ("cloud.never_send", "/(/", "regular expressions"),
        ("cloud.never_send", "[1]", "a list of texts"),
        ("cloud.model", " ", "non-empty text"),
    ],
)
def test_a_bad_setting_is_refused_and_no_secret_repeated(home, key, value, allowed):
    with pytest.raises(ConfigError) as caught:
        set_value(key, value)
    assert key in str(caught.value) and allowed in str(caught.value)
    assert "sk-abcdef" not in str(caught.value) and "user:pass" not in str(caught.value)
    assert not (home / "config.toml").exists()


def test_good_addresses_are_taken(home):
    for url in ("https://api.example.com/v1/", "http://localhost:8080/v1", "http://192.168.1.7/v1",
                "http://[::1]:80/v1"):  # fmt: skip
        set_value("cloud.base_url", url)
        assert load_settings().cloud.base_url == url.rstrip("/")


def test_settings_are_written_into_their_own_table(home):
    file = home / "config.toml"
    file.write_text('# mine\ntop_k = 3\n\n[cloud]\n# the service\nmodel = "a"\n', encoding="utf-8")
    set_value("cloud.never_send", '["x y", "/z/"]')
    set_value("user_id", "ada")
    set_value("cloud.model", "b")
    unset_value("top_k")
    assert tomllib.loads(file.read_text(encoding="utf-8")) == {
        "user_id": "ada",
        "cloud": {"model": "b", "never_send": ["x y", "/z/"]},
    }
    assert "# mine" in file.read_text() and "# the service" in file.read_text()
    assert load_settings().cloud.never_send == ("x y", "/z/")
    assert load_settings().user_id == "ada"


def test_the_environment_goes_before_the_file(home, monkeypatch):
    set_value("cloud.model", "file")
    monkeypatch.setenv("EDGEMEM_CLOUD_MODEL", "environment")
    monkeypatch.setenv("EDGEMEM_CLOUD_NEVER_SEND", "one\ntwo words")
    monkeypatch.setenv("EDGEMEM_CLOUD_MONTHLY_BUDGET", "2.5")
    found = load_settings().cloud
    assert (found.model, found.monthly_budget) == ("environment", 2.5)
    assert found.never_send == ("one", "two words") and not found.enabled


def test_an_unknown_key_of_the_table_is_named(home):
    (home / "config.toml").write_text("[cloud]\nurl = 1\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"Unknown setting 'cloud\.url'"):
        load_settings()
