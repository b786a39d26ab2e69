"""Writes tiny model folders, with the answers they give, so that a change of the format does not go unnoticed.

Run it only where the format is meant to change: `python write_folders.py`.
"""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import save_file
from sklearn.datasets import load_iris
from torch import Tensor, nn

from ibpwf import ContinualClassifier, Learner, Settings
from ibpwf.storage.folder import LOCK

SETTINGS = Settings(epochs=40, finetune_epochs=2, alpha=3.0, batch_size=16, learning_rate=0.03, kappa=0.3)


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 4))


def convolution() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 3, 3, bias=False), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(12, 3))


def examples(task: int, shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(task)
    y = torch.arange(48) % (2 + task % 2)
    centers = 2 * torch.randn(3, *shape, generator=generator) + 3 * torch.randn(shape, generator=generator)
    return torch.randn(48, *shape, generator=generator) + centers[y], y + 10 * task


def write(
    folder: Path, net: nn.Module, shape: tuple[int, ...], settings: Settings, forget: int | None = None
) -> None:
    learner = Learner(net, settings, seed=7, device="cpu")
    tasks = 3 if forget is None else 4
    for task in range(tasks):
        learner.learn(*examples(task, shape), task=f"task {task}")
    if forget is not None:
        learner.forget(forget)
    learner.save(folder, extra={"written by": "a learner"})
    (folder / LOCK).unlink()
    x = torch.cat([examples(task, shape)[0][:4] for task in range(tasks)])
    told = learner.predict(x)
    answers = {f"logits/{task.number}": learner.logits(x, task.number) for task in learner.tasks}
    answers |= {"x": x, "labels": told.labels, "probabilities": told.probabilities}
    answers["task_probabilities"] = told.task_probabilities
    answers["drawn"] = learner.predict(x, task=1, posterior_samples=5, seed=1).probabilities
    save_file({name: tensor.contiguous() for name, tensor in answers.items()}, folder / "answers.safetensors")


def write_classifier(folder: Path) -> None:
    """Three species of flowers as numbers and two more by measure, in two tasks with names."""
    x, y = load_iris(return_X_y=True)
    classifier = ContinualClassifier(hidden=(6,), epochs=10, settings={"inference.features.width": 12}, device="cpu")
    classifier.learn(x, y, task="species")
    classifier.learn(x + 5, (x[:, 0] > 5.8) + 3, task="length")
    classifier.save(folder, extra={"written by": "a classifier"})
    (folder / LOCK).unlink()
    rows = torch.from_numpy(x[::10]).repeat(2, 1)
    rows[15:] += 5
    answers = {"x": rows, "labels": classifier.predict(rows), "probabilities": classifier.predict_proba(rows)}
    answers["novelty"] = classifier.novelty(rows)
    save_file({name: torch.as_tensor(v) for name, v in answers.items()}, folder / "answers.safetensors")


def main(out: Path) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    write(out / "mlp-shared-head", mlp(), (8,), SETTINGS.replace(inference="gaussian", **{"inference.per": "class"}))
    write(out / "convolution-head-per-task", convolution(), (1, 4, 4), SETTINGS.replace(heads="per-task"))
    write(out / "first-task-forgotten", mlp(), (8,), SETTINGS, forget=0)
    write_classifier(out / "classifier")


if __name__ == "__main__":
    main(Path(__file__).parent)
