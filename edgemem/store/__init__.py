"""Everything that lasts: one SQLite file.

The only importer of sqlite3 and sqlite_utils. Knows tables, columns and files; knows no
model, no ranking, and not what is sent to a cloud or shown to a person.
"""

from __future__ import annotations

from edgemem.store.changes import Changes
from edgemem.store.rows import NewMemory, NewRelation, PendingItem, StoredTurn
from edgemem.store.store import Store
from edgemem.store.writing import Transaction

__all__ = ["Changes", "NewMemory", "NewRelation", "PendingItem", "Store", "StoredTurn"]
__all__ += ["Transaction"]
