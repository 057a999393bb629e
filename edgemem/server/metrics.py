"""What the server counts, as Prometheus reads it. Knows no HTTP and no engine; thread-safe.

Source: Prometheus' text exposition format, version 0.0.4.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping

__all__ = ["BUCKETS_S", "CONTENT_TYPE", "Metrics"]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
BUCKETS_S = (0.005, 0.02, 0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0)

Labels = tuple[tuple[str, str], ...]

_HELP = {
    "edgemem_requests_total": ("counter", "Requests answered, by route and status."),
    "edgemem_requests_in_flight": ("gauge", "Requests under way."),
    "edgemem_request_seconds": ("histogram", "Time from a request to the end of its answer."),
    "edgemem_queue_seconds": ("histogram", "Time that a request waited for the engine."),
    "edgemem_queue_length": ("gauge", "Requests that wait for the engine."),
    "edgemem_queue_limit": ("gauge", "Requests that may wait for the engine."),
    "edgemem_prompt_tokens_total": ("counter", "Tokens of prompts."),
    "edgemem_completion_tokens_total": ("counter", "Tokens of answers."),
    "edgemem_memories": ("gauge", "Memories that searches find."),
    "edgemem_pending": ("gauge", "Pieces of work left for later."),
}


class Metrics:
    """Counters and histograms since the start. Labels are ours: never a user's text."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[tuple[str, Labels], float] = {}
        # Per name and labels: a count for each bucket and one above all, and the sum of seconds.
        self._seconds: dict[tuple[str, Labels], tuple[list[int], float]] = {}

    def count(self, name: str, by: float = 1, **labels: str) -> None:
        """Add to a counter."""
        key = name, tuple(sorted(labels.items()))
        with self._lock:
            self._counts[key] = self._counts.get(key, 0) + by

    def took(self, name: str, seconds: float, **labels: str) -> None:
        """Add one duration to a histogram."""
        key = name, tuple(sorted(labels.items()))
        place = sum(seconds > bound for bound in BUCKETS_S)
        with self._lock:
            buckets, total = self._seconds.get(key, ([0] * (len(BUCKETS_S) + 1), 0.0))
            buckets[place] += 1
            self._seconds[key] = buckets, total + seconds

    def text(self, gauges: Mapping[str, float]) -> str:
        """All of it, with the gauges' values of now."""
        with self._lock:
            samples: dict[str, list[str]] = {
                name: [f"{name} {value:g}"] for name, value in gauges.items()
            }
            for (name, labels), value in sorted(self._counts.items()):
                samples.setdefault(name, []).append(f"{name}{_braces(labels)} {value:.15g}")
            for (name, labels), (buckets, total) in sorted(self._seconds.items()):
                lines = samples.setdefault(name, [])
                seen = 0
                for bound, count in zip((*BUCKETS_S, "+Inf"), buckets, strict=True):
                    seen += count
                    within = _braces((*labels, ("le", f"{bound}")))
                    lines.append(f"{name}_bucket{within} {seen}")
                lines.append(f"{name}_sum{_braces(labels)} {total:.15g}")
                lines.append(f"{name}_count{_braces(labels)} {seen}")
        out: list[str] = []
        for name, (kind, about) in _HELP.items():
            if name in samples:
                out += [f"# HELP {name} {about}", f"# TYPE {name} {kind}", *samples[name]]
        return "\n".join(out) + "\n"


def _braces(labels: Labels) -> str:
    return "{" + ",".join(f'{key}="{value}"' for key, value in labels) + "}" if labels else ""
