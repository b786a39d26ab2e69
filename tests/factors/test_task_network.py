"""A task's network while it is learnt: what it holds, how it grows, how its selection is fixed."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch
from scipy import integrate, special
from torch import Tensor, nn
from torch.nn import functional as F

from ibpwf import factorize
from ibpwf.factors.layers import FactorLayer
from ibpwf.factors.model import FactorModel
from ibpwf.factors.task_network import TaskNetwork

KAPPA = 0.5  # the default


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def mlp() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(7, 9), nn.Tanh(), nn.Linear(9, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 4))


def shaken(network: TaskNetwork, seed: int) -> TaskNetwork:
    """Every parameter moved at random, as if training had happened; about half of the factors above κ."""
    generator = seeded(seed)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.3)
        network.posterior.logit.copy_(torch.randn(network.posterior.logit.shape, generator=generator) * 2)
    return network


def learned(tasks: int, **options: float | str) -> FactorModel:
    model = factorize(mlp(), **{"alpha": 4, **options})
    for task in range(tasks):
        model.finish_task(shaken(model.start_task(3, seeded(task)), task))
    return model


def dense(network: TaskNetwork, chosen: dict[str, np.ndarray]) -> nn.Module:
    """An ordinary network with the weights Σ r_k w_a,k ⊗ w_b,k over the chosen factors, by a loop."""
    net = copy.deepcopy(network.network)
    for row, (name, layer) in enumerate(network.factor_layers.items()):
        strength = network.posterior.strength[row].detach().double().numpy()
        matrix = np.zeros((layer.inputs, layer.outputs))
        parts = [
            (layer.locked_a, layer.locked_b, layer.locked_at),
            (layer.free_a, layer.free_b, layer.free_at),
        ]
        for a, b, at in parts:
            for column, k in enumerate(at.tolist()):
                if chosen[name][k]:
                    outer = np.outer(a[column].detach().numpy(), b[column].detach().numpy())
                    matrix += strength[k] * outer
        plain = nn.Linear(layer.inputs, layer.outputs, bias=layer.bias is not None)
        with torch.no_grad():
            plain.weight.copy_(torch.tensor(matrix.T))
            plain.bias.copy_(layer.bias)
        net.set_submodule(name, plain)
    return net


def probabilities(network: TaskNetwork) -> dict[str, np.ndarray]:
    rows = network.posterior.logit.detach().double().numpy()
    return {
        name: special.expit(rows[row, : network.posterior.widths[row]])
        for row, name in enumerate(network.factor_layers)
    }


def test_every_stick_is_either_a_locked_constant_or_a_free_parameter() -> None:
    model = learned(2)
    network = model.start_task(3, seeded(9))
    for row, (name, layer) in enumerate(network.factor_layers.items()):
        sticks = sorted(layer.locked_at.tolist() + layer.free_at.tolist())
        assert sticks == list(range(network.posterior.widths[row]))
        assert len(layer.locked_at) == model.layers[name].locked
    trained = {id(p) for p in network.trainable(posterior=True)}
    assert all(id(layer.locked_a) not in trained for layer in network.factor_layers.values())


def test_a_step_of_training_moves_free_factors_and_no_locked_one() -> None:
    model = learned(2)
    network = model.start_task(3, seeded(9))
    network.noise = seeded(10)
    locked = {name: (layer.locked_a.clone(), layer.locked_b.clone()) for name, layer in network.factor_layers.items()}
    free = {name: layer.free_a.detach().clone() for name, layer in network.factor_layers.items()}
    optimizer = torch.optim.Adam(network.trainable(posterior=True), lr=0.1, weight_decay=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        loss = F.cross_entropy(network(torch.randn(16, 7)), torch.arange(16) % 3) + network.kl() / 100
        loss.backward()
        optimizer.step()
    for name, layer in network.factor_layers.items():
        assert torch.equal(layer.locked_a, locked[name][0])
        assert torch.equal(layer.locked_b, locked[name][1])
        assert bool((layer.free_a != free[name]).all())


def test_the_selection_is_sampled_anew_in_every_pass_until_it_is_fixed() -> None:
    network = shaken(learned(1).start_task(3, seeded(1)), 1).eval()
    network.noise = seeded(2)
    x = torch.randn(5, 7)
    assert not torch.equal(network(x), network(x))
    network.fix_selection()
    assert torch.equal(network(x), network(x))


@pytest.mark.parametrize("kappa", [0.1, 0.5, 0.9])
def test_with_its_selection_fixed_a_network_computes_with_the_factors_above_kappa_and_no_others(kappa: float) -> None:
    model = learned(2)
    model.prior = model.prior.replace(kappa=kappa)
    network = shaken(model.start_task(3, seeded(3)), 3).eval()
    chosen = {name: p >= kappa for name, p in probabilities(network).items()}
    expected = dense(network, chosen)
    x = torch.randn(12, 7, generator=seeded(4))
    network.fix_selection()
    torch.testing.assert_close(network(x), expected(x)[:, :3], rtol=1e-5, atol=1e-5)
    for name, layer in network.factor_layers.items():
        assert network.selected[name].tolist() == chosen[name].tolist()
        assert sorted(layer.locked_at.tolist() + layer.free_at.tolist()) == np.flatnonzero(chosen[name]).tolist()


def test_fixing_the_selection_again_changes_nothing_even_after_training_and_with_another_kappa() -> None:
    network = shaken(learned(1).start_task(3, seeded(3)), 3).eval()
    network.fix_selection()
    x = torch.randn(12, 7)
    optimizer = torch.optim.SGD(network.trainable(posterior=False), lr=0.01)
    network(x).square().sum().backward()
    optimizer.step()
    kept = {name: (layer.free_a, layer.locked_at) for name, layer in network.factor_layers.items()}
    before = network(x)
    network.fix_selection()
    network.prior = network.prior.replace(kappa=0.9)
    network.fix_selection()
    assert torch.equal(network(x), before)
    for name, layer in network.factor_layers.items():
        assert layer.free_a is kept[name][0], "an optimiser that holds it must not lose it"
        assert layer.locked_at is kept[name][1]


def test_fine_tuning_moves_strengths_but_no_probabilities() -> None:
    network = shaken(learned(1).start_task(3, seeded(3)), 3)
    network.fix_selection()
    trained = {id(p) for p in network.trainable(posterior=False)}
    posterior = network.posterior
    assert id(posterior.strength) in trained
    assert not trained & {id(p) for p in (posterior.logit, posterior.log_c, posterior.log_d)}


def test_counts_of_active_and_new_factors_agree_with_counting() -> None:
    network = shaken(learned(2).start_task(3, seeded(5)), 5)
    expected = {}
    for name, p in probabilities(network).items():
        old = set(network.factor_layers[name].locked_at.tolist())
        active = [k for k in range(len(p)) if p[k] >= KAPPA]
        expected[name] = (len(active), len([k for k in active if k not in old]))
    assert network.active() == expected


# Growth during a task


def all_in_use(network: TaskNetwork, names: list[str]) -> None:
    """Make the task use every factor of the named layers, and few of the others."""
    with torch.no_grad():
        for row, name in enumerate(network.factor_layers):
            network.posterior.logit[row] = 3.0 if name in names else -3.0


def test_growth_adds_sticks_only_where_the_free_factors_are_used_up() -> None:
    model = learned(1)
    network = shaken(model.start_task(3, seeded(6)), 6)
    all_in_use(network, ["2"])
    before = {name: len(layer.free_at) for name, layer in network.factor_layers.items()}
    added = network.grow()
    after = {name: len(layer.free_at) for name, layer in network.factor_layers.items()}
    assert added > 0
    assert {name: after[name] - before[name] for name in before} == {"0": 0, "2": added, "5": 0}


def test_growth_leaves_existing_factors_vectors_and_prior_as_they_are_to_the_bit() -> None:
    network = shaken(learned(2).start_task(3, seeded(7)), 7)
    all_in_use(network, ["0", "5"])
    posterior = copy.deepcopy(network.posterior)
    layers = {
        name: (layer.locked_a.clone(), layer.free_a.clone(), layer.free_b.clone(), layer.free_at.clone())
        for name, layer in network.factor_layers.items()
    }
    assert network.grow() > 0
    grown = network.posterior
    assert float(grown.temperature) == float(posterior.temperature)
    for row, n in enumerate(posterior.widths):
        for part in ("strength", "logit", "log_c", "log_d", "prior_c", "prior_d"):
            assert torch.equal(getattr(grown, part)[row, :n], getattr(posterior, part)[row, :n]), part
    for name, layer in network.factor_layers.items():
        locked_a, free_a, free_b, free_at = layers[name]
        n = len(free_at)
        assert torch.equal(layer.locked_a, locked_a)
        assert torch.equal(layer.free_a[:n], free_a)
        assert torch.equal(layer.free_b[:n], free_b)
        assert torch.equal(layer.free_at[:n], free_at)


def test_new_sticks_continue_the_sequence_with_the_prior_and_with_fresh_factors() -> None:
    alpha = 4.0
    network = shaken(learned(2).start_task(3, seeded(8)), 8)
    all_in_use(network, ["2"])
    n = network.posterior.widths[1]
    old = network.posterior.vectors(1)
    added = network.grow()
    new, prior, layer = network.posterior.vectors(1), network.posterior.prior[1], network.factor_layers["2"]
    assert len(new) == n + added
    assert layer.free_at[-added:].tolist() == list(range(n, n + added))
    means = [
        integrate.quad(lambda u, c=c, d=d: (1 - u ** (1 / d)) ** (1 / c), 0, 1)[0]
        for c, d in zip(old.c.tolist(), old.d.tolist(), strict=True)
    ]
    expected = np.prod(means) * (alpha / (alpha + 1)) ** np.arange(1, added + 1)
    np.testing.assert_allclose(special.expit(new.logit[n:].double().numpy()), expected, rtol=1e-4)
    for vectors in (new, prior):
        np.testing.assert_allclose(vectors.c[n:].numpy(), alpha, rtol=1e-6)
        np.testing.assert_allclose(vectors.d[n:].numpy(), 1.0, rtol=1e-6)
    assert len(set(new.strength[n:].tolist())) == added
    limit = math.sqrt(6 / (layer.inputs + n + added))
    assert 0 < float(layer.free_a.detach()[-added:].abs().max()) <= limit


def test_a_grown_network_trains_its_new_factors_and_finishes() -> None:
    model = learned(1)
    network = shaken(model.start_task(3, seeded(9)), 9)
    all_in_use(network, ["0", "2", "5"])
    added = network.grow()
    all_in_use(network, ["0", "2", "5"])
    layer = network.factor_layers["0"]
    loss = network(torch.randn(8, 7)).square().sum() + network.kl()
    loss.backward()
    assert bool(layer.free_a.grad[-1].any())
    locked = sum(dictionary.locked for dictionary in model.layers.values())
    free = sum(len(layer.free_at) for layer in network.factor_layers.values())
    model.finish_task(network)
    assert added > 0
    assert sum(dictionary.locked for dictionary in model.layers.values()) == locked + free


def test_a_network_with_idle_factors_does_not_grow_and_keeps_its_posterior() -> None:
    network = learned(1).start_task(3, seeded(6))
    all_in_use(network, [])
    posterior = network.posterior
    assert network.grow() == 0
    assert network.posterior is posterior


def test_a_network_with_a_fixed_selection_does_not_grow() -> None:
    network = learned(1).start_task(3, seeded(6))
    all_in_use(network, ["0", "2", "5"])
    network.fix_selection()
    assert network.grow() == 0
    assert network(torch.randn(4, 7)).shape == (4, 3)


def test_growth_stops_at_the_cap() -> None:
    model = factorize(mlp(), alpha=4, max_factors={"0": 10, "*": 9})
    network = model.start_task(3, seeded())
    for _ in range(4):
        all_in_use(network, ["0", "2", "5"])
        network.grow()
    assert network.posterior.widths == [10, 9, 9]


# Where a task starts


def test_a_task_starts_at_the_previous_tasks_probabilities_with_its_posterior_as_prior() -> None:
    model = learned(2)
    network = model.start_task(3, seeded(11))
    for row, (name, before) in enumerate(model.tasks[-1].vectors.items()):
        n = len(before)
        assert torch.equal(network.posterior.logit[row, :n], before.logit), name
        assert torch.equal(network.posterior.prior_c[row, :n], before.c)
        assert torch.equal(network.posterior.prior_d[row, :n], before.d)


def test_biases_and_normalisation_start_from_the_users_values_in_every_task() -> None:
    net = mlp()
    with torch.no_grad():
        net[3].weight.fill_(0.7)
        net[3].running_mean.fill_(-2.0)
    model = factorize(net, alpha=4)
    for task in range(2):
        network = model.start_task(3, seeded(task))
        own = network.own_state()
        expected = {
            name: v for name, v in net.state_dict().items() if name not in ("0.weight", "2.weight", "5.weight")
        }
        assert own.keys() == expected.keys()
        assert all(torch.equal(own[name], value) for name, value in expected.items())
        model.finish_task(shaken(network, task))


def test_the_same_generator_starts_the_same_task() -> None:
    model = factorize(mlp(), alpha=4, heads="per-task")
    first, again, other = (model.start_task(3, seeded(s)) for s in (5, 5, 6))
    pairs = list(zip(first.parameters(), again.parameters(), strict=True))
    assert all(torch.equal(p, q) for p, q in pairs)
    assert any(not torch.equal(p, q) for p, q in zip(first.parameters(), other.parameters(), strict=True))


def test_a_dense_head_per_task_has_as_many_outputs_as_classes() -> None:
    network = factorize(mlp(), alpha=4, heads="per-task").start_task(2, seeded())
    head = network.network.get_submodule("5")
    assert isinstance(head, nn.Linear)
    assert head.weight.shape == (2, 6)
    assert float(head.weight.detach().abs().max()) <= 1 / math.sqrt(6)
    assert not any(isinstance(module, FactorLayer) for module in head.modules())


def test_a_network_may_ask_its_layers_for_their_sizes_or_weights() -> None:
    class Asking(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.head = nn.Linear(7, 5), nn.Linear(5, 3)

        def forward(self, x: Tensor) -> Tensor:
            hidden = F.linear(x.reshape(-1, self.first.in_features), self.first.weight, self.first.bias)
            out: Tensor = self.head(hidden)
            return out

    model = factorize(Asking(), alpha=4)
    network = model.start_task(3, seeded())
    network.fix_selection()
    x = torch.randn(4, 7)
    expected = network(x).detach()
    network(x).sum().backward()
    assert bool(network.factor_layers["first"].free_a.grad.any())
    model.finish_task(network)
    torch.testing.assert_close(model.logits(x, 0), expected)


@pytest.mark.parametrize("heads", ["shared", "per-task"])
def test_what_the_user_has_frozen_stays_as_it_is_unless_it_is_factorised_or_a_tasks_head(heads: str) -> None:
    net = mlp()
    net.requires_grad_(False)
    net.register_parameter("count", nn.Parameter(torch.arange(3), requires_grad=False))
    net[0].bias.requires_grad_(True)
    model = factorize(net, alpha=4, heads=heads)
    network = model.start_task(4, seeded())
    optimizer = torch.optim.SGD(network.trainable(posterior=True), lr=0.1)
    before = copy.deepcopy(network.network.state_dict())
    F.cross_entropy(network(torch.randn(16, 7)), torch.arange(16) % 4).backward()
    optimizer.step()
    after = network.network.state_dict()
    moved = {name for name, value in after.items() if not torch.equal(value, before[name]) and "running" not in name}
    factors = {f"{name}.{part}" for name in model.layers for part in ("free_a", "free_b")}
    expected = {"0.bias", "3.num_batches_tracked"} | ({"5.weight", "5.bias"} if heads == "per-task" else set())
    assert moved == factors | expected
    model.finish_task(network)
    assert [name for name, p in model.merge(0).named_parameters() if p.requires_grad] == ["0.bias"]


def test_nothing_of_a_pass_is_kept_once_it_has_been_run_backwards() -> None:
    network = learned(1).start_task(3, seeded(5))
    network.noise = seeded(6)
    loss = network(torch.randn(4, 7, generator=seeded(7))).square().sum() + network.kl()
    before = {name: layer.scores for name, layer in network.factor_layers.items()}
    assert all(scores.requires_grad for scores in before.values()), (
        "a network that computes again finds them as they were"
    )
    loss.backward()
    network.release()
    for name, layer in network.factor_layers.items():
        assert layer.scores.grad_fn is None
        assert torch.equal(layer.scores, before[name])
