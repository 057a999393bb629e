"""A Ray cluster computes the rows of a training step.

The result is that of one machine. Each machine needs edgemem, and the base model's file at the same
path. Owns ray (extra `fleet`), whose usage reports are switched off. Ray's ports are open to the
cluster's network, even for `local`, so the network must be a trusted one.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from edgemem.config import require
from edgemem.errors import EdgememError, InputError, ModelError
from edgemem.runtime.models import known_sha256
from edgemem.training import trainer
from edgemem.training.examples import Stage

__all__ = ["cluster", "workers"]

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
