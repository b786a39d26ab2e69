"""A made-up data set of four small idx files, and places to get it from, some of them bad."""

from __future__ import annotations

import gzip
import struct
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from ibpwf.downloads.files import DataFile, Progress

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
            self.serve(f"{name}.gz", gzip.compress(content, mtime=0))
