"""Fixtures: an empty cache, a small data set with sources of one's choice, a web server on this machine."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from tiny_set import CONTENT, NAME, Server

from ibpwf.downloads.files import DataFile
from ibpwf.lab.data import catalog, sets
from ibpwf.lab.data.catalog import Entry


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
