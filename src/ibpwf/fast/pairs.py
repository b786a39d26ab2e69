"""Products of some rows with some of many small matrices, without a call for each matrix."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ibpwf.inference.prediction import rows_by_value

AT_ONCE = 2**20  # numbers to copy, so that one call does for many matrices
LARGE = 2**14  # numbers of a matrix whose product takes longer than a call
FEW = 16  # matrices that are as well taken one by one


def products(
    matrices: Tensor, offsets: Tensor, points: Tensor, row: Tensor, group: Tensor, of: Callable[[Tensor], Tensor]
) -> Tensor:
    """`of` points[n] · matrices[g] + offsets[g] for every pair (n, g) in `row` and `group`; `of` makes one number of
    the last dimension. Matrices are G×r×k, offsets G×k.

    Of few pairs each takes a copy of its matrix. Of many, those of one matrix go together, and matrices that about as
    many rows ask for; large matrices one by one.
    """
    size = matrices[0].numel()
    if len(row) * size <= AT_ONCE:
        z = torch.baddbmm(offsets[group].unsqueeze(1), points[row].unsqueeze(1), matrices[group])
        return of(z.squeeze(1))
    out = torch.empty(len(row), dtype=points.dtype, device=points.device)
    counts = torch.bincount(group, minlength=len(matrices))
    if size > LARGE or int(counts.count_nonzero()) <= FEW:
        for one, at in rows_by_value(group):
            out[at] = of(torch.addmm(offsets[one], points[row[at]], matrices[one]))
        return out
    order = group.argsort(stable=True)
    first = counts.cumsum(0) - counts
    width, most = 1, int(counts.max())
    while width < 2 * most:
        alike = ((counts > width // 2) & (counts <= width)).nonzero().flatten()
        for some in torch.split(alike, max(1, AT_ONCE // (size + width * sum(matrices.shape[1:])))):
            place = torch.arange(width, device=row.device).expand(len(some), -1)
            there = place < counts[some].unsqueeze(1)
            at = order[first[some].unsqueeze(1) + place.where(there, 0)]
            z = torch.baddbmm(offsets[some].unsqueeze(1), points[row[at]], matrices[some])
            out[at[there]] = of(z)[there]
        width *= 2
    return out
