"""The bearer token: made at the first start, kept in a file for its owner alone.

Knows the file `server_token` in the configuration folder; knows nothing of HTTP.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from edgemem.config import config_dir
from edgemem.errors import ConfigError

__all__ = ["load_token", "token_file"]


def token_file() -> Path:
    """Where the token lies. It may not exist yet."""
    return config_dir() / "server_token"


def load_token() -> tuple[str, bool]:
    """The token, and whether it was made just now.

    Raises ConfigError if the file cannot be read or made, holds no token, or may be read by others.
    """
    file = token_file()
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        try:
            handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            return _read(file), False
        with os.fdopen(handle, "w", encoding="ascii") as out:
            token = secrets.token_urlsafe(32)
            out.write(f"{token}\n")
        return token, True
    except OSError as exc:
        raise ConfigError(
            f"the server's token {file} cannot be read or made ({exc.strerror}); make it yours, or "
            "set EDGEMEM_HOME to a folder that is"
        ) from exc


def _read(file: Path) -> str:
    if os.name == "posix" and (mode := file.stat().st_mode) & 0o077:
        raise ConfigError(
            f"the server's token {file} may be read by others (mode {mode & 0o777:o}); delete it, "
            "and the next start makes another"
        )
    token = file.read_text(encoding="ascii", errors="replace").strip()
    if len(token) < 16 or not token.isascii() or not token.isprintable() or " " in token:
        raise ConfigError(
            f"the file {file} holds no token (16 or more ASCII characters without a space); "
            "delete it, and the next start makes one"
        )
    return token
