"""CSV and TSV files. pyarrow reads them; the standard library's strict reader takes what pyarrow would misread.

pyarrow takes a quote that is never closed, or closed within a field, without a word, takes a quote after a blank for
text, and cannot say on which line a row stands. So quotes are looked over first, and a file whose quotes are anything
but plain, or that pyarrow gives up on, is read by the `csv` module, which reads it or names the line.
"""

from __future__ import annotations

import codecs
import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from ibpwf.data.examples import Origins
from ibpwf.data.number_texts import is_number
from ibpwf.data.opening import arrow, check_columns, open_plain, shown
from ibpwf.data.options import Naming, argument
from ibpwf.errors import DataError

_BLOCK = 1 << 22  # bytes read at a time,
_ROWS = 1 << 12  # or rows
_LONGEST = 1 << 17  # characters of a field, as in the csv module,
LONGEST_RECORD = 1 << 26  # and of a row, quoted line breaks included: a file without line breaks must not fill memory
_SAMPLE = 20  # lines that decide the delimiter,
_START = 1 << 16  # within so many bytes
_OTHER_FORMATS = {
    b"PAR1": "a Parquet file; name it .parquet",
    b"PK\x03\x04": "a zip archive or a spreadsheet; unpack it, or save the sheet as CSV UTF-8",
    b"\x1f\x8b": "compressed with gzip; unpack it first",
    b"\xd0\xcf\x11\xe0": "an Excel workbook; save it as CSV UTF-8",
    codecs.BOM_UTF16_LE: "in UTF-16; save it as UTF-8",
    codecs.BOM_UTF16_BE: "in UTF-16; save it as UTF-8",
}


@dataclass
class _Read:
    """How much was read since the last record ended, quoted line breaks included, and whether there was a quote."""

    since_record: int = 0
    quoted: bool = False


class CsvFile:
    """A table as text. The delimiter is a tab for .tsv and .tab, otherwise the comma or semicolon of the header."""

    def __init__(self, path: Path, naming: Naming = argument) -> None:
        self.path, self.naming = path, naming
        self.arrow = arrow(path)
        self.delimiter = "\t" if path.suffix.lower() in (".tsv", ".tab") else self._sniff()
        _, names = next(self._records(), (0, []))
        self.names = [name.strip() for name in names]
        if not self.names:
            raise DataError(f"{shown(path)} is empty; give a table with a header line and rows.")
        check_columns(path, len(self.names))
        self._lines: list[int] = []

    @property
    def bytes(self) -> int:
        return self.path.stat().st_size

    @property
    def headless(self) -> bool:
        """Whether the first line looks like data rather than names."""
        return all(is_number(name) for name in self.names)

    def origins(self, rows: range) -> Origins:
        return Origins([str(self.path)], "line", rows, self._line)

    def _line(self, row: int) -> int:
        """The line that a row starts on."""
        if not self._lines:
            self._lines = [line for line, _ in self._records()]
        return self._lines[row + 1]

    def parts(self, wanted: Sequence[int], rows: int | None = None) -> Iterator[Any]:
        """The columns with these numbers, as text, some rows at a time."""
        seen = 0
        if len(self.names) > 1 and self._plainly_quoted():  # of one column, "" is a value and a blank line is none
            try:
                for batch in self._quick_batches(wanted):
                    yield batch
                    seen += batch.num_rows
            except self.arrow.ArrowInvalid:
                pass  # the other reader goes on from here, or says what is wrong and where
            else:
                if seen:
                    return
        records = islice(self._records(), 1 + seen, None)
        while some := [row for _, row in islice(records, _ROWS)]:
            seen += len(some)
            columns = [self.arrow.array([row[place] for row in some], self.arrow.string()) for place in wanted]
            yield self.arrow.table(columns, names=[str(place) for place in wanted])
        if not seen:
            raise DataError(f"{shown(self.path)} has a header and no rows; give at least one example.")

    def _quick_batches(self, wanted: Sequence[int]) -> Iterator[Any]:
        """What pyarrow makes of the file, without the header and without lines that hold nothing."""
        reader, compute = self.arrow.csv, self.arrow.compute
        names = [str(place) for place in range(len(self.names))]
        how = (
            reader.ReadOptions(column_names=names, block_size=max(_BLOCK, 1024 * len(names)), use_threads=False),
            reader.ParseOptions(delimiter=self.delimiter, newlines_in_values=True),
            reader.ConvertOptions(column_types=dict.fromkeys(names, self.arrow.string())),
        )
        header = 1
        with open_plain(self.path) as file, reader.open_csv(file, *how) as batches:
            for batch in batches:
                table = self.arrow.table(batch).slice(header)
                header = 0
                columns = table.columns
                large = [column for column in columns if column.nbytes > _LONGEST]
                if any(compute.max(compute.binary_length(column)).as_py() > _LONGEST for column in large):
                    raise self.arrow.ArrowInvalid("a field that may be too long")
                empty = np.ones(table.num_rows, bool)
                for column in columns:
                    if not empty.any():
                        break
                    empty &= compute.equal(compute.ascii_ltrim(column, " "), "").to_numpy()
                if empty.any():
                    table = table.filter(~empty)
                if table.num_rows:
                    yield table.select([names[place] for place in wanted])

    def _plainly_quoted(self) -> bool:
        """Whether all quotes stand where fields begin and end or are doubled within, and there is no NUL byte."""
        ends = np.frombuffer(b"\r\n" + self.delimiter.encode(), np.uint8)
        inside, before = False, 10  # the file begins as a line does
        with open_plain(self.path) as file:
            block = file.read(_BLOCK).removeprefix(codecs.BOM_UTF8)
            while block:
                after = file.read(_BLOCK)
                if 0 in block:
                    return False
                if b'"' in block or inside:
                    data = np.frombuffer(bytes([before]) + block + (after[:1] or b"\n"), np.uint8)
                    quotes = np.flatnonzero(data[1:-1] == 34) + 1
                    opening = (np.arange(len(quotes)) % 2 == 0) ^ inside
                    beside = np.where(opening, data[quotes - 1], data[quotes + 1])
                    if not np.isin(beside, [34, *ends]).all():
                        return False
                    inside ^= len(quotes) % 2 == 1
                before, block = block[-1], after
        return not inside

    def _records(self) -> Iterator[tuple[int, list[str]]]:
        """The records that are not empty and the lines they start on, the header first; each must have as many fields
        as the header."""
        start = width = 0
        read = _Read()
        with (
            open_plain(self.path) as raw,
            io.TextIOWrapper(raw, encoding="utf-8", errors="surrogateescape", newline="") as text,
        ):
            lines = self._whole_lines(text, read)
            reader = csv.reader(lines, delimiter=self.delimiter, skipinitialspace=True, strict=True)
            try:
                for row in reader:
                    start, line = reader.line_num, start + 1
                    given = width == 1 and read.quoted
                    read.since_record, read.quoted = 0, False
                    blank = not any(row) or (len(row) == 1 and not row[0].strip())
                    if blank and not given:  # spreadsheets leave such lines
                        continue
                    width = width or len(row)
                    if len(row) != width:
                        raise DataError(
                            f"{shown(self.path)}, line {line} has {len(row)} fields, the header has {width}; "
                            "add or remove fields, and put quotes around text that holds the delimiter."
                        )
                    yield line, row
            except csv.Error as error:
                raise self._malformed(start + 1, str(error)) from None

    def _whole_lines(self, text: io.TextIOWrapper, read: _Read) -> Iterator[str]:
        """The lines, each checked to be text and short enough; bytes that are not UTF-8 come as surrogates."""
        position = 0
        for number, line in enumerate(iter(lambda: text.readline(LONGEST_RECORD + 1), ""), start=1):
            read.since_record += len(line)
            read.quoted = read.quoted or '"' in line
            if read.since_record > LONGEST_RECORD:
                raise DataError(
                    f"{shown(self.path)}, line {number}: the row is longer than {LONGEST_RECORD:,} characters; it is "
                    "no table, or lacks line breaks. Wide tables are read from .parquet or .npz files."
                )
            if "\0" in line:
                raise DataError(f"{shown(self.path)}, line {number} holds a NUL byte; it is no text, or damaged.")
            try:
                position += len(line.encode("utf-8"))
            except UnicodeEncodeError as error:
                wrong = line[: error.start + 1].encode("utf-8", "surrogateescape")
                raise DataError(
                    f"{shown(self.path)}, line {number}: byte {position + len(wrong) - 1} (0x{wrong[-1]:02x}) is not "
                    "UTF-8; save the file as UTF-8 (in a spreadsheet: CSV UTF-8)."
                ) from None
            yield line.removeprefix("\ufeff") if number == 1 else line

    def _malformed(self, line: int, reason: str) -> DataError:
        where = f"{shown(self.path)}, line {line}"
        if "field larger" in reason:
            return DataError(
                f"{where}: a field is longer than {_LONGEST:,} characters; shorten it, or close its quotes."
            )
        if "unexpected end" in reason:
            return DataError(
                f"{where}: a quote is opened and never closed; close it, or double a quote that is text."
            )
        plain = reason.replace("\t", "tab")
        return DataError(f"{where} cannot be split into fields ({plain}); correct its quotes.")

    def _sniff(self) -> str:
        """Comma or semicolon: the one that cuts the header, and the lines below it alike."""
        with open_plain(self.path) as raw:
            start = raw.read(_START)
        for magic, what in _OTHER_FORMATS.items():
            if start.startswith(magic):
                raise DataError(f"{shown(self.path)} is {what}.")
        lines = start.decode("utf-8-sig", errors="replace").splitlines(keepends=True)
        lines = [line for line in lines[:_SAMPLE] if line.strip()]
        if len(start) == _START and len(lines) > 1:
            lines.pop()  # it may be cut
        widths = {mark: [len(row) for row in csv.reader(lines, delimiter=mark) if row] for mark in ",;"}
        cutting = [mark for mark in ",;" if widths[mark] and widths[mark][0] > 1]
        if len(cutting) == 2:
            even = [mark for mark in cutting if len(set(widths[mark])) == 1]
            if len(even) != 1:
                raise DataError(
                    f"{shown(self.path)}, line 1 holds commas and semicolons, and either could part the fields; "
                    "put quotes around names that hold one of them."
                )
            return even[0]
        if not cutting and lines and "\t" in lines[0]:
            raise DataError(f"{shown(self.path)} has tabs between its fields; name it .tsv.")
        return cutting[0] if cutting else ","
