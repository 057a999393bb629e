"""Whether the packages of the extras `serve` and `mcp` are there. Knows their names alone."""

from __future__ import annotations

from importlib.util import find_spec

from edgemem.errors import ConfigError

__all__ = ["require"]

_PACKAGES = {"serve": ("starlette", "uvicorn"), "mcp": ("mcp",)}


def require(extra: str) -> None:
    """Raise ConfigError, with the line that installs them, if a package of an extra is missing."""
    missing = [name for name in _PACKAGES[extra] if find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"`edgemem {extra}` needs {', '.join(missing)}, not installed here; run: "
            f"pip install 'edgemem-runtime[{extra}]'"
        )
