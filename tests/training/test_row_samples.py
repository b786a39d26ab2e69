"""Rows for quantiles are drawn from all over a table, the same ones in memory and on disk."""

from __future__ import annotations

import pytest
import torch

from ibpwf.inference.features import quantiles
from ibpwf.training.rows import TensorRows


def test_rows_in_memory_are_drawn_from_all_over_and_come_in_order() -> None:
    x = torch.arange(5_000.0).unsqueeze(1)
    drawn = list(TensorRows(x, torch.arange(5_000)).sample(40, torch.Generator().manual_seed(3)))
    rows = torch.cat([y for _, y in drawn])
    wanted = torch.randperm(5_000, generator=torch.Generator().manual_seed(3))[:40]
    assert rows.tolist() == sorted(wanted.tolist())
    assert torch.cat([part for part, _ in drawn]).flatten().tolist() == rows.tolist()
    everything = TensorRows(x, torch.arange(5_000)).sample(5_000, torch.Generator())
    assert torch.equal(torch.cat([y for _, y in everything]), torch.arange(5_000))


def test_quantile_features_look_at_as_many_rows_however_many_come_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x = torch.rand(300, 3, generator=torch.Generator().manual_seed(0))
    y = torch.arange(300) % 2
    monkeypatch.setattr(quantiles, "MOST_ROWS", 200)
    found = []
    for at_once in (300, 70):
        features = quantiles.QuantileFeatures(16)
        batches = zip(torch.split(x, at_once), torch.split(y, at_once), strict=True)
        features.fit(batches, 300, torch.Generator().manual_seed(1))
        found.append(features.encoding.state_dict())
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])
