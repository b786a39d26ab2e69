"""More connections than a server can have: health checks are answered, and the log stays short."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from certificates import write_certificate
from served import Server, wait_for
from starlette.responses import Response
from wires import connect, exchange, receive

from ibpwf.errors import InputError
from ibpwf.serving import connections
from ibpwf.serving.connections import CLOSING, FILES, HANDSHAKE_SECONDS, SPARE, Connections, affordable
from ibpwf.serving.limits import Limits
from ibpwf.serving.records import Metrics
from ibpwf.serving.server import Certificate

SLOW = b"POST /v2/models/things/infer HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1000\r\n\r\n{"
BUSY = SLOW.replace(b"\r\n\r\n{", b"\r\nExpect: 100-continue\r\n\r\n")
"""Is answered, so that the client sees, once the server has begun with it."""
ASKED = b"GET /v2/health/live HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"


@contextlib.contextmanager
def flood(port: int, count: int, sent: bytes = b"") -> Iterator[list[socket.socket]]:
    """So many connections, each of which has sent something and waits."""
    wires: list[socket.socket] = []
    try:
        for _ in range(count):
            wires.append(connect(port))
            if sent:
                with contextlib.suppress(OSError):
                    wires[-1].sendall(sent)
            if sent == BUSY:
                assert b" 100 " in wires[-1].recv(4096)
        yield wires
    finally:
        for one in wires:
            one.close()


def live(server: Server, **options: Any) -> tuple[int, float]:
    """The status of a health check on a connection of its own, and its time."""
    began = time.monotonic()
    with httpx.Client(timeout=60, **options) as client:
        status = client.get(f"{server.address}/v2/health/live").status_code
    return status, time.monotonic() - began


def is_answered(server: Server, path: str) -> bool:
    try:
        return httpx.get(server.address + path, timeout=60).status_code == 200
    except httpx.TransportError:
        return False


def still_open(wires: list[socket.socket]) -> int:
    count = 0
    for one in wires:
        one.setblocking(False)
        try:
            count += one.recv(1) != b""
        except BlockingIOError:
            count += 1
        except OSError:
            pass
    return count


def test_idle_connections_are_closed_for_new_ones(start):
    server: Server = start("--limit", "connections=40")
    with flood(server.port, 100) as wires:
        assert live(server)[0] == 200
        assert server.http.get("/v2/models/things").status_code == 200
        assert wait_for(lambda: still_open(wires) <= 40)
        assert still_open(wires[-30:]) == 30  # the oldest were closed
        counted = server.http.get("/metrics").text
    assert 'ibpwf_disconnected_total{reason="idle"}' in counted
    assert server.log.count("connections is reached") == 1


def test_a_connection_that_is_used_stays_open_when_idle_ones_are_closed(start):
    server: Server = start("--limit", "connections=20")
    with connect(server.port) as used:
        for _ in range(8):
            used.sendall(ASKED)
            assert used.recv(4096)
            with flood(server.port, 15) as wires:
                assert wait_for(lambda: live(server)[0] == 200)
                used.sendall(ASKED)
                assert wait_for(lambda: used.recv(4096).endswith(b"}"))
                assert still_open(wires) >= 15 - 2


def test_when_all_connections_are_busy_health_checks_alone_are_answered(start):
    server: Server = start("--limit", "connections=30")
    server.http.close()
    with flood(server.port, 30, BUSY) as busy:
        for _ in range(5):
            assert live(server)[0] == 200
        refused = exchange(server.port, b"GET /v2/models/things HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert refused.statuses == [503]
        assert refused.closed
        assert b"retry-after" in refused.data.lower()
        with flood(server.port, 60, SLOW):  # even those reserved are all taken
            assert still_open(busy) == 30
        assert wait_for(lambda: is_answered(server, "/v2/health/live"))
    assert wait_for(lambda: is_answered(server, "/v2/models/things"))
    assert server.log.count("connections is reached") <= 2
    assert "Traceback" not in server.log


def test_a_client_that_does_not_read_its_response_is_disconnected(models, monkeypatch):
    """In this process, so that it does not have to wait as long as a real client is given."""
    monkeypatch.setattr(connections, "STALL_SECONDS", 0.2)
    open_ones = Connections(Limits(), Metrics())

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await Response(b"a" * (64 << 20))(scope, receive, send)

    http = connections.protocol(open_ones)
    http.connection = connections.Connection(socket.socket())
    config = uvicorn.Config(app, port=0, http=http, log_level="error", lifespan="off")
    running = uvicorn.Server(config)
    thread = threading.Thread(target=lambda: asyncio.run(running.serve()), daemon=True)
    thread.start()
    assert wait_for(lambda: running.started)
    with connect(running.servers[0].sockets[0].getsockname()[1]) as wire:
        wire.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert wire.recv(10)
        assert wait_for(lambda: not running.server_state.connections)
        assert receive(wire).closed
    running.should_exit = True
    thread.join(120)
    assert not thread.is_alive()


# What is beside the body of a request


class FedProtocol:
    """A connection's protocol, given bytes in pieces of the test's choice."""

    class Transport(asyncio.Transport):
        def __init__(self) -> None:
            super().__init__()
            self.written, self.closing = b"", False

        def write(self, data: Any) -> None:
            self.written += data

        def close(self) -> None:
            self.closing = True

        def is_closing(self) -> bool:
            return self.closing

        def pause_reading(self) -> None:
            pass

        def resume_reading(self) -> None:
            pass

    def __init__(self) -> None:
        """To be made while an event loop runs."""
        pytest.importorskip("httptools")
        self.requests, self.transport = list[tuple[dict[str, Any], bytes]](), self.Transport()
        http = connections.protocol(Connections(Limits(), Metrics()))
        config = uvicorn.Config(self.app, http=http, interface="asgi3", lifespan="off")
        config.load()
        made: Any = config.http_protocol_class
        self.protocol = made(config=config, server_state=uvicorn.server.ServerState(), app_state={})
        self.protocol.connection = connections.Connection(socket.socket())
        self.protocol.connection_made(self.transport)

    async def app(self, scope: Any, receive: Any, send: Any) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        self.requests.append((scope, body))
        await Response(b"ok")(scope, receive, send)

    async def feed(self, *pieces: bytes) -> None:
        for piece in pieces:
            if not self.transport.closing:
                self.protocol.data_received(piece)
            await asyncio.sleep(0)
        for _ in range(20):  # the answers
            await asyncio.sleep(0)


def feed(*pieces: bytes) -> FedProtocol:
    async def fed() -> FedProtocol:
        found = FedProtocol()
        await found.feed(*pieces)
        return found

    return asyncio.run(fed())


CHUNKED = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n"


@pytest.mark.parametrize("trailers", [[b"a: b\r\n" * 1000] * 1000, [b"a: ", *[b"b" * 6000] * 1000]])
def test_trailers_are_limited(trailers):
    found = feed(CHUNKED, *trailers)
    assert b" 400 " in found.transport.written
    assert found.requests == []


def test_trailers_do_not_change_the_headers_that_were_checked():
    found = feed(CHUNKED, b"Authorization: mine\r\n\r\n")
    [(scope, body)] = found.requests
    assert body == b"{}"
    assert sorted(name for name, _ in scope["headers"]) == [b"host", b"transfer-encoding"]


def test_a_server_closes_a_connection_that_sends_trailers_without_end(server: Server):
    with connect(server.port) as wire:
        wire.sendall(CHUNKED.replace(b"POST /", b"POST /v2/models/things/infer").replace(b": a", b": 127.0.0.1"))
        with contextlib.suppress(ConnectionError):
            for _ in range(1000):
                wire.sendall(b"a: b\r\n" * 2000)
            wire.sendall(b"\r\n")
        assert receive(wire, 60).statuses in ([], [400])  # none where it is closed before all is sent


def test_a_body_does_not_count_as_part_of_the_next_head():
    body = b"{" + b" " * 100_000 + b"}"
    first = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % len(body)
    found = feed(first, body + b"GET / HTTP/1.1\r\nHo", b"st: a\r\n\r\n")
    assert [len(body) for _, body in found.requests] == [len(body), 0]
    assert not found.transport.closing


def test_a_head_that_never_ends_is_limited():
    found = feed(b"GET / HTTP/1.1\r\n", *[b"a: b\r\n" * 1000] * 20)
    assert found.transport.closing
    assert b" 400 " in found.transport.written


@pytest.mark.parametrize(
    ("soft", "hard", "wanted", "found"),
    [
        (256, 20_000, 1024, 1024),
        (256, resource.RLIM_INFINITY, 5000, 5000),
        (1024, 1024, 1024, 1024 - SPARE - CLOSING - FILES),
        (20_000, 20_000, 1024, 1024),
        (resource.RLIM_INFINITY, resource.RLIM_INFINITY, 1024, 1024),
        (64, 64, 1024, None),
    ],
)
def test_fewer_connections_are_accepted_than_there_are_descriptors(monkeypatch, soft, hard, wanted, found):
    now = [soft, hard]
    monkeypatch.setattr(resource, "getrlimit", lambda kind: tuple(now))
    monkeypatch.setattr(resource, "setrlimit", lambda kind, both: now.__setitem__(slice(None), both))
    if found is None:
        with pytest.raises(InputError, match="64"):
            affordable(wanted)
        return
    assert affordable(wanted) == found
    assert now[1] == hard
    assert now[0] == resource.RLIM_INFINITY or now[0] >= found + SPARE + CLOSING + FILES


@pytest.mark.parametrize("sent", [3, 300_000])
def test_slow_files_do_not_take_up_the_descriptors(start, sent: int):
    server: Server = start(descriptors=400)
    slow = SLOW.replace(b"/infer", b"/predict").replace(b"1000", b"400000") + b"f" * sent
    with flood(server.port, 400 - SPARE - CLOSING - FILES - 10, slow):
        for path in ("/v2/health/live", "/v2/models/things/tasks"):
            assert is_answered(server, path)
        assert len(os.listdir(f"/proc/{server.pid}/fd")) < 400 - CLOSING
        file = (server.models.parent / "test.csv").read_bytes()
        assert server.http.post("/v2/models/things/predict?ignore=kind", content=file).status_code == 200
    assert "Traceback" not in server.log


def descriptors_for(count: int) -> None:
    """Let this process open as many connections as a test needs."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = count + 500
    if soft < needed:
        if hard != resource.RLIM_INFINITY and hard < needed:
            pytest.skip(f"the tests need {needed} descriptors")
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


# A server with a certificate: the handshake comes before the request


def test_idle_connections_without_a_handshake_do_not_keep_health_checks_out(models, tmp_path):
    certificate, key = write_certificate(tmp_path)
    trusting = ssl.create_default_context(cafile=str(certificate))
    words = ("--certificate", str(certificate), "--key", str(key), "--limit", "connections=30")
    server = Server(models, *words, verify=trusting)
    try:
        with flood(server.port, 100), flood(server.port, 10, b"\x16\x03\x01"):
            status, seconds = live(server, verify=trusting)
            assert status == 200
            assert seconds < HANDSHAKE_SECONDS  # it has not waited for the others
        assert server.http.get("/v2/models/things").status_code == 200
        assert server.log.count("connections is reached") == 1
        told = server.stop()
        assert "Traceback" not in told, told
    finally:
        server.kill()


def test_a_new_certificate_is_used_by_new_connections_and_half_of_one_by_none(models, tmp_path):
    certificate, key = write_certificate(tmp_path)
    (tmp_path / "next").mkdir()
    following = write_certificate(tmp_path / "next")
    words = ("--certificate", str(certificate), "--key", str(key))
    server = Server(models, *words, verify=ssl.create_default_context(cafile=str(certificate)))
    try:
        before = served_certificate(server.port)
        assert server.http.get("/v2").status_code == 200
        certificate.write_bytes(following[0].read_bytes())  # without its key so far
        assert wait_for(lambda: "certificate cannot be used" in server.log)
        assert served_certificate(server.port) == before
        key.write_bytes(following[1].read_bytes())
        assert wait_for(lambda: served_certificate(server.port) != before)
        assert served_certificate(server.port) == ssl.PEM_cert_to_DER_cert(following[0].read_text())
        assert server.http.get("/v2").status_code == 200  # on the connection that it has
        certificate.write_text("no certificate")
        assert wait_for(lambda: server.log.count("certificate cannot be used") == 2)
        trusting = ssl.create_default_context(cafile=str(following[0]))
        assert live(server, verify=trusting)[0] == 200
        time.sleep(2.5)  # the file is looked at every second, and its fault told once
        assert server.log.count("certificate cannot be used") == 2
    finally:
        server.kill()


def test_a_new_certificate_waits_for_no_thread(tmp_path):
    certificate = Certificate(*write_certificate(tmp_path))
    before, held = certificate.context, threading.Event()
    write_certificate(tmp_path)

    async def look() -> None:
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(1))
        waiting = loop.run_in_executor(None, held.wait)
        try:
            await asyncio.wait_for(certificate.look(), 10)
        finally:
            held.set()
            await waiting

    asyncio.run(look())
    assert certificate.context is not before


def served_certificate(port: int) -> bytes:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with connect(port) as wire, context.wrap_socket(wire) as secure:
        found = secure.getpeercert(binary_form=True)
        assert found
        return found


# With as few descriptors as many systems give


@pytest.mark.faults
@pytest.mark.parametrize("kind", ["idle", "half a head", "slow bodies", "idle, with a certificate"])
def test_a_server_of_1024_descriptors_is_live_under_1200_connections(models: Path, tmp_path: Path, kind: str, tally):
    descriptors_for(3 * 1200)
    sent = {"half a head": b"GET /v2 HT", "slow bodies": SLOW}.get(kind, b"")
    words, verify = ("--limit", "seconds=60"), None
    if kind.endswith("certificate"):
        certificate, key = write_certificate(tmp_path)
        verify = ssl.create_default_context(cafile=str(certificate))
        words += ("--certificate", str(certificate), "--key", str(key))
    server = Server(models, *words, descriptors=1024, verify=verify)
    found = {"health checks failed": 0, "slower than 1 s": 0}
    tried, rounds = 0, 3
    try:
        server.http.close()
        with contextlib.ExitStack() as floods:
            for _ in range(rounds):
                floods.enter_context(flood(server.port, 1200, sent))
                for _ in range(50):
                    tried += 1
                    try:
                        status, seconds = live(server, **({"verify": verify} if verify else {}))
                    except httpx.TransportError:
                        status, seconds = 0, 0.0
                    found["health checks failed"] += status != 200
                    found["slower than 1 s"] += seconds > 1
        found["log lines beyond 20"] = max(0, len(server.log.splitlines()) - 20)
        assert wait_for(lambda: live(server, **({"verify": verify} if verify else {}))[0] == 200)
    finally:
        server.kill()
    tally(f"health checks under 1,200 connections at 1,024 descriptors, {kind}", tried, **found)
