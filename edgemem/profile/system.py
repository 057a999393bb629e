"""What the system tells of a process and its machine: memory, energy, processor, versions.

Knows /proc and /sys of Linux; elsewhere, and where they cannot be read, the answer is None and
whoever shows it says "unknown". Knows nothing of models or stages.
"""

from __future__ import annotations

import gc
import os
import platform
import re
import sys
from collections.abc import Mapping
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

import edgemem
from edgemem.runtime import machine as this_machine

__all__ = [
    "LIBRARIES",
    "energy_joules",
    "give_back",
    "joules_between",
    "machine",
    "mapped_bytes",
    "memory_bytes",
    "versions",
]

LIBRARIES = {  # what is imported, by the name of its distribution
    "numpy": "numpy",
    "onnxruntime": "onnxruntime",
    "tokenizers": "tokenizers",
    "hnswlib": "hnswlib",
    "sqlite-utils": "sqlite_utils",
    "llama-cpp-python": "llama_cpp",
}
_MAPPING = re.compile(r"([0-9a-f]+)-[0-9a-f]+ \S+ \S+ \S+ \d+\s*(.*)")
_POWERCAP = Path("/sys/class/powercap")


def give_back() -> None:
    """Return to the system what was freed, so that what is resident is in use. glibc only."""
    gc.collect()
    this_machine.give_back()


def memory_bytes() -> dict[str, int | None]:
    """rss, pss (shared pages divided among those who share them) and peak_rss of this process."""
    found: dict[str, int | None] = {"rss": None, "pss": None, "peak_rss": None}
    with suppress(OSError):
        for line in Path("/proc/self/smaps_rollup").read_text(encoding="ascii").splitlines():
            name, _, value = line.partition(":")
            if name in ("Rss", "Pss"):
                found[name.lower()] = int(value.split()[0]) * 1024
    with suppress(ImportError):  # not on Windows
        import resource

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        found["peak_rss"] = peak * (1 if sys.platform == "darwin" else 1024)
    return found


def mapped_bytes(file: Path) -> dict[int, int] | None:
    """Resident bytes of each mapping of a file into this process, by where it begins."""
    found: dict[int, int] = {}
    at: int | None = None
    try:
        with open("/proc/self/smaps", encoding="utf-8", errors="surrogateescape") as lines:
            for line in lines:
                if (head := _MAPPING.match(line)) is not None:
                    at = int(head[1], 16) if head[2].strip() == str(file.resolve()) else None
                elif at is not None and line.startswith("Rss:"):
                    found[at] = int(line.split()[1]) * 1024
    except OSError:
        return None
    return found


def energy_joules(folder: Path = _POWERCAP) -> dict[str, tuple[float, float]] | None:
    """What each processor package has used so far, and where its counter begins anew (RAPL).

    None where the machine does not report it, or not to this user.
    """
    found: dict[str, tuple[float, float]] = {}
    for zone in sorted(folder.glob("*-rapl:*")):
        if zone.name.count(":") == 1:  # a package; its parts are counted in it
            with suppress(OSError, ValueError):
                used = int((zone / "energy_uj").read_text(encoding="ascii"))
                most = int((zone / "max_energy_range_uj").read_text(encoding="ascii"))
                found[zone.name] = (used / 1e6, most / 1e6)
    return found or None


def joules_between(
    before: Mapping[str, tuple[float, float]], after: Mapping[str, tuple[float, float]]
) -> float:
    """What was used between two readings, less than one turn of a counter apart."""
    spent = 0.0
    for name in before.keys() & after.keys():
        (start, most), (end, _) = before[name], after[name]
        spent += end - start if end >= start else end - start + most
    return spent


def machine() -> dict[str, Any]:
    """The device; what it does not tell is None."""
    total = None
    with suppress(AttributeError, ValueError, OSError):
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 1_000_000
    affinity = getattr(os, "sched_getaffinity", None)
    return {
        "system": f"{platform.system()} {platform.release()}",
        "architecture": platform.machine(),
        "processor": _processor(),
        "cores": len(affinity(0)) if affinity is not None else os.cpu_count(),
        "memory_mb": total,
        "load": round(os.getloadavg()[0], 1) if hasattr(os, "getloadavg") else None,
    }


def versions() -> dict[str, str | None]:
    """Python's, ours and the libraries' versions; None for one that is not installed."""
    found: dict[str, str | None] = {
        "python": platform.python_version(),
        "edgemem": edgemem.__version__,
    }
    for name in LIBRARIES:
        found[name] = None
        with suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def _processor() -> str | None:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or None
