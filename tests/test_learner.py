"""A learner takes tasks one after another, answers for any of them, and goes to disk and back unchanged."""

from __future__ import annotations

import os
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

import ibpwf
import ibpwf.lab
import processes
from ibpwf import Learner, Settings, models
from ibpwf.errors import StoreError
from ibpwf.lab.data.tasks import Scenario
from ibpwf.training.callbacks import Callback, EpochEnd
from statistics_seen import batches_of_statistics


def accuracy(labels: Tensor, truth: Tensor) -> float:
    return float((labels.cpu() == truth).double().mean())


def files_of(folder: Path) -> dict[str, bytes]:
    """A model folder's files, byte for byte; the lock is no part of the model."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != ".lock"}


def same_answers(left: Learner, right: Learner, x: Tensor) -> bool:
    """Whether two learners give the same bits in every field of every kind of prediction."""
    kinds: list[dict[str, Any]] = [
        {},
        {"task": 0},
        {"task": 1},
        {"marginal": True},
        {"posterior_samples": 5, "seed": 2},
    ]
    for kind in kinds:
        a, b = (asdict(one.predict(x, **kind)) for one in (left, right))
        for name, value in a.items():
            alike = torch.equal(value, b[name]) if isinstance(value, Tensor) else value == b[name]
            if not alike:
                return False
    return True


class OwnNet(nn.Module):
    """A network of a class that the library does not know."""

    def __init__(self, width: int = 24) -> None:
        super().__init__()
        self.first = nn.Linear(64, width)
        self.last = nn.Linear(width, 2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(torch.tanh(self.first(x)))
        return out


# Learning and answering


def test_a_few_lines_learn_five_tasks_and_forget_none() -> None:
    scenario = ibpwf.lab.scenario("split-digits")
    torch.manual_seed(0)
    learner = Learner(models.mlp(64, [100], 10), Settings(epochs=20, finetune_epochs=10, learning_rate=3e-3))
    right_after = []
    for task in scenario:
        learner.learn(task.train.x, task.train.y, task=task.name)
        right_after.append(learner.logits(task.test.x, task.name))
    given = [accuracy(learner.predict(t.test.x, task=t.name).labels, t.test.y) for t in scenario]
    inferred = [accuracy(learner.predict(t.test.x).labels, t.test.y) for t in scenario]
    assert min(given) > 0.93
    assert sum(inferred) / 5 > 0.85
    for task, then in zip(scenario, right_after, strict=True):
        assert torch.equal(learner.logits(task.test.x, task.name), then)


def test_a_task_may_come_as_tensors_arrays_lists_or_a_dataset(net: nn.Module, digits: Scenario) -> None:
    x, y = digits[0].train.x[:64], digits[0].train.y[:64]

    class MapStyle(Dataset[tuple[Tensor, int]]):
        def __len__(self) -> int:
            return len(y)

        def __getitem__(self, row: int) -> tuple[Tensor, int]:
            return x[row], int(y[row])

    forms: list[tuple[Any, ...]] = [
        (x, y),
        (x.numpy(), y.numpy()),
        (x.double().numpy(), y.to(torch.uint8)),
        (x.tolist(), y.tolist()),
        (TensorDataset(x, y),),
        (MapStyle(),),
    ]
    settings = Settings(epochs=1, finetune_epochs=1, alpha=8.0)
    answers = []
    for form in forms:
        learner = Learner(net, settings, seed=1)
        info = learner.learn(*form)
        assert (info.name, info.number, info.classes, info.examples) == ("task-1", 0, (0, 1), 64)
        answers.append(learner.logits(x, 0))
    assert all(torch.equal(answer, answers[0]) for answer in answers)


def test_a_task_is_named_by_its_name_its_number_or_counted_from_the_end(learned: Learner, digits: Scenario) -> None:
    x = digits[1].test.x
    by_name = learned.predict(x, task="2/3")
    choices: list[Any] = [1, -1, np.int64(1), torch.tensor(1), np.array(1), ["2/3"] * len(x), [1] * len(x)]
    for choice in choices:
        again = learned.predict(x, task=choice)
        assert torch.equal(again.probabilities, by_name.probabilities)
        assert again.task.tolist() == [1] * len(x)


def test_rows_of_different_tasks_are_answered_as_each_task_would_alone(learned: Learner, digits: Scenario) -> None:
    x = torch.cat([digits[0].test.x[:20], digits[1].test.x[:20]])[torch.randperm(40)]
    tasks = [("0/1", "2/3", 0, 1)[row % 4] for row in range(40)]
    numbers = torch.tensor([row % 2 for row in range(40)])
    mixed = learned.predict(x, task=tasks)
    alone = [learned.predict(x, task=number) for number in (0, 1)]
    assert torch.equal(mixed.task, numbers)
    for row, number in enumerate(numbers.tolist()):
        assert mixed.labels[row] == alone[number].labels[row]
        torch.testing.assert_close(mixed.probabilities[row], alone[number].probabilities[row], rtol=0, atol=1e-6)
    assert torch.equal(learned.predict(x, task=numbers).labels, mixed.labels)


def test_labels_are_the_users_own_also_negative_large_and_returning(fresh: Learner, digits: Scenario) -> None:
    first, second = digits[0], digits[1]
    huge = 2**62
    fresh.learn(first.train.x, torch.where(first.train.y == 0, -7, huge), task="a")
    fresh.learn(second.train.x, torch.where(second.train.y == 2, huge, 3), task="b")
    answer = fresh.predict(first.test.x, task="a")
    assert answer.classes == ((0, -7), (0, huge), (1, 3), (1, huge))
    assert accuracy(answer.labels, torch.where(first.test.y == 0, -7, huge)) > 0.95
    other = fresh.predict(second.test.x, task="b")
    assert accuracy(other.labels, torch.where(second.test.y == 2, huge, 3)) > 0.95
    # The label both tasks have is two classes: all its probability lies in the column of the row's own task.
    assert float(answer.probabilities[:, 2:].abs().max()) == 0
    assert float(other.probabilities[:, :2].abs().max()) == 0


def test_probabilities_are_a_distribution_over_the_classes(learned: Learner, digits: Scenario) -> None:
    x = torch.cat([task.test.x[:30] for task in digits])
    for options in (
        {},
        {"task": 1},
        {"marginal": True},
        {"posterior_samples": 8},
        {"marginal": True, "posterior_samples": 8},
    ):
        answer = learned.predict(x, **options)  # type: ignore[arg-type]
        assert answer.probabilities.shape == (len(x), 4)
        assert float(answer.probabilities.min()) >= 0
        torch.testing.assert_close(answer.probabilities.sum(1), torch.ones(len(x), dtype=torch.float64))
        torch.testing.assert_close(answer.task_probabilities.sum(1), torch.ones(len(x), dtype=torch.float64))
        p = answer.probabilities
        brute = torch.tensor([-sum(v * np.log(v) for v in row.tolist() if v > 0) for row in p]).double()
        torch.testing.assert_close(answer.entropy, brute, rtol=0, atol=1e-9)


def test_the_marginal_mixes_the_tasks_by_their_probabilities(learned: Learner, digits: Scenario) -> None:
    x = digits[1].test.x
    mixed = learned.predict(x, marginal=True)
    expected = torch.zeros_like(mixed.probabilities)
    for task in (0, 1):
        softmax = learned.logits(x, task).double().softmax(1)
        expected[:, 2 * task : 2 * task + 2] = softmax * mixed.task_probabilities[:, task : task + 1]
    torch.testing.assert_close(mixed.probabilities, expected)
    assert torch.equal(mixed.labels, learned.predict(x).labels)


def test_draws_repeat_with_their_seed_and_measure_what_the_weights_leave_open(
    learned: Learner, digits: Scenario
) -> None:
    x = digits[0].test.x
    assert learned.predict(x).mutual_information is None
    one, again, other = (learned.predict(x, posterior_samples=20, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(one.probabilities, again.probabilities)
    assert not torch.equal(one.probabilities, other.probabilities)
    information = one.mutual_information
    assert information is not None
    assert bool((information >= 0).all())
    assert bool((information <= one.entropy + 1e-9).all())
    assert float(information.max()) > 0


def test_no_rows_give_no_answers(learned: Learner) -> None:
    for options in ({}, {"task": 0}, {"marginal": True}, {"posterior_samples": 3}, {"task": []}):
        answer = learned.predict(torch.zeros(0, 64), **options)  # type: ignore[arg-type]
        assert len(answer) == 0
        assert answer.probabilities.shape == (0, 4)


@pytest.mark.parametrize("given", [True, False])
def test_rows_of_several_tasks_run_once_each_and_together_by_task(
    learned: Learner, digits: Scenario, given: bool
) -> None:
    x = torch.stack([task.test.x[:30] for task in digits[:2]], 1).flatten(0, 1)  # the tasks take turns
    batches: list[int] = []
    head = learned.model.net.get_submodule("head")
    handle = head.register_forward_hook(lambda module, inputs, output: batches.append(len(output)))
    answer = learned.predict(x, task=["0/1", "2/3"] * 30 if given else None)
    handle.remove()
    assert sorted(batches) == sorted(torch.bincount(answer.task).tolist())
    for row in range(60):
        alone = learned.predict(x[row : row + 1], task=int(answer.task[row]))
        torch.testing.assert_close(answer.probabilities[row], alone.probabilities[0], rtol=0, atol=1e-6)
        assert answer.labels[row] == alone.labels[0]


def test_a_transformer_learns_five_tasks_and_forgets_none(digits: Scenario, tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = models.vit_tiny(8, 2, width=24, depth=2, heads=3, classes=2, in_channels=1)
    settings = Settings(epochs=4, finetune_epochs=8, learning_rate=3e-3, batch_size=16, init="pretrained")
    learner = Learner(net, settings)
    answers = []
    for task in digits:
        learner.learn(task.train.x.reshape(-1, 1, 8, 8), task.train.y, task=task.name)
        answers.append(learner.logits(digits[0].test.x.reshape(-1, 1, 8, 8), task.name))
    learner.save(tmp_path / "model")
    loaded = Learner.load(tmp_path / "model")  # a network of ours needs no other description
    for number, task in enumerate(digits):
        right = learner.predict(task.test.x.reshape(-1, 1, 8, 8), task=number).labels == task.test.y
        assert float(right.double().mean()) > 0.9
        for each in (learner, loaded):
            assert torch.equal(each.logits(digits[0].test.x.reshape(-1, 1, 8, 8), number), answers[number])


def test_a_merged_task_is_a_plain_network_with_the_same_outputs(learned: Learner, digits: Scenario) -> None:
    x = digits[1].test.x
    plain = learned.merge("2/3")
    assert type(plain) is nn.Sequential
    with torch.no_grad():
        torch.testing.assert_close(plain(x), learned.logits(x, "2/3"), rtol=0, atol=1e-6)


def test_the_users_network_is_not_touched(net: nn.Module, small: Settings, digits: Scenario) -> None:
    before = {name: value.clone() for name, value in net.state_dict().items()}
    Learner(net, small).learn(digits[0].train.x, digits[0].train.y)
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert all(parameter.requires_grad for parameter in net.parameters())


def test_callbacks_are_told_of_every_epoch(fresh: Learner, digits: Scenario) -> None:
    class Epochs(Callback):
        def epoch_end(self, epoch: EpochEnd) -> None:
            told.append(epoch)

    told: list[EpochEnd] = []
    fresh.learn(digits[0].train.x, digits[0].train.y, task="t", callbacks=[Epochs()])
    phases = [(p.phase, p.epoch, p.epochs) for p in told]
    assert phases == [("elbo", e, 4) for e in (1, 2, 3, 4)] + [("finetune", e, 2) for e in (1, 2)]
    assert all(p.task == "t" and p.active == p.new + p.reused and p.samples == len(digits[0].train) for p in told)


# The same bits


def test_the_same_seed_gives_the_same_files_and_another_seed_others(
    net: nn.Module, small: Settings, digits: Scenario, tmp_path: Path
) -> None:
    for name, seed in (("one", 5), ("again", 5), ("other", 6)):
        torch.manual_seed(len(name))  # the global stream must not matter
        learner = Learner(net, small, seed=seed)
        for task in digits[:2]:
            learner.learn(task.train.x, task.train.y, task=task.name)
        learner.save(tmp_path / name)
    assert files_of(tmp_path / "one") == files_of(tmp_path / "again")
    tasks = {
        name: {file for file in files_of(tmp_path / name) if file.startswith("task-")} for name in ("one", "other")
    }
    assert len(tasks["one"]) == 2
    assert not tasks["one"] & tasks["other"]


def test_what_was_loaded_answers_with_the_same_bits(
    learned: Learner, learnt_folder: Path, digits: Scenario, tmp_path: Path
) -> None:
    again = Learner.load(learnt_folder)
    assert again.tasks == learned.tasks
    assert again.settings == learned.settings
    assert same_answers(learned, again, digits[1].test.x)
    again.save(tmp_path / "again")
    assert files_of(tmp_path / "again") == files_of(learnt_folder)


def go_on(folder: str, tasks: tuple[int, ...]) -> None:
    """Load a learner, learn further tasks of digits, save it. Runs in another process."""
    torch.set_num_threads(1)
    learner = Learner.load(folder)
    scenario = ibpwf.lab.scenario("split-digits")
    for task in [scenario[number] for number in tasks]:
        learner.learn(task.train.x, task.train.y, task=task.name)
    learner.save(folder)


def test_a_learner_stored_loaded_and_continued_elsewhere_equals_one_that_never_stopped(
    learned: Learner, learnt_folder: Path, digits: Scenario, tmp_path: Path
) -> None:
    moved = tmp_path / "moved"
    shutil.copytree(learnt_folder, moved)
    processes.call(go_on, str(moved), (2,))
    processes.call(go_on, str(moved), (3,))
    for task in digits[2:4]:
        learned.learn(task.train.x, task.train.y, task=task.name)
    learned.save(tmp_path / "stayed")
    assert files_of(moved) == files_of(tmp_path / "stayed")
    assert same_answers(Learner.load(moved), learned, digits[3].test.x)


def test_saving_again_leaves_the_files_of_old_tasks_alone(learned: Learner, digits: Scenario, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    learned.save(folder)

    def stamps() -> dict[str, tuple[int, int]]:
        return {p.name: (p.stat().st_ino, p.stat().st_mtime_ns) for p in folder.glob("*.safetensors")}

    for path in folder.glob("*.safetensors"):
        os.utime(path, ns=(1, 1))  # a rewrite within the clock's resolution would show too
    before = stamps()
    learned.learn(digits[2].train.x, digits[2].train.y, task="4/5")
    learned.save(folder)
    after = stamps()
    assert {name: after[name] for name in before} == before
    assert {name.split(".")[0] for name in after.keys() - before.keys()} == {"task-0002", "factors-0002"}


def test_a_learner_can_be_stored_before_it_has_learnt_anything(
    fresh: Learner, digits: Scenario, tmp_path: Path
) -> None:
    fresh.save(tmp_path / "model")
    loaded = Learner.load(tmp_path / "model")
    for learner in (fresh, loaded):
        learner.learn(digits[0].train.x, digits[0].train.y)
    assert torch.equal(fresh.logits(digits[0].test.x, 0), loaded.logits(digits[0].test.x, 0))


def test_a_network_of_ones_own_class_is_asked_for_again_and_then_loads(
    small: Settings, digits: Scenario, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    learner = Learner(OwnNet(), small)
    learner.learn(digits[0].train.x, digits[0].train.y)
    learner.save(tmp_path / "own")
    with pytest.raises(StoreError, match=r"network of your own class; pass it again: Learner\.load\(path, net="):
        Learner.load(tmp_path / "own")
    loaded = Learner.load(tmp_path / "own", net=OwnNet())  # other initial weights, which do not matter
    assert torch.equal(loaded.logits(digits[0].test.x, 0), learner.logits(digits[0].test.x, 0))
    with pytest.raises(StoreError, match=r"'first\.weight' has shape \[9, 64\].*\[24, 64\].*built exactly as"):
        Learner.load(tmp_path / "own", net=OwnNet(9))


def test_heads_of_their_own_and_gaussians_per_class_come_back_as_well(
    net: nn.Module, small: Settings, digits: Scenario, tmp_path: Path
) -> None:
    learner = Learner(
        net,
        small.replace(heads="per-task", inference="gaussian", max_factors=12, **{"inference.per": "class"}),
        seed=1,
    )
    for task in digits[:2]:
        learner.learn(task.train.x, task.train.y, task=task.name)
    learner.save(tmp_path / "model")
    loaded = Learner.load(tmp_path / "model")
    assert same_answers(learner, loaded, digits[0].test.x)
    for one in (learner, loaded):
        one.learn(digits[2].train.x, digits[2].train.y, task="4/5")
    assert same_answers(learner, loaded, digits[2].test.x)


def test_without_fine_tuning_batch_normalisation_gets_the_statistics_of_the_weights_that_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen = batches_of_statistics(monkeypatch)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, 2))
    settings = Settings(alpha=6.0, epochs=3, finetune_epochs=0, batch_size=16, learning_rate=0.01)
    x, y = torch.randn(64, 6), torch.arange(64) % 2
    learner = Learner(net, settings)
    learner.learn(x, y)
    merged = learner.merge(0).train()
    assert torch.equal(torch.cat(seen).sort(0).values, x.sort(0).values), "every row once"
    hidden = [merged[0](rows) for rows in seen]
    expected = torch.stack([rows.mean(0) for rows in hidden]).mean(0)
    torch.testing.assert_close(merged[1].running_mean, expected, rtol=1e-4, atol=1e-5)
    spread = torch.stack([rows.var(0) for rows in hidden]).mean(0)
    torch.testing.assert_close(merged[1].running_var, spread, rtol=1e-4, atol=1e-5)
    assert merged[1].momentum == 0.1
