"""Where mini-batches come from: tensors, Datasets read afresh in every epoch, and anything that gives batches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from ibpwf import Learner, Settings
from ibpwf.errors import InputError
from ibpwf.inputs import check_labels
from ibpwf.training.rows import StreamedRows, TensorRows

CPU = torch.device("cpu")
X, Y = torch.randn(70, 6, generator=torch.Generator().manual_seed(0)), torch.arange(70) % 3 * 5
QUICK = Settings(alpha=4.0, epochs=3, finetune_epochs=2, batch_size=16, learning_rate=0.01)


def learned(*form: Any, seed: int = 1, settings: Settings = QUICK) -> Learner:
    torch.manual_seed(0)
    learner = Learner(nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)), settings, seed=seed, device="cpu")
    info = learner.learn(*form)
    assert (info.classes, info.examples) == ((0, 5, 10), 70)
    return learner


def same(left: Learner, right: Learner) -> bool:
    return torch.equal(left.predict(X).probabilities, right.predict(X).probabilities)


class Items(Dataset[object]):
    """Anything as a Dataset."""

    def __init__(self, *items: object) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, number: int) -> object:
        return self.items[number]


class Moved(Dataset[tuple[Tensor, int]]):
    """Every example moved at random whenever it is read; `seen` has all that were given."""

    def __init__(self) -> None:
        self.seen: list[Tensor] = []

    def __len__(self) -> int:
        return len(X)

    def __getitem__(self, row: int) -> tuple[Tensor, int]:
        self.seen.append(X[row] + 0.1 * torch.randn(6))
        return self.seen[-1], int(Y[row])


class Stream(IterableDataset[tuple[Any, Any]]):
    """Rows in an order of their own, as arrays."""

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        return zip(X.numpy(), Y.numpy(), strict=True)


class Batched:
    """Batches that are made when they are asked for, without a length."""

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return zip(X.split(20), Y.split(20), strict=True)


# Datasets


def test_a_plain_dataset_gives_the_same_bits_as_its_tensors() -> None:
    assert same(learned(TensorDataset(X, Y)), learned(X, Y))
    assert same(learned(Items(*((x.numpy(), int(y)) for x, y in zip(X, Y, strict=True)))), learned(X, Y))


def test_a_random_transform_gives_other_examples_in_every_epoch() -> None:
    data = Moved()
    learned(data)
    passes = 3 + 2  # of training; further ones look at labels, the example's shape and φ's statistics
    assert len(data.seen) >= passes * 64
    assert len({tuple(example.tolist()) for example in data.seen}) > 0.95 * passes * 64


def test_the_same_seed_draws_the_same_transforms_whatever_else_is_drawn_and_another_others() -> None:
    one, again, other = (learned(Moved(), seed=seed) for seed in (1, 1, 2))
    assert same(one, again)
    assert not same(one, other)
    torch.manual_seed(77)
    expected = torch.rand(3)
    torch.manual_seed(77)
    Learner(nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 3)), QUICK, device="cpu")
    torch.manual_seed(77)
    data = StreamedRows(Moved(), CPU, None)
    torch.manual_seed(77)
    for _ in data.epoch(16, torch.Generator()):
        pass
    assert torch.equal(torch.rand(3), expected), "the caller's random numbers go on as if nothing had been drawn"


def test_the_transforms_of_one_epoch_are_not_those_of_the_next() -> None:
    rows, shuffle = StreamedRows(Moved(), CPU, None), torch.Generator().manual_seed(3)
    first, second = (torch.cat([x for x, _ in rows.epoch(70, shuffle)]) for _ in range(2))
    assert not torch.equal(first.sort(0).values, second.sort(0).values)
    again = torch.cat([x for x, _ in rows.epoch(70, torch.Generator().manual_seed(3))])
    assert torch.equal(first, again)


@pytest.mark.parametrize(
    ("items", "message"),
    [
        ((), "the Items is empty; a task needs examples"),
        ((torch.ones(2),), r"item 0 of the Dataset is not an \(example, label\) pair"),
        (((torch.ones(2), 0), (torch.ones(2), 0, 1)), "item 1 of the Dataset is not"),
        (((torch.ones(2), 0), (torch.ones(3), 1)), "items of the Dataset do not fit together.*examples of one shape"),
        (((torch.ones(2), torch.tensor([0, 1])),), r"y has shape \(1, 2\); give one integer label per example"),
        (((torch.ones(2), "cat"),), "y holds text; encode the labels"),
        (((torch.ones(2), 1.7),), r"y holds 1\.7"),
    ],
)
def test_a_dataset_that_is_not_examples_with_labels_is_refused(items: tuple[object, ...], message: str) -> None:
    with pytest.raises(InputError, match=message):
        StreamedRows(Items(*items), CPU, None)


def test_labels_of_a_dataset_may_be_any_whole_numbers() -> None:
    rows = StreamedRows(Items((torch.ones(2), -3), (torch.zeros(2), 2**60), (torch.ones(2), -3)), CPU, None)
    assert rows.classes == (-3, 2**60)
    assert rows.tensors()[1].tolist() == [0, 1, 0]
    assert check_labels(rows.labels, 3).tolist() == [-3, 2**60, -3]


# Batches


@pytest.mark.parametrize(
    "source",
    [
        Stream(),
        Batched(),
        DataLoader(TensorDataset(X, Y), batch_size=16),
        DataLoader(TensorDataset(X, Y), batch_size=7, shuffle=True),
        DataLoader(Stream(), batch_size=16),
    ],
    ids=["rows", "batches", "DataLoader", "shuffled DataLoader", "DataLoader of rows"],
)
def test_whatever_gives_batches_anew_can_be_learned_and_the_same_seed_gives_the_same_bits(source: Any) -> None:
    one, again = (learned(source) for _ in range(2))
    assert same(one, again)


def test_a_shuffled_data_loader_has_another_order_in_every_epoch() -> None:
    rows = StreamedRows(DataLoader(TensorDataset(X, Y), batch_size=70, shuffle=True), CPU, None)
    shuffle = torch.Generator().manual_seed(0)
    orders = [next(iter(rows.epoch(16, shuffle)))[0] for _ in range(3)]
    assert not torch.equal(orders[0], orders[1])
    assert not torch.equal(orders[1], orders[2])


def test_batches_of_ones_own_are_learned_as_they_come() -> None:
    steps: list[tuple[int, ...]] = []

    class Counting(Batched):
        def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
            for x, y in super().__iter__():
                steps.append(tuple(x.shape))
                yield x, y

    learned(Counting(), settings=QUICK.replace(batch_size=3))
    assert set(steps) == {(20, 6), (10, 6)}


def test_a_second_pass_with_a_class_of_its_own_is_refused() -> None:
    class Changing:
        passes = 0

        def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
            self.passes += 1
            yield X[:10], torch.arange(10) % 2 + (4 if self.passes > 2 else 0)

    with pytest.raises(InputError, match=r"batch 0 has the label 4, which was not there when the task began"):
        Learner(nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 3)), QUICK).learn(Changing())


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (X, r"batch 0 of the Pairs is not an \(x, y\) pair"),
        ((X, Y, Y), r"batch 0 of the Pairs is not an \(x, y\) pair"),
        ((X, Y[:-1]), "x has 70 examples but y has 69 labels"),
        ((np.full((2, 6), np.nan), [0, 1]), "x holds nan in row 0"),
    ],
)
def test_batches_that_are_no_pairs_of_examples_and_labels_are_refused(batch: object, message: str) -> None:
    class Pairs:
        def __iter__(self) -> Iterator[object]:
            return iter([batch])

    with pytest.raises(InputError, match=message):
        StreamedRows(Pairs(), CPU, None)


# Tensors


@pytest.mark.parametrize(("rows", "size"), [(70, 16), (5, 16), (16, 16), (7, 1)])
def test_an_epoch_of_tensors_is_a_shuffled_order_without_a_rest(rows: int, size: int) -> None:
    data = TensorRows(torch.arange(rows).unsqueeze(1), torch.arange(rows))
    batches = list(data.epoch(size, torch.Generator().manual_seed(1)))
    assert len(batches) == data.steps(size) == max(rows // size, 1)
    seen = torch.cat([y for _, y in batches])
    assert len(set(seen.tolist())) == len(seen) == len(batches) * min(size, rows)
    assert torch.equal(torch.cat([x for x, _ in batches])[:, 0], seen)
    assert torch.equal(torch.cat([y for _, y in data.in_order(3)]), torch.arange(rows))


def test_a_plain_list_of_batches_is_learned_as_well() -> None:
    x, y = torch.randn(64, 6, generator=torch.Generator().manual_seed(0)), torch.arange(64) % 2
    learner = Learner(
        nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2)),
        Settings(epochs=2, finetune_epochs=1, batch_size=16),
        device="cpu",
    )
    info = learner.learn(list(zip(x.split(16), y.split(16), strict=True)), task="list")
    assert (info.examples, info.classes) == (64, (0, 1))


# Sources that are not what they were


class Shrinking:
    """Gives a batch fewer in every pass."""

    def __init__(self) -> None:
        self.passes = 0

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        self.passes += 1
        yield from zip(X.split(10)[: 8 - self.passes], Y.split(10)[: 8 - self.passes], strict=True)


class Countless(IterableDataset[tuple[Tensor, Tensor]]):
    """Examples of which torch does not know how many there are."""

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        yield from zip(X, Y, strict=True)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (
            Shrinking(),
            r"the Shrinking gave \d+ examples in a pass where the first one had 70; a task is read",
        ),
        (iter([(X, Y)]), r"the list_iterator gave 0 examples in a pass where the first one had 70"),
        ([(X, Y), (X[:, :5], Y)], r"batch 1 of the list has examples of shape \(5,\), those before it have \(6,\)"),
        (DataLoader(TensorDataset(X)), r"batch 0 of the DataLoader is not an \(x, y\) pair"),
        (DataLoader(TensorDataset(X[:0], Y[:0])), "the DataLoader is empty; a task needs examples"),
    ],
    ids=["changes its length", "can be read once", "changes its shape", "has no labels", "gives nothing"],
)
def test_a_source_that_cannot_be_learned_from_is_refused_in_one_sentence(source: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        learned(source)


@pytest.mark.parametrize("source", [Countless(), DataLoader(Countless(), batch_size=16)])
def test_a_source_of_unknown_length_is_counted_in_its_first_pass(source: Any) -> None:
    rows = StreamedRows(source, CPU, None)
    assert len(rows) == 70
    assert rows.steps(16) == len(list(rows.epoch(16, torch.Generator().manual_seed(0))))


def test_a_sample_of_a_stream_comes_from_all_over() -> None:
    long = [
        (torch.arange(float(start), start + 100).view(-1, 1), torch.arange(100) % 2) for start in range(0, 9000, 100)
    ]
    rows = StreamedRows(long, CPU, None)
    found = torch.cat([x for x, _ in rows.sample(2_000, torch.Generator().manual_seed(0))])
    assert len(torch.unique(found)) == 2_000
    assert abs(float(found.mean()) - 4_500) < 200
