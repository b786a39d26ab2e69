"""With the task given, what the router said of its classes counts beside its network, and never changes again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import optimize, special
from torch import Tensor, nn

import ibpwf.likelihoods
from ibpwf import Learner, Settings
from ibpwf.errors import InputError, StoreError
from ibpwf.inference import fusion
from ibpwf.inference.opinion import EXPERT, REGRESSION
from ibpwf.models import mlp
from router_tasks import CLASSES, SETTINGS, X, examples, network, router_scores, same_models, taught

OPINION: dict[str, Any] = {"inference.second_opinion": True, "validation_fraction": 0.2}


def given(learner: Learner, task: int, x: Tensor = X, **options: Any) -> Tensor:
    """What is answered with the task given: the probabilities of its classes."""
    told = learner.predict(x, task=task, **options)
    return told.probabilities[:, [owner == task for owner, _ in told.classes]]


def test_it_is_the_weighted_sum_of_the_expert_and_of_the_router_of_then() -> None:
    for task in range(3):
        then, now = taught(task + 1, **OPINION), taught(3, **OPINION)
        calibration = now.method.calibrations[task]
        assert calibration is not None
        assert calibration.opinion is not None
        first = sum(map(len, CLASSES[:task]))
        r = router_scores(then)[:, first : first + len(CLASSES[task])]
        e = now.logits(X, task).double().numpy()
        expert, regression = calibration.opinion
        wanted = special.softmax(expert * e + regression * r, 1)
        np.testing.assert_allclose(given(now, task).numpy(), wanted, atol=1e-4)
        assert np.abs(wanted - special.softmax(e / calibration.temperature, 1)).max() > 0.01, "it says something"


def test_its_weights_are_the_likeliest_for_the_held_out_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    fitted = fusion.given
    monkeypatch.setattr(fusion, "given", lambda *told: seen.append(told) or fitted(*told))
    learner = Learner(network(), SETTINGS.replace(**OPINION), seed=5, device="cpu")
    learner.learn(*examples(CLASSES[0]))
    ((e, y, r),) = ([part.numpy() for part in told] for told in seen)

    def loss(weights: np.ndarray) -> float:
        log_p = special.log_softmax(weights[0] * e + weights[1] * r, 1)[np.arange(len(y)), y]
        return float(-log_p.sum() + ((weights / [EXPERT, REGRESSION] - 1) ** 2).sum() / 2)

    calibration = learner.method.calibrations[0]
    assert calibration is not None
    assert calibration.opinion is not None
    found = optimize.minimize(loss, [1.0, 1.0], bounds=[(1e-3, None), (0, None)], tol=1e-10)
    np.testing.assert_allclose(calibration.opinion, found.x, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("held_out", [0.0, 0.2])
@pytest.mark.parametrize("posterior_samples", [0, 5])
def test_later_tasks_change_no_bit(held_out: float, posterior_samples: int) -> None:
    learner = taught(2, validation_fraction=held_out, **{"inference.second_opinion": True})
    before = [given(learner, task, posterior_samples=posterior_samples) for task in range(2)]
    learner.learn(*examples(CLASSES[2]), task="third")
    assert all(
        torch.equal(given(learner, task, posterior_samples=posterior_samples), before[task]) for task in range(2)
    )
    assert len(learner.predict(X).labels) == len(X)


def test_saved_and_loaded_it_answers_and_learns_on_to_the_bit(tmp_path: Path) -> None:
    learner = taught(2, **OPINION)
    learner.save(tmp_path / "model")
    again = Learner.load(tmp_path / "model", device="cpu")
    assert same_models(learner, again)
    assert all(torch.equal(given(learner, task), given(again, task)) for task in range(2))
    again.learn(*examples(CLASSES[2]), task=str(CLASSES[2]))
    assert same_models(again, taught(3, **OPINION))


def test_only_tasks_that_were_learned_with_it_have_one(tmp_path: Path) -> None:
    learner = taught(1)
    before = given(learner, 0)
    learner.settings = learner.settings.replace(**OPINION)
    learner.learn(*examples(CLASSES[1]), task="second")
    learner.save(tmp_path / "model")
    again = Learner.load(tmp_path / "model", device="cpu")
    assert [one.opinion is not None for one in again.method.versions.all] == [False, True]
    assert torch.equal(given(again, 0), before)
    assert torch.equal(given(again, 1), given(learner, 1))


def test_a_forgotten_task_takes_its_opinion_along() -> None:
    learner = taught(3, **OPINION, **{"inference.keep_sums_per_task": True})
    before = given(learner, 2)
    learner.forget(1)
    assert len(learner.method.versions.all) == 2
    torch.testing.assert_close(given(learner, 1), before, rtol=0, atol=0)


def test_a_new_version_has_its_own_and_the_old_one_stays() -> None:
    learner = taught(2, **OPINION)
    before = learner.predict(X, task=0).probabilities
    learner.update(*examples(CLASSES[0], 110, 170), task=0, keep="always")
    old, new = (learner.method.versions[number] for number in (2, 0))
    assert (old.number, new.number) == (1, 2)
    assert old.opinion is not None
    assert new.opinion is not None
    assert not torch.equal(old.opinion.weight, new.opinion.weight)
    assert torch.equal(learner.method.class_probabilities(X, 2)[0], before[:, :2])


def test_rows_of_several_tasks_in_one_pass_have_the_answers_of_each() -> None:
    torch.manual_seed(0)
    settings = SETTINGS.replace(base="frozen", heads="per-task", **OPINION, **{"inference.features.width": 60})
    learner = Learner(nn.Sequential(nn.Flatten(), mlp(64, [16], 3)), settings, seed=0, device="cpu")
    for labels in CLASSES:
        learner.learn(*examples(labels), task=str(labels))
    task = torch.arange(len(X)) % 3
    mixed = learner.predict(X, task=task.tolist())
    for number in range(3):
        rows = task == number
        alone = learner.predict(X[rows], task=number)
        torch.testing.assert_close(mixed.probabilities[rows], alone.probabilities, rtol=1e-4, atol=1e-5)


def test_both_together_are_right_more_often_than_a_network_of_few_steps() -> None:
    x, y = (torch.cat(part) for part in zip(*(examples(labels, 80, 170) for labels in CLASSES), strict=True))
    owner = [next(task for task, labels in enumerate(CLASSES) if int(label) in labels) for label in y]
    short = {"epochs": 1, "finetune_epochs": 1, "inference.features.width": 200}
    right = [
        float(
            (
                taught(3, **short, validation_fraction=0.2, **{"inference.second_opinion": kept})
                .predict(x, task=owner)
                .labels
                == y
            )
            .double()
            .mean()
        )
        for kept in (False, True)
    ]
    assert right[1] > right[0] + 0.02


def test_what_is_said_of_rows_kept_apart_is_said_of_both_together(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[Tensor, Tensor]] = []
    compare = ibpwf.likelihoods.compared

    def watched(train: Any, held: Any, logits: Tensor) -> Any:
        seen.append((held.tensors()[0], logits))
        return compare(train, held, logits)

    monkeypatch.setattr(ibpwf.likelihoods, "compared", watched)
    learner = Learner(
        network(),
        SETTINGS.replace(validation_fraction=0.4, **{"inference.second_opinion": True}),
        seed=5,
        device="cpu",
    )
    learner.learn(*examples(CLASSES[0]))
    ((x, logits),) = seen
    torch.testing.assert_close(logits.softmax(1), given(learner, 0, x), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("changes", [{"inference": "gaussian"}, {"inference": "shared-gaussian"}])
def test_nothing_but_a_router_has_a_second_opinion(changes: dict[str, str]) -> None:
    with pytest.raises(InputError, match=r"unknown setting .*'inference\.second_opinion'"):
        Settings(**changes, **{"inference.second_opinion": True})


@pytest.mark.parametrize("fault", ["gone", "width", "flag", "weights"])
def test_a_folder_with_half_an_opinion_is_refused(fault: str, tmp_path: Path) -> None:
    learner = taught(1, **OPINION)
    content, parts = learner.method.state()
    content = json.loads(json.dumps(content))
    part, task = dict(parts["task-0000"]), content["tasks"][0]
    if fault == "gone":
        del part["opinion/weight"]
    elif fault == "width":
        part["opinion/weight"] = part["opinion/weight"][:-1]
    elif fault == "flag":
        del task["opinion"]
    else:
        task["calibration"]["opinion"] = None
    other = Learner(network(), SETTINGS.replace(**OPINION), seed=5, device="cpu")
    with pytest.raises((ValueError, StoreError), match="opinion"):
        other.method.load_state(content, {**parts, "task-0000": part})
