"""Products of some rows with some of many small matrices, without a call for each matrix."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

COPIED = 2**18  # numbers of matrices that are as soon copied, one for each pair, as pairs are sorted
PADDED = 4  # times the pairs' own rows that one call for many matrices may take
AT_ONCE = 2**22  # numbers of rows and results in one such call


def products(
    matrices: Tensor, offsets: Tensor, points: Tensor, row: Tensor, group: Tensor, of: Callable[[Tensor], Tensor]
) -> Tensor:
    """`of` points[n] · matrices[g] + offsets[g] for every pair (n, g) in `row` and `group`; `of` makes one number of
    the last dimension. Matrices are G×r×k, offsets G×k.

    Of few pairs each takes a copy of its matrix. Of many, those of one matrix go together: all matrices in one call
    where about as many rows ask for each, and one by one otherwise.
    """
    if len(row) * matrices[0].numel() <= COPIED:
        z = torch.baddbmm(offsets[group].unsqueeze(1), points[row].unsqueeze(1), matrices[group])
        return of(z.squeeze(1))
    order = group.argsort(stable=True)
    row, group, counts = row[order], group[order], torch.bincount(group, minlength=len(matrices))
    last = counts.cumsum(0)
    width, found = int(counts.max()), torch.empty(len(row), dtype=points.dtype, device=points.device)
    if len(matrices) * width <= PADDED * len(row):
        place = torch.arange(len(row), device=row.device) - (last - counts)[group]
        step = max(1, AT_ONCE // (width * sum(matrices.shape[1:])))
        for low in range(0, len(matrices), step):
            some = slice(int(last[low - 1]) if low else 0, int(last[low : low + step][-1]))
            at = group[some] - low, place[some]
            padded = points.new_zeros(len(counts[low : low + step]), width, points.shape[1])
            padded[at] = points[row[some]]
            z = torch.baddbmm(offsets[low : low + step].unsqueeze(1), padded, matrices[low : low + step])
            found[some] = of(z[at])
    else:
        start = 0
        for one, end in enumerate(last.tolist()):
            if end > start:
                found[start:end] = of(torch.addmm(offsets[one], points[row[start:end]], matrices[one]))
            start = end
    out = torch.empty_like(found)
    out[order] = found
    return out
