"""CSV and TSV files, with the standard library: read by chunks of rows, understood by columns."""

from __future__ import annotations

import codecs
import csv
import io
from collections.abc import Collection, Iterable, Iterator
from itertools import chain, islice
from pathlib import Path

from ibpwf.errors import DataError
from ibpwf.files.cells import Cells
from ibpwf.files.examples import Origins
from ibpwf.files.numbers import ABSENT, NotANumber, Parser, is_number
from ibpwf.files.opening import open_plain, quoted, shown
from ibpwf.files.table import Part

_FIRST = 2048  # rows that decide what a column holds
_CELLS = 1 << 16  # read at a time: more would not fit the processor's cache
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

_Row = tuple[int, list[str]]
"""A record and the line it starts on."""


class CsvFile:
    """A table as text. The delimiter is a tab for .tsv and .tab, otherwise the comma or semicolon of the header."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.delimiter = "\t" if path.suffix.lower() in (".tsv", ".tab") else self._sniff()
        _, self.names = next(self._records(), (0, []))
        self.names = [name.strip() for name in self.names]
        if not self.names:
            raise DataError(f"{shown(path)} is empty; give a table with a header line and rows.")

    @property
    def headless(self) -> bool:
        """Whether the first line looks like data rather than names."""
        return all(is_number(name) for name in self.names)

    def parts(
        self, texts: Collection[str], leave_out: Collection[str], missing: bool = False, rows: int | None = None
    ) -> Iterator[Part]:
        """The columns, some rows at a time: as numbers where all cells are, as text where `texts` says so or not.

        The first rows decide; after that a row's numbers are read together, without sorting cells by column.
        """
        records = self._records()
        next(records)
        first = list(islice(records, _FIRST))
        if not first:
            raise DataError(f"{shown(self.path)} has a header and no rows; give at least one example.")
        kept = [place for place, name in enumerate(self.names) if name not in leave_out]
        parser = Parser(missing)
        text_places = self._text_columns(first, kept, texts, parser)
        numeric = [place for place in kept if place not in text_places]
        others = sorted(set(range(len(self.names))).difference(numeric), reverse=True)
        at_once = max(1, _CELLS // len(self.names))
        for chunk in chain([first], iter(lambda: list(islice(records, at_once)), [])):
            words = {place: [row[place] for _, row in chunk] for place in text_places}
            for _, row in chunk:
                for place in others:
                    del row[place]
            try:
                flat = parser.parse(list(chain.from_iterable(row for _, row in chunk)))
            except NotANumber as fault:
                at, column = divmod(fault.index, len(numeric))
                raise self._fault(chunk[at][0], numeric[column], fault) from None
            block = flat.reshape(len(chunk), len(numeric))
            columns = {place: block[:, at] for at, place in enumerate(numeric)}
            cells = [Cells(self.names[place], words[place] if place in words else columns[place]) for place in kept]
            yield cells, Origins([str(self.path)], "line", [line for line, _ in chunk])

    def _text_columns(
        self, first: list[_Row], kept: Collection[int], texts: Collection[str], parser: Parser
    ) -> set[int]:
        """The columns that are text by `texts` or by their first rows."""
        words: set[int] = set()
        for place in kept:
            cells = [row[place] for _, row in first]
            if self.names[place] in texts:
                words.add(place)
                continue
            try:
                parser.parse(cells)
            except NotANumber as fault:
                if not _reads_as_text(cells, parser.missing):
                    raise self._fault(first[fault.index][0], place, fault) from None
                words.add(place)
        return words

    def _fault(self, line: int, place: int, fault: NotANumber) -> DataError:
        where = f"{shown(self.path)}, line {line}, column {quoted(self.names[place])}"
        return DataError(f"{where}: {fault.why}; {fault.remedy}.")

    def _records(self) -> Iterator[_Row]:
        """The records that are not empty, the header first; each must have as many fields as the header."""
        start = width = 0
        with open_plain(self.path) as raw, io.TextIOWrapper(raw, encoding="utf-8-sig", newline="") as text:
            reader = csv.reader(self._lines(text), delimiter=self.delimiter, skipinitialspace=True, strict=True)
            try:
                for row in reader:
                    start, line = reader.line_num, start + 1
                    if not any(row) or (len(row) == 1 and not row[0].strip()):  # spreadsheets leave such lines
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
            except UnicodeDecodeError:
                raise self._not_utf8() from None

    def _lines(self, text: Iterable[str]) -> Iterator[str]:
        for number, line in enumerate(text, start=1):
            if "\0" in line:
                raise DataError(f"{shown(self.path)}, line {number} holds a NUL byte; it is no text, or damaged.")
            yield line

    def _malformed(self, line: int, reason: str) -> DataError:
        where = f"{shown(self.path)}, line {line}"
        if "field larger" in reason:
            most = f"{csv.field_size_limit():,}"
            return DataError(f"{where}: a field is longer than {most} characters; shorten it, or close its quotes.")
        if "unexpected end" in reason:
            return DataError(
                f"{where}: a quote is opened and never closed; close it, or double a quote that is text."
            )
        return DataError(f"{where} cannot be split into fields ({reason}); correct its quotes.")

    def _not_utf8(self) -> DataError:
        position = 0
        with open_plain(self.path) as raw:
            for number, line in enumerate(raw, start=1):
                try:
                    line.decode("utf-8")
                except UnicodeDecodeError as error:
                    return DataError(
                        f"{shown(self.path)}, line {number}: byte {position + error.start} "
                        f"(0x{line[error.start]:02x}) is not UTF-8; save the file as UTF-8 (in a spreadsheet: CSV "
                        "UTF-8)."
                    )
                position += len(line)
        return DataError(f"{shown(self.path)} is not UTF-8; save it as UTF-8.")

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


def _reads_as_text(cells: Collection[str], missing: bool) -> bool:
    """Whether a column that is not all numbers is meant as text: half of its filled cells or more are no numbers."""
    absent = ABSENT if missing else ("",)
    filled = [cell for cell in cells if cell.strip().lower() not in absent]
    return bool(filled) and 2 * sum(map(is_number, filled)) <= len(filled)
