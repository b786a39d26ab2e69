"""A factorized network is a torch module like any other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from factor_ledger import ConvNet, several
from torch import nn

from ibpwf import factorize
from ibpwf.errors import InputError
from ibpwf.factors.forget import forget_task


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
        model.finish_task(network)
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
