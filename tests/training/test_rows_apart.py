"""Rows held out of a task: a share of every class, never more than asked for, the same for the same seed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from torch import Generator, Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from ibpwf.training.rows import Rows, StreamedRows, TensorRows

CPU = torch.device("cpu")


def seeded(seed: int = 0) -> Generator:
    return Generator().manual_seed(seed)


def numbered(labels: list[int]) -> tuple[Tensor, Tensor]:
    """Rows that tell their own number and label."""
    y = torch.tensor(labels)
    return torch.stack([torch.arange(len(y)).float(), y.float()], 1), y


def parts_of(rows: Rows, share: float, most: int, seed: int = 0) -> tuple[Rows, Rows]:
    found = rows.apart(share, most, seeded(seed))
    assert found is not None
    return found


def numbers(rows: Rows) -> list[int]:
    return [int(number) for number in rows.tensors()[0][:, 0]]


@hypothesis_settings(max_examples=60, deadline=None)
@given(
    counts=st.lists(st.integers(1, 60), min_size=1, max_size=5),
    share=st.floats(0.01, 0.5),
    most=st.integers(1, 40),
    seed=st.integers(0, 1000),
)
def test_each_class_gives_its_share_and_keeps_rows_and_no_row_is_lost_or_in_both(
    counts: list[int], share: float, most: int, seed: int
) -> None:
    labels = [label for label, count in enumerate(counts) for _ in range(count)]
    x, y = numbered([labels[place] for place in torch.randperm(len(labels), generator=seeded(seed)).tolist()])
    found = TensorRows(x, y).apart(share, most, seeded(seed))
    least = min(share, most / len(y))
    expected = {label: int(count * least) for label, count in enumerate(counts)}
    if found is None:
        assert not any(expected.values())
        return
    kept, held = found
    assert sorted(numbers(kept) + numbers(held)) == list(range(len(y)))
    assert len(held) <= most
    for part in found:
        assert torch.equal(part.tensors()[0][:, 1], part.tensors()[1].float())  # a row keeps its label
        assert numbers(part) == sorted(numbers(part))  # and its place
    mine = Counter(held.tensors()[1].tolist())
    assert {label: mine[label] for label in expected} == expected
    assert {*kept.tensors()[1].tolist()} == {*range(len(counts))}


def test_the_same_seed_holds_out_the_same_rows_and_another_seed_others() -> None:
    rows = TensorRows(*numbered([row % 3 for row in range(300)]))
    first, again, other = (numbers(parts_of(rows, 0.1, 500, seed)[1]) for seed in (1, 1, 2))
    assert first == again != other
    assert len(first) == 30


def test_every_row_is_held_out_about_as_often_as_any_other() -> None:
    rows = TensorRows(*numbered([row % 2 for row in range(20)]))
    seen = Counter(row for seed in range(400) for row in numbers(parts_of(rows, 0.2, 500, seed)[1]))
    assert sorted(seen) == list(range(20))
    assert all(45 < count < 120 for count in seen.values())  # 80 expected, of a deviation of 8


class Numbered(Dataset[tuple[Tensor, int]]):
    """`numbered` as a Dataset that is moved at random whenever it is read; `read` has the places that were."""

    def __init__(self, labels: list[int]) -> None:
        self.x, self.y = numbered(labels)
        self.read: list[int] = []

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, place: int) -> tuple[Tensor, int]:
        self.read.append(place)
        return self.x[place] + torch.tensor([0.0, torch.rand(()) / 4]), int(self.y[place])


def test_a_dataset_holds_out_the_rows_that_its_tensors_would() -> None:
    labels = [7 * (row % 3) for row in range(90)]
    source = Numbered(labels)
    streamed = parts_of(StreamedRows(source, CPU, None), 0.2, 500)
    x, _ = numbered(labels)
    for part, other in zip(streamed, parts_of(TensorRows(x, torch.tensor(labels)), 0.2, 500), strict=True):
        assert numbers(part) == numbers(other)
        assert len(part) == len(other)
        assert part.tensors()[1].tolist() == [label // 7 for label in other.tensors()[1].tolist()]


def test_a_part_of_a_dataset_reads_no_row_of_the_other() -> None:
    source = Numbered([row % 2 for row in range(60)])
    kept, held = parts_of(StreamedRows(source, CPU, None), 0.3, 500)
    mine = {*numbers(held)}
    source.read.clear()
    for _ in range(3):
        assert sum(len(y) for _, y in kept.epoch(8, seeded())) == 40  # a rest smaller than a batch is left out
        assert sum(len(y) for _, y in kept.in_order()) == 42
    assert {*source.read} == {*range(60)} - mine
    assert kept.steps(8) == 5
    source.read.clear()
    assert len(held.tensors()[1]) == 18
    assert {*source.read} == mine


class Stream(IterableDataset[tuple[Tensor, int]]):
    def __iter__(self) -> Iterator[tuple[Tensor, int]]:
        return iter([(torch.ones(2) * row, row % 2) for row in range(40)])


@pytest.mark.parametrize(
    "source",
    [
        Stream(),
        DataLoader(TensorDataset(torch.rand(40, 2), torch.arange(40) % 2), batch_size=8),
        [(torch.rand(8, 2), torch.arange(8) % 2)] * 5,
    ],
    ids=["stream", "loader", "batches"],
)
def test_nothing_is_held_out_of_what_comes_in_an_order_of_its_own(source: Any) -> None:
    rows = StreamedRows(source, CPU, None)
    assert rows.apart(0.5, 500, seeded()) is None
    assert len(rows) == 40


def test_nothing_is_held_out_of_classes_too_small_for_the_share() -> None:
    rows = TensorRows(*numbered([row % 10 for row in range(90)]))
    assert rows.apart(0.1, 500, seeded()) is None
    assert rows.apart(0.5, 9, seeded()) is None
    assert StreamedRows(Numbered([row % 10 for row in range(90)]), CPU, None).apart(0.1, 500, seeded()) is None
