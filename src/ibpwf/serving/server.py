"""`serve`: the application on uvicorn, with what it must not do without: tokens, or this machine alone."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import ssl
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ibpwf.errors import InputError

if TYPE_CHECKING:
    from ibpwf.serving.service import ServeOptions

HEADER_SECONDS = 15.0
"""Within which a client must have sent its request's head."""


@dataclass(frozen=True)
class Place:
    """Where a server listens, and with what certificate."""

    host: str = "127.0.0.1"
    port: int = 8000
    certificate: Path | None = None
    key: Path | None = None


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def check_place(place: Place, tokens: Path | None) -> None:
    """Refuse to be reached from elsewhere without tokens, and half a certificate."""
    if tokens is None and not is_loopback(place.host):
        raise InputError(
            f"host is '{place.host}' and there are no tokens, so anybody could change the models; give --tokens FILE "
            "(make one with --new-token NAME), or serve this machine alone with --host 127.0.0.1."
        )
    if (place.certificate is None) != (place.key is None):
        raise InputError("a certificate needs its key; give both --certificate and --key, or neither.")
    if not 0 <= place.port < 65536:
        raise InputError(f"port is {place.port}; give a number from 0 to 65535.")


def check_certificate(place: Place) -> None:
    """Refuse files that are no certificate and key, before anything is promised."""
    if place.certificate is None or place.key is None:
        return
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(place.certificate, place.key, password="")
    except ssl.SSLError as error:
        told = (error.reason or "no PEM").replace("_", " ").lower()
        raise InputError(
            f"{place.certificate} and {place.key} are not a certificate and its key ({told}); give both as PEM, "
            "the key without a password."
        ) from None
    except OSError as error:
        raise InputError(
            f"the certificate cannot be read: {error.strerror}; check --certificate and --key."
        ) from None


def protocol() -> Any:
    """uvicorn's, which also closes a connection that takes too long to say what it wants."""
    from uvicorn.protocols.http.auto import AutoHTTPProtocol

    base: Any = AutoHTTPProtocol

    class Impatient(base):  # type: ignore[misc]
        _patience: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._wait()

        def data_received(self, data: bytes) -> None:
            before = self.cycle
            super().data_received(data)
            if self.cycle is not before:
                self._stop_waiting()
            elif self.cycle is None or self.cycle.response_complete:
                self._wait()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop_waiting()
            super().connection_lost(exc)

        def _wait(self) -> None:
            if self._patience is None:
                self._patience = self.loop.call_later(HEADER_SECONDS, self._close)

        def _stop_waiting(self) -> None:
            if self._patience is not None:
                self._patience.cancel()
                self._patience = None

        def _close(self) -> None:
            self._patience = None
            if not self.transport.is_closing():
                self.transport.close()

    return Impatient


def listening(place: Place) -> socket.socket:
    """A socket that is bound, or what hinders it in a sentence."""
    family = socket.AF_INET6 if ":" in place.host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)  # named, or asyncio leaves delays on
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((place.host.strip("[]"), place.port))
    except (OSError, UnicodeError) as error:
        bound.close()
        told = getattr(error, "strerror", None) or str(error)
        raise InputError(f"{place.host}:{place.port} cannot be had ({told}); choose another --port.") from None
    return bound


def serve(options: ServeOptions, place: Place, started: Any = None) -> None:
    """Serve until interrupted. `started` is told the address once it can be asked."""
    import torch
    import uvicorn

    from ibpwf.serving.records import configure_logging
    from ibpwf.serving.routes import make_app
    from ibpwf.serving.service import Service

    check_place(place, options.tokens)
    torch.set_num_threads(1)  # a pass is small, and the same bits need the same threads
    configure_logging()
    bound = listening(place)
    hosts = options.hosts | {place.host}
    service = Service(replace(options, hosts=frozenset(hosts)))
    config = uvicorn.Config(
        make_app(service),
        http=protocol(),
        ws="none",
        log_level="warning",
        access_log=False,
        server_header=False,
        backlog=options.limits.connections,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=10,
        ssl_certfile=place.certificate,
        ssl_keyfile=place.key,
    )
    if started is not None:
        scheme = "http" if place.certificate is None else "https"
        started(f"{scheme}://{place.host}:{bound.getsockname()[1]}/", service)
    uvicorn.Server(config).run([bound])
