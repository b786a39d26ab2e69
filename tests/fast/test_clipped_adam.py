"""Adam that clips as it reads, against torch's two functions; in Triton's interpreter where there is no GPU."""

from __future__ import annotations

import pytest
import torch
from torch import nn

pytest.importorskip("triton")

from ibpwf.fast.clipped_adam import ClippedAdam

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.mark.parametrize("weight_decay", [0.0, 0.01])
def test_steps_are_those_of_clipping_and_adam(weight_decay: float) -> None:
    generator = torch.Generator().manual_seed(0)
    start = [torch.randn(shape, generator=generator).to(DEVICE) for shape in ((5, 7), (1300,), (0, 3), *[(2,)] * 20)]
    mine, theirs = ([nn.Parameter(part.clone()) for part in start] for _ in range(2))
    own = ClippedAdam(mine, torch.tensor(0.01, device=DEVICE), clip=0.5, weight_decay=weight_decay)
    usual = torch.optim.Adam(theirs, lr=0.01, weight_decay=weight_decay)
    for _ in range(12):
        for one, other in zip(mine, theirs, strict=True):
            one.grad = torch.randn(one.shape, generator=generator).to(DEVICE)
            other.grad = one.grad.clone()
        own.step()
        nn.utils.clip_grad_value_(theirs, 0.5)
        usual.step()
    for one, other in zip(mine, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)
        if one.numel():
            assert own.state[one].keys() == usual.state[other].keys()
            torch.testing.assert_close(own.state[one]["exp_avg_sq"], usual.state[other]["exp_avg_sq"])


def test_a_gradient_that_is_no_number_is_not_clipped_away() -> None:
    parameter = nn.Parameter(torch.ones(3, device=DEVICE))
    own = ClippedAdam([parameter], torch.tensor(0.01, device=DEVICE), clip=0.5)
    parameter.grad = torch.tensor([1.0, float("nan"), -1.0], device=DEVICE)
    own.step()
    assert torch.isnan(parameter.detach()).tolist() == [False, True, False]
