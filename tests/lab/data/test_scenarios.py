"""Scenarios against loops over the data set written out by hand."""

from __future__ import annotations

import gc
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from ibpwf.errors import InputError
from ibpwf.lab import data as data_package
from ibpwf.lab.data import Scenario, Split, load, scenario
from ibpwf.lab.data.sets import ArrayDataset


def by_hand(data: ArrayDataset, part: str, classes: tuple[int, ...]) -> tuple[np.ndarray, list[int]]:
    """Normalised, flattened examples of some classes, one at a time."""
    images = getattr(data, f"{part}_x").numpy().astype(np.float64)
    labels = getattr(data, f"{part}_y").tolist()
    rows = [n for n, label in enumerate(labels) if label in classes]
    x = np.stack([(images[n] / data.entry.levels - data.entry.mean[0]) / data.entry.std[0] for n in rows])
    return x.reshape(len(rows), -1), [labels[n] for n in rows]


@pytest.mark.parametrize("index", range(5))
def test_a_split_task_has_exactly_the_examples_of_its_classes(index: int) -> None:
    task = scenario("split-digits")[index]
    assert task.classes == (2 * index, 2 * index + 1)
    assert task.name == f"{2 * index}/{2 * index + 1}"
    for part in ("train", "test"):
        split: Split = getattr(task, part)
        x, y = by_hand(load("digits"), part, task.classes)
        assert split.x.dtype == torch.float32
        assert split.y.dtype == torch.int64
        np.testing.assert_allclose(split.x.numpy(), x, atol=1e-6)
        assert split.y.tolist() == y
        assert len(split) == len(y)
    assert task.validation is None


@pytest.mark.parametrize("name", ["split-digits", "permuted-digits"])
def test_examples_keeps_the_first_few_of_each_class_in_data_order(name: str) -> None:
    whole, few = scenario(name, tasks=2, seed=1), scenario(name, tasks=2, seed=1, examples=7)
    for all_of, some in zip(whole, few, strict=True):
        for part in ("train", "test"):
            full, kept = getattr(all_of, part), getattr(some, part)
            seen: dict[int, int] = {}
            rows = []
            for row, label in enumerate(full.y.tolist()):
                seen[label] = seen.get(label, 0) + 1
                rows += [row] if seen[label] <= 7 else []
            assert torch.equal(kept.x, full.x[rows])
            assert torch.equal(kept.y, full.y[rows])
    held = scenario("split-digits", examples=5, validation=0.5)[0]
    assert torch.bincount(held.train.y).tolist() == [5, 5]
    assert held.validation is not None
    with pytest.raises(InputError, match="examples=0"):
        scenario(name, examples=0)


def test_a_permuted_task_shows_the_same_examples_with_their_values_moved() -> None:
    tasks = scenario("permuted-digits", tasks=4, seed=3)
    x, y = by_hand(load("digits"), "test", tuple(range(10)))
    for task in tasks:
        permutation = task.test.permutation
        order = list(range(64)) if permutation is None else permutation.tolist()
        assert sorted(order) == list(range(64))
        moved = np.stack([[row[source] for source in order] for row in x])
        np.testing.assert_allclose(task.test.x.numpy(), moved, atol=1e-6)
        assert task.test.y.tolist() == y
        assert task.classes == tuple(range(10))
    assert tasks[0].test.permutation is None
    assert [task.name for task in tasks] == [f"permutation-{i}" for i in range(4)]


def test_permutations_come_from_the_seed_and_train_and_test_share_them() -> None:
    first, again, other = (scenario("permuted-digits", tasks=3, seed=seed) for seed in (1, 1, 2))
    for index in (1, 2):
        own = first[index].train.permutation
        assert own is not None
        assert torch.equal(own, first[index].test.permutation)
        assert torch.equal(own, again[index].train.permutation)
        assert not torch.equal(own, other[index].train.permutation)
    assert not torch.equal(first[1].train.permutation, first[2].train.permutation)
    generator = torch.Generator().manual_seed(1)
    assert torch.equal(first[1].train.permutation, torch.randperm(64, generator=generator))
    assert torch.equal(first[2].train.permutation, torch.randperm(64, generator=generator))


def test_fewer_permuted_tasks_are_the_first_of_more() -> None:
    few, many = scenario("permuted-digits", tasks=3), scenario("permuted-digits")
    assert len(many) == 10
    assert all(torch.equal(a.train.x, b.train.x) for a, b in zip(few, many, strict=False))


def test_the_random_state_of_torch_is_left_alone() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    scenario("permuted-digits", validation=0.1)
    scenario("split-digits", order="random", validation=0.1)
    assert torch.equal(torch.rand(3), expected)


def test_permuted_tasks_share_one_copy_of_the_data() -> None:
    tasks = scenario("permuted-digits")
    assert len({id(task.train.base) for task in tasks}) == 1
    assert len({id(task.test.base) for task in tasks}) == 1
    # Also with other seeds, as long as both are alive.
    assert scenario("permuted-digits", seed=7)[3].train.base is tasks[0].train.base
    held = scenario("permuted-digits", validation=0.2)
    assert len({id(task.train.base) for task in held}) == 1


def test_a_scenario_moved_to_a_device_is_the_same_and_still_shares_its_data() -> None:
    tasks = scenario("permuted-digits", validation=0.2)
    moved = tasks.to("cpu")
    assert len({id(task.train.base) for task in moved}) == 1
    for one, other in zip(tasks, moved, strict=True):
        assert (one.name, one.index, one.classes) == (other.name, other.index, other.classes)
        for part in ("train", "test", "validation"):
            assert torch.equal(getattr(one, part).x, getattr(other, part).x)
            assert torch.equal(getattr(one, part).y, getattr(other, part).y)


@pytest.mark.mnist
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads Linux's memory counter")
def test_ten_tasks_of_permuted_mnist_do_not_take_ten_times_the_memory() -> None:
    load("mnist")

    def resident() -> int:
        gc.collect()
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    before = resident()
    tasks = scenario("permuted-mnist")
    lengths = [len(task.train.x) + len(task.test.x) for task in tasks]
    one_copy = 70_000 * 784 * 4
    assert lengths == [70_000] * 10
    # One shared copy, and what the allocator has not yet given back of the last task's inputs.
    assert resident() - before < 2.5 * one_copy


@pytest.mark.mnist
def test_split_mnist_is_the_usual_one() -> None:
    tasks = scenario("split-mnist")
    assert [len(task.train) for task in tasks] == [12665, 12089, 11263, 12183, 11800]
    assert [len(task.test) for task in tasks] == [2115, 2042, 1874, 1986, 1983]
    assert tasks.input_shape == (784,)
    assert scenario("split-mnist", flatten=False, tasks=1)[0].test.x.shape == (2115, 1, 28, 28)


def test_x_is_made_once_where_nothing_is_permuted_and_while_held_where_it_is() -> None:
    plain = scenario("split-digits")[0].train
    assert plain.x is plain.x
    permuted = scenario("permuted-digits")[1].train
    held = permuted.x
    assert permuted.x is held


def test_shapes_follow_flatten() -> None:
    flat, image = scenario("permuted-digits", tasks=2), scenario("permuted-digits", tasks=2, flatten=False)
    assert flat.input_shape == (64,)
    assert image.input_shape == (1, 8, 8)
    assert image[1].train.x.shape == (1438, 1, 8, 8)
    assert torch.equal(image[1].train.x.flatten(1), flat[1].train.x)
    assert image[1].train.shape == image.input_shape


def test_without_normalisation_values_are_between_0_and_1() -> None:
    x = scenario("split-digits", normalize=False)[0].train.x
    raw = load("digits")
    assert float(x.min()) == 0.0
    assert float(x.max()) == 1.0
    rows = (raw.train_y <= 1).nonzero().flatten()
    assert torch.equal((x * 16).to(torch.uint8), raw.train_x[rows].flatten(1))


def test_the_loaded_bytes_are_not_changed() -> None:
    before = load("digits").train_x.clone()
    for task in scenario("permuted-digits", tasks=2):
        task.train.x.add_(1)
    assert torch.equal(load("digits").train_x, before)


@pytest.mark.parametrize("name", ["split-digits", "permuted-digits"])
@pytest.mark.parametrize("fraction", [0.1, 0.25])
def test_validation_takes_its_share_of_every_class_and_nothing_twice(name: str, fraction: float) -> None:
    whole = scenario(name, tasks=3)
    for task, full in zip(scenario(name, tasks=3, validation=fraction), whole, strict=True):
        assert task.validation is not None
        for label in task.classes:
            total = int((full.train.y == label).sum())
            out = int((task.validation.y == label).sum())
            assert out == round(fraction * total)
            assert int((task.train.y == label).sum()) == total - out
        together = torch.cat([task.train.x, task.validation.x])
        assert sorted(map(tuple, together.tolist())) == sorted(map(tuple, full.train.x.tolist()))
        assert torch.equal(task.test.x, full.test.x)


def test_validation_depends_on_the_seed_only() -> None:
    first, again, other = (scenario("split-digits", validation=0.2, seed=seed)[0] for seed in (1, 1, 2))
    assert torch.equal(first.train.x, again.train.x)
    assert not torch.equal(first.train.x, other.train.x)


def test_splits_may_be_uneven_and_leave_classes_out() -> None:
    tasks = scenario("split-digits", splits=[(7, 2), (3, 4, 5), (9,)])
    assert [task.classes for task in tasks] == [(7, 2), (3, 4, 5), (9,)]
    assert [task.name for task in tasks] == ["7/2", "3/4/5", "9"]
    assert [sorted(set(task.train.y.tolist())) for task in tasks] == [[2, 7], [3, 4, 5], [9]]
    assert tasks.n_classes == 10


def test_classes_are_dealt_out_in_the_order_given() -> None:
    order = [9, 8, 7, 6, 5, 4, 3, 2, 1, 0]
    tasks = scenario("split-digits", order=order, classes_per_task=5)
    assert [task.classes for task in tasks] == [(9, 8, 7, 6, 5), (4, 3, 2, 1, 0)]
    assert scenario("split-digits", order=[4, 1, 3, 0])[1].classes == (3, 0)


def test_a_random_order_is_a_permutation_that_depends_on_the_seed() -> None:
    orders = [
        [label for task in scenario("split-digits", order="random", seed=seed) for label in task.classes]
        for seed in (0, 0, 1)
    ]
    assert sorted(orders[0]) == list(range(10))
    assert orders[0] == orders[1] != orders[2]


def test_numbers_and_lists_of_numpy_are_taken() -> None:
    tasks = scenario("split-digits", order=np.arange(9, -1, -1), seed=np.int64(3), tasks=np.int64(2))
    assert [task.classes for task in tasks] == [(9, 8), (7, 6)]
    assert type(tasks.seed) is int


def test_tasks_keeps_the_first_few() -> None:
    assert [task.name for task in scenario("split-digits", tasks=2)] == ["0/1", "2/3"]
    assert [task.classes for task in scenario("split-digits", classes_per_task=3, tasks=3)][-1] == (6, 7, 8)


def test_a_scenario_can_travel_to_another_process() -> None:
    tasks = scenario("permuted-digits", tasks=2)
    back = pickle.loads(pickle.dumps(tasks))
    for own, there in zip(tasks, back, strict=True):
        assert torch.equal(there.test.x, own.test.x)
        assert torch.equal(there.train.y, own.train.y)


def test_a_scenario_is_a_sequence() -> None:
    tasks = scenario("split-digits")
    assert len(tasks) == 5
    assert tasks[-1] is tasks[4]
    assert list(tasks) == [tasks[i] for i in range(5)]
    part = tasks[1:4:2]
    assert isinstance(part, Scenario)
    assert [task.name for task in part] == ["2/3", "6/7"]
    assert [task.index for task in part] == [0, 1]
    assert part[1].train is tasks[3].train
    assert len(tasks[5:]) == 0
    with pytest.raises(IndexError, match="which has 5 tasks"):
        tasks[5]
    with pytest.raises(AttributeError):
        tasks.seed = 3  # type: ignore[misc]
    assert "5 tasks: 0/1, 2/3" in repr(tasks)
    assert repr(tasks[0]) == "Task(0: '0/1', 288 train, 72 test)"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"name": "split-minst"}, "Did you mean 'split-mnist'"),
        ({"name": "mnist"}, "unknown scenario 'mnist'"),
        ({"tasks": 0}, "tasks=0"),
        ({"tasks": 6}, "tasks=6: there are only 5"),
        ({"tasks": 2.5}, "tasks=2.5"),
        ({"tasks": True}, "tasks=True"),
        ({"classes_per_task": 0}, "classes_per_task=0"),
        ({"classes_per_task": 11}, "only 10 classes"),
        ({"classes_per_task": 3}, "Use one of 1, 2, 5, 10; or tasks=3"),
        ({"classes_per_task": 3, "tasks": 4}, "there are only 3"),
        ({"splits": []}, "splits is empty"),
        ({"splits": [(0, 1), ()]}, r"splits\[1\] is empty"),
        ({"splits": [(0, 1), (1, 2)]}, r"splits\[1\]: class 1 is already in splits\[0\]"),
        ({"splits": [(0, 0)]}, "class 0 twice"),
        ({"splits": [(0, 10)]}, r"splits\[0\] has class 10.*Known: 0, 1"),
        ({"splits": [0, 1]}, r"splits\[0\]=0"),
        ({"splits": "01"}, "splits='01'"),
        ({"splits": [(0, 1)], "classes_per_task": 2}, "classes_per_task=2 and splits are both given"),
        ({"splits": [(0, 1)], "order": "random"}, "order='random' and splits"),
        ({"order": "backwards"}, "order='backwards'"),
        ({"order": [0, 1, 1]}, "class 1 twice"),
        ({"order": [0, 42]}, "class 42"),
        ({"order": 3}, "order=3"),
        ({"validation": 1.0}, "validation=1.0"),
        ({"validation": -0.1}, "validation=-0.1"),
        ({"validation": float("nan")}, "validation=nan"),
        ({"validation": "much"}, "validation='much'"),
        ({"seed": -1}, "seed=-1"),
        ({"seed": 1.5}, "seed=1.5"),
        ({"seed": 2**63}, "seed="),
        ({"flatten": "yes"}, "flatten='yes'"),
        ({"normalize": None}, "normalize=None"),
        ({"name": "permuted-digits", "tasks": 0}, "tasks=0"),
        ({"name": "permuted-digits", "splits": [(0, 1)]}, "splits=.*use 'split-digits'"),
        ({"name": "permuted-digits", "order": "random"}, "order='random'.*all classes"),
    ],
)
def test_wrong_requests_are_refused_by_field_and_value(arguments: dict[str, object], words: str) -> None:
    with pytest.raises(InputError, match=words):
        scenario(**({"name": "split-digits"} | arguments))  # type: ignore[arg-type]


def test_a_wrong_request_is_refused_before_anything_is_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ibpwf.lab.data.scenarios.load", lambda *args, **kwargs: pytest.fail("it loaded"))
    with pytest.raises(InputError):
        scenario("split-mnist", tasks=9)


def test_nothing_here_needs_the_command_line_packages() -> None:
    package = Path(data_package.__file__).parents[2]
    # An empty parent package, so that only what the data package itself imports is looked at.
    script = f"""
import sys, types
sys.modules["rich"] = None
sys.modules["ibpwf"] = types.ModuleType("ibpwf")
sys.modules["ibpwf"].__path__ = [{str(package)!r}]
import ibpwf.lab.data
print(len(ibpwf.lab.data.scenario("split-digits")))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "5", done.stderr
