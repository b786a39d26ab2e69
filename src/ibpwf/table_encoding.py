"""What a network does to a table's numbers before its first layer, on the scale of each task's own rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

MOST_ROWS = 100_000
"""Rows that quantiles are taken of."""
WIDEST = 6.0
"""Standard deviations beyond which a number counts as this far."""


FEW_NUMBERS = 8
"""A column of no more different numbers is one of kinds, or of yes and no."""
MOST_COLUMNS = 256
"""A table of more is no longer one whose single columns mean much by themselves."""


def columns_of_many(x: Tensor) -> tuple[int, ...]:
    """The columns of a table in which there are many different numbers; none, if it has too many columns."""
    if x.shape[1] > MOST_COLUMNS:
        return ()
    return tuple(column for column in range(x.shape[1]) if are_many(torch.unique(x[:, column]).tolist()))


def are_many(different: Sequence[float]) -> bool:
    """Whether a column of these different numbers holds many, or will: one that is always the same so far is a
    measurement unless that is a whole number, which may as well be a kind, or a no."""
    return len(different) > FEW_NUMBERS or (len(different) == 1 and different[0] % 1 != 0)


@runtime_checkable
class FittedToTask(Protocol):
    """A module that looks at a task's rows before the task is trained. What it keeps of them are buffers, so they
    belong to the task, as the statistics of batch normalization do."""

    def fit(self, batches: Iterable[Tensor]) -> None: ...


class TableEncoding(nn.Module):
    """N×D numbers, each column standardized; of those in `columns`, which hold many different numbers, also how far
    a number lies through each of the intervals between quantiles (piecewise linear encoding: Gorishniy et al., "On
    embeddings for numerical features in tabular deep learning", 2022):

        e_b(x) = (x − q_b) · 1/(q_{b+1} − q_b), no less than 0 and no more than 1

    so that a layer can bend at every quantile, which it would otherwise have to learn.
    """

    mean: Tensor
    scale: Tensor
    low: Tensor
    steepness: Tensor
    places: Tensor

    def __init__(self, inputs: int, columns: Sequence[int], bins: int) -> None:
        super().__init__()
        self.inputs, self.columns, self.bins = inputs, tuple(columns), bins
        self.register_buffer("mean", torch.zeros(inputs, dtype=torch.float32))
        self.register_buffer("scale", torch.ones(inputs, dtype=torch.float32))
        self.register_buffer(
            "low", torch.linspace(-2, 2, bins + 1, dtype=torch.float32)[:-1].expand(len(self.columns), -1).clone()
        )
        self.register_buffer("steepness", torch.full((len(self.columns), bins), bins / 4, dtype=torch.float32))
        self.register_buffer("places", torch.tensor(self.columns, dtype=torch.long), persistent=False)

    @property
    def outputs(self) -> int:
        return self.inputs + len(self.columns) * self.bins

    def extra_repr(self) -> str:
        return f"{self.inputs} columns, {len(self.columns)} of them in {self.bins} intervals"

    @torch.no_grad()
    def fit(self, batches: Iterable[Tensor]) -> None:
        parts, rows = [], 0
        for batch in batches:
            parts.append(batch.detach().cpu())
            rows += len(batch)
            if rows >= MOST_ROWS:
                break
        x = torch.cat(parts)[:MOST_ROWS].double()
        spread = x.std(0, correction=0)
        self.mean.copy_(x.mean(0))
        self.scale.copy_(torch.where(spread > 1e-6, spread, 1.0))
        if self.columns:
            ordered = x[:, self.places.cpu()].sort(0).values
            at = torch.linspace(0, len(ordered) - 1, self.bins + 1, dtype=torch.float32).round().long()
            edges = ordered[at].t()
            width = edges.diff(dim=1)
            self.low.copy_(edges[:, :-1])
            # Between equal quantiles there is nothing to be through: such an interval is always 0.
            self.steepness.copy_(torch.where(width > 1e-6, 1 / width.clamp(min=1e-6), 0.0))

    def forward(self, x: Tensor) -> Tensor:
        z = ((x - self.mean) / self.scale).clamp(-WIDEST, WIDEST)
        if not self.columns:
            return z
        through = (x.index_select(1, self.places).unsqueeze(2) - self.low) * self.steepness
        return torch.cat([z, through.clamp(0, 1).flatten(1)], 1)
