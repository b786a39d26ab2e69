"""Which Gaussians an input can belong to at all, found without looking at all of each.

The squared Mahalanobis distance is a sum of squares of whitened coordinates, ‖z‖². For any k orthonormal columns Q

    ‖Qᵀz‖² ≤ ‖z‖²

so a few coordinates of every group, one product for all groups together, bound every group's distance from below, and
the whole distance to the group that looks nearest bounds the best score from below. What may still come
within LOST nats of that gets its whole distance too. φ seldom fills its space: all this happens in the r directions
that the groups' φ takes. Everything is in float32, less (or plus) all that rounding and the other directions can do:
a group that is dropped has a probability below e^-LOST for certain, and who is left is scored in float64.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

LOST = 45.0  # e^-45 = 3e-20: a thousand groups together do not change the last digit of a float64 near 1
COORDINATES = 32
SWEEPS = 6  # of the power iteration that finds Q; any Q is right, a better one leaves fewer groups
FEW = 32  # rows of a group that share one batched product with other groups
ROUNDING = 2.0**-24
SAFE = 1e-4  # relative, for norms in float32 and factors found in float64


@dataclass(frozen=True)
class Screen:
    """G groups. `centre` (D) is taken from φ, `basis` (D×r) leads to the directions it takes; there `factor` (G×r×r)
    and `means` (G×r) whiten, `frames` (r×Gk) and `offsets` (Gk) give the k coordinates. The rest are bounds of what
    rounding can do, and `steepest`, the most that whitening stretches any direction."""

    centre: Tensor
    basis: Tensor
    factor: Tensor
    means: Tensor
    frames: Tensor
    offsets: Tensor
    constant: Tensor
    factor_size: Tensor
    means_size: Tensor
    steepest: float

    @classmethod
    def of(cls, means: Tensor, whiten: Tensor, constant: Tensor, pooled: Tensor, ridge: float) -> Screen | None:
        """From the groups' means, whitenings and constants in float64, and the mean of their covariances. None where
        a covariance is so large that its rounding errors are not small beside the ridge: there nothing is certain."""
        if not float(pooled.diagonal().amax()) * len(means) * len(pooled) * 2.0**-52 < 0.01 * ridge:
            return None
        centre = means.mean(0)
        apart = means - centre
        values, vectors = torch.linalg.eigh(pooled + apart.T @ apart / len(means))
        taken = values > 1e-11 * values[-1].clamp(min=1e-300)
        basis = vectors[:, taken]
        inside = basis.T @ whiten
        # An r×r factor of the same metric: L Lᵀ = (VᵀW)(VᵀW)ᵀ.
        factor, failed = torch.linalg.cholesky_ex(inside @ inside.transpose(1, 2))
        if bool(failed.any()):
            return None
        there = apart @ basis
        frame = factor @ _telling_directions(factor, there, values[taken])
        centres = (there.unsqueeze(1) @ factor).squeeze(1)
        offsets = there.unsqueeze(1) @ frame
        return cls(
            centre,
            basis.float(),
            factor.float(),
            centres.float(),
            frame.permute(1, 0, 2).reshape(basis.shape[1], -1).float(),
            offsets.flatten().float(),
            constant,
            factor.flatten(1).norm(dim=1),
            centres.norm(dim=1),
            1.01 * ridge**-0.5,
        )

    def survivors(self, phi: Tensor) -> Tensor:
        """N×G for φ in float64: which groups may have a probability above e^-LOST, at least one in every row."""
        centred = (phi - self.centre).float()
        inside = centred @ self.basis
        length = torch.linalg.vector_norm(centred, dim=1).double()
        outside = torch.linalg.vector_norm(torch.addmm(centred, inside, self.basis.T, alpha=-1), dim=1).double()
        each = (phi.shape[1] + 8) * ROUNDING
        off = self.steepest * (outside + 4 * each * length)  # what the directions left out can add
        rows, groups = len(phi), len(self.constant)
        error = torch.addmm(off.unsqueeze(1), each * length.unsqueeze(1), self.factor_size.unsqueeze(0))
        error += each * self.means_size
        found = torch.addmm(-self.offsets, inside, self.frames).view(rows, groups, len(self.offsets) // groups)
        near = torch.linalg.vector_norm(found, dim=2).double()
        known = torch.zeros(rows, groups, dtype=torch.bool, device=phi.device)
        least = torch.full((rows, 1), -torch.inf, dtype=torch.float64, device=phi.device)
        most = self._scores(near, error, -1)
        nearest = torch.zeros_like(known).scatter_(1, most.argmax(1, keepdim=True), True)
        for look in (nearest, None):
            if look is None:
                look = (most >= least) & ~known
            group, row = look.T.nonzero(as_tuple=True)
            near[row, group] = self._whole(inside, row, group)
            known |= look
            least = self._scores(near, error, 1).masked_fill_(~known, -torch.inf).amax(1, keepdim=True) - LOST
        return known & (self._scores(near, error, -1) >= least)

    def _scores(self, near: Tensor, error: Tensor, sign: int) -> Tensor:
        """The highest score that a distance allows which is at least `near` but for rounding (sign -1), the lowest
        for one that is at most that (sign 1). Numbers that float32 has no room for say nothing."""
        distance = torch.add(near * (1 + sign * SAFE), error, alpha=sign).clamp_(min=0)
        nothing = 0.0 if sign < 0 else torch.inf
        square = distance.square_().nan_to_num_(nan=nothing, posinf=nothing)
        return torch.add(self.constant, square, alpha=-0.5)

    def _whole(self, inside: Tensor, row: Tensor, group: Tensor) -> Tensor:
        """‖z‖ of pairs of rows and groups, ordered by group: groups of many rows one by one, all of few at once."""
        counts = torch.bincount(group, minlength=len(self.constant))
        start = counts.cumsum(0) - counts
        out = torch.empty(len(row), dtype=torch.float64, device=inside.device)
        many = counts > FEW
        for one in many.nonzero().flatten().tolist():
            at = slice(int(start[one]), int(start[one] + counts[one]))
            z = torch.addmm(-self.means[one], inside[row[at]], self.factor[one])
            out[at] = torch.linalg.vector_norm(z, dim=1).double()
        few = (~many[group]).nonzero().flatten()
        if len(few):
            line, column = group[few], few - start[group[few]]
            table = torch.zeros(len(counts), int(column.amax()) + 1, dtype=torch.long, device=row.device)
            table[line, column] = row[few]  # the rest of the table is row 0, for nothing
            z = torch.baddbmm(-self.means.unsqueeze(1), inside[table], self.factor)
            out[few] = torch.linalg.vector_norm(z[line, column], dim=1).double()
        return out


def rows_by_value(values: Tensor) -> list[tuple[int, Tensor]]:
    """Each value there is in `values`, from the least, and the rows that have it, in order."""
    ordered, rows = values.sort(stable=True)
    different, counts = torch.unique_consecutive(ordered, return_counts=True)
    return list(zip(different.tolist(), torch.split(rows, counts.tolist()), strict=True)) if len(rows) else []


def _telling_directions(factor: Tensor, apart: Tensor, spread: Tensor) -> Tensor:
    """For each group the k directions of its whitened space in which inputs of all groups lie farthest from its mean:
    the first eigenvectors of Lᵀ E[(φ−μ)(φ−μ)ᵀ] L, nearly. G×r×k."""
    groups, size = apart.shape
    start = torch.randn(size, min(COORDINATES, size), generator=torch.Generator().manual_seed(0), dtype=factor.dtype)
    frame: Tensor = torch.linalg.qr(start.to(factor.device)).Q.expand(groups, -1, -1)
    for _ in range(SWEEPS):
        there = factor @ frame
        moved = spread.unsqueeze(1) * there + apart.unsqueeze(2) * (apart.unsqueeze(1) @ there)
        frame = torch.linalg.qr(factor.transpose(1, 2) @ moved).Q
    return frame
