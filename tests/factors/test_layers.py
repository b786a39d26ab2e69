"""Factor layers against sums of outer products written as loops, torch's own layers and finite differences."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from ibpwf.factors.compose import as_matrix, as_weight
from ibpwf.factors.dictionary import FactorBlock
from ibpwf.factors.layers import FactorConv, FactorLayer, FactorLinear, factor_layer, layer_weight, xavier

CONVOLUTIONS: list[tuple[type[nn.Module], dict[str, Any], tuple[int, ...]]] = [
    (nn.Conv1d, {"kernel_size": 3, "padding": 1}, (2, 4, 9)),
    (nn.Conv1d, {"kernel_size": 4, "stride": 3, "dilation": 2, "bias": False}, (2, 4, 17)),
    (nn.Conv2d, {"kernel_size": 3}, (2, 4, 6, 7)),
    (nn.Conv2d, {"kernel_size": (1, 3), "stride": (2, 1), "padding": (0, 2), "bias": False}, (2, 4, 5, 6)),
    (nn.Conv2d, {"kernel_size": (3, 2), "dilation": (1, 2), "groups": 2}, (2, 4, 6, 6)),
    (nn.Conv2d, {"kernel_size": 3, "groups": 4, "out_channels": 8, "padding": "same"}, (2, 4, 5, 5)),
    (nn.Conv2d, {"kernel_size": 3, "padding": 1, "padding_mode": "reflect"}, (2, 4, 5, 6)),
    (nn.Conv2d, {"kernel_size": (5, 3), "padding": (2, 1), "padding_mode": "circular"}, (2, 4, 6, 6)),
    (nn.Conv2d, {"kernel_size": 3, "padding": 2, "padding_mode": "replicate", "stride": 2}, (1, 4, 6, 5)),
    (nn.Conv3d, {"kernel_size": (2, 1, 3), "padding": (0, 1, 1), "stride": (1, 2, 1)}, (1, 4, 3, 4, 5)),
]
LOCKED_AT, FREE_AT = [0, 3, 4], [1, 2, 5, 6]


def filled(original: nn.Module, locked_at: list[int], free_at: list[int], seed: int = 0) -> FactorLayer:
    """The layer in float64 with random factors at the given stick positions and random scores."""
    generator = torch.Generator().manual_seed(seed)
    original = original.double()
    weight = original.get_parameter("weight")
    inputs, outputs = weight[0].numel(), len(weight)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    locked = FactorBlock(
        random(inputs, len(locked_at)), random(len(locked_at), outputs), torch.tensor(locked_at).long()
    )
    layer = factor_layer(original, locked)
    layer.set_free(random(len(free_at), inputs), random(len(free_at), outputs), torch.tensor(free_at).long())
    layer.scores = random(max([*locked_at, *free_at, 0]) + 3)[layer.places]
    return layer


def outer_products(layer: FactorLayer) -> np.ndarray:
    """Σ_k λ_k w_a,k ⊗ w_b,k, one factor at a time."""
    total = np.zeros((layer.inputs, layer.outputs))
    scores = dict(zip(layer.places.tolist(), layer.scores.tolist(), strict=True))
    for a, b, at in (
        (layer.locked_a, layer.locked_b, layer.locked_at),
        (layer.free_a, layer.free_b, layer.free_at),
    ):
        for row, stick in enumerate(at.tolist()):
            total += scores[stick] * np.outer(a[row].detach().numpy(), b[row].detach().numpy())
    return total


def with_weight(original: nn.Module, weight: Tensor) -> nn.Module:
    """torch's own layer with the given weight."""
    with torch.no_grad():
        original.get_parameter("weight").copy_(weight)
    return original


@pytest.mark.parametrize(("locked_at", "free_at"), [(LOCKED_AT, FREE_AT), ([], FREE_AT), (LOCKED_AT, []), ([], [])])
def test_the_weight_is_the_sum_of_scored_outer_products(locked_at: list[int], free_at: list[int]) -> None:
    layer = filled(nn.Linear(5, 3), locked_at, free_at)
    np.testing.assert_allclose(layer_weight(layer).detach().numpy(), outer_products(layer), atol=1e-13)
    np.testing.assert_allclose(layer.weight.detach().numpy(), outer_products(layer).T, atol=1e-13)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(4, 5), (2, 3, 5), (5,), (0, 5)])
@pytest.mark.parametrize(("locked_at", "free_at"), [(LOCKED_AT, FREE_AT), ([], FREE_AT), (LOCKED_AT, []), ([], [])])
def test_a_factor_linear_is_torchs_linear_with_the_composed_weight(
    locked_at: list[int], free_at: list[int], shape: tuple[int, ...], bias: bool
) -> None:
    original = nn.Linear(5, 3, bias=bias)
    layer = filled(original, locked_at, free_at)
    assert isinstance(layer, FactorLinear)
    x = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    expected = F.linear(x, torch.tensor(outer_products(layer)).T, original.bias)
    torch.testing.assert_close(layer(x), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("kind", "options", "shape"), CONVOLUTIONS)
def test_a_factor_convolution_is_torchs_convolution_with_the_composed_kernel(
    kind: type[nn.Module], options: dict[str, Any], shape: tuple[int, ...]
) -> None:
    torch.manual_seed(2)
    original = kind(**{"in_channels": 4, "out_channels": 6, **options})
    layer = filled(original, LOCKED_AT, FREE_AT)
    assert isinstance(layer, FactorConv)
    x = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    matrix = outer_products(layer)
    kernel = np.zeros(layer.shape)
    for m in range(layer.outputs):  # the matrix's rows run over (channel, place, ...) in the kernel's own order
        for j, place in enumerate(np.ndindex(*layer.shape[1:])):
            kernel[(m, *place)] = matrix[j, m]
    got = layer(x)
    expected = with_weight(original, torch.tensor(kernel))(x)
    assert got.shape == expected.shape
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-12)


def test_a_padded_strided_dilated_convolution_agrees_with_a_loop_over_its_places() -> None:
    original = nn.Conv2d(2, 3, (2, 3), stride=(2, 1), padding=(1, 0), dilation=(1, 2))
    layer = filled(original, LOCKED_AT, FREE_AT)
    rng = np.random.default_rng(4)
    x = rng.normal(size=(2, 5, 7))
    padded = np.pad(x, ((0, 0), (1, 1), (0, 0)))
    matrix, bias = outer_products(layer), original.bias.detach().numpy()
    got = layer(torch.tensor(x)[None])[0].detach().numpy()
    assert got.shape == (3, 3, 3)
    for top in range(3):
        for left in range(3):
            patch = [padded[c, 2 * top + i, left + 2 * j] for c in range(2) for i in range(2) for j in range(3)]
            np.testing.assert_allclose(got[:, top, left], np.array(patch) @ matrix + bias, atol=1e-12)


@pytest.mark.parametrize(("rows", "factors"), [(1, 2), (2, 60), (500, 3), (500, 60), (30, 15), (7, 13)])
def test_a_linear_layer_takes_the_order_of_multiplication_that_costs_less(rows: int, factors: int) -> None:
    inputs, outputs = 20, 30
    half = factors // 2
    layer = filled(nn.Linear(inputs, outputs), list(range(half)), list(range(half, factors)))
    x = torch.randn(rows, inputs, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        got = layer(x)
    through_factors = 2 * rows * factors * (inputs + outputs)
    weight_first = 2 * inputs * outputs * (factors + rows)
    assert counter.get_total_flops() == min(through_factors, weight_first)
    expected = x @ torch.tensor(outer_products(layer)) + layer.bias
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-10)


LAYERS = [
    pytest.param(lambda: nn.Linear(4, 3), (2, 4), id="linear"),
    pytest.param(lambda: nn.Linear(4, 3, bias=False), (60, 4), id="linear, weight first"),
    pytest.param(lambda: nn.Conv2d(2, 4, (2, 1), stride=2, padding=1, groups=2), (1, 2, 3, 3), id="convolution"),
]


@pytest.mark.parametrize(("build", "shape"), LAYERS)
def test_gradients_of_free_factors_scores_bias_and_input_agree_with_finite_differences(
    build: Any, shape: tuple[int, ...]
) -> None:
    layer = filled(build(), [0, 3], [1, 2])
    x = torch.randn(shape, dtype=torch.float64, requires_grad=True, generator=torch.Generator().manual_seed(6))
    parts = {name: p.detach().clone().requires_grad_() for name, p in layer.named_parameters()}

    def output(scores: Tensor, x: Tensor, *values: Tensor) -> Tensor:
        layer.scores = scores
        result: Tensor = functional_call(layer, dict(zip(parts, values, strict=True)), (x,))
        return result.tanh()  # not linear, so that the second factor matters to the first's gradient

    assert torch.autograd.gradcheck(output, (layer.scores.clone().requires_grad_(), x, *parts.values()))


@pytest.mark.parametrize(("build", "shape"), LAYERS)
def test_locked_factors_are_no_parameters_and_get_no_gradient(build: Any, shape: tuple[int, ...]) -> None:
    original = build()
    layer = filled(original, LOCKED_AT, FREE_AT)
    names = {"free_a", "free_b"} | ({"bias"} if original.bias is not None else set())
    assert {name for name, _ in layer.named_parameters()} == names
    assert set(layer.state_dict()) == names
    before = layer.locked_a.clone(), layer.locked_b.clone()
    x = torch.randn(shape, dtype=torch.float64)
    optimizer = torch.optim.SGD(layer.parameters(), lr=1.0, weight_decay=0.5)
    layer(x).square().sum().backward()
    optimizer.step()
    assert layer.free_a.grad is not None
    assert bool(layer.free_a.grad.any())
    assert not layer.locked_a.requires_grad
    assert layer.locked_a.grad is None
    assert layer.locked_b.grad is None
    assert torch.equal(layer.locked_a, before[0])
    assert torch.equal(layer.locked_b, before[1])


def test_a_layer_starts_from_a_copy_of_the_originals_bias() -> None:
    original = nn.Linear(5, 3).double()
    layer = filled(original, LOCKED_AT, FREE_AT)
    assert torch.equal(layer.bias, original.bias)
    with torch.no_grad():
        layer.bias.add_(1)
    assert not torch.equal(layer.bias, original.bias)


def test_the_networks_code_still_finds_what_the_original_layer_offered() -> None:
    linear, conv = filled(nn.Linear(5, 3), [0], [1]), filled(nn.Conv2d(4, 6, 3, stride=2), [0], [1])
    assert (linear.in_features, linear.out_features) == (5, 3)
    assert (conv.stride, conv.kernel_size, conv.out_channels) == ((2, 2), (3, 3), 6)
    with pytest.raises(AttributeError, match="no attribute 'color'"):
        _ = linear.color


def test_a_network_that_reads_a_layers_weight_itself_trains_the_factors() -> None:
    layer = filled(nn.Linear(5, 3), LOCKED_AT, FREE_AT)
    x = torch.randn(4, 5, dtype=torch.float64)
    (by_call,) = torch.autograd.grad(layer(x).square().sum(), layer.free_a)
    (by_weight,) = torch.autograd.grad(F.linear(x, layer.weight, layer.bias).square().sum(), layer.free_a)
    torch.testing.assert_close(by_call, by_weight)


def test_a_layer_that_is_neither_linear_nor_a_convolution_is_refused() -> None:
    for module in (nn.Embedding(4, 3), nn.ConvTranspose2d(2, 2, 3)):
        with pytest.raises(TypeError, match=type(module).__name__):
            factor_layer(module, FactorBlock(torch.empty(4, 0), torch.empty(0, 3), torch.empty(0).long()))


@pytest.mark.parametrize("shape", [(3, 5), (6, 4, 3), (6, 2, 3, 5), (2, 3, 1, 2, 4)])
def test_matrix_and_weight_are_each_others_inverse(shape: tuple[int, ...]) -> None:
    weight = torch.randn(shape)
    assert as_matrix(weight).shape == (weight[0].numel(), shape[0])
    assert torch.equal(as_weight(as_matrix(weight), shape), weight)


def test_fresh_factors_are_xavier_uniform_for_the_whole_dictionarys_width() -> None:
    a, b = xavier(60, 40, count=30, width=90, generator=torch.Generator().manual_seed(7))
    assert a.shape == (60, 30)
    assert b.shape == (30, 40)
    for factor, limit in ((a, np.sqrt(6 / (60 + 90))), (b, np.sqrt(6 / (90 + 40)))):
        assert float(factor.abs().max()) <= limit
        assert stats.kstest(factor.flatten().numpy(), stats.uniform(-limit, 2 * limit).cdf).pvalue > 1e-3
