"""Generative replay: the VAE against quadrature, replay against its definition, and DGR and RtF on digits."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from digit_tasks import data_of, learn
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.distributions import Bernoulli, Normal, kl_divergence
from torch.nn import functional as F

from ibpwf.lab.data.tasks import Scenario, Task
from ibpwf.lab.methods.dense import DenseMethod, Problem
from ibpwf.lab.methods.finetune import Adam
from ibpwf.lab.methods.generative_replay import DGR, RtF
from ibpwf.lab.methods.vae import VAE, kl_to_standard_normal, log_likelihood
from ibpwf.training.loop import Training
from ibpwf.training.method import TaskData

SMALL: dict[str, Any] = {"hidden": (32, 24), "epochs": 2, "batch_size": 32, "learning_rate": 0.003}
BOTH = pytest.mark.parametrize("kind", [DGR, RtF])
SETTINGS = pytest.mark.parametrize("setting", ["task", "class"])


def make(kind: type[DenseMethod], setting: str, **changes: Any) -> Any:
    generative = {"latent": 8} if issubclass(kind, DGR) else {}
    steps = {"iterations": None} if issubclass(kind, RtF) else {}
    settings = kind.settings_type().replace(**{**SMALL, **generative, **steps, **changes})
    return kind(Problem((64,), 10, setting), settings, seed=3)


def accuracy(method: DenseMethod, task: Task) -> float:
    answer = method.predict(task.test.x, None, marginal=False, posterior_samples=0, seed=0)
    return float((answer.labels == task.test.y).double().mean())


# The VAE


@pytest.fixture(scope="module")
def flat_vae(digits: Scenario) -> VAE:
    """A VAE of ones and zeros with a latent plane, where every integral can be done on a grid."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        vae = VAE(64, (32,), 2).double()
    x = digits[0].train.x.double()
    vae.set_range(x)
    optimizer = torch.optim.Adam(vae.parameters(), lr=0.01)
    generator = torch.Generator().manual_seed(0)
    for _ in range(200):
        loss = -vae.elbo(x, vae.encoder(x), generator).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return vae.requires_grad_(False)


def exact_log_likelihood(vae: VAE, x: Tensor) -> Tensor:
    """log ∫ p(x|z) N(z; 0, I) dz by the trapezium rule on the plane."""
    line = torch.linspace(-6, 6, 161, dtype=torch.float64)
    z = torch.cartesian_prod(line, line)
    log_prior = Normal(0.0, 1.0).log_prob(z).sum(1)
    rows = [(vae.log_conditional(row.expand(len(z), -1), z) + log_prior).logsumexp(0) for row in x]
    return torch.stack(rows) + 2 * math.log(float(line[1] - line[0]))


@given(st.integers(0, 1000))
@settings(max_examples=30, deadline=None)
def test_the_kl_is_that_of_torch(seed):
    mean, log_variance = torch.randn(2, 5, 7, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 3
    expected = kl_divergence(Normal(mean, (log_variance / 2).exp()), Normal(0.0, 1.0)).sum(1)
    assert torch.allclose(kl_to_standard_normal(mean, log_variance), expected, rtol=1e-10)


def test_the_elbo_lies_just_below_the_log_likelihood_and_more_samples_come_nearer(flat_vae: VAE, digits: Scenario):
    x = digits[0].test.x.double()[:8]
    exact = exact_log_likelihood(flat_vae, x)
    generator = torch.Generator().manual_seed(1)
    elbo = torch.stack([flat_vae.elbo(x, flat_vae.encoder(x), generator) for _ in range(2000)]).mean(0)
    few = torch.stack([log_likelihood(flat_vae, x, 5, generator) for _ in range(400)]).mean(0)
    many = log_likelihood(flat_vae, x, 4000, generator)
    assert bool((elbo < exact).all())
    assert float((exact - elbo).mean()) < 1.0  # against log p(x) of about −25: the encoder has been learned
    assert float((exact - few).mean()) < 0.7 * float((exact - elbo).mean())
    assert torch.allclose(many, exact, atol=0.1)


def test_one_importance_sample_is_on_average_the_elbo(flat_vae: VAE, digits: Scenario):
    x = digits[0].test.x.double()[:8]
    one = torch.stack([log_likelihood(flat_vae, x, 1, torch.Generator().manual_seed(s)) for s in range(1500)])
    elbo = torch.stack([flat_vae.elbo(x, flat_vae.encoder(x), torch.Generator().manual_seed(s)) for s in range(1500)])
    error = (one - elbo).std(0) / math.sqrt(1500)
    assert bool(((one.mean(0) - elbo.mean(0)).abs() < 5 * error + 1e-9).all())


def test_black_and_white_examples_have_the_likelihood_of_coins(flat_vae: VAE):
    generator = torch.Generator().manual_seed(0)
    u = (torch.rand(4, 64, generator=generator) < 0.5).double()
    z = torch.randn(4, 2, generator=generator, dtype=torch.float64)
    expected = Bernoulli(logits=flat_vae.decoder(z)).log_prob(u).sum(1)
    assert torch.allclose(flat_vae.log_conditional(flat_vae.low + flat_vae.span * u, z), expected)
    assert torch.allclose(flat_vae.log_conditional(100 * (2 * u - 1), z), expected)  # beyond the range is its end


def test_samples_stay_in_the_range_of_the_data_and_look_like_it(flat_vae: VAE, digits: Scenario):
    x = digits[0].train.x.double()
    z = torch.randn(500, 2, generator=torch.Generator().manual_seed(0)).double()
    samples = flat_vae.low + flat_vae.span * torch.sigmoid(flat_vae.decoder(z))
    assert float(samples.min()) >= float(x.min())
    assert float(samples.max()) <= float(x.max())
    assert float(torch.corrcoef(torch.stack([samples.mean(0), x.mean(0)]))[0, 1]) > 0.95
    assert 0.5 < float(samples.var(0).sum() / x.var(0).sum()) < 1.2


def test_data_of_one_value_only_gives_a_finite_bound():
    vae = VAE(4, (5,), 2)
    x = torch.full((3, 4), 0.7)
    vae.set_range(x)
    assert bool(torch.isfinite(vae.elbo(x, vae.encoder(x), torch.Generator().manual_seed(0))).all())
    assert bool(torch.isfinite(vae.sample(3, torch.Generator().manual_seed(0))).all())


# Replay


def replayed(method: Any, data: TaskData, count: int) -> Tensor:
    """What the method's generator must make first in a task: latent draws of the task's own stream, decoded."""
    z = torch.randn(count, 8, generator=data.generator("replay"))
    vae = method.net.vae
    return (vae.low + vae.span / (1 + torch.exp(-vae.decoder(z)))).detach()


@SETTINGS
def test_dgr_learns_the_previous_networks_labels_in_the_right_heads_weighted_by_tasks(setting, digits: Scenario):
    method = learn(make(DGR, setting), *digits[:2])
    data = data_of(digits[2])
    past = replayed(method, data, 32)
    scores = method.net(past).detach()  # the network before the task is the previous one
    method.begin_task(data)
    loss, bound, _ = (part.detach() for part in method.loss(data.x[:32], data.y[:32]))
    new = method.net(data.x[:32]).detach()
    if setting == "class":
        old = F.cross_entropy(scores[:, :6], scores[:, :4].argmax(1))
        fit = F.cross_entropy(new[:, :6], data.y[:32] + 4)
    else:
        heads = [scores[:, 0:2], scores[:, 2:4]]
        old = sum(F.cross_entropy(head, head.argmax(1)) for head in heads) / 2
        fit = F.cross_entropy(new[:, 4:6], data.y[:32])
    assert float(loss - bound) == pytest.approx(float(fit / 3 + old * 2 / 3), rel=1e-3)


@SETTINGS
def test_rtf_distils_the_previous_networks_answers_at_temperature_two(setting, digits: Scenario):
    method = learn(make(RtF, setting), *digits[:2])
    method.begin_task(data_of(digits[2]))
    generator = torch.Generator().manual_seed(0)
    now, before = torch.randn(2, 6, 10, generator=generator, dtype=torch.float64)
    rows = []
    for f, g in zip(now.tolist(), before.tolist(), strict=True):
        heads = [(range(4), range(6))] if setting == "class" else [(range(2), range(2)), (range(2, 4), range(2, 4))]
        for wanted, competing in heads:
            total_g = sum(math.exp(g[c] / 2) for c in wanted)
            total_f = sum(math.exp(f[c] / 2) for c in competing)
            soft = [math.exp(g[c] / 2) / total_g * math.log(math.exp(f[c] / 2) / total_f) for c in wanted]
            rows.append(-4 * sum(soft))
    assert float(method.replay_loss(now, before)) == pytest.approx(sum(rows) / len(rows), rel=1e-10)


@BOTH
def test_in_the_task_setting_replay_moves_no_head_but_those_of_earlier_tasks(kind, digits: Scenario):
    method = learn(make(kind, "task"), *digits[:2])
    method.begin_task(data_of(digits[2]))
    logits = torch.randn(6, 10, requires_grad=True)
    method.replay_loss(logits, torch.randn(6, 10)).backward()
    assert (logits.grad.abs().sum(0) > 0).tolist() == [True] * 4 + [False] * 6


def test_a_network_that_answers_as_before_has_nothing_to_distil(digits: Scenario):
    method = learn(make(RtF, "task"), *digits[:2])
    method.begin_task(data_of(digits[2]))
    before = torch.randn(6, 10)
    logits = before.clone().requires_grad_()
    method.replay_loss(logits, before).backward()
    assert float(logits.grad.abs().max()) < 1e-6


@BOTH
def test_new_and_replayed_examples_count_in_the_bound_by_their_shares_of_the_tasks(kind, digits: Scenario):
    method = learn(make(kind, "class"), *digits[:2])
    data = data_of(digits[2])
    past = replayed(method, data, 64)
    method.begin_task(data)
    _, bound, accuracy = method.loss(data.x[:64], data.y[:64])
    right = method.net(data.x[:64])[:, :6].argmax(1) == data.y[:64] + 4
    assert float(accuracy) == pytest.approx(float(right.double().mean()))
    vae = method.net.vae
    drawn = data.generator("replay")
    torch.randn(64, 8, generator=drawn)  # those of the replayed examples
    with torch.no_grad():
        elbo = vae.elbo(both := torch.cat([data.x[:64], past]), vae.encoder(both), drawn)
    expected = -(elbo[:64].mean() / 3 + elbo[64:].mean() * 2 / 3) * method.generator_weight
    assert float(bound.detach()) == pytest.approx(float(expected), rel=1e-4)
    assert method.generator_weight == (1.0 if kind is DGR else 1 / 64)


@BOTH
def test_replay_remembers_what_fine_tuning_forgets(kind, digits: Scenario):
    longer = {"hidden": (64,), "epochs": 60}
    ours = learn(make(kind, "class", **longer), *digits[:2])
    plain = learn(make(Adam, "class", **longer), *digits[:2])
    assert accuracy(plain, digits[0]) < 0.3
    assert accuracy(ours, digits[0]) > 0.8
    assert accuracy(ours, digits[1]) > 0.8


@BOTH
def test_the_range_of_values_is_that_of_the_first_task_for_good(kind, digits: Scenario):
    method = make(kind, "class")
    first = data_of(digits[0])
    learn(method, digits[0])
    wide = TaskData("wide", 1, (2, 3), first.x * 5, first.y, 3)
    list(Training(method, wide).run())
    assert float(method.net.vae.low) == float(first.x.min())
    assert float(method.net.vae.span) == pytest.approx(float(first.x.max() - first.x.min()))


@pytest.mark.parametrize(("examples", "iterations", "epochs"), [(200, 2000, 334), (200, 1, 1), (20, 7, 7)])
def test_iterations_are_rounded_up_to_whole_epochs(examples, iterations, epochs, digits: Scenario):
    data = data_of(digits[0])
    some = TaskData(data.name, 0, data.classes, data.x[:examples], data.y[:examples], 3)
    (phase,) = make(RtF, "class", iterations=iterations).begin_task(some)
    assert phase.epochs == epochs


def test_epochs_count_where_no_iterations_are_given(digits: Scenario):
    (phase,) = make(RtF, "class", iterations=None, epochs=5).begin_task(data_of(digits[0]))
    assert phase.epochs == 5
