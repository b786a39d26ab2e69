"""Connections of a server: how many, how long each may take, and which are closed when there are too many.

A process has a limited number of file descriptors, and a connection takes one. So fewer connections are accepted than
there are descriptors. At the limit the connection that has been idle longest is closed for a new one. When all are
busy, a few more are accepted, on which health checks alone are answered. What follows is rejected.

The protocol is a subclass of whichever uvicorn runs, h11 or httptools, and uses only what both have.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import ssl
from collections.abc import Callable
from typing import Any

from ibpwf.errors import InputError
from ibpwf.serving.limits import Limits
from ibpwf.serving.middleware import only_health
from ibpwf.serving.records import Metrics, RateLimitedLog, log

HEAD_SECONDS = 15.0
"""Within which a client must have sent the head of its request."""
HANDSHAKE_SECONDS = 10.0
"""Within which the TLS handshake must be done."""
STALL_SECONDS = 30.0
"""After which a client that reads nothing of its response is disconnected."""
PAUSE_SECONDS = 0.1
"""Until connections are accepted again, when there are no descriptors left."""
HEAD_BYTES = 64 << 10
"""Of the head of a request, and of its trailers, beyond which the connection is closed."""

SPARE = 16
"""Connections beyond the limit, on which health checks are answered."""
CLOSING = 64
"""Connections that were closed for others and may still have their descriptor."""
FILES = 128
"""Descriptors kept free for models, uploads, jobs and logs."""
FEWEST = 16
"""Connections without which there is no point in starting."""
AT_ONCE = 32
"""Connections that are accepted before anything else is done."""

_OUT_OF_RESOURCES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


def affordable(wanted: int) -> int:
    """As many of the wanted connections as the process has descriptors for; its soft limit is raised as needed."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return wanted
    reserved = SPARE + CLOSING + FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted + reserved:
        raised = wanted + reserved if hard == resource.RLIM_INFINITY else min(hard, wanted + reserved)
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if soft == resource.RLIM_INFINITY or soft - reserved >= wanted:
        return wanted
    if soft - reserved < FEWEST:
        raise InputError(
            f"the limit on open files is {soft}, and the server needs {reserved + FEWEST}. Raise it with ulimit -n."
        )
    most = soft - reserved
    log.warning("connections are limited to %d instead of %d: the limit on open files is %d", most, wanted, soft)
    return most


class Connection:
    """An accepted connection, of which there is no transport before its TLS handshake is done."""

    def __init__(self, wire: socket.socket) -> None:
        self.wire = wire
        self.transport: Any = None
        self.opening: asyncio.Task[None] | None = None

    def abort(self) -> None:
        if self.transport is not None:
            self.transport.abort()
        elif self.opening is not None:
            self.opening.cancel()


class Connections:
    """The open connections, and which of them are idle."""

    def __init__(self, limits: Limits, metrics: Metrics) -> None:
        self.most = affordable(limits.connections)
        self._metrics, self._log = metrics, RateLimitedLog(seconds=60.0)
        self._open: set[Connection] = set()
        self._spare: set[Connection] = set()
        self._idle: dict[Connection, None] = {}  # the one that has been idle longest is first
        metrics.connections.set_function(lambda: len(self._open) + len(self._spare))

    def admit(self, connection: Connection) -> bool:
        """Take on a new connection, if need be in place of an idle one; whether it was."""
        if len(self._open) < self.most or self._close_idle(self._open):
            self._open.add(connection)
        elif len(self._spare) < SPARE or self._close_idle(self._spare):
            self._note("busy", "new ones are rejected, except for health checks")
            self._spare.add(connection)
        else:
            self._metrics.disconnected_total.labels("rejected").inc()
            return False
        self._idle[connection] = None
        return True

    def close_idle(self) -> bool:
        """Close the connection that has been idle longest; whether there was one."""
        return self._close_idle(self._open) or self._close_idle(self._spare)

    def _close_idle(self, among: set[Connection]) -> bool:
        oldest = next((one for one in self._idle if one in among), None)
        if oldest is None:
            return False
        self._note("idle", "idle ones are closed")
        self._metrics.disconnected_total.labels("idle").inc()
        self.remove(oldest)
        oldest.abort()
        return True

    def _note(self, kind: str, what: str) -> None:
        self._log.note(kind, f"the limit of {self.most} connections is reached; {what}")

    def is_spare(self, connection: Connection) -> bool:
        return connection in self._spare

    def busy(self, connection: Connection) -> None:
        self._idle.pop(connection, None)

    def idle(self, connection: Connection) -> None:
        if connection in self._open or connection in self._spare:
            self._idle[connection] = None

    def remove(self, connection: Connection) -> None:
        self._idle.pop(connection, None)
        self._open.discard(connection)
        self._spare.discard(connection)


class Listener:
    """Accepts connections, no more at a time than there may be, and does their TLS handshake.

    It is used instead of the event loop's own server, which accepts hundreds of connections before any of them can be
    counted, cannot close one whose handshake goes on, and logs every failure to accept.
    """

    def __init__(
        self,
        bound: socket.socket,
        connections: Connections,
        make: Callable[[Connection], asyncio.Protocol],
        context: Callable[[], ssl.SSLContext] | None,
    ) -> None:
        self.bound, self.connections = bound, connections
        self._make, self._context = make, context
        self._loop = asyncio.get_running_loop()
        self._log = RateLimitedLog(seconds=60.0)
        self._resuming: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self.bound.setblocking(False)
        self.bound.listen(max(AT_ONCE, self.connections.most))
        self._loop.add_reader(self.bound, self._accept)

    def stop(self) -> None:
        if self._resuming is not None:
            self._resuming.cancel()
        self._loop.remove_reader(self.bound)

    def _accept(self) -> None:
        for _ in range(AT_ONCE):
            try:
                wire, _ = self.bound.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _OUT_OF_RESOURCES:
                    raise
                self._log.note("accept", f"connections cannot be accepted: {error.strerror}")
                self.connections.close_idle()
                self.stop()
                self._resuming = self._loop.call_later(PAUSE_SECONDS, self._loop.add_reader, self.bound, self._accept)
                return
            wire.setblocking(False)
            connection = Connection(wire)
            if self.connections.admit(connection):
                connection.opening = self._loop.create_task(self._open(connection))
            else:
                wire.close()

    async def _open(self, connection: Connection) -> None:
        secure: dict[str, Any] = {}
        if self._context is not None:
            secure = {"ssl": self._context(), "ssl_handshake_timeout": HANDSHAKE_SECONDS}
        try:
            await self._loop.connect_accepted_socket(lambda: self._make(connection), connection.wire, **secure)
        except (OSError, asyncio.CancelledError):  # no TLS, none in time, or it was closed for another
            self.connections.remove(connection)
            connection.wire.close()
        finally:
            connection.opening = None


def protocol(connections: Connections) -> Any:
    """The class of uvicorn's protocol that keeps to the limits. Its instances need a `connection`."""
    from uvicorn.protocols.http.auto import AutoHTTPProtocol

    base: Any = AutoHTTPProtocol

    class Limited(base):  # type: ignore[misc]
        """uvicorn's protocol, which also ends connections that take too long, or too much, or are too many."""

        app: Any
        connection: Connection
        _waiting: asyncio.TimerHandle | None = None
        _stalled: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            self.connection.transport = transport
            if connections.is_spare(self.connection):
                self.app = only_health(self.app)
            super().connection_made(transport)
            self._wait()

        def data_received(self, data: bytes) -> None:
            before = self.cycle
            super().data_received(data)
            if self.cycle is not before:
                self._stop_waiting()
                connections.busy(self.connection)
            elif self.cycle is None or self.cycle.response_complete:
                self._wait()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            if self.cycle is None or self.cycle.response_complete:  # else the next request was sent with this one
                connections.idle(self.connection)

        def connection_lost(self, exc: Exception | None) -> None:
            connections.remove(self.connection)
            self._stop_waiting()
            self._go_on()
            super().connection_lost(exc)

        def pause_writing(self) -> None:
            super().pause_writing()
            if self._stalled is None:
                self._stalled = self.loop.call_later(STALL_SECONDS, self.transport.abort)

        def resume_writing(self) -> None:
            self._go_on()
            super().resume_writing()

        def _go_on(self) -> None:
            if self._stalled is not None:
                self._stalled.cancel()
                self._stalled = None

        def _wait(self) -> None:
            if self._waiting is None:
                self._waiting = self.loop.call_later(HEAD_SECONDS, self._close)

        def _stop_waiting(self) -> None:
            if self._waiting is not None:
                self._waiting.cancel()
                self._waiting = None

        def _close(self) -> None:
            self._waiting = None
            if not self.transport.is_closing():
                self.transport.close()

    return _with_short_heads(Limited) if hasattr(base, "on_message_begin") else Limited


def _with_short_heads(base: Any) -> Any:
    """httptools reads a head and trailers of any size, where h11 has a limit of its own."""

    class ShortHeads(base):  # type: ignore[misc]
        _beside = 0  # bytes since the last part of a body, in what came without the beginning of a request

        def on_message_begin(self) -> None:
            self._beside = 0
            super().on_message_begin()

        def on_headers_complete(self) -> None:
            super().on_headers_complete()
            self.headers = _Dropped()  # which uvicorn adds trailers to: they must not change what has been checked

        def on_body(self, body: bytes) -> None:
            self._beside = 0
            super().on_body(body)

        def data_received(self, data: bytes) -> None:
            self._beside += len(data)
            super().data_received(data)
            if self._beside > HEAD_BYTES and not self.transport.is_closing():
                self.send_400_response("The head or the trailers of the request are too large.")

    return ShortHeads


class _Dropped(list[tuple[bytes, bytes]]):
    """Headers after the head, which nobody reads."""

    def append(self, header: tuple[bytes, bytes]) -> None:
        pass
