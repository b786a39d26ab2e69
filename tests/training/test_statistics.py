"""Statistics of batch normalization after training."""

from __future__ import annotations

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


def test_a_short_task_is_answered_as_well_as_it_was_learned() -> None:
    """Running means that lag behind the weights would spoil it, and rows that are sorted by class would, too."""
    y = torch.arange(400) // 200
    x = torch.randn(400, 10, generator=torch.Generator().manual_seed(1)) * 3 + 5 + 5 * y.unsqueeze(1)
    net = nn.Sequential(nn.Linear(10, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 2))
    learner = Learner(net, Settings(epochs=1, finetune_epochs=2, batch_size=50, learning_rate=0.05), seed=0)
    learner.learn(x, y)
    right = (learner.predict(x, task=0).labels == y).double().mean()
    assert right > 0.97
