"""Which Gaussians an input can belong to at all, found without looking at all of each.

The squared Mahalanobis distance is a sum of squares of whitened coordinates, ‖z‖². For any k orthonormal columns Q

    ‖Qᵀz‖² ≤ ‖z‖²

so a few coordinates of every group, one product for all groups together, bound every group's distance from below, and
the whole distance to the group that looks nearest bounds the best score from below. What may still come within
NEGLIGIBLE_NATS nats of that is looked at in more coordinates, and what is left then gets its whole distance too. φ
seldom fills its space: all this happens in the r directions that the groups' φ takes. Everything is in float32, less
(or plus) all that rounding and the other directions can do: a group that is dropped has a probability below
e^-NEGLIGIBLE_NATS for certain, and who is left is scored in float64.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ibpwf.fast.pairs import products

NEGLIGIBLE_NATS = 45.0  # e^-45 = 3e-20: a thousand groups together do not change the last digit of a float64 near 1
COORDINATES = 32  # of every group, for every input
FURTHER_COORDINATES = 16  # beyond the first, of the groups that these do not rule out
SWEEPS = 6  # of the power iteration that finds Q; any Q is right, a better one leaves fewer groups
AT_ONCE = 2**20  # numbers of the first look, for as many inputs as that is enough for
ROUNDING = 2.0**-24
RELATIVE_ERROR = 1e-4  # relative, for norms in float32 and factors found in float64


@dataclass(frozen=True)
class Located:
    """Inputs in the directions that φ takes: `inside` (N×r, float32) is φ − centre there, `length` (N, float64) its
    norm. `doubt` (N×G or N×1) is how far off a group's distance can be for all that `inside` leaves out of φ:
    rounding, and what φ has in other directions."""

    inside: Tensor
    length: Tensor
    doubt: Tensor


@dataclass(frozen=True)
class Coordinates:
    """k whitened coordinates of each of G groups: z = inside · `matrix` + `offset`, for G×r×k and G×k numbers."""

    matrix: Tensor
    offset: Tensor

    def norms(self, inside: Tensor, row: Tensor, group: Tensor) -> Tensor:
        """‖z‖ of pairs of rows and groups."""
        norms: Tensor = products(self.matrix, self.offset, inside, row, group, _norm)
        return norms.double()


def _norm(z: Tensor) -> Tensor:
    norm: Tensor = torch.linalg.vector_norm(z, dim=-1)
    return norm


@dataclass(frozen=True)
class Screen:
    """G groups. `centre` (D) is taken from φ, `basis` (D×r) leads to the directions it takes. There `whole` has every
    coordinate of a group, `frames` (r×kG) and `offsets` (kG) the most telling one of every group, then the second of
    every group and so on to the k-th, and `more` those that come next. The rest are bounds of what rounding can do,
    and `steepest`, the most that whitening stretches any direction."""

    center: Tensor
    basis: Tensor
    whole: Coordinates
    frames: Tensor
    offsets: Tensor
    more: Coordinates
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
        center = means.mean(0)
        apart = means - center
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
        centers = (there.unsqueeze(1) @ factor).squeeze(1)
        offset = (there.unsqueeze(1) @ frame).squeeze(1)
        return cls(
            center,
            basis.float(),
            Coordinates(factor.float(), -centers.float()),
            frame[:, :, :COORDINATES].permute(1, 2, 0).reshape(basis.shape[1], -1).float(),
            -offset[:, :COORDINATES].T.flatten().float(),
            Coordinates(frame[:, :, COORDINATES:].float(), -offset[:, COORDINATES:].float()),
            constant,
            factor.flatten(1).norm(dim=1),
            centers.norm(dim=1),
            1.01 * ridge**-0.5,
        )

    def place(self, phi: Tensor) -> Located:
        """Where φ, given in float64, lies."""
        centered = (phi - self.center).float()
        inside = centered @ self.basis
        length = torch.linalg.vector_norm(centered, dim=1).double()
        outside = torch.linalg.vector_norm(torch.addmm(centered, inside, self.basis.T, alpha=-1), dim=1).double()
        stray = outside + 4 * (phi.shape[1] + 8) * ROUNDING * length
        return Located(inside, length, (self.steepest * stray).unsqueeze(1))

    def survivors(self, located: Located) -> Tensor:
        """N×G: which groups may have a probability above e^-NEGLIGIBLE_NATS, at least one in every row."""
        inside = located.inside
        each = (inside.shape[1] + 8) * ROUNDING
        error = torch.outer(each * located.length, self.factor_size).add_(each * self.means_size).add_(located.doubt)
        parts = torch.split(inside, max(1, AT_ONCE // len(self.offsets)))
        near = torch.cat([self._first_look(some) for some in parts])
        most = _scores(self.constant, near, error, -1)
        best = most.argmax(1)
        at = torch.arange(len(best), device=best.device)
        distance, doubt, constant = self.whole.norms(inside, at, best), error[at, best], self.constant[best]
        least = _scores(constant, distance, doubt, 1) - NEGLIGIBLE_NATS
        most[at, best] = -torch.inf  # nothing more to look for
        row, group = (most >= least.unsqueeze(1)).nonzero(as_tuple=True)
        left = torch.zeros(most.shape, dtype=torch.bool, device=most.device)
        if len(row):
            coarse = torch.hypot(near[row, group], self.more.norms(inside, row, group))
            bound = _scores(self.constant[group], coarse, error[row, group], -1)
            self._last_look(inside, error, least, left, row, group, bound)
        left[at, best] = _scores(constant, distance, doubt, -1) >= least
        return left

    def _last_look(
        self, inside: Tensor, error: Tensor, least: Tensor, left: Tensor, row: Tensor, group: Tensor, bound: Tensor
    ) -> None:
        """Enter into `left` which pairs have a score of at least `least`, which rises with what is found. The most
        promising group of a row comes first: where the nearest one at first sight was not the best, it rules out
        nearly all others."""
        highest = least.scatter_reduce(0, row, bound, "amax")[row]
        for turn in (bound >= highest, bound < highest):
            at = (turn & (bound >= least[row])).nonzero().flatten()
            if len(at):
                some, those = row[at], group[at]
                fine, doubt, constant = (
                    self.whole.norms(inside, some, those),
                    error[some, those],
                    self.constant[those],
                )
                least.scatter_reduce_(0, some, _scores(constant, fine, doubt, 1) - NEGLIGIBLE_NATS, "amax")
                left[some, those] = _scores(constant, fine, doubt, -1) >= least[some]

    def _first_look(self, inside: Tensor) -> Tensor:
        """‖z‖ of the first k coordinates of every row and group."""
        groups = len(self.constant)
        found = torch.addmm(self.offsets, inside, self.frames).view(len(inside), len(self.offsets) // groups, groups)
        return found.square_().sum(1).sqrt_().double()


def _scores(constant: Tensor, near: Tensor, error: Tensor, sign: int) -> Tensor:
    """The highest score that a distance allows which is at least `near` but for rounding (sign -1), the lowest for
    one that is at most that (sign 1). Numbers that float32 has no room for say nothing."""
    distance = torch.add(near * (1 + sign * RELATIVE_ERROR), error, alpha=sign).clamp_(min=0)
    nothing = 0.0 if sign < 0 else torch.inf
    square = distance.square_().nan_to_num_(nan=nothing, posinf=nothing)
    return torch.add(constant, square, alpha=-0.5)


def _telling_directions(factor: Tensor, apart: Tensor, spread: Tensor) -> Tensor:
    """For each group the k directions of its whitened space in which inputs of all groups lie farthest from its mean,
    the most telling first: the eigenvectors of Lᵀ E[(φ−μ)(φ−μ)ᵀ] L, nearly. G×r×k."""
    groups, size = apart.shape
    wanted = min(COORDINATES + FURTHER_COORDINATES, size)
    start = torch.randn(size, wanted, generator=torch.Generator().manual_seed(0), dtype=factor.dtype)
    frame: Tensor = torch.linalg.qr(start.to(factor.device)).Q.expand(groups, -1, -1)
    for _ in range(SWEEPS):
        there = factor @ frame
        moved = spread.unsqueeze(1) * there + apart.unsqueeze(2) * (apart.unsqueeze(1) @ there)
        frame = torch.linalg.qr(factor.transpose(1, 2) @ moved).Q
    return frame
