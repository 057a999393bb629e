"""What the cloud's tests share: a service on loopback that does as told and keeps every byte."""

import json
import socket
import threading
import time
from collections.abc import Callable
from contextlib import contextmanager, suppress

from edgemem.config import CloudSettings

Behaviour = Callable[["Call"], None]


def answer(text="It is Oslo.", **more):
    """The body of a chat completion."""
    message = {"role": "assistant", "content": text}
    choice = {"index": 0, "finish_reason": "stop", "message": message}
    usage = {"prompt_tokens": 40, "completion_tokens": 5, "total_tokens": 45}
    return json.dumps({"choices": [choice], "usage": usage, **more}).encode()


class Call:
    """One connection: what came in, and how to answer it by hand."""

    def __init__(self, connection, head, body):
        self.connection, self.head, self.body = connection, head, body

    def header(self, name):
        for line in self.head.split("\r\n")[1:]:
            key, _, value = line.partition(":")
            if key.lower() == name.lower():
                return value.strip()
        return None

    def reply(self, body, status=200, length=None, **headers):
        """An HTTP answer in one write; length: what Content-Length claims."""
        lines = [f"HTTP/1.1 {status} X"]
        given = {"content-type": "application/json", **headers}
        lines += [f"{k.replace('_', '-')}: {v}" for k, v in given.items()]
        lines += [f"content-length: {len(body) if length is None else length}", "connection: close"]
        self.raw("\r\n".join([*lines, "", ""]).encode() + body)

    def raw(self, data):
        self.connection.sendall(data)


class Service:
    """behaviour: what is done with each call. received: every byte that ever came in."""

    def __init__(self):
        self.behaviour: Behaviour = lambda call: call.reply(answer())
        self.calls: list[Call] = []
        self.received = bytearray()
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._open = True
        threading.Thread(target=self._serve, daemon=True).start()

    @property
    def base_url(self):
        return f"http://127.0.0.1:{self._socket.getsockname()[1]}/v1"

    def settings(self, **more):
        return CloudSettings(base_url=self.base_url, model="gpt-4o-mini", **more)

    def messages(self, number=-1):
        """What the messages of a call say."""
        return "\n".join(m["content"] for m in json.loads(self.calls[number].body)["messages"])

    def close(self):
        self._open = False
        self._socket.close()

    def _serve(self):
        while self._open:
            with suppress(OSError):
                connection, _ = self._socket.accept()
                threading.Thread(target=self._handle, args=(connection,), daemon=True).start()

    def _handle(self, connection):
        with connection, suppress(OSError):
            data = b""
            while b"\r\n\r\n" not in data:
                if not (some := connection.recv(65536)):
                    self.received += data
                    return
                data += some
            head, _, body = data.partition(b"\r\n\r\n")
            call = Call(connection, head.decode("latin-1"), b"")
            length = int(call.header("content-length") or 0)
            while len(body) < length and (some := connection.recv(65536)):
                body += some
            call.body = body
            self.received += head + b"\r\n\r\n" + body
            self.calls.append(call)
            self.behaviour(call)


@contextmanager
def service():
    opened = Service()
    try:
        yield opened
    finally:
        opened.close()


def one_after_another(*behaviours):
    """The first for the first call, and so on; the last for all that follow."""
    left = list(behaviours)

    def behave(call):
        (left.pop(0) if len(left) > 1 else left[0])(call)

    return behave


def sleep(seconds):
    return lambda call: time.sleep(seconds)
