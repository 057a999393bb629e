"""What is left of a store when its process dies, its disk fails, or its power is cut?

    python -m bench.attacks --what kills,errors,power [--cases N]

Every operation runs in a process that preloads bench/faults.c, which counts changes of files.
kills: the process ends (SIGKILL) before the n-th change, for every n. errors: the n-th change
fails (EIO, a full disk, a disk gone read-only), alone or with all changes after it. power: all
changes of one whole run are logged, and the files are built that a power cut at some point may
have left. Any part (of 512 bytes) of any unsynced write may be there, in any order; names change in
order, as file systems with a journal keep them.
Then the store is opened. It must be in the state after the last acknowledged step, or after the
step begun next, and in no other. No byte of its files may hold what was erased.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import sysconfig
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np

from edgemem import Memory
from edgemem.errors import EdgememError
from edgemem.sync import pairing_code, sync

SOURCE = Path(__file__).with_name("faults.c")
OLD_STORE = Path(__file__).parent.parent / "tests" / "fixtures" / "store-v3.db"
ERRORS = {"EIO": errno.EIO, "ENOSPC": errno.ENOSPC, "EROFS": errno.EROFS}
SECTOR = 512
SECRET = "xyzzyplugh"
Ack = Callable[[], None]


class Words:
    """Stands in for an embedder: texts that share words are near."""

    def __init__(self, dim: int = 8, model_id: str = "words@1") -> None:
        self.dim, self.model_id = dim, model_id

    def embed_query(self, text: str) -> Any:
        vector = np.full(self.dim, 1e-3, np.float32)
        for word in text.split():
            vector[crc32(word.encode("utf-8", "surrogatepass")) % self.dim] += 1
        return vector / np.linalg.norm(vector)

    def embed_chunks(self, texts: Sequence[str]) -> list[Any]:
        return [self.embed_query(text)[None] for text in texts]

    def embed(self, texts: Sequence[str]) -> Any:
        return np.stack([self.embed_query(text) for text in texts])

    def count_tokens(self, text: str) -> int:
        return len(text.split())


def opened(folder: Path, embedder: Words | None = None) -> Memory:
    return Memory(folder / "a.db", embedder=embedder or Words())  # type: ignore[arg-type]


# -- the operations --------------------------------------------------------------------------------


def fill(folder: Path) -> None:
    """Write into the folder a store with secrets, its index file, a backup and an export."""
    with opened(folder) as memory:
        for number in range(12):
            memory.add(f"tea {number} with milk", user_id="ada", infer=False)
        for number in range(2):
            memory.add(f"{SECRET}{number} under the oak", user_id=f"s{number}", infer=False)
        _index(memory)
    (folder / "a.db.v5.bak").write_text(f"{SECRET}0 {SECRET}1")  # as a migration leaves a backup
    with opened(folder / "other") as other:
        other.add([f"boat {number}" for number in range(60)], infer=False)
        other.export_jsonl(folder / "in.jsonl")
    shutil.rmtree(folder / "other")


def fill_synced(folder: Path) -> None:
    """As `fill`, and a folder with another device's changes: an erase, an edit, new memories."""
    fill(folder)
    with opened(folder) as memory, opened(folder / "other") as other:
        sync(memory, folder / "shared")
        sync(other, folder / "shared", pairing_code(memory))
        other.erase(_ids(other, f"{SECRET}0")[0])
        other.update(_ids(other, "tea")[0], "coffee instead")
        other.add([f"boat {number}" for number in range(6)], infer=False)
        sync(other, folder / "shared")
        memory.add("not yet told", infer=False)
        _index(memory)
    shutil.rmtree(folder / "other")


def _index(memory: Memory) -> None:
    memory.index.vectors.crossover = 0  # small stores have no graph
    memory.search("tea")
    memory.index.vectors.build_hnsw()


def _ids(memory: Memory, word: str) -> list[str]:
    return [item.id for item in memory.get_all() if word in item.memory]


def _add(folder: Path, ack: Ack) -> None:
    with opened(folder) as memory:
        for number in range(3):
            memory.add(f"added {number}", infer=False)
            ack()


def _update(folder: Path, ack: Ack) -> None:
    with opened(folder) as memory:
        for id in _ids(memory, "tea")[:3]:
            memory.update(id, "coffee instead")
            ack()


def _delete(folder: Path, ack: Ack) -> None:
    with opened(folder) as memory:
        for id in _ids(memory, "tea")[:3]:
            memory.delete(id)
            ack()


def _erase(folder: Path, ack: Ack) -> None:
    with opened(folder) as memory:
        with memory.store.transaction() as tx:  # creates the WAL file before the erase
            tx.set_meta("note", "")
        for id in _ids(memory, SECRET):
            memory.erase(id)
            ack()


def _import(folder: Path, ack: Ack) -> None:
    with opened(folder) as memory:
        memory.import_jsonl(folder / "in.jsonl")
        ack()


def _reindex(folder: Path, ack: Ack) -> None:
    with opened(folder, Words(16, "words@2")) as memory:
        memory.reindex()
        ack()


def _migrate(folder: Path, ack: Ack) -> None:
    opened(folder).close()
    ack()


def _sync(folder: Path, ack: Ack) -> None:
    with opened(folder) as memory:
        sync(memory, folder / "shared")
        ack()


def _save(folder: Path, ack: Ack) -> None:
    with opened(folder) as memory:
        memory.add("one more", infer=False)
        ack()
        _index(memory)


OPERATIONS: dict[str, Callable[[Path, Ack], None]] = {
    "add": _add, "update": _update, "delete": _delete, "erase": _erase, "import": _import,
    "reindex": _reindex, "migrate": _migrate, "sync": _sync, "index save": _save,
}  # fmt: skip


# -- running one below the shim --------------------------------------------------------------------


def build(into: Path) -> Path:
    """Compile the shim and return its file. Raises RuntimeError off Linux or without a compiler."""
    compiler = (sysconfig.get_config_var("CC") or "cc").split()[0]
    compiler = next((c for c in (compiler, "cc", "gcc") if shutil.which(c)), "")
    if not sys.platform.startswith("linux") or not compiler:
        raise RuntimeError("the file layer that fails needs Linux and a C compiler")
    made = into / "faults.so"
    command = [compiler, "-shared", "-fPIC", "-O1", "-o", str(made), str(SOURCE), "-ldl"]
    subprocess.run(command, check=True)
    return made


def serve() -> None:
    """Run each request, a line of JSON on stdin, in a fork; answer each with a line of JSON."""
    shim = ctypes.CDLL(None)
    for line in sys.stdin:
        asked = json.loads(line)
        reader, writer = os.pipe()
        if (pid := os.fork()) == 0:
            os.close(reader)
            _run(shim, asked, writer)
            os._exit(0)
        os.close(writer)
        with os.fdopen(reader) as told:
            lines = told.read().splitlines()
        _, status = os.waitpid(pid, 0)
        acks = sum(line == "ack" for line in lines)
        last = json.loads(lines[-1]) if lines and lines[-1] != "ack" else {"seen": 0, "error": None}
        killed = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
        print(json.dumps({**last, "acks": acks, "killed": killed}), flush=True)


def _run(shim: Any, asked: dict[str, Any], writer: int) -> None:
    folder, error = Path(asked["folder"]), None
    log = os.open(asked["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND) if asked["log"] else -1

    def ack() -> None:
        if log >= 0:
            os.write(log, struct.pack("4q", ord("a"), 0, 0, 0))
        os.write(writer, b"ack\n")

    shim.faults_arm(ctypes.c_long(asked["at"]), asked["errno"], int(asked["all"]), log)
    try:
        OPERATIONS[asked["operation"]](folder, ack)
    except EdgememError as exc:
        error = type(exc).__name__
    except BaseException as exc:
        error = f"! {exc!r:.300}"
    shim.faults_seen.restype = ctypes.c_long
    seen = shim.faults_seen()
    os.write(writer, json.dumps({"seen": seen, "error": error}).encode() + b"\n")


@dataclass
class Lab:
    """A process that preloads the shim, and the folder it works in.

    before: each operation's folder before its run. states: each operation's states, after no step,
    after the first step, and so on.
    """

    folder: Path
    process: subprocess.Popen[str]
    before: dict[str, Path] = field(default_factory=dict)
    states: dict[str, list[Any]] = field(default_factory=dict)

    @property
    def work(self) -> Path:
        return self.folder / "work"

    def prepare(self, operation: str) -> None:
        before = self.folder / operation
        before.mkdir()
        if operation == "migrate":
            shutil.copy(OLD_STORE, before / "a.db")
        else:
            (fill_synced if operation == "sync" else fill)(before)
        self.before[operation] = before
        states: list[Any] = []
        self.fresh(operation)
        if operation != "migrate":
            states.append(state(self.work))
        # `state` opens the store a second time, beside the operation that runs.
        OPERATIONS[operation](self.work, lambda: states.append(state(self.work)))
        if operation == "migrate":
            states.append(states[0])
        self.states[operation] = states

    def fresh(self, operation: str) -> None:
        shutil.rmtree(self.work, ignore_errors=True)
        shutil.copytree(self.before[operation], self.work)

    def run(
        self, operation: str, at: int = 0, error: int = 0, *, all_: bool = False, log: str = ""
    ) -> dict[str, Any]:
        """Run an operation from its beginning; returns the answer of `serve`."""
        self.fresh(operation)
        asked = {"operation": operation, "folder": str(self.work), "at": at, "errno": error,
                 "all": all_, "log": log}  # fmt: skip
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps(asked) + "\n")
        self.process.stdin.flush()
        told: dict[str, Any] = json.loads(self.process.stdout.readline())
        return told

    def wrong(self, operation: str, acks: int) -> str | None:
        """What is wrong with the folder after so many acknowledged steps; None if nothing is."""
        states = self.states[operation]
        erases = operation in ("erase", "sync")
        if erases and acks and (left := secrets(self.work, acks)):
            return f"{left} in a file before it is opened"
        embedder = Words()
        with Memory(self.work / "a.db", embedder=embedder) as memory:  # type: ignore[arg-type]
            if problems := memory.doctor(erased=erases)["problems"]:
                return f"problems: {problems}"
            if operation == "reindex" and memory.store.meta("embedder_model") == "words@2":
                embedder.__init__(16, "words@2")  # type: ignore[misc]
            if operation != "migrate" and not memory.search("tea"):
                return "a search finds nothing"
        found = state(self.work)
        if operation in ("import", "sync") and found not in states:  # a second run completes these
            OPERATIONS[operation](self.work, lambda: None)
            found = state(self.work)
        if found not in states[acks : acks + 2]:
            return f"after {acks} acknowledged steps: {found}"
        if erases and (left := secrets(self.work, states.index(found))):
            return f"{left} in a file"
        return None


def secrets(folder: Path, erased: int) -> list[str]:
    """Of the first `erased` secrets those that the store's files still hold."""
    data = b"\0".join(f.read_bytes() for f in folder.iterdir() if f.name.startswith("a.db"))
    return [name for n in range(erased) if (name := f"{SECRET}{n}").encode() in data]


def state(folder: Path) -> Any:
    """All that a store holds, but ids and times."""
    with Memory(folder / "a.db", embedder=Words()) as memory:  # type: ignore[arg-type]
        counts = memory.store.counts()
        texts = sorted(item.memory for item in memory.store.list(include_invalid=True))
        events = Counter(r["event"] for r in memory.store.export_rows() if r["type"] == "history")
        return [texts, counts, sorted(events.items()), memory.store.meta("embedder_model")]


@contextmanager
def lab(operations: Sequence[str]) -> Iterator[Lab]:
    """A Lab that is prepared for these operations."""
    with tempfile.TemporaryDirectory(prefix="edgemem-faults") as name:
        folder = Path(name).resolve()
        environment = {
            **os.environ,
            "LD_PRELOAD": str(build(folder)),
            "EDGEMEM_FAULTS": str(folder / "work"),
            "EDGEMEM_HOME": str(folder),
            "OPENBLAS_NUM_THREADS": "1",  # the process forks
        }
        process = subprocess.Popen(
            [sys.executable, "-c", "from bench.faults import serve; serve()"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment,
        )  # fmt: skip
        made = Lab(folder, process)
        try:
            for operation in operations:
                made.prepare(operation)
            yield made
        finally:
            process.terminate()
            process.communicate()


def chosen(cases: int, seen: int, rng: random.Random) -> list[int]:
    """Which of the changes 1 to `seen` to try: `cases` of them at random, or all."""
    return (
        sorted(rng.sample(range(1, seen + 1), cases)) if cases < seen else list(range(1, seen + 1))
    )


# -- kills and errors ------------------------------------------------------------------------------


def kills(cases: int, operations: Sequence[str] = tuple(OPERATIONS)) -> list[dict[str, Any]]:
    """A row for each operation: processes ended, steps acknowledged, and what was wrong."""
    rng, rows = random.Random(1), []
    with lab(operations) as made:
        for operation in operations:
            row: dict[str, Any] = {
                "operation": operation,
                "kills": 0,
                "acknowledged": 0,
                "wrong": [],
            }
            seen = made.run(operation)["seen"]
            while row["kills"] < cases:
                for at in chosen(cases - row["kills"], seen, rng):
                    told = made.run(operation, at)
                    row["kills"] += told["killed"] == signal.SIGKILL
                    row["acknowledged"] += told["acks"]
                    _note(row, made, told, f"killed before change {at} of {seen}")
            rows.append(row)
    return rows


def errors(cases: int, operations: Sequence[str] = tuple(OPERATIONS)) -> list[dict[str, Any]]:
    """A row for each operation and error: changes that failed, what was raised, what was wrong."""
    rng, rows = random.Random(2), []
    with lab(operations) as made:
        for operation in operations:
            for name, number in ERRORS.items():
                row: dict[str, Any] = {"operation": operation, "error": name, "cases": 0,
                                       "raised": Counter(), "wrong": []}  # fmt: skip
                seen = made.run(operation)["seen"]
                for all_ in (False, True):
                    for at in chosen(max(1, cases // 2), seen, rng):
                        told = made.run(operation, at, number, all_=all_)
                        row["cases"] += 1
                        row["raised"][str(told["error"])] += 1
                        _note(row, made, told, f"{name} at change {at} of {seen}, all: {all_}")
                rows.append(row)
    return rows


def _note(row: dict[str, Any], made: Lab, told: dict[str, Any], what: str) -> None:
    wrong = None
    if str(told["error"]).startswith("!") or told["killed"] not in (0, signal.SIGKILL):
        wrong = f"ended with {told}"
    else:
        try:
            wrong = made.wrong(row["operation"], told["acks"])
        except EdgememError as exc:
            wrong = f"cannot be opened: {exc!r}"
    if wrong is not None:
        row["wrong"].append(f"{what}: {wrong}"[:600])


# -- power cuts ------------------------------------------------------------------------------------


@dataclass
class _File:
    """A file's synced bytes, and its changes since then (kind, offset, data)."""

    data: bytearray = field(default_factory=bytearray)
    loose: list[tuple[str, int, bytes]] = field(default_factory=list)

    def sync(self) -> None:
        for change in self.loose:
            _apply(self.data, *change)
        self.loose.clear()

    def cut(self, rng: random.Random) -> bytes:
        """The bytes that a power cut may leave."""
        data, keep = bytearray(self.data), rng.choice((0.0, 0.3, 0.7, 1.0))
        left = [change for change in self.loose if rng.random() < keep]
        rng.shuffle(left)
        for kind, offset, given in left:
            if kind == "w" and rng.random() < 0.3:  # torn
                for at in range(0, len(given), SECTOR):
                    if rng.random() < 0.5:
                        _apply(data, kind, offset + at, given[at : at + SECTOR])
            else:
                _apply(data, kind, offset, given)
        return bytes(data)


def _apply(data: bytearray, kind: str, offset: int, given: bytes) -> None:
    size = offset if kind == "t" else max(len(data), offset + len(given))
    data.extend(bytes(max(0, size - len(data))))
    if kind == "t":
        del data[offset:]
    else:
        data[offset : offset + len(given)] = given


def read_log(file: Path) -> list[tuple[str, str, int, bytes]]:
    """(kind, path, offset, data) of each record; a rename's data is the new path."""
    data, at, out = file.read_bytes(), 0, []
    while at < len(data):
        kind, name, offset, size = struct.unpack_from("4q", data, at)
        at += 32
        path = data[at : at + name].decode()
        out.append((chr(kind), path, offset, data[at + name : at + name + size]))
        at += name + size
    return out


def after_cut(
    before: Path, records: Sequence[tuple[str, str, int, bytes]], into: Path, rng: random.Random
) -> int:
    """Write the files that a power cut after these records may leave; returns the steps done."""
    files = [file for file in before.rglob("*") if file.is_file()]
    disk = {f"/{f.relative_to(before)}": _File(bytearray(f.read_bytes())) for f in files}
    names = dict(disk)  # as the running system sees them; `disk`: as a cut leaves them
    moves: list[tuple[str, str, _File | None]] = []
    acks = 0

    def move(path: str, file: _File | None) -> None:
        moves.append(("", path, file))
        names.pop(path, None)
        if file is not None:
            names[path] = file

    def settle(count: int) -> None:
        for _, path, file in moves[:count]:
            disk.pop(path, None)
            if file is not None:
                disk[path] = file
        del moves[:count]

    for kind, path, offset, data in records:
        if kind == "a":
            acks += 1
        elif kind == "s" and path in names:
            names[path].sync()
        elif kind == "s" and (path == "" or any(name.startswith(f"{path}/") for name in names)):
            settle(len(moves))  # a folder: the file system's journal keeps the order
        elif kind == "c" or (kind in "wt" and path not in names):
            move(path, _File())
        if kind == "r":
            # One change of the folder: both names at once.
            file = names.pop(path, None)
            moves.append(("r", path, None))
            move(data.decode(), file)
        elif kind == "u":
            move(path, None)
        elif kind in "wt":
            names[path].loose.append((kind, offset, data))
    count = rng.randint(0, len(moves))
    while 0 < count <= len(moves) and moves[count - 1][0] == "r":
        count += 1
    settle(count)
    shutil.rmtree(into, ignore_errors=True)
    into.mkdir()
    for path, file in disk.items():
        (into / path[1:]).parent.mkdir(parents=True, exist_ok=True)
        (into / path[1:]).write_bytes(file.cut(rng))
    return acks


def power(cases: int, operations: Sequence[str] = tuple(OPERATIONS)) -> list[dict[str, Any]]:
    """A row for each operation: power cuts, and what was wrong."""
    rows = []
    with lab(operations) as made:
        for operation in operations:
            log = made.folder / "log"
            log.unlink(missing_ok=True)
            told = made.run(operation, log=str(log))
            records = read_log(log)
            row: dict[str, Any] = {"operation": operation, "changes": len(records), "cuts": 0,
                                   "wrong": []}  # fmt: skip
            for case in range(cases):
                rng = random.Random(case)
                cut = rng.randint(0, len(records))
                acks = after_cut(made.before[operation], records[:cut], made.work, rng)
                row["cuts"] += 1
                _note(row, made, {**told, "acks": acks}, f"case {case}, after change {cut}")
            rows.append(row)
    return rows
