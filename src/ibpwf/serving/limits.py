"""Limits of a server. Each is a setting; a request beyond it is rejected before the work is done."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from ibpwf.errors import InputError, unknown


def _limit(default: float, description: str) -> Any:
    return field(default=default, metadata={"description": description})


@dataclass(frozen=True)
class Limits:
    """Limits of one request, and of all of them together."""

    body: int = _limit(64 << 20, "Bytes of a request, also once it is unpacked.")
    ratio: float = _limit(100.0, "Times its size that a compressed request may unpack to, beyond 1 MiB.")
    large: int = _limit(2, "Requests above 256 KiB that are read and answered at a time; others wait, then 429.")
    upload: int = _limit(1 << 30, "Bytes of a file to learn from.")
    unpacked: int = _limit(4 << 30, "Bytes that an archive of images may unpack to.")
    files: int = _limit(200_000, "Files in an archive of images.")
    rows: int = _limit(4096, "Rows of one request.")
    numbers: int = _limit(1 << 24, "Numbers of one tensor.")
    tensors: int = _limit(4096, "Tensors of one request.")
    pixels: int = _limit(1 << 24, "Pixels of one image.")
    waiting: int = _limit(8192, "Rows that wait to be answered, with twice `numbers` in all; beyond it, 429.")
    jobs: int = _limit(8, "Jobs of a model that wait, or whose file is being uploaded; beyond it, 429.")
    uploads: int = _limit(8, "Files being uploaded at a time, of all models; beyond it, 429.")
    stored: int = _limit(8 << 30, "Bytes on disk of files being uploaded or waiting for their job; beyond it, 429.")
    seconds: float = _limit(30.0, "Time to send a request, and to answer it.")
    upload_seconds: float = _limit(600.0, "Time to send a file to learn from.")
    rate: float = _limit(0.0, "Requests a second of one token, or address; 0: no limit.")
    connections: int = _limit(1024, "Connections at a time.")

    def __post_init__(self) -> None:
        for one in fields(self):
            value = getattr(self, one.name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not value >= 0:
                raise InputError(f"limit {one.name} is {value!r}; give a number from 0.")
            if value == 0 and one.name != "rate":
                raise InputError(f"limit {one.name} is 0, so nothing could be asked; give a larger number.")

    @classmethod
    def of(cls, assignments: list[str]) -> Limits:
        """Limits out of NAME=NUMBER."""
        known = {one.name: one for one in fields(cls)}
        chosen: dict[str, float] = {}
        for text in assignments:
            name, _, value = text.partition("=")
            if name not in known:
                raise unknown("limit", name, known)
            try:
                number = float(value) if isinstance(known[name].default, float) else int(value)
            except ValueError:
                raise InputError(f"limit {name} is '{value}'; give a number, such as {name}=100.") from None
            chosen[name] = number
        return cls(**chosen)  # type: ignore[arg-type]

    @classmethod
    def described(cls) -> dict[str, str]:
        return {one.name: one.metadata["description"] for one in fields(cls)}
