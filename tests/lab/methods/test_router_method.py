"""The router as a method: against ridge regression in NumPy on the features of all tasks at once."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from digit_tasks import data_of, reloaded, same_state, train
from numpy.typing import NDArray
from sklearn.linear_model import Ridge as SklearnRidge
from torch import Tensor

from ibpwf.errors import InputError
from ibpwf.inference.features.patches import Patches
from ibpwf.inference.features.random import Random
from ibpwf.lab.data.tasks import Scenario
from ibpwf.lab.experiments.presets import preset
from ibpwf.lab.methods.dense import Problem
from ibpwf.lab.methods.router import Router, RouterSettings
from ibpwf.learner import Learner
from ibpwf.training.loop import Training
from ibpwf.training.method import TaskData

PATCHES = RouterSettings(features="patches", patch_filters=12, patch_epsilon=1.0, router_ridge=1e-3)
RANDOM = RouterSettings(features="random", random_features=120, router_ridge=1e-3)
CHOICES = {"patches": PATCHES, "random": RANDOM}
Array = NDArray[np.float64]


def fresh(kind: str = "patches", **changes: object) -> Router:
    return Router(Problem((64,), 10, "task"), CHOICES[kind].replace(**changes), seed=5)


@pytest.fixture(scope="module", params=list(CHOICES))
def taught(request: pytest.FixtureRequest, digits: Scenario) -> Router:
    return train(fresh(request.param), *map(data_of, digits))


def answer(method: Router, x: Tensor, task: int | None = None) -> Array:
    given = None if task is None else torch.full((len(x),), task)
    return method.predict(x, given, marginal=False, posterior_samples=0, seed=0).probabilities.numpy()


def joint_fit(method: Router, tasks: list[TaskData], ridge: float) -> SklearnRidge:
    """Ridge regression with an intercept on all rows at once, a column for each class of each task."""
    phi = np.concatenate([view.double().numpy() for data in tasks for view in method.features.views(data.x)])
    views = len(list(method.features.views(tasks[0].x[:1])))
    first = np.cumsum([0, *(len(data.classes) for data in tasks)])
    column = np.concatenate([np.tile(data.y.numpy() + first[data.index], views) for data in tasks])
    target = np.eye(first[-1])[column]
    return SklearnRidge(alpha=ridge * ((phi - phi.mean(0)) ** 2).sum() / phi.shape[1]).fit(phi, target)


def test_it_answers_as_ridge_regression_on_all_tasks_at_once(taught: Router, digits: Scenario) -> None:
    expected = joint_fit(taught, [data_of(task) for task in digits], 1e-3)
    for task in digits:
        scores = 10 * expected.predict(taught.features(task.test.x).double().numpy())
        of_all = np.exp(scores - scores.max(1, keepdims=True))
        np.testing.assert_allclose(answer(taught, task.test.x), of_all / of_all.sum(1, keepdims=True), atol=1e-5)
        own = slice(2 * task.index, 2 * task.index + 2)
        given = of_all[:, own] / of_all[:, own].sum(1, keepdims=True)
        np.testing.assert_allclose(answer(taught, task.test.x, task.index)[:, own], given, atol=1e-5)
        np.testing.assert_allclose(taught.logits(task.test.x, task.index).numpy(), scores[:, own], atol=1e-4)


def test_with_mirror_an_image_and_its_mirror_image_are_two_rows(digits: Scenario) -> None:
    tasks = [data_of(task) for task in digits[:2]]
    method = train(fresh(mirror=True), *tasks)
    expected = joint_fit(method, tasks, 1e-3)
    x = digits[0].test.x
    flat = x.view(-1, 8, 8).flip(-1).flatten(1)
    np.testing.assert_allclose(answer(method, flat), answer(method, x), atol=1e-5)
    one, other = (next(iter(method.features.views(images))).double().numpy() for images in (x, flat))
    np.testing.assert_allclose(
        method.router.class_scores(method.features(x)).numpy(),
        (expected.predict(one) + expected.predict(other)) / 2,
        atol=1e-5,
    )


def test_one_training_answers_with_the_task_given_and_inferred(taught: Router, digits: Scenario) -> None:
    given, inferred = [], []
    for task in digits:
        t = torch.full((len(task.test.y),), task.index)
        given.append(
            taught.predict(task.test.x, t, marginal=False, posterior_samples=0, seed=0).labels == task.test.y
        )
        found = taught.predict(task.test.x, None, marginal=False, posterior_samples=0, seed=0)
        inferred.append((found.labels == task.test.y) & (found.task == t))
    assert torch.cat(given).double().mean() > 0.97
    assert torch.cat(inferred).double().mean() > 0.9
    assert Router.serves_both


def test_flat_rows_of_a_square_number_of_pixels_are_images(digits: Scenario) -> None:
    flat = train(fresh(), data_of(digits[0]))
    data = data_of(digits[0])
    images = Router(Problem((1, 8, 8), 10, "task"), PATCHES, seed=5)
    train(images, TaskData(data.name, 0, data.classes, data.x.view(-1, 1, 8, 8), data.y, data.seed))
    x = digits[0].test.x
    assert torch.equal(flat.logits(x, 0), images.logits(x.view(-1, 1, 8, 8), 0))


@pytest.mark.parametrize(
    ("shape", "features", "kind"),
    [
        ((3, 32, 32), "auto", Patches),
        ((3, 5, 5), "auto", Random),
        ((784,), "auto", Random),  # a table may have that many columns
        ((784,), "patches", Patches),
        ((3, 32, 32), "random", Random),
    ],
)
def test_images_have_patches_and_anything_else_random_features(
    shape: tuple[int, ...], features: str, kind: type
) -> None:
    assert type(Router(Problem(shape, 10, "task"), RouterSettings(features=features)).features) is kind


def test_patches_of_several_sizes_need_images_as_large_as_the_largest() -> None:
    settings = RouterSettings(patch_sizes=(3, 9))
    assert type(Router(Problem((3, 8, 8), 10, "task"), settings).features) is Random
    features = Router(Problem((3, 9, 9), 10, "task"), settings).features
    assert isinstance(features, Patches)
    assert features.sizes == (3, 9)


def test_our_scenarios_say_which_images_their_rows_are_and_which_may_be_mirrored() -> None:
    found = {
        name: preset(name, "paper", "router").make_settings("router")
        for name in ("split-mnist", "split-digits", "split-fashion-mnist", "split-cifar10", "permuted-mnist")
    }
    assert [one.features for one in found.values()] == ["patches", "patches", "patches", "auto", "auto"]
    assert [one.mirror for one in found.values()] == [False, False, True, True, False]


def test_patches_of_rows_that_are_no_images_are_refused_with_what_to_set() -> None:
    with pytest.raises(InputError, match=r"examples have shape \(30,\); set features=random"):
        Router(Problem((30,), 10, "task"), PATCHES)
    learner = Learner(Router(Problem((1, 5, 5), 4, "task"), PATCHES))
    with pytest.raises(InputError, match="of 6 × 6 pixels, but an image is 1 × 5 × 5"):
        learner.learn(torch.rand(20, 1, 5, 5), torch.arange(20) % 2)


def test_it_takes_no_gradient_step(digits: Scenario) -> None:
    assert not list(Training(fresh(), data_of(digits[0])).run())


def test_tasks_of_one_class_are_learned_as_if_they_were_one(digits: Scenario) -> None:
    method, tasks = fresh(), []
    for label in range(3):
        rows = digits[label // 2].train
        x = rows.x[rows.y == label]
        tasks.append(TaskData(f"only {label}", label, (label,), x, torch.zeros(len(x), dtype=torch.long), seed=5))
    train(method, *tasks)
    expected = joint_fit(method, tasks, 1e-3)
    x = torch.cat([task.test.x for task in digits[:2]])
    scores = method.router.class_scores(method.features(x))
    np.testing.assert_allclose(scores.numpy(), expected.predict(method.features(x).double().numpy()), atol=1e-5)


def test_a_fork_learns_on_while_the_first_stays_as_it_is(digits: Scenario) -> None:
    method = train(fresh(), data_of(digits[0]))
    untouched, before = reloaded(method), method.logits(digits[0].test.x, 0)
    fork = train(method.fork(), data_of(digits[1]))
    assert len(fork.classes) == 2
    assert same_state(method, untouched)
    assert torch.equal(method.logits(digits[0].test.x, 0), before)


def test_a_task_that_fails_leaves_nothing_behind(digits: Scenario) -> None:
    method = train(fresh(), data_of(digits[0]))
    untouched, data = reloaded(method), data_of(digits[1])
    broken = TaskData(data.name, 1, data.classes, torch.full_like(data.x, torch.inf), data.y, data.seed)
    with pytest.raises(InputError, match="not finite"):
        train(method, broken)
    assert same_state(method, untouched)
    assert same_state(train(method, data), train(untouched, data))


def test_sums_that_do_not_fit_are_refused(digits: Scenario) -> None:
    method = train(fresh(), data_of(digits[0]))
    content, parts = method.state()
    for part, name in (("task-0000", "means"), ("router", "scatter")):
        cut = {**parts, part: {**parts[part], name: parts[part][name][..., :-1]}}
        with pytest.raises(ValueError, match=f"tensor '{name}' of part '{part}'"):
            fresh().load_state(content, cut)
