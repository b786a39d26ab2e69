"""A model folder whose manifest says other turns than its tensors were learned with is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from resealed import Folder
from torch import nn

import ibpwf
from ibpwf import Learner, Settings
from ibpwf.errors import IBPWFError, StoreError

X = torch.randn(24, 1, 4, 4, generator=torch.Generator().manual_seed(0))
SETTINGS = Settings(alpha=4.0, epochs=1, finetune_epochs=1, batch_size=12, turns=4)
TURNS = (4, 1, 4)


@pytest.fixture(scope="module", params=["shared", "per-task"])
def whole(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Folder:
    """A task of two classes with turns, one of four without, a third of three with them."""
    net = nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 12))
    learner = Learner(net, SETTINGS.replace(heads=request.param), device="cpu")
    for turns, classes in zip(TURNS, (2, 4, 3), strict=True):
        learner.settings = learner.settings.replace(turns=turns)
        learner.learn(X, torch.arange(24) % classes)
    path = tmp_path_factory.mktemp("turned") / "model"
    learner.save(path)
    return Folder.read(path)


def test_a_folder_that_is_only_sealed_again_answers(whole: Folder, tmp_path: Path) -> None:
    whole.write(tmp_path / "model")
    assert [task.turns for task in ibpwf.load(tmp_path / "model").model.tasks] == [4, 1, 4]  # type: ignore[union-attr]


@pytest.mark.parametrize("turns", [0, 1, 2, 3, 4, 8, -4, 4.5, "4", "1", True, None, [4], 10**30])
def test_other_turns_are_refused(whole: Folder, tmp_path: Path, turns: Any) -> None:
    for task, learned_with in enumerate(TURNS):
        if turns == learned_with:
            continue
        folder = whole.changed()
        folder.content["state"]["tasks"][task]["turns"] = turns
        folder.write(tmp_path / "model")
        with pytest.raises(StoreError, match="turns") as caught:
            ibpwf.load(tmp_path / "model", device="cpu")
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("outputs", [1, 2, 4, 6, 7, 9, 12])
def test_outputs_that_are_not_four_per_class_are_refused(whole: Folder, tmp_path: Path, outputs: int) -> None:
    folder = whole.changed()
    folder.content["state"]["tasks"][0]["outputs"] = outputs
    folder.write(tmp_path / "model")
    with pytest.raises(StoreError, match=r"task 0 .*outputs"):
        ibpwf.load(tmp_path / "model", device="cpu")


def test_four_classes_do_not_become_one_in_four_turns(whole: Folder, tmp_path: Path) -> None:
    """Then the outputs would fit; the task's classes do not."""
    folder = whole.changed()
    folder.content["state"]["tasks"][1].update(turns=4, classes=[0])
    folder.write(tmp_path / "model")
    with pytest.raises(StoreError):
        ibpwf.load(tmp_path / "model", device="cpu")


@pytest.mark.parametrize("shape", [[16], [4, 4], [1, 2, 8], [1, 8, 2]])
def test_turned_tasks_give_no_answers_for_inputs_that_cannot_be_turned(
    whole: Folder, tmp_path: Path, shape: list[int]
) -> None:
    """The network takes any of them, since it flattens what it is given; 16 flat rows could even be turned into one
    another."""
    folder = whole.changed()
    folder.content["input_shape"] = shape
    folder.write(tmp_path / "model")
    for options in ({"task": 0}, {"task": 2}, {"task": 0, "posterior_samples": 2}):
        with pytest.raises(IBPWFError) as caught:
            ibpwf.load(tmp_path / "model", device="cpu").predict(X[:16].reshape(16, *shape), **options)
        assert "\n" not in str(caught.value)
