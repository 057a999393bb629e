"""edgemem: private, long-term memory for small models on the user's own device."""

from __future__ import annotations

from importlib import import_module
from pkgutil import extend_path
from typing import TYPE_CHECKING, Any

# In a checkout, this folder hides the installed package and has no compiled module. Extending the
# path finds `edgemem._native` where it was installed.
__path__ = extend_path(__path__, __name__)

if TYPE_CHECKING:
    from edgemem.async_memory import AsyncMemory as AsyncMemory
    from edgemem.chat import Chat as Chat
    from edgemem.compression.compress import compress_prompt as compress_prompt
    from edgemem.errors import EdgememError as EdgememError
    from edgemem.memory import Memory as Memory
    from edgemem.runtime.engine import Engine as Engine

__version__ = "0.1.0"

_HOME = {
    "AsyncMemory": "edgemem.async_memory",
    "Chat": "edgemem.chat",
    "EdgememError": "edgemem.errors",
    "Engine": "edgemem.runtime.engine",
    "Memory": "edgemem.memory",
    "compress_prompt": "edgemem.compression.compress",
}
__all__ = ["__version__", *_HOME]


def __getattr__(name: str) -> Any:
    """Imports a public name when it is first used, so `import edgemem` loads no model library."""
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 'edgemem' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
