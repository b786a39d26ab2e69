"""Files read into a scratch file hold what they hold when read whole, and are refused in the same words."""

from __future__ import annotations

import datetime
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import bad_tables
import numpy as np
import pytest
from sample_files import IRIS, idx_pair, two_classes

from ibpwf.data import ReadOptions, read_batches, read_examples
from ibpwf.data.stored import is_large, read_stored
from ibpwf.errors import DataError, InputError

GAPS = "a,on,colour,y\n1,true,red,u\n,false,blue,v\n3,,red,u\nNA,true, ,v\n"
MIXED = "n,flag,word,code,y\n" + "".join(
    f"{row / 7},{str(row % 2 == 0).lower()},{'abc'[row % 3]},{row % 4},{'uvw'[row % 3]}\n" for row in range(300)
)


@pytest.fixture(autouse=True)
def few_rows_at_once(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """So that every file is read in several parts."""
    monkeypatch.setattr("ibpwf.data.scanning.ROWS_AT_ONCE", 64)
    monkeypatch.setattr("ibpwf.data.stored.ROWS_AT_ONCE", 64)
    monkeypatch.setattr("ibpwf.data.csv_file._BLOCK", 256)
    return


def write(path: Path, content: str) -> Path:
    path.write_text(content)
    return path


def frame(path: Path, **columns: Any) -> Path:
    pyarrow, files = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    files.write_table(pyarrow.table(columns), path, row_group_size=40)
    return path


def check_same(given: Any, **options: Any) -> None:
    """What is read both ways is the same, to the bit."""
    whole, stored = read_examples(given, **options), read_stored(given, ReadOptions(**options))
    assert np.array_equal(stored.in_memory().x, whole.x)
    assert list(stored.y or ()) == whole.y
    assert stored.layout == whole.layout
    assert stored.digest() == whole.digest()
    assert stored.classes == whole.classes


@pytest.mark.parametrize(
    ("content", "options"),
    [(IRIS, {"label": "species"}), (GAPS, {"missing": "mean"}), (MIXED, {}), (MIXED, {"categories": ["code"]})],
    ids=["words", "gaps", "all kinds", "categories that look like numbers"],
)
def test_a_table_of_text_is_the_same_as_read_whole(content: str, options: dict[str, Any], tmp_path: Path) -> None:
    check_same(write(tmp_path / "a.csv", content), **options)


@pytest.mark.parametrize("words", [50, 2_000])
def test_dates_are_the_same_as_read_whole(words: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ibpwf.data.scanning.MOST_WORDS", words)
    first = datetime.datetime(2026, 1, 1)
    rows = (f"{first + row * datetime.timedelta(hours=31)},{row},{'uv'[row % 2]}" for row in range(300))
    check_same(write(tmp_path / "a.csv", "when,n,y\n" + "\n".join(rows) + "\n"))


def test_a_parquet_table_is_the_same_as_read_whole(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    columns = {
        "n": [None if row % 50 == 7 else float(row) for row in range(200)],
        "whole": rng.integers(0, 9, 200),
        "on": rng.integers(0, 2, 200).astype(bool),
        "word": [f"w{row % 5}" for row in range(200)],
        "label": [f"c{row % 3}" for row in range(200)],
    }
    check_same(frame(tmp_path / "a.parquet", **columns), missing="mean")


def test_images_and_arrays_are_the_same_as_read_whole(tmp_path: Path) -> None:
    check_same(two_classes(tmp_path / "images"))
    check_same(idx_pair(tmp_path / "idx"))
    check_same(tmp_path / "idx")
    assert not is_large(tmp_path / "idx", ReadOptions())
    np.savez(tmp_path / "a.npz", x=np.random.default_rng(0).normal(size=(20, 3)), y=np.arange(20) % 2)
    check_same(tmp_path / "a.npz")


def test_a_later_file_is_read_like_the_first(tmp_path: Path) -> None:
    layout = read_examples(write(tmp_path / "a.csv", GAPS), missing="mean").layout
    check_same(write(tmp_path / "b.csv", "on,a,colour,y\nfalse,7,red,w\n,NA,blue,u\n"), like=layout, with_labels=True)


@pytest.mark.parametrize("name", bad_tables.BAD)
def test_a_bad_table_is_refused_in_the_words_of_one_read_whole(name: str, tmp_path: Path) -> None:
    make, options, words = bad_tables.BAD[name]
    with pytest.raises((DataError, InputError), match=words):
        read_stored(make(tmp_path), ReadOptions(**options)).check_learnable()


def test_a_word_far_down_a_column_of_numbers_is_named_by_its_line(tmp_path: Path) -> None:
    rows = [f"{row + 0.5},u\n" for row in range(5_000)]
    rows[4_200] = "many,u\n"
    with pytest.raises(DataError, match=r"line 4202, column 'n': 'many' is not a number"):
        read_stored(write(tmp_path / "a.csv", "n,y\n" + "".join(rows)))


def test_labels_that_a_slip_tells_apart_are_refused_across_parts(tmp_path: Path) -> None:
    rows = ["1,cat\n"] * 320 + ["2,Cat\n"]  # the first row of a part
    with pytest.raises(DataError, match=r"line 322: class 'Cat' and class 'cat' \(.*line 2\) differ only by case"):
        read_stored(write(tmp_path / "a.csv", "n,y\n" + "".join(rows)))


def test_a_chosen_part_is_that_of_examples_in_memory(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", MIXED)
    whole, stored, rows = read_examples(path), read_stored(path), np.array([5, 6, 7, 100, 299])
    part, again = stored.rows(rows), stored.rows(np.arange(100, 300)).rows(np.array([0, 199]))
    assert np.array_equal(part.in_memory().x, whole.x[rows])
    assert part.digest() == whole.rows(rows).digest()
    assert np.array_equal(again.in_memory().x, whole.x[[100, 299]])
    assert len(stored.sample(50)) == 50
    assert np.array_equal(stored.sample(50).in_memory().x, stored.sample(50).in_memory().x)


# Shards


def shards(folder: Path, suffix: str = ".csv", content: str = MIXED, each: int = 110) -> Path:
    header, *rows = content.splitlines(keepends=True)
    folder.mkdir()
    for number, start in enumerate(range(0, len(rows), each)):
        write(folder / f"part-{number}{suffix}", header + "".join(rows[start : start + each]))
    return folder


def test_shards_are_one_table_by_folder_pattern_and_list(tmp_path: Path) -> None:
    whole = read_examples(write(tmp_path / "a.csv", MIXED))
    folder = shards(tmp_path / "shards")
    (folder / "_SUCCESS").touch()
    layout = whole.layout
    for given in (folder, str(folder / "part-*.csv"), sorted(folder.glob("*.csv"))):
        for read in (read_stored(given).in_memory(), read_examples(given)):
            assert np.array_equal(read.x, whole.x)
            assert read.y == whole.y
            assert read.layout == layout
        batches = list(read_batches(given, 50, like=layout, with_labels=True))
        assert np.array_equal(np.concatenate([batch.x for batch in batches]), whole.x)


def test_columns_of_shards_may_come_in_another_order(tmp_path: Path) -> None:
    folder = shards(tmp_path / "s", content="a,b,y\n1,2,u\n3,4,v\n", each=2)
    write(folder / "part-1.csv", "y,b,a\nw,6,5\n")
    found = read_stored(folder)
    assert found.in_memory().x.tolist() == [[1, 2], [3, 4], [5, 6]]
    assert list(found.y or ()) == ["u", "v", "w"]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        (
            "part-9.csv",
            "n,y\n1,u\n",
            r"part-9\.csv lacks 'flag', 'word', 'code', unlike .*part-0\.csv, though both are",
        ),
        (
            "part-9.csv",
            "n,flag,word,code,extra,y\n1,true,a,1,2,u\n",
            r"part-9\.csv has 'extra', unlike .*part-0\.csv",
        ),
        ("part-9.csv", "n,flag,word,code,y\n", r"part-9\.csv has a header and no rows"),
        ("part-9.csv", "", r"part-9\.csv is empty"),
        (
            "part-9.csv",
            "n,flag,word,code,y\n1,true,zebra crossing,1,\n",
            r"part-9\.csv, line 2.* the label is missing",
        ),
        ("part-9.parquet", "PAR1", r"part-0\.csv and .*part-9\.parquet are shards in different formats"),
        ("notes.txt", "mine", r"holds tables such as part-0\.csv and, beside them, notes\.txt"),
    ],
    ids=["columns missing", "columns too many", "no rows", "empty", "no label", "another format", "other files"],
)
def test_a_shard_that_does_not_fit_is_named(name: str, content: str, words: str, tmp_path: Path) -> None:
    folder = shards(tmp_path / "s")
    write(folder / name, content)
    with pytest.raises((DataError, InputError), match=words):
        read_stored(folder)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("gone-*.csv", r"no file is called like .*gone-\*\.csv"),
        (["a.csv", "b.png"], r"b\.png is no table by its name; several files are shards of one table"),
        ([], "path|list of paths is empty"),
    ],
)
def test_a_strange_choice_of_shards_is_refused(given: Any, words: str, tmp_path: Path) -> None:
    for name in ("a.csv", "b.png"):
        write(tmp_path / name, IRIS)
    paths = [tmp_path / one for one in given] if isinstance(given, list) else tmp_path / given
    with pytest.raises((DataError, InputError), match=words):
        read_stored(paths)


# How large


def test_what_is_large_is_told_without_reading_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = [
        write(tmp_path / "a.csv", MIXED),
        frame(tmp_path / "a.parquet", n=np.arange(300.0), label=np.arange(300) % 2),
        two_classes(tmp_path / "images"),
        shards(tmp_path / "s"),
    ]
    options = ReadOptions(with_labels=True)
    assert not any(is_large(one, options) for one in given)
    monkeypatch.setattr("ibpwf.data.stored.LARGE", 900)
    assert all(is_large(one, options) for one in given)
    monkeypatch.setattr("ibpwf.data.stored.LARGE", 2_400)
    assert not is_large(given[1], options)  # 300 rows of 2 columns, 4 bytes each
    assert is_large(given[0], options)


def test_reading_a_table_needs_little_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("scanning", "stored"):
        monkeypatch.setattr(f"ibpwf.data.{module}.ROWS_AT_ONCE", 2_000)
    rows = 60_000
    columns = {f"f{at}": np.random.default_rng(at).normal(size=rows).astype(np.float32) for at in range(20)}
    path = frame(tmp_path / "a.parquet", **columns, label=np.arange(rows) % 3)
    del columns
    tracemalloc.start()
    try:
        stored = read_stored(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert stored.x.shape == (rows, 20)
    assert peak < 0.6 * 4 * 20 * rows  # the numbers alone
