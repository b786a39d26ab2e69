"""Checks that every request passes before it is routed: framing, size of its head, and host. Also request IDs and the
access log.

It is plain ASGI and looks at the parsed headers only, so it does not depend on which HTTP parser uvicorn runs.
"""

from __future__ import annotations

import itertools
import re
import secrets
import time
from typing import Any

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ibpwf.serving.faults import Refused
from ibpwf.serving.records import REQUEST_ID
from ibpwf.serving.service import Service

LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1", "[::1]"})
HEALTH = frozenset({"/v2/health/live", "/v2/health/ready"})

LONGEST_ADDRESS = 8 << 10
"""Bytes of a path, and of a query."""
LONGEST_HEAD = 32 << 10
"""Bytes of all headers."""
MOST_HEADERS = 128

_ID = re.compile(rb"[A-Za-z0-9._:@+/=-]{1,128}")


def refusal(error: Refused, *, close: bool = False) -> JSONResponse:
    """A rejected request's response: a status and one sentence. `close` ends the connection, whose next bytes may not
    be a request."""
    headers = {} if error.retry_after is None else {"Retry-After": str(error.retry_after)}
    if error.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    if close:
        headers["Connection"] = "close"
    return JSONResponse({"error": str(error)}, error.status, headers=headers)


class Gateway:
    """The outermost middleware."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self.app, self.service = app, service
        self._hosts = LOOPBACK | {host.lower() for host in service.options.hosts}
        self._prefix, self._numbers = secrets.token_hex(6), itertools.count(1)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began = time.perf_counter()
        id, refused = self._examine(scope)
        REQUEST_ID.set(id)
        sent = _Sent(send, id)
        try:
            if refused is not None:
                await refusal(refused, close=True)(scope, receive, sent)
            else:
                await self.app(scope, receive, sent)
        finally:
            if self.service.access_log is not None:
                self.service.access_log.note(scope, id, sent.status, sent.size, time.perf_counter() - began)

    def _examine(self, scope: Scope) -> tuple[str, Refused | None]:
        """The request's ID, and why it is rejected, if it is."""
        host, hosts, length, coded, given, size = b"", 0, False, False, b"", 0
        for name, value in scope["headers"]:
            size += len(name) + len(value)
            if name == b"host":
                host, hosts = value, hosts + 1
            elif name == b"content-length":
                length = True
            elif name == b"transfer-encoding":
                coded = True
            elif name == b"x-request-id":
                given = value
        id = given.decode("ascii") if _ID.fullmatch(given) else f"{self._prefix}-{next(self._numbers):x}"
        if length and coded:  # two lengths: a proxy may believe the other one, and see another request in the body
            return id, Refused(400, "The request has both Content-Length and Transfer-Encoding. Send one of them.")
        if hosts > 1:
            return id, Refused(400, f"The request has {hosts} Host headers. Send one.")
        if size > LONGEST_HEAD or len(scope["headers"]) > MOST_HEADERS:
            most = f"{MOST_HEADERS} headers of {LONGEST_HEAD:,} bytes"
            return id, Refused(431, f"The request's headers are too large. Send at most {most} in total.")
        if len(scope["query_string"]) > LONGEST_ADDRESS or len(scope.get("raw_path") or b"") > LONGEST_ADDRESS:
            return id, Refused(
                414, f"The address is too long. Its path and query may have {LONGEST_ADDRESS:,} bytes each."
            )
        if self.service.access.is_open and not self._is_ours(host.decode("latin-1").lower()):
            return id, Refused(403, "Without tokens, this server answers local requests only. Call it by 127.0.0.1.")
        return id, None

    def _is_ours(self, host: str) -> bool:
        """Whether a host name is one of this server's: another may have been pointed here by another site."""
        name, _, port = host.rpartition(":")
        return (name if port.isdigit() else host) in self._hosts


class _Sent:
    """Sends a response with the request's ID, and remembers its status and size."""

    __slots__ = ("_header", "_send", "size", "status")

    def __init__(self, send: Send, id: str) -> None:
        self._send, self._header = send, (b"x-request-id", id.encode("ascii"))
        self.status, self.size = 0, 0

    async def __call__(self, message: Message) -> None:
        kind = message["type"]
        if kind == "http.response.body":
            self.size += len(message.get("body", b""))
        elif kind == "http.response.start":
            self.status = message["status"]
            message["headers"] = [*message.get("headers", ()), self._header]
        await self._send(message)


def only_health(app: ASGIApp) -> ASGIApp:
    """An application for connections beyond the limit: it answers health checks and rejects all else."""

    async def answer(scope: Any, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in HEALTH:
            await app(scope, receive, send)
            return
        full = Refused(503, "The server has as many connections as it allows. Try again later.", retry_after=1)
        await refusal(full, close=True)(scope, receive, send)

    return answer
