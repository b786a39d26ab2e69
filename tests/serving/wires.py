"""Requests sent byte by byte, for what an HTTP client would not send."""

from __future__ import annotations

import contextlib
import socket
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Received:
    """What came back on a connection."""

    data: bytes
    closed: bool

    @property
    def statuses(self) -> list[int]:
        """Of all responses, one after another."""
        found, rest = [], self.data
        while rest.startswith(b"HTTP/1.1 "):
            head, _, body = rest.partition(b"\r\n\r\n")
            found.append(int(head.split()[1]))
            lengths = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
            rest = body[int(lengths[0].split(b":")[1]) :] if lengths else b""
        return found


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), 30)


def exchange(port: int, data: bytes, seconds: float = 5.0, wrap: Any = None) -> Received:
    """Send bytes, and receive until the server closes the connection or is silent for some seconds."""
    with connect(port) as wire:
        talking = wrap(wire) if wrap else wire
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it may close before all is sent
            talking.sendall(data)
        return receive(talking, seconds)


def receive(wire: socket.socket, seconds: float = 5.0) -> Received:
    wire.settimeout(seconds)
    found = b""
    try:
        while part := wire.recv(65536):
            found += part
    except TimeoutError:
        return Received(found, closed=False)
    except ConnectionResetError:
        pass
    return Received(found, closed=True)
