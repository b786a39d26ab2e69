"""The generative classifier: likelihoods against numerical integration, classes that never meet, nothing lost."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from digit_tasks import data_of, learn
from numpy.typing import NDArray
from scipy.integrate import trapezoid
from torch import Tensor, nn

from ibpwf.lab.data.tasks import Scenario
from ibpwf.lab.methods.dense import Problem
from ibpwf.lab.methods.gen_classifier import ClassVAEs, GenClassifier, GenClassifierSettings, PerClass

SMALL = GenClassifierSettings(hidden=(24,), latent=3, sigma=0.5, samples=10, epochs=8, batch_size=16)
Array = NDArray[np.float64]


def fresh() -> GenClassifier:
    return GenClassifier(Problem((64,), 10, "class"), SMALL, seed=5)


@pytest.fixture(scope="module")
def taught(digits: Scenario) -> GenClassifier:
    return learn(fresh(), *digits[:3])


@pytest.fixture(scope="module")
def toy() -> tuple[ClassVAEs, Tensor]:
    """VAEs with a latent of one dimension for two classes, hardly trained, in float64, and some points."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        vaes = ClassVAEs(2, 3, (8,), 1, sigma=0.6).double()
        x = torch.randn(12, 1).double() * torch.tensor([1.0, -0.5, 0.8]) + 0.3 * torch.randn(12, 3).double()
        optimizer = torch.optim.Adam(vaes.parameters(), lr=0.01)
        for _ in range(150):
            loss = -vaes.log_weights(x, torch.randn(12, 1, 1).double()).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return vaes, x


def perceptron(net: nn.Module, number: int, x: Array) -> Array:
    """One class's network, layer by layer in NumPy."""
    for layer in net.children():
        if isinstance(layer, PerClass):
            x = x @ layer.weight[number].detach().numpy() + layer.bias[number].detach().numpy()
        else:
            x = np.maximum(x, 0)
    return x


def integrated(vaes: ClassVAEs, number: int, x: Array) -> Array:
    """log p(x) = log ∫ N(x | decoder(z), σ²I) N(z | 0, 1) dz by the trapezoidal rule, per row of x."""
    z = np.linspace(-8, 8, 20001)
    decoded = perceptron(vaes.decoder, number, z[:, None])
    squares = ((x[:, None, :] - decoded) ** 2).sum(-1) / vaes.sigma**2
    log_joint = -0.5 * squares - 0.5 * z**2
    top = log_joint.max(1, keepdims=True)
    log_integral = top[:, 0] + np.log(trapezoid(np.exp(log_joint - top), z, axis=1))
    dimensions = x.shape[1]
    return log_integral - 0.5 * dimensions * np.log(2 * np.pi * vaes.sigma**2) - 0.5 * np.log(2 * np.pi)


@pytest.mark.parametrize("number", [0, 1])
def test_the_importance_sampled_likelihood_is_the_integral_over_z(toy: tuple[ClassVAEs, Tensor], number: int) -> None:
    vaes, x = toy
    noise = torch.randn(20_000, 1, generator=torch.Generator().manual_seed(1)).double()
    with torch.no_grad():
        sampled = vaes.log_weights(x, noise)[number].logsumexp(1) - math.log(len(noise))
    np.testing.assert_allclose(sampled.numpy(), integrated(vaes, number, x.numpy()), atol=0.02)


def test_more_samples_climb_from_the_elbo_to_the_likelihood(toy: tuple[ClassVAEs, Tensor]) -> None:
    vaes, x = toy
    weights = vaes.log_weights(x, torch.randn(40_000, 1, generator=torch.Generator().manual_seed(2)).double())[0]
    means = []
    for samples in (1, 4, 400):
        groups = weights.view(len(x), -1, samples).logsumexp(2) - math.log(samples)
        means.append(groups.mean().item())
    mean, log_variance = np.split(perceptron(vaes.encoder, 0, x.numpy()), 2, axis=1)
    kl = 0.5 * (mean**2 + np.exp(log_variance) - log_variance - 1).sum(1)
    z = mean + np.exp(0.5 * log_variance) * np.random.default_rng(0).standard_normal((1, 20_000))
    decoded = perceptron(vaes.decoder, 0, z.reshape(-1, 1)).reshape(len(x), -1, 3)
    squares = ((x.numpy()[:, None] - decoded) ** 2).sum(2).mean(1) / vaes.sigma**2
    elbo = (-0.5 * squares - 1.5 * np.log(2 * np.pi * vaes.sigma**2) - kl).mean()
    assert means[0] == pytest.approx(elbo, abs=0.02), "one sample is the ELBO, here with the KL in closed form"
    assert means[0] + 0.01 < means[1] < means[2]
    assert means[2] < integrated(vaes, 0, x.numpy()).mean() + 1e-3


def test_layers_side_by_side_are_the_same_as_one_after_another() -> None:
    layer = PerClass(3, 5, 4)
    x = torch.randn(7, 5)
    together = layer(x)
    assert together.shape == (3, 7, 4)
    for number in range(3):
        single = nn.Linear(5, 4)
        single.load_state_dict({"weight": layer.weight[number].T, "bias": layer.bias[number, 0]})
        torch.testing.assert_close(together[number], single(x))


def test_a_row_trains_the_model_of_its_own_class_alone(digits: Scenario) -> None:
    method = fresh()
    data = data_of(digits[0])
    method.begin_task(data)
    zeros = data.y == 0
    method.loss(data.x[zeros], data.y[zeros]).total.backward()
    for parameter in method.vaes(0).parameters():
        assert parameter.grad is not None
        assert parameter.grad[0].abs().max() > 0
        assert parameter.grad[1].abs().max() == 0


def test_the_likeliest_model_names_the_class_in_both_settings(taught: GenClassifier, digits: Scenario) -> None:
    for known, least in ((True, 0.93), (False, 0.85)):
        right = []
        for task in digits[:3]:
            t = torch.full((len(task.test.y),), task.index) if known else None
            right.append(
                taught.predict(task.test.x, t, marginal=False, posterior_samples=0, seed=0).labels == task.test.y
            )
        assert torch.cat(right).double().mean() > least


def test_class_probabilities_are_the_softmax_of_all_classes_likelihoods(
    taught: GenClassifier, digits: Scenario
) -> None:
    x = digits[1].test.x[:20]
    scores = np.concatenate([taught.logits(x, task).double().numpy() for task in range(3)], 1)
    expected = np.exp(scores - scores.max(1, keepdims=True))
    given = taught.predict(x, None, marginal=False, posterior_samples=0, seed=0).probabilities.numpy()
    np.testing.assert_allclose(given, expected / expected.sum(1, keepdims=True), atol=1e-6)


def test_an_answer_does_not_depend_on_what_else_is_asked(taught: GenClassifier, digits: Scenario) -> None:
    x = digits[0].test.x
    torch.testing.assert_close(taught.logits(x[5:6], 0), taught.logits(x, 0)[5:6], rtol=1e-4, atol=1e-3)


def test_new_classes_leave_the_likelihoods_of_old_ones_as_they_are_to_the_bit(digits: Scenario) -> None:
    method = learn(fresh(), *digits[:1])
    before = method.logits(digits[0].test.x, 0)
    learn(method, digits[1])
    assert torch.equal(method.logits(digits[0].test.x, 0), before)
