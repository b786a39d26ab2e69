"""The short-term buffer: the newest rows and their label numbers, never more than it may hold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Labels = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Buffer:
    """Rows in the order they came, in the pieces they came in. Nothing is changed in place."""

    pieces: tuple[tuple[NDArray[Any], Labels], ...] = ()
    count: int = 0

    def __len__(self) -> int:
        return self.count

    def added(self, x: NDArray[Any], y: Labels) -> Buffer:
        return Buffer((*self.pieces, (x, y)), self.count + len(y))

    def newest(self, rows: int) -> Buffer:
        """The last so many rows."""
        if self.count <= rows:
            return self
        pieces, spare = list(self.pieces), self.count - max(rows, 0)
        while pieces and spare >= len(pieces[0][1]):
            spare -= len(pieces.pop(0)[1])
        if spare and pieces:
            x, y = pieces[0]
            pieces[0] = x[spare:].copy(), y[spare:].copy()  # a view would keep the dropped rows in memory
        return Buffer(tuple(pieces), min(self.count, max(rows, 0)))

    def oldest(self, rows: int) -> Buffer:
        """The first so many rows."""
        x, y = self.rows()
        return Buffer(((x[:rows].copy(), y[:rows].copy()),), min(rows, self.count)) if rows > 0 else Buffer()

    def thinned(self) -> Buffer:
        """Every second row."""
        x, y = self.rows()
        return Buffer(((x[1::2].copy(), y[1::2].copy()),), len(y) // 2)

    def rows(self) -> tuple[NDArray[Any], Labels]:
        if not self.pieces:
            return np.zeros((0, 0)), np.zeros(0, dtype=np.int64)
        xs, ys = zip(*self.pieces, strict=True)
        return np.concatenate(xs), np.concatenate(ys)

    def classes(self) -> set[int]:
        found: set[int] = set()
        for _, y in self.pieces:
            found.update(y.tolist())
        return found
