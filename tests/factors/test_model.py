"""A model of several tasks against a plain ledger of what each task's network held when it ended."""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import pytest
import torch
from factor_ledger import NETS, ConvNet, Ledger, learn, mlp, seeded, several, shaken
from scipy import stats
from torch import Tensor, nn
from torch.func import functional_call

from ibpwf import factorize
from ibpwf.errors import InputError
from ibpwf.factors.model import FactorModel
from ibpwf.factors.prior import IBP


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
        network.fix_selection()
        expected = network(x).detach()
        model.finish_task(network)
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


def test_training_a_network_after_it_has_finished_does_not_reach_the_model_either() -> None:
    model = factorize(ConvNet(), alpha=4)
    network = shaken(model.start_task(3, seeded()), 0)
    model.finish_task(network)
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
        model.finish_task(network)
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
    drawn = model.sampled_states(task, draws, seeded(6))
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
    drawn = model.sampled_states(2, 50, seeded(7))
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
    model.finish_task(network)
    drawn = model.sampled_states(0, 5, seeded())
    for name, value in model.state(0).items():
        for m in range(5):
            torch.testing.assert_close(drawn[name][m], value)


@pytest.mark.parametrize("kappa", [0.99, 1 - 1e-9])
def test_with_a_kappa_nothing_reaches_every_layer_still_uses_its_likeliest_factor(kappa: float) -> None:
    model, ledger = factorize(mlp(), prior=IBP(alpha=4, kappa=kappa)), Ledger()
    x = torch.randn(6, 7)
    for task in range(3):
        network = model.start_task(3, seeded(task))
        with torch.no_grad():
            network.posterior.logit.copy_(torch.randn(network.posterior.logit.shape, generator=seeded(task)))
        ledger.note(network, kappa)
        model.finish_task(network)
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
        ledger.note(network)
        model.finish_task(network)
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
    model.finish_task(first)
    for late in (first, rival):
        with pytest.raises(ValueError, match="a network for task 1 cannot finish as task 2"):
            model.finish_task(late)
    assert len(model.tasks) == 1
    assert locked(model) == [1, 1]
