"""Where φ is one linear layer of the input, tasks are told apart from the input: the answers are φ's."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from ibpwf import factorize
from ibpwf.dispatch import accelerated
from ibpwf.fast import inferring
from ibpwf.fast.folding import Fold, LinearFeatures, linear_features
from ibpwf.inference.base import Context, infer_tasks
from ibpwf.inference.features.layer import Layer
from ibpwf.inference.gaussian import Gaussian, MomentAccumulator
from ibpwf.learner import Learner
from ibpwf.models import mlp
from ibpwf.settings import Settings

TASKS = 12


def inputs(task: int, count: int, seed: int = 0, apart: float = 1.0) -> Tensor:
    """Rows of a made-up task: 50 numbers in an order of its own."""
    order = torch.randperm(50, generator=torch.Generator().manual_seed(100 + task))
    mixing = torch.randn(10, 50, generator=torch.Generator().manual_seed(1))
    causes = torch.randn(count, 10, generator=torch.Generator().manual_seed(1000 * seed + task))
    mixed = torch.sigmoid(causes @ mixing)
    return mixed + apart * (mixed[:, order] - mixed)


def layer_of_rank(rank: int, bias: bool = True) -> LinearFeatures:
    generator = torch.Generator().manual_seed(3)
    weight = torch.randn(30, rank, generator=generator) @ torch.randn(rank, 50, generator=generator) / 20
    return LinearFeatures(weight, torch.randn(30, generator=generator) if bias else None)


def taught(layer: LinearFeatures, apart: float = 1.0) -> Gaussian:
    model = Gaussian(ridge=1e-4)
    for task in range(TASKS):
        sums = MomentAccumulator()
        sums.add(layer(inputs(task, 300, apart=apart)))
        group = sums.finish()
        if not task:
            model.set_scale([group])
        model.add(task, group)
    return model


def features_of(layer: LinearFeatures) -> Layer:
    """φ of a model whose first task has that layer's weights."""
    net = nn.Sequential(nn.Linear(50, 30, bias=layer.bias is not None), nn.ReLU(), nn.Linear(30, 2))
    model = factorize(net, alpha=2.0)
    state = dict(net.state_dict()) | {"0.weight": layer.weight}
    if layer.bias is not None:
        state["0.bias"] = layer.bias
    model.reference_state = lambda: state  # type: ignore[method-assign]
    return Layer().bound(Context(model))


def told(model: Gaussian, layer: LinearFeatures, x: Tensor, accelerate: bool) -> Tensor:
    with accelerated(accelerate):
        return infer_tasks(model, features_of(layer), x)


@settings(max_examples=15, deadline=None)
@given(apart=st.floats(0, 1), rank=st.integers(6, 30), bias=st.booleans(), seed=st.integers(1, 100))
def test_tasks_that_overlap_and_that_do_not_are_told_apart_as_by_the_reference(
    apart: float, rank: int, bias: bool, seed: int
) -> None:
    layer = layer_of_rank(rank, bias)
    model = taught(layer, apart)
    x = torch.cat([inputs(task, 5, seed, apart) for task in range(TASKS)])
    found, truth = (told(model, layer, x, accelerate) for accelerate in (True, False))
    # φ of a part of the rows may have other last bits than φ of all of them.
    torch.testing.assert_close(found, truth, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("apart", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("bias", [True, False])
def test_probabilities_are_those_of_the_whole_computation(apart: float, bias: bool) -> None:
    layer = layer_of_rank(14, bias)
    model = taught(layer, apart)
    x = torch.cat([inputs(task, 9, 1, apart) for task in range(TASKS)])
    quick, whole = (told(model, layer, x, accelerate) for accelerate in (True, False))
    assert inferring.screen_of(model).fold(layer) is not None
    # φ of a part of the rows may have other last bits than φ of all of them.
    torch.testing.assert_close(quick, whole, rtol=1e-3, atol=1e-6)
    assert torch.equal(quick.argmax(1), whole.argmax(1))


@pytest.mark.parametrize("scale", [1.0, 1e3, 1e6])
def test_distances_are_off_by_no_more_than_is_allowed_for(scale: float) -> None:
    layer = layer_of_rank(14)
    model = taught(layer)
    screen = inferring.screen_of(model).screen
    assert screen is not None
    fold = Fold.of(layer, screen)
    assert fold is not None
    x = torch.cat([inputs(task, 9, 1) for task in range(TASKS)]) * scale
    placed = fold.place(x)
    assert layer.bias is not None
    phi = x.double() @ layer.weight.double().T + layer.bias.double()
    means, whiten, _ = model.prepared()
    exact = torch.stack([((phi - mean) @ matrix).norm(dim=1) for mean, matrix in zip(means, whiten, strict=True)], 1)
    whole = screen.whole
    z = placed.inside.double() @ whole.matrix.double() + whole.offset.double().unsqueeze(1)
    found = z.norm(dim=2).T
    error = (found - exact).abs() - 1e-4 * exact
    assert bool((error <= placed.doubt + 1e-3).all())
    assert float(placed.doubt.max()) < 0.5 * scale  # and not so much that nothing would be certain


def test_a_layer_that_may_lead_elsewhere_is_not_folded() -> None:
    layer = layer_of_rank(14)
    model = taught(layer)
    screen = inferring.screen_of(model).screen
    assert screen is not None
    wider = LinearFeatures(layer.weight + 0.1 * layer_of_rank(30).weight, layer.bias)
    assert Fold.of(wider, screen) is None
    shifted = LinearFeatures(layer.weight, layer_of_rank(20).bias)
    assert shifted.bias is not None
    assert Fold.of(LinearFeatures(layer.weight, shifted.bias + torch.arange(30)), screen) is None
    x = torch.cat([inputs(task, 3, 1) for task in range(TASKS)])
    torch.testing.assert_close(told(model, wider, x, True), told(model, wider, x, False), rtol=1e-3, atol=1e-6)


def test_what_counts_as_one_linear_layer_of_the_input() -> None:
    net = mlp(50, [30], 4)
    state = dict(net.state_dict())
    found = linear_features(net, state, ["hidden1"])
    assert found is not None
    x = torch.rand(5, 50)
    assert torch.equal(found(x), net.hidden1(x))
    assert linear_features(net, state, ["head"]) is None
    assert linear_features(net, state, ["hidden1", "head"]) is None
    flat = nn.Sequential(nn.Flatten(), nn.Linear(50, 30), nn.ReLU())
    seen = linear_features(flat, dict(flat.state_dict()), ["1"])
    assert seen is not None
    assert torch.equal(seen(x.view(5, 2, 5, 5)), flat[1](x))
    after = nn.Sequential(nn.ReLU(), nn.Linear(50, 30))
    assert linear_features(after, dict(after.state_dict()), ["1"]) is None
    net.hidden1.register_forward_hook(lambda module, given, out: out * 2)
    assert linear_features(net, state, ["hidden1"]) is None


def test_a_learner_answers_as_from_phi() -> None:
    learner = Learner(
        mlp(50, [30], 2), Settings(alpha=10.0, epochs=8, finetune_epochs=4, learning_rate=0.02), device="cpu"
    )
    for task in range(6):
        x = inputs(task, 200)
        learner.learn(x, (x[:, 0] > x[:, 1]).long(), task=str(task))
    x = torch.cat([inputs(task, 20, 2) for task in range(6)])
    method = learner.method
    whole = method.inference.log_scores(method.features(x)).softmax(1)
    answer = learner.predict(x)
    assert torch.equal(answer.task, whole.argmax(1))
    torch.testing.assert_close(answer.task_probabilities, whole, rtol=1e-3, atol=1e-6)
    assert learner.predict(x[:0]).task_probabilities.shape == (0, 6)
