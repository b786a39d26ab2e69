"""Rows times some of many matrices: the same as one product for each pair."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ibpwf.fast import pairs


@settings(max_examples=60, deadline=None)
@given(
    groups=st.integers(1, 40),
    rows=st.integers(1, 30),
    share=st.floats(0, 1),
    skew=st.floats(0, 3),
    copied=st.sampled_from([0, 2**18]),
    padded=st.sampled_from([0, 4, 1_000]),
    at_once=st.sampled_from([1, 500, 2**22]),
    seed=st.integers(0, 1000),
)
def test_every_pair_gets_its_own_product(
    groups: int, rows: int, share: float, skew: float, copied: int, padded: int, at_once: int, seed: int
) -> None:
    g = torch.Generator().manual_seed(seed)
    matrices = torch.randn(groups, 5, 3, generator=g, dtype=torch.float64)
    offsets = torch.randn(groups, 3, generator=g, dtype=torch.float64)
    points = torch.randn(rows, 5, generator=g, dtype=torch.float64)
    asked = torch.rand(rows, groups, generator=g) < share * torch.linspace(0, 1, groups) ** skew
    row, group = asked.nonzero(as_tuple=True)
    mixed = torch.randperm(len(row), generator=g)
    row, group = row[mixed], group[mixed]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pairs, "COPIED", copied)
        patch.setattr(pairs, "PADDED", padded)
        patch.setattr(pairs, "AT_ONCE", at_once)
        found = pairs.products(matrices, offsets, points, row, group, lambda z: z.square().sum(-1))
    truth = [
        float(((points[n] @ matrices[m] + offsets[m]) ** 2).sum())
        for n, m in zip(row.tolist(), group.tolist(), strict=True)
    ]
    torch.testing.assert_close(found, torch.tensor(truth, dtype=torch.float64), rtol=1e-12, atol=1e-12)
