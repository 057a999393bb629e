"""`sync`: brings the same memory to all devices of a person."""

from __future__ import annotations

from contextlib import closing, suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from edgemem.cli.output import cli, new_memory_option, note, plural, print_result
from edgemem.errors import InputError

if TYPE_CHECKING:
    from edgemem.memory import Memory
    from edgemem.sync.exchange import Synced

__all__: list[str] = []


@cli.command()
@click.argument("folder", required=False, type=click.Path(file_okay=False, path_type=Path))
@click.option("--code", metavar="CODE", help="The pairing code of another device; needed once.")
@click.option(
    "--show-code", is_flag=True, help="Print the pairing code for other devices, and end."
)
@click.option("--serve", is_flag=True, help="Let other devices sync with this one directly.")
@click.option("--with", "address", metavar="HOST[:PORT]", help="Sync with a device that serves.")
@click.option("--host", default="0.0.0.0", help="With --serve: the address.")
@click.option("--port", type=click.IntRange(0, 65535), default=8766, help="With --serve.")
@new_memory_option
def sync(
    folder: Path | None,
    code: str | None,
    show_code: bool,
    serve: bool,
    address: str | None,
    host: str,
    port: int,
    memory: Memory,
) -> None:
    """Bring this memory and your other devices' to the same state.

    FOLDER is one that all your devices see: on a drive, a stick, or kept equal by Syncthing or a
    cloud; what is written there is encrypted. Or one device runs `sync --serve` and another `sync
    --with` its address. The first device makes a pairing code, which each other one needs once.
    What is erased on one device is erased on all. Needs edgemem-runtime[sync].
    """
    if sum((folder is not None, show_code, serve, address is not None)) != 1:
        raise click.UsageError("give one of FOLDER, --show-code, --serve and --with")
    from edgemem.sync import pairing_code
    from edgemem.sync import sync as exchange

    known = code is not None or memory.store.select("SELECT 1 FROM sync_self") != []
    if show_code:
        made = pairing_code(memory, code)
        print_result({"results": [{"code": made}]}, [made])
    elif serve:
        _serve(memory, pairing_code(memory, code), host, port)
    elif address is not None:
        if not known:
            raise InputError(
                f"this device has no pairing code yet; `edgemem sync --serve` at {address} prints "
                "it: give it here with --code"
            )
        _with(memory, address, code)
    else:
        assert folder is not None
        done = exchange(memory, folder, code=code)
        _say(done)
        if not known and not done.devices:
            note(f"On your other devices: edgemem sync FOLDER --code {pairing_code(memory)}")


def _with(memory: Memory, address: str, code: str | None) -> None:
    from edgemem.sync import pairing_code
    from edgemem.sync import sync as exchange
    from edgemem.sync.exchange import secret_of
    from edgemem.sync.network import Remote

    with closing(Remote(address, secret_of(code or pairing_code(memory)))) as remote:
        remote.exchange_there()  # the other device writes its changes
        done = exchange(memory, remote, code=code)
        remote.exchange_there()  # and takes in those of this device
    _say(done)


def _serve(memory: Memory, code: str, host: str, port: int) -> None:
    from edgemem.sync import sync as exchange
    from edgemem.sync.exchange import secret_of
    from edgemem.sync.network import Server

    if memory.store.path is None:
        raise InputError("a memory that lies in no file cannot be served; give --db a file")
    folder = memory.store.path.with_name(memory.store.path.name + ".sync")
    server = Server(folder, secret_of(code), lambda: exchange(memory, folder), host, port)
    note(f"On your other device: edgemem sync --with THIS_MACHINE:{server.port} --code {code}")
    note("Ctrl-C ends it.")
    with closing(server), suppress(KeyboardInterrupt):
        server.serve_forever()


def _say(done: Synced) -> None:
    lines = [
        f"{plural(done.devices, 'other device')}. Received {plural(done.received, 'row')} "
        f"({done.received_bytes} bytes), sent {done.sent} ({done.sent_bytes} bytes)."
    ]
    if done.erased:
        lines.append(f"Erased here, because another device erased it: {len(done.erased)}.")
    if done.late:
        lines.append(f"Not all files are here yet of: {', '.join(done.late)}. Sync again later.")
    if done.unconfirmed:
        lines.append(f"Have not yet confirmed the last erase: {', '.join(done.unconfirmed)}.")
    print_result({"results": [asdict(done)]}, lines)
