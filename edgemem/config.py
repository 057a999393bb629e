"""Where edgemem stores its files, and the user's settings.

Knows folders, `config.toml`, the environment and the packages of each extra. Knows nothing of
models, stores or the command line. The only importer of platformdirs.

A setting comes from the first of these that has it: the environment (`EDGEMEM_<KEY>`, for example
`EDGEMEM_TOP_K=5`), `config.toml` in the configuration folder, the default. `EDGEMEM_HOME` names a
single folder for data, cache and configuration. A key of the file's `[cloud]` table is written
`cloud.model`, and `EDGEMEM_CLOUD_MODEL` in the environment.
"""

from __future__ import annotations

import ipaddress
import json
import os
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field, fields
from difflib import get_close_matches
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import platformdirs

from edgemem.budget import bytes_of
from edgemem.cachefile import lock_file, replace_file
from edgemem.errors import ConfigError, InputError, WrongValue

__all__ = ["CloudSettings", "Settings", "allowed", "cache_dir", "check_key", "checked"]
__all__ += ["config_dir", "config_file", "data_dir", "expression", "ip_address", "is_near"]
__all__ += ["load_settings", "require", "set_value", "toml_value", "unread", "unset_value"]
__all__ += ["variable"]

# What the environment sets beside the settings; EDGEMEM_TOKEN is that of README's client.
VARIABLES = (
    "EDGEMEM_HOME",
    "EDGEMEM_BACKEND",
    "EDGEMEM_PASSPHRASE",
    "EDGEMEM_IMPORT_PASSPHRASE",
    "EDGEMEM_TOKEN",
)


def _home() -> Path | None:
    home = os.environ.get("EDGEMEM_HOME", "").strip()
    return _expanded(home, "EDGEMEM_HOME").absolute() if home else None


def _expanded(path: str, where: str) -> Path:
    try:
        return Path(path).expanduser()
    except RuntimeError as exc:
        raise _error(
            f"The path {path!r} in {where} names a home folder that is not there ({exc}). Write "
            "the path out.",
            where,
        ) from exc


def _error(text: str, where: str) -> ConfigError:
    return (WrongValue if where == CALL else ConfigError)(text)


def data_dir() -> Path:
    """Returns the folder of the user's memories and models. It may not exist yet."""
    return _home() or platformdirs.user_data_path("edgemem", appauthor=False)


def cache_dir() -> Path:
    """Returns the folder of files that can be made again. It may not exist yet."""
    return _home() or platformdirs.user_cache_path("edgemem", appauthor=False)


def config_dir() -> Path:
    """Returns the folder of `config.toml`. It may not exist yet."""
    return _home() or platformdirs.user_config_path("edgemem", appauthor=False)


def config_file() -> Path:
    """Returns the path of the settings file. It may not exist yet."""
    return config_dir() / "config.toml"


def _number(default: Any, kind: type[int] | type[float], least: float, most: float) -> Any:
    """Returns the field of a setting that is a number, with its range."""
    return field(default=default, metadata={"number": (kind, least, most)})


NO_LIMIT = NO_MODEL = "none"
CALL = "the call"


@dataclass(frozen=True, slots=True, kw_only=True)
class CloudSettings:
    """What may be sent to a cloud service, and when. REFERENCE.md says what each field is.

    Off until base_url and model are set.
    """

    base_url: str | None = None
    model: str | None = None
    api_key_env: str | None = None
    monthly_budget: float | None = _number(None, float, 0, 1_000_000)
    timeout_s: float = _number(60.0, float, 1, 600)
    max_retries: int = _number(2, int, 0, 5)
    max_tokens: int = _number(512, int, 1, 32_768)
    max_tokens_name: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    context_tokens: int = _number(1000, int, 64, 1_000_000)
    compression: Literal["question", "fdtd"] = "question"
    min_confidence: float = _number(0.0, float, 0, 1)
    images: Literal["off", "on"] = "off"
    ask_when: tuple[str, ...] = ()
    never_send: tuple[str, ...] = ()
    names: tuple[str, ...] = ()

    @property
    def enabled(self) -> bool:
        """Whether a service is configured."""
        return self.base_url is not None and self.model is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The user's settings. REFERENCE.md says what each field is.

    db: `:memory:` or the store's file. n_threads: None lets each model choose.
    """

    db: Path
    user_id: str = "default"
    model: str = "smollm2-135m-instruct-q4_1"
    embedder: str = "minilm-l6-v2-int8"
    experts: str = "open"
    mmproj: str = NO_MODEL
    reader: Literal["auto", "expert", "instruct", "quote"] = "auto"
    n_ctx: int = _number(2048, int, 64, 1_048_576)
    n_threads: int | None = _number(None, int, 1, 512)
    n_gpu_layers: int = _number(0, int, -1, 10_000)
    top_k: int = _number(10, int, 1, 10_000)
    vectors: Literal["float32", "int8"] = "float32"
    retrieval: Literal["fast", "careful"] = "fast"
    tuned: Literal["on", "off"] = "on"
    encryption: Literal["ask", "off"] = "ask"
    memory_limit: str = NO_LIMIT
    image_place: Literal["drop", "keep"] = "drop"
    image_text: Literal["on", "off"] = "on"
    image_embedder: str = NO_MODEL
    cloud: CloudSettings = field(default_factory=CloudSettings)

    @property
    def memory_limit_bytes(self) -> int | None:
        """`memory_limit` in bytes; None without a limit."""
        return None if self.memory_limit == NO_LIMIT else bytes_of(self.memory_limit)

    def to_dict(self) -> dict[str, Any]:
        """Returns the settings by key as JSON values, in the order of the fields."""
        own = {key: getattr(self, key) for key in _OWN_KEYS}
        cloud = {_CLOUD + name: value for name, value in asdict(self.cloud).items()}
        return {key: _plain(value) for key, value in (own | cloud).items()}


def _plain(value: Any) -> Any:
    """Returns a setting's value as JSON and TOML write it."""
    if isinstance(value, Path):
        return str(value)
    return list(value) if isinstance(value, tuple) else value


_TABLE = "cloud"
_CLOUD = f"{_TABLE}."
_OWN_KEYS = tuple(f.name for f in fields(Settings) if f.name != _TABLE)
_KEYS = (*_OWN_KEYS, *(_CLOUD + f.name for f in fields(CloudSettings)))
_NUMBERS: dict[str, tuple[type[int] | type[float], float, float]] = {
    prefix + f.name: f.metadata["number"]
    for prefix, of in (("", Settings), (_CLOUD, CloudSettings))
    for f in fields(of)
    if "number" in f.metadata
}
_TYPES = get_type_hints(Settings) | {
    _CLOUD + name: kind for name, kind in get_type_hints(CloudSettings).items()
}
_CHOICES = {key: get_args(kind) for key, kind in _TYPES.items() if get_origin(kind) is Literal}
_TEXT_LISTS = {key for key, kind in _TYPES.items() if get_origin(kind) is tuple}
# Ignored, with a note: older files may still have these keys.
_RETIRED = frozenset({"ahead_percent", "context_turns", "cloud.second_price"})
_URL = re.compile(r"(https?)://(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9.-]+)(:\d{1,5})?(/[^\s?#]*)?")
_BROKEN = re.compile("[\0\ud800-\udfff]")  # NUL, and halves of surrogate pairs
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
MEMORY_DB = ":memory:"
_LOCK_S = 10.0  # a change of the settings file takes milliseconds


def load_settings() -> Settings:
    """Returns the settings now in force. Raises ConfigError on a bad file, key or value.

    A relative `db` in the file starts from the file's folder, a relative one in the environment
    from the working folder.
    """
    file = config_file()
    values: dict[str, Any] = {"db": data_dir() / "memory.db"}
    for key, value in _read_file(file).items():
        if key in _RETIRED:
            continue
        values[key] = checked(key, value, str(file))
        if key == "db" and str(values[key]) != MEMORY_DB:
            values[key] = file.absolute().parent / values[key]
    for key in _KEYS:
        name = variable(key)
        if text := os.environ.get(name):
            values[key] = checked(key, _from_text(key, text), f"the environment ({name})")
    cloud = {k.removeprefix(_CLOUD): values.pop(k) for k in list(values) if k.startswith(_CLOUD)}
    return Settings(**values, cloud=CloudSettings(**cloud))


def variable(key: str) -> str:
    """Returns the name of the environment variable that sets a setting for one run."""
    return f"EDGEMEM_{key.upper().replace('.', '_')}"


def unread() -> dict[str, str]:
    """Returns what is set and nothing reads, with advice: variables EDGEMEM_…, such as a mistyped
    one, and settings of earlier versions. The variable that `cloud.api_key_env` names is read."""
    known = [*VARIABLES, *map(variable, _KEYS)]
    unread = [name for name in os.environ if name.startswith("EDGEMEM_") and name not in known]
    with suppress(ConfigError):
        key = load_settings().cloud.api_key_env if unread else None
        unread = [name for name in unread if name != key]
    advice = {}
    for name in unread:
        rest = [each.removeprefix("EDGEMEM_") for each in (name.upper(), *known)]
        near = get_close_matches(rest[0], rest[1:], 1)
        advice[name] = (
            f"Did you mean EDGEMEM_{near[0]}?" if near else "`edgemem config show` lists settings."
        )
    with suppress(ConfigError):
        for key in sorted(_RETIRED & _read_file(config_file()).keys()):
            advice[key] = f"`edgemem config unset {key}` takes it out of {config_file()}."
    return advice


def set_value(key: str, value: str | int | Path) -> Path:
    """Writes one setting to the settings file and returns the file's path.

    value: a text is converted to the key's type. All other lines stay, comments included. Raises
    WrongValue on an unknown key or a value that is not allowed, and ConfigError if the file is
    wrong elsewhere or cannot be written.
    """
    if isinstance(value, Path) or (key == "db" and value != MEMORY_DB):
        # A relative path that the user types starts from the working folder, not from the file's.
        value = os.path.abspath(_expanded(str(value), CALL))
    elif key in ("model", "embedder", "experts", "image_embedder", "mmproj"):
        # A name, a file, or a folder.
        place = _expanded(str(value), CALL)
        is_set = (key == "experts" and place.name != str(value)) or key == "image_embedder"
        if place.is_file() or (is_set and place.is_dir()):
            value = os.path.abspath(place)
    given = _from_text(key, value) if isinstance(value, str) else value
    final = _plain(checked(key, given, CALL))
    with _locked(config_file()) as file:
        values = _read_file(file)
        for other, old in values.items():
            if other != key and other not in _RETIRED:  # a wrong value may be replaced
                checked(other, old, str(file))
        _write(file, values | {key: final}, key)
    return file


def unset_value(key: str) -> Path:
    """Removes a setting from the settings file, if it is there; also a wrong or unknown one.

    Returns and raises as `set_value` does.
    """
    with _locked(config_file()) as file:
        values = _read_file(file)
        if key in values:
            del values[key]
            _write(file, values, key)
        else:
            check_key(key)
    return file


def check_key(key: str, where: str = CALL) -> None:
    """Raises ConfigError if there is no such setting. where: what named it, such as a file."""
    if key not in _KEYS:
        raise _error(
            f"Unknown setting {key!r} in {where}. Allowed: {', '.join(_KEYS)}. "
            "Correct or remove it.",
            where,
        )


def _from_text(key: str, text: str) -> str | int | float | list[str]:
    """Converts text to the key's type, or returns it if it cannot be converted.

    The texts of a list are separated by commas (see `_items`) or lines, or are JSON's.
    """
    try:
        if key in _NUMBERS:
            return _NUMBERS[key][0](text.strip())
        if key in _TEXT_LISTS and text.lstrip().startswith("["):
            return json.loads(text)  # type: ignore[no-any-return]
    except (ValueError, RecursionError):
        return text  # `checked` refuses it with a message
    if key in _TEXT_LISTS:
        return [item for line in text.splitlines() for item in _items(line) if item]
    return text


def _items(line: str) -> Iterator[str]:
    """Splits a line at its commas, but not within a regular expression, which ends at the first
    slash before a comma or at the line's end."""
    parts = line.split(",")
    while parts:
        ends = enumerate(parts, 1) if parts[0].lstrip().startswith("/") else ()
        taken = next((n for n, part in ends if part.rstrip().endswith("/")), 1)
        yield ",".join(parts[:taken]).strip()
        parts = parts[taken:]


_Refuse = Callable[..., ConfigError]
"""From what is allowed, and how the value is shown, to the error."""


def allowed(key: str) -> str:
    """Returns the values that a setting may have, in words."""
    if key in _NUMBERS:
        kind, low, high = _NUMBERS[key]
        return f"{'a whole' if kind is int else 'a'} number from {low} to {high}"
    if key in _CHOICES:
        return " or ".join(_CHOICES[key])
    return "a list of texts" if key in _TEXT_LISTS else "text"


def checked(key: str, value: object, where: str) -> Any:
    """Returns a setting's value in its final type. Raises ConfigError, naming the allowed values
    and where the value is from."""
    check_key(key, where)

    def refuse(needed: str, shown: str = repr(value)) -> ConfigError:
        return _error(
            f"Setting {key} = {shown} in {where} is not allowed: it must be {needed}. "
            "Correct it, or remove it to use the default.",
            where,
        )

    if key in _NUMBERS:
        kind, low, high = _NUMBERS[key]
        types = int if kind is int else int | float
        if isinstance(value, types) and not isinstance(value, bool) and low <= value <= high:
            return kind(value)
        raise refuse(allowed(key))
    if key in _CHOICES:
        if isinstance(value, str) and value in _CHOICES[key]:
            return value
        raise refuse(allowed(key))
    if key in _TEXT_LISTS:
        return _checked_texts(key, value, refuse)
    if key.startswith(_CLOUD):
        return _checked_of_cloud(key, value, refuse)
    if key == "memory_limit" and isinstance(value, str) and value != NO_LIMIT:
        try:
            bytes_of(value)
        except InputError as exc:
            raise refuse(f"a size such as 1GB or 512MiB, or {NO_LIMIT}") from exc
    if isinstance(value, str) and value.strip() and not _BROKEN.search(value):
        return _expanded(value, where) if key == "db" else value
    raise refuse("non-empty text without NUL or broken characters")


def _checked_texts(key: str, value: object, refuse: _Refuse) -> tuple[str, ...]:
    if not isinstance(value, list | tuple) or not all(isinstance(v, str) for v in value):
        raise refuse(allowed(key))
    if not all(v.strip() and v.isprintable() for v in value):
        raise refuse("a list of texts that are not empty and have no control characters")
    if key == "cloud.names":  # no name has a comma
        return tuple(name for v in value for part in v.split(",") if (name := part.strip()))
    if any(map(_is_no_expression, value)):
        raise refuse("a list of keywords, and of regular expressions between slashes")
    return tuple(value)


def _checked_of_cloud(key: str, value: object, refuse: _Refuse) -> str:
    if not isinstance(value, str) or not value.strip() or not value.isprintable():
        raise refuse("non-empty text without control characters")
    if key == "cloud.api_key_env" and not _VARIABLE.fullmatch(value):
        # The value may be the key itself, so the message does not repeat it.
        raise refuse("the name of an environment variable, such as OPENAI_API_KEY", "(not shown)")
    if key != "cloud.base_url":
        return value
    found = _URL.fullmatch(value)
    if found is None:
        raise refuse("a URL such as https://api.example.com/v1, with no user name or query",
                     "(not shown)" if "@" in value else repr(value))  # fmt: skip
    if found[1] == "http" and not is_near(value):
        raise refuse("https://…; http:// is for this machine and the home network only")
    return value.rstrip("/")


def is_near(url: str) -> bool:
    """Whether a URL names this machine or an IP address of a private network."""
    found = _URL.fullmatch(url)
    host = found[2].strip("[]") if found else ""
    address = ip_address(host)
    return host == "localhost" or (address is not None and address.is_private)


def ip_address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Returns a host as an IP address; None if it is a name."""
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def expression(pattern: str) -> str | None:
    """Returns the regular expression between a pattern's slashes; None for a keyword."""
    is_one = len(pattern) > 2 and pattern.startswith("/") and pattern.endswith("/")
    return pattern[1:-1] if is_one else None


def _is_no_expression(pattern: str) -> bool:
    try:
        re.compile(expression(pattern) or "")
    except re.error:
        return True
    return False


def _read_file(file: Path) -> dict[str, Any]:
    """Returns the raw values of a settings file by key, not checked; empty without a file."""
    try:
        values = tomllib.loads(file.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        return {}
    except (ValueError, RecursionError) as exc:  # a number may have too many digits
        raise ConfigError(
            f"The settings file {file} is not TOML ({exc}). Allowed are lines such as "
            "`top_k = 5`. Correct the line, or delete the file to use the defaults."
        ) from exc
    except OSError as exc:
        raise ConfigError(f"Cannot read the settings file {file}: {exc.strerror}.") from exc
    return _flat(values)


def _flat(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the values with the table `cloud` flattened to keys `cloud.…`."""
    out: dict[str, Any] = {}
    for key, value in values.items():
        if key == _TABLE and isinstance(value, dict):
            out.update({_CLOUD + name: inner for name, inner in value.items()})
        else:
            out[key] = value
    return out


def toml_value(value: Any) -> str:
    """Returns a text, a number or a list of them as TOML writes it."""
    # JSON and TOML quote alike, but for DEL, which TOML wants escaped. Non-ASCII text must stay as
    # it is: JSON would escape it as surrogate pairs, which TOML refuses.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _toml_line(key: str, value: Any) -> str:
    return f"{key.removeprefix(_CLOUD)} = {toml_value(value)}"


def _edited(lines: list[str], values: Mapping[str, Any], changed: str) -> list[str]:
    """Returns the file's lines with the line of the key `changed` replaced, added or removed."""
    cloudy = changed.startswith(_CLOUD)
    heads = [i for i, line in enumerate(lines) if re.match(r"\s*\[", line)]
    start, end = 0, heads[0] if heads else len(lines)
    new = [_toml_line(changed, values[changed])] if changed in values else []
    if cloudy:
        ours = [i for i in heads if re.match(rf"\s*\[\s*{_TABLE}\s*\]", lines[i])]
        if not ours:
            return [*lines, f"[{_TABLE}]", *new] if new else lines
        start, end = ours[0] + 1, min([i for i in heads if i > ours[0]], default=len(lines))
    name = re.escape(changed.removeprefix(_CLOUD))
    kept = [line for line in lines[start:end] if not re.match(rf"\s*{name}\s*=", line)]
    return [*lines[:start], *kept, *new, *lines[end:]]


@contextmanager
def _locked(file: Path) -> Iterator[Path]:
    """Keeps other threads and processes from changing a settings file until the block ends."""
    with ExitStack() as held:
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            mine = held.enter_context(lock_file(file.with_name(file.name + ".lock"), _LOCK_S))
        except OSError as exc:
            raise _unwritable(file, exc) from exc
        if not mine:
            raise ConfigError(
                f"Another process keeps changing the settings file {file}. Try again later."
            )
        yield file


def _write(file: Path, values: Mapping[str, Any], changed: str) -> None:
    """Rewrites the file so that it holds `values`. All lines but that of `changed` stay."""
    try:
        old = file.read_text(encoding="utf-8-sig") if file.exists() else ""
        text = "".join(f"{line}\n" for line in _edited(old.splitlines(), values, changed))
        if not _holds(text, values):  # quoted keys, or values over several lines: rewrite it all
            own = [_toml_line(k, v) for k, v in values.items() if not k.startswith(_CLOUD)]
            cloud = [_toml_line(k, v) for k, v in values.items() if k.startswith(_CLOUD)]
            head = [f"[{_TABLE}]"] if cloud else []
            text = "".join(f"{line}\n" for line in [*own, *head, *cloud])
        replace_file(file, text.encode())
    except OSError as exc:
        raise _unwritable(file, exc) from exc


def _unwritable(file: Path, exc: OSError) -> ConfigError:
    return ConfigError(
        f"Cannot write the settings file {file}: {exc.strerror}. Make its folder writable, or "
        "set EDGEMEM_HOME to one that is."
    )


def _holds(text: str, values: Mapping[str, Any]) -> bool:
    try:
        return _flat(tomllib.loads(text)) == values
    except tomllib.TOMLDecodeError:
        return False


# What needs each extra, and the extra's packages.
_EXTRAS = {
    "serve": ("`edgemem serve`", "starlette", "uvicorn"),
    "mcp": ("`edgemem mcp`", "mcp"),
    "train": ("training", "torch", "transformers", "gguf"),
    "vault": ("an encrypted store", "apsw", "nacl"),
    "sync": ("`edgemem sync`", "apsw", "cryptography", "nacl"),
    "images": ("an image", "PIL"),
    "ocr": ("the text of an image", "rapidocr"),
    "fleet": ("--ray", "ray"),
}


def require(extra: str) -> None:
    """Raises ConfigError, with the install command, if a package of an extra is missing."""
    what, *packages = _EXTRAS[extra]
    missing = [name for name in packages if find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"{what} needs {', '.join(missing)}, not installed here; run: "
            f'pip install "edgemem-runtime[{"images" if extra == "ocr" else extra}]"'
        )
