"""A task's rows in a scratch file: learned in the same order, to the same bits, as the same rows in memory.

In memory are their labels and an epoch's order, some twenty bytes a row, and the rows of a few batches.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Generator, Tensor

from ibpwf.storage.scratch import ScratchFile
from ibpwf.training.rows import ROWS_AT_ONCE, IndexedRows, Rows


@dataclass(frozen=True, eq=False)
class ScratchExamples:
    """What `learn` may be given in the place of x and y: examples in a file, and their integer labels."""

    file: ScratchFile
    labels: Tensor

    @property
    def shape(self) -> tuple[int, ...]:
        return self.file.shape


class ScratchRows(IndexedRows):
    """`y` counts the task's classes from 0, in int32; `places` are the rows of the file that these are, None for all
    of them."""

    def __init__(
        self,
        file: ScratchFile,
        y: Tensor,
        device: torch.device,
        places: Tensor | None = None,
        weights: Tensor | None = None,
    ) -> None:
        self.file, self.y, self.device = file, y, device
        self.places, self.weights = places, weights

    def epoch(self, batch_size: int, shuffle: Generator) -> Iterator[tuple[Tensor, Tensor]]:
        for rows in self.order(batch_size, shuffle):
            yield self._some(rows)

    def in_order(self, batch_size: int = ROWS_AT_ONCE) -> Iterator[tuple[Tensor, Tensor]]:
        for start in range(0, len(self), batch_size):
            rows = slice(start, start + batch_size)
            if self.places is None:
                yield self._on_device(self.file[rows], self.y[rows])
            else:
                yield self._on_device(self.file[self.places[rows].numpy()], self.y[rows])

    def sample(self, most: int, draw: Generator) -> Iterator[tuple[Tensor, Tensor]]:
        if len(self) <= most:
            yield from self.in_order()
            return
        rows = torch.randperm(len(self), generator=draw)[:most].sort().values
        for some in torch.split(rows, ROWS_AT_ONCE):
            yield self._some(some)

    def identity(self) -> dict[str, Tensor]:
        digest = torch.from_numpy(np.frombuffer(bytearray(self.file.digest()), np.uint8))
        return {"digest": digest, "y": self.y} | ({} if self.weights is None else {"weights": self.weights})

    def tensors(self) -> tuple[Tensor, Tensor]:
        return self._some(torch.arange(len(self)))

    def with_weights(self, weights: Tensor) -> Rows:
        return ScratchRows(self.file, self.y, self.device, self.places, weights)

    def part(self, rows: Tensor) -> Rows:
        chosen = rows.nonzero().flatten()
        places = (chosen if self.places is None else self.places[chosen]).to(_narrowest(len(self.file)))
        weights = None if self.weights is None else self.weights[chosen]
        return ScratchRows(self.file, self.y[chosen], self.device, places, weights)

    def _some(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        places = rows if self.places is None else self.places[rows]
        return self._on_device(self.file[places.numpy()], self.y[rows])

    def _on_device(self, x: np.ndarray[tuple[int, ...], np.dtype[np.float32]], y: Tensor) -> tuple[Tensor, Tensor]:
        return torch.from_numpy(x).to(self.device), y.long().to(self.device)


def _narrowest(rows: int) -> torch.dtype:
    return torch.int32 if rows < 1 << 31 else torch.int64
