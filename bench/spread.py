"""Spreads a bench's conversations over the CPUs of a Ray cluster, and goes on after a stop."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from edgemem import __version__
from edgemem.cachefile import replace_file
from edgemem.training import trainer as fleet

Work = Callable[[dict[str, Any]], dict[str, Any]]
_RESTARTS = 2  # of a task whose worker died


def spread(
    work: Work, items: Sequence[dict[str, Any]], kept: Path, *, address: str | None = None
) -> list[dict[str, Any]]:
    """The results of `work` for items, in order, computed here or each on a CPU of a cluster.

    Items and results are JSON. kept: a folder for the results so far, deleted once all are there;
    after a stop, the same call goes on from it. Raises as `fleet.cluster` and as `work` does.
    """
    kept.mkdir(parents=True, exist_ok=True)
    files = [kept / f"{_key(work, item)}.json" for item in items]
    left = [(item, file) for item, file in zip(items, files, strict=True) if not file.exists()]
    if address is None:
        for item, file in left:
            replace_file(file, json.dumps(work(item)).encode())
    elif left:
        with fleet.cluster(address) as ray:
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
