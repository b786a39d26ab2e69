"""Bodies of requests, bounded before they are read: in bytes, in what they unpack to, and in how many are large.

A small body is read where it came. A large one would hold up every other request: Python's JSON parser lets nothing
else run until it is done, and its objects may take 20 times the memory of the text. So a large body is unpacked and
parsed by a process of its own, which gives back the protocol's binary form, that is read without a copy. It has a
limit on its memory, and is killed when it takes too long.

A body that is a file goes to the disk as it comes, in large parts. That process and the reader get its path, so that
no copy of it lies in memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ibpwf.serving.body_process import FRAME, LARGE, READ_LIMITS, unpack
from ibpwf.serving.faults import Refused, busy, too_large
from ibpwf.serving.limits import Limits
from ibpwf.serving.protocol import Bytes, json_length
from ibpwf.serving.uploads import receive

IDLE_SECONDS = 60.0
"""After which the process that reads large bodies is ended."""
END_SECONDS = 5.0
"""Within which that process must have ended once it gives no more answers."""
FROM_OUTSIDE = (signal.SIGINT, signal.SIGTERM, getattr(signal, "SIGHUP", None), getattr(signal, "SIGKILL", None))
PART = 1 << 20
QUIET = {
    **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "ARROW_IO_THREADS", "MALLOC_ARENA_MAX"), "1"),
    "ARROW_DEFAULT_MEMORY_POOL": "system",
}
"""Variables that keep libraries from reserving memory that they do not use."""


@dataclass
class Body:
    """A body: `data` as it came, or a file alone in a folder of its own. `held` is how much of it counts among the
    large ones."""

    path: Path | None = None
    data: bytearray = field(default_factory=bytearray)  # of a file, what has not been written yet
    size: int = 0
    held: int = 0
    has_place: bool = False


class Bodies:
    """Receives the bodies of requests, and holds no more of large ones than one request may have."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._held = 0  # bytes of large bodies
        self._places = asyncio.Semaphore(limits.large)
        self._reader = BodyReader(limits)

    @contextlib.asynccontextmanager
    async def receive(self, request: Any, path: Path | None = None) -> AsyncIterator[Body]:
        """A body as it came, in a file if there is a path for one. If it is large, it has one of the places for those
        until it is done with."""
        body = Body(path)
        try:
            async for part in receive(request.stream(), self.limits.body, self.limits.seconds):
                body.data += part
                body.size += len(part)
                if body.size > LARGE:
                    if self._held - body.held + body.size > self.limits.body:
                        raise busy("other large requests are being received; send this one later.")
                    self._hold(body, body.size)
                if path is not None and len(body.data) >= LARGE:
                    await asyncio.to_thread(_append, path, body)
            if path is not None:
                _append(path, body)
            if body.held:
                await self.take_place(body)
            yield body
        finally:
            self._hold(body, 0)
            if body.has_place:
                self._places.release()

    @contextlib.asynccontextmanager
    async def receive_file(self, request: Any) -> AsyncIterator[Body]:
        """A body in a file, which is removed when it is done with."""
        with tempfile.TemporaryDirectory(prefix="ibpwf-") as folder:
            async with self.receive(request, Path(folder) / "data") as body:
                yield body

    def _hold(self, body: Body, size: int) -> None:
        self._held += size - body.held
        body.held = size

    async def take_place(self, body: Body) -> None:
        """Wait for one of the places for large bodies, if it has none."""
        if body.has_place:
            return
        try:
            async with asyncio.timeout(self.limits.seconds):
                await self._places.acquire()
        except TimeoutError:
            raise busy("other large requests are being answered; send this one later.") from None
        body.has_place = True

    async def readable(self, body: Body, coding: str, header: str | None) -> tuple[Bytes, str | None]:
        """A body that can be read at once: unpacked, and its JSON small. It is taken out of what was received."""
        if coding not in ("", "identity"):
            found = None if body.held else unpack(body.data, coding, self.limits, LARGE)
            if found is None:
                return await self._read_large(body, coding, header)
            return found, header
        if json_length(header, len(body.data)) > LARGE:
            return await self._read_large(body, "", header)
        data, body.data = body.data, bytearray()
        return data, header

    async def _read_large(self, body: Body, coding: str, header: str | None) -> tuple[Bytes, str | None]:
        await self.take_place(body)
        found = await self._reader.read(body.data, coding, header)
        self._hold(body, len(found[0]))  # which takes the place of what was received
        return found

    async def check_table(self, body: Body, ignored: Sequence[str]) -> None:
        """Reject a table that would take too much to be read; what it takes counts as a large body's bytes do."""
        await self.take_place(body)
        assert body.path is not None
        self.count(body, await self._reader.check_table(body.path, ignored))

    def count(self, body: Body, size: int) -> None:
        """Count what a body unpacks to, if that is more than the body, or reject it."""
        if self._held - body.held + size > self.limits.body:
            raise busy("other large requests are being answered; send this one later.")
        self._hold(body, max(body.held, size))

    async def close(self) -> None:
        await self._reader.end()


def _append(path: Path, body: Body) -> None:
    """Write to a file that is open only meanwhile: clients that are slow must not take up the descriptors."""
    with path.open("ab") as file:
        file.write(body.data)
    body.data = bytearray()


class BodyReader:
    """The process that unpacks and parses large bodies, one at a time. It is started when there is one."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._turn = asyncio.Lock()
        self._process: asyncio.subprocess.Process | None = None
        self._ending: asyncio.TimerHandle | None = None

    async def read(self, body: bytearray, coding: str, header: str | None) -> tuple[Bytes, str | None]:
        told, found = await self._ask({"coding": coding, "header": header}, body)
        return found, told["header"]

    async def check_table(self, path: Path, ignored: Sequence[str]) -> int:
        """The bytes to which a table unpacks, if those are not too many."""
        told, _ = await self._ask({"table": str(path), "ignored": list(ignored)}, bytearray())
        return int(told["size"])

    async def _ask(self, how: dict[str, Any], body: bytearray) -> tuple[dict[str, Any], bytearray]:
        limits = self.limits
        how = {**how, "limits": {name: getattr(limits, name) for name in READ_LIMITS}}
        async with self._turn:
            try:
                async with asyncio.timeout(limits.seconds):
                    told, found = await self._exchange(json.dumps(how).encode(), body)
            except TimeoutError:
                await self.end()
                raise busy(f"the body could not be read within {limits.seconds:g} s; send a smaller one.") from None
            except (asyncio.IncompleteReadError, ConnectionError):
                if await self._was_killed():
                    again = "the process that reads large bodies was ended; send the body again."
                    raise Refused(503, again, retry_after=1) from None
                raise too_large("the body takes too much memory to be read; send less at once.") from None
            except BaseException:
                await self.end()
                raise
            loop = asyncio.get_running_loop()
            self._ending = loop.call_later(IDLE_SECONDS, lambda: loop.create_task(self._end_idle()))
        if "status" in told:
            raise Refused(told["status"], told["problem"])
        return told, found

    async def _exchange(self, how: bytes, body: bytearray) -> tuple[dict[str, Any], bytearray]:
        process = await self._running()
        to, back = process.stdin, process.stdout
        assert to is not None
        assert back is not None
        to.write(FRAME.pack(len(how), len(body)) + how)
        view = memoryview(body)
        for start in range(0, len(body), PART):
            to.write(bytes(view[start : start + PART]))
            await to.drain()
        view.release()
        body.clear()  # it is in memory there
        first, second = FRAME.unpack(await back.readexactly(FRAME.size))
        told: dict[str, Any] = json.loads(await back.readexactly(first))
        found = bytearray()
        while len(found) < second:
            part = await back.read(min(PART, second - len(found)))
            if not part:
                raise asyncio.IncompleteReadError(b"", second)
            found += part
        return told, found

    async def _running(self) -> asyncio.subprocess.Process:
        if self._ending is not None:
            self._ending.cancel()
            self._ending = None
        if self._process is None or self._process.returncode is not None:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "ibpwf.serving.body_process"),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                env={**os.environ, **QUIET},
            )
        return self._process

    async def _was_killed(self) -> bool:
        """Whether the process, which has ended, was killed by a signal from outside, not by what it did."""
        process, code = self._process, None
        if process is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(END_SECONDS):
                    code = await process.wait()
        await self.end()
        return code is not None and -code in FROM_OUTSIDE

    async def _end_idle(self) -> None:
        if not self._turn.locked():
            async with self._turn:
                await self.end()

    async def end(self) -> None:
        """Kill the process, if there is one."""
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
