"""Tables: CSV, TSV and Parquet become the numbers that are in them, whatever way they are written."""

from __future__ import annotations

import csv
import io
import json
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sample_files import IRIS

from ibpwf.data import Column, Layout, ReadOptions, read_batches, read_examples
from ibpwf.data.csv_file import CsvFile
from ibpwf.data.writing import rows_file
from ibpwf.errors import DataError, InputError

IRIS_X = [[5.1, 3.5, 0, 1], [6.2, 2.9, 1, 0], [4.9, 3.0, 0, 1]]
IRIS_Y = ["setosa", "virginica", "setosa"]


def write(folder: Path, content: str | bytes, name: str = "a.csv") -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


WRITTEN = {
    "plain": IRIS,
    "with a byte order mark": "\ufeff" + IRIS,
    "with CRLF": IRIS.replace("\n", "\r\n"),
    "without a last line end": IRIS.rstrip("\n"),
    "with quotes": '"length","width","colour","species"\n' + IRIS.partition("\n")[2].replace("red", '"red"'),
    "with blanks": IRIS.replace(",", " ,  "),
    "with quotes after blanks": IRIS.replace("red", ' "red"'),
    "with empty lines": IRIS.replace("\n", "\n\n") + "\n ,,,\n".replace(" ", ""),
    "with semicolons": IRIS.replace(",", ";"),
    "with scientific notation": IRIS.replace("5.1", "51e-1").replace("3.0", "+.3E1"),
}


@pytest.mark.parametrize("way", WRITTEN)
def test_a_table_is_the_same_however_it_is_written(way: str, tmp_path: Path) -> None:
    examples = read_examples(write(tmp_path, WRITTEN[way]), label="species")
    assert examples.x.dtype == np.float32
    np.testing.assert_array_equal(examples.x, np.float32(IRIS_X))
    assert examples.y == IRIS_Y
    assert examples.feature_names == ("length", "width", "colour=blue", "colour=red")
    assert examples.classes == ("setosa", "virginica")


def test_tabs_part_the_fields_of_a_tsv(tmp_path: Path) -> None:
    path = write(tmp_path, IRIS.replace(",", "\t").replace("red", "dark, red"), "a.TSV")
    assert read_examples(path, label="species").feature_names == (
        "length",
        "width",
        "colour=blue",
        "colour=dark, red",
    )


def test_every_row_knows_its_line(tmp_path: Path) -> None:
    path = write(tmp_path, 'a,note,y\n\n1,"two\nlines",u\n\n2,one,v\n')
    examples = read_examples(path)
    assert [str(examples.where(row)) for row in range(2)] == [f"{path}, line 3", f"{path}, line 6"]
    assert examples.where(1).number == 6


def test_the_reader_that_takes_over_goes_on_where_the_quick_one_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ibpwf.data.csv_file._BLOCK", 1 << 12)
    rows = [f"{number},u" for number in range(5000)]
    rows[3000] += "\n   "  # a line of blanks, which pyarrow takes for a row of one field
    examples = read_examples(write(tmp_path, "a,y\n" + "\n".join(rows)))
    np.testing.assert_array_equal(examples.x[:, 0], np.arange(5000))
    assert [examples.where(row).number for row in (0, 3000, 3001)] == [2, 3002, 3004]


WELL_QUOTED = st.lists(st.tuples(*[st.text('a", \n;', max_size=4)] * 2), min_size=1, max_size=8)


@settings(max_examples=300, deadline=None)
@given(text=st.one_of(st.text('a", \n', max_size=40), WELL_QUOTED), block=st.integers(1, 20))
def test_fields_are_parted_as_the_strict_csv_reader_does(
    text: str | list[tuple[str, str]], block: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    if not isinstance(text, str):
        rows = io.StringIO()
        csv.writer(rows, lineterminator="\n").writerows(text)
        text = rows.getvalue()
    text = "p,q\n1,1\n" + text
    try:
        truth = list(csv.reader(io.StringIO(text, newline=""), skipinitialspace=True, strict=True))[1:]
    except csv.Error:
        truth = []
    truth = [row for row in truth if any(row) and not (len(row) == 1 and not row[0].strip())]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ibpwf.data.csv_file._BLOCK", block)
        file = CsvFile(write(tmp_path_factory.mktemp("table"), text))
        if not truth or any(len(row) != 2 for row in truth):
            with pytest.raises(DataError, match="line"):
                list(file.parts([0, 1]))
            return
        read = [tuple(row.values()) for part in file.parts([0, 1]) for row in part.to_pylist()]
    assert [[cell.strip() for cell in row] for row in read] == [[cell.strip() for cell in row] for row in truth]


def test_options_are_one_object_or_given_by_name(tmp_path: Path) -> None:
    path = write(tmp_path, IRIS)
    options = ReadOptions(label="species", ignore=["width"])
    assert read_examples(path, options).layout == read_examples(path, label="species", ignore=["width"]).layout
    assert read_examples(path, options, ignore=[]).layout.ignored == ()
    with pytest.raises(InputError, match=r"'lable'.*'label'"):
        read_examples(path, lable="species")
    with pytest.raises(InputError, match=r"ignore .*'width'"):
        ReadOptions(ignore="width")  # type: ignore[arg-type]
    assert all(description.endswith(".") for description in ReadOptions.described().values())


@pytest.mark.parametrize("name", ["label", "Class", "TARGET", "y"])
def test_a_column_called_so_is_the_label_wherever_it_stands(name: str, tmp_path: Path) -> None:
    examples = read_examples(write(tmp_path, f"a,{name},b\n1,u,2\n3,v,4\n"))
    assert examples.y == ["u", "v"]
    assert examples.x.tolist() == [[1, 2], [3, 4]]
    assert examples.layout.label == name


def test_labels_are_text_and_whole_numbers_have_no_point(tmp_path: Path) -> None:
    examples = read_examples(write(tmp_path, "a,y\n1, 3.0\n2,3\n3,10\n4,007\n5,1.5\n6,A\n7,a\n"))
    assert examples.y == ["3", "3", "10", "007", "1.5", "A", "a"]
    assert examples.classes == ("1.5", "3", "007", "10", "A", "a")


def test_truths_become_ones_and_zeros(tmp_path: Path) -> None:
    first = read_examples(write(tmp_path, "a,y\nTrue,u\nfalse,v\n"))
    assert first.layout.columns == (Column("a", "boolean"),)
    assert first.x.tolist() == [[1], [0]]
    later = read_examples(write(tmp_path, "a\n0\n1\nTRUE\n"), like=first.layout)
    assert later.x.tolist() == [[0], [1], [1]]


def test_extreme_but_finite_numbers_are_data(tmp_path: Path) -> None:
    examples = read_examples(write(tmp_path, "a,b,y\n1e9,-3e38,u\n0.1,1e-45,v\n1700000000,123456789.123456789,u\n"))
    expected = np.float32([[1e9, -3e38], [0.1, 1e-45], [1.7e9, 123456789.123456789]])
    np.testing.assert_array_equal(examples.x, expected)


def test_a_file_without_labels_is_there_to_be_predicted(tmp_path: Path) -> None:
    layout = read_examples(write(tmp_path, IRIS), label="species").layout
    bare = read_examples(write(tmp_path, "length,width,colour\n1,2,red\n"), like=layout)
    assert bare.y is None
    assert bare.x.tolist() == [[1, 2, 0, 1]]
    to_fill_in = read_examples(write(tmp_path, "length,width,colour,species\n1,2,red,\n"), like=layout)
    assert to_fill_in.y is None
    with_labels = read_examples(write(tmp_path, IRIS), like=layout)
    assert with_labels.y == IRIS_Y
    left_out = read_examples(write(tmp_path, IRIS), like=layout, with_labels=False)
    assert left_out.y is None
    np.testing.assert_array_equal(left_out.x, with_labels.x)


def test_columns_in_another_order_are_put_right_by_name(tmp_path: Path) -> None:
    layout = read_examples(write(tmp_path, IRIS), label="species").layout
    examples = read_examples(write(tmp_path, "species,colour,width,length\nnew,blue,2,1\n"), like=layout)
    assert examples.x.tolist() == [[1, 2, 1, 0]]
    assert examples.y == ["new"]
    assert examples.layout == layout


def test_a_header_of_numbers_is_known_by_the_earlier_file(tmp_path: Path) -> None:
    layout = read_examples(write(tmp_path, "0,1,y\n5,6,u\n7,8,v\n")).layout
    assert read_examples(write(tmp_path, "1,0\n6,5\n"), like=layout).x.tolist() == [[5, 6]]


def test_columns_can_be_left_out_and_later_files_may_have_them_or_not(tmp_path: Path) -> None:
    with_id = "id,a,y\nx-1,1,u\nx-2,2,v\n"
    layout = read_examples(write(tmp_path, with_id), ignore=["id"]).layout
    assert layout.ignored == ("id",)
    for content in (with_id, "a,y\n1,u\n2,v\n"):
        assert read_examples(write(tmp_path, content), like=layout).x.tolist() == [[1], [2]]


def test_numbers_can_be_categories(tmp_path: Path) -> None:
    content = "size,y\n38,u\nM,v\n38.0,u\n"
    with pytest.raises(DataError, match=r"column 'size'.* argument categories"):
        read_examples(write(tmp_path, content))
    first = read_examples(write(tmp_path, content), categories=["size"])
    assert first.layout.columns == (Column("size", "category", ("38", "M")),)
    later = read_examples(write(tmp_path, "size\n38\n38\n"), like=first.layout, categories=["size"])
    assert later.x.tolist() == [[1, 0], [1, 0]]
    with pytest.raises(InputError, match=r"categories .*'other'"):
        read_examples(write(tmp_path, "size\n38\n"), like=first.layout, categories=["other"])


def test_an_unknown_category_can_stand_for_none(tmp_path: Path) -> None:
    layout = read_examples(write(tmp_path, IRIS), label="species").layout
    path = write(tmp_path, IRIS.replace("blue", "green"))
    assert read_examples(path, like=layout, unknown="zeros").x[:, 2:].tolist() == [[0, 1], [0, 0], [0, 1]]


def test_kinds_are_the_same_when_the_rows_come_in_many_chunks(tmp_path: Path) -> None:
    rows = 30_000
    colors = ["red", "green", "blue"]
    lines = [f"{row},{row % 7},{colors[row % 3]},{row % 2}" for row in range(rows)]
    examples = read_examples(write(tmp_path, "\n".join(["a,b,c,y", *lines])))
    n = np.arange(rows)
    expected = np.stack([n, n % 7, n % 3 == 2, n % 3 == 1, n % 3 == 0], axis=1)
    np.testing.assert_array_equal(examples.x, expected)
    assert examples.y == [str(row % 2) for row in range(rows)]
    assert examples.where(rows - 1).number == rows + 1


@settings(max_examples=60, deadline=None)
@given(
    numbers=st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=30),
    form=st.sampled_from([repr, "{:.9e}".format, "{:+.9g}".format]),
)
def test_what_was_written_is_read_to_the_bit(
    numbers: list[float], form: object, tmp_path_factory: pytest.TempPathFactory
) -> None:
    # Nine significant digits tell every float32 from its neighbours; long whole numbers count as identifiers.
    written = [form(value) if abs(value) < 2**53 else f"{value:.9e}" for value in numbers]  # type: ignore[operator]
    path = write(tmp_path_factory.mktemp("table"), "a,y\n" + "".join(f"{text},u\n" for text in written))
    np.testing.assert_array_equal(read_examples(path).x[:, 0], np.float32(numbers))


def test_a_wide_table_is_read_as_it_was_written(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (3000, 785)) * (rng.random((3000, 785)) < 0.2)
    rows = "\n".join(",".join(map(str, row)) for row in pixels.tolist())
    path = write(tmp_path, ",".join(["label", *(f"p{n}" for n in range(784))]) + "\n" + rows)
    np.testing.assert_array_equal(read_examples(path).x, pixels[:, 1:])


def test_many_columns_take_no_longer_than_their_cells(tmp_path: Path) -> None:
    """Ten times as many take ten times as long, more or less, and not a hundred times."""

    def seconds(count: int) -> float:
        names = [f"gene{n}" for n in range(count)]
        path = write(tmp_path, ",".join([*names, "y"]) + "\n" + ",".join(["1"] * count + ["u"]) + "\n")
        start = time.process_time()
        layout = read_examples(path).layout
        assert read_examples(path, like=layout).x.shape == (1, count)
        return time.process_time() - start

    seconds(10)  # what is imported when it is first needed
    assert seconds(20_000) < 40 * seconds(2_000)


# Parquet


def test_a_parquet_file_reads_like_the_csv_file_of_the_same_table(tmp_path: Path) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    columns = {
        "n": arrow.array([1, -2, 3], arrow.int8()),
        "f": arrow.array([0.5, 1e9, -1.0], arrow.float64()),
        "t": [True, False, True],
        "c": arrow.array(["s", "m", "s"]).dictionary_encode(),
        "d": arrow.array(["1.5", "2.5", "3.5"]),
        "y": arrow.array([0.0, 1.0, 0.0]),
    }
    parquet.write_table(arrow.table(columns), tmp_path / "a.parquet")
    write(tmp_path, "n,f,t,c,d,y\n1,0.5,True,s,1.5,0\n-2,1e9,False,m,2.5,1\n3,-1,True,s,3.5,0\n")
    here, there = read_examples(tmp_path / "a.parquet"), read_examples(tmp_path / "a.csv")
    np.testing.assert_array_equal(here.x, there.x)
    assert (here.y, here.layout) == (there.y, there.layout)
    assert here.y == ["0", "1", "0"]
    assert str(here.where(2)) == f"{tmp_path / 'a.parquet'}, row 3"
    for file in ("a.parquet", "a.csv"):
        np.testing.assert_array_equal(read_examples(tmp_path / file, like=there.layout).x, there.x)


# Layouts


def test_a_layout_goes_to_json_and_back(tmp_path: Path) -> None:
    layout = read_examples(write(tmp_path, IRIS), label="species", ignore=["width"]).layout
    again = Layout.from_json(json.loads(json.dumps(layout.to_json())))
    assert again == layout
    images = Layout("images", (3, 4, 5), resize=True)
    assert Layout.from_json(json.loads(json.dumps(images.to_json()))) == images


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"kind": "music"}, "kind='music'"),
        ({"shape": [0]}, "shape="),
        ({"shape": [2]}, "shape .2,. .*3"),
        ({"columns": [{"name": "a"}]}, "column 0 .*'categories'"),
        ({"label": 3}, "label=3"),
        ({"more": 1}, "'more'"),
    ],
)
def test_a_damaged_layout_is_refused_by_field(change: dict[str, object], words: str, tmp_path: Path) -> None:
    from ibpwf.errors import StoreError

    layout = read_examples(write(tmp_path, IRIS), label="species", ignore=["width"]).layout
    with pytest.raises(StoreError, match=words):
        Layout.from_json({**layout.to_json(), **change})


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    layout = read_examples(write(tmp_path, IRIS), label="species").layout
    np.savez(tmp_path / "a.npz", x=np.zeros((2, 4)))
    with pytest.raises(InputError, match=r"a\.npz .*arrays.*tables"):
        read_examples(tmp_path / "a.npz", like=layout)


def test_a_column_can_be_left_out_of_a_later_file_and_takes_the_first_ones_mean(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text(IRIS)
    layout = read_examples(path, label="species").layout
    path.write_text("length,width,colour\n1,2,no colour at all\n")
    left_out = read_examples(path, like=layout, ignore=["colour"])
    np.testing.assert_allclose(left_out.x, [[1, 2, 1 / 3, 2 / 3]], rtol=1e-6)
    path.write_text("length,width\n1,2\n")
    np.testing.assert_array_equal(read_examples(path, like=layout, ignore=["colour"]).x, left_out.x)
    batch = next(read_batches(path, 5, like=layout, ignore=["colour"]))
    np.testing.assert_array_equal(batch.x, left_out.x)


def test_what_was_said_of_unknown_categories_holds_for_later_files(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text(IRIS)
    layout = read_examples(path, label="species", unknown="zeros").layout
    path.write_text("length,width,colour\n1,2,green\n")
    assert read_examples(path, like=Layout.from_json(layout.to_json())).x[0, 2:].tolist() == [0, 0]
    with pytest.raises(DataError, match="line 2, column 'colour': 'green'"):
        read_examples(path, like=layout, unknown="error")


def test_text_that_a_spreadsheet_would_run_is_quoted_in_answers_and_numbers_are_not(tmp_path: Path) -> None:
    labels = ["=cmd|'/c calc'!A1", "+x", "-x", "@SUM(A1)", "\tx", "-1.5", "+3", "1e-3", "plain"]
    rows = [{"label": label, "probability": -0.5} for label in labels]
    for name, mark in (("a.csv", ","), ("a.tsv", "\t")):
        with rows_file(tmp_path / name) as put:
            put(rows)
        with (tmp_path / name).open(newline="") as file:
            told = [row[0] for row in csv.reader(file, delimiter=mark)][1:]
        assert told == [*(f"'{label}" for label in labels[:5]), *labels[5:]]
    with rows_file(tmp_path / "a.jsonl") as put:
        put(rows)
    lines = (tmp_path / "a.jsonl").read_text().splitlines()
    assert [json.loads(line)["label"] for line in lines] == labels, "exact where nothing is run"
