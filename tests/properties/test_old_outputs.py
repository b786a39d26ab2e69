"""Every output of an old task, its entropy and mutual information too, stays the same to the bit: whatever other
tasks are learned, updated or forgotten, and whatever other rows are in the batch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from ibpwf import ContinualClassifier, Learner, Settings, factorize
from ibpwf.inference.prediction import Prediction
from ibpwf.inference.uncertainty import entropy

WIDTHS = (5, 11, 3, 23)
"""Classes of each task. Where sums are vectorized, further columns change their order."""

WORDS = np.array([f"{number:02d}" for number in np.random.default_rng(1).permutation(sum(WIDTHS))])
"""Labels, whose sorted order is not that of the tasks."""


def rows_of(task: int, each: int = 6) -> tuple[Tensor, Tensor]:
    first = sum(WIDTHS[:task])
    y = torch.arange(first, first + WIDTHS[task]).repeat(each)
    noise = torch.randn(len(y), 16, generator=torch.Generator().manual_seed(task))
    return torch.randn(64, 16, generator=torch.Generator().manual_seed(99))[y] + 0.7 * noise, y


def learner(base: str) -> Learner:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(16, 24), nn.ReLU(), nn.Linear(24, 24))
    settings = Settings(
        alpha=4.0,
        epochs=2,
        finetune_epochs=1,
        batch_size=32,
        heads="per-task",
        base=base,
        inference="gaussian",
        **{"inference.per": "class"},
    )
    return Learner(factorize(net, **settings.factorization), settings, device="cpu")


def own(found: Prediction, task: int) -> Tensor:
    """The probabilities of a task's own classes."""
    columns = [place for place, (owner, _) in enumerate(found.classes) if owner == task]
    return found.probabilities[:, columns].contiguous()


def outputs(asked: Learner, x: Tensor, name: str) -> dict[str, Tensor]:
    plain, drawn = asked.predict(x, name), asked.predict(x, name, posterior_samples=5, seed=3)
    assert drawn.mutual_information is not None
    number = int(plain.task[0])  # of the task, also where an older version of it is asked for
    return {
        "labels": plain.labels,
        "probabilities": own(plain, number),
        "entropy": plain.entropy,
        "drawn probabilities": own(drawn, number),
        "drawn entropy": drawn.entropy,
        "mutual information": drawn.mutual_information,
        "logits": asked.logits(x, name),
    }


@pytest.mark.parametrize("base", ["none", "frozen"])
def test_no_output_of_an_old_task_changes_as_others_come_and_go(base: str) -> None:
    asked, x = learner(base), rows_of(3)[0][:64]
    known: dict[str, dict[str, Tensor]] = {}

    def check() -> None:
        for name, before in known.items():
            now = outputs(asked, x, name)
            assert [one for one in before if not torch.equal(before[one], now[one])] == [], name

    for task in range(4):
        asked.learn(*rows_of(task), task=f"task {task}")
        check()
        known[f"task {task}"] = outputs(asked, x, f"task {task}")
    asked.update(*rows_of(3), task="task 3", keep="always")
    known["task 3@1"] = known.pop("task 3")
    check()
    for gone in ("task 1", "task 3"):
        asked.forget(gone)
        known = {name: found for name, found in known.items() if not name.startswith(gone)}
        check()
    assert [*known] == ["task 0", "task 2"]


@pytest.mark.parametrize("base", ["none", "frozen"])
@pytest.mark.parametrize("posterior_samples", [0, 4])
def test_entropies_of_a_mixed_batch_are_sums_over_each_rows_own_classes(base: str, posterior_samples: int) -> None:
    asked = learner(base)
    for task in range(4):
        asked.learn(*rows_of(task), task=f"task {task}")
    x, chance = rows_of(3)[0][:120], np.random.default_rng(0)
    tasks = chance.integers(0, 4, len(x))
    found = asked.predict(x, tasks, posterior_samples=posterior_samples, seed=1)
    for task in range(4):
        rows = torch.from_numpy(np.flatnonzero(tasks == task))
        assert torch.equal(found.entropy[rows], entropy(own(found, task)[rows]))
        alone = asked.predict(x[rows], task, posterior_samples=posterior_samples, seed=1)
        if base == "none":  # each task's rows go through its network by themselves
            assert torch.equal(found.entropy[rows], alone.entropy)
            if posterior_samples:
                assert torch.equal(found.mutual_information[rows], alone.mutual_information)


def test_a_classifier_tells_an_old_tasks_entropy_to_the_bit() -> None:
    asked = ContinualClassifier(epochs=2, hidden=(16,), settings={"inference.features.width": 32}, device="cpu")
    x, known = rows_of(3)[0][:48].numpy(), dict[str, tuple[np.ndarray, ...]]()

    def said(name: str) -> tuple[np.ndarray, ...]:
        found, drawn = asked.prediction(x, name), asked.prediction(x, name, posterior_samples=3)
        columns = np.searchsorted(asked.classes_, sorted(asked.labels_of(name)))
        assert drawn.mutual_information is not None
        parts = [found.labels, found.probability, found.task, found.entropy, drawn.probability, drawn.entropy]
        parts += [drawn.mutual_information, asked.predict_proba(x, name)[:, columns], asked.uncertainty(x, name)]
        return tuple(parts)

    for task in (0, 1, 2, 3, None):
        if task is None:
            asked.forget("task 1")
            del known["task 1"]
        else:
            rows, y = rows_of(task)
            asked.learn(rows.numpy(), WORDS[y], task=f"task {task}")
        for name, before in known.items():
            now = said(name)
            assert [at for at, one in enumerate(before) if not np.array_equal(one, now[at])] == [], name
        if task is not None:
            known[f"task {task}"] = said(f"task {task}")
