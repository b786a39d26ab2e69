"""Rows in a scratch file are learned as the same rows in memory are, to the bit, also when broken off."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from ibpwf import Learner, Settings
from ibpwf.errors import InputError
from ibpwf.storage.scratch import ScratchFile
from ibpwf.training.checkpoint import Checkpoint
from ibpwf.training.rows import IndexedRows, TensorRows
from ibpwf.training.scratch_rows import ScratchExamples, ScratchRows

CPU = torch.device("cpu")
X, Y = torch.randn(90, 6, generator=torch.Generator().manual_seed(0)), torch.arange(90) % 3
QUICK = Settings(alpha=4.0, epochs=3, finetune_epochs=2, batch_size=16, learning_rate=0.01)


def file_of(x: Tensor) -> ScratchFile:
    file = ScratchFile(tuple(x.shape[1:]))
    file.append(x.numpy())
    return file


def both() -> tuple[TensorRows, ScratchRows]:
    return TensorRows(X, Y), ScratchRows(file_of(X), Y.int(), CPU)


def flat(batches: object) -> list[Tensor]:
    return [tensor for pair in batches for tensor in pair]  # type: ignore[attr-defined]


def same(left: object, right: object) -> bool:
    one, other = flat(left), flat(right)
    pairs = zip(one, other, strict=True)
    return all(a.dtype == b.dtype and torch.equal(a, b) for a, b in pairs)


def random(seed: int = 3) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_every_pass_is_that_of_tensors() -> None:
    memory, stored = both()
    assert same(memory.epoch(16, random()), stored.epoch(16, random()))
    assert same(memory.in_order(20), stored.in_order(20))
    assert same([memory.tensors()], [stored.tensors()])
    assert memory.steps(16) == stored.steps(16)
    assert torch.equal(memory.class_weights(), stored.class_weights())


def test_parts_set_apart_are_those_of_tensors_and_can_be_parted_again() -> None:
    def parts(rows: IndexedRows) -> list[IndexedRows]:
        first, second = rows.apart(0.3, 1000, random()) or ()
        return [first, second, *(first.apart(0.2, 1000, random(4)) or ())]  # type: ignore[union-attr, list-item]

    for one, other in zip(*map(parts, both()), strict=True):
        assert same(one.in_order(7), other.in_order(7))  # type: ignore[attr-defined]
        assert same(one.epoch(8, random(5)), other.epoch(8, random(5)))  # type: ignore[attr-defined]


def test_weights_draw_the_rows_that_they_draw_of_tensors() -> None:
    weights = torch.rand(90, generator=random(), dtype=torch.float64)
    memory, stored = (rows.with_weights(weights) for rows in both())
    assert same(memory.epoch(16, random()), stored.epoch(16, random()))


def test_a_sample_of_many_rows_comes_from_all_over_and_is_the_same_for_the_same_seed() -> None:
    rows = ScratchRows(file_of(torch.arange(20_000.0).view(-1, 1)), torch.zeros(20_000, dtype=torch.int32), CPU)
    one, again, other = (torch.cat([x for x, _ in rows.sample(5_000, random(seed))]) for seed in (1, 1, 2))
    assert torch.equal(one, again)
    assert not torch.equal(one, other)
    assert len(torch.unique(one)) == 5_000
    assert abs(float(one.mean()) - 10_000) < 300


def learned(*given: object, callbacks: tuple[Checkpoint, ...] = ()) -> Learner:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    learner = Learner(net, QUICK.replace(held_out=0.1), seed=1, device="cpu")
    learner.learn(*given, task="a", callbacks=callbacks)  # type: ignore[arg-type]
    return learner


def test_a_learner_comes_to_the_same_bits_as_from_memory() -> None:
    memory, stored = learned(X, Y + 4), learned(ScratchExamples(file_of(X), Y + 4))
    assert stored.tasks == memory.tasks
    assert torch.equal(memory.predict(X).probabilities, stored.predict(X).probabilities)


@pytest.mark.parametrize("after", [1, 7, 17])
def test_broken_off_and_resumed_comes_to_the_same_bits(after: int, tmp_path: Path) -> None:
    whole, steps = learned(X, Y), iter(range(1000))
    stop = Checkpoint(tmp_path / "m", every=0, stop=lambda: next(steps) >= after)
    stop.step_interval = 0.0
    with pytest.raises(KeyboardInterrupt):
        learned(ScratchExamples(file_of(X), Y), callbacks=(stop,))
    resumed = learned(ScratchExamples(file_of(X), Y), callbacks=(Checkpoint(tmp_path / "m", resume=True),))
    assert torch.equal(whole.predict(X).probabilities, resumed.predict(X).probabilities)


def test_a_checkpoint_of_other_rows_is_refused(tmp_path: Path) -> None:
    stop = Checkpoint(tmp_path / "m", every=0, stop=lambda: True)
    with pytest.raises(KeyboardInterrupt):
        learned(ScratchExamples(file_of(X), Y), callbacks=(stop,))
    with pytest.raises(InputError, match="begun with other data"):
        learned(ScratchExamples(file_of(X + 1), Y), callbacks=(Checkpoint(tmp_path / "m", resume=True),))


def test_a_learner_takes_a_table_of_numbers_by_its_path(tmp_path: Path) -> None:
    table = np.concatenate([X.numpy(), Y.numpy()[:, None]], 1)
    header = ",".join([*"abcdef", "label"])
    np.savetxt(tmp_path / "t.csv", table, delimiter=",", header=header, comments="", fmt="%.9g")
    stored = learned(str(tmp_path / "t.csv"))
    assert torch.equal(learned(X, Y).predict(X).probabilities, stored.predict(X).probabilities)
    (tmp_path / "u.csv").write_text("a,b,label\n1,2,cat\n3,4,dog\n")
    with pytest.raises(InputError, match=r"u\.csv has the label 'dog', and a Learner takes whole numbers"):
        learned(tmp_path / "u.csv")
