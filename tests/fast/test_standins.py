"""Every stand-in names what it stands for; with acceleration off none of them runs; whole runs agree both ways."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

import ibpwf.fast.registered
from ibpwf import dispatch as reference
from ibpwf.dispatch import accelerated, accelerates, stand_ins
from ibpwf.lab.data.tasks import Scenario
from ibpwf.lab.experiments.presets import preset
from ibpwf.learner import Learner
from ibpwf.models import mlp
from ibpwf.settings import Settings

REFERENCES = list(reference._stand_ins)


@pytest.mark.parametrize("function", REFERENCES, ids=lambda function: function.__name__)
def test_a_stand_ins_module_names_the_function_it_stands_for(function: object) -> None:
    name, room = function.__name__, function.__module__  # type: ignore[attr-defined]
    found = stand_ins(function)  # type: ignore[arg-type]
    assert found, f"{room}.{name} is marked as a reference, but has no stand-in"
    for stand_in in found:
        text = sys.modules[stand_in.__module__].__doc__ or ""
        assert name in text, f"{stand_in.__module__} does not say that it stands for {name}"
        assert room.removeprefix("ibpwf.") in text, f"{stand_in.__module__} does not say where {name} is"


def test_there_is_a_stand_in_for_every_reference_and_all_are_registered_at_once() -> None:
    names = {f"{function.__module__.removeprefix('ibpwf.')}.{function.__name__}" for function in REFERENCES}
    assert names == {
        "backbones.inverted_residuals.clipped_norm",
        "factors.elbo.posterior_kl",
        "factors.elbo.sample_scores",
        "factors.layers.arrange",
        "factors.layers.assign_scores",
        "factors.layers.layer_product",
        "factors.layers.layer_weight",
        "fast.mixed.in_one_pass",
        "inference.base.infer_tasks",
        "models.normalized",
        "training.phase.make_optimizer",
        "training.step.make_step",
    }
    assert set(ibpwf.fast.registered.__all__) == {
        stand_in.__module__.rpartition(".")[2] for function in REFERENCES for stand_in in stand_ins(function)
    }


def test_the_switch_is_put_back_after_an_error_and_the_environment_outranks_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert accelerates()
    with accelerated(False):
        assert not accelerates()
        with contextlib.suppress(KeyError), accelerated(True):
            raise KeyError
        assert not accelerates()
    assert accelerates()
    monkeypatch.setenv("IBPWF_ACCELERATE", "0")
    with accelerated(True):
        assert not accelerates()


class Used(Exception):
    """A stand-in was called."""


@pytest.fixture
def mined() -> Iterator[None]:
    """Every stand-in fails when it is asked whether it applies, and when it is called."""

    def fail(*arguments: object, **options: object) -> bool:
        raise Used

    kept = {function: list(found) for function, found in reference._stand_ins.items()}
    for found in reference._stand_ins.values():
        found[:] = [(fail, fail) for _ in found]
    yield
    for function, found in kept.items():
        reference._stand_ins[function][:] = found


def learned(digits: Scenario, settings: Settings, tasks: int = 2) -> Learner:
    torch.manual_seed(0)
    learner = Learner(mlp(64, [100], 10), settings, seed=0, device="cpu")
    for task in digits[:tasks]:
        learner.learn(task.train.x, task.train.y, task=task.name)
        learner.predict(task.test.x)
    return learner


SHORT = Settings(epochs=1, finetune_epochs=1, alpha=8.0)


@pytest.mark.filterwarnings("ignore:task .* was hardly learned")
@pytest.mark.usefixtures("mined")
def test_with_acceleration_off_learning_and_answering_call_no_stand_in(
    digits: Scenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(Used):
        learned(digits, SHORT)
    assert len(learned(digits, SHORT.replace(accelerate=False)).tasks) == 2
    monkeypatch.setenv("IBPWF_ACCELERATE", "0")
    assert len(learned(digits, SHORT).tasks) == 2


def test_a_whole_run_has_the_same_accuracies_with_and_without_acceleration(digits: Scenario) -> None:
    settings = (
        preset("split-digits", "quick").make_settings().replace(epochs=8, finetune_epochs=4, learning_rate=3e-3)
    )
    learners = [learned(digits, settings.replace(accelerate=accelerate), 5) for accelerate in (True, False)]
    given: list[list[Tensor]] = [[], []]
    for task in digits:
        for place, learner in enumerate(learners):
            for answer in (learner.predict(task.test.x, task=task.name), learner.predict(task.test.x)):
                given[place].append(100 * (answer.labels == task.test.y).double().mean())
    assert torch.stack(given[0])[::2].mean() > 93
    # An input whose answer hangs on a rounding may fall on either side: one row in 72 is 1.4 points.
    torch.testing.assert_close(torch.stack(given[0]), torch.stack(given[1]), rtol=0, atol=1.5)
