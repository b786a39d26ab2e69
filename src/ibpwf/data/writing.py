"""Rows to a CSV, TSV, JSON-lines or Parquet file, batch by batch; the file appears when all of them are written."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from ibpwf.data.number_texts import is_number
from ibpwf.data.opening import arrow
from ibpwf.errors import InputError

Rows = list[dict[str, Any]]
Write = Callable[[Rows], None]

FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")
ENDINGS = (".csv", ".tsv", ".jsonl", ".parquet")


def check_output(out: Path, data: Path) -> None:
    """Refuse, before anything is answered, a file that cannot be written as asked or that holds the data."""
    if str(out) == "-":
        return
    if out.suffix.lower() not in ENDINGS:
        raise InputError(
            f"{out} ends in {out.suffix!r}; give a file that ends in {', '.join(ENDINGS)}, or - for stdout."
        )
    if out.exists() and data.exists() and out.samefile(data):
        raise InputError(f"{out} is the data itself; give another file for the answers.")
    if out.is_dir():
        raise InputError(f"{out} is a folder; give the name of a file.")
    if not out.absolute().parent.is_dir():
        raise InputError(f"{out.parent} is no folder; make it first, or give another place.")
    if out.suffix.lower() == ".parquet":
        arrow(out)


@contextlib.contextmanager
def rows_file(out: Path) -> Iterator[Write]:
    """A function that writes rows to `out`, or to standard output as CSV if that is `-`."""
    from ibpwf.storage.files import replacing

    with contextlib.ExitStack() as held:
        if str(out) == "-":
            yield _text_rows(sys.stdout.buffer, ".csv")
            sys.stdout.buffer.flush()
        else:
            file = held.enter_context(replacing(out))
            suffix = out.suffix.lower()
            yield _parquet_rows(file, out, held) if suffix == ".parquet" else _text_rows(file, suffix)


def _text_rows(file: BinaryIO, suffix: str) -> Write:
    head = True

    def write(rows: Rows) -> None:
        nonlocal head
        text = io.StringIO()
        if suffix == ".jsonl":
            text.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        else:
            table = csv.writer(text, delimiter="\t" if suffix == ".tsv" else ",", lineterminator="\n")
            if head and rows:
                table.writerow(rows[0])
            table.writerows([_cell(value) for value in row.values()] for row in rows)
        head = False
        file.write(text.getvalue().encode("utf-8", "surrogateescape"))

    return write


def _cell(value: object) -> object:
    """A cell of a CSV or TSV file. Spreadsheets run text that begins as a formula does; a quote before it keeps it
    text. Numbers stay numbers."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str) and value.startswith(FORMULA) and not is_number(value):
        return f"'{value}"
    return f"{value:.6f}" if isinstance(value, float) else value


def _parquet_rows(file: BinaryIO, out: Path, held: contextlib.ExitStack) -> Write:
    pyarrow = arrow(out)
    writer: Any = None

    def write(rows: Rows) -> None:
        nonlocal writer
        table = pyarrow.Table.from_pylist(rows)
        if writer is None:
            writer = held.enter_context(pyarrow.parquet.ParquetWriter(file, table.schema))
        writer.write_table(table)

    return write
