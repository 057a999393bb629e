"""Which models there are, where their files lie, and whether they are whole.

The files lie where the manifest (`models/manifest.toml`) says, in the user's models folder, or in
pip packages that carry weights. No network, except inside `pull`, which only the user's own call
reaches.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import tomllib
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import edgemem
from edgemem.cachefile import replacing
from edgemem.config import data_dir
from edgemem.errors import ModelError, ModelNotFound
from edgemem.runtime.machine import read_cached, write_cached

__all__ = ["DEFAULT_EMBEDDER", "DEFAULT_LLM", "Installed", "ModelEntry", "entry", "find"]
__all__ += ["installed", "known_sha256", "manifest", "models_dir", "pull", "sha256_of"]
__all__ += ["user_models_dir", "verified_file", "verify"]

DEFAULT_LLM = "smollm2-135m-instruct-q4_1"
DEFAULT_EMBEDDER = "minilm-l6-v2-int8"
MANIFEST_FORMAT = 1
_BLOCK_BYTES = 1 << 20
_TIMEOUT_S = 30.0
_HASHES = "sha256.json"
_MAX_HASHES = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelEntry:
    """One model of the manifest, whose head explains the keys."""

    name: str
    kind: str
    file: str
    sha256: str
    size_bytes: int
    licence: str
    about: str
    bundled: str = ""
    package: str = ""
    parts: tuple[str, ...] = ()
    install: str = ""
    url: str = ""
    tokenizer: str = ""
    expert: str = ""


@dataclass(frozen=True, slots=True)
class Installed:
    """One row of `edgemem models list`. source: bundled, package, user or missing."""

    name: str
    kind: str
    source: str
    path: Path | None
    size_bytes: int
    licence: str
    about: str

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "path": None if self.path is None else str(self.path)}


def models_dir() -> Path:
    """The folder of the manifest: `_models` in an installed package, `models` in a checkout.

    The package's own folder is looked at first: beside an installed package lies site-packages,
    where a folder called `models` would be somebody else's.
    """
    package = Path(edgemem.__file__).parent
    for folder in (package / "_models", package.parent / "models"):
        if (folder / "manifest.toml").is_file():
            return folder
    raise ModelError(
        f"No manifest.toml in {package / '_models'} nor in {package.parent / 'models'}. "
        "The installation is incomplete: install edgemem-runtime again."
    )


def user_models_dir() -> Path:
    """The user's own folder of models. It may not exist yet."""
    return data_dir() / "models"


def manifest() -> dict[str, ModelEntry]:
    """The known models by name. Raises ModelError on a manifest that cannot be read."""
    file = models_dir() / "manifest.toml"
    try:
        raw = tomllib.loads(file.read_text(encoding="utf-8"))
        if raw["format"] != MANIFEST_FORMAT:
            raise ValueError(f"format {raw['format']}, this edgemem reads {MANIFEST_FORMAT}")
        entries = []
        for table in raw["model"]:
            table["size_bytes"] = table.pop("bytes")
            table["parts"] = tuple(table.get("parts", ()))
            entries.append(ModelEntry(**table))
    except (OSError, ValueError, KeyError, TypeError) as exc:
        raise ModelError(
            f"Cannot read the models' manifest {file}: {exc}. Install edgemem-runtime again."
        ) from exc
    return {e.name: e for e in entries}


def entry(name: str) -> ModelEntry:
    """The manifest's entry of that name. Raises ModelNotFound, naming the known ones."""
    known = manifest()
    if name not in known:
        raise ModelNotFound(
            f"There is no model named {name!r}. Known: {', '.join(known)}. "
            "`edgemem models list` shows them."
        )
    return known[name]


def find(name_or_path: str | os.PathLike[str]) -> Path:
    """The file of a model.

    name_or_path: a name of the manifest, a path, or the name of a file in the user's models folder.
    A name's file is looked for in the user's models folder, in edgemem's own, then in its pip
    package. Raises ModelNotFound with what to install, and ModelError if the file's size is not the
    manifest's (no checksum is made: `verify` does that).
    """
    given = os.fspath(name_or_path)
    model = manifest().get(given)
    if model is None:
        return _find_path(given)
    path = _located(model)
    try:
        size = path.stat().st_size
    except OSError as exc:
        raise ModelError(f"Cannot read {path}, the model {model.name}: {exc.strerror}.") from exc
    if size != model.size_bytes:
        raise ModelError(
            f"{path} is damaged: it has {size} bytes, and {model.name} has "
            f"{model.size_bytes}. Delete it. {_how_to_get(model)}"
        )
    return path


def verified_file(name: str) -> Path:
    """The file of a manifest's model, once its sha256 is checked.

    Raises as `find`, and ModelError if the sha256 differs.
    """
    file, wanted = find(name), entry(name).sha256
    if (found := sha256_of(file)) != wanted:
        raise ModelError(
            f"{file} is damaged: its sha256 is {found}, and that of {name} is {wanted}. Delete the "
            "file and install its package or pull it again; `edgemem models list` shows where it "
            "comes from."
        )
    return file


def installed() -> list[Installed]:
    """The models of the manifest and where they lie, then others in the user's models folder."""
    known = manifest().values()
    rows = []
    for m in known:
        path, source = _locate(m)
        rows.append(Installed(m.name, m.kind, source, path, m.size_bytes, m.licence, m.about))
    ours = {model.file for model in known}
    folder = user_models_dir()
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if path.is_file() and path.suffix in (".gguf", ".onnx") and path.name not in ours:
            kind, size = path.suffix[1:], path.stat().st_size
            rows.append(Installed(path.name, kind, "user", path, size, "unknown", "placed by you"))
    return rows


def verify(name: str) -> bool:
    """Whether a model's file has the manifest's sha256.

    Raises ModelNotFound if the name is not in the manifest or its file is not on this machine.
    """
    model = entry(name)
    return sha256_of(_located(model)) == model.sha256


def sha256_of(path: Path) -> str:
    """The sha256 of a file, in hex. Raises ModelError if it cannot be read."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as exc:
        raise ModelError(
            f"Cannot read {path}: {exc.strerror}. Check the path and its permissions."
        ) from exc


def known_sha256(path: Path) -> str:
    """The sha256 of a file, from the user's cache folder if it has not changed since.

    Unchanged: the same path, inode, size and time of its last change, to the nanosecond. Raises
    ModelError if the file cannot be read.
    """
    hashes = read_cached(_HASHES)
    key = str(path.absolute())
    row = hashes.pop(key, None)
    stamp: list[int] = []
    with suppress(OSError):
        stat = path.stat()
        stamp = [stat.st_ino, stat.st_size, stat.st_mtime_ns]
    if isinstance(row, list) and row[:-1] == stamp and isinstance(row[-1], str):
        return row[-1]
    digest = sha256_of(path)
    write_cached(_HASHES, {**hashes, key: [*stamp, digest]}, _MAX_HASHES)
    return digest


def pull(name: str, progress: Callable[[int, int], None] | None = None) -> Path:
    """Fetch a model into the user's models folder, check its sha256, and return its path.

    A model that lies whole on this machine is not fetched again. One that installed packages
    carry in parts is joined from them, without network. progress: called with (bytes so far,
    bytes in all). Raises ModelError if it cannot be fetched or stored or is not what the
    manifest says; then nothing is left behind.
    """
    # Imported here: every process imports this module, and this call alone needs them.
    import urllib.error
    import urllib.request
    from http.client import HTTPException

    model = entry(name)
    path, _ = _locate(model)
    if path is not None and sha256_of(path) == model.sha256:
        return path
    target = user_models_dir() / model.file
    pieces = [_in_package(part) for part in model.parts]
    if pieces and None not in pieces:
        blocks = _blocks(partial(p.open, "rb") for p in pieces if p is not None)
    elif model.url.startswith(("https://", "http://")):
        blocks = _blocks([partial(urllib.request.urlopen, model.url, timeout=_TIMEOUT_S)])
    else:
        raise ModelError(f"The manifest has no address for {name}. {_how_to_get(model)}")
    try:
        _store(model, blocks, target, progress)
    except (urllib.error.URLError, HTTPException, ConnectionError, TimeoutError) as exc:
        raise ModelError(
            f"Could not fetch {name} from {model.url}: {exc}. Try again, or place the file as "
            f"{target}."
        ) from exc
    except OSError as exc:
        raise ModelError(
            f"Could not fetch {name} into {target.parent}: {exc.strerror or exc}. It needs "
            f"{model.size_bytes} bytes there; make room or set EDGEMEM_HOME to another folder."
        ) from exc
    return target


def _store(
    model: ModelEntry,
    blocks: Iterator[bytes],
    target: Path,
    progress: Callable[[int, int], None] | None,
) -> None:
    """Write the blocks to a temporary file, check it, and only then rename it to the target."""
    target.parent.mkdir(parents=True, exist_ok=True)
    digest, done = hashlib.sha256(), 0
    with replacing(target) as out:
        for block in blocks:
            out.write(block)
            digest.update(block)
            done += len(block)
            if done > model.size_bytes:
                break
            if progress is not None:
                progress(done, model.size_bytes)
        if digest.hexdigest() != model.sha256:
            raise ModelError(
                f"What was fetched for {model.name} is not it: {done} bytes with sha256 "
                f"{digest.hexdigest()}; the manifest says {model.size_bytes} bytes with sha256 "
                f"{model.sha256}. Nothing was kept. Try again, or place the file as {target}."
            )


def _blocks(opens: Iterable[Callable[[], Any]]) -> Iterator[bytes]:
    """Yields the blocks of files one after the other; each file is opened when its turn comes."""
    for open_one in opens:
        with open_one() as file:
            while block := file.read(_BLOCK_BYTES):
                yield block


def _locate(model: ModelEntry) -> tuple[Path | None, str]:
    """Where a model's file lies, and which kind of place that is. No check of its content."""
    user = user_models_dir() / model.file
    if user.is_file():
        return user, "user"
    if model.bundled and (path := models_dir() / model.bundled).is_file():
        return path, "bundled"
    if model.package and (found := _in_package(model.package)) is not None:
        return found, "package"
    return None, "missing"


def _located(model: ModelEntry) -> Path:
    path, _ = _locate(model)
    if path is None:
        raise ModelNotFound(f"The model {model.name} is not on this machine. {_how_to_get(model)}")
    return path


def _in_package(module_and_file: str) -> Path | None:
    """The file `module/path` of an installed package, without importing the package."""
    module, _, file = module_and_file.partition("/")
    spec = importlib.util.find_spec(module)
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        if (path := Path(folder) / file).is_file():
            return path
    return None


def _find_path(given: str) -> Path:
    try:
        for path in (Path(given).expanduser(), user_models_dir() / given):
            if path.is_file():
                return path
            if path.is_dir():
                raise ModelNotFound(f"{path} is a folder. Give the model's file in it.")
    except (OSError, ValueError, RuntimeError) as exc:  # too long, a NUL, or no such user's home
        why = str(exc).rstrip(".")
        raise ModelNotFound(f"{given!r} cannot be a path: {why}.") from exc
    raise ModelNotFound(
        f"There is no model {given!r}: no such file, no such file in {user_models_dir()}, and no "
        f"such name. Known names: {', '.join(manifest())}."
    )


def _how_to_get(model: ModelEntry) -> str:
    """What the user can do to have the model, as one sentence."""
    ways = []
    if model.install:
        ways.append(f'`pip install "{model.install}"`')
    if model.parts and model.install:
        ways[-1] += f" and then `edgemem models pull {model.name}`"
    elif model.url:
        ways.append(f"`edgemem models pull {model.name}`")
    if model.bundled:
        ways.append("install edgemem-runtime again")
    ways.append(f"place the file as {user_models_dir() / model.file}")
    return f"To get it: {', or '.join(ways)}."
