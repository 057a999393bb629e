"""`vault`: encrypt and decrypt a store, its passphrase and recovery code; a first chat's offer.

Knows how a person is asked for a passphrase; `edgemem.vault` knows the keys.
"""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

from edgemem import vault as vaults
from edgemem.cli import output as ui
from edgemem.cli import typed
from edgemem.config import MEMORY_DB, Settings, load_settings, require
from edgemem.errors import InputError, StoreError, VaultLocked
from edgemem.vault import Way

__all__ = ["offer_vault"]

_KEPT = {
    "keyring": "The key is in the system's keyring: who is logged in as you opens the store.",
    "passphrase": "The passphrase is asked for, or taken from EDGEMEM_PASSPHRASE.",
    "file": "The key is in a file of your configuration folder: who can read your files can read "
    "the store too, a copy of the store alone cannot be read.",
}


@ui.cli.group()
def vault() -> None:
    """Encrypt the store on this disk, and decrypt it again.

    A vault is a store whose file, log, caches and backup copies are encrypted with a random key.
    The key is kept, itself encrypted, in STORE.vault: it opens with the system's keyring, a
    passphrase or a key file. Every other command works on a vault as on a plain store.
    """


def _place(db: str | None) -> Path:
    from edgemem.store.database import resolved

    path = load_settings().db if db is None else db
    if str(path) == MEMORY_DB:
        raise InputError("a store in memory is never written, and has nothing to encrypt")
    return resolved(path)


@vault.command()
@click.option(
    "--with",
    "way",
    type=click.Choice(list(_KEPT)),
    help="How the key is kept.  [default: the keyring where there is one, else a passphrase at a "
    "terminal or with EDGEMEM_PASSPHRASE, else a key file]",
)
@ui.db_and_json_options
def lock(way: Way | None, db: str | None) -> None:
    """Encrypt a plain store, once; it opens by itself from then on, or asks for the passphrase.

    No program may have it open. It needs room for a second copy. The plain file, its log, caches
    and backup copies, and what was typed in chats, are overwritten and deleted; a flash disk or a
    snapshot may still hold what was there before. Exports that you made stay as they are.
    """
    from edgemem.store import encryption

    require("vault")
    file = _place(db)
    way = way or _best_way()
    phrase = _first_passphrase() if way == "passphrase" else None
    typed.move_typed(file, None, encryption.encrypt(file, way, phrase))
    ui.note(_KEPT[way])
    ui.note(
        "Print a recovery code: `edgemem vault export-recovery`. Without a way in, all is lost."
    )
    ui.print_rows([_status(file)], remark=f"{file} is encrypted.")


@vault.command()
@ui.yes_option
@ui.db_and_json_options
def unlock(yes: bool, db: str | None) -> None:
    """Decrypt a vault for good: a plain store again, which any program may read.

    No vault need be decrypted to be read: every command opens it. No program may have it open.
    """
    from edgemem.store import encryption

    file = _place(db)
    with ui.open_memory(str(file)) as memory:
        found = memory.store.vault
    if found is None:
        raise StoreError(f"{file} is a plain store already")
    if not yes:
        click.confirm(f"Write everything in {file} in plain?", abort=True, err=True)
    encryption.decrypt(file, found)
    typed.move_typed(file, found, None)
    ui.print_rows([_status(file)], remark=f"{file} is a plain store.")


@vault.command("change-passphrase")
@ui.db_and_json_options
def change_passphrase(db: str | None) -> None:
    """Set a passphrase, in place of the one before; only STORE.vault is rewritten.

    A copy of STORE.vault from before still opens with the old one. Who has forgotten it gives the
    recovery code instead; so does who has lost STORE.vault, which is written anew. The new one is
    asked for at a terminal: EDGEMEM_PASSPHRASE is the present one.
    """
    file = _place(db)
    found = _opened(file)
    vaults.set_passphrase(file, found, _new_passphrase())
    ui.print_rows([_status(file)], remark="The passphrase is changed.")


@vault.command("export-recovery")
@ui.db_and_json_options
def export_recovery(db: str | None) -> None:
    """Print the recovery code, to be kept on paper: it is the key, and needs no STORE.vault.

    It may be given wherever a passphrase may. A passphrase, the keyring and a key file open a store
    only with STORE.vault beside it, so copy both. Whoever has the code can read the store; `vault
    unlock` and then `vault lock` make a new key.
    """
    code = _opened(_place(db)).recovery_code()
    ui.print_rows([{"recovery_code": code}], [code])


@vault.command()
@ui.db_and_json_options
def status(db: str | None) -> None:
    """Show whether the store is encrypted, and what opens it. Needs no key."""
    row = _status(ui.require_store(_place(db)))
    ui.print_rows([row], (f"{key}\t{ui.in_words(value)}" for key, value in row.items()))


def _status(file: Path) -> dict[str, Any]:
    from edgemem.store import encryption
    from edgemem.store.database import is_encrypted

    found = vaults.read(file)
    if found is None and is_encrypted(file):
        return {"path": str(file), "encrypted": True, "opened_by": "the recovery code alone"}
    if found is None:
        if not encryption.is_plain(file) and file.stat().st_size:
            raise StoreError(f"{file} is no store, neither a plain one nor a vault")
        return {"path": str(file), "encrypted": False}
    if found["state"] != "locked":  # the next opening finishes it
        return {"path": str(file), "encrypted": not encryption.is_plain(file), "interrupted": True}
    ways = ", ".join(way["by"] for way in found["ways"])
    return {"path": str(file), "encrypted": True, "opened_by": ways, "key": found["id"]}


def _opened(file: Path) -> vaults.Vault:
    from edgemem.store.database import is_encrypted

    if not vaults.is_vault(file):
        if is_encrypted(
            ui.require_store(file)
        ):  # without STORE.vault only the store itself tells a wrong code
            with ui.open_memory(str(file)) as memory:
                assert memory.store.vault is not None
                return memory.store.vault
        raise StoreError(f"{file} is no vault; `edgemem vault lock` makes one of it")
    return ui.ask_passphrase(lambda passphrase: vaults.unlock(file, passphrase=passphrase))


def _best_way() -> Way:
    if vaults.keyring_works():
        return "keyring"
    given = os.environ.get(vaults.PASSPHRASE_VARIABLE)
    return "passphrase" if given or ui.at_a_terminal() else "file"


def _first_passphrase() -> str:
    return os.environ.get(vaults.PASSPHRASE_VARIABLE) or _new_passphrase(
        f"; set {vaults.PASSPHRASE_VARIABLE}, or lock with a key file: --with file"
    )


def _new_passphrase(otherwise: str = "") -> str:
    if not ui.at_a_terminal():
        raise VaultLocked(
            f"a new passphrase is asked for at a terminal, and there is none{otherwise}"
        )
    return click.prompt(
        "New passphrase", hide_input=True, confirmation_prompt="The same again", err=True
    )


def offer_vault(db: str | None, settings: Settings) -> str | None:
    """Asks, before a first chat makes the store, whether to encrypt it.

    Returns the new passphrase, if there is one. Asks nothing without a terminal, or if the store
    exists, the extra is not installed, the setting `encryption` is `off`, or EDGEMEM_PASSPHRASE is
    set, with which `open_memory` makes a vault.
    """
    path = settings.db if db is None else db
    asks = settings.encryption == "ask" and str(path) != MEMORY_DB
    if not (asks and ui.at_a_terminal()) or os.environ.get(vaults.PASSPHRASE_VARIABLE):
        return None
    file = _place(db)
    if file.exists() or vaults.is_vault(file) or not (find_spec("apsw") and find_spec("nacl")):
        return None
    if not click.confirm("Encrypt what is remembered on this disk?", default=True, err=True):
        ui.note("It is kept in plain; `edgemem vault lock` encrypts it at any time.")
        return None
    way = _best_way()
    phrase = _first_passphrase() if way == "passphrase" else None
    file.parent.mkdir(parents=True, exist_ok=True)
    vaults.create(file, vaults.new_key(), way=way, passphrase=phrase)
    ui.note(f"{_KEPT[way]} Print a recovery code too: `edgemem vault export-recovery`.")
    return phrase
