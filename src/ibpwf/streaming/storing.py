"""A stream as JSON in a model folder, and back. Arrays are compressed text: rows of the buffer, sums of the online
part."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from ibpwf.storage.records import Record, read_record
from ibpwf.streaming.buffer import Buffer
from ibpwf.streaming.detectors import make_detector
from ibpwf.streaming.online import OnlineRidge
from ibpwf.streaming.options import StreamOptions
from ibpwf.streaming.recent import Recent
from ibpwf.streaming.stream import GATHERING, WATCHING, Stream

MOST_BYTES = 1 << 32
Count = Annotated[int, Field(ge=0, lt=1 << 53)]
Size = Annotated[int, Field(ge=0, le=1 << 31)]
ARRAYS = ("mean", "squares", "products", "sums", "labels")


class StoredArray(Record):
    """An array as text: its bytes, compressed, in base 64."""

    dtype: Literal["<f4", "<f8", "<i8"]
    shape: Annotated[list[Size], Field(max_length=2)]
    zlib: str

    def array(self) -> NDArray[Any]:
        size = int(np.prod(self.shape, dtype=object)) * np.dtype(self.dtype).itemsize
        if size > MOST_BYTES:
            raise ValueError(f"an array of the stream has {size} bytes; at most {MOST_BYTES} are read")
        inflating = zlib.decompressobj()
        data = inflating.decompress(base64.b64decode(self.zlib), size + 1)
        if len(data) != size:
            raise ValueError(f"an array of the stream has {len(data)} bytes instead of {size}")
        found = np.frombuffer(data, dtype=self.dtype).reshape(self.shape).copy()
        if not np.isfinite(found).all():
            raise ValueError("an array of the stream holds what is no finite number")
        return found


class StoredStream(Record):
    """What is stored of a stream."""

    options: dict[str, Any]
    phase: Literal["gathering", "watching"]
    rows: Count
    right: Count
    tested: Count
    dropped: dict[str, Count]
    last_seen: list[Annotated[list[int], Field(min_length=2, max_length=2)]]
    entries: Count
    log: list[dict[str, Any]]
    seed: Count
    seen: Count
    online: dict[str, StoredArray]
    recent: dict[str, Any]
    detector: dict[str, Any]
    buffer: Annotated[list[StoredArray], Field(min_length=2, max_length=2)]


def _text(array: NDArray[Any]) -> dict[str, Any]:
    kind = "<i8" if array.dtype.kind == "i" else "<f4" if array.dtype == np.float32 else "<f8"
    data = np.ascontiguousarray(array, dtype=kind).tobytes()
    text = base64.b64encode(zlib.compress(data, 1)).decode("ascii")
    return {"dtype": kind, "shape": list(array.shape), "zlib": text}


def stream_to_json(stream: Stream) -> dict[str, Any]:
    x, y = stream.buffer.rows()
    return {
        "options": stream.options.model_dump(),
        "phase": stream.phase,
        "rows": stream.rows,
        "right": stream.right,
        "tested": stream.tested,
        "dropped": stream.dropped,
        "last_seen": [[label, row] for label, row in stream.last_seen.items()],
        "entries": stream.entries,
        "log": stream.log,
        "seed": stream.online.seed,
        "seen": stream.online.rows,
        "online": {name: _text(getattr(stream.online, name)) for name in ARRAYS},
        "recent": stream.recent.to_json(),
        "detector": stream.detector.state(),
        "buffer": [_text(x), _text(y)],
    }


def stream_from_json(value: Mapping[str, Any]) -> Stream:
    stored = read_record(StoredStream, value, "manifest.json content.face.stream")
    options = StreamOptions(**stored.options)
    arrays = {name: stored.online[name].array() for name in ARRAYS}
    stream = Stream(options, len(arrays["mean"]), stored.seed)
    fresh = stream.online
    for name in ("squares", "products", "labels"):
        if arrays[name].shape != getattr(fresh, name).shape:
            raise ValueError(f"'{name}' of the online part has shape {arrays[name].shape}")
    if arrays["sums"].ndim != 2 or len(arrays["sums"]) != len(fresh.sums):
        raise ValueError(f"'sums' of the online part has shape {arrays['sums'].shape}")
    stream.online = OnlineRidge(seed=stored.seed, forgetting=options.forgetting, rows=stored.seen, **arrays)
    stream.recent = Recent.from_json(stored.recent)
    stream.detector = make_detector(options.detector)
    stream.detector.load_state(stored.detector)
    x, y = (part.array() for part in stored.buffer)
    if len(x) != len(y) or len(y) > options.buffer or (len(y) and x.shape[1:] != (len(arrays["mean"]),)):
        raise ValueError(f"the buffer holds {x.shape} rows and {len(y)} labels")
    stream.buffer = Buffer(((x, y),), len(y)) if len(y) else Buffer()
    stream.phase = GATHERING if stored.phase == GATHERING else WATCHING
    stream.rows, stream.right, stream.tested = stored.rows, stored.right, stored.tested
    stream.dropped = dict(stored.dropped)
    stream.last_seen = {int(label): int(row) for label, row in stored.last_seen}
    stream.log, stream.entries = list(stored.log), stored.entries
    return stream
