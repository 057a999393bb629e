"""The settings of the `[cloud]` table, and what each may be.

Knows names, types and limits; no file, no environment and no network: `config.py` reads them.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass, fields
from typing import Any

from edgemem.errors import ConfigError

__all__ = ["KEYS", "NUMBERS", "TABLE", "TEXT_LISTS", "CloudSettings", "checked", "is_near"]

TABLE = "cloud"


@dataclass(frozen=True, slots=True, kw_only=True)
class CloudSettings:
    """When, where and what may be sent. Off until base_url and model are set.

    base_url: of an OpenAI-compatible service, up to and with its `/v1`. model: its name there.
    api_key_env: the environment variable that holds the key; none for a service without keys.
    monthly_budget: of a calendar month (UTC), in the price table's currency; None: no limit.
    timeout_s: for a whole call, its retries included. max_tokens: of an answer; max_tokens_name:
    what the service calls that. context_tokens: above it, memories are compressed to it. ask_when:
    patterns of messages that go to the cloud by themselves; min_confidence: so do questions whose
    best memory scores below it. never_send: patterns of what may not leave. names: redacted besides
    those that the store knows. second_price: what a second of waiting is worth, to tell whether
    compression pays. A pattern is a keyword, or a regular expression between slashes.
    """

    base_url: str | None = None
    model: str | None = None
    api_key_env: str | None = None
    monthly_budget: float | None = None
    timeout_s: float = 60.0
    max_retries: int = 2
    max_tokens: int = 512
    max_tokens_name: str = "max_tokens"
    context_tokens: int = 1000
    min_confidence: float = 0.0
    second_price: float = 0.001
    ask_when: tuple[str, ...] = ()
    never_send: tuple[str, ...] = ()
    names: tuple[str, ...] = ()

    @property
    def enabled(self) -> bool:
        """Whether there is a service to ask."""
        return self.base_url is not None and self.model is not None


KEYS = tuple(f.name for f in fields(CloudSettings))
TEXT_LISTS = frozenset({"ask_when", "never_send", "names"})
NUMBERS: dict[str, tuple[type[int] | type[float], float, float]] = {
    "monthly_budget": (float, 0, 1_000_000),
    "timeout_s": (float, 1, 600),
    "max_retries": (int, 0, 5),
    "max_tokens": (int, 1, 32_768),
    "context_tokens": (int, 64, 1_000_000),
    "min_confidence": (float, 0, 1),
    "second_price": (float, 0, 1000),
}
_LIMIT_NAMES = ("max_tokens", "max_completion_tokens")
_URL = re.compile(r"(https?)://(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9.-]+)(:\d{1,5})?(/[^\s?#]*)?")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")


def checked(key: str, value: object, where: str) -> Any:
    """The value of a setting in its final type. Raises ConfigError naming what it may be."""

    def refuse(allowed: str, shown: str = repr(value)) -> ConfigError:
        return ConfigError(
            f"Setting {TABLE}.{key} = {shown} in {where} is not allowed: it must be {allowed}. "
            "Correct it, or remove it to use the default."
        )

    if key in NUMBERS:
        kind, low, high = NUMBERS[key]
        allowed = int if kind is int else int | float
        if isinstance(value, allowed) and not isinstance(value, bool) and low <= value <= high:
            return kind(value)
        what = "a whole number" if kind is int else "a number"
        raise refuse(f"{what} from {low:g} to {high:g}")
    if key in TEXT_LISTS:
        if not isinstance(value, list | tuple) or not all(isinstance(v, str) for v in value):
            raise refuse("a list of texts")
        if not all(v.strip() and v.isprintable() for v in value):
            raise refuse("a list of texts that are not empty and have no control characters")
        for pattern in value if key != "names" else ():
            if _is_no_expression(pattern):
                raise refuse("a list of keywords, and of regular expressions between slashes")
        return tuple(value)
    if not isinstance(value, str) or not value.strip() or not value.isprintable():
        raise refuse("non-empty text without control characters")
    if key == "max_tokens_name" and value not in _LIMIT_NAMES:
        raise refuse(" or ".join(_LIMIT_NAMES))
    if key == "api_key_env" and not _VARIABLE.fullmatch(value):
        # What stands there may be the key itself, so it is not repeated.
        raise refuse("the name of an environment variable, such as OPENAI_API_KEY", "(not shown)")
    if key == "base_url":
        found = _URL.fullmatch(value)
        if found is None:
            raise refuse("a URL such as https://api.example.com/v1, with no user name or query",
                         "(not shown)" if "@" in value else repr(value))  # fmt: skip
        if found[1] == "http" and not is_near(value):
            raise refuse("https://…; http:// is for this machine and the home network only")
        return value.rstrip("/")
    return value


def is_near(url: str) -> bool:
    """Whether a URL names this machine, or an address of a private network."""
    found = _URL.fullmatch(url)
    host = found[2].strip("[]") if found else ""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_private
    except ValueError:
        return False


def _is_no_expression(pattern: str) -> bool:
    if not (len(pattern) > 2 and pattern.startswith("/") and pattern.endswith("/")):
        return False
    try:
        re.compile(pattern[1:-1])
    except re.error:
        return True
    return False
