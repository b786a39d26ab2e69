"""Task inference takes more rows of a task as if all had come at once, whatever it keeps of them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from ibpwf.errors import InputError
from ibpwf.inference.base import TaskInference
from ibpwf.inference.fusion import RATES, Calibration, Scores, recalibrated
from ibpwf.inference.gaussian import Gaussian
from ibpwf.inference.novelty import Novelty
from ibpwf.inference.router import Router
from ibpwf.inference.shared import SharedGaussian

Rows = tuple[Tensor, Tensor]

KINDS: dict[str, Callable[[], TaskInference]] = {
    "gaussian": Gaussian,
    "class-gaussian": lambda: Gaussian(per="class"),
    "shrunk": lambda: Gaussian(shrinkage=0.3),
    "shared-gaussian": lambda: SharedGaussian(ridge=0.2),
    "router": Router,
    "router, float32": lambda: Router(ridge=0.01, precision="mixed"),
    "router, sums per task": lambda: Router(keep_sums_per_task=True),
}


def rows(task: int, seed: int, count: int = 90, classes: int = 3, shift: float = 0.0) -> Rows:
    """φ in 12 dimensions around a mean for each class of the task."""
    random = torch.Generator().manual_seed(seed)
    means = torch.randn(classes, 12, generator=torch.Generator().manual_seed(100 + task)) * 2
    y = torch.arange(count) % classes
    return means[y] + shift + torch.randn(count, 12, generator=random).double(), y


def both(first: Rows, second: Rows) -> Rows:
    return torch.cat([first[0], second[0]]), torch.cat([first[1], second[1]])


@pytest.mark.parametrize("task", [0, 1])
@pytest.mark.parametrize("kind", KINDS)
def test_scores_are_those_of_a_joint_fit_of_old_and_new_rows(kind: str, task: int) -> None:
    old, new = [rows(0, 1), rows(1, 2)], rows(task, 3, count=60, shift=1.5)
    grown, joint = KINDS[kind](), KINDS[kind]()
    for number, part in enumerate(old):
        grown.learn(number, [part], 3)
        joint.learn(number, [both(part, new) if number == task else part], 3)
    grown.update(task, [new], 3)
    x = torch.cat([part[0] for part in (*old, new)])
    close = 1e-4 if "float32" in kind else 1e-6  # of products in float32
    torch.testing.assert_close(grown.log_scores(x), joint.log_scores(x), rtol=close, atol=close)
    if isinstance(grown, Router) and isinstance(joint, Router):
        torch.testing.assert_close(grown.class_scores(x), joint.class_scores(x), rtol=close, atol=close)
        torch.testing.assert_close(grown.distances(x), joint.distances(x), rtol=1e-4, atol=1e-4)
        assert grown.columns() == [3, 3]


@pytest.mark.parametrize("kind", KINDS)
def test_a_class_without_new_rows_stays_as_it_is(kind: str) -> None:
    old, (x, y) = rows(0, 1), rows(0, 3, count=60)
    new = x[y != 1], y[y != 1]
    grown, joint = KINDS[kind](), KINDS[kind]()
    grown.learn(0, [old], 3)
    grown.learn(1, [rows(1, 2)], 3)
    grown.update(0, [new], 3)
    joint.learn(0, [both(old, new)], 3)
    joint.learn(1, [rows(1, 2)], 3)
    close = 1e-4 if "float32" in kind else 1e-6
    torch.testing.assert_close(grown.log_scores(x), joint.log_scores(x), rtol=close, atol=close)


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_forked_before_knows_nothing_of_them(kind: str) -> None:
    before = KINDS[kind]()
    before.learn(0, [rows(0, 1)], 3)
    before.learn(1, [rows(1, 2)], 3)
    x = rows(0, 9)[0]
    said = before.log_scores(x)
    before.fork().update(0, [rows(0, 3, shift=2.0)], 3)
    fresh = before.fork()
    assert torch.equal(before.log_scores(x), said)
    assert torch.equal(fresh.log_scores(x), said)


def test_the_ridge_of_a_forgotten_first_task_stays() -> None:
    inference = Gaussian()
    for task in range(3):
        inference.learn(task, [rows(task, task)], 3)
    inference.forget(0)
    ridge = inference.absolute_ridge
    inference.update(0, [rows(1, 7, shift=5.0)], 3)
    assert inference.absolute_ridge == ridge


def test_inference_that_cannot_take_more_rows_says_what_to_do() -> None:
    class Own(Router):
        update = TaskInference.update

    inference = Own()
    inference.learn(0, [rows(0, 1)], 3)
    with pytest.raises(InputError, match=r"Own cannot take more rows of a task.*learn them as another task"):
        inference.update(0, [rows(0, 2)], 3)


def test_limits_of_what_is_usual_only_move_out() -> None:
    inference = SharedGaussian(ridge=0.2)
    inference.learn(0, [rows(0, 1)], 3)
    novelty = Novelty(inference, 0.05)
    novelty.calibrate([rows(0, 1)])
    (old,) = novelty.limits
    near, far = rows(0, 2), rows(0, 3)
    inference.update(0, [near], 3)
    novelty.calibrate_update(0, [near])
    assert novelty.limits[0] >= old
    far = far[0] * 3, far[1]
    inference.update(0, [far], 3)
    novelty.calibrate_update(0, [far])
    assert float((novelty([near[0]]) > 1).double().mean()) <= 0.05
    assert float((novelty([far[0]]) > 1).double().mean()) <= 0.05


def test_a_new_version_keeps_the_weights_of_the_old_and_the_lower_of_both_limits() -> None:
    limits = tuple(float(number) for number in range(len(RATES)))
    old = Calibration(1.0, 2.0, 0.5, 4, limits, 1.5, tuple(-10 + number for number in limits))
    y = torch.arange(40) % 2
    own = torch.nn.functional.one_hot(y, 2).double() * 4
    scores = Scores(own.repeat(1, 2), own.repeat(1, 2), (2, 2), None, torch.full((40, 2), 3.0))
    new = recalibrated(old, scores, own, y, 0)
    assert (new.router, new.experts, new.classes, new.alone) == (2.0, 0.5, 4, 1.5)
    best = float(scores.best_of_task(0, 2.0, 0.5).min())
    assert new.limits == tuple(min(limit, best) for limit in limits)
    assert new.nearness == tuple(min(-10 + number, -3.0) for number in limits)
    assert new.temperature < 1  # all right, by far
