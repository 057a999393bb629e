"""Does it fit, and how fast is it, on this device? See `profile` in run.py.

Imports late, as edgemem does: the processes that are profiled begin here too.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from edgemem.profile.report import Growth as Growth
    from edgemem.profile.report import Part as Part
    from edgemem.profile.report import Profile as Profile
    from edgemem.profile.report import Timing as Timing
    from edgemem.profile.report import Verdict as Verdict
    from edgemem.profile.run import profile as profile

__all__ = ["Growth", "Part", "Profile", "Timing", "Verdict", "profile"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        home = "run" if name == "profile" else "report"
        return getattr(import_module(f"edgemem.profile.{home}"), name)
    raise AttributeError(f"module 'edgemem.profile' has no attribute {name!r}")
