"""Task inference with one VAE per task, the paper's alternative to Gaussians on φ (its footnote in section 4.2).

    t̂ = argmax_t log p_t(x) + log N_t,      p_t(x) by importance sampling from q_t(z|x)

`ibpwf reproduce table3` trains a VAE on the training images of every task and infers the task of all test images.
"""

from __future__ import annotations

import time
from collections.abc import Generator
from typing import Any

import torch
from torch import Tensor

from ibpwf.device import choose_device
from ibpwf.lab.data.scenarios import scenario as make_scenario
from ibpwf.lab.data.tasks import Scenario
from ibpwf.lab.evaluation.metrics import spread
from ibpwf.lab.experiments.paper import target
from ibpwf.lab.experiments.replicas import take_turns
from ibpwf.lab.experiments.result import commit, environment
from ibpwf.lab.methods.dense import seeded
from ibpwf.lab.methods.vae import VAE, log_likelihood
from ibpwf.parts import FrozenSettings, require
from ibpwf.training.loop import fit_steps
from ibpwf.training.method import TaskData
from ibpwf.training.objective import Fit, Loss
from ibpwf.training.phase import Phase

ROWS_AT_ONCE = 2048


class VAESettings(FrozenSettings):
    """The VAE of a task, its training, and the draws of z in an answer."""

    hidden: tuple[int, ...] = (400, 400)
    latent: int = 50
    epochs: int = 50
    batch_size: int = 128
    learning_rate: float = 1e-3
    samples: int = 20

    def check_settings(self) -> None:
        for name in ("latent", "epochs", "batch_size", "samples"):
            require(getattr(self, name) >= 1, name, getattr(self, name), "give at least 1")


class TaskVAE:
    """One task's VAE and the number of its examples."""

    def __init__(self, settings: VAESettings, data: TaskData) -> None:
        with seeded(data.generator("init").initial_seed()):
            self.vae = VAE(data.x[0].numel(), settings.hidden, settings.latent).to(data.x.device)
        self.vae.set_range(data.x)
        self.settings, self.data, self.count = settings, data, len(data.x)

    def train_steps(self) -> Generator[None, None, None]:
        """Maximize the ELBO, pausing after every step."""
        s, data = self.settings, self.data
        noise, shuffle = data.generator("noise", data.x.device), data.generator("shuffle")

        def loss(x: Tensor, y: Tensor) -> Loss:
            return Loss(-self.vae.elbo(x, self.vae.encoder(x.flatten(1)), noise).mean())

        phase = Phase("vae", s.epochs, s.batch_size, s.learning_rate)
        fit = Fit(list(self.vae.parameters()), loss, generators=(noise,))
        yield from fit_steps(fit, phase, data.rows, shuffle, f"the VAE of task '{data.name}'")

    def score(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """log p_t(x) + log N_t."""
        parts = [
            log_likelihood(self.vae, rows, self.settings.samples, generator) for rows in torch.split(x, ROWS_AT_ONCE)
        ]
        return torch.cat(parts) + torch.tensor(float(self.count)).log()


def task_inference(stream: Scenario, settings: VAESettings, seed: int, device: torch.device) -> list[float]:
    """Per task, how often (in percent) its test images are taken for its own."""
    stream = stream.to(device)
    vaes = []
    for task in stream:
        y = torch.zeros(len(task.train), dtype=torch.long, device=device)
        vaes.append(TaskVAE(settings, TaskData(task.name, task.index, task.classes, task.train.x, y, seed)))
    take_turns([vae.train_steps() for vae in vaes], device)
    found = []
    for task in stream:
        generator = torch.Generator(device).manual_seed(seed)
        scores = torch.stack([vae.score(task.test.x, generator) for vae in vaes], 1)
        found.append(100.0 * float((scores.argmax(1) == task.index).double().mean()))
    return found


def run(scenario: str, seeds: int, settings: VAESettings, device: str, command: str) -> dict[str, Any]:
    """All seeds, as the content of a result file."""
    chosen = choose_device(device)
    started = time.perf_counter()
    per_task = [task_inference(make_scenario(scenario, seed=s), settings, s, chosen) for s in range(seeds)]
    paper = target(scenario, "task-inference", "vae")
    return {
        "kind": "vae-inference",
        "scenario": scenario,
        "settings": settings.to_json(),
        "seeds": list(range(seeds)),
        "task_inference": spread([sum(found) / len(found) for found in per_task]),
        "per_task": per_task,
        "paper": None if paper is None else {"mean": paper.mean, "std": paper.std, "note": paper.note},
        "seconds": time.perf_counter() - started,
        "environment": environment(device),
        "command": command,
        "commit": commit(),
    }
