"""Files that may be deleted at any time: the caches beside a store, a tuned model, lock files.

Knows files and their stamps, not their content. hnswlib writes its file in place, without fsync and
without reporting a full disk, and crashes the process when it reads a damaged one. llama.cpp does
not notice a damaged tensor. So the data is written to a temporary file, checked, synced and
renamed. A stamp beside it, FILE.json, is one line of JSON with the data's size and SHA-256 and a
checksum of itself; they are compared before a read.

Beside a vault the data is sealed with the vault's key. A library that reads or writes by file name
is given a file in memory. Only Linux has these, so elsewhere a vault has no caches. The only
importer of filelock.
"""

from __future__ import annotations

import glob
import hashlib
import json
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from edgemem.errors import StoreFull

if TYPE_CHECKING:
    from edgemem.vault import Vault

__all__ = ["FORMAT", "HALF_EXPORT", "discard", "disk_errors", "half_exports", "lock_file"]
__all__ += ["publish", "read_stamp", "readable", "replace_file", "replacing", "stamp_for"]
__all__ += ["sync_folder", "write_temporary"]

FORMAT = 1
_PURPOSE = "cache"
MAX_STAMP_BYTES = 10_000
HALF_EXPORT = ".edgemem.tmp"  # the end of an export's name until it is whole


def stamp_path(path: Path) -> Path:
    return path.with_name(path.name + ".json")


def discard(path: str | os.PathLike[str]) -> None:
    """Removes a cache file, its stamp, and the leftovers of interrupted writers, if there are any.

    Raises OSError if one of them cannot be removed: after an erase none may stay.
    """
    path = Path(path)
    left_over = path.parent.glob(f"{glob.escape(path.name)}.*.tmp*")
    there = [file for file in (stamp_path(path), path, *left_over) if file.exists()]
    for file in there:
        file.unlink(missing_ok=True)
    if there:
        sync_folder(path.parent)


def write_temporary(
    path: Path,
    write: Callable[[str], object],
    expected_bytes: int | None,
    vault: Vault | None = None,
) -> tuple[Path, dict[str, Any]]:
    """Lets `write` fill a new file beside `path`. Returns the file, and its size and checksum.

    write: is given the file's name. expected_bytes: before sealing; None if unknown. vault: seals
    the data. Raises OSError, also if the size differs, as on a full disk.
    """
    if vault is not None:
        with _in_memory() as name:
            write(name)
            data = Path(name).read_bytes()
        if expected_bytes not in (None, len(data)):
            raise OSError(f"{path} would have {len(data)} bytes instead of {expected_bytes}")
        sealed = vault.seal(data, _PURPOSE)
        return write_temporary(path, lambda to: Path(to).write_bytes(sealed), len(sealed))
    fd, name = tempfile.mkstemp(dir=path.parent, prefix=f"{path.name}.", suffix=".tmp")
    os.close(fd)
    temporary = Path(name)
    try:
        write(str(temporary))
        size = temporary.stat().st_size
        if expected_bytes not in (None, size):
            raise OSError(f"{temporary} has {size} bytes instead of {expected_bytes}")
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
    return temporary, {"bytes": size, "sha256": digest}


def publish(temporary: Path, path: Path, stamp: Mapping[str, Any]) -> None:
    """Renames a file from `write_temporary` to `path`, then its stamp. Raises OSError.

    No reader accepts what a process leaves that dies in between.
    """
    text = _stamp_text({"format": FORMAT, **stamp})
    new_stamp = stamp_path(temporary)
    try:
        with new_stamp.open("wb") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        os.replace(new_stamp, stamp_path(path))
    finally:
        for file_path in (temporary, new_stamp):
            file_path.unlink(missing_ok=True)
    sync_folder(path.parent)


def read_stamp(path: Path) -> dict[str, Any] | None:
    """Returns the stamp of a cache file; None unless the file matches the stamp exactly."""
    try:
        with stamp_path(path).open("rb") as file:
            text = file.read(MAX_STAMP_BYTES)
        stamp = json.loads(text)
        stamp.pop("check")
        # Comparing with the stamp as it would be written checks every byte of it.
        if stamp["format"] != FORMAT or _stamp_text(stamp) != text:
            return None
        if path.stat().st_size != stamp["bytes"]:
            return None
        with path.open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != stamp["sha256"]:
                return None
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
    assert isinstance(stamp, dict)
    return stamp


def stamp_for(path: Path, wanted: Mapping[str, Any]) -> dict[str, Any] | None:
    """Returns `read_stamp`'s stamp if it has all `wanted` values; None otherwise.

    The stamp's `generation` may be older than the wanted one.
    """
    stamp = read_stamp(path) or {}
    generation = stamp.get("generation")
    if type(generation) is not int or not 0 <= generation <= wanted["generation"]:
        return None
    return stamp if stamp == {**stamp, **wanted, "generation": generation} else None


@contextmanager
def readable(path: Path, vault: Vault | None = None) -> Iterator[str]:
    """Yields the name of a file with a cache's data, valid within the block. vault: unseals it.

    Raises OSError, and StoreCorrupt if the data was not sealed with this vault.
    """
    if vault is None:
        yield str(path)
        return
    with _in_memory() as name:
        Path(name).write_bytes(vault.unseal(path.read_bytes(), _PURPOSE))
        yield name


@contextmanager
def _in_memory() -> Iterator[str]:
    """Yields the name of an empty file in memory. Raises OSError on a system without such files."""
    if not hasattr(os, "memfd_create"):
        raise OSError("this system has no files in memory, and a vault's caches go nowhere else")
    handle = os.memfd_create("edgemem")
    try:
        yield f"/proc/self/fd/{handle}"
    finally:
        os.close(handle)


def _stamp_text(stamp: Mapping[str, Any]) -> bytes:
    body = json.dumps(dict(stamp), sort_keys=True)
    check = hashlib.sha256(body.encode()).hexdigest()
    return (json.dumps({"check": check, **stamp}, sort_keys=True) + "\n").encode()


@contextmanager
def replacing(
    file: Path, mode: str = "wb", *, suffix: str = ".tmp", **how: Any
) -> Iterator[IO[Any]]:
    """Yields a new file that replaces `file` at the end of the block, unless an error ends it.

    Atomic and synced; readable by its owner alone. suffix: the end of the new file's name until
    then. how: as for `open`. Raises OSError.
    """
    handle, temporary = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.", suffix=suffix)
    try:
        with open(handle, mode, **how) as out:
            _lock(out)
            yield out
            out.flush()
            os.fsync(out.fileno())
        os.replace(temporary, file)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise
    sync_folder(file.parent)


def half_exports(folder: Path, name: str | None = None) -> list[Path]:
    """Returns the files in a folder that killed exports have left; no export still writes them.

    name: only of exports to a file of this name.
    """
    exported = ".+" if name is None else re.escape(name)
    made = re.compile(rf"\.{exported}\.[a-z0-9_]{{8}}{re.escape(HALF_EXPORT)}", re.S)  # by mkstemp
    found = (file for file in folder.glob(f".*{HALF_EXPORT}") if made.fullmatch(file.name))
    return sorted(file for file in found if file.is_file() and not _in_use(file))


def _lock(file: IO[Any]) -> bool:
    """Locks an open file until it is closed; returns False if another process has it locked."""
    try:
        import fcntl
    except ImportError:  # Windows deletes no file that is open
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks
        pass
    return True


def _in_use(file: Path) -> bool:
    with suppress(OSError), file.open("rb") as opened:
        return not _lock(opened)
    return False


def replace_file(file: Path, data: bytes) -> None:
    """Replaces a file by these bytes, as `replacing` does."""
    with replacing(file) as out:
        out.write(data)


@contextmanager
def lock_file(file: Path, timeout_s: float) -> Iterator[bool]:
    """Keeps other threads and processes out; yields whether that succeeded within timeout_s.

    file: is made, and stays. Raises OSError if it cannot be made.
    """
    from filelock import FileLock, Timeout

    with ExitStack() as held:
        try:
            held.enter_context(FileLock(file, timeout_s, mode=0o600))
        except Timeout:
            yield False
        else:
            yield True


@contextmanager
def disk_errors(what: str, then: str) -> Iterator[None]:
    """Raises StoreFull in place of OSError: "WHAT (the system's reason); THEN"."""
    try:
        yield
    except OSError as exc:
        raise StoreFull(f"{what} ({exc.strerror or exc}); {then}") from exc


def sync_folder(folder: Path) -> None:
    """Makes renames and removals in a folder durable, as far as the system can."""
    # Windows cannot open a folder; there the file system decides when a rename is durable.
    with suppress(OSError, AttributeError):
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
