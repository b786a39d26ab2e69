"""The cell that is wrong is the one that is named, in every format, and a value is treated alike in all of them."""

from __future__ import annotations

import csv
import io
import random
import re
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ibpwf.data import read_batches, read_examples
from ibpwf.data.number_texts import is_number, plain_number
from ibpwf.data.stored import read_stored
from ibpwf.errors import DataError, InputError
from ibpwf.serving.inputs import inputs_of
from ibpwf.serving.limits import Limits
from tallies import Tally

SEED = 35
Read = Callable[[Path], object]
READERS: dict[str, Read] = {"in memory": read_examples, "on disk": read_stored}


def table(folder: Path, rows: list[tuple[str, ...]], header: str = "d,b,y", name: str = "a.csv") -> Path:
    path = folder / name
    text = io.StringIO()
    csv.writer(text, delimiter="\t" if name.endswith("tsv") else ",", lineterminator="\n").writerows(
        [header.split(","), *rows]
    )
    path.write_text(text.getvalue(), encoding="utf-8")
    return path


DATES = {
    "no such day": (["2026-01-01", "2026-01-02", "2026-01-03", "2026-01-04", "2026-02-30"], 6, "2026-02-30"),
    "a word": (["2026-01-01", "2026-01-02", "tomorrow", "2026-01-03", "2026-01-04"], 4, "tomorrow"),
    "a typing slip": (["2026-01-01", "2026-01-02", "2026-0l-03", "2026-01-04", "2026-01-05"], 4, "2026-0l-03"),
    "another order": (["2026-01-01", "2026-01-02", "3/1/2026", "2026-01-04", "2026-01-05"], 4, "3/1/2026"),
    "month first among day first": (["13/1/2026", "14/1/2026", "1/2/2026", "2/13/2026", "15/1/2026"], 5, "2/13/2026"),
    "no day in any order": (["1/2/2026", "2/1/2026", "3/4/2026", "30/30/2026", "4/5/2026"], 5, "30/30/2026"),
    "a time among dates": (["2026-01-01", "2026-01-02", "12:30", "2026-01-04", "2026-01-05"], 4, "12:30"),
    "no time of day": (["12:30", "12:40", "25:10", "13:00", "13:10"], 4, "25:10"),
    "the first": (["2026-13-01", "2026-01-02", "2026-01-03", "2026-01-04", "2026-01-05"], 2, "2026-13-01"),
}


@pytest.mark.parametrize("how", READERS)
@pytest.mark.parametrize("kind", DATES)
def test_the_bad_date_is_named_and_not_a_valid_one(kind: str, how: str, tmp_path: Path) -> None:
    texts, line, bad = DATES[kind]
    rows = [(text, "1", "uv"[at % 2]) for at, text in enumerate(texts)]
    with pytest.raises(DataError, match=rf"line {line}, column 'd': '{re.escape(bad)}'"):
        READERS[how](table(tmp_path, rows))
    typed = pa.table({"d": texts, "b": [1.0] * len(texts), "y": list("uvuvu")})
    parquet.write_table(typed, tmp_path / "a.parquet")
    with pytest.raises(DataError, match=rf"row {line - 1}, column 'd': '{re.escape(bad)}'"):
        READERS[how](tmp_path / "a.parquet")


@pytest.mark.parametrize("how", READERS)
@pytest.mark.parametrize("missing", ["", " ", "nan", "NULL"])
def test_a_missing_date_is_called_missing(missing: str, how: str, tmp_path: Path) -> None:
    rows = [(f"2026-01-0{day}" if day != 3 else missing, "1", "uv"[day % 2]) for day in range(1, 6)]
    with pytest.raises(DataError, match=r"line 4, column 'd': .*missing='mean'"):
        READERS[how](table(tmp_path, rows))
    assert read_examples(table(tmp_path, rows), missing="mean").x.shape[0] == 5


@pytest.mark.parametrize("how", READERS)
@pytest.mark.parametrize("blank", ["\u00a0", "\u2009", "\x1c", "\u3000", "\t"])
def test_any_blank_may_stand_around_a_number(blank: str, how: str, tmp_path: Path) -> None:
    rows = [(f"{day}{blank}" if day != 3 else f"{blank}3", "1", "uv"[day % 2]) for day in range(1, 6)]
    path = table(tmp_path, rows)
    found: Any = READERS[how](path)
    assert np.asarray(found.x[0:5])[:, 0].tolist() == [1, 2, 3, 4, 5]
    later = table(tmp_path, [*rows, (f"five{blank}", "1", "u")], name="b.csv")
    with pytest.raises(DataError, match="line 7, column 'd'"):
        READERS[how](later)


FIELDS = st.text(st.sampled_from('ab ,"\n;\u00e9'), max_size=6)
BREAKS = st.sampled_from(["\n", "\r\n"])


def written(rows: list[list[str]], end: str, blanks: list[int], mark: str, bom: bool) -> tuple[bytes, list[int]]:
    """A file of these rows, with blank lines after some of them, and the line that each starts on."""
    lines, text = [], ""
    for at, row in enumerate(rows):
        lines.append(text.count("\n") + 1)
        quoted = ('"' + cell.replace('"', '""') + '"' if re.search(r'[,;"\n\t ]', cell) else cell for cell in row)
        text += mark.join(quoted).replace("\n", end) + end + end * blanks.count(at)
    return (b"\xef\xbb\xbf" if bom else b"") + text.encode(), lines


def check_a_named_line(data: st.DataObject) -> None:
    count = data.draw(st.integers(5, 12))
    bad = data.draw(st.integers(1, count - 1))
    mark = data.draw(st.sampled_from([",", "\t"]))
    rows = [["note", "a", "y"]]
    for row in range(count):
        note = data.draw(FIELDS.filter(lambda text: "\r" not in text))
        rows.append([f"{'uv'[row % 2]} {note}", "wrong" if row == bad else str(row), "st"[row % 2]])
    content, lines = written(
        rows, data.draw(BREAKS), data.draw(st.lists(st.integers(0, count))), mark, data.draw(st.booleans())
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / ("a.csv" if mark == "," else "a.tsv")
        path.write_bytes(content)
        for read in (*READERS.values(), lambda path: read_examples(path, ignore=["note"])):
            with pytest.raises(DataError) as caught:
                read(path)
            assert f"line {lines[1 + bad]}, column 'a': 'wrong'" in str(caught.value)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_the_line_that_is_named_is_the_one_on_which_the_row_starts(data: st.DataObject) -> None:
    check_a_named_line(data)


@pytest.mark.faults
def test_the_line_that_is_named_is_the_one_on_which_the_row_starts_many_times(tally: Tally) -> None:
    tried = 0

    @settings(max_examples=5_000, deadline=None, derandomize=True)
    @given(st.data())
    def check(data: st.DataObject) -> None:
        nonlocal tried
        tried += 1
        check_a_named_line(data)

    check()
    tally("tables with a wrong cell, whose line is named", tried, **{"named another line": 0})


def test_a_later_file_and_its_batches_name_the_same_line(tmp_path: Path) -> None:
    rows = [(f"2026-01-{day:02}", str(day), "uv"[day % 2]) for day in range(1, 21)]
    like = read_examples(table(tmp_path, rows)).layout
    rows[12] = ("2026-02-30", "1", "u")
    path = table(tmp_path, rows)
    for read in (lambda: read_examples(path, like=like), lambda: list(read_batches(path, 5, like=like))):
        with pytest.raises(DataError, match=r"line 14, column 'd': '2026-02-30'"):
            read()


NEAR = {
    "percent": ("5%", "7%", "12%"),
    "dollars": ("$5", "$1,200", "$0.50"),
    "euros after": ("5 €", "7,50 €", "1.200,50 €"),
    "underscores": ("1_05", "1_06", "2_000"),
    "hexadecimal": ("0x12", "0x1F", "0xff"),
    "another minus": ("−5", "−6", "−7.5"),
    "a typographic hyphen": ("\u20105", "\u20106", "\u20107.5"),
    "a hyphen that does not break": ("\u20115", "\u20116", "\u20117.5"),
    "binary": ("0b101", "0b110", "0b111"),
    "octal": ("0o12", "0o13", "0o17"),
    "full width": ("１２", "３．５", "７"),
    "another script": ("٣", "٤", "٥"),
    "thousands": ("1,000,000", "2,500,000", "3,000,000"),
    "apostrophes": ("1'000", "2'000", "3'500"),
    "blanks": ("1 000", "2\u202f500", "3\u00a0000"),
    "accounting": ("(5)", "(6)", "(7.50)"),
}


@pytest.mark.parametrize("how", READERS)
@pytest.mark.parametrize("kind", NEAR)
def test_a_column_of_what_looks_like_numbers_is_reported_when_it_is_learned(
    kind: str, how: str, tmp_path: Path
) -> None:
    rows = [(cell, str(at), "uv"[at % 2]) for at, cell in enumerate([*NEAR[kind], *NEAR[kind]])]
    columns = [[row[at] for row in rows] for at in range(3)]
    parquet.write_table(pa.table(dict(zip("dby", columns, strict=True))), tmp_path / "a.parquet")
    plain = plain_number(NEAR[kind][0])
    assert plain is not None
    assert is_number(plain)
    files = {"line 2": table(tmp_path, rows), "line 2 ": table(tmp_path, rows, name="a.tsv")}
    for where, path in {**files, "row 1": tmp_path / "a.parquet"}.items():
        with pytest.warns(UserWarning, match=rf"{where.strip()}, column 'd': .*Write {re.escape(plain)} if") as told:
            READERS[how](path)
        said = [str(one.message) for one in told if one.category is UserWarning]
        assert len(said) == 1
        assert NEAR[kind][0] in said[0]
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # what was said to be categories is nothing to report
            layout = read_examples(path, categories=["d"]).layout
            read_examples(path, like=layout)


def test_categories_that_are_no_numbers_are_not_reported(tmp_path: Path) -> None:
    words = ["red", "4x4", "A4", "5G", "1st", "10-20", "5kg", "3.1.2", "<5", "12:30x", "N/A", "5XL", "-", "%", "5²"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        read_examples(table(tmp_path, [(word, "1", "u") for word in words]))
        read_examples(table(tmp_path, [(word, "1", "u") for word in ("5%", "none", "few", "some")]))


@given(st.text(max_size=12))
@settings(max_examples=300)
def test_what_is_written_for_people_is_a_number_for_programs_or_none(text: str) -> None:
    plain = plain_number(text)
    assert plain is None or (is_number(plain) and not is_number(text))


STYLES: dict[str, Callable[[int], str]] = {
    "percent": lambda n: f"{n}%",
    "per mille": lambda n: f"{n} ‰",
    "dollars": lambda n: f"${n:,}",
    "euros": lambda n: f"{n} €",
    "underscores": lambda n: f"{n + 1000:_}",
    "apostrophes": lambda n: f"{n + 1000:,}".replace(",", "'"),
    "spaces": lambda n: f"{n + 1000:,}".replace(",", "\u202f"),
    "thousands": lambda n: f"{n + 1_000_000:,}",
    "hexadecimal": hex,
    "octal": oct,
    "binary": bin,
    "minus": lambda n: f"\N{MINUS SIGN}{n}",
    "full width": lambda n: str(n).translate({ord(str(d)): chr(0xFF10 + d) for d in range(10)}),
    "Arabic": lambda n: str(n).translate({ord(str(d)): chr(0x660 + d) for d in range(10)}),
    "accounting": lambda n: f"({n})",
}
ADDED = {"underscores": 1000, "apostrophes": 1000, "spaces": 1000, "thousands": 1_000_000}
"""What is added so that there is a separator."""


@pytest.mark.parametrize("times", [20, pytest.param(2_000, marks=pytest.mark.faults)])
def test_columns_of_numbers_written_for_people_are_reported_with_their_value(
    times: int, tmp_path: Path, tally: Tally
) -> None:
    chance = random.Random(SEED)
    silent = wrong = 0
    for _ in range(times):
        style, size = chance.choice([*STYLES]), chance.choice([10, 1000, 10**6])
        numbers = [chance.randrange(1, size) for _ in range(6)]
        cells = [STYLES[style](number) for number in numbers]
        sign = -1 if style in ("minus", "accounting") else 1
        plain = [plain_number(cell) for cell in cells]
        expected = [sign * (number + ADDED.get(style, 0)) for number in numbers]
        wrong += [None if text is None else float(text) for text in plain] != expected
        path = table(tmp_path, [(cell, str(at), "uv"[at % 2]) for at, cell in enumerate(cells)])
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            READERS[chance.choice([*READERS])](path)
        said = re.compile(rf"line 2, column 'd': .*Write {re.escape(str(plain[0]))} if")
        silent += not any(said.search(str(one.message)) for one in told)
    tally("columns of numbers that are written for people", times, seed=SEED, silent=silent, wrong=wrong)


def test_near_numbers_beside_numbers_are_named_with_the_number_to_write(tmp_path: Path) -> None:
    rows = [(cell, "1", "u") for cell in ("5", "6", "7", "$1,200")]
    with pytest.raises(DataError, match=r"line 5, column 'd': '\$1,200' .* write 1200"):
        read_examples(table(tmp_path, rows))


def test_the_command_says_so_beside_its_answer(tmp_path: Path) -> None:
    rows = [(("5%", "7%", "9%")[at % 3], str(at), "uv"[at % 2]) for at in range(30)]
    path = str(table(tmp_path, rows))
    words = [sys.executable, "-m", "ibpwf", "learn", str(tmp_path / "model"), path, "--device", "cpu"]
    done = subprocess.run([*words, "--epochs", "1"], capture_output=True, text=True, check=True)
    assert re.search(r"^warning: .*line 2, column 'd': '5%'.* --categories", done.stderr, re.MULTILINE)
    model = (tmp_path / "model").rename(tmp_path / "first")
    asked = subprocess.run([*words, "--epochs", "1", "--categories", "d"], capture_output=True, text=True, check=True)
    assert "column 'd'" not in asked.stderr
    later = [sys.executable, "-m", "ibpwf", "predict", str(model), path]
    assert "column 'd'" not in subprocess.run(later, capture_output=True, text=True, check=True).stderr


# One rule for a value in every format

VALUES: dict[str, tuple[Any, str | None]] = {
    "the largest exact integer": (2**53 - 1, None),
    "an integer too long": (2**53 + 1, "9007199254740993"),
    "a negative one": (-(2**60), "-1152921504606846976"),
    "the largest of 64 bits": (2**63 - 1, "9223372036854775807"),
    "beyond float32": (1e39, "1e.?39"),
    "NaN": (float("nan"), "nan"),
    "infinity": (float("inf"), "inf"),
    "a large float": (1e20, None),
}


@pytest.mark.parametrize("kind", VALUES)
def test_a_number_is_taken_or_rejected_alike_in_every_format(kind: str, tmp_path: Path) -> None:
    value, said = VALUES[kind]
    column: list[Any] = [1, 2, value, 3] if isinstance(value, int) else [1.0, 2.0, value, 3.0]
    rows = [(str(cell), "1.5", "uv"[at % 2]) for at, cell in enumerate(column)]
    parquet.write_table(pa.table({"d": column, "b": [1.5] * 4, "y": list("uvuv")}), tmp_path / "a.parquet")
    x = np.array([[1, cell] for cell in column])
    np.savez(tmp_path / "a.npz", x=x, y=np.array(list("uvuv")))
    places = {
        table(tmp_path, rows): "line 4, column 'd'",
        table(tmp_path, rows, name="a.tsv"): "line 4, column 'd'",
        tmp_path / "a.parquet": "row 3, column 'd'",
        tmp_path / "a.npz": "example 2, column 1",
    }
    for path, place in places.items():
        for read in READERS.values():
            if said is None:
                read(path)
                continue
            with pytest.raises(DataError, match=rf"{path.name}, {place}: '?{said}'?"):
                read(path)


@pytest.mark.parametrize("times", [20, pytest.param(2_000, marks=pytest.mark.faults)])
def test_any_number_is_taken_or_rejected_alike_in_every_format(times: int, tmp_path: Path, tally: Tally) -> None:
    chance = random.Random(SEED)
    apart = named_otherwise = 0
    for _ in range(times):
        whole, at = chance.random() < 0.5, chance.randrange(4)
        near = 2 ** chance.choice([52, 53, 53, 54, 62]) + chance.randrange(-2, 3)
        value = chance.choice([1, -1]) * (near if whole else chance.choice([1, 3.4e38, 3.5e38, 1e39, 1e300]))
        column: list[Any] = [1, 2, 3, 4] if whole else [1.0, 2.0, 3.0, 4.0]
        column[at] = value if whole else float(value)
        rows = [(str(cell), "1.5", "uv"[row % 2]) for row, cell in enumerate(column)]
        parquet.write_table(pa.table({"d": column, "b": [1.5] * 4, "y": list("uvuv")}), tmp_path / "a.parquet")
        np.savez(tmp_path / "a.npz", x=np.array([[1, cell] for cell in column]), y=np.array(list("uvuv")))
        places = {
            table(tmp_path, rows): f"line {at + 2}, column 'd'",
            table(tmp_path, rows, name="a.tsv"): f"line {at + 2}, column 'd'",
            tmp_path / "a.parquet": f"row {at + 1}, column 'd'",
            tmp_path / "a.npz": f"example {at}, column 1",
        }
        taken = set()
        for path, place in places.items():
            try:
                READERS[chance.choice([*READERS])](path)
                taken.add(True)
            except DataError as error:
                taken.add(False)
                named_otherwise += place not in str(error)
        apart += len(taken) > 1
    tally("numbers in four formats", 4 * times, seed=SEED, apart=apart, named_otherwise=named_otherwise)


LABELS: dict[str, tuple[list[str], list[str] | None]] = {
    "two zeros": (["0.0", "-0.0", "1.0", "1"], ["0", "0", "1", "1"]),
    "a zero with a sign": (["-0", "+0", "0", "1.0"], ["0", "0", "0", "1"]),
    "points": (["3.", "3.00", "3", "-4.0"], ["3", "3", "3", "-4"]),
    "leading zeros": (["007", "7", "007", "7"], ["007", "7", "007", "7"]),
    "a plus": (["+1", "1", "-1", "-1"], None),
    "another minus": (["1", "-1", "−1", "1"], None),
    "full width": (["1", "２", "2", "1"], None),
    "NaN among numbers": (["1", "0", "nan", "1"], None),
    "null among numbers": (["1", "NULL", "0", "1"], None),
    "null among words": (["null", "number", "null", "number"], ["null", "number", "null", "number"]),
}


ODD = {"a plus": "1", "another minus": "−1", "full width": "2", "NaN among numbers": "nan"}
ODD["null among numbers"] = "NULL"


@pytest.mark.parametrize("kind", LABELS)
def test_a_label_is_one_class_in_every_format(kind: str, tmp_path: Path) -> None:
    given_, expected = LABELS[kind]
    rows = [("1.5", str(at), label) for at, label in enumerate(given_)]
    parquet.write_table(pa.table({"d": [1.5] * 4, "b": [1.0] * 4, "y": given_}), tmp_path / "a.parquet")
    np.savez(tmp_path / "a.npz", x=np.ones((4, 2)), y=np.array(given_))
    for path in (
        table(tmp_path, rows),
        table(tmp_path, rows, name="a.tsv"),
        tmp_path / "a.parquet",
        tmp_path / "a.npz",
    ):
        for read in READERS.values():
            if expected is None:
                with pytest.raises(DataError, match=rf"(line|row|example) \d.*'{re.escape(ODD[kind])}'"):
                    read(path)
                continue
            found: Any = read(path)
            assert list(found.y) == expected


def test_float_labels_with_two_zeros_are_one_class(tmp_path: Path) -> None:
    y = [0.0, -0.0, 1.0, -0.0]
    parquet.write_table(pa.table({"d": [1.5] * 4, "b": [1.0] * 4, "y": y}), tmp_path / "a.parquet")
    np.savez(tmp_path / "a.npz", x=np.ones((4, 2)), y=np.array(y))
    for name in ("a.parquet", "a.npz"):
        assert read_examples(tmp_path / name).y == ["0", "0", "1", "0"]


def test_a_request_is_held_to_the_same_rule(tmp_path: Path) -> None:
    layout = read_examples(table(tmp_path, [("1", "2", "u"), ("3", "4", "v")])).layout
    for rules, inputs in (
        (layout, {"d": np.array([1, 2**53 + 1]), "b": np.array([1.5, 2.5])}),
        (layout, {"x": np.array([[1, 1], [2**53 + 1, 1]])}),
        (None, {"x": np.array([[1, 1], [2**53 + 1, 1]])}),
    ):
        version: Any = SimpleNamespace(layout=rules, classifier=SimpleNamespace(n_features_in_=2))
        with pytest.raises(InputError, match=r"input '[dx]' holds 9007199254740993 in row 1"):
            inputs_of(inputs, version, Limits())
