"""What a learner does untouched: it learns few rows well, says so where it did not, and takes each setting once."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch
from torch import Tensor

from ibpwf import Learner, Settings, factorize, models
from ibpwf.errors import InputError
from ibpwf.settings import automatic_schedule


def separable(seed: int, task: int, rows: int = 400, held_out: int = 2000) -> tuple[Tensor, Tensor]:
    """Two classes on either side of a plane through 20 dimensions, another one for every task."""
    generator = torch.Generator().manual_seed(1000 * seed + task)
    x = torch.randn(rows + held_out, 20, generator=generator)
    return x, (x @ torch.randn(20, generator=generator) > 0).long()


@pytest.mark.parametrize("seed", range(2))
def test_few_rows_of_separable_classes_are_learned_untouched_by_first_and_later_tasks(seed: int) -> None:
    torch.manual_seed(seed)
    learner = Learner(models.mlp(20, [64], 2), seed=seed, device="cpu")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for task in range(3):
            x, y = separable(seed, task)
            info = learner.learn(x[:400], y[:400])
            right = (learner.predict(x[400:], task=task).labels == y[400:]).double().mean()
            assert float(right) >= 0.95
            assert info.training_accuracy is not None
            assert info.training_accuracy > 95


@pytest.mark.parametrize("rows", [1, 2, 15, 16, 40, 100, 399, 400, 499, 500, 1000, 3999])
def test_few_rows_are_learned_in_hundreds_of_steps(rows: int) -> None:
    plan = automatic_schedule(rows)
    steps = plan.epochs * max(rows // plan.batch_size, 1)
    assert 100 <= steps < 1500
    assert plan.finetune_epochs == (plan.epochs + 1) // 2


# Near chance


def test_a_task_near_chance_is_warned_of_with_a_remedy_and_a_learned_one_is_not() -> None:
    x, y = separable(0, 0)
    noise = torch.randint(0, 2, (400,), generator=torch.Generator().manual_seed(0))
    torch.manual_seed(0)
    learner = Learner(models.mlp(20, [16], 2), Settings(epochs=1, finetune_epochs=1), device="cpu")
    with pytest.warns(UserWarning, match=r"task 'noise' was hardly learned: .* % of its own rows .*Train longer"):
        info = learner.learn(x[:400], noise, task="noise")
    assert learner.tasks == (info,), "it counts all the same"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Learner(models.mlp(20, [16], 2), device="cpu").learn(x[:400], y[:400])


def test_beside_a_frozen_base_nobody_is_told_to_start_from_its_weights() -> None:
    x, _ = separable(0, 0)
    noise = torch.randint(0, 2, (400,), generator=torch.Generator().manual_seed(0))
    settings = Settings(epochs=1, finetune_epochs=1, learning_rate=1e-6)
    for base, advised in (("none", True), ("frozen", False)):
        learner = Learner(models.mlp(20, [16], 2), settings.replace(base=base), device="cpu")
        with pytest.warns(UserWarning, match="hardly learned") as told:
            learner.learn(x[:400], noise, task="noise")
        assert ("init='pretrained'" in str(told[0].message)) is advised


def test_chance_is_the_largest_classs_share() -> None:
    x, _ = separable(0, 0)
    rare = (torch.arange(400) % 10 == 0).long()  # nine in ten are right by always saying the same
    learner = Learner(models.mlp(20, [16], 2), Settings(epochs=3, finetune_epochs=1, alpha=4.0), device="cpu")
    with pytest.warns(UserWarning, match=r"always giving its largest class would be right for 90\.0 %"):
        learner.learn(x[:400], rare)


def test_the_training_accuracy_is_kept_with_its_task(tmp_path: Path) -> None:
    x, y = separable(0, 0)
    torch.manual_seed(0)
    learner = Learner(models.mlp(20, [16], 2), Settings(epochs=10, finetune_epochs=10, learning_rate=0.01))
    info = learner.learn(x[:400], y[:400])
    right = 100 * float((learner.predict(x[:400], task=0).labels == y[:400]).double().mean())
    assert info.training_accuracy == pytest.approx(right, abs=3), "measured while it was still trained"
    learner.save(tmp_path / "model")
    assert Learner.load(tmp_path / "model").tasks == (info,)


# Settings that are said twice


@pytest.mark.parametrize(
    ("name", "value", "other"),
    [
        ("alpha", 300.0, "auto"),
        ("max_factors", 7, None),
        ("heads", "per-task", "shared"),
        ("strength_std", 0.2, 0.316),
        ("init", "pretrained", "random"),
    ],
)
def test_settings_that_say_otherwise_than_the_model_was_factorized_are_refused(
    name: str, value: object, other: object
) -> None:
    net = models.mlp(20, [16], 2)
    with pytest.raises(
        InputError, match=rf"{name} is .* in the settings, but the model was factorized with .*say it"
    ):
        Learner(factorize(net), Settings(**{name: value}))
    with pytest.raises(InputError, match=f"{name} is"):
        Learner(factorize(net, **{name: value}), Settings(**{name: other}))
    for settings in (Settings(**{name: value}), Settings(), None, Settings(epochs=3)):
        learner = Learner(factorize(net, **{name: value}), settings)
        assert getattr(Learner(net, Settings(**{name: value})).settings, name) == getattr(learner.settings, name)
