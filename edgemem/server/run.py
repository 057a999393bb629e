"""Running the application until it is stopped. The only importer of uvicorn.

Knows addresses, certificates and signals; no route. Keeps no access log.
"""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvicorn

from edgemem.errors import ConfigError
from edgemem.memory import Memory
from edgemem.server.asgi import app
from edgemem.server.guard import is_loopback
from edgemem.server.limits import Limits

__all__ = ["DEFAULT_HOST", "DEFAULT_PORT", "require_safe", "serve"]

DEFAULT_HOST, DEFAULT_PORT = "127.0.0.1", 8765


def serve(
    memory: Memory,
    *,
    host: str = DEFAULT_HOST,
    port: int = DEFAULT_PORT,
    token: str | None = None,
    tls_cert: str | Path | None = None,
    tls_key: str | Path | None = None,
    insecure: bool = False,
    hosts: Collection[str] = (),
    allow_reset: bool = False,
    on_erase: Callable[[Iterable[str]], None] = lambda texts: None,
    limits: Limits | None = None,
    on_ready: Callable[[str], None] = lambda url: None,
) -> None:
    """Answer for a Memory over HTTP until SIGINT or SIGTERM; the caller closes the Memory.

    host: beyond loopback only with tls_cert and tls_key (PEM files), or with insecure=True, for a
    network that nobody else can read. port: 0 takes a free one. on_ready: given the URL when calls
    are answered. token, hosts, allow_reset, on_erase: see `app`. Requests under way have
    limits.drain_s to end. Raises ConfigError if it must not or cannot listen there.
    """
    limits = limits or Limits()
    require_safe(host, tls_cert, tls_key, insecure=insecure)
    scheme = "http" if tls_cert is None else "https"
    asgi = app(
        memory,
        token=token,
        limits=limits,
        hosts=[host, *hosts],
        anywhere=not is_loopback(host),
        allow_reset=allow_reset,
        on_erase=on_erase,
    )
    server = _Server(
        uvicorn.Config(
            asgi,
            host=host,
            port=port,
            ssl_certfile=tls_cert,
            ssl_keyfile=tls_key,
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            ws="none",
            lifespan="on",
            # Longer than clients keep an idle connection (httpx: 5 s), or both close it at a time
            # and a request is lost on the way.
            timeout_keep_alive=60,
            timeout_graceful_shutdown=limits.drain_s,
        )
    )
    server.where = f"{host}:{port}"
    server.on_ready = lambda found: on_ready(f"{scheme}://{_bracketed(host)}:{found}")
    with _signals_end_it_only():
        try:
            server.run()
        except OSError as exc:  # of the certificate
            raise ConfigError(
                f"the certificate {tls_cert} or its key {tls_key} cannot be used ({exc}); give PEM "
                "files of one pair"
            ) from exc
        finally:
            asgi.state.service.close()  # also where a second Ctrl-C has skipped the lifespan's end


def require_safe(
    host: str, tls_cert: str | Path | None, tls_key: str | Path | None, *, insecure: bool
) -> None:
    """Raise ConfigError if what is said on a host could be read by others."""
    if (tls_cert is None) != (tls_key is None):
        raise ConfigError("TLS needs both a certificate and its key: --tls-cert and --tls-key")
    if tls_cert is None and not insecure and not is_loopback(host):
        raise ConfigError(
            f"the host {host!r} can be reached by others, who could read what is said; give "
            "--tls-cert and --tls-key, or --insecure if you trust the network"
        )


class _Server(uvicorn.Server):
    """uvicorn, telling where it listens, or why it cannot, instead of ending the process."""

    where = ""
    on_ready: Callable[[int], None] = staticmethod(lambda port: None)

    async def startup(self, sockets: Any = None) -> None:
        reasons: list[str] = []

        def keep(record: logging.LogRecord) -> bool:
            reasons.append(str(record.msg))
            return False

        logger = logging.getLogger("uvicorn.error")
        logger.addFilter(keep)
        try:
            await super().startup(sockets)
        except SystemExit as exc:
            why = reasons[-1] if reasons else "no reason given"
            raise ConfigError(
                f"cannot listen on {self.where} ({why}); give another --port or --host"
            ) from exc
        finally:
            logger.removeFilter(keep)
        self.on_ready(self.servers[0].sockets[0].getsockname()[1])


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


@contextmanager
def _signals_end_it_only() -> Iterator[None]:
    """uvicorn sends itself the signal once more when it has ended: the caller is to go on then."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    kinds = (signal.SIGINT, signal.SIGTERM)
    before = {kind: signal.signal(kind, lambda *_: None) for kind in kinds}
    try:
        yield
    finally:
        for kind, handler in before.items():
            signal.signal(kind, handler)
