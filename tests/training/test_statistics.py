"""Statistics of batch normalization after training."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from ibpwf import Learner, Settings
from ibpwf.training.statistics import estimate_statistics


def test_they_are_those_of_the_weights_as_they_are() -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.9), nn.BatchNorm1d(4)).train()
    frozen = nn.BatchNorm1d(4).eval()
    net.append(frozen)
    x = torch.randn(64, 3, generator=torch.Generator().manual_seed(0))
    y = torch.zeros(64)
    estimate_statistics(net, [(x[:32], y[:32]), (x[32:], y[32:])])
    out = net[0](x)
    norm = net[2]
    assert isinstance(norm, nn.BatchNorm1d)
    assert norm.running_mean is not None
    assert norm.running_var is not None
    torch.testing.assert_close(norm.running_mean, out.mean(0))
    torch.testing.assert_close(norm.running_var, (out[:32].var(0) + out[32:].var(0)) / 2)
    assert torch.equal(frozen.running_mean, torch.zeros(4))  # type: ignore[arg-type]
    assert [module.training for module in net] == [True, True, True, False]
    assert norm.momentum == 0.1


def statistics(settings: Settings, rows: int) -> list[torch.Tensor]:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(48, 2))
    x = torch.randn(rows, 1, 6, 6, generator=torch.Generator().manual_seed(1)) * 2 + 3
    learner = Learner(net, settings, seed=0, device="cpu")
    learner.learn(x, torch.arange(rows) % 2)
    merged = learner.merge(0)
    hidden = merged[0](x).detach()
    return [merged[1].running_mean, hidden.mean((0, 2, 3)), merged[1].running_var, hidden.var((0, 2, 3))]


def test_mini_batches_of_one_row_leave_statistics_of_the_rows() -> None:
    mean, wanted, variance, spread = statistics(Settings(epochs=2, finetune_epochs=1, batch_size=1), 40)
    torch.testing.assert_close(mean, wanted, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(variance, spread, rtol=0.3, atol=0.1)


def test_without_two_rows_at_once_what_was_kept_in_training_stays() -> None:
    net = nn.Sequential(nn.BatchNorm1d(2)).train()
    net(torch.randn(9, 2) + 4)
    kept = {name: value.clone() for name, value in net.state_dict().items()}
    estimate_statistics(net, [(torch.randn(1, 2), torch.zeros(1))] * 3)
    assert all(torch.equal(value, kept[name]) for name, value in net.state_dict().items())


def test_a_pass_that_fails_leaves_the_network_as_it_was() -> None:
    net = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)).train()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    with pytest.raises(RuntimeError):
        estimate_statistics(net, [(torch.randn(4, 5), torch.zeros(4))])
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert [module.training for module in net] == [True, True]
    assert net[1].momentum == 0.1


def test_a_short_task_is_answered_as_well_as_it_was_learned() -> None:
    """Running means that lag behind the weights would spoil it, and rows that are sorted by class would, too."""
    y = torch.arange(400) // 200
    x = torch.randn(400, 10, generator=torch.Generator().manual_seed(1)) * 3 + 5 + 5 * y.unsqueeze(1)
    net = nn.Sequential(nn.Linear(10, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 2))
    learner = Learner(net, Settings(epochs=1, finetune_epochs=2, batch_size=50, learning_rate=0.05), seed=0)
    learner.learn(x, y)
    right = (learner.predict(x, task=0).labels == y).double().mean()
    assert right > 0.97
