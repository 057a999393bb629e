"""One request to an OpenAI-compatible service, and its answer. The only importer of `httpx2`.

`httpx2` is imported late: it loads slowly, and is in the extra `cloud`.

`send` sends the request that `build` has made, and adds nothing to it. No redirect is followed.
Proxies from the environment are used only for services beyond this machine and its private network.
"""

from __future__ import annotations

import email.utils
import json
import threading
import time
from collections.abc import Container, Mapping
from concurrent.futures import Future
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Any

from edgemem.config import CloudSettings, is_near
from edgemem.errors import CloudDisabled, CloudError, CloudRejected, CloudTimeout

__all__ = ["Client", "Reply", "Request"]

MAX_ANSWER_BYTES = 1_000_000
_BACKOFF_S = 0.5  # before the first retry, then doubled; a Retry-After replaces it
_MAX_TOKENS_TOLD = 1_000_000_000
_NEVER_REACHED = ("ConnectError", "ConnectTimeout")  # the HTTP library's errors before any byte


@dataclass(frozen=True, slots=True)
class Request:
    """The HTTP request. headers: with the key, which `shown` hides."""

    method: str
    url: str
    headers: tuple[tuple[str, str], ...]
    body: bytes

    def shown(self) -> str:
        """Returns the request as text, with its whole body and without the key."""
        lines = [f"{self.method} {self.url}"]
        for name, value in self.headers:
            hidden = name.lower() == "authorization"
            lines.append(f"{name}: {'(the key)' if hidden else value}")
        return "\n".join([*lines, "", self.body.decode("utf-8")])


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """An answer. prompt_tokens, completion_tokens: as the service counts; None if it did not."""

    text: str
    prompt_tokens: int | None
    completion_tokens: int | None
    seconds: float
    attempts: int


class Client:
    """A connection to the service of the settings, for one call at a time. Must be closed.

    key: None for a service without keys. The first call loads `httpx2`, and raises CloudDisabled if
    it is not installed.
    """

    def __init__(self, settings: CloudSettings, key: str | None) -> None:
        self._settings = settings
        self._key = key
        self._connected: Any = None

    def build(self, parameters: Mapping[str, Any], key: str) -> Request:
        """Returns the request for `send`, and sends nothing.

        key: the call's idempotency key, by which a service can recognise a repeated call.
        """
        headers = {
            "accept": "application/json",
            "accept-encoding": "identity",
            "content-type": "application/json",
            "user-agent": "edgemem",
            "idempotency-key": key,
        }
        if self._key is not None:
            headers["authorization"] = f"Bearer {self._key}"
        url = f"{str(self._settings.base_url).rstrip('/')}/chat/completions"
        body = json.dumps(parameters, ensure_ascii=False, separators=(",", ":")).encode()
        made = _httpx2().Request("POST", url, headers=headers, content=body)
        return Request(made.method, str(made.url), tuple(made.headers.items()), body)

    def send(self, request: Request) -> Reply:
        """Sends a request and returns the answer, within `timeout_s` including retries.

        A call is retried only if the service has surely done nothing: no connection, status 429, or
        503 with a Retry-After. Raises CloudTimeout, CloudRejected or CloudError. Its
        `may_be_billed` says whether the service may have made an answer nevertheless.
        """
        started = time.monotonic()
        deadline = started + self._settings.timeout_s
        attempts = 0
        while True:
            attempts += 1
            try:
                body = self._body_before(request, deadline)
                return _reply(body, time.monotonic() - started, attempts)
            except _Retryable as retry:
                wait = retry.after_s
                if wait is None:
                    wait = _BACKOFF_S * 2.0 ** (attempts - 1)
                if attempts > self._settings.max_retries or time.monotonic() + wait >= deadline:
                    raise retry.error from retry
                time.sleep(wait)

    def close(self) -> None:
        """Closes the connections. The next call opens new ones."""
        connected, self._connected = self._connected, None
        if connected is not None:
            with suppress(Exception):  # the library's sockets may raise anything when closed
                connected.close()

    # -- one try ---------------------------------------------------------------------------------

    def _body_before(self, request: Request, deadline: float) -> bytes:
        """Returns the answer's body, or raises CloudTimeout at the deadline.

        The call runs in its own thread, since the library's timeout is for each read. It would not
        end a service that sends a byte now and then, or a slow DNS lookup.
        """
        body: Future[bytes] = Future()

        def work() -> None:
            try:
                body.set_result(self._send_once(request, deadline))
            except BaseException as exc:
                body.set_exception(exc)

        threading.Thread(target=work, name="edgemem-cloud", daemon=True).start()
        try:
            return body.result(max(0.0, deadline - time.monotonic()))
        except TimeoutError:
            raise self._timed_out() from None
        finally:
            if not body.done():  # the deadline has passed, or the user pressed Ctrl-C
                self.close()

    def _timed_out(self) -> CloudTimeout:
        return CloudTimeout(
            f"the cloud did not answer within {self._settings.timeout_s:g} s; try again, or raise "
            "the setting cloud.timeout_s",
            may_be_billed=True,
        )

    def _send_once(self, request: Request, deadline: float) -> bytes:
        httpx2 = _httpx2()
        if self._connected is None:
            self._connected = httpx2.Client(
                timeout=self._settings.timeout_s,
                follow_redirects=False,
                trust_env=not is_near(request.url),
            )
        # As it is: `Client.request` would add headers that reveal the library and cookies.
        made = httpx2.Request(
            request.method, request.url, headers=request.headers, content=request.body
        )
        try:
            with closing(self._connected.send(made, stream=True)) as response:
                return self._read(response, deadline)
        except (CloudError, _Retryable):
            raise
        except Exception as exc:
            cause = type(exc).__name__
            if cause in _NEVER_REACHED:
                error = CloudError(
                    f"the cloud at {self._settings.base_url} cannot be reached ({cause}); check "
                    "the network and cloud.base_url"
                )
                raise _Retryable(error) from exc
            if "Timeout" in cause:
                raise self._timed_out() from exc
            raise CloudError(
                f"the cloud's answer broke off ({cause}); try again later", may_be_billed=True
            ) from exc

    def _read(self, response: Any, deadline: float) -> bytes:
        """Returns the body of an unencoded answer of status 200; raises on any other unread."""
        status = int(response.status_code)
        encoding = response.headers.get("content-encoding", "identity")
        if status != 200 or encoding != "identity":
            raise _refusal(status, response.headers)
        body = bytearray()
        for chunk in response.iter_bytes():
            body += chunk
            if len(body) > MAX_ANSWER_BYTES:
                raise CloudError(
                    f"the cloud's answer is longer than {MAX_ANSWER_BYTES:,} bytes and was not "
                    "read to its end; this is no usual service",
                    may_be_billed=True,
                )
            if time.monotonic() > deadline:
                raise self._timed_out()
        return bytes(body)


def _httpx2() -> Any:
    try:
        import httpx2
    except ImportError as exc:
        raise CloudDisabled(
            'the cloud needs the package httpx2: pip install "edgemem-runtime[cloud]"'
        ) from exc
    return httpx2


class _Retryable(Exception):
    """A failed try that surely cost nothing. after_s: the service's Retry-After, in seconds."""

    def __init__(self, error: CloudError, after_s: float | None = None) -> None:
        super().__init__(str(error))
        self.error, self.after_s = error, after_s


# Statuses, the error that each raises, whether an answer may have been made, and what is said.
_REFUSALS: tuple[tuple[Container[int], type[CloudError], bool, str], ...] = (
    (range(300, 400), CloudRejected, False,
     "sends on to another address (status {}), which is not followed, for the key would go there; "
     "correct the setting cloud.base_url"),
    ((401, 403), CloudRejected, False,
     "refused the key (status {}); check the variable that cloud.api_key_env names"),
    ((404,), CloudRejected, False,
     "knows no such model or address (status {}); check cloud.base_url and cloud.model"),
    ((408, 504), CloudTimeout, True, "gave up waiting (status {}); try again later"),
    (range(400, 500), CloudRejected, False,
     "refused the request (status {}); check cloud.model and cloud.max_tokens_name"),
    (range(500, 1000), CloudError, True, "failed (status {}); try later"),
)  # fmt: skip


def _refusal(status: int, headers: Mapping[str, str]) -> Exception:
    if status in (429, 503):
        after_s = _retry_after_s(headers.get("retry-after"))
        said = "" if after_s is None else f", and says to wait {after_s:.0f} s"
        # A 503 without Retry-After may come from a proxy, after the service has made the answer.
        billed = status == 503 and after_s is None
        error = CloudRejected(
            f"the cloud is busy or its limit is reached (status {status}{said}); try again later",
            may_be_billed=billed,
        )
        return error if billed else _Retryable(error, after_s)
    for statuses, kind, billed, said in _REFUSALS:
        if status in statuses:
            return kind(f"the cloud {said.format(status)}", may_be_billed=billed)
    return CloudError(
        f"the cloud answered in a form that was not asked for (status {status}, encoding "
        f"{headers.get('content-encoding', 'none')!r:.40}); check cloud.base_url",
        may_be_billed=True,
    )


def _retry_after_s(text: str | None) -> float | None:
    """Returns a Retry-After header (a number or a date) in seconds; None if it is neither."""
    if text is None:
        return None
    try:
        return min(max(0.0, float(text)), 1e6)
    except ValueError:
        pass
    try:
        date = email.utils.parsedate_to_datetime(text)
        return max(0.0, date.timestamp() - time.time())
    except (TypeError, ValueError, OverflowError):
        return None


def _reply(body: bytes, seconds: float, attempts: int) -> Reply:
    """Returns the answer in a body. Raises CloudError if there is none."""
    try:
        found = json.loads(body)
        choice = found["choices"][0]
        text, reason = choice["message"]["content"], choice.get("finish_reason")
        refused = choice["message"].get("refusal")
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError) as exc:
        raise CloudError(
            f"the cloud's answer is not what a chat completion looks like ({type(exc).__name__}); "
            "check that cloud.base_url is an OpenAI-compatible service",
            may_be_billed=True,
        ) from exc
    if refused or reason == "content_filter":
        raise CloudRejected(
            "the cloud declined to answer this; ask in other words, or without the cloud",
            may_be_billed=True,
        )
    text = _clean(text) if isinstance(text, str) else ""
    if not text:
        raise CloudError(
            "the cloud gave an empty answer; try again, or raise cloud.max_tokens",
            may_be_billed=True,
        )
    usage = found.get("usage")
    usage = usage if isinstance(usage, dict) else {}
    return Reply(
        text=text,
        prompt_tokens=_count(usage.get("prompt_tokens")),
        completion_tokens=_count(usage.get("completion_tokens")),
        seconds=seconds,
        attempts=attempts,
    )


def _clean(text: str) -> str:
    """Returns a text without NULs and halves of surrogate pairs, which the store refuses."""
    return text.replace("\0", "").encode("utf-8", "replace").decode("utf-8").strip()


def _count(value: object) -> int | None:
    return value if type(value) is int and 0 <= value <= _MAX_TOKENS_TOLD else None
