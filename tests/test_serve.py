"""`edgemem serve`: the token, what it listens on, and that it ends well."""

import http.client
import json
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from fake_engine import FakeEngine
from memorykit import quick

import edgemem.server
from edgemem import config
from edgemem.cli import output
from edgemem.cli.typed import history_file, remember_typed
from edgemem.errors import ConfigError
from edgemem.server import app, serve
from edgemem.server.asgi import load_token, require_safe, token_file

pytestmark = pytest.mark.usefixtures("empty_home")


# -- the token -----------------------------------------------------------------------------------


def test_the_token_is_made_once_and_is_its_owners_alone():
    token, made = load_token()
    assert made and len(token) >= 32 and token_file().stat().st_mode & 0o777 == 0o600
    assert load_token() == (token, False)
    token_file().unlink()
    assert load_token()[0] != token


@pytest.mark.parametrize(
    ("text", "mode", "message"),
    [
        *((text, 0o600, "holds no token")
          for text in ("", "short", "two words of a token", "ümläute-ümläute-ü")),
        ("a-token-of-the-tests", 0o640, r"may be read by others \(mode 640\); delete it"),
    ],
)  # fmt: skip
def test_a_file_without_a_token_or_that_others_may_read_is_refused(text, mode, message):
    token_file().write_text(text, encoding="utf-8")
    token_file().chmod(mode)
    with pytest.raises(ConfigError, match=message):
        load_token()


def test_a_folder_that_cannot_be_written_is_told(monkeypatch):
    monkeypatch.setenv("EDGEMEM_HOME", "/proc/none")
    with pytest.raises(ConfigError, match="set EDGEMEM_HOME"):
        load_token()


def test_show_token_prints_it_alone(run):
    shown = run("serve", "--show-token").stdout
    assert shown == f"{token_file().read_text().strip()}\n"
    assert run("serve", "--show-token").stdout == shown


@pytest.fixture
def started(monkeypatch):
    """What `serve` was asked for, each time that the command has started it."""
    found: list[dict[str, Any]] = []
    monkeypatch.setattr(output, "open_memory", lambda *_, **__: quick(engine=FakeEngine()))
    monkeypatch.setattr(edgemem.server, "serve", lambda memory, **given: found.append(given))
    return found


def test_at_a_terminal_the_token_is_shown_at_the_first_start_alone(run, monkeypatch, started):
    monkeypatch.setattr(output, "stderr_is_terminal", lambda: True)
    first = run("serve", "--queue", "3", "--allow-host", "memory.lan", "--allow-reset")
    token = token_file().read_text().strip()
    assert token in first.stderr and str(token_file()) in " ".join(first.stderr.split())
    assert token not in run("serve").stderr and first.stdout == ""
    given = started[0]
    assert (given["host"], given["port"], given["token"]) == ("127.0.0.1", 8765, token)
    assert (given["hosts"], given["allow_reset"]) == (("memory.lan",), True)
    assert given["limits"].queue == 3 and not started[1]["allow_reset"]


def test_the_address_with_the_token_is_told_at_a_terminal_alone(
    run, monkeypatch, capsys,
    started,
):  # fmt: skip
    url = "http://127.0.0.1:8765"
    run("serve")
    token = token_file().read_text().strip()
    started[0]["on_ready"](url)
    told = capsys.readouterr().err
    assert f"Listening on {url}." in told and token not in told
    monkeypatch.setattr(output, "stderr_is_terminal", lambda: True)
    started[0]["on_ready"](url)
    shown = capsys.readouterr()
    assert f"{url}/#token={token}" in shown.err and shown.out == ""


def test_what_the_page_erases_leaves_the_chats_prompt_too(run, started):
    remember_typed("My password is xyzzy.")
    remember_typed("Hello.")
    run("serve")
    started[0]["on_erase"](["My password is xyzzy."])
    assert history_file().read_text() == "Hello.\n"


def test_an_application_of_ones_own_takes_the_same_token():
    with quick(engine=FakeEngine()) as memory:
        made = app(memory)
        assert load_token()[1] is False
        made.state.service.close()


# -- where it may listen -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("host", "safe"),
    [("0.0.0.0", False), ("::", False), ("192.168.0.7", False), ("memory.lan", False),
     ("127.0.0.1", True), ("::1", True), ("localhost", True)],
)  # fmt: skip
def test_beyond_loopback_wants_tls_or_a_clear_word_and_half_of_tls_is_refused(host, safe):
    wanted = nullcontext() if safe else pytest.raises(ConfigError, match="--tls-key, or --insecure")
    with wanted:
        require_safe(host, None, None, insecure=False)
    require_safe(host, None, None, insecure=True)
    require_safe(host, "cert.pem", "key.pem", insecure=False)
    with pytest.raises(ConfigError, match="both a certificate and its key"):
        require_safe(host, "cert.pem", None, insecure=True)


def test_the_command_refuses_before_it_loads_a_model(run):
    refused = run("serve", "--host", "0.0.0.0", code=2)
    assert refused.stdout == "" and "--insecure" in refused.stderr


def test_a_taken_port_and_a_bad_certificate_are_one_error(tmp_path):
    with quick() as memory, socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1:{port}.*in use"):
            serve(memory, port=port)
        bad = tmp_path / "bad.pem"
        bad.write_text("no certificate")
        with pytest.raises(ConfigError, match="give PEM files of one pair"):
            serve(memory, port=0, tls_cert=bad, tls_key=bad)
        assert not memory.closed


# -- the packages --------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["serve", "mcp"])
def test_a_missing_extra_is_told_with_the_line_that_installs_it(run, monkeypatch, command):
    monkeypatch.setattr(config, "find_spec", lambda name: None)
    told = run(command, code=1).stderr
    assert f'pip install "edgemem-runtime[{command}]"' in told


# -- the whole command ---------------------------------------------------------------------------


class Command:
    """`edgemem serve` as a process of its own, with the bundled models."""

    def __init__(self, home, *options):
        self.process = subprocess.Popen(
            [sys.executable, "-m", "edgemem", "serve", "--port", "0", *options],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={**os.environ, "EDGEMEM_HOME": str(home), "EDGEMEM_TUNED": "off",
                 "PYTHONPATH": str(Path(__file__).parents[1])},
        )  # fmt: skip
        self.told = ""
        while "Listening on" not in self.told:
            line = self.process.stderr.readline()
            assert line, self.told
            self.told += line
        self.port = int(re.findall(r"Listening on https?://[^:]+:(\d+)", self.told)[0])
        self.token = (home / "server_token").read_text().strip()

    def call(self, connection, method, path, body=None):
        headers = {"Authorization": f"Bearer {self.token}"}
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        response = connection.getresponse()
        return response.status, response.read().decode()

    def end(self, kind):
        self.process.send_signal(kind)
        out, err = self.process.communicate(timeout=60)
        return self.process.returncode, out, err


@pytest.mark.models
@pytest.mark.slow
def test_it_serves_over_tls_and_ends_with_a_signal_having_lost_nothing(tmp_path):
    cert, key = certificate(tmp_path)
    command = Command(tmp_path, "--tls-cert", str(cert), "--tls-key", str(key))
    assert command.token not in command.told  # stderr is no terminal
    context = ssl.create_default_context(cafile=str(cert))
    connection = http.client.HTTPSConnection("localhost", command.port, timeout=60, context=context)
    said = {"messages": "I live in Oslo.", "user_id": "ana", "infer": False}
    assert command.call(connection, "POST", "/memories", said)[0] == 200
    asked = [{"role": "user", "content": "Where do I live?"}]
    model = "smollm2-135m-instruct-q4_1"
    chat = {"model": model, "messages": asked, "user": "ana", "stream": True}
    status, text = command.call(connection, "POST", "/v1/chat/completions", chat)
    assert status == 200 and "Oslo" in text and text.endswith("data: [DONE]\n\n")
    connection.close()  # TLS would wait for its word of farewell
    code, out, err = command.end(signal.SIGTERM)
    assert (code, out, err) == (0, "", "")  # no access log, and the store is closed
    again = Command(tmp_path)
    plain = http.client.HTTPConnection("127.0.0.1", again.port, timeout=60)
    assert "I live in Oslo." in again.call(plain, "GET", "/memories?user_id=ana")[1]
    assert again.end(signal.SIGINT)[0] == 0


def certificate(folder):
    """A certificate for localhost, signed by itself, and its key."""
    cert, key = folder / "cert.pem", folder / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
         "-nodes", "-days", "2", "-subj", "/CN=localhost", "-addext",
         "subjectAltName=DNS:localhost", "-keyout", str(key), "-out", str(cert)],
        check=True, capture_output=True,
    )  # fmt: skip
    return cert, key
