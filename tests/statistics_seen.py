"""Watches what statistics of batch normalization are estimated from."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from torch import Tensor, nn

import ibpwf.method


def batches_of_statistics(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """The inputs, batch by batch, that statistics will have been estimated from."""
    seen: list[Tensor] = []
    estimate = ibpwf.method.estimate_statistics

    def watched(network: nn.Module, batches: Iterable[tuple[Tensor, Tensor]]) -> None:
        found = list(batches)
        seen.extend(x for x, _ in found)
        estimate(network, found)

    monkeypatch.setattr(ibpwf.method, "estimate_statistics", watched)
    return seen
