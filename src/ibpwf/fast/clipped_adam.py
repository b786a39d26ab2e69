"""Adam that clips gradients as it reads them, on a GPU: one kernel for all parameters, in Triton.

Adam's memory traffic sets the pace of wide layers on a GPU. Clipping gradients beforehand, as torch does it, reads
and writes each of them twice more: 16 bytes a parameter beside the 28 of Adam itself.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, misc, override"

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor, nn

BLOCK = 1024
TOGETHER = 16  # parameters in one kernel, of which each is compiled in
BETAS, EPSILON = (0.9, 0.999), 1e-8
LOG_BETA1, LOG_BETA2 = (tl.constexpr(math.log(beta)) for beta in BETAS)


@triton.jit
def _move(
    parameter_at, gradient_at, mean_at, square_at, step_at, rate_at, at, count, clip, decay,
    BETA1: tl.constexpr, BETA2: tl.constexpr, EPS: tl.constexpr,
):  # fmt: skip
    """A block of one parameter."""
    inside = at < count
    step = tl.load(step_at)
    first, second = 1 - tl.exp(step * LOG_BETA1), 1 - tl.exp(step * LOG_BETA2)
    parameter = tl.load(parameter_at + at, mask=inside, other=0.0)
    gradient = tl.load(gradient_at + at, mask=inside, other=0.0)
    # Compared, not by minimum and maximum: what is no number stays, and is noticed.
    gradient = tl.where(gradient > clip, clip, tl.where(gradient < -clip, -clip, gradient))
    gradient += decay * parameter
    mean = tl.load(mean_at + at, mask=inside, other=0.0)
    mean += (1 - BETA1) * (gradient - mean)
    square = tl.load(square_at + at, mask=inside, other=0.0)
    square = BETA2 * square + (1 - BETA2) * gradient * gradient
    scale = tl.sqrt(square) / tl.sqrt(second) + EPS
    parameter -= tl.load(rate_at) / first * mean / scale
    tl.store(parameter_at + at, parameter, mask=inside)
    tl.store(mean_at + at, mean, mask=inside)
    tl.store(square_at + at, square, mask=inside)


@triton.jit
def _adam_kernel(
    parameters, gradients, means, squares, steps, rate_at, plan_at, clip, decay,
    BETA1: tl.constexpr, BETA2: tl.constexpr, EPS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Program p moves a block of the parameter that the plan's row p names: (which, its size, where the block is)."""
    row = plan_at + 3 * tl.program_id(0)
    which, count = tl.load(row), tl.load(row + 1)
    at = tl.load(row + 2) + tl.arange(0, BLOCK)
    for i in tl.static_range(len(parameters)):
        if which == i:
            _move(
                parameters[i], gradients[i], means[i], squares[i], steps[i], rate_at, at, count, clip, decay,
                BETA1, BETA2, EPS,
            )  # fmt: skip


def _plan(sizes: Sequence[int], device: torch.device) -> Tensor:
    """Blocks of all parameters, one after another."""
    rows = [(which, size, first) for which, size in enumerate(sizes) for first in range(0, size, BLOCK)]
    return torch.tensor(rows, dtype=torch.int32, device=device)


class ClippedAdam(torch.optim.Optimizer):
    """torch's Adam after `clip_grad_value_(clip)`, with the same state; `lr` is a tensor on the device."""

    def __init__(
        self, parameters: Sequence[nn.Parameter], lr: Tensor, *, clip: float, weight_decay: float = 0.0
    ) -> None:
        super().__init__(parameters, {"lr": lr})
        self.clip, self.weight_decay = clip, weight_decay
        self._plans: dict[tuple[int, ...], Tensor] = {}  # made in the first step: a recorded one cannot

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            moving = [parameter for parameter in group["params"] if parameter.grad is not None and parameter.numel()]
            for parameter in moving:
                if not self.state[parameter]:
                    self.state[parameter] = {
                        "step": torch.zeros((), device=parameter.device, dtype=torch.float32),
                        "exp_avg": torch.zeros_like(parameter),
                        "exp_avg_sq": torch.zeros_like(parameter),
                    }
            if moving:
                torch._foreach_add_([self.state[parameter]["step"] for parameter in moving], 1)
            for first in range(0, len(moving), TOGETHER):
                self._launch(moving[first : first + TOGETHER], group["lr"])

    def _launch(self, moving: Sequence[nn.Parameter], rate: Tensor) -> None:
        states = [self.state[parameter] for parameter in moving]
        steps, means, squares = (tuple(state[name] for state in states) for name in ("step", "exp_avg", "exp_avg_sq"))
        sizes = tuple(parameter.numel() for parameter in moving)
        if sizes not in self._plans:
            self._plans[sizes] = _plan(sizes, rate.device)
        plan = self._plans[sizes]
        gradients = tuple(parameter.grad.contiguous() for parameter in moving if parameter.grad is not None)
        _adam_kernel[(len(plan),)](
            tuple(moving), gradients, means, squares, steps, rate, plan, self.clip, self.weight_decay,
            BETA1=BETAS[0], BETA2=BETAS[1], EPS=EPSILON, BLOCK=BLOCK,
        )  # fmt: skip
