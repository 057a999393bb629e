"""Does anything that must never be sent leave the device?

    python -m bench.never_send [--calls N] [--json OUT]

The stores are invented. Each turn and fact has a unique word, and facts repeat the words of their
source turns. Never-send marks of every kind are set: on turns, facts, users and runs, by keyword
and by regular expression, in the store and in the settings. An unmarked turn repeats another turn's
words. Every call goes through the real client to a loopback server that records each byte. This
file computes what must not leave on its own, independently of the program. One row for each kind of
mark.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np

from bench import report
from edgemem import Memory
from edgemem.cloud.governor import Governor
from edgemem.config import CloudSettings
from edgemem.errors import CloudRejected
from edgemem.language import words
from edgemem.results import Hit, Scope, utc_now
from edgemem.store import NewMemory, StoredTurn
from edgemem.store.receipts import add_mark, set_never_send

CALLS_PER_STORE = 25
TURNS = 24
SCOPES = [Scope("ada"), Scope("ada", None, "r1"), Scope("bob"), Scope("bob", "helper")]
WORDS = "tea boat cello garden letter ladder orange window bicycle blanket river kettle".split()
KINDS = ("turn", "fact", "scope", "keyword", "expression", "settings", "copy")
_ANSWER = b'{"choices": [{"message": {"content": "Noted."}, "finish_reason": "stop"}]}'


class Recorder:
    """A server that answers every request with one sentence and records every byte it receives."""

    def __init__(self) -> None:
        self.received = bytearray()
        recorder = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                recorder.received += bytes(self.requestline, "latin-1")
                recorder.received += bytes(self.headers) + body
                head = f"HTTP/1.1 200 OK\r\ncontent-length: {len(_ANSWER)}\r\n\r\n"
                self.wfile.write(head.encode() + _ANSWER)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.base_url = f"http://127.0.0.1:{self._server.server_port}/v1"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def take(self) -> str:
        """Return what was received since the last call, and clear it."""
        taken, self.received = self.received, bytearray()
        return taken.decode("utf-8", "replace")

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class NoEmbedder:
    """An embedder of constant vectors; this bench passes hits directly and never searches."""

    dim, model_id = 4, "none@1"

    def embed_query(self, text: str) -> Any:
        return np.full(4, 0.5, np.float32)


@dataclass
class World:
    """A store, and the words in it that must not leave."""

    memory: Memory
    words: dict[str, str] = field(default_factory=dict)  # id of a turn or memory to its word
    tied: list[set[str]] = field(default_factory=list)  # ids of which one mark covers all
    marked: dict[str, str] = field(default_factory=dict)  # id to kind of mark
    settings: list[str] = field(default_factory=list)

    def forbidden(self) -> dict[str, set[str]]:
        """Each word that must not leave, and the kinds of marks that forbid it."""
        out: dict[str, set[str]] = {}
        for group in self.tied:
            if kinds := {self.marked[id] for id in group if id in self.marked}:
                for id in group:
                    out.setdefault(self.words[id], set()).update(kinds)
        return out


def _word(rng: random.Random) -> str:
    return "zq" + "".join(rng.choices("bcdfghjklmnpqrstvwxz", k=10))


def build(rng: random.Random) -> World:
    """A store with marks of every kind."""
    world = World(Memory(":memory:", embedder=NoEmbedder()))  # type: ignore[arg-type]
    scopes: dict[str, Scope] = {}
    texts: dict[str, str] = {}
    now = utc_now()
    none = np.empty((0, 4), np.float32)
    with world.memory.store.transaction() as tx:

        def remember(id: str, kind: Any, text: str, scope: Scope, sources: Sequence[str]) -> None:
            tx.add_memory(
                NewMemory(
                    id=id, kind=kind, memory=text, search_text=text, scope=scope, created_at=now,
                    vectors=none, sources=tuple(sources), valid_from=now,
                )
            )  # fmt: skip

        for number in range(TURNS):
            scope, word = rng.choice(SCOPES), _word(rng)
            text = f"I put the {word} {rng.choice(WORDS)} beside the {rng.choice(WORDS)} today."
            kind = KINDS[number] if number < len(KINDS) else ""
            flagged = kind == "turn"
            turn, own = f"t{number}", f"m{number}"
            tx.add_turn(
                StoredTurn(
                    id=turn, scope=scope, role="user", content=text, timestamp=now, created_at=now,
                    metadata={"never_send": True} if flagged else {},
                )
            )  # fmt: skip
            remember(own, "turn", text, scope, [turn])
            world.words |= {turn: word, own: word}
            world.tied.append({turn, own})
            scopes[turn], texts[turn] = scope, text
            if flagged:
                world.marked[turn] = kind
        for number in range(TURNS // 2):
            sources = rng.sample(list(texts), rng.choice([1, 1, 2, 3]))
            said = " and ".join(world.words[source] for source in sources)
            fact, word = f"f{number}", _word(rng)
            remember(fact, "fact", f"User keeps {word} with {said}", scopes[sources[0]], sources)
            world.words[fact] = word
            _tie(world, {fact, *sources})
            if number % 4 == 0:
                tx.invalidate(fact, now)
            if number % 5 == 4:
                tx.delete_memory(fact, now)
        marked_fact = f"f{rng.randrange(TURNS // 2)}"
        set_never_send(tx, marked_fact, True)
        world.marked[marked_fact] = "fact"
        hidden = rng.choice([Scope("bob", "helper"), Scope(None, None, "r1")])
        add_mark(tx, scope=hidden)
        for turn, scope in scopes.items():
            if all(getattr(hidden, n) in (None, getattr(scope, n)) for n in _SCOPE):
                world.marked.setdefault(turn, "scope")
        add_mark(tx, pattern=world.words["t3"][:8])
        add_mark(tx, pattern=f"/{world.words['t4'][2:6]}[a-z]+/")
        world.settings.append(world.words["t5"])
        world.marked |= {"t3": "keyword", "t4": "expression", "t5": "settings"}
        # The first turn's words again, in a turn that has no mark of its own.
        tx.add_turn(
            StoredTurn(
                id="copy", scope=scopes["t0"], role="user", content=texts["t0"], timestamp=now,
                created_at=now,
            )
        )  # fmt: skip
        remember("copied", "turn", f"{texts['t0']} As I said.", scopes["t0"], ["copy"])
        world.words |= {"copy": world.words["t0"], "copied": world.words["t0"]}
        world.tied.append({"copy", "copied"})
        world.marked["copy"] = "copy"
    return world


_SCOPE = ("user_id", "agent_id", "run_id")


def _tie(world: World, ids: set[str]) -> None:
    touching = [group for group in world.tied if group & ids]
    world.tied = [group for group in world.tied if not group & ids]
    world.tied.append(ids.union(*touching))


def run(calls: int, seed: int = 1) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Summary and rows."""
    rng = random.Random(seed)
    recorder = Recorder()
    left: Counter[str] = Counter()
    tries: Counter[str] = Counter()
    sent = refused = leaks = allowed_left = made = 0
    started = time.perf_counter()
    try:
        while made < calls:
            world = build(rng)
            forbidden = world.forbidden()
            free = set(world.words.values()) - set(forbidden)
            settings = CloudSettings(
                base_url=recorder.base_url, model="gpt-4o-mini", never_send=tuple(world.settings)
            )
            governor = Governor(world.memory, settings)
            items = world.memory.store.list(include_invalid=True)
            for _ in range(min(CALLS_PER_STORE, calls - made)):
                made += 1
                rng.shuffle(items)
                hits = [Hit(**vars(item), score=0.9) for item in items[: rng.randint(1, 16)]]
                question = f"Where is the {rng.choice(WORDS)}, what was it?"
                if rng.random() < 0.15:  # a question that has a marked word
                    id = rng.choice(["t3", "t4", "t5"])
                    question = f"Tell me of {world.words[id]}, where is it?"
                shown = {world.words[hit.id] for hit in hits} | set(words(question))
                tries.update(set().union(*(forbidden.get(word, ()) for word in shown)))
                try:
                    governor.ask(question, hits, scope=rng.choice(SCOPES))
                    sent += 1
                except CloudRejected:
                    refused += 1
                got = recorder.take()
                for word, kinds in forbidden.items():
                    leaks += word in got
                    left.update(kinds if word in got else ())
                allowed_left += sum(word in got for word in free)
            governor.close()
            world.memory.close()
    finally:
        recorder.close()
    rows = [{"kind": kind, "tries": tries[kind], "left": left[kind]} for kind in KINDS]
    summary = {
        "calls": made,
        "sent": sent,
        "refused": refused,
        "forbidden_left": leaks,
        "allowed_left": allowed_left,
        "seconds": round(time.perf_counter() - started, 1),
    }
    return summary, rows


def main(argv: Sequence[str] | None = None) -> None:
    parser = report.parser("never_send", __doc__, to_file=False)
    parser.add_argument("--calls", type=int, default=10_000, metavar="N", help="default: 10,000")
    options = parser.parse_args(argv)
    report.write(options.json, *run(options.calls))


if __name__ == "__main__":
    main()
