"""VCL and its coreset against torch.distributions, brute force and Monte Carlo; networks are small, data digits."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator

import pytest
import torch
from safetensors.torch import load, save
from torch import Tensor
from torch.distributions import Normal, kl_divergence
from torch.nn import functional as F

from ibpwf.errors import InputError
from ibpwf.lab.data.tasks import Scenario
from ibpwf.lab.methods.bayesian_layers import GaussianLinear, kl_gaussian
from ibpwf.lab.methods.dense import Problem
from ibpwf.lab.methods.rehearsal import shares
from ibpwf.lab.methods.vcl import LIKELIHOOD, VCL, VCLCoreset, k_center
from ibpwf.training.loop import Training
from ibpwf.training.method import TaskData

QUICK = {"hidden": (24,), "epochs": 3, "likelihood_epochs": 2, "batch_size": 32, "learning_rate": 3e-3, "samples": 4}
CORESET = {**QUICK, "memory_size": 60, "coreset_epochs": 10}


def new(cls: type[VCL], setting: str = "task", seed: int = 0, **changes: object) -> VCL:
    start = CORESET if issubclass(cls, VCLCoreset) else QUICK
    return cls(Problem((64,), 10, setting), cls.settings_type().replace(**{**start, **changes}), seed=seed)


def task_data(digits: Scenario, number: int, seed: int = 0, index: int | None = None) -> TaskData:
    task = digits[number]
    classes, y = torch.unique(task.train.y, return_inverse=True)
    return TaskData(task.name, number if index is None else index, tuple(classes.tolist()), task.train.x, y, seed)


def learn(method: VCL, digits: Scenario, *numbers: int) -> VCL:
    for number in numbers:
        for _ in Training(method, task_data(digits, number, method.seed)).run():
            pass
    return method


def accuracy(method: VCL, digits: Scenario, tasks: int) -> float:
    scores = []
    for number in range(tasks):
        x, y = digits[number].test.x, digits[number].test.y
        given = torch.full((len(y),), number) if method.problem.setting == "task" else None
        scores.append(
            float((method.predict(x, given, marginal=False, posterior_samples=0, seed=0).labels == y).float().mean())
        )
    return sum(scores) / tasks


def everything(method: VCL) -> dict[str, Tensor]:
    """All tensors a method stores, by file and name, cloned."""
    files = method.state()[1]
    return {f"{file}:{name}": t.clone() for file, tensors in files.items() for name, t in tensors.items()}


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def through_disk(method: VCL) -> VCL:
    """A fresh object from what `configuration` and `state` say, both as bytes in between."""
    content, files = method.state()
    fresh = type(method).create(json.loads(json.dumps(method.configuration())))
    stored = {name: load(save({k: t.contiguous() for k, t in tensors.items()})) for name, tensors in files.items()}
    fresh.load_state(json.loads(json.dumps(content)), stored)
    return fresh


def normals(layer: GaussianLinear) -> Iterator[tuple[Normal, Normal]]:
    """(q, prior) of the weight and of the bias, in float64."""
    for mean, log_std, (prior_mean, prior_log_std) in zip(layer.means, layer.log_stds, layer.prior, strict=True):
        q = Normal(mean.detach().double(), log_std.detach().double().exp())
        yield q, Normal(prior_mean.double(), prior_log_std.double().exp())


def shaken(layer: GaussianLinear, seed: int = 0) -> GaussianLinear:
    """The layer with means and widths all over the place."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for mean, log_std in zip(layer.means, layer.log_stds, strict=True):
            mean.copy_(torch.randn(mean.shape, generator=generator))
            log_std.copy_(torch.randn(mean.shape, generator=generator) - 1)
    return layer


class TestGaussianLayers:
    def test_the_kl_and_its_gradients_are_those_of_torch(self) -> None:
        torch.manual_seed(0)
        mean, prior_mean = torch.randn(2, 7, 5)
        log_std, prior_log_std = torch.randn(2, 7, 5) - 1
        ours = [mean.clone().requires_grad_(), log_std.clone().requires_grad_()]
        total = kl_gaussian(*ours, prior_mean, prior_log_std)
        (3 * total).backward()
        theirs = [mean.double().requires_grad_(), log_std.double().requires_grad_()]
        prior = Normal(prior_mean.double(), prior_log_std.double().exp())
        truth = kl_divergence(Normal(theirs[0], theirs[1].exp()), prior).sum()
        (3 * truth).backward()
        assert float(total.detach()) == pytest.approx(float(truth.detach()), rel=1e-5)
        for our, their in zip(ours, theirs, strict=True):
            torch.testing.assert_close(our.grad.double(), their.grad, rtol=1e-4, atol=1e-4)

    def test_a_layers_kl_counts_the_rows_asked_for(self) -> None:
        layer = shaken(GaussianLinear(6, 5, prior_std=0.7))
        for rows in (0, 2, 5):
            truth = sum(float(kl_divergence(q, p)[:rows].sum()) for q, p in normals(layer))
            assert float(layer.kl(rows).detach()) == pytest.approx(truth, rel=1e-5)
        assert all(float(p.stddev.min()) == pytest.approx(0.7) for _, p in normals(layer))

    def test_local_reparametrization_has_the_mean_and_variance_of_drawn_weights(self) -> None:
        layer = shaken(GaussianLinear(8, 3, prior_std=1.0))
        x = torch.randn(8, generator=torch.Generator().manual_seed(1))
        noise = torch.Generator().manual_seed(2)
        count = 10_000
        with torch.no_grad():
            local = layer(x.expand(count, -1), noise)
            drawn = torch.stack([F.linear(x, *layer.draw(noise)) for _ in range(count)])
        spread = drawn.std(0)
        assert ((local.mean(0) - drawn.mean(0)).abs() < 5 * spread * (2 / count) ** 0.5).all()
        assert ((local.var(0) / drawn.var(0) - 1).abs() < 5 * 2 / count**0.5).all()

    def test_rows_draw_independently_and_without_noise_the_mean_comes_out(self) -> None:
        layer = shaken(GaussianLinear(4, 2, prior_std=1.0))
        x = torch.ones(20_000, 4)
        with torch.no_grad():
            out = layer(x, torch.Generator().manual_seed(0))
            plain = layer(x[:1], None)
        shift = (out - out.mean(0)) / out.std(0)
        assert (shift[1:] * shift[:-1]).mean(0).abs().max() < 0.05
        torch.testing.assert_close(plain[0], layer.means[0].detach().sum(1) + layer.means[1].detach())


class TestLearning:
    def test_the_posterior_of_one_task_is_the_prior_of_the_next(self, digits: Scenario) -> None:
        method = learn(new(VCL), digits, 0)
        method.begin_task(task_data(digits, 1))
        assert float(method.net.kl(2, method.noise).detach()) == 0.0
        for layer in method.net.layers()[:-1]:
            assert all(torch.equal(q.mean, p.mean) and torch.equal(q.stddev, p.stddev) for q, p in normals(layer))
        new_head = sum(float(kl_divergence(q, Normal(0.0, 1.0))[2:4].sum()) for q, _ in normals(method.net.head))
        assert float(method.net.kl(4, method.noise).detach()) == pytest.approx(new_head, rel=1e-5)

    def test_the_loss_is_cross_entropy_plus_kl_over_the_number_of_examples(self, digits: Scenario) -> None:
        method = learn(new(VCL), digits, 0)
        data = task_data(digits, 1)
        method.parameters(method.begin_task(data)[0])
        with torch.no_grad():
            for layer in method.net.layers():
                for mean, log_std in zip(layer.means, layer.log_stds, strict=True):
                    mean += 0.1
                    log_std.fill_(-14.0)  # so narrow that the draw is the mean
        loss, extra, accuracy = method.loss(data.x[:50], data.y[:50])
        x = data.x[:50]
        for layer in method.net.layers()[:-1]:
            x = F.linear(x, *layer.means).relu()
        logits = F.linear(x, *method.net.head.means)[:, 2:4]
        fit = F.cross_entropy(logits, data.y[:50])
        assert float(accuracy) == pytest.approx(float((logits.argmax(1) == data.y[:50]).double().mean()))
        hidden = sum(float(kl_divergence(q, p).sum()) for q, p in normals(method.net.hidden[0]))
        head = sum(float(kl_divergence(q, p)[:4].sum()) for q, p in normals(method.net.head))
        assert float(extra) == pytest.approx((hidden + head) / len(data.y), rel=1e-5)
        assert float(loss.detach()) == pytest.approx(float(fit.detach()) + float(extra), rel=1e-4)

    def test_the_first_task_alone_begins_with_maximum_likelihood_which_moves_only_means(
        self, digits: Scenario
    ) -> None:
        method = new(VCL)
        first, second = method.begin_task(task_data(digits, 0))
        assert (first.name, first.epochs, second.epochs) == (LIKELIHOOD, 2, 3)
        moving = {id(p) for p in method.parameters(first)}
        assert moving == {id(mean) for layer in method.net.layers() for mean in layer.means}
        loss, penalty, _ = method.loss(*(part[:40] for part in (task_data(digits, 0).x, task_data(digits, 0).y)))
        again, _, _ = method.loss(*(part[:40] for part in (task_data(digits, 0).x, task_data(digits, 0).y)))
        assert float(penalty) == 0.0
        assert torch.equal(loss, again)
        method = learn(new(VCL), digits, 0)
        assert [phase.name for phase in method.begin_task(task_data(digits, 1))] == ["train"]

    def test_an_old_head_stays_to_the_bit_with_a_head_per_task_and_not_with_one_for_all(
        self, digits: Scenario
    ) -> None:
        for setting, stays in (("task", True), ("class", False)):
            method = learn(new(VCL, setting), digits, 0)
            before = everything(method)
            learn(method, digits, 1)
            after = everything(method)
            for name in ("head.means.0", "head.means.1", "head.log_stds.0", "head.log_stds.1"):
                assert torch.equal(before[f"network:{name}"][:2], after[f"network:{name}"][:2]) == stays
                assert torch.equal(before[f"network:{name}"][4:], after[f"network:{name}"][4:])
            assert not torch.equal(before["network:hidden.0.means.0"], after["network:hidden.0.means.0"])

    def test_it_learns_and_remembers_digits(self, digits: Scenario) -> None:
        settings = {"hidden": (64,), "epochs": 15, "likelihood_epochs": 5}
        assert accuracy(learn(new(VCL, **settings), digits, 0, 1, 2), digits, 3) > 0.93


class TestAnswering:
    @pytest.mark.parametrize("setting", ["task", "class"])
    def test_an_answer_is_the_mean_over_networks_drawn_from_the_posterior(
        self, digits: Scenario, setting: str
    ) -> None:
        method = learn(new(VCL, setting), digits, 0, 1)
        x = digits[1].test.x[:20]
        given = torch.ones(20, dtype=torch.int64) if setting == "task" else None
        got = method.predict(x, given, marginal=False, posterior_samples=1200, seed=1).probabilities
        torch.manual_seed(7)
        layers = [[q for q, _ in normals(layer)] for layer in method.net.layers()]
        total = torch.zeros(20, 4, dtype=torch.float64)
        own = slice(2, 4) if setting == "task" else slice(0, 4)
        for _ in range(1200):
            h = x.double()
            for weight, bias in layers[:-1]:
                h = (h @ weight.sample().T + bias.sample()).relu()
            total[:, own] += (h @ layers[-1][0].sample().T + layers[-1][1].sample())[:, own].softmax(1)
        assert (got - total / 1200).abs().max() < 5 * 0.5 * math.sqrt(2 / 1200)

    def test_draws_depend_on_the_seed_alone_and_not_on_what_else_is_asked(self, digits: Scenario) -> None:
        method = learn(new(VCL, "class"), digits, 0, 1)
        x = digits[0].test.x

        def ask(rows: Tensor, seed: int, posterior_samples: int = 0) -> Tensor:
            return method.predict(
                rows, None, marginal=False, posterior_samples=posterior_samples, seed=seed
            ).probabilities

        assert torch.equal(ask(x, 0), ask(x, 0))
        assert not torch.equal(ask(x, 0), ask(x, 1))
        assert torch.equal(ask(x, 0), ask(x, 0, posterior_samples=method.settings.samples))
        torch.testing.assert_close(ask(x, 0)[:5], ask(x[:5], 0), rtol=1e-5, atol=1e-6)


class TestChoosingACoreset:
    def test_k_center_takes_the_farthest_row_each_time_as_a_loop_over_all_pairs_does(self) -> None:
        x = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
        chosen = [4]
        while len(chosen) < 9:
            nearest = {r: min(float((x[r] - x[c]).norm()) for c in chosen) for r in range(40) if r not in chosen}
            chosen.append(max(nearest, key=nearest.__getitem__))
        assert k_center(x, 9, 4).tolist() == chosen
        assert k_center(x, 5, 4).tolist() == chosen[:5]

    def test_k_center_is_at_most_twice_as_far_off_as_the_best_of_all_choices(self) -> None:
        for seed, count in itertools.product(range(4), (2, 3)):
            x = torch.randn(14, 2, generator=torch.Generator().manual_seed(seed))
            distances = torch.cdist(x, x)
            choices = itertools.combinations(range(14), count)
            best = min(float(distances[:, list(c)].min(1).values.max()) for c in choices)
            radius = float(distances[:, k_center(x, count, 0)].min(1).values.max())
            assert best <= radius * (1 + 1e-6)
            assert radius <= 2 * best * (1 + 1e-6)

    def test_shares_fill_the_memory_evenly_and_never_grow(self) -> None:
        for memory, tasks in itertools.product((1, 7, 40, 400, 1103), range(1, 12)):
            parts = shares(memory, tasks)
            assert sum(parts) == memory
            assert max(parts) - min(parts) <= 1
            assert all(after <= before for before, after in zip(parts, shares(memory, tasks + 1), strict=False))

    @pytest.mark.parametrize("selection", ["random", "k-center"])
    def test_what_is_kept_is_each_tasks_own_data_and_what_was_kept_before(
        self, digits: Scenario, selection: str
    ) -> None:
        method = new(VCLCoreset, epochs=1, coreset_epochs=1, memory_size=50, selection=selection)
        for number in range(3):
            before = method.examples
            learn(method, digits, number)
            assert [len(y) for _, y in method.examples] == shares(50, number + 1)
            for (x, y), (old_x, old_y) in zip(method.examples, before, strict=False):
                assert torch.equal(x, old_x[: len(x)])
                assert torch.equal(y, old_y[: len(y)])
            data, (x, y) = task_data(digits, number), method.examples[number]
            rows = [int((data.x == row).all(1).nonzero()[0]) for row in x]
            assert len(set(rows)) == len(rows)
            assert torch.equal(y, data.y[rows] + 2 * number)


class TestUsingACoreset:
    def test_the_posterior_handed_on_knows_nothing_of_the_coreset(self, digits: Scenario) -> None:
        method, other = new(VCLCoreset, "class", epochs=1), new(VCLCoreset, "class", epochs=1)
        for number in (0, 1):
            data = task_data(digits, number)
            for _ in Training(method, data).run():
                pass
            x, y = data.x.clone(), data.y.clone()
            x[method.held_out] = 1e3
            y[method.held_out] = 1 - y[method.held_out]
            for _ in Training(other, TaskData(data.name, number, data.classes, x, y, 0)).run():
                pass
        assert same(method.state()[1]["network"], other.state()[1]["network"])
        assert not same(method.kept(), other.kept())

    def test_learning_the_coreset_leaves_the_posterior_handed_on_as_it_was(self, digits: Scenario) -> None:
        method = learn(new(VCLCoreset, "class"), digits, 0)
        for phase in method.begin_task(task_data(digits, 1)):
            method.parameters(phase)
        with torch.no_grad():
            method.net.head.means[0][:4] += 0.05
        before = {name: tensor.clone() for name, tensor in method.net.state_dict().items()}
        method.end_task(task_data(digits, 1))
        assert same(before, method.net.state_dict())
        assert method.answerer is not None
        changed = method.answerer.state_dict()
        assert not any(torch.equal(before[name][:4], changed[name][:4]) for name in before)
        assert all(torch.equal(before[name][4:], changed[name][4:]) for name in before if name.startswith("head"))

    def test_the_next_task_starts_from_the_posterior_handed_on(self, digits: Scenario) -> None:
        method = learn(new(VCLCoreset), digits, 0)
        method.begin_task(task_data(digits, 1))
        assert float(method.net.kl(2, method.noise).detach()) == 0.0
        assert method.examples_trained == len(task_data(digits, 1).y) - 30

    def test_the_coreset_brings_old_classes_back(self, digits: Scenario) -> None:
        settings = {"hidden": (64,), "epochs": 10, "likelihood_epochs": 5}
        plain = accuracy(learn(new(VCL, "class", **settings), digits, 0, 1, 2), digits, 3)
        method = new(VCLCoreset, "class", memory_size=120, coreset_epochs=60, **settings)
        kept = accuracy(learn(method, digits, 0, 1, 2), digits, 3)
        assert kept > 0.8
        assert plain < 0.6

    def test_the_heavier_the_kl_the_nearer_the_answer_stays_to_the_posterior(self, digits: Scenario) -> None:
        moved = []
        for weight in (0.0, 1.0, 100.0):
            method = learn(new(VCLCoreset, epochs=1, coreset_epochs=30, coreset_kl_weight=weight), digits, 0)
            moved.append(float((method.answering.hidden[0].means[0] - method.net.hidden[0].means[0]).detach().norm()))
        assert moved[0] > 1.2 * moved[1] > 1.2 * 1.2 * moved[2]


@pytest.mark.parametrize("setting", ["task", "class"])
@pytest.mark.parametrize("cls", [VCL, VCLCoreset])
class TestKeeping:
    def test_a_method_that_learned_nothing_can_be_stored(
        self, digits: Scenario, cls: type[VCL], setting: str
    ) -> None:
        method = new(cls, setting, epochs=1)
        loaded = through_disk(method)
        assert same(everything(learn(method, digits, 0)), everything(learn(loaded, digits, 0)))


def test_a_coreset_as_large_as_the_task_is_refused_and_leaves_no_trace(digits: Scenario) -> None:
    method = new(VCLCoreset, memory_size=len(task_data(digits, 0).y))
    before = everything(method)
    with pytest.raises(InputError, match=r"memory_size is 288; task '0/1' has 288 examples"):
        learn(method, digits, 0)
    assert same(before, everything(method))
    assert method.classes == []
