"""The same memory on a person's devices, through a shared folder or directly.

`sync` takes in what the other devices have left at a place, and leaves there what is new here.
ARCHITECTURE.md says why the result is correct whatever happens to the files.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from edgemem.config import require
from edgemem.errors import StoreLocked
from edgemem.pipeline.ingest import unqueue
from edgemem.pipeline.upkeep import BATCH, read_relations, vectors_of
from edgemem.results import utc_now

if TYPE_CHECKING:
    from edgemem.memory import Memory
    from edgemem.store.writing import Transaction
    from edgemem.sync.exchange import Place, Synced

__all__ = ["pairing_code", "sync"]


def sync(memory: Memory, place: str | Path | Place, code: str | None = None) -> Synced:
    """Exchange what is new with this person's other devices; `exchange` says more.

    place: a folder that all of them reach. code: what `pairing_code` gives on a device that syncs
    already; needed once, and not on the first device. What another device has erased is erased
    here. Raises InputError on a wrong code, SchemaVersionError if a device has another version of
    edgemem, StoreLocked while another process works on the store.
    """
    pairing_code(memory, code)
    from edgemem.sync.exchange import Directory, exchange

    def drop_replaced(tx: Transaction, ids: list[str]) -> None:
        items = memory.store.get(ids, include_deleted=True)
        unqueue(memory, tx, items.values())
        # Facts may have been taken here from a turn that was deleted elsewhere meanwhile.
        gone = [items[id] for id in items.keys() - tx.live(ids) if items[id].kind == "turn"]
        facts = memory.store.only_from(turn for item in gone for turn in item.sources)
        for id in tx.live(fact.id for fact in facts):
            tx.delete_memory(id, utc_now())

    def drop_copies() -> None:
        memory._parts.drop_index()
        ended.callback(memory._parts.drop_prompts)  # even if the exchange fails after the erase

    with memory._work_lock() as mine, ExitStack() as ended:
        if not mine:
            raise StoreLocked(
                "another process takes facts from turns, erases or syncs at the moment, and "
                "nothing was synced; try again when it has finished, or close it"
            )
        done = exchange(
            memory.store,
            Directory(place) if isinstance(place, str | Path) else place,
            vectors_for=lambda texts: vectors_of(memory.embedder, texts),
            own_model=lambda: (memory.embedder.model_id, memory.embedder.dim),
            before_erase=drop_copies,
            on_replaced=drop_replaced,
        )
        if done.erased:
            # Facts that lost relations with the erased names are read again; there are few.
            read_relations(memory.store, memory.encoder, limit=BATCH)
    return done


def pairing_code(memory: Memory, code: str | None = None) -> str:
    """The code that this person's other devices need once; created on the first call.

    code: another device's code, which this device adopts. Raises InputError if it is mistyped.
    """
    require("sync")
    from edgemem.sync.exchange import code_of, paired

    return code_of(paired(memory.store, code))
