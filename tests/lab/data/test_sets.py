"""Data sets as tensors: the right pixels in the right places, read once a process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_set import CONTENT, NAME, Shelf

from ibpwf.errors import InputError
from ibpwf.lab.data import load, sets
from ibpwf.lab.data.fetching import fetch
from ibpwf.lab.data.sets import ArrayDataset


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
    sets._loaded.clear()
    assert load(NAME) is not first


def test_digits_are_cut_without_overlap_and_by_class() -> None:
    from sklearn.datasets import load_digits

    data = load("digits")
    truth = load_digits()
    assert data.train_x.shape == (1438, 1, 8, 8)
    assert int(data.train_x.max()) == data.entry.levels == 16
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
    pixels = data.train_x.to(torch.float64) / data.entry.levels
    assert pixels.mean((0, 2, 3)).tolist() == pytest.approx(data.entry.mean, abs=1e-4)
    assert pixels.std((0, 2, 3)).tolist() == pytest.approx(data.entry.std, abs=1e-4)


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


def test_what_is_cached_and_the_digits_need_none_of_the_extras(tiny, tmp_path: Path) -> None:
    """On a machine without pooch, platformdirs and Pillow."""
    made = tiny(Shelf())
    folder = fetch(NAME, data_dir=tmp_path / "cache")
    script = f"""
import os, sys
for name in ("pooch", "requests", "platformdirs", "PIL"):
    sys.modules[name] = None
from ibpwf.errors import DataError
from ibpwf.lab.data import catalog, fetching, load, scenario
os.environ.pop("IBPWF_DATA", None)
print(len(scenario("split-digits")), fetching.is_cached("mnist"))
try:
    load("mnist")
except DataError as error:
    print(error)
from ibpwf.downloads.files import DataFile
files = tuple(DataFile(*parts) for parts in {[(file.name, file.digest, file.size) for file in made.files]!r})
catalog.DATA_SETS["tiny"] = catalog.Entry("tiny", "Tiny", (1, 4, 4), 20, 6, ("a", "b"), (0.5,), (0.25,), 255, files)
os.environ["IBPWF_DATA"] = {str(folder.parent)!r}
print(len(load("tiny").train_y))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    first, refused, last = done.stdout.splitlines()
    assert first == "5 False"
    assert "set IBPWF_DATA to one, or run pip install 'ibpwf[lab]'" in refused
    assert last == "20"
