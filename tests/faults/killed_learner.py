"""What the killed processes of the tests do: three small tasks, with a checkpoint every few steps."""

from __future__ import annotations

import time
from pathlib import Path

import torch
from torch import Tensor, nn

from ibpwf import Settings
from ibpwf.learner import Learner, open_model
from ibpwf.training.checkpoint import Checkpoint

TASKS = 3
SETTINGS = Settings(alpha=3.0, epochs=3, finetune_epochs=1, batch_size=16, learning_rate=0.03, kappa=0.3)


def examples(number: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(number)
    y = torch.arange(64) % 2
    return torch.randn(64, 8, generator=generator) + 3 * torch.randn(2, 8, generator=generator)[y], y


def fresh() -> Learner:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 12), nn.Dropout(0.1), nn.ReLU(), nn.Linear(12, 4))
    return Learner(net, SETTINGS, seed=6, device="cpu")


def learn_all(folder: str, every: float = 0.0005) -> None:
    """Learn what is not yet learnt, from wherever the last process was killed; a checkpoint every 30 ms."""
    torch.set_num_threads(1)
    with open_model(folder, new=fresh, device="cpu") as learner:
        for number in range(len(learner.tasks), TASKS):
            learner.learn(
                *examples(number), task=f"t{number}", callbacks=[Checkpoint(folder, every=every, resume=True)]
            )
            learner.save(folder, extra={"tasks": number + 1})


def hold(folder: str, holding: str) -> None:
    """Learn one task and save it, and then hold the folder until killed, as in the middle of a long second task."""
    with open_model(folder, new=fresh, device="cpu") as learner:
        learner.learn(*examples(0), task="t0", callbacks=[Checkpoint(folder)])
        learner.save(folder)
        Path(holding).touch()
        time.sleep(600)
