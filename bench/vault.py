"""What does an encrypted store cost, and does moving a store into a vault and back survive kill -9?

    python -m bench.vault [--n 2000] [--queries 200] [--seed 0] [--json OUT]
    python -m bench.vault --kills 100 [--n 300] [--seed 0] [--json OUT]

The first command stores the same messages in a plain store and in a vault, one at a time in turn,
and asks both the same questions in turn, so that other load on the machine affects both. It reports
wall and CPU milliseconds of an add, of the store's transaction alone, of a search, of opening a
store whose key is known, and of unlocking with a passphrase.

The second command lets a child process move a store into a vault, or back, and kills it: at each of
its file operations in turn, and after random times. After each kill the store is opened. Every row
must be there. If the store is a vault, no file of the folder may hold a stored word or vector, as
float32 or int8. The exit code is 1 if a row is lost or such a trace is found.
"""

from __future__ import annotations

import os
import random
import secrets
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from bench import report
from edgemem import vault as vaults
from edgemem.config import load_settings
from edgemem.results import Scope, utc_now
from edgemem.store import NewMemory, Store
from edgemem.store.encryption import decrypt, encrypt, is_plain

DIM = 48
PASSPHRASE = "seven wet herons"
OPENINGS, WARM_UP = 10, 10


def costs(n: int, queries: int, seed: int, folder: Path) -> tuple[dict[str, Any], list[Any]]:
    """The summary and the rows of the costs of a plain store and a vault."""
    from bench.search import MESSAGES, QUESTIONS, sentences
    from edgemem.memory import Memory
    from edgemem.runtime.embedder import Embedder

    settings = replace(load_settings(), n_threads=1)
    embedder = Embedder.load(settings.embedder, n_threads=1)
    times: dict[tuple[str, str], list[tuple[float, float]]] = {}

    def timed(what: str, which: str, step: Callable[[], object]) -> None:
        cpu, began = time.process_time(), time.perf_counter()
        step()
        took = time.perf_counter() - began, time.process_time() - cpu
        times.setdefault((what, which), []).append((took[0] * 1e3, took[1] * 1e3))

    paths = {"plain": folder / "plain.db", "vault": folder / "vault.db"}
    passphrases = {"plain": None, "vault": PASSPHRASE}
    stores = {
        which: Memory(path, settings=settings, embedder=embedder, passphrase=passphrases[which])
        for which, path in paths.items()
    }
    try:
        for number, text in enumerate(islice(sentences(MESSAGES, seed), n)):
            vectors = embedder.embed_chunks([text])[0]
            for which in _turns(number):
                memory = stores[which]
                timed("add", which, lambda m=memory, t=text: m.add(t, infer=False))  # type: ignore[misc]
                row = _row(f"{number}", text, vectors)
                timed("store", which, lambda m=memory, r=row: _add(m.store, r))  # type: ignore[misc]
        for number, query in enumerate(islice(sentences(QUESTIONS, seed), queries + WARM_UP)):
            for which in _turns(number):
                memory = stores[which]
                what = "search" if number >= WARM_UP else "first searches"
                timed(what, which, lambda m=memory, q=query: m.search(q))  # type: ignore[misc]
    finally:
        for memory in stores.values():
            memory.close()
    key = vaults.unlock(paths["vault"], passphrase=PASSPHRASE)
    for number in range(OPENINGS):
        for which in _turns(number):
            found = key if which == "vault" else None
            timed("open", which, lambda w=which, v=found: Store.open(paths[w], vault=v).close())  # type: ignore[misc]
        timed("passphrase", "vault", lambda: vaults.unlock(paths["vault"], passphrase=PASSPHRASE))
    rows = [
        {"what": what, "store": which, "n": len(values), "p50_ms": round(_median(values, 0), 3),
         "cpu_p50_ms": round(_median(values, 1), 3)}
        for (what, which), values in times.items()
    ]  # fmt: skip
    summary: dict[str, Any] = {
        f"{what}_{name}ratio": round(
            _median(times[what, "vault"], i) / _median(times[what, "plain"], i), 3
        )
        for what in ("add", "store", "search", "open")
        for i, name in enumerate(("", "cpu_"))
    }
    summary["passphrase_ms"] = round(_median(times["passphrase", "vault"], 0), 1)
    summary["passphrase_cpu_ms"] = round(_median(times["passphrase", "vault"], 1), 1)
    summary["bytes_ratio"] = round(paths["vault"].stat().st_size / paths["plain"].stat().st_size, 3)
    return {"n": n, "queries": queries, **summary}, rows


def _median(values: list[tuple[float, float]], which: int) -> float:
    return median(value[which] for value in values)


def _turns(number: int) -> tuple[str, str]:
    return ("plain", "vault") if number % 2 else ("vault", "plain")


def _row(id: str, text: str, vectors: Any) -> NewMemory:
    now = utc_now()
    return NewMemory(
        id=id, memory=text, kind="fact", search_text=text, scope=Scope(user_id="other"),
        created_at=now, vectors=vectors,
    )  # fmt: skip


def _add(store: Store, *rows: NewMemory) -> None:
    with store.transaction() as tx:
        for row in rows:
            tx.add_memory(row)


# -- kills -----------------------------------------------------------------------------------------


def kills(count: int, n: int, seed: int, folder: Path) -> tuple[dict[str, Any], list[Any]]:
    """Move a store of n memories, kill the mover `count` times, and look at what is left.

    A mover that ends before it is killed is not counted, but its result is checked too.
    """
    os.environ["EDGEMEM_HOME"] = str(folder / "home")
    rng = random.Random(seed)
    words = [f"w{secrets.token_hex(8)}" for _ in range(max(1000, n))]
    vectors = np.random.default_rng(seed).standard_normal((n, DIM)).astype(np.float32)
    marks = [w.encode() for w in words]
    marks += [row.tobytes()[:16] for row in vectors]
    scaled = np.rint(vectors / np.abs(vectors).max(1, keepdims=True) * 127).astype(np.int8)
    marks += [row.tobytes() for row in scaled]
    places = {"lock": folder / "plain" / "a.db", "unlock": folder / "vault" / "a.db"}
    for what, path in places.items():
        path.parent.mkdir(parents=True)
        with Store.open(path) as store:
            per = -(-len(words) // n)
            rows = [
                _row(f"m{i}", " ".join(words[i * per :][:per]), vectors[i][None]) for i in range(n)
            ]
            _add(store, *rows)
            shutil.copy(path, path.with_name("kept"))
            shutil.copy(f"{path}-wal", path.with_name("kept-wal"))
        if what == "lock":  # with a WAL that is not checkpointed into the file
            path.with_name("kept").replace(path)
            path.with_name("kept-wal").replace(f"{path}-wal")
        else:
            encrypt(path, "file")
            shutil.copytree(folder / "home", folder / "keys")
            path.with_name("kept").unlink()
            path.with_name("kept-wal").unlink()
    lost = found = 0
    rows_out: list[dict[str, Any]] = []
    steps = {what: _moved(folder / "dry", path, what, None)[1] for what, path in places.items()}
    for number in range(4 * count):
        if sum(row["killed"] for row in rows_out) == count:
            break
        what = ("lock", "unlock")[number % 2]
        operations, seconds = steps[what]
        instant: float = (
            1 + (number // 4) % operations if number % 4 < 2 else -rng.uniform(0, seconds)
        )
        died, _ = _moved(folder / "run", places[what], what, instant)
        path = folder / "run" / "a.db"
        before = "vault" if not is_plain(path) else "plain"
        with Store.open(path) as store:
            texts = {item.id: item.memory for item in store.list()}
            whole = len(texts) == n and len(store.vectors()) == n and store.check() == []
            whole = whole and sum(len(t.split()) for t in texts.values()) == len(words)
            sealed = store.vault is not None
            left = _left(path.parent, marks) if sealed else 0
        beside = sorted(f.name for f in path.parent.iterdir())
        expected = {"a.db", "a.db.lock", "a.db.vault" if sealed else "a.db-journal"}
        left += sum(name not in expected and not name.startswith(".a.db.vault.") for name in beside)
        lost, found = lost + (not whole), found + left
        rows_out.append({"what": what, "instant": instant, "killed": died, "state": before,
                         "whole": whole, "left": left, "beside": beside})  # fmt: skip
    ended = sum(row["killed"] for row in rows_out)
    summary = {"kills": ended, "runs": len(rows_out), "stores_lost": lost, "traces_left": found,
               "words": len(words), "vectors": n}  # fmt: skip
    return summary, rows_out


def _moved(
    run: Path, store: Path, what: str, instant: float | None
) -> tuple[bool, tuple[int, float]]:
    """Move a copy of a store in a child process, and kill the child at `instant`.

    instant: the number of a file operation, or minus a number of seconds; None lets the move end.
    Returns whether the child was killed, and the (file operations, seconds) of a move that ended
    with `instant` None, else zeros.
    """
    shutil.rmtree(run, ignore_errors=True)
    shutil.copytree(store.parent, run)
    shutil.rmtree(run.parent / "home", ignore_errors=True)
    shutil.copytree(run.parent / "keys", run.parent / "home")
    path, counted = run / "a.db", run.parent / "counted"
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            done = 0

            def watch(event: str, _: object) -> None:
                nonlocal done
                if event == "open" or event.startswith(("os.", "shutil.")):
                    done += 1
                    if instant is not None and done == instant:
                        os.kill(os.getpid(), signal.SIGKILL)

            began = time.perf_counter()
            key = None if what == "lock" else vaults.unlock(path)
            sys.addaudithook(watch)
            if key is None:
                encrypt(path, "file")
            else:
                decrypt(path, key)
            took, events = time.perf_counter() - began, done
            if instant is None:
                counted.write_text(f"{events} {took}", encoding="ascii")
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    if instant is not None and instant < 0:
        time.sleep(-instant)
        os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    if os.WIFEXITED(status) and os.WEXITSTATUS(status):
        raise RuntimeError(f"the move failed by itself ({what}, {instant})")
    if instant is None:
        events_, took_ = counted.read_text(encoding="ascii").split()
        return False, (int(events_), float(took_))
    return os.WIFSIGNALED(status), (0, 0.0)


def _left(folder: Path, marks: list[bytes]) -> int:
    """How often a file of the folder holds a mark, counting each file and mark once."""
    return sum(mark in data for data in map(Path.read_bytes, folder.iterdir()) for mark in marks)


def main() -> None:
    parser = report.parser("vault", __doc__, to_file=False)
    parser.add_argument("--n", type=int, default=None, help="memories (2000; 300 with --kills)")
    parser.add_argument("--queries", type=int, default=200)
    parser.add_argument("--kills", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="edgemem-vault-") as name:
        if given.kills:
            summary, rows = kills(given.kills, given.n or 300, given.seed, Path(name))
        else:
            summary, rows = costs(given.n or 2000, given.queries, given.seed, Path(name))
    report.write(given.json, summary, rows)
    if summary.get("stores_lost") or summary.get("traces_left"):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
