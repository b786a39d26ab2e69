"""Data sets as tensors: the right pixels in the right places, read once a process."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_set import CONTENT, NAME, Shelf

from ibpwf.errors import InputError
from ibpwf.lab.data import data_set_names, load
from ibpwf.lab.data.sets import ArrayDataset, forget


def test_loading_fetches_and_lays_the_bytes_out_as_images(tiny) -> None:
    tiny(Shelf())
    data = load(NAME)
    assert data.train_x.shape == (20, 1, 4, 4)
    assert data.train_x.dtype == data.train_y.dtype == torch.uint8
    body = CONTENT["train-images-idx3-ubyte"][16:]
    for n, y, x in [(0, 0, 0), (3, 1, 2), (19, 3, 3)]:
        assert int(data.train_x[n, 0, y, x]) == body[16 * n + 4 * y + x]
    assert data.test_y.tolist() == list(CONTENT["t10k-labels-idx1-ubyte"][8:])


def test_a_set_is_read_once_a_process(tiny, root: Path) -> None:
    tiny(Shelf())
    first = load(NAME)
    for path in (root / NAME).iterdir():
        path.unlink()
    assert load(NAME) is first
    forget()
    assert load(NAME) is not first


def test_different_folders_are_different_copies(tiny, tmp_path: Path) -> None:
    shelf = Shelf()
    tiny(shelf)
    assert load(NAME, data_dir=tmp_path / "a") is not load(NAME, data_dir=str(tmp_path / "b"))
    assert shelf.asked == 2


def test_digits_are_cut_without_overlap_and_by_class() -> None:
    from sklearn.datasets import load_digits

    data = load("digits")
    truth = load_digits()
    assert data.train_x.shape == (1438, 1, 8, 8)
    assert int(data.train_x.max()) == data.levels == 16
    together = torch.cat([data.train_x, data.test_x]).flatten(1).numpy()
    labels = torch.cat([data.train_y, data.test_y]).numpy()

    def ordered(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        rows = np.column_stack([x, y]).astype(int)
        return rows[np.lexsort(rows.T)]

    np.testing.assert_array_equal(ordered(together, labels), ordered(truth.data, truth.target))
    for label in range(10):
        share = int((data.test_y == label).sum()) / int((truth.target == label).sum())
        assert abs(share - 0.2) < 0.01


def check_constants(data: ArrayDataset) -> None:
    pixels = data.train_x.to(torch.float64) / data.levels
    assert pixels.mean((0, 2, 3)).tolist() == pytest.approx(data.mean, abs=1e-4)
    assert pixels.std((0, 2, 3)).tolist() == pytest.approx(data.std, abs=1e-4)


def test_the_constants_of_digits_are_those_of_its_training_images() -> None:
    check_constants(load("digits"))


@pytest.mark.mnist
def test_mnist_is_mnist() -> None:
    data = load("mnist")
    assert data.train_x.shape == (60_000, 1, 28, 28)
    # Known from the literature: class sizes, the first labels, the sum of all pixels by the mean.
    assert torch.bincount(data.train_y.long()).tolist() == [
        5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949,
    ]  # fmt: skip
    assert torch.bincount(data.test_y.long()).tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    assert data.train_y[:10].tolist() == [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]
    check_constants(data)


def test_an_unknown_name_is_refused_with_the_nearest() -> None:
    with pytest.raises(InputError, match="Did you mean 'mnist'"):
        load("minst")
    assert data_set_names() == ["mnist", "fashion-mnist", "cifar10", "digits"]
