"""Does `edgemem serve` lose an accepted write while many clients stream at the same time?

    python -m bench.server [--clients 100] [--seconds 60] [--queue 16] [--kill] [--json OUT]

A real server runs in its own process, with the bundled models and its own store. Each client sends
new sentences, alternately as a streamed chat with memory and as a memory to store as it is. After a
refusal (429) a client waits a second and sends its next sentence; the server asks for more patience
than that. A write counts as accepted once its status 200 arrives. For a streamed write that is the
head of the answer, whether or not the answer ends. At the end the server is stopped by SIGTERM
(--kill: by SIGKILL, while it answers), and this process reads the store. An accepted write that is
not found there is lost. Resident memory is the server's, read from /proc (Linux): after a first
answer, six times during the run, at the end, and the peak.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import openai

from bench import report
from bench.search import MESSAGES, sentences
from edgemem.memory import Memory
from edgemem.server.asgi import load_token

MODEL = "smollm2-135m-instruct-q4_1"
IMPATIENCE_S = 1.0


@dataclass
class Seen:
    """What the clients have seen. accepted: (user, text) of each write that got status 200."""

    statuses: Counter[str] = field(default_factory=Counter)
    accepted: set[tuple[str, str]] = field(default_factory=set)
    first_piece_s: list[float] = field(default_factory=list)
    stored_s: list[float] = field(default_factory=list)
    rss_mb: list[float] = field(default_factory=list)
    whole: int = 0


async def client(number: int, service: openai.AsyncOpenAI, until: float, seen: Seen) -> None:
    """Run one client until `until` (monotonic). An answer that has begun is read to its end."""
    user, said = f"user {number}", sentences(MESSAGES, number)
    counter = 0
    while time.monotonic() < until:
        counter += 1
        text = f"{next(said)} That was number {counter}."
        act = _chat if counter % 2 else _store
        try:
            await act(service, user, text, seen)
            seen.statuses["200"] += 1
        except openai.APIStatusError as exc:
            seen.statuses[str(exc.status_code)] += 1
            await asyncio.sleep(IMPATIENCE_S)
        except openai.APIError as exc:
            seen.statuses[type(exc).__name__] += 1
            await asyncio.sleep(IMPATIENCE_S)


async def _chat(service: openai.AsyncOpenAI, user: str, text: str, seen: Seen) -> None:
    started = time.monotonic()
    stream = await service.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": text}], user=user, stream=True
    )
    seen.accepted.add((user, text))
    seen.first_piece_s.append(time.monotonic() - started)
    async for event in stream:
        if event.choices[0].finish_reason:
            seen.whole += 1


async def _store(service: openai.AsyncOpenAI, user: str, text: str, seen: Seen) -> None:
    started = time.monotonic()
    root = service.with_options(base_url=str(service.base_url).removesuffix("v1/"))
    body = {"messages": text, "user_id": user, "infer": False}
    await root.post("/memories", cast_to=object, body=body)
    seen.accepted.add((user, text))
    seen.stored_s.append(time.monotonic() - started)


async def _watch(pid: int, seconds: float, seen: Seen) -> None:
    """Record the resident memory six times in `seconds`."""
    for _ in range(6):
        seen.rss_mb.append(_resident_mb(pid))
        await asyncio.sleep(seconds / 6)


async def _all(
    clients: int, base_url: str, token: str, seconds: float, seen: Seen, pid: int | None = None
) -> None:
    async with openai.AsyncOpenAI(
        base_url=base_url, api_key=token, max_retries=0, timeout=120
    ) as service:
        until = time.monotonic() + seconds
        watch = [] if pid is None else [_watch(pid, seconds, seen)]
        await asyncio.gather(*watch, *(client(i, service, until, seen) for i in range(clients)))


def _resident_mb(pid: int, kind: str = "VmRSS") -> float:
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    found = re.search(rf"^{kind}:\s+(\d+) kB", status, re.M)
    return round(int(found[1]) / 1000, 1) if found else float("nan")


def run(clients: int, seconds: float, queue: int, kill: bool) -> dict[str, Any]:
    """The summary."""
    seen = Seen()
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["EDGEMEM_HOME"] = scratch
        options = ["--port", "0", "--queue", str(queue)]
        server = subprocess.Popen(
            [sys.executable, "-m", "edgemem", "serve", *options], stderr=subprocess.PIPE, text=True
        )
        assert server.stderr is not None
        try:
            url = next(m[1] for line in server.stderr if (m := re.search(r"(http://\S+)\.", line)))
            token, base_url = load_token()[0], f"{url}/v1"
            asyncio.run(_all(1, base_url, token, 0.01, Seen()))
            before = _resident_mb(server.pid)
            started = time.monotonic()
            if kill:
                threading.Timer(seconds * 0.9, server.kill).start()
            watched = None if kill else server.pid
            asyncio.run(_all(clients, base_url, token, seconds, seen, watched))
            took = time.monotonic() - started
            after = None if kill else _resident_mb(server.pid)
            most = None if kill else _resident_mb(server.pid, "VmHWM")
            server.send_signal(signal.SIGTERM)
            code = server.wait(60)
        finally:
            server.kill()
        with Memory(Path(scratch) / "memory.db") as memory:
            kept = {(str(item.user_id), item.memory) for item in memory.get_all()}
            pending = memory.store.counts()["pending"]
    p50 = {
        name: round(report.percentile(values, 50), 2) if values else None
        for name, values in (("first_piece", seen.first_piece_s), ("stored", seen.stored_s))
    }
    return {
        "clients": clients,
        "seconds": round(took, 1),
        "queue": queue,
        "killed": kill,
        "requests": sum(seen.statuses.values()),
        "by_status": dict(sorted(seen.statuses.items())),
        "answers_streamed_whole": seen.whole,
        "accepted_writes": len(seen.accepted),
        "lost_writes": len(seen.accepted - kept),
        "first_piece_s_p50": p50["first_piece"],
        "stored_s_p50": p50["stored"],
        "rss_mb_before": before,
        "rss_mb_meanwhile": seen.rss_mb,
        "rss_mb_after": after,
        "rss_mb_peak": most,
        "pending_in_the_end": pending,
        "exit_code": code,
    }


def main(argv: Sequence[str] | None = None) -> None:
    parser = report.parser("server", __doc__, to_file=False)
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--queue", type=int, default=16)
    parser.add_argument("--kill", action="store_true", help="kill the server before the end")
    options = parser.parse_args(argv)
    if min(options.clients, options.seconds, options.queue) < 1:
        parser.error("--clients, --seconds and --queue must be 1 or more")
    found = run(options.clients, options.seconds, options.queue, options.kill)
    report.write(options.json, found, [])


if __name__ == "__main__":
    main()
