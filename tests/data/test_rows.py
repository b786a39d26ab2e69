"""Rows in memory, in a scratch file and read anew: one contract, equal bits, the same splits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from torch import Generator, Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from ibpwf import Learner, Settings
from ibpwf.data.rows import Batch, IndexedRows, Rows, StreamedRows, rows_of
from ibpwf.errors import InputError
from ibpwf.inference.features import quantiles
from ibpwf.likelihoods import Categorical
from ibpwf.storage.scratch import ScratchFile
from ibpwf.training.checkpoint import Checkpoint

CPU = torch.device("cpu")
X, Y = torch.randn(90, 6, generator=Generator().manual_seed(0)), torch.arange(90) % 3
QUICK = Settings(alpha=4.0, epochs=3, finetune_epochs=2, batch_size=16, learning_rate=0.01)


def seeded(seed: int = 3) -> Generator:
    return Generator().manual_seed(seed)


def file_of(x: Tensor) -> ScratchFile:
    file = ScratchFile(tuple(x.shape[1:]))
    file.append(x.numpy())
    return file


def read(source: Any) -> StreamedRows:
    return StreamedRows(source, Categorical(), CPU, None)


Kind = Callable[[Tensor, Tensor], Rows]
KINDS: dict[str, Kind] = {
    "in memory": lambda x, y: IndexedRows(x, y),
    "in a file": lambda x, y: IndexedRows(file_of(x), y.int()),
    "part of a file": lambda x, y: IndexedRows(
        file_of(torch.cat([x, x + 1]).roll(3, 0)).rows(np.arange(3, len(x) + 3)), y.int()
    ),
    "of a Dataset": lambda x, y: read(TensorDataset(x, y)),
}
every_kind = pytest.mark.parametrize("kind", list(KINDS.values()), ids=list(KINDS))


def same(left: Iterable[Batch], right: Iterable[Batch]) -> bool:
    pairs = zip((t for pair in left for t in pair), (t for pair in right for t in pair), strict=True)
    return all(one.dtype == other.dtype and torch.equal(one, other) for one, other in pairs)


def numbered(labels: list[int]) -> tuple[Tensor, Tensor]:
    """Rows that tell their own number and label."""
    y = torch.tensor(labels)
    return torch.stack([torch.arange(len(y)).float(), y.float()], 1), y


def numbers(rows: Rows) -> list[int]:
    return [int(number) for number in rows.tensors()[0][:, 0]]


def parts_of(rows: Rows, fraction: float, most: int = 500, seed: int = 0) -> tuple[Rows, Rows]:
    found = rows.split(fraction, most, seeded(seed))
    assert found is not None
    return found


# The contract


@every_kind
def test_every_pass_is_that_of_rows_in_memory(kind: Kind) -> None:
    memory, rows = IndexedRows(X, Y), kind(X, Y)
    assert len(rows) == 90
    assert rows.steps(16) == memory.steps(16)
    assert rows.labels.tolist() == Y.tolist()
    assert rows.class_weights().tolist() == [30, 30, 30]
    assert same(memory.epoch(16, seeded()), rows.epoch(16, seeded()))
    assert same(memory.in_order(20), rows.in_order(20))
    assert same([memory.tensors()], [rows.tensors()])
    ours, theirs = (one.sample(40, seeded()) for one in (memory, rows))
    assert all(
        map(torch.equal, *([torch.cat(column) for column in zip(*some, strict=True)] for some in (ours, theirs)))
    )


@every_kind
@pytest.mark.parametrize(("count", "size"), [(70, 16), (5, 16), (16, 16), (7, 1)])
def test_an_epoch_is_a_shuffled_order_without_a_rest(count: int, size: int, kind: Kind) -> None:
    rows = kind(torch.arange(float(count)).unsqueeze(1), torch.arange(count))
    batches = list(rows.epoch(size, seeded(1)))
    assert len(batches) == rows.steps(size) == max(count // size, 1)
    seen = torch.cat([y for _, y in batches])
    assert len(set(seen.tolist())) == len(seen) == len(batches) * min(size, count)
    assert torch.equal(torch.cat([x for x, _ in batches])[:, 0], seen.float())
    assert torch.cat([y for _, y in rows.in_order(3)]).tolist() == list(range(count))


@every_kind
def test_a_sample_comes_from_all_over_in_order_and_is_the_same_for_the_same_seed(kind: Kind) -> None:
    rows = kind(torch.arange(9_000.0).view(-1, 1), torch.zeros(9_000, dtype=torch.long))
    one, again, other = (torch.cat([x for x, _ in rows.sample(2_000, seeded(seed))]) for seed in (1, 1, 2))
    wanted = torch.randperm(9_000, generator=seeded(1))[:2_000].sort().values
    assert torch.equal(one[:, 0], wanted.float())
    assert torch.equal(one, again)
    assert not torch.equal(one, other)
    assert torch.equal(torch.cat([x for x, _ in rows.sample(9_000, seeded())]), rows.tensors()[0])


@every_kind
def test_splits_are_those_of_rows_in_memory_and_can_be_split_again(kind: Kind) -> None:
    def parts(rows: Rows) -> list[Rows]:
        first, second = parts_of(rows, 0.3)
        return [first, second, *parts_of(first, 0.2, seed=4)]

    for one, other in zip(parts(IndexedRows(X, Y)), parts(kind(X, Y)), strict=True):
        assert one.labels.tolist() == other.labels.tolist()
        assert same(one.in_order(7), other.in_order(7))
        assert same(one.epoch(8, seeded(5)), other.epoch(8, seeded(5)))


@every_kind
def test_nothing_is_split_off_classes_too_small_for_the_fraction(kind: Kind) -> None:
    rows = kind(*numbered([row % 10 for row in range(90)]))
    assert rows.split(0.1, 500, seeded()) is None
    assert rows.split(0.5, 9, seeded()) is None


@every_kind
def test_other_rows_have_another_digest(kind: Kind) -> None:
    rows = kind(X, Y)
    assert rows.digest() == kind(X, Y).digest()
    assert rows.digest() != kind(X, (Y > 0).long()).digest()
    assert rows.digest() != parts_of(rows, 0.3)[0].digest()


@pytest.mark.parametrize("kind", [KINDS["in memory"], KINDS["in a file"]])
def test_weighted_rows_come_as_often_as_their_weights_say(kind: Kind) -> None:
    weights = torch.rand(90, generator=seeded(), dtype=torch.float64)
    rows = kind(X, Y).with_weights(weights)
    assert rows.digest() != kind(X, Y).digest()
    assert same(IndexedRows(X, Y).with_weights(weights).epoch(16, seeded()), rows.epoch(16, seeded()))
    only = kind(X, Y).with_weights((Y == 2).double())
    assert all((y == 2).all() for _, y in only.epoch(16, seeded()))
    assert only.class_weights().tolist() == [0, 0, 30]


def test_weights_of_streamed_rows_are_rejected() -> None:
    with pytest.raises(InputError, match="weights"):
        read(TensorDataset(X, Y)).with_weights(torch.ones(90))


# Splits


@hypothesis_settings(max_examples=60, deadline=None)
@given(
    counts=st.lists(st.integers(1, 60), min_size=1, max_size=5),
    fraction=st.floats(0.01, 0.5),
    most=st.integers(1, 40),
    seed=st.integers(0, 1000),
)
def test_each_class_gives_its_fraction_and_keeps_rows_and_no_row_is_lost_or_in_both(
    counts: list[int], fraction: float, most: int, seed: int
) -> None:
    labels = [label for label, count in enumerate(counts) for _ in range(count)]
    x, y = numbered([labels[place] for place in torch.randperm(len(labels), generator=seeded(seed)).tolist()])
    found = IndexedRows(x, y).split(fraction, most, seeded(seed))
    least = min(fraction, most / len(y))
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


def test_every_row_is_split_off_about_as_often_as_any_other() -> None:
    rows = IndexedRows(*numbered([row % 2 for row in range(20)]))
    seen = Counter(row for seed in range(400) for row in numbers(parts_of(rows, 0.2, seed=seed)[1]))
    assert sorted(seen) == list(range(20))
    assert all(45 < count < 120 for count in seen.values())  # 80 expected, of a deviation of 8


# Rows read anew


class Items(Dataset[object]):
    """Anything as a Dataset."""

    def __init__(self, *items: object) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, number: int) -> object:
        return self.items[number]


class Moved(Dataset[tuple[Tensor, int]]):
    """Every example moved at random whenever it is read; `seen` has the place and value of all that were."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, Tensor]] = []

    def __len__(self) -> int:
        return len(X)

    def __getitem__(self, row: int) -> tuple[Tensor, int]:
        self.seen.append((row, X[row] + 0.1 * torch.randn(6)))
        return self.seen[-1][1], int(Y[row])


class Stream(IterableDataset[tuple[Any, Any]]):
    """Rows in an order of their own, as arrays, of which torch does not know how many there are."""

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        return zip(X.numpy(), Y.numpy(), strict=True)


class Batched:
    """Batches that are made when they are asked for, without a length."""

    def __iter__(self) -> Iterator[Batch]:
        return zip(X.split(20), Y.split(20), strict=True)


SOURCES: dict[str, Any] = {
    "rows": Stream(),
    "batches": Batched(),
    "list of batches": list(Batched()),
    "DataLoader": DataLoader(TensorDataset(X, Y), batch_size=16),
    "shuffled DataLoader": DataLoader(TensorDataset(X, Y), batch_size=7, shuffle=True),
    "DataLoader of rows": DataLoader(Stream(), batch_size=16),
}
every_source = pytest.mark.parametrize("source", list(SOURCES.values()), ids=list(SOURCES))


@every_source
def test_what_comes_in_an_order_of_its_own_is_counted_and_never_split(source: Any) -> None:
    rows = read(source)
    assert len(rows) == 90
    assert rows.steps(16) == len(list(rows.epoch(16, seeded())))
    assert rows.split(0.5, 500, seeded()) is None
    assert rows.class_weights().tolist() == [30, 30, 30]


def test_a_split_of_a_dataset_reads_no_row_of_the_other_part() -> None:
    source = Moved()
    kept, held = parts_of(read(source), 0.3)

    def places(*passes: Iterable[Batch]) -> set[int]:
        source.seen.clear()
        for batches in passes:
            list(batches)
        return {place for place, _ in source.seen}

    mine = places(held.in_order())
    assert len(mine) == len(held) == 27
    assert places(*(kept.epoch(8, seeded(seed)) for seed in range(3)), kept.in_order()) == {*range(90)} - mine


def test_transforms_are_drawn_anew_in_every_epoch_and_the_same_for_the_same_generator() -> None:
    rows, generator = read(Moved()), seeded()
    torch.manual_seed(77)
    expected = torch.rand(3)
    torch.manual_seed(77)
    first, second = (torch.cat([x for x, _ in rows.epoch(90, generator)]) for _ in range(2))
    assert torch.equal(torch.rand(3), expected), "the caller's random numbers go on as if nothing had been drawn"
    assert not torch.equal(first.sort(0).values, second.sort(0).values)
    assert torch.equal(first, torch.cat([x for x, _ in rows.epoch(90, seeded())]))


def test_a_shuffled_data_loader_has_another_order_in_every_epoch() -> None:
    rows, generator = read(DataLoader(TensorDataset(X, Y), batch_size=90, shuffle=True)), seeded()
    first, second = (next(iter(rows.epoch(16, generator)))[0] for _ in range(2))
    assert not torch.equal(first, second)


def test_labels_may_be_any_whole_numbers() -> None:
    rows = read(Items((torch.ones(2), -3), (torch.zeros(2), 2**60), (torch.ones(2), -3)))
    assert rows.classes == (-3, 2**60)
    assert rows.tensors()[1].tolist() == rows.labels.tolist() == [0, 1, 0]


@pytest.mark.parametrize(
    ("items", "named"),
    [
        ((), "Items"),
        ((torch.ones(2),), "item 0"),
        (((torch.ones(2), 0), (torch.ones(2), 0, 1)), "item 1"),
        (((torch.ones(2), 0), (torch.ones(3), 1)), "shape"),
        (((torch.ones(2), torch.tensor([0, 1])),), r"y .*\(1, 2\)"),
        (((torch.ones(2), "cat"),), "y .*text"),
        (((torch.ones(2), 1.7),), r"y .*1\.7"),
    ],
)
def test_a_dataset_that_is_not_examples_with_labels_is_rejected(items: tuple[object, ...], named: str) -> None:
    with pytest.raises(InputError, match=named):
        read(Items(*items))


@pytest.mark.parametrize(
    ("batches", "named"),
    [
        ([X], "batch 0"),
        ([(X, Y), (X, Y, Y)], "batch 1"),
        ([(X, Y[:-1])], "90 .*89"),
        ([(np.full((2, 6), np.nan), [0, 1])], "x .*row 0"),
        ([(X, Y), (X[:, :5], Y)], r"batch 1 .*\(5,\).*\(6,\)"),
        (DataLoader(TensorDataset(X)), "batch 0 of the DataLoader"),
        (DataLoader(TensorDataset(X[:0], Y[:0])), "DataLoader"),
    ],
)
def test_batches_that_are_no_pairs_of_examples_and_labels_are_rejected(batches: Any, named: str) -> None:
    class Given:
        def __iter__(self) -> Iterator[object]:
            return iter(batches)

    with pytest.raises(InputError, match=named):
        read(Given() if isinstance(batches, list) else batches)


class Shrinking:
    """A batch fewer, or with `labels` other labels, in every pass."""

    def __init__(self, *, labels: bool) -> None:
        self.labels, self.passes = labels, 0

    def __iter__(self) -> Iterator[Batch]:
        self.passes += 1
        if self.labels:
            yield X, Y + self.passes
        else:
            yield from zip(X.split(10)[: 10 - self.passes], Y.split(10)[: 10 - self.passes], strict=True)


@pytest.mark.parametrize(
    ("source", "named"),
    [
        (Shrinking(labels=False), r"Shrinking .*80 .*90"),
        (Shrinking(labels=True), "batch 0 .*label 4"),
        (iter([(X, Y)]), "list_iterator .*0 .*90"),
    ],
)
def test_a_source_that_changes_between_passes_is_rejected(source: Any, named: str) -> None:
    rows = read(source)
    with pytest.raises(InputError, match=named):
        list(rows.in_order())


def test_quantile_features_look_at_as_many_rows_however_many_come_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = torch.rand(300, 3, generator=seeded(0)), torch.arange(300) % 2
    monkeypatch.setattr(quantiles, "MOST_ROWS", 200)
    found = []
    for at_once in (300, 70):
        features = quantiles.Quantiles(width=16)
        features.fit(zip(torch.split(x, at_once), torch.split(y, at_once), strict=True), 300, seeded(1))
        found.append(features.encoding.state_dict())
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])


# What a learner makes of them


def learned(*form: Any, settings: Settings = QUICK, seed: int = 1, callbacks: tuple[Checkpoint, ...] = ()) -> Learner:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    learner = Learner(net, settings, seed=seed, device="cpu")
    info = learner.learn(*form, task="a", callbacks=callbacks)
    assert (info.classes, info.examples) == ((5, 6, 7), 90)
    return learner


def probabilities(learner: Learner) -> Tensor:
    return learner.predict(X).probabilities


@pytest.mark.parametrize(
    "form",
    [
        (file_of(X), Y + 5),
        (TensorDataset(X, Y + 5),),
        (Items(*((x.numpy(), int(y) + 5) for x, y in zip(X, Y, strict=True))),),
    ],
    ids=["file", "TensorDataset", "items"],
)
def test_a_learner_comes_to_the_same_bits_as_from_memory(form: tuple[Any, ...]) -> None:
    settings = QUICK.replace(validation_fraction=0.1)
    assert torch.equal(
        probabilities(learned(X, Y + 5, settings=settings)), probabilities(learned(*form, settings=settings))
    )


@every_source
def test_what_gives_batches_anew_is_learned_to_the_same_bits_for_the_same_seed(source: Any) -> None:
    with_labels = [(x, torch.as_tensor(y) + 5) for x, y in source] if isinstance(source, list | Batched) else source
    rows = rows_of(with_labels, None, Categorical(), CPU, None, None, None)
    assert rows.classes == ((5, 6, 7) if with_labels is not source else (0, 1, 2))
    one, again = (Learner(nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 3)), QUICK, device="cpu") for _ in range(2))
    again.method.model.load_state_dict(one.method.model.state_dict())
    for learner in (one, again):
        learner.learn(with_labels)
    assert torch.equal(probabilities(one), probabilities(again))


def test_batches_of_ones_own_are_learned_as_they_come() -> None:
    steps: list[tuple[int, ...]] = []

    class Counting(Batched):
        def __iter__(self) -> Iterator[Batch]:
            for x, y in super().__iter__():
                steps.append(tuple(x.shape))
                yield x, y + 5

    learned(Counting(), settings=QUICK.replace(batch_size=3))
    assert set(steps) == {(20, 6), (10, 6)}


def test_another_seed_draws_other_transforms() -> None:
    one, again, other = (probabilities(learned(_Labelled(), seed=seed)) for seed in (1, 1, 2))
    assert torch.equal(one, again)
    assert not torch.equal(one, other)


class _Labelled(Moved):
    def __getitem__(self, row: int) -> tuple[Tensor, int]:
        x, y = super().__getitem__(row)
        return x, y + 5


@pytest.mark.parametrize("after", [1, 7, 17])
def test_broken_off_and_resumed_comes_to_the_same_bits(after: int, tmp_path: Path) -> None:
    steps = iter(range(1000))
    stop = Checkpoint(tmp_path / "m", every=0, stop=lambda: next(steps) >= after)
    stop.step_interval = 0.0
    with pytest.raises(KeyboardInterrupt):
        learned(file_of(X), Y + 5, callbacks=(stop,))
    with pytest.raises(InputError, match="x or y"):
        learned(file_of(X + 1), Y + 5, callbacks=(Checkpoint(tmp_path / "m", resume=True),))
    resumed = learned(file_of(X), Y + 5, callbacks=(Checkpoint(tmp_path / "m", resume=True),))
    assert torch.equal(probabilities(learned(X, Y + 5)), probabilities(resumed))


def test_a_learner_takes_a_table_of_numbers_by_its_path(tmp_path: Path) -> None:
    table = np.concatenate([X.numpy(), Y.numpy()[:, None] + 5], 1)
    header = ",".join([*"abcdef", "label"])
    np.savetxt(tmp_path / "t.csv", table, delimiter=",", header=header, comments="", fmt="%.9g")
    assert torch.equal(probabilities(learned(X, Y + 5)), probabilities(learned(str(tmp_path / "t.csv"))))
    (tmp_path / "u.csv").write_text("a,b,label\n1,2,cat\n3,4,dog\n")
    with pytest.raises(InputError, match=r"u\.csv .*'dog'"):
        learned(tmp_path / "u.csv")
