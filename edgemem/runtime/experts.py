"""Sets of trained adapters, one expert for each stage; and how a model works with or without one.

A set is a folder with a `manifest.toml` and GGUF files. Ours lie in `models/adapters/`, a user's
own in the folder `adapters` of the user's models folder, or anywhere by path.
Source: MemLoRA, section 3 (one small model, one LoRA expert per stage).
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from edgemem.errors import AdapterError, ModelError
from edgemem.runtime import models, tune
from edgemem.runtime.gguf import open_header

if TYPE_CHECKING:
    from edgemem.runtime.engine import Engine

__all__ = ["DEFAULT", "HEEDS_PARAMS", "INSTRUCT_PARAMS", "MANIFEST", "NO_EXPERTS", "Expert"]
__all__ += ["ExpertSet", "Reader", "Wanted", "available", "chosen_set", "find", "fits", "load"]
__all__ += ["load_chosen", "reader_of", "reader_of_file"]

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
