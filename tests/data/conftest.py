"""A made-up data set of four small idx files, so that fetching can be tested without a network."""

from __future__ import annotations

import gzip
import hashlib
import struct
import threading
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from ibpwf.data import catalog, sets
from ibpwf.data.catalog import Entry
from ibpwf.data.files import DataFile, Progress

NAME = "tiny"


def idx(shape: tuple[int, ...], values: bytes) -> bytes:
    """An idx file, written by hand from its definition."""
    return b"\0\0\x08" + bytes([len(shape)]) + struct.pack(f">{len(shape)}I", *shape) + values


CONTENT = {
    "train-images-idx3-ubyte": idx((20, 4, 4), bytes(i % 251 for i in range(320))),
    "train-labels-idx1-ubyte": idx((20,), bytes(i % 2 for i in range(20))),
    "t10k-images-idx3-ubyte": idx((6, 4, 4), bytes(i % 7 for i in range(96))),
    "t10k-labels-idx1-ubyte": idx((6,), bytes(i % 2 for i in range(6))),
}


@dataclass
class Shelf:
    """A source that hands out whatever it holds, and remembers being asked."""

    content: dict[str, bytes] = field(default_factory=lambda: dict(CONTENT))
    label: str = "the shelf"
    asked: int = 0
    before: Callable[[str, Path], None] | None = None

    def files(
        self, wanted: Collection[DataFile], scratch: Path, progress: Progress
    ) -> Iterator[tuple[DataFile, bytes]]:
        self.asked += 1
        for file in wanted:
            if self.before is not None:
                self.before(file.name, scratch)
            if file.name in self.content:
                yield file, self.content[file.name]


@pytest.fixture(autouse=True)
def own_memory() -> Iterator[None]:
    """No test sees what another has loaded from a folder of its own."""
    before = dict(sets._loaded)
    yield
    sets._loaded.clear()
    sets._loaded.update({key: data for key, data in before.items() if key[0] != NAME})


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache."""
    monkeypatch.setenv("IBPWF_DATA", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def tiny(root: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Entry]:
    """Makes `tiny` a known data set with the given sources."""

    def register(*sources: object) -> Entry:
        files = tuple(
            DataFile(name, hashlib.md5(content).hexdigest(), len(content)) for name, content in CONTENT.items()
        )
        made = Entry(NAME, "Tiny", (1, 4, 4), 20, 6, ("a", "b"), (0.5,), (0.25,), 255, files, sources)  # type: ignore[arg-type]
        monkeypatch.setitem(catalog.DATA_SETS, NAME, made)
        return made

    return register


@pytest.fixture
def left(root: Path) -> Callable[[], list[str]]:
    """Lists what lies in the cache of `tiny`, lock file aside."""

    def listing() -> list[str]:
        folder = root / NAME
        return sorted(path.name for path in folder.glob("*") if path.name != ".lock") if folder.exists() else []

    return listing


@dataclass
class Server:
    """A web server on this machine; `replies` maps paths to (status, announced length, body)."""

    url: str
    replies: dict[str, tuple[int, int, bytes]] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)

    def serve(self, name: str, body: bytes, *, status: int = 200, length: int | None = None) -> None:
        self.replies[f"/{name}"] = (status, len(body) if length is None else length, body)

    def serve_all(self) -> None:
        for name, content in CONTENT.items():
            self.serve(f"{name}.gz", gzip.compress(content))


@pytest.fixture
def server() -> Iterator[Server]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            running.requests.append(self.path)
            status, length, body = running.replies.get(self.path, (404, 0, b""))
            self.send_response(status)
            self.send_header("Content-Length", str(length))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: object) -> None:
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    running = Server(f"http://127.0.0.1:{http.server_port}")
    thread = threading.Thread(target=http.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    yield running
    http.shutdown()
    http.server_close()
