"""The process that unpacks and parses large bodies: `python -m ibpwf.serving.body_process`, asked through its input.

It is given a body and gives back the same request in the protocol's binary form, in which tensors are bytes after a
short JSON text. It imports little, so that it starts quickly and has room. Of a table in a file it says whether the
table is small enough to be read by the server: a few kilobytes of Parquet may hold gigabytes of text.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import struct
import sys
import zlib
from pathlib import Path
from typing import Any, BinaryIO

from ibpwf.data.opening import quoted
from ibpwf.serving.faults import Refused, bad, too_large
from ibpwf.serving.limits import Limits
from ibpwf.serving.protocol import (
    Bytes,
    InferRequest,
    in_query,
    json_length,
    kind_of,
    read_json,
    request_of,
    to_bytes,
)

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
TABLE_ROOM = 96 << 20
"""The same once it reads tables, too, which takes more to begin with."""
ROWS_AT_ONCE = 16
"""Rows of a table that are read at a time: each may be large."""


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


def check_table(path: Path, ignored: list[str], limits: Limits) -> int:
    """Read a table once, without keeping it; the bytes to which it unpacks. One that has too many rows or bytes, or
    cannot be read, is rejected."""
    from ibpwf.data.options import ReadOptions
    from ibpwf.data.reading import table_in
    from ibpwf.errors import IBPWFError

    rows = size = 0
    try:
        table = table_in(path, ReadOptions(ignore=tuple(ignored), naming=in_query))
        assert table is not None
        wanted = [place for place, name in enumerate(table.names) if name not in ignored]
        for part in table.parts(wanted, ROWS_AT_ONCE):
            rows, size = rows + part.num_rows, size + part.nbytes
            if rows > limits.rows:
                raise too_large(
                    f"the file has more than {limits.rows:,} rows, which is the limit; send fewer at once."
                )
            if path.suffix == ".parquet" and size > limits.body:  # text is as large as it came
                raise too_large(
                    f"the file unpacks to more than {limits.body:,} bytes, which is the limit; send less."
                )
    except Refused:
        raise
    except IBPWFError as error:
        if isinstance(error.__cause__, MemoryError):
            raise MemoryError from None
        raise bad(str(error).replace(f"{path.parent}/", "")) from None
    return size if path.suffix == ".parquet" else 0


def _answer(ask: BinaryIO, reply: BinaryIO) -> bool:
    """Read one body; whether there was one."""
    frame = ask.read(FRAME.size)
    if len(frame) < FRAME.size:
        return False
    first, second = FRAME.unpack(frame)
    how = json.loads(ask.read(first))
    if "table" in how:
        _prepare_tables()
    body, parts = bytearray(second), list[bytes]()
    ask.readinto(body)  # type: ignore[attr-defined]
    told: dict[str, Any]
    try:
        if "table" in how:
            told = {"size": check_table(Path(how["table"]), how["ignored"], Limits(**how["limits"]))}
        else:
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


def _limit_memory(room: int | None) -> None:
    """Let no body take more than so many bytes beside what is there now, whatever was not thought of; None: any."""
    with contextlib.suppress(ImportError, OSError, ValueError):  # not on every system
        import resource

        pages = int(Path("/proc/self/statm").read_text().split()[0])
        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        most = hard if room is None else pages * resource.getpagesize() + room
        resource.setrlimit(resource.RLIMIT_AS, (most, hard))


def _prepare_tables() -> None:
    """Import what reads tables, when the first one comes: it takes memory of its own."""
    if "pyarrow" in sys.modules:
        return
    _limit_memory(None)
    import pyarrow.compute
    import pyarrow.csv
    import pyarrow.parquet  # noqa: F401

    _limit_memory(TABLE_ROOM)


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM):  # sent to the server's whole group: it answers what it has begun,
        signal.signal(number, signal.SIG_IGN)  # and the end of the input ends this process
    with contextlib.suppress(AttributeError, OSError):
        os.nice(5)
    _limit_memory(ROOM)
    sys.set_int_max_str_digits(640)  # the time to read a number grows with the square of its digits
    ask, reply = sys.stdin.buffer, sys.stdout.buffer
    with contextlib.suppress(BrokenPipeError):
        while _answer(ask, reply):
            pass


if __name__ == "__main__":
    main()
