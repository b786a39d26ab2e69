"""IBNN's selection of units against scipy and Monte Carlo in float64, and the method on digits."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import integrate, special, stats
from torch import Tensor
from torch.distributions import Normal, kl_divergence
from torch.nn import functional as F

from ibpwf.lab.data.tasks import Scenario
from ibpwf.lab.methods.dense import Problem
from ibpwf.lab.methods.ibnn import IBNN, IBNNSettings, UnitSelection
from ibpwf.lab.methods.vcl import LIKELIHOOD
from ibpwf.training.loop import Training
from ibpwf.training.method import TaskData

QUICK = {
    "hidden": (24, 16),
    "epochs": 2,
    "likelihood_epochs": 2,
    "batch_size": 32,
    "learning_rate": 3e-3,
    "samples": 4,
    "alpha": 12.0,
}


def new(setting: str = "task", seed: int = 0, **changes: object) -> IBNN:
    return IBNN(Problem((64,), 10, setting), IBNNSettings().replace(**{**QUICK, **changes}), seed=seed)


def task_data(digits: Scenario, number: int, seed: int = 0, index: int | None = None) -> TaskData:
    task = digits[number]
    classes, y = torch.unique(task.train.y, return_inverse=True)
    return TaskData(task.name, number if index is None else index, tuple(classes.tolist()), task.train.x, y, seed)


def learn(method: IBNN, digits: Scenario, *numbers: int) -> IBNN:
    for number in numbers:
        for _ in Training(method, task_data(digits, number, method.seed)).run():
            pass
    return method


def everything(method: IBNN) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in method.state()[1]["network"].items()}


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def set_selection(selection: UnitSelection, logit: list[float], c: list[float], d: list[float]) -> UnitSelection:
    with torch.no_grad():
        selection.logit.copy_(torch.tensor(logit))
        selection.log_c.copy_(torch.tensor(c).log())
        selection.log_d.copy_(torch.tensor(d).log())
    return selection


LOGIT, C, D = [1.5, -0.5, 0.2, -2.0], [6.0, 3.0, 9.0, 4.0], [1.4, 0.8, 1.0, 2.0]


# The truth: numpy and scipy in float64, nothing of the library's.


def stick_kl(c: float, d: float, prior_c: float, prior_d: float) -> float:
    """KL(Kumaraswamy(c, d) ‖ Kumaraswamy(prior)) by quadrature over the quantiles of q."""

    def log_density(v: float, a: float, b: float) -> float:
        return float(np.log(a * b) + (a - 1) * np.log(v) + (b - 1) * np.log1p(-(v**a)))

    def difference(u: float) -> float:
        v = (1 - u ** (1 / d)) ** (1 / c)
        return log_density(v, c, d) - log_density(v, prior_c, prior_d)

    return float(integrate.quad(difference, 0, 1, limit=200)[0])


def selection_kl(draws: int) -> np.ndarray:
    """Σ_k KL(q(b_k) ‖ p(b_k | v)) for many v ~ q(v), each KL between logistics by the trapezium rule."""
    rng = np.random.default_rng(0)
    v = (1 - rng.random((draws, 4)) ** (1 / np.array(D))) ** (1 / np.array(C))
    shift = np.array(LOGIT) - special.logit(np.cumprod(v, axis=1))
    z = np.linspace(-40, 40, 801)
    weight = stats.logistic.pdf(z) * (z[1] - z[0])
    grid = np.linspace(-40, 40, 1601)
    table = [weight @ (stats.logistic.logpdf(z) - stats.logistic.logpdf(z + s)) for s in grid]
    return np.interp(shift, grid, table).sum(1)


class TestSelectingUnits:
    def test_the_sticks_kl_is_the_quadratures_before_and_after_a_task(self) -> None:
        selection = set_selection(UnitSelection(4, 5.0, 0.7), LOGIT, C, D)
        truth = sum(stick_kl(c, d, 5.0, 1.0) for c, d in zip(C, D, strict=True))
        assert float(selection.stick_kl().detach()) == pytest.approx(truth, rel=1e-4)
        selection.take_prior(learned=2)
        assert abs(float(selection.stick_kl().detach())) < 1e-5
        set_selection(selection, LOGIT, [5.0] * 4, [1.2] * 4)
        truth = sum(stick_kl(5.0, 1.2, c, d) for c, d in zip(C, D, strict=True))
        assert float(selection.stick_kl().detach()) == pytest.approx(truth, rel=1e-4)

    def test_the_selections_kl_is_right_on_average_over_the_sticks(self) -> None:
        selection = set_selection(UnitSelection(4, 5.0, 0.7), LOGIT, C, D)
        noise = torch.Generator().manual_seed(0)
        with torch.no_grad():
            got = np.array([float(selection.selection_kl(noise)) for _ in range(4000)])
        truth = selection_kl(200_000)
        assert abs(got.mean() - truth.mean()) < 5 * truth.std() / 4000**0.5
        assert got.std() == pytest.approx(truth.std(), rel=0.2)

    def test_a_unit_is_more_than_half_on_as_often_as_its_probability_says(self) -> None:
        selection = set_selection(UnitSelection(4, 5.0, 0.7), LOGIT, C, D)
        with torch.no_grad():
            b = selection(20_000, torch.Generator().manual_seed(0))
        assert b.shape == (20_000, 4)
        share = (b > 0.5).double().mean(0).numpy()
        assert np.abs(share - special.expit(LOGIT)).max() < 5 * 0.5 / 20_000**0.5
        assert abs(np.corrcoef(b[1:, 0], b[:-1, 0])[0, 1]) < 0.05


class TestLearning:
    def test_the_whole_kl_is_the_sum_of_gaussians_sticks_and_selections(self, digits: Scenario) -> None:
        method = learn(new(), digits, 0)
        method.begin_task(task_data(digits, 1))
        net = method.net
        with torch.no_grad():
            for layer in net.layers():
                layer.means[0] += 0.2
        for selection in net.selected():
            units = len(selection.logit)
            set_selection(selection, [0.3] * units, [8.0] * units, [1.1] * units)
        got = net.kl(4, torch.Generator().manual_seed(9))
        truth = 0.0
        for number, layer in enumerate(net.layers()):
            rows = 4 if number == 2 else len(layer.means[0])
            for mean, log_std, (m0, s0) in zip(layer.means, layer.log_stds, layer.prior, strict=True):
                q = Normal(mean.detach().double(), log_std.detach().double().exp())
                truth += float(kl_divergence(q, Normal(m0.double(), s0.double().exp()))[:rows].sum())
        noise = torch.Generator().manual_seed(9)
        for selection in net.selected():
            truth += float(selection.selection_kl(noise).detach())
            prior = zip(*(part.tolist() for part in selection.prior), strict=True)
            truth += sum(stick_kl(8.0, 1.1, c, d) for c, d in prior)
        assert float(got.detach()) == pytest.approx(truth, rel=1e-4)

    def test_the_posteriors_of_weights_and_sticks_are_the_next_tasks_prior(self, digits: Scenario) -> None:
        method = learn(new(), digits, 0)
        first = [s.prior for s in new().net.selected()]
        method.begin_task(task_data(digits, 1))
        for selection, untrained in zip(method.net.selected(), first, strict=True):
            assert torch.equal(selection.prior[0], selection.log_c.detach().exp())
            assert torch.equal(selection.prior[1], selection.log_d.detach().exp())
            assert not torch.equal(selection.prior[0], untrained[0])
        gaussian = [layer.kl() for layer in method.net.layers()[:-1]] + [method.net.head.kl(2)]
        assert float(torch.stack(gaussian).sum().detach()) == 0.0

    def test_a_larger_alpha_leaves_more_units_on(self, digits: Scenario) -> None:
        used = []
        for alpha in (1.0, 8.0, 60.0):
            method = new(alpha=alpha, hidden=(48,), epochs=12, learning_rate=0.02, likelihood_epochs=0)
            learn(method, digits, 0)
            used.append(float(torch.sigmoid(method.net.selected()[0].logit.detach()).sum()))
            assert method.counts().active == int((method.net.selected()[0].logit > 0).sum())
        assert used[0] + 2 < used[1]
        assert used[1] + 5 < used[2]

    def test_maximum_likelihood_trains_the_plain_network_and_no_selection(self, digits: Scenario) -> None:
        method, data = new(), task_data(digits, 0)
        phase = method.begin_task(data)[0]
        assert phase.name == LIKELIHOOD
        moving = {id(p) for p in method.parameters(phase)}
        assert not moving & {id(p) for p in method.net.selections.parameters()}
        x = data.x[:40]
        for layer in method.net.layers()[:-1]:
            x = F.linear(x, *layer.means).relu()
        truth = F.cross_entropy(F.linear(x, *method.net.head.means)[:, :2], data.y[:40])
        torch.testing.assert_close(method.loss(data.x[:40], data.y[:40])[0], truth)

    def test_it_learns_and_remembers_digits(self, digits: Scenario) -> None:
        method = new(hidden=(64,), alpha=40.0, epochs=12, likelihood_epochs=5)
        learn(method, digits, 0, 1, 2)
        scores = []
        for number in range(3):
            x, y = digits[number].test.x, digits[number].test.y
            given = torch.full((len(y),), number)
            scores.append(
                float(
                    (method.predict(x, given, marginal=False, posterior_samples=0, seed=0).labels == y).float().mean()
                )
            )
        assert sum(scores) / 3 > 0.9


class TestAnswering:
    def test_a_unit_answers_as_far_as_it_is_selected(self, digits: Scenario) -> None:
        """Networks drawn with b at π̄, against the same weights used by hand."""
        method = learn(new("class"), digits, 0, 1)
        x = digits[1].test.x[:30]
        got = method.predict(x, None, marginal=False, posterior_samples=1, seed=3).probabilities
        noise = torch.Generator().manual_seed(3)
        h = x
        for number, layer in enumerate(method.net.layers()):
            h = F.linear(h, *layer.draw(noise))
            if number < 2:
                h = h.relu() * torch.sigmoid(method.net.selected()[number].logit.detach())
        torch.testing.assert_close(got, h[:, :4].double().softmax(1), rtol=1e-4, atol=1e-6)

    def test_the_head_with_the_lowest_entropy_answers(self, digits: Scenario) -> None:
        method = learn(new("class", infer_task="entropy"), digits, 0, 1)
        x = torch.cat([digits[0].test.x, digits[1].test.x])

        def head(number: int) -> tuple[np.ndarray, np.ndarray]:
            given = torch.full((len(x),), number)
            p = method.predict(x, given, marginal=False, posterior_samples=0, seed=0).probabilities[
                :, 2 * number : 2 * number + 2
            ]
            return p.numpy(), stats.entropy(p.numpy(), axis=1)

        (p0, doubt0), (p1, doubt1) = head(0), head(1)
        answer = method.predict(x, None, marginal=False, posterior_samples=0, seed=0)
        second = doubt1 < doubt0
        assert 0 < second.sum() < len(x)
        assert np.array_equal(answer.task.numpy(), second.astype(int))
        truth = np.where(second[:, None], np.hstack([0 * p0, p1]), np.hstack([p0, 0 * p1]))
        np.testing.assert_allclose(answer.probabilities.numpy(), truth, rtol=1e-6)
        right = (doubt1.mean() < doubt0.mean()).astype(int)
        method.settings = method.settings.replace(infer_task="batch-entropy")
        together = method.predict(x, None, marginal=False, posterior_samples=0, seed=0)
        assert torch.equal(together.task, torch.full((len(x),), int(right)))

    def test_inferring_the_task_trains_the_same_heads_as_being_given_it(self, digits: Scenario) -> None:
        given = learn(new("task", epochs=1), digits, 0, 1)
        inferred = learn(new("class", epochs=1, infer_task="entropy"), digits, 0, 1)
        single = learn(new("class", epochs=1), digits, 0, 1)
        assert same(everything(given), everything(inferred))
        assert not same(everything(given), everything(single))
