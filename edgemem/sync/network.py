"""Two devices that sync directly: one serves a folder, the other exchanges with it.

The connection is TLS with a certificate that is made for one run. Neither side trusts it until the
server has proven, for this very certificate, that it knows the pairing code. Then the client proves
the same. The only importer of ssl, http.server and cryptography.

    GET /hello?NONCE      the server's proof; everything else needs the client's
    GET /                 {device: {file: bytes}}
    GET, PUT, DELETE /DEVICE/FILE
    POST /                let the serving device take in what is there, and leave what it has
"""

from __future__ import annotations

import hashlib
import hmac
import http.client
import json
import os
import ssl
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import BoundedSemaphore
from typing import Any

from edgemem.errors import EdgememError, InputError, StoreError
from edgemem.sync.exchange import Directory, is_name, proof

__all__ = ["PORT", "Remote", "Server"]

PORT = 8766
TIMEOUT_S = 30.0  # of a silent connection
EXCHANGE_S = 900.0  # of one during an exchange: the other side waits for its store or embeds texts
MOST_BYTES = 64 << 20  # of one file; an image has 32 MB at most
_AT_ONCE = 8  # calls that are served in parallel


class Server(ThreadingHTTPServer):
    """Serves a folder to devices with the same pairing code, until it is closed.

    on_call: lets this device exchange with the folder. port: 0 takes a free port; see `self.port`.
    `serve_forever` answers until then. Raises StoreError if the address cannot be used.
    """

    daemon_threads = True
    allow_reuse_address = os.name != "nt"  # there two servers would share a port

    def __init__(
        self, folder: Path, secret: bytes, on_call: Callable[[], object], host: str, port: int
    ) -> None:
        self.place, self.secret, self.on_call = Directory(folder), secret, on_call
        self.free = BoundedSemaphore(_AT_ONCE)
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.minimum_version = ssl.TLSVersion.TLSv1_3
        self.fingerprint = _load_certificate(self._context)
        try:
            super().__init__((host, port), _Handler)
        except OSError as exc:
            raise StoreError(
                f"cannot listen on {host}:{port} ({exc.strerror or exc}); give another --host or "
                "--port"
            ) from exc
        self.port = int(self.server_address[1])

    def close(self) -> None:
        self.shutdown()
        self.server_close()

    def get_request(self) -> Any:
        connection, address = super().get_request()
        connection.settimeout(TIMEOUT_S)
        # The handshake happens in the call's own thread: nobody waits for a slow one.
        wrapped = self._context.wrap_socket(
            connection, server_side=True, do_handshake_on_connect=False
        )
        return wrapped, address

    def handle_error(self, request: object, client_address: object) -> None:
        """Report nothing: a caller may hang up, or may not speak TLS."""


class _Handler(BaseHTTPRequestHandler):
    """One call."""

    protocol_version = "HTTP/1.1"
    timeout = TIMEOUT_S
    server: Server

    def _handle(self) -> None:
        served = self.server
        self.connection.settimeout(TIMEOUT_S)
        path, _, nonce = self.path.partition("?")
        if self.command == "GET" and path == "/hello":
            said = proof(served.secret, b"server", served.fingerprint, nonce.encode()[:100])
            return self._send(200, said.encode())
        given = self.headers.get("Authorization", "")
        expected = proof(served.secret, b"client", served.fingerprint)
        if not hmac.compare_digest(given.encode(), expected.encode()):
            self.close_connection = True  # the rest of the request is not read
            return self._send(401, b"another pairing code")
        if not served.free.acquire(timeout=TIMEOUT_S):
            self.close_connection = True  # nor here
            return self._send(503, b"busy")
        try:
            self._serve(path)
        except EdgememError as exc:
            self._send(500, str(exc).encode())
        finally:
            served.free.release()
            self.connection.settimeout(EXCHANGE_S)  # the caller may exchange before the next call

    def _serve(self, path: str) -> None:
        length = self.headers.get("Content-Length") or "0"
        size = int(length) if length.isdecimal() and len(length) < 20 else MOST_BYTES + 1
        if size > MOST_BYTES:
            self.close_connection = True
            return self._send(413, b"a file is too large")
        body = self.rfile.read(size)
        if len(body) < size:  # the caller hung up: half a file must not replace a whole one
            self.close_connection = True
            return
        device, _, name = path.removeprefix("/").partition("/")
        if path == "/" and self.command == "GET":
            return self._send(200, json.dumps(self.server.place.names()).encode())
        if path == "/" and self.command == "POST":
            self.server.on_call()
            return self._send(200, b"")
        if not is_name(device, name):
            return self._send(404, b"no such file")
        if self.command == "PUT":
            self.server.place.write(device, name, body)
        elif self.command == "DELETE":
            self.server.place.delete(device, name)
        else:
            data = self.server.place.read(device, name)
            return self._send(404 if data is None else 200, data or b"")
        return self._send(200, b"")

    do_GET = do_PUT = do_DELETE = do_POST = _handle

    def _send(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing is logged."""


class Remote:
    """A place that another device serves; close it when done.

    address: HOST or HOST:PORT. Raises StoreError if no device answers there, InputError if the
    device has another pairing code.
    """

    def __init__(self, address: str, secret: bytes) -> None:
        host, _, port = address.rpartition(":") if address[-1:].isdigit() else (address, "", "")
        if not host or "]" in port:
            host, port = address, ""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        # The certificate is signed by no authority; `proof` decides whether to trust it.
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        self.address = address
        self._token = ""
        with self._store_errors():
            self._http = http.client.HTTPSConnection(
                host.strip("[]"), int(port or PORT), context=context, timeout=TIMEOUT_S
            )
            self._http.connect()
            certificate = self._http.sock.getpeercert(binary_form=True)
        fingerprint = hashlib.sha256(certificate or b"").digest()
        try:
            self._require_proof(secret, fingerprint)
        except BaseException:
            self.close()
            raise
        self._token = proof(secret, b"client", fingerprint)

    def _require_proof(self, secret: bytes, fingerprint: bytes) -> None:
        """Raise InputError unless the server proves the pairing code for this certificate."""
        nonce = os.urandom(16).hex()
        proven = self._call("GET", f"/hello?{nonce}")
        expected = proof(secret, b"server", fingerprint, nonce.encode())
        if proven is None or not hmac.compare_digest(proven, expected.encode()):
            raise InputError(
                f"the device at {self.address} has another pairing code; give the one that "
                "`edgemem sync --show-code` prints there, with --code"
            )

    def names(self) -> dict[str, dict[str, int]]:
        found = json.loads(self._call("GET", "/") or b"{}")
        return {
            device: {name: int(size) for name, size in files.items() if is_name(device, name)}
            for device, files in found.items()
        }

    def read(self, device: str, name: str) -> bytes | None:
        return self._call("GET", f"/{device}/{name}")

    def write(self, device: str, name: str, data: bytes) -> None:
        self._call("PUT", f"/{device}/{name}", data)

    def delete(self, device: str, name: str) -> None:
        self._call("DELETE", f"/{device}/{name}")

    def exchange_there(self) -> None:
        """Let the other device take in what is there, and leave what it has."""
        self._call("POST", "/", timeout_s=EXCHANGE_S)

    def close(self) -> None:
        self._http.close()

    def _call(
        self, method: str, path: str, body: bytes | None = None, timeout_s: float | None = None
    ) -> bytes | None:
        """The answer's body; None if there is no such file."""
        with self._store_errors():
            if self._http.sock is None:  # http.client would reconnect, without a proof
                raise OSError("the line was closed")
            self._http.sock.settimeout(timeout_s or TIMEOUT_S)
            self._http.request(method, path, body, {"Authorization": self._token})
            answer = self._http.getresponse()
            data = answer.read()
        if answer.status == 404:
            return None
        if answer.status != 200:
            raise StoreError(
                f"the device at {self.address} refused ({answer.status}: "
                f"{data.decode(errors='replace')[:300]}); see to it there, then sync again"
            )
        return data

    @contextmanager
    def _store_errors(self) -> Iterator[None]:
        try:
            yield
        except (OSError, ValueError, http.client.HTTPException) as exc:
            raise StoreError(
                f"no device answers at {self.address} ({exc}); start `edgemem sync --serve` there "
                "and give its address as HOST or HOST:PORT"
            ) from exc


def _load_certificate(context: ssl.SSLContext) -> bytes:
    """Give a context a new key and certificate; returns the certificate's SHA-256."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "edgemem")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=2))  # clocks differ
        .not_valid_after(now + timedelta(days=365))
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    with tempfile.TemporaryDirectory() as folder:  # Python's ssl reads keys only from files
        file = Path(folder) / "pem"
        with open(os.open(file, os.O_CREAT | os.O_WRONLY, 0o600), "wb") as out:
            out.write(
                key.private_bytes(
                    pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
                )
            )
            out.write(certificate.public_bytes(pem))
        context.load_cert_chain(file)
    return certificate.fingerprint(hashes.SHA256())
