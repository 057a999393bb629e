"""Whether a model fits this device, and how fast each stage is on it. See `profile`.

`profile` measures in fresh processes, so that its own memory is not counted, and combines their
answers; `answer` is their entry point. `measure` knows the parts of a Memory and the system,
`report` numbers, names and HTML. The processes start in this file, so it imports only what
each kind of work needs: one of them measures how long importing takes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import edgemem
from edgemem.errors import EdgememError, InputError, ModelError

if TYPE_CHECKING:
    from edgemem.config import Settings
    from edgemem.profile.report import Profile

__all__ = ["answer", "cold_start", "profile"]

SIZES = (1_000, 3_000, 10_000)
_TIMEOUT_S = 900.0
_ASKED = {"user": "profile", "question": "Where do I work?"}
_SETTINGS = ("model", "experts", "memory_limit")  # passed on to the profiled processes


def profile(
    *,
    settings: Settings | None = None,
    budgets: Sequence[str] = (),
    rounds: int = 5,
    sizes: Sequence[int] = SIZES,
    cold_starts: int = 3,
    on_progress: Callable[[int, int], object] = lambda _done, _of: None,
) -> Profile:
    """Measures memory, latency, cold start and growth on this device, and checks budgets.

    settings: the model, experts and memory limit to profile; None: those in force. All other
    settings are those in force. budgets: such as "1GB-ram" and "8GB-vram". rounds: of each stage.
    sizes: numbers of invented memories to search among; none: no growth is measured. cold_starts:
    processes of which the median is given, after one that is not timed. on_progress: called with
    the number of processes that have ended, and of all. No store of the user's is opened; the
    invented one is deleted. Raises InputError on bad numbers or a bad budget, and
    ModelError if a profiled process fails.
    """
    from edgemem.budget import Choice
    from edgemem.config import load_settings
    from edgemem.pipeline.parts import predict as predict_parts
    from edgemem.profile import report
    from edgemem.runtime.engine import PREFIX_BYTES

    settings = settings or load_settings()
    numbers = [("rounds", rounds), ("cold_starts", cold_starts)]
    for name, number in [*numbers, *(("one of sizes", n) for n in sizes)]:
        if number < 1:
            raise InputError(f"{name} is {number}; it must be at least 1")
    wanted = [report.parse_budget(budget) for budget in budgets]
    changes = {name: getattr(settings, name) for name in _SETTINGS}
    with tempfile.TemporaryDirectory(prefix="edgemem-profile-") as folder:
        db = os.path.join(folder, "profile.db")
        steps = cold_starts + 2 + bool(sizes)
        on_progress(0, steps)
        found = _ask("work", path=db, rounds=rounds, changes=changes, **_ASKED)
        cold = []
        for start in range(cold_starts + 1):
            on_progress(1 + start, steps)
            cold.append(_cold_start(db, changes))
        on_progress(2 + cold_starts, steps)
        grown = []
        if sizes:
            grown = _ask("growth", folder=folder, sizes=list(sizes), vectors=found["vectors"])
    cold = sorted(cold[1:], key=lambda marks: marks.get("first token", float("inf")))
    marks = cold[(len(cold) - 1) // 2]
    told = found["profile"]
    fields = {
        "parts": tuple(report.Part(**row) for row in told["parts"]),
        "stages": tuple(report.Timing(**row) for row in told["stages"]),
        "growth": tuple(report.Growth(**row) for row in grown),
        "cold_start_s": {name: round(at, 3) for name, at in marks.items()},
    }
    made = report.Profile(**{**told, **fields})
    predict = predict_parts(settings, found["counts"], found["dim"])
    loaded = {key: found[key] for key in ("n_ctx", "tuned", "vectors", "careful")}
    choice = Choice(**loaded, prefix_bytes=PREFIX_BYTES)
    verdicts = (report.verdict(b, made, found["reserved"], choice, predict) for b in wanted)
    return replace(made, verdicts=tuple(verdicts))


def _cold_start(db: str, changes: dict[str, Any]) -> dict[str, float]:
    """When each step of a cold start was done, in seconds after the start of its process."""
    began = time.monotonic()
    marks = _ask("cold_start", path=db, changes=changes, **_ASKED)
    return {name: at - began for name, at in marks.items()}


def _ask(kind: str, **asked: Any) -> Any:
    """The answer of a fresh process. Raises ModelError, with the process's error, if it fails."""
    root = str(Path(edgemem.__file__).parent.parent)
    path = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
    try:
        done = subprocess.run(
            # -P: no module is taken from the folder that the user stands in.
            [sys.executable, "-P", "-c", "from edgemem.profile import answer; answer()"],
            input=json.dumps({"kind": kind, **asked}),
            capture_output=True,
            text=True,
            encoding="utf-8",
            env={**os.environ, "PYTHONPATH": path},
            timeout=_TIMEOUT_S,
        )
    except (OSError, subprocess.TimeoutExpired) as exc:
        raise ModelError(
            f"the process that is profiled ({kind}) could not be run to its end ({exc}); profile "
            "with fewer rounds, or on a machine that is less busy"
        ) from exc
    try:
        answer = json.loads(done.stdout)
    except ValueError as exc:
        raise ModelError(
            f"the process that is profiled ({kind}) ended with {done.returncode}: "
            f"{done.stderr.strip()[-500:]}"
        ) from exc
    if "error" in answer:
        raise ModelError(f"nothing was profiled: {answer['error']}")
    return answer["answer"]


# -- in the processes ------------------------------------------------------------------------------


def cold_start(path: str, changes: dict[str, Any], user: str, question: str) -> dict[str, float]:
    """The time.monotonic() at which each step on the way to an answer was done."""
    marks = {"python": time.monotonic()}
    from edgemem.chat import Chat
    from edgemem.config import load_settings
    from edgemem.memory import Memory

    marks["imports"] = time.monotonic()
    with Memory(path, settings=replace(load_settings(), **changes)) as memory:
        memory.index  # noqa: B018  # loads the embedder, which says whose vectors they are
        marks["embedder and index"] = time.monotonic()
        memory.engine  # noqa: B018
        marks["model"] = time.monotonic()
        reply = Chat(memory, user_id=user).send(question, remember=False)
        marks["recall"] = time.monotonic()
        if next(reply, None) is not None and reply.found:
            marks["first token"] = time.monotonic()
        reply.close()
    return marks


def answer() -> None:
    """Do what standard input asks for; an EdgememError is answered as {"error": …}."""
    asked = json.load(sys.stdin)
    kind = asked.pop("kind")
    try:
        if kind == "cold_start":
            found: Any = cold_start(**asked)
        else:
            from edgemem.profile import measure

            found = measure.work(**asked) if kind == "work" else measure.growth(**asked)
        json.dump({"answer": found}, sys.stdout)
    except EdgememError as exc:
        json.dump({"error": str(exc)}, sys.stdout)
