"""`serve`: the application on uvicorn, reachable from other machines only with tokens."""

from __future__ import annotations

import asyncio
import gc
import ipaddress
import logging
import os
import signal
import socket
import ssl
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ibpwf.errors import InputError
from ibpwf.serving.watched_files import WatchedFiles

if TYPE_CHECKING:
    from ibpwf.serving.service import ServeOptions

log = logging.getLogger("ibpwf.serving")


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
    """Reject files that are not a certificate and its key."""
    if place.certificate is not None and place.key is not None:
        secure_context(place.certificate, place.key)


def secure_context(certificate: Path, key: Path) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(certificate, key, password="")
    except ssl.SSLError as error:
        told = (error.reason or "no PEM").replace("_", " ").lower()
        raise InputError(
            f"{certificate} and {key} are not a certificate and its key ({told}); give both as PEM, "
            "the key without a password."
        ) from None
    except OSError as error:
        raise InputError(
            f"the certificate cannot be read: {error.strerror}; check --certificate and --key."
        ) from None
    return context


class Certificate:
    """A certificate and its key, read again when the files change. New connections get the new one.

    Files that do not fit, as when one of the two has been replaced so far, change nothing; the log says so once.
    """

    def __init__(self, certificate: Path, key: Path) -> None:
        self.certificate, self.key = certificate, key
        self._watched = WatchedFiles(certificate, key)
        self.context = secure_context(certificate, key)
        self._content, self._problem = self._read(), ""

    def _read(self) -> bytes:
        return self.certificate.read_bytes() + b"\0" + self.key.read_bytes()

    async def look(self) -> None:
        """Called about once a second."""
        if self._watched.changed():
            self._load()  # here: the loop waits for it, and must not wait for whatever holds its threads

    def _load(self) -> None:
        try:
            content = self._read()
            if content == self._content:
                return
            context = secure_context(self.certificate, self.key)
        except (InputError, OSError) as error:
            if str(error) != self._problem:
                log.error("the new certificate cannot be used; the one read before stays in use: %s", error)
            self._problem = str(error)
            return
        self.context, self._content, self._problem = context, content, ""
        log.info("the certificate has changed; new connections use it")


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
    """Serve until interrupted. `started` is told the address once it can be asked.

    SIGTERM ends it in order: it says that it is not ready, answers for `options.drain` seconds more, accepts no more
    connections, and ends once what it has begun is answered. Ctrl-C does so without the delay. A second signal ends
    it at once; as after a crash, nothing that was promised is lost.
    """
    import torch
    import uvicorn

    from ibpwf.serving.connections import Connection, Connections, Listener, protocol
    from ibpwf.serving.records import configure_logging
    from ibpwf.serving.routes import make_app
    from ibpwf.serving.service import Service

    check_place(place, options.tokens)
    torch.set_num_threads(1)  # a pass is small, and the same bits need the same threads
    configure_logging()
    bound = listening(place)
    hosts = options.hosts | {place.host}
    service = Service(replace(options, hosts=frozenset(hosts)))
    log.info("models and jobs are computed on %s", service.device)
    connections = Connections(options.limits, service.metrics)
    certificate = None
    if place.certificate is not None and place.key is not None:
        certificate = Certificate(place.certificate, place.key)
    config = uvicorn.Config(
        make_app(service),
        http=protocol(connections),
        ws="none",
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,  # anybody may send them: a client would choose the address that it is counted by
        timeout_keep_alive=30,
        timeout_graceful_shutdown=10,
        callback_notify=None if certificate is None else certificate.look,
        timeout_notify=1,
    )

    class Server(uvicorn.Server):
        """uvicorn's server, with a listener of ours, and an end in order."""

        listener: Listener | None = None
        asked: int | None = None  # the signal that asked it to end
        ends_at = 0.0

        def handle_exit(self, sig: int, frame: Any) -> None:
            if self.asked is not None:
                os._exit(128 + sig)  # workers see it, keep what they have and end
            self.asked = sig
            self.ends_at = time.monotonic() + (options.drain if sig == signal.SIGTERM else 0.0)

        async def on_tick(self, counter: int) -> bool:
            over = await super().on_tick(counter)
            if self.asked is not None and service.ready:
                service.ready = False
                log.info("asked to end by %s; not ready any more", signal.Signals(self.asked).name)
            return over or (self.asked is not None and time.monotonic() >= self.ends_at)

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await self.lifespan.startup()
            if self.lifespan.should_exit:
                sys.exit(uvicorn.config.STARTUP_FAILURE)
            self.servers = []
            context = None if certificate is None else lambda: certificate.context
            self.listener = Listener(bound, connections, self._make, context)
            self.listener.start()
            self.started = True

        def _make(self, connection: Connection) -> asyncio.Protocol:
            made: Any = config.http_protocol_class(  # type: ignore[call-arg]
                config=config, server_state=self.server_state, app_state=self.lifespan.state
            )
            made.connection = connection
            return made  # type: ignore[no-any-return]

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            if self.listener is not None:
                self.listener.stop()
            service.jobs.telling = False
            await super().shutdown(sockets)

    if started is not None:
        scheme = "http" if certificate is None else "https"
        started(f"{scheme}://{place.host}:{bound.getsockname()[1]}/", service)
    # The libraries have a million objects. Looking through all of them for garbage would delay the requests of that
    # moment by 0.1 s and more, which was most of the 99th percentile.
    gc.collect()
    gc.freeze()
    server = Server(config)
    server.run([bound])
    if server.asked == signal.SIGINT:
        raise KeyboardInterrupt
