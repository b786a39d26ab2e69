"""The router against a joint fit of scikit-learn's ridge regression, whatever the order in which it saw the rows."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from sklearn.linear_model import Ridge
from torch import Tensor
from torch.nn import functional as F

from ibpwf import Learner, Settings, models
from ibpwf.errors import InputError
from ibpwf.inference import ridge_sums
from ibpwf.inference.ridge_regression import Attempt, NormalEquations, downhill
from ibpwf.inference.ridge_sums import packed, unpacked
from ibpwf.inference.router import SHARPNESS, Router

Rows = tuple[Tensor, Tensor]


def made_rows(classes: tuple[int, ...], size: int, seed: int, rows: int = 150) -> list[Rows]:
    """Tasks of so many classes, their φ far from 0 and of unequal spread."""
    generator = torch.Generator().manual_seed(seed)
    mixing = torch.randn(size, size, generator=generator, dtype=torch.float64)
    tasks = []
    for count in classes:
        y = torch.cat([torch.arange(count), torch.randint(count, (rows - count,), generator=generator)])
        centers = 2 * torch.randn(count, size, generator=generator, dtype=torch.float64)
        phi = (torch.randn(rows, size, generator=generator, dtype=torch.float64) + centers[y]) @ mixing + 40
        tasks.append((phi, y))
    return tasks


def cut(rows: Rows, seed: int) -> Iterator[Rows]:
    """The rows in another order, in batches of random sizes, some of them empty."""
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(rows[1]), generator=generator)
    while len(order):
        size = int(torch.randint(0, 60, (), generator=generator))
        yield rows[0][order[:size]], rows[1][order[:size]]
        order = order[size:]


def learned(tasks: list[Rows], seed: int = 0, **options: Any) -> Router:
    made = Router(**options)
    for number, rows in enumerate(tasks):
        made.learn(number, cut(rows, seed + number), int(rows[1].max()) + 1)
    return made


def columns_of(tasks: list[Rows]) -> Tensor:
    """Every row's column among the classes of all tasks."""
    starts = np.cumsum([0, *(int(y.max()) + 1 for _, y in tasks)])
    return torch.cat([y + int(start) for (_, y), start in zip(tasks, starts, strict=False)])


def joint_fit(tasks: list[Rows], ridge: float, targets: Tensor | None = None) -> Ridge:
    phi = torch.cat([phi for phi, _ in tasks]).numpy()
    targets = F.one_hot(columns_of(tasks)) if targets is None else targets
    absolute = ridge * float(((phi - phi.mean(0)) ** 2).sum(0).mean())
    return Ridge(alpha=absolute, solver="svd").fit(phi, targets.double().numpy() - 1 / targets.shape[1])


@hypothesis_settings(max_examples=25, deadline=None)
@given(
    classes=st.lists(st.integers(1, 4), min_size=1, max_size=4).filter(lambda each: sum(each) > 1),
    size=st.integers(1, 30),
    seed=st.integers(0, 10_000),
    ridge=st.sampled_from([1e-4, 1e-2, 1.0]),
)
def test_any_order_and_any_batches_give_the_answer_of_a_joint_fit(
    classes: list[int], size: int, seed: int, ridge: float
) -> None:
    tasks = made_rows(tuple(classes), size, seed)
    truth = joint_fit(tasks, ridge)
    asked = torch.cat([phi for phi, _ in tasks])
    for order in (seed, seed + 77):
        scores = learned(tasks, order, ridge=ridge).class_scores(asked)
        expected = truth.predict(asked.numpy()).reshape(scores.shape) + 1 / scores.shape[1]
        np.testing.assert_allclose(scores.numpy(), expected, atol=1e-6)


@hypothesis_settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10_000), order=st.permutations(range(4)))
def test_the_order_of_the_tasks_does_not_matter(seed: int, order: list[int]) -> None:
    tasks = made_rows((2, 1, 3, 2), 12, seed)
    asked = torch.cat([phi for phi, _ in tasks])
    straight, mixed = learned(tasks), learned([tasks[number] for number in order])
    assert straight.solution().ridge == mixed.solution().ridge
    parts = torch.split(straight.class_scores(asked), straight.columns(), 1)
    torch.testing.assert_close(mixed.class_scores(asked), torch.cat([parts[n] for n in order], 1), rtol=0, atol=1e-6)
    torch.testing.assert_close(mixed.log_scores(asked), straight.log_scores(asked)[:, order], rtol=1e-6, atol=1e-6)


def test_a_task_is_as_good_as_its_best_class() -> None:
    tasks = made_rows((2, 3), 6, 0)
    router = learned(tasks)
    phi = torch.cat([phi for phi, _ in tasks])
    scores = router.class_scores(phi) * SHARPNESS
    torch.testing.assert_close(router.log_scores(phi), torch.stack([scores[:, :2].amax(1), scores[:, 2:].amax(1)], 1))
    task = torch.arange(2).repeat_interleave(150)
    assert float((router.log_scores(phi).argmax(1) == task).double().mean()) > 0.9


def test_one_class_in_all_has_the_score_1_everywhere() -> None:
    ((phi, y),) = made_rows((1,), 5, 0)
    router = Router()
    router.learn(0, [(phi, y)], 1)
    torch.testing.assert_close(router.class_scores(phi), torch.ones(150, 1, dtype=torch.float64))
    assert router.log_scores(phi).softmax(1).unique().tolist() == [1.0]


def test_a_returning_class_has_a_column_in_both_tasks_whose_sum_is_the_fit_on_labels() -> None:
    tasks = made_rows((2, 2), 8, 3)
    labels = torch.cat([tasks[0][1], tasks[1][1] + 1])  # class 1 of the first task is class 0 of the second
    truth = joint_fit(tasks, 1e-2, F.one_hot(labels))
    asked = torch.cat([phi for phi, _ in tasks])
    scores = learned(tasks, ridge=1e-2).class_scores(asked)
    ours = torch.stack([scores[:, 0], scores[:, 1] + scores[:, 2], scores[:, 3]], 1)
    np.testing.assert_allclose(ours.numpy(), truth.predict(asked.numpy()) + 1 / 3, atol=1e-9)


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("precision", ["float64", "mixed", "float32"])
def test_saved_and_loaded_it_answers_and_learns_on_to_the_bit(keep: bool, precision: Any) -> None:
    *tasks, later = made_rows((2, 1, 2), 9, 5)
    options: dict[str, Any] = {"precision": precision, "keep_sums_per_task": keep}
    router, again = learned(tasks, **options), Router(**options)
    state = router.state()
    stored = [router.task_state(task) for task in range(2)]
    assert router.bytes == sum(t.nbytes for _, tensors in (state, *stored) for t in tensors.values())
    again.load_state(state, stored)
    phi = later[0]
    assert torch.equal(router.class_scores(phi), again.class_scores(phi))
    assert torch.equal(router.log_scores(phi), again.log_scores(phi))
    for one in (router, again):
        one.learn(2, [later], 2)
    assert torch.equal(router.class_scores(phi), again.class_scores(phi))
    for task, (content, tensors) in enumerate(stored):  # a task's file is written once
        now, after = router.task_state(task)
        assert now == content
        assert all(torch.equal(after[name], tensor) for name, tensor in tensors.items())


def test_the_storage_is_half_a_square_matrix_for_all_tasks_or_for_each() -> None:
    tasks = made_rows((2, 2, 2), 20, 0)
    means = 6 * 20 * 8 + 3 * 20 * 20 * 4  # and outlines
    assert learned(tasks).bytes == 20 * 21 // 2 * 8 + means
    assert learned(tasks, precision="float32").bytes == 20 * 21 // 2 * 4 + means
    assert learned(tasks, keep_sums_per_task=True).bytes == 3 * 20 * 21 // 2 * 8 + means


@pytest.mark.parametrize("gone", [0, 1, 2])
def test_a_forgotten_task_leaves_what_would_be_there_had_it_never_been_learned(gone: int) -> None:
    tasks = made_rows((2, 1, 3), 10, 2)
    router = learned(tasks, keep_sums_per_task=True)
    phi = torch.cat([phi for phi, _ in tasks])
    router.class_scores(phi)
    router.forget(gone)
    never = learned(tasks[:gone] + tasks[gone + 1 :], keep_sums_per_task=True)
    torch.testing.assert_close(router.class_scores(phi), never.class_scores(phi), rtol=0, atol=1e-9)
    torch.testing.assert_close(router.log_scores(phi), never.log_scores(phi), rtol=0, atol=1e-9)
    assert router.tasks == 2


def test_forgetting_is_refused_where_only_one_sum_is_kept_and_nothing_changes() -> None:
    tasks = made_rows((2, 2), 6, 0)
    router = learned(tasks)
    before = router.class_scores(tasks[0][0])
    with pytest.raises(InputError, match="learn all of them with keep_sums_per_task=True"):
        router.forget(0)
    router.forget(2)  # a task that is not there
    assert torch.equal(router.class_scores(tasks[0][0]), before)
    alone = learned(tasks[:1])
    alone.forget(0)  # the only one: its sum is the whole
    assert alone.bytes == 0
    with pytest.raises(InputError, match="no task yet"):
        alone.class_scores(tasks[0][0])


def test_a_task_learned_with_sums_of_its_own_joins_those_that_share_theirs() -> None:
    tasks = made_rows((2, 1, 2), 6, 0)
    shared, mixed = learned(tasks[:2]), Router(keep_sums_per_task=True)
    mixed.load_state(shared.state(), [shared.task_state(task) for task in range(2)])
    mixed.learn(2, [tasks[2]], 2)
    phi = tasks[0][0]
    torch.testing.assert_close(mixed.class_scores(phi), learned(tasks).class_scores(phi), rtol=0, atol=1e-9)
    with pytest.raises(InputError, match="none can be taken away"):
        mixed.forget(1)
    mixed.forget(2)
    torch.testing.assert_close(mixed.class_scores(phi), shared.class_scores(phi), rtol=0, atol=1e-9)


def test_a_fork_learns_on_while_the_original_stays_as_it_is() -> None:
    *tasks, later = made_rows((2, 2, 2), 7, 4)
    for keep in (False, True):
        router = learned(tasks, keep_sums_per_task=keep)
        phi = later[0]
        before, state = router.class_scores(phi), router.state()[1]
        fork = router.fork()
        fork.learn(2, [later], 2)
        assert (router.tasks, fork.tasks) == (2, 3)
        assert torch.equal(router.class_scores(phi), before)
        assert all(torch.equal(router.state()[1][name], tensor) for name, tensor in state.items())
        torch.testing.assert_close(fork.class_scores(phi), learned([*tasks, later]).class_scores(phi))


def test_a_batch_that_fails_leaves_the_tasks_before_untouched() -> None:
    tasks = made_rows((2, 2), 7, 4)
    router = learned(tasks[:1])
    before = router.class_scores(tasks[0][0])

    def broken() -> Iterator[Rows]:
        yield tasks[1]
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        router.learn(1, broken(), 2)
    for rows, classes, message in (
        ([(tasks[1][0][:, :3], tasks[1][1])], 2, "φ has 3 features, but 7 in the tasks before"),
        ([tasks[1]], 3, "every class of a task needs examples"),
        ([], 1, "every class of a task needs examples"),
        ([(tasks[1][0] * torch.inf, tasks[1][1])], 2, "not finite"),
    ):
        with pytest.raises(InputError, match=message):
            router.learn(1, rows, classes)
    assert router.tasks == 1
    assert torch.equal(router.class_scores(tasks[0][0]), before)


def test_the_ridge_has_nearly_the_least_error_with_each_row_left_out() -> None:
    tasks = [(phi[:30], y[:30]) for phi, y in made_rows((2, 2), 40, 6)]
    phi, targets = torch.cat([phi for phi, _ in tasks]), F.one_hot(columns_of(tasks)).double()
    left_out = {}
    for ridge in (10.0 ** (power / 2) for power in range(-10, 1)):
        error = 0.0
        for row in range(len(phi)):
            others = torch.arange(len(phi)) != row
            center = phi.mean(0)
            absolute = ridge * float((phi - center).square().sum(0).mean())
            fit = Ridge(alpha=absolute, solver="svd").fit(phi[others].numpy(), targets[others].numpy())
            error += float(((fit.predict(phi[row : row + 1].numpy()) - targets[row].numpy()) ** 2).sum()) / len(phi)
        left_out[ridge] = error
    chosen = learned(tasks).solution().ridge
    assert min(left_out.values()) == pytest.approx(left_out[min(left_out, key=lambda r: abs(r - chosen))], rel=0.05)


def test_the_error_by_random_probes_is_that_of_the_exact_trace() -> None:
    equations = NormalEquations(learned(made_rows((2, 3), 30, 1)).solution().sums)
    for ridge in (1e-4, 1e-2, 1.0):
        probed, exact = equations.attempt(ridge), equations.by_eigenvalues(ridge)
        assert probed is not None
        assert probed.error == pytest.approx(exact.error, rel=0.02)
        torch.testing.assert_close(probed.weight, exact.weight, rtol=1e-8, atol=1e-10)


def test_a_ridge_lost_in_rounding_errors_is_solved_for_by_eigenvalues() -> None:
    ((phi, y),) = made_rows((2,), 4, 0)
    twice = torch.cat([phi, phi, phi], 1)
    router = Router(ridge=1e-18)
    router.learn(0, [(twice, y)], 2)
    assert float((router.class_scores(twice).argmax(1) == y).double().mean()) > 0.8
    constant = Router()
    constant.learn(0, [(torch.ones(6, 3), torch.arange(6) % 2)], 2)
    torch.testing.assert_close(constant.class_scores(torch.ones(1, 3)), torch.full((1, 2), 0.5).double())


@pytest.mark.parametrize(("precision", "error"), [("mixed", 1e-4), ("float32", 1e-2)])
def test_lower_precision_errs_little(precision: Any, error: float) -> None:
    tasks = made_rows((2, 2), 20, 0)
    phi = torch.cat([phi for phi, _ in tasks])
    exact = learned(tasks, ridge=1e-3).class_scores(phi)
    assert float((learned(tasks, ridge=1e-3, precision=precision).class_scores(phi) - exact).abs().max()) < error


def test_many_threads_may_ask_at_once_while_a_task_is_learned() -> None:
    *tasks, later = made_rows((2, 2, 2), 30, 8)
    phi = later[0]
    expected = [learned(tasks).class_scores(phi), learned([*tasks, later]).class_scores(phi)]
    router = learned(tasks)
    wrong: list[Tensor] = []

    def ask() -> None:
        for _ in range(20):
            scores = router.class_scores(phi)
            router.log_scores(phi)
            if not any(scores.shape == right.shape and torch.allclose(scores, right) for right in expected):
                wrong.append(scores)

    threads = [threading.Thread(target=ask) for _ in range(6)]
    for thread in threads:
        thread.start()
    router.learn(2, [later], 2)
    for thread in threads:
        thread.join()
    assert not wrong


@given(size=st.integers(1, 12), seed=st.integers(0, 100))
def test_packing_keeps_the_upper_triangle(size: int, seed: int) -> None:
    matrix = torch.randn(size, size, generator=torch.Generator().manual_seed(seed))
    assert len(packed(matrix)) == size * (size + 1) // 2
    assert torch.equal(unpacked(packed(matrix), size), matrix.triu())


def test_products_by_columns_are_those_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ridge_sums, "COLUMNS_AT_ONCE", 5)
    rows, total = torch.randn(40, 13, dtype=torch.float64), torch.ones(13, 13, dtype=torch.float64)
    ridge_sums.add_upper_products(total, rows)
    torch.testing.assert_close(total.triu(), (rows.T @ rows + 1).triu())
    half = torch.zeros(13, 13, dtype=torch.float64)
    ridge_sums.add_upper_products(half, rows.float())
    torch.testing.assert_close(half.triu(), (rows.T @ rows).triu(), rtol=1e-5, atol=1e-5)


def test_a_ridge_that_is_not_above_zero_is_refused() -> None:
    with pytest.raises(InputError, match="ridge is 0; it must be above 0"):
        Router(ridge=0)


@pytest.mark.parametrize("keep", [False, True])
def test_a_learner_with_the_router_on_patches_is_stored_whole(keep: bool, tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(60) % 2
    stripes = torch.arange(12.0).remainder(2).expand(12, 12)
    pictures = {0: stripes, 1: stripes.T, 2: (stripes + stripes.T) / 2, 3: (stripes - stripes.T).abs()}
    tasks = []
    for first in (0, 2):
        x = torch.stack([pictures[first + int(label)] for label in y]).unsqueeze(1)
        tasks.append((0.7 * x + 0.3 * torch.rand(60, 1, 12, 12, generator=generator), y + first))
    settings = Settings(
        epochs=1,
        finetune_epochs=0,
        inference="router",
        **{"inference.features": "patches", "inference.features.filters": 6, "inference.keep_sums_per_task": keep},
    )
    net = torch.nn.Sequential(torch.nn.Flatten(), models.mlp(144, [8], 2))
    learner = Learner(net, settings, device="cpu")
    for x, labels in tasks:
        learner.learn(x, labels)
    learner.save(tmp_path / "model")
    again = Learner.load(tmp_path / "model", device="cpu")
    for number, (x, _) in enumerate(tasks):
        assert float((learner.predict(x).task == number).double().mean()) > 0.95
        assert torch.equal(learner.predict(x).task_probabilities, again.predict(x).task_probabilities)
    if not keep:
        with pytest.raises(InputError, match="keep_sums_per_task=True"):
            again.forget(0)
        return
    again.forget(0)
    assert again.predict(tasks[1][0]).task.unique().tolist() == [0]


@pytest.mark.parametrize("best", [-9.0, -4.6, -4.0, -3.4, -2.0, -1.4, -0.5, 0.0, 3.0])
@pytest.mark.parametrize("lost", [-9.0, -4.5, -1.5])
def test_the_ridge_is_found_on_the_way_down_and_few_are_tried(best: float, lost: float) -> None:
    """As if all had been tried, where the error has one valley; below `lost` rounding errors leave no factor."""
    tried: list[float] = []

    def attempt(ridge: float) -> Attempt | None:
        tried.append(ridge)
        power = math.log10(ridge)
        return None if power < lost else Attempt(ridge, torch.empty(0), abs(power - best))

    found = downhill(attempt)
    count = len(tried)
    assert found is not None
    all_of_them = [attempt(10 ** (half / 2)) for half in range(-10, 1)]
    least = min(each.error for each in all_of_them if each is not None)
    assert found.error <= least + 1e-9
    assert count <= (5 if -2.5 < best < -1.5 else 7)
    assert count == len(set(tried[:count]))


def test_no_ridge_is_found_where_none_leaves_a_factor() -> None:
    assert downhill(lambda ridge: None) is None
