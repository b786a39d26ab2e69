"""Parquet files, through pyarrow: an optional extra."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np

from ibpwf.errors import DataError, InputError
from ibpwf.userdata.examples import Floats, Origins
from ibpwf.userdata.numbers import EXACT
from ibpwf.userdata.opening import check_room, open_plain, quoted, shown
from ibpwf.userdata.table import Cells


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

    def read(self, texts: Collection[str], leave_out: Collection[str]) -> tuple[list[Cells], Origins]:
        """The columns: numbers as float32, text as text, and anything in `texts` as text."""
        if not self.rows:
            raise DataError(f"{shown(self.path)} has no rows; give at least one example.")
        kept = [place for place, name in enumerate(self.names) if name not in leave_out]
        check_room(self.path, (self.rows, len(kept)))
        for place in kept:
            self._check_type(place)
        try:
            table = self._file.read(columns=[self._schema.names[place] for place in kept], use_threads=False)
            table.validate(full=True)  # text that is not UTF-8, for instance
            if table.num_rows != self.rows:
                raise ValueError(f"it announces {self.rows} rows and holds {table.num_rows}")
        except Exception as error:
            raise self._damaged(error) from error
        origins = Origins([str(self.path)], "row", range(1, self.rows + 1))
        return [self._cells(self.names[place], table.column(at), texts) for at, place in enumerate(kept)], origins

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

    def _cells(self, name: str, column: Any, texts: Collection[str]) -> Cells:
        import pyarrow
        import pyarrow.types as types

        if types.is_dictionary(column.type):
            column = column.cast(column.type.value_type)
        as_text = name in texts
        if types.is_string(column.type) or types.is_large_string(column.type) or as_text:
            values = column.to_pylist()
            # A blank is what a missing value is in text; whoever reads the column says which row it is.
            return Cells(name, ["" if value is None else _text(value) for value in values])
        if column.null_count:
            row = column.is_null().to_pylist().index(True) + 1
            raise DataError(
                f"{shown(self.path)}, row {row}, column {quoted(name)}: the value is missing; fill it in or remove "
                "the row."
            )
        boolean = types.is_boolean(column.type)
        exact = column.to_numpy() if types.is_integer(column.type) else None
        wide = np.asarray(exact if exact is not None else column.cast(pyarrow.float64()).to_numpy(), dtype=np.float64)
        return Cells(name, self._narrow(name, wide, exact), boolean)

    def _narrow(self, name: str, wide: np.ndarray, exact: np.ndarray | None) -> Floats:
        with np.errstate(over="ignore"):
            narrow = wide.astype(np.float32)
        wrong = ~np.isfinite(narrow)
        if exact is not None:
            wrong |= (exact >= EXACT) | (exact <= -EXACT if exact.dtype.kind == "i" else False)
        if wrong.any():
            row = int(np.flatnonzero(wrong)[0])
            value = wide[row] if exact is None else exact[row]
            if not np.isfinite(wide[row]):
                why, remedy = f"{value} is not a finite number", "fill in the value or remove the row"
            elif exact is None:
                why, remedy = f"{value} is beyond the range of float32 (3.4e38)", "scale the column"
            else:
                why = f"{value} has more digits than a number keeps, so it looks like an identifier"
                remedy = "name the column in the option ignore to leave it out, or scale it"
            raise DataError(f"{shown(self.path)}, row {row + 1}, column {quoted(name)}: {why}; {remedy}.")
        return narrow


def _text(value: object) -> str:
    if isinstance(value, float) and value != value:
        return ""  # a missing number
    return str(value)
