"""Parquet files, through pyarrow: an optional extra."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ibpwf.errors import DataError, InputError
from ibpwf.files.cells import Cells
from ibpwf.files.examples import Floats, Origins
from ibpwf.files.numbers import EXACT, FILL_IN
from ibpwf.files.opening import check_room, open_plain, quoted, shown
from ibpwf.files.table import Part


class ParquetFile:
    """A table with typed columns. Numbers, booleans and text are read; nested columns and times are not."""

    headless = False

    def __init__(self, path: Path) -> None:
        try:
            import pyarrow.parquet
        except ImportError:
            raise InputError(
                f"{shown(path)} needs pyarrow to be read; run pip install 'ibpwf[parquet]', or save it as .csv."
            ) from None
        self.path = path
        with open_plain(path) as file:
            start = file.read(4)
        if start != b"PAR1":
            what = "is empty" if not start else f"is no Parquet file (it starts with {start!r})"
            raise DataError(f"{shown(path)} {what}; check the name of the file.")
        try:
            self._file = pyarrow.parquet.ParquetFile(str(path))
            self._schema = self._file.schema_arrow
        except Exception as error:  # pyarrow raises several kinds on a damaged file
            raise self._damaged(error) from error
        self.names = [name.strip() for name in self._schema.names]
        self.rows = int(self._file.metadata.num_rows)

    def parts(
        self, texts: Collection[str], leave_out: Collection[str], missing: bool = False, rows: int | None = None
    ) -> Iterator[Part]:
        """The columns: numbers as float32, text as text, and anything in `texts` as text; all rows, or so many at a
        time."""
        if not self.rows:
            raise DataError(f"{shown(self.path)} has no rows; give at least one example.")
        kept = [place for place, name in enumerate(self.names) if name not in leave_out]
        check_room(self.path, (rows or self.rows, len(kept)))
        for place in kept:
            self._check_type(place)
        start = 0
        for table in self._tables([self._schema.names[place] for place in kept], rows):
            columns = [(self.names[place], table.column(at)) for at, place in enumerate(kept)]
            origins = Origins([str(self.path)], "row", range(start + 1, start + table.num_rows + 1))
            yield [self._cells(name, column, texts, missing, origins) for name, column in columns], origins
            start += table.num_rows

    def _tables(self, names: list[str], rows: int | None) -> Iterator[Any]:
        """The rows, all at once or so many at a time, after checking that they are whole."""
        import pyarrow

        seen = 0
        try:
            if rows is None:
                tables = iter([self._file.read(columns=names, use_threads=False)])
            else:
                batches = self._file.iter_batches(rows, columns=names, use_threads=False)
                tables = (pyarrow.Table.from_batches([batch]) for batch in batches)
            for table in tables:
                table.validate(full=True)  # text that is not UTF-8, for instance
                seen += table.num_rows
                yield table
            if seen != self.rows:
                raise ValueError(f"it announces {self.rows} rows and holds {seen}")
        except Exception as error:
            raise self._damaged(error) from error

    def _damaged(self, error: Exception) -> DataError:
        reason = " ".join(str(error).split())[:120]
        return DataError(f"{shown(self.path)} is cut short or damaged ({reason}); write it again.")

    def _check_type(self, place: int) -> None:
        import pyarrow.types as types

        kind = self._schema.types[place]
        value = kind.value_type if types.is_dictionary(kind) else kind
        plain = (
            *(types.is_integer, types.is_floating, types.is_boolean, types.is_decimal),
            *(types.is_string, types.is_large_string, types.is_null),
        )
        if not any(check(value) for check in plain):
            other = "a time" if types.is_temporal(value) else "neither number nor text"
            word = "nested" if types.is_nested(value) else other
            raise DataError(
                f"{shown(self.path)}: column {quoted(self.names[place])} is {word} ({quoted(str(kind))}); write it "
                "as columns of numbers or text, or name it in the option ignore to leave it out."
            )

    def _cells(self, name: str, column: Any, texts: Collection[str], missing: bool, origins: Origins) -> Cells:
        import pyarrow
        import pyarrow.types as types

        if types.is_dictionary(column.type):
            column = column.cast(column.type.value_type)
        as_text = name in texts
        if types.is_string(column.type) or types.is_large_string(column.type) or as_text:
            values = column.to_pylist()
            # A blank is what a missing value is in text; whoever reads the column says which row it is.
            return Cells(name, ["" if value is None else _text(value) for value in values])
        if column.null_count and not missing:
            where = origins[column.is_null().to_pylist().index(True)]
            raise DataError(f"{where}, column {quoted(name)}: the value is missing; {FILL_IN}.")
        boolean = types.is_boolean(column.type)
        exact = column.to_numpy() if types.is_integer(column.type) else None
        wide = np.asarray(exact if exact is not None else column.cast(pyarrow.float64()).to_numpy(), dtype=np.float64)
        return Cells(name, _narrow(name, wide, exact, missing, origins), boolean)


def _narrow(name: str, wide: np.ndarray, exact: np.ndarray | None, missing: bool, origins: Origins) -> Floats:
    """The numbers as float32, if it holds them."""
    with np.errstate(over="ignore"):
        narrow = wide.astype(np.float32)
    wrong = ~np.isfinite(narrow)
    if missing:
        wrong &= ~np.isnan(wide)
    if exact is not None:
        wrong |= (exact >= EXACT) | (exact <= -EXACT if exact.dtype.kind != "u" else False)
    if wrong.any():
        row = int(np.flatnonzero(wrong)[0])
        value = wide[row] if exact is None else exact[row]
        if np.isnan(wide[row]):
            why, remedy = f"{value} is not a finite number", FILL_IN
        elif not np.isfinite(wide[row]):
            why, remedy = f"{value} is not a finite number", "fill in the value or remove the row"
        elif exact is None:
            why, remedy = f"{value} is beyond the range of float32 (3.4e38)", "scale the column"
        else:
            why = f"{value} has more digits than a number keeps, so it looks like an identifier"
            remedy = "name the column in the option ignore to leave it out, or scale it"
        raise DataError(f"{origins[row]}, column {quoted(name)}: {why}; {remedy}.")
    return narrow


def _text(value: object) -> str:
    if isinstance(value, float) and value != value:
        return ""  # a missing number
    return str(value)
