"""Two devices that sync over a line, and `edgemem sync`."""

import http.client
import json
import ssl
import time
from contextlib import closing
from pathlib import Path
from threading import Thread

import pytest
from clikit import invoke
from memorykit import quick

from bench.sync import digest
from edgemem.cli import output, typed
from edgemem.errors import InputError, StoreError
from edgemem.sync import network, pairing_code
from edgemem.sync import sync as sync_memory
from edgemem.sync.exchange import Directory, new_secret, secret_of
from edgemem.sync.network import MOST_BYTES, Remote, Server

DEVICE = "0123456789abcdef"


@pytest.fixture
def served(tmp_path):
    """A memory that another device can reach."""
    with quick(tmp_path / "a.db") as memory:
        folder = tmp_path / "a.db.sync"
        secret = secret_of(pairing_code(memory))
        server = Server(folder, secret, lambda: sync_memory(memory, folder), "127.0.0.1", 0)
        thread = Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield memory, server
        server.close()
        thread.join(5)


def call(server, method, path, **more):
    """The answer to a caller that has proven nothing."""
    context = ssl._create_unverified_context()
    line = http.client.HTTPSConnection("127.0.0.1", server.port, context=context, timeout=10)
    try:
        line.request(method, path, **more)
        answer = line.getresponse()
        return answer.status, answer.read()
    finally:
        line.close()


def test_two_devices_end_equal_and_a_quiet_caller_delays_nobody(served, tmp_path):
    a, server = served
    a.add("The boat is called Zanzibar.", user_id="ada", infer=False)
    silent = http.client.HTTPConnection("127.0.0.1", server.port)
    silent.connect()  # and says nothing, not even the beginning of TLS
    with quick(tmp_path / "b.db") as b:
        b.add("The cat sleeps.", user_id="ada", infer=False)
        code = pairing_code(a)
        remote = Remote(f"127.0.0.1:{server.port}", secret_of(code))
        remote.exchange_there()
        assert sync_memory(b, remote, code=code).received
        remote.exchange_there()
        assert digest(a.store) == digest(b.store) and len(a.get_all()) == 2
        a.erase([m.id for m in a.get_all()][:1])
        remote.exchange_there()
        assert sync_memory(b, remote).erased
        remote.close()
    silent.close()


def test_an_exchange_may_take_longer_than_a_silent_connection(tmp_path, monkeypatch):
    monkeypatch.setattr(network, "TIMEOUT_S", 0.5)
    monkeypatch.setattr(network._Handler, "timeout", 0.5)
    secret, done = new_secret(), []

    def exchanged():  # as of a device whose store another process works on
        time.sleep(1.0)
        done.append(1)

    server = Server(tmp_path / "folder", secret, exchanged, "127.0.0.1", 0)
    Thread(target=server.serve_forever, daemon=True).start()
    with closing(Remote(f"127.0.0.1:{server.port}", secret)) as remote:
        remote.exchange_there()
        time.sleep(1.0)  # while this device takes in what it got
        remote.exchange_there()
    server.close()
    assert done == [1, 1]


def test_nobody_without_the_code_gets_or_leaves_anything(served):
    memory, server = served
    sync_memory(memory, memory.store.path.with_name("a.db.sync"))
    address = f"127.0.0.1:{server.port}"
    with pytest.raises(InputError, match="another pairing code"):
        Remote(address, new_secret())
    for method, path in (("GET", "/"), ("POST", "/"), ("PUT", f"/{DEVICE}/head")):
        assert call(server, method, path) == (401, b"another pairing code")
    said = call(server, "GET", "/hello?x")[1].decode()
    assert call(server, "GET", "/", headers={"Authorization": said})[0] == 401
    remote = Remote(address, secret_of(pairing_code(memory)))
    token = {"Authorization": remote._token}
    for path in (f"/{DEVICE}/../../a.db", "/../a.db", f"/{DEVICE}/x", "/x/head", f"/{DEVICE}"):
        assert call(server, "GET", path, headers=token)[0] == 404
    for length in (str(MOST_BYTES + 1), "-1", "many", "9" * 5000):
        large = {**token, "Content-Length": length}
        assert call(server, "PUT", f"/{DEVICE}/head", headers=large)[0] == 413
    assert remote.names().keys() == {memory.store.select("SELECT device FROM sync_self")[0][0]}
    remote.close()


def test_a_caller_who_hangs_up_leaves_the_file_of_before(served):
    memory, server = served
    with closing(Remote(f"127.0.0.1:{server.port}", secret_of(pairing_code(memory)))) as remote:
        assert remote.names() == {}
        remote.write(DEVICE, "head", b"a whole head")
        context = ssl._create_unverified_context()
        line = http.client.HTTPSConnection("127.0.0.1", server.port, context=context, timeout=10)
        line.putrequest("PUT", f"/{DEVICE}/head")
        line.putheader("Authorization", remote._token)
        line.putheader("Content-Length", "100")
        line.endheaders(b"half a head")
        line.close()
        time.sleep(0.5)
        assert remote.read(DEVICE, "head") == b"a whole head"


def test_a_remote_that_cannot_be_used_is_closed(served, monkeypatch):
    closed: list[Remote] = []
    monkeypatch.setattr(Remote, "close", lambda self: (closed.append(self), self._http.close()))
    monkeypatch.setattr(network._Handler, "_handle", lambda self: self._send(500, b"broken"))
    for method in ("GET", "PUT"):
        monkeypatch.setattr(network._Handler, f"do_{method}", network._Handler._handle)
    with pytest.raises(StoreError, match=r"refused \(500: broken"):
        Remote(f"127.0.0.1:{served[1].port}", new_secret())
    assert len(closed) == 1


def test_a_file_that_vanishes_while_a_folder_is_listed_is_left_out(tmp_path):
    (tmp_path / DEVICE).mkdir()
    (tmp_path / DEVICE / "head").write_bytes(b"1234")
    (tmp_path / DEVICE / "0000000001.changes").symlink_to(tmp_path / "gone")
    assert Directory(tmp_path).names() == {DEVICE: {"head": 4}}


def test_a_proof_for_one_certificate_is_none_for_another(served, tmp_path):
    """Who stands between two devices can only show a certificate of their own."""
    memory, server = served
    honest = server.fingerprint
    between = Server(tmp_path / "x", secret_of(pairing_code(memory)), lambda: None, "127.0.0.1", 0)
    between.fingerprint = honest  # passes on the honest one's proof
    Thread(target=between.serve_forever, daemon=True).start()
    with pytest.raises(InputError, match="another pairing code"):
        Remote(f"127.0.0.1:{between.port}", secret_of(pairing_code(memory)))
    between.close()


def test_where_nobody_serves_the_error_says_what_to_start():
    for address in ("127.0.0.1:1", "127.0.0.1:99999", "", "[::1]:1"):
        with pytest.raises(StoreError, match="start `edgemem sync --serve` there"):
            Remote(address, new_secret())


def test_an_address_that_is_taken_is_told(served, tmp_path):
    with pytest.raises(StoreError, match="cannot listen on 127"):
        Server(tmp_path, new_secret(), lambda: None, "127.0.0.1", served[1].port)


# -- the command -----------------------------------------------------------------------------


def test_the_command_pairs_syncs_and_says_what_it_did(tmp_path, monkeypatch, served):
    monkeypatch.setattr(output, "open_memory", lambda db, **_: quick(db))
    a, b, folder = (str(tmp_path / name) for name in ("x.db", "y.db", "shared"))
    with quick(a) as memory:
        memory.add("hello there", user_id="ada", infer=False)
    first = invoke("sync", folder, "--db", a)
    code = invoke("sync", "--show-code", "--db", a).stdout.strip()
    assert f"edgemem sync FOLDER --code {code}" in first.stderr
    assert "another pairing code" in invoke("sync", folder, "--db", b, code=2).stderr
    assert "slip of the pen" in invoke("sync", folder, "--db", b, "--code", "x", code=2).stderr
    second = invoke("sync", folder, "--db", b, "--code", code)
    assert second.stdout.startswith("1 other device. Received ")
    shown = json.loads(invoke("sync", folder, "--db", a, "--json").stdout)
    assert shown["results"][0]["devices"] == 1 and shown["results"][0]["late"] == []
    assert invoke("sync", "--db", a, code=2).stderr
    assert invoke("sync", folder, "--serve", "--db", a, code=2).stderr
    memory, server = served
    address = f"127.0.0.1:{server.port}"
    fresh = str(tmp_path / "fresh.db")
    assert "no pairing code yet" in invoke("sync", "--with", address, "--db", fresh, code=1).stderr
    invoke("sync", "--with", address, "--db", fresh, "--code", pairing_code(memory))
    with quick(fresh) as other:
        assert digest(other.store) == digest(memory.store)


def test_a_mistyped_file_makes_no_store_and_a_code_makes_one(tmp_path):
    folder, a, b = (str(tmp_path / name) for name in ("shared", "a.db", "b.db"))
    with quick(a) as memory:
        code = pairing_code(memory)
    for asked in ([folder], ["--show-code"], ["--serve"], ["--with", "127.0.0.1:1"]):
        assert "There is no store" in invoke("sync", *asked, "--db", b, code=1).stderr
    assert not Path(b).exists()
    invoke("sync", folder, "--db", b, "--code", code)
    assert Path(b).exists()


def test_what_another_device_erases_leaves_the_chats_prompt_too(tmp_path, monkeypatch):
    monkeypatch.setenv("EDGEMEM_HOME", str(tmp_path))
    monkeypatch.setattr(output, "open_memory", lambda db, **_: quick(db))
    a, folder = str(tmp_path / "memory.db"), str(tmp_path / "shared")
    with quick(a) as memory:
        memory.add(["My password is xyzzy.", "I like tea."], user_id="ada", infer=False)
        sync_memory(memory, folder)
        code = pairing_code(memory)
    typed.remember_typed("/image x.png My password is xyzzy.")
    typed.remember_typed("I like tea.")
    with quick(tmp_path / "b.db") as other:
        sync_memory(other, folder, code)
        other.erase([item.id for item in other.get_all() if "xyzzy" in item.memory])
        sync_memory(other, folder)
    assert "Erased here" in invoke("sync", folder, "--db", a).stdout
    assert typed.typed_before() == ["I like tea."]
