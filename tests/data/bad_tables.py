"""Bad tables, and tables that earlier ones do not fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bad_files import Cases, text
from sample_files import IRIS

from ibpwf.data import read_examples

BAD = Cases()

# ------------------------------------------------------------------------------------------------ tables

BAD.text("not UTF-8", "a,y\n1,caf\xe9\n".encode("latin-1"), r"a\.csv, line 2: byte 9 \(0xe9\) is not UTF-8; save")
BAD.text("UTF-16", "a,y\n1,2\n".encode("utf-16"), r"a\.csv is in UTF-16; save it as UTF-8")
BAD.text("no bytes", "", r"a\.csv is empty; give a table with a header")
BAD.text("blank lines only", "\n\r\n  \n", r"a\.csv is empty")
BAD.text("header only", "a,b,y\n", r"a\.csv has a header and no rows")
BAD.text("no header", "1,2,3\n4,5,6\n", r"a\.csv, line 1 holds only numbers \('1', '2', '3'\); add a header")
BAD.text("a short row", "a,b,y\n1,2,u\n3,v\n", r"a\.csv, line 3 has 2 fields, the header has 3; add or remove")
BAD.text("a long row", "a,b,y\n1,2,u\n\n3,4,5,v\n", r"a\.csv, line 4 has 4 fields, the header has 3")
BAD.text("a column twice", "a,b,a,y\n1,2,3,u\n", r"a\.csv: columns 1 and 3 are both called 'a'; rename")
BAD.text(
    "a column without a name", ",a,y\n0,1,u\n", r"a\.csv: column 1 has no name \(pandas .*index=False\)\); name it"
)
BAD.text(
    "no label column",
    "a,b\n1,2\n",
    r"a\.csv has no column called label, class, target or y; .* argument label, such as 'b'",
)
BAD.text("two label columns", "a,Label,class\n1,2,3\n", r"columns 'Label', 'class' could each hold the labels; say")
BAD.text(
    "label misspelt", IRIS, r"a\.csv has no column 'specie' with the labels; did you mean 'species'\?", label="specie"
)
BAD.text("only a label", "y\nu\nv\n", r"a\.csv has no column besides its label; add the features")
BAD.text("a label missing", "a,y\n1,u\n2,\n", r"a\.csv, line 3, column 'y': the label is missing; fill it in")
BAD.text(
    "a blank cell", "a,b,y\n1,2,u\n3,,v\n", r"a\.csv, line 3, column 'b': the cell is blank; fill it in or remove"
)
BAD.text("a blank category", "a,y\nred,u\n ,v\nblue,u\n", r"a\.csv, line 3, column 'a': the cell is blank")
BAD.text("nan as text", "a,y\n1,u\nnan,v\n", r"a\.csv, line 3, column 'a': 'nan' is not a finite number; fill it in")
BAD.text("inf as text", "a,y\n1,u\n-Inf,v\n", r"a\.csv, line 3, column 'a': '-Inf' is not a finite number")
BAD.text("a number too large", "a,y\n1e39,u\n1,v\n", r"line 2, column 'a': '1e39' is beyond the range of float32")
BAD.text(
    "a huge integer",
    "a,y\n1,u\n123456789012345678901,v\n",
    r"line 3, column 'a': '123456789012345678901' has more digits .* identifier; name .* in the argument ignore",
)
BAD.text(
    "a word among numbers", "a,y\n1,u\n2,v\n12a,u\n", r"a\.csv, line 4, column 'a': '12a' is not a number, as others"
)
BAD.text(
    "null among words", "a,y\nS,u\nM,v\nNULL,u\n", r"line 4, column 'a': 'NULL' stands for a missing value; fill"
)
BAD.text(
    "a number among words", "a,y\nS,u\nM,v\n38,u\n", r"line 4, column 'a': '38' is a number among text such as 'S'"
)
BAD.text(
    "a word after many numbers", "a,y\n" + "1,u\n" * 5000 + "x,v\n", r"line 5002, column 'a': 'x' is not a number"
)
BAD.text(
    "decimal commas", "a;y\n1,5;u\n2,5;v\n", r"line 2, column 'a': '1,5' has a decimal comma; write decimal points"
)
BAD.text("digits with underscores", "a,y\n1_000,u\n7,v\n8,v\n", r"line 2, column 'a': '1_000' is not a number")
BAD.text("digits of another script", "a,y\n7,u\n8,u\n٣,v\n", r"line 4, column 'a': '٣' is not a number")
BAD.text(
    "an identifier",
    "a,b,y\n" + "".join(f"customer {n},{n},u\n" for n in range(101)),
    r"column 'a' holds 101 different texts such as 'customer 0', .* identifier; name it in the argument ignore",
)
BAD.text("a NUL byte", b"a,y\n1,u\n2\0,v\n", r"a\.csv, line 3 holds a NUL byte; it is no text, or damaged")
BAD.text(
    "a quote never closed", 'a,y\n1,u\n2,"v\n3,u\n', r"a\.csv, line 3: a quote is opened and never closed; close it"
)
BAD.text(
    "a quote closed too early", 'a,y\n1,"u"v\n', r"a\.csv, line 2 cannot be split into fields .*correct its quotes"
)
BAD.text(
    "a field without end", f"a,y\n1,{'u' * 200_000}\n", r"line 2: a field is longer than 131,072 characters; shorten"
)
BAD.text("commas or semicolons", "a,b;y\n1,2;3\n", r"line 1 holds commas and semicolons, and either could part")
BAD.text("tabs in a .csv", "a\ty\n1\tu\n", r"a\.csv has tabs between its fields; name it \.tsv")
BAD.text("a Parquet file called .csv", b"PAR1\0\0", r"a\.csv is a Parquet file; name it \.parquet")
BAD.text(
    "a spreadsheet called .csv", b"PK\x03\x04....", r"a\.csv is a zip archive or a spreadsheet; unpack it, or save"
)
BAD.text(
    "two classes that differ by case", "a,y\n1,Cat\n2,cat\n", r"line 3: class 'cat' and class 'Cat' .*line 2\) differ"
)
BAD.text(
    "a control character in a label", "a,y\n1,u\n2,v\x07w\n", r"line 3, column 'y': the label 'v\\x07w' holds control"
)
BAD.text(
    "an unknown column to ignore",
    IRIS,
    "has no column 'widht' to ignore; did you mean 'width'",
    label="species",
    ignore=["widht"],
)
BAD.text(
    "a label that is ignored", "a,b,y\n1,2,u\n", r"has no column 'y' with the labels; it", label="y", ignore=["y"]
)
BAD.text(
    "a column of categories that is not there",
    "a,y\n1,u\n",
    "no column 'size' with categories; it has 'a'",
    categories=["size"],
)
BAD.text("a spreadsheet", b"PK\x03\x04", r"a\.xlsx is a spreadsheet; save the sheet as CSV UTF-8", "a.xlsx")
BAD.text("an unknown ending", "a", r"a\.json: the ending '\.json' is not known; give one of \.csv", "a.json")

# ------------------------------------------------------------------------------------- what learning needs

LEARN: dict[str, tuple[str, str]] = {
    "a class with one example": ("a,y\n1,u\n2,u\n3,v\n", r"a\.csv, line 4: class 'v' has 1 example; .*at least 2"),
    "a measurement as label": (
        "a,y\n" + "".join(f"1,{n / 7:.3f}\n" for n in range(40)),
        r"a\.csv: column 'y' has 40 different values in 40 examples; it looks like a measurement",
    ),
}

# ------------------------------------------------------------------------- a file that earlier ones do not fit


def after(content: str, words: str, name: str, first: str = IRIS, **options: Any) -> None:
    def make(folder: Path) -> Path:
        path = folder / "first.csv"
        path.write_text(first)
        options["like"] = read_examples(path, label="species").layout
        return text(content)(folder)

    BAD[name] = (make, options, words)


after(
    "length,colour,species\n1,red,u\n",
    r"a\.csv lacks column 'width', which earlier files had; rename or add",
    "a column too few",
)
after(
    IRIS.replace("length", "id,length").replace("\n", "\n1,")[:-2],
    r"a\.csv has column 'id', which earlier files had not; remove",
    "a column too many",
)
after(
    IRIS.replace("width", "breadth"),
    r"lacks column 'width', .* and has column 'breadth', which .* had not",
    "a column renamed",
)
after(
    IRIS.replace("blue", "green"),
    r"a\.csv, line 3, column 'colour': 'green' is not among the categories of earlier files \('blue', 'red'\)",
    "an unknown category",
)
after(
    IRIS.replace("6.2", "tall"),
    r"a\.csv, line 3, column 'length': 'tall' is not a number",
    "a word where numbers were",
)
after(
    "length,width,colour\n1,2,red\n",
    r"a\.csv has no column 'species', which held the labels",
    "labels gone",
    with_labels=True,
)
after(
    IRIS.replace("red", "maybe"),
    r"line 2, column 'colour': 'maybe' is neither true nor false",
    "no truth",
    IRIS.replace("red", "true").replace("blue", "false"),
)


# ------------------------------------------------------------------------------------------------- Parquet


def parquet(folder: Path, columns: dict[str, Any]) -> Path:
    arrow, writer = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    writer.write_table(arrow.table(columns), folder / "a.parquet")
    return folder / "a.parquet"


def table_of(name: str, columns: dict[str, Any], words: str) -> None:
    BAD[name] = (lambda folder: parquet(folder, columns), {}, words)


table_of(
    "a nested column",
    {"a": [[1, 2], [3]], "y": ["u", "v"]},
    r"a\.parquet: column 'a' is nested \('list<.*argument ignore",
)
table_of(
    "a missing number", {"a": [1, None], "y": ["u", "v"]}, r"a\.parquet, row 2, column 'a': the value is missing"
)
table_of("a missing text", {"a": ["s", None], "y": ["u", "v"]}, r"a\.parquet, row 2, column 'a': the cell is blank")
table_of("a missing label in Parquet", {"a": [1, 2], "y": ["u", None]}, r"row 2, column 'y': the label is missing")
table_of("nan in Parquet", {"a": [1.0, float("nan")], "y": [0, 1]}, r"row 2, column 'a': nan is not a finite number")
table_of(
    "a huge integer in Parquet", {"a": [1, 2**60], "y": [0, 1]}, r"row 2, column 'a': 1152921504606846976 has more"
)
table_of("spans", {"a": np.array([5], "timedelta64[s]"), "y": ["u"]}, r"column 'a' is a span of time \('duration")
table_of("no rows in Parquet", {"a": np.zeros(0), "y": np.zeros(0)}, r"a\.parquet has no rows; give at least one")
BAD.text("a text called .parquet", "a,y\n", r"a\.parquet is no Parquet file \(it starts with b'a,y", "a.parquet")


@BAD.file(r"a\.parquet is cut short or damaged .*; write it again")
def a_Parquet_file_cut_short(folder: Path) -> Path:
    path = parquet(folder, {"a": list(range(1000)), "y": ["u", "v"] * 500})
    path.write_bytes(path.read_bytes()[:-100])
    return path
