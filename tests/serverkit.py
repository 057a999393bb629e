"""What the server's tests share: the application behind a real server on loopback, and callers."""

import http.client
import json
import socket
import threading
import time
from collections.abc import Collection
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import openai
import uvicorn
from fake_engine import FakeEngine
from memorykit import quick
from starlette.applications import Starlette

from edgemem.runtime.engine import Generation, Stream
from edgemem.server import Limits, app
from edgemem.server.asgi import protocol

TOKEN = "a-token-of-the-tests"
HI = {"model": "fake", "messages": [{"role": "user", "content": "hi"}]}


class SlowEngine(FakeEngine):
    """Gives pieces of `piece` until it is let go, or nobody wants them. ended: how many did end."""

    def __init__(self, piece="word ", most=1_000_000):
        super().__init__()
        self.piece, self.most = piece, most
        self.free = threading.Event()
        self.ended = 0
        self.given = 0

    def stream(self, prompt, *, should_stop=None, **more):
        self.prompts.append((more.get("stage", ""), prompt))
        return Stream(self._slowly(should_stop or (lambda: False)))

    def _slowly(self, should_stop):
        given = 0
        try:
            while given < self.most and not (self.free.is_set() or should_stop()):
                yield self.piece
                given += 1
                self.given += 1
                time.sleep(0.002)
            return Generation("", 3, given, 0, 0.01, 50.0, "stop")
        finally:
            self.ended += 1


@dataclass
class Running:
    """A server that answers. asgi: the application behind it. connections: those that are open."""

    asgi: Starlette
    port: int
    connections: Collection[Any] = ()

    @property
    def service(self):
        return self.asgi.state.service

    def client(self, **more):
        """OpenAI's own client, which tries nothing twice."""
        given = {"api_key": TOKEN, "max_retries": 0, "timeout": 30.0, **more}
        return openai.OpenAI(base_url=f"http://127.0.0.1:{self.port}/v1", **given)

    def call(self, method, path, body=None, *, token=TOKEN, **headers):
        """Status, headers in lower case, and the body, from JSON if it is JSON."""
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if token is not None:
            sent["Authorization"] = f"Bearer {token}"
        data = body if body is None or isinstance(body, bytes) else json.dumps(body)
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request(method, path, data, sent)
            response = connection.getresponse()
            text = response.read().decode()
            found = {name.lower(): value for name, value in response.getheaders()}
            is_json = found.get("content-type") == "application/json"
            return response.status, found, json.loads(text) if is_json else text
        finally:
            connection.close()

    def ok(self, method, path, body=None):
        """The body of a call that must be answered with 200."""
        status, _, told = self.call(method, path, body)
        assert status == 200, told
        return told

    def begin(self, path, body):
        """A connection on which a request was sent and nothing read."""
        data = json.dumps(body).encode()
        return self.send(f"POST {path}", f"Content-Length: {len(data)}", body=data)

    def send(
        self,
        what,
        *headers,
        host="localhost",
        token=TOKEN,
        body=b"",
    ):
        """A connection on which these very bytes were sent, and nothing read."""
        lines = [f"{what} HTTP/1.1", f"Host: {host}", f"Authorization: Bearer {token}", *headers]
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=30)
        connection.sendall("\r\n".join([*lines, "", ""]).encode() + body)
        return connection


@contextmanager
def running(memory, **options):
    """The application of a Memory behind uvicorn, on a free port, until the block is left."""
    asgi = app(memory, **{"token": TOKEN, **options})
    config = uvicorn.Config(
        asgi, http=protocol(options.get("limits") or Limits()), port=0, log_config=None, ws="none",
        access_log=False, timeout_graceful_shutdown=5,
    )  # fmt: skip
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        until(lambda: server.started)
        port = server.servers[0].sockets[0].getsockname()[1]
        yield Running(asgi, port, server.server_state.connections)
    finally:
        server.should_exit = True
        thread.join()


def until(so, seconds=20.0):
    """Wait for something that another thread does."""
    end = time.monotonic() + seconds
    while not so():
        assert time.monotonic() < end, "it did not come to pass in time"
        time.sleep(0.01)


def answer_of(connection):
    """The status and the body of what a connection is answered."""
    with connection:
        response = http.client.HTTPResponse(connection)
        response.begin()
        return response.status, response.read().decode()


@contextmanager
def slowly(limits=None, **engine):
    """A server whose model speaks slowly, as SlowEngine's arguments say."""
    slow = SlowEngine(**engine)
    with quick(engine=slow) as memory, running(memory, limits=limits) as server:
        yield server, slow, memory
