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

from ibpwf.errors import InputError
from ibpwf.storage.files import replacing

Rows = list[dict[str, Any]]
Write = Callable[[Rows], None]

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
        _pyarrow()


@contextlib.contextmanager
def rows_file(out: Path) -> Iterator[Write]:
    """A function that writes rows to `out`, or to standard output as CSV if that is `-`."""
    if str(out) == "-":
        yield _as_csv(sys.stdout.buffer, ",")
        sys.stdout.buffer.flush()
        return
    with replacing(out) as file:
        suffix = out.suffix.lower()
        if suffix == ".parquet":
            with _as_parquet(file) as write:
                yield write
        elif suffix == ".jsonl":
            yield _as_json_lines(file)
        else:
            yield _as_csv(file, "\t" if suffix == ".tsv" else ",")


def _as_csv(file: BinaryIO, delimiter: str) -> Write:
    head = True

    def write(rows: Rows) -> None:
        nonlocal head
        text = io.StringIO()
        table = csv.writer(text, delimiter=delimiter, lineterminator="\n")
        if head and rows:
            table.writerow(rows[0])
            head = False
        table.writerows([_cell(value) for value in row.values()] for row in rows)
        file.write(text.getvalue().encode("utf-8", "surrogateescape"))

    return write


def _cell(value: object) -> object:
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:.6f}" if isinstance(value, float) else value


def _as_json_lines(file: BinaryIO) -> Write:
    def write(rows: Rows) -> None:
        text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        file.write(text.encode("utf-8", "surrogateescape"))

    return write


def _pyarrow() -> Any:
    try:
        import pyarrow.parquet
    except ImportError:
        raise InputError("a .parquet file needs pyarrow: pip install 'ibpwf[parquet]', or write a .csv.") from None
    return pyarrow


@contextlib.contextmanager
def _as_parquet(file: BinaryIO) -> Iterator[Write]:
    pyarrow = _pyarrow()
    with contextlib.ExitStack() as held:
        writer: Any = None

        def write(rows: Rows) -> None:
            nonlocal writer
            table = pyarrow.Table.from_pylist(rows)
            if writer is None:
                writer = held.enter_context(pyarrow.parquet.ParquetWriter(file, table.schema))
            writer.write_table(table)

        yield write
