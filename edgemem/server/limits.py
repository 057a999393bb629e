"""How much the server takes on at a time. Knows numbers alone."""

from __future__ import annotations

from dataclasses import dataclass, fields

from edgemem.errors import InputError

__all__ = ["Limits"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """queue: requests that may wait for the engine, beside the one that it answers; in_flight:
    requests of any kind at a time. Beyond either a client gets 429. body_bytes: of a request.
    receive_s: for a request's body to arrive. send_s: for a client to take in what it is sent.
    drain_s: for requests under way when the server is stopped. Raises InputError on a number that
    is not above 0.
    """

    queue: int = 16
    in_flight: int = 256
    body_bytes: int = 4_194_304
    receive_s: float = 30.0
    send_s: float = 30.0
    drain_s: int = 10

    def __post_init__(self) -> None:
        for field in fields(self):
            if not (value := getattr(self, field.name)) > 0:
                raise InputError(f"the server's limit {field.name} is {value}; it must be above 0")
