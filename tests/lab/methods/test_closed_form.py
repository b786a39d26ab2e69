"""Streaming LDA and ridge regression on random features, against scikit-learn and NumPy on all data at once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from digit_tasks import data_of, reloaded, same_state
from numpy.typing import NDArray
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import Ridge as SklearnRidge
from torch import nn

from ibpwf.data.rows import IndexedRows
from ibpwf.lab.data.tasks import Scenario, Task
from ibpwf.lab.methods import closed_form
from ibpwf.lab.methods.closed_form import SLDA, ClosedForm, Ridge, RidgeSettings, SLDASettings
from ibpwf.lab.methods.dense import Problem
from ibpwf.training.loop import Training
from ibpwf.training.method import TaskData

PROBLEM = Problem((64,), 10, "class")
WIDTH = 80
Array = NDArray[np.float64]


def fresh(kind: str) -> ClosedForm:
    if kind == "slda":
        return SLDA(PROBLEM, SLDASettings(hidden=(WIDTH,), shrinkage=0.05), seed=5)
    return Ridge(PROBLEM, RidgeSettings(hidden=(WIDTH,), ridge=0.05), seed=5)


def learn(method: ClosedForm, tasks: Sequence[Task]) -> ClosedForm:
    for task in tasks:
        for _ in Training(method, data_of(task)).run():
            pytest.fail("a closed form takes no gradient step")
    return method


@pytest.fixture(scope="module")
def slda(digits: Scenario) -> SLDA:
    method = learn(fresh("slda"), digits)
    assert isinstance(method, SLDA)
    return method


@pytest.fixture(scope="module")
def ridge(digits: Scenario) -> Ridge:
    method = learn(fresh("ridge"), digits)
    assert isinstance(method, Ridge)
    return method


def features(method: ClosedForm, x: torch.Tensor) -> Array:
    """ReLU(W x + b) in NumPy."""
    layer = method.net.get_submodule("hidden1")
    assert isinstance(layer, nn.Linear)
    z = x.double().numpy() @ layer.weight.double().numpy().T + layer.bias.double().numpy()
    return np.maximum(z, 0)


def union(method: ClosedForm, digits: Scenario) -> tuple[Array, NDArray[np.int64]]:
    phi = np.concatenate([features(method, task.train.x) for task in digits])
    return phi, np.concatenate([task.train.y.numpy() for task in digits])


def answer(method: ClosedForm, x: torch.Tensor, task: int | None = None) -> Array:
    t = None if task is None else torch.full((len(x),), task)
    return method.predict(x, t, marginal=False, posterior_samples=0, seed=0).probabilities.numpy()


def test_running_means_and_covariance_are_those_of_all_data_at_once(slda: SLDA, digits: Scenario) -> None:
    phi, y = union(slda, digits)
    means = np.stack([phi[y == c].mean(0) for c in range(10)])
    centered = phi - means[y]
    assert slda.sums is not None
    np.testing.assert_allclose(slda.sums.means.T.numpy(), means, atol=1e-6)
    np.testing.assert_allclose(slda.sums.within.numpy(), centered.T @ centered / len(y), atol=1e-5)
    np.testing.assert_array_equal(slda.sums.count.numpy(), np.bincount(y))


def test_streaming_lda_answers_as_scikit_learns_lda_on_all_data(slda: SLDA, digits: Scenario) -> None:
    lda = LinearDiscriminantAnalysis(solver="lsqr", shrinkage=0.05).fit(*union(slda, digits))
    x = torch.cat([task.test.x for task in digits])
    np.testing.assert_allclose(answer(slda, x), lda.predict_proba(features(slda, x)), atol=2e-3)
    np.testing.assert_array_equal(answer(slda, x).argmax(1), lda.predict(features(slda, x)))


def test_ridge_has_the_coefficients_of_scikit_learns_ridge_on_all_data(ridge: Ridge, digits: Scenario) -> None:
    phi, y = union(ridge, digits)
    centered = phi - phi.mean(0)
    alpha = 0.05 * (centered**2).sum() / WIDTH
    expected = SklearnRidge(alpha=alpha).fit(phi, np.eye(10)[y])
    assert ridge.sums is not None
    weight, bias, variance = ridge.regression(ridge.sums)
    np.testing.assert_allclose(weight.T.numpy(), expected.coef_, atol=1e-6)
    np.testing.assert_allclose(bias.numpy(), expected.intercept_, atol=1e-6)
    residual = expected.predict(phi) - np.eye(10)[y]
    assert variance.item() == pytest.approx((residual**2).mean(), rel=1e-5)


def test_ridges_probabilities_are_a_softmax_of_the_regression_over_its_residual_variance(
    ridge: Ridge, digits: Scenario
) -> None:
    assert ridge.sums is not None
    weight, bias, variance = (part.numpy() for part in ridge.regression(ridge.sums))
    score = (features(ridge, digits[0].test.x) @ weight + bias) / variance
    expected = np.exp(score - score.max(1, keepdims=True))
    np.testing.assert_allclose(answer(ridge, digits[0].test.x), expected / expected.sum(1, keepdims=True), atol=1e-4)


@pytest.mark.parametrize("kind", ["slda", "ridge"])
def test_the_order_of_the_tasks_does_not_matter(kind: str, digits: Scenario) -> None:
    forward = learn(fresh(kind), digits)
    backward = fresh(kind)
    for place, task in enumerate(reversed(list(digits))):
        data = data_of(task)
        for _ in Training(backward, TaskData(data.name, place, data.classes, data.x, data.y, seed=5)).run():
            pass
    x = digits[1].test.x
    columns = [label for classes in backward.classes for label in classes]
    np.testing.assert_allclose(answer(backward, x), answer(forward, x)[:, columns], atol=1e-4)


@pytest.mark.parametrize("kind", ["slda", "ridge"])
def test_reading_in_small_pieces_gives_the_same_sums(
    kind: str, digits: Scenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = learn(fresh(kind), digits[:2])
    in_order = IndexedRows.in_order
    monkeypatch.setattr(IndexedRows, "in_order", lambda rows, *_: in_order(rows, 7))
    pieces = learn(fresh(kind), digits[:2])
    for name, tensor in whole.kept().items():
        np.testing.assert_allclose(pieces.kept()[name].numpy(), tensor.numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", ["slda", "ridge"])
def test_they_learn_in_both_settings(kind: str, request: pytest.FixtureRequest, digits: Scenario) -> None:
    method = request.getfixturevalue(kind)
    for known, least in ((True, 0.97), (False, 0.9)):
        right = []
        for task in digits:
            t = torch.full((len(task.test.y),), task.index) if known else None
            right.append(
                method.predict(task.test.x, t, marginal=False, posterior_samples=0, seed=0).labels == task.test.y
            )
        assert torch.cat(right).double().mean() > least


def test_a_given_task_leaves_only_its_own_classes(slda: SLDA, digits: Scenario) -> None:
    given, inferred = answer(slda, digits[0].test.x, task=3), answer(slda, digits[0].test.x)
    own = inferred[:, 6:8] / inferred[:, 6:8].sum(1, keepdims=True)
    np.testing.assert_allclose(given[:, 6:8], own, atol=1e-4)
    assert given.sum() == pytest.approx(len(given))


def test_features_never_change(slda: SLDA, ridge: Ridge) -> None:
    untrained = fresh("slda").net.state_dict()
    for method in (slda, ridge):
        assert torch.equal(method.net.state_dict()["hidden1.weight"], untrained["hidden1.weight"])


@pytest.mark.parametrize("kind", ["slda", "ridge"])
def test_a_task_that_fails_leaves_nothing_behind(
    kind: str, digits: Scenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    method = learn(fresh(kind), digits[:2])
    untouched = reloaded(method)

    def broken(matrix: object, added: object, right: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(closed_form, "solve_regularized", broken)
        with pytest.raises(KeyboardInterrupt):
            learn(method, [digits[2]])
    assert same_state(method, untouched)
    assert same_state(learn(method, [digits[2]]), learn(untouched, [digits[2]]))


@pytest.mark.parametrize("kind", ["slda", "ridge"])
def test_inputs_that_never_vary_are_no_harm(kind: str) -> None:
    data = TaskData("flat", 0, (0, 1), torch.ones(20, 64), torch.arange(20) % 2, seed=0)
    method = fresh(kind)
    for _ in Training(method, data).run():
        pass
    np.testing.assert_allclose(answer(method, data.x), 0.5, atol=1e-6)
