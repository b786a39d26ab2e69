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

from typing import ClassVar

import torch
from pydantic import Field
from scipy.optimize import nnls
from torch import Tensor

from ibpwf.lab.methods.dense import DenseSettings
from ibpwf.lab.methods.example_gradients import gradients_and_inputs, only_linear
from ibpwf.lab.methods.rehearsal import MemoryMethod, MemorySettings
from ibpwf.parts import NotNegative
from ibpwf.training.method import TaskData

PIECE = 1024
"""Numbers of a gradient that are multiplied at a time."""

NO_LENGTH = 1e-10
"""A gradient shorter than this share of the longest is that of a task answered perfectly: nothing harms it."""


class GEMSettings(MemorySettings):
    margin: NotNegative = Field(
        0.5, description="γ, how hard to pull towards the earlier tasks whenever a step would harm one"
    )


class GEM(MemoryMethod):
    name: ClassVar[str] = "gem"
    summary: ClassVar[str] = "turns each step so that it does not harm any earlier task's stored examples"
    settings_type: ClassVar[type[DenseSettings]] = GEMSettings
    settings: GEMSettings
    decides_on_host = True  # whether and how far to turn

    def prepare(self, data: TaskData) -> None:
        super().prepare(data)
        self._stored = [] if self.examples is None else [self.examples.of(task) for task in range(data.index)]
        self._moving = dict(self.net.named_parameters())
        count = sum(p.numel() for p in self._moving.values())
        # One gradient a row, those of earlier tasks before the mini-batch's; filled up with zeros to whole pieces.
        self._rows = torch.zeros(data.index + 1, -(-count // PIECE) * PIECE, device=self.device, dtype=torch.float32)
        self._gradients = self._rows[:, :count]

    def after_backward(self) -> None:
        """The earlier tasks' gradients G, and what the dual problem is made of: GGᵀ with Gg beneath it."""
        if not self._stored:
            return
        if only_linear(self.net):
            self._old_gradients_at_once()
        else:
            for row, part in zip(self._gradients, self._stored, strict=False):
                found = torch.autograd.grad(self.stored_loss(*part), list(self._moving.values()))
                torch.cat([gradient.flatten() for gradient in found], out=row)
        torch.cat([gradient.flatten() for gradient in self._found()], out=self._gradients[-1])
        self._products = inner_products(self._rows)

    def _found(self) -> list[Tensor]:
        """The gradients that the mini-batch gave the parameters."""
        return [p.grad for p in self._moving.values() if p.grad is not None]

    def _old_gradients_at_once(self) -> None:
        """All stored examples go through the network together; G_k of a layer is then δᵀa over those of task k."""
        assert self.examples is not None
        counts = [len(y) for _, y, _ in self._stored]
        share = torch.cat(
            [torch.full((count,), 1 / count, device=self.device, dtype=torch.float32) for count in counts]
        )
        x, y, task = self.examples.x, self.examples.y, self.examples.task
        seen = gradients_and_inputs(
            self.net, x, lambda outputs: torch.dot(self.stored_losses(outputs, y, task), share)
        )
        place = 0
        for name, parameter in self._moving.items():
            layer, _, part = name.rpartition(".")
            gradients, inputs = (torch.split(tensor, counts) for tensor in seen[layer])
            for row, gradient, a in zip(self._gradients, gradients, inputs, strict=False):
                mine = row[place : place + parameter.numel()]
                if part == "weight":
                    torch.mm(gradient.T, a, out=mine.view_as(parameter))
                else:
                    torch.sum(gradient, 0, out=mine)
            place += parameter.numel()

    def on_host(self) -> None:
        """Put the projected gradient in the place of the mini-batch's."""
        if not self._stored:
            return
        products = self._products.cpu()
        weights = turning_weights(products[:-1], products[-1], self.settings.margin)
        if weights is None:
            return
        turned = torch.addmv(self._gradients[-1], self._gradients[:-1].T, weights.to(self._rows))
        found = self._found()
        for gradient, part in zip(found, torch.split(turned, [g.numel() for g in found]), strict=True):
            gradient.copy_(part.view_as(gradient))


def inner_products(rows: Tensor) -> Tensor:
    """The inner product of every row with every row but the last, precise enough for rows that are nearly parallel:
    added up in 64 bits, on a CPU over pieces whose products are taken in 32 (the rows' own precision)."""
    if rows.is_cuda:
        exact = rows.double()
        return exact @ exact[:-1].T
    pieces = rows.view(len(rows), -1, PIECE).transpose(0, 1)
    return torch.bmm(pieces, pieces[:, :-1].transpose(1, 2)).sum(0, dtype=torch.float64)


def turning_weights(
    gram: Tensor, products: Tensor, margin: float, precision: torch.dtype = torch.float32
) -> Tensor | None:
    """v of g̃ = g + Gᵀv, from GGᵀ and Gg of gradients of this `precision`; None where g harms no earlier task."""
    finite = bool(torch.isfinite(products).all() and torch.isfinite(gram).all())
    if not finite or not bool((products < 0).any()):  # the loop stops at a loss that is not a number
        return None
    return dual(gram, products, margin, precision)


def dual(gram: Tensor, products: Tensor, margin: float, precision: torch.dtype) -> Tensor:
    """The v ≥ γ that minimizes ½ vᵀ GGᵀ v + gᵀGᵀ v, from GGᵀ and Gg.

    With v = γ + u and any R with RᵀR = GGᵀ this is a non-negative least squares problem, min over u ≥ 0 of
    ‖Ru + R⁻ᵀ(Gg + γ GGᵀ1)‖². SciPy's `nnls` (Lawson and Hanson's active set method) solves it exactly in a finite
    number of steps and comes with scikit-learn, so no QP solver need be installed. Gradients are first brought to
    length 1, as those of two tasks may differ by many orders, and R is taken from eigenvalues, less those that come
    from rounding the gradients, of this `precision`, as two may well be parallel."""
    exact = gram.double().cpu()
    aim = products.double().cpu() + margin * exact.sum(1)
    length = exact.diagonal().sqrt()
    v = torch.full_like(length, margin)
    real = length > NO_LENGTH * length.max()
    if not bool(real.any()):
        return v
    length = length[real]
    sizes, basis = torch.linalg.eigh(exact[real][:, real] / torch.outer(length, length))
    sound = sizes > len(sizes) * torch.finfo(precision).eps
    root, basis = sizes[sound].sqrt(), basis[:, sound]
    u, _ = nnls((basis * root).T.numpy(), -((aim[real] / length @ basis) / root).numpy())
    v[real] += torch.from_numpy(u) / length
    return v
