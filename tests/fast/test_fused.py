"""Batch normalization, ReLU and pooling as one function against the three."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from ibpwf.dispatch import accelerated
from ibpwf.fast import fused
from ibpwf.models import normalized

GPU = pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"))


def norm(channels: int, device: str) -> nn.BatchNorm2d:
    torch.manual_seed(1)
    made = nn.BatchNorm2d(channels)
    nn.init.uniform_(made.weight, 0.5, 1.5)
    nn.init.normal_(made.bias)
    return made.to(device).train()


def results(x: Tensor, made: nn.BatchNorm2d, y: Tensor) -> list[Tensor]:
    scale = torch.linspace(-1, 1, len(y), device=y.device).view(-1, 1, 1, 1).to(y.dtype)
    y.backward(torch.ones_like(y) * scale)
    known = [x.grad, made.weight.grad, made.bias.grad, made.running_mean, made.running_var]
    return [y.detach().float(), *(tensor.float() for tensor in known if tensor is not None)]


@pytest.mark.parametrize("halve", [False, True])
@pytest.mark.parametrize("channels", [3, 16])
def test_the_one_function_is_the_three(channels: int, halve: bool) -> None:
    x = torch.randn(8, channels, 6, 6)
    one, three = (x.clone().requires_grad_(True) for _ in range(2))
    left, right = norm(channels, "cpu"), norm(channels, "cpu")
    given = left.running_mean, left.running_var, left.weight, left.bias, left.momentum, left.eps
    found = results(one, left, fused.in_one(one, *given, halve))
    expected = results(three, right, normalized(three, right, halve))
    assert len(found) == len(expected) == 6
    for a, b in zip(found, expected, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("device", [GPU])
def test_compiled_it_gives_the_same_but_for_rounding(device: str) -> None:
    x = torch.randn(64, 16, 8, 8, device=device).bfloat16().contiguous(memory_format=torch.channels_last)
    found = []
    for wanted in (True, False):
        rows, made = x.clone(memory_format=torch.preserve_format).requires_grad_(True), norm(16, device)
        with accelerated(wanted):
            found.append(results(rows, made, normalized(rows, made, True)))
        assert int(made.num_batches_tracked or 0) == 1
    for a, b in zip(*found, strict=True):
        assert float((a - b).abs().max()) <= 0.01 * float(b.abs().max())


def test_it_stands_for_nothing_on_a_cpu() -> None:
    made, x = norm(3, "cpu"), torch.randn(2, 3, 4, 4)
    assert not fused._trains_on_a_gpu(x, made, False)
    assert not fused._trains_on_a_gpu(x.bfloat16(), made, False)
