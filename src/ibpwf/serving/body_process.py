"""The process that unpacks and parses large bodies: `python -m ibpwf.serving.body_process`, asked through its input.

It is given a body and gives back the same request in the protocol's binary form, in which tensors are bytes after a
short JSON text. It imports little, so that it starts quickly and has room.
"""

from __future__ import annotations

import contextlib
import json
import os
import struct
import sys
import zlib
from pathlib import Path
from typing import Any, BinaryIO

from ibpwf.data.opening import quoted
from ibpwf.serving.faults import Refused, bad, too_large
from ibpwf.serving.limits import Limits
from ibpwf.serving.protocol import Bytes, InferRequest, json_length, read_json, request_of
from ibpwf.serving.tensors import kind_of, to_bytes

LARGE = 256 << 10
"""Bytes from which a body is large. JSON of this size is parsed in a few milliseconds."""
RATIO_FROM = 1 << 20
"""Bytes up to which a body may unpack to any multiple of its size."""
FRAME = struct.Struct("<IQ")
"""Before what is sent to that process, and what comes back: the lengths of a JSON object and of bytes after it."""
READ_LIMITS = ("body", "ratio", "rows", "numbers", "tensors")
"""Limits that matter to that process."""
ROOM = 208 << 20
"""Bytes that the process may take beside what it has when it starts."""


def unpack(body: Bytes, coding: str, limits: Limits, most: int | None = None) -> bytes | None:
    """A body as it was before it was compressed. None if it has more than `most` bytes, where that is given."""
    if coding not in ("gzip", "deflate"):
        raise Refused(415, f"the body is coded as {quoted(coding)}; send it plain, or with gzip or deflate.")
    allowed = min(limits.body, max(RATIO_FROM, int(limits.ratio * len(body))))
    most = allowed if most is None else most
    unpacker = zlib.decompressobj(47 if coding == "gzip" else 15)
    try:
        found = unpacker.decompress(body, min(most, allowed) + 1)
    except zlib.error:
        raise bad(f"the body is said to be {coding}, and cannot be unpacked; send it whole.") from None
    if len(found) > allowed:
        limit = f"{limits.body:,} bytes" if allowed == limits.body else f"{limits.ratio:g} times its size"
        raise too_large(f"the body unpacks to more than {limit}, which is the limit; send less at once.")
    if len(found) > most:
        return None
    if not unpacker.eof:
        raise bad(f"the body is said to be {coding}, and is cut short; send it whole.")
    return found


def binary_form(body: bytearray, coding: str, header: str | None, limits: Limits) -> tuple[list[bytes], str | None]:
    """A body with its tensors as bytes, in parts, and the length of its JSON."""
    if coding:
        found = unpack(body, coding, limits)
        assert found is not None
        body.clear()
        body += found
        del found
    size = json_length(header, len(body))
    rest = memoryview(bytes(memoryview(body)[size:]))
    if size <= LARGE:
        return [bytes(memoryview(body)[:size]), rest], str(size)  # type: ignore[list-item]
    del body[size:]
    try:
        content = read_json(body)
        request = request_of(content, rest, limits)
    except RecursionError:
        raise bad("the request is nested too deeply; send what the protocol asks for.") from None
    parts = [to_bytes(values) for values in request.inputs.values()]
    head = json.dumps(_without_data(content, request, parts)).encode()
    if len(head) > LARGE:
        raise too_large(f"the request has {len(head):,} bytes beside its tensors; at most {LARGE:,} are taken.")
    return [head, *parts], str(len(head))


def _without_data(content: dict[str, Any], request: InferRequest, parts: list[bytes]) -> dict[str, Any]:
    inputs = [
        {
            "name": name,
            "datatype": kind_of(values),
            "shape": list(values.shape),
            "parameters": {"binary_data_size": len(part)},
        }
        for (name, values), part in zip(request.inputs.items(), parts, strict=True)
    ]
    return {**{name: content[name] for name in ("id", "parameters", "outputs") if name in content}, "inputs": inputs}


def _answer(ask: BinaryIO, reply: BinaryIO) -> bool:
    """Read one body; whether there was one."""
    frame = ask.read(FRAME.size)
    if len(frame) < FRAME.size:
        return False
    first, second = FRAME.unpack(frame)
    how, body, parts = json.loads(ask.read(first)), bytearray(second), list[bytes]()
    ask.readinto(body)  # type: ignore[attr-defined]
    told: dict[str, Any]
    try:
        parts, header = binary_form(body, how["coding"], how["header"], Limits(**how["limits"]))
        told = {"header": header}
    except Refused as error:
        told = {"status": error.status, "problem": str(error)}
    except MemoryError:
        told = {"status": 413, "problem": "the body takes too much memory to be read; send less at once."}
    head = json.dumps(told).encode()
    reply.write(FRAME.pack(len(head), sum(map(len, parts))) + head)
    for part in parts:
        reply.write(part)
    reply.flush()
    return True


def _limit_memory() -> None:
    """Let no body take more than it may, whatever was not thought of."""
    with contextlib.suppress(ImportError, OSError, ValueError):  # not on every system
        import resource

        pages = int(Path("/proc/self/statm").read_text().split()[0])
        most = pages * resource.getpagesize() + ROOM
        resource.setrlimit(resource.RLIMIT_AS, (most, most))


def main() -> None:
    with contextlib.suppress(AttributeError, OSError):
        os.nice(5)
    _limit_memory()
    sys.set_int_max_str_digits(640)  # the time to read a number grows with the square of its digits
    ask, reply = sys.stdin.buffer, sys.stdout.buffer
    with contextlib.suppress(BrokenPipeError, KeyboardInterrupt):
        while _answer(ask, reply):
            pass


if __name__ == "__main__":
    main()
