"""Every error that edgemem raises on purpose, in one tree.

    EdgememError
    ├ InputError   what cannot be stored or asked (also a ValueError)
    ├ ConfigError  unknown key, bad value (names the key and the file)
    ├ MemoryBudgetExceeded  what is to be loaded does not fit the memory limit (has its parts)
    ├ ModelError   ├ ModelNotFound ├ AdapterError ├ ContextOverflow
    ├ StoreError   ├ SchemaVersionError ├ DimensionMismatch ├ StoreCorrupt ├ StoreLocked ├ StoreFull
    ├ StoreError   ├ VaultLocked
    └ CloudError   ├ CloudDisabled ├ CloudTimeout ├ CloudRejected

A message says what was given, what is allowed, and what to do next. Errors of dependencies are
wrapped with ``from exc``; none leaks. A wrong *type* stays a ``TypeError``.
"""

__all__ = [
    "AdapterError",
    "CloudDisabled",
    "CloudError",
    "CloudRejected",
    "CloudTimeout",
    "ConfigError",
    "ContextOverflow",
    "DimensionMismatch",
    "EdgememError",
    "InputError",
    "MemoryBudgetExceeded",
    "ModelError",
    "ModelNotFound",
    "SchemaVersionError",
    "StoreCorrupt",
    "StoreError",
    "StoreFull",
    "StoreLocked",
    "VaultLocked",
]


class EdgememError(Exception):
    """Base of every error that edgemem raises on purpose."""


class InputError(EdgememError, ValueError):
    """Text, metadata or an argument that cannot be stored or asked."""


class ConfigError(EdgememError):
    """An unknown configuration key or a bad value."""


class MemoryBudgetExceeded(EdgememError):
    """What is to be loaded does not fit the memory limit, whatever is turned down.

    turned_down: what was, in order; parts_bytes: what each part would take then.
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
    """No file for the model that was asked for."""


class AdapterError(ModelError):
    """A LoRA adapter that does not fit the loaded model."""


class ContextOverflow(ModelError):
    """A prompt that does not fit the context window.

    prompt_tokens: tokens of the prompt plus those asked for; n_ctx: tokens that fit.
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
    """Vectors of one embedding model offered to a store that holds another's."""


class StoreCorrupt(StoreError):
    """A file that is not an edgemem store, or is a damaged one."""


class StoreLocked(StoreError):
    """Another process holds the store's write lock for too long."""


class StoreFull(StoreError):
    """No room, or no permission, to write."""


class VaultLocked(StoreError):
    """An encrypted store whose key is wrong or not at hand."""


class CloudError(EdgememError):
    """A cloud call that did not give an answer. may_be_billed: whether it may cost all the same."""

    def __init__(self, message: str, *, may_be_billed: bool = False) -> None:
        super().__init__(message)
        self.may_be_billed = may_be_billed


class CloudDisabled(CloudError):
    """A cloud call although no cloud is configured."""


class CloudTimeout(CloudError):
    """A cloud call that took too long."""


class CloudRejected(CloudError):
    """A cloud call that was refused: by the service, by the budget, or because of `never_send`."""
