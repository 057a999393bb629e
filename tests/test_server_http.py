"""The server under raw HTTP: what is refused, and clients that are slow, gone or many."""

import json
import re
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest
from fake_engine import FakeEngine
from hypothesis import given, settings
from hypothesis import strategies as st
from memorykit import quick, texts
from serverkit import HI, TOKEN, answer_of, running, slowly, until
from starlette.routing import Route

from edgemem.errors import InputError
from edgemem.server import Limits, app
from edgemem.server.asgi import host_allowed, is_loopback
from edgemem.server.service import BUCKETS_S, Metrics

CHAT = "/v1/chat/completions"


@pytest.fixture(scope="module")
def server():
    limits = Limits(body_bytes=2000)
    with (
        quick(engine=FakeEngine()) as memory,
        running(memory, limits=limits, hosts=["memory.lan"]) as found,
    ):
        yield found


# -- who may call --------------------------------------------------------------------------------


def test_only_health_is_told_without_the_token(server):
    assert server.call("GET", "/healthz", token=None)[::2] == (200, {"status": "ok"})
    for method, path in (
        ("GET", "/metrics"), ("GET", "/v1/models"), ("POST", CHAT), ("GET", "/memories?user_id=a"),
        ("GET", "/lora-adapters"), ("GET", "/no/such/path"), ("OPTIONS", CHAT),
        ("GET", "/healthz/"),
    ):  # fmt: skip
        for wrong in (None, "", TOKEN[:-1], f"{TOKEN}x", "\xff"):
            status, headers, _ = server.call(method, path, token=wrong)
            assert (status, headers["www-authenticate"]) == (401, "Bearer"), path


def test_the_token_is_not_taken_twice_nor_under_another_scheme(server):
    assert server.call("GET", "/metrics", token=None, Authorization=f"Basic {TOKEN}")[0] == 401
    assert server.call("GET", "/metrics", token=None, Authorization=f"bearer {TOKEN}")[0] == 200
    assert answer_of(server.send("GET /metrics", f"Authorization: Bearer {TOKEN}"))[0] == 401


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("evil.example", 421), ("localhost.evil.example", 421), ("127.0.0.1.evil.example", 421),
        ("192.168.0.7", 421), ("", 421), ("memory.lan", 200), ("Memory.LAN:8765", 200),
        ("localhost:1", 200), ("[::1]:9", 200), ("127.0.0.1", 200),
    ],
)  # fmt: skip
def test_a_page_that_names_this_machine_its_own_way_is_refused(server, host, status):
    """DNS rebinding; also what needs no token does not tell it that we are here."""
    for path in ("/healthz", "/", "/inspect/overview"):
        assert answer_of(server.send(f"GET {path}", host=host))[0] == status


def test_beyond_loopback_any_address_may_be_called_but_no_name():
    called = ("192.168.0.7:8765", "[fe80::1]:8765", "evil.example:8765")
    assert [host_allowed(host, (), anywhere=True) for host in called] == [True, True, False]
    hosts = ("127.8.8.8", "::1", "LOCALHOST", "0.0.0.0", "x")
    assert [is_loopback(host) for host in hosts] == [True, True, True, False, False]


@given(st.text())
def test_no_host_header_breaks_the_check(header):
    if host_allowed(header, (), anywhere=False):
        assert any(name in header.lower() for name in ("localhost", "127.", "::1", "::ffff:", "0:"))


def test_no_other_page_may_read_an_answer(server):
    for origin in ("https://evil.example", "null", "http://127.0.0.1:1", "http://localhost"):
        status, headers, _ = server.call("GET", "/healthz", Origin=origin)
        assert status == 403
        assert not [name for name in headers if name.startswith("access-control")]
    own = f"http://127.0.0.1:{server.port}"
    assert server.call("GET", "/healthz", Origin=own)[0] == 200


def test_the_callers_memory_stays_open():
    with quick() as memory:
        with running(memory) as server:
            assert server.call("GET", "/healthz")[0] == 200
        assert not memory.closed


# -- what is sent --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "not JSON"), (b"{", "not JSON"), (b"\xff\xfe", "not JSON"), (b"[1]", "is list"),
        (b'{"temperature": NaN}', "no JSON number"), (b"[" * 1900, "not JSON"),
        (b"null", "is NoneType"),
    ],
)  # fmt: skip
def test_bad_json_is_refused_in_words(server, body, message):
    status, _, told = server.call("POST", CHAT, body)
    assert status == 400 and message in told["error"]["message"]
    status, _, told = server.call("POST", "/search", body)
    assert status == 400 and message in told["detail"]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)
FIELDS = st.sampled_from(
    "model messages user stream max_tokens temperature top_p stop seed stream_options n tools "
    "response_format".split()
)


@settings(max_examples=60)
@given(st.dictionaries(FIELDS, JSON))
def test_no_body_of_a_chat_makes_the_server_fail(server, body):
    data = json.dumps({**HI, **body}).encode()
    if len(data) < 2000:
        assert server.call("POST", CHAT, data)[0] in (200, 400, 404)


@pytest.mark.parametrize(
    ("header", "body"),
    [
        ("Content-Length: 99999999999", b""),  # refused before it is read
        ("Transfer-Encoding: chunked", b"800\r\n" + b"x" * 0x800 + b"\r\n"),  # how large, unsaid
    ],
)
def test_a_body_that_is_too_large_is_refused(server, header, body):
    status, told = answer_of(server.send("POST /search", header, body=body))
    assert status == 413 and "larger than 2,000 bytes" in told


def test_a_head_that_never_comes_is_not_waited_for():
    with quick() as memory, running(memory, limits=Limits(receive_s=0.3)) as server:
        for sent in (b"", b"GET /healthz HTTP/1.1\r\nHost: loc"):
            with socket.create_connection(("127.0.0.1", server.port), timeout=30) as silent:
                silent.sendall(sent)
                assert silent.recv(9) == b""
        with server.send("GET /healthz") as kept:  # the same where one has come before it
            answer = kept.recv(9999)
            assert b"200 OK" in answer
            while not answer.endswith(b"}"):
                answer += kept.recv(9999)
            kept.sendall(b"GET")
            assert kept.recv(9) == b""


def test_connections_beyond_the_limit_are_told_so_and_later_ones_are_answered():
    with quick() as memory, running(memory, limits=Limits(connections=3)) as server:
        address = ("127.0.0.1", server.port)
        held = [socket.create_connection(address, timeout=30) for _ in range(3)]
        until(lambda: len(server.connections) == 3)
        for _ in range(20):
            with socket.create_connection(address, timeout=30) as one:
                assert one.recv(999).startswith(b"HTTP/1.1 503 ")
        for connection in held:
            connection.close()
        until(lambda: not server.connections)
        assert server.call("GET", "/healthz")[0] == 200


def test_a_body_that_never_comes_is_not_waited_for():
    with quick() as memory, running(memory, limits=Limits(receive_s=0.1)) as server:
        connection = server.send("POST /search", "Content-Length: 10", body=b"{")
        assert answer_of(connection)[0] == 408


def test_what_is_not_offered_is_told_in_the_shape_of_its_neighbours(server):
    assert "error" in server.call("GET", "/v1/no")[2]
    assert server.call("GET", "/no")[2]["detail"].startswith("GET /no is not offered")
    status, headers, _ = server.call("DELETE", "/search")
    assert (status, headers["allow"]) == (405, "POST")


def test_the_readme_lists_the_routes():
    readme = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ((?:GET|POST)[A-Z, ]*) \| (.*?) \|", readme, re.M)
    listed = {
        (method, path)
        for methods, paths in rows
        for method in methods.split(", ")
        for path in re.findall("`(.*?)`", paths)
    }
    with quick() as memory:
        served = {
            (method, route.path.replace(":path}", "}"))
            for route in app(memory, token=TOKEN).routes
            if isinstance(route, Route) and not re.match("/(page/|inspect/|$)", route.path)
            for method in (route.methods or set()) - {"HEAD"}
        }
    assert listed == served


def test_a_fault_of_ours_tells_no_text(monkeypatch):
    with quick() as memory, running(memory) as server:
        monkeypatch.setattr(memory, "search", lambda *_a, **_k: 1 / 0)
        status, _, told = server.call("POST", "/search", {"query": "x", "user_id": "a"})
        assert (status, told) == (500, {"detail": "the server failed; its own messages say how"})
        assert 'route="/search",status="500"} 1' in server.call("GET", "/metrics")[2]


def test_limits_are_numbers_above_zero():
    with pytest.raises(InputError, match="limit queue is 0; it must be above 0"):
        Limits(queue=0)


# -- clients that are slow, gone, or many --------------------------------------------------------


def test_a_client_that_hangs_up_ends_the_answer_and_the_next_is_answered():
    with slowly() as (server, slow, _):
        for stream in (True, False):
            before = slow.given
            with server.begin(CHAT, {**HI, "stream": stream}) as connection:
                until(lambda before=before: slow.given > before)
                assert not stream or connection.recv(10)
            until(lambda stream=stream: slow.ended == 2 - stream)
        slow.free.set()
        assert server.call("POST", CHAT, HI)[0] == 200


def test_with_memory_what_was_said_and_begun_is_kept_when_the_client_hangs_up():
    with slowly() as (server, slow, memory):
        said = [{"role": "user", "content": "I moved to Oslo."}]
        body = {**HI, "messages": said, "user": "ana", "stream": True}
        with server.begin(CHAT, body) as connection:
            assert connection.recv(10)
        until(lambda: slow.ended == 1)
        until(lambda: memory.store.counts()["turns"] == 2)  # the answer's beginning too
        assert texts(memory.get_all(user_id="ana")) == ["I moved to Oslo."]


def test_a_client_that_hangs_up_in_the_queue_leaves_it():
    with slowly() as (server, slow, memory), server.begin(CHAT, HI):
        until(lambda: slow.given)
        with server.begin(CHAT, {**HI, "user": "ana"}):
            until(lambda: server.service.worker.waiting == 1)
        until(lambda: server.service.worker.waiting == 0)
        slow.free.set()
        assert memory.store.counts()["turns"] == 0  # it was never told 200


def test_a_client_that_does_not_read_stops_nobody_and_is_dropped():
    more_than_sockets_take = {"piece": "x" * 200_000, "most": 100}
    with (
        slowly(Limits(send_s=0.3), **more_than_sockets_take) as (server, big, _),
        server.begin(CHAT, {**HI, "stream": True}),
    ):
        until(lambda: big.ended == 1)  # made to its end, or given up when nothing was taken in
        big.free.set()
        assert server.call("POST", CHAT, HI)[0] == 200
        until(lambda: 'completions",status="200"} 2' in server.call("GET", "/metrics")[2])


@contextmanager
def unread(server):
    """A client without the token that asks for more than sockets take, and reads nothing."""
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", server.port))
        client.settimeout(0.2)
        with suppress(TimeoutError):
            client.sendall(b"GET /page/inspector.js HTTP/1.1\r\nHost: localhost\r\n\r\n" * 2000)
        yield


def test_a_client_without_the_token_that_does_not_read_locks_nobody_out_and_is_dropped():
    limits = Limits(in_flight=1, send_s=0.5)
    with quick() as memory, running(memory, limits=limits) as server, unread(server):
        assert "requests_in_flight 1\n" in server.call("GET", "/metrics")[2]  # its own
        until(lambda: not server.connections)


def test_stopping_does_not_wait_for_a_client_that_does_not_read(
    caplog,
):
    with (
        quick() as memory,
        ExitStack() as clients,
        running(memory, limits=Limits(drain_s=1)) as server,
    ):
        clients.enter_context(unread(server))
        until(lambda: any(each.flow.write_paused for each in server.connections))
    assert not caplog.records


def test_a_client_that_hangs_up_in_its_body_is_no_fault_of_ours(
    caplog,
):
    with quick() as memory, running(memory) as server:
        server.send("POST /search", "Content-Length: 500", body=b'{"query": "').close()
        counted = 'route="/search",status="499"} 1'
        until(lambda: counted in server.call("GET", "/metrics")[2])
    assert not caplog.records


def test_searching_does_not_wait_for_an_answer():
    with slowly() as (server, slow, memory), server.begin(CHAT, HI):
        memory.add("I live in Oslo.", user_id="ana", infer=False)
        until(lambda: slow.given)
        found = server.ok("POST", "/search", {"query": "Oslo", "user_id": "ana"})
        assert found["results"][0]["memory"] == "I live in Oslo."
        server.ok(
            "POST", "/memories", {"messages": "I like tea.", "user_id": "ana", "infer": False}
        )
        assert slow.ended == 0
        slow.free.set()


def test_too_many_requests_at_a_time_are_refused():
    with slowly(Limits(in_flight=1)) as (server, slow, _), server.begin(CHAT, HI):
        until(lambda: slow.given)
        status, headers, _ = server.call("GET", "/metrics")
        assert (status, headers["retry-after"]) == (429, "1")
        assert server.call("GET", "/healthz")[0] == 200
        slow.free.set()


def test_stopping_ends_what_is_under_way_and_refuses_what_waits():
    with slowly() as (server, slow, memory):
        first = server.begin(CHAT, {**HI, "user": "ana"})
        until(lambda: slow.given)
        second = server.begin(CHAT, HI)
        until(lambda: server.service.worker.waiting == 1)
        server.service.worker.close()
        assert answer_of(second)[0] == 503
        assert answer_of(first)[0] == 200
        assert server.call("POST", CHAT, HI)[0] == 503
        assert memory.store.counts()["turns"] == 2  # what was said, and the answer's beginning


def test_a_fault_while_the_engine_is_idle_stops_no_request(monkeypatch, capsys):
    failed = threading.Event()

    def fail(*_args):
        failed.set()
        raise LookupError("a fault of ours")

    with quick(engine=FakeEngine()) as memory:
        memory.add("I live in Oslo.", infer="later")
        monkeypatch.setattr(memory, "process_pending", fail)
        with running(memory) as server:
            assert server.call("POST", CHAT, HI)[0] == 200
            assert failed.wait(10)
            assert server.call("POST", CHAT, HI)[0] == 200
    assert "a fault of ours" in capsys.readouterr().err


def test_a_hundred_streaming_clients_lose_nothing(tmp_path):
    """Each tries until it is let in; whatever was answered with 200 is readable afterwards."""
    with (
        quick(tmp_path / "m.db", engine=FakeEngine()) as memory,
        running(memory, limits=Limits(queue=8)) as server,
    ):
        refused = threading.Event()

        def one(number):
            text = f"My locker has the number {number}."
            said = [{"role": "user", "content": text}]
            body = {**HI, "messages": said, "user": f"user{number % 7}", "stream": True}
            while True:
                status, headers, told = server.call("POST", CHAT, body)
                if status == 200:
                    assert told.endswith("data: [DONE]\n\n")
                    return text
                assert status == 429 and headers["retry-after"].isdigit()
                refused.set()
                time.sleep(0.02)

        with ThreadPoolExecutor(100) as clients:
            accepted = set(clients.map(one, range(100)))
        assert refused.is_set() and len(accepted) == 100
        kept = {text for u in range(7) for text in texts(memory.get_all(user_id=f"user{u}"))}
        assert kept >= accepted
        assert server.service.worker.waiting == 0


# -- counts --------------------------------------------------------------------------------------


def test_metrics_count_requests_by_route_and_never_by_id(server):
    for path in ("/memories/secret-id", "/inspect/memories/secret-id", "/secret-path", "/"):
        server.call("GET", path)
    status, headers, text = server.call("GET", "/metrics")
    assert status == 200 and headers["content-type"].startswith("text/plain; version=0.0.4")
    for route in ('"/memories/{id}",status="404"', '"/inspect/memories/{id}",status="404"', '"/"'):
        assert f"edgemem_requests_total{{route={route}" in text
    assert "secret" not in text
    for name in ("queue_length 0", "queue_limit 16", "requests_in_flight 1", "pending 0"):
        assert f"\nedgemem_{name}\n" in text


@given(st.lists(st.floats(0, 300), min_size=1))
def test_a_histograms_buckets_count_what_lies_below_them(seconds):
    metrics = Metrics()
    for value in seconds:
        metrics.took("edgemem_queue_seconds", value)
    lines = dict(line.rsplit(" ", 1) for line in metrics.text({}).splitlines() if line[0] != "#")
    for bound in BUCKETS_S:
        within = sum(value <= bound for value in seconds)
        assert int(lines[f'edgemem_queue_seconds_bucket{{le="{bound}"}}']) == within
    assert int(lines['edgemem_queue_seconds_bucket{le="+Inf"}']) == len(seconds)
    assert int(lines["edgemem_queue_seconds_count"]) == len(seconds)
    assert float(lines["edgemem_queue_seconds_sum"]) == pytest.approx(sum(seconds), abs=1e-6)
