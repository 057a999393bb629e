"""The client of the cloud against a service that misbehaves: an answer, or one clear error."""

import gzip
import json
import socket
import time

import pytest
from cloudkit import Behaviour, answer, one_after_another, service, sleep

from edgemem.cloud.client import MAX_ANSWER_BYTES, Client, Request
from edgemem.config import CloudSettings
from edgemem.errors import CloudError, CloudRejected, CloudTimeout

MESSAGES = [{"role": "user", "content": "Où? “dort”"}]
PARAMETERS = {"model": "m", "messages": MESSAGES, "max_tokens": 9}


def ask(cloud, key="SECRET-KEY", **settings):
    client = Client(cloud.settings(**settings), key)
    try:
        return client.send(client.build(PARAMETERS, "turn-1"))
    finally:
        client.close()


def drip(call):
    """A byte now and then, so that no single read ever times out."""
    call.raw(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n")
    for _ in range(100):
        call.raw(b"x-wait: a\r\n")
        time.sleep(0.1)


def cut(call):
    call.reply(answer()[:30], length=len(answer()))


def cut_chunk(call):
    call.raw(b'HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nff\r\n{"choices":')


def huge(call):
    call.raw(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n")
    for _ in range(200):
        call.raw(b'{"choices": [' + b" " * 65_536)


def huge_error(call):
    call.raw(b"HTTP/1.1 500 Oops\r\n\r\n")
    for _ in range(10_000):
        call.raw(b"x" * 65_536)


def replies(body, status=200, **headers):
    return lambda call: call.reply(body, status, **headers)


def with_content(content, **more):
    message = {"role": "assistant", "content": content}
    return json.dumps({"choices": [{"message": message, **more}]}).encode()


# what it does; the error; what the error says; whether it may have cost something
CASES: dict[str, tuple[Behaviour, type[CloudError], str, bool]] = {
    "silent": (sleep(5), CloudTimeout, "within 1 s", True),
    "a byte now and then": (drip, CloudTimeout, "within 1 s", True),
    "cut body": (cut, CloudError, "broke off", True),
    "cut chunk": (cut_chunk, CloudError, "broke off", True),
    "closed at once": (lambda call: None, CloudError, "broke off", True),
    "huge answer": (huge, CloudError, "longer than 1,000,000 bytes", True),
    "huge error": (huge_error, CloudError, "status 500", True),
    "no HTTP": (lambda call: call.raw(b"SSH-2.0-x\r\n"), CloudError, "broke off", True),
    "500": (replies(b"{}", 500), CloudError, "status 500", True),
    "503 without a time": (replies(b"", 503), CloudRejected, "status 503", True),
    "504": (replies(b"", 504), CloudTimeout, "status 504", True),
    "400": (replies(b'{"error": 1}', 400), CloudRejected, "status 400", False),
    "401": (replies(b"", 401), CloudRejected, "check the variable", False),
    "404": (replies(b"", 404), CloudRejected, "cloud.model", False),
    "redirect": (
        replies(b"", 307, location="http://127.0.0.2:9/v1"), CloudRejected, "not followed", False
    ),
    "HTML": (replies(b"<html>", content_type="text/html"), CloudError, "not what a chat", True),
    "empty": (replies(b""), CloudError, "not what a chat", True),
    "wrong JSON": (replies(b'{"choices": []}'), CloudError, "not what a chat", True),
    "a list": (replies(b"[1]"), CloudError, "not what a chat", True),
    "deep JSON": (replies(b"[" * 200_000), CloudError, "not what a chat", True),
    "not UTF-8": (replies(b'{"choices": "\xff'), CloudError, "not what a chat", True),
    "no text": (replies(with_content(None)), CloudError, "empty answer", True),
    "a number": (replies(with_content(7)), CloudError, "empty answer", True),
    "blank": (replies(with_content(" \n")), CloudError, "empty answer", True),
    "declined": (
        replies(with_content("x", finish_reason="content_filter")), CloudRejected, "declined", True
    ),
    "packed": (
        replies(gzip.compress(answer()), content_encoding="gzip"), CloudError, "asked for", True
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_service_that_misbehaves_ends_in_one_clear_error_and_one_call(cloud, case):
    cloud.behaviour, error, said, billed = CASES[case]
    with pytest.raises(CloudError) as caught:
        ask(cloud, timeout_s=1.0)
    assert type(caught.value) is error
    assert said in str(caught.value) and "SECRET-KEY" not in str(caught.value)
    assert caught.value.may_be_billed == billed
    assert len(cloud.calls) == 1


@pytest.mark.parametrize("status", [429, 503])
def test_a_refusal_that_cost_nothing_is_tried_again_with_the_same_key(cloud, status):
    busy = replies(b"", status, retry_after="0")
    cloud.behaviour = one_after_another(busy, busy, replies(answer("At last.")))
    reply = ask(cloud, max_retries=2)
    assert (reply.text, reply.attempts) == ("At last.", 3)
    assert [call.header("idempotency-key") for call in cloud.calls] == ["turn-1"] * 3
    assert len({call.body for call in cloud.calls}) == 1


def test_retries_are_bounded(cloud):
    cloud.behaviour = replies(b"", 429, retry_after="0")
    with pytest.raises(CloudRejected, match="status 429") as caught:
        ask(cloud, max_retries=2)
    assert not caught.value.may_be_billed
    assert len(cloud.calls) == 3


@pytest.mark.parametrize("after", ["3600", "Wed, 21 Oct 2099 07:28:00 GMT"])
def test_a_wait_longer_than_the_timeout_is_not_waited(cloud, after):
    cloud.behaviour = replies(b"", 429, retry_after=after)
    with pytest.raises(CloudRejected, match="says to wait"):
        ask(cloud, timeout_s=2.0)
    assert len(cloud.calls) == 1


def test_a_senseless_wait_is_replaced_by_our_own(cloud):
    refuse = replies(b"", 429, retry_after="soon")
    cloud.behaviour = one_after_another(refuse, replies(answer()))
    assert ask(cloud).attempts == 2


def test_a_service_that_is_not_there_is_tried_again_and_costs_nothing():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    settings = CloudSettings(base_url=f"http://127.0.0.1:{port}/v1", model="m", max_retries=1)
    client = Client(settings, None)
    request = client.build(PARAMETERS, "k")
    with pytest.raises(CloudError, match="cannot be reached") as caught:
        client.send(request)
    assert not caught.value.may_be_billed


def test_after_a_call_that_hung_the_next_one_is_answered(cloud):
    client = Client(cloud.settings(timeout_s=1.0), None)
    request = client.build(PARAMETERS, "a")
    cloud.behaviour = one_after_another(drip, replies(answer("Here.")))
    with pytest.raises(CloudTimeout):
        client.send(request)
    assert client.send(client.build(PARAMETERS, "b")).text == "Here."


def test_what_is_shown_is_what_is_sent(cloud):
    client = Client(cloud.settings(), "SECRET-KEY")
    request = client.build(PARAMETERS, "k")
    assert cloud.calls == []
    client.send(request)
    (call,) = cloud.calls
    assert call.head.startswith("POST /v1/chat/completions HTTP/1.1\r\n")
    lines = [line.partition(": ") for line in call.head.split("\r\n")[1:]]
    assert {(name.lower(), value) for name, _, value in lines} == set(request.headers)
    assert call.body == request.body
    assert request.body.decode() in request.shown() and "SECRET-KEY" not in request.shown()
    assert "Où? “dort”" in request.shown()


def test_only_needed_headers_go_out_and_no_proxy_sees_what_stays_on_this_machine(
    cloud, monkeypatch
):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")
    cloud.behaviour = replies(answer(), set_cookie="who=you")
    client = Client(cloud.settings(), "SECRET-KEY")
    for _ in range(2):  # a cookie is not sent back
        client.send(client.build(PARAMETERS, "turn-1"))
    for call in cloud.calls:
        names = {line.partition(":")[0].lower() for line in call.head.split("\r\n")[1:]}
        assert names == {
            "host", "content-length", "content-type", "accept", "accept-encoding", "user-agent",
            "authorization", "idempotency-key",
        }  # fmt: skip
        assert call.header("authorization") == "Bearer SECRET-KEY"
    ask(cloud, key=None)
    assert cloud.calls[2].header("authorization") is None


def test_a_redirect_takes_the_key_nowhere(cloud):
    with service() as elsewhere:
        cloud.behaviour = replies(b"", 308, location=f"{elsewhere.base_url}/chat/completions")
        with pytest.raises(CloudRejected, match="not followed"):
            ask(cloud)
        assert elsewhere.calls == [] and elsewhere.received == b""


def test_an_answer_is_cleaned_of_what_no_store_takes(cloud):
    cloud.behaviour = replies(with_content("a\0b \ud800 c "))
    assert ask(cloud).text == "ab ? c"


@pytest.mark.parametrize("usage", [None, [], {"prompt_tokens": -1, "completion_tokens": 10**12}])
def test_counts_that_cannot_be_are_no_counts(cloud, usage):
    cloud.behaviour = replies(answer(usage=usage))
    reply = ask(cloud)
    assert (reply.prompt_tokens, reply.completion_tokens) == (None, None)


def test_an_answer_as_long_as_allowed_is_read(cloud):
    text = "x" * (MAX_ANSWER_BYTES - 500)
    cloud.behaviour = replies(answer(text))
    assert ask(cloud).text == text


def test_a_request_hides_its_key_when_shown():
    shown = Request("POST", "http://x", (("Authorization", "Bearer K"),), b"{}").shown()
    assert shown == "POST http://x\nAuthorization: (the key)\n\n{}"
