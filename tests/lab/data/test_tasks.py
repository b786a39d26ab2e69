"""Scenarios of the user's own arrays, made by hand or by class."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ibpwf.errors import InputError
from ibpwf.lab.data import Scenario, Task, split_by_class


def arrays(n: int = 40, classes: int = 4, seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    made = []
    for count in (n, n // 2):
        made += [rng.standard_normal((count, 3)).astype(np.float32), np.arange(count) % classes]
    return made


def task(parts: list[np.ndarray], name: str = "a") -> Task:
    x, y, test_x, test_y = parts
    return Task(name, (x, y), (test_x, test_y))


def as_tensors(parts: list[np.ndarray]) -> list[torch.Tensor]:
    return [torch.from_numpy(part) for part in parts]


@pytest.mark.parametrize("kind", [list, as_tensors])
def test_tasks_hold_what_was_given(kind) -> None:
    first, second = arrays(seed=1), arrays(classes=3, seed=2)
    made = Scenario("mine", [task(kind(first), "a"), task(kind(second), "b")])
    assert (made.name, len(made), made.input_shape, made.n_classes, made.seed) == ("mine", 2, (3,), 4, 0)
    assert [(own.name, own.index) for own in made] == [("a", 0), ("b", 1)]
    assert made[1].classes == (0, 1, 2)
    np.testing.assert_array_equal(made[1].train.x.numpy(), second[0])
    np.testing.assert_array_equal(made[1].test.y.numpy(), second[3])
    assert made[0].train.y.dtype == torch.int64
    assert made[0].validation is None


def test_examples_for_validation_may_be_given_too() -> None:
    x, y, test_x, test_y = arrays()
    made = Task("a", (x[:20], y[:20]), (test_x, test_y), (x[20:], y[20:]))
    assert made.validation is not None
    np.testing.assert_array_equal(made.validation.x.numpy(), x[20:])


def test_other_number_types_become_float32() -> None:
    x, y, test_x, test_y = arrays()
    pixels = (np.abs(x) * 20).astype(np.uint8)
    made = Task("a", (pixels, y.astype(np.uint16)), (test_x.astype(np.float64), test_y.astype(np.int32)))
    assert made.train.x.dtype == made.test.x.dtype == torch.float32
    np.testing.assert_array_equal(made.train.x.numpy(), pixels)


def test_read_only_and_reversed_arrays_are_taken(recwarn: pytest.WarningsRecorder) -> None:
    x, y, test_x, test_y = arrays()
    x.flags.writeable = False
    made = Task("a", (x, y), (test_x[::-1], test_y[::-1]))
    np.testing.assert_array_equal(made.test.x.numpy(), test_x[::-1])
    assert not recwarn.list


def test_a_task_permuted_shares_its_memory() -> None:
    own = task(arrays())
    moved = own.permuted("b", torch.tensor([2, 0, 1]))
    assert moved.train.base is own.train.base
    assert torch.equal(moved.test.x, own.test.x[:, [2, 0, 1]])
    assert moved.classes == own.classes


@pytest.mark.parametrize("fraction", [0.0, 0.3])
def test_classes_are_dealt_out_to_tasks(fraction: float) -> None:
    x, y, test_x, test_y = arrays()
    made = split_by_class(x, y, test_x, test_y, splits=[(3, 0), (1,)], validation=fraction)
    assert [task.name for task in made] == ["3/0", "1"]
    for task in made:
        train = [row.tolist() for row, label in zip(x, y, strict=True) if label in task.classes]
        test = [row.tolist() for row, label in zip(test_x, test_y, strict=True) if label in task.classes]
        have = task.train.x.tolist() + (task.validation.x.tolist() if task.validation else [])
        assert sorted(have) == sorted(train)
        assert task.test.x.tolist() == test
        if task.validation:
            assert len(task.validation) == sum(round(fraction * 10) for _ in task.classes)
            pairs = {tuple(row.tolist()): int(label) for row, label in zip(x, y, strict=True)}
            assert [pairs[tuple(row)] for row in task.validation.x.tolist()] == task.validation.y.tolist()


def test_classes_per_task_order_and_names_work_as_for_known_sets() -> None:
    made = split_by_class(*arrays(), classes_per_task=2, order=[3, 2, 1, 0], names=["late", "early"])
    assert [(task.name, task.classes) for task in made] == [("late", (3, 2)), ("early", (1, 0))]


def test_labels_need_not_be_without_gaps() -> None:
    x, y, test_x, test_y = arrays()
    made = split_by_class(x, y * 5, test_x, test_y * 5)
    assert [task.classes for task in made] == [(0, 5), (10, 15)]
    assert made.n_classes == 16


def broken(place: int, change) -> list[object]:
    parts: list[object] = list(arrays())
    parts[place] = change(parts[place])
    return parts


def with_nan(x: np.ndarray) -> np.ndarray:
    x[3, 1] = np.nan
    return x


@pytest.mark.parametrize(
    ("place", "change", "words"),
    [
        (0, lambda x: x[:-1], r"y_train has shape \(40,\) for 39 examples"),
        (3, lambda y: y[:, None], r"y_test has shape \(20, 1\)"),
        (0, with_nan, "x_train has values that are NaN"),
        (2, lambda x: x / 0, "x_test has values that are NaN or infinite"),
        (2, lambda x: x[:, :2], r"x_train has examples of shape \(3,\), x_test of \(2,\)"),
        (0, lambda x: x[:, 0], r"x_train has shape \(40,\)"),
        (0, lambda x: x[:0], "x_train is empty"),
        (1, lambda y: y.astype(float), "y_train has type torch.float64"),
        (1, lambda y: y - 1, "y_train has label -1"),
        (3, lambda y: y + 1, "y_test has class 4, which y_train has not"),
        (0, lambda x: np.array(["a"] * 40), "x_train is no array of numbers"),
        (0, lambda x: None, "x_train is no array of numbers"),
        (0, lambda x: x.astype(complex), "complex"),
    ],
)
@pytest.mark.filterwarnings("ignore:divide by zero", "ignore:invalid value")
def test_broken_arrays_are_refused_by_name(place: int, change, words: str) -> None:
    with pytest.raises(InputError, match=words):
        split_by_class(*broken(place, change))  # type: ignore[arg-type]
    with pytest.raises(InputError, match=rf"task 'second': .*{words}"):
        task(broken(place, change), "second")  # type: ignore[arg-type]


def test_tasks_that_make_no_scenario_are_refused_by_place() -> None:
    with pytest.raises(InputError, match="tasks is empty"):
        Scenario("s", [])
    with pytest.raises(InputError, match=r"tasks\[1\] is a tuple; give a Task"):
        Scenario("s", [task(arrays()), tuple(arrays())])  # type: ignore[list-item]
    with pytest.raises(InputError, match=r"tasks\[1\] is called 'a' as an earlier one"):
        Scenario("s", [task(arrays()), task(arrays())])
    with pytest.raises(InputError, match="name=''"):
        task(arrays(), "")
    with pytest.raises(InputError, match=r"task 'a': give test as two arrays, \(x, y\)"):
        Task("a", tuple(arrays()[:2]), arrays()[2])  # type: ignore[arg-type]
    with pytest.raises(InputError, match="names has 1 entries for 2 tasks"):
        split_by_class(*arrays(), names=["a"])
    with pytest.raises(InputError, match="validation=2"):
        split_by_class(*arrays(), validation=2)


def test_tasks_of_different_shapes_are_refused() -> None:
    x, y = np.zeros((4, 5), dtype=np.float32), np.array([0, 1, 0, 1])
    with pytest.raises(
        InputError, match=r"tasks\[1\]: its examples have shape \(5,\), those of tasks\[0\] have \(3,\)"
    ):
        Scenario("s", [task(arrays()), Task("b", (x, y), (x, y))])


def test_a_task_without_test_examples_is_refused() -> None:
    x, y, test_x, test_y = arrays()
    keep = test_y < 2
    with pytest.raises(InputError, match="task '2/3': it has no test examples"):
        split_by_class(x, y, test_x[keep], test_y[keep])


def test_validation_needs_a_class_with_two_examples() -> None:
    x, y = np.zeros((2, 3), dtype=np.float32), np.array([0, 1])
    with pytest.raises(InputError, match="no class has two examples"):
        split_by_class(x, y, x, y, validation=0.5)
    with pytest.raises(InputError, match="Known: 0, 1"):
        split_by_class(x, y, x, y, splits=[(0, 2)])
