"""This machine: its cores, memory and cache files, and whether llama.cpp crashes on it.

A library compiled for another processor, or by a faulty compiler, kills its process at the first
batch (GCC 12 stores only part of AMX's tile configuration). So before a model is loaded, a child
process loads it and decodes some tokens (`llama.try_out`). This is done once for each library,
processor and form of model; the verdict is stored in the cache folder. If a signal kills the child,
another one tries without extra buffers, which hold repacked weights. If that one dies too, the
model is refused.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import logging
import os
import platform
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import lru_cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from edgemem.cachefile import replace_file
from edgemem.config import cache_dir
from edgemem.errors import ModelError
from edgemem.runtime.gguf import read_only
from edgemem.vault import PASSPHRASES

__all__ = ["cores", "extra_buffers", "mmap_large_blocks", "peak_rss_mb", "processor", "properties"]
__all__ += ["read_cached", "require_projector_runs", "summary", "trim_heap", "write_cached"]

TIMEOUT_S = 60.0
_FILE = "processors.json"
_KEPT = 32  # newest verdicts that are stored
_HEAD = 1 << 24  # first bytes of a model: its header, with a vocabulary that could abort llama.cpp
_FATAL = {"SIGSEGV", "SIGILL", "SIGBUS", "SIGFPE", "SIGABRT", "SIGTRAP"}
_INTERRUPTED = 0xC000013A  # Windows: Ctrl-C
_PROGRAM = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from edgemem.runtime import {0}; "
    "{0}.try_out(*json.loads(sys.argv[2]))"
)
_M_MMAP_THRESHOLD, _LARGE = -3, 1 << 19  # of glibc's malloc.h; bytes
_NO_AMX = "-mno-amx-tile -mno-amx-int8 -mno-amx-bf16"

_log = logging.getLogger(__name__)
_lock = threading.Lock()
_known: dict[str, bool] = {}  # verdicts of this process, which may have no cache folder


def cores() -> int:
    """How many cores this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)  # Linux
    return len(affinity(0)) if affinity is not None else os.cpu_count() or 1


def trim_heap() -> None:
    """Return the heap's freed memory to the system. Does nothing without glibc."""
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)


def mmap_large_blocks() -> None:
    """Have glibc map each block of _LARGE bytes or more, so that freeing it returns it at once.

    Otherwise the embedding of a long text leaves freed memory in the process. The setting holds
    until the process ends. Does nothing without glibc.
    """
    if sys.platform == "linux":
        set_option = getattr(ctypes.CDLL(None), "mallopt", None)
        if set_option is not None:
            set_option(_M_MMAP_THRESHOLD, _LARGE)


def peak_rss_mb() -> float | None:
    """Peak resident memory of this process, in 10⁶ bytes; None where the system does not tell."""
    with suppress(OSError):
        # On Linux, getrusage includes what the parent held when it started this process.
        status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
        if found := re.search(r"^VmHWM:\s*(\d+) kB", status, re.M):
            return int(found[1]) * 1024 / 1e6
    with suppress(ImportError):  # Windows
        import resource

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak * (1 if sys.platform == "darwin" else 1024) / 1e6
    return None


def properties() -> dict[str, Any]:
    """The device's properties. A property that the system does not report is None."""
    total = None
    with suppress(AttributeError, ValueError, OSError):
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 1_000_000
    return {
        "system": f"{platform.system()} {platform.release()}",
        "architecture": platform.machine(),
        "processor": processor()[0],
        "cores": cores(),
        "memory_mb": total,
        "load": round(os.getloadavg()[0], 1) if hasattr(os, "getloadavg") else None,
    }


def read_cached(name: str) -> dict[str, Any]:
    """A JSON object from the user's cache folder; empty if it is missing or damaged."""
    with suppress(OSError, ValueError, RecursionError):
        found = json.loads((cache_dir() / name).read_text(encoding="utf-8"))
        return found if isinstance(found, dict) else {}
    return {}


def write_cached(name: str, values: Mapping[str, Any], newest: int) -> None:
    """Write the last `newest` items of a JSON object to the user's cache folder.

    A full disk is no error.
    """
    with suppress(OSError):
        folder = cache_dir()
        folder.mkdir(parents=True, exist_ok=True)
        replace_file(folder / name, json.dumps(dict(list(values.items())[-newest:])).encode())


# -- whether llama.cpp computes rightly ----------------------------------------------------------


def extra_buffers(file: Path, n_gpu_layers: int = 0) -> bool:
    """Whether a model may be loaded with extra buffers, by the stored verdict or a child's trial.

    A child that runs longer than TIMEOUT_S counts as surviving. If no child gave a verdict, the
    answer is yes unless the processor has AMX. Raises ModelError if llama.cpp crashes on the model
    either way.
    """
    found = _verdict(
        _file_digest(file, n_gpu_layers), lambda: _survives_repacked(file, n_gpu_layers)
    )
    return not _has_amx() if found is None else found


def require_projector_runs(file: Path, mmproj: Path, n_gpu_layers: int = 0) -> None:
    """Raise ModelError if libmtmd crashes on a projector with a model.

    Tries it out in a child process if the verdict is not stored yet.
    """
    repacked = extra_buffers(file, n_gpu_layers)

    def lives() -> bool | None:
        fatal = _fatal_signal("vision", str(file), str(mmproj), n_gpu_layers, repacked)
        if fatal:
            raise ModelError(
                f"libmtmd dies ({fatal}) of the projector {mmproj} beside {file}: it is damaged, "
                "or of another model; give the mmproj-….gguf that was published with the model"
            )
        return True if fatal == "" else None

    _verdict(f"{_file_digest(file, n_gpu_layers)}+{_file_digest(mmproj, n_gpu_layers)}", lives)


def _verdict(digest: str, judge: Callable[[], bool | None]) -> bool | None:
    """The stored verdict on a file on this machine, else `judge`'s, which is stored unless None.

    digest: of the file, from `_file_digest`.
    """
    key = f"{_machine_digest()} {digest}"
    with _lock:
        if key not in _known:
            kept = _verdicts()
            if key not in kept:
                found = judge()
                if found is None:
                    return None
                kept[key] = found
                write_cached(_FILE, kept, _KEPT)
                if not found:
                    _log.warning("%s", summary())
            _known[key] = kept[key]
        return _known[key]


def summary() -> str:
    """What is known of this processor, in a sentence or two."""
    here = [
        yes for key, yes in {**_verdicts(), **_known}.items() if key.split()[0] == _machine_digest()
    ]
    if not here:
        return "not yet tried (the first model that is loaded is)"
    if all(here):
        return "computes as llama.cpp was compiled"
    return (
        "llama.cpp as it was compiled here dies on this processor; models are loaded without "
        f"repacked weights, which makes reading a prompt slower. To end this: {_reinstall()}"
    )


def _survives_repacked(file: Path, n_gpu_layers: int) -> bool | None:
    """Whether a child survives with extra buffers; None if no child gave a verdict.

    Raises ModelError if a child dies without them, too.
    """
    fatal = _fatal_signal("llama", str(file), n_gpu_layers, True)
    if not fatal:
        return True if fatal == "" else None
    fatal = _fatal_signal("llama", str(file), n_gpu_layers, False)
    if not fatal:
        return False
    raise ModelError(
        f"llama.cpp dies ({fatal}) when it computes {file} on this processor "
        f"({processor()[0]}): it was compiled for another one, or with a fault, or the file is "
        f"damaged. Compile it again: {_reinstall()}; or check the file with `edgemem models verify`"
    )


def _child_command(module: str, *arguments: str | int) -> list[str] | None:
    """The command line of a child that runs `try_out` of `runtime/MODULE.py`; None where this
    program is no Python interpreter."""
    program = Path(sys.executable or "")
    if getattr(sys, "frozen", False) or not program.stem.lower().startswith(("python", "pypy")):
        return None
    given = [json.dumps(sys.path), json.dumps(arguments)]
    return [str(program), "-I", "-c", _PROGRAM.format(module), *given]


def _fatal_signal(module: str, *arguments: str | int) -> str | None:
    """The signal or exception that killed a child; empty if it ended well or ran for TIMEOUT_S.

    None if it could not be started, was stopped, or failed for another reason.
    """
    if (command := _child_command(module, *arguments)) is None:
        return None
    how: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
    # A child that tries a model out opens no store.
    how["env"] = {name: text for name, text in os.environ.items() if name not in PASSPHRASES}
    try:
        status = subprocess.run(command, timeout=TIMEOUT_S, check=False, **how).returncode
    except subprocess.TimeoutExpired:
        return ""
    except OSError:
        return None
    if status == 0:
        return ""
    if status >= 0xC0000000 and status != _INTERRUPTED:
        return f"exception 0x{status:08X}"
    names = (s.name for s in signal.Signals if s == -status)
    return next((name for name in names if name in _FATAL), None)


@lru_cache(maxsize=1)
def _machine_digest() -> str:
    """A digest of llama.cpp's libraries, by size and time, and of the processor."""
    spec = find_spec("llama_cpp")
    folder = Path(spec.origin).parent / "lib" if spec and spec.origin else Path()
    files = sorted(f for f in folder.glob("*") if f.is_file())
    parts = [f"{f.name} {f.stat().st_size} {f.stat().st_mtime_ns}" for f in files]
    return _digest([*parts, *processor()])


def _file_digest(file: Path, n_gpu_layers: int) -> str:
    """A digest of a model's size, its header and n_gpu_layers. Raises ModelError."""
    data = read_only(file)
    return _digest([len(data), hashlib.sha256(data[:_HEAD]).hexdigest(), n_gpu_layers])


def processor() -> tuple[str, str]:
    """The processor's name, and its features separated by spaces."""
    with suppress(OSError, KeyError):
        first = Path("/proc/cpuinfo").read_text("utf-8").split("\n\n")[0]
        rows = {k.strip(): v.strip() for k, _, v in (r.partition(":") for r in first.splitlines())}
        return rows.get("model name", platform.machine()), rows.get("flags") or rows["Features"]
    return platform.processor() or platform.machine(), platform.machine()


def _reinstall() -> str:
    """A line that compiles llama-cpp-python anew, for a Unix shell."""
    flags = "".join(f"-DCMAKE_{lang}_FLAGS='{_NO_AMX}' " for lang in ("C", "CXX")).strip()
    return (f'CMAKE_ARGS="{flags}" ' if _has_amx() else "") + (
        "pip install --force-reinstall --no-deps --no-cache-dir --no-binary llama-cpp-python "
        f"llama-cpp-python=={version('llama-cpp-python')}"
    )


def _has_amx() -> bool:
    return "amx_tile" in processor()[1].split()


def _digest(parts: Iterable[object]) -> str:
    return hashlib.sha256("\n".join(map(str, parts)).encode()).hexdigest()[:16]


def _verdicts() -> dict[str, bool]:
    """The stored verdicts by the digests of machine and file, oldest first."""
    return {key: yes for key, yes in read_cached(_FILE).items() if isinstance(yes, bool)}
