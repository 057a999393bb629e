"""The same memory on a person's devices, through a shared folder or directly.

`exchange` reads what the others have left at a place, takes it in, and leaves what is new here.
ARCHITECTURE.md says why it is right whatever happens to the files.
"""

from __future__ import annotations

from edgemem.sync.exchange import Directory, Place, Synced, exchange
from edgemem.sync.sealing import code_of, new_secret, secret_of

__all__ = ["Directory", "Place", "Synced", "code_of", "exchange", "new_secret", "secret_of"]
