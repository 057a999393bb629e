"""What NVIDIA's GPUs have of memory, and what of it this process holds (extra `gpu`).

Knows NVML, through nvidia-ml-py, of which it is the only importer. A machine without a GPU, a
driver or the package has none: then the answer is empty, never zero bytes.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Any

__all__ = ["gpus"]


def gpus() -> list[dict[str, Any]]:
    """Of each GPU: name, total_mb, used_mb (by all), process_mb (by this one, None if not told)."""
    try:
        import pynvml
    except ImportError:
        return []
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return []
    try:
        return [_gpu(pynvml, i) for i in range(pynvml.nvmlDeviceGetCount())]
    except pynvml.NVMLError:
        return []
    finally:
        with suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()


def _gpu(nvml: Any, number: int) -> dict[str, Any]:
    handle = nvml.nvmlDeviceGetHandleByIndex(number)
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    ours: float | None = None
    with suppress(nvml.NVMLError):
        running = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
        # In a container, NVML may know the processes by other numbers, or tell no size.
        for process in running:
            if process.pid == os.getpid() and process.usedGpuMemory is not None:
                ours = round(process.usedGpuMemory / 1e6, 1)
    name = nvml.nvmlDeviceGetName(handle)
    return {
        "name": name.decode() if isinstance(name, bytes) else str(name),
        "total_mb": round(memory.total / 1e6, 1),
        "used_mb": round(memory.used / 1e6, 1),
        "process_mb": ours,
    }
