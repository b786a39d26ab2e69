"""Uploads hold a place from their first byte on: no more at a time than there may be, and nothing left of those that
fail."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from served import Server, files_under, task_table, wait_for
from wires import Received, connect

from ibpwf import ContinualClassifier


class Upload:
    """A file that is sent part by part."""

    def __init__(self, server: Server, task: str, data: bytes, *, chunked: bool = False, query: str = "") -> None:
        self.wire: socket.socket = connect(server.port)
        self.data, self.chunked = data, chunked
        framing = "Transfer-Encoding: chunked" if chunked else f"Content-Length: {len(data)}"
        head = f"POST /v2/models/things/tasks?task={task}{query} HTTP/1.1\r\nHost: 127.0.0.1\r\n{framing}\r\n\r\n"
        self.wire.sendall(head.encode())
        self.send(1)

    def send(self, count: int) -> None:
        part, self.data = self.data[:count], self.data[count:]
        with contextlib.suppress(OSError):
            self.wire.sendall(b"%x\r\n%s\r\n" % (len(part), part) if self.chunked else part)

    def finish(self) -> Received:
        if self.data:
            self.send(len(self.data))
        with contextlib.suppress(OSError):
            self.wire.sendall(b"0\r\n\r\n" if self.chunked else b"")
        return self.answer()

    def answer(self, seconds: float = 120.0) -> Received:
        """What the server says, as soon as it has said it."""
        self.wire.settimeout(seconds)
        found = b""
        while not (b"\r\n\r\n" in found and found.endswith(b"}")):
            part = self.wire.recv(65536)
            if not part:
                break
            found += part
        return Received(found, closed=False)

    def has_answer(self) -> bool:
        self.wire.setblocking(False)
        try:
            return bool(self.wire.recv(1, socket.MSG_PEEK))
        except BlockingIOError:
            return False
        except OSError:
            return True
        finally:
            self.wire.setblocking(True)

    def close(self) -> None:
        self.wire.close()


def left(model: Path) -> list[Path]:
    """What uploads have on disk that are no jobs."""
    return list((model / ".serving" / "jobs").glob("*.new"))


@contextlib.contextmanager
def closing(uploads: list[Upload]) -> Iterator[list[Upload]]:
    try:
        yield uploads
    finally:
        for one in uploads:
            one.close()


def test_uploads_that_arrive_together_share_the_places_that_there_are(start, models):
    server: Server = start("--limit", "jobs=3")
    data = task_table(models.parent, 3).read_bytes()
    with closing([Upload(server, f"task-{n}", data) for n in range(12)]) as uploads:
        assert wait_for(lambda: sum(one.has_answer() for one in uploads) == 9)  # before they have sent their file
        rejected = [one for one in uploads if one.has_answer()]
        assert {status for one in rejected for status in one.answer().statuses} == {429}
        accepted = [one.finish() for one in uploads if one not in rejected]
    assert [one.statuses for one in accepted] == [[202]] * 3
    assert left(models / "things") == []


def test_a_client_that_will_not_wait_is_rejected_while_another_uploads(start, models):
    server: Server = start()
    data = task_table(models.parent, 3).read_bytes()
    with closing([Upload(server, "first", data)]):
        assert wait_for(lambda: len(left(models / "things")) == 1)
        with closing([Upload(server, "second", data, query="&queue=false")]) as second:
            assert second[0].answer().statuses == [409]


def test_a_place_is_free_again_when_its_client_is_gone(start, models):
    server: Server = start("--limit", "jobs=2")
    data = task_table(models.parent, 3).read_bytes()
    with closing([Upload(server, f"gone-{n}", data) for n in range(2)]):
        assert wait_for(lambda: len(left(models / "things")) == 2)
        assert server.learn(task_table(models.parent, 3), "colors").status_code == 429
    assert wait_for(lambda: left(models / "things") == [])
    assert server.learn(task_table(models.parent, 3), "colors").status_code == 202


def test_a_place_is_free_again_when_its_upload_stops(start, models):
    server: Server = start("--limit", "jobs=2", "--limit", "seconds=1")
    data = task_table(models.parent, 3).read_bytes()
    with closing([Upload(server, f"stops-{n}", data) for n in range(2)]) as stopped:
        assert [one.answer().statuses for one in stopped] == [[408], [408]]  # no byte for a second
    assert wait_for(lambda: left(models / "things") == [])
    assert server.learn(task_table(models.parent, 3), "colors").status_code == 202


def test_files_of_all_uploads_together_have_a_limit_in_number_and_bytes(start, models):
    server: Server = start("--limit", "uploads=2", "--limit", "stored=100000", "--limit", "jobs=100")
    data = task_table(models.parent, 3).read_bytes()
    with closing([Upload(server, f"task-{n}", data) for n in range(2)]):
        assert wait_for(lambda: len(left(models / "things")) == 2)
        third = server.learn(task_table(models.parent, 3), "third")
        assert third.status_code == 429
        assert third.headers["retry-after"]
    assert wait_for(lambda: left(models / "things") == [])
    with closing([Upload(server, "announced", b"a" * 100_001)]) as large:
        assert large[0].answer().statuses == [429]  # by what it says it will send
    with closing([Upload(server, "chunked", b"a" * 100_001, chunked=True)]) as large:
        assert large[0].finish().statuses == [429]
    assert wait_for(lambda: left(models / "things") == [])
    assert server.learn(task_table(models.parent, 3), "colors").status_code == 202


@pytest.mark.faults
def test_hundreds_of_uploads_never_exceed_their_limits(start, models, tally):
    seed = int.from_bytes(os.urandom(4))
    chance = random.Random(seed)
    limit = 4
    words = ("--limit", f"jobs={limit}", "--limit", "uploads=6", "--limit", "stored=3000000", "--limit", "seconds=2")
    server: Server = start(*words)
    data = b"nothing that can be learned\n" * 20_000
    found = {"more places than there are": 0, "more bytes than there may be": 0, "server faults": 0, "left over": 0}
    tried = 0
    for _ in range(12):
        uploads = [
            Upload(server, f"t{chance.randrange(10**6)}", data, chunked=chance.random() < 0.5) for _ in range(30)
        ]
        tried += len(uploads)
        with closing(uploads):
            for _ in range(60):
                one = chance.choice(uploads)
                match chance.randrange(4):
                    case 0 | 1:
                        one.send(chance.randrange(1, 60_000))
                    case 2:
                        one.close() if chance.random() < 0.1 else one.send(1)
                    case _:
                        folder = models / "things" / ".serving" / "jobs"
                        found["more places than there are"] += len(list(folder.glob("*.new"))) > limit
                        stored = sum(size_of(path) for path in files_under(folder) if path.name.startswith("data"))
                        found["more bytes than there may be"] += stored > 3_000_000
            for one in uploads:
                with contextlib.suppress(OSError):
                    statuses = one.finish().statuses if chance.random() < 0.5 else []
                    found["server faults"] += any(status >= 500 for status in statuses)
    found["left over"] += not wait_for(lambda: left(models / "things") == [])
    wait_for(lambda: all(one["state"] in ("failed", "done") for one in server.http.get("/v2/jobs").json()), 60)
    assert ContinualClassifier.load(models / "things").tasks_ == ["fruit", "trees", "pets"]
    found["server faults"] += "Traceback" in server.log
    tally("uploads begun, stopped and broken off", tried, seed=seed, **found)


def size_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def test_a_slow_disk_is_not_taken_for_a_slow_client(models, monkeypatch):
    """The time that a part takes to be written is not the client's."""
    import asyncio

    from ibpwf.serving import uploads
    from ibpwf.serving.limits import Limits

    async def parts() -> Iterator[bytes]:
        for _ in range(3):
            yield b"a"

    def slowly(work: object, *args: object) -> object:
        async def wait() -> None:
            await asyncio.sleep(0.15)
            work(*args)  # type: ignore[operator]

        return wait()

    monkeypatch.setattr(asyncio, "to_thread", slowly)
    began = time.monotonic()
    limits = Limits(seconds=0.1, upload_seconds=0.5)
    path = models / "file"
    assert asyncio.run(uploads.receive_file(parts(), path, limits)) == 3  # type: ignore[arg-type]
    assert time.monotonic() - began > 0.4
