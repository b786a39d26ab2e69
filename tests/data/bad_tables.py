"""Bad tables, and tables that earlier ones do not fit: what is wrong, the content, and what an error must name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bad_files import Cases, text
from sample_files import IRIS

from ibpwf.data import read_examples

BAD = Cases()

TABLES: dict[str, tuple[str | bytes, str]] = {
    "not UTF-8": ("a,y\n1,caf\xe9\n".encode("latin-1"), r"a\.csv, line 2.* 9 .*0xe9"),
    "UTF-16": ("a,y\n1,2\n".encode("utf-16"), r"a\.csv .*UTF-16"),
    "no bytes": ("", r"a\.csv is empty"),
    "blank lines only": ("\n\r\n  \n", r"a\.csv is empty"),
    "header only": ("a,b,y\n", r"a\.csv .*no rows"),
    "no header": ("1,2,3\n4,5,6\n", r"a\.csv, line 1 .*'1', '2', '3'.*header"),
    "a short row": ("a,b,y\n1,2,u\n3,v\n", r"a\.csv, line 3 .*2 .*3"),
    "a long row": ("a,b,y\n1,2,u\n\n3,4,5,v\n", r"a\.csv, line 4 .*4 .*3"),
    "a column twice": ("a,b,a,y\n1,2,3,u\n", r"a\.csv.* 1 .* 3 .*'a'"),
    "a column without a name": (",a,y\n0,1,u\n", r"a\.csv: column 1 .*index=False"),
    "no label column": ("a,b\n1,2\n", r"a\.csv .*label, class, target or y.* argument label.*'b'"),
    "two label columns": ("a,Label,class\n1,2,3\n", "'Label', 'class'"),
    "only a label": ("y\nu\nv\n", r"a\.csv .*label"),
    "a label missing": ("a,y\n1,u\n2,\n", r"a\.csv, line 3, column 'y'.*label"),
    "a blank cell": ("a,b,y\n1,2,u\n3,,v\n", r"a\.csv, line 3, column 'b'.*blank"),
    "a blank category": ("a,y\nred,u\n ,v\nblue,u\n", r"a\.csv, line 3, column 'a'.*blank"),
    "nan as text": ("a,y\n1,u\nnan,v\n", r"a\.csv, line 3, column 'a': 'nan'"),
    "inf as text": ("a,y\n1,u\n-Inf,v\n", r"a\.csv, line 3, column 'a': '-Inf'"),
    "a number too large": ("a,y\n1e39,u\n1,v\n", "line 2, column 'a': '1e39' .*float32"),
    "a huge integer": (
        "a,y\n1,u\n123456789012345678901,v\n",
        "line 3, column 'a': '123456789012345678901' .*identifier.*argument ignore",
    ),
    "a word among numbers": ("a,y\n1,u\n2,v\n12a,u\n", r"a\.csv, line 4, column 'a': '12a'"),
    "null among words": ("a,y\nS,u\nM,v\nNULL,u\n", "line 4, column 'a': 'NULL' .*missing"),
    "a number among words": ("a,y\nS,u\nM,v\n38,u\n", "line 4, column 'a': '38' .*'S'"),
    "a word after many numbers": ("a,y\n" + "1,u\n" * 5000 + "x,v\n", "line 5002, column 'a': 'x'"),
    "decimal commas": ("a;y\n1,5;u\n2,5;v\n", "line 2, column 'a': '1,5' .*decimal"),
    "digits with underscores": ("a,y\n1_000,u\n7,v\n8,v\n", "line 2, column 'a': '1_000'"),
    "digits of another script": ("a,y\n7,u\n8,u\n٣,v\n", "line 4, column 'a': '٣'"),
    "an identifier": (
        "a,b,y\n" + "".join(f"customer {n},{n},u\n" for n in range(101)),
        "column 'a' .*101 .*'customer 0'.*argument ignore",
    ),
    "a NUL byte": (b"a,y\n1,u\n2\0,v\n", r"a\.csv, line 3 .*NUL"),
    "a quote never closed": ('a,y\n1,u\n2,"v\n3,u\n', r"a\.csv, line 3.*quote"),
    "a quote closed too early": ('a,y\n1,"u"v\n', r"a\.csv, line 2 .*quotes"),
    "a field without end": (f"a,y\n1,{'u' * 200_000}\n", "line 2.*131,072"),
    "commas or semicolons": ("a,b;y\n1,2;3\n", "line 1 .*commas and semicolons"),
    "tabs in a .csv": ("a\ty\n1\tu\n", r"a\.csv .*tabs.*\.tsv"),
    "a Parquet file called .csv": (b"PAR1\0\0", r"a\.csv .*\.parquet"),
    "a spreadsheet called .csv": (b"PK\x03\x04....", r"a\.csv .*spreadsheet"),
    "two classes that differ by case": ("a,y\n1,Cat\n2,cat\n", "line 3: class 'cat' and class 'Cat' .*line 2"),
    "a control character in a label": ("a,y\n1,u\n2,v\x07w\n", r"line 3, column 'y'.*'v\\x07w'"),
}
for _name, (_content, _named) in TABLES.items():
    BAD.text(_name, _content, _named)

BAD.text("label misspelt", IRIS, r"a\.csv .*'specie' .*'species'", label="specie")
BAD.text("an unknown column to ignore", IRIS, "'widht' .*'width'", label="species", ignore=["widht"])
BAD.text("a label that is ignored", "a,b,y\n1,2,u\n", "'y' .*label", label="y", ignore=["y"])
BAD.text("a column of categories that is not there", "a,y\n1,u\n", "'size' .*'a'", categories=["size"])
BAD.text("a spreadsheet", b"PK\x03\x04", r"a\.xlsx .*CSV", "a.xlsx")
BAD.text("an unknown ending", "a", r"a\.json.*'\.json' .*\.csv", "a.json")

LEARN: dict[str, tuple[str, str]] = {
    "a class with one example": ("a,y\n1,u\n2,u\n3,v\n", r"a\.csv, line 4: class 'v' .*2"),
    "a measurement as label": (
        "a,y\n" + "".join(f"1,{n / 7:.3f}\n" for n in range(40)),
        r"a\.csv: column 'y' .*40 .*40",
    ),
}
"""Files that can be read, but not learned from."""

# A file that earlier ones do not fit


def after(name: str, content: str, named: str, first: str = IRIS, **options: Any) -> None:
    def make(folder: Path) -> Path:
        path = folder / "first.csv"
        path.write_text(first)
        options["like"] = read_examples(path, label="species").layout
        return text(content)(folder)

    BAD[name] = (make, options, named)


TRUTHS = IRIS.replace("red", "true").replace("blue", "false")
after("a column too few", "length,colour,species\n1,red,u\n", r"a\.csv lacks .*'width'")
after("a column too many", IRIS.replace("length", "id,length").replace("\n", "\n1,")[:-2], r"a\.csv has .*'id'")
after("a column renamed", IRIS.replace("width", "breadth"), "lacks .*'width'.* has .*'breadth'")
after(
    "an unknown category",
    IRIS.replace("blue", "green"),
    r"a\.csv, line 3, column 'colour': 'green' .*'blue', 'red'",
)
after("a word where numbers were", IRIS.replace("6.2", "tall"), r"a\.csv, line 3, column 'length': 'tall'")
after("labels gone", "length,width,colour\n1,2,red\n", r"a\.csv .*'species'", with_labels=True)
after("no truth", IRIS.replace("red", "maybe"), "line 2, column 'colour': 'maybe'", TRUTHS)

# Parquet


def parquet(folder: Path, columns: dict[str, Any]) -> Path:
    arrow, writer = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    writer.write_table(arrow.table(columns), folder / "a.parquet")
    return folder / "a.parquet"


COLUMNS: dict[str, tuple[dict[str, Any], str]] = {
    "a nested column": ({"a": [[1, 2], [3]], "y": ["u", "v"]}, r"a\.parquet: column 'a' .*'list<.*argument ignore"),
    "a missing number": ({"a": [1, None], "y": ["u", "v"]}, r"a\.parquet, row 2, column 'a'.*missing"),
    "a missing text": ({"a": ["s", None], "y": ["u", "v"]}, r"a\.parquet, row 2, column 'a'.*blank"),
    "a missing label in Parquet": ({"a": [1, 2], "y": ["u", None]}, "row 2, column 'y'.*label"),
    "nan in Parquet": ({"a": [1.0, float("nan")], "y": [0, 1]}, "row 2, column 'a': nan"),
    "a huge integer in Parquet": ({"a": [1, 2**60], "y": [0, 1]}, "row 2, column 'a': 1152921504606846976"),
    "spans": ({"a": np.array([5], "timedelta64[s]"), "y": ["u"]}, "column 'a' .*duration"),
    "no rows in Parquet": ({"a": np.zeros(0), "y": np.zeros(0)}, r"a\.parquet .*no rows"),
}
for _name, (_columns, _named) in COLUMNS.items():
    BAD[_name] = (lambda folder, columns=_columns: parquet(folder, columns), {}, _named)  # type: ignore[misc]
BAD.text("a text called .parquet", "a,y\n", r"a\.parquet .*b'a,y", "a.parquet")


@BAD.file(r"a\.parquet .*damaged")
def a_Parquet_file_cut_short(folder: Path) -> Path:
    path = parquet(folder, {"a": list(range(1000)), "y": ["u", "v"] * 500})
    path.write_bytes(path.read_bytes()[:-100])
    return path
