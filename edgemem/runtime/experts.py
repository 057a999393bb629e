"""The LoRA adapters of one context, and sets of them: an expert for each stage.

An adapter set is what is active at a time: no adapter, one, or several with their scales.
prefixes.py keys the KV by it.

A file is checked before llama.cpp loads it, because llama.cpp accepts some adapters that it cannot
run. It aborts the process on a key of another type, on float64 or integer tensors, and on an
adapter of the token embeddings. It silently accepts an adapter that has no alpha, weights that are
not finite, or no tensors. An activated LoRA, which is off up to certain tokens of a prompt, is
refused: a prompt's KV belongs to one set.

A set of experts is a folder with a `manifest.toml` and GGUF files. Ours lie in `models/adapters/`,
a user's own in the folder `adapters` of the user's models folder, or anywhere by path.
Sources: llama.cpp, src/llama-adapter.cpp and convert_lora_to_gguf.py; MemLoRA, section 3 (one small
model, one LoRA expert per stage).
"""

from __future__ import annotations

import ctypes
import hashlib
import math
import os
import time
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from edgemem.errors import AdapterError, ModelError
from edgemem.runtime import llama, models, tune
from edgemem.runtime.gguf import Buffer, Header, Tensor, Value, open_header, read_header, read_only

if TYPE_CHECKING:
    from edgemem.runtime.engine import Engine

__all__ = ["DEFAULT", "Adapter", "AdapterSet", "Adapters", "Expert", "ExpertSet"]
__all__ += ["HEEDS_PARAMS", "INSTRUCT_PARAMS", "MANIFEST", "NO_EXPERTS", "Reader", "Wanted"]
__all__ += ["available", "chosen_set", "find", "fits", "load", "load_chosen", "reader_of"]
__all__ += ["reader_of_file"]

AdapterSet = tuple[tuple[int, float], ...]
"""The serial and the scale of each adapter, in the order of loading."""

_Handle = ctypes.POINTER(ctypes.c_void_p)
_ADVICE = "train or convert it again for this model, or leave it out"


@dataclass(frozen=True, slots=True)
class Adapter:
    """A loaded adapter. bytes: size of its file."""

    name: str
    path: Path
    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class _Loaded:
    """serial: never used again, unlike `handle`, an address that a later adapter may have."""

    adapter: Adapter
    handle: Any
    serial: int


class Adapters:
    """The loaded adapters, and the stages they are bound to. Not thread-safe: the caller holds the
    engine's lock. base: the model's file. switch_s: seconds that switches took."""

    def __init__(self, lib: Any, model: Any, context: Any, base: Path) -> None:
        self._lib, self._model, self._context, self._base = lib, model, context, base
        self._loaded: dict[str, _Loaded] = {}
        self._bound: dict[str, Mapping[str, float]] = {}  # to each stage
        self._current: AdapterSet | None = ()  # None while it is unknown
        self._serial = 0
        self.switch_s = 0.0

    def all(self) -> tuple[Adapter, ...]:
        return tuple(loaded.adapter for loaded in list(self._loaded.values()))

    def load(self, name: str, path: str | os.PathLike[str]) -> Adapter:
        """See Engine.load_adapter."""
        if not name or name in self._loaded:
            raise AdapterError(
                f"the adapter's name is {name!r}; it must be one that no loaded adapter has "
                f"({', '.join(self._loaded) or 'none is loaded'}); choose another, or unload that "
                "one first"
            )
        file = Path(path).expanduser()
        try:
            data = read_only(file)
        except ModelError as exc:
            raise AdapterError(str(exc)) from exc
        check_adapter(file, data, self._base.name, self._base_header)
        llama.forget_errors()
        handle = self._lib.llama_adapter_lora_init(self._model, os.fsencode(file))
        if not handle:
            raise AdapterError(
                f"llama.cpp refused the adapter {file} ({llama.last_errors()}); "
                f"train or convert it again for {self._base.name}, or leave it out"
            )
        self._serial += 1
        adapter = Adapter(name, file, len(data), hashlib.sha256(data).hexdigest())
        self._loaded[name] = _Loaded(adapter, handle, self._serial)
        return adapter

    def unload(self, name: str) -> int:
        """Free an adapter and take it out of all stages. Returns its serial."""
        loaded = self._one(name)
        for stage, scales in list(self._bound.items()):
            if name in scales:
                self.bind(stage, {n: s for n, s in scales.items() if n != name})
        self.use(())
        del self._loaded[name]
        self._lib.llama_adapter_lora_free(loaded.handle)
        return loaded.serial

    def bind(self, stage: str, scales: Mapping[str, float]) -> None:
        """See Engine.bind."""
        members = self._members(scales)
        self._bound.pop(stage, None)
        if members:
            self._bound[stage] = dict(scales)

    def is_bound(self, stage: str) -> bool:
        """Whether a stage has adapters."""
        return stage in self._bound

    def set_of(self, stage: str) -> AdapterSet:
        """The set that computes a stage's prompts."""
        return self._members(self._bound.get(stage, {}))

    def use(self, members: AdapterSet) -> None:
        """Activate a set, unless it is active; adds the seconds taken to `switch_s`."""
        if members == self._current:
            return
        handles = {loaded.serial: loaded.handle for loaded in self._loaded.values()}
        started = time.perf_counter()
        n = len(members)
        pointers = (_Handle * n)(*(handles[serial] for serial, _ in members)) if n else None
        scales = (ctypes.c_float * n)(*(scale for _, scale in members)) if n else None
        self._current = None  # an interrupt may come between the call and what follows it
        if self._lib.llama_set_adapters_lora(self._context, pointers, n, scales) != 0:
            raise AdapterError(f"llama.cpp could not switch to {n} adapters; load the model again")
        self._current = members
        self.switch_s += time.perf_counter() - started

    def identity(self, stage: str) -> tuple[tuple[str, float], ...]:
        """The members of a stage's set as (sha256, scale), which mean the same in any process."""
        hashes = {loaded.serial: loaded.adapter.sha256 for loaded in self._loaded.values()}
        return tuple((hashes[serial], scale) for serial, scale in self.set_of(stage))

    def _one(self, name: str) -> _Loaded:
        if name not in self._loaded:
            raise AdapterError(
                f"no adapter {name!r} is loaded; loaded are: {', '.join(self._loaded) or 'none'}; "
                "load it first"
            )
        return self._loaded[name]

    def _members(self, scales: Mapping[str, float]) -> AdapterSet:
        for name, scale in scales.items():
            if not math.isfinite(scale):
                raise AdapterError(
                    f"the scale of the adapter {name!r} is {scale}; it must be a number"
                )
        # Sorted by load order, because the order of the members affects how llama.cpp sums them.
        members = sorted((self._one(name).serial, scale) for name, scale in scales.items())
        return tuple((serial, scale) for serial, scale in members if scale != 0.0)

    @cached_property
    def _base_header(self) -> Header:
        header, _ = open_header(self._base, "check it with `edgemem models verify`")
        if header.get("split.count", 1) != 1:
            raise AdapterError(
                f"{self._base} is one of several files of a model; adapters need it in one "
                "(llama.cpp's `llama-gguf-split --merge` joins them)"
            )
        return header


# -- whether llama.cpp can run a file --------------------------------------------------------------


# Types that llama.cpp can multiply by: F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0.
_TYPES = (0, 1, 30, 2, 3, 6, 7, 8)


def check_adapter(file: Path, data: Buffer, base_name: str, base: Header) -> None:
    """Raise AdapterError, naming the tensor or the key, if the base model cannot run an adapter.

    data: the whole file. base: the header of the base model's file.
    Checks the kind of file and its architecture; a finite alpha above 0; that each tensor is the
    `.lora_a` or `.lora_b` of a weight matrix of the base, with its counterpart and shapes that
    fit; types that llama.cpp can multiply; data inside the file; finite weights.
    """

    def refusal(what: str) -> AdapterError:
        return AdapterError(f"{file} cannot be an adapter of {base_name}: {what}; {_ADVICE}")

    try:
        header = read_header(data)
    except ValueError as exc:
        raise AdapterError(f"{file} is no GGUF file, or is damaged: {exc}; {_ADVICE}") from exc
    wanted = {
        "general.type": "adapter",
        "adapter.type": "lora",
        "general.architecture": base.get("general.architecture", ""),
    }
    for key, value in wanted.items():
        if (found := header.values.get(key)) != Value("s", value):
            given = "missing" if found is None else repr(found.value)
            raise refusal(f"its {key} is {given}, and must be {value!r}")
    if wrong := _wrong_keys(header.values):
        raise refusal(wrong)
    if not header.tensors:
        raise refusal("it has no tensors")
    for tensor in header.tensors.values():
        wrong = _wrong_tensor(tensor, header.tensors, base.tensors) or _wrong_data(tensor, data)
        if wrong:
            raise refusal(f"its tensor {tensor.name} {wrong}")


def _wrong_keys(values: Mapping[str, Value]) -> str:
    alpha = values.get("adapter.lora.alpha")
    if alpha is None:
        return "its adapter.lora.alpha is missing"
    if alpha.kind != "f" or not isinstance(alpha.value, float):
        return f"its adapter.lora.alpha is {alpha.value!r}, and must be a float32"
    if not (math.isfinite(alpha.value) and alpha.value > 0.0):
        return f"its adapter.lora.alpha is {alpha.value}, and must be a number above 0"
    if "adapter.alora.invocation_tokens" in values:
        return (
            "it is an activated LoRA (it has adapter.alora.invocation_tokens), which cannot be used"
        )
    return ""


def _wrong_tensor(
    tensor: Tensor, all_of_it: Mapping[str, Tensor], base: Mapping[str, Tensor]
) -> str:
    name, _, side = tensor.name.rpartition(".")
    if side not in ("lora_a", "lora_b"):
        return "is neither a .lora_a nor a .lora_b"
    if name not in base:
        return f"is for {name}, which the base model does not have"
    pair = all_of_it.get(f"{name}.{'lora_b' if side == 'lora_a' else 'lora_a'}")
    if pair is None:
        return f"has no {'lora_b' if side == 'lora_a' else 'lora_a'} beside it"
    if name == "token_embd.weight" or len(base[name].shape) < 2:
        return "is for token embeddings or a vector; only weight matrices can be adapted"
    n_in, n_out, *experts = base[name].shape
    a, b = (tensor, pair) if side == "lora_a" else (pair, tensor)
    rank = _padded(a.shape)[1]
    own = [n_in, rank, *experts] if side == "lora_a" else [rank, n_out, *experts]
    if rank < 1 or _padded(tensor.shape) != _padded(tuple(own)):
        return (
            f"has the shape {list(tensor.shape)}, and must have {own} beside a lora_a of "
            f"{list(a.shape)} and a lora_b of {list(b.shape)}"
        )
    return ""


def _padded(shape: tuple[int, ...]) -> tuple[int, ...]:
    return shape + (1,) * (4 - len(shape))


def _wrong_data(tensor: Tensor, data: Buffer) -> str:
    kind = llama.tensor_type(tensor.type)
    if kind is None or tensor.type not in _TYPES:
        name = kind.name if kind else f"number {tensor.type}"
        allowed = [known.name for n in _TYPES if (known := llama.tensor_type(n))]
        return f"is of type {name}; llama.cpp can run {', '.join(allowed)}"
    if wrong := llama.wrong_tensor(tensor, len(data)):
        return wrong
    unpacked = np.empty(math.prod(tensor.shape), np.float32)
    size = unpacked.size // kind.items * kind.size
    kind.unpack(np.frombuffer(data, np.uint8, size, tensor.start), unpacked)
    return "" if np.isfinite(unpacked).all() else "has weights that are no finite numbers"


# -- sets of adapters ------------------------------------------------------------------------------

DEFAULT = "open"
NO_EXPERTS = "none"
MANIFEST = "manifest.toml"
MANIFEST_FORMAT = 1
INSTRUCT_PARAMS = 400_000_000  # from this size, a model with a chat template follows instructions
HEEDS_PARAMS = 4_000_000_000
"""From this size, a model uses all memories that it is shown, and says so if none answers."""

Reader = Literal["expert", "instruct", "quote"]
Wanted = Literal["auto", "expert", "instruct", "quote"]

# SPDX names of licences that let anybody use a set for anything.
_PERMISSIVE = {"Apache-2.0", "MIT", "BSD-2-Clause", "BSD-3-Clause", "CC0-1.0", "CC-BY-4.0"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Expert:
    """One adapter of a set: what it is for, and how it was made.

    stage: whose prompts it is for; several experts of one stage are summed. scale: the one given to
    `Engine.bind`. tokens: how many it was trained on. scores: validation scores by name.
    """

    stage: str
    file: str
    sha256: str
    scale: float = 1.0
    rank: int = 0
    alpha: float = 0.0
    targets: tuple[str, ...] = ()
    command: str = ""
    seed: int = 0
    tokens: int = 0
    scores: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertSet:
    """The manifest of a folder. base_sha256: of the model files that the adapters are for."""

    name: str
    licence: str
    data: str
    base_sha256: tuple[str, ...]
    adapters: tuple[Expert, ...]
    folder: Path

    @property
    def permissive(self) -> bool:
        """Whether anybody may use it for anything; if not, the user should be told."""
        return self.licence in _PERMISSIVE


def available() -> list[ExpertSet]:
    """The sets in the user's folder, then ours, except those whose names the user's sets have.

    Raises AdapterError on a manifest that cannot be read.
    """
    found: dict[str, ExpertSet] = {}
    for folder in _folders():
        found.setdefault(folder.name, _read(folder))
    return list(found.values())


def find(name_or_folder: str) -> ExpertSet:
    """The set of that name, or in that folder. Raises AdapterError, which lists the known names."""
    folders = [place / name_or_folder for place in _places()]
    try:
        if Path(name_or_folder).name != name_or_folder:
            folders = [Path(name_or_folder).expanduser()]
        found = next((folder for folder in folders if (folder / MANIFEST).is_file()), None)
    except (OSError, ValueError, RuntimeError) as exc:  # too long, a NUL, or no such user's home
        raise AdapterError(
            f"{name_or_folder!r} cannot be a folder of experts: {exc}; give another"
        ) from exc
    if found is not None:
        return _read(found)
    names = ", ".join([s.name for s in available()] + [NO_EXPERTS])
    raise AdapterError(
        f"there are no experts {name_or_folder!r} (no {MANIFEST} in "
        f"{' nor in '.join(map(str, folders))}); known are: {names}. Give one of these, or the "
        "folder of a set, with a / in it"
    )


def fits(chosen: ExpertSet, base: Path) -> bool:
    """Whether a set is for a model's file, or for the model that a tuned file was made from."""
    known = models.known_sha256(base) in chosen.base_sha256
    return known or tune.source_sha256(base) in chosen.base_sha256


def load(engine: Engine, chosen: ExpertSet) -> None:
    """Load all adapters of a set and bind them to their stages.

    Stages that the set has no adapter for keep their bindings. Raises AdapterError, and leaves the
    engine as it was, if the set is for other models, or if a file does not match the manifest.
    """
    if not fits(chosen, engine.path):
        raise AdapterError(
            f"the experts {chosen.name!r} are for the models with sha256 "
            f"{', '.join(chosen.base_sha256)}, and {engine.path.name} has "
            f"{models.known_sha256(engine.path)}; load one of those models, or go on without "
            f"experts (`--experts {NO_EXPERTS}`)"
        )
    bound: dict[str, dict[str, float]] = {}
    loaded: list[str] = []
    try:
        for expert in chosen.adapters:
            file = chosen.folder / expert.file
            name = f"{chosen.name}/{file.stem}"
            adapter = engine.load_adapter(name, file)
            loaded.append(name)
            if adapter.sha256 != expert.sha256:
                raise AdapterError(
                    f"{file} is not the adapter that the manifest speaks of: its sha256 is "
                    f"{adapter.sha256}, not {expert.sha256}; install it again, or correct "
                    f"{chosen.folder / MANIFEST}"
                )
            bound.setdefault(expert.stage, {})[name] = expert.scale
        for stage, scales in bound.items():
            engine.bind(stage, scales)
    except BaseException:
        for name in loaded:
            engine.unload_adapter(name)
        raise


def load_chosen(engine: Engine, setting: str) -> ExpertSet | None:
    """Load the set that the setting `experts` names. Returns None if no set is to be loaded.

    The default set is skipped if it is for another model or is not installed. Any other set that
    cannot be loaded raises AdapterError, as in `load`.
    """
    found = chosen_set(setting, engine.path)
    if found is not None:
        load(engine, found)
    return found


def chosen_set(setting: str, base: Path) -> ExpertSet | None:
    """The set that `load_chosen` loads for a model's file, or None. Raises AdapterError.

    The default setting has one set for each of several models: `open`, `open-MODEL`.
    """
    if setting == NO_EXPERTS:
        return None
    if setting == DEFAULT:
        ours = (_read(f) for f in _folders() if f.name.partition("-")[0] == DEFAULT)
        return next((s for s in ours if fits(s, base)), None)
    return find(setting)


def _places() -> tuple[Path, ...]:
    return models.user_models_dir() / "adapters", models.models_dir() / "adapters"


def _folders() -> Iterator[Path]:
    return (file.parent for place in _places() for file in sorted(place.glob(f"*/{MANIFEST}")))


def _read(folder: Path) -> ExpertSet:
    file = folder / MANIFEST
    try:
        raw = tomllib.loads(file.read_text(encoding="utf-8"))
        if raw.pop("format") != MANIFEST_FORMAT:
            raise ValueError(f"its format is another than {MANIFEST_FORMAT}")
        rows = []
        for table in raw.pop("adapter"):
            expert = Expert(**{**table, "targets": tuple(table.get("targets", ()))})
            if Path(expert.file).name != expert.file:
                raise ValueError(f"{expert.file!r} is no file of the folder")
            number = isinstance(expert.scale, int | float) and math.isfinite(expert.scale)
            if not (isinstance(expert.stage, str) and number):
                raise ValueError(f"{expert.file} has a stage that is no text or a scale no number")
            rows.append(expert)
        if not all(isinstance(raw[key], str) for key in ("name", "licence", "data")):
            raise ValueError("its name, licence and data must be texts")
        base = tuple(map(str, raw.pop("base_sha256")))
        return ExpertSet(**raw, base_sha256=base, adapters=tuple(rows), folder=folder)
    except (
        OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError
    ) as exc:  # fmt: skip
        raise AdapterError(
            f"cannot read the manifest {file}: {type(exc).__name__}: {exc}. models/README.md says "
            "what it holds; correct it, or install edgemem-runtime again"
        ) from exc


# -- how a model works for a stage -----------------------------------------------------------------


def reader_of(engine: Engine, stage: str, wanted: Wanted = "auto") -> Reader:
    """The way in which a model works for a stage.

    `expert`: it has an adapter for the stage. `instruct`: it has a chat template and at least
    INSTRUCT_PARAMS parameters, or the setting says so. `quote`: neither; it quotes what was said.
    Raises ModelError if the setting names a way that the model does not have.
    """
    if wanted == "expert" and not engine.expert(stage):
        raise ModelError(
            f"the setting reader is 'expert', but {engine.name} has no expert for {stage}; choose "
            "a set with one (`--experts`), or set reader to auto"
        )
    if wanted == "instruct" and not engine.has_chat_template:
        raise ModelError(
            f"the setting reader is 'instruct', but {engine.name} has no chat template; use an "
            "instruction-tuned model, or set reader to auto"
        )
    if wanted != "auto":
        return wanted
    if engine.expert(stage):
        return "expert"
    return _without_experts(engine.has_chat_template, engine.n_params)


def reader_of_file(file: Path, *, expert: bool) -> Reader:
    """The way in which a GGUF file's model would work. expert: whether it would have one.

    Raises ModelError when the file is damaged.
    """
    header, _ = open_header(file, "check it with `edgemem models verify`")
    n_params = sum(math.prod(tensor.shape) for tensor in header.tensors.values())
    if expert:
        return "expert"
    return _without_experts("tokenizer.chat_template" in header.values, n_params)


def _without_experts(has_chat_template: bool, n_params: int) -> Reader:
    return "instruct" if has_chat_template and n_params >= INSTRUCT_PARAMS else "quote"
