"""Whether the packages of the extra `train` are there. Knows their names, and imports none."""

from __future__ import annotations

from importlib.util import find_spec

from edgemem.errors import ConfigError

__all__ = ["PACKAGES", "require"]

PACKAGES = ("torch", "transformers", "gguf")


def require() -> None:
    """Raise ConfigError, with the line that installs them, if a package is missing."""
    missing = [name for name in PACKAGES if find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"training needs {', '.join(missing)}, not installed here; run: "
            "pip install 'edgemem-runtime[train]'"
        )
