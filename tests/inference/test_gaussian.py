"""Task inference against numpy's moments and scipy's multivariate normal distribution, in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import special, stats
from torch import Tensor

from ibpwf.errors import InputError
from ibpwf.inference.gaussian import Gaussian, MomentAccumulator, Moments

DIMENSIONS = 4
COUNTS = (300, 120, 900)


def sample(task: int, count: int, seed: int = 0) -> np.ndarray:
    """Features of a made-up task: its own centre, its own correlated spread."""
    rng = np.random.default_rng([task, seed])
    mixing = np.random.default_rng([task, 99]).normal(size=(DIMENSIONS, DIMENSIONS))
    return (
        rng.normal(size=(count, DIMENSIONS)) @ mixing + np.random.default_rng([task, 7]).normal(size=DIMENSIONS) * 2
    )


def moments(data: np.ndarray, sizes: list[int] | None = None) -> Moments:
    accumulator = MomentAccumulator()
    for part in torch.split(torch.tensor(data), sizes or [len(data)]):
        accumulator.add(part)
    return accumulator.finish()


TASKS = [sample(task, count) for task, count in enumerate(COUNTS)]
INPUTS = np.concatenate([sample(task, 20, seed=1) for task in range(3)])


def inference(groups: list[tuple[int, np.ndarray]], absolute_ridge: float) -> Gaussian:
    model = Gaussian()
    model._absolute_ridge = absolute_ridge
    for owner, data in groups:
        model.add(owner, moments(data))
    return model


def log_density(data: np.ndarray, ridge: float, x: np.ndarray) -> np.ndarray:
    """log N + log N(x | μ, Σ + ρI) with numpy's and scipy's hands."""
    covariance = np.cov(data.T, bias=True) + ridge * np.eye(data.shape[1])
    return np.log(len(data)) + stats.multivariate_normal(data.mean(0), covariance).logpdf(x)


def posterior(groups: list[np.ndarray], ridge: float, x: np.ndarray) -> np.ndarray:
    return special.log_softmax(np.stack([log_density(data, ridge, x) for data in groups], axis=1), axis=1)


def log_probabilities(model: Gaussian, x: np.ndarray) -> np.ndarray:
    return model.log_scores(torch.tensor(x)).log_softmax(1).numpy()


# Moments


@pytest.mark.parametrize("sizes", [[120], [1, 119], [40, 40, 40], [1] * 120, [0, 7, 0, 113]])
@pytest.mark.parametrize("offset", [0.0, 1e4, -1e6])
def test_moments_are_numpys_however_the_data_are_cut_and_wherever_they_lie(sizes: list[int], offset: float) -> None:
    data = TASKS[1] + offset
    got = moments(data, sizes)
    assert got.count == 120
    np.testing.assert_allclose(got.mean.numpy(), data.mean(0), rtol=1e-14, atol=1e-12)
    np.testing.assert_allclose(got.covariance.numpy(), np.cov(data.T, bias=True), atol=1e-9)
    assert torch.equal(got.covariance, got.covariance.T)


def test_moments_of_data_in_sorted_order_do_not_suffer_from_an_untypical_first_batch() -> None:
    data = np.sort(TASKS[2] + 1e4, axis=0)
    got = moments(data, [10] * 90)
    np.testing.assert_allclose(got.covariance.numpy(), np.cov(data.T, bias=True), rtol=1e-9)


def test_moments_of_float32_features_are_taken_in_float64() -> None:
    data = (TASKS[0] + 1e4).astype(np.float32)
    got = moments(data, [100, 200])
    assert got.mean.dtype == got.covariance.dtype == torch.float64
    np.testing.assert_allclose(got.covariance.numpy(), np.cov(data.astype(np.float64).T, bias=True), rtol=1e-9)


def test_moments_of_one_example_are_the_example_and_zero() -> None:
    got = moments(np.array([[3.0, 4.0]]))
    assert got.mean.tolist() == [3.0, 4.0]
    assert not bool(got.covariance.any())


@pytest.mark.parametrize("rows", [None, 0])
def test_moments_of_nothing_are_refused(rows: int | None) -> None:
    accumulator = MomentAccumulator()
    if rows is not None:
        accumulator.add(torch.empty(rows, 3))
    with pytest.raises(InputError, match="no examples"):
        accumulator.finish()


# Eq. (task_inf)


@pytest.mark.parametrize("ridge", [1e-4, 0.3])
def test_scores_are_scipys_log_densities_times_the_number_of_examples(ridge: float) -> None:
    model = inference(list(enumerate(TASKS)), ridge)
    got = model.group_scores(torch.tensor(INPUTS)).numpy()
    expected = np.stack([log_density(data, ridge, INPUTS) for data in TASKS], axis=1)
    constant = DIMENSIONS / 2 * np.log(2 * np.pi)  # the only thing left out, the same for all
    np.testing.assert_allclose(got, expected + constant, rtol=1e-9)


def test_the_task_inferred_minimizes_the_papers_expression() -> None:
    model = inference(list(enumerate(TASKS)), 1e-9)
    best = []
    for x in INPUTS:
        cost = []
        for data in TASKS:
            mean, covariance = data.mean(0), np.cov(data.T, bias=True)
            far = (x - mean) @ np.linalg.inv(covariance) @ (x - mean)
            cost.append(0.5 * np.log(np.linalg.det(covariance)) - np.log(len(data)) + 0.5 * far)
        best.append(int(np.argmin(cost)))
    assert log_probabilities(model, INPUTS).argmax(1).tolist() == best
    assert set(best) == {0, 1, 2}


def test_probabilities_are_bayes_rule_and_sum_to_one() -> None:
    got = log_probabilities(inference(list(enumerate(TASKS)), 1e-4), INPUTS)
    np.testing.assert_allclose(got, posterior(TASKS, 1e-4, INPUTS), rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(np.exp(got).sum(1), 1.0, rtol=1e-12)


def test_where_features_say_nothing_a_task_is_as_probable_as_it_was_frequent() -> None:
    data = TASKS[0]
    model = inference([(0, data), (1, np.tile(data, (3, 1))), (2, np.tile(data, (6, 1)))], 1e-4)
    np.testing.assert_allclose(np.exp(log_probabilities(model, INPUTS)), [[0.1, 0.3, 0.6]] * len(INPUTS), rtol=1e-9)


def test_a_tasks_probability_is_the_sum_over_its_classes_gaussians() -> None:
    parts = [(task, part) for task, data in enumerate(TASKS) for part in np.array_split(data, (2, 3, 4)[task])]
    got = np.exp(log_probabilities(inference(parts, 1e-3), INPUTS))
    joint = np.exp(posterior([part for _, part in parts], 1e-3, INPUTS))
    owner = np.array([task for task, _ in parts])
    expected = np.stack([joint[:, owner == task].sum(1) for task in range(3)], axis=1)
    np.testing.assert_allclose(got, expected, rtol=1e-8)


def test_groups_may_come_in_any_order_and_after_questions_have_been_asked() -> None:
    model = inference([(2, TASKS[2]), (0, TASKS[0])], 1e-4)
    alone = log_probabilities(model, INPUTS)
    assert np.isneginf(alone[:, 1]).all()
    model.add(1, moments(TASKS[1]))
    np.testing.assert_allclose(log_probabilities(model, INPUTS), posterior(TASKS, 1e-4, INPUTS), rtol=1e-8)


@pytest.mark.parametrize("distance", [1e3, 1e8, 1e30])
def test_far_away_inputs_get_finite_answers_that_still_sum_to_one(distance: float) -> None:
    x = INPUTS * distance
    got = log_probabilities(inference(list(enumerate(TASKS)), 1e-4), x)
    np.testing.assert_allclose(np.exp(got).sum(1), 1.0, rtol=1e-12)
    assert np.isfinite(got).all()
    np.testing.assert_allclose(got, posterior(TASKS, 1e-4, x), rtol=1e-6)


def test_features_far_from_the_origin_do_not_blur_the_answer() -> None:
    offset = 1e5
    got = log_probabilities(inference([(t, data + offset) for t, data in enumerate(TASKS)], 1e-4), INPUTS + offset)
    np.testing.assert_allclose(got, posterior(TASKS, 1e-4, INPUTS), rtol=1e-5, atol=1e-6)


def test_the_answer_does_not_depend_on_how_rows_are_grouped_into_chunks() -> None:
    model = inference(list(enumerate(TASKS)), 1e-4)
    whole = model.log_scores(torch.tensor(INPUTS))
    cut = torch.cat([model.log_scores(rows) for rows in torch.tensor(INPUTS).split(7)])
    np.testing.assert_allclose(whole.numpy(), cut.numpy(), rtol=1e-12)
    assert model.log_scores(torch.empty(0, DIMENSIONS)).shape == (0, 3)


# Rank-deficient features and the one ridge


def test_dead_dimensions_change_nothing() -> None:
    def padded(data: np.ndarray) -> np.ndarray:
        return np.concatenate([data, np.full((len(data), 30), 2.5)], axis=1)

    with_dead = inference([(t, padded(data)) for t, data in enumerate(TASKS)], 1e-4)
    got = log_probabilities(with_dead, padded(INPUTS))
    np.testing.assert_allclose(got, posterior(TASKS, 1e-4, INPUTS), rtol=1e-7, atol=1e-9)


def test_duplicated_dimensions_change_nothing_but_their_share_of_the_ridge() -> None:
    """n copies of a feature are one feature of n times the variance: the ridge ρ weighs like ρ/n."""
    doubled = inference([(t, np.tile(data, 3)) for t, data in enumerate(TASKS)], 3e-4)
    got = log_probabilities(doubled, np.tile(INPUTS, 3))
    np.testing.assert_allclose(got, posterior(TASKS, 1e-4, INPUTS), rtol=1e-7, atol=1e-9)


def test_a_rotation_into_more_dimensions_than_the_features_fill_changes_nothing() -> None:
    basis = np.linalg.qr(np.random.default_rng(3).normal(size=(12, DIMENSIONS)))[0]
    rotated = inference([(t, data @ basis.T) for t, data in enumerate(TASKS)], 1e-4)
    got = log_probabilities(rotated, INPUTS @ basis.T)
    np.testing.assert_allclose(got, posterior(TASKS, 1e-4, INPUTS), rtol=1e-7, atol=1e-9)


def test_a_task_so_large_that_its_rounding_errors_outweigh_the_ridge_is_still_answered() -> None:
    basis = np.linalg.qr(np.random.default_rng(3).normal(size=(60, DIMENSIONS)))[0]
    tasks = [TASKS[0], TASKS[1] * 1e8, TASKS[2]]
    groups = [data @ basis.T for data in tasks]
    covariance = moments(groups[1]).covariance + 1e-4 * torch.eye(60, dtype=torch.float64)
    assert int(torch.linalg.cholesky_ex(covariance).info) > 0, "not positive definite any more"
    x = np.concatenate([INPUTS, tasks[1][:5]])
    got = log_probabilities(inference(list(enumerate(groups)), 1e-4), x @ basis.T)
    expected = posterior(tasks, 1e-4, x)
    assert got.argmax(1).tolist() == expected.argmax(1).tolist()
    np.testing.assert_allclose(np.exp(got).sum(1), 1.0, rtol=1e-12)


def test_tasks_of_very_different_scale_share_one_ridge() -> None:
    small, large = TASKS[0] * 0.01, TASKS[1] * 100
    model = inference([(0, small), (1, large)], 1e-4)
    x = np.concatenate([small[:10], large[:10]])
    expected = posterior([small, large], 1e-4, x)
    np.testing.assert_allclose(log_probabilities(model, x), expected, rtol=1e-7, atol=1e-9)


def test_the_ridge_is_a_share_of_the_first_tasks_mean_variance_however_it_is_grouped() -> None:
    expected = 1e-3 * TASKS[2].var(0).mean()
    for parts in (1, 2, 5):
        model = Gaussian(ridge=1e-3)
        model.set_scale([moments(part) for part in np.array_split(TASKS[2], parts)])
        assert model.absolute_ridge == pytest.approx(expected, rel=1e-10)


def test_features_that_never_vary_still_get_a_positive_ridge() -> None:
    model = Gaussian(ridge=1e-3)
    constant = moments(np.ones((5, DIMENSIONS)))
    model.set_scale([constant])
    model.add(0, constant)
    model.add(1, moments(TASKS[0]))
    assert np.isfinite(log_probabilities(model, INPUTS)).all()


@pytest.mark.parametrize("per_class", [False, True])
def test_learning_tasks_in_batches_is_taking_their_moments(per_class: bool) -> None:
    model = Gaussian(ridge=1e-3, per="class" if per_class else "task")
    groups: list[tuple[int, np.ndarray]] = []
    for task, data in enumerate(TASKS):
        y = np.arange(len(data)) % 2
        batches = zip(torch.tensor(data).split(50), torch.tensor(y).split(50), strict=True)
        model.learn(task, batches, 2)
        groups += [(task, data[y == number]) for number in (0, 1)] if per_class else [(task, data)]
    assert model.absolute_ridge == pytest.approx(1e-3 * TASKS[0].var(0).mean(), rel=1e-10)
    expected = inference(groups, model.absolute_ridge)
    np.testing.assert_allclose(log_probabilities(model, INPUTS), log_probabilities(expected, INPUTS), rtol=1e-8)


def test_what_is_stored_of_tasks_gives_the_same_scores() -> None:
    for per_class in (False, True):
        model, again = (Gaussian(ridge=1e-3, per="class" if per_class else "task") for _ in range(2))
        for task, data in enumerate(TASKS):
            model.learn(task, [(torch.tensor(data), torch.arange(len(data)) % 3)], 3)
        again.load_state(model.state(), [model.task_state(task) for task in range(3)])
        assert torch.equal(again.log_scores(torch.tensor(INPUTS)), model.log_scores(torch.tensor(INPUTS)))


@pytest.mark.parametrize("ridge", [0.0, -1.0, float("nan")])
def test_a_ridge_that_is_not_positive_is_refused(ridge: float) -> None:
    with pytest.raises(InputError, match=f"ridge is {ridge}"):
        Gaussian(ridge=ridge)


def test_float32_features_are_answered_in_float64() -> None:
    model = inference(list(enumerate(TASKS)), 1e-4)
    x: Tensor = torch.tensor(INPUTS).float()
    got = model.log_scores(x).log_softmax(1)
    assert got.dtype == torch.float64
    np.testing.assert_allclose(got.numpy(), posterior(TASKS, 1e-4, x.double().numpy()), rtol=1e-8, atol=1e-9)
