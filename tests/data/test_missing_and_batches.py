"""Missing values that take the first file's means, and files read some rows at a time."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from sample_files import idx_pair, picture, pictures, png

from ibpwf.data import Layout, read_batches, read_examples
from ibpwf.errors import DataError, InputError

GAPS = "a,on,colour,y\n1,true,red,u\n,false,blue,v\n3,,red,u\nNA,true, ,v\n"


def write(folder: Path, content: str, name: str = "a.csv") -> Path:
    (folder / name).write_text(content)
    return folder / name


# Missing values


def test_a_missing_value_takes_the_mean_of_its_feature(tmp_path: Path) -> None:
    examples = read_examples(write(tmp_path, GAPS), missing="mean")
    red, on = 2 / 3, 2 / 3
    expected = [[1, 1, 0, 1], [2, 0, 1, 0], [3, on, 0, 1], [2, 1, 1 - red, red]]
    np.testing.assert_allclose(examples.x, expected, rtol=1e-6)
    assert examples.layout.feature_names == ("a", "on", "colour=blue", "colour=red")


def test_later_files_take_the_means_of_the_first(tmp_path: Path) -> None:
    layout = Layout.from_json(read_examples(write(tmp_path, GAPS), missing="mean").layout.to_json())
    later = read_examples(write(tmp_path, "a,on,colour\nnan,,NULL\n100,true,red\n"), like=layout)
    np.testing.assert_allclose(later.x, [[2, 2 / 3, 1 / 3, 2 / 3], [100, 1, 0, 1]], rtol=1e-6)
    with pytest.raises(DataError, match=r"line 2, column 'a': 'nan' is not a finite number"):
        read_examples(tmp_path / "a.csv", like=layout, missing="error")


def test_a_model_of_whole_files_can_be_asked_to_fill_in_later_ones(tmp_path: Path) -> None:
    layout = read_examples(write(tmp_path, "a,b,y\n1,10,u\n3,20,v\n")).layout
    path = write(tmp_path, "b,a\n,5\n")
    with pytest.raises(DataError, match=r"line 2, column 'b': the cell is blank.* or give missing=.mean."):
        read_examples(path, like=layout)
    assert read_examples(path, like=layout, missing="mean").x.tolist() == [[5, 15]]


def test_parquet_files_are_filled_in_alike(tmp_path: Path) -> None:
    pyarrow, files = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    columns = {"n": [1, None, 3], "f": [None, 0.5, float("nan")], "on": [True, False, None], "y": ["u", "v", "u"]}
    files.write_table(pyarrow.table(columns), tmp_path / "a.parquet")
    examples = read_examples(tmp_path / "a.parquet", missing="mean")
    np.testing.assert_allclose(examples.x, [[1, 0.5, 1], [2, 0.5, 0], [3, 0.5, 0.5]])
    with pytest.raises(DataError, match=r"row 2, column 'n': the value is missing; .* missing=.mean."):
        read_examples(tmp_path / "a.parquet")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("a,b,y\n,1,u\n,2,v\n", r"a\.csv: column 'a' has no value at all; name it in the argument ignore"),
        ("a,y\ninf,u\n2,v\n", "'inf' is not a finite number; fill in the value or remove the row"),
        ("a,y\n1,u\nblau,v\n3,u\n", "'blau' is not a number"),
        ("a,y\n1,u\n2,\n", "column 'y': the label is missing"),
    ],
)
def test_what_cannot_be_filled_in_is_still_refused(content: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=words):
        read_examples(write(tmp_path, content), missing="mean")


def test_missing_is_for_tables(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"missing is for tables, and .* holds none"):
        read_examples(idx_pair(tmp_path), missing="mean")
    with pytest.raises(InputError, match="missing is 'median'; give 'error' or 'mean'"):
        read_examples(write(tmp_path, GAPS), missing="median")  # type: ignore[arg-type]


# Some rows at a time


def table(folder: Path) -> Path:
    rng = np.random.default_rng(0)
    rows = [
        f"{rng.normal():.4f},{rng.integers(3)},{'red' if rng.random() > 0.5 else 'blue'},k{n % 3}"
        for n in range(5000)
    ]
    return write(folder, "a,b,colour,y\n" + "\n".join(rows) + "\n")


def parquet(folder: Path) -> Path:
    pyarrow, files = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    columns = {"a": np.arange(700.0), "b": ["red", "blue"] * 350, "y": np.arange(700) % 2}
    files.write_table(pyarrow.table(columns), folder / "a.parquet")
    return folder / "a.parquet"


def images(folder: Path) -> Path:
    made = [png(picture(1, seed=seed)) for seed in range(30)]
    return pictures(folder / "photos", cat=made[:20], dog=made[20:])


def npz(folder: Path) -> Path:
    np.savez(folder / "a.npz", x=np.random.default_rng(0).normal(size=(50, 4)), y=np.arange(50) % 2)
    return folder / "a.npz"


@pytest.mark.parametrize("make", [table, parquet, images, npz, idx_pair])
@pytest.mark.parametrize("with_labels", [None, False])
def test_batches_hold_what_the_whole_file_holds(make, with_labels: bool | None, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    path = make(tmp_path)
    layout = read_examples(path).layout
    whole = read_examples(path, like=layout, with_labels=with_labels)
    batches = list(read_batches(path, 7, like=layout, with_labels=with_labels))
    assert len(batches) > 1 or make is idx_pair
    np.testing.assert_array_equal(np.concatenate([batch.x for batch in batches]), whole.x)
    if with_labels is None:
        assert [label for batch in batches for label in batch.y or ()] == whole.y
    else:
        assert all(batch.y is None for batch in batches)
    origins = [str(batch.where(row)) for batch in batches for row in range(len(batch))]
    assert origins == [str(whole.where(row)) for row in range(len(whole))]


def test_a_fault_far_down_is_named_by_its_line(tmp_path: Path) -> None:
    path = table(tmp_path)
    layout = read_examples(path).layout
    with path.open("a") as file:
        file.write("1,2,green,k0\n")
    batches = read_batches(path, 1000, like=layout)
    assert len(next(batches)) == 1000
    with pytest.raises(DataError, match=r"a\.csv, line 5002, column 'colour': 'green' is not among"):
        list(batches)
    with pytest.raises(DataError, match=r"none\.csv.*there is no such file"):
        list(read_batches(tmp_path / "none.csv", 10, like=layout))
