"""The memory of examples: never too large, shared fairly, and a random choice of what was really seen."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ibpwf.errors import InputError
from ibpwf.lab.methods.rehearsal import ExampleMemory, check_size, remember, shares
from ibpwf.training.method import TaskData


def task_data(index: int, counts: list[int], seed: int = 0) -> TaskData:
    """A task whose classes have `counts` examples; every example of every task is a different number."""
    y = torch.cat([torch.full((count,), label) for label, count in enumerate(counts)])
    y = y[torch.randperm(len(y), generator=torch.Generator().manual_seed(index))]
    x = torch.arange(len(y)).float()[:, None] + 10_000 * index
    return TaskData(f"task {index}", index, tuple(range(len(counts))), x, y, seed)


def after(tasks: list[TaskData], size: int) -> ExampleMemory:
    memory = None
    for data in tasks:
        memory = remember(memory, data, size)
    assert memory is not None
    return memory


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[TaskData], int]:
    """Tasks of uneven classes and a memory that each of them can fill its share of."""
    size = draw(st.integers(1, 60))
    seed = draw(st.integers(0, 5))
    tasks: list[TaskData] = []
    for index in range(draw(st.integers(1, min(size, 7)))):
        counts = draw(st.lists(st.integers(0, 40), min_size=1, max_size=5))
        counts[draw(st.integers(0, len(counts) - 1))] += size  # some class has plenty
        tasks.append(task_data(index, counts, seed))
    return tasks, size


@given(histories())
@settings(max_examples=60, deadline=None)
def test_the_memory_is_always_full_never_over_its_size_and_tasks_differ_by_at_most_one(history):
    tasks, size = history
    memory = None
    for data in tasks:
        memory = remember(memory, data, size)
        kept = Counter(memory.task.tolist())
        assert len(memory.x) == len(memory.y) == len(memory) == size
        assert set(kept) == set(range(data.index + 1))
        assert max(kept.values()) - min(kept.values()) <= 1


@given(histories())
@settings(max_examples=60, deadline=None)
def test_a_class_of_a_task_has_two_fewer_than_another_only_if_all_of_it_is_kept(history):
    tasks, size = history
    memory = after(tasks, size)
    for data in tasks:
        kept = Counter(memory.of(data.index)[1].tolist())
        existing = Counter(data.y.tolist())
        most = max(kept.values())
        for label, count in existing.items():
            assert kept[label] >= min(most - 1, count)


@given(histories())
@settings(max_examples=60, deadline=None)
def test_what_is_kept_are_different_real_examples_with_their_own_labels_and_tasks(history):
    tasks, size = history
    memory = after(tasks, size)
    real = {(float(x), int(y), data.index) for data in tasks for x, y in zip(data.x, data.y, strict=True)}
    kept = list(zip(memory.x[:, 0].tolist(), memory.y.tolist(), memory.task.tolist(), strict=True))
    assert set(kept) <= real
    assert len(set(kept)) == len(kept)


@given(histories())
@settings(max_examples=40, deadline=None)
def test_a_new_task_takes_places_but_brings_nothing_old_back_and_leaves_the_old_memory_alone(history):
    tasks, size = history
    if len(tasks) < 2:
        return
    before = after(tasks[:-1], size)
    copied = {name: tensor.clone() for name, tensor in before.tensors().items()}
    new = remember(before, tasks[-1], size)
    old = new.task < tasks[-1].index
    assert set(new.x[old, 0].tolist()) <= set(before.x[:, 0].tolist())
    assert all(torch.equal(tensor, copied[name]) for name, tensor in before.tensors().items())


def test_the_choice_is_that_of_the_seed_alone():
    first, again, other = (after([task_data(t, [50, 50], seed) for t in range(3)], 20) for seed in (1, 1, 2))
    assert torch.equal(first.x, again.x)
    assert set(first.x[:, 0].tolist()) != set(other.x[:, 0].tolist())


def test_every_example_of_a_class_is_as_likely_to_be_kept_as_any_other():
    seeds = 400
    kept: Counter[int] = Counter()
    for seed in range(seeds):
        kept.update(int(x) for x in after([task_data(0, [12], seed)], 4).x[:, 0])
    # A binomial of 400 draws at 1/3 has mean 133 and standard deviation 9.4; five of them either way.
    assert all(86 < kept[x] < 181 for x in range(12))


def test_the_odd_example_goes_to_either_class_by_chance():
    odd = [int(after([task_data(0, [9, 9], seed)], 5).y.sum()) for seed in range(40)]
    assert set(odd) == {2, 3}


def test_drawing_gives_every_stored_example_with_its_label_and_task():
    memory = after([task_data(0, [5, 5]), task_data(1, [5, 5])], 8)
    x, y, task = memory.draw(2000, torch.Generator().manual_seed(0))
    stored = set(zip(memory.x[:, 0].tolist(), memory.y.tolist(), memory.task.tolist(), strict=True))
    drawn = Counter(zip(x[:, 0].tolist(), y.tolist(), task.tolist(), strict=True))
    assert set(drawn) == stored
    assert all(170 < count < 330 for count in drawn.values())  # mean 250, standard deviation 14.8


def test_a_memory_comes_back_from_its_tensors_and_none_from_nothing():
    memory = after([task_data(0, [5, 5])], 4)
    back = ExampleMemory.load(memory.tensors())
    assert back is not None
    assert all(torch.equal(a, b) for a, b in zip(back.tensors().values(), memory.tensors().values(), strict=True))
    assert ExampleMemory.load({}) is None


@pytest.mark.parametrize(("size", "tasks"), [(10, 3), (10, 5), (7, 7), (400, 5), (1100, 10)])
def test_shares_add_up_to_the_size(size, tasks):
    assert sum(shares(size, tasks)) == size
    assert max(shares(size, tasks)) - min(shares(size, tasks)) <= 1


def test_a_memory_larger_than_the_data_is_refused_with_what_would_fit():
    with pytest.raises(InputError, match=r"memory_size is 11.*only 10 examples; give at most 10\."):
        check_size(11, task_data(0, [5, 5]))
    check_size(10, task_data(0, [5, 5]))
    with pytest.raises(InputError, match=r"memory_size is 40.*would keep 13.*only 10"):
        check_size(40, task_data(2, [5, 5]))
    with pytest.raises(InputError, match=r"memory_size is 2, too small for 3 tasks"):
        check_size(2, task_data(2, [5, 5]))


@given(st.integers(1, 30), st.integers(0, 6), st.integers(1, 30))
def test_the_size_an_error_recommends_is_accepted(size, index, examples):
    data = task_data(index, [examples])
    try:
        check_size(size, data)
    except InputError as error:
        if "give at most" in str(error):
            check_size(int(str(error).rstrip(".").split()[-1]), data)
