"""A model of several tasks against a plain ledger of what each task's network held when it ended."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import special, stats
from torch import Tensor, nn
from torch.func import functional_call

from ibpwf import factorize
from ibpwf.core.forgetting import forget_task
from ibpwf.core.layers import FactorLayer
from ibpwf.core.model import FactorModel
from ibpwf.core.task_network import TaskNetwork
from ibpwf.errors import InputError

KAPPA = 0.5


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def mlp(outputs: int = 5) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(7, 9), nn.Tanh(), nn.Linear(9, outputs))


class ConvNet(nn.Module):
    def __init__(self, outputs: int = 5) -> None:
        super().__init__()
        self.stem = nn.Conv2d(2, 4, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(4)
        self.conv = nn.Conv2d(4, 6, (3, 2), stride=2, groups=2)
        self.norm2 = nn.BatchNorm2d(6)
        self.head = nn.Linear(6, outputs)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm2(self.conv(self.norm(self.stem(x)).relu())).relu()
        out: Tensor = self.head(h.mean((2, 3)))
        return out


def shaken(network: TaskNetwork, seed: int) -> TaskNetwork:
    """Every parameter and running statistic moved at random, as if training had happened."""
    generator = seeded(seed + 100)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.3)
        network.posterior.logit.copy_(torch.randn(network.posterior.logit.shape, generator=generator) * 2)
        for name, buffer in network.network.named_buffers():
            if "running" in name:
                buffer.add_(torch.rand(buffer.shape, generator=generator))
    return network


@dataclass
class Ledger:
    """Every factor ever locked and every task's strengths, copied from the networks as numpy arrays."""

    factors: dict[str, dict[int, tuple[np.ndarray, np.ndarray]]] = field(default_factory=dict)
    strengths: list[dict[str, dict[int, float]]] = field(default_factory=list)
    probabilities: list[dict[str, dict[int, float]]] = field(default_factory=list)
    own: list[dict[str, Tensor]] = field(default_factory=list)

    def note(self, network: TaskNetwork, kappa: float) -> None:
        strengths: dict[str, dict[int, float]] = {}
        chances: dict[str, dict[int, float]] = {}
        for row, (name, layer) in enumerate(network.factor_layers.items()):
            known = self.factors.setdefault(name, {})
            logit = network.posterior.logit[row].tolist()[: network.posterior.widths[row]]
            r = network.posterior.strength[row].tolist()
            chosen = [k for k, value in enumerate(logit) if special.expit(value) >= kappa] or [int(np.argmax(logit))]
            for column, k in enumerate(layer.free_at.tolist()):
                if k in chosen:
                    assert k not in known
                    parts = layer.free_a[column], layer.free_b[column]
                    known[k] = tuple(p.detach().double().numpy().copy() for p in parts)  # type: ignore[assignment]
            strengths[name] = {k: r[k] for k in chosen}
            chances[name] = {k: special.expit(logit[k]) for k in chosen}
        self.strengths.append(strengths)
        self.probabilities.append(chances)
        self.own.append({name: value.clone() for name, value in network.own_state().items()})

    def matrix(self, task: int, name: str) -> np.ndarray:
        """Σ_k r_k w_a,k ⊗ w_b,k over the task's factors."""
        return sum(r * np.outer(*self.factors[name][k]) for k, r in self.strengths[task][name].items())


def learn(model: FactorModel, ledger: Ledger, outputs: int, seed: int, kappa: float = KAPPA) -> None:
    network = shaken(model.start_task(outputs, seeded(seed)), seed)
    ledger.note(network, kappa)
    model.finish_task(network, kappa)


def several(
    build: Callable[[], nn.Module], outputs: tuple[int, ...] = (3, 5, 2), **options: Any
) -> tuple[Any, Ledger]:
    model, ledger = factorize(build(), **{"alpha": 4, **options}), Ledger()
    for task, count in enumerate(outputs):
        learn(model, ledger, count, task)
    return model, ledger


NETS = [
    pytest.param(mlp, "shared", (6, 7), id="mlp, shared head"),
    pytest.param(mlp, "per-task", (6, 7), id="mlp, dense heads"),
    pytest.param(ConvNet, "shared", (6, 2, 7, 6), id="convolutions, shared head"),
    pytest.param(ConvNet, "per-task", (6, 2, 7, 6), id="convolutions, dense heads"),
]


@pytest.mark.parametrize(("build", "heads", "shape"), NETS)
def test_a_finished_tasks_weights_are_the_sums_of_its_own_factors(build: Any, heads: str, shape: Any) -> None:
    model, ledger = several(build, heads=heads)
    for task, outputs in enumerate((3, 5, 2)):
        state = model.state(task)
        for name in model.layers:
            got = state[f"{name}.weight"]
            np.testing.assert_allclose(got.flatten(1).T.double().numpy(), ledger.matrix(task, name), atol=1e-5)
            assert got.shape == model.net.get_submodule(name).weight.shape
        for name, value in ledger.own[task].items():
            assert torch.equal(state[name], value)
        assert model.logits(torch.randn(shape), task).shape == (shape[0], outputs)


@pytest.mark.parametrize(("build", "heads", "shape"), NETS)
def test_a_finished_task_answers_as_its_network_did(build: Any, heads: str, shape: Any) -> None:
    model = factorize(build(), alpha=4, heads=heads)
    x = torch.randn(shape, generator=seeded(3))
    for task, outputs in enumerate((3, 5, 2)):
        network = shaken(model.start_task(outputs, seeded(task)), task).eval()
        network.fix_selection(KAPPA)
        expected = network(x).detach()
        model.finish_task(network, KAPPA)
        torch.testing.assert_close(model.logits(x, task), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("build", "heads", "shape"), NETS)
def test_later_tasks_change_no_bit_of_an_earlier_one_even_when_composed_again(
    build: Any, heads: str, shape: Any
) -> None:
    model, ledger = factorize(build(), alpha=4, heads=heads), Ledger()
    before: list[dict[str, Tensor]] = []
    for task, outputs in enumerate((3, 5, 2, 4)):
        learn(model, ledger, outputs, task)
        model._composed.clear()  # nothing but locked factors and the task's own tensors to start from
        before.append(copy.deepcopy(model.state(task)))
        for old, state in enumerate(before):
            assert all(torch.equal(model.state(old)[name], value) for name, value in state.items())


@pytest.mark.parametrize(("build", "heads", "shape"), NETS)
def test_merging_gives_an_ordinary_network_with_the_same_answers(build: Any, heads: str, shape: Any) -> None:
    model, _ = several(build, heads=heads)
    x = torch.randn(shape, generator=seeded(4))
    for task, outputs in enumerate((3, 5, 2)):
        merged = model.merge(task)
        assert type(merged) is type(build())
        assert not any(isinstance(module, FactorLayer) for module in merged.modules())
        assert all(p.requires_grad for p in merged.parameters())
        torch.testing.assert_close(merged(x), model.logits(x, task), rtol=0, atol=1e-6)
        fresh = build(outputs=5 if heads == "shared" else outputs)
        fresh.load_state_dict(merged.state_dict())  # strict: the same names and shapes
        answers = fresh.eval()(x)
        torch.testing.assert_close(answers[:, :outputs], model.logits(x, task), rtol=0, atol=1e-6)
        assert float(answers.detach().softmax(1)[:, outputs:].sum()) == 0.0, "outputs without a class never win"


def test_training_a_merged_network_does_not_reach_the_model() -> None:
    model, _ = several(ConvNet)
    x = torch.randn(6, 2, 7, 6)
    before = model.logits(x, 0)
    merged = model.merge(0).train()
    merged(x).square().sum().backward()
    torch.optim.SGD(merged.parameters(), lr=1.0).step()
    model._composed.clear()
    assert torch.equal(model.logits(x, 0), before)


def test_training_a_network_after_it_has_finished_does_not_reach_the_model_either() -> None:
    model = factorize(ConvNet(), alpha=4)
    network = shaken(model.start_task(3, seeded()), 0)
    model.finish_task(network, KAPPA)
    x = torch.randn(6, 2, 7, 6)
    before = model.logits(x, 0)
    with torch.no_grad():
        for tensor in [*network.parameters(), *network.network.buffers()]:
            tensor.zero_()
    model._composed.clear()
    assert torch.equal(model.logits(x, 0), before)


def test_batch_normalisation_keeps_every_tasks_running_statistics() -> None:
    net = nn.Sequential(nn.BatchNorm1d(7), nn.Linear(7, 4))
    model = factorize(net, alpha=4)
    expected = []
    for task, center in enumerate((3.0, -5.0, 40.0)):
        network = model.start_task(2, seeded(task)).train()
        mean, variance = np.zeros(7), np.ones(7)
        for batch in range(4):
            x = torch.randn(16, 7, generator=seeded(10 * task + batch)) * (task + 1) + center
            network(x)
            mean = 0.9 * mean + 0.1 * x.double().numpy().mean(0)
            variance = 0.9 * variance + 0.1 * x.double().numpy().var(0, ddof=1)
        model.finish_task(network, KAPPA)
        expected.append((mean, variance))
        model.logits(torch.randn(9, 7) + 100, task)
    for task, (mean, variance) in enumerate(expected):
        for state in (model.state(task), model.merge(task).state_dict()):
            np.testing.assert_allclose(state["0.running_mean"].numpy(), mean, rtol=1e-5)
            np.testing.assert_allclose(state["0.running_var"].numpy(), variance, rtol=1e-4)


@pytest.mark.parametrize(("build", "heads", "shape"), NETS)
def test_draws_switch_every_selected_factor_on_with_its_probability(build: Any, heads: str, shape: Any) -> None:
    model, ledger = several(build, heads=heads)
    task, draws = 1, 2000
    drawn = model.drawn_states(task, draws, seeded(6))
    switched = []
    for name in model.layers:
        chosen = list(ledger.strengths[task][name])
        terms = [r * np.outer(*ledger.factors[name][k]) for k, r in ledger.strengths[task][name].items()]
        weights = drawn[f"{name}.weight"].flatten(2).transpose(1, 2).double().numpy()
        basis = np.stack([term[:, : weights.shape[2]].ravel() for term in terms], axis=1)
        assert np.linalg.matrix_rank(basis) == len(chosen), "the test can tell the factors apart"
        b, *_ = np.linalg.lstsq(basis, weights.reshape(draws, -1).T, rcond=None)
        np.testing.assert_allclose(basis @ np.round(b), weights.reshape(draws, -1).T, atol=1e-4)  # nothing else in it
        assert set(np.unique(np.round(b))) <= {0.0, 1.0}
        for k, switches in zip(chosen, np.round(b), strict=True):
            chance = ledger.probabilities[task][name][k]
            assert stats.binomtest(int(switches.sum()), draws, chance).pvalue > 1e-4
            switched.append(switches)
    uncertain = np.stack([s for s in switched if 0.05 < s.mean() < 0.95])
    together = np.corrcoef(uncertain) - np.eye(len(uncertain))
    assert np.abs(together).max() < 4.5 / math.sqrt(draws), "factors are drawn independently of each other"


def test_what_is_not_sampled_is_the_same_in_every_draw_and_not_copied() -> None:
    model, ledger = several(ConvNet)
    drawn = model.drawn_states(2, 50, seeded(7))
    assert drawn.keys() == model.net.state_dict().keys()
    for name, value in ledger.own[2].items():
        assert all(torch.equal(drawn[name][m], value) for m in range(50))
    assert drawn["norm.weight"].stride(0) == 0
    assert drawn["head.weight"].shape == (50, 5, 6)
    outputs = functional_call(
        model.net, {name: value[3] for name, value in drawn.items()}, (torch.randn(4, 2, 7, 6),)
    )
    assert outputs.shape == (4, 5)


def test_draws_with_certain_factors_are_the_point_estimate() -> None:
    model = factorize(mlp(), alpha=4)
    network = shaken(model.start_task(3, seeded()), 0)
    with torch.no_grad():
        network.posterior.logit.copy_(40 * network.posterior.logit.sign())
    model.finish_task(network, KAPPA)
    drawn = model.drawn_states(0, 5, seeded())
    for name, value in model.state(0).items():
        for m in range(5):
            torch.testing.assert_close(drawn[name][m], value)


@pytest.mark.parametrize("kappa", [0.99, 1 - 1e-9])
def test_with_a_kappa_nothing_reaches_every_layer_still_uses_its_likeliest_factor(kappa: float) -> None:
    model, ledger = factorize(mlp(), alpha=4), Ledger()
    x = torch.randn(6, 7)
    for task in range(3):
        network = model.start_task(3, seeded(task))
        with torch.no_grad():
            network.posterior.logit.copy_(torch.randn(network.posterior.logit.shape, generator=seeded(task)))
        ledger.note(network, kappa)
        model.finish_task(network, kappa)
        assert [use.active for use in model.use(task).values()] == [1, 1]
        for name in model.layers:
            got = model.state(task)[f"{name}.weight"].T.double().numpy()
            np.testing.assert_allclose(got, ledger.matrix(task, name)[:, : got.shape[1]], atol=1e-6)
        assert model.logits(x, task).shape == (6, 3)


def test_a_dictionary_full_to_its_cap_still_serves_new_tasks_from_what_is_locked() -> None:
    model, ledger = factorize(mlp(), alpha=4, max_factors=4), Ledger()
    for task in range(5):
        network = shaken(model.start_task(3, seeded(task)), task)
        with torch.no_grad():
            network.posterior.logit.fill_(2.0)
        ledger.note(network, KAPPA)
        model.finish_task(network, KAPPA)
    assert [use.new for use in model.use(0).values()] == [4, 4]
    assert [use.new for use in model.use(4).values()] == [0, 0]
    for task in range(5):
        np.testing.assert_allclose(model.state(task)["0.weight"].T.numpy(), ledger.matrix(task, "0"), atol=1e-5)


def test_use_and_stored_numbers_agree_with_counting() -> None:
    model, ledger = several(ConvNet)
    seen: dict[str, set[int]] = {name: set() for name in model.layers}
    for task in range(3):
        for name, use in model.use(task).items():
            chosen = set(ledger.strengths[task][name])
            assert (use.active, use.new, use.reused) == (
                len(chosen),
                len(chosen - seen[name]),
                len(chosen & seen[name]),
            )
            seen[name] |= chosen
            assert use.total == len(seen[name])
    assert any(use.reused for use in model.use(2).values())
    assert model.use(-1) == model.use(2)
    factors = sum(len(a) + len(b) for known in ledger.factors.values() for a, b in known.values())
    strengths = sum(len(chosen) for task in ledger.strengths for chosen in task.values())
    own = sum(value.numel() for task in ledger.own for value in task.values())
    assert model.stored_numbers() == {"factors": factors, "strengths": strengths, "own": own}


def test_counting_tasks_from_the_end_follows_the_newest_task() -> None:
    model, ledger = several(mlp, outputs=(3, 5))
    assert torch.equal(model.state(-1)["2.weight"], model.state(1)["2.weight"])
    learn(model, ledger, 2, seed=2)
    assert torch.equal(model.state(-1)["2.weight"], model.state(2)["2.weight"])
    with pytest.raises(IndexError):
        model.state(3)


def test_a_task_with_more_classes_than_the_shared_head_has_outputs_is_refused() -> None:
    with pytest.raises(InputError, match=r"the task needs 6 outputs, .* but the shared head '2' has 5 outputs"):
        factorize(mlp()).start_task(6, seeded())
    assert factorize(mlp(), heads="per-task").start_task(6, seeded())(torch.randn(2, 7)).shape == (2, 6)


def locked(model: FactorModel) -> list[int]:
    return [len(dictionary.blocks) for dictionary in model.layers.values()]


def test_a_network_finishes_once_and_only_as_the_task_it_was_started_for() -> None:
    model = factorize(mlp(), alpha=4)
    first, rival = (shaken(model.start_task(3, seeded(s)), s) for s in (0, 1))
    model.finish_task(first, KAPPA)
    for late in (first, rival):
        with pytest.raises(ValueError, match="a network for task 1 cannot finish as task 2"):
            model.finish_task(late, KAPPA)
    assert len(model.tasks) == 1
    assert locked(model) == [1, 1]


def test_what_a_fork_learns_is_not_in_the_model_it_comes_from() -> None:
    model, _ = several(mlp, outputs=(3, 5))
    twin, _ = several(mlp, outputs=(3, 5))
    x = torch.randn(6, 7)
    fork = model.fork()
    fork.finish_task(shaken(fork.start_task(4, seeded(50)), 50), KAPPA)
    assert fork.logits(x, 2).shape == (6, 4)
    assert (len(model.tasks), len(fork.tasks)) == (2, 3)
    for each in (model, twin):
        each.finish_task(shaken(each.start_task(2, seeded(2)), 2), KAPPA)
    for task in range(3):
        assert torch.equal(model.logits(x, task), twin.logits(x, task))
    assert torch.equal(fork.logits(x, 1), model.logits(x, 1))
    assert model.use(2) == twin.use(2)


def test_what_a_fork_forgets_stays_in_the_model_it_comes_from() -> None:
    model, _ = several(mlp, outputs=(3, 5, 2))
    x = torch.randn(6, 7)
    before = [model.logits(x, task) for task in range(3)]
    fork = model.fork()
    forget_task(fork, 0)
    for task in range(3):
        assert torch.equal(model.logits(x, task), before[task])
    for task in range(2):
        assert torch.equal(fork.logits(x, task), before[task + 1])


def test_a_fork_shares_every_tensor() -> None:
    model, _ = several(mlp, outputs=(3, 5))
    fork = model.fork()
    theirs = fork.state_dict()
    assert all(
        theirs[name].data_ptr() == tensor.data_ptr()
        for name, tensor in model.state_dict().items()
        if tensor.numel() > 1
    )


def test_a_shell_is_its_callers_alone_and_is_not_used_again_after_an_error() -> None:
    model = factorize(mlp())
    with model.shell() as one, model.shell() as other:
        assert one is not other
        assert one[0].weight.data_ptr() == other[0].weight.data_ptr() == model.net[0].weight.data_ptr()
    with pytest.raises(KeyError), model.shell() as broken:
        raise KeyError
    with model.shell() as first, model.shell() as second:
        assert {id(first), id(second)} & {id(one), id(other)}
        assert broken not in (first, second)


# A module like any other


def test_a_factorized_network_is_called_with_its_task() -> None:
    model, _ = several(ConvNet)
    x = torch.randn(5, 2, 6, 6, generator=torch.Generator().manual_seed(0))
    assert isinstance(model, nn.Module)
    for task in range(3):
        assert torch.equal(model(x, task=task), model.logits(x, task))
    assert torch.equal(model(x, task=-1), model(x, task=2))


def test_its_parameters_are_torchs_and_none_of_them_is_a_locked_factor() -> None:
    model, _ = several(ConvNet)
    parameters = list(model.parameters())
    assert parameters
    assert all(isinstance(parameter, nn.Parameter) for parameter in parameters)
    assert [name for name, _ in model.named_parameters()] == [f"net.{n}" for n, _ in model.net.named_parameters()]
    assert not any(parameter.requires_grad for parameter in parameters)


@pytest.mark.parametrize("net", [ConvNet, lambda: nn.Sequential(nn.Linear(7, 6), nn.ReLU(), nn.Linear(6, 5))])
def test_its_state_dict_loads_into_a_freshly_factorized_network(net: Any, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = factorize(net(), alpha=4.0)
    for task in range(3):
        network = model.start_task(2 + task, torch.Generator().manual_seed(task))
        with torch.no_grad():
            network.posterior.logit.normal_(generator=torch.Generator().manual_seed(10 + task))
        model.finish_task(network, 0.5)
    x = torch.randn(4, 2, 6, 6) if net is ConvNet else torch.randn(4, 7)
    torch.save(model.state_dict(), tmp_path / "state.pt")
    fresh = factorize(net(), alpha=4.0)
    result = fresh.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    assert (result.missing_keys, result.unexpected_keys) == ([], [])
    for task in range(3):
        assert torch.equal(fresh(x, task=task), model(x, task=task))
        assert fresh.use(task) == model.use(task)
    with pytest.raises(InputError, match="tasks of its own; load a state dict into a freshly factorized network"):
        fresh.load_state_dict(model.state_dict())


@pytest.mark.parametrize("unread", [(), ("head.", "conv."), ("",)])
def test_its_state_dict_holds_what_is_kept_of_a_forgotten_first_task(unread: tuple[str, ...]) -> None:
    model, _ = several(ConvNet)
    forget_task(model, 0, unread)
    fresh = factorize(ConvNet(), alpha=4)
    result = fresh.load_state_dict(model.state_dict())
    assert (result.missing_keys, result.unexpected_keys) == ([], [])
    x = torch.randn(5, 2, 6, 6, generator=torch.Generator().manual_seed(0))
    for task in range(2):
        assert torch.equal(fresh(x, task=task), model(x, task=task))
    for name, tensor in model.reference_state().items():
        assert torch.equal(fresh.reference_state()[name], tensor)
    assert fresh.stored_numbers() == model.stored_numbers()


def test_it_moves_with_its_tasks() -> None:
    model, _ = several(ConvNet)
    x = torch.randn(5, 2, 6, 6)
    expected = [model(x, task=task) for task in range(3)]
    assert model.to("cpu") is model
    assert all(torch.equal(model(x, task=task), expected[task]) for task in range(3))
    model.double()
    for task in range(3):
        assert model(x.double(), task=task).dtype == torch.float64
        torch.testing.assert_close(model(x.double(), task=task), expected[task].double(), rtol=1e-4, atol=1e-5)
