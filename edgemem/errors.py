"""Every error that edgemem raises on purpose, in one tree.

    EdgememError
    ├ InputError   an argument that cannot be stored or searched for (also a ValueError)
    ├ ConfigError  ├ WrongValue  unknown key, bad value (names the key and the file)
    ├ MemoryBudgetExceeded  the models and index do not fit the memory limit (lists their sizes)
    ├ ModelError   ├ ModelNotFound ├ AdapterError ├ ContextOverflow
    ├ StoreError   ├ SchemaVersionError ├ DimensionMismatch ├ StoreCorrupt ├ StoreLocked ├ StoreFull
    ├ StoreError   ├ VaultLocked
    └ CloudError   ├ CloudDisabled ├ CloudTimeout ├ CloudRejected

A message says what was given, what is allowed, and what to do next. Errors of dependencies are
wrapped with ``from exc``; none leaks. An argument of the wrong *type* raises ``TypeError``, or
InputError where that lists the allowed values.
"""

__all__ = ["AdapterError", "CloudDisabled", "CloudError", "CloudRejected", "CloudTimeout"]
__all__ += ["ConfigError", "ContextOverflow", "DimensionMismatch", "EdgememError", "InputError"]
__all__ += ["MemoryBudgetExceeded", "ModelError", "ModelNotFound", "SchemaVersionError"]
__all__ += ["StoreCorrupt", "StoreError", "StoreFull", "StoreLocked", "VaultLocked", "WrongValue"]


class EdgememError(Exception):
    """Base of every error that edgemem raises on purpose."""


class InputError(EdgememError, ValueError):
    """Text, metadata or another argument that cannot be stored or searched for."""


class ConfigError(EdgememError):
    """An unknown setting, a bad value, an unusable file, or a missing optional package."""


class WrongValue(ConfigError, InputError):
    """A ConfigError whose cause is an argument of the call, and no file or variable."""


class MemoryBudgetExceeded(EdgememError):
    """The models and the index do not fit the memory limit, even with everything turned down.

    turned_down: what was turned down, in order. parts_bytes: the size of each part after that.
    """

    def __init__(
        self, message: str, parts_bytes: dict[str, int], turned_down: tuple[str, ...] = ()
    ) -> None:
        super().__init__(message)
        self.parts_bytes = parts_bytes
        self.turned_down = turned_down


class ModelError(EdgememError):
    """A model that cannot be loaded or run."""


class ModelNotFound(ModelError):
    """There is no file of the requested model."""


class AdapterError(ModelError):
    """A LoRA adapter that is missing, damaged, or made for another model."""


class ContextOverflow(ModelError):
    """A prompt that does not fit the context window.

    prompt_tokens: tokens of the prompt plus those to generate. n_ctx: tokens that fit.
    """

    def __init__(self, message: str, *, prompt_tokens: int, n_ctx: int) -> None:
        super().__init__(message)
        self.prompt_tokens = prompt_tokens
        self.n_ctx = n_ctx


class StoreError(EdgememError):
    """A store that cannot be opened, read or written."""


class SchemaVersionError(StoreError):
    """A store written by a newer edgemem."""


class DimensionMismatch(StoreError):
    """Vectors that do not come from the embedding model of the store's vectors."""


class StoreCorrupt(StoreError):
    """A file that is damaged, or is not an edgemem store."""


class StoreLocked(StoreError):
    """Another process, or another part of this one, keeps the store locked."""


class StoreFull(StoreError):
    """A file cannot be written or deleted: the disk is full, or permission is missing."""


class VaultLocked(StoreError):
    """An encrypted store whose key is wrong or missing."""


class CloudError(EdgememError):
    """A cloud call without an answer. may_be_billed: the service may charge for it nevertheless."""

    def __init__(self, message: str, *, may_be_billed: bool = False) -> None:
        super().__init__(message)
        self.may_be_billed = may_be_billed


class CloudDisabled(CloudError):
    """A cloud call while the cloud is not configured, or its key or package is missing."""


class CloudTimeout(CloudError):
    """A cloud call that took too long."""


class CloudRejected(CloudError):
    """A cloud call that was refused: by the service, by the budget, or because of `never_send`."""
