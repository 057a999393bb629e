"""A Ray cluster computes the rows of a training step, or the conversations of a bench.

The results are those of one machine. Finished work is stored, so that a stopped run can go on. Each
machine needs edgemem, and the base model's file at the same path. Owns ray (extra `fleet`), whose
usage reports are switched off. Ray's ports are open to the cluster's network, even for `local`, so
the network must be a trusted one.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from edgemem import __version__
from edgemem.cachefile import replace_file
from edgemem.config import require
from edgemem.errors import EdgememError, InputError, ModelError
from edgemem.runtime.models import known_sha256
from edgemem.training import trainer
from edgemem.training.examples import Stage

__all__ = ["cluster", "spread", "workers"]

Work = Callable[[dict[str, Any]], dict[str, Any]]
_RESTARTS = 2  # of a worker that died; nothing is lost, as each step sends all values anew
_OBJECTS_BYTES = 256 * 2**20  # of the object store of a `local` cluster


@contextmanager
def cluster(address: str) -> Iterator[Any]:
    """Ray's module, connected. address: `HOST:PORT`, `auto`, or `local` to start a cluster here.

    Raises ConfigError without the extra, EdgememError when there is no cluster or it fails, and
    any EdgememError that a worker raised.
    """
    require("fleet")
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    import ray

    own = {"object_store_memory": _OBJECTS_BYTES, "include_dashboard": False}
    try:
        ray.init(
            address, log_to_driver=False, logging_level="error", **own if address == "local" else {}
        )
    except (ConnectionError, OSError, RuntimeError, ValueError) as exc:
        raise EdgememError(
            f"there is no Ray cluster at {address!r} ({exc!s:.200}); start one with `ray start "
            "--head` and give its HOST:PORT, or give `local`"
        ) from exc
    try:
        yield ray
    except ray.exceptions.RayError as exc:
        cause = getattr(exc, "cause", None) or exc  # what a task raised, without its traceback
        if isinstance(cause, EdgememError):
            raise cause from None
        raise EdgememError(
            f"the Ray cluster at {address!r} failed ({type(cause).__name__}: {cause!s:.300}). "
            "What was done is kept: the same command goes on there, a training with --resume"
        ) from exc
    finally:
        ray.shutdown()


@contextmanager
def workers(
    address: str, stage: Stage, base: Path, plan: trainer.Plan
) -> Iterator[trainer.Workers]:
    """Workers for `trainer.train`: one for each GPU of a cluster.

    Without GPUs, one for every `plan.threads` CPUs (1 by default). Each loads the base model once.
    Raises as `cluster`, InputError on too few CPUs, ModelError when a machine has another base.
    """
    with cluster(address) as ray:
        threads = plan.threads or 1
        has = ray.cluster_resources()
        takes = {"num_gpus": 1} if has.get("GPU") else {"num_cpus": threads}
        count = int(has["GPU"] if has.get("GPU") else has.get("CPU", 0) // threads)
        if count < 1:
            raise InputError(
                f"the Ray cluster at {address!r} has {has.get('CPU', 0):g} CPUs, too few for a "
                f"worker of {threads}; lower --threads"
            )
        actor = ray.remote(max_restarts=_RESTARTS, max_task_retries=_RESTARTS, **takes)(_Worker)
        given = (stage, base, known_sha256(base), plan, threads)
        actors = [actor.remote(*given) for _ in range(count)]

        def compute(
            values: trainer.Arrays, shares: Sequence[trainer.Share]
        ) -> list[tuple[float, trainer.Arrays]]:
            sent = ray.put(values)
            asked = [actors[n % count].share.remote(sent, s) for n, s in enumerate(shares)]
            return list(ray.get(asked))

        yield compute


class _Worker:
    """One process of the cluster, with the base model loaded."""

    def __init__(
        self, stage: Stage, base: Path, sha256: str, plan: trainer.Plan, threads: int
    ) -> None:
        import torch

        if not base.is_file() or known_sha256(base) != sha256:
            raise ModelError(f"{base} of {os.uname().nodename} is not the base model trained on")
        torch.set_num_threads(threads)
        self._expert = trainer.Expert(stage, base, plan)

    def share(self, values: trainer.Arrays, share: trainer.Share) -> tuple[float, trainer.Arrays]:
        return self._expert.share(values, share)


def spread(
    work: Work, items: Sequence[dict[str, Any]], kept: Path, *, address: str | None = None
) -> list[dict[str, Any]]:
    """The results of `work` for items, in order, computed here or each on a CPU of a cluster.

    Items and results are JSON. kept: a folder for the results so far, deleted once all are there;
    after a stop, the same call goes on from it. Raises as `cluster` and as `work` does.
    """
    kept.mkdir(parents=True, exist_ok=True)
    files = [kept / f"{_key(work, item)}.json" for item in items]
    left = [(item, file) for item, file in zip(items, files, strict=True) if not file.exists()]
    if address is None:
        for item, file in left:
            replace_file(file, json.dumps(work(item)).encode())
    elif left:
        with cluster(address) as ray:
            task = ray.remote(num_cpus=1, max_retries=_RESTARTS)(work)
            files_of = {task.remote(item): file for item, file in left}
            while files_of:
                (done, *_), _ = ray.wait(list(files_of))
                replace_file(files_of.pop(done), json.dumps(ray.get(done)).encode())
    results = [json.loads(file.read_text(encoding="utf-8")) for file in files]
    shutil.rmtree(kept)
    return results


def _key(work: Work, item: dict[str, Any]) -> str:
    parts = [__version__, work.__qualname__, item]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]
