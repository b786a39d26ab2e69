"""`read_examples`: which reader a path needs, by what it is and what it is called."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import fields, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ibpwf.data.examples import Examples
from ibpwf.data.naming import ARRAYS, TABLES, Paths, check_path, table_files
from ibpwf.data.opening import check_there, shown, unreadable
from ibpwf.data.options import ReadOptions
from ibpwf.errors import DataError, InputError, unknown

if TYPE_CHECKING:
    from ibpwf.data.table import TableFile

_ARCHIVES = (".zip", ".tar", ".tgz", ".gz", ".bz2", ".xz", ".zst", ".7z", ".rar")
_SHEETS = (".xlsx", ".xls", ".ods")
_KNOWN = f"{', '.join((*TABLES, *ARRAYS))}, an image, an IDX file (…-images-idx3-ubyte), or a folder of images"


def read_examples(path: Paths, options: ReadOptions | None = None, **changed: Any) -> Examples:
    """The examples in a table (.csv, .tsv, .parquet), an .npz file, an IDX file, an image or a folder of images. A
    list, a pattern or a folder of tables names the shards of one.

    `options` say how; each can also be given by its name: `read_examples("a.csv", label="species")`.

    With `like`, the layout of an earlier file, columns are found by name whatever their order, and a file that does
    not fit is refused: columns too many or too few, a category never seen, images of another size. Missing values
    that took the mean in the first file do so in later ones.

    What is wrong with a file is a `DataError` or `InputError` of one sentence that names file and row.
    """
    shards, how = table_files(path), _checked(options, changed)
    if shards is not None and len(shards) > 1:
        from ibpwf.data.stored import read_stored

        return read_stored(path, how).in_memory()
    place = only_path(shards or path)
    try:
        return _read(place, how)
    except OSError as error:
        raise unreadable(place, error) from error
    except MemoryError:
        raise DataError(f"{shown(place)} does not fit into memory; split it into smaller files.") from None


def read_batches(path: Paths, rows: int, options: ReadOptions | None = None, **changed: Any) -> Iterator[Examples]:
    """The same examples as `read_examples` gives, `rows` at a time, of a file that is `like` an earlier one: a table
    or a folder of images may be larger than memory. A fault is named when it is met, after the batches before it."""
    how = _checked(options, changed)
    if how.like is None:
        raise InputError("like is None; give the layout of the first file, which is read whole.")
    for place in table_files(path) or [only_path(path)]:
        try:
            yield from _batches(place, how, rows)
        except OSError as error:
            raise unreadable(place, error) from error
        except MemoryError:
            raise DataError(f"{shown(place)} does not fit into memory; split it into smaller files.") from None


def only_path(given: Paths) -> Path:
    """The one path of what is no table in shards."""
    return check_path(given[0] if isinstance(given, (list, tuple)) else given)


def _checked(options: ReadOptions | None, changed: dict[str, Any]) -> ReadOptions:
    known = [option.name for option in fields(ReadOptions)]
    for name in changed:
        if name not in known:
            raise unknown("argument", name, known)
    return replace(options or ReadOptions(), **changed)


# Each format is imported when it is met: a table needs no archive reader, an image no pyarrow.


def table_in(path: Path, options: ReadOptions) -> TableFile | None:
    """The table in a file, if it is one by its name."""
    reader = TABLES.get(path.suffix.lower())
    table: TableFile | None = None if reader is None else _named(reader)(path, options.naming)
    return table


def _named(reader: str) -> Any:
    module, _, name = reader.partition(".")
    return getattr(import_module(f"ibpwf.data.{module}"), name)


def _batches(path: Path, options: ReadOptions, rows: int) -> Iterator[Examples]:
    from ibpwf.data.idx_file import is_idx

    if is_image_folder(path):
        from ibpwf.data.image_folder import image_batches

        yield from image_batches(path, options, rows)
        return
    if not path.is_dir() and not is_idx(path.name) and path.exists():
        table = table_in(path, options)
        if table is not None:
            from ibpwf.data.table import table_batches

            yield from table_batches(table, options, rows)
            return
    yield from _read(path, options).batches(rows)


def is_image_folder(path: Path) -> bool:
    """Whether a path is a folder that holds neither IDX files nor arrays nor tables."""
    from ibpwf.data.idx_file import is_idx
    from ibpwf.data.image_folder import is_junk

    if not path.is_dir():
        return False
    names = [name for name in os.listdir(path) if not is_junk(name)]
    return not any(is_idx(name) or _is_data(name) for name in names)


def _is_data(name: str) -> bool:
    return Path(name).suffix.lower() in (*TABLES, *ARRAYS)


def _read(path: Path, options: ReadOptions) -> Examples:
    name, suffix = path.name, path.suffix.lower()
    if path.is_dir():
        return _read_folder(path, options)
    check_there(path)  # a path that is not there is said to be so, whatever its name
    from ibpwf.data.idx_file import is_idx, read_idx
    from ibpwf.data.image_file import SUFFIXES

    if is_idx(name):
        return read_idx(path, options)
    table = table_in(path, options)
    if table is not None:
        from ibpwf.data.table import read_table

        return read_table(table, options)
    if suffix in ARRAYS:
        examples: Examples = _named(ARRAYS[suffix])(path, options)
        return examples
    if suffix in SUFFIXES:
        from ibpwf.data.image_folder import read_one_image

        return read_one_image(path, options)
    if suffix in _ARCHIVES:
        raise InputError(f"{shown(path)} is an archive, and archives are not opened; unpack it first.")
    if suffix in _SHEETS:
        raise InputError(f"{shown(path)} is a spreadsheet; save the sheet as CSV UTF-8 and give that file.")
    raise InputError(f"{shown(path)}: the ending {suffix!r} is not known; give one of {_KNOWN}.")


def _read_folder(folder: Path, options: ReadOptions) -> Examples:
    from ibpwf.data.idx_file import is_idx, only_images, read_idx
    from ibpwf.data.image_folder import is_junk, read_image_folder

    names = sorted(entry for entry in os.listdir(folder) if not is_junk(entry))
    if any(is_idx(name) for name in names):
        return read_idx(only_images(folder, names), options)
    table = next((name for name in names if _is_data(name)), None)
    if table is not None and (folder / table).is_file():
        raise DataError(
            f"{shown(folder)} is a folder; give one file in it, such as {shown(folder / table)}, or a folder of "
            "images."
        )
    return read_image_folder(folder, options)
