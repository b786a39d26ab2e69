"""Batch normalization and ReLU6 as Triton's kernels against torch's functions; in its interpreter without a GPU."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ibpwf.backbones.inverted_residuals import clipped_norm
from ibpwf.dispatch import accelerated
from ibpwf.fast import clipping

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DTYPE = torch.bfloat16 if torch.cuda.is_available() else torch.float32
"""Triton's interpreter does not round to bfloat16."""


def norm(channels: int) -> nn.BatchNorm2d:
    torch.manual_seed(1)
    made = nn.BatchNorm2d(channels, eps=1e-3)
    nn.init.uniform_(made.weight, 0.5, 2.5)
    nn.init.normal_(made.bias)
    return made.to(DEVICE).train()


def images(shape: tuple[int, ...]) -> Tensor:
    torch.manual_seed(2)
    far = 3 * torch.randn(shape[1]).view(-1, 1, 1)  # from 0, beside which they vary little
    return (torch.randn(shape) + far).to(DEVICE, DTYPE).contiguous(memory_format=torch.channels_last)


def results(x: Tensor, made: nn.BatchNorm2d, y: Tensor) -> list[Tensor]:
    torch.manual_seed(3)
    y.backward(torch.randn(y.shape).to(y).contiguous(memory_format=torch.channels_last))
    known = [x.grad, made.weight.grad, made.bias.grad, made.running_mean, made.running_var]
    return [y.detach().float(), *(tensor.float() for tensor in known if tensor is not None)]


def kernels() -> None:
    """Skip where there are none, or where Triton's interpreter cannot count its loops."""
    pytest.importorskip("triton")
    if DEVICE == "cpu" and np.lib.NumpyVersion(np.__version__) >= "2.4.0":
        pytest.skip("Triton's interpreter needs numpy before 2.4 to run a loop of unknown length")


@pytest.mark.parametrize("linear", [False, True])
@pytest.mark.parametrize("shape", [(3, 8, 2, 2), (4, 24, 9, 5), (2, 96, 40, 40), (5, 200, 3, 3)])
def test_kernels_give_what_torch_gives(shape: tuple[int, ...], linear: bool) -> None:
    kernels()
    x, found = images(shape), []
    for own in (True, False):
        rows, made = x.clone(memory_format=torch.preserve_format).requires_grad_(True), norm(shape[1])
        function = clipping.fused_clipped_norm if own else plain
        found.append(results(rows, made, function(rows, made, linear)))
        assert int(made.num_batches_tracked or 0) == 1
    assert len(found[0]) == len(found[1]) == 6
    tolerance = 0.02 if DEVICE == "cuda" else 1e-5
    for a, b in zip(*found, strict=True):
        assert float((a - b).abs().max()) <= tolerance * float(b.abs().max())


def plain(x: Tensor, made: nn.BatchNorm2d, linear: bool) -> Tensor:
    """In float32, which nothing is rounded in on the way."""
    y = made(x.float())
    return (y if linear else F.relu6(y)).to(x.dtype)


def test_a_frozen_scale_and_shift_have_no_gradient_and_the_same_images_give_the_same_bits() -> None:
    kernels()
    x, found = images((4, 32, 7, 7)), []
    for _ in range(2):
        rows, made = x.clone(memory_format=torch.preserve_format).requires_grad_(True), norm(32).requires_grad_(False)
        y = clipping.fused_clipped_norm(rows, made, False)
        y.sum().backward()
        assert rows.grad is not None
        assert made.weight.grad is None
        found.append((y.detach(), rows.grad, made.running_var))
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)


def test_it_stands_for_nothing_on_a_cpu() -> None:
    made, x = nn.BatchNorm2d(3), torch.randn(2, 3, 4, 4).contiguous(memory_format=torch.channels_last)
    assert not clipping._trains_on_a_gpu(x, made, False)
    assert not clipping._trains_on_a_gpu(x.bfloat16(), nn.Identity(), False)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_it_stands_where_a_network_trains_in_bfloat16() -> None:
    made, x = norm(32), images((4, 32, 7, 7))
    assert clipping._trains_on_a_gpu(x, made, False)
    assert not clipping._trains_on_a_gpu(x.float(), made, False)
    assert not clipping._trains_on_a_gpu(x.contiguous(), made, False)
    assert not clipping._trains_on_a_gpu(x, made.eval(), False)
    with accelerated(False):
        torch.testing.assert_close(clipped_norm(x, made, False), F.relu6(made(x)))
