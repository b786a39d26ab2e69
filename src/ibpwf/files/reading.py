"""`read_examples`: which reader a path needs, by what it is and what it is called."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ibpwf.errors import DataError, InputError
from ibpwf.files.examples import Examples
from ibpwf.files.layout import Layout
from ibpwf.files.opening import shown, unreadable
from ibpwf.files.request import Missing, Request, Unknown

if TYPE_CHECKING:
    from ibpwf.files.table import Table

_TABLES = (".csv", ".tsv", ".tab")
_PARQUET = (".parquet", ".pq")
_ARCHIVES = (".zip", ".tar", ".tgz", ".gz", ".bz2", ".xz", ".zst", ".7z", ".rar")
_SHEETS = (".xlsx", ".xls", ".ods")
_KNOWN = ".csv, .tsv, .parquet, .npz, an image, an IDX file (…-images-idx3-ubyte), or a folder of images"


def read_examples(
    path: str | os.PathLike[str],
    *,
    label: str | None = None,
    labelled: bool | None = None,
    like: Layout | None = None,
    ignore: Sequence[str] = (),
    categories: Sequence[str] = (),
    unknown: Unknown = "error",
    size: tuple[int, int] | None = None,
    channels: int | None = None,
    missing: Missing | None = None,
) -> Examples:
    """The examples in a table (.csv, .tsv, .parquet), an .npz file, an IDX file, an image or a folder of images.

    `label` names the column (or the array of an .npz file) that holds the labels; without it, that is the
    column called label, class, target or y. `labelled=True` requires labels, `labelled=False` leaves them
    out; by default the first file needs them, and one read with `like` may have them or not.

    `like` is the layout of an earlier file. Columns are then found by name whatever their order, and a file
    that does not fit is refused: columns too many or too few, a category never seen (`unknown="zeros"` lets
    it stand for none of the known ones), images of another size.

    `ignore` names columns to leave out, `categories` those that hold categories although they look like
    numbers. `size=(height, width)` resizes images and `channels` makes them greyscale (1) or colour (3).

    A missing value in a table is an error; with `missing="mean"` it takes the mean its column had in the first file,
    and so it does in later files.

    What is wrong with a file is a `DataError` or `InputError` of one sentence that names file and row.
    """
    request = _request(path, label, labelled, like, ignore, categories, unknown, size, channels, missing)
    try:
        return _read(request)
    except OSError as error:
        raise unreadable(request.path, error) from error


def read_batches(
    path: str | os.PathLike[str],
    like: Layout,
    rows: int,
    *,
    label: str | None = None,
    labelled: bool | None = None,
    ignore: Sequence[str] = (),
    unknown: Unknown = "error",
    missing: Missing | None = None,
) -> Iterator[Examples]:
    """The same examples as `read_examples(path, like=like)`, about `rows` at a time: a table or a folder of images
    may be larger than memory. A fault is named when it is met, after the batches before it."""
    request = _request(path, label, labelled, like, ignore, (), unknown, None, None, missing)
    try:
        yield from _batches(request, rows)
    except OSError as error:
        raise unreadable(request.path, error) from error


def _request(
    path: str | os.PathLike[str],
    label: str | None,
    labelled: bool | None,
    like: Layout | None,
    ignore: Sequence[str],
    categories: Sequence[str],
    unknown: Unknown,
    size: tuple[int, int] | None,
    channels: int | None,
    missing: Missing | None,
) -> Request:
    text = os.fspath(path)
    if not isinstance(text, str) or not text or "\0" in text:
        raise InputError(f"path is {text!r}; give the path of a file or folder.")
    for name, given in (("ignore", ignore), ("categories", categories)):
        if isinstance(given, str):
            raise InputError(f"{name} is {given!r}; give a list of column names, such as [{given!r}].")
    # Command lines and JSON give lists.
    sides = tuple(size) if isinstance(size, list) else size
    return Request(
        Path(text), label, labelled, like, tuple(ignore), tuple(categories), unknown, sides, channels, missing
    )


def _table(path: Path) -> Table | None:
    """The table in a file, if it is one by its name."""
    suffix = path.suffix.lower()
    if suffix in _TABLES:
        from ibpwf.files.csv_file import CsvFile

        return CsvFile(path)
    if suffix in _PARQUET:
        from ibpwf.files.parquet_file import ParquetFile

        return ParquetFile(path)
    return None


def _batches(request: Request, rows: int) -> Iterator[Examples]:
    from ibpwf.files.idx_file import is_idx
    from ibpwf.files.image_folder import image_batches, is_junk
    from ibpwf.files.table import table_batches

    path = request.path
    if path.is_dir():
        names = [name for name in os.listdir(path) if not is_junk(name)]
        others = {*_TABLES, *_PARQUET, ".npz"}
        if not any(is_idx(name) or Path(name).suffix.lower() in others for name in names):
            yield from image_batches(request, rows)
            return
    elif not is_idx(path.name) and path.exists():
        table = _table(path)
        if table is not None:
            yield from table_batches(table, request, rows)
            return
    whole = _read(request)
    for start in range(0, len(whole), rows):
        yield whole.part(start, start + rows)


def _read(request: Request) -> Examples:
    # Each format is imported when it is met: a table needs no archive reader, an image no csv.
    path = request.path
    name, suffix = path.name, path.suffix.lower()
    if path.is_dir():
        return _read_folder(request)
    os.stat(path)  # a path that is not there is said to be so, whatever its name
    from ibpwf.files.idx_file import is_idx, read_idx
    from ibpwf.files.image_file import SUFFIXES

    if is_idx(name):
        return read_idx(request)
    table = _table(path)
    if table is not None:
        from ibpwf.files.table import read_table

        return read_table(table, request)
    if suffix == ".npz":
        from ibpwf.files.npz_file import read_npz

        return read_npz(request)
    if suffix in SUFFIXES:
        from ibpwf.files.image_folder import read_one_image

        return read_one_image(request)
    if suffix in _ARCHIVES:
        raise InputError(f"{request.file} is an archive, and archives are not opened; unpack it first.")
    if suffix in _SHEETS:
        raise InputError(f"{request.file} is a spreadsheet; save the sheet as CSV UTF-8 and give that file.")
    raise InputError(f"{request.file}: the ending {suffix!r} is not known; give one of {_KNOWN}.")


def _read_folder(request: Request) -> Examples:
    from dataclasses import replace

    from ibpwf.files.idx_file import is_idx, only_images, read_idx
    from ibpwf.files.image_folder import is_junk, read_image_folder

    names = sorted(entry for entry in os.listdir(request.path) if not is_junk(entry))
    if any(is_idx(name) for name in names):
        return read_idx(replace(request, path=only_images(request.path, names)))
    suffixes = {*_TABLES, *_PARQUET, ".npz"}
    table = next((name for name in names if Path(name).suffix.lower() in suffixes), None)
    if table is not None and (request.path / table).is_file():
        raise DataError(
            f"{request.file} is a folder; give one file in it, such as {shown(request.path / table)}, or a folder "
            "of images."
        )
    return read_image_folder(request)
