"""Gradient episodic memory: a step may not raise the loss on the stored examples of any earlier task.

With g the gradient on the mini-batch and g_k that on the stored examples of task k (the rows of G), the step takes

    g̃ = argmin ½‖g − g̃‖²  subject to  ⟨g̃, g_k⟩ ≥ 0 for every k < t                            (their eq. 8)

in place of g. Where g keeps within 90° of every g_k that is g itself; elsewhere it is found from the dual problem,
which has one unknown per earlier task,

    min over v ≥ γ of  ½ vᵀGGᵀv + gᵀGᵀv,      g̃ = g + Gᵀv                                      (their eq. 11)

whose margin γ (the paper's coefficient 0.5) pulls towards the earlier tasks: for γ > 0, g̃ is the nearest to
g + γ Σ_k g_k instead, and the constraints hold as well.

Lopez-Paz and Ranzato (2017), 'Gradient Episodic Memory for Continual Learning', NeurIPS.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from scipy.optimize import nnls
from torch import Tensor

from ibpwf.methods.base import TaskData
from ibpwf.methods.dense import DenseSettings
from ibpwf.methods.rehearsal import MemoryMethod, MemorySettings
from ibpwf.settings import require

NO_LENGTH = 1e-10
"""A gradient shorter than this share of the longest is that of a task answered perfectly: nothing harms it."""


@dataclass(frozen=True)
class GEMSettings(MemorySettings):
    """`margin` is γ, how hard to pull towards the earlier tasks whenever a step would harm one."""

    margin: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.margin >= 0, "margin", self.margin, "it cannot be negative")


class GEM(MemoryMethod):
    name: ClassVar[str] = "gem"
    summary: ClassVar[str] = "turns each step so that it does not harm any earlier task's stored examples"
    settings_type: ClassVar[type[DenseSettings]] = GEMSettings
    decides_on_host: ClassVar[bool] = True  # whether and how far to turn

    def prepare(self, data: TaskData) -> None:
        super().prepare(data)
        self._stored = [] if self.examples is None else [self.examples.of(task) for task in range(data.index)]

    def after_backward(self) -> None:
        """The earlier tasks' gradients G, and what the dual problem is made of: GGᵀ with Gg beneath it."""
        self._moving = [p for p in self.net.parameters() if p.grad is not None]
        if not self._stored:
            return
        old = [flat(torch.autograd.grad(self.stored_loss(*part), self._moving)) for part in self._stored]
        self._old = torch.stack(old)
        self._gradient = flat([p.grad for p in self._moving if p.grad is not None])
        exact = torch.cat([self._old, self._gradient.unsqueeze(0)]).double()  # for gradients that are nearly parallel
        self._products = exact @ exact[:-1].T

    def on_host(self) -> None:
        """Put the projected gradient in the place of the mini-batch's."""
        assert isinstance(self.settings, GEMSettings)
        if not self._stored:
            return
        products = self._products.cpu()
        weights = turning_weights(products[:-1], products[-1], self.settings.margin)
        if weights is None:
            return
        turned = self._gradient + weights.to(self._gradient) @ self._old
        sizes = [p.numel() for p in self._moving]
        for parameter, part in zip(self._moving, torch.split(turned, sizes), strict=True):
            assert parameter.grad is not None
            parameter.grad.copy_(part.view_as(parameter.grad))


def flat(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat([tensor.flatten() for tensor in tensors])


def project(gradient: Tensor, old: Tensor, margin: float = 0.0) -> Tensor:
    """g̃ for a gradient g and the earlier tasks' gradients, the rows of `old`; g itself if it harms none of them."""
    exact = old.double()
    weights = turning_weights(exact @ exact.T, exact @ gradient.double(), margin)
    return gradient if weights is None else gradient + weights.to(gradient) @ old


def turning_weights(gram: Tensor, products: Tensor, margin: float) -> Tensor | None:
    """v of g̃ = g + Gᵀv, from GGᵀ and Gg; None where g harms no earlier task."""
    finite = bool(torch.isfinite(products).all() and torch.isfinite(gram).all())
    if not finite or not bool((products < 0).any()):  # the loop stops at a loss that is not a number
        return None
    return dual(gram, products, margin)


def dual(gram: Tensor, products: Tensor, margin: float) -> Tensor:
    """The v ≥ γ that minimises ½ vᵀ GGᵀ v + gᵀGᵀ v, from GGᵀ and Gg.

    With v = γ + u and any R with RᵀR = GGᵀ this is a non-negative least squares problem, min over u ≥ 0 of
    ‖Ru + R⁻ᵀ(Gg + γ GGᵀ1)‖². SciPy's `nnls` (Lawson and Hanson's active set method) solves it exactly in a finite
    number of steps and comes with scikit-learn, so no QP solver need be installed. Gradients are first brought to
    length 1, as those of two tasks may differ by many orders, and R is taken from eigenvalues, less those that come
    from rounding the gradients, as two may well be parallel."""
    exact = gram.double().cpu()
    aim = products.double().cpu() + margin * exact.sum(1)
    length = exact.diagonal().sqrt()
    v = torch.full_like(length, margin)
    real = length > NO_LENGTH * length.max()
    if not bool(real.any()):
        return v
    length = length[real]
    sizes, basis = torch.linalg.eigh(exact[real][:, real] / torch.outer(length, length))
    sound = sizes > len(sizes) * torch.finfo(torch.float32).eps
    root, basis = sizes[sound].sqrt(), basis[:, sound]
    u, _ = nnls((basis * root).T.numpy(), -((aim[real] / length @ basis) / root).numpy())
    v[real] += torch.from_numpy(u) / length
    return v
