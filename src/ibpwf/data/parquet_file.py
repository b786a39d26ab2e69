"""Parquet files, through pyarrow."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from ibpwf.data.examples import Origins
from ibpwf.data.opening import arrow, check_columns, check_room, open_plain, quoted, short_reason, shown
from ibpwf.data.options import Naming
from ibpwf.errors import DataError


class ParquetFile:
    """A table with typed columns. Numbers, booleans and text are read; nested columns and times are not."""

    headless = False

    def __init__(self, path: Path, naming: Naming) -> None:
        self.arrow = arrow(path)
        self.path, self.naming = path, naming
        with open_plain(path) as file:
            start = file.read(4)
        if start != b"PAR1":
            what = "is empty" if not start else f"is no Parquet file (it starts with {start!r})"
            raise DataError(f"{shown(path)} {what}; check the name of the file.")
        try:
            self._file = self.arrow.parquet.ParquetFile(str(path), pre_buffer=False)  # not all of it at once
            self._schema = self._file.schema_arrow
        except Exception as error:  # pyarrow raises several kinds on a damaged file
            raise self._damaged(error) from error
        self.names = [name.strip() for name in self._schema.names]
        check_columns(path, len(self.names))

    @property
    def rows(self) -> int:
        return int(self._file.metadata.num_rows)

    @property
    def bytes(self) -> int:
        return 4 * self.rows * len(self.names)

    def parts(self, wanted: Sequence[int], rows: int | None = None) -> Iterator[Any]:
        """The columns with these numbers, all rows or so many at a time."""
        total = self.rows
        if not total:
            raise DataError(f"{shown(self.path)} has no rows; give at least one example.")
        check_room(self.path, (rows or total, len(wanted)))
        for place in wanted:
            self._check_type(place)
        seen = 0
        try:
            for table in self._tables([self._schema.names[place] for place in wanted], rows):
                table.validate(full=True)  # text that is not UTF-8, for instance
                yield table
                seen += table.num_rows
            if seen != total:
                raise ValueError(f"it announces {total} rows and holds {seen}")
        except DataError:
            raise
        except Exception as error:
            raise self._damaged(error) from error

    def origins(self, rows: range) -> Origins:
        return Origins([str(self.path)], "row", range(rows.start + 1, rows.stop + 1))

    def _tables(self, names: list[str], rows: int | None) -> Iterator[Any]:
        tables: Iterable[Any] = ()
        if rows is None:
            tables = [self._file.read(columns=names, use_threads=False)]
        else:
            tables = map(self.arrow.table, self._file.iter_batches(rows, columns=names, use_threads=False))
        for table in tables:
            for place, kind in enumerate(table.schema.types):
                plain = kind.value_type if self.arrow.types.is_dictionary(kind) else kind
                plain = self.arrow.string() if _is_moment(self.arrow.types, plain) else plain
                if plain != kind:
                    table = table.set_column(place, table.schema.names[place], table[place].cast(plain))
            yield table

    def _damaged(self, error: Exception) -> DataError:
        return DataError(f"{shown(self.path)} is cut short or damaged ({short_reason(error)}); write it again.")

    def _check_type(self, place: int) -> None:
        types, kind = self.arrow.types, self._schema.types[place]
        value = kind.value_type if types.is_dictionary(kind) else kind
        plain = (
            *(types.is_integer, types.is_floating, types.is_boolean, types.is_decimal),
            *(types.is_string, types.is_large_string, types.is_null),
        )
        if not any(check(value) for check in plain) and not _is_moment(types, value):
            other = "a span of time" if types.is_temporal(value) else "neither number nor text"
            word = "nested" if types.is_nested(value) else other
            raise DataError(
                f"{shown(self.path)}: column {quoted(self.names[place])} is {word} ({quoted(str(kind))}); write it "
                f"as columns of numbers or text, or name it in {self.naming('ignore')} to leave it out."
            )


def _is_moment(types: Any, kind: Any) -> bool:
    """A date, a time of day, or both."""
    return bool(types.is_timestamp(kind) or types.is_date(kind) or types.is_time(kind))
